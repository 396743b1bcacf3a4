%% SPDX-License-Identifier: Apache-2.0
%% @doc Measures the round-trip times of every pair of some nodes.
%%
%% Quiet: in rounds of disjoint pairs (the circle method of tournaments), one round after the other, so that each node
%% talks to one other. Loaded: all pairs at once, as the RELEASE report does in its second strategy, since a network often shows
%% its structure under load only. The unit is a batch of 100 round trips; of the batches of a pair the minimum, the median and
%% the 90th percentile are kept, never the mean: one stall of the machine would move it by a third.
%%
%% The nodes connect to each other for it. They need not run this application: {@link placement_probe_pair} is loaded into those
%% that do not have it, and removed again. A pair that fails is missing in the result, with its reason.
-module(placement_probe).

-export([measure/2, rounds/1, total_pairs/1]).

-export_type([options/0, mode/0, pairs/0, measured/0, progress/0]).

-type mode() :: quiet | loaded.
-type options() :: #{modes => [mode()],               %% [quiet, loaded]
                     batches => pos_integer(),        %% of a pair, 20
                     messages => pos_integer(),       %% of a batch, 100
                     limit_ms => pos_integer(),       %% for a pair, 60000
                     done => pairs(),                 %% what was measured before: is not measured again
                     progress => fun((progress()) -> ok)}.
-type pairs() :: #{{mode(), node(), node()} => #{min_us := float(), median_us := float(), p90_us := float(), batches := pos_integer()}}.
%% The first of the two nodes sorts before the second.
-type measured() :: #{nodes := [node()], pairs := pairs(), failed := [{mode(), node(), node(), term()}],
                      messages := pos_integer(), seconds := float()}.
-type progress() :: #{mode := mode(), done := non_neg_integer(), total := non_neg_integer(), left_s := float() | unknown,
                      pairs := pairs()}.
%% Before and after each step: how many pairs of how many, the seconds that are left by estimate, all there is so far.

-define(LOAD_MS, 15000).
%% A little less than the pairs themselves wait.
-define(GATE_MS, 15000).
%% More pairs at once would measure the coordinator.
-define(AT_ONCE, 4096).

%% @doc Measures. Ends with an error if a node cannot be reached at the start.
-spec measure([node()], options()) ->
          {ok, measured()} | {error, {bad_option, atom(), term()} | no_pairs | {unreachable, [{node(), term()}]}}.
measure(Nodes, Options) ->
    case checked(Options) of
        ok -> measure_checked(lists:usort(Nodes), maps:merge(defaults(), Options));
        Error -> Error
    end.

defaults() ->
    #{modes => [quiet, loaded], batches => 20, messages => 100, limit_ms => 60000, done => #{}, progress => fun(_) -> ok end}.

checked(Options) ->
    Bad = [{Key, Value} || {Key, Value} <- maps:to_list(Options), not is_good(Key, Value)],
    case Bad of
        [] -> ok;
        [{Key, Value} | _] -> {error, {bad_option, Key, Value}}
    end.

is_good(modes, [_ | _] = Modes) -> Modes -- [quiet, loaded] =:= [];
is_good(batches, Value) -> is_integer(Value) andalso Value > 0 andalso Value =< 10000;
is_good(messages, Value) -> is_integer(Value) andalso Value > 0 andalso Value =< 100000;
is_good(limit_ms, Value) -> is_integer(Value) andalso Value > 0;
is_good(done, Value) -> is_map(Value);
is_good(progress, Value) -> is_function(Value, 1);
is_good(_, _) -> false.

measure_checked([], _) -> {error, no_pairs};
measure_checked([_], _) -> {error, no_pairs};
measure_checked(Nodes, #{modes := Modes, done := Done} = Options) ->
    Start = erlang:monotonic_time(millisecond),
    case load(Nodes) of
        {ok, Loaded} ->
            try
                {Pairs, Failed} = lists:foldl(fun(Mode, Acc) -> mode(Mode, Nodes, Options, Acc) end, {Done, []}, Modes),
                {ok, #{nodes => Nodes, pairs => Pairs, failed => Failed, messages => maps:get(messages, Options),
                       seconds => (erlang:monotonic_time(millisecond) - Start) / 1000}}
            after unload(Loaded)
            end;
        Error -> Error
    end.

%% @doc The rounds of the circle method: every pair once, in each round each node at most once.
-spec rounds([node()]) -> [[{node(), node()}]].
rounds(Nodes) when length(Nodes) rem 2 =:= 1 ->
    [[Pair || {A, B} = Pair <- Round, A =/= none, B =/= none] || Round <- rounds(Nodes ++ [none])];
rounds([]) -> [];
rounds([Fixed | Ring]) ->
    Half = (length(Ring) + 1) div 2,
    [begin
         {Upper, Lower} = lists:split(Half, [Fixed | rotated(Ring, Turn)]),
         [{min(A, B), max(A, B)} || {A, B} <- lists:zip(Upper, lists:reverse(Lower))]
     end || Turn <- lists:seq(0, length(Ring) - 1)].

rotated(List, Turn) ->
    {Front, Back} = lists:split(Turn, List),
    Back ++ Front.

%% @doc How many pairs there are.
-spec total_pairs([node()]) -> non_neg_integer().
total_pairs(Nodes) ->
    length(Nodes) * (length(Nodes) - 1) div 2.

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

answers(Nodes, Module, Function, Arguments) ->
    lists:zip(Nodes, erpc:multicall(Nodes, Module, Function, Arguments, ?LOAD_MS)).

%% ---- measuring ----

mode(Mode, Nodes, #{progress := Progress} = Options, {Pairs, Failed}) ->
    Steps = [Todo || Step <- steps(Mode, rounds(Nodes)),
                     Todo <- [[{A, B} || {A, B} <- Step, not is_map_key({Mode, A, B}, Pairs)]], Todo =/= []],
    Total = total_pairs(Nodes),
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
left_s(Start, Measured, Left) ->
    (erlang:monotonic_time(millisecond) - Start) / 1000 / Measured * Left.

%% All pairs of a step at once. The limit of a pair begins when all have begun; what is late is missing.
step(Mode, Pairs, #{batches := Batches, messages := Messages, limit_ms := LimitMs}) ->
    Gate = make_ref(),
    Entry = case Mode of quiet -> none; loaded -> {self(), Gate} end,
    Requests = [{A, B, erpc:send_request(A, placement_probe_pair, run, [B, Batches, Messages, LimitMs, Entry])} || {A, B} <- Pairs],
    ok = open_gate(Entry, length(Pairs), erlang:monotonic_time(millisecond) + ?GATE_MS, []),
    End = erlang:monotonic_time(millisecond) + LimitMs + ?LOAD_MS,
    lists:foldl(fun({A, B, Request}, {Done, Failed}) ->
                        case answer(Request, End) of
                            {ok, Times} -> {Done#{{Mode, A, B} => summary(Times)}, Failed};
                            {error, Reason} -> {Done, [{Mode, A, B, Reason} | Failed]}
                        end
                end, {#{}, []}, Requests).

%% All begin when the last is ready, or those that are ready when the time is over.
open_gate(none, _, _, _) -> ok;
open_gate({_, Gate}, 0, _, Ready) -> lists:foreach(fun(Pid) -> Pid ! {Gate, go} end, Ready);
open_gate({_, Gate} = Entry, Missing, End, Ready) ->
    receive
        {Gate, Pid} -> open_gate(Entry, Missing - 1, End, [Pid | Ready])
    after max(0, End - erlang:monotonic_time(millisecond)) -> open_gate(Entry, 0, End, Ready)
    end.

answer(Request, End) ->
    try erpc:receive_response(Request, max(0, End - erlang:monotonic_time(millisecond))) of
        Times -> {ok, Times}
    catch
        exit:{exception, {probe, Reason}} -> {error, Reason};
        error:{erpc, Reason} -> {error, Reason};
        _:Reason -> {error, Reason}
    end.

summary(Times) ->
    [Min, Median, P90] = placement_quantiles:quantiles([0.0, 0.5, 0.9], [max(1, round(Time * 1000)) || Time <- Times]),
    #{min_us => Min / 1000, median_us => Median / 1000, p90_us => P90 / 1000, batches => length(Times)}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% Every pair once, and no node twice in a round.
rounds_test_() ->
    [fun() ->
             Nodes = [list_to_atom("n" ++ integer_to_list(N)) || N <- lists:seq(1, Count)],
             Rounds = rounds(Nodes),
             ?assertEqual(lists:sort([{min(A, B), max(A, B)} || A <- Nodes, B <- Nodes, A < B]), lists:sort(lists:append(Rounds))),
             [begin
                  Busy = lists:append([[A, B] || {A, B} <- Round]),
                  ?assertEqual(lists:sort(Busy), lists:usort(Busy))
              end || Round <- Rounds],
             ?assertEqual(total_pairs(Nodes), length(lists:append(Rounds)))
     end || Count <- [0, 1, 2, 3, 4, 5, 16, 33]].

bad_options_test_() ->
    [?_assertEqual({error, {bad_option, Key, Value}}, measure([a, b], #{Key => Value}))
     || {Key, Value} <- [{modes, []}, {modes, [fast]}, {batches, 0}, {messages, x}, {limit_ms, -1}, {colour, red}]]
        ++ [?_assertEqual({error, no_pairs}, measure(Nodes, #{})) || Nodes <- [[], [a], [a, a]]].

summary_test() ->
    ?assertEqual(#{min_us => 1.0, median_us => 2.0, p90_us => 4.0, batches => 4}, summary([4.0, 2.0, 3.0, 1.0])).
-endif.
