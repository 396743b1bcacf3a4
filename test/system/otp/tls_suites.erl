%% SPDX-License-Identifier: Apache-2.0
%% @doc Runs OTP's suites for distribution over TLS in this node, stores the outcomes and measurements, and compares two carriers. The
%% script `tls_suites' in the same directory calls `run/1' once for each carrier and suite, and `report/1' at the end. Arguments are lists
%% of strings, as `erl -run' passes them.
-module(tls_suites).
-behaviour(gen_event).

-export([run/1, report/1]).
-export([init/1, handle_event/2, handle_call/2, handle_info/2, terminate/2]).

-include_lib("common_test/include/ct_event.hrl").

%% @doc Runs a suite and halts the node.
-spec run(Args :: [string()]) -> no_return().
run([Dir, Suite, Effort, ResultFile, LogDir]) ->
    Options = [{dir, Dir}, {suite, list_to_atom(Suite)}, {auto_compile, false}, {logdir, LogDir}, {event_handler, {?MODULE, [ResultFile]}}
               | [{group, [benchmark]} || Suite =:= "ssl_dist_bench_SUITE", Effort =:= "full"]],
    case ct:run_test(Options) of
        {error, Reason} -> io:format("tls_suites: common_test could not run ~ts: ~tp~n", [Suite, Reason]), halt(2);
        _Counts -> halt(0)
    end.

%% ---- events: one term per line

-spec init([file:filename()]) -> {ok, file:io_device()}.
init([File]) -> file:open(File, [append, {encoding, utf8}]).

-spec handle_event(#event{}, file:io_device()) -> {ok, file:io_device()}.
handle_event(#event{name = benchmark_data, data = Data}, File) ->
    write(File, {figure, figure_name(proplists:get_value(name, Data)), proplists:get_value(value, Data)});
handle_event(#event{name = tc_done, data = {Suite, init_per_suite, Result}}, File) ->
    %% If this fails, all cases of the suite are skipped, so the failure is recorded.
    case outcome(Result) of
        ok -> {ok, File};
        Failed -> write(File, {outcome, Suite, init_per_suite, Failed})
    end;
handle_event(#event{name = tc_done, data = {Suite, Case, Result}}, File) when is_atom(Case), Case =/= end_per_suite ->
    write(File, {outcome, Suite, Case, outcome(Result)});
handle_event(_, File) ->
    {ok, File}.

outcome({failed, Reason}) -> {failed, text(Reason)};
outcome({skipped, Reason}) -> {skipped, text(Reason)};
outcome({auto_skipped, Reason}) -> {skipped, text(Reason)};
outcome(_) -> ok.

%% A question mark at the end means that senders were suspended during the measurement. It is removed, because otherwise the same measurement
%% could have different names in two runs.
figure_name(Name) -> string:trim(lists:flatten(Name), trailing, " ?").

text(Reason) -> lists:flatten(io_lib:format("~0tP", [Reason, 20])).

write(File, Term) ->
    ok = io:format(File, "~0tp.~n", [Term]),
    {ok, File}.

-spec handle_call(term(), file:io_device()) -> {ok, ok, file:io_device()}.
handle_call(_Request, File) -> {ok, ok, File}.

-spec handle_info(term(), file:io_device()) -> {ok, file:io_device()}.
handle_info(_Info, File) -> {ok, File}.

-spec terminate(term(), file:io_device()) -> ok.
terminate(_Reason, File) -> _ = file:close(File), ok.

%% ---- report

%% @doc Prints the results of both carriers side by side, stores them on request, and halts the node with status 1 if beamway_tls does not
%% meet the expectations.
-spec report(Args :: [string()]) -> no_return().
report([Folder, Store, Document, Suites]) ->
    [Stock, Own] = [begin {ok, Terms} = file:consult(filename:join(Folder, Carrier ++ ".results")), Terms end || Carrier <- ["inet_tls", "beamway_tls"]],
    {ok, Text} = file:read_file(Document),
    Figures = [{Name, Value, of_name(Name, Own)} || {figure, Name, Value} <- Stock],
    Cases = [{Suite, Case, of_case(Suite, Case, Stock), of_case(Suite, Case, Own)}
             || {Suite, Case} <- lists:usort([{Suite, Case} || {outcome, Suite, Case, _} <- Stock ++ Own])],
    _ = [io:format("~-52ts stock ~-8ts beamway_tls ~ts~n", [id(Suite, Case), word(Was), word(Is)]) || {Suite, Case, Was, Is} <- Cases],
    _ = [io:format("~-44ts ~12w ~12w  ~ts~n", [Name, Value, Is, ratio(Value, Is)]) || {Name, Value, Is} <- Figures],
    Wrong = [[id(Suite, Case), ": ", why(Is)] || {Suite, Case, Was, Is} <- Cases, word(Was) =/= word(Is), not is_named(Suite, Case, Text)]
        ++ [["no case of ", Suite, " has passed"] || Suite <- string:lexemes(Suites, " "), [] =:= [C || {S, C, ok, _} <- Cases, atom_to_list(S) =:= Suite]]
        ++ wrong_links(Folder),
    _ = [io:format("WRONG ~ts~n", [Line]) || Line <- Wrong],
    halt(min(1, length(Wrong) + store(Store, filename:join(Folder, "began"), Cases, Figures))).

of_name(Name, Terms) -> hd([Value || {figure, N, Value} <- Terms, N =:= Name] ++ [none]).

%% A benchmark case runs once in each group.
of_case(Suite, Case, Terms) ->
    case [Outcome || {outcome, S, C, Outcome} <- Terms, S =:= Suite, C =:= Case] of
        [] -> {failed, "it was not run"};
        Outcomes -> hd([Outcome || Outcome <- Outcomes, Outcome =/= ok] ++ [ok])
    end.

%% Checks which links the nodes used, because a run over OTP's own TLS would prove nothing.
wrong_links(Folder) ->
    {ok, Trace} = file:read_file(filename:join(Folder, "beamway_tls.trace")),
    Lines = binary:split(Trace, <<"\n">>, [global, trim_all]),
    Count = fun(Prefix) -> length([Line || Line <- Lines, string:prefix(Line, Prefix) =/= nomatch]) end,
    io:format("beamway_tls: ~b nodes, ~b ends of links over the driver's TLS~n", [Count("node "), Count("link tls")]),
    [["a link was not over the driver's TLS: ", Line] || <<"link ", _/binary>> = Line <- lists:usort(Lines), Line =/= <<"link tls">>]
        ++ ["no link was over the driver's TLS" || Count("link tls") =:= 0].

id(Suite, Case) -> [atom_to_list(Suite), $:, atom_to_list(Case)].

is_named(Suite, Case, Text) -> binary:match(Text, iolist_to_binary([$`, id(Suite, Case), $`])) =/= nomatch.

word(ok) -> "passed";
word({Outcome, _}) -> atom_to_list(Outcome).

why(ok) -> "it passes here and not over stock TLS";
why({_, Why}) -> Why.

ratio(Was, Is) when is_number(Was), is_number(Is), Was > 0 -> io_lib:format("~.2f of stock", [Is / Was]);
ratio(_, _) -> "".

%% Returns 1 if the result could not be stored. The context was taken before the first suite.
store("no", _, _, _) -> 0;
store("store" ++ Force, BeganFile, Cases, Figures) ->
    {ok, Context} = beamway_bench_store:begun_in(BeganFile),
    Totals = maps:from_list([{Carrier, length([Case || {_, Case, _, _} = All <- Cases, element(Place, All) =:= ok])} || {Carrier, Place} <- [{stock, 3}, {beamway_tls, 4}]]),
    Object = Context#{repeats => 1, passed => Totals,
                      cases => [#{'case' => iolist_to_binary(id(Suite, Case)), stock => list_to_binary(word(Was)), beamway_tls => list_to_binary(word(Is))}
                                || {Suite, Case, Was, Is} <- Cases],
                      figures => [#{figure => unicode:characters_to_binary(Name), stock => Value, beamway_tls => Is,
                                    ratio => unicode:characters_to_binary(ratio(Value, Is))} || {Name, Value, Is} <- Figures]},
    case beamway_bench_store:publish(beamway_bench_store:file("otp-tls"), Object, Force =:= "--force") of
        ok -> 0;
        {error, Why} -> io:format("WRONG ~ts~n", [Why]), 1
    end.
