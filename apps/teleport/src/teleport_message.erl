%% SPDX-License-Identifier: Apache-2.0
%% @doc Resolves destinations, and chooses the path of a message to another node. The public API is in
%% {@link teleport}.
%%
%% A message uses the distribution or, for a node whose distribution is not carried by Beamway, its pool
%% ({@link teleport_pool}). A send never waits for a connection to be established: as for `!', the VM does that in the
%% background, and only if kernel's option `dist_auto_connect' permits it.
-module(teleport_message).

-export([send/2, send/3, transmit/6, find/1, address/2, key/1, checked/1, checked/2, is_option/2]).

-compile({inline, [give/4]}).

-type on_full() :: block | error | drop.

%% A sender with a time limit polls for room this often. It has to poll, because a process that the VM has suspended on a
%% full connection cannot time out.
-define(LOOK_MS, 1).
-define(SERVER, teleport_server).
%% A process waits this long for a confirmation before it asks how old the server is. Most confirmations have arrived
%% by then.
-define(AGE_MS, 500).

%% @doc See {@link teleport:send/2}.
-spec send(teleport:dest(), Message :: term()) -> ok | {error, teleport:reason()}.
send(Pid, Message) when is_pid(Pid), node(Pid) =/= node() -> give(node(Pid), Pid, Pid, Message);
send({Name, Node} = Dest, Message) when is_atom(Name), Name =/= global, is_atom(Node), Node =/= node() -> give(Node, Name, Dest, Message);
send(Dest, Message) -> send(Dest, Message, #{}).

%% Does only a single look-up, because sending a message costs little more than that.
give(Node, To, Address, Message) ->
    case persistent_term:get(teleport_trace, false) orelse teleport_pool:lookup(Node) of
        none ->
            Address ! Message,
            ok;
        true -> send(Address, Message, #{});
        _ -> transmit(Node, To, self(), Message, block, infinity)
    end.

%% @doc See {@link teleport:send/3}; the options have been checked.
-spec send(teleport:dest(), Message :: term(), teleport:options()) -> ok | {ok, reference()} | {error, teleport:reason()}.
send(Dest, Message, Options) ->
    Found = find(Dest),
    teleport_trace:lent(fun() -> sent_to(Found, Message, Options) end).

sent_to({remote, Node, To}, Message, Options) when map_get(confirm, Options) -> confirmed(Node, To, Message, Options);
sent_to({remote, Node, To}, Message, Options) ->
    transmit(Node, To, key(Options), Message, maps:get(on_full, Options, block), teleport_deadline:in(maps:get(timeout, Options, infinity)));
sent_to({local, To}, Message, Options) ->
    try To ! Message of
        _ when map_get(confirm, Options) ->
            Ref = make_ref(),
            self() ! {teleport, Ref, confirmed},
            {ok, Ref};
        _ -> ok
    catch error:badarg -> {error, noproc}
    end;
sent_to(noproc, _, _) -> {error, noproc}.

%% @doc Sends to a process on another node. Only `block' waits for room, until the deadline.
-spec transmit(node(), pid() | atom(), Key :: term(), Message :: term(), on_full(), teleport_deadline:deadline()) -> ok | {error, overload | timeout | {too_big, pos_integer()}}.
transmit(Node, To, Key, Message, OnFull, Deadline) ->
    case teleport_pool:lookup(Node) of
        none -> over_distribution(Node, To, Message, OnFull, Deadline);
        Pool ->
            case over_pool(Pool, To, Key, Message, OnFull, Deadline) of
                gone -> over_distribution(Node, To, Message, OnFull, Deadline);
                Sent -> Sent
            end
    end.

over_pool(Pool, To, Key, Message, OnFull, Deadline) ->
    Wait = case OnFull of block -> teleport_deadline:left(Deadline); _ -> 0 end,
    sent(teleport_pool:send(Pool, To, Key, Message, Wait), OnFull).

over_distribution(Node, To, Message, OnFull, Deadline) ->
    Address = address(Node, To),
    case {OnFull, Deadline} of
        {block, infinity} -> Address ! Message, ok;
        {block, _} -> within(Address, Message, Deadline);
        _ -> sent(tried(Address, Message), OnFull)
    end.

tried(Address, Message) ->
    case erlang:send(Address, Message, [nosuspend]) of
        ok -> ok;
        nosuspend -> {error, overload}
    end.

within(Address, Message, Deadline) ->
    case {tried(Address, Message), teleport_deadline:left(Deadline)} of
        {ok, _} -> ok;
        {_, 0} -> teleport_metrics:count(refused), {error, timeout};
        _ -> receive after ?LOOK_MS -> within(Address, Message, Deadline) end
    end.

sent({error, overload}, drop) -> teleport_metrics:count(dropped);
sent({error, _} = Error, _) -> teleport_metrics:count(refused), Error;
sent(OkOrGone, _) -> OkOrGone.

%% ---- confirmation ----

%% Messages from one process to one node arrive in order, even for different receivers. So when the server on the other
%% node reads the question, the message is already in the receiver's mailbox. A separate process waits for the answer. It
%% also notices if the node goes down, its server exits, or the pool connection that carried both is lost. If the message
%% used a pool, so does the question: over the distribution it could arrive although the message did not.
confirmed(Node, To, Message, Options) ->
    Key = key(Options),
    OnFull = case maps:get(on_full, Options, block) of drop -> error; Other -> Other end,
    Deadline = teleport_deadline:in(maps:get(timeout, Options, infinity)),
    Owner = case teleport_pool:lookup(Node) of none -> gone; Pool -> teleport_pool:owner(Pool, Key) end,
    case transmit(Node, To, Key, Message, OnFull, Deadline) of
        ok ->
            {Sender, Ref, Began} = {self(), make_ref(), erlang:monotonic_time(millisecond)},
            Waiter = spawn(fun() -> await(Sender, Ref, Node, Owner, Began) end),
            _ = case asked(Owner, Node, Key, {confirm, Waiter, Ref, To}, OnFull, Deadline) of
                    {error, Reason} -> Waiter ! {Ref, {unconfirmed, Reason}};
                    OkOrGone -> OkOrGone
                end,
            {ok, Ref};
        Error -> Error
    end.

%% If the pool is gone, its connection's process exits as well, and the waiting process is notified.
asked(gone, Node, Key, Question, OnFull, Deadline) ->
    transmit(Node, ?SERVER, Key, Question, OnFull, Deadline);
asked(_, Node, Key, Question, OnFull, Deadline) ->
    case teleport_pool:lookup(Node) of
        none -> gone;
        Pool -> over_pool(Pool, ?SERVER, Key, Question, OnFull, Deadline)
    end.

%% No timeout is needed, because the monitors report every failure. But if the other node had no server when the question
%% arrived, or its server exited before reading it, the monitor may arrive later and watch the next server. A server
%% that was started before the sender asked cannot have missed the question.
await(Sender, Ref, Node, Owner, Began) ->
    OfSender = monitor(process, Sender),
    OfServer = monitor(process, {?SERVER, Node}),
    OfOwner = case Owner of gone -> none; _ -> monitor(process, Owner) end,
    Outcome = fun Outcome(AskInMs) ->
        receive
            {Ref, age, AgeMs} ->
                WaitedMs = erlang:monotonic_time(millisecond) - Began,
                %% At half a second and more, one per cent is more than the error from rounding and from the different
                %% rates of two clocks, which NTP may change by 0.05 %.
                case AgeMs > WaitedMs + WaitedMs div 100 of
                    true -> Outcome(infinity);
                    false -> {unconfirmed, {no_teleport, Node}}
                end;
            {Ref, Answer} -> Answer;
            {'DOWN', OfServer, process, _, noconnection} -> {unconfirmed, {nodedown, Node}};
            {'DOWN', OfServer, process, _, _} -> {unconfirmed, {no_teleport, Node}};
            {'DOWN', OfOwner, process, _, _} -> {unconfirmed, {nodedown, Node}};
            {'DOWN', OfSender, process, _, _} -> exit(normal)
        after AskInMs ->
            {?SERVER, Node} ! {age, self(), Ref},
            Outcome(infinity)
        end
    end,
    Sender ! {teleport, Ref, Outcome(?AGE_MS)}.

%% ---- destinations and options ----

%% @doc Resolves a destination. For `global' and `via' names it asks their modules.
-spec find(teleport:dest()) -> {local, pid() | atom()} | {remote, node(), pid() | atom()} | noproc.
find(Pid) when is_pid(Pid), node(Pid) =:= node() -> {local, Pid};
find(Pid) when is_pid(Pid) -> {remote, node(Pid), Pid};
find(Name) when is_atom(Name) -> {local, Name};
find({via, teleport, Dest}) -> find(Dest);
find({global, Name}) -> found(global:whereis_name(Name));
find({via, Module, Name}) -> found(Module:whereis_name(Name));
find({Name, Node}) when is_atom(Name), Node =:= node() -> {local, Name};
find({Name, Node}) when is_atom(Name), is_atom(Node) -> {remote, Node, Name};
find(Other) -> error({bad_destination, Other, "expected a pid, a name, {Name, Node}, {global, Name} or {via, Module, Name}"}).

found(undefined) -> noproc;
found(Pid) -> find(Pid).

%% @doc Returns the address of a process on the node in the form that `!' and gen accept.
-spec address(node(), pid() | atom()) -> pid() | {atom(), node()}.
address(_, Pid) when is_pid(Pid) -> Pid;
address(Node, Name) -> {Name, Node}.

%% @doc Returns the key of a message. Messages with the same key keep their order in a pool. By default, everything
%% that a process sends to a node has the same key, so it keeps its order as over the distribution.
-spec key(teleport:options()) -> term().
key(#{key := Key}) -> Key;
key(_) -> self().

%% @doc Returns these options if all of them are valid options for a message.
-spec checked(term()) -> teleport:options().
checked(Options) -> checked(fun is_option/2, Options).

%% @doc Like {@link checked/1}, but for other functions with options.
-spec checked(fun((Name :: term(), Value :: term()) -> boolean()), term()) -> map().
checked(IsOption, Options) when is_map(Options) ->
    maps:foreach(fun(Name, Value) -> IsOption(Name, Value) orelse error({bad_option, Name, Value}) end, Options),
    Options;
checked(_, Other) ->
    error({bad_option, options, Other}).

%% @doc Returns whether this is a valid option for a message. The last three had an effect only in 0.2.0.
-spec is_option(term(), term()) -> boolean().
is_option(key, _) -> true;
is_option(confirm, Value) -> is_boolean(Value);
is_option(on_full, Value) -> lists:member(Value, [block, error, drop]);
is_option(timeout, Value) -> Value =:= infinity orelse is_integer(Value) andalso Value >= 0;
is_option(class, Value) -> lists:member(Value, [control, normal, bulk]) andalso teleport_config:without_effect(class);
is_option(unordered, Value) -> is_boolean(Value) andalso teleport_config:without_effect(unordered);
is_option(way, Value) -> lists:member(Value, [lane, distribution]) andalso teleport_config:without_effect(way);
is_option(_, _) -> false.
