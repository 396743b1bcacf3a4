%% SPDX-License-Identifier: Apache-2.0
%% @doc Functions for the suites of all applications: files in the checkout, free ports, the output of programs, and the requirements of a
%% suite.
-module(test_support).

-export([checkout/0, file/1, has_ipv6/0, free_port/0, until_ended/2, until_line/3, guide/3, put_hostile/3, with_tun/1]).

%% @doc Returns the directory of the checkout.
-spec checkout() -> file:filename().
checkout() ->
    lists:foldl(fun(_, File) -> filename:dirname(File) end, filename:absname(code:which(?MODULE)), [ebin, test_support, apps, checkout]).

%% @doc Returns the full path of a file, which is given by its path in the checkout.
-spec file(file:filename()) -> file:filename().
file(Path) -> filename:join(checkout(), Path).

%% @doc Returns whether this host has the IPv6 loopback address.
-spec has_ipv6() -> boolean().
has_ipv6() ->
    case gen_tcp:listen(0, [inet6, {ip, {0, 0, 0, 0, 0, 0, 0, 1}}]) of
        {ok, Listen} -> gen_tcp:close(Listen) =:= ok;
        {error, _} -> false
    end.

%% @doc Puts modules with these names into a directory. If a program loads one of them, the file `Ran' is created.
-spec put_hostile([module()], Folder :: file:filename(), Ran :: file:filename()) -> ok.
put_hostile(Modules, Folder, Ran) ->
    ok = file:make_dir(Folder),
    lists:foreach(fun(Module) ->
                          Lines = [["-module(", atom_to_list(Module), ")."], "-on_load(run/0).", io_lib:format("run() -> file:write_file(~p, \"ran\").", [Ran])],
                          {ok, Module, Code} = compile:forms(lists:map(fun form/1, Lines), [nowarn_unused_function]),
                          ok = file:write_file(filename:join(Folder, lists:concat([Module, ".beam"])), Code)
                  end, Modules).

form(Line) ->
    {ok, Tokens, _} = erl_scan:string(lists:flatten(Line)),
    {ok, Form} = erl_parse:parse_form(Tokens),
    Form.

%% @doc Returns a port on which nothing listens at the moment.
-spec free_port() -> inet:port_number().
free_port() ->
    {ok, Socket} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Socket),
    ok = gen_tcp:close(Socket),
    Port.

%% @doc Returns the exit status of a port's program, and everything that it prints until it exits, as lines if the port delivers lines. Fails if the
%% program does not print anything for this long.
-spec until_ended(port(), SilentMs :: timeout()) -> {Status :: non_neg_integer(), Said :: [string() | binary()]}.
until_ended(Port, SilentMs) -> until_ended(Port, SilentMs, []).

until_ended(Port, SilentMs, Said) ->
    receive
        {Port, {data, {_, Line}}} -> until_ended(Port, SilentMs, [Line | Said]);
        {Port, {data, Data}} -> until_ended(Port, SilentMs, [Data | Said]);
        {Port, {exit_status, Status}} -> {Status, lists:reverse(Said)}
    after SilentMs -> error({no_end, lists:reverse(Said)})
    end.

%% @doc Waits for a line that matches, on a port that delivers lines, and returns what the groups of the pattern have captured. Fails if the
%% program exits, or does not print anything for this long.
-spec until_line(port(), Pattern :: iodata(), SilentMs :: timeout()) -> [binary()].
until_line(Port, Pattern, SilentMs) -> until_line(Port, Pattern, SilentMs, []).

until_line(Port, Pattern, SilentMs, Others) ->
    receive
        {Port, {data, {_, Line}}} ->
            case re:run(Line, Pattern, [{capture, all, binary}]) of
                {match, [_ | Found]} -> Found;
                nomatch -> until_line(Port, Pattern, SilentMs, [Line | Others])
            end;
        {Port, {exit_status, Status}} -> error({ended, Status, lists:reverse(Others)})
    after SilentMs -> error({no_such_line, Pattern, lists:reverse(Others)})
    end.

%% @doc Runs all shell blocks of a page in `docs/guide' in the checkout, in order and in a single
%% bash, and returns the lines that they print, including the commands. If a command fails, bash
%% exits and the caller fails. The script and the log are stored in the directory.
-spec guide(Page :: string(), Folder :: file:filename(), TimeoutMs :: pos_integer()) -> [string()].
guide(Page, Folder, TimeoutMs) ->
    {ok, Text} = file:read_file(file("docs/guide/" ++ Page)),
    {match, Blocks} = re:run(Text, "^```sh\n(.*?)^```", [global, multiline, dotall, {capture, all_but_first, binary}]),
    true = length(Blocks) >= 5,
    Script = filename:join(Folder, "guide.sh"),
    ok = file:write_file(Script, ["set -eux\ncd ", checkout(), "\n" | Blocks]),
    {Status, Lines} = beamway_bench_tools:run("/bin/bash", [Script], TimeoutMs),
    ok = file:write_file(Script ++ ".log", unicode:characters_to_binary(Lines)),
    Status =:= 0 orelse error({guide, Page, Status, lists:nthtail(max(0, length(Lines) - 20), Lines)}),
    Lines.

%% @doc Returns the result of `init_per_suite' for suites whose namespaces are joined by TUN devices (beamway_path).
-spec with_tun(Config) -> Config | {skip, term()}.
with_tun(Config) ->
    case {os:cmd("id -u"), filelib:last_modified("/dev/net/tun")} of
        {"0\n", 0} -> {skip, "no /dev/net/tun here"};
        {"0\n", _} -> Config;
        _ -> {skip, {rights, "needs root to make network namespaces"}}
    end.
