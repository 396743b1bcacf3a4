%% SPDX-License-Identifier: Apache-2.0
%% @doc The part of `bench far' and `bench apps' that runs inside the nodes: loads that replicate items from {@link beamway_bench_far_data} to another
%% node and wait until that node has confirmed each.
%%
%% `mnesia' writes a record with `sync_dirty' to a table that both nodes keep in memory. `json' publishes a message to one of four queues. Each queue
%% is a server that sends what a Ra leader sends for a RabbitMQ quorum queue: a log entry with a `basic_message', in an `append_entries_rpc' message
%% that its replica on the other node answers. `presence' passes a delta to one of eight servers, which broadcast it like the shards of a
%% Phoenix.Tracker. Phoenix does not confirm broadcasts; here the other node does, so that there is a time to measure.
%%
%% `transaction' reads a record of the same table for update and writes it, with `sync_transaction'. `pubsub' broadcasts a JSON document to the
%% subscribers of a topic on both nodes ({@link beamway_bench_pubsub}), where one of the other node's subscribers confirms it.
%%
%% The servers are the same on both nodes. Each server has the same name as its peer, numbers the messages that it sends, and fails if a message is
%% missing or arrives out of order.
-module(beamway_bench_far_load).
-behaviour(gen_server).

-export([start/0, connect/1, once/1, paced/2, start_callers/1, transaction/2, item/2]).
%% @private
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([load/0]).

-type load() :: beamway_bench_far_data:kind() | transaction | pubsub.

-define(TABLE, order).
-define(SERVERS, #{json => 4, presence => 8}).
%% Each caller has one item in flight, about 2 MB in total. A path of 100 Mbit/s and its queue hold 0.5 MB, so the path stays full even if the items
%% are compressed to a quarter of their size.
-define(CALLERS, #{mnesia => 1000, json => 2000, presence => 1000, transaction => 500, pubsub => 500}).
%% The items of each kind add up to more than 1 MB, but the compressor's window contains only the last 64 KB. So when an item is sent again, it is
%% no longer in the window.
-define(ITEMS, #{mnesia => 600, json => 1200, presence => 700}).
-define(WAIT_MS, 60000).
-define(TERM, 3).

-record(state, {name :: atom(), kind :: json | presence, peer = none :: node() | none, sent = 0 :: non_neg_integer(), received = 0 :: non_neg_integer(),
                %% the numbers of the unconfirmed items and the callers that wait for them, oldest first
                waiting = queue:new() :: queue:queue({pos_integer(), gen_server:from()})}).

%% @doc Starts mnesia, the servers and the subscribers. This must be called on both nodes first.
-spec start() -> ok.
start() ->
    _ = application:load(mnesia),
    ok = application:set_env(mnesia, schema_location, ram),
    ok = mnesia:start(),
    _ = [{ok, _} = gen_server:start({local, Name}, ?MODULE, {Name, Kind}, []) || {Kind, Names} <- servers(), Name <- Names, whereis(Name) =:= undefined],
    beamway_bench_pubsub:start().

servers() -> [{Kind, [server(Kind, N) || N <- lists:seq(1, Count)]} || {Kind, Count} <- maps:to_list(?SERVERS)].

server(Kind, N) -> list_to_atom("beamway_bench_far_" ++ atom_to_list(Kind) ++ "_" ++ integer_to_list(N)).

%% @doc Connects this node's servers to those of another node, to which they will replicate, and prepares the items.
-spec connect(node()) -> ok.
connect(Node) ->
    case lists:member(Node, mnesia:system_info(running_db_nodes)) of
        true -> ok;
        false ->
            {ok, [Node]} = mnesia:change_config(extra_db_nodes, [Node]),
            {atomic, ok} = mnesia:create_table(?TABLE, [{ram_copies, [node(), Node]},
                                                        {attributes, [id, customer, billing, shipping, lines, total, payment, history, note, updated_at]}]),
            ok = mnesia:wait_for_tables([?TABLE], ?WAIT_MS),
            _ = [ok = gen_server:call(Name, {peer, Node}) || {_, Names} <- servers(), Name <- Names],
            ok = beamway_bench_pubsub:await(2),
            maps:foreach(fun(Load, Count) -> persistent_term:put({?MODULE, Load}, beamway_bench_far_data:items(Load, Count)) end, ?ITEMS)
    end.

%% @doc Replicates one item. Returns once it has arrived, together with everything that was sent before it.
-spec once(load()) -> ok.
once(Load) -> (replicator(Load))().

%% @doc Starts to replicate an item every millisecond, or a transaction every two milliseconds, for `Ms' milliseconds. Returns the time of
%% each in nanoseconds, from its planned start to its confirmation.
-spec paced(load(), Ms :: pos_integer()) -> [non_neg_integer(), ...].
paced(Load, Ms) -> beamway_bench_messages:planned({case Load of transaction -> 2; _ -> 1 end, Ms}, replicator(Load)).

%% @doc Starts many processes, each of which replicates one item after another until `beamway_bench_messages:stop/0' is called.
-spec start_callers(load()) -> ok.
start_callers(Load) -> beamway_bench_messages:start_loops(maps:get(Load, ?CALLERS), replicator(Load)).

%% Returns a function that several processes may call at the same time.
replicator(Load) ->
    Next = atomics:new(1, [{signed, false}]),
    fun() -> ok = replicate(Load, atomics:add_get(Next, 1, 1)) end.

replicate(Load, N) -> replicate(Load, N, item(kind(Load), N)).

%% @doc Returns one of the items of this kind, which are used in turn.
-spec item(beamway_bench_far_data:kind(), N :: non_neg_integer()) -> term().
item(Kind, N) ->
    Items = persistent_term:get({?MODULE, Kind}),
    element(N rem tuple_size(Items) + 1, Items).

kind(transaction) -> mnesia;
kind(pubsub) -> json;
kind(Kind) -> Kind.

replicate(mnesia, _, Record) -> mnesia:sync_dirty(fun mnesia:write/1, [Record]);
replicate(transaction, _, Record) -> transaction(element(2, Record), Record);
replicate(pubsub, N, Document) -> beamway_bench_pubsub:publish(N, Document, ?WAIT_MS);
replicate(Kind, N, Item) -> gen_server:call(server(Kind, N rem maps:get(Kind, ?SERVERS) + 1), {replicate, Item}, ?WAIT_MS).

%% @doc Writes the record under this key, in a transaction that reads the key first.
-spec transaction(Key :: term(), Record :: tuple()) -> ok | {aborted, term()}.
transaction(Key, Record) ->
    Update = fun() -> _ = mnesia:wread({?TABLE, Key}), mnesia:write(setelement(2, Record, Key)) end,
    case mnesia:sync_transaction(Update) of
        {atomic, ok} -> ok;
        Aborted -> Aborted
    end.

%% ---- a server ----

%% @private
-spec init({atom(), json | presence}) -> {ok, #state{}}.
init({Name, Kind}) -> {ok, #state{name = Name, kind = Kind}}.

%% @private
-spec handle_call({peer, node()} | {replicate, term()}, gen_server:from(), #state{}) -> {reply, ok, #state{}} | {noreply, #state{}}.
handle_call({peer, Node}, _, State) ->
    {reply, ok, State#state{peer = Node}};
handle_call({replicate, Item}, {Pid, _} = From, #state{name = Name, kind = Kind, peer = Peer, sent = Sent, waiting = Waiting} = State) ->
    _ = {Name, Peer} ! message(Kind, Name, Sent + 1, Pid, Item),
    {noreply, State#state{sent = Sent + 1, waiting = queue:in({Sent + 1, From}, Waiting)}}.

%% @private
-spec handle_cast(tuple(), #state{}) -> {noreply, #state{}}.
handle_cast({append_entries_rpc, ?TERM, {Name, Leader}, _, Before, ?TERM, [{Index, ?TERM, _}]}, #state{name = Name, received = Before} = State) ->
    gen_server:cast({Name, Leader}, {{Name, node()}, {append_entries_reply, ?TERM, true, Index + 1, Index, ?TERM}}),
    {noreply, State#state{received = Index}};
handle_cast({{Name, Peer}, {append_entries_reply, ?TERM, true, _, Index, ?TERM}}, #state{name = Name, peer = Peer} = State) ->
    {noreply, confirmed(Index, State)}.

%% @private
-spec handle_info(tuple(), #state{}) -> {noreply, #state{}}.
handle_info({forward_to_local, _, {pub, heartbeat, {Name, {Sender, _}}, #{mode := delta}, {_, Clocks}}, _}, #state{name = Name, received = Before} = State) ->
    [Clock] = maps:values(Clocks),
    Clock = Before + 1,
    _ = {Name, Sender} ! {confirmed, Clock},
    {noreply, State#state{received = Clock}};
handle_info({confirmed, Index}, State) ->
    {noreply, confirmed(Index, State)}.

%% Messages arrive in order, so each confirmation is for the oldest item.
confirmed(Index, #state{waiting = Waiting} = State) ->
    {{value, {Index, From}}, Rest} = queue:out(Waiting),
    gen_server:reply(From, ok),
    State#state{waiting = Rest}.

%% The messages have the form defined in ra_server.hrl and rabbit.hrl of RabbitMQ 3.10, and in Phoenix.PubSub 2.1.
message(json, Name, Index, Publisher, Document) ->
    Message = {basic_message, {resource, <<"/">>, exchange, <<"orders">>}, [<<"shop.orders">>],
               %% The properties: content type application/json, delivery mode 2, and a timestamp.
               {content, 60, none, <<16#90, 16#40, 16, "application/json", 2, (erlang:system_time(second)):64>>, rabbit_framing_amqp_0_9_1, [Document]},
               <<(erlang:phash2({Name, Index})):32, Index:96>>, true},
    Command = {'$usr', #{ts => erlang:system_time(millisecond)}, {enqueue, Publisher, Index, Message}, {notify, Index, Publisher}},
    {'$gen_cast', {append_entries_rpc, ?TERM, {Name, node()}, Index - 1, Index - 1, ?TERM, [{Index, ?TERM, Command}]}};
message(presence, Name, Index, _, #{replica := Replica} = Delta) ->
    {forward_to_local, <<"phx_presence:shop">>, {pub, heartbeat, {Name, {node(), element(2, Replica)}}, Delta, {Replica, #{Replica => Index}}}, 'Elixir.Phoenix.Tracker.Shard'}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% Runs two real nodes. Each load runs twice, because a cluster that is kept running is measured repeatedly.
loads_test_() ->
    {timeout, 120, fun() ->
        {ok, ok} = beamway_bench_run:in_a_process(
                     fun() ->
                             Epmd = beamway_bench_nodes:start_epmd(),
                             #{members := [Near, _]} = Cluster = beamway_bench_nodes:start(Epmd, maps:get(tcp, beamway_bench_contender:all("/", 1)), #{count => 2}),
                             ok = beamway_bench_nodes:connect(Cluster, forward),
                             [ok = replicates(Load, Near, Cluster) || _ <- [first, again], Load <- maps:keys(?CALLERS)],
                             ok
                     end)
    end}.

replicates(Load, Near, Cluster) ->
    [_, Other] = beamway_bench_nodes:names(Cluster),
    [ok, ok] = beamway_bench_nodes:all(Cluster, ?MODULE, start, []),
    On = fun(Module, Function, Args) -> beamway_bench_nodes:call(Near, Module, Function, Args) end,
    ok = On(?MODULE, connect, [Other]),
    ?assertEqual(case Load of transaction -> 25; _ -> 50 end, length(On(?MODULE, paced, [Load, 50]))),
    ok = On(?MODULE, start_callers, [Load]),
    ok = On(?MODULE, once, [Load]),
    ?assert(On(beamway_bench_messages, stop, []) > 0),
    ok = On(?MODULE, once, [Load]),
    Sizes = beamway_bench_nodes:all(Cluster, mnesia, table_info, [?TABLE, size]),
    ?assertMatch([_], lists:usort(Sizes)),
    ?assert(kind(Load) =/= mnesia orelse hd(Sizes) > 20).

items_come_again_late_test_() ->
    [?_assert(erlang:external_size(beamway_bench_far_data:items(Load, Count)) > 1000000) || {Load, Count} <- maps:to_list(?ITEMS)].

%% A server that has missed a message must not confirm the next message.
a_gap_is_noticed_test() ->
    State = #state{name = gap, kind = json, received = 1},
    Rpc = fun(Index) -> {'$gen_cast', Message} = message(json, gap, Index, self(), <<"{}">>), Message end,
    ?assertMatch({noreply, #state{received = 2}}, handle_cast(Rpc(2), State)),
    ?assertError(function_clause, handle_cast(Rpc(3), State)),
    Delta = element(1, beamway_bench_far_data:items(presence, 1)),
    ?assertError({badmatch, 2}, handle_info(message(presence, gap, 3, self(), Delta), State)).
-endif.
