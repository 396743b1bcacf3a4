%% SPDX-License-Identifier: Apache-2.0
%% @doc The same work for several nodes or lanes at once, so that one that is stuck holds up no other.
%%
%% Each item has a process of its own. One more for each call, the guard, ends these with the caller. They are linked to the guard alone: a link to the
%% caller would end it with the first of them.
-module(teleport_each).

-export([run/2, run/3, send/2]).

%% The exit reason is how the result travels.
-dialyzer({nowarn_function, begun/2}).
%% @doc What the fun gives for each, in their order; `down' if its process ended otherwise. Waits for all: the fun has a limit of its own.
-spec run([Item], fun((Item) -> Result)) -> [{Item, {ok, Result} | {down, Reason :: term()}}].
run(Items, Fun) ->
    [{Item, receive {'DOWN', Monitor, process, _, Reason} -> ended(Reason) end} || {Monitor, Item} <- begun(Items, Fun)].

%% @doc The same, and the caller does the rest for each as soon as it has ended: `Then' gets what the fun gave.
-spec run([Item], fun((Item) -> Result), fun((Item, {ok, Result} | {down, Reason :: term()}) -> Rest)) -> [{Item, Rest}].
run(Items, Fun, Then) -> run_on(maps:from_list(begun(Items, Fun)), Then).

%% @doc Sends to each node, and names those to which it could not be sent.
-spec send([node()], fun((node()) -> ok | {error, teleport:reason()})) -> [{node(), teleport:reason()}].
send(Nodes, Send) -> [{Node, not_sent(Ended)} || {Node, Ended} <- run(Nodes, Send), Ended =/= {ok, ok}].

not_sent({ok, {error, Reason}}) -> Reason;
not_sent({down, Reason}) -> {no_lane, Reason}.

run_on(Begun, _) when map_size(Begun) =:= 0 ->
    [];
run_on(Begun, Then) ->
    receive
        {'DOWN', Monitor, process, _, Reason} when is_map_key(Monitor, Begun) ->
            {Item, Others} = maps:take(Monitor, Begun),
            Rest = Then(Item, ended(Reason)),
            [{Item, Rest} | run_on(Others, Then)]
    end.

begun([], _) -> [];
begun(Items, Fun) ->
    Caller = self(),
    Guard = spawn(fun() -> guard(Caller, length(Items)) end),
    [{element(2, spawn_monitor(fun() -> exit({?MODULE, guarded(Guard, Fun, Item)}) end)), Item} || Item <- Items].

%% It unlinks before it ends: the guard needs no copy of the result, and a failure may come before the guard traps exits.
guarded(Guard, Fun, Item) ->
    true = link(Guard),
    try Fun(Item)
    after
        true = unlink(Guard),
        Guard ! ended
    end.

guard(Caller, Count) ->
    process_flag(trap_exit, true),
    guard_on(monitor(process, Caller), Count).

guard_on(_, 0) -> ok;
guard_on(Monitor, Left) ->
    receive
        {'DOWN', Monitor, process, _, _} -> exit(caller_ended);
        ended -> guard_on(Monitor, Left - 1);
        %% It was killed.
        {'EXIT', _, _} -> guard_on(Monitor, Left - 1)
    end.

ended({?MODULE, Result}) -> {ok, Result};
ended(Reason) -> {down, Reason}.
