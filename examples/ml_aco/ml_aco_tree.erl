%% SPDX-License-Identifier: Apache-2.0
%% @doc The processes of multi-level ant colony optimisation, on the nodes of a plan ({@link placement_plan}): a master, submasters, and colonies as
%% workers. Colonies search and report upwards, each submaster passes on the best result of its children, and the master sends the best of all results
%% back down.
%%
%% All processes run in rounds, and colonies are numbered in the order of their names in the plan, so the result does not depend on where processes
%% run. Every wait ends with an answer, with the exit of a child, or at the time limit; in the last two cases the whole run ends with an error.
-module(ml_aco_tree).

-export([run/3, start/4]).

-export_type([options/0]).

-type options() :: #{seed => integer(), ants => pos_integer(), search => none | local, rounds => pos_integer(), iterations => pos_integer(), limit_ms => pos_integer(),
                     progress => fun((Round :: non_neg_integer(), Cost :: number(), Ms :: non_neg_integer()) -> ok)}.

%% @doc Runs the search to its end. Returns the costs over time, each with its milliseconds from the start.
-spec run(placement_plan:process(), ml_aco_instance:instance(), options()) ->
          {ok, #{cost := number(), schedule := ml_aco_instance:schedule(), ms := non_neg_integer(), over_time := [{non_neg_integer(), number()}]}} | {error, term()}.
run({master, Node, Children}, Instance, Given) ->
    Options = maps:merge(#{seed => 1, ants => 10, search => none, rounds => 10, iterations => 5, limit_ms => 600000, progress => fun(_, _, _) -> ok end}, Given),
    {Numbered, _} = numbered(Children, 1),
    Caller = self(),
    Settings = maps:without([progress], Options),
    {Pid, Monitor} = spawn_opt(Node, ?MODULE, start, [{master, Numbered}, Instance, Settings, Caller], [monitor]),
    Start = erlang:monotonic_time(millisecond),
    await(Pid, Monitor, Options, Start, []).

%% Colonies are numbered from left to right.
numbered(Children, First) ->
    lists:mapfoldl(fun({worker, Node, []}, Number) -> {{worker, Node, Number}, Number + 1};
                      ({submaster, Node, Below}, Number) ->
                           {Numbered, Next} = numbered(Below, Number),
                           {{submaster, Node, Numbered}, Next}
                   end, First, Children).

await(Pid, Monitor, #{limit_ms := Limit, progress := Progress} = Options, Start, Costs) ->
    receive
        {Pid, Round, Cost} ->
            Ms = erlang:monotonic_time(millisecond) - Start,
            ok = Progress(Round, Cost, Ms),
            await(Pid, Monitor, Options, Start, [{Ms, Cost} | Costs]);
        {'DOWN', Monitor, process, Pid, {done, {Cost, Schedule}}} ->
            {ok, #{cost => Cost, schedule => Schedule, ms => erlang:monotonic_time(millisecond) - Start, over_time => lists:reverse(Costs)}};
        {'DOWN', Monitor, process, Pid, Reason} -> {error, Reason}
    after Limit ->
        exit(Pid, kill),
        {error, timeout}
    end.

%% @private A process of the tree, which exits together with the one above it.
-spec start(term(), ml_aco_instance:instance(), map(), pid()) -> no_return().
start(Role, Instance, Options, Above) ->
    Monitor = monitor(process, Above),
    role(Role, Instance, Options, {Above, Monitor}).

role({worker, Number}, Instance, #{seed := Seed, ants := Ants, search := Search} = Options, Above) ->
    colony(ml_aco_colony:new(Instance, Number, Seed, case Search of local -> {Ants, local}; none -> Ants end), Options, Above);
role({master, Children}, Instance, #{rounds := Rounds} = Options, {Caller, _} = Above) ->
    Below = started(Children, Instance, Options),
    Start = ml_aco_instance:earliest_due_date(Instance),
    Best = lists:foldl(fun(Round, Known) ->
                               Found = round(Below, Known, Options, Above),
                               Caller ! {self(), Round, element(1, Found)},
                               Found
                       end, {ml_aco_instance:cost(Instance, Start), Start}, lists:seq(1, Rounds)),
    exit({done, Best});
role({submaster, Children}, Instance, Options, Above) ->
    submaster(started(Children, Instance, Options), Options, Above).

started(Children, Instance, Options) ->
    [spawn_opt(Node, ?MODULE, start, [{Role, Below}, Instance, Options, self()], [monitor]) || {Role, Node, Below} <- Children].

submaster(Below, Options, {Parent, _} = Above) ->
    Parent ! {self(), round(Below, heard(Options, Above), Options, Above)},
    submaster(Below, Options, Above).

colony(Colony, #{iterations := Iterations} = Options, {Parent, _} = Above) ->
    Done = ml_aco_colony:run(Colony, heard(Options, Above), Iterations),
    Parent ! {self(), ml_aco_colony:best(Done)},
    colony(Done, Options, Above).

heard(#{limit_ms := Limit}, {Parent, Monitor}) ->
    receive
        {Parent, Best} -> Best;
        {'DOWN', Monitor, process, Parent, _} -> exit(normal)
    after Limit -> exit(timeout)
    end.

%% Sends the best known schedule down, and returns the best of it and the schedules that come back up.
round(Below, Known, Options, Above) ->
    _ = [Pid ! {self(), Known} || {Pid, _} <- Below],
    lists:min([Known | [answer(Child, Options, Above) || Child <- Below]]).

answer({Pid, Monitor}, #{limit_ms := Limit}, {Parent, ParentMonitor}) ->
    receive
        {Pid, Found} -> Found;
        {'DOWN', Monitor, process, Pid, Reason} -> exit({child, node(Pid), Reason});
        {'DOWN', ParentMonitor, process, Parent, _} -> exit(normal)
    after Limit -> exit({child, node(Pid), timeout})
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

plan(Shape) -> plan(Shape, node()).
plan(Shape, Node) -> {master, Node, [part(Part, Node) || Part <- Shape]}.
part(colony, Node) -> {worker, Node, []};
part(Parts, Node) -> {submaster, Node, [part(Part, Node) || Part <- Parts]}.

%% Whatever the shape of the tree, the same colonies find the same result.
shapes_test() ->
    Instance = ml_aco_instance:make(15, 2),
    Options = #{seed => 5, ants => 4, rounds => 3, iterations => 2},
    [One, Two, Three] = [begin {ok, #{cost := Cost, schedule := S}} = run(plan(Shape), Instance, Options), {Cost, S} end
                         || Shape <- [[colony, colony, colony], [[colony, colony], colony], [[[colony], colony], [colony]]]],
    ?assertEqual({One, One}, {Two, Three}).

%% The run in the README ends with a result that the README calls the optimum.
readme_test() ->
    Instance = ml_aco_instance:make(12, 1),
    {ok, #{cost := Cost}} = run(plan([colony, colony, colony]), Instance, #{ants => 20, rounds => 10, iterations => 5, search => local}),
    ?assertEqual(5853, Cost),
    ?assertEqual(5853, ml_aco_instance:optimum(Instance)).

over_time_test() ->
    {ok, #{over_time := Costs, cost := Last}} = run(plan([colony]), ml_aco_instance:make(12, 2), #{rounds => 4, iterations => 1, ants => 2}),
    ?assertEqual(4, length(Costs)),
    ?assertEqual(Last, element(2, lists:last(Costs))),
    ?assertEqual([Cost || {_, Cost} <- Costs], lists:reverse(lists:sort([Cost || {_, Cost} <- Costs]))).

a_node_that_is_not_there_test() ->
    ?assertMatch({error, _}, run(plan([colony], 'nobody@nowhere'), ml_aco_instance:make(5, 1), #{limit_ms => 5000})).
-endif.
