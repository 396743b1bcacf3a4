%% SPDX-License-Identifier: Apache-2.0
%% @doc Pools of connections between nodes over stock distribution: messages arrive once and in order, even if a node
%% goes down, hangs or misbehaves.
-module(teleport_pool_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([all_kinds_of_terms/1, order_of_a_key/1, order_at_the_switch/1, requests/1, ends_of_servers/1, cancelled_and_killed_callers/1, lost_connections/1,
         both_ends_send/1, a_hung_peer/1, a_hung_peer_that_is_given_up/1, killed_senders_leave_nothing/1, receiver_stops/1, sender_stops/1, node_restarts/1,
         manager_is_killed/1, code_is_loaded_twice/1, options/1]).
-export([strangers/1, too_many_strangers/1, another_cookie/1, words_of_no_node/1, blocked_port/1, silent_path/1, never_connects/1, hidden_node/1, c_node/1,
         other_distributions/1]).
%% Functions that run on the nodes.
-export([hold/1, echo/0, check_order/2, waits/1]).
-export([init/1, handle_call/2, handle_call/3, handle_cast/2, handle_info/2, callback_mode/0, handle_event/4, handle_event/2]).

-define(WAIT_MS, 60000).
-define(CALL_MS, 150000).
-define(LARGE, 10000000).

suite() -> [{timetrap, {minutes, 3}}, {ct_hooks, [beamway_compat_nodes]}].

all() ->
    [all_kinds_of_terms, order_of_a_key, order_at_the_switch, requests, ends_of_servers, cancelled_and_killed_callers, lost_connections, both_ends_send,
     a_hung_peer, a_hung_peer_that_is_given_up, killed_senders_leave_nothing, receiver_stops, sender_stops, node_restarts, manager_is_killed,
     code_is_loaded_twice, options, strangers, too_many_strangers, another_cookie, words_of_no_node, blocked_port, silent_path, never_connects, hidden_node, c_node,
     other_distributions].

init_per_suite(Config) -> [{c_node, beamway_foreign_SUITE:compile_c_node(proplists:get_value(priv_dir, Config))} | Config].

end_per_suite(_Config) -> ok.

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

%% ---- nodes ----

start() -> start(#{}).

start(Options) -> start(inet_tcp, Options).

start(Carrier, Options) ->
    {ok, Peer, Node} = beamway_peer:start(Carrier, maps:remove(pool, Options)),
    ok = beamway_peer:run(Peer, fun() ->
        _ = application:load(teleport),
        [ok = application:set_env(teleport, Name, Value) || {Name, Value} <- maps:to_list(maps:merge(#{pool => 3}, maps:get(pool, Options, #{})))],
        ok
    end),
    ok = start_pools(Peer),
    {Peer, Node}.

start_pools(Peer) ->
    beamway_peer:run(Peer, fun() ->
        Pid = spawn(?MODULE, hold, [self()]),
        receive {Pid, held} -> ok end
    end).

%% Stands in for the application's supervisor.
hold(Owner) ->
    process_flag(trap_exit, true),
    ok = teleport_config:read(),
    {ok, Pid} = teleport_pool_sup:start_link(),
    register(pool_holder, self()),
    Owner ! {self(), held},
    receive {stop, From} -> exit(Pid, shutdown), receive {'EXIT', Pid, Reason} -> From ! {stopped, Reason} end end.

stop_pools(Peer) ->
    beamway_peer:run(Peer, fun() -> pool_holder ! {stop, self()}, receive {stopped, shutdown} -> ok after ?WAIT_MS -> error(not_stopped) end end, ?CALL_MS).

pair() -> pair(#{}).

pair(Options) ->
    {PeerA, _} = start(Options),
    {PeerB, NodeB} = start(Options),
    ok = on(PeerA, fun() -> true = net_kernel:connect_node(NodeB), ok end),
    {PeerA, NodeB, PeerB}.

on(Peer, Fun) -> beamway_peer:run(Peer, Fun, ?CALL_MS).

until(Fun) -> beamway_peer:wait_until(Fun, ?WAIT_MS).

%% ---- functions that run on a node ----

pool(Node) -> until(fun() -> case teleport_pool:lookup(Node) of none -> false; Pool -> Pool end end).

post(Pool, To, Message) -> teleport_pool:send(Pool, To, {self(), To}, Message, infinity).

call(Pool, Server, Request) -> call(Pool, Server, '$gen_call', Request).

call(Pool, Server, Label, Request) ->
    {ok, Ref} = teleport_pool:request(Pool, Server, self(), Label, Request, infinity),
    answer(Ref).

answer(Ref) ->
    receive
        {[alias | Ref], Reply} -> {reply, Reply};
        {'DOWN', Ref, process, Pid, _} when is_pid(Pid), node(Pid) =:= node() -> lost;
        {'DOWN', Ref, process, _, Reason} -> {failed, Reason}
    after ?WAIT_MS -> error(no_answer)
    end.

%% Makes a call over each connection.
by_each(Pool, Server) ->
    Refs = [element(2, teleport_pool:request(Pool, Server, Key, '$gen_call', {echo, Key}, infinity)) || Key <- lists:seq(1, 50)],
    [{reply, {echo, Key}} = answer(Ref) || {Key, Ref} <- lists:zip(lists:seq(1, 50), Refs)],
    ok.

stage(Node) ->
    case sys:get_state(teleport_pool) of
        #{Node := {peer, Stage, _, _, _, _, Reason}} -> {Stage, Reason};
        #{} -> none
    end.

queued(Node) -> lists:sum([atomics:get(Counter, 1) || {connection, {Of, _}, _, {_, Counter}, _} <- ets:tab2list(teleport_pool), Of =:= Node]).

%% Requests a pool, and returns why there is none.
no_pool(Node) ->
    none = teleport_pool:lookup(Node),
    until(fun() ->
              case stage(Node) of
                  {Stage, Reason} when Stage =:= paused; Stage =:= carried -> {Stage, Reason};
                  {open, _} -> error({pool_is_open, Node});
                  _ -> _ = teleport_pool:lookup(Node), false
              end
          end).

deliveries() -> [Pid || {_, Pid, _, _} <- supervisor:which_children(teleport_pool_delivery_sup)].

%% Returns the number of pool processes and the number of ports on this node.
left() -> {length(deliveries()) + length(supervisor:which_children(teleport_pool_connection_sup)), length(erlang:ports())}.

echo() ->
    receive
        {From, Message} -> From ! {echo, Message}, echo()
    end.

waits(Owner) -> Owner ! {self(), ready}, receive {Owner, go} -> ok end.

%% Expects {Who, N, _} with consecutive N from 1. Answers {have, Who, N, From} once it has received everything up to N.
check_order(Seen, Asks) ->
    receive
        {Who, N, _} when is_integer(N) ->
            case maps:get(Who, Seen, 0) + 1 of
                N -> answered(Seen#{Who => N}, Asks);
                Wanted -> receive {have, _, _, _} -> exit({order, Who, [{came, N}, {wanted, Wanted}]}) end
            end;
        {have, _, _, _} = Ask -> answered(Seen, [Ask | Asks])
    end.

answered(Seen, Asks) ->
    {Now, Later} = lists:partition(fun({have, Who, N, _}) -> maps:get(Who, Seen, 0) >= N end, Asks),
    [From ! {self(), Who, N} || {have, Who, N, From} <- Now],
    check_order(Seen, Later).

checker(Node) -> spawn(Node, ?MODULE, check_order, [#{}, []]).

await(Checker, Who, N) ->
    Monitor = monitor(process, Checker),
    Checker ! {have, Who, N, self()},
    receive
        {Checker, Who, N} -> true = demonitor(Monitor, [flush]), ok;
        {'DOWN', Monitor, process, _, Reason} -> error(Reason)
    after ?WAIT_MS -> error({lost, Who, N})
    end.

size_of(N) when N rem 1000 =:= 0 -> 3000000;
size_of(N) when N rem 100 =:= 0 -> 200000;
size_of(N) when N rem 10 =:= 0 -> 5000;
size_of(N) -> N rem 60.

payload(N) -> #{data => binary:copy(<<"x">>, size_of(N))}.

%% ---- cases: messages ----

all_kinds_of_terms(_Config) ->
    {PeerA, NodeB, _} = pair(#{pool => #{max_message_bytes => 40000000}}),
    on(PeerA, fun() ->
        Pool = pool(NodeB),
        Echo = spawn(NodeB, ?MODULE, echo, []),
        true = erpc:call(NodeB, erlang, register, [pool_echo, Echo]),
        Ref = make_ref(),
        Terms = [1, self(), Ref, alias(), fun lists:seq/2, fun() -> Ref end, hd(erlang:ports()), Echo, <<1:3>>, {}, [], "text", 1.5, 1 bsl 1000, #{a => #{}},
                 binary:copy(<<"x">>, 30000000), {binary:copy(<<"y">>, 100000), [binary:copy(<<"z">>, 100000)]}, lists:seq(1, 300000), 'ätom'],
        [begin
             ok = post(Pool, To, {self(), Term}),
             receive {echo, Echoed} -> true = Echoed =:= Term after ?WAIT_MS -> error({lost, Term}) end
         end || Term <- Terms, To <- [Echo, pool_echo]],
        %% An alias of this process still works as an alias on the other node.
        Alias = alias(),
        ok = post(Pool, Echo, {Alias, x}),
        receive {echo, x} -> ok after ?WAIT_MS -> error(lost) end,
        %% Messages to a process that does not exist are dropped, as with `!'.
        Dead = spawn(NodeB, erlang, node, []),
        [ok = post(Pool, Nobody, x) || Nobody <- [Dead, pool_nobody, self()]],
        {error, {too_big, Bytes}} = post(Pool, Echo, binary:copy(<<"x">>, 40000000)),
        true = Bytes > 40000000,
        {error, {too_big, _}} = teleport_pool:request(Pool, Echo, key, '$gen_call', binary:copy(<<"x">>, 40000000), 0),
        ok = post(Pool, Echo, {self(), after_all}),
        receive {echo, after_all} -> ok after ?WAIT_MS -> error(lost) end,
        0 = until(fun() -> queued(NodeB) =:= 0 andalso 0 end),
        %% The connections' processes do not keep the memory of large messages.
        true = lists:sum([Size || Pid <- lists:append([[C, W] || {connection, _, C, {W, _}, _} <- ets:tab2list(teleport_pool)]), {binary, Binaries} <- [process_info(Pid, binary)], {_, Size, _} <- Binaries]) < 1000000,
        ok
    end).

order_of_a_key(_Config) ->
    {PeerA, NodeB, _} = pair(),
    on(PeerA, fun() ->
        Pool = pool(NodeB),
        Checker = checker(NodeB),
        Count = 4000,
        Senders = [spawn_monitor(fun() -> [ok = post(Pool, Checker, {Who, N, payload(N)}) || N <- lists:seq(1, Count)] end) || Who <- lists:seq(1, 10)],
        [receive {'DOWN', Monitor, process, Pid, Reason} -> normal = Reason after ?WAIT_MS -> error(stuck) end || {Pid, Monitor} <- Senders],
        [ok = await(Checker, Who, Count) || Who <- lists:seq(1, 10)],
        %% Several processes take turns with one key.
        Self = self(),
        lists:foreach(fun(N) ->
                              _ = spawn_link(fun() -> ok = teleport_pool:send(Pool, Checker, shared, {shared, N, payload(N)}, infinity), Self ! next end),
                              receive next -> ok end
                      end, lists:seq(1, 1000)),
        ok = await(Checker, shared, 1000)
    end).

%% Messages over the distribution are slow here, because they wait behind large messages from the same process to
%% another receiver.
order_at_the_switch(_Config) ->
    {PeerA, NodeB, _} = pair(),
    on(PeerA, fun() ->
        Checker = checker(NodeB),
        Sink = spawn(NodeB, ?MODULE, waits, [self()]),
        Self = self(),
        Large = binary:copy(<<"x">>, ?LARGE),
        Each = fun(Who) ->
                       Switched = lists:foldl(fun(N, Before) ->
                                                      Way = teleport_pool:lookup(NodeB),
                                                      case Way of
                                                          none ->
                                                              ok = teleport_pool:note(NodeB),
                                                              _ = N rem 200 =:= 1 andalso (Sink ! Large),
                                                              Checker ! {Who, N, payload(N)};
                                                          Pool -> ok = post(Pool, Checker, {Who, N, payload(N)})
                                                      end,
                                                      case Way of none -> N; _ -> Before end
                                              end, 0, lists:seq(1, 3000)),
                       Self ! {switched, Who, Switched}
               end,
        [_ = spawn_link(fun() -> Each(Who) end) || Who <- lists:seq(1, 10)],
        Switched = [receive {switched, Who, N} -> N after ?WAIT_MS -> error(stuck) end || Who <- lists:seq(1, 10)],
        [ok = await(Checker, Who, 3000) || Who <- lists:seq(1, 10)],
        true = lists:any(fun(N) -> N > 0 andalso N < 3000 end, Switched),
        %% The same check with a process that certainly has to wait, over each connection and with calls to a server.
        Pool = pool(NodeB),
        Server = element(2, erpc:call(NodeB, gen_server, start, [?MODULE, [], []])),
        [begin
             [Sink ! Large || _ <- lists:seq(1, 5)],
             Checker ! {last, 2 * N - 1, by_distribution},
             gen_server:cast(Server, N),
             ok = teleport_pool:note(NodeB),
             ok = teleport_pool:send(Pool, Checker, N, {last, 2 * N, by_pool}, infinity),
             {ok, Ref} = teleport_pool:request(Pool, Server, N, '$gen_call', last, infinity),
             {reply, N} = answer(Ref)
         end || N <- lists:seq(1, 10)],
        ok = await(Checker, last, 20)
    end).

%% ---- cases: requests ----

requests(_Config) ->
    {PeerA, NodeB, _} = pair(),
    on(PeerA, fun() ->
        Pool = pool(NodeB),
        {ok, Server} = erpc:call(NodeB, gen_server, start, [{local, pool_server}, ?MODULE, [], []]),
        {ok, Machine} = erpc:call(NodeB, gen_statem, start, [{local, pool_statem}, ?MODULE, [statem], []]),
        {ok, Events} = erpc:call(NodeB, gen_event, start, [{local, pool_event}]),
        ok = gen_event:add_handler({pool_event, NodeB}, ?MODULE, []),
        Large = binary:copy(<<"x">>, 5000000),
        [begin
             {reply, {echo, Term}} = call(Pool, To, {echo, Term}),
             {reply, {echo, Term}} = call(Pool, Other, {echo, Term}),
             {reply, {echo, Term}} = call(Pool, Manager, self(), {call, ?MODULE, {echo, Term}})
         end || Term <- [1, self(), Large, {Large, [Large]}], {To, Other, Manager} <- [{Server, Machine, Events}, {pool_server, pool_statem, pool_event}]],
        {reply, ok} = call(Pool, pool_event, self(), {sync_notify, x}),
        {reply, twice} = call(Pool, Server, twice),
        receive {[alias | _], _} = Again -> error({stray, Again}) after 0 -> ok end,
        %% Many requests at a time, answered in a different order.
        Refs = [element(2, teleport_pool:request(Pool, Server, N, '$gen_call', {later, 2000 - N, N}, infinity)) || N <- lists:seq(1, 2000)],
        %% When these calls return, each connection has delivered everything that was sent before them.
        ok = by_each(Pool, Server),
        {reply, ok} = call(Pool, Server, answer_all),
        [{reply, N} = answer(Ref) || {N, Ref} <- lists:zip(lists:seq(1, 2000), Refs)],
        Callers = [spawn_monitor(fun() -> [{reply, {echo, N}} = call(Pool, Server, {echo, N}) || N <- lists:seq(1, 200)] end) || _ <- lists:seq(1, 50)],
        [receive {'DOWN', Monitor, process, Pid, Reason} -> normal = Reason after ?WAIT_MS -> error(stuck) end || {Pid, Monitor} <- Callers],
        receive Stray -> error({stray, Stray}) after 100 -> ok end
    end).

ends_of_servers(_Config) ->
    {PeerA, NodeB, _} = pair(),
    on(PeerA, fun() ->
        Pool = pool(NodeB),
        Server = fun() -> element(2, erpc:call(NodeB, gen_server, start, [?MODULE, [], []])) end,
        {failed, noproc} = call(Pool, pool_nobody, x),
        Dead = spawn(NodeB, erlang, node, []),
        _ = until(fun() -> not erpc:call(NodeB, erlang, is_process_alive, [Dead]) end),
        {failed, noproc} = call(Pool, Dead, x),
        {failed, why} = call(Pool, Server(), {die, why}),
        {reply, last} = call(Pool, Server(), {reply_and_die, last}),
        Killed = Server(),
        Waiting = [element(2, teleport_pool:request(Pool, Killed, N, '$gen_call', never, infinity)) || N <- lists:seq(1, 20)],
        ok = by_each(Pool, Killed),
        exit(Killed, kill),
        [{failed, killed} = answer(Ref) || Ref <- Waiting],
        %% The reply exceeds the size limit.
        Huge = Server(),
        ok = erpc:call(NodeB, teleport_config, set, [#{max_message_bytes => 1000000}]),
        {failed, {too_big, _}} = call(Pool, Huge, {bytes, 2000000}),
        {reply, Smaller} = call(Pool, Huge, {bytes, 900000}),
        900000 = byte_size(Smaller),
        receive Stray -> error({stray, Stray}) after 100 -> ok end
    end).

%% Once a caller has given up or was killed, the other node keeps no state for its call.
cancelled_and_killed_callers(_Config) ->
    {PeerA, NodeB, PeerB} = pair(),
    Open = fun() -> on(PeerB, fun() -> lists:sum([map_size(element(4, sys:get_state(Pid))) || Pid <- deliveries()]) end) end,
    Server = on(PeerB, fun() -> element(2, gen_server:start(?MODULE, [], [])) end),
    Callers = on(PeerA, fun() ->
        Pool = pool(NodeB),
        [begin
             {ok, Ref} = teleport_pool:request(Pool, Server, N, '$gen_call', never, infinity),
             true = demonitor(Ref, [flush]),
             ok = teleport_pool:cancel(Pool, N, Ref)
         end || N <- lists:seq(1, 50)],
        {reply, {echo, 1}} = call(Pool, Server, {echo, 1}),
        [spawn(fun() -> lost = call(Pool, Server, never) end) || _ <- lists:seq(1, 20)]
    end),
    _ = until(fun() -> Open() =:= 20 end),
    _ = on(PeerA, fun() -> [exit(Caller, kill) || Caller <- Callers] end),
    _ = until(fun() -> Open() =:= 0 end),
    %% Neither a caller nor the server is monitored any more.
    [] = on(PeerB, fun() -> lists:append([Monitors || Pid <- deliveries(), {monitors, Monitors} <- [process_info(Pid, monitors)]]) end),
    ok.

lost_connections(_Config) ->
    {PeerA, NodeB, PeerB} = pair(),
    Server = on(PeerB, fun() -> element(2, gen_server:start(?MODULE, [], [])) end),
    Checker = on(PeerB, fun() -> spawn(?MODULE, check_order, [#{}, []]) end),
    [begin
         Test = self(),
         Waiting = beamway_peer:async(fun() ->
             on(PeerA, fun() ->
                 Pool = pool(NodeB),
                 Refs = [element(2, teleport_pool:request(Pool, Server, N, '$gen_call', never, infinity)) || N <- lists:seq(1, 30)],
                 {reply, _} = call(Pool, Server, {echo, x}),
                 register(pool_asker, self()),
                 [lost = answer(Ref) || Ref <- Refs],
                 %% Each caller gets exactly one message, and senders that still use the old pool get an error as well.
                 receive Stray -> error({stray, Stray}) after 200 -> ok end,
                 [gone = teleport_pool:send(Pool, Checker, N, {x, 0, x}, Wait) || N <- lists:seq(1, 10), Wait <- [0, 100, infinity]],
                 [gone = teleport_pool:request(Pool, Checker, N, '$gen_call', x, 0) || N <- lists:seq(1, 10)],
                 receive Stray2 -> error({stray, Stray2}) after 100 -> ok end
             end)
         end),
         _ = until(fun() -> on(PeerA, fun() -> whereis(pool_asker) end) =/= undefined end),
         ok = End(PeerA, PeerB, Test),
         ok = beamway_peer:await(Waiting),
         %% The pool is opened again when a process needs it.
         ok = on(PeerA, fun() ->
             Pool = pool(NodeB),
             ok = post(Pool, Checker, {{again, self()}, 1, x}),
             await(Checker, {again, self()}, 1)
         end)
     end || End <- [%% The peer's ends are killed, our writers are killed, our ends are killed.
                    fun(_, B, _) -> on(B, fun() -> [exit(Pid, kill) || Pid <- deliveries()], ok end) end,
                    fun(A, _, _) -> on(A, fun() -> [exit(Writer, kill) || {connection, _, _, {Writer, _}, _} <- ets:tab2list(teleport_pool)], ok end) end,
                    fun(A, _, _) -> on(A, fun() -> [exit(Pid, kill) || {connection, _, Pid, _, _} <- ets:tab2list(teleport_pool)], ok end) end]],
    ok.

%% Each node sends 100 MB, with large replies in the other direction; neither waits for the other.
both_ends_send(_Config) ->
    {PeerA, NodeB, PeerB} = pair(),
    NodeA = on(PeerA, fun() -> node() end),
    Load = fun(Other) ->
                   Pool = pool(Other),
                   Checker = checker(Other),
                   Server = element(2, erpc:call(Other, gen_server, start, [?MODULE, [], []])),
                   Large = binary:copy(<<"x">>, 1000000),
                   Casts = [spawn_monitor(fun() -> [ok = post(Pool, Checker, {Who, N, Large}) || N <- lists:seq(1, 25)] end) || Who <- lists:seq(1, 4)],
                   Calls = [spawn_monitor(fun() -> [{reply, {echo, Large}} = call(Pool, Server, {echo, Large}) || _ <- lists:seq(1, 25)] end) || _ <- lists:seq(1, 4)],
                   [receive {'DOWN', Monitor, process, Pid, Reason} -> normal = Reason after ?WAIT_MS -> error(stuck) end || {Pid, Monitor} <- Casts ++ Calls],
                   [ok = await(Checker, Who, 25) || Who <- lists:seq(1, 4)],
                   ok
           end,
    Both = [beamway_peer:async(fun() -> on(Peer, fun() -> Load(Other) end) end) || {Peer, Other} <- [{PeerA, NodeB}, {PeerB, NodeA}]],
    [ok = beamway_peer:await(One) || One <- Both],
    ok.

%% ---- cases: nodes that hang and end ----

a_hung_peer(_Config) ->
    {PeerA, NodeB, PeerB} = pair(),
    {_, NodeC} = start(),
    Checker = on(PeerB, fun() -> spawn(?MODULE, check_order, [#{}, []]) end),
    ok = on(PeerA, fun() -> true = net_kernel:connect_node(NodeC), _ = pool(NodeB), _ = pool(NodeC), ok end),
    ok = beamway_peer:sigstop(PeerB),
    Sent = on(PeerA, fun() ->
        Pool = pool(NodeB),
        Megabyte = binary:copy(<<"x">>, 1000000),
        Filled = fill(Pool, Checker, Megabyte, 1),
        true = Filled < 40,
        %% A sender whose time limit is 0 never waits; with any other limit it waits exactly that long.
        {Us, {error, overload}} = timer:tc(fun() -> teleport_pool:send(Pool, Checker, k, {k, Filled, x}, 0) end),
        {Us2, {error, timeout}} = timer:tc(fun() -> teleport_pool:send(Pool, Checker, k, {k, Filled, x}, 300) end),
        {error, overload} = teleport_pool:request(Pool, Checker, k, '$gen_call', x, 0),
        {error, timeout} = teleport_pool:request(Pool, Checker, k, '$gen_call', x, 10),
        true = Us < 100000,
        true = Us2 >= 300000 andalso Us2 < 5000000,
        %% Others wait without a limit, and one of them is killed.
        Waiting = spawn(fun() -> ok = teleport_pool:send(Pool, Checker, k, {killed, 1, x}, infinity) end),
        Patient = spawn(fun() -> ok = teleport_pool:send(Pool, Checker, k, {patient, 1, x}, infinity) end),
        _ = until(fun() -> [{status, waiting}, {status, waiting}] =:= [process_info(Pid, status) || Pid <- [Waiting, Patient]] end),
        exit(Waiting, kill),
        %% Senders that have given up are forgotten, and messages to another node are not delayed.
        [{error, timeout} = teleport_pool:send(Pool, Checker, k, {k, Filled, x}, 1) || _ <- lists:seq(1, 100)],
        _ = until(fun() -> lists:sum([map_size(element(6, sys:get_state(Pid))) || {connection, {Node, _}, Pid, _, _} <- ets:tab2list(teleport_pool), Node =:= NodeB]) =< 2 end),
        Other = checker(NodeC),
        PoolC = pool(NodeC),
        [ok = teleport_pool:send(PoolC, Other, N rem 5, {N rem 5, N div 5 + 1, Megabyte}, infinity) || N <- lists:seq(0, 49)],
        [ok = await(Other, Who, 10) || Who <- lists:seq(0, 4)],
        {Us3, _} = timer:tc(fun() -> stage(NodeB) end),
        true = Us3 < 1000000,
        receive Stray -> error({stray, Stray}) after 100 -> ok end,
        Filled - 1
    end),
    ok = beamway_peer:sigcont(PeerB),
    on(PeerA, fun() ->
        ok = await(Checker, k, Sent),
        ok = await(Checker, patient, 1),
        ok = teleport_pool:send(pool(NodeB), Checker, k, {k, Sent + 1, x}, infinity),
        await(Checker, k, Sent + 1)
    end).

%% Sends numbered messages until there is no room for one, and returns the number of that message.
fill(Pool, Checker, Data, N) ->
    case teleport_pool:send(Pool, Checker, k, {k, N, Data}, 0) of
        ok -> fill(Pool, Checker, Data, N + 1);
        {error, overload} ->
            %% The socket may still accept a few more bytes.
            receive after 300 -> ok end,
            case teleport_pool:send(Pool, Checker, k, {k, N, Data}, 0) of
                ok -> fill(Pool, Checker, Data, N + 1);
                {error, overload} -> N
            end
    end.

%% The distribution closes its connection to the hung peer. After that no part of the pool is left here, nor on the peer
%% once it runs again. Neither node runs `global', because its protocol requests locks from a node that has just been
%% disconnected, and so reconnects to it.
a_hung_peer_that_is_given_up(_Config) ->
    {PeerA, NodeB, PeerB} = pair(#{args => ["-connect_all", "false"]}),
    Checker = on(PeerB, fun() -> spawn(?MODULE, check_order, [#{}, []]) end),
    Before = on(PeerA, fun() -> left() end),
    BeforeB = on(PeerB, fun() -> left() end),
    ok = on(PeerA, fun() -> _ = pool(NodeB), ok end),
    ok = beamway_peer:sigstop(PeerB),
    on(PeerA, fun() ->
        Pool = pool(NodeB),
        _ = fill(Pool, Checker, binary:copy(<<"x">>, 1000000), 1),
        Self = self(),
        Asker = spawn(fun() -> {ok, Ref} = teleport_pool:request(Pool, Checker, other, '$gen_call', x, infinity), Self ! asked, lost = answer(Ref), Self ! lost end),
        Waiting = spawn(fun() -> gone = teleport_pool:send(Pool, Checker, k, x, infinity), Self ! gone end),
        receive asked -> ok after ?WAIT_MS -> error(not_asked) end,
        _ = until(fun() -> {status, waiting} =:= process_info(Waiting, status) end),
        true = erlang:disconnect_node(NodeB),
        [receive Ended -> ok after 3000 -> error({not_ended, Ended, process_info(Asker), process_info(Waiting)}) end || Ended <- [lost, gone]],
        _ = until(fun() -> {Processes, Ports} = left(), Processes =:= 0 andalso Ports < element(2, Before) end),
        _ = until(fun() -> none =:= teleport_pool:lookup(NodeB) end),
        [] = [Key || {?MODULE, _} = Key <- persistent_term:get()],
        [] = ets:tab2list(teleport_pool),
        ok
    end),
    ok = beamway_peer:sigcont(PeerB),
    _ = until(fun() -> {Processes, Ports} = on(PeerB, fun() -> left() end), Processes =:= 0 andalso Ports =< element(2, BeforeB) + 1 end),
    ok.

killed_senders_leave_nothing(_Config) ->
    {PeerA, NodeB, _} = pair(),
    on(PeerA, fun() ->
        Pool = pool(NodeB),
        Sink = spawn(NodeB, ?MODULE, waits, [self()]),
        Data = binary:copy(<<"x">>, 10000),
        [begin
             Sender = spawn(fun() -> flood(Pool, Sink, Data) end),
             receive after N rem 7 -> exit(Sender, kill) end
         end || N <- lists:seq(1, 300)],
        _ = until(fun() -> queued(NodeB) =:= 0 end),
        ok
    end).

flood(Pool, Sink, Data) ->
    ok = post(Pool, Sink, Data),
    flood(Pool, Sink, Data).

%% Streams of numbers keep running while pools are shut down cleanly and opened again. No number is lost, and none
%% overtakes another.
receiver_stops(_Config) ->
    {PeerA, NodeB, PeerB} = pair(),
    Checker = on(PeerB, fun() -> spawn(?MODULE, check_order, [#{}, []]) end),
    Server = on(PeerB, fun() -> element(2, gen_server:start(?MODULE, [], [])) end),
    Senders = on(PeerA, fun() ->
        Pool = pool(NodeB),
        Late = spawn(fun() ->
                             {ok, Ref} = teleport_pool:request(Pool, Server, late, '$gen_call', {later, 1, in_time}, infinity),
                             Answer = answer(Ref),
                             receive {give, From} -> From ! {self(), Answer} end
                     end),
        [Late | [spawn(fun() -> stream(NodeB, Checker, Who, 1) end) || Who <- lists:seq(1, 8)]]
    end),
    Going = fun(N) -> on(PeerA, fun() -> [ok = await(Checker, Who, N) || Who <- lists:seq(1, 8)], ok end) end,
    ok = Going(100),
    %% The call is answered while the application stops, and the stop does not wait for it.
    Stopping = beamway_peer:async(fun() -> stop_pools(PeerB) end),
    _ = until(fun() -> on(PeerA, fun() -> element(1, stage(NodeB)) =/= open end) end),
    ok = on(PeerA, fun() -> [true = sent(Sender) < sent(Sender) || Sender <- tl(Senders)], ok end),
    ok = on(PeerB, fun() -> gen_server:call(Server, answer_all) end),
    ok = beamway_peer:await(Stopping),
    Counts = on(PeerA, fun() -> [sent(Sender) || Sender <- tl(Senders)] end),
    ok = Going(lists:max(Counts)),
    ok = start_pools(PeerB),
    ok = on(PeerA, fun() -> _ = pool(NodeB), ok end),
    on(PeerA, fun() ->
        hd(Senders) ! {give, self()},
        receive {_, Answer} -> {reply, in_time} = Answer after ?WAIT_MS -> error(not_answered) end,
        Totals = [begin Sender ! {stop, self()}, receive {Sender, Last} -> Last after ?WAIT_MS -> error(stuck) end end || Sender <- tl(Senders)],
        [ok = await(Checker, Who, Last) || {Who, Last} <- lists:zip(lists:seq(1, 8), Totals)],
        ok
    end).

%% Uses the pool if there is one and otherwise the distribution, as teleport does.
stream(Node, To, Who, N) ->
    Message = {Who, N, payload(N)},
    Way = case teleport_pool:lookup(Node) of none -> gone; Pool -> post(Pool, To, Message) end,
    _ = Way =:= gone andalso begin ok = teleport_pool:note(Node), To ! Message end,
    receive
        {count, From} -> From ! {self(), N}, stream(Node, To, Who, N + 1);
        {stop, From} -> From ! {self(), N}
    after 0 -> stream(Node, To, Who, N + 1)
    end.

sent(Sender) ->
    Sender ! {count, self()},
    receive {Sender, N} -> N after ?WAIT_MS -> error(stuck) end.

%% Queued messages are delivered before the application stops.
sender_stops(_Config) ->
    {PeerA, NodeB, _} = pair(),
    Checker = on(PeerA, fun() ->
        Pool = pool(NodeB),
        Checker = checker(NodeB),
        [ok = teleport_pool:send(Pool, Checker, Who, {Who, N, payload(100 * N)}, infinity) || N <- lists:seq(1, 100), Who <- lists:seq(1, 4)],
        Checker
    end),
    ok = stop_pools(PeerA),
    on(PeerA, fun() -> [ok = await(Checker, Who, 100) || Who <- lists:seq(1, 4)], ok end).

node_restarts(_Config) ->
    {PeerA, _} = start(),
    Name = beamway_peer:unique_name("restarts"),
    [begin
         {PeerB, NodeB} = start(#{name => Name}),
         ok = on(PeerA, fun() ->
             true = net_kernel:connect_node(NodeB),
             Pool = pool(NodeB),
             Checker = checker(NodeB),
             [ok = post(Pool, Checker, {k, N, payload(N)}) || N <- lists:seq(1, 100)],
             ok = await(Checker, k, 100),
             Ref = element(2, teleport_pool:request(Pool, Checker, k, '$gen_call', x, infinity)),
             put(Name, Ref),
             _ = [register(pool_before, spawn(fun() -> lost = call(Pool, Checker, x), receive after infinity -> ok end end)) || whereis(pool_before) =:= undefined],
             ok
         end),
         ok = End(PeerB),
         _ = until(fun() -> on(PeerA, fun() -> nodes(connected) =:= [] end) end),
         ok = on(PeerA, fun() -> _ = until(fun() -> teleport_pool:lookup(NodeB) =:= none andalso supervisor:which_children(teleport_pool_connection_sup) =:= [] end), ok end)
     end || End <- [fun beamway_peer:kill9/1, fun beamway_peer:halt_node/1, fun beamway_peer:kill9/1]],
    ok.

manager_is_killed(_Config) ->
    {PeerA, NodeB, _} = pair(),
    on(PeerA, fun() ->
        Echo = spawn(NodeB, ?MODULE, echo, []),
        %% The old pool may still exist.
        Arrives = fun(N) ->
                          until(fun() ->
                                    _ = post(pool(NodeB), Echo, {self(), N}),
                                    receive {echo, N} -> true after 500 -> false end
                                end)
                  end,
        [begin
             true = Arrives(Which),
             Pool = pool(NodeB),
             Before = whereis(Which),
             exit(Before, kill),
             _ = until(fun() -> not lists:member(whereis(Which), [undefined, Before]) end),
             _ = until(fun() -> lists:member(teleport_pool:send(Pool, Echo, k, {self(), late}, 1000), [ok, gone]) end)
         end || Which <- [teleport_pool, teleport_pool_connection_sup, teleport_pool_delivery_sup, teleport_pool_listener]],
        true = Arrives(last),
        ok
    end).

code_is_loaded_twice(_Config) ->
    {PeerA, NodeB, PeerB} = pair(),
    Checker = on(PeerB, fun() -> spawn(?MODULE, check_order, [#{}, []]) end),
    Pids = fun() -> on(PeerA, fun() -> _ = pool(NodeB), lists:sort([Pid || {connection, _, Pid, _, _} <- ets:tab2list(teleport_pool)]) end) end,
    Before = Pids(),
    [ok = on(Peer, fun() ->
         [begin _ = code:purge(Module), {module, Module} = code:load_file(Module) end
          || _ <- [1, 2, 3], Module <- [teleport_pool, teleport_pool_connection, teleport_pool_delivery, teleport_pool_queue, teleport_pool_socket, teleport_pool_frame, teleport_pool_handshake]],
         ok
     end) || Peer <- [PeerA, PeerB]],
    Before = Pids(),
    on(PeerA, fun() -> [ok = post(pool(NodeB), Checker, {k, N, payload(N)}) || N <- lists:seq(1, 100)], await(Checker, k, 100) end).

options(_Config) ->
    %% The host name may resolve to a different address of the loopback interface, and without the option the pool
    %% would listen on 127.0.0.1.
    {Host, Address} = {"127.0.0.2", {127, 0, 0, 2}},
    {PeerA, NodeA} = start(#{host => Host, pool => #{pool => 1}}),
    {_, None} = start(#{host => Host, pool => #{pool => 0}}),
    {Low, High} = {42311, 42330},
    {PeerB, NodeB} = start(#{host => Host, pool => #{pool => 2, ports => {Low, High}}, args => ["-kernel", "inet_dist_use_interface", "{127,0,0,2}"]}),
    {ok, Taken} = gen_tcp:listen(Low, [{ip, Address}]),
    ok = on(PeerA, fun() ->
        [true = net_kernel:connect_node(Node) || Node <- [None, NodeB]],
        {paused, <<"its option pool is 0">>} = no_pool(None),
        {NodeB, 1} = pool(NodeB),
        [{_, Pid, _, _}] = supervisor:which_children(teleport_pool_connection_sup),
        {links, Links} = process_info(Pid, links),
        [{ok, {Address, Port}}] = [inet:peername(Socket) || Socket <- Links, is_port(Socket)],
        true = Port > Low andalso Port =< High,
        ok
    end),
    ok = gen_tcp:close(Taken),
    ok = on(PeerB, fun() -> {NodeA, 2} = pool(NodeA), ok end).

%% ---- cases: access control ----

%% Returns the address on which the node listens for its peer.
port(Peer, Node) ->
    {ok, #{ip := Ip, port := Port}} = beamway_peer:call(Peer, teleport_pool_listener, offer, [Node]),
    {Ip, Port}.

connect({Ip, Port}) ->
    {ok, Socket} = gen_tcp:connect(Ip, Port, [binary, {active, false}, {packet, 4}], 10000),
    Socket.

closed(Socket) ->
    case gen_tcp:recv(Socket, 0, 20000) of
        {ok, _} -> closed(Socket);
        {error, Reason} -> true = lists:member(Reason, [closed, econnreset]), closed
    end.

hello(Caller, Acceptor) when is_atom(Caller) -> hello(atom_to_binary(Caller), Acceptor);
hello(Caller, Acceptor) when is_atom(Acceptor) -> hello(Caller, atom_to_binary(Acceptor));
hello(C, A) ->
    <<"BWTP", 3, $h, (byte_size(C)):16, C/binary, (byte_size(A)):16, A/binary, 0:256>>.

mac(Cookie, Role, Hello, Nonce) -> crypto:mac(hmac, sha256, Cookie, [<<"beamway pool ", Role/binary, 0>>, Hello, Nonce]).

challenged(At, Hello) ->
    Socket = connect(At),
    ok = gen_tcp:send(Socket, Hello),
    {ok, <<"BWTP", 3, $c, Nonce:32/binary>>} = gen_tcp:recv(Socket, 0, 10000),
    {Socket, Nonce}.

strangers(_Config) ->
    {PeerA, NodeB, PeerB} = pair(),
    NodeA = on(PeerA, fun() -> node() end),
    At = {Ip, Port} = port(PeerB, NodeA),
    {127, 0, 0, 1} = Ip,
    Cookie = atom_to_binary(on(PeerB, fun() -> erlang:get_cookie() end)),
    Hello = hello(NodeA, NodeB),
    Prove = fun(Word) -> {Socket, Nonce} = challenged(At, Hello), ok = gen_tcp:send(Socket, Word(Nonce)), closed = closed(Socket) end,
    Refused = fun(Word) -> Socket = connect(At), ok = gen_tcp:send(Socket, Word), closed = closed(Socket) end,
    Proof = fun(Nonce) -> <<"BWTP", 3, $p, (mac(Cookie, <<"caller">>, Hello, Nonce))/binary>> end,
    %% With a correct proof the caller is admitted and learns the pid of the process that delivers its messages.
    {Right, Nonce1} = challenged(At, Hello),
    ok = gen_tcp:send(Right, Proof(Nonce1)),
    {ok, <<"BWTP", 3, $w, Mac/binary>>} = gen_tcp:recv(Right, 0, 10000),
    Mac = mac(Cookie, <<"acceptor">>, Hello, Nonce1),
    {ok, Packet} = gen_tcp:recv(Right, 0, 10000),
    [{ready, Delivery}] = teleport_pool_frame:decode(Packet),
    [Delivery] = on(PeerB, fun() -> deliveries() end),
    %% A proof is rejected if it is replayed, was computed for another node or the other role, or with a different cookie or version.
    [Prove(Word) || Word <- [fun(_) -> Proof(Nonce1) end,
                             fun(Nonce) -> <<"BWTP", 3, $p, (mac(<<"other">>, <<"caller">>, Hello, Nonce))/binary>> end,
                             fun(Nonce) -> <<"BWTP", 3, $p, (mac(Cookie, <<"acceptor">>, Hello, Nonce))/binary>> end,
                             fun(Nonce) -> <<"BWTP", 3, $p, (mac(Cookie, <<"caller">>, hello(NodeA, NodeA), Nonce))/binary>> end,
                             fun(Nonce) -> <<"BWTP", 3, $w, (mac(Cookie, <<"acceptor">>, Hello, Nonce))/binary>> end,
                             fun(Nonce) -> <<"BWTP", 2, $p, (mac(Cookie, <<"caller">>, Hello, Nonce))/binary>> end,
                             fun(_) -> <<>> end, fun(_) -> <<131, 119, 14, "stranger3@pool">> end]],
    Strange = fun(N) -> <<"stranger", (integer_to_binary(N))/binary, "@pool">> end,
    [Refused(Word) || Word <- [hello(Strange(1), NodeB), hello(NodeA, Strange(2)), hello(NodeB, NodeB), <<"GET / HTTP/1.1">>, <<>>, <<"BWTP", 2, $h, 0:400>>,
                               <<"BWTP", 3, $h, 0:400>>, binary:copy(<<"x">>, 1025), binary:part(Hello, 0, byte_size(Hello) - 1), <<Hello/binary, 0>>]],
    [badarg = on(PeerB, fun() -> try binary_to_existing_atom(Strange(N)) catch error:Reason -> Reason end end) || N <- [1, 2, 3]],
    %% The caller announces a packet that is too large, sends only part of a packet, or sends nothing.
    [begin
         {ok, Socket} = gen_tcp:connect(Ip, Port, [binary, {active, false}], 10000),
         ok = gen_tcp:send(Socket, Bytes),
         closed = closed(Socket)
     end || Bytes <- [<<16#7fffffff:32, "BWTP">>, <<16#ffffffff:32>>, <<1025:32>>, <<16:32, "BWTP">>, <<>>]],
    [Delivery] = until(fun() -> on(PeerB, fun() -> deliveries() end) end),
    ok = gen_tcp:close(Right),
    _ = until(fun() -> on(PeerB, fun() -> deliveries() end) =:= [] end),
    ok.

too_many_strangers(_Config) ->
    {PeerA, NodeB, PeerB} = pair(),
    At = port(PeerB, on(PeerA, fun() -> node() end)),
    Some = [connect(At) || _ <- lists:seq(1, 63)],
    %% Only one of the three connections is admitted.
    {paused, _} = on(PeerA, fun() -> no_pool(NodeB) end),
    Sockets = Some ++ [connect(At) || _ <- lists:seq(1, 100)],
    true = on(PeerB, fun() -> length(deliveries()) end) =< 64,
    %% Meanwhile the distribution carries the messages. Afterwards there is a pool and nothing else is left over.
    _ = on(PeerA, fun() -> pool(NodeB) end),
    [closed = closed(Socket) || Socket <- Sockets],
    _ = until(fun() -> on(PeerA, fun() -> length(supervisor:which_children(teleport_pool_connection_sup)) end) =:= 3 end),
    _ = until(fun() -> on(PeerB, fun() -> length(deliveries()) end) =:= 3 end),
    ok.

another_cookie(_Config) ->
    {PeerA, NodeB, PeerB} = pair(#{log => log_file()}),
    NodeA = on(PeerA, fun() -> node() end),
    ok = on(PeerB, fun() -> true = erlang:set_cookie(NodeA, another), ok end),
    ok = on(PeerA, fun() ->
        {paused, <<"the peer refuses: another cookie">>} = no_pool(NodeB),
        ok
    end),
    ok = on(PeerB, fun() -> true = erlang:set_cookie(NodeA, erlang:get_cookie()), ok end),
    _ = on(PeerA, fun() -> pool(NodeB) end),
    ok.

log_file() -> filename:join(beamway_peer:new_folder("teleport-pool"), "log").

%% If a peer that knows the cookie sends invalid terms, only its own connection is closed.
words_of_no_node(_Config) ->
    {PeerA, NodeB, PeerB} = pair(),
    NodeA = on(PeerA, fun() -> node() end),
    At = port(PeerB, NodeA),
    Cookie = atom_to_binary(on(PeerB, fun() -> erlang:get_cookie() end)),
    Hello = hello(NodeA, NodeB),
    ok = on(PeerA, fun() -> _ = pool(NodeB), ok end),
    [begin
         {Socket, Nonce} = challenged(At, Hello),
         ok = gen_tcp:send(Socket, <<"BWTP", 3, $p, (mac(Cookie, <<"caller">>, Hello, Nonce))/binary>>),
         {ok, _} = gen_tcp:recv(Socket, 0, 10000),
         {ok, _} = gen_tcp:recv(Socket, 0, 10000),
         ok = gen_tcp:send(Socket, Word),
         closed = closed(Socket)
     end || Word <- [<<1>>, <<2:32, 0, 131>>, <<5:32, 0, 131, 255, 255, 255>>, element(1, teleport_pool_frame:encode(nonsense)), element(1, teleport_pool_frame:encode({a, b, c, d}))]],
    on(PeerA, fun() ->
        Pool = pool(NodeB),
        Checker = checker(NodeB),
        [ok = post(Pool, Checker, {k, N, x}) || N <- lists:seq(1, 10)],
        await(Checker, k, 10)
    end).

%% Runs on two hosts whose firewall lets through only the distribution.
blocked_port(_Config) -> on_two_hosts(fun blocked/1).

on_two_hosts(Case) ->
    case os:cmd("id -u") of
        "0\n" ->
            case beamway_netns:pair("tlp") of
                {ok, Net} -> try Case(Net) after beamway_peer:stop_started(), beamway_netns:delete(Net) end;
                {error, Why} -> {skip, {rights, Why}}
            end;
        _ -> {skip, {rights, "needs root to make network namespaces and a firewall"}}
    end.

blocked(#{spaces := [SpaceA, SpaceB], addresses := [AddressA, AddressB]}) ->
    Log = log_file(),
    Args = ["-kernel", "inet_dist_listen_min", "42400", "inet_dist_listen_max", "42410"],
    {PeerA, _} = start(#{host => AddressA, wrapper => beamway_netns:host(SpaceA), args => Args, log => Log}),
    %% Otherwise the kernel might choose one of the ports that the firewall lets through.
    {PeerB, NodeB} = start(#{host => AddressB, wrapper => beamway_netns:host(SpaceB), args => Args, pool => #{ports => {42420, 42430}}}),
    "" = beamway_netns:in(SpaceB, "iptables --append INPUT --protocol tcp --syn --destination-port 42400:42410 --jump ACCEPT"
                                  " && iptables --append INPUT --protocol tcp --syn --destination-port " ++ os:getenv("ERL_EPMD_PORT", "4369") ++ " --jump ACCEPT"
                                  " && iptables --append INPUT --protocol tcp --syn --jump REJECT --reject-with tcp-reset"),
    ok = on(PeerA, fun() ->
        true = net_kernel:connect_node(NodeB),
        {paused, Reason} = no_pool(NodeB),
        {match, _} = re:run(Reason, "^" ++ AddressB ++ ":424[23][0-9]: connection refused$"),
        %% The node keeps retrying, at increasing intervals.
        _ = until(fun() -> _ = teleport_pool:lookup(NodeB), failures(NodeB) >= 3 end),
        ok
    end),
    {match, [_]} = re:run(beamway_peer:log_text(Log), "no pool of connections", [global]),
    %% The firewall now drops packets silently.
    "" = beamway_netns:in(SpaceB, "iptables --delete INPUT 3 && iptables --append INPUT --protocol tcp --syn --jump DROP"),
    ok = on(PeerA, fun() ->
        Failures = failures(NodeB),
        _ = until(fun() -> _ = teleport_pool:lookup(NodeB), failures(NodeB) > Failures end),
        {_, Reason} = stage(NodeB),
        {match, _} = re:run(Reason, "no answer in time$"),
        ok
    end),
    "" = beamway_netns:in(SpaceB, "iptables --flush INPUT"),
    ok = on(PeerA, fun() ->
        Checker = checker(NodeB),
        Pool = pool(NodeB),
        ok = post(Pool, Checker, {k, 1, x}),
        await(Checker, k, 1)
    end),
    %% The port is not open to others: it listens on the address at which the peer has reached this node.
    {{10, _, _, _}, _} = port(PeerB, on(PeerA, fun() -> node() end)),
    ok.

%% Only the network path of the pool goes silent. A waiting call fails, whether keepalive probes or unacknowledged data
%% detect it, and the distribution is not affected.
silent_path(_Config) -> on_two_hosts(fun silent/1).

silent(#{spaces := [SpaceA, SpaceB], addresses := [AddressA, AddressB]}) ->
    Args = ["-kernel", "net_ticktime", "8", "inet_dist_listen_min", "42400", "inet_dist_listen_max", "42410"],
    {PeerA, NodeA} = start(#{host => AddressA, wrapper => beamway_netns:host(SpaceA), args => Args}),
    {PeerB, NodeB} = start(#{host => AddressB, wrapper => beamway_netns:host(SpaceB), args => Args}),
    true = beamway_peer:call(PeerA, net_kernel, connect_node, [NodeB]),
    {_, Port} = port(PeerB, NodeA),
    Rules = fun(Change) ->
                    [begin
                         Rule = ["iptables --", Change, " ", Chain, " --protocol tcp --", End, "-port ", integer_to_list(Port), " --jump DROP"],
                         "" = beamway_netns:in(SpaceB, lists:flatten(Rule))
                     end || {Chain, End} <- [{"INPUT", "destination"}, {"OUTPUT", "source"}]]
            end,
    [begin
         {Checker, Asker} = on(PeerA, fun() ->
             Pool = pool(NodeB),
             Checker = checker(NodeB),
             ok = post(Pool, Checker, {k, 1, x}),
             ok = await(Checker, k, 1),
             Self = self(),
             Asker = spawn(fun() ->
                                   {ok, Ref} = teleport_pool:request(Pool, Checker, k, '$gen_call', x, infinity),
                                   _ = by_each(Pool, erpc:call(NodeB, teleport_nodes, start_server, [none])),
                                   Self ! asked,
                                   lost = answer(Ref),
                                   exit(told)
                           end),
             receive asked -> ok after ?WAIT_MS -> error(stuck) end,
             {Checker, Asker}
         end),
         _ = Rules("append"),
         ok = on(PeerA, fun() ->
             Monitor = monitor(process, Asker),
             _ = [ok = post(pool(NodeB), Checker, {Key, 1, x}) || Key <- Keys],
             receive {'DOWN', Monitor, process, _, told} -> ok after 25000 -> error(not_told) end,
             [NodeB] = nodes(),
             Checker ! {k, 2, by_distribution},
             await(Checker, k, 2)
         end),
         _ = Rules("delete")
     end || Keys <- [[], [1, 2, 3]]],
    ok.

failures(Node) ->
    case sys:get_state(teleport_pool) of
        #{Node := {peer, _, _, _, Failures, _, _}} -> Failures;
        #{} -> 0
    end.

never_connects(_Config) ->
    {PeerA, _} = start(#{args => ["-kernel", "dist_auto_connect", "never"]}),
    {_, NodeB} = start(#{args => ["-kernel", "dist_auto_connect", "never"]}),
    on(PeerA, fun() ->
        [none = teleport_pool:lookup(NodeB) || _ <- lists:seq(1, 10)],
        ok = gen_server:cast(teleport_pool, {want, NodeB}),
        none = stage(NodeB),
        [] = nodes(connected),
        true = net_kernel:connect_node(NodeB),
        _ = pool(NodeB),
        true = erlang:disconnect_node(NodeB),
        _ = until(fun() -> stage(NodeB) =:= none end),
        none = teleport_pool:lookup(NodeB),
        _ = until(fun() -> supervisor:which_children(teleport_pool_connection_sup) =:= [] end),
        [] = nodes(connected),
        ok
    end).

hidden_node(_Config) ->
    {PeerA, NodeB, PeerB} = pair(#{args => ["-hidden"]}),
    NodeA = on(PeerA, fun() -> [NodeB] = nodes(hidden), node() end),
    [ok = on(Peer, fun() ->
         Pool = pool(Node),
         Checker = checker(Node),
         ok = post(Pool, Checker, {k, 1, x}),
         await(Checker, k, 1)
     end) || {Peer, Node} <- [{PeerA, NodeB}, {PeerB, NodeA}]],
    ok.

%% The C node never receives a message that it does not expect.
c_node(Config) ->
    {Peer, _} = start(),
    Cookie = atom_to_list(beamway_peer:call(Peer, erlang, get_cookie, [])),
    Name = beamway_peer:unique_name("cnode"),
    Node = list_to_atom(Name ++ "@" ++ beamway_compat_nodes:host()),
    Program = beamway_compat_nodes:start_program(proplists:get_value(c_node, Config), [Name, Cookie, "accept"], []),
    ok = beamway_compat_nodes:expect_line(Program, "ready " ++ atom_to_list(Node)),
    ok = on(Peer, fun() ->
        {any, Node} ! {self(), 1},
        receive {c_node, 1} -> ok after ?WAIT_MS -> error(lost) end,
        {paused, <<"it cannot run functions, so it is not an Erlang node">>} = no_pool(Node),
        {any, Node} ! {self(), 2},
        receive {c_node, 2} -> ok after ?WAIT_MS -> error(lost) end,
        receive Stray -> error({stray, Stray}) after 100 -> ok end
    end),
    beamway_compat_nodes:stop_program(Program).

%% If the distribution is encrypted, nothing is sent in plain text; if Beamway carries it, a pool is not needed.
other_distributions(Config) ->
    ok = beamway_certificates:prepare(proplists:get_value(priv_dir, Config)),
    [begin
         {PeerA, _} = start(Carrier, #{}),
         {PeerB, NodeB} = start(Carrier, #{}),
         on(PeerA, fun() ->
             true = net_kernel:connect_node(NodeB),
             {carried, _} = no_pool(NodeB),
             none = teleport_pool:lookup(NodeB),
             [] = supervisor:which_children(teleport_pool_connection_sup)
         end),
         beamway_peer:stop_all([PeerA, PeerB])
     end || Carrier <- [inet_tls, beamway_shm, beamway_tcp]],
    ok.

%% ---- servers: gen_server, gen_statem and gen_event of one module ----

callback_mode() -> handle_event_function.

init([]) -> {ok, []};
init([statem]) -> {ok, state, []}.

handle_event({call, From}, {echo, Term}, _, _) -> {keep_state_and_data, [{reply, From, {echo, Term}}]}.

handle_event(_Event, State) -> {ok, State}.

handle_call({echo, Term}, State) -> {ok, {echo, Term}, State}.

handle_call({echo, Term}, _From, State) -> {reply, {echo, Term}, State};
handle_call({bytes, Count}, _From, State) -> {reply, binary:copy(<<0>>, Count), State};
handle_call(twice, From, State) -> gen_server:reply(From, twice), {reply, again, State};
handle_call(never, _From, State) -> {noreply, State};
handle_call(last, _From, State) -> {reply, hd(State), State};
handle_call({later, Rank, Reply}, From, State) -> {noreply, [{Rank, From, Reply} | State]};
handle_call(answer_all, _From, State) -> [gen_server:reply(To, Reply) || {_, To, Reply} <- lists:sort(State)], {reply, ok, []};
handle_call({reply_and_die, Term}, _From, State) -> {stop, shutdown, Term, State};
handle_call({die, Reason}, _From, State) -> {stop, Reason, State}.

handle_cast(N, State) -> {noreply, [N | State]}.

handle_info(_Message, State) -> {noreply, State}.
