%% SPDX-License-Identifier: Apache-2.0
%% @doc What a program that knows gen_server and erpc finds again: collections of requests, calls of several nodes, erpc's whole interface.
%%
%% The oracle of erpc's part is erpc itself: {@link the_same_as_erpc/1} runs each function of both modules and compares.
-module(teleport_as_otp_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2]).
-export([collections/1, collections_given_up/1, multi_calls/1, the_same_as_erpc/1, every_function_of_erpc/1, erpc_collections/1, options_of_erpc/1, group_leaders/1, functions_go_on/1]).
%% Used on the nodes.
-export([start_of/3]).
-import(teleport_nodes, [on_first/2, wait_ms/0]).

suite() -> [{timetrap, {minutes, 3}}].

all() -> teleport_nodes:all([beamway, shm, tcp]).

groups() ->
    teleport_nodes:groups([beamway, shm, tcp], [collections, collections_given_up, multi_calls, the_same_as_erpc, every_function_of_erpc, erpc_collections,
                                       options_of_erpc, group_leaders, functions_go_on]).

init_per_group(Kind, Config) -> teleport_nodes:start_pair(teleport_nodes:init_group(Kind, Config)).

end_per_group(_Kind, Config) -> teleport_nodes:stop_pair(Config).

message() -> receive Message -> Message after wait_ms() -> error(nothing_came) end.

collections(Config) ->
    on_first(Config, fun(Node) ->
        Pid = erpc:call(Node, teleport_nodes, start_server, [none]),
        Local = teleport_nodes:start_server(none),
        Empty = teleport:reqids_new(),
        [no_request = Take(Empty) || Take <- [fun(C) -> teleport:wait_response(C, infinity, true) end,
                                              fun(C) -> teleport:receive_response(C, infinity, true) end,
                                              fun(C) -> teleport:check_response(x, C, true) end]],
        %% Of this node, of the other, and one that fails: each comes with its label.
        Dests = [{here, Local}, {there, Pid}, {nobody, {tp_nobody, Node}}],
        All = lists:foldl(fun({Label, Dest}, C) -> teleport:send_request(Dest, {echo, Label}, Label, C) end, Empty, Dests),
        3 = teleport:reqids_size(All),
        [here, nobody, there] = lists:sort([Label || {_, Label} <- teleport:reqids_to_list(All)]),
        Taken = taken(All, []),
        [{here, {reply, {echo, here}}}, {nobody, {error, {noproc, {tp_nobody, Node}}}}, {there, {reply, {echo, there}}}] = lists:sort(Taken),
        %% A request is in a collection once.
        Id = teleport:send_request(Pid, {echo, 1}, #{class => control}),
        One = teleport:reqids_add(Id, one, Empty),
        {'EXIT', {badarg, _}} = (catch teleport:reqids_add(Id, again, One)),
        no_reply = teleport:check_response(something, One, true),
        {{reply, {echo, 1}}, one, One} = teleport:check_response(message(), One, false),
        %% After `timeout' it can be waited for again.
        Gate = teleport_nodes:gate(),
        Slow = teleport:send_request(Pid, {behind, Gate, slow}, slow, Empty, #{key => k}),
        timeout = teleport:wait_response(Slow, 0, true),
        timeout = teleport:wait_response(Slow, {abs, erlang:monotonic_time(millisecond)}, true),
        ok = teleport_nodes:open_gate(Gate),
        {{reply, slow}, slow, Empty} = teleport:wait_response(Slow, wait_ms(), true),
        [exit(P, kill) || P <- [Pid, Local]]
    end).

taken(Ids, Taken) ->
    case teleport:wait_response(Ids, wait_ms(), true) of
        no_request -> Taken;
        {Response, Label, Left} -> taken(Left, [{Label, Response} | Taken])
    end.

%% A reply to a request that was given up never comes; a server's end comes to each of its requests.
collections_given_up(Config) ->
    on_first(Config, fun(Node) ->
        Pid = erpc:call(Node, teleport_nodes, start_server, [none]),
        Gate = teleport_nodes:gate(),
        Ask = fun(N, C) -> teleport:send_request(Pid, {behind, Gate, N}, N, C) end,
        Ids = lists:foldl(Ask, teleport:reqids_new(), [1, 2, 3]),
        timeout = teleport:receive_response(Ids, 10, true),
        ok = teleport_nodes:open_gate(Gate),
        {echo, x} = teleport:call(Pid, {echo, x}),
        receive Late -> error({late, Late}) after 0 -> ok end,
        Ask2 = fun(N, C) -> teleport:send_request(Pid, never, N, C) end,
        Waiting = lists:foldl(Ask2, teleport:reqids_new(), [1, 2, 3]),
        {echo, y} = teleport:call(Pid, {echo, y}),
        exit(Pid, kill),
        [{1, {error, {killed, Pid}}}, {2, {error, {killed, Pid}}}, {3, {error, {killed, Pid}}}] = lists:sort(taken(Waiting, []))
    end).

multi_calls(Config) ->
    on_first(Config, fun(Node) ->
        Here = node(),
        There = erpc:call(Node, teleport_nodes, start_server, [tp_multi]),
        {[{Node, {echo, 1}}], [Here, 'nobody@127.0.0.1']} = teleport:multi_call([Here, Node, 'nobody@127.0.0.1'], tp_multi, {echo, 1}),
        Local = teleport_nodes:start_server(tp_multi),
        {Replies, []} = teleport:multi_call(tp_multi, {echo, 2}),
        true = lists:sort(Replies) =:= lists:sort([{Here, {echo, 2}}, {Node, {echo, 2}}]),
        {[], [Node, Here]} = teleport:multi_call([Node, Here], tp_multi, never, 30),
        %% Behind what the caller has sent.
        ok = teleport:cast({tp_multi, Node}, before, #{class => bulk}),
        {[{Node, [{cast, before}]}], []} = teleport:multi_call([Node], tp_multi, log, wait_ms(), #{class => bulk}),
        {'EXIT', {{bad_option, speed, 1}, _}} = (catch teleport:multi_call([Node], tp_multi, log, 1, #{speed => 1})),
        [exit(P, kill) || P <- [There, Local]]
    end).

%% Every way in which a function can end, with each of the functions that tell it.
the_same_as_erpc(Config) ->
    on_first(Config, fun(Node) ->
        Ends = [{erlang, node, []}, {erlang, group_leader, []}, {erlang, throw, [thrown]}, {erlang, exit, [gone]}, {erlang, '+', [1, a]}, {no_such_module, f, []},
                {erlang, error, [{a, b}]}, {timer, sleep, [infinity]}, {?MODULE, start_of, [kill, self, none]}],
        Same = fun(Of) -> {A, A} = {ended(fun() -> Of(erpc) end), ended(fun() -> Of(teleport_erpc) end)} end,
        %% Only what never ends has a short limit. It is not asked of a node that is not there, for which of the two is told first would be chance.
        Limit = fun(sleep) -> 50; (_) -> wait_ms() end,
        [begin
             Same(fun(E) -> E:call(At, M, F, A, Limit(F)) end),
             Same(fun(E) -> E:call(At, fun() -> apply(M, F, A) end, Limit(F)) end),
             Same(fun(E) -> E:multicall([At, Node, node()], M, F, A, Limit(F)) end),
             Same(fun(E) -> E:multicall([At, Node, node()], fun() -> apply(M, F, A) end, Limit(F)) end),
             Same(fun(E) -> E:receive_response(E:send_request(At, M, F, A), Limit(F)) end),
             Same(fun(E) -> E:receive_response(E:send_request(At, fun() -> apply(M, F, A) end), Limit(F)) end),
             Same(fun(E) -> E:wait_response(E:send_request(At, M, F, A), Limit(F)) end),
             Same(fun(E) -> E:receive_response(E:reqids_add(E:send_request(At, M, F, A), label, E:reqids_new()), Limit(F), true) end),
             Same(fun(E) -> E:receive_response(E:send_request(At, M, F, A, label, E:reqids_new()), Limit(F), false) end),
             Same(fun(E) -> E:wait_response(E:send_request(At, fun() -> apply(M, F, A) end, label, E:reqids_new()), Limit(F), true) end)
         end || {M, F, A} <- Ends, At <- [Node, node()] ++ ['nobody@127.0.0.1' || F =/= sleep]],
        %% A time instead of milliseconds: far away, and over.
        [begin
             In = fun() -> {abs, erlang:monotonic_time(millisecond) + Ms} end,
             Same(fun(E) -> E:call(At, M, F, A, In()) end),
             Same(fun(E) -> E:multicall([At], fun() -> apply(M, F, A) end, In()) end),
             Same(fun(E) -> E:receive_response(E:send_request(At, M, F, A), In()) end),
             Same(fun(E) -> E:wait_response(E:send_request(At, M, F, A), In()) end)
         end || {Ms, M, F, A} <- [{wait_ms(), erlang, node, []}, {-1, timer, sleep, [infinity]}], At <- [Node, node()]],
        [Same(fun(E) -> Bad(E) end)
         || Bad <- [fun(E) -> E:call(Node, erlang, node, x) end, fun(E) -> E:call(Node, erlang, node, [], soon) end, fun(E) -> E:call("n", erlang, node, []) end,
                    fun(E) -> E:call(Node, erlang, node, [], {abs, soon}) end, fun(E) -> E:multicall([Node], erlang, node, x) end, fun(E) -> E:multicall(["n"], erlang, node, []) end,
                    fun(E) -> E:call(Node, fun(_) -> x end) end, fun(E) -> E:cast(Node, erlang, node, x) end, fun(E) -> E:send_request(1, erlang, node, []) end]],
        receive Late -> error({late, Late}) after 100 -> ok end
    end).

%% Collections and ids look different; what is left in a collection counts.
ended(Fun) ->
    try shaped(Fun())
    catch
        Class:{Reason, Label, Left} when is_map(Left) -> {ended(fun() -> erlang:Class(Reason) end), Label, map_size(Left)};
        error:{exception, Reason, _} -> {error, exception, Reason};
        Class:Reason -> {Class, Reason}
    end.

shaped({Value, Label, Left}) when is_map(Left) -> {Value, Label, map_size(Left)};
shaped(List) when is_list(List) -> [shaped(One) || One <- List];
shaped({error, {exception, Reason, _}}) -> {error, {exception, Reason}};
shaped(Value) -> Value.

start_of(kill, self, none) -> exit(self(), kill).

%% A program that changes the module's name finds every function.
every_function_of_erpc(Config) ->
    on_first(Config, fun(_) ->
        Private = [module_info, call_result, execute_call, execute_cast, is_arg_error, trim_stack],
        [] = [Function || {Name, _} = Function <- erpc:module_info(exports), not lists:member(Name, Private)] -- teleport_erpc:module_info(exports)
    end).

erpc_collections(Config) ->
    on_first(Config, fun(Node) ->
        Ids = lists:foldl(fun(N, C) -> teleport_erpc:send_request(lists:nth(1 + N rem 2, [Node, node()]), erlang, '+', [N, 1], N, C) end, teleport_erpc:reqids_new(), lists:seq(1, 20)),
        20 = teleport_erpc:reqids_size(Ids),
        20 = length(teleport_erpc:reqids_to_list(Ids)),
        Sums = all_of(Ids, []),
        true = lists:sort(Sums) =:= [{N, N + 1} || N <- lists:seq(1, 20)],
        Slow = teleport_erpc:send_request(Node, timer, sleep, [100000], slow, teleport_erpc:reqids_new()),
        no_response = teleport_erpc:check_response(other, Slow, true),
        no_response = teleport_erpc:wait_response(Slow, 0, true),
        Quick = teleport_erpc:send_request(Node, erlang, node, []),
        {response, Node} = teleport_erpc:check_response(message(), Quick)
    end).

all_of(Ids, All) ->
    case teleport_erpc:receive_response(Ids, wait_ms(), true) of
        no_request -> All;
        {Value, Label, Left} -> all_of(Left, [{Label, Value} | All])
    end.

options_of_erpc(Config) ->
    on_first(Config, fun(Node) ->
        To = self(),
        Options = #{class => control, key => k, timeout => wait_ms()},
        Node = teleport_erpc:call(Node, erlang, node, [], Options),
        Node = teleport_erpc:call(Node, fun() -> node() end, Options),
        [{ok, Node}] = teleport_erpc:multicall([Node], fun() -> node() end, Options),
        Node = teleport_erpc:receive_response(teleport_erpc:send_request(Node, fun() -> node() end, Options)),
        Node = teleport_erpc:receive_response(teleport_erpc:send_request(Node, erlang, node, [], Options)),
        {{two, 2}, label, _} = teleport_erpc:receive_response(teleport_erpc:send_request(Node, fun() -> {two, 2} end, label, teleport_erpc:reqids_new(), Options), wait_ms(), true),
        {Node, label, _} = teleport_erpc:receive_response(teleport_erpc:send_request(Node, erlang, node, [], label, teleport_erpc:reqids_new(), Options), wait_ms(), true),
        ok = teleport_erpc:cast(Node, fun() -> To ! a end, Options),
        ok = teleport_erpc:cast(Node, erlang, send, [To, b], Options),
        ok = teleport_erpc:multicast([Node, node()], erlang, send, [To, c], Options),
        ok = teleport_erpc:multicast([Node], fun() -> To ! d end, Options),
        [a, b, c, c, d] = lists:sort([message() || _ <- lists:seq(1, 5)]),
        {error, [{'nobody@127.0.0.1', {nodedown, 'nobody@127.0.0.1'}}]} = teleport_erpc:multicast([Node, 'nobody@127.0.0.1'], erlang, node, []),
        true = lists:any(fun(#{class := Class, sent := Sent}) -> Class =:= control andalso Sent > 0 end, teleport:lanes(Node)),
        %% OTP 28's option of a call: on this node a function has a process of its own, too, where the caller would apply it.
        [begin
             Node = teleport_erpc:call(Node, erlang, node, [], Options#{always_spawn => Always}),
             Node = teleport_erpc:call(Node, fun() -> node() end, #{always_spawn => Always}),
             [{ok, Node}] = teleport_erpc:multicall([Node], erlang, node, [], #{always_spawn => Always, timeout => wait_ms()}),
             Caller = self(),
             Own = teleport_erpc:call(node(), erlang, self, [], #{always_spawn => Always}),
             true = Own =/= Caller orelse not Always,
             {'EXIT', {{exception, badarith, _}, _}} = (catch teleport_erpc:call(node(), erlang, '+', [1, a], #{always_spawn => Always})),
             {'EXIT', {{bad_option, always_spawn, Always}, _}} = (catch teleport_erpc:cast(Node, erlang, node, [], #{always_spawn => Always}))
         end || Always <- [true, false]],
        {'EXIT', {{bad_option, always_spawn, yes}, _}} = (catch teleport_erpc:call(Node, erlang, node, [], #{always_spawn => yes})),
        {'EXIT', {{bad_option, speed, 1}, _}} = (catch teleport_erpc:call(Node, erlang, node, [], #{speed => 1})),
        {'EXIT', {{bad_option, confirm, true}, _}} = (catch teleport_erpc:cast(Node, erlang, node, [], #{confirm => true}))
    end).

%% A function has its caller's group leader. With teleport's it would end with teleport.
group_leaders(Config) ->
    on_first(Config, fun(Node) ->
        To = self(),
        ok = teleport_erpc:cast(Node, fun() -> To ! {self(), group_leader()}, receive stop -> ok end end),
        {Started, Leader} = message(),
        Leader = group_leader(),
        ok = erpc:call(Node, application, stop, [teleport]),
        true = erpc:call(Node, erlang, is_process_alive, [Started]),
        ok = erpc:call(Node, application, start, [teleport]),
        exit(Started, kill)
    end).

%% A function goes on when nobody waits for it any longer, as with erpc, also on the caller's node.
functions_go_on(Config) ->
    on_first(Config, fun(Node) ->
        To = self(),
        Slow = fun() -> To ! {begun, self()}, receive go_on -> To ! {done, node()} end end,
        [begin
             Request = teleport_erpc:send_request(On, Slow, Options),
             {begun, Pid} = message(),
             {'EXIT', {{erpc, timeout}, _}} = (catch teleport_erpc:receive_response(Request, 0)),
             Pid ! go_on,
             {done, On} = message()
         end || On <- [Node, node()], Options <- [#{}, #{way => distribution}]]
    end).
