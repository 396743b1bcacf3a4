%% SPDX-License-Identifier: Apache-2.0
%% @doc `beamway console': runs a console for a running cluster in a separate VM, which becomes a hidden node and listens only for browsers.
%%
%% Called by {@link beamway_cli}. The console need not be installed on the nodes: collectors are sent to them, and exit together with this command.
-module(beamway_cli_console).

-export([main/1]).

-define(DONE, 0).
-define(FAILED, 1).
-define(USAGE, 2).

%% @doc Runs until it is stopped. Returns 1 if it could not start, and 2 for a usage error.
-spec main(Words :: [string()]) -> 0..2.
main(Words) ->
    case beamway_cli_help:parse(options(), Words) of
        {ok, #{help := true}, []} -> help(), ?DONE;
        {ok, Options, []} -> run(Options);
        {ok, _, [Extra | _]} -> usage("unexpected word '~ts'", [Extra]);
        {error, Text} -> usage("~ts", [Text])
    end.

usage(Format, Arguments) ->
    complain(Format ++ "; see: beamway console --help", Arguments),
    ?USAGE.

complain(Format, Arguments) -> io:format(standard_error, "beamway: console: " ++ Format ++ "~n", Arguments).

options() ->
    [{node, undefined, undefined, string, "a node of the cluster, as name or name@host (the only one of this host)"},
     {port, $p, "port", {integer, 8090}, "port to listen on; 0: any free port"},
     {bind, undefined, "bind", {string, "127.0.0.1"}, "address to listen on; any address other than loopback needs --token-file"},
     {token_file, undefined, "token-file", string, "file with the token or password for browsers; readable only by you"},
     {certfile, undefined, "certfile", string, "PEM certificate for HTTPS; needs --keyfile"},
     {keyfile, undefined, "keyfile", string, "PEM private key"},
     {allow, undefined, "allow", undefined, "browsers may start measurements, and queries that call code of the nodes"},
     {times, undefined, "times", string, "show the times in this file of beamway topology measure"},
     {interval, undefined, "interval", {integer, 1000}, "milliseconds between two samples of a node"},
     {results, undefined, "results", string, "has no effect any more"},
     {cookie_file, undefined, "cookie-file", string, "read the cookie from this file, not ~/.erlang.cookie"},
     {json, undefined, "json", undefined, "print the address as a JSON object"},
     {help, $h, "help", undefined, "this help"}].

help() ->
    beamway_cli_output:say("~ts~n~ts~ts", [getopt:usage_cmd_line("beamway console", options()), getopt:usage_options(options()),
        "\nShows a running cluster in a browser until Ctrl-C: links, distances, placement, web servers, pipes.\n"
        "It connects to one node, as a hidden node over TCP with your Erlang cookie, and finds the others through it.\n"
        "\n"
        "It runs until a signal ends it.\nexit status: 1 it could not start, 2 usage error\n"
        "examples:    beamway console\n"
        "             beamway console rabbit@web1 --port 9000 --allow\n"
        "             (umask 077; openssl rand -hex 32 >token); beamway console --bind 0.0.0.0 --token-file token\n"]).

run(#{bind := Bind} = Options) ->
    case {inet:parse_address(Bind), times(Options)} of
        {{error, _}, _} -> usage("--bind ~ts: an IP address is expected", [Bind]);
        {_, {error, Why}} -> complain("~ts", [Why]), ?FAILED;
        {{ok, Ip}, {ok, Times}} ->
            Config = config(Ip, Options),
            case beamway_console_config:read(maps:to_list(Config)) of
                {ok, _} -> attached(beamway_cli_ask:open(Options), Config, Times, Options);
                {error, Text} -> complain("~ts", [Text]), ?USAGE
            end
    end.

config(Ip, #{port := Port, interval := Interval} = Options) ->
    (maps:with([token_file, certfile, keyfile, results], Options))#{ip => Ip, port => Port, interval_ms => Interval, allow => maps:get(allow, Options, false)}.

times(#{times := File}) ->
    case file:read_file(File) of
        {ok, Bytes} ->
            try placement_measured:from_json(jiffy:decode(Bytes, [return_maps])) of
                {ok, Measured} -> {ok, Measured};
                {error, Error} -> {error, [File, ": ", placement_measured:format_error(Error)]}
            catch
                error:Reason when Reason =/= undef -> {error, [File, " is not JSON"]}
            end;
        {error, Reason} -> {error, ["cannot read ", File, ": ", file:format_error(Reason)]}
    end;
times(#{}) -> {ok, none}.

attached({error, Text}, _, _, _) -> complain("~ts", [Text]), ?FAILED;
attached({ok, Node}, Config, Times, Options) ->
    %% The cookie for the first node is used for all others as well.
    true = erlang:set_cookie(erlang:get_cookie(Node)),
    case beamway_cli_output:quietly(fun() -> beamway_console:start(Config#{nodes => [Node]}) end) of
        {ok, Url} ->
            _ = [ok = beamway_console_jobs:set_measured(Times) || Times =/= none],
            said(Url, Node, Options),
            %% Runs until a signal stops the VM, or the console fails.
            Monitor = monitor(process, beamway_console_sup),
            receive {'DOWN', Monitor, process, _, Reason} -> complain("it ended: ~0tP", [Reason, 12]), ?FAILED end;
        {error, Text} -> complain("~ts", [Text]), ?FAILED
    end.

said(Url, Node, #{json := true}) -> io:format("~ts~n", [jiffy:encode(#{url => Url, node => Node})]);
said(Url, Node, _) -> io:format("Console of the cluster of ~ts:  ~ts~nCtrl-C ends it.~n", [Node, Url]).
