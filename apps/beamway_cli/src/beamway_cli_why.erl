%% SPDX-License-Identifier: Apache-2.0
%% @doc `beamway why': asks a running node why its links to a peer ended ({@link beamway:why/1}).
-module(beamway_cli_why).

-export([ask/1, peer/2, to_json/1, to_text/1]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

%% @doc Connects and queries. Like beamway_cli_ask:open/1, it may only be called in a VM that exits afterwards.
-spec ask(map()) -> {ok, [beamway:explained(), ...]} | {error, Text :: unicode:chardata()}.
ask(#{peer := Peer} = Options) -> beamway_cli_ask:on_node(Options, fun(Node) -> explained(Node, peer(Peer, Node)) end).

%% @doc Returns the node's peer that the arguments name, with or without its host. Throws a text if there is none.
-spec peer(string(), node()) -> node().
peer(Words, Node) ->
    case beamway_cli_ask:name_and_host(Words) of
        {_, [_ | _]} when length(Words) < 256 -> list_to_atom(Words);
        {_, [_ | _]} -> throw(io_lib:format("'~ts' is not a node name; expected at most 255 characters", [Words]));
        {Name, here} -> only(Words, Node, [Of || Of <- beamway_cli_ask:call(Node, beamway_recorder, nodes, []), lists:prefix(Name ++ "@", atom_to_list(Of))])
    end.

only(_, _, [Peer]) -> Peer;
only(Words, Node, []) -> throw(io_lib:format("~ts has had no link to a node '~ts' within the last hour", [Node, Words]));
only(Words, _, Several) -> throw(io_lib:format("'~ts' may be ~ts; give the whole name", [Words, lists:join(" or ", [atom_to_list(Name) || Name <- Several])])).

explained(Node, Peer) ->
    case beamway_cli_ask:call(Node, beamway, why, [Peer]) of
        {ok, Links} -> {ok, Links};
        {error, unknown} -> {error, io_lib:format("~ts has had no link to ~ts within the last hour", [Node, Peer])}
    end.

%% @doc Returns the result as a term for jiffy, with the keys of beamway:why/1.
-spec to_json([beamway:explained()]) -> term().
to_json(Links) -> Links.

%% @doc Returns the result as text: how the last link ended, then the link that is up now.
-spec to_text([beamway:explained(), ...]) -> unicode:chardata().
to_text(Links) ->
    {Up, Ended} = lists:partition(fun(#{cause := Cause}) -> Cause =:= up end, Links),
    [lists:join($\n, [one(Link) || Link <- lists:sublist(Ended, 1)]),
     [$\n || Ended =/= [], Up =/= []],
     [one(Link) || Link <- Up],
     [io_lib:format("~nearlier ends in the last hour: ~b (--json shows them)~n", [length(Ended) - 1]) || length(Ended) > 1]].

one(#{node := Node, link := Kind, short := Short, facts := Facts} = Link) ->
    [io_lib:format("~ts, ~ts: ~ts~n~ts~n", [Node, Kind, state(Link), Short]),
     [io_lib:format("  ~-18ts ~ts~n", [before(AgoMs, Link), Text]) || #{ago_ms := AgoMs, text := Text} <- Facts]].

state(#{ended := #{ago_ms := AgoMs}, since := Since}) -> ["down for ", beamway_verdict:seconds(AgoMs), ", was up since ", clock(Since)];
state(#{since := Since}) -> ["up since ", clock(Since)].

clock(Seconds) -> calendar:system_time_to_rfc3339(Seconds).

before(0, #{ended := _}) -> "at the end";
before(AgoMs, #{ended := _}) -> [beamway_verdict:seconds(AgoMs), " before"];
before(AgoMs, _) -> [beamway_verdict:seconds(AgoMs), " ago"].

-ifdef(TEST).

peer_test() ->
    Longest = lists:duplicate(253, $b) ++ "@h",
    ?assertEqual(list_to_atom(Longest), peer(Longest, a@h)),
    [?assertThrow(_, peer(Bad, a@h)) || Bad <- [[$b | Longest], "b c@h", "b@", "@h", "b@h@i"]].

link_to_b(More) ->
    maps:merge(#{node => b@h, link => tcp, address => <<>>, since => 0, cause => up, short => <<"the link is up">>, facts => [#{ago_ms => 20, text => <<"the link came up">>}],
                 seconds => [], tens => []}, More).

text_test() ->
    Ended = link_to_b(#{cause => peer_ended, short => <<"it ended">>, ended => #{ago_ms => 1500, reason => <<"{a,b}">>}}),
    Text = unicode:characters_to_list(to_text([link_to_b(#{}), Ended, Ended])),
    [?assertNotEqual(nomatch, string:find(Text, Wanted))
     || Wanted <- ["b@h, tcp: down for 1.5 s, was up since 1970-", "\nit ended\n  20 ms before       the link came up\n", "the link is up\n  20 ms ago", "earlier ends in the last hour: 1"]],
    ?assertMatch([#{<<"ended">> := #{<<"reason">> := <<"{a,b}">>}}], jiffy:decode(jiffy:encode(to_json([Ended])), [return_maps])).
-endif.
