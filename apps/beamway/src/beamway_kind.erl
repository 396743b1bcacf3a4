%% SPDX-License-Identifier: Apache-2.0
%% @doc The kinds of link that there are: the only list of them. Pure.
%%
%% A new kind is a folder in native/link, an entry here, and a module that makes offers of it ({@link beamway_agreement}).
-module(beamway_kind).

-export([all/0, rings/0, is_ring/1, words/0, from_word/1]).
-export([name/1, module/1, library/1, needs_same_host/1, why/2, limit/1, to_flags/2, from_flags/2]).
-export_type([flag/0]).
-export_type([kind/0, ring/0, driven/0, label/0]).

-type kind() :: ring() | tcp.
-type ring() :: shm | rdma.
%% Two nodes agree on a ring; over `tcp' nothing is agreed on.
-type driven() :: kind() | tls.
%% What our driver carries. Nobody names `tls': where two nodes have met over TLS it is what `tcp' is elsewhere.
-type label() :: kind() | inet | tls.
%% As a link of ours is told of. `tcp' and `inet': the connection on which two nodes have met goes on, carried by our driver or by
%% OTP's own port. `tls': the same over TLS, carried by our driver or by ssl's processes.

-type entry() :: #{kind := driven(),
                   name := string(),               % for people
                   module => module(),             % of a ring: how two nodes meet for it
                   flag => pos_integer(),          % of a ring: its bit in the extension
                   used_up_flag => pos_integer(),  % the same where it is missing there for want of memory
                   same_host => true,              % only between nodes of one kernel
                   library => string(),            % the driver loads it from this file of priv
                   limit := atom()}.               % the option that bounds the memory of all its rings

%% The best first.
-spec kinds() -> [entry(), ...].
kinds() ->
    [#{kind => shm, name => "shared memory", module => beamway_shm, flag => 1, used_up_flag => 32, same_host => true, limit => ring_limit_bytes},
     #{kind => rdma, name => "rdma", module => beamway_rdma, flag => 4, used_up_flag => 64, library => "beamway_rdma.so", limit => rdma_limit_bytes},
     #{kind => tcp, name => "tcp", limit => ring_limit_bytes}].

%% @doc All, the best first.
-spec all() -> [kind(), ...].
all() -> [Kind || #{kind := Kind} <- kinds()].

%% @doc Those that two nodes agree on, the best first.
-spec rings() -> [ring(), ...].
rings() -> [Kind || #{kind := Kind, module := _} <- kinds()].

%% @doc Whether a link of that name is a ring; `tls' and `inet' are none.
-spec is_ring(atom()) -> boolean().
is_ring(Kind) -> lists:member(Kind, rings()).

%% @doc All of them in a sentence.
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

%% @doc As people read it.
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

%% @doc Why a link is of that kind, for people.
-spec why(ring(), Device :: binary()) -> binary().
why(_Kind, <<>>) -> <<"same host">>;
why(Kind, Device) -> iolist_to_binary([name(Kind), " device ", Device]).

%% @doc The option of {@link beamway_config} that bounds the memory of all rings of it.
-spec limit(driven()) -> atom().
limit(Kind) -> maps:get(limit, entry(Kind)).

-type flag() :: flag | used_up_flag.
%% What the bit of a ring says: this node has it, or would have it if its ring memory were not used up.

%% @doc The rings among these kinds as bits of the extension.
-spec to_flags(flag(), [kind()]) -> non_neg_integer().
to_flags(Of, Kinds) ->
    lists:sum([Flag || #{kind := Kind, Of := Flag} <- kinds(), lists:member(Kind, Kinds)]).

%% @doc The rings that the bits stand for; other bits are ignored.
-spec from_flags(flag(), non_neg_integer()) -> [ring()].
from_flags(Of, Flags) ->
    [Kind || #{kind := Kind, Of := Flag} <- kinds(), Flags band Flag =/= 0].

entry(tls) ->
    #{kind => tls, name => "tls", library => "beamway_tls.so", limit => ring_limit_bytes};
entry(Wanted) ->
    [Entry] = [Entry || #{kind := Kind} = Entry <- kinds(), Kind =:= Wanted],
    Entry.
