%% SPDX-License-Identifier: Apache-2.0
%% @doc Reads files of the OR-Library (J. E. Beasley): instances of weighted tardiness, such as `wt40.txt', and their best known values, such as
%% `wtopt40.txt'.
%%
%% A file of instances is a sequence of whole numbers. For each instance it contains all durations, then all weights, then all due dates. Called by
%% {@link ml_aco}.
-module(ml_aco_library).

-export([read/2, read_values/1, solve/3]).

%% @doc Returns the instances in a file, each of which has this many jobs.
-spec read(file:filename(), Jobs :: pos_integer()) -> {ok, [ml_aco_instance:instance()]} | {error, Text :: string()}.
read(File, Jobs) ->
    case read_values(File) of
        {ok, Numbers} when length(Numbers) rem (3 * Jobs) =:= 0, Numbers =/= [] -> {ok, instances(Numbers, Jobs)};
        {ok, Numbers} -> {error, text("~ts has ~b numbers; expected a multiple of ~b, which is a duration, a weight and a due date of ~b jobs; give --jobs as in the file",
                                      [File, length(Numbers), 3 * Jobs, Jobs])};
        {error, _} = Error -> Error
    end.

instances([], _) -> [];
instances(Numbers, Jobs) ->
    {Durations, Rest1} = lists:split(Jobs, Numbers),
    {Weights, Rest2} = lists:split(Jobs, Rest1),
    {Dues, Rest} = lists:split(Jobs, Rest2),
    [list_to_tuple(lists:zip3(Durations, Weights, Dues)) | instances(Rest, Jobs)].

%% @doc Returns the whole numbers in a file.
-spec read_values(file:filename()) -> {ok, [non_neg_integer()]} | {error, Text :: string()}.
read_values(File) ->
    case file:read_file(File) of
        {ok, Bytes} ->
            Words = string:lexemes(Bytes, [$\s, $\t, $\n, "\r\n"]),
            case [Word || Word <- Words, re:run(Word, "^[0-9]{1,12}$") =:= nomatch] of
                [] -> {ok, [binary_to_integer(Word) || Word <- Words]};
                [Wrong | _] -> {error, text("~ts holds '~ts'; expected whole numbers alone", [File, string:slice(Wrong, 0, 40)])}
            end;
        {error, Reason} -> {error, text("cannot read ~ts: ~ts", [File, file:format_error(Reason)])}
    end.

text(Format, Arguments) -> lists:flatten(io_lib:format(Format, Arguments)).

%% @doc Returns the best cost that a single colony finds in this many milliseconds. It stops early if it reaches the best known value.
-spec solve(ml_aco_instance:instance(), Known :: none | number(), {Seed :: integer(), Ants :: pos_integer(), LimitMs :: pos_integer()}) -> {Cost :: number(), Ms :: non_neg_integer()}.
solve(Instance, Known, {Seed, Ants, LimitMs}) ->
    Start = erlang:monotonic_time(millisecond),
    until(ml_aco_colony:new(Instance, 1, Seed, {Ants, local}), Known, Start, Start + LimitMs).

until(Colony, Known, Start, End) ->
    {Cost, _} = ml_aco_colony:best(Colony),
    Now = erlang:monotonic_time(millisecond),
    case Cost =:= 0 orelse Cost =:= Known orelse Now >= End of
        true -> {Cost, Now - Start};
        false -> until(ml_aco_colony:run(Colony, ml_aco_colony:best(Colony), 1), Known, Start, End)
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

read_test() ->
    File = filename:join("/tmp", "ml_aco_library_" ++ os:getpid()),
    Try = fun(Text) -> ok = file:write_file(File, Text), Result = read(File, 2), ok = file:delete(File), Result end,
    ?assertEqual({ok, [{{26, 1, 10}, {24, 10, 20}}, {{1, 2, 3}, {4, 5, 6}}]}, Try("   26   24    1   10   10\r\n  20 1 4\n 2 5 3 6\n")),
    [?assertMatch({error, _}, Try(Text)) || Text <- ["", "1 2 3", "1 2 3 4 5 six", "1 2 3 4 5 -6"]],
    ?assertMatch({error, _}, read("/no/such/file", 2)).

%% The known values are proven optima, computed here by dynamic programming.
solve_test_() ->
    {timeout, 120, fun() ->
        [begin
             Instance = ml_aco_instance:make(12, Tardiness, Range, Seed),
             Optimum = ml_aco_instance:optimum(Instance),
             ?assertMatch({Optimum, _}, solve(Instance, Optimum, {1, 5, 5000}))
         end || Tardiness <- [0.4, 0.6, 0.8], Range <- [0.2, 0.6], Seed <- [1, 2]]
    end}.
-endif.
