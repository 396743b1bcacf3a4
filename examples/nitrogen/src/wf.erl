%% SPDX-License-Identifier: Apache-2.0
%% @doc Elements as HTML, and postbacks: a term is sent to the browser with a signature and comes back when its button is clicked, and the page's
%% `event/1' answers with changes to the page. This is a small part of what Nitrogen's module of the same name does, with the same function names.
-module(wf).

-export([page/2, postback/1, replace/2]).

-include("../include/elements.hrl").

%% @doc Returns the page of a module. `main/0' names a template, in which `[[[page:function()]]]' is replaced by the result of the module's function.
-spec page(module(), file:filename()) -> iodata().
page(Module, Folder) ->
    ok = remember(Module),
    #template{file = File} = Module:main(),
    {ok, Text} = file:read_file(filename:join(Folder, File)),
    filled(binary:split(Text, <<"[[[page:">>, [global]), Module).

filled([Plain | Calls], Module) -> [Plain | [called(Call, Module) || Call <- Calls]].

called(Call, Module) ->
    [Name, Plain] = binary:split(Call, <<"()]]]">>),
    [render(Module:(binary_to_existing_atom(Name))()), Plain].

%% @doc Returns the changes that a postback makes, as JSON, or `forged' if this VM has not sent the term.
-spec postback(Signed :: binary()) -> {ok, iodata()} | forged.
postback(Signed) ->
    case opened(Signed) of
        {ok, {Module, Term}} ->
            ok = remember(Module),
            _ = Module:event(Term),
            {ok, ["[", lists:join(",", lists:reverse(put(?MODULE, []))), "]"]};
        forged -> forged
    end.

%% @doc Replaces the element with this id on the page in the browser.
-spec replace(atom(), tuple()) -> ok.
replace(Id, #panel{actions = Action} = Element) ->
    Effect = case Action of #effect{effect = Name} -> atom_to_list(Name); undefined -> "" end,
    Change = ["{\"replace\":", json(atom_to_list(Id)), ",\"html\":", json(render(Element)), ",\"effect\":", json(Effect), "}"],
    _ = put(?MODULE, [Change | get(?MODULE)]),
    ok.

json(Text) -> [$", [escaped_json(C) || C <- unicode:characters_to_list(Text)], $"].

escaped_json(C) when C =:= $"; C =:= $\\; C =:= $<; C < 32 -> io_lib:format("\\u~4.16.0b", [C]);
escaped_json(C) -> unicode:characters_to_binary([C]).

remember(Module) ->
    _ = put(?MODULE, []),
    _ = put({?MODULE, module}, Module),
    ok.

%% ---- elements

render(#h1{text = Text}) -> ["<h1>", escaped(Text), "</h1>"];
render(#p{body = Body}) -> ["<p>", render(Body), "</p>"];
render(#panel{body = Body, id = Id}) -> ["<div", id(Id), ">", render(Body), "</div>"];
render(#button{id = Id, text = Text, postback = Term}) ->
    ["<button", id(Id), " data-postback=\"", signed({get({?MODULE, module}), Term}), "\">", escaped(Text), "</button>"];
render([Element | Rest]) when is_tuple(Element); is_list(Element) -> [render(Element) | render(Rest)];
render(Text) -> escaped(Text).

id(undefined) -> [];
id(Id) -> [" id=\"", escaped(atom_to_list(Id)), "\""].

escaped(Text) -> yaws_api:htmlize(unicode:characters_to_binary(Text)).

%% ---- terms that only this VM can have signed

signed(Term) ->
    Bytes = term_to_binary(Term),
    base64:encode(<<(mac(Bytes))/binary, Bytes/binary>>).

opened(Signed) ->
    try
        <<Mac:32/binary, Bytes/binary>> = base64:decode(Signed),
        true = crypto:hash_equals(Mac, mac(Bytes)),
        {ok, binary_to_term(Bytes, [safe])}
    catch
        error:_ -> forged
    end.

mac(Bytes) -> crypto:mac(hmac, sha256, secret(), Bytes).

secret() ->
    case persistent_term:get(?MODULE, none) of
        none ->
            persistent_term:put(?MODULE, crypto:strong_rand_bytes(32)),
            secret();
        Secret -> Secret
    end.
