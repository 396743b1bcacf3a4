%% SPDX-License-Identifier: Apache-2.0
%% @doc Processes that exist only once in the cluster. The query decides where they start, and they restart on another
%% node when their node goes down or is no longer suitable.
%%
%% The nodes on which a child may run are its candidates. Three or five of them, chosen by {@link placement_rendezvous},
%% are its voters. The node that runs the child holds a lease from the majority of the voters
%% ({@link placement_child_keeper}): each voter promises the child to one node for the child's grace period, and makes no
%% promise to another node before that period has passed ({@link placement_voter}). The holder renews the lease four
%% times per grace period. If it cannot renew the lease, it kills the child and the processes below it when 95 % of the
%% grace period has passed. So two nodes never run the child at the same time unless their clocks differ in speed by more
%% than that margin, and in a partition only a side with more than half of the voters runs it. A voter that was restarted
%% has lost its promises, so it makes no new ones for one grace period.
%%
%% Each lease has a fencing number, which increases with every new holder. Voters reject a new holder whose number is
%% lower than one for which they have granted a lease. They reject a renewal only if a later holder has run the child
%% (`live'). So a node that reconnects late cannot renew an old lease, but an unsuccessful request by another node does
%% not cost the holder a voter. If a node has tried to hand the child over, `live' also decides whether that node may
%% resume it.
%%
%% This module contains the functions that other modules call: it starts and deletes children, reads what this node
%% knows about them, and sends requests to the voters. {@link placement_child_server} is the voter on each node.
-module(placement_child).

-include("placement_child.hrl").

-export([start/3, delete/1, ended/1, whereis_name/1, children/0, known/0, look/1, row/1, here/0, count/2, fence/1, kept/0, keeps/2, keeps_no_more/2, numbered/1, ask/3, release/2, pass/3, announce/2, candidates/1]).

-export_type([name/0, options/0, spec/0, version/0, restart/0, shutdown/0]).

-type name() :: term().
-type version() :: {integer(), node()}.
-type restart() :: permanent | transient | temporary.
-type shutdown() :: brutal_kill | timeout().
-type options() :: #{name := name(), nodes => [node(), ...], grace => pos_integer(), voters => pos_integer(), replace_after => pos_integer(), settle => pos_integer(),
                     restart => restart(), shutdown => shutdown(), scope => placement_scope:member()}.
%% {@link placement:child/3} describes them, except `scope', which {@link placement:start_child/2} sets.
-type spec() :: #{name := name(), query := placement_query:query(), call := {module(), atom(), [term()]}, nodes := [node(), ...], grace := pos_integer(), version := version(),
                  candidates => [node(), ...], follow => boolean(), voters => pos_integer(), next => [node(), ...], term => non_neg_integer(), replace_after => pos_integer(), settle => pos_integer(),
                  restart => restart(), shutdown => shutdown(), scope => placement_scope:member(),
                  %% `fence': the lease's number. `live' and `at': the number and the node of the last holder
                  %% that ran the child. `over': the value of `live' for the last run that ended properly; if it is
                  %% lower than `live', the last run was interrupted and its state is lost.
                  fence => integer(), live => integer(), at => node(), over => integer(),
                  %% These keys occur only in requests. `base': the lease number of a holder that wants to resume a
                  %% child after trying to hand it over. `passed': the node that handed the child over to the requesting
                  %% node, and that node's lease number. `above': a number that voters rejected as too low. `late': the
                  %% age of the request.
                  base => integer(), passed => {node(), integer()}, above => integer(), late => non_neg_integer(),
                  %% Only on a voter: the time at which it received the child, or later a request from the holder that
                  %% runs it.
                  heard => integer()}.
%% `candidates': the nodes on which the child may run; with `follow' these are all nodes that run placement. `nodes':
%% the voters. `next': the voters that will replace these ({@link placement_voter}). In older releases only the voters
%% are candidates.

%% The name of placement_child_server on each node.
-define(SERVER, ?MODULE).
-define(CALL_MS, 5000).
-define(START_TRIES, 3).
%% The interval at which start/3 checks locally whether its child is running. It asks the voters once per ?ASK_ROUNDS
%% checks.
-define(RUNNING_MS, 20).
-define(ASK_ROUNDS, 25).
-define(GRACE_MS, 5000).
-define(REPLACE_MS, 30000).
-define(SETTLE_MS, 30000).
-define(VOTERS, 5).

%% @doc Announces a new child to its voters, and returns once the child is running.
-spec start(placement_query:query(), {module(), atom(), [term()]}, options()) ->
          {ok, pid()} | {error, {bad_option, atom(), term()} | {bad_query, string()} | {exists, pid()} | no_majority | not_started}.
start(Query, {Module, Function, Arguments} = Call, Options) when is_atom(Module), is_atom(Function), is_list(Arguments) ->
    Full = maps:merge(#{nodes => [node() | nodes()], follow => not is_map_key(nodes, Options), grace => ?GRACE_MS, voters => ?VOTERS, replace_after => ?REPLACE_MS, settle => settle(maps:get(grace, Options, ?GRACE_MS))}, Options),
    case {[{Key, Value} || {Key, Value} <- maps:to_list(Full), not is_option(Key, Value)], placement_query:compile(Query)} of
        {[], {ok, _}} when is_map_key(name, Full) ->
            #{name := Name, nodes := Nodes, voters := Most} = Full,
            Candidates = lists:usort(Nodes),
            begun(Full#{query => Query, call => Call, candidates => Candidates, nodes := placement_voter:first(Name, Candidates, Most), term => 0}, ?START_TRIES);
        {[], {error, Text}} -> {error, {bad_query, unicode:characters_to_list(Text)}};
        {[], _} -> {error, {bad_option, name, missing}};
        {[{Key, Value} | _], _} -> {error, {bad_option, Key, Value}}
    end.

%% Promises of restarted voters count only if another voter has received a request from the holder
%% within the settle time. This must still be the case when the holder's lease expires, so the
%% settle time must be much longer than a grace period.
settle(Grace) when is_integer(Grace), Grace > ?SETTLE_MS div 6, Grace =< 600000 -> 6 * Grace;
settle(_) -> ?SETTLE_MS.

is_option(name, _) -> true;
is_option(nodes, [_ | _] = Nodes) -> lists:all(fun is_atom/1, Nodes);
is_option(grace, Ms) -> is_integer(Ms) andalso Ms >= 400 andalso Ms =< 600000;
is_option(voters, Count) -> is_integer(Count) andalso Count > 0 andalso Count =< 99;
is_option(Key, Ms) when Key =:= replace_after; Key =:= settle -> is_integer(Ms) andalso Ms > 0 andalso Ms < 1 bsl 31;
is_option(restart, Restart) -> lists:member(Restart, [permanent, transient, temporary]);
is_option(shutdown, Shutdown) -> Shutdown =:= brutal_kill orelse Shutdown =:= infinity orelse is_integer(Shutdown) andalso Shutdown >= 0 andalso Shutdown < 1 bsl 32;
is_option(scope, _) -> true;
is_option(follow, Is) -> is_boolean(Is);
is_option(_, _) -> false.

%% Returns a time that is not earlier than any version of this child that this node knows about. New versions are
%% later than this time, so differences between the nodes' clocks do not matter.
known(Name) ->
    case ets:whereis(?CHILDREN) =/= undefined andalso {row(Name), ets:lookup(?NAMES, Name)} of
        false -> 0;
        {Row, Names} ->
            Specs = [Spec || {#{} = Spec, _} <- [Row]] ++ [Spec || {_, _, Spec, _} <- Names],
            lists:max([0 | [Time || {{deleted, {Time, _}}, _} <- [Row]] ++ [N || #{version := {Time, _}} = S <- Specs, N <- [Time, maps:get(fence, S, 0)]]])
    end.

%% @doc Returns what this node knows about a child, the node that runs it, and its process.
-spec look(name()) -> {spec(), node() | none, pid() | none} | deleted | none.
look(Name) -> known_as(row(Name), ets:lookup(?NAMES, Name)).

%% @doc Returns what this node knows about a child as one of its voters.
-spec row(name()) -> placement_voter:row().
row(Name) ->
    case ets:lookup(?CHILDREN, Name) of
        [{_, Spec, Promise}] -> {Spec, Promise};
        [] -> none
    end.

%% A voter's own row contains the time at which the lease expires; any other node has only what the child's keeper has
%% announced.
-spec known_as(placement_voter:row(), [{name(), pid() | none, spec(), term()}]) -> {spec(), node() | none, pid() | none} | deleted | none.
known_as({#{version := Version} = Spec, Promise}, Names) ->
    case Names of
        [{_, _, #{version := Newer}, _}] when Newer > Version -> told_of(Names);
        _ ->
            case {lists:member(node(), placement_voter:asked(Spec)), Promise, now_ms()} of
                {true, {Holder, Pid, Until}, Now} when Until > Now, Holder =/= nobody -> {Spec, Holder, Pid};
                {true, _, _} -> {Spec, none, none};
                {false, _, _} when Names =:= [] -> {Spec, none, none};
                {false, _, _} -> told_of(Names)
            end
    end;
known_as({{deleted, Version}, _}, Names) ->
    case Names of
        [{_, _, #{version := Newer}, _}] when Newer > Version -> told_of(Names);
        _ -> deleted
    end;
known_as(_, Names) -> told_of(Names).

told_of([{_, none, Spec, _}]) -> {Spec, none, none};
told_of([{_, Pid, Spec, _}]) -> {Spec, node(Pid), Pid};
told_of([]) -> none.

%% More than half of the candidates must report what they know about the name, because its voters may have changed since
%% the first call.
begun(#{name := Name, candidates := Candidates} = Given, Tries) ->
    {Looks, _} = gen_server:multi_call(Candidates, ?SERVER, {look, Name}, ?CALL_MS),
    Configs = lists:sort([{Term, Config} || {_, {known, _, #{term := Term} = Config}} <- Looks]),
    case {[Pid || {_, {known, Pid, _}} <- Looks, is_pid(Pid)], 2 * length(Looks) > length(Candidates)} of
        {[Pid | _], _} -> {error, {exists, Pid}};
        {[], false} -> {error, no_majority};
        {[], true} ->
            Spec = case Configs of
                       [] -> Given;
                       _ -> maps:merge(Given, element(2, lists:last(Configs)))
                   end,
            told(Spec#{version => {max(erlang:system_time(), known(Name) + 1), node()}}, Given, Tries)
    end.

told(#{name := Name, grace := Grace} = Spec, Given, Tries) ->
    {Replies, _} = gen_server:multi_call(placement_voter:asked(Spec), ?SERVER, {put, Spec}, ?CALL_MS),
    Told = [Node || {Node, ok} <- Replies],
    case {[Pid || {_, {exists, Pid}} <- Replies], placement_voter:is_majority(Spec, Told), lists:keymember(config, 1, [Reply || {_, Reply} <- Replies, is_tuple(Reply)])} of
        {[Pid | _], _, _} -> withdrawn(Name, Spec, {exists, Pid});
        %% The voters have been replaced since this call looked them up.
        {[], _, true} when Tries > 1 -> {error, _} = withdrawn(Name, Spec, no_majority), begun(Given, Tries - 1);
        {[], false, _} -> withdrawn(Name, Spec, no_majority);
        {[], true, _} -> running(Spec, 0, now_ms() + 2 * Grace + ?CALL_MS)
    end.

%% A call that fails must have no effect, so the voters that have received the child are told to discard it.
withdrawn(Name, Spec, Reason) ->
    abcast = gen_server:abcast(placement_voter:asked(Spec), ?SERVER, {withdraw, Name, Spec}),
    {error, Reason}.

%% Waits until the child runs. The keeper announces the child only to its candidates and voters, and this node need not
%% be one of them, so it also asks the voters.
running(#{name := Name} = Spec, Round, End) ->
    Own = case ets:whereis(?CHILDREN) of
              undefined -> undefined;
              _ -> whereis_name(Name)
          end,
    Others = case Own =:= undefined andalso Round rem ?ASK_ROUNDS =:= ?ASK_ROUNDS - 1 of
                 true -> [Pid || {ok, Pid} <- erpc:multicall(placement_voter:asked(Spec), ?MODULE, whereis_name, [Name], ?CALL_MS), is_pid(Pid)];
                 false -> []
             end,
    case {[Own || is_pid(Own)] ++ Others, now_ms() < End} of
        {[Pid | _], _} -> {ok, Pid};
        {[], true} -> receive after ?RUNNING_MS -> running(Spec, Round + 1, End) end;
        {[], false} -> {error, not_started}
    end.

%% @doc Deletes a child permanently. A majority of its voters must confirm this. Call this function on one of the
%% candidates.
-spec delete(name()) -> ok | {error, no_such_child | no_majority}.
delete(Name) ->
    case look(Name) of
        {Spec, _, _} -> ended(Spec);
        _ -> {error, no_such_child}
    end.

%% @doc Like {@link delete/1}, for a child whose process has exited and must not be restarted.
-spec ended(spec()) -> ok | {error, no_majority}.
ended(Spec) -> ended(Spec, ?START_TRIES).

ended(#{name := Name, version := Version} = Spec, Tries) ->
    {Replies, _} = gen_server:multi_call(placement_voter:asked(Spec), ?SERVER, {delete, Name, Version}, ?CALL_MS),
    Newer = lists:sort([{Other, Term, Known} || {_, {newer, #{version := Other} = Known}} <- Replies, Term <- [maps:get(term, Known, 0)]]),
    Later = lists:sort([{Term, Config} || {_, {config, #{term := Term} = Config}} <- Replies, Term > maps:get(term, Spec, 0)]),
    case {Newer, Later, placement_voter:is_majority(Spec, [Node || {Node, ok} <- Replies])} of
        %% The voters know a newer version of the child, which this node has missed.
        {[_ | _], _, _} when Tries > 1 -> ended(element(3, lists:last(Newer)), Tries - 1);
        {_, [_ | _], _} when Tries > 1 -> ended(maps:merge(maps:remove(next, Spec), element(2, lists:last(Later))), Tries - 1);
        {_, _, true} ->
            abcast = gen_server:abcast(candidates(Spec), ?SERVER, {forget, Name, Version}),
            ok;
        {_, _, false} ->
            abcast = gen_server:abcast(placement_voter:asked(Spec), ?SERVER, {withdraw, Name, {deleted, Version}}),
            {error, no_majority}
    end.

%% @doc Returns the nodes on which a child may run. Older releases do not distinguish these from the voters.
-spec candidates(spec()) -> [node(), ...].
candidates(#{candidates := Candidates}) -> Candidates;
candidates(#{nodes := Nodes}) -> Nodes.

%% @doc Returns a child's process, as far as this node knows. Used for `{via, placement, Name}'.
-spec whereis_name(name()) -> pid() | undefined.
whereis_name(Name) ->
    case look(Name) of
        {_, _, Pid} when is_pid(Pid) ->
            case node(Pid) =/= node() orelse is_process_alive(Pid) of
                true -> Pid;
                false -> undefined
            end;
        _ -> undefined
    end.

%% @doc Returns the children that this node knows about, each with the node on which it runs and its process.
-spec children() -> [{name(), node() | none, pid() | none}].
children() -> [{Name, Holder, Pid} || {#{name := Name}, Holder, Pid} <- known()].

%% @doc Like {@link children/0}, but returns each child's complete specification.
-spec known() -> [{spec(), node() | none, pid() | none}].
known() ->
    Rows = maps:from_list([{Name, {Spec, Promise}} || {Name, Spec, Promise} <- ets:tab2list(?CHILDREN)]),
    Names = maps:from_list([{Name, Row} || {Name, _, _, _} = Row <- ets:tab2list(?NAMES)]),
    All = lists:sort(maps:keys(maps:merge(Rows, Names))),
    [Known || Name <- All, {_, _, _} = Known <- [known_as(maps:get(Name, Rows, none), [Row || {ok, Row} <- [maps:find(Name, Names)]])]].

%% @doc Returns the nodes on which placement runs, as far as this node knows.
-spec here() -> [node(), ...].
here() -> [node() | [Node || {Node} <- ets:tab2list(?PEERS)]].

%% @doc Counts the children of a scope on each of these nodes. Nodes without children are left out.
-spec count(Scope :: term(), [node()]) -> #{node() => pos_integer()}.
count(Scope, Nodes) -> maps:from_list([{Node, Count} || Node <- Nodes, {_, Count} <- ets:lookup(?COUNTS, {Scope, Node}), Count > 0]).

%% @doc Returns the fencing number of a child that runs on this node. The number increases with every new holder of the lease.
-spec fence(name()) -> {ok, integer()} | none.
fence(Name) ->
    case ets:lookup(?KEPT, Name) of
        [{_, _, #{fence := Fence}, _}] -> {ok, Fence};
        _ -> none
    end.

%% @doc Returns the children that run on this node, each with its keeper and its process.
-spec kept() -> [{spec(), Keeper :: pid(), pid()}].
kept() -> [{Spec, Keeper, Pid} || {_, Keeper, Spec, Pid} <- ets:tab2list(?KEPT), is_pid(Pid)].

%% @doc Records the process that a keeper runs.
-spec keeps(spec(), pid() | none) -> ok.
keeps(#{name := Name} = Spec, Pid) ->
    true = ets:insert(?KEPT, {Name, self(), Spec, Pid}),
    ok.

%% @doc Records that a keeper no longer runs its child, unless another keeper has taken over the name in the meantime.
-spec keeps_no_more(name(), Keeper :: pid()) -> ok.
keeps_no_more(Name, Keeper) ->
    _ = [ets:delete_object(?KEPT, Row) || {_, By, _, _} = Row <- ets:lookup(?KEPT, Name), By =:= Keeper],
    ok.

%% @doc Announces the process of a child that runs here to all of the child's candidates and voters.
-spec announce(spec(), pid()) -> ok.
announce(Spec, Pid) ->
    abcast = gen_server:abcast(lists:usort(candidates(Spec) ++ placement_voter:asked(Spec)), ?SERVER, {named, Spec, Pid}),
    ok.

now_ms() -> erlang:monotonic_time(millisecond).

%% @doc Adds a new fencing number to the specification of a child whose lease this node is about to request.
-spec numbered(spec()) -> spec().
numbered(#{name := Name} = Spec) -> Spec#{fence => lists:max([erlang:system_time(), known(Name) + 1, maps:get(fence, Spec, 0) + 1, maps:get(above, Spec, 0) + 1])}.

%% @doc Requests the promises of all voters for this node, and waits for at most `Ms'. The lease begins at `SinceMs', a
%% time taken before the requests were sent. `Both' is true if the voters that will replace the current ones have also
%% agreed. `fenced': another holder had a higher number. `stale': another holder has run the child since. `config': the
%% child has different voters now.
-spec ask(spec(), pid() | none, Ms :: non_neg_integer()) ->
          {granted, SinceMs :: integer(), Both :: boolean()} | refused | deleted | stale | {fenced, integer()} | {config, placement_voter:config()}.
ask(#{name := Name, version := Version} = Spec, Pid, Ms) ->
    Since = now_ms(),
    Asked = maps:from_list([{alias(), Node} || Node <- placement_voter:asked(Spec)]),
    %% The receiver computes the request's age from the system clock, because a suspended node may read this message
    %% much later.
    Sent = Spec#{late => erlang:system_time(millisecond)},
    _ = [gen_server:cast({?SERVER, Node}, {ask, Alias, Sent, node(), Pid}) || {Alias, Node} <- maps:to_list(Asked)],
    Got = gathered(Spec, Asked, #{}, Since + Ms),
    _ = [unalias(Alias) || Alias <- maps:keys(Asked)],
    ok = flush(Asked),
    case Got of
        {granted, Both, Gone} ->
            _ = [logger:warning("placement: child ~0tP starts on ~ts without its state: it was on ~ts, which is gone or cut off", [Name, 8, node(), hd(Gone)]) || Gone =/= []],
            {granted, Since, Both};
        %% The voters keep the older version, because the newer one may be withdrawn.
        newer -> deleted;
        deleted ->
            %% At least one voter has missed the deletion, because otherwise no node would request the lease.
            abcast = gen_server:abcast(placement_voter:asked(Spec), ?SERVER, {delete, Name, Version}),
            deleted;
        Denied -> Denied
    end.

gathered(Spec, Asked, Answers, End) -> gathered(placement_voter:counted(Spec, Answers, now_ms() >= End), Spec, Asked, Answers, End).

gathered(open, Spec, Asked, Answers, End) ->
    receive {Alias, Answer} when is_map_key(Alias, Asked) -> gathered(Spec, Asked, Answers#{map_get(Alias, Asked) => Answer}, End)
    after max(0, End - now_ms()) -> gathered(Spec, Asked, Answers, End)
    end;
gathered(denied, Spec, _, Answers, _) -> denied(Spec, maps:values(Answers));
gathered(Granted, _, _, _, _) -> Granted.

%% A single voter may know about a deletion or a new version before the majority does. So if another
%% node holds the lease, such an answer counts only as a refusal, and the holder finds out when it
%% renews its lease.
denied(Spec, Denials) ->
    Configs = lists:sort([{Term, Config} || {config, #{term := Term} = Config} <- Denials, Term > maps:get(term, Spec, 0)]),
    Fences = [Fence || {fenced, Fence} <- Denials],
    case {[Word || Word <- [deleted, newer], lists:member(Word, Denials)], [Node || {held, Node} <- Denials, Node =/= nobody], lists:member(stale, Denials)} of
        {_, _, _} when Configs =/= [] -> {config, element(2, lists:last(Configs))};
        {[Word | _], [], _} -> Word;
        {_, _, true} -> stale;
        {_, _, false} when Fences =/= [] -> {fenced, lists:max(Fences)};
        {_, _, false} -> refused
    end.

flush(Asked) -> receive {Alias, _} when is_map_key(Alias, Asked) -> flush(Asked) after 0 -> ok end.

%% @doc Releases the promises that a holder has from the voters.
-spec release(spec(), node()) -> ok.
release(#{name := Name} = Spec, Holder) ->
    abcast = gen_server:abcast(placement_voter:asked(Spec), ?SERVER, {release, Name, Holder}),
    ok.

%% @doc Passes the promises on to another node. The voters reserve them for that node until it
%% requests the lease.
-spec pass(spec(), Holder :: node(), Next :: node()) -> ok.
pass(#{name := Name} = Spec, Holder, Next) ->
    abcast = gen_server:abcast(placement_voter:asked(Spec), ?SERVER, {pass, Name, Holder, Next}),
    ok.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

settle_test_() -> [?_assertEqual(Ms, settle(Grace)) || {Ms, Grace} <- [{30000, 400}, {30000, 5000}, {180000, 30000}, {3600000, 600000}, {30000, 600001}, {30000, long}]].
-endif.
