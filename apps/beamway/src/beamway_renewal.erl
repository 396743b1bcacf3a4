%% SPDX-License-Identifier: Apache-2.0
%% @doc Makes links over TLS use new certificates.
%%
%% With the option `renew_connections' a server watches the files that the TLS options name. When they have changed, each link moves to a new
%% connection, for which both nodes show and check their current certificates ({@link beamway_resume}). The old connection stays in use until both
%% nodes have been authenticated over the new one, so an invalid certificate does not end a link.
-module(beamway_renewal).
-behaviour(gen_server).

-include_lib("kernel/include/logger.hrl").

-export([start_link/0, reload/0]).
-export([init/1, handle_continue/2, handle_call/3, handle_cast/2, handle_info/2]).

-define(LOOK_MS, 5000).
%% Each link begins to move after a random delay of up to this time multiplied by the number of links, because a handshake with certificates takes a
%% few milliseconds of processor time on both nodes.
-define(EACH_MS, 20).

-type contents() :: {ok, binary()} | {error, binary()}.
-type state() :: {Used :: contents(), Seen :: contents()}.

%% @doc Called by {@link beamway_sup}.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @doc Clears ssl's cache of the files, updates the expiry times and, if the option is set, moves the links over TLS to new connections.
-spec reload() -> ok.
reload() ->
    _ = lists:keymember(ssl, 1, application:which_applications()) andalso ssl:clear_pem_cache(),
    lists:foreach(fun({Role, Seconds}) -> beamway_links:certificate_ends(Role, {ok, Seconds}) end, beamway_tls_options:expiries()),
    case whereis(?MODULE) of
        undefined -> ok;
        _ -> renew([Keeper || #{kind := tls, encrypted := false, keeper := Keeper} <- beamway_links:sessions()])
    end.

renew(Keepers) ->
    _ = [Keeper ! {renew, rand:uniform(?EACH_MS * length(Keepers))} || Keeper <- Keepers],
    ok.

%% @private
-spec init([]) -> {ok, none, {continue, look}}.
init([]) -> {ok, none, {continue, look}}.

%% @private
-spec handle_continue(look, none) -> {noreply, state()}.
handle_continue(look, none) ->
    Contents = beamway_tls_options:contents(),
    ok = look_later(),
    {noreply, {Contents, Contents}}.

look_later() ->
    _ = erlang:send_after(?LOOK_MS, self(), look),
    ok.

%% @private
-spec handle_call(term(), gen_server:from(), state()) -> {reply, {error, badarg}, state()}.
handle_call(_Request, _From, State) -> {reply, {error, badarg}, State}.

%% @private
-spec handle_cast(term(), state()) -> {noreply, state()}.
handle_cast(_Request, State) -> {noreply, State}.

%% @private
-spec handle_info(term(), state()) -> {noreply, state()}.
handle_info(look, State) ->
    ok = look_later(),
    {noreply, looked(beamway_tls_options:contents(), State)};
handle_info(_Message, State) ->
    {noreply, State}.

%% The key is usually written after the certificate, so this waits until nothing has changed between two checks.
looked(Used, {Used, _Seen}) ->
    {Used, Used};
looked({ok, _} = Contents, {_Used, Contents}) ->
    ?LOG_NOTICE("beamway: the TLS options or certificates have changed, and the links over TLS move to new connections", []),
    ok = reload(),
    {Contents, Contents};
looked(Contents, {Used, _Seen}) ->
    {Used, Contents}.
