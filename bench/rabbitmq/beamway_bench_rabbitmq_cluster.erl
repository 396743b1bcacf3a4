%% SPDX-License-Identifier: Apache-2.0
%% @doc A cluster of Debian's rabbitmq-server on this machine, for the benchmark and for the test. The caller must run in `scripts/in-overlay
%% --loopback', where the package is installed and the ports are free. Everything that the cluster leaves behind disappears when that overlay is
%% removed.
%%
%% A contender ({@link beamway_bench_contender}) determines the cluster's carrier. The servers receive its settings only through environment
%% variables. They run as the package's user, so they get a copy of Beamway that this user may read. Within a cluster, the nodes' ports differ only in
%% the last digit. All nodes run on this host, or each in a network namespace ({@link open_hosts/0}).
-module(beamway_bench_rabbitmq_cluster).

-export([install/0, install_key/2, has_mirrored/0, start/1, stop/1, remove/1, start_node/2, start_node/3, kill_node/2, os_pid/2, ctl/3, eval/3, get/3,
         declare/4, links/1, losses/1, amqp/2, open_hosts/0, client_address/0, await/3]).

-export_type([cluster/0, hosts/0]).

-type cluster() :: #{name := string(), base_port := inet:port_number(), nodes := [1..3],
                     hosts := hosts(), env := [{string(), string() | false}], _ => _}.
-type hosts() :: #{1..3 => {HostName :: string(), Address :: string(), Space :: string()}}.
%% The network namespace of each node, its address and its name in /etc/hosts; empty if all nodes run on this host.
%%
%% Node N is named `NAMEN@localhost', or after its host. Its AMQP port is base_port + N, its management port is base_port + 100 + N, and its Prometheus port is base_port
%% + 200 + N.

-define(LIB, "/opt/beamway").
-define(STATE, "/var/lib/rabbitmq").
-define(LOGS, "/var/log/rabbitmq").
-define(START_MS, 120000).
-define(CTL_MS, 60000).

%% @doc Copies Beamway to a directory that the package's user may read.
-spec install() -> ok.
install() ->
    Source = filename:join([beamway_bench_checkout:root(), "apps", "beamway"]),
    ok = filelib:ensure_dir(?LIB ++ "/x"),
    {0, _} = beamway_bench_tools:run("/bin/cp", ["-rL", Source, ?LIB], 10000),
    ok.

%% @doc Generates a key for encrypted links in this directory, and copies it to a file next to Beamway's copy that only this user may read.
-spec install_key(User :: string(), file:filename()) -> File :: file:filename().
install_key(User, Folder) ->
    {Made, File} = {filename:join(Folder, "key"), ?LIB ++ "/key"},
    {0, _} = beamway_bench_tools:run(filename:join(beamway_bench_checkout:root(), "bin/beamway"), ["keygen", Made], 60000),
    {0, _} = beamway_bench_tools:run("/usr/bin/install", ["-o", User, "-m", "400", Made, File], 10000),
    File.

%% @doc Returns whether this RabbitMQ has mirrored queues, which version 4 removed.
-spec has_mirrored() -> boolean().
has_mirrored() ->
    [Folder] = filelib:wildcard("/usr/lib/rabbitmq/lib/rabbitmq_server-*"),
    [_, Version] = string:split(filename:basename(Folder), "-"),
    list_to_integer(hd(string:lexemes(Version, "."))) < 4.

%% @doc Creates three hosts: network namespaces that are joined by veth with each other and with this one, where the clients run. They disappear with the
%% overlay.
-spec open_hosts() -> {ok, hosts()} | {error, string()}.
open_hosts() ->
    case beamway_bridges:build("bwr", [{3, unlimited}], unlimited) of
        {error, Why} -> {error, Why};
        {ok, #{hosts := Hosts, spaces := [Switch | _]}} ->
            Named = maps:from_list([{N, {"host" ++ integer_to_list(N), Address, Space}} || {N, {Address, Space}} <- lists:zip([1, 2, 3], Hosts)]),
            "" = os:cmd("ip link add bwrc type veth peer name bwrs netns " ++ Switch ++ " && ip -n " ++ Switch ++ " link set bwrs master br0 up"
                        " && ip address add " ++ client_address() ++ "/24 dev bwrc && ip link set bwrc up"),
            ok = file:write_file("/etc/hosts", [[Address, " ", Name, "\n"] || {Name, Address, _} <- maps:values(Named)], [append]),
            {ok, Named}
    end.

%% @doc Returns the address from which the clients connect to these hosts.
-spec client_address() -> string().
client_address() -> "10.98.7.100".

%% @doc Starts a cluster of three nodes. `settings' contains lines for rabbitmq.conf.
-spec start(#{name := string(), base_port := inet:port_number(),
              contender := beamway_bench_contender:t(), settings => [string()], hosts => hosts()}) -> cluster().
start(#{name := Name, base_port := BasePort, contender := Contender} = Options) ->
    Cluster = #{name => Name, base_port => BasePort, nodes => [1, 2, 3], hosts => maps:get(hosts, Options, #{}), env => env(Contender)},
    ok = configure(Cluster, maps:get(settings, Options, [])),
    %% From version 4 on, a new node waits for the other nodes in its configuration; older versions need the first node to be up.
    ok = launch(1, Cluster),
    has_mirrored() andalso (ok = await_node(1, Cluster)),
    ok = launch(2, Cluster),
    ok = launch(3, Cluster),
    ok = await_node(1, Cluster),
    ok = await_node(2, Cluster),
    ok = await_node(3, Cluster),
    ok = await(fun() -> is_whole(Cluster) end, ?START_MS, {no_cluster, Name}),
    Cluster.

%% Sets or unsets each variable that the contender needs or that the caller's shell may have set.
env(#{args := Args, env := Env}) ->
    Flags = string:join(without_path(Args), " "),
    Carrier = case lists:member("-proto_dist", Args) of
                  true -> [{"ERL_LIBS", ?LIB}, {"RABBITMQ_CTL_ERL_ARGS", Flags}];
                  false -> []
              end,
    Ours = [{"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", Flags} | Carrier] ++ Env,
    [Clean || {Key, _} = Clean <- beamway_bench_contender:clean_env(), not lists:keymember(Key, 1, Ours)] ++ Ours.

%% Code paths are not needed because ERL_LIBS is set.
without_path(["-pa", _ | Rest]) -> without_path(Rest);
without_path([Arg | Rest]) -> [Arg | without_path(Rest)];
without_path([]) -> [].

configure(#{name := Name, nodes := Numbers} = Cluster, Settings) ->
    ok = file:write_file(plugins_file(Cluster), "[rabbitmq_management,rabbitmq_prometheus].\n"),
    Nodes = [["cluster_formation.classic_config.nodes.", integer_to_list(N), " = ", node_name(N, Cluster), "\n"]
             || N <- Numbers],
    lists:foreach(
      fun(N) ->
              Lines = ["cluster_name = ", Name, "\n", "management.tcp.port = ", port_text(100 + N, Cluster), "\n",
                       "prometheus.tcp.port = ", port_text(200 + N, Cluster), "\n",
                       %% The clients' user may otherwise only connect from the same host.
                       "log.file.level = info\nloopback_users = none\n", Nodes | [[Line, "\n"] || Line <- Settings]],
              ok = file:write_file(config_file(N, Cluster) ++ ".conf", Lines)
      end, Numbers).

plugins_file(#{name := Name}) -> "/etc/rabbitmq/" ++ Name ++ "_plugins".

config_file(N, #{name := Name}) -> "/etc/rabbitmq/" ++ Name ++ integer_to_list(N).

node_name(N, #{name := Name} = Cluster) -> Name ++ integer_to_list(N) ++ "@" ++ element(1, host(N, Cluster)).

host(N, #{hosts := Hosts}) -> maps:get(N, Hosts, {"localhost", "127.0.0.1", here}).

%% @doc Returns the address and port to which a client of this node connects.
-spec amqp(1..3, cluster()) -> string().
amqp(N, Cluster) -> element(2, host(N, Cluster)) ++ ":" ++ port_text(N, Cluster).

port_text(Offset, #{base_port := Base}) -> integer_to_list(Base + Offset).

node_env(N, #{env := Env} = Cluster) ->
    [{"RABBITMQ_NODENAME", node_name(N, Cluster)}, {"RABBITMQ_NODE_PORT", port_text(N, Cluster)},
     {"RABBITMQ_CONFIG_FILE", config_file(N, Cluster)}, {"RABBITMQ_ENABLED_PLUGINS_FILE", plugins_file(Cluster)} | Env].

launch(N, Cluster) ->
    {0, _} = run(N, "/usr/sbin/rabbitmq-server", ["-detached"], Cluster, ?START_MS),
    ok.

%% A node opens its AMQP port last, so the node is ready when it listens on this port.
await_node(N, #{base_port := Base} = Cluster) ->
    await(fun() -> is_listening(element(2, host(N, Cluster)), Base + N) end, ?START_MS, {node_did_not_start, node_name(N, Cluster), no_amqp_port}).

is_listening(Address, Port) ->
    case gen_tcp:connect(Address, Port, [], 1000) of
        {ok, Socket} -> ok = gen_tcp:close(Socket), true;
        {error, _} -> false
    end.

is_whole(#{nodes := Numbers} = Cluster) ->
    lists:all(fun(N) -> lists:sort(running(N, Cluster)) =:= lists:sort([node_name(M, Cluster) || M <- Numbers]) end, Numbers).

running(N, Cluster) ->
    case eval(N, "F = hd([F || F <- [list_running, all_running], erlang:function_exported(rabbit_nodes, F, 0)]), "
                 "lists:foreach(fun(N) -> io:format(\"~s~n\", [N]) end, rabbit_nodes:F()).", Cluster) of
        {ok, Lines} -> Lines -- ["ok"];
        {error, _} -> []
    end.

%% @doc Starts a stopped node, and waits until it has rejoined its cluster.
-spec start_node(1..3, cluster()) -> ok.
start_node(N, Cluster) -> start_node(N, Cluster, Cluster).

%% @doc Like {@link start_node/2}, but rabbitmqctl gets the environment of `Tools' instead of the
%% node's.
-spec start_node(1..3, Node :: cluster(), Tools :: cluster()) -> ok.
start_node(N, #{name := Name} = Node, Tools) ->
    ok = launch(N, Node),
    ok = await_node(N, Node),
    await(fun() -> is_whole(Tools) end, ?START_MS, {no_cluster, Name}).

%% @doc Kills a node with kill -9, and waits until it has exited.
-spec kill_node(1..3, cluster()) -> ok.
kill_node(N, Cluster) ->
    case beamway_bench_os:identity(os_pid(N, Cluster)) of
        gone -> ok;
        Identity ->
            ok = beamway_bench_os:kill(Identity),
            ok = beamway_bench_os:await_end(Identity, 10000)
    end.

%% @doc Returns the process ID of the node's VM.
-spec os_pid(1..3, cluster()) -> pos_integer().
os_pid(N, Cluster) ->
    {ok, Text} = file:read_file(filename:join([?STATE, "mnesia", node_name(N, Cluster) ++ ".pid"])),
    binary_to_integer(string:trim(Text)).

%% @doc Kills all nodes. A clean shutdown is not needed, because the cluster is not used again.
-spec stop(cluster()) -> ok.
stop(#{nodes := Numbers} = Cluster) ->
    lists:foreach(fun(N) -> ok = kill_node(N, Cluster) end, Numbers).

%% @doc Kills all nodes and deletes their files, which are in memory.
-spec remove(cluster()) -> ok.
remove(#{nodes := Numbers} = Cluster) ->
    ok = stop(Cluster),
    lists:foreach(fun(N) -> ok = file:del_dir_r(filename:join([?STATE, "mnesia", node_name(N, Cluster)])) end, Numbers).

%% @doc Runs a rabbitmqctl command on a node, over the cluster's carrier.
-spec ctl(1..3, [string()], cluster()) -> {Status :: integer() | timeout, Lines :: [string()]}.
ctl(N, [Command | Args], Cluster) ->
    run(N, "/usr/sbin/rabbitmqctl", [Command, "-q", "-n", node_name(N, Cluster) | Args], Cluster, ?CTL_MS).

%% @doc Evaluates an expression on a node, and returns its output.
-spec eval(1..3, string(), cluster()) -> {ok, [string()]} | {error, [string()]}.
eval(N, Expression, Cluster) ->
    case ctl(N, ["eval", Expression], Cluster) of
        {0, Lines} -> {ok, [string:trim(Line) || Line <- Lines]};
        {_, Lines} -> {error, Lines}
    end.

%% @doc Returns how each node is connected to the others: the kind of link if the node has Beamway, `stock' if it does not and the connection uses
%% OTP's own TCP socket, and `none' if there is no connection.
-spec links(cluster()) -> #{{Node :: string(), Peer :: string()} => shm | tcp | stock | none}.
links(#{nodes := Numbers} = Cluster) ->
    maps:from_list([{{node_name(N, Cluster), Peer}, Kind}
                    || N <- Numbers, {Peer, Kind} <- links_of(N, [node_name(M, Cluster) || M <- Numbers, M =/= N], Cluster)]).

links_of(N, Peers, Cluster) ->
    Expression = "Kinds = try [{P, L} || #{node := P, link := L} <- beamway:links()] catch error:undef -> "
        "[{P, stock} || {P, C} <- erlang:system_info(dist_ctrl), erlang:port_info(C, name) =:= {name, \"tcp_inet\"}] end, "
        "lists:foreach(fun({P, L}) -> io:format(\"~s ~s~n\", [P, L]) end, Kinds).",
    {ok, Lines} = eval(N, Expression, Cluster),
    Found = [{Peer, list_to_existing_atom(Kind)} || Line <- Lines, [Peer, Kind] <- [string:lexemes(Line, " ")]],
    [{Peer, proplists:get_value(Peer, Found, none)} || Peer <- Peers].

%% @doc Fetches a page from the management plugin or from Prometheus.
-spec get(1..3, {management | prometheus, Path :: string()}, cluster()) -> {Status :: integer(), Body :: binary()}.
get(N, {Which, Path}, Cluster) ->
    request(get, {url(N, Which, Path, Cluster), headers()}).

%% @doc Declares a durable queue whose leader is on this node and whose replicas are on the others. A classic queue is mirrored only if a policy says
%% so, and the caller must set that policy. A stream keeps only its last 64 MB.
-spec declare(Queue :: string(), quorum | mirrored | stream, Leader :: 1..3, cluster()) -> ok.
declare(Queue, Kind, Leader, Cluster) ->
    Arguments = case Kind of
                    quorum -> #{<<"x-queue-type">> => <<"quorum">>};
                    mirrored -> #{<<"x-queue-type">> => <<"classic">>};
                    stream -> #{<<"x-queue-type">> => <<"stream">>, <<"x-max-length-bytes">> => 64 bsl 20, <<"x-stream-max-segment-size-bytes">> => 16 bsl 20}
                end,
    Json = jiffy:encode(#{durable => true, arguments => Arguments, node => list_to_binary(node_name(Leader, Cluster))}),
    Url = url(Leader, management, "/api/queues/%2F/" ++ Queue, Cluster),
    {201, _} = request(put, {Url, headers(), "application/json", iolist_to_binary(Json)}),
    ok.

%% @doc Returns the number of lines in the nodes' logs that report a lost node or a partition.
-spec losses(cluster()) -> non_neg_integer().
losses(#{nodes := Numbers} = Cluster) ->
    length([Line || N <- Numbers, {ok, Text} <- [file:read_file(filename:join(?LOGS, node_name(N, Cluster) ++ ".log"))], Line <- binary:split(Text, <<"\n">>, [global]),
                    re:run(Line, "rabbit on node .* down|node .* down: |partitioned", [caseless, {capture, none}]) =:= match]).

url(N, Which, Path, #{base_port := Base} = Cluster) ->
    Port = Base + N + case Which of management -> 100; prometheus -> 200 end,
    "http://" ++ element(2, host(N, Cluster)) ++ ":" ++ integer_to_list(Port) ++ Path.

headers() -> [{"authorization", "Basic " ++ base64:encode_to_string("guest:guest")}].

request(Method, Request) ->
    {ok, _} = application:ensure_all_started(inets),
    %% httpc belongs to the application inets, which may be missing where RabbitMQ is not installed, so the call is dynamic.
    Client = httpc,
    {ok, {{_, Status, _}, _, Body}} = Client:request(Method, Request, [{timeout, 30000}], [{body_format, binary}]),
    {Status, Body}.

%% @doc Waits until the condition is true. Fails with this reason if that takes too long.
-spec await(fun(() -> boolean()), TimeoutMs :: non_neg_integer(), Reason :: term()) -> ok.
await(Holds, TimeoutMs, Reason) ->
    await_until(Holds, erlang:monotonic_time(millisecond) + TimeoutMs, Reason).

await_until(Holds, Deadline, Reason) ->
    case {Holds(), erlang:monotonic_time(millisecond) > Deadline} of
        {true, _} -> ok;
        {false, true} -> error(Reason);
        {false, false} -> receive after 200 -> await_until(Holds, Deadline, Reason) end
    end.

%% Runs a program on this node's host, with the node's environment.
run(N, Program, Args, Cluster, TimeoutMs) ->
    Set = [case Value of
               false -> ["-u", Key];
               _ -> [Key ++ "=" ++ Value]
           end || {Key, Value} <- lists:keysort(2, node_env(N, Cluster))],
    %% env expects the variables to unset before those to set.
    {Unset, Values} = lists:partition(fun([First | _]) -> First =:= "-u" end, Set),
    [First | Words] = case host(N, Cluster) of {_, _, here} -> []; {_, _, Space} -> beamway_netns:host(Space) end ++ ["/usr/bin/env" | lists:append(Unset ++ Values) ++ [Program | Args]],
    beamway_bench_tools:run(First, Words, TimeoutMs).
