%% SPDX-License-Identifier: Apache-2.0
%% @doc The behaviour of request handlers: a single required function, which is called in the connection process or, over HTTP/2, in the request's
%% process.
%%
%% ```
%% -module(hello).
%% -behaviour(yucan_handler).
%% -export([handle/2]).
%% handle(_Req, _State) -> {200, [{<<"content-type">>, <<"text/plain">>}], <<"hello world\n">>}.
%% '''
-module(yucan_handler).

-export_type([response/0, headers/0, write/0]).

-type headers() :: [{Name :: binary() | string() | atom(), Value :: iodata() | integer()}].
-type write() :: fun((iodata()) -> ok | {error, closed | timeout}).
-type response() ::
    {Status :: 200..999, headers(), iodata()}
    | {Status :: 200..999, headers(), {file, file:name_all()}}
    %% A complete file whose size is already known.
    | {Status :: 200..999, headers(), {file, file:name_all(), Size :: non_neg_integer()}}
    | {Status :: 200..999, headers(), {file, file:name_all(), Offset :: non_neg_integer(), Length :: non_neg_integer()}}
    | {Status :: 200..999, headers(), {stream, fun((write()) -> term())}}
    | {Status :: 101..999, headers(), {upgrade, fun((yucan_transport:socket(), Buffered :: binary()) -> term())}}
    | {websocket, module(), term(), yucan_ws:options()}
    %% The handler has sent its response through yucan_answer.
    | sent
    | close.

%% Called in the server's process each time the configuration is loaded. If it is not exported, the argument itself is the state.
-callback init(Arg :: term()) -> State :: term().
-callback handle(yucan_req:req(), State :: term()) -> response().
-optional_callbacks([init/1]).
