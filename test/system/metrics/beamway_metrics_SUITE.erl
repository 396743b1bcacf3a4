%% SPDX-License-Identifier: Apache-2.0
%% @doc A real Prometheus server scrapes two nodes that run all applications, and evaluates the alert rules and the dashboard's queries on
%% the result. Another case uses the library prometheus.erl from RabbitMQ's package. Run by `test/system/run metrics', which installs both.
-module(beamway_metrics_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([lint/1, alerts/1, scraped/1, dashboard/1, by_the_library/1]).

-define(PROMETHEUS, 9494).
-define(PORTS, [9464, 9465]).
-define(WAIT_MS, 60000).
-define(LIBRARY, "/usr/lib/rabbitmq/lib/rabbitmq_server-*/plugins/{prometheus,accept,quantile_estimator}-*/ebin").

suite() -> [{timetrap, {minutes, 5}}].

all() -> [lint, alerts, scraped, dashboard, by_the_library].

init_per_suite(Config) ->
    {ok, _} = application:ensure_all_started(inets),
    Folder = beamway_peer:new_folder("metrics"),
    Peers = [start(Port) || Port <- ?PORTS],
    [{PeerA, _}, {PeerB, NodeB}] = Peers,
    ok = beamway_peer:connect_both(beamway_shm, PeerA, PeerB),
    %% A link over TCP has more metrics than a ring.
    {ok, _, NodeC} = beamway_peer:start(beamway_tcp, #{}),
    true = beamway_peer:call(PeerA, net_kernel, connect_node, [NodeC]),
    %% Sends messages, so that Prometheus sees traffic.
    ok = beamway_peer:run(PeerA, fun() ->
        _ = spawn(fun() -> talk(NodeB) end),
        ok
    end),
    Targets = lists:join(",", [io_lib:format("\"127.0.0.1:~b\"", [Port]) || Port <- ?PORTS]),
    File = filename:join(Folder, "prometheus.yml"),
    ok = file:write_file(File, ["global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [\"", priv("alerts.yml"), "\"]\n",
                                "scrape_configs:\n  - job_name: beamway\n    static_configs: [{targets: [", Targets, "]}]\n"]),
    _ = run("promtool check config " ++ File),
    Command = [os:find_executable("prometheus"), "--config.file=" ++ File, "--storage.tsdb.path=" ++ filename:join(Folder, "data"),
               lists:flatten(io_lib:format("--web.listen-address=127.0.0.1:~b", [?PROMETHEUS]))],
    Keeper = spawn(fun() -> keep(Command, filename:join(Folder, "log")) end),
    [{folder, Folder}, {peer, PeerA}, {keeper, Keeper} | Config].

end_per_suite(Config) ->
    Keeper = proplists:get_value(keeper, Config),
    Monitor = monitor(process, Keeper),
    Keeper ! stop,
    receive {'DOWN', Monitor, process, Keeper, _} -> ok after ?WAIT_MS -> error(prometheus_does_not_end) end,
    ok = beamway_peer:stop_started(),
    ok = file:del_dir_r(proplists:get_value(folder, Config)).

%% Owns the Prometheus server's port, and terminates the server. The process that runs
%% init_per_suite cannot own the port, because it exits too early.
keep([Program | Arguments], Log) ->
    Port = open_port({spawn_executable, Program}, [{args, Arguments}, stderr_to_stdout, exit_status, binary]),
    {os_pid, Pid} = erlang:port_info(Port, os_pid),
    kept(Port, Pid, Log).

kept(Port, Pid, Log) ->
    receive
        {Port, {data, Data}} ->
            ok = file:write_file(Log, Data, [append]),
            kept(Port, Pid, Log);
        {Port, {exit_status, _}} -> ok;
        stop ->
            [] = os:cmd("kill " ++ integer_to_list(Pid)),
            kept(Port, Pid, Log)
    end.

start(Port) ->
    {ok, Peer, Node} = beamway_peer:start(beamway_shm, #{args => ["-beamway_exporter", "port", integer_to_list(Port)]}),
    [{ok, _} = beamway_peer:call(Peer, application, ensure_all_started, [Application]) || Application <- [teleport, placement, beamway_exporter]],
    {Peer, Node}.

%% Sends messages until the node exits.
talk(Node) ->
    ok = teleport:send({nobody, Node}, x),
    receive after 100 -> talk(Node) end.

priv(File) -> filename:join([test_support:checkout(), "apps/beamway_exporter/priv", File]).

run(Command) ->
    case beamway_bench_tools:run("/bin/sh", ["-c", lists:flatten(Command) ++ " 2>&1"], 60000) of
        {0, Said} -> Said;
        Other -> error({Command, Other})
    end.

get(Port, Path) ->
    {ok, {{_, 200, _}, _, Body}} = httpc:request(get, {lists:flatten(io_lib:format("http://127.0.0.1:~b~ts", [Port, Path])), []}, [{timeout, 15000}], [{body_format, binary}]),
    Body.

query(Expression) ->
    #{<<"status">> := <<"success">>, <<"data">> := #{<<"result">> := Result}} =
        jiffy:decode(get(?PROMETHEUS, "/api/v1/query?query=" ++ uri_string:quote(Expression)), [return_maps]),
    Result.

%% promtool must not report problems in the metrics.
lint(Config) ->
    File = filename:join(proplists:get_value(folder, Config), "scrape"),
    Text = get(hd(?PORTS), "/metrics"),
    {match, _} = re:run(Text, "\nbeamway_link_rtt_seconds{"),
    ok = file:write_file(File, Text),
    [] = string:trim(run(["promtool check metrics <", File])),
    ok.

alerts(Config) ->
    Folder = proplists:get_value(folder, Config),
    _ = run(["promtool check rules ", priv("alerts.yml")]),
    _ = run(["cp ", priv("alerts.yml"), " ", filename:join(test_support:checkout(), "test/system/metrics/alerts_test.yml"), " ", Folder]),
    Said = run(["cd ", Folder, " && promtool test rules alerts_test.yml"]),
    {match, _} = re:run(Said, "SUCCESS"),
    %% Each alert must have a test case.
    {ok, Rules} = file:read_file(priv("alerts.yml")),
    {ok, Cases} = file:read_file(filename:join(Folder, "alerts_test.yml")),
    {match, Names} = re:run(Rules, "alert: (\\w+)", [global, {capture, all_but_first, binary}]),
    [{match, _} = re:run(Cases, ["alertname: ", Name]) || [Name] <- Names],
    ok.

scraped(_Config) ->
    beamway_peer:wait_until(fun() -> is_list(catch query("up")) andalso [V || #{<<"value">> := [_, V]} <- query("up")] =:= [<<"1">>, <<"1">>] end, ?WAIT_MS),
    %% Both nodes must report the same link between them, with traffic.
    beamway_peer:wait_until(fun() -> length(query("rate(beamway_link_bytes_out_total{link=\"shm\"}[30s]) > 0")) =:= 2 end, ?WAIT_MS),
    [_, _] = query("beamway_node_info{version!=\"\"}"),
    ok.

%% Each query of each panel must return at least one series.
dashboard(_Config) ->
    {ok, Text} = file:read_file(priv("dashboard.json")),
    #{<<"panels">> := Panels} = jiffy:decode(Text, [return_maps]),
    Queries = [Expression || #{<<"targets">> := Targets} <- Panels, #{<<"expr">> := Expression} <- Targets],
    true = length(Queries) >= 10,
    [beamway_peer:wait_until(fun() -> query(ready(Expression)) =/= [] end, ?WAIT_MS) || Expression <- Queries],
    ok.

%% Returns the expression with the values that Grafana would substitute for its variables.
ready(Expression) ->
    unicode:characters_to_list(string:replace(string:replace(Expression, "$__rate_interval", "1m", all), "$instance", ".*", all)).

%% If the library is running, the application registers its collector with it. The application listens only if a port is configured.
by_the_library(_Config) ->
    Paths = [_, _, _] = filelib:wildcard(?LIBRARY),
    {ok, Peer, _} = beamway_peer:start(beamway_shm, #{args => lists:append([["-pa", Path] || Path <- Paths])}),
    [{ok, _} = beamway_peer:call(Peer, application, ensure_all_started, [Application]) || Application <- [prometheus, teleport, placement, beamway_exporter]],
    Text = beamway_peer:call(Peer, prometheus_text_format, format, []),
    [{match, _} = re:run(Text, Name) || Name <- ["\nbeamway_node_info\\{", "\nplacement_leases 0", "\nteleport_dropped_total 0"]],
    [] = beamway_peer:call(Peer, yucan, figures, []),
    ok = beamway_peer:call(Peer, application, stop, [beamway_exporter]),
    nomatch = re:run(beamway_peer:call(Peer, prometheus_text_format, format, []), "placement_leases"),
    %% If a port is configured, the application also listens, and the library's output has the histogram of its HTTP server.
    ok = beamway_peer:call(Peer, application, set_env, [beamway_exporter, port, 0]),
    {ok, _} = beamway_peer:call(Peer, application, ensure_all_started, [beamway_exporter]),
    {match, _} = re:run(beamway_peer:call(Peer, prometheus_text_format, format, []), "yucan_request_duration_seconds_bucket\\{[^}]*le=\"\\+Inf\""),
    ok.
