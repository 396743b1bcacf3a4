%% SPDX-License-Identifier: Apache-2.0
%% @doc Which broadcasts a node has had, so that a copy that comes by another way is dropped. Pure; state of {@link teleport_relay}.
%%
%% The broadcasts of one process to one group have rising numbers, and it sends the next one when the last one has ended. So the highest number tells
%% all: what has a lower one has come too late. The last `Max' keys at least are remembered, in two generations.
-module(teleport_seen).

-export([new/1, check/3]).
-export_type([seen/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-record(seen, {max :: pos_integer(), young = #{} :: #{term() => integer()}, old = #{} :: #{term() => integer()}}).
-opaque seen() :: #seen{}.

%% @doc That remembers so many keys, at most twice as many.
-spec new(Max :: pos_integer()) -> seen().
new(Max) -> #seen{max = Max}.

%% @doc `first': deliver it. `again': it was delivered. `late': a later one was.
-spec check(Key :: term(), Number :: integer(), seen()) -> {first | again | late, seen()}.
check(Key, Number, #seen{young = Young, old = Old} = Seen) ->
    case maps:get(Key, Young, maps:get(Key, Old, none)) of
        Number -> {again, Seen};
        Last when is_integer(Last), Number < Last -> {late, Seen};
        _ -> {first, put(Key, Number, Seen)}
    end.

put(Key, Number, #seen{max = Max, young = Young} = Seen) when map_size(Young) >= Max, not is_map_key(Key, Young) ->
    Seen#seen{young = #{Key => Number}, old = Young};
put(Key, Number, #seen{young = Young} = Seen) ->
    Seen#seen{young = Young#{Key => Number}}.

-ifdef(TEST).

checks(Given, Max) ->
    {Results, _} = lists:mapfoldl(fun({Key, Number}, Seen) -> check(Key, Number, Seen) end, new(Max), Given),
    Results.

check_test_() ->
    [?_assertEqual([first, again, first, late, late, first], checks([{a, -5}, {a, -5}, {a, 7}, {a, -5}, {a, 6}, {b, 6}], 10)),
     %% The last ten keys are remembered, however many came before.
     ?_assertEqual([again || _ <- lists:seq(1, 10)],
                   lists:nthtail(1000, checks([{N, N} || N <- lists:seq(1, 1000) ++ lists:seq(991, 1000)], 10))),
     %% One that is used stays.
     ?_assertEqual([late || _ <- lists:seq(1, 100)],
                   [Result || {{used, _}, Result} <- used()])].

used() ->
    Given = lists:append([[{N, N}, {used, 2 * N}, {used, 1}] || N <- lists:seq(1, 100)]),
    [Pair || {{used, 1}, _} = Pair <- lists:zip(Given, checks(Given, 5))].

bounded_test() ->
    Seen = lists:foldl(fun(N, Acc) -> element(2, check(N, 1, Acc)) end, new(100), lists:seq(1, 10000)),
    ?assert(map_size(Seen#seen.young) + map_size(Seen#seen.old) =< 200).

-endif.
