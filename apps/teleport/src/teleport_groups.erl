%% SPDX-License-Identifier: Apache-2.0
%% @doc Broadcasts to the members of a group of `pg' or of {@link teleport_listeners}. Each is encoded once, sent once
%% to each node that has members, and delivered there by {@link teleport_server}.
%%
%% The calling process sends each broadcast itself, so its broadcasts to a group arrive in order. It
%% waits for answers only with the option `confirm', and waits for full connections only until the
%% broadcast's time limit. If the connection to a node is still full by then, broadcasts do not wait
%% for that node for a while. If the sites of nodes are known ({@link teleport_sites}), one node of
%% each other site passes the message on to the others there.
-module(teleport_groups).

-export([broadcast/4]).
-export_type([options/0, result/0, refusal/0]).

-type options() :: #{confirm => boolean(),                   %% default false; with true it waits until each node has confirmed the message
                     timeout => timeout(),                   %% milliseconds to wait for full connections, and for confirmations; default 5000 with `confirm', otherwise 100
                     sites => teleport_sites:site_of(),      %% default: this node's option `sites'
                     local => boolean(),                     %% whether the members on this node also get the message; default true
                     nodes => [node()]}.                     %% only members on these nodes
-type result() :: #{sent := [node()], plain := [node()], skipped := [node()], failed := [{node(), teleport:reason()}]}.
%% `sent' lists the nodes for which the message was passed to the connection, as with `!', or, with `confirm', the nodes
%% whose members have it in their mailboxes. `plain' lists those whose members were each sent a separate message, as
%% with `!', because the node does not run teleport or runs an older version. `skipped' lists, with `confirm', those
%% whose members had left the group. If a node is in `failed' with `timeout' or `nodedown', the message may still have
%% arrived there.
-type refusal() :: {no_scope, Scope :: term()}.

-define(CONFIRM_MS, 5000).
-define(ROOM_MS, 100).
-define(LOOK_MS, 1).
%% After one sender has waited for a node without success, no sender waits for that node for this long, or until it goes
%% down. The server's table has a row for each such node.
-define(LATE_MS, 30000).
-define(SERVER, teleport_server).
%% A scope like those of `pg', named after its process and its table.
-define(LISTENERS, teleport_listeners).

%% @doc See {@link teleport:broadcast/4}.
-spec broadcast(Scope :: atom(), Group :: term(), Message :: term(), options()) -> result() | {error, refusal()}.
broadcast(Scope, Group, Message, Options) ->
    _ = teleport_message:checked(fun is_option/2, Options),
    case teleport_server:is_scope(Scope) of
        %% The servers of other nodes send while they handle the broadcast, so the messages that they deliver or relay
        %% carry its context.
        true -> teleport_trace:lent(fun() -> result(own(Scope, Group, Message, Options) ++ remote(others(Scope, Group, Options), {Scope, Group}, Message, Options)) end);
        false -> {error, {no_scope, Scope}}
    end.

is_option(Name, Value) when Name =:= confirm; Name =:= local -> is_boolean(Value);
is_option(sites, Value) -> teleport_sites:is_site_of(Value);
is_option(nodes, Value) -> is_list(Value) andalso lists:all(fun is_atom/1, Value);
is_option(Name, Value) when Name =:= class; Name =:= timeout -> teleport_message:is_option(Name, Value);
is_option(_, _) -> false.

own(_, _, _, #{local := false}) -> [];
own(Scope, Group, Message, Options) ->
    case is_meant(node(), Options) andalso teleport_server:members(Scope, Group) of
        [_ | _] = Pids -> lists:foreach(fun(Pid) -> Pid ! Message end, Pids), [{node(), sent}];
        _ -> []
    end.

is_meant(Node, #{nodes := Nodes}) -> lists:member(Node, Nodes);
is_meant(_, _) -> true.

%% Returns the other nodes: those with a server and members, those with a server that may have members, and the
%% members on nodes without a server.
others(?LISTENERS, Group, Options) ->
    {With, Unsure} = teleport_interest:nodes(?LISTENERS, Group, nodes(connected)),
    {meant(With, Options), meant(Unsure, Options), #{}};
others(Scope, Group, Options) ->
    Members = maps:groups_from_list(fun erlang:node/1, lists:usort(pg:get_members(Scope, Group))),
    {Served, Plain} = lists:partition(fun teleport_server:is_at/1, meant(maps:keys(Members) -- [node()], Options)),
    {Served, [], maps:with(Plain, Members)}.

meant(Nodes, Options) -> [Node || Node <- Nodes, is_meant(Node, Options)].

result(Outcomes) ->
    Sorted = lists:sort(Outcomes),
    (maps:from_list([{Name, [Node || {Node, Outcome} <- Sorted, Outcome =:= Name]} || Name <- [sent, plain, skipped]]))
        #{failed => [{Node, Reason} || {Node, {failed, Reason}} <- Sorted]}.

remote({[], [], Members}, _, _, _) when map_size(Members) =:= 0 -> [];
remote({With, Unsure, Members}, {Scope, Group}, Message, Options) ->
    Confirm = maps:get(confirm, Options, false),
    Deadline = teleport_deadline:in(maps:get(timeout, Options, case Confirm of true -> ?CONFIRM_MS; false -> ?ROOM_MS end)),
    {Served, Plain} = {With ++ Unsure, maps:keys(Members)},
    ReplyTo = case Confirm andalso Served =/= [] of true -> alias(); false -> none end,
    Broadcast = {broadcast, Scope, Group, encoded(Served, Message), ReplyTo},
    Refused = sent([{Node, {member, Pid, Message}} || Node <- Plain, Pid <- maps:get(Node, Members)] ++ served(With, Broadcast, Options) ++ [{Node, Broadcast} || Node <- Unsure], Deadline),
    Given = [Node || Node <- Served, not is_map_key(Node, Refused)],
    Answers = confirmed(ReplyTo, Given, Deadline),
    [{Node, {failed, Reason}} || {Node, Reason} <- maps:to_list(Refused)] ++ [{Node, plain} || Node <- Plain, not is_map_key(Node, Refused)]
        ++ [{Node, found(Node, Outcome, Unsure)} || {Node, Outcome} <- Answers].

%% A missing server means that the node does not run teleport, or that its server has just exited.
found(Node, {failed, {no_teleport, Node}}, Unsure) ->
    case lists:member(Node, Unsure) of
        true -> skipped;
        false -> {failed, {nodedown, Node}}
    end;
found(_, Outcome, _) -> Outcome.

encoded([], _) -> <<>>;
encoded(_, Message) -> term_to_binary(Message).

served(Nodes, Broadcast, Options) ->
    {Direct, Relays} = teleport_sites:plan(node(), Nodes, maps:get(sites, Options, teleport_config:get(sites))),
    [{Node, Broadcast} || Node <- Direct] ++ [{Relay, {relay, Leaves, Broadcast}} || {Relay, Leaves} <- Relays].

%% Sends to each node as soon as its connection is no longer full, until the deadline. Returns the
%% nodes to which nothing was sent, each with the reason.
sent(Sendings, Deadline) ->
    IsLate = fun({Node, _}) -> teleport_deadline:left(Deadline) =:= 0 orelse is_late(Node) end,
    {Late, Others} = lists:partition(IsLate, unsent(Sendings)),
    refused(Late ++ awaited(Others, Deadline)).

unsent(Sendings) -> [Sending || Sending <- Sendings, not is_sent(Sending)].

awaited([], _) -> [];
awaited(Left, Deadline) ->
    receive after ?LOOK_MS -> ok end,
    Still = unsent(Left),
    case teleport_deadline:left(Deadline) of
        0 ->
            true = ets:insert(?SERVER, [{{late, Node}, teleport_deadline:in(?LATE_MS)} || {Node, _} <- Still]),
            Still;
        _ -> awaited(Still, Deadline)
    end.

%% The leaves of a relay that accepts nothing get the message directly.
refused(Left) ->
    Leaves = [{Leaf, Broadcast} || {_, {relay, Of, Broadcast}} <- Left, Leaf <- Of],
    maps:from_keys([Node || {Node, _} <- Left] ++ [Leaf || {Leaf, _} = Sending <- Leaves, not is_sent(Sending)], overload).

is_sent({Node, {member, Pid, Message}}) -> is_sent(Node, Pid, Message);
is_sent({Node, Message}) -> is_sent(Node, ?SERVER, Message).

is_sent(Node, To, Message) -> teleport_message:transmit(Node, To, self(), Message, error, infinity) =:= ok.

is_late(Node) ->
    case ets:lookup(?SERVER, {late, Node}) of
        [{_, Until}] -> teleport_deadline:left(Until) > 0;
        [] -> false
    end.

confirmed(none, Nodes, _) -> [{Node, sent} || Node <- Nodes];
confirmed(ReplyTo, Nodes, Deadline) ->
    Caller = self(),
    Watchers = [spawn(fun() -> watch(Caller, ReplyTo, Node) end) || Node <- Nodes],
    {Answers, Left} = answers(ReplyTo, maps:from_keys(Nodes, []), Deadline),
    lists:foreach(fun(Watcher) -> exit(Watcher, kill) end, Watchers),
    true = unalias(ReplyTo),
    ok = flushed(ReplyTo),
    Answers ++ [{Node, {failed, timeout}} || Node <- maps:keys(Left)].

%% Setting up a monitor suspends the process if the connection to that node is full, so the caller, which has a time
%% limit, leaves this to other processes.
watch(Caller, ReplyTo, Node) ->
    OfCaller = monitor(process, Caller),
    Why = try monitor(process, {?SERVER, Node}) of
              OfServer ->
                  receive
                      {'DOWN', OfServer, process, _, noproc} -> no_teleport;
                      {'DOWN', OfServer, process, _, _} -> nodedown;
                      {'DOWN', OfCaller, process, _, _} -> exit(normal)
                  end
          catch error:badarg -> no_teleport % a C node has no monitors
          end,
    ReplyTo ! {ReplyTo, Node, {error, {Why, Node}}}.

answers(_, Left, _) when map_size(Left) =:= 0 -> {[], Left};
answers(ReplyTo, Left, Deadline) ->
    receive
        {ReplyTo, Node, Outcome} when is_map_key(Node, Left) ->
            {More, Rest} = answers(ReplyTo, maps:remove(Node, Left), Deadline),
            {[{Node, outcome(Outcome)} | More], Rest}
    after teleport_deadline:left(Deadline) -> {[], Left}
    end.

outcome(ok) -> sent;
outcome(no_members) -> skipped;
outcome({error, Reason}) -> {failed, Reason}.

flushed(ReplyTo) ->
    receive {ReplyTo, _, _} -> flushed(ReplyTo)
    after 0 -> ok
    end.
