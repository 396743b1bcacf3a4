%% SPDX-License-Identifier: Apache-2.0
%% @doc Parses `Cookie' and `Set-Cookie' headers into records of yaws_api.hrl, and formats these records as headers. All functions are pure. Used by
%% {@link yaws_api}.
%%
%% A comma separates cookies, like a semicolon (RFC 2109), whereas in RFC 6265 it is an ordinary character. If a text cannot be parsed, the result has
%% no cookies at all.
-module(yucan_yaws_cookie).

-export([parse/1, parse_set/1, format/1, format_set/1, set/3]).
-export_type([option/0]).

-include("../../include/yaws_api.hrl").

-type option() :: secure | http_only | {expires, calendar:datetime()} | {max_age, integer()} | {path | domain | comment, string()}
                | {same_site, lax | none | strict}.

%% @doc Parses a `Cookie' header into cookies, with names in lower case.
-spec parse(string()) -> [#cookie{}].
parse(Text) ->
    case pairs(Text) of
        error -> [];
        Pairs -> [#cookie{key = Key, value = Value, quoted = Quoted} || {Key, Value, Quoted, _} <- Pairs]
    end.

%% @doc Parses a `Set-Cookie' header into a cookie, or a list if there are several.
-spec parse_set(string()) -> #setcookie{} | [#setcookie{}].
parse_set(Text) ->
    Cookies = case pairs(Text) of
        error -> [];
        Pairs -> set_cookies(Pairs, none, [])
    end,
    case Cookies of
        [One] -> One;
        _ -> Cookies
    end.

%% A pair after a comma begins a new cookie; a pair after a semicolon belongs to the current one.
set_cookies([], none, Done) -> lists:reverse(Done);
set_cookies([{Key, Value, Quoted, End} | Rest], none, Done) ->
    next(End, Rest, #setcookie{key = Key, value = Value, quoted = Quoted}, Done);
set_cookies([], Cookie, Done) -> set_cookies([], none, [whole(Cookie) | Done]);
set_cookies([{Key, Value, Quoted, End} | Rest], Cookie, Done) ->
    case {Key, Value} of
        {"domain", _} -> next(End, Rest, Cookie#setcookie{domain = Value}, Done);
        {"max-age", _} -> next(End, Rest, Cookie#setcookie{max_age = Value}, Done);
        {"expires", _} -> next(End, Rest, Cookie#setcookie{expires = Value}, Done);
        {"path", _} -> next(End, Rest, Cookie#setcookie{path = Value}, Done);
        {"secure", undefined} -> next(End, Rest, Cookie#setcookie{secure = true}, Done);
        {"httponly", undefined} -> next(End, Rest, Cookie#setcookie{http_only = true}, Done);
        {_, _} when Key =:= "secure"; Key =:= "httponly" -> [];
        _ -> next(End, Rest, Cookie#setcookie{extensions = [{Key, Value, Quoted} | Cookie#setcookie.extensions]}, Done)
    end.

next($,, Rest, Cookie, Done) -> set_cookies(Rest, none, [whole(Cookie) | Done]);
next(_, Rest, Cookie, Done) -> set_cookies(Rest, Cookie, Done).

whole(#setcookie{extensions = Reversed} = Cookie) -> Cookie#setcookie{extensions = lists:reverse(Reversed)}.

%% @doc Formats cookies as the value of a `Cookie' header.
-spec format(#cookie{} | [#cookie{}]) -> iolist().
format(#cookie{key = Key, value = Value, quoted = Quoted}) -> pair(Key, Value, Quoted);
format(Cookies) when is_list(Cookies) -> lists:join("; ", [format(Cookie) || Cookie <- Cookies]).

%% @doc Formats a cookie as the value of a `Set-Cookie' header.
-spec format_set(#setcookie{}) -> iolist().
format_set(#setcookie{key = Key, value = Value, quoted = Quoted, domain = Domain, max_age = Age, expires = Expires, path = Path, secure = Secure,
                      http_only = HttpOnly, extensions = Extensions}) ->
    Options = [{"Domain", Domain, false}, {"Max-Age", Age, false}, {"Expires", Expires, false}, {"Path", Path, false}],
    [pair(Key, Value, Quoted), [["; ", pair(Name, Text, false)] || {Name, Text, _} <- Options, Text =/= undefined],
     ["; Secure" || Secure], ["; HttpOnly" || HttpOnly], [["; ", pair(Name, Text, Quotes)] || {Name, Text, Quotes} <- Extensions]].

pair(Key, undefined, _) -> [Key];
pair(Key, Value, true) -> [Key, "=\"", Value, $"];
pair(Key, Value, false) -> [Key, $=, Value].

%% @doc Builds the value of a `Set-Cookie' header from a name, a value and options.
-spec set(string(), string(), [option()]) -> iolist().
set(Name, Value, Options) -> [Name, $=, Value | [["; ", option(Option)] || Option <- Options]].

option(secure) -> "Secure";
option(http_only) -> "HttpOnly";
option({expires, {_, _} = Universal}) -> ["Expires=", yucan_header:date(Universal)];
option({max_age, Seconds}) when is_integer(Seconds) -> ["Max-Age=", integer_to_list(max(0, Seconds))];
option({same_site, Site}) when Site =:= lax; Site =:= none; Site =:= strict -> ["SameSite=", string:titlecase(atom_to_list(Site))];
option({path, [_ | _] = Path}) -> ["Path=", Path];
option({domain, [_ | _] = Domain}) -> ["Domain=", Domain];
option({comment, [_ | _] = Comment}) -> ["Comment=", Comment];
option(Other) ->
    error({cookie_option, Other, "expected secure, http_only, or expires, max_age, same_site, path, domain or comment with a value"}).

%% ---- pairs: a name, a value or undefined, whether it had quotes, and the character after it: a semicolon, a comma or the end of the text

pairs(Text) -> pairs(skipped(Text), []).

pairs([], Done) -> lists:reverse(Done);
pairs(Text, Done) ->
    {Name, Rest} = lists:splitwith(fun(C) -> C =/= $= andalso not is_end(C) end, Text),
    Key = string:lowercase(Name),
    {Value, Quoted, Rest1} = case skipped(Rest) of
        [$= | Given] -> value(Key, skipped(Given));
        Other -> {undefined, false, Other}
    end,
    case skipped(Rest1) of
        _ when Key =:= "" -> error;
        [] -> lists:reverse([{Key, Value, Quoted, $;} | Done]);
        [End | Rest2] when End =:= $;; End =:= $, -> pairs(skipped(Rest2), [{Key, Value, Quoted, End} | Done]);
        _ -> error
    end.

value(_, [$" | Text]) -> quoted(Text, []);
%% A date contains spaces and a comma, and often has no quotes.
value("expires", Text) ->
    case re:run(Text, "^([a-z]{1,9}, *)?[0-9]{1,4}[ -][a-z]{1,9}[ -][0-9]{1,4} +[0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}( +[a-z]{1,5})?", [caseless]) of
        {match, [{0, Length} | _]} ->
            {Date, Rest} = lists:split(Length, Text),
            {Date, false, Rest};
        nomatch -> unquoted(Text)
    end;
value(_, Text) -> unquoted(Text).

unquoted(Text) ->
    {Value, Rest} = lists:splitwith(fun(C) -> not is_end(C) end, Text),
    {Value, false, Rest}.

%% A backslash and the character after it are kept unchanged.
quoted([$" | Rest], Done) -> {lists:reverse(Done), true, Rest};
quoted([$\\, C | Rest], Done) -> quoted(Rest, [C, $\\ | Done]);
quoted([C | Rest], Done) -> quoted(Rest, [C | Done]);
quoted([], Done) -> {lists:reverse(Done), true, []}.

is_end(C) -> C =:= $; orelse C =:= $, orelse is_blank(C).

is_blank(C) -> C =:= $\s orelse C =:= $\t orelse C =:= $\r orelse C =:= $\n.

skipped(Text) -> lists:dropwhile(fun is_blank/1, Text).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

parse_test_() ->
    [?_assertEqual({Text, Cookies}, {Text, parse(Text)})
     || {Text, Cookies} <-
            [{"", []}, {"v", [#cookie{key = "v"}]}, {"Sid=A=b", [#cookie{key = "sid", value = "A=b"}]},
             {"a=\"x, y; \\\"z\"; b=", [#cookie{key = "a", value = "x, y; \\\"z", quoted = true}, #cookie{key = "b", value = ""}]},
             {"$Version=1, a; b = \t2 ; ", [#cookie{key = "$version", value = "1"}, #cookie{key = "a"}, #cookie{key = "b", value = "2"}]},
             {"a=1 b=2", []}, {"a=b [c]", []}, {"; a=1", []}, {"=1", []}]].

parse_set_test_() ->
    Date = "Sat, 02 May 2009 23:38:25 GMT",
    [?_assertEqual({Text, Cookie}, {Text, parse_set(Text)})
     || {Text, Cookie} <-
            [{"v", #setcookie{key = "v"}}, {"a=\"b c\"", #setcookie{key = "a", value = "b c", quoted = true}},
             {"a=b; Path=/x; Domain=.d.example; Max-Age=5; Secure; HttpOnly; SameSite=Lax; y",
              #setcookie{key = "a", value = "b", path = "/x", domain = ".d.example", max_age = "5", secure = true, http_only = true,
                         extensions = [{"samesite", "Lax", false}, {"y", undefined, false}]}},
             {"a=b; Expires=" ++ Date ++ "; Secure", #setcookie{key = "a", value = "b", expires = Date, secure = true}},
             {"a=b; expires=Saturday, 02-May-2009 23:38:25 GMT", #setcookie{key = "a", value = "b", expires = "Saturday, 02-May-2009 23:38:25 GMT"}},
             {"a=b; expires=" ++ Date ++ ", c=d", [#setcookie{key = "a", value = "b", expires = Date}, #setcookie{key = "c", value = "d"}]},
             {"a , b, c=d", [#setcookie{key = "a"}, #setcookie{key = "b"}, #setcookie{key = "c", value = "d"}]},
             {"a=b c", []}, {"a=b; secure=1", []}, {"", []}]].

%% Formatting a record and parsing the text again yields the same record.
format_test_() ->
    Cookies = [#cookie{key = "a"}, #cookie{key = "b", value = "1"}, #cookie{key = "c", value = "x y", quoted = true}],
    [?_assertEqual("a; b=1; c=\"x y\"", lists:flatten(format(Cookies))), ?_assertEqual(Cookies, parse(lists:flatten(format(Cookies)))),
     ?_assertEqual("a", lists:flatten(format(hd(Cookies))))]
        ++ [?_assertEqual(Text, lists:flatten(format_set(parse_set(Text))))
            || Text <- ["a=b; Domain=d; Max-Age=5; Expires=Sat, 02 May 2009 23:38:25 GMT; Path=/; Secure; HttpOnly; samesite=Lax; x=\"y z\"", "a", "a=\"b c\""]].

set_test_() ->
    All = [{expires, {{2012, 1, 3}, {10, 0, 5}}}, {max_age, -1}, secure, http_only, {same_site, strict}, {path, "/"}, {domain, "d.example"}, {comment, "c"}],
    [?_assertEqual(Expected, binary_to_list(iolist_to_binary(set("a", "b", Options))))
     || {Options, Expected} <- [{[], "a=b"}, {All, "a=b; Expires=Tue, 03 Jan 2012 10:00:05 GMT; Max-Age=0; Secure; HttpOnly; SameSite=Strict; Path=/; Domain=d.example; Comment=c"}]]
        ++ [?_assertError({cookie_option, Bad, _}, set("a", "b", [secure, Bad])) || Bad <- [httponly, {max_age, "1"}, {path, ""}, {same_site, "Lax"}]].

-endif.
