%% SPDX-License-Identifier: Apache-2.0
%% @doc Messages and calls between nodes, broadcasts to groups, and binaries shared by the nodes on a host.
%%
%% ```
%% ok = teleport:send({name, Node}, Message),
%% Reply = teleport:call({server, Node}, Request),
%% ok = teleport:cast(Pid, Request)'''
%%
%% A destination is a pid, a name, `{Name, Node}', `{global, Name}' or `{via, Module, Name}'; messages to local
%% destinations are sent directly. Messages use the distribution and keep its order. If the distribution is stock TCP
%% without encryption, they use a pool of separate connections instead. docs/guide/teleport.md lists the guarantees.
%%
%% Calls end like those of gen_server: with the reply, or with an exit whose reason is `{Reason, {teleport, call,
%% Arguments}}'. `Reason' is that of gen_server (`timeout', `noproc', `{nodedown, Node}' or the server's exit reason),
%% or `overload' if the connection is full and `on_full' does not permit waiting.
-module(teleport).

-export([send/2, send/3, call/2, call/3, call/4, cast/2, cast/3, gs_call/2, gs_call/3, gs_cast/2]).
-export([send_request/2, send_request/3, wait_response/2, receive_response/2, check_response/2, multi_call/2, multi_call/3, multi_call/4, abcast/2, abcast/3]).
-export([broadcast/2, broadcast/4, share/1, share/2, unshare/1, open/1, binary/1, read_file/1, blocks/0]).
-export([whereis_name/1, register_name/2, unregister_name/1, metrics/0, configure/2]).
-export(['$handle_undefined_function'/2]).
-export_type([dest/0, options/0, reason/0, request_id/0, response/0]).

-type dest() :: pid() | atom() | {Name :: atom(), node()} | {global, term()} | {via, module(), term()}.
-type options() :: #{on_full => block | error | drop,        %% if the connection is full: wait, return `{error, overload}', or drop the message and count it; default block
                     timeout => timeout(),                   %% how many milliseconds a send may wait while the connection is full; default infinity
                     confirm => boolean(),                   %% only for send/3 and cast/3, which then return `{ok, Ref}'; the caller later gets `{teleport, Ref, confirmed | {unconfirmed, reason()}}'
                     key => term(),                          %% over a pool, messages with the same key keep their order; default the sender
                     class => teleport_config:class(),       %% this option and the next two no longer have any effect
                     unordered => boolean(),
                     way => lane | distribution}.
-type reason() :: overload | timeout | noproc | {nodedown, node()} | {no_teleport, node()} | {too_big, Bytes :: pos_integer()}.
%% Why a message was not sent or not confirmed. `overload' means that the connection is full and `on_full' is `error', and
%% `timeout' that it stayed full until the time limit. `noproc' means that the destination is a name without a process.
%% `{no_teleport, Node}' means that the node does not run teleport, without which it cannot confirm messages. `too_big' occurs
%% only over a pool and means that the message is larger than the option `max_message_bytes'.
-type request_id() :: term().
%% Identifies a call that {@link send_request/2} has started.
-type limit() :: timeout() | {abs, Ms :: integer()}.
%% A limit in milliseconds or, as in gen_server, a point in Erlang monotonic time, also in milliseconds.
-type response() :: {reply, term()} | {error, {Reason :: term(), Server :: term()}}.
%% `Reason' is the same as in the exit of {@link call/2}.

-define(CALL_MS, 5000).

%% @doc Sends a message, which stays in order with messages sent with `!'. Waits while the
%% connection is full, but never for a connection to be established.
-spec send(dest(), term()) -> ok | {error, reason()}.
send(Dest, Message) -> teleport_message:send(Dest, Message).

%% @doc Sends a message with options. With `confirm' the result is `{ok, Ref}', and the caller later receives
%% `{teleport, Ref, confirmed}' once the message is in the mailbox, or `{teleport, Ref, {unconfirmed, Reason}}'.
-spec send(dest(), term(), options()) -> ok | {ok, reference()} | {error, reason()}.
send(Dest, Message, Options) -> teleport_message:send(Dest, Message, teleport_message:checked(Options)).

%% @doc Calls a gen_server or gen_statem, for at most 5 s.
-spec call(dest(), term()) -> term().
call(Dest, Request) -> call(Dest, Request, ?CALL_MS).

%% @doc Like {@link call/2}, but with a time limit in milliseconds.
-spec call(dest(), term(), timeout()) -> term().
call(Dest, Request, Timeout) -> teleport_call:call('$gen_call', Dest, Request, Timeout, #{}).

%% @doc Like {@link call/3}, but with options.
-spec call(dest(), term(), timeout(), options()) -> term().
call(Dest, Request, Timeout, Options) -> teleport_call:call('$gen_call', Dest, Request, Timeout, teleport_message:checked(Options)).

%% @doc Sends a request without a reply to a gen_server or gen_statem. Waits while the connection is full, as {@link send/2} does.
-spec cast(dest(), term()) -> ok | {error, reason()}.
cast(Dest, Request) -> teleport_message:send(Dest, {'$gen_cast', Request}).

%% @doc Like {@link cast/2}, but with options, as for {@link send/3}.
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

%% @doc Starts a call and returns immediately. The same process collects the reply later, with {@link wait_response/2},
%% {@link receive_response/2} or {@link check_response/2}. The identifier is a gen_server request identifier, so
%% gen_server's functions for requests and collections accept it as well.
-spec send_request(dest(), term()) -> request_id().
send_request(Dest, Request) -> teleport_call:request(Dest, Request, #{}).

%% @doc Like {@link send_request/2}, but with options.
-spec send_request(dest(), term(), options()) -> request_id().
send_request(Dest, Request, Options) -> teleport_call:request(Dest, Request, teleport_message:checked(Options)).

%% @doc Waits for the reply to {@link send_request/2}. After `timeout' a caller may wait for it again. As in
%% gen_server, the limit may be `{abs, Ms}'.
-spec wait_response(request_id(), limit()) -> response() | timeout.
wait_response(Id, Limit) -> teleport_call:response(wait_response, Id, [Id, Limit]).

%% @doc Waits for the reply. After `timeout' the reply is discarded when it arrives.
-spec receive_response(request_id(), limit()) -> response() | timeout.
receive_response(Id, Limit) -> teleport_call:response(receive_response, Id, [Id, Limit]).

%% @doc Returns the reply if it is in this message, which the caller has received. `no_reply' means that the message is
%% not the reply.
-spec check_response(Message :: term(), request_id()) -> response() | no_reply.
check_response(Message, Id) -> teleport_call:response(check_response, Id, [Message, Id]).

%% @doc Like gen_server:multi_call/2: calls the servers with this name on this node and all connected nodes.
-spec multi_call(Name :: atom(), term()) -> {Replies :: [{node(), term()}], Bad :: [node()]}.
multi_call(Name, Request) -> multi_call([node() | nodes()], Name, Request).

%% @doc Like gen_server:multi_call/3.
-spec multi_call([node()], Name :: atom(), term()) -> {Replies :: [{node(), term()}], Bad :: [node()]}.
multi_call(Nodes, Name, Request) -> multi_call(Nodes, Name, Request, infinity).

%% @doc Like gen_server:multi_call/4. The requests arrive after everything that the caller has sent before.
-spec multi_call([node()], Name :: atom(), term(), timeout()) -> {Replies :: [{node(), term()}], Bad :: [node()]}.
multi_call(Nodes, Name, Request, Timeout) when is_list(Nodes), is_atom(Name) -> teleport_call:multi(Nodes, Name, Request, Timeout).

%% @doc Like gen_server:abcast/2: casts to the server with this name on this node and all connected nodes.
-spec abcast(Name :: atom(), term()) -> abcast.
abcast(Name, Request) -> abcast([node() | nodes()], Name, Request).

%% @doc Like gen_server:abcast/3. Nodes whose connections have room get the request first, so a stuck node does not delay
%% the others.
-spec abcast([node()], Name :: atom(), term()) -> abcast.
abcast(Nodes, Name, Request) when is_list(Nodes), is_atom(Name) ->
    Full = [Node || Node <- Nodes, cast({Name, Node}, Request, #{on_full => error}) =:= {error, overload}],
    lists:foreach(fun(Node) -> cast({Name, Node}, Request) end, Full),
    abcast.

%% @doc Sends a message to all members of a group in `pg''s default scope, including those on this node. It is encoded
%% once and sent once to each node, and each member gets it once, however often it has joined.
-spec broadcast(Group :: term(), Message :: term()) -> teleport_groups:result() | {error, teleport_groups:refusal()}.
broadcast(Group, Message) -> broadcast(pg, Group, Message, #{}).

%% @doc Like {@link broadcast/2}, but with a scope, which must run on this node, and with options. Returns immediately, or
%% within `timeout' (100 ms by default) if a connection is full. With `confirm => true' it returns when each node has
%% confirmed the message or the timeout has expired. The result says how each node was reached
%% ({@link teleport_groups:result()}). Broadcasts from one process to one group arrive in order.
-spec broadcast(Scope :: atom(), Group :: term(), Message :: term(), teleport_groups:options()) -> teleport_groups:result() | {error, teleport_groups:refusal()}.
broadcast(Scope, Group, Message, Options) -> teleport_groups:broadcast(Scope, Group, Message, Options).

%% @doc Returns a handle for a binary: a small term that can be part of any message, reply or state. Nodes on the same
%% host that run as the same user {@link open/1} the binary without copying it. A binary that was not created by {@link
%% binary/1} is copied once. If the binary is smaller than 64 KB, or if there is no room for another block, the handle
%% is the binary itself.
%%
%% This node keeps the memory available for {@link open/1} until the caller exits, or until {@link unshare/1} is called.
-spec share(binary()) -> teleport_blocks:handle().
share(Binary) -> teleport_blocks:share(Binary, caller).

%% @doc Shares a binary for the given number of milliseconds, even if the caller exits.
-spec share(binary(), KeepMs :: pos_integer()) -> teleport_blocks:handle().
share(Binary, KeepMs) when is_integer(KeepMs), KeepMs > 0, KeepMs < 1 bsl 32 -> teleport_blocks:share(Binary, {ms, KeepMs});
share(_, Other) -> error({bad_limit, Other, "expected milliseconds from 1 to 4294967295"}).

%% @doc Invalidates a handle, so that no node can open it afterwards. Nodes that have already opened it keep their
%% binaries. Any node may call this.
-spec unshare(teleport_blocks:handle()) -> ok.
unshare(Handle) -> teleport_blocks:unshare(Handle).

%% @doc Returns the binary behind a handle. It stays in memory as long as this node uses it, even if the other nodes go
%% down. The error `ended' means that the binary is no longer shared, and `other_host' that it belongs to another host.
%% `former_life' means that the node that shared it, or teleport on that node, has been restarted since. `unreachable'
%% contains the reason why the memory cannot be passed to this node.
-spec open(teleport_blocks:handle()) -> {ok, binary()} | {error, teleport_blocks:refusal()}.
open(Handle) -> teleport_blocks:open(Handle).

%% @doc Creates a binary in memory that nodes on the same host, run by the same user, can share without copying it
%% again. Returns an ordinary binary if the data is smaller than 64 KB or there is no room for another block
%% (`max_block_bytes').
-spec binary(iodata()) -> binary().
binary(Data) -> beamway_block:from_iodata(Data).

%% @doc Like file:read_file/1, but reads into a binary like those of {@link binary/1}.
-spec read_file(file:name_all()) -> {ok, binary()} | {error, file:posix() | badarg | terminated | system_limit}.
read_file(Name) -> beamway_block:read_file(Name).

%% @doc Returns the number of blocks that this node has in memory (created here or opened), their total size in bytes,
%% and the limits for both. A reference to part of a block keeps the whole block in memory. `shared' is the number of
%% this node's handles that can be opened. `made' and `received' count blocks since the node started, and `refused'
%% counts requests for which there was no room.
-spec blocks() -> #{blocks | bytes | max_blocks | max_bytes | made | received | refused | shared => non_neg_integer()}.
blocks() -> teleport_blocks:info().

%% @doc Returns the process registered as `{via, teleport, {Name, Node}}', or `undefined' if there is none or the node
%% does not answer within 5 s.
-spec whereis_name({Name :: atom(), node()}) -> pid() | undefined.
whereis_name(Name) -> named(Name, whereis, [], undefined).

%% @doc Registers a process under `Name' on the process's own node, which must be `Node'.
-spec register_name({Name :: atom(), node()}, pid()) -> yes | no.
register_name({_, Node} = Name, Pid) when is_pid(Pid) ->
    case node(Pid) =:= Node andalso named(Name, register, [Pid], false) of
        true -> yes;
        false -> no
    end;
register_name(Name, Pid) -> error({bad_name, {Name, Pid}, "expected {Name, Node} and a pid"}).

%% @doc Unregisters the name, whichever node it is on.
-spec unregister_name({Name :: atom(), node()}) -> ok.
unregister_name(Name) ->
    _ = named(Name, unregister, [], false),
    ok.

named({Name, Node}, Function, More, Not) when is_atom(Name), is_atom(Node) ->
    try erpc:call(Node, erlang, Function, [Name | More], ?CALL_MS)
    catch _:_ -> Not
    end;
named(Other, _, _, _) -> error({bad_name, Other, "expected {Name, Node}"}).

%% @doc Returns teleport's metrics as Prometheus text, as {@link beamway:metrics/0} does for the links. Never waits.
-spec metrics() -> iolist().
metrics() -> beamway_metrics:prometheus(teleport_metrics:families()).

%% @doc Changes options ({@link teleport_config}). Options for a single node no longer have any
%% effect.
-spec configure(all | node(), map()) -> ok | {error, [string(), ...]}.
configure(Which, Options) when is_atom(Which) ->
    case configured(Which, Options) of
        ok -> ok;
        {error, Problems} -> {error, [teleport_config:describe(Problem) || Problem <- Problems]}
    end.

configured(all, Options) -> teleport_blocks:configure(Options);
configured(_, Options) ->
    true = teleport_config:without_effect(nodes),
    teleport_config:check(Options).

%% @private Handles functions that this version no longer has.
-spec '$handle_undefined_function'(atom(), [term()]) -> term().
'$handle_undefined_function'(Function, Args) -> teleport_old:call(?MODULE, Function, Args).
