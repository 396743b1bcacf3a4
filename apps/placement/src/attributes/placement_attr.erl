%% SPDX-License-Identifier: Apache-2.0
%% @doc The attribute server of a node, registered as `attr_server'.
%%
%% Its tables belong to {@link placement_sup}, so a server that is killed restarts with all its attributes. It then
%% monitors their owners again and drops those that exited in the meantime. The server never evaluates a function itself
%% and never waits for another node. Each function runs in a separate process ({@link placement_eval}). An attribute has
%% at most one such process at a time, and at most 32 functions run concurrently.
%% Until the server is configured for the first time it does not answer at all, because an attribute that is not served
%% yet must not appear to be missing.
%%
%% Other nodes send one of these messages:
%% <ul><li>`{Pid, {report, Key, Names}}', the report's protocol: the server sends
%% `{report, Key, Node, [{Name, Value}]}' to `Pid', with `undefined' for unknown values.</li>
%% <li>`{placement, ReplyTo, Reference, Names}': the server sends `{placement, Reference, Version, [{Name, answer()}]}' to
%% `ReplyTo', which is a pid or an alias.</li></ul>
-module(placement_attr).
-behaviour(gen_server).

-include_lib("kernel/include/logger.hrl").

-export([start_link/0, configure/2, insert/2, update/2, delete/1, own/3, disown/2, names/0, failures/0, local/2, definitions/0, is_evaluated/1, without/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([answer/0, reason/0, version/0]).

-type reason() :: missing | busy | placement_eval:reason() | {wrong_type, Value :: term(), Wanted :: placement_entry:type()} | no_sample.
-type answer() :: {ok, Value :: term(), AgeMs :: non_neg_integer(), placement_unit:unit(), TtlMs :: non_neg_integer(), Tolerance :: number()}
                | {stale, Value :: term(), AgeMs :: non_neg_integer(), placement_unit:unit(), Tolerance :: number(), reason()}
                | {unknown, reason()}.
%% `stale': the last evaluation failed, so this is the previous value with its age. The caller decides whether the value
%% is too old.
-type version() :: {Creation :: non_neg_integer(), Changes :: non_neg_integer()}.
%% The version changes when the node restarts and whenever a static attribute changes.

-define(SERVER, attr_server).
-define(DEFINITIONS, placement_definitions).   %% {Name, placement_entry:definition()}
-define(VALUES, placement_values).             %% {Name, Value, AtMs, Failures} | {{samples, Name}, [{AtMs, Number}]} | {{kept, Key}, Term} (placement_builtin) | {?CHANGES, N} | {?CONFIGURED, true}
-define(OWNED, placement_owned).               %% {{Name, Pid}, Value | '$count', Order}
%% The key is not an atom, because any atom could be the name of an attribute.
-define(CHANGES, {server, changes}).
-define(CONFIGURED, {server, configured}).
-define(AT_ONCE, 32).
-define(NAMES_MAX, 1000).
-define(REQUESTS_MAX, 10000).
-define(CALL_MS, 5000).
-define(BACK_OFF_MS, 100).
-define(BACK_OFF_MAX_MS, 10000).

-record(evaluation, {pid :: pid(), timer :: reference(), definition :: placement_entry:definition(), stopped = false :: boolean()}).
-record(request, {reply :: fun(([{atom(), answer()}]) -> term()), names :: [atom()], open :: [atom()], answers :: #{atom() => answer()}}).
-record(state, {evaluations = #{} :: #{atom() => #evaluation{}},  %% evaluations in progress
                by_monitor = #{} :: #{reference() => atom()},
                waiting = [] :: [atom()],                          %% attributes whose evaluation is queued, in order
                requests = #{} :: #{pos_integer() => #request{}},  %% requests that have not been answered yet
                next = 1 :: pos_integer(),
                early = [] :: [{[atom()], fun(([{atom(), answer()}]) -> term())}],  %% requests that arrived before the attributes were configured, latest first
                owners = #{} :: #{reference() => {atom(), pid()}}}).

%% @doc Starts the server.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?SERVER}, ?MODULE, [], []).

%% @doc Replaces the configured attributes with the built-in ones (given as entries of a configuration file) and with
%% `Entries', which override built-in ones of the same name. Attributes that were inserted at run time are kept. An
%% attribute is unknown if its function does not exist, or if it is automatic and its function fails; a warning gives the
%% reason. If the function of an automatic attribute takes too long, it is called again whenever the attribute is
%% requested, until it returns a value.
-spec configure(BuiltIn :: [{placement_entry:name(), Entry :: term()}], [{placement_entry:name(), placement_entry:definition()}]) -> ok.
configure(BuiltIn, Entries) ->
    {ok, Parsed} = placement_entry:parse(BuiltIn),
    All = maps:merge(maps:from_list(Parsed), maps:from_list(Entries)),
    {Automatic, Rest} = lists:partition(fun({_, #{kind := Kind}}) -> Kind =:= automatic end, maps:to_list(All)),
    Evaluated = [{Name, Definition, evaluated(Definition)} || {Name, Definition} <- Automatic],
    Static = [{Name, as_static(Value, Definition)} || {Name, Definition, {ok, Value}} <- Evaluated],
    Late = [{Name, Definition} || {Name, Definition, {error, timeout}} <- Evaluated],
    ok = gen_server:call(?SERVER, {configure, Static ++ Late ++ Rest}, ?CALL_MS),
    Given = maps:from_list(Entries),
    Troubles = [{Name, Reason} || {Name, _, {error, Reason}} <- Evaluated, is_map_key(Name, Given)]
        ++ [{Name, no_such_function} || {Name, #{call := Call}} <- Rest, not placement_eval:is_exported(Call)],
    _ = [?LOG_WARNING("placement: attribute ~tp is not known on this node: ~ts", [Name, words(Reason)]) || {Name, Reason} <- Troubles],
    ok.

words(no_such_function) -> "its function does not exist";
words(timeout) -> "its function did not return in time (limit); it is tried again whenever somebody asks";
words(too_much_memory) -> "its function used more than 64 MiB";
words({too_large, Bytes}) -> io_lib:format("its value has ~b bytes, more than 65536", [Bytes]);
words({raised, Class, Reason}) -> io_lib:format("its function raised ~tp: ~0tP", [Class, Reason, 12]);
words({wrong_type, Value, Type}) -> io_lib:format("its function returned ~0tP, which is not of type ~tp", [Value, 12, Type]);
words(Reason) -> io_lib:format("~0tP", [Reason, 12]).

as_static(Value, Definition) -> Definition#{kind := static, value => Value}.

evaluated(#{call := Call, limit := Limit, type := Type}) -> typed(placement_eval:run(Call, Limit), Type).

%% @doc Adds an attribute, replacing any of the same name. The entry has the same form as in a configuration file.
-spec insert(placement_entry:name(), Entry :: term()) -> ok | {error, Text :: unicode:chardata()}.
insert(Name, Entry) when is_atom(Name) ->
    case placement_entry:definition(Name, Entry) of
        {ok, #{kind := automatic} = Definition} ->
            case evaluated(Definition) of
                {ok, Value} -> gen_server:call(?SERVER, {insert, Name, as_static(Value, Definition)}, ?CALL_MS);
                {error, Reason} -> {error, io_lib:format("attribute ~tp: its function failed: ~0tp", [Name, Reason])}
            end;
        {ok, Definition} -> gen_server:call(?SERVER, {insert, Name, Definition}, ?CALL_MS);
        {error, _} = Error -> Error
    end;
insert(Name, _) -> {error, io_lib:format("~0tP is not an attribute name; expected an atom", [Name, 10])}.

%% @doc Changes an existing attribute. With a plain value the attribute keeps its unit, type, ttl and tolerance.
-spec update(placement_entry:name(), Entry :: term()) -> ok | {error, Text :: unicode:chardata()}.
update(Name, Entry) ->
    case {ets_lookup(?DEFINITIONS, Name), placement_entry:definition(Name, Entry)} of
        {[], _} -> {error, io_lib:format("there is no attribute ~0tP to update; insert it first", [Name, 10])};
        {_, {error, _} = Error} -> Error;
        {[{_, Known}], {ok, #{kind := static, value := Entry} = New}} ->
            gen_server:call(?SERVER, {insert, Name, maps:merge(New, maps:with([unit, type, ttl, tolerance], Known))}, ?CALL_MS);
        {_, {ok, _}} -> insert(Name, Entry)
    end.

%% @doc Removes an attribute. It is not an error if the attribute does not exist.
-spec delete(placement_entry:name()) -> ok.
delete(Name) -> gen_server:call(?SERVER, {delete, Name}, ?CALL_MS).

%% @doc Adds an attribute that is removed when its owner exits. With `{value, V}' the attribute has the value of the most
%% recent owner that is alive; with `count' its value is the number of owners that are alive.
-spec own(placement_entry:name(), count | {value, term()}, pid()) -> ok | {error, {not_local, pid()} | {too_large, pos_integer()}}.
own(Name, What, Pid) when is_atom(Name), node(Pid) =:= node() ->
    case erlang:external_size(What) of
        Bytes when Bytes > 65536 -> {error, {too_large, Bytes}};
        _ -> gen_server:call(?SERVER, {own, Name, What, Pid}, ?CALL_MS)
    end;
own(_, _, Pid) -> {error, {not_local, Pid}}.

%% @doc Ends the given process's ownership of an attribute.
-spec disown(placement_entry:name(), pid()) -> ok.
disown(Name, Pid) -> gen_server:call(?SERVER, {disown, Name, Pid}, ?CALL_MS).

%% @doc Returns the names of all attributes of this node.
-spec names() -> [placement_entry:name()].
names() ->
    lists:usort([Name || {Name, _} <- ets:tab2list(?DEFINITIONS)] ++ [Name || {{Name, _}, _, _} <- ets:tab2list(?OWNED)]).

%% @doc Returns how often in a row the function of each attribute has failed, except for those of {@link
%% placement_builtin}, which fail on every system without the data that they read.
-spec failures() -> [{placement_entry:name(), non_neg_integer()}].
failures() ->
    [{Name, failures(ets:lookup(?VALUES, Name))}
     || {Name, #{call := {Module, _, _}} = Definition} <- definitions(), Module =/= placement_builtin, not placement_entry:is_kept(Definition)].

%% @doc Returns all definitions of this node.
-spec definitions() -> [{placement_entry:name(), placement_entry:definition()}].
definitions() -> lists:sort(ets:tab2list(?DEFINITIONS)).

%% @doc Returns whether a function computes this attribute of this node, in which case the value may
%% change at any time.
-spec is_evaluated(placement_entry:name()) -> boolean().
is_evaluated(Name) ->
    case ets_lookup(?DEFINITIONS, Name) of
        [{_, Definition}] -> not placement_entry:is_kept(Definition);
        [] -> false
    end.

%% @doc Returns the value that an owned attribute of this node would have if a process and its descendants did not
%% exist, or `same' if none of them owns it.
-spec without(placement_entry:name(), pid()) -> answer() | same.
without(Name, Pid) ->
    Owners = case ets:member(?DEFINITIONS, Name) of true -> []; false -> owners(Name) end,
    case [Owner || {{_, By}, _, _} = Owner <- Owners, not placement_family:is_in(By, Pid)] of
        Owners -> same;
        Others -> owned(Others)
    end.

%% @doc Returns attributes of this node without using the network.
-spec local([placement_entry:name()], TimeoutMs :: pos_integer()) -> {ok, [{placement_entry:name(), answer()}]} | {error, timeout | noproc}.
local(Names, TimeoutMs) ->
    Monitor = monitor(process, ?SERVER, [{alias, reply_demonitor}]),
    _ = catch ?SERVER ! {placement, Monitor, Monitor, Names},
    receive
        {placement, Monitor, _, Answers} -> {ok, Answers};
        {'DOWN', Monitor, process, _, _} -> {error, noproc}
    after TimeoutMs ->
        true = demonitor(Monitor, [flush]),
        receive {placement, Monitor, _, Answers} -> {ok, Answers} after 0 -> {error, timeout} end
    end.

ets_lookup(Table, Key) ->
    try ets:lookup(Table, Key) catch error:badarg -> [] end.

%% @private
-spec init(term()) -> {ok, #state{}}.
init(_) ->
    %% Starts the measurement for scheduler_utilization. The VM stops it when this process exits.
    _ = erlang:system_flag(scheduler_wall_time, true),
    Owners = [{monitor(process, Pid), {Name, Pid}} || {{Name, Pid}, _, _} <- ets:tab2list(?OWNED)],
    _ = [sample_after(Name, 0) || {Name, #{kind := sampled}} <- ets:tab2list(?DEFINITIONS)],
    {ok, #state{owners = maps:from_list(Owners)}}.

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call({configure, Entries}, _, #state{early = Early} = State) ->
    Known = ets:tab2list(?DEFINITIONS),
    _ = [forget(Name) || {Name, Definition} <- Known, not is_map_key(inserted, Definition)],
    _ = [define(Name, Definition) || {Name, Definition} <- Entries],
    _ = changed(),
    true = ets:insert(?VALUES, {?CONFIGURED, true}),
    {reply, ok, lists:foldr(fun({Names, Reply}, Acc) -> asked(Names, Reply, Acc) end, without_obsolete(State#state{early = []}), Early)};
handle_call({insert, Name, Definition}, _, State) ->
    _ = forget(Name),
    _ = define(Name, Definition#{inserted => true}),
    _ = changed(),
    {reply, ok, without_obsolete(State)};
handle_call({delete, Name}, _, State) ->
    _ = forget(Name),
    _ = changed(),
    {reply, ok, without_obsolete(State)};
handle_call({own, Name, What, Pid}, _, #state{owners = Owners} = State) ->
    Value = case What of count -> '$count'; {value, Given} -> Given end,
    Known = [Monitor || {Monitor, Owner} <- maps:to_list(Owners), Owner =:= {Name, Pid}],
    true = ets:insert(?OWNED, {{Name, Pid}, Value, erlang:unique_integer([monotonic])}),
    case Known of
        [] -> {reply, ok, State#state{owners = Owners#{monitor(process, Pid) => {Name, Pid}}}};
        [_] -> {reply, ok, State}
    end;
handle_call({disown, Name, Pid}, _, #state{owners = Owners} = State) ->
    Monitors = [Monitor || {Monitor, Owner} <- maps:to_list(Owners), Owner =:= {Name, Pid}],
    _ = [demonitor(Monitor, [flush]) || Monitor <- Monitors],
    true = ets:delete(?OWNED, {Name, Pid}),
    {reply, ok, State#state{owners = maps:without(Monitors, Owners)}};
handle_call(Other, _, State) ->
    {reply, {error, {unknown_request, Other}}, State}.

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast(_, State) -> {noreply, State}.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info({Pid, {report, Key, Names}}, State) when is_pid(Pid) ->
    Reply = fun(Answers) -> reply(Pid, {report, Key, node(), [{Name, plain(Answer)} || {Name, Answer} <- Answers]}) end,
    {noreply, asked(Names, Reply, State)};
handle_info({placement, ReplyTo, Reference, Names}, State) when is_pid(ReplyTo); is_reference(ReplyTo) ->
    Reply = fun(Answers) -> reply(ReplyTo, {placement, Reference, version(), Answers}) end,
    {noreply, asked(Names, Reply, State)};
handle_info({'DOWN', Monitor, process, Pid, Reason}, #state{by_monitor = ByMonitor, owners = Owners} = State) ->
    case {ByMonitor, Owners} of
        {#{Monitor := Name}, _} -> {noreply, evaluation_ended(Name, Reason, State#state{by_monitor = maps:remove(Monitor, ByMonitor)})};
        {_, #{Monitor := {Name, Pid}}} ->
            true = ets:delete(?OWNED, {Name, Pid}),
            {noreply, State#state{owners = maps:remove(Monitor, Owners)}};
        _ -> {noreply, State}
    end;
handle_info({limit, Name, Pid}, #state{evaluations = Evaluations} = State) ->
    case Evaluations of
        #{Name := #evaluation{pid = Pid} = Evaluation} ->
            true = placement_eval:stop(Pid),
            {noreply, State#state{evaluations = Evaluations#{Name := Evaluation#evaluation{stopped = true}}}};
        _ -> {noreply, State}
    end;
handle_info({sample, Name}, State) ->
    case ets:lookup(?DEFINITIONS, Name) of
        [{_, #{kind := sampled, every := Every}}] ->
            sample_after(Name, Every),
            {noreply, started(Name, State)};
        _ -> {noreply, State}
    end;
handle_info(_, State) ->
    %% Ignores unknown messages, because any process may send to a registered name.
    {noreply, State}.

%% A peer whose connection is busy must not delay the others, so the reply to it is dropped, and the peer has to send the
%% request again.
reply(To, Message) -> erlang:send(To, Message, [nosuspend, noconnect]).

plain({ok, Value, _, _, _, _}) -> Value;
plain(_) -> undefined.

version() -> {erlang:system_info(creation), stored(?CHANGES, 0)}.

%% Looks up a counter, a flag or another term that is kept in the same table as the values of
%% attributes, in a row of two elements.
stored(Key, Default) ->
    case ets:lookup(?VALUES, Key) of
        [{_, Term}] -> Term;
        [] -> Default
    end.

changed() -> ets:update_counter(?VALUES, ?CHANGES, 1, {?CHANGES, 0}).

define(Name, #{kind := Kind} = Definition) ->
    true = ets:insert(?DEFINITIONS, {Name, Definition}),
    Kind =:= sampled andalso sample_after(Name, 0).

forget(Name) ->
    true = ets:delete(?DEFINITIONS, Name),
    true = ets:delete(?VALUES, Name),
    true = ets:delete(?VALUES, {samples, Name}).

%% Each sampled attribute has one timer. If the attribute is redefined, its old timer is cancelled.
sample_after(Name, Ms) ->
    case erlang:get({timer, Name}) of
        undefined -> ok;
        Old -> _ = erlang:cancel_timer(Old), ok
    end,
    _ = erlang:put({timer, Name}, erlang:send_after(Ms, self(), {sample, Name})),
    true.

%%% Requests

asked(Names, Reply, #state{early = Early} = State) when is_list(Names), length(Names) =< ?NAMES_MAX ->
    case ets:member(?VALUES, ?CONFIGURED) orelse length(Early) >= ?REQUESTS_MAX of
        true -> request(lists:usort([N || N <- Names, is_atom(N)]), Names, Reply, State);
        false -> State#state{early = [{Names, Reply} | Early]}
    end;
asked(_, Reply, State) ->
    _ = Reply([]),
    State.

request(_, Names, Reply, #state{requests = Requests} = State) when map_size(Requests) >= ?REQUESTS_MAX ->
    _ = Reply([{Name, {unknown, busy}} || Name <- Names]),
    State;
request(Distinct, Names, Reply, #state{next = Next, requests = Requests} = State) ->
    Now = erlang:monotonic_time(millisecond),
    Known = [{Name, look(Name, Now)} || Name <- Distinct],
    Answers = maps:from_list([{Name, Answer} || {Name, Answer} <- Known, Answer =/= evaluate]),
    case [Name || {Name, evaluate} <- Known] of
        [] ->
            _ = Reply(in_order(Names, Answers)),
            State;
        Open ->
            Request = #request{reply = Reply, names = Names, open = Open, answers = Answers},
            lists:foldl(fun started/2, State#state{next = Next + 1, requests = Requests#{Next => Request}}, Open)
    end.

in_order(Names, Answers) -> [{Name, maps:get(Name, Answers, {unknown, missing})} || Name <- Names].

%% Returns what is known about an attribute without calling its function.
look(Name, Now) ->
    case ets:lookup(?DEFINITIONS, Name) of
        [{_, #{kind := static, value := Value} = Definition}] -> answer(Value, 0, Definition);
        [{_, #{kind := sampled} = Definition}] -> averaged(Name, Definition, Now);
        [{_, Definition}] -> last_value(Name, Definition, Now);
        [] -> owned(owners(Name))
    end.

%% Compares the name again, because an attribute called '_' would match every name in the pattern.
owners(Name) -> [Owner || {{Owned, _}, _, _} = Owner <- ets:match_object(?OWNED, {{Name, '_'}, '_', '_'}), Owned =:= Name].

answer(Value, Age, #{unit := Unit, ttl := Ttl, tolerance := Tolerance}) -> {ok, Value, Age, Unit, Ttl, Tolerance}.

last_value(Name, #{min_interval := Interval} = Definition, Now) ->
    case ets:lookup(?VALUES, Name) of
        [{_, {ok, Value}, At, 0}] when Now - At < Interval -> answer(Value, Now - At, Definition);
        [{_, Last, At, Failures}] when Failures > 2 -> backed_off(Last, At, Failures, Definition, Now);
        _ -> evaluate
    end.

%% A function that has failed three times in a row is no longer called for every request.
backed_off(Last, At, Failures, Definition, Now) ->
    case Now - At < min(?BACK_OFF_MAX_MS, ?BACK_OFF_MS bsl min(Failures - 3, 10)) of
        true -> old_or_unknown(Last, Definition, Now);
        false -> evaluate
    end.

owned([]) -> {unknown, missing};
owned(Owners) ->
    case lists:keysort(3, Owners) of
        [{_, '$count', _} | _] = All -> {ok, length(All), 0, none, 1000, 0};
        All -> {ok, element(2, lists:last(All)), 0, none, 1000, 0}
    end.

averaged(Name, #{every := Every} = Definition, Now) ->
    case stored({samples, Name}, none) of
        [{At, _} | _] = Samples ->
            Numbers = [Number || {_, Number} <- Samples],
            try answer(lists:sum(Numbers) / length(Numbers), max(0, Now - At - Every), Definition)
            %% The result exceeds the range of a float.
            catch error:badarith -> {unknown, {raised, error, badarith}}
            end;
        [] -> {unknown, no_sample};
        none -> evaluate
    end.

%%% Evaluations

started(Name, #state{evaluations = Evaluations, waiting = Waiting} = State) ->
    case is_map_key(Name, Evaluations) orelse lists:member(Name, Waiting) of
        true -> State;
        false when map_size(Evaluations) >= ?AT_ONCE -> State#state{waiting = Waiting ++ [Name]};
        false -> evaluating(Name, ets:lookup(?DEFINITIONS, Name), State)
    end.

evaluating(Name, [{_, #{kind := Kind, call := Call, limit := Limit} = Definition}], #state{evaluations = Evaluations, by_monitor = ByMonitor} = State)
  when Kind =/= static ->
    {Pid, Monitor} = placement_eval:start(Call),
    Timer = erlang:send_after(Limit, self(), {limit, Name, Pid}),
    State#state{evaluations = Evaluations#{Name => #evaluation{pid = Pid, timer = Timer, definition = Definition}},
                by_monitor = ByMonitor#{Monitor => Name}};
evaluating(Name, _, State) ->
    %% The attribute has been deleted or made static, so there is no function to call.
    answered(Name, look(Name, erlang:monotonic_time(millisecond)), State).

%% Stops the evaluation of attributes whose definition has changed, so that requests need not wait for the old function.
without_obsolete(#state{evaluations = Evaluations} = State) ->
    State#state{evaluations = maps:map(fun(Name, #evaluation{pid = Pid, definition = Definition} = Evaluation) ->
                                               case is_defined(Name, Definition) of
                                                   true -> Evaluation;
                                                   false ->
                                                       true = placement_eval:stop(Pid),
                                                       Evaluation#evaluation{stopped = true}
                                               end
                                       end, Evaluations)}.

is_defined(Name, Definition) -> ets:lookup(?DEFINITIONS, Name) =:= [{Name, Definition}].

evaluation_ended(Name, Reason, #state{evaluations = Evaluations} = State) ->
    #{Name := #evaluation{timer = Timer, stopped = Stopped, definition = Definition}} = Evaluations,
    _ = erlang:cancel_timer(Timer),
    Left = State#state{evaluations = maps:remove(Name, Evaluations)},
    case is_defined(Name, Definition) of
        true -> next(answered(Name, learnt(Name, Definition, placement_eval:outcome(Reason, Stopped), erlang:monotonic_time(millisecond)), Left));
        %% The attribute has been redefined or deleted, so the old function's result is discarded.
        false -> next(asked_anew(Name, Left))
    end.

asked_anew(Name, #state{requests = Requests} = State) ->
    case lists:any(fun(#request{open = Open}) -> lists:member(Name, Open) end, maps:values(Requests)) of
        true -> started(Name, State);
        false -> State
    end.

%% An attribute that has been deleted, or has a value by now, is skipped.
next(#state{waiting = [Name | Rest], evaluations = Evaluations} = State) when map_size(Evaluations) < ?AT_ONCE -> next(started(Name, State#state{waiting = Rest}));
next(State) -> State.

learnt(Name, #{kind := sampled, over := Over} = Definition, Outcome, Now) ->
    _ = case typed(Outcome, number) of
            {ok, Number} ->
                Kept = [Sample || {At, _} = Sample <- stored({samples, Name}, []), Now - At < Over],
                ets:insert(?VALUES, {{samples, Name}, [{Now, Number} | Kept]});
            {error, _} -> ets:insert_new(?VALUES, {{samples, Name}, []})
        end,
    averaged(Name, Definition, Now);
learnt(Name, #{kind := Kind, type := Type} = Definition, Outcome, Now) ->
    Before = ets:lookup(?VALUES, Name),
    case typed(Outcome, Type) of
        {ok, Value} when Kind =:= automatic ->
            true = ets:insert(?DEFINITIONS, {Name, as_static(Value, Definition)}),
            _ = changed(),
            answer(Value, 0, Definition);
        {ok, Value} ->
            true = ets:insert(?VALUES, {Name, {ok, Value}, Now, 0}),
            answer(Value, 0, Definition);
        {error, Reason} ->
            Last = failed(Before, Reason),
            true = ets:insert(?VALUES, {Name, Last, Now, failures(Before) + 1}),
            old_or_unknown(Last, Definition, Now)
    end.

%% Returns the last good value and the time at which it was evaluated, or the reason why there is none.
failed([{_, {ok, Value}, At, 0}], Reason) -> {old, Value, At, Reason};
failed([{_, {old, Value, At, _}, _, _}], Reason) -> {old, Value, At, Reason};
failed(_, Reason) -> {none, Reason}.

failures([{_, _, _, Failures}]) -> Failures;
failures([]) -> 0.

old_or_unknown({old, Value, At, Reason}, #{unit := Unit, tolerance := Tolerance}, Now) -> {stale, Value, Now - At, Unit, Tolerance, Reason};
old_or_unknown({none, Reason}, _, _) -> {unknown, Reason}.

typed({ok, Value}, Type) ->
    case is_of_type(Type, Value) of
        true -> {ok, Value};
        false -> {error, {wrong_type, Value, Type}}
    end;
typed({error, _} = Error, _) -> Error.

is_of_type(any, _) -> true;
is_of_type(number, Value) -> is_number(Value);
is_of_type(integer, Value) -> is_integer(Value);
is_of_type(atom, Value) -> is_atom(Value);
is_of_type(boolean, Value) -> is_boolean(Value);
is_of_type(text, Value) -> is_binary(Value) orelse io_lib:printable_unicode_list(Value).

answered(Name, Answer, #state{requests = Requests} = State) ->
    State#state{requests = maps:filtermap(fun(_, Request) -> answered_request(Name, Answer, Request) end, Requests)}.

answered_request(Name, Answer, #request{open = Open, answers = Answers, names = Names, reply = Reply} = Request) ->
    case lists:delete(Name, Open) of
        Open -> true;
        [] ->
            _ = Reply(in_order(Names, Answers#{Name => Answer})),
            false;
        Rest -> {true, Request#request{open = Rest, answers = Answers#{Name => Answer}}}
    end.
