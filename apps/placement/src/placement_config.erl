%% SPDX-License-Identifier: Apache-2.0
%% @doc The options of placement, from the application's environment.
%%
%% {@link placement_app} checks them when the application starts.
-module(placement_config).

-export([check/0, builtins/0, attributes/0, deadline_ms/0, limit_ms/0, group_memory_ms/0, drain_ms/0, topology/0, table/0]).

-define(DEADLINE_MS, 1000).
%% An attribute's function has a shorter time limit than a choice, so that a single slow function
%% does not make its whole node miss the deadline.
-define(LIMIT_MS, 500).
-define(GROUP_MEMORY_MS, 3600000).

%% @doc Checks the environment. The text names the first option that is unknown or has an invalid value.
-spec check() -> ok | {error, Text :: unicode:chardata()}.
check() ->
    Wrong = [io_lib:format("placement: ~tp = ~0tP is not valid; expected ~ts", [Name, Value, 10, Expected])
             || {Name, _, Expected, _, IsGood} <- options(), Value <- [value(Name)], not IsGood(Value)]
        ++ [io_lib:format("placement: the parameter ~ts is not known; expected one of ~ts", [Name, lists:join(", ", [atom_to_list(element(1, O)) || O <- options()])])
            || {Name, _} <- application:get_all_env(placement), Name =/= included_applications, not lists:keymember(Name, 1, options())],
    case Wrong of
        [Text | _] -> {error, Text};
        [] -> ok
    end.

%% For each option: its name, its default, the expected value, when a change takes effect, what the option does, and
%% whether a value is valid. Files and attributes are checked when they are read.
options() ->
    [{builtins, true, "true or false", {start, "Whether this node serves the built-in attributes."}, fun is_boolean/1},
     {attributes, none, "none or the name of a file", {start, "A file with attributes that this node serves."}, fun(_) -> true end},
     {path, none, "a list of names, from the root down", {start, "The declared place of this node in the network. With none it is derived from Slurm, or from region, zone and host."}, fun is_path/1},
     {topology, none, "none or declared", {start, "With `declared` the nodes that have this option publish a tree of their declared places whenever one of them connects or goes down. With none only your calls change the tree."}, fun(Value) -> Value =:= none orelse Value =:= declared end},
     {deadline, ?DEADLINE_MS, "milliseconds, at most 2147483647", {call, "Time limit of a choice, or of a question about a lease, that does not set one."}, fun is_ms/1},
     {limit, ?LIMIT_MS, "milliseconds, at most 2147483647", {entry, "Time limit of the function of an attribute whose entry does not set one."}, fun is_ms/1},
     {group_memory, ?GROUP_MEMORY_MS, "milliseconds, at most 2147483647", {time, "How long a node remembers a group that it has left, at least."}, fun is_ms/1},
     {drain_ms, 0, "milliseconds from 0, at most 2147483647", {start, "Time limit of the drain that moves processes to other nodes when `init:stop/0` or SIGTERM stops this one. 0 turns the drain off."}, fun(Value) -> Value =:= 0 orelse is_ms(Value) end}].

%% @doc Returns the rows for the reference of all options (`scripts/options').
-spec table() -> [{Option :: atom(), Default :: term(), Expected :: string(), TakesEffect :: string(), Effect :: string()}].
table() ->
    [{Name, Default, Expected, takes_effect(When), Effect} || {Name, Default, Expected, {When, Effect}, _} <- options()].

takes_effect(start) -> "start of the application";
takes_effect(entry) -> "next entry that is read or inserted";
takes_effect(time) -> "end of the time that runs";
takes_effect(call) -> "at once".

value(Name) ->
    {Name, Default, _, _, _} = lists:keyfind(Name, 1, options()),
    application:get_env(placement, Name, Default).

%% A process can wait for at most 2^32 - 1 ms, and checking a lease may take twice the deadline.
is_ms(Value) -> is_integer(Value) andalso Value > 0 andalso Value < 1 bsl 31.

%% A string such as "/site/rack1" is also a valid path; placement_tree splits it.
is_path(Value) -> Value =:= none orelse is_list(Value).

%% @doc Returns whether this node serves the built-in attributes.
-spec builtins() -> boolean().
builtins() -> value(builtins).

%% @doc Returns the file with the attributes that this node serves.
-spec attributes() -> none | file:name_all().
attributes() -> value(attributes).

%% @doc Returns the default time limit of a choice, or of a request for a lease, in milliseconds.
-spec deadline_ms() -> pos_integer().
deadline_ms() -> value(deadline).

%% @doc Returns the default time limit for an attribute's function, in milliseconds.
-spec limit_ms() -> pos_integer().
limit_ms() -> value(limit).

%% @doc Returns how often, in milliseconds, a node checks whether it may forget groups that it has left.
-spec group_memory_ms() -> pos_integer().
group_memory_ms() -> value(group_memory).

%% @doc Returns the time limit of the drain before this node stops, in milliseconds, or 0 if the
%% node does not drain.
-spec drain_ms() -> non_neg_integer().
drain_ms() -> value(drain_ms).

%% @doc Returns whether the tree is built from the declared places of the connected nodes ({@link placement_declared}).
-spec topology() -> none | declared.
topology() -> value(topology).
