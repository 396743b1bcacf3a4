%% SPDX-License-Identifier: Apache-2.0
%% @doc The transport of an HTTP/2 stream (yucan_transport). It calls the connection process, yucan_h2.
-module(yucan_h2_stream).
-behaviour(yucan_transport).

-export([new/3, head/3, answer/3, fin/1]).
-export([peer/1, recv/3, read/2, send/2, send_large/2, send_file/6, finish/2, setopts/2, arm/2, event/2, next/2, is_closed/1, close/1, info/1, tls/1]).
-export_type([stream/0]).

-record(stream, {
    connection :: pid(),
    id :: pos_integer(),
    below :: yucan_transport:socket()
}).
-opaque stream() :: #stream{}.

%% @doc Returns the socket of a stream.
-spec new(pid(), pos_integer(), yucan_transport:socket()) -> stream().
new(Connection, Id, Below) -> #stream{connection = Connection, id = Id, below = Below}.

%% @doc Sends a complete response without waiting.
-spec answer(stream(), [yucan_hpack:field()], iodata()) -> ok.
answer(#stream{connection = Connection, id = Id}, Fields, Body) ->
    Connection ! {answer, Id, Fields, Body},
    ok.

%% @doc Sends the head of a response. send/2 sends the rest; `Fin' means that nothing follows.
-spec head(stream(), [yucan_hpack:field()], Fin :: boolean()) -> ok.
head(#stream{connection = Connection, id = Id}, Fields, Fin) ->
    Connection ! {head, Id, Fields, Fin},
    ok.

%% @doc Ends the response without waiting.
-spec fin(stream()) -> ok.
fin(#stream{connection = Connection, id = Id}) ->
    Connection ! {data, Id, <<>>, true, none},
    ok.

%% If the reply arrives after the timeout, it is dropped.
call(Request, #stream{connection = Connection}, Timeout) ->
    From = monitor(process, Connection, [{alias, reply_demonitor}]),
    Connection ! Request(From),
    receive
        {From, Result} -> Result;
        {'DOWN', From, process, _, _} -> {error, closed}
    after Timeout ->
        demonitor(From, [flush]),
        receive {From, Result} -> Result after 0 -> {error, timeout} end
    end.

-spec peer(stream()) -> {ok, term()} | {error, term()}.
peer(#stream{below = {Transport, Raw}}) -> Transport:peer(Raw).

-spec recv(stream(), non_neg_integer(), timeout()) -> {ok, binary()} | {error, yucan_transport:reason()}.
recv(Stream, _, Timeout) ->
    case read(Stream, Timeout) of
        {eof, _} -> {error, closed};
        Result -> Result
    end.

-spec read(stream(), timeout()) -> {ok, binary()} | {eof, [yucan_hpack:field()]} | {error, closed | timeout}.
read(#stream{id = Id} = Stream, Timeout) -> call(fun(From) -> {read, Id, From} end, Stream, Timeout).

%% @doc Returns when everything has been written to the socket, or when there has been no progress for `send_ms', which the connection process checks.
%% If the first part is `{head, Fields}', it is the head of the response; a head without a body is sent without waiting.
-spec send(stream(), iodata() | [{head, [yucan_hpack:field()]} | iodata()]) -> ok | {error, yucan_transport:reason()}.
send(Stream, [{head, Fields}]) -> head(Stream, Fields, false);
send(Stream, Data) -> send(Stream, Data, false).

send(Stream, [{head, Fields} | Data], Fin) ->
    ok = head(Stream, Fields, false),
    send(Stream, Data, Fin);
send(#stream{id = Id} = Stream, Data, Fin) -> call(fun(From) -> {data, Id, Data, Fin, From} end, Stream, infinity).

-spec send_large(stream(), iodata()) -> ok | {error, yucan_transport:reason()}.
send_large(Stream, Data) -> send(Stream, Data).

-spec finish(stream(), iodata() | [{head, [yucan_hpack:field()]} | iodata()]) -> ok | {error, yucan_transport:reason()}.
finish(Stream, Data) -> send(Stream, Data, true).

%% @doc Sends a part of a file, with the same time limit as send/2.
-spec send_file(stream(), iodata(), file:fd(), non_neg_integer(), pos_integer(), pos_integer() | infinity) ->
    {ok, non_neg_integer()} | {error, yucan_transport:reason()}.
send_file(Stream, _, Handle, Offset, Length, _) ->
    {ok, Length - yucan_transport:copy(fun(Data, Last) -> send(Stream, Data, Last) end, Handle, Offset, Length)}.

%% @doc Only `{active, false}' has an effect: data that arrives afterwards is buffered until it is
%% read.
-spec setopts(stream(), list()) -> ok.
setopts(#stream{connection = Connection, id = Id}, [{active, false}]) ->
    Connection ! {active, Id, 0},
    ok;
setopts(_, _) -> ok.

-spec arm(stream(), pos_integer()) -> ok.
arm(#stream{connection = Connection, id = Id}, Count) ->
    Connection ! {active, Id, Count},
    ok.

-spec event(term(), stream()) -> {data | last, binary()} | closed | other.
event({yucan_h2, Id, Event}, #stream{id = Id}) -> Event;
event(_, _) -> other.

-spec next(stream(), timeout()) -> {data | last, binary()} | closed | timeout.
next(#stream{id = Id}, Timeout) ->
    receive
        {yucan_h2, Id, Event} -> Event
    after Timeout -> timeout
    end.

%% @doc Returns whether the connection is closed. The stream itself need not be checked, because the process of a cancelled stream is killed.
-spec is_closed(stream()) -> boolean().
is_closed(#stream{connection = Connection, below = {Transport, Raw}}) -> not is_process_alive(Connection) orelse Transport:is_closed(Raw).

%% @doc Does nothing, because the stream ends when its process exits.
-spec close(stream()) -> ok.
close(_) -> ok.

-spec info(stream()) -> none | #{atom() => term()}.
info(#stream{below = {Transport, Raw}}) -> Transport:info(Raw).

-spec tls(stream()) -> none | ssl:sslsocket().
tls(#stream{below = {Transport, Raw}}) -> Transport:tls(Raw).
