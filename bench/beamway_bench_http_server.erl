%% SPDX-License-Identifier: Apache-2.0
%% @doc The Erlang servers of `bench http', each in a VM of its own: `erl -s beamway_bench_http_server start NAME PORT FOLDER BACKLOG
%% FASTCGI-PORT'.
%%
%% `yucan2009' is the design of 2009 anew: one acceptor, a process a connection to which the socket is handed over, ERTS's http
%% packets as messages, the connection closed after the answer. `default_buffer' reads an upload as gen_tcp does by default.
-module(beamway_bench_http_server).

-export([start/1, handle/2, init/2, mochiweb/1]).

-define(HELLO, <<"hello world\n">>).

%% @doc Entry: never returns.
-spec start([atom()]) -> no_return().
start([Name, Port, Folder, Backlog, Fastcgi]) ->
    _ = serve(Name, number(Port), atom_to_list(Folder), number(Backlog)),
    _ = [fastcgi(number(Fastcgi), atom_to_list(Folder)) || Fastcgi =/= none],
    receive after infinity -> ok end.

number(Atom) -> list_to_integer(atom_to_list(Atom)).

serve(yucan, Port, Folder, Backlog) ->
    {ok, _} = application:ensure_all_started(yucan),
    Routes = [{"/", ?MODULE, hello}, {"/upload", ?MODULE, upload}, {"/*file", yucan_file, #{root => Folder}}],
    {ok, _} = yucan:start(#{listen => [#{port => Port}], routes => Routes, limits => #{backlog => Backlog}});
serve(mochiweb, Port, _, Backlog) ->
    %% As in mochiweb/1 below.
    Module = mochiweb_http,
    {ok, _} = Module:start([{ip, "127.0.0.1"}, {port, Port}, {backlog, Backlog}, {loop, fun ?MODULE:mochiweb/1}]);
%% RabbitMQ's package brings cowboy along.
serve(cowboy, Port, Folder, Backlog) ->
    ok = code:add_pathsa(filelib:wildcard("/usr/lib/rabbitmq/lib/rabbitmq_server-*/plugins/{cowboy,cowlib,ranch}-*/ebin")),
    {ok, _} = application:ensure_all_started(cowboy),
    Router = cowboy_router,
    Dispatch = Router:compile([{'_', [{"/", ?MODULE, hello}, {"/upload", ?MODULE, upload}, {"/[...]", cowboy_static, {dir, Folder}}]}]),
    Cowboy = cowboy,
    Socket = [{ip, {127, 0, 0, 1}}, {port, Port}, {backlog, Backlog}, {nodelay, true}],
    {ok, _} = Cowboy:start_clear(bench, #{socket_opts => Socket, max_connections => infinity},
                                 #{env => #{dispatch => Dispatch}, max_keepalive => infinity, idle_timeout => 120000});
serve(minimal, Port, _, Backlog) ->
    {ok, Listening} = listen(Port, [{nodelay, true}, {backlog, Backlog}]),
    spawn_link(fun() -> accept_minimal(Listening) end);
serve(yucan2009, Port, _, Backlog) ->
    {ok, Listening} = listen(Port, [{backlog, Backlog}]),
    spawn_link(fun() -> accept_2009(Listening) end);
serve(default_buffer, Port, _, Backlog) ->
    {ok, Listening} = listen(Port, [{nodelay, true}, {backlog, Backlog}]),
    spawn_link(fun() -> accept_upload(Listening) end).

%% Scripts of the folder are run by php-fpm, as a configuration says it.
fastcgi(Port, Folder) ->
    File = filename:join(filename:dirname(Folder), "yucan.conf"),
    ok = file:write_file(File, ["<server localhost>\n  port = ", integer_to_list(Port), "\n  listen = 127.0.0.1\n  docroot = ", Folder,
                                "\n  access_log = false\n  allowed_scripts = php\n  php_handler = <fcgi, unix:", filename:dirname(Folder), "/yucan.sock>\n</server>\n"]),
    {ok, Options} = yucan_yaws_config:load(File),
    {ok, _} = yucan:start(Options#{name => fastcgi}).

listen(Port, Options) ->
    gen_tcp:listen(Port, [binary, {ip, {127, 0, 0, 1}}, {active, false}, {reuseaddr, true} | Options]).

%% @private The handler of yucan.
-spec handle(yucan_req:req(), hello | upload) -> yucan_handler:response().
handle(_, hello) -> {200, [{<<"content-type">>, <<"text/plain">>}], ?HELLO};
handle(Req, upload) ->
    {ok, Body} = yucan_req:body(Req),
    {200, [], integer_to_binary(byte_size(Body))}.

%% @private The loop function of mochiweb. Called by name: it is only there where the benchmark runs.
-spec mochiweb(term()) -> term().
mochiweb(Request) ->
    Module = mochiweb_request,
    Module:ok({"text/plain", ?HELLO}, Request).

%% @private The handler of cowboy, called by name as mochiweb is.
-spec init(term(), hello | upload) -> {ok, term(), hello | upload}.
init(Req, hello = State) -> {ok, cowboy_answer(?HELLO, Req), State};
init(Req, upload = State) -> upload(Req, 0, State).

upload(Req, Size, State) ->
    Module = cowboy_req,
    case Module:read_body(Req) of
        {more, Part, Next} -> upload(Next, Size + byte_size(Part), State);
        {ok, Part, Last} -> {ok, cowboy_answer(integer_to_binary(Size + byte_size(Part)), Last), State}
    end.

cowboy_answer(Body, Req) ->
    Module = cowboy_req,
    Module:reply(200, #{<<"content-type">> => <<"text/plain">>}, Body, Req).

accept_minimal(Listening) ->
    {ok, Socket} = gen_tcp:accept(Listening),
    Answer = iolist_to_binary(answer(?HELLO, <<>>)),
    Pid = spawn(fun() -> receive permission -> loop_minimal(Socket, Answer) after 60000 -> exit(timeout) end end),
    _ = gen_tcp:controlling_process(Socket, Pid),
    Pid ! permission,
    accept_minimal(Listening).

loop_minimal(Socket, Answer) ->
    case gen_tcp:recv(Socket, 0, 120000) of
        {ok, _} -> _ = gen_tcp:send(Socket, Answer), loop_minimal(Socket, Answer);
        {error, _} -> gen_tcp:close(Socket)
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

answer(Body, More) ->
    [<<"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n">>, More, <<"content-length: ">>, integer_to_binary(byte_size(Body)), <<"\r\n\r\n">>, Body].

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
