%% SPDX-License-Identifier: Apache-2.0
%% @doc The application `beamway' for those who use lanes: starts {@link beamway_links} on a node whose distribution has not.
%%
%% Where the distribution is Beamway's, net_kernel's supervisor has started it before any application, and this one has
%% nothing to do.
-module(beamway_sup).
-behaviour(application).
-behaviour(supervisor).

-export([start/2, stop/1]).
-export([init/1]).

%% @private
-spec start(application:start_type(), term()) -> {ok, pid()} | {error, term()}.
start(_Type, _Arguments) ->
    case supervisor:start_link({local, ?MODULE}, ?MODULE, []) of
        {ok, Pid} -> {ok, Pid};
        ignore -> {error, ignore};
        {error, Reason} -> {error, Reason}
    end.

%% @private
-spec stop(term()) -> ok.
stop(_State) -> ok.

%% @private
-spec init([]) -> {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init([]) ->
    {ok, {#{strategy => one_for_one, intensity => 3, period => 10},
          [#{id => beamway_links, start => {beamway_links, start_link, []}, shutdown => 2000}]}}.
