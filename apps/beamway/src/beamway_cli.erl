%% SPDX-License-Identifier: Apache-2.0
%% @doc The `beamway' command. The launcher `bin/beamway' starts a VM that calls {@link main/0}.
%%
%% Each subcommand is a function from its words to an exit status: 0 when the thing asked for was
%% done, 1 when it failed, 2 when the words were wrong. What was asked for goes to standard output,
%% everything else to standard error. A reader that goes away (`beamway links | head -1') is no failure.
%% `demo' and `bench' hand their words on to the programs under `bench/', `topology' to the application placement.
-module(beamway_cli).

-export([main/0, run/1, table/1]).

-export_type([status/0]).

-type status() :: 0 | 1 | 2.
%% 0: done, 1: failed, 2: wrong usage.

-define(DONE, 0).
-define(FAILED, 1).
-define(USAGE, 2).

%% @doc Entry of the launcher: runs the words after `-extra' and ends the VM.
-spec main() -> no_return().
main() ->
    ok = io:setopts([{encoding, unicode}]),
    halt(guarded(init:get_plain_arguments())).

%% An unforeseen error is shown in one piece, not as a crash report of init.
guarded(Words) ->
    try run(Words)
    catch
        throw:{output, epipe} ->
            ?DONE;
        throw:{output, Reason} ->
            complain("cannot write to standard output: ~ts", [file:format_error(Reason)]),
            ?FAILED;
        Class:Reason:Stack ->
            complain("internal error: ~tp~n~tp", [{Class, Reason}, Stack]),
            ?FAILED
    end.

%% @doc Runs one command line.
-spec run(Words :: [string()]) -> 0..255.
run(["--version" | _]) -> say("~ts~n", [version()]), ?DONE;
run(["-V" | _]) -> run(["--version"]);
run(["-h" | _]) -> say("~ts", [summary()]), ?DONE;
run(["--help" | _]) -> say("~ts~n~ts", [summary(), details()]), ?DONE;
run(["help"]) -> run(["--help"]);
run(["help", Command]) -> run([Command, "--help"]);
run([]) -> complain_with("~ts", [summary()]), ?USAGE;
run(["links" | Words]) -> parsed("links", Words, fun links/1);
run(["doctor" | Words]) -> parsed("doctor", Words, fun doctor/1);
run(["choose" | Words]) -> parsed("choose", Words, fun choose/1);
run(["demo" | Words]) -> program("demo", beamway_demo, Words);
run(["bench" | Words]) -> program("bench", beamway_bench, Words);
run(["soak" | Words]) -> program("soak", beamway_soak, Words);
run(["topology" | Words]) -> program("topology", placement_cli, Words);
run(["-" ++ _ = Option | _]) -> complain("unknown option '~ts'; see: beamway --help", [Option]), ?USAGE;
run([Command | _]) ->
    complain("unknown command '~ts'; the commands are: demo, bench, soak, links, choose, topology, doctor", [Command]),
    ?USAGE.

summary() ->
    "usage: beamway COMMAND [OPTION...]\n"
    "\n"
    "  demo            start four real nodes, compare Beamway with stock TCP\n"
    "  bench NAME      run one benchmark\n"
    "  soak            load real nodes for long, say what grew\n"
    "  links [NODE]    show which link a running node uses to each of its peers\n"
    "  choose QUERY    show which nodes of a cluster a query chooses, or why not the others\n"
    "  topology        measure and draw the network between nodes, read and write its description\n"
    "  doctor          show which links this host can use, and what is in the way\n"
    "\n"
    "  -h, --help      this help, or that of a command: beamway COMMAND --help\n"
    "  -V, --version   the version\n".

details() ->
    "exit status: 0 done, 1 what was asked for failed, 2 wrong usage\n"
    "environment: BEAMWAY_ERL  the 'erl' to use (default: the first on the PATH)\n"
    "             BEAMWAY_*    the options of the carrier, see docs/guide\n"
    "Results go to standard output, all else to standard error.\n".

help_text("links") ->
    "\nAsks a running node, as a hidden node over TCP with your Erlang cookie, for its links.\n"
    "Without NODE, the only node of this host that is registered with epmd is asked.\n"
    "\n"
    "exit status: 0 shown, 1 the node could not be asked, 2 wrong usage\n"
    "examples:    beamway links\n"
    "             beamway links rabbit@web1 --json\n";
help_text("choose") ->
    "\nAsks a running node, on which the application placement runs, which nodes of its cluster suit a query.\n"
    "QUERY is an Erlang term, as for placement:choose_nodes/2; docs/guide/placement.md has its words.\n"
    "\n"
    "exit status: 0 chosen or explained, 1 no node suits or the node could not be asked, 2 wrong usage\n"
    "examples:    beamway choose '{load_per_core1, lt, 0.5}' --count 1\n"
    "             beamway choose '[{mem_available, ge, {4, gib}}, {dist, near}]' --node a@web1 --explain\n"
    "             beamway choose '{gpu, true}' --why-not b@web2\n";
help_text("doctor") ->
    "\nTries what the links need on this host, under the limits of this shell.\n"
    "\n"
    "exit status: 0 shared memory can be used, 1 a problem stands in the way, 2 wrong usage\n";
help_text("demo") ->
    "usage: beamway demo [OPTION...]\n"
    "\n"
    "Starts four Erlang nodes on this host, measures calls over stock TCP and over Beamway, kills one\n"
    "node and shows what is left of it. `make demo' also installs and builds what it needs.\n"
    "\n"
    "exit status: 0 done, 1 a step failed or shared memory did not carry the calls, 2 wrong usage\n";
help_text("bench") ->
    "usage: beamway bench NAME [--quick] [--json] [OPTION...]\n"
    "\n"
    "Runs one benchmark against stock TCP distribution in the same run.\n"
    "  rpc        100 processes a node in a loop of remote calls\n"
    "  pingpong   round trips of one pair of processes\n"
    "  stream     one sender, one receiver\n"
    "  cost       system calls, context switches and copies for each message\n"
    "  placement  choices among 100 real nodes, and policies with old information\n"
    "  rabbitmq   messages through a cluster of RabbitMQ, installed for the time of the run (needs root)\n"
    "  --quick    the same metrics in under 45 s, with fewer repeats and sizes\n"
    "  --json     print one JSON object instead of a table\n"
    "\n"
    "exit status: 0 done, 1 the benchmark failed, 2 wrong usage\n".

options("links") ->
    [{json, undefined, "json", undefined, "print one JSON object"},
     {cookie_file, undefined, "cookie-file", string, "read the cookie from this file, not ~/.erlang.cookie"},
     {help, $h, "help", undefined, "this help"},
     {node, undefined, undefined, string, "the node to ask, as name or name@host"}];
options("choose") ->
    [{json, undefined, "json", undefined, "print one JSON object"},
     {node, undefined, "node", string, "the node to ask, as name or name@host (the only one of this host)"},
     {nodes, undefined, "nodes", {string, "all"}, "the candidates: all that the asked node is connected to, or name@host with commas"},
     {n, $n, "count", integer, "so many nodes, picked by load; without it all that suit"},
     {explain, undefined, "explain", undefined, "every constraint that a node fails, for all nodes"},
     {why_not, undefined, "why-not", string, "the same for one node"},
     {cookie_file, undefined, "cookie-file", string, "read the cookie from this file, not ~/.erlang.cookie"},
     {help, $h, "help", undefined, "this help"},
     {query, undefined, undefined, string, "an Erlang term"}];
options("doctor") ->
    [{json, undefined, "json", undefined, "print one JSON object"},
     {help, $h, "help", undefined, "this help"}].

%% Parses the words of Command and runs Fun with a map of its options.
parsed(Command, Words, Fun) ->
    Specs = options(Command),
    case getopt:parse(Specs, Words) of
        {ok, {Options, []}} ->
            case proplists:get_bool(help, Options) of
                true -> usage(Command, Specs), ?DONE;
                false -> Fun(maps:from_list(proplists:unfold(Options)))
            end;
        {ok, {_, [Extra | _]}} ->
            complain("~ts: unexpected word '~ts'; see: beamway ~ts --help", [Command, Extra, Command]),
            ?USAGE;
        {error, Error} ->
            complain("~ts: ~ts; see: beamway ~ts --help",
                     [Command, getopt:format_error(Specs, {error, Error}), Command]),
            ?USAGE
    end.

usage(Command, Specs) ->
    say("~ts~n~ts", [getopt:usage_cmd_line("beamway " ++ Command, Specs), getopt:usage_options(Specs)]),
    say("~ts", [help_text(Command)]).

%% demo and bench are programs of their own; only their general help stands here.
program(Command, _, [Word | _]) when Command =:= "demo", Word =:= "-h"; Command =:= "demo", Word =:= "--help";
                                    Command =:= "bench", Word =:= "-h"; Command =:= "bench", Word =:= "--help" ->
    say("~ts", [help_text(Command)]),
    ?DONE;
program(Command, Module, Words) ->
    case code:ensure_loaded(Module) of
        {module, Module} ->
            Module:main(Words);
        {error, _} ->
            complain("~ts: ~ts", [Command, case Command of
                                                "topology" -> "the application placement is not on the code path; run: make build";
                                                _ -> "the benchmark programs are not built; run: scripts/build --bench"
                                            end]),
            ?FAILED
    end.

links(Options) ->
    case beamway_cli_links:ask(maps:with([node, cookie_file], Options)) of
        {ok, Report} ->
            show(Options, fun() -> beamway_cli_links:to_json(Report) end,
                 fun() -> beamway_cli_links:to_text(Report) end),
            ?DONE;
        {error, Text} ->
            complain("links: ~ts", [Text]),
            ?FAILED
    end.

doctor(Options) ->
    Report = beamway_doctor:examine(),
    show(Options, fun() -> beamway_doctor:to_json(Report) end,
         fun() -> beamway_doctor:to_text(Report) end),
    case beamway_doctor:is_well(Report) of
        true -> ?DONE;
        false -> ?FAILED
    end.

choose(#{query := _} = Options) ->
    case beamway_cli_choose:ask(Options) of
        {ok, Answer} ->
            show(Options, fun() -> beamway_cli_choose:to_json(Answer) end, fun() -> beamway_cli_choose:to_text(Answer) end),
            case Answer of
                {unsatisfied, _} -> ?FAILED;
                _ -> ?DONE
            end;
        {usage, Text} ->
            complain("choose: ~ts", [Text]),
            ?USAGE;
        {error, Text} ->
            complain("choose: ~ts", [Text]),
            ?FAILED
    end;
choose(_) ->
    complain("choose: which nodes? Expected a query; see: beamway choose --help", []),
    ?USAGE.

show(#{json := true}, Json, _) -> say("~ts~n", [jiffy:encode(Json(), [pretty])]);
show(_, _, Text) -> say("~ts", [Text()]).

version() ->
    io_lib:format("beamway ~ts (OTP ~ts, ERTS ~ts)",
                  [beamway:version(), erlang:system_info(otp_release), erlang:system_info(version)]).

%% @doc Lays out rows of texts in columns; the first row is the heading.
-spec table([[unicode:chardata()]]) -> unicode:chardata().
table(Rows) ->
    Widths = [lists:max([string:length(Cell) || Cell <- Column]) || Column <- columns(Rows)],
    [[string:trim(lists:join("  ", lists:zipwith(fun pad/2, Row, Widths)), trailing), $\n] || Row <- Rows].

columns([[] | _]) -> [];
columns(Rows) -> [[hd(Row) || Row <- Rows] | columns([tl(Row) || Row <- Rows])].

pad(Cell, Width) -> string:pad(Cell, Width).

%% Through a port of our own: the VM's `user' process would not tell that a write failed.
say(Format, Arguments) ->
    _ = process_flag(trap_exit, true),
    Port = open_port({fd, 1, 1}, [out, binary]),
    true = port_command(Port, unicode:characters_to_binary(io_lib:format(Format, Arguments))),
    written(Port).

%% No deadline: a reader may take its time (a pager), and one that goes away ends the port.
written(Port) ->
    case erlang:port_info(Port, queue_size) of
        {queue_size, 0} -> failure(Port, 0);
        {queue_size, _} -> failure(Port, 5), written(Port);
        undefined -> failure(Port, infinity)
    end.

failure(Port, Wait) ->
    receive
        {'EXIT', Port, Reason} -> throw({output, Reason})
    after Wait -> ok
    end.

complain(Format, Arguments) -> complain_with("beamway: " ++ Format ++ "~n", Arguments).

complain_with(Format, Arguments) -> io:format(standard_error, Format, Arguments).
