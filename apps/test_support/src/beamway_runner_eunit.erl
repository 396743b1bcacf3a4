%% SPDX-License-Identifier: Apache-2.0
%% @doc The eunit listener of {@link beamway_runner}, which names each failed or cancelled case and
%% counts all cases.
-module(beamway_runner_eunit).
-behaviour(eunit_listener).

-export([start/1, init/1, handle_begin/3, handle_end/3, handle_cancel/3, terminate/2]).

%% @private
start(Options) -> eunit_listener:start(?MODULE, Options).

%% @private
init(Options) -> #{pid => proplists:get_value(pid, Options), cancelled => 0}.

%% @private
handle_begin(_, _, State) -> State.

%% @private
handle_end(test, Data, State) ->
    case proplists:get_value(status, Data) of
        {error, Exception} ->
            beamway_runner:say("FAIL eunit ~ts: ~ts", [name(Data), eunit_lib:format_exception(Exception, 30)]);
        _ -> ok
    end,
    State;
handle_end(group, _, State) -> State.

%% Either the set-up of a group failed, or a test timed out. eunit itself does not count these as failures.
%% @private
handle_cancel(Kind, Data, #{cancelled := Cancelled} = State) ->
    case proplists:get_value(reason, Data) of
        undefined -> State;
        Reason ->
            beamway_runner:say("FAIL eunit ~ts ~ts: cancelled: ~0tP", [Kind, name(Data), Reason, 30]),
            State#{cancelled := Cancelled + 1}
    end.

name(Data) ->
    case {proplists:get_value(source, Data), proplists:get_value(line, Data, 0), proplists:get_value(desc, Data)} of
        {{Module, Function, _}, Line, _} -> io_lib:format("~ts:~ts (line ~b)", [Module, Function, Line]);
        {_, _, Text} -> io_lib:format("~ts", [[T || T <- [Text], is_list(T) orelse is_binary(T)]])
    end.

%% @private
terminate({ok, Data}, #{pid := Pid, cancelled := Cancelled}) ->
    [Passed, Failed, Skipped] = [proplists:get_value(Key, Data, 0) || Key <- [pass, fail, skip]],
    Pid ! {beamway_runner_eunit, {Passed, Failed + Cancelled, Skipped}};
terminate({error, Reason}, _) ->
    beamway_runner:say("FAIL eunit: ~0tP", [Reason, 30]).
