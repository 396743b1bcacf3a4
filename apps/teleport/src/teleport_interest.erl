%% SPDX-License-Identifier: Apache-2.0
%% @doc Holds what one node knows about which nodes have members of which groups. {@link teleport_listeners} sends,
%% receives and calls this module, which has no processes.
%%
%% A node tells its peers for which groups it has members, but neither how many nor which ones. A group is represented
%% by a hash of four bytes. If two groups have the same hash, a broadcast to one of them also reaches some nodes
%% without members.
%%
%% Each node asks each peer one question when they connect. The answer, `all', contains the peer's groups, and each
%% later `change' follows it in order. Until the answer has arrived, the node does not know what the peer has, so
%% {@link nodes/3} returns the peer as unsure, and broadcasts are sent there as well. If a peer has no room for a
%% change, it gets all groups again as soon as it has room.
%%
%% So a broadcast leaves out a peer with members only while the news of the first of them is under way, as with `pg',
%% or waits for room.
%%
%% The table is an ordered set with the rows `{{member, Hash, Pid, Group}}' and `{{own, Hash}}' for this node,
%% `{{node, Hash, Node}}', and `{known, Nodes}'. One process writes it, and any process reads it. A known node's row
%% is never missing, not even for a moment, unless the peer has reported that its last member is gone. That is so
%% because `known' is written after a node's first rows and read before them.
-module(teleport_interest).

-export([new/2, join/3, leave/3, members/2, nodes/3, known_nodes/2]).
-export([asking/3, asked/5, all/4, change/4, unanswered/4, gone/2, flush/2, is_changed/1, is_behind/1]).
-export_type([state/0, message/0, send/0]).

-type hash() :: 0..16#FFFFFFFF.
-type hashes() :: binary().
%% Hashes of 32 bits each.
-type message() :: {all, node(), Question :: reference(), hashes()} | {change, node(), Joined :: hashes(), Left :: hashes()}.
-type send() :: fun((pid(), message()) -> boolean()).
%% Returns whether there was room for the message.

-record(interest, {table :: ets:table(),
                   node :: node(),
                   %% groups that have got their first member or lost their last one since the last flush
                   changed = #{} :: #{hash() => []},
                   %% the question to each peer, and whether the table has rows for it
                   questions = #{} :: #{node() => {reference(), HasRows :: boolean()}},
                   %% peers that have asked; those that are `behind' have missed a change or have no answer yet
                   told = #{} :: #{node() => {pid(), Question :: reference(), current | behind}}}).

-opaque state() :: #interest{}.

%% @doc Returns a state without peers. The members on this node stay in the table.
-spec new(ets:table(), node()) -> state().
new(Table, Node) ->
    _ = [ets:match_delete(Table, {Of}) || Of <- [{node, '_', '_'}, {own, '_'}]],
    true = ets:insert(Table, [{known, #{}} | ets:select(Table, [{{{member, '$1', '_', '_'}}, [], [{{{{own, '$1'}}}}]}])]),
    #interest{table = Table, node = Node}.

hash(Group) -> erlang:phash2(Group, 1 bsl 32).

%% ---- members of this node ----

%% @doc Adds a member. Nothing changes if the process has joined already.
-spec join(Group :: term(), pid(), state()) -> state().
join(Group, Pid, #interest{table = Table} = State) ->
    Hash = hash(Group),
    IsFirst = not ets:member(Table, {own, Hash}),
    true = ets:insert(Table, [{{member, Hash, Pid, Group}}, {{own, Hash}}]),
    changed(IsFirst, Hash, State).

%% @doc Removes a member. Nothing changes if the process is not a member.
-spec leave(Group :: term(), pid(), state()) -> state().
leave(Group, Pid, #interest{table = Table} = State) ->
    Hash = hash(Group),
    true = ets:delete(Table, {member, Hash, Pid, Group}),
    IsLast = ets:member(Table, {own, Hash}) andalso not has_members(Table, Hash),
    _ = IsLast andalso ets:delete(Table, {own, Hash}),
    changed(IsLast, Hash, State).

changed(true, Hash, #interest{changed = Changed} = State) -> State#interest{changed = Changed#{Hash => []}};
changed(false, _, State) -> State.

%% In Erlang's order numbers come before pids, so 0 is before all pids.
has_members(Table, Hash) ->
    case ets:next(Table, {member, Hash, 0, 0}) of
        {member, Hash, _, _} -> true;
        _ -> false
    end.

%% @doc Returns the members on this node.
-spec members(ets:table(), Group :: term()) -> [pid()].
members(Table, Group) ->
    ets:select(Table, [{{{member, hash(Group), '$1', '$2'}}, [{'=:=', '$2', {const, Group}}], ['$1']}]).

%% ---- peers ----

%% @doc Returns the peers that have members, and those of these connected nodes that may have some.
-spec nodes(ets:table(), Group :: term(), Connected :: [node()]) -> {[node()], Unsure :: [node()]}.
nodes(Table, Group, Connected) ->
    Known = ets:lookup_element(Table, known, 2),
    With = known_nodes(Table, Group),
    {With, [Node || Node <- Connected, not is_map_key(Node, Known)] -- With}.

%% @doc Returns the peers that have members, as far as this node knows.
-spec known_nodes(ets:table(), Group :: term()) -> [node()].
known_nodes(Table, Group) -> ets:select(Table, [{{{node, hash(Group), '$1'}}, [], ['$1']}]).

%% @doc Records that this node has asked a peer, with that reference.
-spec asking(node(), Question :: reference(), state()) -> state().
asking(Node, Question, #interest{questions = Questions} = State) ->
    HasRows = case Questions of #{Node := {_, Has}} -> Has; #{} -> false end,
    known(Node, false, State#interest{questions = Questions#{Node => {Question, HasRows}}}).

%% @doc Records the question of a peer. If this node has not asked that peer, the peer's server is new and should be
%% asked.
-spec asked(node(), pid(), Question :: reference(), send(), state()) -> {IsToAsk :: boolean(), state()}.
asked(Node, Pid, Question, Send, #interest{told = Told, questions = Questions} = State) ->
    {not is_map_key(Node, Questions), State#interest{told = Told#{Node => answered(Pid, Question, Send, State)}}}.

%% @doc Records the answer to a question.
-spec all(node(), Question :: reference(), hashes(), state()) -> state().
all(Node, Question, Hashes, #interest{table = Table, questions = Questions} = State) ->
    case Questions of
        #{Node := {Question, HasRows}} ->
            New = [{node, Hash, Node} || <<Hash:32>> <= Hashes],
            true = ets:insert(Table, [{Key} || Key <- New]),
            _ = HasRows andalso lists:foreach(fun(Key) -> ets:delete(Table, Key) end, rows(Table, Node) -- New),
            known(Node, true, State#interest{questions = Questions#{Node := {Question, true}}});
        #{} -> State
    end.

rows(Table, Node) -> ets:select(Table, [{{{node, '$1', Node}}, [], [{{node, '$1', Node}}]}]).

%% @doc Records a later change at a peer. While a question is open the change is ignored, because the answer will
%% include it.
-spec change(node(), Joined :: hashes(), Left :: hashes(), state()) -> state().
change(Node, Joined, Left, #interest{table = Table, questions = Questions} = State) ->
    case is_map_key(Node, Questions) andalso is_map_key(Node, ets:lookup_element(Table, known, 2)) of
        true ->
            true = ets:insert(Table, [{{node, Hash, Node}} || <<Hash:32>> <= Joined]),
            _ = [ets:delete(Table, {node, Hash, Node}) || <<Hash:32>> <= Left],
            State;
        false -> State
    end.

%% @doc Handles the end reported by the monitor that is the question. A peer without a server has no members; one
%% whose server has ended must be asked again.
-spec unanswered(node(), Question :: reference(), Reason :: term(), state()) -> {IsToAsk :: boolean(), state()}.
unanswered(Node, Question, Reason, #interest{questions = Questions} = State) ->
    case {Questions, Reason} of
        {#{Node := {Question, _}}, noproc} -> {false, known(Node, true, forgotten(Node, State))};
        {#{Node := {Question, _}}, noconnection} -> {false, gone(Node, State)};
        {#{Node := {Question, _}}, _} -> {true, State};
        _ -> {false, State}
    end.

%% @doc Forgets a peer that is no longer connected.
-spec gone(node(), state()) -> state().
gone(Node, #interest{told = Told} = State) ->
    forgotten(Node, known(Node, false, State#interest{told = maps:remove(Node, Told)})).

forgotten(Node, #interest{table = Table, questions = Questions} = State) ->
    case Questions of
        #{Node := {_, true}} -> true = ets:match_delete(Table, {{node, '_', Node}});
        #{} -> true
    end,
    State#interest{questions = maps:remove(Node, Questions)}.

known(Node, IsKnown, #interest{table = Table} = State) ->
    Known = ets:lookup_element(Table, known, 2),
    true = ets:insert(Table, {known, case IsKnown of true -> Known#{Node => []}; false -> maps:remove(Node, Known) end}),
    State.

%% ---- what peers are told ----

%% @doc Sends all peers the changes, including those that they have missed.
-spec flush(send(), state()) -> state().
flush(Send, #interest{told = Told, changed = Changed} = State) ->
    Change = change(maps:keys(Changed), State),
    State#interest{changed = #{}, told = maps:map(fun(_, Peer) -> tell(Peer, Change, Send, State) end, Told)}.

change([], _) -> none;
change(Hashes, #interest{table = Table, node = Node}) ->
    {Joined, Left} = lists:partition(fun(Hash) -> ets:member(Table, {own, Hash}) end, Hashes),
    {change, Node, packed(Joined), packed(Left)}.

packed(Hashes) -> << <<Hash:32>> || Hash <- Hashes >>.

tell({_, _, current} = Peer, none, _, _) -> Peer;
tell({Pid, Question, current}, Change, Send, _) -> {Pid, Question, taken(Send(Pid, Change))};
%% The answer may be long, so an empty change first checks whether there is room.
tell({Pid, Question, behind} = Peer, _, Send, #interest{node = Node} = State) ->
    case Send(Pid, {change, Node, <<>>, <<>>}) of
        true -> answered(Pid, Question, Send, State);
        false -> Peer
    end.

answered(Pid, Question, Send, #interest{table = Table, node = Node}) ->
    {Pid, Question, taken(Send(Pid, {all, Node, Question, packed(ets:select(Table, [{{{own, '$1'}}, [], ['$1']}]))}))}.

taken(true) -> current;
taken(false) -> behind.

%% @doc Tells whether there is a change to send.
-spec is_changed(state()) -> boolean().
is_changed(#interest{changed = Changed}) -> map_size(Changed) > 0.

%% @doc Tells whether a peer has no room for what it should receive.
-spec is_behind(state()) -> boolean().
is_behind(#interest{told = Told}) -> lists:any(fun({_, _, Status}) -> Status =:= behind end, maps:values(Told)).
