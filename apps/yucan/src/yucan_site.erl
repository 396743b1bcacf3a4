%% SPDX-License-Identifier: Apache-2.0
%% @doc Which host answers a request, and for which client. Pure but for the handlers.
-module(yucan_site).

-export([respond/2, is_match/2]).

-include("yucan_internal.hrl").

%% @doc The answer of the host that the request names.
-spec respond(#req{}, #site{}) -> yucan_handler:response().
respond(#req{path = <<"*">>}, _) ->
    %% OPTIONS *: of the server itself (RFC 9110, 9.3.7).
    {204, [{<<"allow">>, <<"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS">>}], <<>>};
respond(Req, Site) ->
    Req1 = client(Req, Site),
    case host(Req1, Site) of
        #host{plan = Plan} -> yucan_router:run(Plan, Req1);
        none -> yucan_error:page(400, <<"No such host here">>);
        misdirected -> yucan_error:page(421)
    end.

client(Req, #site{trusted = []}) -> Req;
client(Req, #site{trusted = Trusted}) ->
    case yucan_req:header(<<"x-forwarded-for">>, Req) of
        undefined -> Req;
        Forwarded -> Req#req{peer = yucan_cidr:client(Trusted, yucan_req:peer(Req), Forwarded)}
    end.

%% A certificate for one name must not serve another one's pages (RFC 9110, 7.4).
host(#req{host = Name, conn = #conn{sni = Sni}}, #site{hosts = Hosts}) when Sni =/= undefined, Name =/= Sni, tuple_size(Hosts) > 1 -> misdirected;
host(_, #site{exact = Exact, patterns = [], default = Default, select = none}) when map_size(Exact) =:= 0 -> Default;
host(#req{host = Name} = Req, #site{select = none} = Site) -> by_name(Name, Req, Site);
host(#req{host = Name} = Req, #site{select = Select, hosts = Hosts} = Site) ->
    case Select(Name, Req) of
        default -> Site#site.default;
        Index -> element(Index + 1, Hosts)
    end.

by_name(Name, _, #site{exact = Exact, patterns = Patterns, default = Default}) ->
    case Exact of
        #{Name := Host} -> Host;
        _ -> by_pattern(Name, Patterns, Default)
    end.

by_pattern(Name, [{Pattern, Host} | Rest], Default) ->
    case is_match(Pattern, Name) of
        true -> Host;
        false -> by_pattern(Name, Rest, Default)
    end;
by_pattern(_, [], Default) ->
    Default.

%% @doc Does the name match a pattern with `*' (anything) and `?' (one character that is no dot)?
-spec is_match(Pattern :: binary(), Name :: binary()) -> boolean().
is_match(<<"*">>, _) -> true;
is_match(<<"*", Pattern/binary>> = All, Name) ->
    is_match(Pattern, Name) orelse case Name of <<_, Rest/binary>> -> is_match(All, Rest); <<>> -> false end;
is_match(<<"?", Pattern/binary>>, <<C, Rest/binary>>) when C =/= $. -> is_match(Pattern, Rest);
is_match(<<C, Pattern/binary>>, <<C, Rest/binary>>) -> is_match(Pattern, Rest);
is_match(Pattern, Name) -> Pattern =:= Name.
