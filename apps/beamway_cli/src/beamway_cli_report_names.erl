%% SPDX-License-Identifier: Apache-2.0
%% @doc Hides the names of nodes and hosts, and addresses, in a report ({@link beamway_cli_report}). All functions are pure.
%%
%% The names are replaced while the report is still a term, so a host called `1' does not change any number, and a host called `tcp' does not change
%% any key. Each name has the same stand-in wherever it occurs. In strings, everything that looks like a node or an address is hidden. A host is
%% hidden if a node in the report runs on it, or if it is this host.
-module(beamway_cli_report_names).

-export([hidden/2]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-type place() :: key | text | host_name.
%% Where a string or an atom is in the report. `host_name' is the doctor's check of the host's name, whose text contains that name.
-type who() :: {node | host, binary()} | {address, inet:ip_address()}.
-type known() :: #{who() => StandIn :: binary()}.

-define(IPV4, "[0-9]{1,3}(?:\\.[0-9]{1,3}){3}").
-define(IPV6, "(?:[[:xdigit:]]{0,4}:){2,7}(?:" ?IPV4 "|[[:xdigit:]]{1,4}|(?<=::))").
%% An address as ~p prints it.
-define(TUPLE, "\\{[0-9]{1,5}(?:,[0-9]{1,5}){3}(?:(?:,[0-9]{1,5}){4})?\\}").
-define(NODE, "[\\w-]+@(?:" ?IPV6 "|[\\w.-]*\\w)").

%% @doc Returns the report without names. It is a term for jiffy. `Own' is this host's name.
-spec hidden(Report, Own :: string()) -> Report when Report :: term().
hidden(Report, Own) ->
    {_, {Words, Nodes}} = walked(fun collected/3, text, {[atom_to_binary(Kind) || Kind <- [inet | beamway_kind:all()]], []}, Report),
    Hosts = hosts([unicode:characters_to_binary(Own) | [Host || Node <- Nodes, [_, Host] <- [binary:split(Node, <<"@">>)]]]),
    Patterns = #{text => pattern([Host || Host <- Hosts, not is_ordinary(Host, Words)]), host_name => pattern(Hosts)},
    {Hidden, _} = walked(fun(Place, Value, Known) -> replaced(Place, Value, Patterns, Hosts, Known) end, text, #{}, Report),
    Hidden.

%% Calls Fun with each key, atom and string of the report, and its place. The order of a map's keys does not depend on the release of OTP.
-spec walked(fun((place(), Value, Acc) -> {Value, Acc}), place(), Acc, Report) -> {Report, Acc} when Value :: term(), Report :: term().
walked(Fun, Place, Acc, Map) when is_map(Map) ->
    {{Fields}, Walked} = walked(Fun, Place, Acc, {lists:sort(maps:to_list(Map))}),
    {maps:from_list(Fields), Walked};
walked(Fun, Place, Acc, {Fields}) ->
    Within = case lists:member({name, host_name}, Fields) of true -> host_name; false -> Place end,
    {Walked, Last} = lists:mapfoldl(fun({Key, Value}, Before) ->
                                            {Key, After} = Fun(key, Key, Before),
                                            {Changed, Then} = walked(Fun, Within, After, Value),
                                            {{Key, Changed}, Then}
                                    end, Acc, Fields),
    {{Walked}, Last};
walked(Fun, Place, Acc, List) when is_list(List) -> lists:mapfoldl(fun(Element, Before) -> walked(Fun, Place, Before, Element) end, Acc, List);
walked(Fun, Place, Acc, Value) when is_atom(Value); is_binary(Value) -> Fun(Place, Value, Acc);
walked(_, _, Acc, Number) -> {Number, Acc}.

%% Collects the words of keys and atoms, and the names of nodes.
collected(Place, Value, {Words, Nodes}) when is_atom(Value) ->
    {_, {Same, Found}} = collected(Place, atom_to_binary(Value), {Words, []}),
    {Value, {[Word || Found =:= [], Word <- binary:split(atom_to_binary(Value), <<"_">>, [global])] ++ Same, Found ++ Nodes}};
collected(_, Text, {Words, Nodes}) ->
    case re:run(Text, "(?<!\\w)" ?NODE "(?!\\w)", [unicode, ucp, global, {capture, first, binary}]) of
        {match, Found} -> {Text, {Words, lists:append(Found) ++ Nodes}};
        nomatch -> {Text, {Words, Nodes}}
    end.

%% Returns the names of hosts in lower case, also without their domains. Those that are addresses are recognized anyway.
hosts(Names) ->
    lists:usort([Host || Name <- Names, address(Name) =:= none, Whole <- [string:lowercase(Name)], Host <- [Whole, hd(binary:split(Whole, <<".">>))], Host =/= <<>>]).

%% A host's name may be a number, or a word that the report uses in a different sense. Then the name is hidden only where it is part of a node's name.
is_ordinary(Host, Words) -> lists:member(Host, Words) orelse re:run(Host, "^[0-9]+$") =/= nomatch.

%% Longer names come first, because a shorter name may be the beginning of a longer one. A domain may follow.
pattern(Hosts) ->
    ByLength = lists:sort(fun(A, B) -> byte_size(A) >= byte_size(B) end, Hosts),
    Named = [["|(?i:", lists:join($|, [["\\Q", Host, "\\E"] || Host <- ByLength]), ")(?:\\.[\\w-]*\\w)*"] || Hosts =/= []],
    {ok, Pattern} = re:compile(["((?<!\\w)(?:" ?NODE "|" ?TUPLE "|" ?IPV4 "|" ?IPV6, Named, ")(?!\\w))"], [unicode, ucp]),
    Pattern.

-spec replaced(place(), Value, #{place() => term()}, [binary()], known()) -> {Value, known()} when Value :: atom() | binary().
replaced(key, Key, _, _, Known) -> {Key, Known};
replaced(_, Value, _, _, Known) when is_atom(Value) ->
    case binary:match(atom_to_binary(Value), <<"@">>) of
        nomatch -> {Value, Known};
        _ -> stand_in({node, atom_to_binary(Value)}, Known)
    end;
replaced(Place, Text, Patterns, Hosts, Known) ->
    {Pieces, Last} = pieces(re:split(Text, map_get(Place, Patterns), [{return, binary}]), Hosts, Known),
    {iolist_to_binary(Pieces), Last}.

%% The pattern has one group, so every second piece is a match.
pieces([Plain, Match | More], Hosts, Known) ->
    {Instead, Then} = case who(Match, Hosts) of
                          none -> {Match, Known};
                          Who -> stand_in(Who, Known)
                      end,
    {Pieces, Last} = pieces(More, Hosts, Then),
    {[Plain, Instead | Pieces], Last};
pieces([Plain], _, Known) -> {[Plain], Known}.

%% Times of day look like IPv6 addresses except for the number of their parts.
-spec who(binary(), [binary()]) -> who() | none.
who(Match, Hosts) ->
    Lower = string:lowercase(Match),
    case address(Match) of
        none ->
            IsNode = binary:match(Match, <<"@">>) =/= nomatch,
            IsHost = lists:any(fun(Host) -> Host =:= Lower orelse string:prefix(Lower, [Host, $.]) =/= nomatch end, Hosts),
            if IsNode -> {node, Match}; IsHost -> {host, Lower}; true -> none end;
        Address -> {address, Address}
    end.

address(<<${, _/binary>> = Tuple) ->
    Address = list_to_tuple([binary_to_integer(Part) || Part <- binary:split(Tuple, [<<"{">>, <<",">>, <<"}">>], [global, trim_all])]),
    case inet:ntoa(Address) of
        {error, einval} -> none;
        _ -> Address
    end;
address(Text) ->
    case inet:parse_strict_address(unicode:characters_to_list(Text)) of
        {ok, Address} -> Address;
        {error, einval} -> none
    end.

stand_in({Kind, _} = Who, Known) ->
    Number = 1 + length([Kind || {Same, _} <- maps:keys(Known), Same =:= Kind]),
    Prefix = case Kind of node -> "node@"; host -> "host"; address -> "address" end,
    Instead = maps:get(Who, Known, iolist_to_binary([Prefix, integer_to_list(Number)])),
    {Instead, Known#{Who => Instead}}.

-ifdef(TEST).

written(Report) -> jiffy:decode(jiffy:encode(hidden(Report, "Web1")), [return_maps]).

text(Text) -> map_get(<<"text">>, written(#{text => Text})).

places_test_() ->
    [?_assertEqual(#{<<"bytes">> => 1, <<"link">> => <<"tcp">>, <<"node">> => <<"node@1">>, <<"peer">> => <<"node@2">>, <<"text">> => <<"1 s after node@1, over tcp">>},
                   written(#{bytes => 1, link => tcp, node => 'a@1', peer => 'b@tcp', text => <<"1 s after a@1, over tcp">>})),
     ?_assertEqual(#{<<"options">> => #{<<"classes">> => <<"[{'node@2',bulk}]">>}, <<"host">> => [#{<<"name">> => <<"driver">>, <<"found">> => <<"host1 runs node@1 and node@2">>}]},
                   written(#{host => [{[{name, driver}, {found, <<"db runs shop@Db and spare@db2.example">>}]}], options => #{classes => <<"[{'spare@db2.example',bulk}]">>}})),
     %% Only this check contains a host's name that is not recognizable as one.
     ?_assertEqual([#{<<"name">> => <<"host_name">>, <<"found">> => <<"host1 is address1">>}, #{<<"name">> => <<"rdma">>, <<"found">> => <<"tcp is on">>}],
                   map_get(<<"checks">>, written(#{node => a@tcp, checks => [{[{name, host_name}, {found, <<"tcp is 127.0.1.1">>}]}, {[{name, rdma}, {found, <<"tcp is on">>}]}]})))].

text_test_() ->
    [?_assertEqual({Text, Hidden}, {Text, text(Text)})
     || {Text, Hidden} <-
            [{<<"[fd00::]:9 FE80::1 fe80::1">>, <<"[address1]:9 address2 address2">>}, {<<"fd00::12:1: refused">>, <<"address1: refused">>},
             {<<"10.0.0.12:4000, 10.0.0.1:4, {10,0,0,12}">>, <<"address1:4000, address2:4, address1">>}, {<<"::ffff:10.0.0.1 and ::">>, <<"address1 and address2">>},
             {<<"{{64768,0,0,0,0,0,0,1},4000}">>, <<"{address1,4000}">>}, {<<"my-a@h a@h a@h:4369">>, <<"node@1 node@2 node@2:4369">>},
             {<<"a@fd00::1, b@10.0.0.1">>, <<"node@1, node@2">>}, {<<"web1 WEB1.example.org web1-a web12">>, <<"host1 host2 host1-a web12">>},
             {<<"2026-01-02T10:20:30+00:00 OpenSSL 3.0.19">>, <<"2026-01-02T10:20:30+00:00 OpenSSL 3.0.19">>}, {<<"\"/run/é\""/utf8>>, <<"\"/run/é\""/utf8>>},
             {<<"at 10:20:30 of {1,2,3,999}">>, <<"at 10:20:30 of {1,2,3,999}">>}]].
-endif.
