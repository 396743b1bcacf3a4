%% SPDX-License-Identifier: Apache-2.0
%% @doc Shared binaries: keeps the handles of this node, and transfers the block of a handle to another node on the
%% same host ({@link beamway_block}).
%%
%% A handle contains the sharing node, a random identifier that changes when teleport is restarted there, and a number. A
%% node that opens it requests the block over the distribution and sends the address of its own listener. The sharing node
%% connects a channel to that address and passes the block through it. So a handle is an ordinary term, and each node that
%% has opened it maps the memory itself. The kernel frees the memory when no node uses it any more, even if the nodes
%% crashed.
%%
%% Callers read the table themselves. This process writes it, owns the listener, and frees the memory of unused
%% blocks. If no process fetches a channel within a minute or two, it closes the channel together with its block.
-module(teleport_blocks).
-behaviour(gen_server).

-export([start_link/0, share/2, unshare/1, open/1, configure/1, info/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).
-export_type([handle/0, keep/0, refusal/0]).

-type handle() :: {?MODULE, binary()} | {?MODULE, node(), Life :: binary(), Number :: pos_integer(), Bytes :: pos_integer()}.
%% The first form contains the bytes themselves; it is used for a binary that is not a block.
-type keep() :: caller | {ms, pos_integer()}.
-type refusal() :: ended | former_life | other_host | timeout | {nodedown, node()} | {no_teleport, node()} | {unreachable, Why :: binary()}.

-record(blocks, {life = crypto:strong_rand_bytes(8) :: binary(),
                 next = 1 :: pos_integer(),
                 %% The monitor of each process that keeps a handle, with the handle's number.
                 keepers = #{} :: #{reference() => pos_integer()},
                 listener = none :: none | beamway_block:listener(),
                 %% Channels that are connected but have not been fetched yet, newest first.
                 channels = [] :: [{beamway_block:id(), beamway_block:channel()}]}).

-define(TABLE, ?MODULE).
-define(CALL_MS, 5000).
-define(PATIENCE_MS, 60000).
%% Each process that opens a handle waits for one channel.
-define(MAX_WAITING, 256).

%% @doc Started by the supervisor.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @doc See {@link teleport:share/2}.
-spec share(binary(), keep()) -> handle().
share(Binary, Keep) when is_binary(Binary) ->
    Block = case beamway_block:is_block(Binary) of true -> Binary; false -> beamway_block:from_iodata(Binary) end,
    case beamway_block:is_block(Block) of
        true -> gen_server:call(?MODULE, {share, Block, Keep}, ?CALL_MS);
        false -> {?MODULE, Block}
    end;
share(Other, _) -> error({bad_binary, Other, "expected a binary"}).

%% @doc See {@link teleport:unshare/1}.
-spec unshare(handle()) -> ok.
unshare({?MODULE, Binary}) when is_binary(Binary) -> ok;
unshare({?MODULE, Node, Life, Number, _}) -> gen_server:cast({?MODULE, Node}, {unshare, Life, Number});
unshare(Other) -> bad_handle(Other).

-spec bad_handle(term()) -> no_return().
bad_handle(Handle) -> error({bad_handle, Handle, "expected what teleport:share/1 returns"}).

%% @doc See {@link teleport:open/1}.
-spec open(handle()) -> {ok, binary()} | {error, refusal()}.
open({?MODULE, Binary}) when is_binary(Binary) -> {ok, Binary};
open({?MODULE, Node, Life, Number, _}) when Node =:= node() -> found(Life, Number);
open({?MODULE, Node, Life, Number, Bytes}) when is_atom(Node) ->
    beamway_result:then(reached(address()), fun(Address) -> fetched(Node, Life, Number, Bytes, Address) end);
open(Other) -> bad_handle(Other).

found(Life, Number) ->
    case {ets:lookup(?TABLE, life), ets:lookup(?TABLE, Number)} of
        {[{_, Life}], [{_, Block, _}]} -> {ok, Block};
        {[{_, Life}], []} -> {error, ended};
        _ -> {error, former_life}
    end.

address() ->
    case ets:lookup(?TABLE, address) of
        [{_, Address}] -> {ok, Address};
        [] -> gen_server:call(?MODULE, listen, ?CALL_MS)
    end.

fetched(Node, Life, Number, Bytes, Address) ->
    Id = crypto:strong_rand_bytes(16),
    case asked(Node, {pass, Life, Number, host(), Address, Id}) of
        {ok, Passed} -> taken(Id, Passed, Bytes);
        Error -> Error
    end.

%% Identifies the running kernel. Whether the two nodes can reach each other on it becomes clear when the channel
%% connects.
host() -> ets:lookup_element(?TABLE, host, 2).

asked(Node, Request) ->
    try gen_server:call({?MODULE, Node}, Request, ?CALL_MS)
    catch
        exit:{timeout, _} -> {error, timeout};
        exit:{noproc, _} -> {error, {no_teleport, Node}};
        exit:{_, _} -> {error, {nodedown, Node}}
    end.

taken(Id, Passed, Bytes) ->
    case gen_server:call(?MODULE, {channel, Id}, ?CALL_MS) of
        {ok, Channel} ->
            Taken = beamway_block:take(Channel, Passed, Bytes),
            ok = beamway_block:close(Channel),
            reached(Taken);
        none -> {error, {unreachable, <<"the channel of the node that shares has not come">>}}
    end.

%% @doc Changes options, for one caller at a time.
-spec configure(map()) -> ok | {error, [teleport_config:problem(), ...]}.
configure(Options) -> gen_server:call(?MODULE, {configure, Options}, ?CALL_MS).

%% @doc See {@link teleport:blocks/0}.
-spec info() -> #{atom() => non_neg_integer()}.
info() ->
    Own = case beamway_block:is_loaded() of
              true -> beamway_block:info();
              false -> maps:from_keys([blocks, bytes, max_blocks, max_bytes, made, received, refused], 0)
          end,
    Own#{shared => ets:select_count(?TABLE, [{{'_', '_', '_'}, [], [true]}])}.

%% @private
-spec init([]) -> {ok, #blocks{}}.
init([]) ->
    _ = [begin ok = beamway_block:reaper(), ok = limit() end || beamway_block:is_loaded()],
    State = #blocks{},
    true = ets:delete_all_objects(?TABLE),
    true = ets:insert(?TABLE, [{life, State#blocks.life}, {host, beamway_host:boot_id()}]),
    ok = look_later([]),
    {ok, State}.

limit() -> beamway_block:limit(teleport_config:get(max_block_bytes)).

%% @private
-spec handle_call(term(), gen_server:from(), #blocks{}) -> {reply, term(), #blocks{}}.
handle_call({share, Block, Keep}, {Caller, _}, #blocks{life = Life, next = Number} = State) ->
    {Keeper, Kept} = kept(Keep, Caller, Number, State),
    true = ets:insert(?TABLE, {Number, Block, Keeper}),
    {reply, {?MODULE, node(), Life, Number, byte_size(Block)}, Kept#blocks{next = Number + 1}};
handle_call({pass, Life, Number, Host, {At, Token} = Address, Id}, _From, State) when is_binary(At), byte_size(Token) =:= 16, byte_size(Id) =:= 16 ->
    {reply, passed(found(Life, Number), Host =:= host(), Address, Id), State};
handle_call(listen, _From, State) ->
    listening(State);
handle_call({channel, Id}, _From, State) ->
    Accepted = accepted(State),
    case lists:keytake(Id, 1, Accepted#blocks.channels) of
        {value, {_, Channel}, Rest} -> {reply, {ok, Channel}, Accepted#blocks{channels = Rest}};
        false -> {reply, none, Accepted}
    end;
handle_call({configure, Options}, _From, State) ->
    Result = teleport_config:set(Options),
    _ = [limit() || beamway_block:is_loaded()],
    {reply, Result, State};
handle_call(_Request, _From, State) ->
    {reply, {error, badarg}, State}.

kept({ms, Ms}, _, Number, State) ->
    _ = erlang:send_after(Ms, self(), {over, Number}),
    {none, State};
kept(caller, Caller, Number, #blocks{keepers = Keepers} = State) ->
    Monitor = monitor(process, Caller),
    {Monitor, State#blocks{keepers = Keepers#{Monitor => Number}}}.

let_go(Number, #blocks{keepers = Keepers} = State) ->
    case ets:take(?TABLE, Number) of
        [{_, _, Keeper}] when is_reference(Keeper) ->
            true = demonitor(Keeper, [flush]),
            State#blocks{keepers = maps:remove(Keeper, Keepers)};
        _ -> State
    end.

passed({error, Reason}, _, _, _) -> {error, Reason};
passed(_, _IsThisHost = false, _, _) -> {error, other_host};
passed({ok, Block}, _, {At, Token}, Id) ->
    beamway_result:then(reached(beamway_block:connect(At, Token, Id)),
                        fun(Channel) ->
                                Passed = beamway_block:pass(Channel, Block),
                                ok = beamway_block:close(Channel),
                                case Passed of
                                    {ok, Number} -> {ok, Number};
                                    Not -> {error, {unreachable, atom_to_binary(Not)}}
                                end
                        end).

reached({ok, Value}) -> {ok, Value};
reached({error, Why}) -> {error, {unreachable, Why}}.

listening(#blocks{listener = none} = State) ->
    case beamway_block:is_loaded() andalso beamway_block:listen(maps:get(socket_dir, beamway_links:config())) of
        {ok, Listener, At, Token} ->
            true = ets:insert(?TABLE, {address, {At, Token}}),
            {reply, {ok, {At, Token}}, State#blocks{listener = Listener}};
        {error, Why} -> {reply, {error, Why}, State};
        false -> {reply, {error, <<"this node could not load beamway_block">>}, State}
    end;
listening(State) -> {reply, {ok, ets:lookup_element(?TABLE, address, 2)}, State}.

accepted(#blocks{listener = none} = State) -> State;
accepted(#blocks{listener = Listener, channels = Channels} = State) ->
    case beamway_block:accept(Listener) of
        {ok, Id, Channel} -> accepted(State#blocks{channels = lists:sublist([{Id, Channel} | Channels], ?MAX_WAITING)});
        _ -> State
    end.

%% A channel that was already there at the previous check and has still not been fetched is abandoned: the process that
%% opened the handle has exited.
look_later(Channels) ->
    _ = erlang:send_after(?PATIENCE_MS, self(), {look, [Id || {Id, _} <- Channels]}),
    ok.

%% @private
-spec handle_cast(term(), #blocks{}) -> {noreply, #blocks{}}.
handle_cast({unshare, Life, Number}, #blocks{life = Life} = State) ->
    {noreply, let_go(Number, State)};
handle_cast(_Request, State) ->
    {noreply, State}.

%% @private
-spec handle_info(term(), #blocks{}) -> {noreply, #blocks{}}.
handle_info(beamway_blocks_to_reap, State) ->
    ok = beamway_block:reap(),
    {noreply, State};
handle_info({over, Number}, State) ->
    {noreply, let_go(Number, State)};
handle_info({'DOWN', Monitor, process, _, _}, #blocks{keepers = Keepers} = State) ->
    {noreply, case Keepers of #{Monitor := Number} -> let_go(Number, State); #{} -> State end};
handle_info({look, Known}, State) ->
    #blocks{channels = Channels} = Accepted = accepted(State),
    {Abandoned, Kept} = lists:partition(fun({Id, _}) -> lists:member(Id, Known) end, Channels),
    lists:foreach(fun({_, Channel}) -> ok = beamway_block:close(Channel) end, Abandoned),
    ok = look_later(Kept),
    {noreply, Accepted#blocks{channels = Kept}};
handle_info(_Info, State) ->
    {noreply, State}.
