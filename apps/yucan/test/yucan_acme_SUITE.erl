%% SPDX-License-Identifier: Apache-2.0
%% @doc Obtains certificates from a real ACME server for tests, pebble, with pebble-challtestsrv as its DNS server; both are in Debian's package
%% pebble.
-module(yucan_acme_SUITE).
-behaviour(yucan_handler).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2, end_per_testcase/2]).
-export([bad_options/1, json/1, bad_certificates/1, killed/1, tls_alpn/1, http/1, changed/1, renewed/1, refused/1, handle/2]).

-include_lib("common_test/include/ct.hrl").
-include_lib("public_key/include/public_key.hrl").

suite() -> [{timetrap, {minutes, 3}}].

all() -> [bad_options, json, bad_certificates, killed, tls_alpn, http, changed, renewed, refused].

init_per_suite(Config) -> yucan_test_server:start_application(Config).

end_per_suite(Config) -> yucan_test_server:stop_application(Config).

init_per_testcase(Case, Config) when Case =:= bad_options; Case =:= json; Case =:= bad_certificates; Case =:= killed -> Config;
init_per_testcase(Case, Config) ->
    case [Program || Program <- ["pebble", "pebble-challtestsrv"], os:find_executable(Program) =:= false] of
        [] -> authority(Case, Config);
        [Program | _] -> {skip, "no " ++ Program}
    end.

end_per_testcase(_, Config) ->
    [port_close(Port) || Port <- proplists:get_value(programs, Config, [])],
    yucan_test_server:stop_all().

%% Starts a separate ACME server for each case. It validates on these two ports, whatever the host name is.
authority(Case, Config) ->
    Folder = filename:join(?config(priv_dir, Config), atom_to_list(Case)),
    ok = filelib:ensure_path(Folder),
    [Directory, Management, Dns, Http, Tls] = Ports = [test_support:free_port() || _ <- lists:seq(1, 5)],
    5 = length(lists:usort(Ports)),
    {Certificate, Key, Root} = localhost(Folder),
    Settings = filename:join(Folder, "pebble.json"),
    ok = file:write_file(Settings, io_lib:format(
        "{\"pebble\": {\"listenAddress\": \"127.0.0.1:~b\", \"managementListenAddress\": \"127.0.0.1:~b\", \"certificate\": \"~ts\", \"privateKey\": \"~ts\","
        " \"httpPort\": ~b, \"tlsPort\": ~b, \"certificateValidityPeriod\": ~b}}",
        [Directory, Management, Certificate, Key, Http, Tls, case Case of renewed -> 24; _ -> 1000000 end])),
    Programs = [program("pebble-challtestsrv", ["-defaultIPv6", "", "-defaultIPv4", "127.0.0.1", "-dns01", address(Dns), "-http01", "", "-https01", "", "-tlsalpn01", "",
                                                "-management", address(test_support:free_port())], []),
                %% Except where time matters, the server rejects a quarter of the valid nonces, so that the client has to repeat requests.
                program("pebble", ["-config", Settings, "-dnsserver", address(Dns)], [{"PEBBLE_VA_NOSLEEP", "1"}, {"PEBBLE_WFE_NONCEREJECT", case Case of renewed -> "0"; _ -> "25" end}])],
    wait(fun() -> listens(Directory) end),
    Options = (options(Folder, Directory, Root))#{contact => [<<"mailto:admin@example.test">>]},
    [{programs, Programs}, {options, Options}, {http, Http}, {tls, Tls} | Config].

options(Folder, Port, Root) ->
    #{directory => iolist_to_binary(["https://localhost:", integer_to_list(Port), "/dir"]), cacertfile => Root, folder => filename:join(Folder, "certificates")}.

%% Returns the files for localhost: the certificate, its key, and the issuer's certificate.
localhost(Folder) ->
    Curve = {key, {namedCurve, ?secp256r1}},
    #{server_config := Own} = public_key:pkix_test_data(#{
        server_chain => #{root => [Curve], intermediates => [], peer => [Curve, {extensions, [#'Extension'{extnID = ?'id-ce-subjectAltName', extnValue = [{dNSName, "localhost"}], critical = false}]}]},
        client_chain => #{root => [Curve], intermediates => [], peer => [Curve]}}),
    File = fun(Name, Entries) -> Path = filename:join(Folder, Name), ok = file:write_file(Path, public_key:pem_encode(Entries)), Path end,
    {KeyType, KeyDer} = proplists:get_value(key, Own),
    {File("localhost.pem", [{'Certificate', proplists:get_value(cert, Own), not_encrypted}]), File("localhost.key", [{KeyType, KeyDer, not_encrypted}]),
     File("root.pem", [{'Certificate', Der, not_encrypted} || Der <- proplists:get_value(cacerts, Own)])}.

address(Port) -> "127.0.0.1:" ++ integer_to_list(Port).

%% The program is killed when its port closes, because `cat' then reaches the end of its input.
program(Name, Arguments, Environment) ->
    open_port({spawn_executable, "/bin/sh"}, [{args, ["-c", "\"$@\" & pid=$!; cat >/dev/null; kill $pid", "sh", os:find_executable(Name) | Arguments]}, {env, Environment}, stderr_to_stdout]).

listens(Port) ->
    case gen_tcp:connect({127, 0, 0, 1}, Port, []) of
        {ok, Socket} -> gen_tcp:close(Socket), true;
        {error, _} -> false
    end.

wait(Function) -> beamway_peer:wait_until(Function, 30000).

bad_options(_) ->
    [begin
         {'EXIT', {{bad_options, Text}, _}} = catch yucan_acme:tls(Options),
         {_, _} = binary:match(Text, Part)
     end || {Options, Part} <- [
         {#{}, <<"names is empty">>}, {#{names => [<<"a.org">>]}, <<"folder is missing">>}, {#{names => [<<"../a">>], folder => "x"}, <<"names has <<\"../a\">>">>},
         {#{names => [<<"a.org">>], folder => "x", challenge => dns}, <<"challenge is dns; http or tls_alpn is expected">>},
         {#{names => [<<"a.org">>], folder => "x", colour => red}, <<"unknown option colour">>},
         {#{names => [<<"a.org">>], folder => "x", cacertfile => "/no/such/file"}, <<"/no/such/file">>}]].

json(_) ->
    {ok, #{<<"a">> := [1, -2.5e3, true, null, #{}, []], <<"b">> := <<"x\"\\/\n\x{e9}\x{1F600}"/utf8>>}} =
        yucan_acme_json:decode(<<" {\"a\" : [1, -2.5e3, true, null, {}, []],\"b\":\"x\\\"\\\\\\/\\n\\u00e9\\ud83d\\ude00\"} ">>),
    [error = yucan_acme_json:decode(Text) || Text <- [<<>>, <<"{">>, <<"[1,]">>, <<"{\"a\":1,}">>, <<"\"\n\"">>, <<"1 2">>, <<"\"\\x\"">>, <<"nul">>, binary:copy(<<"[">>, 100000)]],
    <<"{\"a\":[\"b\",1,true]}">> = iolist_to_binary(yucan_acme_json:encode(#{<<"a">> => [<<"b">>, 1, true]})).

%% An existing certificate is kept if the authority's last response is truncated, empty, or for a different key.
bad_certificates(Config) ->
    Folder = filename:join(?config(priv_dir, Config), "bad_certificates"),
    ok = filelib:ensure_path(Folder),
    {Certificate, Key, Root} = localhost(Folder),
    {ok, Other} = file:read_file(Certificate),
    [begin
         Port = yucan_test_server:start(yucan_acme_authority, #{listen => [#{port => 0, tls => #{certfile => Certificate, keyfile => Key}}], handler => {?MODULE, {counters:new(1, []), Answer}}}),
         Options = (options(Folder, Port, Root))#{names => [<<"h.test">>]},
         [{certfile, File} | _] = yucan_acme:tls(Options),
         {ok, Before} = file:read_file(File),
         {ok, Pid} = yucan_acme:start_link(Options),
         Text = failed(Pid),
         {Text, {_, _}} = {Text, binary:match(Text, Part)},
         {ok, Before} = file:read_file(File),
         ok = gen_server:stop(Pid),
         ok = yucan:stop(yucan_acme_authority)
     end || {Answer, Part} <- [
         {{200, [{<<"content-length">>, 5000}], {stream, fun(Write) -> Write(Other) end}}, <<"where 5000 were announced">>},
         {{200, [], <<>>}, <<"no certificate">>},
         {{200, [], Other}, <<"another key">>}]].

%% Three orders: the first is killed, the second is stopped together with its server, and the third
%% is killed together with its server. Nothing is left behind. This authority never validates
%% anything.
killed(Config) ->
    Folder = filename:join(?config(priv_dir, Config), "killed"),
    ok = filelib:ensure_path(Folder),
    {Certificate, Key, Root} = localhost(Folder),
    Port = yucan_test_server:start(yucan_acme_authority, #{listen => [#{port => 0, tls => #{certfile => Certificate, keyfile => Key}}], handler => {?MODULE, {counters:new(1, []), asks}}}),
    [nothing_is_left((options(Folder, Port, Root))#{names => [<<"h.test">>], challenge => Kind}) || Kind <- [http, tls_alpn]].

nothing_is_left(Options) ->
    {First, Order} = offering(Options),
    true = exit(Order, kill),
    <<"the order took too long">> = failed(First),
    [] = offered(),
    ok = gen_server:stop(First),
    %% If this file were kept, the next order would have to wait.
    ok = file:delete(filename:join(maps:get(folder, Options), "h.test.failed")),
    {Second, _} = offering(Options),
    ok = gen_server:stop(Second),
    [] = offered(),
    {Third, Last} = offering(Options),
    true = unlink(Third),
    true = exit(Third, kill),
    wait(fun() -> not is_process_alive(Third) andalso not is_process_alive(Last) end),
    [_] = offered(),
    %% The next order for these names removes what the killed order left behind. It has not
    %% published anything itself.
    {ok, Fourth} = yucan_acme:start_link(Options#{directory => <<"https://localhost:1/">>}),
    [] = offered(),
    ok = gen_server:stop(Fourth).

offering(Options) ->
    {ok, Pid} = yucan_acme:start_link(Options),
    wait(fun() -> offered() =/= [] end),
    {links, Links} = process_info(Pid, links),
    [Order] = Links -- [self()],
    {Pid, Order}.

%% Returns the responses that the authority would get.
offered() -> [Term || {{yucan_acme_challenge, token, _}, _} = Term <- persistent_term:get()] ++ [asked || yucan_acme_challenge:has_certificates()].

%% Simulates an authority whose last response is the given one. It validates nothing; with `asks' it
%% lets the client poll forever.
handle(Req, {Finalized, Answer}) ->
    {ok, _} = yucan_req:body(Req),
    Url = fun(Path) -> <<"https://", (yucan_req:header(<<"host">>, Req))/binary, Path/binary>> end,
    Json = fun(Object) -> {200, [{<<"replay-nonce">>, <<"n">>}, {<<"location">>, Url(<<"/order">>)}], yucan_acme_json:encode(Object)} end,
    case yucan_req:path(Req) of
        <<"/dir">> -> {200, [], yucan_acme_json:encode(maps:from_list([{Name, Url(<<"/", Name/binary>>)} || Name <- [<<"newNonce">>, <<"newAccount">>, <<"newOrder">>]]))};
        <<"/newOrder">> -> Json(#{<<"authorizations">> => [Url(<<"/authorization">>) || Answer =:= asks]});
        <<"/authorization">> ->
            Challenges = [#{<<"type">> => Type, <<"url">> => Url(<<"/challenge">>), <<"token">> => <<"token">>} || Type <- [<<"http-01">>, <<"tls-alpn-01">>]],
            Json(#{<<"status">> => <<"pending">>, <<"identifier">> => #{<<"value">> => <<"h.test">>}, <<"challenges">> => Challenges});
        <<"/order">> ->
            Status = case counters:get(Finalized, 1) of 0 -> <<"ready">>; 1 -> <<"valid">> end,
            Json(#{<<"status">> => Status, <<"finalize">> => Url(<<"/finalize">>), <<"certificate">> => Url(<<"/certificate">>)});
        <<"/finalize">> -> counters:add(Finalized, 1, 1), Json(#{});
        <<"/certificate">> -> Answer;
        _ -> Json(#{})
    end.

server(Config, Options) ->
    yucan_test_server:start(yucan_acme_test, #{listen => [#{port => ?config(tls, Config), tls => yucan_acme:tls(Options)}, #{port => ?config(http, Config)}],
                                               middleware => [fun yucan_acme:challenge/2]}).

%% Returns the certificate that the server presents to a client that requests this name.
shown(Config, Name) ->
    {ok, Socket} = yucan_test_server:tls_connect(?config(tls, Config), [{server_name_indication, Name}]),
    {ok, Der} = ssl:peercert(Socket),
    ok = ssl:close(Socket),
    public_key:pkix_decode_cert(Der, otp).

serial(#'OTPCertificate'{tbsCertificate = #'OTPTBSCertificate'{serialNumber = Serial}}) -> Serial.

names(#'OTPCertificate'{tbsCertificate = #'OTPTBSCertificate'{extensions = Extensions}}) ->
    [Names] = [Value || #'Extension'{extnID = ?'id-ce-subjectAltName', extnValue = Value} <- Extensions],
    lists:sort([Name || {dNSName, Name} <- Names]).

ordered(Pid) -> wait(fun() -> maps:get(is_ordered, yucan_acme:status(Pid)) end).

%% Returns the result of the first order.
outcome(Pid) -> wait(fun() -> case yucan_acme:status(Pid) of #{last := none} -> false; #{last := Last} -> Last end end).

failed(Pid) ->
    {error, Text} = outcome(Pid),
    Text.

%% The listener presents its own certificate until the authority has issued one, and serves requests throughout.
tls_alpn(Config) ->
    Options = (?config(options, Config))#{names => [<<"a.test">>, <<"b.test">>]},
    _ = server(Config, Options),
    Before = shown(Config, "a.test"),
    true = public_key:pkix_is_self_signed(Before),
    {ok, Pid} = yucan_acme:start_link(Options),
    ordered(Pid),
    ok = outcome(Pid),
    After = shown(Config, "b.test"),
    false = public_key:pkix_is_self_signed(After),
    ["a.test", "b.test"] = names(After),
    false = yucan_acme_challenge:has_certificates(),
    keys_are_private(Options),
    ok = gen_server:stop(Pid),
    %% An existing certificate is reused.
    {ok, Again} = yucan_acme:start_link(Options),
    #{is_ordered := true, last := none} = yucan_acme:status(Again),
    true = serial(shown(Config, "a.test")) =:= serial(After),
    ok = gen_server:stop(Again).

keys_are_private(#{folder := Folder, names := [Name | _]}) ->
    2 = length(filelib:wildcard("*.pem", Folder)),
    [8#600 = mode(filename:join(Folder, File)) || File <- ["account.pem", binary_to_list(Name) ++ ".pem"]].

mode(File) ->
    {ok, Info} = file:read_file_info(File),
    element(8, Info) band 8#777.

http(Config) ->
    Options = (?config(options, Config))#{names => [<<"c.test">>], challenge => http},
    _ = server(Config, Options),
    {ok, Pid} = yucan_acme:start_link(Options),
    ordered(Pid),
    ["c.test"] = names(shown(Config, "c.test")),
    %% The token is no longer served, and all other paths belong to the site.
    {200, _, _} = yucan_client:get(?config(http, Config), "/"),
    [] = [Key || {{yucan_acme_challenge, token, _} = Key, _} <- persistent_term:get()],
    ok = gen_server:stop(Pid).

%% A certificate that is valid for years is replaced if the name or the authority changes.
changed(Config) ->
    #{directory := Directory} = Options = (?config(options, Config))#{names => [<<"f.test">>]},
    _ = server(Config, Options),
    ["f.test"] = names(started(Config, Options)),
    Both = Options#{names => [<<"f.test">>, <<"g.test">>]},
    Second = started(Config, Both),
    ["f.test", "g.test"] = names(Second),
    Third = started(Config, Both#{directory => <<Directory/binary, "?another">>}),
    true = serial(Third) =/= serial(Second).

%% Returns the certificate that the listener presents after the first order.
started(Config, Options) ->
    {ok, Pid} = yucan_acme:start_link(Options),
    ok = outcome(Pid),
    ok = gen_server:stop(Pid),
    shown(Config, "f.test").

%% This authority's certificates are valid for only 24 s. The next one must be in use before the first expires, while a client keeps sending requests.
renewed(Config) ->
    Options = (?config(options, Config))#{names => [<<"d.test">>]},
    _ = server(Config, Options),
    {ok, Pid} = yucan_acme:start_link(Options),
    ordered(Pid),
    #{until := Until} = yucan_acme:status(Pid),
    First = shown(Config, "d.test"),
    Second = wait(fun() -> Now = shown(Config, "d.test"), serial(Now) =/= serial(First) andalso Now end),
    true = os:system_time(second) < Until,
    ["d.test"] = names(Second),
    ok = gen_server:stop(Pid).

%% Nothing listens on the ports that the authority checks. The reason is reported, and the certificate does not change.
refused(Config) ->
    Options = (?config(options, Config))#{names => [<<"e.test">>], challenge => http},
    _ = yucan_test_server:start(yucan_acme_test, #{listen => [#{port => ?config(tls, Config), tls => yucan_acme:tls(Options)}]}),
    {ok, Pid} = yucan_acme:start_link(Options),
    {_, _} = binary:match(failed(Pid), <<"the authority refuses: ">>),
    true = public_key:pkix_is_self_signed(shown(Config, "e.test")),
    ok = gen_server:stop(Pid),
    %% A program that is restarted repeatedly does not place an order each time, unless its options have changed. While an order is in progress, the
    %% acme process is linked to the process of that order.
    Orders = fun(Own) ->
        {ok, Again} = yucan_acme:start_link(Own),
        _ = yucan_acme:status(Again),
        {links, Links} = process_info(Again, links),
        ok = gen_server:stop(Again),
        Links =/= [self()]
    end,
    [false, false, true] = [Orders(Options), Orders(Options), Orders(Options#{contact => [<<"mailto:other@example.test">>]})],
    [Failed] = filelib:wildcard(filename:join(maps:get(folder, Options), "*.failed")),
    ok = file:change_time(Failed, calendar:system_time_to_local_time(os:system_time(second) - 61, second)),
    true = Orders(Options).
