%% SPDX-License-Identifier: Apache-2.0
%% @doc The process that runs an asynchronous call and stores its result until another process collects it.
%%
%% The process exits when the result has been collected, when the process that started the call exits, or after `async_call_inactivity_timeout'. A
%% collecting process that gives up ({@link take/2} with a time limit) reports this, so a result that was already on its way to that process is kept.
%% The result is dropped only after the collecting process has confirmed its receipt, and until then no other process gets it.
-module(gen_rpc_async).

-export([start/1, take/2]).
-export_type([key/0]).

-opaque key() :: {?MODULE, pid()}.

%% @doc Starts a call of the fun. `Ms' limits the duration of the call, and also the time for which its result is kept.
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

%% No timeout is needed, because a collecting process either answers immediately or exits.
is_taken(Taker, Ref) ->
    Monitor = monitor(process, Taker),
    receive
        {taken, Ref} -> true;
        {left, Ref} -> true = demonitor(Monitor, [flush]), false;
        {'DOWN', Monitor, process, Taker, _} -> false
    end.

%% @doc Returns the result if it arrives in time. It can be collected only once; `gone' means that it has already been collected or has expired.
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
