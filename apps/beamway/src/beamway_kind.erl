%% SPDX-License-Identifier: Apache-2.0
%% @doc The only list of all kinds of link. All functions are pure.
%%
%% A new kind needs a directory in native/link, an entry here, and a module that creates its offers ({@link beamway_agreement}).
-module(beamway_kind).

-export([all/0, rings/0, is_ring/1, words/0, from_word/1]).
-export([name/1, module/1, library/1, needs_same_host/1, why/2, limit/1, to_flags/2, from_flags/2]).
-export_type([flag/0]).
-export_type([kind/0, ring/0, driven/0, label/0]).

-type kind() :: ring() | tcp.
-type ring() :: shm | rdma.
%% Two nodes have to agree on a ring, but `tcp' needs no agreement.
-type driven() :: kind() | tls.
%% The kinds carried by our driver. Users never specify `tls': it replaces `tcp' if two nodes have connected over TLS.
-type label() :: kind() | inet | tls.
%% The name of a link for users. `tcp' and `inet' mean that the data is carried by the connection that the two nodes originally opened, through our
%% driver or OTP's own port. `tls' is the same over TLS, through our driver or processes of ssl.

-type entry() :: #{kind := driven(),
                   name := string(),               % as shown to users
                   module => module(),             % for a ring: sets it up between two nodes
                   flag => pos_integer(),          % for a ring: its bit in the extension
                   used_up_flag => pos_integer(),  % the bit to set if memory for it is used up
                   same_host => true,              % only between nodes on the same kernel
                   library => string(),            % the driver loads it from this file in priv
                   limit := atom()}.               % the option that limits the memory of all its rings

-spec kinds() -> [entry(), ...].
kinds() ->
    [#{kind => shm, name => "shared memory", module => beamway_shm, flag => 1, used_up_flag => 32, same_host => true, limit => ring_limit_bytes},
     #{kind => rdma, name => "rdma", module => beamway_rdma, flag => 4, used_up_flag => 64, library => "beamway_rdma.so", limit => rdma_limit_bytes},
     #{kind => tcp, name => "tcp", limit => ring_limit_bytes}].

%% @doc Returns all kinds, from best to worst.
-spec all() -> [kind(), ...].
all() -> [Kind || #{kind := Kind} <- kinds()].

%% @doc Returns the kinds that require an agreement between two nodes, from best to worst.
-spec rings() -> [ring(), ...].
rings() -> [Kind || #{kind := Kind, module := _} <- kinds()].

%% @doc Returns whether the link with that name is a ring; `tls' and `inet' are not.
-spec is_ring(atom()) -> boolean().
is_ring(Kind) -> lists:member(Kind, rings()).

%% @doc Returns the names of all kinds, as part of a sentence.
-spec words() -> string().
words() ->
    {Most, [Last]} = lists:split(length(all()) - 1, [atom_to_list(Kind) || Kind <- all()]),
    lists:append(lists:join(", ", Most)) ++ " and " ++ Last.

%% @doc Returns the kind that a user has named.
-spec from_word(string()) -> {ok, kind()} | error.
from_word(Word) ->
    case [Kind || Kind <- all(), atom_to_list(Kind) =:= Word] of
        [Kind] -> {ok, Kind};
        [] -> error
    end.

%% @doc Returns the name shown to users.
-spec name(kind()) -> string().
name(Kind) -> maps:get(name, entry(Kind)).

%% @doc Returns the module that creates offers of this kind, a {@link beamway_agreement}.
-spec module(ring()) -> module().
module(Kind) -> maps:get(module, entry(Kind)).

%% @doc Returns the file in `priv' that the driver loads for this kind, or "".
-spec library(driven()) -> string().
library(Kind) -> maps:get(library, entry(Kind), "").

%% @doc Returns whether both nodes must run under the same kernel.
-spec needs_same_host(kind()) -> boolean().
needs_same_host(Kind) -> maps:get(same_host, entry(Kind), false).

%% @doc Returns the text that explains why a link is of this kind.
-spec why(ring(), Device :: binary()) -> binary().
why(_Kind, <<>>) -> <<"same host">>;
why(Kind, Device) -> iolist_to_binary([name(Kind), " device ", Device]).

%% @doc Returns the option in {@link beamway_config} that limits the memory of all rings of this kind.
-spec limit(driven()) -> atom().
limit(Kind) -> maps:get(limit, entry(Kind)).

-type flag() :: flag | used_up_flag.
%% The meaning of a ring's bit: this node supports this ring, or would support it if its ring memory were not used up.

%% @doc Encodes the rings among these kinds as bits of the extension.
-spec to_flags(flag(), [kind()]) -> non_neg_integer().
to_flags(Of, Kinds) ->
    lists:sum([Flag || #{kind := Kind, Of := Flag} <- kinds(), lists:member(Kind, Kinds)]).

%% @doc Decodes the rings from these bits. Other bits are ignored.
-spec from_flags(flag(), non_neg_integer()) -> [ring()].
from_flags(Of, Flags) ->
    [Kind || #{kind := Kind, Of := Flag} <- kinds(), Flags band Flag =/= 0].

entry(tls) ->
    #{kind => tls, name => "tls", library => "beamway_tls.so", limit => ring_limit_bytes};
entry(Wanted) ->
    [Entry] = [Entry || #{kind := Kind} = Entry <- kinds(), Kind =:= Wanted],
    Entry.
