%% SPDX-License-Identifier: Apache-2.0
%% @doc The interface of the gen_rpc library on top of the distribution, so that a program has to change its dependency but not its code.
%%
%% ```
%% Value = gen_rpc:call(Node, Module, Function, Args),
%% true = gen_rpc:cast({Node, Key}, Module, Function, Args)'''
%%
%% A destination is a node or `{Node, Key}'. Calls and casts of a process start in the order in which the process made them, whatever their keys. A
%% module may be `{Module, Version}'; if `Module' has a different `vsn', the result is `{badrpc, incompatible}'. The other node does not need gen_rpc,
%% because kernel's own server `rex' runs the functions, as for {@link //kernel/rpc}. Unlike with rpc and erpc, a full connection never blocks a
%% caller beyond its time limit.
%%
%% Limits are in milliseconds, and `undefined' selects the value of the application's option.
%% `call_receive_timeout' (15000) limits a complete call, and `sbcast_receive_timeout' (15000) a
%% call of `sbcast'. `send_timeout' (5000) limits the time spent connecting and waiting while the
%% connection is full. `async_call_inactivity_timeout' (infinity) limits the duration of an
%% asynchronous call, and also the time for which its result is kept.
%%
%% `Reason' in `{badrpc, Reason}' is `timeout', `nodedown', `incompatible' or ``{'EXIT', Why}'',
%% which means that the function failed or that its process was killed. `{badtcp, timeout}' means
%% that the connection was not established, or stayed full, within `send_timeout'. Invalid arguments
%% raise an error in the caller.
-module(gen_rpc).

-export([call/3, call/4, call/5, call/6, cast/3, cast/4, cast/5, safe_cast/3, safe_cast/4, safe_cast/5]).
-export([eval_everywhere/3, eval_everywhere/4, eval_everywhere/5, safe_eval_everywhere/3, safe_eval_everywhere/4, safe_eval_everywhere/5]).
-export([async_call/3, async_call/4, yield/1, nb_yield/1, nb_yield/2]).
-export([multicall/3, multicall/4, multicall/5, abcast/2, abcast/3, sbcast/2, sbcast/3, nodes/0]).
%% Called on other nodes.
-export([apply_version/4, table/0]).
-export_type([destination/0, versioned/0, failure/0, limit/0]).

-compile({no_auto_import, [nodes/0]}).
%% Dialyzer would warn that the process's fun never returns, because its result is the exit reason.
-dialyzer({nowarn_function, [job/1, each/2, within/4]}).

-type destination() :: node() | {node(), Key :: term()}.
-type versioned() :: module() | {module(), Version :: term()}.
%% With a version, the function is applied only if the module on the other node has this `vsn'.
-type failure() :: {badrpc | badtcp, Reason :: term()}.
-type limit() :: timeout() | undefined.

-define(SERVER, rex).
-define(NOBODY, '$gen_rpc_nobody').
-define(IS_APPLIED(M, F, A), (is_atom(M) orelse tuple_size(M) =:= 2), is_atom(F), is_list(A)).

%% ---- one node ----

%% @doc Like {@link call/4}, without arguments.
-spec call(destination(), versioned(), atom()) -> term() | failure().
call(Dest, M, F) -> call(Dest, M, F, []).

%% @doc Returns the value of the function, or the value that it throws.
-spec call(destination(), versioned(), atom(), [term()]) -> term() | failure().
call(Dest, M, F, A) -> call(Dest, M, F, A, undefined).

%% @doc Like {@link call/4}, but with a time limit for the whole call. When it expires, the caller gets an error but the function keeps running.
-spec call(destination(), versioned(), atom(), [term()], limit()) -> term() | failure().
call(Dest, M, F, A, ReceiveMs) -> call(Dest, M, F, A, ReceiveMs, undefined).

%% @doc Like {@link call/5}, but with an additional limit for sending.
-spec call(destination(), versioned(), atom(), [term()], limit(), limit()) -> term() | failure().
call(Dest, M, F, A, ReceiveMs, SendMs) when ?IS_APPLIED(M, F, A) ->
    within(address(Dest), applied(M, F, A), limit(ReceiveMs, call_receive_timeout), limit(SendMs, send_timeout)).

within({Node, _}, {Module, Function, Args}, ReceiveMs, _) when Node =:= node() ->
    Job = job(fun() -> here(Module, Function, Args) end),
    receive {'DOWN', Job, process, _, Ended} -> ended(Ended)
    after ReceiveMs ->
        true = demonitor(Job, [flush]),
        {badrpc, timeout}
    end;
within({Node, _}, {Module, Function, Args}, ReceiveMs, SendMs) ->
    {Caller, Tag, Deadline} = {self(), make_ref(), teleport_deadline:in(ReceiveMs)},
    {Waiter, Monitor} = spawn_monitor(fun() -> await(Caller, Tag, Node) end),
    case sent(Node, {'$gen_call', {Waiter, Tag}, {call, Module, Function, Args, group_leader()}}, teleport_deadline:in(min(SendMs, ReceiveMs))) of
        ok ->
            receive {'DOWN', Monitor, process, _, Ended} -> ended(Ended)
            after teleport_deadline:left(Deadline) -> dismissed(Waiter, Monitor, {badrpc, timeout})
            end;
        {badtcp, timeout} when ReceiveMs =< SendMs -> dismissed(Waiter, Monitor, {badrpc, timeout});
        Failure -> dismissed(Waiter, Monitor, Failure)
    end.

dismissed(Waiter, Monitor, Failure) ->
    true = demonitor(Monitor, [flush]),
    true = exit(Waiter, kill),
    Failure.

%% A separate process monitors the other node, because setting up a monitor may block indefinitely on a full connection. The caller itself
%% sends, so its requests stay in order.
-spec await(pid(), reference(), node()) -> no_return().
await(Caller, Tag, Node) ->
    OfCaller = monitor(process, Caller),
    OfServer = monitor(process, {?SERVER, Node}),
    receive
        {Tag, Reply} -> exit({?MODULE, Reply});
        {'DOWN', OfServer, process, _, _} -> exit({?MODULE, {badrpc, nodedown}});
        {'DOWN', OfCaller, process, _, _} -> exit(normal)
    end.

%% Monitors a name that does not exist. This opens a connection, as `!' would, and the monitor fires
%% as soon as the node has been reached.
sent(Node, Message, Deadline) ->
    case lists:member(Node, erlang:nodes(connected)) of
        true -> given(Node, Message, Deadline);
        false ->
            Monitor = monitor(process, {?NOBODY, Node}),
            receive
                {'DOWN', Monitor, process, _, noconnection} -> {badrpc, nodedown};
                {'DOWN', Monitor, process, _, _} -> given(Node, Message, Deadline)
            after teleport_deadline:left(Deadline) ->
                true = demonitor(Monitor, [flush]),
                {badtcp, timeout}
            end
    end.

given(Node, Message, Deadline) ->
    case {erlang:send({?SERVER, Node}, Message, [nosuspend]), teleport_deadline:left(Deadline)} of
        {ok, _} -> ok;
        {nosuspend, 0} -> {badtcp, timeout};
        {nosuspend, _} -> receive after 1 -> given(Node, Message, Deadline) end
    end.

job(Fun) ->
    {_, Monitor} = spawn_monitor(fun() -> exit({?MODULE, Fun()}) end),
    Monitor.

ended({?MODULE, Result}) -> Result;
ended(Reason) -> {badrpc, {'EXIT', Reason}}.

here(Module, Function, Args) ->
    try apply(Module, Function, Args)
    catch
        throw:Thrown -> Thrown;
        exit:Reason -> {badrpc, {'EXIT', Reason}};
        error:Reason:Stack -> {badrpc, {'EXIT', {Reason, Stack}}}
    end.

%% @doc Like {@link cast/4}, without arguments.
-spec cast(destination(), versioned(), atom()) -> true.
cast(Dest, M, F) -> cast(Dest, M, F, []).

%% @doc Applies the function without waiting for it to return. Returns `true' even if the request could not be sent; {@link safe_cast/4} reports
%% such failures.
-spec cast(destination(), versioned(), atom(), [term()]) -> true.
cast(Dest, M, F, A) -> cast(Dest, M, F, A, undefined).

%% @doc Like {@link cast/4}, but with a limit for sending.
-spec cast(destination(), versioned(), atom(), [term()], limit()) -> true.
cast(Dest, M, F, A, SendMs) ->
    _ = safe_cast(Dest, M, F, A, SendMs),
    true.

%% @doc Like {@link safe_cast/4}, without arguments.
-spec safe_cast(destination(), versioned(), atom()) -> true | failure().
safe_cast(Dest, M, F) -> safe_cast(Dest, M, F, []).

%% @doc Like {@link cast/4}, but reports when the request could not be sent.
-spec safe_cast(destination(), versioned(), atom(), [term()]) -> true | failure().
safe_cast(Dest, M, F, A) -> safe_cast(Dest, M, F, A, undefined).

%% @doc Like {@link safe_cast/4}, but with a limit for sending.
-spec safe_cast(destination(), versioned(), atom(), [term()], limit()) -> true | failure().
safe_cast(Dest, M, F, A, SendMs) when ?IS_APPLIED(M, F, A) -> cast_to(address(Dest), applied(M, F, A), limit(SendMs, send_timeout)).

cast_to({Node, _}, {Module, Function, Args}, _) when Node =:= node() -> erpc:cast(Node, Module, Function, Args) =:= ok;
cast_to({Node, _}, {Module, Function, Args}, SendMs) ->
    case sent(Node, {'$gen_cast', {cast, Module, Function, Args, group_leader()}}, teleport_deadline:in(SendMs)) of
        ok -> true;
        Failure -> Failure
    end.

%% ---- asynchronous calls ----

%% @doc Like {@link async_call/4}, without arguments.
-spec async_call(destination(), versioned(), atom()) -> gen_rpc_async:key().
async_call(Dest, M, F) -> async_call(Dest, M, F, []).

%% @doc Starts a call. Any process may collect its value with {@link yield/1} or {@link nb_yield/2}, but only once. If the caller exits, the call
%% is abandoned.
-spec async_call(destination(), versioned(), atom(), [term()]) -> gen_rpc_async:key().
async_call(Dest, M, F, A) when ?IS_APPLIED(M, F, A) ->
    Address = address(Dest),
    _ = applied(M, F, A),
    Ms = limit(undefined, async_call_inactivity_timeout),
    gen_rpc_async:start({fun() -> call(Address, M, F, A, Ms) end, Ms}).

%% @doc Waits for the result of the call, which is what {@link call/4} would return. `{badrpc, gone}' means that it has already been collected.
-spec yield(gen_rpc_async:key()) -> term() | failure().
yield(Key) ->
    case gen_rpc_async:take(Key, infinity) of
        {value, Value} -> Value;
        gone -> {badrpc, gone}
    end.

%% @doc Like {@link nb_yield/2}, without waiting.
-spec nb_yield(gen_rpc_async:key()) -> {value, term() | failure()} | timeout.
nb_yield(Key) -> nb_yield(Key, 0).

%% @doc Like {@link yield/1} with a time limit. If it returns `timeout', it may be called again.
-spec nb_yield(gen_rpc_async:key(), timeout()) -> {value, term() | failure()} | timeout.
nb_yield(Key, Ms) ->
    case gen_rpc_async:take(Key, Ms) of
        gone -> {value, {badrpc, gone}};
        Taken -> Taken
    end.

%% ---- several nodes ----

%% @doc Like {@link eval_everywhere/4}, without arguments.
-spec eval_everywhere([destination()], versioned(), atom()) -> abcast.
eval_everywhere(Dests, M, F) -> eval_everywhere(Dests, M, F, []).

%% @doc Calls {@link cast/4} for all destinations at once, so a destination that is stuck does not delay the others.
-spec eval_everywhere([destination()], versioned(), atom(), [term()]) -> abcast.
eval_everywhere(Dests, M, F, A) -> eval_everywhere(Dests, M, F, A, undefined).

%% @doc Like {@link eval_everywhere/4}, but with a limit for sending.
-spec eval_everywhere([destination()], versioned(), atom(), [term()], limit()) -> abcast.
eval_everywhere(Dests, M, F, A, SendMs) ->
    _ = safe_eval_everywhere(Dests, M, F, A, SendMs),
    abcast.

%% @doc Like {@link safe_eval_everywhere/4}, without arguments.
-spec safe_eval_everywhere([destination()], versioned(), atom()) -> [true | [destination()] | destination()].
safe_eval_everywhere(Dests, M, F) -> safe_eval_everywhere(Dests, M, F, []).

%% @doc Like {@link eval_everywhere/4}. In `[true, Bad]', `Bad' lists the destinations to which the request could not be sent. If it could not be
%% sent to any destination, the result is the list of destinations without `true'.
-spec safe_eval_everywhere([destination()], versioned(), atom(), [term()]) -> [true | [destination()] | destination()].
safe_eval_everywhere(Dests, M, F, A) -> safe_eval_everywhere(Dests, M, F, A, undefined).

%% @doc Like {@link safe_eval_everywhere/4}, but with a limit for sending.
-spec safe_eval_everywhere([destination()], versioned(), atom(), [term()], limit()) -> [true | [destination()] | destination()].
safe_eval_everywhere(Dests, M, F, A, SendMs) when is_list(Dests), ?IS_APPLIED(M, F, A) ->
    Sent = cast_each(Dests, fun(_) -> applied(M, F, A) end, limit(SendMs, send_timeout)),
    case [Dest || {Dest, Result} <- Sent, Result =/= true] of
        Bad when length(Bad) < length(Dests) -> [true, Bad];
        Bad -> Bad
    end.

%% The caller itself sends to each node whose connection is not full, so its casts stay in order.
%% Other processes send to the remaining nodes, so a slow node does not delay the rest.
cast_each(Dests, Applied, Ms) ->
    Sent = [{Dest, cast_to(Address, Applied(Address), 0)} || Dest <- Dests, Address <- [address(Dest)]],
    Later = each([Dest || {Dest, Result} <- Sent, Result =/= true], fun(Address) -> cast_to(Address, Applied(Address), Ms) end),
    [{Dest, case Result of true -> true; _ -> proplists:get_value(Dest, Later) end} || {Dest, Result} <- Sent].

%% Runs all requests in parallel, each in a separate process. One more process, the guard, kills the others if the caller exits. Links to the
%% caller cannot do this, because the first process to exit would take the caller down with it.
each(Dests, Fun) ->
    Caller = self(),
    Guard = spawn(fun() -> guard(monitor(process, Caller), length(Dests)) end),
    Begun = [{Dest, spawn_monitor(fun() -> exit({?MODULE, guarded(Guard, Fun, Address)}) end)} || Dest <- Dests, Address <- [address(Dest)]],
    [{Dest, receive {'DOWN', Monitor, process, Pid, Reason} -> ended(Reason) end} || {Dest, {Pid, Monitor}} <- Begun].

%% The process unlinks itself before it exits, so that its result is not copied to the guard as well.
guarded(Guard, Fun, Address) ->
    true = link(Guard),
    try Fun(Address)
    after
        true = unlink(Guard),
        Guard ! ended
    end.

guard(_, 0) -> ok;
guard(Monitor, Left) ->
    process_flag(trap_exit, true),
    receive
        {'DOWN', Monitor, process, _, _} -> exit(caller_ended);
        ended -> guard(Monitor, Left - 1);
        %% The process was killed.
        {'EXIT', _, _} -> guard(Monitor, Left - 1)
    end.

%% @doc Returns the values of the function on this node and on {@link nodes/0}.
-spec multicall(versioned(), atom(), [term()]) -> {[term()], [destination()]}.
multicall(M, F, A) -> multicall([node() | nodes()], M, F, A).

%% @doc Like {@link multicall/3}, but with a time limit, or on the given nodes.
-spec multicall(versioned(), atom(), [term()], timeout()) -> {[term()], [destination()]};
               ([destination()], versioned(), atom(), [term()]) -> {[term()], [destination()]}.
multicall(Dests, M, F, A) when is_list(Dests) -> multicall(Dests, M, F, A, infinity);
multicall(M, F, A, Ms) -> multicall([node() | nodes()], M, F, A, Ms).

%% @doc Returns the values in the order of the nodes, and the nodes that failed or returned no value. A single time limit applies to all calls.
-spec multicall([destination()], versioned(), atom(), [term()], timeout()) -> {[term()], [destination()]}.
multicall(Dests, M, F, A, Ms) when is_list(Dests), ?IS_APPLIED(M, F, A) ->
    SendMs = limit(undefined, send_timeout),
    ReceiveMs = limit(Ms, call_receive_timeout),
    Applied = applied(M, F, A),
    Results = each(Dests, fun(Address) -> within(Address, Applied, ReceiveMs, SendMs) end),
    {[Value || {_, Value} <- Results, not is_failure(Value)], [Dest || {Dest, Value} <- Results, is_failure(Value)]}.

%% @doc Sends the message to the processes with this name on this node and on {@link nodes/0}.
-spec abcast(Name :: atom(), Message :: term()) -> abcast.
abcast(Name, Message) -> abcast([node() | nodes()], Name, Message).

%% @doc Like {@link abcast/2}, but on the given nodes. Nodes without such a process are not reported.
-spec abcast([destination()], Name :: atom(), Message :: term()) -> abcast.
abcast(Dests, Name, Message) when is_list(Dests), is_atom(Name) ->
    %% Sending to a plain name that does not exist would log an error on that node.
    _ = cast_each(Dests, fun({Node, _}) -> {erlang, send, [{Name, Node}, Message, [nosuspend]]} end, limit(undefined, send_timeout)),
    abcast.

%% @doc Sends the message to the processes with this name on this node and on {@link nodes/0}, and waits until these nodes have confirmed its arrival.
-spec sbcast(Name :: atom(), Message :: term()) -> {Good :: [destination()], Bad :: [destination()]}.
sbcast(Name, Message) -> sbcast([node() | nodes()], Name, Message).

%% @doc Like {@link sbcast/2}, but on the given nodes. `Good' lists the nodes where the message is in the process's mailbox; `Bad' lists those that
%% have no process with this name or did not answer in time.
-spec sbcast([destination()], Name :: atom(), Message :: term()) -> {Good :: [destination()], Bad :: [destination()]}.
sbcast(Dests, Name, Message) when is_list(Dests), is_atom(Name) ->
    Ms = limit(undefined, sbcast_receive_timeout),
    SendMs = limit(undefined, send_timeout),
    Results = each(Dests, fun(Address) -> within(Address, {erlang, send, [Name, Message, [nosuspend]]}, Ms, SendMs) end),
    {[Dest || {Dest, ok} <- Results], [Dest || {Dest, Result} <- Results, Result =/= ok]}.

is_failure({badrpc, _}) -> true;
is_failure({badtcp, _}) -> true;
is_failure(_) -> false.

%% @doc Returns the connected nodes. Functions that are called without a list of nodes use these.
-spec nodes() -> [node()].
nodes() -> erlang:nodes().

%% ---- arguments ----

address({Node, Key}) when is_atom(Node) -> {Node, Key};
address(Node) when is_atom(Node) -> {Node, self()};
address(Other) -> error({bad_destination, Other}).

applied({Module, Version}, Function, Args) when is_atom(Module) -> {?MODULE, apply_version, [Module, Version, Function, Args]};
applied(Module, Function, Args) when is_atom(Module) -> {Module, Function, Args};
applied(Module, _, _) -> error({bad_module, Module}).

%% @private
-spec apply_version(module(), Version :: term(), atom(), [term()]) -> term() | {badrpc, incompatible}.
apply_version(Module, Version, Function, Args) ->
    try proplists:get_value(vsn, Module:module_info(attributes)) of
        Found when Found =:= Version; Found =:= [Version] -> apply(Module, Function, Args);
        _ -> {badrpc, incompatible}
    catch
        error:undef -> {badrpc, incompatible}
    end.

limit(undefined, Name) -> checked(application:get_env(?MODULE, Name, default(Name)), Name);
limit(Ms, Name) -> checked(Ms, Name).

checked(infinity, _) -> infinity;
checked(Ms, _) when is_integer(Ms), Ms >= 0 -> Ms;
checked(Other, Name) -> error({bad_limit, Name, Other}).

default(Name) -> element(2, lists:keyfind(Name, 1, table())).

%% @private Returns the rows of the reference of all options (`scripts/options').
-spec table() -> [{Option :: atom(), Default :: term(), Expected :: string(), TakesEffect :: string(), Effect :: string()}].
table() ->
    Ms = "milliseconds, 0 or more, or infinity",
    [{call_receive_timeout, 15000, Ms, "next call", "Time limit of a call that does not set one."},
     {send_timeout, 5000, Ms, "next message", "How long a sender waits for the connection and for room in it."},
     {sbcast_receive_timeout, 15000, Ms, "next message", "How long sbcast waits for the nodes' answers."},
     {async_call_inactivity_timeout, infinity, Ms, "next call", "Time limit of an async_call, and how long its value is kept for somebody to take it."}].
