%% SPDX-License-Identifier: Apache-2.0
%% @doc Groups of nodes like the s_groups of the RELEASE project, on stock OTP. A node may be in several groups, each
%% group has its own name space, and members join and leave at run time.
%%
%% Every member stores the state of the whole group. Each entry has a stamp, and of two versions of an entry the one with
%% the greater stamp wins. So members that were disconnected agree again after they reconnect (at nodeup they send each
%% other the state of the groups that they share). Until then two members may give different answers, so use a lease or a
%% lock where that matters.
%%
%% A change is sent on its own, without the rest of the state. Every ten seconds a member compares a
%% digest of each group with one other member, and if the digests differ, both send their complete
%% state. A name is dropped when its process exits or when that process's node leaves the group.
%% Every member that is connected to that node monitors the process. If a name is unregistered while
%% its process is alive, the other members do not record the removal. The process's own node knows
%% about it, and removes the name from every member that still has it. A node remembers a group that
%% it has left for one to two hours (`group_memory' in the environment). If a member was
%% disconnected for longer than that, the group reappears when it reconnects.
%%
%% Only members of a group exchange messages about it, so this server does not connect nodes that have no group in
%% common. To keep such nodes unconnected, start them with `-connect_all false', or hidden, and with
%% `-kernel prevent_overlapping_partitions false'. `pg' and `global' do not work on such nodes, because they need all
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
%% In messages between members, the process `none' means that the name has been removed. Only nodes of release 0.2.0 and
%% older store such names.

-define(SERVER, ?MODULE).
-define(GROUPS, placement_groups). %% {group(), state_of_group()}; a group that this node has left stays in the table, with its stamps
-define(MEMBERS_MAX, 10000).
-define(CHECK_MS, 10000).
-define(NOTHING, #{members => #{}, names => #{}}).
-define(BEGAN, {?MODULE, began}).

-record(state, {clock :: non_neg_integer(),
                began :: non_neg_integer(), %% this node knows all names that it has registered since then
                watched = #{} :: #{{group(), Name :: term()} => reference()}, %% monitors
                buried = [] :: [buried()]}). %% the groups that this node had left by the time of the last check
-type buried() :: {group(), state_of_group()}.

%% @private Called by the supervisor.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?SERVER}, ?MODULE, [], []).

%% @doc Creates a group with these nodes, which must include this one.
-spec new_group(group(), [node()]) -> ok | {error, exists | not_a_member | {bad_nodes, string()}}.
new_group(Group, Nodes) -> changed(Nodes, {new, Group, Nodes}).

%% @doc Adds nodes to a group of which this node is a member.
-spec add_nodes(group(), [node()]) -> ok | {error, no_such_group | {bad_nodes, string()}}.
add_nodes(Group, Nodes) -> changed(Nodes, {add, Group, Nodes}).

%% @doc Removes nodes from a group of which this node is a member.
-spec remove_nodes(group(), [node()]) -> ok | {error, no_such_group | {bad_nodes, string()}}.
remove_nodes(Group, Nodes) -> changed(Nodes, {remove, Group, Nodes}).

changed(Nodes, Request) ->
    case is_list(Nodes) andalso Nodes =/= [] andalso lists:all(fun is_atom/1, Nodes) andalso length(Nodes) =< ?MEMBERS_MAX of
        true -> gen_server:call(?SERVER, Request);
        false -> {error, {bad_nodes, lists:flatten(io_lib:format("~0tP: expected a list of nodes", [Nodes, 12]))}}
    end.

%% @doc Removes all members, which deletes the group.
-spec delete_group(group()) -> ok | {error, no_such_group}.
delete_group(Group) -> gen_server:call(?SERVER, {delete, Group}).

%% @doc Returns the groups that this node is in.
-spec own_groups() -> [group()].
own_groups() -> lists:sort([Group || {Group, State} <- ets:tab2list(?GROUPS), is_in(node(), State)]).

%% @doc Returns all members of all groups that this node is in.
-spec own_nodes() -> [node()].
own_nodes() -> lists:usort(lists:append([own_nodes(Group) || Group <- own_groups()])).

%% @doc Returns the members of a group, or an empty list if this node is not in the group.
-spec own_nodes(group()) -> [node()].
own_nodes(Group) ->
    case members(Group) of
        {ok, Nodes} -> Nodes;
        {error, no_such_group} -> []
    end.

%% @doc Returns the members of a group, whether they are up or not.
-spec members(group()) -> {ok, [node()]} | {error, no_such_group}.
members(Group) ->
    Known = known(Group),
    case is_in(node(), Known) of
        true -> {ok, lists:sort(members_of(Known))};
        false -> {error, no_such_group}
    end.

%% @doc Registers a process on this node under a name in a group. Returns `no' if a live process is known to have the
%% name, or if this node is not in the group. If two processes are registered under the same name on members that are
%% not connected, one of them loses the name when the members reconnect, and receives
%% `{placement_group, Group, name_lost, Name}'.
-spec register_name(group(), Name :: term(), pid()) -> yes | no.
register_name(Group, Name, Pid) when node(Pid) =:= node() -> gen_server:call(?SERVER, {register, Group, Name, Pid}).

%% @doc Unregisters a name. This function calls the process's node; if that node is connected but does not answer within
%% five seconds, the caller exits as in `gen_server:call/2'.
-spec unregister_name(group(), Name :: term()) -> ok.
unregister_name(Group, Name) ->
    case whereis_name(Group, Name) of
        undefined -> ok;
        Pid ->
            Request = {unregister, Group, Name, Pid},
            _ = [unregister_there(node(Pid), Request) || node(Pid) =/= node()],
            gen_server:call(?SERVER, Request)
    end.

%% Nodes of release 0.2.0 and older do not support this request, and do not need it, because they store the names that
%% have been removed.
unregister_there(Node, Request) ->
    try gen_server:call({?SERVER, Node}, Request)
    catch exit:{{nodedown, _}, _} -> ok
    end.

%% @doc Returns the process that has a name in a group. A name on a node that is not connected counts as unregistered.
-spec whereis_name(group(), Name :: term()) -> pid() | undefined.
whereis_name(Group, Name) ->
    case known(Group) of
        #{names := #{Name := {_, Pid}}} when is_pid(Pid) ->
            case is_connected(Pid) of
                true -> Pid;
                false -> undefined
            end;
        _ -> undefined
    end.

is_connected(Pid) -> node(Pid) =:= node() orelse lists:member(node(Pid), nodes(connected)).

%% @doc Returns all names of a group.
-spec names(group()) -> [Name :: term()].
names(Group) ->
    #{names := Names} = known(Group),
    lists:sort(maps:keys(Names)).

%% @doc Sends a message to the process with a name in a group.
-spec send(group(), Name :: term(), Message :: term()) -> pid() | {badarg, {group(), term()}}.
send(Group, Name, Message) ->
    case whereis_name(Group, Name) of
        undefined -> {badarg, {Group, Name}};
        Pid ->
            Pid ! Message,
            Pid
    end.

known(Group) ->
    case ets:lookup(?GROUPS, Group) of
        [{_, State}] -> State;
        [] -> ?NOTHING
    end.

is_in(Node, #{members := Members}) -> said_of(Node, Members) =:= in.

%% Returns `in' or `out' for a node, the process of a name, or `none' if the key is unknown.
said_of(Key, Entries) ->
    case Entries of
        #{Key := {_, Said}} -> Said;
        _ -> none
    end.

%% @private
-spec init(term()) -> {ok, #state{}}.
init(_) ->
    ok = net_kernel:monitor_nodes(true, #{node_type => all}),
    All = ets:tab2list(?GROUPS),
    %% Messages that arrived while this server was not running are lost, so the other members are asked to send their
    %% state.
    _ = [send_to(Node, {sync, Group, State, node()}) || {Group, #{members := Members} = State} <- All, Node <- maps:keys(Members), Node =/= node()],
    _ = erlang:send_after(?CHECK_MS, self(), check),
    _ = erlang:send_after(placement_config:group_memory_ms(), self(), forget),
    %% The clock must be ahead of every stamp that this node sent before it was restarted and lost its table.
    Clock = lists:max([erlang:system_time(millisecond) | [Count || {_, State} <- All, {Count, _} <- stamps(State)]]),
    {ok, lists:foldl(fun({Group, State}, Acc) -> watching(Group, ?NOTHING, State, Acc) end, #state{clock = Clock, began = began(Clock)}, All)}.

%% Returns the initial clock of the first server that used the supervisor's current table.
began(Clock) ->
    Owner = ets:info(?GROUPS, owner),
    case persistent_term:get(?BEGAN, none) of
        {Owner, Count} -> Count;
        _ ->
            ok = persistent_term:put(?BEGAN, {Owner, Clock}),
            Clock
    end.

stamps(#{members := Members, names := Names}) -> [Stamp || {Stamp, _} <- maps:values(Members) ++ maps:values(Names)].

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call({new, Group, Nodes}, _, State) ->
    case {lists:member(node(), Nodes), members(Group)} of
        {false, _} -> {reply, {error, not_a_member}, State};
        {true, {ok, _}} -> {reply, {error, exists}, State};
        {true, {error, _}} ->
            {reply, ok, with_members(Group, Nodes, in, known(Group), State)}
    end;
handle_call({add, Group, Nodes}, _, State) -> in_group(Group, fun(Known) -> with_members(Group, Nodes, in, Known, State) end, State);
handle_call({remove, Group, Nodes}, _, State) -> in_group(Group, fun(Known) -> with_members(Group, Nodes, out, Known, State) end, State);
handle_call({delete, Group}, _, State) ->
    in_group(Group, fun(#{members := Members} = Known) -> with_members(Group, maps:keys(Members), out, Known, State) end, State);
handle_call({register, Group, Name, Pid}, _, State) ->
    case {members(Group), whereis_name(Group, Name)} of
        {{ok, _}, undefined} -> {reply, yes, with_name(Group, Name, Pid, State)};
        _ -> {reply, no, State}
    end;
handle_call({unregister, Group, Name, Pid}, _, State) ->
    case whereis_name(Group, Name) of
        Pid -> {reply, ok, with_name(Group, Name, none, State)};
        _ -> {reply, ok, State}
    end;
handle_call(Other, _, State) -> {reply, {error, {unknown_request, Other}}, State}.

in_group(Group, Fun, State) ->
    Known = known(Group),
    case is_in(node(), Known) of
        true -> {reply, ok, Fun(Known)};
        false -> {reply, {error, no_such_group}, State}
    end.

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast({merge, Group, #{members := _, names := _} = Other}, State) -> {noreply, merged(Group, Other, State)};
handle_cast({sync, Group, #{members := _, names := _} = Other, Node}, State) when is_atom(Node) ->
    New = merged(Group, Other, State),
    ok = tell([Node], Group, known(Group)),
    {noreply, New};
handle_cast({check, Group, Digest, Node}, State) when is_atom(Node) ->
    Known = known(Group),
    _ = digest(Known) =:= Digest orelse send_to(Node, {sync, Group, Known, node()}),
    {noreply, State};
handle_cast(_, State) -> {noreply, State}.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info({nodeup, Node, _}, State) ->
    All = ets:tab2list(?GROUPS),
    _ = [tell([Node], Group, Known) || {Group, #{members := Members} = Known} <- All, is_map_key(Node, Members)],
    {noreply, lists:foldl(fun({Group, Known}, Acc) -> watching(Group, ?NOTHING, Known, Acc) end, State, All)};
handle_info({{watched, Group, Name}, _, process, Pid, Reason}, #state{watched = Watched} = State) ->
    Left = State#state{watched = maps:remove({Group, Name}, Watched)},
    case {Reason, known(Group)} of
        %% The process may still be alive, and its node may even be connected again by now.
        {noconnection, _} -> {noreply, watched(Group, Name, Pid, Left)};
        %% Does not inform the other members, because each of them notices the exit itself.
        {_, #{names := #{Name := {_, Pid}} = Names} = Known} ->
            true = ets:insert(?GROUPS, {Group, Known#{names := maps:remove(Name, Names)}}),
            {noreply, Left};
        _ -> {noreply, Left}
    end;
handle_info(check, State) ->
    _ = erlang:send_after(?CHECK_MS, self(), check),
    _ = [send_to(lists:nth(rand:uniform(length(Others)), Others), {check, Group, digest(Known), node()})
         || {Group, #{members := Members} = Known} <- ets:tab2list(?GROUPS), is_in(node(), Known),
            Others <- [[Node || Node <- nodes(connected), is_map_key(Node, Members)]], Others =/= []],
    {noreply, State};
handle_info(forget, #state{buried = Before} = State) ->
    _ = erlang:send_after(placement_config:group_memory_ms(), self(), forget),
    Now = buried(ets:tab2list(?GROUPS)),
    Old = [Buried || Buried <- Before, lists:member(Buried, Now)],
    _ = [ets:delete(?GROUPS, Group) || {Group, _} <- Old],
    {noreply, State#state{buried = Now -- Old}};
handle_info(_, State) -> {noreply, State}.

%%% Changes

with_members(Group, Nodes, Word, Known, #state{clock = Clock} = State) ->
    Stamp = {Clock + 1, node()},
    Change = #{members => maps:from_list([{Node, {Stamp, Word}} || Node <- Nodes]), names => #{}},
    New = settled(merge(Known, Change)),
    Newcomers = [Node || Node <- Nodes, Word =:= in, not is_in(Node, Known)],
    ok = tell(Newcomers, Group, New),
    ok = tell(lists:usort(members_of(New) ++ Nodes) -- Newcomers, Group, Change),
    stored(Group, Known, New, State#state{clock = Clock + 1}).

with_name(Group, Name, Pid, #state{clock = Clock} = State) ->
    Change = #{members => #{}, names => #{Name => {{Clock + 1, node()}, Pid}}},
    Known = known(Group),
    New = settled(merge(Known, Change)),
    true = ets:insert(?GROUPS, {Group, New}),
    ok = tell(members_of(New), Group, Change),
    watching(Group, Known, New, State#state{clock = Clock + 1}).

merged(Group, Other, #state{clock = Clock} = State) ->
    Mine = known(Group),
    Taken = #{members => #{}, names => taken(Other, Mine, State)},
    New = settled(merge(Mine, merge(Other, Taken))),
    _ = [tell(members_of(New), Group, Taken) || maps:get(names, Taken) =/= #{}],
    Heard = State#state{clock = lists:max([Clock | [Count || {Count, _} <- stamps(Other)]])},
    %% This node is not in the group and has forgotten it, so there is nothing to keep.
    case Mine =:= ?NOTHING andalso not is_in(node(), New) of
        true -> Heard;
        false -> stored(Group, Mine, New, Heard)
    end.

stored(Group, #{names := Before} = Known, #{names := After} = New, State) ->
    true = ets:insert(?GROUPS, {Group, New}),
    _ = [Pid ! {placement_group, Group, name_lost, Name} || {Name, {_, Pid}} <- maps:to_list(Before), is_pid(Pid), node(Pid) =:= node(), said_of(Name, After) =/= Pid],
    watching(Group, Known, New, State).

members_of(#{members := Members}) -> [Node || {Node, {_, in}} <- maps:to_list(Members)].

-spec merge(state_of_group(), state_of_group()) -> state_of_group().
merge(#{members := Members, names := Names}, #{members := OtherMembers, names := OtherNames}) ->
    #{members => latest(Members, OtherMembers), names => latest(Names, OtherNames)}.

latest(One, Other) -> maps:merge_with(fun(_, A, B) -> later(A, B) end, One, Other).

%% If the stamps are equal, `none' wins, because it means that the node of the process has removed the name.
later({Stamp, none} = A, {Stamp, _}) -> A;
later({Stamp, _}, {Stamp, none} = B) -> B;
later(A, B) -> max(A, B).

%% Returns the names of processes on this node that have been removed here but that the other node still has.
taken(#{names := Names}, #{names := Mine} = Own, #state{began = Began}) ->
    case is_in(node(), Own) of
        true -> maps:from_list([{Name, {Stamp, none}} || {Name, {{Count, _} = Stamp, Pid}} <- maps:to_list(Names),
                                                         is_pid(Pid), node(Pid) =:= node(), Count > Began, is_older(maps:get(Name, Mine, none), Stamp)]);
        false -> #{}
    end.

is_older(none, _) -> true;
is_older({Mine, _}, Stamp) -> Mine < Stamp.

%% Drops removed names, and names on nodes that have left the group. If this node has left it, drops all names.
settled(#{members := Members, names := Names} = State) ->
    case is_in(node(), State) of
        true -> State#{names := maps:filter(fun(_, {_, Pid}) -> is_pid(Pid) andalso said_of(node(Pid), Members) =/= out end, Names)};
        false -> State#{names := #{}}
    end.

digest(#{members := Members, names := Names}) -> erlang:phash2({Members, Names}, 1 bsl 32).

%% Connects to nodes that are not connected. If the connection to a node is busy, the node gets the change when digests are
%% compared, or at nodeup.
tell(Nodes, Group, Known) ->
    _ = [erlang:send({?SERVER, Node}, {'$gen_cast', {merge, Group, Known}}, [nosuspend]) || Node <- Nodes, Node =/= node()],
    ok.

send_to(Node, Request) -> erlang:send({?SERVER, Node}, {'$gen_cast', Request}, [nosuspend, noconnect]).

%%% Processes

watching(Group, #{names := Before}, #{names := After}, State) ->
    Gone = [Name || {Name, {_, Pid}} <- maps:to_list(Before), is_pid(Pid), said_of(Name, After) =/= Pid],
    Come = [{Name, Pid} || {Name, {_, Pid}} <- maps:to_list(After), is_pid(Pid), said_of(Name, Before) =/= Pid],
    Left = lists:foldl(fun(Name, Acc) -> unwatched(Group, Name, Acc) end, State, Gone),
    lists:foldl(fun({Name, Pid}, Acc) -> watched(Group, Name, Pid, Acc) end, Left, Come).

watched(Group, Name, Pid, #state{watched = Watched} = State) ->
    %% Setting up a monitor would connect this node to the process's node.
    case not is_map_key({Group, Name}, Watched) andalso is_connected(Pid) of
        true -> State#state{watched = Watched#{{Group, Name} => monitor(process, Pid, [{tag, {watched, Group, Name}}])}};
        false -> State
    end.

unwatched(Group, Name, #state{watched = Watched} = State) ->
    case maps:take({Group, Name}, Watched) of
        {Monitor, Rest} ->
            true = demonitor(Monitor, [flush]),
            State#state{watched = Rest};
        error -> State
    end.

-spec buried([{group(), state_of_group()}]) -> [buried()].
buried(All) -> [Left || {_, Known} = Left <- All, not is_in(node(), Known)].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% All members agree, regardless of the order of the changes and of how often each arrives.
merge_test() ->
    A = #{members => #{a => {{1, a}, in}, b => {{1, a}, in}}, names => #{}},
    B = #{members => #{b => {{2, b}, out}}, names => #{n => {{3, b}, none}}},
    C = #{members => #{c => {{2, c}, in}}, names => #{n => {{2, c}, self()}}},
    Orders = [merge(merge(A, B), C), merge(A, merge(B, C)), merge(C, merge(B, A)), merge(merge(B, merge(A, B)), merge(C, A))],
    ?assertEqual(1, length(lists:usort(Orders))),
    ?assertMatch(#{members := #{a := {_, in}, b := {_, out}, c := {_, in}}, names := #{n := {_, none}}}, hd(Orders)).

settled_test() ->
    Here = node(),
    Group = #{members => #{Here => {{1, a}, in}, b => {{1, a}, in}}, names => #{n => {{2, a}, self()}}},
    ?assertEqual(Group, settled(Group)),
    ?assertEqual(Group, settled(merge(Group, #{members => #{}, names => #{gone => {{3, a}, none}}}))),
    ?assertMatch(#{names := Names} when map_size(Names) =:= 0, settled(merge(Group, #{members => #{Here => {{4, b}, out}}, names => #{}}))),
    ?assertNotEqual(digest(Group), digest(Group#{names := #{}})).

%% The node that registered a name rejects an outdated copy of it. It does not reject a name that it knows, a name from
%% before its table was created, or a name that another node registered.
taken_test() ->
    Here = node(),
    Group = fun(Names) -> #{members => #{Here => {{1, Here}, in}}, names => Names} end,
    Taken = fun(Theirs, Mine) -> taken(Group(Theirs), Group(Mine), #state{clock = 9, began = 4}) end,
    Given = fun(Count) -> {{Count, Here}, self()} end,
    ?assertEqual(#{n => {{5, Here}, none}}, Taken(#{n => Given(5)}, #{})),
    ?assertEqual(#{n => {{5, Here}, none}}, Taken(#{n => Given(5)}, #{n => {{3, b}, self()}})),
    [?assertEqual(#{}, Taken(#{n => Theirs}, Mine)) || {Theirs, Mine} <- [{Given(5), #{n => Given(5)}}, {Given(5), #{n => Given(6)}}, {Given(4), #{}}, {{{5, b}, none}, #{}}]],
    ?assertEqual(#{}, taken(Group(#{n => Given(5)}), ?NOTHING, #state{clock = 9, began = 4})),
    %% The name is removed in whichever order the two messages arrive, and a name that was registered later remains.
    [?assertEqual({{5, Here}, none}, later(A, B)) || {A, B} <- [{Given(5), {{5, Here}, none}}, {{{5, Here}, none}, Given(5)}]],
    ?assertEqual(Given(6), later(Given(6), {{5, Here}, none})).

buried_test() ->
    Here = node(),
    In = #{members => #{Here => {{1, a}, in}}, names => #{}},
    Out = #{members => #{Here => {{4, a}, out}}, names => #{}},
    ?assertEqual([{two, Out}], buried([{one, In}, {two, Out}])).
-endif.
