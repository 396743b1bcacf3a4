%% SPDX-License-Identifier: Apache-2.0
%% @doc The carrier for the command's own VM, `-proto_dist beamway_cli'. It connects to each node over IPv4, or over IPv6 if the host has no IPv4
%% address.
%%
%% Called by net_kernel in a VM that does not listen. It only selects a carrier: the connections use stock TCP, TLS if the environment names the
%% options file, or encryption if `BEAMWAY_ENCRYPT' is set. Listing two carriers after `-proto_dist' would not work, because net_kernel asks the
%% last one first.
-module(beamway_cli_dist).

-export([address/0, childspecs/0, select/1, setup/5]).

-include_lib("kernel/include/net_address.hrl").

%% @private
-spec address() -> #net_address{}.
address() -> (hd(carriers())):address().

%% @private Returns the processes that our carriers need in addition to net_kernel. OTP's carriers do not need any.
-spec childspecs() -> {ok, [supervisor:child_spec()]}.
childspecs() ->
    Ours = [Carrier || Carrier <- carriers(), lists:prefix("beamway", atom_to_list(Carrier))],
    {ok, lists:append([begin {ok, Specs} = Carrier:childspecs(), Specs end || Carrier <- Ours])}.

%% @private
-spec select(node()) -> boolean().
select(Node) -> chosen(Node) =/= [].

%% @private
-spec setup(node(), normal | hidden, node(), longnames | shortnames, timeout()) -> pid().
setup(Node, Type, MyNode, LongOrShortNames, SetupTime) ->
    [Carrier | _] = chosen(Node),
    Carrier:setup(Node, Type, MyNode, LongOrShortNames, SetupTime).

chosen(Node) -> [Carrier || Carrier <- carriers(), Carrier:select(Node)].

carriers() ->
    case {os:getenv("BEAMWAY_TLS_OPTFILE", ""), beamway_config:wants_encryption()} of
        {"", false} -> [inet_tcp_dist, inet6_tcp_dist];
        {"", true} -> [beamway_dist, beamway6_dist];
        {_, _} -> [beamway_tls_dist, beamway6_tls_dist]
    end.
