%% SPDX-License-Identifier: Apache-2.0
%% @doc The parse transform used by `scripts/coverage', which puts a call to {@link beamway_coverage:line/2} before each expression of a body.
%%
%% OTP's cover cannot be used here, because half of the carrier runs before a node has booted far enough to start cover, and because the suites
%% kill many nodes, whose counts would be lost. All modules of the applications are instrumented except those that are loaded into other nodes,
%% where no other Beamway code is available.
-module(beamway_coverage_transform).

-export([parse_transform/2]).

-define(TRAVELLERS, [beamway_console_collector, placement_probe_pair]).

-type forms() :: [erl_parse:abstract_form() | erl_parse:form_info()].

%% @doc Called by the compiler.
-spec parse_transform(forms(), [compile:option()]) -> forms().
parse_transform(Forms, _Options) ->
    case [Module || {attribute, _, file, {File, _}} <- Forms, is_of_application(filename:split(File)), {attribute, _, module, Module} <- Forms] of
        [Module | _] -> case lists:member(Module, ?TRAVELLERS) of true -> Forms; false -> [form(Module, Form) || Form <- Forms] end;
        [] -> Forms
    end.

is_of_application(["apps", App, "src" | _]) -> App =/= "test_support";
is_of_application(_) -> false.

form(Module, {function, Anno, Name, Arity, Clauses}) -> {function, Anno, Name, Arity, [change(Module, Clause) || Clause <- Clauses]};
form(_Module, Other) -> Other.

change(Module, {clause, Anno, Patterns, Guards, Body}) ->
    {clause, Anno, Patterns, Guards, body(Module, Body)};
change(Module, {'case', Anno, {call, _, {remote, _, {atom, _, logger}, {atom, _, allow}}, _} = Allow, [Logs, Silent]}) ->
    %% The branch in a log macro for a disabled level does not count as a line of the carrier.
    {'case', Anno, Allow, [change(Module, Logs), Silent]};
change(Module, {block, Anno, Body}) ->
    {block, Anno, body(Module, Body)};
change(Module, {'try', Anno, Body, Clauses, Handlers, After}) ->
    {'try', Anno, body(Module, Body), change(Module, Clauses), change(Module, Handlers), body(Module, After)};
change(Module, {'receive', Anno, Clauses, Timeout, After}) ->
    {'receive', Anno, change(Module, Clauses), change(Module, Timeout), body(Module, After)};
change(Module, Tuple) when is_tuple(Tuple) ->
    list_to_tuple(change(Module, tuple_to_list(Tuple)));
change(Module, [Head | Tail]) ->
    [change(Module, Head) | change(Module, Tail)];
change(_Module, Other) ->
    Other.

body(Module, Expressions) ->
    lists:append([[passed(Module, element(2, Expression)), change(Module, Expression)] || Expression <- Expressions]).

passed(Module, Anno) ->
    {call, Anno, {remote, Anno, {atom, Anno, beamway_coverage}, {atom, Anno, line}},
     [{atom, Anno, Module}, {integer, Anno, erl_anno:line(Anno)}]}.
