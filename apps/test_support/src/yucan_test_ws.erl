%% SPDX-License-Identifier: Apache-2.0
%% @doc A WebSocket handler that echoes messages. Some texts trigger other actions.
-module(yucan_test_ws).
-behaviour(yucan_ws).

-export([init/2, message/2, info/2, terminate/2]).

%% @doc Starts a WebSocket, which reports events to the process in the argument.
-spec init(yucan_req:req(), pid() | none | greet) -> {ok, pid() | none} | {reply, yucan_ws:frame(), none}.
init(_, greet) -> {reply, {text, <<"hello">>}, none};
init(_, Parent) ->
    tell(Parent, {ws_open, self()}),
    {ok, Parent}.

tell(none, _) -> ok;
tell(Pid, Message) -> Pid ! Message, ok.

%% @doc Echoes a message.
-spec message({text | binary, binary()}, State) -> yucan_ws:result() when State :: term().
message({text, <<"close">>}, S) -> {close, 3001, <<"as you wish">>, S};
message({text, <<"hold">>}, S) ->
    tell(S, {held, self()}),
    receive go_on -> {ok, S} end;
message({text, <<"crash">>}, _) -> error(crashed_on_purpose);
message({text, <<"twice">>}, S) -> {reply, [{text, <<"one">>}, {binary, <<"two">>}], S};
message({Kind, Data}, S) -> {reply, {Kind, Data}, S}.

%% @doc Sends the text that the message contains.
-spec info(term(), State) -> yucan_ws:result() when State :: term().
info({say, Text}, S) -> {reply, {text, Text}, S};
info(_, S) -> {ok, S}.

%% @doc Reports the reason why the WebSocket has ended.
-spec terminate(term(), pid() | none) -> ok.
terminate(Reason, Parent) -> tell(Parent, {ws_ended, Reason}).
