%% SPDX-License-Identifier: Apache-2.0
%% @doc One end of a lane on a node, for the suites: a process that owns the lane and does what it is told.
%%
%% {@link join/4} makes a lane between two nodes and gives both ends. An end keeps its messages in its mailbox until a fun that
%% {@link do/2} runs in it takes them.
-module(beamway_lane_end).

-export([join/3, join/4, do/2, do/3, await_data/2, await_closed/1, queued/1, is_owner_alive/1]).
-export([listen/1, connect/2, result/1]).
-export_type([side/0]).

-type side() :: #{peer := pid(), owner := pid(), lane := beamway_lane:lane(), info := beamway_lane:info()}.
%% `peer': control of the node. `owner': the process that owns the lane there.

-define(ACCEPT_MS, 30000).
-define(WAIT_MS, 60000).

%% @doc A lane between two nodes, the first calls.
-spec join(pid(), pid(), beamway_lane:options()) -> {side(), side()}.
join(Caller, Acceptor, Options) ->
    join(Caller, Acceptor, Options, Options).

%% @doc The same with options for each side.
-spec join(pid(), pid(), beamway_lane:options(), beamway_lane:options()) -> {side(), side()}.
join(Caller, Acceptor, CallerOptions, AcceptorOptions) ->
    {Other, TcpPort} = beamway_peer:run(Acceptor, fun() -> listen(AcceptorOptions) end),
    One = beamway_peer:run(Caller, fun() -> connect(TcpPort, CallerOptions) end),
    {joined(Caller, One), joined(Acceptor, Other)}.

joined(Peer, Owner) ->
    {ok, Lane, Info} = beamway_peer:run(Peer, fun() -> result(Owner) end),
    #{peer => Peer, owner => Owner, lane => Lane, info => Info}.

%% @doc Starts an end that accepts one connection. To be called on the node.
-spec listen(beamway_lane:options()) -> {pid(), inet:port_number()}.
listen(Options) ->
    Self = self(),
    Owner = spawn(fun() ->
        {ok, Listen} = gen_tcp:listen(0, [binary, {active, false}, {ip, {127, 0, 0, 1}}]),
        {ok, TcpPort} = inet:port(Listen),
        Self ! {self(), TcpPort},
        {ok, Socket} = gen_tcp:accept(Listen, ?ACCEPT_MS),
        ok = gen_tcp:close(Listen),
        own(beamway_lane:agree(Socket, acceptor, with_deadline(Options)))
    end),
    receive {Owner, TcpPort} -> {Owner, TcpPort} after ?WAIT_MS -> error(no_listener) end.

%% @doc Starts an end that connects. To be called on the node.
-spec connect(inet:port_number(), beamway_lane:options()) -> pid().
connect(TcpPort, Options) ->
    spawn(fun() ->
        {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, TcpPort, [binary, {active, false}]),
        own(beamway_lane:agree(Socket, caller, with_deadline(Options)))
    end).

%% @doc What an end's agreement has come to. To be called on the node.
-spec result(pid()) -> {ok, beamway_lane:lane(), beamway_lane:info()} | {error, Reason :: binary()}.
result(Owner) ->
    call(Owner, fun(Result) -> Result end, ?WAIT_MS).

with_deadline(#{deadline := _} = Options) -> Options;
with_deadline(Options) -> Options#{deadline => erlang:monotonic_time(millisecond) + 10000 * beamway_runner:slowness()}.

%% No timeout: the end of the node or of the test is its end.
own(Result) ->
    receive
        {?MODULE, From, Ref, Use} ->
            From ! {Ref, try {ok, Use(Result)} catch Class:Reason:Stack -> {Class, Reason, Stack} end},
            own(Result)
    end.

call(Owner, Use, TimeoutMs) ->
    Ref = monitor(process, Owner),
    Owner ! {?MODULE, self(), Ref, Use},
    receive
        {Ref, {ok, Value}} -> demonitor(Ref, [flush]), Value;
        {Ref, Failed} -> demonitor(Ref, [flush]), error(Failed);
        {'DOWN', Ref, process, Owner, Reason} -> error({owner_ended, Reason})
    after TimeoutMs ->
        demonitor(Ref, [flush]),
        error({no_answer_within_ms, TimeoutMs})
    end.

%% @doc Runs a fun in the owning process, with the lane.
-spec do(side(), fun((beamway_lane:lane()) -> Value)) -> Value.
do(Side, Use) ->
    do(Side, Use, ?WAIT_MS * beamway_runner:slowness()).

%% @doc The same with a limit in milliseconds.
-spec do(side(), fun((beamway_lane:lane()) -> Value), pos_integer()) -> Value.
do(#{peer := Peer, owner := Owner, lane := Lane}, Use, TimeoutMs) ->
    beamway_peer:run(Peer, fun() -> call(Owner, fun(_) -> Use(Lane) end, TimeoutMs) end, TimeoutMs + 1000).

%% @doc Takes so many frames from the mailbox, as they come. For a fun of {@link do/2}.
-spec await_data(beamway_lane:lane(), non_neg_integer()) -> [binary()].
await_data(Lane, Count) ->
    [receive
         {Lane, {data, Frame}} -> Frame;
         {Lane, closed, _, _} = Closed -> error(Closed)
     after ?WAIT_MS -> error({no_frame, Number, process_info(self(), messages), beamway_lane:stats(Lane)})
     end || Number <- lists:seq(1, Count)].

%% @doc Waits for the lane's last message.
-spec await_closed(side()) -> {Reason :: atom(), Unreleased :: non_neg_integer()}.
await_closed(Side) ->
    do(Side, fun(Lane) ->
                     receive {Lane, closed, Reason, Unreleased} -> {Reason, Unreleased}
                     after ?WAIT_MS -> error({not_closed, beamway_lane:stats(Lane)})
                     end
             end, ?WAIT_MS + 10000).

%% @doc How many messages wait in the owner's mailbox.
-spec queued(side()) -> non_neg_integer().
queued(#{peer := Peer, owner := Owner}) ->
    {message_queue_len, Length} = beamway_peer:call(Peer, erlang, process_info, [Owner, message_queue_len]),
    Length.

%% @doc Whether the owner lives.
-spec is_owner_alive(side()) -> boolean().
is_owner_alive(#{peer := Peer, owner := Owner}) ->
    beamway_peer:call(Peer, erlang, is_process_alive, [Owner]).
