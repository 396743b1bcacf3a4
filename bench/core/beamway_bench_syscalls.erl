%% SPDX-License-Identifier: Apache-2.0
%% @doc Counts the system calls that some processes make while a function runs.
%%
%% There are two methods, and the first that the user has permission for is used: the kernel's tracepoint, through count_syscalls (root only; it
%% hardly slows the counted processes), or strace (any user, where ptrace is allowed). Under strace the processes run several times slower. Counts per
%% message are still roughly right, but they favour a contender that rings its doorbells less often when it is slow. The result records which method
%% was used.
-module(beamway_bench_syscalls).

-export([during/2, warnings/0]).

-export_type([method/0]).

-type method() :: tracepoint | strace.

-define(READY_MS, 15000).

%% @doc Runs Fun, and counts the system calls that the processes make in the meantime.
-spec during(OsPids :: [pos_integer(), ...], fun(() -> Result)) ->
          {counted, Calls :: non_neg_integer(), method(), Result} | {not_counted, Why :: string(), Result}.
during(OsPids, Fun) ->
    Args = [integer_to_list(OsPid) || OsPid <- OsPids],
    case tracepoint(Args) of
        {ok, Counter} -> by_tracepoint(Counter, Fun);
        {error, Why} ->
            case strace(Args) of
                {ok, Counter} -> by_strace(Counter, Fun);
                {error, WhyNot} -> {not_counted, Why ++ "; " ++ WhyNot, Fun()}
            end
    end.

%% Determines which method works for this user, by trying each on an idle process.
-spec probe() -> method() | {none, Why :: string()}.
probe() ->
    Idle = beamway_bench_tools:open("/bin/cat", []),
    try
        {ok, OsPid} = beamway_bench_tools:os_pid(Idle),
        case during([OsPid], fun() -> ok end) of
            {counted, _, Method, ok} -> Method;
            {not_counted, Why, ok} -> {none, Why}
        end
    after
        beamway_bench_tools:close(Idle, none)
    end.

%% @doc Returns a note about the method that was used, for readers of the counts.
-spec warnings() -> [unicode:chardata()].
warnings() ->
    warning(probe()).

warning(tracepoint) -> [];
warning(strace) ->
    ["system calls are counted by strace, which slows the nodes several times; as root they are counted by the kernel"];
warning({none, Why}) ->
    [["system calls cannot be counted here: ", Why, ". Run it as root, or install strace"]].

tracepoint(Args) ->
    case beamway_bench_tools:compile("count_syscalls", "cc") of
        {error, Why} -> {error, Why};
        {ok, Program} -> await_ready(beamway_bench_tools:open(Program, Args))
    end.

await_ready(Port) ->
    case beamway_bench_tools:line(Port, ?READY_MS) of
        {line, "ready"} -> {ok, Port};
        Other -> beamway_bench_tools:close(Port, none), {error, why(Other)}
    end.

why({line, Line}) -> Line;
why({ended, Status}) -> "the counting program ended with status " ++ integer_to_list(Status);
why(timeout) -> "the counting program was not ready in time".

by_tracepoint(Port, Fun) ->
    try
        Before = sum(Port),
        Result = Fun(),
        {counted, sum(Port) - Before, tracepoint, Result}
    after
        beamway_bench_tools:close(Port, none)
    end.

sum(Port) ->
    ok = beamway_bench_tools:write(Port, "\n"),
    {line, Line} = beamway_bench_tools:line(Port, ?READY_MS),
    list_to_integer(Line).

strace(Args) ->
    case os:find_executable("strace") of
        false -> {error, "strace is not installed (Debian package strace)"};
        Program ->
            Options = ["-f", "-c", "-U", "calls,name"],
            Port = beamway_bench_tools:open(Program, Options ++ lists:append([["-p", Arg] || Arg <- Args])),
            await_attached(Port, length(Args))
    end.

await_attached(Port, 0) -> {ok, Port};
await_attached(Port, Left) ->
    case beamway_bench_tools:line(Port, ?READY_MS) of
        {line, Line} ->
            case {string:find(Line, " attached"), string:find(Line, "attach: ")} of
                {nomatch, nomatch} -> await_attached(Port, Left);
                {_, nomatch} -> await_attached(Port, Left - 1);
                {_, _} -> beamway_bench_tools:close(Port, "INT"), {error, Line}
            end;
        Other -> beamway_bench_tools:close(Port, "INT"), {error, "strace: " ++ why(Other)}
    end.

%% strace prints its table when it is interrupted; the last line contains the total.
by_strace(Port, Fun) ->
    try
        Result = Fun(),
        {ok, OsPid} = beamway_bench_tools:os_pid(Port),
        _ = os:cmd("kill -INT " ++ integer_to_list(OsPid)),
        {counted, strace_total(Port, false), strace, Result}
    after
        beamway_bench_tools:close(Port, "INT")
    end.

%% strace prints no table if no system call was made. So if it has detached from the processes and then exits, the total is 0.
strace_total(Port, Detached) ->
    case beamway_bench_tools:line(Port, ?READY_MS) of
        {line, Line} ->
            case parse_total(Line) of
                {ok, Calls} -> Calls;
                none -> strace_total(Port, Detached orelse string:find(Line, " detached") =/= nomatch)
            end;
        {ended, _} when Detached -> 0;
        Other -> error({strace_gave_no_count, why(Other)})
    end.

parse_total(Line) ->
    case string:lexemes(Line, " ") of
        [Calls, "total"] -> {ok, list_to_integer(Calls)};
        _ -> none
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

probe_test() ->
    ?assert(case probe() of tracepoint -> true; strace -> true; {none, Why} -> length(Why) > 0 end).

parse_total_test_() ->
    [?_assertEqual({ok, 63182}, parse_total("    63182 total")),
     ?_assertEqual(none, parse_total("    15374 sched_yield")),
     ?_assertEqual(none, parse_total("strace: Process 7 detached"))].

strace_sees_that_nothing_is_called_test_() ->
    {timeout, 60, fun() ->
        Idle = beamway_bench_tools:open("/bin/cat", []),
        {ok, OsPid} = beamway_bench_tools:os_pid(Idle),
        try strace([integer_to_list(OsPid)]) of
            {error, Why} -> ?assert(length(Why) > 0);
            {ok, Counter} -> ?assertEqual({counted, 0, strace, x}, by_strace(Counter, fun() -> x end))
        after
            beamway_bench_tools:close(Idle, none)
        end
    end}.

warning_test_() ->
    [?_assertEqual([], warning(tracepoint)), ?_assertMatch([_], warning(strace)), ?_assertMatch([_], warning({none, "x"}))].

%% A shell that reads N lines makes at least N system calls, and each method must count at least that many.
counts_real_calls_test_() ->
    [{timeout, 60, {atom_to_list(Way), fun() -> counts_real_calls(Way) end}} || Way <- [tracepoint, strace]].

counts_real_calls(Way) ->
    Talker = beamway_bench_tools:open("/bin/sh", ["-c", "while read x; do echo $x; done"]),
    {ok, OsPid} = beamway_bench_tools:os_pid(Talker),
    Talk = fun() -> [{ok, {line, "x"}} = {beamway_bench_tools:write(Talker, "x\n"),
                                          beamway_bench_tools:line(Talker, 5000)}
                     || _ <- lists:seq(1, 200)]
           end,
    Args = [integer_to_list(OsPid)],
    try
        case Way of
            tracepoint -> check(tracepoint(Args), fun by_tracepoint/2, Talk);
            strace -> check(strace(Args), fun by_strace/2, Talk)
        end
    after
        beamway_bench_tools:close(Talker, none)
    end.

%% If the user does not have permission for a method, the method returns a reason, and there is nothing to compare.
check({error, Why}, _, _) -> ?assert(length(Why) > 0);
check({ok, Counter}, Count, Talk) ->
    {counted, Calls, _, _} = Count(Counter, Talk),
    ?assert(Calls >= 400),
    ?assert(Calls < 4000).
-endif.
