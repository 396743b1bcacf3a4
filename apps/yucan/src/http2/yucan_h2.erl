%% SPDX-License-Identifier: Apache-2.0
%% @doc The process of an HTTP/2 connection (RFC 9113). yucan_conn hands the connection over after
%% TLS has negotiated `h2', or when the client begins with the preface. This process reads frames
%% and writes all output, while yucan_h2_state makes the decisions. Each request has its own process
%% (yucan_h2_exchange) for as long as its handler runs.
-module(yucan_h2).

-export([start/3, message/2, silence/1, wake/2]).

-include("yucan_internal.hrl").

-record(state, {
    conn :: #conn{},
    socket :: yucan_transport:socket(),
    limits :: #limits{},
    template :: #req{},
    h2 :: yucan_h2_state:state(),
    %% The rest of the preface, which has not arrived yet.
    preface = <<"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n">> :: binary(),
    buffer = <<>> :: binary(),
    %% True if nothing has arrived since the last garbage collection, while the connection waits with open streams.
    collected = false :: boolean(),
    served = 0 :: non_neg_integer()
}).

%% See yucan_conn.
-define(ARM, 100).
-define(WARM_MS, 2000).
-define(LOOK_MS, 1000).
%% The timer for a hibernating connection fires this long after `idle_ms' has passed, so that it never fires too early.
-define(LATE_MS, 20).
-define(LINGER_MS, 2000).
-define(SEND_BYTES, 65536).
-define(BUFFER_BYTES, 32768).
%% The maximum size of a frame from the client, which is the smallest maximum that the protocol permits.
-define(FRAME_BYTES, 16384).

%% @doc Takes over the connection until it closes. `Buffer' contains the bytes that have already arrived.
-spec start(#conn{}, Buffer :: binary(), #limits{}) -> no_return().
start(#conn{socket = Socket} = Conn, Buffer, Limits) ->
    process_flag(trap_exit, true),
    ok = yucan_transport:setopts(Socket, [{buffer, ?BUFFER_BYTES}]),
    State = #state{conn = Conn, socket = Socket, limits = Limits, template = #req{conn = Conn}, h2 = yucan_h2_state:new(Limits, now_ms())},
    received(Buffer, true, State).

now_ms() -> erlang:monotonic_time(millisecond).

%% @private Handles a message from the client's socket or from another process.
-spec message(term(), #state{}) -> no_return().
message(Message, #state{collected = true} = State) -> message(Message, State#state{collected = false});
message(Message, State) -> handle(Message, clock(State)).

handle({answer, Id, Fields, Body}, #state{h2 = H2} = State) ->
    next(perform(State#state{h2 = yucan_h2_state:data(Id, Body, true, none, yucan_h2_state:head(Id, general(Fields, State), false, H2))}));
handle({head, Id, Fields, Fin}, #state{h2 = H2} = State) -> next(perform(State#state{h2 = yucan_h2_state:head(Id, general(Fields, State), Fin, H2)}));
handle({data, Id, Data, Fin, From}, #state{h2 = H2} = State) -> next(perform(State#state{h2 = yucan_h2_state:data(Id, Data, Fin, From, H2)}));
handle({read, Id, From}, #state{h2 = H2} = State) -> next(perform(State#state{h2 = yucan_h2_state:read(Id, From, H2)}));
handle({active, Id, Count}, #state{h2 = H2} = State) -> next(perform(State#state{h2 = yucan_h2_state:active(Id, Count, H2)}));
handle({'EXIT', Pid, Reason}, #state{h2 = H2} = State) when is_pid(Pid) ->
    case yucan_h2_state:is_stream(Pid, H2) of
        true -> next(perform(State#state{h2 = yucan_h2_state:exited(Pid, Reason =/= normal, H2)}));
        %% The pool is shutting down.
        false -> exit(Reason)
    end;
handle({yucan, drain}, #state{h2 = H2} = State) ->
    lists:foreach(fun({Pid, _}) -> Pid ! {yucan, drain} end, yucan_h2_state:pids(H2)),
    next(State#state{h2 = yucan_h2_state:drain(H2)});
handle(Message, #state{socket = Socket} = State) ->
    case yucan_transport:event(Message, Socket) of
        {data, Data} -> received(Data, false, State);
        {last, Data} -> received(Data, true, State);
        passive -> received(<<>>, true, State);
        closed -> ended(State);
        other -> next(State)
    end.

%% @private Called when nothing has arrived for a while.
-spec silence(#state{}) -> no_return().
silence(#state{h2 = H2, limits = #limits{idle_ms = Ms}} = State) ->
    case yucan_h2_state:is_idle(H2) andalso Ms > ?WARM_MS of
        true ->
            Timer = erlang:start_timer(Ms - ?WARM_MS + ?LATE_MS, self(), idle),
            erlang:hibernate(?MODULE, wake, [State, Timer]);
        false ->
            _ = State#state.collected orelse erlang:garbage_collect(),
            next(clock(State#state{collected = true}))
    end.

%% @private Wakes up a hibernating connection when a message arrives.
-spec wake(#state{}, reference()) -> no_return().
wake(State, Timer) ->
    receive
        {timeout, Timer, idle} -> next(clock(State));
        Message ->
            _ = erlang:cancel_timer(Timer),
            message(Message, State)
    end.

clock(#state{h2 = H2} = State) -> perform(State#state{h2 = yucan_h2_state:at(now_ms(), H2)}).

received(Data, Silent, #state{socket = Socket, buffer = Buffer} = State) ->
    State1 = preface(State#state{buffer = case Buffer of <<>> -> Data; _ -> <<Buffer/binary, Data/binary>> end}),
    case Silent andalso yucan_transport:arm(Socket, ?ARM) of
        {error, _} -> ended(State1);
        _ -> next(State1)
    end.

preface(#state{preface = <<>>} = State) -> frames(State);
preface(#state{preface = Missing, buffer = Buffer} = State) ->
    Size = min(byte_size(Missing), byte_size(Buffer)),
    case {Missing, Buffer} of
        {<<Same:Size/binary, Left/binary>>, <<Same:Size/binary, Rest/binary>>} -> frames(State#state{preface = Left, buffer = Rest});
        _ -> perform(failed(connection, protocol_error, State))
    end.

%% All frames in a batch are processed with the time at which the batch started.
frames(#state{buffer = Buffer, h2 = H2} = State) ->
    case yucan_h2_frame:parse(Buffer, ?FRAME_BYTES) of
        {connection_error, Code} -> perform(failed(connection, Code, State));
        {Frame, Rest} -> frames(perform(State#state{buffer = Rest, h2 = yucan_h2_state:frame(Frame, H2)}));
        more -> State;
        {stream_error, Id, Code, Rest} -> frames(perform(failed(Id, Code, State#state{buffer = Rest})))
    end.

failed(What, Code, #state{h2 = H2} = State) -> State#state{h2 = yucan_h2_state:failed(What, Code, H2)}.

perform(#state{h2 = H2} = State) ->
    case yucan_h2_state:effects(H2) of
        {[], _} -> State;
        {Effects, H21} -> lists:foldl(fun effect/2, State#state{h2 = H21}, Effects)
    end.

effect({request, Id, Fields, Fin}, State) -> perform(request(Id, Fields, Fin, State));
effect({too_large, Id}, State) -> perform(refuse(Id, 431, headers_too_long, State));
effect({reply, From, Result}, State) -> From ! {From, Result}, State;
effect({tell, Pid, Message}, State) -> Pid ! Message, State;
effect({kill, Pid}, State) -> exit(Pid, {shutdown, stream_closed}), State;
effect({stop, _}, State) -> ended(flush(State)).

request(Id, Fields, Fin, #state{conn = Conn, socket = Socket, limits = Limits, template = Template, h2 = H2, served = Served} = State) ->
    Stream = yucan_h2_stream:new(self(), Id, Socket),
    case yucan_h2_request:parse(Fields, Fin, Limits, Template#req{conn = Conn#conn{socket = {yucan_h2_stream, Stream}, writer = yucan_h2_reply}}) of
        {ok, #req{body = Body, expect = Expect, authority = Authority} = Req} ->
            Pid = yucan_h2_exchange:start(Req, Served, Stream),
            H21 = yucan_h2_state:opened(Id, Pid, case yucan_h2_request:is_tunnel(Req) of true -> tunnel; false -> Body end, H2),
            %% The client is waiting for permission to send its body, and this interim response
            %% grants it. How much the client may send depends on the flow-control windows.
            H22 = case Expect of true -> yucan_h2_state:head(Id, [{<<":status">>, <<"100">>}], false, H21); false -> H21 end,
            State#state{h2 = H22, served = Served + 1, template = Template#req{authority = Authority}};
        malformed -> failed(Id, protocol_error, State);
        {error, Status, Reason} -> refuse(Id, Status, Reason, State)
    end.

refuse(Id, Status, Reason, #state{conn = #conn{server = Server} = Conn, h2 = H2} = State) ->
    #site{metrics = Metrics, log = Log} = persistent_term:get({yucan, Server}),
    yucan_metrics:refused(Metrics, Status),
    yucan_events:refused(Status, Reason, Conn),
    yucan_log:refused(Log, Conn, Status),
    {Fields, Body} = yucan_h2_reply:refusal(Status),
    State#state{h2 = yucan_h2_state:data(Id, Body, true, none, yucan_h2_state:head(Id, general(Fields, State), false, H2))}.

%% Adds the headers that every response has, unless the handler has set them.
general([{_, <<"1", _/binary>>} | _] = Interim, _) -> Interim;
general([Status | Fields], #state{conn = #conn{server = Server}}) ->
    #site{server_header = Header} = persistent_term:get({yucan, Server}),
    [Status | line(Header, line(yucan_header:date_line(), Fields))].

line(<<"date: ", Rest/binary>>, Fields) -> unless_there(<<"date">>, Rest, Fields);
line(<<"server: ", Rest/binary>>, Fields) -> unless_there(<<"server">>, Rest, Fields);
line(<<>>, Fields) -> Fields.

unless_there(Name, Rest, Fields) ->
    case lists:keymember(Name, 1, Fields) of
        true -> Fields;
        false -> [{Name, binary_part(Rest, 0, byte_size(Rest) - 2)} | Fields]
    end.

%% Output is sent only when there is nothing else to do, so that responses that are ready at the same time are sent together.
next(#state{h2 = H2} = State) ->
    Pumped = State#state{h2 = yucan_h2_state:pump(H2)},
    case yucan_h2_state:output_bytes(Pumped#state.h2) of
        Bytes when Bytes >= ?SEND_BYTES -> between(flush(Pumped));
        Bytes -> any_more(Bytes, yucan_h2_state:is_busy(H2), Pumped)
    end.

%% The client may take a long time to accept the rest of a large response, so input that arrives in the meantime is handled first.
between(State) ->
    receive
        Message -> message(Message, State)
    after 0 -> next(clock(State))
    end.

any_more(0, _, State) -> rest(State);
any_more(_, Busy, State) ->
    %% Yields first, so that handlers that are ready to respond can add their output.
    _ = Busy andalso erlang:yield(),
    receive
        Message -> message(Message, State)
    after 0 -> next(clock(flush(State)))
    end.

rest(#state{h2 = H2} = State) ->
    case yucan_h2_state:is_closing(H2) of
        true -> ended(State);
        false -> yucan_idle:message(?MODULE, State, case yucan_h2_state:is_idle(H2) of true -> ?WARM_MS; false -> ?LOOK_MS end)
    end.

flush(#state{h2 = H2, socket = Socket} = State) ->
    {Out, H21} = yucan_h2_state:output(H2),
    case yucan_transport:send(Socket, Out) of
        ok -> State#state{h2 = H21};
        {error, _} -> ended(State#state{h2 = H21})
    end.

%% Processes that receive messages from their streams are notified, so that they can shut down; others are killed.
-spec ended(#state{}) -> no_return().
ended(#state{h2 = H2, socket = Socket, limits = #limits{min_body_rate = Rate}}) ->
    lists:foreach(fun({Pid, {active, Id}}) -> Pid ! {yucan_h2, Id, closed}, unlink(Pid);
                     ({Pid, _}) -> exit(Pid, {shutdown, closed})
                  end, yucan_h2_state:pids(H2)),
    yucan_transport:linger(Socket, ?LINGER_MS, Rate),
    exit({shutdown, closed}).
