%% SPDX-License-Identifier: Apache-2.0
%% @doc What a server remembers of small files, so that most requests for them ask nothing of the file system. yucan_file decides what is
%% kept, and looks at the file again when an entry is older than a second.
%%
%% Two tables, the younger and the older. What is found in the older one moves to the younger; when the younger one is full, the older one
%% is emptied and becomes the younger. So what nobody asks for goes, and no more than twice `HALF_BYTES' is kept, however many files there
%% are. No process stands between a request and the tables; they belong to the server's process and end with it.
-module(yucan_file_cache).

-export([open/1, close/1, find/2, keep/4, forget/1, info/1]).
-export_type([key/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-define(HALF_BYTES, 16 * 1024 * 1024).
%% How long an entry counts without another look at its file.
-define(FRESH_MS, 1000).
%% What an entry costs beside its content and its name.
-define(ENTRY_BYTES, 1024).

%% Places of the atomics: the number of the younger table, and what each holds.
-define(YOUNGER, 1).
-define(BYTES(Table), 2 + Table).

-type key() :: {Root :: file:name_all(), below | chosen | script, Options :: map() | binary(), Name :: binary()}.
%% Files that are served with other options are other entries.

%% @doc An empty cache for a server; the tables are the calling process's.
-spec open(Server :: atom()) -> ok.
open(Server) ->
    [First, Second] = [ets:new(?MODULE, [public, {read_concurrency, true}, {write_concurrency, true}]) || _ <- [0, 1]],
    persistent_term:put({?MODULE, Server}, {First, Second, atomics:new(3, [])}).

%% @doc The server ends.
-spec close(Server :: atom()) -> ok.
close(Server) ->
    _ = persistent_term:erase({?MODULE, Server}),
    ok.

%% @doc What is kept under a key, and whether the file must be looked at before it counts.
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

%% @doc Keeps what was just read under this key, in place of what was kept. `Bytes' is the size of its content.
-spec keep(Server :: atom(), key(), Entry :: term(), Bytes :: non_neg_integer()) -> ok.
keep(Server, {Root, How, Options, Name}, Entry, Bytes) ->
    case persistent_term:get({?MODULE, Server}, none) of
        none -> ok;
        %% The name may be a part of what was read from a client, which would stay in memory as a whole.
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

%% Who changes the number first empties the table. Its count goes first: what others insert meanwhile may be lost, but never uncounted for long.
swap(Younger, {_, _, Counters} = Cache) ->
    Older = 1 - Younger,
    case atomics:compare_exchange(Counters, ?YOUNGER, Younger, Older) of
        ok ->
            atomics:put(Counters, ?BYTES(Older), 0),
            true = ets:delete_all_objects(table(Older, Cache)),
            ok;
        _ -> ok
    end.

%% @doc Files have changed: nothing that is kept counts any more. The counts go first, as in swap/2.
-spec forget(Server :: atom()) -> ok.
forget(Server) ->
    case persistent_term:get({?MODULE, Server}, none) of
        none -> ok;
        {_, _, Counters} = Cache ->
            lists:foreach(fun(Number) ->
                atomics:put(Counters, ?BYTES(Number), 0),
                true = ets:delete_all_objects(table(Number, Cache))
            end, [0, 1])
    end.

%% @doc How many entries there are, and their bytes.
-spec info(Server :: atom()) -> #{entries := non_neg_integer(), bytes := non_neg_integer()}.
info(Server) ->
    {First, Second, Counters} = persistent_term:get({?MODULE, Server}),
    #{entries => ets:info(First, size) + ets:info(Second, size), bytes => atomics:get(Counters, ?BYTES(0)) + atomics:get(Counters, ?BYTES(1))}.

-ifdef(TEST).

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

%% Ten times what there is room for: the bound holds at each step, what is used stays and the oldest goes.
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
