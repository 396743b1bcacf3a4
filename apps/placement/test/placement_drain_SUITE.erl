%% SPDX-License-Identifier: Apache-2.0
%% @doc Drains nodes: processes move with their state and their queued messages while others call them. Uses four real
%% nodes.
%%
%% `BEAMWAY_TEST_DRAINS=100' (`make test-drain') runs the two cases under load at full size: 100 clean drains and 100 drains
%% with `kill -9', with 100 callers and 20,000 processes (`BEAMWAY_TEST_CHILDREN') that take 500 MB in total. A last case
%% then checks how long callers had to wait. With `BEAMWAY_TEST_DRAINS_STORE=yes' it stores the result in
%% `bench/results/drain.json'.
-module(placement_drain_SUITE).
-behaviour(gen_statem).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_testcase/2, end_per_testcase/2]).
-export([clean_under_load/1, killed_under_load/1, beside_stop_and_start/1, supervised/1, refused_by_name/1, goes_on_where_it_was/1, target_dies/1, busy/1, old_handoff/1, late_node/1,
         drained_before_the_stop/1, options_and_the_taint/1, by_the_command/1, elixir/1, all_together/1]).
%% The functions of a gen_statem that can move.
-export([start_statem/0, callback_mode/0, init/1, handle_event/4, placement_handoff/3]).
-export([start_children/2, log/2, bytes/1, quantile/2]).

-define(COUNTER, placement_drain_counter).
-define(NAMES, ["a", "b", "c", "d"]).

suite() -> [{timetrap, {minutes, case full() of none -> 3; Drains -> 30 + 3 * Drains end}}].

all() -> [clean_under_load, killed_under_load, beside_stop_and_start, supervised, refused_by_name, goes_on_where_it_was, target_dies, busy, old_handoff, late_node, drained_before_the_stop,
         options_and_the_taint, by_the_command, elixir] ++ [all_together || full() =/= none].

full() ->
    case os:getenv("BEAMWAY_TEST_DRAINS") of
        false -> none;
        Count -> list_to_integer(Count)
    end.

init_per_testcase(all_together, Config) -> Config;
init_per_testcase(Case, Config) ->
    Cluster = beamway_placement_nodes:start(?NAMES, options(Case)),
    [ok = beamway_placement_nodes:connect(Cluster, Name) || Name <- ["a", "b", "c"]],
    [{cluster, Cluster} | Config].

options(drained_before_the_stop) -> #{args := Args} = options(), #{args => ["-placement", "drain_ms", "20000" | Args]};
options(_) -> options().

options() -> #{args => lists:append([["-pa", filename:absname(filename:dirname(code:which(Module)))] || Module <- [?MODULE, beamway_bench_load]])}.

end_per_testcase(all_together, _) -> ok;
end_per_testcase(_, Config) -> ok = beamway_placement_nodes:stop(cluster(Config)).

%%% Helpers

cluster(Config) -> proplists:get_value(cluster, Config).

with(Cluster, Config) -> [{cluster, Cluster} | proplists:delete(cluster, Config)].

on(Config, Name, Function, Arguments) -> beamway_placement_nodes:call(cluster(Config), Name, Function, Arguments).

run(Config, Name, Fun) -> beamway_peer:run(peer_of(Config, Name), Fun, 600000).

peer_of(Config, Name) -> element(2, lists:keyfind(Name, 1, cluster(Config))).

node_of(Config, Name) -> element(3, lists:keyfind(Name, 1, cluster(Config))).

name_of(Config, Node) -> element(1, lists:keyfind(Node, 3, cluster(Config))).

drain(Config, Name, Options) -> on(Config, "d", {placement, drain}, [node_of(Config, Name), Options]).

grace() -> 1500 * beamway_runner:slowness().

%% Starts a child that counts calls.
child(Config, Options) -> child(Config, [], Options).

child(Config, Query, Options) ->
    {ok, Pid} = on(Config, "d", {placement, child}, [Query, {?COUNTER, start_link, [one, 5000]}, maps:merge(#{name => one, grace => grace(), nodes => beamway_placement_nodes:nodes(cluster(Config))}, Options)]),
    true = beamway_peer:wait_until(fun() -> all_run(Config, 1) end, 60000),
    Pid.

%% Sets the attribute `role' on these nodes. With ttl 0 other nodes see changes immediately.
roles(Config, Values) -> [ok = on(Config, Name, {placement, insert}, [role, {static, Value, [{ttl, 0}]}]) || {Name, Value} <- Values].

called(Config, Request) -> on(Config, "d", {gen_server, call}, [{via, placement, one}, Request]).

bumped(Config) -> {Count, _, _} = called(Config, {bump, me}), Count.

is_alive(Config, Pid) -> on(Config, name_of(Config, node(Pid)), {erlang, is_process_alive}, [Pid]).

%% Starts a supervisor with this name on these nodes, with children only on the first node.
supervisors(Config, Name, Strategy, [First | Others], Children) ->
    Start = fun(Which, Specs) ->
        run(Config, Which, fun() ->
            {ok, Pid} = ?COUNTER:start_under(Name, {#{strategy => Strategy}, Specs}),
            true = unlink(Pid),
            [Child || {_, Child, _, _} <- supervisor:which_children(Pid)]
        end)
    end,
    _ = [Start(Other, [Spec || Strategy =:= simple_one_for_one, Spec <- Children]) || Other <- Others],
    Start(First, Children).

counter(Id) -> #{id => Id, start => {?COUNTER, start_link, [Id, 2000]}}.

children_of(Config, Which, Name) -> [{Id, Pid} || {Id, Pid, _, _} <- on(Config, Which, {supervisor, which_children}, [Name]), is_pid(Pid)].

%% Runs on a node: starts children with these names and sizes, several at a time.
start_children(Sized, Options) ->
    Self = self(),
    Pids = [spawn_link(fun() ->
        ok = lists:foreach(fun({Name, Bytes}) -> start_child({?COUNTER, start_link, [Name, Bytes]}, Options#{name => Name}) end, Part),
        Self ! {self(), started}
    end) || Part <- parts(Sized, min(100, length(Sized)))],
    [receive {Pid, started} -> ok end || Pid <- Pids],
    ok.

%% On a busy machine the voters may not answer in time, but the child may still start.
start_child(Call, Options) ->
    case placement:child([], Call, Options) of
        {ok, _} -> ok;
        {error, {exists, _}} -> ok;
        {error, Reason} when Reason =:= no_majority; Reason =:= not_started -> start_child(Call, Options)
    end.

parts(List, Count) ->
    Numbered = lists:zip([N rem Count || N <- lists:seq(1, length(List))], List),
    [[Item || {Of, Item} <- Numbered, Of =:= Part] || Part <- lists:seq(0, Count - 1)].

%% Returns a size between 1 KB and 1 MB. Most sizes are small (a bounded Pareto distribution); the mean is 26 KB.
bytes(N) ->
    Part = (N * 7919 rem 20000 + 0.5) / 20000,
    {Low, High, Alpha} = {1000.0, 1.0e6, 0.56},
    round(Low / math:pow(1 - Part * (1 - math:pow(Low / High, Alpha)), 1 / Alpha)).

%% Restarts a stopped node with the same name.
again(Config, Name) ->
    {Cluster, [{Name, _, Node}]} = lists:partition(fun({Other, _, _}) -> Other =/= Name end, cluster(Config)),
    Started = beamway_placement_nodes:start_again(Name, Node, options()),
    After = with([Started | Cluster], Config),
    ok = beamway_placement_nodes:connect(cluster(After), Name),
    After.

%% Returns whether all children run and all voters agree on their nodes.
all_run(Config, Count) ->
    Views = [run(Config, Name, fun() ->
        Children = placement:children(),
        {length([Pid || {_, _, Pid} <- Children, is_pid(Pid)]), erlang:md5(term_to_binary(Children))}
    end) || {Name, _, _} <- cluster(Config)],
    length(lists:usort(Views)) =:= 1 andalso element(1, hd(Views)) =:= Count.

wait_for_all(Config, Count) -> true = beamway_peer:wait_until(fun() -> all_run(Config, Count) end, 300000).

%% If a warning says that a child's state is lost, sends the child's name to the node that is never killed.
log(#{msg := {Format, Arguments}, level := warning}, #{config := Node}) when is_list(Format) ->
    [{drain_log, Node} ! {lost, hd(Arguments)} || string:find(Format, "its state") =/= nomatch, string:prefix(Format, "placement: child ") =/= nomatch
                                                                      orelse string:prefix(Format, "placement: the state of child ") =/= nomatch];
log(_, _) -> ok.

start_log(Config) -> run(Config, "d", fun() -> _ = spawn(fun() -> true = register(drain_log, self()), logging([]) end), ok end).

logging(Names) ->
    receive
        {lost, Name} -> logging([Name | Names]);
        {get, To} -> To ! {drain_log, Names}, logging(Names)
    end.

logged(Config) -> run(Config, "d", fun() -> drain_log ! {get, self()}, receive {drain_log, Names} -> Names end end).

logs(Config, Name) ->
    _ = on(Config, Name, {logger, remove_handler}, [default]),
    ok = on(Config, Name, {logger, add_handler}, [?MODULE, ?MODULE, #{level => warning, config => node_of(Config, "d")}]).

%% Returns a quantile of the call times: with 0.999, all but one of a thousand calls took at most this many
%% milliseconds.
quantile(Took, Part) ->
    Sorted = lists:sort(maps:to_list(Took)),
    beyond(Sorted, Part * lists:sum([Count || {_, Count} <- Sorted])).

beyond([], _) -> 0;
beyond([{Ms, Count} | _], Left) when Count >= Left -> Ms;
beyond([{_, Count} | Rest], Left) -> beyond(Rest, Left - Count).

%%% Under load

load() ->
    case full() of
        none -> #{children => 200, callers => 20, pause => 5, drains => 3, grace => 5000};
        Drains -> #{children => list_to_integer(os:getenv("BEAMWAY_TEST_CHILDREN", "20000")), callers => 100, pause => 50, drains => Drains, grace => 30000}
    end.

loaded(Config, #{children := Children, callers := Callers, pause := Pause, grace := Grace}) ->
    Sized = [{{counter, N}, bytes(N)} || N <- lists:seq(1, Children)],
    ok = start_log(Config),
    [ok = logs(Config, Name) || Name <- ?NAMES],
    ok = run(Config, "d", fun() -> start_children(Sized, #{nodes => [node() | erlang:nodes()], grace => Grace}) end),
    wait_for_all(Config, Children),
    Names = [Name || {Name, _} <- Sized],
    {Names, maps:from_list(Sized), run(Config, "d", fun() -> placement_drain_caller:start(Callers, Names, Pause) end)}.

%% The nodes are drained, stopped and restarted one at a time. Callers notice only a pause.
clean_under_load(Config) ->
    Context = beamway_bench_store:context("drain", "make test-drain STORE=1"),
    #{children := Children, drains := Drains, callers := Count} = Load = load(),
    {Names, Sizes, Callers} = loaded(Config, Load),
    {Last, Results} = lists:foldl(fun(N, {Now, Before}) ->
        Name = lists:nth(1 + N rem 3, ["a", "b", "c"]),
        Link = link_rate(Now, Name, lists:nth(1 + (N + 1) rem 3, ["a", "b", "c"])),
        Here = [maps:get(Child, Sizes) || {Child, Node, _} <- on(Now, "d", {placement, children}, []), Node =:= node_of(Now, Name)],
        ok = on(Now, "d", {placement_drain_caller, mark}, [true]),
        {ok, Result} = beamway_peer:call(peer_of(Now, "d"), placement, drain, [node_of(Now, Name)], 600000),
        ok = on(Now, "d", {placement_drain_caller, mark}, [false]),
        ?assertMatch({N, #{stayed := [], lost := [], restarted := []}}, {N, Result}),
        ?assertEqual([], [Child || {Child, Node, _} <- on(Now, "d", {placement, children}, []), Node =:= node_of(Now, Name)]),
        ok = beamway_peer:halt_node(peer_of(Now, Name)),
        After = again(Now, Name),
        ok = logs(After, Name),
        wait_for_all(After, Children),
        {After, [Result#{rate => lists:sum(Here) / 1000 / maps:get(ms, Result), link => Link} | Before]}
    end, {Config, []}, lists:seq(1, Drains)),
    #{took := Took} = Report = run(Last, "d", fun() -> placement_drain_caller:report(Callers) end),
    Loads = run(Last, "d", fun() -> [gen_server:call({via, placement, Name}, load, 60000) || Name <- Names] end),
    ok = beamway_placement_nodes:stop(cluster(Last)),
    Bytes = lists:sum(maps:values(Sizes)),
    ?assertEqual({Bytes, [true]}, {lists:sum([Size || {Size, _, _} <- Loads]), lists:usort([IsWhole || {_, IsWhole, _} <- Loads])}),
    Moved = lists:sum([Moves || #{moved := Moves} <- Results]),
    ?assert(Moved >= Children * Drains div 8),
    ?assertEqual(Moved, lists:sum([Moves || {_, _, Moves} <- Loads])),
    ?assertMatch(#{failed := [], wrong := [], twice := []}, maps:with([failed, wrong, twice], Report)),
    Median = fun(Key) -> beamway_bench_stats:median([maps:get(Key, Result) || Result <- Results]) end,
    Clean = #{drains => Drains, moved => Moved, ms => round(Median(ms)), mb_per_s => rounded(Median(rate), 1), link_mb_per_s => rounded(Median(link), 1),
              part_of_link => rounded(beamway_bench_stats:median([Rate / Link || #{rate := Rate, link := Link} <- Results]), 3), calls => maps:get(calls, Report), calls_during_drains => lists:sum(maps:values(Took)), wrong => 0,
              p50_ms => quantile(Took, 0.5), p99_ms => quantile(Took, 0.99), p999_ms => quantile(Took, 0.999), max_ms => lists:max(maps:keys(Took))},
    ok = beamway_runner:say("~0tp", [Clean]),
    keep(clean, Context#{repeats => 1, processes => Children, bytes => Bytes, callers => Count, clean => Clean}, Config).

rounded(Number, Digits) -> binary_to_float(float_to_binary(float(Number), [{decimals, Digits}])).

%% Returns how many MB per second one node can send to another in messages of 1 MB while the callers continue to run.
%% This is measured as in `bench stream'.
link_rate(Config, From, To) ->
    #{messages := Messages, elapsed_ns := Ns} = on(Config, From, {beamway_bench_load, stream}, [#{target => node_of(Config, To), bytes => 1 bsl 20, ms => 300, batch => 8, window => 32}]),
    Messages * 1.048576e9 / Ns.

%% The drained node, or one that accepts processes, is killed in the middle of the drain. Two processes never answer
%% under the same name, and a warning names each child whose state is lost.
killed_under_load(Config) ->
    #{children := Children, drains := Drains} = Load = load(),
    {Names, _, Callers} = loaded(Config, Load),
    {Last, Reported} = lists:foldl(fun(N, {Now, Before}) ->
        Name = lists:nth(1 + N rem 3, ["a", "b", "c"]),
        Victim = case N rem 2 of 0 -> Name; 1 -> lists:nth(1 + (N + 1) rem 3, ["a", "b", "c"]) end,
        Drain = beamway_peer:async(fun() -> beamway_peer:call(peer_of(Now, "d"), placement, drain, [node_of(Now, Name), #{timeout => 5000}], 600000) end),
        %% The node is killed at a random point of the drain, when a random number of children have left.
        There = here(Now, Name),
        Left = rand:uniform(max(1, There)),
        %% On a busy machine the drain may finish before that point.
        true = beamway_peer:wait_until(fun() -> here(Now, Name) < Left orelse not is_process_alive(element(1, Drain)) end, 120000),
        ok = beamway_peer:kill9(peer_of(Now, Victim)),
        Result = beamway_peer:await(Drain, 600000),
        Lost = case Result of
                   {ok, #{lost := Some}} -> [Child || #{process := {child, Child}} <- Some];
                   {error, nodedown} -> []
               end,
        Others = with(lists:keydelete(Victim, 1, cluster(Now)), Now),
        wait_for_all(Others, Children),
        After = again(Now, Victim),
        ok = logs(After, Victim),
        _ = [ok = on(After, Which, {placement, undrain}, []) || Which <- [Name], Which =/= Victim],
        wait_for_all(After, Children),
        {After, Lost ++ Before}
    end, {Config, []}, lists:seq(1, Drains)),
    Report = run(Last, "d", fun() -> placement_drain_caller:report(Callers) end),
    Loads = run(Last, "d", fun() -> [gen_server:call({via, placement, Name}, load, 60000) || Name <- Names] end),
    Named = Reported ++ logged(Last),
    ok = beamway_placement_nodes:stop(cluster(Last)),
    ?assertEqual([true], lists:usort([IsWhole || {_, IsWhole, _} <- Loads])),
    #{wrong := Wrong, twice := Twice, failed := Failed, calls := Calls} = Report,
    Killed = #{drains => Drains, calls => Calls, failed => length(Failed), lost => length(lists:usort([Child || {Child, _, _, _} <- Wrong])), named => length(lists:usort(Named)), twice => 0},
    ok = beamway_runner:say("~0tp", [Killed]),
    ?assertEqual([], Twice),
    ?assertEqual([], [One || {Child, _, _, _} = One <- Wrong, not lists:member(Child, Named)]),
    keep(killed, Killed, Config).

%% Returns how many children run on the node.
here(Config, Name) ->
    Node = node_of(Config, Name),
    run(Config, "d", fun() -> length([Child || {Child, On, _} <- placement:children(), On =:= Node]) end).

%% The alternative to a drain, for comparison: the node is stopped, and its children restart on other nodes when their
%% leases have expired. Their states are lost.
beside_stop_and_start(Config) ->
    Pid = child(Config, #{}),
    1 = bumped(Config),
    Name = name_of(Config, node(Pid)),
    Left = with(lists:keydelete(Name, 1, cluster(Config)), Config),
    [Asks | _] = [Which || {Which, _, _} <- cluster(Left)],
    Begin = erlang:monotonic_time(millisecond),
    ok = beamway_peer:halt_node(peer_of(Config, Name)),
    New = beamway_peer:wait_until(fun() ->
        case on(Left, Asks, {placement, whereis_name}, [one]) of
            Other when is_pid(Other), Other =/= Pid -> Other;
            _ -> false
        end
    end, 60000),
    Gap = erlang:monotonic_time(millisecond) - Begin,
    ok = beamway_runner:say("without a drain: ~b ms of ~b ms grace time without an answer, state lost", [Gap, grace()]),
    {Count, New, _} = on(Left, Asks, {gen_server, call}, [New, {bump, me}]),
    ?assertEqual(1, Count),
    keep(stopped, #{gap_ms => Gap, grace_ms => grace()}, Config).

keep(What, Result, Config) -> file:write_file(kept(What, Config), term_to_binary(Result)).

kept(What, Config) -> filename:join(proplists:get_value(priv_dir, Config), atom_to_list(What)).

kept_result(What, Config) ->
    {ok, Kept} = file:read_file(kept(What, Config)),
    binary_to_term(Kept).

%% The results are stored even if callers had to wait too long.
all_together(Config) ->
    #{clean := #{p999_ms := Longest}} = Clean = kept_result(clean, Config),
    Together = Clean#{killed => kept_result(killed, Config), stopped => kept_result(stopped, Config)},
    ok = case os:getenv("BEAMWAY_TEST_DRAINS_STORE") of
             "yes" -> beamway_bench_store:write(beamway_bench_store:file("drain"), Together);
             _ -> ok
         end,
    ?assert(Longest < 100, Longest).

%% Processes under supervisors are moved. Callers that know the old pid can continue to use it, and messages arrive in
%% order. The supervisor does not restart a process that has moved, not even when the new process exits.
supervised(Config) ->
    Olds = supervisors(Config, drain_sup, one_for_one, ["a", "b"], [counter(N) || N <- lists:seq(1, 5)]),
    [] = supervisors(Config, drain_simple, simple_one_for_one, ["a", "c"], [#{id => any, start => {?COUNTER, start_link, [simple]}}]),
    {ok, Simple} = on(Config, "a", {supervisor, start_child}, [drain_simple, [3000]]),
    Statems = supervisors(Config, drain_statems, one_for_one, ["a", "d"], [#{id => statem, start => {?MODULE, start_statem, []}}]),
    [First | _] = Olds,
    Sender = run(Config, "d", fun() ->
        {1, _, _} = ?COUNTER:bump(First, me),
        [ok = gen_statem:call(Statem, {put, kept}) || Statem <- Statems],
        spawn(fun() -> sending(First, 1) end)
    end),
    {ok, Result} = drain(Config, "a", #{}),
    ?assertMatch(#{moved := 7, stayed := [], lost := []}, Result),
    true = beamway_peer:wait_until(fun() -> length(on(Config, "d", {gen_server, call}, [First, heard])) > 200 end, 30000),
    Sent = run(Config, "d", fun() -> Sender ! {stop, self()}, receive {sent, N} -> N end end),
    Heard = on(Config, "d", {gen_server, call}, [First, heard]),
    ?assertEqual(lists:seq(1, Sent), Heard),
    {2, New, _} = run(Config, "d", fun() -> ?COUNTER:bump(First, me) end),
    ?assertEqual(node_of(Config, "b"), node(New)),
    ?assertEqual(kept, on(Config, "d", {gen_statem, call}, [hd(Statems), get])),
    ?assertEqual(node_of(Config, "c"), node(element(2, run(Config, "d", fun() -> ?COUNTER:bump(Simple, me) end)))),
    ?assertEqual(lists:sort(Olds), lists:sort([Pid || {_, Pid} <- children_of(Config, "a", drain_sup)])),
    ?assertEqual([1, 2, 3, 4, 5], lists:sort([Id || {Id, _} <- children_of(Config, "b", drain_sup)])),
    %% A second drain finds nothing to move.
    ?assertMatch({ok, #{moved := 0, stayed := []}}, drain(Config, "a", #{})),
    true = on(Config, "b", {erlang, exit}, [New, kill]),
    true = beamway_peer:wait_until(fun() -> not is_alive(Config, First) end, 30000),
    ?assertEqual(4, length(children_of(Config, "a", drain_sup))),
    ?assertEqual(5, length(children_of(Config, "b", drain_sup))),
    ok = beamway_peer:halt_node(peer_of(Config, "a")).

sending(To, N) ->
    ok = gen_server:cast(To, N),
    receive {stop, Pid} -> Pid ! {sent, N}
    after 1 -> sending(To, N + 1)
    end.

start_statem() -> gen_statem:start_link(?MODULE, [], []).

callback_mode() -> handle_event_function.

init([]) -> {ok, waiting, none}.

handle_event({call, From}, {put, Term}, waiting, _) -> {next_state, full, Term, [{reply, From, ok}, {state_timeout, 3600000, late}]};
handle_event({call, From}, get, full, Term) -> {keep_state_and_data, [{reply, From, Term}]}.

%% A process with resources that cannot move is reported by name and continues unchanged.
refused_by_name(Config) ->
    Wrong = [{port, fun() -> _ = open_port({spawn, "cat"}, []), ok end}, {link, fun() -> _ = spawn_link(fun() -> receive stop -> ok end end), ok end},
             {monitor, fun() -> _ = monitor(process, init), ok end}, {table, fun() -> _ = ets:new(drained, [public, named_table]), ok end}],
    Olds = supervisors(Config, drain_sup, one_for_one, ["a", "b"], [counter(Id) || Id <- [port, link, monitor, table, stays, raises]]),
    Ids = children_of(Config, "a", drain_sup),
    Pid = fun(Id) -> proplists:get_value(Id, Ids) end,
    [ok = on(Config, "a", {gen_server, call}, [Pid(Id), {run, Fun}]) || {Id, Fun} <- Wrong],
    [ok = on(Config, "a", {gen_server, call}, [Pid(Id), {extra, Id}]) || Id <- [stays, raises]],
    [Global] = supervisors(Config, drain_global, one_for_one, ["a", "b"], [#{id => global, start => {?COUNTER, start_named, [drained]}}]),
    [Together] = supervisors(Config, drain_all, one_for_all, ["a", "b"], [counter(all)]),
    [Here] = supervisors(Config, drain_here, one_for_one, ["a"], [counter(here)]),
    [] = supervisors(Config, drain_temporary, simple_one_for_one, ["a", "b"], [#{id => any, start => {?COUNTER, start_link, [simple]}, restart => temporary}]),
    {ok, Temporary} = on(Config, "a", {supervisor, start_child}, [drain_temporary, [10]]),
    {ok, Alone} = on(Config, "a", {gen_server, start}, [?COUNTER, {alone, 10}, []]),
    {ok, #{moved := 0, stayed := Stayed} = Result} = drain(Config, "a", #{timeout => 1000}),
    Reasons = maps:from_list([{Which, Reason} || #{pid := Which, reason := Reason} <- Stayed]),
    [?assertMatch({Id, #{}}, {Id, #{} = Reasons}) || Id <- [port]],
    [?assertMatch({Id, {has, What, [_]}}, {Id, maps:get(Pid(Id), Reasons)}) || {Id, What} <- [{port, ports}, {link, links}, {monitor, monitors}, {table, tables}]],
    ?assertMatch({stays, busy}, maps:get(Pid(stays), Reasons)),
    ?assertMatch({bad_handoff, _, {error, oops}}, maps:get(Pid(raises), Reasons)),
    ?assertEqual([{global, drained}, {supervisor, drain_all, one_for_all}, no_node, {no_arguments, drain_temporary}, no_supervisor],
                 [maps:get(Which, Reasons) || Which <- [Global, Together, Here, Temporary, Alone]]),
    Text = lists:flatten(io_lib:format("~ts", [placement_drain:to_text(Result)])),
    [?assertMatch({Part, [_ | _]}, {Part, string:find(Text, Part)}) || Part <- ["process port of drain_sup: it has the port #Port<", "it monitors the process", "ETS table drained", "global name drained", "another node"]],
    [?assertMatch({1, Which, _}, run(Config, "d", fun() -> ?COUNTER:bump(Which, me) end)) || Which <- [Global, Together, Here, Temporary, Alone | Olds]],
    %% A process can move if, according to its callback, the new process creates all of its resources again.
    [ok = on(Config, "a", {gen_server, call}, [Pid(Id), {extra, {handles, [What]}}]) || {Id, What} <- [{port, ports}, {link, links}, {monitor, monitors}, {table, tables}]],
    ?assertMatch({ok, #{moved := 4}}, drain(Config, "a", #{timeout => 1000})),
    ?assertEqual(undefined, on(Config, "a", {ets, whereis}, [drained])),
    ?assertMatch({2, _, _}, run(Config, "d", fun() -> ?COUNTER:bump(Pid(table), me) end)).

%% No node accepts the state, so the process continues with its state and its queued messages.
goes_on_where_it_was(Config) ->
    Pid = child(Config, #{}),
    1 = bumped(Config),
    [Old] = supervisors(Config, drain_sup, one_for_one, [name_of(Config, node(Pid)) | [Other || Other <- ["a", "b", "c"], Other =/= name_of(Config, node(Pid))]], [counter(x)]),
    Name = name_of(Config, node(Pid)),
    [ok = on(Config, "d", {gen_server, call}, [Which, {extra, {fails_on, beamway_placement_nodes:nodes(cluster(Config))}}]) || Which <- [Pid, Old]],
    Sender = run(Config, "d", fun() -> [spawn(fun() -> sending(Which, 1) end) || Which <- [Pid, Old]] end),
    {ok, #{moved := 0, stayed := Stayed}} = drain(Config, Name, #{timeout => 3000}),
    ?assertMatch([_, _], Stayed),
    Sent = run(Config, "d", fun() -> [begin One ! {stop, self()}, receive {sent, N} -> N end end || One <- Sender] end),
    ?assertEqual([lists:seq(1, N) || N <- Sent], [on(Config, "d", {gen_server, call}, [Which, heard]) || Which <- [Pid, Old]]),
    ?assertEqual(2, bumped(Config)),
    ?assertEqual(Pid, on(Config, "d", {placement, whereis_name}, [one])),
    [?assertEqual([], children_of(Config, Other, drain_sup)) || Other <- ["a", "b", "c"], Other =/= Name],
    %% The move to the first node fails, so the process moves to another one.
    [ok = on(Config, "d", {gen_server, call}, [Which, {extra, {fails_on, [node_of(Config, Name)]}}]) || Which <- [Pid]],
    ok = on(Config, Name, {placement, undrain}, []),
    {ok, #{moved := 1}} = drain(Config, Name, #{timeout => 5000}),
    ?assertEqual(3, bumped(Config)).

%% The target node is killed while it is receiving a child's state. The state is not lost: the old process resumes when
%% that node's promises have expired, and moves to another node.
target_dies(Config) ->
    roles(Config, [{"a", other}, {"b", worker}, {"c", other}, {"d", other}]),
    Pid = child(Config, {role, eq, worker}, #{grace => 2 * grace()}),
    ?assertEqual(node_of(Config, "b"), node(Pid)),
    1 = bumped(Config),
    ok = called(Config, {extra, {halts_on, node_of(Config, "a")}}),
    %% A drain begins with the suitable node whose name comes first.
    roles(Config, [{"a", worker}, {"c", worker}]),
    Drain = beamway_peer:async(fun() -> drain(Config, "b", #{timeout => 60000}) end),
    true = beamway_peer:wait_until(fun() -> not is_process_alive(peer_of(Config, "a")) end, 30000),
    Left = with(lists:keydelete("a", 1, cluster(Config)), Config),
    ?assertMatch({ok, #{moved := 1, lost := [], stayed := [], restarted := []}}, beamway_peer:await(Drain, 120000)),
    {2, New, _} = on(Left, "d", {gen_server, call}, [{via, placement, one}, {bump, me}]),
    ?assertEqual(node_of(Config, "c"), node(New)).

%% The process is in a long callback when the drain begins, and moves when the callback has returned.
busy(Config) ->
    Pid = child(Config, #{grace => 6000 * beamway_runner:slowness()}),
    Call = beamway_peer:async(fun() -> called(Config, {sleep, 1000}) end),
    true = beamway_peer:wait_until(fun() -> on(Config, name_of(Config, node(Pid)), {erlang, process_info}, [Pid, current_function]) =:= {current_function, {?COUNTER, handle_call, 3}} end, 30000),
    Waits = beamway_peer:async(fun() -> bumped(Config) end),
    ?assertMatch({ok, #{moved := 1, stayed := []}}, drain(Config, name_of(Config, node(Pid)), #{})),
    ?assertEqual(slept, beamway_peer:await(Call)),
    ?assertEqual(1, beamway_peer:await(Waits)),
    ?assertEqual(2, bumped(Config)).

%% Children without placement_handoff/3 are restarted on another node; they keep their state if they have
%% placement_handoff/1.
old_handoff(Config) ->
    Nodes = beamway_placement_nodes:nodes(cluster(Config)),
    {ok, Pid} = on(Config, "d", {placement, child}, [[], {placement_child_SUITE, start_link, [fresh]}, #{name => one, nodes => Nodes, grace => grace()}]),
    true = beamway_peer:wait_until(fun() -> all_run(Config, 1) end, 60000),
    ok = called(Config, {put, precious}),
    Name = name_of(Config, node(Pid)),
    ?assertMatch({ok, #{moved := 0, restarted := [#{process := {child, one}}]}}, drain(Config, Name, #{})),
    true = beamway_peer:wait_until(fun() -> case on(Config, "d", {placement, whereis_name}, [one]) of New when is_pid(New) -> node(New) =/= node(Pid); _ -> false end end, 60000),
    ?assertEqual(precious, called(Config, get)).

%% The child's node is suspended (SIGSTOP), and the child is started on another node with a higher fencing number. When the
%% suspended node continues, it cannot act under its old lease: its process exits, and no voter renews its promise.
late_node(Config) ->
    Pid = child(Config, #{}),
    Name = name_of(Config, node(Pid)),
    Others = [Other || Other <- ["a", "b", "c"], Other =/= Name],
    {ok, Before} = on(Config, Name, {placement, fence}, [one]),
    [{_, _, Spec, Pid}] = on(Config, Name, {ets, lookup}, [placement_kept, one]),
    ok = beamway_peer:sigstop(peer_of(Config, Name)),
    New = beamway_peer:wait_until(fun() ->
        case on(Config, hd(Others), {placement, whereis_name}, [one]) of
            Found when is_pid(Found), Found =/= Pid -> Found;
            _ -> false
        end
    end, 60000),
    {ok, After} = on(Config, name_of(Config, node(New)), {placement, fence}, [one]),
    ?assert(After > Before, {After, Before}),
    ok = beamway_peer:sigcont(peer_of(Config, Name)),
    true = beamway_peer:wait_until(fun() -> not is_alive(Config, Pid) end, 30000),
    %% Simulates a request that arrives late, when no node has the lease any more.
    ok = on(Config, hd(Others), {placement, delete_child}, [one]),
    true = beamway_peer:wait_until(fun() -> not is_alive(Config, New) end, 30000),
    Fenced = beamway_peer:run(peer_of(Config, hd(Others)), fun() ->
        {placement_child, ok} = {placement_child, gen_server:call(placement_child, {put, Spec#{version := {erlang:system_time(), node()}, fence := After, live := After}})},
        [{_, #{version := Version}, _}] = ets:lookup(placement_children, one),
        Alias = alias(),
        ok = gen_server:cast(placement_child, {ask, Alias, Spec#{version := Version}, node(Pid), Pid}),
        receive {Alias, Answer} -> Answer end
    end),
    ?assertEqual({fenced, After}, Fenced).

%% SIGTERM drains the node, because drain_ms is set.
drained_before_the_stop(Config) ->
    Pid = child(Config, #{grace => 5000 * beamway_runner:slowness()}),
    1 = bumped(Config),
    Name = name_of(Config, node(Pid)),
    true = beamway_peer:wait_until(fun() -> lists:keymember(placement_at_stop, 1, on(Config, Name, {application, which_applications}, [])) end, 30000),
    Asks = case Name of "d" -> "c"; _ -> "d" end,
    Monitor = monitor(process, peer_of(Config, Name)),
    "" = os:cmd("kill -TERM " ++ integer_to_list(beamway_peer:os_pid(peer_of(Config, Name)))),
    receive {'DOWN', Monitor, process, _, _} -> ok after 60000 -> error(still_runs) end,
    {2, New, _} = on(with(lists:keydelete(Name, 1, cluster(Config)), Config), Asks, {gen_server, call}, [{via, placement, one}, {bump, me}]),
    ?assertNotEqual(node(Pid), node(New)).

options_and_the_taint(Config) ->
    [?assertEqual({error, {bad_option, Key, Value}}, drain(Config, "a", #{Key => Value})) || {Key, Value} <- [{at_once, 0}, {timeout, x}, {colour, red}]],
    ?assertEqual({error, nodedown}, on(Config, "d", {placement, drain}, ['x@127.0.0.1'])),
    ok = on(Config, "a", {placement, taint}, [[gpu]]),
    {ok, #{moved := 0, node := _}} = drain(Config, "a", #{}),
    Taints = fun() -> #{attributes := #{taints := {ok, Value, _, _, _}}} = maps:get(node_of(Config, "a"), on(Config, "a", {placement, attributes}, [[node_of(Config, "a")], [taints]])), Value end,
    true = beamway_peer:wait_until(fun() -> Taints() =:= [draining, gpu] end, 30000),
    %% A drained node accepts no new processes.
    Pids = [element(2, {ok, _} = on(Config, "b", {placement, child}, [[], {?COUNTER, start_link, [N, 10]}, #{name => N, grace => grace(), nodes => beamway_placement_nodes:nodes(cluster(Config))}])) || N <- [1, 2, 3, 4]],
    ?assertEqual([], [Pid || Pid <- Pids, node(Pid) =:= node_of(Config, "a")]),
    ok = on(Config, "a", {placement, undrain}, []),
    true = beamway_peer:wait_until(fun() -> Taints() =:= [gpu] end, 30000),
    %% A node has at most one drain at a time.
    Holds = run(Config, "a", fun() -> spawn(fun() -> true = register(placement_drain, self()), receive stop -> ok end end) end),
    true = beamway_peer:wait_until(fun() -> on(Config, "a", {erlang, whereis}, [placement_drain]) =:= Holds end, 30000),
    ?assertEqual({error, already_draining}, drain(Config, "a", #{})).

%% Drains nodes with the command `beamway drain'.
by_the_command(Config) ->
    Pid = child(Config, #{}),
    Name = name_of(Config, node(Pid)),
    Other = case Name of "a" -> "b"; _ -> "a" end,
    [_] = supervisors(Config, drain_here, one_for_one, [Name], [counter(here)]),
    Cookie = filename:join(proplists:get_value(priv_dir, Config), "cookie"),
    ok = file:write_file(Cookie, atom_to_list(on(Config, Name, {erlang, get_cookie}, []))),
    ok = file:change_mode(Cookie, 8#600),
    Shell = [{command, test_support:file("bin/beamway")}, {home, proplists:get_value(priv_dir, Config)}, {epmd_port, list_to_integer(os:getenv("ERL_EPMD_PORT", "4369"))} | Config],
    Run = fun(Node, Words) -> beamway_command:run(Shell, lists:join(" ", ["drain", atom_to_list(Node), "--cookie-file", Cookie | Words])) end,
    ok = on(Config, Other, {placement, undrain}, []),
    {1, Out, Err} = Run(node_of(Config, Name), ["--timeout", "2"]),
    ?assertMatch({match, _}, re:run(Out, "1 moved, 0 restarted elsewhere, 1 stayed, 0 lost"), Out),
    ?assertMatch({match, _}, re:run(Out, "stayed: process here of drain_here: no other connected node can take it"), Out),
    ?assertMatch({match, _}, re:run(Err, "1 of 2 moved"), Err),
    {0, Json, _} = Run(node_of(Config, Other), ["--json"]),
    ?assertMatch(#{<<"stayed">> := [], <<"lost">> := []}, jiffy:decode(Json, [return_maps])),
    {1, "", Down} = Run('nobody@127.0.0.1', []),
    ?assertMatch({match, _}, re:run(Down, "nobody"), Down),
    {2, "", Wrong} = Run(node_of(Config, Name), ["--timeout", "0"]),
    ?assertMatch({match, _}, re:run(Wrong, "expected seconds"), Wrong).

%% Moves an Elixir GenServer under a DynamicSupervisor, while it is called continuously.
elixir(Config) ->
    case os:find_executable("elixirc") of
        false -> {skip, "elixirc is not installed (elixir)"};
        Elixirc ->
            Folder = proplists:get_value(priv_dir, Config),
            Source = filename:join(Folder, "drain_counter.ex"),
            ok = file:write_file(Source, elixir_source()),
            "" = os:cmd(Elixirc ++ " -o '" ++ Folder ++ "' '" ++ Source ++ "'"),
            Library = string:trim(os:cmd("elixir -e 'IO.puts(:code.lib_dir(:elixir))'")),
            [begin
                 true = on(Config, Name, {code, add_patha}, [Path]),
                 ok
             end || Name <- ?NAMES, Path <- [Folder, filename:join(Library, "ebin")]],
            [run(Config, Name, fun() ->
                 {ok, _} = application:ensure_all_started(elixir),
                 {ok, Pid} = (elixir_supervisor()):start_link([{strategy, one_for_one}, {name, 'Elixir.Counters'}]),
                 true = unlink(Pid)
             end) || Name <- ["a", "b"]],
            Pids = run(Config, "a", fun() -> [element(2, {ok, _} = (elixir_supervisor()):start_child('Elixir.Counters', {'Elixir.DrainCounter', N})) || N <- [10, 20, 30]] end),
            Ask = fun() -> [on(Config, "d", {gen_server, call}, [Pid, next]) || Pid <- Pids] end,
            ?assertEqual([11, 21, 31], Ask()),
            ?assertMatch({ok, #{moved := 3, stayed := []}}, drain(Config, "a", #{})),
            ?assertEqual([12, 22, 32], Ask()),
            ?assertEqual(3, length([Pid || {_, Pid, _, _} <- on(Config, "b", {supervisor, which_children}, ['Elixir.Counters']), is_pid(Pid)])),
            ?assertEqual([12, 22, 32], lists:sort([on(Config, "b", {sys, get_state}, [Pid]) || {_, Pid, _, _} <- on(Config, "b", {supervisor, which_children}, ['Elixir.Counters'])]))
    end.

elixir_supervisor() -> list_to_atom("Elixir.DynamicSupervisor").

elixir_source() ->
    "defmodule DrainCounter do\n"
    "  use GenServer\n"
    "  def start_link(n), do: GenServer.start_link(__MODULE__, n)\n"
    "  @impl true\n"
    "  def init(n), do: {:ok, n}\n"
    "  @impl true\n"
    "  def handle_call(:next, _from, n), do: {:reply, n + 1, n + 1}\n"
    "  def placement_handoff(:leave, n, _info), do: {:ok, n}\n"
    "  def placement_handoff(:arrive, n, _info), do: {:ok, n}\n"
    "end\n".

%% Hands over the gen_statem's state name and data.
placement_handoff(leave, {StateName, Data}, _) -> {ok, {StateName, Data}};
placement_handoff(arrive, {StateName, Data}, #{state := {waiting, none}}) -> {ok, {StateName, Data}}.
