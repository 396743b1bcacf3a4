%% SPDX-License-Identifier: Apache-2.0
%% @doc Shows and controls the links of this node.
%%
%% ```
%% 1> beamway:links().
%% [#{node => b@host,link => shm,reason => <<"same host">>,
%%    address => <<"127.0.0.1:45123">>,since => 1790000000}]
%% 2> {ok, #{doorbells_out := N}} = beamway:info(b@host).
%% '''
%% Every call returns immediately and never queries a peer.
-module(beamway).

-export([links/0, fault/2, faults/0, senders/0, senders/1, senders/2, info/0, info/1, loads/0, why/0, why/1, metrics/0, carries/1, class/1, version/0, reload_driver/0, reload_certificates/0]).
-export_type([fault/0, sender/0, link_info/0, load/0, explained/0, class/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-import(beamway_result, [then/2]).

-type link_info() :: #{node := node(),
                       link := beamway_kind:label(),
                       reason := binary(),
                       address := binary(),
                       since := integer(),
                       key => binary(),
                       fault => beamway_fault:known(),
                       connections => pos_integer(),
                       resumes => pos_integer(),
                       last_resume => #{cause := atom(), ms := non_neg_integer()}}.
%% `reason' explains why the link is of this kind; `since' is system time in seconds. `key' is only present with the option `encrypt': it
%% identifies the key of which both nodes have proved possession, as `cookie' or `key file' followed by the first 8 hexadecimal digits of its
%% fingerprint. `connections' is the current number of connections, for links that can have more than one. `fault' is the fault set with
%% {@link fault/2}, with the remaining milliseconds. `resumes' counts how often the link has continued over a new connection, most recently because of
%% `cause', after `ms' milliseconds without a connection.

-type explained() :: #{node := node(), link := beamway_kind:label(), address := binary(), since := integer(),
                       cause := beamway_verdict:cause(), short := binary(),
                       facts := [#{ago_ms := non_neg_integer(), text := binary()}],
                       seconds := [#{steps | atom() => non_neg_integer()}], tens := [#{steps | atom() => non_neg_integer()}],
                       ended => #{ago_ms := non_neg_integer(), reason := binary()}}.
%% `cause' is `up' while the link has not `ended'. `short' is one sentence about the cause. `facts' are listed oldest first, each with how many
%% milliseconds before the end (or before now, if the link is up) it happened. `seconds' and `tens' show the link's activity in one-second and
%% ten-second steps, newest first; `steps' is the number of consecutive equal steps.

-type load() :: #{cpu_percent := 0..100, run_queue := non_neg_integer(), loadavg1 => float(), mem_available => pos_integer(), age_ms := non_neg_integer()}.
%% The load that a peer reported `age_ms' milliseconds ago. `cpu_percent' is the CPU time of its VM as a percentage of what its schedulers could use, and
%% `run_queue' the length of its run queues. `loadavg1' and `mem_available' are the host's load average over one minute and its available memory in
%% bytes, which only some systems provide.

-type sender() :: #{pid := pid(), name => atom(), label => binary(), initial_call => mfa(), class := class(),
                    sent := non_neg_integer(), bytes_per_s := non_neg_integer(), waiting := non_neg_integer()}.
%% A process that has exited has no name, no label and no initial call. `label' is what the process passed to proc_lib:set_label/1 (OTP 27).
%% `sent' is the number of bytes sent during the observed time, and `bytes_per_s' the same per second. `waiting' is the number of bytes queued for
%% the link.

-type fault() :: beamway_fault:fault().
%% See {@link fault/2}.

-type class() :: beamway_classes:class().
%% If several processes send more than a link can carry, control messages go first, then normal, then bulk.

%% @doc Returns the links that are up. On a node that does not run the carrier, the list is empty.
-spec links() -> [link_info()].
links() ->
    [public(Link) || Link <- lists:sort(beamway_links:all())].

public(Link) ->
    Public = maps:with([node, link, reason, address, since, key, connections, resumes, last_resume], Link),
    case beamway_fault_path:of_node(map_get(node, Link)) of
        {ok, Fault} -> Public#{fault => Fault};
        none -> Public
    end.

%% @doc Breaks the network between this node and another one, for tests. Returns an error unless this node was started with the option
%% `allow_faults'.
%%
%% <dl>
%% <dt>`delay_ms', `jitter_ms' (0 to 10000)</dt><dd>bytes arrive this much later, in each direction; jitter adds a random delay of up to its value.
%% Bytes stay in order</dd>
%% <dt>`rate_bytes' (from 1000)</dt><dd>bytes a second in each direction</dd>
%% <dt>`cut' (`in', `out', `both')</dt><dd>nothing passes in that direction, as if every packet were lost, and no new connection can be
%% made</dd>
%% <dt>`disconnect' (`true')</dt><dd>the connection is reset immediately</dd>
%% <dt>`for_ms' (1 to 3600000)</dt><dd>the fault expires after this time; the default is one minute</dd>
%% </dl>
%% A second call replaces the first fault, and `none' clears it. A fault affects all current and future connections to that node, and attempts by
%% either side to open one. The other node does not have to allow faults. Delayed data is stored in one ring per direction; when the ring is full,
%% senders on this node wait, as they would for a slow peer. An invalid key or value raises `{badarg, {fault, Value, Expected}}'.
-spec fault(node(), beamway_fault:fault() | none) -> ok | {error, beamway_fault:refusal()}.
fault(Node, Fault) -> beamway_fault:set(Node, Fault).

%% @doc Returns the faults set on this node, including those for nodes to which it currently has no link.
-spec faults() -> [{node(), beamway_fault:known()}].
faults() -> beamway_fault_path:all().

%% @doc Returns what is known about the link to a node: the fields of {@link links/0} and the counters of
%% {@link beamway_port:stats/1}. If OTP's own port or ssl's processes carry the data, there are only the socket's own counters.
-spec info(node()) -> {ok, #{atom() => term()}} | {error, not_connected}.
info(Node) ->
    then(link_to(Node), fun(Link) -> {ok, with_counters(Link)} end).

link_to(Node) ->
    case [Link || #{node := Of} = Link <- beamway_links:all(), Of =:= Node] of
        [Link | _] -> {ok, Link};
        [] -> {error, not_connected}
    end.

with_counters(Link) -> maps:merge(public(Link), beamway_metrics:of_link(Link)).

%% @doc Like {@link info/1}, but for all links.
-spec info() -> [#{atom() => term()}].
info() ->
    [with_counters(Link) || Link <- lists:sort(beamway_links:all())].

%% @doc Returns the load of the peers, according to their latest reports. They send reports along with ticks, acknowledgements and messages that are
%% due anyway, at most once a second, so this call does not query any peer. The report of an idle peer is at most one tick old, and that of a peer
%% that sends little at most two. A tick is a quarter of kernel's `net_ticktime', by default 15 s. A peer is missing from the result if it runs an
%% older version or a different carrier. {@link info/1} returns the same data, with `peer_' before each name.
-spec loads() -> #{node() => load()}.
loads() ->
    maps:from_list([{Node, Load} || #{node := Node} = Link <- beamway_links:all(), #{} = Load <- [beamway_metrics:peer_load(Link)]]).

%% @doc Explains why the links to a node ended, and what happened on each of them before that. The current link, if there is one, comes first,
%% followed by those that ended in the last hour, most recent first. `{error, unknown}' means that there were no links. Within two seconds of a
%% `nodedown', this call may wait for an answer from the peer's epmd.
-spec why(node()) -> {ok, [explained(), ...]} | {error, unknown}.
why(Node) when is_atom(Node) ->
    case beamway_recorder:records(Node) of
        [] -> {error, unknown};
        Records -> {ok, [explained(Record) || Record <- Records]}
    end;
why(Other) ->
    error({badarg, {node, Other, "expected the name of a node, an atom"}}).

%% @doc Like {@link why/1}, but for all nodes.
-spec why() -> [explained()].
why() ->
    [explained(Record) || Record <- beamway_recorder:records()].

explained(Record) ->
    #{cause := Cause, short := Short, facts := Facts} = case Record of #{verdict := Known} -> Known; #{} -> beamway_verdict:verdict(Record) end,
    Steps = fun(Key) -> [Step#{steps => Count} || {Count, Step} <- map_get(Key, Record)] end,
    Ended = maps:map(fun(_, #{reason := Reason} = How) -> How#{reason := iolist_to_binary(io_lib:format("~0tp", [Reason]))} end, maps:with([ended], Record)),
    maps:merge(maps:merge(maps:with([node, link, address, since], Record), Ended),
               #{cause => Cause, short => Short, facts => [#{ago_ms => AgoMs, text => Text} || {AgoMs, Text} <- Facts],
                 seconds => Steps(seconds), tens => Steps(tens)}).

%% @doc Returns the processes of this node (at most twelve) that sent the most over the link to a node in the last ten seconds. Those with the most
%% queued bytes come first. Small messages are sampled: one is counted per 16 KB. `not_driven' means that OTP's own port or processes of ssl carry the
%% link.
-spec senders(node()) -> {ok, [sender()]} | {error, not_connected | not_driven}.
senders(Node) when is_atom(Node) ->
    then(link_to(Node), fun(#{connection := Connection} = Link) -> lately(Link, beamway_recorder:traffic([Connection]), 1000) end);
senders(Node) ->
    error({badarg, {node, Node, "expected the name of a node, an atom"}}).

%% @doc Like {@link senders/1}, but for all links of this node.
-spec senders() -> #{node() => [sender()]}.
senders() ->
    Links = beamway_links:all(),
    Traffic = beamway_recorder:traffic([Connection || #{connection := Connection} <- Links]),
    maps:from_list([{Node, Senders} || #{node := Node} = Link <- Links, {ok, Senders} <- [lately(Link, Traffic, 0)]]).

%% @doc Like {@link senders/1}, but blocks for `Ms' milliseconds and measures during that time. If `Ms' is 0, returns only the bytes that are
%% currently queued.
-spec senders(node(), Ms :: non_neg_integer()) -> {ok, [sender()]} | {error, not_connected | not_driven}.
senders(Node, Ms) when is_atom(Node), is_integer(Ms), Ms >= 0, Ms =< 60000 ->
    then(link_to(Node), fun(Link) -> of_link(Link, fun(Port) -> beamway_senders:within(Port, Ms) end) end);
senders(Node, Ms) ->
    error({badarg, {senders, {Node, Ms}, "expected the name of a node and milliseconds from 0 to 60000"}}).

of_link(Link, Ask) ->
    case beamway_links:driven(Link) of
        {ok, Port} ->
            try {ok, Ask(Port)}
            catch error:badarg -> {error, not_connected} % the link has just been closed
            end;
        none -> {error, not_driven}
    end.

%% Returns what was sent since the recorder's earlier reading. If the recorder is off, measures for `Ms' milliseconds instead.
lately(#{connection := Connection} = Link, Traffic, Ms) ->
    of_link(Link, fun(Port) ->
                          case Traffic of
                              #{Connection := {Before, AgoMs}} -> beamway_senders:since(Port, Before, AgoMs);
                              #{} -> beamway_senders:within(Port, Ms)
                          end
                  end).

%% @doc Returns the counters of all links as Prometheus text.
-spec metrics() -> iolist().
metrics() ->
    beamway_metrics:prometheus(beamway_metrics:families(beamway_links:all())).

%% @doc Returns whether this application's driver carries the distribution to a node. If so, small messages to the node overtake large ones from
%% other senders.
-spec carries(node()) -> boolean().
carries(Node) ->
    lists:any(fun(#{node := Of} = Link) -> Of =:= Node andalso beamway_links:driven(Link) =/= none end, beamway_links:all()).

%% @doc Gives the calling process a class on all current and future links of this node, and returns its previous class. Without this call, the class of
%% a process is `normal'.
%%
%% If messages are queued on a link, those from processes of class `control' go before those of class `normal', which go before those of class `bulk'.
%% Each class has a share of the bandwidth, so no class can block another: a class that always has messages queued gets at least 4/9 (`control'), 2/9
%% (`normal') or 1/9 (`bulk') of the bytes. The messages of one process always stay in order: when it changes its class, its queued messages move to
%% the new class too. A process loses its class when it exits. Links carried by OTP's own port or by processes of ssl have no classes, and the call
%% has no effect on a node that does not run the carrier.
%%
%% A call takes about a microsecond per link, so make it in the `init' of a long-lived process. Use the option `classes' for processes of programs
%% that do not call this function.
-spec class(class()) -> Former :: class().
class(Class) when Class =:= control; Class =:= normal; Class =:= bulk -> beamway_classes:set(self(), Class);
class(Class) -> error({badarg, {class, Class, "expected control, normal or bulk"}}).

%% @doc Returns the version of the application, from its app file.
-spec version() -> string().
version() ->
    _ = application:load(beamway),
    {ok, Version} = application:get_key(beamway, vsn),
    Version.

%% @doc Reloads the driver from the current location of the application `beamway' in the code path, without restarting the node.
%%
%% All links of this node are closed first, as if the peers had been disconnected, and are set up again by the next message. Load the modules of the
%% new version before the call. After an error this node has no driver, and uses OTP's own port until a later call succeeds. Connections that OTP's
%% own port carries are not affected.
-spec reload_driver() -> ok | {error, Reason :: binary()}.
reload_driver() ->
    Who = iolist_to_binary(["beamway:reload_driver/0, called by ", beamway_senders:described(self())]),
    _ = [ok = beamway_recorder:note(Connection, {disconnected_by, Who}) || #{connection := Connection} = Link <- beamway_links:all(), beamway_links:driven(Link) =/= none],
    ok = beamway_links:reload_driver(),
    beamway_driver:loaded().

%% @doc Makes new TLS connections use the current contents of the certificate files. Without this call, ssl may use a cached copy of the files for up
%% to two minutes. Existing connections are not affected, unless the option `renew_connections' is set: then the links over TLS move to new
%% connections.
-spec reload_certificates() -> ok.
reload_certificates() -> beamway_renewal:reload().

-ifdef(TEST).

without_the_carrier_test_() ->
    [?_assertEqual([], links()),
     ?_assertEqual({error, not_connected}, info(nobody@nowhere)),
     ?_assertEqual([], info()),
     ?_assertEqual(#{}, loads()),
     ?_assertEqual({error, unknown}, why(nobody@nowhere)),
     ?_assertError({badarg, {node, "a@b", _}}, why("a@b")),
     ?_assertEqual(normal, class(control)),
     ?_assertEqual(normal, class(bulk)),
     ?_assertError({badarg, {class, "bulk", "expected control, normal or bulk"}}, class("bulk")),
     ?_assertEqual(<<>>, iolist_to_binary(metrics()))].

-endif.
