%% SPDX-License-Identifier: Apache-2.0
%% @doc gen_rpc's interface on real nodes, over Beamway's shared memory and stock distribution.
-module(gen_rpc_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2]).
-export([ends_of_functions/1, limits_of_calls/1, casts/1, order_of_a_key/1, multicalls/1, everywhere/1, versions/1, bad_arguments/1, control_of_modules/1]).
-export([asynchronous/1, taken_once/1, held_no_longer/1, messages_by_name/1, peers_that_fail/1, no_room/1]).
%% Called on the nodes.
-export([ended_by/1, tell/2, log/2]).
-import(teleport_nodes, [wait_ms/0, on_first/2]).

-define(NOBODY, 'nobody@127.0.0.1').

suite() -> [{timetrap, {minutes, 3}}].

all() -> teleport_nodes:all([shm, stock]).

groups() ->
    teleport_nodes:groups([shm, stock], [ends_of_functions, limits_of_calls, casts, order_of_a_key, multicalls, everywhere, versions, bad_arguments, control_of_modules,
                                       asynchronous, taken_once, held_no_longer, messages_by_name, peers_that_fail, no_room]).

init_per_group(Kind, Config) ->
    Pair = teleport_nodes:start_pair(teleport_nodes:init_group(Kind, Config)),
    [{ok, _} = beamway_peer:call(Peer, application, ensure_all_started, [gen_rpc]) || Peer <- [teleport_nodes:first(Pair), teleport_nodes:second(Pair)]],
    Pair.

end_per_group(_Kind, Config) -> teleport_nodes:stop_pair(Config).

message() -> receive Message -> Message after wait_ms() -> error(nothing_came) end.

nothing_came() -> receive Late -> error({late, Late}) after 0 -> ok end.

%% The results are the same on a remote node and on the local one, with and without a key.
ends_of_functions(Config) ->
    on_first(Config, fun(Node) ->
        [begin
             Of = case Dest of {At, _} -> At; At -> At end,
             Of = gen_rpc:call(Dest, erlang, node),
             5 = gen_rpc:call(Dest, erlang, '+', [2, 3]),
             5 = gen_rpc:call(Dest, erlang, '+', [2, 3], undefined),
             5 = gen_rpc:call(Dest, erlang, '+', [2, 3], infinity, infinity),
             thrown = gen_rpc:call(Dest, erlang, throw, [thrown]),
             {badrpc, mine} = gen_rpc:call(Dest, erlang, throw, [{badrpc, mine}]),
             {badrpc, {'EXIT', gone}} = gen_rpc:call(Dest, erlang, exit, [gone]),
             {badrpc, {'EXIT', {badarith, [{erlang, '+', [1, a], _} | _]}}} = gen_rpc:call(Dest, erlang, '+', [1, a]),
             {badrpc, {'EXIT', {undef, [{no_such_module, f, [], _} | _]}}} = gen_rpc:call(Dest, no_such_module, f),
             {badrpc, {'EXIT', killed}} = gen_rpc:call(Dest, ?MODULE, ended_by, [kill])
         end || Dest <- [Node, {Node, key}, {Node, {"any", term}}, node(), {node(), key}]],
        nothing_came()
    end).

ended_by(Reason) ->
    exit(self(), Reason),
    receive after infinity -> ok end.

%% The limit applies to the call; the function keeps running after it expires.
limits_of_calls(Config) ->
    on_first(Config, fun(Node) ->
        Test = self(),
        [begin
             Slow = fun() -> Test ! {runs, self()}, receive go -> Test ! went end end,
             {badrpc, timeout} = gen_rpc:call(Dest, erlang, apply, [Slow, []], 500 * beamway_runner:slowness()),
             {runs, Pid} = message(),
             Pid ! go,
             went = message()
         end || Dest <- [Node, {Node, key}, node()]],
        ok = application:set_env(gen_rpc, call_receive_timeout, 50),
        {badrpc, timeout} = gen_rpc:call(Node, timer, sleep, [wait_ms()]),
        {badrpc, timeout} = gen_rpc:call(node(), timer, sleep, [wait_ms()]),
        ok = gen_rpc:call(Node, timer, sleep, [100], wait_ms()),
        ok = application:unset_env(gen_rpc, call_receive_timeout),
        nothing_came()
    end).

casts(Config) ->
    on_first(Config, fun(Node) ->
        Test = self(),
        [begin
             true = gen_rpc:cast(Dest, erlang, send, [Test, a]),
             a = message(),
             true = gen_rpc:cast(Dest, erlang, send, [Test, b], 1000),
             b = message(),
             true = gen_rpc:safe_cast(Dest, erlang, send, [Test, c], infinity),
             c = message(),
             true = gen_rpc:cast(Dest, erlang, node),
             true = gen_rpc:safe_cast(Dest, erlang, node)
         end || Dest <- [Node, {Node, key}, node(), {node(), key}]],
        true = gen_rpc:cast(?NOBODY, erlang, node),
        {badrpc, nodedown} = gen_rpc:safe_cast(?NOBODY, erlang, node),
        nothing_came()
    end).

%% Casts and calls with the same key, or from the same process, start in order. The test relies on pids increasing in the order in which a node
%% starts its processes.
order_of_a_key(Config) ->
    on_first(Config, fun(Node) ->
        Test = self(),
        Numbers = lists:seq(1, 300),
        [begin
             [true = gen_rpc:cast(Dest, ?MODULE, tell, [Test, N]) || N <- Numbers],
             last = gen_rpc:call(Dest, ?MODULE, tell, [Test, last]),
             Started = lists:sort([message() || _ <- [last | Numbers]]),
             {Dest, Numbers, [last]} = {Dest, [N || {_, N} <- Started, is_integer(N)], [N || {_, N} <- lists:nthtail(300, Started)]}
         end || Dest <- [Node, {Node, one}, {Node, two}]],
        nothing_came()
    end).

tell(Test, N) ->
    Test ! {self(), N},
    N.

multicalls(Config) ->
    on_first(Config, fun(Node) ->
        Here = node(),
        [Node] = gen_rpc:nodes(),
        {[Here, Node], []} = gen_rpc:multicall(erlang, node, []),
        {[Here, Node], []} = gen_rpc:multicall(erlang, node, [], wait_ms()),
        Dests = [{Node, key}, ?NOBODY, Here, {?NOBODY, key}, Node],
        {[Node, Here, Node], [?NOBODY, {?NOBODY, key}]} = gen_rpc:multicall(Dests, erlang, node, []),
        {[Node, Here, Node], [?NOBODY, {?NOBODY, key}]} = gen_rpc:multicall(Dests, erlang, node, [], wait_ms()),
        {[], [Node, Here]} = gen_rpc:multicall([Node, Here], erlang, exit, [gone]),
        {[thrown], []} = gen_rpc:multicall([Node], erlang, throw, [thrown]),
        {[], [Here, Node]} = gen_rpc:multicall(timer, sleep, [wait_ms()], 50),
        {[], []} = gen_rpc:multicall([], erlang, node, []),
        nothing_came()
    end).

everywhere(Config) ->
    on_first(Config, fun(Node) ->
        Test = self(),
        Dests = [Node, node(), {Node, key}],
        abcast = gen_rpc:eval_everywhere([?NOBODY | Dests], erlang, send, [Test, a]),
        [a, a, a] = [message() || _ <- Dests],
        abcast = gen_rpc:eval_everywhere(Dests, erlang, send, [Test, b], 5000),
        [b, b, b] = [message() || _ <- Dests],
        abcast = gen_rpc:eval_everywhere(Dests, erlang, node),
        [true, []] = gen_rpc:safe_eval_everywhere(Dests, erlang, node),
        [true, [?NOBODY, {?NOBODY, k}]] = gen_rpc:safe_eval_everywhere([?NOBODY, Node, {?NOBODY, k}], erlang, send, [Test, c]),
        c = message(),
        [?NOBODY] = gen_rpc:safe_eval_everywhere([?NOBODY], erlang, node, [], 5000),
        [] = gen_rpc:safe_eval_everywhere([], erlang, node),
        nothing_came()
    end).

versions(Config) ->
    on_first(Config, fun(Node) ->
        [Version] = proplists:get_value(vsn, gen_rpc:module_info(attributes)),
        [begin
             Nodes = gen_rpc:call(Dest, {gen_rpc, Version}, nodes, []),
             true = is_list(Nodes),
             Nodes = gen_rpc:call(Dest, {gen_rpc, [Version]}, nodes, []),
             {badrpc, incompatible} = gen_rpc:call(Dest, {gen_rpc, other}, nodes, []),
             {badrpc, incompatible} = gen_rpc:call(Dest, {no_such_module, 1}, f, [])
         end || Dest <- [Node, {Node, key}, node()]],
        {[], [Node]} = gen_rpc:multicall([Node], {gen_rpc, other}, nodes, [])
    end).

bad_arguments(Config) ->
    on_first(Config, fun(Node) ->
        {'EXIT', {{bad_destination, "n"}, _}} = (catch gen_rpc:call("n", erlang, node, [])),
        {'EXIT', {{bad_destination, {"n", k}}, _}} = (catch gen_rpc:eval_everywhere([Node, {"n", k}], erlang, node)),
        {'EXIT', {{bad_module, {"m", 1}}, _}} = (catch gen_rpc:cast(Node, {"m", 1}, f, [])),
        {'EXIT', {{bad_module, {"m", 1}}, _}} = (catch gen_rpc:multicall([Node, node()], {"m", 1}, f, [])),
        {'EXIT', {{bad_limit, call_receive_timeout, soon}, _}} = (catch gen_rpc:call(Node, erlang, node, [], soon)),
        {'EXIT', {{bad_limit, send_timeout, -1}, _}} = (catch gen_rpc:cast(Node, erlang, node, [], -1)),
        {'EXIT', {function_clause, _}} = (catch gen_rpc:call(Node, erlang, node, not_a_list)),
        ok = application:set_env(gen_rpc, send_timeout, undefined),
        {'EXIT', {{bad_limit, send_timeout, undefined}, _}} = (catch gen_rpc:cast(Node, erlang, node)),
        ok = application:unset_env(gen_rpc, send_timeout)
    end).

%% The application does not start if module control is configured, because it does not implement this feature of gen_rpc.
control_of_modules(Config) ->
    on_first(Config, fun(Node) ->
        ok = application:stop(gen_rpc),
        [begin
             ok = application:set_env(gen_rpc, rpc_module_control, Control),
             {error, {{bad_options, <<"rpc_module_control is ", _/binary>>}, _}} = application:start(gen_rpc)
         end || Control <- [whitelist, blacklist]],
        ok = application:set_env(gen_rpc, rpc_module_control, disabled),
        ok = application:start(gen_rpc),
        ok = application:unset_env(gen_rpc, rpc_module_control),
        Node = gen_rpc:call(Node, erlang, node)
    end).

%% ---- asynchronous calls

asynchronous(Config) ->
    on_first(Config, fun(Node) ->
        [begin
             Of = case Dest of {At, _} -> At; At -> At end,
             Of = gen_rpc:yield(gen_rpc:async_call(Dest, erlang, node)),
             thrown = gen_rpc:yield(gen_rpc:async_call(Dest, erlang, throw, [thrown])),
             {badrpc, {'EXIT', gone}} = gen_rpc:yield(gen_rpc:async_call(Dest, erlang, exit, [gone])),
             {value, 5} = gen_rpc:nb_yield(gen_rpc:async_call(Dest, erlang, '+', [2, 3]), wait_ms())
         end || Dest <- [Node, {Node, key}, node(), {node(), key}]],
        {badrpc, nodedown} = gen_rpc:yield(gen_rpc:async_call(?NOBODY, erlang, node)),
        nothing_came()
    end).

%% A collecting process may give up at any moment: no result is lost, and no message stays in its mailbox.
taken_once(Config) ->
    on_first(Config, fun(Node) ->
        Gate = fun(Test) -> Test ! {waits, self()}, receive go -> opened end end,
        [begin
             Key = gen_rpc:async_call(Node, erlang, apply, [Gate, [self()]]),
             {waits, Pid} = message(),
             timeout = gen_rpc:nb_yield(Key),
             timeout = gen_rpc:nb_yield(Key, 1),
             Pid ! go,
             {value, opened} = until_there(Key),
             {badrpc, gone} = gen_rpc:yield(Key),
             {value, {badrpc, gone}} = gen_rpc:nb_yield(Key, wait_ms()),
             nothing_came()
         end || _ <- lists:seq(1, 50)],
        %% The result is collected by a process other than the caller.
        Key = gen_rpc:async_call(Node, erlang, node),
        {_, Monitor} = spawn_monitor(fun() -> exit({took, gen_rpc:yield(Key)}) end),
        receive {'DOWN', Monitor, process, _, {took, Node}} -> ok after wait_ms() -> error(not_taken) end,
        %% One collecting process was killed while it waited, and another one gave up. One of the other two received the value.
        {_, Holder} = Waited = gen_rpc:async_call(Node, erlang, apply, [Gate, [self()]]),
        {waits, Opener} = message(),
        Takes = fun(Count) -> beamway_peer:wait_until(fun() -> process_info(Holder, message_queue_len) =:= {message_queue_len, Count} end, wait_ms()) end,
        {Killed, _} = spawn_monitor(fun() -> gen_rpc:yield(Waited) end),
        _ = Takes(1),
        true = exit(Killed, kill),
        killed = receive {'DOWN', _, process, Killed, How} -> How after wait_ms() -> error(lives) end,
        timeout = gen_rpc:nb_yield(Waited),
        Takers = [spawn_monitor(fun() -> exit({took, gen_rpc:yield(Waited)}) end) || _ <- [1, 2]],
        _ = Takes(5),
        Opener ! go,
        [{took, opened}, {took, {badrpc, gone}}] =
            lists:sort([receive {'DOWN', One, process, Taker, Took} -> Took after wait_ms() -> error(not_taken) end || {Taker, One} <- Takers])
    end).

%% Waits at every second attempt, because otherwise a busy machine gives the process that holds the value no time.
until_there(Key) ->
    case {gen_rpc:nb_yield(Key), gen_rpc:nb_yield(Key, 1)} of
        {timeout, timeout} -> until_there(Key);
        {timeout, Value} -> Value;
        {Value, {value, {badrpc, gone}}} -> Value
    end.

held_no_longer(Config) ->
    on_first(Config, fun(Node) ->
        Test = self(),
        Ended = fun({_, Holder}) ->
                        Monitor = monitor(process, Holder),
                        receive {'DOWN', Monitor, process, Holder, _} -> ok after wait_ms() -> error(still_held) end
                end,
        %% The caller exits, once after the value has arrived and once before.
        [begin
             _ = spawn(fun() -> Test ! {key, gen_rpc:async_call(Node, timer, sleep, [Ms])}, receive after Pause -> ok end end),
             {key, Key} = message(),
             ok = Ended(Key)
         end || {Ms, Pause} <- [{0, 100}, {wait_ms(), 0}]],
        ok = application:set_env(gen_rpc, async_call_inactivity_timeout, 50),
        ok = Ended(gen_rpc:async_call(Node, erlang, node)),
        {badrpc, timeout} = gen_rpc:yield(gen_rpc:async_call(Node, timer, sleep, [wait_ms()])),
        ok = application:unset_env(gen_rpc, async_call_inactivity_timeout)
    end).

messages_by_name(Config) ->
    on_first(Config, fun(Node) ->
        Here = node(),
        true = register(rpc_named, self()),
        {[Here], [Node]} = gen_rpc:sbcast(rpc_named, a),
        a = message(),
        _ = erpc:call(Node, teleport_nodes, start_server, [rpc_named]),
        {[Here, Node], []} = gen_rpc:sbcast(rpc_named, b),
        b = message(),
        {[{Node, k}], [?NOBODY]} = gen_rpc:sbcast([{Node, k}, ?NOBODY], rpc_named, c),
        abcast = gen_rpc:abcast([{Node, k}], rpc_named, d),
        abcast = gen_rpc:abcast(rpc_named, e),
        e = message(),
        abcast = gen_rpc:abcast([?NOBODY, Node], no_such_name, f),
        _ = beamway_peer:wait_until(fun() -> {messages, M} = {messages, gen_server:call({rpc_named, Node}, log)}, put(log, logged() ++ M), lists:sort(logged()) =:= [b, c, d, e] end,
                                    wait_ms()),
        true = unregister(rpc_named),
        ok = gen_server:stop({rpc_named, Node}),
        %% If the name is not registered, nothing is logged on the other node.
        ok = erpc:call(Node, logger, add_handler, [?MODULE, ?MODULE, #{level => error, config => self()}]),
        [abcast = gen_rpc:abcast([Node, {Node, k}], no_such_name, g) || _ <- lists:seq(1, 20)],
        true = gen_rpc:cast(Node, erlang, error, [of_a_cast]),
        {logged, Told} = message(),
        {true, _} = {string:find(Told, "of_a_cast") =/= nomatch, Told},
        ok = erpc:call(Node, logger, remove_handler, [?MODULE])
    end).

%% @private A handler of logger.
log(#{msg := Message}, #{config := Test}) -> Test ! {logged, lists:flatten(io_lib:format("~0p", [Message]))}.

logged() -> case get(log) of undefined -> []; Logged -> Logged end.

%% ---- peers that fail ----

peers_that_fail(Config) ->
    Kind = teleport_nodes:kind(Config),
    Plain = stock(#{}),
    Stranger = stock(#{cookie => "another"}),
    {Victim, VictimNode} = teleport_nodes:start(Kind),
    try
        on_first(Config, fun(Node) ->
            {_, PlainNode} = Plain,
            {_, StrangerNode} = Stranger,
            true = net_kernel:connect_node(VictimNode),
            [begin
                 {badrpc, Reason} = gen_rpc:call(Bad, erlang, node),
                 {badrpc, Reason} = gen_rpc:call({Bad, key}, erlang, node),
                 {badrpc, Reason} = gen_rpc:safe_cast(Bad, erlang, node),
                 true = gen_rpc:cast(Bad, erlang, node),
                 {[Node], [Bad]} = gen_rpc:multicall([Bad, Node], erlang, node, [])
             end || {Bad, Reason} <- [{?NOBODY, nodedown}, {StrangerNode, nodedown}]],
            %% A node without teleport is reached over the distribution.
            true = net_kernel:connect_node(PlainNode),
            PlainNode = gen_rpc:call(PlainNode, erlang, node),
            PlainNode = gen_rpc:call({PlainNode, key}, erlang, node),
            true = gen_rpc:safe_cast(PlainNode, erlang, node),
            %% The node stops while it executes the call.
            failed_as_lost(gen_rpc:call(VictimNode, init, stop, [], wait_ms())),
            failed_as_lost(gen_rpc:call(VictimNode, erlang, halt, [], wait_ms()))
        end)
    after
        beamway_peer:stop_all([element(1, Plain), element(1, Stranger), Victim])
    end.

%% The peer is suspended, so the link to it fills up.
no_room(Config) ->
    {Victim, Node} = teleport_nodes:start(teleport_nodes:kind(Config)),
    try
        on_first(Config, fun(_) -> true = net_kernel:connect_node(Node) end),
        ok = beamway_peer:sigstop(Victim),
        on_first(Config, fun(_) ->
            Large = binary:copy(<<"x">>, 50000),
            {badtcp, timeout} = beamway_peer:wait_until(fun() -> Full = gen_rpc:safe_cast({Node, key}, erlang, byte_size, [Large], 20), Full =/= true andalso Full end, wait_ms()),
            {badtcp, timeout} = gen_rpc:call({Node, key}, erlang, byte_size, [Large], wait_ms(), 100),
            {badrpc, timeout} = gen_rpc:call({Node, key}, erlang, byte_size, [Large], 100),
            true = gen_rpc:cast({Node, key}, erlang, byte_size, [Large], 100),
            [Node] = gen_rpc:safe_eval_everywhere([Node], erlang, node, [], 100),
            nothing_came()
        end)
    after
        beamway_peer:kill9(Victim),
        beamway_peer:stop_all([Victim])
    end.

failed_as_lost(ok) -> ok;
failed_as_lost({badrpc, nodedown}) -> ok.

stock(Options) ->
    {ok, Peer, Node} = beamway_peer:start(inet_tcp, Options),
    {Peer, Node}.
