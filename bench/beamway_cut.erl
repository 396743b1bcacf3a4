%% SPDX-License-Identifier: Apache-2.0
%% @doc Cuts TCP connections with the kernel's packet filter, on a router between two hosts ({@link beamway_netns:firewalled/2}) or on one host.
%%
%% The rules of a cut are in a chain of their own, so {@link open/1} leaves the filter's other rules and its tracking of connections as they are.
%% Needs root and iptables.
-module(beamway_cut).

-export([close/2, open/1, during/3, of_nodes/2, forget/1, not_epmd/1, connection/2]).
-export_type([place/0, rule/0]).

-type place() :: {Space :: string() | here, Chain :: string()}.
%% A network namespace or this host, and `FORWARD' on a router, `INPUT' on the host itself.
-type rule() :: string().
%% In the words of iptables, after `-p tcp'.

%% @doc Applies the rules until {@link open/1}, all at the same moment.
-spec close(place(), [rule()]) -> ok.
close({_, Chain} = Place, Rules) ->
    "" = run(Place, [prepared(Rules), " && iptables -I ", Chain, " -j CUT"]),
    ok.

%% @doc Forbids nothing any more.
-spec open(place()) -> ok.
open({_, Chain} = Place) ->
    _ = run(Place, ["iptables -D ", Chain, " -j CUT; iptables -F CUT; iptables -X CUT"]),
    ok.

%% @doc Applies the rules for so long, and returns when they were about to be taken back, in microseconds of the system's time.
-spec during(place(), [rule()], Ms :: non_neg_integer()) -> BackUs :: integer().
during({_, Chain} = Place, Rules, Ms) ->
    Text = run(Place, [prepared(Rules), io_lib:format(" && iptables -I ~ts -j CUT && sleep ~.3f && date +%s%N && iptables -D ~ts -j CUT", [Chain, Ms / 1000, Chain])]),
    ok = open(Place),
    list_to_integer(string:trim(Text)) div 1000.

prepared(Rules) ->
    lists:join(" && ", ["iptables -N CUT" | ["iptables -A CUT -p tcp " ++ Rule || Rule <- Rules]]).

%% @doc Resets the connections of the nodes on this host whose names begin so, and refuses new ones for so long.
-spec of_nodes(Prefix :: string(), Ms :: non_neg_integer()) -> BackUs :: integer().
of_nodes(Prefix, Ms) ->
    {ok, Names} = erl_epmd:names(),
    Ports = lists:join(",", [integer_to_list(Port) || {Name, Port} <- Names, lists:prefix(Prefix, Name)]),
    %% The reset that answers comes in here as well, and must pass.
    during({here, "INPUT"}, [lists:flatten(["! --tcp-flags RST RST -m multiport --ports ", Ports, " -j REJECT --reject-with tcp-reset"])], Ms).

%% @doc The router forgets all connections that it knows, and drops what belongs to them.
-spec forget(Space :: string()) -> ok.
forget(Space) ->
    %% The message IPCTNL_MSG_CT_DELETE of nfnetlink, without attributes.
    "" = beamway_netns:in(Space, "python3 -c \"import socket, struct; s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12); "
                          "s.send(struct.pack(\\\"=IHHIIBBH\\\", 20, 0x102, 5, 1, 0, 2, 0, 0)); "
                          "assert struct.unpack_from(\\\"=i\\\", s.recv(64), 16) == (0,)\""),
    ok.

%% @doc Applies to everything but epmd: a firewall between the nodes does not make a node's name go away.
-spec not_epmd(Target :: string()) -> rule().
not_epmd(Target) -> "! --sport 4369 -m tcp ! --dport 4369 -j " ++ Target.

%% @doc Applies to one connection, both ways.
-spec connection([Port :: string(), ...], Target :: string()) -> [rule()].
connection(Ports, Target) ->
    ["--sport " ++ From ++ " --dport " ++ To ++ " -j " ++ Target || [From, To] <- [Ports, lists:reverse(Ports)]].

run({here, _}, Command) -> os:cmd(lists:flatten(Command));
run({Space, _}, Command) -> beamway_netns:in(Space, lists:flatten(Command)).
