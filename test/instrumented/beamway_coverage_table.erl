%% SPDX-License-Identifier: Apache-2.0
%% @doc Creates the table of `scripts/coverage'. It reads what clang's tools and {@link beamway_coverage} have left in the build directory, prints
%% a row for each file and part, writes the missed lines to `build/coverage/missed' and, if the result is to be stored, the numbers of the
%% parts to `bench/results/coverage.json'.
-module(beamway_coverage_table).

-export([main/3]).

%% @doc Prints the table, and stores the numbers on request. `Tree' is where the tests ran, and `Root' is the checkout.
-spec main(Tree :: file:filename(), Root :: file:filename(), print | keep) -> ok.
main(Tree, Root, Mode) ->
    Counts = filename:join(Tree, "build/counts"),
    C = c_rows(Tree, filename:join(Counts, "c.json"), missed_in_c(Tree, filename:join(Counts, "c.lines"))),
    Erlang = [Row || Ebin <- lists:sort(filelib:wildcard(filename:join(Tree, "apps/*/ebin"))), filename:basename(filename:dirname(Ebin)) =/= "test_support",
                     {_, Lines, _} = Row <- beamway_coverage:report(Ebin, filename:join(Counts, "erlang")), Lines > 0],
    Rows = C ++ Erlang,
    Rooms = [total(Room, [Row || {File, _, _} = Row <- Rows, room(File) =:= Room]) || Room <- lists:usort([room(File) || {File, _, _} <- Rows])],
    io:put_chars([table(Rows), "\n", table(Rooms)]),
    ok = file:write_file(filename:join(Tree, "missed"), [io_lib:format("~ts: ~w~n", [File, Missed]) || {File, _, [_ | _] = Missed} <- Rows]),
    case Mode of
        print -> ok;
        keep -> keep(Root, Rooms)
    end.

%% Returns the part to which a file belongs: native/link, native/driver, rdpipe or apps/APP.
room(File) ->
    case filename:split(File) of
        ["rdpipe" | _] -> "rdpipe";
        [One, Two | _] -> One ++ "/" ++ Two
    end.

%% Returns llvm-cov's own line count, and the lines that it shows with a count of 0.
c_rows(Tree, JsonFile, Missed) ->
    {ok, Json} = file:read_file(JsonFile),
    #{<<"data">> := [#{<<"files">> := Files}]} = jiffy:decode(Json, [return_maps]),
    lists:sort([c_row(relative(Tree, binary_to_list(Name)), Lines, Missed)
                || #{<<"filename">> := Name, <<"summary">> := #{<<"lines">> := #{<<"count">> := Count} = Lines}} <- Files, Count > 0]).

c_row(File, #{<<"count">> := Count, <<"covered">> := Covered}, Missed) ->
    Lines = maps:get(File, Missed, []),
    {File, Count, lists:sublist(Lines, Count - Covered) ++ lists:duplicate(max(0, Count - Covered - length(Lines)), 0)}.

relative(Tree, File) ->
    string:prefix(File, Tree ++ "/").

%% The output consists of a file name, followed by the file's lines in the form `  12|      0|text'.
missed_in_c(Tree, File) ->
    {ok, Text} = file:read_file(File),
    {_, Missed} = lists:foldl(fun(Line, State) -> missed_line(Tree, Line, State) end, {"", #{}}, binary:split(Text, <<"\n">>, [global])),
    maps:map(fun(_, Lines) -> lists:usort(Lines) end, Missed).

missed_line(Tree, Line, {File, Missed}) ->
    case re:run(Line, "^ *([0-9]+)\\| *0\\|", [{capture, [1], list}]) of
        {match, [Number]} -> {File, maps:update_with(File, fun(Lines) -> [list_to_integer(Number) | Lines] end, [list_to_integer(Number)], Missed)};
        nomatch ->
            case string:prefix(Line, Tree ++ "/") of
                nomatch -> {File, Missed};
                Rest -> {binary_to_list(string:trim(Rest, trailing, ":")), Missed}
            end
    end.

total(Room, Rows) ->
    {Room, lists:sum([Lines || {_, Lines, _} <- Rows]), lists:append([Missed || {_, _, Missed} <- Rows])}.

table(Rows) ->
    ["| file | lines | missed | run |\n| --- | ---: | ---: | ---: |\n"
    | [io_lib:format("| ~ts | ~b | ~b | ~.1f % |~n", [File, Lines, length(Missed), percent(Lines, length(Missed))]) || {File, Lines, Missed} <- Rows]].

percent(Lines, Missed) ->
    100 * (Lines - Missed) / Lines.

%% The result carries the start time of the run, which may take an hour. It never counts as noisy,
%% because the machine's load does not affect which lines run.
keep(Root, Rooms) ->
    Counts = [#{room => list_to_binary(Room), lines => Lines, missed => length(Missed), percent => round(10 * percent(Lines, length(Missed))) / 10} || {Room, Lines, Missed} <- Rooms],
    Context = beamway_bench_store:context("coverage", "make coverage KEEP=1"),
    ok = beamway_bench_store:write(filename:join(Root, "bench/results/coverage.json"),
                                   Context#{commit := list_to_binary(os:getenv("BEAMWAY_BENCH_COMMIT")), measured_at := list_to_integer(os:getenv("BEAMWAY_COVERAGE_BEGAN")),
                                            repeats => 1, noisy => [], rooms => Counts}).
