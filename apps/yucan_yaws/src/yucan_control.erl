%% SPDX-License-Identifier: Apache-2.0
%% @doc The control socket of a daemon: `yucan --reload NAME' and the like speak to it, a line each way. It stands in a folder that
%% only the daemon's user can enter; nothing of it is on a network.
-module(yucan_control).

-export([start_link/2, ask/2]).
-export([init/2]).

-define(WAIT_MS, 60000).
-define(RETRY_MS, 100).

%% @doc Listens in the folder; `Answer' gets each word and says what to reply.
-spec start_link(Folder :: file:filename(), fun((binary()) -> iodata())) -> {ok, pid()} | {error, term()}.
start_link(Folder, Answer) ->
    proc_lib:start_link(?MODULE, init, [file(Folder), Answer]).

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

%% One at a time. No timeout in accept: waiting is all that it does. Whoever asks while no descriptor is left waits in the backlog.
serve(Listening, Answer) ->
    case gen_tcp:accept(Listening) of
        {ok, Socket} ->
            %% In a process of its own: one that fails, as for want of descriptors, is the end of this connection alone.
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

%% @doc Asks the daemon of a folder.
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
