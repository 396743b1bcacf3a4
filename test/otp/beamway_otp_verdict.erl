%% SPDX-License-Identifier: Apache-2.0
%% @doc Judges the outcomes of OTP's own suites: which of them are wrong, and why.
%%
%% The functions are pure. `test/system/otp/otp_suites_report.erl' reads the outcomes and calls this module. The first oracle is stock TCP: a
%% case that passes there must pass on Beamway. The second oracle is the stored result: a case that has passed once must continue to pass, even
%% if stock TCP does not. A stored difference is not a problem, but there may be at most {@link most_differences/0} of them.
%%
%% Links are also judged, because a case proves nothing about shared memory if it fell back to TCP, or if it no longer creates a link that it
%% once created.
-module(beamway_otp_verdict).

-export([problems/4, fallbacks/2, differences/1, common_failures/1, most_differences/0, describe/1]).
-export_type([word/0, id/0, result/0, stored/0, problem/0]).

-type word() :: passed | flaky | failed | died | skipped | not_run.
%% flaky: failed, but passed when run alone. died: crashed its node, or exceeded the suite's time limit.
-type id() :: {Suite :: atom(), Group :: atom(), Case :: atom()}.
-type result() :: #{word := word(), shm := non_neg_integer(), tcp_links := #{Reason :: binary() => pos_integer()}}.
%% `shm' is the number of shared-memory links that the suite's own node set up in this case; `tcp_links' counts the ends of TCP links on all
%% nodes.
-type stored() :: #{tcp := word(), beamway := word(), shm := non_neg_integer(), tcp_links := #{binary() => pos_integer()}}.
-type problem() :: stored_as_passed | passes_on_tcp | new_failure | no_shared_memory | {fell_back, Reason :: binary()}.

%% The reason for links to C nodes and to nodes with their own carrier.
-define(FOREIGN, <<"the peer does not speak beamway">>).

-spec passes(word()) -> boolean().
passes(Word) -> Word =:= passed orelse Word =:= flaky.

%% @doc Returns what is wrong with a case on Beamway. `unknown' means that the case was not run over stock TCP, and `none' that it has no stored result.
%% Links are judged only over shared memory, where `Links' is true.
-spec problems(result(), Tcp :: word() | unknown, stored() | none, Links :: boolean()) -> [problem()].
problems(#{word := Word} = Result, Tcp, Stored, Links) ->
    outcome(passes(Word), Word, Tcp, Stored)
        ++ [Problem || Links, Problem <- fallbacks(Result, Stored) ++ missing(Result, Stored)].

outcome(true, _Word, _Tcp, _Stored) -> [];
outcome(false, skipped, Tcp, none) when Tcp =:= skipped; Tcp =:= unknown -> [];
outcome(false, _Word, _Tcp, none) -> [new_failure];
outcome(false, _Word, Tcp, #{tcp := StoredTcp, beamway := StoredWord}) ->
    case {passes(StoredWord), passes(Tcp), passes(StoredTcp)} of
        {true, _, _} -> [stored_as_passed];
        {false, true, false} -> [passes_on_tcp];
        {false, _, _} -> []
    end.

%% @doc Returns the unexpected reasons for links over TCP.
-spec fallbacks(result(), stored() | none) -> [problem()].
fallbacks(#{tcp_links := Now}, none) ->
    [{fell_back, Reason} || Reason <- maps:keys(Now), Reason =/= ?FOREIGN];
fallbacks(#{tcp_links := Now}, #{tcp_links := Before}) ->
    [{fell_back, Reason} || Reason <- maps:keys(Now), not is_map_key(Reason, Before)].

%% A case that closes its only connection immediately may end before its node has reported the
%% link's kind.
missing(#{word := Word, shm := 0}, #{shm := Before}) when Before > 1, Word =/= not_run, Word =/= died -> [no_shared_memory];
missing(_Result, _Stored) -> [].

%% @doc Returns the cases that pass on stock TCP but not on Beamway.
-spec differences(#{id() => stored()}) -> [id()].
differences(All) ->
    [Id || {Id, #{tcp := Tcp, beamway := Beamway}} <- lists:sort(maps:to_list(All)), passes(Tcp), not passes(Beamway)].

%% @doc Returns the cases that pass on neither, except those that are skipped on both.
-spec common_failures(#{id() => stored()}) -> [id()].
common_failures(All) ->
    [Id || {Id, #{tcp := Tcp, beamway := Beamway}} <- lists:sort(maps:to_list(All)),
           not passes(Tcp), not passes(Beamway), {Tcp, Beamway} =/= {skipped, skipped}].

%% @doc Returns how many cases may differ at most. Each of them tests TCP itself.
-spec most_differences() -> pos_integer().
most_differences() -> 6.

-spec describe(problem()) -> unicode:chardata().
describe(stored_as_passed) -> "is stored as passed and does not pass";
describe(passes_on_tcp) -> "passes on stock TCP now and does not pass here";
describe(new_failure) -> "is not stored and does not pass";
describe(no_shared_memory) -> "made links over shared memory when it was stored, and makes none now";
describe({fell_back, Reason}) -> ["made a link over TCP, because: ", Reason].
