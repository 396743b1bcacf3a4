%% SPDX-License-Identifier: Apache-2.0
%% @doc Nodes in containers: separate network, pid and mount namespaces that share nothing but one directory, `socket_dir'. They communicate over
%% shared memory. Where that is impossible (because the nodes run as different users, or because the directory is unusable), both stay on TCP and
%% log why. The name left by a killed node is removed from the directory. Needs root.
-module(beamway_containers_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2, end_per_testcase/2]).
-export([one_directory/1, other_paths_inside/1, only_one_has_it/1, another_user/1, root_of_different_user_namespaces/1,
         one_user_in_two_user_namespaces/1, useless_directories/1, too_long/1, read_only/1, full_of_stale_names/1,
         killed_while_agreeing/1, the_doctor_tries_it/1]).

-define(INSIDE, "/run/beamway").
-define(WAIT_MS, 20000).
%% The directory of a case; its nodes see only parts of this directory.
-define(BASE, "beamway-containers").
-define(SETUP_S, "60").

suite() -> [{timetrap, {minutes, 2}}].

all() ->
    [one_directory, other_paths_inside, only_one_has_it, another_user, root_of_different_user_namespaces,
     one_user_in_two_user_namespaces, useless_directories, too_long, read_only, full_of_stale_names,
     killed_while_agreeing, the_doctor_tries_it].

init_per_suite(Config) ->
    case os:cmd("id -u") of
        "0\n" ->
            case beamway_netns:pair("bwc") of
                {ok, Net} -> [{net, Net} | Config];
                {error, Why} -> {skip, {rights, Why}}
            end;
        _ ->
            {skip, {rights, "needs root to make network, pid and mount namespaces"}}
    end.

end_per_suite(Config) ->
    beamway_netns:delete(proplists:get_value(net, Config)).

init_per_testcase(_Case, Config) ->
    Base = beamway_peer:new_folder(?BASE),
    Dir = filename:join(Base, "shared"),
    ok = file:make_dir(Dir),
    [ok = file:change_mode(Folder, 8#755) || Folder <- [Base, Dir]],
    [{dir, Dir} | Config].

end_per_testcase(_Case, Config) ->
    beamway_peer:stop_started(),
    file:del_dir_r(filename:dirname(proplists:get_value(dir, Config))).

%% ---- configurations that work ----

one_directory(Config) ->
    in_both_directions(Config, #{}, #{}, fun both_on_shm/1),
    {ok, []} = file:list_dir(dir(Config)).

%% Each node sees the volume at the path that its own image uses.
other_paths_inside(Config) ->
    Here = #{mount => "/run/beamway"},
    There = #{mount => "/tmp/deep/down/shared"},
    in_both_directions(Config, Here, There, fun both_on_shm/1),
    {ok, []} = file:list_dir(dir(Config)).

%% Users in two user namespaces are compared by their IDs outside the namespaces.
one_user_in_two_user_namespaces(Config) ->
    ok = file:change_owner(dir(Config), 1001, 1001),
    One = #{user => "1001", user_inside => "0"},
    Other = #{user => "1001", user_inside => "1000"},
    with_readable_checkout(fun() -> in_both_directions(Config, One, Other, fun both_on_shm/1) end).

%% ---- configurations that stay on TCP ----

only_one_has_it(Config) ->
    Sees = fun({_, {Caller, _}, {Called, _}} = Pair) ->
                   both_on_tcp(Pair),
                   says_one_of([Caller, Called], ["another network namespace", "the peer has a socket_dir and this node has none"])
           end,
    in_both_directions(Config, #{}, #{env => []}, Sees).

%% The socket's permissions admit its owner and root, but the check of the peer's user rejects root.
another_user(Config) ->
    "" = os:cmd("chmod 1777 " ++ dir(Config)),
    Check = fun({_, {Caller, _}, {Called, _}} = Pair) ->
                    both_on_tcp(Pair),
                    says_one_of([Caller], ["runs as another user", "the same user\\?\\): Permission denied"]),
                    says_one_of([Called], ["runs as another user", "the same user\\?\\): Permission denied"])
            end,
    with_readable_checkout(fun() -> in_both_directions(Config, #{}, #{user => "1001"}, Check) end).

%% Each of the nodes runs as user 0 in its own namespace.
root_of_different_user_namespaces(Config) ->
    "" = os:cmd("chmod 1777 " ++ dir(Config)),
    One = #{user => "1001", user_inside => "0"},
    Other = #{user => "1002", user_inside => "0"},
    Check = fun({_, {Caller, _}, {Called, _}} = Pair) ->
                    both_on_tcp(Pair),
                    says_one_of([Caller], ["the same user\\?\\): Permission denied"]),
                    says_one_of([Called], ["the same user\\?\\): Permission denied"])
            end,
    with_readable_checkout(fun() -> in_both_directions(Config, One, Other, Check) end).

%% The node logs at startup that the directory is unusable, and again for each link that could have used it.
useless_directories(Config) ->
    Base = filename:dirname(dir(Config)),
    Dirs = [{"missing", fun(_) -> ok end, "socket_dir: No such file or directory"},
            {"file", fun(Path) -> file:write_file(Path, "") end, "socket_dir: Not a directory"},
            {"closed", fun(Path) -> make_dir(Path, 8#755, 0) end, "making a socket in socket_dir: Permission denied"},
            {"open", fun(Path) -> make_dir(Path, 8#777, 1002) end, "socket_dir belongs to another user and all may write"}],
    ok = file:change_mode(Base, 8#755),
    ok = file:change_owner(dir(Config), 1001, 1001),
    with_readable_checkout(fun() ->
        Other = {OtherPeer, OtherNode} = start(Config, 2, #{user => "1001"}),
        [begin
             ok = Make(filename:join(Base, Name)),
             Box = #{user => "1001", outside => Base, env => [{"BEAMWAY_SOCKET_DIR", ?INSIDE ++ "/" ++ Name}],
                     log => true},
             {Peer, Node} = start(Config, 1, Box),
             true = beamway_peer:call(Peer, net_kernel, connect_node, [OtherNode]),
             both_on_tcp({calls, {Peer, Node}, Other}),
             says_one_of([Peer], [Words]),
             says_one_of([OtherPeer], [Words]),
             logs(Peer, "links use tcp as long as socket_dir [^ ]* is not usable: " ++ Words),
             ok = beamway_peer:stop(Peer),
             ok = beamway_peer:wait_disconnected(OtherPeer, Node)
         end || {Name, Make, Words} <- Dirs]
    end).

too_long(Config) ->
    Long = "/run/" ++ lists:duplicate(80, $x),
    {Peer, Node} = start(Config, 1, #{env => [{"BEAMWAY_SOCKET_DIR", Long}], log => true}),
    {OtherPeer, OtherNode} = start(Config, 2, #{}),
    true = beamway_peer:call(Peer, net_kernel, connect_node, [OtherNode]),
    ok = beamway_peer:assert_link(Peer, OtherNode, inet),
    ok = beamway_peer:assert_link(OtherPeer, Node, tcp),
    says_one_of([Peer], ["shared memory is off on this node"]),
    logs(Peer, "socket_dir = .* is not valid: expected an absolute path of at most 80 bytes").

%% A node that only answers does not have to create a name in the directory.
read_only(Config) ->
    {Peer, Node} = start(Config, 1, #{options => "ro"}),
    {Writer, WriterNode} = start(Config, 2, #{}),
    true = beamway_peer:call(Writer, net_kernel, connect_node, [Node]),
    both_on_shm({calls, {Writer, WriterNode}, {Peer, Node}}),
    true = beamway_peer:call(Writer, erlang, disconnect_node, [Node]),
    ok = beamway_peer:wait_disconnected(Peer, WriterNode),
    true = beamway_peer:call(Peer, net_kernel, connect_node, [WriterNode]),
    both_on_tcp({calls, {Peer, Node}, {Writer, WriterNode}}),
    says_one_of([Peer], ["making a socket in socket_dir: Read-only file system"]).

%% ---- names that stay behind ----

full_of_stale_names(Config) ->
    Dir = dir(Config),
    Stale = [stale_name(Dir, N) || N <- lists:seq(1, 300)],
    File = filename:join(Dir, "beamway-0000000000000000"),
    ok = file:write_file(File, "somebody's"),
    Live = filename:join(Dir, "beamway-ffffffffffffffff"),
    {ok, Listener} = socket:open(local, seqpacket),
    ok = socket:bind(Listener, #{family => local, path => Live}),
    ok = socket:listen(Listener),
    [make_old(Path) || Path <- [File, Live | Stale]],
    in_both_directions(Config, #{}, #{}, fun both_on_shm/1),
    Kept = [filename:basename(Path) || Path <- [File, Live]],
    _ = beamway_peer:wait_until(fun() -> {ok, Kept} =:= sorted(file:list_dir(Dir)) end, ?WAIT_MS),
    %% The stale names are removed without connecting to this listener.
    {error, timeout} = socket:accept(Listener, 0),
    ok = socket:close(Listener).

sorted({ok, Names}) -> {ok, lists:sort(Names)};
sorted(Error) -> Error.

stale_name(Dir, N) ->
    Path = filename:join(Dir, lists:flatten(io_lib:format("beamway-~16.16.0b", [N]))),
    {ok, Socket} = gen_tcp:listen(0, [local, {ifaddr, {local, Path}}]),
    ok = gen_tcp:close(Socket),
    Path.

make_old(Path) ->
    ok = file:change_time(Path, calendar:system_time_to_local_time(erlang:system_time(second) - 3600, second)).

%% A node that is killed between its offer and the answer leaves a name; the next start removes it.
killed_while_agreeing(Config) ->
    Dir = dir(Config),
    Options = #{env => [{"BEAMWAY_SOCKET_DIR", Dir}], args => ["-kernel", "net_setuptime", ?SETUP_S]},
    {ok, Peer, Node} = beamway_peer:start(beamway_shm, Options),
    [_, Host] = string:split(atom_to_list(Node), "@"),
    Extension = beamway_wire:encode_extension((beamway_peer:call(Peer, beamway_links, extension, [tcp]))#{resume_ms := 0}),
    #{node := Raw} = Server = beamway_raw_peer:listen(Host),
    {Caller, _} = beamway_peer:async(fun() -> catch beamway_peer:call(Peer, net_kernel, connect_node, [Raw]) end),
    Socket = beamway_raw_peer:serve(Server, offered, #{extension => Extension}),
    {ok, [Name]} = file:list_dir(Dir),
    ok = beamway_peer:kill9(Peer),
    exit(Caller, kill),
    ok = gen_tcp:close(Socket),
    ok = beamway_raw_peer:close(Server),
    {ok, [Name]} = file:list_dir(Dir),
    make_old(filename:join(Dir, Name)),
    {ok, _Next, _} = beamway_peer:start(beamway_shm, Options),
    _ = beamway_peer:wait_until(fun() -> file:list_dir(Dir) =:= {ok, []} end, ?WAIT_MS),
    ok.

the_doctor_tries_it(Config) ->
    {Peer, _} = start(Config, 1, #{options => "ro"}),
    Found = fun(P) -> [{Status, lists:flatten(What)}
                       || #{name := socket_dir, status := Status, found := What}
                              <- maps:get(checks, beamway_peer:call(P, beamway_cli_doctor, examine, []))] end,
    [{problem, ?INSIDE ++ ": making a socket in socket_dir: Read-only file system"}] = Found(Peer),
    {Writer, _} = start(Config, 2, #{}),
    [{ok, ?INSIDE ++ ": a socket was made in it"}] = Found(Writer).

%% ---- containers ----

dir(Config) -> proplists:get_value(dir, Config).

%% Starts a node in the first or the second container. The keys of Box are `user', `user_inside', `mount' (the path at which the node sees the
%% shared directory), `outside' (a different directory to share), `options' of the mount, `env' and `log'.
start(Config, Which, Box) ->
    #{spaces := Spaces, addresses := Addresses} = proplists:get_value(net, Config),
    Inside = maps:get(mount, Box, ?INSIDE),
    Mount = {maps:get(outside, Box, dir(Config)), Inside, maps:get(options, Box, "rw")},
    Wrapper = beamway_netns:container(lists:nth(Which, Spaces),
                                      maps:merge(maps:with([user, user_inside], Box), #{mounts => [Mount]})),
    Log = [{log, log_inside()} || maps:is_key(log, Box)],
    Options = maps:from_list([{host, lists:nth(Which, Addresses)}, {wrapper, Wrapper},
                              {env, maps:get(env, Box, [{"BEAMWAY_SOCKET_DIR", Inside}])} | Log]),
    {ok, Peer, Node} = beamway_peer:start(beamway_shm, Options),
    ok = is_apart(Peer),
    {Peer, Node}.

log_inside() -> "/tmp/node.log".

%% The node runs in separate namespaces and sees few other processes.
is_apart(Peer) ->
    Spaces = spaces(),
    beamway_peer:run(Peer, fun() ->
                                   [] = [Space || Space <- spaces(), lists:member(Space, Spaces)],
                                   {ok, Names} = file:list_dir("/proc"),
                                   Pids = [Name || [First | _] = Name <- Names, First >= $0, First =< $9],
                                   {true, _} = {length(Pids) < 30, Pids},
                                   {ok, Files} = file:list_dir("/tmp"),
                                   [] = [Base || ?BASE ++ _ = Base <- Files],
                                   ok
                           end).

spaces() ->
    [begin {ok, Space} = file:read_link_all("/proc/self/ns/" ++ Kind), Space end || Kind <- ["net", "pid", "mnt"]].

logs(Peer, Pattern) ->
    Logged = fun() -> beamway_peer:run(Peer, fun() -> beamway_peer:log_text(log_inside()) end) end,
    _ = beamway_peer:wait_until(fun() -> re:run(Logged(), Pattern) =/= nomatch end, ?WAIT_MS),
    ok.

make_dir(Path, Mode, Owner) ->
    ok = file:make_dir(Path),
    ok = file:change_mode(Path, Mode),
    file:change_owner(Path, Owner, Owner).

with_readable_checkout(Run) ->
    Beam = filename:join(beamway_peer:ebin(), "beamway.beam"),
    Test = ["setpriv --reuid=1001 --regid=1001 --clear-groups test -r '", Beam, "' && echo readable"],
    case os:cmd(lists:flatten(Test)) of
        "readable\n" -> Run();
        _ -> {skip, "the checkout cannot be read by another user: " ++ Beam}
    end.

in_both_directions(Config, BoxOne, BoxOther, Check) ->
    One = start(Config, 1, BoxOne),
    Other = start(Config, 2, BoxOther),
    calls(One, Other, Check),
    disconnect(One, Other),
    calls(Other, One, Check),
    beamway_peer:stop_all([Peer || {Peer, _} <- [One, Other]]).

calls({Caller, _} = From, {Called, CalledNode} = To, Check) ->
    true = beamway_peer:call(Caller, net_kernel, connect_node, [CalledNode]),
    Check({calls, From, To}),
    Large = binary:copy(<<"0123456789abcdef">>, 100000),
    Large = beamway_peer:call(Caller, erpc, call, [CalledNode, binary, copy, [Large]]),
    true = is_process_alive(Called).

disconnect({One, OneNode}, {Other, OtherNode}) ->
    true = beamway_peer:call(One, erlang, disconnect_node, [OtherNode]),
    ok = beamway_peer:wait_disconnected(One, OtherNode),
    ok = beamway_peer:wait_disconnected(Other, OneNode).

both_on_shm(Pair) -> both_on(shm, Pair).

both_on_tcp(Pair) -> both_on(tcp, Pair).

both_on(Kind, {calls, {Caller, CallerNode}, {Called, CalledNode}}) ->
    ok = beamway_peer:assert_link(Caller, CalledNode, Kind),
    ok = beamway_peer:assert_link(Called, CallerNode, Kind).

says_one_of(Peers, Patterns) ->
    [begin
         [#{reason := Reason}] = beamway_peer:call(Peer, beamway, links, []),
         case [match || Pattern <- Patterns, re:run(Reason, Pattern) =/= nomatch] of
             [] -> error({reason, Reason, expected, Patterns});
             _ -> ok
         end
     end || Peer <- Peers],
    ok.
