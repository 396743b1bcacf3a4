%% SPDX-License-Identifier: Apache-2.0
%% @doc A process of this node and those that it has started, such as a supervisor and what runs below it. Called by {@link placement_attr}, {@link placement_choose}
%% and {@link placement_child_keeper}.
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
    %% A head on another node, as a start function may give it, has no family here.
    Links = case node(Pid) =:= node() andalso process_info(Pid, links) of {links, All} -> All; _ -> [] end,
    Below = [Linked || Linked <- Links, is_pid(Linked), node(Linked) =:= node(), not is_map_key(Linked, Seen),
                       {parent, Parent} <- [process_info(Linked, parent)], is_map_key(Parent, Seen)],
    [Pid | linked(Rest ++ Below, maps:merge(Seen, maps:from_keys(Below, true)))].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% A head starts a member that traps exits, which starts one with a link and one without. A stranger is linked to the member.
family_test() ->
    Self = self(),
    Waits = fun() -> _ = process_flag(trap_exit, true), receive stop -> ok end end,
    Head = spawn(fun() ->
        Member = spawn_link(fun() ->
            Self ! {started, spawn_link(Waits), spawn(Waits)},
            Waits()
        end),
        Self ! {member, Member},
        Waits()
    end),
    Member = receive {member, M} -> M after 60000 -> error(no_member) end,
    {Linked, Unlinked} = receive {started, L, U} -> {L, U} after 60000 -> error(not_started) end,
    Stranger = spawn(fun() ->
        true = link(Member),
        Self ! linked,
        Waits()
    end),
    receive linked -> ok after 60000 -> error(not_linked) end,
    ?assertEqual([true, true, true, true, false, false], [is_in(Pid, Head) || Pid <- [Head, Member, Linked, Unlinked, Stranger, Self]]),
    Monitors = [monitor(process, Pid) || Pid <- [Head, Member, Linked]],
    ok = kill(Head),
    ?assertEqual([killed, killed, killed], [receive {'DOWN', Monitor, process, _, Reason} -> Reason after 60000 -> alive end || Monitor <- Monitors]),
    ?assertEqual([true, true], [is_process_alive(Pid) || Pid <- [Unlinked, Stranger]]),
    _ = [exit(Pid, kill) || Pid <- [Unlinked, Stranger]],
    ?assertEqual(ok, kill(Head)).
-endif.
