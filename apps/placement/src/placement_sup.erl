%% SPDX-License-Identifier: Apache-2.0
%% @doc The supervisor of the application, and the owner of its tables.
%%
%% What must survive the end of a server stands in a table of {@link tables/0}: each is made here, so it lives as
%% long as the application. Only the server that is named beside it writes to it; anybody may read.
%% `rest_for_one': the order of the children is the order in which they need each other.
-module(placement_sup).
-behaviour(supervisor).

-export([start_link/0, init/1]).

%% @doc Starts the supervisor and all servers of the application.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() ->
    supervisor:start_link({local, ?MODULE}, ?MODULE, []).

%% @private
-spec init(term()) -> {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init(_) ->
    _ = [Table = ets:new(Table, Options) || {Table, Options} <- tables()],
    {ok, {#{strategy => rest_for_one, intensity => 10, period => 10}, children()}}.

%% Table and options; the comment names the writer.
tables() ->
    [].

children() ->
    [].
