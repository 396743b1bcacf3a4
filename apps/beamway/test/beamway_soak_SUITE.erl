%% SPDX-License-Identifier: Apache-2.0
%% @doc A short soak test, started as a user would start it: it runs, evaluates, stores and plots its measurements, and it does find a leak.
-module(beamway_soak_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([sound_and_leaking/1, wrong_words/1]).

-define(RUN_MS, 240000).

suite() -> [{timetrap, {minutes, 5}}].

all() -> [sound_and_leaking, wrong_words].

init_per_suite(Config) ->
    beamway_peer:unless_wrapped("the soak starts its nodes by itself, and what it judges is the VM's own memory", Config).

end_per_suite(_Config) -> ok.

%% Both soak tests run at the same time, because they mostly wait. Half a minute proves nothing about memory, but the numbers of descriptors and
%% ports must stay flat.
sound_and_leaking(Config) ->
    Sound = beamway_peer:async(fun() -> soak(Config, "sound", ["--minutes", "0.5", "--events-s", "3", "--seed", "1"]) end),
    Leaking = beamway_peer:async(fun() -> soak(Config, "leaking", ["--minutes", "0.4", "--events-s", "100", "--leak",
                                                                   "--nodes", "3", "--link", "tcp"]) end),
    ok = is_sound(beamway_peer:await(Sound, ?RUN_MS)),
    ok = is_leaking(beamway_peer:await(Leaking, ?RUN_MS)).

is_sound({0, Out, Soak}) ->
    #{<<"well">> := true, <<"errors">> := [], <<"risen_at_rest">> := [], <<"findings">> := Findings,
      <<"sample_count">> := Samples,
      <<"events">> := #{<<"cuts">> := Cuts, <<"stops">> := Stops},
      <<"work">> := #{<<"errors">> := 0, <<"calls">> := Calls, <<"messages">> := Messages, <<"exits">> := Exits}} = Soak,
    {true, _} = {Calls > 0 andalso Messages > 0 andalso Exits > 0, Soak},
    {true, _} = {Cuts + Stops >= 2, {Cuts, Stops}},
    {true, _} = {Samples > 10, Samples},
    [<<"flat">>, <<"flat">>] = verdicts(<<"descriptors">>, Findings),
    [<<"too_short">>, <<"too_short">>] = verdicts(<<"rss">>, Findings),
    {match, _} = re:run(Out, "(?m)^verdict: flat$"),
    ok.

is_leaking({1, Out, #{<<"well">> := false, <<"errors">> := [], <<"findings">> := Findings}}) ->
    [<<"grows">>, <<"flat">>, <<"flat">>] = verdicts(<<"descriptors">>, Findings),
    {match, _} = re:run(Out, "(?m)^open descriptors +1 .* GROWS$"),
    ok.

wrong_words(_Config) ->
    [{2, Words} = {element(1, run(Words)), Words}
     || Words <- [["--minutes", "soon"], ["--nodes", "7"], ["more"]]],
    {0, Help} = run(["--help"]),
    {match, _} = re:run(Help, "exit status"),
    ok.

verdicts(Figure, Findings) ->
    [Verdict || #{<<"figure">> := F, <<"verdict">> := Verdict} <- Findings, F =:= Figure].

soak(Config, Name, Words) ->
    File = filename:join(proplists:get_value(priv_dir, Config), Name ++ ".json"),
    %% Other tests run on this machine at the same time.
    {Status, Out} = run(["--force", "--save", File | Words]),
    ct:log("~ts", [Out]),
    {ok, Json} = file:read_file(File),
    {ok, <<"<svg ", _/binary>>} = file:read_file(filename:rootname(File) ++ ".svg"),
    {Status, Out, jiffy:decode(Json, [return_maps])}.

run(Words) ->
    Beamway = test_support:file("bin/beamway"),
    {Status, Lines} = beamway_bench_tools:run(Beamway, ["soak" | Words], ?RUN_MS),
    {Status, lists:append(Lines)}.
