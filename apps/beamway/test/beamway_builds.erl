%% SPDX-License-Identifier: Apache-2.0
%% @doc Builds other versions of the carrier for the suites that mix versions: a real one from the repository's history
%% ({@link release/1}, {@link release/3}), and later ones that do not exist yet ({@link build/2}).
%%
%% A later version is a complete copy of `apps/beamway' and `native' with some pieces of text replaced, so it is real code with different version
%% numbers. Only the modules that differ are compiled, and the driver only if it differs. Each of these pieces must occur exactly once in its file, so
%% that a replacement that no longer has an effect fails instead of testing nothing.
-module(beamway_builds).

-export([release/1, release/3, build/2, extension/1, agreement/1, rings/1, driver_abi/1, later_fields/0]).

-export_type([change/0]).

%% The commit of version 0.1.0.
-define(RELEASE, "1e022f3c1a23").

-type change() :: {File :: file:filename(), Text :: string(), Instead :: string()}.
%% `File' is relative to the checkout.

%% @doc Builds version 0.1.0.
-spec release(Folder :: file:filename()) -> {ok, Ebin :: file:filename()} | {skip, Reason :: string()}.
release(Folder) ->
    case release(Folder, ?RELEASE, [beamway]) of
        {ok, [Ebin]} -> {ok, Ebin};
        Skip -> Skip
    end.

%% @doc Builds these applications, and the driver, from a commit.
-spec release(Folder :: file:filename(), Commit :: string(), [Application :: atom()]) -> {ok, Ebins :: [file:filename()]} | {skip, Reason :: string()}.
release(Folder, Wanted, Applications) ->
    case {git(["rev-parse --verify --quiet '", Wanted, "^{commit}'"]), git(["log -1 --format=%H"])} of
        {"", ""} -> {skip, "the history of the repository is not here"};
        {"", _} -> {skip, "the repository is a shallow clone"};
        {Commit, _} -> {ok, checked_out(Commit, ["apps/" ++ atom_to_list(Application) || Application <- Applications], Folder)}
    end.

git(Arguments) -> string:trim(os:cmd(lists:flatten(["git -C '", test_support:checkout(), "' ", Arguments, " 2>/dev/null"]))).

checked_out(Commit, Applications, Folder) ->
    ok = filelib:ensure_dir(filename:join(Folder, "x")),
    %% The checkout may be a copy in a subdirectory of the repository, as created by scripts/coverage.
    Root = git(["rev-parse --show-toplevel"]),
    "" = os:cmd(lists:flatten(["git -C '", Root, "' archive ", Commit, [[" ", Path] || Path <- ["native" | Applications]], " | tar -x -C '", Folder, "'"])),
    ok = build_driver(Folder),
    [built(filename:join(Folder, Application)) || Application <- Applications].

built(Application) ->
    Name = filename:basename(Application),
    Ebin = filename:join(Application, "ebin"),
    ok = filelib:ensure_dir(filename:join(Ebin, "x")),
    {ok, _} = file:copy(filename:join(Application, "src/" ++ Name ++ ".app.src"), filename:join(Ebin, Name ++ ".app")),
    ok = compiled(filelib:wildcard(filename:join(Application, "src/*.erl")), Ebin),
    Ebin.

compiled(Sources, Ebin) ->
    lists:foreach(fun(Source) -> {ok, _} = compile:file(Source, [report_errors, debug_info, {outdir, Ebin}]) end, Sources).

%% @doc Builds the version in a new directory and returns the directory for the option `ebin' of {@link beamway_peer:start/2}.
-spec build(Folder :: file:filename(), [change()]) -> Ebin :: file:filename().
build(Folder, Changes) ->
    lists:foreach(fun(Name) -> ok = copy("apps/beamway/" ++ Name, "*", Folder) end, ["src", "ebin", "priv"]),
    lists:foreach(fun(Pattern) -> ok = copy("native", Pattern, Folder) end, ["Makefile", "**/*.{c,h,mk}"]),
    lists:foreach(fun(Change) -> ok = change(Folder, Change) end, Changes),
    {Native, Modules} = lists:partition(fun(File) -> lists:prefix("native/", File) end, lists:usort([File || {File, _, _} <- Changes])),
    ok = case Native of [] -> ok; _ -> build_driver(Folder) end,
    Ebin = filename:join(Folder, "apps/beamway/ebin"),
    ok = compiled([filename:join(Folder, Module) || Module <- Modules], Ebin),
    Ebin.

copy(Dir, Pattern, Folder) ->
    From = filename:join(test_support:checkout(), Dir),
    Files = [Name || Name <- filelib:wildcard(Pattern, From), filelib:is_regular(filename:join(From, Name))],
    lists:foreach(fun(Name) ->
                          To = filename:join([Folder, Dir, Name]),
                          ok = filelib:ensure_dir(To),
                          {ok, _} = file:copy(filename:join(From, Name), To)
                  end, Files).

change(Folder, {Name, Text, Instead}) ->
    File = filename:join(Folder, Name),
    {ok, Old} = file:read_file(File),
    case string:split(Old, Text, all) of
        [Before, After] -> file:write_file(File, [Before, Instead, After]);
        Parts -> error({found_times, length(Parts) - 1, Text, Name})
    end.

%% Replaces the number that follows the text.
number(Name, Text, Number) ->
    {ok, Source} = file:read_file(filename:join(test_support:checkout(), Name)),
    [_, <<Digit, _/binary>>] = string:split(Source, Text, all),
    {Name, Text ++ [Digit], Text ++ integer_to_list(Number)}.

build_driver(Folder) ->
    Command = ["make -C '", filename:join(Folder, "native"), "' driver 2>&1 && echo built"],
    case string:split(string:trim(os:cmd(lists:flatten(Command))), "\n", trailing) of
        [_, "built"] -> ok;
        Output -> error({driver, Output})
    end.

%% @doc Returns the changes to the version number of the handshake's extension.
-spec extension(pos_integer()) -> [change()].
extension(Number) ->
    [number("apps/beamway/src/beamway_wire.erl", "-define(EXTENSION_VERSION, ", Number)].

%% @doc Returns the changes to the version number of the packets with which two nodes agree on a link.
-spec agreement(pos_integer()) -> [change()].
agreement(Number) ->
    [number("apps/beamway/src/beamway_wire.erl", "-define(PACKET_VERSION, ", Number)].

%% @doc Returns the changes to the version number of the memory that two nodes share.
-spec rings(pos_integer()) -> [change()].
rings(Number) ->
    [number("native/link/shm/connect.c", "#define HELLO_VERSION ", Number)].

%% @doc Returns the changes to the version number of the commands between the modules and the driver.
-spec driver_abi(pos_integer()) -> [change()].
driver_abi(Number) ->
    [number("native/driver/beamway_drv.c", "#define ABI_VERSION ", Number),
     number("apps/beamway/src/beamway_port.erl", "-define(ABI_VERSION, ", Number)].

%% @doc Returns the change that a later version may make without increasing the version number: it adds fields at the end of the extension.
-spec later_fields() -> [change()].
later_fields() ->
    [{"apps/beamway/src/beamway_wire.erl", "Port:16, (connections_to_byte(Connections))>>", "Port:16, (connections_to_byte(Connections)), 7:64, \"later\">>"}].
