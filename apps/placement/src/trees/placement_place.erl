%% SPDX-License-Identifier: Apache-2.0
%% @doc Reports a node's place in the network, and builds a tree from the reports of several nodes, without measurements
%% and without a topology file.
%%
%% The place comes from the first of these sources that is available: `path' in the application's environment; Slurm
%% ({@link placement_slurm_job:path/1}); the region and zone in the cloud. Region and zone are read from the environment
%% variables `PLACEMENT_REGION', `PLACEMENT_ZONE' and `PLACEMENT_HOST', or from a file of labels in the format of
%% Kubernetes' downward API (`PLACEMENT_LABELS', by default `/etc/podinfo/labels'). If hwloc's lstopo-no-graphics is
%% installed, the part of the machine to which `taskset' or Slurm binds the node is appended to the path from Slurm or the
%% cloud.
-module(placement_place).

-export([own_path/0, allowed_units/0, region/0, zone/0, tree/1]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-define(LABELS, "/etc/podinfo/labels").
-define(LABELS_BYTES, 262144).   %% Kubernetes' limit for all labels and annotations of an object
-define(ASK_MS, 5000).

-define(LSTOPO_MS, 2000).

%% @doc Returns the groups that contain this node, from the root to its host and the part to which the node is bound.
-spec own_path() -> [term()].
own_path() ->
    case application:get_env(placement, path) of
        {ok, [_ | _] = Path} -> Path;
        _ ->
            {ok, Host} = inet:gethostname(),
            path(fun os:getenv/1, labels(), Host) ++ bound()
    end.

%% If the node may run on all processors, lstopo is not run.
bound() ->
    case {allowed_units(), units("/sys/devices/system/cpu/online", "^(\\S+)")} of
        {[_ | _] = Allowed, Online} when Allowed =/= Online -> inside(os:find_executable("lstopo-no-graphics"), Allowed);
        _ -> []
    end.

inside(false, _) -> [];
inside(Program, Units) ->
    %% In a cgroup that has only some of the processors, lstopo would by default show only these, as if they were the
    %% whole machine.
    case placement_program:run(Program, ["--whole-system", "--of", "xml", "-"], ?LSTOPO_MS) of
        {ok, Xml} ->
            case placement_hwloc:from_xml(Xml) of
                {ok, Machine} -> placement_hwloc:path(Machine, Units);
                {error, _} -> []
            end;
        {error, _} -> []
    end.

%% @doc Returns Linux's numbers for the processing units that this VM may use, or an empty list if they are unknown.
-spec allowed_units() -> [non_neg_integer()].
allowed_units() -> units("/proc/self/status", "(?m)^Cpus_allowed_list:\\s*(\\S+)").

units(File, Pattern) ->
    case file:read_file(File) of
        {ok, Text} -> listed(re:run(Text, Pattern, [{capture, all_but_first, list}]));
        {error, _} -> []
    end.

%% Parses a set in the form that Linux uses, such as 0-3,8.
listed({match, [List]}) ->
    {ok, Numbers} = placement_hostlist:expand("[" ++ List ++ "]"),
    [list_to_integer(Number) || Number <- Numbers];
listed(nomatch) -> [].

path(Getenv, Labels, Host) ->
    case placement_slurm_job:path(Getenv) of
        [] -> [Name || Name <- [label(region, Getenv, Labels), label(zone, Getenv, Labels)], Name =/= unknown] ++ [named("PLACEMENT_HOST", Getenv, Host)];
        Path -> Path
    end.

%% @doc Returns the cloud region of this node. Fails if it is unknown.
-spec region() -> string().
region() -> own(region).

%% @doc Returns the cloud zone of this node. Fails if it is unknown.
-spec zone() -> string().
zone() -> own(zone).

own(Kind) -> [_ | _] = label(Kind, fun os:getenv/1, labels()).

label(region, Getenv, Labels) -> named("PLACEMENT_REGION", Getenv, labelled("topology\\.kubernetes\\.io/region", Labels));
label(zone, Getenv, Labels) -> named("PLACEMENT_ZONE", Getenv, labelled("topology\\.kubernetes\\.io/zone", Labels)).

named(Variable, Getenv, Default) ->
    case Getenv(Variable) of
        [_ | _] = Name -> Name;
        _ -> Default
    end.

%% A line has the form `key="value"' with Go's escapes. Label values contain only letters, digits, dots, dashes and
%% underscores.
labelled(Key, Labels) ->
    case re:run(Labels, ["(?m)^", Key, "=\"([A-Za-z0-9._-]+)\"$"], [{capture, all_but_first, list}]) of
        {match, [Value]} -> Value;
        nomatch -> unknown
    end.

labels() ->
    case file:open(os:getenv("PLACEMENT_LABELS", ?LABELS), [read, raw, binary]) of
        {ok, Io} ->
            try file:read(Io, ?LABELS_BYTES) of
                {ok, Text} -> Text;
                _ -> <<>>
            after file:close(Io)
            end;
        {error, _} -> <<>>
    end.

%% @doc Builds the tree from the places that these nodes report. The error `no_place' contains the nodes that did not
%% answer within five seconds, or on which placement is not installed.
-spec tree([node(), ...]) -> {ok, placement_tree:tree()} | {error, {no_place, [node(), ...]} | placement_tree:error()}.
tree(Nodes) -> declared(lists:zip(Nodes, erpc:multicall(Nodes, ?MODULE, own_path, [], ?ASK_MS))).

declared(Answers) ->
    case [Node || {Node, Answer} <- Answers, element(1, Answer) =/= ok] of
        [] -> placement_tree:from_paths([{Node, Path} || {Node, {ok, Path}} <- Answers]);
        Silent -> {error, {no_place, Silent}}
    end.

-ifdef(TEST).

listed_test_() -> [?_assertEqual(Want, listed(Found)) || {Want, Found} <- [{[0, 1, 2, 3, 8], {match, ["0-3,8"]}}, {[7], {match, ["7"]}}, {[], nomatch}]].

path_test_() ->
    Labels = <<"app=\"web\"\ntopology.kubernetes.io/region=\"eu-1\"\ntopology.kubernetes.io/zone=\"eu-1a\"\nxtopology.kubernetes.io/zone=\"no\"">>,
    [?_assertEqual(Want, path(fun(Variable) -> maps:get(Variable, Env, false) end, Text, "pod7"))
     || {Want, Text, Env} <- [{["eu-1", "eu-1a", "pod7"], Labels, #{}},
                              {["eu-1", "b", "vm3"], Labels, #{"PLACEMENT_ZONE" => "b", "PLACEMENT_HOST" => "vm3"}},
                              {["a", "pod7"], <<"topology.kubernetes.io/zone=\"\"">>, #{"PLACEMENT_REGION" => "a", "PLACEMENT_ZONE" => ""}},
                              {["pod7"], <<>>, #{}},
                              {["n2"], Labels, #{"SLURMD_NODENAME" => "n2"}}]].

declared_test() ->
    {ok, Tree} = declared([{a, {ok, ["top", "s0", "n1"]}}, {b, {ok, ["top", "s0", "n1"]}}, {c, {ok, ["top", "s0", "n2"]}}, {d, {ok, ["top", "s1", "n3"]}}]),
    ?assertEqual([{ok, 0.25}, {ok, 0.5}, {ok, 1.0}], [placement_tree:distance(Tree, a, Node) || Node <- [b, c, d]]),
    ?assertEqual({error, {no_place, [b]}}, declared([{a, {ok, []}}, {b, {error, {erpc, noconnection}}}])).
-endif.
