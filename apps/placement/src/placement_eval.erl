%% SPDX-License-Identifier: Apache-2.0
%% @doc Evaluates the function of an attribute in a process of its own, with limits of time, memory and size.
%%
%% Called by {@link placement_attr}: a function that raises, never returns, fills the memory or returns 100 MB costs that process, not the server.
%% The result comes as the exit reason of a monitored process, see {@link outcome/2}.
-module(placement_eval).

-export([start/1, stop/1, outcome/2, run/2, is_exported/1]).
-ifdef(TEST).
-export([hoard/1]).
-endif.

-export_type([call/0, outcome/0, reason/0]).

-type call() :: {module(), atom(), [term()]}.
-type reason() :: no_such_function | {raised, Class :: error | exit | throw, Reason :: term()} | timeout | too_much_memory
                | {too_large, Bytes :: non_neg_integer()} | {ended, Reason :: term()}.
%% `too_large': a value may have 64 KiB in the external format, since it travels with each answer.
-type outcome() :: {ok, Value :: term()} | {error, reason()}.

-define(VALUE_BYTES, 65536).
%% 64 MiB: enough to read any file of /proc.
-define(HEAP_WORDS, (64 bsl 20) div 8).
%% Releases before 27 cannot count large binaries.
-if(?OTP_RELEASE >= 27).
-define(LIMIT, #{size => ?HEAP_WORDS, kill => true, error_logger => false, include_shared_binaries => true}).
-else.
-define(LIMIT, #{size => ?HEAP_WORDS, kill => true, error_logger => false}).
-endif.

%% The exit reason is how the result travels.
-dialyzer({nowarn_function, start/1}).
%% @doc Begins an evaluation. The caller gets the `DOWN' message of the monitor, and keeps the limit of time.
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

%% @doc Ends an evaluation whose time is over.
-spec stop(pid()) -> true.
stop(Pid) -> exit(Pid, kill).

%% @doc What the exit reason of an evaluation means; `Stopped' says whether {@link stop/1} was called before.
-spec outcome(ExitReason :: term(), Stopped :: boolean()) -> outcome().
outcome({?MODULE, Outcome}, _) -> Outcome;
outcome(killed, true) -> {error, timeout};
outcome(killed, false) -> {error, too_much_memory};
outcome(Reason, _) -> {error, {ended, shortened(Reason)}}.

%% @doc Evaluates and waits, at most so many milliseconds.
-spec run(call(), LimitMs :: pos_integer()) -> outcome().
run(Call, LimitMs) ->
    {Pid, Monitor} = start(Call),
    receive
        {'DOWN', Monitor, process, Pid, Reason} -> outcome(Reason, false)
    after LimitMs ->
        true = stop(Pid),
        receive {'DOWN', Monitor, process, Pid, Reason} -> outcome(Reason, true) end
    end.

%% @doc Whether the function of a call exists now. A module is loaded for it if need be.
-spec is_exported(call()) -> boolean().
is_exported({Module, Function, Arguments}) ->
    _ = code:ensure_loaded(Module),
    erlang:function_exported(Module, Function, length(Arguments))
        orelse erlang:is_builtin(Module, Function, length(Arguments)).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% So many binaries of a MiB, all kept.
hoard(Count) ->
    Kept = [binary:copy(<<N>>, 1 bsl 20) || N <- lists:seq(1, Count)],
    length([Binary || Binary <- Kept, byte_size(Binary) =:= 1 bsl 20]).

%% A busy machine takes its time; only what never returns is given little.
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
