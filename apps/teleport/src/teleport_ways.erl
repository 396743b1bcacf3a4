%% SPDX-License-Identifier: Apache-2.0
%% @doc Which ways a lane may go: without TLS over which kinds, and over TLS with whose certificates.
%%
%% Each side decides by its own options and by its own view of the distribution connection. The acceptor's offer tells the caller what it takes
%% ({@link to_offer/1}); what an older version does not say there, it does not take. So where the distribution goes over TLS, nothing of a lane passes the network in
%% clear unless both sides have asked for that.
-module(teleport_ways).

-export([of_node/2, to_offer/1, of_offer/1, place/2, choose/3, plain_kinds/2]).
-export_type([ways/0, way/0, place/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-include_lib("kernel/include/net_address.hrl").

-type ways() :: #{plain := plain(), tls := none | distribution | {own, [term()]}}.
-type plain() :: all | one_host | none.
%% `one_host': only over what stays in the memory of one host, as the distribution's data does.
-type way() :: plain | local | tls.
-type place() :: one_host | {not_one_host, Reason :: binary()}.
%% Whether the two nodes can have a link of one host at all.

-define(REMEDY, "set tls => auto on both nodes, or plaintext => true on both").

%% @doc This node's ways to a node, or from it.
-spec of_node(node(), teleport_config:config()) -> ways().
of_node(Node, Config) ->
    ours(Config, case net_kernel:node_info(Node, address) of
                     {ok, #net_address{protocol = tls}} -> true;
                     _ -> false
                 end).

ours(#{tls := Own}, _) when is_list(Own) -> #{plain => none, tls => {own, Own}};
ours(_, _OverTls = false) -> #{plain => all, tls => none};
ours(#{tls := Tls, plaintext := Plaintext, kinds := Kinds}, _OverTls = true) ->
    #{plain => case {Plaintext, local(Kinds)} of {true, _} -> all; {false, []} -> none; {false, _} -> one_host end,
      tls => case Tls of auto -> distribution; none -> none end}.

local(Kinds) -> [Kind || Kind <- Kinds, beamway_kind:needs_same_host(Kind)].

%% @doc The kinds that are allowed without TLS.
-spec plain_kinds(ways(), [beamway_kind:kind()]) -> [beamway_kind:kind()].
plain_kinds(#{plain := all}, Kinds) -> Kinds;
plain_kinds(#{plain := one_host}, Kinds) -> local(Kinds);
plain_kinds(#{plain := none}, _) -> [].

%% @doc What the acceptor says of its ways. An older version reads `tls' and `guarded'.
-spec to_offer(ways()) -> {ok, #{tls := boolean(), guarded := boolean(), takes_tls := boolean()}} | {error, Reason :: binary()}.
to_offer(#{plain := none, tls := none}) -> {error, in_clear(<<"shm is not among the peer's kinds">>, no_tls(peer))};
to_offer(#{plain := Plain, tls := Tls}) -> {ok, #{tls => Plain =:= none, guarded => Plain =:= one_host, takes_tls => Tls =/= none}}.

%% @doc The peer's ways, from its offer.
-spec of_offer(map()) -> #{plain := plain(), tls := boolean()}.
of_offer(#{tls := true}) -> #{plain => none, tls => true};
of_offer(Offer) ->
    #{plain => case Offer of #{guarded := true} -> one_host; _ -> all end, tls => maps:get(takes_tls, Offer, false)}.

%% @doc What the caller's kinds and the two kernels allow.
-spec place([beamway_kind:kind()], IsSameKernel :: boolean()) -> place().
place(Kinds, IsSameKernel) ->
    case {local(Kinds), IsSameKernel} of
        {[], _} -> {not_one_host, <<"shm is not among the kinds">>};
        {_, false} -> {not_one_host, <<"the peer is on another host">>};
        {_, true} -> one_host
    end.

%% @doc The ways that both sides allow, in the order in which the caller tries them. `local': without TLS, over what stays on the host.
-spec choose(ways(), #{plain := plain(), tls := boolean()}, place()) -> {ok, [way(), ...]} | {error, Reason :: binary()}.
choose(#{plain := Mine, tls := MyTls}, #{plain := Theirs, tls := TheirTls}, Place) ->
    Tls = [tls || MyTls =/= none, TheirTls],
    case {least(Mine, Theirs), Place, Tls} of
        {all, _, _} -> {ok, [plain]};
        {one_host, one_host, _} -> {ok, [local | Tls]};
        {_, _, [tls]} -> {ok, [tls]};
        {one_host, {not_one_host, Reason}, []} -> {error, in_clear(Reason, lacks_tls(MyTls))};
        {none, _, []} -> {error, refusal(Mine, MyTls)}
    end.

least(all, Theirs) -> Theirs;
least(one_host, none) -> none;
least(one_host, _) -> one_host;
least(none, _) -> none.

%% One side has no way without TLS, and the other none with it.
refusal(none, none) -> in_clear(<<"shm is not among the kinds">>, no_tls(this_node));
refusal(none, distribution) -> in_clear(<<"shm is not among the kinds">>, no_tls(peer));
refusal(none, {own, _}) -> text("this node has lanes over TLS only, and ~ts", [no_tls(peer)]);
refusal(_, _) -> text("the peer has lanes over TLS only, and ~ts", [no_tls(this_node)]).

lacks_tls(none) -> no_tls(this_node);
lacks_tls(_) -> no_tls(peer).

no_tls(this_node) -> <<"this node has none: its option tls is none, or its distribution has no TLS">>;
no_tls(peer) -> <<"the peer has none: its option tls is none, its distribution has no TLS, or its version is older">>.

in_clear(Reason, NoTls) ->
    text("the distribution goes over TLS, so lanes without TLS are over shared memory only (~ts), and of lanes over TLS ~ts: " ?REMEDY, [Reason, NoTls]).

text(Format, Args) -> unicode:characters_to_binary(io_lib:format(Format, Args)).

-ifdef(TEST).

-define(AWAY, place([shm], false)).

config(Tls, Plaintext, Kinds) -> #{tls => Tls, plaintext => Plaintext, kinds => Kinds}.

%% Every pair of sides over TLS distribution: what is in clear on the network was allowed by both.
clear_only_if_both_allow_it_test() ->
    Sides = [{ours(config(Tls, Plaintext, Kinds), true), Plaintext, Kinds} || Tls <- [auto, none, [x]], Plaintext <- [true, false], Kinds <- [[shm, tcp], [tcp]]],
    [case choose(Mine, of_offer(Offer), place(Kinds, IsSameKernel)) of
         {ok, [local | _]} -> ?assert(IsSameKernel), ?assertNotEqual([], plain_kinds(Mine#{plain := one_host}, Kinds));
         {ok, [plain]} -> ?assert(MineClear andalso TheirsClear);
         {ok, Ways} -> ?assertEqual([tls], Ways);
         {error, Reason} -> ?assert(byte_size(Reason) > 0)
     end || {Mine, MineClear, Kinds} <- Sides, {Theirs, TheirsClear, _} <- Sides, {ok, Offer} <- [to_offer(Theirs)], IsSameKernel <- [true, false]].

by_default_tls_between_hosts_test() ->
    Auto = ours(config(auto, false, [shm, tcp]), true),
    {ok, Offer} = to_offer(Auto),
    ?assertEqual({ok, [tls]}, choose(Auto, of_offer(Offer), ?AWAY)),
    ?assertEqual({ok, [local, tls]}, choose(Auto, of_offer(Offer), one_host)),
    ?assertEqual({ok, [plain]}, choose(ours(config(auto, false, [tcp]), false), #{plain => all, tls => false}, ?AWAY)).

%% Where one side has no kind for one host, and the other has.
local_on_one_side_only_test() ->
    [Local, None] = [ours(config(auto, false, Kinds), true) || Kinds <- [[shm, tcp], [tcp]]],
    [begin
         {ok, Offer} = to_offer(Theirs),
         ?assertEqual({ok, [tls]}, choose(Mine, of_offer(Offer), one_host))
     end || {Mine, Theirs} <- [{Local, None}, {None, Local}, {None, None}]].

%% One side alone cannot ask for clear lanes; the other's TLS is taken.
one_side_in_clear_test() ->
    {ok, Offer} = to_offer(ours(config(auto, true, [tcp]), true)),
    ?assertEqual({ok, [tls]}, choose(ours(config(auto, false, [tcp]), true), of_offer(Offer), ?AWAY)).

%% An older version says neither `takes_tls' nor, still older, `guarded'.
older_versions_test() ->
    Auto = ours(config(auto, false, [shm, tcp]), true),
    [begin
         ?assertEqual({ok, [local]}, choose(Auto, of_offer(Offer), one_host)),
         {error, Reason} = choose(Auto, of_offer(Offer), ?AWAY),
         [?assertNotEqual(nomatch, binary:match(Reason, Part)) || Part <- [<<"another host">>, <<"its version is older">>, <<?REMEDY>>]]
     end || Offer <- [#{tls => false, guarded => true}, #{tls => false, guarded => false}, #{tls => false}]],
    %% And they read what this version says.
    ?assertMatch({ok, #{tls := false, guarded := true}}, to_offer(Auto)),
    ?assertMatch({ok, #{tls := true}}, to_offer(ours(config([x], false, [shm]), true))).

-endif.
