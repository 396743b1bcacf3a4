%% SPDX-License-Identifier: Apache-2.0
%% @doc The application `beamway', for programs that use its driver and blocks, and the supervisor of {@link beamway_links}.
%%
%% The distribution and the application both need the link server, and either may start or stop first. So the server has a supervisor that belongs
%% to neither, and that terminates when its last user does ({@link beamway_holder}). That supervisor owns the driver and the server's table, so
%% links survive a crash of the server, and the restarted server finds them in the table.
-module(beamway_sup).
-behaviour(application).
-behaviour(supervisor).

-include_lib("kernel/include/logger.hrl").

-export([hold/0]).
-export([start/2, stop/1]).
-export([init/1]).

-define(HOLD_MS, 5000).
-define(PAUSE_MS, 10).

%% @doc Registers the calling process as a user of the link server until it exits. Returns the supervisor, which lives at least as long.
-spec hold() -> pid().
hold() ->
    hold(erlang:monotonic_time(millisecond) + ?HOLD_MS).

%% The server may be terminating with its last user, or be about to start again.
hold(Deadline) ->
    Root = root(),
    case beamway_links:hold() of
        ok ->
            Root;
        {error, Reason} ->
            erlang:monotonic_time(millisecond) < Deadline orelse exit(Reason),
            receive after ?PAUSE_MS -> hold(Deadline) end
    end.

%% A process that exits immediately starts the supervisor, so that it has no parent. The supervisor is outside the application's group, because
%% when an application stops, the processes in its group are killed.
root() ->
    {_, Monitor} = spawn_monitor(fun start_root/0),
    receive
        {'DOWN', Monitor, process, _, {root, Root}} -> Root;
        {'DOWN', Monitor, process, _, Reason} -> exit(Reason)
    end.

-spec start_root() -> no_return().
start_root() ->
    true = group_leader(whereis(init), self()),
    case supervisor:start_link({local, ?MODULE}, ?MODULE, links) of
        {ok, Root} ->
            unlink(Root),
            exit({root, Root});
        {error, {already_started, Root}} ->
            exit({root, Root});
        {error, Reason} ->
            exit(Reason)
    end.

%% @private
-spec start(application:start_type(), term()) -> {ok, pid()} | {error, term()}.
start(_Type, _Arguments) ->
    _ = beamway_config:wants_encryption() andalso not is_carrier(init:get_argument(proto_dist))
        andalso ?LOG_WARNING("beamway: encrypt has no effect, and this node's distribution is in clear: it needs -proto_dist beamway", []),
    case supervisor:start_link(?MODULE, application) of
        {ok, Pid} -> {ok, Pid};
        ignore -> {error, ignore};
        {error, Reason} -> {error, Reason}
    end.

is_carrier({ok, Words}) -> [Word || "beamway" ++ _ = Word <- lists:append(Words)] =/= [];
is_carrier(error) -> false.

%% @private
-spec stop(term()) -> ok.
stop(_State) -> ok.

%% @private
-spec init(links | {alone, module()} | application) -> {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init(links) ->
    ok = beamway_links:prepare(),
    {ok, {#{strategy => one_for_one, intensity => 3, period => 10, auto_shutdown => any_significant},
          [#{id => beamway_links, start => {beamway_links, start_link, []},
             restart => transient, significant => true, shutdown => 2000},
           #{id => beamway_classes, start => {beamway_classes, start_link, []}, shutdown => 2000},
           %% Links do not depend on these.
           alone(beamway_epmd), alone(beamway_recorder), alone(beamway_fault)
           | [alone(beamway_renewal) || maps:get(renew_connections, beamway_links:config())]]}};
init({alone, Server}) ->
    {ok, {#{strategy => one_for_one, intensity => 3, period => 10}, [#{id => Server, start => {Server, start_link, []}, shutdown => 2000}]}};
init(application) ->
    {ok, {#{strategy => one_for_one, intensity => 0},
          [#{id => beamway_holder, start => {beamway_holder, start_link, []}, shutdown => 2000}]}}.

%% A server with a supervisor of its own, which gives up if the server crashes repeatedly.
alone(Server) -> #{id => {alone, Server}, start => {supervisor, start_link, [?MODULE, {alone, Server}]}, type => supervisor, restart => temporary}.
