%% SPDX-License-Identifier: Apache-2.0
%% @doc The part of `bench placement' that uses 100 real nodes.
%%
%% First, one of the nodes is stopped (SIGSTOP), and a query to all nodes must end at its deadline with 99 answers. Then five nodes are stopped, and
%% the choices after the first one are timed and compared with choices while no node is stopped. With 8, 32 and 100 nodes, the benchmark then compares
%% the three ways in which a chooser can learn the attributes of the others: it queries them each time (pull), it queries them when its values are
%% older than a second (cached), or the nodes report changes five times a second (push). The attribute is each node's own clock, so its age at the
%% time of the choice is known exactly, because all nodes share a host. Finally, 16 nodes have a queue each, and the ranking of the policies with real
%% messages is compared with the simulation in {@link beamway_bench_herd} for the same numbers of servers and choosers.
-module(beamway_bench_placement_nodes).

-export([metrics/0, repeats/1, measure/2]).
%% Called on the nodes.
-export([clock/0, lasted/3, choices/4, start_server/0, server/1, queue_length/0, spawn_tasks/5]).

-define(NODES, 100).
-define(BATCH, 10).
-define(DEADLINE_MS, 1000).
-define(STOPPED, 5).
-define(EVERY_MS, 20).
-define(SERVICE_MS, 40).
-define(LOAD, 0.9).
-define(CHOOSERS, 4).
-define(HERD_NODES, 16).

-spec metrics() -> [map()].
metrics() ->
    [metric(<<"deadline_answers">>, <<"nodes">>, higher, answers_key()), metric(<<"deadline_ms">>, <<"ms">>, lower, deadline_key())]
        ++ [metric(<<(atom_to_binary(What))/binary, "_", Point/binary>>, <<"ms">>, lower, lasts_key(What, Point)) || What <- [running, stopped], Point <- [<<"p50">>, <<"p99">>]]
        ++ [metric(name(What, Way, Count), Unit, lower, key(What, Way, Count)) || Count <- counts(), Way <- ways(), {What, Unit} <- [{messages, <<"1/choice">>}, {age, <<"ms">>}, {time, <<"us">>}]]
        ++ [metric(<<(atom_to_binary(Kind))/binary, "_", (atom_to_binary(Policy))/binary>>, <<"service times">>, lower, herd_key(Kind, Policy))
            || Policy <- policies(), Kind <- [real, simulated]].

metric(Name, Unit, Better, Key) -> #{name => Name, unit => Unit, better => Better, key => Key}.

answers_key() -> <<"query of 100 nodes, one stopped: answers">>.
deadline_key() -> <<"query of 100 nodes, one stopped: time for a deadline of 1000 ms">>.
lasts_key(running, Point) -> <<"choice of 100 nodes: ", Point/binary>>;
lasts_key(stopped, Point) -> <<"choice of 100 nodes, five stopped, after the first: ", Point/binary>>.
counts() -> [8, 32, 100].
ways() -> [pull, cached, push].
policies() -> [two_choices, cached_two, least, random].
name(What, Way, Count) -> iolist_to_binary(io_lib:format("~ts_~ts_~b", [Way, What, Count])).
key(What, Way, Count) -> iolist_to_binary(io_lib:format("~b nodes, ~ts: ~ts a choice", [Count, Way, case What of age -> "age of values at"; _ -> atom_to_list(What) end])).
herd_key(Kind, Policy) -> iolist_to_binary(io_lib:format("16 ~ts nodes, information 20 service times old: mean response, ~ts", [Kind, Policy])).

%% @doc Returns the number of repeats, which is 1 because starting the nodes takes most of the time.
-spec repeats(full | quick) -> pos_integer().
repeats(_) -> 1.

%% @doc Starts the nodes, runs the measurements, and stops the nodes.
-spec measure(full | quick, Repeat :: pos_integer()) -> #{binary() => number()}.
measure(Speed, _) ->
    Epmd = beamway_bench_nodes:start_epmd(),
    Clusters = [started(Epmd) || _ <- lists:seq(1, ?NODES div ?BATCH)],
    Members = lists:append([M || #{members := M} <- Clusters]),
    [First | _] = Members,
    Names = [Name || #{name := Name} <- Members],
    %% Each cluster starts with its own cookie.
    Cookie = beamway_bench_nodes:call(First, erlang, get_cookie, []),
    _ = beamway_bench_nodes:all(Members, erlang, set_cookie, [Cookie]),
    _ = [true = beamway_bench_nodes:call(First, net_kernel, connect_node, [Name]) || Name <- tl(Names)],
    Figures = [deadline(First, Members, Names), lasting(First, Members, Names, Speed), propagation(First, Names, Speed), herd(Members, Speed)],
    _ = [beamway_bench_nodes:stop(Cluster) || Cluster <- Clusters],
    ok = beamway_bench_nodes:stop_epmd(Epmd),
    lists:foldl(fun maps:merge/2, #{}, Figures).

%% Starts nodes with little memory on stock TCP, in batches of ten.
started(Epmd) ->
    Root = beamway_bench_checkout:root(),
    #{tcp := Stock} = beamway_bench_contender:all(Root, 50),
    Args = maps:get(args, Stock) ++ ["+S", "1", "+SDio", "1", "+A", "1", "-pa", filename:join([Root, "apps", "placement", "ebin"]),
                                     "-kernel", "prevent_overlapping_partitions", "false"],
    Cluster = beamway_bench_nodes:start(Epmd, Stock#{args := Args}, #{count => ?BATCH}),
    _ = beamway_bench_nodes:all(Cluster, attr, start, []),
    ok = beamway_bench_text:note("bench placement: ~b more nodes of ~b are up", [?BATCH, ?NODES]),
    Cluster.

%%% One node is stopped

deadline(First, Members, Names) ->
    #{os_pid := OsPid} = lists:last(Members),
    Query = #{require => {num_erlang_processes, gt, 0}, deadline => ?DEADLINE_MS, max_age => 0},
    {ok, All, _} = beamway_bench_nodes:call(First, placement, choose_nodes, [Names, Query#{deadline => 10000}]),
    ?NODES = length(All),
    _ = os:cmd("kill -STOP " ++ integer_to_list(OsPid)),
    {ok, Chosen, #{took_us := Took}} = beamway_bench_nodes:call(First, placement, choose_nodes, [Names, Query]),
    _ = os:cmd("kill -CONT " ++ integer_to_list(OsPid)),
    ok = beamway_bench_text:note("bench placement: one of ~b nodes is stopped: ~b answers after ~.1f ms", [?NODES, length(Chosen), Took / 1000]),
    #{answers_key() => length(Chosen), deadline_key() => Took / 1000}.

%%% Five nodes are stopped

lasting(First, Members, Names, Speed) ->
    Ms = case Speed of full -> 20000; quick -> 5000 end,
    Running = lasts(First, Names, Ms),
    Pids = [integer_to_list(OsPid) || #{os_pid := OsPid} <- lists:nthtail(length(Members) - ?STOPPED, Members)],
    _ = [os:cmd("kill -STOP " ++ Pid) || Pid <- Pids],
    Stopped = lasts(First, Names, Ms),
    _ = [os:cmd("kill -CONT " ++ Pid) || Pid <- Pids],
    maps:from_list([{lasts_key(What, Name), beamway_bench_stats:percentile(Point, Times) / 1000}
                    || {What, Times} <- [{running, Running}, {stopped, Stopped}], {Name, Point} <- [{<<"p50">>, 50}, {<<"p99">>, 99}]]).

lasts(First, Names, Ms) -> beamway_bench_nodes:call(First, ?MODULE, lasted, [Names, Ms, ?EVERY_MS], Ms + 60000).

%% @doc Runs on the chooser. After a first choice, chooses every `EveryMs' ms, and returns how long each choice took, in us.
-spec lasted([node()], Ms :: pos_integer(), EveryMs :: pos_integer()) -> [non_neg_integer()].
lasted(Names, Ms, EveryMs) ->
    Choose = fun() -> {ok, _, #{took_us := Took}} = apply(placement, choose_nodes, [Names, #{require => {num_erlang_processes, gt, 0}, deadline => ?DEADLINE_MS}]), Took end,
    _ = Choose(),
    [begin ok = timer:sleep(EveryMs), Choose() end || _ <- lists:seq(1, Ms div EveryMs)].

%%% Pull, cached pull, push

propagation(First, Names, Speed) ->
    Seconds = case Speed of full -> 10; quick -> 3 end,
    lists:foldl(fun maps:merge/2, #{}, [way(First, lists:sublist(Names, Count), Count, Way, Seconds) || Count <- counts(), Way <- ways()]).

way(First, Names, Count, Way, Seconds) ->
    _ = [ok = beamway_bench_nodes:call(First, erpc, call, [Name, placement, insert, [bench_clock, {dynamic, {?MODULE, clock, []}}]]) || Name <- Names],
    {Messages, Ages, Times} = beamway_bench_nodes:call(First, ?MODULE, choices, [Names, Way, Seconds * 1000, 100], Seconds * 1000 + 60000),
    ok = beamway_bench_text:note("bench placement: ~b nodes, ~ts: ~.1f messages a choice, values ~.1f ms old, ~b us", [Count, Way, Messages, Ages, round(Times)]),
    #{key(messages, Way, Count) => Messages, key(age, Way, Count) => Ages, key(time, Way, Count) => Times}.

%% @doc Returns the attribute's value, which is the node's own clock. Runs on each node.
-spec clock() -> integer().
clock() -> erlang:system_time(microsecond).

%% @doc Runs on the chooser and chooses every `EveryMs' ms. Returns the number of messages between nodes per choice (queries and answers, or reports),
%% the mean age of the values in ms (as a median over the choices), and the median time per choice in us.
-spec choices([node()], pull | cached | push, Ms :: pos_integer(), EveryMs :: pos_integer()) -> {float(), float(), float()}.
choices(Names, Way, Ms, EveryMs) ->
    Query = #{require => {bench_clock, gt, 0}, deadline => 5000, max_age => case Way of pull -> 0; _ -> 1000 end},
    _ = Way =:= push andalso apply(placement, follow, [Names, [bench_clock], 200]),
    %% The first choice does not count, because the caches are still empty.
    {ok, _, _} = apply(placement, choose_nodes, [Names, Query]),
    ok = timer:sleep(1000),
    Before = traffic(Names, Way),
    Count = Ms div EveryMs,
    Samples = [begin
                   ok = timer:sleep(EveryMs),
                   {ok, Chosen, #{took_us := Took}} = apply(placement, choose_nodes, [Names, Query]),
                   true = length(Chosen) =:= length(Names),
                   Now = clock(),
                   Views = apply(placement_cache, fetch, [Names, [bench_clock], #{max_age => 3600000}]),
                   {Took, lists:sum([Now - Value || #{attributes := #{bench_clock := {ok, Value, _, _, _}}} <- maps:values(Views)]) / length(Names) / 1000}
               end || _ <- lists:seq(1, Count)],
    Traffic = traffic(Names, Way) - Before,
    _ = Way =:= push andalso apply(placement, unfollow, [Names]),
    {Took, Ages} = lists:unzip(Samples),
    {Traffic / Count, beamway_bench_stats:median(Ages), beamway_bench_stats:median(Took)}.

traffic(_, Way) when Way =/= push -> 2 * apply(placement_cache, asked, []);
traffic(Names, push) -> 2 * apply(placement_cache, asked, []) + lists:sum([erpc:call(Name, placement_push, sent, []) || Name <- Names]).

%%% Policies

herd(Members, Speed) ->
    Used = lists:sublist(Members, ?HERD_NODES),
    Names = [Name || #{name := Name} <- Used],
    _ = beamway_bench_nodes:all(Used, ?MODULE, start_server, []),
    _ = beamway_bench_nodes:all(Used, placement, insert, [bench_queue, {dynamic, {?MODULE, queue_length, []}, #{ttl => 20 * ?SERVICE_MS}}]),
    Tasks = case Speed of full -> 1500; quick -> 300 end,
    Choosers = lists:sublist(Used, ?CHOOSERS),
    _ = [beamway_bench_nodes:call(Chooser, net_kernel, connect_node, [Name]) || Chooser <- Choosers, Name <- Names],
    maps:from_list([{herd_key(real, Policy), policy_mean(Choosers, Names, Policy, Tasks)} || Policy <- policies()]
                   ++ [{herd_key(simulated, Policy), beamway_bench_herd:mean_response(Policy, 20.0, 40000, 1, {?HERD_NODES, ?CHOOSERS})} || Policy <- policies()]).

policy_mean(Choosers, Names, Policy, Tasks) ->
    GapMs = ?SERVICE_MS * ?CHOOSERS / (?LOAD * ?HERD_NODES),
    Means = beamway_bench_nodes:all(Choosers, ?MODULE, spawn_tasks, [Names, Policy, Tasks, GapMs, ?SERVICE_MS], round(Tasks * GapMs) * 4 + 120000),
    Mean = lists:sum(Means) / length(Means) / ?SERVICE_MS,
    ok = beamway_bench_text:note("bench placement: ~b nodes, ~ts: mean response ~.2f", [?HERD_NODES, Policy, Mean]),
    Mean.

%% @doc Runs on each node: starts a server with one queue.
-spec start_server() -> ok.
start_server() ->
    case whereis(bench_server) of
        undefined ->
            Pid = spawn(?MODULE, server, [0]),
            true = register(bench_server, Pid),
            ok;
        _ -> ok
    end.

%% @doc Serves one task at a time. The server sleeps during the service time, so that many servers fit on one host.
-spec server(non_neg_integer()) -> no_return().
server(Served) ->
    %% The server runs until the node exits.
    receive
        {task, From, Reference, Ms} ->
            %% A sleep in whole milliseconds takes half a millisecond too long on average.
            _ = persistent_term:put(bench_busy, 1),
            ok = timer:sleep(max(0, round(Ms) - 1)),
            From ! {done, Reference},
            _ = persistent_term:put(bench_busy, 0),
            ?MODULE:server(Served + 1)
    end.

%% @doc Returns the attribute's value: the number of tasks that are waiting or being served.
-spec queue_length() -> non_neg_integer().
queue_length() ->
    {message_queue_len, Length} = process_info(whereis(bench_server), message_queue_len),
    Length + persistent_term:get(bench_busy, 0).

%% @doc Runs on a chooser. Creates tasks at random times, and lets the policy choose a server for each. Returns the mean time in ms from a task's
%% creation to its result, not counting the first fifth of the tasks.
-spec spawn_tasks([node()], atom(), Tasks :: pos_integer(), GapMs :: float(), ServiceMs :: pos_integer()) -> float().
spawn_tasks(Names, Policy, Tasks, GapMs, ServiceMs) ->
    Self = self(),
    Query = #{prefer => [{1, {bench_queue, min}}], n => 1, policy => Policy, max_age => 20 * ServiceMs, charge => #{bench_queue => 1}, deadline => 5000},
    Start = erlang:monotonic_time(microsecond),
    _ = lists:foldl(fun(Index, At) ->
                            Wait = At - erlang:monotonic_time(microsecond),
                            _ = Wait > 0 andalso timer:sleep(Wait div 1000),
                            _ = spawn_link(fun() -> Self ! {response, Index, task(Names, Query, exponential(ServiceMs))} end),
                            At + round(1000 * exponential(GapMs))
                    end, Start, lists:seq(1, Tasks)),
    Responses = [receive {response, Index, Us} -> {Index, Us} after 120000 -> error(no_response) end || _ <- lists:seq(1, Tasks)],
    Counted = [Us || {Index, Us} <- Responses, Index > Tasks div 5],
    lists:sum(Counted) / length(Counted) / 1000.

task(Names, Query, Ms) ->
    Begin = erlang:monotonic_time(microsecond),
    {ok, [Node], _} = apply(placement, choose_nodes, [Names, Query]),
    Reference = make_ref(),
    {bench_server, Node} ! {task, self(), Reference, Ms},
    receive {done, Reference} -> erlang:monotonic_time(microsecond) - Begin after 110000 -> error(no_result) end.

exponential(Mean) -> -math:log(1.0 - rand:uniform()) * Mean.
