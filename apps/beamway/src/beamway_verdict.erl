%% SPDX-License-Identifier: Apache-2.0
%% @doc Explains why a link ended, from its record ({@link beamway_recorder}): a cause from the table below, a sentence, and the facts in
%% chronological order. All functions are pure.
%%
%% <table>
%% <tr><td>`disconnected'</td><td>a process on this node requested it</td></tr>
%% <tr><td>`fault'</td><td>a test on this node broke the network with {@link beamway:fault/2}</td></tr>
%% <tr><td>`peer_ended'</td><td>the peer's process ended: it no longer exists on this host, or its port is closed and its epmd no longer lists
%% it</td></tr>
%% <tr><td>`peer_restarted'</td><td>the peer was started again</td></tr>
%% <tr><td>`peer_closed'</td><td>the peer is alive, and closed the link itself</td></tr>
%% <tr><td>`cut'</td><td>the connection was lost while the peer was alive, and the link could not continue</td></tr>
%% <tr><td>`unreachable'</td><td>nothing arrived from the peer's host</td></tr>
%% <tr><td>`peer_hung'</td><td>the peer's host answered, but its node did not</td></tr>
%% <tr><td>`this_node_stopped', `this_node_busy'</td><td>this node was not running, or hardly running</td></tr>
%% <tr><td>`this_node_ended'</td><td>the distribution of this node ended</td></tr>
%% <tr><td>`protocol', `no_memory', `other'</td><td>the exit reason explains the end</td></tr>
%% </table>
-module(beamway_verdict).

-export([verdict/1, asks_epmd/2, seconds/1, reason/1]).
-export_type([verdict/0, cause/0, epmd/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-type cause() :: up | disconnected | fault | peer_ended | peer_restarted | peer_closed | cut | unreachable | peer_hung | this_node_stopped | this_node_busy
               | this_node_ended | protocol | no_memory | other.
-type epmd() :: listed | listed_elsewhere | not_listed | refuses | unknown.
%% `listed_elsewhere' means that epmd lists the node on a different port from the one on which the peer of this link listened. `refuses' means that no
%% epmd runs there.

-type verdict() :: #{cause := cause(), short := binary(), facts := [{AgoMs :: non_neg_integer(), binary()}]}.
%% The facts are listed oldest first, each with how many milliseconds before the end (or before now, if the link is up) it happened.

%% The peer's host answers but its node does not. From this node these causes look the same.
-define(HUNG, ": it is stopped or overloaded, or it sends ticks more seldom (net_ticktime)").

%% How many seconds before the end the verdict takes into account.
-define(LOOK_S, 60).

%% A node that runs again after a stop notices within this time that a peer has given up a link.
-define(JUST_S, 2).

%% On a healthy node the link's own process is scheduled within this time.
-define(RUN_DELAY_US, 50000).

%% @doc Returns whether epmd can help to explain why the link ended.
-spec asks_epmd(Reason :: term(), [{non_neg_integer(), beamway_recorder:event()}]) -> boolean().
asks_epmd(Reason, Events) ->
    lists:member(kind(Reason), [lost, silent])
        andalso not lists:any(fun({_, {disconnected_by, _}}) -> true; ({_, {gave_up, Why}}) -> lists:member(Why, [ended, exited]); (_) -> false end, Events).

%% Classifies the exit reasons of the connection process, which come from dist_util, net_kernel and our own processes.
kind({shutdown, Reason}) -> kind(Reason);
kind(net_tick_timeout) -> silent;
kind(disconnect) -> asked;
kind(disconnected) -> asked;
kind(beamway_link_corrupt) -> protocol;
kind(beamway_signal_corrupt) -> protocol;
kind(beamway_compression_corrupt) -> protocol;
kind(beamway_tls_corrupt) -> protocol;
kind(beamway_tls_flooded) -> protocol;
kind(enomem) -> memory;
kind(system_limit) -> memory;
kind(shutdown) -> own;
kind(killed) -> own;
kind(normal) -> own;
kind(Reason) when is_atom(Reason) -> lost;
kind(_) -> other.

%% @doc Returns the cause and the facts. For a link that is up, the cause is `up'.
-spec verdict(beamway_recorder:record()) -> verdict().
verdict(#{ended := #{reason := Reason}} = Record) ->
    Kind = kind(Reason),
    {Cause, Short} = case fault(Kind, Record) of
                         none -> cause(Kind, Reason, Record);
                         Fault -> {fault, ["a fault that was set on this node (beamway:fault/2) ended the link: ", Fault]}
                     end,
    #{cause => Cause, short => text(Short), facts => facts(Record)};
verdict(#{events := Events} = Record) ->
    Resumes = length([1 || {_, {resumed, _, _}} <- Events]),
    Short = case Resumes of
                0 -> "the link is up";
                1 -> "the link is up, and outlived its connection once";
                _ -> ["the link is up, and outlived its connection ", integer_to_list(Resumes), " times"]
            end,
    #{cause => up, short => text(Short), facts => facts(Record)}.

%% Looks for a fault that affected or reset the link, and that the link did not survive.
fault(Kind, #{events := Events}) when Kind =:= lost; Kind =:= silent ->
    case [Event || {_, Event} <- Events, Event =:= fault_ended orelse (is_tuple(Event) andalso lists:member(element(1, Event), [fault, resumed, disconnected_by]))] of
        [{fault, Text} | _] -> Text;
        _ -> none
    end;
fault(_Kind, _Record) ->
    none.

cause(asked, _Reason, #{events := Events}) ->
    case [Who || {_, {disconnected_by, Who}} <- Events] of
        [Who | _] -> {disconnected, ["disconnected by ", Who]};
        [] -> {disconnected, "disconnected on this node"}
    end;
cause(silent, _Reason, Record) ->
    silence(Record);
cause(lost, Reason, #{events := Events} = Record) ->
    case Events of
        [{_, {disconnected_by, Who}} | _] -> {disconnected, ["disconnected by ", Who]};
        [{_, {gave_up, Why}}, {_, {lost, stopped}} | _] when Why =/= exited -> gave_up_meanwhile(late_ms(recent(?LOOK_S, map_get(own, Record))));
        _ -> lost(lists:search(fun({_, Event}) -> is_tuple(Event) andalso element(1, Event) =:= gave_up end, Events), Reason, Record)
    end;
cause(protocol, beamway_tls_corrupt, _Record) -> {protocol, "data that arrived failed authentication: something changed it on the way"};
cause(protocol, beamway_tls_flooded, _Record) -> {protocol, "the peer sent TLS messages that carry no data"};
cause(protocol, beamway_compression_corrupt, _Record) -> {protocol, "the peer sent compressed data that cannot be right"};
cause(protocol, beamway_link_corrupt, #{link := Kind}) ->
    {protocol, ["the peer broke the ", case beamway_kind:is_ring(Kind) of true -> "ring"; false -> "distribution" end, " protocol"]};
cause(protocol, _Reason, _Record) -> {protocol, "the peer broke the distribution protocol"};
cause(memory, _Reason, _Record) -> {no_memory, "this node had no memory for what arrived or waited"};
cause(own, _Reason, _Record) -> {this_node_ended, "the distribution of this node ended"};
cause(other, _Reason, _Record) -> {other, "the connection's process failed"}.

lost({value, {_, {gave_up, exited}}}, _Reason, _Record) -> {peer_ended, "the peer's process ended: it no longer exists on this host"};
lost({value, {_, {gave_up, ended}}}, _Reason, _Record) -> {peer_ended, "the peer's process ended: its port is closed and its epmd no longer lists it"};
lost({value, {_, {gave_up, forgotten}}}, _Reason, Record) ->
    case peer(Record) of
        restarted -> {peer_restarted, "the peer was started again"};
        _ -> {peer_closed, "the peer lives, but had given up the link"}
    end;
lost({value, {_, {gave_up, absent}}}, _Reason, Record) -> absent(peer(Record), Record);
lost(false, Reason, Record) -> closed(peer(Record), Reason, Record).

absent(ended, Record) -> {peer_ended, ended(Record)};
absent(restarted, _Record) -> {peer_restarted, "the peer was started again"};
absent(unknown, Record) -> {unreachable, ["the peer could not be reached for ", without_connection(Record)]};
absent(Alive, Record) -> {peer_hung, ["the connection was lost, and the peer did not answer for ", without_connection(Record), " although ", sign(Alive)]}.

closed(ended, _Reason, Record) -> {peer_ended, ended(Record)};
closed(restarted, _Reason, _Record) -> {peer_restarted, "the peer was started again"};
closed(unknown, Reason, _Record) when Reason =:= etimedout; Reason =:= ehostunreach; Reason =:= enetunreach ->
    {unreachable, ["nothing came back from the peer's host (", reason(Reason), ")"]};
closed(unknown, Reason, #{epmd := Epmd}) when Epmd =/= unknown ->
    {unreachable, ["the connection was lost (", reason(Reason), "), and the peer's port does not answer"]};
closed(unknown, Reason, _Record) ->
    {unreachable, ["the connection was lost (", reason(Reason), "), and the peer's epmd cannot be asked"]};
closed(Alive, Reason, #{own := Own, tick_ms := TickMs}) when Reason =:= connection_closed; Reason =:= connection_finished ->
    %% If this node had just been stopped for most of net_ticktime, the peer has given up the link because of that.
    case late_ms(recent(?JUST_S, Own)) of
        LateMs when LateMs >= 2 * TickMs -> gave_up_meanwhile(LateMs);
        _ -> {peer_closed, ["the peer lives (", sign(Alive), "): it ended the link itself, or something between the nodes reset the connection"]}
    end;
closed(Alive, Reason, _Record) ->
    {cut, ["the connection was lost (", reason(Reason), ") although the peer lives: ", sign(Alive)]}.

sign(listed) -> "its epmd lists it";
sign(open) -> "its port is open".

%% Returns what is known about the peer's process. An epmd that has just been restarted lists no node, so the peer counts as dead only if nothing
%% listens on its port either, as for a link that could continue (beamway_session). On this host, a port that refuses connections is enough.
peer(#{epmd := listed}) -> listed;
peer(#{epmd := listed_elsewhere}) -> restarted;
peer(#{peer_port := open}) -> open;
peer(#{peer_port := silent}) -> unknown;
peer(#{epmd := Epmd}) when Epmd =:= not_listed; Epmd =:= refuses -> ended;
peer(#{peer_port := refuses, link := Kind}) ->
    case beamway_kind:is_ring(Kind) andalso beamway_kind:needs_same_host(Kind) of
        true -> ended;
        false -> unknown
    end;
peer(#{}) -> unknown.

ended(#{epmd := not_listed, peer_port := refuses}) -> "the peer's process ended: its port is closed and its epmd no longer lists it";
ended(#{epmd := not_listed}) -> "the peer's process ended: its epmd no longer lists it";
ended(#{epmd := refuses, peer_port := refuses}) -> "the peer's process ended: its port is closed, and no epmd runs on its host";
ended(#{epmd := refuses}) -> "the peer's process ended: no epmd runs on its host";
ended(#{}) -> "the peer's process ended: its port is closed".

%% Returns how long the link had been without a connection when it was given up.
without_connection(#{events := Events}) ->
    Ago = fun(Wanted) -> [AgoMs || {AgoMs, Event} <- Events, Wanted(Event)] end,
    case {Ago(fun({gave_up, _}) -> true; (_) -> false end), Ago(fun({lost, _}) -> true; (_) -> false end)} of
        {[End | _], [Lost | _]} when Lost >= End -> seconds(Lost - End);
        _ -> "some time"
    end.

gave_up_meanwhile(LateMs) -> {this_node_stopped, ["this node did not run for ", seconds(LateMs), ", and the peer gave up the link meanwhile"]}.

%% Returns the longest time for which this node did not run in these steps.
late_ms(Own) -> lists:max([0 | [LateMs || {_, #{late_ms := LateMs}} <- Own]]).

%% No tick arrived, so the question is which side failed.
silence(#{silent_ms := SilentMs, latest := Latest, own := Own, tick_ms := TickMs} = Record) ->
    Lookback = max(1, SilentMs div 1000),
    LateMs = late_ms(recent(Lookback, Own)),
    BusyS = lists:sum([Count || {Count, #{busy := 1}} <- recent(Lookback, Own)]),
    Silent = seconds(SilentMs),
    if
        LateMs >= TickMs -> {this_node_stopped, ["this node did not run for ", seconds(LateMs), ", so it neither sent nor read"]};
        BusyS * 2 >= Lookback, Lookback >= 2 ->
            {this_node_busy, ["nothing came for ", Silent, ", and this node's processors were busy for ", integer_to_list(BusyS), " s of these"]};
        true -> silent_peer(Silent, Latest, Record)
    end.

%% If the peer's host leaves this node's retransmissions unanswered, the last acknowledgement only came along with data that the host sent. So packets
%% get through in one direction only.
silent_peer(Silent, #{ack_ms := AckMs, unanswered := Unanswered}, #{silent_ms := SilentMs, tick_ms := TickMs})
  when AckMs < SilentMs, AckMs < 2 * TickMs, Unanswered < 2 ->
    {peer_hung, ["the peer's host acknowledged data ", seconds(AckMs), " ago, but its node sent nothing for ", Silent, ?HUNG]};
silent_peer(Silent, #{ack_ms := _}, _Record) ->
    {unreachable, ["nothing came back from the peer's host for ", Silent]};
silent_peer(Silent, _Latest, #{link := Kind} = Record) ->
    case {peer(Record), beamway_kind:is_ring(Kind) andalso beamway_kind:needs_same_host(Kind)} of
        {ended, _} -> {peer_ended, [ended(Record), "; nothing had come for ", Silent]};
        {_, true} -> {peer_hung, ["the peer's process exists on this host, but sent nothing for ", Silent, ?HUNG]};
        {Alive, false} when Alive =:= listed; Alive =:= open -> {peer_hung, ["the peer sent nothing for ", Silent, ", but ", sign(Alive), ?HUNG, ", or the path is broken"]};
        {_, false} -> {unreachable, ["nothing came for ", Silent]}
    end.

recent(_Steps, []) -> [];
recent(Steps, [{Count, Step} | _]) when Count >= Steps -> [{Steps, Step}];
recent(Steps, [{Count, Step} | Older]) -> [{Count, Step} | recent(Steps - Count, Older)].

facts(#{events := Events, seconds := Seconds, own := Own, silent_ms := SilentMs} = Record) ->
    Steps = recent(?LOOK_S, Seconds),
    Found = [{AgoMs, text(Said)} || {AgoMs, Event} <- Events, Said <- said(Event)]
        ++ congestion(Steps) ++ full(Steps) ++ run_delay(Steps) ++ own_facts(recent(?LOOK_S, Own))
        ++ [{SilentMs, text("the last bytes came from the peer")} || SilentMs >= 2000, is_map_key(ended, Record)]
        ++ acknowledged(Record)
        ++ [{0, text(Said)} || Said <- epmd_said(maps:get(epmd, Record, none)) ++ port_said(maps:get(peer_port, Record, unknown))]
        ++ [{0, text(["the connection ended: ", reason(Reason)])} || #{ended := #{reason := Reason}} <- [Record]],
    lists:reverse(lists:keysort(1, lists:reverse(Found))).

said(up) -> ["the link came up"];
said({lost, Cause}) -> [["the connection was lost: ", reason(Cause)]];
said(silent) -> ["nothing came back from the peer's host; this node began to look for another connection"];
said(flows) -> ["data came back over the same connection"];
said({resumed, Cause, Ms}) -> [["the link went on over another connection after ", seconds(Ms), " (", reason(Cause), "): the peer lived"]];
said({full, Senders}) -> [["the link was full; most waited of: ", lists:join("; ", Senders)]];
said({fault, Text}) -> [["a fault was set on this node (beamway:fault/2): ", Text]];
said({clock_set, Ms}) when Ms >= 0 -> [["the clock of this node's host was set forward by ", seconds(Ms), ", which links do not depend on"]];
said({clock_set, Ms}) -> [["the clock of this node's host was set back by ", seconds(-Ms), ", which links do not depend on"]];
said(fault_ended) -> ["the fault ended"];
said({gave_up, ended}) -> ["this node gave the link up: the peer's process has ended"];
said({gave_up, exited}) -> ["this node gave the link up: the peer's process no longer exists on this host"];
said({gave_up, forgotten}) -> ["this node gave the link up: the peer does not know it any more"];
said({gave_up, absent}) -> ["this node gave the link up: the peer did not come back"];
said({disconnected_by, Who}) -> [["this node was asked to disconnect, by ", Who]].

epmd_said(listed) -> ["the peer's epmd lists it"];
epmd_said(listed_elsewhere) -> ["the peer's epmd lists it at another port"];
epmd_said(not_listed) -> ["the peer's epmd does not list it"];
epmd_said(refuses) -> ["no epmd listens on the peer's host"];
epmd_said(unknown) -> ["the peer's epmd does not answer"];
epmd_said(none) -> [].

port_said(refuses) -> ["the peer's port refuses connections"];
port_said(open) -> ["the peer's port is open"];
port_said(silent) -> ["the peer's port does not answer"];
port_said(unknown) -> [].

%% While a link has no connection, its counters say nothing about acknowledgements.
acknowledged(#{latest := #{ack_ms := AckMs, unanswered := Unanswered}, ended := _, events := Events}) ->
    LostMs = case [Event || {_, Of} = Event <- Events, is_tuple(Of), lists:member(element(1, Of), [lost, resumed])] of
                 [{AgoMs, {lost, _}} | _] -> AgoMs;
                 _ -> 0
             end,
    [{AckMs, text("the peer's host last acknowledged data")} || AckMs >= 1000, AckMs >= LostMs]
        ++ [{0, text([integer_to_list(Unanswered), " retransmissions in a row were not answered"])} || Unanswered > 0];
acknowledged(_Record) -> [].

%% The path was congested if far more segments are retransmitted, or round trips take far longer, than at the beginning of the last minute.
congestion(Steps) ->
    Trips = [Us || {_, #{rtt_us := Us}} <- Steps, Us > 0],
    Again = [Count || {_, #{retransmits := Count}} <- Steps],
    case {Trips, lists:max([0 | Again])} of
        {[_ | _], Most} ->
            {Least, Longest} = {lists:min(Trips), lists:max(Trips)},
            [{0, text(["the path was congested: up to ", integer_to_list(Most), " retransmissions a second, round trips from ", milliseconds(Least), " to ", milliseconds(Longest)])}
             || Most >= 5 orelse (Longest >= 50000 andalso Longest >= 10 * Least)];
        {[], _} -> []
    end.

full(Steps) ->
    FullS = lists:sum([Count || {Count, #{busy := Busy, held_senders := Held}} <- Steps, Busy + Held > 0]),
    Held = lists:max([0 | [Held || {_, #{held_senders := Held}} <- Steps]]),
    [{0, text(["senders waited for room on the link in ", integer_to_list(FullS), " of the last ", integer_to_list(?LOOK_S), " s, up to ", integer_to_list(Held), " at a time held for their own data"])}
     || FullS > 0].

run_delay(Steps) ->
    Most = lists:max([0 | [Us || {_, #{run_delay_us := Us}} <- Steps]]),
    [{0, text(["the link's own process waited up to ", milliseconds(Most), " to run on this node, within the last ", integer_to_list(?LOOK_S), " s"])} || Most >= ?RUN_DELAY_US].

own_facts(Own) ->
    {_, Late} = lists:foldl(fun({Count, #{late_ms := LateMs}}, {Ago, Acc}) ->
                                    {Ago + Count, [{1000 * Ago, text(["this node did not run for ", seconds(LateMs)])} || LateMs >= 1000] ++ Acc}
                            end, {0, []}, Own),
    BusyS = lists:sum([Count || {Count, #{busy := 1}} <- Own]),
    Late ++ [{0, text(["this node's processors were busy in ", integer_to_list(BusyS), " of the last ", integer_to_list(?LOOK_S), " s"])} || BusyS >= 5].

%% @doc Formats milliseconds as readable seconds.
-spec seconds(non_neg_integer()) -> iolist().
seconds(Ms) when Ms < 1000 -> [integer_to_list(Ms), " ms"];
seconds(Ms) -> io_lib:format("~.1f s", [Ms / 1000]).

milliseconds(Us) -> io_lib:format("~.1f ms", [Us / 1000]).

%% @doc Returns an exit reason on one line, truncated if it is long.
-spec reason(term()) -> iolist().
reason(Reason) -> io_lib:format("~0tP", [Reason, 12]).

text(Said) -> unicode:characters_to_binary(Said).

-ifdef(TEST).

record(More) ->
    maps:merge(#{node => b@h, link => tcp, address => <<>>, hidden => false, since => 0, events => [{9000, up}], latest => #{}, silent_ms => 0,
                 seconds => [], tens => [], own => [{60, #{late_ms => 0, busy => 0}}], tick_ms => 15000}, More).

ended(Reason, More) -> record(More#{ended => #{ago_ms => 0, reason => Reason}}).

causes_test_() ->
    Late = #{own => [{1, #{late_ms => 20000, busy => 0}}]},
    Stopped = fun(AgoS, LateMs) -> #{own => [{AgoS - 1, #{late_ms => 0, busy => 0}} || AgoS > 1] ++ [{1, #{late_ms => LateMs, busy => 0}}], epmd => listed} end,
    Busy = #{own => [{50, #{late_ms => 100, busy => 1}}]},
    GaveUp = fun(Why) -> #{events => [{0, {gave_up, Why}}, {15000, {lost, connection_closed}}, {20000, up}]} end,
    [{atom_to_list(Cause), ?_assertMatch(#{cause := Cause}, verdict(ended(Reason, More)))}
     || {Cause, Reason, More} <-
            [{disconnected, disconnect, #{}}, {disconnected, disconnect, #{events => [{0, {disconnected_by, <<"x">>}}]}},
             {disconnected, connection_closed, #{events => [{0, {disconnected_by, <<"x">>}}], epmd => listed}},
             {fault, net_tick_timeout, #{events => [{4000, {fault, <<"cut">>}}, {9000, up}], silent_ms => 4000}},
             {fault, connection_closed, #{events => [{0, {lost, connection_closed}}, {1, {fault, <<"reset">>}}, {9000, up}], epmd => listed}},
             {unreachable, net_tick_timeout, #{events => [{3000, fault_ended}, {4000, {fault, <<"cut">>}}], silent_ms => 4000}},
             {peer_closed, connection_closed, #{events => [{3000, {resumed, connection_closed, 2}}, {4000, {fault, <<"reset">>}}], epmd => listed}},
             {disconnected, disconnect, #{events => [{4000, {fault, <<"cut">>}}]}},
             {peer_ended, connection_closed, #{epmd => not_listed}}, {peer_ended, connection_closed, (GaveUp(ended))#{epmd => unknown}},
             {peer_ended, connection_closed, (GaveUp(absent))#{epmd => not_listed}}, {peer_ended, connection_closed, #{epmd => refuses}},
             {peer_ended, connection_closed, GaveUp(exited)}, {peer_ended, connection_closed, #{events => [{0, {gave_up, exited}}, {1, {lost, stopped}}, {9000, up}]}},
             {peer_ended, connection_closed, #{epmd => not_listed, peer_port => refuses}}, {peer_ended, connection_closed, #{epmd => refuses, peer_port => refuses}},
             {peer_closed, connection_closed, #{epmd => not_listed, peer_port => open}}, {peer_closed, connection_closed, #{epmd => refuses, peer_port => open}},
             {peer_closed, connection_closed, #{epmd => unknown, peer_port => open}}, {cut, econnreset, #{epmd => not_listed, peer_port => open}},
             {unreachable, connection_closed, #{epmd => not_listed, peer_port => silent}}, {unreachable, connection_closed, #{epmd => unknown, peer_port => refuses}},
             {peer_ended, connection_closed, #{epmd => unknown, peer_port => refuses, link => shm}}, {unreachable, connection_closed, #{epmd => unknown, link => shm}},
             {peer_hung, connection_closed, (GaveUp(absent))#{epmd => not_listed, peer_port => open}},
             {peer_ended, connection_closed, (GaveUp(absent))#{epmd => refuses, peer_port => refuses}},
             {peer_ended, net_tick_timeout, #{silent_ms => 60000, link => shm, epmd => not_listed, peer_port => refuses}},
             {peer_hung, net_tick_timeout, #{silent_ms => 60000, link => shm, epmd => not_listed, peer_port => open}},
             {peer_hung, net_tick_timeout, #{silent_ms => 60000, epmd => refuses, peer_port => open}},
             {peer_restarted, connection_closed, #{epmd => listed_elsewhere}}, {peer_restarted, connection_closed, (GaveUp(forgotten))#{epmd => listed_elsewhere}},
             {peer_closed, connection_closed, #{epmd => listed}}, {this_node_stopped, connection_closed, Stopped(1, 31000)}, {this_node_stopped, connection_finished, Stopped(2, 31000)},
             {peer_closed, connection_closed, Stopped(1, 29000)}, {peer_closed, connection_closed, Stopped(3, 31000)}, {peer_closed, connection_closed, (GaveUp(forgotten))#{epmd => listed}},
             {cut, econnreset, #{epmd => listed}}, {unreachable, etimedout, #{epmd => unknown}},
             {unreachable, connection_closed, (GaveUp(absent))#{epmd => unknown}}, {peer_hung, connection_closed, (GaveUp(absent))#{epmd => listed}},
             {peer_hung, net_tick_timeout, #{silent_ms => 60000, latest => #{ack_ms => 9000, unanswered => 0}, epmd => listed}},
             {unreachable, net_tick_timeout, #{silent_ms => 60000, latest => #{ack_ms => 60000, unanswered => 7}, epmd => unknown}},
             {unreachable, net_tick_timeout, #{silent_ms => 60000, latest => #{ack_ms => 9000, unanswered => 4}, epmd => listed}},
             {peer_hung, net_tick_timeout, #{silent_ms => 60000, link => shm, epmd => listed}},
             {this_node_stopped, net_tick_timeout, Late#{silent_ms => 60000}},
             {this_node_stopped, connection_closed, Late#{events => [{0, {gave_up, forgotten}}, {1, {lost, stopped}}, {9000, up}], epmd => listed}}, {this_node_busy, net_tick_timeout, Busy#{silent_ms => 60000}},
             {this_node_ended, shutdown, #{}}, {this_node_ended, killed, #{}}, {protocol, beamway_link_corrupt, #{}}, {protocol, beamway_compression_corrupt, #{}}, {protocol, beamway_tls_corrupt, #{}},
             {no_memory, enomem, #{}}, {other, {badarg, []}, #{}}]].

acknowledged_test_() ->
    Acknowledged = fun(AckMs, Events) ->
                           #{facts := Facts} = verdict(ended(connection_closed, #{events => Events, epmd => listed, latest => #{ack_ms => AckMs, unanswered => 0}})),
                           lists:member({AckMs, <<"the peer's host last acknowledged data">>}, Facts)
                   end,
    Lost = [{12000, {lost, connection_finished}}, {20000, up}],
    [?_assertEqual(Known, Acknowledged(AckMs, Events))
     || {Known, AckMs, Events} <- [{false, 1400, Lost}, {true, 12400, Lost}, {true, 1400, [{11000, {resumed, connection_finished, 1000}} | Lost]}]].

up_test() ->
    #{cause := up, short := Short, facts := Facts} = verdict(record(#{events => [{50, {resumed, silent, 40}}, {90, silent}, {9000, up}]})),
    ?assertEqual({<<"the link is up, and outlived its connection once">>, [9000, 90, 50]}, {Short, [Ago || {Ago, _} <- Facts]}).

facts_test() ->
    Step = #{rtt_us => 400, retransmits => 0, busy => 0, held_senders => 0, run_delay_us => 90},
    #{facts := Facts} = verdict(ended(etimedout, #{seconds => [{3, Step#{rtt_us := 340000, retransmits := 12, busy := 1, held_senders := 2, run_delay_us := 70400}}, {40, Step}], silent_ms => 4000,
                                                   own => [{2, #{late_ms => 0, busy => 0}}, {1, #{late_ms => 3000, busy => 0}}], epmd => unknown,
                                                   latest => #{ack_ms => 3900, unanswered => 4}})),
    Text = iolist_to_binary([[Said, $\n] || {_, Said} <- Facts]),
    [?assertMatch({match, _}, re:run(Text, Wanted))
     || Wanted <- ["up to 12 retransmissions a second, round trips from 0.4 ms to 340.0 ms", "senders waited for room on the link in 3 of", "own process waited up to 70.4 ms to run", "this node did not run for 3.0 s",
                   "the last bytes came", "4 retransmissions in a row", "the connection ended: etimedout\n$"]].
-endif.
