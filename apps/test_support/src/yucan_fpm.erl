%% SPDX-License-Identifier: Apache-2.0
%% @doc Starts php-fpm for the suites that run where it is installed. It runs in its own directory, and listens on a unix socket and a loopback
%% port. It has few children, so that waiting requests can be observed.
-module(yucan_fpm).

-export([start/1, stop/1, restart/1, children/0, run/2, end_program/1]).

%% How long php-fpm may take until it listens, in tenths of a second.
-define(TENTHS, 150).

-define(PROGRAM, "/usr/sbin/php-fpm8.2").
-define(CHILDREN, 3).

%% Returns the number of processes in each of php-fpm's two pools.
children() -> ?CHILDREN.

%% Starts php-fpm. Returns the argument for stop/1: #{socket, tcp, ...}.
start(Folder) ->
    ok = filelib:ensure_dir(filename:join(Folder, "x")),
    Tcp = test_support:free_port(),
    %% A socket name may have at most 107 bytes, but the directory of a case is often longer.
    Socket = lists:concat(["/tmp/yucan-fpm-", Tcp, ".sock"]),
    File = filename:join(Folder, "fpm.conf"),
    ok = file:write_file(File, [["[global]\nerror_log = ", Folder, "/fpm.log\ndaemonize = no\n"], pool("unix", Socket),
                                pool("tcp", ["127.0.0.1:", integer_to_list(Tcp)])]),
    restart(#{socket => Socket, tcp => Tcp, file => File}).

pool(Name, Listen) ->
    ["[", Name, "]\nuser = root\ngroup = root\nlisten = ", Listen, "\nlisten.mode = 0600\npm = static\npm.max_children = ", integer_to_list(?CHILDREN),
     "\npm.status_path = /fpm_status.php\ncatch_workers_output = yes\n"
     "php_admin_value[post_max_size] = 64M\nphp_admin_value[upload_max_filesize] = 64M\nphp_admin_value[error_log] = /dev/null\n"].

restart(#{file := File, tcp := Tcp, socket := Socket} = Fpm) ->
    Program = run(?PROGRAM, ["--nodaemonize", "--allow-to-run-as-root", "--fpm-config", File]),
    ok = await(fun() ->
                       lists:all(fun({Address, Port}) ->
                                         case gen_tcp:connect(Address, Port, []) of
                                             {ok, S} -> gen_tcp:close(S) =:= ok;
                                             {error, _} -> false
                                         end
                                 end, [{{127, 0, 0, 1}, Tcp}, {{local, Socket}, 0}])
               end, ?TENTHS * beamway_runner:slowness()),
    Fpm#{program => Program}.

stop(#{program := Program}) -> end_program(Program).

%% Starts a program that belongs to the calling process and writes to the same output as the run. It exits with the node, even if a failed case
%% has left it running.
run(Program, Arguments) ->
    Port = open_port({spawn_executable, os:find_executable("setpriv")}, [{args, ["--pdeathsig", "TERM", Program | Arguments]}, exit_status, nouse_stdio]),
    {os_pid, OsPid} = erlang:port_info(Port, os_pid),
    {Port, OsPid}.

end_program({Port, OsPid}) ->
    _ = os:cmd("kill -TERM " ++ integer_to_list(OsPid)),
    receive
        {Port, {exit_status, _}} -> ok
    after 30000 ->
        _ = os:cmd("kill -KILL " ++ integer_to_list(OsPid)),
        receive {Port, {exit_status, _}} -> ok after 10000 -> error({does_not_end, OsPid}) end
    end.

await(_, 0) -> error(php_fpm_does_not_listen);
await(Condition, Left) ->
    case Condition() of
        true -> ok;
        false -> receive after 100 -> await(Condition, Left - 1) end
    end.
