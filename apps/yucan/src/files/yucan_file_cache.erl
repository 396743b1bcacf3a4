%% SPDX-License-Identifier: Apache-2.0
%% @doc The server's cache of small files. Most requests for a cached file do not access the file system. yucan_file decides what is cached, and
%% checks a file again if its entry is older than a second.
%%
%% There are two tables, a younger and an older one. An entry that is found in the older table moves to the younger one. When the younger table is
%% full, the older one is emptied and becomes the younger. So entries that are no longer requested disappear, and at most twice `HALF_BYTES' is
%% cached, however many files there are. Requests access the tables directly rather than through a process. The tables belong to the server's process
%% and are deleted when it exits.
-module(yucan_file_cache).

-export([open/1, close/1, find/2, keep/4, forget/1, info/1]).
-export_type([key/0]).

-define(HALF_BYTES, 16 * 1024 * 1024).
%% How long an entry is valid before its file must be checked again.
-define(FRESH_MS, 1000).
%% The overhead of an entry, which is added to the size of its content and name.
-define(ENTRY_BYTES, 1024).

%% The positions in the atomics: which table is the younger one, and the size of each table.
-define(YOUNGER, 1).
-define(BYTES(Table), 2 + Table).

-type key() :: {Root :: file:name_all(), below | chosen | script, Options :: map() | binary(), Name :: binary()}.
%% The options are part of the key, so a file that is served with different options has several
%% entries.

%% @doc Creates an empty cache for a server. The tables belong to the calling process.
-spec open(Server :: atom()) -> ok.
open(Server) ->
    [First, Second] = [ets:new(?MODULE, [public, {read_concurrency, true}, {write_concurrency, true}]) || _ <- [0, 1]],
    persistent_term:put({?MODULE, Server}, {First, Second, atomics:new(3, [])}).

%% @doc Deletes the cache. Called when the server stops.
-spec close(Server :: atom()) -> ok.
close(Server) ->
    _ = persistent_term:erase({?MODULE, Server}),
    ok.

%% @doc Returns the entry for a key, and whether its file must be checked first.
-spec find(Server :: atom(), key()) -> {fresh | stale, Entry :: term()} | none.
find(Server, Key) ->
    case persistent_term:get({?MODULE, Server}, none) of
        none -> none;
        {_, _, Counters} = Cache ->
            Younger = atomics:get(Counters, ?YOUNGER),
            case ets:lookup(table(Younger, Cache), Key) of
                [{_, Until, _, Entry}] -> aged(Until, Entry);
                [] -> in_older(ets:lookup(table(1 - Younger, Cache), Key), Cache)
            end
    end.

table(0, {Table, _, _}) -> Table;
table(1, {_, Table, _}) -> Table.

in_older([{_, Until, _, Entry} = Row], Cache) -> insert(Row, Cache), aged(Until, Entry);
in_older([], _) -> none.

aged(Until, Entry) ->
    case now_ms() < Until of
        true -> {fresh, Entry};
        false -> {stale, Entry}
    end.

now_ms() -> erlang:monotonic_time(millisecond).

%% @doc Caches an entry that has just been read, replacing any previous entry for the key. `Bytes' is the size of its content.
-spec keep(Server :: atom(), key(), Entry :: term(), Bytes :: non_neg_integer()) -> ok.
keep(Server, {Root, How, Options, Name}, Entry, Bytes) ->
    case persistent_term:get({?MODULE, Server}, none) of
        none -> ok;
        %% The name is copied, because it may be part of a larger binary from the client, all of which would otherwise stay in memory.
        Cache -> insert({{Root, How, Options, binary:copy(Name)}, now_ms() + ?FRESH_MS, Bytes + byte_size(Name) + ?ENTRY_BYTES, Entry}, Cache)
    end.

insert({Key, _, Bytes, _} = Row, {_, _, Counters} = Cache) ->
    Younger = atomics:get(Counters, ?YOUNGER),
    Table = table(Younger, Cache),
    Before = try ets:lookup_element(Table, Key, 3) catch error:badarg -> 0 end,
    true = ets:insert(Table, Row),
    case atomics:add_get(Counters, ?BYTES(Younger), Bytes - Before) > ?HALF_BYTES of
        true -> swap(Younger, Cache);
        false -> ok
    end.

%% Several processes may find the younger table full at the same time, but only one succeeds in
%% exchanging the tables. It empties the one that has just become the younger, resetting the size
%% before it deletes the entries. Entries inserted in between may be lost, but none stays uncounted
%% for long.
swap(Younger, {_, _, Counters} = Cache) ->
    Older = 1 - Younger,
    case atomics:compare_exchange(Counters, ?YOUNGER, Younger, Older) of
        ok -> empty(Older, Cache);
        _ -> ok
    end.

empty(Number, {_, _, Counters} = Cache) ->
    atomics:put(Counters, ?BYTES(Number), 0),
    true = ets:delete_all_objects(table(Number, Cache)),
    ok.

%% @doc Invalidates all entries, because files have changed. The sizes are reset first (see swap/2).
-spec forget(Server :: atom()) -> ok.
forget(Server) ->
    case persistent_term:get({?MODULE, Server}, none) of
        none -> ok;
        Cache -> lists:foreach(fun(Number) -> empty(Number, Cache) end, [0, 1])
    end.

%% @doc Returns the number of entries, and their size in bytes.
-spec info(Server :: atom()) -> #{entries := non_neg_integer(), bytes := non_neg_integer()}.
info(Server) ->
    {First, Second, Counters} = persistent_term:get({?MODULE, Server}),
    #{entries => ets:info(First, size) + ets:info(Second, size), bytes => atomics:get(Counters, ?BYTES(0)) + atomics:get(Counters, ?BYTES(1))}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

key(N) -> {<<"/root">>, below, #{}, integer_to_binary(N)}.

with_cache(Test) ->
    ok = open(?MODULE),
    try Test() after close(?MODULE) end.

found_again_test() ->
    with_cache(fun() ->
        ?assertEqual(none, find(?MODULE, key(1))),
        ok = keep(?MODULE, key(1), entry, 10),
        ?assertEqual({fresh, entry}, find(?MODULE, key(1))),
        ok = keep(?MODULE, key(1), other, 20),
        ?assertEqual({fresh, other}, find(?MODULE, key(1))),
        ?assertEqual(#{entries => 1, bytes => 20 + 1 + ?ENTRY_BYTES}, info(?MODULE)),
        ok = forget(?MODULE),
        ?assertEqual(none, find(?MODULE, key(1))),
        ?assertEqual(#{entries => 0, bytes => 0}, info(?MODULE))
    end).

%% Inserts ten times as much as the cache can hold. At each step, the size stays within the limit;
%% entries that are in use stay, and the oldest entries disappear.
bounded_test() ->
    with_cache(fun() ->
        Size = 64 * 1024,
        Count = 10 * ?HALF_BYTES div Size,
        lists:foreach(fun(N) ->
            ok = keep(?MODULE, key(N), N, Size),
            ?assertMatch({fresh, 1}, find(?MODULE, key(1))),
            #{bytes := Bytes} = info(?MODULE),
            ?assert(Bytes =< 2 * ?HALF_BYTES + 2 * (Size + 2 * ?ENTRY_BYTES))
        end, lists:seq(1, Count)),
        ?assertEqual(none, find(?MODULE, key(2))),
        ?assertMatch({fresh, Count}, find(?MODULE, key(Count)))
    end).

without_a_server_test() ->
    ok = keep(no_such_server, key(1), entry, 1),
    ok = forget(no_such_server),
    ?assertEqual(none, find(no_such_server, key(1))).

-endif.
