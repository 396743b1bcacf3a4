%% SPDX-License-Identifier: Apache-2.0
%% @doc Programs that are not a plain `erl' of this OTP release, and other ways to start a node, over each carrier.
%%
%% C nodes, erl_call and Jinterface implement the distribution protocol themselves and know nothing about Beamway, so Beamway nodes must use TCP with
%% them, whichever side connects. Releases and Elixir only start an Erlang node in a different way, so such a node must get the same links as any
%% other node.
-module(beamway_foreign_SUITE).

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2]).
-export([c_node_accepts/1, c_node_connects/1, erl_call/1, release_interactive/1, release_embedded/1,
         embedded_with_own_boot_script/1, elixir/1, jinterface/1]).
%% A suite of teleport also calls this.
-export([compile_c_node/1]).
%% Called on the nodes.
-export([round_trip/2, start_listener/0, listener/0, ask_listener/1]).

-import(beamway_compat_nodes, [start/2, exchange/3, connect/3, disconnect/2,
                               start_program/3, stop_program/1, expect_line/2]).
-import(beamway_carrier, [carrier/1]).

-define(COOKIE, "beamway_compat").

suite() -> [{timetrap, {seconds, 90}}, {ct_hooks, [beamway_compat_nodes]}].

all() -> beamway_carrier:all().

groups() ->
    beamway_carrier:groups([c_node_accepts, c_node_connects, erl_call,
                            release_interactive, release_embedded, embedded_with_own_boot_script, elixir, jinterface]).

init_per_suite(Config) ->
    [{c_node, compile_c_node(proplists:get_value(priv_dir, Config))} | Config].

end_per_suite(_Config) -> ok.

init_per_testcase(Case, Config) when Case =:= release_interactive; Case =:= release_embedded; Case =:= elixir ->
    beamway_peer:unless_wrapped("it starts its VM by itself", Config);
init_per_testcase(_Case, Config) ->
    Config.

%% Returns the kind of link between a node with the carrier and a node without Beamway.
foreign_kind(Config) ->
    case carrier(Config) of
        inet_tcp -> stock;
        _Beamway -> tcp
    end.

kind(Config) -> beamway_peer:link_kind(carrier(Config)).

%%% C nodes

%% libei is a static library in the same package as the header for drivers.
compile_c_node(Folder) ->
    Program = filename:join(Folder, "compat_cnode"),
    Ei = code:lib_dir(erl_interface),
    Args = ["-std=c11", "-pthread", "-Wall", "-Wextra", "-Wshadow", "-Werror",
            "-I", filename:join(Ei, "include"), source("c_src/compat_cnode.c"),
            "-o", Program, "-L", filename:join(Ei, "lib"), "-lei"],
    ok = run_to_end(os:getenv("CC", "cc"), Args),
    Program.

source(Name) -> test_support:file(filename:join("apps/test_support", Name)).

run_to_end(Name, Args) ->
    Executable = os:find_executable(Name),
    true = is_list(Executable),
    Program = start_program(Executable, Args, []),
    await_end(Program, []).

await_end(Program, Output) ->
    receive
        {Program, {data, {_, Line}}} -> await_end(Program, [Line | Output]);
        {Program, {exit_status, 0}} -> ok;
        {Program, {exit_status, Status}} -> {error, {Status, lists:reverse(Output)}}
    after 60000 ->
        stop_program(Program),
        {error, {timeout, lists:reverse(Output)}}
    end.

start_c_node(Config, Args) ->
    Name = beamway_peer:unique_name("cnode"),
    Node = Name ++ "@" ++ beamway_compat_nodes:host(),
    Program = start_program(proplists:get_value(c_node, Config), [Name, ?COOKIE | Args], []),
    ok = expect_line(Program, "ready " ++ Node),
    {Program, list_to_atom(Node)}.

c_node_accepts(Config) ->
    {Peer, Node} = start(carrier(Config), #{}),
    {Program, CNode} = start_c_node(Config, ["accept"]),
    [ok = peer:call(Peer, ?MODULE, round_trip, [{any, CNode}, Term]) || Term <- terms()],
    ok = expect_line(Program, "accepted " ++ atom_to_list(Node)),
    check_c_connection(Config, Peer, CNode),
    %% When our side closes the connection, the C node notices.
    true = peer:call(Peer, net_kernel, disconnect, [CNode]),
    ok = expect_line(Program, "disconnected"),
    stop_program(Program).

c_node_connects(Config) ->
    {Peer, Node} = start(carrier(Config), #{}),
    ok = peer:call(Peer, ?MODULE, start_listener, []),
    {Program, CNode} = start_c_node(Config, ["connect", atom_to_list(Node)]),
    ok = expect_line(Program, "called"),
    check_c_connection(Config, Peer, CNode),
    [ok = peer:call(Peer, ?MODULE, ask_listener, [Term]) || Term <- terms()],
    %% When the C node exits, our side notices.
    stop_program(Program),
    _ = beamway_peer:wait_until(fun() -> peer:call(Peer, erlang, nodes, [hidden]) =:= [] end, 5000),
    ok.

check_c_connection(Config, Peer, CNode) ->
    [CNode] = peer:call(Peer, erlang, nodes, [hidden]),
    beamway_peer:assert_link(Peer, CNode, foreign_kind(Config)).

terms() ->
    [1, an_atom, {[], 1.5, "text", #{key => <<"value">>}}, lists:seq(1, 5000),
     binary:copy(<<"x">>, 300000)].

%% Sends {self(), Term}, and expects it back preceded by the atom of the process that answered.
round_trip(Destination, Term) ->
    Destination ! {self(), Term},
    receive
        {Who, Term} when Who =:= c_node; Who =:= java -> ok
    after 10000 ->
        {error, {no_answer_from, Destination}}
    end.

start_listener() ->
    Pid = spawn(?MODULE, listener, []),
    true = register(compat_listener, Pid),
    ok.

%% Records the pid with which the C node introduces itself.
listener() ->
    receive
        {hello_from, CPid} -> listener(CPid)
    end.

listener(CPid) ->
    receive
        {ask, From, Term} ->
            From ! {told, round_trip(CPid, Term)},
            listener(CPid)
    end.

ask_listener(Term) ->
    compat_listener ! {ask, self(), Term},
    receive {told, Result} -> Result
    after 15000 -> {error, listener_is_silent}
    end.

%%% erl_call

erl_call(Config) ->
    {Peer, Node} = Member = start(carrier(Config), #{}),
    NodeText = atom_to_list(Node),
    ErlCall = filename:join([code:lib_dir(erl_interface), "bin", "erl_call"]),
    What = " -c " ?COOKIE " -a 'lists reverse [[a,b,c]]'",
    Call = fun(Where) -> os:cmd(lists:append([ErlCall, " ", Where, What])) end,
    "[c, b, a]" = Call("-sname " ++ NodeText),
    Address = lists:concat(["-address ", beamway_compat_nodes:host(), ":",
                            beamway_compat_nodes:dist_port(Member)]),
    "[c, b, a]" = Call(Address),
    %% A call with a wrong cookie is rejected, and the node continues.
    Refused = os:cmd(lists:append([ErlCall, " -sname ", NodeText, " -c wrong -a 'erlang node'"])),
    {match, _} = re:run(Refused, "failed to connect"),
    "[c, b, a]" = Call("-sname " ++ NodeText),
    _ = beamway_peer:wait_until(fun() -> peer:call(Peer, erlang, nodes, [hidden]) =:= [] end, 5000),
    ok.

%%% Releases

release_interactive(Config) -> release(Config, interactive).

release_embedded(Config) -> release(Config, embedded).

%% The release is unpacked in a directory where the node can use only the release's own files: ERTS and the OTP applications, Beamway as one of its
%% applications, options in sys.config and the carrier in vm.args.
release(Config, Mode) ->
    Root = filename:join(proplists:get_value(priv_dir, Config),
                         lists:concat([carrier(Config), "_", Mode])),
    ok = build_release(carrier(Config), Root),
    {Peer, Node} = start_release(carrier(Config), Root, Mode),
    Mode = peer:call(Peer, code, get_mode, []),
    true = lists:prefix(Root, peer:call(Peer, code, which, [carrier_module(carrier(Config))])),
    true = lists:prefix(Root, peer:call(Peer, code, which, [lists])),
    ok = load_helper(Peer),
    Plain = start(carrier(Config), #{}),
    exchange(kind(Config), {Peer, Node}, Plain).

%% Embedded mode without a release: OTP's boot script does not contain the carrier, but a copy made with it does.
embedded_with_own_boot_script(Config) ->
    case carrier(Config) of
        inet_tcp -> {comment, "it is in every boot script"};
        Carrier -> embedded_with_own_boot_script(Carrier, filename:join(proplists:get_value(priv_dir, Config), "embedded"))
    end.

embedded_with_own_boot_script(Carrier, Script) ->
    {0, ""} = boot_script([Script]),
    {Peer, Node} = start(Carrier, #{args => ["-mode", "embedded", "-boot", Script]}),
    embedded = peer:call(Peer, code, get_mode, []),
    ok = load_helper(Peer),
    exchange(beamway_peer:link_kind(Carrier), {Peer, Node}, start(Carrier, #{})),
    %% The copy can also be made from a script other than OTP's, and it also works in interactive mode.
    Other = Script ++ "_other",
    {0, ""} = boot_script([Other, Script]),
    {OtherPeer, OtherNode} = start(Carrier, #{args => ["-boot", Other]}),
    exchange(beamway_peer:link_kind(Carrier), {OtherPeer, OtherNode}, start(Carrier, #{})),
    {1, Said} = boot_script([]),
    {match, _} = re:run(Said, "expected -extra TARGET"),
    ok.

boot_script(Words) ->
    [Program | First] = beamway_peer:erl(),
    Port = open_port({spawn_executable, Program},
                     [{args, First ++ ["-noinput", "-boot", "no_dot_erlang", "-pa", beamway_peer:ebin(), "-s", "beamway_boot", "main", "-extra" | Words]},
                      exit_status, stderr_to_stdout]),
    {Status, Said} = test_support:until_ended(Port, 30000),
    {Status, lists:append(Said)}.

carrier_module(inet_tcp) -> inet_tcp_dist;
carrier_module(_Beamway) -> beamway_dist.

build_release(Carrier, Root) ->
    Base = filename:join(Root, "compat"),
    ok = filelib:ensure_dir(Base),
    Applications = [kernel, stdlib | [beamway || Carrier =/= inet_tcp]],
    Paths = [beamway_peer:ebin() || Carrier =/= inet_tcp],
    Release = {release, {"compat", "1"}, {erts, erlang:system_info(version)},
               [{Name, version(Name, Paths)} || Name <- Applications]},
    ok = file:write_file(Base ++ ".rel", io_lib:format("~p.~n", [Release])),
    {ok, _, _} = systools:make_script(Base, [{path, Paths}, silent]),
    {ok, _, _} = systools:make_tar(Base, [{path, Paths}, {erts, code:root_dir()}, silent]),
    ok = erl_tar:extract(Base ++ ".tar.gz", [compressed, {cwd, Root}]),
    Settings = filename:join([Root, "releases", "1"]),
    ok = file:write_file(filename:join(Settings, "vm.args"), vm_args(Carrier)),
    file:write_file(filename:join(Settings, "sys.config"), sys_config(Carrier)).

version(Application, Paths) ->
    Name = lists:concat([Application, ".app"]),
    Candidates = [filename:join(Folder, Name) || Folder <- Paths ++ [filename:join(code:lib_dir(Application), "ebin")]],
    [File | _] = lists:filter(fun filelib:is_file/1, Candidates),
    {ok, [{application, Application, Keys}]} = file:consult(File),
    proplists:get_value(vsn, Keys).

vm_args(Carrier) ->
    Lines = ["## Written by the test.", "-sname " ++ beamway_peer:unique_name("release"),
             "-setcookie " ?COOKIE, lists:join(" ", beamway_peer:flags(Carrier)), "+sbwt none"],
    [[Line, "\n"] || Line <- Lines].

sys_config(beamway_tcp) -> "[{beamway, [{links, [tcp]}]}].\n";
sys_config(beamway_shm) -> "[{beamway, [{links, [shm, tcp]}]}].\n";
sys_config(inet_tcp) -> "[].\n".

%% Starts the node as a release's start script does: the release's own erlexec is given the root directory. Here the link is selected in sys.config,
%% not in the environment.
start_release(Carrier, Root, Mode) ->
    Bin = filename:join([Root, "erts-" ++ erlang:system_info(version), "bin"]),
    Settings = filename:join([Root, "releases", "1"]),
    Place = [{"ROOTDIR", Root}, {"BINDIR", Bin}, {"EMU", "beam"}, {"PROGNAME", "erl"},
             {"BEAMWAY_LINKS", false}, {"ERL_LIBS", false}],
    Environment = lists:keydelete("BEAMWAY_LINKS", 1, beamway_peer:environment(Carrier)) ++ Place,
    {ok, Peer, Node} =
        peer:start(#{connection => standard_io, wait_boot => 30000,
                     exec => filename:join(Bin, "erlexec"), env => Environment,
                     args => ["-boot", filename:join(Settings, "start"), "-mode", atom_to_list(Mode),
                              "-args_file", filename:join(Settings, "vm.args"),
                              "-config", filename:join(Settings, "sys")]}),
    {Peer, Node}.

%% The release's code path does not contain the tests.
load_helper(Peer) ->
    {beamway_peer, Beam, File} = code:get_object_code(beamway_peer),
    {module, beamway_peer} = peer:call(Peer, code, load_binary, [beamway_peer, File, Beam]),
    ok.

%%% Elixir

elixir(Config) ->
    case os:find_executable("elixir") of
        false -> {skip, "elixir is not installed"};
        Elixir -> elixir(Config, Elixir)
    end.

elixir(Config, Elixir) ->
    {Peer, Node} = start(carrier(Config), #{}),
    Name = beamway_peer:unique_name("elixir"),
    Flags = lists:append(lists:join(" ", beamway_compat_nodes:flags(carrier(Config), #{}))),
    Code = "IO.puts(\"connected #{Node.connect(:'" ++ atom_to_list(Node) ++ "')}\"); "
        "IO.gets(\"\"); System.halt(0)",
    Args = ["--erl", Flags, "--sname", Name, "--cookie", ?COOKIE, "-e", Code],
    Program = start_program(Elixir, Args, beamway_peer:environment(carrier(Config))),
    ok = expect_line(Program, "connected true"),
    ElixirNode = list_to_atom(Name ++ "@" ++ beamway_compat_nodes:host()),
    check_elixir(Config, Peer, ElixirNode),
    true = peer:call(Peer, net_kernel, disconnect, [ElixirNode]),
    _ = beamway_peer:wait_until(fun() -> peer:call(Peer, erlang, nodes, []) =:= [] end, 5000),
    true = peer:call(Peer, net_kernel, connect_node, [ElixirNode]),
    check_elixir(Config, Peer, ElixirNode),
    stop_program(Program).

check_elixir(Config, Peer, ElixirNode) ->
    beamway_peer:assert_link(Peer, ElixirNode, kind(Config)),
    Version = peer:call(Peer, erpc, call, [ElixirNode, 'Elixir.System', version, [], 10000]),
    true = is_binary(Version).

%%% Java

jinterface(Config) ->
    Library = filename:join([code:lib_dir(), "jinterface-*", "priv", "OtpErlang.jar"]),
    Jars = filelib:wildcard(Library) ++ filelib:wildcard("/usr/share/java/OtpErlang.jar"),
    case {os:find_executable("javac"), os:find_executable("java"), Jars} of
        {false, _, _} -> {skip, "no javac: install default-jdk-headless and erlang-jinterface"};
        {_, false, _} -> {skip, "no java: install default-jdk-headless and erlang-jinterface"};
        {_, _, []} -> {skip, "no OtpErlang.jar: install erlang-jinterface"};
        {_, Java, [Jar | _]} -> jinterface(Config, Java, Jar)
    end.

jinterface(Config, Java, Jar) ->
    Folder = proplists:get_value(priv_dir, Config),
    ok = run_to_end("javac", ["-cp", Jar, "-d", Folder, source("java_src/CompatNode.java")]),
    {Peer, Node} = start(carrier(Config), #{}),
    lists:foreach(
      fun(WhomToCall) ->
              Name = beamway_peer:unique_name("java"),
              Args = ["-cp", Jar ++ ":" ++ Folder, "CompatNode", Name, ?COOKIE | WhomToCall],
              Program = start_program(Java, Args, []),
              ok = expect_line(Program, "ready"),
              JavaNode = list_to_atom(Name ++ "@" ++ beamway_compat_nodes:host()),
              [ok = peer:call(Peer, ?MODULE, round_trip, [{any, JavaNode}, Term]) || Term <- terms()],
              check_c_connection(Config, Peer, JavaNode),
              stop_program(Program),
              _ = beamway_peer:wait_until(
                    fun() -> peer:call(Peer, erlang, nodes, [hidden]) =:= [] end, 5000)
      end,
      [[], [atom_to_list(Node)]]).
