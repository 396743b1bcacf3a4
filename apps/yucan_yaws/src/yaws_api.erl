%% SPDX-License-Identifier: Apache-2.0
%% @doc Helpers under the names that modules written for Yaws call. Strings are lists of bytes, as there.
-module(yaws_api).

-export([url_decode/1, url_decode_q_split/1, url_encode/1, parse_query/1, parse_post/1, queryvar/2, postvar/2, find_cookie_val/2,
         setcookie/2, setcookie/3, htmlize/1, ehtml_expand/1, getconf/0, code_to_phrase/1, mime_type/1, request_url/1, redirect/1,
         stream_chunk_deliver/2, stream_chunk_deliver_blocking/2, stream_chunk_end/1, stream_process_deliver/2,
         stream_process_deliver_chunk/2, stream_process_deliver_final_chunk/2, stream_process_end/2, websocket_send/2,
         arg_headers/1, arg_req/1, arg_pathinfo/1, arg_opaque/1, arg_docroot/1, arg_clidata/1, arg_querydata/1, arg_appmoddata/1,
         arg_server_path/1, arg_prepath/1, arg_state/1, headers_host/1, headers_cookie/1, headers_authorization/1, headers_other/1,
         headers_content_type/1, http_request_method/1, http_request_path/1, f/2]).

-include("../include/yaws_api.hrl").
-include("../include/yaws.hrl").

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

%% @doc A text with its percent signs decoded.
-spec url_decode(string()) -> string().
url_decode(Text) -> binary_to_list(yucan_path:unescape(list_to_binary(Text))).

%% @doc A target as its decoded path and its raw query.
-spec url_decode_q_split(string()) -> {Path :: string(), Query :: string()}.
url_decode_q_split(Target) ->
    case string:split(Target, "?") of
        [Path, Query] -> {url_decode(Path), Query};
        [Path] -> {url_decode(Path), ""}
    end.

%% @doc A text for use in a URL; slashes stay. Characters beyond Latin-1 make it UTF-8, otherwise each one is a byte.
-spec url_encode(string() | binary()) -> string().
url_encode(Text) ->
    Bytes = case io_lib:latin1_char_list(Text) of
                true -> list_to_binary(Text);
                false -> unicode:characters_to_binary(Text)
            end,
    binary_to_list(yucan_path:escape(Bytes)).

%% @doc The pairs of the query. A name without a value has the value `undefined'.
-spec parse_query(#arg{}) -> [{string(), string() | undefined}].
parse_query(#arg{querydata = undefined}) -> [];
parse_query(#arg{querydata = Query}) -> pairs(Query).

%% @doc The pairs of a form that was sent as the body.
-spec parse_post(#arg{}) -> [{string(), string() | undefined}].
parse_post(#arg{clidata = Body}) when is_binary(Body) -> pairs(binary_to_list(Body));
parse_post(_) -> [].

pairs(Text) ->
    [{binary_to_list(Name), case Value of undefined -> undefined; _ -> binary_to_list(Value) end}
     || {Name, Value} <- yucan_req:pairs(list_to_binary(Text), undefined)].

%% @doc The value of a name in the query; a tuple of all values if it has several.
-spec queryvar(#arg{}, atom() | string()) -> {ok, string()} | tuple() | undefined.
queryvar(Arg, Name) -> var(Name, parse_query(Arg)).

%% @doc The same of a name in a form.
-spec postvar(#arg{}, atom() | string()) -> {ok, string()} | tuple() | undefined.
postvar(Arg, Name) -> var(Name, parse_post(Arg)).

var(Name, Pairs) when is_atom(Name) -> var(atom_to_list(Name), Pairs);
var(Name, Pairs) ->
    case [Value || {Found, Value} <- Pairs, Found =:= Name, Value =/= undefined] of
        [] -> undefined;
        [Value] -> {ok, Value};
        Values -> list_to_tuple(Values)
    end.

%% @doc The value of a cookie without its quotes, "" if there is none. Upper and lower case are the same in the name.
-spec find_cookie_val(string(), #arg{} | #headers{} | [string()]) -> string().
find_cookie_val(Name, #arg{headers = Headers}) -> find_cookie_val(Name, Headers);
find_cookie_val(Name, #headers{cookie = Cookies}) -> find_cookie_val(Name, Cookies);
find_cookie_val(Name, Cookies) ->
    Key = yucan_header:lower(list_to_binary(Name)),
    case [binary_to_list(Value) || Text <- Cookies, {Found, Value} <- yucan_req:cookie_pairs(list_to_binary(Text)),
                                   yucan_header:lower(Found) =:= Key] of
        [[$" | Quoted] | _] -> string:trim(Quoted, trailing, "\"");
        [Value | _] -> Value;
        [] -> ""
    end.

%% @doc A header that sets a cookie.
-spec setcookie(string(), string()) -> {header, {set_cookie, iolist()}}.
setcookie(Name, Value) -> {header, {set_cookie, [Name, "=", Value]}}.

%% @doc The same, for a path.
-spec setcookie(string(), string(), Path :: string()) -> {header, {set_cookie, iolist()}}.
setcookie(Name, Value, Path) -> {header, {set_cookie, [Name, "=", Value, "; Path=", Path]}}.

%% @doc Text for HTML.
-spec htmlize(iodata()) -> binary() | string().
htmlize(Text) when is_binary(Text) -> iolist_to_binary(yucan_error:escape(Text));
htmlize(Text) -> binary_to_list(iolist_to_binary(yucan_error:escape(Text))).

%% @doc HTML from terms: `{Tag, [{Attribute, Value}], Body}'. A function without arguments, or `{Module, Function, Argument}' with a list as its one
%% argument, stands for what it returns. A quote in a value of an attribute is escaped. Texts are bytes, so a character above 255 is an error.
-spec ehtml_expand(term()) -> iodata().
ehtml_expand(Byte) when is_integer(Byte), Byte >= 0, Byte =< 255 -> <<Byte>>;
%% Its low byte alone could be `<', which nobody has escaped.
ehtml_expand(Character) when is_integer(Character) ->
    error({ehtml_takes_bytes, Character, "encode the text with unicode:characters_to_binary/1"});
ehtml_expand(Text) when is_binary(Text) -> Text;
ehtml_expand(Function) when is_function(Function, 0) -> ehtml_expand(Function());
ehtml_expand({pre_html, Html}) -> Html;
ehtml_expand({Tag}) -> ehtml_expand({Tag, []});
ehtml_expand({Tag, Attributes}) ->
    case is_void(Tag) of
        true -> ["<", atom_to_list(Tag), attributes(Attributes), " />"];
        false -> ehtml_expand({Tag, Attributes, []})
    end;
ehtml_expand({Module, Function, Argument}) when is_atom(Function), is_list(Argument) -> ehtml_expand(Module:Function(Argument));
ehtml_expand({Tag, Attributes, Body}) ->
    ["<", atom_to_list(Tag), attributes(Attributes), ">", ehtml_expand(Body), "</", atom_to_list(Tag), ">"];
ehtml_expand(List) when is_list(List) -> [ehtml_expand(Item) || Item <- List].

%% The elements of HTML that have no end tag. All others need one, also if they are empty.
is_void(Tag) ->
    lists:member(Tag, [area, base, br, col, embed, hr, img, input, keygen, link, meta, param, source, track, wbr]).

attributes(Attributes) -> [[" ", attribute(Attribute)] || Attribute <- Attributes].

attribute({check, Name, Value}) -> attribute({Name, Value});
attribute({Name, Value}) -> [atom_to_list(Name), "=\"", value(Value), "\""];
attribute(Name) when is_atom(Name) -> atom_to_list(Name);
attribute(Text) -> Text.

value({Module, Function, Argument}) -> value(Module:Function(Argument));
value(Function) when is_function(Function, 0) -> value(Function());
value(Value) when is_atom(Value) -> atom_to_list(Value);
value(Value) when is_integer(Value) -> integer_to_list(Value);
value(Value) when is_float(Value) -> float_to_list(Value);
%% Modules escape the rest themselves, as by htmlize/1.
value(Value) -> binary:replace(iolist_to_binary(Value), <<"\"">>, <<"&quot;">>, [global]).

%% @doc The configuration that is served now.
-spec getconf() -> {ok, #gconf{}, [[#sconf{}]]}.
getconf() -> yucan_yaws_options:records().

%% @doc The words of a status.
-spec code_to_phrase(integer()) -> string().
code_to_phrase(Status) -> binary_to_list(yucan_error:reason(Status)).

%% @doc The type of a file, by its name.
-spec mime_type(string()) -> string().
mime_type(Name) -> binary_to_list(iolist_to_binary(yucan_mime:of_file(unicode:characters_to_binary(Name)))).

%% @doc The URL of the request, as the client sees it.
-spec request_url(#arg{}) -> #url{}.
request_url(#arg{req = #http_request{path = {abs_path, Target}}}) ->
    Req = yucan_yaws_out:request(),
    {Path, Query} = case string:split(Target, "?") of
                        [P, Q] -> {P, Q};
                        [P] -> {P, ""}
                    end,
    #url{scheme = atom_to_list(yucan_req:scheme(Req)), host = binary_to_list(yucan_req:host(Req)), port = yucan_req:port(Req),
         path = Path, querypart = Query}.

%% @doc A redirect to a URL.
-spec redirect(string()) -> [{redirect, string()}].
redirect(Url) -> [{redirect, Url}].

%% @doc A piece of a stream, without waiting.
-spec stream_chunk_deliver(pid(), iodata()) -> ok.
stream_chunk_deliver(Pid, Data) -> yucan_yaws_stream:deliver(Pid, Data).

%% @doc A piece of a stream; returns when the client has taken it.
-spec stream_chunk_deliver_blocking(pid(), iodata()) -> ok | {error, closed | timeout}.
stream_chunk_deliver_blocking(Pid, Data) -> yucan_yaws_stream:deliver_blocking(Pid, Data).

%% @doc The end of a stream.
-spec stream_chunk_end(pid()) -> ok.
stream_chunk_end(Pid) -> yucan_yaws_stream:finish(Pid).

%% @doc A piece of a stream from a process of its own; the first argument is the `clisock' of the arg.
-spec stream_process_deliver({yucan_stream, pid()}, iodata()) -> ok | {error, closed | timeout}.
stream_process_deliver({yucan_stream, Pid}, Data) -> yucan_yaws_stream:deliver_blocking(Pid, Data).

%% @doc The same; the server makes chunks itself.
-spec stream_process_deliver_chunk({yucan_stream, pid()}, iodata()) -> ok | {error, closed | timeout}.
stream_process_deliver_chunk(Socket, Data) -> stream_process_deliver(Socket, Data).

%% @doc The last piece; {@link stream_process_end/2} comes after it.
-spec stream_process_deliver_final_chunk({yucan_stream, pid()}, iodata()) -> ok | {error, closed | timeout}.
stream_process_deliver_final_chunk(Socket, Data) -> stream_process_deliver(Socket, Data).

%% @doc The end of a stream from a process of its own.
-spec stream_process_end({yucan_stream, pid()} | closed, pid()) -> ok.
stream_process_end(_, Pid) -> yucan_yaws_stream:finish(Pid).

%% @doc Sends a message to the client of a WebSocket.
-spec websocket_send(pid(), {text | binary, iodata()}) -> ok.
websocket_send(Pid, Message) ->
    Pid ! {yucan_yaws_ws, send, Message},
    ok.

%% @doc Formatted text.
-spec f(io:format(), [term()]) -> string().
f(Format, Arguments) -> lists:flatten(io_lib:format(Format, Arguments)).

%% @doc A field of the arg.
-spec arg_headers(#arg{}) -> #headers{}.
arg_headers(#arg{headers = Value}) -> Value.

%% @doc A field of the arg.
-spec arg_req(#arg{}) -> #http_request{}.
arg_req(#arg{req = Value}) -> Value.

%% @doc A field of the arg.
-spec arg_pathinfo(#arg{}) -> string() | undefined.
arg_pathinfo(#arg{pathinfo = Value}) -> Value.

%% @doc A field of the arg.
-spec arg_opaque(#arg{}) -> term().
arg_opaque(#arg{opaque = Value}) -> Value.

%% @doc A field of the arg.
-spec arg_docroot(#arg{}) -> string() | undefined.
arg_docroot(#arg{docroot = Value}) -> Value.

%% @doc A field of the arg.
-spec arg_clidata(#arg{}) -> binary() | {partial, binary()}.
arg_clidata(#arg{clidata = Value}) -> Value.

%% @doc A field of the arg.
-spec arg_querydata(#arg{}) -> string().
arg_querydata(#arg{querydata = Value}) -> Value.

%% @doc A field of the arg.
-spec arg_appmoddata(#arg{}) -> string() | undefined.
arg_appmoddata(#arg{appmoddata = Value}) -> Value.

%% @doc A field of the arg.
-spec arg_server_path(#arg{}) -> string().
arg_server_path(#arg{server_path = Value}) -> Value.

%% @doc A field of the arg.
-spec arg_prepath(#arg{}) -> string() | undefined.
arg_prepath(#arg{prepath = Value}) -> Value.

%% @doc A field of the arg.
-spec arg_state(#arg{}) -> term().
arg_state(#arg{state = Value}) -> Value.

%% @doc A field of the headers.
-spec headers_host(#headers{}) -> string() | undefined.
headers_host(#headers{host = Value}) -> Value.

%% @doc A field of the headers.
-spec headers_cookie(#headers{}) -> [string()].
headers_cookie(#headers{cookie = Value}) -> Value.

%% @doc A field of the headers.
-spec headers_authorization(#headers{}) -> {string() | undefined, string() | undefined, string()} | undefined.
headers_authorization(#headers{authorization = Value}) -> Value.

%% @doc A field of the headers.
-spec headers_content_type(#headers{}) -> string() | undefined.
headers_content_type(#headers{content_type = Value}) -> Value.

%% @doc A field of the headers.
-spec headers_other(#headers{}) -> [tuple()].
headers_other(#headers{other = Value}) -> Value.

%% @doc A field of the request.
-spec http_request_method(#http_request{}) -> atom() | string().
http_request_method(#http_request{method = Value}) -> Value.

%% @doc A field of the request.
-spec http_request_path(#http_request{}) -> {abs_path, string()}.
http_request_path(#http_request{path = Value}) -> Value.

-ifdef(TEST).

split_test_() ->
    [?_assertEqual({"/a b", "c=%20"}, url_decode_q_split("/a%20b?c=%20")), ?_assertEqual({"/a", ""}, url_decode_q_split("/a"))].

query_test_() ->
    Headers = #headers{cookie = ["x=1; y=2", "Sid=\"3=\""]},
    Arg = #arg{querydata = "a=1&b&c=%20x+y&a=2", clidata = <<"d=3&d&d=4&e=">>, headers = Headers},
    [?_assertEqual([{"a", "1"}, {"b", undefined}, {"c", " x y"}, {"a", "2"}], parse_query(Arg)),
     ?_assertEqual({"1", "2"}, queryvar(Arg, "a")), ?_assertEqual(undefined, queryvar(Arg, "b")), ?_assertEqual({ok, " x y"}, queryvar(Arg, c)),
     ?_assertEqual({"3", "4"}, postvar(Arg, d)), ?_assertEqual({ok, ""}, postvar(Arg, "e")), ?_assertEqual(undefined, postvar(Arg, a)),
     ?_assertEqual("2", find_cookie_val("y", Arg)), ?_assertEqual("", find_cookie_val("q", Arg)),
     ?_assertEqual("3=", find_cookie_val("sID", Headers))].

%% What parse_query/1 gives goes back as it came.
url_encode_test_() ->
    [?_assertEqual(Encoded, url_encode(Text))
     || {Text, Encoded} <- [{url_decode("%C3%A9%26/b"), "%C3%A9%26/b"}, {"\x{e9}", "%E9"}, {"\x{e9}\x{416}", "%C3%A9%D0%96"}, {<<"\x{416}"/utf8>>, "%D0%96"}]].

ehtml_test_() ->
    [?_assertEqual(Html, iolist_to_binary(ehtml_expand(Term)))
     || {Term, Html} <- [{[{p, [{class, "a\""}], ["x", {b, [], <<"y">>}]}, {br}], <<"<p class=\"a&quot;\">x<b>y</b></p><br />">>},
                         {[{'div'}, {script, [{src, <<"a.js">>}]}], <<"<div></div><script src=\"a.js\"></script>">>},
                         {{input, [disabled, "lang=en", {size, 5}, {check, value, htmlize("<\"")}]},
                          <<"<input disabled lang=en size=\"5\" value=\"&lt;&quot;\" />">>},
                         {{a, [{href, fun() -> "/?a&b" end}, {id, {lists, concat, [n, 1]}}], [fun() -> {i, [], "z"} end, {lists, concat, ["u", "v"]}]},
                          <<"<a href=\"/?a&b\" id=\"n1\"><i>z</i>uv</a>">>},
                         {[0, 255, {p, [], [127, <<"\x{20ac}"/utf8>>]}], <<0, 255, "<p>", 127, "\x{20ac}</p>"/utf8>>}]].

%% U+013C would become `<' if only its low byte were kept.
ehtml_takes_bytes_test_() ->
    [?_assertError({ehtml_takes_bytes, Character, _}, ehtml_expand({p, [], ["a", Character | "script"]}))
     || Character <- [16#13C, 16#20AC, 256, -1]].

-endif.
