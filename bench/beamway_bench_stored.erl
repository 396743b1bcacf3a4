%% SPDX-License-Identifier: Apache-2.0
%% @doc Reads a stored result again, for those who cannot measure it where they are.
-module(beamway_bench_stored).

-export([read/1, age/1, to_text/2]).

-export_type([stored/0]).

-opaque stored() :: #{binary() => term()}.

%% @doc The object of a result that {@link beamway_bench_report:save/2} has written.
-spec read(file:filename()) -> {ok, stored()} | {error, unicode:chardata()}.
read(File) ->
    case file:read_file(File) of
        {ok, Text} ->
            try jiffy:decode(Text, [return_maps]) of
                #{<<"metrics">> := Metrics} = Stored when is_list(Metrics) -> {ok, Stored};
                _ -> {error, [File, " holds no result of a benchmark"]}
            catch
                error:_ -> {error, [File, " is no JSON"]}
            end;
        {error, Reason} -> {error, ["cannot read ", File, ": ", file:format_error(Reason)]}
    end.

%% @doc When it was measured, and on which commit, in words.
-spec age(stored()) -> unicode:chardata().
age(#{<<"measured_at">> := Seconds, <<"commit">> := Commit}) when is_integer(Seconds) ->
    io_lib:format("measured ~ts, at commit ~ts", [days((erlang:system_time(second) - Seconds) div 86400), Commit]);
age(#{}) ->
    "measured at an unknown time".

days(Days) when Days =< 0 -> "today";
days(1) -> "yesterday";
days(Days) -> io_lib:format("~b days ago", [Days]).

%% @doc A table of the metrics whose names begin so.
-spec to_text(Prefix :: binary(), stored()) -> unicode:chardata().
to_text(Prefix, #{<<"metrics">> := Metrics}) ->
    Rows = [row(Metric) || #{<<"name">> := Name} = Metric <- Metrics, string:prefix(Name, Prefix) =/= nomatch],
    beamway_bench_report:table([["metric", "Beamway", "baseline", "", "unit", "ratio"] | Rows]).

row(#{<<"name">> := Name, <<"beamway">> := Own, <<"unit">> := Unit, <<"baseline">> := null}) ->
    [Name, {right, beamway_bench_report:number(Own)}, "", "", Unit, ""];
row(#{<<"name">> := Name, <<"beamway">> := Own, <<"unit">> := Unit, <<"baseline">> := Base, <<"baseline_name">> := Other,
      <<"ratio">> := Ratio} = Entry) ->
    [Name, {right, beamway_bench_report:number(Own)}, Other, {right, beamway_bench_report:number(Base)}, Unit,
     beamway_bench_report:ratio(Ratio, maps:get(<<"interval">>, Entry, null))].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

stored() ->
    #{<<"commit">> => <<"abc">>, <<"measured_at">> => erlang:system_time(second) - 3 * 86400 - 5,
      <<"metrics">> => [#{<<"name">> => <<"cost_rdma_syscalls">>, <<"beamway">> => 0.5, <<"unit">> => <<"1/message">>,
                          <<"baseline">> => 2.0, <<"baseline_name">> => <<"tcp">>, <<"ratio">> => 0.25},
                        #{<<"name">> => <<"cost_shm_syscalls">>, <<"beamway">> => 0.1, <<"unit">> => <<"1/message">>,
                          <<"baseline">> => null}]}.

only_what_was_asked_for_test() ->
    Text = unicode:characters_to_binary(to_text(<<"cost_rdma_">>, stored())),
    ?assertNotEqual(nomatch, string:find(Text, "cost_rdma_syscalls     0.50  tcp")),
    ?assertEqual(nomatch, string:find(Text, "shm")).

age_test_() ->
    [?_assertEqual(<<"measured 3 days ago, at commit abc">>, unicode:characters_to_binary(age(stored()))),
     ?_assertEqual("measured at an unknown time", age(#{}))].

read_test_() ->
    [?_assertMatch({error, _}, read("/nowhere/x.json")), ?_assertMatch({error, _}, read("/proc/self/status"))].
-endif.
