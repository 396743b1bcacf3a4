%% SPDX-License-Identifier: Apache-2.0
%% @doc Turns a new port of the driver into a link, in the same way for every kind ({@link beamway_kind}).
%%
%% One side listens and sends the other what {@link listen/3} returns, and the other side connects. After an error in {@link listen/3} or {@link
%% connect/5}, nothing stays open. If a port works in the background, the driver sends `{link, Port}' to the calling process whenever something has
%% happened.
-module(beamway_establish).

-export([listen/3, connect/5, accept/3, known/2]).

-import(beamway_result, [then/2]).

-define(LISTEN_MS, 2000).

%% @doc Listens for a peer, with rings of at most `MaxRingBytes'. The format of `Where' is defined by the kind's carrier (its header in native/link).
-spec listen(beamway_kind:driven(), Where :: binary(), MaxRingBytes :: pos_integer()) ->
          {ok, port(), beamway_port:listener()} | {error, Reason :: binary()}.
listen(Kind, Where, MaxRingBytes) ->
    begin_port(Kind, fun(Port) -> beamway_port:listen(Port, Where, MaxRingBytes) end,
               fun(Port) ->
                       case await(Port, deadline(?LISTEN_MS)) of
                           {listening, Listener} -> {ok, Listener};
                           Other -> failed(Kind, Other)
                       end
               end).

%% @doc Connects to a listener, and returns a link within `Ms'. `Device' is empty if this kind does not use devices.
-spec connect(beamway_kind:driven(), Where :: binary(), Token :: <<_:128>>, RingBytes :: pos_integer(), Ms :: pos_integer()) ->
          {ok, port(), Device :: binary()} | {error, Reason :: binary()}.
connect(Kind, Where, Token, RingBytes, Ms) ->
    begin_port(Kind, fun(Port) -> beamway_port:connect(Port, Where, Token, RingBytes, Ms) end,
               fun(Port) -> linked(Kind, Port, await(Port, deadline(Ms))) end).

begin_port(Kind, Begin, Await) ->
    beamway_port:opened(fun(Port) ->
                                Used = beamway_port:use(Port, Kind),
                                Begun = then(Used, fun() -> Begin(Port) end),
                                then(Begun, fun() -> Await(Port) end)
                        end).

%% @doc Accepts the listener's peer, until a deadline in monotonic milliseconds. After an error, the port stays open.
-spec accept(beamway_kind:driven(), port(), Deadline :: integer()) -> {ok, Device :: binary()} | {error, Reason :: binary()}.
accept(Kind, Port, Deadline) ->
    case await(Port, Deadline) of
        {listening, #{text := <<>>}} = Listening ->
            case has_news(Port, Deadline) of
                true -> accept(Kind, Port, Deadline);
                false -> failed(Kind, Listening)
            end;
        Other ->
            linked(Kind, Port, Other)
    end.

%% @doc Returns the reason why this side has failed or, if it has not failed, the reason that the peer reports. A peer that was rejected does not know
%% why.
-spec known(port(), PeerSays :: binary()) -> Reason :: binary().
known(Port, PeerSays) ->
    case beamway_port:step(Port) of
        {failed, Reason} -> Reason;
        _ -> PeerSays
    end.

%% Other messages from the driver are irrelevant once the process becomes a ticker.
linked(Kind, Port, {linked, Device}) ->
    receive {link, Port} -> linked(Kind, Port, {linked, Device}) after 0 -> {ok, Device} end;
linked(Kind, _Port, Other) ->
    failed(Kind, Other).

failed(_Kind, {failed, Reason}) -> {error, Reason};
failed(Kind, working) -> {error, <<(atom_to_binary(Kind))/binary, ": no answer in time">>};
failed(Kind, {listening, #{text := <<>>}}) -> {error, <<"nobody came to the ", (atom_to_binary(Kind))/binary, " listener in time">>};
failed(_Kind, {listening, #{text := Reason}}) -> {error, Reason};
failed(_Kind, {linked, _}) -> {error, <<"a link of a port that should listen">>}.

await(Port, Deadline) ->
    case beamway_port:step(Port) of
        working ->
            case has_news(Port, Deadline) of
                true -> await(Port, Deadline);
                false -> working
            end;
        News ->
            News
    end.

%% A failed port also sends an exit signal, so this process exits with it, as with any link.
has_news(Port, Deadline) ->
    receive
        {link, Port} -> true
    after max(0, Deadline - erlang:monotonic_time(millisecond)) ->
        false
    end.

deadline(Ms) -> erlang:monotonic_time(millisecond) + Ms.
