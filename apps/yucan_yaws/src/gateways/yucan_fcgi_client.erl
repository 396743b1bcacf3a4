%% SPDX-License-Identifier: Apache-2.0
%% @doc Makes a request to a FastCGI application, whose response is a source of bytes for {@link yucan_gateway}.
%%
%% The process that begins a request is linked to the connection, so both end together. A separate
%% process sends a large body, because the application may answer before it has read everything. If
%% the application closes a pooled connection without a response, an idempotent request is repeated
%% on a new connection.
-module(yucan_fcgi_client).

-export([open/5, read/2, close/1]).
-export_type([source/0]).

-define(SEND_MS, 30000).
%% At most `ARM' messages of `BUFFER_BYTES' are queued for a process that does not read (see yucan_transport:used/3).
-define(ARM, 32).
-define(ARM_MORE, 16).
-define(BUFFER_BYTES, 16384).

-record(fcgi, {address :: yucan_fcgi_pool:address(),
               socket :: gen_tcp:socket(),
               %% How many messages may still arrive.
               armed :: pos_integer(),
               ticket :: yucan_fcgi_pool:ticket() | none,
               buffer = <<>> :: binary(),
               keep = true :: boolean(),
               %% Set for a request on a pooled connection until its response begins.
               again = none :: {Request :: iodata(), yucan_spool:body()} | none,
               sender :: {pid(), reference()} | none,
               log :: fun((binary()) -> any())}).
-opaque source() :: #fcgi{}.

%% @doc Connects, or takes a pooled connection, and sends the request. `Keep' says whether the
%% connection may come from the pool and is returned to it afterwards. `Log' is called with the text
%% that the application writes to its standard error.
-spec open(yucan_fcgi_pool:address(), Keep :: boolean(), [{binary(), binary()}], yucan_spool:body(), Log :: fun((binary()) -> any())) ->
          {ok, source()} | {error, {connect | send, inet:posix() | closed | timeout}}.
open(Address, false, Variables, Body, Log) ->
    case connect(Address, yucan_fcgi_pool:wait(Address), [yucan_fcgi:begin_request(false), yucan_fcgi:params(Variables)], Body, Log) of
        {ok, Source} -> {ok, Source#fcgi{keep = false}};
        {error, Reason} -> {error, Reason}
    end;
open(Address, true, Variables, Body, Log) ->
    Request = [yucan_fcgi:begin_request(true), yucan_fcgi:params(Variables)],
    case yucan_fcgi_pool:checkout(Address) of
        {kept, Socket, Armed} ->
            case start(Address, Socket, Armed, none, Request, Body, Log) of
                {ok, Source} -> {ok, Source#fcgi{again = again(Request, Variables, Body)}};
                %% The application closed the connection between the check and the request.
                {error, _} -> connect(Address, yucan_fcgi_pool:wait(Address), Request, Body, Log)
            end;
        {new, Ticket} ->
            connect(Address, Ticket, Request, Body, Log)
    end.

%% Returns the request if it may be repeated (RFC 9110, 9.2.2).
again(Request, Variables, Body) ->
    case lists:member(proplists:get_value(<<"REQUEST_METHOD">>, Variables), [<<"GET">>, <<"HEAD">>, <<"OPTIONS">>, <<"TRACE">>, <<"PUT">>, <<"DELETE">>]) of
        true -> {Request, Body};
        false -> none
    end.

connect(Address, Ticket, Request, Body, Log) ->
    {Host, Port, More} = target(Address),
    Options = [binary, {active, ?ARM}, {packet, raw}, {buffer, ?BUFFER_BYTES}, {send_timeout, ?SEND_MS}, {send_timeout_close, true} | More],
    case yucan_gateway:connect(Host, Port, Options) of
        {ok, Socket} -> start(Address, Socket, ?ARM, Ticket, Request, Body, Log);
        {error, Reason} ->
            answered(Ticket),
            {error, {connect, Reason}}
    end.

target({local, _} = Address) -> {Address, 0, []};
target({Host, Port}) -> {Host, Port, [{nodelay, true}]}.

answered(none) -> ok;
answered(Ticket) -> yucan_fcgi_pool:answered(Ticket).

start(Address, Socket, Armed, Ticket, Request, Body, Log) ->
    case send_request(Socket, Request, Body) of
        {ok, Sender} ->
            {ok, #fcgi{address = Address, socket = Socket, armed = Armed, ticket = Ticket, sender = Sender, log = Log}};
        {error, Reason} ->
            yucan_fcgi_pool:close(Socket),
            answered(Ticket),
            {error, {send, Reason}}
    end.

send_request(Socket, Request, {file, _, _} = Body) ->
    case gen_tcp:send(Socket, Request) of
        ok -> {ok, spawn_monitor(fun() -> send_body(Socket, Body) end)};
        {error, Reason} -> {error, reason(Reason)}
    end;
send_request(Socket, Request, Body) ->
    Stdin = case Body of
                none -> [];
                {memory, <<>>} -> [];
                {memory, Data} -> yucan_fcgi:stdin(Data)
            end,
    case gen_tcp:send(Socket, [Request, Stdin, yucan_fcgi:stdin(<<>>)]) of
        ok -> {ok, none};
        {error, Reason} -> {error, reason(Reason)}
    end.

reason({timeout, _}) -> timeout;
reason(Reason) -> Reason.

%% If sending fails, the application waits for the rest until the reading process closes the connection.
send_body(Socket, Body) ->
    Send = fun(Data) -> gen_tcp:send(Socket, yucan_fcgi:stdin(Data)) end,
    Sent = case yucan_spool:send(Send, Body) of
        ok -> Send(<<>>);
        Error -> Error
    end,
    case Sent of
        ok -> ok;
        {error, Reason} -> exit(Reason)
    end.

%% @doc Returns the next output of the application. After `done' or an error the connection no longer belongs to the caller.
-spec read(source(), TimeoutMs :: pos_integer()) ->
          {data, binary(), source()} | {done, source()} | {timeout, source()} | {error, term(), source()}.
read(#fcgi{buffer = Buffer} = Source, TimeoutMs) ->
    case yucan_fcgi:decode(Buffer) of
        {ok, {stdout, <<>>}, Rest} -> read(Source#fcgi{buffer = Rest}, TimeoutMs);
        {ok, {stdout, Data}, Rest} -> {data, Data, Source#fcgi{buffer = Rest}};
        {ok, {stderr, Data}, Rest} ->
            _ = Data =/= <<>> andalso (Source#fcgi.log)(Data),
            read(Source#fcgi{buffer = Rest}, TimeoutMs);
        {ok, {end_request, _, complete}, <<>>} -> {done, finish(Source)};
        %% The response is complete, but other data may still arrive on this connection.
        {ok, {end_request, _, complete}, _} -> {done, close(Source)};
        {ok, {end_request, _, Status}, _} -> failed({protocol, Status}, Source);
        {ok, {other, _, _}, Rest} -> read(Source#fcgi{buffer = Rest}, TimeoutMs);
        {error, Reason} -> failed({protocol, Reason}, Source);
        more -> receive_more(Source, TimeoutMs)
    end.

receive_more(#fcgi{socket = Socket} = Source, TimeoutMs) ->
    receive
        {tcp, Socket, Data} -> received(Data, Source, TimeoutMs);
        %% This message is outdated, because more messages have been allowed since it was sent.
        {tcp_passive, Socket} -> receive_more(Source, TimeoutMs);
        {tcp_closed, Socket} -> lost(closed, Source, TimeoutMs);
        {tcp_error, Socket, Reason} -> lost(Reason, Source, TimeoutMs)
    after TimeoutMs -> {timeout, Source}
    end.

%% A pooled connection may be lost because the php-fpm process at its other end has reached
%% pm.max_requests. That process discards further data and exits.
lost(Reason, #fcgi{again = none} = Source, _) -> failed(Reason, Source);
lost(_, #fcgi{address = Address, again = {Request, Body}, log = Log} = Source, TimeoutMs) ->
    Closed = close(Source),
    case connect(Address, yucan_fcgi_pool:wait(Address), Request, Body, Log) of
        {ok, Next} -> read(Next, TimeoutMs);
        {error, Reason} -> {error, Reason, Closed}
    end.

received(Data, #fcgi{buffer = Buffer, ticket = Ticket} = Source, TimeoutMs) ->
    answered(Ticket),
    All = case Buffer of <<>> -> Data; _ -> <<Buffer/binary, Data/binary>> end,
    read(rearmed(Source#fcgi{buffer = All, ticket = none, again = none}), TimeoutMs).

rearmed(#fcgi{armed = Armed, socket = Socket} = Source) when Armed =:= ?ARM - ?ARM_MORE + 1 ->
    _ = inet:setopts(Socket, [{active, ?ARM_MORE}]),
    Source#fcgi{armed = ?ARM};
rearmed(#fcgi{armed = Armed} = Source) -> Source#fcgi{armed = Armed - 1}.

failed(Reason, Source) -> {error, Reason, close(Source)}.

finish(#fcgi{keep = false} = Source) -> close(Source);
%% A connection on which the body is still being sent cannot be used again.
finish(#fcgi{sender = {Pid, Monitor}} = Source) ->
    receive
        {'DOWN', Monitor, process, Pid, normal} -> finish(Source#fcgi{sender = none})
    after 0 ->
        close(Source)
    end;
finish(#fcgi{address = Address, socket = Socket, armed = Armed, sender = none} = Source) ->
    %% Data that has arrived after the end must not reach the next request.
    receive
        {Kind, Socket, _} when Kind =:= tcp; Kind =:= tcp_error -> close(Source);
        {tcp_closed, Socket} -> close(Source)
    after 0 ->
        ok = yucan_fcgi_pool:checkin(Address, Socket, Armed),
        Source
    end.

%% @doc Ends the request, whatever its state, by closing the connection to the application.
-spec close(source()) -> source().
close(#fcgi{socket = Socket, sender = Sender, ticket = Ticket} = Source) ->
    yucan_fcgi_pool:close(Socket),
    answered(Ticket),
    stop(Sender),
    Source#fcgi{sender = none, ticket = none}.

stop(none) -> ok;
stop({Pid, Monitor}) ->
    true = exit(Pid, kill),
    true = erlang:demonitor(Monitor, [flush]),
    ok.
