%% SPDX-License-Identifier: Apache-2.0
%% @doc The state of an HTTP/2 connection (RFC 9113, 5 and 6): its streams, windows and tables. All functions are pure. yucan_h2 passes it the
%% frames from the client and the requests from the stream processes, and then fetches the bytes to send and the effects to perform.
%%
%% Frames that request nothing cost the client tokens, and so do streams that it cancels or causes to be reset. The client regains tokens over time
%% and with each response. When it has none left, the connection is closed (`enhance_your_calm').
-module(yucan_h2_state).

-export([new/2, at/2, frame/2, failed/3, opened/4, exited/3, head/4, data/5, read/3, active/3, drain/1, pump/1, effects/1,
         output_bytes/1, output/1, is_busy/1, is_idle/1, is_closing/1, is_stream/2, pids/1]).
-export_type([state/0, effect/0]).

-include("yucan_internal.hrl").

-type id() :: pos_integer().
-type from() :: reference().
-type effect() ::
    {request, id(), [yucan_hpack:field()], Fin :: boolean()} | {too_large, id()}
    | {reply, from(), Result :: term()} | {tell, pid(), Message :: term()} | {kill, pid()} | {stop, yucan_h2_frame:code()}.

-record(stream, {
    %% The handler's process, until it has exited.
    pid = none :: none | pid(),
    receiving :: boolean(),
    %% How many bytes of the body are still missing, if its length is known.
    missing = any :: any | non_neg_integer(),
    buffer = <<>> :: binary(),
    %% The receive window. `credit' is how much it can be enlarged by, which the client has not been
    %% told yet.
    receive_window :: integer(),
    credit = 0 :: non_neg_integer(),
    reader = none :: none | {once, from()} | {active, Count :: pos_integer()},
    %% True for a tunnel, which ends when the client closes its side of the stream. An ordinary
    %% request is still answered after that.
    tunnel = false :: boolean(),
    trailers = [] :: [yucan_hpack:field()],
    send_window :: integer(),
    %% The data that waits for window space, whether it ends the stream, and the caller to notify
    %% once it has been sent. `since' is the time of the last progress.
    pending = none :: none | {binary(), Fin :: boolean(), none | from()},
    since = 0 :: integer(),
    %% True while the stream is in `ready'.
    queued = false :: boolean()
}).

-record(h2, {
    limits :: #limits{},
    now :: integer(),
    tokens :: integer(),
    %% When streams were last checked, which happens at most once a second.
    checked :: integer(),
    idle_since :: integer(),
    decoder :: yucan_hpack:table(),
    encoder :: yucan_hpack:table(),
    streams = #{} :: #{id() => #stream{}},
    %% The processes that serve streams, some of which briefly outlive their streams. `active'
    %% processes also get a message when their stream ends.
    pids = #{} :: #{pid() => {passive | active, id()}},
    last = 0 :: non_neg_integer(),
    %% The streams that the server has closed. A client that has not noticed yet may still send
    %% frames on them, which are not errors.
    given_up = [] :: [id()],
    %% A header block that is not complete yet. Until it is, no other frame may arrive.
    block = none :: none | {id(), Fin :: boolean(), binary(), Began :: integer()},
    settled = false :: boolean(),
    requests = 0 :: non_neg_integer(),
    %% The last stream ID that GOAWAY named, if it has been sent.
    goaway = none :: none | non_neg_integer(),
    receive_window :: integer(),
    credit = 0 :: non_neg_integer(),
    send_window = 65535 :: integer(),
    initial_window = 65535 :: non_neg_integer(),
    max_frame = 16384 :: pos_integer(),
    %% The streams with pending data whose window may be open; each occurs only once.
    ready = queue:new() :: queue:queue(id()),
    out = [] :: iodata(),
    out_bytes = 0 :: non_neg_integer(),
    effects = [] :: [effect()]
}).
-opaque state() :: #h2{}.

-define(MAX_WINDOW, 16#7fffffff).
%% The limits on buffered unread data, per stream and per connection.
-define(STREAM_WINDOW, 262144).
-define(WINDOW, 1048576).
%% How much one stream may send before the next stream has its turn, and how much is written to the socket at once.
-define(TURN_BYTES, 16384).
-define(SEND_BYTES, 65536).

-define(TOKENS, 1000).
-define(TOKENS_PER_SECOND, 200).
-define(TOKENS_PER_ANSWER, 3).
%% The number of tokens that a stream costs if it ends without a response, because a process was started for it.
-define(GIVEN_UP, 5).
-define(SMALL_INCREMENT, 1024).
-define(REMEMBERED, 100).

%% @doc Returns the state before the first frame, with the server's settings waiting to be sent.
-spec new(#limits{}, NowMs :: integer()) -> state().
new(#limits{header_block_bytes = Headers, h2_streams = Streams} = Limits, Now) ->
    Settings = yucan_h2_frame:settings([{max_concurrent_streams, Streams}, {initial_window_size, ?STREAM_WINDOW}, {max_header_list_size, Headers},
                                        {enable_connect_protocol, 1}]),
    out([Settings, yucan_h2_frame:window_update(0, ?WINDOW - 65535)],
        #h2{limits = Limits, now = Now, tokens = ?TOKENS, checked = Now, idle_since = Now, receive_window = ?WINDOW, decoder = yucan_hpack:new(4096),
            encoder = yucan_hpack:new(4096)}).

%% @doc Sets the current time.
-spec at(NowMs :: integer(), state()) -> state().
at(Now, #h2{now = Now} = S) -> S;
at(Now, #h2{checked = Checked} = S) when Now - Checked < 1000 -> S#h2{now = Now};
at(Now, #h2{checked = Checked, tokens = Tokens} = S) ->
    S1 = S#h2{now = Now, checked = Now, tokens = min(?TOKENS, Tokens + (Now - Checked) * ?TOKENS_PER_SECOND div 1000)},
    overdue(maps:fold(fun stalled/3, S1, S1#h2.streams)).

%% Resets a stream whose client has accepted no data of the response for `send_ms'.
stalled(Id, #stream{pending = {_, _, From}, since = Since}, #h2{now = Now, limits = #limits{send_ms = Most}} = S) when Now - Since > Most ->
    reset(Id, cancel, reply(From, {error, timeout}, S));
stalled(_, _, S) -> S.

overdue(#h2{block = {_, _, _, Began}, now = Now, limits = #limits{header_ms = Most}} = S) when Now - Began > Most -> stop(enhance_your_calm, S);
%% Handlers may continue to run after their streams have closed.
overdue(#h2{streams = Streams, pids = Pids, idle_since = Since, now = Now, limits = #limits{idle_ms = Most}} = S)
  when map_size(Streams) =:= 0, map_size(Pids) =:= 0, Now - Since >= Most ->
    stop(no_error, S);
overdue(S) -> S.

%% @doc Returns whether nothing is in progress.
-spec is_idle(state()) -> boolean().
is_idle(#h2{streams = Streams, pids = Pids, block = Block}) -> map_size(Streams) =:= 0 andalso map_size(Pids) =:= 0 andalso Block =:= none.

%% @doc Returns whether handlers are running.
-spec is_busy(state()) -> boolean().
is_busy(#h2{pids = Pids}) -> map_size(Pids) > 0.

%% @doc Returns the processes of the streams, and which of them get data as messages.
-spec pids(state()) -> [{pid(), {passive | active, id()}}].
pids(#h2{pids = Pids}) -> maps:to_list(Pids).

%% @doc Returns whether this process serves a stream of the connection.
-spec is_stream(pid(), state()) -> boolean().
is_stream(Pid, #h2{pids = Pids}) -> is_map_key(Pid, Pids).

%% @doc Returns whether the connection accepts no more streams and has none.
-spec is_closing(state()) -> boolean().
is_closing(#h2{goaway = none}) -> false;
is_closing(S) -> is_idle(S).

%% @doc Returns the effects to perform since the last call, in order.
-spec effects(state()) -> {[effect()], state()}.
effects(#h2{effects = []} = S) -> {[], S};
effects(#h2{effects = Effects} = S) -> {lists:reverse(Effects), S#h2{effects = []}}.

%% @doc Returns the number of bytes waiting to be sent.
-spec output_bytes(state()) -> non_neg_integer().
output_bytes(#h2{out_bytes = Bytes}) -> Bytes.

%% @doc Returns the bytes to send.
-spec output(state()) -> {iodata(), state()}.
output(#h2{out = Out} = S) -> {Out, S#h2{out = [], out_bytes = 0}}.

out(Data, #h2{out = Out, out_bytes = Bytes} = S) -> S#h2{out = [Out | Data], out_bytes = Bytes + iolist_size(Data)}.

effect(Effect, #h2{effects = Effects} = S) -> S#h2{effects = [Effect | Effects]}.

reply(none, _, S) -> S;
reply(From, Result, S) -> effect({reply, From, Result}, S).

stop(Code, #h2{last = Last, goaway = Goaway} = S) ->
    effect({stop, Code}, out(yucan_h2_frame:goaway(case Goaway of none -> Last; _ -> Goaway end, Code), S)).

pay(Cost, #h2{tokens = Tokens} = S) when Tokens >= Cost -> S#h2{tokens = Tokens - Cost};
pay(_, S) -> stop(enhance_your_calm, S).

%% ---- from the client

%% @doc Handles a frame from the client.
-spec frame(yucan_h2_frame:frame(), state()) -> state().
frame({settings, Settings}, #h2{block = none} = S) ->
    %% A settings frame may contain thousands of settings, and each may cause work for every stream.
    pay(1 + length(Settings), out(yucan_h2_frame:settings_ack(), lists:foldl(fun setting/2, S#h2{settled = true}, Settings)));
%% The first frame must be SETTINGS (3.4).
frame(_, #h2{settled = false} = S) -> stop(protocol_error, S);
frame({continuation, Id, Complete, Fragment}, #h2{block = {Id, Fin, Before, Began}} = S) ->
    fragment(Id, Fin, Complete, <<Before/binary, Fragment/binary>>, Began, pay(1, S));
frame(_, #h2{block = {_, _, _, _}} = S) -> stop(protocol_error, S);
frame({headers, Id, Fin, Complete, Fragment}, #h2{now = Now} = S) -> fragment(Id, Fin, Complete, Fragment, Now, S);
frame({data, Id, Fin, Data, Size}, #h2{receive_window = Window} = S) ->
    case Window - Size of
        Left when Left < 0 -> stop(flow_control_error, S);
        Left -> body(Id, Fin, Data, Size, S#h2{receive_window = Left})
    end;
frame({rst_stream, Id}, #h2{streams = Streams, given_up = GivenUp} = S) ->
    case Streams of
        #{Id := Stream} -> given_up(Id, Stream, pay(?GIVEN_UP, S));
        _ -> unless_idle(Id, pay(1, S#h2{given_up = lists:delete(Id, GivenUp)}))
    end;
frame({window_update, Id, Increment}, S) when Increment < ?SMALL_INCREMENT -> window(Id, Increment, pay(1, S));
frame({window_update, Id, Increment}, S) -> window(Id, Increment, S);
frame({ping, Opaque}, S) -> out(yucan_h2_frame:ping_ack(Opaque), pay(1, S));
frame({continuation, _, _, _}, S) -> stop(protocol_error, S);
%% Priority, acknowledgement, GOAWAY and unknown frames have no effect.
frame(_, S) -> pay(1, S).

%% @doc Handles a frame that violates the rules for its type.
-spec failed(connection | id(), yucan_h2_frame:code(), state()) -> state().
failed(connection, Code, S) -> stop(Code, S);
failed(_, _, #h2{block = {_, _, _, _}} = S) -> stop(protocol_error, S);
failed(Id, Code, #h2{last = Last} = S) when Id > Last, Code =/= frame_size_error -> stop(Code, S);
failed(Id, Code, S) -> reset(Id, Code, pay(1, S)).

%% Closes the connection if the stream has not been opened yet (5.1).
unless_idle(Id, #h2{last = Last} = S) when Id > Last; Id band 1 =:= 0 -> stop(protocol_error, S);
unless_idle(_, S) -> S.

setting({header_table_size, Bytes}, #h2{encoder = Encoder} = S) -> S#h2{encoder = yucan_hpack:resize(Bytes, Encoder)};
setting({max_frame_size, Bytes}, S) -> S#h2{max_frame = Bytes};
%% A change applies to the windows of all streams, which may become negative but may not exceed the maximum (6.9.2).
setting({initial_window_size, Bytes}, #h2{initial_window = Before, streams = Streams} = S) ->
    maps:fold(fun(_, #stream{send_window = Window}, Acc) when Window + Bytes - Before > ?MAX_WINDOW -> stop(flow_control_error, Acc);
                 (Id, #stream{send_window = Window} = Stream, Acc) -> widened(Id, Window + Bytes - Before, Stream, Acc)
              end, S#h2{initial_window = Bytes}, Streams);
setting(_, S) -> S.

window(0, Increment, #h2{send_window = Window} = S) when Window + Increment > ?MAX_WINDOW -> stop(flow_control_error, S);
window(0, Increment, #h2{send_window = Window} = S) -> S#h2{send_window = Window + Increment};
window(Id, Increment, #h2{streams = Streams} = S) ->
    case Streams of
        #{Id := #stream{send_window = Window} = Stream} -> widened(Id, Window + Increment, Stream, S);
        _ -> unless_idle(Id, S)
    end.

widened(Id, Window, _, S) when Window > ?MAX_WINDOW -> reset(Id, flow_control_error, S);
widened(Id, Window, #stream{send_window = Before, pending = Pending} = Stream, S) ->
    Stream1 = Stream#stream{send_window = Window},
    case Before =< 0 andalso Window > 0 andalso Pending =/= none of
        true -> ready(Id, Stream1, S);
        false -> put_stream(Id, Stream1, S)
    end.

ready(Id, #stream{queued = true} = Stream, S) -> put_stream(Id, Stream, S);
ready(Id, Stream, #h2{ready = Ready} = S) -> put_stream(Id, Stream#stream{queued = true}, S#h2{ready = queue:in(Id, Ready)}).

put_stream(Id, Stream, #h2{streams = Streams} = S) -> S#h2{streams = Streams#{Id => Stream}}.

%% The size of a block is limited before it is decoded, because a large block cannot be distinguished from one that never ends.
fragment(_, _, _, Block, _, #h2{limits = #limits{header_block_bytes = Max}} = S) when byte_size(Block) > Max -> stop(enhance_your_calm, S);
fragment(Id, Fin, false, Block, Began, S) -> S#h2{block = {Id, Fin, Block, Began}};
fragment(Id, Fin, true, Block, _, #h2{decoder = Decoder, limits = #limits{header_block_bytes = Max}} = S) ->
    case yucan_hpack:decode(Block, Max, Decoder) of
        {ok, Fields, Decoder1} -> fields(Id, Fin, Fields, S#h2{block = none, decoder = Decoder1});
        {too_large, Decoder1} -> fields(Id, Fin, too_large, S#h2{block = none, decoder = Decoder1});
        error -> stop(compression_error, S)
    end.

fields(Id, _, _, S) when Id band 1 =:= 0 -> stop(protocol_error, S);
fields(Id, Fin, Fields, #h2{last = Last} = S) when Id > Last -> request(Id, Fin, Fields, S);
fields(Id, Fin, Fields, #h2{streams = Streams, given_up = GivenUp} = S) ->
    case Streams of
        #{Id := #stream{receiving = false}} -> reset(Id, stream_closed, S);
        %% A tunnel must not have trailers (8.5).
        #{Id := #stream{tunnel = false} = Stream} when Fin, Fields =/= too_large -> trailers(Id, Fields, Stream, S);
        #{Id := _} -> reset(Id, protocol_error, S);
        _ ->
            case lists:member(Id, GivenUp) of
                true -> pay(1, S);
                false -> stop(stream_closed, S)
            end
    end.

trailers(Id, Fields, Stream, S) ->
    case lists:all(fun yucan_h2_request:is_trailer/1, Fields) of
        true -> ended(Id, Stream#stream{trailers = Fields}, S);
        false -> reset(Id, protocol_error, S)
    end.

%% The client sent this request before it received GOAWAY. Further frames on the stream are also dropped (6.8).
request(Id, _, _, #h2{goaway = Last} = S) when is_integer(Last) -> pay(1, remember(Id, S#h2{last = Id}));
request(Id, _, _, #h2{streams = Streams, pids = Pids, limits = #limits{h2_streams = Most}} = S) when map_size(Streams) >= Most; map_size(Pids) >= Most ->
    reset(Id, refused_stream, pay(?GIVEN_UP, S#h2{last = Id}));
request(Id, Fin, Fields, #h2{initial_window = Window, requests = Requests, limits = #limits{requests = Most}} = S) ->
    S1 = put_stream(Id, #stream{receiving = not Fin, receive_window = ?STREAM_WINDOW, send_window = Window}, S#h2{last = Id, requests = Requests + 1}),
    S2 = case Requests + 1 >= Most of true -> drain(S1); false -> S1 end,
    effect(case Fields of too_large -> {too_large, Id}; _ -> {request, Id, Fields, Fin} end, S2).

%% @doc Records that a request is valid and that its handler is running.
-spec opened(id(), pid(), {length, non_neg_integer()} | chunked | none | tunnel, state()) -> state().
opened(Id, Pid, Body, #h2{streams = Streams, pids = Pids} = S) ->
    #{Id := Stream} = Streams,
    Missing = case Body of {length, Length} -> Length; _ -> any end,
    S#h2{pids = Pids#{Pid => {passive, Id}}, streams = Streams#{Id := Stream#stream{pid = Pid, missing = Missing, tunnel = Body =:= tunnel}}}.

body(Id, Fin, Data, Size, #h2{streams = Streams, given_up = GivenUp} = S) ->
    case Streams of
        #{Id := #stream{receiving = false}} -> reset(Id, stream_closed, credit(Size, S));
        #{Id := #stream{receive_window = Window}} when Size > Window -> reset(Id, flow_control_error, credit(Size, S));
        #{Id := #stream{missing = Missing}} when is_integer(Missing), byte_size(Data) > Missing -> reset(Id, protocol_error, credit(Size, S));
        #{Id := #stream{receive_window = Window, missing = Missing} = Stream} ->
            Stream1 = Stream#stream{receive_window = Window - Size, missing = case Missing of any -> any; _ -> Missing - byte_size(Data) end},
            S1 = case Data of <<>> when not Fin -> pay(1, S); _ -> S end,
            %% The window space of padding is returned immediately, because no handler reads padding.
            {Stream2, S2} = credit(Id, Size - byte_size(Data), deliver(Data, Stream1), S1),
            case Fin of
                true -> ended(Id, Stream2, S2);
                false -> give(Id, Stream2, S2)
            end;
        _ ->
            S1 = credit(Size, pay(1, S)),
            case lists:member(Id, GivenUp) of
                true -> S1;
                false -> closed_or_idle(Id, S1)
            end
    end.

closed_or_idle(Id, #h2{last = Last} = S) when Id > Last; Id band 1 =:= 0 -> stop(protocol_error, S);
closed_or_idle(Id, S) -> out(yucan_h2_frame:reset(Id, stream_closed), S).

deliver(<<>>, Stream) -> Stream;
deliver(Data, #stream{buffer = <<>>} = Stream) -> Stream#stream{buffer = Data};
deliver(Data, #stream{buffer = Buffer} = Stream) -> Stream#stream{buffer = <<Buffer/binary, Data/binary>>}.

%% The client has closed its side of the stream.
ended(Id, #stream{missing = Missing}, S) when is_integer(Missing), Missing > 0 -> reset(Id, protocol_error, S);
ended(Id, Stream, S) -> give(Id, Stream#stream{receiving = false}, S).

%% Delivers data that the handler has requested and that has arrived.
give(Id, #stream{reader = {once, From}, buffer = Data} = Stream, S) when Data =/= <<>> ->
    {Stream1, S1} = credit(Id, byte_size(Data), Stream#stream{reader = none, buffer = <<>>}, reply(From, {ok, Data}, S)),
    put_stream(Id, Stream1, S1);
give(Id, #stream{reader = {once, From}, receiving = false, trailers = Trailers} = Stream, S) ->
    put_stream(Id, Stream#stream{reader = none}, reply(From, {eof, Trailers}, S));
give(Id, #stream{reader = {active, Count}, buffer = Data, pid = Pid} = Stream, S) when Data =/= <<>> ->
    {Reader, Kind} = case Count of 1 -> {none, last}; _ -> {{active, Count - 1}, data} end,
    {Stream1, S1} = credit(Id, byte_size(Data), Stream#stream{reader = Reader, buffer = <<>>}, effect({tell, Pid, {yucan_h2, Id, {Kind, Data}}}, S)),
    give(Id, Stream1, S1);
give(Id, #stream{reader = {active, _}, receiving = false, tunnel = true, pid = Pid} = Stream, S) ->
    put_stream(Id, Stream#stream{reader = none}, effect({tell, Pid, {yucan_h2, Id, closed}}, S));
%% The handler has exited, so data that arrives later is dropped.
give(Id, #stream{pid = none, buffer = Data} = Stream, S) when Data =/= <<>> ->
    put_stream(Id, Stream#stream{buffer = <<>>}, credit(byte_size(Data), S));
give(Id, Stream, S) -> put_stream(Id, Stream, S).

%% Enlarges the client's window, and sends the update once half of the window is used up.
credit(0, S) -> S;
credit(Size, #h2{credit = Credit, receive_window = Window} = S) ->
    case Credit + Size of
        Sum when Sum >= ?WINDOW div 2 -> out(yucan_h2_frame:window_update(0, Sum), S#h2{credit = 0, receive_window = Window + Sum});
        Sum -> S#h2{credit = Sum}
    end.

credit(_, 0, Stream, S) -> {Stream, S};
credit(_, Size, #stream{receiving = false} = Stream, S) -> {Stream, credit(Size, S)};
credit(Id, Size, #stream{credit = Credit, receive_window = Window} = Stream, S) ->
    case Credit + Size of
        Sum when Sum >= ?STREAM_WINDOW div 2 ->
            {Stream#stream{credit = 0, receive_window = Window + Sum}, out(yucan_h2_frame:window_update(Id, Sum), credit(Size, S))};
        Sum -> {Stream#stream{credit = Sum}, credit(Size, S)}
    end.

%% The client has cancelled the stream. A process that receives messages is notified, even if it accepts none now.
given_up(Id, #stream{pid = Pid} = Stream, #h2{pids = Pids} = S) ->
    S1 = case Pids of
        #{Pid := {active, _}} -> effect({tell, Pid, {yucan_h2, Id, closed}}, S);
        #{Pid := _} -> effect({kill, Pid}, S);
        _ -> S
    end,
    removed(Id, Stream, S1).

%% Ends a stream with an error. Either the client caused it, which costs tokens, or the handler's process has exited.
reset(Id, Code, #h2{streams = Streams} = S) ->
    S1 = out(yucan_h2_frame:reset(Id, Code), remember(Id, S)),
    case Streams of
        #{Id := #stream{pid = none} = Stream} -> given_up(Id, Stream, S1);
        #{Id := Stream} -> given_up(Id, Stream, pay(?GIVEN_UP, S1));
        _ -> S1
    end.

remember(Id, #h2{given_up = GivenUp} = S) -> S#h2{given_up = lists:sublist([Id | GivenUp], ?REMEMBERED)}.

removed(Id, #stream{buffer = Buffer, pending = Pending, reader = Reader}, #h2{streams = Streams, now = Now} = S) ->
    S1 = case Pending of {_, _, From} -> reply(From, {error, closed}, S); none -> S end,
    S2 = case Reader of {once, Waiting} -> reply(Waiting, {error, closed}, S1); _ -> S1 end,
    credit(byte_size(Buffer), S2#h2{streams = maps:remove(Id, Streams), idle_since = Now}).

%% ---- from the processes of the streams

%% @doc Sends the head of a response. `Fin' means that the response has no body.
-spec head(id(), [yucan_hpack:field()], Fin :: boolean(), state()) -> state().
head(Id, Fields, Fin, #h2{streams = Streams, encoder = Encoder, max_frame = Max} = S) ->
    case Streams of
        #{Id := Stream} ->
            {Block, Encoder1} = yucan_hpack:encode(Fields, Encoder),
            S1 = out(yucan_h2_frame:headers(Id, Fin, Block, min(Max, ?TURN_BYTES)), S#h2{encoder = Encoder1}),
            case Fin of
                true -> answered(Id, Stream, S1);
                false -> S1
            end;
        _ -> S
    end.

%% @doc Sends a part of a body; `Fin' marks the last part. `From' receives `ok' once all of it has been sent, or otherwise an error.
-spec data(id(), iodata(), Fin :: boolean(), none | from(), state()) -> state().
data(Id, Data, Fin, From, #h2{streams = Streams, send_window = Window, max_frame = Max, now = Now} = S) ->
    Size = iolist_size(Data),
    case Streams of
        #{Id := #stream{send_window = Own, pending = none} = Stream} when Size =< Own, Size =< Window, Size =< Max, Size =< ?TURN_BYTES ->
            sent(Id, Data, Size, Fin, From, Stream, S);
        %% Empty data needs no window space (6.9.1), even if the window is negative.
        #{Id := #stream{pending = none} = Stream} when Size =:= 0 -> sent(Id, Data, 0, Fin, From, Stream, S);
        #{Id := #stream{pending = none} = Stream} ->
            ready(Id, Stream#stream{pending = {iolist_to_binary(Data), Fin, From}, since = Now}, S);
        _ -> reply(From, {error, closed}, S)
    end.

sent(_, _, 0, false, From, _, S) -> reply(From, ok, S);
sent(Id, Data, Size, Fin, From, #stream{send_window = Own} = Stream, #h2{send_window = Window} = S) ->
    S1 = reply(From, ok, out(yucan_h2_frame:data(Id, Fin, Data), S#h2{send_window = Window - Size})),
    Stream1 = Stream#stream{send_window = Own - Size, pending = none},
    case Fin of
        true -> answered(Id, Stream1, S1);
        false -> put_stream(Id, Stream1, S1)
    end.

%% The response has been sent. If the client is still sending, it is told to stop (8.1).
answered(Id, #stream{receiving = Receiving} = Stream, #h2{tokens = Tokens} = S) ->
    S1 = removed(Id, Stream, S#h2{tokens = min(?TOKENS, Tokens + ?TOKENS_PER_ANSWER)}),
    case Receiving of
        true -> out(yucan_h2_frame:reset(Id, no_error), remember(Id, S1));
        false -> S1
    end.

%% @doc Sends as much pending data as is allowed by the windows and by the maximum size of a single write.
-spec pump(state()) -> state().
pump(#h2{send_window = Window, out_bytes = Bytes, ready = Ready} = S) when Bytes < ?SEND_BYTES, Window > 0 ->
    case queue:out(Ready) of
        {{value, Id}, Rest} -> pump(turn(Id, S#h2{ready = Rest}));
        {empty, _} -> S
    end;
pump(S) -> S.

turn(Id, #h2{streams = Streams, send_window = Window, max_frame = Max, now = Now} = S) ->
    case Streams of
        #{Id := #stream{pending = {Data, Fin, From}, send_window = Own} = Queued} ->
            Stream = Queued#stream{queued = false},
            case lists:min([Own, Window, Max, ?TURN_BYTES]) of
                Room when byte_size(Data) =< Room -> sent(Id, Data, byte_size(Data), Fin, From, Stream, S);
                %% The stream is queued again when its window opens.
                Room when Room =< 0 -> put_stream(Id, Stream, S);
                Room ->
                    <<Part:Room/binary, Rest/binary>> = Data,
                    Stream1 = Stream#stream{send_window = Own - Room, pending = {Rest, Fin, From}, since = Now},
                    ready(Id, Stream1, out(yucan_h2_frame:data(Id, false, Part), S#h2{send_window = Window - Room}))
            end;
        _ -> S
    end.

%% @doc Serves a read by the handler, which receives `{ok, Data}', `{eof, Trailers}' or an error.
-spec read(id(), from(), state()) -> state().
read(Id, From, #h2{streams = Streams} = S) ->
    case Streams of
        #{Id := Stream} -> give(Id, Stream#stream{reader = {once, From}}, S);
        _ -> reply(From, {error, closed}, S)
    end.

%% @doc Allows the given number of messages to be delivered to the handler; 0 stops delivery.
-spec active(id(), Count :: non_neg_integer(), state()) -> state().
active(Id, Count, #h2{streams = Streams, pids = Pids} = S) ->
    case Streams of
        #{Id := Stream} when Count =:= 0 -> put_stream(Id, Stream#stream{reader = none}, S);
        #{Id := #stream{pid = Pid} = Stream} -> give(Id, Stream#stream{reader = {active, Count}}, S#h2{pids = Pids#{Pid := {active, Id}}});
        _ -> lists:foldl(fun(Pid, Acc) -> effect({tell, Pid, {yucan_h2, Id, closed}}, Acc) end, S, [Pid || {Pid, {_, I}} <- maps:to_list(Pids), I =:= Id])
    end.

%% @doc Handles the exit of a stream's process. `Failed' means that it exited without a response.
-spec exited(pid(), Failed :: boolean(), state()) -> state().
exited(Pid, Failed, #h2{pids = Pids, streams = Streams, now = Now} = S) ->
    case maps:take(Pid, Pids) of
        {{_, Id}, Left} ->
            S1 = S#h2{pids = Left, idle_since = Now},
            case Streams of
                %% The end of the response is still waiting for window space.
                #{Id := #stream{pending = {_, true, _}} = Stream} when not Failed -> give(Id, Stream#stream{pid = none, reader = none}, S1);
                #{Id := Stream} -> reset(Id, internal_error, put_stream(Id, Stream#stream{pid = none}, S1));
                _ -> S1
            end;
        error -> S
    end.

%% @doc Stops accepting streams. Those in progress are still answered.
-spec drain(state()) -> state().
drain(#h2{goaway = none, last = Last} = S) -> out(yucan_h2_frame:goaway(Last, no_error), S#h2{goaway = Last});
drain(S) -> S.
