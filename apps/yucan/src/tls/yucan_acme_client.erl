%% SPDX-License-Identifier: Apache-2.0
%% @doc An ACME client (RFC 8555) that places a single order in the calling process, from the account to the certificate. Errors are thrown as `{acme,
%% Text}'. Signatures use ES256.
-module(yucan_acme_client).

-export([order/1]).

-include_lib("public_key/include/public_key.hrl").

%% The time limit for a complete order.
-define(ORDER_MS, 180000).
-define(HTTP_MS, 30000).
-define(MAX_BYTES, 1048576).
-define(NONCES, 10).

-type order() :: #{
    directory := binary(),
    names := [binary()],
    contact := [binary()],
    challenge := binary(),
    account := public_key:private_key(),
    key := public_key:private_key(),
    tls := [ssl:tls_client_option()],
    %% `offer' publishes the response to a challenge, and `withdraw' removes it.
    offer := fun((Name :: binary(), Token :: binary(), Authorization :: binary()) -> term()),
    withdraw := fun((Name :: binary(), Token :: binary()) -> term())
}.

%% @doc Returns the certificate chain, which starts with the certificate for the key and the names. This may take minutes.
-spec order(order()) -> [public_key:pem_entry()].
order(#{directory := Url, names := Names, contact := Contact} = Order) ->
    {_, Directory} = json(request(get, Url, <<>>, Order)),
    Until = erlang:monotonic_time(millisecond) + ?ORDER_MS,
    S = Order#{urls => Directory, until => Until},
    {Headers, _} = json(post(url(<<"newAccount">>, S), #{<<"termsOfServiceAgreed">> => true, <<"contact">> => Contact}, S)),
    S1 = S#{kid => location(Headers)},
    {OrderHeaders, Made} = json(post(url(<<"newOrder">>, S1), #{<<"identifiers">> => [#{<<"type">> => <<"dns">>, <<"value">> => Name} || Name <- Names]}, S1)),
    lists:foreach(fun(Authorization) -> authorize(Authorization, S1) end, maps:get(<<"authorizations">>, Made)),
    Where = location(OrderHeaders),
    #{<<"finalize">> := Finalize} = wait(Where, [<<"ready">>], S1),
    _ = json(post(Finalize, #{<<"csr">> => base64url(request_for(Names, maps:get(key, S1)))}, S1)),
    #{<<"certificate">> := Certificate} = wait(Where, [<<"valid">>], S1),
    {200, _, Pem} = post(Certificate, none, S1),
    chain(public_key:pem_decode(Pem), S1).

chain([{'Certificate', Der, not_encrypted} | _] = Chain, #{key := Key, names := Names}) ->
    yucan_certificate:is_of(Key, Der) orelse fail("the authority's certificate is for another key", []),
    yucan_certificate:is_for(Names, Der) orelse fail("the authority's certificate lacks a name", []),
    Chain;
chain(_, _) -> fail("the authority's last answer holds no certificate", []).

authorize(Url, #{challenge := Wanted, account := Account, offer := Offer, withdraw := Withdraw} = S) ->
    case json(post(Url, none, S)) of
        {_, #{<<"status">> := <<"valid">>}} -> ok;
        {_, #{<<"identifier">> := #{<<"value">> := Name}, <<"challenges">> := Challenges}} ->
            case [Challenge || #{<<"type">> := Type} = Challenge <- Challenges, Type =:= Wanted] of
                [#{<<"url">> := Where, <<"token">> := Token} | _] ->
                    _ = Offer(Name, Token, <<Token/binary, $., (thumbprint(Account))/binary>>),
                    try
                        _ = json(post(Where, #{}, S)),
                        wait(Url, [<<"valid">>], S)
                    after
                        Withdraw(Name, Token)
                    end;
                [] -> fail("the authority has no challenge ~ts for ~ts", [Wanted, Name])
            end
    end.

%% Polls until the order or authorization is in one of these states.
wait(Url, Wanted, S) -> wait(Url, Wanted, 200, S).

wait(Url, Wanted, Pause, #{until := Until} = S) ->
    {_, #{<<"status">> := Status} = Object} = json(post(Url, none, S)),
    Late = erlang:monotonic_time(millisecond) > Until,
    case lists:member(Status, Wanted) of
        true -> Object;
        false when Status =:= <<"invalid">> -> fail("the authority refuses: ~ts", [problems(Object)]);
        false when Late -> fail("the order is still ~ts after ~b s", [Status, ?ORDER_MS div 1000]);
        false ->
            receive after Pause -> ok end,
            wait(Url, Wanted, min(5000, 2 * Pause), S)
    end.

problems(Object) ->
    Errors = [Detail || #{<<"error">> := #{<<"detail">> := Detail}} <- [Object | maps:get(<<"challenges">>, Object, [])]],
    case Errors of [] -> <<"it does not say why">>; _ -> lists:join("; ", Errors) end.

-spec fail(io:format(), [term()]) -> no_return().
fail(Format, Arguments) -> throw({acme, unicode:characters_to_binary(io_lib:format(Format, Arguments))}).

url(Name, #{urls := Urls}) ->
    case Urls of
        #{Name := Url} -> Url;
        _ -> fail("the directory has no ~ts", [Name])
    end.

location(Headers) ->
    case lists:keyfind(<<"location">>, 1, Headers) of
        {_, Url} -> Url;
        false -> fail("the authority names no location", [])
    end.

json({_, Headers, Body}) ->
    case yucan_acme_json:decode(Body) of
        {ok, Object} when is_map(Object) -> {Headers, Object};
        _ -> fail("the authority's answer is not a JSON object", [])
    end.

%% ---- signed requests (RFC 8555, 6.2)

post(Url, Payload, S) -> post(Url, Payload, ?NONCES, S).

post(Url, Payload, Tries, #{account := Account} = S) ->
    Who = case S of #{kid := Kid} -> #{<<"kid">> => Kid}; _ -> #{<<"jwk">> => jwk(Account)} end,
    Protected = base64url(yucan_acme_json:encode(Who#{<<"alg">> => <<"ES256">>, <<"nonce">> => nonce(S), <<"url">> => Url})),
    %% In ACME, a read is a POST without a payload.
    Text = case Payload of none -> <<>>; _ -> base64url(yucan_acme_json:encode(Payload)) end,
    Signature = signature(<<Protected/binary, $., Text/binary>>, Account),
    Body = yucan_acme_json:encode(#{<<"protected">> => Protected, <<"payload">> => Text, <<"signature">> => base64url(Signature)}),
    case request(post, Url, Body, S) of
        {Status, _, _} = Answer when Status < 300 -> Answer;
        {Status, _, Problem} ->
            case yucan_acme_json:decode(Problem) of
                {ok, #{<<"type">> := <<"urn:ietf:params:acme:error:badNonce">>}} when Tries > 1 -> post(Url, Payload, Tries - 1, S);
                {ok, #{<<"detail">> := Detail}} -> fail("~ts: ~b, ~ts", [Url, Status, Detail]);
                _ -> fail("~ts: ~b", [Url, Status])
            end
    end.

%% Each response contains the nonce for the next request.
-define(NONCE, '$yucan_acme_nonce').

nonce(S) ->
    case erase(?NONCE) of
        undefined ->
            _ = request(head, url(<<"newNonce">>, S), <<>>, S),
            case erase(?NONCE) of undefined -> fail("the authority gives no nonce", []); Nonce -> Nonce end;
        Nonce -> Nonce
    end.

%% Returns the signature as its two numbers rather than in their DER encoding (RFC 7518, 3.4).
signature(Text, Key) ->
    #'ECDSA-Sig-Value'{r = R, s = S} = public_key:der_decode('ECDSA-Sig-Value', public_key:sign(Text, sha256, Key)),
    <<R:256, S:256>>.

jwk(Key) ->
    <<4, X:32/binary, Y:32/binary>> = public_point(Key),
    #{<<"crv">> => <<"P-256">>, <<"kty">> => <<"EC">>, <<"x">> => base64url(X), <<"y">> => base64url(Y)}.

public_point(#'ECPrivateKey'{publicKey = Point}) -> Point.

%% RFC 7638.
thumbprint(Key) -> base64url(crypto:hash(sha256, yucan_acme_json:encode(jwk(Key)))).

base64url(Data) ->
    << <<(case C of $+ -> $-; $/ -> $_; _ -> C end)>> || <<C>> <= base64:encode(iolist_to_binary(Data)), C =/= $= >>.

%% ---- the certificate signing request (RFC 2986)

%% The request is encoded by hand, because the records of public_key differ between OTP 25 and OTP 29.
request_for(Names, Key) ->
    P256 = der(sequence, [oid("2A8648CE3D0201"), oid("2A8648CE3D030107")]),
    San = der(sequence, [der(16#82, Name) || Name <- Names]),
    Extensions = der(sequence, [der(sequence, [oid("551D11"), der(octets, San)])]),
    Attributes = der(16#A0, [der(sequence, [oid("2A864886F70D01090E"), der(set, Extensions)])]),
    Info = der(sequence, [der(integer, <<0>>), der(sequence, []),
                          der(sequence, [P256, der(bits, [0, public_point(Key)])]), Attributes]),
    Signature = public_key:sign(Info, sha256, Key),
    der(sequence, [Info, der(sequence, [oid("2A8648CE3D040302")]), der(bits, [0, Signature])]).

oid(Hex) -> der(6, binary:decode_hex(list_to_binary(Hex))).

der(integer, Content) -> der(2, Content);
der(bits, Content) -> der(3, Content);
der(octets, Content) -> der(4, Content);
der(sequence, Content) -> der(16#30, Content);
der(set, Content) -> der(16#31, Content);
der(Tag, Content) ->
    Bytes = iolist_to_binary(Content),
    Length = case byte_size(Bytes) of
                 Short when Short < 128 -> <<Short>>;
                 Long -> Size = binary:encode_unsigned(Long), [16#80 bor byte_size(Size), Size]
             end,
    iolist_to_binary([Tag, Length, Bytes]).

%% ---- HTTP, with a new connection for each request

request(Method, Url, Body, #{tls := Tls}) ->
    {Host, Port, Target} = parts(Url),
    Head = [string:uppercase(atom_to_list(Method)), " ", Target, " HTTP/1.1\r\nhost: ", Host, [[$:, integer_to_list(Port)] || Port =/= 443],
            "\r\nuser-agent: yucan\r\nconnection: close\r\ncontent-type: application/jose+json\r\ncontent-length: ", integer_to_list(iolist_size(Body)), "\r\n\r\n"],
    case ssl:connect(Host, Port, [binary, {active, false}] ++ Tls ++ [{server_name_indication, Host}], ?HTTP_MS) of
        {ok, Socket} ->
            try
                ok = ssl:send(Socket, [Head, Body]),
                answer(received(Socket, <<>>, erlang:monotonic_time(millisecond) + ?HTTP_MS), Method, Url)
            after
                ssl:close(Socket)
            end;
        {error, Reason} -> fail("~ts cannot be reached: ~0tp", [Url, Reason])
    end.

parts(Url) ->
    case uri_string:parse(Url) of
        #{scheme := <<"https">>, host := Host, path := Path} = Uri ->
            {binary_to_list(Host), maps:get(port, Uri, 443), [case Path of <<>> -> <<"/">>; _ -> Path end, [[$?, Query] || #{query := Query} <- [Uri]]]};
        #{scheme := _, host := _} -> fail("~ts is not https", [Url]);
        _ -> fail("~ts is not an address", [Url])
    end.

received(Socket, Data, Until) ->
    case ssl:recv(Socket, 0, max(0, Until - erlang:monotonic_time(millisecond))) of
        {ok, More} when byte_size(Data) + byte_size(More) =< ?MAX_BYTES -> received(Socket, <<Data/binary, More/binary>>, Until);
        {ok, _} -> fail("the authority sends more than ~b bytes", [?MAX_BYTES]);
        {error, closed} -> Data;
        {error, Reason} -> fail("the authority does not answer: ~0tp", [Reason])
    end.

answer(Bytes, Method, Url) ->
    case binary:split(Bytes, <<"\r\n\r\n">>) of
        [<<"HTTP/1.", _, " ", Status:3/binary, Head/binary>>, Rest] ->
            Headers = [{string:lowercase(Name), string:trim(Value)} || Line <- tl(binary:split(Head, <<"\r\n">>, [global])), [Name, Value] <- [binary:split(Line, <<":">>)]],
            _ = [put(?NONCE, Nonce) || {<<"replay-nonce">>, Nonce} <- Headers],
            {binary_to_integer(Status), Headers, case Method of head -> <<>>; _ -> body(maps:from_list(Headers), Rest, Url) end};
        _ -> fail("~ts: the answer is not HTTP", [Url])
    end.

%% A connection that breaks is treated like one that the server has closed.
body(#{<<"transfer-encoding">> := <<"chunked">>}, Bytes, Url) -> chunks(yucan_chunk:new(), Bytes, <<>>, Url);
body(#{<<"content-length">> := Length}, Bytes, Url) ->
    Length =:= integer_to_binary(byte_size(Bytes)) orelse fail("~ts: the answer has ~b bytes where ~ts were announced", [Url, byte_size(Bytes), Length]),
    Bytes;
body(_, Bytes, _) -> Bytes.

chunks(State, Bytes, Done, Url) ->
    case yucan_chunk:parse(State, Bytes, infinity, yucan_config:freeze(#{})) of
        {data, Data, Next, Rest} -> chunks(Next, Rest, <<Done/binary, Data/binary>>, Url);
        {done, _, _} -> Done;
        {more, _, _} -> fail("~ts: the answer ends early", [Url]);
        {error, _} -> fail("~ts: the answer is not HTTP", [Url])
    end.
