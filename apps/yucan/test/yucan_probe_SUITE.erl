%% SPDX-License-Identifier: Apache-2.0
%% @doc Requests from public test suites, identified by their IDs and reimplemented here: Http11Probe's smuggling and malformed cases, h1spec's strict
%% checks, and requests modelled on llhttp's tests. The tables are in yucan_probe_cases and yucan_corpus. A verdict describes everything that the
%% client must receive until the connection is closed.
-module(yucan_probe_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([smuggling/1, malformed/1, h1spec/1, corpus/1, tables/1, map/1, core/1]).

-include_lib("common_test/include/ct.hrl").

suite() -> [{timetrap, {minutes, 3}}].

all() -> [core, tables, map, smuggling, malformed, h1spec, corpus].

%% These are rules for HTTP/1.1, so the HTTP/2 preface is an invalid request here. (yucan_h2_SUITE tests it where it is valid.)
init_per_suite(Config) ->
    [{port, yucan_test_server:start(yucan_probe, #{http2 => false, limits => #{header_ms => 3000, read_ms => 3000}})} | Config].

end_per_suite(_) -> yucan_test_server:stop_all().

%% The core stays small: it has at most 28 modules. It calls only a few others: the file cache's
%% owner, the modules that identify or limit clients if the configuration requires it, the process
%% of an HTTP/2 connection, the TLS transport, and the module for `{websocket, ...}'.
core(_) ->
    Src = filename:join([code:lib_dir(yucan), "src"]),
    Core = modules(filename:join(Src, "*.erl")),
    true = length(Core) =< 28,
    Called = lists:usort([M || Module <- Core, {ok, {_, [{imports, Calls}]}} <- [beam_lib:chunks(code:which(Module), [imports])], {M, _, _} <- Calls]),
    [yucan_file_cache, yucan_forwarded, yucan_h2, yucan_quota, yucan_tls, yucan_ws] = lists:sort([M || M <- modules(filename:join(Src, "*/*.erl")), lists:member(M, Called)]).

modules(Pattern) -> [list_to_atom(filename:basename(File, ".erl")) || File <- filelib:wildcard(Pattern)].

%% No ID occurs twice, and no number of h1spec is missing. Each row can fail: no verdict accepts both a server that accepts everything and a server
%% that rejects everything. Each row can also pass: every verdict accepts at least one of the responses that real servers send.
tables(_) ->
    Rows = yucan_probe_cases:smuggling() ++ yucan_probe_cases:malformed() ++ yucan_probe_cases:h1spec() ++ yucan_corpus:requests(),
    Ids = [Id || {Id, _, _, _} <- Rows],
    [] = Ids -- lists:usort(Ids),
    Numbers = [list_to_integer(Number) || {"h1spec " ++ Rest, _, _, _} <- Rows, [Number, _] <- [string:split(Rest, ":")]],
    Numbers = lists:seq(1, length(Numbers)),
    [] = [Id || {Id, _, _, Verdict} <- Rows, takes(Verdict, fun accepts/1) andalso takes(Verdict, fun refuses/1)],
    [] = [Id || {Id, _, _, Verdict} <- Rows, not takes(Verdict, fun accepts/1), not takes(Verdict, fun refuses/1)].

takes(Verdict, Server) -> lists:any(fun(Seen) -> agrees(Verdict, Seen) end, Server(Verdict)).

%% Returns what a server that accepts everything may send: one or more responses with the expected content, after which the connection stays open.
accepts({echo, Body}) -> [[{200, [], Body}]];
accepts({_, [First | _] = Statuses}) ->
    Answer = fun(Status) -> {Status, [{<<"content-length">>, <<"0">>}], <<>>} end,
    [[Answer(Status)] || Status <- [200 | Statuses], Status < 400] ++ [[Answer(Status) || Status <- Statuses] || First < 400];
accepts(_) -> [[{200, [], <<>>}]].

%% Returns what a server that rejects everything may send: an immediate rejection, with or without a response.
refuses(_) -> [[]] ++ [[{Status, [{<<"connection">>, <<"close">>}, {<<"content-length">>, <<"0">>}], <<>>}] || Status <- [400, 405, 408, 411, 413, 414, 417, 431, 501, 503, 505]].

%% Checks that everything named in docs/dev/yucan-rules.md exists: test cases, functions of unit tests, and IDs in the tables.
map(_) ->
    {ok, Text} = file:read_file(filename:join([code:lib_dir(yucan), "..", "..", "docs", "dev", "yucan-rules.md"])),
    [_ | Tables] = binary:split(Text, <<"\n## ">>, [global]),
    {match, Names} = re:run(Tables, "`([^`]+)`", [global, {capture, all_but_first, list}]),
    Ids = [Id || {Id, _, _, _} <- yucan_probe_cases:smuggling() ++ yucan_probe_cases:malformed() ++ yucan_probe_cases:h1spec() ++ yucan_corpus:requests()],
    true = length(Names) > 150,
    [] = [Name || [Name] <- Names, not is_there(Name, Ids)].

is_there("h1spec " ++ _ = Name, Ids) -> lists:any(fun(Id) -> lists:prefix(Name ++ ":", Id) end, Ids);
is_there(Name, Ids) -> lists:member(Name, Ids) orelse is_case(string:split(Name, ":")).

is_case([Suite, Case]) when hd(Case) =/= $\s ->
    {Module, Arity} = case lists:suffix("_tests", Suite) of
        true -> {list_to_atom("yucan_" ++ Suite), 0};
        false -> {list_to_atom("yucan_" ++ Suite ++ "_SUITE"), 1}
    end,
    case beam_lib:chunks(code:which(Module), [exports, locals]) of
        {ok, {Module, [{exports, Exported}, {locals, Others}]}} -> lists:member({list_to_atom(Case), Arity}, Exported ++ Others);
        {error, beam_lib, _} -> false
    end;
is_case(_) -> false.

smuggling(Config) -> run(yucan_probe_cases:smuggling(), Config).
malformed(Config) -> run(yucan_probe_cases:malformed(), Config).
h1spec(Config) -> run(yucan_probe_cases:h1spec(), Config).
corpus(Config) -> run(yucan_corpus:requests(), Config).

run(Table, Config) ->
    Port = ?config(port, Config),
    Wrong = [{Id, Rfc, Verdict, Seen} || {Id, Rfc, Bytes, Verdict} <- Table, Seen <- [seen(Port, Bytes)], not agrees(Verdict, Seen)],
    [ct:pal("~ts (~ts): expected ~0tp, got ~0tp", [Id, Rfc, Verdict, Seen]) || {Id, Rfc, Verdict, Seen} <- Wrong],
    [] = [Id || {Id, _, _, _} <- Wrong].

seen(Port, Bytes) ->
    Binary = iolist_to_binary(Bytes),
    Method = case Binary of <<"HEAD ", _/binary>> -> <<"HEAD">>; _ -> <<"GET">> end,
    yucan_client:exchange(Port, Binary, Method).

%% The verdict `refused' accepts one of these responses, after which the connection must close. `refused_or_silent' also accepts no response. The
%% other verdicts accept exactly these responses.
agrees({refused, Statuses}, [{Status, Headers, _}]) ->
    lists:member(Status, Statuses) andalso proplists:get_value(<<"connection">>, Headers) =:= <<"close">>;
agrees(silent, []) -> true;
agrees({refused_or_silent, Statuses}, Seen) -> Seen =:= [] orelse agrees({refused, Statuses}, Seen);
agrees({answers, Statuses}, Seen) when is_list(Seen) -> [Status || {Status, _, _} <- Seen] =:= Statuses;
agrees({echo, Body}, [{200, _, Body}]) -> true;
agrees({length, Statuses}, [{Status, Headers, _}]) ->
    lists:member(Status, Statuses) andalso proplists:is_defined(<<"content-length">>, Headers);
agrees(_, _) -> false.
