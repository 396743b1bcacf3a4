%% SPDX-License-Identifier: Apache-2.0
%% @doc Runs version 0.2.0 of teleport together with this one. That version sends over lanes, which this one does not
%% have, so its nodes treat a node with this version as one without teleport and use the distribution. Two nodes call
%% each other continuously. One of them stays as it is; the other is restarted with the other version and then with the
%% original one. Only during these restarts may calls fail and casts or broadcasts be lost.
-module(teleport_versions_SUITE).

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_group/2, end_per_group/2, end_per_testcase/2]).
-export([this_version_stays/1, version_0_2_0_stays/1, nothing_is_lost/1]).
-export([member/2]).
-import(teleport_nodes, [wait_ms/0]).

-define(SERVER, versions_server).
%% The number of calls of each caller between two restarts.
-define(CALLS, 30).
-define(PAUSE_MS, 2).
-define(CALL_MS, 20000).

suite() -> [{timetrap, {minutes, 5}}].

all() -> teleport_nodes:all([shm, stock]).

groups() -> teleport_nodes:groups([shm, stock], [nothing_is_lost, this_version_stays, version_0_2_0_stays]).

%% Uses the commit of 0.2.0, which the CHANGELOG names.
init_per_suite(Config) ->
    case beamway_builds:release(proplists:get_value(priv_dir, Config), "678d7e7", [beamway, teleport]) of
        {ok, [Carrier, Ebin]} -> [{older, #{ebin => Carrier, args => ["-pa", Ebin]}} | Config];
        Skip -> Skip
    end.

end_per_suite(_Config) -> ok.

init_per_group(Kind, Config) -> teleport_nodes:init_group(Kind, Config).

end_per_group(_Kind, _Config) -> ok.

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

start(Version, Name, Config) ->
    Options = case Version of this -> #{}; older -> proplists:get_value(older, Config) end,
    {ok, Peer, Node} = beamway_peer:start(teleport_nodes:carrier(teleport_nodes:kind(Config)), Options#{name => Name}),
    {ok, _} = beamway_peer:call(Peer, application, ensure_all_started, [teleport]),
    {Version, true} = {Version, (beamway_peer:call(Peer, erlang, whereis, [teleport_peers]) =/= undefined) =:= (Version =:= older)},
    _ = beamway_peer:call(Peer, teleport_nodes, start_server, [?SERVER]),
    {Peer, Node}.

%% @private A group member that reports the messages it receives.
member(Group, To) ->
    ok = pg:join(Group, self()),
    told(To).

told(To) ->
    receive Message -> To ! {told, Message} end,
    told(To).

%% Each node sends to the other with every function. All messages, including the first, arrive in the order in which they
%% were sent.
nothing_is_lost(Config) ->
    {Ours, Node} = start(this, beamway_peer:unique_name("ours"), Config),
    {Older, OlderNode} = start(older, beamway_peer:unique_name("older"), Config),
    ok = teleport_nodes:connect(Ours, OlderNode),
    [{ok, _} = beamway_peer:call(Peer, pg, start, [pg]) || Peer <- [Ours, Older]],
    [ok = beamway_peer:run(From, fun() ->
        {Server, Old} = {{?SERVER, To}, teleport},
        Self = self(),
        _ = spawn(To, ?MODULE, member, [versions, Self]),
        _ = beamway_peer:wait_until(fun() -> length(pg:get_members(versions)) >= 1 end, wait_ms()),
        Pid = erpc:call(To, erlang, whereis, [?SERVER]),
        _ = teleport:call(Server, log, wait_ms()),
        Sent = lists:seq(1, 300),
        [ok = teleport:cast(Server, N, #{timeout => wait_ms()}) || N <- Sent],
        true = [{cast, N} || N <- Sent] =:= teleport:call(Server, log, wait_ms()),
        [ok = teleport:cast(Pid, N) || N <- Sent],
        true = [{cast, N} || N <- Sent] =:= teleport:call(Pid, log, wait_ms()),
        {reply, {echo, 1}} = teleport:receive_response(teleport:send_request(Server, {echo, 1}), wait_ms()),
        {[{To, {echo, 2}}], []} = teleport:multi_call([To], ?SERVER, {echo, 2}, wait_ms()),
        To = Old:erpc_call(To, erlang, node, [], wait_ms()),
        {echo, 3} = gen_server:call({via, teleport, {?SERVER, To}}, {echo, 3}, wait_ms()),
        [#{plain := [To], failed := []} = teleport:broadcast(pg, versions, N, Options#{sites => none}) || {N, Options} <- [{one, #{}}, {two, #{confirm => true}}, {three, #{confirm => false}}]],
        [one, two, three] = [receive {told, Message} -> Message after wait_ms() -> error(lost) end || _ <- [1, 2, 3]],
        ok
    end, 3 * wait_ms()) || {From, To} <- [{Ours, OlderNode}, {Older, Node}]],
    %% A confirmation requires this version on both nodes, and the reason states that the other node does not have it.
    {unconfirmed, {no_teleport, OlderNode}} = beamway_peer:run(Ours, fun() ->
        {ok, Ref} = teleport:send({?SERVER, OlderNode}, x, #{confirm => true}),
        receive {teleport, Ref, Told} -> Told after wait_ms() -> error(never_told) end
    end).

this_version_stays(Config) -> roll(this, [older, this], Config).

version_0_2_0_stays(Config) -> roll(older, [this, older], Config).

roll(Stays, Others, Config) ->
    {Peer, _} = Staying = start(Stays, beamway_peer:unique_name("stays"), Config),
    Name = beamway_peer:unique_name("goes"),
    {_, Node} = First = start(Stays, Name, Config),
    ok = teleport_nodes:connect(Peer, Node),
    Load = callers(Peer, Node),
    {Last, Restarts} = lists:foldl(fun(Version, {Old, Before}) ->
                                           ok = call_each_other(Load, Staying, Old),
                                           Began = os:system_time(millisecond),
                                           ok = stop_in_order(Old),
                                           New = start(Version, Name, Config),
                                           _ = beamway_peer:wait_until(fun() -> beamway_peer:call(Peer, net_kernel, connect_node, [Node]) end, wait_ms()),
                                           ok = go_on(Load),
                                           {New, [{Began, os:system_time(millisecond)} | Before]}
                                   end, {First, []}, Others),
    ok = call_each_other(Load, Staying, Last),
    [] = [Failure || Failure <- failures(Load), not is_excused(Failure, Restarts)],
    ok.

%% Stops the node as an operator would.
stop_in_order({Peer, _}) ->
    Monitor = monitor(process, Peer),
    ok = peer:cast(Peer, init, stop, []),
    receive {'DOWN', Monitor, process, Peer, _} -> ok after wait_ms() -> error(still_running) end.

%% Makes calls in both directions. No call made by the restarted node may have failed.
call_each_other(Load, {_, Node}, {Other, _}) ->
    Back = callers(Other, Node),
    [ok = go_on(Each) || Each <- [Load, Back]],
    [] = failures(Back),
    ok.

is_excused({Began, Ended, _}, Restarts) ->
    Ended - Began < call_ms() andalso lists:any(fun({From, Until}) -> Ended >= From andalso Began =< Until end, Restarts).

call_ms() -> ?CALL_MS * beamway_runner:slowness().

%% ---- calls ----

%% Returns the functions that both versions have.
ways(Node) ->
    {Server, Ms, Old} = {{?SERVER, Node}, call_ms(), teleport},
    [fun(N) -> {echo, N} = teleport:call(Server, {echo, N}, Ms) end,
     fun(N) -> {echo, N} = teleport:call(Server, {echo, N}, Ms, #{class => control}) end,
     fun(N) -> {reply, {echo, N}} = teleport:receive_response(teleport:send_request(Server, {echo, N}), Ms) end,
     fun(N) -> N = Old:erpc_call(Node, erlang, abs, [N], Ms) end,
     fun(N) -> Large = binary:copy(<<N:32>>, 100000), {echo, Large} = teleport:call(Server, {echo, Large}, Ms, #{class => bulk}) end,
     %% The call arrives after the cast.
     fun(N) -> ok = teleport:cast(Server, N), {cast, N} = lists:last(teleport:call(Server, log, Ms)) end].

%% Starts a caller for each function, on this peer's node.
callers(Peer, Node) -> {Peer, beamway_peer:run(Peer, fun() -> [spawn(fun() -> call_on(Way, 0, []) end) || Way <- ways(Node)] end)}.

call_on(Way, Done, Failures) ->
    receive
        {done, From} -> From ! {self(), Done};
        {failures, From} -> From ! {self(), Failures}
    after ?PAUSE_MS -> ok
    end,
    Began = os:system_time(millisecond),
    try Way(Done + 1) of
        _ -> call_on(Way, Done + 1, Failures)
    catch Class:Reason ->
        call_on(Way, Done, [{Began, os:system_time(millisecond), said({Class, Reason})} | Failures])
    end.

%% Shortens the failure, because a call's exit reason includes its arguments, and hundreds of calls to a node that is
%% down fail.
said(Failure) -> iolist_to_binary(io_lib:format("~0P", [Failure, 30])).

told({Peer, Callers}, What) ->
    beamway_peer:run(Peer, fun() ->
        [begin
             Caller ! {What, self()},
             receive {Caller, Told} -> Told after wait_ms() -> error(stuck) end
         end || Caller <- Callers]
    end, 2 * wait_ms()).

failures(Load) -> lists:append(told(Load, failures)).

%% Waits until each caller has made more calls.
go_on(Load) ->
    Before = told(Load, done),
    _ = beamway_peer:wait_until(fun() -> lists:all(fun({Now, Then}) -> Now >= Then + ?CALLS end, lists:zip(told(Load, done), Before)) end, wait_ms()),
    ok.
