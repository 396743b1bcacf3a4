%% SPDX-License-Identifier: Apache-2.0
%% @doc `beamway topology': measures the network of a cluster, shows it, and reads and writes its description.
%%
%% Called by the `beamway' command. The result goes to standard output (or the file that the user named), and everything else to standard error.
-module(beamway_cli_topology).

-export([main/1]).

-import(beamway_cli_output, [say/2, complain/2]).

-define(DONE, 0).
-define(FAILED, 1).
-define(USAGE, 2).

%% @doc Runs the arguments after `beamway topology'.
-spec main([string()]) -> 0..2.
main(["measure" | Words]) -> parsed("measure", Words, 0, fun beamway_cli_topology_measure:run/1);
main(["show" | Words]) -> parsed("show", Words, 1, fun beamway_cli_topology_show:show/1);
main(["import" | Words]) -> parsed("import", Words, 1, fun beamway_cli_topology_show:convert/1);
main(["export" | Words]) -> parsed("export", Words, 1, fun beamway_cli_topology_show:convert/1);
main([Help | _]) when Help =:= "-h"; Help =:= "--help" -> say("~ts", [summary()]), ?DONE;
main(["help"]) -> main(["--help"]);
main(["help", Command]) -> main([Command, "--help"]);
main([Other | _]) ->
    complain("topology: unknown subcommand '~ts'; expected measure, show, import or export", [Other]),
    ?USAGE;
main([]) -> io:format(standard_error, "~ts", [summary()]), ?USAGE.

summary() ->
    "usage: beamway topology COMMAND [OPTION...]\n"
    "\n"
    "  measure       measure the times between all pairs of nodes, quiet and under load\n"
    "  show FILE     show or draw the tree of the measured times, and how well it fits\n"
    "  import FILE   read Slurm's topology.conf or topology.yaml, a list of hosts, declared paths, hwloc's XML\n"
    "  export FILE   write a tree as a network term, DOT, Newick, JSON or topology.conf\n"
    "\n"
    "exit status: 0 success, 1 failure, 2 usage error\n"
    "See: beamway topology COMMAND --help, and docs/guide/topology.md\n".

options("measure") ->
    [{nodes, $n, "nodes", string, "the nodes, with commas between: a@h1,b@h1 (at least two)"},
     {'of', undefined, "of", string, "this node and all nodes connected with it"},
     {start, undefined, "start", integer, "start this number of nodes on this host, measure them, and stop them"},
     {per_core, undefined, "per-core", undefined, "start one node on each core of this host, pinned to it"},
     {out, $o, "out", {string, "topology.json"}, "the file for the result"},
     {resume, undefined, "resume", undefined, "continue the file: measure only the missing pairs"},
     {mode, undefined, "mode", {string, "both"}, "quiet: disjoint pairs, round by round; loaded: all pairs at once; both"},
     {pairs, undefined, "pairs", {string, "100%"}, "the share of all pairs to measure, such as 10%; the tree estimates the others"},
     {batches, undefined, "batches", {integer, 20}, "batches for each pair"},
     {messages, undefined, "messages", {integer, 100}, "round trips of a batch"},
     {cookie_file, undefined, "cookie-file", string, "read the cookie from this file, not ~/.erlang.cookie"},
     {beside, undefined, "beside", string, "with --per-core: draw the tree beside hwloc's in this .svg or .png file"},
     {json, undefined, "json", undefined, "also print the result as one JSON object"},
     {help, $h, "help", undefined, "this help"}];
options("show") ->
    [{'of', undefined, "of", string, "quiet or loaded (default: loaded if it was measured)"},
     {statistic, undefined, "statistic", {string, "median"}, "min, median or p90 of the batches of a pair"},
     {alpha, undefined, "alpha", float, "the report's algorithm with this threshold (from 1.0) instead of the default"},
     {drop_gaps, undefined, "drop-gaps", undefined, "leave out nodes without a measured path to the others"},
     {heat_map, undefined, "heat-map", string, "draw all pairs into this .svg or .png file"},
     {dendrogram, undefined, "dendrogram", string, "draw the tree into this .svg or .png file"},
     {order, undefined, "order", {string, "tree"}, "order of the heat map: tree or name"},
     {breaks, undefined, "breaks", undefined, "order by name and draw the breaks of the allocation as dotted lines"} | file_options()];
options(_) ->
    [{to, $t, "to", {string, "term"}, "term, dot, newick, json, conf or paths"},
     {out, $o, "out", string, "the file for the result (default: standard output)"},
     {alpha, undefined, "alpha", float, "with measured times: the report's algorithm with this threshold"},
     {drop_gaps, undefined, "drop-gaps", undefined, "with measured times: leave out nodes without a measured path to the others"},
     {dendrogram, undefined, "dendrogram", string, "draw the tree into this .svg or .png file"} | file_options()].

file_options() ->
    [{nodes, $n, "nodes", string, "the existing nodes, with commas between: a@h1,b@h1"},
     {name, undefined, "name", string, "one node of this name on each host"},
     {kind, undefined, "kind", string, "the kind of file: conf, yaml, paths, term, hwloc, hostlist, measured, csv"},
     {json, undefined, "json", undefined, "print one JSON object"},
     {help, $h, "help", undefined, "this help"}].

help_text("measure") ->
    "\nThe nodes connect to each other; they need not run Beamway. Progress goes to standard error.\n"
    "Results are stored during the run: an interrupted run continues with --resume.\n"
    "examples: beamway topology measure --nodes a@h1,a@h2,a@h3\n"
    "          beamway topology measure --start 8 && beamway topology show topology.json\n"
    "          beamway topology measure --per-core --beside cores.svg\n";
help_text("show") ->
    "\nFILE comes from measure, or is a file that import reads.\n"
    "example: beamway topology show topology.json --heat-map heat.png --dendrogram tree.svg\n";
help_text(_) ->
    "\nFILE comes from measure, or is a file of another kind, recognized by the ending of its name.\n"
    "examples: beamway topology import topology.conf --name rabbit --to term\n"
    "          beamway topology export topology.json --to dot | dot -Tsvg > tree.svg\n".

parsed(Command, Words, Files, Fun) ->
    Specs = options(Command),
    case beamway_cli_help:parse(Specs, Words) of
        {ok, #{help := true}, _} -> help(Command, Specs), ?DONE;
        {ok, Options, Rest} when length(Rest) =:= Files -> guarded(Command, Fun, Options#{files => Rest});
        {ok, _, [Extra | _]} when Files =:= 0 -> usage(Command, "unexpected word '~ts'", [Extra]);
        {ok, _, Rest} -> usage(Command, "expected one FILE, not ~b", [length(Rest)]);
        {error, Text} -> usage(Command, "~ts", [Text])
    end.

help(Command, Specs) ->
    File = case Command of "measure" -> ""; _ -> " FILE" end,
    say("usage: beamway topology ~ts~ts [OPTION...]~n~n~ts~ts", [Command, File, getopt:usage_options(Specs), help_text(Command)]).

guarded(Command, Fun, Options) ->
    try Fun(Options) of
        ok -> ?DONE
    catch
        throw:{failed, Text} -> complain("topology ~ts: ~ts", [Command, Text]), ?FAILED;
        throw:{usage, Text} -> usage(Command, "~ts", [Text])
    end.

usage(Command, Format, Arguments) ->
    complain("topology ~ts: " ++ Format ++ "; see: beamway topology ~ts --help", [Command | Arguments] ++ [Command]),
    ?USAGE.
