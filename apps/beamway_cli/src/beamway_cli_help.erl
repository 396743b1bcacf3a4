%% SPDX-License-Identifier: Apache-2.0
%% @doc The texts and options of the `beamway' command, for {@link beamway_cli}. All functions are pure.
%%
%% The manual page and the completions (`bin/man', `bin/completion') have the same content; `beamway_cli_SUITE' checks that they agree.
-module(beamway_cli_help).

-export([summary/0, details/0, commands/0, text/1, options/1, parse/2]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

%% @doc Returns the commands by name, in the order of the summary.
-spec commands() -> [string()].
commands() -> [Name || {Name, _, _} <- table()].

table() ->
    [{"demo", "", "start four real nodes and compare Beamway with stock TCP"},
     {"console", " [NODE]", "show a running cluster in a browser"},
     {"bench", " NAME", "run one benchmark"},
     {"soak", "", "load real nodes for a long time and report what grew"},
     {"links", " [NODE]", "show which link a running node uses to each of its peers"},
     {"top", " [NODE]", "show the same live: bytes, frames and stalls per second"},
     {"why", " PEER [NODE]", "show why a running node's link to a peer ended"},
     {"fault", " PEER [NODE]", "break the network between a running node and a peer, for tests"},
     {"report", " [NODE]", "write what a running node knows of its links to a file, for a report of a fault"},
     {"attach", " HOST[:NODE]", "open a shell on a node of another host, through ssh"},
     {"choose", " QUERY", "show which nodes of a cluster a query chooses, or why not the others"},
     {"drain", " NODE", "move the processes of a running node to other nodes, before it stops"},
     {"topology", "", "measure and draw the network between nodes, convert its description"},
     {"node", "", "start a node with the right flags; in a Slurm job, a node of the job's cluster"},
     {"pipe", " SEGMENT...", "run a UNIX pipe between hosts (rdpipe); pipe cp, send, recv: rdcp, rdsend, rdrecv"},
     {"keygen", " FILE", "make a key file for encrypted links, or a good cookie"},
     {"doctor", " [NODE]", "show which links this host can use, and what is wrong"}].

%% @doc Returns the output of `beamway -h'.
-spec summary() -> iolist().
summary() ->
    ["usage: beamway COMMAND [OPTION...]\n\n",
     [io_lib:format("  ~-15s ~ts~n", [Name ++ Words, What]) || {Name, Words, What} <- table()],
     "\n"
     "  -h, --help      this help, or that of a command: beamway COMMAND --help\n"
     "  -V, --version   the version\n"].

%% @doc Returns the additional output of `beamway --help'.
-spec details() -> iolist().
details() ->
    "exit status: 0 success, 1 failure, 2 usage error\n"
    "environment: BEAMWAY_ERL  the 'erl' to use (default: the first on the PATH)\n"
    "             BEAMWAY_*    the options of the carrier, see docs/guide\n"
    "Results go to standard output, everything else to standard error.\n".

%% @doc Returns the help text of a command, without its options.
-spec text(Command :: string()) -> iolist().
text("links") ->
    "\nAsks a running node for its links.\n"
    "The command connects as a hidden node over TCP with your Erlang cookie.\n"
    "Without NODE it asks the only node that is registered with this host's epmd.\n"
    "\n"
    "exit status: 0 shown, 1 the node could not be asked, 2 usage error\n"
    "examples:    beamway links\n"
    "             beamway links rabbit@web1 --json\n";
text("why") ->
    "\nAsks a running node why its last link to PEER ended, and what the link did before. PEER is a node's name, with or without its host.\n"
    "The node remembers the links that have ended in the last hour. With --json the answer has all of them, with the steps of their records.\n"
    "\n"
    "exit status: 0 shown, 1 the node could not be asked or knows of no such link, 2 usage error\n"
    "examples:    beamway why rabbit@web2\n"
    "             beamway why rabbit@web2 rabbit@web1 --json\n";
text("fault") ->
    "\nBreaks the network between a running node and PEER, for tests: what beamway:fault/2 does. The node must have been started with BEAMWAY_ALLOW_FAULTS=true.\n"
    "A fault lies on all connections between the two, also on new ones, and ends by itself after --for-ms, a minute by default. A second call replaces the\n"
    "first. `beamway links' shows it.\n"
    "\n"
    "exit status: 0 set or ended, 1 the node could not be asked or refuses, 2 usage error\n"
    "examples:    beamway fault b a --cut both --for-ms 20000\n"
    "             beamway fault b@web2 a@web1 --delay-ms 100 --jitter-ms 20 --rate-bytes 1000000\n"
    "             beamway fault b a --disconnect\n"
    "             beamway fault b a --end\n";
text("report") ->
    "\nWrites a file of JSON, for your eyes first: the node's links and options, the records of links that are up or have ended in the last hour with\n"
    "what ended them, and what this host has for links. Names of processes and options are in it in any case, a cookie or a key never.\n"
    "\n"
    "exit status: 0 written, 1 the node could not be asked or the file not written, 2 usage error\n"
    "examples:    beamway report\n"
    "             beamway report rabbit@web1 --hide-names --out report.json\n";
text("attach") ->
    "\nOpens a remote shell on a node of another host. Everything goes through one ssh connection: from here neither epmd nor a port of a node\n"
    "is reached, and no name is resolved. The cookie is that of your user there; it is not shown. Without NODE it takes the only node of the host.\n"
    "\n"
    "exit status: 0 the shell has ended, 1 no such node or no erl there, 2 usage error, 255 ssh failed\n"
    "examples:    beamway attach web1\n"
    "             beamway attach deploy@web1:rabbit\n";
text("top") ->
    "\nAsks a running node repeatedly, as `links' does, and shows the traffic of its links per second.\n"
    "On a terminal the screen is updated. Letters sort it: n node, l link, i in, o out, b both, f frames,\n"
    "d doorbells, s stalls, r fill of the ring, u queue; q quits. Into a pipe it prints one screen.\n"
    "With --senders it shows for each link the three processes of the node that sent most over it in the last ten\n"
    "seconds, those with most bytes waiting first; with --json, up to twelve.\n"
    "\n"
    "exit status: 0 shown, 1 the node could not be asked, 2 usage error\n"
    "examples:    beamway top\n"
    "             beamway top rabbit@web1 --cluster --sort out\n"
    "             beamway top rabbit@web1 --senders\n"
    "             beamway top --json --count 10 --interval 0.5\n";
text("choose") ->
    "\nAsks a running node which nodes of its cluster fulfil a query. The node must run the application placement.\n"
    "QUERY is an Erlang term, as for placement:choose_nodes/2; see docs/guide/placement.md.\n"
    "\n"
    "exit status: 0 chosen or explained, 1 no node fulfils the query or the node could not be asked, 2 usage error\n"
    "examples:    beamway choose '{load_per_core1, lt, 0.5}' --count 1\n"
    "             beamway choose '[{mem_available, ge, {4, gib}}, {dist, near}]' --node a@web1 --explain\n"
    "             beamway choose '{gpu, true}' --why-not b@web2\n"
    "             beamway choose --advise --node a@web1\n";
text("drain") ->
    "\nMoves the processes of a running node to other nodes, with their state and the messages that wait for them: the children of placement:child/3,\n"
    "and gen_servers and gen_statems that export placement_handoff/3. The node must run the application placement; see docs/guide/placement.md.\n"
    "Nothing new is placed on the node after. Progress goes to standard error. What has not moved is named, with the reason.\n"
    "\n"
    "exit status: 0 all moved, 1 something stayed or was lost, or the node could not be drained, 2 usage error\n"
    "examples:    beamway drain app@web1\n"
    "             beamway drain app@web1 --timeout 25 --json\n";
text("node") ->
    "\nStarts a node on Beamway's carrier and connects it. It runs until a signal ends it. On a terminal it has a shell.\n"
    "In a job step of Slurm every task is a node of the job's cluster. Name and peers come from Slurm's variables. The\n"
    "nodes connect, the first one measures the network, and placement:choose_nodes/2 knows the distances on all nodes.\n"
    "With --run the first node calls the function when all are ready, and all end with its status.\n"
    "Words after -- go to erl.\n"
    "\n"
    "exit status: 0 ended normally, 1 a step failed (a missing peer, a port, a cookie), 2 usage error\n"
    "examples:    beamway node --name a\n"
    "             beamway node --name b@web1.example --connect a@web2.example --cookie-file /etc/app/cookie\n"
    "             srun beamway node\n"
    "             srun beamway node --run ml_aco_job -- -pa /shared/ebin\n";
text("keygen") ->
    "\nMakes a file with a new random key for the option encrypt_key_file, which only its owner can read.\n"
    "With --cookie it makes a cookie of 256 random bits instead, and prints it if no file is named.\n"
    "\n"
    "exit status: 0 made, 1 the file exists or cannot be written, 2 usage error\n"
    "examples:    beamway keygen /etc/app/beamway.key\n"
    "             beamway keygen --cookie ~/.erlang.cookie\n";
text("doctor") ->
    "\nTries everything that the links need on this host, under the limits of this shell.\n"
    "With NODE it also asks that node, as `links' does, whether it runs the application teleport.\n"
    "\n"
    "exit status: 0 shared memory works, 1 there is a problem or the node could not be asked,\n"
    "             2 usage error\n"
    "examples:    beamway doctor\n"
    "             beamway doctor rabbit@web1\n"
    "             beamway doctor --json | jq .ok\n";
text("demo") ->
    "usage: beamway demo [OPTION...]\n"
    "\n"
    "Starts four Erlang nodes on this host, measures calls over stock TCP and over Beamway, kills one\n"
    "node and checks that nothing of it remains. `make demo' also installs and builds what it needs.\n"
    "  --json       also print the stored JSON object\n"
    "  --save FILE  the file for the result, which is not stored if other work runs on the machine\n"
    "  --force      store it even then, and mark it as noisy\n"
    "\n"
    "exit status: 0 done, 1 a step failed or shared memory did not carry the calls, 2 usage error\n"
    "examples:    beamway demo\n"
    "             beamway demo --json --save demo.json\n";
text("bench") ->
    "usage: beamway bench NAME [--quick] [--json] [OPTION...]\n"
    "\n"
    "Runs one benchmark against stock TCP distribution in the same run.\n"
    "  rpc        100 processes per node in a loop of remote calls\n"
    "  pingpong   round trips of one pair of processes\n"
    "  stream     one sender, one receiver\n"
    "  cost       system calls, context switches and copies for each message\n"
    "  ring, heartbeat, calls, casts, references\n"
    "             large binaries, calls beside them, teleport\n"
    "  broadcast  one process to a group on 16 nodes over a slow link (root)\n"
    "  beside     small calls beside large messages by plain '!' (root)\n"
    "  hosts      calls and messages between hosts (root)\n"
    "  far, apps  compressed replication between sites; mnesia and PubSub between hosts (root)\n"
    "  paced      calls at a pace, from one to 4,000 a second\n"
    "  peers      one node with 100 to 3,000 links\n"
    "  recorder   processor time with the flight recorder and without it\n"
    "  session    links that outlive their connections beside links that do not\n"
    "  mesh       150 nodes, all connected with each other\n"
    "  tune-tcp   which options make stock TCP distribution best\n"
    "  placement  choices among 100 real nodes, and policies with outdated information\n"
    "  http, http-memory, http-2009, http-private\n"
    "             yucan and other servers (needs root)\n"
    "  pipe       rdpipe beside iperf3, ssh, cat, mbuffer, nc and socat (needs root)\n"
    "  copy       rdcp beside rsync, scp and tar over ssh (needs root)\n"
    "  rdma       the bare link beside perftest (needs a device)\n"
    "  rabbitmq   messages through a RabbitMQ cluster, installed only for the run (needs root)\n"
    "  all        those from rpc to references, one after the other\n"
    "  report     ten questions in a quarter of an hour, on one page\n"
    "  --quick    the same metrics in under 45 s (copy: one minute, placement: four), with fewer repeats and sizes\n"
    "  --json     print one JSON object instead of a table\n"
    "\n"
    "exit status: 0 done, 1 the benchmark failed, 2 usage error\n"
    "examples:    beamway bench rpc --quick\n"
    "             beamway bench pingpong --json\n"
    "             beamway bench stream --help\n".

%% @doc Returns the options of a command, for getopt.
-spec options(Command :: string()) -> [getopt:option_spec()].
options("report") ->
    [{out, $o, "out", string, "the file (default: beamway-report-TIME.json)"},
     {hide_names, undefined, "hide-names", undefined, "write stand-ins for the names of nodes and hosts and for addresses"}, cookie_file(), help(), asked()];
options("attach") ->
    [help(), {host, undefined, undefined, string, "the host as ssh knows it, and a node there, as name or name@host"}];
options("links") -> [json(), via(), cookie_file(), help(), asked()];
options("why") -> [json(), via(), cookie_file(), help(), peer(), asked()];
options("fault") ->
    [{cut, undefined, "cut", string, "in, out or both: nothing passes in that direction, as seen from NODE"},
     {delay_ms, undefined, "delay-ms", string, "milliseconds by which each byte is later, in each direction"},
     {jitter_ms, undefined, "jitter-ms", string, "up to so many milliseconds more, by chance"},
     {rate_bytes, undefined, "rate-bytes", string, "bytes a second in each direction, at least 1000"},
     {disconnect, undefined, "disconnect", undefined, "reset the connection now"},
     {for_ms, undefined, "for-ms", string, "how long the fault lasts, at most 3600000 (default: 60000)"},
     {'end', undefined, "end", undefined, "end the fault"}, json(), via(), cookie_file(), help(), peer(), asked()];
options("top") ->
    [{sort, $s, "sort", string, "node, link, in, out, both, frames, doorbells, stalls, fill or queue (default: both)"},
     {senders, undefined, "senders", undefined, "instead, the processes that send most over each link"},
     {cluster, undefined, "cluster", undefined, "also the links of the node's peers"},
     {interval, $i, "interval", {string, "1"}, "seconds between two updates, 0.1 to 60"},
     {count, $n, "count", integer, "number of screens (default: one into a pipe, unlimited on a terminal)"},
     {json, undefined, "json", undefined, "print one JSON object per line for each screen"}, via(), cookie_file(), help(), asked()];
options("choose") ->
    [json(),
     {node, undefined, "node", string, "the node to ask, as name or name@host (the only one of this host)"},
     {nodes, undefined, "nodes", {string, "all"}, "the candidates: all nodes connected with the asked node, or name@host with commas"},
     {n, $n, "count", integer, "number of nodes, picked by load (default: all that fulfil the query)"},
     {explain, undefined, "explain", undefined, "for all nodes, each constraint that the node fails"},
     {why_not, undefined, "why-not", string, "the same for one node"},
     {advise, undefined, "advise", undefined, "without a query: sample the busiest processes for 2 s and show which moves would save how many bytes over which link"},
     cookie_file(), help(),
     {query, undefined, undefined, string, "an Erlang term"}];
options("drain") ->
    [json(), {timeout, $t, "timeout", {integer, 60}, "seconds after which what has not moved stays"},
     {at_once, undefined, "at-once", {integer, 8}, "how many processes move at the same time"}, cookie_file(), help(),
     {node, undefined, undefined, string, "the node to drain, as name or name@host"}];
options("node") ->
    [{name, undefined, "name", string, "name, or name@host; a dot in the host makes it a long name (in a Slurm job: set automatically)"},
     {connect, undefined, "connect", string, "nodes to connect with, name@host with commas"},
     {cookie_file, undefined, "cookie-file", string, "read the cookie from this file, not ~/.erlang.cookie"},
     {carrier, undefined, "carrier", string, "beamway (default), beamway6, beamway_tls, beamway6_tls or inet_tcp"},
     {wait, undefined, "wait", {integer, 60}, "seconds to wait for the peers"},
     {measure, undefined, "measure", {string, "auto"}, "quiet, loaded, both, none; auto: quiet in a Slurm job, else none"},
     {start, undefined, "start", string, "applications to start, with commas (placement starts where it is installed)"},
     {run, undefined, "run", string, "MODULE or MODULE:FUNCTION, called on the first node when all are ready (FUNCTION: main)"},
     {no_slurm, undefined, "no-slurm", undefined, "ignore Slurm's variables"},
     {json, undefined, "json", undefined, "print the line with `ready' as one JSON object"}, help()];
options("keygen") ->
    [{cookie, undefined, "cookie", undefined, "make a cookie"}, help(),
     {file, undefined, undefined, string, "the file to make"}];
options("doctor") -> [json(), cookie_file(), help(), asked()].

asked() -> {node, undefined, undefined, string, "the node to ask, as name or name@host"}.
peer() -> {peer, undefined, undefined, string, "the peer, as name or name@host"}.
json() -> {json, undefined, "json", undefined, "print one JSON object"}.
help() -> {help, $h, "help", undefined, "this help"}.
via() -> {via, undefined, "via", string, "run the command on this host through ssh; beamway must be on the PATH there"}.

cookie_file() -> {cookie_file, undefined, "cookie-file", string, "read the cookie from this file, not ~/.erlang.cookie"}.

%% @doc Parses the arguments of a command. An empty value is an error, because it usually comes from a shell variable that is not set.
-spec parse([getopt:option_spec()], Words :: [string()]) -> {ok, Options :: map(), Rest :: [string()]} | {error, Text :: unicode:chardata()}.
parse(Specs, Words) ->
    case getopt:parse(Specs, Words) of
        {ok, {Options, Rest}} ->
            case [label(lists:keyfind(Key, 1, Specs)) || {Key, ""} <- Options] ++ ["the argument" || "" <- Rest] of
                [] -> {ok, maps:from_list(proplists:unfold(Options)), Rest};
                [Empty | _] -> {error, [Empty, " '': expected a value that is not empty"]}
            end;
        {error, _} = Error -> {error, getopt:format_error(Specs, Error)}
    end.

label({Key, _, undefined, _, _}) -> string:uppercase(atom_to_list(Key));
label({_, _, Long, _, _}) -> ["--", Long].

-ifdef(TEST).

parse_test_() ->
    Parsed = fun(Command, Words) ->
                     case parse(options(Command), Words) of
                         {error, Text} -> unicode:characters_to_list(Text);
                         Good -> Good
                     end
             end,
    [?_assertEqual({ok, #{out => "f", node => "a", hide_names => true}, []}, Parsed("report", ["a", "--out", "f", "--hide-names"])),
     ?_assertEqual({ok, #{node => "a"}, ["b"]}, Parsed("links", ["a", "b"])),
     ?_assertEqual("invalid option: --nothing", Parsed("links", ["--nothing"]))]
        ++ [?_assertEqual(Label ++ " '': expected a value that is not empty", Parsed(Command, Words))
            || {Label, Command, Words} <- [{"--out", "report", ["--out", ""]}, {"--out", "report", ["--out="]}, {"--out", "report", ["-o", "", "-o", "f"]},
                                           {"PEER", "why", ["", "a"]}, {"NODE", "why", ["b", ""]}, {"the argument", "links", ["a", ""]}]].
-endif.
