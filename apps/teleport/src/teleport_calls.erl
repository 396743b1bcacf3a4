%% SPDX-License-Identifier: Apache-2.0
%% @doc The acceptor's half of a lane: delivers messages, and keeps the calls that servers of this node have not answered.
%%
%% A server sees the lane's process as its client: `From' is that pid and the caller's own reference, so whatever answers an ordinary call
%% answers this one, and the answer comes to the lane's process, which sends it back. Servers are monitored here, where they are. The caller of
%% a call that stays unanswered for a while is monitored as well, over distribution: nobody else says that it was killed.
%% State of the lane's process; not for others.
-module(teleport_calls).

-export([new/2, request/4, replied/3, applied/3, watch/1, down/4, pending/1, packed/2]).
-export([run/6, cast/4]).
-export_type([calls/0, effect/0]).

%% `[Ref | Answer]' is what goes over the lane: a cell is shorter than a tuple.
-dialyzer({no_improper_lists, [request/4, replied/3, applied/3, call/5, server_down/3, packed/2, run/6]}).

%% `none': a function is applied. `old': it was there at the last look; `watched': its caller is monitored.
-record(pending, {server :: none | pid(), caller :: pid(), age = new :: new | old | watched}).
-record(calls, {max :: pos_integer(),
                max_message_bytes :: pos_integer(),
                pending = #{} :: #{reference() => #pending{}},
                callers = #{} :: #{pid() => {Monitor :: reference(), #{reference() => []}}},
                servers = #{} :: #{pid() => {Monitor :: reference(), Calls :: non_neg_integer()}},
                watching = false :: boolean()}).
-opaque calls() :: #calls{}.
-type effect() :: {reply | failed, term()} | {watch_in, Ms :: pos_integer()}.
%% An answer for the caller; {@link watch/1} is to be called then.

%% Monitors of servers that have no calls now are kept up to this number: most will be called again.
-define(MAX_IDLE, 1024).
%% Calls that are not answered after twice this time have their callers watched.
-define(PARKED_MS, 3000).

%% @doc With limits of unanswered calls and of the size of an answer.
-spec new(MaxPending :: pos_integer(), MaxMessageBytes :: pos_integer()) -> calls().
new(MaxPending, MaxMessage) -> #calls{max = MaxPending, max_message_bytes = MaxMessage}.

%% @doc Does what a peer asks for. `Tx' is the lane itself, over which long work answers. Fails if the peer sent what no peer sends.
-spec request(teleport_frame:kind(), term(), teleport_sender:tx(), calls()) -> {[effect()], calls()}.
request(message, [Dest | Message], _, State) ->
    _ = deliver(Dest, Message),
    {[], State};
request(confirmed, [Ref, Dest | Message], _, State) when is_reference(Ref) ->
    case deliver(Dest, Message) of
        ok -> {[{reply, [Ref | confirmed]}], State};
        Not -> {[{failed, [Ref | Not]}], State}
    end;
request(call, [Ref, Caller, Dest | Request], _, State) when is_reference(Ref), is_pid(Caller) ->
    call(Ref, Caller, Dest, {'$gen_call', {self(), Ref}, Request}, State);
request(event_call, [Ref, Caller, Dest | Request], _, State) when is_reference(Ref), is_pid(Caller) ->
    call(Ref, Caller, Dest, {self(), {self(), Ref}, Request}, State);
request(other_call, [Ref, Caller, Dest, Label | Request], _, State) when is_reference(Ref), is_pid(Caller), is_atom(Label) ->
    call(Ref, Caller, Dest, {Label, {self(), Ref}, Request}, State);
request(apply, [Ref, Caller, Leader, Module, Function | Args], Tx, #calls{pending = Pending, max = Max, max_message_bytes = MaxMessage} = State)
  when is_reference(Ref), is_pid(Caller), is_pid(Leader), is_list(Args) ->
    case map_size(Pending) >= Max of
        true -> {[{failed, [Ref | overload]}], State};
        false ->
            %% A node that has no room for another process refuses the function. The lane and its other calls go on.
            try spawn_opt(?MODULE, run, [Tx, Ref, Leader, {Module, Function}, Args, MaxMessage], [{monitor, [{tag, {applied, Ref}}]}]) of
                _ -> added(Ref, #pending{server = none, caller = Caller}, State)
            catch
                error:system_limit -> {[{failed, [Ref | overload]}], State}
            end
    end;
%% A caller of version 0.2.0 does not say its group leader.
request(apply, [Ref, Caller, Module, Function | Args], Tx, State) when is_reference(Ref), is_pid(Caller), is_list(Args) ->
    request(apply, [Ref, Caller, group_leader(), Module, Function | Args], Tx, State);
request(apply_cast, [Leader, Module, Function | Args], _, State) when is_pid(Leader), is_list(Args) ->
    _ = try spawn(?MODULE, cast, [Leader, Module, Function, Args])
        catch error:system_limit -> lost
        end,
    {[], State};
request(apply_cast, [Module, Function | Args], Tx, State) when is_list(Args) ->
    request(apply_cast, [group_leader(), Module, Function | Args], Tx, State);
request(cancel, Ref, _, State) when is_reference(Ref) ->
    case forget(Ref, State) of
        {ok, Next} -> {[], Next};
        unknown -> {[], State}
    end.

deliver(Dest, Message) when is_pid(Dest), node(Dest) =:= node() ->
    Dest ! Message,
    ok;
deliver(teleport_groups, Message) ->
    teleport_groups:deliver(Message);
deliver(Dest, Message) when is_atom(Dest) ->
    try Dest ! Message of
        _ -> ok
    catch
        error:badarg -> noproc
    end.

call(Ref, Caller, Dest, Message, #calls{pending = Pending, max = Max, servers = Servers} = State) ->
    case server(Dest) of
        undefined -> {[{failed, [Ref | noproc]}], State};
        _ when map_size(Pending) >= Max -> {[{failed, [Ref | overload]}], State};
        Server ->
            {Monitor, Calls} = case Servers of
                                   #{Server := Known} -> Known;
                                   #{} -> {monitor(process, Server), 0}
                               end,
            Server ! Message,
            added(Ref, #pending{server = Server, caller = Caller}, State#calls{servers = Servers#{Server => {Monitor, Calls + 1}}})
    end.

server(Dest) when is_pid(Dest), node(Dest) =:= node() -> Dest;
server(Dest) when is_atom(Dest) ->
    case whereis(Dest) of
        Pid when is_pid(Pid) -> Pid;
        _ -> undefined
    end.

added(Ref, Call, #calls{pending = Pending} = State) -> watch_later(State#calls{pending = Pending#{Ref => Call}}).

watch_later(#calls{watching = false} = State) -> {[{watch_in, ?PARKED_MS}], State#calls{watching = true}};
watch_later(State) -> {[], State}.

%% @doc A server has sent `{Ref, Reply}'. Perhaps nobody waits for it any more, or it came twice.
-spec replied(reference(), Reply :: term(), calls()) -> {[effect()], calls()}.
replied(Ref, Reply, State) ->
    case forget(Ref, State) of
        {ok, Next} -> {[{reply, [Ref | Reply]}], Next};
        unknown -> {[], State}
    end.

%% @doc The process that applies a function has ended. It has answered itself, or what ended it may look like an error of the lane. Perhaps nobody waits.
-spec applied(reference(), Reason :: term(), calls()) -> {[effect()], calls()}.
applied(Ref, Reason, State) ->
    case forget(Ref, State) of
        {ok, Next} -> {[{failed, [Ref | {signal, Reason}]} || Reason =/= {?MODULE, answered}], Next};
        unknown -> {[], State}
    end.

forget(Ref, #calls{pending = Pending} = State) ->
    case maps:take(Ref, Pending) of
        {#pending{server = Server} = Call, Rest} -> {ok, less(Server, unwatched(Ref, Call, State#calls{pending = Rest}))};
        error -> unknown
    end.

unwatched(Ref, #pending{caller = Caller, age = watched}, #calls{callers = Callers} = State) ->
    #{Caller := {Monitor, Refs}} = Callers,
    case maps:remove(Ref, Refs) of
        None when map_size(None) =:= 0 ->
            true = demonitor(Monitor, [flush]),
            State#calls{callers = maps:remove(Caller, Callers)};
        Rest ->
            State#calls{callers = Callers#{Caller := {Monitor, Rest}}}
    end;
unwatched(_, _, State) ->
    State.

%% @doc The time of `watch_in' is over. What has waited since the last time but one has its caller watched from now on: if that ends, its calls
%% are forgotten.
-spec watch(calls()) -> {[effect()], calls()}.
watch(#calls{pending = Pending} = State) when map_size(Pending) =:= 0 ->
    {[], State#calls{watching = false}};
watch(#calls{pending = Pending} = State) ->
    watch_later(maps:fold(fun watch/3, State#calls{watching = false}, Pending)).

watch(Ref, #pending{age = new} = Call, #calls{pending = Pending} = State) -> State#calls{pending = Pending#{Ref := Call#pending{age = old}}};
watch(Ref, #pending{age = old} = Call, State) -> watched(Ref, Call, State);
watch(_, #pending{age = watched}, State) -> State.

watched(Ref, #pending{caller = Caller} = Call, #calls{pending = Pending, callers = Callers} = State) ->
    {Monitor, Refs} = case Callers of
                          #{Caller := Known} -> Known;
                          #{} -> {monitor(process, Caller), #{}}
                      end,
    State#calls{pending = Pending#{Ref := Call#pending{age = watched}}, callers = Callers#{Caller => {Monitor, Refs#{Ref => []}}}}.

less(Server, #calls{servers = Servers} = State) ->
    case Servers of
        #{Server := {Monitor, 1}} when map_size(Servers) > ?MAX_IDLE ->
            true = demonitor(Monitor, [flush]),
            State#calls{servers = maps:remove(Server, Servers)};
        #{Server := {Monitor, Calls}} ->
            State#calls{servers = Servers#{Server := {Monitor, Calls - 1}}};
        #{} ->
            State
    end.

%% @doc A server has ended, or a caller.
-spec down(reference(), pid(), Reason :: term(), calls()) -> {[effect()], calls()}.
down(Monitor, Pid, Reason, #calls{servers = Servers, callers = Callers} = State) ->
    case {Servers, Callers} of
        {#{Pid := {Monitor, 0}}, _} -> {[], State#calls{servers = maps:remove(Pid, Servers)}};
        {#{Pid := {Monitor, _}}, _} -> server_down(Pid, Reason, State);
        {_, #{Pid := {Monitor, Refs}}} -> {[], lists:foldl(fun forgotten/2, State, maps:keys(Refs))};
        _ -> {[], State}
    end.

server_down(Server, Reason, #calls{servers = Servers, pending = Pending} = State) ->
    Calls = [Ref || {Ref, #pending{server = Of}} <- maps:to_list(Pending), Of =:= Server],
    {[{failed, [Ref | Reason]} || Ref <- Calls], (lists:foldl(fun forgotten/2, State, Calls))#calls{servers = maps:remove(Server, Servers)}}.

forgotten(Ref, State) ->
    {ok, Next} = forget(Ref, State),
    Next.

%% @private Applies the function with the caller's group leader, and answers, as erpc does. With the lane's it would end when teleport is stopped.
-spec run(teleport_sender:tx(), reference(), Leader :: pid(), {module(), atom()}, [term()], MaxMessageBytes :: pos_integer()) -> no_return().
run(Tx, Ref, Leader, {Module, Function}, Args, MaxMessage) ->
    true = group_leader(Leader, self()),
    Result = try {return, apply(Module, Function, Args)}
             catch
                 throw:Thrown -> {throw, Thrown};
                 exit:Reason -> {exit, Reason};
                 error:Reason:Stack -> {error, Reason, own_part(Stack)}
             end,
    {Kind, Packed} = packed({reply, [Ref | Result]}, MaxMessage),
    _ = teleport_sender:send(Tx, erlang:phash2(self()), Kind, Packed, element(3, Packed), {block, infinity}),
    exit({?MODULE, answered}).

%% @private The same without an answer.
-spec cast(Leader :: pid(), module(), atom(), [term()]) -> term().
cast(Leader, Module, Function, Args) ->
    true = group_leader(Leader, self()),
    apply(Module, Function, Args).

%% Without what is ours.
own_part(Stack) -> [Frame || Frame <- Stack, element(1, Frame) =/= ?MODULE].

%% @doc An answer as the lane carries it. One that is too large becomes `too_big': the caller's node would close the lane.
-spec packed({reply | failed, Answer :: term()}, MaxMessageBytes :: pos_integer()) -> {reply | failed, teleport_sender:packed()}.
packed({Kind, [Ref | _] = Answer}, Max) ->
    case teleport_term:pack(Answer) of
        {_, _, Bytes} when Bytes > Max -> {failed, teleport_term:pack([Ref | {too_big, Bytes}])};
        Packed -> {Kind, Packed}
    end.

%% @doc How many calls are not answered.
-spec pending(calls()) -> non_neg_integer().
pending(#calls{pending = Pending}) -> map_size(Pending).
