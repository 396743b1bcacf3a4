%% SPDX-License-Identifier: Apache-2.0
%% @doc Lets a benchmark use other hosts: parses their names, and starts an epmd on each.
%%
%% Machines are reached over ssh, which must not require a password, and the built checkout must have the same path there as here. Network namespaces
%% of this machine ({@link beamway_bench_net}) are entered directly, which needs root. Everything started on a host exits when this node exits,
%% because it then gets end of file on its standard input.
-module(beamway_bench_hosts).

-export([parse/1, start_epmd/1, stop_epmd/1, peer_options/2]).

-export_type([host/0, epmd/0]).

-type host() :: string() | {Space :: string(), Address :: string()}.
%% A host is either the argument for ssh, `name' or `user@name', or a network namespace and an address in it. The names of nodes contain this name or
%% address, so a name must refer to the same host everywhere.
-opaque epmd() :: #{ports := [port()], number := inet:port_number()}.

-define(READY_MS, 20000).
%% This is below the kernel's ephemeral port range.
-define(FIRST_PORT, 20000).
-define(PORTS, 10000).

%% @doc Parses the value of `--hosts a,b,c'.
-spec parse(Text :: string()) -> {ok, [host(), ...]} | {error, unicode:chardata()}.
parse(Text) ->
    Hosts = string:split(Text, ",", all),
    case [Host || Host <- Hosts, re:run(Host, "^([A-Za-z0-9_.-]+@)?[A-Za-z0-9][A-Za-z0-9.:-]*$", [{capture, none}]) =:= nomatch] of
        [] when length(Hosts) >= 2 -> {ok, Hosts};
        [] -> {error, ["--hosts ", Text, ": expected two hosts or more, with commas"]};
        [Bad | _] -> {error, ["--hosts ", Text, ": '", Bad, "' is not a host name; expected names with commas, such as a,b or user@a,user@b"]}
    end.

%% Returns the host part of the names of the nodes on this host.
-spec name(host()) -> string().
name({_Space, Address}) -> Address;
name(Host) ->
    lists:last(string:split(Host, "@")).

%% @doc Starts an epmd on each host, on a port that no other epmd uses there.
-spec start_epmd([host()]) -> {epmd(), inet:port_number()}.
start_epmd(Hosts) ->
    Number = ?FIRST_PORT + rand:uniform(?PORTS) - 1,
    Ports = [open_epmd(Host, Number) || Host <- lists:usort(Hosts)],
    lists:foreach(fun(Port) -> await_ready(Port, Number) end, Ports),
    {#{ports => Ports, number => Number}, Number}.

%% epmd does not read its standard input, so the shell on that host waits for end of file and then kills epmd.
open_epmd(Host, Number) ->
    Script = io_lib:format("epmd -port ~b >/dev/null 2>&1 & epmd=$!; "
                           "until epmd -port ~b -names >/dev/null 2>&1; do kill -0 $epmd || exit 1; sleep 0.1; done; "
                           "echo ready; read line; kill $epmd; wait", [Number, Number]),
    [Program | Words] = on(Host, lists:flatten(Script)),
    beamway_bench_tools:open(Program, Words).

on({Space, _Address}, Script) -> beamway_netns:host(Space) ++ ["sh", "-c", Script];
on(Host, Script) -> [os:find_executable("ssh"), "-o", "BatchMode=yes", "--", Host, Script].

await_ready(Port, Number) ->
    case beamway_bench_tools:line(Port, ?READY_MS) of
        {line, "ready"} -> ok;
        {line, Said} -> error({epmd_did_not_start, ["on a host: ", Said]});
        Other -> error({epmd_did_not_start, io_lib:format("on a host, at port ~b: ~0p", [Number, Other])})
    end.

%% @doc Stops the epmd on each host.
-spec stop_epmd(epmd()) -> ok.
stop_epmd(#{ports := Ports}) ->
    lists:foreach(fun(Port) -> beamway_bench_tools:close(Port, none) end, Ports).

%% @doc Returns the options with which `peer' starts a node on the host. If the host name contains a dot, the nodes have long names.
-spec peer_options(host(), Root :: file:filename()) -> map().
peer_options({Space, Address}, _Root) ->
    [Program | Words] = beamway_netns:host(Space),
    #{host => Address, longnames => true, exec => {Program, Words ++ [beamway_bench_checkout:erl()]}};
peer_options(Host, Root) ->
    #{host => name(Host), longnames => string:find(name(Host), ".") =/= nomatch,
      exec => {filename:join([Root, "bench", "nodes", "remote_erl"]), [Host, Root]}}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

parse_test_() ->
    [?_assertEqual({ok, ["a", "root@b.example", "10.0.0.1"]}, parse("a,root@b.example,10.0.0.1"))
     | [?_assertMatch({error, _}, parse(Text)) || Text <- ["", "a", "a,", "a,-oProxyCommand=x", "a,b c", "a,;b", "x@y@z,b"]]].

names_test_() ->
    [?_assertEqual("10.0.0.1", name({"space", "10.0.0.1"})),
     ?_assertMatch(#{host := "b.example", longnames := true, exec := {_, ["root@b.example", "/r"]}}, peer_options("root@b.example", "/r")),
     ?_assertMatch(#{host := "b", longnames := false}, peer_options("b", "/r"))].
-endif.
