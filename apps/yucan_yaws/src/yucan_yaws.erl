%% SPDX-License-Identifier: Apache-2.0
%% @doc Handles requests to one of the servers in a configuration. The steps follow the order that modules written for
%% Yaws rely on: arg_rewrite_mod, redirects, auth, aliases, revproxy, appmods, and finally files and scripts.
-module(yucan_yaws).
-behaviour(yucan_handler).

-export([init/1, handle/2]).

-include("../include/yaws_api.hrl").

%% A page may refer to another page. This limits the length of such a chain, which could otherwise be endless.
-define(MOST_PAGES, 10).

-type site() :: #{globals := map(), server := yucan_yaws_config:server(), own => fun((module()) -> module()), warned => atomics:atomics_ref()}.
%% `warned' is 1 if the log already says that pages with embedded Erlang are not supported.

%% @doc Called each time the configuration is loaded.
-spec init(site()) -> site().
init(#{server := #{name := Name, ebin_dir := Folders}} = Site) ->
    %% Creates the counter of running scripts now, because otherwise two scripts could create it at the same time.
    _ = yucan_cgi_run:running(),
    Site#{own => yucan_yaws_loader:load(Name, Folders), warned => atomics:new(1, [])}.

%% @doc Handles a request.
-spec handle(yucan_req:req(), site()) -> yucan_handler:response().
handle(Req, #{server := #{extra_response_headers := Extra} = Server} = Site) ->
    ok = yucan_yaws_options:remember(Site),
    ok = yucan_yaws_out:remember(Req),
    ok = yucan_yaws_loader:remember(maps:get(own, Site)),
    Arg = {later, Req, maps:get(docroot, Server), maps:get(opaque, Server)},
    with_headers(Extra, rewrite(Req, Arg, Site)).

with_headers([], Response) -> Response;
with_headers(Extra, {Status, Headers, Body}) -> {Status, Headers ++ Extra, Body};
with_headers(_, Response) -> Response.

own(Module, #{own := Own}) -> Own(Module).

%% ---- arg_rewrite_mod

rewrite(Req, Arg, #{server := #{arg_rewrite_mod := undefined}} = Site) ->
    routed(Req, Arg, Site, ?MOST_PAGES);
rewrite(Req, Lazy, #{server := #{arg_rewrite_mod := Module}} = Site) ->
    Arg = yucan_yaws_out:made(Lazy),
    case (own(Module, Site)):arg_rewrite(Arg) of
        #arg{state = #rewrite_response{status = Status, headers = Headers, content = Content}} ->
            yucan_yaws_out:answer(yucan_yaws_out:collect([{status, Status}, {allheaders, Headers}, {html, Content}]), Req, Arg);
        #arg{} = Rewritten ->
            Req2 = yucan_yaws_out:rewritten(Rewritten, Req),
            ok = yucan_yaws_out:remember(Req2),
            Asked = yucan_path:unescape(yucan_req:path(Req)),
            routed(Req2, Rewritten#arg{server_path = yucan_yaws_out:path(Req2)}, (with_docroot(Rewritten, Arg, Site))#{asked => Asked}, ?MOST_PAGES);
        Other ->
            error({arg_rewrite_returned, Module, Other})
    end.

with_docroot(#arg{docroot = Same}, #arg{docroot = Same}, Site) -> Site;
with_docroot(#arg{docroot = Docroot}, _, #{server := Server} = Site) -> Site#{server := Server#{docroot := [filename:join([Docroot])]}}.

%% ---- redirects, auth, aliases, revproxy, appmods, files

routed(_, _, _, 0) -> error(pages_without_end);
routed(Req, Arg, #{server := #{redirects := Redirects}} = Site, Left) ->
    case yucan_req:decoded_path(Req) of
        {ok, Path} ->
            case yucan_yaws_match:redirect(Path, Redirects) of
                {ok, Redirect} -> redirected(Redirect, Req, Arg, Site, Left);
                none -> authorized(Path, Req, Arg, Site, Left)
            end;
        {error, bad_path} ->
            slashed(Req, Site)
    end.

%% A path with an encoded slash is accepted only if it is passed to another server and no decision here depends on the path, because the other server
%% may treat the encoded slash as a slash.
slashed(Req, #{server := #{auth := [], arg_rewrite_mod := undefined, redirects := Redirects, alias := Files, script_alias := Scripts} = Server}) ->
    Path = yucan_req:path(Req),
    case yucan_path:decode(binary:replace(Path, <<"%2F">>, <<"%252F">>, [global])) of
        {ok, Kept} ->
            IsFree = fun(P) -> yucan_yaws_match:redirect(P, Redirects) =:= none andalso yucan_yaws_match:alias(P, Files ++ Scripts) =:= none end,
            case IsFree(Kept) andalso IsFree(yucan_path:unescape(Path)) andalso proxy(Kept, Server) of
                {_, Proxy} -> ask(Proxy, Req, Server);
                _ -> yucan_error:page(400)
            end;
        {error, bad_path} -> yucan_error:page(400)
    end;
slashed(_, _) -> yucan_error:page(400).

redirected(#{status := Status, target := none}, _, _, _, _) ->
    yucan_error:page(Status);
redirected(#{status := Status} = Redirect, Req, _, #{server := Server}, _) when Status >= 300, Status =< 399 ->
    Location = yucan_yaws_match:location(Redirect, yucan_yaws_out:own_origin(Req, Server), yucan_req:path(Req), yucan_req:query(Req)),
    yucan_error:page_with(Status, [{<<"location">>, Location}]);
%% The error page is a page of this server. It must not be redirected again, so redirects are turned off.
redirected(#{status := Status, target := {local, _}} = Redirect, Req, Arg, #{server := Server} = Site, Left) ->
    Place = yucan_yaws_match:location(Redirect, "", yucan_req:path(Req), yucan_req:query(Req)),
    with_status(Status, page(Place, Req, Arg, Site#{server := Server#{redirects := []}}, Left)).

with_status(Status, {200, Headers, Body}) -> {Status, Headers, Body};
with_status(_, Response) -> Response.

page(Target, Req, Lazy, Site, Left) ->
    Arg = yucan_yaws_out:made(Lazy),
    Moved = yucan_yaws_out:rewritten(Arg#arg{req = (Arg#arg.req)#http_request{path = {abs_path, unicode:characters_to_list(Target)}}}, Req),
    ok = yucan_yaws_out:remember(Moved),
    routed(Moved, yucan_yaws_out:moved(Moved, Arg), Site, Left - 1).

authorized(Path, Req, Arg, #{server := #{auth := []}} = Site, Left) ->
    aliased(Path, Req, Arg, Site, Left);
authorized(Path, Req, Lazy, #{server := #{auth := Blocks} = Server} = Given, Left) ->
    Arg = yucan_yaws_out:made(Lazy),
    %% Rewriting the path must not bypass the password for the path that the client requested.
    Paths = [Path | maps:values(maps:with([asked], Given))],
    Site = maps:remove(asked, Given),
    case yucan_yaws_auth:check(Paths, [Block#{authmod := own_or_none(Module, Site)} || #{authmod := Module} = Block <- Blocks], Arg) of
        ok -> aliased(Path, Req, Arg, Site, Left);
        {ok, User} ->
            ok = yucan_yaws_options:remember(Site#{user => User}),
            aliased(Path, Req, Arg, Site, Left);
        forbidden -> yucan_error:page(403);
        {appmod, Module} -> call(Module, out, [], Req, Arg, Site, Left);
        {unauthorized, Realm} -> unauthorized(Realm, Server, Req, Arg, Site, Left)
    end.

own_or_none(undefined, _) -> undefined;
own_or_none(Module, Site) -> own(Module, Site).

unauthorized(Realm, #{errormod_401 := undefined}, _, _, _, _) ->
    yucan_error:page_with(401, [{<<"www-authenticate">>, ["Basic realm=\"", Realm, "\""]}]);
unauthorized(Realm, #{errormod_401 := Module, auth := Auth}, Req, Arg, Site, Left) ->
    case call(Module, out401, [Auth, Realm], Req, Arg, Site, Left) of
        {200, Headers, Body} -> {401, [{<<"www-authenticate">>, ["Basic realm=\"", Realm, "\""]} | Headers], Body};
        Response -> Response
    end.

aliased(Path, Req, Arg, #{server := #{alias := [], script_alias := []}} = Site, Left) -> proxied(Path, Req, Arg, Site, Left);
aliased(Path, Req, Arg, #{server := #{alias := Files, script_alias := Scripts, follow_symlinks := Links, docroot := Docroots}} = Site, Left) ->
    case yucan_yaws_match:alias(Path, Files ++ Scripts) of
        none -> proxied(Path, Req, Arg, Site, Left);
        {ok, Alias, Rest} ->
            case lists:member(Alias, Scripts) andalso yucan_yaws_files:script_alias(Alias, Rest, Links) of
                false -> alias(Alias, Rest, Path, Req, Arg, Site, Left);
                {ok, #{script := File} = Found} -> run({program, File}, Found#{docroot => case Docroots of [First | _] -> First; [] -> undefined end}, Req, Arg, Site);
                forbidden -> yucan_error:page(403);
                not_found -> not_found(Req, Arg, Site, Left)
            end
    end.

%% An alias for a directory is treated like another docroot, and an alias for a file like a file in
%% a docroot: scripts are run, and their source is never shown.
alias(#{prefix := Prefix, target := Target}, Rest, Path, Req, Arg, #{server := Server} = Site, Left) ->
    case {filelib:is_dir(Target), Rest} of
        {true, <<>>} ->
            yucan_error:page_with(301, [{<<"location">>, [yucan_yaws_out:own_origin(Req, Server), Path, $/, [[$?, yucan_req:query(Req)] || yucan_req:has_query(Req)]]}]);
        {true, _} -> file(Rest, Req, Arg, Site#{mount => Prefix, server := Server#{docroot := [unicode:characters_to_list(Target)]}}, Left);
        {false, <<>>} ->
            case filelib:is_regular(Target) andalso yucan_yaws_files:alias(Target, Server) of
                {script, Kind, Found} -> script(Kind, Found#{script_name := Prefix}, Req, Arg, Site, Left);
                {static, _} -> yucan_file:serve(Req, Target, static_options(Path, Site));
                embedded -> embedded(Req, Site);
                forbidden -> yucan_error:page(403);
                false -> not_found(Req, Arg, Site, Left)
            end;
        {false, _} -> not_found(Req, Arg, Site, Left)
    end.

proxied(Path, Req, Arg, #{server := Server} = Site, Left) ->
    case proxy(Path, Server) of
        {_, Proxy} -> ask(Proxy, Req, Server);
        none -> appmod(Path, Req, Arg, Site, Left)
    end.

ask(Proxy, Req, #{max_body_size := Max} = Server) -> yucan_revproxy:respond(Req, Proxy, yucan_yaws_out:own_origin(Req, Server), Max).

proxy(Path, #{revproxy := Proxies}) ->
    Under = [{length(Prefix), Proxy} || #{prefix := Prefix} = Proxy <- Proxies,
                                        yucan_yaws_match:is_under(Path, unicode:characters_to_binary(string:trim(Prefix, trailing, "/")))
                                            orelse Prefix =:= "/"],
    case lists:reverse(lists:keysort(1, Under)) of
        [Longest | _] -> Longest;
        [] -> none
    end.

%% An appmod is not called for a page that it has returned, so an appmod for all paths can return files.
appmod(Path, Req, Arg, #{server := #{appmods := Mounts} = Server} = Site, Left) ->
    case yucan_yaws_match:appmod(Path, Mounts) of
        {ok, #{module := Module, prefix := Prefix, rest := Rest, others := Others}} ->
            call(Module, out, [], Req, yucan_yaws_out:in_appmod(Module, Prefix, Rest, yucan_yaws_out:made(Arg)), Site#{server := Server#{appmods := Others}}, Left);
        none ->
            file(Path, Req, Arg, Site, Left)
    end.

file(Path, Req, Arg, #{server := #{docroot := Docroots} = Server} = Site, Left) ->
    case yucan_yaws_files:find(Req, Path, Docroots, Server) of
        {script, Kind, #{script_name := Name} = Found} -> script(Kind, Found#{script_name := <<(maps:get(mount, Site, <<>>))/binary, Name/binary>>}, Req, Arg, Site, Left);
        {static, Docroot} -> static(Docroot, Path, Req, Arg, Site, Left);
        {redirect, To} -> {302, [{<<"location">>, [yucan_yaws_out:own_origin(Req, Server), To]}], <<>>};
        embedded -> embedded(Req, Site);
        forbidden -> yucan_error:page(403);
        not_found -> not_found(Req, Arg, Site, Left)
    end.

%% The page is for Yaws. Its source, which may contain secrets, is not shown.
embedded(Req, #{warned := Warned, server := #{name := Name}}) ->
    _ = [yucan_events:warning("<server ~ts>: ~ts: pages with embedded Erlang are not supported; use an appmod", [Name, yucan_req:path(Req)])
         || atomics:exchange(Warned, 1, 1) =:= 0],
    yucan_error:page(403).

static(Docroot, Path, Req, Arg, Site, Left) ->
    case yucan_file:respond(Req, unicode:characters_to_binary(Docroot), static_options(Path, Site)) of
        not_found -> not_found(Req, Arg, Site, Left);
        {error, forbidden} -> yucan_error:page(403);
        {error, bad_path} -> yucan_error:page(400);
        Response -> Response
    end.

static_options(Path, #{server := #{index_files := Names, dir_listings := Listing, deflate := Gzip, expires := Expires, follow_symlinks := Links}} = Site) ->
    Options = #{index => [unicode:characters_to_binary(Name) || Name <- Names, hd(Name) =/= $/], listing => Listing =/= false, gzip => Gzip, follow_symlinks => Links},
    yucan_yaws_out:expiring(Path, Expires, maps:merge(Options, maps:with([mount], Site))).

not_found(_, _, #{server := #{errormod_404 := undefined}}, _) ->
    yucan_error:page(404);
not_found(Req, Arg, #{server := #{errormod_404 := Module}} = Site, Left) ->
    {ok, Gconf, [[Sconf]]} = yucan_yaws_options:records(),
    case call(Module, out404, [Gconf, Sconf], Req, Arg, Site, Left) of
        {200, Headers, Body} -> {404, Headers, Body};
        Response -> Response
    end.

%% ---- scripts

script(php, Found, Req, Arg, #{globals := #{php_exe_path := Exe}, server := #{php_handler := Handler, max_body_size := Max}} = Site, Left) ->
    case Handler of
        undefined -> run({interpreter, Exe}, Found, Req, Arg, Site);
        {cgi, Program} -> run({interpreter, Program}, Found, Req, Arg, Site);
        {fcgi, Address} -> run({fcgi, Address}, Found, Req, Arg, Site);
        {extern, Node, Module, Function} ->
            case yucan_req:body(Req, Max) of
                {ok, Body} ->
                    Arg2 = (yucan_yaws_out:in_script(Found, yucan_yaws_out:made(Arg)))#arg{clidata = Body},
                    Result = erpc:call(Node, Module, Function, [Arg2], 60000),
                    outcome(yucan_yaws_out:collect(Result), Req, Arg2, Site, Left);
                {error, Reason} -> yucan_req:body_error(Reason)
            end
    end;
script(cgi, #{script := File} = Found, Req, Arg, Site, _) ->
    run({program, File}, Found, Req, Arg, Site);
script(fcgi, _, _, _, #{server := #{fcgi_app_server := undefined}}, _) ->
    yucan_error:page(403);
script(fcgi, Found, Req, Arg, #{server := #{fcgi_app_server := Address}} = Site, _) ->
    run({fcgi, Address}, Found, Req, Arg, Site).

run(Run, #{script := File} = Found, Req, Arg, #{server := #{extra_cgi_vars := Extra}}) ->
    Variables = lists:append([[{unicode:characters_to_binary(Name), unicode:characters_to_binary(Value)} || {Name, Value} <- Pairs] || {Dir, Pairs} <- Extra,
                                       yucan_yaws_match:is_under(unicode:characters_to_binary(filename:dirname(File)),
                                                                unicode:characters_to_binary(Dir))]),
    Spec = maps:merge(body(Arg), Found#{run => Run, variables => Variables}),
    yucan_cgi:respond(Req, maps:merge(yucan_yaws_options:for_scripts(), Spec)).

%% Returns the body that a module has read before it returned this page. If the module read the body with get_more, it is no longer available.
body(#arg{clidata = Read, cont = undefined}) when Read =/= <<>> -> #{body => Read};
body(_) -> #{}.

%% ---- modules

call(Module, Function, More, Req, Arg, #{server := Server} = Site, Left) ->
    case yucan_yaws_out:with_body(yucan_yaws_out:made(Arg), Req, Server) of
        {ok, Arg2} ->
            {Outcome, Arg3} = out(own(Module, Site), Function, More, Req, Arg2, Site),
            outcome(Outcome, Req, Arg3, Site, Left);
        {error, Reason} ->
            yucan_req:body_error(Reason)
    end.

out(Module, Function, More, Req, #arg{clidata = Read} = Arg, Site) ->
    try yucan_yaws_out:collect(apply(Module, Function, [Arg | More])) of
        #{next := {get_more, Cont, State}} = Outcome when is_tuple(Read) -> more(Module, Function, More, Outcome, Cont, State, Req, Arg, Site);
        %% The module asks for more, but the body has ended, for example because a client has omitted the end of a form.
        #{next := {get_more, _, _}} = Outcome -> {Outcome#{next := none}, Arg};
        Outcome -> {Outcome, Arg}
    catch
        Class:Reason:Stack -> {crashed(Class, Reason, Stack, Arg, Site), Arg}
    end.

%% Reads the next part of a long body. Results of earlier parts are retained.
more(Module, Function, More, Outcome, Cont, State, Req, Arg, #{server := Server} = Site) ->
    case yucan_yaws_out:with_body(Arg#arg{cont = Cont, state = State, clidata = <<>>}, Req, Server) of
        {ok, Arg2} ->
            {Next, Arg3} = out(Module, Function, More, Req, Arg2, Site),
            {yucan_yaws_out:merge(Outcome#{next := none}, Next), Arg3};
        {error, Reason} ->
            {#{headers => [], body => [], next => {response, yucan_req:body_error(Reason)}}, Arg}
    end.

%% Without errormod_crash, a crash is treated like that of any other handler: the server answers 500 and logs the crash.
crashed(Class, Reason, Stack, _, #{server := #{errormod_crash := undefined}}) ->
    erlang:raise(Class, Reason, Stack);
crashed(Class, Reason, Stack, Arg, #{server := #{errormod_crash := Module}} = Site) ->
    {ok, _, [[Sconf]]} = yucan_yaws_options:records(),
    Text = lists:flatten(io_lib:format("~tp", [{Class, Reason, Stack}])),
    Outcome = yucan_yaws_out:collect((own(Module, Site)):crashmsg(Arg, Sconf, Text)),
    maps:merge(#{status => 500}, Outcome).

outcome(#{next := {page, Target}, headers := Headers} = Outcome, Req, Arg, Site, Left) ->
    Response = yucan_yaws_out:with_headers(Headers, page(Target, Req, Arg, Site, Left)),
    case Outcome of
        #{status := Status} -> with_status(Status, Response);
        #{} -> Response
    end;
outcome(#{next := {redirect_local, Path}, headers := Headers} = Outcome, Req, Arg, #{server := Server}, _) ->
    Location = case Path of
        "/" ++ _ -> [yucan_yaws_out:own_origin(Req, Server), Path];
        %% The target is relative to the directory of this request or a complete URL, and the client can resolve both.
        _ -> Path
    end,
    yucan_yaws_out:answer(Outcome#{next := none, headers := Headers ++ [{<<"location">>, Location}]}, Req, Arg);
outcome(Outcome, Req, Arg, _, _) ->
    yucan_yaws_out:answer(Outcome, Req, Arg).
