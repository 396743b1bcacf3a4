%% SPDX-License-Identifier: Apache-2.0
%% @doc `beamway report': writes what a node knows about its links, and what this host supports, to a file that can be attached to a bug report.
-module(beamway_cli_report).

-export([write/1]).

%% @doc Queries the node, writes the file and returns its name. Like beamway_cli_ask:open/1, it may only be called in a VM that exits afterwards.
-spec write(map()) -> {ok, file:filename()} | {error, Text :: unicode:chardata()}.
write(Options) ->
    %% The host must be examined before this VM becomes a node.
    Doctor = beamway_cli_doctor:to_json(beamway_cli_doctor:examine()),
    case beamway_cli_links:ask(Options) of
        {ok, #{node := Node} = Links} ->
            try
                Ask = fun(Module, Function, Arguments) -> beamway_cli_ask:call(Node, Module, Function, Arguments) end,
                Report = #{node => Node, at => list_to_binary(calendar:system_time_to_rfc3339(erlang:system_time(second))),
                           beamway => iolist_to_binary(Ask(beamway, version, [])), otp => iolist_to_binary(Ask(erlang, system_info, [otp_release])),
                           options => maps:map(fun(_, Value) -> unicode:characters_to_binary(io_lib:format("~0tp", [Value])) end, Ask(beamway_links, config, [])),
                           links => beamway_cli_links:to_json(Links), ends => Ask(beamway, why, []), host => Doctor},
                written(file_of(Options), jiffy:encode(hidden(Options, Report), [pretty]))
            catch throw:Text -> {error, Text}
            end;
        {error, _} = Error -> Error
    end.

file_of(#{out := File}) -> File;
file_of(_) ->
    {{Year, Month, Day}, {Hour, Minute, Second}} = calendar:local_time(),
    lists:flatten(io_lib:format("beamway-report-~b~2..0b~2..0b-~2..0b~2..0b~2..0b.json", [Year, Month, Day, Hour, Minute, Second])).

%% Only the owner may read the file, because it reveals much about a cluster.
written(File, Bytes) ->
    case beamway_cli_output:write_private(File, [Bytes, $\n]) of
        ok -> {ok, File};
        {error, Reason} -> {error, io_lib:format("cannot write ~ts: ~ts; give another name with --out", [File, file:format_error(Reason)])}
    end.

hidden(#{hide_names := true}, Report) ->
    {ok, Own} = inet:gethostname(),
    beamway_cli_report_names:hidden(Report, Own);
hidden(_, Report) -> Report.
