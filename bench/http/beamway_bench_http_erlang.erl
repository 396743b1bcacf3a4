%% SPDX-License-Identifier: Apache-2.0
%% @doc The Erlang servers of `bench http', each in its own VM: `erl -s beamway_bench_http_erlang start NAME PORT FOLDER BACKLOG FASTCGI-PORT'.
%%
%% `yucan2009' rebuilds the 2009 design: one acceptor, a process for each connection that becomes the socket's owner, ERTS's http packets as messages,
%% and a connection that is closed after the response. `default_buffer' reads an upload with gen_tcp's defaults. `minimal' does not parse the head,
%% but only checks the first bytes of a request.
%%
%% This module also contains the handlers of all servers. Modules of other projects are called through variables, because they exist only where the
%% benchmark runs.
-module(beamway_bench_http_erlang).

-export([start/1, handle/2, init/2, message/2, websocket_handle/2, websocket_info/2, mochiweb/2, out/1, handle_message/1]).

-define(HELLO, <<"hello world\n">>).
%% The response to the key in RFC 6455's example, which http_load.c sends.
-define(ACCEPT, <<"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=">>).
%% The size limit for a request's body, which is larger than any upload here.
-define(MOST, 2000000).

%% @doc The entry point, which never returns.
-spec start([atom()]) -> no_return().
start([Name, Port, Folder, Backlog, Fastcgi]) ->
    _ = serve(Name, number(Port), atom_to_list(Folder), number(Backlog)),
    _ = [fastcgi(number(Fastcgi), atom_to_list(Folder)) || Fastcgi =/= none],
    receive after infinity -> ok end.

number(Atom) -> list_to_integer(atom_to_list(Atom)).

serve(yucan, Port, Folder, Backlog) ->
    yucan([#{port => Port}], Folder, Backlog);
%% The same program runs as two servers, each also over TLS; the load generator chooses the protocol.
serve(Name, Port, Folder, Backlog) when Name =:= yucan_h2; Name =:= yucan_h1 ->
    Pem = filename:join(filename:dirname(Folder), atom_to_list(Name) ++ ".pem"),
    Key = yucan_certificate:new_key(),
    Certificate = yucan_certificate:self_signed(<<"bench http">>, 30, [yucan_certificate:names([{iPAddress, <<127, 0, 0, 1>>}])], Key),
    ok = yucan_certificate:write(Pem, [{'Certificate', Certificate, not_encrypted}, yucan_certificate:entry(Key)]),
    Tls = #{port => beamway_bench_http_servers:tls_port(Port), tls => #{certfile => Pem, keyfile => Pem}},
    yucan([#{port => Port}, Tls], Folder, Backlog);
%% With mochiweb's own limit of 8 KB for the kernel's receive buffer, an upload takes twenty times as much CPU time.
serve(mochiweb, Port, Folder, Backlog) ->
    Module = mochiweb_http,
    {ok, _} = Module:start([{ip, "127.0.0.1"}, {port, Port}, {backlog, Backlog}, {nodelay, true}, {recbuf, undefined},
                            {loop, {?MODULE, mochiweb, [Folder]}}]);
%% cowboy comes with RabbitMQ's package. With the VM's default buffer of 1,460 bytes, an upload takes four times as much CPU time, and hello world
%% takes no less.
serve(cowboy, Port, Folder, Backlog) ->
    ok = code:add_pathsa(filelib:wildcard("/usr/lib/rabbitmq/lib/rabbitmq_server-*/plugins/{cowboy,cowlib,ranch}-*/ebin")),
    {ok, _} = application:ensure_all_started(cowboy),
    Router = cowboy_router,
    Ours = [{"/" ++ Path, ?MODULE, State} || {Path, State} <- [{"", hello}, {"json", json}, {"upload", upload}, {"ws", cowboy}]],
    Dispatch = Router:compile([{'_', Ours ++ [{"/[...]", cowboy_static, {dir, Folder}}]}]),
    Cowboy = cowboy,
    Socket = [{ip, {127, 0, 0, 1}}, {port, Port}, {backlog, Backlog}, {nodelay, true}, {buffer, 65536}],
    {ok, _} = Cowboy:start_clear(bench, #{socket_opts => Socket, max_connections => infinity},
                                 #{env => #{dispatch => Dispatch}, max_keepalive => infinity, idle_timeout => 120000});
serve(minimal, Port, _, Backlog) ->
    {ok, Listening} = listen(Port, [{nodelay, true}, {backlog, Backlog}]),
    spawn_link(fun() -> accept_minimal(Listening, iolist_to_binary(answer(?HELLO, <<>>))) end);
serve(yucan2009, Port, _, Backlog) ->
    {ok, Listening} = listen(Port, [{backlog, Backlog}]),
    spawn_link(fun() -> accept_2009(Listening) end);
serve(default_buffer, Port, _, Backlog) ->
    {ok, Listening} = listen(Port, [{nodelay, true}, {backlog, Backlog}]),
    spawn_link(fun() -> accept_upload(Listening) end).

yucan(Listen, Folder, Backlog) ->
    {ok, _} = application:ensure_all_started(yucan),
    Routes = [{"/", ?MODULE, hello}, {"/json", ?MODULE, json}, {"/upload", ?MODULE, upload}, {"/ws", ?MODULE, ws}, {"/*file", yucan_file, #{root => Folder}}],
    {ok, _} = yucan:start(#{listen => Listen, routes => Routes, limits => #{backlog => Backlog}}).

%% php-fpm runs the scripts in the directory. The server is started with a configuration file, as a user would start it.
fastcgi(Port, Folder) ->
    File = filename:join(filename:dirname(Folder), "yucan.conf"),
    ok = file:write_file(File, ["<server localhost>\n  port = ", integer_to_list(Port), "\n  listen = 127.0.0.1\n  docroot = ", Folder,
                                "\n  access_log = false\n  allowed_scripts = php\n  php_handler = <fcgi, unix:", filename:dirname(Folder), "/yucan.sock>\n</server>\n"]),
    {ok, Options} = yucan_yaws_config:load(File),
    {ok, _} = yucan:start(Options#{name => fastcgi}).

listen(Port, Options) ->
    gen_tcp:listen(Port, [binary, {ip, {127, 0, 0, 1}}, {active, false}, {reuseaddr, true} | Options]).

%% Returns the value that each server encodes as JSON for each request.
json() -> jiffy:encode(#{id => 42, message => <<"hello world">>, ok => true}).

%% @private Answers a request, as yucan's handler.
-spec handle(yucan_req:req(), hello | json | upload | ws) -> yucan_handler:response().
handle(_, hello) -> {200, [{<<"content-type">>, <<"text/plain">>}], ?HELLO};
handle(_, json) -> {200, [{<<"content-type">>, <<"application/json">>}], json()};
handle(_, ws) -> {websocket, ?MODULE, yucan, #{}};
handle(Req, upload) ->
    {ok, Body} = yucan_req:body(Req),
    {200, [], integer_to_binary(byte_size(Body))}.

%% @private The callback `init' of cowboy's handlers and of yucan's WebSockets.
-spec init(term(), hello | json | upload | cowboy | yucan) -> {ok, term(), term()} | {cowboy_websocket, term(), cowboy} | {ok, yucan}.
init(_, yucan) -> {ok, yucan};
init(Req, cowboy) -> {cowboy_websocket, Req, cowboy};
init(Req, hello) -> {ok, cowboy_answer(<<"text/plain">>, ?HELLO, Req), hello};
init(Req, json) -> {ok, cowboy_answer(<<"application/json">>, json(), Req), json};
init(Req, upload) -> {ok, upload(Req, 0), upload}.

%% @private Echoes a message that yucan received.
-spec message({text | binary, binary()}, yucan) -> yucan_ws:result().
message(Message, State) -> {reply, Message, State}.

%% @private Echoes a message that cowboy received.
-spec websocket_handle(term(), cowboy) -> {[term()], cowboy}.
websocket_handle({text, _} = Message, State) -> {[Message], State};
websocket_handle(_, State) -> {[], State}.

%% @private
-spec websocket_info(term(), cowboy) -> {[], cowboy}.
websocket_info(_, State) -> {[], State}.

%% @private Answers a request, as mochiweb's loop function.
-spec mochiweb(term(), file:filename()) -> term().
mochiweb(Request, Folder) ->
    Module = mochiweb_request,
    case Module:get(path, Request) of
        "/" -> Module:ok({"text/plain", ?HELLO}, Request);
        "/json" -> Module:ok({"application/json", json()}, Request);
        "/upload" -> Module:ok({"text/plain", integer_to_binary(byte_size(Module:recv_body(?MOST, Request)))}, Request);
        "/ws" ->
            Sockets = mochiweb_websocket,
            {Enter, _} = Sockets:upgrade_connection(Request, fun(Texts, State, Reply) -> lists:foreach(Reply, Texts), State end),
            Enter(none);
        "/" ++ File -> Module:serve_file(File, Folder, Request)
    end.

%% @private Answers a request, as yaws's appmod.
-spec out(term()) -> term().
out(Arg) ->
    Module = yaws_api,
    case Module:arg_server_path(Arg) of
        "/json" -> {content, "application/json", json()};
        "/upload" -> {content, "text/plain", integer_to_binary(iolist_size(Module:arg_clidata(Arg)))};
        "/ws" -> {websocket, ?MODULE, []};
        _ -> {content, "text/plain", ?HELLO}
    end.

%% @private Echoes a message that yaws received.
-spec handle_message(term()) -> {reply, {text, binary()}} | {close, term()}.
handle_message({text, Text}) -> {reply, {text, Text}};
handle_message({close, Status, _}) -> {close, Status}.

upload(Req, Size) ->
    Module = cowboy_req,
    case Module:read_body(Req) of
        {more, Part, Next} -> upload(Next, Size + byte_size(Part));
        {ok, Part, Last} -> cowboy_answer(<<"text/plain">>, integer_to_binary(Size + byte_size(Part)), Last)
    end.

cowboy_answer(Type, Body, Req) ->
    Module = cowboy_req,
    Module:reply(200, #{<<"content-type">> => Type}, Body, Req).

accept_minimal(Listening, Hello) ->
    {ok, Socket} = gen_tcp:accept(Listening),
    Pid = spawn(fun() ->
        receive permission -> inet:setopts(Socket, [{active, true}]) after 60000 -> exit(timeout) end,
        loop_minimal(Socket, Hello)
    end),
    _ = gen_tcp:controlling_process(Socket, Pid),
    Pid ! permission,
    accept_minimal(Listening, Hello).

%% Receives requests as messages, because a gen_tcp:recv call for each request would cost more.
loop_minimal(Socket, Hello) ->
    receive
        {tcp, Socket, <<"GET /json ", _/binary>>} ->
            _ = gen_tcp:send(Socket, answer(<<"application/json">>, iolist_to_binary(json()), <<>>)),
            loop_minimal(Socket, Hello);
        {tcp, Socket, <<"GET /ws ", _/binary>>} ->
            _ = gen_tcp:send(Socket, [<<"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-accept: ">>, ?ACCEPT, <<"\r\n\r\n">>]),
            loop_echo(Socket);
        {tcp, Socket, _} ->
            _ = gen_tcp:send(Socket, Hello),
            loop_minimal(Socket, Hello);
        {tcp_closed, Socket} -> ok;
        {tcp_error, Socket, _} -> ok
    end.

%% Expects each message to contain one frame, as http_load.c sends them.
loop_echo(Socket) ->
    receive
        {tcp, Socket, <<16#81, 1:1, Size:7, Mask:4/binary, Text:Size/binary>>} ->
            _ = gen_tcp:send(Socket, [<<16#81, Size>>, crypto:exor(Text, binary:copy(Mask, Size div 4))]),
            loop_echo(Socket);
        {tcp, Socket, _} -> gen_tcp:close(Socket);
        {tcp_closed, Socket} -> ok;
        {tcp_error, Socket, _} -> ok
    end.

accept_2009(Listening) ->
    {ok, Socket} = gen_tcp:accept(Listening),
    Pid = spawn(fun() ->
        receive permission -> inet:setopts(Socket, [{packet, http_bin}, {active, true}]) after 60000 -> exit(timeout) end,
        collect_2009(Socket)
    end),
    _ = gen_tcp:controlling_process(Socket, Pid),
    Pid ! permission,
    accept_2009(Listening).

collect_2009(Socket) ->
    receive
        {http, Socket, http_eoh} ->
            _ = inet:setopts(Socket, [{packet, 0}]),
            _ = gen_tcp:send(Socket, answer(?HELLO, <<"connection: close\r\n">>)),
            gen_tcp:close(Socket);
        {http, Socket, {http_error, _}} -> gen_tcp:close(Socket);
        {http, Socket, _} -> collect_2009(Socket);
        {tcp_closed, Socket} -> ok;
        {tcp_error, Socket, _} -> ok
    after 30000 -> gen_tcp:close(Socket)
    end.

answer(Body, More) -> answer(<<"text/plain">>, Body, More).

answer(Type, Body, More) ->
    [<<"HTTP/1.1 200 OK\r\ncontent-type: ">>, Type, <<"\r\n">>, More, <<"content-length: ">>, integer_to_binary(byte_size(Body)), <<"\r\n\r\n">>, Body].

accept_upload(Listening) ->
    {ok, Socket} = gen_tcp:accept(Listening),
    Pid = spawn(fun() -> receive go -> uploads(Socket, <<>>) after 60000 -> ok end end),
    _ = gen_tcp:controlling_process(Socket, Pid),
    Pid ! go,
    accept_upload(Listening).

uploads(Socket, Buffer) ->
    case binary:split(Buffer, <<"\r\n\r\n">>) of
        [Head, Start] ->
            {match, [Digits]} = re:run(Head, "content-length: (\\d+)", [caseless, {capture, all_but_first, binary}]),
            {Size, Rest} = upload(Socket, binary_to_integer(Digits), [Start], byte_size(Start)),
            ok = gen_tcp:send(Socket, answer(integer_to_binary(Size), <<>>)),
            uploads(Socket, Rest);
        [_] ->
            case gen_tcp:recv(Socket, 0, 60000) of
                {ok, Data} -> uploads(Socket, <<Buffer/binary, Data/binary>>);
                {error, _} -> gen_tcp:close(Socket)
            end
    end.

upload(_, Length, Parts, Size) when Size >= Length ->
    <<Body:Length/binary, Rest/binary>> = iolist_to_binary(lists:reverse(Parts)),
    {byte_size(Body), Rest};
upload(Socket, Length, Parts, Size) ->
    {ok, Data} = gen_tcp:recv(Socket, 0, 60000),
    upload(Socket, Length, [Data | Parts], Size + byte_size(Data)).
