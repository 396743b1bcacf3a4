%% SPDX-License-Identifier: Apache-2.0
%% @doc A publish-subscribe service in the manner of Phoenix.PubSub 2.1 and its adapter PG2, for `bench apps'.
%%
%% Each node has a server in a group of `pg'. A broadcast sends one message with plain `!' to the server of each other node, and the publisher sends the
%% message to its own node's subscribers itself. A server that receives a broadcast passes it on to the subscribers on its node. Every node has the same
%% topics, each with the same number of subscribers.
%%
%% PubSub confirms nothing. Here a publisher also waits until the last subscriber on the other node has received its message, so that there is a time to
%% measure.
-module(beamway_bench_pubsub).
-behaviour(gen_server).

-export([start/0, await/1, publish/3]).
%% @private
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-define(SCOPE, beamway_bench_pubsub_pg).
-define(GROUP, servers).
-define(TOPICS, 100).
-define(SUBSCRIBERS, 10).
-define(WAIT_MS, 20000).

%% @doc Starts the server and the subscribers of this node, unless they run already.
-spec start() -> ok.
start() ->
    case gen_server:start({local, ?MODULE}, ?MODULE, [], []) of
        {ok, _} -> ok;
        {error, {already_started, _}} -> ok
    end.

%% @doc Waits until this node knows the servers of this many nodes, including its own.
-spec await(Nodes :: pos_integer()) -> ok.
await(Nodes) ->
    {Ref, Known} = pg:monitor(?SCOPE, ?GROUP),
    ok = await(Ref, Nodes - length(Known)),
    _ = pg:demonitor(?SCOPE, Ref),
    ok.

await(_, Missing) when Missing =< 0 -> ok;
await(Ref, Missing) ->
    receive {Ref, join, ?GROUP, Pids} -> await(Ref, Missing - length(Pids))
    after ?WAIT_MS -> error({servers_missing, Missing})
    end.

%% @doc Broadcasts a term to a topic's subscribers on all nodes. Returns `timeout' if the other
%% node's subscribers have not received it within this time.
-spec publish(Topic :: non_neg_integer(), term(), TimeoutMs :: pos_integer()) -> ok | timeout.
publish(Number, What, TimeoutMs) ->
    Topic = topic(Number),
    Ref = make_ref(),
    Broadcast = #{'__struct__' => 'Elixir.Phoenix.Socket.Broadcast', topic => Topic, event => <<"new_msg">>, payload => #{body => What, from => {self(), Ref}}},
    _ = [Pid ! {forward_to_local, Topic, Broadcast, 'Elixir.Phoenix.PubSub'} || Pid <- pg:get_members(?SCOPE, ?GROUP), node(Pid) =/= node()],
    ok = dispatch(Topic, Broadcast),
    receive {Ref, received} -> ok after TimeoutMs -> timeout end.

topic(Number) -> iolist_to_binary(["room:", integer_to_list(Number rem ?TOPICS)]).

dispatch(Topic, Broadcast) -> lists:foreach(fun({_, Pid}) -> Pid ! Broadcast end, ets:lookup(?MODULE, Topic)).

%% ---- the server and the subscribers ----

%% @private
-spec init([]) -> {ok, none}.
init([]) ->
    {ok, _} = pg:start_link(?SCOPE),
    %% A bag returns the subscribers of a topic in the order in which they were inserted.
    ?MODULE = ets:new(?MODULE, [named_table, bag, {read_concurrency, true}]),
    true = ets:insert(?MODULE, [{topic(Topic), spawn_link(fun() -> subscriber(N =:= ?SUBSCRIBERS) end)} || Topic <- lists:seq(1, ?TOPICS), N <- lists:seq(1, ?SUBSCRIBERS)]),
    ok = pg:join(?SCOPE, ?GROUP, self()),
    {ok, none}.

subscriber(IsLast) ->
    receive
        #{payload := #{from := {Publisher, Ref}}} when IsLast, node(Publisher) =/= node() -> Publisher ! {Ref, received};
        #{} -> ok
    end,
    subscriber(IsLast).

%% @private
-spec handle_call(term(), gen_server:from(), none) -> {reply, unknown, none}.
handle_call(_, _, none) -> {reply, unknown, none}.

%% @private
-spec handle_cast(term(), none) -> {noreply, none}.
handle_cast(_, none) -> {noreply, none}.

%% @private
-spec handle_info({forward_to_local, Topic :: binary(), Broadcast :: map(), Dispatcher :: module()}, none) -> {noreply, none}.
handle_info({forward_to_local, Topic, Broadcast, _}, none) ->
    ok = dispatch(Topic, Broadcast),
    {noreply, none}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% Without another node, the message reaches only the subscribers on this node, and nobody confirms it.
one_node_test() ->
    ok = start(),
    ok = start(),
    ok = await(1),
    Receiver = self(),
    true = ets:info(?MODULE, size) =:= ?TOPICS * ?SUBSCRIBERS,
    [begin
         1 = erlang:trace(Pid, true, ['receive', {tracer, Receiver}])
     end || {_, Pid} <- ets:lookup(?MODULE, topic(7))],
    ?assertEqual(timeout, publish(107, <<"hello">>, 100)),
    ?assertEqual(?SUBSCRIBERS, length(lists:usort([Pid || {trace, Pid, 'receive', #{payload := #{body := <<"hello">>}}} <- messages()]))),
    ok = gen_server:stop(?MODULE).

messages() -> receive Message -> [Message | messages()] after 0 -> [] end.
-endif.
