%% SPDX-License-Identifier: Apache-2.0
%% @doc Handles families: a process on this node together with the processes that it has started, such as a supervisor and
%% all processes below it. Called by {@link placement_attr}, {@link placement_choose} and {@link placement_child_keeper}.
-module(placement_family).

-export([is_in/2, kill/1]).

%% Most families can be searched completely within this time, after which their members are killed,
%% parents first. It is shorter than the safety margin of the shortest lease (20 ms).
-define(FIRST_MS, 5).
-define(ALL_MS, 60000).
%% The maximum number of concurrent processes that read links.
-define(READERS_MAX, 1000).

-record(walk, {family = #{} :: #{pid() => true},
               found = [] :: [pid()] | killed,                                    %% latest first; with `killed', members are killed as they are found
               todo = [] :: [[pid() | port()]],                                   %% links of members
               asked = #{} :: #{pid() => true},
               open = 0 :: non_neg_integer(),                                     %% how many processes were asked and have not answered yet
               strangers = #{} :: #{pid() | undefined => [{pid(), [pid() | port()]}]}}).  %% by parent

%% @doc Returns whether a process is the head of a family or was started by a member of the family. All processes on the
%% path up to the head must still be alive. Processes on other nodes are never members.
-spec is_in(pid(), Head :: pid()) -> boolean().
is_in(Head, Head) -> true;
is_in(Pid, Head) when node(Pid) =:= node() ->
    case process_info(Pid, parent) of
        {parent, Parent} when is_pid(Parent) -> is_in(Parent, Head);
        _ -> false
    end;
is_in(_, _) -> false.

%% @doc Kills a process together with the processes that it has started and that are linked to it or
%% to each other. If only the head were killed, the others would exit some time later. Processes
%% that it has started without a link survive, and so do processes that are linked to it but were
%% started by others.
%% Returns within a few milliseconds, as soon as the head and the members found so far have been
%% killed. In a large family it takes longer to find the rest, and a process in a native call does
%% not report its links. Such members are killed in the background as they are found.
-spec kill(Head :: pid()) -> ok.
kill(Head) when node(Head) =:= node() ->
    Caller = self(),
    Tag = make_ref(),
    {_, Monitor} = spawn_opt(fun() -> killing(Head, fun() -> Caller ! Tag end) end, [monitor, {priority, high}]),
    receive
        Tag -> _ = demonitor(Monitor, [flush]), ok;
        {'DOWN', Monitor, process, _, _} -> ok
    end;
%% A start function may return a process on another node; such a process has no family here.
kill(Head) ->
    true = exit(Head, kill),
    ok.

killing(Head, Tell) ->
    Found = try walked(#walk{family = #{Head => true}, found = [Head], todo = [[Head]]}, now_ms() + ?FIRST_MS)
            %% The head must be killed even if the process limit has been reached.
            catch error:system_limit -> #walk{found = [Head]}
            end,
    %% Kills parents first, so that no supervisor restarts a child.
    ok = lists:foreach(fun(Pid) -> true = exit(Pid, kill) end, lists:reverse(Found#walk.found)),
    _ = Tell(),
    _ = walked(Found#walk{found = killed}, now_ms() + ?ALL_MS),
    ok.

walked(#walk{todo = [[] | Lists]} = Walk, End) -> walked(Walk#walk{todo = Lists}, End);
walked(#walk{todo = [], open = 0} = Walk, _) -> Walk;
walked(Walk, End) ->
    case End - now_ms() of
        Left when Left > 0 -> walked(step(Walk, Left), End);
        _ -> Walk
    end.

step(#walk{todo = [[Next | Rest] | Lists], open = Open} = Walk, _) when Open < ?READERS_MAX -> asked(Next, Walk#walk{todo = [Rest | Lists]});
step(#walk{open = Open} = Walk, Ms) ->
    receive {?MODULE, Pid, Info} -> answered(Pid, Info, Walk#walk{open = Open - 1})
    after Ms -> Walk
    end.

%% Each process is read by a separate process, because process_info waits until the process handles signals, which
%% does not happen during a native call.
asked(Pid, #walk{asked = Asked, open = Open} = Walk) when is_pid(Pid), node(Pid) =:= node(), not is_map_key(Pid, Asked) ->
    Self = self(),
    _ = spawn_opt(fun() -> Self ! {?MODULE, Pid, process_info(Pid, [parent, links])} end, [{priority, high}]),
    Walk#walk{asked = Asked#{Pid => true}, open = Open + 1};
asked(_, Walk) -> Walk.

answered(_, undefined, Walk) -> Walk;
answered(Pid, [{parent, Parent}, {links, Links}], #walk{family = Family, strangers = Strangers} = Walk) ->
    case Family of
        #{Pid := true} -> below(Pid, Links, Walk);
        #{Parent := true} -> below(Pid, Links, found(Pid, Walk));
        %% The parent of this process may turn out to be a member.
        _ -> Walk#walk{strangers = maps:update_with(Parent, fun(Others) -> [{Pid, Links} | Others] end, [{Pid, Links}], Strangers)}
    end.

found(Pid, #walk{family = Family, found = killed} = Walk) ->
    true = exit(Pid, kill),
    Walk#walk{family = Family#{Pid => true}};
found(Pid, #walk{family = Family, found = Found} = Walk) -> Walk#walk{family = Family#{Pid => true}, found = [Pid | Found]}.

below(Pid, Links, #walk{todo = Todo, strangers = Strangers} = Walk) ->
    Children = maps:get(Pid, Strangers, []),
    lists:foldl(fun({Child, Its}, Before) -> below(Child, Its, found(Child, Before)) end,
                Walk#walk{todo = [Links | Todo], strangers = maps:remove(Pid, Strangers)}, Children).

now_ms() -> erlang:monotonic_time(millisecond).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% The head starts a member that traps exits. The member starts one process with a link and one without. An unrelated
%% process is linked to the member.
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

%% The work grows linearly with the number of members, whether they are siblings or nested.
wide_and_deep_test_() -> {timeout, 120, fun wide_and_deep/0}.

wide_and_deep() ->
    [begin
         {Few, Many} = {killing_work(Shape, 250), killing_work(Shape, 4000)},
         ?assert(Many < 40 * Few, {Shape, Few, Many})
     end || Shape <- [wide, deep]].

killing_work(Shape, Count) ->
    Self = self(),
    Head = spawn(fun() -> member(Shape, Count, Self) end),
    Members = [Head | [receive {member, Pid} -> Pid after 60000 -> error(not_started) end || _ <- lists:seq(1, Count)]],
    Ends = [monitor(process, Pid) || Pid <- Members],
    _ = spawn(fun() ->
        ok = killing(Head, fun() -> ok end),
        Self ! {work, process_info(self(), reductions)}
    end),
    Work = receive {work, {reductions, Reductions}} -> Reductions after 60000 -> error(not_killed) end,
    [receive {'DOWN', End, process, _, Reason} -> ?assertEqual(killed, Reason) after 60000 -> error(alive) end || End <- Ends],
    Work.

member(Shape, Count, Test) ->
    _ = process_flag(trap_exit, true),
    Started = case {Shape, Count} of
                  {_, 0} -> [];
                  {wide, _} -> [spawn_link(fun() -> member(wide, 0, Test) end) || _ <- lists:seq(1, Count)];
                  {deep, _} -> [spawn_link(fun() -> member(deep, Count - 1, Test) end)]
              end,
    _ = [Test ! {member, Pid} || Pid <- Started],
    receive stop -> ok end.
-endif.
