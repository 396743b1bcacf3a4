%% SPDX-License-Identifier: Apache-2.0
%% @doc The counters of a link, from which {@link beamway_port} decodes what the driver reports and {@link beamway_metrics} generates the metrics.
-module(beamway_counters).

-export([names/0, names/1, metrics/0]).

-type part() :: link | tcp | port | compression | peer.

%% Name, what it belongs to, Prometheus type, help. The names are in the order of BW_LINK_NUMBERS in native/link/link.h and BW_PORT_NUMBERS in
%% native/driver/stats.h, except those of `peer', which the peer reports.
table() ->
    [{bytes_in, link, counter, "Bytes read from the link, frame headers included"},
     {bytes_out, link, counter, "Bytes written to the link, frame headers included"},
     {doorbells_in, link, counter, "Wake-ups answered by a system call"},
     {doorbells_out, link, counter, "Wake-ups sent by a system call"},
     {stalls, link, counter, "Times that the outgoing ring was full"},
     {ring_bytes, link, gauge, "Size of the ring of one direction"},
     {ring_fill_in, link, gauge, "Unread bytes in the incoming ring"},
     {ring_fill_out, link, gauge, "Unread bytes in the outgoing ring"},
     {rtt_us, tcp, gauge, "Round trip of the TCP connection, as its kernel estimates it"},
     {window_bytes, tcp, gauge, "Congestion window of the TCP connection"},
     {retransmits, tcp, counter, "Segments that the TCP connection has sent again"},
     {unanswered, tcp, none, ""},
     {ack_ms, tcp, none, ""},
     {kernel_bytes, tcp, gauge, "Bytes that the kernel holds because the peer's has not acknowledged them"},
     {frames_in, port, counter, "Packets read, ticks included"},
     {frames_out, port, counter, "Packets written, ticks included"},
     {wakeups, port, counter, "Times that the poller called the link"},
     {queue_bytes, port, gauge, "Bytes that wait in the driver or socket"},
     {busy, port, gauge, "1 while all senders are told to wait"},
     {held_senders, port, gauge, "Senders that wait because their own large messages fill the link"},
     {losses, port, counter, "Connections that the link has lost and outlived"},
     {kept_bytes, port, gauge, "Bytes sent that the peer has not acknowledged"},
     {run_delay_us, port, none, ""},
     {uncompressed_out, compression, counter, "Bytes of sent packets that were compressed, before that"},
     {compressed_out, compression, counter, "The same after that"},
     {compress_us, compression, counter, "Processor time that compressing took"},
     {uncompressed_in, compression, counter, "Bytes of received packets that were compressed, after decompression"},
     {compressed_in, compression, counter, "The same before that"},
     {decompress_us, compression, counter, "Processor time that decompression took"},
     {peer_cpu_percent, peer, gauge, "Processor time of the peer's VM in percent of what its schedulers could use, as the peer said last"},
     {peer_run_queue, peer, gauge, "Processes and ports of the peer that were ready to run, as the peer said last"},
     {peer_mem_available, peer, gauge, "Bytes of memory that the peer's host has available, as the peer said last"}].

%% @doc Returns the counters that the driver reports, in its order.
-spec names() -> [atom(), ...].
names() -> [Name || {Name, Of, _, _} <- table(), Of =/= peer].

%% @doc Returns the counters of this kind. A ring has none of those of `tcp'.
-spec names(part()) -> [atom(), ...].
names(Wanted) -> [Name || {Name, Of, _, _} <- table(), Of =:= Wanted].

%% @doc Returns the counters that Prometheus gets, with their type and help.
-spec metrics() -> [{Name :: atom(), counter | gauge, Help :: string()}, ...].
metrics() -> [{Name, Type, Help} || {Name, _, Type, Help} <- table(), Type =/= none].
