%% SPDX-License-Identifier: Apache-2.0
%% @doc `make demo': four real nodes call each other over stock TCP and over Beamway in turn. Then one of them is killed, and the demo counts the
%% descriptors and mappings that the others still hold for it.
%%
%% The nodes are started as a user would start them: `global' connects them all, with the default of prevent_overlapping_partitions. The demo fails if
%% the calls did not go through shared memory: each link must be shm and must have transferred at least the payload.
-module(beamway_demo).

-export([main/1]).

-define(DONE, 0).
-define(FAILED, 1).
-define(USAGE, 2).

-define(NODES, 4).
-define(CALLERS, 100).
-define(BYTES, 16).
%% Enough rounds to distinguish a difference from noise.
-define(ROUNDS, 7).
-define(WARM_MS, 150).
-define(WINDOW_MS, 450).
-define(NODEDOWN_MS, 20000).
-define(CLEAN_MS, 5000).

-define(CALLS, <<"calls, 4 nodes">>).
-define(P99, <<"calls, 4 nodes, p99">>).
-define(SYSCALLS, <<"system calls a call">>).
-define(SWITCHES, <<"context switches a call">>).

%% @doc Runs the demo. Returns 0 on success, 1 if something failed, and 2 for a usage error. BEAMWAY_STEPS lists the steps that have already been run,
%% as `name=seconds' separated by spaces.
-spec main(Words :: [string()]) -> 0..2.
main(Words) ->
    Specs = [{json, undefined, "json", undefined, "print the stored JSON object too"},
             {save, undefined, "save", {string, default_file()}, "where the result is stored, unless other work runs on the machine"},
             {force, undefined, "force", undefined, "store it even then, and mark it as noisy"},
             {help, $h, "help", undefined, "this help"}],
    case beamway_cli_help:parse(Specs, Words) of
        {ok, #{help := true}, []} -> io:format("~ts~n~ts", [getopt:usage_cmd_line("beamway demo", Specs), getopt:usage_options(Specs)]), ?DONE;
        {ok, Options, []} -> run(Options);
        {ok, _, [Extra | _]} -> complain("unexpected word '~ts'; see: beamway demo --help", [Extra]), ?USAGE;
        {error, Why} -> complain("~ts; see: beamway demo --help", [Why]), ?USAGE
    end.

default_file() ->
    filename:join([beamway_bench_checkout:root(), "build", "demo.json"]).

complain(Format, Args) ->
    io:format(standard_error, "beamway: demo: " ++ Format ++ "~n", Args).

run(#{save := File} = Options) ->
    Out = group_leader(),
    Say = fun(Format, Args) -> io:format(Out, Format, Args) end,
    Say("Beamway demo: four Erlang nodes on this host call each other, over stock TCP and over Beamway.~n~n", []),
    Before = steps(os:getenv("BEAMWAY_STEPS", "")),
    _ = [say_step(Say, Step) || Step <- Before],
    Context = beamway_bench_store:context("demo", "make demo"),
    case beamway_bench_run:in_a_process(fun() -> measure(Say) end) of
        {ok, Outcome} -> stay(os:getenv("BEAMWAY_DEMO_STAYS"), shown(Say, File, Options, result(Outcome, Before, Context), Outcome), Say);
        {error, Reason} -> failed(Reason)
    end.

%% On a terminal, `make demo' leaves a console running for the user to try.
stay("yes", ?DONE, Say) ->
    case beamway_bench_run:in_a_process(fun() -> beamway_demo_console:stay(Say) end) of
        {ok, _} -> ?DONE;
        {error, Reason} -> failed(Reason)
    end;
stay(_, Status, _) -> Status.

failed(Reason) ->
    complain("~ts", [beamway_bench:explain(Reason)]),
    case Reason of
        {error, What, _} when element(1, What) =:= wrong_link; element(1, What) =:= links_missing -> remedy();
        _ -> ok
    end,
    ?FAILED.

%% Prints the report of `beamway doctor', so that the user need not run it.
remedy() ->
    io:format(standard_error, "~nbeamway doctor says:~n~ts", [beamway_cli_doctor:to_text(beamway_cli_doctor:examine())]).

steps(Text) ->
    [{Name, list_to_float(Seconds)} || Word <- string:lexemes(Text, " "), [Name, Seconds] <- [string:split(Word, "=")],
                                       is_seconds(Seconds)].

is_seconds(Text) -> re:run(Text, "^[0-9]+\\.[0-9]+$") =/= nomatch.

say_step(Say, {Name, Seconds}) -> Say("  ~-32ts ~6.1f s~n", [Name, Seconds]).

timed(Say, Name, Fun) ->
    Start = erlang:monotonic_time(millisecond),
    Result = Fun(),
    Step = {Name, (erlang:monotonic_time(millisecond) - Start) / 1000},
    say_step(Say, Step),
    {Step, Result}.

%%% Functions that run in the nodes

measure(Say) ->
    Epmd = beamway_bench_nodes:start_epmd(),
    Contenders = beamway_bench_contender:all(beamway_bench_checkout:root(), 50),
    Stock = maps:get(tcp, Contenders),
    Beamway = (maps:get(beamway, Contenders))#{env := own_options()},
    {Step1, Clusters} = timed(Say, "start of 4 nodes, twice", fun() -> [start(Epmd, C) || C <- [Stock, Beamway]] end),
    [_, Cluster] = Clusters,
    {Step2, Fresh} = timed(Say, "they meet", fun() -> lists:last([meet(C) || C <- Clusters]) end),
    {Step3, {Samples, Carried}} = timed(Say, "measurement", fun() -> measure_all(Clusters) end),
    Links = links(Cluster),
    {StepL, Lanes} = timed(Say, "a call beside large messages", fun() -> beamway_demo_beside:run(hd(Clusters), Cluster) end),
    {StepN, Hosts} = timed(Say, "two hosts, and a cut between", fun() -> beamway_demo_hosts:run() end),
    {StepP, Placement} = timed(Say, "choice of nodes", fun() -> beamway_demo_placement:run(Cluster) end),
    {StepH, Http} = timed(Say, "requests to a web server", fun() -> beamway_demo_http:run(hd(Clusters)) end),
    {StepR, Pipe} = timed(Say, "a pipeline of two hosts", fun() -> beamway_demo_pipe:run() end),
    {Step4, Kill} = timed(Say, "kill -9 of one node", fun() -> kill_one(Cluster, Fresh) end),
    {Step5, _} = timed(Say, "end of all nodes", fun() -> [beamway_bench_nodes:stop(C) || C <- Clusters] end),
    ok = beamway_bench_nodes:stop_epmd(Epmd),
    #{steps => [Step1, Step2, Step3, StepL, StepN, StepP, StepH, StepR, Step4, Step5], samples => Samples, carried => Carried, links => Links, kill => Kill, placement => Placement, lanes => Lanes, hosts => Hosts, http => Http, pipe => Pipe}.

%% The user's own carrier settings apply, because this cluster represents the user's own.
own_options() ->
    [{Name, Value} || "BEAMWAY_" ++ _ = Line <- os:getenv(), [Name, Value] <- [string:split(Line, "=")],
                      not lists:member(Name, ["BEAMWAY_STEPS", "BEAMWAY_ERL", "BEAMWAY_DEMO_STAYS"])].

start(Epmd, #{name := Name} = Contender) ->
    beamway_bench_nodes:start(Epmd, Contender, #{count => ?NODES, connect_all => true, prefix => atom_to_list(Name)}).

%% The last node joins when the others have already formed a cluster. After it has died, the first node must release every resource that it holds for
%% that node.
meet(#{members := [First | _] = Members} = Cluster) ->
    ok = beamway_bench_nodes:connect(Cluster#{members := lists:droplast(Members)}, forward),
    Holdings = holdings(First),
    ok = beamway_bench_nodes:connect(Cluster, forward),
    Holdings.

holdings(#{os_pid := OsPid}) ->
    {beamway_bench_os:descriptors(OsPid), beamway_bench_os:mappings(OsPid)}.

measure_all(Clusters) ->
    Turns = [Turn || _ <- lists:seq(1, ?ROUNDS), Turn <- beamway_bench_run:shuffled([{rate, C} || C <- Clusters])]
        ++ [{syscalls, C} || C <- Clusters],
    lists:foldl(fun turn/2, {#{}, #{calls => 0, bytes => 0}}, Turns).

turn({What, #{contender := #{name := Name}} = Cluster}, {Samples, Carried}) ->
    Load = #{kind => rpc, callers => ?CALLERS, targets => beamway_bench_nodes:names(Cluster), bytes => ?BYTES},
    _ = beamway_bench_nodes:all(Cluster, beamway_bench_load, start, [Load]),
    _ = windows(Cluster, ?WARM_MS),
    {Figures, Moved} = figures(What, Cluster),
    _ = beamway_bench_nodes:all(Cluster, beamway_bench_load, stop, []),
    {maps:fold(fun(Key, Figure, Acc) -> add(Name, Key, Figure, Acc) end, Samples, Figures),
     case Name of beamway -> sum(Carried, Moved); _ -> Carried end}.

windows(Cluster, Ms) ->
    beamway_bench_nodes:all(Cluster, beamway_bench_load, window, [Ms], Ms + 30000).

add(Name, Key, Figure, Samples) ->
    #{forward := Known} = maps:get({Name, Key}, Samples, #{forward => []}),
    Samples#{{Name, Key} => #{forward => Known ++ [Figure]}}.

sum(#{calls := Calls, bytes := Bytes}, #{calls := MoreCalls, bytes := MoreBytes}) ->
    #{calls => Calls + MoreCalls, bytes => Bytes + MoreBytes}.

figures(rate, Cluster) ->
    #{calls := Calls, bytes := Bytes} = Before = beamway_bench_cost:sample(Cluster),
    {Rate, P99} = beamway_bench_hist:rate_and_p99(windows(Cluster, ?WINDOW_MS)),
    #{calls := LaterCalls, bytes := LaterBytes} = After = beamway_bench_cost:sample(Cluster),
    Switches = beamway_bench_cost:per_call(fun(#{voluntary := V, forced := F}) -> V + F end, Before, After),
    {#{?CALLS => Rate, ?P99 => P99, ?SWITCHES => Switches},
     #{calls => LaterCalls - Calls, bytes => LaterBytes - Bytes}};
figures(syscalls, Cluster) ->
    Count = fun() ->
                    #{calls := Before} = beamway_bench_cost:sample(Cluster),
                    _ = windows(Cluster, ?WINDOW_MS),
                    #{calls := After} = beamway_bench_cost:sample(Cluster),
                    After - Before
            end,
    case beamway_bench_syscalls:during(beamway_bench_nodes:os_pids(Cluster), Count) of
        {counted, Syscalls, _, Calls} when Calls > 0 -> {#{?SYSCALLS => Syscalls / Calls}, #{calls => 0, bytes => 0}};
        %% The table then shows that nothing was counted, and a warning explains why.
        {not_counted, _, _} -> {#{}, #{calls => 0, bytes => 0}}
    end.

%% Returns the links that the first node reports, one to each of its three peers.
links(#{members := [#{name := Name} = First | _]}) ->
    [Link#{from => Name} || Link <- beamway_bench_nodes:call(First, beamway, links, [])].

%% Kills the last node while there are calls in both directions.
kill_one(#{members := Members} = Cluster, {Descriptors, Mappings}) ->
    #{name := Name, os := Victim} = lists:last(Members),
    [First | _] = Survivors = lists:droplast(Members),
    Load = #{kind => rpc, callers => ?CALLERS, targets => beamway_bench_nodes:names(Cluster), bytes => ?BYTES},
    _ = beamway_bench_nodes:all(Members, beamway_bench_load, start, [Load]),
    _ = beamway_bench_nodes:all(Survivors, beamway_bench_load, watch, [Name]),
    {Held, Mapped} = holdings(First),
    Killed = os:system_time(microsecond),
    ok = beamway_bench_os:kill(Victim),
    Downs = beamway_bench_nodes:all(Survivors, beamway_bench_load, nodedown_at, [?NODEDOWN_MS], ?NODEDOWN_MS + 10000),
    lists:member(still_up, Downs) andalso error({no_nodedown, Name, ?NODEDOWN_MS}),
    _ = beamway_bench_nodes:all(Survivors, beamway_bench_load, stop, []),
    {LeftDescriptors, LeftMappings} = await_clean(First, Descriptors, Mappings, erlang:monotonic_time(millisecond) + ?CLEAN_MS),
    Others = lists:usort(lists:append(beamway_bench_nodes:all(Survivors, erlang, nodes, [connected]))),
    #{node => Name, nodedown_ms => (lists:max(Downs) - Killed) / 1000,
      descriptors_held => length(Held -- Descriptors), mappings_held => length(Mapped -- Mappings),
      descriptors_left => length(LeftDescriptors),
      mappings_left => length(LeftMappings), survivors_together => Others =:= lists:sort([N || #{name := N} <- Survivors])}.

%% Returns what the first node holds in addition to what it held before the killed node joined. It may take a moment to release these resources.
await_clean(Member, Descriptors, Mappings, Deadline) ->
    {NowDescriptors, NowMappings} = holdings(Member),
    Left = {NowDescriptors -- Descriptors, NowMappings -- Mappings},
    case Left =:= {[], []} orelse erlang:monotonic_time(millisecond) > Deadline of
        true -> Left;
        false -> receive after 20 -> await_clean(Member, Descriptors, Mappings, Deadline) end
    end.

%%% Output

result(#{steps := Steps, samples := Samples, carried := Carried, links := Links, kill := Kill}, Before, Context) ->
    #{noisy := Noisy} = Ended = beamway_bench_store:ended(Context),
    Own = #{warnings => Noisy ++ beamway_bench_syscalls:warnings(),
            steps => [#{name => list_to_binary(Name), seconds => Seconds} || {Name, Seconds} <- Before ++ Steps],
            links => Links, kill => Kill, carried => Carried},
    beamway_bench_report:result(<<"demo">>, metrics(), Samples, maps:merge(Ended, Own)).

metrics() ->
    [#{name => Name, unit => Unit, better => Better, key => Key, contender => beamway, baselines => [tcp]}
     || {Name, Unit, Better, Key} <- [{<<"demo_calls">>, <<"calls/s">>, higher, ?CALLS}, {<<"demo_p99">>, <<"us">>, lower, ?P99},
                                      {<<"demo_syscalls">>, <<"1/call">>, lower, ?SYSCALLS},
                                      {<<"demo_switches">>, <<"1/call">>, lower, ?SWITCHES}]].

shown(Say, File, Options, Result, #{carried := Carried, links := Links, kill := Kill, placement := Placement, lanes := Lanes, hosts := Hosts, http := Http, pipe := Pipe}) ->
    Object = beamway_bench_report:to_json(Result),
    Say("~nRemote calls of ~b bytes, ~b callers on each of four nodes; medians of ~b rounds. Differences within the noise are called even:~n~n~ts~n",
        [?BYTES, ?CALLERS, ?ROUNDS, comparison(Object)]),
    Say("Links of ~ts:~n~n~ts~n", [maps:get(from, hd(Links)), link_table(Links)]),
    Say("~ts", [beamway_demo_beside:text(Lanes)]),
    Say("~ts", [beamway_demo_hosts:text(Hosts)]),
    Say("~ts", [beamway_demo_placement:text(Placement)]),
    Say("~ts", [beamway_demo_http:text(Http)]),
    Say("~ts~n", [beamway_demo_pipe:text(Pipe)]),
    Say("kill -9 of ~ts under load: nodedown on the three others after ~.1f ms.~n"
        "Of its ~b descriptors and ~b mappings on ~ts are left: ~b descriptors, ~b mappings.~n~n",
        [maps:get(node, Kill), maps:get(nodedown_ms, Kill), maps:get(descriptors_held, Kill), maps:get(mappings_held, Kill),
         maps:get(from, hd(Links)), maps:get(descriptors_left, Kill), maps:get(mappings_left, Kill)]),
    _ = [Say("warning: ~ts~n~n", [Warning]) || Warning <- maps:get(warnings, Object)],
    maps:is_key(json, Options) andalso io:format("~ts~n", [jiffy:encode(Object, [pretty, force_utf8])]),
    %% The default file is only for the user.
    Force = maps:is_key(force, Options) orelse File =:= default_file(),
    stored(Say, File, beamway_bench_report:save(File, Result, Force), problems(Carried, Kill)).

comparison(#{figures := Figures, metrics := Metrics}) ->
    [Compared] = [case Verdict of even -> "even"; _ -> beamway_bench_text:number(Ratio) end || #{name := <<"demo_calls">>, ratio := Ratio, verdict := Verdict} <- Metrics],
    beamway_bench_text:table(
      [["", "calls/s", "spread", "p99 us", "system calls/call", "context switches/call", "ratio"],
       row("stock TCP", tcp, "", Figures), row("Beamway", beamway, Compared, Figures)]).

row(Title, Name, Compared, Figures) ->
    [Title | [{right, Text} || Text <- [median(Name, ?CALLS, Figures), spread(Name, Figures), median(Name, ?P99, Figures),
                                        median(Name, ?SYSCALLS, Figures), median(Name, ?SWITCHES, Figures), Compared]]].

find(Name, Key, Figures) ->
    [Figure || #{contender := N, key := K} = Figure <- Figures, N =:= Name, K =:= Key].

median(Name, Key, Figures) ->
    case find(Name, Key, Figures) of
        [#{median := Median}] -> beamway_bench_text:number(Median);
        [] -> "not counted"
    end.

spread(Name, Figures) ->
    [#{spread := Spread}] = find(Name, ?CALLS, Figures),
    io_lib:format("~b %", [round(100 * Spread)]).

link_table(Links) ->
    beamway_bench_text:table([["node", "link", "reason"]
                                | [[atom_to_list(Node), atom_to_list(Link), Reason]
                                   || #{node := Node, link := Link, reason := Reason} <- Links]]).

%% Returns the problems that make the result invalid. The message for each problem tells the user what to do.
problems(#{calls := Calls, bytes := Bytes}, Kill) ->
    %% The payload of a call is written once and read once in each direction.
    Payload = 4 * ?BYTES * Calls,
    [io_lib:format("shared memory moved ~b bytes, less than the ~b of the payload: it did not carry the calls. "
                   "Run: bin/beamway doctor", [Bytes, Payload]) || Bytes < Payload orelse Calls =:= 0]
        %% If there was nothing to release, the check below would pass without testing anything.
        ++ ["the ring of the node to be killed was not among the mappings: please report it, with the stored result"
            || maps:get(mappings_held, Kill) =:= 0]
        ++ ["the killed node left something behind (above): please report it, with the stored result"
            || maps:get(descriptors_left, Kill) + maps:get(mappings_left, Kill) > 0]
        ++ ["the surviving nodes lost each other when one was killed: please report it, with the stored result"
            || not maps:get(survivors_together, Kill)].

stored(_, _, _, [_ | _] = Problems) ->
    _ = [complain("~ts", [Problem]) || Problem <- Problems],
    remedy(),
    ?FAILED;
stored(Say, File, {error, Why}, []) ->
    complain("~ts", [Why]),
    %% A read-only checkout is an error only if the user has specified where to store the result.
    case default_file() of
        File -> ended(Say, "Not stored: choose a file with --save");
        _ -> ?FAILED
    end;
stored(Say, File, ok, []) ->
    ended(Say, ["Stored: ", relative(File)]).

ended(Say, Where) ->
    Say("~ts~n~nTry next:~n"
        "  bin/beamway bench rpc --quick      the same calls with 2 and 4 nodes, and tuned TCP beside it~n"
        "  bin/beamway doctor                 which links this host can use~n"
        "  erl -proto_dist beamway -pa apps/beamway/ebin -sname me     a node of your own~n", [Where]),
    ?DONE.

relative(File) ->
    {ok, Folder} = file:get_cwd(),
    case string:prefix(filename:absname(File), Folder ++ "/") of
        nomatch -> File;
        Short -> Short
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

steps_test_() ->
    [?_assertEqual([{"packages", 0.4}, {"build", 12.0}], steps("packages=0.4 build=12.0")), ?_assertEqual([], steps("")),
     ?_assertEqual([{"build", 1.5}], steps("junk build=1.5 packages= x=y"))].

kill_report(Descriptors, Mappings, Together) ->
    #{mappings_held => 1, descriptors_left => Descriptors, mappings_left => Mappings, survivors_together => Together}.

problems_test_() ->
    Carried = #{calls => 10, bytes => 4 * ?BYTES * 10},
    [?_assertEqual([], problems(Carried, kill_report(0, 0, true))),
     %% A silent fallback to TCP: nothing went through the rings.
     ?_assertMatch([_], problems(Carried#{bytes := 0}, kill_report(0, 0, true))),
     ?_assertMatch([_], problems(#{calls => 0, bytes => 0}, kill_report(0, 0, true))),
     ?_assertMatch([_], problems(Carried, kill_report(1, 0, true))), ?_assertMatch([_], problems(Carried, kill_report(0, 1, true))),
     ?_assertMatch([_], problems(Carried, kill_report(0, 0, false))),
     ?_assertMatch([_], problems(Carried, (kill_report(0, 0, true))#{mappings_held := 0}))].

bad_words_test_() ->
    [?_assertEqual(?USAGE, main(Words)) || Words <- [["extra"], ["--unknown"]]].

a_difference_within_the_noise_is_even_test_() ->
    Figures = [#{contender => Name, key => Key, median => 100.0, spread => 0.1} || Name <- [tcp, beamway], Key <- [?CALLS, ?P99, ?SYSCALLS, ?SWITCHES]],
    Row = fun(Ratio, Verdict) -> lists:last(string:lexemes(comparison(#{figures => Figures, metrics => [#{name => <<"demo_calls">>, ratio => Ratio, verdict => Verdict}]}), "\n")) end,
    [?_assertMatch({match, _}, re:run(Row(1.01, even), "even$")), ?_assertMatch({match, _}, re:run(Row(2.0, wins), "2\\.00$")), ?_assertMatch({match, _}, re:run(Row(0.8, loses), "0\\.80$"))].

relative_test() ->
    {ok, Folder} = file:get_cwd(),
    ?assertEqual("a/b", relative(filename:join(Folder, "a/b"))),
    ?assertEqual("/proc/x", relative("/proc/x")).
-endif.
