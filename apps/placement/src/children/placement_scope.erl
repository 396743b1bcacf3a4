%% SPDX-License-Identifier: Apache-2.0
%% @doc Children that exist only once, with the API of a supervisor that spans nodes: the functions that start, list,
%% count and terminate them have the return values of {@link //stdlib/supervisor}. Called by {@link placement}.
%%
%% A scope can be any term. Its child `Id' is registered as `{Scope, Id}' ({@link placement_child}). A scope has no process
%% of its own.
-module(placement_scope).

-export([start_child/2, which_children/1, count_children/1, terminate_child/2]).

-export_type([child_spec/0, member/0]).

-type child_spec() :: #{id := term(), start := {module(), atom(), [term()]}, restart => placement_child:restart(), shutdown => placement_child:shutdown(), type => worker | supervisor,
                        modules => [module()] | dynamic, query => placement_query:query(), nodes => [node(), ...], grace => pos_integer(), voters => pos_integer(),
                        replace_after => pos_integer(), settle => pos_integer()}
                    | {Id :: term(), {module(), atom(), [term()]}, placement_child:restart(), placement_child:shutdown(), worker | supervisor, [module()] | dynamic}.
-type member() :: {Scope :: term(), Id :: term(), worker | supervisor, [module()] | dynamic}.

%% @doc Starts a child. `query' determines where it may run. Keys that a supervisor's child
%% specification does not have are options of {@link placement:child/3}.
-spec start_child(Scope :: term(), child_spec()) ->
          {ok, pid()} | {error, {already_started, pid()} | {missing, id | start} | {bad_option, atom(), term()} | {bad_query, string()} | no_majority | not_started}.
start_child(Scope, {Id, Start, Restart, Shutdown, Type, Modules}) -> start_child(Scope, #{id => Id, start => Start, restart => Restart, shutdown => Shutdown, type => Type, modules => Modules});
start_child(Scope, #{id := Id, start := {Module, Function, Arguments} = Start} = Spec) when is_atom(Module), is_atom(Function), is_list(Arguments) ->
    case {maps:get(type, Spec, worker), maps:get(modules, Spec, [Module])} of
        {Type, _} when Type =/= worker, Type =/= supervisor -> {error, {bad_option, type, Type}};
        {_, Modules} when not is_list(Modules), Modules =/= dynamic -> {error, {bad_option, modules, Modules}};
        {Type, Modules} ->
            Options = maps:without([id, start, type, modules, query], Spec),
            case placement_child:start(maps:get(query, Spec, []), Start, Options#{name => {Scope, Id}, scope => {Scope, Id, Type, Modules}}) of
                {error, {exists, Pid}} -> {error, {already_started, Pid}};
                Result -> Result
            end
    end;
start_child(_, #{id := _, start := Start}) -> {error, {bad_option, start, Start}};
start_child(_, #{id := _}) -> {error, {missing, start}};
start_child(_, #{}) -> {error, {missing, id}}.

%% @doc Returns the children that this node knows about.
-spec which_children(Scope :: term()) -> [{Id :: term(), pid() | restarting, worker | supervisor, [module()] | dynamic}].
which_children(Scope) ->
    [{Id, case Pid of none -> restarting; _ -> Pid end, Type, Modules} || {#{scope := {Of, Id, Type, Modules}}, _, Pid} <- placement_child:known(), Of =:= Scope].

%% @doc Returns the number of children, and how many of them are running.
-spec count_children(Scope :: term()) -> [{specs | active | supervisors | workers, non_neg_integer()}].
count_children(Scope) ->
    Children = which_children(Scope),
    [{specs, length(Children)}, {active, length([Pid || {_, Pid, _, _} <- Children, is_pid(Pid)])},
     {supervisors, length([Id || {Id, _, supervisor, _} <- Children])}, {workers, length([Id || {Id, _, worker, _} <- Children])}].

%% @doc Permanently terminates a child, as Elixir's DynamicSupervisor does. Call this function on one of the child's nodes.
-spec terminate_child(Scope :: term(), Id :: term()) -> ok | {error, not_found | no_majority}.
terminate_child(Scope, Id) ->
    case placement_child:delete({Scope, Id}) of
        {error, no_such_child} -> {error, not_found};
        Result -> Result
    end.
