%% SPDX-License-Identifier: Apache-2.0
%% @doc Which server of a configuration takes a request: by the socket that it came to, then by the name of the host. Pure.
-module(yucan_yaws_hosts).

-export([select/4, table/2, matches/2]).
-export_type([table/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-opaque table() :: {FirstOnNoMatch :: boolean(), [{Index :: non_neg_integer(), Port :: inet:port_number(), [inet:ip_address()], [binary()]}]}.

%% @doc The servers, in the order of the file.
-spec table([yucan_yaws_config:server()], FirstOnNoMatch :: boolean()) -> table().
table(Servers, First) ->
    {First, [{Index, maps:get(port, Server), maps:get(listen, Server), names(Server)}
             || {Index, Server} <- lists:zip(lists:seq(0, length(Servers) - 1), Servers)]}.

names(#{name := Name, servername := Other, serveralias := Aliases}) ->
    [without_port(N) || N <- [Name | [Other || Other =/= undefined]] ++ Aliases].

without_port(Name) ->
    Lower = string:lowercase(unicode:characters_to_binary(Name)),
    case re:run(Lower, "^(\\[.*\\]|[^:]*)(:[0-9]*)?$", [{capture, [1], binary}]) of
        {match, [Host]} -> Host;
        nomatch -> Lower
    end.

%% @doc The index of the server, or `default': there is none on that socket that wants it.
-spec select(Host :: binary(), inet:ip_address(), inet:port_number(), table()) -> non_neg_integer() | default.
select(Host, Address, Port, {First, Rows}) ->
    Here = [Row || {_, ItsPort, Addresses, _} = Row <- Rows, ItsPort =:= Port orelse ItsPort =:= 0, is_there(Address, Addresses)],
    case [Index || {Index, _, _, Names} <- Here, lists:any(fun(Name) -> matches(Host, Name) end, Names)] of
        [Index | _] -> Index;
        [] when First, Here =/= [] -> element(1, hd(Here));
        [] -> default
    end.

%% No address in the file is loopback.
is_there(_, []) -> true;
is_there(Address, Addresses) ->
    lists:any(fun({0, 0, 0, 0}) -> true;
                 ({0, 0, 0, 0, 0, 0, 0, 0}) -> true;
                 (One) -> One =:= Address
              end, Addresses).

%% @doc Whether a name matches: `*' stands for anything, `?' for one character but a dot.
-spec matches(Host :: binary(), Pattern :: binary()) -> boolean().
matches(Host, Host) -> true;
matches(Host, <<"*", Rest/binary>>) -> lists:any(fun(N) -> matches(binary:part(Host, N, byte_size(Host) - N), Rest) end, lists:seq(0, byte_size(Host)));
matches(<<C, Host/binary>>, <<"?", Rest/binary>>) -> C =/= $. andalso matches(Host, Rest);
matches(<<C, Host/binary>>, <<C, Rest/binary>>) -> matches(Host, Rest);
matches(_, _) -> false.

-ifdef(TEST).

matches_test_() ->
    [?_assertEqual(Expected, matches(Host, Pattern))
     || {Host, Pattern, Expected} <- [{<<"a.b">>, <<"a.b">>, true}, {<<"a.b">>, <<"*">>, true}, {<<"www.a.b">>, <<"*.a.b">>, true},
                                      {<<"a.b">>, <<"*.a.b">>, false}, {<<"w1.a">>, <<"w?.a">>, true}, {<<"w..a">>, <<"w?.a">>, false},
                                      {<<>>, <<"?">>, false}, {<<"abc">>, <<"a*c">>, true}, {<<"abd">>, <<"a*c">>, false}]].

select_test_() ->
    Base = #{servername => undefined, serveralias => [], listen => []},
    Servers = [Base#{name => "localhost", port => 80}, Base#{name => "a.com", port => 80, serveralias => ["*.a.com"]},
               Base#{name => "a.com", port => 81, listen => [{10, 0, 0, 1}]}, Base#{name => "b.com:82", port => 82}],
    Select = fun(Host, Address, Port, First) -> select(Host, Address, Port, table(Servers, First)) end,
    [?_assertEqual(1, Select(<<"a.com">>, {127, 0, 0, 1}, 80, true)),
     ?_assertEqual(1, Select(<<"www.a.com">>, {127, 0, 0, 1}, 80, true)),
     ?_assertEqual(0, Select(<<"x.com">>, {127, 0, 0, 1}, 80, true)),
     ?_assertEqual(default, Select(<<"x.com">>, {127, 0, 0, 1}, 80, false)),
     ?_assertEqual(2, Select(<<"a.com">>, {10, 0, 0, 1}, 81, true)),
     ?_assertEqual(default, Select(<<"a.com">>, {10, 0, 0, 2}, 81, true)),
     ?_assertEqual(3, Select(<<"b.com">>, {127, 0, 0, 1}, 82, false)),
     ?_assertEqual(default, Select(<<"b.com">>, {127, 0, 0, 1}, 83, true))].

-endif.
