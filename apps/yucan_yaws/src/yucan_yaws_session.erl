%% SPDX-License-Identifier: Apache-2.0
%% @doc Sessions of modules written for Yaws: data of the module under a random value, which it sends as a cookie. For {@link yaws_api}.
%%
%% They live in this process alone and end with it, as with the node. Each one ends when nobody has asked for it for its time to live.
-module(yucan_yaws_session).
-behaviour(gen_server).

-export([start_link/0, new/3, find/1, replace/3, delete/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-define(SWEEP_MS, 60000).
%% Clients that send no cookie back get one session for each request.
-define(MOST, 100000).

-record(session, {opaque :: term(),
                  ttl_s :: non_neg_integer(),
                  deadline_s :: integer(),
                  %% Is told when the session ends.
                  cleanup :: pid() | undefined}).
-type sessions() :: #{string() => #session{}}.

%% @doc Started by yucan_yaws_sup.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @doc A session with some data; what it returns is the value of its cookie. The process gets `{yaws_session_end, timeout | normal, Cookie, Opaque}' at its end.
-spec new(term(), TtlSeconds :: non_neg_integer(), pid() | undefined) -> string().
new(Opaque, Ttl, Cleanup) when is_integer(Ttl), Ttl >= 0 ->
    case call({new, Opaque, Ttl, Cleanup}) of
        {ok, Cookie} -> Cookie;
        {error, too_many} -> error({too_many_sessions, ?MOST, "give sessions a shorter time to live"})
    end.

%% @doc The data of a session, whose time to live begins again.
-spec find(string()) -> {ok, term()} | {error, no_session}.
find(Cookie) -> call({find, Cookie}).

%% @doc Other data for a session. `undefined' leaves who is told of its end.
-spec replace(string(), term(), pid() | undefined) -> true | error.
replace(Cookie, Opaque, Cleanup) -> call({replace, Cookie, Opaque, Cleanup}).

%% @doc Ends a session, if it is there.
-spec delete(string()) -> true.
delete(Cookie) -> call({delete, Cookie}).

call(Request) ->
    _ = [yucan_yaws_app:ensure() || whereis(?MODULE) =:= undefined],
    gen_server:call(?MODULE, Request).

%% @private
-spec init([]) -> {ok, sessions()}.
init([]) ->
    _ = erlang:send_after(?SWEEP_MS, self(), sweep),
    {ok, #{}}.

%% @private
-spec handle_call(term(), gen_server:from(), sessions()) -> {reply, term(), sessions()}.
handle_call({new, _, _, _}, _, Sessions) when map_size(Sessions) >= ?MOST -> {reply, {error, too_many}, Sessions};
handle_call({new, Opaque, Ttl, Cleanup}, _, Sessions) ->
    Cookie = binary_to_list(binary:encode_hex(crypto:strong_rand_bytes(16))),
    {reply, {ok, Cookie}, Sessions#{Cookie => used(#session{opaque = Opaque, ttl_s = Ttl, deadline_s = 0, cleanup = Cleanup})}};
handle_call({find, Cookie}, _, Sessions) ->
    case living(Cookie, Sessions) of
        {ok, Session} -> {reply, {ok, Session#session.opaque}, Sessions#{Cookie := used(Session)}};
        none -> {reply, {error, no_session}, Sessions}
    end;
handle_call({replace, Cookie, Opaque, Cleanup}, _, Sessions) ->
    case living(Cookie, Sessions) of
        {ok, #session{cleanup = Before} = Session} ->
            Told = case Cleanup of undefined -> Before; _ -> Cleanup end,
            {reply, true, Sessions#{Cookie := used(Session#session{opaque = Opaque, cleanup = Told})}};
        none -> {reply, error, Sessions}
    end;
handle_call({delete, Cookie}, _, Sessions) ->
    _ = [tell(normal, Cookie, Session) || #{Cookie := Session} <- [Sessions]],
    {reply, true, maps:remove(Cookie, Sessions)}.

%% @private
-spec handle_cast(term(), sessions()) -> {noreply, sessions()}.
handle_cast(_, Sessions) -> {noreply, Sessions}.

%% @private
-spec handle_info(term(), sessions()) -> {noreply, sessions()}.
handle_info(sweep, Sessions) ->
    _ = erlang:send_after(?SWEEP_MS, self(), sweep),
    Ended = maps:filter(fun(_, Session) -> not lives(Session) end, Sessions),
    ok = maps:foreach(fun(Cookie, Session) -> tell(timeout, Cookie, Session) end, Ended),
    {noreply, maps:without(maps:keys(Ended), Sessions)};
handle_info(_, Sessions) -> {noreply, Sessions}.

living(Cookie, Sessions) ->
    case Sessions of
        #{Cookie := Session} -> case lives(Session) of true -> {ok, Session}; false -> none end;
        #{} -> none
    end.

lives(#session{deadline_s = Deadline}) -> erlang:monotonic_time(second) < Deadline.

used(#session{ttl_s = Ttl} = Session) -> Session#session{deadline_s = erlang:monotonic_time(second) + Ttl}.

tell(_, _, #session{cleanup = undefined}) -> ok;
tell(Why, Cookie, #session{cleanup = Pid, opaque = Opaque}) -> Pid ! {yaws_session_end, Why, Cookie, Opaque}.
