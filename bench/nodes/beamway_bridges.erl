%% SPDX-License-Identifier: Apache-2.0
%% @doc Uses network namespaces to build a network of hosts below a tree of bridges whose links have a limited rate. This needs root.
%%
%% All bridges are in one namespace; each host has its own namespace and one address. A link between two bridges is a pair of veth devices with a
%% token bucket (tc tbf) at both ends, so that its traffic is queued.
-module(beamway_bridges).

-export([build/3, delete/1, wrapper/2, bytes/2]).

-export_type([part/0, net/0]).

-type rate() :: Kbit :: pos_integer() | unlimited.
-type part() :: {Hosts :: pos_integer(), rate()}                       %% a bridge with this many hosts, and the rate of its link upwards
              | {[part()], rate()}.                                    %% a bridge above other bridges
-type net() :: #{spaces := [string()],                                 %% the bridges' namespace first, then the hosts'
                 hosts := [{Address :: string(), Space :: string()}],
                 groups := [[Address :: string()]]}.                   %% the hosts below each bridge, the root's first

%% @doc Builds the network below a root bridge, or returns the command that failed. Each host's own link also has a limited rate, because otherwise
%% only the CPU would limit the speed within a rack.
-spec build(Prefix :: string(), [part()], HostKbit :: rate()) -> {ok, net()} | {error, string()}.
build(Prefix, Parts, HostKbit) ->
    Space = Prefix ++ os:getpid() ++ "s",
    State = #{host_kbit => HostKbit, prefix => Prefix ++ os:getpid(), switch => Space, hosts => [], groups => [], bridges => 1, commands => [bridge(Space, 0), ["ip netns add ", Space]]},
    Built = lists:foldl(fun(Part, Acc) -> part(Part, 0, Acc) end, State, Parts),
    #{hosts := Hosts, groups := Groups, commands := Commands} = Built,
    Ordered = lists:reverse(Hosts),
    Net = #{spaces => [Space | [HostSpace || {_, HostSpace} <- Ordered]], hosts => Ordered,
            groups => [[Address || {Address, _} <- Ordered] | lists:sort(Groups)]},
    beamway_netns:build(Net, lists:reverse(Commands)).

bridge(Space, Number) ->
    io_lib:format("ip -n ~s link add br~b type bridge && ip -n ~s link set br~b up", [Space, Number, Space, Number]).

%% Links between bridges are named after the lower bridge: u for the end of its link that leads upwards, and d for the upper bridge's end.
part({What, Rate}, Above, #{switch := Space, bridges := Number, commands := Commands, hosts := Before} = State) ->
    Link = io_lib:format("ip -n ~s link add u~b type veth peer name d~b"
                         " && ip -n ~s link set u~b master br~b up && ip -n ~s link set d~b master br~b up", [Space, Number, Number, Space, Number, Number, Space, Number, Above]),
    Limits = [limit(Space, End, Number, Rate) || End <- ["u", "d"]],
    Below = below(What, Number, State#{bridges := Number + 1, commands := lists:reverse(Limits) ++ [Link, bridge(Space, Number) | Commands]}),
    #{hosts := Hosts, groups := Groups} = Below,
    New = lists:sublist(Hosts, length(Hosts) - length(Before)),
    Below#{groups := [lists:sort([Address || {Address, _} <- New]) | Groups]}.

limit(_, _, _, unlimited) -> "true";
limit(Space, Device, Number, Rate) ->
    io_lib:format("ip netns exec ~s tc qdisc add dev ~s~b root tbf rate ~bkbit burst 2kb latency 2s", [Space, Device, Number, Rate]).

below(Parts, Number, State) when is_list(Parts) ->
    lists:foldl(fun(Part, Acc) -> part(Part, Number, Acc) end, State, Parts);
below(Count, Number, State) ->
    lists:foldl(fun(_, Acc) -> host(Number, Acc) end, State, lists:seq(1, Count)).

host(Bridge, #{host_kbit := Kbit, prefix := Prefix, switch := Switch, hosts := Hosts, commands := Commands} = State) ->
    Number = length(Hosts) + 1,
    Space = Prefix ++ integer_to_list(Number),
    Command = io_lib:format("ip netns add ~s && ip -n ~s link set lo up && ip -n ~s link add h~b type veth peer name e0 netns ~s"
                            " && ip -n ~s link set h~b master br~b up && ip -n ~s address add 10.98.7.~b/24 dev e0 && ip -n ~s link set e0 up",
                            [Space, Space, Switch, Number, Space, Switch, Number, Bridge, Space, Number, Space]),
    State#{hosts := [{"10.98.7." ++ integer_to_list(Number), Space} | Hosts], commands := [limit(Space, "e", 0, Kbit), limit(Switch, "h", Number, Kbit), Command | Commands]}.

%% @doc Kills everything that is running in the network, and removes the network.
-spec delete(net()) -> ok.
delete(Net) -> beamway_netns:delete(Net).

%% @doc Returns the bytes that have passed through the link above a bridge in both directions, as counted by the kernel. Bridges are numbered from 1
%% in the order in which the parts are listed, each before the bridges below it.
-spec bytes(net(), Bridge :: pos_integer()) -> non_neg_integer().
bytes(#{spaces := [Space | _]}, Bridge) ->
    lists:sum([list_to_integer(string:trim(os:cmd(lists:flatten(io_lib:format("ip netns exec ~s cat /sys/class/net/u~b/statistics/~s_bytes", [Space, Bridge, Way]))))) || Way <- [rx, tx]]).

%% @doc Returns the command that must precede a node's own command, so that the node runs on the host with this address.
-spec wrapper(net(), Address :: string()) -> [string()].
wrapper(#{hosts := Hosts}, Address) ->
    beamway_netns:host(proplists:get_value(Address, Hosts)).
