%% SPDX-License-Identifier: Apache-2.0
%% The oracle reports nothing for logs that distributed Erlang permits, and names each violation.
-module(beamway_nemesis_oracle_tests).

-include_lib("proper/include/proper.hrl").
-include_lib("eunit/include/eunit.hrl").

%% Message N of the node's first life, sent in the sender's first connection.
log(Entries) ->
    lists:foldl(fun beamway_nemesis_oracle:note/2, [], [entry(E) || E <- Entries]).

entry(N) when is_integer(N) -> {message, 1, 1, 1, N};
entry({Epoch, First, N}) when is_integer(Epoch) -> {message, 1, Epoch, First, N};
entry(down) -> {down, connection_closed};
entry(Other) -> Other.

kinds(Entries) ->
    [Kind || {Kind, _} <- beamway_nemesis_oracle:judge_flow(log(Entries))].

what_is_allowed_test_() ->
    [?_assertEqual([], kinds(Entries))
     || Entries <- [[], [up], [up, 1, 2, 3], [up, 1, 2, down, up, 3], [up, 1, 2, down, up, 7, 8], [up, 1, down, down, up, 9],
                    %% the receiver started to listen in mid-connection
                    [17, 18, 19], [17, 18, down, up, 25],
                    %% the sender's node was started again
                    [up, 1, 2, down, up, {message, 2, 1, 1, 1}, {message, 2, 1, 1, 2}],
                    %% the sender learns of the connection only after some messages
                    [up, 1, 2, down, up, {1, 1, 7}, {2, 8, 8}, {2, 8, 9}]]].

what_is_forbidden_test_() ->
    [?_assertEqual(Kinds, kinds(Entries))
     || {Kinds, Entries} <-
            [{[lost], [up, 1, 3]}, {[lost, lost], [up, 1, 3, 5]}, {[lost], [17, 19]},
             {[reordered], [up, 1, 3, 2, 4]}, {[reordered, reordered], [up, 1, 4, 3, 2, 5]},
             {[duplicated], [up, 1, 2, 2, 3]}, {[duplicated], [up, 1, 2, 3, 1, 4]},
             %% the message arrives again in the next connection
             {[duplicated], [up, 1, 2, down, up, 2, 3]},
             {[outside_of_a_connection], [up, 1, down, 2]},
             {[corrupted], [up, 1, {bad_data, 1, 1}, 2]},
             {[new_life_without_nodedown], [up, 1, 2, {message, 2, 1, 1, 1}]},
             %% the first messages of a connection are missing
             {[lost_head], [up, 1, down, up | [{2, 2, N} || N <- lists:seq(5, 300)]]}]].

%% --- any correct log, and changes that make it wrong ---------------------------------------------------

%% Generates a sequence of connections, with the number of messages that arrive in each, and the number that are lost
%% when it ends.
connections() ->
    non_empty(list({range(0, 20), range(0, 5)})).

entries(Connections) ->
    {Entries, _, _} = lists:foldl(fun({Count, Lost}, {Acc, Next, Epoch}) ->
                                          Said = [{Epoch, Next, N} || N <- lists:seq(Next, Next + Count - 1)],
                                          {Acc ++ [up] ++ Said ++ [down], Next + Count + Lost, Epoch + 1}
                                  end, {[], 1, 1}, Connections),
    Entries.

properties_test_() ->
    [{atom_to_list(Name), {timeout, 60, ?_assert(proper:quickcheck(Property, [quiet, {numtests, 300}]))}}
     || {Name, Property} <- [{correct_logs_are_clean, correct_logs_are_clean()}, {a_hole_is_found, a_hole_is_found()},
                             {a_copy_is_found, a_copy_is_found()}, {an_exchange_is_found, an_exchange_is_found()}]].

correct_logs_are_clean() ->
    ?FORALL(Connections, connections(), kinds(entries(Connections)) =:= []).

%% Returns the positions of messages that are between two other messages.
inner(Entries) ->
    Numbered = lists:zip(lists:seq(1, length(Entries)), Entries),
    [I || {I, {_, _, _}} <- Numbered, I > 1, I < length(Entries),
          is_tuple(lists:nth(I - 1, Entries)), is_tuple(lists:nth(I + 1, Entries))].

spoiled(Kind, Spoil) ->
    ?FORALL({Connections, Where}, {connections(), range(1, 1000)},
            begin
                Entries = entries(Connections),
                case inner(Entries) of
                    [] -> true;
                    Places -> kinds(Spoil(lists:nth(1 + Where rem length(Places), Places), Entries)) =:= [Kind]
                end
            end).

a_hole_is_found() ->
    spoiled(lost, fun(I, Entries) -> {Front, [_ | Back]} = lists:split(I - 1, Entries), Front ++ Back end).

a_copy_is_found() ->
    spoiled(duplicated, fun(I, Entries) -> {Front, [One | Back]} = lists:split(I - 1, Entries), Front ++ [One, One | Back] end).

an_exchange_is_found() ->
    spoiled(reordered, fun(I, Entries) -> {Front, [A, B | Back]} = lists:split(I - 1, Entries), Front ++ [B, A | Back] end).

%% --- last words ----------------------------------------------------------------------------------------

words(Heard, Exit, Down, NodeDown) ->
    words(Heard, Exit, Down, NodeDown, false).

words(Heard, Exit, Down, NodeDown, CutOff) ->
    Words = #{heard => Heard, exit => Exit, down => Down, nodedown => NodeDown, cut_off => CutOff},
    [Kind || {Kind, _} <- beamway_nemesis_oracle:judge_words(Words)].

%% The nodedown came before the words, and belonged to a different connection.
words_that_were_not_counted_test() ->
    ?assertEqual([], words([], {last, 20}, {last, 20}, true, true)),
    ?assertEqual([words_out_of_order], words([2], {last, 20}, {last, 20}, true, true)).

last_words_test_() ->
    [?_assertEqual(Kinds, words(Heard, Exit, Down, NodeDown))
     || {Kinds, Heard, Exit, Down, NodeDown} <-
            [{[], [1, 2, 3], {last, 3}, {last, 3}, false}, {[], [], {last, 0}, {last, 0}, false},
             {[], [1, 2], noconnection, noconnection, true}, {[], [1, 2, 3], {last, 3}, noconnection, true},
             {[], [], noproc, noproc, false},
             {[words_lost], [1, 2], {last, 3}, {last, 3}, false}, {[words_lost], [1, 2], {last, 3}, noconnection, true},
             {[words_out_of_order], [1, 3, 2], {last, 3}, {last, 3}, false},
             {[words_out_of_order], [1, {bad_data, 2}, 3], {last, 3}, {last, 3}, false},
             {[false_noconnection], [1], noconnection, noconnection, false},
             {[no_exit_signal], [1, 2, 3], {last, 3}, waiting, false}, {[no_exit_signal], [1], waiting, waiting, false}]].

%% --- nodedowns -----------------------------------------------------------------------------------------

executed(Fault, From, To) -> #{fault => Fault, from_us => From, to_us => To, effect => true}.

downs(Node, Events, Faults) ->
    [Kind || {Kind, _} <- beamway_nemesis_oracle:judge_downs(Node, Events, Faults)].

every_nodedown_has_a_fault_test_() ->
    Down = {down, 2, connection_closed, 1000000},
    [?_assertEqual([], downs(1, [Down], [executed(F, 900000, 950000)]))
     || F <- [{kill, 2}, {kill, 1}, {restart, 2, #{}}, {cut_tcp, 1, 2}, {cut_tcp, 2, 1}, {stop, 1, 12000}, {stop, 2, 12000}]]
        ++ [?_assertEqual([false_nodedown], downs(1, [Down], [executed(F, 900000, 950000)]))
            || F <- [{kill, 3}, {cut_tcp, 2, 3}, {stop, 2, 4000}, {fill_ring, 1, 2}, {no_descriptors, 2, 1000},
                     {slow_reader, 2, 3000}, {clock_jump, 2, 3600}, {wait, 10}]]
        ++ [?_assertEqual([false_nodedown], downs(1, [Down], [])),
            %% before the fault, and long after it
            ?_assertEqual([false_nodedown], downs(1, [Down], [executed({kill, 2}, 1100000, 1200000)])),
            ?_assertEqual([false_nodedown], downs(1, [setelement(4, Down, 60000000)], [executed({kill, 2}, 900000, 950000)]))].

observed(Node, Events) -> #{node => Node, life => 1, until_us => 60000000, events => Events}.

missing(Events, Faults) ->
    One = observed(1, Events),
    [Kind || {Kind, _} <- beamway_nemesis_oracle:judge_missing(One, Faults, [One, observed(2, []), observed(3, [])])].

a_nodedown_must_come_test_() ->
    Up = {up, 2, none, 1000},
    Kill = executed({kill, 2}, 5000000, 5010000),
    [?_assertEqual([], missing([Up, {down, 2, connection_closed, 5100000}], [Kill])),
     ?_assertEqual([missing_nodedown], missing([Up], [Kill])),
     ?_assertEqual([missing_nodedown], missing([Up, {down, 2, disconnect, 2000}, {up, 2, none, 3000}], [Kill])),
     %% the node was stopped almost until the end
     ?_assertEqual([], missing([Up], [Kill, executed({stop, 1, 3000}, 4000000, 57000000)])),
     ?_assertEqual([missing_nodedown], missing([Up], [Kill, executed({stop, 1, 3000}, 4000000, 16000000)])),
     ?_assertEqual([missing_nodedown], missing([Up], [Kill, executed({stop, 3, 3000}, 4000000, 57000000)])),
     %% the node was not connected, or the fault did not happen
     ?_assertEqual([], missing([], [Kill])),
     ?_assertEqual([], missing([Up, {down, 2, disconnect, 2000}], [Kill])),
     ?_assertEqual([], missing([Up], [Kill#{effect := false}])),
     ?_assertEqual([], missing([Up], [executed({stop, 2, 3000}, 5000000, 8000000)]))].

%% --- all together --------------------------------------------------------------------------------------

judge_looks_at_everything_test() ->
    Record = #{faults => [], observed => [observed(1, [{down, 2, net_tick_timeout, 5}]), observed(2, [])],
               flows => [{{2, 1, small}, log([up, 1, 3])}, {{1, 2, small}, log([up, 1, 2])}],
               words => [{{2, 1, words}, [#{heard => [], exit => {last, 1}, down => {last, 1}, nodedown => false, cut_off => false}]}]},
    ?assertMatch([{lost, #{flow := {2, 1, small}}}, {words_lost, #{flow := {2, 1, words}}}, {false_nodedown, #{on := 1}}],
                 beamway_nemesis_oracle:judge(Record)).

%% --- the nodes' logs -----------------------------------------------------------------------------------

lines_of_the_log_test() ->
    Schedule = #{nodes => [#{}, #{}], faults => [{kill, 1}]},
    Serious = ["2026-01-02T03:04:05.678901+00:00 error: Error in process <0.1.0> with exit value: oops",
               "2026-01-02T03:04:05.678901+00:00 warning: beamway: no shared memory with 127.0.0.1:1, using tcp: why"],
    Text = lists:join("\n", ["2026-01-02T03:04:05.678901+00:00 notice: something with error: in it" | Serious]),
    ?assertEqual(Serious, beamway_nemesis_log:unexpected(lists:flatten(Text), Schedule)),
    Timeout = "2026-01-02T03:04:05.678901+00:00 error: ** Node b@h not responding **, ** Removing (timedout) connection **",
    ?assertEqual([Timeout], beamway_nemesis_log:unexpected(Timeout, Schedule)),
    ?assertEqual([], beamway_nemesis_log:unexpected(Timeout, Schedule#{faults := [{stop, 1, 12000}]})).
