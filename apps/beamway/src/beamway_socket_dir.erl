%% SPDX-License-Identifier: Apache-2.0
%% @doc The directory of the option `socket_dir', through which nodes in different containers find each other.
%%
%% A socket is in the directory only while a link is being agreed on: one side listens, the peer connects, and the name is removed. If a node is
%% killed before that, the name remains, and the next node that starts with that directory removes it ({@link sweep/1}). Containers may mount the same
%% directory under different paths, so a node looks for a peer's socket in its own directory ({@link address/2}).
-module(beamway_socket_dir).

-export([prepare/1, check/1, sweep/1, address/2, bytes/1]).

-include_lib("kernel/include/file.hrl").
-include_lib("kernel/include/logger.hrl").

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

%% How the driver names its sockets: see listener_name() in native/link/shm/connect.c.
-define(PREFIX, "beamway-").
-define(ID_LENGTH, 16).
%% A socket's name exists for a moment before the socket is listening.
-define(YOUNG_S, 10).
-define(CONNECT_MS, 1000).

%% @doc Called when a node starts: logs that a directory is unusable, or sweeps it. The directory is checked again for each link.
-spec prepare(beamway_config:config()) -> ok.
prepare(#{socket_dir := [_ | _] = Dir, links := Links}) ->
    case not lists:member(shm, Links) orelse check(Dir) of
        true ->
            ok;
        ok ->
            %% This runs in a separate process, because the directory may contain very many names.
            _ = spawn(fun() -> log_swept(Dir, sweep(Dir)) end),
            ok;
        {error, Reason} ->
            ?LOG_WARNING("beamway: links use tcp as long as socket_dir ~ts is not usable: ~ts", [Dir, Reason])
    end;
prepare(_Config) ->
    ok.

log_swept(_Dir, 0) ->
    ok;
log_swept(Dir, Count) ->
    ?LOG_INFO("beamway: removed ~b sockets of killed nodes from ~ts", [Count, Dir]).

%% @doc Creates a socket in the directory and removes it again, to check whether links could be agreed on there. The driver must be loaded.
-spec check(Dir :: string()) -> ok | {error, Reason :: binary()}.
check("") ->
    ok;
check(Dir) ->
    beamway_result:then(beamway_establish:listen(shm, bytes(Dir), 65536), fun(Port, _Listener) -> beamway_port:close(Port) end).

%% @doc Returns the path of a peer's socket, given the address in its offer and our own directory. A peer cannot direct us to any other place in the
%% file system.
-spec address(Address :: binary(), Dir :: string()) -> {ok, binary()} | {error, Reason :: binary()}.
address(<<0, _/binary>> = Abstract, _Dir) ->
    {ok, Abstract};
address(_Path, "") ->
    {error, <<"the peer has a socket_dir and this node has none">>};
address(Path, Dir) ->
    {ok, filename:join(bytes(Dir), filename:basename(Path))}.

%% @doc Returns the directory in the driver's format, which is its raw file name. Depending on the locale, that name may not be UTF-8.
-spec bytes(Dir :: string()) -> binary().
bytes(Dir) ->
    <<Bytes/binary>> = unicode:characters_to_binary(Dir, unicode, file:native_name_encoding()),
    Bytes.

%% @doc Removes the names left behind by killed nodes, and returns how many there were.
-spec sweep(Dir :: string()) -> non_neg_integer().
sweep("") ->
    0;
sweep(Dir) ->
    case prim_file:list_dir(Dir) of
        {ok, Names} ->
            Paths = [filename:join(Dir, Name) || Name <- Names, is_socket_name(Name)],
            length([Path || Path <- Paths, is_stale(Path), prim_file:delete(Path) =:= ok]);
        {error, _} ->
            0
    end.

is_socket_name(?PREFIX ++ Id) ->
    length(Id) =:= ?ID_LENGTH andalso lists:all(fun is_hex/1, Id);
is_socket_name(_) ->
    false.

is_hex(C) ->
    (C >= $0 andalso C =< $9) orelse (C >= $a andalso C =< $f).

is_stale(Path) ->
    age_s(Path) > ?YOUNG_S andalso is_deserted(Path).

age_s(Path) ->
    case file:read_link_info(Path, [raw, {time, posix}]) of
        {ok, #file_info{type = other, mtime = Made}} -> erlang:system_time(second) - Made;
        _ -> 0
    end.

%% Connecting with the wrong socket type does not disturb the owner: the kernel returns `eprototype' if there is a listener, and otherwise refuses
%% the connection. inet encodes a string as UTF-8 in any locale.
is_deserted(Path) ->
    case gen_tcp:connect({local, bytes(Path)}, 0, [local, {active, false}], ?CONNECT_MS) of
        {error, econnrefused} ->
            true;
        {error, _} ->
            false;
        {ok, Socket} ->
            gen_tcp:close(Socket),
            false
    end.

-ifdef(TEST).

address_test_() ->
    [?_assertEqual({ok, <<"/mine/beamway-1">>}, address(<<"/theirs/deep/beamway-1">>, "/mine")),
     ?_assertEqual({ok, <<0, "beamway-1">>}, address(<<0, "beamway-1">>, "/mine")),
     ?_assertEqual({ok, <<0, "beamway-1">>}, address(<<0, "beamway-1">>, "")),
     ?_assertEqual({ok, <<"/mine/passwd">>}, address(<<"/etc/passwd">>, "/mine")),
     ?_assertEqual({ok, <<"/mine">>}, address(<<"/">>, "/mine"))]
        ++ [?_assertMatch({error, _}, address(Bad, "")) || Bad <- [<<"/theirs/beamway-1">>, <<"x">>, <<>>]].

names_test_() ->
    [?_assert(is_socket_name("beamway-0123456789abcdef"))]
        ++ [?_assertNot(is_socket_name(Other))
            || Other <- ["", "beamway-", "beamway-0123456789abcde", "beamway-0123456789abcdeg", "other",
                         "xbeamway-0123456789abcdef", "beamway-0123456789abcdef0"]].

with_dir(Test) ->
    "/" ++ _ = Dir = string:trim(os:cmd("mktemp -d")),
    try Test(Dir) after ok = file:del_dir_r(Dir) end.

socket(Dir, Id) ->
    Path = filename:join(Dir, ?PREFIX ++ Id),
    {ok, Socket} = gen_tcp:listen(0, [local, {ifaddr, {local, Path}}]),
    {Path, Socket}.

make_old(Path) ->
    Old = calendar:system_time_to_universal_time(erlang:system_time(second) - 100, second),
    ok = file:change_time(Path, Old).

%% A closed listener leaves its name behind, as a killed process does.
only_old_names_of_nobody_go_test() ->
    with_dir(fun(Dir) ->
        {Stale, One} = socket(Dir, "00000000000000aa"),
        {_Young, Two} = socket(Dir, "00000000000000bb"),
        {Alive, Three} = socket(Dir, "00000000000000cc"),
        {Foreign, Four} = socket(Dir, "of-somebody"),
        File = filename:join(Dir, "beamway-00000000000000dd"),
        ok = file:write_file(File, "no socket"),
        [ok = gen_tcp:close(Socket) || Socket <- [One, Two, Four]],
        [make_old(Path) || Path <- [Stale, Alive, Foreign, File]],
        ?assertEqual(1, sweep(Dir)),
        {ok, Left} = file:list_dir(Dir),
        ?assertEqual(["beamway-00000000000000bb", "beamway-00000000000000cc", "beamway-00000000000000dd",
                      "beamway-of-somebody"], lists:sort(Left)),
        ok = gen_tcp:close(Three)
    end).

%% `gen_tcp' cannot connect to the driver's own sockets, because they are of a different type.
a_listener_is_not_deserted_test() ->
    with_dir(fun(Dir) ->
        Path = filename:join(Dir, ?PREFIX ++ "00000000000000ee"),
        {ok, Listener} = socket:open(local, seqpacket),
        ok = socket:bind(Listener, #{family => local, path => Path}),
        ok = socket:listen(Listener),
        make_old(Path),
        ?assertEqual(0, sweep(Dir)),
        ok = socket:close(Listener),
        ?assertEqual(1, sweep(Dir))
    end).

no_directory_test_() ->
    [?_assertEqual(0, sweep("")), ?_assertEqual(0, sweep("/nowhere/at/all"))].

-endif.
