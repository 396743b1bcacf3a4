%% SPDX-License-Identifier: Apache-2.0
%% @doc Shows stored benchmark results: reads the directory, and defines which benchmarks may be started from a browser.
-module(beamway_console_bench).

-export([list/1, read/2, startable/0, is_startable/1, object/1]).

-define(BYTES_MAX, 16777216).

-include_lib("kernel/include/file.hrl").

%% @doc Returns the benchmarks that may be started from a browser: those that need no privileges. They run in their quick form.
-spec startable() -> [{Name :: binary(), What :: binary()}].
startable() ->
    [{<<"rpc">>, <<"100 processes a node in a loop of remote calls">>}, {<<"pingpong">>, <<"round trips of one pair of processes">>},
     {<<"stream">>, <<"one sender, one receiver">>}, {<<"cost">>, <<"system calls, context switches and copies for each message">>},
     {<<"ring">>, <<"binaries of 10 MB round a ring of six nodes">>}, {<<"heartbeat">>, <<"a small call beside large messages">>},
     {<<"calls">>, <<"100 callers of one server">>}, {<<"casts">>, <<"one-way messages by teleport:cast">>}].

%% @doc Returns whether a name is one of these benchmarks.
-spec is_startable(binary()) -> boolean().
is_startable(Name) -> lists:keymember(Name, 1, startable()).

%% @doc Returns the results in a directory and its subdirectories, without their samples.
-spec list(file:filename()) -> [map()].
list(Folder) ->
    Files = lists:sort(filelib:wildcard("*.json", Folder) ++ filelib:wildcard("*/*.json", Folder)),
    [Result || File <- Files, {ok, All} <- [read(Folder, unicode:characters_to_binary(File))],
               Result <- [maps:with([file, bench, commit, command, machine, measured_at, stored_at, count, warnings], All)], maps:get(count, All) > 0].

%% @doc Reads one result from the list.
-spec read(file:filename(), File :: binary()) -> {ok, map()} | {error, unicode:chardata()}.
read(Folder, File) ->
    %% Accepts only names that can occur in the list: a name, or a directory and a name, made of plain characters.
    case re:run(File, <<"^(?:[A-Za-z0-9][A-Za-z0-9_-]*/)?[A-Za-z0-9][A-Za-z0-9_.-]*\\.json$">>, [{capture, none}, dollar_endonly]) of
        match ->
            Path = filename:join(Folder, File),
            case file:read_file_info(Path, [{time, posix}]) of
                {ok, #file_info{type = regular, size = Size, mtime = Modified}} when Size =< ?BYTES_MAX -> decoded(File, Modified, file:read_file(Path));
                {ok, _} -> {error, [File, " is not a result of a benchmark"]};
                {error, Reason} -> {error, [File, ": ", file:format_error(Reason)]}
            end;
        nomatch -> {error, "no such result"}
    end.

decoded(File, Modified, {ok, Bytes}) ->
    case object(Bytes) of
        {ok, Object} -> {ok, Object#{file => File, stored_at => Modified}};
        {error, Why} -> {error, [File, ": ", Why]}
    end;
decoded(File, _, {error, Reason}) -> {error, [File, ": ", file:format_error(Reason)]}.

%% @doc Returns the parts of a result that are shown. If the file contains no such result, `count' is 0.
-spec object(binary()) -> {ok, map()} | {error, unicode:chardata()}.
object(Bytes) ->
    try jiffy:decode(Bytes, [return_maps]) of
        #{} = Object ->
            Metrics = [Metric || #{<<"name">> := _, <<"beamway">> := _} = Metric <- list_of(<<"metrics">>, Object)],
            {ok, #{bench => maps:get(<<"bench">>, Object, null), commit => maps:get(<<"commit">>, Object, null), command => maps:get(<<"command">>, Object, null),
                   machine => maps:get(<<"machine">>, Object, null), versions => maps:get(<<"versions">>, Object, null),
                   measured_at => maps:get(<<"measured_at">>, Object, null), warnings => list_of(<<"warnings">>, Object), metrics => Metrics,
                   figures => [maps:without([<<"samples">>], Figure) || #{} = Figure <- list_of(<<"figures">>, Object)], count => length(Metrics)}};
        _ -> {error, "not a JSON object"}
    catch
        error:_ -> {error, "not valid JSON"};
        throw:_ -> {error, "not valid JSON"}
    end.

list_of(Key, Object) ->
    case Object of
        #{Key := List} when is_list(List) -> List;
        #{} -> []
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

object_test_() ->
    Result = <<"{\"bench\":\"rpc\",\"metrics\":[{\"name\":\"x\",\"beamway\":2,\"baseline\":1,\"ratio\":2},7],\"figures\":[{\"key\":\"k\",\"samples\":[1]}]}">>,
    [?_assertMatch({ok, #{bench := <<"rpc">>, count := 1, metrics := [#{<<"ratio">> := 2}], figures := [#{<<"key">> := <<"k">>}], warnings := []}}, object(Result)),
     ?_assertMatch({ok, #{count := 0}}, object(<<"{}">>)), ?_assertMatch({error, _}, object(<<"[]">>)), ?_assertMatch({error, _}, object(<<"{">>))].

names_test_() ->
    [?_assertMatch({error, _}, read("/etc", Name)) || Name <- [<<"passwd">>, <<"../etc/x.json">>, <<"a/b/c.json">>, <<"a/../x.json">>, <<".json">>, <<>>, <<"x.json\n">>]]
        ++ [?_assert(is_startable(<<"rpc">>)), ?_assertNot(is_startable(<<"rabbitmq">>))].
-endif.
