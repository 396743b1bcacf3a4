%% SPDX-License-Identifier: Apache-2.0
%% @doc A process of this node and those that it has started, as a supervisor and what runs below it. Called by {@link placement_attr}, {@link placement_choose} and
%% {@link placement_child_keeper}.
-module(placement_family).

-export([is_in/2, kill/1]).

%% @doc Whether a process is the head of the family, or was started by a member of it. All on the way up must still run; processes of other nodes are never members.
-spec is_in(pid(), Head :: pid()) -> boolean().
is_in(Head, Head) -> true;
is_in(Pid, Head) when node(Pid) =:= node() ->
    case process_info(Pid, parent) of
        {parent, Parent} when is_pid(Parent) -> is_in(Parent, Head);
        _ -> false
    end;
is_in(_, _) -> false.

%% @doc Kills a process, and with it those that it has started and that are linked to it or to each other, which would else end in their own time. Those that it has started
%% without a link stay, and so do those that are linked to it but were started by others.
-spec kill(Head :: pid()) -> ok.
kill(Head) -> lists:foreach(fun(Pid) -> true = exit(Pid, kill) end, linked([Head], #{Head => true})).

%% Parents first, so that no supervisor starts a child again.
linked([], _) -> [];
linked([Pid | Rest], Seen) ->
    Links = case process_info(Pid, links) of {links, All} -> All; undefined -> [] end,
    Below = [Linked || Linked <- Links, is_pid(Linked), node(Linked) =:= node(), not is_map_key(Linked, Seen),
                       {parent, Parent} <- [process_info(Linked, parent)], is_map_key(Parent, Seen)],
    [Pid | linked(Rest ++ Below, maps:merge(Seen, maps:from_keys(Below, true)))].
