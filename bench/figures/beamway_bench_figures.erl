%% SPDX-License-Identifier: Apache-2.0
%% @doc Writes the numbers in the documents. `bench/figures.config' specifies the stored results from which each table and picture is
%% generated ({@link beamway_bench_published}).
%%
%% A page has `<!-- figures: NAME -->' and `<!-- end -->' on their own lines, and the table of that name is inserted between them. Under each table,
%% the page lists the results that the table is based on, with commit, day, machine, repeats and command. A result that was measured on a modified
%% tree, or at a commit that is missing from the repository, is not shown. `bench/stale' lists the stored results that are older than the code that
%% they measure, which the pages mark as old; {@link beamway_bench_ages} determines their age.
%%
%% `scripts/figures' calls `main/0' and documents its arguments.
-module(beamway_bench_figures).

-export([main/0]).

%% @doc The entry point of `scripts/figures'.
-spec main() -> no_return().
main() ->
    halt(try words(init:get_plain_arguments())
         catch throw:{config, Why} -> complain("~ts", [Why]), 2
         end).

words(Arguments) ->
    case Arguments of
        ["write"] -> write();
        ["check"] -> verdict("check", problems());
        ["release"] -> verdict("release-check", problems() ++ beamway_bench_ages:too_old() ++ beamway_bench_tables:too_weak());
        ["mark"] -> mark();
        ["plan" | Words] -> planned(beamway_bench_ages:plan(Words));
        ["compact" | Names] -> ended(beamway_bench_scripted:compact(case Names of [] -> [Name || {Name, _} <- beamway_bench_published:results()]; _ -> Names end));
        ["begin", "--force", Name, Command] -> ended(beamway_bench_scripted:begun(Name, Command, true));
        ["begin", Name, Command] -> ended(beamway_bench_scripted:begun(Name, Command, false));
        ["store", "--force", File] -> ended(beamway_bench_scripted:store(File, true));
        ["store", File] -> ended(beamway_bench_scripted:store(File, false));
        ["commit"] -> io:format("~ts~n", [beamway_bench_machine:commit()]), 0;
        _ -> complain("expected write, check, release, mark, plan, compact, begin, store or commit", []), 2
    end.

planned(ok) -> 0;
planned({error, Why}) -> complain("~ts", [Why]), 2.

ended(ok) -> 0;
ended({error, Why}) -> complain("~ts", [Why]), 1.

complain(Format, Args) -> io:format(standard_error, "figures: " ++ Format ++ "~n", Args).

verdict(_, []) -> 0;
verdict(What, Problems) ->
    _ = [io:format("~ts~n", [Problem]) || Problem <- Problems],
    io:format("~ts: ~b problems~n", [What, length(Problems)]),
    1.

problems() -> of_files() ++ beamway_bench_ages:unknown_commits().

of_files() ->
    pages() ++ beamway_bench_pictures:outdated(beamway_bench_pictures:all()) ++ schema()
        ++ beamway_bench_gate:files(beamway_bench_checkout:root(), [Text || {_, Text} <- markdown_files()]) ++ [beamway_bench_gate:dead_text(Entry) || Entry <- dead()].

dead() -> beamway_bench_gate:dead(beamway_bench_published:stale(), fun beamway_bench_published:read/1).

%% Returns all pages that contain results, each with its current text and the text that it should have.
-spec both() -> [{file:filename(), Is :: binary(), Should :: binary()}].
both() ->
    Tables = maps:from_list([{Name, Table} || {table, Name, Table} <- beamway_bench_published:config()]),
    [{File, Text, iolist_to_binary(filled(Text, Tables))} || {File, Text} <- markdown_files(), binary:match(Text, <<"<!-- figures: ">>) =/= nomatch].

markdown_files() ->
    [{beamway_bench_checkout:path(File), Text}
     || Pattern <- ["*.md", "*/*.md", "*/*/*.md"], File <- lists:sort(filelib:wildcard(Pattern, beamway_bench_checkout:root())), hd(filename:split(File)) =/= "build",
        {ok, Text} <- [file:read_file(beamway_bench_checkout:path(File))]].

filled(Text, Tables) ->
    case re:run(Text, "^(.*?<!-- figures: ([a-z0-9-]+) -->\n).*?(<!-- end -->\n.*)$", [dotall, {capture, all_but_first, binary}]) of
        {match, [Before, Name, Rest]} ->
            Table = case Tables of #{Name := Known} -> Known; _ -> maps:get(binary_to_list(Name), Tables) end,
            <<"<!-- end -->\n", After/binary>> = Rest,
            [Before, "\n", unicode:characters_to_binary(beamway_bench_tables:table(Table)), "\n<!-- end -->\n", filled(After, Tables)];
        nomatch -> Text
    end.

write() ->
    Dead = dead(),
    ok = case Dead of [] -> ok; _ -> write_stale(beamway_bench_published:stale() -- Dead) end,
    _ = [begin ok = beamway_bench_store:write_text(File, Should), io:format("written: ~ts~n", [File]) end || {File, Is, Should} <- both(), Is =/= Should],
    _ = [beamway_bench_pictures:draw(Picture) || Picture <- beamway_bench_pictures:all(), beamway_bench_pictures:outdated([Picture]) =/= []],
    0.

pages() ->
    [[string:prefix(File, beamway_bench_checkout:root() ++ "/"), ": its figures are not those of bench/results. Run: make figures"] || {File, Is, Should} <- both(), Is =/= Should].

schema() -> [Why || {Name, _} <- beamway_bench_published:results(), {error, Why} <- [present(Name)]].

%% A result that has not been measured yet is not an error here.
present(Name) ->
    case filelib:is_regular(beamway_bench_store:file(Name)) of
        true -> beamway_bench_published:read(Name);
        false -> missing
    end.

write_stale(Marks) ->
    ok = beamway_bench_store:write_text(beamway_bench_checkout:path("bench/stale"),
                                        ["%% Written by `make figures MARK=1': stored results that are older than what they measure.\n",
                                         [io_lib:format("{~p, ~p, ~p}.~n", tuple_to_list(Mark)) || Mark <- Marks]]).

%% Records which results the pages must mark as old or must not show.
mark() ->
    case beamway_bench_history:known() of
        {false, Why} -> complain("~ts", [Why]), 1;
        true ->
            ok = write_stale(beamway_bench_ages:marks()),
            write()
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% Fails if somebody edited a number on a page, or stored a result without running `make figures'.
the_pages_have_the_figures_of_the_results_test_() ->
    {timeout, 120, ?_assertEqual([], of_files())}.

filled_test() ->
    Text = <<"a\n<!-- figures: t -->\nold\n<!-- end -->\nb\n<!-- figures: t -->\n<!-- end -->\n">>,
    Tables = #{"t" => {grid, ["h"], [["c"]]}},
    Once = iolist_to_binary(filled(Text, Tables)),
    ?assertEqual(<<"a\n<!-- figures: t -->\n\n| h |\n| --- |\n| c |\n\n\n<!-- end -->\nb\n<!-- figures: t -->\n\n| h |\n| --- |\n| c |\n\n\n<!-- end -->\n">>, Once),
    ?assertEqual(Once, iolist_to_binary(filled(Once, Tables))),
    ?assertError(_, filled(<<"<!-- figures: nothing -->\n<!-- end -->\n">>, Tables)).
-endif.
