%% SPDX-License-Identifier: Apache-2.0
%% @doc The handler for tests of yucan, in which each path does one thing.
-module(yucan_test_handler).
-behaviour(yucan_handler).

-export([handle/2]).

%% @doc Answers a request; see the clauses.
-spec handle(yucan_req:req(), term()) -> yucan_handler:response().
handle(Req, State) -> answer(yucan_req:path(Req), Req, State).

answer(<<"/crash">>, _, _) -> error(crashed_on_purpose);
answer(<<"/steps/whole">>, Req, _) -> ok = yucan_answer:send({200, [], <<"whole">>}, Req), sent;
answer(<<"/steps/open">>, Req, _) ->
    ok = yucan_answer:inform(103, [{<<"link">>, <<"</s>">>}], Req),
    ok = yucan_answer:open(200, [], Req),
    ok = yucan_answer:write(<<"one">>, Req),
    ok = yucan_answer:write(<<"two">>, Req),
    sent;
answer(<<"/steps/twice">>, Req, _) -> ok = yucan_answer:send({200, [], <<"once">>}, Req), yucan_answer:send({200, [], <<"again">>}, Req);
answer(<<"/steps/returned">>, Req, _) -> ok = yucan_answer:send({200, [], <<"once">>}, Req), {200, [], <<"again">>};
answer(<<"/steps/left">>, Req, _) -> ok = yucan_answer:open(200, [], Req), ok = yucan_answer:write(<<"begun">>, Req), {200, [], <<"again">>};
answer(<<"/steps/within">>, Req, _) -> {200, [], {stream, fun(Write) -> ok = yucan_answer:send({200, [], <<"within">>}, Req), Write(<<"stream">>) end}};
answer(<<"/remember/", Name/binary>>, _, _) ->
    {200, [], io_lib:format("~0tp", [[put(Key, Name) || Key <- [user, {user, 1}]]])};
answer(<<"/steps/crash">>, Req, _) -> ok = yucan_answer:open(200, [], Req), ok = yucan_answer:write(<<"begun">>, Req), error(on_purpose);
answer(<<"/steps/none">>, _, _) -> sent;
answer(<<"/exit">>, _, _) -> exit(on_purpose);
answer(<<"/throw">>, _, _) -> throw(on_purpose);
answer(<<"/nonsense">>, _, _) -> nonsense;
answer(<<"/bad_body">>, _, _) -> {200, [], [nonsense]};
answer(<<"/bad_header">>, _, _) -> {200, [{<<"x-a">>, <<"one\r\nset-cookie: two">>}], <<>>};
answer(<<"/bad_name">>, _, _) -> {200, [{<<"x a:">>, <<"one">>}], <<>>};
answer(<<"/bad_nul">>, _, _) -> {200, [{<<"x-a">>, <<0>>}], <<>>};
answer(<<"/padded">>, _, _) -> {200, [{<<"x-padded">>, <<" \ta b\t ">>}], <<>>};
answer(<<"/loop">>, _, _) -> timer:sleep(infinity);
answer(<<"/spin">>, _, _) -> spin(0);
answer(<<"/work">>, _, _) ->
    work(erlang:monotonic_time(microsecond) + 2000),
    {200, [], <<"worked">>};
answer(<<"/self">>, _, Parent) -> Parent ! {serves, self()}, {200, [], <<>>};
answer(<<"/held">>, _, Parent) ->
    Parent ! {held, self()},
    receive go_on -> {200, [], <<>>} end;
answer(<<"/ignore">>, _, _) -> {200, [], <<"ignored">>};
answer(<<"/close">>, _, _) -> close;
answer(<<"/closing">>, _, _) -> {200, [{<<"connection">>, <<"close">>}], <<"closing">>};
answer(<<"/nothing">>, _, _) -> {204, [], <<"must not be seen">>};
answer(<<"/leave">>, Req, _) -> {200, [{<<"connection">>, <<"close">>}], leave(yucan_req:query(Req))};
answer(<<"/same">>, _, _) -> {304, [{<<"etag">>, <<"\"x\"">>}], <<"must not be seen">>};
answer(<<"/stream">>, _, _) -> {200, [], {stream, fun(Write) -> [ok = Write(integer_to_binary(N)) || N <- lists:seq(1, 100)] end}};
answer(<<"/stream_length">>, _, _) -> {200, [{<<"content-length">>, 10}], {stream, fun(Write) -> ok = Write(<<"01234">>), ok = Write(<<"56789">>) end}};
answer(<<"/stream_short">>, _, _) -> {200, [{<<"content-length">>, 10}], {stream, fun(Write) -> ok = Write(<<"01234">>) end}};
answer(<<"/stream_crash">>, Req, _) -> {200, [], {stream, fun(Write) -> ok = Write(<<"begun">>), 1 / byte_size(yucan_req:query(Req)) end}};
answer(<<"/stream_crash_at_once">>, Req, _) -> {200, [], {stream, fun(_) -> 1 / byte_size(yucan_req:query(Req)) end}};
answer(<<"/endless">>, Req, _) ->
    {200, [], {stream, fun(Write) -> endless(Write, yucan_req:query(Req), 0) end}};
answer(<<"/large">>, _, _) -> {200, [], binary:copy(<<"x">>, 8 * 1024 * 1024)};
answer(<<"/large_stream">>, _, _) -> {200, [], {stream, fun(Write) -> Write(binary:copy(<<"x">>, 8 * 1024 * 1024)) end}};
answer(<<"/large_list">>, _, _) -> {200, [], [binary:copy(<<"x">>, 1024) || _ <- lists:seq(1, 8 * 1024)]};
answer(<<"/text">>, _, _) -> {200, [{<<"content-type">>, <<"text/plain">>}], binary:copy(<<"some text ">>, 500)};
answer(<<"/peer">>, Req, _) -> {200, [], io_lib:format("~0p", [yucan_req:peer(Req)])};
answer(<<"/scheme">>, Req, _) -> {200, [], atom_to_binary(yucan_req:scheme(Req))};
answer(<<"/port">>, Req, _) -> {200, [], integer_to_binary(yucan_req:port(Req))};
answer(<<"/id">>, Req, _) ->
    Id = yucan_req:header(<<"x-request-id">>, Req),
    {200, [{<<"x-request-id">>, <<"another">>}], [Id || Id =:= yucan_req:id(Req)]};
answer(<<"/host">>, Req, _) -> {200, [], yucan_req:host(Req)};
answer(<<"/trailers">>, Req, _) ->
    {ok, _} = yucan_req:body(Req),
    {200, [], io_lib:format("~0p", [yucan_req:trailers(Req)])};
answer(<<"/size">>, Req, _) ->
    {ok, Body} = yucan_req:body(Req),
    {200, [], integer_to_binary(byte_size(Body))};
answer(<<"/parts">>, Req, _) -> {200, [], io_lib:format("~w", [parts(Req)])};
answer(<<"/all_parts">>, Req, _) ->
    {ok, Body} = yucan_req:gather(infinity, <<"all: ">>, #{max => 1000}, Req),
    {200, [], Body};
answer(<<"/count">>, Req, _) -> {200, [], integer_to_binary(count(Req, 0))};
answer(<<"/slow_read">>, Req, _) ->
    receive after 300 -> ok end,
    {200, [], integer_to_binary(count(Req, 0))};
answer(<<"/ws">>, _, State) -> {websocket, yucan_test_ws, State, #{protocols => [<<"chat">>]}};
answer(<<"/ws_greets">>, _, _) -> {websocket, yucan_test_ws, greet, #{}};
answer(<<"/ws_deflate">>, _, State) -> {websocket, yucan_test_ws, State, #{compress => true}};
answer(<<"/ws_context">>, _, State) -> {websocket, yucan_test_ws, State, #{compress => #{window => 12, client_window => 11}}};
answer(<<"/ws_any">>, _, State) -> {websocket, yucan_test_ws, State, #{origins => any}};
answer(<<"/ws_named">>, _, State) -> {websocket, yucan_test_ws, State, #{origins => [<<"https://b.org">>]}};
answer(<<"/ws_small">>, _, State) -> {websocket, yucan_test_ws, State, #{max_message => 1000, compress => true}};
answer(<<"/events">>, Req, _) ->
    yucan_sse:response(Req, [], fun(start, S) -> self() ! {next, 1}, {ok, S};
                                   ({info, {next, 4}}, _) -> stop;
                                   ({info, {next, N}}, S) -> self() ! {next, N + 1}, {send, #{id => integer_to_binary(N), data => <<"a\nb">>}, S} end, none);
answer(<<"/forever_events">>, Req, Parent) ->
    yucan_sse:response(Req, [], fun(start, S) -> Parent ! {events, self()}, {ok, S}; ({info, stop}, _) -> stop; ({info, Data}, S) -> {send, #{data => Data}, S} end, none);
answer(_, Req, _) ->
    case yucan_req:body(Req) of
        {ok, <<>>} -> {200, [{<<"content-type">>, <<"text/plain">>}], <<"OK">>};
        {ok, Body} -> {200, [], Body};
        {error, Reason} -> yucan_req:body_error(Reason)
    end.

%% Leaves the named kind of residue in the process that serves the connection.
leave(<<"stream">>) ->
    Pid = pid_to_list(self()),
    {stream, fun(Write) -> Write(Pid) end};
leave(What) ->
    _ = case What of
        <<"nothing">> -> ok;
        <<"word">> -> put(left, word);
        <<"message">> -> self() ! left;
        <<"link">> -> spawn_link(fun() -> receive the_end -> ok end end);
        <<"monitor">> -> monitor(process, whereis(kernel_sup));
        <<"watcher">> ->
            Watched = self(),
            spawn(fun() -> Watched ! {self(), monitor(process, Watched)}, receive {'DOWN', _, _, Watched, _} -> ok end end),
            receive {_, Monitor} when is_reference(Monitor) -> ok end;
        <<"flag">> -> process_flag(trap_exit, true);
        <<"name">> -> register(yucan_test_left, self())
    end,
    pid_to_list(self()).

%% Neither returns nor blocks.
spin(Count) -> spin(Count + 1).

%% Uses the scheduler for two milliseconds without yielding it to other work.
work(Until) ->
    case erlang:monotonic_time(microsecond) < Until of
        true -> work(Until);
        false -> ok
    end.

count(Req, Total) ->
    case yucan_req:read(Req) of
        {more, Data} -> count(Req, Total + byte_size(Data));
        {ok, Data} -> Total + byte_size(Data);
        {error, Reason} -> exit({body, Reason})
    end.

%% Returns the sizes of parts of at most 1000 bytes.
parts(Req) ->
    case yucan_req:read(Req, #{max => 1000}) of
        {more, Data} -> [byte_size(Data) | parts(Req)];
        {ok, Data} -> [byte_size(Data)]
    end.

%% Records in the ets table that the query names how much has been written.
endless(Write, Name, Written) ->
    case Write(binary:copy(<<"x">>, 65536)) of
        ok ->
            ets:insert(binary_to_existing_atom(Name), {written, Written + 65536}),
            endless(Write, Name, Written + 65536);
        {error, Reason} -> ets:insert(binary_to_existing_atom(Name), {ended, Reason})
    end.
