%% SPDX-License-Identifier: Apache-2.0
%% @doc The TLS options of the node's distribution: those of OTP's `inet_tls', with safe defaults.
%%
%% With `-ssl_dist_optfile FILE', the file contains `[{server, Options}, {client, Options}].', where the options are those of the ssl application.
%% `-ssl_dist_opt server_certfile FILE ...' accepts the few options that OTP accepts there; if there is also a file, they only add what the file does
%% not set, as in OTP 26. The file is read again for each connection, so a change does not require a restart.
%%
%% Unless the options say otherwise, both sides verify each other (`verify_peer', and on the server `fail_if_no_peer_cert'), and the caller compares
%% the peer's certificate with the host in its node name. OTP 25 itself does not verify anybody by default.
-module(beamway_tls_options).

-export([check/0, read/1, contents/0, expiries/0, expiry/1, for_host/2, for_caller/2, of_certificate/2]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-import(beamway_result, [then/2]).

-type role() :: server | client.
-type options() :: [proplists:property()].

%% @doc Returns whether nodes could connect with the current options.
-spec check() -> ok | {error, Problem :: binary()}.
check() -> then(both(), fun(_, _) -> ok end).

both() -> then(read(server), fun(Server) -> then(read(client), fun(Client) -> {ok, Server, Client} end) end).

%% @doc Returns {@link expiry/1} for both sides, without a side that has no usable certificate.
-spec expiries() -> [{role(), Seconds :: integer()}].
expiries() ->
    [{Role, Seconds} || Role <- [server, client], {ok, Options} <- [read(Role)], {ok, Seconds} <- [expiry(Options)]].

%% @doc Returns the time at which the certificate in `certfile' expires, in seconds of system time.
-spec expiry(options()) -> {ok, Seconds :: integer()} | none.
expiry(Options) ->
    try
        {ok, Text, _} = erl_prim_loader:get_file(proplists:get_value(certfile, Options)),
        [Der | _] = [Der || {'Certificate', Der, not_encrypted} <- public_key:pem_decode(Text)],
        %% Does not use the records of public_key, because the carrier can be built without that application.
        {'OTPCertificate', Signed, _, _} = public_key:pkix_decode_cert(Der, otp),
        {'Validity', _, After} = lists:keyfind('Validity', 1, tuple_to_list(Signed)),
        {ok, calendar:datetime_to_gregorian_seconds(datetime(After)) - calendar:datetime_to_gregorian_seconds({{1970, 1, 1}, {0, 0, 0}})}
    catch
        _:_ -> none
    end.

%% RFC 5280, 4.1.2.5: two digits mean the years from 1950 to 2049.
datetime({utcTime, [Y, _ | _] = Text}) when Y >= $5 -> datetime({generalTime, "19" ++ Text});
datetime({utcTime, Text}) -> datetime({generalTime, "20" ++ Text});
datetime({generalTime, Text}) ->
    {ok, [Year, Month, Day, Hour, Minute, Second], _} = io_lib:fread("~4d~2d~2d~2d~2d~2d", Text),
    {{Year, Month, Day}, {Hour, Minute, Second}}.

%% @doc Returns the options of one side, for ssl.
-spec read(role()) -> {ok, options()} | {error, Problem :: binary()}.
read(Role) ->
    then(given(init:get_argument(ssl_dist_optfile), init:get_argument(ssl_dist_opt)),
         %% With ktls, ssl does not read on its own, but waits for OTP's own carrier to take over the socket.
         fun(Given) -> complete(Role, secure(Role, proplists:delete(ktls, proplists:get_value(Role, Given, [])))) end).

%% @doc Returns a checksum of the options and of the contents of all files that they name, so that a caller notices when one of them has changed.
-spec contents() -> {ok, binary()} | {error, Problem :: binary()}.
contents() ->
    case both() of
        {ok, Server, Client} ->
            Files = [erl_prim_loader:get_file(File) || {_, File} <- files(Server) ++ files(Client)],
            {ok, erlang:md5(term_to_binary([Server, Client | Files]))};
        {error, Problem} -> {error, Problem}
    end.

%% @doc Returns the options for calling this host. The user's own options have priority. If the host is an address, there is no name to verify, and
%% ssl compares the address.
-spec for_host(Host :: string(), options()) -> options().
for_host(Host, Options) ->
    case proplists:is_defined(server_name_indication, Options) of
        true -> Options;
        false -> [{server_name_indication, Host} || inet:parse_address(Host) =:= {error, einval}] ++ Options
    end.

%% @doc Returns the options for a caller with this address. OTP's own function for `verify_fun' compares the caller's certificate with its address and
%% with the hosts of the nodes that net_kernel allows, so its state is inserted here, as in OTP's carrier. Any other function keeps the state given by
%% the user.
-spec for_caller(inet:ip_address(), options()) -> options().
for_caller(Ip, Options) -> for_caller(Ip, fun net_kernel:allowed/0, Options).

for_caller(Ip, AskAllowed, Options) ->
    OfOtp = fun inet_tls_dist:verify_client/3,
    lists:map(fun({verify_fun, {Fun, _}}) when Fun =:= OfOtp ->
                      {ok, Allowed} = AskAllowed(),
                      {verify_fun, {Fun, {lists:usort([host_of(Node) || Node <- Allowed]), Ip}}};
                 (Option) ->
                      Option
              end, Options).

%% @doc Returns the nodes for whose host the certificate is valid.
-spec of_certificate(public_key:der_encoded(), [node() | string()]) -> [node() | string()].
of_certificate(Certificate, Nodes) ->
    [Node || Node <- Nodes, public_key:pkix_verify_hostname(Certificate, [host_id(host_of(Node))])].

host_id(Host) ->
    case inet:parse_strict_address(Host) of
        {ok, Ip} -> {ip, Ip};
        {error, einval} -> {dns_id, Host}
    end.

host_of(Node) -> lists:last(string:split(lists:concat([Node]), "@")).

%% ---- the sources of options ----

given(error, error) ->
    problem("no TLS options: start the node with -ssl_dist_optfile FILE", []);
given(File, Arguments) ->
    case {in_file(File), in_arguments(Arguments)} of
        {{ok, OfFile}, {ok, OfArguments}} ->
            {ok, [{Role, beside_file(proplists:get_value(Role, OfArguments, []), proplists:get_value(Role, OfFile, []))} || Role <- [server, client]]};
        {{error, Problem}, _} ->
            {error, Problem};
        {_, {error, Problem}} ->
            {error, Problem}
    end.

in_file({ok, [[File]]}) -> from_file(File);
in_file({ok, Other}) -> problem("-ssl_dist_optfile: expected one file, found ~0tp", [Other]);
in_file(error) -> {ok, []}.

in_arguments({ok, Arguments}) -> from_arguments(lists:append(Arguments), [{server, []}, {client, []}]);
in_arguments(error) -> {ok, []}.

beside_file(Arguments, File) ->
    [Argument || {Name, _} = Argument <- Arguments, not proplists:is_defined(Name, File)] ++ File.

from_file(File) ->
    case erl_prim_loader:get_file(File) of
        {ok, Text, _} -> from_text(File, Text);
        error -> problem("-ssl_dist_optfile: cannot read ~ts~ts", [File, case filename:pathtype(File) of absolute -> ""; _ -> "; expected an absolute name, as for OTP's inet_tls" end])
    end.

from_text(File, Text) ->
    try
        {ok, Tokens, _} = erl_scan:string(characters(Text)),
        {ok, [Expression]} = erl_parse:parse_exprs(Tokens),
        {value, Value, _} = erl_eval:expr(Expression, erl_eval:new_bindings()),
        true = is_list(Value) andalso lists:all(fun is_role/1, Value),
        {ok, [{Role, [option(Option) || Option <- Options]} || {Role, Options} <- Value]}
    catch
        _:_ -> problem("-ssl_dist_optfile: ~ts: expected [{server, Options}, {client, Options}].", [File])
    end.

%% OTP treats a file as Latin-1 unless its first lines specify a different encoding.
characters(Text) ->
    case unicode:characters_to_list(Text) of
        Characters when is_list(Characters) -> Characters;
        _ -> binary_to_list(Text)
    end.

is_role({Role, Options}) -> lists:member(Role, [server, client]) andalso is_list(Options);
is_role(_) -> false.

option({verify_fun, {_, _, _} = Function}) -> {verify_fun, function(Function)};
option(Option) -> Option.

from_arguments([], Given) ->
    {ok, Given};
from_arguments(["server_" ++ Name, Value | Rest], Given) ->
    argument(server, Name, Value, Rest, Given);
from_arguments(["client_" ++ Name, Value | Rest], Given) ->
    argument(client, Name, Value, Rest, Given);
from_arguments([Name | _], _Given) ->
    problem("-ssl_dist_opt ~ts: expected server_NAME VALUE or client_NAME VALUE", [Name]).

argument(Role, Name, Text, Rest, Given) ->
    try
        Option = {list_to_atom(Name), value(Name, Text)},
        {Role, Options} = lists:keyfind(Role, 1, Given),
        from_arguments(Rest, lists:keyreplace(Role, 1, Given, {Role, Options ++ [Option]}))
    catch
        _:_ -> problem("-ssl_dist_opt ~ts_~ts: ~ts is not valid", [Role, Name, Text])
    end.

value(Name, Text) ->
    case Name of
        "certfile" -> Text;
        "cacertfile" -> Text;
        "keyfile" -> Text;
        "dhfile" -> Text;
        "password" -> Text;
        "ciphers" -> Text;
        "verify" -> one_of(Text, [verify_peer, verify_none]);
        "fail_if_no_peer_cert" -> one_of(Text, [true, false]);
        "versions" -> [one_of(Text, ['tlsv1.3', 'tlsv1.2', 'tlsv1.1', tlsv1])];
        "ktls" -> one_of(Text, [true, false]);
        "crl_check" -> one_of(Text, [true, false, peer, best_effort]);
        "secure_renegotiate" -> one_of(Text, [true, false]);
        "reuse_sessions" -> one_of(Text, [true, false, save]);
        "depth" -> list_to_integer(Text);
        "hibernate_after" -> list_to_integer(Text);
        "crl_cache" -> term(Text);
        "verify_fun" -> function(term(Text))
    end.

%% The distribution starts before ssl is loaded, so most of these atoms may not exist yet.
one_of(Text, Values) ->
    [Value] = [Value || Value <- Values, atom_to_list(Value) =:= Text],
    Value.

term(Text) ->
    {ok, Tokens, _} = erl_scan:string(Text ++ "."),
    {ok, Term} = erl_parse:parse_term(Tokens),
    Term.

%% OTP uses this form on the command line, and newer releases also in the file.
function({Module, Function, State}) -> {fun Module:Function/3, State}.

%% ---- required options and files ----

secure(Role, Options) ->
    Verified = default(verify, verify_peer, Options),
    case {Role, proplists:get_value(verify, Verified)} of
        {server, verify_peer} -> default(fail_if_no_peer_cert, true, Verified);
        _ -> Verified
    end.

default(Name, Value, Options) ->
    case proplists:is_defined(Name, Options) of
        true -> Options;
        false -> [{Name, Value} | Options]
    end.

complete(Role, Options) ->
    Needed = [{"a certificate (certfile)", [certfile, cert, certs_keys]} || Role =:= server]
        ++ [{"the authorities that it trusts (cacertfile)", [cacertfile, cacerts]}
            || proplists:get_value(verify, Options) =:= verify_peer],
    case [What || {What, Names} <- Needed, not lists:any(fun(N) -> proplists:is_defined(N, Options) end, Names)] of
        [] -> readable(Role, Options);
        [What | _] -> problem("the TLS options of the ~ts lack ~ts", [Role, What])
    end.

readable(Role, Options) ->
    case [{Name, File, Reason} || {Name, File} <- files(Options), {error, Reason} <- [readable(File)]] of
        [] -> {ok, Options};
        [{Name, File, Reason} | _] ->
            problem("the TLS options of the ~ts: cannot read ~ts ~ts: ~ts",
                    [Role, Name, File, file:format_error(Reason)])
    end.

files(Options) -> [{Name, File} || Name <- [certfile, keyfile, cacertfile, dhfile], File <- proplists:get_all_values(Name, Options)].

%% The file is opened raw, because the distribution starts before the file server.
readable(File) -> then(file:open(File, [read, raw]), fun file:close/1).

problem(Format, Args) ->
    {error, unicode:characters_to_binary(io_lib:format(Format, Args))}.

-ifdef(TEST).

defaults_are_safe_test() ->
    ?assertEqual([{fail_if_no_peer_cert, true}, {verify, verify_peer}], secure(server, [])),
    ?assertEqual([{verify, verify_peer}], secure(client, [])),
    ?assertEqual([{verify, verify_none}], secure(server, [{verify, verify_none}])).

arguments_test() ->
    ?assertEqual({ok, [{server, [{certfile, "a"}, {verify, verify_none}]}, {client, [{depth, 2}]}]},
                 given(error, {ok, [["server_certfile", "a", "client_depth", "2"],
                                    ["server_verify", "verify_none"]]})),
    [?assertMatch({error, _}, given(error, {ok, [Bad]}))
     || Bad <- [["server_certfile"], ["nonsense", "a"], ["client_depth", "two"],
                ["server_nonsense", "a"], ["server_verify", "no such atom at all"],
                ["server_verify_fun", "{lists"], ["server_verify_fun", "{lists, map}"]]],
    ?assertMatch({error, <<"-ssl_dist_optfile: expected one file", _/binary>>}, given({ok, [["a"], ["b"]]}, error)).

every_argument_test_() ->
    [?_assertEqual({ok, [{server, []}, {client, [{list_to_atom(Name), Value}]}]}, given(error, {ok, [["client_" ++ Name, Text]]}))
     || {Name, Text, Value} <- [{"certfile", "a.pem", "a.pem"}, {"cacertfile", "a.pem", "a.pem"}, {"keyfile", "a.pem", "a.pem"},
                                {"dhfile", "dh.pem", "dh.pem"}, {"password", "secret", "secret"},
                                {"ciphers", "ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384"},
                                {"versions", "tlsv1.2", ['tlsv1.2']}, {"ktls", "true", true},
                                {"verify", "verify_none", verify_none}, {"fail_if_no_peer_cert", "false", false},
                                {"crl_check", "best_effort", best_effort}, {"secure_renegotiate", "true", true},
                                {"reuse_sessions", "false", false}, {"depth", "2", 2}, {"hibernate_after", "500", 500},
                                {"crl_cache", "{ssl_crl_cache, {internal, [{http, 1000}]}}", {ssl_crl_cache, {internal, [{http, 1000}]}}},
                                {"verify_fun", "{lists, foldl, state}", {fun lists:foldl/3, state}}]].

text_test() ->
    ?assertEqual({ok, [{server, [{depth, 1}]}]}, from_text("f", <<"[{server, [{depth, 1}]}].">>)),
    [?assertEqual({ok, [{server, [{password, [16#e4]}]}]}, from_text("f", <<"% ", Letter/binary, "\n[{server, [{password, \"", Letter/binary, "\"}]}].">>))
     || Letter <- [<<16#e4>>, <<16#e4/utf8>>]],
    ?assertEqual({ok, [{client, [{verify_fun, {fun lists:foldl/3, state}}, {depth, 1}]}]},
                 from_text("f", <<"[{client, [{verify_fun, {lists, foldl, state}}, {depth, 1}]}].">>)),
    [?assertMatch({error, _}, from_text("f", Bad))
     || Bad <- [<<"[{client, [{verify_fun, {\"lists\", foldl, state}}]}].">>, <<>>, <<"[{server, [}].">>, <<"{server, []}.">>, <<"[{sever, []}].">>, <<"[server].">>, <<"X.">>,
                <<"[]. []. ">>, <<255, 255>>]].

what_is_missing_is_named_test() ->
    {error, Certificate} = complete(server, [{verify, verify_none}]),
    ?assertNotEqual(nomatch, string:find(Certificate, "certfile")),
    {error, Authorities} = complete(client, secure(client, [])),
    ?assertNotEqual(nomatch, string:find(Authorities, "cacertfile")),
    {error, File} = complete(client, [{verify, verify_none}, {certfile, "/no/such.pem"}]),
    ?assertNotEqual(nomatch, string:find(File, "/no/such.pem")),
    ?assertMatch({error, _}, given(error, error)).

function_of_otp_test() ->
    Otp = {verify_fun, {fun inet_tls_dist:verify_client/3, []}},
    Other = {verify_fun, {fun lists:foldl/3, state}},
    ?assertEqual([{verify_fun, {fun inet_tls_dist:verify_client/3, {["h", "i"], {127, 0, 0, 1}}}}, {depth, 1}],
                 for_caller({127, 0, 0, 1}, fun() -> {ok, ['a@h', "i", 'b@h']} end, [Otp, {depth, 1}])),
    ?assertEqual([Other], for_caller({127, 0, 0, 1}, fun() -> error(asked) end, [Other])).

datetime_test_() ->
    [?_assertEqual(Time, datetime(Text))
     || {Time, Text} <- [{{{2049, 12, 31}, {23, 59, 59}}, {utcTime, "491231235959Z"}}, {{{1950, 1, 1}, {0, 0, 0}}, {utcTime, "500101000000Z"}},
                         {{{2050, 1, 2}, {3, 4, 5}}, {generalTime, "20500102030405Z"}}]]
        ++ [?_assertEqual(none, expiry(Options)) || Options <- [[], [{certfile, "/nowhere"}], [{certfile, code:which(?MODULE)}]]].

host_test() ->
    ?assertEqual([{server_name_indication, "h"}], for_host("h", [])),
    ?assertEqual([], for_host("127.0.0.1", [])),
    ?assertEqual([{server_name_indication, disable}], for_host("h", [{server_name_indication, disable}])).

-endif.
