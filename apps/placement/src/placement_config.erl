%% SPDX-License-Identifier: Apache-2.0
%% @doc The application's environment: which attributes a node serves from its start.
%%
%% `builtins' (boolean, default `true'), `attributes' (a configuration file, or `none'), `path' (the node's declared place, from the root down),
%% `deadline' (ms that a choice or a question about a lease may take where the call does not say; 1000), `limit' (ms that the function of an
%% attribute may take where its entry does not say; 500), `group_memory' (ms for which a group's member remembers what has ended in it, at least; 3600000).
%% Called by {@link placement_app} and {@link attr}; those that need them ask for the last three.
-module(placement_config).

-include_lib("kernel/include/logger.hrl").

-export([from_environment/0, read/1, use/2, deadline_ms/0, limit_ms/0, group_memory_ms/0]).

-define(DEADLINE_MS, 1000).
%% Shorter than the deadline of a choice, so that one function does not make its whole node silent.
-define(LIMIT_MS, 500).
-define(GROUP_MEMORY_MS, 3600000).

%% @doc Serves what the environment says.
-spec from_environment() -> ok | {error, Text :: unicode:chardata()}.
from_environment() ->
    Wrong = [io_lib:format("placement: ~tp = ~0tP is not valid; expected ~ts", [Name, Value, 10, Expected])
             || {Name, Value, IsGood, Expected} <- [{builtins, builtins(), fun is_boolean/1, "true or false"}, {deadline, deadline_ms(), fun is_ms/1, "milliseconds"},
                                                    {limit, limit_ms(), fun is_ms/1, "milliseconds"}, {group_memory, group_memory_ms(), fun is_ms/1, "milliseconds"}],
             not IsGood(Value)],
    case {Wrong, read(application:get_env(placement, attributes, none))} of
        {[Text | _], _} -> {error, Text};
        {[], {ok, Entries}} -> use(builtins(), Entries);
        {[], {error, _} = Error} -> Error
    end.

builtins() -> application:get_env(placement, builtins, true).

is_ms(Value) -> is_integer(Value) andalso Value > 0.

%% @doc Milliseconds for a choice, or for a question about a lease, that does not say how long it may take.
-spec deadline_ms() -> pos_integer().
deadline_ms() -> application:get_env(placement, deadline, ?DEADLINE_MS).

%% @doc Milliseconds for the function of an attribute whose entry does not say how long it may take.
-spec limit_ms() -> pos_integer().
limit_ms() -> application:get_env(placement, limit, ?LIMIT_MS).

%% @doc Milliseconds after which a member of a group looks for what it may forget ({@link placement_group}).
-spec group_memory_ms() -> pos_integer().
group_memory_ms() -> application:get_env(placement, group_memory, ?GROUP_MEMORY_MS).

%% @doc The entries of a file; none without one.
-spec read(none | file:name_all()) -> {ok, [{placement_entry:name(), placement_entry:definition()}]} | {error, Text :: unicode:chardata()}.
read(none) -> {ok, []};
read(File) ->
    case is_binary(File) orelse (is_list(File) andalso io_lib:printable_unicode_list(File)) of
        true -> placement_entry:read_file(File);
        false -> {error, io_lib:format("~0tP is not the name of a file", [File, 10])}
    end.

%% @doc Serves these attributes. A function that does not work is no error: its attribute is not known, and a warning says why.
-spec use(Builtins :: boolean(), [{placement_entry:name(), placement_entry:definition()}]) -> ok.
use(Builtins, Entries) ->
    {ok, Troubles} = placement_attr:configure(Builtins, Entries),
    _ = [?LOG_WARNING("placement: attribute ~tp is not known on this node: ~ts", [Name, words(Reason)]) || {Name, Reason} <- Troubles],
    ok.

words(no_such_function) -> "its function does not exist";
words(timeout) -> "its function did not return in time (limit); it is tried again whenever somebody asks";
words(too_much_memory) -> "its function used more than 64 MiB";
words({too_large, Bytes}) -> io_lib:format("its value has ~b bytes, more than 65536", [Bytes]);
words({raised, Class, Reason}) -> io_lib:format("its function raised ~tp: ~0tP", [Class, Reason, 12]);
words({wrong_type, Value, Type}) -> io_lib:format("its function returned ~0tP, which is no ~tp", [Value, 12, Type]);
words(Reason) -> io_lib:format("~0tP", [Reason, 12]).
