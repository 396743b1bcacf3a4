%% SPDX-License-Identifier: Apache-2.0
%% @doc The responses to the outstanding challenges of certificate authorities. yucan_acme stores them here. Its middleware finds the responses for
%% http by token, and yucan_tls finds the certificates for TLS by name (RFC 8737).
-module(yucan_acme_challenge).

-export([put_token/3, token/1, erase_token/1, put_certificate/2, certificate/1, erase_certificate/1, has_certificates/0, erase_all/1]).

%% @doc Stores the response for an http client that requests this token.
-spec put_token(Token :: binary(), Name :: binary(), Authorization :: binary()) -> ok.
put_token(Token, Name, Authorization) -> persistent_term:put({?MODULE, token, Token}, {Name, Authorization}).

%% @doc Returns the response for an http client that requests this token.
-spec token(binary()) -> none | binary().
token(Token) ->
    case persistent_term:get({?MODULE, token, Token}, none) of
        none -> none;
        {_, Authorization} -> Authorization
    end.

%% @doc Removes a token.
-spec erase_token(binary()) -> ok.
erase_token(Token) -> _ = persistent_term:erase({?MODULE, token, Token}), ok.

%% @doc Stores the certificate for this name that is sent to clients of the protocol acme-tls/1.
-spec put_certificate(Name :: binary(), [ssl:tls_server_option()]) -> ok.
put_certificate(Name, Certificate) -> change(fun(All) -> All#{Name => Certificate} end).

%% @doc Returns the certificate for this name that is sent to clients of the protocol acme-tls/1.
-spec certificate(Name :: binary()) -> none | [ssl:tls_server_option()].
certificate(Name) -> maps:get(Name, certificates(), none).

%% @doc Removes the certificate for this name.
-spec erase_certificate(Name :: binary()) -> ok.
erase_certificate(Name) -> change(fun(All) -> maps:remove(Name, All) end).

%% @doc Returns whether an authority may currently be validating over TLS. Only then do handshakes check which protocols the client offers.
-spec has_certificates() -> boolean().
has_certificates() -> certificates() =/= #{}.

%% @doc Removes everything that is stored for these names, because an order that was killed may have left something behind.
-spec erase_all(Names :: [binary()]) -> ok.
erase_all(Names) ->
    _ = [persistent_term:erase(Key) || {{?MODULE, token, _} = Key, {Name, _}} <- persistent_term:get(), lists:member(Name, Names)],
    change(fun(All) -> maps:without(Names, All) end).

certificates() -> persistent_term:get({?MODULE, certificates}, #{}).

%% A lock is needed because several orders may run at the same time.
change(Change) -> global:trans({?MODULE, self()}, fun() -> persistent_term:put({?MODULE, certificates}, Change(certificates())) end, [node()]).
