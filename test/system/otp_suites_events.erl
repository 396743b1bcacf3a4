%% SPDX-License-Identifier: Apache-2.0
%% @doc Common Test event handler that writes the outcome of every case of OTP's suites to a file.
%%
%% One term a line, for `file:consult/1': `{Suite, Group, Case, Outcome, Ms}', written as soon as the case is done, so that
%% a node that dies in the middle leaves what it has finished. A case in progress is there as `started', before its outcome.
%% Events were chosen over hooks because they also report time-traps, crashes and cases that were never begun.
-module(otp_suites_events).
-behaviour(gen_event).

-export([init/1, handle_event/2, handle_call/2, handle_info/2, terminate/2]).

-include_lib("common_test/include/ct_event.hrl").

-record(state, {
    file :: file:io_device(),
    %% The groups that the case at hand is in, innermost first.
    groups = [] :: [atom()],
    started_ms = 0 :: integer()
}).

-spec init(Args :: [file:filename()]) -> {ok, #state{}}.
init([Path]) ->
    {ok, File} = file:open(Path, [append, {encoding, utf8}]),
    {ok, #state{file = File}}.

-spec handle_event(#event{}, #state{}) -> {ok, #state{}}.
handle_event(#event{name = tc_start, data = {Suite, Case}}, State) when is_atom(Case) ->
    State1 = State#state{started_ms = erlang:monotonic_time(millisecond)},
    record_case(Suite, Case, started, 0, State1),
    {ok, State1};
handle_event(#event{name = tc_done, data = {Suite, {init_per_group, Group, _}, Result}}, State) ->
    Outcome = outcome(Result),
    Outcome =:= ok orelse record_case(Suite, init_per_group, Outcome, 0, State),
    {ok, State#state{groups = [Group | State#state.groups]}};
handle_event(#event{name = tc_done, data = {Suite, {end_per_group, _, _}, Result}}, State) ->
    Outcome = outcome(Result),
    Outcome =:= ok orelse record_case(Suite, end_per_group, Outcome, 0, State),
    {ok, State#state{groups = pop(State#state.groups)}};
handle_event(#event{name = tc_done, data = {Suite, Case, Result}}, State) when is_atom(Case) ->
    Ms = erlang:monotonic_time(millisecond) - State#state.started_ms,
    record_case(Suite, Case, outcome(Result), Ms, State),
    {ok, State};
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

%% A skipped case names its group itself, since init_per_group may never have run.
record_skip(Suite, {Case, Group}, Reason, State) when is_atom(Case), is_atom(Group) ->
    record_case(Suite, Case, {skipped, Reason}, 0, State#state{groups = [Group]});
record_skip(Suite, Case, Reason, State) when is_atom(Case) ->
    record_case(Suite, Case, {skipped, Reason}, 0, State);
record_skip(_Suite, _Other, _Reason, _State) ->
    ok.

record_case(_Suite, Case, ok, _Ms, _State) when Case =:= init_per_suite; Case =:= end_per_suite ->
    ok;
record_case(_Suite, Case, started, _Ms, _State) when Case =:= init_per_suite; Case =:= end_per_suite ->
    ok;
record_case(Suite, Case, Outcome, Ms, #state{file = File, groups = Groups}) ->
    Group = hd(Groups ++ [none]),
    io:format(File, "~0tp.~n", [{Suite, Group, Case, readable(Outcome), Ms}]),
    Outcome =:= started orelse io:format(user, "  ~ts ~ts ~ts ~.1fs~n", [Suite, Case, word(Outcome), Ms / 1000]),
    ok.

outcome(ok) -> ok;
outcome({skipped, Reason}) -> {skipped, Reason};
outcome({auto_skipped, Reason}) -> {skipped, Reason};
outcome({failed, Reason}) -> {failed, Reason};
outcome({error, Reason}) -> {failed, Reason};
outcome(_CommentOrValue) -> ok.

%% Reasons hold pids and funs that cannot be read back; text can.
readable({Word, Reason}) -> {Word, lists:flatten(io_lib:format("~0tP", [Reason, 40]))};
readable(Outcome) -> Outcome.

word(ok) -> "ok";
word({Word, _Reason}) -> atom_to_list(Word).

pop([]) -> [];
pop([_ | Groups]) -> Groups.
