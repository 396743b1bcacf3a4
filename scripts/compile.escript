#!/usr/bin/env escript
%% -*- erlang -*-
%%! -noinput +A 1
%% SPDX-License-Identifier: Apache-2.0
%%
%% Compiles the applications that apps.config lists into their ebin directories. Only changed modules are compiled.
%% usage: compile.escript [--bench] [--test] [--werror] [--out DIR]
%%   --bench    bench/*/*.erl and examples/*/*.erl into bench/ebin instead
%%   --test     apps/test_support with test/*/*.erl, each apps/APP/test into apps/APP/test/ebin, and the applications once more with TEST defined
%%   --werror   everything into a scratch folder, a warning is an error (for `make check`)
-mode(compile).

main(Args) ->
    {ok, Terms} = file:consult("apps.config"),
    Apps = proplists:get_value(applications, Terms),
    Support = proplists:get_value(test_applications, Terms),
    TestApps = [with_programs(app(A)) || A <- Support] ++ [suites(T) || T <- lists:sort(filelib:wildcard("apps/*/test"))],
    drop_gone(Apps ++ Support),
    %% Behaviours may be in applications that are already built.
    _ = [code:add_patha(filename:join(App, "ebin")) || App <- Apps],
    Results = [run(Unit) || Unit <- units(Args, Apps, TestApps)],
    halt(case lists:all(fun(R) -> R =:= ok end, Results) of true -> 0; false -> 1 end).

units([], Apps, _) ->
    [app(App) || App <- Apps];
units(["--werror"], Apps, TestApps) ->
    Strict = [warnings_as_errors],
    [moved(more_options(Unit, Strict)) || Unit <- [app(A) || A <- Apps] ++ [bench()]
         ++ TestApps];
units(Args, Apps, TestApps) ->
    [bench() || lists:member("--bench", Args)]
        ++ [Unit || lists:member("--test", Args),
                    Unit <- TestApps ++ [with_tests(app(A)) || A <- Apps]
                        ++ [with_tests(bench())]].

%% Like rebar3, this includes directories below src.
app(Dir) ->
    Src = filename:join(Dir, "src"),
    #{name => filename:basename(Dir), dir => Dir, sources => [Src | folders(Src)],
      out => filename:join(Dir, "ebin"), options => [warn_missing_spec]}.

%% Test suites and the modules that only they use do not need specs.
suites(Dir) ->
    #{name => Dir, dir => filename:dirname(Dir), sources => [Dir], out => filename:join(Dir, "ebin"), options => []}.

%% The programs of the tests are compiled together with the helpers that they use.
with_programs(#{sources := Sources} = Unit) -> Unit#{sources := Sources ++ folders("test"), options := []}.

%% Deletes what was compiled for applications that were renamed or removed, because their modules
%% would still be found on the code path.
drop_gone(Apps) ->
    [ok = file:del_dir_r(Ebin) || Ebin <- filelib:wildcard("apps/*/ebin"), not lists:member(filename:dirname(Ebin), Apps)].

%% Returns the same modules compiled with TEST defined, for the unit tests that they contain.
with_tests(#{name := Name} = Unit) ->
    Unit#{name := Name ++ " (unit tests)", out := filename:join(["build/eunit", Name, "ebin"]), options := [{d, 'TEST'}]}.

bench() ->
    #{name => "bench", dir => "bench", sources => folders("bench") ++ folders("examples"), out => "bench/ebin", options => []}.

folders(Dir) -> [Folder || Folder <- lists:sort(filelib:wildcard(filename:join(Dir, "*"))), filelib:is_dir(Folder)].

more_options(#{options := Options} = Unit, More) ->
    Unit#{options := Options ++ More}.

moved(#{out := Out} = Unit) ->
    Unit#{out := filename:join("build/werror", Out)}.

run(#{name := Name, dir := Dir, sources := Folders, out := Out, options := Extra}) ->
    Options = [debug_info, return, {i, filename:join(Dir, "include")}, {i, filename:join(Dir, "src")}
              | Extra],
    ok = filelib:ensure_dir(filename:join(Out, "x")),
    true = code:add_patha(Out),
    Sources = sources(Folders),
    drop_stale(Out, Sources),
    Newest = newest([F || Folder <- [filename:join(Dir, "include"), filename:join(Dir, "src") | Folders],
                          F <- filelib:wildcard(filename:join(Folder, "*.hrl"))]),
    Fresh = same_options(Out, Options),
    Todo = [S || S <- Sources, not Fresh orelse is_outdated(S, Out, Newest)],
    Results = [compile(S, Out, Options) || S <- Todo],
    link_data(Folders, Out),
    link_priv(Dir, Folders, Out),
    write_app(Folders, Out, Sources),
    Failed = length([error || error <- Results]),
    Failed =:= 0 andalso remember_options(Out, Options),
    report(Name, length(Todo), length(Sources), Failed).

%% Modules with callbacks come first, because the compiler looks for the beam file of a behaviour.
sources(Folders) ->
    Files = [F || Folder <- Folders, F <- lists:sort(filelib:wildcard(filename:join(Folder, "*.erl")))],
    {First, Rest} = lists:partition(fun has_callbacks/1, Files),
    First ++ Rest.

has_callbacks(File) ->
    {ok, Text} = file:read_file(File),
    binary:match(Text, [<<"\n-callback ">>]) =/= nomatch.

drop_stale(Out, Sources) ->
    Wanted = [beam(S, Out) || S <- Sources],
    [ok = file:delete(B) || B <- filelib:wildcard(filename:join(Out, "*.beam")), not lists:member(B, Wanted)].

beam(Source, Out) ->
    filename:join(Out, filename:basename(Source, ".erl") ++ ".beam").

newest(Files) ->
    lists:max([0 | [filelib:last_modified(F) || F <- Files]]).

is_outdated(Source, Out, Newest) ->
    Made = filelib:last_modified(beam(Source, Out)),
    Made =:= 0 orelse Made =< filelib:last_modified(Source) orelse
        (Newest =/= 0 andalso Made =< Newest).

compile(Source, Out, Options) ->
    case compile:file(Source, [binary | Options]) of
        {ok, _, Beam, Warnings} -> print("Warning: ", Warnings), install(beam(Source, Out), Beam);
        {error, Errors, Warnings} -> print("", Errors), print("Warning: ", Warnings), error
    end.

%% The file is renamed into place, so that a node that loads the module at the same time never sees a partial file.
install(File, Bytes) ->
    Temporary = File ++ ".new",
    ok = file:write_file(Temporary, Bytes),
    ok = file:rename(Temporary, File).

print(Prefix, PerFile) ->
    [io:format(standard_error, "~ts:~ts ~ts~ts~n", [File, place(Where), Prefix, Module:format_error(What)])
     || {File, List} <- PerFile, {Where, Module, What} <- List].

place({Line, Column}) -> io_lib:format("~b:~b:", [Line, Column]);
place(none) -> "";
place(Line) -> io_lib:format("~b:", [Line]).

%% Common Test looks for a suite's data directory next to its beam file.
link_data(Folders, Out) ->
    [link(filename:absname(D), filename:join(Out, filename:basename(D)))
     || Folder <- Folders, D <- filelib:wildcard(filename:join(Folder, "*_SUITE_data"))].

%% code:priv_dir/1 returns a directory next to ebin.
link_priv(Dir, Folders, Out) ->
    Real = filename:absname(filename:join(Dir, "priv")),
    Wanted = filename:absname(filename:join(filename:dirname(Out), "priv")),
    Real =:= Wanted orelse not lists:member(filename:join(Dir, "src"), Folders) orelse link(Real, Wanted).

%% The links in a checkout that was moved or copied still point to the old location.
link(Target, Name) ->
    case file:make_symlink(Target, Name) of
        ok -> ok;
        {error, eexist} -> file:read_link_all(Name) =:= {ok, Target} orelse link_anew(Target, Name)
    end.

link_anew(Target, Name) ->
    ok = file:delete(Name),
    ok = file:make_symlink(Target, Name).

write_app(Folders, Out, Sources) ->
    case [File || Folder <- Folders, File <- filelib:wildcard(filename:join(Folder, "*.app.src"))] of
        [] -> ok;
        [File] ->
            {ok, [{application, Name, Keys}]} = file:consult(File),
            Modules = lists:sort([list_to_atom(filename:basename(S, ".erl")) || S <- Sources]),
            Text = io_lib:format("~tp.~n", [{application, Name,
                                             lists:keystore(modules, 1, Keys, {modules, Modules})}]),
            write_if_changed(filename:join(Out, atom_to_list(Name) ++ ".app"),
                             unicode:characters_to_binary(Text))
    end.

write_if_changed(File, Bytes) ->
    case file:read_file(File) of
        {ok, Bytes} -> ok;
        _ -> install(File, Bytes)
    end.

options_text(Options) ->
    unicode:characters_to_binary(io_lib:format("~tp ~ts~n", [Options, erlang:system_info(system_version)])).

same_options(Out, Options) ->
    file:read_file(filename:join(Out, ".options")) =:= {ok, options_text(Options)}.

remember_options(Out, Options) ->
    write_if_changed(filename:join(Out, ".options"), options_text(Options)).

report(_, 0, _, 0) -> ok;
report(Name, Todo, All, 0) ->
    io:format("build: ~ts: compiled ~b of ~b modules~n", [Name, Todo, All]);
report(Name, Todo, _, Failed) ->
    io:format(standard_error, "build: ~ts: ~b of ~b modules failed to compile~n", [Name, Failed, Todo]),
    error.
