%% SPDX-License-Identifier: Apache-2.0
%% @doc Creates the networks on which benchmarks run, from network namespaces of this machine that are joined by veth or by an emulated path. This
%% needs root.
-module(beamway_bench_net).

-export([names/0, chosen/2, chosen_or_loopback/2, title/1, facts/1, check/0, open/1, hosts/1, close/1]).

-export_type([name/0, net/0]).

-type name() :: veth | veth4 | path_1ms | path_20ms | path_50ms | path_100m | path_100m_20ms.
%% `veth' joins two namespaces and `veth4' four; a path joins two. In `path_100m' the first host is listed twelve times, so it gets 12 of 16 nodes.
-opaque net() :: #{name := name(), hosts := [beamway_bench_hosts:host(), ...], close := fun(() -> ok)}.

%% @doc Returns the networks on which `bench hosts' runs if none is named.
-spec names() -> [name()].
names() -> [veth, veth4, path_1ms, path_20ms].

%% @doc Returns those of the given networks that the value of `--path' specifies, or all of them. The names may include `loopback', which is not a
%% network.
-spec chosen(Text :: string() | all, Names) -> {ok, Names} | {error, unicode:chardata()} when Names :: [atom(), ...].
chosen(all, Names) -> {ok, Names};
chosen(Text, Names) ->
    case [Name || Name <- Names, atom_to_list(Name) =:= Text] of
        [] -> {error, ["--path ", Text, ": expected one of ", lists:join(", ", [atom_to_list(Name) || Name <- Names])]};
        Chosen -> {ok, Chosen}
    end.

%% @doc Like {@link chosen/2}, for names that include `loopback', which needs no root. Also returns the networks among the chosen ones, which can be
%% created here.
-spec chosen_or_loopback(Text :: string() | all, Names) -> {ok, Names, [name()]} | {error, unicode:chardata()} when Names :: [loopback | name(), ...].
chosen_or_loopback(Text, Names) ->
    case {chosen(Text, Names), check()} of
        {{error, Why}, _} -> {error, Why};
        {{ok, [loopback]}, _} -> {ok, [loopback], []};
        {{ok, _}, {error, Why}} -> {error, [Why, ", or with --path loopback"]};
        {{ok, Chosen}, ok} -> {ok, Chosen, lists:delete(loopback, Chosen)}
    end.

%% The queue holds the data of one round trip, but at least 2 ms of data. Offload is on, as between
%% real hosts, because handling each segment separately would cost this machine more CPU time than
%% the nodes use. The long path uses cubic, as most hosts do, rather than BBR, which loss hardly
%% slows down.
path(path_1ms) -> #{rate_bits => 1000000000, delay_us => 500, queue_bytes => 262144, mtu => 1500, offload => 1, seed => 1};
path(path_20ms) -> #{rate_bits => 1000000000, delay_us => 10000, loss => 0.0001, queue_bytes => 2500000, mtu => 1500, offload => 1, seed => 1};
path(path_50ms) -> #{rate_bits => 1000000000, delay_us => 25000, loss => 0.0001, queue_bytes => 6250000, mtu => 1500, offload => 1, seed => 1, congestion => cubic};
path(path_100m) -> #{rate_bits => 100000000, delay_us => 500, queue_bytes => 262144, mtu => 1500, offload => 1, seed => 1};
path(path_100m_20ms) -> #{rate_bits => 100000000, delay_us => 10000, queue_bytes => 262144, mtu => 1500, offload => 1, seed => 1}.

%% @doc Returns a human-readable description.
-spec title(name()) -> string().
title(veth) -> "veth";
title(veth4) -> "veth";
title(path_1ms) -> "1 Gbit/s, 1 ms";
title(path_20ms) -> "1 Gbit/s, 20 ms, 0.01 % lost";
title(path_50ms) -> "1 Gbit/s, 50 ms, 0.01 % lost";
title(path_100m) -> "100 Mbit/s, 1 ms";
title(path_100m_20ms) -> "100 Mbit/s, 20 ms".

%% @doc Returns the properties of the paths, for the stored result.
-spec facts([name()]) -> #{paths => #{name() => map()}}.
facts(Names) -> #{paths => maps:from_list([{Name, path(Name)} || Name <- Names, not lists:member(Name, [veth, veth4])])}.

%% @doc Returns whether networks can be created here.
-spec check() -> ok | {error, string()}.
check() ->
    case {string:trim(os:cmd("id -u")), os:find_executable("ip")} of
        {"0", false} -> {error, "missing: ip. Run: scripts/install-packages bench"};
        {"0", _} -> ok;
        _ -> {error, "the hosts are network namespaces, so it must be run as root"}
    end.

%% @doc Creates the network; the caller must close it.
-spec open(name()) -> {ok, net()} | {error, string()}.
open(veth) ->
    with(veth, beamway_netns:pair("bwv"), fun(Net) -> {of_net(Net), fun() -> beamway_netns:delete(Net) end} end);
open(veth4) ->
    with(veth4, beamway_bridges:build("bwv", [{4, unlimited}], unlimited),
         fun(#{hosts := Hosts} = Net) -> {[{Space, Address} || {Address, Space} <- Hosts], fun() -> beamway_bridges:delete(Net) end} end);
open(path_100m = Name) ->
    with(Name, beamway_path:open("bw100m", path(Name)),
         fun(Path) ->
             [Near, Far] = of_net(beamway_path:net(Path)),
             {lists:duplicate(12, Near) ++ lists:duplicate(4, Far), fun() -> close_path(Name, Path) end}
         end);
open(Name) ->
    with(Name, beamway_path:open(prefix(Name), path(Name)), fun(Path) -> {of_net(beamway_path:net(Path)), fun() -> close_path(Name, Path) end} end).

prefix(path_1ms) -> "bw1m";
prefix(path_20ms) -> "bw20m";
prefix(path_50ms) -> "bw50m";
prefix(path_100m_20ms) -> "bwfar".

with(_, {error, Why}, _) -> {error, Why};
with(Name, {ok, Made}, Fun) ->
    {Hosts, Close} = Fun(Made),
    {ok, #{name => Name, hosts => Hosts, close => Close}}.

of_net(#{spaces := Spaces, addresses := Addresses}) -> lists:zip(Spaces, Addresses).

%% Reports by how much packets were late, because the machine may have been too busy to emulate the path on time.
close_path(Name, Path) ->
    try beamway_path:counters(Path) of
        #{<<"there">> := #{<<"latest_us">> := There}, <<"back">> := #{<<"latest_us">> := Back}, <<"seconds">> := Seconds, <<"cpu_seconds">> := Cpu} ->
            beamway_bench_text:note("path ~ts: packets were handed over up to ~b us late; the emulator took ~.2f of a processor",
                               [title(Name), max(There, Back), Cpu / Seconds])
    after
        ok = beamway_path:close(Path)
    end.

%% @doc Returns the network's hosts.
-spec hosts(net()) -> [beamway_bench_hosts:host(), ...].
hosts(#{hosts := Hosts}) -> Hosts.

%% @doc Removes the network, and kills everything that is running on it.
-spec close(net()) -> ok.
close(#{close := Close}) -> Close().

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

chosen_test_() ->
    [?_assertEqual({ok, [veth, loopback]}, chosen(all, [veth, loopback])), ?_assertEqual({ok, [loopback]}, chosen("loopback", [veth, loopback])),
     ?_assertMatch({error, _}, chosen("wifi", [veth])),
     ?_assertEqual({ok, [loopback], []}, chosen_or_loopback("loopback", [loopback, veth])), ?_assertMatch({error, _}, chosen_or_loopback("wifi", [loopback, veth]))].

facts_test_() ->
    [?_assertMatch(#{paths := #{path_1ms := #{mtu := 1500, delay_us := 500}}}, facts([veth, path_1ms])),
     ?_assertEqual(#{paths => #{}}, facts([veth4]))].

%% If a queue could not hold the data of one round trip, a single stream could not saturate the link.
queues_hold_a_round_trip_test() ->
    [?assert(Queue * 8 * 1000000 >= Bits * beamway_path:round_trip_us(Path))
     || Name <- [path_1ms, path_20ms, path_50ms, path_100m, path_100m_20ms], #{queue_bytes := Queue, rate_bits := Bits} = Path <- [path(Name)]].
-endif.
