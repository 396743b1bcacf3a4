%% SPDX-License-Identifier: Apache-2.0
%% @doc The application's environment: which attributes a node serves from its start.
%%
%% `builtins' (boolean, default `true'), `attributes' (a configuration file, or `none'), `path' (the node's declared place, from the root down).
%% Called by {@link placement_app} and {@link attr}.
-module(placement_config).

-include_lib("kernel/include/logger.hrl").

-export([from_environment/0, read/1, use/2]).

%% @doc Serves what the environment says.
-spec from_environment() -> ok | {error, Text :: unicode:chardata()}.
from_environment() ->
    case {application:get_env(placement, builtins, true), read(application:get_env(placement, attributes, none))} of
        {Builtins, {ok, Entries}} when is_boolean(Builtins) -> use(Builtins, Entries);
        {_, {error, _} = Error} -> Error;
        {Other, _} -> {error, io_lib:format("placement: builtins = ~0tp is not valid; expected true or false", [Other])}
    end.

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
    _ = [?LOG_WARNING("attribute ~tp is not known on this node: ~ts", [Name, words(Reason)], #{domain => [placement]}) || {Name, Reason} <- Troubles],
    ok.

words(no_such_function) -> "its function does not exist";
words(timeout) -> "its function did not return in time (limit)";
words(too_much_memory) -> "its function used more than 64 MiB";
words({too_large, Bytes}) -> io_lib:format("its value has ~b bytes, more than 65536", [Bytes]);
words({raised, Class, Reason}) -> io_lib:format("its function raised ~tp: ~0tP", [Class, Reason, 12]);
words({wrong_type, Value, Type}) -> io_lib:format("its function returned ~0tP, which is no ~tp", [Value, 12, Type]);
words(Reason) -> io_lib:format("~0tP", [Reason, 12]).
