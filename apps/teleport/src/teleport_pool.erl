%% SPDX-License-Identifier: Apache-2.0
%% @doc Connections beside the distribution, for nodes that no Beamway carries. This node has none.
-module(teleport_pool).

-export([lookup/1, want/1, note/1, send/5, request/6, info/0]).
-export_type([pool/0]).

-type pool() :: pid().

%% @doc The pool to a node.
-spec lookup(node()) -> none | pool().
lookup(_Node) -> none.

%% @doc Asks for a pool to a node.
-spec want(node()) -> ok.
want(_Node) -> ok.

%% @doc The calling process sends to this node over the distribution.
-spec note(node()) -> ok.
note(_Node) -> ok.

%% @doc Sends a message.
-spec send(pool(), pid() | atom(), Key :: term(), Message :: term(), Wait :: timeout()) ->
          ok | gone | {error, overload | timeout | {too_big, Bytes :: pos_integer()}}.
send(_Pool, _To, _Key, _Message, _Wait) -> gone.

%% @doc Begins a call.
-spec request(pool(), pid() | atom(), Key :: term(), Label :: term(), Request :: term(), Wait :: timeout()) ->
          {ok, reference()} | gone | {error, overload | timeout | {too_big, Bytes :: pos_integer()}}.
request(_Pool, _To, _Key, _Label, _Request, _Wait) -> gone.

%% @doc All pools of this node.
-spec info() -> [map()].
info() -> [].
