%% SPDX-License-Identifier: Apache-2.0
%% @doc Servers of another node under `{via, teleport, {Name, Node}}', called by OTP's own functions and by Elixir's.
-module(teleport_via_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2]).
-export([gen_servers/1, other_behaviours/1, elixir/1, children/1, ends/1, order/1, replies_come_before_the_end/1, given_up/1, dropped_when_idle/1,
         many_callers/1, lanes_carry_them/1, full_lane/1, bad_names/1]).
%% Used on the nodes.
-export([callback_mode/0, init/1, handle_event/4, handle_event/2, handle_call/2, handle_call/3, handle_cast/2, count/1]).
-import(teleport_nodes, [on_first/2, wait_ms/0]).

suite() -> [{timetrap, {minutes, 3}}].

all() -> teleport_nodes:all([beamway, shm, tcp]).

%% Two cases wait for a timer of 5 s, which no kind of lane has a part in.
groups() ->
    Cases = [gen_servers, other_behaviours, elixir, children, ends, order, replies_come_before_the_end, many_callers, lanes_carry_them, full_lane, bad_names],
    teleport_nodes:groups([beamway], Cases ++ [given_up, dropped_when_idle]) ++ teleport_nodes:groups([shm, tcp], Cases).

init_per_group(Kind, Config) -> teleport_nodes:start_pair(teleport_nodes:init_group(Kind, Config)).

end_per_group(_Kind, Config) -> teleport_nodes:stop_pair(Config).

via(Name, Node) -> {via, teleport, {Name, Node}}.

start(Name, Node) -> erpc:call(Node, teleport_nodes, start_server, [Name]).

gen_servers(Config) ->
    on_first(Config, fun(Node) ->
        Pid = start(tv_server, Node),
        Via = via(tv_server, Node),
        {echo, 1} = gen_server:call(Via, {echo, 1}),
        {echo, 2} = gen_server:call(Via, {echo, 2}, infinity),
        ok = gen_server:cast(Via, cast),
        {reply, {echo, 3}} = gen_server:receive_response(gen_server:send_request(Via, {echo, 3}), wait_ms()),
        Proxy = teleport:whereis_name({tv_server, Node}),
        true = node(Proxy) =:= node(),
        Proxy ! info,
        [{cast, cast}, info] = gen_server:call(Via, log),
        %% The functions of teleport itself need no proxy.
        {echo, 4} = teleport:call(Via, {echo, 4}),
        [] = sys:get_state(Proxy),
        ok = gen_server:stop(Via),
        {'EXIT', {noproc, {gen_server, call, _}}} = (catch gen_server:call(Via, {echo, 5})),
        undefined = teleport:whereis_name({tv_server, Node}),
        false = erpc:call(Node, erlang, is_process_alive, [Pid]),
        %% Of this node: the registered process itself.
        Local = teleport_nodes:start_server(tv_local),
        Local = teleport:whereis_name({tv_local, node()}),
        {echo, 6} = gen_server:call(via(tv_local, node()), {echo, 6}),
        exit(Local, kill)
    end).

other_behaviours(Config) ->
    on_first(Config, fun(Node) ->
        {ok, Statem} = erpc:call(Node, gen_statem, start, [{local, tv_statem}, ?MODULE, statem, []]),
        {on, 1} = gen_statem:call(via(tv_statem, Node), 1),
        {on, 2} = gen_statem:call(via(tv_statem, Node), 2, {clean_timeout, wait_ms()}),
        ok = gen_statem:cast(via(tv_statem, Node), off),
        {off, 3} = gen_statem:call(via(tv_statem, Node), 3),
        {ok, Event} = erpc:call(Node, gen_event, start, [{local, tv_event}]),
        ok = erpc:call(Node, gen_event, add_handler, [tv_event, ?MODULE, event]),
        ok = gen_event:notify(via(tv_event, Node), first),
        ok = gen_event:sync_notify(via(tv_event, Node), second),
        [first, second] = gen_event:call(via(tv_event, Node), ?MODULE, seen),
        [exit(P, kill) || P <- [Statem, Event]]
    end).

elixir(Config) ->
    Folder = "/usr/lib/elixir/lib/elixir/ebin",
    case filelib:is_dir(Folder) of
        false -> {skip, "no Elixir here"};
        true ->
            on_first(Config, fun(Node) ->
                true = code:add_pathz(Folder),
                GenServer = 'Elixir.GenServer',
                Pid = start(tv_elixir, Node),
                Via = via(tv_elixir, Node),
                {echo, 1} = GenServer:call(Via, {echo, 1}),
                {echo, 2} = GenServer:call(Via, {echo, 2}, wait_ms()),
                ok = GenServer:cast(Via, cast),
                [{cast, cast}] = GenServer:call(Via, log),
                true = is_pid(GenServer:whereis(Via)),
                exit(Pid, kill)
            end)
    end.

%% A supervisor's child registers under its own node's name, and the other node finds it.
children(Config) ->
    Node = teleport_nodes:second_node(Config),
    Name = via(tv_child, Node),
    Child = #{id => child, start => {gen_server, start_link, [Name, ?MODULE, {child, self()}, []]}},
    Sup = teleport_nodes:on_second(Config, fun() ->
        {ok, Sup} = supervisor:start_link(?MODULE, {sup, Child}),
        true = unlink(Sup),
        [{child, Pid, worker, _}] = supervisor:which_children(Sup),
        Pid = whereis(tv_child),
        {error, {already_started, Pid}} = gen_server:start(Name, ?MODULE, {child, none}, []),
        Sup
    end),
    on_first(Config, fun(_) ->
        %% Before the call to the same process: ERTS may hold a monitor back while its caller sends to other nodes.
        Monitor = monitor(process, teleport:whereis_name({tv_child, Node})),
        First = gen_server:call(Name, pid),
        exit(First, kill),
        receive {'DOWN', Monitor, process, _, killed} -> ok after wait_ms() -> error(no_down) end,
        %% It is started anew, and found anew.
        _ = beamway_peer:wait_until(fun() -> try gen_server:call(Name, pid) =/= First catch exit:_ -> false end end, wait_ms()),
        {error, {already_started, Proxy}} = gen_server:start(Name, ?MODULE, {child, none}, []),
        true = is_pid(Proxy),
        no = teleport:register_name({tv_other, Node}, self()),
        yes = teleport:register_name({tv_here, node()}, self()),
        no = teleport:register_name({tv_here, node()}, self()),
        ok = teleport:unregister_name({tv_here, node()}),
        undefined = whereis(tv_here)
    end),
    teleport_nodes:on_second(Config, fun() -> exit(Sup, kill) end),
    ok.

ends(Config) ->
    on_first(Config, fun(Node) ->
        Call = fun(Request) -> catch gen_server:call(via(tv_ends, Node), Request, wait_ms()) end,
        {'EXIT', {noproc, {gen_server, call, [_, x, _]}}} = Call(x),
        _ = start(tv_ends, Node),
        {'EXIT', {reason, {gen_server, call, [_, {die, reason}, _]}}} = Call({die, reason}),
        Pid = start(tv_ends, Node),
        {'EXIT', {timeout, _}} = (catch gen_server:call(via(tv_ends, Node), never, 20)),
        Callers = [spawn_monitor(fun() -> gen_server:call(via(tv_ends, Node), never, infinity) end) || _ <- lists:seq(1, 100)],
        Pending = fun() -> lists:sum([P || #{opened_by := peer, pending_calls := P} <- erpc:call(Node, teleport, lanes, [node()])]) end,
        _ = beamway_peer:wait_until(fun() -> Pending() >= 100 end, wait_ms()),
        exit(Pid, kill),
        [receive {'DOWN', M, process, P, {killed, {gen_server, call, _}}} -> ok after wait_ms() -> error(still_waits) end || {P, M} <- Callers],
        {'EXIT', {noproc, _}} = (catch gen_server:call(via(x, 'nobody@127.0.0.1'), x)),
        ok = gen_server:cast(via(tv_ends, Node), nobody)
    end).

%% A call comes behind what its caller has cast, for each of many callers.
order(Config) ->
    on_first(Config, fun(Node) ->
        Via = via(tv_order, Node),
        {ok, Pid} = erpc:call(Node, gen_server, start, [{local, tv_order}, ?MODULE, {child, none}, []]),
        Callers = [spawn_monitor(fun() ->
            [begin
                 ok = gen_server:cast(Via, {self(), N, binary:copy(<<"x">>, N rem 3 * 40000)}),
                 N = gen_server:call(Via, {last_of, self()})
             end || N <- lists:seq(1, 50)]
        end) || _ <- lists:seq(1, 8)],
        [receive {'DOWN', M, process, P, Reason} -> normal = Reason after wait_ms() -> error(still_waits) end || {P, M} <- Callers],
        exit(Pid, kill)
    end).

%% The server answers one caller and ends: the answer is not lost, whoever of the two messages is first here.
replies_come_before_the_end(Config) ->
    on_first(Config, fun(Node) ->
        [begin
             {ok, _} = erpc:call(Node, gen_server, start, [{local, tv_last}, ?MODULE, {child, none}, []]),
             last_words = gen_server:call(via(tv_last, Node), answer_and_end, wait_ms()),
             _ = beamway_peer:wait_until(fun() -> teleport:whereis_name({tv_last, Node}) =:= undefined end, wait_ms())
         end || _ <- lists:seq(1, 50)]
    end).

%% Nothing stays of callers that were killed or have stopped waiting.
given_up(Config) ->
    on_first(Config, fun(Node) ->
        Pid = start(tv_parks, Node),
        Via = via(tv_parks, Node),
        Pending = fun() -> lists:sum([P || #{opened_by := peer, pending_calls := P} <- erpc:call(Node, teleport, lanes, [node()])]) end,
        Callers = [spawn_monitor(fun() -> gen_server:call(Via, never, infinity) end) || _ <- lists:seq(1, 20)],
        [{'EXIT', {timeout, _}} = (catch gen_server:call(Via, never, 1)) || _ <- lists:seq(1, 20)],
        _ = beamway_peer:wait_until(fun() -> Pending() =:= 40 end, wait_ms()),
        [exit(P, kill) || {P, _} <- Callers],
        _ = beamway_peer:wait_until(fun() -> Pending() =:= 0 end, wait_ms()),
        {echo, 1} = gen_server:call(Via, {echo, 1}),
        exit(Pid, kill)
    end).

dropped_when_idle(Config) ->
    on_first(Config, fun(Node) ->
        Pid = start(tv_idle, Node),
        {echo, 1} = gen_server:call(via(tv_idle, Node), {echo, 1}),
        Of = fun() -> [Proxy || {{tv_idle, _, _}, Proxy} <- teleport_via:all()] end,
        [Proxy] = Of(),
        Monitor = monitor(process, Proxy),
        %% Who monitors it counts on it.
        [begin Proxy ! {teleport_proxy, look}, {echo, N} = gen_server:call(Proxy, {echo, N}) end || N <- lists:seq(1, 5)],
        [Proxy] = Of(),
        true = demonitor(Monitor),
        _ = beamway_peer:wait_until(fun() -> Of() =:= [] andalso not is_process_alive(Proxy) end, wait_ms()),
        {echo, 2} = gen_server:call(via(tv_idle, Node), {echo, 2}),
        exit(Pid, kill)
    end).

many_callers(Config) ->
    on_first(Config, fun(Node) ->
        Pid = start(tv_many, Node),
        Via = via(tv_many, Node),
        Callers = [spawn_monitor(fun() -> [{echo, {N, R}} = gen_server:call(Via, {echo, {N, R}}, wait_ms()) || R <- lists:seq(1, 5)] end) || N <- lists:seq(1, 2000)],
        [receive {'DOWN', M, process, P, Reason} -> normal = Reason after wait_ms() -> error(no_answer) end || {P, M} <- Callers],
        true = length([x || {{tv_many, _, _}, _} <- teleport_via:all()]) =< 16,
        exit(Pid, kill)
    end).

lanes_carry_them(Config) ->
    on_first(Config, fun(Node) ->
        Pid = start(tv_lanes, Node),
        Sent = fun() -> lists:sum([S || #{opened_by := this_node, sent := S} <- teleport:lanes(Node)]) end,
        {echo, 0} = gen_server:call(via(tv_lanes, Node), {echo, 0}),
        Before = Sent(),
        [{echo, N} = gen_server:call(via(tv_lanes, Node), {echo, N}) || N <- lists:seq(1, 100)],
        [ok = gen_server:cast(via(tv_lanes, Node), N) || N <- lists:seq(1, 100)],
        true = Sent() - Before >= 200,
        exit(Pid, kill)
    end).

bad_names(Config) ->
    on_first(Config, fun(_) ->
        [{'EXIT', {{bad_name, Bad, _}, _}} = (catch teleport:whereis_name(Bad)) || Bad <- [name, {a, b, c}, {"a", node()}]],
        {'EXIT', {{bad_name, x, _}, _}} = (catch teleport:register_name(x, self()))
    end).

%% @private
callback_mode() -> handle_event_function.

%% @private
init(statem) -> {ok, on, []};
init(event) -> {ok, []};
init({sup, Child}) -> {ok, {#{intensity => 10, period => 10}, [Child]}};
init({child, _}) -> {ok, #{}}.

%% @private
handle_event({call, From}, Request, Name, _) -> {keep_state_and_data, [{reply, From, {Name, Request}}]};
handle_event(cast, Next, _, Data) -> {next_state, Next, Data}.

%% @private
handle_event(Event, Seen) -> {ok, Seen ++ [Event]}.

%% @private
handle_call(seen, Seen) -> {ok, Seen, Seen}.

%% @private
handle_call(pid, _From, State) -> {reply, self(), State};
handle_call({last_of, Pid}, _From, State) -> {reply, maps:get(Pid, State, none), State};
handle_call(answer_and_end, _From, State) -> {stop, normal, last_words, State}.

%% @private
handle_cast({Pid, N, _}, State) -> {noreply, State#{Pid => N}}.

%% @private How many binaries have come.
count(Count) ->
    receive
        {give, From} -> From ! {count, Count}, count(Count);
        Binary when is_binary(Binary) -> count(Count + 1)
    end.

%% What finds no room in time does not arrive, and is counted: each message is one or the other.
full_lane(Config) ->
    Binary = binary:copy(<<"x">>, 2000000),
    Messages = 60,
    on_first(Config, fun(Node) ->
        Pid = erpc:call(Node, erlang, spawn, [?MODULE, count, [0]]),
        true = erpc:call(Node, erlang, register, [tv_full, Pid]),
        Proxy = teleport:whereis_name({tv_full, Node}),
        Proxy ! Binary,
        _ = beamway_peer:wait_until(fun() -> counted(Pid) =:= 1 end, wait_ms()),
        %% Its lane is up.
        ok = teleport:configure(Node, #{block_ms => 50}),
        true = register(tv_full_proxy, Proxy)
    end),
    ok = beamway_peer:sigstop(teleport_nodes:second(Config)),
    on_first(Config, fun(Node) ->
        [tv_full_proxy ! Binary || _ <- lists:seq(1, Messages)],
        %% It looks for room for each of them, one after the other.
        _ = beamway_peer:wait_until(fun() -> erlang:process_info(whereis(tv_full_proxy), message_queue_len) =:= {message_queue_len, 0} andalso dropped(Node) > 0 end, wait_ms())
    end),
    ok = beamway_peer:sigcont(teleport_nodes:second(Config)),
    on_first(Config, fun(Node) ->
        Pid = erpc:call(Node, erlang, whereis, [tv_full]),
        _ = beamway_peer:wait_until(fun() -> counted(Pid) + dropped(Node) =:= 1 + Messages end, wait_ms()),
        [{"teleport_proxy_dropped_total", Dropped}] = [{"teleport_proxy_dropped_total", list_to_integer(Value)}
            || Line <- string:split(lists:flatten(io_lib:format("~ts", [teleport:metrics()])), "\n", all), lists:prefix("teleport_proxy_dropped_total", Line),
               [_, Value] <- [string:split(Line, " ", trailing)]],
        Dropped = dropped(Node),
        ok = teleport:configure(Node, #{block_ms => 5000}),
        true = unregister(tv_full_proxy),
        exit(Pid, kill)
    end).

counted(Pid) ->
    Pid ! {give, self()},
    receive {count, Count} -> Count after wait_ms() -> error(no_count) end.

dropped(Node) -> maps:get(Node, teleport_peers:proxy_dropped(), 0).
