%% SPDX-License-Identifier: Apache-2.0
%% @doc The control socket of a daemon. `yucan --reload NAME' and similar commands use it: the command and the reply are one line each. It is a Unix
%% socket in a directory that only the daemon's user can enter, so it cannot be reached over a network.
-module(yucan_control).

-export([start_link/2, ask/2]).
-export([init/2]).

-define(WAIT_MS, 60000).
-define(RETRY_MS, 100).

%% @doc Listens in the directory. `Answer' is called with each command and returns the reply.
-spec start_link(Folder :: file:filename(), fun((binary()) -> iodata())) -> {ok, pid()} | {error, term()}.
start_link(Folder, Answer) -> proc_lib:start_link(?MODULE, init, [file(Folder), Answer]).

file(Folder) -> filename:join(Folder, "control").

%% @private
-spec init(file:filename(), fun((binary()) -> iodata())) -> no_return().
init(File, Answer) ->
    _ = file:delete(File),
    case gen_tcp:listen(0, [{ifaddr, {local, File}}, binary, {active, false}, {packet, line}]) of
        {ok, Listening} ->
            proc_lib:init_ack({ok, self()}),
            serve(Listening, Answer);
        {error, Reason} ->
            proc_lib:init_ack({error, {Reason, File}}),
            exit(normal)
    end.

%% Serves one connection at a time. If there are no free file descriptors, callers wait in the backlog.
serve(Listening, Answer) ->
    case gen_tcp:accept(Listening) of
        {ok, Socket} ->
            %% The answer is computed in a separate process, so that a failure, for example because
            %% there are no free file descriptors, closes only this connection.
            {_, Monitor} = spawn_monitor(fun() -> answer(Socket, Answer) end),
            receive {'DOWN', Monitor, process, _, _} -> ok end,
            _ = gen_tcp:close(Socket),
            serve(Listening, Answer);
        {error, Reason} when Reason =/= closed ->
            receive after ?RETRY_MS -> serve(Listening, Answer) end
    end.

answer(Socket, Answer) ->
    case gen_tcp:recv(Socket, 0, 5000) of
        {ok, Line} -> gen_tcp:send(Socket, [Answer(string:trim(Line)), $\n]);
        Error -> Error
    end.

%% @doc Sends a command to the daemon with this directory, and returns its reply.
-spec ask(Folder :: file:filename(), Word :: iodata()) -> {ok, binary()} | {error, inet:posix() | closed | timeout}.
ask(Folder, Word) ->
    case gen_tcp:connect({local, file(Folder)}, 0, [binary, {active, false}, {packet, line}], 5000) of
        {ok, Socket} ->
            _ = gen_tcp:send(Socket, [Word, $\n]),
            Answer = gen_tcp:recv(Socket, 0, ?WAIT_MS),
            _ = gen_tcp:close(Socket),
            case Answer of
                {ok, Line} -> {ok, string:trim(Line)};
                Error -> Error
            end;
        Error -> Error
    end.
