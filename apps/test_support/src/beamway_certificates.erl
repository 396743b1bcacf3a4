%% SPDX-License-Identifier: Apache-2.0
%% @doc Creates certificates for the nodes of the TLS tests, in each run.
%%
%% One authority signs the certificates that the nodes trust. Each kind of certificate that must be rejected differs from the good one in a
%% single property. {@link optfile/2} writes a certificate and its key, and the file for `-ssl_dist_optfile'. The suite calls {@link
%% prepare/1} first, with its own directory.
-module(beamway_certificates).

-include_lib("public_key/include/public_key.hrl").

-export([prepare/1, good/0, optfile/2, optfile/3, lists_of_revoked/0]).
-export_type([kind/0]).

%% The default of public_key is SHA-1, which ssl no longer accepts in OTP 27.
-define(DIGEST, {digest, sha256}).

-type kind() :: good            %% for this host, signed by the authority
              | expired         %% no longer valid
              | not_yet_valid   %% not valid yet
              | revoked         %% on the authority's revocation list
              | other_host      %% for a different host
              | {address, inet:ip4_address()} %% for this address only
              | other_authority %% signed by a different authority of the same name, which the nodes do not trust
              | self_signed.
-type files() :: #{certificate := file:filename(), key := file:filename(), authorities := file:filename()}.

%% @doc Creates the authority, once per run. The directory belongs to the caller and must exist.
-spec prepare(Dir :: file:filename()) -> ok.
prepare(Dir) ->
    case persistent_term:get(?MODULE, none) of
        none ->
            Authority = authority(),
            persistent_term:put(?MODULE, #{dir => Dir, authority => Authority}),
            persistent_term:put({?MODULE, good}, optfile("good", good));
        _ ->
            ok
    end.

%% @doc Returns the options file for a node that must be accepted.
-spec good() -> file:filename().
good() ->
    persistent_term:get({?MODULE, good}).

%% @doc Writes a certificate of the given kind under a name, and an options file for it. Returns the path of the options file.
-spec optfile(Name :: string(), kind()) -> file:filename().
optfile(Name, Kind) ->
    optfile(Name, Kind, fun(Files) -> [{server, options(Files)}, {client, options(Files)}] end).

%% @doc Like {@link optfile/2}, but with options that a function derives from the file names.
-spec optfile(Name :: string(), kind(), fun((files()) -> [{server | client, list()}])) -> file:filename().
optfile(Name, Kind, Options) ->
    #{dir := Dir, authority := Authority} = persistent_term:get(?MODULE),
    File = fun(What) -> filename:join(Dir, "tls-" ++ Name ++ "." ++ What) end,
    #{cert := Certificate, key := Key} = certificate(Kind, Authority),
    write(File("pem"), {'Certificate', Certificate, not_encrypted}),
    write(File("key"), {'ECPrivateKey', public_key:der_encode('ECPrivateKey', Key), not_encrypted}),
    write(File("ca"), {'Certificate', maps:get(cert, Authority), not_encrypted}),
    Files = #{certificate => File("pem"), key => File("key"), authorities => File("ca")},
    ok = file:write_file(File("opt"), io_lib:format("~p.~n", [Options(Files)])),
    File("opt").

options(#{certificate := Certificate, key := Key, authorities := Authorities}) ->
    [{certfile, Certificate}, {keyfile, Key}, {cacertfile, Authorities}].

write(File, Entry) ->
    ok = file:write_file(File, public_key:pem_encode([Entry])),
    ok = file:change_mode(File, 8#600).

authority() ->
    public_key:pkix_test_root_cert("Beamway test authority", [{key, {namedCurve, ?secp256r1}}, ?DIGEST]).

%% public_key accepts dates for `validity', although its types say timestamps.
-dialyzer({nowarn_function, certificate/2}).
certificate(good, Authority) -> signed(Authority, [names(this_host())]);
certificate(expired, Authority) -> signed(Authority, [names(this_host()), {validity, days(-20, -10)}]);
certificate(not_yet_valid, Authority) -> signed(Authority, [names(this_host()), {validity, days(10, 20)}]);
certificate(revoked, Authority) ->
    #{cert := Certificate} = Revoked = signed(Authority, [names(this_host())]),
    #'Certificate'{tbsCertificate = #'TBSCertificate'{serialNumber = Serial}} = public_key:der_decode('Certificate', Certificate),
    ok = write_list(Authority, [Serial]),
    Revoked;
certificate(other_host, Authority) -> signed(Authority, [names([{dNSName, "elsewhere.example"}])]);
certificate({address, Ip}, Authority) -> signed(Authority, [names([{iPAddress, list_to_binary(tuple_to_list(Ip))}])]);
certificate(other_authority, _Authority) -> signed(authority(), [names(this_host())]);
certificate(self_signed, _Authority) -> authority().

signed(Authority, Options) ->
    Chain = public_key:pkix_test_data(#{root => Authority, intermediates => [],
                                        peer => [{key, {namedCurve, ?secp256r1}}, ?DIGEST | Options]}),
    {'ECPrivateKey', Key} = proplists:get_value(key, Chain),
    #{cert => proplists:get_value(cert, Chain), key => public_key:der_decode('ECPrivateKey', Key)}.

names(Names) ->
    {extensions, [#'Extension'{extnID = ?'id-ce-subjectAltName', critical = false, extnValue = Names}]}.

this_host() ->
    {ok, Host} = inet:gethostname(),
    [{dNSName, Host}, {iPAddress, <<127, 0, 0, 1>>}, {iPAddress, <<1:128>>}]
        ++ [{iPAddress, Address} || Address <- [<<10, 97, 194, 1>>, <<10, 97, 194, 2>>, <<10, 97, 195, 2>>, <<10, 97, 196, 2>>]]. % the hosts of beamway_netns

%% Returns a validity period from `From' to `To', in days relative to today.
days(From, To) ->
    {Today, _} = calendar:universal_time(),
    Days = calendar:date_to_gregorian_days(Today),
    {calendar:gregorian_days_to_date(Days + From), calendar:gregorian_days_to_date(Days + To)}.

%% @doc Returns the directory with the authority's revocation list, as ssl_crl_hash_dir expects it.
%% The list contains the most recently created certificate of the kind `revoked'.
-spec lists_of_revoked() -> file:filename().
lists_of_revoked() ->
    #{authority := Authority} = persistent_term:get(?MODULE),
    File = list_file(Authority),
    _ = filelib:is_regular(File) orelse write_list(Authority, []),
    filename:dirname(File).

list_file(#{cert := Der}) ->
    #{dir := Dir} = persistent_term:get(?MODULE),
    #'OTPCertificate'{tbsCertificate = #'OTPTBSCertificate'{subject = Subject}} = public_key:pkix_decode_cert(Der, otp),
    filename:join([Dir, "revoked", public_key:short_name_hash(Subject) ++ ".r0"]).

write_list(#{cert := Der, key := Key} = Authority, Serials) ->
    #'Certificate'{tbsCertificate = #'TBSCertificate'{subject = Issuer}, signatureAlgorithm = Algorithm} = public_key:der_decode('Certificate', Der),
    [Before, After] = [{generalTime, time_of(Date)} || Date <- tuple_to_list(days(-1, 30))],
    List = #'TBSCertList'{version = v2, signature = Algorithm, issuer = Issuer, thisUpdate = Before, nextUpdate = After,
                          revokedCertificates = case Serials of
                                                    [] -> asn1_NOVALUE;
                                                    _ -> [#'TBSCertList_revokedCertificates_SEQOF'{userCertificate = Serial, revocationDate = Before,
                                                                                                  crlEntryExtensions = asn1_NOVALUE} || Serial <- Serials]
                                                end,
                          crlExtensions = asn1_NOVALUE},
    Signature = public_key:sign(public_key:der_encode('TBSCertList', List), sha256, Key),
    Signed = public_key:der_encode('CertificateList', #'CertificateList'{tbsCertList = List, signatureAlgorithm = Algorithm, signature = Signature}),
    File = list_file(Authority),
    ok = filelib:ensure_dir(File),
    file:write_file(File, public_key:pem_encode([{'CertificateList', Signed, not_encrypted}])).

time_of({Year, Month, Day}) -> lists:flatten(io_lib:format("~4..0b~2..0b~2..0b000000Z", [Year, Month, Day])).
