%% SPDX-License-Identifier: Apache-2.0
%% @doc The Common Test hook of {@link beamway_runner}. It prints a line with the elapsed time when a case ends, and the reason for each failure
%% and skip. At the end it sends the counts to the runner.
%%
%% `{skip, {rights, Why}}' means that a permission is missing. With CI=true, which promises all
%% permissions, this counts as a failure.
-module(beamway_runner_cth).

-export([post_groups/2, post_all/3]).
-export([id/1, init/2, pre_init_per_testcase/4, post_end_per_testcase/5, on_tc_fail/4, on_tc_skip/4, terminate/1]).

%% Cases that the level leaves out do not belong to this run, so they are neither run nor skipped.
%% @private
post_groups(Suite, Groups) -> beamway_level:groups(beamway_level:current(), beamway_level:words(Suite), Groups).

%% @private
post_all(Suite, All, _) when is_list(All) ->
    beamway_level:all(beamway_level:current(), beamway_level:words(Suite), All, groups(Suite));
post_all(_, Return, _) -> Return.

groups(Suite) ->
    case erlang:function_exported(Suite, groups, 0) of
        true -> Suite:groups();
        false -> []
    end.

%% Common Test runs the cases of a parallel group in several processes, but only one process at a time calls a hook.
%% @private
id(_) -> ?MODULE.

%% @private
init(_, Runner) ->
    {ok, #{runner => Runner, started => #{}, passed => 0, failed => 0, skipped => 0, broken => 0}}.

%% @private
pre_init_per_testcase(_, Case, Config, #{started := Started} = State) ->
    {Config, State#{started := Started#{Case => erlang:monotonic_time(millisecond)}}}.

%% @private
post_end_per_testcase(Suite, Case, Config, Result, State) ->
    case is_failure(Result) orelse is_skip(Result) of
        true -> {Result, State};
        false ->
            beamway_runner:say("ok   ~ts~ts:~ts~ts", [Suite, group(Config), Case, seconds(Case, State)]),
            {Result, add(passed, State)}
    end.

is_failure({error, _}) -> true;
is_failure({failed, _}) -> true;
is_failure({fail, _}) -> true;
is_failure({'EXIT', _}) -> true;
is_failure({timetrap_timeout, _}) -> true;
is_failure(_) -> false.

is_skip({skip, _}) -> true;
is_skip({skipped, _}) -> true;
is_skip(_) -> false.

group(Config) ->
    case proplists:get_value(name, proplists:get_value(tc_group_properties, Config, [])) of
        undefined -> "";
        Name -> io_lib:format(" (~tp)", [Name])
    end.

seconds({Case, _}, State) -> seconds(Case, State);
seconds(Case, #{started := Started}) ->
    case Started of
        #{Case := At} -> io_lib:format(" (~.1f s)", [(erlang:monotonic_time(millisecond) - At) / 1000]);
        _ -> ""
    end.

%% @private
on_tc_fail(Suite, Case, Reason, State) ->
    beamway_runner:say("FAIL ~ts~ts: ~0tP", [name(Suite, Case), seconds(Case, State), Reason, 60]),
    add_failure(Case, State).

%% If an init function failed, its failure has already been shown with the reason, so this only
%% reports the cases that could not run because of it.
%% @private
on_tc_skip(Suite, Case, {tc_auto_skip, {failed, {Module, Function, _}}}, State) ->
    beamway_runner:say("FAIL ~ts: not run, since ~ts:~tp failed", [name(Suite, Case), Module, Function]),
    add_failure(Case, State);
on_tc_skip(Suite, Case, {tc_auto_skip, Reason}, State) ->
    beamway_runner:say("FAIL ~ts: not run: ~0tP", [name(Suite, Case), Reason, 60]),
    add_failure(Case, State);
on_tc_skip(Suite, Case, {tc_user_skip, Reason}, State) ->
    case is_want_of_rights(Reason) andalso os:getenv("CI") =:= "true" of
        true ->
            beamway_runner:say("FAIL ~ts: skipped although CI=true: ~ts", [name(Suite, Case), text(Reason)]),
            add_failure(Case, State);
        false ->
            beamway_runner:say("SKIP ~ts: ~ts", [name(Suite, Case), text(Reason)]),
            add_skip(Case, State)
    end.

name(Suite, {Case, Group}) -> io_lib:format("~ts (~ts):~ts", [Suite, Group, Case]);
name(Suite, Case) -> io_lib:format("~ts:~ts", [Suite, Case]).

%% A failed init or end function is not a test case. It counts only if no case has failed.
add_failure(Case, State) ->
    case is_configuration(Case) of
        true -> add(broken, State);
        false -> add(failed, State)
    end.

add_skip(Case, State) ->
    case is_configuration(Case) of
        true -> State;
        false -> add(skipped, State)
    end.

is_configuration({Case, _}) -> is_configuration(Case);
is_configuration(Case) -> lists:member(Case, [init_per_suite, end_per_suite, init_per_group, end_per_group]).

is_want_of_rights({rights, _}) -> true;
is_want_of_rights(Reason) ->
    re:run(text(Reason), "\\b(root|rights|privileges?|permission|CAP_[A-Z_]+|eperm|eacces)\\b", [caseless, unicode]) =/= nomatch.

text({rights, Why}) -> text(Why);
text(Reason) ->
    try unicode:characters_to_binary(Reason) of
        Text when is_binary(Text) -> Text;
        _ -> unicode:characters_to_binary(io_lib:format("~0tp", [Reason]))
    catch
        error:_ -> unicode:characters_to_binary(io_lib:format("~0tp", [Reason]))
    end.

add(Key, State) -> maps:update_with(Key, fun(Number) -> Number + 1 end, State).

%% @private
terminate(#{runner := Runner, passed := Passed, failed := Failed, skipped := Skipped,
            broken := Broken}) ->
    Runner ! {?MODULE, {Passed, max(Failed, min(1, Broken)), Skipped}}.
