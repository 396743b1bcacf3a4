%% SPDX-License-Identifier: Apache-2.0
%% @doc From a request to the #arg{} that modules written for Yaws get, and back after they have rewritten it.
-module(yucan_yaws_arg).

-export([make/3, rewritten/2, headers/1, request/0, remember/1, with_body/3]).

-include("../include/yaws_api.hrl").

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

%% @doc The arg of a request to a server with these docroots and this opaque data.
-spec make(yucan_req:req(), Docroots :: [file:filename()], Opaque :: term()) -> #arg{}.
make(Req, Docroots, Opaque) ->
    Request = http_request(Req),
    #arg{clisock = {yucan_stream, self()}, client_ip_port = yucan_req:peer(Req), headers = headers(yucan_req:headers(Req)), req = Request,
         orig_req = Request, clidata = <<>>, server_path = decoded(Req), querydata = text(yucan_req:query(Req)),
         docroot = case Docroots of [Docroot | _] -> Docroot; [] -> undefined end, docroot_mount = "/",
         pid = self(), opaque = Opaque}.

http_request(Req) ->
    Query = case yucan_req:has_query(Req) of
                true -> "?" ++ text(yucan_req:query(Req));
                false -> ""
            end,
    #http_request{method = method(yucan_req:method(Req)), path = {abs_path, text(yucan_req:path(Req)) ++ Query},
                  version = yucan_req:version(Req)}.

%% As erlang:decode_packet/3 has them: atoms for what HTTP/1.1 began with.
method(<<"GET">>) -> 'GET';
method(<<"HEAD">>) -> 'HEAD';
method(<<"POST">>) -> 'POST';
method(<<"PUT">>) -> 'PUT';
method(<<"DELETE">>) -> 'DELETE';
method(<<"OPTIONS">>) -> 'OPTIONS';
method(<<"TRACE">>) -> 'TRACE';
method(Other) -> text(Other).

decoded(Req) ->
    case yucan_req:decoded_path(Req) of
        {ok, Path} -> text(Path);
        {error, bad_path} -> ""
    end.

text(Binary) -> binary_to_list(Binary).

%% @doc Headers as a record. Names that it has no field for are in `other'.
-spec headers([{binary(), binary()}]) -> #headers{}.
headers(Headers) ->
    Record = lists:foldl(fun header/2, #headers{}, Headers),
    Record#headers{cookie = lists:reverse(Record#headers.cookie), other = lists:reverse(Record#headers.other)}.

header({Name, Value}, Headers) -> header(Name, text(Value), Headers).

header(<<"connection">>, V, H) -> H#headers{connection = V};
header(<<"accept">>, V, H) -> H#headers{accept = V};
header(<<"host">>, V, H) -> H#headers{host = V};
header(<<"if-modified-since">>, V, H) -> H#headers{if_modified_since = V};
header(<<"if-match">>, V, H) -> H#headers{if_match = V};
header(<<"if-none-match">>, V, H) -> H#headers{if_none_match = V};
header(<<"if-range">>, V, H) -> H#headers{if_range = V};
header(<<"if-unmodified-since">>, V, H) -> H#headers{if_unmodified_since = V};
header(<<"range">>, V, H) -> H#headers{range = V};
header(<<"referer">>, V, H) -> H#headers{referer = V};
header(<<"user-agent">>, V, H) -> H#headers{user_agent = V};
header(<<"accept-ranges">>, V, H) -> H#headers{accept_ranges = V};
header(<<"cookie">>, V, H) -> H#headers{cookie = [V | H#headers.cookie]};
header(<<"keep-alive">>, V, H) -> H#headers{keep_alive = V};
header(<<"location">>, V, H) -> H#headers{location = V};
header(<<"content-length">>, V, H) -> H#headers{content_length = V};
header(<<"content-type">>, V, H) -> H#headers{content_type = V};
header(<<"content-encoding">>, V, H) -> H#headers{content_encoding = V};
header(<<"authorization">>, V, H) -> H#headers{authorization = authorization(V)};
header(<<"transfer-encoding">>, V, H) -> H#headers{transfer_encoding = V};
header(<<"x-forwarded-for">>, V, H) -> H#headers{x_forwarded_for = V};
header(Name, V, #headers{other = Other} = H) -> H#headers{other = [{http_header, 0, known(Name), undefined, V} | Other]}.

authorization(Text) ->
    case yucan_yaws_auth:basic(list_to_binary(Text)) of
        {ok, User, Password} -> {text(User), text(Password), Text};
        error -> {undefined, undefined, Text}
    end.

%% Capitalised, as people are used to from decode_packet.
known(Name) ->
    lists:flatten(lists:join("-", [string:titlecase(Part) || Part <- string:split(text(Name), "-", all)])).

%% @doc The request that the rewritten arg asks for.
-spec rewritten(#arg{}, yucan_req:req()) -> yucan_req:req().
rewritten(#arg{req = Same, orig_req = Same}, Req) -> Req;
rewritten(#arg{req = #http_request{path = {abs_path, Target}, method = Method}, orig_req = #http_request{method = Before}}, Req) ->
    Bytes = unicode:characters_to_binary(Target, latin1, latin1),
    Moved = case binary:split(Bytes, <<"?">>) of
                [Path, Query] -> yucan_req:with_path(escaped(Path), Query, Req);
                [Path] -> yucan_req:with_path(escaped(Path), none, Req)
            end,
    case Method of
        Before -> Moved;
        _ when is_atom(Method) -> yucan_req:with_method(atom_to_binary(Method), Moved);
        _ -> yucan_req:with_method(list_to_binary(Method), Moved)
    end;
rewritten(_, Req) -> Req.

%% A module may have put a decoded path there: what cannot be in a target is escaped again.
escaped(Path) ->
    << <<(case C > $\s andalso C < 127 of true -> <<C>>; false -> yucan_path:escape(<<C>>) end)/binary>> || <<C>> <= Path >>.

%% @doc The arg with the body: whole, or its first part if it is longer than so many bytes.
-spec with_body(#arg{}, yucan_req:req(), PartBytes :: pos_integer() | nolimit) -> {ok, #arg{}} | {error, term()}.
with_body(Arg, Req, PartBytes) ->
    case yucan_req:has_body(Req) of
        false -> {ok, Arg};
        true -> gather(Arg, Req, PartBytes, <<>>)
    end.

gather(Arg, _, Limit, Before) when is_integer(Limit), byte_size(Before) >= Limit ->
    {ok, Arg#arg{clidata = {partial, Before}}};
gather(Arg, Req, Limit, Before) ->
    case yucan_req:read(Req) of
        {more, Data} -> gather(Arg, Req, Limit, <<Before/binary, Data/binary>>);
        {ok, Data} -> {ok, Arg#arg{clidata = <<Before/binary, Data/binary>>}};
        {error, Reason} -> {error, Reason}
    end.

%% @doc Keeps the request for {@link request/0}, in the process that answers it.
-spec remember(yucan_req:req()) -> ok.
remember(Req) ->
    _ = put(?MODULE, Req),
    ok.

%% @doc The request that this process answers, for helpers that get an #arg{} only.
-spec request() -> yucan_req:req().
request() ->
    case get(?MODULE) of
        undefined -> error(not_in_the_process_of_a_request);
        Req -> Req
    end.

-ifdef(TEST).

headers_test() ->
    Headers = headers([{<<"host">>, <<"h">>}, {<<"cookie">>, <<"a=1">>}, {<<"cookie">>, <<"b=2">>}, {<<"x-forwarded-proto">>, <<"https">>},
                       {<<"authorization">>, <<"Basic am9lOnB3">>}]),
    ?assertMatch(#headers{host = "h", cookie = ["a=1", "b=2"], authorization = {"joe", "pw", "Basic am9lOnB3"},
                          other = [{http_header, 0, "X-Forwarded-Proto", undefined, "https"}]}, Headers).

-endif.
