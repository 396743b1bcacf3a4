%% SPDX-License-Identifier: Apache-2.0
%% @doc Uses the properties of yucan's parsers as a fuzzer, for `make fuzz-yucan': all families at once, each for the same time, with inputs
%% that grow and shrink. A family stops at its first counterexample. Prints what was tried and stores it as JSON.
-module(yucan_fuzz).

-export([tests/2, main/0]).

-include_lib("eunit/include/eunit.hrl").

-define(ROUND, 1000).
-define(SIZES, [10, 42, 150]).

%% @doc Returns unit tests of these properties, with a fixed number of inputs.
-spec tests(pos_integer(), [{Name :: string(), fun(() -> proper:outer_test())}]) -> [term()].
tests(Count, Properties) ->
    [{timeout, 120 * beamway_runner:slowness(), {Name, fun() -> ?assert(proper:quickcheck(Property(), [quiet, {to_file, user}, {numtests, Count}])) end}}
     || {Name, Property} <- Properties].

%% @doc Entry point, with minutes, the file for the result and perhaps `--force' after `-extra'. The status is 1 if there is a finding.
-spec main() -> no_return().
main() ->
    [Minutes, File | Force] = init:get_plain_arguments(),
    Seconds = 60 * list_to_integer(Minutes),
    Context = beamway_bench_store:context("fuzz_yucan", ["make fuzz-yucan MIN=", Minutes]),
    Parent = self(),
    Families = families(),
    Pids = [spawn_link(fun() -> Parent ! {self(), family(Properties, Seconds)} end) || {_, Properties} <- Families],
    Results = [receive {Pid, Result} -> {Name, Result} after (Seconds + 600) * 1000 -> error({no_end, Name}) end || {{Name, _}, Pid} <- lists:zip(Families, Pids)],
    Rows = [#{family => list_to_binary(Name), seconds => Seconds, properties => length(Properties), inputs => Count, findings => length(Findings)}
            || {{Name, Properties}, {Name, {Count, Findings}}} <- lists:zip(Families, Results)],
    [io:format("~-14ts ~10b inputs, ~b findings~ts~n", [Name, Count, length(Findings), [[" in ", F] || F <- Findings]]) || {Name, {Count, Findings}} <- Results],
    case beamway_bench_store:publish(File, Context#{repeats => 1, what => <<"properties of yucan's parsers, all families at once">>, families => Rows}, Force =:= ["--force"]) of
        ok -> io:format("stored in ~ts~n", [File]);
        {error, Why} -> io:format("~ts~n", [Why])
    end,
    halt(case [F || {_, {_, [_ | _] = F}} <- Results] of [] -> 0; _ -> 1 end).

families() ->
    %% These modules contain unit tests, which dialyzer does not analyse.
    [Heads, Others] = [Module:properties() || Module <- [yucan_parser_tests, yucan_parsers_tests]],
    Named = fun(All, Names) -> [lists:keyfind(Name, 1, All) || Name <- Names] end,
    [{"heads", Named(Heads, ["cut heads", "damaged heads", "heads and what follows", "any bytes"])},
     {"chunks", Named(Heads, ["chunks", "damaged chunks"])},
     {"frames, paths", Named(Heads, ["frames", "paths"])},
     {"forms", Named(Heads, ["forms in pieces", "damaged forms"])},
     {"FastCGI, CGI", Named(Others, ["FastCGI pairs", "FastCGI pairs of any bytes", "FastCGI records in pieces", "FastCGI of any bytes", "heads in pieces", "heads of any bytes"])},
     {"configurations", Named(Others, ["lines of any bytes", "configurations", "values", "names of hosts", "slashes"])}].

%% Runs the properties round-robin.
family(Properties, Seconds) -> rounds(Properties, erlang:monotonic_time(second) + Seconds, 0, []).

rounds(Properties, Deadline, Count, []) ->
    case erlang:monotonic_time(second) < Deadline of
        true ->
            Found = [Name || {Name, Property} <- Properties, Size <- ?SIZES,
                             not holds(Property(), [quiet, {to_file, user}, {numtests, ?ROUND}, {max_size, Size}])],
            rounds(Properties, Deadline, Count + ?ROUND * length(Properties) * length(?SIZES), Found);
        false -> {Count, []}
    end;
rounds(_, _, Count, Found) -> {Count, Found}.

%% If a property raises an exception, that is also a finding. PropEr 1.2 then fails with `undef',
%% because it calls a function for the stack that was removed in OTP 24.
holds(Test, Options) ->
    try proper:quickcheck(Test, Options)
    catch error:undef -> false
    end.
