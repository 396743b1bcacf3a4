%% SPDX-License-Identifier: Apache-2.0
%% @doc Messages and calls between nodes over lanes: ordered links of their own, apart from the distribution connection.
%%
%% ```
%% ok = teleport:send({name, Node}, Message),
%% Reply = teleport:call({server, Node}, Request),
%% ok = teleport:cast(Pid, Request)'''
%%
%% A destination is a pid, a name or `{Name, Node}', `{global, Name}' or `{via, Module, Name}'; local ones are sent to directly. Servers stay
%% ordinary gen_servers and gen_statems. What is guaranteed: docs/guide/teleport.md.
%%
%% Calls end as those of gen_server do: with the reply, or with an exit whose reason is `{Reason, {teleport, call, Arguments}}', where
%% `Reason' is `timeout', `noproc', the reason of the server's end, `{nodedown, Node}', `{lane_lost, Node}', `overload',
%% `{too_big, Bytes}' or `{no_lane, Why}'.
-module(teleport).

-export([send/2, send/3, call/2, call/3, call/4, cast/2, cast/3, gs_call/2, gs_call/3, gs_cast/2]).
-export([send_request/2, send_request/3, send_request/4, send_request/5, wait_response/2, wait_response/3]).
-export([receive_response/2, receive_response/3, check_response/2, check_response/3, reqids_new/0, reqids_size/1, reqids_add/3, reqids_to_list/1]).
-export([multi_call/2, multi_call/3, multi_call/4, multi_call/5]).
-export([statem_call/2, statem_call/3, statem_cast/2, notify/2, sync_notify/2, event_call/3, event_call/4]).
-export([fsm_event/2, fsm_all_state_event/2, fsm_sync_event/2, fsm_sync_event/3, fsm_sync_all_state_event/2, fsm_sync_all_state_event/3]).
-export([erpc_call/4, erpc_call/5, erpc_cast/4, erpc_cast/5, multicall/4, multicall/5, abcast/2, abcast/3]).
-export([broadcast/2, broadcast/4]).
-export([whereis_name/1, register_name/2, unregister_name/1]).
-export([binary/1, read_file/1, blocks/0]).
-export([prime/1, prime/2, lanes/0, lanes/1, not_up/0, by_distribution/0, unconfirmed/0, metrics/0, configure/2]).
-export_type([dest/0, options/0, reason/0, request_id/0, request_ids/0, lane_info/0]).

-type dest() :: pid() | atom() | {Name :: atom(), node()} | {global, term()} | {via, module(), term()}.
-type options() :: #{class => teleport_config:class(),       %% normal
                     key => term(),                          %% messages of one key keep their order; default {sender, destination}
                     unordered => boolean(),                 %% any lane of the class
                     confirm => boolean(),                   %% only send/3: `{ok, Ref}', and later `{teleport, Ref, confirmed | {unconfirmed, reason()}}'
                     way => lane | distribution,             %% default the option way: see {@link teleport_way}
                     on_full => block | error | drop,
                     timeout => timeout()}.                  %% milliseconds that a send may block, default the option block_ms
-type reason() :: overload | timeout | noproc | {nodedown, node()} | {lane_lost, node()} | {no_teleport, node()} | {no_lane, term()} | {too_big, Bytes :: pos_integer()}.
-type request_id() :: teleport_request:id().
-type request_ids() :: teleport_requests:collection().
-type response() :: {reply, term()} | {error, {Reason :: term(), dest()}}.
-type lane_info() :: #{node := node(), class := teleport_config:class(), index := non_neg_integer(), opened_by := this_node | peer,
                       state := up, kind := beamway_kind:label(), atom() => term()}.

-define(CALL_MS, 5000).
-define(INFO_MS, 1000).

%% @doc Sends a message. `ok': it was accepted, and arrives in order unless its lane is lost. Waits while there is no room.
-spec send(dest(), term()) -> ok | {error, reason()}.
send(Dest, Message) ->
    case teleport_way:is_direct(Dest) andalso erlang:send(Dest, Message, [noconnect]) of
        ok -> ok;
        _ -> teleport_request:send(Dest, Message, #{})
    end.

%% @doc The same with options.
-spec send(dest(), term(), options()) -> ok | {ok, reference()} | {error, reason()}.
send(Dest, Message, Options) -> teleport_request:send(Dest, Message, teleport_request:checked(Options)).

%% @doc Calls a gen_server or gen_statem, for at most 5 s.
-spec call(dest(), term()) -> term().
call(Dest, Request) -> call(Dest, Request, ?CALL_MS).

%% @doc The same with a limit in milliseconds.
-spec call(dest(), term(), timeout()) -> term().
call(Dest, Request, Timeout) -> teleport_request:call(call, Dest, Request, Timeout, #{}).

%% @doc The same with options.
-spec call(dest(), term(), timeout(), options()) -> term().
call(Dest, Request, Timeout, Options) -> teleport_request:call(call, Dest, Request, Timeout, teleport_request:checked(Options)).

%% @doc Sends a request that has no reply.
-spec cast(dest(), term()) -> ok | {error, reason()}.
cast(Dest, Request) -> send(Dest, {'$gen_cast', Request}).

%% @doc The same with options.
-spec cast(dest(), term(), options()) -> ok | {ok, reference()} | {error, reason()}.
cast(Dest, Request, Options) -> send(Dest, {'$gen_cast', Request}, Options).

%% @equiv call(Dest, Request)
-spec gs_call(dest(), term()) -> term().
gs_call(Dest, Request) -> call(Dest, Request).

%% @equiv call(Dest, Request, Timeout)
-spec gs_call(dest(), term(), timeout()) -> term().
gs_call(Dest, Request, Timeout) -> call(Dest, Request, Timeout).

%% @equiv cast(Dest, Request)
-spec gs_cast(dest(), term()) -> ok | {error, reason()}.
gs_cast(Dest, Request) -> cast(Dest, Request).

%% @doc Begins a call; the reply is taken later, by the same process.
-spec send_request(dest(), term()) -> request_id().
send_request(Dest, Request) -> teleport_request:begin_call(call, Dest, Request, #{}).

%% @doc The same with options.
-spec send_request(dest(), term(), options()) -> request_id().
send_request(Dest, Request, Options) -> teleport_request:begin_call(call, Dest, Request, teleport_request:checked(Options)).

%% @doc As gen_server:send_request/4: begins a call, and adds it to a collection under a label.
-spec send_request(dest(), term(), Label :: term(), request_ids()) -> request_ids().
send_request(Dest, Request, Label, Ids) -> send_request(Dest, Request, Label, Ids, #{}).

%% @doc The same with options.
-spec send_request(dest(), term(), Label :: term(), request_ids(), options()) -> request_ids().
send_request(Dest, Request, Label, Ids, Options) -> reqids_add(send_request(Dest, Request, Options), Label, Ids).

%% @doc Waits for the reply of {@link send_request/2}; after `timeout' it may be waited for again. The limit may be `{abs, Ms}', as for gen_server.
-spec wait_response(request_id(), teleport_requests:limit()) -> {reply, term()} | timeout | {error, {Reason :: term(), dest()}}.
wait_response(Id, Limit) -> teleport_request:wait(Id, Limit).

%% @doc The same, but after `timeout' the reply is thrown away when it comes.
-spec receive_response(request_id(), teleport_requests:limit()) -> {reply, term()} | timeout | {error, {Reason :: term(), dest()}}.
receive_response(Id, Limit) -> teleport_request:finish(Id, Limit).

%% @doc Whether a message that was received is the reply.
-spec check_response(Message :: term(), request_id()) -> {reply, term()} | no_reply | {error, {Reason :: term(), dest()}}.
check_response(Message, Id) -> teleport_request:check(Message, Id).

%% @doc As gen_server:wait_response/3: the next response to one of these requests.
-spec wait_response(request_ids(), teleport_requests:limit(), Delete :: boolean()) -> {response(), Label :: term(), request_ids()} | no_request | timeout.
wait_response(Ids, Limit, Delete) -> teleport_requests:wait(Ids, Limit, Delete).

%% @doc As gen_server:receive_response/3: the same, but after `timeout' all of them are given up.
-spec receive_response(request_ids(), teleport_requests:limit(), Delete :: boolean()) ->
          {response(), Label :: term(), request_ids()} | no_request | timeout.
receive_response(Ids, Limit, Delete) -> teleport_requests:finish(Ids, Limit, Delete).

%% @doc As gen_server:check_response/3: whether a message that was received is a response to one of them.
-spec check_response(Message :: term(), request_ids(), Delete :: boolean()) -> {response(), Label :: term(), request_ids()} | no_request | no_reply.
check_response(Message, Ids, Delete) -> teleport_requests:check(Message, Ids, Delete).

%% @doc As gen_server:reqids_new/0: an empty collection.
-spec reqids_new() -> request_ids().
reqids_new() -> teleport_requests:new().

%% @doc As gen_server:reqids_size/1.
-spec reqids_size(request_ids()) -> non_neg_integer().
reqids_size(Ids) -> teleport_requests:size(Ids).

%% @doc As gen_server:reqids_add/3.
-spec reqids_add(request_id(), Label :: term(), request_ids()) -> request_ids().
reqids_add(Id, Label, Ids) -> teleport_requests:add(Id, Label, Ids).

%% @doc As gen_server:reqids_to_list/1.
-spec reqids_to_list(request_ids()) -> [{request_id(), Label :: term()}].
reqids_to_list(Ids) -> teleport_requests:to_list(Ids).

%% @doc As gen_server:multi_call/2: calls the servers of this name on all nodes that are connected, and here.
-spec multi_call(Name :: atom(), term()) -> {Replies :: [{node(), term()}], Bad :: [node()]}.
multi_call(Name, Request) -> multi_call([node() | nodes()], Name, Request).

%% @doc As gen_server:multi_call/3.
-spec multi_call([node()], Name :: atom(), term()) -> {Replies :: [{node(), term()}], Bad :: [node()]}.
multi_call(Nodes, Name, Request) -> multi_call(Nodes, Name, Request, infinity).

%% @doc As gen_server:multi_call/4.
-spec multi_call([node()], Name :: atom(), term(), timeout()) -> {Replies :: [{node(), term()}], Bad :: [node()]}.
multi_call(Nodes, Name, Request, Timeout) -> multi_call(Nodes, Name, Request, Timeout, #{}).

%% @doc The same with options. All nodes at once, and one limit for all.
-spec multi_call([node()], Name :: atom(), term(), timeout(), options()) -> {Replies :: [{node(), term()}], Bad :: [node()]}.
multi_call(Nodes, Name, Request, Timeout, Options) when is_atom(Name) ->
    lists:foreach(fun teleport_config:of_node/1, Nodes),
    %% The requests come behind what the caller has sent to these servers.
    Keyed = maps:merge(#{key => {self(), Name}}, teleport_request:checked(Options)),
    Deadline = teleport_deadline:in(Timeout),
    Call = fun(Node) ->
                   try {reply, teleport_request:call(call, {Name, Node}, Request, teleport_deadline:left(Deadline), Keyed)}
                   catch exit:_ -> bad
                   end
           end,
    Results = teleport_each:run(Nodes, Call),
    {[{Node, Reply} || {Node, {ok, {reply, Reply}}} <- Results], [Node || {Node, Ended} <- Results, not is_reply(Ended)]}.

is_reply({ok, {reply, _}}) -> true;
is_reply(_) -> false.

%% @equiv call(Dest, Request, infinity)
-spec statem_call(dest(), term()) -> term().
statem_call(Dest, Request) -> call(Dest, Request, infinity).

%% @doc As gen_statem:call/3. A reply that comes too late never comes to the caller, so `clean_timeout' and `dirty_timeout' are the same.
-spec statem_call(dest(), term(), timeout() | {clean_timeout | dirty_timeout, timeout()}) -> term().
statem_call(Dest, Request, {Kind, Timeout}) when Kind =:= clean_timeout; Kind =:= dirty_timeout -> call(Dest, Request, Timeout);
statem_call(Dest, Request, Timeout) -> call(Dest, Request, Timeout).

%% @equiv cast(Dest, Message)
-spec statem_cast(dest(), term()) -> ok | {error, reason()}.
statem_cast(Dest, Message) -> cast(Dest, Message).

%% @doc As gen_event:notify/2.
-spec notify(dest(), term()) -> ok | {error, reason()}.
notify(Dest, Event) -> send(Dest, {notify, Event}).

%% @doc As gen_event:sync_notify/2.
-spec sync_notify(dest(), term()) -> ok.
sync_notify(Dest, Event) -> teleport_request:call(event_call, Dest, {sync_notify, Event}, infinity, #{}).

%% @doc As gen_event:call/3.
-spec event_call(dest(), Handler :: term(), term()) -> term().
event_call(Dest, Handler, Request) -> event_call(Dest, Handler, Request, ?CALL_MS).

%% @doc As gen_event:call/4.
-spec event_call(dest(), Handler :: term(), term(), timeout()) -> term().
event_call(Dest, Handler, Request, Timeout) -> teleport_request:call(event_call, Dest, {call, Handler, Request}, Timeout, #{}).

%% @doc As gen_fsm:send_event/2.
-spec fsm_event(dest(), term()) -> ok | {error, reason()}.
fsm_event(Dest, Event) -> send(Dest, {'$gen_event', Event}).

%% @doc As gen_fsm:send_all_state_event/2.
-spec fsm_all_state_event(dest(), term()) -> ok | {error, reason()}.
fsm_all_state_event(Dest, Event) -> send(Dest, {'$gen_all_state_event', Event}).

%% @doc As gen_fsm:sync_send_event/2.
-spec fsm_sync_event(dest(), term()) -> term().
fsm_sync_event(Dest, Event) -> fsm_sync_event(Dest, Event, ?CALL_MS).

%% @doc As gen_fsm:sync_send_event/3.
-spec fsm_sync_event(dest(), term(), timeout()) -> term().
fsm_sync_event(Dest, Event, Timeout) -> teleport_request:call({other_call, '$gen_sync_event'}, Dest, Event, Timeout, #{}).

%% @doc As gen_fsm:sync_send_all_state_event/2.
-spec fsm_sync_all_state_event(dest(), term()) -> term().
fsm_sync_all_state_event(Dest, Event) -> fsm_sync_all_state_event(Dest, Event, ?CALL_MS).

%% @doc As gen_fsm:sync_send_all_state_event/3.
-spec fsm_sync_all_state_event(dest(), term(), timeout()) -> term().
fsm_sync_all_state_event(Dest, Event, Timeout) ->
    teleport_request:call({other_call, '$gen_sync_all_state_event'}, Dest, Event, Timeout, #{}).

%% @doc As erpc:call/4: the function's value, or the same exceptions.
-spec erpc_call(node(), module(), atom(), [term()]) -> term().
erpc_call(Node, Module, Function, Args) -> erpc_call(Node, Module, Function, Args, infinity).

%% @doc As erpc:call/5, or with a map of options; {@link teleport_erpc} has erpc's whole interface. The limit holds for all of it, the opening of a
%% lane as well. `{erpc, noconnection}': the node is not there, or no lane to it can be opened.
-spec erpc_call(node(), module(), atom(), [term()], teleport_erpc:limit()) -> term().
erpc_call(Node, Module, Function, Args, Limit) -> teleport_erpc:call(Node, Module, Function, Args, Limit).

%% @doc As erpc:cast/4, but tells when it could not be sent, as {@link cast/2} does.
-spec erpc_cast(node(), module(), atom(), [term()]) -> ok | {error, reason()}.
erpc_cast(Node, Module, Function, Args) -> teleport_erpc:cast(Node, Module, Function, Args).

%% @doc The same with options.
-spec erpc_cast(node(), module(), atom(), [term()], teleport_erpc:options()) -> ok | {error, reason()}.
erpc_cast(Node, Module, Function, Args, Options) -> teleport_erpc:cast(Node, Module, Function, Args, Options).

%% @doc As erpc:multicall/4.
-spec multicall([node()], module(), atom(), [term()]) -> [term()].
multicall(Nodes, Module, Function, Args) -> teleport_erpc:multicall(Nodes, Module, Function, Args).

%% @doc As erpc:multicall/5, or with options: for each node `{ok, Value}' or `{Class, Reason}', within one limit for all.
-spec multicall([node()], module(), atom(), [term()], teleport_erpc:limit()) -> [term()].
multicall(Nodes, Module, Function, Args, Limit) -> teleport_erpc:multicall(Nodes, Module, Function, Args, Limit).

%% @doc Casts to the server of this name on all nodes that are connected, and here.
-spec abcast(Name :: atom(), term()) -> abcast | {error, [{node(), reason()}, ...]}.
abcast(Name, Request) -> abcast([node() | nodes()], Name, Request).

%% @doc The same on these nodes, on all at once: one that is stuck holds up no other. The error names the nodes to which it could not be sent.
-spec abcast([node()], Name :: atom(), term()) -> abcast | {error, [{node(), reason()}, ...]}.
abcast(Nodes, Name, Request) ->
    %% Whoever is not started or gives no nodes hears of it here.
    lists:foreach(fun teleport_config:of_node/1, Nodes),
    %% A local server that is not there is none that could not be reached.
    _ = [cast(Name, Request) || lists:member(node(), Nodes)],
    %% The caller waits, so its next message to one of these servers comes behind this one: both have the caller's key.
    Options = #{key => {self(), Name}},
    case teleport_each:send([Node || Node <- Nodes, Node =/= node()], fun(Node) -> cast({Name, Node}, Request, Options) end) of
        [] -> abcast;
        Failed -> {error, Failed}
    end.

%% @doc Sends a message to all members of a group of `pg''s default scope, this node's included. It is encoded once and sent once to each node; each
%% member gets it once, however often it has joined.
-spec broadcast(Group :: term(), Message :: term()) -> teleport_groups:result() | {error, teleport_groups:refusal()}.
broadcast(Group, Message) -> broadcast(pg, Group, Message, #{}).

%% @doc The same with a scope, which must run on this node, and options. Returns when each node has confirmed the message or its time is over, and
%% tells how each node was reached ({@link teleport_groups:result()}). Broadcasts of one process to one group arrive in order. `busy': as many broadcasts
%% of this node as the option max_broadcasts allows are under way, and nothing was sent.
-spec broadcast(Scope :: atom(), Group :: term(), Message :: term(), teleport_groups:options()) -> teleport_groups:result() | {error, teleport_groups:refusal()}.
broadcast(Scope, Group, Message, Options) -> teleport_groups:broadcast(Scope, Group, Message, Options).

%% @doc Of `{via, teleport, {Name, Node}}': the registered process of this node, or a local process that stands for one of another node. It forwards calls
%% and messages by lane, ends with the server and its reason, and is dropped when nobody has used or monitored it for a while.
-spec whereis_name({Name :: atom(), node()}) -> pid() | undefined.
whereis_name(Name) -> teleport_via:whereis_name(Name).

%% @doc Registers a process under `Name' at its own node, which must be `Node'.
-spec register_name({Name :: atom(), node()}, pid()) -> yes | no.
register_name(Name, Pid) -> teleport_via:register_name(Name, Pid).

%% @doc Takes the name away, on whichever node.
-spec unregister_name({Name :: atom(), node()}) -> ok.
unregister_name(Name) -> teleport_via:unregister_name(Name).

%% @doc Opens all lanes to a node, so that the first message need not wait for one.
-spec prime(node()) -> ok | {error, reason()}.
prime(Node) -> prime(Node, ?CALL_MS).

%% @doc The same with a limit in milliseconds.
-spec prime(node(), timeout()) -> ok | {error, reason()}.
prime(Node, _) when Node =:= node() -> ok;
prime(Node, Timeout) when is_atom(Node) ->
    Deadline = teleport_deadline:in(Timeout),
    case teleport_peers:counts(Node, Deadline) of
        {ok, Counts} -> open_all(Node, [{Class, Index} || {Class, Count} <- maps:to_list(Counts), Index <- lists:seq(0, Count - 1)], Deadline);
        {error, Reason} -> {error, Reason}
    end.

open_all(Node, Lanes, Deadline) ->
    Open = fun({Class, Index}) -> teleport_peers:next(Node, Class, Index, prime, Deadline) end,
    case [Ended || {_, Ended} <- teleport_each:run(Lanes, Open), not is_opened(Ended)] of
        [] -> ok;
        [{ok, Error} | _] -> Error;
        [{down, Reason} | _] -> {error, {no_lane, Reason}}
    end.

is_opened({ok, {ok, _}}) -> true;
is_opened(_) -> false.

%% @doc A binary in memory that nodes of this host and user share: a lane over shared memory passes it by reference, without a copy, and so does the receiver
%% that sends it on. Its making is the one copy. An ordinary binary below 64 KB, or where there is no room for another block (`max_block_bytes').
-spec binary(iodata()) -> binary().
binary(Data) -> beamway_block:from_iodata(Data).

%% @doc As file:read_file/1, into a binary like that of {@link binary/1}.
-spec read_file(file:name_all()) -> {ok, binary()} | {error, file:posix() | badarg | terminated | system_limit}.
read_file(Name) -> beamway_block:read_file(Name).

%% @doc The shared binaries that this node holds, made here or received: how many, how many bytes of memory, and the limits. A part of one keeps all of
%% it. `made', `received': since the start. `refused': found no room.
-spec blocks() -> #{blocks | bytes | max_blocks | max_bytes | made | received | refused => non_neg_integer()}.
blocks() -> teleport_blocks:info().

%% @doc All lanes of this node: those that it has opened, and those that peers have.
-spec lanes() -> [lane_info()].
lanes() -> lists:sort([lane(Lane) || Lane <- teleport_peers:all()]).

%% @doc Those to and from one node.
-spec lanes(node()) -> [lane_info()].
lanes(Node) -> lists:sort([lane(Lane) || {_, {Of, _, _}, _} = Lane <- teleport_peers:all(), Of =:= Node]).

lane({Way, {Node, Class, Index}, Tx}) ->
    Own = #{node => Node, class => Class, index => Index, opened_by => case Way of out -> this_node; in -> peer end, state => up},
    More = case teleport_lane:info(teleport_sender:pid(Tx), ?INFO_MS) of
               timeout -> #{};
               Info -> Info
           end,
    maps:merge(maps:merge(teleport_sender:info(Tx), More), Own).

%% @doc The lanes to connected nodes that could not be opened, or were lost and are not up again, with the reason of the last failure.
-spec not_up() -> [#{node := node(), class := teleport_config:class(), index := non_neg_integer(), reason := term()}].
not_up() -> lists:sort(teleport_peers:not_up(?INFO_MS)).

%% @doc The nodes on which teleport does not run: messages and calls go to them by distribution. `sent': how many have since the start; `dropped': how many
%% found no room, with `on_full => drop'.
-spec by_distribution() -> [#{node := node(), sent := non_neg_integer(), dropped := non_neg_integer()}].
by_distribution() ->
    Counts = teleport_peers:plain_counts(),
    [(maps:get(Node, Counts))#{node => Node} || Node <- lists:sort(teleport_peers:plain_all())].

%% @doc How many messages to each node were on lanes that were lost, and were never confirmed, since the start. A node that has been
%% gone for an hour is left out.
-spec unconfirmed() -> #{node() => pos_integer()}.
unconfirmed() -> teleport_peers:lost().

%% @doc The figures of all lanes and nodes as Prometheus text, as {@link beamway:metrics/0} has those of the links. Answers at once.
-spec metrics() -> iolist().
metrics() -> beamway_metrics:prometheus(teleport_metrics:families()).

%% @doc Changes options ({@link teleport_config}) for all nodes or one. Lanes that are open keep theirs.
-spec configure(all | node(), map()) -> ok | {error, [string(), ...]}.
configure(Which, Options) when is_atom(Which) ->
    case teleport_peers:configure(Which, Options) of
        ok -> teleport_blocks:configured();
        {error, Problems} -> {error, [teleport_config:describe(Problem) || Problem <- Problems]}
    end.
