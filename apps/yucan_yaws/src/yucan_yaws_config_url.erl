%% SPDX-License-Identifier: Apache-2.0
%% @doc The URLs that stand in a configuration: where a redirect leads, what a proxy asks.
-module(yucan_yaws_config_url).

-export([read/1, expected/0, origin/1]).
-export_type([url/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-type url() :: #{scheme := http | https, host := string(), port := inet:port_number() | undefined, path := string()}.
%% The path is "" if there is none; it keeps its query and the case and percent signs that it was written with.

%% @doc An absolute http or https URL without user, blanks and control characters.
-spec read(string()) -> {ok, url()} | error.
read(Text) ->
    Pattern = "^(https?)://(\\[[0-9A-Fa-f:.]+\\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?(/[\\x21-\\x7e]*|\\?[\\x21-\\x7e]*)?$",
    case re:run(Text, Pattern, [unicode, {capture, all_but_first, list}]) of
        {match, [Scheme, Host | Rest]} -> url(Scheme, Host, Rest);
        nomatch -> error
    end.

url(Scheme, Host, Rest) ->
    {Digits, Path} = case Rest of
                         [] -> {"", ""};
                         [D] -> {D, ""};
                         [D, P] -> {D, P}
                     end,
    case Digits =:= "" orelse list_to_integer(Digits) of
        true -> {ok, #{scheme => list_to_atom(Scheme), host => Host, port => undefined, path => Path}};
        Port when Port >= 1, Port =< 65535 -> {ok, #{scheme => list_to_atom(Scheme), host => Host, port => Port, path => Path}};
        _ -> error
    end.

%% @doc What to tell a user whose URL was none.
-spec expected() -> string().
expected() -> "http://HOST[:PORT][/PATH] or https://HOST[:PORT][/PATH]".

%% @doc Scheme, host and port as text, without a slash at the end.
-spec origin(url()) -> string().
origin(#{scheme := Scheme, host := Host, port := Port}) ->
    atom_to_list(Scheme) ++ "://" ++ Host
        ++ case Port of
               undefined -> "";
               _ -> ":" ++ integer_to_list(Port)
           end.

-ifdef(TEST).

read_test_() ->
    [?_assertEqual({ok, #{scheme => http, host => "www.example.com", port => undefined, path => ""}}, read("http://www.example.com")),
     ?_assertEqual({ok, #{scheme => https, host => "[::1]", port => 8443, path => "/a?b#c"}}, read("https://[::1]:8443/a?b#c")),
     ?_assertEqual("http://h:81", origin(element(2, read("http://h:81/x"))))]
        ++ [?_assertEqual(error, read(Bad))
            || Bad <- ["", "http://", "ftp://a", "http://a b", "http://a/b c", "http://a\r\nX: y", "http://u@h/", "http://h:0/",
                       "http://h:65536/", "/x"]].

-endif.
