%% SPDX-License-Identifier: Apache-2.0
%% @doc What the option `on_event' is told, that its function disturbs nothing, and the figures as Prometheus text.
-module(teleport_events_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([what_is_told/1, lost_before_its_use/1, overload_is_told/1, a_slow_function/1, a_failing_function/1, prometheus/1]).
-export([tell/3]).
-import(teleport_nodes, [on_first/2, wait_ms/0]).

suite() -> [{timetrap, {minutes, 3}}].

all() -> [{group, shm}, {group, tcp}].

groups() ->
    Both = [what_is_told, lost_before_its_use, overload_is_told, prometheus],
    [{shm, [], Both ++ [a_slow_function, a_failing_function]}, {tcp, [], Both}].

init_per_group(Kind, Config) -> teleport_nodes:init_group(Kind, Config).

end_per_group(_Kind, _Config) -> ok.

init_per_testcase(_Case, Config) -> teleport_nodes:start_pair(Config).

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

%% @private As telemetry:execute/3.
tell(Name, Measurements, Metadata) -> events_test ! {event, Name, Measurements, Metadata}.

event(Name) ->
    receive {event, Name, Measurements, Metadata} -> {Measurements, Metadata}
    after wait_ms() -> error({never_told, Name})
    end.

what_is_told(Config) ->
    on_first(Config, fun(Node) ->
        true = register(events_test, self()),
        ok = teleport:configure(all, #{on_event => {?MODULE, tell}, backoff_ms => {20, 50}}),
        ok = teleport:send({nobody, Node}, x, #{class => bulk, key => k}),
        {#{system_time := At}, #{node := Node, class := bulk, index := Index, kind := _, reason := _}} = event([teleport, lane, up]),
        true = is_integer(At),
        [exit(teleport_sender:pid(Tx), kill) || {out, _, Tx} <- teleport_peers:all()],
        {#{unconfirmed := Unconfirmed}, #{node := Node, class := bulk, index := Index, reason := killed}} = event([teleport, lane, down]),
        true = lists:member(Unconfirmed, [0, 1]),
        {_, #{class := bulk, index := Index}} = event([teleport, lane, up]),
        ok = erpc:call(Node, application, stop, [teleport]),
        {_, #{node := Node}} = event([teleport, by_distribution, begun]),
        {#{unconfirmed := 0}, _} = event([teleport, lane, down]),
        ok = erpc:call(Node, application, start, [teleport]),
        {_, #{node := Node}} = event([teleport, by_distribution, ended]),
        %% Also as a fun; and nobody is told any more.
        Self = self(),
        ok = teleport:configure(all, #{on_event => fun(Name, _, _) -> Self ! {told, Name} end}),
        ok = teleport:prime(Node),
        receive {told, [teleport, lane, up]} -> ok after wait_ms() -> error(not_told) end,
        ok = teleport:configure(all, #{on_event => none}),
        ok = teleport_events:emit(Node, [teleport, lane, up], #{}, #{}),
        0 = teleport_events:dropped()
    end).

%% It is open, but somebody is in the middle of a message by distribution.
lost_before_its_use(Config) ->
    on_first(Config, fun(Node) ->
        true = register(events_test, self()),
        ok = erpc:call(Node, application, stop, [teleport]),
        ok = teleport:configure(all, #{on_event => {?MODULE, tell}, backoff_ms => {20, 50}}),
        ok = teleport:send({nobody, Node}, x),
        {_, #{node := Node}} = event([teleport, by_distribution, begun]),
        true = ets:insert(teleport_fallback, {{Node, self()}}),
        ok = erpc:call(Node, application, start, [teleport]),
        {_, #{class := Class, index := Index}} = event([teleport, lane, up]),
        [exit(Pid, kill) || {_, Pid, _, _} <- supervisor:which_children(teleport_lane_sup)],
        {#{unconfirmed := 0}, #{class := Class, index := Index, reason := killed}} = event([teleport, lane, down])
    end).

overload_is_told(Config) ->
    PeerB = teleport_nodes:second(Config),
    on_first(Config, fun(Node) ->
        ok = teleport:configure(all, #{max_queue_messages => 10}),
        ok = teleport:prime(Node)
    end),
    ok = beamway_peer:sigstop(PeerB),
    on_first(Config, fun(Node) ->
        true = register(events_test, self()),
        ok = teleport:configure(all, #{on_event => {?MODULE, tell}}),
        Send = fun(Options) -> teleport:send({nobody, Node}, binary:copy(<<"x">>, 100000), Options#{key => k}) end,
        _ = beamway_peer:wait_until(fun() -> Send(#{on_full => error}) =:= {error, overload} end, wait_ms()),
        {#{bytes := Bytes}, #{node := Node, way := lane, class := normal, on_full := error}} = event([teleport, overload]),
        true = Bytes > 100000,
        ok = Send(#{on_full => drop}),
        {_, #{on_full := drop}} = event([teleport, overload]),
        {error, timeout} = Send(#{timeout => 10}),
        {_, #{on_full := block}} = event([teleport, overload])
    end),
    ok = beamway_peer:sigcont(PeerB).

%% It waits for ever: lanes and calls go on, what finds no room is counted, and after its limit the next event comes.
a_slow_function(Config) ->
    on_first(Config, fun(Node) ->
        Self = self(),
        ok = teleport:prime(Node),
        ok = teleport:configure(all, #{on_event => fun([test], #{n := N}, _) -> Self ! {told, N}, N =:= 1 andalso receive never -> ok end; (_, _, _) -> ok end}),
        [ok = teleport_events:emit(Node, [test], #{n => N}, #{}) || N <- lists:seq(1, 1500)],
        Dropped = teleport_events:dropped(),
        %% One is in its hands, perhaps not yet when the last one came. Lanes of others may tell of themselves beside.
        {true, _} = {Dropped >= 499 andalso Dropped =< 510, Dropped},
        Server = erpc:call(Node, teleport_nodes, start_server, [none]),
        {echo, x} = teleport:call(Server, {echo, x}),
        [receive {told, N} -> ok after wait_ms() -> error({not_told, N}) end || N <- lists:seq(1, 1500 - 510)],
        ok = teleport_events:emit(Node, [test], #{n => 0}, #{}),
        receive {told, 0} -> ok after wait_ms() -> error(not_told) end
    end).

a_failing_function(Config) ->
    on_first(Config, fun(Node) ->
        Self = self(),
        Before = whereis(teleport_events),
        ok = teleport:configure(all, #{on_event => fun(_, #{n := N}, _) -> Self ! {told, N}, case N rem 3 of 0 -> error(badly); 1 -> exit(badly); 2 -> exit(self(), kill) end end}),
        [ok = teleport_events:emit(Node, [test], #{n => N}, #{}) || N <- lists:seq(1, 30)],
        [receive {told, N} -> ok after wait_ms() -> error({not_told, N}) end || N <- lists:seq(1, 30)],
        Before = whereis(teleport_events),
        ok = teleport:prime(Node),
        %% Its process itself: events go on with the next one.
        true = exit(Before, kill),
        _ = beamway_peer:wait_until(fun() -> Pid = whereis(teleport_events), is_pid(Pid) andalso Pid =/= Before end, wait_ms()),
        ok = teleport_events:emit(Node, [test], #{n => 31}, #{}),
        receive {told, 31} -> ok after wait_ms() -> error(not_told) end
    end).

prometheus(Config) ->
    on_first(Config, fun(Node) ->
        ok = teleport:configure(all, #{backoff_ms => {20, 50}}),
        ok = teleport:prime(Node),
        [ok = teleport:send({nobody, Node}, x, #{class => control}) || _ <- [1, 2, 3]],
        Value = fun(Line) ->
                        case re:run(iolist_to_binary(teleport:metrics()), ["(?m)^", Line, " ([0-9]+)$"], [{capture, [1], list}]) of
                            {match, [Number]} -> list_to_integer(Number);
                            nomatch -> none
                        end
                end,
        Peer = ["peer=\"", atom_to_list(Node), "\""],
        3 = Value(["teleport_lane_sent_total{", Peer, ",class=\"control\",lane=\"0\",opened_by=\"this_node\",link=\"[a-z]+\"}"]),
        0 = Value("teleport_events_dropped_total"),
        none = Value(["teleport_by_distribution{", Peer, "}"]),
        ok = erpc:call(Node, application, stop, [teleport]),
        ok = teleport:send({nobody, Node}, x),
        1 = Value(["teleport_by_distribution{", Peer, "}"]),
        1 = Value(["teleport_by_distribution_sent_total{", Peer, "}"]),
        %% Each metric has its two lines of comment, and nothing else is there.
        [] = [Line || Line <- string:split(iolist_to_binary(teleport:metrics()), "\n", all),
                      re:run(Line, "^$|^# (HELP|TYPE) teleport_[a-z_]+ .+$|^teleport_[a-z_]+({[a-z_]+=\"[^\"]+\"(,[a-z_]+=\"[^\"]+\")*})? [0-9]+$") =:= nomatch]
    end).
