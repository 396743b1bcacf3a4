%% SPDX-License-Identifier: Apache-2.0
%% @doc The handler behind yucan_simple_bridge_anchor. The path `/a/b' shows the page of the site's
%% module a_b, `/' shows that of index, and `/postback' receives clicks. The module is also its own
%% bridge, which simple_bridge would create if it were a dependency.
-module(front).

-export([make/2, run/1]).

-include_lib("yucan_yaws/include/yaws_api.hrl").

%% @doc Does what simple_bridge:make/2 would do.
-spec make(yucan, #arg{}) -> {term(), file:filename()}.
make(yucan, #arg{docroot = Docroot} = Arg) -> {yucan_simple_bridge:init(Arg), filename:dirname(Docroot)}.

%% @doc Handles a request.
-spec run({term(), file:filename()}) -> yucan_handler:response().
run({Request, Folder}) ->
    case {yucan_simple_bridge:request_method(Request), yucan_simple_bridge:path(Request)} of
        {'POST', "/postback"} -> clicked(proplists:get_value(<<"postback">>, yucan_simple_bridge:post_params(Request), <<>>), Request);
        {'GET', Path} -> page(module(string:lexemes(Path, "/")), Folder, Request);
        _ -> answer(405, "text/plain", "no such thing\n", Request)
    end.

clicked(Signed, Request) ->
    case wf:postback(Signed) of
        {ok, Changes} -> answer(200, "application/json", Changes, Request);
        forged -> answer(400, "text/plain", "not a postback of this server\n", Request)
    end.

page(none, _, Request) -> answer(404, "text/plain", "no such page\n", Request);
page(Module, Folder, Request) -> answer(200, "text/html; charset=utf-8", wf:page(Module, Folder), Request).

%% Returns the site's own module with that name, if it is a page. Names without a module are not
%% converted to atoms.
module([]) -> module(["index"]);
module(Parts) ->
    try yucan_yaws_loader:own(list_to_existing_atom(lists:flatten(lists:join("_", Parts)))) of
        Module ->
            case erlang:function_exported(Module, main, 0) andalso erlang:function_exported(Module, event, 1) of
                true -> Module;
                false -> none
            end
    catch error:badarg -> none
    end.

answer(Status, Type, Body, Request) ->
    yucan_simple_bridge:build_response(Request, {response, Status, [{header, "content-type", Type}], [], {data, Body}}).
