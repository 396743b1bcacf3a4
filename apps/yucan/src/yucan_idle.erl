%% SPDX-License-Identifier: Apache-2.0
%% @doc The code in which connection processes wait while they are idle.
%%
%% When a module is loaded twice, each process that still has the old code on its stack is killed. Idle connections and WebSockets have only this
%% module on their stacks, which implements no protocol and so has no reason to change. All other modules can therefore be loaded any number of times.
%% This module always calls other modules with fully qualified calls, so their new code takes effect.
-module(yucan_idle).

-export([message/3, first/4, upgraded/4]).

%% @doc Passes the next message, whatever it is, to `Module:message/2'. Calls `Module:silence/1' if none arrives in time.
-spec message(module(), State :: term(), timeout()) -> term().
message(Module, State, Timeout) ->
    receive
        Message -> Module:message(Message, State)
    after Timeout -> Module:silence(State)
    end.

%% @doc Passes the first bytes of a connection to `Module:first/2'.
-spec first(module(), State :: term(), yucan_transport:socket(), timeout()) -> term().
first(Module, State, Socket, Timeout) ->
    Result = yucan_transport:recv(Socket, 0, Timeout),
    Module:first(Result, State).

%% @doc Hands the connection over to a function. When the function has returned or crashed, calls `Module:left/2'.
-spec upgraded(module(), State :: term(), fun((yucan_transport:socket(), binary()) -> term()), {yucan_transport:socket(), binary()}) -> term().
upgraded(Module, State, Function, {Socket, Buffer}) ->
    Outcome =
        try
            _ = Function(Socket, Buffer),
            ended
        catch
            Class:Reason:Stack -> {crashed, Class, Reason, Stack}
        end,
    Module:left(Outcome, State).
