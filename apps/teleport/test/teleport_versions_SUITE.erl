%% SPDX-License-Identifier: Apache-2.0
%% @doc Version 0.1.0 of teleport beside this one. Two nodes call each other all the time. One stays, and the other one goes from the first one's version to the
%% other version and back. Only calls during its restarts may fail, and none waits for its limit. A restart lasts until each caller of the node that stays has gone on.
-module(teleport_versions_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2, end_per_testcase/2]).
-export([this_version_stays/1, version_0_1_0_stays/1]).
-import(teleport_nodes, [wait_ms/0]).

-define(SERVER, versions_server).
%% Of each caller, between two restarts.
-define(CALLS, 30).
-define(PAUSE_MS, 2).
-define(CALL_MS, 20000).

suite() -> [{timetrap, {minutes, 5}}].

all() -> teleport_nodes:all([shm, tcp]).

groups() -> teleport_nodes:groups([shm, tcp], [this_version_stays, version_0_1_0_stays]).

init_per_group(Kind, Config) -> teleport_nodes:init_group(Kind, Config).

end_per_group(_Kind, _Config) -> ok.

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

this_version_stays(Config) -> roll(this, [older, this], Config).

version_0_1_0_stays(Config) -> roll(older, [this, older], Config).

roll(Stays, Others, Config) ->
    case teleport_security_SUITE:older_teleport(proplists:get_value(priv_dir, Config)) of
        {ok, Ebin} -> roll(Stays, Others, teleport_nodes:kind(Config), fun(Version, Name) -> start(Version, Name, teleport_nodes:kind(Config), Ebin) end);
        Skip -> Skip
    end.

roll(Stays, Others, Kind, Start) ->
    {Peer, _} = Staying = Start(Stays, beamway_peer:unique_name("stays")),
    Name = beamway_peer:unique_name("goes"),
    {_, Node} = First = Start(Stays, Name),
    ok = teleport_nodes:connect(Peer, Node),
    Load = callers(Peer, Node),
    {Last, Restarts} = lists:foldl(fun(Version, {Old, Before}) ->
                                           ok = call_each_other(Load, Staying, Old, Kind),
                                           Began = os:system_time(millisecond),
                                           ok = stop_in_order(Old),
                                           New = Start(Version, Name),
                                           _ = beamway_peer:wait_until(fun() -> beamway_peer:call(Peer, net_kernel, connect_node, [Node]) end, wait_ms()),
                                           ok = go_on(Load),
                                           {New, [{Began, os:system_time(millisecond)} | Before]}
                                   end, {First, []}, Others),
    ok = call_each_other(Load, Staying, Last, Kind),
    [] = [Failure || Failure <- failures(Load), not is_excused(Failure, Restarts)],
    ok.

start(Version, Name, Kind, Ebin) ->
    Carrier = case Kind of shm -> beamway_shm; tcp -> inet_tcp end,
    Older = case Version of this -> []; older -> ["-pa", Ebin] end,
    {ok, Peer, Node} = beamway_peer:start(Carrier, #{name => Name, args => Older ++ teleport_nodes:args(#{kinds => [Kind]})}),
    {ok, _} = beamway_peer:call(Peer, application, ensure_all_started, [teleport]),
    {ok, Vsn} = beamway_peer:call(Peer, application, get_key, [teleport, vsn]),
    {Version, true} = {Version, (Vsn =:= "0.1.0") =:= (Version =:= older)},
    _ = beamway_peer:call(Peer, teleport_nodes, start_server, [?SERVER]),
    {Peer, Node}.

%% What an operator does.
stop_in_order({Peer, _}) ->
    Monitor = monitor(process, Peer),
    ok = peer:cast(Peer, init, stop, []),
    receive {'DOWN', Monitor, process, Peer, _} -> ok after wait_ms() -> error(still_running) end.

%% By lanes, in both directions. No call of the node that goes has failed.
call_each_other(Load, {Peer, Node}, {Other, OtherNode}, Kind) ->
    Back = callers(Other, Node),
    [ok = go_on(Each) || Each <- [Load, Back]],
    [_ = beamway_peer:wait_until(fun() -> [Kind] =:= lists:usort([Of || #{kind := Of, opened_by := this_node} <- beamway_peer:call(From, teleport, lanes, [To])]) end, wait_ms())
     || {From, To} <- [{Peer, OtherNode}, {Other, Node}]],
    [ok = go_on(Each) || Each <- [Load, Back]],
    [] = failures(Back),
    ok.

is_excused({Began, Ended, _}, Restarts) ->
    Ended - Began < call_ms() andalso lists:any(fun({From, Until}) -> Ended >= From andalso Began =< Until end, Restarts).

call_ms() -> ?CALL_MS * beamway_runner:slowness().

%% ---- calls ----

%% What both versions have.
ways(Node) ->
    Server = {?SERVER, Node},
    Ms = call_ms(),
    [fun(N) -> {echo, N} = teleport:call(Server, {echo, N}, Ms) end,
     fun(N) -> {echo, N} = teleport:call(Server, {echo, N}, Ms, #{class => control}) end,
     fun(N) -> {reply, {echo, N}} = teleport:receive_response(teleport:send_request(Server, {echo, N}), Ms) end,
     fun(N) -> N = teleport:erpc_call(Node, erlang, abs, [N], Ms) end,
     fun(N) -> Large = binary:copy(<<N:32>>, 100000), {echo, Large} = teleport:call(Server, {echo, Large}, Ms, #{class => bulk}) end,
     %% The call comes behind the cast.
     fun(N) -> ok = teleport:cast(Server, N), {cast, N} = lists:last(teleport:call(Server, log, Ms)) end].

%% One for each way, on the node of this peer.
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

%% Without its large parts: a call's reason has the call's arguments, and a node that is down fails hundreds of calls.
said(Failure) -> iolist_to_binary(io_lib:format("~0P", [Failure, 30])).

told({Peer, Callers}, What) ->
    beamway_peer:run(Peer, fun() ->
        [begin
             Caller ! {What, self()},
             receive {Caller, Told} -> Told after wait_ms() -> error(stuck) end
         end || Caller <- Callers]
    end, 2 * wait_ms()).

failures(Load) -> lists:append(told(Load, failures)).

%% Each of them.
go_on(Load) ->
    Before = told(Load, done),
    _ = beamway_peer:wait_until(fun() -> lists:all(fun({Now, Then}) -> Now >= Then + ?CALLS end, lists:zip(told(Load, done), Before)) end, wait_ms()),
    ok.
