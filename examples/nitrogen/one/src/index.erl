%% SPDX-License-Identifier: Apache-2.0
%% The first page of a new Nitrogen project, for site "one". The other site has a module of the same name.
-module(index).

-export([main/0, title/0, body/0, event/1]).

-include("../../include/elements.hrl").

main() -> #template{file = "templates/bare.html"}.

title() -> "Welcome to site one".

body() ->
    [#h1{text = title()},
     #p{body = "If you can see this page, then your server is up and running. Click the button below to test postbacks."},
     #button{id = button, text = "Click me!", postback = click},
     #p{body = "Pages are modules; this one is named index in both sites."}].

event(click) ->
    wf:replace(button, #panel{id = answer, body = "You clicked the button of site one!", actions = #effect{effect = highlight}}).
