%% SPDX-License-Identifier: Apache-2.0
%% @doc Functions applied on other nodes, over lanes, with the results and exceptions of erpc.
-module(teleport_erpc).

-export([call/5, cast/4, multicall/5]).

%% @doc See {@link teleport:erpc_call/5}.
-spec call(node(), module(), atom(), [term()], timeout()) -> term().
call(Node, Module, Function, Args, Timeout) when Node =:= node() ->
    erpc:call(Node, Module, Function, Args, Timeout);
call(Node, Module, Function, Args, Timeout) when is_atom(Node), is_atom(Module), is_atom(Function), is_list(Args) ->
    Deadline = teleport_deadline:in(Timeout),
    Id = teleport_request:begin_call({apply, Module, Function}, {'', Node}, Args, #{unordered => true, timeout => Timeout}),
    result(teleport_request:finish(Id, teleport_deadline:left(Deadline))).

%% @doc See {@link teleport:erpc_cast/4}.
-spec cast(node(), module(), atom(), [term()]) -> ok | {error, teleport:reason()}.
cast(Node, Module, Function, Args) when Node =:= node() ->
    erpc:cast(Node, Module, Function, Args);
cast(Node, Module, Function, Args) when is_atom(Node), is_atom(Module), is_atom(Function), is_list(Args) ->
    #{block_ms := BlockMs} = Config = teleport_config:of_node(Node),
    Packed = teleport_term:pack([Module, Function | Args]),
    Key = erlang:phash2(self()),
    teleport_request:transmit(Node, Key, apply_cast, Packed, {block, teleport_deadline:in(BlockMs)}, {Config, #{}}).

%% The exit reason is how the result travels.
-dialyzer({nowarn_function, multicall/5}).
%% @doc See {@link teleport:multicall/5}.
-spec multicall([node()], module(), atom(), [term()], timeout()) -> [term()].
multicall(Nodes, Module, Function, Args, Timeout) ->
    Deadline = teleport_deadline:in(Timeout),
    Calls = [spawn_monitor(fun() -> exit({?MODULE, guarded(Node, Module, Function, Args, teleport_deadline:left(Deadline))}) end) || Node <- Nodes],
    %% Each of these ends at the deadline.
    [receive
         {'DOWN', Monitor, process, Pid, {?MODULE, Result}} -> Result;
         {'DOWN', Monitor, process, Pid, Reason} -> {exit, {signal, Reason}}
     end || {Pid, Monitor} <- Calls].

guarded(Node, Module, Function, Args, Timeout) ->
    try {ok, call(Node, Module, Function, Args, Timeout)}
    catch Class:Reason -> {Class, Reason}
    end.

result({reply, {return, Value}}) -> Value;
result({reply, {throw, Thrown}}) -> throw(Thrown);
result({reply, {exit, Reason}}) -> exit({exception, Reason});
result({reply, {error, Reason, Stack}}) -> error({exception, Reason, Stack});
result(timeout) -> error({erpc, timeout});
result({error, {{No, _}, _}}) when No =:= nodedown; No =:= no_teleport; No =:= no_lane -> error({erpc, noconnection});
result({error, {{too_big, _}, _}}) -> error({erpc, system_limit});
result({error, {timeout, _}}) -> error({erpc, timeout});
result({error, {overload, _}}) -> error({erpc, system_limit});
result({error, {{signal, Reason}, _}}) -> exit({signal, Reason}).
