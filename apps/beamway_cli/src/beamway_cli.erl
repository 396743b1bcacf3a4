%% SPDX-License-Identifier: Apache-2.0
%% @doc The `beamway' command. The launcher `bin/beamway' starts a VM that calls {@link main/0}.
%%
%% Each subcommand is a function from its arguments to an exit status: 0 for success, 1 for failure, 2 for a usage error. The result goes to
%% standard output and everything else to standard error. It is not an error if the reader closes the pipe early (`beamway links | head -1'). `demo'
%% and `bench' pass their arguments on to the programs in `bench/', and the launcher itself runs `pipe'. The help texts are in {@link
%% beamway_cli_help}.
-module(beamway_cli).

-export([main/0, run/1]).
-export([lasting/1]).

-export_type([status/0]).

-import(beamway_cli_output, [say/2, complain/2]).

-type status() :: 0 | 1 | 2.

-define(DONE, 0).
-define(FAILED, 1).
-define(USAGE, 2).

%% @doc The entry point for the launcher. Runs the command given after `-extra' and halts the VM.
-spec main() -> ok.
main() ->
    %% The directory may contain modules, so this has to happen before any other module is loaded.
    enter(os:getenv("BEAMWAY_FOLDER")),
    ok = io:setopts([{encoding, unicode}]),
    case init:get_plain_arguments() of
        %% A node continues to run, perhaps with a shell, so the VM must finish booting first.
        ["node" | _] = Words -> _ = spawn(?MODULE, lasting, [Words]), ok;
        Words -> halt(guarded(Words))
    end.

enter(false) -> ok;
enter(Folder) ->
    _ = code:del_path("."),
    case file:set_cwd(Folder) of
        ok -> ok;
        {error, Reason} -> complain("cannot enter ~ts: ~ts", [Folder, file:format_error(Reason)]), halt(?FAILED)
    end.

%% @private
-spec lasting([string()]) -> no_return().
lasting(Words) ->
    case init:get_status() of
        {started, _} -> halt(guarded(Words));
        %% The VM is still booting, and its logger, for example, is not complete yet.
        _ -> receive after 5 -> lasting(Words) end
    end.

%% Shows an unexpected error as one message, rather than as a crash report of init.
guarded(Words) ->
    try
        ok = legible(Words),
        _ = [ok = epmd_port(os:getenv("ERL_EPMD_PORT", "4369")) || asks_epmd(Words)],
        run(Words)
    catch
        throw:{illegible, Valid} ->
            complain("a word of the command line is not valid UTF-8 after '~ts'; expected UTF-8, as the locale says", [Valid]),
            ?USAGE;
        throw:{epmd_port, Text} ->
            complain("ERL_EPMD_PORT is '~ts'; expected a port from 1 to 65535", [Text]),
            ?USAGE;
        throw:{output, epipe} ->
            ?DONE;
        throw:{output, Reason} ->
            complain("cannot write to standard output: ~ts", [file:format_error(Reason)]),
            ?FAILED;
        Class:Reason:Stack ->
            unforeseen(Class, Reason, Stack),
            ?FAILED
    end.

%% Help and version do not query epmd.
asks_epmd([Command | Words]) ->
    lists:member(Command, beamway_cli_help:commands()) andalso not lists:any(fun(Word) -> Word =:= "-h" orelse Word =:= "--help" end, Words);
asks_epmd([]) -> false.

%% If an argument is not valid UTF-8, a VM with a UTF-8 locale replaces it with the error that unicode:characters_to_list/2 returns.
legible(Words) ->
    case [Valid || {_, Valid, _} <- Words] of
        [] -> ok;
        [Valid | _] -> throw({illegible, Valid})
    end.

%% OTP's epmd client crashes whenever it is used if this value is not a valid port.
epmd_port(Text) ->
    case string:to_integer(Text) of
        {Port, ""} when Port > 0, Port < 65536 -> ok;
        _ -> throw({epmd_port, Text})
    end.

unforeseen(error, undef, [{Library, _, _, _} | _]) when Library =:= getopt; Library =:= jiffy ->
    complain("the Erlang library ~ts is not installed; install it (Debian: erlang-~ts), or name its folder in ERL_LIBS", [Library, Library]);
unforeseen(Class, Reason, Stack) ->
    complain("internal error: ~tp~n~tp", [{Class, Reason}, Stack]).

%% @doc Runs a command line.
-spec run(Words :: [string()]) -> 0..255.
run(["--version" | _]) -> say("~ts~n", [version()]), ?DONE;
run(["-V" | _]) -> run(["--version"]);
run(["-h" | _]) -> say("~ts", [beamway_cli_help:summary()]), ?DONE;
run(["--help" | _]) -> say("~ts~n~ts", [beamway_cli_help:summary(), beamway_cli_help:details()]), ?DONE;
run(["help"]) -> run(["--help"]);
run(["help", Command]) -> run([Command, "--help"]);
run([]) -> io:format(standard_error, "~ts", [beamway_cli_help:summary()]), ?USAGE;
run(["links" | Words]) -> parsed("links", Words, fun links/1);
run(["report" | Words]) -> parsed("report", Words, fun report/1);
%% If the arguments are valid, the launcher does the rest.
run(["attach" | Words]) -> parsed("attach", Words, fun attach/1);
run(["why" | Words]) -> parsed("why", Words, fun why/1);
run(["fault" | Words]) -> parsed("fault", Words, fun fault/1);
run(["top" | Words]) -> parsed("top", Words, fun top/1);
run(["node" | Words]) -> parsed("node", Words, fun beamway_cli_node:run/1);
run(["doctor" | Words]) -> parsed("doctor", Words, fun doctor/1);
run(["keygen" | Words]) -> parsed("keygen", Words, fun keygen/1);
run(["drain" | Words]) -> parsed("drain", Words, fun drain/1);
run(["choose" | Words]) -> parsed("choose", Words, fun choose/1);
run(["demo" | Words]) -> program("demo", beamway_demo, Words);
run(["bench" | Words]) -> program("bench", beamway_bench, Words);
run(["soak" | Words]) -> program("soak", beamway_soak, Words);
run(["topology" | Words]) -> program("topology", beamway_cli_topology, Words);
run(["console" | Words]) -> program("console", beamway_cli_console, Words);
run(["-" ++ _ = Option | _]) -> complain("unknown option '~ts'; see: beamway --help", [Option]), ?USAGE;
run([Command | _]) ->
    complain("unknown command '~ts'; the commands are: ~ts", [Command, lists:join(", ", beamway_cli_help:commands())]),
    ?USAGE.

parsed(Command, Words, Fun) ->
    Specs = beamway_cli_help:options(Command),
    case beamway_cli_help:parse(Specs, Words) of
        {ok, #{help := true}, []} -> usage(Command, Specs), ?DONE;
        {ok, Options, []} -> Fun(Options);
        {ok, _, [Extra | _]} -> wrong(Command, ["unexpected word '", Extra, "'"]);
        {error, Text} -> wrong(Command, Text)
    end.

usage(Command, Specs) ->
    say("~ts~n~ts", [getopt:usage_cmd_line("beamway " ++ Command, Specs), getopt:usage_options(Specs)]),
    say("~ts", [beamway_cli_help:text(Command)]).

%% demo and bench are separate programs, so only their general help is available here.
program(Command, _, [Word | _]) when Command =:= "demo", Word =:= "-h"; Command =:= "demo", Word =:= "--help";
                                    Command =:= "bench", Word =:= "-h"; Command =:= "bench", Word =:= "--help" ->
    say("~ts", [beamway_cli_help:text(Command)]),
    ?DONE;
program(Command, Module, Words) ->
    {Needed, Missing} = needed(Command, Module),
    case code:ensure_loaded(Needed) of
        {module, Needed} ->
            Module:main(Words);
        {error, _} ->
            complain("~ts: ~ts", [Command, Missing]),
            ?FAILED
    end.

%% Returns the module that a command requires, and the message if it is missing.
needed("topology", _) -> {placement, "the application placement is not on the code path; run: make build"};
needed("console", _) -> {beamway_console, "the application beamway_console is not on the code path; run: make build"};
needed(_, Module) ->
    {Module, "the benchmark programs are not built; run: scripts/build --bench (they are part of a checkout, not of what is installed)"}.

links(Options) ->
    ended("links", beamway_cli_links:ask(Options), fun(Report) -> show(Options, Report, fun beamway_cli_links:to_json/1, fun beamway_cli_links:to_text/1) end).

report(Options) -> ended("report", beamway_cli_report:write(Options), fun(File) -> say("~ts~n", [File]), ?DONE end).

attach(_) -> wrong("attach", "which host? Expected HOST or HOST:NODE").

why(#{peer := _} = Options) ->
    ended("why", beamway_cli_why:ask(Options), fun(Links) -> show(Options, Links, fun beamway_cli_why:to_json/1, fun beamway_cli_why:to_text/1) end);
why(_) -> wrong("why", "which node went down? Expected its name").

fault(#{peer := _} = Options) ->
    ended("fault", beamway_cli_fault:set(Options), fun(Done) -> show(Options, Done, fun beamway_cli_fault:to_json/1, fun beamway_cli_fault:to_text/1) end);
fault(_) -> wrong("fault", "on the way to which node? Expected its name").

%% The output is written in pieces, and the reader may close the pipe in between.
top(Options) -> ended("top", beamway_cli_top:run(Options, fun(Text) -> say("~ts", [Text]) end), none).

keygen(Options) -> ended("keygen", beamway_cli_keygen:run(Options), fun(Text) -> say("~ts", [Text]), ?DONE end).

doctor(Options) ->
    ended("doctor", beamway_cli_doctor:examine(Options),
          fun(Report) ->
                  ?DONE = show(Options, Report, fun beamway_cli_doctor:to_json/1, fun beamway_cli_doctor:to_text/1),
                  status(beamway_cli_doctor:is_well(Report))
          end).

choose(#{advise := true, query := _}) ->
    complain("choose: a query and --advise: expected one of them", []),
    ?USAGE;
choose(Options) when is_map_key(query, Options); is_map_key(advise, Options) ->
    case beamway_cli_choose:ask(Options) of
        {usage, Text} ->
            complain("choose: ~ts", [Text]),
            ?USAGE;
        Result ->
            ended("choose", Result, fun(Answer) ->
                                            ?DONE = show(Options, Answer, fun beamway_cli_choose:to_json/1, fun beamway_cli_choose:to_text/1),
                                            chosen(Answer)
                                    end)
    end;
choose(_) -> wrong("choose", "which nodes? Expected a query").

chosen(Answer) ->
    case Answer of
        {unsatisfied, _} -> ?FAILED;
        _ -> ?DONE
    end.

drain(#{node := _} = Options) ->
    ended("drain", beamway_cli_drain:run(Options, fun(Line) -> complain("drain: ~ts", [Line]) end),
          fun(Answer) ->
                  ?DONE = show(Options, Answer, fun beamway_cli_drain:to_json/1, fun beamway_cli_drain:to_text/1),
                  status(beamway_cli_drain:is_empty(Answer))
          end);
drain(_) -> wrong("drain", "which node? Expected its name").

%% Returns the exit status for the result of a command. Show shows what the command has returned; it is `none' for a command that shows everything
%% itself and returns only ok.
ended(_Command, ok, none) -> ?DONE;
ended(_Command, {ok, Answer}, Show) -> Show(Answer);
ended(Command, {usage, Text}, _Show) -> wrong(Command, Text);
ended(Command, {error, Text}, _Show) -> complain("~ts: ~ts", [Command, Text]), ?FAILED.

wrong(Command, Text) -> complain("~ts: ~ts; see: beamway ~ts --help", [Command, Text, Command]), ?USAGE.

status(true) -> ?DONE;
status(false) -> ?FAILED.

show(#{json := true}, Answer, ToJson, _) -> say("~ts~n", [jiffy:encode(ToJson(Answer), [pretty])]), ?DONE;
show(_, Answer, _, ToText) -> say("~ts", [ToText(Answer)]), ?DONE.

version() ->
    io_lib:format("beamway ~ts (OTP ~ts, ERTS ~ts)",
                  [beamway:version(), erlang:system_info(otp_release), erlang:system_info(version)]).
