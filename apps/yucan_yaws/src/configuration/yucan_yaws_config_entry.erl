%% SPDX-License-Identifier: Apache-2.0
%% @doc Parses the entries of the blocks in a server: redirects, variables, headers, access rules. Returns the parsed entry, or a text that says what
%% is wrong with it.
-module(yucan_yaws_config_entry).

-export([redirect/3, pair/3, header/3, dir/1, auth/1]).

-type result(Value) :: {ok, Value} | {error, Problem :: string()}.

%% @doc Parses a redirect. `PATH = URL' appends the request's path; `PATH == URL' does not. A status may precede the URL or replace it.
-spec redirect(Path :: string(), '=' | '==', string()) -> result(yucan_yaws_config:redirect()).
redirect("/" ++ _ = Path, Sign, Text) ->
    case target(string:lexemes(Text, " \t")) of
        {Status, Target} ->
            {ok, #{path => Path, append => Sign =:= '=', status => Status, target => Target}};
        error ->
            problem("redirect ~ts ~ts ~ts: expected [STATUS] URL, [STATUS] /PATH or STATUS", [Path, Sign, Text])
    end;
redirect(Path, _, _) -> problem("redirect of '~ts': expected a path that begins with /", [Path]).

target([One]) ->
    case status(One) of
        error -> with_status(302, target_of(One));
        %% A redirect needs a target.
        Status when Status >= 300, Status =< 399 -> error;
        Status -> {Status, none}
    end;
target([Code, Place]) ->
    case status(Code) of
        error -> error;
        Status -> with_status(Status, target_of(Place))
    end;
target(_) -> error.

with_status(_, error) -> error;
%% The target can be on another site only with a redirect status, because an error page is always a page of this server.
with_status(Status, {absolute, _}) when Status < 300; Status > 399 -> error;
with_status(Status, Target) -> {Status, Target}.

status([_, _, _] = Text) ->
    case string:to_integer(Text) of
        {Status, ""} when Status >= 200, Status =< 599 -> Status;
        _ -> error
    end;
status(_) -> error.

target_of("/" ++ _ = Path) ->
    case lists:all(fun(C) -> C > $\s andalso C < 127 end, Path) of
        true -> {local, Path};
        false -> error
    end;
target_of(Text) ->
    case yucan_yaws_config_value:url(Text) of
        {ok, Url} -> {absolute, Url};
        error -> error
    end.

%% @doc Parses a key and its value without converting them.
-spec pair(string(), '=' | '==', string()) -> result({string(), string()}).
pair(Key, '=', Value) -> {ok, {Key, Value}};
pair(Key, '==', Value) -> {ok, {Key, "=" ++ Value}}.

%% @doc Parses a header that is added to every response of the server.
-spec header(string(), '=' | '==', string()) -> result({string(), string()}).
header(Name, Sign, Value) ->
    {ok, {_, Whole}} = pair(Name, Sign, Value),
    case yucan_header:is_token(unicode:characters_to_binary(Name)) of
        true ->
            case lists:all(fun(C) -> C >= $\s andalso C =/= 127 end, Whole) of
                true -> {ok, {Name, bytes(Whole)}};
                false -> problem("header ~ts = ~ts: expected a value without control characters", [Name, Whole])
            end;
        false ->
            problem("header '~ts': expected the name of a header", [Name])
    end.

%% @doc Parses the argument of extra_cgi_vars: `dir=/PATH', with or without quotes.
-spec dir(string()) -> result(string()).
dir(Text) ->
    case re:run(Text, "^dir *= *(?:'([^']+)'|\"([^\"]+)\"|([^\\s'\"]+))$", [unicode, {capture, all_but_first, list}]) of
        {match, Found} -> {ok, lists:append(Found)};
        nomatch -> problem("<extra_cgi_vars ~ts>: expected <extra_cgi_vars dir='/PATH'>", [Text])
    end.

%% @doc Checks the settings of an auth block.
-spec auth(#{atom() => term()}) -> result(yucan_yaws_config:auth()).
auth(#{dir := Dirs, realm := Realm, user := Users, authmod := Module, allow := Allow, deny := Deny}) ->
    try
        {ok, #{dir => case Dirs of [] -> ["/"]; _ -> [slashed(Dir) || Dir <- Dirs] end,
               realm => realm(Realm), users => [user(User) || User <- Users], authmod => Module,
               allow => [cidr(allow, Text) || Text <- Allow], deny => [cidr(deny, Text) || Text <- Deny]}}
    catch
        throw:Problem -> Problem
    end.

slashed(Dir) -> "/" ++ string:trim(Dir, both, "/").

realm(Realm) ->
    case lists:any(fun(C) -> C < $\s orelse C =:= $" orelse C =:= $\\ end, Realm) of
        true -> bad("realm = ~ts: expected a text without quotes and backslashes", [Realm]);
        false -> bytes(Realm)
    end.

user(Text) ->
    case string:split(Text, ":") of
        [Name, Password] when Name =/= "", Password =/= "" ->
            _ = yucan_password:is_valid_hash(Password) orelse
                bad("user = ~ts:...: expected NAME:PASSWORD or NAME:~ts", [Name, yucan_password:expected()]),
            {bytes(Name), Password};
        [Name | _] ->
            %% The value is not shown, because the text after the colon may be a secret.
            bad("user = ~ts: expected NAME:PASSWORD or NAME:{HASH}...", [Name])
    end.

%% Texts are compared with a request's bytes or added to a response's, and Yaws modules also get
%% bytes.
bytes(Text) -> binary_to_list(unicode:characters_to_binary(Text)).

cidr(_, "all") -> all;
cidr(Key, Text) ->
    case yucan_cidr:block(unicode:characters_to_binary(Text)) of
        {ok, Block} -> Block;
        error -> bad("~ts = ~ts: expected all, an IP address or ADDRESS/BITS", [Key, Text])
    end.

-spec bad(string(), [term()]) -> no_return().
bad(Format, Arguments) -> throw(problem(Format, Arguments)).

problem(Format, Arguments) -> {error, lists:flatten(io_lib:format(Format, Arguments))}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

redirect_test_() ->
    [?_assertMatch({ok, #{append := true, status := 302, target := {local, "/b"}}}, redirect("/a", '=', "/b")),
     ?_assertMatch({ok, #{append := false, status := 301, target := {absolute, #{host := "h"}}}}, redirect("/a", '==', "301 http://h")),
     ?_assertMatch({ok, #{status := 404, target := none}}, redirect("/a", '=', "404")),
     ?_assertMatch({ok, #{status := 404, target := {local, "/e.html"}}}, redirect("/a", '=', "404 /e.html"))]
        ++ [?_assertMatch({error, _}, redirect(Path, '=', Text))
            || {Path, Text} <- [{"a", "/b"}, {"/a", ""}, {"/a", "301"}, {"/a", "999 /b"}, {"/a", "404 http://h"}, {"/a", "/b /c"},
                                {"/a", "xyz /c"}, {"/a", "/b\r"}, {"/a", "100"}]].

dir_test_() ->
    [?_assertEqual({ok, "/a b"}, dir("dir='/a b'")), ?_assertEqual({ok, "/a"}, dir("dir=/a")),
     ?_assertMatch({error, _}, dir("")), ?_assertMatch({error, _}, dir("dir=/a /b"))].

header_test_() ->
    [?_assertEqual({ok, {"X-A", "b = c"}}, header("X-A", '=', "b = c")), ?_assertMatch({error, _}, header("X A", '=', "b")),
     ?_assertMatch({error, _}, header("X", '=', "b\rc"))].

%% The message never shows a password.
secret_test() ->
    {error, Text} = auth(#{dir => [], realm => "", user => ["joe:{md4}xyz"], authmod => undefined, allow => [], deny => []}),
    ?assertEqual(nomatch, string:find(Text, "xyz")).

-endif.
