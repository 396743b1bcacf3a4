%% SPDX-License-Identifier: Apache-2.0
%% @doc Each case of a suite has a node under test and a friend with a shared-memory link to it; the link must outlast the case. Used by
%% beamway_bad_input_SUITE, beamway_options_SUITE and beamway_fallback_SUITE. beamway_bad_peers_SUITE starts both nodes itself, over other carriers.
-module(beamway_friends).

-export([begin_case/1, end_case/1, under_test/1, log_file/1, falls_back/4, falls_back/5, has_line/2, problem_lines/1]).

-type config() :: [{atom(), term()}].

-define(WAIT_MS, 20000).

%% @doc Called by init_per_testcase: starts both nodes and connects them. `log' is the log of the node under test.
-spec begin_case(config()) -> config().
begin_case(Config) ->
    Log = log_file(Config),
    {ok, Peer, Node} = beamway_peer:start(beamway_shm, #{log => Log}),
    {ok, Friend, _} = beamway_peer:start(beamway_shm),
    ok = beamway_peer:connect_both(beamway_shm, Friend, Peer),
    Connection = beamway_peer:controller(Friend, Node),
    [{log, Log}, {under_test, {Peer, Node}}, {friend, Friend}, {friendship, Connection} | Config].

%% @doc Called by end_per_testcase: fails the case if the friend has lost its connection, and stops all nodes.
-spec end_case(config()) -> ok | {fail, term()}.
end_case(Config) ->
    {Peer, Node} = under_test(Config),
    Friend = proplists:get_value(friend, Config),
    Friendship = proplists:get_value(friendship, Config),
    Result = try
                 Friendship = beamway_peer:controller(Friend, Node),
                 Node = beamway_peer:call(Friend, erpc, call, [Node, erlang, node, []]),
                 true = is_process_alive(Peer),
                 ok
             catch Class:Reason -> {fail, {friend_noticed, Class, Reason}}
             end,
    ok = beamway_peer:stop_started(),
    Result.

%% @doc Returns the node under test, and the process that controls it.
-spec under_test(config()) -> {pid(), node()}.
under_test(Config) -> proplists:get_value(under_test, Config).

%% @doc Returns the name of a log file for another node.
-spec log_file(config()) -> file:filename().
log_file(Config) ->
    filename:join(proplists:get_value(priv_dir, Config), beamway_peer:unique_name("node") ++ ".log").

%% @doc Checks that a node started with these options gets links of that kind to the node under test, which reports tcp, whichever side calls. One of
%% the two nodes logs the reason in a line that contains all the words, and messages of all sizes pass.
-spec falls_back(config(), beamway_peer:options(), Kind :: inet | tcp, Words :: [string()]) -> ok.
falls_back(Config, Options, Kind, Words) ->
    falls_back(Config, Options, Kind, Words, [odd, healthy]).

%% @doc Like {@link falls_back/4}, but with only these callers.
-spec falls_back(config(), beamway_peer:options(), Kind :: inet | tcp, Words :: [string()], Callers :: [odd | healthy]) -> ok.
falls_back(Config, Options, Kind, Words, Callers) ->
    {Peer, Node} = under_test(Config),
    [begin
         {ok, Odd, OddNode} = beamway_peer:start(beamway_shm, Options#{log => Log}),
         case Caller of
             odd -> true = beamway_peer:call(Odd, net_kernel, connect_node, [Node]);
             healthy -> true = beamway_peer:call(Peer, net_kernel, connect_node, [OddNode])
         end,
         _ = ct:log("caller ~p, options ~0p", [Caller, Options]),
         ok = beamway_peer:assert_link(Odd, Node, Kind),
         ok = beamway_peer:assert_link(Peer, OddNode, tcp),
         ok = beamway_peer:run(Odd, fun() ->
             [Size = byte_size(erpc:call(Node, binary, copy, [<<1>>, Size])) || Size <- [1, 100000, 3000000]],
             ok
         end),
         _ = beamway_peer:wait_until(
               fun() -> has_line([Log, proplists:get_value(log, Config)], Words) end, ?WAIT_MS),
         ok = beamway_peer:stop(Odd)
     end || Caller <- Callers, Log <- [log_file(Config)]],
    ok.

%% @doc Returns whether a line that reports a problem of Beamway contains all the words.
-spec has_line(Logs :: [file:filename()], Words :: [string()]) -> boolean().
has_line(Logs, Words) ->
    [] =/= [Line || Line <- problem_lines(Logs),
                    lists:all(fun(Word) -> string:find(Line, Word) =/= nomatch end, Words)].

%% @doc Returns the log lines that report a problem of Beamway.
-spec problem_lines(Logs :: [file:filename()]) -> [string()].
problem_lines(Logs) ->
    [Line || Log <- Logs, Line <- string:lexemes(beamway_peer:log_text(Log), "\n"),
             string:find(Line, "beamway: ") =/= nomatch,
             string:find(Line, " error: ") =/= nomatch orelse string:find(Line, " warning: ") =/= nomatch].
