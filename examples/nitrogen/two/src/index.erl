%% SPDX-License-Identifier: Apache-2.0
%% The page of site "two", whose module has the same name as that of site "one".
-module(index).
-include("../../include/elements.hrl").
-export([main/0, title/0, body/0, event/1]).

title() -> "Welcome to site two".

%% The elements are in the opposite order, so that the two pages can be told apart.
body() -> [#button{id = button, text = "Click me!", postback = {click, 2}}, #h1{text = title()}].

event({click, 2}) ->
    Answer = #panel{id = answer, body = ["You clicked the button of site two", "!"], actions = #effect{effect = highlight}},
    wf:replace(button, Answer).

main() -> #template{file = "templates/bare.html"}.
