%% SPDX-License-Identifier: Apache-2.0
%% @doc Limits the open connections and the requests per second of each client address (the limits `address_connections' and `address_requests'). Each
%% server has a table, which the server's process owns and sweeps. Connection processes add themselves to the table, and their pool removes them when
%% they exit, even if they are killed.
%%
%% Requests are limited with a bucket that can hold the requests of one second (the generic cell
%% rate algorithm, ITU-T I.371): a row contains the time at which its bucket will be full again.
%% With IPv6, the first 64 bits count as the address, because a client usually controls an entire
%% /64 network. The table has at most `MOST' rows; any further addresses share one row.
-module(yucan_quota).

-export([new/0, enter/3, leave/2, ask/4, sweep/1, key/1, key/2]).
-export_type([table/0]).

-opaque table() :: ets:tid().
-type key() :: term().

-define(MOST, 100000).
-define(SECOND, 1000000000).

%% The rows are {key(), Connections, Full :: Nanoseconds}, and {pid(), key()} for each connection.

%% @doc Creates an empty table that belongs to the calling process.
-spec new() -> table().
new() -> ets:new(?MODULE, [public, {write_concurrency, true}]).

%% @doc Returns the part of an address to which the limits apply, or `none' for a unix socket.
-spec key(yucan_req:address()) -> key() | none.
key({local, _}) -> none;
key({{0, 0, 0, 0, 0, 16#ffff, A, B}, _}) -> {A bsr 8, A band 255, B bsr 8, B band 255};
key({{A, B, C, D, _, _, _, _}, _}) -> {v6, A, B, C, D};
key({Ip, _}) -> Ip.

%% @doc Like {@link key/1}, but also returns `none' for trusted proxies, because each of them represents many clients.
-spec key(yucan_req:address(), Trusted :: [yucan_cidr:block()]) -> key() | none.
key({Ip, _} = Address, Trusted) ->
    case yucan_cidr:contains(Trusted, Ip) of
        true -> none;
        false -> key(Address)
    end.

%% @doc Registers the calling process as a connection from this address.
-spec enter(table(), key(), Most :: pos_integer()) -> ok | full.
enter(Table, Key, Most) ->
    Row = row(Table, Key),
    case ets:update_counter(Table, Row, {2, 1}, {Row, 0, now_ns()}) of
        Count when Count > Most ->
            _ = ets:update_counter(Table, Row, {2, -1}),
            full;
        _ ->
            true = ets:insert(Table, {self(), Row}),
            ok
    end.

%% @doc Removes a connection process that has exited.
-spec leave(table(), pid()) -> ok.
leave(Table, Pid) ->
    case ets:take(Table, Pid) of
        [{_, Row}] -> _ = ets:update_counter(Table, Row, {2, -1}), ok;
        [] -> ok
    end.

%% @doc Returns `ok' if this address may make another request now, or the number of seconds after which it may.
-spec ask(table(), key(), PerSecond :: pos_integer(), Now :: integer()) -> ok | {wait, pos_integer()}.
ask(Table, Key, PerSecond, Now) ->
    Row = row(Table, Key),
    Step = max(1, ?SECOND div PerSecond),
    %% The time is updated in one atomic step: it becomes the later of now and the old time, plus the time that one request takes up.
    [_, Full] = ets:update_counter(Table, Row, [{3, -1, Now, Now}, {3, Step}], {Row, 0, Now}),
    case Full - Now - ?SECOND of
        Over when Over > 0 ->
            _ = ets:update_counter(Table, Row, {3, -Step}),
            {wait, (Over + ?SECOND - 1) div ?SECOND};
        _ -> ok
    end.

row(Table, Key) ->
    case ets:info(Table, size) < ?MOST orelse ets:member(Table, Key) of
        true -> Key;
        false -> others
    end.

now_ns() -> erlang:monotonic_time(nanosecond).

%% @doc Removes addresses that have no connections and whose bucket is full.
-spec sweep(table()) -> ok.
sweep(Table) ->
    _ = ets:select_delete(Table, [{{'_', 0, '$1'}, [{'<', '$1', now_ns()}], [true]}]),
    ok.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

requests_test() ->
    Table = new(),
    Now = now_ns(),
    Ask = fun(Key, At) -> ask(Table, Key, 4, Now + At) end,
    ?assertEqual([ok, ok, ok, ok, {wait, 1}, {wait, 1}], [Ask(a, 0) || _ <- lists:seq(1, 6)]),
    ?assertEqual(ok, Ask(b, 0)),
    %% With a limit of four per second, one more request is allowed every quarter of a second, but
    %% never more than four at once.
    ?assertEqual([ok, {wait, 1}], [Ask(a, ?SECOND div 4) || _ <- [1, 2]]),
    ?assertEqual([ok, ok, ok, ok, {wait, 1}], [Ask(a, 100 * ?SECOND) || _ <- lists:seq(1, 5)]),
    ?assertEqual([ok, {wait, 1}, {wait, 1}], [ask(Table, slow, 1, Now) || _ <- [1, 2, 3]]).

connections_test() ->
    Table = new(),
    In = fun() -> spawn_monitor(fun() -> receive stop -> exit(enter(Table, a, 2)) end end) end,
    Enter = fun() -> {Pid, Monitor} = In(), Pid ! stop, receive {'DOWN', Monitor, process, Pid, Result} -> {Result, Pid} end end,
    [{ok, First}, {ok, _}, {full, Third}] = [Enter() || _ <- [1, 2, 3]],
    %% A rejected process had no connection to release, and leaving twice releases a connection only
    %% once.
    [ok = leave(Table, Pid) || Pid <- [Third, First, First]],
    ?assertMatch([{ok, _}, {full, _}], [Enter() || _ <- [1, 2]]).

bounded_test_() ->
    {timeout, 60, fun() ->
        Table = new(),
        Now = now_ns(),
        [ok = ask(Table, {I}, 1000, Now) || I <- lists:seq(1, ?MOST)],
        ?assertEqual([ok, {wait, 1}], [ask(Table, Key, 1, Now) || Key <- [{new, 1}, {new, 2}]]),
        ?assertEqual(?MOST + 1, ets:info(Table, size)),
        ?assertEqual(ok, ask(Table, {7}, 1000, Now)),
        ok = enter(Table, {8}, 1),
        true = ets:select_replace(Table, [{{'$1', '$2', '_'}, [], [{{'$1', '$2', Now - 1}}]}]) > 0,
        ok = sweep(Table),
        ?assertEqual(2, ets:info(Table, size))
    end}.

keys_test_() ->
    [?_assertEqual(Expected, key({Address, 80}))
     || {Address, Expected} <- [{{1, 2, 3, 4}, {1, 2, 3, 4}}, {{0, 0, 0, 0, 0, 16#ffff, 16#102, 16#304}, {1, 2, 3, 4}}, {{1, 2, 3, 4, 5, 6, 7, 8}, {v6, 1, 2, 3, 4}}]].

-endif.
