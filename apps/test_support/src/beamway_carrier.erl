%% SPDX-License-Identifier: Apache-2.0
%% @doc Runs a suite's cases once per carrier: defines a group for each carrier, and starts a pair
%% of nodes for each group.
%%
%% Every suite runs the same cases in each group, so a new carrier gets all tests, and the group `inet_tcp' (stock distribution) shows that the case
%% itself is right. This module reads these environment variables: `BEAMWAY_TEST_LONG=1' selects the long form of cases that have one ({@link
%% scale/2}). `BEAMWAY_TEST_HUGE=1' adds the 2.2 GB message, over shared memory or over the carriers named below.
%% `BEAMWAY_TEST_CARRIERS=beamway_shm,beamway_small' leaves out the groups of other carriers. `beamway_rdma' must be listed explicitly, because it
%% needs a device (test/system/rdma).
-module(beamway_carrier).

-export([all/0, all/1, groups/1, groups/2, only/2, init_group/2]).
-export([start_pair/1, connected_pair/1, stop_pair/1, begin_case/1, end_case/1]).
-export([peers/1, nodes/1, carrier/1, scale/2, rounds/2, is_long/0, is_huge/0]).

-type config() :: [{atom(), term()}].

-define(PLAIN, [inet_tcp, beamway_tcp, beamway_shm, beamway_rdma]).

%% @doc Returns the groups of a suite that runs over stock TCP and Beamway's plain links.
-spec all() -> [{group, beamway_peer:carrier()}].
all() -> all(?PLAIN).

%% @doc Like {@link all/0}, but with a list of carriers.
-spec all([beamway_peer:carrier()]) -> [{group, beamway_peer:carrier()}].
all(Carriers) -> [{group, Carrier} || Carrier <- Carriers, is_wanted(Carrier)].

is_wanted(Carrier) ->
    Wanted = string:lexemes(os:getenv("BEAMWAY_TEST_CARRIERS", ""), ","),
    (Wanted =:= [] andalso Carrier =/= beamway_rdma) orelse lists:member(atom_to_list(Carrier), Wanted).

%% @doc Returns the definitions of the groups, with the same cases for every carrier.
-spec groups([atom()]) -> [{beamway_peer:carrier(), [], [atom()]}].
groups(Cases) -> groups(?PLAIN, Cases).

%% @doc Like {@link groups/1}, but with a list of carriers.
-spec groups([beamway_peer:carrier()], [atom()]) -> [{beamway_peer:carrier(), [], [atom()]}].
groups(Carriers, Cases) -> [{Carrier, [], Cases} || Carrier <- Carriers].

%% @doc Returns the groups without the cases that are only for some carriers.
-spec only([{Case :: atom(), [beamway_peer:carrier()]}], [{beamway_peer:carrier(), [], [atom()]}]) -> [{beamway_peer:carrier(), [], [atom()]}].
only(Some, Groups) ->
    [{Carrier, [], [Case || Case <- Cases, lists:member(Carrier, proplists:get_value(Case, Some, [Carrier]))]} || {Carrier, [], Cases} <- Groups].

%% @doc For init_per_group: stores the carrier. Fails if the carrier has not been built, because the
%% tests of Beamway would be meaningless without it.
-spec init_group(beamway_peer:carrier(), config()) -> config().
init_group(inet_tcp, Config) ->
    [{carrier, inet_tcp} | Config];
init_group(Carrier, Config) when Carrier =:= beamway_tls; Carrier =:= beamway_ssl; Carrier =:= beamway_tls_shm ->
    ok = beamway_certificates:prepare(proplists:get_value(priv_dir, Config)),
    built(Carrier, Config);
init_group(Carrier, Config) ->
    built(Carrier, Config).

built(Carrier, Config) ->
    case filelib:is_file(filename:join(beamway_peer:ebin(), "beamway_dist.beam")) of
        true -> [{carrier, Carrier} | Config];
        false -> error({not_built, beamway_peer:ebin(), "run make build first"})
    end.

%% @doc For init_per_group: starts the two nodes and connects the first to the second.
-spec start_pair(config()) -> config().
start_pair(Config) ->
    {PeerA, NodeA, PeerB, NodeB} = connected_pair(Config),
    [{peers, {PeerA, PeerB}}, {nodes, {NodeA, NodeB}} | Config].

%% @doc Starts two nodes with the group's carrier, connects them, and returns them.
-spec connected_pair(config()) -> {pid(), node(), pid(), node()}.
connected_pair(Config) -> beamway_peer:connected_pair(carrier(Config), #{}).

%% @doc For end_per_group: stops the two nodes.
-spec stop_pair(config()) -> ok.
stop_pair(Config) ->
    beamway_peer:stop_all(tuple_to_list(peers(Config))).

%% @doc For init_per_testcase: remembers which connection the pair has.
-spec begin_case(config()) -> config().
begin_case(Config) ->
    [{connection, connection(Config)} | Config].

%% @doc For end_per_testcase: fails the case if the pair's connection is not the one it started with, because a carrier must not pass if it
%% loses its connection and silently reconnects.
-spec end_case(config()) -> ok | {fail, term()}.
end_case(Config) ->
    Before = proplists:get_value(connection, Config),
    case connection(Config) of
        Before -> ok;
        After -> {fail, {connection_changed, Before, After}}
    end.

connection(Config) ->
    {PeerA, _} = peers(Config),
    {_, NodeB} = ?MODULE:nodes(Config),
    beamway_peer:controller(PeerA, NodeB).

%% @doc Returns the control processes of the pair.
-spec peers(config()) -> {pid(), pid()}.
peers(Config) -> proplists:get_value(peers, Config).

%% @doc Returns the names of the pair.
-spec nodes(config()) -> {node(), node()}.
nodes(Config) -> proplists:get_value(nodes, Config).

%% @doc Returns the carrier of the group.
-spec carrier(config()) -> beamway_peer:carrier().
carrier(Config) ->
    case lists:keyfind(carrier, 1, Config) of
        {carrier, Carrier} -> Carrier;
        false -> error({no_carrier, "run the case in one of its suite's groups"})
    end.

%% @doc Picks the size of a case for the default run or for the long one.
-spec scale(Default, Long) -> Default | Long.
scale(Default, Long) ->
    case is_long() of
        true -> Long;
        false -> Default
    end.

%% @doc Like {@link scale/2}, but for a number of rounds, which is reduced (to no fewer than three) if everything runs slower.
-spec rounds(Default :: pos_integer(), Long :: pos_integer()) -> pos_integer().
rounds(Default, Long) ->
    Wanted = scale(Default, Long),
    max(min(3, Wanted), Wanted div beamway_runner:slowness()).

%% @doc Returns whether this is a long run.
-spec is_long() -> boolean().
is_long() -> os:getenv("BEAMWAY_TEST_LONG", "") =:= "1".

%% @doc Returns whether the 2.2 GB message is included.
-spec is_huge() -> boolean().
is_huge() -> os:getenv("BEAMWAY_TEST_HUGE", "") =:= "1".
