%% SPDX-License-Identifier: Apache-2.0
%% @doc Evaluates an attribute's function in a separate process, with limits on time, memory and size.
%%
%% Called by {@link placement_attr}. If a function raises an exception, never returns, exhausts its memory or returns 100
%% MB, only its own process exits, not the server. The result is the exit reason of this process, which the caller
%% monitors (see {@link outcome/2}).
-module(placement_eval).

-export([start/1, stop/1, outcome/2, run/2, is_exported/1]).
-ifdef(TEST).
-export([hoard/1]).
-endif.

-export_type([call/0, outcome/0, reason/0]).

-type call() :: {module(), atom(), [term()]}.
-type reason() :: no_such_function | {raised, Class :: error | exit | throw, Reason :: term()} | timeout | too_much_memory
                | {too_large, Bytes :: non_neg_integer()} | {ended, Reason :: term()}.
%% `too_large': a value may take at most 64 KiB in the external format, because it is part of each answer.
-type outcome() :: {ok, Value :: term()} | {error, reason()}.

-define(VALUE_BYTES, 65536).
%% This is 64 MiB, which is enough to read any file in /proc.
-define(HEAP_WORDS, (64 bsl 20) div 8).
%% Releases before 27 do not count large binaries in the heap limit.
-if(?OTP_RELEASE >= 27).
-define(LIMIT, #{size => ?HEAP_WORDS, kill => true, error_logger => false, include_shared_binaries => true}).
-else.
-define(LIMIT, #{size => ?HEAP_WORDS, kill => true, error_logger => false}).
-endif.

%% Dialyzer would warn that the process's fun never returns, because its result is the exit reason.
-dialyzer({nowarn_function, start/1}).
%% @doc Begins an evaluation. The caller receives the monitor's `DOWN' message and enforces the time limit.
-spec start(call()) -> {pid(), Monitor :: reference()}.
start({Module, Function, Arguments}) ->
    spawn_opt(fun() -> exit({?MODULE, guarded(Module, Function, Arguments)}) end, [monitor, {max_heap_size, ?LIMIT}]).

guarded(Module, Function, Arguments) ->
    try apply(Module, Function, Arguments) of
        Value -> sized(Value, erlang:external_size(Value))
    catch
        Class:Reason:Stack -> {error, failure(Class, Reason, Stack, {Module, Function})}
    end.

failure(error, undef, [{Module, Function, _, _} | _], {Module, Function}) -> no_such_function;
failure(Class, Reason, _, _) -> {raised, Class, shortened(Reason)}.

sized(Value, Bytes) when Bytes =< ?VALUE_BYTES -> {ok, Value};
sized(_, Bytes) -> {error, {too_large, Bytes}}.

shortened(Reason) ->
    case erlang:external_size(Reason) > 1000 of
        true -> unicode:characters_to_binary(io_lib:format("~0tP", [Reason, 20]));
        false -> Reason
    end.

%% @doc Kills an evaluation that has exceeded its time limit.
-spec stop(pid()) -> true.
stop(Pid) -> exit(Pid, kill).

%% @doc Translates the exit reason of an evaluation. `Stopped' says whether {@link stop/1} has been called.
-spec outcome(ExitReason :: term(), Stopped :: boolean()) -> outcome().
outcome({?MODULE, Outcome}, _) -> Outcome;
outcome(killed, true) -> {error, timeout};
outcome(killed, false) -> {error, too_much_memory};
outcome(Reason, _) -> {error, {ended, shortened(Reason)}}.

%% @doc Evaluates a call, waiting at most `LimitMs' milliseconds.
-spec run(call(), LimitMs :: pos_integer()) -> outcome().
run(Call, LimitMs) ->
    {Pid, Monitor} = start(Call),
    receive
        {'DOWN', Monitor, process, Pid, Reason} -> outcome(Reason, false)
    after LimitMs ->
        true = stop(Pid),
        receive {'DOWN', Monitor, process, Pid, Reason} -> outcome(Reason, true) end
    end.

%% @doc Returns whether the function of a call exists. Loads its module if necessary.
-spec is_exported(call()) -> boolean().
is_exported({Module, Function, Arguments}) ->
    _ = code:ensure_loaded(Module),
    erlang:function_exported(Module, Function, length(Arguments))
        orelse erlang:is_builtin(Module, Function, length(Arguments)).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

hoard(Count) ->
    Kept = [binary:copy(<<N>>, 1 bsl 20) || N <- lists:seq(1, Count)],
    length([Binary || Binary <- Kept, byte_size(Binary) =:= 1 bsl 20]).

%% Only the function that never returns gets a short limit, because the others may need more time on a busy machine.
run_test_() ->
    Patience = 60000,
    [{timeout, 120, Test}
     || Test <- [?_assertEqual({ok, 3}, run({erlang, '+', [1, 2]}, Patience)),
                 ?_assertEqual({error, no_such_function}, run({erlang, there_is_none, []}, Patience)),
                 ?_assertEqual({error, no_such_function}, run({there_is_no_module, f, []}, Patience)),
                 ?_assertEqual({error, {raised, error, badarg}}, run({erlang, list_to_integer, ["x"]}, Patience)),
                 ?_assertEqual({error, {raised, exit, done}}, run({erlang, exit, [done]}, Patience)),
                 ?_assertEqual({error, {raised, throw, ball}}, run({erlang, throw, [ball]}, Patience)),
                 ?_assertEqual({error, timeout}, run({timer, sleep, [infinity]}, 50)),
                 ?_assertMatch({error, {too_large, Bytes}} when Bytes > 60000000, run({binary, copy, [<<0>>, 60000000]}, Patience)),
                 ?_assertEqual(case erlang:system_info(otp_release) >= "27" of true -> {error, too_much_memory}; false -> {ok, 200} end, run({?MODULE, hoard, [200]}, Patience)),
                 ?_assertEqual({error, too_much_memory}, run({lists, seq, [1, 20000000]}, Patience))]].

is_exported_test_() ->
    [?_assert(is_exported({erlang, system_info, [process_count]})), ?_assert(is_exported({os, type, []})),
     ?_assertNot(is_exported({os, type, [1]})), ?_assertNot(is_exported({there_is_no_module, f, []}))].
-endif.
