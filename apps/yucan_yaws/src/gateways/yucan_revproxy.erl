%% SPDX-License-Identifier: Apache-2.0
%% @doc A reverse proxy, which mounts another server below a path: `revproxy = /prefix http://host/path'.
%%
%% The other server gets the request without the prefix, with X-Forwarded-For, X-Forwarded-Host, X-Forwarded-Proto and X-Real-IP, and with a body of
%% known length. Other headers with which a client could impersonate a proxy are removed. A Location header in the response is mapped back to this
%% server. Each request uses a separate connection.
-module(yucan_revproxy).

-export([respond/4]).

-define(SILENCE_MS, 60000).

%% @doc Passes the request to the other server. `Own' is the scheme and host of this server, and `Max' is the maximum size of the body in bytes.
-spec respond(yucan_req:req(), yucan_yaws_config_value:revproxy(), Own :: iodata(), Max :: pos_integer()) -> yucan_handler:response().
respond(Req, #{url := Url} = Proxy, Own, Max) ->
    case yucan_spool:take(Req, Max) of
        %% The body can be deleted at this point, because the process that sends the file has
        %% usually opened it by now. If it has not, it fails, which is correct.
        {ok, Body} -> try ask(Req, Proxy, Own, Body) after yucan_spool:delete(Body) end;
        {error, {spool, Reason}} -> failed({spool, Reason}, Url);
        {error, Reason} -> yucan_req:body_error(Reason)
    end.

ask(Req, #{prefix := Prefix, url := #{host := Host, port := Port} = Url}, Own, Body) ->
    Address = {Host, case Port of undefined -> 80; _ -> Port end},
    case yucan_proxy_client:open(Address, yucan_req:method(Req), head(Req, Prefix, Url, Body), Body) of
        {ok, Source} ->
            Options = #{silence_ms => ?SILENCE_MS, name => yucan_yaws_config_value:origin(Url),
                        headers => fun(Headers) -> [back(Header, Prefix, Url, Own) || Header <- Headers] end},
            yucan_gateway:respond(Req, {yucan_proxy_client, Source}, Options);
        {error, Reason} -> failed(Reason, Url)
    end.

failed(Reason, Url) ->
    yucan_events:warning("revproxy ~ts: ~ts", [yucan_yaws_config_value:origin(Url), yucan_gateway:reason(Reason)]),
    yucan_error:page(502).

head(Req, Prefix, Url, Body) ->
    [yucan_req:method(Req), " ", target(Req, Prefix, Url), " HTTP/1.1\r\nhost: ", host(Url), "\r\n",
     [[Name, ": ", Value, "\r\n"] || {Name, Value} <- yucan_header:without_hops(yucan_req:headers(Req)), is_passed(Name)],
     "x-forwarded-for: ", forwarded_for(Req), "\r\nx-real-ip: ", address(yucan_req:peer(Req)), "\r\n",
     case yucan_req:header(<<"host">>, Req) of
         undefined -> "";
         Given -> ["x-forwarded-host: ", Given, "\r\n"]
     end,
     "x-forwarded-proto: ", atom_to_binary(yucan_req:scheme(Req)), "\r\n",
     case yucan_spool:size(Body) of
         none ->
             Says = lists:member(yucan_req:method(Req), [<<"POST">>, <<"PUT">>, <<"PATCH">>]) orelse yucan_req:header(<<"content-length">>, Req) =/= undefined,
             ["content-length: 0\r\n" || Says];
         Size -> ["content-length: ", integer_to_binary(Size), "\r\n"]
     end,
     "connection: close\r\n\r\n"].

%% Returns the canonical path, by which the proxy was selected, without the segments of the prefix. Escapes are kept.
target(Req, Prefix, #{path := Base}) ->
    Joined = iolist_to_binary([string:trim(Base, trailing, "/"), below(length(string:lexemes(Prefix, "/")), yucan_req:path(Req))]),
    [case Joined of <<"/", _/binary>> -> Joined; _ -> ["/", Joined] end,
     case yucan_req:has_query(Req) of
         true -> ["?", yucan_req:query(Req)];
         false -> ""
     end].

below(0, Path) -> Path;
below(N, <<"/", Path/binary>>) ->
    case binary:match(Path, <<"/">>) of
        {At, 1} -> below(N - 1, binary:part(Path, At, byte_size(Path) - At));
        nomatch -> <<>>
    end.

host(Url) ->
    [_, Rest] = string:split(yucan_yaws_config_value:origin(Url), "://"),
    Rest.

forwarded_for(Req) ->
    Own = address(yucan_req:peer_socket(Req)),
    case yucan_req:header(<<"x-forwarded-for">>, Req) of
        undefined -> Own;
        Before -> [Before, ", ", Own]
    end.

address({Address, _}) ->
    case inet:ntoa(Address) of
        {error, einval} -> "unknown";
        Text -> Text
    end.

%% Many servers treat X_A and X-A as the same variable, so names with an underscore are removed (see yucan_cgi).
is_passed(<<"x-forwarded-", _/binary>>) -> false;
is_passed(Name) ->
    not lists:member(Name, [<<"host">>, <<"content-length">>, <<"expect">>, <<"forwarded">>, <<"x-real-ip">>, <<"proxy">>])
        andalso binary:match(Name, <<"_">>) =:= nomatch.

%% Maps a location on the other server to one below the prefix on this server.
back({<<"location">>, Location}, Prefix, #{path := Base} = Url, Own) ->
    Path = string:trim(Base, trailing, "/"),
    Below = case Location of
        %% This is a network-path reference, which contains another host (RFC 3986, 4.2).
        <<"//", _/binary>> -> none;
        <<"/", _/binary>> -> behind(Path, Location, Location);
        _ -> behind([yucan_yaws_config_value:origin(Url), Path], Location, none)
    end,
    {<<"location">>, case Below of none -> Location; _ -> iolist_to_binary([Own, string:trim(Prefix, trailing, "/"), Below]) end};
back(Header, _, _, _) -> Header.

behind(There, Location, Otherwise) ->
    Start = iolist_to_binary(There),
    Size = byte_size(Start),
    case Location of
        <<Start:Size/binary>> -> <<>>;
        <<Start:Size/binary, C, _/binary>> when C =:= $/; C =:= $?; C =:= $# -> binary_part(Location, Size, byte_size(Location) - Size);
        _ -> Otherwise
    end.
