%% SPDX-License-Identifier: Apache-2.0
%% @doc `beamway fault': breaks the network between a running node and one of its peers, for tests ({@link beamway:fault/2}).
-module(beamway_cli_fault).

-export([set/1, to_json/1, to_text/1]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-type done() :: #{node := node(), peer := node(), fault := beamway:fault() | none}.

%% @doc Connects and sets the fault. Like beamway_cli_ask:open/1, it may only be called in a VM that exits afterwards.
-spec set(map()) -> {ok, done()} | {usage | error, Text :: unicode:chardata()}.
set(#{peer := Peer} = Options) ->
    case fault(Options) of
        {ok, Fault} -> beamway_cli_ask:on_node(Options, fun(Node) -> set(Fault, beamway_cli_why:peer(Peer, Node), Node) end);
        {usage, _} = Usage -> Usage
    end.

set(Fault, Peer, Node) ->
    case beamway_cli_ask:call(Node, beamway, fault, [Peer, Fault]) of
        ok -> {ok, #{node => Node, peer => Peer, fault => Fault}};
        {error, {_Why, Text}} -> {error, [atom_to_list(Node), ": ", Text]}
    end.

%% The options have the same names as the keys in the map.
fault(Options) ->
    case {maps:with([delay_ms, jitter_ms, rate_bytes, cut, disconnect, for_ms], Options), Options} of
        {Given, #{'end' := true}} when map_size(Given) =:= 0 -> {ok, none};
        {_, #{'end' := true}} -> {usage, "--end ends the fault, so no other option has a meaning beside it"};
        {Given, _} when map_size(Given) =:= 0; Given =:= #{for_ms => map_get(for_ms, Given)} ->
            {usage, "which fault? Expected one of --delay-ms, --jitter-ms, --rate-bytes, --cut and --disconnect, or --end"};
        {Given, _} -> checked(maps:map(fun value/2, Given))
    end.

%% Any other value is passed on unchanged, and the node rejects it.
value(disconnect, true) -> true;
value(cut, Word) -> proplists:get_value(Word, [{"in", in}, {"out", out}, {"both", both}], Word);
value(_, Word) ->
    try list_to_integer(Word)
    catch error:badarg -> Word
    end.

checked(Fault) ->
    try beamway_fault:checked(Fault) of
        _ -> {ok, Fault}
    catch
        error:{badarg, {fault, {Key, Value}, Expected}} -> {usage, io_lib:format("--~ts ~0tp: ~ts", [string:replace(atom_to_list(Key), "_", "-"), Value, Expected])}
    end.

%% @doc Returns the result as a term for jiffy: the node that was asked, the peer, and the fault, which is null if it was cleared.
-spec to_json(done()) -> term().
to_json(#{fault := none} = Done) -> Done#{fault := null};
to_json(Done) -> Done.

%% @doc Returns the result as text.
-spec to_text(done()) -> unicode:chardata().
to_text(#{node := Node, peer := Peer, fault := none}) -> io_lib:format("~ts: no fault on the way to ~ts~n", [Node, Peer]);
to_text(#{node := Node, peer := Peer, fault := Fault}) -> io_lib:format("~ts: fault on the way to ~ts: ~ts~n", [Node, Peer, beamway_fault:text(Fault)]).

-ifdef(TEST).

options_test_() ->
    [?_assertEqual({ok, Fault}, fault(Options))
     || {Fault, Options} <- [{none, #{'end' => true, peer => "b"}}, {#{cut => both, for_ms => 5}, #{cut => "both", for_ms => "5", peer => "b"}}, {#{disconnect => true}, #{disconnect => true}}]]
        ++ [?_assertMatch({usage, _}, fault(Options))
            || Options <- [#{}, #{for_ms => "5"}, #{'end' => true, cut => "in"}, #{cut => "sideways"}, #{delay_ms => "-1"}, #{delay_ms => "5", for_ms => "0"}, #{delay_ms => "soon"}]].

text_test() ->
    ?assertEqual(<<"a@h: fault on the way to b@h: cut on the way in\n">>, iolist_to_binary(to_text(#{node => a@h, peer => b@h, fault => #{cut => in}}))),
    ?assertEqual(<<"{\"fault\":null}">>, iolist_to_binary(jiffy:encode(to_json(#{fault => none})))).
-endif.
