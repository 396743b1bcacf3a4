%% SPDX-License-Identifier: Apache-2.0
%% @doc How a message or a call finds its lane, and how the reply finds its caller.
%%
%% A call is a monitor of the lane's process whose reference is an alias as well: the reply comes to the alias, which ends the monitor; a
%% lost lane comes as `DOWN'. So a caller waits for one reference whatever happens, and a late reply goes nowhere.
-module(teleport_request).

-export([send/3, call/5, begin_call/4, open/3, ref/1, wait/2, finish/2, check/2, checked/1, checked/2, is_option/2, apply_cast/5]).
-export_type([id/0, kind/0]).

-type kind() :: call | confirmed | event_call | {other_call, Label :: atom()} | {apply, module(), atom()}.
-opaque id() :: {?MODULE, reference(), Where :: lane | {gen, node()}, teleport:dest(), Sent :: none | {helper, pid()} | {teleport_sender:tx(), Key :: non_neg_integer(), node()}}.
%% `none': the request could not be sent. Its caller hears of that as of any other end: by a message.

-define(FAILED, '$teleport_failed').

%% ---- messages ----

%% @doc See {@link teleport:send/3}; options are checked.
-spec send(teleport:dest(), term(), teleport:options()) -> ok | {ok, reference()} | {error, teleport:reason()}.
send(Dest, Message, #{confirm := true} = Options) ->
    confirmed(find(Dest), Message, Options);
send(Dest, Message, Options) ->
    case find(Dest) of
        {remote, Node, Remote} ->
            Config = teleport_config:of_node(Node),
            case way(Node, Remote, Options, Config) of
                distribution -> teleport_distribution:send(Remote, Node, Message, maps:get(on_full, Options, maps:get(on_full, Config)), Options);
                lane ->
                    OnFull = on_full(Config, Options),
                    transmit(Node, key(Remote, Options), message, teleport_term:pack([Remote | Message]), OnFull, {Config, Options},
                             fun() -> teleport_fallback:send(Node, teleport_distribution:address(Remote, Node), Message, OnFull) end)
            end;
        {local, Local} -> deliver(Local, Message);
        noproc -> {error, noproc}
    end.

way(Node, Remote, Options, Config) -> teleport_way:choose(Node, Remote, Options, Config, fun() -> opening_deadline(on_full(Config, Options)) end).

deliver(Pid, Message) when is_pid(Pid) ->
    Pid ! Message,
    ok;
deliver(Name, Message) ->
    try Name ! Message of
        _ -> ok
    catch error:badarg -> {error, noproc}
    end.

%% The answer comes to a process of its own, which turns it into a message; it lives until the answer, or the end of the lane or of the sender.
confirmed(noproc, _, _) ->
    {error, noproc};
confirmed({local, Local}, Message, _) ->
    case deliver(Local, Message) of
        ok -> Ref = make_ref(), self() ! {teleport, Ref, confirmed}, {ok, Ref};
        {error, Reason} -> {error, Reason}
    end;
confirmed({remote, Node, Remote}, Message, Options) ->
    confirmed(Node, Remote, Message, on_full(teleport_config:of_node(Node), Options), Options).

confirmed(Node, Remote, Message, OnFull, Options) ->
    Config = teleport_config:of_node(Node),
    Key = key(Remote, Options),
    Sender = self(),
    Public = make_ref(),
    case lane(Node, Key, Config, Options, OnFull) of
        {ok, Tx} ->
            {Waiter, Monitor} = spawn_monitor(fun() -> await_confirmation(Sender, Public, teleport_sender:pid(Tx), Node) end),
            receive
                {Waiter, Alias} ->
                    case over(Tx, Key, confirmed, teleport_term:pack([Alias, Remote | Message]), OnFull, {Node, Config, Options}) of
                        ok ->
                            true = demonitor(Monitor, [flush]),
                            {ok, Public};
                        {error, Refusal} ->
                            ok = dismissed(Waiter, Monitor, Public),
                            case next(Refusal, Tx, Key, opening_deadline(OnFull), {Node, Options}) of
                                again -> confirmed(Node, Remote, Message, OnFull, Options);
                                {error, Reason} -> {error, Reason}
                            end
                    end;
                {'DOWN', Monitor, process, Waiter, Reason} -> {error, {no_lane, Reason}}
            end;
        {error, Reason} -> {error, Reason}
    end.

%% It may have told of the lane's end before.
dismissed(Waiter, Monitor, Public) ->
    true = exit(Waiter, kill),
    receive {'DOWN', Monitor, process, Waiter, _} -> ok end,
    receive {teleport, Public, _} -> ok after 0 -> ok end.

%% No timeout: the lane's end ends it. So does the sender's: it may have been killed before the lane had its message.
await_confirmation(Sender, Public, Lane, Node) ->
    _ = monitor(process, Sender),
    Ref = monitor(process, Lane, [{alias, reply_demonitor}]),
    Sender ! {self(), Ref},
    Result = receive
                 {Ref, confirmed} -> confirmed;
                 {Ref, ?FAILED, Reason} -> {unconfirmed, Reason};
                 {'DOWN', Ref, process, Lane, Reason} -> {unconfirmed, teleport_lane:lost(Node, Reason)};
                 {'DOWN', _, process, Sender, _} -> nobody_waits
             end,
    Sender ! {teleport, Public, Result}.

%% ---- calls ----

%% @doc See {@link teleport:call/4}.
-spec call(kind(), teleport:dest(), term(), timeout(), teleport:options()) -> term().
call(Kind, Dest, Request, Timeout, Options) ->
    case map_size(Options) =:= 0 andalso teleport_way:is_direct(Dest) of
        true -> gen_call(teleport_direct, Kind, Dest, Request, Timeout, {Dest, Request, Timeout});
        false -> find_and_call(Kind, Dest, Request, Timeout, Options)
    end.

find_and_call(Kind, Dest, Request, Timeout, Options) ->
    case find(Dest) of
        {remote, Node, Remote} ->
            Call = {Dest, Request, Timeout},
            Deadline = teleport_deadline:in(Timeout),
            case teleport_way:choose(Node, Remote, Options, teleport_config:of_node(Node), fun() -> Deadline end) of
                lane -> remote_call(Kind, Node, Remote, Request, Deadline, Options, Call);
                distribution -> gen_call(teleport_direct, Kind, teleport_distribution:address(Remote, Node), Request, Timeout, Call)
            end;
        {local, Local} -> gen_call(gen, Kind, Local, Request, Timeout, {Dest, Request, Timeout});
        noproc -> failed(noproc, {Dest, Request, Timeout})
    end.

remote_call(Kind, Node, Remote, Request, Deadline, Options, Call) ->
    Config = teleport_config:of_node(Node),
    Key = key(Remote, Options),
    case lane(Node, Key, Config, Options, {block, Deadline}) of
        {ok, Tx} ->
            Lane = teleport_sender:pid(Tx),
            Ref = monitor(process, Lane, [{alias, reply_demonitor}]),
            case over(Tx, Key, frame_kind(Kind), pack(Kind, Ref, Remote, Request, Tx), full_call(Deadline, Options), {Node, Config, Options}) of
                ok ->
                    receive
                        {Ref, Reply} -> Reply;
                        {Ref, ?FAILED, Reason} -> failed(Reason, Call);
                        {'DOWN', Ref, process, Lane, Reason} -> failed(teleport_lane:lost(Node, Reason), Call)
                    after teleport_deadline:left(Deadline) ->
                        given_up(Ref, {Tx, Key, Node}, Call)
                    end;
                {error, Refusal} ->
                    true = demonitor(Ref, [flush]),
                    case next(Refusal, Tx, Key, Deadline, {Node, Options}) of
                        again -> remote_call(Kind, Node, Remote, Request, Deadline, Options, Call);
                        {error, Reason} -> failed(Reason, Call)
                    end
            end;
        {error, {no_teleport, _}} when not is_map_key(way, Options) ->
            case teleport_fallback:call(Node, teleport_distribution:address(Remote, Node), label(Kind), Request, teleport_deadline:left(Deadline)) of
                changed -> remote_call(Kind, Node, Remote, Request, Deadline, Options, Call);
                {reply, Reply} -> Reply;
                {error, Reason} -> failed(Reason, Call)
            end;
        {error, Reason} -> failed(Reason, Call)
    end.

full_call(_, #{on_full := error}) -> error;
full_call(Deadline, _) -> {block, Deadline}.

%% The server's node need not keep what nobody waits for. If there is no room for saying so, it does until the server answers.
given_up(Ref, Sent, Call) ->
    true = demonitor(Ref, [flush]),
    receive
        {Ref, Reply} -> Reply;
        {Ref, ?FAILED, Reason} -> failed(Reason, Call)
    after 0 ->
        ok = cancel(Ref, Sent),
        failed(timeout, Call)
    end.

-spec failed(term(), {teleport:dest(), term(), timeout()}) -> no_return().
failed(Reason, {Dest, Request, Timeout}) ->
    exit({Reason, {teleport, call, [Dest, Request, Timeout]}}).

frame_kind({other_call, _}) -> other_call;
frame_kind({apply, _, _}) -> apply;
frame_kind(Kind) -> Kind.

pack({other_call, Label}, Ref, Remote, Request, _) -> teleport_term:pack([Ref, self(), Remote, Label | Request]);
pack(confirmed, Ref, Remote, Message, _) -> teleport_term:pack([Ref, Remote | Message]);
pack({apply, Module, Function}, Ref, _, Args, Tx) -> teleport_term:pack([Ref, self() | led([Module, Function | Args], Tx)]);
pack(_, Ref, Remote, Request, _) -> teleport_term:pack([Ref, self(), Remote | Request]).

%% What is applied, behind the group leader that it gets.
led(Applied, Tx) ->
    case teleport_sender:takes_leaders(Tx) of
        true -> [group_leader() | Applied];
        false -> Applied
    end.

gen_call(Module, Kind, Server, Request, Timeout, Call) ->
    try Module:call(Server, label(Kind), Request, Timeout) of
        {ok, Reply} -> Reply
    catch exit:Reason -> failed(Reason, Call)
    end.

label(call) -> '$gen_call';
label(event_call) -> self();
label({other_call, Label}) -> Label.

%% ---- requests whose reply is taken later ----

%% @doc See {@link teleport:send_request/2}.
-spec begin_call(kind(), teleport:dest(), term(), teleport:options()) -> id().
begin_call({apply, Module, Function}, {_, Node} = Dest, Args, Options) when Node =:= node(); map_get(way, Options) =:= distribution ->
    apart(Node, Module, Function, Args, Dest);
begin_call(Kind, Dest, Request, Options) ->
    case find(Dest) of
        {remote, Node, Remote} when element(1, Kind) =:= apply -> begin_remote(Kind, Node, Remote, Request, Options, Dest);
        {remote, Node, Remote} ->
            case way(Node, Remote, Options, teleport_config:of_node(Node)) of
                lane -> begin_remote(Kind, Node, Remote, Request, Options, Dest);
                distribution -> begin_gen(Kind, teleport_distribution:address(Remote, Node), Request, {gen, Node}, Dest)
            end;
        {local, Local} -> begin_gen(Kind, Local, Request, {gen, node()}, Dest);
        noproc -> not_begun(noproc, Dest)
    end.

begin_gen(Kind, Server, Request, Where, Dest) -> {?MODULE, gen:send_request(Server, label(Kind), Request), Where, Dest, none}.

not_begun(Reason, Dest) ->
    Ref = make_ref(),
    self() ! {Ref, ?FAILED, Reason},
    {?MODULE, Ref, lane, Dest, none}.

%% A function that no lane carries: a process of its own gives the result in the shape of a lane's.
apart(Node, Module, Function, Args, Dest) ->
    Caller = self(),
    {Helper, Ref} = spawn_opt(fun() -> help(Caller, Node, Module, Function, Args) end, [{monitor, [{alias, reply_demonitor}]}]),
    Helper ! {Caller, Ref},
    {?MODULE, Ref, lane, Dest, {helper, Helper}}.

help(Caller, Node, Module, Function, Args) ->
    Monitor = monitor(process, Caller),
    receive
        {Caller, Ref} ->
            true = demonitor(Monitor, [flush]),
            _ = erlang:send(Ref, answered(Ref, Node, Module, Function, Args)),
            ok;
        {'DOWN', Monitor, process, Caller, _} -> ok
    end.

%% Not by erpc:call: that applies a function of this node in the helper itself, and it would end with a request that is given up.
answered(Ref, Node, Module, Function, Args) ->
    try {Ref, {return, erpc:receive_response(erpc:send_request(Node, Module, Function, Args))}}
    catch
        throw:Thrown -> {Ref, {throw, Thrown}};
        exit:{exception, Reason} -> {Ref, {exit, Reason}};
        exit:{signal, Reason} -> {Ref, ?FAILED, {signal, Reason}};
        error:{exception, Reason, Stack} -> {Ref, {error, Reason, Stack}};
        error:{erpc, Reason} -> {Ref, {erpc, Reason}}
    end.

begin_remote(Kind, Node, Remote, Request, Options, Dest) ->
    #{block_ms := BlockMs} = teleport_config:of_node(Node),
    begin_remote(Kind, Node, Remote, Request, Options, Dest, teleport_deadline:in(maps:get(timeout, Options, BlockMs))).

begin_remote(Kind, Node, Remote, Request, Options, Dest, Deadline) ->
    Config = teleport_config:of_node(Node),
    Key = key(Remote, Options),
    case lane(Node, Key, Config, Options, {block, Deadline}) of
        {ok, Tx} ->
            Ref = monitor(process, teleport_sender:pid(Tx), [{alias, reply_demonitor}]),
            case over(Tx, Key, frame_kind(Kind), pack(Kind, Ref, Remote, Request, Tx), full_call(Deadline, Options), {Node, Config, Options}) of
                ok -> {?MODULE, Ref, lane, Dest, {Tx, Key, Node}};
                {error, Refusal} ->
                    true = demonitor(Ref, [flush]),
                    case next(Refusal, Tx, Key, Deadline, {Node, Options}) of
                        again -> begin_remote(Kind, Node, Remote, Request, Options, Dest, Deadline);
                        {error, Reason} -> not_begun(Reason, Dest)
                    end
            end;
        {error, {no_teleport, _}} when Kind =/= confirmed, not is_map_key(way, Options) ->
            case begin_plain(Kind, Node, Remote, Request, Dest) of
                changed -> begin_remote(Kind, Node, Remote, Request, Options, Dest, Deadline);
                Id -> Id
            end;
        {error, Reason} ->
            not_begun(Reason, Dest)
    end.

begin_plain({apply, Module, Function}, Node, _, Args, Dest) ->
    ok = teleport_fallback:counted(Node),
    apart(Node, Module, Function, Args, Dest);
begin_plain(Kind, Node, Remote, Request, Dest) ->
    case teleport_fallback:begin_call(Node, teleport_distribution:address(Remote, Node), label(Kind), Request) of
        {done, Id} -> {?MODULE, Id, {gen, Node}, Dest, none};
        changed -> changed
    end.

%% @doc The reference that all messages about a request bear.
-spec ref(id()) -> reference().
ref({?MODULE, Ref, _, _, _}) -> Ref;
ref(_) -> error(badarg).

%% @doc See {@link teleport:wait_response/2}.
-spec wait(id(), teleport_deadline:limit()) -> {reply, term()} | timeout | {error, {term(), teleport:dest()}}.
wait({?MODULE, Ref, {gen, Node}, _, _}, Limit) -> of_gen(gen:wait_response(Ref, Limit), Node);
wait({?MODULE, Ref, lane, Dest, Sent}, Limit) ->
    receive
        {Ref, Reply} -> {reply, Reply};
        {Ref, ?FAILED, Reason} -> {error, {Reason, Dest}};
        {'DOWN', Ref, process, _, Reason} -> {error, {ended(Sent, Reason), Dest}}
    after teleport_deadline:of_limit(Limit) -> timeout
    end.

%% @doc See {@link teleport:receive_response/2}.
-spec finish(id(), teleport_deadline:limit()) -> {reply, term()} | timeout | {error, {term(), teleport:dest()}}.
finish({?MODULE, Ref, {gen, Node}, _, _}, Limit) -> of_gen(gen:receive_response(Ref, Limit), Node);
finish({?MODULE, Ref, lane, Dest, Sent} = Id, Limit) ->
    case wait(Id, Limit) of
        timeout ->
            true = demonitor(Ref, [flush]),
            ok = cancel(Ref, Sent),
            receive
                {Ref, Reply} -> {reply, Reply};
                {Ref, ?FAILED, Reason} -> {error, {Reason, Dest}}
            after 0 -> timeout
            end;
        Other -> Other
    end.

%% With the request's key: behind it.
cancel(_, none) ->
    ok;
cancel(_, {helper, Helper}) ->
    true = exit(Helper, kill),
    ok;
cancel(Ref, {Tx, Key, _}) ->
    Packed = teleport_term:pack(Ref),
    _ = teleport_sender:send(Tx, Key, cancel, Packed, element(3, Packed), error),
    ok.

%% @doc See {@link teleport:check_response/2}.
-spec check(term(), id()) -> {reply, term()} | no_reply | {error, {term(), teleport:dest()}}.
check(Message, {?MODULE, Ref, {gen, Node}, _, _}) -> of_gen(gen:check_response(Message, Ref), Node);
check({Ref, Reply}, {?MODULE, Ref, lane, _, _}) -> {reply, Reply};
check({Ref, ?FAILED, Reason}, {?MODULE, Ref, lane, Dest, _}) -> {error, {Reason, Dest}};
check({'DOWN', Ref, process, _, Reason}, {?MODULE, Ref, lane, Dest, Sent}) -> {error, {ended(Sent, Reason), Dest}};
check(_, _) -> no_reply.

of_gen({error, {noconnection, Server}}, Node) -> {error, {{nodedown, Node}, Server}};
of_gen(Response, _) -> Response.

%% What was waited for has ended.
ended({helper, _}, Reason) -> {signal, Reason};
ended({_, _, Node}, Reason) -> teleport_lane:lost(Node, Reason).

%% ---- destinations, lanes and options ----

find(Pid) when is_pid(Pid) ->
    case node(Pid) of
        Node when Node =:= node() -> {local, Pid};
        Node -> {remote, Node, Pid}
    end;
find(Name) when is_atom(Name) -> {local, Name};
find({via, teleport, Dest}) -> find(Dest);
find({global, Name}) -> found(global:whereis_name(Name));
find({via, Module, Name}) -> found(Module:whereis_name(Name));
find({Name, Node}) when is_atom(Name), Node =:= node() -> {local, Name};
find({Name, Node}) when is_atom(Name), is_atom(Node) -> {remote, Node, Name};
find(Other) -> error({bad_destination, Other}).

found(undefined) -> noproc;
found(Pid) -> find(Pid).

%% The hash of the order key. `Remote' is what {@link find/1} has made of the destination: a message and a call that go to one process by whatever
%% name of `global' or `via' have one key. Without an order no random number decides: the caller may have a seed of its own, and count on what follows.
key(_, #{unordered := true}) -> erlang:phash2(erlang:unique_integer());
key(_, #{key := Key}) -> erlang:phash2(Key);
key(Remote, _) -> erlang:phash2({self(), Remote}).

class(Options) -> maps:get(class, Options, normal).

lane(Node, Key, #{lanes := Lanes}, Options, OnFull) ->
    Class = class(Options),
    teleport_peers:lane(Node, Class, Key, maps:get(Class, Lanes), opening_deadline(OnFull)).

%% @doc Waits until the lane is up over which these options lead. They have a `key'.
-spec open(node(), teleport:options(), teleport_deadline:deadline()) -> ok | {error, teleport:reason()}.
open(Node, Options, Deadline) ->
    case lane(Node, key('', Options), teleport_config:of_node(Node), Options, {block, Deadline}) of
        {ok, _} -> ok;
        {error, Reason} -> {error, Reason}
    end.

%% Who does not wait for room waits for a lane all the same, for there is nothing yet that could be full.
opening_deadline({block, Deadline}) -> Deadline;
opening_deadline(_) -> teleport_deadline:in(5000).

on_full(#{on_full := OnFull, block_ms := BlockMs}, Options) ->
    case maps:get(on_full, Options, OnFull) of
        block -> {block, teleport_deadline:in(maps:get(timeout, Options, BlockMs))};
        Other -> Other
    end.

%% @doc See {@link teleport_erpc:cast/5}; options are checked.
-spec apply_cast(node(), module(), atom(), [term()], teleport:options()) -> ok | {error, teleport:reason()}.
apply_cast(Node, Module, Function, Args, Options) ->
    Config = teleport_config:of_node(Node),
    Pack = fun(Tx) -> teleport_term:pack(led([Module, Function | Args], Tx)) end,
    Plain = fun() -> case teleport_fallback:cast(Node, Module, Function, Args) of {done, ok} -> ok; changed -> changed end end,
    transmit(Node, key('', Options), apply_cast, Pack, on_full(Config, Options), {Config, Options}, Plain).

%% Sends over the key's lane; if that is lost before it took the message, over the one that follows.
%% `Plain' sends by distribution. A fun packs what depends on the lane.
-spec transmit(node(), Key :: non_neg_integer(), teleport_frame:kind(), Packed, OnFull, {teleport_config:config(), teleport:options()}, Plain) ->
          ok | {error, teleport:reason()}
              when Packed :: teleport_sender:packed() | fun((teleport_sender:tx()) -> teleport_sender:packed()),
                   OnFull :: {block, teleport_deadline:deadline()} | error | drop, Plain :: fun(() -> ok | changed | {error, teleport:reason()}).
transmit(Node, Key, Kind, Packed, OnFull, {Config, Options} = With, Plain) ->
    case lane(Node, Key, Config, Options, OnFull) of
        {ok, Tx} ->
            case over(Tx, Key, Kind, packed(Packed, Tx), OnFull, {Node, Config, Options}) of
                ok -> ok;
                {error, Refusal} ->
                    case next(Refusal, Tx, Key, opening_deadline(OnFull), {Node, Options}) of
                        again -> transmit(Node, Key, Kind, Packed, OnFull, With, Plain);
                        {error, Reason} -> {error, Reason}
                    end
            end;
        {error, {no_teleport, _}} when not is_map_key(way, Options) ->
            case Plain() of
                changed -> transmit(Node, Key, Kind, Packed, OnFull, With, Plain);
                Done -> Done
            end;
        {error, Reason} -> {error, Reason}
    end.

packed(Pack, Tx) when is_function(Pack) -> Pack(Tx);
packed(Packed, _) -> Packed.

%% A limit that was lowered since the lane was opened counts at once.
over(Tx, Key, Kind, Packed, OnFull, {Node, #{max_message_bytes := Max}, Options}) ->
    case {element(3, Packed), teleport_sender:max_message_bytes(Tx)} of
        {Bytes, Agreed} when Bytes > Max; Bytes > Agreed -> {error, {too_big, Bytes}};
        {Bytes, _} ->
            ok = teleport_sender:seen(Tx, Key),
            case teleport_sender:send(Tx, Key, Kind, Packed, Bytes, OnFull) of
                ok -> ok;
                {error, closed} -> {error, closed};
                Full ->
                    How = case OnFull of {block, _} -> block; _ -> OnFull end,
                    ok = teleport_events:emit(Node, [teleport, overload], #{bytes => Bytes}, #{way => lane, class => class(Options), on_full => How}),
                    case {Full, Kind} of
                        {dropped, confirmed} -> {error, overload};
                        {dropped, _} -> ok;
                        _ -> Full
                    end
            end
    end.

%% What follows a refusal. `again': the lane was lost before it took the message, and the next one, or the distribution, may take it.
next(closed, Tx, Key, Deadline, {Node, Options}) ->
    case teleport_peers:next(Node, class(Options), Key, teleport_sender:pid(Tx), Deadline) of
        {error, Reason} when Reason =/= {no_teleport, Node} -> {error, Reason};
        _ -> again
    end;
next(Reason, _, _, _, _) ->
    {error, Reason}.

%% @doc These options, if they are options of a message.
-spec checked(term()) -> teleport:options().
checked(Options) -> checked(fun is_option/2, Options).

%% @doc The same for what else has options.
-spec checked(fun((Name :: term(), Value :: term()) -> boolean()), term()) -> map().
checked(IsOption, Options) when is_map(Options) ->
    case [Bad || {Name, Value} = Bad <- maps:to_list(Options), not IsOption(Name, Value)] of
        [] -> Options;
        [{Name, Value} | _] -> error({bad_option, Name, Value})
    end;
checked(_, Other) ->
    error({bad_option, options, Other}).

%% @doc Whether a message may have this option.
-spec is_option(term(), term()) -> boolean().
is_option(class, Value) -> lists:member(Value, [control, normal, bulk]);
is_option(key, _) -> true;
is_option(unordered, Value) -> is_boolean(Value);
is_option(way, Value) -> lists:member(Value, [lane, distribution]);
is_option(confirm, Value) -> is_boolean(Value);
is_option(on_full, Value) -> lists:member(Value, [block, error, drop]);
is_option(timeout, Value) -> Value =:= infinity orelse is_integer(Value) andalso Value >= 0;
is_option(_, _) -> false.
