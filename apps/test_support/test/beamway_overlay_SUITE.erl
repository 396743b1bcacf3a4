%% SPDX-License-Identifier: Apache-2.0
%% @doc `scripts/in-overlay' runs a command as if it were alone on a copy of this system, and leaves nothing behind except what the command
%% wrote to the checkout. Installing packages needs a network, so `make test-rabbitmq' tests that.
-module(beamway_overlay_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([exit_code/1, files/1, processes/1, services/1, loopback/1, ended_from_outside/1, wrong_words/1]).

suite() -> [{timetrap, {minutes, 2}}].

all() -> [exit_code, files, processes, services, loopback, ended_from_outside, wrong_words].

init_per_suite(Config) ->
    case {os:cmd("id -u"), run(["true"])} of
        {"0\n", {0, _}} -> Config;
        {"0\n", {125, Why}} -> {skip, {rights, Why}};
        _ -> {skip, {rights, "needs root for an overlay of the root file system"}}
    end.

end_per_suite(_Config) -> ok.

%% The path is absolute, because Common Test changes the working directory.
run(Words) ->
    beamway_bench_tools:run(filename:join([test_support:checkout(), "scripts", "in-overlay"]), Words, 60000).

exit_code(_Config) ->
    [{Code, []} = run(["--", "sh", "-c", "exit " ++ integer_to_list(Code)]) || Code <- [0, 1, 7, 125]],
    {127, [_ | _]} = run(["/no/such/command"]),
    ok.

%% The command can write to the root file system without changing the real one, but changes to the checkout persist.
files(_Config) ->
    Folder = beamway_peer:new_folder("beamway_overlay"),
    Unique = filename:basename(Folder),
    Kept = filename:join([test_support:checkout(), "build", Unique]),
    Gone = ["/etc/" ++ Unique, "/usr/bin/" ++ Unique, filename:join(Folder, "gone")],
    Removed = filename:join(Folder, "removed"),
    ok = file:write_file(Removed, "mine"),
    {0, []} = run(["sh", "-c", "rm \"$1\" && shift && for file; do echo text >\"$file\" || exit; done", "sh", Removed, Kept | Gone]),
    {ok, <<"mine">>} = file:read_file(Removed),
    {ok, <<"text\n">>} = file:read_file(Kept),
    ok = file:delete(Kept),
    [] = [File || File <- Gone, filelib:is_file(File)],
    file:del_dir_r(Folder).

%% A daemon that the command leaves running is killed when the command exits.
processes(_Config) ->
    Seconds = integer_to_list(100000 + rand:uniform(100000)),
    {0, ["1\n" | _]} = run(["sh", "-c", "setsid sleep " ++ Seconds ++ " >/dev/null 2>&1 & ps -o pid= -p 1 | tr -d ' '"]),
    gone = await_gone("sleep\0" ++ Seconds ++ "\0", 50).

await_gone(Words, Tries) ->
    Files = filelib:wildcard("/proc/[0-9]*/cmdline"),
    case [File || File <- Files, {ok, list_to_binary(Words)} =:= file:read_file(File)] of
        [] -> gone;
        _ when Tries > 0 -> receive after 100 -> await_gone(Words, Tries - 1) end
    end.

%% Package scripts call this program before they start a service.
services(_Config) ->
    {101, []} = run(["/usr/sbin/policy-rc.d", "any", "start"]),
    {0, ["lock\n"]} = run(["ls", "/run"]),
    ok.

loopback(_Config) ->
    {0, [Line]} = run(["--loopback", "ip", "-brief", "address"]),
    {match, _} = re:run(Line, "^lo .*127\\.0\\.0\\.1/8"),
    ok.

%% When the script is terminated, everything that it started is terminated as well.
ended_from_outside(_Config) ->
    Seconds = integer_to_list(200000 + rand:uniform(100000)),
    Port = beamway_bench_tools:open(filename:join([test_support:checkout(), "scripts", "in-overlay"]),
                                    ["sh", "-c", "echo begun; sleep " ++ Seconds]),
    {line, "begun"} = beamway_bench_tools:line(Port, 60000),
    {ok, OsPid} = beamway_bench_tools:os_pid(Port),
    [] = os:cmd("kill -TERM " ++ integer_to_list(OsPid)),
    {ended, 143} = beamway_bench_tools:line(Port, 60000),
    gone = await_gone("sleep\0" ++ Seconds ++ "\0", 50).

wrong_words(_Config) ->
    [{2, [_ | _]} = run(Words) || Words <- [[], ["--"], ["--unknown", "true"], ["--packages"]]],
    {0, [_ | _]} = run(["--help"]),
    ok.
