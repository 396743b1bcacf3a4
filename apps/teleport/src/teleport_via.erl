%% SPDX-License-Identifier: Apache-2.0
%% @doc The names of `{via, teleport, {Name, Node}}': those of this node are its registered names, those of others have proxies ({@link teleport_proxy}).
%%
%% The table has the proxies that may be found. Callers read it themselves; this process owns the table and starts the proxies, which are linked to it. It is no
%% supervisor, since that would log each end of a server once more for each of its proxies.
-module(teleport_via).
-behaviour(gen_server).

-export([start_link/0, whereis_name/1, register_name/2, unregister_name/1, retired/1, all/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).
-export_type([id/0]).

-type name() :: {atom(), node()}.
-type id() :: {Name :: atom(), node(), Lane :: non_neg_integer()}.

-define(TABLE, ?MODULE).
-define(REMOTE_MS, 5000).
%% Names are atoms, so this is far away.
-define(MAX_PROXIES, 50000).

%% @doc Started by the supervisor.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @doc See {@link teleport:whereis_name/1}.
-spec whereis_name(name()) -> pid() | undefined.
whereis_name({Name, Node}) when is_atom(Name), Node =:= node() ->
    case whereis(Name) of
        Pid when is_pid(Pid) -> Pid;
        _ -> undefined
    end;
whereis_name({Name, Node}) when is_atom(Name), is_atom(Node) ->
    #{lanes := #{normal := Lanes}} = teleport_config:of_node(Node),
    Key = {self(), Name},
    Id = {Name, Node, erlang:phash2(Key) rem Lanes},
    case found(Id) of
        none -> looked_for(Id, Key);
        Pid -> Pid
    end;
whereis_name(Other) -> error({bad_name, Other, "{Name, Node}"}).

found(Id) ->
    try ets:lookup(?TABLE, Id) of
        [{_, Pid}] ->
            case is_process_alive(Pid) of
                true -> Pid;
                false -> none
            end;
        [] -> none
    catch error:badarg -> error({not_started, teleport})
    end.

%% By the caller itself: a node that does not answer holds up nobody else.
looked_for({Name, Node, _} = Id, Key) ->
    case remote(Node, whereis, [Name]) of
        {ok, Pid} when is_pid(Pid) ->
            case gen_server:call(?MODULE, {proxy, Id, Key}) of
                {ok, Proxy} -> Proxy;
                {error, Reason} -> exit(Reason)
            end;
        _ -> undefined
    end.

remote(Node, Function, Args) ->
    try {ok, erpc:call(Node, erlang, Function, Args, ?REMOTE_MS)}
    catch _:Reason -> {error, Reason}
    end.

%% @doc See {@link teleport:register_name/2}.
-spec register_name(name(), pid()) -> yes | no.
register_name({Name, Node}, Pid) when is_atom(Name), is_atom(Node), is_pid(Pid) ->
    case node(Pid) =:= Node andalso remote(Node, register, [Name, Pid]) of
        {ok, true} -> yes;
        _ -> no
    end;
register_name(Other, _) -> error({bad_name, Other, "{Name, Node}"}).

%% @doc See {@link teleport:unregister_name/1}.
-spec unregister_name(name()) -> ok.
unregister_name({Name, Node}) when is_atom(Name), is_atom(Node) ->
    _ = remote(Node, unregister, [Name]),
    ok;
unregister_name(Other) -> error({bad_name, Other, "{Name, Node}"}).

%% @doc A proxy is about to end: nobody shall find it. The caller is the proxy.
-spec retired(id()) -> ok.
retired(Id) -> gen_server:cast(?MODULE, {retired, Id, self()}).

%% @doc The proxies that can be found.
-spec all() -> [{id(), pid()}].
all() -> ets:tab2list(?TABLE).

%% @private
-spec init([]) -> {ok, #{pid() => id()}}.
init([]) ->
    process_flag(trap_exit, true),
    ?TABLE = ets:new(?TABLE, [named_table, protected, {read_concurrency, true}]),
    {ok, #{}}.

%% @private
-spec handle_call(term(), gen_server:from(), #{pid() => id()}) -> {reply, term(), #{pid() => id()}}.
handle_call({proxy, Id, Key}, _From, Proxies) ->
    case found(Id) of
        none when map_size(Proxies) >= ?MAX_PROXIES -> {reply, {error, overload}, Proxies};
        none ->
            {ok, Pid} = teleport_proxy:start_link(Id, Key),
            true = ets:insert(?TABLE, {Id, Pid}),
            {reply, {ok, Pid}, Proxies#{Pid => Id}};
        Pid -> {reply, {ok, Pid}, Proxies}
    end;
handle_call(_Request, _From, Proxies) ->
    {reply, {error, badarg}, Proxies}.

%% @private
-spec handle_cast(term(), #{pid() => id()}) -> {noreply, #{pid() => id()}}.
handle_cast({retired, Id, Pid}, Proxies) ->
    true = ets:delete_object(?TABLE, {Id, Pid}),
    {noreply, Proxies};
handle_cast(_Request, Proxies) ->
    {noreply, Proxies}.

%% @private
-spec handle_info(term(), #{pid() => id()}) -> {noreply, #{pid() => id()}}.
handle_info({'EXIT', Pid, _}, Proxies) ->
    case maps:take(Pid, Proxies) of
        {Id, Left} -> true = ets:delete_object(?TABLE, {Id, Pid}), {noreply, Left};
        error -> {noreply, Proxies}
    end;
handle_info(_Info, Proxies) ->
    {noreply, Proxies}.
