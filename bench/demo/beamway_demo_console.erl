%% SPDX-License-Identifier: Apache-2.0
%% @doc Starts what `make demo' leaves running on a terminal until Ctrl-C: four nodes that communicate with each other, and the console in which to
%% observe them. Called by {@link beamway_demo}.
-module(beamway_demo_console).

-export([stay/1]).
%% Called on the nodes.
-export([begin_work/3, sink/0, calls/1, messages/2, leases/1, requests/1]).

-define(PORT, 8090).
-define(NODES, 4).

%% @doc Starts the nodes, their work and the console, and prints the console's address. Returns when the console's node has exited. Ctrl-C ends this
%% VM, and the nodes with it.
-spec stay(Say :: fun((io:format(), [term()]) -> ok)) -> ok.
stay(Say) ->
    Epmd = beamway_bench_nodes:start_epmd(),
    #{beamway := Contender} = beamway_bench_contender:all(beamway_bench_checkout:root(), 200),
    Cluster = beamway_bench_nodes:start(Epmd, Contender, #{count => ?NODES, connect_all => true, prefix => "demo"}),
    ok = beamway_bench_nodes:connect(Cluster, forward),
    Paths = [filename:join([beamway_bench_checkout:root(), "apps", App, "ebin"]) || App <- ["teleport", "placement", "yucan", "beamway_console"]],
    _ = beamway_bench_nodes:all(Cluster, code, add_pathsa, [Paths]),
    #{members := [First | _] = Members} = Cluster,
    Names = beamway_bench_nodes:names(Cluster),
    {ok, _} = beamway_bench_nodes:call(First, application, ensure_all_started, [yucan]),
    {ok, _} = beamway_bench_nodes:call(First, yucan, start, [#{name => hello, listen => [#{port => 0}], handler => {beamway_demo_http, none}}]),
    Port = beamway_bench_nodes:call(First, yucan, port, [hello]),
    _ = [ok = beamway_bench_nodes:call(Member, ?MODULE, begin_work, [Name, Names, Port]) || {Member, Name} <- lists:zip(Members, Names)],
    Say("~nThe console shows four nodes at work:~n~n    ~ts~n~nCtrl-C ends them and it.~n", [console(First, ?PORT)]),
    #{peer := Peer} = First,
    Monitor = monitor(process, Peer),
    receive {'DOWN', Monitor, process, _, _} -> ok end.

%% Uses any free port if this port is in use.
console(Member, Port) ->
    case beamway_bench_nodes:call(Member, beamway_console, start, [#{port => Port}]) of
        {ok, Url} -> Url;
        {error, _} when Port =/= 0 -> console(Member, 0);
        {error, Text} -> error({no_console, Text})
    end.

%% @doc Starts a light workload, which leaves the processor mostly idle: calls, small and large messages, leases and requests.
-spec begin_work(node(), [node(), ...], inet:port_number()) -> ok.
begin_work(Own, Names, Port) ->
    _ = [{ok, _} = application:ensure_all_started(App) || App <- [placement, teleport]],
    Others = lists:delete(Own, Names),
    true = register(demo_sink, spawn(?MODULE, sink, [])),
    _ = [spawn(?MODULE, calls, [Other]) || Other <- Others],
    _ = spawn(?MODULE, messages, [Others, binary:copy(<<"x">>, 200000)]),
    _ = spawn(?MODULE, leases, [Others]),
    _ = spawn(?MODULE, requests, [Port]),
    ok.

%% @private
-spec sink() -> no_return().
sink() -> receive _ -> sink() end.

%% @private Makes calls in a loop. Some pairs of nodes communicate more than others.
-spec calls(node()) -> no_return().
calls(Other) ->
    Data = binary:copy(<<"x">>, lists:nth(1 + erlang:phash2(lists:sort([node(), Other]), 4), [10, 300, 6000, 40000])),
    _ = tried(fun() -> erpc:call(Other, erlang, byte_size, [Data], 1000) end),
    pause(2 + rand:uniform(20)),
    calls(Other).

%% @private
-spec messages([node()], binary()) -> no_return().
messages(Others, Large) ->
    _ = [tried(fun() -> teleport:send({demo_sink, Other}, Message, #{timeout => 1000}) end)
         || Other <- Others, Message <- [Large, hello]],
    pause(100 + rand:uniform(300)),
    messages(Others, Large).

%% @private
-spec leases([node()]) -> no_return().
leases(Others) ->
    _ = tried(fun() -> placement:reserve(lists:nth(rand:uniform(length(Others)), Others), #{}, #{ttl => 20000}) end),
    pause(15000),
    leases(Others).

%% @private
-spec requests(inet:port_number()) -> no_return().
requests(Port) ->
    case gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}, {packet, http_bin}], 5000) of
        {ok, Socket} -> requested(Socket, Port);
        {error, _} -> pause(1000), requests(Port)
    end.

-spec requested(gen_tcp:socket(), inet:port_number()) -> no_return().
requested(Socket, Port) ->
    case tried(fun() -> ok = gen_tcp:send(Socket, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), answered(Socket, 0) end) of
        ok -> pause(10 + rand:uniform(40)), requested(Socket, Port);
        _ -> _ = gen_tcp:close(Socket), requests(Port)
    end.

answered(Socket, Length) ->
    case gen_tcp:recv(Socket, 0, 5000) of
        {ok, {http_header, _, 'Content-Length', _, Value}} -> answered(Socket, binary_to_integer(Value));
        {ok, http_eoh} when Length > 0 ->
            ok = inet:setopts(Socket, [{packet, raw}]),
            {ok, _} = gen_tcp:recv(Socket, Length, 5000),
            inet:setopts(Socket, [{packet, http_bin}]);
        {ok, http_eoh} -> ok;
        {ok, _} -> answered(Socket, Length);
        {error, Reason} -> {error, Reason}
    end.

tried(Fun) ->
    try Fun()
    catch _:_ -> failed
    end.

pause(Ms) -> receive after Ms -> ok end.
