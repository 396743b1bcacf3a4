%% SPDX-License-Identifier: Apache-2.0
%% @doc Runs suites from OTP's source package in this node, over the carrier that its `erl' command selects.
%%
%% The script `otp_suites' in the same directory calls `list/1' and `compile/1' once, and `run/1' in a new node for each carrier and suite;
%% `otp_suites_report' compares the outcomes. Arguments are lists of strings, as `erl -run' passes them.
%%
%% To add a suite, add an entry to `suites/0'. OTP's code is always read from the unpacked source package; this repository has no copy of it.
-module(otp_suites).

-export([list/1, folders/1, compile/1, run/1]).
%% Called on the peer that verify_carrier/1 starts.
-export([links_to/1]).

-import(otp_suites_report, [stop/2]).

-define(BOOT_MS, 15000).
-define(COUNTED_TRIES, 100).
-define(COUNTED_WAIT_MS, 50).

%% What is needed to run each suite: its directory in the source package, the modules that it calls,
%% the time limit per carrier, the cases (default: all) and the hooks. The C programs and libraries
%% in the suite's data directory are listed as well, and so are the modules to compile there, each
%% with the directory for the result (default: all modules, in the directory of their sources).
suites() ->
    [
        {distribution_SUITE, #{
            folder => "erts/emulator/test", minutes => 15,
            %% One of OTP's own carriers, which async_dist_proc_dctrlr (since OTP 25.3) starts in addition to the one under test.
            helpers => ["erts_test_utils.erl", "../../../lib/kernel/examples/gen_tcp_dist/src/gen_tcp_dist.erl"]
        }},
        {erl_distribution_SUITE, #{
            folder => "lib/kernel/test", minutes => 20,
            %% Two of OTP's own carriers, which some cases start in addition to the one under test.
            helpers => ["../examples/gen_tcp_dist/src/gen_tcp_dist.erl", "../examples/erl_uds_dist/src/erl_uds_dist.erl"]
        }},
        {erpc_SUITE, #{folder => "lib/kernel/test", programs => ["fwd_node.c"], minutes => 10}},
        {rpc_SUITE, #{folder => "lib/kernel/test", minutes => 10}},
        {pg_SUITE, #{folder => "lib/kernel/test", minutes => 10}},
        {global_SUITE, #{
            folder => "lib/kernel/test", minutes => 25,
            helpers => ["kernel_test_lib.erl", "kernel_test_global_sys_monitor.erl", "kernel_test_sys_monitor.erl"]
        }},
        %% The other cases of this suite do not use other nodes.
        {gen_server_SUITE, #{
            folder => "lib/stdlib/test", minutes => 5, helpers => ["dummy_via.erl"],
            cases => [stop8, stop9, stop10, send_request, cast_fast, call_remote1, call_remote2, call_remote3,
                      call_remote_n1, call_remote_n2, call_remote_n3]
        }},
        {gen_statem_SUITE, #{
            folder => "lib/stdlib/test", minutes => 10, helpers => ["dummy_via.erl", "error_logger_forwarder.erl"]
        }},
        {gen_event_SUITE, #{
            folder => "lib/stdlib/test", minutes => 5,
            helpers => ["dummy_via.erl", "dummy_h.erl", "dummy1_h.erl", "error_logger_forwarder.erl"]
        }},
        {proc_lib_SUITE, #{folder => "lib/stdlib/test", minutes => 5}},
        {pool_SUITE, #{folder => "lib/stdlib/test", minutes => 5}},
        {slave_SUITE, #{folder => "lib/stdlib/test", minutes => 5}},
        {peer_SUITE, #{folder => "lib/stdlib/test", minutes => 5}},
        {supervisor_SUITE, #{
            folder => "lib/stdlib/test", minutes => 10,
            helpers => ["supervisor_1.erl", "supervisor_2.erl", "supervisor_3.erl", "supervisor_4.erl",
                        "supervisor_deadlock.erl", "naughty_child.erl"],
            data => [{"app_faulty/src/*.erl", "app_faulty/ebin"}]
        }},
        {dets_SUITE, #{folder => "lib/stdlib/test", minutes => 10}},
        {dbg_SUITE, #{folder => "lib/runtime_tools/test", minutes => 5, libraries => ["dbg_SUITE.c"]}},
        {ttb_SUITE, #{folder => "lib/observer/test", minutes => 10, helpers => ["ttb_helper.erl", "client.erl", "server.erl"]}},
        {seq_trace_SUITE, #{folder => "lib/kernel/test", minutes => 5, libraries => ["echo_drv.c"]}},
        %% The suite compiles the files in its data directory itself. Cases that are not listed do not use other nodes,
        %% except for the two that docs/dev/otp-suites.md describes.
        {code_SUITE, #{
            folder => "lib/kernel/test", minutes => 10, helpers => ["code_b_test.erl"], data => [],
            cases => [set_path_file, upgrade, pa_pz_option, ext_mod_dep, clash, where_is_file, bad_erl_libs, code_archive, code_archive2,
                      on_load_embedded, on_load_purge, get_mode, mult_embedded_flags]
        }},
        {erl_link_SUITE, #{folder => "erts/emulator/test", minutes => 5, helpers => ["erts_test_utils.erl"]}},
        {monitor_SUITE, #{folder => "erts/emulator/test", minutes => 5, helpers => ["erts_test_utils.erl"]}},
        {node_container_SUITE, #{folder => "erts/emulator/test", minutes => 5, helpers => ["erts_test_utils.erl"]}},
        {signal_SUITE, #{
            folder => "erts/emulator/test", minutes => 10,
            %% Some of its nodes use one of OTP's own carriers in addition to the one under test.
            helpers => ["erts_test_utils.erl", "literal_area_collector_test.erl",
                        "../../../lib/kernel/examples/gen_tcp_dist/src/gen_tcp_dist.erl"],
            libraries => ["unlink_signal_drv.c"]
        }}
        | [{Suite, mnesia()} || Suite <- [mnesia_install_test, mnesia_nice_coverage_test, mnesia_evil_coverage_test, mnesia_qlc_test,
                                          mnesia_index_plugin_test, mnesia_registry_test, mnesia_config_test, mnesia_examples_test,
                                          mnesia_atomicity_test, mnesia_isolation_test, mnesia_durability_test,
                                          mnesia_schema_recovery_test, mnesia_majority_test]]
    ].

%% Suites that run as a part of other suites in the list. They are looked up by name when one of
%% their cases is repeated.
parts() -> [{Suite, mnesia()} || Suite <- [mnesia_dirty_access_test, mnesia_trans_access_test, mnesia_evil_backup]].

%% Describes one of the suites that mnesia_SUITE would run, each of which is run separately. Their
%% hook is that of mnesia_SUITE, and it starts two more nodes.
mnesia() -> #{folder => "lib/mnesia/test", minutes => 10, helpers => ["*.erl"], hooks => [{ts_install_cth, [{nodenames, 2}]}]}.

%% Returns the directory of a hook that OTP's suites use in suite/0 but that an OTP installation does not include.
shared_folder() -> "lib/common_test/test_server".
shared_helpers() -> ["ts_install_cth.erl"].

%% @doc Prints one suite per line, with its time limit in seconds.
-spec list(Args :: [string()]) -> no_return().
list([Names]) ->
    [io:format("~ts ~b~n", [Suite, Minutes * 60]) || {Suite, #{minutes := Minutes}} <- selected(Names)],
    halt(0).

%% @doc Prints the directories of the source package that the suites need, so that the script can fetch them.
-spec folders(Args :: [string()]) -> no_return().
folders([Names]) ->
    Files = [filename:join(Folder, File) || {_, #{folder := Folder} = Spec} <- selected(Names),
                                            File <- ["x" | maps:get(helpers, Spec, [])]],
    Folders = [filename:dirname(resolved(File)) || File <- Files],
    [io:format("~ts~n", [Folder]) || Folder <- lists:usort([shared_folder() | Folders])],
    halt(0).

%% Removes "..": "a/b/../c" becomes "a/c".
resolved(Path) ->
    Parts = lists:foldl(fun("..", [_ | Done]) -> Done; (Part, Done) -> [Part | Done] end, [], filename:split(Path)),
    filename:join(lists:reverse(Parts)).

%% @doc Compiles the suites, their helpers and the programs in their data directories, in place.
-spec compile(Args :: [string()]) -> no_return().
compile([Tree, Names]) ->
    Shared = filename:join(Tree, shared_folder()),
    Selected = selected(Names),
    %% Suites share helpers, so the list may have duplicates.
    Modules = [{filename:join(Shared, File), Shared} || File <- shared_helpers()]
        ++ [Module || {Suite, Spec} <- Selected, Module <- modules(Tree, Suite, Spec)],
    [compile_file(Source, Out) || {Source, Out} <- lists:usort(Modules)],
    lists:foreach(fun({Suite, Spec}) -> compile_data(data_folder(Tree, Suite, Spec), Spec) end, Selected),
    halt(0).

data_folder(Tree, Suite, #{folder := Folder}) -> filename:join([Tree, Folder, atom_to_list(Suite) ++ "_data"]).

%% Returns the sources, each with the directory that it is compiled into.
modules(Tree, Suite, #{folder := Folder} = Spec) ->
    Dir = filename:join(Tree, Folder),
    Data = data_folder(Tree, Suite, Spec),
    [{File, Dir} || Source <- [atom_to_list(Suite) ++ ".erl" | maps:get(helpers, Spec, [])],
                    File <- files(resolved(filename:join(Dir, Source)))]
        ++ [{File, filename:join(Data, Out)} || {Source, Out} <- maps:get(data, Spec, [{"*.erl", "."}]),
                                                File <- filelib:wildcard(filename:join(Data, Source))].

compile_data(Data, Spec) ->
    [compile_program(filename:join(Data, File)) || File <- maps:get(programs, Spec, [])],
    [compile_library(filename:join(Data, File)) || File <- maps:get(libraries, Spec, [])].

%% If no file matches, the pattern stays in the list, so that compile_file/2 fails and reports it.
files(Pattern) ->
    case filelib:wildcard(Pattern) of
        [] -> [Pattern];
        Files -> Files
    end.

compile_file(Source, Out) ->
    case compile:file(Source, [{outdir, Out}, {i, Out}, debug_info, return]) of
        {ok, _Module, _Warnings} -> ok;
        {error, Errors, _} -> stop("~ts does not compile: ~tp", [Source, Errors])
    end.

%% Compiles C nodes with OTP's erl_interface library.
compile_program(Source) ->
    Include = filename:join(code:lib_dir(erl_interface), "include"),
    Library = filename:join([code:lib_dir(erl_interface), "lib", "libei.a"]),
    compile_c(Source, filename:rootname(Source), ["-pthread -D_REENTRANT -I", quoted(Include)], quoted(Library)).

%% Compiles drivers and NIFs.
compile_library(Source) ->
    Include = filename:join([code:root_dir(), "usr", "include"]),
    compile_c(Source, filename:rootname(Source) ++ ".so", ["-shared -fPIC -I", quoted(Include)], "").

compile_c(Source, Product, Flags, Library) ->
    Said = os:cmd(lists:flatten(lists:join($\s, ["cc -w -o", quoted(Product), Flags, quoted(Source), Library]))),
    filelib:is_regular(Product) orelse stop("~ts does not compile: ~ts", [Source, Said]).

quoted(Path) -> [$', Path, $'].

%% @doc Runs a suite, or some of its cases, and halts this node.
-spec run(Args :: [string()]) -> no_return().
run([Tree, Name, Group, Cases, Carrier, ResultFile, LogDir]) ->
    verify_carrier(Carrier),
    [{Suite, #{folder := Folder} = Spec}] = selected(Name),
    Dir = filename:join(Tree, Folder),
    ok = code:add_pathsa([filename:join(Tree, shared_folder()), Dir]),
    ok = filelib:ensure_dir(filename:join(LogDir, "x")),
    Slowness = list_to_integer(os:getenv("OTP_SUITES_SLOWNESS", "1")),
    ok = wait_longer_for_boot(Slowness),
    Options = [
        {dir, Dir},
        {suite, Suite},
        {auto_compile, false},
        {multiply_timetraps, Slowness},
        {logdir, LogDir},
        {event_handler, {otp_suites_events, [ResultFile]}},
        {ct_hooks, maps:get(hooks, Spec, [])}
        | group_option(Group) ++ case_option(Cases, Spec)
    ],
    case ct:run_test(Options) of
        {error, Reason} -> stop("common_test could not run ~ts: ~tp", [Name, Reason]);
        _Counts -> halt(0)
    end.

%% The module peer gives a node 15 s to boot, which is too short for an emulated processor, and only a change of peer's code can extend that limit.
wait_longer_for_boot(1) -> ok;
wait_longer_for_boot(Slowness) ->
    {peer, Beam, File} = code:get_object_code(peer),
    {ok, {peer, [{abstract_code, {raw_abstract_v1, Forms}}]}} = beam_lib:chunks(Beam, [abstract_code]),
    {ok, peer, Code} = compile:forms(with_longer_wait(Forms, Slowness)),
    ok = code:unstick_dir(filename:dirname(File)),
    {module, peer} = code:load_binary(peer, File, Code),
    ok.

with_longer_wait({integer, Where, ?BOOT_MS}, Slowness) -> {integer, Where, ?BOOT_MS * Slowness};
with_longer_wait(Form, Slowness) when is_tuple(Form) -> list_to_tuple(with_longer_wait(tuple_to_list(Form), Slowness));
with_longer_wait([Form | Forms], Slowness) -> [with_longer_wait(Form, Slowness) | with_longer_wait(Forms, Slowness)];
with_longer_wait(Form, _Slowness) -> Form.

group_option("none") -> [];
group_option(Group) -> [{group, list_to_atom(Group)}].

case_option("all", #{cases := Cases}) -> [{testcase, Cases}];
case_option("all", _Spec) -> [];
case_option(Cases, _Spec) -> [{testcase, [list_to_atom(Case) || Case <- string:lexemes(Cases, ",")]}].

%% A successful run over the wrong carrier would prove nothing. So this function starts a node as the suites start theirs, checks the link
%% between it and this node, and checks that both ends of the link were counted.
verify_carrier(Carrier) ->
    Position = otp_suites_links:position(),
    Args = ["-setcookie", atom_to_list(erlang:get_cookie()), "-pa", filename:dirname(code:which(?MODULE))],
    {ok, Peer, Node} = peer:start(#{name => peer:random_name(), connection => standard_io, args => Args}),
    pong = peer:call(Peer, net_adm, ping, [node()]),
    Found = [links_to(Node), peer:call(Peer, ?MODULE, links_to, [node()])],
    Counted = counted(Position, expected_counts(Carrier), ?COUNTED_TRIES),
    ok = peer:stop(Peer),
    Expected = expected_links(Carrier),
    Found =:= [Expected, Expected] orelse
        stop("this run is for ~ts, but the two ends of a connection say ~0tp", [Carrier, Found]),
    Counted =:= expected_counts(Carrier) orelse
        stop("one connection over ~ts was counted as ~0tp", [Carrier, Counted]).

%% Retries, because each end logs the link slightly after it is up.
counted(Position, Expected, Tries) ->
    case otp_suites_links:since(Position) of
        Counted when Counted =:= Expected; Tries =:= 0 ->
            Counted;
        _ ->
            receive after ?COUNTED_WAIT_MS -> counted(Position, Expected, Tries - 1) end
    end.

expected_links("tcp") -> [];
expected_links("beamway_inet") -> [{inet, "tcp_inet"}];
expected_links("beamway_tcp") -> [{tcp, "beamway_drv"}];
expected_links(Encrypted) when Encrypted =:= "beamway_encrypted"; Encrypted =:= "beamway_tls" -> [{tls, "beamway_drv"}];
expected_links("beamway_rdma") -> [{rdma, "beamway_drv"}];
expected_links("beamway") -> [{shm, "beamway_drv"}].

expected_counts("tcp") -> #{<<"node tcp">> => 1};
expected_counts("beamway_inet") ->
    #{<<"node beamway">> => 1, <<"link inet: shared memory is off on this node; OTP's own port: tcp is off on this node">> => 2};
expected_counts("beamway_tcp") -> #{<<"node beamway">> => 1, <<"link tcp: shared memory is off on this node">> => 2};
expected_counts(Encrypted) when Encrypted =:= "beamway_encrypted"; Encrypted =:= "beamway_tls" -> #{<<"node beamway">> => 1, <<"link tls">> => 2};
expected_counts("beamway_rdma") -> #{<<"node beamway">> => 1, <<"link rdma">> => 2};
expected_counts("beamway") -> #{<<"node beamway">> => 1, <<"link shm here">> => 1, <<"link shm">> => 1}.

%% @doc Returns the kinds of Beamway's links between this node and `Node', with the driver of their ports; the list is empty on stock TCP.
-spec links_to(node()) -> [{beamway_kind:label(), Driver :: string()}].
links_to(Node) ->
    case init:get_argument(proto_dist) of
        {ok, [["beamway" ++ _]]} -> [{Link, driver_to(Node)} || #{node := Peer, link := Link} <- beamway:links(), Peer =:= Node];
        error -> []
    end.

driver_to(Node) ->
    {Node, Port} = lists:keyfind(Node, 1, erlang:system_info(dist_ctrl)),
    {name, Driver} = erlang:port_info(Port, name),
    Driver.

selected("all") ->
    suites();
selected(Names) ->
    lists:map(
        fun(Name) ->
            case [Entry || {Suite, _} = Entry <- suites() ++ parts(), atom_to_list(Suite) =:= Name] of
                [Entry] -> Entry;
                [] -> stop("no suite ~ts; expected one of ~0tp", [Name, [Suite || {Suite, _} <- suites()]])
            end
        end,
        string:lexemes(Names, ",")).
