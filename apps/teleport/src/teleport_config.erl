%% SPDX-License-Identifier: Apache-2.0
%% @doc The options of teleport: where they come from, which values are valid, and the defaults.
%%
%% They are read from the application environment of `teleport' when it starts, and may be changed at any time
%% ({@link teleport:configure/2}). They are checked only here; the rest of the code trusts the map.
%%
%% Options that had an effect only until version 0.2.0 are still accepted, and the first use of each is logged.
-module(teleport_config).

-include_lib("kernel/include/logger.hrl").

-export([read/0, forget/0, set/1, get/1, check/1, describe/1, defaults/0, table/0, without_effect/1, warn/3]).
-export_type([config/0, class/0, problem/0]).

-type class() :: control | normal | bulk.
-type config() :: #{sites := teleport_sites:site_of(), max_block_bytes := non_neg_integer(), pool := 0..16,
                    ports := {inet:port_number(), inet:port_number()}, max_message_bytes := pos_integer(), trace := boolean()}.
-type problem() :: {Option :: term(), Value :: term(), Expected :: string()}.

-define(KEY, {teleport, config}).

%% Option, default, expected value, when a change takes effect, what the option does, and whether a value is valid.
options() ->
    [{sites, none, "none, a map of nodes to sites, {Module, Function} or a fun of one argument, a node",
      "at once", "The site of each node, for broadcasts.",
      fun teleport_sites:is_site_of/1},
     {max_block_bytes, 1073741824, "bytes from 0 to 1099511627776",
      "at once", "Memory of all blocks that this node holds.",
      fun(V) -> is_from(V, 0, 1 bsl 40) end},
     {pool, 4, "a number from 0 to 16",
      "when a pool is opened", "Number of connections in a pool. There is a pool for each node over stock distribution. 0 turns pools off.",
      fun(V) -> is_from(V, 0, 16) end},
     {ports, {0, 0}, "a range of ports, {Low, High}",
      "when the application starts", "Ports on which this node listens for pools. {0, 0} allows any port.",
      fun is_ports/1},
     {max_message_bytes, 2147483000, "bytes from 65536 to 2147483000",
      "at once", "The largest message over a pool. Larger ones are refused.",
      fun(V) -> is_from(V, 65536, 2147483000) end},
     {trace, false, "true or false",
      "at once", "Messages and calls carry the trace context of the caller's OpenTelemetry span.",
      fun is_boolean/1}].

is_from(Value, Low, High) -> is_integer(Value) andalso Value >= Low andalso Value =< High.

is_ports({0, 0}) -> true;
is_ports({Low, High}) -> is_from(Low, 1, 65535) andalso is_from(High, Low, 65535);
is_ports(_) -> false.

without_effect() ->
    [class, unordered, way,
     lanes, weights, kinds, ring_bytes, chunk_bytes, max_queue_bytes, max_queue_messages, max_pending_calls, max_broadcasts,
     on_full, block_ms, open_ms, idle_ms, backoff_ms, on_unconfirmed, on_event, ip, max_strangers, stranger_ms, tls, plaintext, by_reference, nodes].

%% @doc Returns the rows of the table for the reference of all options (`scripts/options').
-spec table() -> [{Option :: atom(), Default :: term(), Expected :: string(), TakesEffect :: string(), Effect :: string()}].
table() -> [{Name, Default, Expected, When, Effect} || {Name, Default, Expected, When, Effect, _} <- options()].

%% @doc Returns the default options.
-spec defaults() -> config().
defaults() -> maps:from_list([{Name, Default} || {Name, Default, _, _, _, _} <- options()]).

%% @doc Reads the application environment when the application starts.
-spec read() -> ok | {error, [problem(), ...]}.
read() -> merged(maps:without([included_applications], maps:from_list(application:get_all_env(teleport))), defaults()).

%% @doc Changes options. Only one process may call this at a time, because concurrent changes would be lost.
-spec set(map()) -> ok | {error, [problem(), ...]}.
set(Given) -> merged(Given, all()).

merged(Given, Before) ->
    case check(Given) of
        ok ->
            #{trace := Trace} = Config = maps:merge(Before, maps:with(maps:keys(Before), Given)),
            ok = teleport_trace:use(Trace),
            persistent_term:put(?KEY, Config);
        Error -> Error
    end.

%% @doc Forgets the options, and what {@link warn/3} has logged, when the application has stopped.
-spec forget() -> ok.
forget() ->
    _ = persistent_term:erase(?KEY),
    lists:foreach(fun persistent_term:erase/1, [Key || {{?MODULE, _} = Key, _} <- persistent_term:get()]),
    teleport_trace:use(false).

%% @doc Returns an option's value.
-spec get(sites) -> teleport_sites:site_of(); (ports) -> {inet:port_number(), inet:port_number()}; (max_block_bytes | pool | max_message_bytes) -> non_neg_integer().
get(Name) -> maps:get(Name, all()).

all() ->
    case persistent_term:get(?KEY, none) of
        none -> error({not_started, teleport});
        Config -> Config
    end.

%% @doc Checks whether all of these are options with valid values.
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
        {Name, _, Expected, _, _, IsGood} -> [{Name, Value, Expected} || not is_good(IsGood, Value)];
        false -> [{Name, Value, "one of the options " ++ names()} || not without_effect(Name)]
    end.

is_good(IsGood, Value) ->
    try IsGood(Value) catch error:_ -> false end.

names() -> lists:append(lists:join(", ", [atom_to_list(Name) || {Name, _, _, _, _, _} <- options()])).

%% @doc Returns whether this option had an effect until 0.2.0, and logs its first use.
-spec without_effect(term()) -> boolean().
without_effect(Name) ->
    lists:member(Name, without_effect()) andalso warn({option, Name}, "teleport: the option ~ts has no effect any more~ts", [Name, instead(Name)]) =:= ok.

instead(class) -> "; beamway:class/1 sets the class of a process";
instead(way) -> "; every message goes over the distribution, or over a pool of connections where that is stock TCP";
instead(_) -> "".

%% @doc Logs the first use of an option or a function of version 0.2.0 while the application runs.
-spec warn(What :: term(), io:format(), [term()]) -> ok.
warn(What, Format, Args) ->
    case persistent_term:get({?MODULE, What}, new) of
        new -> ok = persistent_term:put({?MODULE, What}, warned), ?LOG_WARNING(Format, Args);
        warned -> ok
    end.

%% @doc Formats a problem as one line for users: the value, what was expected, and where to change it.
-spec describe(problem()) -> string().
describe({Option, Value, Expected}) ->
    lists:flatten(io_lib:format("~0tp = ~0tp is not valid: expected ~ts (application environment of teleport, or teleport:configure/2)",
                                [Option, Value, Expected])).
