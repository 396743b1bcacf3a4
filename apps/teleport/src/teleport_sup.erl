%% SPDX-License-Identifier: Apache-2.0
%% @private The supervisors. Lanes and the processes of peers are not restarted by them: whoever needs a lane opens one anew.
%% It owns the registry's table, which so lives as long as the application. `rest_for_one': the registry knows every lane, so without it none may live; without lanes no peer, without these no port.
-module(teleport_sup).
-behaviour(supervisor).

-export([start_link/0, start_link/2, init/1]).

%% @private
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() ->
    case supervisor:start_link({local, ?MODULE}, ?MODULE, top) of
        {ok, Pid} -> {ok, Pid};
        ignore -> {error, ignore};
        {error, Reason} -> {error, Reason}
    end.

%% @private Of one kind of short-lived children.
-spec start_link(Name :: atom(), {module(), atom()}) -> supervisor:startlink_ret().
start_link(Name, Child) -> supervisor:start_link({local, Name}, ?MODULE, {each, Child}).

%% @private
-spec init(top | {each, {module(), atom()}}) -> {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init(top) ->
    lists:foreach(fun new_table/1, [{teleport_peers, [{read_concurrency, true}]},
                                   {teleport_watcher, [{read_concurrency, true}]},
                                   {teleport_groups, [{write_concurrency, true}]},
                                   {teleport_relay, [{read_concurrency, true}]},
                                   {teleport_fallback, [ordered_set, {write_concurrency, true}]}]),
    ok = teleport_events:new_counters(),
    {ok, {#{strategy => rest_for_one, intensity => 5, period => 10},
          [worker(teleport_peers),
           group(teleport_lane_sup, {teleport_lane, start_link}),
           group(teleport_peer_sup, {teleport_peer, start_link}),
           group(teleport_acceptor_sup, {teleport_listener, accept_link}),
           worker(teleport_blocks),
           worker(teleport_listener),
           worker(teleport_via),
           worker(teleport_watcher),
           worker(teleport_events),
           worker(teleport_relay)]}};
init({each, {Module, Function}}) ->
    {ok, {#{strategy => simple_one_for_one}, [#{id => Module, start => {Module, Function, []}, restart => temporary, shutdown => 2000}]}}.

%% The tables of these modules live as long as the application, and this process owns them. New code of this module comes here once more.
new_table({Module, Options}) ->
    case ets:whereis(Module) of
        undefined -> Module = ets:new(Module, [named_table, public | Options]);
        _ -> Module
    end.

worker(Module) -> #{id => Module, start => {Module, start_link, []}}.

group(Name, Child) -> #{id => Name, start => {?MODULE, start_link, [Name, Child]}, type => supervisor}.
