%% SPDX-License-Identifier: Apache-2.0
%% @doc The address to which nodes of this host pass blocks ({@link beamway_block}). This process also gives back the memory of unused blocks.
%%
%% The lanes of a node share one listener. A lane that has a block to pass connects a channel to it ({@link teleport_references}) and says its id in the
%% message; the acceptor's lane fetches the channel of this id here. Nothing is open before somebody asks for it.
%% A channel whose sender ended before its message arrived is fetched by nobody. It is closed after a minute or two, with the blocks in it.
-module(teleport_blocks).
-behaviour(gen_server).

-export([start_link/0, offer/0, channel/1, configured/0, info/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).
-export_type([address/0]).

-type address() :: {Address :: binary(), Token :: <<_:128>>}.

-record(blocks, {listener = none :: none | {beamway_block:listener(), address()},
                 %% connected, and not yet fetched: the newest first
                 channels = [] :: [{beamway_block:id(), beamway_block:channel()}]}).

-define(CALL_MS, 5000).
-define(PATIENCE_MS, 60000).
%% Each lane of a peer connects one at a time, and fetches it at once.
-define(MAX_WAITING, 256).

%% @doc Started by the supervisor.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @doc Where a peer of this host may pass blocks to.
-spec offer() -> {ok, address()} | none.
offer() -> gen_server:call(?MODULE, offer, ?CALL_MS).

%% @doc The channel that a peer has connected.
-spec channel(beamway_block:id()) -> {ok, beamway_block:channel()} | none.
channel(Id) -> gen_server:call(?MODULE, {channel, Id}, ?CALL_MS).

%% @doc The options have changed.
-spec configured() -> ok.
configured() -> gen_server:call(?MODULE, configured, ?CALL_MS).

%% @doc See {@link teleport:blocks/0}.
-spec info() -> #{atom() => non_neg_integer()}.
info() ->
    case beamway_block:is_loaded() of
        true -> beamway_block:info();
        false -> maps:from_keys([blocks, bytes, max_blocks, max_bytes, made, received, refused], 0)
    end.

%% @private
-spec init([]) -> {ok, #blocks{}}.
init([]) ->
    _ = [begin ok = beamway_block:reaper(), ok = limit() end || beamway_block:is_loaded()],
    ok = look_later(?PATIENCE_MS, []),
    {ok, #blocks{}}.

limit() -> beamway_block:limit(maps:get(max_block_bytes, teleport_config:of_node(node()))).

%% @private
-spec handle_call(term(), gen_server:from(), #blocks{}) -> {reply, term(), #blocks{}}.
handle_call(offer, _From, State) ->
    case beamway_block:is_loaded() of
        true -> offered(State);
        false -> {reply, none, State}
    end;
handle_call({channel, Id}, _From, State) ->
    Accepted = accepted(State),
    case lists:keytake(Id, 1, Accepted#blocks.channels) of
        {value, {_, Channel}, Rest} -> {reply, {ok, Channel}, Accepted#blocks{channels = Rest}};
        false -> {reply, none, Accepted}
    end;
handle_call(configured, _From, State) ->
    _ = [limit() || beamway_block:is_loaded()],
    {reply, ok, State};
handle_call(_Request, _From, State) ->
    {reply, {error, badarg}, State}.

offered(#blocks{listener = {_, Address}} = State) ->
    {reply, {ok, Address}, State};
offered(State) ->
    case beamway_block:listen(maps:get(socket_dir, beamway_links:config())) of
        {ok, Listener, At, Token} -> {reply, {ok, {At, Token}}, State#blocks{listener = {Listener, {At, Token}}}};
        {error, _} -> {reply, none, State}
    end.

accepted(#blocks{listener = none} = State) -> State;
accepted(#blocks{listener = {Listener, _}, channels = Channels} = State) ->
    case beamway_block:accept(Listener) of
        {ok, Id, Channel} -> accepted(State#blocks{channels = lists:sublist([{Id, Channel} | Channels], ?MAX_WAITING)});
        _ -> State
    end.

%% What a sender that has ended passed last may still be on its way to a lane, so its channel waits from one look to the next.
look_later(Ms, Channels) ->
    _ = erlang:send_after(Ms, self(), {close_abandoned, Ms, [Id || {Id, _} <- Channels]}),
    ok.

without_abandoned(Known, #blocks{channels = Channels} = State) ->
    {Kept, Abandoned} = lists:partition(fun({Id, Channel}) -> not lists:member(Id, Known) orelse beamway_block:is_open(Channel) end, Channels),
    lists:foreach(fun({_, Channel}) -> ok = beamway_block:close(Channel) end, Abandoned),
    State#blocks{channels = Kept}.

%% @private
-spec handle_cast(term(), #blocks{}) -> {noreply, #blocks{}}.
handle_cast(_Request, State) -> {noreply, State}.

%% @private
-spec handle_info(term(), #blocks{}) -> {noreply, #blocks{}}.
handle_info(beamway_blocks_to_reap, State) ->
    ok = beamway_block:reap(),
    {noreply, State};
handle_info({close_abandoned, Ms, Known}, State) ->
    Left = without_abandoned(Known, accepted(State)),
    ok = look_later(Ms, Left#blocks.channels),
    {noreply, Left};
handle_info(_Info, State) ->
    {noreply, State}.
