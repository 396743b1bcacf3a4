%% SPDX-License-Identifier: Apache-2.0
%% @doc The `<redirect>' blocks of a server: which one takes a request, and where it leads. Pure.
%%
%% `/p = URL' appends the path of the request, as the client sent it, to the URL; `/p == URL' does not. The query goes along in both.
%% One slash stands between the URL and the path, however many there are in the URL.
-module(yucan_yaws_redirect).

-export([find/2, location/4]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

%% @doc The redirect with the longest path that this path is under.
-spec find(Path :: binary(), [yucan_yaws_config:redirect()]) -> {ok, yucan_yaws_config:redirect()} | none.
find(Path, Redirects) ->
    Found = [{length(From), -N, Redirect}
             || {N, #{path := From} = Redirect} <- numbered(Redirects),
                yucan_yaws_path:is_under(Path, yucan_path:unescape(unicode:characters_to_binary(From)))],
    case lists:sort(Found) of
        [] -> none;
        Sorted -> {ok, element(3, lists:last(Sorted))}
    end.

numbered(List) -> lists:zip(lists:seq(1, length(List)), List).

%% @doc Where it leads. `Own' is the scheme, host and port of this server, for places of our own; Path and Query are as they were sent.
-spec location(yucan_yaws_config:redirect(), Own :: iodata(), Path :: binary(), Query :: binary()) -> binary().
location(#{target := Target, append := Append}, Own, Path, Query) ->
    {Origin, Place} = case Target of
                          {absolute, #{path := AbsolutePath} = Url} -> {yucan_yaws_config_url:origin(Url), AbsolutePath};
                          {local, LocalPath} -> {Own, LocalPath}
                      end,
    [Before | OwnQuery] = string:split(Place, "?"),
    iolist_to_binary([Origin, path(Before, Append, Path), query(OwnQuery, Query)]).

path("", false, _) -> "/";
path(Before, false, _) -> Before;
path(Before, true, Path) -> [string:trim(Before, trailing, "/"), Path].

query([], <<>>) -> [];
query([], Query) -> ["?", Query];
query([Own], <<>>) -> ["?", Own];
query([Own], Query) -> ["?", Own, "&", Query].

-ifdef(TEST).

redirects(Lines) ->
    [element(2, {ok, _} = yucan_yaws_config_block:redirect(Path, Sign, Value)) || {Path, Sign, Value} <- Lines].

led(Path, Lines) -> led(Path, <<>>, Lines).

led(Raw, Query, Lines) ->
    {ok, Path} = yucan_path:decode(Raw),
    case find(Path, redirects(Lines)) of
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
     %% What would be a header of its own stays escaped.
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

-endif.
