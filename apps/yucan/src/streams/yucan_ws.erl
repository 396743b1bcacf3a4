%% SPDX-License-Identifier: Apache-2.0
%% @doc WebSocket (RFC 6455): the handshake, and then the loop in the connection process that calls the user's module.
%%
%% A handler returns `{websocket, Module, Argument, Options}', and `Module' has this behaviour. `init/2' is called after
%% the response to the handshake. `message/2' is called for each complete message from the client, and `info/2' for each
%% message from another process; if the module has no `info/2', such messages are dropped. If one of these two functions
%% raises an exception, the client gets the close code 1011.
%%
%% permessage-deflate (RFC 7692) is off unless the options contain `compress'. With `compress => true', each message is compressed separately, so that
%% an idle connection needs no window; a map sets other parameters ({@link yucan_ws_deflate}). A request from a page of another origin gets 403, unless
%% `origins' contains that origin or is `any'.
-module(yucan_ws).
-dialyzer(no_improper_lists).

-export([upgrade/5, message/2, silence/1]).
-export_type([options/0, frame/0, result/0]).

-include("yucan_internal.hrl").

-type options() :: #{protocols => [binary()], compress => boolean() | yucan_ws_deflate:options(), max_message => pos_integer(), idle_ms => pos_integer(),
    headers => yucan_handler:headers(), origins => same | any | [binary()]}.
%% `protocols' are names for `Sec-WebSocket-Protocol'; the first name in the client's list that is one of them is used.
%% `max_message' limits a message in bytes, after it has been decompressed. A client that has been silent for `idle_ms'
%% gets a ping, and the connection is closed if the client is silent for the same time again. The defaults of these two
%% are the server's limits `ws_message_bytes' and `ws_idle_ms'. `headers' are added to the response. `origins' is `same'
%% by default: only pages of the requested host may open the WebSocket.
-type frame() :: {text | binary | ping | pong, iodata()}.
-type result() :: {ok, State :: term()} | {reply, frame() | [frame()], State :: term()} | {close, Code :: 1000..4999, Text :: iodata(), State :: term()}
    | {close, Code :: 1000..4999, Text :: iodata(), Before :: [frame()], State :: term()}.
%% `Before' are frames that are sent before the connection is closed.

-callback init(yucan_req:req(), Arg :: term()) -> {ok, State :: term()} | {reply, frame() | [frame()], State :: term()} | {close, 1000..4999, iodata()}
    | {close, 1000..4999, iodata(), Before :: [frame()], State :: term()}.
-callback message({text | binary, binary()}, State :: term()) -> result().
-callback info(term(), State :: term()) -> result().
%% Called after the server has answered a ping, or when a pong has arrived.
-callback control({ping | pong, binary()}, State :: term()) -> result().
%% `drained' means that the server is shutting down.
-callback terminate(Reason :: {closed, Code :: integer(), Text :: binary()} | lost | idle | drained | {crashed, term()}, State :: term()) -> term().
-optional_callbacks([info/2, control/2, terminate/2]).

-define(GUID, <<"258EAFA5-E914-47DA-95CA-C5AB0DC85B11">>).
-define(ARM, 20).
-define(CLOSE_MS, 5000).
%% See yucan_reply.
-define(PART_BYTES, 65536).
%% See yucan_conn.
-define(WARM_MS, 2000).

-record(ws, {
    socket :: yucan_transport:socket(),
    module :: module(),
    user :: term(),
    buffer = <<>> :: binary(),
    %% The buffer is parsed only once it has this many bytes. Until then data is only appended to it, without copying.
    wanted = 0 :: non_neg_integer(),
    %% The beginning of a message whose last frame has not arrived yet: its kind, whether it is compressed, and its payload. The payload is a single
    %% growing binary, because a list of frames without payload would grow without limit.
    partial = none :: none | {text | binary, boolean(), binary()},
    deflate = none :: none | yucan_ws_deflate:context(),
    %% True if a large message has left large binaries on the heap.
    large = false :: boolean(),
    max :: pos_integer(),
    idle_ms :: pos_integer(),
    %% How many more messages may arrive; 0 means none until the transport is armed again.
    armed = 0 :: non_neg_integer(),
    %% Whether bytes have arrived since the last check. `pinged' means that none have arrived and that a ping has been sent.
    heard = false :: boolean() | pinged
}).

%% @private Returns the response to an upgrade request: either 101 followed by the loop, or an error response.
-spec upgrade(yucan_req:req(), module(), term(), options(), #limits{}) -> yucan_handler:response().
upgrade(Req, Module, Argument, Options, Limits) ->
    case check(Req, Options) of
        {ok, Key} ->
            Deflate = case yucan_ws_deflate:wanted(maps:get(compress, Options, false)) of
                none -> none;
                Wanted -> yucan_ws_deflate:negotiate(yucan_req:header(<<"sec-websocket-extensions">>, Req, <<>>), Wanted)
            end,
            Headers = accept(Key)
                ++ [{<<"sec-websocket-protocol">>, P} || P <- protocol(Req, Options)]
                ++ [{<<"sec-websocket-extensions">>, Accepted} || {Accepted, _} <- [Deflate]]
                ++ maps:get(headers, Options, []),
            Ws = #{module => Module, deflate => Deflate, max => maps:get(max_message, Options, Limits#limits.ws_message_bytes),
                   idle_ms => maps:get(idle_ms, Options, Limits#limits.ws_idle_ms)},
            {101, Headers, {upgrade, fun(Socket, Buffer) -> start(Socket, Buffer, Req, Argument, Ws) end}};
        Refusal -> Refusal
    end.

accept(none) -> [];
accept(Key) -> [{<<"upgrade">>, <<"websocket">>}, {<<"sec-websocket-accept">>, base64:encode(crypto:hash(sha, <<Key/binary, ?GUID/binary>>))}].

check(Req, Options) ->
    case yucan_req:version(Req) of
        {2, 0} -> check_tunnel(Req, Options);
        _ -> check_upgrade(Req, Options)
    end.

%% HTTP/2 needs neither a key nor the upgrade headers (RFC 8441). yucan_h2_request, which has checked everything else, adds `upgrade' to the request
%% for a WebSocket, and no other request over HTTP/2 can have this header.
check_tunnel(Req, Options) ->
    Tunnel = has_token(<<"upgrade">>, <<"websocket">>, Req),
    case is_welcome(Req, Options) of
        _ when not Tunnel -> yucan_error:page(400, <<"A WebSocket is expected here">>);
        true ->
            case yucan_req:header(<<"sec-websocket-version">>, Req) of
                <<"13">> -> {ok, none};
                _ -> yucan_error:page(400)
            end;
        false -> yucan_error:page(403)
    end.

%% RFC 6455, 4.2.1.
check_upgrade(Req, Options) ->
    Key = yucan_req:header(<<"sec-websocket-key">>, Req, <<>>),
    Checks = [{yucan_req:method(Req) =:= <<"GET">>, not_allowed},
              {yucan_req:version(Req) =:= {1, 1}, upgrade_required},
              {has_token(<<"upgrade">>, <<"websocket">>, Req) andalso has_token(<<"connection">>, <<"upgrade">>, Req), upgrade_required},
              {yucan_req:header(<<"sec-websocket-version">>, Req) =:= <<"13">>, upgrade_required},
              {is_key(Key), 400},
              %% The bytes of a body would be mistaken for frames.
              {not yucan_req:has_body(Req), 400},
              {is_welcome(Req, Options), 403}],
    case lists:keyfind(false, 1, Checks) of
        false -> {ok, Key};
        {false, not_allowed} -> yucan_error:not_allowed([<<"GET">>, <<"OPTIONS">>], Req);
        {false, upgrade_required} ->
            yucan_error:page_with(426, [{<<"upgrade">>, <<"websocket">>}, {<<"sec-websocket-version">>, <<"13">>}]);
        {false, Status} -> yucan_error:page(Status)
    end.

has_token(Name, Token, Req) -> lists:member(Token, yucan_header:tokens(yucan_req:header(Name, Req, <<>>))).

is_key(Key) ->
    try byte_size(base64:decode(Key)) =:= 16 catch error:_ -> false end.

%% Programs other than browsers send no Origin. A browser always sends it, and also its cookies, whichever page has opened the WebSocket (RFC 6455,
%% 10.2).
is_welcome(Req, Options) ->
    case {maps:get(origins, Options, same), yucan_req:header(<<"origin">>, Req)} of
        {any, _} -> true;
        {same, undefined} -> true;
        {same, Origin} -> is_same(yucan_header:lower(Origin), yucan_req:scheme(Req), yucan_header:lower(yucan_req:header(<<"host">>, Req, <<>>)));
        {Origins, Origin} -> lists:member(Origin, Origins)
    end.

%% The page's origin must have the host name and port of this request. An HTTPS page may open a WebSocket without TLS, because a proxy in front of
%% this server may handle TLS. An HTTP page may not open a WebSocket over TLS, because anyone on the path to the browser could forge such a page.
is_same(<<"http://", Page/binary>>, http, Host) -> without(<<":80">>, Page) =:= without(<<":80">>, Host);
is_same(<<"https://", Page/binary>>, _, Host) -> without(<<":443">>, Page) =:= without(<<":443">>, Host);
is_same(_, _, _) -> false.

without(Port, Host) ->
    Size = byte_size(Host) - byte_size(Port),
    case Host of
        <<Name:Size/binary, Port/binary>> -> Name;
        _ -> Host
    end.

protocol(Req, #{protocols := Known}) ->
    Asked = [yucan_header:trim(P) || P <- binary:split(yucan_req:header(<<"sec-websocket-protocol">>, Req, <<>>), <<",">>, [global])],
    lists:sublist([P || P <- Asked, lists:member(P, Known)], 1);
protocol(_, _) -> [].

start(Socket, Buffer, Req, Argument, #{module := Module, deflate := Deflate, max := Max, idle_ms := Idle}) ->
    Context = case Deflate of {_, Agreed} -> yucan_ws_deflate:open(Agreed); none -> none end,
    Ws = #ws{socket = Socket, module = Module, user = undefined, buffer = Buffer, deflate = Context, max = Max, idle_ms = Idle},
    look_later(Ws),
    case Module:init(Req, Argument) of
        {ok, User} -> parsed(Ws#ws{user = User});
        {reply, Frames, User} -> reply(Frames, Ws#ws{user = User});
        {close, Code, Text} -> say_goodbye(Code, Text, Ws);
        {close, Code, Text, Before, User} -> last_words(Code, Text, Before, Ws#ws{user = User})
    end.

arm(#ws{socket = Socket} = Ws) ->
    case yucan_transport:arm(Socket, ?ARM) of
        ok -> loop(Ws#ws{armed = ?ARM});
        {error, _} -> ended(lost, Ws)
    end.

%% A large message leaves behind large binaries on a small heap, so the VM would not collect them soon by itself.
loop(#ws{large = true, buffer = Buffer} = Ws) when byte_size(Buffer) < ?PART_BYTES ->
    Ws1 = Ws#ws{large = false, buffer = binary:copy(Buffer)},
    true = erlang:garbage_collect(),
    loop(Ws1);
loop(Ws) -> yucan_idle:message(?MODULE, Ws, ?WARM_MS).

%% @private Called when nothing has arrived for a while. Hibernating would discard the call stack of the function that waits for this loop to end.
-spec silence(#ws{}) -> ok.
silence(Ws) ->
    true = erlang:garbage_collect(),
    yucan_idle:message(?MODULE, Ws, infinity).

%% A separate timer is used, so that messages from other Erlang processes do not postpone the check.
look_later(#ws{idle_ms = Idle}) ->
    _ = erlang:send_after(Idle, self(), {yucan, look}),
    ok.

%% @private Handles a message from the client's socket or from another process.
-spec message(term(), #ws{}) -> ok.
message({yucan, drain}, Ws) -> say_goodbye(1001, <<"going away">>, drained, Ws);
message({yucan, look}, Ws) -> look(Ws);
message(Message, #ws{socket = Socket} = Ws) ->
    case yucan_transport:event(Message, Socket) of
        {data, Data} -> received(Data, Ws#ws{armed = yucan_transport:used(Socket, Ws#ws.armed, ?ARM)});
        {last, Data} -> received(Data, Ws#ws{armed = 0});
        passive when Ws#ws.armed > 1 -> loop(Ws);
        passive -> arm(Ws);
        closed -> ended(lost, Ws);
        other -> tell(Message, Ws)
    end.

%% If nothing has arrived since the last check, a ping tests whether the client is still alive. If it stays silent, the connection is closed.
look(#ws{heard = pinged} = Ws) -> ended(idle, Ws);
look(#ws{heard = true} = Ws) ->
    look_later(Ws),
    loop(Ws#ws{heard = false});
look(#ws{socket = Socket} = Ws) ->
    case yucan_transport:send(Socket, yucan_ws_frame:encode(ping, <<>>)) of
        ok ->
            look_later(Ws),
            loop(Ws#ws{heard = pinged});
        {error, _} -> ended(lost, Ws)
    end.

received(Data, #ws{buffer = <<>>} = Ws) -> parsed(Ws#ws{buffer = Data, heard = true});
received(Data, #ws{buffer = Buffer, wanted = Wanted} = Ws) when byte_size(Buffer) + byte_size(Data) < Wanted ->
    rearm(Ws#ws{buffer = <<Buffer/binary, Data/binary>>, heard = true});
received(Data, #ws{buffer = Buffer} = Ws) ->
    parsed(Ws#ws{buffer = <<Buffer/binary, Data/binary>>, heard = true}).

rearm(#ws{armed = 0} = Ws) -> arm(Ws);
rearm(Ws) -> loop(Ws).

parsed(#ws{buffer = Buffer, max = Max, deflate = Deflate} = Ws) ->
    case yucan_ws_frame:parse(Buffer, Max, Deflate =/= none) of
        {ok, Fin, Deflated, Opcode, Payload, Rest} -> frame(Opcode, Fin, Deflated, Payload, Ws#ws{buffer = Rest});
        more -> rearm(Ws#ws{wanted = yucan_ws_frame:size(Buffer)});
        {error, Code} -> fail(Code, Ws)
    end.

frame(ping, true, _, Payload, Ws) ->
    case yucan_transport:send(Ws#ws.socket, yucan_ws_frame:encode(pong, Payload)) of
        ok -> control({ping, Payload}, Ws);
        {error, _} -> ended(lost, Ws)
    end;
frame(pong, true, _, Payload, Ws) -> control({pong, Payload}, Ws);
frame(close, true, _, Payload, Ws) -> closed(yucan_ws_frame:parse_close(Payload), Ws);
frame(continuation, _, _, _, #ws{partial = none} = Ws) -> fail(1002, Ws);
frame(continuation, Fin, _, Payload, #ws{partial = {Kind, Deflated, Before}} = Ws) ->
    gathered(Fin, Kind, Deflated, <<Before/binary, Payload/binary>>, Ws);
frame(Kind, Fin, Deflated, Payload, #ws{partial = none} = Ws) -> gathered(Fin, Kind, Deflated, Payload, Ws);
frame(_, _, _, _, Ws) -> fail(1002, Ws).

gathered(_, _, _, Data, #ws{max = Max} = Ws) when byte_size(Data) > Max -> fail(1009, Ws);
gathered(false, Kind, Deflated, Data, Ws) -> parsed(Ws#ws{partial = {Kind, Deflated, Data}});
gathered(true, Kind, false, Data, Ws) -> deliver(Kind, Data, Ws#ws{partial = none});
gathered(true, Kind, true, Data, #ws{max = Max, deflate = Deflate} = Ws) ->
    case yucan_ws_deflate:inflate(Data, Max, Deflate) of
        {ok, Inflated} -> deliver(Kind, Inflated, Ws#ws{partial = none});
        {error, Code} -> fail(Code, Ws)
    end.

deliver(Kind, Data, #ws{large = false} = Ws) when byte_size(Data) > ?PART_BYTES -> deliver(Kind, Data, Ws#ws{large = true});
deliver(Kind, Data, Ws) ->
    case Kind =:= binary orelse yucan_ws_frame:is_text(Data) of
        true -> call(fun(#ws{module = Module, user = User}) -> Module:message({Kind, Data}, User) end, Ws);
        false -> fail(1007, Ws)
    end.

control(Frame, #ws{module = Module} = Ws) ->
    case erlang:function_exported(Module, control, 2) of
        true -> call(fun(#ws{user = User}) -> Module:control(Frame, User) end, Ws);
        false -> parsed(Ws)
    end.

tell(Message, #ws{module = Module} = Ws) ->
    case erlang:function_exported(Module, info, 2) of
        true -> call(fun(#ws{user = User}) -> Module:info(Message, User) end, Ws);
        false -> loop(Ws)
    end.

call(Function, Ws) ->
    try Function(Ws) of
        {ok, User} -> parsed(Ws#ws{user = User});
        {reply, Frames, User} -> reply(Frames, Ws#ws{user = User});
        {close, Code, Text, User} -> say_goodbye(Code, Text, Ws#ws{user = User});
        {close, Code, Text, Before, User} -> last_words(Code, Text, Before, Ws#ws{user = User})
    catch
        Class:Reason:Stack ->
            _ = say_goodbye(1011, <<>>, Ws#ws{module = ?MODULE}),
            _ = terminate({crashed, Reason}, Ws),
            erlang:raise(Class, Reason, Stack)
    end.

reply(Frames, Ws) when is_list(Frames) ->
    case send(Frames, Ws) of
        ok -> parsed(Ws);
        {error, _} -> ended(lost, Ws)
    end;
reply(Frame, Ws) -> reply([Frame], Ws).

%% As with a response, the time limit applies to each part of a large message, so slow clients get more time for more data.
send(Frames, #ws{socket = Socket} = Ws) ->
    Data = [encode(Frame, Ws) || Frame <- Frames],
    case iolist_size(Data) > ?PART_BYTES of
        true -> yucan_transport:send_large(Socket, [[] | Data]);
        false -> yucan_transport:send(Socket, Data)
    end.

encode({Kind, Data}, #ws{deflate = Deflate}) when Deflate =/= none, Kind =:= text orelse Kind =:= binary ->
    yucan_ws_frame:encode({deflated, Kind}, yucan_ws_deflate:deflate(Data, Deflate));
encode({Kind, Data}, _) -> yucan_ws_frame:encode(Kind, Data).

%% The peer closes the connection, so its close code is echoed (5.5.1).
closed({ok, Code, Text}, Ws) -> say_goodbye(Code, <<>>, {closed, Code, Text}, Ws);
closed({error, Code}, Ws) -> fail(Code, Ws).

fail(Code, Ws) -> say_goodbye(Code, <<>>, Ws).

last_words(Code, Text, Frames, Ws) ->
    _ = send(Frames, Ws),
    say_goodbye(Code, Text, Ws).

say_goodbye(Code, Text, Ws) -> say_goodbye(Code, Text, {closed, Code, iolist_to_binary(Text)}, Ws).

say_goodbye(Code, Text, Reason, #ws{socket = Socket} = Ws) ->
    _ = yucan_transport:send(Socket, yucan_ws_frame:encode(close, yucan_ws_frame:close_payload(Code, Text))),
    yucan_transport:linger(Socket, ?CLOSE_MS, 0),
    ended(Reason, Ws).

ended(Reason, #ws{socket = Socket} = Ws) ->
    yucan_transport:close(Socket),
    _ = terminate(Reason, Ws),
    ok.

terminate(Reason, #ws{module = Module, user = User}) ->
    case Module =/= ?MODULE andalso erlang:function_exported(Module, terminate, 2) of
        true -> Module:terminate(Reason, User);
        false -> ok
    end.
