%% SPDX-License-Identifier: Apache-2.0
%% @doc Implements the decisions of a child's voter: what it remembers and answers, and when the answers of several
%% voters form a majority. The module is pure; the time is an argument.
%%
%% The voters of a child form a configuration, which is numbered by its `term'. It consists of `nodes' and, while these
%% are being replaced, `next'. A node that requests the lease needs promises from more than half of `nodes' and more than
%% half of `next'. A node that runs the child and renews its lease needs only more than half of `nodes', because no other
%% node can have a majority of these. Only the node that runs the child changes the configuration: first to
%% `{nodes, next}', then to `next' as the new `nodes'. If a voter knows a later term than the requesting node, it answers
%% with its configuration.
%%
%% A voter that was restarted has forgotten both its promises and the configurations that it received. It makes no
%% promises until its table is older than the grace period. A majority that knew about a replacement may have forgotten
%% it, so the promises of restarted voters count only if at least one other voter has received a request from the holder
%% within the settle time. The holder makes `next' the new `nodes' only after it has sent its requests to both sets for
%% longer than that.
-module(placement_voter).

-export([put/4, ask/5, release/3, pass/3, delete/3, withdraw/2, told/2]).
-export([config/1, configured/2, asked/1, counted/3, is_majority/2, first/3, revoted/4]).

-export_type([row/0, promise/0, answer/0, config/0, change/0]).

-type row() :: none | {placement_child:spec() | {deleted, placement_child:version()} | unknown, promise()}.
-type promise() :: {Holder :: node() | nobody, pid() | none, UntilMs :: integer()}.
-type config() :: #{nodes := [node(), ...], next => [node(), ...], term => non_neg_integer()}.
%% `granted' contains the node on which the child has lost its state, if any, and the time since this voter last received a
%% request from a holder, or `none' if it has forgotten that.
-type answer() :: granted | {granted, Gone :: node() | none, HeardMs :: non_neg_integer() | none} | {held, node() | nobody} | newer | deleted | stale | {fenced, integer()} | {config, config()}.

-type change() :: {Away :: #{node() => SinceMs :: integer()}, ToldSinceMs :: integer() | none}.
%% The disconnected voters, each with the time at which it was disconnected, and the time since
%% which requests have also been sent to `next'.

%% These keys change while a child runs.
-define(NUMBERS, [fence, live, at, over]).
%% These keys occur only in a request or in this voter's memory.
-define(OWN, [base, passed, above, heard, late]).

%% @doc Adds a child that a caller wants to start. `Running' is the process that the voter knows under the child's name.
-spec put(placement_child:spec(), {row(), Running :: pid() | undefined}, NowMs :: integer(), MadeMs :: integer()) ->
          {ok | {exists, pid()} | {config, config()}, row()}.
%% The chosen node was faster than this message: it has already requested this voter's promise and may even be running
%% the child.
put(#{version := Version}, {{#{version := Version}, _} = Row, _}, _, _) -> {ok, Row};
put(_, {Row, Pid}, _, _) when is_pid(Pid) -> {{exists, Pid}, Row};
%% Of two concurrent calls the later one takes effect, regardless of the order in which a voter receives them.
put(#{version := Version}, {{#{version := Newer}, _} = Row, _}, _, _) when Newer > Version -> {ok, Row};
put(#{grace := Grace} = Spec, {Row, _}, Now, Made) ->
    case Row =/= none andalso is_map(element(1, Row)) andalso config(element(1, Row)) of
        %% The voters of the previous child decide, because they are bound by the promises that they made for it.
        #{} = Config when map_get(term, Config) > 0 -> case config(Spec) of Config -> taken(Spec, Row, Now, Made, Grace); _ -> {{config, Config}, Row} end;
        _ -> taken(Spec, Row, Now, Made, Grace)
    end.

%% The voter may have made a promise to another node before its table was created.
taken(Spec, Row, Now, Made, Grace) -> {ok, {(over(maps:merge(Spec, numbers(Row))))#{heard => Now}, promise(Row, Now, max(Now, Made + Grace))}}.

%% @doc Returns the configuration of a child's voters.
-spec config(placement_child:spec()) -> config().
config(#{} = Spec) -> maps:with([nodes, next, term], Spec).

%% @doc Returns the child's specification with a different configuration of voters.
-spec configured(config(), placement_child:spec()) -> placement_child:spec().
configured(Config, Spec) -> maps:merge(maps:remove(next, Spec), Config).

term(#{} = Spec) -> maps:get(term, Spec, 0).

numbers({#{} = Spec, _}) -> maps:with(?NUMBERS, Spec);
numbers(_) -> #{}.

%% This voter's promise for the old child also applies to the new one. The old process no longer has a name but may
%% still be running.
promise({_, {Holder, _, Until}}, Now, _) when Until > Now -> {Holder, none, Until};
promise(_, _, Otherwise) -> {nobody, none, Otherwise}.

%% @doc Answers a node that requests this voter's promise.
-spec ask(placement_child:spec(), {Holder :: node(), pid() | none}, row(), NowMs :: integer(), MadeMs :: integer()) -> {answer(), row()}.
ask(#{grace := Grace, version := Version} = Spec, {Holder, Pid}, Row, Now, Made) ->
    Lowest = lowest(is_run(Spec), Row),
    case Row of
        {{deleted, Deleted}, _} when Deleted >= Version -> {deleted, Row};
        {#{version := Newer}, _} when Newer > Version -> {newer, Row};
        {#{term := Term} = Known, _} when Term > map_get(term, Spec) -> {{config, config(Known)}, Row};
        %% The request of a node that runs an older release of placement has no number.
        _ when Lowest > map_get(fence, Spec) -> {{fenced, Lowest}, Row};
        {#{live := Live}, _} when Live > map_get(base, Spec) -> {stale, Row};
        {#{fence := Known}, {Other, _, Until}} when Until > Now, map_get(passed, Spec) =:= {Other, Known} -> granted(Spec, Holder, Pid, Row, Now);
        {_, {Other, _, Until}} when Other =/= Holder, Until > Now, Other =/= nobody orelse Pid =:= none -> {{held, Other}, Row};
        %% This voter may have made a promise to another node before it was restarted. A node that runs the child
        %% still gets the promise, because it already has promises from a majority of voters, which remember them.
        none when Pid =:= none, Now < Made + Grace -> {{held, nobody}, {maps:without(?OWN, Spec), {nobody, none, Made + Grace}}};
        _ -> granted(Spec, Holder, Pid, Row, Now)
    end.

%% Returns the lowest number that this voter accepts. If this voter granted a higher number to a node that did not get a
%% majority, that node has never run the child, so that number does not count against the node that runs it.
lowest(true, {#{live := Live}, _}) -> Live;
lowest(false, {#{fence := Fence}, _}) -> Fence;
lowest(_, _) -> 0.

granted(#{grace := Grace} = Spec, Holder, Pid, Row, Now) ->
    Known = known_live(maps:without(?OWN, Spec), Row),
    {case Spec of
         #{term := _} -> {granted, gone(Spec, Pid, Row), case heard(Row) of none -> none; Ms -> Now - Ms end};
         _ -> granted
     end, {case {is_run(Spec), heard(Row)} of
               {true, _} -> Known#{heard => Now - maps:get(late, Spec, 0)};
               {false, none} -> Known;
               {false, Ms} -> Known#{heard => Ms}
           end, {Holder, named(Pid, Holder, Spec, Row), Now + Grace}}}.

is_run(#{fence := Fence, live := Live}) -> Fence =:= Live;
is_run(_) -> false.

heard({#{heard := Ms}, _}) -> Ms;
heard(_) -> none.

%% Returns the last holder if it did not report that its run of the child had ended, which means that the child's state
%% is lost.
gone(Spec, none, {#{live := Live, at := Gone} = Known, _}) when not is_map_key(passed, Spec) ->
    case maps:get(over, Known, 0) < Live andalso maps:get(live, Spec, none) =/= maps:get(fence, Spec) of
        true -> Gone;
        false -> none
    end;
gone(_, _, _) -> none.

known_live(Spec, {#{live := Live} = Known, _}) ->
    case maps:get(live, Spec, 0) >= Live of
        true -> Spec;
        false -> maps:merge(Spec, maps:with([live, at, over], Known))
    end;
known_live(Spec, _) -> Spec.

%% While a child is being moved, its name refers to the old process.
named(none, Holder, Spec, {_, {Other, Old, _}}) ->
    case Other =:= Holder orelse element(1, maps:get(passed, Spec, {none, 0})) =:= Other of
        true -> Old;
        false -> none
    end;
named(Pid, _, _, _) -> Pid.

%% @doc Cancels the promise to a holder that releases it.
-spec release(node(), row(), NowMs :: integer()) -> row().
release(Holder, {Spec, {Holder, _, _}}, Now) -> {over(Spec, Holder), {nobody, none, Now}};
release(_, Row, _) -> Row.

%% @doc Passes the holder's promise to the next holder.
-spec pass(node(), Next :: node(), row()) -> row().
pass(Holder, Next, {Spec, {Holder, _, Until}}) -> {over(Spec, Holder), {Next, none, Until}};
pass(_, _, Row) -> Row.

%% Records that the holder's run of the child ended properly, because the holder has released or passed on its promise.
over(#{at := Holder} = Spec, Holder) -> over(Spec);
over(Spec, _) -> Spec.

over(#{live := Live} = Spec) -> Spec#{over => Live};
over(Spec) -> Spec.

%% @doc Deletes a child.
-spec delete(placement_child:version(), row(), NowMs :: integer()) -> {ok | {newer, placement_child:spec()}, row()}.
delete(Version, {#{version := Newer} = Spec, _} = Row, _) when Newer > Version -> {{newer, Spec}, Row};
delete(Version, {{deleted, Newer}, _} = Row, _) when Newer >= Version -> {ok, Row};
delete(Version, Row, Now) -> {ok, {{deleted, Version}, promise(Row, Now, Now)}}.

%% @doc Undoes a failed call. The next holder then informs the voter of what the majority knows.
-spec withdraw(placement_child:spec() | {deleted, placement_child:version()}, row()) -> row().
withdraw(#{version := Version}, {#{version := Version}, Promise}) -> {unknown, Promise};
withdraw(Given, {Given, Promise}) -> {unknown, Promise};
withdraw(_, Row) -> Row.

%% @doc Records the voters that a holder has announced to this node, which may itself have been a voter before.
-spec told(placement_child:spec(), row()) -> row().
told(#{version := Version} = Spec, {#{version := Version} = Known, Promise} = Row) ->
    case term(Spec) > term(Known) of
        true -> {configured(config(Spec), Known), Promise};
        false -> Row
    end;
told(_, Row) -> Row.

%%% Majorities

%% @doc Returns the nodes that get each request: the voters, and the nodes that will replace them.
-spec asked(config() | placement_child:spec()) -> [node(), ...].
asked(#{nodes := Nodes, next := Next}) -> lists:usort(Nodes ++ Next);
asked(#{nodes := Nodes}) -> Nodes.

%% @doc Returns whether these nodes include more than half of each set.
-spec is_majority(config() | placement_child:spec(), [node()]) -> boolean().
is_majority(#{nodes := Nodes} = Config, Some) -> more_than_half(Nodes, Some) andalso more_than_half(maps:get(next, Config, Nodes), Some).

more_than_half(Nodes, Some) -> 2 * length([Node || Node <- Nodes, lists:member(Node, Some)]) > length(Nodes).

%% @doc Evaluates the answers so far. `granted' means that a majority has made promises, and contains the nodes on which the
%% child has lost its state. `denied' means that no majority is possible, or none was reached in time. `open' means that
%% more answers are needed.
-spec counted(placement_child:spec(), #{node() => answer()}, IsOver :: boolean()) -> {granted, Both :: boolean(), Gone :: [node()]} | denied | open.
counted(Spec, Answers, IsOver) ->
    Granted = [{Node, Answer} || {Node, Answer} <- maps:to_list(Answers), Answer =:= granted orelse element(1, Answer) =:= granted],
    case {counted(is_run(Spec), Spec, Granted, Answers), IsOver} of
        {open, true} -> over(is_run(Spec), Spec, Granted);
        {Result, _} -> Result
    end.

%% For a node that runs the child, the result also says whether both sets agree, but a majority of `nodes' is enough.
counted(true, #{nodes := Nodes} = Spec, Granted, Answers) ->
    Yes = [Node || {Node, _} <- Granted],
    case {is_majority(Spec, Yes), undecided(Spec, Yes, Answers), more_than_half(Nodes, Yes)} of
        {true, _, _} -> {granted, true, []};
        {false, open, _} -> open;
        {false, denied, true} -> {granted, false, []};
        {false, denied, false} -> undecided(#{nodes => Nodes}, Yes, Answers)
    end;
counted(false, Spec, Granted, Answers) ->
    Yes = [Node || {Node, _} <- Granted],
    case is_majority(Spec, Yes) andalso is_remembered(Spec, Granted) of
        true -> {granted, true, [Gone || {_, {granted, Gone, _}} <- Granted, Gone =/= none]};
        %% Even if there is a majority, the answer of a voter that was not restarted may still be needed.
        false -> undecided(Spec, Yes, Answers)
    end.

over(true, #{nodes := Nodes}, Granted) ->
    case more_than_half(Nodes, [Node || {Node, _} <- Granted]) of
        true -> {granted, false, []};
        false -> denied
    end;
over(false, _, _) -> denied.

undecided(Config, Yes, Answers) ->
    Open = [Node || Node <- asked(Config), not is_map_key(Node, Answers)],
    case Open =/= [] andalso is_majority(Config, Yes ++ Open) of
        true -> open;
        false -> denied
    end.

is_remembered(#{settle := Settle} = Spec, Granted) ->
    is_majority(Spec, [Node || {Node, Answer} <- Granted, heard_ago(Answer) =/= none]) orelse lists:any(fun({_, Answer}) -> heard_ago(Answer) < Settle end, Granted);
%% Handles a child that was created by an older release, which does not replace voters.
is_remembered(_, _) -> true.

%% If a voter has forgotten its last request, the answer is an atom, which sorts after all numbers
%% and so never counts as recent.
heard_ago({granted, _, Ms}) -> Ms;
heard_ago(granted) -> none.

%%% Replacing voters

%% @doc Decides after a renewal whether the holder begins or completes a replacement of voters. `Since' is the time of the
%% request, `Both' says whether both sets have agreed, and `Here' contains the nodes to which the holder is connected.
-spec revoted({SinceMs :: integer(), Both :: boolean()}, Here :: [node()], placement_child:spec(), change()) -> {placement_child:spec(), change()}.
revoted({Since, _}, _, #{next := _} = Spec, {Away, none}) -> {Spec, {Away, Since}};
revoted({Since, true}, _, #{next := Next, settle := Settle, grace := Grace} = Spec, {_, Told}) when Since - Told > Settle + Grace ->
    {configured(#{nodes => Next, term => term(Spec) + 1}, Spec), {#{}, none}};
revoted(_, _, #{next := _} = Spec, Change) -> {Spec, Change};
revoted({Since, _}, Here, #{replace_after := After, nodes := Nodes} = Spec, {Before, _}) ->
    Away = maps:from_list([{Node, maps:get(Node, Before, Since)} || Node <- Nodes, not lists:member(Node, Here)]),
    {replaced(Spec, [Node || {Node, At} <- maps:to_list(Away), Since - At >= After], Here), {Away, none}};
%% Handles a child that was created by an older release.
revoted(_, _, Spec, Change) -> {Spec, Change}.

%% Returns a set with at least as many voters as before: voters that are down stay in the set if there are not enough
%% other nodes. The set grows if the child was started when there were fewer nodes.
replaced(#{name := Name, nodes := Nodes, candidates := Candidates, voters := Most} = Spec, Gone, Here) ->
    Others = [Node || Node <- placement_rendezvous:ranked(Name, [{Node, 1} || Node <- Candidates -- Nodes]), lists:member(Node, Here)],
    Count = case how_many(Most, length(Nodes) + length(Others)) of
                More when More > 2 -> max(More, length(Nodes));
                _ -> length(Nodes)
            end,
    case lists:sublist(Others, Count - length(Nodes) + length(Gone)) of
        [] -> Spec;
        New ->
            Left = (Nodes -- Gone) ++ New,
            configured(#{nodes => Nodes, next => lists:sort(Left ++ lists:sublist(Gone, max(0, Count - length(Left)))), term => term(Spec) + 1}, Spec)
    end.

%% @doc Returns the voters of a child that is started for the first time. Every node computes the same set.
-spec first(placement_child:name(), Candidates :: [node(), ...], Most :: pos_integer()) -> [node(), ...].
first(Name, Candidates, Most) -> lists:sort(lists:sublist(placement_rendezvous:ranked(Name, [{Node, 1} || Node <- Candidates]), how_many(Most, length(Candidates)))).

%% The number is odd, because an additional voter would add messages without allowing one more node to fail. If there
%% are only two nodes, both vote.
how_many(Most, There) ->
    case min(Most, There) of
        Even when Even > 2, Even rem 2 =:= 0 -> Even - 1;
        Other -> Other
    end.
