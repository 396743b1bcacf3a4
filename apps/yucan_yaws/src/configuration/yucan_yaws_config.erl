%% SPDX-License-Identifier: Apache-2.0
%% @doc Reads a configuration file in the configuration language of Yaws, with the directives that
%% docs/options.md lists.
%%
%% A line is a setting, or the beginning or end of a block. `#' begins a comment, a backslash at the end of a line continues it on the next line, and
%% double quotes preserve spaces and special characters. yucan_yaws_config_lines parses lines, yucan_yaws_config_value parses values, and
%% yucan_yaws_config_entry parses entries of blocks. yucan_yaws_config_table contains the directives.
%%
%% Everything is checked here, once. All problems in a file are reported together, each with its line and what was expected. A file with a problem is
%% not used at all, so a typo never takes a site down. {@link parse/2} is pure.
-module(yucan_yaws_config).

-export([load/1, read/1, parse/2, format/2]).
-export_type([conf/0, server/0, problem/0, redirect/0, auth/0]).

-type conf() :: #{globals := #{atom() => term()}, servers := [server(), ...]}.
-type server() :: #{name := string(), line := pos_integer(), redirects := [redirect()], auth := [auth()],
                    opaque := [{string(), string()}], ssl := undefined | #{atom() => term()},
                    extra_cgi_vars := [{Dir :: string(), [{string(), string()}]}],
                    extra_response_headers := [{string(), string()}], atom() => term()}.
%% The other keys are the directives of yucan_yaws_config_table.
-type redirect() :: #{path := string(), append := boolean(), status := 100..599,
                      target := none | {absolute, yucan_yaws_config_value:url()} | {local, string()}}.
-type auth() :: #{dir := [string()], realm := string(), users := [{string(), string()}], authmod := module() | undefined,
                  allow := [cidr()], deny := [cidr()]}.
-type cidr() :: all | yucan_cidr:block().
-type problem() :: {Line :: non_neg_integer(), Text :: string()}.
%% Line 0 refers to the entire file.

-record(state, {folder :: file:filename(), problems = [] :: [problem()]}).

%% @doc Returns the options of {@link yucan:start_link/1} for a file, adds the file's module
%% directories to the code path and runs its start modules. If there is a problem, it does none of
%% this. If the file refers to something that does not exist, such as a directory or a module, a
%% warning is logged.
-spec load(file:filename()) -> {ok, map()} | {error, [Line :: unicode:chardata(), ...]}.
load(File) ->
    case read(File) of
        {ok, Conf} ->
            ok = yucan_yaws_options:prepare(Conf),
            lists:foreach(fun(Line) -> yucan_events:warning("~ts", [string:trim(Line, trailing, "\n")]) end, format(File, yucan_yaws_check:problems(Conf))),
            {ok, yucan_yaws_options:options(Conf)};
        {error, Problems} ->
            {error, [string:trim(Line, trailing, "\n") || Line <- format(File, Problems)]}
    end.

%% @doc Reads and checks a file.
-spec read(file:filename()) -> {ok, conf()} | {error, [problem(), ...]}.
read(File) ->
    case file:read_file(File) of
        {ok, Text} -> parse(Text, filename:dirname(filename:absname(File)));
        {error, Reason} -> {error, [{0, "cannot read the file: " ++ file:format_error(Reason)}]}
    end.

%% @doc Formats problems as text, one per line, in the format that compilers use: `FILE:LINE: PROBLEM'.
-spec format(file:filename(), [problem()]) -> [unicode:chardata()].
format(File, Problems) ->
    [case Line of
         0 -> io_lib:format("~ts: ~ts~n", [File, Text]);
         _ -> io_lib:format("~ts:~b: ~ts~n", [File, Line, Text])
     end || {Line, Text} <- Problems].

%% @doc Parses and checks the text of a file. Relative paths in it are relative to `Folder'.
-spec parse(binary(), Folder :: file:filename()) -> {ok, conf()} | {error, [problem(), ...]}.
parse(Text, Folder) ->
    State = #state{folder = Folder},
    {Globals, Servers, #state{problems = Problems}} =
        globals(yucan_yaws_config_lines:lines(Text), yucan_yaws_config_table:defaults(global), [], State),
    Whole = [{0, "no <server NAME> block: nothing to serve"} || Servers =:= [], Problems =:= []],
    case lists:sort(Problems ++ Whole ++ between(Servers)) of
        [] -> {ok, #{globals => Globals, servers => Servers}};
        Bad -> {error, Bad}
    end.

globals([], Map, Servers, State) ->
    {without_lines(Map), lists:reverse(Servers), State};
globals([{Line, {open, "server", Name}} | Rest], Map, Servers, State) ->
    {Server, Left, State2} = server(Line, Name, Rest, State),
    globals(Left, Map, [Server | Servers], State2);
globals([{Line, {set, _, _, _} = Set} | Rest], Map, Servers, State) ->
    {Map2, State2} = set(global, Line, Set, Map, State),
    globals(Rest, Map2, Servers, State2);
globals([{Line, Other} | Rest], Map, Servers, State) ->
    globals(Rest, Map, Servers, unexpected(global, Line, Other, State)).

%% ---- a server

server(Line, Name, Lines, State) ->
    State2 = case server_name(Name) of
                 ok -> State;
                 {error, Expected} -> problem(Line, io_lib:format("server name '~ts': expected ~ts", [Name, Expected]), State)
             end,
    Map = (yucan_yaws_config_table:defaults(server))#{name => string:lowercase(Name), line => Line, redirects => [], auth => [], opaque => [],
                                               ssl => undefined, extra_cgi_vars => [], extra_response_headers => []},
    in_server(Lines, Line, Map, State2).

server_name(Name) ->
    case re:run(Name, "^[A-Za-z0-9._*?:\\[\\]-]{1,255}$", [unicode, {capture, none}]) of
        match -> ok;
        nomatch -> {error, "the name of a host: <server www.example.com>"}
    end.

in_server([], Start, Map, State) ->
    {without_lines(Map), [], problem(Start, "<server> is not closed: expected </server>", State)};
in_server([{_, {close, "server"}} | Rest], _, Map, State) ->
    {without_lines(Map), Rest, State};
%% The end tag of the previous server is missing.
in_server([{Line, {open, "server", _}} | _] = Rest, Start, Map, State) ->
    Text = io_lib:format("<server> inside of the <server> of line ~b: expected </server> before it", [Start]),
    {without_lines(Map), Rest, problem(Line, Text, State)};
in_server([{Line, {open, Name, Argument}} | Rest], Start, Map, State) ->
    case lists:member(Name, yucan_yaws_config_table:blocks(server)) of
        true ->
            {Inner, Left, State2} = inner(Name, Line, Rest, State),
            {Map2, State3} = block(Name, Line, Argument, Inner, Map, State2),
            in_server(Left, Start, Map2, State3);
        false ->
            %% The lines of an unknown block are skipped, because their meaning is unknown.
            {_, Left, State2} = inner(Name, Line, Rest, State),
            in_server(Left, Start, Map, unexpected(server, Line, {open, Name, Argument}, State2))
    end;
in_server([{Line, {set, _, _, _} = Set} | Rest], Start, Map, State) ->
    {Map2, State2} = set(server, Line, Set, Map, State),
    in_server(Rest, Start, Map2, State2);
in_server([{Line, Other} | Rest], Start, Map, State) ->
    in_server(Rest, Start, Map, unexpected(server, Line, Other, State)).

inner(Name, Start, Lines, State) ->
    case lists:splitwith(fun({_, Content}) -> not ends(Name, Content) end, Lines) of
        {Inner, [{_, {close, Name}} | Rest]} -> {Inner, Rest, State};
        {Inner, Rest} -> {Inner, Rest, problem(Start, io_lib:format("<~ts> is not closed: expected </~ts>", [Name, Name]), State)}
    end.

ends(Name, {close, Name}) -> true;
ends(_, {close, "server"}) -> true;
ends(_, {open, "server", _}) -> true;
ends(_, _) -> false.

%% ---- the blocks in a server

block("redirect", _, _, Inner, Map, State) -> entries(redirects, fun yucan_yaws_config_entry:redirect/3, "redirect", Inner, Map, State);
block("opaque", _, _, Inner, Map, State) -> entries(opaque, fun yucan_yaws_config_entry:pair/3, "opaque", Inner, Map, State);
block("extra_response_headers" = Name, _, _, Inner, Map, State) ->
    entries(extra_response_headers, fun yucan_yaws_config_entry:header/3, Name, Inner, Map, State);
block("extra_cgi_vars", Line, Argument, Inner, #{extra_cgi_vars := Before} = Map, State) ->
    {Pairs, State2} = each(fun yucan_yaws_config_entry:pair/3, "extra_cgi_vars", Inner, State),
    case yucan_yaws_config_entry:dir(Argument) of
        {ok, Dir} -> {Map#{extra_cgi_vars := Before ++ [{Dir, Pairs}]}, State2};
        {error, Text} -> {Map, problem(Line, Text, State2)}
    end;
block("ssl", Line, _, Inner, Map, State) ->
    {Ssl, State2} = settings(ssl, Inner, State),
    case Ssl of
        #{certfile := undefined} -> {Map, problem(Line, "<ssl> without a certificate: expected certfile = FILE", State2)};
        #{verify := verify_peer, cacertfile := undefined} -> {Map, problem(Line, "verify = verify_peer without cacertfile: expected the certificates that clients' ones must lead to", State2)};
        #{} -> {Map#{ssl := Ssl}, State2}
    end;
block("auth", Line, _, Inner, #{auth := Before} = Map, State) ->
    {Settings, State2} = settings(auth, Inner, State),
    case yucan_yaws_config_entry:auth(Settings) of
        {ok, Auth} -> {Map#{auth := Before ++ [Auth]}, State2};
        {error, Text} -> {Map, problem(Line, Text, State2)}
    end.

entries(Key, Read, Name, Lines, Map, State) ->
    {Entries, State2} = each(Read, Name, Lines, State),
    {maps:update_with(Key, fun(Before) -> Before ++ Entries end, Map), State2}.

each(Read, Name, Lines, State) ->
    lists:foldl(fun({Line, {set, Key, Sign, Value}}, {Done, S}) ->
                        case Read(Key, Sign, Value) of
                            {ok, Entry} -> {Done ++ [Entry], S};
                            {error, Text} -> {Done, problem(Line, Text, S)}
                        end;
                   ({Line, Other}, {Done, S}) ->
                        Text = io_lib:format("~ts in <~ts>: expected KEY = VALUE", [said(Other), Name]),
                        {Done, problem(Line, Text, S)}
                end, {[], State}, Lines).

settings(Block, Lines, State) ->
    {Map, State2} = lists:foldl(fun({Line, {set, _, _, _} = Set}, {M, S}) -> set(Block, Line, Set, M, S);
                                   ({Line, Other}, {M, S}) -> {M, unexpected(Block, Line, Other, S)}
                                end, {yucan_yaws_config_table:defaults(Block), State}, Lines),
    {without_lines(Map), State2}.

%% ---- a setting

set(Block, Line, {set, Name, Sign, Text}, Map, State) ->
    case yucan_yaws_config_table:directive(Block, Name) of
        {ok, _} when Sign =:= '==' ->
            {Map, problem(Line, io_lib:format("'==' after ~ts: expected '='; only redirects have '=='", [Name]), State)};
        {ok, Directive} ->
            value(Directive, Line, Text, Map, State);
        unknown ->
            {Map, unexpected(Block, Line, {set, Name, Sign, Text}, State)}
    end.

value({Key, Times, Kind}, Line, Text, Map, State) ->
    case yucan_yaws_config_value:read(Kind, Text, State#state.folder) of
        {ok, Value} when Times =:= many ->
            %% A line may contain several values or appmods.
            Values = case Kind of words -> Value; mounts -> Value; _ -> [Value] end,
            {maps:update_with(Key, fun(Before) -> Before ++ Values end, Map), State};
        {ok, Value} ->
            given_once(Key, Line, Map#{Key := Value}, State);
        {error, Expected} ->
            {Map, problem(Line, io_lib:format("~ts = ~ts: expected ~ts", [Key, shown(Text), Expected]), State)}
    end.

given_once(Key, Line, Map, State) ->
    Lines = maps:get(lines, Map, #{}),
    case Lines of
        #{Key := First} ->
            {Map, problem(Line, io_lib:format("~ts is set a second time: it is set in line ~b; expected one", [Key, First]), State)};
        _ ->
            {Map#{lines => Lines#{Key => Line}}, State}
    end.

without_lines(Map) -> maps:remove(lines, Map).

%% ---- problems

unexpected(Block, Line, {set, Name, _, _}, State) ->
    Text = case yucan_yaws_config_table:elsewhere(Name) of
               {ok, Advice} -> io_lib:format("'~ts' is not supported: ~ts", [Name, Advice]);
               none -> io_lib:format("unknown directive '~ts' ~ts: expected ~ts", [Name, where(Block), candidates(Name, Block)])
           end,
    problem(Line, Text, State);
unexpected(Block, Line, Other, State) ->
    problem(Line, io_lib:format("~ts ~ts: expected ~ts", [said(Other), where(Block), candidates("", Block)]), State).

where(global) -> "outside of all blocks";
where(Block) -> "in <" ++ atom_to_list(Block) ++ ">".

said({open, Name, _}) -> "<" ++ Name ++ ">";
said({close, Name}) -> "</" ++ Name ++ ">";
said({set, Name, Sign, _}) -> Name ++ " " ++ atom_to_list(Sign);
said({junk, Text}) -> "'" ++ shown(Text) ++ "'".

shown(Text) when length(Text) > 60 -> lists:sublist(Text, 57) ++ "...";
shown(Text) -> Text.

%% Returns the names that are similar to an unknown one, or all names if there are none.
candidates(Name, Block) ->
    Names = yucan_yaws_config_table:names(Block) -- yucan_yaws_config_table:without_effect(),
    case [Known || Name =/= "", Known <- Names, is_near(Known, Name, 2)] of
        [] -> "one of " ++ lists:append(lists:join(", ", Names));
        Near -> lists:append(lists:join(" or ", Near))
    end.

%% Returns whether the edit distance between the two names is at most `Wrong'.
is_near([C | A], [C | B], Wrong) -> is_near(A, B, Wrong);
is_near([], B, Wrong) -> length(B) =< Wrong;
is_near(A, [], Wrong) -> length(A) =< Wrong;
is_near(_, _, 0) -> false;
is_near([_ | RestA] = A, [_ | RestB] = B, Wrong) ->
    is_near(RestA, B, Wrong - 1) orelse is_near(A, RestB, Wrong - 1) orelse is_near(RestA, RestB, Wrong - 1).

problem(Line, Text, #state{problems = Problems} = State) ->
    State#state{problems = [{Line, lists:flatten(Text)} | Problems]}.

%% ---- problems that concern several lines: servers that serve nothing or conflict with each other

between(Servers) -> lists:append([one(Server) || Server <- Servers]) ++ same_names(Servers) ++ mixed_ports(Servers) ++ mixed_tls(Servers) ++ mixed_logs(Servers).

one(#{line := Line} = Server) -> [{Line, Text} || Text <- nothing_to_serve(Server) ++ no_handler(Server)].

nothing_to_serve(#{docroot := [], redirects := [], appmods := [], revproxy := [], alias := [], script_alias := [], arg_rewrite_mod := undefined,
                   name := Name}) ->
    [text("<server ~ts> has nothing to serve: expected docroot, appmods, revproxy, alias, script_alias or <redirect>", [Name])];
nothing_to_serve(_) -> [].

%% Configurations for Yaws contain `yaws', which only leads to a warning (yucan_yaws_check).
no_handler(#{allowed_scripts := Scripts, name := Name}) ->
    [text("allowed_scripts of <server ~ts> names '~ts': expected php, cgi and fcgi", [Name, Script])
     || Script <- Scripts, not lists:member(Script, ["php", "cgi", "fcgi", "yaws"])].

%% Two servers on the same port need different names, because otherwise no request could reach the second.
same_names(Servers) ->
    [{Line, text("<server ~ts> on port ~b is in line ~b already: expected another name, port or listen address", [Name, Port, First])}
     || {#{name := Name, port := Port, line := Line} = Server, Before} <- with_those_before(Servers), Port =/= 0,
        #{name := Other, port := OtherPort, line := First} = Earlier <- Before,
        Name =:= Other, Port =:= OtherPort, shares_address(Server, Earlier)].

%% All servers on a socket must agree on whether it uses TLS.
mixed_ports(Servers) ->
    [{Line, text("port ~b has <ssl> in one server and none in that of line ~b: expected the same in both", [Port, First])}
     || {#{port := Port, line := Line, ssl := Ssl} = Server, Before} <- with_those_before(Servers), Port =/= 0,
        #{port := OtherPort, line := First, ssl := OtherSsl} = Earlier <- Before,
        Port =:= OtherPort, (Ssl =:= undefined) =/= (OtherSsl =:= undefined), shares_address(Server, Earlier)].

%% A client need not send SNI. It would then have to satisfy only the first server's requirements, but could reach the other servers.
mixed_tls(Servers) ->
    [{Line, text("~ts of <ssl> on port ~b is not that of the server in line ~b: expected the same in both, since a client need not say in TLS which server it wants", [Key, Port, First])}
     || {#{port := Port, line := Line, ssl := #{} = Ssl} = Server, Before} <- with_those_before(Servers), Port =/= 0,
        #{port := OtherPort, line := First, ssl := #{} = Other} = Earlier <- Before, Port =:= OtherPort, shares_address(Server, Earlier),
        Key <- [verify, fail_if_no_peer_cert, depth, protocol_version] ++ [cacertfile || maps:get(verify, Ssl) =:= verify_peer], maps:get(Key, Ssl) =/= maps:get(Key, Other)].

%% All servers must use the same log file.
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
-include_lib("eunit/include/eunit.hrl").

two_domains() ->
    <<"pick_first_virthost_on_nomatch = true\n"
      "ebin_dir = ebin\n"
      "ebin_dir = /usr/lib/x\n"
      "<server localhost>\n"
      "  port = 80\n"
      "  listen = 127.0.0.1\n"
      "  <redirect>\n"
      "    / = http://www.example.com\n"
      "    /x == 301 /y\n"
      "    /gone == 410\n"
      "  </redirect>\n"
      "</server>\n"
      "<server www.Example.com>\n"
      "  port = 80\n"
      "  listen = 127.0.0.1\n"
      "  listen = ::1\n"
      "  docroot = /a /b\n"
      "  serveralias = *.example.com example.net\n"
      "  dir_listings = true\n"
      "  appmods = </trac, trac>\n"
      "  appmods = </, nitro exclude_paths static>\n"
      "  <opaque>\n"
      "    key = a = b\n"
      "  </opaque>\n"
      "  <auth>\n"
      "    dir = /secret\n"
      "    realm = here\n"
      "    user = joe:pass:word\n"
      "    allow = 127.0.0.1 10.0.0.0/8\n"
      "    deny = all\n"
      "  </auth>\n"
      "  <extra_cgi_vars dir='/cgi bin'>\n"
      "    A = 1\n"
      "  </extra_cgi_vars>\n"
      "</server>\n">>.

parse_test() ->
    {ok, #{globals := Globals, servers := [Local, Www]}} = parse(two_domains(), "/etc"),
    ?assertMatch(#{pick_first_virthost_on_nomatch := true, ebin_dir := ["/etc/ebin", "/usr/lib/x"]}, Globals),
    ?assertMatch(#{name := "localhost", port := 80, docroot := [],
                   redirects := [#{path := "/", append := true, status := 302, target := {absolute, #{host := "www.example.com"}}},
                                 #{path := "/x", append := false, status := 301, target := {local, "/y"}},
                                 #{path := "/gone", status := 410, target := none}]}, Local),
    ?assertMatch(#{name := "www.example.com", listen := [{127, 0, 0, 1}, {0, 0, 0, 0, 0, 0, 0, 1}], docroot := ["/a", "/b"],
                   serveralias := ["*.example.com", "example.net"], dir_listings := true,
                   appmods := [#{module := trac}, #{module := nitro, exclude := ["/static"]}],
                   opaque := [{"key", "a = b"}],
                   auth := [#{dir := ["/secret"], realm := "here", users := [{"joe", "pass:word"}],
                              allow := [_, _], deny := [all]}],
                   extra_cgi_vars := [{"/cgi bin", [{"A", "1"}]}]}, Www).

problems_test_() ->
    Server = fun(Text) -> "<server a>\ndocroot = /tmp\n" ++ Text ++ "\n</server>\n" end,
    [{Text, ?_assertEqual({error, Expected}, parse(list_to_binary(Text), "/etc"))}
     || {Text, Expected} <-
            [{"", [{0, "no <server NAME> block: nothing to serve"}]},
             {Server("porrt = 80"), [{3, "unknown directive 'porrt' in <server>: expected port"}]},
             {Server("port = x"), [{3, "port = x: expected a number from 0 to 65535"}]},
             {Server("dav = true"), [{3, "'dav' is not supported: this server has no WebDAV"}]},
             {Server("port = 1\nport = 2"), [{4, "port is set a second time: it is set in line 3; expected one"}]},
             {Server("port == 1"), [{3, "'==' after port: expected '='; only redirects have '=='"}]},
             {Server("<redirect>\n/a = ftp://x\n</redirect>"),
              [{4, "redirect /a = ftp://x: expected [STATUS] URL, [STATUS] /PATH or STATUS"}]},
             {Server("<redirect>\n/a = /b"), [{3, "<redirect> is not closed: expected </redirect>"}]},
             {Server("<auth>\nuser = joe\n</auth>"), [{3, "user = joe: expected NAME:PASSWORD or NAME:{HASH}..."}]},
             {Server("<ssl>\n</ssl>"), [{3, "<ssl> without a certificate: expected certfile = FILE"}]},
             {"<server a>\ndocroot = /tmp\n", [{1, "<server> is not closed: expected </server>"}]},
             {"<server a>\ndocroot = /tmp\n<server b>\ndocroot = /tmp\n</server>\n",
              [{3, "<server> inside of the <server> of line 1: expected </server> before it"}]},
             {"<server a b>\ndocroot = /tmp\n</server>",
              [{1, "server name 'a b': expected the name of a host: <server www.example.com>"}]},
             {Server("<foo>\nbar = 1\n</foo>"),
              [{3, "<foo> in <server>: expected one of " ++ lists:append(lists:join(", ", yucan_yaws_config_table:names(server)))}]}]].

all_problems_at_once_test() ->
    {error, Problems} = parse(<<"a = 1\n<server x>\ndocroot = /tmp\nport = -1\nlisten = here\nwhat\n</server>\n</server>\n">>, "/"),
    ?assertEqual([1, 4, 5, 6, 8], [Line || {Line, _} <- Problems]).

format_test() ->
    ?assertEqual("x.conf:3: bad\nx.conf: all bad\n", lists:flatten(format("x.conf", [{3, "bad"}, {0, "all bad"}]))).

checked(Text) -> parse(iolist_to_binary(Text), "/").

between_test_() ->
    [?_assertMatch({error, [{1, "<server a> has nothing to serve" ++ _}]}, checked("<server a>\n</server>")),
     ?_assertMatch({error, [{5, "<server a> on port 80 is in line 1 already" ++ _}]},
                   checked("<server a>\nport=80\ndocroot=/t\n</server>\n<server A>\nport=80\ndocroot=/t\n</server>")),
     ?_assertMatch({ok, _}, checked("<server a>\nport=80\nlisten=127.0.0.1\ndocroot=/t\n</server>\n"
                                  "<server a>\nport=80\nlisten=127.0.0.2\ndocroot=/t\n</server>")),
     ?_assertMatch({error, [{5, "port 80 has <ssl>" ++ _}]},
                   checked("<server a>\nport=80\ndocroot=/t\n</server>\n<server b>\nport=80\ndocroot=/t\n<ssl>\ncertfile=/c\n</ssl>\n</server>")),
     [begin
          {error, Problems} = checked(["<server a>\nport=80\ndocroot=/t\n<ssl>\ncertfile=/c\n</ssl>\n</server>\n<server b>\nport=80\ndocroot=/t\n<ssl>\ncertfile=/c\n", Line, "\n</ssl>\n</server>"]),
          ?_assertMatch({Line, [_]}, {Line, [Text || {8, Text} <- Problems, lists:prefix(Key ++ " of <ssl> on port 80 is not", Text)]})
      end || {Key, Line} <- [{"verify", "cacertfile=/d\nverify=verify_peer"}, {"depth", "depth=2"}, {"protocol_version", "protocol_version=tlsv1.3"}, {"cacertfile", "cacertfile=/d\nverify=verify_peer"}]],
     ?_assertMatch({error, [{4, "verify = verify_peer without" ++ _}]}, checked("<server a>\nport=80\ndocroot=/t\n<ssl>\ncertfile=/c\nverify=verify_peer\n</ssl>\n</server>")),
     ?_assertMatch({error, [{1, "allowed_scripts of <server a> names 'rb'" ++ _}]},
                   checked("<server a>\ndocroot=/t\nallowed_scripts = php rb\n</server>"))].

-endif.
