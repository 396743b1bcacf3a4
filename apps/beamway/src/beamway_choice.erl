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
          shm | {stream, Reason :: binary()}.
choose(_Ours, none) ->
    {stream, <<"the peer does not speak beamway">>};
choose(_Ours, {other_version, Version}) ->
    {stream, beamway_wire:another_extension(Version)};
choose(#{host := Host}, {ok, #{host := Other}}) when Host =/= Other ->
    {stream, <<"another host">>};
choose(#{links := Ours}, {ok, #{links := Theirs}}) ->
    case {lists:member(shm, Ours), lists:member(shm, Theirs)} of
        {true, true} -> shm;
        {false, _} -> {stream, <<"shared memory is off on this node">>};
        {_, false} -> {stream, <<"shared memory is off on the peer">>}
    end.

%% @doc True if messages between the two shall travel whole: one of them wants it and the link will
%% most likely be shared memory. The accepting side asks before the flags are fixed.
-spec whole_messages(Ours :: extension(), Theirs :: beamway_wire:found()) -> boolean().
whole_messages(#{whole_messages := OursWants} = Ours, {ok, #{whole_messages := TheyWant}} = Theirs) ->
    (OursWants orelse TheyWant) andalso choose(Ours, Theirs) =:= shm;
whole_messages(_Ours, _NoneOrOtherVersion) ->
    false.
