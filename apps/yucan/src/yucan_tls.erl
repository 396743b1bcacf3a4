%% SPDX-License-Identifier: Apache-2.0
%% @doc The TLS options of a listener: its own certificate, and those of its hosts by the name that the client asks for.
-module(yucan_tls).

-export([look_at/2, options/2, by_name/2]).

%% @doc Whether a file holds what an option of ssl needs: ssl itself would find out when the first client comes.
-spec look_at(certfile | keyfile | cacertfile, file:name_all()) -> ok | {error, Why :: unicode:chardata()}.
look_at(Key, File) ->
    case file:read_file(File) of
        {ok, Pem} ->
            Kinds = [Kind || {Kind, _, _} <- public_key:pem_decode(Pem)],
            case [Kind || Kind <- Kinds, is_for(Key, Kind)] of
                [] -> {error, ["it holds no ", what(Key), "; a PEM file is expected"]};
                _ -> ok
            end;
        {error, Reason} -> {error, file:format_error(Reason)}
    end.

is_for(keyfile, Kind) -> lists:member(Kind, ['PrivateKeyInfo', 'EncryptedPrivateKeyInfo', 'RSAPrivateKey', 'DSAPrivateKey', 'ECPrivateKey']);
is_for(_, Kind) -> Kind =:= 'Certificate'.

what(keyfile) -> "private key";
what(_) -> "certificate".

%% @doc Options for ssl:handshake.
-spec options([ssl:tls_server_option()], Hosts :: [map()]) -> [ssl:tls_server_option()].
options(Own, Hosts) ->
    Named = [{Name, without_general(Tls)} || #{names := Names, tls := Tls} <- Hosts, Tls =/= none, Name <- Names],
    Defaults = [{alpn_preferred_protocols, [<<"http/1.1">>]}, {versions, ['tlsv1.3', 'tlsv1.2']}, {honor_cipher_order, true}, {reuse_sessions, true}],
    Base = lists:foldl(fun({Key, _} = Default, All) -> case lists:keymember(Key, 1, Own) of true -> All; false -> [Default | All] end end, Own, Defaults),
    case Named of
        [] -> Base;
        _ -> [{sni_fun, fun(Name) -> ?MODULE:by_name(Name, Named) end} | Base]
    end.

without_general(Tls) -> [Option || {Key, _} = Option <- Tls, Key =/= versions, Key =/= alpn_preferred_protocols].

%% @private The certificate for a name; `undefined' is the listener's own.
-spec by_name(string(), [{binary(), list()}]) -> undefined | list().
by_name(Name, Named) ->
    Lower = yucan_header:lower(iolist_to_binary(Name)),
    case [Tls || {Pattern, Tls} <- Named, yucan_router:is_match(Pattern, Lower)] of
        [Tls | _] -> Tls;
        [] -> undefined
    end.
