%% SPDX-License-Identifier: Apache-2.0
%% @doc Implements the WebSocket callbacks of Yaws, for `{websocket, Module, Options}' from out/1, with the WebSocket callbacks of this server.
%%
%% It calls `Module:handle_message/2' if that exists, and otherwise `handle_message/1', which gets no state. The initial state is the one in
%% `{callback, {basic, State}}', or []; `init/1' and `handle_open/2' may change it. `handle_open/2' gets the pid of this process, which is an
%% argument of yaws_api:websocket_send/2.
-module(yucan_yaws_ws).
-behaviour(yucan_ws).

-export([response/3]).
-export([init/2, message/2, info/2, terminate/2]).

-include("../../include/yaws_api.hrl").

%% `closes' means that the module itself has closed the connection.
-record(state, {module :: module(), inner :: term(), closes = false :: boolean()}).

%% @doc Returns the response that upgrades the connection.
-spec response(module(), [term()], #arg{}) -> yucan_handler:response().
response(Module, Options, Arg) ->
    Given = case proplists:get_value(callback, Options, basic) of {basic, State} -> State; _ -> [] end,
    %% As in Yaws, pages of any origin are accepted, unless the option `origin' specifies one.
    Origins = case proplists:get_value(origin, Options, any) of any -> any; Origin -> [iolist_to_binary(Origin)] end,
    {websocket, ?MODULE, {Module, Given, Arg}, #{origins => Origins}}.

%% @private
-spec init(yucan_req:req(), {module(), Given :: term(), #arg{}}) -> {ok, #state{}} | {close, 1000..4999, iodata()} | {close, 1000..4999, iodata(), [], #state{}}.
init(_, {Module, Given, Arg}) ->
    {module, Module} = code:ensure_loaded(Module),
    case erlang:function_exported(Module, init, 1) of
        true -> made(Module:init([Arg, Given]), Module);
        false -> made({ok, Given}, Module)
    end.

made({ok, Inner}, Module) ->
    State = #state{module = Module, inner = Inner},
    case erlang:function_exported(Module, handle_open, 2) of
        true -> opened(Module:handle_open(self(), Inner), State);
        false -> {ok, State}
    end;
made({error, _}, _) -> {close, 1011, <<>>}.

opened({ok, Inner}, State) -> {ok, State#state{inner = Inner}};
opened({error, Reason}, State) ->
    {close, Code, Text, Closed} = result({close, Reason}, State),
    {close, Code, Text, [], Closed}.

%% @private
-spec message({text | binary, binary()} | {close, integer(), binary()}, #state{}) -> yucan_ws:result().
message(Message, #state{module = Module, inner = Inner} = State) ->
    case erlang:function_exported(Module, handle_message, 2) of
        true -> result(Module:handle_message(Message, Inner), State);
        false -> result(Module:handle_message(Message), State)
    end.

%% @private
-spec info(term(), #state{}) -> yucan_ws:result().
info({yucan_yaws_ws, send, Message}, State) -> {reply, Message, State};
info(Other, #state{module = Module, inner = Inner} = State) ->
    case erlang:function_exported(Module, handle_info, 2) of
        true -> result(Module:handle_info(Other, Inner), State);
        false -> {ok, State}
    end.

%% @private
-spec terminate(term(), #state{}) -> term().
terminate(Reason, #state{module = Module} = State) ->
    #state{inner = Inner} = told(Reason, State),
    case erlang:function_exported(Module, terminate, 2) of
        true -> Module:terminate(Reason, Inner);
        false -> ok
    end;
%% The connection was never opened.
terminate(_, _) -> ok.

%% As in Yaws, a module gets a close message as its last message, unless it has closed the connection itself. The connection is already closed, so
%% only the state in the result is used. Many modules have no clause for this message, so, as in Yaws, a failure is not logged.
told(_, #state{closes = true} = State) -> State;
told({crashed, _}, State) -> State;
told(Reason, State) ->
    Message = case Reason of {closed, Code, Text} -> {close, Code, Text}; _ -> {close, 1006, <<>>} end,
    try message(Message, State) of
        Result -> element(tuple_size(Result), Result)
    catch
        _:_ -> State
    end.

result(noreply, State) -> {ok, State};
result({noreply, Inner}, State) -> {ok, State#state{inner = Inner}};
result({reply, Messages}, State) -> {reply, Messages, State};
result({reply, Messages, Inner}, State) -> {reply, Messages, State#state{inner = Inner}};
result({close, {Code, Text}}, State) when is_integer(Code) -> {close, Code, Text, State#state{closes = true}};
result({close, Code}, State) when is_integer(Code) -> {close, Code, <<>>, State#state{closes = true}};
result({close, normal}, State) -> {close, 1000, <<>>, State#state{closes = true}};
result({close, _}, State) -> {close, 1011, <<>>, State#state{closes = true}};
result({close, Reason, Inner}, State) -> result({close, Reason}, State#state{inner = Inner});
result({close, Reason, Messages, Inner}, State) ->
    {close, Code, Text, Closed} = result({close, Reason, Inner}, State),
    {close, Code, Text, lists:flatten([Messages]), Closed}.
