%% SPDX-License-Identifier: Apache-2.0
%% @doc Where the processes of lanes stand while nothing happens.
%%
%% Code that is loaded twice ends each process that has it on its stack. A lane that waits has nothing on its stack but this module. It knows
%% no protocol, so it has no reason to change: all others may be loaded as often as one likes. It is left by calls with the module's
%% name, and these take effect in the newest code.
-module(teleport_wait).

-export([message/3, accept/3]).

%% @doc The next message, whatever it is, goes to `Module:message/2', silence to `Module:silence/1'.
-spec message(module(), State :: term(), timeout()) -> term().
message(Module, State, Timeout) ->
    receive
        Message -> Module:message(Message, State)
    after Timeout -> Module:silence(State)
    end.

%% @doc The next connection, or an error, goes to `Module:accepted/2'. No timeout: the listening socket's end wakes it.
-spec accept(module(), State :: term(), gen_tcp:socket()) -> term().
accept(Module, State, Listening) ->
    Result = gen_tcp:accept(Listening),
    Module:accepted(Result, State).
