%% SPDX-License-Identifier: Apache-2.0
%% @doc The blocks among the large binaries of a message ({@link teleport_term}): a lane between nodes of one host passes them and sends references.
%%
%% Each lane has a channel of its own, so what was passed and not taken ends with the lane. The lane's process passes a block when it puts the message
%% into its queue: no process that could be killed stands between a block that is passed and the message that tells of it. What cannot be passed is
%% sent as any other binary.
%%
%% The last part of a referring message is a table of references; the other parts are those that were not passed, in their order.
-module(teleport_references).

-export([none/0, to/1, pass/2, take/2]).
-export_type([state/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-opaque state() :: none | {to, teleport_blocks:address()} | {beamway_block:id(), beamway_block:channel()}.
%% `to': not connected yet.

%% @doc Of a lane that passes no blocks, or has not taken any.
-spec none() -> state().
none() -> none.

%% @doc Of a lane that may pass them to this address.
-spec to(teleport_blocks:address()) -> state().
to(Address) -> {to, Address}.

%% @doc Passes what are blocks. `none': the message stays as it is.
-spec pass(teleport_term:parts(), state()) -> {none | teleport_term:parts(), state()}.
pass(_, none) -> {none, none};
pass([_], State) -> {none, State};
pass([_ | Binaries] = Parts, State) ->
    case lists:any(fun is_block/1, Binaries) of
        true -> pass_by(connected(State), Parts);
        false -> {none, State}
    end.

is_block(Part) -> is_binary(Part) andalso beamway_block:is_block(Part).

connected({to, {Address, Token}}) ->
    Id = crypto:strong_rand_bytes(16),
    case beamway_block:connect(Address, Token, Id) of
        {ok, Channel} -> {Id, Channel};
        {error, _} -> none
    end;
connected(State) -> State.

pass_by(none, _) -> {none, none};
pass_by({Id, Channel} = State, [Term | Binaries]) ->
    Numbered = lists:zip(lists:seq(1, length(Binaries)), Binaries),
    Passed = [{Position, {Number, byte_size(Binary)}} || {Position, Binary} <- Numbered, is_binary(Binary), {ok, Number} <- [beamway_block:pass(Channel, Binary)]],
    case Passed of
        [] -> {none, State};
        _ -> {[Term | [Binary || {Position, Binary} <- Numbered, not lists:keymember(Position, 1, Passed)]] ++ [table(Id, Passed)], State}
    end.

table(Id, Passed) -> <<Id:16/binary, << <<Position:16, Number:64, Size:64>> || {Position, {Number, Size}} <- Passed >>/binary>>.

%% @doc The parts of the message that a referring one stands for.
-spec take([binary(), ...], state()) -> {ok, [binary(), ...], state()} | {error, Reason :: binary()}.
take([Term | Others], State) when Others =/= [] ->
    {Binaries, [Table]} = lists:split(length(Others) - 1, Others),
    case Table of
        <<Id:16/binary, References/binary>> when byte_size(References) rem 18 =:= 0, References =/= <<>> -> taken(Id, References, Term, Binaries, State);
        _ -> {error, <<"no table of references">>}
    end;
take(_, _) ->
    {error, <<"no table of references">>}.

taken(Id, References, Term, Binaries, State) ->
    case fetched(Id, State) of
        {ok, Channel} ->
            Taken = [{Position, beamway_block:take(Channel, Number, Size)} || <<Position:16, Number:64, Size:64>> <= References],
            case [Reason || {_, {error, Reason}} <- Taken] of
                [] -> put_back([{Position, Block} || {Position, {ok, Block}} <- Taken], Term, Binaries, {Id, Channel});
                [Reason | _] -> {error, Reason}
            end;
        none -> {error, <<"a reference by a channel that is not there">>}
    end.

fetched(Id, {Id, Channel}) -> {ok, Channel};
fetched(Id, _) -> teleport_blocks:channel(Id).

put_back(Taken, Term, Binaries, State) ->
    case merged(1, Taken, Binaries) of
        {ok, All} -> {ok, [Term | All], State};
        error -> {error, <<"references to places that are not there">>}
    end.

merged(_, [], Binaries) -> {ok, Binaries};
merged(Position, [{Position, Block} | Taken], Binaries) -> before(Block, merged(Position + 1, Taken, Binaries));
merged(Position, Taken, [Binary | Binaries]) -> before(Binary, merged(Position + 1, Taken, Binaries));
merged(_, _, []) -> error.

before(First, {ok, Rest}) -> {ok, [First | Rest]};
before(_, error) -> error.

-ifdef(TEST).

merged_test_() ->
    [?_assertEqual(Expected, merged(1, Taken, Others))
     || {Expected, Taken, Others} <- [{{ok, [a]}, [], [a]}, {{ok, [x]}, [{1, x}], []}, {{ok, [a, x, b, y]}, [{2, x}, {4, y}], [a, b]}, {{ok, [x, y, a]}, [{1, x}, {2, y}], [a]},
                                      {error, [{2, x}], []}, {error, [{3, x}], [a]}, {error, [{2, x}, {1, y}], [a]}, {error, [{0, x}], [a]}]].

what_no_peer_sends_test_() ->
    [?_assertMatch({error, _}, take(Parts, none())) || Parts <- [[<<"t">>], [<<"t">>, <<>>], [<<"t">>, <<0:128>>], [<<"t">>, <<0:128, 1>>]]].

-endif.
