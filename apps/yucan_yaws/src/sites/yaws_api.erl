%% SPDX-License-Identifier: Apache-2.0
%% @doc Helper functions that modules written for Yaws call. The functions have the same names as in
%% Yaws, and strings are lists of bytes, as they are there.
-module(yaws_api).

-export([url_decode/1, url_decode_q_split/1, url_encode/1, parse_query/1, parse_post/1, parse_multipart_post/1, parse_multipart_post/2,
         parse_multipart/2, parse_multipart/3, queryvar/2, postvar/2, getvar/2, find_cookie_val/2, parse_cookie/1, parse_set_cookie/1, format_cookie/1,
         format_set_cookie/1, set_cookie/3, setcookie/2, setcookie/3, setcookie/4, setcookie/5, setcookie/6, new_cookie_session/1, new_cookie_session/2,
         new_cookie_session/3, cookieval_to_opaque/1, replace_cookie_session/2, replace_cookie_session/3, delete_cookie_session/1, htmlize/1,
         ehtml_expand/1, getconf/0, code_to_phrase/1, mime_type/1, request_url/1, redirect/1, set_content_type/1, set_status_code/1, sanitize_file_name/1,
         stream_chunk_deliver/2, stream_chunk_deliver_blocking/2, stream_chunk_end/1, stream_process_deliver/2,
         stream_process_deliver_chunk/2, stream_process_deliver_final_chunk/2, stream_process_end/2, websocket_send/2, f/2]).
-export([get_header/2, get_header/3, set_header/2, set_header/3, delete_header/2, merge_header/2, merge_header/3, reformat_header/1, reformat_header/2,
         reformat_header/3]).
-export([arg_clisock/1, arg_client_ip_port/1, arg_headers/1, arg_req/1, arg_orig_req/1, arg_clidata/1, arg_server_path/1, arg_querydata/1,
         arg_appmoddata/1, arg_docroot/1, arg_docroot_mount/1, arg_fullpath/1, arg_cont/1, arg_state/1, arg_pid/1, arg_opaque/1, arg_appmod_prepath/1,
         arg_prepath/1, arg_pathinfo/1, http_request_method/1, http_request_path/1, http_request_version/1]).
-export([headers_connection/1, headers_accept/1, headers_host/1, headers_if_modified_since/1, headers_if_match/1, headers_if_none_match/1,
         headers_if_range/1, headers_if_unmodified_since/1, headers_range/1, headers_referer/1, headers_user_agent/1, headers_accept_ranges/1,
         headers_cookie/1, headers_keep_alive/1, headers_location/1, headers_content_length/1, headers_content_type/1, headers_content_encoding/1,
         headers_authorization/1, headers_transfer_encoding/1, headers_x_forwarded_for/1, headers_other/1]).

-include("../../include/yaws_api.hrl").
-include("../../include/yaws.hrl").

%% The default lifetime of a session.
-define(SESSION_S, 1800).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

%% @doc Decodes the percent escapes in a text.
-spec url_decode(string()) -> string().
url_decode(Text) -> binary_to_list(yucan_path:unescape(list_to_binary(Text))).

%% @doc Splits a request target into its decoded path and its raw query.
-spec url_decode_q_split(string()) -> {Path :: string(), Query :: string()}.
url_decode_q_split(Target) ->
    case string:split(Target, "?") of
        [Path, Query] -> {url_decode(Path), Query};
        [Path] -> {url_decode(Path), ""}
    end.

%% @doc Percent-encodes a text for use in a URL, except for slashes. A text with characters beyond Latin-1 is encoded as UTF-8 first; otherwise each
%% character is treated as a byte.
-spec url_encode(string() | binary()) -> string().
url_encode(Text) ->
    Bytes = case io_lib:latin1_char_list(Text) of
                true -> list_to_binary(Text);
                false -> unicode:characters_to_binary(Text)
            end,
    binary_to_list(yucan_path:escape(Bytes)).

%% @doc Returns the name-value pairs of the query. A name without a value has the value `undefined'.
-spec parse_query(#arg{}) -> [{string(), string() | undefined}].
parse_query(#arg{querydata = undefined}) -> [];
parse_query(#arg{querydata = Query}) -> pairs(Query).

%% @doc Returns the name-value pairs of a form that was sent as the request body.
-spec parse_post(#arg{}) -> [{string(), string() | undefined}].
parse_post(#arg{clidata = Body}) when is_binary(Body) -> pairs(binary_to_list(Body));
parse_post(_) -> [].

pairs(Text) ->
    [{binary_to_list(Name), case Value of undefined -> undefined; _ -> binary_to_list(Value) end}
     || {Name, Value} <- yucan_req:pairs(list_to_binary(Text), undefined)].

%% @doc Returns the parts of a multipart form. After `{cont, Cont, Parts}', `out/1' returns `{get_more, Cont, State}' to get more of the body.
-spec parse_multipart_post(#arg{}) -> yucan_yaws_form:result().
parse_multipart_post(Arg) -> parse_multipart_post(Arg, [list]).

%% @doc Like {@link parse_multipart_post/1}, but returns contents as strings or binaries.
-spec parse_multipart_post(#arg{}, [yucan_yaws_form:option()]) -> yucan_yaws_form:result().
parse_multipart_post(Arg, Options) -> yucan_yaws_form:parse(Arg, Options).

%% @doc Like {@link parse_multipart_post/1}, but parses the given bytes. The second argument is the
%% boundary, or the result of the previous call.
-spec parse_multipart(binary(), string() | {cont, yucan_yaws_form:cont()}) -> yucan_yaws_form:result().
parse_multipart(Bytes, State) -> parse_multipart(Bytes, State, [list]).

%% @doc Like {@link parse_multipart/2}, but returns contents as strings or binaries.
-spec parse_multipart(binary(), string() | {cont, yucan_yaws_form:cont()}, [yucan_yaws_form:option()]) -> yucan_yaws_form:result().
parse_multipart(Bytes, State, Options) -> yucan_yaws_form:parse(Bytes, State, Options).

%% @doc Looks up a name in the query. Returns its value, or a tuple of all values if there are several.
-spec queryvar(#arg{}, atom() | string()) -> {ok, string()} | tuple() | undefined.
queryvar(Arg, Name) -> var(Name, parse_query(Arg)).

%% @doc Like {@link queryvar/2}, but looks up a name in the form.
-spec postvar(#arg{}, atom() | string()) -> {ok, string()} | tuple() | undefined.
postvar(Arg, Name) -> var(Name, parse_post(Arg)).

%% @doc Like {@link queryvar/2}, but looks up a name in both the query and the form.
-spec getvar(#arg{}, atom() | string()) -> {ok, string()} | tuple() | undefined.
getvar(Arg, Name) -> var(Name, parse_query(Arg) ++ parse_post(Arg)).

var(Name, Pairs) when is_atom(Name) -> var(atom_to_list(Name), Pairs);
var(Name, Pairs) ->
    case [Value || {Found, Value} <- Pairs, Found =:= Name, Value =/= undefined] of
        [] -> undefined;
        [Value] -> {ok, Value};
        Values -> list_to_tuple(Values)
    end.

%% @doc Returns the value of a cookie without its quotes, or "" if there is no such cookie. Names are not case-sensitive.
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

%% @doc Parses a `Cookie' header into cookies, with names in lower case.
-spec parse_cookie(string()) -> [#cookie{}].
parse_cookie(Text) -> yucan_yaws_cookie:parse(Text).

%% @doc Parses a `Set-Cookie' header into a cookie, or a list if there are several.
-spec parse_set_cookie(string()) -> #setcookie{} | [#setcookie{}].
parse_set_cookie(Text) -> yucan_yaws_cookie:parse_set(Text).

%% @doc Formats cookies as the value of a `Cookie' header.
-spec format_cookie(#cookie{} | [#cookie{}]) -> iolist().
format_cookie(Cookies) -> yucan_yaws_cookie:format(Cookies).

%% @doc Formats a cookie as the value of a `Set-Cookie' header.
-spec format_set_cookie(#setcookie{}) -> iolist().
format_set_cookie(Cookie) -> yucan_yaws_cookie:format_set(Cookie).

%% @doc Returns a header that sets a cookie, with options such as `secure' and `{path, "/"}'.
-spec set_cookie(string(), string(), [yucan_yaws_cookie:option()]) -> {header, {set_cookie, iolist()}}.
set_cookie(Name, Value, Options) -> {header, {set_cookie, yucan_yaws_cookie:set(Name, Value, Options)}}.

%% @doc Like {@link set_cookie/3}, without options.
-spec setcookie(string(), string()) -> {header, {set_cookie, iolist()}}.
setcookie(Name, Value) -> set_cookie(Name, Value, []).

%% @doc Like {@link setcookie/2}, with a path.
-spec setcookie(string(), string(), Path :: string()) -> {header, {set_cookie, iolist()}}.
setcookie(Name, Value, Path) -> {header, {set_cookie, [Name, "=", Value, "; Path=", Path]}}.

%% @doc Like {@link setcookie/3}, with an expiry date in the format of the header.
-spec setcookie(string(), string(), Path :: string(), Expires :: string()) -> {header, {set_cookie, iolist()}}.
setcookie(Name, Value, Path, Expires) -> setcookie(Name, Value, Path, Expires, "").

%% @doc Like {@link setcookie/4}, with a domain.
-spec setcookie(string(), string(), Path :: string(), Expires :: string(), Domain :: string()) -> {header, {set_cookie, iolist()}}.
setcookie(Name, Value, Path, Expires, Domain) -> setcookie(Name, Value, Path, Expires, Domain, "").

%% @doc Like {@link setcookie/5}. If the last argument is `on', the cookie is sent only over encrypted connections. An empty string leaves an
%% attribute out, except that an empty path means `/'.
-spec setcookie(string(), string(), Path :: string(), Expires :: string(), Domain :: string(), Secure :: on | term()) -> {header, {set_cookie, iolist()}}.
setcookie(Name, Value, Path, Expires, Domain, Secure) ->
    {header, {set_cookie, [Name, "=", Value, ["; Domain=" ++ Domain || Domain =/= ""], ["; Expires=" ++ Expires || Expires =/= ""],
                           ["; Secure" || Secure =:= on], "; Path=", case Path of "" -> "/"; _ -> Path end]}}.

%% @doc Creates a session that stores `Opaque' and ends when it has not been used for 30 minutes. Returns the value of the session's cookie.
-spec new_cookie_session(Opaque :: term()) -> string().
new_cookie_session(Opaque) -> new_cookie_session(Opaque, ?SESSION_S).

%% @doc Like {@link new_cookie_session/1}, with a lifetime in seconds.
-spec new_cookie_session(Opaque :: term(), Seconds :: non_neg_integer()) -> string().
new_cookie_session(Opaque, Seconds) -> new_cookie_session(Opaque, Seconds, undefined).

%% @doc Like {@link new_cookie_session/2}, with a process that receives `{yaws_session_end, timeout | normal, Cookie, Opaque}' when the session ends.
-spec new_cookie_session(Opaque :: term(), Seconds :: non_neg_integer() | undefined, Cleanup :: pid() | undefined) -> string().
new_cookie_session(Opaque, undefined, Cleanup) -> new_cookie_session(Opaque, ?SESSION_S, Cleanup);
new_cookie_session(Opaque, Seconds, Cleanup) -> yucan_yaws_session:new(Opaque, Seconds, Cleanup).

%% @doc Returns the data of a session.
-spec cookieval_to_opaque(string()) -> {ok, Opaque :: term()} | {error, no_session}.
cookieval_to_opaque(Cookie) -> yucan_yaws_session:find(Cookie).

%% @doc Replaces the data of a session.
-spec replace_cookie_session(string(), Opaque :: term()) -> true | error.
replace_cookie_session(Cookie, Opaque) -> replace_cookie_session(Cookie, Opaque, undefined).

%% @doc Like {@link replace_cookie_session/2}, and sets the process that is notified when the session ends.
-spec replace_cookie_session(string(), Opaque :: term(), Cleanup :: pid() | undefined) -> true | error.
replace_cookie_session(Cookie, Opaque, Cleanup) -> yucan_yaws_session:replace(Cookie, Opaque, Cleanup).

%% @doc Ends a session.
-spec delete_cookie_session(string()) -> true.
delete_cookie_session(Cookie) -> yucan_yaws_session:delete(Cookie).

%% @doc Escapes text for HTML.
-spec htmlize(iodata()) -> binary() | string().
htmlize(Text) when is_binary(Text) -> iolist_to_binary(yucan_error:escape(Text));
htmlize(Text) -> binary_to_list(iolist_to_binary(yucan_error:escape(Text))).

%% @doc Generates HTML from terms: `{Tag, [{Attribute, Value}], Body}'. A fun without arguments is replaced by its result, and so is
%% `{Module, Function, Argument}', which calls the function with one argument, a list. Quotes in the values of attributes are escaped. Text is a
%% sequence of bytes, so a character above 255 is an error.
-spec ehtml_expand(term()) -> iodata().
ehtml_expand(Term) -> yucan_yaws_ehtml:expand(Term).

%% @doc Returns the current configuration.
-spec getconf() -> {ok, #gconf{}, [[#sconf{}]]}.
getconf() -> yucan_yaws_options:records().

%% @doc Returns the reason phrase for a status code.
-spec code_to_phrase(integer()) -> string().
code_to_phrase(Status) -> binary_to_list(yucan_error:reason(Status)).

%% @doc Returns the MIME type of a file according to its name.
-spec mime_type(string()) -> string().
mime_type(Name) -> binary_to_list(iolist_to_binary(yucan_mime:of_file(unicode:characters_to_binary(Name)))).

%% @doc Returns the URL of the request as the client sees it.
-spec request_url(#arg{}) -> #url{}.
request_url(#arg{req = #http_request{path = {abs_path, Target}}}) ->
    Req = yucan_yaws_out:request(),
    {Path, Query} = case string:split(Target, "?") of
                        [P, Q] -> {P, Q};
                        [P] -> {P, ""}
                    end,
    #url{scheme = atom_to_list(yucan_req:scheme(Req)), host = binary_to_list(yucan_req:host(Req)), port = yucan_req:port(Req),
         path = Path, querypart = Query}.

%% @doc Returns a redirect to a URL.
-spec redirect(string()) -> [{redirect, string()}].
redirect(Url) -> [{redirect, Url}].

%% @doc Returns a result for `out/1' that sets the content type of the response.
-spec set_content_type(string()) -> {header, {content_type, string()}}.
set_content_type(Type) -> {header, {content_type, Type}}.

%% @doc Returns a result for `out/1' that sets the status of the response.
-spec set_status_code(integer()) -> {status, integer()}.
set_status_code(Status) -> {status, Status}.

%% @doc Removes all spaces, all characters that are special in a shell or in HTML, and all but one of the leading dots from a name. Slashes are kept.
-spec sanitize_file_name(string()) -> string().
sanitize_file_name(".." ++ Rest) -> sanitize_file_name("." ++ Rest);
sanitize_file_name([C | Rest]) ->
    case lists:member(C, " &;'`{}!\\?<>\"()$") of
        true -> sanitize_file_name(Rest);
        false -> [C | sanitize_file_name(Rest)]
    end;
sanitize_file_name([]) -> [].

%% @doc Returns the value of a header, or `undefined' if there is no such header. The name is an atom or a string, and is not case-sensitive.
-spec get_header(#headers{}, yucan_yaws_headers:name()) -> yucan_yaws_headers:value().
get_header(Headers, Name) -> yucan_yaws_headers:get(Name, Headers).

%% @doc Like {@link get_header/2}, but returns a default value if there is no such header.
-spec get_header(#headers{}, yucan_yaws_headers:name(), Default) -> yucan_yaws_headers:value() | Default.
get_header(Headers, Name, Default) ->
    case get_header(Headers, Name) of
        undefined -> Default;
        Value -> Value
    end.

%% @doc Replaces the value of a header.
-spec set_header(#headers{}, {yucan_yaws_headers:name(), yucan_yaws_headers:value()}) -> #headers{}.
set_header(Headers, {Name, Value}) -> set_header(Headers, Name, Value).

%% @doc Like {@link set_header/2}, with the name and the value as separate arguments.
-spec set_header(#headers{}, yucan_yaws_headers:name(), yucan_yaws_headers:value()) -> #headers{}.
set_header(Headers, Name, Value) -> yucan_yaws_headers:set(Name, Value, Headers).

%% @doc Removes a header.
-spec delete_header(#headers{}, yucan_yaws_headers:name()) -> #headers{}.
delete_header(Headers, Name) -> set_header(Headers, Name, undefined).

%% @doc Adds a value to a header: appends it after a comma or, for set-cookie, stores all values as `{multi, Values}'.
-spec merge_header(#headers{}, {yucan_yaws_headers:name(), yucan_yaws_headers:value()}) -> #headers{}.
merge_header(Headers, {Name, Value}) -> merge_header(Headers, Name, Value).

%% @doc Like {@link merge_header/2}, with the name and the value as separate arguments.
-spec merge_header(#headers{}, yucan_yaws_headers:name(), yucan_yaws_headers:value()) -> #headers{}.
merge_header(Headers, Name, Value) -> yucan_yaws_headers:merge(Name, Value, Headers).

%% @doc Returns the headers as lines: `["Host: example.com", ...]'.
-spec reformat_header(#headers{}) -> [string()].
reformat_header(Headers) ->
    Line = fun(Name, Value) -> lists:flatten(io_lib:format("~s: ~s", [Name, Value])) end,
    reformat_header(Headers, fun(Name, {multi, Values}) -> {multi, [Line(Name, Value) || Value <- Values]};
                                (Name, Value) -> Line(Name, Value)
                             end).

%% @doc Calls the function with the name and the value of each header, and returns the results.
-spec reformat_header(#headers{}, fun((term(), term()) -> term())) -> [term()].
reformat_header(Headers, Format) -> yucan_yaws_headers:lines(Format, Headers).

%% @doc Like {@link reformat_header/2}, but the last argument determines whether names and values are passed as strings or as binaries. If it is a
%% list, only its first element is used. With any other value, names and values are passed unchanged.
-spec reformat_header(#headers{}, fun((term(), term()) -> term()), string | binary | [string | binary]) -> [term()].
reformat_header(Headers, Format, [string | _]) -> reformat_header(Headers, Format, string);
reformat_header(Headers, Format, [binary | _]) -> reformat_header(Headers, Format, binary);
reformat_header(Headers, Format, Kind) -> reformat_header(Headers, fun(Name, Value) -> Format(as(Kind, Name), as(Kind, Value)) end).

as(Kind, {multi, Values}) -> {multi, [as(Kind, Value) || Value <- Values]};
as(Kind, Value) when is_atom(Value) -> as(Kind, atom_to_list(Value));
as(string, Value) when is_binary(Value) -> binary_to_list(Value);
as(binary, Value) when is_list(Value) -> iolist_to_binary(Value);
as(_, Value) -> Value.

%% @doc Sends a part of a stream without waiting.
-spec stream_chunk_deliver(pid(), iodata()) -> ok.
stream_chunk_deliver(Pid, Data) -> yucan_yaws_stream:deliver(Pid, Data).

%% @doc Sends a part of a stream, and returns when the client has accepted it.
-spec stream_chunk_deliver_blocking(pid(), iodata()) -> ok | {error, closed | timeout}.
stream_chunk_deliver_blocking(Pid, Data) -> yucan_yaws_stream:deliver_blocking(Pid, Data).

%% @doc Ends a stream.
-spec stream_chunk_end(pid()) -> ok.
stream_chunk_end(Pid) -> yucan_yaws_stream:finish(Pid).

%% @doc Sends a part of a stream from another process. The first argument is the `clisock' of the arg.
-spec stream_process_deliver({yucan_stream, pid()}, iodata()) -> ok | {error, closed | timeout}.
stream_process_deliver({yucan_stream, Pid}, Data) -> yucan_yaws_stream:deliver_blocking(Pid, Data).

%% @doc Like {@link stream_process_deliver/2}. The server itself applies the chunked coding.
-spec stream_process_deliver_chunk({yucan_stream, pid()}, iodata()) -> ok | {error, closed | timeout}.
stream_process_deliver_chunk(Socket, Data) -> stream_process_deliver(Socket, Data).

%% @doc Sends the last part of a stream. The caller must then call {@link stream_process_end/2}.
-spec stream_process_deliver_final_chunk({yucan_stream, pid()}, iodata()) -> ok | {error, closed | timeout}.
stream_process_deliver_final_chunk(Socket, Data) -> stream_process_deliver(Socket, Data).

%% @doc Ends a stream from another process.
-spec stream_process_end({yucan_stream, pid()} | closed, pid()) -> ok.
stream_process_end(_, Pid) -> yucan_yaws_stream:finish(Pid).

%% @doc Sends a message to the client of a WebSocket.
-spec websocket_send(pid(), {text | binary, iodata()}) -> ok.
websocket_send(Pid, Message) ->
    Pid ! {yucan_yaws_ws, send, Message},
    ok.

%% @doc Returns formatted text.
-spec f(io:format(), [term()]) -> string().
f(Format, Arguments) -> lists:flatten(io_lib:format(Format, Arguments)).

%% @doc Returns the field `clisock' of the arg.
-spec arg_clisock(#arg{}) -> {yucan_stream, pid()}.
arg_clisock(#arg{clisock = Value}) -> Value.

%% @doc Returns the field `client_ip_port' of the arg.
-spec arg_client_ip_port(#arg{}) -> yucan_req:address().
arg_client_ip_port(#arg{client_ip_port = Value}) -> Value.

%% @doc Returns the field `headers' of the arg.
-spec arg_headers(#arg{}) -> #headers{}.
arg_headers(#arg{headers = Value}) -> Value.

%% @doc Returns the field `req' of the arg.
-spec arg_req(#arg{}) -> #http_request{}.
arg_req(#arg{req = Value}) -> Value.

%% @doc Returns the field `orig_req' of the arg.
-spec arg_orig_req(#arg{}) -> #http_request{}.
arg_orig_req(#arg{orig_req = Value}) -> Value.

%% @doc Returns the field `clidata' of the arg.
-spec arg_clidata(#arg{}) -> binary() | {partial, binary()}.
arg_clidata(#arg{clidata = Value}) -> Value.

%% @doc Returns the field `server_path' of the arg.
-spec arg_server_path(#arg{}) -> string().
arg_server_path(#arg{server_path = Value}) -> Value.

%% @doc Returns the field `querydata' of the arg.
-spec arg_querydata(#arg{}) -> string().
arg_querydata(#arg{querydata = Value}) -> Value.

%% @doc Returns the field `appmoddata' of the arg.
-spec arg_appmoddata(#arg{}) -> string() | undefined.
arg_appmoddata(#arg{appmoddata = Value}) -> Value.

%% @doc Returns the field `docroot' of the arg.
-spec arg_docroot(#arg{}) -> string() | undefined.
arg_docroot(#arg{docroot = Value}) -> Value.

%% @doc Returns the field `docroot_mount' of the arg.
-spec arg_docroot_mount(#arg{}) -> string() | undefined.
arg_docroot_mount(#arg{docroot_mount = Value}) -> Value.

%% @doc Returns the field `fullpath' of the arg.
-spec arg_fullpath(#arg{}) -> string() | undefined.
arg_fullpath(#arg{fullpath = Value}) -> Value.

%% @doc Returns the field `cont' of the arg.
-spec arg_cont(#arg{}) -> term().
arg_cont(#arg{cont = Value}) -> Value.

%% @doc Returns the field `state' of the arg.
-spec arg_state(#arg{}) -> term().
arg_state(#arg{state = Value}) -> Value.

%% @doc Returns the field `pid' of the arg.
-spec arg_pid(#arg{}) -> pid().
arg_pid(#arg{pid = Value}) -> Value.

%% @doc Returns the field `opaque' of the arg.
-spec arg_opaque(#arg{}) -> term().
arg_opaque(#arg{opaque = Value}) -> Value.

%% @doc Returns the field `appmod_prepath' of the arg.
-spec arg_appmod_prepath(#arg{}) -> string() | undefined.
arg_appmod_prepath(#arg{appmod_prepath = Value}) -> Value.

%% @doc Returns the field `prepath' of the arg.
-spec arg_prepath(#arg{}) -> string() | undefined.
arg_prepath(#arg{prepath = Value}) -> Value.

%% @doc Returns the field `pathinfo' of the arg.
-spec arg_pathinfo(#arg{}) -> string() | undefined.
arg_pathinfo(#arg{pathinfo = Value}) -> Value.

%% @doc Returns the field `connection' of the headers.
-spec headers_connection(#headers{}) -> string() | undefined.
headers_connection(#headers{connection = Value}) -> Value.

%% @doc Returns the field `accept' of the headers.
-spec headers_accept(#headers{}) -> string() | undefined.
headers_accept(#headers{accept = Value}) -> Value.

%% @doc Returns the field `host' of the headers.
-spec headers_host(#headers{}) -> string() | undefined.
headers_host(#headers{host = Value}) -> Value.

%% @doc Returns the field `if_modified_since' of the headers.
-spec headers_if_modified_since(#headers{}) -> string() | undefined.
headers_if_modified_since(#headers{if_modified_since = Value}) -> Value.

%% @doc Returns the field `if_match' of the headers.
-spec headers_if_match(#headers{}) -> string() | undefined.
headers_if_match(#headers{if_match = Value}) -> Value.

%% @doc Returns the field `if_none_match' of the headers.
-spec headers_if_none_match(#headers{}) -> string() | undefined.
headers_if_none_match(#headers{if_none_match = Value}) -> Value.

%% @doc Returns the field `if_range' of the headers.
-spec headers_if_range(#headers{}) -> string() | undefined.
headers_if_range(#headers{if_range = Value}) -> Value.

%% @doc Returns the field `if_unmodified_since' of the headers.
-spec headers_if_unmodified_since(#headers{}) -> string() | undefined.
headers_if_unmodified_since(#headers{if_unmodified_since = Value}) -> Value.

%% @doc Returns the field `range' of the headers.
-spec headers_range(#headers{}) -> string() | undefined.
headers_range(#headers{range = Value}) -> Value.

%% @doc Returns the field `referer' of the headers.
-spec headers_referer(#headers{}) -> string() | undefined.
headers_referer(#headers{referer = Value}) -> Value.

%% @doc Returns the field `user_agent' of the headers.
-spec headers_user_agent(#headers{}) -> string() | undefined.
headers_user_agent(#headers{user_agent = Value}) -> Value.

%% @doc Returns the field `accept_ranges' of the headers.
-spec headers_accept_ranges(#headers{}) -> string() | undefined.
headers_accept_ranges(#headers{accept_ranges = Value}) -> Value.

%% @doc Returns the field `cookie' of the headers.
-spec headers_cookie(#headers{}) -> [string()].
headers_cookie(#headers{cookie = Value}) -> Value.

%% @doc Returns the field `keep_alive' of the headers.
-spec headers_keep_alive(#headers{}) -> string() | undefined.
headers_keep_alive(#headers{keep_alive = Value}) -> Value.

%% @doc Returns the field `location' of the headers.
-spec headers_location(#headers{}) -> string() | undefined.
headers_location(#headers{location = Value}) -> Value.

%% @doc Returns the field `content_length' of the headers.
-spec headers_content_length(#headers{}) -> string() | undefined.
headers_content_length(#headers{content_length = Value}) -> Value.

%% @doc Returns the field `content_type' of the headers.
-spec headers_content_type(#headers{}) -> string() | undefined.
headers_content_type(#headers{content_type = Value}) -> Value.

%% @doc Returns the field `content_encoding' of the headers.
-spec headers_content_encoding(#headers{}) -> string() | undefined.
headers_content_encoding(#headers{content_encoding = Value}) -> Value.

%% @doc Returns the field `authorization' of the headers.
-spec headers_authorization(#headers{}) -> {string() | undefined, string() | undefined, string()} | undefined.
headers_authorization(#headers{authorization = Value}) -> Value.

%% @doc Returns the field `transfer_encoding' of the headers.
-spec headers_transfer_encoding(#headers{}) -> string() | undefined.
headers_transfer_encoding(#headers{transfer_encoding = Value}) -> Value.

%% @doc Returns the field `x_forwarded_for' of the headers.
-spec headers_x_forwarded_for(#headers{}) -> string() | undefined.
headers_x_forwarded_for(#headers{x_forwarded_for = Value}) -> Value.

%% @doc Returns the field `other' of the headers.
-spec headers_other(#headers{}) -> [tuple()].
headers_other(#headers{other = Value}) -> Value.

%% @doc Returns the field `method' of the request.
-spec http_request_method(#http_request{}) -> atom() | string().
http_request_method(#http_request{method = Value}) -> Value.

%% @doc Returns the field `path' of the request.
-spec http_request_path(#http_request{}) -> {abs_path, string()}.
http_request_path(#http_request{path = Value}) -> Value.

%% @doc Returns the field `version' of the request.
-spec http_request_version(#http_request{}) -> {non_neg_integer(), non_neg_integer()}.
http_request_version(#http_request{version = Value}) -> Value.

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

%% Encoding the result of parse_query/1 yields the original text.
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

%% If U+013C were truncated to its low byte, it would become `<'.
ehtml_takes_bytes_test_() ->
    [?_assertError({ehtml_takes_bytes, Character, _}, ehtml_expand({p, [], ["a", Character | "script"]}))
     || Character <- [16#13C, 16#20AC, 256, -1]].

cookies_test_() ->
    Text = fun({header, {set_cookie, Cookie}}) -> binary_to_list(iolist_to_binary(Cookie)) end,
    [?_assertEqual("a=1; Path=/; HttpOnly", Text(set_cookie("a", "1", [{path, "/"}, http_only]))),
     ?_assertEqual("a=1; Path=/", Text(setcookie("a", "1", "", ""))),
     ?_assertEqual("a=1; Domain=d; Expires=later; Secure; Path=/p", Text(setcookie("a", "1", "/p", "later", "d", on)))].

reformat_test_() ->
    Headers = set_header(merge_header(set_header(#headers{host = "h"}, "set-cookie", "a"), {"Set-Cookie", <<"b">>}), {<<"X-A">>, v}),
    Kinds = fun(Kind) -> reformat_header(Headers, fun(Name, Value) -> {Name, Value} end, Kind) end,
    [?_assertEqual(["Host: h", "Set-Cookie: a", "Set-Cookie: b", "X-A: v"], reformat_header(Headers)),
     ?_assertEqual(["Host: h"], reformat_header(delete_header(delete_header(Headers, 'X-A'), "set-cookie"))),
     ?_assertEqual([{<<"Host">>, <<"h">>}, {<<"Set-Cookie">>, {multi, [<<"a">>, <<"b">>]}}, {<<"X-A">>, <<"v">>}], Kinds([binary, string])),
     ?_assertEqual([{"Host", "h"}, {"Set-Cookie", {multi, ["a", "b"]}}, {"X-A", "v"}], Kinds(string)),
     ?_assertEqual({"h", none}, {get_header(Headers, "HOST"), get_header(Headers, range, none)})].

file_name_test_() ->
    [?_assertEqual(Name, sanitize_file_name(Sent)) || {Sent, Name} <- [{"a b.txt", "ab.txt"}, {"../../x", "././x"}, {"$(rm -rf).sh", "rm-rf.sh"}, {"", ""}]].

-endif.
