%% SPDX-License-Identifier: Apache-2.0
%% @doc Reads the children of a supervisor and starts them on another node, for OTP's `supervisor' and Elixir's
%% `DynamicSupervisor'.
%%
%% The arguments of the children of `simple_one_for_one' supervisors and of DynamicSupervisor are available only in the
%% supervisor's state, so this module depends on the format of that state.
-module(placement_supervisor).

-export([children/1, start_child/2, remove/2, retire/2]).

-export_type([child/0]).

%% How to start the child on another node. `extra': the arguments of this child of a `simple_one_for_one' supervisor that
%% are not in the child specification.
-type child() :: #{id := term(), spec | dynamic => supervisor:child_spec(), extra => [term()], refused => term(), atom() => term()}.
%% The map has exactly one of the keys `spec', `dynamic', `extra' and `refused'.

-define(CALL_MS, 5000).

%% @doc Returns the running children, by pid.
-spec children(atom()) -> {ok, #{pid() => child()}} | {error, term()}.
children(Name) ->
    try sys:get_state(Name, ?CALL_MS) of
        %% DynamicSupervisor: {{Module, Function, Arguments | :undefined}, Restart, Shutdown, Type, Modules} by pid.
        #{'__struct__' := 'Elixir.DynamicSupervisor', children := Children} -> {ok, maps:map(fun(_, Child) -> dynamic(Name, Child) end, pids(Children))};
        State when element(1, State) =:= state, element(3, State) =:= simple_one_for_one -> {ok, simple(Name, element(5, State))};
        State when element(1, State) =:= state, element(3, State) =:= one_for_one -> {ok, ordinary(Name)};
        State when element(1, State) =:= state, is_atom(element(3, State)) -> {error, {supervisor, Name, element(3, State)}};
        _ -> {error, no_supervisor}
    catch
        %% The supervisor, or one of its children, has exited in the meantime.
        _:_ -> {error, no_supervisor}
    end.

%% The key of a child that is being restarted is not a pid.
pids(Children) -> maps:filter(fun(Pid, _) -> is_pid(Pid) end, Children).

dynamic(Name, {{Module, Function, undefined}, _, _, _, _}) -> #{id => {Module, Function}, refused => {no_arguments, Name}};
dynamic(_, {{Module, Function, Arguments}, Restart, Shutdown, Type, Modules}) ->
    #{id => {Module, Function}, dynamic => #{id => Module, start => {Module, Function, Arguments}, restart => Restart, shutdown => Shutdown, type => Type, modules => Modules}}.

%% A supervisor stores only the pids of its temporary children.
simple(Name, {maps, Children}) -> maps:map(fun(Pid, Arguments) -> #{id => undefined, extra => lists:nthtail(common(Name, Pid), Arguments)} end, pids(Children));
simple(Name, {mapsets, Children}) -> maps:from_list([{Pid, #{id => undefined, refused => {no_arguments, Name}}} || Pid <- maps:keys(Children)]);
simple(_, _) -> #{}.

%% Returns the number of arguments that all children have in common.
common(Name, Pid) ->
    {ok, #{start := {_, _, Arguments}}} = supervisor:get_childspec(Name, Pid),
    length(Arguments).

ordinary(Name) ->
    maps:from_list([{Pid, #{id => Id, spec => Spec}} || {Id, Pid, _, _} <- supervisor:which_children(Name), is_pid(Pid), {ok, Spec} <- [supervisor:get_childspec(Name, Id)]]).

%% @doc Starts the child under the supervisor with the same name on this node, replacing a child
%% with the same id that is not running.
-spec start_child(atom(), child()) -> {ok, pid()} | {error, term()}.
start_child(Name, #{extra := Extra}) -> started(catch supervisor:start_child(Name, Extra));
start_child(Name, #{dynamic := Spec}) -> started(catch (module_of(dynamic)):start_child(Name, Spec));
start_child(Name, #{id := Id, spec := Spec}) ->
    case started(catch supervisor:start_child(Name, Spec)) of
        {error, already_present} ->
            _ = supervisor:delete_child(Name, Id),
            started(catch supervisor:start_child(Name, Spec));
        Result -> Result
    end.

%% Elixir is installed on every node that runs such a supervisor.
module_of(dynamic) -> list_to_atom("Elixir.DynamicSupervisor").

started({ok, Pid}) when is_pid(Pid) -> {ok, Pid};
started({ok, Pid, _}) when is_pid(Pid) -> {ok, Pid};
started({error, Reason}) -> {error, Reason};
started(Other) -> {error, Other}.

%% @doc Terminates a child and removes its specification, as if it had never been started.
-spec remove(atom(), pid()) -> ok.
remove(Name, Pid) ->
    _ = case id(Name, Pid) of
            {ok, Pid} -> supervisor:terminate_child(Name, Pid);
            {ok, Id} -> _ = supervisor:terminate_child(Name, Id), supervisor:delete_child(Name, Id);
            none -> ok
        end,
    ok.

%% @doc Terminates the old process of a move whose new process has exited, so that its supervisor does not restart it.
-spec retire(atom() | pid(), pid()) -> ok.
retire(Name, Pid) ->
    Ended = case id(Name, Pid) of
                {ok, Id} -> supervisor:terminate_child(Name, Id);
                none -> {error, not_found}
            end,
    _ = Ended =:= ok orelse exit(Pid, kill),
    ok.

%% DynamicSupervisor and simple_one_for_one identify their children by pid. DynamicSupervisor handles the same requests
%% as supervisor.
id(Name, Pid) ->
    try [Id || {Id, Child, _, _} <- supervisor:which_children(Name), Child =:= Pid] of
        [undefined] -> {ok, Pid};
        [Id] -> {ok, Id};
        [] -> none
    catch
        exit:_ -> none
    end.
