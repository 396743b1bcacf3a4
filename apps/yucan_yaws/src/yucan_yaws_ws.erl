%% SPDX-License-Identifier: Apache-2.0
%% @doc WebSocket callbacks of Yaws on those of this server: `{websocket, Module, Options}' of out/1.
%%
%% Without a state `Module:handle_message/1', with `{callback, {basic, State}}' `handle_message/2' whose returns carry the state.
-module(yucan_yaws_ws).
-behaviour(yucan_ws).

-export([response/2]).
-export([init/2, message/2, info/2, terminate/2]).

-record(state, {module :: module(), mode :: stateless | stateful, inner :: term()}).

%% @doc The response that upgrades the connection.
-spec response(module(), [term()]) -> yucan_handler:response().
response(Module, Options) ->
    State = case proplists:get_value(callback, Options, basic) of
                {basic, Inner} -> #state{module = Module, mode = stateful, inner = Inner};
                _ -> #state{module = Module, mode = stateless}
            end,
    %% As in Yaws: a page of any origin, unless the option says which.
    Origins = case proplists:get_value(origin, Options, any) of any -> any; Origin -> [iolist_to_binary(Origin)] end,
    {websocket, ?MODULE, State, #{origins => Origins}}.

%% @private
-spec init(yucan_req:req(), #state{}) -> {ok, #state{}}.
init(_, State) -> {ok, State}.

%% @private
-spec message({text | binary, binary()}, #state{}) -> yucan_ws:result().
message(Message, #state{module = Module, mode = stateless} = State) ->
    result(Module:handle_message(Message), State);
message(Message, #state{module = Module, mode = stateful, inner = Inner} = State) ->
    result(Module:handle_message(Message, Inner), State).

%% @private
-spec info(term(), #state{}) -> yucan_ws:result().
info({yucan_yaws_ws, send, Message}, State) -> {reply, Message, State};
info(Other, #state{module = Module, mode = stateful, inner = Inner} = State) ->
    case erlang:function_exported(Module, handle_info, 2) of
        true -> result(Module:handle_info(Other, Inner), State);
        false -> {ok, State}
    end;
info(_, State) -> {ok, State}.

%% @private
-spec terminate(term(), #state{}) -> term().
terminate(Reason, #state{module = Module, mode = stateful, inner = Inner}) ->
    case erlang:function_exported(Module, terminate, 2) of
        true -> Module:terminate(Reason, Inner);
        false -> ok
    end;
terminate(_, _) -> ok.

result(noreply, State) -> {ok, State};
result({noreply, Inner}, State) -> {ok, State#state{inner = Inner}};
result({reply, Messages}, State) -> {reply, Messages, State};
result({reply, Messages, Inner}, State) -> {reply, Messages, State#state{inner = Inner}};
result({close, {Code, Text}}, State) -> {close, Code, Text, State};
result({close, Code}, State) when is_integer(Code) -> {close, Code, <<>>, State};
result({close, _}, State) -> {close, 1000, <<>>, State};
result({close, Reason, _Messages}, State) -> result({close, Reason}, State).
