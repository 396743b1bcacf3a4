%% SPDX-License-Identifier: Apache-2.0
%% @doc Implements functions from version 0.2.0 that will be removed in the next version. They still work, and the
%% first use of each is logged.
%%
%% For functions that {@link teleport} and {@link teleport_erpc} do not define, the VM calls their
%% `$handle_undefined_function' (see kernel's `error_handler'), which calls this module. Because the functions are not
%% defined, xref and dialyzer warn about programs that use them.
-module(teleport_old).

-export([call/3]).

%% A request of gen or of a pool is opaque to dialyzer.
-dialyzer({[no_opaque, no_return], teleport/2}).

%% @doc Does what the old function did, or raises `undef'.
-spec call(teleport | teleport_erpc, Function :: atom(), Args :: [term()]) -> term().
call(Module, Function, Args) ->
    case now(Module, Function, Args) of
        {New, Do} ->
            ok = teleport_config:warn({Module, Function}, "teleport: ~ts:~ts/~b ends with this version; use ~ts", [Module, Function, length(Args), New]),
            Do();
        none -> error_handler:raise_undef_exception(Module, Function, Args)
    end.

now(teleport_erpc, Function, Args) ->
    Own = erpc_args(Function, Args),
    case erlang:function_exported(erpc, Function, length(Own)) of
        true -> {"erpc, whose functions have these names", fun() -> apply(erpc, Function, Own) end};
        false -> none
    end;
now(teleport, Function, Args) -> teleport(Function, Args).

%% Version 0.2.0 accepted a map of options in place of a time limit, or as an additional argument where erpc takes no
%% time limit.
erpc_args(_, []) -> [];
erpc_args(Function, Args) ->
    case {lists:last(Args), Function} of
        {Options, _} when is_map(Options), Function =:= call orelse Function =:= multicall -> lists:droplast(Args) ++ [maps:get(timeout, Options, infinity)];
        {Options, _} when is_map(Options), Function =:= cast orelse Function =:= multicast orelse Function =:= send_request andalso length(Args) =/= 4 andalso length(Args) =/= 6 -> lists:droplast(Args);
        _ -> Args
    end.

teleport(erpc_call, Args) -> {"erpc:call", fun() -> apply(erpc, call, erpc_args(call, Args)) end};
teleport(erpc_cast, Args) -> {"erpc:cast", fun() -> apply(erpc, cast, erpc_args(cast, Args)) end};
teleport(multicall, Args) -> {"erpc:multicall", fun() -> apply(erpc, multicall, erpc_args(multicall, Args)) end};
teleport(multi_call, [Nodes, Name, Request, Timeout, _]) -> {"teleport:multi_call/4", fun() -> teleport_call:multi(Nodes, Name, Request, Timeout) end};
teleport(statem_call, [Dest, Request]) -> teleport(statem_call, [Dest, Request, infinity]);
teleport(statem_call, [Dest, Request, {_, Timeout}]) -> teleport(statem_call, [Dest, Request, Timeout]);
teleport(statem_call, [Dest, Request, Timeout]) -> {"teleport:call/3", fun() -> teleport_call:call('$gen_call', Dest, Request, Timeout, #{}) end};
teleport(statem_cast, [Dest, Message]) -> {"teleport:cast/2", fun() -> teleport_message:send(Dest, {'$gen_cast', Message}) end};
teleport(fsm_event, Args) -> gen(send_event, Args);
teleport(fsm_all_state_event, Args) -> gen(send_all_state_event, Args);
teleport(fsm_sync_event, Args) -> gen(sync_send_event, Args);
teleport(fsm_sync_all_state_event, Args) -> gen(sync_send_all_state_event, Args);
teleport(Function, Args) when Function =:= notify; Function =:= sync_notify; Function =:= event_call -> gen(Function, Args);
teleport(send_request, [Dest, Request, Label, Ids]) -> teleport(send_request, [Dest, Request, Label, Ids, #{}]);
teleport(send_request, [Dest, Request, Label, Ids, Options]) ->
    {"gen_server:reqids_add/3", fun() -> gen_server:reqids_add(teleport_call:request(Dest, Request, teleport_message:checked(Options)), Label, Ids) end};
teleport(Function, [_ | _] = Args) when length(Args) =:= 3, Function =:= wait_response orelse Function =:= receive_response orelse Function =:= check_response;
                                        Function =:= reqids_add; Function =:= reqids_size; Function =:= reqids_to_list -> gen_server(Function, Args);
teleport(reqids_new, []) -> gen_server(reqids_new, []);
teleport(prime, [Node | _]) -> {"net_kernel:connect_node/1", fun() -> connected(Node, Node =:= node() orelse net_kernel:connect_node(Node)) end};
teleport(Function, []) when Function =:= lanes; Function =:= not_up; Function =:= by_distribution -> {"beamway:links/0", fun() -> [] end};
teleport(lanes, [_]) -> {"beamway:links/0", fun() -> [] end};
teleport(unconfirmed, []) -> {"the option confirm of a message", fun() -> #{} end};
teleport(_, _) -> none.

gen(Function, Args) -> {"teleport_gen", fun() -> apply(teleport_gen, Function, Args) end}.

gen_server(Function, Args) -> {"gen_server, whose functions take these requests", fun() -> apply(gen_server, Function, Args) end}.

connected(_, true) -> ok;
connected(Node, _) -> {error, {nodedown, Node}}.
