%% SPDX-License-Identifier: Apache-2.0
%% @doc Self-signed certificates, and key files. {@link yucan_acme} uses a self-signed certificate until the authority has issued one, and `yucan
%% FOLDER --https' uses one as well. Keys are on the curve P-256.
-module(yucan_certificate).

-export([new_key/0, entry/1, self_signed/4, names/1, is_of/2, is_for/2, may_sign/1, write/2]).

-include_lib("public_key/include/public_key.hrl").

%% @doc Generates a new key.
-spec new_key() -> public_key:private_key().
new_key() -> public_key:generate_key({namedCurve, ?secp256r1}).

%% @doc Encodes a key as an entry for write/2.
-spec entry(public_key:private_key()) -> public_key:pem_entry().
entry(Key) -> {'ECPrivateKey', public_key:der_encode('ECPrivateKey', Key), not_encrypted}.

%% @doc Creates a self-signed certificate (DER) that is valid from yesterday until `Days' days from today.
-spec self_signed(CommonName :: binary(), Days :: pos_integer(), [#'Extension'{}], public_key:private_key()) -> public_key:der_encoded().
self_signed(CommonName, Days, Extensions, Key) ->
    Subject = {rdnSequence, [[#'AttributeTypeAndValue'{type = ?'id-at-commonName', value = {utf8String, CommonName}}]]},
    {Today, _} = calendar:universal_time(),
    Day = fun(More) ->
        {Year, Month, Date} = calendar:gregorian_days_to_date(calendar:date_to_gregorian_days(Today) + More),
        {generalTime, lists:flatten(io_lib:format("~4..0b~2..0b~2..0b000000Z", [Year, Month, Date]))}
    end,
    public_key:pkix_sign(#'OTPTBSCertificate'{
        version = v3, serialNumber = rand:uniform(1 bsl 62), signature = #'SignatureAlgorithm'{algorithm = ?'ecdsa-with-SHA256', parameters = asn1_NOVALUE},
        issuer = Subject, subject = Subject, validity = #'Validity'{notBefore = Day(-1), notAfter = Day(Days)},
        subjectPublicKeyInfo = #'OTPSubjectPublicKeyInfo'{
            algorithm = #'PublicKeyAlgorithm'{algorithm = ?'id-ecPublicKey', parameters = {namedCurve, ?secp256r1}},
            subjectPublicKey = #'ECPoint'{point = Key#'ECPrivateKey'.publicKey}},
        extensions = Extensions}, Key).

%% @doc Returns the extension that contains a certificate's names and addresses.
-spec names([{dNSName, string()} | {iPAddress, binary()}, ...]) -> #'Extension'{}.
names(Names) -> #'Extension'{extnID = ?'id-ce-subjectAltName', critical = false, extnValue = Names}.

%% @doc Returns whether the certificate (DER) belongs to this key.
-spec is_of(public_key:private_key(), public_key:der_encoded()) -> boolean().
is_of(#'ECPrivateKey'{publicKey = Point}, Der) ->
    #'OTPCertificate'{tbsCertificate = #'OTPTBSCertificate'{subjectPublicKeyInfo = #'OTPSubjectPublicKeyInfo'{subjectPublicKey = Key}}} =
        public_key:pkix_decode_cert(Der, otp),
    Key =:= #'ECPoint'{point = Point}.

%% @doc Returns whether the certificate (DER) is valid for all of these names.
-spec is_for(Names :: [binary()], public_key:der_encoded()) -> boolean().
is_for(Names, Der) -> lists:all(fun(Name) -> public_key:pkix_verify_hostname(Der, [{dns_id, binary_to_list(Name)}]) end, Names).

%% @doc Returns whether the certificate (DER) may sign other certificates.
-spec may_sign(public_key:der_encoded()) -> boolean().
may_sign(Der) ->
    #'OTPCertificate'{tbsCertificate = #'OTPTBSCertificate'{extensions = Extensions}} = public_key:pkix_decode_cert(Der, otp),
    is_list(Extensions) andalso [yes || #'Extension'{extnValue = #'BasicConstraints'{cA = true}} <- Extensions] =/= [].

%% @doc Writes entries as PEM. Other users can never read the file, not even for a moment, and no reader sees a partially written file.
-spec write(file:name_all(), [public_key:pem_entry()]) -> ok | {error, file:posix() | badarg | terminated | system_limit}.
write(File, Entries) ->
    New = filename:join(filename:dirname(File), <<".", (binary:encode_hex(crypto:strong_rand_bytes(4)))/binary, ".new">>),
    try
        ok = file:write_file(New, <<>>, [exclusive]),
        ok = file:change_mode(New, 8#600),
        ok = file:write_file(New, public_key:pem_encode(Entries)),
        file:rename(New, File)
    catch error:{badmatch, {error, _} = Error} -> Error
    after file:delete(New)
    end.
