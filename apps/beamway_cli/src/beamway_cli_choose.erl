%% SPDX-License-Identifier: Apache-2.0
%% @doc `beamway choose': asks a running node which nodes a query selects, and why the others are not selected.
%%
%% Called by {@link beamway_cli}. The node makes the choice, based on its own view of the cluster. This command connects to it through {@link
%% beamway_cli_ask} and prints the result, so the application `placement' must run on the node but need not be installed here.
-module(beamway_cli_choose).

-export([ask/1, to_json/1, to_text/1]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-export_type([options/0, answer/0]).

-type options() :: #{query => string(), advise => boolean(), node => string(), cookie_file => file:filename(), nodes => string(), why_not => string(), explain => boolean(),
                     n => integer()}.
-type answer() :: {chosen, [node()], map()} | {unsatisfied, Text :: unicode:chardata()} | {reports, Text :: unicode:chardata(), [map()]} | {advice, Text :: unicode:chardata(), Moves :: [map()], Pairs :: [map()]}.

-define(CALL_MS, 15000).
%% How many processes on each node `--advise' observes, and for how long.
-define(BUSIEST, 50).
-define(OBSERVE_MS, 2000).

%% @doc Queries the node. `usage' means that the arguments were invalid, and `error' that the node could not be queried.
-spec ask(options()) -> {ok, answer()} | {usage | error, Text :: unicode:chardata()}.
ask(#{advise := true} = Options) ->
    case candidates(maps:get(nodes, Options, "all")) of
        {error, Why} -> {usage, ["--nodes: ", Why]};
        {ok, Nodes} -> beamway_cli_ask:on_node(Options, fun(Node) -> advised(Node, meant(Nodes, Node)) end)
    end;
ask(#{query := Text} = Options) ->
    case {term(Text), candidates(maps:get(nodes, Options, "all")), node_name(maps:get(why_not, Options, none))} of
        {{error, Why}, _, _} -> {usage, ["the query: ", Why]};
        {_, {error, Why}, _} -> {usage, ["--nodes: ", Why]};
        {_, _, {error, Why}} -> {usage, ["--why-not: ", Why]};
        {{ok, Query}, {ok, Nodes}, {ok, WhyNot}} ->
            Explain = maps:get(explain, Options, false),
            beamway_cli_ask:on_node(Options, fun(Node) -> answered(Node, meant(Nodes, Node), counted(Query, Options), WhyNot, Explain) end)
    end.

%% Parses a term as in the shell, except that the full stop is optional.
term(Text) ->
    case erl_scan:string(string:trim(Text, trailing, " .\n") ++ " .", {1, 1}) of
        {ok, Tokens, _} -> parsed(erl_parse:parse_term(Tokens));
        {error, {{_, Column}, Module, What}, _} -> at(Column, Module:format_error(What))
    end.

parsed({ok, Term}) -> {ok, Term};
parsed({error, {{_, Column}, Module, What}}) -> at(Column, Module:format_error(What)).

at(Column, What) -> {error, io_lib:format("~ts at character ~b; expected a term such as \"{mem_available, ge, {4, gib}}\"", [What, Column])}.

candidates("all") -> {ok, all};
candidates(Text) ->
    Words = string:lexemes(Text, ","),
    case [Word || Word <- Words, not is_node_name(Word)] of
        [] when Words =/= [] -> {ok, [list_to_atom(Word) || Word <- Words]};
        Wrong -> {error, io_lib:format("'~ts' is not a list of nodes; expected all, or name@host with commas", [case Wrong of [] -> Text; [First | _] -> First end])}
    end.

node_name(none) -> {ok, none};
node_name(Text) ->
    case is_node_name(Text) of
        true -> {ok, list_to_atom(Text)};
        false -> {error, io_lib:format("'~ts' is not a node name; expected name@host", [Text])}
    end.

is_node_name(Text) ->
    case string:split(Text, "@") of
        [[_ | _], [_ | _]] -> length(Text) < 256;
        _ -> false
    end.

counted(Query, #{n := Count}) when is_map(Query) -> Query#{n => Count};
counted(Query, #{n := Count}) -> #{require => Query, n => Count};
counted(Query, _) -> Query.

answered(Node, Nodes, Query, none, false) -> chosen(Node, call(Node, placement, choose_nodes, [Nodes, Query]));
answered(Node, Nodes, Query, none, true) -> reports(Node, call(Node, placement, explain, [Nodes, Query]));
answered(Node, Nodes, Query, WhyNot, _) -> reports(Node, only(WhyNot, call(Node, placement, explain, [with(WhyNot, Nodes), Query]))).

%% Samples the busiest processes. The counters of the links show which nodes exchange data.
advised(Node, Nodes) ->
    {ok, Graph, _} = call(Node, placement, observe, [call(Node, placement_observe, busiest, [Nodes, ?BUSIEST]), ?OBSERVE_MS]),
    case {call(Node, placement, advise, [Graph, #{}]), call(Node, placement, advise, [Nodes])} of
        {{ok, Moves}, {ok, Pairs, _}} ->
            {ok, {advice, [call(Node, placement_moves, to_text, [Moves]), [pair_text(Pair) || Pair <- Pairs]], Moves, Pairs}};
        {{error, no_topology}, _} -> {error, io_lib:format("node ~ts knows no tree of the network; there, call placement:set_topology/1, or see: beamway topology --help", [Node])}
    end.

pair_text(#{pair := {A, B}, bytes := Bytes, share := Share, distance := Distance}) ->
    io_lib:format("~ts and ~ts have exchanged ~b bytes, ~.1f % of all, at a distance of ~w~n", [A, B, Bytes, 100 * Share, Distance]).

%% Returns the node and all nodes that it is connected to, except this command.
meant(all, Node) -> [Node | call(Node, erlang, nodes, [connected])] -- [node()];
meant(Nodes, _) -> Nodes.

%% The other nodes stay in the list, because keywords such as `low' compare nodes with each other.
with(WhyNot, Nodes) -> Nodes ++ [WhyNot].

only(Wanted, {ok, Reports}) ->
    {ok, [Report || #{node := Node} = Report <- Reports, Node =:= Wanted]};
only(_, Other) -> Other.

chosen(_, {ok, Nodes, Meta}) -> {ok, {chosen, Nodes, Meta}};
chosen(Node, {error, {unsatisfied, _} = Error}) -> {ok, {unsatisfied, call(Node, placement, format_error, [Error])}};
chosen(Node, {error, Error}) -> {usage, call(Node, placement, format_error, [Error])}.

reports(Node, {ok, Reports}) -> {ok, {reports, call(Node, placement_explain, to_text, [Reports]), Reports}};
reports(Node, {error, Error}) -> {usage, call(Node, placement, format_error, [Error])}.

call(Node, Module, Function, Arguments) ->
    try erpc:call(Node, Module, Function, Arguments, ?CALL_MS)
    catch
        error:{exception, undef, _} ->
            throw(io_lib:format("node ~ts has no placement: its code path holds no module ~ts (erl -pa apps/placement/ebin)", [Node, Module]));
        error:{exception, {not_running, _}, _} ->
            throw(io_lib:format("placement does not run on node ~ts; there, call attr:start() or application:ensure_all_started(placement)", [Node]));
        error:{erpc, Reason} -> throw(io_lib:format("node ~ts did not answer: ~tp", [Node, Reason]));
        _:Reason -> throw(io_lib:format("node ~ts answered with an error: ~0tP", [Node, Reason, 15]))
    end.

%% @doc Returns the answer as a term for jiffy.
-spec to_json(answer()) -> term().
to_json({chosen, Nodes, Meta}) -> {[{nodes, Nodes}, {meta, json(Meta)}]};
to_json({unsatisfied, Text}) -> {[{nodes, []}, {why, unicode:characters_to_binary(Text)}]};
to_json({reports, _, Reports}) -> {[{reports, [json(Report) || Report <- Reports]}]};
to_json({advice, _, Moves, Pairs}) -> {[{moves, arrays(Moves)}, {pairs, arrays(Pairs)}]}.

%% Turns tuples into arrays. Advice contains tuples for pairs of nodes and for links with their bytes.
arrays(Map) when is_map(Map) -> maps:map(fun(_, Value) -> arrays(Value) end, Map);
arrays(Tuple) when is_tuple(Tuple) -> arrays(tuple_to_list(Tuple));
arrays(List) when is_list(List) -> [arrays(Element) || Element <- List];
arrays(Value) -> json(Value).

json(Map) when is_map(Map) -> maps:map(fun(_, Value) -> json(Value) end, Map);
json([Map | _] = List) when is_map(Map) -> [json(Element) || Element <- List];
json(Value) when is_number(Value); is_boolean(Value) -> Value;
json(Value) when is_atom(Value) -> atom_to_binary(Value);
json(Value) -> unicode:characters_to_binary(io_lib:format("~0tp", [Value])).

%% @doc Returns the answer as text: one node per line, or the reason why there is none.
-spec to_text(answer()) -> unicode:chardata().
to_text({chosen, Nodes, _}) -> [[atom_to_list(Node), $\n] || Node <- Nodes];
to_text({unsatisfied, Text}) -> Text;
to_text({reports, Text, _}) -> Text;
to_text({advice, Text, _, _}) -> Text.

-ifdef(TEST).

term_test_() ->
    [?_assertEqual({ok, {size, gt, 5}}, term("{size, gt, 5}")), ?_assertEqual({ok, #{n => 1}}, term("#{n => 1}.")),
     ?_assertEqual({ok, {a, lt, 0.5}}, term("{a, lt, 0.5}\n")), ?_assertMatch({error, _}, term("{a,")), ?_assertMatch({error, _}, term("")),
     ?_assertMatch({error, _}, term("{a, \"x}")), ?_assertMatch({error, _}, term("f(x)"))].

candidates_test_() ->
    [?_assertEqual({ok, all}, candidates("all")), ?_assertEqual({ok, ['a@h', 'b@h']}, candidates("a@h,b@h")), ?_assertMatch({error, _}, candidates("a,b@h")),
     ?_assertMatch({error, _}, candidates("")), ?_assertMatch({error, _}, node_name("x")), ?_assertEqual({ok, none}, node_name(none))].

counted_test_() ->
    [?_assertEqual(#{require => x, n => 2}, counted(x, #{n => 2})), ?_assertEqual(#{require => x, n => 2}, counted(#{require => x}, #{n => 2})),
     ?_assertEqual(x, counted(x, #{}))].

advice_test_() ->
    Move = #{process => self(), from => a@h, to => b@h, saves => 2.5, less => [{{a@h, b@h}, 7}], more => []},
    Pid = list_to_binary(pid_to_list(self())),
    [?_assertEqual({[{moves, [#{process => Pid, from => <<"a@h">>, to => <<"b@h">>, saves => 2.5, less => [[[<<"a@h">>, <<"b@h">>], 7]], more => []}]},
                     {pairs, [#{pair => [<<"a@h">>, <<"b@h">>], bytes => 7, share => 0.5, distance => 2}]}]},
                   to_json({advice, "", [Move], [#{pair => {a@h, b@h}, bytes => 7, share => 0.5, distance => 2}]}))].
-endif.
