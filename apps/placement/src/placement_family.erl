%% SPDX-License-Identifier: Apache-2.0
%% @doc A process of this node and those that it has started, as a supervisor and what runs below it. Called by {@link placement_attr}, {@link placement_choose} and
%% {@link placement_child_keeper}.
-module(placement_family).

-export([is_in/2]).

%% @doc Whether a process is the head of the family, or was started by a member of it. All on the way up must still run; processes of other nodes are never members.
-spec is_in(pid(), Head :: pid()) -> boolean().
is_in(Head, Head) -> true;
is_in(Pid, Head) when node(Pid) =:= node() ->
    case process_info(Pid, parent) of
        {parent, Parent} when is_pid(Parent) -> is_in(Parent, Head);
        _ -> false
    end;
is_in(_, _) -> false.
