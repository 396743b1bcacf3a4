%% SPDX-License-Identifier: Apache-2.0
%% @doc Where the processes of connections stand while nothing happens.
%%
%% Code that is loaded twice ends each process that has it on its stack. Idle connections and WebSockets have nothing on their stacks but
%% this module, which knows no protocol and so has no reason to change: all others may be loaded as often as one likes. It is
%% left by calls with the module's name, which is how new code takes effect.
-module(yucan_idle).

-export([message/3, first/4, upgraded/4]).

%% @doc The next message, whatever it is, goes to `Module:message/2', silence to `Module:silence/1'.
-spec message(module(), State :: term(), timeout()) -> term().
message(Module, State, Timeout) ->
    receive
        Message -> Module:message(Message, State)
    after Timeout -> Module:silence(State)
    end.

%% @doc The first bytes of a connection go to `Module:first/2'.
-spec first(module(), State :: term(), yucan_transport:socket(), timeout()) -> term().
first(Module, State, Socket, Timeout) ->
    Result = yucan_transport:recv(Socket, 0, Timeout),
    Module:first(Result, State).

%% @doc The connection belongs to a function until that returns; then, or if it crashes, it goes to `Module:left/2'.
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
