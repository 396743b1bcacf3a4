%% SPDX-License-Identifier: Apache-2.0
%% @doc A response body that is written in parts, by a handler's function or in steps (yucan_answer). The head is sent together with the first part.
-module(yucan_stream).
%% Iolists end in a binary tail, which is the form that is cheapest to write to the socket.
-dialyzer(no_improper_lists).

-export([run/6, write/3, sent/1, outcome/1, cut/0]).
-export_type([mode/0, answer/0]).

-include("yucan_internal.hrl").

%% How the end of the body is marked: by chunked coding, by the end of the connection, by the length, or by the transport (`framed'), which checks the
%% length if the handler has specified one.
-type mode() :: chunked | until_close | Length :: non_neg_integer() | {framed, Length :: undefined | non_neg_integer()}.

%% A response whose body is written in steps.
-type answer() :: {Status :: 200..999, yucan_handler:headers(), {stream, open}}.

%% Parts that are larger than this are split.
-define(PART_BYTES, 65536).

%% @doc Sends a stream. The head is data for yucan_transport:send/2. With `open', only the head is sent, and the body follows in steps.
-spec run(open, mode(), Status :: 200..999, Head :: term(), keep | close, #req{}) -> yucan_progress:stream();
         (fun((yucan_handler:write()) -> term()), mode(), Status :: 200..999, Head :: term(), keep | close, #req{}) -> yucan_progress:outcome().
run(open, Mode, Status, Head, Connection, #req{conn = #conn{socket = Socket}}) ->
    ok = yucan_transport:release(Socket),
    ok = yucan_progress:begin_stream(<<>>),
    _ = yucan_transport:send(Socket, [Head]),
    {open, Mode, Connection, Status};
run(Function, Mode, Status, Head, Connection, #req{conn = #conn{socket = Socket}} = Req) ->
    ok = yucan_transport:release(Socket),
    ok = yucan_progress:begin_stream(Head),
    try Function(fun(Data) -> write(Data, Mode, Socket) end) of
        _ -> finish(Mode, Socket, Connection, Status, yucan_progress:end_stream())
    catch
        Class:Reason:Stack ->
            case yucan_progress:end_stream() of
                %% Nothing has been sent yet, so the client can still get a 500.
                {_, 0} -> erlang:raise(Class, Reason, Stack);
                %% The handler has aborted its response on purpose.
                {_, Written} when Class =:= exit, element(1, Reason) =:= shutdown -> {close, Status, Written};
                {_, Written} ->
                    yucan_events:crash(Class, Reason, Stack, Req),
                    {close, Status, Written}
            end
    end.

%% @doc Writes a part.
-spec write(iodata(), mode(), yucan_transport:socket()) -> ok | {error, closed | timeout}.
write(Data, Mode, Socket) ->
    Size = iolist_size(Data),
    case yucan_progress:written() of
        _ when Size =:= 0 -> ok;
        {_, Written} when is_integer(Mode), Written + Size > Mode -> error({bad_response, {more_than_content_length, Mode}});
        {_, Written} when is_integer(element(2, Mode)), Written + Size > element(2, Mode) -> error({bad_response, {more_than_content_length, element(2, Mode)}});
        _ when Size > ?PART_BYTES -> by_parts(iolist_to_binary(Data), Mode, Socket);
        {Head, Written} ->
            ok = yucan_progress:wrote(Written + Size),
            sent(yucan_transport:send(Socket, [Head | framed(Mode, Data)]))
    end.

%% A client that keeps accepting data gets `send_ms' for each part.
by_parts(<<Part:?PART_BYTES/binary, Rest/binary>>, Mode, Socket) ->
    case write(Part, Mode, Socket) of
        ok -> by_parts(Rest, Mode, Socket);
        Error -> Error
    end;
by_parts(Rest, Mode, Socket) -> write(Rest, Mode, Socket).

%% @doc Converts the result of a send to the result that handlers get.
-spec sent(ok | {error, yucan_transport:reason()}) -> ok | {error, closed | timeout}.
sent(ok) -> ok;
sent({error, timeout}) -> {error, timeout};
sent({error, _}) -> {error, closed}.

framed(chunked, Data) -> yucan_chunk:encode(Data);
framed(_, Data) -> Data.

finish(chunked, Socket, Connection, Status, {Head, Written}) ->
    done(yucan_transport:send(Socket, [Head, yucan_chunk:last()]), Connection, Status, Written);
finish(until_close, Socket, _, Status, {Head, Written}) ->
    done(yucan_transport:send(Socket, Head), close, Status, Written);
finish({framed, Length}, Socket, Connection, Status, {Head, Written}) when Length =:= undefined; Length =:= Written ->
    done(yucan_transport:finish(Socket, [Head]), Connection, Status, Written);
finish(Length, Socket, Connection, Status, {Head, Length}) ->
    done(yucan_transport:send(Socket, Head), Connection, Status, Length);
finish(_, _, _, Status, {_, Written}) ->
    {close, Status, Written}.

done(ok, Connection, Status, Bytes) -> {Connection, Status, Bytes};
done({error, _}, _, Status, _) -> {close, Status, 0}.

%% @doc Ends a response that was sent in steps; called when its handler has returned `sent'.
-spec outcome(#req{}) -> yucan_progress:outcome().
outcome(#req{conn = #conn{socket = Socket}}) ->
    case yucan_progress:take() of
        undefined -> error({bad_response, {sent, nothing}});
        {open, Mode, Connection, Status} -> finish(Mode, Socket, Connection, Status, yucan_progress:end_stream());
        Outcome -> Outcome
    end.

%% @doc Cuts the response short, so that the client can tell that it is incomplete. `none' means
%% that no response was being sent in steps.
-spec cut() -> none | yucan_progress:outcome().
cut() ->
    case yucan_progress:take() of
        undefined -> none;
        {open, _, _, Status} -> {close, Status, element(2, yucan_progress:end_stream())};
        Outcome -> Outcome
    end.
