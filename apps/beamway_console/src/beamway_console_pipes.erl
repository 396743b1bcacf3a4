%% SPDX-License-Identifier: Apache-2.0
%% @doc Finds the pipes that run on this host. While `rdpipe' runs, it keeps a small file in a directory that belongs to
%% its user. The file records how much data each hop has carried so far, and `rdpipe' removes it when it exits. This
%% module reads these files, and skips those whose process was killed.
-module(beamway_console_pipes).

-export([default_folder/0, running/1]).

-include_lib("kernel/include/file.hrl").

-define(FILES_MAX, 200).
-define(BYTES_MAX, 65536).

%% @doc Returns the directory in which this user's pipes record their progress.
-spec default_folder() -> file:filename().
default_folder() ->
    case os:getenv("XDG_RUNTIME_DIR") of
        Folder when is_list(Folder), Folder =/= "" -> filename:join(Folder, "rdpipe");
        _ -> "/tmp/rdpipe-" ++ integer_to_list(user())
    end.

user() ->
    case file:read_file_info("/proc/self") of
        {ok, #file_info{uid = User}} -> User;
        {error, _} -> 0
    end.

%% @doc Returns the reports of running pipes, oldest first.
-spec running(file:filename()) -> [map()].
running(Folder) ->
    case is_ours(Folder) andalso file:list_dir(Folder) of
        {ok, Files} -> lists:sort(fun oldest/2, lists:append([pipe(Folder, File) || File <- lists:sublist(lists:sort(Files), ?FILES_MAX)]));
        _ -> []
    end.

%% Anybody may have created a directory with this name in /tmp.
is_ours(Folder) ->
    User = user(),
    case file:read_link_info(Folder) of
        {ok, #file_info{type = directory, uid = User}} -> true;
        _ -> false
    end.

oldest(#{<<"started_at">> := A}, #{<<"started_at">> := B}) -> A =< B;
oldest(_, _) -> true.

pipe(Folder, File) ->
    case {string:to_integer(filename:rootname(File)), filename:extension(File)} of
        {{Pid, ""}, ".json"} when is_integer(Pid) ->
            case is_running(Pid) andalso content(filename:join(Folder, File)) of
                #{<<"hops">> := Hops} = Pipe when is_list(Hops) -> [Pipe#{<<"pid">> => Pid}];
                _ -> []
            end;
        _ -> []
    end.

is_running(Pid) -> filelib:is_dir("/proc/" ++ integer_to_list(Pid)).

content(File) ->
    case file:read_link_info(File) of
        {ok, #file_info{type = regular, size = Size}} when Size =< ?BYTES_MAX ->
            try
                {ok, Bytes} = file:read_file(File), % the pipe may have exited since
                jiffy:decode(Bytes, [return_maps])
            catch _:_ -> none
            end;
        _ -> none
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

running_test() ->
    "/" ++ _ = Folder = string:trim(os:cmd("mktemp -d")),
    Write = fun(Name, Text) -> ok = file:write_file(filename:join(Folder, Name), Text) end,
    Write(os:getpid() ++ ".json", "{\"hops\":[{\"bytes\":5}],\"started_at\":1}"),
    Write("1.json", "{\"ho"),
    Write("999999999.json", "{\"hops\":[]}"),
    Write("x.json", "{\"hops\":[]}"),
    ?assertMatch([#{<<"hops">> := [#{<<"bytes">> := 5}]}], running(Folder)),
    ?assertEqual([], running(Folder ++ "/nowhere")),
    ok = file:del_dir_r(Folder).

a_pipe_that_ends_test() ->
    "/" ++ _ = Folder = string:trim(os:cmd("mktemp -d")),
    File = filename:join(Folder, os:getpid() ++ ".json"),
    {_, Monitor} = spawn_monitor(fun() -> [ok = comes_and_goes(File) || _ <- lists:seq(1, 2000)] end),
    ?assertEqual(normal, looked_until_down(Folder, Monitor)),
    ok = file:del_dir_r(Folder).

comes_and_goes(File) ->
    ok = file:write_file(File, "{\"hops\":[]}"),
    file:delete(File).

looked_until_down(Folder, Monitor) ->
    _ = running(Folder),
    receive {'DOWN', Monitor, process, _, Reason} -> Reason
    after 0 -> looked_until_down(Folder, Monitor)
    end.
-endif.
