%% SPDX-License-Identifier: Apache-2.0
%% @doc How the classes share a peer while several of them have something in their queues: each gets its weight's part of the bytes.
%%
%% Lanes have links of their own, so nothing else would hold a busy `bulk' back. Every class has a clock that goes on by bytes divided by
%% weight; whoever's clock is ahead of that of another class that has something waiting leaves the turn to it. Not for long: a lane whose
%% link is stuck must not hold up the others, so after five turns left it is one's own.
%% The clocks and the bits of the lanes that wait are in atomics that all lanes to one node have in common.
-module(teleport_fair_queue).

-export([new/0, join/4, turn/2, sent/2, rests/3]).
-export_type([shares/0, member/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-opaque shares() :: atomics:atomics_ref().
-record(member, {shares :: shares(),
                 class :: teleport_config:class(),
                 index :: non_neg_integer(),
                 weight :: pos_integer(),
                 %% its bit is set
                 shows = false :: boolean(),
                 %% how often it left its turn since it last had one
                 left = 0 :: non_neg_integer()}).
-opaque member() :: #member{}.

-define(CLASSES, [control, normal, bulk]).
%% A class may be so far ahead, so that it is not stopped at each piece.
-define(AHEAD, 524288).
-define(PATIENCE, 5).

%% @doc For the lanes to one node: nobody waits.
-spec new() -> shares().
new() -> atomics:new(2 * length(?CLASSES), [{signed, false}]).

%% @doc A lane to that node.
-spec join(shares(), teleport_config:class(), Index :: non_neg_integer(), Weight :: pos_integer()) -> member().
join(Shares, Class, Index, Weight) -> #member{shares = Shares, class = Class, index = Index, weight = Weight}.

%% @doc Whether the lane may send now. Only lanes that have something in their queue have turns. `none': this one has no others beside it.
-spec turn(IsEmpty :: boolean(), none | member()) -> {go | leave, none | member()}.
turn(_, none) ->
    {go, none};
turn(true, #member{shows = false} = Member) ->
    {go, Member};
turn(true, #member{class = Class, index = Index, shares = Shares} = Member) ->
    ok = rests(Class, Index, Shares),
    {go, Member#member{shows = false, left = 0}};
turn(false, #member{shows = false} = Member) ->
    turn(false, shown(Member));
turn(false, #member{class = Class, weight = Weight, shares = Shares, left = Left} = Member) ->
    case Left < ?PATIENCE andalso is_ahead(Class, ?AHEAD div Weight, Shares) of
        false when Left =:= 0 -> {go, Member};
        false -> {go, Member#member{left = 0}};
        true -> {leave, Member#member{left = Left + 1}}
    end.

%% A class that has had nothing does not get that time back.
shown(#member{class = Class, index = Index, shares = Shares} = Member) ->
    Others = [clock(Other, Shares) || Other <- ?CLASSES, Other =/= Class, has_waiting(Other, Shares)],
    case has_waiting(Class, Shares) of
        false when Others =/= [] -> atomics:put(Shares, clock_at(Class), max(clock(Class, Shares), lists:min(Others)));
        _ -> ok
    end,
    ok = change(Shares, waiting_at(Class), fun(Lanes) -> Lanes bor (1 bsl Index) end),
    Member#member{shows = true}.

is_ahead(Class, Allowed, Shares) ->
    Own = clock(Class, Shares),
    [Other || Other <- ?CLASSES, Other =/= Class, Own > clock(Other, Shares) + Allowed, has_waiting(Other, Shares)] =/= [].

%% @doc So many bytes go out.
-spec sent(Bytes :: non_neg_integer(), none | member()) -> ok.
sent(_, none) -> ok;
sent(Bytes, #member{class = Class, weight = Weight, shares = Shares}) ->
    atomics:add(Shares, clock_at(Class), Bytes div Weight).

%% @doc A lane has nothing any more, or has ended.
-spec rests(teleport_config:class(), Index :: non_neg_integer(), shares()) -> ok.
rests(Class, Index, Shares) -> change(Shares, waiting_at(Class), fun(Lanes) -> Lanes band bnot (1 bsl Index) end).

%% Other lanes of the class may change their bits meanwhile.
change(Shares, At, Fun) -> change(Shares, At, Fun, atomics:get(Shares, At)).

change(Shares, At, Fun, Before) ->
    case atomics:compare_exchange(Shares, At, Before, Fun(Before)) of
        ok -> ok;
        Now -> change(Shares, At, Fun, Now)
    end.

clock(Class, Shares) -> atomics:get(Shares, clock_at(Class)).

has_waiting(Class, Shares) -> atomics:get(Shares, waiting_at(Class)) =/= 0.

clock_at(control) -> 1;
clock_at(normal) -> 2;
clock_at(bulk) -> 3.

waiting_at(Class) -> length(?CLASSES) + clock_at(Class).

-ifdef(TEST).

%% Both always have something; each step one of them asks for its turn.
weights_are_kept_test() ->
    Shares = new(),
    Step = fun({Member, Sent}) ->
                   case turn(false, Member) of
                       {go, Next} -> ok = sent(262144, Next), {Next, Sent + 1};
                       {leave, Next} -> {Next, Sent}
                   end
           end,
    Both = lists:foldl(fun(_, {Normal, Bulk}) -> {Step(Normal), Step(Bulk)} end,
                       {{join(Shares, normal, 0, 4), 0}, {join(Shares, bulk, 0, 1), 0}}, lists:seq(1, 4000)),
    {{_, Normal}, {_, Bulk}} = Both,
    ?assert(abs(Normal / Bulk - 4) < 0.2).

nobody_waits_for_who_has_nothing_test() ->
    Shares = new(),
    {go, Bulk} = turn(false, join(Shares, bulk, 1, 1)),
    ok = atomics:add(Shares, clock_at(bulk), 1 bsl 40),
    {go, Bulk} = turn(false, Bulk),
    %% Who comes later does not get the time before.
    {go, Normal} = turn(false, join(Shares, normal, 3, 4)),
    {go, Bulk} = turn(false, Bulk),
    ok = sent(1 bsl 20, Bulk),
    {leave, _} = turn(false, Bulk),
    {Turns, _} = lists:mapfoldl(fun(_, Member) -> turn(false, Member) end, Bulk, lists:seq(0, ?PATIENCE)),
    ?assertEqual(lists:duplicate(?PATIENCE, leave) ++ [go], Turns),
    {go, Rests} = turn(true, Normal),
    {go, Rests} = turn(true, Rests),
    ?assertMatch({go, _}, turn(false, Bulk)).

-endif.
