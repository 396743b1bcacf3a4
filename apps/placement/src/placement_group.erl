%% SPDX-License-Identifier: Apache-2.0
%% @doc Groups of nodes like the s_groups of the RELEASE project, on stock OTP: a node may be in several, each has a name space of its own,
%% and members come and go at run time.
%%
%% Every member keeps the whole group; each entry carries a stamp, and of two the greater stamp holds, so members that were apart agree again when they meet
%% (at nodeup they send each other the groups they share). Between them lies a moment in which two members may say different things: use a lease or a lock
%% where that matters. Only members of a group talk about it: nodes in no common group are not connected by this server. For that to hold, start nodes with
%% `-connect_all false', or hidden, and `-kernel prevent_overlapping_partitions false'; `pg' and `global' do not work on such nodes, since they want all
%% visible nodes to be connected.
-module(placement_group).
-behaviour(gen_server).

-export([start_link/0, new_group/2, add_nodes/2, remove_nodes/2, delete_group/1, own_groups/0, own_nodes/0, own_nodes/1, members/1,
         register_name/3, unregister_name/2, whereis_name/2, names/1, send/3]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([group/0]).

-type group() :: term().
-type stamp() :: {Count :: non_neg_integer(), node()}.
-type state_of_group() :: #{members := #{node() => {stamp(), in | out}}, names := #{term() => {stamp(), pid() | none}}}.

-define(SERVER, ?MODULE).
-define(GROUPS, placement_groups). %% {group(), state_of_group()}; a group that this node left stays, with its stamps
-define(MEMBERS_MAX, 10000).

-record(state, {clock = 0 :: non_neg_integer(),
                monitors = #{} :: #{reference() => {group(), term(), pid()}}}). %% of local processes that have a name

%% @doc Starts the server.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?SERVER}, ?MODULE, [], []).

%% @doc Makes a group of these nodes, of which this one must be one.
-spec new_group(group(), [node()]) -> ok | {error, exists | not_a_member | {bad_nodes, string()}}.
new_group(Group, Nodes) -> changed(Nodes, {new, Group, Nodes}).

%% @doc Adds nodes to a group that this node is in.
-spec add_nodes(group(), [node()]) -> ok | {error, no_such_group | {bad_nodes, string()}}.
add_nodes(Group, Nodes) -> changed(Nodes, {add, Group, Nodes}).

%% @doc Removes nodes from a group that this node is in.
-spec remove_nodes(group(), [node()]) -> ok | {error, no_such_group | {bad_nodes, string()}}.
remove_nodes(Group, Nodes) -> changed(Nodes, {remove, Group, Nodes}).

changed(Nodes, Request) ->
    case is_list(Nodes) andalso Nodes =/= [] andalso lists:all(fun is_atom/1, Nodes) andalso length(Nodes) =< ?MEMBERS_MAX of
        true -> gen_server:call(?SERVER, Request);
        false -> {error, {bad_nodes, lists:flatten(io_lib:format("~0tP: expected a list of nodes", [Nodes, 12]))}}
    end.

%% @doc Removes all members.
-spec delete_group(group()) -> ok | {error, no_such_group}.
delete_group(Group) -> gen_server:call(?SERVER, {delete, Group}).

%% @doc The groups that this node is in.
-spec own_groups() -> [group()].
own_groups() -> lists:sort([Group || {Group, State} <- ets:tab2list(?GROUPS), is_in(node(), State)]).

%% @doc All members of all groups that this node is in.
-spec own_nodes() -> [node()].
own_nodes() -> lists:usort(lists:append([own_nodes(Group) || Group <- own_groups()])).

%% @doc The members of a group that this node is in; none of another.
-spec own_nodes(group()) -> [node()].
own_nodes(Group) ->
    case members(Group) of
        {ok, Nodes} -> Nodes;
        {error, no_such_group} -> []
    end.

%% @doc The members of a group, whether they are up or not.
-spec members(group()) -> {ok, [node()]} | {error, no_such_group}.
members(Group) ->
    case lookup(Group) of
        {ok, #{members := Members} = State} ->
            case is_in(node(), State) of
                true -> {ok, lists:sort([Node || {Node, {_, in}} <- maps:to_list(Members)])};
                false -> {error, no_such_group}
            end;
        error -> {error, no_such_group}
    end.

%% @doc Gives a process of this node a name in a group; `no' if a living process is known to have it, or this node is not in the group.
%% Of two that get the same name on members that are apart, one loses it when they meet, and is sent `{placement_group, Group, name_lost, Name}'.
-spec register_name(group(), Name :: term(), pid()) -> yes | no.
register_name(Group, Name, Pid) when node(Pid) =:= node() -> gen_server:call(?SERVER, {register, Group, Name, Pid}).

%% @doc Takes a name back.
-spec unregister_name(group(), Name :: term()) -> ok.
unregister_name(Group, Name) -> gen_server:call(?SERVER, {unregister, Group, Name}).

%% @doc The process that has a name in a group; a node that is not connected has none.
-spec whereis_name(group(), Name :: term()) -> pid() | undefined.
whereis_name(Group, Name) ->
    case lookup(Group) of
        {ok, #{names := #{Name := {_, Pid}}}} when is_pid(Pid) ->
            case node(Pid) =:= node() orelse lists:member(node(Pid), nodes(connected)) of
                true -> Pid;
                false -> undefined
            end;
        _ -> undefined
    end.

%% @doc All names of a group.
-spec names(group()) -> [Name :: term()].
names(Group) ->
    case lookup(Group) of
        {ok, #{names := Names}} -> lists:sort([Name || {Name, {_, Pid}} <- maps:to_list(Names), Pid =/= none]);
        error -> []
    end.

%% @doc Sends to a name in a group.
-spec send(group(), Name :: term(), Message :: term()) -> pid() | {badarg, {group(), term()}}.
send(Group, Name, Message) ->
    case whereis_name(Group, Name) of
        undefined -> {badarg, {Group, Name}};
        Pid ->
            Pid ! Message,
            Pid
    end.

lookup(Group) ->
    case ets:lookup(?GROUPS, Group) of
        [{_, State}] -> {ok, State};
        [] -> error
    end.

is_in(Node, #{members := Members}) ->
    case Members of
        #{Node := {_, in}} -> true;
        _ -> false
    end.

%%% The server

%% @private
-spec init(term()) -> {ok, #state{}}.
init(_) ->
    ok = net_kernel:monitor_nodes(true, #{node_type => all}),
    All = ets:tab2list(?GROUPS),
    %% What was said while there was no server went to nobody: the other members say it again.
    _ = [erlang:send({?SERVER, Node}, {'$gen_cast', {sync, Group, State, node()}}, [nosuspend, noconnect])
         || {Group, #{members := Members} = State} <- All, Node <- maps:keys(Members), Node =/= node()],
    Named = [{monitor(process, Pid), {Group, Name, Pid}} || {Group, #{names := Names}} <- All, {Name, {_, Pid}} <- maps:to_list(Names), is_pid(Pid), node(Pid) =:= node()],
    {ok, #state{clock = lists:max([0 | [Count || {_, State} <- All, {Count, _} <- stamps(State)]]), monitors = maps:from_list(Named)}}.

stamps(#{members := Members, names := Names}) -> [Stamp || {Stamp, _} <- maps:values(Members) ++ maps:values(Names)].

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call({new, Group, Nodes}, _, State) ->
    case {lists:member(node(), Nodes), members(Group)} of
        {false, _} -> {reply, {error, not_a_member}, State};
        {true, {ok, _}} -> {reply, {error, exists}, State};
        {true, {error, _}} ->
            Old = case lookup(Group) of {ok, Left} -> Left; error -> #{members => #{}, names => #{}} end,
            {reply, ok, with_members(Group, Nodes, in, Old, State)}
    end;
handle_call({add, Group, Nodes}, _, State) -> in_group(Group, fun(Known) -> with_members(Group, Nodes, in, Known, State) end, State);
handle_call({remove, Group, Nodes}, _, State) -> in_group(Group, fun(Known) -> with_members(Group, Nodes, out, Known, State) end, State);
handle_call({delete, Group}, _, State) ->
    in_group(Group, fun(#{members := Members} = Known) -> with_members(Group, maps:keys(Members), out, Known, State) end, State);
handle_call({register, Group, Name, Pid}, _, #state{monitors = Monitors} = State) ->
    case {members(Group), whereis_name(Group, Name)} of
        {{ok, _}, undefined} ->
            New = with_name(Group, Name, Pid, State#state{monitors = Monitors#{monitor(process, Pid) => {Group, Name, Pid}}}),
            {reply, yes, New};
        _ -> {reply, no, State}
    end;
handle_call({unregister, Group, Name}, _, State) ->
    case whereis_name(Group, Name) of
        undefined -> {reply, ok, State};
        Pid -> {reply, ok, with_name(Group, Name, none, unmonitored(Group, Name, Pid, State))}
    end;
handle_call(Other, _, State) ->
    {reply, {error, {unknown_request, Other}}, State}.

in_group(Group, Fun, State) ->
    case {members(Group), lookup(Group)} of
        {{ok, _}, {ok, Known}} -> {reply, ok, Fun(Known)};
        _ -> {reply, {error, no_such_group}, State}
    end.

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast({merge, Group, #{members := _, names := _} = Other}, State) -> {noreply, merged(Group, Other, State)};
handle_cast({sync, Group, #{members := _, names := _} = Other, Node}, State) when is_atom(Node) ->
    New = merged(Group, Other, State),
    {ok, Known} = lookup(Group),
    ok = tell([Node], Group, Known),
    {noreply, New};
handle_cast(_, State) -> {noreply, State}.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info({nodeup, Node, _}, State) ->
    _ = [tell([Node], Group, Known) || {Group, #{members := Members} = Known} <- ets:tab2list(?GROUPS), is_map_key(Node, Members)],
    {noreply, State};
handle_info({'DOWN', Monitor, process, _, _}, #state{monitors = Monitors} = State) ->
    case maps:take(Monitor, Monitors) of
        {{Group, Name, Pid}, Rest} ->
            case lookup(Group) of
                {ok, #{names := #{Name := {_, Pid}}}} -> {noreply, with_name(Group, Name, none, State#state{monitors = Rest})};
                _ -> {noreply, State#state{monitors = Rest}}
            end;
        error -> {noreply, State}
    end;
handle_info(_, State) -> {noreply, State}.

with_members(Group, Nodes, Word, #{members := Members} = Known, #state{clock = Clock} = State) ->
    Stamp = {Clock + 1, node()},
    New = Known#{members := maps:merge(Members, maps:from_list([{Node, {Stamp, Word}} || Node <- Nodes]))},
    true = ets:insert(?GROUPS, {Group, New}),
    tell(maps:keys(maps:get(members, New)), Group, New),
    State#state{clock = Clock + 1}.

with_name(Group, Name, Pid, #state{clock = Clock} = State) ->
    {ok, #{members := Members, names := Names} = Known} = lookup(Group),
    New = Known#{names := Names#{Name => {{Clock + 1, node()}, Pid}}},
    true = ets:insert(?GROUPS, {Group, New}),
    %% Those that left need not know of names.
    tell([Node || {Node, {_, in}} <- maps:to_list(Members)], Group, New),
    State#state{clock = Clock + 1}.

%% To a node that is not connected this connects; one whose connection is busy hears of it at the next change or nodeup.
tell(Nodes, Group, Known) ->
    _ = [erlang:send({?SERVER, Node}, {'$gen_cast', {merge, Group, Known}}, [nosuspend]) || Node <- Nodes, Node =/= node()],
    ok.

unmonitored(Group, Name, Pid, #state{monitors = Monitors} = State) ->
    Kept = maps:filter(fun(Monitor, Of) when Of =:= {Group, Name, Pid} -> not demonitor(Monitor, [flush]);
                          (_, _) -> true
                       end, Monitors),
    State#state{monitors = Kept}.

merged(Group, Other, #state{clock = Clock} = State) ->
    Mine = case lookup(Group) of {ok, Known} -> Known; error -> #{members => #{}, names => #{}} end,
    New = merge(Mine, Other),
    true = ets:insert(?GROUPS, {Group, New}),
    Lost = [{Name, Pid} || {Name, {_, Pid}} <- maps:to_list(maps:get(names, Mine)), is_pid(Pid), node(Pid) =:= node(),
                           element(2, maps:get(Name, maps:get(names, New))) =/= Pid],
    _ = [Pid ! {placement_group, Group, name_lost, Name} || {Name, Pid} <- Lost],
    lists:foldl(fun({Name, Pid}, Acc) -> unmonitored(Group, Name, Pid, Acc) end,
                State#state{clock = lists:max([Clock | [Count || {Count, _} <- stamps(New)]])}, Lost).

-spec merge(state_of_group(), state_of_group()) -> state_of_group().
merge(#{members := Members, names := Names}, #{members := OtherMembers, names := OtherNames}) ->
    #{members => latest(Members, OtherMembers), names => latest(Names, OtherNames)}.

latest(One, Other) -> maps:merge_with(fun(_, A, B) -> max(A, B) end, One, Other).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% Whatever the order in which changes arrive, and however often, all members agree.
merge_test() ->
    A = #{members => #{a => {{1, a}, in}, b => {{1, a}, in}}, names => #{}},
    B = #{members => #{b => {{2, b}, out}}, names => #{n => {{3, b}, none}}},
    C = #{members => #{c => {{2, c}, in}}, names => #{n => {{2, c}, self()}}},
    Orders = [merge(merge(A, B), C), merge(A, merge(B, C)), merge(C, merge(B, A)), merge(merge(B, merge(A, B)), merge(C, A))],
    ?assertEqual(1, length(lists:usort(Orders))),
    ?assertMatch(#{members := #{a := {_, in}, b := {_, out}, c := {_, in}}, names := #{n := {_, none}}}, hd(Orders)).
-endif.
