%% SPDX-License-Identifier: Apache-2.0
%% @doc The acceptor's half of a lane: delivers messages, and keeps the calls that servers of this node have not answered.
%%
%% A server sees the lane's process as its client: `From' is that pid and the caller's own reference, so whatever answers an ordinary call
%% answers this one, and the answer comes to the lane's process, which sends it back. Servers are monitored here, where they are.
%% State of the lane's process; not for others.
-module(teleport_serve).

-export([new/1, request/4, replied/2, down/4, pending/1]).
-export([run/4]).
-export_type([serve/0, answer/0]).

%% `[Ref | Answer]' is what goes over the lane: a cell is shorter than a tuple.
-dialyzer({no_improper_lists, [request/4, call/4, down/4, run/4]}).

-record(serve, {max :: pos_integer(),
                pending = #{} :: #{reference() => pid()},
                servers = #{} :: #{pid() => {Monitor :: reference(), Calls :: non_neg_integer()}}}).
-opaque serve() :: #serve{}.
-type answer() :: {reply | failed, term()}.

%% Monitors of servers that have no calls now are kept up to this number: most will be called again.
-define(MAX_IDLE, 1024).

%% @doc With a limit of unanswered calls.
-spec new(MaxPending :: pos_integer()) -> serve().
new(MaxPending) -> #serve{max = MaxPending}.

%% @doc Does what a peer asks for. `Tx' is the lane itself, over which long work answers. Fails if the peer sent what no peer sends.
-spec request(teleport_frame:kind(), term(), teleport_tx:tx(), serve()) -> {[answer()], serve()}.
request(message, [Dest | Message], _, Serve) ->
    _ = deliver(Dest, Message),
    {[], Serve};
request(confirmed, [Ref, Dest | Message], _, Serve) when is_reference(Ref) ->
    case deliver(Dest, Message) of
        ok -> {[{reply, [Ref | confirmed]}], Serve};
        noproc -> {[{failed, [Ref | noproc]}], Serve}
    end;
request(call, [Ref, Dest | Request], _, Serve) when is_reference(Ref) ->
    call(Ref, Dest, {'$gen_call', {self(), Ref}, Request}, Serve);
request(event_call, [Ref, Dest | Request], _, Serve) when is_reference(Ref) ->
    call(Ref, Dest, {self(), {self(), Ref}, Request}, Serve);
request(other_call, [Ref, Dest, Label | Request], _, Serve) when is_reference(Ref), is_atom(Label) ->
    call(Ref, Dest, {Label, {self(), Ref}, Request}, Serve);
request(apply, [Ref, Module, Function | Args], Tx, #serve{pending = Pending, max = Max} = Serve) when is_reference(Ref), is_list(Args) ->
    case map_size(Pending) >= Max of
        true -> {[{failed, [Ref | overload]}], Serve};
        false ->
            {Worker, Monitor} = spawn_monitor(?MODULE, run, [Tx, Ref, {Module, Function}, Args]),
            {[], added(Ref, Worker, Monitor, Serve)}
    end;
request(apply_cast, [Module, Function | Args], _, Serve) when is_list(Args) ->
    _ = spawn(Module, Function, Args),
    {[], Serve};
request(cancel, Ref, _, #serve{pending = Pending} = Serve) when is_reference(Ref) ->
    case maps:take(Ref, Pending) of
        {Server, Rest} -> {[], less(Server, Serve#serve{pending = Rest})};
        error -> {[], Serve}
    end.

deliver(Dest, Message) when is_pid(Dest), node(Dest) =:= node() ->
    Dest ! Message,
    ok;
deliver(Dest, Message) when is_atom(Dest) ->
    try Dest ! Message of
        _ -> ok
    catch
        error:badarg -> noproc
    end.

call(Ref, Dest, Message, #serve{pending = Pending, max = Max, servers = Servers} = Serve) ->
    case server(Dest) of
        undefined -> {[{failed, [Ref | noproc]}], Serve};
        _ when map_size(Pending) >= Max -> {[{failed, [Ref | overload]}], Serve};
        Server ->
            Monitor = case Servers of
                          #{Server := {Known, _}} -> Known;
                          #{} -> monitor(process, Server)
                      end,
            Server ! Message,
            {[], added(Ref, Server, Monitor, Serve)}
    end.

server(Dest) when is_pid(Dest), node(Dest) =:= node() -> Dest;
server(Dest) when is_atom(Dest) ->
    case whereis(Dest) of
        Pid when is_pid(Pid) -> Pid;
        _ -> undefined
    end.

added(Ref, Server, Monitor, #serve{pending = Pending, servers = Servers} = Serve) ->
    Calls = case Servers of
                #{Server := {_, Some}} -> Some;
                #{} -> 0
            end,
    Serve#serve{pending = Pending#{Ref => Server}, servers = Servers#{Server => {Monitor, Calls + 1}}}.

%% @doc A server has sent `{Ref, Reply}'. `unknown': nobody waits for it, or it came twice.
-spec replied(reference(), serve()) -> {ok, serve()} | unknown.
replied(Ref, #serve{pending = Pending} = Serve) ->
    case maps:take(Ref, Pending) of
        {Server, Rest} -> {ok, less(Server, Serve#serve{pending = Rest})};
        error -> unknown
    end.

less(Server, #serve{servers = Servers} = Serve) ->
    case Servers of
        #{Server := {Monitor, 1}} when map_size(Servers) > ?MAX_IDLE ->
            true = demonitor(Monitor, [flush]),
            Serve#serve{servers = maps:remove(Server, Servers)};
        #{Server := {Monitor, Calls}} ->
            Serve#serve{servers = Servers#{Server := {Monitor, Calls - 1}}};
        #{} ->
            Serve
    end.

%% @doc A server has ended, or a process that worked for {@link request/4}.
-spec down(reference(), pid(), Reason :: term(), serve()) -> {[answer()], serve()}.
down(Monitor, Server, Reason, #serve{servers = Servers, pending = Pending} = Serve) ->
    case Servers of
        #{Server := {Monitor, 0}} ->
            {[], Serve#serve{servers = maps:remove(Server, Servers)}};
        #{Server := {Monitor, _}} ->
            Refs = [Ref || {Ref, Of} <- maps:to_list(Pending), Of =:= Server],
            {[{failed, [Ref | Reason]} || Ref <- Refs, Reason =/= {?MODULE, answered}],
             Serve#serve{servers = maps:remove(Server, Servers), pending = maps:without(Refs, Pending)}};
        #{} ->
            {[], Serve}
    end.

%% @private Applies the function, and answers as erpc does.
-spec run(teleport_tx:tx(), reference(), {module(), atom()}, [term()]) -> no_return().
run(Tx, Ref, {Module, Function}, Args) ->
    Result = try {return, apply(Module, Function, Args)}
             catch
                 throw:Thrown -> {throw, Thrown};
                 exit:Reason -> {exit, Reason};
                 error:Reason:Stack -> {error, Reason, own_part(Stack)}
             end,
    Packed = teleport_term:pack([Ref | Result]),
    _ = teleport_tx:send(Tx, erlang:phash2(self()), reply, Packed, element(3, Packed), {block, infinity}),
    exit({?MODULE, answered}).

%% Without what is ours.
own_part(Stack) -> [Frame || Frame <- Stack, element(1, Frame) =/= ?MODULE].

%% @doc How many calls are not answered.
-spec pending(serve()) -> non_neg_integer().
pending(#serve{pending = Pending}) -> map_size(Pending).
