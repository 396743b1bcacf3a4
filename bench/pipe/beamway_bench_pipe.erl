%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench pipe': how close do rdpipe's carriers come to their limits, and how do other programs perform over the same path?
%%
%% The hosts are the network namespaces from the pipe's own tests, each with an sshd. `pipe_figures' controls them and runs for the whole
%% benchmark. Streams go from host to host over a path shaped to 4 Gbit/s (`fast') and over a path that is as fast as the kernel (`free'), from
%% `/dev/zero' to `/dev/null' on the same host, and through four hosts whose hops are shaped to 1 Gbit/s. In addition, a 64-byte line goes to a remote
%% `cat' and back.
%%
%% `--part wan' sends over paths with 1 Gbit/s, round trips of 20, 50 and 100 ms and loss rates from 0 to 0.1 % (`native/test/path'). It measures how
%% much has arrived after a fixed time, which includes start-up and is the same for all contenders. One path is also measured for a minute, so that
%% the start-up hardly counts. `--quick' measures three of the paths, and `--path wan-50-0.0001' measures only that one.
%%
%% `--part recipes' measures how long each recipe of the guide takes with rdpipe and with ssh: a tree, a container's layers, a disk image with holes
%% and, where ffmpeg and PostgreSQL are installed, a video and a database. The benchmark needs root.
-module(beamway_bench_pipe).
-behaviour(beamway_bench).

-export([options/0, prepare/2, groups/1, metrics/1]).
%% Called by beamway_bench_copy.
-export([can_run/1]).

-define(TURN_MS, 180000).
-define(BLOCKS, ["4K", "16K", "64K", "256K", "1M", "8M"]).
-define(PATHS, [{"fast", [rdpipe, iperf3, ssh, mbuffer, nc, socat]},
                {"free", [rdpipe, rdpipe_unchecked, rdpipe_tls, iperf3, ssh, mbuffer, nc, socat]},
                {"local", [rdpipe, rdpipe_commands, cat]},
                {"four", [rdpipe, rdpipe_one]},
                {"echo", [rdpipe, ssh]}]).
-define(LONG, [rdpipe, rdpipe_one, rdpipe_tls, iperf3, iperf3_4, iperf3_8, ssh, scp, mbuffer]).
-define(RECIPES, [{"tree", "a directory tree"}, {"container", "a container's layers"}, {"disk", "a disk image with holes"}, {"video", "a video"},
                  {"database", "a database"}]).
-define(QUICK_LONG, ["wan-50-0", "wan-50-0.0001", "wan-100-0.0001"]).
-define(MINUTE, "wan-50-0.0001-60").

%% @private
-spec options() -> [getopt:option_spec()].
options() ->
    [{path, undefined, "path", string, "only this one: fast, free, local, four, echo or blocks; with --part wan, such as wan-50-0.0001"},
     {part, undefined, "part", {string, "near"}, "near: hosts side by side; wan: long paths of 1 Gbit/s with delay and loss; recipes: those of the guide, beside ssh"}].

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()} | {error, unicode:chardata()}.
prepare(Given, Speed) ->
    Path = proplists:get_value(path, Given, all),
    Part = proplists:get_value(part, Given),
    Known = known(Part, Speed),
    case {can_run(["iperf3", "mbuffer", "socat", "nc", "tc"]), Path =:= all orelse lists:member(Path, Known)} of
        _ when Part =/= "near", Part =/= "wan", Part =/= "recipes" -> {error, ["--part ", Part, ": expected near, wan or recipes"]};
        {{error, Why}, _} -> {error, Why};
        {_, false} -> {error, ["--path ", Path, ": --part ", Part, " has ", case Known of [] -> "no paths"; _ -> lists:join(", ", Known) end]};
        _ -> {ok, #{path => Path, long => [Long || Long <- long_paths(Part, Speed), Path =:= all orelse Long =:= Path], recipes => recipes(Part), seconds => case Speed of quick -> "0.3"; full -> "1.2" end}}
    end.

known("near", _) -> ["blocks" | [Name || {Name, _} <- ?PATHS]];
known(Part, Speed) -> long_paths(Part, Speed).

long_paths("wan", quick) -> ?QUICK_LONG;
long_paths("wan", full) -> [lists:concat(["wan-", Ms, "-", Loss]) || Ms <- [20, 50, 100], Loss <- ["0", "0.00001", "0.0001", "0.001"]] ++ [?MINUTE];
long_paths(_, _) -> [].

recipes("recipes") -> [Name || {Name, _} <- ?RECIPES, can(Name)];
recipes(_) -> [].

can("video") -> os:find_executable("ffmpeg") =/= false;
can("database") -> filelib:wildcard("/usr/lib/postgresql/*/bin/initdb") =/= [];
can(_) -> true.

%% @doc Returns whether the hosts of rdpipe's tests can be created here, with rdpipe and these programs on them.
-spec can_run(Programs :: [string()]) -> ok | {error, unicode:chardata()}.
can_run(Programs) ->
    Missing = [Program || Program <- ["python3", "ip", "ss", "ssh" | Programs], os:find_executable(Program) =:= false],
    IsBuilt = filelib:is_regular(filename:join([beamway_bench_checkout:root(), "rdpipe", "build", "bin", "rdpipe"])),
    case {string:trim(os:cmd("id -u")), Missing, IsBuilt} of
        {"0", [], true} -> ok;
        {"0", [], false} -> {error, "rdpipe is not built. Run: make build, with libssl-dev installed"};
        {"0", _, _} -> {error, ["missing: ", lists:join(", ", Missing), ". Run: scripts/install-packages bench"]};
        _ -> {error, "the hosts are network namespaces, so it must be run as root"}
    end.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(#{recipes := [_ | _] = Recipes, seconds := Seconds}) -> [group(Seconds, "recipe-" ++ Recipe, Name) || Recipe <- Recipes, Name <- [rdpipe, ssh]];
groups(#{long := [_ | _] = Paths, seconds := Seconds}) -> [group(Seconds, Path, Name) || Path <- Paths, Name <- long_contenders(Path)];
groups(#{path := Only, seconds := Seconds}) ->
    [group(Seconds, Path, Name)
     || {Path, Names} <- ?PATHS ++ blocks(Only), Only =:= all orelse Only =:= Path orelse Only =:= "blocks" andalso is_block(Path), Name <- Names].

group(Seconds, Path, Name) -> #{nodes => 0, contenders => [Name], directions => [none], measure => fun(none) -> figures(Seconds, Path, Name) end}.

long_contenders(?MINUTE) -> [rdpipe, rdpipe_tls, iperf3_8];
long_contenders(_) -> ?LONG.

blocks(Only) when Only =:= all; Only =:= "blocks" -> [{Kind ++ "-" ++ Block, [rdpipe]} || Kind <- ["tcp", "shm"], Block <- ?BLOCKS];
blocks(_) -> [].

is_block(Path) -> lists:member($-, Path).

figures(Seconds, Path, Name) ->
    Figures = beamway_bench_tools:ask("pipe", "pipe_figures", [Seconds], [Path, " ", atom_to_list(Name)], ?TURN_MS),
    maps:fold(fun(What, Figure, Acc) -> Acc#{key(What, Path) => Figure} end, #{}, Figures).

key(<<"rate">>, Path) -> unicode:characters_to_binary(["bytes a second, ", path_words(Path)]);
key(<<"cpu">>, Path) -> unicode:characters_to_binary(["processor seconds a GB, ", path_words(Path)]);
key(<<"seconds">>, Path) -> unicode:characters_to_binary(["seconds, ", path_words(Path)]);
key(<<"rtt">>, Path) -> unicode:characters_to_binary(["round trip, ", path_words(Path)]).

path_words("fast") -> "4 Gbit/s";
path_words("free") -> "unshaped";
path_words("local") -> "one host";
path_words("four") -> "hops of 1 Gbit/s";
path_words("echo") -> "64 B through two hops";
path_words("recipe-" ++ Recipe) -> proplists:get_value(Recipe, ?RECIPES);
path_words("wan-" ++ Long) ->
    [Ms, Loss | Seconds] = string:lexemes(Long, "-"),
    ["1 Gbit/s, ", Ms, " ms", [[", loss ", Loss] || Loss =/= "0"], [[", ", S, " s"] || S <- Seconds]];
path_words(Block) ->
    [Kind, Size] = string:lexemes(Block, "-"),
    [Kind, " in blocks of ", Size].

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(#{recipes := [_ | _] = Recipes}) ->
    [#{name => unicode:characters_to_binary(["recipe_", Recipe]), unit => <<"s">>, better => lower, key => key(<<"seconds">>, "recipe-" ++ Recipe),
       contender => rdpipe, baselines => [ssh]} || Recipe <- Recipes];
metrics(#{long := [_ | _] = Paths}) ->
    [long_rate(Path, [], rdpipe, long_contenders(Path) -- [rdpipe, ssh]) || Path <- Paths]
        ++ [long_rate(Path, "_ssh", rdpipe, [ssh]) || Path <- Paths, lists:member(ssh, long_contenders(Path))]
        ++ [long_rate(Path, "_tls", rdpipe_tls, [iperf3_8]) || Path <- Paths];
metrics(#{}) ->
    Others = [iperf3, mbuffer, nc, socat],
    [rate(Name, "fast", rdpipe, Baselines) || {Name, Baselines} <- [{<<"pipe_tcp_iperf3">>, Others ++ [ssh]}]]
        ++ [rate(Name, "free", Own, Baselines)
            || {Name, Own, Baselines} <- [{<<"pipe_tcp_unshaped">>, rdpipe, Others}, {<<"pipe_tcp_ssh">>, rdpipe, [ssh]},
                                          {<<"pipe_tcp_unchecked">>, rdpipe_unchecked, [iperf3]}, {<<"pipe_tls">>, rdpipe_tls, [iperf3, ssh]}]]
        ++ [#{name => Name, unit => <<"s">>, better => lower, key => key(<<"cpu">>, Path), contender => Own, baselines => Others ++ [ssh]}
            || {Name, Path, Own} <- [{<<"pipe_cpu">>, "fast", rdpipe}, {<<"pipe_cpu_unshaped">>, "free", rdpipe}, {<<"pipe_cpu_tls">>, "free", rdpipe_tls}]]
        ++ [rate(<<"pipe_shm_cat">>, "local", rdpipe, [cat]), rate(<<"pipe_shm_commands">>, "local", rdpipe_commands, [cat]),
            rate(<<"pipe_four">>, "four", rdpipe, [rdpipe_one]),
            #{name => <<"pipe_echo_64">>, unit => <<"us">>, better => lower, key => key(<<"rtt">>, "echo"), contender => rdpipe, baselines => [ssh]}]
        ++ [rate(unicode:characters_to_binary(["pipe_", Kind, "_block_", string:lowercase(Size)]), Kind ++ "-" ++ Size, rdpipe, [])
            || Kind <- ["tcp", "shm"], Size <- ?BLOCKS].

%% Examples of the names are wan_50, wan_50_loss for a loss rate of 0.0001, wan_50_loss_0.001 for other rates, and wan_50_loss_60s for a path that is
%% measured for a minute.
long_rate(Path, Suffix, Own, Baselines) ->
    ["wan", Ms, Loss | Seconds] = string:lexemes(Path, "-"),
    Lossy = case Loss of "0" -> []; "0.0001" -> "_loss"; _ -> ["_loss_", Loss] end,
    rate(unicode:characters_to_binary(["wan_", Ms, Lossy, [["_", S, "s"] || S <- Seconds], Suffix]), Path, Own, Baselines).

rate(Name, Path, Own, Baselines) ->
    #{name => Name, unit => <<"B/s">>, better => higher, key => key(<<"rate">>, Path), contender => Own, baselines => Baselines}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

every_path_has_its_metric_test() ->
    Settings = #{path => all, long => [], seconds => "1"},
    Measured = [{key(What, Path), Name} || {Path, Names} <- ?PATHS, Name <- Names, What <- whats(Path)],
    [?assert(lists:member({Key, Name}, Measured))
     || #{key := Key, contender := Own, baselines := Others, name := Metric} <- metrics(Settings), Name <- [Own | Others],
        string:find(Metric, "_block_") =:= nomatch].

whats("echo") -> [<<"rtt">>];
whats(Path) when Path =:= "fast"; Path =:= "free" -> [<<"rate">>, <<"cpu">>];
whats(_) -> [<<"rate">>].

only_one_path_test() ->
    Count = fun(Path) -> length(groups(#{path => Path, long => [], seconds => "1"})) end,
    ?assertEqual(2, Count("echo")),
    ?assertEqual(2 * length(?BLOCKS), Count("blocks")),
    ?assertEqual(Count("fast") + Count("free") + Count("local") + Count("four") + Count("echo") + Count("blocks"), Count(all)).

recipes_have_their_metrics_test() ->
    Recipes = recipes("recipes"),
    ?assertEqual([], ["tree", "container", "disk"] -- Recipes),
    Settings = #{path => all, long => [], recipes => Recipes, seconds => "1"},
    ?assertEqual(2 * length(Recipes), length(groups(Settings))),
    ?assertEqual([list_to_binary(["recipe_", Recipe]) || Recipe <- Recipes], [Name || #{name := Name} <- metrics(Settings)]).

long_paths_have_their_metrics_test() ->
    Paths = long_paths("wan", full),
    ?assertEqual(13, length(Paths)),
    Settings = #{path => all, long => Paths, seconds => "1"},
    Metrics = metrics(Settings),
    Names = [Name || #{name := Name} <- Metrics],
    ?assertEqual(length(Names), length(lists:usort(Names))),
    [?assert(lists:member(Name, Names)) || Name <- [<<"wan_50">>, <<"wan_50_loss">>, <<"wan_50_ssh">>, <<"wan_50_loss_60s">>, <<"wan_50_loss_60s_tls">>, <<"wan_100_loss">>, <<"wan_20_loss_0.001_tls">>]],
    ?assertEqual(lists:sum([length(long_contenders(Path)) || Path <- Paths]), length(groups(Settings))),
    Measured = [{key(<<"rate">>, Path), Name} || Path <- Paths, Name <- long_contenders(Path)],
    [?assert(lists:member({Key, Name}, Measured)) || #{key := Key, contender := Own, baselines := Others} <- Metrics, Name <- [Own | Others]],
    ?assertEqual([], ?QUICK_LONG -- Paths).
-endif.
