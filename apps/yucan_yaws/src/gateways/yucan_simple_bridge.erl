%% SPDX-License-Identifier: Apache-2.0
%% @doc Makes this server a backend of simple_bridge, the layer through which Nitrogen uses web servers. simple_bridge finds these callbacks by the
%% module's name. {@link yucan_simple_bridge_anchor} calls the handler.
%%
%% Files of any size are sent with sendfile. A form's body is read completely and may have at most
%% `body_bytes' (yucan_config), but a multipart form is read part by part with recv_from_socket/3,
%% so an upload can be larger than memory. The functions work only in the process that handles the
%% request.
-module(yucan_simple_bridge).

-export([init/1, protocol/1, request_method/1, uri/1, path/1, host/1, headers/1, native_header_type/0, cookies/1, query_params/1,
         post_params/1, request_body/1, peer_ip/1, peer_port/1, protocol_version/1, socket/1, recv_from_socket/3, build_response/2]).
-export([rooted/2]).
-export_type([request/0]).

-include("../../include/yaws_api.hrl").

-record(request, {req :: yucan_req:req(),
                  %% The part of the body that has already been read.
                  first = <<>> :: binary(),
                  root :: file:filename_all()}).
-opaque request() :: #request{}.

%% The records of simple_bridge, which defines the order of their fields.
-type header() :: {header, Name :: atom() | iodata(), Value :: iodata()}.
-type cookie() :: {cookie, Name :: atom() | iodata(), Value :: iodata(), Domain :: iodata() | undefined, Path :: iodata() | undefined,
                   MaxAgeSeconds :: integer() | undefined, Secure :: boolean(), HttpOnly :: boolean(), SameSite :: atom() | iodata()}.
-type response() :: {response, Status :: 200..999, [header()], [cookie()], {data, iodata()} | {file, Path :: iodata()}}.

%% @doc Returns a request from the native interface, or the `#arg{}' of an appmod.
-spec init(yucan_req:req() | #arg{}) -> request().
init(#arg{clidata = Read}) ->
    First = case Read of
                {partial, Data} -> Data;
                Data -> Data
            end,
    begun(yucan_yaws_out:request(), First);
init(Req) -> begun(Req, <<>>).

%% Discards a cached body. The body is read only once, but the handler may request it several times.
begun(Req, First) ->
    _ = erase(?MODULE),
    #request{req = Req, first = First, root = yucan_req:assigned(?MODULE, Req, application:get_env(simple_bridge, document_root, "./priv/static"))}.

%% @doc Sets the directory for `{file, Path}' in responses to a request. It overrides the document_root of the application simple_bridge.
-spec rooted(file:filename_all(), yucan_req:req()) -> yucan_req:req().
rooted(Root, Req) -> yucan_req:assign(?MODULE, Root, Req).

%% @private
-spec protocol(request()) -> http | https.
protocol(#request{req = Req}) -> yucan_req:scheme(Req).

%% @private Returns the method as an atom if that atom already exists, and otherwise as a binary.
-spec request_method(request()) -> atom() | binary().
request_method(#request{req = Req}) ->
    Method = yucan_req:method(Req),
    try binary_to_existing_atom(Method) catch error:badarg -> Method end.

%% @private Returns the path and the query as the client sent them.
-spec uri(request()) -> string().
uri(#request{req = Req}) -> binary_to_list(yucan_req:target(Req)).

%% @private Returns the decoded path.
-spec path(request()) -> string().
path(#request{req = Req}) ->
    {ok, Path} = yucan_req:decoded_path(Req),
    binary_to_list(Path).

%% @private
-spec host(request()) -> string().
host(#request{req = Req}) -> binary_to_list(yucan_req:host(Req)).

%% @private
-spec headers(request()) -> #{binary() => binary()}.
headers(#request{req = Req}) -> maps:from_list([{Name, yucan_req:header(Name, Req)} || {Name, _} <- yucan_req:headers(Req)]).

%% @private
-spec native_header_type() -> map.
native_header_type() -> map.

%% @private
-spec cookies(request()) -> [{binary(), binary()}].
cookies(#request{req = Req}) -> yucan_req:cookies(Req).

%% @private
-spec query_params(request()) -> [{binary(), binary()}].
query_params(#request{req = Req}) -> yucan_req:query_pairs(Req).

%% @private
-spec post_params(request()) -> [{binary(), binary()}].
post_params(#request{req = Req} = Request) ->
    case yucan_req:header(<<"content-type">>, Req, <<>>) of
        <<"application/x-www-form-urlencoded", _/binary>> -> yucan_req:pairs(request_body(Request));
        _ -> []
    end.

%% @private Returns the entire body. For a multipart form, returns only the part that has been read so far, because recv_from_socket/3 reads the rest.
-spec request_body(request()) -> binary().
request_body(#request{req = Req, first = First}) ->
    case yucan_req:header(<<"content-type">>, Req, <<>>) of
        <<"multipart/form-data", _/binary>> -> First;
        _ -> whole(get(?MODULE), First, Req)
    end.

whole({body, Body}, _, _) -> Body;
whole(undefined, First, Req) ->
    case yucan_req:body(Req) of
        {ok, Rest} ->
            Body = <<First/binary, Rest/binary>>,
            _ = put(?MODULE, {body, Body}),
            Body;
        {error, Reason} -> throw({yucan_body, Reason})
    end.

%% @private
-spec peer_ip(request()) -> inet:ip_address().
peer_ip(#request{req = Req}) -> element(1, yucan_req:peer(Req)).

%% @private
-spec peer_port(request()) -> inet:port_number().
peer_port(#request{req = Req}) -> element(2, yucan_req:peer(Req)).

%% @private
-spec protocol_version(request()) -> {1, 0 | 1}.
protocol_version(#request{req = Req}) -> yucan_req:version(Req).

%% @private
-spec socket(request()) -> gen_tcp:socket() | ssl:sslsocket().
socket(#request{req = Req}) -> element(2, yucan_req:socket(Req)).

%% @private Reads this many bytes of the body, or fewer at its end. With 0, returns the bytes that have already arrived.
-spec recv_from_socket(non_neg_integer(), TimeoutMs :: pos_integer(), request()) -> binary().
recv_from_socket(Length, Timeout, #request{req = Req}) ->
    Read = case Length of
               0 -> yucan_req:read(Req, #{timeout => Timeout});
               _ -> yucan_req:gather(Length, <<>>, #{max => Length, timeout => Timeout}, Req)
           end,
    case Read of
        {error, Reason} -> throw({yucan_body, Reason});
        {_, Data} -> Data
    end.

%% @private
-spec build_response(request(), response()) -> yucan_handler:response().
build_response(Request, {response, Status, Headers, Cookies, Data}) ->
    Lines = [{name(Name), Value} || {header, Name, Value} <- Headers] ++ [{<<"set-cookie">>, cookie(Cookie)} || Cookie <- Cookies],
    case Data of
        {file, Path} -> file(unicode:characters_to_binary(Path), Status, Lines, Request);
        {data, Body} -> {Status, yucan_yaws_out:typed(<<"text/html">>, Lines), Body};
        Body -> {Status, yucan_yaws_out:typed(<<"text/html">>, Lines), Body}
    end.

%% In atoms, underscores stand for hyphens, as in content_type.
name(Name) when is_atom(Name) -> binary:replace(atom_to_binary(Name), <<"_">>, <<"-">>, [global]);
name(Name) -> yucan_header:lower(iolist_to_binary(Name)).

cookie({cookie, Name, Value, Domain, Path, MaxAge, Secure, HttpOnly, SameSite}) ->
    [text(Name), $=, text(Value),
     [["; Domain=", text(Domain)] || is_text(Domain)], [["; Path=", text(Path)] || is_text(Path)],
     [["; Max-Age=", integer_to_list(MaxAge)] || is_integer(MaxAge)], ["; Secure" || Secure =:= true], ["; HttpOnly" || HttpOnly =:= true],
     [["; SameSite=", string:titlecase(text(SameSite))] || is_text(SameSite)]].

is_text(undefined) -> false;
is_text(Text) -> text(Text) =/= "".

text(Text) when is_atom(Text) -> atom_to_list(Text);
text(Text) when is_integer(Text) -> integer_to_list(Text);
text(Text) -> unicode:characters_to_list(Text).

%% Uses yucan_file, which handles conditional requests and ranges, and hides files that must not be served.
file(Path, Status, Lines, #request{req = Req, root = Root}) ->
    Asked = yucan_req:with_path(iolist_to_binary(["/", string:trim(yucan_path:escape(Path), leading, "/")]), none, readable(Req)),
    case yucan_file:respond(Asked, unicode:characters_to_binary(Root), #{headers => Lines}) of
        not_found -> yucan_error:page(404);
        {error, _} -> yucan_error:page(403);
        {200, Headers, Body} -> {Status, Headers, Body};
        Response -> Response
    end.

%% The handler may answer with a file even if the request was a form. The file is then served as for GET.
readable(Req) ->
    case yucan_req:method(Req) of
        <<"HEAD">> -> Req;
        _ -> yucan_req:with_method(<<"GET">>, Req)
    end.
