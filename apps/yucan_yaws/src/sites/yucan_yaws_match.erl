%% SPDX-License-Identifier: Apache-2.0
%% @doc Finds the parts of a configuration that apply to a request: the server (by the socket and the host name), the redirect with its target, the
%% alias, and the appmod. Also checks whether a path is below another one. All functions are pure.
%%
%% A redirect `/p = URL' appends the path of the request, as the client sent it, to the URL; `/p == URL' does not. Both keep the query. There is
%% exactly one slash between the URL and the path, even if the URL ends with several.
-module(yucan_yaws_match).

-export([table/2, without_port/1, server/4, redirect/2, location/4, appmod/2, alias/2, is_under/2]).
-export_type([table/0, appmod/0]).

-opaque table() :: {FirstOnNoMatch :: boolean(), [{Index :: non_neg_integer(), Port :: inet:port_number(), [inet:ip_address()], [binary()]}]}.

-type appmod() :: #{module := module(), prefix := binary(), rest := binary(), others := [yucan_yaws_config_value:mount()]}.
%% `prefix' is the path up to and including the appmod, `rest' is the part after it, which begins with a slash or is empty, and `others' are all other
%% mounts.

%% @doc Returns the table of servers, in the order of the file.
-spec table([yucan_yaws_config:server()], FirstOnNoMatch :: boolean()) -> table().
table(Servers, First) ->
    {First, [{Index, maps:get(port, Server), maps:get(listen, Server), names(Server)}
             || {Index, Server} <- lists:enumerate(0, Servers)]}.

names(#{name := Name, servername := Other, serveralias := Aliases}) ->
    [without_port(N) || N <- [Name | [Other || Other =/= undefined]] ++ Aliases].

%% @doc Returns the name of a host as it occurs in requests. An IPv6 address keeps its brackets.
-spec without_port(string()) -> binary().
without_port(Name) ->
    Lower = string:lowercase(unicode:characters_to_binary(Name)),
    case re:run(Lower, "^(\\[.*\\]|[^:]*)(:[0-9]*)?$", [{capture, [1], binary}]) of
        {match, [Host]} -> Host;
        nomatch -> Lower
    end.

%% @doc Returns the index of the server, or `default' if no server on that socket accepts the request.
-spec server(Host :: binary(), inet:ip_address(), inet:port_number(), table()) -> non_neg_integer() | default.
server(Host, Address, Port, {First, Rows}) ->
    Here = [Row || {_, ItsPort, Addresses, _} = Row <- Rows, ItsPort =:= Port orelse ItsPort =:= 0, is_there(Address, Addresses)],
    case [Index || {Index, _, _, Names} <- Here, lists:any(fun(Name) -> yucan_hostname:is_match(Name, Host) end, Names)] of
        [Index | _] -> Index;
        [] when First, Here =/= [] -> element(1, hd(Here));
        [] -> default
    end.

%% Without an address in the file, the server listens on loopback.
is_there(_, []) -> true;
is_there(Address, Addresses) ->
    lists:any(fun(One) -> lists:member(One, [Address, {0, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 0, 0}]) end, Addresses).

%% @doc Returns the redirect that applies to a path. If several do, the one with the longest path is used.
-spec redirect(Path :: binary(), [yucan_yaws_config:redirect()]) -> {ok, yucan_yaws_config:redirect()} | none.
redirect(Path, Redirects) ->
    Found = [{length(From), -N, Redirect}
             || {N, #{path := From} = Redirect} <- lists:enumerate(Redirects),
                is_under(Path, yucan_path:unescape(unicode:characters_to_binary(From)))],
    case lists:sort(Found) of
        [] -> none;
        Sorted -> {ok, element(3, lists:last(Sorted))}
    end.

%% @doc Returns the target. `Own' is this server's origin, for local targets. `Path' and `Query' are the client's.
-spec location(yucan_yaws_config:redirect(), Own :: iodata(), Path :: binary(), Query :: binary()) -> binary().
location(#{target := Target, append := Append}, Own, Path, Query) ->
    {Origin, Place} = case Target of
                          {absolute, #{path := AbsolutePath} = Url} -> {yucan_yaws_config_value:origin(Url), AbsolutePath};
                          {local, LocalPath} -> {Own, LocalPath}
                      end,
    [Before | OwnQuery] = string:split(Place, "?"),
    iolist_to_binary([Origin, place(Before, Append, Path), query(OwnQuery, Query)]).

place("", false, _) -> "/";
place(Before, false, _) -> Before;
place(Before, true, Path) -> [string:trim(Before, trailing, "/"), Path].

query([], <<>>) -> [];
query([], Query) -> ["?", Query];
query([Own], <<>>) -> ["?", Own];
query([Own], Query) -> ["?", Own, "&", Query].

%% @doc Returns the alias with the longest prefix that contains this path, and the rest of the path.
-spec alias(Path :: binary(), [yucan_yaws_config_value:alias()]) -> {ok, yucan_yaws_config_value:alias(), Rest :: binary()} | none.
alias(Path, Aliases) ->
    case lists:keysort(1, [{-byte_size(Prefix), Alias} || #{prefix := Prefix} = Alias <- Aliases, Prefix =:= <<>> orelse is_under(Path, Prefix)]) of
        [{Size, Alias} | _] -> {ok, Alias, binary_part(Path, -Size, byte_size(Path) + Size)};
        [] -> none
    end.

%% @doc Returns whether a decoded path is the path of a directory or is below it.
-spec is_under(Path :: binary(), Folder :: binary()) -> boolean().
is_under(_, <<"/">>) -> true;
is_under(Path, Folder) ->
    Size = byte_size(Folder),
    case Path of
        <<Folder:Size/binary>> -> true;
        <<Folder:Size/binary, "/", _/binary>> -> true;
        <<Folder:Size/binary, _/binary>> -> binary:last(Folder) =:= $/;
        _ -> false
    end.

rest(Path, <<"/">>) -> Path;
rest(Path, Folder) -> binary:part(Path, byte_size(Folder), byte_size(Path) - byte_size(Folder)).

%% @doc Returns the appmod with the longest path that contains this path, unless one of its exclude_paths contains it.
-spec appmod(Path :: binary(), [yucan_yaws_config_value:mount()]) -> {ok, appmod()} | none.
appmod(Path, Mounts) ->
    Found = [{byte_size(Prefix), Mount, Prefix} || #{exclude := Exclude} = Mount <- Mounts,
                                                   {ok, Prefix} <- [prefix(Path, Mount)],
                                                   not lists:any(fun(E) -> is_under(Path, unicode:characters_to_binary(E)) end, Exclude)],
    case lists:reverse(lists:keysort(1, Found)) of
        [{_, #{module := Module} = Mount, Prefix} | _] ->
            {ok, #{module => Module, prefix => Prefix, rest => rest(Path, Prefix), others => lists:delete(Mount, Mounts)}};
        [] -> none
    end.

prefix(Path, #{path := "/" ++ _ = From}) ->
    Folder = case string:trim(From, trailing, "/") of
                 "" -> <<"/">>;
                 Trimmed -> unicode:characters_to_binary(Trimmed)
             end,
    case is_under(Path, Folder) of
        true -> {ok, Folder};
        false -> none
    end;
%% A path without a slash is a segment, which matches wherever it occurs.
prefix(Path, #{path := Part}) ->
    Name = unicode:characters_to_binary(Part),
    case lists:splitwith(fun(Segment) -> Segment =/= Name end, binary:split(Path, <<"/">>, [global])) of
        {_, []} -> none;
        {Before, _} -> {ok, iolist_to_binary(lists:join("/", Before ++ [Name]))}
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

without_port_test_() ->
    [?_assertEqual(Host, without_port(Name))
     || {Name, Host} <- [{"A.com", <<"a.com">>}, {"a.com:80", <<"a.com">>}, {"[::1]", <<"[::1]">>}, {"[FE80::1]:8080", <<"[fe80::1]">>}, {"::1", <<"::1">>}]].

server_test_() ->
    Base = #{servername => undefined, serveralias => [], listen => []},
    Servers = [Base#{name => "localhost", port => 80}, Base#{name => "a.com", port => 80, serveralias => ["*.a.com"]},
               Base#{name => "a.com", port => 81, listen => [{10, 0, 0, 1}]}, Base#{name => "b.com:82", port => 82}],
    Select = fun(Host, Address, Port, First) -> server(Host, Address, Port, table(Servers, First)) end,
    [?_assertEqual(1, Select(<<"a.com">>, {127, 0, 0, 1}, 80, true)),
     ?_assertEqual(1, Select(<<"www.a.com">>, {127, 0, 0, 1}, 80, true)),
     ?_assertEqual(0, Select(<<"x.com">>, {127, 0, 0, 1}, 80, true)),
     ?_assertEqual(default, Select(<<"x.com">>, {127, 0, 0, 1}, 80, false)),
     ?_assertEqual(2, Select(<<"a.com">>, {10, 0, 0, 1}, 81, true)),
     ?_assertEqual(default, Select(<<"a.com">>, {10, 0, 0, 2}, 81, true)),
     ?_assertEqual(3, Select(<<"b.com">>, {127, 0, 0, 1}, 82, false)),
     ?_assertEqual(default, Select(<<"b.com">>, {127, 0, 0, 1}, 83, true))].

redirects(Lines) ->
    [element(2, {ok, _} = yucan_yaws_config_entry:redirect(Path, Sign, Value)) || {Path, Sign, Value} <- Lines].

led(Path, Lines) -> led(Path, <<>>, Lines).

led(Raw, Query, Lines) ->
    {ok, Path} = yucan_path:decode(Raw),
    case redirect(Path, redirects(Lines)) of
        {ok, Redirect} -> location(Redirect, "http://own:81", Raw, Query);
        none -> none
    end.

location_test_() ->
    Site = [{"/", '=', "http://www.example.com"}],
    Slash = [{"/", '=', "http://www.example.com/"}],
    [?_assertEqual(<<"http://www.example.com/">>, led(<<"/">>, Site)),
     ?_assertEqual(<<"http://www.example.com/">>, led(<<"/">>, Slash)),
     ?_assertEqual(<<"http://www.example.com/a/">>, led(<<"/a/">>, Site)),
     ?_assertEqual(<<"http://www.example.com/a//b">>, led(<<"/a//b">>, Slash)),
     ?_assertEqual(<<"http://www.example.com//">>, led(<<"//">>, Site)),
     %% Characters that could start a new header stay escaped.
     ?_assertEqual(<<"http://www.example.com/a%20b/%0D%0AX:y?c=d">>,
                   location(hd(redirects(Site)), "", <<"/a%20b/%0D%0AX:y">>, <<"c=d">>)),
     ?_assertEqual(<<"http://own:81/redir/old/x">>, led(<<"/old/x">>, [{"/old", '=', "/redir"}])),
     ?_assertEqual(<<"http://own:81/redir/old/x">>, led(<<"/old/x">>, [{"/old", '=', "/redir/"}])),
     ?_assertEqual(<<"http://own:81/redir">>, led(<<"/old/x">>, [{"/old", '==', "/redir"}])),
     ?_assertEqual(<<"http://h/?a=b">>, led(<<"/old/x">>, <<"a=b">>, [{"/old", '==', "http://h"}])),
     ?_assertEqual(<<"http://h/p?q=1&a=b">>, led(<<"/old">>, <<"a=b">>, [{"/old", '==', "http://h/p?q=1"}])),
     ?_assertEqual(none, led(<<"/older">>, [{"/old", '=', "/redir"}])),
     ?_assertEqual(<<"http://own:81/2/a/b/c">>, led(<<"/a/b/c">>, [{"/a", '=', "/1"}, {"/a/b", '=', "/2"}, {"/", '=', "/3"}])),
     ?_assertEqual(<<"http://own:81/redir%3F">>, led(<<"/r%3Fx/y">>, [{"/r%3Fx", '==', "/redir%3F"}]))].

is_under_test_() ->
    [?_assertEqual(Expected, is_under(Path, Folder))
     || {Path, Folder, Expected} <- [{<<"/a">>, <<"/">>, true}, {<<"/a">>, <<"/a">>, true}, {<<"/a/">>, <<"/a">>, true},
                                     {<<"/ab">>, <<"/a">>, false}, {<<"/a/b">>, <<"/a/">>, true}, {<<"/">>, <<"/a">>, false}]].

appmod_test_() ->
    {ok, Mounts} = yucan_yaws_config_value:read(mounts, "</, root exclude_paths static img/x> </trac, trac> </trac/raw/, raw> any", "/"),
    Found = fun(Path) ->
                    case appmod(Path, Mounts) of
                        {ok, #{module := Module, others := Others} = Appmod} ->
                            ?assertEqual([M || #{module := M} <- Mounts, M =/= Module], [M || #{module := M} <- Others]),
                            {ok, maps:remove(others, Appmod)};
                        none -> none
                    end
            end,
    [?_assertEqual(Expected, Found(Path))
     || {Path, Expected} <-
            [{<<"/">>, {ok, #{module => root, prefix => <<"/">>, rest => <<"/">>}}},
             {<<"/x/y">>, {ok, #{module => root, prefix => <<"/">>, rest => <<"/x/y">>}}},
             {<<"/static/a.js">>, none},
             {<<"/statics">>, {ok, #{module => root, prefix => <<"/">>, rest => <<"/statics">>}}},
             {<<"/img/x">>, none},
             {<<"/trac">>, {ok, #{module => trac, prefix => <<"/trac">>, rest => <<>>}}},
             {<<"/trac/wiki/A">>, {ok, #{module => trac, prefix => <<"/trac">>, rest => <<"/wiki/A">>}}},
             {<<"/trac/raw/b">>, {ok, #{module => raw, prefix => <<"/trac/raw">>, rest => <<"/b">>}}},
             {<<"/a/any/c">>, {ok, #{module => any, prefix => <<"/a/any">>, rest => <<"/c">>}}}]].

-endif.
