%% SPDX-License-Identifier: Apache-2.0
%% @doc Keeps track of which nodes have members of which groups, from the point of view of one node. This module has no
%% processes; {@link teleport_listeners} sends and receives the messages and calls it.
%%
%% A node informs its peers of the groups for which it has members, but not of the number of members or of the members
%% themselves. A group is represented by a hash of four bytes. If two groups have the same hash, a broadcast to one of
%% them also reaches some nodes without members.
%%
%% When two nodes connect, each sends the other a question. The answer, `all', contains the peer's groups, and each later
%% `change' follows it in order. Until the answer has arrived, the node does not know the peer's groups, so {@link
%% nodes/3} returns the peer as unsure, and broadcasts are sent there as well. If there is no room to send a change to a
%% peer, the peer gets the complete list of groups as soon as there is room.
%%
%% So a broadcast can miss a peer with members only while the message about its first member is in flight, as with
%% `pg', or is waiting for room.
%%
%% The table is an ordered set with the rows `{{member, Hash, Pid, Group}}' and `{{own, Hash}}' for this node, `{{node,
%% Hash, Node}}', and `{known, Nodes}'. One process writes it, and any process may read it. The row of a known node is
%% never missing, not even for a moment, unless the peer has reported that its last member is gone. This holds because
%% writers update `known' after a node's first rows, and readers read it before them. A reader without a table gets the
%% error `{not_started, teleport}'.
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
                   %% The groups that have gained their first member or lost their last one since
                   %% the last flush.
                   changed = #{} :: #{hash() => []},
                   %% The question that was sent to each peer, and whether the table has rows for
                   %% the peer.
                   questions = #{} :: #{node() => {reference(), HasRows :: boolean()}},
                   %% The peers that have asked. A peer that is `behind' has missed a change or has
                   %% no answer yet.
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

%% Numbers sort before pids, so this key comes before all members.
has_members(Table, Hash) ->
    case ets:next(Table, {member, Hash, 0, 0}) of
        {member, Hash, _, _} -> true;
        _ -> false
    end.

%% @doc Returns the members on this node.
-spec members(ets:table(), Group :: term()) -> [pid()].
members(Table, Group) ->
    read(fun() -> ets:select(Table, [{{{member, hash(Group), '$1', '$2'}}, [{'=:=', '$2', {const, Group}}], ['$1']}]) end).

read(Read) ->
    try Read()
    catch error:badarg -> error({not_started, teleport})
    end.

%% ---- peers ----

%% @doc Returns the peers that have members, and those of these connected nodes that may have some.
-spec nodes(ets:table(), Group :: term(), Connected :: [node()]) -> {[node()], Unsure :: [node()]}.
nodes(Table, Group, Connected) ->
    Known = read(fun() -> ets:lookup_element(Table, known, 2) end),
    With = known_nodes(Table, Group),
    {With, [Node || Node <- Connected, not is_map_key(Node, Known)] -- With}.

%% @doc Returns the peers that have members, as far as this node knows.
-spec known_nodes(ets:table(), Group :: term()) -> [node()].
known_nodes(Table, Group) -> read(fun() -> ets:select(Table, [{{{node, hash(Group), '$1'}}, [], ['$1']}]) end).

%% @doc Records that this node has sent a peer the question with this reference.
-spec asking(node(), Question :: reference(), state()) -> state().
asking(Node, Question, #interest{questions = Questions} = State) ->
    HasRows = case Questions of #{Node := {_, Has}} -> Has; #{} -> false end,
    known(Node, false, State#interest{questions = Questions#{Node => {Question, HasRows}}}).

%% @doc Records a question from a peer. If this node has not sent that peer a question yet, the peer's server is new and
%% must be asked.
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

%% @doc Records a later change at a peer. As long as a question has not been answered the change is ignored, because the
%% answer will include it.
-spec change(node(), Joined :: hashes(), Left :: hashes(), state()) -> state().
change(Node, Joined, Left, #interest{table = Table, questions = Questions} = State) ->
    case is_map_key(Node, Questions) andalso is_map_key(Node, ets:lookup_element(Table, known, 2)) of
        true ->
            true = ets:insert(Table, [{{node, Hash, Node}} || <<Hash:32>> <= Joined]),
            _ = [ets:delete(Table, {node, Hash, Node}) || <<Hash:32>> <= Left],
            State;
        false -> State
    end.

%% @doc Handles the `DOWN' message of the monitor that serves as the question. A peer without a server has no members; a
%% peer whose server has exited must be asked again.
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

%% ---- messages to peers ----

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

%% @doc Returns whether there is a change to send.
-spec is_changed(state()) -> boolean().
is_changed(#interest{changed = Changed}) -> map_size(Changed) > 0.

%% @doc Returns whether there is a peer that has not been sent everything, because there was no room.
-spec is_behind(state()) -> boolean().
is_behind(#interest{told = Told}) -> lists:any(fun({_, _, Status}) -> Status =:= behind end, maps:values(Told)).
