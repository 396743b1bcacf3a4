%% SPDX-License-Identifier: Apache-2.0
%% @doc Broadcasts to the members of a `pg' group: encoded once, sent once to each node that has members, delivered there by the lane's process.
%%
%% {@link teleport:broadcast/4} calls it on the sender's node, {@link teleport_calls} on the nodes of the members. The sender itself gives the message to
%% all lanes, with one order key for its broadcasts to the group, so these arrive in order. It never waits for room in a lane: a full one is `overload'.
%% Lanes that are not up are opened after the others have the message, all at once. Then it waits for confirmations.
%%
%% The table has a row for each process whose broadcast is under way. It belongs to the supervisor. The row of a process that was killed
%% goes when the table is full.
-module(teleport_groups).

-export([new_table/0, broadcast/4, deliver/1]).
-export_type([options/0, result/0, refusal/0]).

-type options() :: #{class => teleport_config:class(),       %% normal
                     timeout => timeout(),                   %% milliseconds for opening lanes and confirmations together, 5000
                     confirm => boolean()}.                  %% true; false: returns as soon as the lanes have accepted the message
-type result() :: #{sent := [node()], plain := [node()], skipped := [node()], failed := [{node(), teleport:reason()}]}.
%% `sent': the members there have the message in their mailboxes, or with `confirm => false' a lane has accepted it. `plain': sent by `!', for the node has no
%% teleport, or one without groups. `skipped': the members there had left the group when it came. `failed': with `timeout', `lane_lost' and `nodedown' it may have arrived.
-type refusal() :: busy | {no_scope, Scope :: term()}.

-define(TABLE, ?MODULE).
-define(TIMEOUT_MS, 5000).

%% @doc Called by the supervisor itself, which owns the table then.
-spec new_table() -> ok.
new_table() ->
    case ets:whereis(?TABLE) of
        undefined -> ?TABLE = ets:new(?TABLE, [named_table, public, {write_concurrency, true}]), ok;
        _ -> ok
    end.

%% @doc See {@link teleport:broadcast/4}.
-spec broadcast(Scope :: atom(), Group :: term(), Message :: term(), options()) -> result() | {error, refusal()}.
broadcast(Scope, Group, Message, Options) ->
    ok = check(Options),
    #{max_broadcasts := Max} = teleport_config:of_node(node()),
    case members(Scope, Group) of
        {ok, Members} ->
            case enter(Max) of
                true -> try sent(Scope, Group, Members, Message, Options) after ets:delete(?TABLE, self()) end;
                false -> {error, busy}
            end;
        {error, Reason} -> {error, Reason}
    end.

check(Options) when is_map(Options) ->
    case [Bad || {Name, Value} = Bad <- maps:to_list(Options), not is_option(Name, Value)] of
        [] -> ok;
        [{Name, Value} | _] -> error({bad_option, Name, Value})
    end;
check(Other) ->
    error({bad_option, options, Other}).

is_option(confirm, Value) -> is_boolean(Value);
is_option(Name, Value) when Name =:= class; Name =:= timeout -> teleport_request:check_options(#{Name => Value}) =:= ok;
is_option(_, _) -> false.

%% Of each node, each once: a process may have joined several times.
members(Scope, Group) ->
    case is_atom(Scope) andalso whereis(Scope) of
        Pid when is_pid(Pid) -> {ok, maps:groups_from_list(fun erlang:node/1, lists:usort(pg:get_members(Scope, Group)))};
        _ -> {error, {no_scope, Scope}}
    end.

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
    {Term, Binaries} = packed(Message),
    Request = {broadcast, Scope, Group, Term, Binaries},
    Send = case maps:get(confirm, Options, true) of
               true -> fun(Node) -> {Node, {asked, teleport_request:begin_call(confirmed, {?MODULE, Node}, Request, with_timeout(Lane, Deadline))}} end;
               false -> fun(Node) -> {Node, teleport_request:send({?MODULE, Node}, Request, Lane)} end
           end,
    %% Most are up, and get the message before the others are opened, which may take as long as there is time.
    {Up, Down} = lists:partition(fun(Node) -> teleport_request:open(Node, Lane, teleport_deadline:in(0)) =:= ok end, Nodes),
    Begun = lists:map(Send, Up),
    {Opened, Not} = opened(Down, Lane, Deadline),
    Ended = Not ++ awaited(Begun ++ lists:map(Send, Opened), Deadline),
    [{Node, outcome(Outcome, maps:get(Node, Members), Message)} || {Node, Outcome} <- Ended].

with_timeout(Lane, Deadline) -> Lane#{timeout => teleport_deadline:left(Deadline)}.

%% In the shape of {@link teleport_term:unpack/2}, so that large binaries are parts of each node's message, too.
packed(Message) ->
    case teleport_term:pack(Message) of
        {small, Term, _} -> {iolist_to_binary(Term), []};
        {parts, [Term | Binaries], _} -> {iolist_to_binary(Term), Binaries}
    end.

outcome(ok, _, _) -> sent;
outcome({error, no_members}, _, _) -> skipped;
outcome({error, No}, Pids, Message) when No =:= noproc; element(1, No) =:= no_teleport -> send_all(Pids, Message), plain;
outcome({error, Reason}, _, _) -> {failed, Reason}.

%% All at once, so that none holds up another.
opened(Nodes, Lane, Deadline) ->
    Results = [{Node, opened(Ended)} || {Node, Ended} <- teleport_each:run(Nodes, fun(Node) -> teleport_request:open(Node, Lane, Deadline) end)],
    {[Node || {Node, ok} <- Results], [Failed || {_, {error, _}} = Failed <- Results]}.

opened({ok, Result}) -> Result;
opened({down, Reason}) -> {error, {no_lane, Reason}}.

awaited(Begun, Deadline) ->
    {Asked, Ended} = lists:partition(fun({_, Outcome}) -> is_tuple(Outcome) andalso element(1, Outcome) =:= asked end, Begun),
    Ids = lists:foldl(fun({Node, {asked, Id}}, Acc) -> teleport_requests:add(Id, Node, Acc) end, teleport_requests:new(), Asked),
    Ended ++ responses(Ids, [Node || {Node, _} <- Asked], Deadline).

responses(Ids, Nodes, Deadline) ->
    case teleport_requests:finish(Ids, teleport_deadline:left(Deadline), true) of
        {Response, Node, Rest} -> [{Node, response(Response)} | responses(Rest, lists:delete(Node, Nodes), Deadline)];
        timeout -> [{Node, {error, timeout}} || Node <- Nodes];
        no_request -> []
    end.

response({reply, confirmed}) -> ok;
response({error, {Reason, _}}) -> {error, Reason}.

%% ---- the members' node ----

%% @doc What a lane has brought for this name. Called by the lane's process, so a sender that is faster than this node fills the lane and no mailbox.
-spec deliver(term()) -> ok | no_members | noproc.
deliver({broadcast, Scope, Group, Term, Binaries}) ->
    case members(Scope, Group) of
        {ok, #{node() := Pids}} -> send_all(Pids, teleport_term:unpack(Term, Binaries));
        _ -> no_members
    end;
deliver(_) ->
    noproc.
