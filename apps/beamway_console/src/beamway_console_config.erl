%% SPDX-License-Identifier: Apache-2.0
%% @doc The options of a console, which are validated once. All functions are pure, except that the file with the token is read.
-module(beamway_console_config).

-export([read/1, url/2, warnings/1, table/0]).
-export_type([config/0]).

-type config() :: #{ip := inet:ip_address(), port := inet:port_number(), secret => none | binary(), allow := boolean(), interval_ms := pos_integer(),
                    nodes := connected | [node()], pipes := file:filename(), without_effect := [atom()], tls := none | #{certfile | keyfile => file:filename()}}.
%% Only the guard may get `secret', because the states and arguments of processes appear in logs.

-define(SECRET_LEAST, 12).
-define(SECRET_MOST, 1024).
%% The options of a page that version 0.3.0 has removed. They will be unknown in 0.4.0.
-define(WITHOUT_EFFECT, [command, results]).

-include_lib("kernel/include/file.hrl").

%% @doc Validates options that are given as a property list.
-spec read([{atom(), term()}]) -> {ok, config()} | {error, Text :: binary()}.
read(Given) ->
    try
        Options = maps:from_list(Given),
        Known = [Name || {Name, _, _, _, _} <- table()],
        _ = [bad("unknown option ~ts; known are ~ts", [Key, lists:join(", ", [atom_to_list(K) || K <- Known])]) || Key <- maps:keys(Options) -- (Known ++ ?WITHOUT_EFFECT)],
        {ok, checked(Options)}
    catch
        throw:{bad, Format, Arguments} -> {error, unicode:characters_to_binary(io_lib:format(Format, Arguments))}
    end.

%% @doc Returns the rows of the reference of all options (`scripts/options').
-spec table() -> [{Option :: atom(), Default :: term(), Expected :: string(), TakesEffect :: string(), Effect :: string()}].
table() ->
    [{Name, Default, Expected, "start of the console", Effect} || {Name, Default, Expected, Effect} <- options()].

options() ->
    [{ip, {127, 0, 0, 1}, "an address as a tuple", "Address on which the console listens."},
     {port, 8090, "0 to 65535", "Port on which it listens. 0 takes any free port."},
     {token_file, none, "the name of a file", "File with a token or password of 12 to 1024 characters, which only its owner may read. It is required if other hosts can reach the address."},
     {certfile, none, "the name of a file", "Certificate. Together with keyfile it makes the console use HTTPS."},
     {keyfile, none, "the name of a file", "Key of the certificate."},
     {allow, false, "true or false", "Whether browsers may start measurements, and send queries that call code on the nodes. Otherwise they can only look."},
     {interval_ms, 1000, "100 to 60000", "How often nodes send their samples, in milliseconds."},
     {nodes, connected, "connected, or a list of nodes", "With a list, the console connects to these nodes and shows every node that one of them knows."},
     {pipes, none, "the name of a file", "Directory in which running pipes report their progress. none means the default of rdpipe."}].

default(Key) -> element(2, lists:keyfind(Key, 1, options())).

expected(Key) -> element(3, lists:keyfind(Key, 1, options())).

-spec bad(io:format(), [term()]) -> no_return().
bad(Format, Arguments) -> throw({bad, Format, Arguments}).

checked(Options) ->
    Ip = one(ip, Options, fun inet:is_ip_address/1),
    Secret = secret(Options),
    Secret =/= none orelse is_loopback(Ip) orelse
        bad("ip is ~ts, which others can reach; give token_file, a file with a secret (umask 077; openssl rand -hex 32 > FILE)", [inet:ntoa(Ip)]),
    #{ip => Ip, secret => Secret, tls => tls(Options),
      port => one(port, Options, fun(P) -> is_integer(P) andalso P >= 0 andalso P < 65536 end),
      allow => one(allow, Options, fun erlang:is_boolean/1),
      interval_ms => one(interval_ms, Options, fun(I) -> is_integer(I) andalso I >= 100 andalso I =< 60000 end),
      nodes => one(nodes, Options, fun is_nodes/1),
      pipes => text(pipes, Options, beamway_console_pipes:default_folder()),
      without_effect => maps:keys(maps:with(?WITHOUT_EFFECT, Options))}.

one(Key, Options, Is) ->
    Value = maps:get(Key, Options, default(Key)),
    Is(Value) orelse bad("~ts is ~0tP; ~ts is expected", [Key, Value, 12, expected(Key)]),
    Value.

text(Key, Options, Default) ->
    Value = maps:get(Key, Options, Default),
    try unicode:characters_to_list(Value) of
        [_ | _] = Text -> Text;
        _ -> bad("~ts is ~0tP; the name of a file is expected", [Key, Value, 12])
    catch
        error:badarg -> bad("~ts is ~0tP; the name of a file is expected", [Key, Value, 12])
    end.

is_nodes(connected) -> true;
is_nodes(Nodes) -> is_list(Nodes) andalso lists:all(fun is_atom/1, Nodes).

tls(#{certfile := Certificate, keyfile := Key} = Options) ->
    _ = [text(Name, Options, "") || Name <- [certfile, keyfile]],
    #{certfile => Certificate, keyfile => Key};
tls(#{certfile := _}) -> bad("certfile is set without keyfile", []);
tls(#{keyfile := _}) -> bad("keyfile is set without certfile", []);
tls(#{}) -> none.

secret(#{token_file := _} = Options) ->
    File = text(token_file, Options, ""),
    case file:read_file_info(File) of
        {ok, #file_info{type = regular, mode = Mode}} when Mode band 8#077 =:= 0 -> of_file(File, file:read_file(File));
        {ok, #file_info{type = regular}} -> bad("token_file ~ts can be read by others; chmod 600 it", [File]);
        {ok, _} -> bad("token_file ~ts is not a file", [File]);
        {error, Reason} -> bad("token_file ~ts: ~ts", [File, file:format_error(Reason)])
    end;
secret(#{}) -> none.

of_file(File, {ok, Bytes}) ->
    case string:trim(Bytes) of
        Secret when byte_size(Secret) >= ?SECRET_LEAST, byte_size(Secret) =< ?SECRET_MOST -> Secret;
        Secret -> bad("token_file ~ts holds ~b characters; ~b to ~b are expected", [File, byte_size(Secret), ?SECRET_LEAST, ?SECRET_MOST])
    end;
of_file(File, {error, Reason}) -> bad("token_file ~ts: ~ts", [File, file:format_error(Reason)]).

is_loopback({127, _, _, _}) -> true;
is_loopback({0, 0, 0, 0, 0, 0, 0, 1}) -> true;
is_loopback(_) -> false.

%% @doc Returns the address for a browser.
-spec url(config(), inet:port_number()) -> binary().
url(#{ip := Ip, tls := Tls}, Port) ->
    Scheme = case Tls of none -> "http"; _ -> "https" end,
    unicode:characters_to_binary(io_lib:format("~s://~s:~b/", [Scheme, host(Ip), Port])).

host({127, 0, 0, 1}) -> "localhost";
host({0, 0, 0, 0}) -> element(2, inet:gethostname());
host({0, 0, 0, 0, 0, 0, 0, 0}) -> element(2, inet:gethostname());
host(Ip) when tuple_size(Ip) =:= 8 -> [$[, inet:ntoa(Ip), $]];
host(Ip) -> inet:ntoa(Ip).

%% @doc Returns warnings for the operator about these options.
-spec warnings(config()) -> [unicode:chardata()].
warnings(#{ip := Ip, tls := Tls, allow := Allow, secret := Secret, without_effect := Names}) ->
    [["it listens on ", inet:ntoa(Ip), " without TLS: token and figures pass the network as they are; give certfile and keyfile"] || Tls =:= none, not is_loopback(Ip)]
        ++ ["allow without a token: every account on this host can start measurements and call code of the nodes; give token_file if others have one" || Allow, Secret =:= none]
        ++ [["the option ", atom_to_list(Name), " has no effect any more, because the console does not start benchmarks; use beamway bench"] || Name <- Names].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

defaults_test() ->
    {ok, Config} = read([]),
    ?assertMatch(#{ip := {127, 0, 0, 1}, port := 8090, secret := none, allow := false, interval_ms := 1000, tls := none}, Config),
    ?assertEqual(<<"http://localhost:8090/">>, url(Config, 8090)),
    ?assertEqual([], warnings(Config)),
    ?assertMatch(["allow without a token" ++ _], warnings(Config#{allow := true})),
    ?assertEqual([], warnings(Config#{allow := true, secret := <<"0123456789ab">>})),
    {ok, Old} = read([{results, "r"}, {command, "c"}]),
    ?assertMatch([["the option ", "command" | _], ["the option ", "results" | _]], warnings(Old)).

bad_test_() ->
    [{Expected, fun() -> {error, Text} = read(Given), ?assertNotEqual(nomatch, string:find(Text, Expected)) end} || {Expected, Given} <-
        [{"unknown option colour", [{colour, 1}]}, {"port is x; 0 to 65535", [{port, x}]}, {"allow is 1; true or false", [{allow, 1}]},
         {"token_file", [{ip, {0, 0, 0, 0}}]}, {"interval_ms is 5;", [{interval_ms, 5}]}, {"without keyfile", [{certfile, "x"}]},
         {"no such file", [{token_file, "/nowhere/x"}]}, {"nodes is 7", [{nodes, 7}]}, {"ip is 7", [{ip, 7}]}, {"pipes is 7", [{pipes, 7}]}]].

token_file_test() ->
    "/" ++ _ = Folder = string:trim(os:cmd("mktemp -d")),
    File = filename:join(Folder, "token"),
    ok = file:write_file(File, "0123456789abcdef\n"),
    ok = file:change_mode(File, 8#644),
    {error, Text} = read([{token_file, File}]),
    ?assertNotEqual(nomatch, string:find(Text, "can be read by others")),
    ok = file:change_mode(File, 8#600),
    {ok, #{secret := <<"0123456789abcdef">>} = Config} = read([{token_file, File}, {ip, {0, 0, 0, 0}}]),
    ?assertMatch([_], warnings(Config)),
    ok = file:write_file(File, "short"),
    ?assertMatch({error, _}, read([{token_file, File}])),
    ok = file:del_dir_r(Folder).
-endif.
