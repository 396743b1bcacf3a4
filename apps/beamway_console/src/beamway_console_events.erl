%% SPDX-License-Identifier: Apache-2.0
%% @doc The event stream for a browser, which carries the frames of its topics as server-sent
%% events. Each event has the name of its kind of topic.
-module(beamway_console_events).

-export([response/1]).

-define(TOPICS_MAX, 8).

%% @doc Answers `/api/events?topics=cluster,link:a@h:b@h'.
-spec response(yucan_req:req()) -> yucan_handler:response().
response(Req) ->
    case topics(proplists:get_value(<<"topics">>, yucan_req:query_pairs(Req), <<"cluster">>)) of
        {ok, Topics} -> yucan_sse:response(Req, [], fun event/2, Topics);
        {error, Text} -> beamway_console_web:problem(400, Text)
    end.

event(start, Topics) ->
    case beamway_console_hub:subscribe(Topics) of
        ok -> {send, #{retry => 1000}, Topics};
        {error, too_many} -> stop
    end;
event({info, {console_frame, Topic, Json}}, Topics) ->
    ok = beamway_console_hub:taken(self()),
    {send, #{event => name(Topic), data => Json}, Topics};
event({info, _}, Topics) -> {ok, Topics}.

name(Topic) when is_atom(Topic) -> atom_to_binary(Topic);
name(Topic) -> atom_to_binary(element(1, Topic)).

%% Parses a comma-separated list of topics. The names of nodes must already be known. Commas and colons in them, as in an IPv6 address, are escaped.
-spec topics(binary()) -> {ok, [beamway_console_hub:topic()]} | {error, Text :: unicode:chardata()}.
topics(Text) ->
    Words = binary:split(Text, <<",">>, [global, trim_all]),
    try {ok, lists:usort([topic(binary:split(Word, <<":">>, [global])) || Word <- Words])} of
        {ok, Topics} when Topics =/= [], length(Topics) =< ?TOPICS_MAX -> {ok, Topics};
        _ -> {error, io_lib:format("1 to ~b topics are expected", [?TOPICS_MAX])}
    catch
        error:_ -> {error, "a topic is cluster, http, pipes, jobs, node:NODE or link:NODE:NODE, of nodes that are known"}
    end.

topic([<<"link">>, A, B]) -> {link, known(A), known(B)};
topic([<<"node">>, Node]) -> {node, known(Node)};
topic([<<"cluster">>]) -> cluster;
topic([<<"http">>]) -> http;
topic([<<"pipes">>]) -> pipes;
topic([<<"jobs">>]) -> jobs.

known(Name) -> binary_to_existing_atom(yucan_path:unescape(Name)).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

topics_test_() ->
    Node = atom_to_binary(node()),
    [?_assertEqual({ok, [cluster, {link, node(), node()}]}, topics(<<"cluster,link:", Node/binary, ":", Node/binary>>)),
     ?_assertMatch({error, _}, topics(<<>>)), ?_assertMatch({error, _}, topics(<<"weather">>)), ?_assertMatch({error, _}, topics(<<"node:never-heard-of@it">>)),
     ?_assertEqual({ok, [{node, node()}]}, topics(<<"node:", Node/binary, ",,">>)),
     ?_assertEqual({ok, [{link, 'a@::1', 'b@fe80::1,eth0'}]}, topics(<<"link:a%40%3A%3A1:b@fe80%3A%3A1%2Ceth0">>))].
-endif.
