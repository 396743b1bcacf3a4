%% SPDX-License-Identifier: Apache-2.0
%% @doc What holds for `!', gen_server and erpc, and so must hold for teleport: which nodes it reaches, when it connects, and what it leaves of the caller alone.
-module(teleport_as_distribution_SUITE).

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_group/2, end_per_group/2, end_per_testcase/2]).
-export([c_node/1, never_connects/1, connects_once/1, random_numbers/1, answered_calls/1]).
-import(teleport_nodes, [wait_ms/0]).
-import(beamway_compat_nodes, [start_program/3, stop_program/1, expect_line/2]).

suite() -> [{timetrap, {minutes, 3}}, {ct_hooks, [beamway_compat_nodes]}].

all() -> teleport_nodes:all([beamway, tcp]).

groups() -> teleport_nodes:groups([beamway, tcp], [c_node, never_connects, connects_once, random_numbers, answered_calls]).

init_per_suite(Config) -> [{c_node, beamway_foreign_SUITE:compile_c_node(proplists:get_value(priv_dir, Config))} | Config].

end_per_suite(_Config) -> ok.

init_per_group(Kind, Config) -> teleport_nodes:init_group(Kind, Config).

end_per_group(_Kind, _Config) -> ok.

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

%% A program with OTP's own library knows no spawn requests. It answers {Pid, Term} with {c_node, Term}.
c_node(Config) ->
    {Peer, _} = teleport_nodes:start(teleport_nodes:kind(Config)),
    Cookie = atom_to_list(beamway_peer:call(Peer, erlang, get_cookie, [])),
    Name = beamway_peer:unique_name("cnode"),
    Node = list_to_atom(Name ++ "@" ++ beamway_compat_nodes:host()),
    Program = start_program(proplists:get_value(c_node, Config), [Name, Cookie, "accept"], []),
    ok = expect_line(Program, "ready " ++ atom_to_list(Node)),
    ok = beamway_peer:run(Peer, fun() ->
        [begin
             ok = teleport:send({any, Node}, {self(), Term}, Options),
             receive {c_node, Term} -> ok after wait_ms() -> error({lost, Term, Options}) end
         end || Term <- [1, {[], 1.5, "text"}, binary:copy(<<"x">>, 300000)], Options <- [#{}, #{class => control}, #{key => 1, on_full => error}]],
        ok
    end, wait_ms()),
    stop_program(Program).

%% The option is of kernel, and `!' obeys it: only net_kernel:connect_node/1 connects.
never_connects(Config) -> connects_as_told(never, Config).

%% `once': not again to a node whose connection has ended.
connects_once(Config) -> connects_as_told(once, Config).

connects_as_told(Option, Config) ->
    Kind = teleport_nodes:kind(Config),
    {Peer, _} = teleport_nodes:start(Kind, #{args => ["-kernel", "dist_auto_connect", atom_to_list(Option)]}),
    {_, Node} = teleport_nodes:start(Kind, #{args => ["-kernel", "dist_auto_connect", "never"]}),
    Named = {as_distribution, Node},
    beamway_peer:run(Peer, fun() ->
        %% The first connection.
        case Option of
            never ->
                {error, {nodedown, Node}} = teleport:send(Named, x),
                [] = nodes(connected),
                true = net_kernel:connect_node(Node);
            once -> ok
        end,
        ok = teleport:send(Named, x),
        [Node] = nodes(connected),
        Pid = erpc:call(Node, teleport_nodes, start_server, [as_distribution]),
        {echo, 1} = teleport:call(Pid, {echo, 1}),
        %% After its end there is no other, whatever is sent.
        true = erlang:disconnect_node(Node),
        [begin
             {error, {nodedown, Node}} = beamway_peer:wait_until(fun() -> Error = teleport:send(Dest, x, Options), Error =/= ok andalso Error end, wait_ms()),
             {'EXIT', {{nodedown, Node}, _}} = (catch teleport:call(Dest, {echo, 2}, wait_ms(), Options)),
             [] = nodes(connected)
         end || Dest <- [Pid, Named], Options <- [#{}, #{way => lane}, #{way => distribution}]],
        {'EXIT', {{erpc, noconnection}, _}} = (catch teleport:erpc_call(Node, erlang, node, [])),
        {error, _} = teleport:prime(Node),
        [] = nodes(connected),
        %% The operator connects.
        true = net_kernel:connect_node(Node),
        [{echo, 3} = teleport:call(Dest, {echo, 3}) || Dest <- [Pid, Named]],
        ok
    end, wait_ms()).

%% A program with a seed of its own gets the same numbers, and one without is not seeded.
random_numbers(Config) ->
    Pair = teleport_nodes:start_pair(Config),
    teleport_nodes:on_first(Pair, fun(Node) ->
        Pid = erpc:call(Node, teleport_nodes, start_server, [none]),
        Each = [fun() -> ok = teleport:send(Pid, x, #{unordered => true}) end,
                fun() -> {echo, x} = teleport:call(Pid, {echo, x}, wait_ms(), #{unordered => true}) end,
                fun() -> Node = teleport:erpc_call(Node, erlang, node, []) end,
                fun() -> ok = teleport:erpc_cast(Node, erlang, node, []) end,
                fun() -> {[_], []} = teleport:multi_call([Node], rex, {call, erlang, node, [], group_leader()}) end,
                fun() -> ok = teleport:prime(Node) end],
        [begin
             _ = erase(rand_seed),
             ok = Use(),
             undefined = get(rand_seed),
             _ = rand:seed(exsss, {1, 2, 3}),
             Seed = get(rand_seed),
             ok = Use(),
             Seed = get(rand_seed)
         end || Use <- [fun() -> _ = Do(), ok end || Do <- Each]],
        %% They still spread over the lanes.
        [ok = teleport:send(Pid, x, #{unordered => true, way => lane}) || _ <- lists:seq(1, 100)],
        true = length([Lane || #{opened_by := this_node, class := normal} = Lane <- teleport:lanes(Node)]) > 1
    end),
    teleport_nodes:stop_pair(Pair).

%% Whoever has the answer knows that the request has arrived: nothing is unconfirmed when the connection ends right after it.
answered_calls(Config) ->
    {Peer, _} = teleport_nodes:start(teleport_nodes:kind(Config)),
    {_, Node} = teleport_nodes:start(teleport_nodes:kind(Config)),
    beamway_peer:run(Peer, fun() ->
        true = net_kernel:connect_node(Node),
        Pid = erpc:call(Node, teleport_nodes, start_server, [as_distribution]),
        [begin
             true = net_kernel:connect_node(Node),
             %% Calls behind messages that are confirmed.
             [begin {ok, Ref} = teleport:send({as_distribution, Node}, x, #{confirm => true}), receive {teleport, Ref, confirmed} -> ok after wait_ms() -> error(not_confirmed) end end || _ <- lists:seq(1, N)],
             {echo, x} = teleport:call({as_distribution, Node}, {echo, x}),
             {echo, x} = teleport:call(Pid, {echo, x}, wait_ms(), #{way => lane}),
             {'EXIT', {noproc, _}} = (catch teleport:call({nobody, Node}, x)),
             Node = teleport:erpc_call(Node, erlang, node, []),
             true = erlang:disconnect_node(Node),
             %% The lanes have ended, and have been accounted for.
             _ = beamway_peer:wait_until(fun() -> teleport:lanes(Node) =:= [] end, wait_ms())
         end || N <- lists:duplicate(10, 0) ++ lists:duplicate(10, 3)],
        true = #{} =:= teleport:unconfirmed(),
        ok
    end, 2 * wait_ms()).
