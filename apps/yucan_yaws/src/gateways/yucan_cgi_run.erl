%% SPDX-License-Identifier: Apache-2.0
%% @doc Runs a CGI script, and ensures that none of its processes survive. The script is a source of bytes for {@link yucan_gateway}.
%%
%% The script gets only the given environment variables, and the request body as its standard input,
%% followed by end of file. A shell redirects the body from a file, because a port cannot close only
%% its input side. The script shares the server's standard error.
%%
%% The runtime makes each program the leader of a process group. When the script exits or is told to stop, or when its
%% reader exits, the rest of that group is killed. While its reader is slow, the group is suspended (SIGSTOP), because a
%% port has no flow control for the data that it reads. Each script has an Erlang process, which exits together with its
%% reader. A shell that was started before the script sends the signals, because later there may be no free file
%% descriptor with which to start a shell. When this shell reaches the end of its input, it kills the group.
-module(yucan_cgi_run).
-behaviour(gen_server).

-export([open/1, read/2, close/1, running/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).
-export_type([source/0, script/0]).

%% If more bytes than this are queued, the group is suspended. It continues when only a quarter of them is left.
-define(HIGH_BYTES, 1048576).
%% The interval at which this module checks whether the script itself has exited while another process keeps its output open. The port reports the
%% exit only when all processes have closed the output.
-define(LOOK_MS, 250).
-define(CALL_MS, 10000).

-type script() :: #{program := file:filename_all(), arguments := [file:filename_all()], folder := file:filename_all(),
                    variables := [{binary(), binary()}], body := none | {file, file:filename(), pos_integer()}, max => pos_integer()}.
%% The file with the body is deleted when the script has opened it, and at the latest when the
%% script has exited. `max' is the maximum number of scripts that may run concurrently in this VM.
-opaque source() :: pid().

-record(state, {port :: port(),
                signaller :: port(),
                os_pid :: pos_integer(),
                body :: none | {file, file:filename(), pos_integer()},
                queue = [] :: [binary()],
                bytes = 0 :: non_neg_integer(),
                stopped = false :: boolean(),
                exit = none :: none | non_neg_integer(),
                eof = false :: boolean(),
                reader = none :: none | {gen_server:from(), reference()}}).

%% @doc Starts a script, which is killed when the calling process exits.
-spec open(script()) -> {ok, source()} | {error, busy | {start, term()}}.
open(#{max := Max} = Script) ->
    case running() >= Max of
        true -> {error, busy};
        false -> open(maps:remove(max, Script))
    end;
open(Script) ->
    %% The process is not linked, because a script that fails to start would take down the reader, which still has to answer.
    case gen_server:start(?MODULE, {self(), Script}, []) of
        {ok, Pid} -> {ok, Pid};
        {error, Reason} -> {error, {start, Reason}}
    end.

%% @doc Returns how many scripts are running in this VM.
-spec running() -> non_neg_integer().
running() -> atomics:get(counter(), 1).

counter() ->
    case persistent_term:get(?MODULE, none) of
        none ->
            persistent_term:put(?MODULE, atomics:new(1, [])),
            counter();
        Counter -> Counter
    end.

%% @doc Returns the next output of the script, or `done' after the last byte.
-spec read(source(), TimeoutMs :: pos_integer()) ->
          {data, binary(), source()} | {done, source()} | {timeout, source()} | {error, term(), source()}.
read(Pid, TimeoutMs) ->
    try gen_server:call(Pid, {read, TimeoutMs}, TimeoutMs + ?CALL_MS) of
        {data, Data} -> {data, Data, Pid};
        timeout -> {timeout, Pid};
        {done, 0} ->
            {done, close(Pid)};
        {done, Status} ->
            _ = close(Pid),
            {error, {exit, Status}, Pid}
    catch
        exit:_ -> {error, killed, Pid}
    end.

%% @doc Kills the script, if it is still running, and all processes that it has started.
-spec close(source()) -> source().
close(Pid) ->
    _ = try gen_server:stop(Pid, normal, ?CALL_MS) catch exit:_ -> ok end,
    Pid.

%% @private
-spec init({Reader :: pid(), script()}) -> {ok, #state{}} | {stop, term()}.
init({Reader, #{program := Program, arguments := Arguments, folder := Folder, variables := Variables, body := Body}}) ->
    _ = erlang:monitor(process, Reader),
    %% Traps exits, so that terminate/2 also runs when a port fails.
    _ = process_flag(trap_exit, true),
    _ = process_flag(message_queue_data, off_heap),
    Options = [{args, ["-c", lists:append(shell(Body)), file(Body)] ++ told_by_shell(Variables) ++ ["--", Program | Arguments]},
               {cd, Folder}, {env, environment(Variables)},
               exit_status, eof, binary, stream, use_stdio, hide],
    try
        Signaller = open_port({spawn_executable, "/bin/sh"}, [{args, ["-c", signaller()]}, out, hide]),
        started(open_port({spawn_executable, "/bin/sh"}, Options), Signaller, Body)
    catch
        error:Reason -> {stop, Reason}
    end.

%% The shell's input is the ID of the group, followed by names of signals. If the program is not the leader of its group yet, the first signal is sent
%% to the program itself. Later signals are sent only to the group, because the program may have exited and its ID may belong to another process.
signaller() ->
    "exec >/dev/null 2>&1; read group || exit; first=$group; "
    "while read name; do kill -s \"$name\" -- \"-$group\" || [ -z \"$first\" ] || kill -s \"$name\" \"$first\"; first=; done; kill -s KILL -- \"-$group\"".

shell(Body) ->
    ["while [ \"$1\" != -- ]; do eval \"value=\\$$1\"; export \"$1=$(printf \"$value\")\"; shift; done; shift; ",
     case Body of
         {file, _, _} -> "exec <\"$0\" && rm -f \"$0\"; exec \"$@\"";
         none -> "exec \"$@\" </dev/null"
     end].

%% Returns the names of the variables whose values a port cannot pass: empty values, with which a port would unset the
%% variable, and bytes that are not text. The variables contain these values in octal, and the shell decodes them.
%% Passing the values as arguments would make them visible to all users.
told_by_shell(Variables) ->
    [binary_to_list(Name) || {Name, Value} <- Variables, Value =:= <<>> orelse characters(Value) =:= none, is_shell_name(Name)].

is_shell_name(Name) -> re:run(Name, "^[A-Za-z_][A-Za-z0-9_]*$", [{capture, none}]) =:= match.

%% Returns the characters that a port converts to these bytes. A port encodes characters like file names.
characters(Bytes) ->
    case file:native_name_encoding() of
        latin1 -> binary_to_list(Bytes);
        utf8 ->
            case unicode:characters_to_list(Bytes) of
                Text when is_list(Text) -> Text;
                _ -> none
            end
    end.

value(Bytes) ->
    case characters(Bytes) of
        none -> lists:flatten([io_lib:format("\\~3.8.0b", [Byte]) || <<Byte>> <= Bytes]);
        Text -> Text
    end.

file({file, Name, _}) -> Name;
file(none) -> "yucan".

started(Port, Signaller, Body) ->
    case erlang:port_info(Port, os_pid) of
        {os_pid, OsPid} ->
            true = port_command(Signaller, [integer_to_list(OsPid), $\n]),
            _ = atomics:add(counter(), 1, 1),
            _ = erlang:start_timer(?LOOK_MS, self(), look),
            {ok, #state{port = Port, signaller = Signaller, os_pid = OsPid, body = Body}};
        undefined -> {stop, ended}
    end.

%% The script does not inherit the server's environment, except for the variables that a program
%% needs to find other programs.
environment(Variables) ->
    Given = [{binary_to_list(Name), value(Value)} || {Name, Value} <- Variables, Name =/= <<>>],
    Default = [{"PATH", os:getenv("PATH", "/usr/local/bin:/usr/bin:/bin")}, {"LANG", "C.UTF-8"}],
    Names = [Name || {Name, _} <- Given ++ Default],
    [{Name, false} || Pair <- os:getenv(), [Name | _] <- [string:split(Pair, "=")], not lists:member(Name, Names)]
        ++ [Pair || {Name, _} = Pair <- Default, not lists:keymember(Name, 1, Given)] ++ Given.

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}} | {noreply, #state{}}.
handle_call({read, TimeoutMs}, From, #state{queue = []} = State) ->
    case ended(State) of
        {true, Status} -> {reply, {done, Status}, State};
        false -> {noreply, State#state{reader = {From, erlang:start_timer(TimeoutMs, self(), read)}}}
    end;
handle_call({read, _}, _, #state{queue = Queue} = State) ->
    {reply, {data, iolist_to_binary(lists:reverse(Queue))}, continue(State#state{queue = [], bytes = 0})}.

ended(#state{eof = true, exit = Status}) when is_integer(Status) -> {true, Status};
ended(_) -> false.

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast(_, State) -> {noreply, State}.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}} | {stop, normal, #state{}}.
handle_info({Port, {data, Data}}, #state{port = Port, reader = {_, _} = Reader} = State) ->
    {noreply, answer(Reader, {data, Data}, State)};
handle_info({Port, {data, Data}}, #state{port = Port, queue = Queue, bytes = Bytes} = State) ->
    {noreply, pause(State#state{queue = [Data | Queue], bytes = Bytes + byte_size(Data)})};
handle_info({Port, eof}, #state{port = Port} = State) ->
    {noreply, done(State#state{eof = true})};
handle_info({Port, {exit_status, Status}}, #state{port = Port} = State) ->
    {noreply, done(State#state{exit = Status})};
handle_info({timeout, Timer, read}, #state{reader = {_, Timer} = Reader} = State) ->
    {noreply, answer(Reader, timeout, State)};
handle_info({timeout, _, look}, #state{eof = false} = State) ->
    ok = look(State),
    {noreply, State};
%% The reader has exited.
handle_info({'DOWN', _, process, _, _}, State) ->
    {stop, normal, State};
handle_info(_, State) ->
    {noreply, State}.

%% A zombie no longer has an `exe' link, and after its exit status has been read, not even a directory in /proc.
look(#state{os_pid = OsPid} = State) ->
    case file:read_link(lists:concat(["/proc/", OsPid, "/exe"])) of
        {error, enoent} ->
            %% Without /proc, the limit on silence still applies.
            case filelib:is_dir("/proc/self") of
                true -> signal("KILL", State);
                false -> ok
            end;
        _ ->
            _ = erlang:start_timer(?LOOK_MS, self(), look),
            ok
    end.

answer({From, Timer}, Answer, State) ->
    _ = erlang:cancel_timer(Timer),
    gen_server:reply(From, Answer),
    State#state{reader = none}.

done(#state{reader = Reader} = State) ->
    case ended(State) of
        {true, Status} when Reader =/= none -> answer(Reader, {done, Status}, State);
        _ -> State
    end.

pause(#state{bytes = Bytes, stopped = false} = State) when Bytes > ?HIGH_BYTES ->
    ok = signal("STOP", State),
    State#state{stopped = true};
pause(State) -> State.

continue(#state{stopped = true} = State) ->
    ok = signal("CONT", State),
    State#state{stopped = false};
continue(State) -> State.

%% @private
-spec terminate(term(), #state{}) -> ok.
terminate(_, #state{exit = Exit, body = Body} = State) ->
    _ = atomics:sub(counter(), 1, 1),
    ok = yucan_spool:delete(Body),
    %% After its exit, the script's ID may belong to another process, so only its group is killed, when the port closes.
    case Exit of
        none -> signal("KILL", State);
        _ -> ok
    end.

signal(Name, #state{signaller = Signaller}) ->
    true = port_command(Signaller, [Name, $\n]),
    ok.
