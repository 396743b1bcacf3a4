%% SPDX-License-Identifier: Apache-2.0
%% @doc Limits the number of accepted connections whose peers have not yet proved that they have the key, and logs those that fail.
%%
%% Anybody can open a connection and send nothing. Each such connection is closed after a few seconds, and there may be at most 256. Beyond that, the
%% address with the most such connections loses its oldest one, so an unauthenticated client displaces only its own connections. A peer proves that it has
%% the key with its first packet, within a round trip.
%%
%% The table belongs to the supervisor of {@link beamway_links}. Its rows are {Number, Address, Pid}, oldest first; {refused, Count}; {told, Second,
%% Lines}.
-module(beamway_half_open).

-export([prepare/0, enter/1, leave/1, refused/2, count/0]).

-include_lib("kernel/include/logger.hrl").

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-define(MOST, 256).
-define(LINES_PER_S, 10).

%% @doc Creates the table for the calling process.
-spec prepare() -> ok.
prepare() ->
    ?MODULE = ets:new(?MODULE, [named_table, public, ordered_set]),
    true = ets:insert(?MODULE, [{told, 0, 0}, {refused, 0}]),
    ok.

%% @doc Registers the calling process, whose peer has not yet proved that it has the key.
-spec enter(port()) -> Entry :: integer().
enter(Socket) ->
    Entry = erlang:unique_integer([monotonic]),
    true = ets:insert(?MODULE, {Entry, address(inet:peername(Socket)), self()}),
    %% The size includes the two rows that are not connections, which makes no difference.
    _ = ets:info(?MODULE, size) > ?MOST andalso make_room(),
    Entry.

%% @doc Removes a connection that was rejected, or whose peer has proved that it has the key.
-spec leave(Entry :: integer()) -> ok.
leave(Entry) ->
    true = ets:delete(?MODULE, Entry),
    ok.

address({ok, {Ip, _Port}}) -> Ip;
address({error, _}) -> gone.

%% A process that was killed has not removed its row, so this removes it.
make_room() ->
    Rows = [Row || {Entry, _, Pid} = Row <- ets:tab2list(?MODULE), is_integer(Entry), is_process_alive(Pid) orelse not ets:delete(?MODULE, Entry)],
    case length(Rows) > ?MOST of
        true ->
            {Entry, _, Pid} = oldest(Rows),
            ok = crowd_out(ets:take(?MODULE, Entry), Pid),
            make_room();
        false ->
            true
    end.

%% Another process may have chosen the same connection to close.
crowd_out([_], Pid) ->
    _ = ets:update_counter(?MODULE, refused, 1),
    true = exit(Pid, shutdown),
    ok;
crowd_out([], _Pid) ->
    ok.

oldest(Rows) ->
    Counts = lists:foldl(fun({_, Address, _}, Map) -> maps:update_with(Address, fun(N) -> N + 1 end, 1, Map) end, #{}, Rows),
    Most = lists:max(maps:values(Counts)),
    hd([Row || {_, Address, _} = Row <- Rows, maps:get(Address, Counts) =:= Most]).

%% @doc Counts a connection whose peer did not prove that it has the key, and logs why, at most ten times a second.
-spec refused(Peer :: iodata(), Reason :: binary()) -> ok.
refused(Peer, Reason) ->
    Second = erlang:monotonic_time(second),
    _ = ets:update_counter(?MODULE, refused, 1),
    case ets:lookup(?MODULE, told) of
        [{_, Second, ?LINES_PER_S}] -> ok;
        [{_, Second, Lines}] -> tell({told, Second, Lines + 1}, Peer, Reason);
        _ -> tell({told, Second, 1}, Peer, Reason)
    end.

tell(Row, Peer, Reason) ->
    true = ets:insert(?MODULE, Row),
    ?LOG_WARNING("beamway: no encrypted connection with ~ts: ~ts", [Peer, Reason]).

%% @doc Returns the number of connections that were rejected or displaced, or `error' if this node does not run the carrier.
-spec count() -> {ok, non_neg_integer()} | error.
count() ->
    try {ok, ets:lookup_element(?MODULE, refused, 2)}
    catch error:badarg -> error
    end.

-ifdef(TEST).

a_stranger_crowds_out_his_own_test() ->
    Rows = [{1, peer_1, a}, {2, stranger, b}, {3, peer_2, c}, {4, stranger, d}, {5, peer_1, e}, {6, stranger, f}],
    ?assertEqual({2, stranger, b}, oldest(Rows)),
    ?assertEqual({1, peer_1, a}, oldest([Row || {_, Who, _} = Row <- Rows, Who =/= stranger])).

-endif.
