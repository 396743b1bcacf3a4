%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench copy': how long do rdcp, rsync, scp and `tar | ssh tar' take to copy many small files or one large file, or to update a copy?
%%
%% The hosts are two network namespaces from the pipe's own tests, each with an sshd. `lan' is the veth pair between them, which is as fast as the
%% kernel; `wan' is an emulated path with 1 Gbit/s, a round trip of 50 ms and a packet loss of 0.01 %. `copy_figures' runs the copies. After
%% each of them, when the clock has stopped, it compares source and target byte by byte.
%%
%% `rdcp_tls' and the three rivals encrypt with AES-128-GCM; `rdcp' does not, and is only compared with `rdcp_tls'. The benchmark needs root.
-module(beamway_bench_copy).
-behaviour(beamway_bench).

-export([options/0, prepare/2, groups/1, metrics/1]).

%% A copy may take an hour (see LONGEST in copy_figures), and its files must also be created and compared.
-define(TURN_MS, 2 * 3600 * 1000).
-define(GIGABYTE, 1000000000).
-define(MEGABYTE, 1000000).

%% Each row is listed with its rivals. Over the long path, scp needs several round trips per file, so many small files would take hours. A program
%% that always sends everything again is not measured where it can only be slower: with small files most of which are unchanged, and over the long
%% path.
-define(ROWS, [{"lan", "small_new", [rsync, scp, tar_ssh]}, {"lan", "small_same", [rsync]}, {"lan", "small_changed", [rsync]},
               {"lan", "large_new", [rsync, scp, tar_ssh]}, {"lan", "large_appended", [rsync, scp, tar_ssh]}, {"lan", "large_changed", [rsync, scp, tar_ssh]},
               {"wan", "small_new", [rsync, tar_ssh]}, {"wan", "small_same", [rsync]}, {"wan", "small_changed", [rsync]},
               {"wan", "large_new", [rsync, scp, tar_ssh]}, {"wan", "large_appended", [rsync]}, {"wan", "large_changed", [rsync]}]).

%% @private
-spec options() -> [getopt:option_spec()].
options() ->
    [{path, undefined, "path", string, "only this one: lan or wan"},
     {row, undefined, "row", {string, ""}, "only the rows whose names begin like this: small, large, large_new and so on"},
     {files, undefined, "files", integer, "how many small files (100000; quick: 1000)"},
     {megabytes, undefined, "megabytes", integer, "the size of the large file (10000, if the memory is enough; quick: 64); over the long path it has at most 1000"},
     {directory, undefined, "directory", {string, "/dev/shm"}, "where all files are, of both hosts"}].

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()} | {error, unicode:chardata()}.
prepare(Given, Speed) ->
    [Path, Row, Directory] = [proplists:get_value(Option, Given, all) || Option <- [path, row, directory]],
    Rows = [One || {P, R, _} = One <- ?ROWS, Path =:= all orelse P =:= Path, lists:prefix(Row, R)],
    case {beamway_bench_pipe:can_run(["rsync", "scp", "tar", "cmp", "diff"]), filelib:is_dir(Directory)} of
        {{error, Why}, _} -> {error, Why};
        {ok, false} -> {error, ["--directory ", Directory, ": there is no such directory"]};
        {ok, true} when Rows =:= [] -> {error, ["no row is left: --path is lan or wan, and --row is the beginning of ", lists:join(", ", lists:usort([R || {_, R, _} <- ?ROWS]))]};
        {ok, true} -> sized(sizes(Speed, proplists:get_value(files, Given), proplists:get_value(megabytes, Given), room(Directory)), Rows, Directory)
    end.

sized({error, Why}, _, _) -> {error, Why};
sized({ok, #{files := Files, lan_bytes := Lan, wan_bytes := Wan} = Sizes}, Rows, Directory) ->
    {ok, #{rows => Rows, words => [Directory | [integer_to_list(Number) || Number <- [Files, Lan, Wan]]],
           facts => #{copied => Sizes#{file_system => list_to_binary(string:trim(last_line("stat", ["-fc", "%T", Directory])))}}}}.

%% Returns how many bytes the files may occupy. Even if they are on a disk, all of them must fit into memory, so that they stay cached. A tenth is
%% left for the rest of the machine.
room(Directory) -> 9 * min(beamway_bench_os:available_bytes(), list_to_integer(string:trim(last_line("df", ["--output=avail", "-B1", Directory])))) div 10.

last_line(Program, Args) ->
    {0, Lines} = beamway_bench_tools:run(os:find_executable(Program), Args, 10000),
    lists:last(Lines).

sizes(_, Files, _, _) when is_integer(Files), Files < 100 -> {error, "--files: expected at least 100, of which one changes"};
sizes(_, _, Megabytes, _) when is_integer(Megabytes), Megabytes < 1 -> {error, "--megabytes: expected at least 1"};
sizes(Speed, Files, Megabytes, Room) ->
    Wanted = [#{files => given(Files, default_files(Speed)), lan_bytes => Bytes, wan_bytes => min(Bytes, default_far_bytes(Speed))}
              || Bytes <- case Megabytes of undefined -> default_bytes(Speed); _ -> [Megabytes * ?MEGABYTE] end],
    case [Sizes || Sizes <- Wanted, needed(Sizes) =< Room] of
        [Sizes | _] -> {ok, Sizes};
        [] -> {error, io_lib:format("memory and --directory have room for ~b MB, and the files need ~b MB: give --megabytes, --files or --directory",
                                    [Room div ?MEGABYTE, needed(lists:last(Wanted)) div ?MEGABYTE])}
    end.

given(undefined, Default) -> Default;
given(Value, _) -> Value.

default_files(quick) -> 1000;
default_files(full) -> 100000.

%% Returns the first size that fits.
default_bytes(quick) -> [64 * ?MEGABYTE];
default_bytes(full) -> [Count * ?GIGABYTE || Count <- lists:seq(10, 1, -1)].

default_far_bytes(quick) -> 16 * ?MEGABYTE;
default_far_bytes(full) -> ?GIGABYTE.

%% Each large file exists three times: as the source, as the target and as a copy in progress. The small files exist in two versions and two targets.
needed(#{files := Files, lan_bytes := Lan, wan_bytes := Wan}) -> 3 * (Lan + Wan) + 4 * 8192 * Files.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(#{rows := Rows, words := Words}) ->
    [#{nodes => 0, contenders => [Name], directions => [none], measure => fun(none) -> figures(Words, Path, Row, Name) end}
     || {Path, Row, Rivals} <- Rows, Name <- [rdcp_tls, rdcp | Rivals]].

figures(Words, Path, Row, Name) ->
    Figures = beamway_bench_tools:ask("copy", "copy_figures", Words, lists:join(" ", [Path, Row, atom_to_list(Name)]), ?TURN_MS),
    maps:fold(fun(What, Figure, Acc) -> Acc#{key(What, Path, Row) => Figure} end, #{}, Figures).

key(What, Path, Row) -> unicode:characters_to_binary(lists:join(", ", [what(What), path_words(Path), row_words(Row)])).

what(<<"seconds">>) -> "seconds";
what(<<"cpu">>) -> "processor seconds";
what(<<"megabytes">>) -> "on the wire".

path_words("lan") -> "no limit of the rate";
path_words("wan") -> "1 Gbit/s, 50 ms, loss 0.0001".

row_words("small_new") -> "small files, new";
row_words("small_same") -> "small files, unchanged";
row_words("small_changed") -> "small files, 1 % changed";
row_words("large_new") -> "a large file, new";
row_words("large_appended") -> "a large file, 1 % appended";
row_words("large_changed") -> "a large file, 1 % changed in the middle".

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(#{rows := Rows}) ->
    [metric(Row, "", <<"seconds">>, <<"s">>, rdcp_tls) || Row <- Rows]
        ++ [metric({Path, Name, [rdcp_tls]}, "_clear", <<"seconds">>, <<"s">>, rdcp) || {Path, Name, _} <- Rows]
        ++ [metric(Row, "_wire", <<"megabytes">>, <<"MB">>, rdcp_tls) || Row <- Rows]
        ++ [metric(Row, "_cpu", <<"cpu">>, <<"s">>, rdcp_tls) || Row <- Rows].

metric({Path, Row, Rivals}, Suffix, What, Unit, Own) ->
    #{name => unicode:characters_to_binary(["copy_", Path, "_", Row, Suffix]), unit => Unit, better => lower, key => key(What, Path, Row), contender => Own, baselines => Rivals}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

every_metric_is_measured_test() ->
    Measured = [{key(What, Path, Row), Name} || {Path, Row, Rivals} <- ?ROWS, What <- [<<"seconds">>, <<"cpu">>, <<"megabytes">>], Name <- [rdcp_tls, rdcp | Rivals]],
    Metrics = metrics(#{rows => ?ROWS}),
    Names = [Name || #{name := Name} <- Metrics],
    ?assertEqual(length(Names), length(lists:usort(Names))),
    ?assertEqual([], lists:usort([{Key, Name} || #{key := Key, contender := Own, baselines := Others} <- Metrics, Name <- [Own | Others]]) -- Measured),
    ?assertEqual(length(lists:usort(Measured)), 3 * length(groups(#{rows => ?ROWS, words => []}))).

%% If a contender were missing from the list of programs, --only would reject it.
contenders_have_names_test() ->
    ?assertEqual([], lists:usort([rdcp_tls, rdcp | lists:append([Rivals || {_, _, Rivals} <- ?ROWS])]) -- beamway_bench_contender:programs()).

sizes_test_() ->
    Of = fun(Speed, Files, Megabytes, Room) -> case sizes(Speed, Files, Megabytes, Room) of {ok, #{files := F, lan_bytes := Lan, wan_bytes := Wan}} -> {F, Lan, Wan}; {error, _} -> refused end end,
    [?_assertEqual(Want, Of(Speed, Files, Megabytes, Room * ?GIGABYTE))
     || {Want, Speed, Files, Megabytes, Room} <- [{{100000, 10 * ?GIGABYTE, ?GIGABYTE}, full, undefined, undefined, 64}, {{100000, 4 * ?GIGABYTE, ?GIGABYTE}, full, undefined, undefined, 20},
                                                  {{1000, 64 * ?MEGABYTE, 16 * ?MEGABYTE}, quick, undefined, undefined, 1}, {{500, 200 * ?MEGABYTE, 200 * ?MEGABYTE}, full, 500, 200, 2},
                                                  {refused, full, undefined, undefined, 4}, {refused, full, undefined, 2000, 4}, {refused, quick, 99, undefined, 4}, {refused, quick, undefined, 0, 4}]].
-endif.
