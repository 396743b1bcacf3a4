%% SPDX-License-Identifier: Apache-2.0
%% @doc Reads and writes the results in `bench/results'. No other module accesses them.
%%
%% Every result contains the name of its benchmark (`bench'), its commit, time, machine and command, and its number of repeats. A result that lacks
%% any of these is neither written nor read.
%%
%% A result that is meant for the pages is rejected if other work ran on the machine while it was measured, unless storing it is forced. Programs that
%% are not written in Erlang call `scripts/figures begin' before they measure, and `scripts/figures store' afterwards.
-module(beamway_bench_store).

-export([file/1, context/2, begun/3, begun_in/1, ended/1, publish/3, write/2, write_text/2, read/1, changed_tree/1, age/1, to_text/2]).

-export_type([stored/0]).

-type stored() :: #{binary() => term()}.
%% The JSON object as jiffy decodes it.

%% @doc Returns the file of the result with this name.
-spec file(Name :: string()) -> file:filename().
file(Name) -> filename:join([beamway_bench_checkout:root(), "bench", "results", Name ++ ".json"]).

%% @doc Returns the fields that every result needs. Call this before the measurement, because the measurement changes the machine's load average.
-spec context(Bench :: unicode:chardata(), Command :: unicode:chardata()) -> #{atom() => term()}.
context(Bench, Command) ->
    #{bench => unicode:characters_to_binary(Bench), command => unicode:characters_to_binary(Command),
      commit => beamway_bench_machine:commit(), measured_at => erlang:system_time(second),
      machine => beamway_bench_machine:machine(), versions => beamway_bench_machine:versions(), stolen_ms => beamway_bench_machine:stolen_ms()}.

%% @doc Waits until the machine is quiet, and returns the context of a measurement that will be published. A forced measurement does not wait.
-spec begun(Bench :: unicode:chardata(), Command :: unicode:chardata(), Force :: boolean()) -> {ok, #{atom() => term()}} | {error, unicode:chardata()}.
begun(Bench, Command, Force) ->
    Waiting = fun(Load) -> io:format(standard_error, "~ts: waiting for a quiet machine: the load average is ~.2f~n", [Bench, Load]) end,
    case Force orelse beamway_bench_machine:await_quiet(Waiting) of
        {loud, Load} -> {error, refusal(beamway_bench_machine:noise(Load))};
        _ -> {ok, context(Bench, Command)}
    end.

%% @doc Reads the context that `scripts/figures begin' has written.
-spec begun_in(file:filename()) -> {ok, #{atom() => term()}} | {error, unicode:chardata()}.
begun_in(File) ->
    case file:consult(File) of
        {ok, [#{stolen_ms := _} = Context]} -> {ok, Context};
        {ok, _} -> {error, [File, " was not written by scripts/figures begin"]};
        {error, Reason} -> {error, [File, ": ", file:format_error(Reason)]}
    end.

%% @doc Adds the reasons why the measurement that has just ended was disturbed (`noisy'). Reasons
%% that the caller has already set are kept, because the caller knows that the result does not
%% depend on other work on the machine.
-spec ended(Object :: map()) -> map().
ended(#{stolen_ms := StolenMs, measured_at := Start, machine := #{load_average := Load}} = Object) ->
    Noise = beamway_bench_machine:noise(Load) ++ beamway_bench_machine:stolen(Start, StolenMs),
    maps:merge(#{noisy => [unicode:characters_to_binary(Why) || Why <- Noise]}, maps:remove(stolen_ms, Object));
ended(Object) -> Object.

%% @doc Stores a result that is meant for the pages. If other work ran on the machine, this must be
%% forced, and the pages then mark the result as noisy.
-spec publish(file:filename(), Object :: map(), Force :: boolean()) -> ok | {error, unicode:chardata()}.
publish(File, Object, Force) ->
    case ended(Object) of
        #{noisy := [_ | _] = Why} when not Force -> {error, refusal(Why)};
        Ended -> write(File, Ended)
    end.

refusal([Why | _]) -> ["not stored, because ", Why, ". --force (or FORCE=1 with make) stores it and marks it as noisy"].

%% @doc Stores the object atomically, so that a reader never sees a partially written file.
-spec write(file:filename(), Object :: map()) -> ok | {error, unicode:chardata()}.
write(File, Object) ->
    Stored = without_samples(jiffy:decode(jiffy:encode(ended(timed(Object)), [force_utf8]), [return_maps])),
    case check(Stored) of
        ok -> write_text(File, [jiffy:encode(Stored, [force_utf8]), $\n]);
        {error, Why} -> {error, ["not stored, ", Why]}
    end.

%% The values of each repeat are kept only if a picture is drawn from them.
without_samples(#{<<"metrics">> := _, <<"figures">> := _} = Object) when not is_map_key(<<"drawn">>, Object) -> maps:remove(<<"figures">>, Object);
without_samples(Object) -> Object.

%% `make bench-all' uses the duration to predict how long the benchmark will take the next time.
timed(#{measured_at := Start} = Object) when not is_map_key(seconds, Object) -> Object#{seconds => max(0, erlang:system_time(second) - Start)};
timed(Object) -> Object.

%% @doc Stores any text atomically.
-spec write_text(file:filename(), unicode:chardata()) -> ok | {error, unicode:chardata()}.
write_text(File, Text) ->
    New = File ++ ".new",
    case {filelib:ensure_dir(File), file:write_file(New, unicode:characters_to_binary(Text))} of
        {ok, ok} -> done(File, file:rename(New, File));
        {ok, Error} -> done(File, Error);
        {Error, _} -> done(File, Error)
    end.

done(_, ok) -> ok;
done(File, {error, Reason}) -> {error, ["cannot write ", File, ": ", file:format_error(Reason)]}.

%% @doc Returns the object of a result.
-spec read(file:filename()) -> {ok, stored()} | {error, unicode:chardata()}.
read(File) ->
    case file:read_file(File) of
        {ok, Text} ->
            try
                Object = jiffy:decode(Text, [return_maps]),
                {check(Object), Object}
            of
                {ok, Result} -> {ok, Result};
                {{error, Why}, _} -> {error, [File, ": ", Why]}
            catch
                _:_ -> {error, [File, " is not valid JSON"]}
            end;
        {error, Reason} -> {error, ["cannot read ", File, ": ", file:format_error(Reason)]}
    end.

%% ---- what a result must contain

%% Checks whether the object is a complete result.
-spec check(term()) -> ok | {error, unicode:chardata()}.
check(Object) when is_map(Object) ->
    Wrong = wrong("", fields(), Object) ++ wrong_metrics(Object),
    case Wrong of
        [] -> ok;
        _ -> {error, ["this is not a result of a measurement: ", lists:join("; ", Wrong)]}
    end;
check(_) -> {error, "this is not a result of a measurement: expected an object"}.

fields() ->
    [{<<"bench">>, "a name", fun is_text/1},
     {<<"commit">>, "a hash, with -dirty for a changed tree, or unknown", fun is_commit/1},
     {<<"measured_at">>, "seconds since 1970", fun is_count/1},
     {<<"command">>, "the command that measures it again", fun is_text/1},
     {<<"repeats">>, "how often it was measured, from 1", fun is_count/1},
     {<<"machine">>, "an object", fun is_map/1}].

machine_fields() ->
    [{<<"processor">>, "a name", fun is_text/1},
     {<<"processors">>, "a number from 1", fun is_count/1},
     {<<"load_average">>, "the load before the measurement", fun is_number/1}].

metric_fields() ->
    [{<<"name">>, "a name", fun is_text/1},
     {<<"unit">>, "a unit", fun is_text/1},
     {<<"beamway">>, "a number", fun is_number/1},
     {<<"ratio">>, "a number or null", fun(Value) -> is_number(Value) orelse Value =:= null end},
     {<<"interval">>, "two numbers or null", fun is_interval/1},
     {<<"verdict">>, "wins, even, loses, unknown or null", fun(Value) -> lists:member(Value, [<<"wins">>, <<"even">>, <<"loses">>, <<"unknown">>, null]) end}].

wrong(Prefix, Fields, Object) ->
    [[Prefix, Name, ": expected ", What, case Object of #{Name := Value} -> io_lib:format(", found ~0tp", [Value]); #{} -> "" end]
     || {Name, What, Is} <- Fields, not (is_map_key(Name, Object) andalso Is(map_get(Name, Object)))]
        ++ case Object of
               #{<<"machine">> := #{} = Machine} when Prefix =:= "" -> wrong("machine.", machine_fields(), Machine);
               #{} -> []
           end.

wrong_metrics(#{<<"metrics">> := Metrics}) when is_list(Metrics) ->
    lists:append([wrong([maps:get(<<"name">>, Metric, <<"metric">>), "."], metric_fields(), Metric) || Metric <- Metrics]);
wrong_metrics(#{<<"metrics">> := _}) -> ["metrics: expected a list"];
wrong_metrics(#{}) -> [].

is_text(Value) -> is_binary(Value) andalso Value =/= <<>>.
is_count(Value) -> is_integer(Value) andalso Value > 0.
is_commit(Value) -> is_binary(Value) andalso re:run(Value, "^([0-9a-f]{7,40}(-dirty)?|unknown)$", [{capture, none}]) =:= match.
is_interval([Low, High]) -> is_number(Low) andalso is_number(High) andalso Low =< High;
is_interval(Value) -> Value =:= null.

%% @doc Returns whether the result was measured on a tree that does not correspond to a commit.
-spec changed_tree(stored()) -> boolean().
changed_tree(#{<<"commit">> := Commit}) -> Commit =:= <<"unknown">> orelse string:find(Commit, "-dirty") =/= nomatch.

%% ---- human-readable text

%% @doc Returns the age and commit of a result, as text.
-spec age(stored()) -> unicode:chardata().
age(#{<<"measured_at">> := Seconds, <<"commit">> := Commit}) ->
    io_lib:format("measured ~ts, at commit ~ts", [days((erlang:system_time(second) - Seconds) div 86400), Commit]).

days(Days) when Days =< 0 -> "today";
days(1) -> "yesterday";
days(Days) -> io_lib:format("~b days ago", [Days]).

%% @doc Returns a table of the metrics whose names begin with this prefix.
-spec to_text(Prefix :: binary(), stored()) -> unicode:chardata().
to_text(Prefix, #{<<"metrics">> := Metrics}) ->
    Rows = [row(Metric) || #{<<"name">> := Name} = Metric <- Metrics, string:prefix(Name, Prefix) =/= nomatch],
    beamway_bench_text:table([["metric", "Beamway", "baseline", "", "unit", "ratio"] | Rows]).

row(#{<<"name">> := Name, <<"beamway">> := Own, <<"unit">> := Unit, <<"baseline">> := null}) ->
    [Name, {right, beamway_bench_text:number(Own)}, "", "", Unit, ""];
row(#{<<"name">> := Name, <<"beamway">> := Own, <<"unit">> := Unit, <<"baseline">> := Base, <<"baseline_name">> := Other,
      <<"ratio">> := Ratio, <<"interval">> := Interval} = Metric) ->
    [Name, {right, beamway_bench_text:number(Own)}, Other, {right, beamway_bench_text:number(Base)}, Unit,
     beamway_bench_text:ratio(Ratio, Interval, maps:get(<<"range">>, Metric, null))].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

stored() ->
    #{<<"bench">> => <<"cost">>, <<"command">> => <<"x">>, <<"repeats">> => 2, <<"commit">> => <<"0123abc">>,
      <<"machine">> => #{<<"processor">> => <<"p">>, <<"processors">> => 2, <<"load_average">> => 0.5},
      <<"measured_at">> => erlang:system_time(second) - 3 * 86400 - 5,
      <<"metrics">> => [#{<<"name">> => <<"cost_rdma_syscalls">>, <<"beamway">> => 0.5, <<"unit">> => <<"1/message">>,
                          <<"baseline">> => 2.0, <<"baseline_name">> => <<"tcp">>, <<"ratio">> => 0.25, <<"interval">> => [0.2, 0.3], <<"verdict">> => <<"wins">>},
                        #{<<"name">> => <<"cost_shm_syscalls">>, <<"beamway">> => 0.1, <<"unit">> => <<"1/message">>,
                          <<"baseline">> => null, <<"ratio">> => null, <<"interval">> => null, <<"verdict">> => null}]}.

only_what_was_asked_for_test() ->
    Text = unicode:characters_to_binary(to_text(<<"cost_rdma_">>, stored())),
    ?assertNotEqual(nomatch, string:find(Text, "cost_rdma_syscalls     0.50  tcp")),
    ?assertEqual(nomatch, string:find(Text, "shm")).

age_test() ->
    ?assertEqual(<<"measured 3 days ago, at commit 0123abc">>, unicode:characters_to_binary(age(stored()))).

each_field_is_needed_test_() ->
    Machine = maps:get(<<"machine">>, stored()),
    [?_assertEqual(ok, check(stored()))]
        ++ [{Key, ?_assertMatch({error, _}, check(maps:remove(Key, stored())))} || Key <- maps:keys(stored()), Key =/= <<"metrics">>]
        ++ [{Key, ?_assertMatch({error, _}, check((stored())#{<<"machine">> := maps:remove(Key, Machine)}))} || Key <- maps:keys(Machine)].

wrong_values_test_() ->
    [?_assertMatch({error, _}, check(Object))
     || Object <- [7, [], #{}] ++ [(stored())#{Key => Value} || {Key, Value} <- [{<<"commit">>, <<"main">>}, {<<"commit">>, <<"0123abc-changed">>}, {<<"repeats">>, 0},
                                                                                  {<<"measured_at">>, <<"today">>}, {<<"metrics">>, #{}}, {<<"metrics">>, [#{}]}]]].

changed_tree_test_() ->
    [?_assertEqual(Want, changed_tree((stored())#{<<"commit">> := Commit})) || {Want, Commit} <- [{false, <<"0123abc">>}, {true, <<"0123abc-dirty">>}, {true, <<"unknown">>}]].

%% A result can be read back after it has been written, and an object that is not a result is not written.
write_test() ->
    "/" ++ _ = Folder = string:trim(os:cmd("mktemp -d")),
    File = filename:join([Folder, "new", "x.json"]),
    Object = maps:merge(context("x", "y"), #{repeats => 3, what => 7}),
    ok = write(File, Object),
    ?assertMatch({ok, #{<<"bench">> := <<"x">>, <<"what">> := 7, <<"seconds">> := _}}, read(File)),
    ?assertMatch({error, _}, write(File, maps:remove(repeats, Object))),
    ?assertMatch({ok, #{<<"what">> := 7}}, read(File)),
    ok = file:del_dir_r(Folder),
    ?assertMatch({error, _}, write("/proc/nowhere/x.json", Object)).

%% A noisy result is rejected unless storing it is forced; the file then says why it is noisy. A result that does not depend on other work is always
%% stored.
publish_test_() ->
    {setup, fun() -> string:trim(os:cmd("mktemp -d")) end, fun file:del_dir_r/1,
     fun(Folder) ->
             #{machine := Machine, stolen_ms := StolenMs} = Context = (context("x", "y"))#{repeats => 1},
             Of = fun(Load) -> Context#{machine := Machine#{load_average := Load}} end,
             Kept = fun(Object, Force) ->
                            File = filename:join(Folder, "x.json"),
                            _ = file:delete(File),
                            case publish(File, Object, Force) of
                                ok -> {ok, Stored} = read(File), maps:with([<<"noisy">>, <<"stolen_ms">>], Stored);
                                {error, Why} -> {false, string:find(Why, "--force") =/= nomatch, filelib:is_file(File)}
                            end
                    end,
             [?_assertEqual(#{<<"noisy">> => []}, Kept((Of(0.1))#{stolen_ms := StolenMs + 1000000}, false)),
              ?_assertEqual({false, true, false}, Kept(Of(3.0), false)), ?_assertMatch(#{<<"noisy">> := [<<"the load average was 3.00", _/binary>>]}, Kept(Of(3.0), true)),
              ?_assertEqual({false, true, false}, Kept((Of(0.1))#{stolen_ms := StolenMs - 1000000}, false)),
              ?_assertEqual(#{<<"noisy">> => []}, Kept((Of(3.0))#{noisy => []}, false))]
     end}.

%% The context of a program that is not written in Erlang can be read back from its file.
begun_test() ->
    {ok, Context} = begun("x", "y 'z'", true),
    Folder = string:trim(os:cmd("mktemp -d")),
    File = filename:join(Folder, "began"),
    ok = file:write_file(File, io_lib:format("~0tp.~n", [Context])),
    ?assertEqual({ok, Context}, begun_in(File)),
    ok = file:write_file(File, "7."),
    ?assertMatch({error, _}, begun_in(File)),
    ok = file:del_dir_r(Folder),
    ?assertMatch({error, _}, begun_in(File)).

samples_test_() ->
    Result = #{<<"metrics">> => [], <<"figures">> => [1]},
    [?_assertEqual(#{<<"metrics">> => []}, without_samples(Result)), ?_assertEqual(Result#{<<"drawn">> => true}, without_samples(Result#{<<"drawn">> => true})),
     %% A table is generated from these values.
     ?_assertEqual(#{<<"figures">> => [1]}, without_samples(#{<<"figures">> => [1]}))].

read_test_() ->
    [?_assertMatch({error, _}, read("/nowhere/x.json")), ?_assertMatch({error, _}, read("/proc/self/status"))].
-endif.
