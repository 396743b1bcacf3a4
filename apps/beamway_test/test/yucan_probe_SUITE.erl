%% SPDX-License-Identifier: Apache-2.0
%% @doc Requests of public probes, by their ids, in our own words: Http11Probe's smuggling and malformed cases, h1spec's strict checks.
%% The tables stand in yucan_probe_cases. A verdict is what must come back, to the end of the connection.
-module(yucan_probe_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([smuggling/1, malformed/1, h1spec/1, counts/1]).

-include_lib("common_test/include/ct.hrl").

suite() -> [{timetrap, {minutes, 3}}].

all() -> [counts, smuggling, malformed, h1spec].

init_per_suite(Config) ->
    [{port, yucan_test_server:start(yucan_probe, #{limits => #{header_ms => 3000, read_ms => 3000}})} | Config].

end_per_suite(_) -> yucan_test_server:stop_all().

%% No id is missing, none stands twice.
counts(_) ->
    Cases = [{87, yucan_probe_cases:smuggling()}, {26, yucan_probe_cases:malformed()}, {33, yucan_probe_cases:h1spec()}],
    [Count = length(lists:usort([Id || {Id, _, _, _} <- Table])) || {Count, Table} <- Cases].

smuggling(Config) -> run(yucan_probe_cases:smuggling(), Config).
malformed(Config) -> run(yucan_probe_cases:malformed(), Config).
h1spec(Config) -> run(yucan_probe_cases:h1spec(), Config).

run(Table, Config) ->
    Port = ?config(port, Config),
    Wrong = [{Id, Rfc, Verdict, Seen} || {Id, Rfc, Bytes, Verdict} <- Table, Seen <- [seen(Port, Bytes)], not agrees(Verdict, Seen)],
    [ct:pal("~ts (~ts): expected ~0tp, got ~0tp", [Id, Rfc, Verdict, Seen]) || {Id, Rfc, Verdict, Seen} <- Wrong],
    [] = [Id || {Id, _, _, _} <- Wrong].

seen(Port, Bytes) ->
    Binary = iolist_to_binary(Bytes),
    Method = case Binary of <<"HEAD ", _/binary>> -> <<"HEAD">>; _ -> <<"GET">> end,
    yucan_client:exchange(Port, Binary, Method).

%% refused: one answer of these, or none, then the end, whatever follows. Others: exactly these answers.
agrees({refused, Statuses}, [{Status, Headers, _}]) ->
    lists:member(Status, Statuses) andalso proplists:get_value(<<"connection">>, Headers) =:= <<"close">>;
agrees(silent, []) -> true;
agrees({refused_or_silent, Statuses}, Seen) -> Seen =:= [] orelse agrees({refused, Statuses}, Seen);
agrees({answers, Statuses}, Seen) when is_list(Seen) -> [Status || {Status, _, _} <- Seen] =:= Statuses;
agrees({echo, Body}, [{200, _, Body}]) -> true;
agrees({length, Statuses}, [{Status, Headers, _}]) ->
    lists:member(Status, Statuses) andalso proplists:is_defined(<<"content-length">>, Headers);
agrees(_, _) -> false.
