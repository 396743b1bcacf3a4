%% SPDX-License-Identifier: Apache-2.0
%% @doc Determines the Erlang nodes of a Slurm job step from Slurm's environment variables, which every task can do without
%% communication. All functions are pure.
%%
%% Every task is a node. Its name contains the job, the step and a number; the tasks of the step are numbered host by
%% host. With the block distribution that number is SLURM_PROCID. With any other distribution, all tasks compute it in
%% the same way from SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE, SLURMD_NODENAME and SLURM_LOCALID. The host part of a
%% name is Slurm's name of the host, which must resolve.
-module(placement_slurm_job).

-export([from_env/1, path/1, format_error/1]).

-export_type([job/0, error/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-type job() :: #{job := string(), step := string(), index := non_neg_integer(), name := node(), nodes := [node(), ...]}.
%% `nodes' contains all nodes of the step, including this one, in the order of their numbers.
-type error() :: {missing, Variable :: string()} | {bad_value, Variable :: string(), Value :: string(), Expected :: string()}.

%% @doc Returns the job that the variables describe, or `none' outside of a job step.
-spec from_env(fun((Variable :: string()) -> string() | false)) -> {ok, job()} | none | {error, error()}.
from_env(Getenv) ->
    case {Getenv("SLURM_JOB_ID"), Getenv("SLURM_STEP_ID")} of
        {Job, Step} when is_list(Job), is_list(Step) ->
            try {ok, described(Job, Step, Getenv)}
            catch throw:{slurm, Error} -> {error, Error}
            end;
        _ -> none
    end.

described(Job, Step, Getenv) ->
    _ = [number(Variable, Value) || {Variable, Value} <- [{"SLURM_JOB_ID", Job}, {"SLURM_STEP_ID", Step}]],
    Hosts = hosts(needed("SLURM_STEP_NODELIST", Getenv)),
    Counts = counts(needed("SLURM_STEP_TASKS_PER_NODE", Getenv)),
    length(Counts) =:= length(Hosts) orelse
        bad("SLURM_STEP_TASKS_PER_NODE", needed("SLURM_STEP_TASKS_PER_NODE", Getenv), io_lib:format("one count for each of ~b hosts", [length(Hosts)])),
    Own = needed("SLURMD_NODENAME", Getenv),
    Local = number("SLURM_LOCALID", needed("SLURM_LOCALID", Getenv)),
    Tasks = lists:append([[{Host, N} || N <- lists:seq(0, Count - 1)] || {Host, Count} <- lists:zip(Hosts, Counts)]),
    case [N || {N, Task} <- lists:enumerate(0, Tasks), Task =:= {Own, Local}] of
        [] -> bad("SLURMD_NODENAME", Own, io_lib:format("a host of ~ts with a task ~b", [needed("SLURM_STEP_NODELIST", Getenv), Local]));
        [Index | _] ->
            Nodes = [node_name(Job, Step, N, Host) || {N, {Host, _}} <- lists:enumerate(0, Tasks)],
            #{job => Job, step => Step, index => Index, name => lists:nth(Index + 1, Nodes), nodes => Nodes}
    end.

%% @doc Returns the groups that contain the tasks of a host according to SLURM_TOPOLOGY_ADDR, starting at the root of the
%% network: switches or blocks, and the host. If Slurm's topology plugin does not provide a path, the result is only the
%% host.
-spec path(fun((Variable :: string()) -> string() | false)) -> [string()].
path(Getenv) ->
    Host = [Name || [_ | _] = Name <- [Getenv("SLURMD_NODENAME")]],
    case {Getenv("SLURM_TOPOLOGY_ADDR"), Getenv("SLURM_TOPOLOGY_ADDR_PATTERN")} of
        {[_ | _] = Address, [_ | _] = Pattern} ->
            {Names, Kinds} = {string:split(Address, ".", all), string:split(Pattern, ".", all)},
            %% The host, which Slurm puts last, may itself contain dots.
            Groups = lists:sublist(Names, length([Kind || Kind <- Kinds, Kind =/= "node"])),
            [Name || Name <- Groups, Name =/= ""] ++ Host;
        _ -> Host
    end.

%% The number is part of the name because the hosts of a test may share one epmd.
node_name(Job, Step, Number, Host) -> list_to_atom(lists:flatten(io_lib:format("job~s-~s-~b@~s", [Job, Step, Number, Host]))).

needed(Variable, Getenv) ->
    case Getenv(Variable) of
        [_ | _] = Value -> Value;
        _ -> throw({slurm, {missing, Variable}})
    end.

-spec bad(string(), string(), iolist()) -> no_return().
bad(Variable, Value, Expected) -> throw({slurm, {bad_value, Variable, Value, lists:flatten(Expected)}}).

hosts(Text) ->
    case placement_hostlist:expand(Text) of
        {ok, [_ | _] = Hosts} -> Hosts;
        _ -> bad("SLURM_STEP_NODELIST", Text, "a list of hosts such as n[1-4]")
    end.

%% Parses a list of counts: 2(x3),1 means 2, 2, 2, 1.
counts(Text) -> lists:append([count(Word, Text) || Word <- string:lexemes(Text, ",")]).

count(Word, Text) ->
    case re:run(Word, "^([0-9]{1,6})(?:\\(x([0-9]{1,6})\\))?$", [{capture, all_but_first, list}]) of
        {match, [Count]} -> [list_to_integer(Count)];
        {match, [Count, Times]} -> lists:duplicate(list_to_integer(Times), list_to_integer(Count));
        nomatch -> bad("SLURM_STEP_TASKS_PER_NODE", Text, "counts such as 2(x3),1")
    end.

number(Variable, Text) ->
    case string:to_integer(Text) of
        {Number, ""} when Number >= 0 -> Number;
        _ -> bad(Variable, Text, "a number from 0")
    end.

%% @doc Formats an error as text for users.
-spec format_error(error()) -> unicode:chardata().
format_error({missing, Variable}) -> ["Slurm's variable ", Variable, " is not set, although SLURM_JOB_ID and SLURM_STEP_ID are; was this started by srun?"];
format_error({bad_value, Variable, Value, Expected}) -> io_lib:format("~ts is '~ts'; expected ~ts", [Variable, Value, Expected]).

-ifdef(TEST).

with(Changes) ->
    Usual = #{"SLURM_JOB_ID" => "7", "SLURM_STEP_ID" => "0", "SLURM_STEP_NODELIST" => "n[1-2],m4", "SLURM_STEP_TASKS_PER_NODE" => "2(x2),1",
              "SLURMD_NODENAME" => "n2", "SLURM_LOCALID" => "1"},
    All = maps:merge(Usual, Changes),
    from_env(fun(Variable) -> maps:get(Variable, All, false) end).

job_test() ->
    Nodes = ['job7-0-0@n1', 'job7-0-1@n1', 'job7-0-2@n2', 'job7-0-3@n2', 'job7-0-4@m4'],
    ?assertEqual({ok, #{job => "7", step => "0", index => 3, name => 'job7-0-3@n2', nodes => Nodes}}, with(#{})),
    ?assertMatch({ok, #{index := 4}}, with(#{"SLURMD_NODENAME" => "m4", "SLURM_LOCALID" => "0"})),
    ?assertMatch({ok, #{nodes := ['job7-0-0@n1']}},
                 with(#{"SLURM_STEP_NODELIST" => "n1", "SLURM_STEP_TASKS_PER_NODE" => "1", "SLURMD_NODENAME" => "n1", "SLURM_LOCALID" => "0"})).

path_test_() ->
    [?_assertEqual(Want, path(fun(Variable) -> maps:get(Variable, Env, false) end)) || {Want, Env} <-
        [{["top", "s1", "n2"], #{"SLURM_TOPOLOGY_ADDR" => "top.s1.n2", "SLURM_TOPOLOGY_ADDR_PATTERN" => "switch.switch.node", "SLURMD_NODENAME" => "n2"}},
         {["b1", "n2.example"], #{"SLURM_TOPOLOGY_ADDR" => "b1.n2.example", "SLURM_TOPOLOGY_ADDR_PATTERN" => "block.node", "SLURMD_NODENAME" => "n2.example"}},
         {["n2"], #{"SLURM_TOPOLOGY_ADDR" => "n2", "SLURM_TOPOLOGY_ADDR_PATTERN" => "node", "SLURMD_NODENAME" => "n2"}},
         {["n2"], #{"SLURMD_NODENAME" => "n2"}}, {[], #{}}]].

no_job_test_() -> [?_assertEqual(none, with(#{"SLURM_JOB_ID" => false})), ?_assertEqual(none, with(#{"SLURM_STEP_ID" => false}))].

wrong_test_() ->
    [?_assertMatch({error, {missing, "SLURM_LOCALID"}}, with(#{"SLURM_LOCALID" => false})),
     ?_assertMatch({error, {missing, "SLURM_STEP_NODELIST"}}, with(#{"SLURM_STEP_NODELIST" => ""}))
     | [?_assertMatch({error, {bad_value, Variable, _, _}}, with(#{Variable => Value}))
        || {Variable, Value} <- [{"SLURM_LOCALID", "x"}, {"SLURM_LOCALID", "-1"}, {"SLURM_JOB_ID", "7;"}, {"SLURM_STEP_NODELIST", "n[1-"}, {"SLURM_STEP_TASKS_PER_NODE", "2"},
                                 {"SLURM_STEP_TASKS_PER_NODE", "2(x2),y"}, {"SLURMD_NODENAME", "n3"}]]] ++
        [?_assertMatch({error, {bad_value, "SLURMD_NODENAME", "n2", _}}, with(#{"SLURM_LOCALID" => "2"}))].
-endif.
