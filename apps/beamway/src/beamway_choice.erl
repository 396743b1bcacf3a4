%% SPDX-License-Identifier: Apache-2.0
%% @doc Which link two nodes may try, and why not a better one.
%%
%% Pure. Both sides call {@link choose/2} with the two extensions swapped and come to the same
%% answer, so neither waits for an agreement that the other does not begin.
-module(beamway_choice).

-export([choose/2, whole_messages/2]).

-type extension() :: beamway_wire:extension().

%% @doc Another version of the extension means the stream, TCP or TLS, never a refused connection.
-spec choose(Ours :: extension(), Theirs :: beamway_wire:found()) ->
          shm | rdma | {stream, Reason :: binary()}.
choose(_Ours, none) ->
    {stream, <<"the peer does not speak beamway">>};
choose(_Ours, {other_version, Version}) ->
    {stream, beamway_wire:another_extension(Version)};
choose(#{host := Host, links := Ours}, {ok, #{host := Other, links := Theirs}}) ->
    SameHost = Host =:= Other,
    Both = [Link || Link <- Ours, lists:member(Link, Theirs)],
    case {SameHost andalso lists:member(shm, Both), lists:member(rdma, Both)} of
        {true, _} -> shm;
        {false, true} -> rdma;
        {false, false} -> {stream, <<(no_shm(SameHost, Ours))/binary, (no_rdma(Ours, Theirs))/binary>>}
    end.

no_shm(false, _Ours) ->
    <<"another host">>;
no_shm(true, Ours) ->
    case lists:member(shm, Ours) of
        true -> <<"shared memory is off on the peer">>;
        false -> <<"shared memory is off on this node">>
    end.

%% Where neither has a device there is nothing to say.
no_rdma(Ours, Theirs) ->
    case {lists:member(rdma, Ours), lists:member(rdma, Theirs)} of
        {true, false} -> <<", and the peer offers no rdma">>;
        {false, true} -> <<", and this node has no rdma to offer">>;
        {false, false} -> <<>>
    end.

%% @doc True if messages between the two shall travel whole: one of them wants it and the link will
%% most likely be a ring. The accepting side asks before the flags are fixed.
-spec whole_messages(Ours :: extension(), Theirs :: beamway_wire:found()) -> boolean().
whole_messages(#{whole_messages := OursWants} = Ours, {ok, #{whole_messages := TheyWant}} = Theirs) ->
    (OursWants orelse TheyWant) andalso is_atom(choose(Ours, Theirs));
whole_messages(_Ours, _NoneOrOtherVersion) ->
    false.
