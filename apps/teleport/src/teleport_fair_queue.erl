%% SPDX-License-Identifier: Apache-2.0
%% @doc How the classes share a peer while several of them have something in their queues: each gets its weight's part of the bytes.
%%
%% Lanes have links of their own, so nothing else would hold a busy `bulk' back. Every class has a clock that goes on by bytes divided by
%% weight; whoever's clock is ahead of that of another class that has something waiting leaves the turn to it. Not for long: a lane whose
%% link is stuck must not hold up the others, so after {@link patience/0} turns left it is one's own.
%% The clocks and the flags of the lanes that wait are in atomics that all lanes to one node have in common.
-module(teleport_fair_queue).

-export([new/0, waits/3, rests/3, turn/4, sent/4, patience/0]).
-export_type([shares/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-opaque shares() :: atomics:atomics_ref().

-define(MAX_LANES, 16).
-define(CLASSES, [control, normal, bulk]).
%% A class may be so far ahead, so that it is not stopped at each piece.
-define(AHEAD, 524288).
-define(PATIENCE, 5).

%% @doc For the lanes to one node: nobody waits.
-spec new() -> shares().
new() -> atomics:new(length(?CLASSES) * (?MAX_LANES + 1), [{signed, false}]).

%% @doc This lane has something in its queue. A class that has had nothing does not get that time back.
-spec waits(teleport_config:class(), Index :: non_neg_integer(), shares()) -> ok.
waits(Class, Index, Shares) ->
    Others = [clock(Other, Shares) || Other <- ?CLASSES, Other =/= Class, has_waiting(Other, Shares)],
    case has_waiting(Class, Shares) of
        false when Others =/= [] -> atomics:put(Shares, clock_at(Class), max(clock(Class, Shares), lists:min(Others)));
        _ -> ok
    end,
    atomics:put(Shares, flag_at(Class, Index), 1).

%% @doc It has nothing any more, or has ended.
-spec rests(teleport_config:class(), Index :: non_neg_integer(), shares()) -> ok.
rests(Class, Index, Shares) -> atomics:put(Shares, flag_at(Class, Index), 0).

%% @doc Whether this class may send now; `Left' is how often it has left the turn to others since it last had one.
-spec turn(teleport_config:class(), Left :: non_neg_integer(), Weight :: pos_integer(), shares()) -> go | leave.
turn(_, Left, _, _) when Left >= ?PATIENCE -> go;
turn(Class, _, Weight, Shares) ->
    Own = clock(Class, Shares),
    Ahead = ?AHEAD div Weight,
    case [Other || Other <- ?CLASSES, Other =/= Class, Own > clock(Other, Shares) + Ahead, has_waiting(Other, Shares)] of
        [] -> go;
        _ -> leave
    end.

%% @doc So many bytes went out.
-spec sent(teleport_config:class(), Bytes :: non_neg_integer(), Weight :: pos_integer(), shares()) -> ok.
sent(Class, Bytes, Weight, Shares) -> atomics:add(Shares, clock_at(Class), Bytes div Weight).

%% @doc How often a class leaves its turn at most.
-spec patience() -> pos_integer().
patience() -> ?PATIENCE.

clock(Class, Shares) -> atomics:get(Shares, clock_at(Class)).

has_waiting(Class, Shares) ->
    lists:any(fun(Index) -> atomics:get(Shares, flag_at(Class, Index)) =:= 1 end, lists:seq(0, ?MAX_LANES - 1)).

clock_at(control) -> 1;
clock_at(normal) -> 2;
clock_at(bulk) -> 3.

flag_at(Class, Index) -> 4 + (clock_at(Class) - 1) * ?MAX_LANES + Index.

-ifdef(TEST).

%% Both always have something; each step one of them asks for its turn.
weights_are_kept_test() ->
    Shares = new(),
    [waits(Class, 0, Shares) || Class <- [normal, bulk]],
    Piece = 262144,
    Step = fun(Class, Weight, Sent) ->
                   case turn(Class, 0, Weight, Shares) of
                       go -> sent(Class, Piece, Weight, Shares), Sent + Piece;
                       leave -> Sent
                   end
           end,
    {Normal, Bulk} = lists:foldl(fun(_, {N, B}) -> {Step(normal, 4, N), Step(bulk, 1, B)} end, {0, 0}, lists:seq(1, 4000)),
    ?assert(abs(Normal / Bulk - 4) < 0.2).

nobody_waits_for_who_has_nothing_test() ->
    Shares = new(),
    waits(bulk, 1, Shares),
    sent(bulk, 1 bsl 40, 1, Shares),
    ?assertEqual(go, turn(bulk, 0, 1, Shares)),
    %% Who comes later does not get the time before.
    waits(normal, 3, Shares),
    ?assertEqual(go, turn(bulk, 0, 1, Shares)),
    sent(bulk, 1 bsl 20, 1, Shares),
    ?assertEqual(leave, turn(bulk, 0, 1, Shares)),
    ?assertEqual(go, turn(bulk, ?PATIENCE, 1, Shares)),
    rests(normal, 3, Shares),
    ?assertEqual(go, turn(bulk, 0, 1, Shares)).

-endif.
