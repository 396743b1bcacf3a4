%% SPDX-License-Identifier: Apache-2.0
%% @doc Answers requests from the console's pages. Each answer is JSON (or an exported file), and
%% each error is an object with a message. Input is validated here, and only here.
-module(beamway_console_api).
-behaviour(yucan_handler).

-export([handle/2]).

-define(WHY_MS, 5000).
-define(SENDERS, 3).

%% @private
-spec handle(yucan_req:req(), beamway_console_config:config()) -> yucan_handler:response().
handle(Req, Config) ->
    What = yucan_req:binding(<<"what">>, Req),
    case yucan_req:method(Req) of
        <<"POST">> ->
            case beamway_console_web:body(Req) of
                {ok, Body} -> post(What, Body, Config);
                {error, Response} -> Response
            end;
        _ -> get(What, yucan_req:query_pairs(Req), Req)
    end.

get(<<"events">>, _, Req) -> beamway_console_events:response(Req);
get(<<"history">>, Pairs, _) -> history(Pairs);
get(<<"why">>, Pairs, _) -> why(known_node(<<"node">>, Pairs), known_node(<<"peer">>, Pairs));
get(<<"senders">>, Pairs, _) -> senders(known_node(<<"node">>, Pairs), known_node(<<"peer">>, Pairs));
get(<<"jobs">>, _, _) -> beamway_console_web:json(beamway_console_jobs:state());
get(<<"topology">>, Pairs, _) -> topology(Pairs);
get(<<"topology/export/", Name/binary>>, Pairs, _) -> export(Name, Pairs);
get(<<"placement">>, Pairs, _) -> or_none(beamway_console_placement:view(askers(Pairs)));
get(_, _, _) -> beamway_console_web:problem(404, "there is no such resource").

%% Returns an error as an ordinary answer rather than as an HTTP error, which the browser would
%% report in its own console as a failed request.
or_none({ok, Answer}) -> beamway_console_web:json(Answer);
or_none({error, Why}) -> beamway_console_web:json(#{none => unicode:characters_to_binary(Why)}).

%% ---- history

history(Pairs) ->
    case {known_node(<<"node">>, Pairs), proplists:get_value(<<"of">>, Pairs, <<"node">>)} of
        {{error, Why}, _} -> beamway_console_web:problem(400, Why);
        {{ok, Node}, <<"node">>} -> series(Node, node, beamway_console_rates:node_fields());
        {{ok, Node}, <<"link">>} ->
            case known_node(<<"peer">>, Pairs) of
                {ok, Peer} -> series(Node, {link, Peer}, beamway_console_rates:link_fields());
                {error, Why} -> beamway_console_web:problem(400, Why)
            end;
        {{ok, Node}, <<"http">>} ->
            case existing(proplists:get_value(<<"server">>, Pairs, <<>>)) of
                {ok, Server} -> series(Node, {http, Server}, beamway_console_rates:http_fields());
                error -> beamway_console_web:problem(404, "there is no such server")
            end;
        {_, Other} -> beamway_console_web:problem(400, ["of is '", Other, "'; expected node, link or http"])
    end.

senders({ok, Node}, {ok, Peer}) ->
    Told = try erpc:call(Node, beamway, senders, [Peer], ?WHY_MS) of
               {ok, Senders} -> lists:sublist(Senders, ?SENDERS);
               {error, _} -> []
           catch _:_ -> []
           end,
    beamway_console_web:json(#{node => Node, peer => Peer, senders => [sender(Sender) || Sender <- Told]});
senders({error, Why}, _) -> beamway_console_web:problem(400, Why);
senders(_, {error, Why}) -> beamway_console_web:problem(400, Why).

%% Shows a pid as it is written on its own node.
sender(#{pid := Pid} = Sender) ->
    Process = case Sender of
                  #{name := Name} -> Name;
                  #{label := Label} -> Label;
                  #{initial_call := {Module, Function, Arity}} -> unicode:characters_to_binary(io_lib:format("~ts:~ts/~b", [Module, Function, Arity]));
                  #{} -> <<"has ended">>
              end,
    (maps:with([class, sent, bytes_per_s, waiting], Sender))#{pid => iolist_to_binary(["<0" | lists:dropwhile(fun(C) -> C =/= $. end, pid_to_list(Pid))]), process => Process}.

%% A node that is down, or that runs an older Beamway, has nothing to report.
why({ok, Node}, {ok, Peer}) ->
    Links = try erpc:call(Node, beamway, why, [Peer], ?WHY_MS) of
                {ok, Told} -> Told;
                {error, unknown} -> []
            catch _:_ -> []
            end,
    beamway_console_web:json(#{node => Node, peer => Peer, links => [maps:without([seconds, tens], Link) || Link <- Links]});
why({error, Why}, _) -> beamway_console_web:problem(400, Why);
why(_, {error, Why}) -> beamway_console_web:problem(400, Why).

series(Node, Key, Fields) -> beamway_console_web:json(#{node => Node, fields => [time | Fields], points => beamway_console_hub:history(Node, Key)}).

known_node(Key, Pairs) ->
    Name = proplists:get_value(Key, Pairs, <<>>),
    case existing(Name) of
        {ok, Node} -> {ok, Node};
        error -> {error, ["the node '", Name, "' is not known here"]}
    end.

existing(Name) ->
    try {ok, binary_to_existing_atom(Name)}
    catch error:_ -> error
    end.

%% ---- topology

topology(Pairs) ->
    with_times(Pairs, fun(Measured, Choices, At) ->
        case beamway_console_topology:view(Measured, Choices) of
            {ok, View} -> beamway_console_web:json(View#{measured_at => At, formats => [#{name => Name, what => What} || {Name, _, What} <- beamway_console_topology:formats()]});
            {error, Why} -> or_none({error, Why})
        end
    end).

export(Name, Pairs) ->
    with_times(Pairs, fun(Measured, Choices, _) ->
        case beamway_console_topology:export(Name, Measured, Choices) of
            {ok, Type, Body} -> {200, [{<<"content-type">>, Type}, {<<"content-disposition">>, ["attachment; filename=\"", Name, "\""]}, {<<"cache-control">>, <<"no-store">>}], Body};
            {error, Why} -> beamway_console_web:problem(404, Why)
        end
    end).

with_times(Pairs, Fun) ->
    case {beamway_console_jobs:measured(), beamway_console_topology:choices(Pairs)} of
        {none, _} -> or_none({error, "nothing was measured yet"});
        {_, {error, Why}} -> beamway_console_web:problem(400, Why);
        {{ok, Measured, At}, {ok, Choices}} -> Fun(Measured, Choices, At)
    end.

%% ---- placement

%% Returns the nodes on which placement runs, with the requested one first.
askers(Pairs) ->
    Running = lists:sort([Node || {Node, #{state := up, sample := #{apps := Apps}}} <- maps:to_list(beamway_console_hub:state()), lists:member(placement, Apps)]),
    case known_node(<<"node">>, Pairs) of
        {ok, Node} -> case lists:member(Node, Running) of true -> [Node | lists:delete(Node, Running)]; false -> Running end;
        {error, _} -> Running
    end.

post(<<"placement/choose">>, #{<<"query">> := Text} = Body, #{allow := Allow}) when is_binary(Text) ->
    case askers([{<<"node">>, Node} || #{<<"node">> := Node} <- [Body], is_binary(Node)]) of
        [] -> beamway_console_web:problem(409, "placement runs on none of the nodes");
        [Asker | _] = Nodes -> chosen(Asker, Nodes, Text, maps:get(<<"count">>, Body, null), Allow)
    end;
post(<<"topology/measure">>, Body, _) ->
    case measure_options(Body) of
        {ok, Options} -> begun(beamway_console_jobs:measure(Options));
        {error, Why} -> beamway_console_web:problem(400, Why)
    end;
post(<<"topology/stop">>, _, _) -> begun(beamway_console_jobs:stop());
post(_, _, _) -> beamway_console_web:problem(404, "there is no such action, or the request is incomplete").

begun(ok) -> beamway_console_web:json(202, #{ok => true});
begun({error, Why}) -> beamway_console_web:problem(409, Why).

chosen(Asker, Nodes, Text, Count, Allow) ->
    _ = beamway_console_placement:words(Asker),
    Answer = case beamway_console_query:parse(Text) of
                 {ok, Query} ->
                     case Allow orelse not beamway_console_query:calls_code(Query) of
                         true -> beamway_console_placement:choose(Asker, counted(Query, Count), lists:sort(Nodes));
                         false -> {error, "this console only shows, and the query calls code of the nodes ({score, _, _} or {module, _}); start it with --allow (or {allow, true})"}
                     end;
                 {error, _} = Error -> Error
             end,
    case Answer of
        {ok, Chosen} -> beamway_console_web:json(Chosen);
        {error, Why} -> beamway_console_web:json(#{wrong => unicode:characters_to_binary(Why)})
    end.

counted(Query, Count) when is_integer(Count), Count > 0, is_map(Query) -> Query#{n => Count};
counted(Query, Count) when is_integer(Count), Count > 0 -> #{require => Query, n => Count};
counted(Query, _) -> Query.

measure_options(Body) ->
    Modes = [{<<"both">>, [quiet, loaded]}, {<<"quiet">>, [quiet]}, {<<"loaded">>, [loaded]}],
    case {lists:keyfind(maps:get(<<"mode">>, Body, <<"both">>), 1, Modes), maps:get(<<"batches">>, Body, 20)} of
        {{_, Chosen}, Batches} when is_integer(Batches), Batches > 0, Batches =< 1000 -> {ok, #{modes => Chosen, batches => Batches}};
        {false, _} -> {error, "mode: expected both, quiet or loaded"};
        _ -> {error, "batches: expected a number from 1 to 1000"}
    end.
