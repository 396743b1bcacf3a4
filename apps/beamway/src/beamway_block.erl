%% SPDX-License-Identifier: Apache-2.0
%% @doc Blocks are binaries that nodes of the same user on the same host share without copying.
%%
%% A block is immutable kernel memory (a sealed memfd, native/block/block.h). In Erlang it is an ordinary binary. A channel passes blocks to another
%% node, which receives them as binaries backed by the same memory and can pass them on. The receiver can read the whole of each block passed to it,
%% and nothing else.
%%
%% A reference to part of a block keeps the whole block alive. A block exists as long as a process on any node refers to part of it, no matter which
%% node created it. A node's limits ({@link info/0}) apply both to the blocks it has created and to those it has received.
-module(beamway_block).

-export([is_loaded/0, from_iodata/1, read_file/1, is_block/1, info/0, limit/1, reaper/0, reap/0]).
-export([listen/1, accept/1, connect/3, pass/2, take/3, is_open/1, close/1]).
-export_type([channel/0, listener/0, id/0]).

-on_load(load/0).

-opaque channel() :: reference().
-opaque listener() :: reference().
-type id() :: <<_:128>>.
%% Identifies a channel for the receiver.

-define(MIN_BYTES, 65536).
-define(COPY_TRIES, 50).
-define(COPY_RETRY_MS, 20).

load() ->
    %% If the library is not loaded there are no blocks, and all binaries are ordinary ones.
    _ = erlang:load_nif(filename:join(priv_dir(), "beamway_block"), none),
    ok.

priv_dir() ->
    case code:priv_dir(beamway) of
        {error, bad_name} -> filename:join(filename:dirname(filename:dirname(code:which(?MODULE))), "priv");
        Dir -> Dir
    end.

%% @doc Returns whether this node can create blocks.
-spec is_loaded() -> boolean().
is_loaded() ->
    try is_map(info()) catch error:not_loaded -> false end.

%% @doc Returns a block with these bytes, or an ordinary binary if there are too few bytes or another block would exceed the limits.
-spec from_iodata(iodata()) -> binary().
from_iodata(Data) ->
    Parts = erlang:iolist_to_iovec(Data),
    case iolist_size(Parts) of
        Bytes when Bytes < ?MIN_BYTES -> iolist_to_binary(Parts);
        Bytes ->
            try from_iovec_nif(Parts, Bytes) of
                {ok, Block} -> Block;
                _ -> iolist_to_binary(Parts)
            catch error:not_loaded -> iolist_to_binary(Parts)
            end
    end.

%% @doc Like file:read_file/1, but a large file is read directly into a block if there is room for one.
-spec read_file(file:name_all()) -> {ok, binary()} | {error, file:posix() | badarg | terminated | system_limit}.
read_file(Name) ->
    try read_file_nif(path(Name), ?MIN_BYTES) of
        {ok, Block} -> {ok, Block};
        _ -> file:read_file(Name)
    catch error:_ -> file:read_file(Name)
    end.

path(Name) when is_binary(Name) -> Name;
path(Name) -> path_of(unicode:characters_to_binary(filename:flatten(Name), unicode, file:native_name_encoding())).

path_of(Path) when is_binary(Path) -> Path.

%% @doc Returns whether the binary is a whole block.
-spec is_block(binary()) -> boolean().
is_block(Binary) when byte_size(Binary) < ?MIN_BYTES -> false;
is_block(Binary) -> try is_block_nif(Binary) catch error:not_loaded -> false end.

%% @doc Returns the number of blocks that this node holds, their total size in bytes, and the limits for both. `made' and `received' count blocks
%% since the node started, and `refused' counts those that would have exceeded a limit.
-spec info() -> #{blocks | bytes | max_blocks | max_bytes | made | received | refused => non_neg_integer()}.
info() -> erlang:nif_error(not_loaded).

%% @doc Sets the maximum total size of all blocks in bytes. Existing blocks are kept.
-spec limit(Bytes :: non_neg_integer()) -> ok.
limit(_Bytes) -> erlang:nif_error(not_loaded).

%% @doc Makes the caller the reaper: from now on it receives the message `beamway_blocks_to_reap', and must then call {@link reap/0}. Without a
%% reaper, the pages of a large block are freed by whichever scheduler garbage-collects the last binary that refers to it. The call also immediately
%% frees whatever an earlier reaper has left behind.
-spec reaper() -> ok.
reaper() ->
    ok = reaper_nif(),
    reap().

%% @doc Frees the memory of blocks that are no longer in use.
-spec reap() -> ok.
reap() -> erlang:nif_error(not_loaded).

%% ---- channels ----

%% @doc Opens a listener to which local nodes of the same user may connect. The token is a secret shared by both nodes. The directory is that of the
%% option `socket_dir', or "" for an abstract socket.
-spec listen(Dir :: string()) -> {ok, listener(), Address :: binary(), Token :: <<_:128>>} | {error, Reason :: binary()}.
listen("") -> listen_nif(none);
listen(Dir) -> listen_nif(path(Dir)).

%% @doc Returns a channel that a node has connected. Does not wait for a connection, but waits up to 100 ms for the first packet on one.
-spec accept(listener()) -> {ok, id(), channel()} | none | {error, Reason :: binary()}.
accept(_Listener) -> erlang:nif_error(not_loaded).

%% @doc Connects a channel for passing blocks to the node with this listener.
-spec connect(Address :: binary(), Token :: <<_:128>>, id()) -> {ok, channel()} | {error, Reason :: binary()}.
connect(_Address, _Token, _Id) -> erlang:nif_error(not_loaded).

%% @doc Passes a block, which the receiver then takes by its number. `busy' means that too many blocks are in transit, and `no_block' that the
%% binary is an ordinary one or only part of a block.
-spec pass(channel(), binary()) -> {ok, Number :: pos_integer()} | busy | no_block | closed.
pass(_Channel, _Binary) -> erlang:nif_error(not_loaded).

%% @doc Takes a block that was passed. If another block would exceed the limits, the data is copied instead. If the node does not even have a free
%% descriptor for that, the call waits up to a second for one.
-spec take(channel(), Number :: non_neg_integer(), Bytes :: non_neg_integer()) -> {ok, binary()} | {error, Reason :: binary()}.
take(Channel, Number, Bytes) ->
    case take_nif(Channel, Number, Bytes) of
        limit -> copy(Channel, Number, Bytes, ?COPY_TRIES);
        Taken -> Taken
    end.

copy(Channel, Number, Bytes, Tries) ->
    case copy_nif(Channel, Number, Bytes) of
        limit when Tries > 1 ->
            timer:sleep(?COPY_RETRY_MS),
            copy(Channel, Number, Bytes, Tries - 1);
        limit -> {error, <<"this node has had no descriptor or no memory for a block for a second (ulimit -n?)">>};
        Taken -> Taken
    end.

%% @doc Returns whether the other end is still connected.
-spec is_open(channel()) -> boolean().
is_open(_Channel) -> erlang:nif_error(not_loaded).

%% @doc Closes the channel for both nodes. Blocks that were passed but not taken are lost.
-spec close(channel()) -> ok.
close(_Channel) -> erlang:nif_error(not_loaded).

%% ---- native/block/nif.c ----

-spec from_iovec_nif([binary()], pos_integer()) -> {ok, binary()} | limit | {error, binary()}.
from_iovec_nif(_, _) -> erlang:nif_error(not_loaded).
-spec read_file_nif(binary(), pos_integer()) -> {ok, binary()} | limit | no_block | {error, binary()}.
read_file_nif(_, _) -> erlang:nif_error(not_loaded).
-spec listen_nif(binary() | none) -> {ok, listener(), binary(), <<_:128>>} | {error, binary()}.
listen_nif(_) -> erlang:nif_error(not_loaded).
-spec take_nif(channel(), non_neg_integer(), non_neg_integer()) -> {ok, binary()} | limit | {error, binary()}.
take_nif(_, _, _) -> erlang:nif_error(not_loaded).
-spec copy_nif(channel(), non_neg_integer(), non_neg_integer()) -> {ok, binary()} | limit | {error, binary()}.
copy_nif(_, _, _) -> erlang:nif_error(not_loaded).
-spec is_block_nif(binary()) -> boolean().
is_block_nif(_) -> erlang:nif_error(not_loaded).
-spec reaper_nif() -> ok.
reaper_nif() -> erlang:nif_error(not_loaded).
