%% SPDX-License-Identifier: Apache-2.0
%% @doc Converts a source of bytes, such as a script or a FastCGI application, to a response.
%%
%% It reads the head before it answers, so a script that hangs, crashes or writes garbage causes a 504 or 502. The body is then sent to the client as
%% it arrives, but no faster than the client reads it. When the client disconnects, the source is closed.
-module(yucan_gateway).

-export([connect/3, respond/3, reason/1]).
-export_type([source/0, options/0]).

-define(CONNECT_MS, 5000).
%% The interval at which this module checks whether the client is still connected.
-define(LOOK_MS, 1000).
%% A program that was killed by a signal has the exit status 128 plus the signal's number, and its response is incomplete. With any other exit status
%% the response may be complete: a script exits with such a status if its last command fails, and so does PHP after an error that the page shows.
-define(IS_OWN_END(Status), (Status =< 128 orelse Status > 192)).
%% If a response is complete within this time, it is sent in one piece, with its length.
-define(GATHER_MS, 1).
-define(GATHER_BYTES, 65536).

-type source() :: {yucan_cgi_run | yucan_fcgi_client | yucan_proxy_client, term()}.
%% A source: a module that exports read/2 and close/1, and that module's state.
-type options() :: #{silence_ms := pos_integer(), name := file:filename_all(), headers => fun((headers()) -> headers())}.
%% `silence_ms' is how long the source may send nothing, `name' is its name in the log, and `headers' is a function that changes the headers.
-type headers() :: [{binary(), binary()}].

%% @doc Connects to a server or an application. If the host is a name, IPv4 is tried first, then IPv6.
-spec connect(inet:hostname() | inet:ip_address() | {local, file:filename_all()}, inet:port_number(), [gen_tcp:connect_option()]) ->
    {ok, gen_tcp:socket()} | {error, inet:posix() | timeout}.
connect(Host, Port, Options) ->
    case gen_tcp:connect(Host, Port, Options, ?CONNECT_MS) of
        {error, Reason} = Error when is_list(Host), Reason =/= timeout ->
            case gen_tcp:connect(Host, Port, [inet6 | Options], ?CONNECT_MS) of
                {error, _} when Reason =/= nxdomain -> Error;
                Result -> Result
            end;
        Result -> Result
    end.

%% @doc Reads the head and answers the request. Afterwards the source is closed or belongs to the response.
-spec respond(yucan_req:req(), source(), options()) -> yucan_handler:response().
respond(Req, Source, Options) -> head(Req, Source, yucan_cgi_head:new(), Options, deadline(Options)).

deadline(#{silence_ms := Ms}) -> now_ms() + Ms.

now_ms() -> erlang:monotonic_time(millisecond).

head(Req, Source, State, Options, Deadline) ->
    case wait(Req, Source, Deadline) of
        {data, Data, Next} ->
            case yucan_cgi_head:feed(Data, State) of
                {more, State2} -> head(Req, Next, State2, Options, Deadline);
                {head, Head, Body} -> body(Req, Next, mapped(Head, Options), Body, Options);
                {error, Reason} ->
                    close(Next),
                    bad_gateway(502, Reason, Options)
            end;
        {done, _} -> bad_gateway(502, no_head, Options);
        {error, client_gone} -> close;
        {error, timeout} -> bad_gateway(504, timeout, Options);
        {error, Reason} -> bad_gateway(502, Reason, Options)
    end.

mapped(#{headers := Headers} = Head, #{headers := Map}) -> Head#{headers := Map(Headers)};
mapped(Head, _) -> Head.

bad_gateway(Status, Reason, #{name := Name}) ->
    yucan_events:warning("~ts: ~ts", [Name, reason(Reason)]),
    yucan_error:page(Status).

%% @doc Describes a source's failure as the end of a sentence in the log.
-spec reason(term()) -> unicode:chardata().
reason(timeout) -> "no answer in time; it was ended";
reason(no_head) -> "it ended without a header";
reason({exit, Status}) when not ?IS_OWN_END(Status) -> io_lib:format("it was ended by signal ~b", [Status - 128]);
reason({exit, Status}) -> io_lib:format("it ended with status ~b", [Status]);
reason(no_type) -> "its header has no Content-Type, Location or Status";
reason({line, <<>>}) -> "its header begins with an empty line";
reason({line, Line}) -> io_lib:format("its header has the line ~0tp", [binary_to_list(Line)]);
reason({status, Status}) -> io_lib:format("its header has the status ~0tp; expected a number from 200 to 599", [binary_to_list(Status)]);
reason({content_length, Length}) -> io_lib:format("its header has the Content-Length ~0tp; expected one number", [binary_to_list(Length)]);
reason(too_many_lines) -> "its header has too many lines";
reason(Long) when Long =:= too_long; Long =:= head_too_long -> "its header is too long";
reason(no_http) -> "its answer is not HTTP";
reason(bad_chunk) -> "its answer has a chunk that is not valid";
reason(trailers_too_long) -> "the trailers of its answer are too long";
reason(closed) -> "it closed the connection before its answer was complete";
reason({connect, timeout}) -> "cannot connect: no answer in time";
reason({connect, Reason}) -> ["cannot connect: ", inet:format_error(Reason)];
reason({send, closed}) -> "it closed the connection before it had the request";
reason({send, timeout}) -> "it did not take the request in time";
reason({send, Reason}) -> ["cannot send the request: ", inet:format_error(Reason)];
reason({spool, Reason}) -> ["cannot store the request's body (TMPDIR?): ", file:format_error(Reason)];
reason({protocol, overloaded}) -> "it is overloaded";
reason({protocol, What}) -> io_lib:format("it broke the protocol of FastCGI (~0tp)", [What]);
reason({not_a_program, Name}) -> io_lib:format("cannot start ~ts: its name has a character with a meaning for the shell", [Name]);
reason({start, Reason}) -> io_lib:format("cannot start: ~0tp", [Reason]);
reason(killed) -> "the process that runs it ended";
reason(Posix) when is_atom(Posix) -> ["it failed: ", inet:format_error(Posix)];
reason(Other) -> io_lib:format("it failed: ~0tp", [Other]).

%% Waits for data. After each interval it checks whether the client has disconnected.
wait(Req, {Module, State}, Deadline) ->
    Left = Deadline - now_ms(),
    case Module:read(State, max(1, min(Left, ?LOOK_MS))) of
        {data, Data, State2} -> {data, Data, {Module, State2}};
        {done, State2} -> {done, {Module, State2}};
        {error, Reason, _} -> {error, Reason};
        {timeout, State2} ->
            Next = {Module, State2},
            case {Left =< ?LOOK_MS, yucan_transport:is_closed(yucan_req:socket(Req))} of
                {_, true} -> close(Next), {error, client_gone};
                {true, _} -> close(Next), {error, timeout};
                {false, false} -> wait(Req, Next, Deadline)
            end
    end.

close({Module, State}) ->
    _ = Module:close(State),
    ok.

body(Req, Source, #{status := Status, headers := Headers, length := Length}, Body, Options) ->
    case yucan_req:method(Req) =:= <<"HEAD">> orelse Status =:= 204 orelse Status =:= 304 of
        true ->
            drain(Req, Source, Options, now_ms() + ?LOOK_MS),
            {Status, with_length(Length, Headers), <<>>};
        false when Length =/= unknown ->
            {Status, with_length(Length, Headers), {stream, fun(Write) -> stream(Req, Source, Body, Length, Write, Options) end}};
        false ->
            gather(Req, Source, Status, Headers, [Body], byte_size(Body), Options)
    end.

with_length(unknown, Headers) -> Headers;
with_length(Length, Headers) -> [{<<"content-length">>, integer_to_binary(Length)} | Headers].

%% Many responses arrive complete, together with their head.
gather(Req, {Module, State} = Source, Status, Headers, Parts, Size, Options) when Size < ?GATHER_BYTES ->
    case Module:read(State, ?GATHER_MS) of
        {data, Data, State2} -> gather(Req, {Module, State2}, Status, Headers, [Data | Parts], Size + byte_size(Data), Options);
        {done, _} -> {Status, Headers, lists:reverse(Parts)};
        {timeout, State2} -> streamed(Req, {Module, State2}, Status, Headers, Parts, Options);
        {error, Reason, _} -> late(Source, Status, Headers, Parts, Reason, Options)
    end;
gather(Req, Source, Status, Headers, Parts, _, Options) -> streamed(Req, Source, Status, Headers, Parts, Options).

%% A script that exits with an error status after its response has still sent a complete response.
late(_, Status, Headers, Parts, {exit, Exit} = Reason, Options) when ?IS_OWN_END(Exit) ->
    _ = bad_gateway(502, Reason, Options),
    {Status, Headers, lists:reverse(Parts)};
late(_, _, _, _, Reason, Options) -> bad_gateway(502, Reason, Options).

streamed(Req, Source, Status, Headers, Parts, Options) ->
    {Status, Headers, {stream, fun(Write) -> stream(Req, Source, lists:reverse(Parts), unknown, Write, Options) end}}.

%% Sends the body, and drops data beyond the announced length.
stream(Req, Source, Data, Left, Write, Options) ->
    Part = cut(iolist_to_binary(Data), Left),
    case Part =:= <<>> orelse Write(Part) of
        {error, _} -> close(Source);
        _ -> next(Req, Source, less(Left, byte_size(Part)), Write, Options)
    end.

next(Req, Source, 0, _, Options) -> drain(Req, Source, Options, now_ms() + ?LOOK_MS);
next(Req, Source, Left, Write, Options) ->
    case wait(Req, Source, deadline(Options)) of
        {data, Data, Next} -> stream(Req, Next, Data, Left, Write, Options);
        {done, _} -> ok;
        {error, client_gone} -> ok;
        %% The response is complete, so the failure does not concern the client.
        {error, {exit, Exit} = Reason} when ?IS_OWN_END(Exit) ->
            _ = bad_gateway(502, Reason, Options),
            ok;
        %% The client must see that the response is incomplete.
        {error, Reason} ->
            _ = bad_gateway(502, Reason, Options),
            exit({shutdown, Reason})
    end.

cut(Data, unknown) -> Data;
cut(Data, Left) when byte_size(Data) =< Left -> Data;
cut(Data, Left) -> binary:part(Data, 0, Left).

less(unknown, _) -> unknown;
less(Left, Bytes) -> Left - Bytes.

%% Continues to read after the client has received the whole response, because the script may have more to do. A script that keeps writing is never
%% silent, so after each interval the arrival of data also causes a check.
drain(Req, Source, Options, Look) ->
    case wait(Req, Source, deadline(Options)) of
        {data, _, Next} ->
            case now_ms() >= Look andalso yucan_transport:is_closed(yucan_req:socket(Req)) of
                true -> close(Next);
                false -> drain(Req, Next, Options, Look)
            end;
        {done, _} -> ok;
        {error, {exit, _} = Reason} ->
            _ = bad_gateway(502, Reason, Options),
            ok;
        {error, _} -> ok
    end.
