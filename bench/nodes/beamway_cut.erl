%% SPDX-License-Identifier: Apache-2.0
%% @doc Cuts TCP connections with the kernel's packet filter, either on a router between two hosts ({@link beamway_netns:firewalled/2}) or on the host
%% itself.
%%
%% The rules of a cut are in a separate chain, so {@link open/1} does not change the filter's other rules or its connection tracking. It needs root
%% and iptables.
-module(beamway_cut).

-export([close/2, open/1, during/3, of_nodes/2, forget/1, not_epmd/1, connection/2]).
-export_type([place/0, rule/0]).

-type place() :: {Space :: string() | here, Chains :: string()}.
%% A network namespace or this host, and the chains for the rules, separated by spaces: `FORWARD' on
%% a router and `INPUT' on the host itself.
-type rule() :: string().
%% A rule in the syntax of iptables, without the leading `-p tcp'.

%% @doc Applies all rules at the same time; they stay in effect until {@link open/1} is called.
-spec close(place(), [rule()]) -> ok.
close({_, Chains} = Place, Rules) ->
    "" = run(Place, [prepared(Rules), " && ", jumps("-I", Chains, " && ")]),
    ok.

%% @doc Removes the rules.
-spec open(place()) -> ok.
open({_, Chains} = Place) ->
    _ = run(Place, [jumps("-D", Chains, "; "), "; iptables -F CUT; iptables -X CUT"]),
    ok.

%% @doc Applies the rules for `Ms' milliseconds, and returns the system time just before they were removed, in microseconds.
-spec during(place(), [rule()], Ms :: non_neg_integer()) -> BackUs :: integer().
during({_, Chains} = Place, Rules, Ms) ->
    Text = run(Place, [prepared(Rules), " && ", jumps("-I", Chains, " && "), io_lib:format(" && sleep ~.3f && date +%s%N && ", [Ms / 1000]), jumps("-D", Chains, " && ")]),
    ok = open(Place),
    list_to_integer(string:trim(Text)) div 1000.

jumps(Action, Chains, Between) -> lists:join(Between, [["iptables ", Action, " ", Chain, " -j CUT"] || Chain <- string:lexemes(Chains, " ")]).

prepared(Rules) ->
    lists:join(" && ", ["iptables -N CUT" | ["iptables -A CUT -p tcp " ++ Rule || Rule <- Rules]]).

%% @doc Resets the connections of those nodes on this machine whose names begin with the prefix, and rejects new connections for `Ms' milliseconds.
-spec of_nodes(Prefix :: string(), Ms :: non_neg_integer()) -> BackUs :: integer().
of_nodes(Prefix, Ms) ->
    {ok, Names} = erl_epmd:names(),
    Ports = lists:join(",", [integer_to_list(Port) || {Name, Port} <- Names, lists:prefix(Prefix, Name)]),
    %% The reset that is sent in response also passes through this chain, which must not drop it.
    during({here, "INPUT"}, [lists:flatten(["! --tcp-flags RST RST -m multiport --ports ", Ports, " -j REJECT --reject-with tcp-reset"])], Ms).

%% @doc Makes the router forget all connections that it is tracking, so that it drops their packets.
-spec forget(Space :: string()) -> ok.
forget(Space) ->
    %% This is nfnetlink's message IPCTNL_MSG_CT_DELETE, without attributes.
    "" = beamway_netns:in(Space, "python3 -c \"import socket, struct; s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12); "
                          "s.send(struct.pack(\\\"=IHHIIBBH\\\", 20, 0x102, 5, 1, 0, 2, 0, 0)); "
                          "assert struct.unpack_from(\\\"=i\\\", s.recv(64), 16) == (0,)\""),
    ok.

%% @doc Returns a rule for everything but epmd, because a real firewall between the nodes would not unregister a node's name.
-spec not_epmd(Target :: string()) -> rule().
not_epmd(Target) -> "! --sport 4369 -m tcp ! --dport 4369 -j " ++ Target.

%% @doc Returns rules for one connection, in both directions.
-spec connection([Port :: string(), ...], Target :: string()) -> [rule()].
connection(Ports, Target) ->
    ["--sport " ++ From ++ " --dport " ++ To ++ " -j " ++ Target || [From, To] <- [Ports, lists:reverse(Ports)]].

run({here, _}, Command) -> os:cmd(lists:flatten(Command));
run({Space, _}, Command) -> beamway_netns:in(Space, lists:flatten(Command)).
