%% SPDX-License-Identifier: Apache-2.0
%% @doc The exporter on real nodes: the content of a scrape with all parts, with no part, and while a part is stopping. `make test-metrics' uses a
%% real Prometheus.
-module(beamway_exporter_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([all_parts/1, no_part/1, attributes_that_fail/1, a_part_that_ends/1, bad_options/1, other_names/1, other_methods/1]).

suite() -> [{timetrap, {minutes, 2}}].

all() -> [all_parts, no_part, attributes_that_fail, a_part_that_ends, bad_options, other_names, other_methods].

init_per_suite(Config) ->
    {ok, _} = application:ensure_all_started(inets),
    Config.

end_per_suite(_Config) -> ok.

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

start(Carrier, Applications) ->
    {ok, Peer, Node} = beamway_peer:start(Carrier, #{args => ["-beamway_exporter", "port", "0"]}),
    [{ok, _} = beamway_peer:call(Peer, application, ensure_all_started, [Application]) || Application <- Applications],
    {Peer, Node, beamway_peer:call(Peer, yucan, port, [beamway_exporter])}.

request(Method, {_, _, Port}) ->
    Url = lists:flatten(io_lib:format("http://127.0.0.1:~b/metrics", [Port])),
    Request = case Method of post -> {Url, [], "text/plain", "x"}; _ -> {Url, []} end,
    {ok, {{_, Status, _}, Headers, Body}} = httpc:request(Method, Request, [{timeout, 15000}], [{body_format, binary}]),
    {Status, Headers, Body}.

scrape(Exporter) ->
    {200, Headers, Body} = request(get, Exporter),
    "text/plain; version=0.0.4; charset=utf-8" = proplists:get_value("content-type", Headers),
    samples(Body).

%% Parses names with labels and their values. The text must be well-formed: each name is declared once, and each sample belongs to the name declared
%% before it.
samples(Text) ->
    {ok, Sample} = re:compile("^([a-z_][a-z0-9_]*)(\\{[a-z_]+=\"(?:[^\"\\\\]|\\\\.)*\"(?:,[a-z_]+=\"(?:[^\"\\\\]|\\\\.)*\")*\\})? ([0-9.]+)$"),
    {_, Announced, Samples} =
        lists:foldl(fun(<<"# HELP ", Rest/binary>>, {_, Names, Found}) ->
                            [Name, _] = binary:split(Rest, <<" ">>),
                            {Name, [Name | Names], Found};
                       (<<"# TYPE ", Rest/binary>>, {Name, Names, Found}) ->
                            [Name, Type] = binary:split(Rest, <<" ">>),
                            true = lists:member(Type, [<<"counter">>, <<"gauge">>, <<"histogram">>]),
                            {Name, Names, Found};
                       (Line, {Name, Names, Found}) ->
                            {match, [Of, Labels, Value]} = re:run(Line, Sample, [{capture, all_but_first, binary}]),
                            true = lists:member(Of, [Name | [<<Name/binary, End/binary>> || End <- [<<"_bucket">>, <<"_count">>, <<"_sum">>]]]),
                            {Name, Names, [{<<Of/binary, Labels/binary>>, Value} | Found]}
                    end, {none, [], []}, binary:split(Text, <<"\n">>, [global, trim_all])),
    true = length(Announced) =:= length(lists:usort(Announced)),
    true = length(Samples) =:= length(lists:usort([Key || {Key, _} <- Samples])),
    maps:from_list(Samples).

of_name(Name, Samples) -> [{Key, binary_to_integer(Value)} || {Key, Value} <- maps:to_list(Samples), string:prefix(Key, Name) =/= nomatch].

has(Name, Samples) -> of_name(Name, Samples) =/= [].

all_parts(_Config) ->
    Applications = [teleport, placement, beamway_exporter],
    {PeerA, _, _} = A = start(beamway_shm, Applications),
    {PeerB, NodeB, _} = start(beamway_shm, Applications),
    ok = beamway_peer:connect_both(beamway_shm, PeerA, PeerB),
    ok = beamway_peer:run(PeerA, fun() -> [teleport:send({nobody, NodeB}, x, #{confirm => true}) || _ <- lists:seq(1, 10)], ok end),
    %% The lease is released when its holder exits.
    ok = beamway_peer:run(PeerA, fun() ->
        Self = self(),
        _ = spawn(fun() -> Self ! placement_lease:reserve(node(), #{}, [], #{ttl => 60000}), receive stop -> ok end end),
        receive {ok, _} -> ok after 15000 -> error(no_lease) end
    end),
    First = scrape(A),
    [true = has(Name, First) || Name <- [<<"beamway_node_info{">>, <<"beamway_link_bytes_in_total{">>, <<"teleport_refused_total">>,
                                         <<"placement_attribute_failures{">>, <<"yucan_open_connections{server=\"beamway_exporter\"}">>]],
    #{<<"placement_attributes">> := _, <<"placement_leases">> := <<"1">>} = First,
    Label = iolist_to_binary(["beamway_link_bytes_out_total{peer=\"", atom_to_list(NodeB), "\",link=\"shm\"}"]),
    #{Label := Before} = First,
    ok = beamway_peer:run(PeerA, fun() -> [erpc:call(NodeB, erlang, node, []) || _ <- lists:seq(1, 100)], ok end),
    #{Label := After} = Second = scrape(A),
    true = binary_to_integer(After) >= binary_to_integer(Before) + 100,
    %% The previous scrape has been answered, so its time is in the histogram.
    #{<<"yucan_request_duration_seconds_count{server=\"beamway_exporter\"}">> := Timed} = Second,
    true = binary_to_integer(Timed) >= 1.

%% Starts a stock node on which only the exporter and its server run.
no_part(_Config) ->
    Names = lists:usort([hd(binary:split(hd(binary:split(Key, <<"{">>)), <<"_">>)) || Key <- maps:keys(scrape(start(inet_tcp, [beamway_exporter])))]),
    [<<"beamway">>, <<"yucan">>] = Names.

%% Without teleport the built-in attribute lane_bytes is unknown, which does not count as a failure.
attributes_that_fail(_Config) ->
    {Peer, _, _} = Exporter = start(inet_tcp, [placement, beamway_exporter]),
    ok = beamway_peer:call(Peer, placement, insert, [broken, {dynamic, {erlang, error, [on_purpose]}}]),
    [{ok, [{broken, {unknown, _}}, {lane_bytes, {unknown, _}}]} = beamway_peer:call(Peer, placement_attr, local, [[broken, lane_bytes], 15000]) || _ <- [1, 2, 3]],
    Failures = of_name(<<"placement_attribute_failures{">>, scrape(Exporter)),
    {_, 3} = lists:keyfind(<<"placement_attribute_failures{attribute=\"broken\"}">>, 1, Failures),
    false = lists:keyfind(<<"placement_attribute_failures{attribute=\"lane_bytes\"}">>, 1, Failures).

a_part_that_ends(_Config) ->
    {Peer, _, _} = Exporter = start(inet_tcp, [placement, beamway_exporter]),
    #{<<"placement_leases">> := <<"0">>} = scrape(Exporter),
    ok = beamway_peer:call(Peer, application, stop, [placement]),
    false = is_map_key(<<"placement_leases">>, scrape(Exporter)),
    {ok, _} = beamway_peer:call(Peer, application, ensure_all_started, [placement]),
    #{<<"placement_leases">> := <<"0">>} = scrape(Exporter).

bad_options(_Config) ->
    {ok, Peer, _} = beamway_peer:start(inet_tcp),
    [begin
         ok = beamway_peer:call(Peer, application, set_env, [beamway_exporter, Key, Value]),
         {error, {beamway_exporter, {{bad_options, Said}, _}}} = beamway_peer:call(Peer, application, ensure_all_started, [beamway_exporter]),
         ok = beamway_peer:call(Peer, application, unset_env, [beamway_exporter, Key])
     end || {Key, Value, Said} <- [{port, 70000, <<"port is 70000; 0 to 65535 is expected">>}, {port, "9464", <<"port is \"9464\"; 0 to 65535 is expected">>},
                                   {ip, "127.0.0.1", <<"ip is \"127.0.0.1\"; an address as a tuple is expected">>}, {prot, 0, <<"unknown parameter prot; known are port, ip, hosts">>},
                                   {hosts, ["a.org"], <<"hosts is [\"a.org\"]; a list of names as binaries is expected">>}]],
    ok = beamway_peer:call(Peer, application, set_env, [beamway_exporter, port, 0]),
    {ok, _} = beamway_peer:call(Peer, application, ensure_all_started, [beamway_exporter]),
    ok.

%% A page on another site whose DNS name points to this host cannot read anything.
other_names(_Config) ->
    {ok, Peer, _} = beamway_peer:start(inet_tcp, #{args => ["-beamway_exporter", "port", "0"]}),
    ok = beamway_peer:call(Peer, application, set_env, [beamway_exporter, hosts, [<<"Proxy.example">>]]),
    {ok, _} = beamway_peer:call(Peer, application, ensure_all_started, [beamway_exporter]),
    Port = beamway_peer:call(Peer, yucan, port, [beamway_exporter]),
    [begin
         [{Got, _, _}] = yucan_client:exchange(Port, ["GET /metrics HTTP/1.1\r\nHost: ", Name, "\r\n\r\n"]),
         {Name, Status} = {Name, Got}
     end || {Name, Status} <- [{"localhost", 200}, {"127.0.0.1:9464", 200}, {"[::1]", 200}, {"proxy.example", 200}, {"evil.example", 403}]].

other_methods(_Config) ->
    Exporter = start(inet_tcp, [beamway_exporter]),
    {405, Headers, <<>>} = request(post, Exporter),
    "GET, HEAD" = proplists:get_value("allow", Headers),
    {200, _, <<>>} = request(head, Exporter).
