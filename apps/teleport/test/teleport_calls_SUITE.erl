%% SPDX-License-Identifier: Apache-2.0
%% @doc What can be sent and called over lanes, to whom, and how it ends when it cannot.
-module(teleport_calls_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2]).
-export([sends/1, sizes/1, gen_server_calls/1, deferred_replies/1, gen_statem_calls/1, gen_event_calls/1, fsm_labels/1, requests/1, erpc_calls/1,
         multicalls/1, global_and_via/1, local_destinations/1, servers_that_end/1, timeouts/1, confirmations/1, ten_thousand_callers/1,
         answers_that_are_too_large/1, another_limit_there/1, no_room_for_processes/1, bad_input/1, options_at_once/1, nodes_that_are_not_there/1, what_lanes_say/1]).
%% Used on the nodes.
-export([callback_mode/0, init/1, handle_event/4, handle_call/2, handle_event/2, whereis_name/1, register_name/2, unregister_name/1, send/2, hear/1, fill/1]).
-import(teleport_nodes, [on_first/2, wait_ms/0]).

suite() -> [{timetrap, {minutes, 3}}].

all() -> teleport_nodes:all([beamway | teleport_nodes:kinds()]).

groups() ->
    Both = [sends, sizes, gen_statem_calls, gen_event_calls, fsm_labels, requests, erpc_calls, multicalls, global_and_via, local_destinations, timeouts,
            confirmations, ten_thousand_callers, bad_input, options_at_once, nodes_that_are_not_there],
    Lanes = [gen_server_calls, deferred_replies, servers_that_end, answers_that_are_too_large, another_limit_there, no_room_for_processes, what_lanes_say],
    teleport_nodes:groups(teleport_nodes:kinds(), Both ++ Lanes) ++ teleport_nodes:groups([beamway], Both).

init_per_group(Kind, Config) -> teleport_nodes:start_pair(teleport_nodes:init_group(Kind, Config)).

end_per_group(_Kind, Config) -> teleport_nodes:stop_pair(Config).

message() -> receive Message -> Message after wait_ms() -> error(nothing_came) end.

sends(Config) ->
    on_first(Config, fun(Node) ->
        Echo = spawn(Node, teleport_nodes, echo, []),
        true = erpc:call(Node, erlang, register, [tp_echo, Echo]),
        Terms = [[], 0, 1 bsl 400, 1.5, <<>>, <<1:3>>, {}, #{}, self(), make_ref(), Node, fun lists:map/2, "text", [1 | improper],
                 lists:seq(1, 1000), {a, binary:copy(<<"b">>, 100000), [binary:copy(<<"c">>, 70000)]}, hd(erlang:ports())],
        [begin
             ok = teleport:send(Dest, {self(), Term}, Options),
             {echo, Term} = message()
         end || Term <- Terms, Dest <- [Echo, {tp_echo, Node}],
                Options <- [#{}, #{class => control}, #{class => bulk}, #{unordered => true}, #{key => 7}]],
        %% To nobody: lost as with `!', and nothing else suffers.
        ok = teleport:send({tp_nobody, Node}, lost),
        Gone = spawn(Node, erlang, node, []),
        ok = teleport:send(Gone, lost),
        ok = teleport:send(Echo, {self(), still}),
        {echo, still} = message(),
        exit(Echo, kill)
    end).

%% Around the sizes at which something else happens: binaries of parts, pieces, many pieces, binaries inside of terms.
sizes(Config) ->
    on_first(Config, fun(Node) ->
        Echo = spawn(Node, teleport_nodes, echo, []),
        Edges = [0, 1, 64, 65, 4096, 65535, 65536, 65537, 262143, 262144, 262145, 524288, 1048576, 3000000, 20000000],
        [begin
             Binary = rand:bytes(Size),
             [begin
                  ok = teleport:send(Echo, {self(), Term}),
                  receive {echo, Term} -> ok after wait_ms() -> error({no_echo, Size}) end
              end || Term <- [Binary, {x, Binary, #{k => [Binary]}}]]
         end || Size <- Edges],
        %% Large, and no binary in it.
        List = lists:seq(1, 300000),
        ok = teleport:send(Echo, {self(), List}),
        receive {echo, List} -> ok after wait_ms() -> error(no_list) end,
        exit(Echo, kill)
    end).

gen_server_calls(Config) ->
    on_first(Config, fun(Node) ->
        Pid = erpc:call(Node, teleport_nodes, start_server, [tp_server]),
        [{echo, 1} = teleport:call(Dest, {echo, 1}) || Dest <- [Pid, {tp_server, Node}]],
        {echo, 2} = teleport:gs_call(Pid, {echo, 2}),
        {echo, 3} = teleport:gs_call({tp_server, Node}, {echo, 3}, 10000),
        {echo, 4} = teleport:call(Pid, {echo, 4}, infinity, #{class => control}),
        Big = binary:copy(<<"x">>, 5000000),
        {echo, {Big, Big}} = teleport:call(Pid, {echo, {Big, Big}}, 60000, #{class => bulk}),
        %% The server sees a process of its own node.
        {Proxy, _} = teleport:call(Pid, from),
        Node = node(Proxy),
        ok = teleport:cast(Pid, one),
        ok = teleport:gs_cast({tp_server, Node}, two),
        abcast = teleport:abcast([Node], tp_server, three),
        ok = teleport:send(Pid, four),
        [{cast, one}, four] = [M || M <- teleport:call(Pid, log), M =:= {cast, one} orelse M =:= four],
        stop(Pid)
    end).

stop(Pid) -> exit(Pid, kill).

%% Replies from another process, two replies, a reply to a caller that has ended.
deferred_replies(Config) ->
    on_first(Config, fun(Node) ->
        Pid = erpc:call(Node, teleport_nodes, start_server, [none]),
        First = teleport_nodes:gate(),
        Deferred = teleport:send_request(Pid, {behind, First, later}),
        once = teleport:call(Pid, twice),
        {echo, x} = teleport:call(Pid, {echo, x}),
        ok = teleport_nodes:open_gate(First),
        {reply, later} = teleport:receive_response(Deferred, wait_ms()),
        Second = teleport_nodes:gate(),
        {Caller, Monitor} = spawn_monitor(fun() -> teleport:call(Pid, {behind, Second, late}, infinity) end),
        _ = beamway_peer:wait_until(fun() -> pending(Node) =:= 1 end, wait_ms()),
        exit(Caller, kill),
        receive {'DOWN', Monitor, process, Caller, killed} -> ok end,
        ok = teleport_nodes:open_gate(Second),
        0 = unanswered(Node),
        {echo, y} = teleport:call(Pid, {echo, y}),
        stop(Pid)
    end).

gen_statem_calls(Config) ->
    on_first(Config, fun(Node) ->
        {ok, Pid} = erpc:call(Node, gen_statem, start, [{local, tp_statem}, ?MODULE, statem, []]),
        {on, 1} = teleport:statem_call(Pid, 1),
        {on, 2} = teleport:statem_call({tp_statem, Node}, 2, 10000),
        [{on, 2} = teleport:statem_call(Pid, 2, {Kind, wait_ms()}) || Kind <- [clean_timeout, dirty_timeout]],
        ok = teleport:statem_cast(Pid, off),
        {off, 3} = teleport:call(Pid, 3),
        stop(Pid)
    end).

gen_event_calls(Config) ->
    on_first(Config, fun(Node) ->
        {ok, Pid} = erpc:call(Node, gen_event, start, [{local, tp_event}]),
        ok = erpc:call(Node, gen_event, add_handler, [tp_event, ?MODULE, event]),
        ok = teleport:notify(Pid, first),
        ok = teleport:sync_notify(Pid, second),
        [first, second] = teleport:event_call(Pid, ?MODULE, seen),
        {error, bad_module} = teleport:event_call({tp_event, Node}, no_such_handler, seen, 10000),
        {'EXIT', {noproc, _}} = (catch teleport:event_call({tp_no_event, Node}, ?MODULE, seen)),
        stop(Pid)
    end).

%% OTP's gen_fsm is gone; a process that answers as one does.
fsm_labels(Config) ->
    on_first(Config, fun(Node) ->
        Test = self(),
        Pid = spawn(Node, fun() -> fsm(Test) end),
        ok = teleport:fsm_event(Pid, a),
        {'$gen_event', a} = message(),
        ok = teleport:fsm_all_state_event(Pid, b),
        {'$gen_all_state_event', b} = message(),
        {'$gen_sync_event', c} = teleport:fsm_sync_event(Pid, c),
        {'$gen_sync_all_state_event', d} = teleport:fsm_sync_all_state_event(Pid, d),
        stop(Pid)
    end).

fsm(Test) ->
    receive
        {Label, {To, Tag}, Event} -> To ! {Tag, {Label, Event}};
        Event -> Test ! Event
    end,
    fsm(Test).

requests(Config) ->
    on_first(Config, fun(Node) ->
        Pid = erpc:call(Node, teleport_nodes, start_server, [none]),
        Ids = [teleport:send_request(Pid, {echo, N}) || N <- lists:seq(1, 100)],
        [{reply, {echo, N}} = teleport:wait_response(Id, wait_ms()) || {N, Id} <- lists:reverse(lists:zip(lists:seq(1, 100), Ids))],
        Gate = teleport_nodes:gate(),
        Slow = teleport:send_request(Pid, {behind, Gate, slow}, #{class => control}),
        timeout = teleport:wait_response(Slow, 0),
        timeout = teleport:wait_response(Slow, {abs, erlang:monotonic_time(millisecond)}),
        ok = teleport_nodes:open_gate(Gate),
        {reply, slow} = teleport:wait_response(Slow, wait_ms()),
        Never = teleport:send_request(Pid, never),
        timeout = teleport:receive_response(Never, 10),
        In = fun(Ms) -> {abs, erlang:monotonic_time(millisecond) + Ms} end,
        timeout = teleport:receive_response(teleport:send_request(Pid, never, #{class => control}), In(-1)),
        {reply, {echo, abs}} = teleport:receive_response(teleport:send_request(Pid, {echo, abs}, #{class => control}), In(wait_ms())),
        Checked = teleport:send_request(Pid, {echo, checked}),
        no_reply = teleport:check_response(other, Checked),
        {reply, {echo, checked}} = teleport:check_response(message(), Checked),
        {error, {noproc, {tp_nobody, Node}}} = teleport:receive_response(teleport:send_request({tp_nobody, Node}, x), wait_ms()),
        %% What could not be sent takes nobody else's message, and tells by one of its own.
        Failed = teleport:send_request({global, tp_nobody}, x),
        no_reply = teleport:check_response(other, Failed),
        timeout = teleport:receive_response(teleport:send_request(Pid, never), 0),
        {error, {noproc, {global, tp_nobody}}} = teleport:check_response(message(), Failed),
        Local = teleport_nodes:start_server(none),
        {reply, {echo, here}} = teleport:receive_response(teleport:send_request(Local, {echo, here}), wait_ms()),
        Dying = teleport:send_request(Pid, {die, reason}),
        {error, {reason, Pid}} = teleport:receive_response(Dying, wait_ms()),
        0 = unanswered(Node)
    end).

%% Calls that this node's lanes hold at the other, once it has heard of all.
unanswered(Node) ->
    Count = fun() -> lists:sum([P || #{opened_by := peer, pending_calls := P} <- erpc:call(Node, teleport, lanes, [node()])]) end,
    beamway_peer:wait_until(fun() -> Count() =:= 0 end, wait_ms()),
    0.

erpc_calls(Config) ->
    on_first(Config, fun(Node) ->
        Node = teleport:erpc_call(Node, erlang, node, []),
        Big = binary:copy(<<"x">>, 3000000),
        Big = teleport:erpc_call(Node, lists, last, [[Big]], 60000),
        thrown = (catch teleport:erpc_call(Node, erlang, throw, [thrown])),
        {'EXIT', {exception, gone}} = (catch teleport:erpc_call(Node, erlang, exit, [gone])),
        {'EXIT', {{exception, badarith, [_ | _]}, _}} = (catch teleport:erpc_call(Node, erlang, '+', [1, a])),
        {'EXIT', {{exception, undef, _}, _}} = (catch teleport:erpc_call(Node, no_such_module, f, [])),
        {'EXIT', {{erpc, timeout}, _}} = (catch teleport:erpc_call(Node, timer, sleep, [100000], 20)),
        [{'EXIT', {signal, Ended}} = (catch teleport:erpc_call(Node, ?MODULE, send, [Reason, self]))
         || {Reason, Ended} <- [{kill, killed}, {timeout, timeout}, {overload, overload}, {{nodedown, Node}, {nodedown, Node}}]],
        {'EXIT', {{erpc, noconnection}, _}} = (catch teleport:erpc_call('nobody@127.0.0.1', erlang, node, [])),
        ok = teleport:erpc_cast(Node, erlang, send, [self(), from_there]),
        from_there = message(),
        {error, {nodedown, 'nobody@127.0.0.1'}} = teleport:erpc_cast('nobody@127.0.0.1', erlang, node, []),
        0 = unanswered(Node)
    end).

multicalls(Config) ->
    on_first(Config, fun(Node) ->
        Here = node(),
        [{ok, Node}, {ok, Here}, {error, {erpc, noconnection}}] = teleport:multicall([Node, Here, 'nobody@127.0.0.1'], erlang, node, []),
        [{error, {erpc, timeout}}, {error, {erpc, timeout}}] = teleport:multicall([Node, Here], timer, sleep, [100000], 30),
        Pid = erpc:call(Node, teleport_nodes, start_server, [tp_many]),
        {error, [{'nobody@127.0.0.1', {nodedown, 'nobody@127.0.0.1'}}]} = teleport:abcast([Node, Here, 'nobody@127.0.0.1'], tp_many, one),
        abcast = teleport:abcast([Node, Here], tp_many, two),
        [{cast, one}, {cast, two}] = teleport:call({tp_many, Node}, log),
        stop(Pid)
    end).

global_and_via(Config) ->
    on_first(Config, fun(Node) ->
        Pid = erpc:call(Node, teleport_nodes, start_server, [none]),
        yes = global:register_name(tp_global, Pid),
        {echo, 1} = teleport:call({global, tp_global}, {echo, 1}),
        ok = teleport:cast({global, tp_global}, c),
        {'EXIT', {noproc, {teleport, call, _}}} = (catch teleport:call({global, tp_nobody}, x)),
        {error, noproc} = teleport:send({global, tp_nobody}, x),
        persistent_term:put({?MODULE, via}, Pid),
        {echo, 2} = teleport:call({via, ?MODULE, via}, {echo, 2}),
        {error, noproc} = teleport:cast({via, ?MODULE, nobody}, x),
        _ = global:unregister_name(tp_global),
        stop(Pid)
    end).

local_destinations(Config) ->
    on_first(Config, fun(_) ->
        Pid = teleport_nodes:start_server(tp_local),
        [{echo, D} = teleport:call(D, {echo, D}) || D <- [Pid, tp_local, {tp_local, node()}]],
        ok = teleport:send(self(), to_me),
        to_me = message(),
        {error, noproc} = teleport:send(tp_nobody, x),
        {'EXIT', {noproc, {teleport, call, _}}} = (catch teleport:call(tp_nobody, x)),
        {'EXIT', {timeout, {teleport, call, [Pid, never, 10]}}} = (catch teleport:call(Pid, never, 10)),
        ok = teleport:prime(node()),
        {ok, Ref} = teleport:send(self(), confirmed_to_me, #{confirm => true}),
        confirmed_to_me = message(),
        {teleport, Ref, confirmed} = message(),
        stop(Pid)
    end).

servers_that_end(Config) ->
    on_first(Config, fun(Node) ->
        {'EXIT', {noproc, {teleport, call, [{tp_nobody, Node}, x, 5000]}}} = (catch teleport:call({tp_nobody, Node}, x)),
        Gone = spawn(Node, erlang, node, []),
        {'EXIT', {noproc, _}} = (catch teleport:call(Gone, x)),
        Dying = erpc:call(Node, teleport_nodes, start_server, [none]),
        {'EXIT', {reason, {teleport, call, [Dying, {die, reason}, 100000]}}} = (catch teleport:call(Dying, {die, reason}, 100000)),
        %% Many wait; all hear of it.
        Killed = erpc:call(Node, teleport_nodes, start_server, [none]),
        Callers = [spawn_monitor(fun() -> teleport:call(Killed, never, infinity) end) || _ <- lists:seq(1, 200)],
        _ = beamway_peer:wait_until(fun() -> pending(Node) =:= 200 end, wait_ms()),
        exit(Killed, kill),
        [receive {'DOWN', M, process, P, {killed, {teleport, call, _}}} -> ok after wait_ms() -> error(still_waits) end || {P, M} <- Callers],
        %% A process that is there for a function may be a server, too. With the function's value it has not answered who called it.
        Applied = teleport_erpc:send_request(Node, ?MODULE, hear, [self()]),
        {hears, Worker} = message(),
        {'EXIT', {{teleport_calls, answered}, {teleport, call, _}}} = (catch teleport:call(Worker, x, wait_ms())),
        heard = teleport_erpc:receive_response(Applied, wait_ms()),
        0 = unanswered(Node)
    end).

pending(Node) -> lists:sum([P || #{opened_by := peer, pending_calls := P} <- erpc:call(Node, teleport, lanes, [node()])]).

%% A late reply never reaches its caller, and nothing stays at the server's node.
timeouts(Config) ->
    on_first(Config, fun(Node) ->
        Pid = erpc:call(Node, teleport_nodes, start_server, [none]),
        Gate = teleport_nodes:gate(),
        [{'EXIT', {timeout, {teleport, call, [Pid, _, 20]}}} = (catch teleport:call(Pid, {behind, Gate, N}, 20)) || N <- lists:seq(1, 10)],
        {'EXIT', {timeout, _}} = (catch teleport:call(Pid, never, 0)),
        0 = unanswered(Node),
        Waiting = teleport:send_request(Pid, {behind, Gate, later}),
        ok = teleport_nodes:open_gate(Gate),
        {reply, later} = teleport:receive_response(Waiting, wait_ms()),
        {echo, x} = teleport:call(Pid, {echo, x}),
        receive Late -> error({late, Late}) after 0 -> ok end,
        stop(Pid)
    end).

confirmations(Config) ->
    on_first(Config, fun(Node) ->
        Pid = erpc:call(Node, teleport_nodes, start_server, [none]),
        Refs = [element(2, {ok, _} = teleport:send(Pid, N, #{confirm => true})) || N <- lists:seq(1, 50)],
        [receive {teleport, Ref, confirmed} -> ok after wait_ms() -> error(not_confirmed) end || Ref <- Refs],
        {ok, None} = teleport:send({tp_nobody, Node}, x, #{confirm => true}),
        {teleport, None, {unconfirmed, noproc}} = message(),
        stop(Pid)
    end).

ten_thousand_callers(Config) ->
    on_first(Config, fun(Node) ->
        Pid = erpc:call(Node, teleport_nodes, start_server, [none]),
        Callers = [spawn_monitor(fun() -> [{echo, {N, R}} = teleport:call(Pid, {echo, {N, R}}, 100000) || R <- [1, 2, 3]] end)
                   || N <- lists:seq(1, 10000)],
        [receive {'DOWN', M, process, P, Reason} -> normal = Reason after 100000 -> error(no_answer) end || {P, M} <- Callers],
        0 = unanswered(Node),
        stop(Pid)
    end).

%% Each ends its own call. The lane goes on, and so do the calls that wait on it.
answers_that_are_too_large(Config) ->
    Options = #{teleport => #{max_message_bytes => 1000000, lanes => #{normal => 1}}},
    [{First, _}, {Second, Node}] = [teleport_nodes:start(teleport_nodes:kind(Config), Options) || _ <- [1, 2]],
    ok = teleport_nodes:connect(First, Node),
    ok = beamway_peer:run(First, fun() ->
        [Parking, Logging, Dying] = [erpc:call(Node, teleport_nodes, start_server, [none]) || _ <- [1, 2, 3]],
        Gate = teleport_nodes:gate(),
        Parked = teleport:send_request(Parking, {behind, Gate, later}),
        [ok = teleport:send(Logging, binary:copy(<<"x">>, 500000)) || _ <- [1, 2, 3, 4]],
        {'EXIT', {{too_big, Bytes}, {teleport, call, _}}} = (catch teleport:call(Logging, log, wait_ms())),
        true = Bytes > 2000000,
        [] = teleport:call(Logging, log),
        {'EXIT', {{erpc, system_limit}, _}} = (catch teleport:erpc_call(Node, lists, seq, [1, 300000], wait_ms())),
        Waiting = teleport:send_request(Dying, never),
        _ = beamway_peer:wait_until(fun() -> pending(Node) =:= 2 end, wait_ms()),
        true = exit(Dying, lists:seq(1, 300000)),
        {error, {{too_big, _}, Dying}} = teleport:receive_response(Waiting, wait_ms()),
        ok = teleport_nodes:open_gate(Gate),
        {reply, later} = teleport:receive_response(Parked, wait_ms()),
        ok
    end, 2 * wait_ms()),
    beamway_peer:stop_all([First, Second]).

%% What one node sends and the other does not take, in either direction: it ends alone, and the lanes stay.
another_limit_there(Config) ->
    [{First, FirstNode}, {Second, SecondNode}] =
        [teleport_nodes:start(teleport_nodes:kind(Config), #{teleport => #{max_message_bytes => Max, lanes => #{normal => 1}}}) || Max <- [2147483647, 1000000]],
    ok = teleport_nodes:connect(First, SecondNode),
    [ok = beamway_peer:run(Peer, fun() ->
         [Parking, Server] = [erpc:call(Node, teleport_nodes, start_server, [none]) || _ <- [1, 2]],
         [Large, Small] = [binary:copy(<<"x">>, Size) || Size <- [2000000, 900000]],
         Gate = teleport_nodes:gate(),
         Parked = teleport:send_request(Parking, {behind, Gate, later}),
         {error, {too_big, Bytes}} = teleport:send(Server, Large),
         true = Bytes > 2000000,
         {'EXIT', {{too_big, _}, {teleport, call, _}}} = (catch teleport:call(Server, {echo, Large}, wait_ms())),
         {'EXIT', {{erpc, system_limit}, _}} = (catch teleport:erpc_call(Node, binary, copy, [<<"x">>, 2000000], wait_ms())),
         %% Each binary of a message has a limit of its own in the driver, the message one here.
         {'EXIT', {{erpc, system_limit}, _}} = (catch teleport:erpc_call(Node, lists, duplicate, [20, binary:copy(<<"x">>, 90000)], wait_ms())),
         {echo, Small} = teleport:call(Server, {echo, Small}, wait_ms()),
         ok = teleport_nodes:open_gate(Gate),
         {reply, later} = teleport:receive_response(Parked, wait_ms()),
         ok
     end, 2 * wait_ms()) || {Peer, Node} <- [{First, SecondNode}, {Second, FirstNode}]],
    beamway_peer:stop_all([First, Second]).

%% Functions are refused, each alone, as with erpc. The lane goes on, and so do the calls that wait on it.
no_room_for_processes(Config) ->
    [{First, _}, {Second, Node}] =
        [teleport_nodes:start(teleport_nodes:kind(Config), #{teleport => #{lanes => #{normal => 1}}, args => Args}) || Args <- [[], ["+P", "1024"]]],
    ok = teleport_nodes:connect(First, Node),
    ok = beamway_peer:run(First, fun() ->
        Server = erpc:call(Node, teleport_nodes, start_server, [none]),
        Waiting = teleport:send_request(Server, never),
        Apply = fun() -> catch teleport:erpc_call(Node, erlang, node, [], wait_ms()) end,
        Node = Apply(),
        Filler = spawn(Node, ?MODULE, fill, [self()]),
        full = message(),
        %% Another process of the node may just have ended.
        {'EXIT', {{erpc, system_limit}, _}} = beamway_peer:wait_until(fun() -> case Apply() of Node -> false; Ended -> Ended end end, wait_ms()),
        ok = teleport:erpc_cast(Node, erlang, node, [], #{key => k}),
        {echo, x} = teleport:call(Server, {echo, x}, wait_ms(), #{key => k}),
        exit(Filler, kill),
        _ = beamway_peer:wait_until(fun() -> Apply() =:= Node end, wait_ms()),
        timeout = teleport:wait_response(Waiting, 0),
        ok
    end, 2 * wait_ms()),
    beamway_peer:stop_all([First, Second]).

bad_input(Config) ->
    on_first(Config, fun(Node) ->
        [{'EXIT', {{bad_destination, Bad}, _}} = (catch teleport:send(Bad, x)) || Bad <- [1, "name", {a, b, c}, {1, Node}, make_ref()]],
        [{'EXIT', {{bad_option, Name, Value}, _}} = (catch teleport:send({x, Node}, x, #{Name => Value}))
         || {Name, Value} <- [{class, fast}, {timeout, -1}, {timeout, soon}, {on_full, wait}, {unordered, 1}, {confirm, 'maybe'}, {speed, 1}]],
        {'EXIT', {{bad_option, options, []}, _}} = (catch teleport:send({x, Node}, x, [])),
        {error, [Line]} = teleport:configure(all, #{ring_bytes => 1000}),
        true = string:find(Line, "1000") =/= nomatch andalso string:find(Line, "power of two") =/= nomatch,
        {error, [_, _]} = teleport:configure(Node, #{lanes => #{normal => 0}, nonsense => 1}),
        {'EXIT', {function_clause, _}} = (catch teleport:call({x, Node}, x, soon)),
        %% A term that is too large for a lane.
        ok = teleport:configure(Node, #{max_message_bytes => 1000000}),
        {error, {too_big, Bytes}} = teleport:send({x, Node}, binary:copy(<<"x">>, 1000000)),
        true = Bytes > 1000000,
        {'EXIT', {{too_big, _}, {teleport, call, _}}} = (catch teleport:call({x, Node}, binary:copy(<<"x">>, 1000000))),
        ok = teleport:configure(Node, #{max_message_bytes => 2147483647})
    end).

%% Many change options at the same time. No change is lost.
options_at_once(Config) ->
    on_first(Config, fun(_) ->
        Changes = [{list_to_atom("n" ++ integer_to_list(N) ++ "@h"), N} || N <- lists:seq(1, 50)],
        Callers = [beamway_peer:async(fun() -> receive go -> teleport:configure(Name, #{block_ms => N}) end end) || {Name, N} <- Changes],
        [Pid ! go || {Pid, _} <- Callers],
        [ok = beamway_peer:await(Caller) || Caller <- Callers],
        [#{block_ms := N} = teleport_config:of_node(Name) || {Name, N} <- Changes]
    end).

nodes_that_are_not_there(Config) ->
    {ok, Plain, PlainNode} = beamway_peer:start(inet_tcp),
    on_first(Config, fun(Node) ->
        Unknown = 'nobody@127.0.0.1',
        {error, {nodedown, Unknown}} = teleport:send({x, Unknown}, x),
        {'EXIT', {{nodedown, Unknown}, {teleport, call, _}}} = (catch teleport:call({x, Unknown}, x)),
        {error, {nodedown, Unknown}} = teleport:prime(Unknown),
        {error, {nodedown, 'no_at_sign'}} = teleport:send({x, 'no_at_sign'}, x),
        [] = teleport:lanes(Unknown),
        true = teleport:lanes(Node) =/= [] orelse teleport:prime(Node) =:= ok
    end),
    %% A node of the cluster that has no teleport: teleport_fallback_SUITE has more.
    case teleport_nodes:kind(Config) of
        shm -> ok;
        _ ->
            teleport_nodes:on_first(Config, fun(_) ->
                pong = net_adm:ping(PlainNode),
                ok = teleport:send({x, PlainNode}, x),
                {'EXIT', {noproc, _}} = (catch teleport:call({x, PlainNode}, x)),
                PlainNode = teleport:erpc_call(PlainNode, erlang, node, []),
                {error, {no_teleport, PlainNode}} = teleport:send({x, PlainNode}, x, #{confirm => true})
            end)
    end,
    beamway_peer:stop(Plain).

what_lanes_say(Config) ->
    Kind = case teleport_nodes:kind(Config) of shm_on_stock -> shm; Other -> Other end,
    on_first(Config, fun(Node) ->
        ok = teleport:prime(Node),
        Lanes = teleport:lanes(Node),
        [Kind] = lists:usort([maps:get(kind, Lane) || Lane <- Lanes ++ erpc:call(Node, teleport, lanes, [node()])]),
        [1, 2] = [length([L || #{class := C, opened_by := this_node} = L <- Lanes, C =:= Class]) || Class <- [control, bulk]],
        Before = lists:sum([S || #{sent := S, opened_by := this_node} <- Lanes]),
        Pid = erpc:call(Node, teleport_nodes, start_server, [none]),
        [ok = teleport:send(Pid, N) || N <- lists:seq(1, 10)],
        {echo, x} = teleport:call(Pid, {echo, x}),
        11 = lists:sum([S || #{sent := S, opened_by := this_node} <- teleport:lanes(Node)]) - Before,
        [#{state := up, queued := 0, queued_bytes := 0, stalls := _, keys := _} = L || #{opened_by := this_node} = L <- teleport:lanes()],
        %% And everything is acknowledged in the end.
        _ = beamway_peer:wait_until(fun() -> lists:all(fun(#{sent := S, acknowledged := S, opened_by := this_node}) -> true;
                                                          (#{opened_by := peer}) -> true;
                                                          (_) -> false end, teleport:lanes(Node)) end, wait_ms()),
        #{} = teleport:unconfirmed(),
        stop(Pid)
    end).

%% ---- callbacks ----

%% @private
callback_mode() -> handle_event_function.

%% @private
init(statem) -> {ok, on, []};
init(event) -> {ok, []}.

%% @private gen_statem
handle_event({call, From}, Request, State, _) -> {keep_state_and_data, [{reply, From, {State, Request}}]};
handle_event(cast, Next, _, Data) -> {next_state, Next, Data}.

%% @private gen_event
handle_event(Event, Seen) -> {ok, Seen ++ [Event]}.

%% @private gen_event
handle_call(seen, Seen) -> {ok, Seen, Seen}.

%% @private A registry of one name; and, for erpc, a process that is killed.
whereis_name(via) -> persistent_term:get({?MODULE, via});
whereis_name(_) -> undefined.

%% @private
register_name(_, _) -> no.

%% @private
unregister_name(_) -> ok.

%% @private
send(Reason, self) -> exit(self(), Reason), receive never -> ok end.

%% @private Hears of a call, and does not answer.
hear(Test) ->
    Test ! {hears, self()},
    receive {'$gen_call', _, _} -> heard end.

%% @private Leaves no room for another process on this node, until the test has ended.
fill(Test) ->
    Monitor = monitor(process, Test),
    ok = filled(),
    Test ! full,
    fill_again(Monitor).

fill_again(Monitor) ->
    receive {'DOWN', Monitor, process, _, _} -> exit(nobody_tests)
    after 100 -> ok = filled(), fill_again(Monitor)
    end.

filled() ->
    try spawn_link(fun() -> receive never -> ok end end) of
        _ -> filled()
    catch error:system_limit -> ok
    end.
