%% SPDX-License-Identifier: Apache-2.0
%% @doc A Common Test event handler that writes the outcome of every case of OTP's suites to a file.
%%
%% Each line is a term for `file:consult/1': `{Suite, Group, Case, Outcome, Ms, Counts}'. It is written as soon as the case ends, so that
%% the outcomes of finished cases are not lost if the node crashes in the middle of a suite. While a case is running, its outcome is
%% `started'. `Counts' are the nodes that were started and the links that were set up during the case; see {@link otp_suites_links}. The
%% module is an event handler and not a hook, because events also report time-traps, crashes and cases that never began.
-module(otp_suites_events).
-behaviour(gen_event).

-export([init/1, handle_event/2, handle_call/2, handle_info/2, terminate/2]).

-include_lib("common_test/include/ct_event.hrl").

-record(state, {
    file :: file:io_device(),
    %% The groups that contain the current case, innermost first.
    groups = [] :: [atom()],
    %% The start times of the cases in progress. There are several in a group that runs its cases in parallel.
    started_ms = #{} :: #{atom() => integer()},
    %% True if none of them has run in parallel with another case.
    alone = true :: boolean(),
    %% The position in the trace of nodes and links when the current case began or, if that is
    %% later, when another case ended.
    trace = 0 :: non_neg_integer()
}).

-spec init(Args :: [file:filename()]) -> {ok, #state{}}.
init([Path]) ->
    {ok, File} = file:open(Path, [append, {encoding, utf8}]),
    {ok, #state{file = File}}.

-spec handle_event(#event{}, #state{}) -> {ok, #state{}}.
handle_event(#event{name = tc_start, data = {Suite, Case}}, #state{started_ms = Started} = State) when is_atom(Case) ->
    State1 = case map_size(Started) of
        0 -> State#state{alone = true, trace = otp_suites_links:position()};
        _ -> State#state{alone = false}
    end,
    record_case(Suite, Case, started, 0, otp_suites_links:none(), State1),
    {ok, State1#state{started_ms = Started#{Case => erlang:monotonic_time(millisecond)}}};
handle_event(#event{name = tc_done, data = {Suite, {init_per_group, Group, _}, Result}}, State) ->
    Outcome = outcome(Result),
    Outcome =:= ok orelse record_case(Suite, init_per_group, Outcome, 0, otp_suites_links:none(), State),
    {ok, State#state{groups = [Group | State#state.groups]}};
handle_event(#event{name = tc_done, data = {Suite, {end_per_group, _, _}, Result}}, State) ->
    Outcome = outcome(Result),
    Outcome =:= ok orelse record_case(Suite, end_per_group, Outcome, 0, otp_suites_links:none(), State),
    {ok, State#state{groups = pop(State#state.groups)}};
handle_event(#event{name = tc_done, data = {Suite, Case, Result}}, #state{started_ms = Started} = State) when is_atom(Case) ->
    Now = erlang:monotonic_time(millisecond),
    Ms = Now - maps:get(Case, Started, Now),
    record_case(Suite, Case, outcome(Result), Ms, counts(State), State),
    {ok, State#state{started_ms = maps:remove(Case, Started), trace = otp_suites_links:position()}};
handle_event(#event{name = Name, data = {Suite, Func, Reason}}, State) when
    Name =:= tc_auto_skip; Name =:= tc_user_skip
->
    record_skip(Suite, Func, Reason, State),
    {ok, State};
handle_event(_Event, State) ->
    {ok, State}.

-spec handle_call(term(), #state{}) -> {ok, ok, #state{}}.
handle_call(_Request, State) ->
    {ok, ok, State}.

-spec handle_info(term(), #state{}) -> {ok, #state{}}.
handle_info(_Info, State) ->
    {ok, State}.

-spec terminate(term(), #state{}) -> ok.
terminate(_Reason, State) ->
    _ = file:close(State#state.file),
    ok.

%% The event of a skipped case contains its group, because init_per_group may never have run.
record_skip(Suite, {Case, Group}, Reason, State) when is_atom(Case), is_atom(Group) ->
    record_case(Suite, Case, {skipped, Reason}, 0, otp_suites_links:none(), State#state{groups = [Group]});
record_skip(Suite, Case, Reason, State) when is_atom(Case) ->
    record_case(Suite, Case, {skipped, Reason}, 0, otp_suites_links:none(), State);
record_skip(_Suite, _Other, _Reason, _State) ->
    ok.

%% If other cases ran in parallel, a link cannot be attributed to this case.
counts(#state{alone = true, trace = Position}) -> otp_suites_links:since(Position);
counts(#state{alone = false, trace = Position}) -> otp_suites_links:shared(otp_suites_links:since(Position)).

record_case(_Suite, Case, Outcome, _Ms, _Counts, _State) when
    Case =:= init_per_suite orelse Case =:= end_per_suite, Outcome =:= ok orelse Outcome =:= started
->
    ok;
record_case(Suite, Case, Outcome, Ms, Counts, #state{file = File, groups = Groups}) ->
    Group = hd(Groups ++ [none]),
    io:format(File, "~0tp.~n", [{Suite, Group, Case, readable(Outcome), Ms, Counts}]),
    Outcome =:= started orelse io:format(user, "  ~ts ~ts ~ts ~.1fs~n", [Suite, Case, word(Outcome), Ms / 1000]),
    ok.

outcome(ok) -> ok;
outcome({skipped, Reason}) -> {skipped, Reason};
outcome({auto_skipped, Reason}) -> {skipped, Reason};
%% If the case has passed but its cleanup has failed, Common Test also counts it as passed.
outcome({failed, {_Suite, end_per_testcase, _Why}}) -> ok;
outcome({failed, Reason}) -> {failed, Reason};
outcome({error, Reason}) -> {failed, Reason};
outcome(_CommentOrValue) -> ok.

%% Reasons may contain pids and funs, which cannot be read back as terms, so they are stored as text.
readable({Word, Reason}) -> {Word, lists:flatten(io_lib:format("~0tP", [Reason, 40]))};
readable(Outcome) -> Outcome.

word(ok) -> "ok";
word({Word, _Reason}) -> atom_to_list(Word).

pop([]) -> [];
pop([_ | Groups]) -> Groups.
