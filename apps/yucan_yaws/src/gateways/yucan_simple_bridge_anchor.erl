%% SPDX-License-Identifier: Apache-2.0
%% @doc Calls a handler that was written for simple_bridge. This module is used either as a handler of this server or as an appmod of a Yaws site.
%%
%% ```
%% yucan:start_link(#{listen => [#{port => 8000}], handler => {yucan_simple_bridge_anchor, #{handler => my_handler, document_root => "static"}}}).
%%
%% appmods = </, yucan_simple_bridge_anchor exclude_paths static>        # and in <opaque>: handler = my_handler
%% '''
%% The handler's `run(Bridge)' answers a request; `ws_init/1', `ws_message/3', `ws_info/3' and `ws_terminate/3' handle a WebSocket. `Bridge' is the
%% result of `simple_bridge:make(yucan, Request)'. The user's application must depend on simple_bridge, because this application does not. The option
%% `bridge' specifies a different module with that function.
-module(yucan_simple_bridge_anchor).
-behaviour(yucan_handler).
-behaviour(yucan_ws).

-export([init/1, handle/2, out/1]).
-export([init/2, message/2, info/2, terminate/2]).

-include("../../include/yaws_api.hrl").

-type options() :: #{handler => module(), bridge => module(), document_root => file:filename_all(), static_paths => [string()],
    %% The size limit of a WebSocket message. The default is the server's limit.
    ws_message_bytes => pos_integer()}.
-type settings() :: #{handler := module(), bridge := module(), document_root := file:filename_all(), static_paths := [binary()],
    websocket := yucan_ws:options()}.

-record(ws, {handler :: module(), bridge :: term(), state :: term()}).

%% @doc Returns the settings. As in simple_bridge, the defaults of the options are taken from the environment of the application simple_bridge.
-spec init(options()) -> settings().
init(Options) ->
    Value = fun(Key, Default) -> maps:get(Key, Options, application:get_env(simple_bridge, Key, Default)) end,
    case Value(handler, undefined) of
        undefined -> error({no_handler, "name the module that answers: handler => Module, or the variable handler of the application simple_bridge"});
        Handler ->
            #{handler => Handler, bridge => Value(bridge, simple_bridge), document_root => Value(document_root, "./priv/static"),
              static_paths => [below(Path) || Path <- Value(static_paths, [])], websocket => websocket(Value(ws_message_bytes, default))}
    end.

websocket(default) -> #{};
websocket(Bytes) when is_integer(Bytes), Bytes > 0 -> #{max_message => Bytes};
websocket(Other) -> error({bad_ws_message_bytes, Other, "a number of bytes is expected"}).

below(Path) -> iolist_to_binary(["/", string:trim(unicode:characters_to_list(Path), both, "/"), "/"]).

%% @doc Handles a request from the native interface. Paths below a static path are served as files.
-spec handle(yucan_req:req(), settings()) -> yucan_handler:response().
handle(Req, Settings) ->
    case yucan_req:decoded_path(Req) of
        {ok, _} -> handled(Req, Settings);
        {error, bad_path} -> yucan_error:page(400)
    end.

handled(Req, #{static_paths := Static, document_root := Root} = Settings) ->
    Path = yucan_req:path(Req),
    case [Prefix || Prefix <- Static, string:prefix(Path, Prefix) =/= nomatch] of
        [] ->
            Rooted = yucan_simple_bridge:rooted(Root, Req),
            run(Rooted, Rooted, Settings);
        _ -> found(yucan_file:respond(Req, unicode:characters_to_binary(Root), #{}))
    end.

found(not_found) -> yucan_error:page(404);
found({error, _}) -> yucan_error:page(403);
found(Response) -> Response.

%% @doc Handles a request to an appmod. The handler is specified in the opaque data of the server, or in the environment.
-spec out(#arg{}) -> {yucan_response, yucan_handler:response()}.
out(#arg{opaque = Opaque, docroot = Docroot} = Arg) ->
    Named = maps:from_list([named(Name, Value) || is_list(Opaque), {Name, Value} <- Opaque, lists:member(Name, ["handler", "bridge", "ws_message_bytes"])]),
    Req = yucan_simple_bridge:rooted(Docroot, yucan_yaws_out:request()),
    ok = yucan_yaws_out:remember(Req),
    {yucan_response, run(Arg, Req, init(Named#{document_root => Docroot}))}.

named("ws_message_bytes", Value) -> {ws_message_bytes, try list_to_integer(Value) catch error:badarg -> Value end};
named(Name, Value) -> {list_to_existing_atom(Name), yucan_yaws_loader:own(list_to_atom(Value))}.

run(Request, Req, #{handler := Handler, bridge := Maker, websocket := Options}) ->
    try Maker:make(yucan, Request) of
        Bridge -> answered(yucan_header:lower(yucan_req:header(<<"upgrade">>, Req, <<>>)), Handler, Bridge, Options)
    catch
        throw:{yucan_body, Reason} -> yucan_req:body_error(Reason)
    end.

answered(<<"websocket">>, Handler, Bridge, Options) -> {websocket, ?MODULE, #ws{handler = Handler, bridge = Bridge}, Options};
answered(_, Handler, Bridge, _) ->
    try Handler:run(Bridge)
    catch throw:{yucan_body, Reason} -> yucan_req:body_error(Reason)
    end.

%% @private
-spec init(yucan_req:req(), #ws{}) -> {ok, #ws{}}.
init(_, #ws{handler = Handler, bridge = Bridge} = Ws) ->
    case exports(Handler, ws_init, 1) andalso Handler:ws_init(Bridge) of
        {ok, State} -> {ok, Ws#ws{state = State}};
        _ -> {ok, Ws}
    end.

%% @private
-spec message({text | binary, binary()}, #ws{}) -> yucan_ws:result().
message(Message, #ws{handler = Handler, bridge = Bridge, state = State} = Ws) ->
    result(Handler:ws_message(Message, Bridge, State), Ws).

%% @private
-spec info(term(), #ws{}) -> yucan_ws:result().
info(Message, #ws{handler = Handler, bridge = Bridge, state = State} = Ws) ->
    case exports(Handler, ws_info, 3) of
        true -> result(Handler:ws_info(Message, Bridge, State), Ws);
        false -> {ok, Ws}
    end.

%% @private
-spec terminate(term(), #ws{}) -> term().
terminate(Reason, #ws{handler = Handler, bridge = Bridge, state = State}) ->
    exports(Handler, ws_terminate, 3) andalso Handler:ws_terminate(Reason, Bridge, State).

exports(Module, Function, Arity) ->
    {module, Module} = code:ensure_loaded(Module),
    erlang:function_exported(Module, Function, Arity).

result(noreply, Ws) -> {ok, Ws};
result({noreply, State}, Ws) -> {ok, Ws#ws{state = State}};
result({reply, Frames}, Ws) -> {reply, Frames, Ws};
result({reply, Frames, State}, Ws) -> {reply, Frames, Ws#ws{state = State}};
result({close, Code}, Ws) -> {close, Code, <<>>, Ws};
result(close, Ws) -> {close, 1000, <<>>, Ws}.
