%% SPDX-License-Identifier: Apache-2.0
%% @doc The values of a configuration file: what kinds there are, how each is read, and what to say of one that is not valid.
-module(yucan_yaws_config_value).

-export([read/3]).
-export_type([kind/0, mount/0, php_handler/0, revproxy/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-type kind() :: text | boolean | module | path | paths | words | address | host_port | mounts | php_handler | revproxy | expires
              | url | {integer, Min :: integer(), Max :: integer()} | {one_of, [atom()]} | {none_or, atom(), kind()}.
-type mount() :: #{path := string(), module := module(), exclude := [string()]}.
%% An appmod. A path without a leading slash stands for that part anywhere in a path.
-type php_handler() :: {cgi, Program :: string()} | {fcgi, yucan_fcgi_address()} | {extern, node(), module(), atom()}.
-type yucan_fcgi_address() :: {inet:hostname() | inet:ip_address(), inet:port_number()} | {local, file:filename()}.
-type revproxy() :: #{prefix := string(), url := yucan_yaws_config_url:url()}.

%% @doc Reads a value. A relative path belongs to the folder, which is that of the file.
-spec read(kind(), Text :: string(), Folder :: file:filename()) -> {ok, term()} | {error, Expected :: string()}.
read(text, Text, _) -> {ok, Text};
read(boolean, Text, _) -> one_of([true, false], Text);
read({one_of, Atoms}, Text, _) -> one_of(Atoms, Text);
read({none_or, Atom, Kind}, Text, Folder) -> none_or(Atom, Kind, Text, Folder);
read({integer, Min, Max}, Text, _) -> integer(Text, Min, Max);
read(module, Text, _) -> module(Text);
read(words, Text, _) -> {ok, string:lexemes(Text, " \t,")};
read(path, Text, Folder) -> path(Text, Folder);
read(paths, Text, Folder) -> paths(string:lexemes(Text, " \t"), Folder);
read(address, Text, _) -> address(Text);
read(host_port, Text, _) -> host_port(Text);
read(url, Text, _) -> url(Text);
read(mounts, Text, _) -> mounts(string:trim(Text), []);
read(php_handler, Text, Folder) -> php_handler(Text, Folder);
read(revproxy, Text, _) -> revproxy(string:lexemes(Text, " \t"));
read(expires, Text, _) -> expires(string:lexemes(Text, " \t")).

one_of(Atoms, Text) ->
    case [Atom || Atom <- Atoms, atom_to_list(Atom) =:= Text] of
        [Atom] -> {ok, Atom};
        [] -> {error, one_of_text(Atoms)}
    end.

one_of_text([One]) -> atom_to_list(One);
one_of_text(Atoms) ->
    lists:flatten([lists:join(", ", [atom_to_list(A) || A <- lists:droplast(Atoms)]), " or ", atom_to_list(lists:last(Atoms))]).

none_or(Atom, Kind, Text, Folder) ->
    case {atom_to_list(Atom), read(Kind, Text, Folder)} of
        {Text, _} -> {ok, Atom};
        {_, {ok, Value}} -> {ok, Value};
        {_, {error, Expected}} -> {error, atom_to_list(Atom) ++ " or " ++ Expected}
    end.

integer(Text, Min, Max) ->
    case string:to_integer(Text) of
        {Number, ""} when is_integer(Number), Number >= Min, Number =< Max -> {ok, Number};
        _ -> {error, lists:flatten(io_lib:format("a number from ~b to ~b", [Min, Max]))}
    end.

%% Names become atoms: a file of a configuration holds few.
module(Text) ->
    case re:run(Text, "^[a-z][A-Za-z0-9_@]{0,127}$", [unicode, {capture, none}]) of
        match -> {ok, list_to_atom(Text)};
        nomatch -> {error, "the name of an Erlang module"}
    end.

path("", _) -> {error, "a path"};
path(Text, Folder) ->
    case lists:member(0, Text) of
        true -> {error, "a path"};
        false -> {ok, clean(filename:absname(Text, Folder))}
    end.

%% Without `.' and `..', as far as that can be said without looking.
clean(Path) -> filename:join(lists:reverse(lists:foldl(fun clean/2, [], filename:split(Path)))).

clean(".", Done) -> Done;
clean("..", [_, _ | _] = Done) -> tl(Done);
clean("..", Done) -> Done;
clean(Part, Done) -> [Part | Done].

paths([], _) -> {error, "one or more paths, separated by blanks"};
paths(Words, Folder) ->
    Read = [path(Word, Folder) || Word <- Words],
    case [Bad || {error, Bad} <- Read] of
        [] -> {ok, [Path || {ok, Path} <- Read]};
        [Bad | _] -> {error, Bad}
    end.

address(Text) ->
    case inet:parse_strict_address(unbracketed(Text)) of
        {ok, Address} -> {ok, Address};
        {error, _} -> {error, "an IP address, such as 127.0.0.1, 0.0.0.0 or ::1"}
    end.

unbracketed("[" ++ Rest) -> string:trim(Rest, trailing, "]");
unbracketed(Text) -> Text.

host_port("unix:" ++ Path) when Path =/= "" -> {ok, {local, Path}};
host_port("/" ++ _ = Path) -> {ok, {local, Path}};
host_port(Text) ->
    case string:split(Text, ":", trailing) of
        [Host, Digits] when Host =/= "" ->
            case {integer(Digits, 1, 65535), address(Host)} of
                {{ok, Port}, {ok, Address}} -> {ok, {Address, Port}};
                {{ok, Port}, _} -> named_host(Host, Port);
                _ -> {error, host_port_text()}
            end;
        _ -> {error, host_port_text()}
    end.

named_host(Host, Port) ->
    case re:run(Host, "^[A-Za-z0-9]([A-Za-z0-9.-]{0,252})$", [unicode, {capture, none}]) of
        match -> {ok, {Host, Port}};
        nomatch -> {error, host_port_text()}
    end.

host_port_text() -> "HOST:PORT, or unix:PATH of a socket".

url(Text) ->
    case yucan_yaws_config_url:read(Text) of
        {ok, Url} -> {ok, Url};
        error -> {error, yucan_yaws_config_url:expected()}
    end.

%% ---- appmods: `</path, module exclude_paths a b> module'

mounts("", []) -> {error, mounts_text()};
mounts("", Done) -> {ok, lists:reverse(Done)};
mounts("<" ++ Rest, Done) ->
    case string:split(Rest, ">") of
        [Inner, More] -> mount(string:split(Inner, ","), More, Done);
        [_] -> {error, mounts_text()}
    end;
mounts(Text, Done) ->
    {Word, Rest} = string:take(Text, " \t,<", true),
    case module(Word) of
        {ok, Module} -> mounts(string:trim(Rest, leading, " \t,"), [#{path => Word, module => Module, exclude => []} | Done]);
        {error, _} -> {error, mounts_text()}
    end.

mount([Path, Words], More, Done) ->
    case {string:trim(Path), string:lexemes(Words, " \t,")} of
        {"", _} -> {error, mounts_text()};
        {_, [_, "exclude_paths"]} -> {error, mounts_text()};
        {Trimmed, [Name]} -> mount(Trimmed, Name, [], More, Done);
        {Trimmed, [Name, "exclude_paths" | Exclude]} -> mount(Trimmed, Name, Exclude, More, Done);
        _ -> {error, mounts_text()}
    end;
mount(_, _, _) ->
    {error, mounts_text()}.

mount(Path, Name, Exclude, More, Done) ->
    case module(Name) of
        {ok, Module} ->
            Mount = #{path => Path, module => Module, exclude => ["/" ++ string:trim(E, both, "/") || E <- Exclude]},
            mounts(string:trim(More, leading, " \t,"), [Mount | Done]);
        {error, _} ->
            {error, mounts_text()}
    end.

mounts_text() -> "</path, module> or </path, module exclude_paths a b>, several of them, or names of modules".

%% ---- php_handler: `<cgi, PROGRAM>', `<fcgi, HOST:PORT>', `<extern, [NODE:]MODULE:FUNCTION>'

php_handler(Text, Folder) ->
    case [string:trim(Part) || Part <- string:split(string:trim(Text, both, "<> \t"), ",")] of
        ["cgi", Program] when Program =/= "" -> {ok, {cgi, program(Program, Folder)}};
        ["fcgi", Address] -> fcgi_handler(host_port(Address));
        ["extern", Function] -> extern(string:lexemes(Function, ":"));
        _ -> {error, php_text()}
    end.

fcgi_handler({ok, Address}) -> {ok, {fcgi, Address}};
fcgi_handler({error, _}) -> {error, php_text()}.

%% A bare name is looked for on the PATH when it is used.
program(Name, Folder) ->
    case lists:member($/, Name) of
        true -> filename:absname(Name, Folder);
        false -> Name
    end.

extern([Module, Function]) -> extern([atom_to_list(node()), Module, Function]);
extern([Node, Module, Function]) ->
    case {module(Module), module(Function)} of
        {{ok, M}, {ok, F}} -> {ok, {extern, list_to_atom(Node), M, F}};
        _ -> {error, php_text()}
    end;
extern(_) -> {error, php_text()}.

php_text() -> "<cgi, PROGRAM>, <fcgi, HOST:PORT>, <fcgi, unix:PATH> or <extern, [NODE:]MODULE:FUNCTION>".

revproxy(["/" ++ _ = Prefix, Text]) ->
    case yucan_yaws_config_url:read(Text) of
        {ok, #{scheme := http} = Url} -> {ok, #{prefix => Prefix, url => Url}};
        _ -> {error, revproxy_text()}
    end;
revproxy(_) -> {error, revproxy_text()}.

revproxy_text() -> "/PREFIX http://HOST[:PORT][/PATH]".

%% `image/png|access+3600': seconds after the access.
expires([]) -> {error, expires_text()};
expires(Words) ->
    Read = [re:run(Word, "^([^|]+)\\|access\\+([0-9]{1,9})$", [unicode, {capture, all_but_first, list}]) || Word <- Words],
    case lists:member(nomatch, Read) of
        true -> {error, expires_text()};
        false -> {ok, [{Type, list_to_integer(Seconds)} || {match, [Type, Seconds]} <- Read]}
    end.

expires_text() -> "TYPE|access+SECONDS, several of them separated by blanks".

-ifdef(TEST).

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
             {address, "127.0.0.1", {ok, {127, 0, 0, 1}}},
             {address, "[::1]", {ok, {0, 0, 0, 0, 0, 0, 0, 1}}},
             {host_port, "php:9000", {ok, {"php", 9000}}},
             {host_port, "[::1]:9000", {ok, {{0, 0, 0, 0, 0, 0, 0, 1}, 9000}}},
             {host_port, "unix:/run/php.sock", {ok, {local, "/run/php.sock"}}},
             {host_port, "php", {error, "HOST:PORT, or unix:PATH of a socket"}},
             {expires, "image/png|access+60", {ok, [{"image/png", 60}]}}]].

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
     ?_assertEqual({ok, {fcgi, {local, "/run/php/fpm.sock"}}}, read(php_handler, "<fcgi, unix:/run/php/fpm.sock>", "/")),
     ?_assertEqual({ok, {extern, node(), m, f}}, read(php_handler, "<extern, m:f>", "/")),
     ?_assertMatch({error, _}, read(php_handler, "<cgi>", "/")),
     ?_assertMatch({error, _}, read(php_handler, "<fcgi, x>", "/")),
     ?_assertMatch({ok, #{prefix := "/a"}}, read(revproxy, "/a http://127.0.0.1:81/b", "/")),
     ?_assertMatch({error, _}, read(revproxy, "/a http://h/ intercept_mod x", "/")),
     ?_assertMatch({error, _}, read(revproxy, "a http://h/", "/")),
     ?_assertMatch({error, _}, read(revproxy, "/a ftp://h/", "/"))].

-endif.
