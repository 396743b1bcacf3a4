%% SPDX-License-Identifier: Apache-2.0
%% The tables of children. placement_child reads them; the comments name the writers.

%% {name(), spec() | {deleted, Version} | unknown, {Holder :: node() | nobody, pid() | none, UntilMs}}
-define(CHILDREN, placement_children).
%% {name(), pid() | none, spec(), reference() | EndedMs}: the children that keepers have announced to this node.
-define(NAMES, placement_names).
%% {node()}: the other nodes that have reported that placement runs on them.
-define(PEERS, placement_peers).
%% {{Scope, node()}, Count}: how many children of a scope in ?NAMES have a process.
-define(COUNTS, placement_counts).
%% {name(), Keeper :: pid(), spec(), pid() | none}: children that run here, written by their keepers.
-define(KEPT, placement_kept).
