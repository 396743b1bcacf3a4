%% SPDX-License-Identifier: Apache-2.0
%% @doc Implements the out/1 interface of Yaws: creates the #arg{} that modules get, converts it back to a request after
%% they have rewritten it, collects their results into an outcome, and converts the outcome to a response.
%%
%% The result of out/1 is a list, nested to any depth, of the tuples below. If only one tuple of a kind makes sense, the last one is used. `break'
%% discards everything after it, and a redirect discards everything except headers. Any other term is an error in the module and causes a 500.
-module(yucan_yaws_out).

-export([made/1, rewritten/2, escaped/1, request/0, remember/1, with_body/3, moved/2, in_appmod/4, in_script/2, path/1]).
-export([collect/1, merge/2, answer/3, typed/2, with_headers/2, own_origin/2, expiring/3]).
-export_type([outcome/0, next/0, lazy/0]).

-include("../../include/yaws_api.hrl").

-type next() :: none
              | {page, string()}
              | {get_more, Cont :: term(), State :: term()}
              | {websocket, module(), [term()]}
              | {stream, Mime :: iodata(), First :: iodata(), #{pid => pid(), timeout => timeout(), size => non_neg_integer()}}
              | {redirect_local, string()}
              | {response, yucan_handler:response()}.
-type outcome() :: #{status => 100..999, headers := [{binary(), iodata()}], all => boolean(), body := iodata(), type => iodata(), next := next(),
                     arg => #arg{}}.
%% Headers are in the order in which they were set, and in lower case. `all' means that they replace headers that were set earlier.

%% ---- the #arg{}

-type lazy() :: #arg{} | {later, yucan_req:req(), Docroots :: [file:filename()], Opaque :: term()}.
%% The arg is created lazily, because most requests for files and scripts do not need it.

%% @doc Returns the arg that a Yaws module gets.
-spec made(lazy()) -> #arg{}.
made(#arg{} = Arg) -> Arg;
made({later, Req, Docroots, Opaque}) ->
    Request = http_request(Req),
    #arg{clisock = {yucan_stream, self()}, client_ip_port = yucan_req:peer(Req), headers = yucan_yaws_headers:received(yucan_req:headers(Req)), req = Request,
         orig_req = Request, clidata = <<>>, server_path = path(Req), querydata = binary_to_list(yucan_req:query(Req)),
         docroot = case Docroots of [Docroot | _] -> Docroot; [] -> undefined end, docroot_mount = "/",
         pid = self(), opaque = Opaque}.

http_request(Req) ->
    Query = case yucan_req:has_query(Req) of
                true -> "?" ++ binary_to_list(yucan_req:query(Req));
                false -> ""
            end,
    #http_request{method = method(yucan_req:method(Req)), path = {abs_path, binary_to_list(yucan_req:path(Req)) ++ Query},
                  version = yucan_req:version(Req)}.

%% Returns atoms for the original methods of HTTP/1.1, as erlang:decode_packet/3 does.
method(Method) ->
    case lists:member(Method, [<<"GET">>, <<"HEAD">>, <<"POST">>, <<"PUT">>, <<"DELETE">>, <<"OPTIONS">>, <<"TRACE">>]) of
        true -> binary_to_atom(Method);
        false -> binary_to_list(Method)
    end.

%% @doc Returns the decoded path, or an empty path if it cannot be decoded.
-spec path(yucan_req:req()) -> string().
path(Req) ->
    case yucan_req:decoded_path(Req) of
        {ok, Path} -> binary_to_list(Path);
        {error, bad_path} -> ""
    end.

%% @doc Returns the request for an arg that a module has rewritten.
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

%% @doc Escapes the characters that are not allowed in a request target, for a path that a module or a configuration may have decoded.
-spec escaped(binary()) -> binary().
escaped(Path) ->
    << <<(case C > $\s andalso C < 127 of true -> <<C>>; false -> yucan_path:escape(<<C>>) end)/binary>> || <<C>> <= Path >>.

%% @doc Adds the body to the arg, or only the body's first part if it is larger than the server's
%% `partial_post_size'. A part that was read before the module returned {page, Path} is kept.
-spec with_body(#arg{}, yucan_req:req(), #{partial_post_size := pos_integer() | nolimit, max_body_size := pos_integer(), _ => _}) -> {ok, #arg{}} | {error, term()}.
with_body(#arg{clidata = Read} = Arg, _, _) when Read =/= <<>> -> {ok, Arg};
with_body(Arg, Req, #{partial_post_size := PartBytes, max_body_size := Max}) ->
    case yucan_req:has_body(Req) of
        false -> {ok, Arg};
        true ->
            case case PartBytes of nolimit -> yucan_req:body(Req, Max); _ -> yucan_req:gather(PartBytes, <<>>, Req) end of
                {more, Part} -> {ok, Arg#arg{clidata = {partial, Part}}};
                {ok, Data} -> {ok, Arg#arg{clidata = Data}};
                {error, Reason} -> {error, Reason}
            end
    end.

%% @doc Stores the request in the process that handles it, for {@link request/0}.
-spec remember(yucan_req:req()) -> ok.
remember(Req) ->
    _ = put(?MODULE, Req),
    ok.

%% @doc Returns the request that this process handles, for helper functions that get only an #arg{}.
-spec request() -> yucan_req:req().
request() ->
    case get(?MODULE) of
        undefined -> error(not_in_the_process_of_a_request);
        Req -> Req
    end.

%% @doc Returns the arg for a different path.
-spec moved(yucan_req:req(), #arg{}) -> #arg{}.
moved(Req, Arg) ->
    Arg#arg{server_path = path(Req), querydata = binary_to_list(yucan_req:query(Req)), pathinfo = undefined, appmoddata = undefined,
            appmod_prepath = undefined, appmod_name = undefined, prepath = undefined}.

%% @doc Returns the arg for an appmod.
-spec in_appmod(module(), Prefix :: binary(), Rest :: binary(), #arg{}) -> #arg{}.
in_appmod(Module, Prefix, Rest, Arg) ->
    Info = binary_to_list(Rest),
    Arg#arg{appmod_name = Module, appmod_prepath = binary_to_list(Prefix), prepath = binary_to_list(Prefix),
            appmoddata = string:trim(Info, leading, "/"), pathinfo = case Info of "" -> undefined; _ -> Info end}.

%% @doc Returns the arg for a script.
-spec in_script(map(), #arg{}) -> #arg{}.
in_script(#{script := File, script_name := Name, path_info := Info, docroot := Docroot}, Arg) ->
    Arg#arg{fullpath = binary_to_list(File), docroot = unicode:characters_to_list(Docroot), prepath = binary_to_list(filename:dirname(Name)) ++ "/",
            pathinfo = case Info of <<>> -> undefined; _ -> binary_to_list(Info) end}.

%% ---- the result, pure

%% @doc Converts a result of out/1 to an outcome.
-spec collect(term()) -> outcome().
collect(Result) -> element(2, item(Result, #{headers => [], body => [], next => none})).

%% @doc Merges two outcomes; the second one comes after the first.
-spec merge(outcome(), outcome()) -> outcome().
merge(#{headers := H1, body := B1} = First, #{headers := H2, body := B2} = Second) ->
    (maps:merge(First, Second))#{headers := case Second of #{all := true} -> H2; #{} -> H1 ++ H2 end, body := [B1, B2]}.

item([], Out) -> {next, Out};
item([Item | Rest], Out) ->
    case item(Item, Out) of
        {next, Out2} -> item(Rest, Out2);
        {break, Out2} -> {break, Out2};
        {redirect, Out2} -> {redirect, headers_behind(lists:flatten(Rest), Out2)}
    end;
item(ok, Out) -> {next, Out};
item(break, Out) -> {break, Out};
item(#arg{} = Arg, Out) -> {next, Out#{arg => Arg}};
item({html, Html}, Out) -> body(<<"text/html">>, Html, Out);
item({ehtml, Term}, Out) -> body(<<"text/html">>, yucan_yaws_ehtml:expand(Term), Out);
item({content, Mime, Data}, Out) -> body(Mime, Data, Out);
item({status, Status}, Out) when is_integer(Status), Status >= 100, Status =< 999 -> {next, Out#{status => Status}};
item({allheaders, Headers}, Out) -> {next, lists:foldl(fun allheader/2, Out#{headers := [], all => true}, Headers)};
item({header, Header}, Out) -> {next, header(Header, Out)};
item({redirect, Url}, Out) -> redirect(Url, 302, Out);
item({redirect, Url, Status}, Out) -> redirect(Url, Status, Out);
item({redirect_local, Path}, Out) -> item({redirect_local, Path, 302}, Out);
item({redirect_local, {Kind, Path}, Status}, Out) when Kind =:= any_path; Kind =:= abs_path; Kind =:= rel_path ->
    item({redirect_local, Path, Status}, Out);
item({redirect_local, Path, Status}, Out) -> {redirect, Out#{status => Status, next := {redirect_local, lists:flatten(Path)}}};
%% Of the earlier results, only the status applies to the page.
item({page, {Options, Path}}, Out) when is_list(Options) ->
    #{headers := Headers} = Given = collect(Options),
    {break, (maps:merge(Out, maps:with([status], Given)))#{headers := Headers, next := {page, lists:flatten(Path)}}};
item({page, Path}, Out) -> item({page, {[], Path}}, Out);
item({get_more, Cont, State}, Out) -> {break, Out#{next := {get_more, Cont, State}}};
item({websocket, Module, Options}, Out) -> {break, Out#{next := {websocket, Module, Options}}};
item({streamcontent, Mime, First}, Out) -> stream(Mime, First, #{}, Out);
item({streamcontent_with_timeout, Mime, First, Timeout}, Out) -> stream(Mime, First, #{timeout => Timeout}, Out);
item({streamcontent_with_size, Size, Mime, First}, Out) -> stream(Mime, First, #{size => Size}, Out);
item({streamcontent_from_pid, Mime, Pid}, Out) -> stream(Mime, <<>>, #{pid => Pid}, Out);
item({yucan_response, Response}, Out) -> {break, Out#{next := {response, Response}}};
item(Other, _) -> error({return_of_out_not_known, Other}).

body(Mime, Data, #{body := Before} = Out) -> {next, Out#{body := [Before, Data], type => Mime}}.

stream(Mime, First, Options, Out) -> {break, Out#{next := {stream, Mime, First, Options}}}.

headers_behind([{header, Header} | Rest], Out) -> headers_behind(Rest, header(Header, Out));
headers_behind([break | _], Out) -> Out;
headers_behind([_ | Rest], Out) -> headers_behind(Rest, Out);
headers_behind([], Out) -> Out.

redirect(Url, Status, #{headers := Headers} = Out) ->
    {redirect, Out#{status => Status, headers := Headers ++ [{<<"location">>, lists:flatten(Url)}]}}.

allheader({header, Header}, Out) -> header(Header, Out);
allheader(Header, Out) -> header(Header, Out).

%% A header is `{Name, Value}', `{Name, erase}', `{multi, Name, Values}' or "Name: Value".
header({Name, erase}, #{headers := Headers} = Out) ->
    Wanted = name(Name),
    Out#{headers := [Header || {Other, _} = Header <- Headers, Other =/= Wanted]};
header({Name, {multi, Values}}, Out) -> lists:foldl(fun(Value, O) -> header({Name, Value}, O) end, Out, Values);
header({Name, Value}, #{headers := Headers} = Out) ->
    Lower = name(Name),
    Others = case is_repeatable(Lower) of
                 true -> Headers;
                 false -> [Header || {Other, _} = Header <- Headers, Other =/= Lower]
             end,
    Out#{headers := Others ++ [{Lower, value(Value)}]};
header(Text, Out) ->
    case binary:split(iolist_to_binary(Text), <<":">>) of
        [Name, <<" ", Value/binary>>] -> header({Name, Value}, Out);
        [Name, Value] -> header({Name, Value}, Out);
        [_] -> error({header_without_a_colon, Text})
    end.

is_repeatable(Name) -> lists:member(Name, [<<"set-cookie">>, <<"link">>, <<"vary">>, <<"www-authenticate">>]).

name(Name) when is_atom(Name) -> name(lists:flatten(string:replace(atom_to_list(Name), "_", "-", all)));
name(Name) -> yucan_header:lower(iolist_to_binary(Name)).

value(Value) when is_integer(Value) -> integer_to_binary(Value);
value(Value) when is_atom(Value) -> atom_to_binary(Value);
value(Value) -> Value.

%% ---- the response

%% @doc Converts an outcome to a response.
-spec answer(outcome(), yucan_req:req(), #arg{}) -> yucan_handler:response().
answer(#{next := {response, Response}} = Outcome, _, _) ->
    merged(Outcome, Response);
answer(#{next := {websocket, Module, Options}}, _, Arg) ->
    yucan_yaws_ws:response(yucan_yaws_loader:own(Module), Options, Arg);
answer(#{next := {stream, Mime, First, Options}, headers := Headers} = Outcome, Req, _) ->
    yucan_yaws_stream:response(Req, maps:get(status, Outcome, 200), typed(Mime, Headers), First, Options);
answer(#{next := none, headers := Headers, body := Body} = Outcome, _, _) ->
    Typed = case Outcome of
                #{type := Mime} -> typed(Mime, Headers);
                #{} -> Headers
            end,
    {maps:get(status, Outcome, 200), Typed, Body}.

%% @doc Adds a content type, unless one was set explicitly.
-spec typed(iodata(), [{binary(), iodata()}]) -> [{binary(), iodata()}].
typed(Mime, Headers) ->
    case lists:keymember(<<"content-type">>, 1, Headers) of
        true -> Headers;
        false -> [{<<"content-type">>, Mime} | Headers]
    end.

%% @doc Adds headers that were set earlier to a response. If a header may occur only once, the response's own header is used.
-spec with_headers([{binary(), iodata()}], yucan_handler:response()) -> yucan_handler:response().
with_headers(Given, {Status, Headers, Body}) ->
    Names = [name(Name) || {Name, _} <- Headers],
    {Status, [Header || {Name, _} = Header <- Given, is_repeatable(Name) orelse not lists:member(Name, Names)] ++ Headers, Body};
with_headers(_, Response) -> Response.

%% Adds the status and the headers that the module set earlier to the response of a script.
merged(#{headers := Headers} = Outcome, {Status, Others, Body}) ->
    {maps:get(status, Outcome, Status), Headers ++ Others, Body};
merged(_, Response) -> Response.

%% @doc Returns the origin under which clients know this server. `rhost' and `rscheme' describe a server in front of it.
-spec own_origin(yucan_req:req(), yucan_yaws_config:server()) -> iodata().
own_origin(Req, #{rhost := Rhost, rscheme := Rscheme, rmethod := Rmethod, name := Name}) ->
    Scheme = hd([S || S <- [Rscheme, Rmethod], S =/= undefined] ++ [yucan_req:scheme(Req)]),
    Host = case {Rhost, yucan_req:header(<<"host">>, Req)} of
               {undefined, undefined} -> Name;
               {undefined, Given} -> Given;
               _ -> Rhost
           end,
    [atom_to_binary(Scheme), "://", Host].

%% @doc Adds the expiry time that the configuration has for this type of file, if any, to the options of a static file.
-spec expiring(Path :: binary(), [{Type :: string(), Seconds :: non_neg_integer()}], map()) -> map().
expiring(_, [], Options) -> Options;
expiring(Path, Expires, Options) ->
    Type = hd(string:split(unicode:characters_to_list(yucan_mime:of_file(Path)), ";")),
    case [Seconds || {Wanted, Seconds} <- Expires, Wanted =:= Type orelse Wanted =:= "*"
                                                          orelse Wanted =:= hd(string:split(Type, "/")) ++ "/*"] of
        [Seconds | _] -> Options#{expires => Seconds};
        [] -> Options
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

flat(#{body := Body} = Out) -> maps:remove(next, Out#{body := iolist_to_binary(Body)}).

collect_test_() ->
    [?_assertEqual(Expected, flat(collect(Result)))
     || {Result, Expected} <-
            [{ok, #{headers => [], body => <<>>}},
             {{html, "<p>"}, #{headers => [], body => <<"<p>">>, type => <<"text/html">>}},
             {[[{status, 404}], [[{header, {"X-A", "1"}}, {content, "text/plain", ["a", <<"b">>]}]]],
              #{status => 404, headers => [{<<"x-a">>, "1"}], body => <<"ab">>, type => "text/plain"}},
             {[{header, {content_type, "a/b"}}, {header, "content-type: c/d"}], #{headers => [{<<"content-type">>, <<"c/d">>}], body => <<>>}},
             {[{header, {set_cookie, "a=1"}}, {header, {set_cookie, "b=2"}}],
              #{headers => [{<<"set-cookie">>, "a=1"}, {<<"set-cookie">>, "b=2"}], body => <<>>}},
             {[{header, {"X", "1"}}, {header, {"x", erase}}], #{headers => [], body => <<>>}},
             {[{header, {"X", "1"}}, {allheaders, [{header, {"Y", "2"}}]}], #{headers => [{<<"y">>, "2"}], body => <<>>, all => true}},
             {[{html, "a"}, break, {html, "b"}], #{headers => [], body => <<"a">>, type => <<"text/html">>}},
             {{redirect, "http://x/"}, #{status => 302, headers => [{<<"location">>, "http://x/"}], body => <<>>}},
             {{redirect, "http://x/", 301}, #{status => 301, headers => [{<<"location">>, "http://x/"}], body => <<>>}},
             {[[{redirect, "/"}, {html, "a"}], [{header, {"A", "1"}}], {status, 200}, break, {header, {"B", "2"}}],
              #{status => 302, headers => [{<<"location">>, "/"}, {<<"a">>, "1"}], body => <<>>}}]].

next_test_() ->
    [?_assertMatch(#{next := {page, "/x"}}, collect({page, "/x"})),
     ?_assertMatch(#{next := {page, "/x"}, status := 404}, collect({page, {[{status, 404}], "/x"}})),
     ?_assertMatch(#{next := {page, "/x"}, headers := [{<<"a">>, "1"}]}, collect([{header, {"B", "2"}}, {page, {[{header, {"A", "1"}}], "/x"}}])),
     ?_assertMatch(#{next := {redirect_local, "/x"}, status := 302}, collect({redirect_local, {any_path, "/x"}})),
     ?_assertMatch(#{next := {get_more, c, s}}, collect([{get_more, c, s}])),
     ?_assertMatch(#{next := {stream, "a/b", "x", #{size := 5}}}, collect({streamcontent_with_size, 5, "a/b", "x"})),
     ?_assertError({return_of_out_not_known, nonsense}, collect([{html, ""}, nonsense])),
     ?_assertError({return_of_out_not_known, _}, collect({status, 42})),
     ?_assertError({return_of_out_not_known, _}, collect({ssi, "file", "%%", []}))].

-endif.
