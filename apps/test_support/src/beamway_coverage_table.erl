%% SPDX-License-Identifier: Apache-2.0
%% @doc The table of `scripts/coverage': reads what clang's tools and {@link beamway_coverage} have left in the build folder, prints
%% a row for each file, writes the missed lines to `build/coverage/missed', and, to keep them, the figures into `bench/results/coverage.json' and `docs/testing.md'.
-module(beamway_coverage_table).

-export([main/3]).

-define(BEGIN, <<"<!-- written by scripts/coverage -->\n">>).
-define(END, <<"<!-- end -->\n">>).

%% @doc `Tree' is where the tests have run, `Root' the checkout.
-spec main(Tree :: file:filename(), Root :: file:filename(), print | keep) -> ok.
main(Tree, Root, Mode) ->
    Counts = filename:join(Tree, "build/counts"),
    C = c_rows(Tree, filename:join(Counts, "c.json"), missed_in_c(Tree, filename:join(Counts, "c.lines"))),
    Erlang = [{File, Lines, Missed} || {File, Lines, Missed} <- beamway_coverage:report(filename:join(Tree, "apps/beamway/ebin"),
                                                                                     filename:join(Counts, "erlang")), Lines > 0],
    Rows = C ++ [total("native", C)] ++ Erlang ++ [total("apps/beamway", Erlang)],
    io:put_chars(table(Rows)),
    ok = file:write_file(filename:join(Tree, "missed"),
                         [io_lib:format("~ts: ~w~n", [File, Missed]) || {File, _, [_ | _] = Missed} <- C ++ Erlang]),
    case Mode of
        print -> ok;
        keep -> keep(Root, C, Erlang, Rows)
    end.

%% llvm-cov's own count of lines, and which of them it shows with a 0.
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

%% A file's name, then its lines as `  12|      0|text'.
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

total(Name, Rows) ->
    {Name ++ ", all", lists:sum([Lines || {_, Lines, _} <- Rows]), lists:append([Missed || {_, _, Missed} <- Rows])}.

table(Rows) ->
    ["| file | lines | missed | run |\n| --- | ---: | ---: | ---: |\n"
    | [io_lib:format("| ~ts | ~b | ~b | ~.1f % |~n", [File, Lines, length(Missed), percent(Lines, length(Missed))]) || {File, Lines, Missed} <- Rows]].

percent(Lines, Missed) ->
    100 * (Lines - Missed) / Lines.

keep(Root, C, Erlang, Rows) ->
    Files = [#{file => list_to_binary(File), lines => Lines, missed => length(Missed)} || {File, Lines, Missed} <- C ++ Erlang],
    Totals = maps:from_list([{list_to_binary(Name), #{lines => Lines, missed => length(Missed), percent => round(10 * percent(Lines, length(Missed))) / 10}}
                             || {Name, Lines, Missed} <- [total("native", C), total("apps/beamway", Erlang)]]),
    Json = #{command => <<"make coverage KEEP=1">>, otp => list_to_binary(erlang:system_info(otp_release)), totals => Totals, files => Files},
    ok = file:write_file(filename:join(Root, "bench/results/coverage.json"), [jiffy:encode(Json, [pretty]), $\n]),
    Document = filename:join(Root, "docs/testing.md"),
    {ok, Text} = file:read_file(Document),
    [Before, Rest] = binary:split(Text, ?BEGIN),
    [_, After] = binary:split(Rest, ?END),
    ok = file:write_file(Document, [Before, ?BEGIN, table(Rows), ?END, After]).
