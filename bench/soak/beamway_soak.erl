%% SPDX-License-Identifier: Apache-2.0
%% @doc The `soak' command: runs real nodes under mixed load for a given time. Every second it samples everything that could leak, and at the end it
%% gives a verdict.
%%
%% First the nodes are loaded for a moment, disconnected and sampled, which yields their state at rest. During the run, {@link beamway_soak_load} runs
%% on every node while connections are cut and nodes are stopped and continued at random (the seed is printed). At the end, the nodes must return to
%% their state at rest, the load must not have encountered any error, and {@link beamway_soak_verdict} must find every metric flat. The exit status is
%% 0 on success, 1 on failure, and 2 for a usage error.
-module(beamway_soak).

-export([main/1]).

-define(WELL, 0).
-define(ILL, 1).
-define(USAGE, 2).
-define(DRESS_MS, 3000).
-define(REST_MS, 30000).
-define(SAMPLE_MS, 1000).
-define(FULL_MINUTES, 20).

options() ->
    [{minutes, $m, "minutes", {string, "20"}, "how long, such as 20 or 0.5"},
     {nodes, $n, "nodes", {integer, 2}, "how many nodes, 2 to 6"},
     {link, undefined, "link", {string, "shm"}, "shm, tcp, or inet for the kill switch"},
     {pace, undefined, "pace-ms", {integer, 5}, "how long each process of the load rests between its turns"},
     {events, undefined, "events-s", {string, "20"}, "seconds from one cut connection or stopped node to the next, on average"},
     {leak, undefined, "leak", undefined, "let one node lose descriptors, to see the verdict"},
     {seed, undefined, "seed", integer, "of what happens when"},
     {save, undefined, "save", string, "the JSON file; the SVG is called alike (bench/results/soak.json from 20 minutes, else soak-quick.json)"},
     {force, undefined, "force", undefined, "store it even if other work ran on the machine, and say so wherever it is shown"},
     {json, undefined, "json", undefined, "print the JSON instead of the table"},
     {help, $h, "help", undefined, "this help"}].

%% @doc Runs `beamway soak' with these arguments.
-spec main(Words :: [string()]) -> 0..2.
main(Words) ->
    case beamway_cli_help:parse(options(), Words) of
        {ok, #{help := true}, []} -> help(), ?WELL;
        {ok, Given, []} -> checked(maps:merge(#{leak => false, force => false}, Given), is_map_key(json, Given), Words);
        {ok, _, [Extra | _]} -> usage("unexpected word '~ts'", [Extra]);
        {error, Why} -> usage("~ts", [Why])
    end.

help() ->
    io:format("~ts~n~ts~nexit status: 0 everything stayed flat, 1 not, or the run failed, 2 usage error~n",
              [getopt:usage_cmd_line("beamway soak", options()), getopt:usage_options(options())]).

usage(Format, Args) ->
    complain(Format ++ "; see: beamway soak --help", Args),
    ?USAGE.

complain(Format, Args) ->
    io:format(standard_error, "beamway: soak: " ++ Format ++ "~n", Args).

checked(#{minutes := [_ | _] = Text} = Settings, Json, Words) -> checked(Settings#{minutes := number(Text)}, Json, Words);
checked(#{events := [_ | _] = Text} = Settings, Json, Words) -> checked(Settings#{events := number(Text)}, Json, Words);
checked(#{minutes := Minutes}, _, _) when Minutes < 0.2; Minutes > 100000 -> usage("--minutes must be a number from 0.2 to 100000", []);
checked(#{nodes := Nodes}, _, _) when Nodes < 2; Nodes > 6 -> usage("--nodes must be from 2 to 6", []);
checked(#{pace := Pace}, _, _) when Pace < 0; Pace > 10000 -> usage("--pace-ms must be from 0 to 10000", []);
checked(#{events := Events}, _, _) when Events < 0.5; Events > 100000 -> usage("--events-s must be a number from 0.5 to 100000", []);
checked(#{link := Link}, _, _) when Link =/= "shm", Link =/= "tcp", Link =/= "inet" -> usage("--link must be shm, tcp or inet", []);
checked(Settings, Json, Words) ->
    Seed = maps:get(seed, Settings, erlang:system_time(second) rem 1000000),
    run(Settings#{seed => Seed, save => maps:get(save, Settings, {unasked, default_file(Settings)}), json => Json,
                  terminal => is_terminal(),
                  command => unicode:characters_to_binary(lists:join(" ", ["bin/beamway soak" | Words]))}).

%% Returns 0 for text that is not a number, because 0 is outside every valid range here.
number(Text) ->
    case {string:to_float(Text), string:to_integer(Text)} of
        {{Number, ""}, _} -> Number;
        {_, {Number, ""}} -> float(Number);
        _ -> 0
    end.

default_file(#{minutes := Minutes}) ->
    Name = case Minutes >= ?FULL_MINUTES of true -> "soak.json"; false -> "soak-quick.json" end,
    filename:join([beamway_bench_checkout:root(), "bench", "results", Name]).

%% Uses a port, because it inherits our standard error, unlike os:cmd/1.
is_terminal() ->
    Port = open_port({spawn_executable, "/bin/sh"}, [{args, ["-c", "test -t 2"]}, exit_status]),
    receive {Port, {exit_status, Status}} -> Status =:= 0 after 5000 -> false end.

run(Settings) ->
    Context = beamway_bench_store:context("soak", maps:get(command, Settings)),
    case beamway_bench_run:in_a_process(fun() -> soak(Settings) end) of
        {ok, Outcome} -> finished(Settings, beamway_soak_report:result(Outcome, Settings, beamway_bench_store:ended(Context)));
        {error, Reason} -> complain("~ts", [beamway_bench:explain(Reason)]), ?ILL
    end.

finished(#{save := Save, json := Json, force := Force}, Result) ->
    case Json of
        true -> io:format("~ts~n", [jiffy:encode(beamway_soak_report:to_object(Result), [force_utf8, pretty])]);
        false -> io:format("~ts", [beamway_soak_report:to_text(Result)])
    end,
    case {Save, saved(Save, Result, Force)} of
        {_, ok} -> status(Result);
        {{unasked, _}, {error, Why}} -> complain("~ts", [Why]), status(Result);
        {_, {error, Why}} -> complain("~ts", [Why]), ?ILL
    end.

saved({unasked, File}, Result, Force) -> saved(File, Result, Force);
saved(File, Result, Force) ->
    Svg = filename:rootname(File) ++ ".svg",
    case beamway_bench_store:publish(File, beamway_soak_report:to_object(Result), Force) of
        ok -> drawn(beamway_bench_store:write_text(Svg, beamway_soak_report:to_svg(Result)), [File, Svg]);
        {error, Why} -> {error, Why}
    end.

drawn(ok, Files) -> complain("stored ~ts and ~ts", Files);
drawn({error, Why}, _) -> {error, Why}.

status(#{well := true}) -> ?WELL;
status(#{well := false}) -> ?ILL.

%% ---- the run ----

soak(#{nodes := Count, link := Link} = Settings) ->
    Contender = case Link of "shm" -> beamway; "tcp" -> beamway_tcp; "inet" -> beamway_inet end,
    Epmd = beamway_bench_nodes:start_epmd(),
    Cluster = beamway_bench_nodes:start(Epmd, maps:get(Contender, beamway_bench_contender:all(beamway_bench_checkout:root(), 200)),
                                        #{count => Count}),
    Before = dressed(Cluster, Settings, [forward, reverse]),
    ok = beamway_bench_nodes:connect(Cluster, forward),
    Samples = loaded(Cluster, Settings),
    After = rest(Cluster, Before),
    Outcome = #{samples => Samples, rest => {Before, After}, events => get(events),
                work => beamway_bench_nodes:all(Cluster, beamway_soak_load, counts, []),
                errors => lists:append(beamway_bench_nodes:all(Cluster, beamway_soak_load, errors, []))},
    ok = beamway_bench_nodes:stop(Cluster),
    ok = beamway_bench_nodes:stop_epmd(Epmd),
    Outcome.

%% Loads the cluster in both directions of connecting before the run, because a node's first call starts helper processes that keep running, such as
%% the resolver.
dressed(Cluster, Settings, [Direction | Others]) ->
    ok = beamway_bench_nodes:connect(Cluster, Direction),
    ok = start_load(Cluster, Settings),
    receive after ?DRESS_MS div 2 -> ok end,
    stop_load(Cluster),
    Rest = rest(Cluster, none),
    case Others of
        [] -> Rest;
        _ -> dressed(Cluster, Settings, Others)
    end.

start_load(#{members := Members} = Cluster, #{pace := PaceMs}) ->
    [ok = beamway_bench_nodes:call(Member, beamway_soak_load, start, [others(Member, Cluster), PaceMs]) || Member <- Members],
    ok.

stop_load(Cluster) ->
    _ = [ok = Done || Done <- beamway_bench_nodes:all(Cluster, beamway_soak_load, stop, [], 60000)],
    ok.

others(#{name := Name}, Cluster) ->
    lists:delete(Name, beamway_bench_nodes:names(Cluster)).

%% Returns the state at rest, with all links down and after a garbage collection. Resources are released with a slight delay, so after the run this
%% function waits until nothing exceeds the first state; at the deadline it returns the current state.
rest(#{members := Members} = Cluster, Before) ->
    _ = [beamway_bench_nodes:call(Member, erlang, disconnect_node, [Other])
         || Member <- Members, Other <- others(Member, Cluster)],
    receive after 2000 -> ok end,
    at_rest(Cluster, Before, erlang:monotonic_time(millisecond) + ?REST_MS).

at_rest(#{members := Members} = Cluster, Before, Deadline) ->
    Now = [beamway_soak_sample:at_rest(Member, []) || Member <- Members],
    case Before =:= none orelse beamway_soak_report:risen_at_rest(Before, Now) =:= []
        orelse erlang:monotonic_time(millisecond) > Deadline of
        true -> Now;
        false -> receive after 500 -> at_rest(Cluster, Before, Deadline) end
    end.

%% Returns the samples, newest last. Each consists of its time and a sample of every node.
loaded(Cluster, #{minutes := Minutes} = Settings) ->
    ok = start_load(Cluster, Settings),
    ok = maybe_leak(Cluster, Settings),
    Start = erlang:monotonic_time(millisecond),
    Trouble = beamway_soak_trouble:start(Cluster, Settings),
    Samples = sampled(Cluster, Settings, Start, Start + round(Minutes * 60000), raw(Cluster, Start), []),
    put(events, beamway_soak_trouble:stop(Trouble)),
    stop_load(Cluster),
    Samples.

maybe_leak(#{members := [Member | _]}, #{leak := true}) -> beamway_bench_nodes:call(Member, beamway_soak_load, leak, []);
maybe_leak(_, #{leak := false}) -> ok.

raw(#{members := Members} = Cluster, Start) ->
    [{(erlang:monotonic_time(millisecond) - Start) / 1000, beamway_soak_sample:take(Member, others(Member, Cluster))}
     || Member <- Members].

sampled(Cluster, Settings, Start, End, Before, Samples) ->
    Next = Start + ?SAMPLE_MS * (1 + (erlang:monotonic_time(millisecond) - Start) div ?SAMPLE_MS),
    receive after max(0, Next - erlang:monotonic_time(millisecond)) -> ok end,
    Now = raw(Cluster, Start),
    {TimeS, _} = hd(Now),
    Sample = {TimeS, [beamway_soak_sample:rates(Old, New) || {Old, New} <- lists:zip(Before, Now)]},
    show(Settings, Sample, length(Samples)),
    case erlang:monotonic_time(millisecond) >= End of
        true -> show_end(Settings), lists:reverse([Sample | Samples]);
        false -> sampled(Cluster, Settings, Start, End, Now, [Sample | Samples])
    end.

%% On a terminal, a single line is updated in place; otherwise, a line is printed each minute.
show(#{terminal := true} = Settings, Sample, _) ->
    io:format(standard_error, "\r~ts\e[K", [beamway_soak_report:progress(Settings, Sample)]);
show(#{terminal := false} = Settings, Sample, Count) when Count rem 60 =:= 59 ->
    complain("~ts", [beamway_soak_report:progress(Settings, Sample)]);
show(_, _, _) ->
    ok.

show_end(#{terminal := true}) -> io:format(standard_error, "~n", []);
show_end(_) -> ok.
