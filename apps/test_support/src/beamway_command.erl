%% SPDX-License-Identifier: Apache-2.0
%% @doc Runs the `beamway' command as a user does, for its suites (`beamway_cli_*SUITE'): with real processes, exit statuses, and separate
%% standard output and error.
%%
%% This module is also the Common Test hook of these suites. A suite that names it in `ct_hooks' has its own home, so it does not need the
%% user's cookie, and each case has its own epmd, so that it does not see the nodes of other cases or of the machine's own epmd.
-module(beamway_command).

-include_lib("common_test/include/ct.hrl").

-export([init/2, pre_init_per_suite/3, pre_init_per_testcase/4, post_end_per_testcase/5, terminate/1]).
-export([run/2, shell/2, quoted/1, command_node/2, command_start/2, until_ready/1, ended/1]).
-export([with_nodes/3, start/3, stop/1]).
-export([can_connect/1, copy_of_checkout/2, cookie_file/2, write_secret/2, compiled/3]).

-type config() :: [{atom(), term()}].
-type epmd() :: no_epmd | pos_integer().  %% epmd's process ID
-type command_node() :: {port(), OsPid :: pos_integer()}.
-type started() :: {Peer :: pid(), node()}.

%% Long enough for a loaded machine to start a few VMs.
-define(RUN_MS, 90000).

%%% Hook

%% @private
-spec init(term(), term()) -> {ok, no_epmd}.
init(_Id, _Options) -> {ok, no_epmd}.

%% @private
-spec pre_init_per_suite(module(), config(), Epmd) -> {config(), Epmd} when Epmd :: epmd().
pre_init_per_suite(_Suite, Config, Epmd) ->
    Root = test_support:checkout(),
    Home = filename:join(?config(priv_dir, Config), "home"),
    ok = filelib:ensure_dir(filename:join(Home, "x")),
    ok = write_secret(filename:join(Home, ".erlang.cookie"), "beamway_cli_suite"),
    {[{root, Root}, {home, Home}, {command, filename:join(Root, "bin/beamway")} | Config], Epmd}.

%% @private If the suite's own init skipped a case, that case's epmd is still running.
-spec pre_init_per_testcase(module(), atom(), config(), epmd()) -> {config(), epmd()}.
pre_init_per_testcase(_Suite, _Case, Config, Before) ->
    ok = stop_epmd(Before),
    Port = test_support:free_port(),
    Epmd = open_port({spawn_executable, os:find_executable("epmd")},
                     [{args, ["-address", lists:flatten(own_addresses()), "-port", integer_to_list(Port)]}, exit_status,
                      stderr_to_stdout]),
    {os_pid, OsPid} = erlang:port_info(Epmd, os_pid),
    true = beamway_peer:wait_until(fun() -> can_connect(Port) end, 10000),
    {[{epmd_port, Port} | Config], OsPid}.

%% @private
-spec post_end_per_testcase(module(), atom(), config(), Return, epmd()) -> {Return, no_epmd}.
post_end_per_testcase(_Suite, _Case, _Config, Return, Epmd) ->
    ok = stop_epmd(Epmd),
    {Return, no_epmd}.

%% @private
-spec terminate(epmd()) -> ok.
terminate(Epmd) -> stop_epmd(Epmd).

stop_epmd(no_epmd) -> ok;
stop_epmd(OsPid) ->
    _ = os:cmd("kill " ++ integer_to_list(OsPid)),
    ok.

%% The host name may resolve to a different loopback address (127.0.1.1 on Debian), on which nodes then query epmd.
own_addresses() ->
    {ok, Host} = inet:gethostname(),
    Named = case inet:getaddr(Host, inet) of
        {ok, Address} -> [inet:ntoa(Address)];
        {error, _} -> []
    end,
    lists:join(",", lists:usort(["127.0.0.1" | Named] ++ ["::1" || test_support:has_ipv6()])).

%% @doc Returns whether anything listens on that port of the loopback interface.
-spec can_connect(inet:port_number()) -> boolean().
can_connect(Port) ->
    case gen_tcp:connect({127, 0, 0, 1}, Port, [], 1000) of
        {ok, Socket} -> gen_tcp:close(Socket), true;
        {error, _} -> false
    end.

%%% The command

%% @doc Runs `beamway' with these arguments, and returns its exit status and what it wrote to standard output and standard error.
-spec run(config(), iolist()) -> {Status :: non_neg_integer(), Output :: string(), Error :: string()}.
run(Config, Words) -> shell(Config, ["\"$BEAMWAY\" ", Words]).

%% @doc Like {@link run/2}, but for a bash command line in which `$BEAMWAY' is the command.
-spec shell(config(), iolist()) -> {Status :: non_neg_integer(), Output :: string(), Error :: string()}.
shell(Config, Line) ->
    ErrorFile = filename:join(?config(priv_dir, Config), "stderr"),
    Whole = unicode:characters_to_binary(["exec 2> ", quoted(ErrorFile), "; ", Line]),
    Port = open_port({spawn_executable, os:find_executable("bash")}, [{args, ["-c", Whole]}, {env, environment(Config)}, exit_status, use_stdio]),
    {Status, Said} = test_support:until_ended(Port, ?RUN_MS),
    {ok, Error} = file:read_file(ErrorFile),
    {Status, unicode:characters_to_list(iolist_to_binary(Said)), unicode:characters_to_list(Error)}.

%% @doc Quotes an argument for bash.
-spec quoted(string()) -> iolist().
quoted(Text) -> ["'", Text, "'"].

environment(Config) ->
    [{"SLURM_STEP_ID", false}, {"BEAMWAY", ?config(command, Config)}, {"HOME", ?config(home, Config)}, {"BEAMWAY_LINKS", false},
     {"BEAMWAY_RING_BYTES", false}, {"XDG_CONFIG_HOME", false},
     {"ERL_EPMD_PORT", integer_to_list(?config(epmd_port, Config))}].

%% @doc Starts a node with the command, and returns once the node reports that it is ready.
-spec command_node(config(), iolist()) -> command_node().
command_node(Config, Words) ->
    Node = command_start(Config, Words),
    ok = until_ready(Node),
    Node.

%% @doc Like {@link command_node/2}, but without waiting.
-spec command_start(config(), iolist()) -> command_node().
command_start(Config, Words) ->
    Line = lists:flatten(["exec \"$BEAMWAY\" node ", Words]),
    Port = open_port({spawn_executable, os:find_executable("bash")}, [{args, ["-c", Line]}, {env, environment(Config)}, {line, 10000}, exit_status, use_stdio, stderr_to_stdout]),
    {os_pid, Pid} = erlang:port_info(Port, os_pid),
    {Port, Pid}.

%% @doc Waits until a node reports that it is ready.
-spec until_ready(command_node()) -> ok.
until_ready({Port, _}) ->
    [] = test_support:until_line(Port, "is ready|\"ready\"", ?RUN_MS),
    ok.

%% @doc Stops the node, and returns its exit status.
-spec ended(command_node()) -> non_neg_integer().
ended({Port, Pid}) ->
    _ = os:cmd("kill " ++ integer_to_list(Pid)),
    {Status, _} = test_support:until_ended(Port, ?RUN_MS),
    Status.

%%% Nodes to examine

%% @doc Calls Fun with the names of nodes that run the carrier and are all connected to each other.
-spec with_nodes(config(), pos_integer(), fun(([node()]) -> Result)) -> Result.
with_nodes(Config, Number, Fun) ->
    All = [start(Config, ["-proto_dist", "beamway"], #{}) || _ <- lists:seq(1, Number)],
    try
        Nodes = [Node || {_, Node} <- All],
        [true = peer:call(Pid, net_kernel, connect_node, [Node]) || {Pid, _} <- All, Node <- Nodes],
        Fun(Nodes)
    after
        [stop(One) || One <- All]
    end.

%% @doc Starts a node. With `code => none', Beamway's code is not on its path.
-spec start(config(), [string()], #{code => none, longnames => boolean(), host => string()}) -> started().
start(Config, Arguments, Options) ->
    Code = case Options of
        #{code := none} -> [];
        _ -> ["-pa", filename:dirname(code:which(beamway))]
    end,
    Own = maps:with([longnames, host], Options),
    {ok, Pid, Node} = peer:start(Own#{name => peer:random_name("beamway_cli"), connection => standard_io,
                                      exec => {hd(beamway_peer:erl()), tl(beamway_peer:erl())}, args => Code ++ Arguments, env => environment(Config)}),
    {Pid, Node}.

%% @doc Stops the node.
-spec stop(started()) -> ok.
stop({Pid, _}) -> peer:stop(Pid).

%%% Arguments and environment of the command

%% @doc Returns a copy of the checkout that contains only the command and links to its applications, which a test can remove.
-spec copy_of_checkout(config(), string()) -> file:filename().
copy_of_checkout(Config, Name) ->
    Root = filename:join(?config(priv_dir, Config), Name),
    ok = filelib:ensure_dir(filename:join(Root, "bin/x")),
    {ok, _} = file:copy(?config(command, Config), filename:join(Root, "bin/beamway")),
    ok = file:change_mode(filename:join(Root, "bin/beamway"), 8#755),
    [begin
         Link = filename:join([Root, "apps", Folder]),
         ok = filelib:ensure_dir(Link),
         ok = file:make_symlink(filename:join([?config(root, Config), "apps", Folder]), Link)
     end || Folder <- ["beamway/src", "beamway/ebin", "beamway/priv", "beamway_cli/src", "beamway_cli/ebin"]],
    Root.

%% @doc Returns a file with a cookie, for `--cookie-file'.
-spec cookie_file(config(), string()) -> file:filename().
cookie_file(Config, Text) ->
    File = filename:join(?config(priv_dir, Config), "cookie"),
    ok = write_secret(File, Text),
    File.

%% @doc Writes a file that only its owner can read.
-spec write_secret(file:filename(), string()) -> ok.
write_secret(File, Text) ->
    _ = file:delete(File),
    ok = file:write_file(File, Text),
    ok = file:change_mode(File, 8#400).

%% @doc Returns the compiled code of a module with a single function of arity 0.
-spec compiled(module(), atom(), Body :: string()) -> binary().
compiled(Module, Function, Body) ->
    Name = atom_to_list(Function),
    Forms = [begin
                 {ok, Tokens, _} = erl_scan:string(Text),
                 {ok, Form} = erl_parse:parse_form(Tokens),
                 Form
             end || Text <- ["-module(" ++ atom_to_list(Module) ++ ").", "-export([" ++ Name ++ "/0]).", Name ++ "() -> " ++ Body ++ "."]],
    {ok, Module, Binary} = compile:forms(Forms),
    Binary.
