%% SPDX-License-Identifier: Apache-2.0
%% @doc What holds for `!', gen_server and erpc, and so must hold for teleport: which nodes it reaches, when it connects, and what it leaves of the caller alone.
-module(teleport_as_distribution_SUITE).

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_group/2, end_per_group/2, end_per_testcase/2]).
-export([c_node/1]).
-import(teleport_nodes, [wait_ms/0]).
-import(beamway_compat_nodes, [start_program/3, stop_program/1, expect_line/2]).

suite() -> [{timetrap, {minutes, 3}}, {ct_hooks, [beamway_compat_nodes]}].

all() -> teleport_nodes:all([beamway, tcp]).

groups() -> teleport_nodes:groups([beamway, tcp], [c_node]).

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
