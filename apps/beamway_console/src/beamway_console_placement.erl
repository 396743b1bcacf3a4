%% SPDX-License-Identifier: Apache-2.0
%% @doc Shows placement as a node of the cluster sees it. All queries are sent to a node on which
%% the application runs, so it need not run on the console's own node.
-module(beamway_console_placement).

-export([view/1, words/1, choose/3]).

-define(CALL_MS, 15000).

%% @doc Returns the attributes with their ages, and the leases, as seen by one of these nodes (the first that answers).
-spec view([node()]) -> {ok, map()} | {error, unicode:chardata()}.
view([]) -> {error, "placement runs on none of the nodes: application:ensure_all_started(placement), or attr:start()"};
view([Asker | _] = Nodes) ->
    Known = [{Node, Names} || {Node, {ok, Names}} <- every(Nodes, placement, attributes, [])],
    Names = lists:usort(lists:append([N || {_, N} <- Known])),
    case call(Asker, placement, attributes, [Nodes, Names]) of
        {ok, Views} ->
            Leases = every(Nodes, placement_lease, list, []),
            %% As atoms, `true' and `false' would become booleans in JSON.
            Texts = maps:map(fun(_, Atoms) -> [atom_to_binary(Atom) || Atom <- Atoms] end, (words(Asker))#{names => Names}),
            {ok, Texts#{asker => Asker, nodes => [node_json(Node, View) || {Node, View} <- lists:sort(maps:to_list(Views))],
                        leases => [lease_json(Node, Lease) || {Node, {ok, List}} <- Leases, Lease <- List]}};
        {error, Why} -> {error, Why}
    end.

%% @doc Returns the keywords and units that may occur in queries to this node. Fetching them also
%% creates the atoms that {@link beamway_console_query} needs on the console's own node.
-spec words(Asker :: node()) -> #{words := [atom()], units := [atom()]}.
words(Asker) ->
    Known = fun(Module, Function) -> case call(Asker, Module, Function, []) of {ok, Words} -> Words; {error, _} -> [] end end,
    #{words => Known(placement_query, words), units => Known(placement_unit, names)}.

every(Nodes, Module, Function, Arguments) -> lists:zip(Nodes, erpc:multicall(Nodes, Module, Function, Arguments, ?CALL_MS)).

call(Node, Module, Function, Arguments) ->
    try {ok, erpc:call(Node, Module, Function, Arguments, ?CALL_MS)}
    catch
        error:{erpc, Reason} -> {error, io_lib:format("~ts did not answer: ~0tp", [Node, Reason])};
        _:Reason -> {error, io_lib:format("~ts answered with an error: ~0tP", [Node, Reason, 15])}
    end.

node_json(Node, #{status := Status, attributes := Attributes} = View) ->
    Base = #{node => Node, status => Status, attributes => maps:map(fun(_, Known) -> value(Known) end, Attributes)},
    maps:merge(Base, maps:with([rtt_us], View)).

value({ok, Value, Age, Unit, _}) -> #{value => plain(Value), age_ms => Age, unit => case Unit of none -> null; _ -> Unit end};
value({unknown, Reason}) -> #{unknown => text("~0tP", [Reason, 10])}.

plain(Value) when is_number(Value); is_boolean(Value) -> Value;
plain(Value) when is_atom(Value) -> atom_to_binary(Value);
plain(Value) -> text("~0tP", [Value, 30]).

text(Format, Arguments) -> unicode:characters_to_binary(io_lib:format(Format, Arguments)).

lease_json(Node, {Holder, Claims, Left}) ->
    #{node => Node, holder => text("~p", [Holder]), holder_node => node(Holder), claims => text("~0tP", [Claims, 20]), left_ms => Left}.

%% @doc Returns the nodes that `Asker' chooses for a query, and for each node the reason why it was chosen or not.
-spec choose(Asker :: node(), Query :: term(), [node()]) -> {ok, map()} | {error, unicode:chardata()}.
choose(Asker, Query, Nodes) ->
    case {call(Asker, placement, choose_nodes, [Nodes, Query]), call(Asker, placement, explain, [Nodes, Query])} of
        {{ok, Chosen}, {ok, {ok, Reports}}} -> {ok, maps:merge(chosen(Asker, Chosen), #{asker => Asker, reports => reports(Asker, Reports)})};
        {_, {ok, {error, Error}}} -> {error, in_words(Asker, Error)};
        {{error, Why}, _} -> {error, Why};
        {_, {error, Why}} -> {error, Why}
    end.

chosen(_, {ok, Nodes, _}) -> #{chosen => Nodes};
chosen(Asker, {error, Error}) -> #{chosen => [], conflict => in_words(Asker, Error)}.

in_words(Asker, Error) ->
    case call(Asker, placement, format_error, [Error]) of
        {ok, Text} -> unicode:characters_to_binary(Text);
        {error, _} -> text("~0tP", [Error, 20])
    end.

%% The texts are the same as in the command `beamway choose'.
reports(Asker, Reports) ->
    Texts = case call(Asker, lists, map, [fun placement_explain:to_text/1, [[Report] || Report <- Reports]]) of
                {ok, All} -> All;
                {error, _} -> ["" || _ <- Reports]
            end,
    [#{node => Node, suitable => Suitable, status => Status,
       why => [string:trim(Line) || Line <- tl(string:split(unicode:characters_to_binary(Text), "\n", all)), string:trim(Line) =/= <<>>]}
     || {#{node := Node, suitable := Suitable, status := Status}, Text} <- lists:zip(Reports, Texts)].
