%% SPDX-License-Identifier: Apache-2.0
%% @doc Tests HTTP/2 with other implementations: h2spec, from the Go module proxy, and nghttp2's clients.
-module(yucan_h2_peers_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([handle/2]).
-export([h2spec_plain/1, h2spec_tls/1, nghttp/1, h2load/1]).

-include_lib("common_test/include/ct.hrl").

-define(H2SPEC, "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible").

suite() -> [{timetrap, {minutes, 7}}].

all() -> [h2spec_plain, h2spec_tls, nghttp, h2load].

init_per_suite(Config) -> yucan_test_server:start_application(Config).

end_per_suite(Config) -> yucan_test_server:stop_application(Config).

%% Reads the complete body, and responds with more data than a window of a few bytes allows, as the
%% cases expect.
handle(Req, _) ->
    {ok, _} = yucan_req:body(Req),
    {200, [], binary:copy(<<"x">>, 1000)}.

end_per_testcase(_, _) -> yucan_test_server:stop_all().

%% Over TCP the server expects HTTP/1.1, and answers an invalid preface like any other line that is not a request.
h2spec_plain(Config) ->
    Port = yucan_test_server:start(yucan_h2spec, #{handler => {?MODULE, none}}),
    h2spec(["-p ", integer_to_list(Port)], ["Sends invalid connection preface"], Config).

h2spec_tls(Config) ->
    Certificate = yucan_test_server:certificate("localhost", ?config(priv_dir, Config)),
    Port = yucan_test_server:start(yucan_h2spec, #{handler => {?MODULE, none}, listen => [#{port => 0, tls => Certificate}]}),
    h2spec(["-t -k -p ", integer_to_list(Port)], [], Config).

%% Runs h2spec. There must be 145 cases, of which exactly the given cases must fail.
h2spec(Arguments, Known, Config) ->
    case installed(Config) of
        {ok, Program} ->
            Said = os:cmd(lists:flatten([Program, " -h 127.0.0.1 -o 5 ", Arguments, " 2>&1"])),
            ok = file:write_file(filename:join(?config(priv_dir, Config), "h2spec.txt"), unicode:characters_to_binary(Said)),
            {match, [All, Passed, "0", Failed]} = re:run(Said, "(\\d+) tests, (\\d+) passed, (\\d+) skipped, (\\d+) failed", [unicode, {capture, all_but_first, list}]),
            Failures = case re:run(Said, "× \\d+: (.*)", [global, unicode, {capture, all_but_first, list}]) of
                {match, Lines} -> lists:usort(lists:append(Lines));
                nomatch -> []
            end,
            ct:pal("h2spec: ~ts of ~ts pass", [Passed, All]),
            {Known, "145"} = {Failures, All},
            true = list_to_integer(Failed) =:= length(Known);
        {skip, _} = Skip -> Skip
    end.

%% The program is built once per run, because there is no Debian package for its modules.
installed(Config) ->
    Folder = filename:join(?config(priv_dir, Config), "go"),
    Program = filename:join(Folder, "h2spec"),
    case {filelib:is_regular(Program), os:find_executable("go")} of
        {true, _} -> {ok, Program};
        {_, false} -> {skip, "no go to build h2spec"};
        _ ->
            Said = os:cmd(lists:flatten(["GOFLAGS=-modcacherw GOPATH='", Folder, "/path' GOBIN='", Folder, "' timeout 240 go install ", ?H2SPEC, " 2>&1"])),
            case filelib:is_regular(Program) of
                true -> {ok, Program};
                false -> {skip, "h2spec cannot be fetched: " ++ lists:last(string:tokens(Said ++ "\n?", "\n"))}
            end
    end.

with(Name, Function) ->
    case os:find_executable(Name) of
        false -> {skip, "no " ++ Name};
        Program -> Function(Program)
    end.

%% Sends several concurrent requests with priorities, padding, small windows and a body.
nghttp(Config) ->
    with("nghttp", fun(Program) ->
        Base = lists:flatten(io_lib:format("http://127.0.0.1:~b", [yucan_test_server:start(yucan_nghttp)])),
        Text = binary:copy(<<"some text ">>, 500),
        Run = fun(Arguments) -> list_to_binary(os:cmd(lists:flatten([Program, " ", Arguments]))) end,
        Text = Run([Base, "/text"]),
        Text = Run(["-w 8 -W 8 ", Base, "/text"]),
        Text = Run(["-b 255 -p 1 ", Base, "/text"]),
        8388608 = byte_size(Run([Base, "/large"])),
        File = filename:join(?config(priv_dir, Config), "body"),
        ok = file:write_file(File, Text),
        <<"5000">> = Run(["-d ", File, " ", Base, "/count"]),
        5007 = byte_size(Run([Base, "/text ", Base, "/ignore"])) end).

h2load(_) ->
    with("h2load", fun(Program) ->
        Port = yucan_test_server:start(yucan_h2load),
        Said = os:cmd(lists:flatten(io_lib:format("~ts -n 5000 -c 10 -m 10 http://127.0.0.1:~b/", [Program, Port]))),
        true = string:find(Said, "5000 succeeded, 0 failed, 0 errored") =/= nomatch
    end).
