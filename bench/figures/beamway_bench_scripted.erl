%% SPDX-License-Identifier: Apache-2.0
%% @doc Implements `scripts/figures begin', `store' and `compact', which store the results of
%% programs that are not written in Erlang.
-module(beamway_bench_scripted).

-export([begun/3, store/2, compact/1]).

%% @doc Prints the context of a measurement that another program is about to make.
-spec begun(Name :: string(), Command :: string(), Force :: boolean()) -> ok | {error, unicode:chardata()}.
begun(Name, Command, Force) ->
    case beamway_bench_store:begun(Name, Command, Force) of
        {ok, Context} -> io:format("~0tp.~n", [Context]);
        {error, Why} -> {error, Why}
    end.

%% @doc Stores a result that another program has measured and printed, as a JSON object that arrives on standard input. `File' contains the context
%% that begun/3 printed before the measurement.
-spec store(file:filename(), Force :: boolean()) -> ok | {error, unicode:chardata()}.
store(File, Force) ->
    case beamway_bench_store:begun_in(File) of
        {ok, #{bench := Name} = Context} ->
            ok = io:setopts([binary]),
            Own = maps:from_list([{binary_to_atom(Key), Value} || {Key, Value} <- maps:to_list(jiffy:decode(input(), [return_maps]))]),
            case beamway_bench_store:publish(beamway_bench_store:file(binary_to_list(Name)), maps:merge(Context#{repeats => 1}, Own), Force) of
                ok -> io:format("stored bench/results/~ts.json~n", [Name]);
                {error, Why} -> {error, Why}
            end;
        {error, Why} -> {error, Why}
    end.

input() ->
    case io:get_line("") of
        eof -> [];
        Line -> [Line | input()]
    end.

%% @doc Rewrites these results in the current form, without the data that are no longer kept. A result that has not been measured is skipped.
-spec compact(Names :: [string()]) -> ok | {error, unicode:chardata()}.
compact([]) -> ok;
compact([Name | Names]) ->
    File = beamway_bench_store:file(Name),
    case filelib:is_regular(File) andalso compacted(beamway_bench_store:read(File), File) of
        {error, Why} -> {error, [Name, ": ", Why]};
        _ -> compact(Names)
    end.

compacted({ok, Stored}, File) -> beamway_bench_store:write(File, Stored);
compacted({error, Why}, _) -> {error, Why}.
