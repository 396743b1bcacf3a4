%% SPDX-License-Identifier: Apache-2.0
%% @doc The process that holds an asynchronous call, and its result until it is taken.
%%
%% It ends when the result is taken, when the process that began the call ends, and otherwise after `async_call_inactivity_timeout'. A taker that
%% gives up ({@link take/2} with a limit) says so, and a result that was on its way to the taker is kept. The result is gone only when the taker
%% has confirmed that it has it, and until then no other taker gets it.
-module(gen_rpc_async).

-export([start/1, take/2]).
-export_type([key/0]).

-opaque key() :: {?MODULE, pid()}.

%% @doc Begins a call to the fun. `Ms' is how long the call may take, and how long its result is kept.
-spec start({fun(() -> term()), Ms :: timeout()}) -> key().
start({Call, Ms}) ->
    Caller = self(),
    {?MODULE, spawn(fun() -> hold(Caller, Call, Ms) end)}.

hold(Caller, Call, Ms) ->
    process_flag(trap_exit, true),
    _ = monitor(process, Caller),
    Holder = self(),
    Job = spawn_link(fun() -> Holder ! {self(), Call()} end),
    await(Job, teleport_deadline:in(Ms), Ms).

await(Job, Deadline, Ms) ->
    receive
        {Job, Result} -> keep(Result, teleport_deadline:in(Ms));
        {'EXIT', Job, Reason} -> keep({badrpc, Reason}, teleport_deadline:in(Ms));
        {'DOWN', _, process, _, _} -> exit(Job, kill)
    after teleport_deadline:left(Deadline) ->
        exit(Job, kill),
        keep({badrpc, timeout}, teleport_deadline:in(Ms))
    end.

keep(Result, Deadline) ->
    receive
        {take, Taker, Ref} ->
            Ref ! {Ref, Result},
            is_taken(Taker, Ref) orelse keep(Result, Deadline);
        {'DOWN', _, process, _, _} -> ok
    after teleport_deadline:left(Deadline) -> ok
    end.

%% There is no timeout, because a taker answers at once or ends.
is_taken(Taker, Ref) ->
    Monitor = monitor(process, Taker),
    receive
        {taken, Ref} -> true;
        {left, Ref} -> true = demonitor(Monitor, [flush]), false;
        {'DOWN', Monitor, process, Taker, _} -> false
    end.

%% @doc The result, if it comes in time. It can be taken once, and `gone' means that it has been taken or is no longer kept.
-spec take(key(), timeout()) -> {value, term()} | timeout | gone.
take({?MODULE, Holder}, Ms) when is_pid(Holder) ->
    Ref = monitor(process, Holder, [{alias, reply_demonitor}]),
    Holder ! {take, self(), Ref},
    receive
        {Ref, Result} -> taken(Holder, Ref, Result);
        {'DOWN', Ref, process, _, _} -> gone
    after Ms ->
        true = demonitor(Ref, [flush]),
        receive {Ref, Result} -> taken(Holder, Ref, Result)
        after 0 -> Holder ! {left, Ref}, timeout
        end
    end;
take(Other, _) -> error({bad_key, Other}).

taken(Holder, Ref, Result) ->
    Holder ! {taken, Ref},
    {value, Result}.
