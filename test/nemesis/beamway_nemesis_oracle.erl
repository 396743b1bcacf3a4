%% SPDX-License-Identifier: Apache-2.0
%% @doc Judges what nodes have observed during faults, according to the promises of distributed Erlang.
%%
%% During one connection, the messages from one process to another arrive in the order in which they were sent, exactly once and without a gap.
%% Messages may be lost only if a nodedown follows. An exit reason arrives after the last message. A connection ends only when a fault ends it,
%% and then it must end.
%%
%% A receiver keeps a log, newest entry first, built with {@link note/2}. It shows between which nodeups and nodedowns each message arrived. A
%% sender labels each message with the incarnation of its node (`Life'), the connection that it believes it is in (`Epoch', the number of nodeups
%% that it has received), the first number that it used in that connection, and the message's own number, which increases across all connections.
%%
%% The functions are pure. All times are microseconds of the machine's monotonic clock, which all nodes share.
-module(beamway_nemesis_oracle).

-export([note/2, judge/1, judge_flow/1, judge_words/1, judge_downs/3, judge_missing/3]).

-export_type([entry/0, log/0, event/0, observed/0, executed/0, finding/0, record/0, words/0]).

-type entry() :: up
               | {down, Reason :: term()}
               | {message, Life :: pos_integer(), Epoch :: non_neg_integer(), First :: pos_integer(), N :: pos_integer()}
               | {run, Life :: pos_integer(), Epoch :: non_neg_integer(), First :: pos_integer(),
                  From :: pos_integer(), To :: pos_integer()}
               | {bad_data, Life :: pos_integer(), N :: pos_integer()}.
-type log() :: [entry()].
-type words() :: #{heard := [pos_integer()],          %% the numbers, in order
                   exit := term(), down := term(),    %% reasons by link and by monitor, or `waiting'
                   cut_off := boolean(),              %% the node was lost before the end, so `heard' stops there
                   nodedown := boolean()}.            %% whether the node was lost at about that time
-type event() :: {up | down, beamway_nemesis_schedule:index(), Reason :: term(), AtUs :: integer()}.
-type observed() :: #{node := beamway_nemesis_schedule:index(), life := pos_integer(),
                      until_us := integer(), events := [event()]}.   %% in order
-type executed() :: #{fault := beamway_nemesis_schedule:fault(), from_us := integer(), to_us := integer(),
                      effect := boolean() | paused}. %% `paused' means that the link must survive it
-type finding() :: {Kind :: atom(), Details :: map()}.
-type record() :: #{faults := [executed()],
                    observed := [observed()],
                    flows := [{Flow :: term(), log()}],
                    words := [{Flow :: term(), [words()]}]}.

%% For this long after a fault that ends a connection, another attempt to connect may still fail halfway (net_setuptime is 7 s).
-define(GRACE_US, 10000000).
%% How late a mandatory nodedown may be, because the node may be waiting for last words, and the
%% machine may be busy.
-define(NOTICE_US, 5000000).
%% A sender cannot have this many messages in flight when it learns of a new connection.
-define(LATE, 200).

%% @doc Adds an entry to a log, newest first. Consecutive messages are kept as a single run.
-spec note(entry(), log()) -> log().
note({message, Life, Epoch, First, N}, [{run, Life, Epoch, First, From, To} | Rest]) when N =:= To + 1 ->
    [{run, Life, Epoch, First, From, N} | Rest];
note({message, Life, Epoch, First, N}, Log) ->
    [{run, Life, Epoch, First, N, N} | Log];
note(Entry, Log) ->
    [Entry | Log].

%% @doc Returns all violations found. An empty list means that all promises were kept.
-spec judge(record()) -> [finding()].
judge(#{faults := Faults, observed := Observed, flows := Flows, words := Words}) ->
    [about(Flow, Finding) || {Flow, Log} <- Flows, Finding <- judge_flow(Log)]
        ++ [about(Flow, Finding) || {Flow, List} <- Words, One <- List, Finding <- judge_words(One)]
        ++ [Finding || #{node := Node, events := Events} <- Observed, Finding <- judge_downs(Node, Events, Faults)]
        ++ [Finding || One <- Observed, Finding <- judge_missing(One, Faults, Observed)].

about(Flow, {Kind, Details}) -> {Kind, Details#{flow => Flow}}.

%% ---- messages from one sender to one receiver ----

%% `last' is the last message, and `gaps' are numbers that did not arrive in sequence. `connection'
%% is what the receiver knows about the connection: `unknown' until its first nodeup, because it may
%% have started to listen in the middle of a connection. `head' means that a connection's first
%% messages did not arrive, unless the sender updated its label late.
-record(flow, {last = none :: none | {pos_integer(), pos_integer()},
               connection = unknown :: unknown | up | down,
               is_fresh = false :: boolean(),
               head = none :: none | {Epoch :: non_neg_integer(), map()},
               count = 0 :: non_neg_integer(),
               gaps = [] :: [{pos_integer(), pos_integer(), pos_integer()}],
               findings = [] :: [finding()]}).

%% @doc Judges one receiver's log about one sender.
-spec judge_flow(log()) -> [finding()].
judge_flow(Log) ->
    Flow = end_of_connection(lists:foldl(fun entry/2, #flow{}, lists:reverse(Log))),
    lists:reverse(Flow#flow.findings, [{lost, #{life => Life, numbers => {From, To}}}
                                       || {Life, From, To} <- lists:reverse(Flow#flow.gaps)]).

entry(up, Flow) ->
    (end_of_connection(Flow))#flow{connection = up, is_fresh = true, count = 0};
entry({down, _}, Flow) ->
    (end_of_connection(Flow))#flow{connection = down};
entry({bad_data, Life, N}, Flow) ->
    found(corrupted, #{life => Life, number => N}, Flow);
entry({run, Life, _, _, From, _} = Run, #flow{connection = down} = Flow) ->
    messages(Run, found(outside_of_a_connection, #{life => Life, number => From}, Flow#flow{connection = unknown}));
entry(Run, Flow) ->
    messages(Run, Flow).

messages({run, Life, Epoch, First, From, To}, Flow) ->
    Judged = order(Life, From, To, Flow),
    Head = head(Epoch, First, {Life, From}, Flow),
    Judged#flow{is_fresh = false, head = Head, count = Flow#flow.count + To - From + 1}.

order(Life, _, To, #flow{last = none} = Flow) ->
    Flow#flow{last = {Life, To}};
order(Life, From, To, #flow{last = {Life, Last}} = Flow) when From =:= Last + 1 ->
    Flow#flow{last = {Life, To}};
order(Life, From, To, #flow{last = Last, is_fresh = true} = Flow) when {Life, From} > Last ->
    Flow#flow{last = {Life, To}};
%% The sender's node was restarted without a nodedown, or messages are missing in the middle of a connection.
order(Life, From, To, #flow{last = {Life, Last}, gaps = Gaps} = Flow) when From > Last ->
    Flow#flow{last = {Life, To}, gaps = [{Life, Last + 1, From - 1} | Gaps]};
order(Life, From, To, #flow{last = Last} = Flow) when {Life, From} > Last ->
    found(new_life_without_nodedown, #{life => Life, number => From, last => Last}, Flow#flow{last = {Life, To}});
order(Life, From, To, #flow{last = Last} = Flow) ->
    again(Life, From, To, Last, Flow).

%% The number is old. The message is late if its number was missing so far, and a duplicate otherwise.
again(Life, From, To, Last, #flow{gaps = Gaps} = Flow) ->
    Details = #{life => Life, numbers => {From, To}, after_number => Last},
    case [Gap || {L, Low, High} = Gap <- Gaps, L =:= Life, From >= Low, To =< High] of
        [{_, Low, High} = Gap | _] ->
            Left = [{Life, A, B} || {A, B} <- [{Low, From - 1}, {To + 1, High}], A =< B],
            found(reordered, Details, Flow#flow{gaps = Left ++ (Gaps -- [Gap])});
        [] ->
            %% Only the new part of the run increases the last number.
            found(duplicated, Details, Flow#flow{last = max(Last, {Life, To})})
    end.

%% The first message of a connection should be the first that was sent in it. If the sender has not yet learned of the connection, its next
%% messages will soon have a new epoch.
head(Epoch, First, {Life, From}, #flow{connection = up, is_fresh = true}) when From > First ->
    {Epoch, #{life => Life, numbers => {First, From - 1}}};
head(Epoch, _, _, #flow{head = {Old, _}}) when Epoch =/= Old ->
    none;
head(_, _, _, #flow{head = Head}) ->
    Head.

end_of_connection(#flow{head = {_, Details}, count = Count} = Flow) when Count > ?LATE ->
    found(lost_head, Details, Flow#flow{head = none});
end_of_connection(Flow) ->
    Flow#flow{head = none}.

found(Kind, Details, #flow{findings = Findings} = Flow) ->
    Flow#flow{findings = [{Kind, Details} | Findings]}.

%% ---- last words ----

%% @doc Judges what a watcher received from a process that sent it the words 1 to K and then exited
%% with `{last, K}'. The watcher was linked to that process and monitored it.
-spec judge_words(words()) -> [finding()].
judge_words(#{heard := Heard, exit := Exit, down := Down, cut_off := CutOff, nodedown := NodeDown} = Words) ->
    InOrder = Heard =:= lists:seq(1, length(Heard)),
    [{words_out_of_order, Words} || not InOrder]
        ++ [{words_lost, Words} || {last, K} <- lists:usort([Exit, Down]), K =/= length(Heard), not CutOff]
        ++ [{false_noconnection, Words} || lists:member(noconnection, [Exit, Down]), not NodeDown]
        ++ [{no_exit_signal, Words} || lists:member(waiting, [Exit, Down])].

%% ---- nodedowns ----

%% @doc Checks that every nodedown was caused by a fault that ends this connection.
-spec judge_downs(beamway_nemesis_schedule:index(), [event()], [executed()]) -> [finding()].
judge_downs(Node, Events, Faults) ->
    [{false_nodedown, #{on => Node, about => Peer, reason => Reason, at_us => At}}
     || {down, Peer, Reason, At} <- Events,
        not lists:any(fun(Fault) -> explains(Fault, Node, Peer, At) end, Faults)].

explains(#{effect := paused}, _Node, _Peer, _At) ->
    false;
explains(#{fault := Fault, from_us := From, to_us := To}, Node, Peer, At) ->
    beamway_nemesis_schedule:ends(Fault, {Node, Peer}) andalso At >= From andalso At =< To + ?GRACE_US.

%% @doc Checks that a fault that ends a connection was followed by a nodedown on each side that survives.
-spec judge_missing(observed(), [executed()], [observed()]) -> [finding()].
judge_missing(#{node := Node, until_us := Until, events := Events}, Faults, Observed) ->
    Peers = lists:usort([Peer || #{node := Peer} <- Observed]) -- [Node],
    [{missing_nodedown, #{on => Node, about => Peer, fault => Fault, at_us => From}}
     || #{fault := Fault, from_us := From, to_us := To, effect := true} <- Faults,
        Peer <- Peers,
        beamway_nemesis_schedule:ends(Fault, {Node, Peer}),
        able_since(Node, From, To, Faults) + ?NOTICE_US =< Until,
        is_up_at(From, Peer, Events),
        not is_followed(From, Peer, Events)].

%% A stopped node cannot notice anything.
able_since(Node, From, To, Faults) ->
    lists:max([To | [Free || #{fault := Fault, from_us := Held, to_us := Free} <- Faults, holds(Fault, Node),
                             Held =< To + ?NOTICE_US, Free >= From]]).

holds({stop, N, _}, Node) -> N =:= Node;
holds({slow_reader, N, _}, Node) -> N =:= Node;
holds({fill_ring, _, N}, Node) -> N =:= Node;
holds(_, _) -> false.

is_up_at(At, Peer, Events) ->
    case [What || {What, P, _, T} <- Events, P =:= Peer, T < At] of
        [] -> false;
        Before -> lists:last(Before) =:= up
    end.

is_followed(At, Peer, Events) ->
    lists:any(fun({What, P, _, T}) -> What =:= down andalso P =:= Peer andalso T >= At end, Events).
