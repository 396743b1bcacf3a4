%% SPDX-License-Identifier: Apache-2.0
%% @doc Tests that `scripts/tidy' finds each kind of fault. Every case plants a fault in a small tree that has none, and names the lines
%% that it expects.
-module(beamway_tidy_SUITE).

-export([all/0, suite/0, init_per_testcase/2]).
-export([nothing/1, lengths/1, described/1, calls/1, circles/1, exports/1, unused/1, runners/1, skips/1, links/1, decisions/1, tables/1, lines/1,
         rooms/1, prose/1, words/1, exceptions/1, every_check/1, usage/1]).

suite() -> [{timetrap, {minutes, 2}}].

all() ->
    [nothing, lengths, described, calls, circles, exports, unused, runners, skips, links, decisions, tables, lines, rooms, prose, words,
     exceptions, every_check, usage].

%% Creates a tree without a fault.
init_per_testcase(Case, Config) ->
    Folder = filename:join(proplists:get_value(priv_dir, Config), Case),
    [put_file(Folder, File, Lines) || {File, Lines} <- tree()],
    [{folder, Folder} | Config].

tree() ->
    [{"apps.config", ["{applications, [\"apps/one\"]}.", "{dependencies, [{one, [], []}]}."]},
     {"apps/one/src/one.app.src", ["{application, one, [{vsn, \"1\"}, {applications, [kernel]}]}."]},
     {"apps/one/README.md", ["| module | role |", "| --- | --- |", "| `one`, `two` | add |"]},
     {"apps/one/src/one.erl", ["-module(one).", "-export([one/1]).", "", "%% @doc Adds `$.' and \"one\".", "-spec one(integer()) -> integer().", "one(N) -> two:plus(N, $.)."]},
     {"apps/one/src/two.erl", ["%% @private", "-module(two).", "-export([plus/2]).", "plus(A, B) -> A + B."]},
     {"README.md", ["See the [documents](docs/README.md#one-heading) and [`one`](apps/one/README.md).", "`one:one/1` adds one.", "", "```", "[no](link)", "```"]},
     {"docs/README.md", ["# One `heading`", "", "[Two](guide/two.md), [decisions](decisions/README.md)."]},
     {"docs/guide/two.md", ["A sentence.", "Another one.", "- An item", "- and one."]},
     {"docs/decisions/README.md", ["- [Why?](three.md#why)"]},
     {"docs/decisions/three.md", ["[All](README.md).", "", "## Why?", "", "*2026-01-02 · in force*"]},
     {"scripts/prose-rules", ["sad phrase\twrite a happy one", "~\\bhabit\twrite 'custom'"]},
     {"scripts/run-tests", ["add eunit run_eunit # apps.config test/runners scripts/prose-rules test/skips docs/blocks"]},
     {"scripts/unexpected-skips", ["#!/bin/sh", "sed s/^/unexpected:/"]},
     {"test/system/docs/blocks", ["#!/bin/sh", "cat \"$0.txt\" # scripts/unexpected-skips"]},
     {"test/system/docs/blocks.txt", ["SKIP one: would run"]},
     {"test/runners", ["eunit first # scripts/run-tests"]},
     {"test/skips", []}].

put_file(Folder, File, Lines) ->
    Path = filename:join(Folder, File),
    ok = filelib:ensure_dir(Path),
    ok = file:write_file(Path, unicode:characters_to_binary([[Line, $\n] || Line <- Lines])),
    ok = file:change_mode(Path, 8#755).

%% Adds files to the tree, and expects that one check, or all of them, print these lines.
found(Expected, Check, Files, Config) ->
    Folder = proplists:get_value(folder, Config),
    [put_file(Folder, File, Lines) || {File, Lines} <- Files],
    Sources = filelib:wildcard(filename:join(Folder, "apps/*/src/*.erl")),
    [compile(Source) || Source <- Sources],
    {Status, Said} = tidy(["--in", Folder | Check]),
    Expected = lists:droplast(Said),
    Status = case Expected of [] -> 0; _ -> 1 end,
    ok.

compile(Source) ->
    Out = filename:join(filename:dirname(filename:dirname(Source)), "ebin"),
    ok = filelib:ensure_path(Out),
    {ok, _} = compile:file(Source, [debug_info, {outdir, Out}]).

%% The path is absolute, because Common Test changes the working directory.
tidy(Words) ->
    {Status, Lines} = beamway_bench_tools:run(test_support:file("scripts/tidy"), Words, 60000),
    {Status, [string:trim(unicode:characters_to_list(list_to_binary(Line)), trailing) || Line <- Lines]}.

nothing(Config) -> found([], [], [], Config).

lengths(Config) ->
    Body = ["    ok,", "    \"a.\",% no end.", "    $.,"],
    Long = ["f(<<_, _>>, {_, _}) ->"] ++ lists:append(lists:duplicate(20, Body)) ++ ["    ok.", "g() ->", "    ok."],
    found(["a.c:1: f has 71 lines; at most 70", "b.sh: 701 lines; at most 700", "c.erl:1: f/2 has 62 lines; at most 60"], ["lengths"],
          [{"a.c", ["int f(int a,", "      int b)", "{"] ++ lists:duplicate(67, "    a++;") ++ ["}", "", "int g(void)", "{", "}"]},
           {"b.sh", lists:duplicate(701, "true")},
           {"c.erl", Long}], Config).

described(Config) ->
    found(["apps/one/src/three.erl:5: f/1 is exported and has neither @doc nor @private"], ["described"],
          [{"apps/one/src/three.erl", ["-module(three).", "-export([f/1, g/0, h/1]).", "%% No description.", "-spec f([{_, _}]) -> _.", "f([{_, _}]) -> f(a, b).",
                                       "%% @doc Something.", "-spec g() -> ok.", "g() -> ok.", "f(_, _) -> ok.", "%% @private", "h(_) -> ok."]}], Config).

calls(Config) ->
    found(["undefined_function_calls: {{three,f,0},{lists,no_such,0}}"], ["calls"],
          [{"apps/one/src/three.erl", ["-module(three).", "-export([f/0]).", "f() -> lists:no_such()."]}], Config).

circles(Config) ->
    Module = fun(Name, Next) -> {"apps/one/src/" ++ Name ++ ".erl", ["-module(" ++ Name ++ ").", "-export([f/0]).", "f() -> " ++ Next ++ ":f()."]} end,
    found(["apps/one: 4 modules call each other in a circle; at most 3: a b c d"], ["circles"],
          [Module("a", "b"), Module("b", "c"), Module("c", "d"), Module("d", "a"), Module("e", "a")], Config).

%% One function has no caller; the others are called as a callback, by name, or through a module that is not known.
exports(Config) ->
    found(["three:f/0 is exported, and no other module, script or page names it"], ["exports"],
          [{"apps/one/src/three.erl", ["-module(three).", "-behaviour(supervisor).", "-export([f/0, g/1, h/0, init/1, script/0]).",
                                       "f() -> spawn(?MODULE, g, [1]).", "g(M) -> M:h(), f().", "h() -> ok.", "init(_) -> ignore.", "script() -> ok."]},
           {"run.sh", ["erl -s three script"]}], Config).

unused(Config) ->
    found(["apps/one/src/three.erl: nothing names this file", "native/b.c: nothing names this file", "scripts/four: nothing names this file"], ["unused"],
          [{"apps/one/src/three.erl", ["-module(three)."]},
           {"native/Makefile", ["X := $(wildcard $(Y)/*.c)"]}, {"native/a/a.c", []}, {"native/b.c", []},
           {"scripts/four", ["#!/bin/sh"]}], Config).

runners(Config) ->
    found(["test/runners:2: there is no runner five_SUITE", "test/runners:3: six_SUITE has no case gone"], ["runners"],
          [{"test/runners", ["eunit first", "five_SUITE rest", "six_SUITE -(group) +here +gone"]},
           {"apps/one/test/six_SUITE.erl", ["here(_) -> ok."]}], Config).

skips(Config) ->
    found(["test/skips: unexpected:README.md:3 needs a moon"], ["skips"], [{"test/system/docs/blocks.txt", ["SKIP README.md:3 needs a moon"]}], Config).

links(Config) ->
    found(["docs/guide/two.md: no such file: gone.md", "docs/guide/two.md: no such heading: ../README.md#gone", "docs/guide/four.md: no page links to it",
           "docs/README.md: does not name docs/guide/four.md"], ["links"],
          [{"docs/guide/two.md", ["[a](gone.md) [b](../README.md#gone) [c](https://gone) [d](../README.md#one-heading)"]}, {"docs/guide/four.md", []}], Config).

decisions(Config) ->
    found(["docs/decisions/three.md: no date and status under: How?", "docs/decisions/README.md: no line for three.md: How?"], ["decisions"],
          [{"docs/decisions/three.md", ["[All](README.md).", "", "## Why?", "", "*2026-01-02 · in force*", "", "## How?", "", "So."]}], Config).

tables(Config) ->
    found(["docs/guide/two.md:3: 3 cells in a table of 2"], ["tables"],
          [{"docs/guide/two.md", ["| a | b |", "| --- | --- |", "| `a | b` | c |", "| `a \\| b` | c |", "", "| a |"]}], Config).

lines(Config) ->
    found(["docs/guide/three.md:1: 3 sentences in one line; write each in its own", "docs/guide/three.md:3: 2 sentences in one line; write each in its own",
           "docs/guide/two.md:5: the sentence goes on in the next line; write it in one"], ["lines"],
          [{"docs/guide/three.md", ["A sentence. `Code` starts the next (as here. And here), e.g. No. 3 of 2.5. And \"One. Two.\" is a quotation.", "",
                                    "- **A title.** Its sentence! Another one.", "", "1. A. Turing (**one**)", "", "| One. Two. |"]},
           {"docs/guide/two.md", ["# A heading", "A sentence.", "And (one more.)", "", "A broken", "sentence.", "- an item", "- another", "", "    | a |", "```", "code", "code", "```"]}],
          Config).

rooms(Config) ->
    found(["apps/one/README.md: nothing names the module three", "apps/one/README.md: there is no module one_gone", "ARCHITECTURE.md: there is no apps/gone",
           "ARCHITECTURE.md: six_SUITE has no case gone"], ["rooms"],
          [{"apps/one/src/three.erl", ["-module(three)."]},
           {"apps/one/README.md", ["| `one`, `one_gone` | `two` |"]},
           {"apps/one/test/six_SUITE.erl", ["here(_) -> ok."]},
           {"ARCHITECTURE.md", ["| `apps/one`, `apps/gone`, `apps/o*e/src` | `six_SUITE:here`, `six_SUITE:gone` |"]}], Config).

prose(Config) ->
    Long = lists:append(lists:duplicate(33, "word ")),
    found(["docs/guide/two.md:1: 'sad phrase': write a happy one", "docs/guide/two.md:6: a sentence of 33 words; split it: " ++ lists:sublist(Long, 80) ++ [8230],
           "apps/one/src/three.erl:1: 'sad phrase': write a happy one", "apps/one/src/three.erl:3: 'sad phrase': write a happy one"], ["prose"],
          [{"docs/guide/two.md", ["A sad", "phrase, `sad phrase`.", "", "`sad phrase`", "", Long, "| " ++ Long ++ " |", "```", "sad phrase", "```"]},
           {"ARCHITECTURE.md", [Long]},
           {"apps/one/src/three.erl", ["%% A sad phrase.", "-module(three).", "f() -> {\"a sad phrase\", sad, phrase}."]},
           {"apps/one/test/four.erl", ["f() -> \"a sad phrase\"."]}], Config).

words(Config) ->
    Text = lists:append(lists:duplicate(998, "word ")) ++ "a habit",
    found(["documents: 9.7 habits of scripts/prose-rules in 10,000 words; at most 5; most: 'habit' 1, 'docs/guide/two.md' 1",
           "comments: 9.9 habits of scripts/prose-rules in 10,000 words; at most 8; most: 'habit' 1, 'a.c' 1"], ["words"],
          [{"docs/guide/two.md", [Text]}, {"a.c", ["// " ++ Text, "\"habit habit\"", "habit"]}], Config).

%% An entry allows the findings that exist and no more, and it must be needed.
exceptions(Config) ->
    Long = {"b.sh", lists:duplicate(800, "true")},
    [found(Expected, ["lengths"], [Long, {"test/tidy", [Entry]}], Config)
     || {Expected, Entry} <- [{[], "lengths b.sh 800"}, {[], "lengths b.* 880"},
                              {["b.sh: 800 lines; at most 700; test/tidy allows 799"], "lengths b.sh 799"},
                              {["test/tidy: 'lengths b.sh 881' could be 800: lower the bound"], "lengths b.sh 881"},
                              {["b.sh: 800 lines; at most 700", "test/tidy: nothing needs 'lengths c.sh' any more: remove the line"], "lengths c.sh 900"}]],
    ok.

%% Every check must have a case.
every_check(_Config) ->
    {0, Help} = tidy(["--help"]),
    Checks = [list_to_atom(Check) || Line <- Help, {match, [Check]} <- [re:run(Line, "^  ([a-z]+)  +[a-z]", [{capture, all_but_first, list}])]],
    true = length(Checks) > 10,
    [] = Checks -- all(),
    ok.

usage(_Config) ->
    {2, _} = tidy(["no_such_check"]),
    ok.
