%% SPDX-License-Identifier: Apache-2.0
%% @doc Measures Open MPI's round-trip time with a small program (mpi_pingpong.c).
-module(beamway_bench_mpi).

-export([find/0, run/3]).

-export_type([mpi/0]).

-opaque mpi() :: #{mpirun := file:filename(), program := file:filename()}.

%% @doc Finds Open MPI on this machine, and compiles our program.
-spec find() -> {ok, mpi()} | {error, unicode:chardata()}.
find() ->
    case {os:find_executable("mpirun"), os:find_executable("mpicc")} of
        {Run, Compiler} when Run =:= false; Compiler =:= false ->
            {error, "Open MPI is not installed (Debian packages openmpi-bin and libopenmpi-dev)"};
        {Run, _} ->
            case beamway_bench_tools:compile("mpi_pingpong", "mpicc") of
                {ok, Program} -> {ok, #{mpirun => Run, program => Program}};
                {error, Why} -> {error, Why}
            end
    end.

%% @doc Returns the p50 and p99 in nanoseconds for each size.
-spec run(mpi(), Ms :: pos_integer(), Sizes :: [pos_integer()]) ->
          [{Size :: pos_integer(), P50 :: pos_integer(), P99 :: pos_integer()}].
run(#{mpirun := Run, program := Program}, Ms, Sizes) ->
    %% Without these options, mpirun refuses to run as root or to start more processes than there are processors.
    Args = ["-np", "2", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", Program
           | [integer_to_list(N) || N <- [Ms | Sizes]]],
    {Status, Lines} = beamway_bench_tools:run(Run, Args, 60000 + length(Sizes) * Ms),
    case {Status, lists:append([parse(Line) || Line <- Lines])} of
        {0, Rows} when length(Rows) =:= length(Sizes) -> Rows;
        _ -> error({mpi_failed, Status, Lines})
    end.

%% Open MPI may print hints between the program's lines.
parse(Line) ->
    case [string:to_integer(Word) || Word <- string:lexemes(Line, " \n")] of
        [{Size, ""}, {_Count, ""}, {P50, ""}, {P99, ""}] when is_integer(Size), is_integer(P50), is_integer(P99) ->
            [{Size, P50, P99}];
        _ -> []
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

parse_test_() ->
    [?_assertEqual([{64, 1001, 1605}], parse("64 30246 1001 1605\n")), ?_assertEqual([], parse("a hint of mpirun\n")),
     ?_assertEqual([], parse("1 2 3\n"))].

real_run_test_() ->
    {timeout, 90, fun() ->
        case find() of
            {error, Why} -> ?assert(iolist_size(Why) > 0);
            {ok, Mpi} -> ?assertMatch([{64, A, B}, {4096, _, _}] when A > 0 andalso B >= A, run(Mpi, 20, [64, 4096]))
        end
    end}.
-endif.
