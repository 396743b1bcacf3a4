%% SPDX-License-Identifier: Apache-2.0
%% @doc The values in a configuration file: the kinds of values, how each kind is parsed, and the messages for invalid values.
-module(yucan_yaws_config_value).

-export([read/3, expected/1, url/1, origin/1]).
-export_type([kind/0, mount/0, php_handler/0, revproxy/0, alias/0, url/0]).

-type kind() :: text | boolean | module | program | path | paths | words | address | host_port | mounts | php_handler | revproxy | expires | alias | ciphers | versions
              | {integer, Min :: integer(), Max :: integer()} | {one_of, [atom()]} | {none_or, atom(), kind()}.
-type mount() :: #{path := string(), module := module(), exclude := [string()]}.
%% An appmod. A path without a leading slash matches that segment anywhere in a path.
-type php_handler() :: {cgi, Program :: string()} | {fcgi, yucan_fcgi_address()} | {extern, node(), module(), atom()}.
-type yucan_fcgi_address() :: {inet:hostname() | inet:ip_address(), inet:port_number()} | {local, binary()}.
-type alias() :: #{prefix := binary(), target := binary()}.
%% The prefix has no trailing slash.
-type revproxy() :: #{prefix := string(), url := url()}.

-type url() :: #{scheme := http | https, host := string(), port := inet:port_number() | undefined, path := string()}.
%% The path is "" if the URL has none. It includes the query, and keeps its case and its percent escapes.

%% @doc Parses a value. A relative path is relative to `Folder', the directory of the configuration file.
-spec read(kind(), Text :: string(), Folder :: file:filename()) -> {ok, term()} | {error, Expected :: string()}.
read(Kind, Text, Folder) ->
    case value(Kind, Text, Folder) of
        {ok, Value} -> {ok, Value};
        error -> {error, expected(Kind)}
    end.

value(text, Text, _) -> {ok, Text};
value(boolean, Text, _) -> one_of([true, false], Text);
value({one_of, Atoms}, Text, _) -> one_of(Atoms, Text);
value({none_or, Atom, Kind}, Text, Folder) ->
    case atom_to_list(Atom) of
        Text -> {ok, Atom};
        _ -> value(Kind, Text, Folder)
    end;
value({integer, Min, Max}, Text, _) -> integer(Text, Min, Max);
value(module, Text, _) -> module(Text);
value(words, Text, _) -> {ok, string:lexemes(Text, " \t,")};
value(program, Text, Folder) -> {ok, program(Text, Folder)};
value(path, Text, Folder) -> path(Text, Folder);
value(paths, Text, Folder) -> paths(parts(Text), Folder);
value(address, Text, _) -> address(Text);
value(host_port, Text, Folder) -> host_port(Text, Folder);
value(mounts, Text, _) -> mounts(string:trim(Text), []);
value(php_handler, Text, Folder) -> php_handler(Text, Folder);
value(revproxy, Text, _) -> revproxy(parts(Text));
value(alias, Text, Folder) -> alias(parts(Text), Folder);
value(ciphers, Text, _) -> ciphers(string:lexemes(Text, " \t,:"));
value(versions, Text, _) -> versions(string:lexemes(Text, " \t,"));
value(expires, Text, _) -> expires(string:lexemes(Text, " \t")).

%% @doc Returns a description of values of this kind, for messages and for the reference of all options (`scripts/options').
-spec expected(kind()) -> string().
expected(text) -> "any text";
expected(boolean) -> expected({one_of, [true, false]});
expected({one_of, [One]}) -> atom_to_list(One);
expected({one_of, Atoms}) ->
    lists:flatten([lists:join(", ", [atom_to_list(A) || A <- lists:droplast(Atoms)]), " or ", atom_to_list(lists:last(Atoms))]);
expected({none_or, Atom, Kind}) -> atom_to_list(Atom) ++ " or " ++ expected(Kind);
expected({integer, Min, Max}) -> lists:flatten(io_lib:format("a number from ~b to ~b", [Min, Max]));
expected(module) -> "the name of an Erlang module";
expected(words) -> "words, separated by blanks";
expected(program) -> "the path of a program, or its name";
expected(path) -> "a path";
expected(paths) -> "one or more paths, separated by blanks";
expected(address) -> "an IP address, such as 127.0.0.1, 0.0.0.0 or ::1";
expected(host_port) -> "HOST:PORT, or unix:PATH of a socket";
expected(mounts) -> "</path, module> or </path, module exclude_paths a b>, several of them, or names of modules";
expected(php_handler) -> "<cgi, PROGRAM>, <fcgi, HOST:PORT>, <fcgi, unix:PATH> or <extern, [NODE:]MODULE:FUNCTION>";
expected(revproxy) -> "/PREFIX http://HOST[:PORT][/PATH]";
expected(alias) -> "/PREFIX PATH, the prefix of letters, digits and -._~ alone";
expected(ciphers) -> "names of cipher suites that this Erlang knows, such as TLS_AES_256_GCM_SHA384 or ECDHE-RSA-AES256-GCM-SHA384";
expected(versions) -> expected({one_of, lists:sort(tls_versions())}) ++ ", several of them separated by blanks";
expected(expires) -> "TYPE|access+SECONDS, several of them separated by blanks".

%% Splits a text at spaces, except for spaces in double quotes.
parts(Text) -> parts(string:trim(Text, leading, " \t"), []).

parts("", Done) -> lists:reverse(Done);
parts([$" | Rest] = Text, Done) ->
    case string:split(Rest, "\"") of
        [Part, After] when After =:= ""; hd(After) =:= $\s; hd(After) =:= $\t -> parts(string:trim(After, leading, " \t"), [Part | Done]);
        _ -> unquoted(Text, Done)
    end;
parts(Text, Done) -> unquoted(Text, Done).

unquoted(Text, Done) ->
    {Part, After} = lists:splitwith(fun(C) -> C =/= $\s andalso C =/= $\t end, Text),
    parts(string:trim(After, leading, " \t"), [Part | Done]).

one_of(Atoms, Text) ->
    case [Atom || Atom <- Atoms, atom_to_list(Atom) =:= Text] of
        [Atom] -> {ok, Atom};
        [] -> error
    end.

integer(Text, Min, Max) ->
    case string:to_integer(Text) of
        {Number, ""} when is_integer(Number), Number >= Min, Number =< Max -> {ok, Number};
        _ -> error
    end.

%% Names can become atoms, because a configuration file contains only a few of them.
module(Text) ->
    case re:run(Text, "^[a-z][A-Za-z0-9_@]{0,127}$", [unicode, {capture, none}]) of
        match -> {ok, list_to_atom(Text)};
        nomatch -> error
    end.

path("", _) -> error;
path(Text, Folder) ->
    case lists:member(0, Text) of
        true -> error;
        false -> {ok, clean(filename:absname(Text, Folder))}
    end.

%% Removes `.' and `..' as far as possible without access to the file system.
clean(Path) -> filename:join(lists:reverse(lists:foldl(fun clean/2, [], filename:split(Path)))).

clean(".", Done) -> Done;
clean("..", [_, _ | _] = Done) -> tl(Done);
clean("..", Done) -> Done;
clean(Part, Done) -> [Part | Done].

paths([], _) -> error;
paths(Words, Folder) ->
    Read = [path(Word, Folder) || Word <- Words],
    case lists:member(error, Read) of
        true -> error;
        false -> {ok, [Path || {ok, Path} <- Read]}
    end.

address(Text) ->
    case inet:parse_strict_address(unbracketed(Text)) of
        {ok, Address} -> {ok, Address};
        {error, _} -> error
    end.

unbracketed("[" ++ Rest) -> string:trim(Rest, trailing, "]");
unbracketed(Text) -> Text.

host_port("unix:" ++ Path, Folder) when Path =/= "" -> {ok, {local, unicode:characters_to_binary(filename:absname(Path, Folder))}};
host_port("/" ++ _ = Path, _) -> {ok, {local, unicode:characters_to_binary(Path)}};
host_port(Text, _) ->
    case string:split(Text, ":", trailing) of
        [Host, Digits] when Host =/= "" ->
            case {integer(Digits, 1, 65535), address(Host)} of
                {{ok, Port}, {ok, Address}} -> {ok, {Address, Port}};
                {{ok, Port}, error} -> named_host(Host, Port);
                {error, _} -> error
            end;
        _ -> error
    end.

named_host(Host, Port) ->
    case re:run(Host, "^[A-Za-z0-9]([A-Za-z0-9.-]{0,252})$", [unicode, {capture, none}]) of
        match -> {ok, {Host, Port}};
        nomatch -> error
    end.

%% ---- appmods: `</path, module exclude_paths a b> module'

mounts("", []) -> error;
mounts("", Done) -> {ok, lists:reverse(Done)};
mounts("<" ++ Rest, Done) ->
    case string:split(Rest, ">") of
        [Inner, More] -> mount(string:split(Inner, ","), More, Done);
        [_] -> error
    end;
mounts(Text, Done) ->
    {Word, Rest} = string:take(Text, " \t,<", true),
    case module(Word) of
        {ok, Module} -> mounts(string:trim(Rest, leading, " \t,"), [#{path => Word, module => Module, exclude => []} | Done]);
        error -> error
    end.

mount([Path, Words], More, Done) ->
    case {string:trim(Path), string:lexemes(Words, " \t,")} of
        {"", _} -> error;
        {_, [_, "exclude_paths"]} -> error;
        {Trimmed, [Name]} -> mount(Trimmed, Name, [], More, Done);
        {Trimmed, [Name, "exclude_paths" | Exclude]} -> mount(Trimmed, Name, Exclude, More, Done);
        _ -> error
    end;
mount(_, _, _) -> error.

mount(Path, Name, Exclude, More, Done) ->
    case module(Name) of
        {ok, Module} ->
            Mount = #{path => Path, module => Module, exclude => ["/" ++ string:trim(E, both, "/") || E <- Exclude]},
            mounts(string:trim(More, leading, " \t,"), [Mount | Done]);
        error ->
            error
    end.

%% ---- php_handler: `<cgi, PROGRAM>', `<fcgi, HOST:PORT>', `<extern, [NODE:]MODULE:FUNCTION>'

php_handler(Text, Folder) ->
    case [string:trim(Part) || Part <- string:split(string:trim(Text, both, "<> \t"), ",")] of
        ["cgi", Program] when Program =/= "" -> {ok, {cgi, program(Program, Folder)}};
        ["fcgi", Address] ->
            case host_port(Address, Folder) of
                {ok, Place} -> {ok, {fcgi, Place}};
                error -> error
            end;
        ["extern", Function] -> extern(string:lexemes(Function, ":"));
        _ -> error
    end.

%% A bare name is looked up on the PATH when it is used.
program(Name, Folder) ->
    case lists:member($/, Name) of
        true -> filename:absname(Name, Folder);
        false -> Name
    end.

extern([Module, Function]) -> extern([atom_to_list(node()), Module, Function]);
extern([Node, Module, Function]) ->
    case {module(Module), module(Function)} of
        {{ok, M}, {ok, F}} -> {ok, {extern, list_to_atom(Node), M, F}};
        _ -> error
    end;
extern(_) -> error.

revproxy(["/" ++ _ = Prefix, Text]) ->
    case url(Text) of
        {ok, #{scheme := http} = Url} -> {ok, #{prefix => Prefix, url => Url}};
        _ -> error
    end;
revproxy(_) -> error.

%% The prefix contains no characters that need escapes, so it is the same in encoded and decoded paths.
alias(["/" ++ _ = Prefix, Place], Folder) ->
    case {re:run(Prefix, "^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*/?$", [{capture, none}]), path(Place, Folder)} of
        {match, {ok, Target}} -> {ok, #{prefix => unicode:characters_to_binary(string:trim(Prefix, trailing, "/")), target => unicode:characters_to_binary(Target)}};
        _ -> error
    end;
alias(_, _) -> error.

%% The names of cipher suites may be those of OpenSSL or of IANA.
ciphers([]) -> error;
ciphers(Names) ->
    Suites = [ssl:str_to_suite(Name) || Name <- Names],
    case lists:all(fun is_map/1, Suites) of
        true -> {ok, Suites};
        false -> error
    end.

versions(Names) ->
    case [V || Name <- Names, V <- tls_versions(), atom_to_list(V) =:= Name] of
        [_ | _] = Versions when length(Versions) =:= length(Names) -> {ok, Versions};
        _ -> error
    end.

tls_versions() -> proplists:get_value(supported, ssl:versions()).

%% Parses values such as `image/png|access+3600', where the number is the seconds after the access.
expires([]) -> error;
expires(Words) ->
    Read = [re:run(Word, "^([^|]+)\\|access\\+([0-9]{1,9})$", [unicode, {capture, all_but_first, list}]) || Word <- Words],
    case lists:member(nomatch, Read) of
        true -> error;
        false -> {ok, [{Type, list_to_integer(Seconds)} || {match, [Type, Seconds]} <- Read]}
    end.

%% ---- URLs: targets of redirects and proxies

%% @doc Parses an absolute http or https URL that contains no user, spaces or control characters.
-spec url(string()) -> {ok, url()} | error.
url(Text) ->
    Pattern = "^(https?)://(\\[[0-9A-Fa-f:.]+\\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?(/[\\x21-\\x7e]*|\\?[\\x21-\\x7e]*)?$",
    case re:run(Text, Pattern, [unicode, {capture, [1, 2, 3, 4], list}]) of
        {match, [Scheme, Host, Digits, Path]} ->
            Url = #{scheme => list_to_atom(Scheme), host => Host, port => undefined, path => Path},
            case Digits =:= "" orelse integer(Digits, 1, 65535) of
                true -> {ok, Url};
                {ok, Port} -> {ok, Url#{port := Port}};
                error -> error
            end;
        nomatch -> error
    end.

%% @doc Returns the scheme, host and port of a URL as text, without a trailing slash.
-spec origin(url()) -> string().
origin(#{scheme := Scheme, host := Host, port := Port}) ->
    atom_to_list(Scheme) ++ "://" ++ Host
        ++ case Port of
               undefined -> "";
               _ -> ":" ++ integer_to_list(Port)
           end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

simple_test_() ->
    [?_assertEqual(Expected, read(Kind, Text, "/etc/yucan"))
     || {Kind, Text, Expected} <-
            [{boolean, "true", {ok, true}},
             {boolean, "yes", {error, "true or false"}},
             {{one_of, [true, true_nozip, false]}, "", {error, "true, true_nozip or false"}},
             {{integer, 1, 65535}, "80", {ok, 80}},
             {{integer, 1, 65535}, "80x", {error, "a number from 1 to 65535"}},
             {{integer, 1, 65535}, "0", {error, "a number from 1 to 65535"}},
             {{none_or, nolimit, {integer, 1, 9}}, "nolimit", {ok, nolimit}},
             {{none_or, nolimit, {integer, 1, 9}}, "10", {error, "nolimit or a number from 1 to 9"}},
             {module, "trac", {ok, trac}},
             {module, "Trac", {error, "the name of an Erlang module"}},
             {path, "www/../site/./a", {ok, "/etc/yucan/site/a"}},
             {path, "/a", {ok, "/a"}},
             {path, "../../../../x", {ok, "/x"}},
             {paths, "/a b", {ok, ["/a", "/etc/yucan/b"]}},
             {paths, "\"/a b\" \t/c \"d\"", {ok, ["/a b", "/c", "/etc/yucan/d"]}},
             {paths, "\"/a /b\"c", {ok, ["/etc/yucan/\"/a", "/b\"c"]}},
             {alias, "\"/x\" \"/a b\"", {ok, #{prefix => <<"/x">>, target => <<"/a b">>}}},
             {address, "127.0.0.1", {ok, {127, 0, 0, 1}}},
             {address, "[::1]", {ok, {0, 0, 0, 0, 0, 0, 0, 1}}},
             {host_port, "php:9000", {ok, {"php", 9000}}},
             {host_port, "[::1]:9000", {ok, {{0, 0, 0, 0, 0, 0, 0, 1}, 9000}}},
             {host_port, "unix:/run/php.sock", {ok, {local, <<"/run/php.sock">>}}},
             {host_port, "unix:run/php.sock", {ok, {local, <<"/etc/yucan/run/php.sock">>}}},
             {program, "bin/php", {ok, "/etc/yucan/bin/php"}},
             {program, "php-cgi", {ok, "php-cgi"}},
             {host_port, "php", {error, "HOST:PORT, or unix:PATH of a socket"}},
             {alias, "/cgit-css/ www/css", {ok, #{prefix => <<"/cgit-css">>, target => <<"/etc/yucan/www/css">>}}},
             {alias, "/ /usr/lib/x.cgi", {ok, #{prefix => <<>>, target => <<"/usr/lib/x.cgi">>}}},
             {versions, "tlsv1.3 tlsv1.2", {ok, ['tlsv1.3', 'tlsv1.2']}},
             {expires, "image/png|access+60", {ok, [{"image/png", 60}]}}]].

refused_test_() ->
    [?_assertMatch({Kind, Text, {error, _}}, {Kind, Text, read(Kind, Text, "/etc")})
     || {Kind, All} <- [{alias, ["", "/a", "a /b", "/a%20b /c", "/a/../b /c", "/.git /c", "/a//b /c", "/a /b /c"]}, {ciphers, ["", "NONE", "TLS_AES_256_GCM_SHA384 NONE"]},
                        {versions, ["", "sslv3", "tlsv1.2 tls"]}], Text <- All].

ciphers_test() ->
    {ok, [#{cipher := aes_256_gcm}, #{key_exchange := ecdhe_rsa}]} = read(ciphers, "TLS_AES_256_GCM_SHA384:ECDHE-RSA-AES128-GCM-SHA256", "/").

mounts_test_() ->
    [?_assertEqual({ok, [#{path => "/trac", module => trac, exclude => []}]}, read(mounts, "</trac, trac>", "")),
     ?_assertEqual({ok, [#{path => "/", module => test_yaws, exclude => ["/nitrogen", "/a/b"]},
                         #{path => "foo", module => foo, exclude => []},
                         #{path => "cgi-bin", module => bar, exclude => []}]},
                   read(mounts, "</, test_yaws exclude_paths nitrogen /a/b/> foo <cgi-bin , bar>", ""))]
        ++ [?_assertMatch({error, _}, read(mounts, Bad, ""))
            || Bad <- ["", "<", "</x>", "</x, Y>", "</x, y z>", "</x, y exclude_paths>", "<, y>", "</x, y", "9"]].

handlers_test_() ->
    [?_assertEqual({ok, {cgi, "/usr/bin/php-cgi"}}, read(php_handler, "<cgi, /usr/bin/php-cgi>", "/")),
     ?_assertEqual({ok, {cgi, "php-cgi"}}, read(php_handler, "<cgi, php-cgi>", "/")),
     ?_assertEqual({ok, {fcgi, {"localhost", 9000}}}, read(php_handler, "<fcgi, localhost:9000>", "/")),
     ?_assertEqual({ok, {fcgi, {local, <<"/run/php/fpm.sock">>}}}, read(php_handler, "<fcgi, unix:/run/php/fpm.sock>", "/")),
     ?_assertEqual({ok, {fcgi, {local, <<"/site/fpm.sock">>}}}, read(php_handler, "<fcgi, unix:fpm.sock>", "/site")),
     ?_assertEqual({ok, {extern, node(), m, f}}, read(php_handler, "<extern, m:f>", "/")),
     ?_assertMatch({error, _}, read(php_handler, "<cgi>", "/")),
     ?_assertMatch({error, _}, read(php_handler, "<fcgi, x>", "/")),
     ?_assertMatch({ok, #{prefix := "/a"}}, read(revproxy, "/a http://127.0.0.1:81/b", "/")),
     ?_assertEqual(read(revproxy, "/ http://h/", "/"), read(revproxy, "\"/\" \"http://h/\"", "/")),
     ?_assertMatch({error, _}, read(revproxy, "/a http://h/ intercept_mod x", "/")),
     ?_assertMatch({error, _}, read(revproxy, "a http://h/", "/")),
     ?_assertMatch({error, _}, read(revproxy, "/a ftp://h/", "/"))].

url_test_() ->
    [?_assertEqual({ok, #{scheme => http, host => "www.example.com", port => undefined, path => ""}}, url("http://www.example.com")),
     ?_assertEqual({ok, #{scheme => https, host => "[::1]", port => 8443, path => "/a?b#c"}}, url("https://[::1]:8443/a?b#c")),
     ?_assertEqual("http://h:81", origin(element(2, url("http://h:81/x"))))]
        ++ [?_assertEqual(error, url(Bad))
            || Bad <- ["", "http://", "ftp://a", "http://a b", "http://a/b c", "http://a\r\nX: y", "http://u@h/", "http://h:0/",
                       "http://h:65536/", "/x"]].

-endif.
