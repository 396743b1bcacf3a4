%% SPDX-License-Identifier: Apache-2.0
%% @doc The console on real nodes: what it sends to browsers, who may see and start what, and that it leaves nothing behind.
%% `test/system/console/console_browser_SUITE' tests what a user sees.
-module(beamway_console_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, end_per_testcase/2]).
-export([cluster/1, stock_nodes/1, a_lent_collector/1, two_consoles/1, a_node_that_dies/1, a_node_that_starts_again/1, a_node_that_is_stopped/1, many_streams/1, a_slow_browser/1, servers/1, history/1, why/1, senders/1,
         strangers/1, token/1, guesses/1, warnings_are_shown/1, old_section/1, only_shows/1, topology/1, stopped_measurement/1, placement/1, queries_that_call_code/1, pipes/1, files/1, kinds_of_link/1, bad_questions/1, command/1, demo/1, port_in_use/1, bad_words/1]).
-export([seven/2]).

-define(PATIENCE_MS, (20000 * beamway_runner:slowness())).

suite() -> [{timetrap, {minutes, 3}}].

all() ->
    [cluster, stock_nodes, a_lent_collector, two_consoles, a_node_that_dies, a_node_that_starts_again, a_node_that_is_stopped, many_streams, a_slow_browser, servers, history, why, senders,
     strangers, token, guesses, warnings_are_shown, old_section, only_shows, topology, stopped_measurement, placement, queries_that_call_code, pipes, files, kinds_of_link, bad_questions, command, demo, port_in_use, bad_words].

end_per_testcase(_, _) ->
    _ = [os:cmd("kill -KILL " ++ integer_to_list(Pid)) || Port <- erlang:ports(), {name, Name} <- [erlang:port_info(Port, name)],
                                                         string:find(Name, "bin/beamway") =/= nomatch, {os_pid, Pid} <- [erlang:port_info(Port, os_pid)]],
    beamway_peer:stop_started().

%% ---- helpers

started(Count) -> started(Count, beamway_shm).

%% Starts nodes and connects the first one to all others.
started(Count, Carrier) ->
    Peers = [started_one(Carrier, #{}) || _ <- lists:seq(1, Count)],
    [{First, _} | Others] = Peers,
    [?assert(beamway_peer:call(First, net_kernel, connect_node, [Node])) || {_, Node} <- Others],
    Peers.

started_one(Carrier, Options) ->
    {ok, Peer, Node} = beamway_peer:start(Carrier, Options#{args => ["+S", "1", "+SDio", "1", "+A", "1"]}),
    {Peer, Node}.

console(Peer) -> console(Peer, #{}).

console(Peer, Options) ->
    {ok, Url} = beamway_peer:call(Peer, beamway_console, start, [maps:merge(#{port => 0, interval_ms => 200}, Options)]),
    port_of(Url).

port_of(Url) ->
    {match, [Port]} = re:run(Url, ":([0-9]+)/$", [{capture, all_but_first, list}]),
    list_to_integer(Port).

get(Port, Path) -> get(Port, Path, []).

get(Port, Path, Headers) ->
    {Status, _, Body} = yucan_client:get(Port, Path, Headers),
    {Status, jiffy:decode(Body, [return_maps])}.

post(Port, Path, Body) -> post(Port, Path, Body, [{"Content-Type", "application/json"}]).

post(Port, Path, Body, Headers) ->
    Text = case is_binary(Body) of true -> Body; false -> iolist_to_binary(jiffy:encode(Body)) end,
    [{Status, Answered, Answer}] =
        yucan_client:exchange(Port, ["POST ", Path, " HTTP/1.1\r\nHost: localhost\r\nContent-Length: ", integer_to_list(byte_size(Text)), "\r\n",
                                     [[N, ": ", V, "\r\n"] || {N, V} <- Headers], "\r\n", Text]),
    {Status, Answered, try jiffy:decode(Answer, [return_maps]) catch _:_ -> Answer end}.

%% Returns the first frame of a stream for which the function returns true.
frame(Port, Topics, Is) ->
    Socket = stream(Port, Topics),
    Frame = next(Socket, <<>>, Is, erlang:monotonic_time(millisecond) + ?PATIENCE_MS),
    gen_tcp:close(Socket),
    Frame.

%% HTTP/1.0 does not use chunks, which could split an event.
stream(Port, Topics) ->
    Socket = yucan_client:connect(Port),
    ok = gen_tcp:send(Socket, ["GET /api/events?topics=", Topics, " HTTP/1.0\r\nHost: localhost\r\n\r\n"]),
    Socket.

next(Socket, Buffer, Is, Deadline) ->
    case [Json || {match, Found} <- [re:run(Buffer, "data: ([^\n]*)\n", [global, {capture, all_but_first, binary}])], [Data] <- Found,
                  Json <- [jiffy:decode(Data, [return_maps])], Is(Json)] of
        [Json | _] -> Json;
        [] ->
            Rest = case binary:matches(Buffer, <<"\n\n">>) of [] -> Buffer; Ends -> {At, 2} = lists:last(Ends), binary:part(Buffer, At, byte_size(Buffer) - At) end,
            case gen_tcp:recv(Socket, 0, max(0, Deadline - erlang:monotonic_time(millisecond))) of
                {ok, More} -> next(Socket, <<Rest/binary, More/binary>>, Is, Deadline);
                {error, Why} -> error({no_such_frame, Why, binary:part(Buffer, max(0, byte_size(Buffer) - 3000), min(3000, byte_size(Buffer)))})
            end
    end.

up(Count) -> fun(#{<<"nodes">> := Nodes}) -> length([x || #{<<"state">> := <<"up">>} <- Nodes]) >= Count end.

named(Node, #{<<"nodes">> := Nodes}) ->
    Name = atom_to_binary(Node),
    hd([N || #{<<"name">> := Other} = N <- Nodes, Other =:= Name] ++ [none]).

until(Fun) ->
    true = beamway_peer:wait_until(Fun, ?PATIENCE_MS),
    ok.

%% ---- data sent to browsers

cluster(_) ->
    [{Peer, Node} | _] = started(3),
    Port = console(Peer),
    Load = fun(#{<<"links">> := Links}) -> length([x || #{<<"kind">> := <<"shm">>, <<"ab">> := A, <<"ba">> := B} <- Links, A + B > 0]) >= 2 end,
    _ = beamway_peer:run(Peer, fun() -> spawn(fun() -> chat(nodes()) end), ok end),
    #{<<"allow">> := false, <<"links">> := Links} = Frame = frame(Port, "cluster", fun(F) -> (up(3))(F) andalso Load(F) end),
    ?assertMatch(#{<<"state">> := <<"up">>, <<"otp">> := _, <<"cpu">> := _, <<"memory">> := _, <<"carrier">> := <<"beamway">>, <<"collector_us">> := _}, named(Node, Frame)),
    ?assert(lists:member(<<"beamway_console">>, maps:get(<<"apps">>, named(Node, Frame)))),
    [#{<<"a">> := A, <<"b">> := B} | _] = Links,
    Names = [Name || #{<<"name">> := Name} <- maps:get(<<"nodes">>, Frame)],
    Pair = iolist_to_binary([lists:nth(A + 1, Names), ":", lists:nth(B + 1, Names)]),
    #{<<"sides">> := Sides} = frame(Port, ["link:", Pair], fun(F) -> is_map_key(<<"sides">>, F) end),
    ?assertMatch([#{<<"reason">> := <<"same host">>, <<"now">> := #{<<"ring_bytes">> := _}, <<"rates">> := #{<<"doorbells_out">> := _, <<"stalls">> := _}} | _],
                 [Side || #{<<"up">> := true} = Side <- Sides]),
    #{<<"state">> := <<"up">>} = frame(Port, ["node:", atom_to_binary(Node)], fun(F) -> is_map_key(<<"started">>, F) end).

chat(Nodes) ->
    _ = [erpc:call(Node, erlang, node, []) || Node <- Nodes],
    receive after 5 -> chat(Nodes) end.

%% The collector is sent to a node that lacks its code, and is removed when the console has exited, however that happens.
a_lent_collector(_) ->
    [{Peer, _}, {Lent, Node}, {Other, _}] = started(3),
    Forget = fun() ->
        _ = [code:del_path(Path) || Path <- code:get_path(), string:find(Path, "console") =/= nomatch],
        {code:where_is_file("beamway_console_collector.beam"), erlang:module_loaded(beamway_console_collector)}
    end,
    ?assertEqual({non_existing, false}, beamway_peer:run(Lent, Forget)),
    Runs = fun(P) -> {beamway_peer:call(P, erlang, whereis, [beamway_console_collector]) =/= undefined, beamway_peer:call(P, erlang, module_loaded, [beamway_console_collector])} end,
    Port = console(Peer),
    _ = frame(Port, "cluster", up(3)),
    ?assertEqual({true, true}, Runs(Lent)),
    ok = beamway_peer:call(Peer, beamway_console, stop, []),
    ok = until(fun() -> Runs(Lent) =:= {false, false} end),
    ok = until(fun() -> element(1, Runs(Other)) =:= false end),
    %% The same again, but the console's node is killed.
    Again = console(Peer),
    _ = frame(Again, "cluster", fun(F) -> (up(3))(F) andalso maps:get(<<"state">>, named(Node, F)) =:= <<"up">> end),
    ok = beamway_peer:kill9(Peer),
    ok = until(fun() -> Runs(Lent) =:= {false, false} end).

%% Two consoles share the collectors, and the last one to exit removes them.
two_consoles(_) ->
    [{One, _}, {Two, _}, {Third, _}] = started(3),
    ok = until(fun() -> length(beamway_peer:call(Two, erlang, nodes, [])) =:= 2 end),
    _ = [frame(console(Peer), "cluster", up(3)) || Peer <- [One, Two]],
    Collector = beamway_peer:call(Third, erlang, whereis, [beamway_console_collector]),
    ?assert(is_pid(Collector)),
    ok = beamway_peer:call(One, beamway_console, stop, []),
    ok = until(fun() -> element(2, beamway_peer:call(Third, erlang, process_info, [Collector, monitors])) =/= [] end),
    [_] = element(2, beamway_peer:run(Third, fun() -> settled(Collector) end)),
    ok = beamway_peer:call(Two, beamway_console, stop, []),
    ok = until(fun() -> beamway_peer:call(Third, erlang, whereis, [beamway_console_collector]) =:= undefined end).

settled(Collector) ->
    case process_info(Collector, monitors) of
        {monitors, [_, _]} -> receive after 20 -> settled(Collector) end;
        Monitors -> Monitors
    end.

a_node_that_dies(_) ->
    [{Peer, _}, {Victim, Node}, _] = started(3),
    Port = console(Peer),
    #{} = frame(Port, "cluster", fun(F) -> (up(3))(F) andalso links_of(Node, F) =/= [] end),
    ok = beamway_peer:kill9(Victim),
    Frame = frame(Port, "cluster", fun(F) -> maps:get(<<"state">>, named(Node, F)) =:= <<"down">> end),
    ?assertMatch(#{<<"why">> := <<_, _/binary>>}, named(Node, Frame)),
    %% Its links disappear with the next sample from its peers.
    #{} = frame(Port, "cluster", fun(F) -> maps:get(<<"state">>, named(Node, F)) =:= <<"down">> andalso links_of(Node, F) =:= [] end).

%% Nothing connects the node to the console, so the console must look for it.
a_node_that_starts_again(_) ->
    [{Peer, _}, {Victim, Node}] = started(2),
    Port = console(Peer, #{nodes => [Node]}),
    _ = frame(Port, "cluster", up(2)),
    ok = beamway_peer:kill9(Victim),
    _ = frame(Port, "cluster", fun(F) -> maps:get(<<"state">>, named(Node, F)) =:= <<"down">> end),
    [Name, _] = string:split(atom_to_list(Node), "@"),
    {_, Node} = started_one(beamway_shm, #{name => Name}),
    #{} = frame(Port, "cluster", up(2)).

links_of(Node, #{<<"nodes">> := Nodes, <<"links">> := Links}) ->
    Names = [Name || #{<<"name">> := Name} <- Nodes],
    [Link || #{<<"a">> := A, <<"b">> := B} = Link <- Links, lists:member(atom_to_binary(Node), [lists:nth(A + 1, Names), lists:nth(B + 1, Names)])].

%% As far as the network is concerned the node is up, but it is silent until it is resumed.
a_node_that_is_stopped(_) ->
    [{Peer, _}, {Stopped, Node}] = started(2),
    Port = console(Peer),
    _ = frame(Port, "cluster", up(2)),
    ok = beamway_peer:sigstop(Stopped),
    #{} = frame(Port, "cluster", fun(F) -> maps:get(<<"state">>, named(Node, F)) =:= <<"silent">> end),
    ok = beamway_peer:sigcont(Stopped),
    #{} = frame(Port, "cluster", up(2)).

%% A link that uses stock distribution has the kind `inet', as in `beamway links'.
stock_nodes(_) ->
    [{Peer, _}, {_, Node}] = started(2, inet_tcp),
    Port = console(Peer),
    Frame = frame(Port, "cluster", fun(F) -> (up(2))(F) andalso links_of(Node, F) =/= [] end),
    ?assertMatch([#{<<"kind">> := <<"inet">>}], links_of(Node, Frame)).

%% Fifty browsers receive the same frames, and each node still has a single collector.
many_streams(_) ->
    [{Peer, _}, {Other, _}] = started(2),
    Port = console(Peer),
    Sockets = [stream(Port, "cluster,http,jobs,pipes") || _ <- lists:seq(1, 50)],
    Deadline = erlang:monotonic_time(millisecond) + ?PATIENCE_MS,
    [#{} = next(Socket, <<>>, fun(F) -> is_map_key(<<"links">>, F) andalso (up(2))(F) end, Deadline) || Socket <- Sockets],
    Collectors = fun() -> length([P || P <- processes(), {current_function, {beamway_console_collector, _, _}} <- [process_info(P, current_function)]]) end,
    ok = until(fun() -> beamway_peer:run(Other, Collectors) =:= 1 end),
    [gen_tcp:close(Socket) || Socket <- Sockets],
    ok = until(fun() -> beamway_peer:run(Peer, fun() -> map_size(element(4, sys:get_state(beamway_console_hub))) end) =:= 0 end).

%% A browser that does not read does not fill the node's memory. It gets no more frames until it reads, and other browsers are not affected.
a_slow_browser(_) ->
    [{Peer, _}] = started(1),
    Port = console(Peer),
    Slow = stream(Port, "jobs"),
    ok = inet:setopts(Slow, [{recbuf, 4096}]),
    Browsers = fun() -> maps:keys(element(4, sys:get_state(beamway_console_hub))) end,
    ok = until(fun() -> length(beamway_peer:run(Peer, Browsers)) =:= 1 end),
    [Browser] = beamway_peer:run(Peer, Browsers),
    Other = stream(Port, "jobs"),
    ok = until(fun() -> length(beamway_peer:run(Peer, Browsers)) =:= 2 end),
    Tell = fun(Number) ->
                   Json = iolist_to_binary(jiffy:encode(#{number => Number, text => binary:copy(<<"x">>, 200000)})),
                   ok = beamway_peer:call(Peer, beamway_console_hub, tell, [jobs, Json]),
                   Heard = fun(#{<<"number">> := Heard}) -> Heard =:= Number; (_) -> false end,
                   #{} = next(Other, <<>>, Heard, erlang:monotonic_time(millisecond) + ?PATIENCE_MS),
                   beamway_peer:call(Peer, erlang, process_info, [Browser, message_queue_len])
           end,
    Waiting = [Length || Number <- lists:seq(1, 60), {message_queue_len, Length} <- [Tell(Number)]],
    %% The slow browser is blocked, and at most two frames are queued for it.
    ?assertEqual({60, 2}, {length(Waiting), lists:max(Waiting)}),
    [gen_tcp:close(Socket) || Socket <- [Slow, Other]].

servers(_) ->
    [{Peer, _}, {_, _}, {Third, _}] = started(3),
    WebPort = beamway_peer:call(Third, yucan_test_server, start, [console_web_test]),
    Port = console(Peer),
    Ask = fun() -> [{200, _, _} = yucan_client:get(WebPort, "/hello") || _ <- lists:seq(1, 20)] end,
    Seen = fun(#{<<"servers">> := Servers}) ->
                   Ask(),
                   [] =/= [S || #{<<"name">> := <<"console_web_test">>, <<"rates">> := #{<<"requests">> := R}, <<"latency_us">> := #{<<"p99">> := P}} = S <- Servers, R > 0, is_integer(P)];
              (_) -> false
           end,
    #{<<"servers">> := _} = frame(Port, "http", Seen).

history(_) ->
    [{Peer, Node}, {_, Other}] = started(2),
    Port = console(Peer),
    _ = frame(Port, "cluster", up(2)),
    Path = fun(Of) -> ["/api/history?node=", atom_to_binary(Node), Of] end,
    ok = until(fun() -> {200, #{<<"points">> := Points}} = get(Port, Path("&of=node")), length(Points) > 3 end),
    {200, #{<<"fields">> := Fields, <<"points">> := [First | _]}} = get(Port, Path(["&of=link&peer=", atom_to_binary(Other)])),
    ?assertEqual(length(Fields), length(First)),
    ?assertEqual(<<"time">>, hd(Fields)),
    {200, #{<<"points">> := [_ | _]}} = get(Port, Path("&of=http&server=console_web")).

%% The console reports what a node knows about its link to a peer, even when the link is down.
why(_) ->
    [{Peer, Node}, {OtherPeer, Other}] = started(2),
    Port = console(Peer),
    _ = frame(Port, "cluster", up(2)),
    Why = fun() -> {200, #{<<"links">> := Links}} = get(Port, ["/api/why?node=", atom_to_binary(Node), "&peer=", atom_to_binary(Other)]), Links end,
    ?assertMatch([#{<<"cause">> := <<"up">>, <<"facts">> := [#{<<"text">> := <<"the link came up">>} | _]} | _], Why()),
    ok = beamway_peer:kill9(OtherPeer),
    ok = until(fun() -> [] =/= [Link || #{<<"cause">> := <<"peer_ended">>, <<"ended">> := #{<<"ago_ms">> := _}} = Link <- Why()] end),
    ?assertMatch({400, _}, get(Port, ["/api/why?node=", atom_to_binary(Node), "&peer=nobody_at_all@nowhere"])).

%% The console shows three of four senders, beginning with the one that has sent the most.
senders(_) ->
    [{Peer, Node}, {_, Other}] = started(2),
    Port = console(Peer),
    _ = frame(Port, "cluster", up(2)),
    Path = ["/api/senders?node=", atom_to_binary(Node), "&peer="],
    ok = beamway_peer:run(Peer, fun() ->
        _ = [spawn(fun() -> _ = put('$process_label', [$a + I]), {nobody_there, Other} ! binary:copy(<<1>>, I * 1000000), receive after 60000 -> ok end end) || I <- [1, 2, 3, 4]],
        ok
    end),
    Label = fun() -> {200, #{<<"senders">> := Senders}} = get(Port, [Path, atom_to_binary(Other)]), [Process || #{<<"process">> := Process} <- Senders] end,
    ok = until(fun() -> Label() =:= [<<"e">>, <<"d">>, <<"c">>] end),
    {200, #{<<"senders">> := [#{<<"pid">> := <<"<0.", _/binary>>, <<"class">> := <<"normal">>, <<"bytes_per_s">> := _, <<"waiting">> := _} | _]}} = get(Port, [Path, atom_to_binary(Other)]),
    ?assertMatch({400, _}, get(Port, [Path, "nobody_at_all@nowhere"])).

%% ---- access control

strangers(_) ->
    [{Peer, _}] = started(1),
    Port = console(Peer),
    [{Status, _, _}] = yucan_client:exchange(Port, "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
    ?assertEqual(403, Status),
    {200, Headers, _} = yucan_client:get(Port, "/"),
    ?assertNotEqual(nomatch, string:find(yucan_client:header(<<"content-security-policy">>, {200, Headers, <<>>}), "default-src 'self'")).

token(Config) ->
    [{Peer, _}] = started(1),
    File = filename:join(?config(priv_dir, Config), "token"),
    Secret = "correct horse battery staple",
    ok = file:write_file(File, [Secret, "\n"]),
    ok = file:change_mode(File, 8#600),
    ?assertMatch({error, _}, beamway_peer:call(Peer, beamway_console, start, [#{port => 0, ip => {0, 0, 0, 0}}])),
    Port = console(Peer, #{token_file => File, ip => {0, 0, 0, 0}}),
    {401, _} = get(Port, "/api/jobs"),
    {401, _, Form} = yucan_client:get(Port, "/"),
    ?assertNotEqual(nomatch, string:find(Form, "password")),
    {401, _} = get(Port, "/api/jobs", [{"Authorization", "Bearer wrong horse battery staple"}]),
    ok = until(fun() -> case get(Port, "/api/jobs", [{"Authorization", ["Bearer ", Secret]}]) of {200, _} -> true; {429, _} -> false end end),
    Login = fun(Text) -> post(Port, "/login", Text, [{"Content-Type", "application/x-www-form-urlencoded"}]) end,
    {403, _, _} = Login(<<"token=wrong%FF">>),
    {303, Headers, _} = Login(<<"token=+correct+horse+battery+staple%0D%0A">>),
    Cookie = yucan_client:header(<<"set-cookie">>, {303, Headers, <<>>}),
    ?assertNotEqual(nomatch, string:find(Cookie, "HttpOnly")),
    [Pair | _] = string:split(Cookie, ";"),
    {200, _} = get(Port, "/api/jobs", [{"Cookie", Pair}]),
    {401, _} = get(Port, "/api/jobs", [{"Cookie", [Pair, "0"]}]),
    %% No process that can be inspected contains the secret.
    State = beamway_peer:run(Peer, fun() ->
        Children = [supervisor:get_childspec(beamway_console_sup, Id) || {Id, _, _, _} <- supervisor:which_children(beamway_console_sup)],
        States = [sys:get_state(Pid) || {_, Pid, worker, _} <- supervisor:which_children(beamway_console_sup)],
        {init:get_arguments(), init:get_plain_arguments(), application:get_all_env(beamway_console), Children, States, sys:get_state(beamway_console_sup)}
    end),
    ?assertEqual(nomatch, string:find(io_lib:format("~0p", [State]), "battery")).

%% Guessing the token in parallel takes as long as guessing in sequence, because most guesses are not checked.
guesses(Config) ->
    [{Peer, _}] = started(1),
    File = token_file(Config),
    Port = console(Peer, #{token_file => File}),
    Login = fun(Text) -> post(Port, "/login", Text, [{"Content-Type", "application/x-www-form-urlencoded"}]) end,
    Header = fun(Token) -> element(1, get(Port, "/api/jobs", [{"Authorization", ["Bearer ", Token]}])) end,
    [begin
         {Us, Statuses} = timer:tc(fun() -> [beamway_peer:await(Call, ?PATIENCE_MS) || Call <- [beamway_peer:async(Guess) || _ <- lists:seq(1, 60)]] end),
         ?assertEqual([], [S || S <- Statuses, S =/= Judged, S =/= 429]),
         %% At most one guess per scheduler is checked, and one more whenever the pause is over.
         ?assertMatch({true, _, _}, {length([S || S <- Statuses, S =:= Judged]) =< 4 + Us div (EveryMs * 1000), Us, Statuses}),
         ok = until(Right)
     end || {Judged, EveryMs, Guess, Right} <-
                [{403, 1000, fun() -> element(1, Login(<<"token=wrong">>)) end, fun() -> 303 =:= element(1, Login(<<"token=correct+horse+battery+staple">>)) end},
                 {401, 100, fun() -> Header("wrong horse battery staple") end, fun() -> 200 =:= Header("correct horse battery staple") end}]].

token_file(Config) ->
    File = filename:join(?config(priv_dir, Config), "token"),
    ok = file:write_file(File, "correct horse battery staple\n"),
    ok = file:change_mode(File, 8#600),
    File.

%% Warnings are shown by the handler that OTP installs on every node.
warnings_are_shown(Config) ->
    Said = with_section("beamway_console", Config),
    ?assertMatch({match, _}, re:run(Said, "WARNING REPORT.*\n.*console: it listens on 0.0.0.0 without TLS")),
    ?assertEqual(nomatch, re:run(Said, "old name")).

%% The application used to be called `console'.
old_section(Config) ->
    Said = with_section("console", Config),
    ?assertMatch({match, _}, re:run(Said, "console: it listens on 0.0.0.0 without TLS")),
    ?assertMatch({match, _}, re:run(Said, "WARNING REPORT.*\n.*rename the section to `beamway_console'")).

%% Returns the output of a node that starts the console with the options in this section of its environment.
with_section(Section, Config) ->
    [Erl | Words] = beamway_peer:erl(),
    Paths = lists:usort([filename:dirname(code:which(Module)) || Module <- [beamway_console, yucan, jiffy]]),
    Line = [[" ", Word] || Word <- Words ++ ["-noinput", "-boot", "no_dot_erlang", "-pa" | Paths]],
    Options = [[" -", Section, " ", Option] || Option <- ["port 0", "ip '{0,0,0,0}'", ["token_file '\"", token_file(Config), "\"'"]]],
    os:cmd(lists:flatten([Erl, Line, Options, " -eval '{ok, _} = application:ensure_all_started(beamway_console), init:stop().' 2>&1"])).

only_shows(_) ->
    [{Peer, _}] = started(1),
    Port = console(Peer),
    {403, _, #{<<"error">> := Why}} = post(Port, "/api/topology/measure", #{}),
    ?assertNotEqual(nomatch, string:find(Why, "--allow")),
    ok = beamway_peer:call(Peer, beamway_console, stop, []),
    Allowed = console(Peer, #{allow => true}),
    %% A page on another site must not be able to start anything, whatever it sends.
    {403, _, _} = post(Allowed, "/api/topology/stop", <<"{}">>, [{"Content-Type", "text/plain"}]),
    {403, _, _} = post(Allowed, "/api/topology/stop", <<"{}">>, [{"Content-Type", "application/json"}, {"Sec-Fetch-Site", "cross-site"}]),
    {202, _, _} = post(Allowed, "/api/topology/stop", #{}),
    %% Such a page could not read the answers, but its request would still have an effect. The console's own pages and programs may send requests.
    [{Status, Site} = {element(1, yucan_client:get(Allowed, "/api/jobs", [{"Sec-Fetch-Site", Site}])), Site}
     || {Status, Site} <- [{403, "cross-site"}, {403, "same-site"}, {200, "same-origin"}, {200, "none"}]],
    {200, Page, _} = yucan_client:get(Allowed, "/", [{"Sec-Fetch-Site", "cross-site"}]),
    <<"same-origin">> = proplists:get_value(<<"cross-origin-resource-policy">>, Page),
    {409, _, #{<<"error">> := TooFew}} = post(Allowed, "/api/topology/measure", #{}),
    ?assertNotEqual(nomatch, string:find(TooFew, "two nodes")).

%% ---- pages

topology(_) ->
    [{Peer, _} | _] = started(3),
    Port = console(Peer, #{allow => true}),
    _ = frame(Port, "cluster", up(3)),
    {200, #{<<"none">> := _}} = get(Port, "/api/topology"),
    {202, _, _} = post(Port, "/api/topology/measure", #{mode => quiet, batches => 2}),
    Done = fun() -> {200, #{<<"running">> := Running, <<"last">> := Last}} = get(Port, "/api/jobs"), Running =:= #{} andalso Last =/= #{} end,
    ok = until(Done),
    {200, #{<<"last">> := #{<<"measure">> := #{<<"ok">> := true, <<"done">> := 3, <<"failed">> := 0}}}} = get(Port, "/api/jobs"),
    {200, #{<<"rows">> := [[_, _, _], _, _], <<"tree">> := _, <<"explained">> := _, <<"formats">> := Formats}} = get(Port, "/api/topology"),
    {200, #{<<"rows">> := _}} = get(Port, "/api/topology?alpha=1.5&mode=quiet&statistic=min"),
    {400, _} = get(Port, "/api/topology?alpha=zero"),
    [begin
         {200, _, Body} = yucan_client:get(Port, ["/api/topology/export/", Name]),
         ?assert(byte_size(Body) > 10)
     end || #{<<"name">> := Name} <- Formats],
    {404, _} = get(Port, "/api/topology/export/tree.exe").

%% Only one measurement runs at a time, and it can be stopped. This one takes several seconds.
stopped_measurement(_) ->
    [{Peer, _} | _] = started(3),
    Port = console(Peer, #{allow => true}),
    _ = frame(Port, "cluster", up(3)),
    Jobs = fun() -> {200, State} = get(Port, "/api/jobs"), State end,
    {202, _, _} = post(Port, "/api/topology/measure", #{batches => 1000}),
    #{<<"running">> := #{<<"measure">> := #{<<"nodes">> := 3}}, <<"last">> := Last} = Jobs(),
    ?assertEqual(#{}, Last),
    {409, _, _} = post(Port, "/api/topology/measure", #{}),
    {202, _, _} = post(Port, "/api/topology/stop", #{}),
    ok = until(fun() -> map_size(maps:get(<<"running">>, Jobs())) =:= 0 end),
    ?assertMatch(#{<<"last">> := #{<<"measure">> := #{<<"ok">> := false, <<"why">> := <<"it was stopped">>}}}, Jobs()),
    %% A browser that was disconnected in the meantime still gets the result, although no job runs any more.
    ?assertEqual([#{}, #{}], [maps:get(<<"running">>, frame(Port, "jobs", fun(F) -> is_map_key(<<"last">>, F) end)) || _ <- [once, again]]).

placement(_) ->
    [{Peer, Node}, {_, Second}, {_, Third}] = started(3),
    Port = console(Peer),
    _ = frame(Port, "cluster", up(3)),
    {200, #{<<"none">> := _}} = get(Port, "/api/placement"),
    Start = fun(Colour) -> {ok, _} = application:ensure_all_started(placement), placement:insert(console_colour, {static, Colour}) end,
    ok = beamway_peer:run(Peer, fun() -> Start(red) end),
    ok = beamway_peer:call(Peer, erpc, call, [Second, fun() -> Start(blue) end]),
    _ = frame(Port, "cluster", fun(F) -> lists:all(fun(N) -> lists:member(<<"placement">>, maps:get(<<"apps">>, named(N, F), [])) end, [Node, Second]) end),
    {200, #{<<"names">> := Names, <<"nodes">> := Views, <<"leases">> := [], <<"words">> := Words, <<"units">> := Units}} = get(Port, "/api/placement"),
    ?assertEqual([true, true], [lists:member(<<"tolerates">>, Words), lists:member(<<"gib">>, Units)]),
    %% The page searches in all of them, and `true' and `false' are among the keywords.
    ?assertEqual([], [Word || Word <- Names ++ Words ++ Units, not is_binary(Word)]),
    ?assert(lists:member(<<"console_colour">>, Names)),
    ?assertMatch([#{<<"value">> := <<"red">>, <<"age_ms">> := _}], [V || #{<<"node">> := N, <<"attributes">> := #{<<"console_colour">> := V}} <- Views, N =:= atom_to_binary(Node)]),
    Choose = fun(Query) -> {200, _, Answer} = post(Port, "/api/placement/choose", #{query => Query}), Answer end,
    #{<<"chosen">> := [Chosen], <<"reports">> := Reports} = Choose(<<"{console_colour, eq, blue}">>),
    ?assertEqual(atom_to_binary(Second), Chosen),
    ?assertMatch([[_ | _]], [Why || #{<<"node">> := N, <<"suitable">> := false, <<"why">> := Why} <- Reports, N =:= atom_to_binary(Node)]),
    #{<<"chosen">> := [], <<"conflict">> := _} = Choose(<<"{console_colour, eq, red}, {console_colour, eq, blue}">>),
    #{<<"wrong">> := Unknown} = Choose(<<"{coloor_of_the_sky, eq, blue}">>),
    ?assertNotEqual(nomatch, string:find(Unknown, "coloor_of_the_sky")),
    #{<<"wrong">> := _} = Choose(<<"{console_colour, ">>),
    #{<<"wrong">> := _} = Choose(<<"{console_colour, about, 1}">>),
    _ = Third.

%% A console that only shows data rejects queries that call code, and the code is not run.
queries_that_call_code(_) ->
    [{Peer, Node}] = started(1),
    {ok, _} = beamway_peer:call(Peer, application, ensure_all_started, [placement]),
    {module, _} = beamway_peer:call(Peer, code, ensure_loaded, [?MODULE]),
    Attributes = fun() -> beamway_peer:call(Peer, placement, attributes, []) end,
    Before = Attributes(),
    Answers = fun(Options) ->
        Port = console(Peer, Options),
        _ = frame(Port, "cluster", fun(F) -> (up(1))(F) andalso lists:member(<<"placement">>, maps:get(<<"apps">>, named(Node, F), [])) end),
        Choose = fun(Query) -> {200, _, Answer} = post(Port, "/api/placement/choose", #{query => Query}), Answer end,
        All = [Choose(Query) || Query <- [<<"#{prefer => [{1, {score, {placement, insert}, []}}], n => 1}">>, <<"#{policy => {module, placement}, n => 1}">>,
                                          <<"#{prefer => [{1, {load, min}}, {1, {score, {beamway_console_SUITE, seven}, []}}], n => 1}">>]],
        ok = beamway_peer:call(Peer, beamway_console, stop, []),
        All
    end,
    Refused = Answers(#{}),
    ?assertEqual(Before, Attributes()),
    [?assertMatch({match, _}, re:run(maps:get(<<"wrong">>, Answer, ""), "--allow")) || Answer <- Refused],
    Name = atom_to_binary(Node),
    ?assertMatch([_, _, #{<<"chosen">> := [Name]}], Answers(#{allow => true})),
    ?assertEqual([Node], Attributes() -- Before).

%% A score that a user might define.
seven(_, _) -> 7.

pipes(Config) ->
    [{Peer, _}] = started(1),
    Folder = filename:join(?config(priv_dir, Config), "pipes"),
    ok = filelib:ensure_dir(filename:join(Folder, "x")),
    Port = console(Peer, #{pipes => Folder}),
    #{<<"pipes">> := []} = frame(Port, "pipes", fun(F) -> is_map_key(<<"pipes">>, F) end),
    ok = file:write_file(filename:join(Folder, os:getpid() ++ ".json"), <<"{\"started_at\":1,\"hops\":[{\"from\":\"here\",\"to\":\"b\",\"carrier\":\"shm\",\"bytes\":7}]}">>),
    #{<<"pipes">> := [#{<<"hops">> := [#{<<"bytes">> := 7}], <<"pid">> := _}]} =
        frame(Port, "pipes", fun(F) -> is_map_key(<<"pipes">>, F) andalso maps:get(<<"pipes">>, F) =/= [] end).

%% Every file referenced by a page exists.
files(_) ->
    [{Peer, _}] = started(1),
    Port = console(Peer),
    Www = filename:join(code:lib_dir(beamway_console, priv), "www"),
    [begin
         {200, _, Body} = yucan_client:get(Port, ["/", File]),
         ?assert(byte_size(Body) > 0)
     end || File <- filelib:wildcard("**", Www), filelib:is_regular(filename:join(Www, File))],
    {200, _, Index} = yucan_client:get(Port, "/"),
    {match, Named} = re:run(Index, "(?:src|href)=\"([a-z][^\"#]*)\"", [global, {capture, all_but_first, list}]),
    [{200, _, _} = yucan_client:get(Port, ["/", File]) || [File] <- Named],
    {400, _, _} = yucan_client:get(Port, "/../console.app"),
    {404, _, _} = yucan_client:get(Port, "/nothing.js").

%% The page of the cluster has a name for each kind of link, and the style sheet has a colour for it in each theme.
kinds_of_link(_) ->
    Www = filename:join(code:lib_dir(beamway_console, priv), "www"),
    [Page, Style] = [begin {ok, Text} = file:read_file(filename:join(Www, File)), Text end || File <- ["pages/cluster.js", "style.css"]],
    Kinds = lists:sort([atom_to_binary(Kind) || Kind <- kinds()]),
    [Names] = captured("const kinds = \\{(.*?)\\};", Page),
    ?assertEqual(Kinds, lists:sort(captured("(\\w+): \"", Names))),
    [Light, Dark] = captured("^:root[^{]*\\{(.*?)\\}", Style),
    [?assertEqual([], Kinds -- captured("--(\\w+): #", Theme)) || Theme <- [Light, Dark]].

captured(Pattern, Text) ->
    {match, Found} = re:run(Text, Pattern, [global, multiline, dotall, {capture, all_but_first, binary}]),
    lists:append(Found).

%% Returns the members of the type beamway_kind:label(), because beamway_kind:all/0 contains neither `inet' nor `tls'.
kinds() ->
    {ok, {_, [{abstract_code, {_, Forms}}]}} = beam_lib:chunks(filename:join(code:lib_dir(beamway, ebin), "beamway_kind.beam"), [abstract_code]),
    members({user_type, 0, label, []}, maps:from_list([{Name, Type} || {attribute, _, type, {Name, Type, []}} <- Forms])).

members({user_type, _, Name, []}, Types) -> members(maps:get(Name, Types), Types);
members({type, _, union, Members}, Types) -> [Atom || Member <- Members, Atom <- members(Member, Types)];
members({atom, _, Atom}, _) -> [Atom].

bad_questions(_) ->
    [{Peer, _}] = started(1),
    Port = console(Peer, #{allow => true}),
    [{Status, #{<<"error">> := _}} = get(Port, Path) ||
        {Status, Path} <- [{404, "/api/weather"}, {400, "/api/events?topics=weather"}, {400, "/api/history?node=nobody-at-all@nowhere"},
                           {400, "/api/events?topics=node:nobody-at-all@nowhere"}]],
    [{Status, _, _} = post(Port, Path, Body) ||
        {Status, Path, Body} <- [{400, "/api/placement/choose", <<"{">>}, {400, "/api/placement/choose", <<"[]">>}, {404, "/api/placement/choose", <<"{}">>},
                                 {400, "/api/topology/measure", #{mode => loud}}, {400, "/api/topology/measure", #{batches => 0}}, {404, "/api/nothing", #{}}]],
    ?assert(is_pid(beamway_peer:call(Peer, erlang, whereis, [beamway_console_hub]))).

%% ---- the command

command(Config) ->
    [{Peer, Node}, _, {Victim, Gone}] = started(3, beamway_shm),
    Cookie = cookie(Config, Peer),
    Command = open_port({spawn_executable, executable()}, [{args, ["console", atom_to_list(Node), "--port", "0", "--json", "--cookie-file", Cookie, "--interval", "200"]},
                                                           exit_status, binary, {line, 1000}]),
    {os_pid, Pid} = erlang:port_info(Command, os_pid),
    Url = receive {Command, {data, {eol, Line}}} -> maps:get(<<"url">>, jiffy:decode(Line, [return_maps])) after ?PATIENCE_MS -> error(silent) end,
    Port = port_of(Url),
    Frame = frame(Port, "cluster", up(3)),
    %% The command itself is hidden, so it is not shown as a node.
    ?assertEqual(3, length(maps:get(<<"nodes">>, Frame))),
    ok = beamway_peer:kill9(Victim),
    #{} = frame(Port, "cluster", fun(F) -> maps:get(<<"state">>, named(Gone, F)) =:= <<"down">> end),
    _ = os:cmd("kill -INT " ++ integer_to_list(Pid)),
    receive {Command, {exit_status, Status}} -> ?assertNotEqual(0, Status) after ?PATIENCE_MS -> error(still_running) end,
    ok = until(fun() -> beamway_peer:call(Peer, erlang, whereis, [beamway_console_collector]) =:= undefined end).

%% Tests the console that `make demo' runs on a terminal: everybody on the host may see it, and nobody may start anything.
demo(_) ->
    Self = self(),
    {Demo, Monitor} = spawn_monitor(fun() -> beamway_demo_console:stay(fun(Format, Words) -> Self ! {said, lists:flatten(io_lib:format(Format, Words))}, ok end) end),
    Said = receive
               {said, Text} -> Text;
               {'DOWN', Monitor, process, _, Why} -> error(Why)
           after 3 * ?PATIENCE_MS -> error(silent)
           end,
    {match, [Url]} = re:run(Said, "http://localhost:[0-9]+/", [{capture, first, list}]),
    Port = port_of(Url),
    _ = frame(Port, "cluster", up(4)),
    {403, _, _} = post(Port, "/api/topology/measure", #{}),
    true = exit(Demo, kill),
    ok = until(fun() -> gen_tcp:connect({127, 0, 0, 1}, Port, []) =:= {error, econnrefused} end).

%% The command prints a single line, without the supervisor reports.
port_in_use(Config) ->
    [{Peer, Node}] = started(1, beamway_shm),
    {ok, Taken} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Taken),
    {1, Text} = ran([atom_to_list(Node), "--port", integer_to_list(Port), "--cookie-file", cookie(Config, Peer)]),
    ?assertMatch({match, _}, re:run(Text, ["^beamway: console: cannot listen on 127.0.0.1 port ", integer_to_list(Port), ": address already in use; [^\n]*\n$"])),
    ok = gen_tcp:close(Taken).

cookie(Config, Peer) ->
    File = filename:join(?config(priv_dir, Config), "cookie"),
    _ = file:delete(File),
    ok = file:write_file(File, atom_to_list(beamway_peer:call(Peer, erlang, get_cookie, []))),
    ok = file:change_mode(File, 8#400),
    File.

ran(Words) ->
    Port = open_port({spawn_executable, executable()}, [{args, ["console" | Words]}, exit_status, stderr_to_stdout, binary]),
    {Status, Said} = test_support:until_ended(Port, ?PATIENCE_MS),
    {Status, iolist_to_binary(Said)}.

bad_words(Config) ->
    Token = filename:join(?config(priv_dir, Config), "open_token"),
    ok = file:write_file(Token, "0123456789abcdef"),
    [begin
         {Status, Text} = ran(Words),
         ?assertNotEqual(nomatch, string:find(Text, Says))
     end || {Status, Says, Words} <- [{2, "unexpected word", ["a", "b"]}, {2, "token_file", ["--bind", "0.0.0.0"]}, {2, "IP address", ["--bind", "here"]},
                                      {2, "can be read by others", ["--token-file", Token]}, {1, "cannot read", ["--times", "/nowhere/x"]}, {0, "Ctrl-C", ["--help"]},
                                      {2, "0 to 65535", ["--port", "99999"]}]].

executable() -> filename:join([code:lib_dir(beamway_console), "..", "..", "bin", "beamway"]).
