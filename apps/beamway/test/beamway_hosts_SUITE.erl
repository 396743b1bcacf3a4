%% SPDX-License-Identifier: Apache-2.0
%% @doc Nodes under the same kernel that cannot or may not share memory, because they are in different network namespaces or run as different users.
%% They stay on TCP and log why; with the same `socket_dir' two namespaces do share memory. In each case, first one node calls, and then the other.
%% Needs root, because it creates a namespace and starts a node as a different user.
-module(beamway_hosts_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([another_namespace/1, a_directory_shared_by_two_namespaces/1, another_user/1, check_ip/1]).

-define(HERE, "10.97.193.1").
-define(THERE, "10.97.193.2").
%% An address in the namespace that belongs to none of the networks of the local host.
-define(ELSEWHERE, "10.97.198.1").
-define(NOBODY, "65534").

suite() -> [{timetrap, {minutes, 2}}].

all() -> [another_namespace, a_directory_shared_by_two_namespaces, another_user, check_ip].

init_per_suite(Config) ->
    case os:cmd("id -u") of
        "0\n" -> make_namespace(Config);
        _ -> {skip, {rights, "needs root to make a network namespace and to start a node as another user"}}
    end.

%% Creates a namespace that is connected by a virtual cable, with one address at each end.
make_namespace(Config) ->
    Space = "bw" ++ os:getpid(),
    Near = "bwn" ++ os:getpid(),
    Far = "bwf" ++ os:getpid(),
    Steps = [["netns add ", Space],
             ["link add ", Near, " type veth peer name ", Far, " netns ", Space],
             ["address add ", ?HERE, "/30 dev ", Near],
             ["link set ", Near, " up"],
             ["-n ", Space, " address add ", ?THERE, "/30 dev ", Far],
             ["-n ", Space, " link set ", Far, " up"],
             ["-n ", Space, " link set lo up"],
             ["-n ", Space, " address add ", ?ELSEWHERE, "/32 dev lo"],
             ["route add ", ?ELSEWHERE, "/32 via ", ?THERE]],
    Done = [{space, Space} | Config],
    case lists:dropwhile(fun(Step) -> ip(Step) =:= ok end, Steps) of
        [] -> Done;
        [Failed | _] ->
            end_per_suite(Done),
            {skip, {rights, lists:flatten(["this system refuses 'ip ", Failed, "'"])}}
    end.

ip(Step) ->
    case os:cmd(lists:flatten(["ip ", Step, " 2>&1 && echo done"])) of
        "done\n" -> ok;
        Text -> ct:log("ip ~ts: ~ts", [Step, Text]), error
    end.

%% Removing the namespace also kills the epmd that the node in it has started, and removes the cable.
end_per_suite(Config) ->
    Space = proplists:get_value(space, Config),
    _ = os:cmd("ip netns pids " ++ Space ++ " | xargs -r kill"),
    _ = ip(["netns delete ", Space]),
    ok.

end_per_testcase(_Case, _Config) ->
    beamway_peer:stop_started().

another_namespace(Config) ->
    stay_on_tcp(fun() -> near(#{}) end, fun() -> far(Config, #{}) end, "another network namespace").

another_user(Config) ->
    Run = [os:find_executable("setpriv"), "--reuid=" ++ ?NOBODY, "--regid=" ++ ?NOBODY, "--clear-groups"],
    Beam = filename:join(beamway_peer:ebin(), "beamway.beam"),
    case os:cmd(lists:flatten(lists:join($\s, Run) ++ [" test -r ", Beam, " && echo readable"])) of
        "readable\n" ->
            Dir = proplists:get_value(priv_dir, Config),
            Other = #{host => ?HERE, wrapper => Run, env => [{"HOME", Dir}]},
            stay_on_tcp(fun() -> near(#{}) end, fun() -> start(Other) end, "another user");
        _ ->
            {skip, "the checkout cannot be read by another user: " ++ Beam}
    end.

a_directory_shared_by_two_namespaces(Config) ->
    Dir = beamway_peer:new_folder("beamway-hosts"),
    Env = #{env => [{"BEAMWAY_SOCKET_DIR", Dir}]},
    try
        in_both_directions(fun() -> near(Env) end, fun() -> far(Config, Env) end,
                           fun(Caller, CallerNode, Called, CalledNode) ->
                                   ok = beamway_peer:assert_link(Caller, CalledNode, shm),
                                   ok = beamway_peer:assert_link(Called, CallerNode, shm)
                           end),
        {ok, []} = file:list_dir(Dir)
    after
        file:del_dir_r(Dir)
    end.

%% Kernel's `check_ip' rejects a caller from a network that this host is not in, over every carrier.
check_ip(Config) ->
    {ok, Elsewhere} = inet:parse_address(?ELSEWHERE),
    From = lists:flatten(io_lib:format("[{ip,~w}]", [Elsewhere])),
    [begin
         Log = filename:join(proplists:get_value(priv_dir, Config), atom_to_list(Carrier) ++ "-check_ip.log"),
         {ok, Near, NearNode} = beamway_peer:start(Carrier, #{host => ?HERE, log => Log, args => ["-kernel", "check_ip", "true"]}),
         Far = fun(Args) ->
                       {ok, Peer, Node} = beamway_peer:start(Carrier, #{host => ?THERE, args => Args, wrapper => beamway_netns:host(proplists:get_value(space, Config))}),
                       {Peer, Node}
               end,
         {Neighbour, _} = Far([]),
         ok = beamway_peer:connect(carrier_over_there(Carrier), Neighbour, NearNode),
         {Stranger, _} = Far(["-kernel", "inet_dist_connect_options", From]),
         false = beamway_peer:call(Stranger, net_kernel, connect_node, [NearNode]),
         _ = beamway_peer:wait_until(
               fun() -> string:find(beamway_peer:log_text(Log), "disallowed IP {10,97,198,1}") =/= nomatch end, 5000),
         ok = beamway_peer:stop_all([Near, Neighbour, Stranger])
     end || Carrier <- [inet_tcp, beamway_tcp, beamway_shm]],
    ok.

carrier_over_there(beamway_shm) -> beamway_tcp;
carrier_over_there(Carrier) -> Carrier.

near(Options) ->
    start(Options#{host => ?HERE}).

far(Config, Options) ->
    start(Options#{host => ?THERE, wrapper => [os:find_executable("ip"), "netns", "exec", proplists:get_value(space, Config)]}).

start(Options) ->
    {ok, Peer, Node} = beamway_peer:start(beamway_shm, Options),
    {Peer, Node}.

%% One of the two finds the reason and informs the other, so either may log it.
stay_on_tcp(StartOne, StartOther, Words) ->
    in_both_directions(StartOne, StartOther,
                       fun(Caller, CallerNode, Called, CalledNode) ->
                               ok = beamway_peer:assert_link(Caller, CalledNode, tcp),
                               ok = beamway_peer:assert_link(Called, CallerNode, tcp),
                               beamway_peer:assert_reason(Caller, Words),
                               beamway_peer:assert_reason(Called, Words)
                       end).

in_both_directions(StartOne, StartOther, Check) ->
    lists:foreach(
      fun(Turn) ->
              {One, OneNode} = StartOne(),
              {Other, OtherNode} = StartOther(),
              case Turn of
                  forth -> connected(One, OneNode, Other, OtherNode, Check);
                  back -> connected(Other, OtherNode, One, OneNode, Check)
              end,
              beamway_peer:stop_all([One, Other])
      end, [forth, back]).

connected(Caller, CallerNode, Called, CalledNode, Check) ->
    true = beamway_peer:call(Caller, net_kernel, connect_node, [CalledNode]),
    Check(Caller, CallerNode, Called, CalledNode),
    Large = binary:copy(<<"0123456789abcdef">>, 100000),
    Large = beamway_peer:call(Caller, erpc, call, [CalledNode, binary, copy, [Large]]).
