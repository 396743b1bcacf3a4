%% SPDX-License-Identifier: Apache-2.0
%% @doc The same work for several nodes or lanes at once, so that one that is stuck holds up no other.
-module(teleport_each).

-export([run/2]).

%% The exit reason is how the result travels.
-dialyzer({nowarn_function, run/2}).
%% @doc What the fun gives for each, in their order; `down' if its process ended otherwise. Waits for all: the fun has a limit of its own.
-spec run([Item], fun((Item) -> Result)) -> [{Item, {ok, Result} | {down, Reason :: term()}}].
run(Items, Fun) ->
    Started = [{Item, spawn_monitor(fun() -> exit({?MODULE, Fun(Item)}) end)} || Item <- Items],
    [{Item, receive
                {'DOWN', Monitor, process, Pid, {?MODULE, Result}} -> {ok, Result};
                {'DOWN', Monitor, process, Pid, Reason} -> {down, Reason}
            end} || {Item, {Pid, Monitor}} <- Started].
