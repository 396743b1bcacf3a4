%% SPDX-License-Identifier: Apache-2.0
%% @doc Updates a request with information about its client that does not come from the connection itself: the headers of trusted proxies (`Forwarded'
%% of RFC 7239, or `X-Forwarded-For', `-Proto' and `-Host') and the request ID. Only headers from a trusted proxy are used, and only those that the
%% configuration specifies. All functions are pure, except for the generation of an ID.
-module(yucan_forwarded).

-export([received/2, headers/0]).

-include("yucan_internal.hrl").

-define(MOST_ID_BYTES, 128).

%% @doc Returns the headers that the option `forwarded' may contain.
-spec headers() -> [binary()].
headers() -> [<<"x-forwarded-for">>, <<"x-forwarded-proto">>, <<"x-forwarded-host">>, <<"forwarded">>].

%% @doc Returns the request as its client made it, with a request ID.
-spec received(#req{}, #site{}) -> #req{}.
received(Req, #site{trusted = Trusted} = Site) ->
    {Ip, _} = Peer = case Trusted of [] -> {none, 0}; _ -> yucan_req:peer(Req) end,
    Believed = yucan_cidr:contains(Trusted, Ip),
    identified(case Believed of true -> behind(Req, Peer, Site); false -> Req end, Believed, Site).

behind(Req, Peer, #site{forwarded = Names, trusted = Trusted}) ->
    {Fors, Protos, Hosts} = lists_of(Names, Req),
    {Client, Steps} = client(Trusted, Peer, Fors, 0),
    hosted(at(Steps, Hosts), schemed(at(Steps, Protos), Req#req{peer = Client})).

%% Returns the entries that the proxies have added, nearest proxy first.
lists_of([<<"forwarded">>], Req) ->
    case yucan_header:elements(yucan_req:header(<<"forwarded">>, Req, <<>>)) of
        {ok, Elements} ->
            case lists:all(fun(Element) -> Names = [N || {N, _} <- Element], Names -- lists:usort(Names) =:= [] end, Elements) of
                true -> list_to_tuple([[proplists:get_value(Name, Element, <<>>) || Element <- lists:reverse(Elements)] || Name <- [<<"for">>, <<"proto">>, <<"host">>]]);
                false -> {[], [], []}
            end;
        error -> {[], [], []}
    end;
lists_of(Names, Req) ->
    list_to_tuple([case lists:member(Name, Names) andalso yucan_req:header(Name, Req, <<>>) of
                       Text when is_binary(Text), Text =/= <<>> -> lists:reverse([yucan_header:trim(Part) || Part <- binary:split(Text, <<",">>, [global])]);
                       _ -> []
                   end || Name <- [<<"x-forwarded-for">>, <<"x-forwarded-proto">>, <<"x-forwarded-host">>]]).

%% Returns the nearest address that does not belong to a trusted proxy, and the position of its entry.
client(Trusted, {Ip, _} = Peer, [Next | Before], Steps) ->
    case yucan_cidr:contains(Trusted, Ip) andalso yucan_cidr:address(Next) of
        {ok, Address} -> client(Trusted, {Address, 0}, Before, Steps + 1);
        _ -> {Peer, Steps}
    end;
client(_, Peer, [], Steps) -> {Peer, Steps}.

%% The list may be too short, because proxies may append to one list and overwrite another.
at(_, []) -> <<>>;
at(Steps, List) -> lists:nth(max(1, min(Steps, length(List))), List).

schemed(Said, #req{conn = Conn, port = Port} = Req) ->
    case yucan_header:lower(Said) of
        <<"https">> -> Req#req{conn = Conn#conn{scheme = https}, port = case Port of undefined -> 443; _ -> Port end};
        <<"http">> -> Req#req{conn = Conn#conn{scheme = http}, port = case Port of undefined -> 80; _ -> Port end};
        _ -> Req
    end.

%% The server name from TLS is cleared, because it belongs to the proxy's connection.
hosted(Said, #req{conn = #conn{scheme = Scheme} = Conn} = Req) ->
    case yucan_head:authority(Said) of
        {ok, Name, Port} when Name =/= <<>> ->
            Req#req{host = Name, conn = Conn#conn{sni = undefined}, port = case {Port, Scheme} of {undefined, https} -> 443; {undefined, http} -> 80; _ -> Port end};
        _ -> Req
    end.

identified(Req, _, #site{request_id = none}) -> Req;
identified(Req, Believed, #site{request_id = Name}) ->
    Sent = case Believed of true -> yucan_req:header(Name, Req, <<>>); false -> <<>> end,
    Id = case Sent =/= <<>> andalso byte_size(Sent) =< ?MOST_ID_BYTES andalso is_id(Sent) of true -> Sent; false -> new_id() end,
    (yucan_req:set_header(Name, Id, Req))#req{id = Id}.

new_id() -> yucan_header:lower(binary:encode_hex(crypto:strong_rand_bytes(16))).

%% Accepts only characters that cannot end a quoted field of the log.
is_id(<<C, Rest/binary>>) when C >= $a, C =< $z; C >= $A, C =< $Z; C >= $0, C =< $9; C =:= $-; C =:= $_; C =:= $.; C =:= $:; C =:= $/; C =:= $+; C =:= $=; C =:= $@; C =:= $~ -> is_id(Rest);
is_id(Rest) -> Rest =:= <<>>.
