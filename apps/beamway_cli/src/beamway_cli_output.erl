%% SPDX-License-Identifier: Apache-2.0
%% @doc The output of the `beamway' command: results, messages, tables and private files. Used by all subcommands.
-module(beamway_cli_output).

-export([say/2, complain/2, table/1, quietly/1, write_private/2]).

%% @doc Writes a result to standard output. If that fails, the command exits. Uses a separate port, because the VM's `user' process does not report
%% failed writes.
-spec say(io:format(), [term()]) -> ok.
say(Format, Arguments) ->
    Port = output(),
    true = port_command(Port, unicode:characters_to_binary(io_lib:format(Format, Arguments))),
    written(Port).

output() ->
    case get(output) of
        undefined ->
            _ = process_flag(trap_exit, true),
            Port = open_port({fd, 1, 1}, [out, binary]),
            undefined = put(output, Port),
            Port;
        Port -> Port
    end.

%% There is no deadline: a reader such as a pager may take its time, and the port closes if the reader exits.
written(Port) ->
    case erlang:port_info(Port, queue_size) of
        {queue_size, 0} -> failure(Port, 0);
        {queue_size, _} -> failure(Port, 5), written(Port);
        undefined -> failure(Port, infinity)
    end.

failure(Port, Wait) ->
    receive
        {'EXIT', Port, Reason} -> throw({output, Reason})
    after Wait -> ok
    end.

%% @doc Writes a message, as opposed to a result, to standard error.
-spec complain(io:format(), [term()]) -> ok.
complain(Format, Arguments) -> io:format(standard_error, "beamway: " ++ Format ++ "~n", Arguments).

%% @doc Formats rows of texts as columns. The first row is the heading.
-spec table([[unicode:chardata()]]) -> unicode:chardata().
table(Rows) ->
    Widths = [lists:max([string:length(Cell) || Cell <- Column]) || Column <- columns(Rows)],
    [[string:trim(lists:join("  ", lists:zipwith(fun pad/2, Row, Widths)), trailing), $\n] || Row <- Rows].

columns([[] | _]) -> [];
columns(Rows) -> [[hd(Row) || Row <- Rows] | columns([tl(Row) || Row <- Rows])].

pad(Cell, Width) -> string:pad(Cell, Width).

%% @doc Calls the function while suppressing OTP's reports about a failed start, because the command itself reports the failure in one line.
-spec quietly(fun(() -> Result)) -> Result.
quietly(Fun) ->
    ok = logger:add_primary_filter(?MODULE, {fun logger_filters:domain/2, {stop, sub, [otp]}}),
    try Fun()
    after ok = logger:remove_primary_filter(?MODULE)
    end.

%% @doc Creates a file that only its owner can read. An existing file is not changed (`eexist'). The launcher has set a umask for the commands that
%% use this, so no other user can open the file before its mode is set.
-spec write_private(file:filename(), iodata()) -> ok | {error, file:posix() | badarg | terminated | system_limit}.
write_private(File, Content) ->
    case file:open(File, [write, exclusive, raw]) of
        {ok, Io} ->
            case [Failed || {error, _} = Failed <- [file:change_mode(File, 8#600), file:write(Io, Content), file:close(Io)]] of
                [] -> ok;
                [Failed | _] -> Failed
            end;
        {error, Reason} ->
            {error, Reason}
    end.
