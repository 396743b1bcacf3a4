%% SPDX-License-Identifier: Apache-2.0
%% @doc Handles files that are useless once the process that writes them has exited: the bodies of requests, and incomplete uploads.
%%
%% The process of a request is killed when its HTTP/2 client cancels the request or when its server stops, so it may be unable to delete its file. A
%% process under yucan_yaws_sup monitors the owners and deletes the files that they leave behind. It is notified of each file before the file is
%% created.
-module(yucan_unfinished).
-behaviour(gen_server).

-export([start_link/0, create/1, finish/2, finish_new/2, delete/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

%% The pause before another attempt to delete a file. An owner may be killed during the call that creates its file, which then appears later.
-define(AGAIN_MS, 1000).

-type reason() :: file:posix() | badarg | system_limit.
-type owners() :: #{file:name_all() => Monitor :: reference()}.

%% @doc Starts the process; called by yucan_yaws_sup.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @doc Creates a new file that belongs to the caller.
-spec create(file:name_all()) -> {ok, file:fd()} | {error, reason()}.
create(Name) ->
    _ = [yucan_yaws_app:ensure() || whereis(?MODULE) =:= undefined],
    ok = gen_server:cast(?MODULE, {owned, Name, self()}),
    case file:open(Name, [write, exclusive, raw, binary]) of
        {ok, File} -> {ok, File};
        {error, Reason} ->
            ok = forget(Name),
            {error, Reason}
    end.

forget(Name) -> gen_server:cast(?MODULE, {forget, Name}).

%% @doc Gives a completed file its final name, or deletes it if that fails.
-spec finish(file:name_all(), Target :: file:name_all()) -> ok | {error, reason()}.
finish(Name, Target) ->
    case file:rename(Name, Target) of
        ok -> forget(Name);
        {error, Reason} ->
            ok = delete(Name),
            {error, Reason}
    end.

%% @doc Like {@link finish/2}, but returns `eexist' instead of replacing an existing file.
-spec finish_new(file:name_all(), Target :: file:name_all()) -> ok | {error, reason()}.
finish_new(Name, Target) ->
    case file:make_link(Name, Target) of
        ok -> delete(Name);
        {error, eexist} -> ok = delete(Name), {error, eexist};
        %% The file system does not support hard links.
        {error, _} -> finish(Name, Target)
    end.

%% @doc Deletes the file. Any process may call this function, even repeatedly.
-spec delete(file:name_all()) -> ok.
delete(Name) ->
    _ = file:delete(Name),
    forget(Name).

%% @private
-spec init([]) -> {ok, owners()}.
init([]) ->
    _ = process_flag(trap_exit, true),
    {ok, #{}}.

%% @private
-spec handle_call(term(), gen_server:from(), owners()) -> {noreply, owners()}.
handle_call(_, _, Owners) -> {noreply, Owners}.

%% @private
-spec handle_cast({owned, file:name_all(), pid()} | {forget, file:name_all()}, owners()) -> {noreply, owners()}.
handle_cast({owned, Name, Owner}, Owners) ->
    {noreply, Owners#{Name => erlang:monitor(process, Owner, [{tag, {ended, Name}}])}};
handle_cast({forget, Name}, Owners) ->
    case maps:take(Name, Owners) of
        {Monitor, Left} ->
            _ = erlang:demonitor(Monitor, [flush]),
            {noreply, Left};
        error -> {noreply, Owners}
    end.

%% @private
-spec handle_info(term(), owners()) -> {noreply, owners()}.
handle_info({{ended, Name}, _, process, _, _}, Owners) ->
    _ = file:delete(Name) =:= ok orelse erlang:send_after(?AGAIN_MS, self(), {again, Name}),
    {noreply, maps:remove(Name, Owners)};
handle_info({again, Name}, Owners) ->
    _ = file:delete(Name),
    {noreply, Owners};
handle_info(_, Owners) -> {noreply, Owners}.

%% @private
-spec terminate(term(), owners()) -> ok.
terminate(_, Owners) -> maps:foreach(fun(Name, _) -> file:delete(Name) end, Owners).
