%% SPDX-License-Identifier: Apache-2.0
%% @doc Plans which processes should run on a different node. The result is a list of moves, starting with the one that
%% saves the most, each with the traffic that it saves per link. The module is pure and does not move any process.
-module(placement_moves).

-export([moves/3, to_text/1]).

-export_type([move/0, options/0]).

-type move() :: #{process := placement_map:name(), from := node(), to := node(), saves := number(), less := [{link(), number()}], more := [{link(), number()}]}.
%% `saves' is weight times distance. `less' and `more' contain pairs of nodes, each with the number of bytes by which the
%% traffic between the two decreases or increases.
-type link() :: {node(), node()}.
-type options() :: #{places => #{placement_map:name() => node()}, %% where the processes run; default for pids: their nodes
                     most => pos_integer(),              %% maximum number of these processes per node; default: the current maximum
                     moves => pos_integer(),             %% maximum number of moves; default: 10
                     distances => tree | latency | [number()]}.

%% @doc Returns the plan. Processes on nodes outside of the tree are not moved, and their traffic does not count.
-spec moves(placement_map:graph(), placement_tree:tree(), options()) -> {ok, [move()]} | {error, placement_map:error()}.
moves(Graph, Tree, Options) when is_map(Options) ->
    Setting = maps:merge(#{moves => 10, distances => tree, places => #{}}, Options),
    try
        _ = [throw({bad_option, {Key, Value}, Expected}) || {Key, Value} <- maps:to_list(Setting), Expected <- [expected(Key, Value, Tree)], Expected =/= ok],
        Talk = talk(placement_map:pairs(Graph)),
        Places = maps:filter(fun(_, Node) -> placement_tree:is_member(Tree, Node) end, maps:merge(at_home(Talk), maps:get(places, Setting))),
        Full = maps:fold(fun(_, Node, Acc) -> maps:update_with(Node, fun(N) -> N + 1 end, 1, Acc) end, #{}, Places),
        Most = maps:get(most, Setting, lists:max([1 | maps:values(Full)])),
        Distance = fun(One, Other) -> placement_map:distance(maps:get(distances, Setting), Tree, One, Other) end,
        {ok, best(maps:get(moves, Setting), Talk, Places, Full, Most, placement_tree:nodes(Tree), Distance)}
    catch
        throw:Error -> {error, Error}
    end;
moves(_, _, Options) -> {error, {bad_option, {options, Options}, "a map of options"}}.

expected(places, Value, _) when is_map(Value) -> ok;
expected(places, _, _) -> "a map of processes to nodes";
expected(Key, Value, _) when Key =:= most; Key =:= moves -> case is_integer(Value) andalso Value > 0 of true -> ok; false -> "a whole number above 0" end;
expected(distances, Value, Tree) -> placement_map:expected(distances, Value, Tree);
expected(_, _, _) -> "one of places, most, moves, distances".

%% Maps each process to the processes with which it communicates.
talk(Pairs) ->
    Add = fun(A, B, Weight, Acc) -> maps:update_with(A, fun(Others) -> [{B, Weight} | Others] end, [{B, Weight}], Acc) end,
    lists:foldl(fun({A, A, _}, Acc) -> Acc; ({A, B, Weight}, Acc) -> Add(A, B, Weight, Add(B, A, Weight, Acc)) end, #{}, Pairs).

at_home(Talk) -> maps:from_list([{Pid, node(Pid)} || Pid <- maps:keys(Talk), is_pid(Pid)]).

best(0, _, _, _, _, _, _) -> [];
best(Left, Talk, Places, Full, Most, Nodes, Distance) ->
    Open = [Node || Node <- Nodes, maps:get(Node, Full, 0) < Most],
    Found = [{Saves, Process, To} || {Process, Others} <- lists:sort(maps:to_list(Talk)), is_map_key(Process, Places), To <- Open, To =/= maps:get(Process, Places),
                                     Saves <- [saves(Others, maps:get(Process, Places), To, Places, Distance)], Saves > 0],
    case lists:reverse(lists:keysort(1, lists:reverse(Found))) of
        [] -> [];
        [{Saves, Process, To} | _] ->
            From = maps:get(Process, Places),
            Talked = [{maps:get(Other, Places), Weight} || {Other, Weight} <- maps:get(Process, Talk), is_map_key(Other, Places)],
            [#{process => Process, from => From, to => To, saves => Saves, less => links(From, Talked), more => links(To, Talked)}
             | best(Left - 1, Talk, Places#{Process := To}, Full#{From := maps:get(From, Full) - 1, To => maps:get(To, Full, 0) + 1}, Most, Nodes, Distance)]
    end.

saves(Others, From, To, Places, Distance) ->
    lists:sum([Weight * (Distance(From, Node) - Distance(To, Node)) || {Other, Weight} <- Others, {ok, Node} <- [maps:find(Other, Places)]]).

links(Node, Talked) ->
    Sums = lists:foldl(fun({Peer, Weight}, Acc) -> maps:update_with({min(Node, Peer), max(Node, Peer)}, fun(Sum) -> Sum + Weight end, Weight, Acc) end, #{},
                       [Pair || {Peer, _} = Pair <- Talked, Peer =/= Node]),
    lists:reverse(lists:keysort(2, maps:to_list(Sums))).

%% @doc Formats the plan as text.
-spec to_text([move()]) -> unicode:chardata().
to_text([]) -> "no move would save anything\n";
to_text(Moves) ->
    [[io_lib:format("~0tP: from ~ts to ~ts saves ~w~n", [Process, 12, From, To, Saves]),
      [io_lib:format("  ~ts and ~ts: ~w bytes less~n", [A, B, Bytes]) || {{A, B}, Bytes} <- Less],
      [io_lib:format("  ~ts and ~ts: ~w bytes more~n", [A, B, Bytes]) || {{A, B}, Bytes} <- More]]
     || #{process := Process, from := From, to := To, saves := Saves, less := Less, more := More} <- Moves].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

tree() ->
    {ok, Tree} = placement_tree:from_paths([{a, "/s1"}, {b, "/s1"}, {c, "/s2"}, {d, "/s2"}]),
    Tree.

moves_test() ->
    Places = #{p => a, q => c, r => c, s => d},
    {ok, [#{process := p, from := a, to := To, saves := Saves, less := [{{a, c}, 100}], more := More}]} =
        moves([{p, q, 60}, {r, p, 40}, {q, r, 50}, {q, s, 7}], tree(), #{places => Places, most => 2}),
    %% Node c is full.
    ?assertEqual({d, 50.0, [{{c, d}, 100}]}, {To, Saves, More}),
    {ok, [#{to := c, saves := 100.0, more := []} | _]} = moves([{p, q, 60}, {r, p, 40}], tree(), #{places => Places, most => 3}),
    ?assertMatch({ok, []}, moves([{q, r, 60}], tree(), #{places => Places})),
    ?assertEqual({ok, []}, moves([{x, y, 60}], tree(), #{})).

saves_what_it_says_test() ->
    Graph = [{erlang:phash2({x, N}, 12), erlang:phash2({y, N}, 12), N} || N <- lists:seq(1, 60)],
    Before = maps:from_list([{N, lists:nth(1 + N rem 4, [a, b, c, d])} || N <- lists:seq(0, 11)]),
    {ok, Moves} = moves(Graph, tree(), #{places => Before, most => 5}),
    After = lists:foldl(fun(#{process := N, from := From, to := To}, Acc) -> #{N := From} = Acc, Acc#{N := To} end, Before, Moves),
    ?assertNotEqual([], Moves),
    ?assert(abs(placement_map:cost(Graph, Before, tree(), tree) - placement_map:cost(Graph, After, tree(), tree) - lists:sum([S || #{saves := S} <- Moves])) < 1.0e-6).

bad_input_test_() ->
    [?_assertMatch({error, _}, moves(Graph, tree(), Options)) || {Graph, Options} <- [{[], []}, {none, #{}}, {[{a, b}], #{}}, {[], #{most => 0}}, {[], #{moves => x}}, {[], #{places => []}},
                                                                                      {[], #{distances => far}}, {[{p, q, 60}], #{distances => [1], places => #{p => a, q => c}}},
                                                                                      {[{p, q, 60}], #{distances => [9, one], places => #{p => a, q => c}}}, {[], #{colour => red}}]].

text_test() ->
    {ok, Moves} = moves([{p, q, 60}], tree(), #{places => #{p => a, q => c}, most => 2}),
    ?assertNotEqual(nomatch, string:find(lists:flatten(to_text(Moves)), "a and c: 60 bytes less")).
-endif.
