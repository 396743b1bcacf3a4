%% SPDX-License-Identifier: Apache-2.0
%% @doc The commands of the port driver as functions; native/driver/beamway_drv.c is the other side.
%%
%% A port is one link to one peer: a controller for the distribution, or a lane ({@link beamway_lane}). It belongs to the connection process that opened it and is linked
%% to it. Every function may be called by any process and ends at once: nothing here waits for a
%% peer. A dead port gives `badarg', as with any port.
-module(beamway_port).

-export([load/0, open/0, opened/1, close/1, with_port/1, open_door/2, join/3, accept/2, activate/2, tick/1, stats/1,
         receive_some/1, look/1, probe/1, rdma_load/1, rdma_listen/4, rdma_connect/6, rdma_status/1]).
-export([lane_adopt/3, lane_open/4, lane_credit/3, lane_ask/1, lane_close/1, lane_stats/1]).
-export_type([stats/0, rdma_status/0]).

-define(DRIVER, "beamway_drv").
-define(ABI_VERSION, 5).
%% A file system or the loading of a library may take so long.
-define(LATER_MS, 5000).

-define(VERSION, 1).
-define(OPEN_DOOR, 2).
-define(JOIN, 3).
-define(ACCEPT, 4).
-define(ACTIVATE, 5).
-define(TICK, 6).
-define(STATS, 7).
-define(RECEIVE, 8).
-define(PROBE, 9).
-define(LOOK, 10).
-define(RDMA_LOAD, 20).
-define(RDMA_LISTEN, 21).
-define(RDMA_CONNECT, 22).
-define(RDMA_STATUS, 23).
-define(LANE_ADOPT, 30).
-define(LANE_OPEN, 31).
-define(LANE_CREDIT, 32).
-define(LANE_ASK, 33).
-define(LANE_CLOSE, 34).
-define(LANE_STATS, 35).

-type stats() :: #{bytes_in | bytes_out | frames_in | frames_out | doorbells_in | doorbells_out
                   | stalls | ring_bytes | ring_fill_in | ring_fill_out | wakeups | queue_bytes
                   | busy := non_neg_integer()}.
%% Bytes include frame headers and frames include ticks. `doorbells_in' and `doorbells_out' are the
%% system calls made for this link. `stalls': how often the ring was full. `busy' is 1 while the VM
%% has been told to wait.

-type rdma_status() :: working
                     | {listening, CmPort :: inet:port_number(), Token :: <<_:128>>, Device :: binary()}
                     | {linked, Device :: binary()}
                     | {failed, Reason :: binary()}.
%% `listening': where the peer may come to, with the secret that it must know; of which device, or "" for any.

%% @doc Loads the driver file and checks that it is of our version. The driver stays loaded as long
%% as the calling process lives.
-spec load() -> ok | {error, Reason :: binary()}.
load() ->
    case priv_dir() of
        {ok, Dir} -> load(Dir);
        {error, Reason} -> {error, Reason}
    end.

load(Dir) ->
    case erl_ddll:load_driver(Dir, ?DRIVER) of
        ok -> check_version();
        {error, Reason} -> error_text("cannot load ~ts: ~ts (build it with 'make build')",
                                      [filename:join(Dir, ?DRIVER ++ ".so"),
                                       erl_ddll:format_error(Reason)])
    end.

%% The application may be in the code path under any directory name.
priv_dir() ->
    case code:priv_dir(beamway) of
        Dir when is_list(Dir) ->
            {ok, Dir};
        {error, bad_name} ->
            case code:which(?MODULE) of
                File when is_list(File) ->
                    {ok, filename:join(filename:dirname(filename:dirname(File)), "priv")};
                _ ->
                    {error, <<"the directory of the application beamway is not known">>}
            end
    end.

check_version() ->
    with_port(fun(Port) ->
                      case command(Port, ?VERSION, <<>>) of
                          {ok, <<?ABI_VERSION:32>>} -> ok;
                          {ok, <<Other:32>>} ->
                              error_text("the driver has version ~b, the Erlang code ~b: build both "
                                         "from one source", [Other, ?ABI_VERSION])
                      end
              end).

%% @doc Uses a port without a link, and closes it whatever happens. The driver must be loaded.
-spec with_port(fun((port()) -> Result)) -> Result | {error, Reason :: binary()}.
with_port(Use) ->
    case open() of
        {ok, Port} -> try Use(Port) after close(Port) end;
        {error, Reason} -> {error, Reason}
    end.

error_text(Format, Args) ->
    {error, unicode:characters_to_binary(io_lib:format(Format, Args))}.

%% @doc Opens a port without a link. The driver must be loaded.
-spec open() -> {ok, port()} | {error, Reason :: binary()}.
open() ->
    try
        {ok, erlang:open_port({spawn_driver, ?DRIVER}, [binary])}
    catch
        error:Reason -> error_text("cannot open a port of the driver: ~0tp", [Reason])
    end.

%% @doc A new port and what `Use' makes of it; closed again if it cannot be used.
-spec opened(fun((port()) -> {ok, Result} | {error, Reason :: binary()})) ->
          {ok, port(), Result} | {error, Reason :: binary()}.
opened(Use) ->
    case open() of
        {ok, Port} ->
            case Use(Port) of
                {ok, Result} ->
                    {ok, Port, Result};
                {error, Reason} ->
                    close(Port),
                    {error, Reason}
            end;
        {error, Reason} ->
            {error, Reason}
    end.

%% @doc Closes the port and its link, also if it is closed already. The caller must be its owner.
-spec close(port()) -> ok.
close(Port) ->
    unlink(Port),
    try erlang:port_close(Port) of
        true -> ok
    catch
        error:badarg -> ok
    end.

%% @doc Opens a door for the peer to join at. `Dir' is a directory for its socket, or "" for an
%% abstract name.
-spec open_door(port(), Dir :: file:filename()) ->
          {ok, {Token :: <<_:128>>, Address :: binary()}} | {error, Reason :: binary()}.
open_door(Port, Dir) ->
    case command(Port, ?OPEN_DOOR, unicode:characters_to_binary(Dir)) of
        {ok, <<Token:16/binary, Address/binary>>} -> {ok, {Token, Address}};
        {error, Reason} -> {error, Reason}
    end.

%% @doc Makes rings of `RingBytes' each way and brings them to the peer's door.
-spec join(port(), RingBytes :: pos_integer(), beamway_wire:offer()) ->
          {ok, joined} | {error, Reason :: binary()}.
join(Port, RingBytes, #{token := Token, address := Address}) ->
    case command(Port, ?JOIN, <<RingBytes:64, Token:16/binary, Address/binary>>) of
        {ok, _} -> {ok, joined};
        {error, Reason} -> {error, Reason}
    end.

%% @doc Takes what the peer has brought to our door, and closes the door.
-spec accept(port(), MaxRingBytes :: pos_integer()) -> ok | {error, Reason :: binary()}.
accept(Port, MaxRingBytes) ->
    done(command(Port, ?ACCEPT, <<MaxRingBytes:64>>)).

%% @doc Begins to read the link. Only when the port is a distribution controller: frames before that
%% would come as messages. With `PollUs' above 0 the caller gets the message `look' when it shall
%% call {@link look/1}.
-spec activate(port(), PollUs :: non_neg_integer()) -> ok.
activate(Port, PollUs) ->
    ok = done(command(Port, ?ACTIVATE, <<PollUs:64>>)).

%% @doc Sends a sign of life unless other bytes are on their way.
-spec tick(port()) -> ok.
tick(Port) ->
    ok = done(command(Port, ?TICK, <<>>)).

%% @doc Reads a bounded amount from the link now. `finished' if everything has been read and the peer
%% will never write again; else how many bytes have been read since the link was made.
-spec receive_some(port()) -> finished | {read, Bytes :: non_neg_integer()}.
receive_some(Port) ->
    case command(Port, ?RECEIVE, <<>>) of
        {ok, <<1, _:64>>} -> finished;
        {ok, <<0, Read:64>>} -> {read, Read}
    end.

%% @doc Reads what is there. `again': look again soon; `asleep': wait for the next `look'.
-spec look(port()) -> again | asleep.
look(Port) ->
    case command(Port, ?LOOK, <<>>) of
        {ok, <<1>>} -> again;
        {ok, <<0>>} -> asleep
    end.

%% @doc Counters since the link was made.
-spec stats(port()) -> stats().
stats(Port) ->
    {ok, Numbers} = command(Port, ?STATS, <<>>),
    maps:from_list(lists:zip(stats_names(), [N || <<N:64>> <= Numbers])).

stats_names() ->
    [bytes_in, bytes_out, frames_in, frames_out, doorbells_in, doorbells_out, stalls, ring_bytes,
     ring_fill_in, ring_fill_out, wakeups, queue_bytes, busy].

%% @doc Makes a link inside this process and uses it: `ok' if this host can have shared memory links
%% with rings of that size. The driver must be loaded.
-spec probe(RingBytes :: pos_integer()) -> ok | {error, Reason :: binary()}.
probe(RingBytes) ->
    with_port(fun(Port) -> done(command(Port, ?PROBE, <<RingBytes:64>>)) end).

%% @doc Loads the carrier for RDMA, which nothing else needs: an error where it was not built or its libraries are
%% missing. Comes first on each port that uses the functions below.
-spec rdma_load(port()) -> ok | {error, Reason :: binary()}.
rdma_load(Port) ->
    case priv_dir() of
        {ok, Dir} -> done(command(Port, ?RDMA_LOAD, unicode:characters_to_binary(filename:join(Dir, "beamway_rdma.so"))));
        {error, Reason} -> {error, Reason}
    end.

%% @doc Begins to listen with the connection manager, at a port of the range ({0, 0}: any). From now on the caller gets
%% `{rdma, Port}' whenever {@link rdma_status/1} may have news.
-spec rdma_listen(port(), inet:ip_address(), {inet:port_number(), inet:port_number()}, MaxRingBytes :: pos_integer()) ->
          ok | {error, Reason :: binary()}.
rdma_listen(Port, Ip, {First, Last}, MaxRingBytes) ->
    rdma(Port, ?RDMA_LISTEN, <<(rdma_address(Ip, 0))/binary, First:16, Last:16, MaxRingBytes:64>>).

%% @doc Begins to connect to a peer that listens. News as from {@link rdma_listen/4}.
-spec rdma_connect(port(), inet:ip_address(), inet:port_number(), Token :: <<_:128>>, RingBytes :: pos_integer(),
                   TimeoutMs :: pos_integer()) -> ok | {error, Reason :: binary()}.
rdma_connect(Port, Ip, CmPort, Token, RingBytes, TimeoutMs) ->
    rdma(Port, ?RDMA_CONNECT, <<0:23/unit:8, (rdma_address(Ip, CmPort))/binary, Token:16/binary, RingBytes:64, TimeoutMs:32>>).

rdma(Port, Command, Data) ->
    case rdma_load(Port) of
        ok -> done(command(Port, Command, Data));
        {error, Reason} -> {error, Reason}
    end.

rdma_address({A, B, C, D}, CmPort) ->
    <<4, A, B, C, D, 0:12/unit:8, 0:32, CmPort:16>>;
rdma_address({A, B, C, D, E, F, G, H}, CmPort) ->
    <<6, A:16, B:16, C:16, D:16, E:16, F:16, G:16, H:16, 0:32, CmPort:16>>.

%% @doc How far the port has come.
-spec rdma_status(port()) -> rdma_status().
rdma_status(Port) ->
    case command(Port, ?RDMA_STATUS, <<>>) of
        {ok, <<0>>} -> working;
        {ok, <<1, CmPort:16, Token:16/binary, _DevicePort, Device/binary>>} -> {listening, CmPort, Token, Device};
        {ok, <<2, _DevicePort, Device/binary>>} -> {linked, Device};
        {ok, <<3, Reason/binary>>} -> {failed, Reason}
    end.

%% @doc The port's link is from now on the connection of a socket, named by its descriptor, with rings of that size. The
%% port has its own descriptor of it: the socket can and must be closed.
-spec lane_adopt(port(), Socket :: non_neg_integer(), RingBytes :: pos_integer()) -> ok | {error, Reason :: binary()}.
lane_adopt(Port, Socket, RingBytes) ->
    done(command(Port, ?LANE_ADOPT, <<Socket:32, RingBytes:64>>)).

%% @doc The port with a link is from now on a lane, without credit. `Guard' is the descriptor of a socket whose end is the
%% peer's end, or `none'; as above it can be closed. `Parts' as in {@link beamway_lane}.
-spec lane_open(port(), Guard :: none | non_neg_integer(), LargestFrame :: pos_integer(), Parts :: none | {Mark :: 1..255, MaxBytes :: pos_integer()}) ->
          ok | {error, Reason :: binary()}.
lane_open(Port, none, Largest, Parts) ->
    lane_open(Port, 0, Largest, Parts);
lane_open(Port, Guard, Largest, none) ->
    done(command(Port, ?LANE_OPEN, <<Guard:32, Largest:32, 0, 0:32>>));
lane_open(Port, Guard, Largest, {Mark, MaxBytes}) ->
    done(command(Port, ?LANE_OPEN, <<Guard:32, Largest:32, Mark, MaxBytes:32>>)).

%% @doc Lets so many more frames and bytes come to the owner.
-spec lane_credit(port(), Frames :: non_neg_integer(), Bytes :: non_neg_integer()) -> ok.
lane_credit(Port, Frames, Bytes) ->
    ok = done(command(Port, ?LANE_CREDIT, <<Frames:64, Bytes:64>>)).

%% @doc The caller gets `{Port, writable}' when the port is not busy.
-spec lane_ask(port()) -> ok | {error, Reason :: binary()}.
lane_ask(Port) ->
    done(command(Port, ?LANE_ASK, <<>>)).

%% @doc Begins to end the lane in order.
-spec lane_close(port()) -> ok.
lane_close(Port) ->
    ok = done(command(Port, ?LANE_CLOSE, <<>>)).

%% @doc What {@link stats/1} says, and what only a lane has.
-spec lane_stats(port()) -> #{atom() => integer()}.
lane_stats(Port) ->
    {ok, <<Frames:64, Bytes:64/signed, Unreleased:64>>} = command(Port, ?LANE_STATS, <<>>),
    maps:merge(stats(Port), #{credit_frames => Frames, credit_bytes => Bytes, unreleased_bytes => Unreleased}).

command(Port, Command, Data) ->
    case erlang:port_control(Port, Command, Data) of
        <<2>> ->
            receive
                {Port, done, Reply} -> result(Reply)
            after
                ?LATER_MS -> error_text("no answer of the file system within ~b ms", [?LATER_MS])
            end;
        Reply ->
            result(Reply)
    end.

result(<<0, Result/binary>>) -> {ok, Result};
result(<<1, Reason/binary>>) -> {error, Reason}.

done({ok, _}) -> ok;
done({error, Reason}) -> {error, Reason}.
