%% SPDX-License-Identifier: Apache-2.0
%% @doc The kinds of link, in their only list. Pure.
%%
%% A new kind needs a directory in native/link, an entry here, and a module that makes offers of it ({@link beamway_agreement}).
-module(beamway_kind).

-export([all/0, rings/0, is_ring/1, words/0, from_word/1]).
-export([name/1, module/1, library/1, needs_same_host/1, why/2, limit/1, to_flags/2, from_flags/2]).
-export_type([flag/0]).
-export_type([kind/0, ring/0, driven/0, label/0]).

-type kind() :: ring() | tcp.
-type ring() :: shm | rdma.
%% Two nodes agree on a ring, but `tcp' needs no agreement.
-type driven() :: kind() | tls.
%% What our driver carries. Users never name `tls': it takes the place of `tcp' if two nodes have met over TLS.
-type label() :: kind() | inet | tls.
%% The name of a link for users. `tcp' and `inet' mean that the connection on which two nodes have met carries the data, through our driver or
%% OTP's own port. `tls' is the same over TLS, through our driver or ssl's processes.

-type entry() :: #{kind := driven(),
                   name := string(),               % as users read it
                   module => module(),             % for a ring: how two nodes meet for it
                   flag => pos_integer(),          % for a ring: its bit in the extension
                   used_up_flag => pos_integer(),  % the same if it is missing for lack of memory
                   same_host => true,              % only between nodes on the same kernel
                   library => string(),            % the driver loads it from this file in priv
                   limit := atom()}.               % the option that limits the memory of all its rings

%% From the best to the worst.
-spec kinds() -> [entry(), ...].
kinds() ->
    [#{kind => shm, name => "shared memory", module => beamway_shm, flag => 1, used_up_flag => 32, same_host => true, limit => ring_limit_bytes},
     #{kind => rdma, name => "rdma", module => beamway_rdma, flag => 4, used_up_flag => 64, library => "beamway_rdma.so", limit => rdma_limit_bytes},
     #{kind => tcp, name => "tcp", limit => ring_limit_bytes}].

%% @doc All kinds, from the best to the worst.
-spec all() -> [kind(), ...].
all() -> [Kind || #{kind := Kind} <- kinds()].

%% @doc The kinds that two nodes agree on, from the best to the worst.
-spec rings() -> [ring(), ...].
rings() -> [Kind || #{kind := Kind, module := _} <- kinds()].

%% @doc Whether the link with that name is a ring; `tls' and `inet' are not.
-spec is_ring(atom()) -> boolean().
is_ring(Kind) -> lists:member(Kind, rings()).

%% @doc All of them as part of a sentence.
-spec words() -> string().
words() ->
    {Most, [Last]} = lists:split(length(all()) - 1, [atom_to_list(Kind) || Kind <- all()]),
    lists:append(lists:join(", ", Most)) ++ " and " ++ Last.

%% @doc The kind that a user has named.
-spec from_word(string()) -> {ok, kind()} | error.
from_word(Word) ->
    case [Kind || Kind <- all(), atom_to_list(Kind) =:= Word] of
        [Kind] -> {ok, Kind};
        [] -> error
    end.

%% @doc The name as users read it.
-spec name(kind()) -> string().
name(Kind) -> maps:get(name, entry(Kind)).

%% @doc The module that makes offers of it, a {@link beamway_agreement}.
-spec module(ring()) -> module().
module(Kind) -> maps:get(module, entry(Kind)).

%% @doc The file in `priv' that the driver loads for it, or "".
-spec library(driven()) -> string().
library(Kind) -> maps:get(library, entry(Kind), "").

-spec needs_same_host(kind()) -> boolean().
needs_same_host(Kind) -> maps:get(same_host, entry(Kind), false).

%% @doc The text that says why a link is of that kind.
-spec why(ring(), Device :: binary()) -> binary().
why(_Kind, <<>>) -> <<"same host">>;
why(Kind, Device) -> iolist_to_binary([name(Kind), " device ", Device]).

%% @doc The option in {@link beamway_config} that limits the memory of all its rings.
-spec limit(driven()) -> atom().
limit(Kind) -> maps:get(limit, entry(Kind)).

-type flag() :: flag | used_up_flag.
%% The meaning of a ring's bit: this node has it, or would have it if its ring memory were not used up.

%% @doc The rings among these kinds, as bits of the extension.
-spec to_flags(flag(), [kind()]) -> non_neg_integer().
to_flags(Of, Kinds) ->
    lists:sum([Flag || #{kind := Kind, Of := Flag} <- kinds(), lists:member(Kind, Kinds)]).

%% @doc The rings for these bits. Other bits are ignored.
-spec from_flags(flag(), non_neg_integer()) -> [ring()].
from_flags(Of, Flags) ->
    [Kind || #{kind := Kind, Of := Flag} <- kinds(), Flags band Flag =/= 0].

entry(tls) ->
    #{kind => tls, name => "tls", library => "beamway_tls.so", limit => ring_limit_bytes};
entry(Wanted) ->
    [Entry] = [Entry || #{kind := Kind} = Entry <- kinds(), Kind =:= Wanted],
    Entry.
