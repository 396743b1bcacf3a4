%% SPDX-License-Identifier: Apache-2.0
%% @doc A typical Yaws module that uses every feature: pages by name, rewriting, auth, errors.
-module(yucan_yaws_pages).

-include("../../yucan_yaws/include/yaws_api.hrl").
-include("../../yucan_yaws/include/yaws.hrl").

-export([php/1, out/1, out404/3, out401/3, crashmsg/3, arg_rewrite/1, auth/2, init/1, handle_open/2, handle_message/2, terminate/2, start/0, start/1]).

out(#arg{appmoddata = Page} = Arg) -> page(Page, Arg).

%% Answers in place of PHP, with `php_handler = <extern, ...>'.
php(#arg{prepath = Before, pathinfo = Info, clidata = Body}) -> {content, "text/plain", io_lib:format("~p ~p ~p", [Before, Info, Body])}.

page("html", _) -> {html, "<p>hello</p>"};
page("ehtml", _) -> {ehtml, {p, [{class, "a"}], ["x ", <<"&">>]}};
page("ehtml_letters", _) -> {ehtml, {p, [], [16#13C | "script"] ++ [16#13E]}};
page("content", _) -> {content, "text/plain", [<<"pla">>, "in"]};
page("status", _) -> [{status, 418}, [[{html, "tea"}]]];
page("query", Arg) -> {content, "text/plain", yaws_api:f("~p", [yaws_api:parse_query(Arg)])};
page("page", _) -> {page, "/page.html"};
page("page_status", _) -> {page, {[{status, 404}], "/page.html"}};
page("page_headers", _) -> {page, {[yaws_api:setcookie("a", "1"), {header, {content_type, "a/b"}}], "/page.html"}};
page("page_loop", _) -> {page, "/m/page_loop"};
page("page_embedded", _) -> {page, "/p.yaws"};
page("page_cgi", _) -> {page, "/cat.cgi"};
page("set_cookie", _) -> [yaws_api:set_content_type("text/plain"), yaws_api:set_cookie("c", "v", [{path, "/"}, secure]), {html, "ok"}];
page("lines", #arg{headers = Headers}) -> {content, "text/plain", lists:join("\n", yaws_api:reformat_header(yaws_api:delete_header(Headers, host)))};
page("visits", Arg) ->
    case yaws_api:cookieval_to_opaque(yaws_api:find_cookie_val("sid", Arg)) of
        {ok, Visits} ->
            true = yaws_api:replace_cookie_session(yaws_api:find_cookie_val("sid", Arg), Visits + 1),
            {html, integer_to_list(Visits + 1)};
        {error, no_session} -> [yaws_api:set_cookie("sid", yaws_api:new_cookie_session(1), []), {html, "1"}]
    end;
%% Returns the form's parts, with the pieces of each part joined, or the atom that says why there is
%% no form.
page("upload", #arg{state = State} = Arg) ->
    Before = case State of undefined -> []; _ -> State end,
    case yaws_api:parse_multipart_post(Arg, [binary]) of
        {cont, Cont, Items} -> {get_more, Cont, Before ++ Items};
        {result, Items} ->
            Parts = [case Item of {head, {Name, Head}} -> ["|", Name, " ", proplists:get_value("filename", Head, "-"), " "]; {_, Data} -> Data end
                     || Item <- Before ++ Items],
            {content, "text/plain", Parts};
        {error, Reason} -> {content, "text/plain", atom_to_list(Reason)}
    end;
page("nothing", _) -> ok;
page("arg", #arg{prepath = Before, appmoddata = Data, pathinfo = Info, appmod_name = Name, req = Req}) ->
    {content, "text/plain", yaws_api:f("~p", [{Before, Data, Info, Name, Req#http_request.method, Req#http_request.version}])};
page("headers", _) ->
    [{header, {"X-One", "0"}}, {header, "X-One: 1"}, {header, {"X-Erased", "1"}}, {header, {"X-Erased", erase}},
     yaws_api:setcookie("a", "1"), yaws_api:setcookie("b", "2"), {html, ""}];
page("redirect", _) -> {redirect, "http://other.example/", 301};
page("redirect_local", _) -> {redirect_local, "/elsewhere"};
page("redirect_login", _) -> [{redirect_local, "/elsewhere"}, yaws_api:setcookie("a", "1")];
page("redirect_beside", _) -> {redirect_local, {rel_path, "beside?a=b"}};
page("redirect_anywhere", _) -> {redirect_local, {any_path, "http://other.example/"}, 301};
page("body", #arg{clidata = {partial, Data}, cont = undefined}) -> {get_more, parts, byte_size(Data)};
page("body", #arg{clidata = {partial, Data}, cont = parts, state = Size}) -> {get_more, parts, Size + byte_size(Data)};
page("body", #arg{clidata = Data, cont = parts, state = Size}) -> {html, yaws_api:f("~b bytes in parts", [Size + byte_size(Data)])};
page("body", #arg{clidata = Data}) -> {html, yaws_api:f("~b bytes", [byte_size(Data)])};
page("body_over", #arg{cont = undefined}) -> [{html, "once"}, {get_more, again, 0}];
page("body_over", _) -> {html, " and again"};
page("called", #arg{docroot = Docroot} = Arg) -> yaws_cgi:call_cgi(Arg, filename:join(Docroot, "who.cgi"));
page("called_by_bytes", #arg{docroot = Docroot} = Arg) -> yaws_cgi:call_cgi(Arg, binary_to_list(unicode:characters_to_binary(filename:join(Docroot, "d\x{e9}/e.cgi"))));
%% A program argument cannot contain a NUL.
page("never_starts", Arg) -> yaws_cgi:call_cgi(Arg, "cat", "/no\0file");
page("form", Arg) -> {html, yaws_api:f("~p", [yaws_api:parse_post(Arg)])};
page("stream", #arg{pid = Pid}) ->
    _ = spawn(fun() ->
                      ok = yaws_api:stream_chunk_deliver(Pid, "1 "),
                      [ok = yaws_api:stream_chunk_deliver_blocking(Pid, [integer_to_list(N), " "]) || N <- [2, 3]],
                      yaws_api:stream_chunk_end(Pid)
              end),
    {streamcontent, "text/plain", "first "};
page("stream_pid", #arg{clisock = Socket, pid = Pid}) ->
    Writer = spawn(fun() ->
                           receive {ok, Pid} -> ok end,
                           [ok = yaws_api:stream_process_deliver(Socket, ["p", integer_to_list(N), " "]) || N <- [1, 2, 3]],
                           yaws_api:stream_process_end(Socket, Pid)
                   end),
    {streamcontent_from_pid, "text/plain", Writer};
page("stream_told", _) ->
    {streamcontent_from_pid, "text/plain", spawn(fun() -> receive {Word, Pid} when is_pid(Pid) -> yucan_yaws_listener ! {told, Word} end end)};
page("stream_silent", _) -> {streamcontent_with_timeout, "text/plain", "first ", 100};
page("stream_for_ever", #arg{pid = Pid}) ->
    _ = spawn(fun() -> yucan_yaws_listener ! {stream_ended, write_for_ever(Pid)} end),
    {streamcontent, "text/plain", "x"};
page("sized", #arg{pid = Pid}) ->
    _ = spawn(fun() ->
                      ok = yaws_api:stream_chunk_deliver_blocking(Pid, "56789"),
                      yaws_api:stream_chunk_end(Pid)
              end),
    {streamcontent_with_size, 10, "text/plain", "01234"};
page("websocket", _) -> {websocket, ?MODULE, [{callback, {basic, 4}}]};
page("websocket_default", _) -> {websocket, ?MODULE, []};
page("websocket_refused", _) -> {websocket, ?MODULE, [{callback, {basic, {4401, <<"login">>}}}]};
page("websocket_failed", _) -> {websocket, ?MODULE, [{callback, {basic, {no_login, for_me}}}]};
page("crash", _) -> {html, integer_to_list(1 div length(os:getenv("YUCAN_NOT_THERE", "")))};
page("throw", _) -> throw(away);
page("exit", _) -> exit(normal);
page("nonsense", _) -> {nonsense, 1};
page("bad_header", _) -> [{header, {"X-A", "1\r\nX-B: 2"}}, {html, ""}];
page("passed", #arg{opaque = Opaque}) -> {html, ["passed on ", Opaque]}.

write_for_ever(Pid) ->
    case yaws_api:stream_chunk_deliver_blocking(Pid, binary:copy(<<"x">>, 65536)) of
        ok -> write_for_ever(Pid);
        Ended -> Ended
    end.

init([#arg{appmoddata = "websocket"}, Given]) -> {ok, Given + 1};
init([#arg{appmoddata = "websocket_default"}, []]) -> {ok, 5};
init([#arg{}, Refusal]) -> {ok, Refusal}.

handle_open(_, Refusal) when is_tuple(Refusal) -> {error, Refusal};
handle_open(Socket, Count) ->
    ok = yaws_api:websocket_send(Socket, {text, "open"}),
    {ok, Count + 1}.

handle_message({text, <<"hi">>}, Count) -> {reply, {text, [integer_to_list(Count), " hello"]}, Count + 1};
handle_message({text, <<"end">>}, Count) -> {close, {4000, <<"over">>}, {text, "last"}, Count};
handle_message({close, Code, Text}, Count) -> {noreply, {Code, Text, Count}}.

%% The state is not a number if the close was not requested by this module.
terminate(_, Count) when is_integer(Count) -> ok;
terminate(_, Left) -> tell({left, Left}).

out404(#arg{server_path = "/loop"}, _, _) -> {page, "/loop"};
out404(#arg{server_path = Path}, #gconf{}, #sconf{}) -> {html, ["no ", Path, " here"]}.

out401(_, _, Realm) -> {html, ["who are you, ", Realm]}.

crashmsg(_, #sconf{}, Text) ->
    true = string:find(Text, "badarith") =/= nomatch,
    {html, "it broke: badarith"}.

arg_rewrite(#arg{req = #http_request{path = {abs_path, Path}} = Req} = Arg) ->
    case Path of
        "/rewrite" ++ Rest -> Arg#arg{req = Req#http_request{path = {abs_path, Rest}}};
        "/other" ++ Rest -> Arg#arg{docroot = filename:dirname(Arg#arg.docroot) ++ "/other/", req = Req#http_request{path = {abs_path, Rest}}};
        "/pass" ++ _ -> Arg#arg{opaque = Path, req = Req#http_request{path = {abs_path, "/m/passed"}}};
        "/answer" -> Arg#arg{state = #rewrite_response{status = 403, headers = [{header, {"X-Why", "1"}}], content = "not you"}}
    end.

auth(Arg, _) ->
    case yaws_api:find_cookie_val("pass", Arg) of
        "yes" -> true;
        "other" -> {false, "other"};
        "none" -> {appmod, yucan_yaws_login}
    end.

start() -> tell(started).

start(#sconf{opaque = Opaque}) -> tell({started, Opaque}).

tell(What) ->
    yucan_yaws_listener ! What.
