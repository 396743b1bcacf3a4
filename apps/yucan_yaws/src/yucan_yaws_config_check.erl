%% SPDX-License-Identifier: Apache-2.0
%% @doc What can be wrong between the lines of a configuration: servers that serve nothing, or cannot stand side by side.
-module(yucan_yaws_config_check).

-export([servers/1]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

%% @doc The problems of servers, each at the line where its server begins.
-spec servers([yucan_yaws_config:server()]) -> [yucan_yaws_config:problem()].
servers(Servers) -> lists:append([one(Server) || Server <- Servers]) ++ same_names(Servers) ++ mixed_ports(Servers) ++ mixed_logs(Servers).

one(#{line := Line} = Server) -> [{Line, Text} || Text <- nothing_to_serve(Server) ++ no_handler(Server)].

nothing_to_serve(#{docroot := [], redirects := [], appmods := [], revproxy := [], arg_rewrite_mod := undefined,
                   name := Name}) ->
    [text("<server ~ts> has nothing to serve: expected docroot, appmods, revproxy or <redirect>", [Name])];
nothing_to_serve(_) ->
    [].

no_handler(#{allowed_scripts := Scripts, name := Name}) ->
    [text("allowed_scripts of <server ~ts> names '~ts': expected php, cgi and fcgi", [Name, Script])
     || Script <- Scripts, not lists:member(Script, ["php", "cgi", "fcgi"])].

%% Two servers on one port need different names, or nobody ever reaches the second.
same_names(Servers) ->
    [{Line, text("<server ~ts> on port ~b is in line ~b already: expected another name, port or listen address", [Name, Port, First])}
     || {#{name := Name, port := Port, line := Line} = Server, Before} <- with_those_before(Servers), Port =/= 0,
        #{name := Other, port := OtherPort, line := First} = Earlier <- Before,
        Name =:= Other, Port =:= OtherPort, shares_address(Server, Earlier)].

%% One socket speaks TLS or it does not.
mixed_ports(Servers) ->
    [{Line, text("port ~b has <ssl> in one server and none in that of line ~b: expected the same in both", [Port, First])}
     || {#{port := Port, line := Line, ssl := Ssl} = Server, Before} <- with_those_before(Servers), Port =/= 0,
        #{port := OtherPort, line := First, ssl := OtherSsl} = Earlier <- Before,
        Port =:= OtherPort, (Ssl =:= undefined) =/= (OtherSsl =:= undefined), shares_address(Server, Earlier)].

%% There is one file for all.
mixed_logs([#{access_log := First} | Rest]) ->
    [{Line, text("access_log of <server ~ts> is ~ts, that of the first server is not: expected the same in all", [Name, Wanted])}
     || #{access_log := Wanted, line := Line, name := Name} <- Rest, Wanted =/= First];
mixed_logs([]) -> [].

shares_address(#{listen := A}, #{listen := B}) ->
    A =:= [] orelse B =:= [] orelse lists:any(fun(Address) -> lists:member(Address, B) end, A).

with_those_before(Servers) ->
    {Pairs, _} = lists:mapfoldl(fun(Server, Before) -> {{Server, lists:reverse(Before)}, [Server | Before]} end, [], Servers),
    Pairs.

text(Format, Arguments) -> lists:flatten(io_lib:format(Format, Arguments)).

-ifdef(TEST).

parse(Text) -> yucan_yaws_config:parse(list_to_binary(Text), "/").

servers_test_() ->
    [?_assertMatch({error, [{1, "<server a> has nothing to serve" ++ _}]}, parse("<server a>\n</server>")),
     ?_assertMatch({error, [{5, "<server a> on port 80 is in line 1 already" ++ _}]},
                   parse("<server a>\nport=80\ndocroot=/t\n</server>\n<server A>\nport=80\ndocroot=/t\n</server>")),
     ?_assertMatch({ok, _}, parse("<server a>\nport=80\nlisten=127.0.0.1\ndocroot=/t\n</server>\n"
                                  "<server a>\nport=80\nlisten=127.0.0.2\ndocroot=/t\n</server>")),
     ?_assertMatch({error, [{5, "port 80 has <ssl>" ++ _}]},
                   parse("<server a>\nport=80\ndocroot=/t\n</server>\n<server b>\nport=80\ndocroot=/t\n<ssl>\ncertfile=/c\n</ssl>\n</server>")),
     ?_assertMatch({error, [{1, "allowed_scripts of <server a> names 'rb'" ++ _}]},
                   parse("<server a>\ndocroot=/t\nallowed_scripts = php rb\n</server>"))].

-endif.
