%% SPDX-License-Identifier: Apache-2.0
%% @doc Records for `scripts/coverage' which lines of the applications were executed on any node of a test run.
%%
%% {@link beamway_coverage_transform} puts a call to {@link line/2} before each expression. The first time a node executes a line, it
%% immediately appends the line number to the module's file in the directory BEAMWAY_COVERAGE, without using another process. This way the lines
%% that a node executes before it has finished booting, or just before it is killed, are also counted.
-module(beamway_coverage).

-export([line/2, report/2]).

-define(LINES_MAX, 5000).

-type row() :: {File :: string(), Lines :: non_neg_integer(), Missed :: [pos_integer()]}.
-export_type([row/0]).

%% @doc Called when execution reaches this line of the module.
-spec line(module(), pos_integer()) -> ok.
line(Module, Line) ->
    Passed = passed_by(Module),
    case counters:get(Passed, Line) of
        0 -> counters:put(Passed, Line, 1), remember(Module, Line);
        _ -> ok
    end.

passed_by(Module) ->
    case persistent_term:get({?MODULE, Module}, undefined) of
        undefined ->
            Passed = counters:new(?LINES_MAX, []),
            ok = persistent_term:put({?MODULE, Module}, Passed),
            Passed;
        Passed ->
            Passed
    end.

%% A node may run as a user or under a limit that prevents it from writing; its lines are then not counted.
remember(Module, Line) ->
    case os:getenv("BEAMWAY_COVERAGE") of
        false -> ok;
        Folder ->
            File = Folder ++ "/" ++ atom_to_list(Module),
            case file:open(File, [append, raw]) of
                {ok, Io} ->
                    _ = file:write(Io, [integer_to_list(Line), $\n]),
                    _ = file:close(Io),
                    ok;
                {error, _} ->
                    ok
            end
    end.

%% @doc Returns the lines of all instrumented modules in `Ebin', and the lines that were never executed.
-spec report(Ebin :: file:filename(), Folder :: file:filename()) -> [row()].
report(Ebin, Folder) ->
    [row(Beam, Folder) || Beam <- lists:sort(filelib:wildcard(filename:join(Ebin, "*.beam"))), filename:basename(Beam) =/= "beamway_coverage.beam"].

row(Beam, Folder) ->
    {ok, {Module, [{abstract_code, {raw_abstract_v1, Forms}}]}} = beam_lib:chunks(Beam, [abstract_code]),
    Lines = lists:usort(lines(Forms)),
    [File | _] = [File || {attribute, _, file, {File, _}} <- Forms],
    {File, length(Lines), Lines -- passed_lines(filename:join(Folder, atom_to_list(Module)))}.

lines({call, _, {remote, _, {atom, _, ?MODULE}, {atom, _, line}}, [_, {integer, _, Line}]}) -> [Line];
lines(Tuple) when is_tuple(Tuple) -> lines(tuple_to_list(Tuple));
lines([Head | Tail]) -> lines(Head) ++ lines(Tail);
lines(_) -> [].

passed_lines(File) ->
    case file:read_file(File) of
        {ok, Text} -> lists:usort([binary_to_integer(Line) || Line <- binary:split(Text, <<"\n">>, [global, trim_all])]);
        {error, enoent} -> []
    end.
