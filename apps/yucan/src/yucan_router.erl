%% SPDX-License-Identifier: Apache-2.0
%% @doc Finds the handler for a request: first the host, then its middleware, and then its routes. All functions are pure, apart from the
%% handlers that they call.
%%
%% A plan is data rather than a closure, so that a new version of this module takes effect at the next request.
-module(yucan_router).

-export([respond/2, plan/2, parse_pattern/1]).
-export_type([plan/0, route/0, middleware/0]).

-include("yucan_internal.hrl").

-type route() :: {Pattern :: binary() | string(), module(), term()}
    | {Pattern :: binary() | string(), Methods :: [binary()], module(), term()}.
%% A pattern such as `/users/:id' or `/files/*rest', the handler's module, and the argument of its `init/1'. The first route that matches is used. With
%% `Methods', requests with other methods get 405.
-type middleware() :: fun((yucan_req:req(), Next :: fun((yucan_req:req()) -> yucan_handler:response())) -> yucan_handler:response()).
-type segment() :: binary() | {one, binary()} | {rest, binary()}.
-type compiled() :: {[segment()], any | [binary()], module(), State :: term()}.
-opaque plan() :: {handler, module(), term()} | {routes, #{binary() => compiled()}, [compiled()]} | {middleware, middleware(), plan()}.

%% @doc Passes the request to the host that it names, and returns the response.
-spec respond(#req{}, #site{}) -> yucan_handler:response().
respond(#req{path = <<"*">>}, _) ->
    %% OPTIONS * applies to the server itself (RFC 9110, 9.3.7).
    {204, [{<<"allow">>, <<"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS">>}], <<>>};
respond(#req{conn = #conn{asked = Asked}} = Req, Site) ->
    case host(Req, Site) of
        #host{plan = Plan, demands = Demands} ->
            case yucan_tls:has_met(Asked, Demands) of
                true -> run(Plan, Req);
                false -> yucan_error:page(421)
            end;
        none -> yucan_error:page(400, <<"No such host here">>);
        misdirected -> yucan_error:page(421)
    end.

%% A certificate for one name must not give access to the pages of another name (RFC 9110, 7.4).
host(#req{host = Name, conn = #conn{sni = Sni}}, #site{hosts = Hosts}) when Sni =/= undefined, Name =/= Sni, tuple_size(Hosts) > 1 -> misdirected;
host(_, #site{exact = Exact, patterns = [], default = Default, select = none}) when map_size(Exact) =:= 0 -> Default;
host(#req{host = Name}, #site{select = none} = Site) -> by_name(Name, Site);
host(#req{host = Name} = Req, #site{select = Select, hosts = Hosts} = Site) ->
    case Select(Name, Req) of
        default -> Site#site.default;
        Index -> element(Index + 1, Hosts)
    end.

by_name(Name, #site{exact = Exact, patterns = Patterns, default = Default}) ->
    case Exact of
        #{Name := Host} -> Host;
        _ -> by_pattern(Name, Patterns, Default)
    end.

by_pattern(Name, [{Pattern, Host} | Rest], Default) ->
    case yucan_hostname:is_match(Pattern, Name) of
        true -> Host;
        false -> by_pattern(Name, Rest, Default)
    end;
by_pattern(_, [], Default) -> Default.

%% @doc Compiles the plan for a handler or for routes, and calls the `init' function of each handler.
-spec plan({handler, {module(), term()}} | {routes, [route()]}, [middleware()]) -> plan().
plan(What, Middleware) -> lists:foldr(fun(Function, Next) -> {middleware, Function, Next} end, base(What), Middleware).

base({handler, {Module, Arg}}) -> {handler, Module, init(Module, Arg)};
base({routes, Routes}) ->
    Compiled = [compile(Route) || Route <- Routes],
    {routes, exact(Compiled, #{}, []), Compiled}.

init(Module, Arg) ->
    {module, Module} = code:ensure_loaded(Module),
    case erlang:function_exported(Module, init, 1) of
        true -> Module:init(Arg);
        false -> Arg
    end.

compile({Pattern, Module, Arg}) -> compile({Pattern, any, Module, Arg});
compile({Pattern, Methods, Module, Arg}) ->
    {ok, Segments} = parse_pattern(Pattern),
    {Segments, with_head(Methods), Module, init(Module, Arg)}.

with_head(any) -> any;
with_head(Methods) ->
    case lists:member(<<"GET">>, Methods) andalso not lists:member(<<"HEAD">>, Methods) of
        true -> Methods ++ [<<"HEAD">>];
        false -> Methods
    end.

%% @doc Splits a pattern into segments, or returns the reason why it is invalid.
-spec parse_pattern(binary() | string()) -> {ok, [segment()]} | {error, string()}.
parse_pattern(Pattern) ->
    case unicode:characters_to_binary(Pattern) of
        <<"/", Rest/binary>> -> segments(binary:split(Rest, <<"/">>, [global]), []);
        _ -> {error, "a pattern begins with a slash"}
    end.

segments([<<"*", Name/binary>>], Done) -> {ok, lists:reverse(Done, [{rest, Name}])};
segments([<<"*", _/binary>> | _], _) -> {error, "what begins with * must be the last segment"};
segments([<<":">> | _], _) -> {error, "a name must follow the colon"};
segments([Segment | Rest], _) when Segment =:= <<>>, Rest =/= []; Segment =:= <<".">>; Segment =:= <<"..">> ->
    {error, "a segment is empty, . or ..: no path has one"};
segments([<<":", Name/binary>> | Rest], Done) -> segments(Rest, [{one, Name} | Done]);
segments([Segment | Rest], Done) -> segments(Rest, [Segment | Done]);
segments([], Done) -> {ok, lists:reverse(Done)}.

%% Collects the routes without bindings that no earlier route matches. One lookup finds such a route.
exact([{Segments, any, _, _} = Route | Rest], Exact, Earlier) ->
    Plain = lists:all(fun is_binary/1, Segments) andalso
        lists:all(fun({Other, _, _, _}) -> match(Other, Segments, #{}) =:= nomatch end, Earlier),
    exact(Rest, case Plain of true -> Exact#{path(Segments) => Route}; false -> Exact end, [Route | Earlier]);
exact([Route | Rest], Exact, Earlier) -> exact(Rest, Exact, [Route | Earlier]);
exact([], Exact, _) -> Exact.

path(Segments) -> iolist_to_binary([[$/, Segment] || Segment <- Segments]).

run({handler, Module, State}, Req) -> Module:handle(Req, State);
run({routes, Exact, Routes}, Req) ->
    Path = yucan_req:path(Req),
    case Exact of
        #{Path := {_, _, Module, State}} -> Module:handle(Req, State);
        _ -> search(Routes, decoded(Path), Req, none)
    end;
run({middleware, Function, Next}, Req) -> Function(Req, fun(Req1) -> run(Next, Req1) end).

decoded(<<"/", Rest/binary>>) -> [yucan_path:unescape(Segment) || Segment <- binary:split(Rest, <<"/">>, [global])];
decoded(Other) -> [Other].

%% `Allowed' has the methods of routes whose pattern matched although their methods did not.
search([{Pattern, Methods, Module, State} | Routes], Segments, Req, Allowed) ->
    case match(Pattern, Segments, #{}) of
        nomatch -> search(Routes, Segments, Req, Allowed);
        refused -> yucan_error:page(400);
        Bindings ->
            case Methods =:= any orelse lists:member(yucan_req:method(Req), Methods) of
                true -> Module:handle(Req#req{bindings = Bindings}, State);
                false -> search(Routes, Segments, Req, Methods ++ case Allowed of none -> []; _ -> Allowed end)
            end
    end;
search([], _, _, none) -> yucan_error:page(404);
search([], _, Req, Allowed) -> yucan_error:not_allowed(lists:usort([<<"OPTIONS">> | Allowed]), Req).

match([{rest, <<>>}], [_ | _], Bindings) -> Bindings;
match([{rest, Name}], [_ | _] = Segments, Bindings) ->
    case lists:all(fun is_one/1, Segments) of
        true -> bind(Name, iolist_to_binary(lists:join($/, Segments)), Bindings);
        false -> refused
    end;
match([{one, Name} | Pattern], [Segment | Rest], Bindings) when Segment =/= <<>> ->
    case is_one(Segment) orelse not has_dots(Segment) of
        true -> match(Pattern, Rest, bind(Name, Segment, Bindings));
        false -> refused
    end;
match([Segment | Pattern], [Segment | Rest], Bindings) -> match(Pattern, Rest, Bindings);
match([], [], Bindings) -> Bindings;
match(_, _, _) -> nomatch.

%% An encoded slash would become part of the binding, so a client could use it to bypass routes for directories.
is_one(Segment) -> Segment =/= <<"..">> andalso Segment =/= <<".">> andalso has_no_slash(Segment).

has_no_slash(<<C, Rest/binary>>) when C =/= $/ -> has_no_slash(Rest);
has_no_slash(Rest) -> Rest =:= <<>>.

%% Only a path set by middleware can contain dot segments, because yucan_req:with_path/3 does not normalize it.
has_dots(Segment) -> lists:any(fun(Part) -> Part =:= <<".">> orelse Part =:= <<"..">> end, binary:split(Segment, <<"/">>, [global])).

bind(<<>>, _, Bindings) -> Bindings;
bind(Name, Value, Bindings) -> Bindings#{Name => Value}.
