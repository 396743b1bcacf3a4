%% SPDX-License-Identifier: Apache-2.0
%% @doc Simulates many nodes with the real decisions of placement_voter: messages are delayed or lost, nodes restart and
%% forget their state, the network is partitioned, and voters are replaced. Two nodes must never run the child at the same
%% time.
%%
%% `BEAMWAY_TEST_SEEDS' is the number of random runs (60), each of which takes a tenth of a second:
%% `BEAMWAY_TEST_SEEDS=2000 TEST_MINUTES=20 make test T=placement_voter_tests'.
-module(placement_voter_tests).

-include_lib("eunit/include/eunit.hrl").

-define(NODES, [a, b, c, d, e, f]).
-define(GRACE, 100).
-define(STEP, 4).
-define(STEPS, 3000).

%% `broken': the rule that is disabled in this run. `asks': the pending requests, by the node that sent them. `runs':
%% the nodes that run the child.
-record(world, {now = 0, broken = none, rows = #{}, made = #{}, down = #{}, sides = #{}, asks = #{}, runs = #{}, names = #{}, seen = #{}}).
-record(ask, {spec, since, answers = #{}}).
-record(run, {spec, until, next, change = {#{}, none}}).

never_two_test_() ->
    Seeds = list_to_integer(os:getenv("BEAMWAY_TEST_SEEDS", "60")),
    {timeout, 2 * Seeds, [fun() ->
        Seen = [run(Seed, none) || Seed <- lists:seq(1, Seeds)],
        ?assertEqual([], [Seed || {two, Seed} <- Seen]),
        Sums = lists:foldl(fun({one, Counts}, Sums) -> maps:fold(fun(Key, Count, Acc) -> maps:update_with(Key, fun(Sum) -> Sum + Count end, Count, Acc) end, Sums, Counts) end, #{}, Seen),
        ?assertEqual(0, maps:get(fenced, Sums, 0)),
        [?assertMatch({Key, Count, _} when 60 * Count > 25 * Seeds, {Key, maps:get(Key, Sums, 0), Sums}) || Key <- [started, ended, restarted, replacing, replaced, split, called]]
    end]}.

%% The first seed is known to show the failure, so that each run need not search for one.
each_rule_is_needed_test_() ->
    [{timeout, 120, {atom_to_list(Rule), ?_assertMatch({Rule, {two, _}}, {Rule, first_two(Rule, First, First + 1500)})}}
     || {Rule, First} <- [{quarantine, 2}, {both_sets, 13}, {margin, 1}]].

%% The voter was cut off together with the last holder (1). Since then it has made a promise to a node (3) that did not get
%% a majority. Once that promise has expired or been released, the voter must not reject the node that runs the child (2).
refused_in_between_test_() ->
    Spec = maps:remove(next, spec(#{})),
    Asks = fun(Number, Holder, Row, Now) -> placement_voter:ask(Spec#{fence => Number}, {Holder, none}, Row, Now, -?GRACE) end,
    Renews = fun(Number, Holder, Row, Now) -> placement_voter:ask(Spec#{fence => Number, live => Number, at => Holder}, {Holder, self()}, Row, Now, -?GRACE) end,
    {{granted, none, _}, Ran} = Renews(1, a, {Spec, {nobody, none, 0}}, 1),
    {{granted, a, _}, Tried} = Asks(3, c, Ran, 200),
    {{granted, none, _}, Runs} = Renews(3, c, Tried, 210),
    [?_assertMatch({{held, c}, Tried}, Renews(2, b, Tried, 210)),
     ?_assertMatch({{granted, none, _}, {#{fence := 2, live := 2, at := b}, {b, _, 310}}}, Renews(2, b, placement_voter:release(c, Tried, 210), 210)),
     ?_assertMatch({{granted, none, _}, {#{fence := 2, live := 2, at := b}, {b, _, 400}}}, Renews(2, b, Tried, 300)),
     %% A node that does not run the child, or that ran it before the last holder, is still rejected.
     ?_assertMatch({{fenced, 3}, Tried}, Asks(2, b, Tried, 300)),
     ?_assertMatch({{fenced, 3}, Runs}, Renews(2, b, Runs, 400))].

first_two(_, Last, Last) -> none;
first_two(Rule, Seed, Last) ->
    case run(Seed, Rule) of
        {two, _} = Two -> Two;
        {one, _} -> first_two(Rule, Seed + 1, Last)
    end.

run(Seed, Broken) ->
    _ = rand:seed(exsss, Seed),
    #{nodes := Voters} = Spec = spec(#{}),
    World = #world{broken = Broken, made = maps:from_list([{Node, -?GRACE} || Node <- ?NODES]), sides = maps:from_list([{Node, 1} || Node <- ?NODES])},
    Told = lists:foldl(fun(Node, #world{rows = Rows} = Before) ->
                               {ok, Row} = placement_voter:put(Spec, {none, undefined}, 0, -?GRACE),
                               Before#world{rows = Rows#{Node => Row}}
                       end, World, Voters),
    steps(?STEPS, Seed, Told).

steps(0, _, #world{seen = Seen}) -> {one, Seen};
steps(Left, Seed, World) ->
    case step(World) of
        #world{runs = Runs} when map_size(Runs) > 1 -> {two, Seed};
        Next -> steps(Left - 1, Seed, Next)
    end.

step(#world{now = Now} = World) -> lists:foldl(fun(Do, Before) -> Do(Before) end, World#world{now = Now + ?STEP}, [fun expired/1, fun faults/1, fun chosen/1, fun answered/1, fun renewed/1]).

chance(OneOf) -> rand:uniform(OneOf) =:= 1.

one_of(List) -> lists:nth(rand:uniform(length(List)), List).

seen(Key, #world{seen = Seen} = World) -> World#world{seen = maps:update_with(Key, fun(Count) -> Count + 1 end, 1, Seen)}.

row(Node, #world{rows = Rows}) -> maps:get(Node, Rows, none).

are_connected(A, B, #world{down = Down, sides = Sides}) -> A =:= B orelse not is_map_key(A, Down) andalso not is_map_key(B, Down) andalso maps:get(A, Sides) =:= maps:get(B, Sides).

here(Node, World) -> [Other || Other <- ?NODES, are_connected(Node, Other, World)].

%%% Time and faults

expired(#world{now = Now, runs = Runs, asks = Asks} = World) ->
    Alive = maps:filter(fun(_, #run{until = Until}) -> Until > Now end, Runs),
    Ended = maps:keys(Runs) -- maps:keys(Alive),
    lists:foldl(fun(_, Before) -> seen(ended, Before) end,
                World#world{runs = Alive, asks = maps:without(Ended, Asks)}, Ended).

faults(World) ->
    lists:foldl(fun({OneOf, Fault}, Before) -> case chance(OneOf) of true -> Fault(Before); false -> Before end end, World,
                [{200, fun restarts/1}, {800, fun many_restart/1}, {150, fun goes_down/1}, {60, fun comes_up/1}, {120, fun splits/1}, {60, fun heals/1}, {300, fun ends/1}, {100, fun called/1}]).

restarts(World) -> restarted(one_of(?NODES), World).

%% Restarts many nodes at the same time, as when a rack loses power.
many_restart(#world{runs = Runs} = World) -> lists:foldl(fun restarted/2, World, [Node || Node <- ?NODES, not is_map_key(Node, Runs), not chance(3)]).

restarted(Node, #world{now = Now, rows = Rows, made = Made, runs = Runs, asks = Asks, names = Names} = World) ->
    seen(restarted, World#world{rows = maps:remove(Node, Rows), names = maps:remove(Node, Names), made = Made#{Node := Now}, runs = maps:remove(Node, Runs), asks = maps:remove(Node, Asks)}).

goes_down(#world{down = Down} = World) ->
    Node = one_of(?NODES),
    (restarted(Node, World))#world{down = Down#{Node => true}}.

comes_up(#world{now = Now, down = Down, made = Made} = World) ->
    told(World#world{down = #{}, made = maps:merge(Made, maps:map(fun(_, _) -> Now end, Down))}).

splits(World) -> seen(split, World#world{sides = maps:from_list([{Node, rand:uniform(2)} || Node <- ?NODES])}).

heals(World) -> told(World#world{sides = maps:from_list([{Node, 1} || Node <- ?NODES])}).

%% The node that runs the child announces it to the nodes that are connected now.
told(#world{runs = Runs} = World) -> maps:fold(fun(Node, #run{spec = Spec}, Before) -> announced(Node, Spec, Before) end, World, Runs).

%% The process exits on its own, and its keeper releases the promises.
ends(#world{runs = Runs} = World) when map_size(Runs) =:= 0 -> World;
ends(#world{now = Now, runs = Runs, asks = Asks} = World) ->
    {Node, #run{spec = Spec}} = one_of(maps:to_list(Runs)),
    lists:foldl(fun(Voter, #world{rows = Rows} = Before) ->
                        case are_connected(Node, Voter, Before) andalso is_map_key(Voter, Rows) of
                            true -> Before#world{rows = maps:update_with(Voter, fun(Row) -> placement_voter:release(Node, Row, Now) end, Rows)};
                            false -> Before
                        end
                end, World#world{runs = maps:remove(Node, Runs), asks = maps:remove(Node, Asks)}, placement_voter:asked(Spec)).

%% A caller uses placement:child/3 again, on a side with more than half of the candidates. At least one of these knows
%% the current voters, unless no node knows the child.
called(#world{now = Now, made = Made, names = Names, rows = All} = World) ->
    Here = here(one_of(?NODES), World),
    Rows = [Row || Node <- Here, {#{}, _} = Row <- [row(Node, World)]],
    Configs = lists:sort([{maps:get(term, Spec), placement_voter:config(Spec)} || Spec <- [Spec || {Spec, _} <- Rows] ++ [Spec || Node <- Here, {ok, Spec} <- [maps:find(Node, Names)]]]),
    Known = case Configs of [] -> -1; _ -> element(1, lists:last(Configs)) end,
    case 2 * length(Here) > length(?NODES) andalso [] =:= [Pid || {_, {_, Pid, Until}} <- Rows, is_pid(Pid), Until > Now]
         andalso [] =:= [Term || {#{term := Term}, _} <- maps:values(All), Term > Known] of
        true ->
            Spec = (spec(case Configs of [] -> #{}; _ -> element(2, lists:last(Configs)) end))#{version => {Now, a}},
            lists:foldl(fun(Node, #world{rows = Before} = Told) ->
                                {_, Row} = placement_voter:put(Spec, {row(Node, Told), undefined}, Now, maps:get(Node, Made)),
                                Told#world{rows = Before#{Node => Row}}
                        end, seen(called, World), [Node || Node <- placement_voter:asked(Spec), lists:member(Node, Here), not chance(10)]);
        false -> World
    end.

spec(Config) ->
    maps:merge(#{name => one, query => [], call => {m, f, []}, candidates => ?NODES, nodes => [a, b, c], term => 0, voters => 3, version => {0, a}, grace => ?GRACE, replace_after => 80, settle => 600}, Config).

%%% Choices and requests

chosen(#world{now = Now} = World) ->
    lists:foldl(fun(Voter, Before) ->
                        case row(Voter, Before) of
                            {#{} = Spec, {_, _, Until}} when Until =< Now ->
                                case lists:member(Voter, placement_voter:asked(Spec)) andalso not is_map_key(Voter, Before#world.down) andalso chance(4) of
                                    true -> asks(one_of(here(Voter, Before)), Spec, Before);
                                    false -> Before
                                end;
                            _ -> Before
                        end
                end, World, ?NODES).

asks(Node, _, #world{asks = Asks, runs = Runs} = World) when is_map_key(Node, Asks); is_map_key(Node, Runs) -> World;
asks(Node, Spec, World) ->
    Number = case row(Node, World) of
                 {#{fence := Fence}, _} -> Fence;
                 _ -> 0
             end,
    asked(Node, (maps:remove(heard, Spec))#{fence => lists:max([World#world.now, Number + 1, maps:get(fence, Spec, 0) + 1])}, World).

asked(Node, Spec, #world{now = Now, asks = Asks} = World) -> World#world{asks = Asks#{Node => #ask{spec = Spec, since = Now}}}.

answered(#world{asks = Asks} = World) -> lists:foldl(fun answered/2, World, maps:keys(Asks)).

answered(Node, #world{asks = Asks} = World) ->
    #{Node := #ask{spec = Spec, answers = Answers}} = Asks,
    Voters = [Voter || Voter <- to_ask(Spec, World), not is_map_key(Voter, Answers), are_connected(Node, Voter, World), chance(3)],
    counted(Node, lists:foldl(fun(Voter, Before) -> answer(Voter, Node, Before) end, World, Voters)).

to_ask(Spec, World) -> placement_voter:asked(left_out(Spec, World)).

%% Removes what the disabled rule would use from the requesting node's specification.
left_out(#{fence := Fence, live := Fence} = Spec, _) -> Spec;
left_out(Spec, #world{broken = both_sets}) -> maps:remove(next, Spec);
left_out(Spec, #world{broken = memory}) -> maps:remove(settle, Spec);
left_out(Spec, _) -> Spec.

answer(Voter, Node, #world{now = Now, broken = Broken, rows = Rows, made = Made, asks = Asks, runs = Runs} = World) ->
    #{Node := #ask{spec = Spec, answers = Answers} = Ask} = Asks,
    Pid = case is_map_key(Node, Runs) of true -> self(); false -> none end,
    Told = case {Broken, row(Voter, World)} of
               {later_terms, {#{term := Term} = Known, Promise}} -> {Known#{term := min(Term, maps:get(term, Spec))}, Promise};
               {_, Row} -> Row
           end,
    {Answer, Changed} = placement_voter:ask(Spec, {Node, Pid}, Told, Now, case Broken of quarantine -> -?GRACE; _ -> maps:get(Voter, Made) end),
    Kept = case {Answer, Changed} of
               {_, none} -> Rows;
               {{config, _}, _} -> Rows;
               _ -> Rows#{Voter => Changed}
           end,
    After = World#world{rows = Kept, asks = Asks#{Node := Ask#ask{answers = Answers#{Voter => Answer}}}},
    case Answer of
        {fenced, _} when is_pid(Pid) -> seen(fenced, After);
        _ -> After
    end.

counted(Node, #world{asks = Asks} = World) ->
    #{Node := #ask{spec = Spec, since = Since, answers = Answers}} = Asks,
    Without = World#world{asks = maps:remove(Node, Asks)},
    Configs = lists:sort([{Term, Config} || {config, #{term := Term} = Config} <- maps:values(Answers)]),
    case placement_voter:counted(left_out(Spec, World), Answers, World#world.now - Since >= ?GRACE div 3) of
        open -> World;
        {granted, Both, _} -> granted(Node, Spec, Since, Both, Without);
        denied when Configs =/= [] -> after_config(Node, placement_voter:configured(element(2, lists:last(Configs)), Spec), Without);
        denied -> Without
    end.

after_config(Node, Spec, #world{runs = Runs} = World) when is_map_key(Node, Runs) ->
    #{Node := Run} = Runs,
    World#world{runs = Runs#{Node := Run#run{spec = Spec}}};
after_config(Node, Spec, World) -> asked(Node, Spec, World).

granted(Node, Spec, Since, Both, #world{now = Now, broken = Broken, runs = Runs} = World) ->
    Until = Since + case Broken of margin -> 2 * ?GRACE; _ -> ?GRACE - ?GRACE div 20 end,
    case Runs of
        _ when Until =< Now -> World;
        #{Node := #run{change = Change} = Run} ->
            Settle = case Broken of settling -> 0; _ -> maps:get(settle, Spec) end,
            {Revoted, Last} = placement_voter:revoted({Since, Both}, here(Node, World), Spec#{settle := Settle}, Change),
            New = Revoted#{settle := maps:get(settle, Spec)},
            After = World#world{runs = Runs#{Node := Run#run{spec = New, until = Until, next = Now + ?GRACE div 4, change = Last}}},
            case {maps:get(term, New) - maps:get(term, Spec), is_map_key(next, New)} of
                {1, true} -> seen(replacing, announced(Node, New, After));
                {1, false} -> seen(replaced, announced(Node, New, After));
                {0, _} -> After
            end;
        #{} ->
            Lives = Spec#{live => maps:get(fence, Spec), at => Node},
            seen(started, announced(Node, Lives, World#world{runs = Runs#{Node => #run{spec = Lives, until = Until, next = Now}}}))
    end.

%% Informs most of the connected nodes, regardless of whether they are voters.
announced(Node, Spec, World) ->
    lists:foldl(fun(Other, #world{rows = Rows, names = Names} = Before) ->
                        Told = case Rows of
                                   #{Other := Row} -> Rows#{Other := placement_voter:told(Spec, Row)};
                                   #{} -> Rows
                               end,
                        Before#world{rows = Told, names = Names#{Other => Spec}}
                end, World, [Other || Other <- here(Node, World), not chance(3)]).

renewed(#world{now = Now, runs = Runs} = World) ->
    lists:foldl(fun({Node, #run{spec = Spec, next = Next}}, #world{asks = Asks} = Before) ->
                        case Next =< Now andalso not is_map_key(Node, Asks) of
                            true -> asked(Node, Spec, Before);
                            false -> Before
                        end
                end, World, maps:to_list(Runs)).
