%% SPDX-License-Identifier: Apache-2.0
%% @doc The options of the lanes: where they come from, what is valid, what is the default.
%%
%% They are read from the application environment of `teleport' at its start, and may be changed at any time
%% for all nodes or for one ({@link teleport:configure/2}); a lane has those of the moment at which it was opened, a
%% message those of the moment at which it is sent. They are checked here, once; the rest of the code trusts the map.
-module(teleport_config).

-export([read/0, forget/0, set/2, of_node/1, of_caller/1, check/1, describe/1, defaults/0, table/0]).
-export_type([config/0, class/0, problem/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-type class() :: control | normal | bulk.
-type config() :: #{lanes := #{class() => 1..16},
                    weights := #{class() => 1..1000},
                    kinds := [beamway_kind:kind()],
                    ring_bytes := pos_integer(),
                    chunk_bytes := pos_integer(),
                    max_message_bytes := pos_integer(),
                    max_queue_bytes := pos_integer(),
                    max_queue_messages := pos_integer(),
                    max_pending_calls := pos_integer(),
                    max_broadcasts := pos_integer(),
                    sites := teleport_sites:site_of(),
                    on_full := block | error | drop,
                    way := auto | lane | distribution,
                    block_ms := non_neg_integer(),
                    open_ms := pos_integer(),
                    idle_ms := pos_integer() | infinity,
                    backoff_ms := {pos_integer(), pos_integer()},
                    on_unconfirmed := none | {module(), atom()},
                    on_event := teleport_events:handler(),
                    ip := auto | inet:ip_address(),
                    ports := {inet:port_number(), inet:port_number()},
                    max_strangers := pos_integer(),
                    stranger_ms := pos_integer(),
                    tls := auto | none | [term()],
                    plaintext := boolean(),
                    by_reference := boolean(),
                    max_block_bytes := non_neg_integer()}.
%% {@link table/0} says what each is.

-type problem() :: {Option :: term(), Value :: term(), Expected :: string()}.

-define(KEY, {teleport, config}).
-define(GB2, 2147483647).

%% Option, default, expected, when a change takes effect and what the option does, whether a value is good.
options() ->
    [{lanes, #{control => 1, normal => min(4, erlang:system_info(schedulers)), bulk => 2},
      "a map of control, normal and bulk to 1 to 16 lanes",
      {connection, "Lanes of each class."},
      fun(V) -> is_class_map(V, 16) end},
     {weights, #{control => 16, normal => 4, bulk => 1},
      "a map of control, normal and bulk to weights from 1 to 1000",
      {lane, "How the classes share the bytes to a node while several have messages queued."},
      fun(V) -> is_class_map(V, 1000) end},
     {kinds, beamway_kind:all(), "a list of " ++ beamway_kind:words(),
      {lane, "Links that a lane may use."},
      fun is_kinds/1},
     {ring_bytes, 1048576, "a power of two from 65536 to 1073741824",
      {lane, "Ring size of each lane over shm or rdma, in each direction."},
      fun(V) -> is_from(V, 65536, 1 bsl 30) andalso V band (V - 1) =:= 0 end},
     {chunk_bytes, 262144, "bytes from 4096 to 16777216",
      {lane, "A larger message is cut into pieces of this size."},
      fun(V) -> is_from(V, 4096, 1 bsl 24) end},
     {max_message_bytes, ?GB2, "bytes from 65536 to 2147483647",
      {lane, "Larger messages are refused. Of two nodes the smaller value counts."},
      fun(V) -> is_from(V, 65536, ?GB2) end},
     {max_queue_bytes, 67108864, "bytes from 65536 to 1099511627776",
      {lane, "Bytes that may wait for one lane."},
      fun(V) -> is_from(V, 65536, 1 bsl 40) end},
     {max_queue_messages, 100000, "a number from 1 to 10000000",
      {lane, "Messages that may wait for one lane. Senders that block already do so behind 2,000 messages."},
      fun(V) -> is_from(V, 1, 10000000) end},
     {max_pending_calls, 100000, "a number from 1 to 10000000",
      {lane, "Unanswered calls on one lane of a peer. Further ones end with overload."},
      fun(V) -> is_from(V, 1, 10000000) end},
     {max_broadcasts, 1000, "a number from 1 to 1000000",
      {message, "Broadcasts of this node under way at a time. Further ones end with {error, busy}."},
      fun(V) -> is_from(V, 1, 1000000) end},
     {sites, none, "none, a map of nodes to sites, {Module, Function} or a fun of one argument, a node",
      {message, "The sites of nodes, for broadcasts."},
      fun teleport_sites:is_site_of/1},
     {on_full, block, "block, error or drop",
      {message, "What a sender does when a lane is full."},
      fun(V) -> lists:member(V, [block, error, drop]) end},
     {way, auto, "auto, lane or distribution",
      {message, "The way of messages and calls that name none themselves."},
      fun(V) -> lists:member(V, [auto, lane, distribution]) end},
     {block_ms, 5000, "milliseconds from 0 to 3600000",
      {message, "How long a sender may block when a lane is full."},
      fun(V) -> is_from(V, 0, 3600000) end},
     {open_ms, 7000, "milliseconds from 100 to 60000",
      {lane, "Time limit for opening a lane."},
      fun(V) -> is_from(V, 100, 60000) end},
     {idle_ms, 60000, "milliseconds from 100 to 86400000, or infinity",
      {message, "An unused lane is closed after this time. The next message opens it again."},
      fun(V) -> V =:= infinity orelse is_from(V, 100, 86400000) end},
     {backoff_ms, {100, 10000}, "{Shortest, Longest}, milliseconds from 1 to 600000",
      {lane, "Shortest and longest pause between attempts to open a lane."},
      fun is_backoff/1},
     {on_unconfirmed, none, "none or {Module, Function} of a function of one argument",
      {message, "Called with a map of node, class, index, unconfirmed and reason when messages of a lost lane were not acknowledged."},
      fun is_handler/1},
     {on_event, none, "none, a fun of three arguments or {Module, Function} of such a function",
      {message, "Gets events of lanes in the shape of telemetry's."},
      fun(V) -> is_function(V, 3) orelse is_handler(V) end},
     {ip, auto, "auto or an IP address as a tuple",
      {restart, "Address on which this node listens for lanes. auto: the port of the distribution where that is Beamway, else the address at which the peer reached this node."},
      fun(V) -> V =:= auto orelse inet:is_ip_address(V) end},
     {ports, {0, 0}, "a range of ports, {Low, High}",
      {restart, "Ports on which this node listens for lanes. {0, 0}: the port of the distribution where that is Beamway, else any port."},
      fun is_ports/1},
     {max_strangers, 64, "a number from 1 to 10000",
      {connection, "Connections that are not yet authenticated, at a time."},
      fun(V) -> is_from(V, 1, 10000) end},
     {stranger_ms, 5000, "milliseconds from 100 to 60000",
      {connection, "How long such a connection may take to authenticate itself."},
      fun(V) -> is_from(V, 100, 60000) end},
     {tls, auto, "auto, none or a list of options of ssl, with cert and key",
      {lane, "auto: TLS where the distribution goes over TLS, with its certificates. A list of options of ssl: all lanes over TLS with these. none: no TLS."},
      fun(V) -> lists:member(V, [auto, none]) orelse is_list(V) end},
     {plaintext, false, "true or false",
      {lane, "Lanes over TCP and RDMA may be unencrypted although the distribution uses TLS."},
      fun is_boolean/1},
     {by_reference, true, "true or false",
      {lane, "Lanes over shared memory pass blocks by reference."},
      fun is_boolean/1},
     {max_block_bytes, 1073741824, "bytes from 0 to 1099511627776",
      {message, "Memory of all blocks that this node holds."},
      fun(V) -> is_from(V, 0, 1 bsl 40) end}].

%% @doc For the reference of all options (`scripts/options'): option, default, what is valid, when a change takes effect, effect.
-spec table() -> [{Option :: atom(), Default :: term(), Expected :: string(), TakesEffect :: string(), Effect :: string()}].
table() ->
    [{Name, as_text(Name, Default), Expected, takes_effect(When), Effect} || {Name, Default, Expected, {When, Effect}, _} <- options()].

%% Not the number of this machine.
as_text(lanes, Default) -> Default#{normal => 'min(schedulers, 4)'};
as_text(_, Default) -> Default.

takes_effect(message) -> "at once";
takes_effect(lane) -> "next opened lane";
takes_effect(connection) -> "next connection";
takes_effect(restart) -> "restart".

%% @doc The options as they come.
-spec defaults() -> config().
defaults() ->
    maps:from_list([{Name, Default} || {Name, Default, _, _, _} <- options()]).

%% @doc Reads the application environment at start. `nodes' there is a map of nodes to maps of options.
-spec read() -> ok | {error, [problem(), ...]}.
read() ->
    read(maps:without([included_applications], maps:from_list(application:get_all_env(teleport)))).

read(Environment) ->
    {Given, Nodes} = {maps:remove(nodes, Environment), maps:get(nodes, Environment, #{})},
    case problems(Given, Nodes) of
        [] ->
            persistent_term:put(?KEY, {with(Given, defaults()), maps:map(fun(_, More) -> with(More, with(Given, defaults())) end, Nodes)});
        Problems ->
            {error, Problems}
    end.

%% @doc The application has stopped: {@link of_node/1} says so from now on.
-spec forget() -> ok.
forget() ->
    _ = persistent_term:erase(?KEY),
    ok.

problems(Given, Nodes) when is_map(Nodes) ->
    lists:append([Problems || Map <- [Given | maps:values(Nodes)], {error, Problems} <- [check(Map)]]);
problems(Given, Nodes) ->
    [{nodes, Nodes, "a map of nodes to maps of options"} | problems(Given, #{})].

%% @doc Changes options for all nodes, or for one. Called by {@link teleport_peers} alone: of two changes at once one would be lost.
-spec set(all | node(), map()) -> ok | {error, [problem(), ...]}.
set(Which, Given) ->
    case check(Given) of
        ok -> put_options(Which, Given, persistent_term:get(?KEY));
        {error, Problems} -> {error, Problems}
    end.

put_options(all, Given, {General, Nodes}) ->
    persistent_term:put(?KEY, {with(Given, General), maps:map(fun(_, Own) -> with(Given, Own) end, Nodes)});
put_options(Node, Given, {General, Nodes}) ->
    persistent_term:put(?KEY, {General, Nodes#{Node => with(Given, maps:get(Node, Nodes, General))}}).

%% A map of classes may name some of them only.
with(Given, Config) ->
    maps:fold(fun(Name, Some, Acc) when Name =:= lanes; Name =:= weights ->
                      Acc#{Name := maps:merge(maps:get(Name, Acc), Some)};
                 (Name, Value, Acc) ->
                      Acc#{Name := Value}
              end, Config, Given).

%% @doc The options for this node. Fast: once for each message.
-spec of_node(node()) -> config().
of_node(Node) ->
    case persistent_term:get(?KEY, none) of
        {_, #{Node := Own}} -> Own;
        {General, _} -> General;
        none -> error({not_started, teleport})
    end.

%% @doc The options for lanes that this node opens to us. `tls' is that for all nodes: a caller names itself after the TLS handshake.
-spec of_caller(node()) -> config().
of_caller(Node) -> (of_node(Node))#{tls := maps:get(tls, of_node(node()))}.

%% @doc Whether all of these are options with valid values.
-spec check(map()) -> ok | {error, [problem(), ...]}.
check(Given) when is_map(Given) ->
    case lists:append([problem(Name, Value) || {Name, Value} <- maps:to_list(Given)]) of
        [] -> ok;
        Problems -> {error, Problems}
    end;
check(Other) ->
    {error, [{options, Other, "a map of options"}]}.

problem(Name, Value) ->
    case lists:keyfind(Name, 1, options()) of
        {Name, _, Expected, _, IsGood} -> [{Name, Value, Expected} || not is_good(IsGood, Value)];
        false -> [{Name, Value, "one of the options " ++ names()}]
    end.

is_good(IsGood, Value) ->
    try IsGood(Value) catch error:_ -> false end.

names() ->
    lists:append(lists:join(", ", [atom_to_list(Name) || {Name, _, _, _, _} <- options()])).

%% @doc A line for people: the value, what was expected, where to change it.
-spec describe(problem()) -> string().
describe({Option, Value, Expected}) ->
    lists:flatten(io_lib:format("~0tp = ~0tp is not valid: expected ~ts (application environment of teleport, or teleport:configure/2)",
                                [Option, Value, Expected])).

is_from(Value, Low, High) -> is_integer(Value) andalso Value >= Low andalso Value =< High.

is_class_map(Map, Max) ->
    map_size(Map) > 0 andalso maps:keys(Map) -- [control, normal, bulk] =:= []
        andalso lists:all(fun(V) -> is_from(V, 1, Max) end, maps:values(Map)).

is_kinds(Kinds) -> Kinds =/= [] andalso Kinds -- beamway_kind:all() =:= [].

is_backoff({Low, High}) -> is_from(Low, 1, 600000) andalso is_from(High, Low, 600000).

is_handler(none) -> true;
is_handler({Module, Function}) -> is_atom(Module) andalso is_atom(Function).

is_ports({0, 0}) -> true;
is_ports({Low, High}) -> is_from(Low, 1, 65535) andalso is_from(High, Low, 65535).

-ifdef(TEST).

defaults_are_valid_test() ->
    ?assertEqual(ok, check(defaults())).

bad_values_are_told_test_() ->
    [{lists:flatten(io_lib:format("~0tp", [{Name, Bad}])),
      ?_assertMatch({error, [{Name, Bad, [_ | _]}]}, check(#{Name => Bad}))}
     || {Name, Values} <- [{lanes, [#{}, 4, #{normal => 0}, #{normal => 17}, #{fast => 1}]}, {weights, [#{bulk => 0}, []]},
                           {kinds, [[], [ucx], tcp]}, {ring_bytes, [65535, 100000, -1, 1 bsl 31]}, {chunk_bytes, [0, 4095, 1 bsl 25]},
                           {max_message_bytes, [0, 1 bsl 31]}, {max_queue_bytes, [0, infinity]}, {max_queue_messages, [0]}, {max_broadcasts, [0, none]}, {sites, [site, {m, f, a}, [], fun() -> x end]},
                           {on_full, [wait, true]}, {way, [fast, tcp]}, {block_ms, [-1, infinity]}, {open_ms, [0]}, {idle_ms, [0, never]}, {backoff_ms, [{5, 4}, 7, {0, 1}]},
                           {on_unconfirmed, [self, {m, f, a}]}, {on_event, [self, {m, f, a}, fun is_list/1]}, {ip, ["127.0.0.1", {1, 2, 3, 400}]}, {ports, [{2, 1}, {0, 5}, 80]},
                           {max_strangers, [0]}, {stranger_ms, [1]}, {tls, [true]}, {plaintext, [yes]}, {by_reference, [1]}, {max_block_bytes, [-1, infinity]}, {speed, [fast]}], Bad <- Values].

every_problem_is_told_test() ->
    {error, Problems} = check(#{lanes => no, ring_bytes => no, nonsense => 1}),
    ?assertEqual(3, length(Problems)),
    [?assert(is_list(describe(Problem))) || Problem <- Problems],
    ?assertMatch({error, [{options, 5, _}]}, check(5)).

bad_environment_is_told_test_() ->
    [?_assertMatch({error, [{Name, Bad, _}]}, read(#{ring_bytes => 65536, Name => Bad}))
     || {Name, Bad} <- [{laens, 3}, {nodes, [{a@h, #{way => lane}}]}]]
        ++ [?_assertMatch({error, [{way, fast, _}]}, read(#{nodes => #{a@h => #{way => fast}}}))].

one_class_keeps_the_others_test() ->
    ?assertMatch(#{lanes := #{control := 1, bulk := 7}}, with(#{lanes => #{bulk => 7}}, defaults())).

-endif.
