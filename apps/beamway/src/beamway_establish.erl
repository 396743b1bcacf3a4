%% SPDX-License-Identifier: Apache-2.0
%% @doc A port of the driver from nothing to a link, the same way for every kind ({@link beamway_kind}).
%%
%% One side listens and tells the other what {@link listen/3} gives; the other connects. Nothing stays open on an error of
%% {@link listen/3} and {@link connect/5}. Where a port works in the background, the driver tells the calling process by `{link, Port}'
%% that there is news.
-module(beamway_establish).

-export([listen/3, connect/5, accept/3, known/2]).

-define(LISTEN_MS, 2000).

%% @doc Listens, with rings of at most that size. `Where' is in the words of the kind's carrier (its header in native/link).
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

%% @doc Connects to a listener; ends with a link within `Ms'. `Device' is empty if there is none in particular.
-spec connect(beamway_kind:driven(), Where :: binary(), Token :: <<_:128>>, RingBytes :: pos_integer(), Ms :: pos_integer()) ->
          {ok, port(), Device :: binary()} | {error, Reason :: binary()}.
connect(Kind, Where, Token, RingBytes, Ms) ->
    begin_port(Kind, fun(Port) -> beamway_port:connect(Port, Where, Token, RingBytes, Ms) end,
               fun(Port) -> linked(Kind, Port, await(Port, deadline(Ms))) end).

begin_port(Kind, Begin, Await) ->
    beamway_port:opened(fun(Port) ->
                                case beamway_port:use(Port, Kind) of
                                    ok ->
                                        case Begin(Port) of
                                            ok -> Await(Port);
                                            {error, Reason} -> {error, Reason}
                                        end;
                                    {error, Reason} ->
                                        {error, Reason}
                                end
                        end).

%% @doc Takes whom the listener waits for, until a deadline of erlang:monotonic_time(millisecond). The port stays open on an error.
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

%% @doc What this side knows of why it came to nothing; a peer sees only a refusal.
-spec known(port(), PeerSays :: binary()) -> Reason :: binary().
known(Port, PeerSays) ->
    case beamway_port:step(Port) of
        {failed, Reason} -> Reason;
        _ -> PeerSays
    end.

%% What else the driver has said is of no interest to the process's next life as a ticker.
linked(Kind, Port, {linked, Device}) ->
    receive {link, Port} -> linked(Kind, Port, {linked, Device}) after 0 -> {ok, Device} end;
linked(Kind, _Port, Other) ->
    failed(Kind, Other).

failed(_Kind, {failed, Reason}) -> {error, Reason};
failed(Kind, working) -> {error, <<(atom_to_binary(Kind))/binary, ": no answer in time">>};
failed(Kind, {listening, #{text := <<>>}}) -> {error, <<"nobody came to the ", (atom_to_binary(Kind))/binary, " listener in time">>};
failed(_Kind, {listening, #{text := Reason}}) -> {error, Reason};
failed(_Kind, {linked, _}) -> {error, <<"a link of a port that should listen">>}.

%% The first news; `working' if there were none in time.
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

%% Of a failed port comes an exit signal too: this process ends with it, as with any link.
has_news(Port, Deadline) ->
    receive
        {link, Port} -> true
    after max(0, Deadline - erlang:monotonic_time(millisecond)) ->
        false
    end.

deadline(Ms) -> erlang:monotonic_time(millisecond) + Ms.
