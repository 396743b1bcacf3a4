%% SPDX-License-Identifier: Apache-2.0
%% @doc Provides the load values that other nodes report anyway: the Beamway carrier sends them with its ticks and
%% acknowledgements ({@link //beamway/beamway:loads/0}). If such a value is recent enough, {@link placement_cache} uses it
%% instead of sending a request.
%%
%% A node may have replaced a built-in attribute with its own attribute of the same name, which the carrier does not
%% notice. So each node sends its own values to a peer once, when they connect, and after that the peer requests them once
%% a minute. The values from the carrier are used only while the node's last answer has the unit, the ttl and the
%% tolerance of the built-in attribute.
-module(placement_told).

-export([entries/3, names/0, valid/1]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

%% A peer samples its load once a second.
-define(SAMPLE_MS, 1000).
-define(ASK_MS, 60000).

%% For each attribute: its name, its name in the carrier, the conversion of its value, and the unit, ttl and tolerance that
%% answers for the built-in attribute contain.
attributes() ->
    [{loadavg1, loadavg1, fun(Average) -> Average end, {none, 1000, 0.05}},
     {mem_available, mem_available, fun(Bytes) -> Bytes div 1024 end, {kib, 1000, 1024}}].

%% @doc Returns the attributes that the carrier reports.
-spec names() -> [placement_entry:name()].
names() -> [Name || {Name, _, _, _} <- attributes()].

%% @doc Returns the valid answers among those that another node has sent for these attributes
%% without being asked.
-spec valid(term()) -> [{placement_entry:name(), placement_attr:answer()}].
valid(Answers) when length(Answers) >= 0 ->
    [{Name, Answer} || Name <- names(), {_, {ok, _, Age, _, Ttl, Tolerance} = Answer} <- [lists:keyfind(Name, 1, Answers)],
                       is_integer(Age), Age >= 0, is_integer(Ttl), Ttl >= 0, is_number(Tolerance)];
valid(_) -> [].

%% @doc Returns answers that can replace those of the nodes themselves. `Own' returns a node's last answer and its age.
-spec entries([node()], [placement_entry:name()], Own :: fun((node(), placement_entry:name()) -> {placement_attr:answer(), ElapsedMs :: integer()} | none)) ->
          #{{node(), placement_entry:name()} => placement_attr:answer()}.
entries(Nodes, Names, Own) ->
    case [Attribute || {Name, _, _, _} = Attribute <- attributes(), lists:member(Name, Names)] of
        [] -> #{};
        Wanted ->
            Loads = loads(),
            maps:from_list([{{Node, Name}, Answer} || Node <- Nodes, #{Node := Load} <- [Loads], {Name, _, _, _} = Attribute <- Wanted,
                                                      {ok, Answer} <- [answer(Attribute, Load, Own(Node, Name))]])
    end.

loads() ->
    case ets:whereis(beamway_links) of
        undefined -> #{}; % a carrier other than Beamway's
        _ ->
            try apply(beamway, loads, [])
            catch error:undef -> #{} % an older carrier
            end
    end.

answer({Name, Key, Convert, {Unit, Ttl, Tolerance}}, #{age_ms := AgeMs} = Load, {{ok, _, _, Unit, Ttl, Tolerance}, Elapsed})
  when is_map_key(Key, Load), Elapsed < ?ASK_MS ->
    {ok, {ok, Convert(map_get(Key, Load)), AgeMs + ?SAMPLE_MS, Unit, ttl(Name, Ttl), Tolerance}};
answer(_, _, _) ->
    error.

%% A one-minute average may be as old as the last tick of an idle node; the amount of free memory may not.
ttl(loadavg1, _) -> tick_ms() + 2 * ?SAMPLE_MS;
ttl(_, Ttl) -> Ttl.

tick_ms() -> 1000 * application:get_env(kernel, net_ticktime, 60) div application:get_env(kernel, net_tickintensity, 4).

-ifdef(TEST).

answer_test_() ->
    [Average, Memory] = attributes(),
    Load = #{age_ms => 500, loadavg1 => 2.5, mem_available => 1 bsl 30},
    Old = {ok, 1.0, 900, none, 1000, 0.05},
    [?_assertEqual({ok, {ok, 2.5, 1500, none, 17000, 0.05}}, answer(Average, Load, {Old, 700})),
     ?_assertEqual({ok, {ok, 1 bsl 20, 1500, kib, 1000, 1024}}, answer(Memory, Load, {{ok, 7, 900, kib, 1000, 1024}, 700})),
     %% In these cases the node's own answer is too old, belongs to a redefined attribute, or is missing. The last peer
     %% does not know its own load average.
     ?_assertEqual(error, answer(Average, Load, {Old, 60000})),
     [?_assertEqual(error, answer(Average, Load, {Other, 5000}))
      || Other <- [{ok, 1.0, 900, none, 1000, 0}, {ok, 1.0, 900, none, 5000, 0.05}, {ok, 1.0, 900, ratio, 1000, 0.05}, {unknown, missing},
                   {stale, 1.0, 900, none, 0.05, timeout}]],
     ?_assertEqual(error, answer(Average, Load, none)),
     ?_assertEqual(error, answer(Average, #{age_ms => 500}, {Old, 5000}))].

valid_test_() ->
    Good = {loadavg1, {ok, 2.5, 10, none, 1000, 0.05}},
    [?_assertEqual([Good], valid([{other, {ok, 1, 0, none, 1, 0}}, Good, {mem_available, {unknown, missing}}])),
     [?_assertEqual([], valid(Bad)) || Bad <- [none, [Good | Good], [loadavg1, {}], [{loadavg1, {ok, 2.5, -1, none, 1000, 0.05}}], [{loadavg1, {ok, 2.5, 1, none, x, 0.05}}],
                                               [{loadavg1, {ok, 2.5, 1, none, 1000, x}}]]]].

built_in_test() ->
    {ok, Entries} = placement_entry:parse(placement_builtin:definitions()),
    [begin
         #{unit := U, ttl := T, tolerance := O} = proplists:get_value(Name, Entries),
         ?assertEqual({Unit, Ttl, Tolerance}, {U, T, O})
     end || {Name, _, _, {Unit, Ttl, Tolerance}} <- attributes()].
-endif.
