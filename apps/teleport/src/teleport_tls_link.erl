%% SPDX-License-Identifier: Apache-2.0
%% @doc A TLS connection as the link of a lane: one process reads and owns the socket, another one writes.
%%
%% Two processes, since `ssl:send' waits when the peer does not read, and a lane must go on reading then. Bytes that the writer
%% has not sent are counted, so that senders are told `busy' in time. Both are linked to the owner, and to each other: none outlives the others.
-module(teleport_tls_link).

-export([start/2, send/2, tell_when_writable/1, credit/3, close/1, tag/1]).
-export([message/2, silence/1]).
-export_type([tls_link/0]).

-type reader() :: {reader, Owner :: pid(), ssl:sslsocket(), credit()}.
-type writer() :: {writer, ssl:sslsocket(), Unsent :: atomics:atomics_ref(), Waiting :: [{pid(), pid()}]}.
-type credit() :: {Frames :: non_neg_integer(), Bytes :: integer()}.
%% As of {@link beamway_lane:credit/3}: both count, and the last frame may be larger than the bytes that were left.
-opaque tls_link() :: {tls_link, Reader :: pid(), Writer :: pid(), Unsent :: atomics:atomics_ref()}.

-define(BUSY_BYTES, 1048576).
-define(CLOSE_MS, 1000).

%% @doc Takes the socket over; the caller is the owner. The socket speaks in frames before anybody can send: a frame that went out without its
%% length would end the connection.
-spec start(ssl:sslsocket(), MaxFrameBytes :: pos_integer()) -> {ok, tls_link()} | {error, Reason :: binary()}.
start(Socket, MaxFrameBytes) ->
    case ssl:setopts(Socket, [{packet, 4}, {packet_size, MaxFrameBytes}, {mode, binary}]) of
        ok -> started(Socket);
        {error, Reason} -> failed(Reason)
    end.

started(Socket) ->
    Owner = self(),
    Unsent = atomics:new(1, [{signed, true}]),
    Reader = spawn_link(fun() -> begin_reading(Owner, Socket) end),
    case ssl:controlling_process(Socket, Reader) of
        ok ->
            Reader ! {Owner, go},
            {ok, {tls_link, Reader, spawn_link(fun() -> true = link(Reader), wait({writer, Socket, Unsent, []}) end), Unsent}};
        {error, Reason} ->
            exit(Reader, kill),
            failed(Reason)
    end.

failed(Reason) -> {error, iolist_to_binary(io_lib:format("TLS: ~0tp", [Reason]))}.

%% No timeout: it is linked to its owner.
begin_reading(Owner, Socket) ->
    receive {Owner, go} -> wait({reader, Owner, Socket, {0, 0}}) end.

%% Between two messages both stand in {@link teleport_wait}: new code of this module ends no lane.
wait(State) -> teleport_wait:message(?MODULE, State, infinity).

%% @private
-spec message(term(), reader() | writer()) -> term().
message(Message, {reader, Owner, Socket, Credit} = State) -> reader(Message, Owner, Socket, Credit, State);
message(Message, {writer, Socket, Unsent, Waiting} = State) -> writer(Message, Socket, Unsent, Waiting, State).

%% @private Never comes, since they wait without a limit: both are linked to the owner.
-spec silence(reader() | writer()) -> term().
silence(State) -> wait(State).

%% Asks the socket for one frame at a time, as long as there is credit.
reader({credit, MoreFrames, MoreBytes}, Owner, Socket, {Frames, Bytes}, _) ->
    More = {Frames + MoreFrames, Bytes + MoreBytes},
    case Frames > 0 andalso Bytes > 0 of
        true -> wait({reader, Owner, Socket, More});
        false -> read(Owner, Socket, More)
    end;
reader({ssl, Socket, Frame}, Owner, Socket, {Frames, Bytes}, _) ->
    Owner ! {self(), {data, Frame}},
    read(Owner, Socket, {Frames - 1, Bytes - byte_size(Frame)});
reader({ssl_closed, Socket}, Owner, Socket, _, _) -> Owner ! {self(), closed, connection_closed, 0}, ok;
reader({ssl_error, Socket, _}, Owner, Socket, _, _) -> Owner ! {self(), closed, connection_closed, 0}, ok;
reader(close, Owner, Socket, _, _) -> _ = ssl:close(Socket), Owner ! {self(), closed, local_close, 0}, ok;
reader(_, _, _, _, State) -> wait(State).

read(Owner, Socket, {Frames, Bytes} = Credit) ->
    case Frames > 0 andalso Bytes > 0 andalso ssl:setopts(Socket, [{active, once}]) of
        {error, _} -> Owner ! {self(), closed, connection_closed, 0}, ok;
        _ -> wait({reader, Owner, Socket, Credit})
    end.

writer({send, Frame, Bytes}, Socket, Unsent, Waiting, State) ->
    case ssl:send(Socket, Frame) of
        ok -> told(Socket, Unsent, Waiting, atomics:sub_get(Unsent, 1, Bytes));
        %% The reader hears of it, too, and tells.
        {error, _} -> wait(State)
    end;
writer({tell, Who, Tag}, Socket, Unsent, Waiting, _) -> told(Socket, Unsent, [{Who, Tag} | Waiting], atomics:get(Unsent, 1));
writer({close, Reader}, _, _, _, _) -> Reader ! close, ok;
writer(_, _, _, _, State) -> wait(State).

told(Socket, Unsent, Waiting, Left) when Waiting =/= [], Left < ?BUSY_BYTES div 2 ->
    _ = [Who ! {Tag, writable} || {Who, Tag} <- Waiting],
    wait({writer, Socket, Unsent, []});
told(Socket, Unsent, Waiting, _) ->
    wait({writer, Socket, Unsent, Waiting}).

%% @doc As {@link teleport_link:send/2}.
-spec send(tls_link(), iodata()) -> ok | busy | closed.
send({tls_link, _, Writer, Unsent}, Frame) ->
    case atomics:get(Unsent, 1) >= ?BUSY_BYTES of
        true -> busy;
        false ->
            Bytes = iolist_size(Frame),
            ok = atomics:add(Unsent, 1, Bytes),
            Writer ! {send, Frame, Bytes},
            case is_process_alive(Writer) of true -> ok; false -> closed end
    end.

%% @doc As {@link teleport_link:tell_when_writable/1}.
-spec tell_when_writable(tls_link()) -> ok.
tell_when_writable({tls_link, Reader, Writer, _}) ->
    Writer ! {tell, self(), Reader},
    ok.

%% @doc So many frames and bytes more may come.
-spec credit(tls_link(), Frames :: non_neg_integer(), Bytes :: non_neg_integer()) -> ok.
credit({tls_link, Reader, _, _}, Frames, Bytes) ->
    Reader ! {credit, Frames, Bytes},
    ok.

%% @doc By the owner: sends what was taken, then closes. Returns when that is done, after a second if the peer does not read.
-spec close(tls_link()) -> ok.
close({tls_link, Reader, Writer, _}) ->
    Writer ! {close, Reader},
    receive {Reader, closed, _, _} -> ok after ?CLOSE_MS -> ok end.

%% @doc What the owner's messages begin with.
-spec tag(tls_link()) -> pid().
tag({tls_link, Reader, _, _}) -> Reader.
