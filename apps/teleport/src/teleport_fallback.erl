%% SPDX-License-Identifier: Apache-2.0
%% @doc Messages and calls by distribution, to nodes on which teleport does not run; and how they change to lanes when it is started there.
%%
%% {@link teleport_request} calls it when a node's process ({@link teleport_peer}) has found no teleport there. The row `{plain, Node}' of {@link
%% teleport_peers} says `open' then. The order of a sender and a receiver holds when it changes to lanes, for this reason:
%%
%% A sender enters itself into the table of this module, looks at the row, sends if it says `open', and leaves. To change, the node's process writes
%% `closing'. Whoever enters later does not send. Those who have sent have left, or are waited for, or have been killed and send no more. What they have
%% sent is in a queue before the next signal of any process, as far as ERTS is concerned. The driver of Beamway lets small signals pass large ones of other
%% senders, so its queue must be seen empty as well. An answer to a signal that was sent after all that proves that the rest has arrived.
%% Without the proof within its time the row says `open' again.
-module(teleport_fallback).

-export([send/4, call/5, begin_call/4, cast/4, counted/1, drain/1, arrived/1, sweep/1]).
-export_type([address/0]).

-define(TABLE, ?MODULE).
-define(DRAIN_MS, 2000).
-define(LOOK_MS, 2).
-define(NOBODY, '$teleport_nobody').

-type address() :: pid() | {Name :: atom(), node()}.

%% @doc Sends a message. No sender is suspended: it looks for room until its deadline. `changed': ask for the lane once more.
-spec send(node(), address(), Message :: term(), OnFull) -> ok | changed | {error, overload | timeout | {nodedown, node()}}
              when OnFull :: {block, teleport_deadline:deadline()} | error | drop.
send(Node, Address, Message, OnFull) ->
    case through(Node, fun() -> erlang:send(Address, Message, [noconnect, nosuspend]) end) of
        changed -> changed;
        {done, ok} -> counted(Node);
        {done, noconnect} -> {error, {nodedown, Node}};
        {done, nosuspend} -> full(Node, Address, Message, OnFull)
    end.

full(Node, _, _, drop) -> ok = overload(Node, drop), teleport_peers:count_plain(Node, dropped);
full(Node, _, _, error) -> ok = overload(Node, error), {error, overload};
full(Node, Address, Message, {block, Deadline} = OnFull) ->
    case teleport_deadline:left(Deadline) of
        0 -> ok = overload(Node, block), {error, timeout};
        _ -> receive after ?LOOK_MS -> send(Node, Address, Message, OnFull) end
    end.

overload(Node, OnFull) -> teleport_events:emit(Node, [teleport, overload], #{}, #{way => distribution, on_full => OnFull}).

%% @doc Calls a server. The request may wait for room without limit, as that of gen_server.
-spec call(node(), address(), Label :: term(), Request :: term(), timeout()) -> {reply, term()} | changed | {error, Reason :: term()}.
call(Node, Address, Label, Request, Timeout) ->
    case begin_call(Node, Address, Label, Request) of
        changed -> changed;
        {done, Id} ->
            case gen:receive_response(Id, Timeout) of
                {reply, Reply} -> {reply, Reply};
                timeout -> {error, timeout};
                {error, {noconnection, _}} -> {error, {nodedown, Node}};
                {error, {Reason, _}} -> {error, Reason}
            end
    end.

%% @doc Sends the request of a call; `gen' takes the response.
-spec begin_call(node(), address(), Label :: term(), Request :: term()) -> {done, gen:request_id()} | changed.
begin_call(Node, Address, Label, Request) -> through(Node, fun() -> ok = counted(Node), gen:send_request(Address, Label, Request) end).

%% @doc Applies a function there, as erpc:cast/4.
-spec cast(node(), module(), atom(), [term()]) -> {done, ok} | changed.
cast(Node, Module, Function, Args) -> through(Node, fun() -> ok = counted(Node), erpc:cast(Node, Module, Function, Args) end).

%% @doc Counts what goes by distribution.
-spec counted(node()) -> ok.
counted(Node) -> teleport_peers:count_plain(Node, sent).

through(Node, Send) ->
    Me = {Node, self()},
    true = ets:insert(?TABLE, {Me}),
    try teleport_peers:plain(Node) of
        open ->
            {done, Send()};
        _ -> changed
    after
        true = ets:delete(?TABLE, Me)
    end.

%% @doc Whether all that has been sent to this node has arrived there. The row says `closing'. Takes at most 2 s.
-spec drain(node()) -> drained | Why :: binary().
drain(Node) ->
    Deadline = teleport_deadline:in(?DRAIN_MS),
    %% After the first answer all of it has come to the driver, after the second to the node.
    steps([{fun() -> is_empty(Node) end, <<"senders are held">>}, {answers(Node, Deadline), <<"no answer">>},
           {fun() -> is_through(Node) end, <<"the connection is never idle">>}, {answers(Node, Deadline), <<"no answer">>}], Deadline).

steps([], _) -> drained;
steps([{IsDone, Not} | Rest] = Steps, Deadline) ->
    case {IsDone(), teleport_deadline:left(Deadline)} of
        {true, _} -> steps(Rest, Deadline);
        {false, 0} -> Not;
        {false, _} -> receive after ?LOOK_MS -> steps(Steps, Deadline) end
    end.

%% @doc Waits until all is acknowledged that has been sent over these lanes, at most 2 s. Senders find them closed.
-spec arrived([teleport_sender:tx()]) -> left.
arrived(Lanes) ->
    _ = steps([{fun() -> lists:all(fun(Tx) -> teleport_sender:outstanding(Tx) =< 0 end, Lanes) end, <<"not acknowledged">>}], teleport_deadline:in(?DRAIN_MS)),
    left.

is_empty(Node) -> sweep(Node), senders(Node) =:= [].

%% @doc Takes out those who were killed while they sent.
-spec sweep(node()) -> ok.
sweep(Node) -> lists:foreach(fun(Pid) -> is_process_alive(Pid) orelse ets:delete(?TABLE, {Node, Pid}) end, senders(Node)).

senders(Node) -> ets:select(?TABLE, [{{{Node, '$1'}}, [], ['$1']}]).

%% A connection that Beamway does not carry has no other queue.
is_through(Node) ->
    case beamway:info(Node) of
        {ok, #{queue_bytes := Bytes}} -> Bytes =:= 0;
        _ -> true
    end.

answers(Node, Deadline) ->
    fun() ->
        Monitor = monitor(process, {?NOBODY, Node}),
        receive
            {'DOWN', Monitor, process, _, Word} -> Word =:= noproc
        after teleport_deadline:left(Deadline) ->
            true = demonitor(Monitor, [flush]),
            false
        end
    end.
