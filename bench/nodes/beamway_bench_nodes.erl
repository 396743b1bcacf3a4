%% SPDX-License-Identifier: Apache-2.0
%% @doc Starts the nodes of a measurement as separate operating-system processes and stops them.
%%
%% The nodes are controlled over their standard input and output, never over the carrier under test. They use their own epmd on a free port of the
%% loopback interface. Nothing outlives the calling process: when it dies for any reason, the nodes and epmd get end of file on standard input.
%% {@link stop/1} waits until the kernel reports that they have exited.
%%
%% The benchmark cluster uses `-connect_all false', so its only links are those that this module opens, each from the side that the measurement
%% requires, and `global' neither connects on its own nor sends anything in the meantime. The demo starts its nodes as a user would, with the defaults
%% of `global' and prevent_overlapping_partitions. When one node is killed, all the others lose that same node, so they agree and stay connected.
-module(beamway_bench_nodes).

-export([start_epmd/0, start_epmd/1, epmd_port/1, stop_epmd/1, start/3, start_many/3, stop/1, stop_all/0, connect/2, call/4, call/5, all/4, all/5, each/2,
         names/1, os_pids/1, cpu_us/1, links/1, counters/1]).

-export_type([epmd/0, cluster/0, direction/0, options/0]).

-opaque epmd() :: #{port := port(), number := inet:port_number()} | #{remote := beamway_bench_hosts:epmd(), number := inet:port_number()}.
-type member() :: #{peer := pid(), name := node(), os := beamway_bench_os:identity() | remote, os_pid := pos_integer()}.
-type cluster() :: #{contender := beamway_bench_contender:t(), members := [member(), ...]}.
-type direction() :: forward | reverse.
%% With `forward', the first node connects to the second; with `reverse', the second connects to the first.
-type options() :: #{count := pos_integer(), connect_all => boolean(), prefix => string(), hosts => [beamway_bench_hosts:host()]}.
%% The nodes are named prefix1@127.0.0.1 and so on; without a prefix they get one that is unique on this machine. If hosts are given, the nodes are
%% distributed across them.

-define(BATCH, 10).
-define(BOOT_MS, 30000).
-define(CALL_MS, 30000).
-define(END_MS, 5000).
%% Nodes that stop at the same time share the processors, so a mesh of a hundred gets more time than a single node.
-define(END_NODE_MS, 500).
-define(MESH_MS, 10000).

%% @doc Starts an epmd that exits when the calling process exits.
-spec start_epmd() -> epmd().
start_epmd() ->
    start_local_epmd(3).

%% @doc Like {@link start_epmd/0}, but on other hosts, or on this host if the list is empty.
-spec start_epmd([beamway_bench_hosts:host()]) -> epmd().
start_epmd([]) ->
    start_epmd();
start_epmd(Hosts) ->
    {Remote, Number} = beamway_bench_hosts:start_epmd(Hosts),
    #{remote => Remote, number => Number}.

start_local_epmd(0) ->
    error({epmd_did_not_start, "no epmd came up on a free port of 127.0.0.1; is 'epmd' installed?"});
start_local_epmd(Tries) ->
    Number = free_port(),
    %% epmd does not read its standard input, so the shell does. The shell's read returns when the process at the other end of the pipe dies, even if
    %% that process was killed with kill -9.
    Script = "\"$1\" -port \"$2\" -address 127.0.0.1 >/dev/null 2>&1 & epmd=$!; read line; kill $epmd; wait",
    Port = open_port({spawn_executable, "/bin/sh"},
                     [{args, ["-c", Script, "sh", epmd_program(), integer_to_list(Number)]}, exit_status]),
    case await_listener(Number, erlang:monotonic_time(millisecond) + ?END_MS) of
        ok -> #{port => Port, number => Number};
        timeout -> stop_epmd(#{port => Port, number => Number}), start_local_epmd(Tries - 1)
    end.

%% @doc Returns the port on which this epmd listens.
-spec epmd_port(epmd()) -> inet:port_number().
epmd_port(#{number := Number}) -> Number.

%% @doc Stops an epmd.
-spec stop_epmd(epmd()) -> ok.
stop_epmd(#{remote := Remote}) ->
    beamway_bench_hosts:stop_epmd(Remote);
stop_epmd(#{port := Port}) ->
    try erlang:port_close(Port) of
        true -> ok
    catch
        error:badarg -> ok
    end.

epmd_program() ->
    Own = filename:join([code:root_dir(), "erts-" ++ erlang:system_info(version), "bin", "epmd"]),
    case {filelib:is_regular(Own), os:find_executable("epmd")} of
        {true, _} -> Own;
        {false, false} -> error({no_epmd, Own});
        {false, Found} -> Found
    end.

free_port() ->
    {ok, Socket} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Number} = inet:port(Socket),
    ok = gen_tcp:close(Socket),
    Number.

await_listener(Number, Deadline) ->
    case gen_tcp:connect({127, 0, 0, 1}, Number, [], 1000) of
        {ok, Socket} -> gen_tcp:close(Socket);
        {error, _} ->
            case erlang:monotonic_time(millisecond) > Deadline of
                true -> timeout;
                false -> receive after 10 -> await_listener(Number, Deadline) end
            end
    end.

%% @doc Starts one contender's nodes in parallel, and waits until all of them have booted.
-spec start(epmd(), beamway_bench_contender:t(), options()) -> cluster().
start(#{number := EpmdPort}, #{args := Args, env := Env} = Contender, #{count := Count} = Options) ->
    Root = beamway_bench_checkout:root(),
    ok = check_built(Contender, Root),
    ok = beamway_bench_tls:prepare(Contender, Root),
    Cookie = random_text(),
    Own = ["-setcookie", random_text(), "-start_epmd", "false",
           "-connect_all", atom_to_list(maps:get(connect_all, Options, false))],
    PeerOptions = #{connection => standard_io, args => beamway_bench_contender:common_args(Root) ++ Own ++ Args,
                    env => beamway_bench_contender:clean_env()
                        ++ [{"ERL_EPMD_PORT", integer_to_list(EpmdPort)} | Env]},
    Prefix = maps:get(prefix, Options, unique_prefix()),
    Hosts = maps:get(hosts, Options, []),
    Waiting = [start_peer(maps:get(wrapper, Contender, []), at(Index, Hosts, Root, PeerOptions#{name => Prefix ++ integer_to_list(Index)}))
               || Index <- lists:seq(1, Count)],
    Members = [local_or_not(Hosts, await_boot(Contender, Start)) || Start <- Waiting],
    Cluster = #{contender => Contender, members => Members},
    _ = put(?MODULE, [Cluster | started()]),
    %% Other users of this machine can see the cookie on the command line, so the nodes change it after they have booted.
    _ = all(Cluster, erlang, set_cookie, [list_to_atom(Cookie)]),
    Cluster.

%% @doc Like {@link start/3}, but for many nodes. They are started in batches, because nodes that start at the same time compete for the processors
%% and each must boot within a time limit.
-spec start_many(epmd(), beamway_bench_contender:t(), Count :: pos_integer()) -> [cluster()].
start_many(Epmd, Contender, Count) -> [start(Epmd, Contender, #{count => Number}) || Number <- batches(Count)].

batches(Count) when Count > ?BATCH -> [?BATCH | batches(Count - ?BATCH)];
batches(Count) -> [Count].

%% The nodes listen only on the loopback interface, because a benchmark must not expose a machine to its network unless the user has specified hosts.
at(_, [], _, #{args := Args} = Options) ->
    Options#{longnames => true, host => "127.0.0.1", args := ["-kernel", "inet_dist_use_interface", "{127,0,0,1}" | Args]};
at(Index, Hosts, Root, Options) ->
    maps:merge(Options, beamway_bench_hosts:peer_options(lists:nth((Index - 1) rem length(Hosts) + 1, Hosts), Root)).

%% The local kernel cannot report on a process on another machine.
local_or_not([Machine | _], Member) when is_list(Machine) -> Member#{os => remote};
local_or_not(_, #{os_pid := OsPid} = Member) -> Member#{os => beamway_bench_os:identity(OsPid)}.

%% All prefixes are equally long, because the length of a node's name affects the size of messages.
unique_prefix() ->
    Number = erlang:unique_integer([positive, monotonic]),
    lists:flatten(io_lib:format("bench~6..0b-", [Number rem 1000000])).

start_peer(Wrapper, Options) ->
    Tag = make_ref(),
    {Program, Words} = maps:get(exec, Options, {beamway_bench_checkout:erl(), []}),
    %% Like `bin/beamway' itself, the node must not load code from the current directory.
    InRoot = {"/bin/sh", ["-c", "cd / && exec \"$@\"", "sh"] ++ Wrapper ++ [Program | Words]},
    {ok, Peer, _} = peer:start_link(Options#{exec => InRoot, wait_boot => {self(), Tag}}),
    {Peer, Tag, monitor(process, Peer)}.

await_boot(#{name := Name}, {Peer, Tag, Monitor}) ->
    receive
        {Tag, {started, Node, Peer}} ->
            true = demonitor(Monitor, [flush]),
            OsPid = list_to_integer(peer:call(Peer, os, getpid, [], ?CALL_MS)),
            #{peer => Peer, name => Node, os_pid => OsPid};
        {Tag, {boot_failed, Reason, Peer}} ->
            error({node_did_not_start, Name, Reason});
        {'DOWN', Monitor, process, Peer, Reason} ->
            error({node_did_not_start, Name, Reason})
    after ?BOOT_MS ->
            error({node_did_not_start, Name, timeout})
    end.

%% Fails here if Beamway has not been built, because otherwise the node would fail to boot with an
%% unhelpful message.
check_built(#{link := stock}, _) -> ok;
check_built(#{}, Root) ->
    Wanted = [filename:join([Root, "apps", "beamway" | Path])
              || Path <- [["ebin", "beamway_dist.beam"], ["priv", "beamway_drv.so"]]],
    case [File || File <- Wanted, not filelib:is_regular(File)] of
        [] -> ok;
        Missing -> error({not_built, Missing})
    end.

%% Uses the kernel's random numbers, so that the crypto application need not be installed.
random_text() ->
    {ok, File} = file:open("/dev/urandom", [read, raw, binary]),
    {ok, Bytes} = file:read(File, 16),
    ok = file:close(File),
    lists:flatten([io_lib:format("~2.16.0b", [Byte]) || <<Byte>> <= Bytes]).

%% @doc Stops the nodes and waits until the kernel reports that they have exited. A node that does not exit on its own is killed, and that counts as
%% an error, because it would otherwise have outlived the benchmark.
-spec stop(cluster()) -> ok.
stop(#{members := Members, contender := #{name := Name}} = Cluster) ->
    _ = put(?MODULE, lists:delete(Cluster, started())),
    _ = [catch peer:stop(Peer) || #{peer := Peer} <- Members],
    EndMs = ?END_MS + length(Members) * ?END_NODE_MS,
    case [Os || #{os := Os} <- Members, Os =/= remote, beamway_bench_os:await_end(Os, EndMs) =:= timeout] of
        [] -> ok;
        Stuck ->
            _ = [beamway_bench_os:kill(Os) || Os <- Stuck],
            error({node_did_not_end, Name, EndMs})
    end.

%% Returns the clusters that this process has started and not yet stopped.
started() ->
    case get(?MODULE) of
        undefined -> [];
        Clusters -> Clusters
    end.

%% @doc Stops all nodes that the calling process has started, after a run has failed.
-spec stop_all() -> ok.
stop_all() ->
    _ = [catch stop(Cluster) || Cluster <- started()],
    ok.

%% @doc Connects each node with every other node, always from the given side, and checks that the links are of the contender's type, because a
%% fallback to TCP must not be measured as something else.
-spec connect(cluster(), direction()) -> ok.
connect(#{members := Members} = Cluster, Direction) ->
    _ = [connect_pair(Pair, Direction) || Pair <- pairs(Members)],
    Deadline = erlang:monotonic_time(millisecond) + ?MESH_MS,
    ok = await_mesh(Cluster, Deadline),
    check_links(Cluster, Deadline).

%% The accepting side sees a connection slightly later than the connecting side.
await_mesh(Cluster, Deadline) ->
    Missing = [{Name, Others -- Known}
               || {Name, Known} <- lists:zip(names(Cluster), all(Cluster, erlang, nodes, [connected])),
                  Others <- [lists:delete(Name, names(Cluster))], Others -- Known =/= []],
    case {Missing, erlang:monotonic_time(millisecond) > Deadline} of
        {[], _} -> ok;
        {[{Name, [Other | _]} | _], true} -> error({nodes_did_not_connect, Name, Other, timeout});
        {_, false} -> receive after 5 -> await_mesh(Cluster, Deadline) end
    end.

pairs([]) -> [];
pairs([One | Others]) -> [{One, Other} || Other <- Others] ++ pairs(Others).

connect_pair({One, Two}, reverse) -> connect_pair({Two, One}, forward);
connect_pair({#{name := Name} = From, #{name := To}}, forward) ->
    case call(From, net_kernel, connect_node, [To]) of
        true -> ok;
        Other -> error({nodes_did_not_connect, Name, To, Other})
    end.

%% A link appears in the node's table slightly after the peer appears in nodes().
check_links(#{contender := #{name := Name, kernel := What}} = Cluster, _) ->
    case lists:usort(all(Cluster, beamway_bench_load, kernel_does, [What])) of
        [true] -> ok;
        _ -> error({kernel_does_not, Name, What})
    end;
check_links(#{contender := #{link := stock}}, _) -> ok;
check_links(#{contender := #{name := Name, link := Wanted}, members := Members} = Cluster, Deadline) ->
    Links = links(Cluster),
    Expected = length(Members) * (length(Members) - 1),
    case {[Link || #{link := Kind} = Link <- Links, Kind =/= Wanted], length(Links)} of
        {[], Expected} -> ok;
        {[#{reason := Reason, link := Kind} | _], _} -> error({wrong_link, Name, Wanted, Kind, Reason});
        {[], Fewer} ->
            case erlang:monotonic_time(millisecond) > Deadline of
                true -> error({links_missing, Name, Expected, Fewer});
                false -> receive after 5 -> check_links(Cluster, Deadline) end
            end
    end.

%% @doc Calls a function in a member over its standard input and output.
-spec call(member(), module(), atom(), [term()]) -> term().
call(Member, Module, Function, Args) ->
    call(Member, Module, Function, Args, ?CALL_MS).

-spec call(member(), module(), atom(), [term()], timeout()) -> term().
call(#{peer := Peer, name := Name}, Module, Function, Args, Timeout) ->
    try
        peer:call(Peer, Module, Function, Args, Timeout)
    catch
        exit:{timeout, _} -> error({node_did_not_answer, Name, {Module, Function, length(Args)}, Timeout});
        exit:{Reason, {gen_server, call, _}} -> error({node_ended, Name, Reason})
    end.

%% @doc Calls the same function in all members in parallel. Returns the results in the order of the members.
-spec all(cluster() | [member()], module(), atom(), [term()]) -> [term()].
all(Cluster, Module, Function, Args) ->
    all(Cluster, Module, Function, Args, ?CALL_MS).

-spec all(cluster() | [member()], module(), atom(), [term()], timeout()) -> [term()].
all(#{members := Members}, Module, Function, Args, Timeout) ->
    all(Members, Module, Function, Args, Timeout);
all(Members, Module, Function, Args, Timeout) ->
    each([{Member, Module, Function, Args} || Member <- Members], Timeout).

%% @doc Calls a function in each member in parallel. Returns the results in the order of the calls.
-spec each([{member(), module(), atom(), [term()]}], timeout()) -> [term()].
each(Functions, Timeout) ->
    Caller = self(),
    Calls = [spawn_monitor(fun() -> Caller ! {self(), call(Member, Module, Function, Args, Timeout)} end)
             || {Member, Module, Function, Args} <- Functions],
    %% This receive needs no timeout, because each of these processes exits when its call times out.
    [receive
         {Pid, Answer} -> true = demonitor(Monitor, [flush]), Answer;
         {'DOWN', Monitor, process, Pid, {Reason, _Stack}} -> error(Reason)
     end || {Pid, Monitor} <- Calls].

%% @doc Returns the names of the nodes, in the order of the members.
-spec names(cluster()) -> [node()].
names(#{members := Members}) ->
    [Name || #{name := Name} <- Members].

-spec os_pids(cluster()) -> [pos_integer()].
os_pids(#{members := Members}) ->
    [OsPid || #{os_pid := OsPid} <- Members].

%% @doc Returns the CPU time that all nodes have used, in microseconds.
-spec cpu_us(cluster()) -> number().
cpu_us(Cluster) -> beamway_bench_os:sum_thread_us(os_pids(Cluster)).

%% @doc Returns the links that all nodes report; the list is empty for a stock carrier.
-spec links(cluster()) -> [map()].
links(#{contender := #{link := stock}}) -> [];
links(Cluster) -> lists:append(all(Cluster, beamway, links, [])).

%% @doc Returns the total bytes and doorbells over all links of all nodes, in both directions. Stock TCP has no doorbells.
-spec counters(cluster()) -> #{bytes := non_neg_integer(), doorbells := non_neg_integer()}.
counters(#{contender := #{link := stock}} = Cluster) ->
    #{bytes => lists:sum(all(Cluster, beamway_bench_load, socket_bytes, [])), doorbells => 0};
counters(#{members := Members}) ->
    Infos = [info(Member, Other) || #{name := Name} = Member <- Members,
                                    #{name := Other} <- Members, Other =/= Name],
    #{bytes => sum([bytes_in, bytes_out], Infos), doorbells => sum([doorbells_out], Infos)}.

info(#{name := Name} = Member, Other) ->
    case call(Member, beamway, info, [Other]) of
        {ok, Info} -> Info;
        {error, Reason} -> error({no_link, Name, Other, Reason})
    end.

%% A link that uses OTP's own port driver does not count doorbells.
sum(Keys, Infos) ->
    lists:sum([maps:get(Key, Info, 0) || Info <- Infos, Key <- Keys]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% The process that starts nodes may be killed at any time, and then its nodes must exit.
nothing_outlives_a_killed_starter_test_() ->
    {timeout, 60, fun() ->
        Start = "E = beamway_bench_nodes:start_epmd(), "
                "C = beamway_bench_nodes:start(E, maps:get(tcp, beamway_bench_contender:all(\"/\", 1)), #{count => 2}), "
                "ok = beamway_bench_nodes:connect(C, reverse), "
                "{os_pid, S} = erlang:port_info(maps:get(port, E), os_pid), "
                "io:format(\"~w~n\", [[S | beamway_bench_nodes:os_pids(C)]]), receive after infinity -> ok end.",
        Starter = beamway_bench_tools:open(os:find_executable("erl"),
                                           ["-noshell", "-noinput", "-pa", filename:dirname(code:which(?MODULE)),
                                            "-eval", Start]),
        {line, Line} = beamway_bench_tools:line(Starter, 30000),
        [Shell | OsPids] = string:lexemes(Line, "[],"),
        [Epmd] = string:lexemes(os:cmd("pgrep -P " ++ Shell), "\n"),
        {ok, StarterPid} = beamway_bench_tools:os_pid(Starter),
        All = [beamway_bench_os:identity(list_to_integer(OsPid)) || OsPid <- [Shell, Epmd | OsPids]],
        ?assertEqual([], [gone || gone <- All]),
        ok = beamway_bench_os:kill(beamway_bench_os:identity(StarterPid)),
        [?assertEqual(ok, beamway_bench_os:await_end(Identity, 10000)) || Identity <- All],
        ok = beamway_bench_tools:close(Starter, none)
    end}.

a_stopped_node_is_killed_and_reported_test_() ->
    {timeout, 60, fun() ->
        {error, {error, {node_did_not_end, tcp, _}, _}} =
            beamway_bench_run:in_a_process(
              fun() ->
                      Epmd = start_epmd(),
                      Cluster = start(Epmd, maps:get(tcp, beamway_bench_contender:all("/", 1)), #{count => 1}),
                      %% The node must not have started in the current directory, because that may contain modules.
                      [{ok, "/"}] = all(Cluster, file, get_cwd, []),
                      [OsPid] = os_pids(Cluster),
                      "" = os:cmd("kill -STOP " ++ integer_to_list(OsPid)),
                      stop(Cluster)
              end)
    end}.

not_built_is_said_test() ->
    Beamway = maps:get(beamway, beamway_bench_contender:all("/", 1)),
    ?assertError({not_built, [_, _]}, check_built(Beamway, "/nowhere")),
    ?assertEqual(ok, check_built(maps:get(tcp, beamway_bench_contender:all("/", 1)), "/nowhere")).

batches_test_() ->
    [?_assertEqual(Want, batches(Count)) || {Count, Want} <- [{3, [3]}, {10, [10]}, {25, [10, 10, 5]}]].

pairs_test() ->
    ?assertEqual([{a, b}, {a, c}, {b, c}], pairs([a, b, c])).
-endif.
