%% SPDX-License-Identifier: Apache-2.0
%% @doc Measures the round-trip times between all pairs of a set of nodes.
%%
%% In quiet mode it measures one round of disjoint pairs after another (the circle method for round-robin tournaments), so
%% that each node communicates with only one other node at a time. In loaded mode all pairs are measured at the same time,
%% as in the second strategy of the RELEASE report, because a network often shows its structure only under load. With
%% `pairs' only a fraction of the rounds is measured, in which all nodes have the same number of pairs, and the clustering
%% estimates the times of the other pairs ({@link placement_gaps}). The unit of measurement is a batch of 100 round trips.
%% The result contains the minimum, the median and the 90th percentile of the batches of each pair. It leaves out the
%% mean, because a single stall of the machine would change it by a third.
%%
%% The nodes connect to each other for the measurement. They need not run this application: {@link placement_probe_pair}
%% is loaded into nodes that do not have it, and removed afterwards. If a pair fails, the result contains the reason
%% instead of times.
-module(placement_probe).

-export([measure/2, rounds/1, drawn_rounds/2]).

-export_type([options/0, mode/0, pairs/0, measured/0, progress/0]).

-type mode() :: quiet | loaded.
-type options() :: #{modes => [mode()],               %% default: [quiet, loaded]
                     batches => pos_integer(),        %% per pair; default: 20
                     messages => pos_integer(),       %% per batch; default: 100
                     pairs => number(),               %% the fraction of all pairs to measure, above 0 and at most 1; default: 1
                     limit_ms => pos_integer(),       %% per pair; default: 60000
                     done => pairs(),                 %% earlier results, which are not measured again; pairs with other nodes are dropped
                     progress => fun((progress()) -> ok)}.
-type pairs() :: #{{mode(), node(), node()} => #{min_us := float(), median_us := float(), p90_us := float(), batches := pos_integer()}}.
%% The first of the two nodes sorts before the second.
-type measured() :: #{nodes := [node()], pairs := pairs(), failed := [{mode(), node(), node(), term()}],
                      messages := pos_integer(), seconds := float()}.
-type progress() :: #{mode := mode(), done := non_neg_integer(), total := non_neg_integer(), left_s := float() | unknown,
                      pairs := pairs()}.
%% The argument of the function `progress', which is called before and after each step: the number of pairs measured so
%% far, the total number, the estimated remaining time in seconds, and all results so far.

-define(LOAD_MS, 15000).
%% The maximum time to wait until all pairs are ready. It is a little less than the time that the pairs themselves wait.
-define(GATE_MS, 15000).
%% With more concurrent pairs, the coordinator would become the bottleneck.
-define(AT_ONCE, 4096).

%% @doc Measures the round-trip times. Returns an error if a node cannot be reached at the beginning.
-spec measure([node()], options()) ->
          {ok, measured()} | {error, {bad_option, atom(), term()} | no_pairs | {unreachable, [{node(), term()}]}}.
measure(Nodes, Options) ->
    Defaults = #{modes => [quiet, loaded], pairs => 1, batches => 20, messages => 100, limit_ms => 60000, done => #{}, progress => fun(_) -> ok end},
    case [{Key, Value} || {Key, Value} <- maps:to_list(Options), not is_good(Key, Value)] of
        [] -> measure_checked(lists:usort(Nodes), maps:merge(Defaults, Options));
        [{Key, Value} | _] -> {error, {bad_option, Key, Value}}
    end.

is_good(modes, [_ | _] = Modes) -> Modes -- [quiet, loaded] =:= [];
is_good(pairs, Value) -> is_number(Value) andalso Value > 0 andalso Value =< 1;
is_good(batches, Value) -> is_integer(Value) andalso Value > 0 andalso Value =< 10000;
is_good(messages, Value) -> is_integer(Value) andalso Value > 0 andalso Value =< 100000;
is_good(limit_ms, Value) -> is_integer(Value) andalso Value > 0;
is_good(done, Value) -> is_map(Value);
is_good(progress, Value) -> is_function(Value, 1);
is_good(_, _) -> false.

measure_checked(Nodes, _) when length(Nodes) < 2 -> {error, no_pairs};
measure_checked(Nodes, #{modes := Modes, done := Done} = Options) ->
    Start = erlang:monotonic_time(millisecond),
    Wanted = maps:from_keys(Nodes, true),
    Known = maps:filter(fun({_, A, B}, _) -> is_map_key(A, Wanted) andalso is_map_key(B, Wanted) end, Done),
    case load(Nodes) of
        {ok, Loaded} ->
            try
                {Pairs, Failed} = lists:foldl(fun(Mode, Acc) -> mode(Mode, Nodes, Options, Acc) end, {Known, []}, Modes),
                {ok, #{nodes => Nodes, pairs => Pairs, failed => Failed, messages => maps:get(messages, Options),
                       seconds => (erlang:monotonic_time(millisecond) - Start) / 1000}}
            after unload(Loaded)
            end;
        Error -> Error
    end.

%% @doc Returns the rounds of the circle method: every pair occurs once, and each node at most once in each round.
-spec rounds([node()]) -> [[{node(), node()}]].
rounds(Nodes) when length(Nodes) rem 2 =:= 1 ->
    [[Pair || {A, B} = Pair <- Round, A =/= none, B =/= none] || Round <- rounds(Nodes ++ [none])];
rounds([]) -> [];
rounds([Fixed | Ring]) ->
    Half = (length(Ring) + 1) div 2,
    [begin
         {Front, Back} = lists:split(Turn, Ring),
         {Upper, Lower} = lists:split(Half, [Fixed | Back ++ Front]),
         [{min(A, B), max(A, B)} || {A, B} <- lists:zip(Upper, lists:reverse(Lower))]
     end || Turn <- lists:seq(0, length(Ring) - 1)].

%% @doc Returns a fraction of the rounds, but at least three, because fewer would probably not
%% connect all nodes. The nodes are placed on the circle in the order of a hash of their names, so
%% that their order is unrelated to the network and the same nodes always get the same rounds.
-spec drawn_rounds([node()], Share :: number()) -> [[{node(), node()}]].
drawn_rounds(Nodes, Share) when Share < 1 ->
    Hashed = [Node || {_, Node} <- lists:sort([{erlang:phash2(Node), Node} || Node <- Nodes])],
    lists:sublist(rounds(Hashed), max(3, ceil(Share * (length(Nodes) - 1))));
drawn_rounds(Nodes, _) -> rounds(Nodes).

%% ---- code on the nodes ----

load(Nodes) ->
    Answers = answers(Nodes, code, ensure_loaded, [placement_probe_pair]),
    case [{Node, Reason} || {Node, {Class, Reason}} <- Answers, Class =/= ok] of
        [] -> load_missing([Node || {Node, {ok, {error, _}}} <- Answers]);
        Unreachable -> {error, {unreachable, Unreachable}}
    end.

load_missing([]) -> {ok, []};
load_missing(Missing) ->
    {Module, Binary, File} = code:get_object_code(placement_probe_pair),
    Answers = answers(Missing, code, load_binary, [Module, File, Binary]),
    case [{Node, Why} || {Node, Why} <- Answers, Why =/= {ok, {module, Module}}] of
        [] -> {ok, Missing};
        Failed -> {error, {unreachable, Failed}}
    end.

unload(Nodes) ->
    _ = answers(Nodes, code, delete, [placement_probe_pair]),
    _ = answers(Nodes, code, soft_purge, [placement_probe_pair]),
    ok.

answers(Nodes, Module, Function, Arguments) -> lists:zip(Nodes, erpc:multicall(Nodes, Module, Function, Arguments, ?LOAD_MS)).

%% ---- measuring ----

mode(Mode, Nodes, #{progress := Progress, pairs := Share} = Options, {Pairs, Failed}) ->
    Rounds = drawn_rounds(Nodes, Share),
    Steps = [Todo || Step <- steps(Mode, Rounds),
                     Todo <- [[{A, B} || {A, B} <- Step, not is_map_key({Mode, A, B}, Pairs)]], Todo =/= []],
    Total = lists:sum([length(Round) || Round <- Rounds]),
    Known = Total - lists:sum([length(Step) || Step <- Steps]),
    Start = erlang:monotonic_time(millisecond),
    Tell = fun(Measured, All) ->
                   ok = Progress(#{mode => Mode, done => Measured, total => Total, pairs => All, left_s => left_s(Start, Measured - Known, Total - Measured)})
           end,
    ok = Tell(Known, Pairs),
    {_, AllPairs, AllFailed} =
        lists:foldl(fun(Step, {Count, Ps, Fs}) ->
                            {NewPairs, NewFailed} = step(Mode, Step, Options),
                            Sum = Count + length(Step),
                            Now = maps:merge(Ps, NewPairs),
                            ok = Tell(Sum, Now),
                            {Sum, Now, Fs ++ NewFailed}
                    end, {Known, Pairs, Failed}, Steps),
    {AllPairs, AllFailed}.

steps(quiet, Rounds) -> Rounds;
steps(loaded, Rounds) -> cut(lists:append(Rounds)).

cut(Pairs) when length(Pairs) =< ?AT_ONCE -> [Pairs];
cut(Pairs) ->
    {Some, Rest} = lists:split(?AT_ONCE, Pairs),
    [Some | cut(Rest)].

left_s(_, 0, _) -> unknown;
left_s(Start, Measured, Left) -> (erlang:monotonic_time(millisecond) - Start) / 1000 / Measured * Left.

%% Measures all pairs of a step concurrently, each monitored by a separate process. The time limit begins when all pairs
%% have begun. Results that arrive later are not used.
step(Mode, Pairs, #{limit_ms := LimitMs} = Options) ->
    %% The gate is an alias, so that late messages from a node that was suspended are dropped.
    Gate = alias(),
    Watched = maps:from_list([watched(Mode, Pair, Gate, Options) || Pair <- Pairs]),
    {Begun, Early} = case Mode of
                         quiet -> {Watched, #{}};
                         loaded -> opened(Gate, Watched, #{}, #{}, after_ms(min(?GATE_MS, LimitMs)))
                     end,
    Ended = ended(Begun, Early, after_ms(LimitMs + min(?LOAD_MS, LimitMs))),
    _ = unalias(Gate),
    ok = flushed(Gate),
    Results = lists:sort([{element(2, maps:get(Monitor, Watched)), outcome(Reason)} || {Monitor, Reason} <- maps:to_list(Ended)]),
    {maps:from_list([{{Mode, A, B}, summary(Times)} || {{A, B}, {ok, Times}} <- Results]), [{Mode, A, B, Why} || {{A, B}, {error, Why}} <- Results]}.

flushed(Gate) ->
    receive {{Gate, _}, _} -> flushed(Gate) after 0 -> ok end.

after_ms(Ms) -> erlang:monotonic_time(millisecond) + Ms.

outcome({?MODULE, Outcome}) -> Outcome;
outcome(Reason) -> {error, Reason}.

%% Dialyzer would warn that the process's fun never returns, because its result is the exit reason.
-dialyzer({nowarn_function, watched/4}).
watched(Mode, {A, B} = Pair, Gate, #{batches := Batches, messages := Messages, limit_ms := LimitMs}) ->
    Entry = case Mode of quiet -> none; loaded -> {Gate, {Gate, Pair}} end,
    {Pid, Monitor} = spawn_monitor(fun() -> exit({?MODULE, called(A, [B, Batches, Messages, LimitMs, Entry], LimitMs)}) end),
    {Monitor, {Pid, Pair}}.

%% Twice the time limit plus the wait at the gate is longer than the measurement can take, unless the node is suspended.
called(Node, Arguments, LimitMs) ->
    try erpc:call(Node, placement_probe_pair, run, Arguments, 2 * LimitMs + ?GATE_MS) of
        Times -> {ok, Times}
    catch
        exit:{exception, {probe, Reason}} -> {error, Reason};
        error:{erpc, Reason} -> {error, Reason};
        _:Reason -> {error, Reason}
    end.

%% All pairs begin when the last one is ready or has failed. At the timeout only the pairs that are ready begin, because a
%% pair that begins late would be measured under a different load.
opened(Gate, Waiting, Ready, Ended, End) when map_size(Waiting) > map_size(Ready) ->
    receive
        {{Gate, Pair}, Pid} -> opened(Gate, Waiting, Ready#{Pair => Pid}, Ended, End);
        {'DOWN', Monitor, process, _, Reason} when is_map_key(Monitor, Waiting) ->
            {{_, Pair}, Others} = maps:take(Monitor, Waiting),
            opened(Gate, Others, maps:remove(Pair, Ready), Ended#{Monitor => Reason}, End)
    after max(0, End - erlang:monotonic_time(millisecond)) ->
        {Begun, Late} = lists:partition(fun({_, {_, Pair}}) -> is_map_key(Pair, Ready) end, maps:to_list(Waiting)),
        opened(Gate, maps:from_list(Begun), Ready, stopped(maps:from_list(Late), Ended), End)
    end;
opened(Gate, Waiting, Ready, Ended, _) ->
    _ = [Pid ! {{Gate, Pair}, go} || {Pair, Pid} <- maps:to_list(Ready)],
    {Waiting, Ended}.

ended(Watched, Ended, End) when map_size(Watched) > 0 ->
    receive
        {'DOWN', Monitor, process, _, Reason} when is_map_key(Monitor, Watched) ->
            ended(maps:remove(Monitor, Watched), Ended#{Monitor => Reason}, End)
    after max(0, End - erlang:monotonic_time(millisecond)) -> stopped(Watched, Ended)
    end;
ended(_, Ended, _) -> Ended.

stopped(Watched, Ended) ->
    maps:fold(fun(Monitor, {Pid, _}, Acc) ->
                      true = demonitor(Monitor, [flush]),
                      true = exit(Pid, kill),
                      Acc#{Monitor => {?MODULE, {error, timeout}}}
              end, Ended, Watched).

summary(Times) ->
    [Min, Median, P90] = placement_quantiles:quantiles([0.0, 0.5, 0.9], [max(1, round(Time * 1000)) || Time <- Times]),
    #{min_us => Min / 1000, median_us => Median / 1000, p90_us => P90 / 1000, batches => length(Times)}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

rounds_test_() ->
    [fun() ->
             Nodes = [list_to_atom("n" ++ integer_to_list(N)) || N <- lists:seq(1, Count)],
             Rounds = rounds(Nodes),
             ?assertEqual(lists:sort([{min(A, B), max(A, B)} || A <- Nodes, B <- Nodes, A < B]), lists:sort(lists:append(Rounds))),
             [begin
                  Busy = lists:append([[A, B] || {A, B} <- Round]),
                  ?assertEqual(lists:sort(Busy), lists:usort(Busy))
              end || Round <- Rounds]
     end || Count <- [0, 1, 2, 3, 4, 5, 16, 33]].

drawn_rounds_test_() ->
    [fun() ->
             Nodes = [list_to_atom("n" ++ integer_to_list(N)) || N <- lists:seq(1, Count)],
             Drawn = drawn_rounds(Nodes, Share),
             ?assertEqual(Rounds, length(Drawn)),
             ?assertEqual([], lists:append(Drawn) -- lists:append(rounds(Nodes))),
             ?assertEqual(Drawn, drawn_rounds(lists:reverse(Nodes), min(Share, 0.999))),
             ?assert(Count rem 2 =:= 1 orelse [Rounds] =:= lists:usort([length([x || {A, B} <- lists:append(Drawn), A =:= Node orelse B =:= Node]) || Node <- Nodes]))
     end || {Count, Share, Rounds} <- [{32, 0.1, 4}, {33, 0.25, 8}, {8, 0.01, 3}, {2, 0.5, 1}]].

bad_options_test_() ->
    [?_assertEqual({error, {bad_option, Key, Value}}, measure([a, b], #{Key => Value}))
     || {Key, Value} <- [{modes, []}, {modes, [fast]}, {batches, 0}, {messages, x}, {limit_ms, -1}, {pairs, 0}, {pairs, 1.5}, {pairs, all}, {colour, red}]]
        ++ [?_assertEqual({error, no_pairs}, measure(Nodes, #{})) || Nodes <- [[], [a], [a, a]]].

summary_test() -> ?assertEqual(#{min_us => 1.0, median_us => 2.0, p90_us => 4.0, batches => 4}, summary([4.0, 2.0, 3.0, 1.0])).
-endif.
