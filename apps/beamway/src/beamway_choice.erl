%% SPDX-License-Identifier: Apache-2.0
%% @doc Chooses the link that two nodes may try, and explains why no better one is possible.
%%
%% All functions are pure. Both sides call {@link choose/2} with the two extensions swapped, and get the same answer, so neither
%% waits for an agreement that the other does not start.
-module(beamway_choice).

-export([choose/2, missed/2, takes_tls_over/2, resume_ms/2, hears_load/1, compresses/2, renews/1, connections/2]).

-type extension() :: beamway_wire:extension().

%% @doc Returns the ring that the two nodes may try, or the reason why they use their stream. If the versions of the extension differ, both
%% sides use the stream; the connection is never rejected.
-spec choose(Ours :: extension(), Theirs :: beamway_wire:found()) ->
          beamway_kind:ring() | {stream, Reason :: binary()}.
choose(_Ours, none) ->
    {stream, <<"the peer does not speak beamway">>};
choose(_Ours, {other_version, Version}) ->
    {stream, beamway_wire:another_extension(Version)};
choose(#{host := Host, links := Ours} = Us, {ok, #{host := Other, links := Theirs} = Them}) ->
    SameHost = Host =:= Other,
    Both = fun(Kind) -> lists:member(Kind, Ours) andalso lists:member(Kind, Theirs) end,
    case [Kind || Kind <- possible(SameHost), Both(Kind)] of
        [Best | _] -> Best;
        [] -> {stream, iolist_to_binary([why_no(Kind, SameHost, Us, Them) || Kind <- beamway_kind:rings()])}
    end.

possible(SameHost) -> [Kind || Kind <- beamway_kind:rings(), SameHost orelse not beamway_kind:needs_same_host(Kind)].

%% @doc Returns the kinds of ring that the two nodes could have if this node's ring memory were not used up.
-spec missed(Ours :: extension(), Theirs :: beamway_wire:found()) -> [beamway_kind:ring()].
missed(#{host := Host} = Us, {ok, #{host := Other} = Them}) ->
    [Kind || Kind <- possible(Host =:= Other), has(Kind, Us) =:= used_up, has(Kind, Them) =/= no];
missed(_Us, _Theirs) ->
    [].

%% If neither node has a device for a kind of link that works between hosts, no reason is given for that kind.
why_no(Kind, SameHost, Ours, Theirs) ->
    case {beamway_kind:needs_same_host(Kind), has(Kind, Ours), has(Kind, Theirs)} of
        {true, _, _} when not SameHost -> "another host";
        {true, used_up, Has} when Has =/= no -> beamway_budget:used_up(Kind, "this node");
        {true, yes, used_up} -> beamway_budget:used_up(Kind, "the peer");
        {true, yes, no} -> [beamway_kind:name(Kind), " is off on the peer"];
        {true, used_up, no} -> [beamway_kind:name(Kind), " is off on the peer"];
        {true, no, _} -> [beamway_kind:name(Kind), " is off on this node"];
        {false, yes, no} -> [", and the peer offers no ", beamway_kind:name(Kind)];
        {false, no, yes} -> [", and this node has no ", beamway_kind:name(Kind), " to offer"];
        {false, used_up, Has} when Has =/= no -> [", and ", beamway_budget:used_up(Kind, "this node")];
        {false, yes, used_up} -> [", and ", beamway_budget:used_up(Kind, "the peer")];
        {false, _, _} -> []
    end.

has(Kind, #{links := Links, used_up := UsedUp}) ->
    case {lists:member(Kind, Links), lists:member(Kind, UsedUp)} of
        {true, _} -> yes;
        {false, true} -> used_up;
        {false, false} -> no
    end.

%% @doc Returns whether the drivers of both nodes take over a TLS connection that carries the data, or the reason why not.
-spec takes_tls_over(Ours :: extension(), Theirs :: beamway_wire:found()) -> true | {false, Reason :: binary()}.
takes_tls_over(#{takes_tls_over := true}, {ok, #{takes_tls_over := true}}) -> true;
takes_tls_over(#{takes_tls_over := false}, _Theirs) -> {false, <<"this node's driver has no TLS">>};
takes_tls_over(_Ours, _Theirs) -> {false, <<"the peer's driver has no TLS">>}.

%% @doc Returns for how many milliseconds a link waits for a new connection; with 0 it ends with its connection.
-spec resume_ms(Ours :: extension(), Theirs :: beamway_wire:found()) -> non_neg_integer().
resume_ms(#{resume_ms := Ours}, {ok, #{resume_ms := Theirs}}) -> min(Ours, Theirs);
resume_ms(_Ours, _Theirs) -> 0.

%% @doc Returns whether the peer's driver understands load reports from this node.
-spec hears_load(Theirs :: beamway_wire:found()) -> boolean().
hears_load({ok, #{hears_load := Hears}}) -> Hears;
hears_load(_Theirs) -> false.

%% @doc Returns whether packets between the two nodes may be compressed, in both directions.
-spec compresses(Ours :: extension(), Theirs :: beamway_wire:found()) -> boolean().
compresses(#{compresses := Ours}, {ok, #{compresses := Theirs}}) -> Ours andalso Theirs;
compresses(_Ours, _Theirs) -> false.

%% @doc Returns whether the peer can answer if this node moves their link to a new connection with certificates.
-spec renews(Theirs :: beamway_wire:found()) -> boolean().
renews({ok, #{renews := Renews}}) -> Renews;
renews(_Theirs) -> false.

%% @doc Returns the number of connections for a link between the two nodes; `auto' means that the number depends on the path.
-spec connections(Ours :: extension(), Theirs :: beamway_wire:found()) -> auto | 1..8.
connections(#{connections := Ours}, {ok, #{connections := Theirs}}) when Ours =/= none, Theirs =/= none -> min(Ours, Theirs); % numbers sort before atoms
connections(_Ours, _Theirs) -> 1.
