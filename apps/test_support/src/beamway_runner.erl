%% SPDX-License-Identifier: Apache-2.0
%% @doc Runs unit tests or one Common Test suite in this VM, for `scripts/run-tests'.
%%
%% Lines for the user begin with `@@ '; the script shows these and writes all others to a log. At
%% the very end, the runner writes its counts to the file that the environment variable RESULT
%% names, as `passed failed skipped'. If it crashes before that, the file is missing, which the
%% script counts as a failure.
-module(beamway_runner).

-export([eunit/0, suite/0, say/2, slowness/0]).

%% @doc Entry point for the unit tests in ebin directories, either all tests or those of some modules. Arguments after `-extra': FOLDER... [--
%% MODULE...].
-spec eunit() -> no_return().
eunit() ->
    {Folders, Named} = lists:splitwith(fun(Argument) -> Argument =/= "--" end, init:get_plain_arguments()),
    Modules = [M || Folder <- Folders, M <- modules(Folder), Named =:= [] orelse lists:member(atom_to_list(M), Named), has_tests(M)],
    %% eunit itself adds NAME_tests to NAME.
    Added = [list_to_atom(atom_to_list(M) ++ "_tests") || M <- Modules],
    _ = eunit:test(Modules -- Added, [no_tty, {report, {beamway_runner_eunit, [{pid, self()}]}}]),
    receive
        {beamway_runner_eunit, Counts} -> finish(Counts)
    after 10000 ->
        say("FAIL eunit: it ended without a result", []),
        halt(1)
    end.

modules(Folder) ->
    lists:sort([list_to_atom(filename:basename(F, ".beam")) || F <- filelib:wildcard(filename:join(Folder, "*.beam"))]).

has_tests(Module) ->
    {module, Module} = code:ensure_loaded(Module),
    erlang:function_exported(Module, test, 0).

%% @doc Entry point for a suite, or for a case or group in it. Arguments after `-extra': FOLDER LOGS SUITE [CASE].
-spec suite() -> no_return().
suite() ->
    [Folder, Logs, Suite | Cases] = init:get_plain_arguments(),
    ok = filelib:ensure_dir(filename:join(Logs, "x")),
    %% The process is passed by name, because Common Test writes the options to a file, from which a pid cannot be read again.
    true = register(?MODULE, self()),
    Options = [{dir, Folder}, {suite, list_to_atom(Suite)}, {auto_compile, false}, {logdir, Logs}, {ct_hooks, [{beamway_runner_cth, ?MODULE}]},
               {verbosity, 0}, {basic_html, true}, {multiply_timetraps, slowness()}] ++ only(list_to_atom(Suite), [list_to_atom(C) || C <- Cases]),
    case ct:run_test(Options) of
        {_, _, {_, _}} = Counts -> finish(agreed(Counts, hook_counts()));
        Other ->
            say("FAIL ~ts: Common Test could not run it: ~0tP", [Suite, Other, 30]),
            halt(1)
    end.

%% @doc Returns how many times slower than usual everything runs, for example under a sanitizer.
-spec slowness() -> pos_integer().
slowness() -> list_to_integer(os:getenv("BEAMWAY_TEST_SLOWNESS", "1")).

%% A case in a suite with groups runs in each of them. If only its name were given, Common Test would run it outside the groups.
only(_Suite, []) ->
    [];
only(Suite, Cases) ->
    Groups = [element(2, Group) || Group <- Suite:all(), is_tuple(Group), element(1, Group) =:= group],
    case Cases -- Groups of
        [] -> [{group, Cases}];
        _ -> [{testcase, Cases} | [{group, Groups} || Groups =/= []]]
    end.

hook_counts() ->
    receive
        {beamway_runner_cth, Counts} -> Counts
    after 10000 ->
        {0, 0, 0}
    end.

%% The hook can tell test cases from init functions, and knows which skips are failures. If it has missed a failure, Common Test's own count
%% reveals it.
agreed({Passed, Failed, _}, {_, HookFailed, Skipped}) ->
    {Passed, max(Failed, HookFailed), Skipped}.

-spec finish({Passed :: integer(), Failed :: integer(), Skipped :: integer()}) -> no_return().
finish({0, 0, 0}) ->
    say("FAIL no case ran: none has this name, or none is made here", []),
    halt(1);
finish({Passed, Failed, Skipped}) ->
    _ = [ok = file:write_file(File, io_lib:format("~b ~b ~b~n", [Passed, Failed, Skipped])) || File <- [os:getenv("RESULT")], File =/= false],
    halt(case Failed of 0 -> 0; _ -> 1 end).

%% @doc Shows a text to the user. Lines after the first are indented.
-spec say(io:format(), [term()]) -> ok.
say(Format, Arguments) ->
    Lines = string:lexemes(unicode:characters_to_list(io_lib:format(Format, Arguments)), "\n"),
    io:put_chars(user, [["@@ ", Line, $\n] || Line <- lists:join("", Lines), Line =/= ""]).
