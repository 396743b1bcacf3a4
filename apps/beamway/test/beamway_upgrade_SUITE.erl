%% SPDX-License-Identifier: Apache-2.0
%% @doc A cluster of four nodes is moved to Beamway node by node and back again, while every node constantly calls every other. No call may fail
%% except calls to or from the node that is being restarted.
%%
%% The same is done from release 0.1.0 to this version and back, with two versions of the carrier that have no link in
%% common, and, as the oracle, with stock nodes only. If another OTP release is specified, the cluster is also moved
%% from this release to that one and back. A restart lasts until the node is connected to all others again; from then
%% on its calls must succeed. With `BEAMWAY_TEST_LONG=1' in the environment each sequence runs 10 times instead of
%% once, and the oracle is added.
-module(beamway_upgrade_SUITE).

-export([all/0, suite/0, end_per_testcase/2]).
-export([stock_alone/1, stock_to_beamway_and_back/1, release_to_this_and_back/1,
         beamway_to_another_version_and_back/1, beamway_to_another_otp_and_back/1]).

-define(NODES, 4).
%% The number of calls made by each caller between two restarts.
-define(CALLS, 30).

suite() -> [{timetrap, {minutes, beamway_carrier:scale(4, 30)}}].

all() ->
    [stock_alone || beamway_carrier:is_long()] ++ [stock_to_beamway_and_back, release_to_this_and_back, beamway_to_another_version_and_back]
        ++ [beamway_to_another_otp_and_back || beamway_other_otp:is_there()].

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

%% Half as many restarts as in the other cases are enough to show that the test itself works.
stock_alone(_Config) ->
    roll([stock(), stock()]).

stock_to_beamway_and_back(_Config) ->
    roll(lists:append(lists:duplicate(beamway_carrier:scale(1, 10), [stock(), beamway()])) ++ [stock()]).

release_to_this_and_back(Config) ->
    case beamway_builds:release(folder("release", Config)) of
        {ok, Ebin} ->
            Release = #{version => release, carrier => beamway_shm, options => #{ebin => Ebin}},
            roll(lists:append(lists:duplicate(beamway_carrier:scale(1, 10), [Release, beamway()])) ++ [Release]);
        {skip, Reason} -> {skip, Reason}
    end.

beamway_to_another_version_and_back(Config) ->
    Changes = lists:append([beamway_builds:extension(2), beamway_builds:agreement(2), beamway_builds:rings(2),
                            beamway_builds:driver_abi(99)]),
    New = #{version => new, carrier => beamway_shm, options => #{ebin => beamway_builds:build(folder("new", Config), Changes)}},
    roll(lists:append(lists:duplicate(beamway_carrier:scale(1, 10), [beamway(), New])) ++ [beamway()]).

stock() -> #{version => stock, carrier => inet_tcp, options => #{}}.

beamway_to_another_otp_and_back(_Config) ->
    Other = #{version => other_otp, carrier => beamway_shm, options => #{otp => other}},
    roll(lists:append(lists:duplicate(beamway_carrier:scale(1, 10), [this_otp(), Other])) ++ [this_otp()]).

this_otp() -> #{version => this_otp, carrier => beamway_shm, options => #{otp => own}}.

folder(Name, Config) -> filename:join(proplists:get_value(priv_dir, Config), Name).

beamway() -> #{version => beamway, carrier => beamway_shm, options => #{}}.

%% --- rolling -------------------------------------------------------------------------------------------

%% Starts the cluster with the first of the setups, and moves it through the others, one node after another.
roll([First | Rest]) ->
    Names = [beamway_peer:unique_name("roll") || _ <- lists:seq(1, ?NODES)],
    Members = [begin_member(Name, First) || Name <- Names],
    Nodes = [Node || #{node := Node} <- Members],
    ok = mesh(Members),
    [ok = begin_load(Member, Nodes) || Member <- Members],
    ok = links_are_right(Members),
    {Last, Restarts, Failures} = lists:foldl(fun take_through/2, {Members, [], []}, Rest),
    ok = all_call(Last),
    AllFailures = Failures ++ lists:append([failures(Member) || Member <- Last]),
    ct:log("~b restarts, ~b calls to or from a node that was being restarted failed", [length(Restarts), length(AllFailures)]),
    ct:log("restarts: ~0p~nfailures: ~0tp", [Restarts, lists:sublist(AllFailures, 40)]),
    [] = [Failure || Failure <- AllFailures, not is_excused(Failure, Restarts)],
    beamway_peer:stop_all([Peer || #{peer := Peer} <- Last]).

take_through(Setup, {Members, Restarts, Failures}) ->
    lists:foldl(fun(Member, State) -> restart_member(Member, Setup, State) end, {Members, Restarts, Failures}, Members).

restart_member(#{node := Node, name := Name} = Old, Setup, {Members, Restarts, Failures}) ->
    ok = all_call(Members),
    Before = failures(Old),
    Began = os:system_time(millisecond),
    ok = stop_in_order(Old),
    New = begin_member(Name, Setup),
    Now = [case Member of Old -> New; _ -> Member end || Member <- Members],
    ok = mesh(Now),
    Ended = os:system_time(millisecond),
    ok = begin_load(New, [Other || #{node := Other} <- Members]),
    ok = links_are_right(Now),
    {Now, [{Node, Began, Ended} | Restarts], Before ++ Failures}.

%% Stops the applications one after another and then the node, as an operator would.
stop_in_order(#{peer := Peer}) ->
    Monitor = monitor(process, Peer),
    ok = peer:cast(Peer, init, stop, []),
    receive {'DOWN', Monitor, process, Peer, _} -> ok
    after 60000 -> error({still_running, Peer})
    end.

begin_member(Name, #{version := Version, carrier := Carrier, options := Options}) ->
    {ok, Peer, Node} = beamway_peer:start(Carrier, Options#{name => Name}),
    ok = beamway_peer:call(Peer, beamway_upgrade_load, serve, []),
    #{name => Name, node => Node, peer => Peer, version => Version}.

%% The callers on the other nodes connect to a new node on their own, and it connects to them, so this only waits until all connections are up.
mesh(Members) ->
    Nodes = lists:sort([Node || #{node := Node} <- Members]),
    [_ = beamway_peer:call(Peer, net_kernel, connect_node, [Node]) || #{peer := Peer} <- Members, Node <- Nodes],
    _ = beamway_peer:wait_until(fun() -> lists:all(fun(Member) -> sees(Member, Nodes) end, Members) end, 30000),
    ok.

sees(#{peer := Peer, node := Own}, Nodes) ->
    lists:sort([Own | beamway_peer:call(Peer, erlang, nodes, [])]) =:= Nodes.

begin_load(#{peer := Peer, node := Own}, Nodes) ->
    beamway_peer:call(Peer, beamway_upgrade_load, call_all, [Nodes -- [Own]]).

%% Checks that every node has the best link to every other node that their versions allow.
links_are_right(Members) ->
    [ok = beamway_peer:assert_link(Peer, Other, kind(Version, OtherVersion))
     || #{peer := Peer, node := Node, version := Version} <- Members,
        #{node := Other, version := OtherVersion} <- Members, Other =/= Node],
    ok.

%% The release and this version have the same protocol numbers, whatever OTP they run on.
kind(stock, _) -> stock;
kind(_, stock) -> tcp;
kind(Version, OtherVersion) when Version =/= new, OtherVersion =/= new -> shm;
kind(Version, Version) -> shm;
kind(_, _) -> tcp.

%% --- calls ---------------------------------------------------------------------------------------------

%% Waits until every caller on every node has made progress.
all_call(Members) ->
    Before = [calls(Member) || Member <- Members],
    [_ = beamway_peer:wait_until(fun() -> have_grown(calls(Member), Calls) end, 60000)
     || {Member, Calls} <- lists:zip(Members, Before)],
    ok.

calls(#{peer := Peer}) ->
    beamway_peer:call(Peer, beamway_upgrade_load, calls, []).

have_grown(Now, Before) ->
    length(Now) =:= 2 * (?NODES - 1) andalso
        lists:all(fun({Key, Count}) -> Count >= proplists:get_value(Key, Before, 0) + ?CALLS end, Now).

failures(#{peer := Peer}) ->
    beamway_peer:call(Peer, beamway_upgrade_load, failures, []).

%% Returns whether the call was to or from a node that was being restarted at the time.
is_excused(#{from := From, to := To, began := CallBegan, ended := CallEnded}, Restarts) ->
    lists:any(fun({Node, Began, Ended}) ->
                      (Node =:= From orelse Node =:= To) andalso CallEnded >= Began andalso CallBegan =< Ended
              end, Restarts).
