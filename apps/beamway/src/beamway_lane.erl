%% SPDX-License-Identifier: Apache-2.0
%% @doc A lane: one ordered link of frames to one peer, over shared memory, rdma or TCP, apart from the distribution.
%%
%% A lane is a port. It is linked to the process that owns it and ends with it; `monitor(port, Lane)' works. Any process may
%% send; the owner gets what comes:
%% <dl>
%% <dt>`{Lane, {data, Binary}}'</dt><dd>a frame</dd>
%% <dt>`{Lane, {data, [Mark, N3, N2, N1, N0 | Binary]}}'</dt><dd>a binary that came in parts, with the option `parts'</dd>
%% <dt>`{Lane, passive}'</dt><dd>once, behind the frame that used up the credit: nothing comes until {@link credit/3}</dd>
%% <dt>`{Lane, flush}', `{Lane, look}'</dt><dd>only after {@link attend/2}: call {@link flush/1}, or {@link look/1}</dd>
%% <dt>`{Lane, writable}'</dt><dd>to whoever asked by {@link tell_when_writable/1}</dd>
%% <dt>`{Lane, closed, Reason, Unreleased}'</dt><dd>the last message; the port then ends with the reason `normal'. It comes
%% behind every frame that had arrived, so frames that wait for credit hold it up</dd>
%% </dl>
%% `Reason' is {@link reason()}, `Unreleased' the number of bytes ({@link frame_bytes/1}) of what was sent that the peer's driver
%% is not known to have given to its owner. They are the newest: of the frames from the newest back to that sum nobody knows, all
%% older ones have arrived in the other owner's mailbox. Over shm the figure is exact, over rdma it may be higher than the truth; over
%% TCP it is lower: there it counts only what the peer's system has not acknowledged, and only acknowledgements of the
%% owners' own say more.
%%
%% A lane encrypts nothing, and knows nothing of the node's distribution: its owner decides which kinds are allowed (`kinds'). The option
%% `rdma_plaintext' of the carrier does not hold here.
%%
%% Memory: a lane holds at most its ring and one frame in each direction, besides what TCP's buffers in the kernel take.
%%
%% Works on any node: the application `beamway' must be started, and {@link agree/3} does so; the distribution may be another one.
-module(beamway_lane).

-export([agree/3, send/2, send_wait/2, tell_when_writable/1, credit/3, close/1, give/2, attend/2, flush/1, look/1, stats/1, frame_bytes/1]).
-export_type([lane/0, options/0, info/0, reason/0, stats/0]).

-define(AGREE_MS, 7000).
-define(RING_BYTES, 1048576).
-define(FRAME_MAX_BYTES, 16#7fffffff).

-type lane() :: port().

-type options() :: #{kinds => [beamway_kind:kind(), ...],
                     ring_bytes => pos_integer(),
                     max_frame_bytes => pos_integer(),
                     parts => none | {Mark :: 1..255, MaxBytes :: pos_integer()},
                     deadline => integer()}.
%% `kinds': what may become of it; by default what the node's option `links' allows, and TCP. `ring_bytes': each way, a power of
%% two from 65536 to 1073741824 (1048576); the smaller of both sides counts for shm and rdma. `max_frame_bytes': a peer that
%% announces a larger frame ends the lane (2147483647). `parts': frames that begin with `<<Mark, Number:32, Size:64>>' are parts of a binary of
%% that size (at most `MaxBytes'), in order, and the owner gets it when it is whole, with its number; it was put together while it arrived, without
%% another copy. Parts of up to 64 binaries may be mixed with each other and with ordinary frames; a frame that holds all of one is ordinary.
%% Parts use no credit until the binary is whole, and are no longer counted in `Unreleased' (none). `deadline': of erlang:monotonic_time(millisecond) (in 7 s).

-type info() :: #{kind := beamway_kind:kind(), reason := binary(), ring_bytes := pos_integer()}.
%% `reason' says why it is this kind.

-type reason() :: closed | connection_closed | local_close | beamway_link_corrupt | beamway_frame_too_large | atom().
%% `closed': the peer's owner has closed the lane, and everything that it sent has been delivered. `connection_closed': the peer is
%% gone without a word. `local_close': our own {@link close/1}. The rest names what failed.

-type stats() :: #{atom() => integer()}.
%% Those of {@link beamway_port:stats/1}, and `credit_frames', `credit_bytes' (below 0: a debt), `unreleased_bytes', which over rdma may stay at up to a
%% quarter of the ring: the peer tells of what it has taken in such steps, or with what it sends.

%% @doc Makes a lane of an authenticated connection. Both sides call it at the same time, one as `caller', one as `acceptor'; they
%% end on the best kind that both allow and can have.
%%
%% The calling process owns the socket, which is passive, binary and without packets (`{packet, raw}'): whatever was read
%% from it was read by its exact length, so that nothing is left in the runtime's buffer. The socket is closed when this
%% returns; what it was connected to lives on in the lane. The calling process is the lane's owner.
-spec agree(gen_tcp:socket(), Role :: caller | acceptor, options()) -> {ok, lane(), info()} | {error, Reason :: binary()}.
agree(Socket, Role, Options) when Role =:= caller; Role =:= acceptor ->
    Checked = checked(Options),
    ok = check_socket(Socket),
    try
        agreed(Socket, Role, Checked)
    after
        gen_tcp:close(Socket)
    end.

agreed(Socket, Role, Options) ->
    case ensure_driver() of
        ok ->
            Stream = {beamway_stream_exact, Socket},
            Ours = allowed(beamway_links:extension(tcp), Options),
            case hello(Stream, Ours, Options) of
                {ok, Theirs} -> best(Ours, Theirs, side(Role), Stream, Options);
                {error, Reason} -> {error, text(Reason)}
            end;
        {error, Reason} ->
            {error, Reason}
    end.

side(caller) -> connecting;
side(acceptor) -> accepting.

ensure_driver() ->
    case whereis(beamway_links) =/= undefined orelse application:ensure_all_started(beamway) of
        {error, Reason} -> {error, text(Reason)};
        _ -> beamway_driver:loaded()
    end.

allowed(#{links := Links} = Extension, #{kinds := Kinds}) ->
    Extension#{links := [Kind || Kind <- Links, lists:member(Kind, Kinds)]}.

%% Each says what it can have, and hears it of the other.
hello(Stream, Ours, #{deadline := Deadline}) ->
    case beamway_stream:send(Stream, beamway_wire:encode_extension(Ours)) of
        ok ->
            case beamway_stream:recv(Stream, max(0, Deadline - erlang:monotonic_time(millisecond))) of
                {ok, Bytes} -> {ok, beamway_wire:decode_extension(Bytes)};
                {error, Reason} -> {error, Reason}
            end;
        {error, Reason} ->
            {error, Reason}
    end.

%% Both sides take the same steps: a kind that failed is off for both.
best(_Ours, none, _Side, _Stream, _Options) ->
    {error, <<"the peer does not speak of lanes">>};
best(Ours, Theirs, Side, Stream, Options) ->
    case beamway_choice:choose(Ours, Theirs) of
        {stream, Reason} -> over_tcp(Reason, Stream, Options);
        Kind -> over_ring(Kind, Ours, Theirs, Side, Stream, Options)
    end.

over_ring(Kind, Ours, Theirs, Side, Stream, #{deadline := Deadline, ring_bytes := RingBytes} = Options) ->
    Granted = beamway_links:reserve(Kind, RingBytes),
    case beamway_agreement:negotiate(Kind, Side, Stream, Deadline, beamway_links:config(), Granted) of
        {ring, Port, Why} ->
            ok = beamway_links:assign(Port),
            opened(Kind, Port, guard(Stream), Why, Options);
        {stream, Reason} ->
            ok = beamway_links:release(),
            case best(without(Kind, Ours), without_theirs(Kind, Theirs), Side, Stream, Options) of
                {ok, Lane, #{kind := tcp} = Info} -> {ok, Lane, Info#{reason := Reason}};
                Other -> Other
            end;
        {error, Reason} ->
            ok = beamway_links:release(),
            {error, text(Reason)}
    end.

without(Kind, #{links := Links} = Extension) -> Extension#{links := lists:delete(Kind, Links)}.

without_theirs(Kind, {ok, Theirs}) -> {ok, without(Kind, Theirs)};
without_theirs(_Kind, Other) -> Other.

over_tcp(Reason, Stream, #{kinds := Kinds, ring_bytes := RingBytes} = Options) ->
    case lists:member(tcp, Kinds) andalso beamway_links:reserve(tcp, RingBytes) of
        {ok, Bytes} ->
            case adopted(guard(Stream), Bytes) of
                {ok, Port, _Device} -> ok = beamway_links:assign(Port), opened(tcp, Port, none, Reason, Options);
                {error, Failed} -> ok = beamway_links:release(), {error, Failed}
            end;
        {error, Failed} ->
            {error, Failed};
        false ->
            {error, Reason}
    end.

%% The port has a descriptor of its own for the connection.
adopted({ok, Socket}, RingBytes) -> beamway_establish:connect(tcp, <<Socket:32>>, <<0:128>>, RingBytes, 1);
adopted({error, Closed}, _RingBytes) -> {error, text(Closed)}.

%% The socket as the driver knows it. A silent connection is kept alive by the kernel, as beside the distribution's rings.
guard({_, Socket}) ->
    _ = inet:setopts(Socket, beamway_watchdog:socket_options()),
    inet:getfd(Socket).

opened(Kind, Port, none, Reason, Options) ->
    open(Kind, Port, none, Reason, Options);
opened(Kind, Port, {ok, Guard}, Reason, Options) ->
    open(Kind, Port, Guard, Reason, Options);
opened(_Kind, Port, {error, Reason}, _Why, _Options) ->
    ok = beamway_port:close(Port),
    {error, text(Reason)}.

open(Kind, Port, Guard, Reason, #{max_frame_bytes := Largest, parts := Parts}) ->
    case beamway_port:lane_open(Port, Guard, Largest, Parts) of
        ok ->
            #{ring_bytes := RingBytes} = beamway_port:stats(Port),
            {ok, Port, #{kind => Kind, reason => Reason, ring_bytes => RingBytes}};
        {error, Failed} ->
            ok = beamway_port:close(Port),
            {error, Failed}
    end.

text(Text) when is_binary(Text) -> Text;
text(closed) -> <<"the peer has closed the connection">>;
text(timeout) -> <<"the peer has not answered in time">>;
text(Reason) -> unicode:characters_to_binary(io_lib:format("~0tp", [Reason])).

%% @doc Sends a frame, never waits. `busy': it was not taken; {@link tell_when_writable/1} says when to try again. By any process.
-spec send(lane(), iodata()) -> ok | busy | closed.
send(Lane, Frame) ->
    try is_frame(Frame) andalso erlang:port_command(Lane, Frame, [nosuspend]) of
        true -> ok;
        false -> busy
    catch
        error:badarg -> closed_or_bad(Lane, Frame)
    end.

%% @doc Sends a frame; the calling process is suspended while the lane is busy. The lane's end wakes it.
-spec send_wait(lane(), iodata()) -> ok | closed.
send_wait(Lane, Frame) ->
    try is_frame(Frame) andalso erlang:port_command(Lane, Frame) of
        true -> ok
    catch
        error:badarg -> closed_or_bad(Lane, Frame)
    end.

is_frame(Frame) ->
    iolist_size(Frame) =< ?FRAME_MAX_BYTES orelse error(badarg).

closed_or_bad(Lane, Frame) ->
    case erlang:port_info(Lane, id) of
        undefined -> closed;
        _ -> error({badarg, {no_frame, Frame, "expected iodata of at most 2147483647 bytes"}})
    end.

%% @doc The calling process gets one message `{Lane, writable}' as soon as the lane is not busy, at once if it is not.
-spec tell_when_writable(lane()) -> ok | closed | {error, Reason :: binary()}.
tell_when_writable(Lane) ->
    unless_closed(fun() -> beamway_port:lane_ask(Lane) end).

%% @doc Lets so many more frames and bytes come to the owner. Both count: what comes stops when either is used up. The last frame
%% may be larger than the bytes that were left; that is a debt, which the next credits pay first. So an owner that grants at first
%% what it wants to hold, and later what it has done with, never holds more than that and one frame. A new lane has no credit.
-spec credit(lane(), Frames :: non_neg_integer(), Bytes :: non_neg_integer()) -> ok | closed.
credit(Lane, Frames, Bytes) when is_integer(Frames), Frames >= 0, is_integer(Bytes), Bytes >= 0 ->
    Most = 1 bsl 62,
    unless_closed(fun() -> beamway_port:lane_credit(Lane, min(Frames, Most), min(Bytes, Most)) end).

%% @doc Ends the lane in order: what was sent goes out first, for at most a second; what comes is thrown away. The owner gets the last
%% message with the reason `local_close'; `Unreleased' is 0 if the peer has taken everything.
-spec close(lane()) -> ok.
close(Lane) ->
    _ = unless_closed(fun() -> beamway_port:lane_close(Lane) end),
    ok.

%% @doc Makes another process the owner. Messages that the old one has got already stay with it: best done before the first credit.
-spec give(lane(), pid()) -> ok | closed.
give(Lane, Pid) when Pid =:= self() ->
    unless_closed(fun() -> erlang:port_connect(Lane, Pid), ok end);
give(Lane, Pid) ->
    unless_closed(fun() -> erlang:port_connect(Lane, Pid), unlink(Lane), ok end).

%% @doc The owner attends to the lane from now on, before its first credit.
%%
%% Over TCP a frame goes at once if nothing was sent just before. What is sent while those bytes are under way gathers, and the owner gets `{Lane, flush}'. It
%% calls {@link flush/1}, and all of it goes by one system call; without the call it goes after 1 ms, or when 64 KB have gathered.
%%
%% With `Looks' the owner gets `{Lane, look}' when a frame is expected soon, as between two calls of a lone caller. It calls {@link look/1}
%% until the lane may sleep. That is at most the node's option `poll_us' after the last frame. Not for an owner of high priority: it would keep others from the scheduler.
-spec attend(lane(), Looks :: boolean()) -> ok | closed.
attend(Lane, Looks) ->
    PollUs = case Looks of true -> maps:get(poll_us, beamway_links:config()); false -> 0 end,
    unless_closed(fun() -> beamway_port:lane_attend(Lane, PollUs) end).

%% @doc The answer to `{Lane, flush}'.
-spec flush(lane()) -> ok | closed.
flush(Lane) ->
    unless_closed(fun() -> beamway_port:flush(Lane) end).

%% @doc The answer to `{Lane, look}'. `again': look again, after others have had a turn; `asleep': wait for the next `{Lane, look}'.
-spec look(lane()) -> again | asleep | closed.
look(Lane) ->
    unless_closed(fun() -> beamway_port:look(Lane) end).

%% @doc Counters and levels of the lane.
-spec stats(lane()) -> stats() | closed.
stats(Lane) ->
    unless_closed(fun() -> beamway_port:lane_stats(Lane) end).

%% @doc What a frame of so many bytes takes in the ring, and in `Unreleased'.
-spec frame_bytes(Size :: non_neg_integer()) -> pos_integer().
frame_bytes(Size) ->
    (Size + 15) div 8 * 8.

unless_closed(Use) ->
    try
        Use()
    catch
        error:badarg -> closed
    end.

%% ---- what a caller may get wrong ----

-spec checked(options()) -> #{kinds := [beamway_kind:kind()], ring_bytes := pos_integer(), max_frame_bytes := pos_integer(),
                              parts := none | {Mark :: 1..255, MaxBytes :: pos_integer()}, deadline := integer()}.
checked(Options) when is_map(Options) ->
    Defaults = #{kinds => beamway_kind:all(), ring_bytes => ?RING_BYTES, max_frame_bytes => ?FRAME_MAX_BYTES, parts => none,
                 deadline => erlang:monotonic_time(millisecond) + ?AGREE_MS},
    maps:foreach(fun check/2, Options),
    maps:merge(Defaults, Options).

check(kinds, [_ | _] = Kinds) ->
    lists:usort(Kinds) -- beamway_kind:all() =:= [] orelse bad(kinds, Kinds, "a list of " ++ beamway_kind:words());
check(ring_bytes, Bytes) when is_integer(Bytes), Bytes >= 65536, Bytes =< 1073741824, Bytes band (Bytes - 1) =:= 0 ->
    true;
check(ring_bytes, Bytes) ->
    bad(ring_bytes, Bytes, "a power of two from 65536 to 1073741824");
check(max_frame_bytes, Bytes) when is_integer(Bytes), Bytes > 0, Bytes =< ?FRAME_MAX_BYTES ->
    true;
check(max_frame_bytes, Bytes) ->
    bad(max_frame_bytes, Bytes, "a number of bytes from 1 to 2147483647");
check(parts, none) ->
    true;
check(parts, {Mark, Bytes}) when is_integer(Mark), Mark > 0, Mark < 256, is_integer(Bytes), Bytes > 0, Bytes =< ?FRAME_MAX_BYTES ->
    true;
check(parts, Parts) ->
    bad(parts, Parts, "none or {Mark, MaxBytes}, a number from 1 to 255 and one from 1 to 2147483647");
check(deadline, At) when is_integer(At) ->
    true;
check(deadline, At) ->
    bad(deadline, At, "a time of erlang:monotonic_time(millisecond)");
check(Name, Value) ->
    bad(Name, Value, "one of kinds, ring_bytes, max_frame_bytes, parts, deadline").

-spec bad(atom(), term(), string()) -> no_return().
bad(Name, Value, Expected) ->
    error({badarg, {Name, Value, "expected " ++ Expected}}).

check_socket(Socket) when is_port(Socket) ->
    case inet:getopts(Socket, [active, mode, packet]) of
        {ok, [{active, false}, {mode, binary}, {packet, Raw}]} when Raw =:= 0; Raw =:= raw -> ok;
        {ok, Options} -> bad(socket, Options, "a passive binary socket with {packet, raw}");
        {error, _} -> ok % closed meanwhile: the agreement says so
    end;
check_socket(Socket) ->
    bad(socket, Socket, "a socket of gen_tcp's inet backend").
