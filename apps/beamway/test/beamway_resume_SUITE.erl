%% SPDX-License-Identifier: Apache-2.0
%% @doc Callers that have no right to a link, and callers that have the key of one and lie (docs/dev/session.md).
%%
%% The caller is the test itself. It calls the node under test, which has two links: the one to `Other' is the link that the caller wants, and no case
%% may affect the one to `Friend'. A caller without the key gets nothing: it is rejected and counted, and the link keeps its connection. A caller with
%% the key counts as the peer, so if it lies, it can end this one link, and the log says why.
-module(beamway_resume_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([half_a_resume/1, another_version/1, an_id_is_not_enough/1, a_replayed_proof/1, an_old_number/1, a_thousand_resumes/1,
         two_nodes_with_one_token/1, read_what_was_never_sent/1, asks_for_bytes_that_are_gone/1]).

-import(beamway_peer, [wait_until/2]).

-define(WAIT_MS, 20000).
-define(SETUP_S, 5).
-define(COOKIE, beamway_test).
-define(CALLERS, 20).
-define(CALLS, 50).
%% The peer acknowledges data at least every 256 KB.
-define(ACK_BYTES, 262144).

suite() -> [{timetrap, {minutes, 3}}].

all() -> beamway_carrier:all([beamway_tcp, beamway_tls, beamway_shm]).

groups() ->
    %% With a ring, the connection carries no data, so it has no position. With TLS, a caller that lies must first set up TLS with keys of the link.
    beamway_carrier:only(
      [{Case, [beamway_tcp]} || Case <- [two_nodes_with_one_token, read_what_was_never_sent, asks_for_bytes_that_are_gone]],
      beamway_carrier:groups([beamway_tcp, beamway_tls, beamway_shm],
                             [half_a_resume, another_version, an_id_is_not_enough, a_replayed_proof, an_old_number, a_thousand_resumes,
                              two_nodes_with_one_token, read_what_was_never_sent, asks_for_bytes_that_are_gone])).

init_per_group(Carrier, Given) ->
    Config = beamway_carrier:init_group(Carrier, Given),
    Log = filename:join(proplists:get_value(priv_dir, Config), atom_to_list(Carrier) ++ ".log"),
    Start = fun(Options) ->
                    {ok, Peer, Node} = beamway_peer:start(Carrier, Options#{args => ["-connect_all", "false", "-kernel", "net_setuptime", integer_to_list(?SETUP_S)]}),
                    {Peer, Node}
            end,
    [{log, Log}, {under_test, Start(#{log => Log})}, {other, Start(#{})}, {friend, Start(#{})} | Config].

end_per_group(_Carrier, _Config) -> beamway_peer:stop_started().

%% The other two nodes have called the node under test, which therefore has one answering process for each of them.
init_per_testcase(_Case, Config) ->
    {Peer, _} = proplists:get_value(under_test, Config),
    [{Other, _}, {Friend, _}] = [proplists:get_value(Who, Config) || Who <- [other, friend]],
    [ok = beamway_peer:connect_both(beamway_carrier:carrier(Config), Caller, Peer) || Caller <- [Other, Friend]],
    [{Id, Key}] = wait_until(fun() -> sessions(Other, 1) end, ?WAIT_MS),
    _ = wait_until(fun() -> lists:member({Id, Key}, sessions(Peer, 2)) end, ?WAIT_MS),
    [{id, Id}, {key, Key}, {friendship, link_of(friend, Config)} | Config].

end_per_testcase(_Case, Config) ->
    case {link_of(friend, Config), proplists:get_value(friendship, Config)} of
        {Same, Same} -> ok;
        {Now, Before} -> {fail, {friend_noticed, Before, Now}}
    end.

%% Returns the token and the key of each link, or false unless there are `Count' links.
sessions(Peer, Count) ->
    case beamway_peer:call(Peer, ets, match, [beamway_links, {{session, '$1'}, '$2'}]) of
        Rows when length(Rows) =:= Count -> [{Id, Key} || [Id, #{key := Key}] <- Rows];
        _ -> false
    end.

%% Returns what changes at both ends when a link, or its connection, is replaced.
link_of(Who, Config) ->
    [{_, Node} = UnderTest, {_, OtherNode} = Its] = [proplists:get_value(One, Config) || One <- [under_test, Who]],
    [begin
         {ok, Info} = beamway_peer:call(Peer, beamway, info, [To]),
         {beamway_peer:controller(Peer, To), maps:with([address, since, losses, resumes, last_resume], Info)}
     end || {{Peer, _}, To} <- [{UnderTest, OtherNode}, {Its, Node}]].

%% ---- callers without the key ----

%% A caller that sends half of a packet, or stops after its first one, is dropped within the time that any connection may take to set up.
half_a_resume(Config) ->
    Packet = iolist_to_binary(resume(resume, ?COOKIE, beamway_session:random(), Config)),
    Sent = <<(byte_size(Packet)):16, Packet/binary>>,
    is_rejected(0, fun() ->
                           Sockets = [begin
                                          Socket = connected(Config),
                                          ok = beamway_raw_peer:send_raw(Socket, binary:part(Sent, 0, Length)),
                                          Socket
                                      end || Length <- [1, 2, 3, 20, byte_size(Sent) - 1]],
                           {Asked, _, _} = challenged(resume, ?COOKIE, Config),
                           [ok = is_dropped(Socket) || Socket <- [Asked | Sockets]]
                   end, Config).

another_version(Config) ->
    is_rejected(3, fun() ->
                           [begin
                                <<Letter, 1, Rest/binary>> = iolist_to_binary(resume(Kind, ?COOKIE, beamway_session:random(), Config)),
                                Socket = connected(Config),
                                ok = beamway_raw_peer:send(Socket, <<Letter, 2, Rest/binary>>),
                                {error, closed} = beamway_raw_peer:recv(Socket, ?WAIT_MS)
                            end || Kind <- [resume, spread, join]]
                   end, Config).

%% The token of a link is sent in clear text, and every node of the cluster has the cookie. Without the key they are useless. Nobody without the
%% cookie gets a MAC that is computed with it.
an_id_is_not_enough(Config) ->
    is_rejected(8, fun() ->
                           [begin
                                {Socket, Talk, Number} = challenged(Kind, Cookie, Config),
                                ok = is_refused(Socket, beamway_session:proof(Talk#{key := crypto:strong_rand_bytes(32)}, Number + 2, 0))
                            end || Kind <- [resume, spread, join], Cookie <- [?COOKIE, another_cookie]],
                           [begin
                                Socket = connected(Config),
                                {Id, Caller} = {beamway_session:random(), beamway_session:random()},
                                ok = beamway_raw_peer:send(Socket, beamway_session:resume(resume, Cookie, Id, Caller, 'nobody@localhost')),
                                Answered = case beamway_raw_peer:recv(Socket, ?WAIT_MS) of
                                               {ok, Packet} ->
                                                   {ok, Refusal} = beamway_session:decode(Packet),
                                                   beamway_session:refuse_holds(?COOKIE, {Id, Caller}, Refusal);
                                               {error, closed} ->
                                                   false
                                           end,
                                {Cookie, Answered} = {Cookie, Cookie =:= ?COOKIE}
                            end || Cookie <- [?COOKIE, another_cookie]]
                   end, Config).

%% A proof that was valid on one connection is invalid on another, even if the caller sends the same random number.
a_replayed_proof(Config) ->
    is_rejected(1, fun() ->
                           Caller = beamway_session:random(),
                           {First, Talk, Number} = challenged(resume, ?COOKIE, Caller, Config),
                           {Second, Again, Number} = challenged(resume, ?COOKIE, Caller, Config),
                           true = maps:get(callee, Talk) =/= maps:get(callee, Again),
                           ok = is_refused(Second, beamway_session:proof(Talk, Number + 2, 0)),
                           gen_tcp:close(First)
                   end, Config).

%% Even with the key, a connection must be newer than the current one, and a connection that joins it must have the same number.
an_old_number(Config) ->
    is_rejected(3, fun() ->
                           [begin
                                {Socket, Talk, Number} = challenged(Kind, ?COOKIE, Config),
                                ok = is_refused(Socket, beamway_session:proof(Talk, Number + More, 0))
                            end || {Kind, More} <- [{resume, 0}, {spread, 0}, {join, 1}]]
                   end, Config).

a_thousand_resumes(Config) ->
    {Other, _} = proplists:get_value(other, Config),
    {_, Node} = proplists:get_value(under_test, Config),
    is_rejected(?CALLERS * ?CALLS,
                fun() ->
                        Callers = [beamway_peer:async(fun() -> [wrong_proof(Config) || _ <- lists:seq(1, ?CALLS)] end) || _ <- lists:seq(1, ?CALLERS)],
                        [Node = beamway_peer:call(Other, erpc, call, [Node, erlang, node, []]) || _ <- lists:seq(1, 100)],
                        [_ = beamway_peer:await(Caller) || Caller <- Callers]
                end, Config).

wrong_proof(Config) ->
    {Socket, Talk, Number} = challenged(resume, another_cookie, Config),
    ok = is_refused(Socket, beamway_session:proof(Talk#{key := crypto:strong_rand_bytes(32)}, Number + 2, 0)).

%% Checks that each of these callers is counted, that the link keeps its connection and works, and that the processes that answered have exited.
is_rejected(Count, Call, Config) ->
    [{Peer, Node}, {Other, OtherNode}] = [proplists:get_value(Who, Config) || Who <- [under_test, other]],
    Refused = fun() -> {ok, Total} = beamway_peer:call(Peer, beamway_links, resumes_refused, []), Total end,
    {Before, Link} = {Refused(), link_of(other, Config)},
    _ = Call(),
    _ = wait_until(fun() -> answering(Peer) =:= 2 end, ?WAIT_MS),
    Count = Refused() - Before,
    Link = link_of(other, Config),
    Node = beamway_peer:call(Other, erpc, call, [Node, erlang, node, []]),
    OtherNode = beamway_peer:call(Peer, erpc, call, [OtherNode, erlang, node, []]),
    ok.

answering(Peer) ->
    beamway_peer:run(Peer, fun() -> length([Pid || Pid <- processes(), process_info(Pid, initial_call) =:= {initial_call, {beamway_dist_setup, init_accept, 7}}]) end).

%% ---- callers that have the key ----

%% Another node has a copy of the peer's state, as when a virtual machine has been restored from a snapshot. The copy gets the link, because nothing
%% tells it apart from the peer, but the peer takes the link back, and no message is lost.
two_nodes_with_one_token(Config) ->
    [{Peer, Node}, {Other, OtherNode}] = [proplists:get_value(Who, Config) || Who <- [under_test, other]],
    Collector = beamway_peer:run(Other, fun() -> spawn(fun() -> beamway_cut_load:numbers(0) end) end),
    ok = send_numbers(Peer, Collector, 1, 10),
    ok = arrived(Other, Collector, 10),
    Before = beamway_peer:controller(Peer, OtherNode),
    {ok, #{bytes_in := Position}} = beamway_peer:call(Other, beamway, info, [Node]),
    Copy = accepted(Position, Config),
    ok = send_numbers(Peer, Collector, 11, 20),
    ok = arrived(Other, Collector, 20),
    ok = is_dropped(Copy),
    Before = beamway_peer:controller(Peer, OtherNode),
    {ok, #{resumes := Resumes, last_resume := #{cause := peer_dials}}} = beamway_peer:call(Peer, beamway, info, [OtherNode]),
    true = Resumes >= 1, % the peer may call before the link has moved to the copy
    Metrics = iolist_to_binary(beamway_peer:call(Peer, beamway, metrics, [])),
    [{match, _} = re:run(Metrics, ["beamway_link_", Name, "_total\\{peer=\"", atom_to_list(OtherNode), "\",link=\"tcp\",cause=\"peer_dials\"\\} ", Value, "\n"])
     || {Name, Value} <- [{"resumes", integer_to_list(Resumes)}, {"pause_seconds", "[0-9.]+"}]],
    ok.

send_numbers(Peer, Collector, From, To) ->
    beamway_peer:run(Peer, fun() -> lists:foreach(fun(Number) -> Collector ! {number, Number} end, lists:seq(From, To)) end).

arrived(Other, Collector, Last) ->
    _ = wait_until(fun() -> Last =:= beamway_peer:run(Other, fun() -> Collector ! {last, self()}, receive {last, Number} -> Number after 5000 -> none end end) end, ?WAIT_MS),
    ok.

read_what_was_never_sent(Config) ->
    ends_the_link(1 bsl 40, "claims to have read bytes that were never sent", Config).

asks_for_bytes_that_are_gone(Config) ->
    [{Peer, _}, {_, OtherNode}] = [proplists:get_value(Who, Config) || Who <- [under_test, other]],
    ok = beamway_peer:run(Peer, fun() -> {nobody, OtherNode} ! binary:copy(<<1>>, 8 * ?ACK_BYTES), ok end),
    _ = wait_until(fun() ->
                           {ok, #{bytes_out := Sent, kept_bytes := Kept}} = beamway_peer:call(Peer, beamway, info, [OtherNode]),
                           Sent > 8 * ?ACK_BYTES andalso Kept < 2 * ?ACK_BYTES
                   end, ?WAIT_MS),
    ends_the_link(0, "requests bytes that it has acknowledged", Config).

%% The link ends, one line in the log gives the reason, and the two nodes can connect again.
ends_the_link(Position, Words, Config) ->
    [{Peer, Node}, {Other, OtherNode}] = [proplists:get_value(Who, Config) || Who <- [under_test, other]],
    Log = proplists:get_value(log, Config),
    Lines = fun() -> [Line || Line <- string:lexemes(beamway_peer:log_text(Log), "\n"), string:find(Line, "cannot go on") =/= nomatch] end,
    Before = length(Lines()),
    Watchers = [{Side, To, beamway_peer:watch_nodedown(Side)} || {Side, To} <- [{Peer, OtherNode}, {Other, Node}]],
    _ = accepted(Position, Config),
    [{connection_closed, _} = beamway_peer:nodedown(Side, Watcher, To, ?WAIT_MS) || {Side, To, Watcher} <- Watchers],
    New = wait_until(fun() -> case lists:nthtail(Before, Lines()) of [] -> false; Some -> Some end end, ?WAIT_MS),
    [true] = [string:find(Line, Words) =/= nomatch andalso string:find(Line, atom_to_list(OtherNode)) =/= nomatch || Line <- New],
    beamway_peer:connect_both(beamway_carrier:carrier(Config), Other, Peer).

%% The caller proves that it has the key, and the node under test moves the link to its connection.
accepted(Position, Config) ->
    {Socket, Talk, Last} = challenged(resume, ?COOKIE, Config),
    Number = beamway_session:number_after(connecting, Last),
    ok = beamway_raw_peer:send(Socket, beamway_session:proof(Talk, Number, Position)),
    {ok, Packet} = beamway_raw_peer:recv(Socket, ?WAIT_MS),
    {ok, Accept} = beamway_session:decode(Packet),
    true = beamway_session:accept_holds(Talk#{number => Number, position => Position}, Accept),
    Socket.

%% ---- the exchange ----

connected(Config) ->
    {_, Node} = proplists:get_value(under_test, Config),
    beamway_raw_peer:call(Node, connected, #{}).

resume(Kind, Cookie, Caller, Config) ->
    {_, OtherNode} = proplists:get_value(other, Config),
    beamway_session:resume(Kind, Cookie, proplists:get_value(id, Config), Caller, OtherNode).

challenged(Kind, Cookie, Config) -> challenged(Kind, Cookie, beamway_session:random(), Config).

%% Sends the first packet, and returns the connection, the exchange so far with the link's key, and the number in the challenge.
challenged(Kind, Cookie, Caller, Config) ->
    {_, Node} = proplists:get_value(under_test, Config),
    Socket = connected(Config),
    ok = beamway_raw_peer:send(Socket, resume(Kind, Cookie, Caller, Config)),
    {ok, Packet} = beamway_raw_peer:recv(Socket, ?WAIT_MS),
    {ok, {challenge, Callee, Number, _} = Challenge} = beamway_session:decode(Packet),
    Talk = #{kind => Kind, key => proplists:get_value(key, Config), id => proplists:get_value(id, Config), node => Node, caller => Caller},
    true = beamway_session:challenge_holds(Talk, Challenge),
    {Socket, Talk#{callee => Callee}, Number}.

is_refused(Socket, Proof) ->
    ok = beamway_raw_peer:send(Socket, Proof),
    is_dropped(Socket).

is_dropped(Socket) ->
    true = is_integer(beamway_raw_peer:closed_within(Socket, ?WAIT_MS)),
    ok.
