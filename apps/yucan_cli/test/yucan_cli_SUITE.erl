%% SPDX-License-Identifier: Apache-2.0
%% @doc The `yucan' command as users run it: serving a directory, usage errors, daemons, watching source files.
-module(yucan_cli_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([folder/1, other_names/1, this_folder/1, terminal/1, hostile_folder/1, relative_libraries/1, deleted_folder/1, no_locale/1, wishes/1, own_origin/1, empty_token/1, upload_conditions/1, upload_is_seen/1, upload_at_sigterm/1, one_file/1, application_paths/1, wrong_words/1, completion_and_manual/1, zsh_completion/1, closed_descriptors/1, newest_version/1, cannot_serve/1, announced/1, daemon/1, daemon_without_descriptors/1, failed_command/1, daemon_cannot_serve/1, attached/1, watch/1, crash/1]).

-include_lib("common_test/include/ct.hrl").
-include_lib("kernel/include/file.hrl").

-define(WAIT_MS, (30000 * beamway_runner:slowness())).

suite() -> [{timetrap, {minutes, 3}}].

all() -> [folder, other_names, this_folder, terminal, hostile_folder, relative_libraries, deleted_folder, no_locale, wishes, own_origin, empty_token, upload_conditions, upload_is_seen, upload_at_sigterm, one_file, application_paths, wrong_words, completion_and_manual, zsh_completion, closed_descriptors, newest_version, cannot_serve, announced, daemon, daemon_without_descriptors, failed_command, daemon_cannot_serve, attached, watch, crash].

init_per_suite(Config) ->
    Served = filename:join(?config(priv_dir, Config), "served"),
    ok = filelib:ensure_dir(filename:join(Served, "x")),
    ok = file:write_file(filename:join(Served, "a.txt"), "content"),
    %% The path of a Unix socket must be short.
    [{command, test_support:file("bin/yucan")}, {served, Served}, {runtime, beamway_peer:new_folder("yucan_cli")} | Config].

end_per_suite(Config) ->
    _ = file:del_dir_r(?config(runtime, Config)),
    ok.

open(Config, Words) -> open(Config, Words, []).

open(Config, Words, Environment) ->
    open_port({spawn_executable, ?config(command, Config)}, [{args, Words}, {env, Environment}, {line, 2000}, exit_status, stderr_to_stdout, use_stdio]).

line(Port) ->
    receive
        {Port, {data, {eol, Line}}} -> Line;
        {Port, {exit_status, Status}} -> {status, Status}
    after ?WAIT_MS -> error(silence)
    end.

run(Config, Words, Environment) -> run(open(Config, Words, Environment)).

run(Port) ->
    case line(Port) of
        {status, Status} -> {Status, []};
        Line -> {Status, Lines} = run(Port), {Status, [Line | Lines]}
    end.

%% Both completions and the manual page contain every option in the help text. The completions also offer the long options.
completion_and_manual(Config) ->
    {0, Help} = run(Config, ["--help"], []),
    {match, Found} = re:run(lists:join("\n", Help), "(?<![a-z-])--[a-z][a-z-]*", [global, {capture, first, list}]),
    Options = lists:usort(lists:append(Found)),
    true = length(Options) > 20,
    Bin = filename:dirname(?config(command, Config)),
    {ok, Manual} = file:read_file(filename:join(Bin, "man/yucan.1")),
    Plain = binary:replace(Manual, <<"\\-">>, <<"-">>, [global]),
    [] = [Option || Option <- Options -- ["--help", "--version"], re:run(Plain, [Option, "(?![a-z-])"], [{capture, none}]) =:= nomatch],
    Options = offered(["bash -c '. ", Bin, "/completion/yucan; COMP_WORDS=(yucan --) COMP_CWORD=1; _yucan; echo \"${COMPREPLY[@]}\"'"]),
    Runtime = filename:join(?config(priv_dir, Config), "runtime"),
    %% The second name is not that of a daemon, and a shell must not execute it.
    [ok = filelib:ensure_dir(filename:join([Runtime, "yucan-" ++ string:trim(os:cmd("id -u")), Name, "x"])) || Name <- ["site", "s$(echo${IFS}ran>&2)"]],
    ["site"] = offered(["XDG_RUNTIME_DIR=", Runtime, " bash -c '. ", Bin, "/completion/yucan; COMP_WORDS=(yucan --stop s) COMP_CWORD=2; _yucan; echo \"${COMPREPLY[@]}\"'"]).

offered(Command) -> lists:usort(string:lexemes(os:cmd(lists:flatten(Command)), " \n")).

zsh_completion(Config) ->
    case os:find_executable("zsh") of
        false -> {skip, "zsh is not installed"};
        _ ->
            Folder = filename:join(filename:dirname(?config(command, Config)), "completion"),
            Offers = fun(Words, Current) ->
                offered(["zsh -f -c 'cd ", Folder, "; compadd() { print -r -- ${@:#--} }; . ./_yucan; words=(", Words, "); CURRENT=", Current, "; _yucan'"])
            end,
            Options = offered(["bash -c '. ", Folder, "/yucan; COMP_WORDS=(yucan --) COMP_CWORD=1; _yucan; echo \"${COMPREPLY[@]}\"'"]),
            Options = Offers("yucan --", "2"),
            ["0.0.0.0", "::", "localhost"] = Offers("yucan --ip l", "3")
    end.

stop(Port) ->
    {os_pid, Pid} = erlang:port_info(Port, os_pid),
    os:cmd("kill -9 " ++ integer_to_list(Pid)),
    ok.

port_in(Line) ->
    {match, [Digits]} = re:run(Line, ":(\\d+)/", [{capture, all_but_first, list}]),
    list_to_integer(Digits).

folder(Config) ->
    Served = open(Config, ["--port", "0", ?config(served, Config)]),
    try
        "yucan: serving " ++ _ = Line = line(Served),
        {200, _, <<"content">>} = yucan_client:get(port_in(Line), "/a.txt"),
        {200, _, Page} = yucan_client:get(port_in(Line), "/"),
        {_, _} = binary:match(Page, <<"a.txt">>)
    after
        stop(Served)
    end.

%% Without an argument the current directory is served, and all addresses of the host that a browser can open are listed.
this_folder(Config) ->
    Served = open_port({spawn_executable, ?config(command, Config)}, [{args, ["-p", "0", "--ip", "0.0.0.0"]}, {cd, ?config(served, Config)}, {line, 2000}, exit_status, stderr_to_stdout]),
    try
        {match, [Digits]} = re:run(line(Served), "^yucan: serving \\. at http://127\\.0\\.0\\.1:(\\d+)/$", [{capture, all_but_first, list}]),
        {200, _, <<"content">>} = yucan_client:get(list_to_integer(Digits), "/a.txt")
    after
        stop(Served)
    end.

%% On a terminal, which `script' provides, a line is printed per request. A link that leads out of the directory is followed only if an option allows it.
terminal(Config) ->
    Folder = filename:join(?config(priv_dir, Config), "terminal"),
    ok = filelib:ensure_dir(filename:join(Folder, "x")),
    ok = file:make_symlink(filename:join(?config(served, Config), "a.txt"), filename:join(Folder, "link")),
    Command = lists:append(["stty cols 80; exec '", ?config(command, Config), "' -p 0 --ip localhost --follow-symlinks '", Folder, "'"]),
    Served = open_port({spawn_executable, "/usr/bin/script"}, [{args, ["-qec", Command, "/dev/null"]}, {line, 2000}, exit_status, stderr_to_stdout]),
    try
        Line = line(Served),
        {match, _} = re:run(Line, " at http://127\\.0\\.0\\.1:\\d+/\\s*$"),
        {200, _, <<"content">>} = yucan_client:get(port_in(Line), "/link"),
        {match, _} = re:run(line(Served), "^\\d\\d:\\d\\d:\\d\\d 127\\.0\\.0\\.1 200 GET /link 7 bytes \\d+\\.\\d ms\\s*$")
    after
        %% The terminal is closed when `script' exits, and then the server exits.
        stop(Served)
    end.

%% Modules in the directory are ordinary files, even if they have the names of modules that are loaded before or after main/0.
hostile_folder(Config) ->
    Folder = filename:join(?config(priv_dir, Config), "hostile"),
    Ran = filename:join(?config(priv_dir, Config), "ran"),
    ok = test_support:put_hostile([net_kernel, ssl_pem_cache], Folder, Ran),
    Served = open_port({spawn_executable, ?config(command, Config)}, [{args, ["-p", "0"]}, {cd, Folder}, {line, 2000}, exit_status, stderr_to_stdout]),
    try
        "yucan: serving . at " ++ _ = Line = line(Served),
        {200, _, <<"FOR1", _/binary>>} = yucan_client:get(port_in(Line), "/net_kernel.beam"),
        {error, enoent} = file:read_file_info(Ran)
    after
        stop(Served)
    end,
    %% Nor are they loaded if the command cannot enter the directory again, here because the shell strips this name's newline.
    Unnamed = filename:join(?config(priv_dir, Config), "unnamed\n"),
    ok = test_support:put_hostile([net_kernel], Unnamed, Ran),
    {1, ["yucan: the current folder cannot be entered by its path; " ++ _]} =
        run(open_port({spawn_executable, ?config(command, Config)}, [{args, ["-p", "0"]}, {cd, Unnamed}, {line, 2000}, exit_status, stderr_to_stdout])),
    {error, enoent} = file:read_file_info(Ran),
    %% The command does not hang if the server cannot represent the name of the directory.
    Latin1 = <<(unicode:characters_to_binary(Folder))/binary, "/d\xe9">>,
    ok = prim_file:make_dir(Latin1),
    {1, ["yucan: cannot enter " ++ _]} = run(open_port({spawn_executable, "/bin/sh"},
                                                       [{args, ["-c", <<"cd \"", Latin1/binary, "\" && exec \"$0\"">>, ?config(command, Config)]}, {line, 2000}, exit_status, stderr_to_stdout])).

%% Relative paths in the user's environment variables still work.
relative_libraries(Config) ->
    Folder = filename:join(?config(priv_dir, Config), "libraries"),
    Erl = filename:join(Folder, "erl"),
    ok = filelib:ensure_dir(Erl),
    ok = file:write_file(Erl, "#!/bin/sh\necho \"$ERL_LIBS\"\n"),
    ok = file:change_mode(Erl, 8#755),
    Libraries = lists:append([Folder, "/a:/b:", Folder, "/c d"]),
    {0, [Libraries]} = run(open_port({spawn_executable, "/bin/sh"},
                                     [{args, ["-c", "cd \"$1\" && exec \"$0\"", ?config(command, Config), Folder]},
                                      {env, [{"ERL_LIBS", "a:/b:c d"}, {"YUCAN_ERL", "./erl"}]}, {line, 2000}, exit_status, stderr_to_stdout])).

%% The shell may print a message first.
deleted_folder(Config) ->
    Folder = filename:join(?config(priv_dir, Config), "deleted"),
    ok = file:make_dir(Folder),
    {1, Lines} = run(open_port({spawn_executable, "/bin/sh"}, [{args, ["-c", "rmdir \"$PWD\" && exec \"$0\"", ?config(command, Config)]}, {cd, Folder}, {line, 2000}, exit_status, stderr_to_stdout])),
    "yucan: the current folder has been deleted; enter another one" = lists:last(Lines).

%% Starts yucan as cron may do: names beyond ASCII are treated as UTF-8 even without a locale.
no_locale(Config) ->
    Folder = filename:join(?config(priv_dir, Config), "d\x{e9}"),
    ok = filelib:ensure_dir(filename:join(Folder, "x")),
    ok = file:write_file(filename:join(Folder, "\x{e9}.txt"), "content"),
    Served = open(Config, ["--port", "0", Folder], [{"LC_ALL", "C"}]),
    try
        "yucan: serving " ++ _ = Line = line(Served),
        {200, _, <<"content">>} = yucan_client:get(port_in(Line), "/%C3%A9.txt")
    after
        stop(Served)
    end.

%% Command-line options apply to files, listings and errors. A wrong password is treated like a missing one.
wishes(Config) ->
    Folder = filename:join(?config(priv_dir, Config), "wishes"),
    [begin ok = filelib:ensure_dir(filename:join(Folder, Name)), ok = file:write_file(filename:join(Folder, Name), "text\n") end || Name <- ["a.txt", ".dot", "README", "sub/x"]],
    Passwords = filename:join(?config(priv_dir, Config), "secrets"),
    ok = file:write_file(Passwords, "joe:se:cret\n"),
    ok = file:change_mode(Passwords, 8#600),
    Served = open(Config, ["-p", "0", "--cors", "--header", "X-A: b", "--cache", "60", "--hidden", "--auth", Passwords, "--upload", Folder], [{"YUCAN_UPLOAD_TOKEN", "a token"}]),
    try
        Port = port_in(line(Served)),
        {match, _} = re:run(line(Served), "^yucan: upload by: curl -T FILE -H 'Authorization: Bearer a token' http://"),
        Ask = fun(Path, Secret) -> yucan_client:get(Port, Path, [{"Authorization", ["Basic ", base64:encode(Secret)]}]) end,
        [401, 401, 401, 401] = [element(1, Response) || Response <- [yucan_client:get(Port, "/a.txt"), Ask("/a.txt", "joe:wrong"), Ask("/a.txt", "jo:se:cret"), Ask("/a.txt", "joe")]],
        {200, Headers, <<"text\n">>} = Ask("/a.txt", "joe:se:cret"),
        [<<"*">>, <<"b">>, <<"max-age=60">>, <<"nosniff">>] =
            [proplists:get_value(Name, Headers) || Name <- [<<"access-control-allow-origin">>, <<"x-a">>, <<"cache-control">>, <<"x-content-type-options">>]],
        {200, Named, _} = Ask("/README", "joe:se:cret"),
        <<"text/plain; charset=utf-8">> = proplists:get_value(<<"content-type">>, Named),
        {200, _, _} = Ask("/.dot", "joe:se:cret"),
        {200, Listed, Page} = Ask("/?sort=size&desc", "joe:se:cret"),
        <<"b">> = proplists:get_value(<<"x-a">>, Listed),
        %% Error responses and redirects also have these headers.
        [{Status, [<<"*">>, <<"b">>, <<"nosniff">>]} =
             {element(1, Response), [proplists:get_value(Name, element(2, Response)) || Name <- [<<"access-control-allow-origin">>, <<"x-a">>, <<"x-content-type-options">>]]}
         || {Status, Response} <- [{401, yucan_client:get(Port, "/a.txt")}, {404, Ask("/missing", "joe:se:cret")}, {301, Ask("/sub", "joe:se:cret")}]],
        [{_, _} = binary:match(Page, Part) || Part <- [<<"./.dot">>, <<"5 B">>, <<"?sort=size\"">>]],
        Exchange = fun(Head, Body) -> [{Status, _, _}] = yucan_client:exchange(Port, [Head, "\r\nHost: localhost\r\nContent-Length: ", integer_to_list(length(Body)), "\r\n\r\n", Body]), Status end,
        [{204, Preflight, _}] = yucan_client:exchange(Port, "OPTIONS /a.txt HTTP/1.1\r\nHost: localhost\r\nOrigin: http://b\r\nAccess-Control-Request-Method: GET\r\nAccess-Control-Request-Headers: authorization\r\n\r\n"),
        %% `*' does not include this header (Fetch, 3.3.3).
        <<"*, Authorization">> = proplists:get_value(<<"access-control-allow-headers">>, Preflight),
        Put = fun(Path, Token) -> Exchange(["PUT ", Path, " HTTP/1.1\r\nAuthorization: Bearer ", Token], "uploaded") end,
        [401, 201, 204, 403, 403, 403] = [Put("/new.txt", "wrong"), Put("/sub/new.txt", "a token"), Put("/sub/new.txt", "a token"), Put("/no/such/folder", "a token"), Put("/sub", "a token"), Put("/sub/", "a token")],
        400 = Put("/../x", "a token"),
        %% This is the second part of a file, as `curl -C 4 -T' sends it.
        400 = Exchange("PUT /sub/new.txt HTTP/1.1\r\nAuthorization: Bearer a token\r\nContent-Range: bytes 4-8/9", "again"),
        Bearer = fun(Boundary, Parts) -> Exchange(["POST /sub/ HTTP/1.1\r\nAuthorization: Bearer a token\r\nContent-Type: multipart/form-data; boundary=", Boundary], lists:flatten(Parts)) end,
        {ok, <<"uploaded">>} = file:read_file(filename:join(Folder, "sub/new.txt")),
        %% The same uploads are made with forms, as browsers send them. The token is in a field or in the request.
        {_, _} = binary:match(Page, <<"enctype=\"multipart/form-data\"">>),
        Part = fun(Name, Value) -> ["--b\r\nContent-Disposition: form-data; name=", Name, "\r\n\r\n", Value, "\r\n"] end,
        File = fun(Name, Value) -> Part(["file; filename=\"", Name, "\""], Value) end,
        Form = fun(Path, Head, Parts) ->
            Exchange(["POST ", Path, " HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=b\r\n", Head, "Authorization: Basic ", base64:encode("joe:se:cret")], lists:flatten([Parts, "--b--\r\n"]))
        end,
        [303, 201, 401, 401, 401, 400, 403, 403] =
            [Form("/sub/", "Accept: text/html\r\n", [Part("token", "a token"), File("one.txt", "1"), File("C:\\two.txt", "2")]), Form("/sub/", "", [Part("token", "a token"), Part("x", "y"), File("", ""), File("one.txt", "3")]),
             Form("/sub/", "", [Part("token", "wrong"), File("no.txt", "")]), Form("/sub/", "", [File("no.txt", ""), Part("token", "a token")]), Form("/sub/", "", [Part("token", "a"), Part("x", "y")]),
             Form("/sub/", "", [Part("token", "a token")]), Form("/sub/", "", [Part("token", "a token"), File(".no", "")]), Form("/no/", "", [Part("token", "a token"), File("no.txt", "")])],
        401 = Exchange("POST /sub/ HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=b", "--b--"),
        {{201, 415, 400}, {400, 413}} = {
            {Bearer("b", [File("by token", "x"), "--b--"]), Bearer("b; boundary=c", []), Bearer("b", [File("cut.txt", "x")])},
            {Bearer("b", [Part("file; filename=a; filename=b", "x"), "--b--"]), Bearer("b", [[Part("x", "") || _ <- lists:seq(1, 101)], "--b--"])}},
        [{ok, <<"3">>}, {ok, <<"2">>}] = [file:read_file(filename:join([Folder, "sub", Name])) || Name <- ["one.txt", "two.txt"]],
        %% If an HTTP/2 client cancels its upload, no part of it remains.
        Client = yucan_h2_client:connect(Port),
        ok = yucan_h2_client:send(Client, yucan_h2_client:headers(1, 0, [{<<":method">>, <<"PUT">>}, {<<":scheme">>, <<"http">>}, {<<":authority">>, <<"localhost">>}, {<<":path">>, <<"/sub/half">>},
                                                                         {<<"authorization">>, <<"Bearer a token">>}], <<>>)),
        Parts = fun() -> filelib:wildcard(filename:join(Folder, "sub/.half.*.part")) end,
        true = beamway_peer:wait_until(fun() -> length(Parts()) =:= 1 end, 20000),
        ok = yucan_h2_client:send(Client, yucan_h2_client:frame(3, 0, 1, <<8:32>>)),
        true = beamway_peer:wait_until(fun() -> Parts() =:= [] end, 20000),
        {ok, ["by token", "new.txt", "one.txt", "two.txt", "x"]} = {ok, lists:sort(element(2, file:list_dir(filename:join(Folder, "sub"))))}
    after
        stop(Served)
    end.

%% A DNS name of this host may belong to another site, whose pages must not be able to read what only this host can reach (DNS rebinding).
other_names(Config) ->
    Ask = fun(Port, Head) ->
        [{Status, _, Body}] = yucan_client:exchange(Port, ["GET /a.txt HTTP/1.", Head, "\r\n\r\n"]),
        {Status, Body}
    end,
    {ok, Own} = inet:gethostname(),
    Serve = fun(Words, Checks) ->
        Served = open(Config, ["-p", "0"] ++ Words ++ [?config(served, Config)]),
        try Checks(port_in(line(Served))) after stop(Served) end
    end,
    Serve(["--host", "Proxy.example", "--host", "b.example"], fun(Port) ->
        [{Name, {200, <<"content">>}} = {Name, Ask(Port, ["1\r\nHost: ", Name])}
         || Name <- ["localhost:20821", "LOCALHOST", "a.localhost", "127.0.0.1", "127.9.9.9:1", "[::1]:8080", "192.0.2.1", "", Own, "proxy.example:80", "B.example"]],
        {200, <<"content">>} = Ask(Port, "0"),
        [begin
             {403, Page} = Ask(Port, ["1\r\nHost: ", Name]),
             {_, _} = binary:match(Page, iolist_to_binary(["--host ", Name]))
         end || Name <- ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evillocalhost", "a.proxy.example"]]
    end),
    %% With this option, anyone who can connect may read the file.
    Serve(["--ip", "0.0.0.0", "--quiet"], fun(Port) -> {200, <<"content">>} = Ask(Port, "1\r\nHost: any.example") end),
    {2, ["yucan: --host a:80: the name of a host, without a port, is expected; see: yucan --help"]} = run(Config, ["--host", "a:80"], []).

%% An origin from --header replaces the one from --cors, because browsers reject a response with two of them.
own_origin(Config) ->
    Served = open(Config, ["-p", "0", "--cors", "--header", "Access-Control-Allow-Origin: http://b", ?config(served, Config)]),
    try
        Port = port_in(line(Served)),
        [{200, [<<"http://b">>]}, {404, [<<"http://b">>]}] =
            [{Status, proplists:get_all_values(<<"access-control-allow-origin">>, Headers)} || Path <- ["/a.txt", "/missing"], {Status, Headers, _} <- [yucan_client:get(Port, Path)]]
    after
        stop(Served)
    end.

%% An empty token in the environment is not accepted, and a new token is generated.
empty_token(Config) ->
    Served = open_port({spawn_executable, os:find_executable("env")}, [{args, ["YUCAN_UPLOAD_TOKEN=", ?config(command, Config), "-p", "0", "--upload", ?config(served, Config)]},
                                                                      {line, 2000}, exit_status, stderr_to_stdout, use_stdio]),
    try
        Port = port_in(line(Served)),
        {match, _} = re:run(line(Served), "^yucan: upload by: .* Bearer [A-Za-z0-9+/]{20}' http://"),
        Form = "--b\r\nContent-Disposition: form-data; name=token\r\n\r\n\r\n--b\r\nContent-Disposition: form-data; name=file; filename=\"b.txt\"\r\n\r\nx\r\n--b--\r\n",
        [{401, _, _}] = yucan_client:exchange(Port, ["POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: ", integer_to_list(length(Form)), "\r\n\r\n", Form])
    after
        stop(Served)
    end.

%% The server caches a file for a second, but an upload within that second, with PUT or with a form, is served immediately.
upload_is_seen(Config) ->
    Folder = filename:join(?config(priv_dir, Config), "upload_is_seen"),
    Names = ["a.txt", "b.txt"],
    [begin ok = filelib:ensure_dir(File), ok = file:write_file(File, "old") end || Name <- Names, File <- [filename:join(Folder, Name)]],
    ok = settled(filename:join(Folder, "b.txt")),
    Served = open(Config, ["-p", "0", "--upload", Folder], [{"YUCAN_UPLOAD_TOKEN", "a token"}]),
    try
        Port = port_in(line(Served)),
        Ask = fun() -> [element(3, yucan_client:get(Port, [$/, Name])) || Name <- Names] end,
        Send = fun(Head, Body) ->
            [{Status, _, _}] = yucan_client:exchange(Port, [Head, "\r\nHost: localhost\r\nAuthorization: Bearer a token\r\nContent-Length: ", integer_to_list(length(Body)), "\r\n\r\n", Body]),
            Status
        end,
        [<<"old">>, <<"old">>] = Ask(),
        204 = Send("PUT /a.txt HTTP/1.1", "new"),
        [<<"new">>, <<"old">>] = Ask(),
        201 = Send("POST / HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data; name=file; filename=\"b.txt\"\r\n\r\nnew\r\n--b--\r\n"),
        [<<"new">>, <<"new">>] = Ask()
    after
        stop(Served)
    end.

%% SIGTERM stops the VM. The application stops before yucan, and an upload in progress is still stored.
upload_at_sigterm(Config) ->
    Folder = filename:join(?config(priv_dir, Config), "upload_at_sigterm"),
    File = filename:join(Folder, "a.txt"),
    ok = filelib:ensure_dir(File),
    Served = open(Config, ["-p", "0", "--upload", Folder], [{"YUCAN_UPLOAD_TOKEN", "a token"}]),
    {os_pid, Pid} = erlang:port_info(Served, os_pid),
    try
        Port = port_in(line(Served)),
        Socket = yucan_client:connect(Port),
        ok = gen_tcp:send(Socket, "PUT /a.txt HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a token\r\nContent-Length: 4\r\n\r\nsl"),
        true = beamway_peer:wait_until(fun() -> filelib:wildcard(".a.txt.*.part", Folder) =/= [] end, ?WAIT_MS),
        [] = os:cmd("kill -TERM " ++ integer_to_list(Pid)),
        true = beamway_peer:wait_until(fun() ->
            case gen_tcp:connect({127, 0, 0, 1}, Port, []) of
                {ok, Other} -> gen_tcp:close(Other), false;
                {error, Reason} -> Reason =:= econnrefused
            end
        end, ?WAIT_MS),
        ok = gen_tcp:send(Socket, "ow"),
        {201, _, _} = yucan_client:one(Socket),
        {ok, <<"slow">>} = file:read_file(File),
        {0, _} = run(Served)
    after
        _ = [stop(Served) || erlang:port_info(Served) =/= undefined]
    end.

%% Waits until the file is old enough to be cached, which means that another change would change its times.
settled(File) ->
    true = beamway_peer:wait_until(fun() ->
        {ok, #file_info{ctime = Changed}} = file:read_file_info(File, [{time, posix}]),
        os:system_time(second) - Changed >= 3
    end, ?WAIT_MS),
    ok.

%% RFC 9110, 13.1 and 13.2: a conditional upload replaces no file, or only the version that its client has seen. A rejected upload changes nothing.
upload_conditions(Config) ->
    Folder = filename:join(?config(priv_dir, Config), "upload_conditions"),
    File = filename:join(Folder, "a.txt"),
    ok = filelib:ensure_dir(File),
    ok = file:write_file(File, "old"),
    Time = {{2020, 1, 1}, {12, 0, 0}},
    ok = file:change_time(File, Time),
    Served = open(Config, ["-p", "0", "--upload", Folder], [{"YUCAN_UPLOAD_TOKEN", "a token"}]),
    try
        Port = port_in(line(Served)),
        {200, Headers, <<"old">>} = yucan_client:get(Port, "/a.txt"),
        [Etag, Date] = [proplists:get_value(Name, Headers) || Name <- [<<"etag">>, <<"last-modified">>]],
        Put = fun(Path, Conditions) ->
            [{Status, _, _}] = yucan_client:exchange(Port, ["PUT ", Path, " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a token\r\nContent-Length: 3\r\n",
                                                            [[Condition, "\r\n"] || Condition <- Conditions], "\r\nnew"]),
            Status
        end,
        [{Conditions, 412} = {Conditions, Put("/a.txt", Conditions)}
         || Conditions <- [["If-None-Match: *"], [["If-None-Match: ", Etag]], ["If-Match: \"other\""], [["If-Match: W/", Etag]],
                           ["If-Unmodified-Since: Sun, 06 Nov 1994 08:49:37 GMT"], [["If-Match: ", Etag], "If-None-Match: *"]]],
        {ok, <<"old">>} = file:read_file(File),
        %% No condition matches a file that does not exist.
        [412, 412] = [Put("/b.txt", ["If-Match: " ++ Tags]) || Tags <- ["*", "\"other\""]],
        ["a.txt"] = filelib:wildcard("*", Folder),
        [] = filelib:wildcard(".*.part", Folder),
        201 = Put("/b.txt", ["If-None-Match: *"]),
        %% Other responses do not depend on the conditions.
        [403, 403] = [Put(Path, ["If-Match: \"other\""]) || Path <- ["/no/such", "/.hidden"]],
        [begin
             {Conditions, 204} = {Conditions, Put("/a.txt", Conditions)},
             {ok, <<"new">>} = file:read_file(File),
             ok = file:write_file(File, "old"),
             ok = file:change_time(File, Time)
         end || Conditions <- [[["If-Match: \"other\", ", Etag]], ["If-Match: *"], ["If-None-Match: \"other\""], [["If-Unmodified-Since: ", Date]],
                               [["If-Modified-Since: ", Date]]]],
        %% A client that accepts gzip knows only the tag of the compressed form.
        ok = file:write_file(File, Text = binary:copy(<<"old text\n">>, 1000)),
        ok = file:change_time(File, Time),
        {200, Compressed, _} = yucan_client:get(Port, "/a.txt", [{"Accept-Encoding", "gzip"}]),
        [<<"W/", _/binary>> = Weak, <<"gzip">>] = [proplists:get_value(Name, Compressed) || Name <- [<<"etag">>, <<"content-encoding">>]],
        {304, _, _} = yucan_client:get(Port, "/a.txt", [{"Accept-Encoding", "gzip"}, {"If-None-Match", Weak}]),
        {200, Plain, Text} = yucan_client:get(Port, "/a.txt"),
        Strong = proplists:get_value(<<"etag">>, Plain),
        [{200, _, _} = yucan_client:get(Port, "/a.txt", [{"If-Match", Tag} | Accepts]) || Tag <- [Weak, Strong], Accepts <- [[], [{"Accept-Encoding", "gzip"}]]],
        %% Ranges of the compressed form are not ranges of the file.
        {200, _, Text} = yucan_client:get(Port, "/a.txt", [{"Range", "bytes=0-1"}, {"If-Range", Weak}]),
        412 = Put("/a.txt", [["If-Match: W/", Strong]]),
        204 = Put("/a.txt", [["If-Match: ", Weak]]),
        412 = Put("/a.txt", [["If-Match: ", Weak]]),
        %% This upload began when the file did not exist.
        Slow = yucan_client:connect(Port),
        ok = gen_tcp:send(Slow, "PUT /c.txt HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a token\r\nContent-Length: 4\r\nIf-None-Match: *\r\n\r\nsl"),
        true = beamway_peer:wait_until(fun() -> filelib:wildcard(".c.txt.*.part", Folder) =/= [] end, ?WAIT_MS),
        201 = Put("/c.txt", []),
        ok = gen_tcp:send(Slow, "ow"),
        {412, _, _} = yucan_client:one(Slow),
        {ok, <<"new">>} = file:read_file(filename:join(Folder, "c.txt")),
        %% Of several uploads that complete at the same time, only one creates the file.
        [begin
             Sockets = [yucan_client:connect(Port) || _ <- lists:seq(1, 8)],
             Head = ["PUT /", integer_to_list(Round), ".txt HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a token\r\nContent-Length: 4\r\nIf-None-Match: *\r\n\r\nfas"],
             [ok = gen_tcp:send(Socket, Head) || Socket <- Sockets],
             true = beamway_peer:wait_until(fun() -> length(filelib:wildcard("." ++ integer_to_list(Round) ++ ".txt.*.part", Folder)) =:= 8 end, ?WAIT_MS),
             [ok = gen_tcp:send(Socket, "t") || Socket <- Sockets],
             [201 | Others] = lists:sort([element(1, yucan_client:one(Socket)) || Socket <- Sockets]),
             {Round, [412]} = {Round, lists:usort(Others)},
             [ok = gen_tcp:close(Socket) || Socket <- Sockets]
         end || Round <- lists:seq(1, 50)],
        [] = filelib:wildcard(".*.part", Folder)
    after
        stop(Served)
    end.

%% A single file is served over TLS with a certificate that is created once.
one_file(Config) ->
    {ok, _} = application:ensure_all_started(ssl),
    Data = filename:join(?config(priv_dir, Config), "data"),
    Certificate = fun() ->
        Served = open(Config, ["-p", "0", "--https", filename:join(?config(served, Config), "a.txt")], [{"XDG_DATA_HOME", Data}]),
        try
            {match, [Digits]} = re:run(line(Served), " at https://127\\.0\\.0\\.1:(\\d+)/$", [{capture, all_but_first, list}]),
            {ok, Socket} = yucan_test_server:tls_connect(list_to_integer(Digits), []),
            {ok, Der} = ssl:peercert(Socket),
            ok = ssl:send(Socket, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET /b.txt HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
            Text = all(Socket, <<>>),
            [{_, _} = binary:match(Text, Part) || Part <- [<<"HTTP/1.1 200">>, <<"\r\n\r\ncontent">>, <<"HTTP/1.1 404">>]],
            Der
        after
            stop(Served)
        end
    end,
    Der = Certificate(),
    {true, Der} = {public_key:pkix_verify_hostname(Der, [{dns_id, "localhost"}]), Certificate()},
    File = filename:join([Data, "yucan", "https", "localhost.pem"]),
    %% A user who trusts this certificate does not thereby trust any other. A certificate from an older release, which can sign others, is replaced.
    false = yucan_certificate:may_sign(Der),
    #{cert := Authority, key := Key} = public_key:pkix_test_root_cert("old", [{key, {namedCurve, secp256r1}}, {digest, sha256}]),
    true = yucan_certificate:may_sign(Authority),
    ok = file:write_file(File, public_key:pem_encode([{'Certificate', Authority, not_encrypted}, yucan_certificate:entry(Key)])),
    New = Certificate(),
    {false, true, New} = {yucan_certificate:may_sign(New), New =/= Der, Certificate()},
    {ok, [{_, New, _} | _]} = {ok, public_key:pem_decode(element(2, {ok, _} = file:read_file(File)))},
    {ok, {_, _}} = public_key:pkix_path_validation(New, [New], []),
    {ok, #file_info{mode = Mode}} = file:read_file_info(File),
    0 = Mode band 8#077.

all(Socket, Before) ->
    case ssl:recv(Socket, 0, ?WAIT_MS) of
        {ok, Data} -> all(Socket, <<Before/binary, Data/binary>>);
        {error, closed} -> Before
    end.

%% The paths of a single-page application get its first page, but missing files are reported as missing.
application_paths(Config) ->
    Folder = filename:join(?config(priv_dir, Config), "application"),
    ok = filelib:ensure_dir(filename:join(Folder, "x")),
    ok = file:write_file(filename:join(Folder, "index.html"), "the page"),
    Served = open(Config, ["-p", "0", "--spa", Folder]),
    try
        Port = port_in(line(Served)),
        [{200, _, <<"the page">>} = yucan_client:get(Port, Path) || Path <- ["/", "/users/7", "/users/7?a=b"]],
        [{404, _, _} = yucan_client:get(Port, Path) || Path <- ["/missing.js", "/users/missing.png"]]
    after
        stop(Served)
    end.

%% A failure in a handler is reported on standard error.
crash(Config) ->
    Ebin = yucan_yaws_site:compile(Config, "crash", [{"yucan_cli_crash.erl", "-module(yucan_cli_crash).\n-export([out/1]).\nout(_) -> error(crashed_on_purpose).\n"}]),
    File = yucan_yaws_site:write(Config, "crash.conf", ["ebin_dir = ", Ebin, "\n", yucan_yaws_site:server("h", "appmods = </, yucan_cli_crash>\n")]),
    Errors = filename:join(?config(priv_dir, Config), "errors"),
    Served = open_port({spawn_executable, "/bin/sh"}, [{args, ["-c", "exec \"$0\" \"$1\" 2>\"$2\"", ?config(command, Config), File, Errors]},
                                                       {line, 2000}, exit_status, use_stdio]),
    try
        "yucan: serving " ++ _ = Line = line(Served),
        {500, _, _} = yucan_client:get(port_in(Line), "/"),
        beamway_peer:wait_until(fun() ->
            {ok, Text} = file:read_file(Errors),
            re:run(Text, "the handler failed for GET /: .*crashed_on_purpose", [{capture, none}]) =:= match
        end, 20000)
    after
        stop(Served)
    end.

wrong_words(Config) ->
    [{2, [_]} = run(Config, Words, []) || Words <- [["--port"], ["--port", "x", "."], ["--ip", "here", "."], ["--nothing", "."], [".", "."], ["--header", "no colon", "."],
                                                         ["--header", "A: b\nC: d", "."], ["--header", "a b: c", "."], ["--cache", "soon", "."], ["-p", "65536"]]],
    [{1, [_]} = run(Config, Words, []) || Words <- [["/no/such/folder"], ["--ip", "192.0.2.1", "--port", "0", "."], ["--auth", "/no/such/file", "."]]],
    Open = filename:join(?config(priv_dir, Config), "passwords"),
    ok = file:write_file(Open, "joe:secret\n"),
    ok = file:change_mode(Open, 8#644),
    {1, [Refused]} = run(Config, ["--auth", Open, "."], []),
    {match, _} = re:run(Refused, "others can read this file; chmod 600 it$"),
    %% The help text must fit on one screen.
    {0, Help} = run(Config, ["--help"], []),
    true = length(Help) =< 24 andalso lists:all(fun(Line) -> length(Line) =< 80 end, Help).

%% A single line says what failed, why, and what to do. It contains no Erlang terms.
cannot_serve(Config) ->
    {ok, Taken} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Taken),
    Served = ?config(served, Config),
    [{1, [Expected]} = {element(1, Result), element(2, Result)}
     || {Words, Expected} <- [{["--port", integer_to_list(Port)], lists:concat(["yucan: cannot listen on 127.0.0.1 port ", Port,
                                                                                 ": address already in use; end the program that listens there, or choose another port"])},
                              {["--ip", "192.0.2.1", "--port", "0"], "yucan: cannot listen on 192.0.2.1 port 0: can't assign requested address; "
                               "choose an address of this host (`ip address' shows them)"},
                              {["--port", "0", "--log", "/no/such/log"], "yucan: the access log /no/such/log cannot be opened: no such file or directory"},
                              {["--port", "0", "--watch", "/no/such/folder"], "yucan: --watch /no/such/folder: no such folder"},
                              {["--port", "0", "--https"], "yucan: --https: no folder to keep the certificate in; set HOME or XDG_DATA_HOME"}],
        Result <- [run(Config, Words ++ [Served], [{"HOME", false}, {"XDG_DATA_HOME", false}])]],
    {1, ["yucan: /dev/null: a folder or a regular file is expected, not a device, FIFO or socket"]} = run(Config, ["/dev/null"], []),
    {2, ["yucan: an argument is not valid UTF-8; see: yucan --help"]} = run(Config, [<<"/dev/\xff">>], []),
    {1, ["yucan: /dev/null/x: not a directory"]} = run(Config, ["/dev/null/x"], []),
    gen_tcp:close(Taken).

%% A listener with TLS is announced as https.
announced(Config) ->
    Folder = filename:join(?config(priv_dir, Config), "announced"),
    ok = filelib:ensure_dir(filename:join(Folder, "x")),
    #{certfile := Certificate, keyfile := Key} = yucan_test_server:certificate("localhost", Folder),
    File = filename:join(Folder, "site.conf"),
    ok = file:write_file(File, ["<server localhost>\nport = 0\ndocroot = ", ?config(served, Config), "\n<ssl>\ncertfile = ", Certificate, "\nkeyfile = ", Key, "\n</ssl>\n</server>\n"]),
    Served = open(Config, [File]),
    try
        {match, _} = re:run(line(Served), "^yucan: serving .* at https://127\\.0\\.0\\.1:\\d+/$")
    after
        stop(Served)
    end.

%% The command that starts a daemon immediately reports why the daemon cannot start, and the next start does not report it again.
daemon_cannot_serve(Config) ->
    Environment = environment(Config),
    {1, ["yucan: the access log /no/such/log cannot be opened: no such file or directory"]} =
        run(Config, ["--daemon", "three", "--port", "0", "--log", "/no/such/log", ?config(served, Config)], Environment),
    {2, ["yucan: --port x: 0 to 65535 is expected; see: yucan --help"]} = run(Config, ["--daemon", "three", "--port", "x", "."], Environment),
    {0, ["yucan: serving " ++ _]} = run(Config, ["--daemon", "three", "--port", "0", ?config(served, Config)], Environment),
    {0, ["yucan: stopping"]} = run(Config, ["--stop", "three"], Environment).

%% The program is started with closed standard descriptors, as services or cron may do. No other file is opened under their numbers.
closed_descriptors(Config) ->
    [begin
         {ok, Free} = gen_tcp:listen(0, [{reuseaddr, true}]),
         {ok, Port} = inet:port(Free),
         ok = gen_tcp:close(Free),
         Words = [?config(command, Config), "--port", integer_to_list(Port), ?config(served, Config)],
         Served = open_port({spawn_executable, "/bin/sh"}, [{args, ["-c", "exec \"$@\" " ++ Closed, "sh" | Words]}, exit_status]),
         try
             {200, _, <<"content">>} = served(Port, erlang:monotonic_time(millisecond) + ?WAIT_MS)
         after
             stop(Served)
         end
     end || Closed <- ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"]].

%% If two versions are installed, the newer one is started. Versions are compared by number: 0.10 comes after 0.9.
newest_version(Config) ->
    Root = filename:join(?config(priv_dir, Config), "installed"),
    Link = fun(Target, Name) -> File = filename:join(Root, Name), ok = filelib:ensure_dir(File), ok = file:make_symlink(Target, File) end,
    [ok = filelib:ensure_dir(filename:join([Root, "lib/beamway", Older, "ebin/x"])) || Older <- ["yucan-0.9.0", "yucan_yaws-0.9.0", "yucan_cli-0.9.0"]],
    [Link(code:lib_dir(Application), lists:concat(["lib/beamway/", Application, "-0.10.0"])) || Application <- [yucan, yucan_yaws, yucan_cli]],
    ok = filelib:ensure_dir(filename:join(Root, "bin/yucan")),
    {ok, _} = file:copy(?config(command, Config), filename:join(Root, "bin/yucan")),
    {0, ["yucan " ++ _]} = run(open_port({spawn_executable, "/bin/sh"}, [{args, [filename:join(Root, "bin/yucan"), "--version"]}, {line, 2000}, exit_status, stderr_to_stdout])).

served(Port, Deadline) ->
    try yucan_client:get(Port, "/a.txt")
    catch _:_ ->
        true = erlang:monotonic_time(millisecond) < Deadline,
        timer:sleep(20),
        served(Port, Deadline)
    end.

environment(Config) -> [{"XDG_RUNTIME_DIR", ?config(runtime, Config)}].

%% A daemon is started, queried, reloaded and stopped.
daemon(Config) ->
    Environment = environment(Config),
    {0, [Line]} = run(Config, ["--daemon", "one", "--port", "0", ?config(served, Config)], Environment),
    Port = port_in(Line),
    {200, _, <<"content">>} = yucan_client:get(Port, "/a.txt"),
    {1, ["yucan: a daemon of this name runs already"]} = run(Config, ["--daemon", "one", "--port", "0", "."], Environment),
    {0, ["yucan: reloaded"]} = run(Config, ["--reload", "one"], Environment),
    {200, _, <<"content">>} = yucan_client:get(Port, "/a.txt"),
    {0, ["yucan: serving " ++ _]} = run(Config, ["--status", "one"], Environment),
    {0, ["yucan: stopping"]} = run(Config, ["--stop", "one"], Environment),
    gone(Config, Environment, erlang:monotonic_time(millisecond) + ?WAIT_MS),
    {2, _} = run(Config, ["--status", "../one"], Environment),
    %% If the user has forgotten the name, the directory is not mistaken for it, and no files are left in it.
    {2, [_]} = run(Config, ["--daemon", ?config(served, Config), "--port", "0"], Environment),
    {ok, ["a.txt"]} = file:list_dir(?config(served, Config)),
    %% A query with an unknown name does not leave a directory behind either.
    [{1, ["yucan: no daemon of this name runs"]} = run(Config, [Word, "none"], Environment) || Word <- ["--status", "--attach"]],
    [] = filelib:wildcard(filename:join([proplists:get_value("XDG_RUNTIME_DIR", Environment), "*", "none"])),
    %% Another user may have created a link to one of this user's directories in place of the command's directories.
    [Runtime, Other] = [filename:join(?config(priv_dir, Config), Name) || Name <- ["linked", "other"]],
    [ok = file:make_dir(Folder) || Folder <- [Runtime, Other]],
    ok = file:change_mode(Other, 8#755),
    ok = file:make_symlink(Other, filename:join(Runtime, "yucan-" ++ string:trim(os:cmd("id -u")))),
    {1, ["yucan: " ++ Refused]} = run(Config, ["--status", "one"], [{"XDG_RUNTIME_DIR", Runtime}]),
    {match, _} = re:run(Refused, "is a link"),
    {ok, #file_info{mode = Mode}} = file:read_file_info(Other),
    8#755 = Mode band 8#777,
    {ok, []} = file:list_dir(Other).

gone(Config, Environment, Deadline) ->
    case run(Config, ["--status", "one"], Environment) of
        {1, ["yucan: no daemon of this name runs"]} -> ok;
        _ -> true = erlang:monotonic_time(millisecond) < Deadline, gone(Config, Environment, Deadline)
    end.

%% A daemon waits while clients use all of its file descriptors. It answers pending commands once descriptors become available.
daemon_without_descriptors(Config) ->
    Folder = ?config(runtime, Config),
    Served = open_port({spawn_executable, "/bin/sh"}, [{args, ["-c", "ulimit -n 64; exec \"$@\" 2>/dev/null", "sh", ?config(command, Config), "--port", "0", ?config(served, Config)]},
                                                       {env, [{"YUCAN_CONTROL", Folder}]}, {line, 2000}, exit_status]),
    try
        Port = port_in(line(Served)),
        true = beamway_peer:wait_until(fun() -> element(1, yucan_control:ask(Folder, "status")) =:= ok end, ?WAIT_MS),
        Clients = [yucan_client:connect(Port) || _ <- lists:seq(1, 64)],
        {os_pid, Pid} = erlang:port_info(Served, os_pid),
        true = beamway_peer:wait_until(fun() -> length(filelib:wildcard(lists:concat(["/proc/", Pid, "/fd/*"]))) =:= 64 end, ?WAIT_MS),
        {ok, Socket} = gen_tcp:connect({local, filename:join(Folder, "control")}, 0, [binary, {active, false}, {packet, line}]),
        ok = gen_tcp:send(Socket, "status\n"),
        {error, timeout} = gen_tcp:recv(Socket, 0, 1000),
        [ok = gen_tcp:close(Client) || Client <- Clients],
        {ok, <<"ok serving ", _/binary>>} = gen_tcp:recv(Socket, 0, ?WAIT_MS)
    after
        stop(Served)
    end.

%% A command that fails does not end the process that handles the next command.
failed_command(Config) ->
    Folder = ?config(runtime, Config),
    {ok, Pid} = yucan_control:start_link(Folder, fun(<<"fail">>) -> error(failed_on_purpose); (Word) -> Word end),
    {error, closed} = yucan_control:ask(Folder, "fail"),
    {ok, <<"next">>} = yucan_control:ask(Folder, "next"),
    true = unlink(Pid),
    exit(Pid, kill).

%% Uses the shell of a daemon, on a terminal that `script' provides. Watching can be switched off and on there, and Ctrl-D leaves the daemon running.
attached(Config) ->
    Environment = environment(Config),
    {Folder, Write} = watched(Config, "attached"),
    {0, [_]} = run(Config, ["--daemon", "two", "--port", "0", "--watch", Folder, ?config(served, Config)], Environment),
    Shell = open_port({spawn_executable, "/usr/bin/script"}, [{args, ["-qec", ?config(command, Config) ++ " --attach two", "/dev/null"]}, {env, Environment},
                                                               binary, exit_status, stderr_to_stdout]),
    Rest = typed(Shell, "1234 + 4321.\n", "5555", <<>>),
    Off = typed(Shell, "{off, yucan_watch:off()}.\n", "{off,ok}", Rest),
    Write("-module(yucan_watched).\n-export([f/0]).\nf() -> 10203.\n", 1),
    %% This is longer than the interval between two checks.
    Not = typed(Shell, "timer:sleep(1500), {loaded, code:is_loaded(yucan_watched)}.\n", "{loaded,false}", Off),
    On = typed(Shell, "{on, yucan_watch:on()}.\n", "{on,ok}", Not),
    New = typed(Shell, "", "Recompiled: ", On),
    _ = typed(Shell, "yucan_watched:f() + 1.\n", "10204", New),
    true = port_command(Shell, <<4>>),
    receive {Shell, {exit_status, _}} -> ok after ?WAIT_MS -> error(does_not_leave) end,
    {0, ["yucan: serving " ++ _]} = run(Config, ["--status", "two"], Environment),
    {0, ["yucan: stopping"]} = run(Config, ["--stop", "two"], Environment).

%% Types a text and waits for a response. Returns the output after it.
typed(Shell, Text, Answer, Before) ->
    true = port_command(Shell, Text),
    said(Shell, list_to_binary(Answer), Before).

said(Shell, Answer, Before) ->
    case binary:split(Before, Answer) of
        [_, Behind] -> Behind;
        [_] ->
            receive
                {Shell, {data, Data}} -> said(Shell, Answer, <<Before/binary, Data/binary>>);
                {Shell, {exit_status, Status}} -> error({shell_ended, Status, Before})
            after ?WAIT_MS -> error({not_said, Answer, Before})
            end
    end.

%% Returns a directory, and a function that writes a module into it.
watched(Config, Name) ->
    Folder = filename:join(?config(priv_dir, Config), Name),
    ok = filelib:ensure_dir(filename:join(Folder, "x")),
    {Folder, fun(Text, Second) ->
        %% The file is created under a different name and renamed, so a check in between does not find an incomplete file.
        File = filename:join(Folder, "yucan_watched.erl"),
        ok = file:write_file(File ++ ".new", Text),
        ok = file:change_time(File ++ ".new", {{2030, 1, 1}, {0, 0, Second}}),
        ok = file:rename(File ++ ".new", File)
    end}.

%% An error is reported with its line, and later the fix is reported.
watch(Config) ->
    {Folder, Write} = watched(Config, "watched"),
    Served = open(Config, ["--port", "0", "--watch", Folder, ?config(served, Config)]),
    try
        "yucan: serving " ++ _ = line(Served),
        Write("-module(yucan_watched).\n-export([f/0]).\nf() -> 1.\n", 1),
        "Recompiled: " ++ _ = line(Served),
        Write("-module(yucan_watched).\n-export([f/0]).\nf() -> unbound(X).\n", 2),
        {match, _} = re:run(line(Served), "^Error: .*yucan_watched.erl:3: "),
        {match, _} = re:run(line(Served), "^Error: .*yucan_watched.erl:3: "),
        Write("-module(yucan_watched).\n-export([f/0]).\nf() -> 2.\n", 3),
        "Fixed! " ++ _ = line(Served)
    after
        stop(Served)
    end.
