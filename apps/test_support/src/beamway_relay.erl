%% SPDX-License-Identifier: Apache-2.0
%% @doc A relay between two nodes: it forwards the bytes of TCP connections, records them, and modifies the bytes or closes the connections as a
%% test requires.
%%
%% The node listens on 127.0.0.1, but its name contains a different loopback address, on which the relay listens on the same port. So its peers reach
%% it through the relay, and the nodes do not notice.
-module(beamway_relay).

-export([start/2, start/3, node_at/3, recorded/1, sent/1, cut/1, stop/1, port/1]).
-export_type([relay/0, hook/0]).

-type relay() :: #{table := ets:table(), acceptor := pid()}.
-type hook() :: fun((up | down, Before :: non_neg_integer(), binary()) -> {ok, binary()} | {back, binary()} | cut).
%% The function decides what happens to the next bytes: they are forwarded, perhaps modified, or
%% sent back to the sender, or the connection is closed. `up' means that they come from the
%% connecting side, and `Before' is how many bytes have already passed in that direction.

-define(WAIT_MS, 20000).

%% @doc Starts a node that uses the carrier and is reached through a relay at `Address' (such as
%% "127.0.0.2"), which the caller must start next.
-spec node_at(beamway_peer:carrier(), Address :: string(), beamway_peer:options()) -> {pid(), node()}.
node_at(Carrier, Address, Options) ->
    Args = ["-kernel", "inet_dist_use_interface", "{127,0,0,1}" | maps:get(args, Options, [])],
    {ok, Peer, Node} = beamway_peer:start(Carrier, Options#{host => Address, args => Args}),
    {Peer, Node}.

%% @doc Starts a relay at `Address' that forwards to the node.
-spec start(Address :: string(), pid()) -> relay().
start(Address, Peer) -> start(Address, Peer, fun(_, _, Data) -> {ok, Data} end).

-spec start(Address :: string(), pid(), hook()) -> relay().
start(Address, Peer, Hook) ->
    {ok, Ip} = inet:parse_address(Address),
    Port = port(Peer),
    Table = ets:new(?MODULE, [public, ordered_set]),
    Self = self(),
    Acceptor = spawn_link(fun() ->
                                  {ok, Listen} = gen_tcp:listen(Port, [binary, {ip, Ip}, {active, false}, {reuseaddr, true}, {backlog, 128}]),
                                  Self ! {self(), listens},
                                  accept(Listen, {{127, 0, 0, 1}, Port}, Table, Hook)
                          end),
    receive {Acceptor, listens} -> #{table => Table, acceptor => Acceptor} after ?WAIT_MS -> error(no_relay) end.

%% @doc Returns the port on which a node listens.
-spec port(pid()) -> inet:port_number().
port(Peer) -> beamway_peer:call(Peer, ets, lookup_element, [beamway_links, {listens, tcp}, 2]).

accept(Listen, {Ip, Port} = Target, Table, Hook) ->
    {ok, Caller} = gen_tcp:accept(Listen),
    Pid = spawn(fun() ->
                        receive go -> ok end,
                        {ok, Called} = gen_tcp:connect(Ip, Port, [binary, {active, true}]),
                        ok = inet:setopts(Caller, [{active, true}]),
                        carry(#{Caller => {up, Called, 0}, Called => {down, Caller, 0}}, Table, Hook)
                end),
    ok = gen_tcp:controlling_process(Caller, Pid),
    true = ets:insert(Table, {{connection, erlang:unique_integer([monotonic])}, Pid}),
    Pid ! go,
    accept(Listen, Target, Table, Hook).

carry(Sides, Table, Hook) ->
    receive
        {tcp, Socket, Data} ->
            {Way, To, Before} = maps:get(Socket, Sides),
            true = ets:insert(Table, {{bytes, erlang:unique_integer([monotonic])}, self(), Way, Data}),
            case Hook(Way, Before, Data) of
                {ok, Passed} -> _ = gen_tcp:send(To, Passed), carry(Sides#{Socket := {Way, To, Before + byte_size(Data)}}, Table, Hook);
                {back, Passed} -> _ = gen_tcp:send(Socket, Passed), carry(Sides#{Socket := {Way, To, Before + byte_size(Data)}}, Table, Hook);
                cut -> ok
            end;
        {tcp_closed, _} -> ok;
        {tcp_error, _, _} -> ok
    end.

%% @doc Returns all bytes that have passed, in both directions.
-spec recorded(relay()) -> binary().
recorded(#{table := Table}) -> iolist_to_binary(ets:select(Table, [{{{bytes, '_'}, '_', '_', '$1'}, [], ['$1']}])).

%% @doc Returns the bytes that the connecting side of the first connection has sent.
-spec sent(relay()) -> binary().
sent(#{table := Table}) ->
    [First | _] = ets:select(Table, [{{{connection, '_'}, '$1'}, [], ['$1']}]),
    iolist_to_binary(ets:select(Table, [{{{bytes, '_'}, First, up, '$1'}, [], ['$1']}])).

%% @doc Closes all current connections.
-spec cut(relay()) -> ok.
cut(#{table := Table}) ->
    [exit(Pid, kill) || Pid <- ets:select(Table, [{{{connection, '_'}, '$1'}, [], ['$1']}])],
    ok.

-spec stop(relay()) -> ok.
stop(#{table := Table, acceptor := Acceptor} = Relay) ->
    unlink(Acceptor),
    exit(Acceptor, kill),
    ok = cut(Relay),
    true = ets:delete(Table),
    ok.
