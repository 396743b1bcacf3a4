%% SPDX-License-Identifier: Apache-2.0
%% @doc Access to the `#headers{}' of modules written for Yaws: to a single header by its name, and to all headers as lines. All functions are
%% pure. Used by {@link yaws_api}.
%%
%% A name is an atom, a binary or a string, and is not case-sensitive. Headers for which the record has no field are in `other'.
-module(yucan_yaws_headers).

-export([received/1, get/2, set/3, merge/3, lines/2]).
-export_type([name/0, value/0]).

-include("../../include/yaws_api.hrl").

-type name() :: atom() | binary() | string() | {lower, string()}.
-type value() :: undefined | atom() | binary() | string() | tuple() | [string()].
%% `{multi, Values}' is a header that occurs several times.

-define(FIELDS, #{
    <<"connection">> => #headers.connection, <<"accept">> => #headers.accept, <<"host">> => #headers.host,
    <<"if-modified-since">> => #headers.if_modified_since, <<"if-match">> => #headers.if_match, <<"if-none-match">> => #headers.if_none_match,
    <<"if-range">> => #headers.if_range, <<"if-unmodified-since">> => #headers.if_unmodified_since, <<"range">> => #headers.range,
    <<"referer">> => #headers.referer, <<"user-agent">> => #headers.user_agent, <<"accept-ranges">> => #headers.accept_ranges,
    <<"cookie">> => #headers.cookie, <<"keep-alive">> => #headers.keep_alive, <<"location">> => #headers.location,
    <<"content-length">> => #headers.content_length, <<"content-type">> => #headers.content_type, <<"content-encoding">> => #headers.content_encoding,
    <<"authorization">> => #headers.authorization, <<"transfer-encoding">> => #headers.transfer_encoding, <<"x-forwarded-for">> => #headers.x_forwarded_for
}).

%% @doc Returns the headers of a request, with the names in `other' as erlang:decode_packet/3 writes them.
-spec received([{binary(), binary()}]) -> #headers{}.
received(Headers) ->
    Record = lists:foldl(fun add/2, #headers{}, Headers),
    Record#headers{cookie = lists:reverse(Record#headers.cookie), other = lists:reverse(Record#headers.other)}.

add({<<"cookie">>, Value}, #headers{cookie = Before} = Headers) -> Headers#headers{cookie = [binary_to_list(Value) | Before]};
add({<<"authorization">>, Value}, Headers) -> Headers#headers{authorization = authorization(Value)};
add({Name, Value}, #headers{other = Others} = Headers) ->
    case ?FIELDS of
        #{Name := At} -> setelement(At, Headers, binary_to_list(Value));
        _ -> Headers#headers{other = [{http_header, 0, capitalised(binary_to_list(Name)), undefined, binary_to_list(Value)} | Others]}
    end.

authorization(Text) ->
    case yucan_yaws_auth:basic(Text) of
        {ok, User, Password} -> {binary_to_list(User), binary_to_list(Password), binary_to_list(Text)};
        error -> {undefined, undefined, binary_to_list(Text)}
    end.

%% @doc Returns the value of a header.
-spec get(name(), #headers{}) -> value().
get(Name, Headers) ->
    case place(Name) of
        {field, At} -> element(At, Headers);
        {other, Lower} ->
            case [Value || {http_header, _, Other, _, Value} <- Headers#headers.other, lower(Other) =:= Lower] of
                [Value | _] -> Value;
                [] -> undefined
            end
    end.

%% @doc Replaces all headers with this name by a single header, or removes them if the value is `undefined'.
-spec set(name(), value(), #headers{}) -> #headers{}.
set(Name, Value, Headers) when is_binary(Value) -> set(Name, binary_to_list(Value), Headers);
set(Name, Value, #headers{other = Others} = Headers) ->
    case place(Name) of
        {field, #headers.cookie} when Value =:= undefined -> Headers#headers{cookie = []};
        {field, At} -> setelement(At, Headers, Value);
        {other, Lower} ->
            Is = fun({http_header, _, Other, _, _}) -> lower(Other) =:= Lower end,
            New = {http_header, 0, capitalised(Lower), undefined, Value},
            case lists:splitwith(fun(Header) -> not Is(Header) end, Others) of
                {Before, Rest} when Value =:= undefined -> Headers#headers{other = Before ++ lists:filter(fun(H) -> not Is(H) end, Rest)};
                {Before, []} -> Headers#headers{other = Before ++ [New]};
                {Before, [_ | Rest]} -> Headers#headers{other = Before ++ [New | lists:filter(fun(H) -> not Is(H) end, Rest)]}
            end
    end.

%% @doc Adds a value to a header: appends it after a comma or, for set-cookie, adds it as a separate header.
-spec merge(name(), value(), #headers{}) -> #headers{}.
merge(_, undefined, Headers) -> Headers;
merge(Name, Value, Headers) when is_binary(Value) -> merge(Name, binary_to_list(Value), Headers);
merge(Name, Value, Headers) -> set(Name, merged(place(Name), get(Name, Headers), Value), Headers).

merged({other, "set-cookie"}, undefined, Value) -> {multi, [Value]};
merged({other, "set-cookie"}, {multi, Before}, Value) -> {multi, Before ++ [Value]};
merged({other, "set-cookie"}, Before, Value) -> {multi, [Before, Value]};
merged({field, #headers.cookie}, Before, Value) -> Before ++ [Value];
merged(_, undefined, Value) -> Value;
merged(_, Before, Value) -> Before ++ ", " ++ Value.

%% @doc Calls the function for each header, with the header's name as it is sent and its value, and
%% returns the results. If a result is `{multi, Results}', all of these are added.
-spec lines(fun((string() | atom(), value()) -> term()), #headers{}) -> [term()].
lines(Format, #headers{other = Others} = Headers) ->
    Fields = [{capitalised(hyphens(Field)), Value}
              || {Field, Value} <- lists:zip(fields(), lists:droplast(tl(tuple_to_list(Headers)))), Value =/= undefined, Value =/= []],
    lists:append([case Format(Name, sent(Name, Value)) of {multi, Several} -> Several; One -> [One] end
                  || {Name, Value} <- Fields ++ [{Name, Value} || {http_header, _, Name, _, Value} <- Others]]).

%% These two headers are stored in a different form from the one that the client sent.
sent("Cookie", [[_ | _] | _] = Cookies) -> lists:append(lists:join("; ", Cookies));
sent("Authorization", {_, _, Text}) -> Text;
sent(_, Value) -> Value.

place({lower, Lower}) -> place(Lower);
place(Name) ->
    Key = key(Name),
    case ?FIELDS of
        #{Key := At} -> {field, At};
        _ -> {other, lower(Name)}
    end.

%% A name may also be the record's field, with underscores.
key(Name) ->
    case lists:member(Name, fields()) of
        true -> list_to_binary(hyphens(Name));
        false -> list_to_binary(lower(Name))
    end.

fields() -> lists:droplast(record_info(fields, headers)).

hyphens(Field) -> lists:flatten(string:replace(atom_to_list(Field), "_", "-", all)).

lower(Name) when is_atom(Name) -> lower(atom_to_list(Name));
lower(Name) -> binary_to_list(yucan_header:lower(iolist_to_binary(Name))).

capitalised(Lower) -> lists:flatten(lists:join("-", [string:titlecase(Part) || Part <- string:split(Lower, "-", all)])).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

headers_test() ->
    Headers = received([{<<"host">>, <<"h">>}, {<<"cookie">>, <<"a=1">>}, {<<"cookie">>, <<"b=2">>}, {<<"x-forwarded-proto">>, <<"https">>},
                       {<<"authorization">>, <<"Basic am9lOnB3">>}]),
    ?assertMatch(#headers{host = "h", cookie = ["a=1", "b=2"], authorization = {"joe", "pw", "Basic am9lOnB3"},
                          other = [{http_header, 0, "X-Forwarded-Proto", undefined, "https"}]}, Headers).

all_names_test_() ->
    [?_assertEqual({"v", "v", #headers{}}, {get(Name, Set), element(At, Set), set(Field, undefined, Set)})
     || {At, Field} <- lists:enumerate(2, fields()), Field =/= cookie,
        Name <- [Field, hyphens(Field), string:uppercase(hyphens(Field)), list_to_binary(hyphens(Field)), {lower, hyphens(Field)}],
        Set <- [set(Name, "v", #headers{})]].

others_test() ->
    One = set(<<"x-own">>, <<"1">>, #headers{}),
    ?assertEqual(#headers{other = [{http_header, 0, "X-Own", undefined, "1"}]}, One),
    Two = set('X-Other', "2", set("X-OWN", "3", One)),
    ?assertEqual(["3", "2", undefined], [get(Name, Two) || Name <- ["x-own", 'x-other', "x-third"]]),
    ?assertEqual(#headers{other = [{http_header, 0, "X-Other", undefined, "2"}]}, set("x-own", undefined, Two)),
    %% Other code that uses the record may leave it in this form.
    Twice = #headers{other = [{http_header, 5, 'X-A', undefined, "1"}, {http_header, 5, <<"x-b">>, undefined, "2"}, {http_header, 5, "x-a", undefined, "3"}]},
    ?assertEqual(["X-A: 4", "x-b: 2"], text(set(<<"x-A">>, "4", Twice))).

merge_test() ->
    Cookies = merge("Set-Cookie", <<"b=2">>, merge("set-cookie", "a=1", #headers{})),
    ?assertEqual({multi, ["a=1", "b=2"]}, get("set-cookie", Cookies)),
    ?assertEqual(Cookies, merge(accept, undefined, Cookies)),
    ?assertEqual("a/b, c/d", get("accept", merge(accept, "c/d", merge(accept, "a/b", Cookies)))),
    ?assertEqual({multi, ["a=1", "b=2"]}, get("set-cookie", merge("SET-COOKIE", "b=2", set("set-cookie", "a=1", #headers{})))).

text(Headers) ->
    lines(fun(Name, {multi, Values}) -> {multi, [lists:flatten(io_lib:format("~s: ~s", [Name, Value])) || Value <- Values]};
             (Name, Value) -> lists:flatten(io_lib:format("~s: ~s", [Name, Value]))
          end, Headers).

lines_test() ->
    Headers = #headers{host = "h", cookie = ["a=1", "b=2"], if_none_match = "*", authorization = {"joe", "pw", "Basic am9lOnB3"},
                       other = [{http_header, 0, "X-Own", undefined, "1"}]},
    ?assertEqual(["Host: h", "If-None-Match: *", "Cookie: a=1; b=2", "Authorization: Basic am9lOnB3", "X-Own: 1", "Set-Cookie: c", "Set-Cookie: d"],
                 text(merge("set-cookie", "d", merge("set-cookie", "c", Headers)))),
    ?assertEqual([], text(#headers{})).

-endif.
