%% SPDX-License-Identifier: Apache-2.0
%% @doc The guide's promises about messages, calls and requests, over each kind of connection. OTP is the oracle: each
%% call is also made with gen_server.
-module(teleport_promises_SUITE).

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_group/2, end_per_group/2, end_per_testcase/2]).
-export([one_order/1, ends_as_gen_server/1, requests/1, collections/1, several_nodes/1, no_room/1, a_hung_node_that_is_not_connected/1, a_hung_node_that_is_connected/1,
         confirmed/1, unconfirmed/1, c_node/1, never_connects/1, connects_once/1, random_numbers/1, destinations/1, other_behaviours/1, bad_input/1, old_functions/1,
         warned_once/1, without_the_application/1, new_code/1]).
%% Called on the nodes.
-export([take/0, init/1, handle_event/2, handle_call/2]).
-import(teleport_nodes, [on_first/2, wait_ms/0]).
-import(beamway_compat_nodes, [start_program/3, stop_program/1, expect_line/2]).

suite() -> [{timetrap, {minutes, 3}}].

all() -> teleport_nodes:all([shm, tcp, tls, stock]).

groups() ->
    All = [one_order, ends_as_gen_server, requests, collections, several_nodes, no_room, a_hung_node_that_is_not_connected, a_hung_node_that_is_connected, confirmed,
           unconfirmed, c_node, never_connects, connects_once, random_numbers, destinations, other_behaviours, bad_input, old_functions, warned_once, without_the_application,
           new_code],
    teleport_nodes:groups([shm, stock], All) ++ teleport_nodes:groups([tcp, tls], [one_order, ends_as_gen_server, no_room, a_hung_node_that_is_not_connected, confirmed]).

init_per_suite(Config) -> [{c_node, beamway_foreign_SUITE:compile_c_node(proplists:get_value(priv_dir, Config))} | Config].

end_per_suite(_Config) -> ok.

init_per_group(Kind, Config) -> teleport_nodes:start_pair(teleport_nodes:init_group(Kind, Config)).

end_per_group(_Kind, Config) -> teleport_nodes:stop_pair(Config).

end_per_testcase(_Case, Config) ->
    beamway_peer:stop_all(beamway_peer:started() -- [teleport_nodes:first(Config), teleport_nodes:second(Config)]).

%% ---- helpers on the first node ----

server(Node, Name) -> erpc:call(Node, teleport_nodes, start_server, [Name]).

outcome(Call) ->
    try {reply, Call()}
    catch exit:{Reason, {_, call, _}} -> {exit, Reason}
    end.

message() -> receive Message -> Message after wait_ms() -> error(nothing_came) end.

no_messages() -> {messages, []} = process_info(self(), messages).

%% Returns how long the function took, in milliseconds: the shortest of several runs, because other work may delay any
%% of them.
shortest(Fun) -> lists:min([element(1, timer:tc(Fun)) || _ <- lists:seq(1, 5)]) / 1000.

%% @private The loop of a process that collects the numbers it receives.
take() -> take([]).

take(Seen) ->
    receive
        {'$gen_cast', {N, _}} -> take([N | Seen]);
        {'$gen_call', From, {N, _}} -> gen_server:reply(From, N), take([N | Seen]);
        {seen, From} -> From ! {seen, lists:reverse(Seen)}, take(Seen);
        {N, _} -> take([N | Seen])
    end.

%% ---- cases ----

%% Messages from one process to one receiver arrive in order, with all functions, destinations and sizes.
one_order(Config) ->
    Kind = teleport_nodes:kind(Config),
    on_first(Config, fun(Node) ->
        Receiver = spawn(Node, ?MODULE, take, []),
        true = erpc:call(Node, erlang, register, [one_order, Receiver]),
        Dests = [Receiver, {one_order, Node}, {via, teleport, {one_order, Node}}],
        Sizes = [0, 100, 5000, 70000, 300000],
        Ways = [fun(D, M) -> ok = teleport:send(D, M) end,
                fun(D, M) -> ok = teleport:cast(D, M) end,
                fun(D, M) -> ok = teleport:send(D, M, #{timeout => wait_ms()}) end,
                fun(D, {N, _} = M) -> N = teleport:call(D, M, wait_ms()) end,
                fun(D, M) -> _ = teleport:send_request(D, M), ok end,
                fun(D, M) -> {ok, _} = teleport:cast(D, M, #{confirm => true}), ok end],
        Any = fun(List) -> lists:nth(rand:uniform(length(List)), List) end,
        Sent = lists:seq(1, 500),
        [(Any(Ways))(Any(Dests), {N, binary:copy(<<"x">>, Any(Sizes))}) || N <- Sent],
        %% The question also arrives after the messages. The order between messages over a pool and messages sent with `!'
        %% is not defined.
        _ = case Kind of stock -> teleport:send(Receiver, {seen, self()}); _ -> Receiver ! {seen, self()} end,
        Sent = receive {seen, Seen} -> Seen after wait_ms() -> error(nothing_came) end,
        exit(Receiver, kill)
    end).

ends_as_gen_server(Config) ->
    Third = element(1, {_, Gone} = teleport_nodes:start(teleport_nodes:kind(Config))),
    ok = teleport_nodes:connect(teleport_nodes:first(Config), Gone),
    Old = beamway_peer:call(Third, teleport_nodes, start_server, [none]),
    ok = beamway_peer:kill9(Third),
    on_first(Config, fun(Node) ->
        Calls = [fun(D, R, Ms) -> teleport:call(D, R, Ms) end, fun(D, R, Ms) -> teleport:call(D, R, Ms, #{on_full => error}) end, fun teleport:gs_call/3, fun gen_server:call/3],
        All = fun(Dest, Request, Ms) -> [outcome(fun() -> Call(Dest(), Request, Ms) end) || Call <- Calls] end,
        Pid = fun() -> server(Node, none) end,
        Named = fun() -> (catch server(Node, ends_server)), {ends_server, Node} end,
        [[Same, Same, Same, Same] = All(Dest, Request, wait_ms())
         || Dest <- [Pid, Named], Request <- [{echo, 1}, {die, normal}, {die, noconnection}, {die, {own, "reason"}}, {reply_and_die, x}]],
        [[{exit, timeout}] = lists:usort(All(Dest, never, 20)) || Dest <- [Pid, Named]],
        [[{exit, noproc}] = lists:usort(All(fun() -> Dest end, x, wait_ms())) || Dest <- [{nobody, Node}, {via, teleport, {nobody, Node}}]],
        _ = beamway_peer:wait_until(fun() -> not lists:member(Gone, nodes()) end, wait_ms()),
        [[{exit, {nodedown, Gone}}] = lists:usort(All(fun() -> Dest end, x, wait_ms())) || Dest <- [Old, {nobody, Gone}]],
        %% A caller is notified if its reply will never arrive, whichever function it waits in.
        Server = server(Node, none),
        Ids = [teleport:send_request(Server, never), gen_server:send_request(Server, never)],
        %% The request over the pool has arrived, because the exit signal uses the distribution.
        {echo, 1} = teleport:call(Server, {echo, 1}),
        exit(Server, stop),
        [{error, {stop, Server}}] = lists:usort([teleport:receive_response(Id, wait_ms()) || Id <- Ids]),
        no_messages()
    end).

requests(Config) ->
    on_first(Config, fun(Node) ->
        Server = server(Node, none),
        {reply, {echo, 1}} = teleport:wait_response(teleport:send_request(Server, {echo, 1}), infinity),
        Gate = teleport_nodes:gate(),
        Slow = teleport:send_request(Server, {behind, Gate, slow}, #{key => k}),
        [timeout, timeout] = [teleport:wait_response(Slow, Limit) || Limit <- [0, {abs, erlang:monotonic_time(millisecond)}]],
        Late = teleport:send_request(Server, {behind, Gate, late}),
        timeout = teleport:receive_response(Late, 0),
        no_reply = teleport:check_response(something, Slow),
        ok = teleport_nodes:open_gate(Gate),
        {reply, slow} = teleport:check_response(message(), Slow),
        %% The reply to a request whose caller has given up is dropped.
        {echo, 2} = teleport:call(Server, {echo, 2}),
        no_messages(),
        {error, {noproc, {nobody, Node}}} = teleport:wait_response(teleport:send_request({nobody, Node}, x), wait_ms()),
        exit(Server, kill)
    end).

%% Collections of requests are gen_server's own.
collections(Config) ->
    on_first(Config, fun(Node) ->
        Servers = [server(Node, none), teleport_nodes:start_server(none)],
        Dests = [{nobody, {tp_nobody, Node}} | lists:zip([there, here], Servers)],
        Ids = lists:foldl(fun({Label, Dest}, Some) -> gen_server:reqids_add(teleport:send_request(Dest, {echo, Label}), Label, Some) end, gen_server:reqids_new(), Dests),
        [{here, {reply, {echo, here}}}, {nobody, {error, {noproc, {tp_nobody, Node}}}}, {there, {reply, {echo, there}}}] = lists:sort(taken(Ids)),
        no_messages(),
        [exit(Server, kill) || Server <- Servers]
    end).

taken(Ids) ->
    case gen_server:wait_response(Ids, wait_ms(), true) of
        no_request -> [];
        {Response, Label, Left} -> [{Label, Response} | taken(Left)]
    end.

several_nodes(Config) ->
    on_first(Config, fun(Node) ->
        Here = node(),
        There = server(Node, tp_multi),
        {[{Node, {echo, 1}}], [Here, 'nobody@127.0.0.1']} = teleport:multi_call([Here, Node, 'nobody@127.0.0.1'], tp_multi, {echo, 1}),
        Local = teleport_nodes:start_server(tp_multi),
        {Replies, []} = teleport:multi_call(tp_multi, {echo, 2}),
        true = lists:sort(Replies) =:= lists:sort([{Here, {echo, 2}}, {Node, {echo, 2}}]),
        {[], [Node, Here]} = teleport:multi_call([Node, Here], tp_multi, never, 30),
        %% The requests arrive after everything that the caller has sent before.
        ok = teleport:cast({tp_multi, Node}, before),
        {[{Node, [{cast, before}]}], []} = teleport:multi_call([Node], tp_multi, log, wait_ms()),
        abcast = teleport:abcast(tp_multi, all),
        abcast = teleport:abcast([Here, Node, 'nobody@127.0.0.1'], tp_multi, some),
        [[{cast, all}, {cast, some}] = teleport:call(Server, log) || Server <- [There, Local]],
        no_messages(),
        [exit(Server, kill) || Server <- [There, Local]]
    end).

%% The node is suspended, so the messages that it does not read fill the connection to it.
no_room(Config) ->
    {Third, Node} = teleport_nodes:start(teleport_nodes:kind(Config)),
    Server = beamway_peer:call(Third, teleport_nodes, start_server, [no_room]),
    ok = teleport_nodes:connect(teleport_nodes:first(Config), Node),
    on_first(Config, fun(_) -> {echo, 1} = teleport:call(Server, {echo, 1}), ok = teleport:cast({no_room, Node}, known) end),
    ok = beamway_peer:sigstop(Third),
    on_first(Config, fun(_) ->
        Data = binary:copy(<<"x">>, 50000),
        _ = beamway_peer:wait_until(fun() -> teleport:send(Server, Data, #{on_full => error}) =:= {error, overload} end, wait_ms()),
        Metric = fun() -> teleport_metrics:counted(dropped) end,
        Before = Metric(),
        [begin
             {error, overload} = teleport:send(Dest, Data, #{on_full => error}),
             {error, overload} = teleport:cast(Dest, Data, #{on_full => error, confirm => true}),
             ok = teleport:send(Dest, Data, #{on_full => drop}),
             {Us, {error, timeout}} = timer:tc(fun() -> teleport:send(Dest, Data, #{timeout => 100}) end),
             true = Us >= 98000 andalso Us < 1000000 * beamway_runner:slowness(),
             {exit, overload} = outcome(fun() -> teleport:call(Dest, {echo, Data}, wait_ms(), #{on_full => error}) end)
         end || Dest <- [Server, {no_room, Node}]],
        2 = Metric() - Before,
        no_messages()
    end),
    ok = beamway_peer:sigcont(Third).

%% `!' and gen_server:cast never wait for a connection to be established.
a_hung_node_that_is_not_connected(Config) ->
    Kind = teleport_nodes:kind(Config),
    {Third, Node} = teleport_nodes:start(Kind, #{args => ["-kernel", "net_setuptime", "4"]}),
    {First, _} = teleport_nodes:start(Kind, #{args => ["-kernel", "net_setuptime", "4"]}),
    Pid = beamway_peer:call(Third, teleport_nodes, start_server, [hung]),
    {ok, _} = beamway_peer:call(First, pg, start, [hung_scope]),
    ok = beamway_peer:sigstop(Third),
    beamway_peer:run(First, fun() ->
        [] = nodes(connected),
        Sends = [fun(Dest) -> ok = teleport:Function(Dest, x) end || Function <- [send, cast]]
            ++ [fun(Dest) -> ok = teleport:cast(Dest, x, Options) end || Options <- [#{on_full => drop}, #{on_full => error}, #{timeout => 5000}, #{class => control}]]
            ++ [fun(_) -> abcast = teleport:abcast([Node], hung, x) end, fun(Dest) -> {ok, _} = teleport:send(Dest, x, #{confirm => true}) end,
                fun(Dest) -> _ = teleport:send_request(Dest, x) end],
        [begin
             {N, Dest, Ms} = {N, Dest, shortest(fun() -> Send(Dest) end)},
             {N, Dest, Ms, true} = {N, Dest, Ms, Ms < 20 * beamway_runner:slowness()}
         end || {N, Send} <- lists:zip(lists:seq(1, length(Sends)), Sends), Dest <- [Pid, {hung, Node}]],
        %% A single time limit covers both setting up the connection and waiting for the reply.
        [begin
             {Us, {exit, timeout}} = timer:tc(fun() -> outcome(fun() -> teleport:call(Dest, x, 300) end) end),
             true = Us < 1500000 * beamway_runner:slowness()
         end || Dest <- [Pid, {hung, Node}]]
    end, wait_ms()),
    ok = beamway_peer:sigcont(Third).

a_hung_node_that_is_connected(Config) ->
    {Third, Node} = teleport_nodes:start(teleport_nodes:kind(Config)),
    Pid = beamway_peer:call(Third, teleport_nodes, start_server, [hung]),
    ok = teleport_nodes:connect(teleport_nodes:first(Config), Node),
    ok = beamway_peer:sigstop(Third),
    on_first(Config, fun(_) ->
        [true = shortest(fun() -> ok = teleport:cast(Dest, x) end) < 20 * beamway_runner:slowness() || Dest <- [Pid, {hung, Node}]],
        {ok, Ref} = teleport:send(Pid, x, #{confirm => true}),
        [{exit, timeout} = outcome(fun() -> teleport:call(Dest, x, 100) end) || Dest <- [Pid, {hung, Node}]],
        receive {teleport, Ref, _} -> error(confirmed_by_a_hung_node) after 0 -> ok end,
        true = erlang:disconnect_node(Node),
        receive {teleport, Ref, Ended} -> {unconfirmed, {nodedown, Node}} = Ended after wait_ms() -> error(never_told) end
    end),
    ok = beamway_peer:sigcont(Third).

%% When the answer arrives, the message is in the mailbox, although the receiver reads nothing in the meantime. A large
%% message takes longer than the question.
confirmed(Config) ->
    on_first(Config, fun(Node) ->
        Receiver = spawn(Node, fun() -> receive never -> ok end end),
        true = erpc:call(Node, erlang, register, [confirmed, Receiver]),
        Count = fun() -> element(2, erpc:call(Node, erlang, process_info, [Receiver, message_queue_len])) end,
        [begin
             Before = Count(),
             {ok, Ref} = teleport:send(Dest, binary:copy(<<"x">>, Size), #{confirm => true}),
             receive {teleport, Ref, Told} -> confirmed = Told after wait_ms() -> error(not_confirmed) end,
             {Size, true} = {Size, Count() =:= Before + 1}
         end || _ <- lists:seq(1, 10), Size <- [0, 100000, 3000000], Dest <- [Receiver, {confirmed, Node}]],
        %% Messages on the same node are confirmed as well.
        {ok, Own} = teleport:send(self(), hello, #{confirm => true}),
        hello = message(),
        {teleport, Own, confirmed} = message(),
        exit(Receiver, kill)
    end).

unconfirmed(Config) ->
    {Third, Node} = teleport_nodes:start(teleport_nodes:kind(Config)),
    {ok, Plain, PlainNode} = beamway_peer:start(teleport_nodes:carrier(teleport_nodes:kind(Config))),
    [ok = teleport_nodes:connect(teleport_nodes:first(Config), To) || To <- [Node, PlainNode]],
    Told = fun(Dest) -> {ok, Ref} = teleport:cast(Dest, x, #{confirm => true}), receive {teleport, Ref, Outcome} -> Outcome after wait_ms() -> error(never_told) end end,
    on_first(Config, fun(Second) ->
        Dead = server(Second, none),
        {exit, stop} = outcome(fun() -> gen_server:call(Dead, {die, stop}) end),
        [{unconfirmed, noproc} = Told(Dest) || Dest <- [Dead, {nobody, Second}]],
        {error, noproc} = teleport:send(nobody, x, #{confirm => true}),
        {unconfirmed, {no_teleport, PlainNode}} = Told({rex, PlainNode}),
        {unconfirmed, {nodedown, 'nobody@127.0.0.1'}} = Told({rex, 'nobody@127.0.0.1'}),
        %% The server of the other node is killed at about the time the question arrives. Large messages to an
        %% unregistered name delay the waiter's monitor, so it may arrive when the next server runs.
        [begin
             Flood = spawn(fun() -> [{nobody, Second} ! binary:copy(<<"x">>, 20000000) || _ <- lists:seq(1, 5)] end),
             {ok, Ref} = Ask(Second),
             receive {teleport, Ref, _} -> ok after wait_ms() -> error(never_told) end,
             exit(Flood, kill),
             _ = beamway_peer:wait_until(fun() -> erpc:call(Second, fun() -> is_pid(whereis(teleport_server)) end) end, wait_ms())
         end || Ask <- [fun killed_while_asked/1, fun killed_before_asked/1, fun killed_before_asked/1, fun killed_before_asked/1]]
    end),
    ok = beamway_peer:sigstop(Third),
    Run = beamway_peer:async(fun() -> on_first(Config, fun(_) -> {unconfirmed, {nodedown, Node}} = Told({rex, Node}) end) end),
    ok = beamway_peer:kill9(Third),
    ok = beamway_peer:await(Run, wait_ms()),
    beamway_peer:stop(Plain).

killed_while_asked(Second) ->
    Asked = teleport:send({rex, Second}, x, #{confirm => true}),
    true = erpc:call(Second, fun() -> exit(whereis(teleport_server), kill) end),
    Asked.

%% The killer runs on the other node and acts on a message from the sender, so that the kill comes just before the
%% question.
killed_before_asked(Second) ->
    Killer = erpc:call(Second, fun() -> spawn(fun() -> receive now -> exit(whereis(teleport_server), kill) end end) end),
    ok = teleport:send(Killer, now),
    teleport:send({rex, Second}, x, #{confirm => true}).

%% The other node is a program that uses OTP's own C library and answers {Pid, Term} with {c_node, Term}.
c_node(Config) ->
    {Peer, _} = teleport_nodes:start(teleport_nodes:kind(Config)),
    Cookie = atom_to_list(beamway_peer:call(Peer, erlang, get_cookie, [])),
    Name = beamway_peer:unique_name("cnode"),
    Node = list_to_atom(Name ++ "@" ++ beamway_compat_nodes:host()),
    Program = start_program(proplists:get_value(c_node, Config), [Name, Cookie, "accept"], []),
    ok = expect_line(Program, "ready " ++ atom_to_list(Node)),
    ok = beamway_peer:run(Peer, fun() ->
        [begin
             ok = teleport:send({any, Node}, {self(), Term}, Options),
             receive {c_node, Term} -> ok after wait_ms() -> error({lost, Term, Options}) end
         end || Term <- [1, {[], 1.5, "text"}, binary:copy(<<"x">>, 300000)], Options <- [#{}, #{class => control}, #{key => 1, on_full => error}, #{timeout => 5000}]],
        ok
    end, wait_ms()),
    stop_program(Program).

%% `!' obeys this option of kernel: only net_kernel:connect_node/1 opens a connection.
never_connects(Config) -> connects_as_told(never, Config).

%% With `once', a node whose connection has ended is not connected again.
connects_once(Config) -> connects_as_told(once, Config).

connects_as_told(Option, Config) ->
    Kind = teleport_nodes:kind(Config),
    {Peer, _} = teleport_nodes:start(Kind, #{args => ["-kernel", "dist_auto_connect", atom_to_list(Option)]}),
    {_, Node} = teleport_nodes:start(Kind, #{args => ["-kernel", "dist_auto_connect", "never"]}),
    Named = {as_distribution, Node},
    beamway_peer:run(Peer, fun() ->
        case Option of
            never ->
                ok = teleport:send(Named, x),
                {'EXIT', {{nodedown, Node}, _}} = (catch teleport:call(Named, x)),
                [] = nodes(connected),
                true = net_kernel:connect_node(Node);
            once -> ok
        end,
        ok = teleport:send(Named, x),
        _ = beamway_peer:wait_until(fun() -> nodes(connected) =:= [Node] end, wait_ms()),
        Pid = server(Node, as_distribution),
        {echo, 1} = teleport:call(Pid, {echo, 1}),
        %% Once the connection is closed, no message opens a new one.
        true = erlang:disconnect_node(Node),
        [begin
             ok = teleport:send(Dest, x, Options),
             {ok, Ref} = teleport:send(Dest, x, Options#{confirm => true}),
             {teleport, Ref, {unconfirmed, {nodedown, Node}}} = message(),
             {'EXIT', {{nodedown, Node}, _}} = (catch teleport:call(Dest, {echo, 2}, wait_ms(), Options)),
             [] = nodes(connected)
         end || Dest <- [Pid, Named], Options <- [#{}, #{on_full => error}, #{way => lane}]],
        %% The operator connects the nodes explicitly.
        true = net_kernel:connect_node(Node),
        [{echo, 3} = teleport:call(Dest, {echo, 3}) || Dest <- [Pid, Named]],
        ok
    end, wait_ms()).

%% A process with its own random seed gets the same numbers as without teleport, and a process without a seed is not seeded.
random_numbers(Config) ->
    on_first(Config, fun(Node) ->
        {Pid, Old} = {server(Node, none), teleport},
        Uses = [fun() -> ok = teleport:send(Pid, x, #{unordered => true}) end,
                fun() -> {echo, x} = teleport:call(Pid, {echo, x}, wait_ms(), #{unordered => true}) end,
                fun() -> Node = Old:erpc_call(Node, erlang, node, []), ok end,
                fun() -> {[_], []} = teleport:multi_call([Node], rex, {call, erlang, node, [], group_leader()}) end],
        [begin
             _ = erase(rand_seed),
             _ = Use(),
             undefined = get(rand_seed),
             _ = rand:seed(exsss, {1, 2, 3}),
             Seed = get(rand_seed),
             _ = Use(),
             Seed = get(rand_seed)
         end || Use <- Uses],
        exit(Pid, kill)
    end).

destinations(Config) ->
    on_first(Config, fun(Node) ->
        Pid = server(Node, destinations),
        Local = teleport_nodes:start_server(destinations),
        yes = global:register_name(tp_global, Pid),
        ok = global:sync(),
        There = [Pid, {destinations, Node}, {global, tp_global}, {via, global, tp_global}, {via, teleport, {destinations, Node}}, {via, teleport, Pid}],
        Here = [Local, destinations, {destinations, node()}, {via, teleport, {destinations, node()}}],
        [begin
             ok = teleport:cast(Dest, N),
             [{cast, N}] = teleport:call(Dest, log)
         end || {N, Dest} <- lists:zip(lists:seq(1, 10), There ++ Here)],
        %% OTP's functions accept the via name.
        Via = {via, teleport, {destinations, Node}},
        {echo, 1} = gen_server:call(Via, {echo, 1}),
        ok = gen_server:cast(Via, x),
        [{cast, x}] = gen_server:call(Via, log),
        Pid = teleport:whereis_name({destinations, Node}),
        undefined = teleport:whereis_name({nobody, Node}),
        undefined = teleport:whereis_name({nobody, 'nobody@127.0.0.1'}),
        yes = teleport:register_name({other_name, node()}, spawn(fun() -> receive never -> ok end end)),
        [no, no] = [teleport:register_name(Name, Local) || Name <- [{destinations, node()}, {elsewhere, Node}]],
        ok = teleport:unregister_name({other_name, node()}),
        undefined = whereis(other_name),
        [{error, noproc} = teleport:send(Dest, x) || Dest <- [nobody, {nobody, node()}, {global, nobody}, {via, teleport, {nobody, node()}}]],
        [{exit, noproc} = outcome(fun() -> teleport:call(Dest, x) end) || Dest <- [nobody, {global, nobody}]],
        {error, {noproc, {global, nobody}}} = teleport:wait_response(teleport:send_request({global, nobody}, x), wait_ms()),
        ok = global:unregister_name(tp_global),
        [exit(Server, kill) || Server <- [Pid, Local]]
    end).

%% @private A gen_event handler that stores its events.
init(Kept) -> {ok, Kept}.
handle_event(Event, Kept) -> {ok, [Event | Kept]}.
handle_call(all, Kept) -> {ok, lists:reverse(Kept), []}.

other_behaviours(Config) ->
    on_first(Config, fun(Node) ->
        Manager = erpc:call(Node, fun() -> {ok, Pid} = gen_event:start({local, tp_events}), ok = gen_event:add_handler(Pid, ?MODULE, []), Pid end),
        [begin
             ok = teleport_gen:notify(Dest, one),
             ok = teleport_gen:sync_notify(Dest, two),
             [one, two] = teleport_gen:event_call(Dest, ?MODULE, all),
             {error, bad_module} = teleport_gen:event_call(Dest, no_handler, all, wait_ms())
         end || Dest <- [Manager, {tp_events, Node}]],
        {exit, noproc} = outcome(fun() -> teleport_gen:sync_notify({nobody, Node}, x) end),
        %% A gen_fsm receives these messages.
        Self = self(),
        Fsm = spawn(Node, fun() -> fsm(Self) end),
        ok = teleport_gen:send_event(Fsm, a),
        ok = teleport_gen:send_all_state_event(Fsm, b),
        [{'$gen_event', a}, {'$gen_all_state_event', b}] = [message(), message()],
        {'$gen_sync_event', c} = teleport_gen:sync_send_event(Fsm, c),
        {'$gen_sync_all_state_event', d} = teleport_gen:sync_send_all_state_event(Fsm, d, wait_ms()),
        {exit, timeout} = outcome(fun() -> teleport_gen:sync_send_event(Fsm, never, 20) end),
        [exit(Pid, kill) || Pid <- [Manager, Fsm]]
    end).

fsm(To) ->
    receive
        {_, _, never} -> ok;
        {Label, From, Event} -> gen:reply(From, {Label, Event});
        Message -> To ! Message
    end,
    fsm(To).

bad_input(Config) ->
    on_first(Config, fun(Node) ->
        Dest = {rex, Node},
        [{'EXIT', {{bad_option, Name, Value}, _}} = (catch Use(#{Name => Value}))
         || {Name, Value} <- [{class, fast}, {way, fast}, {unordered, 1}, {speed, 1}, {on_full, wait}, {timeout, -1}, {timeout, soon}, {confirm, yes}],
            Use <- [fun(O) -> teleport:send(Dest, x, O) end, fun(O) -> teleport:cast(Dest, x, O) end, fun(O) -> teleport:call(Dest, x, 5, O) end,
                    fun(O) -> teleport:send_request(Dest, x, O) end]],
        {'EXIT', {{bad_option, options, []}, _}} = (catch teleport:send(Dest, x, [])),
        [{'EXIT', {{bad_destination, Bad, "expected " ++ _}, _}} = (catch teleport:send(Bad, x)) || Bad <- ["name", {a, "b"}, 1, {Dest, Node}]],
        [{'EXIT', {{bad_request_id, x, "expected " ++ _}, _}} = (catch Take()) || Take <- [fun() -> teleport:wait_response(x, 1) end, fun() -> teleport:check_response(m, x) end]],
        [{'EXIT', {{bad_name, Bad, "expected " ++ _}, _}} = (catch teleport:whereis_name(Bad)) || Bad <- [name, {a, "b"}]],
        {error, [Text]} = teleport:configure(all, #{speed => 1}),
        {match, _} = re:run(Text, "speed = 1 is not valid: expected one of the options sites"),
        {error, [_]} = teleport:configure(all, #{sites => no}),
        %% Sends what a rogue node could send to the server on each node.
        Server = erpc:call(Node, erlang, whereis, [teleport_server]),
        [{teleport_server, Node} ! Rogue || Rogue <- [x, {hello}, {broadcast, pg, g, <<"no term">>, none}, {broadcast, nobody, g, <<>>, none}, {relay, [], {broadcast, pg, g, <<131>>, none}}]],
        Server = erpc:call(Node, erlang, whereis, [teleport_server]),
        {error, badarg} = gen_server:call({teleport_server, Node}, x)
    end).

%% The functions of 0.2.0 still work.
old_functions(Config) ->
    on_first(Config, fun(Node) ->
        Server = server(Node, old_server),
        %% The module names are in variables so that xref does not report the old functions.
        {Old, OldErpc} = {teleport, teleport_erpc},
        ok = Old:prime(Node),
        {[], [], [], Empty} = {Old:lanes(), Old:not_up(), Old:by_distribution(), Old:unconfirmed()},
        0 = map_size(Empty),
        {echo, 1} = Old:statem_call(Server, {echo, 1}, {clean_timeout, wait_ms()}),
        ok = Old:statem_cast(Server, x),
        Ids = Old:send_request(Server, {echo, 2}, two, Old:reqids_new(), #{class => bulk}),
        1 = Old:reqids_size(Ids),
        {{reply, {echo, 2}}, two, _} = Old:receive_response(Ids, wait_ms(), true),
        Node = Old:erpc_call(Node, erlang, node, [], #{class => bulk, timeout => wait_ms()}),
        [{ok, Node}] = Old:multicall([Node], erlang, node, []),
        ok = Old:erpc_cast(Node, erlang, node, [], #{key => 1}),
        {[{Node, {echo, 3}}], []} = Old:multi_call([Node], old_server, {echo, 3}, wait_ms(), #{class => bulk}),
        ok = Old:notify(Server, x),
        Node = OldErpc:call(Node, fun() -> node() end, #{timeout => wait_ms(), key => 1}),
        Node = OldErpc:receive_response(OldErpc:send_request(Node, erlang, node, [])),
        ok = OldErpc:multicast([Node], erlang, node, []),
        [{'EXIT', {undef, [{Module, no_such_function, [1], _} | _]}} = (catch Module:no_such_function(1)) || Module <- [teleport, teleport_erpc]],
        %% The old options are accepted as well.
        ok = teleport:configure(all, #{lanes => #{normal => 4}, on_event => none, by_reference => true}),
        ok = teleport:configure(Node, #{way => lane}),
        exit(Server, kill)
    end).

%% The first use of each old function and option is logged, and later ones are not.
warned_once(Config) ->
    Log = filename:join(beamway_peer:new_folder("teleport-old"), "log"),
    {Peer, _} = teleport_nodes:start(teleport_nodes:kind(Config), #{log => Log}),
    Old = teleport,
    ok = beamway_peer:run(Peer, fun() ->
        [begin
             ok = teleport:send(self(), x, #{class => Class, unordered => true}),
             ok = teleport:configure(all, #{lanes => #{normal => 4}}),
             ok = Old:prime(node())
         end || Class <- [bulk, control]],
        ok
    end, wait_ms()),
    Lines = ["the option class has no effect any more; beamway:class/1 sets the class of a process", "the option unordered has no effect any more",
             "the option lanes has no effect any more", "teleport:prime/1 ends with this version; use net_kernel:connect_node/1"],
    Times = fun(Line) -> length(string:split(beamway_peer:log_text(Log), Line, all)) - 1 end,
    _ = beamway_peer:wait_until(fun() -> Times(lists:last(Lines)) > 0 end, wait_ms()),
    [{Line, 1} = {Line, Times(Line)} || Line <- Lines].

%% A program does not have to check whether teleport runs.
without_the_application(Config) ->
    on_first(Config, fun(Node) ->
        Server = server(Node, none),
        ok = application:stop(teleport),
        ok = teleport:cast(Server, 1),
        [{cast, 1}] = teleport:call(Server, log),
        {reply, {echo, 1}} = teleport:wait_response(teleport:send_request(Server, {echo, 1}), wait_ms()),
        ok = application:start(teleport),
        %% An invalid option keeps it from starting, and the error names the option.
        ok = application:stop(teleport),
        ok = application:set_env(teleport, speed, fast),
        {error, {{bad_options, ["speed = fast is not valid: expected " ++ _]}, _}} = application:start(teleport),
        ok = application:unset_env(teleport, speed),
        ok = application:set_env(teleport, lanes, #{normal => 2}),
        ok = application:start(teleport),
        exit(Server, kill)
    end).

%% Loading a module twice kills processes that still run the code from before the first load.
new_code(Config) ->
    on_first(Config, fun(Node) ->
        Modules = [Module || {Module, _} <- code:all_loaded(), lists:prefix("teleport", atom_to_list(Module)), filename:basename(code:which(Module)) =:= atom_to_list(Module) ++ ".beam",
                             not lists:member(Module, [teleport_nodes, ?MODULE])],
        Servers = fun() -> [whereis(Name) || Name <- [teleport_sup, teleport_server, teleport_blocks, teleport_watcher]] end,
        Before = Servers(),
        [begin _ = code:purge(Module), {module, Module} = code:load_file(Module) end || _ <- [1, 2, 3], Module <- Modules],
        Before = Servers(),
        {ok, Ref} = teleport:send({rex, Node}, x, #{confirm => true}),
        {teleport, Ref, confirmed} = message()
    end).
