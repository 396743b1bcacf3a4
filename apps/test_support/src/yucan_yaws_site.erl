%% SPDX-License-Identifier: Apache-2.0
%% @doc Serves Yaws sites for the suites: a configuration with its files in the suite's private directory, on any free port.
-module(yucan_yaws_site).

-export([start/3, start_text/3, reload/2, stop/0, example/1, nitrogen/1, server/2, write/3, compile/3, receive_until/2, folder/1]).

-define(NAME, yucan_yaws_test).

%% Starts a single server `h' with these directives, and files below the configuration's directory.
start(Config, Directives, Files) -> start_text(Config, server("h", Directives), Files).

start_text(Config, Text, Files) ->
    _ = [write(Config, Name, Content) || {Name, Content} <- Files],
    serve(write(Config, "site.conf", Text)).

serve(File) ->
    {ok, Options} = yucan_yaws_config:load(File),
    {ok, _} = yucan:start(Options#{name => ?NAME}),
    yucan:port(?NAME).

%% Reloads the same server with different directives.
reload(Config, Directives) ->
    {ok, Options} = yucan_yaws_config:load(write(Config, "site.conf", server("h", Directives))),
    yucan:reload(?NAME, Options#{name => ?NAME}).

stop() -> yucan:stop(?NAME).

server(Name, Directives) -> ["<server ", Name, ">\nport = 0\nlisten = 127.0.0.1\n", Directives, "</server>\n"].

folder(Config) -> filename:join(proplists:get_value(priv_dir, Config), "site").

write(Config, Name, Content) ->
    File = filename:join(folder(Config), Name),
    ok = filelib:ensure_dir(File),
    ok = file:write_file(File, Content),
    File.

%% Compiles modules into a separate directory, which it returns.
compile(Config, Folder, Sources) ->
    Files = [write(Config, filename:join([Folder, "src", Name]), Text) || {Name, Text} <- Sources],
    Out = filename:join([folder(Config), Folder, "ebin"]),
    ok = filelib:ensure_dir(filename:join(Out, "x")),
    _ = [{ok, _} = compile:file(File, [debug_info, report, {outdir, Out}]) || File <- Files],
    Out.

%% Starts examples/yaws-site on a different port, with paths to this directory in its two modules.
example(Config) ->
    Example = example_folder("yaws-site"),
    Here = folder(Config),
    {ok, Text} = file:read_file(filename:join(Example, "yucan.conf")),
    Paths = [{"/usr/share/trac/cgi-bin", filename:join(Here, "cgi-bin")}, {"/docs/", filename:join(Here, "docs") ++ "/"}],
    Sources = [{filename:basename(File), replaced(File, Paths)} || File <- filelib:wildcard(filename:join(Example, "src/*.erl"))],
    Ebin = compile(Config, "yaws-site", Sources),
    _ = [write(Config, lists:nthtail(length(Example) + 1, File), element(2, {ok, _} = file:read_file(File)))
     || File <- filelib:wildcard(filename:join(Example, "docs/*/*"))],
    Script = write(Config, "cgi-bin/trac.cgi", script()),
    ok = file:change_mode(Script, 8#755),
    on_free_port(Config, string:replace(Text, "ebin_dir = ebin", "ebin_dir = " ++ Ebin), 10).

%% Starts examples/nitrogen on a different port.
nitrogen(Config) ->
    Example = example_folder("nitrogen"),
    _ = [write(Config, lists:nthtail(length(Example) + 1, File), element(2, {ok, _} = file:read_file(File)))
         || Part <- ["include/*", "static/js/*", "templates/*"], File <- filelib:wildcard(filename:join(Example, Part))],
    _ = [compile(Config, Folder, [{filename:basename(File), element(2, {ok, _} = file:read_file(File))}
                                  || File <- filelib:wildcard(filename:join([Example, Folder, "src", "*.erl"]))])
         || Folder <- [".", "one", "two"]],
    {ok, Text} = file:read_file(filename:join(Example, "yucan.conf")),
    on_free_port(Config, Text, 10).

example_folder(Name) -> test_support:file(filename:join("examples", Name)).

%% The configuration contains its port, also in redirects, so the port must be chosen first. If another program takes it in the meantime, a different
%% port is tried.
on_free_port(Config, Text, Attempts) ->
    Port = test_support:free_port(),
    {ok, Options} = yucan_yaws_config:load(write(Config, "yucan.conf", string:replace(Text, "8080", integer_to_list(Port), all))),
    case yucan:start(Options#{name => ?NAME}) of
        {ok, _} -> Port;
        {error, _} when Attempts > 1 -> on_free_port(Config, Text, Attempts - 1)
    end.

replaced(File, Paths) ->
    {ok, Text} = file:read_file(File),
    lists:foldl(fun({Old, New}, T) -> string:replace(T, Old, New, all) end, Text, Paths).

script() ->
    "#!/usr/bin/env python3\n"
        "import os, sys\n"
        "print('Content-Type: text/plain')\n"
        "print()\n"
        "e = os.environ\n"
        "print('script=' + e['SCRIPT_NAME'], 'info=' + e['PATH_INFO'], 'env=' + e['TRAC_ENV'], 'uri=' + e['REQUEST_URI'],\n"
        "      'query=' + e['QUERY_STRING'], 'body=' + sys.stdin.read())\n".

receive_until(Socket, End) -> receive_until(Socket, End, <<>>).

receive_until(Socket, End, Done) ->
    case binary:match(Done, End) of
        nomatch ->
            {ok, Data} = gen_tcp:recv(Socket, 1, 10000 * beamway_runner:slowness()),
            receive_until(Socket, End, <<Done/binary, Data/binary>>);
        _ -> Done
    end.
