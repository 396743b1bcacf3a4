%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench broadcast': how many bytes cross a slow link when one process sends to a `pg' group?
%%
%% Each of the 16 nodes has one member: 12 nodes share a host, and the other 4 share another host behind a link of 100 Mbit/s. The messages are sent
%% first with `!' to each member, and then with a teleport broadcast, with the hosts as sites. The result is the number of bytes per message that
%% cross the network interface of the first host, in both directions. The benchmark needs root.
-module(beamway_bench_broadcast).
-behaviour(beamway_bench).

-export([prepare/2, groups/1, metrics/1]).
%% Called on the nodes.
-export([join/0, members/1, round/4]).

-define(GROUP, beamway_bench_group).
-define(NODES, 16).
-define(WAIT_MS, 60000).

cases(Speed) -> [{Bytes, case Speed of quick -> max(5, Count div 5); full -> Count end} || {Bytes, Count} <- [{100, 500}, {4096, 250}, {65536, 50}]].

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()} | {error, unicode:chardata()}.
prepare(_, Speed) ->
    case beamway_bench_net:check() of
        ok -> {ok, #{cases => cases(Speed), facts => beamway_bench_net:facts([path_100m])}};
        {error, Why} -> {error, Why}
    end.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(#{cases := Cases}) ->
    [#{net => path_100m, nodes => ?NODES, contenders => [tcp, beamway_tcp, direct_tcp], directions => [forward], measure => fun(Cluster) -> measure(Cluster, Cases) end}].

measure(#{contender := #{name := Name}, members := [First | _]} = Cluster, Cases) ->
    Names = beamway_bench_nodes:names(Cluster),
    Way = beamway_bench_contender:way(Name),
    Way =:= teleport andalso beamway_bench_nodes:all(Cluster, beamway_bench_messages, start, []),
    _ = beamway_bench_nodes:all(Cluster, ?MODULE, join, []),
    Members = beamway_bench_nodes:call(First, ?MODULE, members, [Names], ?WAIT_MS),
    Round = fun(Bytes, Count) -> beamway_bench_nodes:call(First, ?MODULE, round, [Way, Members, Bytes, Count], 2 * ?WAIT_MS) end,
    _ = Round(100, 5),
    maps:from_list(lists:append([begin
                                     {Crossed, Us} = Round(Bytes, Count),
                                     [{crossed_key(Bytes), Crossed / Count}, {time_key(Bytes), Us / Count / 1000}]
                                 end || {Bytes, Count} <- Cases])).

crossed_key(Bytes) -> iolist_to_binary(["bytes over the link, message of ", beamway_bench_text:size_words(Bytes)]).

time_key(Bytes) -> iolist_to_binary(["time until all have it, message of ", beamway_bench_text:size_words(Bytes)]).

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(#{cases := Cases}) ->
    [#{name => iolist_to_binary(["broadcast_", beamway_bench_text:size_text(Bytes), Suffix]), unit => Unit, better => lower, key => Key, contender => direct_tcp, baselines => [tcp, beamway_tcp]}
     || {Bytes, _} <- Cases, {Suffix, Unit, Key} <- [{"", <<"B">>, crossed_key(Bytes)}, {"_ms", <<"ms">>, time_key(Bytes)}]].

%% ---- functions that run on the nodes ----

%% @doc Starts the node's member, which counts the messages that it receives.
-spec join() -> ok.
join() ->
    case whereis(?GROUP) of
        undefined ->
            {ok, _} = pg:start(pg),
            Member = spawn(fun() -> member(0) end),
            true = register(?GROUP, Member),
            pg:join(?GROUP, Member);
        _ -> ok
    end.

member(Count) ->
    receive
        {message, _} -> member(Count + 1);
        {await, From, Total} when Count >= Total -> From ! {all, self()}, member(0);
        %% The request is requeued, so that it is handled after the messages that are still missing.
        {await, From, Total} -> receive {message, _} -> self() ! {await, From, Total}, member(Count + 1) end
    end.

%% @doc Returns the members on all nodes, once pg knows all of them.
-spec members([node()]) -> [pid()].
members(Nodes) -> members(length(Nodes), erlang:monotonic_time(millisecond) + ?WAIT_MS).

members(Count, Deadline) ->
    case {pg:get_members(?GROUP), erlang:monotonic_time(millisecond) < Deadline} of
        {Members, _} when length(Members) =:= Count -> Members;
        {_, true} -> receive after 20 -> members(Count, Deadline) end;
        {Members, false} -> error({members_missing, Count, length(Members)})
    end.

%% @doc Sends `Count' messages to all members. Returns the number of bytes that crossed the interface, and the time in microseconds until all
%% members had received the messages.
-spec round(beamway_bench_messages:way(), [pid()], Bytes :: pos_integer(), Count :: pos_integer()) -> {non_neg_integer(), non_neg_integer()}.
round(Way, Members, Bytes, Count) ->
    Sites = maps:from_list([{node(Pid), host(node(Pid))} || Pid <- Members]),
    Message = {message, rand:bytes(Bytes)},
    Crossed = beamway_bench_os:interface_bytes(),
    Began = erlang:monotonic_time(microsecond),
    _ = [send(Way, Members, Message, Sites) || _ <- lists:seq(1, Count)],
    _ = [Pid ! {await, self(), Count} || Pid <- Members],
    _ = [receive {all, Pid} -> ok after ?WAIT_MS -> error({no_answer, node(Pid)}) end || Pid <- Members],
    {beamway_bench_os:interface_bytes() - Crossed, erlang:monotonic_time(microsecond) - Began}.

send(stock, Members, Message, _) ->
    lists:foreach(fun(Pid) -> Pid ! Message end, Members);
send(teleport, _, Message, Sites) ->
    #{plain := [], skipped := [], failed := []} = teleport:broadcast(pg, ?GROUP, Message, #{sites => Sites, confirm => true, timeout => ?WAIT_MS}),
    ok.

host(Node) -> lists:last(string:split(atom_to_list(Node), "@")).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

metrics_test() ->
    ?assertEqual([], [<<"broadcast_100">>, <<"broadcast_4k">>, <<"broadcast_64k_ms">>] -- [Name || #{name := Name} <- metrics(#{cases => cases(full)})]).

%% A member replies once it has received the expected number of messages, and then resets its count to zero.
member_test() ->
    Member = spawn_link(fun() -> member(0) end),
    _ = [Member ! Message || Message <- [{message, a}, {await, self(), 2}, {message, b}]],
    receive {all, Member} -> ok after 5000 -> error(no_answer) end,
    Member ! {await, self(), 1},
    receive {all, Member} -> error(too_early) after 50 -> ok end,
    unlink(Member),
    exit(Member, kill).
-endif.
