%% SPDX-License-Identifier: Apache-2.0
%% @doc Broadcasts to the members of a `pg' group: encoded once, sent once to each node that has members, delivered there by the lane's process.
%%
%% {@link teleport:broadcast/4} calls it on the sender's node, {@link teleport_calls} on the nodes of the members. The sender itself gives the message to
%% all lanes, with one order key for its broadcasts to the group, so these arrive in order. It never waits for room in a lane: a full one is `overload'.
%% Lanes that are not up are opened after the others have the message, all at once. Then it waits for confirmations.
%%
%% Where the sites of nodes are known, one node of each other site passes the message on to the others there ({@link teleport_relay}).
%%
%% The table has a row for each process whose broadcast is under way. It belongs to the supervisor. The row of a process that was killed
%% goes when the table is full.
-module(teleport_groups).

-export([broadcast/4, deliver/1]).
-export_type([options/0, result/0, refusal/0, packed/0]).

-type options() :: #{class => teleport_config:class(),       %% normal
                     timeout => timeout(),                   %% milliseconds for opening lanes and confirmations together, 5000
                     sites => teleport_sites:site_of(),      %% default the option sites of the node; only with confirmation
                     local => boolean(),                     %% true; false: leaves out the members on this node
                     confirm => boolean()}.                  %% true; false: returns as soon as the lanes have accepted the message
-type result() :: #{sent := [node()], plain := [node()], skipped := [node()], failed := [{node(), teleport:reason()}]}.
%% `sent': the members there have the message in their mailboxes, or with `confirm => false' a lane has accepted it. `plain': sent by `!', for the node has no
%% teleport, or one without groups. `skipped': the members there had left the group when it came. `failed': with `timeout', `lane_lost' and `nodedown' it may have arrived.
-type refusal() :: busy | {no_scope, Scope :: term()}.

-type packed() :: {Term :: binary(), [binary()]}.

-define(TABLE, ?MODULE).
-define(TIMEOUT_MS, 5000).
%% What relays have at most.
-define(RELAY_MS, 5000).

%% @doc See {@link teleport:broadcast/4}.
-spec broadcast(Scope :: atom(), Group :: term(), Message :: term(), options()) -> result() | {error, refusal()}.
broadcast(Scope, Group, Message, Options) ->
    _ = teleport_request:checked(fun is_option/2, Options),
    #{max_broadcasts := Max} = teleport_config:of_node(node()),
    case members(Scope, Group) of
        {ok, Members} ->
            case enter(Max) of
                true -> try sent(Scope, Group, Members, Message, Options) after ets:delete(?TABLE, self()) end;
                false -> {error, busy}
            end;
        {error, Reason} -> {error, Reason}
    end.

is_option(Name, Value) when Name =:= confirm; Name =:= local -> is_boolean(Value);
is_option(sites, Value) -> teleport_sites:is_site_of(Value);
is_option(Name, Value) when Name =:= class; Name =:= timeout -> teleport_request:is_option(Name, Value);
is_option(_, _) -> false.

%% Of each node, each once: a process may have joined several times.
members(Scope, Group) ->
    case is_scope(Scope) of
        true -> {ok, maps:groups_from_list(fun erlang:node/1, lists:usort(pg:get_members(Scope, Group)))};
        false -> {error, {no_scope, Scope}}
    end.

is_scope(Scope) -> is_atom(Scope) andalso is_pid(whereis(Scope)).

enter(Max) ->
    true = ets:insert(?TABLE, {self()}),
    case is_room(Max) orelse (swept() andalso is_room(Max)) of
        true -> true;
        false -> ets:delete(?TABLE, self()), false
    end.

is_room(Max) -> ets:info(?TABLE, size) =< Max.

swept() ->
    _ = [ets:delete(?TABLE, Pid) || {Pid} <- ets:tab2list(?TABLE), not is_process_alive(Pid)],
    true.

%% ---- the sender's node ----

sent(Scope, Group, Members, Message, Options) ->
    {Own, Others} = case maps:take(node(), Members) of
                        error -> {[], Members};
                        {_, Rest} when map_get(local, Options) =:= false -> {[], Rest};
                        {Pids, Rest} -> send_all(Pids, Message), {[{node(), sent}], Rest}
                    end,
    result(Own ++ remote(maps:keys(Others), {Scope, Group}, Others, Message, Options)).

send_all(Pids, Message) -> lists:foreach(fun(Pid) -> Pid ! Message end, Pids).

result(Outcomes) ->
    #{sent => [Node || {Node, sent} <- lists:sort(Outcomes)], plain => [Node || {Node, plain} <- lists:sort(Outcomes)],
      skipped => [Node || {Node, skipped} <- lists:sort(Outcomes)], failed => [{Node, Reason} || {Node, {failed, Reason}} <- lists:sort(Outcomes)]}.

remote([], _, _, _, _) ->
    [];
remote(Nodes, {Scope, Group} = To, Members, Message, Options) ->
    Deadline = teleport_deadline:in(maps:get(timeout, Options, ?TIMEOUT_MS)),
    Lane = #{class => maps:get(class, Options, normal), key => {self(), To}, on_full => error, way => lane},
    #{sites := Configured} = teleport_config:of_node(node()),
    Packed = packed(Message),
    Outcomes = case {maps:get(confirm, Options, true), maps:get(sites, Options, Configured)} of
                   {true, none} ->
                       Request = {broadcast, Scope, Group, Packed},
                       awaited(begun(Nodes, fun(Node) -> asked(confirmed, ?MODULE, Node, Request, Lane, Deadline) end, Lane, Deadline), Deadline);
                   {true, SiteOf} ->
                       relayed(teleport_sites:plan(node(), Nodes, SiteOf, teleport_relay:avoid()), teleport_relay:broadcast(Scope, Group, self(), Packed), Lane, Deadline);
                   {false, _} ->
                       Request = {broadcast, Scope, Group, Packed},
                       unconfirmed(Nodes, fun(Node) -> teleport_request:send({?MODULE, Node}, Request, Lane) end, Lane, Deadline)
               end,
    [{Node, outcome(Outcome, maps:get(Node, Members), Message)} || {Node, Outcome} <- Outcomes].

%% In the shape of {@link teleport_term:unpack/2}, so that large binaries are parts of each node's message, too.
packed(Message) ->
    case teleport_term:pack(Message) of
        {small, Term, _} -> {iolist_to_binary(Term), []};
        {parts, [Term | Binaries], _} -> {iolist_to_binary(Term), Binaries}
    end.

outcome(ok, _, _) -> sent;
outcome({error, no_members}, _, _) -> skipped;
outcome({error, Reason}, Pids, Message) ->
    case is_without_groups(Reason) of
        true -> send_all(Pids, Message), plain;
        false -> {failed, Reason}
    end.

%% Does it for all nodes. Most lanes are up, and get the message before the others are opened, which may take as long as there is time.
begun(Nodes, Send, Lane, Deadline) ->
    {Up, Down} = lists:partition(fun(Node) -> teleport_request:open(Node, Lane, teleport_deadline:in(0)) =:= ok end, Nodes),
    Begun = [{Node, Send(Node)} || Node <- Up],
    %% All at once, and each gets it when its lane is up, so that none holds up another.
    Begun ++ teleport_each:run(Down, fun(Node) -> teleport_request:open(Node, Lane, Deadline) end,
                               fun(Node, {ok, ok}) -> Send(Node);
                                  (_, {ok, Error}) -> Error;
                                  (_, {down, Reason}) -> {error, {no_lane, Reason}}
                               end).

%% Waits once for the lane of a node that hangs, and not again with each broadcast.
unconfirmed(Nodes, Send, Lane, Deadline) ->
    {Late, Others} = lists:partition(fun teleport_peers:is_late/1, Nodes),
    AtOnce = begun(Late, Send, Lane, teleport_deadline:in(0)),
    Waited = begun(Others, Send, Lane, Deadline),
    _ = [teleport_peers:late(Node) || {Node, {error, timeout}} <- Waited],
    AtOnce ++ Waited.

asked(Kind, Name, Node, Request, Lane, Deadline) ->
    {asked, teleport_request:begin_call(Kind, {Name, Node}, Request, Lane#{timeout => teleport_deadline:left(Deadline)})}.

%% The outcomes of what was asked, and of what was not.
awaited(Begun, Deadline) ->
    {Asked, Ended} = collected(Begun),
    Ended ++ answers(Asked, Deadline).

collected(Begun) -> collected(Begun, teleport_requests:new()).

collected(Begun, Before) ->
    lists:foldl(fun({Node, {asked, Id}}, {Ids, Ended}) -> {teleport_requests:add(Id, Node, Ids), Ended};
                   (Outcome, {Ids, Ended}) -> {Ids, [Outcome | Ended]}
                end, {Before, []}, Begun).

answers(Ids, Deadline) ->
    case teleport_requests:finish(Ids, teleport_deadline:left(Deadline), true) of
        {Response, Node, Rest} -> [{Node, response(Response)} | answers(Rest, Deadline)];
        timeout -> [{Node, {error, timeout}} || {_, Node} <- teleport_requests:to_list(Ids)];
        no_request -> []
    end.

response({reply, confirmed}) -> ok;
response({reply, Reply}) -> Reply;
response({error, {Reason, _}}) -> {error, Reason}.

%% ---- with sites ----

%% Relays have half of the time. Leaves that they have not reached in it are sent to directly, and so are nodes whose lane was not up by then. A leaf that
%% gets both copies drops one.
relayed({Direct, Relays}, Broadcast, #{class := Class} = Lane, Deadline) ->
    RelayMs = min(teleport_deadline:left(Deadline), 2 * ?RELAY_MS) div 2,
    RelayDeadline = teleport_deadline:in(RelayMs),
    Leaves = maps:from_list(Relays),
    Deliver = fun(Node) -> asked(call, teleport_relay, Node, {deliver, Broadcast}, Lane, Deadline) end,
    Send = fun(Node) ->
                   case Leaves of
                       %% It answers for the leaves that it could not reach before it is given up itself.
                       #{Node := Of} ->
                           Ms = teleport_deadline:left(RelayDeadline) * 3 div 4,
                           asked(call, teleport_relay, Node, {relay, Ms, Class, Of, Broadcast, but}, Lane, Deadline);
                       #{} -> Deliver(Node)
                   end
           end,
    {Asked, Ended} = collected(begun(Direct ++ maps:keys(Leaves), Send, Lane, case Relays of [] -> Deadline; _ -> RelayDeadline end)),
    {Answered, Rest} = relays_answered(Asked, Leaves, RelayDeadline),
    {Outcomes, Missed} = told([not_up(Outcome) || Outcome <- Ended] ++ Answered, Leaves),
    {All, Failed} = collected(begun(Missed, Deliver, Lane, Deadline), Rest),
    Outcomes ++ Failed ++ answers(All, Deadline).

relays_answered(Ids, Leaves, Deadline) ->
    case [Id || {Id, Node} <- teleport_requests:to_list(Ids), is_map_key(Node, Leaves)] of
        [] -> {[], Ids};
        Relays ->
            case teleport_requests:wait(Ids, teleport_deadline:left(Deadline), true) of
                {Response, Node, Left} ->
                    {More, Rest} = relays_answered(Left, Leaves, Deadline),
                    {[{Node, response(Response)} | More], Rest};
                timeout ->
                    Late = [{Node, {error, timeout}} || {_, Node} <- teleport_requests:to_list(Ids), is_map_key(Node, Leaves)],
                    {Late, lists:foldl(fun teleport_requests:give_up/2, Ids, Relays)}
            end
    end.

%% Its lane was not up in the time of the relays.
not_up({Node, {error, timeout}}) -> {Node, not_up};
not_up(Outcome) -> Outcome.

%% The outcomes that stay, and the nodes that are to be sent to directly.
told(Ended, Leaves) ->
    lists:foldl(fun({Relay, {but, Others}}, {Outcomes, Missed}) ->
                        All = [{Node, proplists:get_value(Node, Others, ok)} || Node <- [Relay | maps:get(Relay, Leaves)]],
                        {Final, Not} = lists:partition(fun({Node, Outcome}) -> Node =:= Relay orelse is_final(Outcome) end, All),
                        {Final ++ Outcomes, [Leaf || {Leaf, _} <- Not] ++ Missed};
                   %% It has got nothing: its lane was not up, or it has version 0.2.0, which knows the request of a leaf, and not this one of a relay.
                   ({Relay, Not}, {Outcomes, Missed}) when is_map_key(Relay, Leaves), Not =:= {error, badarg} orelse Not =:= not_up ->
                        ok = teleport_relay:failed(Relay),
                        {Outcomes, [Relay | maps:get(Relay, Leaves)] ++ Missed};
                   ({Relay, {error, _}} = Failed, {Outcomes, Missed}) when is_map_key(Relay, Leaves) ->
                        ok = teleport_relay:failed(Relay),
                        {[Failed | Outcomes], maps:get(Relay, Leaves) ++ Missed};
                   ({Node, not_up}, {Outcomes, Missed}) ->
                        {Outcomes, [Node | Missed]};
                   (Outcome, {Outcomes, Missed}) ->
                        {[Outcome | Outcomes], Missed}
                end, {[], []}, Ended).

%% Nothing is gained by sending it once more.
is_final(ok) -> true;
is_final({error, no_members}) -> true;
is_final({error, Reason}) -> is_without_groups(Reason).

is_without_groups(noproc) -> true;
is_without_groups({no_teleport, _}) -> true;
is_without_groups(_) -> false.

%% ---- the members' node ----

%% @doc What a lane has brought for this name. Called by the lane's process, so a sender that is faster than this node fills the lane and no mailbox. With
%% sites {@link teleport_relay} calls it.
-spec deliver(term()) -> ok | no_members | noproc.
deliver({broadcast, Scope, Group, {Term, Binaries}}) ->
    %% Those of this node alone: most groups have far more members elsewhere.
    case is_scope(Scope) andalso lists:usort(pg:get_local_members(Scope, Group)) of
        [_ | _] = Pids -> send_all(Pids, teleport_term:unpack(Term, Binaries));
        _ -> no_members
    end;
deliver(_) ->
    noproc.
