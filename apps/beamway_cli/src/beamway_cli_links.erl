%% SPDX-License-Identifier: Apache-2.0
%% @doc `beamway links': asks a running node which links it uses to its peers. Called by {@link beamway_cli}.
-module(beamway_cli_links).

-export([ask/1, to_json/1, to_text/1]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-export_type([report/0]).

-type report() :: #{node := node(), links := [{Link :: map(), Info :: map()}]}.

%% @doc Connects and queries the node. The VM must exit afterwards, because the node that it has become is not stopped.
-spec ask(beamway_cli_ask:options()) -> {ok, report()} | {error, Text :: unicode:chardata()}.
ask(Options) -> beamway_cli_ask:on_node(Options, fun(Node) -> {ok, #{node => Node, links => links(Node)}} end).

links(Node) ->
    [{Link, info(Node, maps:get(node, Link))}
     || Link <- beamway_cli_ask:call(Node, beamway, links, []), maps:get(node, Link) =/= node()].

%% The peer may disconnect between the two calls.
info(Node, Peer) ->
    case beamway_cli_ask:call(Node, beamway, info, [Peer]) of
        {ok, Info} -> Info;
        {error, not_connected} -> #{}
    end.

%% @doc Returns the report as a term for jiffy: the keys of `beamway:links/0', and of `beamway:info/1' under `info'.
-spec to_json(report()) -> term().
to_json(#{node := Node, links := Links}) ->
    {[{node, Node}, {links, [link_json(Link, Info) || {Link, Info} <- lists:sort(Links)]}]}.

link_json(Link, Info) ->
    Keys = [node, link, reason, address, since, key, fault],
    First = [{Key, maps:get(Key, Link)} || Key <- Keys, is_map_key(Key, Link)],
    Counters = maps:without(Keys, Info),
    {First ++ [{info, maps:map(fun(_, Value) -> json_value(Value) end, Counters)}]}.

json_value(Value) when is_number(Value); is_atom(Value); is_binary(Value) -> Value;
json_value(Value) -> unicode:characters_to_binary(io_lib:format("~0tp", [Value])).

%% @doc Returns the report as a table.
-spec to_text(report()) -> unicode:chardata().
to_text(#{node := Node, links := []}) ->
    io_lib:format("~ts is connected to no other node~n", [Node]);
to_text(#{links := Links}) ->
    Heading = ["NODE", "LINK", "BYTES IN", "BYTES OUT", "LOAD", "WHY"],
    [beamway_cli_output:table([Heading | [row(Link, Info) || {Link, Info} <- lists:sort(Links)]])].

row(#{node := Node, link := Link} = All, Info) ->
    [atom_to_binary(Node), atom_to_binary(Link), counter(bytes_in, Info), counter(bytes_out, Info), load(Info),
     [maps:get(reason, All, <<>>), compressed(Info), fault(All)]].

compressed(#{uncompressed_out := Before, compressed_out := After}) when Before > 0 -> io_lib:format("; compressed to ~b %", [100 * After div Before]);
compressed(_Info) -> [].

fault(#{fault := #{left_ms := LeftMs} = Fault}) -> ["; FAULT: ", beamway_fault:text(Fault), ", for ", beamway_verdict:seconds(LeftMs), " more"];
fault(_Link) -> [].

load(#{peer_cpu_percent := Percent, peer_load_age_ms := AgeMs}) -> io_lib:format("~b % (~b s)", [Percent, AgeMs div 1000]);
load(_) -> "-".

counter(Key, Info) ->
    case Info of
        #{Key := Value} when is_integer(Value) -> integer_to_binary(Value);
        _ -> <<"-">>
    end.

-ifdef(TEST).

to_text_test_() ->
    Link = #{node => 'b@h', link => shm, reason => <<"same host">>, address => <<"h:1">>, since => 1},
    [?_assertEqual("NODE  LINK  BYTES IN  BYTES OUT  LOAD  WHY\n"
                   "b@h   shm   12        -          -     same host\n",
                   lists:flatten(unicode:characters_to_list(to_text(#{node => 'a@h', links => [{Link, #{bytes_in => 12}}]})))),
     ?_assertMatch({match, _}, re:run(to_text(#{node => 'a@h', links => [{Link, #{peer_cpu_percent => 7, peer_load_age_ms => 3900}}]}), " 7 % \\(3 s\\)  same host")),
     ?_assertMatch({match, _}, re:run(to_text(#{node => 'a@h', links => [{Link, #{uncompressed_out => 1000, compressed_out => 219}}]}), "same host; compressed to 21 %\n")),
     ?_assertMatch({match, _}, re:run(to_text(#{node => 'a@h', links => [{Link#{fault => #{cut => both, left_ms => 2500}}, #{}}]}), "same host; FAULT: cut both ways, for 2.5 s more\n")),
     ?_assertEqual("a@h is connected to no other node\n",
                   lists:flatten(to_text(#{node => 'a@h', links => []})))].

to_json_test() ->
    Link = #{node => 'b@h', link => shm, reason => <<"same host">>, address => <<"h:1">>, since => 1},
    Json = jiffy:decode(jiffy:encode(to_json(#{node => 'a@h', links => [{Link, #{stalls => 3, odd => {1, 2}}}]})),
                        [return_maps]),
    ?assertMatch(#{<<"node">> := <<"a@h">>,
                   <<"links">> := [#{<<"link">> := <<"shm">>,
                                     <<"info">> := #{<<"stalls">> := 3, <<"odd">> := <<"{1,2}">>}}]}, Json).

-endif.
