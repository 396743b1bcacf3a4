%% SPDX-License-Identifier: Apache-2.0
%% @doc Nodes that lack what a link needs: the link server hangs, the driver is missing, damaged or of a different
%% version, or the host does not permit what a ring needs.
%%
%% Each case ends in the same way: the node logs in one line what is missing and falls back to TCP or, without its driver, to OTP's own port. An
%% existing link is not affected.
-module(beamway_fallback_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([link_server_hangs/1, link_server_hangs_in_a_hurry/1, driver_missing/1, driver_damaged/1, driver_of_another_version/1, driver_comes_later/1,
         application_without_its_name/1, file_size_limit/1, descriptor_limit/1, port_limit/1, address_space_limit/1, no_memfd/1, no_eventfd/1]).

-import(beamway_friends, [under_test/1, log_file/1, falls_back/4, falls_back/5, has_line/2]).

-define(WAIT_MS, 20000).
%% Larger than any file of the VM itself, which needs 64 MiB for its code in OTP 27.
-define(LARGE_RINGS, [{"BEAMWAY_RING_BYTES", "67108864"}]).

suite() -> [{timetrap, {minutes, 2}}].

all() -> beamway_carrier:all([beamway_shm]).

groups() ->
    beamway_carrier:groups([beamway_shm], [link_server_hangs, link_server_hangs_in_a_hurry, driver_missing, driver_damaged, driver_of_another_version, driver_comes_later,
                                           application_without_its_name, file_size_limit, descriptor_limit, port_limit, address_space_limit, no_memfd, no_eventfd]).

init_per_group(Carrier, Config) -> beamway_carrier:init_group(Carrier, Config).

end_per_group(_Carrier, _Config) -> ok.

init_per_testcase(_Case, Config) -> beamway_friends:begin_case(Config).

end_per_testcase(_Case, Config) -> beamway_friends:end_case(Config).

%% --- the link server ----------------------------------------------------------------------------------

%% The server that grants memory does not answer in time.
link_server_hangs(Config) ->
    {Peer, Node} = under_test(Config),
    {ok, Odd, OddNode} = beamway_peer:start(beamway_shm, #{args => ["-hidden"]}),
    [begin
         ok = beamway_peer:call(Odd, sys, suspend, [beamway_links]),
         true = beamway_peer:call(Caller, net_kernel, connect_node, [Called]),
         {ok, #{link := inet, reason := <<"the link server does not answer", _/binary>>}} =
             beamway_peer:wait_until(fun() -> is_known(beamway_peer:call(Odd, beamway, info, [Node])) end, ?WAIT_MS),
         ok = beamway_peer:call(Odd, sys, resume, [beamway_links]),
         true = beamway_peer:call(Odd, erlang, disconnect_node, [Node]),
         ok = beamway_peer:wait_disconnected(Peer, OddNode),
         ok = beamway_peer:connect(beamway_shm, Caller, Called),
         true = beamway_peer:call(Odd, erlang, disconnect_node, [Node]),
         ok = beamway_peer:wait_disconnected(Peer, OddNode)
     end || {Caller, Called} <- [{Odd, Node}, {Peer, OddNode}]],
    ok.

%% The same case with a net_setuptime that is shorter than the time that the server usually gets.
link_server_hangs_in_a_hurry(_Config) ->
    Hurry = #{args => ["-hidden", "-kernel", "net_setuptime", "1.9"]},
    [{One, OneNode}, {Odd, OddNode}] = [{Peer, Node} || _ <- [one, odd], {ok, Peer, Node} <- [beamway_peer:start(beamway_shm, Hurry)]],
    ok = beamway_peer:call(Odd, sys, suspend, [beamway_links]),
    [begin
         true = beamway_peer:call(Caller, net_kernel, connect_node, [Called]),
         ok = beamway_peer:assert_link(Odd, OneNode, inet),
         true = beamway_peer:call(Odd, erlang, disconnect_node, [OneNode]),
         ok = beamway_peer:wait_disconnected(Odd, OneNode),
         ok = beamway_peer:wait_disconnected(One, OddNode)
     end || {Caller, Called} <- [{Odd, OneNode}, {One, OddNode}]],
    ok.

is_known({ok, _} = Info) -> Info;
is_known({error, not_connected}) -> false.

%% --- the driver ----------------------------------------------------------------------------------------

driver_missing(Config) ->
    with_copy(Config, fun(Driver) -> ok = file:delete(Driver) end, ["beamway_drv.so"]).

driver_damaged(Config) ->
    with_copy(Config, fun(Driver) -> ok = file:write_file(Driver, rand:bytes(5000)) end,
              ["beamway_drv.so"]).

driver_of_another_version(Config) ->
    Include = filename:join([code:root_dir(), "usr", "include"]),
    with_copy(Config, fun(Driver) ->
        ok = file:delete(Driver),
        ok = compile_c("old_driver.c", ["-shared", "-fPIC", "-I", Include, "-o", Driver])
    end, ["version 999"]).

%% A driver that is missing at startup can be loaded in the running node, and again each time it reappears.
driver_comes_later(Config) ->
    {Peer, Node} = under_test(Config),
    Root = copy(Config, "beamway"),
    [Driver, Away] = [filename:join([Root, "beamway", "priv", Name]) || Name <- ["beamway_drv.so", "away"]],
    ok = file:rename(Driver, Away),
    {ok, Odd, OddNode} = beamway_peer:start(beamway_shm, #{ebin => filename:join([Root, "beamway", "ebin"]), args => ["-hidden"]}),
    ConnectsBy = fun(Kind) ->
                         true = beamway_peer:call(Odd, net_kernel, connect_node, [Node]),
                         ok = beamway_peer:assert_link(Odd, Node, Kind),
                         true = beamway_peer:call(Odd, erlang, disconnect_node, [Node]),
                         ok = beamway_peer:wait_disconnected(Odd, Node),
                         beamway_peer:wait_disconnected(Peer, OddNode)
                 end,
    ok = ConnectsBy(inet),
    [begin
         ok = file:rename(Away, Driver),
         ok = beamway_peer:call(Odd, beamway, reload_driver, []),
         ok = ConnectsBy(shm),
         ok = file:rename(Driver, Away),
         {error, Reason} = beamway_peer:call(Odd, beamway, reload_driver, []),
         {_, _} = binary:match(Reason, <<"make build">>),
         ok = ConnectsBy(inet)
     end || _ <- [first, second]],
    ok.

%% A node gets its links even if the application's directory has a different name and its .app file is missing.
application_without_its_name(Config) ->
    {Peer, Node} = under_test(Config),
    Root = copy(Config, "carrier"),
    ok = file:delete(filename:join([Root, "carrier", "ebin", "beamway.app"])),
    {ok, Odd, OddNode} = beamway_peer:start(beamway_shm, #{ebin => filename:join([Root, "carrier", "ebin"])}),
    ok = beamway_peer:connect(beamway_shm, Odd, Node),
    ok = beamway_peer:assert_link(Peer, OddNode, shm).

%% Runs a node from a damaged copy of the application.
with_copy(Config, Damage, Words) ->
    Root = copy(Config, "beamway"),
    ok = Damage(filename:join([Root, "beamway", "priv", "beamway_drv.so"])),
    falls_back(Config, #{ebin => filename:join([Root, "beamway", "ebin"])}, inet, Words).

copy(Config, Name) ->
    Root = filename:join(proplists:get_value(priv_dir, Config), beamway_peer:unique_name("copy")),
    Source = filename:dirname(filename:absname(beamway_peer:ebin())),
    [begin
         To = filename:join([Root, Name, Dir]),
         ok = filelib:ensure_path(To),
         [{ok, _} = file:copy(File, filename:join(To, filename:basename(File)))
          || File <- filelib:wildcard(filename:join([Source, Dir, "*"]))]
     end || Dir <- ["ebin", "priv"]],
    Root.

compile_c(Source, Arguments) ->
    File = test_support:file(filename:join("apps/test_support/c_src", Source)),
    Command = lists:join(" ", ["cc", "-std=c11", "-O1", File | Arguments]),
    case os:cmd(lists:flatten(Command) ++ " 2>&1 && echo compiled") of
        "compiled\n" -> ok;
        Output -> error({cannot_compile, Source, Output})
    end.

%% --- limits of the host --------------------------------------------------------------------------------

%% The called node creates the memory. If it cannot, it reports why and both use TCP. A node that cannot create memory can still call, and use the
%% memory of the other node.

%% 96 MB are enough for the VM's own memory files and for a log, but not for two rings of that size.
file_size_limit(Config) ->
    %% The unit is a block of 512 bytes.
    falls_back(with_large_rings(Config), #{env => ?LARGE_RINGS, before_exec => "ulimit -f 196608;"}, tcp,
               ["file size limit"], [healthy]).

%% The other side must also ask for large rings, because the smaller size is used.
with_large_rings(Config) ->
    {ok, Peer, Node} = beamway_peer:start(beamway_shm, #{env => ?LARGE_RINGS}),
    [{under_test, {Peer, Node}} | Config].

%% The VM cannot even boot without a good number of descriptors, so it boots first, and the case then leaves only as many as a TCP connection needs.
descriptor_limit(Config) ->
    {Peer, Node} = under_test(Config),
    [begin
         %% The node is hidden, because otherwise `global' could still be exchanging messages with it and reconnect it after the disconnect below.
         {ok, Odd, OddNode} = beamway_peer:start(beamway_shm, #{log => Log, args => ["-hidden"],
                                                                before_exec => "ulimit -n 150;"}),
         Own = sockets(Odd),
         %% By now the programs that resolve names have started, and the log is open.
         ok = beamway_peer:connect(beamway_shm, Odd, Node),
         true = beamway_peer:call(Odd, erlang, disconnect_node, [Node]),
         ok = beamway_peer:wait_disconnected(Peer, OddNode),
         _ = beamway_peer:wait_until(fun() -> has_no_doorbells(Odd) andalso sockets(Odd) =< Own end, ?WAIT_MS),
         Holder = beamway_peer:run(Odd, fun() -> take_descriptors(2) end),
         {Caller, true} = case Caller of
                              odd -> {odd, beamway_peer:call(Odd, net_kernel, connect_node, [Node])};
                              healthy -> {healthy, beamway_peer:call(Peer, net_kernel, connect_node, [OddNode])}
                          end,
         ok = beamway_peer:assert_link(Odd, Node, inet),
         ok = beamway_peer:assert_link(Peer, OddNode, tcp),
         true = beamway_peer:call(Odd, erlang, exit, [Holder, kill]),
         _ = beamway_peer:wait_until(fun() -> has_line([Log], ["Too many open files"]) end, ?WAIT_MS),
         ok = beamway_peer:stop(Odd)
     end || {Caller, Log} <- [{odd, log_file(Config)}, {healthy, log_file(Config)}]],
    ok.

%% A port closes its descriptors only when no poller uses them any more, which is some time after the link was closed.
has_no_doorbells(Peer) ->
    [] =:= [Fd || {Fd, "anon_inode:[eventfd]"} <- beamway_peer:fds(beamway_peer:os_pid(Peer))].

%% The peer may notice a disconnect before this node has closed its own socket.
sockets(Peer) ->
    length([Fd || {Fd, "socket:" ++ _} <- beamway_peer:fds(beamway_peer:os_pid(Peer))]).

%% Opens files until no descriptor is left, then frees some.
take_descriptors(Free) ->
    Self = self(),
    Holder = spawn(fun() ->
                       Files = open_files([]),
                       [ok = file:close(File) || File <- lists:sublist(Files, Free)],
                       Self ! {self(), taken},
                       receive after infinity -> Files end
                   end),
    receive {Holder, taken} -> Holder end.

open_files(Files) ->
    case file:open("/dev/null", [read, raw]) of
        {ok, File} -> open_files([File | Files]);
        {error, emfile} -> Files
    end.

%% All ports of the VM are in use except one, which is used for the socket of the connection.
port_limit(Config) ->
    {Peer, Node} = under_test(Config),
    [begin
         {ok, Odd, OddNode} = beamway_peer:start(beamway_shm, #{log => Log, args => ["-hidden", "+Q", "1024"]}),
         %% The first connection has opened everything that stays open permanently.
         ok = beamway_peer:connect(beamway_shm, Odd, Node),
         true = beamway_peer:call(Odd, erlang, disconnect_node, [Node]),
         ok = beamway_peer:wait_disconnected(Peer, OddNode),
         _ = beamway_peer:wait_until(fun() -> has_no_doorbells(Odd) end, ?WAIT_MS),
         Holder = beamway_peer:run(Odd, fun() -> take_ports(1) end),
         true = case Caller of
                    odd -> beamway_peer:call(Odd, net_kernel, connect_node, [Node]);
                    healthy -> beamway_peer:call(Peer, net_kernel, connect_node, [OddNode])
                end,
         ok = beamway_peer:assert_link(Odd, Node, inet),
         ok = beamway_peer:assert_link(Peer, OddNode, tcp),
         true = beamway_peer:call(Odd, erlang, exit, [Holder, kill]),
         _ = beamway_peer:wait_until(fun() -> has_line([Log], ["cannot open a port of the driver", "system_limit"]) end, ?WAIT_MS),
         ok = beamway_peer:stop(Odd)
     end || {Caller, Log} <- [{odd, log_file(Config)}, {healthy, log_file(Config)}]],
    ok.

%% Opens ports until none is left, then frees some.
take_ports(Free) ->
    Self = self(),
    Holder = spawn(fun() ->
                       Ports = open_ports([]),
                       [true = port_close(Port) || Port <- lists:sublist(Ports, Free)],
                       Self ! {self(), taken},
                       receive after infinity -> Ports end
                   end),
    receive {Holder, taken} -> Holder end.

open_ports(Ports) ->
    try open_port({spawn_driver, "beamway_drv"}, []) of
        Port -> open_ports([Port | Ports])
    catch
        error:system_limit -> Ports
    end.

%% The limit is the address space of a node without a ring, plus half of what the rings need.
address_space_limit(Config) ->
    {ok, Probe, _} = beamway_peer:start(beamway_tcp),
    {ok, Status} = file:read_file(filename:join(["/proc", integer_to_list(beamway_peer:os_pid(Probe)),
                                                 "status"])),
    {match, [KiB]} = re:run(Status, "VmPeak:\\s+(\\d+) kB", [{capture, all_but_first, list}]),
    ok = beamway_peer:stop(Probe),
    Limit = "ulimit -v " ++ integer_to_list(list_to_integer(KiB) + 65536) ++ ";",
    falls_back(with_large_rings(Config), #{env => ?LARGE_RINGS, before_exec => Limit}, tcp,
               ["Cannot allocate memory"]).

no_memfd(Config) ->
    falls_back(Config, #{wrapper => [refuser(Config), "memfd_create"]}, inet, ["memfd_create"], [healthy]).

%% Over TCP the driver needs no eventfd.
no_eventfd(Config) ->
    falls_back(Config, #{wrapper => [refuser(Config), "eventfd2"]}, tcp, ["eventfd"], [healthy]).

refuser(Config) ->
    Program = filename:join(proplists:get_value(priv_dir, Config), "refuse"),
    ok = compile_c("refuse.c", ["-o", Program]),
    Program.
