%% SPDX-License-Identifier: Apache-2.0
%% @doc Decides who may see a console.
%%
%% Without a token, the console listens only on loopback, and everybody on the host may use it, but pages from other
%% sites may not. Requests for a host name that is not local are rejected, because DNS can map any name to this host.
%% Requests from other sites can neither change nor query anything, because browsers state the origin of a request and
%% changes must be JSON. If a token is configured, a browser sends it once in a form and receives a cookie, which is
%% signed with a key that exists only while the console runs. Programs send the token as `Authorization: Bearer TOKEN'.
%% The token never appears in an address or a log.
%%
%% After an address has sent a wrong token, the console does not check any token from that address for a moment, however many connections it has,
%% and rejects its requests unread (429). With IPv6 the first 64 bits count as the address ({@link yucan_quota}).
-module(beamway_console_auth).

-export([tables/0, new/1, guard/3]).
-export_type([guard/0]).

-opaque guard() :: #{secret := none | binary(), key := binary(), allow := boolean(), secure := boolean()}.

-define(COOKIE, <<"beamway_console">>).
-define(DAYS, 30).
%% The pause after a wrong token in the form, and in a header. The latter is short because programs retry, and other programs on the same host may
%% have the right token.
-define(WRONG_FORM_MS, 1000).
-define(WRONG_HEADER_MS, 100).
-define(WRONG, console_auth_wrong). %% {{form | header, yucan_quota:key()}, not judged before (ms)}
-define(WRONG_MOST, 10000).

%% @doc Creates the table of wrong guesses. It is owned by the caller, {@link beamway_console_sup}.
-spec tables() -> ok.
tables() ->
    ?WRONG = ets:new(?WRONG, [named_table, public, {write_concurrency, true}]),
    ok.

%% @doc Returns the data that the guard needs.
-spec new(beamway_console_config:config()) -> guard().
new(#{secret := Secret, allow := Allow, tls := Tls}) -> #{secret => Secret, key => crypto:strong_rand_bytes(32), allow => Allow, secure => Tls =/= none}.

%% @doc Lets a request pass, or answers it.
-spec guard(yucan_req:req(), fun((yucan_req:req()) -> yucan_handler:response()), guard()) -> yucan_handler:response().
guard(Req, Next, #{secret := Secret, allow := Allow} = Guard) ->
    Method = yucan_req:method(Req),
    Path = yucan_req:path(Req),
    Known = is_known(Req, Guard),
    Foreign = string:prefix(Path, "/api/") =/= nomatch andalso not is_from_here(Req),
    if Known =:= too_soon -> too_soon(beamway_console_web:problem(429, "a wrong token was sent from this address just now; try again"));
       Secret =:= none, not Known -> beamway_console_web:problem(403, "this console answers to localhost only; start it with a token to reach it by another name");
       Method =:= <<"POST">>, Path =:= <<"/login">>, Secret =/= none -> login(Req, Guard);
       not Known -> stranger(Path);
       Foreign -> changing(false, false, Req, Next);
       Method =:= <<"GET">>; Method =:= <<"HEAD">> -> Next(Req);
       Method =/= <<"POST">> -> beamway_console_web:problem(405, "GET and POST are expected");
       true -> changing(is_own_page(Req), Allow orelse is_harmless(Path), Req, Next)
    end.

changing(false, _, _, _) -> beamway_console_web:problem(403, "a request of another site's page");
changing(true, false, _, _) -> beamway_console_web:problem(403, "this console only shows; start it with --allow (or {allow, true}) to let browsers start things");
changing(true, true, Req, Next) -> Next(Req).

%% This request needs a body but changes nothing. beamway_console_api rejects queries that call code.
is_harmless(Path) -> Path =:= <<"/api/placement/choose">>.

is_known(Req, #{secret := none}) -> is_local_name(yucan_req:host(Req));
is_known(Req, #{secret := Secret} = Guard) ->
    case yucan_req:header(<<"authorization">>, Req) of
        <<"Bearer ", Token/binary>> -> judged(header, yucan_req:peer(Req), Token, Secret, ?WRONG_HEADER_MS);
        _ -> lists:any(fun({Name, Value}) -> Name =:= ?COOKIE andalso is_signed(Value, Guard) end, yucan_req:cookies(Req))
    end.

is_local_name(<<"localhost">>) -> true;
is_local_name(<<"[::1]">>) -> true;
is_local_name(<<"::1">>) -> true;
is_local_name(Host) ->
    case inet:parse_ipv4strict_address(binary_to_list(Host)) of
        {ok, {127, _, _, _}} -> true;
        _ -> false
    end.

%% A form on another site cannot send JSON, and a browser lets a script there send it only if this server permits that (CORS).
is_own_page(Req) -> binary:match(yucan_req:header(<<"content-type">>, Req, <<>>), <<"application/json">>) =:= {0, 16} andalso is_from_here(Req).

%% A page on another site cannot read the answer, but by embedding an image it could make this host query the cluster or start a program. Programs
%% do not send this header.
is_from_here(Req) -> lists:member(yucan_req:header(<<"sec-fetch-site">>, Req, <<"none">>), [<<"same-origin">>, <<"none">>]).

%% Compares in constant time.
is_same(A, B) -> crypto:hash_equals(crypto:hash(sha256, A), crypto:hash(sha256, B)).

login(Req, #{secret := Secret} = Guard) ->
    Given = case yucan_req:body(Req, 4096) of
                {ok, Body} -> proplists:get_value(<<"token">>, yucan_req:pairs(Body), <<>>);
                {error, _} -> <<>>
            end,
    %% The token is trimmed like the one in the file. The received bytes need not be valid UTF-8.
    Token = try string:trim(Given) catch error:_ -> Given end,
    case judged(form, yucan_req:peer(Req), Token, Secret, ?WRONG_FORM_MS) of
        true -> {303, [{<<"location">>, <<"/">>}, {<<"set-cookie">>, cookie(Guard)}], <<>>};
        too_soon -> too_soon(form(429, <<"Another wrong token came from this address just now. Try again.">>));
        false ->
            %% After a typo, the user may try again as soon as this page is shown.
            receive after ?WRONG_FORM_MS -> ok end,
            form(403, <<"That is not the token.">>)
    end.

too_soon({Status, Headers, Body}) -> {Status, [{<<"retry-after">>, <<"1">>} | Headers], Body}.

%% Of several guesses at the same time, up to one per scheduler is checked before the first one turns out to be wrong.
judged(Kind, Peer, Given, Secret, WrongMs) ->
    Key = {Kind, yucan_quota:key(Peer)},
    Now = erlang:monotonic_time(millisecond),
    case ets:lookup(?WRONG, Key) of
        [{_, Until}] when Now < Until -> too_soon;
        _ -> is_same(Given, Secret) orelse wrong(Key, Now, WrongMs)
    end.

wrong(Key, Now, WrongMs) ->
    _ = ets:info(?WRONG, size) >= ?WRONG_MOST andalso ets:select_delete(?WRONG, [{{'_', '$1'}, [{'<', '$1', Now}], [true]}]),
    true = ets:insert(?WRONG, {Key, Now + WrongMs}),
    false.

cookie(#{secure := Secure} = Guard) ->
    [?COOKIE, "=", signed(erlang:system_time(second) + ?DAYS * 86400, Guard), "; Path=/; HttpOnly; SameSite=Strict; Max-Age=", integer_to_list(?DAYS * 86400),
     case Secure of true -> "; Secure"; false -> "" end].

signed(Until, #{key := Key}) ->
    Text = integer_to_binary(Until),
    [Text, ".", binary:encode_hex(crypto:mac(hmac, sha256, Key, Text))].

is_signed(Value, #{key := Key}) ->
    try
        [Text, Sign] = binary:split(Value, <<".">>),
        crypto:hash_equals(crypto:mac(hmac, sha256, Key, Text), binary:decode_hex(Sign)) andalso binary_to_integer(Text) > erlang:system_time(second)
    catch
        error:_ -> false
    end.

stranger(<<"/api/", _/binary>>) -> beamway_console_web:problem(401, "log in first, or send the header Authorization: Bearer TOKEN");
stranger(_) -> form(401, <<>>).

form(Status, Complaint) ->
    {Status, [{<<"content-type">>, <<"text/html; charset=utf-8">>}, {<<"cache-control">>, <<"no-store">>}],
     [<<"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'><title>Beamway console</title>"
        "<style>:root{color-scheme:light dark;font:16px system-ui,sans-serif}body{display:grid;place-items:center;min-height:90vh;margin:0}"
        "form{display:grid;gap:.8rem;width:min(20rem,85vw)}h1{font-size:1.2rem;margin:0}input,button{font:inherit;padding:.55rem .7rem;border-radius:.5rem;border:1px solid #888}"
        "button{background:#2460d8;color:#fff;border:0}p{margin:0;color:#d43}</style><form method=post action=/login><h1>Beamway console</h1>"
        "<input type=password name=token placeholder=Token aria-label=Token autocomplete=current-password autofocus required><button>Open</button><p role=alert>">>,
      Complaint, <<"</p></form></html>">>]}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

local_names_test_() ->
    [?_assert(is_local_name(Name)) || Name <- [<<"localhost">>, <<"127.0.0.1">>, <<"127.9.9.9">>, <<"[::1]">>]]
        ++ [?_assertNot(is_local_name(Name)) || Name <- [<<>>, <<"evil.example">>, <<"10.0.0.1">>, <<"localhost.evil.example">>, <<"127.0.0.1.evil.example">>]].

cookies_test_() ->
    Guard = #{secret => <<"0123456789ab">>, key => <<"k">>, allow => false, secure => true},
    Now = erlang:system_time(second),
    Value = iolist_to_binary(signed(Now + 60, Guard)),
    [?_assert(is_signed(Value, Guard)), ?_assertNot(is_signed(Value, Guard#{key := <<"other">>})), ?_assertNot(is_signed(<<"9", Value/binary>>, Guard)),
     ?_assertNot(is_signed(iolist_to_binary(signed(Now - 1, Guard)), Guard)), ?_assertNot(is_signed(<<"x">>, Guard)), ?_assertNot(is_signed(<<"1.zz">>, Guard)),
     ?_assertNotEqual(nomatch, string:find(iolist_to_binary(cookie(Guard)), "Secure"))].

%% A client may use all addresses of its network; the next network belongs to another client.
networks_test() ->
    ok = tables(),
    Judged = fun(Ip, Given) -> judged(form, {Ip, 4711}, Given, <<"right">>, 60000) end,
    try
        ?assertNot(Judged({16#2001, 16#db8, 0, 1, 0, 0, 0, 1}, <<"wrong">>)),
        ?assertEqual(too_soon, Judged({16#2001, 16#db8, 0, 1, 16#abcd, 0, 0, 2}, <<"wrong">>)),
        ?assert(Judged({16#2001, 16#db8, 0, 2, 0, 0, 0, 1}, <<"right">>)),
        ?assertNot(Judged({192, 0, 2, 1}, <<"wrong">>)),
        ?assertEqual(too_soon, Judged({0, 0, 0, 0, 0, 16#ffff, 16#c000, 16#0201}, <<"wrong">>)),
        ?assert(Judged({192, 0, 2, 2}, <<"right">>))
    after
        ets:delete(?WRONG)
    end.
-endif.
