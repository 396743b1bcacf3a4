%% SPDX-License-Identifier: Apache-2.0
%% @doc Watches source and beam files in directories, compiles and loads the files that have
%% changed, and reports this on the terminal: `Recompiled', `Error' with the file and the line, and
%% `Fixed!'. While there is an error, the old code continues to run. No process is killed: if old
%% code of a module is still in use, the new module is loaded once no process uses the old code any
%% more.
-module(yucan_watch).
-behaviour(gen_server).

-export([start_link/1, on/0, off/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-include_lib("kernel/include/file.hrl").

-record(state, {
    folders :: [file:filename()],
    seen = #{} :: #{file:filename() => calendar:datetime()},
    %% Source files with an error, and modules that will be loaded once their old code is no longer
    %% used.
    broken = [] :: [file:filename()],
    waiting = [] :: [{module(), file:filename(), binary()}],
    on = true :: boolean()
}).

-define(LOOK_MS, 500).

%% @doc Watches the directories and everything below them.
-spec start_link([file:filename()]) -> {ok, pid()} | {error, term()}.
start_link(Folders) -> gen_server:start_link({local, ?MODULE}, ?MODULE, Folders, []).

%% @doc Resumes watching, and loads everything that has changed in the meantime.
-spec on() -> ok.
on() -> gen_server:call(?MODULE, {set, true}, 60000).

%% @doc Stops watching.
-spec off() -> ok.
off() -> gen_server:call(?MODULE, {set, false}, 60000).

%% @private
-spec init([file:filename()]) -> {ok, #state{}}.
init(Folders) ->
    _ = erlang:send_after(?LOOK_MS, self(), look),
    State = #state{folders = Folders},
    {ok, State#state{seen = maps:from_list(files(State))}}.

files(#state{folders = Folders}) ->
    [{File, Time} || Folder <- Folders, File <- filelib:wildcard(filename:join(Folder, "**/*.{erl,beam}")), {ok, #file_info{mtime = Time}} <- [file:read_file_info(File)]].

%% @private
-spec handle_call({set, boolean()}, gen_server:from(), #state{}) -> {reply, ok, #state{}}.
handle_call({set, On}, _, State) -> {reply, ok, State#state{on = On}}.

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast(_, State) -> {noreply, State}.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info(look, #state{on = false} = State) ->
    _ = erlang:send_after(?LOOK_MS, self(), look),
    {noreply, State};
handle_info(look, #state{seen = Seen, waiting = Waiting} = State) ->
    _ = erlang:send_after(?LOOK_MS, self(), look),
    Now = files(State),
    Changed = [File || {File, Time} <- Now, maps:get(File, Seen, none) =/= Time],
    State1 = lists:foldl(fun load/2, State#state{seen = maps:from_list(Now), waiting = []}, Waiting),
    {noreply, lists:foldl(fun changed/2, State1, Changed)};
handle_info(_, State) -> {noreply, State}.

changed(File, State) ->
    case filename:extension(File) of
        ".erl" -> compile(File, State);
        ".beam" -> beam(File, State)
    end.

compile(File, #state{broken = Broken} = State) ->
    case compile:file(File, [binary, return | options(File)]) of
        {ok, Module, Code, Warnings} ->
            report("Warning", Warnings),
            say(case lists:member(File, Broken) of true -> "Fixed! ~ts"; false -> "Recompiled: ~ts" end, [File]),
            load({Module, File, Code}, State#state{broken = lists:delete(File, Broken)});
        {error, Errors, Warnings} ->
            report("Error", Errors),
            report("Warning", Warnings),
            State#state{broken = lists:usort([File | Broken])}
    end.

%% If the module is loaded, reuses the options with which it was compiled, and adds the include paths of its application.
options(File) ->
    Module = list_to_atom(filename:basename(File, ".erl")),
    Folder = filename:dirname(File),
    Old = case erlang:module_loaded(Module) of
        true -> [O || O <- proplists:get_value(options, Module:module_info(compile), []), is_tuple(O), lists:member(element(1, O), [i, d, parse_transform])];
        false -> []
    end,
    [debug_info, {i, Folder}, {i, filename:join(filename:dirname(Folder), "include")} | Old].

%% If the source of a beam file is also watched, the beam file was compiled either by this process
%% or by a build with the same result.
beam(File, State) ->
    Module = list_to_atom(filename:basename(File, ".beam")),
    case erlang:module_loaded(Module) andalso file:read_file(File) of
        {ok, Code} ->
            case beam_lib:md5(Code) =:= {ok, {Module, Module:module_info(md5)}} of
                true -> State;
                false ->
                    say("Reloaded: ~ts", [File]),
                    load({Module, File, Code}, State)
            end;
        _ -> State
    end.

load({Module, File, Code} = What, #state{waiting = Waiting} = State) ->
    case code:soft_purge(Module) of
        true ->
            case code:load_binary(Module, File, Code) of
                {module, Module} -> State;
                {error, Reason} -> say("Error: ~ts cannot be loaded: ~tp", [File, Reason]), State
            end;
        false -> State#state{waiting = [What | lists:keydelete(Module, 1, Waiting)]}
    end.

report(Kind, PerFile) ->
    [say("~ts: ~ts:~ts: ~ts", [Kind, File, place(Place), Module:format_error(What)]) || {File, List} <- PerFile, {Place, Module, What} <- List],
    ok.

place({Line, _}) -> integer_to_list(Line);
place(none) -> "1";
place(Line) -> integer_to_list(Line).

say(Format, Arguments) -> io:format(user, Format ++ "~n", Arguments).
