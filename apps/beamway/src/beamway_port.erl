%% SPDX-License-Identifier: Apache-2.0
%% @doc The commands of the port driver as functions; native/driver/beamway_drv.c is the other side.
%%
%% A port is one link to one peer, and serves as a distribution controller. Its owner is the connection process that opened it, and the two are
%% linked. Any process may call the functions, which return immediately and never wait for a peer. A call with a closed port raises `badarg', as for
%% any other port.
-module(beamway_port).

-export([load/0, reload/0, open/0, opened/1, close/1, with_port/1, use/2, listen/3, connect/5, step/1, activate/2, tick/1, stats/1,
         receive_some/1, look/1, packets/2, flush/1, watch/1, answer/3, classes/2, session/3, detach/2, offer/1, attach/4, spread/4, join/4, paths/1, sample_load/4, tell_load/1, load_codec/1, compress/3, probe/2, traffic/1, senders/1,
         say/2, hear/2, leave/1, derive/2, fault/2, socket_fault/3]).
-export_type([stats/0, status/0, listener/0]).

-import(beamway_result, [then/2]).

-define(DRIVER, "beamway_drv").
-define(ABI_VERSION, 19).
%% Accessing the file system or loading a library may take this long.
-define(LATER_MS, 5000).
%% Deriving a key takes 0.3 s of CPU time, and longer if the CPUs are busy.
-define(DERIVE_MS, 60000).

-define(VERSION, 1).
-define(ACTIVATE, 5).
-define(TICK, 6).
-define(STATS, 7).
-define(RECEIVE, 8).
-define(PACKETS, 9).
-define(LOOK, 10).
-define(FLUSH, 11).
-define(WATCH, 12).
-define(ANSWER, 13).
-define(CLASSES, 14).
-define(SESSION, 15).
-define(DETACH, 16).
-define(ATTACH, 17).
-define(OFFER, 19).
-define(USE, 20).
-define(LISTEN, 21).
-define(CONNECT, 22).
-define(STEP, 23).
-define(PROBE, 24).
-define(SAY, 25).
-define(HEAR, 26).
-define(LEAVE, 27).
-define(DERIVE, 28).
-define(TRAFFIC, 29).
-define(LOAD, 30).
-define(TELL_LOAD, 31).
-define(SPREAD, 32).
-define(JOIN, 33).
-define(FAULT, 34).
-define(SOCKET_FAULT, 35).
-define(CODEC, 36).
-define(COMPRESS, 37).

%% This is the same value as in native/driver/establish.h.
-define(HEAR_BYTES, 256).
%% These are the same values as in native/driver/traffic.h and senders.h.
-define(TRAFFIC_SENDERS, 32).
-define(SENDERS_TOLD, 12).

-type stats() :: #{bytes_in | bytes_out | frames_in | frames_out | doorbells_in | doorbells_out
                   | stalls | ring_bytes | ring_fill_in | ring_fill_out | wakeups | queue_bytes
                   | busy | held_senders | losses | kept_bytes | run_delay_us
                   | rtt_us | window_bytes | retransmits | unanswered | ack_ms | kernel_bytes := non_neg_integer(),
                   peer_cpu_percent => 0..100, peer_run_queue => non_neg_integer(), peer_loadavg1 => float(), peer_mem_available => pos_integer(),
                   peer_load_age_ms => non_neg_integer(),
                   uncompressed_out | compressed_out | compress_us | uncompressed_in | compressed_in | decompress_us => non_neg_integer()}.
%% Bytes include frame headers, and frames include ticks. `doorbells_in' and `doorbells_out' are the system calls made for this link. `stalls' counts
%% how often the ring was full. `queue_bytes' is the number of bytes queued for the link. `busy' is 1 while the port has told the VM to wait.
%% `held_senders' is the number of senders that are suspended because each has too much data queued. `losses' counts the connections that the link has
%% lost. `kept_bytes' is the number of bytes that were sent but not acknowledged by the peer. `run_delay_us' is the longest time that the link's own
%% process ({@link beamway_keeper}) waited to be scheduled when the port asked it to send, in the current second and the one before. The last six are
%% the kernel's values for the TCP connection, or 0 for a ring: round-trip time, congestion window, retransmitted segments, how often the same segment
%% was retransmitted without an answer, milliseconds since the peer's kernel last acknowledged anything, and bytes that it has not acknowledged. The
%% keys that begin with `peer_' are what the peer last reported, `peer_load_age_ms' milliseconds ago: the CPU time of its VM as a percentage of what
%% its schedulers could use, the number of processes and ports that were ready to run, and its host's load average over one minute and available
%% memory in bytes. They are missing until the peer has reported them. `uncompressed_out' and `compressed_out' are the sizes in bytes of all
%% compressed packets, before and after compression, and `compress_us' is the CPU time spent on it; the other three are the same for received packets.
%% They are missing until the first compressed packet.

-type listener() :: #{token := <<_:128>>, address := binary(), device := binary(), text := binary()}.
%% The address to which the peer can connect, in the carrier's format, the secret that the peer must know, and the device ("" means any device).
%% `text' explains why no peer has been accepted yet, if the reason is known.

-type status() :: working | {listening, listener()} | {linked, Device :: binary()} | {failed, Reason :: binary()}.

%% @doc Loads the driver file and checks that its version matches this code. The driver stays loaded as long as the calling process lives.
-spec load() -> ok | {error, Reason :: binary()}.
load() -> load(fun erl_ddll:load_driver/2).

%% @doc Like {@link load/0}, but first closes the ports of a driver that the calling process has loaded, and unloads it.
-spec reload() -> ok | {error, Reason :: binary()}.
reload() ->
    load(fun(Dir, Driver) ->
                 case erl_ddll:reload_driver(Dir, Driver) of
                     {error, not_loaded} -> erl_ddll:load_driver(Dir, Driver);
                     Reloaded -> Reloaded
                 end
         end).

load(Load) -> then(priv_dir(), fun(Dir) -> load(Load, Dir) end).

load(Load, Dir) ->
    case Load(Dir, ?DRIVER) of
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

%% @doc Opens a port without a link, calls `Use' on it, and always closes it afterwards. The driver must be loaded.
-spec with_port(fun((port()) -> Result)) -> Result | {error, Reason :: binary()}.
with_port(Use) -> then(open(), fun(Port) -> try Use(Port) after close(Port) end end).

with_kind(Kind, Use) -> with_port(fun(Port) -> then(use(Port, Kind), fun() -> Use(Port) end) end).

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

%% @doc Opens a port and calls `Use' on it. If `Use' fails, the port is closed again.
-spec opened(fun((port()) -> {ok, Result} | {error, Reason :: binary()})) ->
          {ok, port(), Result} | {error, Reason :: binary()}.
opened(Use) ->
    then(open(), fun(Port) ->
                         case Use(Port) of
                             {ok, Result} -> {ok, Port, Result};
                             {error, Reason} -> close(Port), {error, Reason}
                         end
                 end).

%% @doc Closes a port without waiting, together with its link if it is a port of our driver. It may be closed already. The caller must be its owner.
-spec close(port()) -> ok.
close(Port) ->
    unlink(Port),
    try erlang:port_close(Port) of
        true -> ok
    catch
        error:badarg -> ok
    end.

%% @doc Sets the kind of the port's link. On each port, this must be called before any of the functions below. Returns an error if the carrier was not
%% built or its libraries are missing.
-spec use(port(), beamway_kind:driven()) -> ok | {error, Reason :: binary()}.
use(Port, Kind) ->
    then(library(beamway_kind:library(Kind)), fun(File) -> done(command(Port, ?USE, <<(atom_to_binary(Kind))/binary, 0, File/binary>>)) end).

library("") -> {ok, <<>>};
library(File) ->
    then(priv_dir(), fun(Dir) -> {ok, filename:join(Dir, list_to_binary(File))} end). % a binary is used as a raw file name, whatever the locale

%% @doc Starts listening, with rings of at most that size. From now on the caller receives `{link, Port}' whenever the result of {@link step/1} may
%% have changed, unless connections of this kind are set up immediately.
-spec listen(port(), Where :: binary(), MaxRingBytes :: pos_integer()) -> ok | {error, Reason :: binary()}.
listen(Port, Where, MaxRingBytes) ->
    done(command(Port, ?LISTEN, <<MaxRingBytes:64, Where/binary>>)).

%% @doc Starts connecting to a peer that listens, with rings of that size per direction. Progress is reported as in {@link listen/3}.
-spec connect(port(), Where :: binary(), Token :: <<_:128>>, RingBytes :: pos_integer(), TimeoutMs :: pos_integer()) ->
          ok | {error, Reason :: binary()}.
connect(Port, Where, Token, RingBytes, TimeoutMs) ->
    done(command(Port, ?CONNECT, <<RingBytes:64, Token:16/binary, TimeoutMs:32, Where/binary>>)).

%% @doc Returns the state of the port's connection setup.
-spec step(port()) -> status().
step(Port) ->
    case command(Port, ?STEP, <<>>) of
        {ok, <<0>>} ->
            working;
        {ok, <<1, Token:16/binary, Length, Address:Length/binary, DeviceLength, Device:DeviceLength/binary, Text/binary>>} ->
            {listening, #{token => Token, address => Address, device => Device, text => Text}};
        {ok, <<2, Device/binary>>} ->
            {linked, Device};
        {ok, <<3, Reason/binary>>} ->
            {failed, Reason}
    end.

%% @doc Starts reading the link. Only call this once the port is a distribution controller, because earlier frames would arrive as messages. The
%% caller is the process that calls {@link flush/1}. With `PollUs' above 0 it receives the message `look' when it should call {@link look/1}.
-spec activate(port(), PollUs :: non_neg_integer()) -> ok.
activate(Port, PollUs) ->
    ok = done(command(Port, ?ACTIVATE, <<PollUs:64, (erlang:system_info(dist_buf_busy_limit)):64>>)).

%% @doc Sends a keepalive unless other bytes are already waiting to be sent.
-spec tick(port()) -> ok.
tick(Port) ->
    ok = done(command(Port, ?TICK, <<>>)).

%% @doc Sends bytes over a link that is not active yet.
-spec say(port(), iodata()) -> ok | {error, Reason :: binary()}.
say(Port, Bytes) ->
    done(command(Port, ?SAY, Bytes)).

%% @doc Reads at most 256 bytes from a link that is not active yet. `wait' means that not all of them have arrived, and the caller receives `{link,
%% Port}' when it should try again.
-spec hear(port(), Count :: 1..?HEAR_BYTES) -> {ok, binary()} | wait | {error, Reason :: binary()}.
hear(Port, Count) ->
    case command(Port, ?HEAR, <<Count:32>>) of
        {ok, <<>>} -> wait;
        Heard -> Heard
    end.

%% @doc Stops the link of a port that is not active from sending anything more; the connection stays open through its other descriptors. The caller
%% must close the port next.
-spec leave(port()) -> ok.
leave(Port) ->
    ok = done(command(Port, ?LEAVE, <<>>)).

%% @doc Derives a key from a password with scrypt at the cost set in native/link/tls/tls.h. Takes about 0.3 s in a separate thread.
-spec derive(Salt :: binary(), Password :: binary()) -> {ok, <<_:256>>} | {error, Reason :: binary()}.
derive(Salt, Password) ->
    with_kind(tls, fun(Port) -> command(Port, ?DERIVE, <<(byte_size(Salt)), Salt/binary, Password/binary>>, ?DERIVE_MS) end).

%% @doc Reads a bounded amount from the link immediately. `finished' means that everything has been read and the peer will never write again. `exited'
%% means the same, but because the peer's process no longer exists. Otherwise the result is the number of bytes read since the link was created.
-spec receive_some(port()) -> finished | exited | {read, Bytes :: non_neg_integer()}.
receive_some(Port) ->
    case command(Port, ?RECEIVE, <<>>) of
        {ok, <<2, _:64>>} -> exited;
        {ok, <<1, _:64>>} -> finished;
        {ok, <<0, Read:64>>} -> {read, Read}
    end.

%% @doc Reads the data that has arrived. After `again' call this again soon, and after `asleep' wait for `look'.
-spec look(port()) -> again | asleep.
look(Port) ->
    case command(Port, ?LOOK, <<>>) of
        {ok, <<1>>} -> again;
        {ok, <<0>>} -> asleep
    end.

%% @doc From now on, treats each frame of a tcp link as a packet with a four-byte length, because the peer may be any Erlang node. `Read' contains the
%% bytes that were already read from the connection. Must come before {@link activate/2}.
-spec packets(port(), Read :: binary()) -> ok | {error, Reason :: binary()}.
packets(Port, Read) ->
    done(command(Port, ?PACKETS, Read)).

%% @doc Allows the link to outlive its connections ({@link beamway_resume}). It retains at most `Limit' bytes that the peer has not acknowledged,
%% and is closed if it has no connection for `ResumeMs' milliseconds. Must come after {@link packets/2}. The process that calls {@link flush/1} also
%% receives these messages:
%% <dl>
%% <dt>`{lost, Reason}'</dt><dd>the link no longer has a connection</dd>
%% <dt>`silent', `flows'</dt><dd>`silent' means that nothing arrives from the peer's host although something should, and `flows' that data arrives
%% again</dd>
%% </dl>
-spec session(port(), Limit :: pos_integer(), ResumeMs :: pos_integer()) -> ok.
session(Port, Limit, ResumeMs) ->
    ok = done(command(Port, ?SESSION, <<Limit:64, ResumeMs:32>>)).

%% @doc Passes a sample of this node's load to the driver for all links. The sample consists of the CPU time, as a percentage of what the schedulers
%% could use, and the length of the run queues. The driver adds the system's values. The next call must come within `NextMs' milliseconds, unless this
%% port is closed first: if the call does not come within twice that time, the driver assumes that this node was stopped.
-spec sample_load(port(), CpuPercent :: 0..100, RunQueue :: non_neg_integer(), NextMs :: pos_integer()) -> ok.
sample_load(Port, CpuPercent, RunQueue, NextMs) ->
    ok = done(command(Port, ?LOAD, <<CpuPercent, (min(RunQueue, 16#FFFF)):32, NextMs:32>>)).

%% @doc Declares that the peer understands the reports of {@link sample_load/4}. Must come after {@link session/3}, if the link has a session, and
%% before {@link activate/2}.
-spec tell_load(port()) -> ok.
tell_load(Port) ->
    ok = done(command(Port, ?TELL_LOAD, <<>>)).

%% @doc Loads the library that compresses links, for all ports.
-spec load_codec(port()) -> ok | {error, Reason :: binary()}.
load_codec(Port) -> then(library("beamway_zstd.so"), fun(File) -> done(command(Port, ?CODEC, File)) end).

%% @doc Tells the driver that the peer accepts compressed packets. The driver then compresses, either always or only while the round-trip time is
%% long, and spends at most this percentage of one scheduler's time on it. Must come after {@link session/3} and {@link load_codec/1} and before
%% {@link activate/2}.
-spec compress(port(), far | always, Percent :: 1..100) -> ok.
compress(Port, When, Percent) ->
    ok = done(command(Port, ?COMPRESS, <<(case When of far -> 0; always -> 1 end), Percent>>)).

%% @doc Gives up the current connection, if there is one, in favour of the connection with that number. Returns the number of bytes read from the peer
%% since the link was created, which does not change until {@link attach/4}.
-spec detach(port(), Number :: pos_integer()) -> {ok, Position :: non_neg_integer()} | {error, Reason :: binary()}.
detach(Port, Number) -> then(command(Port, ?DETACH, <<Number:64>>), fun(<<Position:64>>) -> {ok, Position} end).

%% @doc Offers the link of a port that is not active to another port, for {@link attach/4}. If no port accepts the offer, the link is closed with this
%% port.
-spec offer(port()) -> {ok, Offer :: pos_integer()} | {error, Reason :: binary()}.
offer(Port) -> then(command(Port, ?OFFER, <<>>), fun(<<Offer:64>>) -> {ok, Offer} end).

%% @doc Continues the link over a connection that another port has set up. `Read' was already read from that connection. `Position' is the number of
%% bytes that the peer has read since the link was created.
-spec attach(port(), Offer :: pos_integer(), Position :: non_neg_integer(), Read :: binary()) -> ok | {error, Reason :: binary()}.
attach(Port, Offer, Position, Read) ->
    done(command(Port, ?ATTACH, <<Offer:64, Position:64, Read/binary>>)).

%% @doc Like {@link attach/4}, but the connection is the first of several. The process that calls {@link flush/1} receives `thin' when one of them is
%% lost and others are left.
-spec spread(port(), Offer :: pos_integer(), Position :: non_neg_integer(), Read :: binary()) -> ok | {error, Reason :: binary()}.
spread(Port, Offer, Position, Read) ->
    done(command(Port, ?SPREAD, <<Offer:64, Position:64, Read/binary>>)).

%% @doc Adds a connection if the link already has several under that number.
-spec join(port(), Offer :: pos_integer(), Number :: non_neg_integer(), Read :: binary()) -> ok | {error, Reason :: binary()}.
join(Port, Offer, Number, Read) ->
    done(command(Port, ?JOIN, <<Offer:64, Number:64, Read/binary>>)).

%% @doc Returns the current number of connections (0 unless the link has spread) and the shortest recent round-trip time in microseconds (0 if unknown).
-spec paths(port()) -> {Connections :: non_neg_integer(), RttUs :: non_neg_integer()}.
paths(Port) ->
    {ok, <<Connections:32, RttUs:64>>} = command(Port, ?JOIN, <<>>),
    {Connections, RttUs}.

%% @doc Sends the gathered data, or wakes the peer so that it reads the data. From now on the caller receives these messages:
%% <dl>
%% <dt>`flush'</dt><dd>call this again</dd>
%% <dt>`{ask, Pid, Key, Patience}'</dt><dd>this sender has filled the link on its own, and the port is busy: find out whether the VM suspends it, and
%% call {@link answer/3}. `Patience' (1 to 8) is the sender's current limit as a multiple of its initial limit: the limit doubles each time the sender
%% turns out not to be suspended</dd>
%% <dt>`{hold, Pid}'</dt><dd>a sender that the VM has suspended before has filled the link again, and must wait</dd>
%% <dt>`{release, Pid}'</dt><dd>this sender may continue</dd>
%% <dt>`watch'</dt><dd>a lot of data is queued: call {@link watch/1} about 50 ms later</dd>
%% </dl>
-spec flush(port()) -> ok.
flush(Port) ->
    ok = done(command(Port, ?FLUSH, <<>>)).

%% @doc Checks whether the peer has read anything since the last call. If two calls in a row (ten over a network) find that it has not, the port
%% becomes busy and all held senders are released until the peer reads again. Returns false if nothing is queued; the next call is then due after the
%% next `watch'.
-spec watch(port()) -> Again :: boolean().
watch(Port) ->
    {ok, <<Again>>} = command(Port, ?WATCH, <<>>),
    Again =:= 1.

%% @doc Reports whether the VM suspends the sender with that key, or whether the sender has exited. Returns true if the sender must be suspended.
-spec answer(port(), Key :: non_neg_integer(), not_suspended | suspended | gone) -> Hold :: boolean().
answer(Port, Key, Answer) ->
    {ok, <<Hold>>} = command(Port, ?ANSWER, <<Key:64, (case Answer of not_suspended -> 0; suspended -> 1; gone -> 2 end)>>),
    Hold =:= 1.

%% @doc Gives processes of this node their classes on the port's link ({@link beamway:class/1}). Each process keeps its class until it is given the
%% class `normal'.
-spec classes(port(), [{pid(), beamway_classes:class()}]) -> ok.
classes(Port, Classes) ->
    Data = << <<(class_number(Class)), (pid_number(Pid))/binary>> || {Pid, Class} <- Classes >>,
    ok = done(command(Port, ?CLASSES, Data)).

class_number(control) -> 0;
class_number(normal) -> 1;
class_number(bulk) -> 2.

%% The driver identifies a sender by the two numbers with which its pid appears in control messages, which use the external term format.
pid_number(Pid) ->
    External = term_to_binary(Pid),
    <<Number:4/binary, Serial:4/binary, _Creation:32>> = binary:part(External, byte_size(External), -12),
    <<Serial/binary, Number/binary>>.

%% @doc Returns the processes of this node that have sent the most over the link, for {@link senders/1}. Small messages are sampled: one is counted
%% per 16 KB.
-spec traffic(port()) -> binary().
traffic(Port) ->
    iolist_to_binary([begin {ok, Rows} = command(Port, ?TRAFFIC, <<First>>), Rows end || First <- lists:seq(0, ?TRAFFIC_SENDERS - 1, ?SENDERS_TOLD)]).

%% @doc Decodes the result of {@link traffic/1}. Each process has sent at least `Most - Before' and at most `Most' bytes since the link was created,
%% of which `Waiting' bytes are still queued.
-spec senders(Traffic :: binary()) -> [{pid(), Most :: pos_integer(), Before :: non_neg_integer(), Waiting :: non_neg_integer()}].
senders(Traffic) ->
    [{list_to_pid(lists:flatten(io_lib:format("<0.~b.~b>", [Number, Serial]))), Most, Before, Waiting} || <<Serial:32, Number:32, Most:64, Before:64, Waiting:64>> <= Traffic].

%% @doc Returns the counters of the link since it was created.
-spec stats(port()) -> stats().
stats(Port) ->
    Names = beamway_counters:names(),
    Bytes = 8 * length(Names),
    {ok, <<Counters:Bytes/binary, Load:8/binary, AgeMs:64>>} = command(Port, ?STATS, <<>>),
    with_peer_load(Load, AgeMs, compressed(maps:from_list(lists:zip(Names, [Number || <<Number:64>> <= Counters])))).

compressed(#{uncompressed_out := 0, uncompressed_in := 0} = Stats) -> maps:without(beamway_counters:names(compression), Stats);
compressed(Stats) -> Stats.

%% The layout is defined in native/driver/load.h, and the driver has validated it.
with_peer_load(<<0:1, _/bits>>, _AgeMs, Stats) -> Stats;
with_peer_load(<<1:1, Cpu:7, RunQueue:16, Average:16, Mib:24>>, AgeMs, Stats) ->
    with_known(peer_loadavg1, Average =/= 16#FFFF, Average / 100,
               with_known(peer_mem_available, Mib > 0, Mib bsl 20,
                          Stats#{peer_cpu_percent => Cpu, peer_run_queue => RunQueue, peer_load_age_ms => AgeMs})).

with_known(_Name, false, _Value, Stats) -> Stats;
with_known(Name, true, Value, Stats) -> Stats#{Name => Value}.

%% @doc From now on, makes all connections of the link behave as if the network were bad (native/driver/fault.h). A missing key turns that fault off.
%% With `holds_in' or `holds_out' nothing passes in that direction.
-spec fault(port(), #{delay_ms | jitter_ms | rate_bytes => non_neg_integer(), holds_in | holds_out => boolean(), _ => _}) -> ok | {error, Reason :: binary()}.
fault(Port, Fault) ->
    [DelayMs, JitterMs, Rate] = [maps:get(Key, Fault, 0) || Key <- [delay_ms, jitter_ms, rate_bytes]],
    [HoldsIn, HoldsOut] = [case Fault of #{Key := true} -> 1; #{} -> 0 end || Key <- [holds_in, holds_out]],
    done(command(Port, ?FAULT, <<DelayMs:32, JitterMs:32, Rate:64, HoldsIn, HoldsOut>>)).

%% @doc Makes the system drop all packets for a TCP socket or accept them again, or resets the socket's connection. Works on any port of the driver.
-spec socket_fault(port(), Fd :: non_neg_integer(), drop | pass | reset) -> ok | {error, Reason :: binary()}.
socket_fault(Port, Fd, What) ->
    done(command(Port, ?SOCKET_FAULT, <<Fd:32, (case What of pass -> 0; drop -> 1; reset -> 2 end)>>)).

%% @doc Returns `ok' if this host can have links of that kind with rings of that size. The driver must be loaded.
-spec probe(beamway_kind:driven(), RingBytes :: pos_integer()) -> ok | {error, Reason :: binary()}.
probe(Kind, RingBytes) -> with_kind(Kind, fun(Port) -> done(command(Port, ?PROBE, <<RingBytes:64>>)) end).

command(Port, Command, Data) ->
    command(Port, Command, Data, ?LATER_MS).

command(Port, Command, Data, LaterMs) ->
    case erlang:port_control(Port, Command, Data) of
        <<2>> ->
            receive
                {Port, done, Reply} -> result(Reply)
            after
                LaterMs -> error_text("no answer of the file system within ~b ms", [LaterMs])
            end;
        Reply ->
            result(Reply)
    end.

result(<<0, Result/binary>>) -> {ok, Result};
result(<<1, Reason/binary>>) -> {error, Reason}.

done({ok, _}) -> ok;
done({error, Reason}) -> {error, Reason}.
