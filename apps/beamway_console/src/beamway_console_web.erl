%% SPDX-License-Identifier: Apache-2.0
%% @doc The web server of a console: its options for yucan, and the common parts of all answers.
-module(beamway_console_web).

-export([server/0, options/1, json/1, json/2, problem/2, body/1, encode/1]).

-define(BODY_BYTES, 65536).

%% @doc Returns the name of the server, which appears in metrics and in the addresses of pages.
-spec server() -> atom().
server() -> console_web.

%% @doc Returns the options of the server.
-spec options(beamway_console_config:config()) -> yucan_config:options().
options(#{ip := Ip, port := Port, tls := Tls} = Config) ->
    Guard = beamway_console_auth:new(Config),
    #{name => server(), listen => [maps:merge(#{ip => Ip, port => Port}, case Tls of none -> #{}; _ -> #{tls => Tls} end)],
      server_header => none, limits => #{connections => 2048, body_bytes => ?BODY_BYTES},
      middleware => [fun(Req, Next) -> secured(beamway_console_auth:guard(Req, Next, Guard)) end],
      routes => [{<<"/api/*what">>, beamway_console_api, maps:remove(secret, Config)}, {<<"/*file">>, yucan_file, files()}, {<<"/">>, yucan_file, files()}]}.

%% Browsers revalidate files each time and get 304, so a new version is shown immediately.
files() -> #{root => filename:join(code:priv_dir(beamway_console), "www"), gzip => true, headers => [{<<"cache-control">>, <<"no-cache">>}]}.

%% Nothing may be loaded from other sites, and no other page may show the console in a frame.
secured({Status, Headers, Body}) when is_integer(Status) ->
    {Status, [{<<"content-security-policy">>, <<"default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; object-src 'none'; "
                                                "base-uri 'none'; form-action 'self'; frame-ancestors 'none'">>},
              {<<"x-content-type-options">>, <<"nosniff">>}, {<<"referrer-policy">>, <<"no-referrer">>},
              {<<"cross-origin-resource-policy">>, <<"same-origin">>} | Headers], Body};
secured(Other) -> Other.

%% @doc Returns a JSON response.
-spec json(term()) -> yucan_handler:response().
json(Term) -> json(200, Term).

%% @doc Returns a JSON response with a status.
-spec json(200..599, term()) -> yucan_handler:response().
json(Status, Term) ->
    {Status, [{<<"content-type">>, <<"application/json; charset=utf-8">>}, {<<"cache-control">>, <<"no-store">>}], encode(Term)}.

%% @doc Encodes a term as JSON. The encoder rejects atoms outside Latin-1, but the names of servers, attributes and hosts may contain such
%% characters.
-spec encode(term()) -> binary().
encode(Term) ->
    iolist_to_binary(try jiffy:encode(Term)
                     catch _:_ -> jiffy:encode(in_utf8(Term))
                     end).

in_utf8(Atom) when is_atom(Atom), not is_boolean(Atom), Atom =/= null -> atom_to_binary(Atom);
in_utf8(List) when is_list(List) -> [in_utf8(Element) || Element <- List];
in_utf8(Map) when is_map(Map) -> maps:from_list(in_utf8(maps:to_list(Map)));
in_utf8({Key, Value}) -> {in_utf8(Key), in_utf8(Value)};
in_utf8(Other) -> Other.

%% @doc Returns a message for the user that says what is wrong with a request, or what could not be done.
-spec problem(400..599, unicode:chardata()) -> yucan_handler:response().
problem(Status, Text) -> json(Status, #{error => unicode:characters_to_binary(Text)}).

%% @doc Returns the object in the body of a request.
-spec body(yucan_req:req()) -> {ok, map()} | {error, yucan_handler:response()}.
body(Req) ->
    case yucan_req:body(Req) of
        {ok, <<>>} -> {ok, #{}};
        {ok, Bytes} ->
            try jiffy:decode(Bytes, [return_maps]) of
                Map when is_map(Map) -> {ok, Map};
                _ -> {error, problem(400, "the body is JSON, but not an object")}
            catch
                _:_ -> {error, problem(400, "the body is not valid JSON")}
            end;
        {error, Reason} -> {error, yucan_req:body_error(Reason)}
    end.
