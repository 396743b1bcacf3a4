%% SPDX-License-Identifier: Apache-2.0
%% @doc A cluster of three RabbitMQ nodes on the same host must work over Beamway, on shared memory and on TCP, as it does over stock TCP,
%% and must not lose a confirmed message when a node is killed and restarted. With RabbitMQ 4, two groups store their metadata in Khepri
%% instead of Mnesia. Run by `test/system/run rabbitmq', which installs the server.
%%
%% The group `stock' is the control: it runs the same cases over OTP's own TCP. Publishers and consumers are separate programs that use the
%% client library pika (`rabbitmq_client.py'). Every message whose ID was confirmed must be consumed intact, at least once. The protocol
%% permits duplicates, which are counted and shown. The group `guide' runs every command of docs/guide/rabbitmq.md.
-module(beamway_rabbitmq_SUITE).

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_group/2, end_per_group/2,
         init_per_testcase/2, end_per_testcase/2]).
-export([all_links/1, monitoring_pages/1, logs_are_clean/1, classes_by_option/1, a_member_hangs/1, moved_to_encryption_and_back/1, quorum_queue/1, mirrored_queue/1,
         connections_are_cut/1, commands_of_the_guide/1]).

%% The number of messages that must be confirmed, and consumed, between two steps of a case.
-define(PROGRESS, 500).
-define(PROGRESS_MS, 120000).
%% How long a member is suspended.
-define(HANGS_S, 20).
-define(LOGS, "/var/log/rabbitmq").
%% The configuration that the guide recommends for the failure detector of quorum queues and for their members.
-define(CLASSES, "aten_emitter=control,ra_server_proc:init/1=control").
%% The number of times that all connections between the nodes are cut, alternately for 4 ms and for 43 ms, and the pause between two cuts.
-define(CUTS, 100).
-define(BETWEEN_CUTS_MS, 200).

suite() -> [{timetrap, {minutes, 20}}].

all() -> [{group, Group} || Group <- [stock, beamway, beamway_tcp] ++ [Group || not beamway_bench_rabbitmq_cluster:has_mirrored(), Group <- [stock_khepri, tcp_khepri]] ++ [encrypted, guide]].

%% Nodes are stopped or killed only in the last three cases, so all errors in the logs before these cases are real.
groups() ->
    Cases = [all_links, monitoring_pages, logs_are_clean, a_member_hangs, quorum_queue] ++ [mirrored_queue || beamway_bench_rabbitmq_cluster:has_mirrored()],
    Cut = Cases ++ [connections_are_cut],
    [{stock, [], Cut}, {beamway, [], [classes_by_option | Cases]}, {beamway_tcp, [], [classes_by_option | Cut]}, {stock_khepri, [], [connections_are_cut]},
     {tcp_khepri, [], [connections_are_cut]},
     {encrypted, [], [moved_to_encryption_and_back]}, {guide, [], [commands_of_the_guide]}].

init_per_suite(Config) ->
    ok = beamway_bench_rabbitmq_cluster:install(),
    Config.

end_per_suite(_Config) -> ok.

init_per_group(guide, Config) ->
    %% In this group the commands in the guide copy Beamway to this directory.
    ok = file:del_dir_r("/opt/beamway"),
    Config;
init_per_group(Group, Config) ->
    Contenders = beamway_bench_contender:all(beamway_bench_checkout:root(), 200),
    {Name, Contender, BasePort, Link} = case Group of
                                            stock -> {"stock", tcp, 5600, stock};
                                            beamway -> {"shm", beamway, 6600, shm};
                                            beamway_tcp -> {"tcp", beamway_tcp, 7600, tcp};
                                            stock_khepri -> {"stock-khepri", tcp, 8600, stock};
                                            tcp_khepri -> {"tcp-khepri", beamway_tcp, 9600, tcp};
                                            encrypted -> {"moved", beamway_tcp, 10600, tcp}
                                        end,
    Cluster = beamway_bench_rabbitmq_cluster:start(#{name => Name, base_port => BasePort, contender => with_classes(maps:get(Contender, Contenders))}),
    beamway_bench_rabbitmq_cluster:has_mirrored() andalso
        ({0, _} = beamway_bench_rabbitmq_cluster:ctl(1, ["set_policy", "mirrored", "^mirrored",
                                               "{\"ha-mode\":\"all\",\"ha-sync-mode\":\"automatic\"}"], Cluster)),
    lists:member(Group, [stock_khepri, tcp_khepri]) andalso
        ({ok, ["true"]} = beamway_bench_rabbitmq_cluster:eval(1, "ok = rabbit_feature_flags:enable(khepri_db), rabbit_khepri:is_enabled().", Cluster)),
    [{cluster, Cluster}, {link, Link} | Config].

with_classes(#{env := Env} = Contender) -> Contender#{env := [{"BEAMWAY_CLASSES", ?CLASSES} | Env]}.

end_per_group(guide, _Config) -> ok;
end_per_group(_Group, Config) -> beamway_bench_rabbitmq_cluster:stop(cluster(Config)).

init_per_testcase(_Case, Config) -> Config.

%% There is nothing to clean up: the clients of a failed case exit when their input is closed, which happens when the case's process exits.
end_per_testcase(_Case, _Config) -> ok.

cluster(Config) -> proplists:get_value(cluster, Config).

%% ---- the carrier ----

all_links(Config) ->
    ok = assert_links(Config),
    %% The tools also work without Beamway.
    #{env := Env} = Cluster = cluster(Config),
    Plain = Cluster#{env := [case Key of
                                 _ when Key =:= "ERL_LIBS"; Key =:= "RABBITMQ_CTL_ERL_ARGS" -> {Key, false};
                                 _ -> Pair
                             end || {Key, _} = Pair <- Env]},
    {ok, ["2"]} = beamway_bench_rabbitmq_cluster:eval(2, "1 + 1.", Plain),
    ok.

assert_links(Config) ->
    Link = proplists:get_value(link, Config),
    Links = beamway_bench_rabbitmq_cluster:links(cluster(Config)),
    {6, [Link]} = {map_size(Links), lists:usort(maps:values(Links))},
    ok.

%% ---- links as other tools show them ----

%% The management page and the Prometheus page both look for the TCP socket of each connection. With stock TCP they find it and its counters
%% grow. Over the driver's links they must not find a socket, because its counters would not change while the link is in use.
monitoring_pages(Config) ->
    Cluster = cluster(Config),
    Stock = proplists:get_value(link, Config) =:= stock,
    Peers = fun(N) -> [name(M, Config) || M <- [1, 2, 3], M =/= N] end,
    %% The management page collects its data every five seconds.
    ok = beamway_bench_rabbitmq_cluster:await(fun() -> has_cluster_links(Cluster) end, 60000, no_cluster_links),
    [begin
         Nodes = decode(beamway_bench_rabbitmq_cluster:get(N, {management, "/api/nodes"}, Cluster)),
         3 = length(Nodes),
         [check_cluster_links(Stock, Node, Nodes) || Node <- Nodes],
         [begin
              {200, Text} = beamway_bench_rabbitmq_cluster:get(N, {prometheus, Path}, Cluster),
              [check_dist_metrics(Stock, Peer, Text) || Peer <- Peers(N)]
          end || Path <- ["/metrics", "/metrics/per-object"]],
         {200, _} = beamway_bench_rabbitmq_cluster:get(N, {prometheus, "/metrics/detailed?family=queue_coarse_metrics"}, Cluster),
         [{200, _} = beamway_bench_rabbitmq_cluster:get(N, {management, Path}, Cluster)
          || Path <- ["/", "/api/overview", "/api/connections", "/api/nodes/" ++ name(N, Config)]]
     end || N <- [1, 2, 3]],
    Stock orelse check_own_metrics(Config),
    ok.

has_cluster_links(Cluster) ->
    Nodes = decode(beamway_bench_rabbitmq_cluster:get(1, {management, "/api/nodes"}, Cluster)),
    lists:all(fun(Node) -> length(links_to_members(Node, Nodes)) >= 2 end, Nodes).

%% Returns the links between members. There are also short-lived links, which may be shown for some time after they have ended: those of
%% rabbitmqctl, and those of the hidden node with a random name through which a RabbitMQ 4 node queries the members when it joins.
links_to_members(Node, Nodes) ->
    Members = [Name || #{<<"name">> := Name} <- Nodes],
    [Link || #{<<"name">> := Name} = Link <- maps:get(<<"cluster_links">>, Node, []), lists:member(Name, Members)].

check_cluster_links(Stock, Node, Nodes) ->
    Peers = links_to_members(Node, Nodes),
    2 = length(Peers),
    [case Link of
         #{<<"peer_addr">> := _, <<"recv_bytes">> := Bytes} when Stock, Bytes > 1000 -> ok;
         #{} when not Stock, not is_map_key(<<"peer_addr">>, Link), not is_map_key(<<"recv_bytes">>, Link) -> ok
     end || Link <- Peers].

check_dist_metrics(Stock, Peer, Text) ->
    %% The collector reports 3 for a connection that is up.
    {3, 3} = {sample("erlang_vm_dist_node_state", Peer, Text), 3},
    true = is_integer(sample("erlang_vm_dist_node_queue_size_bytes", Peer, Text)),
    case sample("erlang_vm_dist_recv_bytes", Peer, Text) of
        Bytes when Stock, Bytes > 1000 -> ok;
        none when not Stock -> ok
    end,
    %% docs/guide/rabbitmq.md lists the metrics that must be present.
    Families = families(Peer, Text),
    Families = case Stock of true -> ["node", "port", "proc", "recv", "send"]; false -> ["node", "proc"] end,
    ok.

families(Peer, Text) ->
    {match, Found} = re:run(Text, ["^erlang_vm_dist_([a-z]+)_[a-z_]*\\{peer=\"", Peer, "\""], [global, multiline, {capture, all_but_first, list}]),
    lists:usort([Family || [Family] <- Found]).

sample(Metric, Peer, Text) ->
    case re:run(Text, [Metric, "\\{peer=\"", Peer, "\"[^}]*\\} ([0-9]+)"], [{capture, all_but_first, list}]) of
        {match, [Value]} -> list_to_integer(Value);
        nomatch -> none
    end.

check_own_metrics(Config) ->
    {ok, Lines} = beamway_bench_rabbitmq_cluster:eval(1, "io:put_chars(beamway:metrics()).", cluster(Config)),
    Text = lists:join("\n", Lines),
    [true = sample("beamway_link_bytes_in_total", name(M, Config), Text) > 1000 || M <- [2, 3]].

decode({200, Body}) -> jiffy:decode(Body, [return_maps]).

name(N, Config) ->
    #{name := Name} = cluster(Config),
    Name ++ integer_to_list(N) ++ "@localhost".

%% The logs must not contain a crash, an error or warning of the carrier, or an error of the collectors.
logs_are_clean(Config) ->
    [begin
         {ok, Text} = file:read_file(filename:join(?LOGS, name(N, Config) ++ ".log")),
         [ok = absent(Word, Text)
          || Word <- ["crash", "\\[error\\].*beamway", "\\[warning\\].*beamway", "\\[error\\].*prometheus",
                      "sysmon_handler_filter"]]
     end || N <- [1, 2, 3]],
    ok.

absent(Word, Text) ->
    case re:run(Text, ["^.*", Word, ".*$"], [multiline, caseless, {capture, first, binary}]) of
        nomatch -> ok;
        {match, [Line]} -> error({in_the_log, Line})
    end.

%% aten and ra do not know about Beamway, but messages from their processes must have priority. No other process of RabbitMQ is in this class.
classes_by_option(Config) ->
    Cluster = cluster(Config),
    ok = beamway_bench_rabbitmq_cluster:declare("classes", quorum, 2, Cluster),
    [begin
         Classes = fun() -> classes(N, Cluster) end,
         IsRight = fun({Name, Call, Class}) -> (Class =:= "control") =:= (Name =:= "aten_emitter" orelse Call =:= "ra_server_proc") end,
         ok = beamway_bench_rabbitmq_cluster:await(fun() -> lists:all(IsRight, Classes()) end, 60000, {wrong_classes, N}),
         Controls = [Name || {Name, _, "control"} <- Classes()],
         [true = lists:any(fun(Name) -> lists:suffix(Who, Name) end, Controls) || Who <- ["aten_emitter", "classes"]]
     end || N <- [1, 2, 3]],
    ok.

%% Returns the name, the module of the initial call and the class of each registered process.
classes(N, Cluster) ->
    {ok, Lines} = beamway_bench_rabbitmq_cluster:eval(N, "[io:format(\"~ts ~ts ~ts~n\", [Name, element(1, proc_lib:translate_initial_call(Pid)), beamway_classes:of_process(Pid)])"
                                               " || Name <- registered(), Pid <- [whereis(Name)], is_pid(Pid)], done.", Cluster),
    [{Name, Call, Class} || Line <- Lines, [Name, Call, Class] <- [string:lexemes(Line, " ")]].

%% ---- messages ----

%% A majority is enough, so while one of three nodes hangs, a message of 200 KB must be confirmed every second.
a_member_hangs(Config) ->
    Queue = "hanging",
    Cluster = cluster(Config),
    ok = beamway_bench_rabbitmq_cluster:declare(Queue, quorum, 2, Cluster),
    Leader = leader(Queue, Config),
    Clients = start_clients(Queue, "large", [Leader], Config),
    ok = progress(Clients, 50),
    Pid = integer_to_list(beamway_bench_rabbitmq_cluster:os_pid(Leader rem 3 + 1, Cluster)),
    Stopped = try
                  [] = os:cmd("kill -STOP " ++ Pid),
                  confirmed_each_second(?HANGS_S, Clients)
              after
                  os:cmd("kill -CONT " ++ Pid)
              end,
    beamway_runner:say("     ~ts: confirmed in each of ~b s while a member hung: ~w", [maps:get(name, Cluster), ?HANGS_S, Stopped]),
    [] = [none || 0 <- Stopped],
    ok = beamway_bench_rabbitmq_cluster:await(fun() -> members(Queue, Config) =:= 3 end, 60000, {member_did_not_return, Queue}),
    ok = stop_clients(publishers, Clients),
    Confirmed = ids(publishers, Clients),
    ok = beamway_bench_rabbitmq_cluster:await(fun() -> missing(Confirmed, Clients) =:= [] end, 120000, {lost, Queue}),
    stop_clients(consumers, Clients).

confirmed_each_second(Seconds, Clients) ->
    Counts = [begin receive after 1000 * beamway_runner:slowness() -> ok end, length(ids(publishers, Clients)) end || _ <- lists:seq(0, Seconds)],
    lists:zipwith(fun(Before, After) -> After - Before end, lists:droplast(Counts), tl(Counts)).

%% Each connection between the nodes is reset, and new ones are refused for a moment. Over stock distribution, each node treats the first
%% cut as a loss of the other two nodes, so the cluster is partitioned. Over Beamway the cluster must not notice the cuts.
connections_are_cut(Config) ->
    Queue = "cut",
    Cluster = cluster(Config),
    ok = beamway_bench_rabbitmq_cluster:declare(Queue, quorum, 2, Cluster),
    Clients = start_clients(Queue, "small", [1], Config),
    ok = progress(Clients, 50),
    Before = beamway_bench_rabbitmq_cluster:losses(Cluster),
    Cuts = case proplists:get_value(link, Config) of
               stock -> cut_until_lost(1, Before, Cluster);
               tcp -> [cut(N, Cluster) || N <- lists:seq(1, ?CUTS)], ?CUTS
           end,
    Lost = beamway_bench_rabbitmq_cluster:losses(Cluster) - Before,
    beamway_runner:say("     ~ts: ~b cuts, and ~b lines of lost nodes or partitions in the logs", [maps:get(name, Cluster), Cuts, Lost]),
    ok = case proplists:get_value(link, Config) of
             stock -> true = Lost > 0, ok;
             tcp ->
                 0 = Lost,
                 {ok, ["[]" | _]} = beamway_bench_rabbitmq_cluster:eval(1, "rabbit_node_monitor:partitions().", Cluster),
                 ok = assert_links(Config),
                 ok = progress(Clients, 50)
         end,
    ok = stop_clients(publishers, Clients),
    stop_clients(consumers, Clients).

cut_until_lost(N, Before, Cluster) when N =< ?CUTS ->
    cut(N, Cluster),
    case beamway_bench_rabbitmq_cluster:losses(Cluster) of
        Before -> cut_until_lost(N + 1, Before, Cluster);
        _ -> N
    end.

cut(N, #{name := Name}) ->
    _ = beamway_cut:of_nodes(Name, case N rem 2 of 0 -> 4; 1 -> 43 end),
    receive after ?BETWEEN_CUTS_MS -> ok end.

%% The nodes are given a key one at a time. They accept unencrypted links only until all of them have the key; afterwards the steps are
%% reversed. Each step restarts one node, so there is always a majority: messages must still be confirmed, and none may be lost.
moved_to_encryption_and_back(Config) ->
    ct:timetrap({minutes, 40}),
    Queue = "moved",
    Cluster = cluster(Config),
    Key = beamway_bench_rabbitmq_cluster:install_key("rabbitmq", proplists:get_value(priv_dir, Config)),
    ok = beamway_bench_rabbitmq_cluster:declare(Queue, quorum, 2, Cluster),
    Clients = start_clients(Queue, "p", [1, 2, 3], Config),
    ok = progress(Clients),
    %% rabbitmqctl uses a setting that the nodes accept both before and after the step.
    [ok = moved({Encrypt, Tool, Key}, Link, Queue, Clients, Config)
     || {Encrypt, Tool, Link} <- [{"prefer", "false", tls}, {"true", "true", tls}, {"prefer", "true", tls}, {"false", "false", tcp}]],
    ok = stop_clients(publishers, Clients),
    Confirmed = ids(publishers, Clients),
    ok = beamway_bench_rabbitmq_cluster:await(fun() -> missing(Confirmed, Clients) =:= [] end, 120000, {lost, Queue}),
    ok = stop_clients(consumers, Clients),
    beamway_runner:say("     ~ts: ~b confirmed while twelve restarts moved the nodes to encrypted links and back, none lost", [maps:get(name, Cluster), length(Confirmed)]).

moved({Encrypt, Tool, Key}, Link, Queue, Clients, Config) ->
    #{nodes := Numbers, env := Env} = Cluster = cluster(Config),
    With = fun(How) -> Cluster#{env := [{"BEAMWAY_ENCRYPT", How}, {"BEAMWAY_ENCRYPT_KEY_FILE", Key} | lists:keydelete("BEAMWAY_ENCRYPT", 1, Env)]} end,
    Tools = With(Tool),
    lists:foreach(fun(N) ->
                          ok = beamway_bench_rabbitmq_cluster:await(fun() -> members(Queue, Config) =:= 3 end, 120000, {members_missing, Queue}),
                          ok = beamway_bench_rabbitmq_cluster:kill_node(N, Cluster),
                          ok = beamway_bench_rabbitmq_cluster:start_node(N, With(Encrypt), Tools),
                          progress(Clients, 50)
                  end, Numbers),
    Links = beamway_bench_rabbitmq_cluster:links(Tools),
    {Encrypt, 6, [Link]} = {Encrypt, map_size(Links), lists:usort(maps:values(Links))},
    ok.

quorum_queue(Config) ->
    lossless(quorum, Config).

mirrored_queue(Config) ->
    lossless(mirrored, Config).

%% The queue's leader is killed and restarted, and then a follower. In the meantime publishers, each connected to a different node, publish
%% messages, and consumers receive them.
lossless(Kind, Config) ->
    Queue = atom_to_list(Kind),
    ok = beamway_bench_rabbitmq_cluster:declare(Queue, Kind, 2, cluster(Config)),
    Clients = start_clients(Queue, "p", [1, 2, 3], Config),
    ok = progress(Clients),
    Leader = leader(Queue, Config),
    ok = kill_and_return(Leader, Queue, Clients, Config),
    ok = kill_and_return(Leader rem 3 + 1, Queue, Clients, Config),
    ok = stop_clients(publishers, Clients),
    Confirmed = ids(publishers, Clients),
    ok = beamway_bench_rabbitmq_cluster:await(fun() -> missing(Confirmed, Clients) =:= [] end, 120000,
                                    {lost, Queue}),
    ok = stop_clients(consumers, Clients),
    Consumed = ids(consumers, Clients),
    [] = [Line || Line <- Consumed, lists:prefix("corrupt", Line)],
    beamway_runner:say("     ~ts, ~ts: ~b confirmed, ~b consumed, ~b of them duplicates, none lost",
                       [maps:get(name, cluster(Config)), Queue, length(Confirmed), length(Consumed),
                        length(Consumed) - length(lists:usort(Consumed))]),
    ok.

kill_and_return(N, Queue, Clients, Config) ->
    Cluster = cluster(Config),
    ok = beamway_bench_rabbitmq_cluster:await(fun() -> members(Queue, Config) =:= 3 end, 60000, {members_missing, Queue}),
    ok = beamway_bench_rabbitmq_cluster:kill_node(N, Cluster),
    ok = progress(Clients),
    ok = beamway_bench_rabbitmq_cluster:start_node(N, Cluster),
    ok = assert_links(Config),
    ok = beamway_bench_rabbitmq_cluster:await(fun() -> members(Queue, Config) =:= 3 end, 60000, {member_did_not_return, Queue}),
    progress(Clients).

%% Queries all nodes and uses the first answer, because a node may be down.
queue(Queue, Config) ->
    Answers = [catch beamway_bench_rabbitmq_cluster:get(N, {management, "/api/queues/%2F/" ++ Queue}, cluster(Config)) || N <- [1, 2, 3]],
    case [decode(Answer) || {200, _} = Answer <- Answers] of
        [First | _] -> First;
        [] -> #{}
    end.

leader(Queue, Config) ->
    ok = beamway_bench_rabbitmq_cluster:await(fun() -> is_map_key(<<"node">>, queue(Queue, Config)) end, 30000, {no_leader, Queue}),
    #{<<"node">> := Node} = queue(Queue, Config),
    [N] = [N || N <- [1, 2, 3], list_to_binary(name(N, Config)) =:= Node],
    N.

%% Returns the number of members that have all messages.
members(Queue, Config) ->
    case queue(Queue, Config) of
        #{<<"type">> := <<"quorum">>, <<"online">> := Online} -> length(Online);
        #{<<"type">> := <<"classic">>, <<"synchronised_slave_nodes">> := Nodes} -> 1 + length(Nodes);
        #{} -> 0
    end.

%% ---- clients ----

%% Starts three publishers and two consumers. Each client tries the nodes in `Nodes' in order, beginning with a different one.
start_clients(Queue, Name, Nodes, Config) ->
    #{base_port := Base} = cluster(Config),
    Folder = filename:join(proplists:get_value(priv_dir, Config), Queue ++ "_" ++ maps:get(name, cluster(Config))),
    ok = filelib:ensure_dir(filename:join(Folder, "x")),
    Program = test_support:file("test/system/clusters/rabbitmq_client.py"),
    Ports = fun(K) ->
                    {Later, First} = lists:split((K - 1) rem length(Nodes), Nodes),
                    [integer_to_list(Base + Node) || Node <- First ++ Later]
            end,
    Start = fun(N, Words) ->
                    File = filename:join(Folder, hd(Words) ++ integer_to_list(N)),
                    {File, beamway_bench_tools:open(Program, Words ++ [File | Ports(N)])}
            end,
    #{publishers => [Start(N, ["publish", Queue, Name ++ integer_to_list(N)]) || N <- [1, 2, 3]],
      consumers => [Start(N, ["consume", Queue]) || N <- [1, 2]]}.

%% Stops clients by closing their input. Their output is in the log of the run.
stop_clients(Which, Clients) ->
    [ok = stop_client(Client) || {_, Client} <- maps:get(Which, Clients)],
    ok.

stop_client(Client) ->
    {ok, OsPid} = beamway_bench_tools:os_pid(Client),
    Identity = beamway_bench_os:identity(OsPid),
    ok = beamway_bench_tools:close(Client, none),
    ok = beamway_bench_os:await_end(Identity, 60000).

ids(Which, Clients) ->
    lists:append([complete_lines(File) || {File, _} <- maps:get(Which, Clients)]).

complete_lines(File) ->
    case file:read_file(File) of
        {ok, Text} -> [binary_to_list(Line) || Line <- lists:droplast(binary:split(Text, <<"\n">>, [global]))];
        {error, enoent} -> []
    end.

missing(Confirmed, Clients) ->
    ordsets:subtract(ordsets:from_list(Confirmed), ordsets:from_list(ids(consumers, Clients))).

%% Waits until more messages have been confirmed and more have been consumed.
progress(Clients) -> progress(Clients, ?PROGRESS).

progress(Clients, More) ->
    Count = fun() -> {length(ids(publishers, Clients)), length(ids(consumers, Clients))} end,
    {Confirmed, Consumed} = Count(),
    beamway_bench_rabbitmq_cluster:await(fun() ->
                                       {MoreConfirmed, MoreConsumed} = Count(),
                                       MoreConfirmed >= Confirmed + More andalso MoreConsumed >= Consumed + More
                               end, ?PROGRESS_MS, no_progress).

%% ---- the guide ----

commands_of_the_guide(Config) ->
    Lines = test_support:guide("rabbitmq.md", proplists:get_value(priv_dir, Config), 15 * 60000),
    ok = shows("link => shm", Lines),
    ok = shows("beamway_link_bytes_in_total", Lines).

shows(What, Lines) ->
    case [Line || Line <- Lines, string:find(Line, What) =/= nomatch] of
        [_ | _] -> ok;
        [] -> error({not_shown, What})
    end.
