%% SPDX-License-Identifier: Apache-2.0
%% @doc The load of beamway_mnesia_SUITE on every node of its cluster, and the functions with which the suite queries a node.
%%
%% Writers run transactions endlessly and store the key of each one that mnesia has reported as committed. Each
%% transaction adds a record to an in-memory table and to an on-disc table, and increments a counter. However the
%% cluster was split, the counter must equal the number of records. Transactions of a second kind write to a table
%% that rejects writes without a majority of its nodes.
-module(beamway_mnesia_load).

-export([tables/1, start/0, stop/0, committed/1, refused/0, forget/0, listen/0, events/0, content/1, holds/2]).
-export([own/1]).

-define(TABLE, ?MODULE).
-define(WRITERS, 2).
-define(PAUSE_MS, 2).

-type kind() :: ledger | quorum.

%% @doc Creates the tables on these nodes. Call it on one node of the cluster while mnesia runs on all of them.
-spec tables([node()]) -> ok.
tables(Nodes) ->
    Definitions = [{ledger_ram, [{ram_copies, Nodes}]}, {ledger_disc, [{disc_copies, Nodes}]},
                   {counter, [{disc_copies, Nodes}]}, {quorum, [{disc_copies, Nodes}, {majority, true}]}],
    lists:foreach(fun({Name, Options}) -> {atomic, ok} = mnesia:create_table(Name, Options) end, Definitions),
    {atomic, ok} = mnesia:transaction(fun() -> mnesia:write({counter, all, 0}) end),
    ok.

%% @doc Starts the writers.
-spec start() -> ok.
start() ->
    Parent = self(),
    {Pid, Monitor} = spawn_monitor(?MODULE, own, [Parent]),
    receive
        {Pid, started} -> _ = demonitor(Monitor, [flush]), ok;
        {'DOWN', Monitor, process, Pid, Reason} -> error(Reason)
    end.

%% Owns the table of committed keys, which must outlast the writers; it lives as long as the node.
%% @private
-spec own(pid()) -> no_return().
own(Parent) ->
    case ets:whereis(?TABLE) of
        undefined -> ?TABLE = ets:new(?TABLE, [named_table, public]);
        _ -> ok
    end,
    true = register(?MODULE, self()),
    Writers = [spawn_monitor(fun() -> write_on(Kind) end) || Kind <- [ledger, quorum], _ <- lists:seq(1, ?WRITERS)],
    Parent ! {self(), started},
    stop_writers(Writers),
    receive after infinity -> exit(unreachable) end.

stop_writers(Writers) ->
    receive
        {stop, From} ->
            [Pid ! stop || {Pid, _} <- Writers],
            [receive {'DOWN', Monitor, process, Pid, normal} -> ok end || {Pid, Monitor} <- Writers],
            true = unregister(?MODULE),
            From ! stopped
    end.

%% @doc Stops each writer after its current transaction.
-spec stop() -> ok.
stop() ->
    ?MODULE ! {stop, self()},
    receive stopped -> ok after 30000 -> error(writers_do_not_stop) end.

write_on(Kind) ->
    Key = {node(), os:getpid(), erlang:unique_integer([positive, monotonic])},
    case mnesia:transaction(fun() -> write(Kind, Key) end) of
        {atomic, ok} -> true = ets:insert(?TABLE, {Key, Kind});
        {aborted, Reason} -> true = is_integer(ets:update_counter(?TABLE, {refused, Kind, shortened(Reason)}, 1, {refused, 0}))
    end,
    receive stop -> ok after ?PAUSE_MS -> write_on(Kind) end.

write(ledger, Key) ->
    ok = mnesia:write({ledger_ram, Key, erlang:phash2(Key)}),
    ok = mnesia:write({ledger_disc, Key, erlang:phash2(Key)}),
    [{counter, all, Count}] = mnesia:read(counter, all, write),
    mnesia:write({counter, all, Count + 1});
write(quorum, Key) ->
    mnesia:write({quorum, Key, erlang:phash2(Key)}).

shortened(Reason) ->
    lists:flatten(io_lib:format("~0P", [Reason, 8])).

%% @doc Returns the keys that mnesia has reported as committed on this node.
-spec committed(kind()) -> [term()].
committed(Kind) ->
    [Key || {{_, _, _} = Key, Of} <- ets:tab2list(?TABLE), Of =:= Kind].

%% @doc Returns the transactions that mnesia has rejected, with the reason and how often.
-spec refused() -> [{kind(), Reason :: string(), Count :: pos_integer()}].
refused() ->
    [{Kind, Reason, Count} || {{refused, Kind, Reason}, Count} <- ets:tab2list(?TABLE)].

%% @doc Clears the committed keys and the rejected transactions, after writes that were meant to be lost.
-spec forget() -> ok.
forget() ->
    true = ets:delete_all_objects(?TABLE),
    ok.

%% @doc Starts recording the node's system events, and drops earlier ones. Mnesia must be running.
-spec listen() -> ok.
listen() ->
    case whereis(beamway_mnesia_events) of
        undefined -> ok;
        Old -> true = unregister(beamway_mnesia_events), exit(Old, kill)
    end,
    Parent = self(),
    {Pid, Monitor} = spawn_monitor(fun() ->
                                           true = register(beamway_mnesia_events, self()),
                                           {ok, _} = mnesia:subscribe(system),
                                           Parent ! {self(), listening},
                                           listen_on([])
                                   end),
    receive
        {Pid, listening} -> _ = demonitor(Monitor, [flush]), ok;
        {'DOWN', Monitor, process, Pid, Reason} -> error(Reason)
    end.

listen_on(Events) ->
    receive
        {mnesia_system_event, Event} -> listen_on([Event | Events]);
        {give, From} -> From ! {events, lists:reverse(Events)}, listen_on(Events)
    end.

%% @doc Returns the recorded events, oldest first.
-spec events() -> [tuple()].
events() ->
    beamway_mnesia_events ! {give, self()},
    receive {events, Events} -> Events after 30000 -> error(no_events) end.

%% @doc Returns the whole content of a table on this node.
-spec content(atom()) -> [tuple()].
content(Table) ->
    lists:sort(ets:tab2list(Table)).

%% @doc Returns whether this node has all of these keys, in every table of the kind.
-spec holds(kind(), [term()]) -> boolean().
holds(Kind, Keys) ->
    lists:all(fun(Table) -> lists:all(fun(Key) -> ets:member(Table, Key) end, Keys) end, tables_of(Kind)).

tables_of(ledger) -> [ledger_ram, ledger_disc];
tables_of(quorum) -> [quorum].
