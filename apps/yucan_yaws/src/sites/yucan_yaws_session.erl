%% SPDX-License-Identifier: Apache-2.0
%% @doc Stores sessions for modules written for Yaws. A session associates a module's data with a
%% random value, which the module sends as a cookie. Used by {@link yaws_api}.
%%
%% Sessions exist only in this process, and are lost when it exits or the node stops. A session ends when it has not been used for its lifetime, or
%% earlier if the table is full and a new session is created.
-module(yucan_yaws_session).
-behaviour(gen_server).

-export([start_link/0, new/3, find/1, replace/3, delete/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-define(SWEEP_MS, 60000).
%% The maximum number of sessions. Without a limit, clients that do not return cookies would create a session with each request.
-define(MOST, 100000).

-record(session, {opaque :: term(),
                  ttl_s :: non_neg_integer(),
                  deadline_s = 0 :: integer(),
                  %% The process to notify when the session ends.
                  cleanup :: pid() | undefined}).
%% The cookies are also stored in the order of their deadlines, because when the table is full, each
%% new session replaces the one with the earliest deadline.
-type sessions() :: {#{string() => #session{}}, Deadlines :: gb_sets:set({integer(), string()})}.

%% @doc Starts the process; called by yucan_yaws_sup.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @doc Creates a session with some data, and returns the value for its cookie. When the session ends, the process receives `{yaws_session_end,
%% timeout | normal, Cookie, Opaque}'.
-spec new(term(), TtlSeconds :: non_neg_integer(), pid() | undefined) -> string().
new(Opaque, Ttl, Cleanup) when is_integer(Ttl), Ttl >= 0 -> call({new, Opaque, Ttl, Cleanup}).

%% @doc Returns the data of a session and restarts its lifetime.
-spec find(string()) -> {ok, term()} | {error, no_session}.
find(Cookie) -> call({find, Cookie}).

%% @doc Replaces the data of a session. With `undefined', the process that is notified when the session ends does not change.
-spec replace(string(), term(), pid() | undefined) -> true | error.
replace(Cookie, Opaque, Cleanup) -> call({replace, Cookie, Opaque, Cleanup}).

%% @doc Ends a session, if it exists.
-spec delete(string()) -> true.
delete(Cookie) -> call({delete, Cookie}).

call(Request) ->
    _ = [yucan_yaws_app:ensure() || whereis(?MODULE) =:= undefined],
    gen_server:call(?MODULE, Request).

%% @private
-spec init([]) -> {ok, sessions()}.
init([]) ->
    _ = erlang:send_after(?SWEEP_MS, self(), sweep),
    {ok, {#{}, gb_sets:new()}}.

%% @private
-spec handle_call(term(), gen_server:from(), sessions()) -> {reply, term(), sessions()}.
handle_call({new, Opaque, Ttl, Cleanup}, _, Sessions) ->
    Cookie = binary_to_list(binary:encode_hex(crypto:strong_rand_bytes(16))),
    {reply, Cookie, used(Cookie, #session{opaque = Opaque, ttl_s = Ttl, cleanup = Cleanup}, with_room(Sessions))};
handle_call({find, Cookie}, _, Sessions) ->
    case living(Cookie, Sessions) of
        {ok, Session} -> {reply, {ok, Session#session.opaque}, used(Cookie, Session, Sessions)};
        none -> {reply, {error, no_session}, Sessions}
    end;
handle_call({replace, Cookie, Opaque, Cleanup}, _, Sessions) ->
    case living(Cookie, Sessions) of
        {ok, #session{cleanup = Before} = Session} ->
            Told = case Cleanup of undefined -> Before; _ -> Cleanup end,
            {reply, true, used(Cookie, Session#session{opaque = Opaque, cleanup = Told}, Sessions)};
        none -> {reply, error, Sessions}
    end;
handle_call({delete, Cookie}, _, {All, _} = Sessions) when is_map_key(Cookie, All) -> {reply, true, ended(normal, Cookie, Sessions)};
handle_call({delete, _}, _, Sessions) -> {reply, true, Sessions}.

%% @private
-spec handle_cast(term(), sessions()) -> {noreply, sessions()}.
handle_cast(_, Sessions) -> {noreply, Sessions}.

%% @private
-spec handle_info(term(), sessions()) -> {noreply, sessions()}.
handle_info(sweep, Sessions) ->
    _ = erlang:send_after(?SWEEP_MS, self(), sweep),
    {noreply, swept(Sessions)};
handle_info(_, Sessions) -> {noreply, Sessions}.

swept({All, Deadlines} = Sessions) ->
    case map_size(All) > 0 andalso gb_sets:smallest(Deadlines) of
        {Deadline, Cookie} -> case is_over(Deadline) of true -> swept(ended(timeout, Cookie, Sessions)); false -> Sessions end;
        false -> Sessions
    end.

%% Sessions that have timed out have earlier deadlines than all others, so they are removed first.
with_room({All, Deadlines} = Sessions) when map_size(All) >= ?MOST ->
    {_, Cookie} = gb_sets:smallest(Deadlines),
    ended(timeout, Cookie, Sessions);
with_room(Sessions) -> Sessions.

living(Cookie, {All, _}) ->
    case All of
        #{Cookie := #session{deadline_s = Deadline} = Session} -> case is_over(Deadline) of true -> none; false -> {ok, Session} end;
        #{} -> none
    end.

is_over(Deadline) -> erlang:monotonic_time(second) >= Deadline.

%% Adds a session, or restarts its lifetime.
used(Cookie, #session{ttl_s = Ttl, deadline_s = Before} = Session, {All, Deadlines}) ->
    Deadline = erlang:monotonic_time(second) + Ttl,
    {All#{Cookie => Session#session{deadline_s = Deadline}}, gb_sets:add_element({Deadline, Cookie}, gb_sets:del_element({Before, Cookie}, Deadlines))}.

ended(Why, Cookie, {All, Deadlines}) ->
    {#session{deadline_s = Deadline} = Session, Others} = maps:take(Cookie, All),
    _ = tell(Why, Cookie, Session),
    {Others, gb_sets:delete({Deadline, Cookie}, Deadlines)}.

tell(_, _, #session{cleanup = undefined}) -> ok;
tell(Why, Cookie, #session{cleanup = Pid, opaque = Opaque}) -> Pid ! {yaws_session_end, Why, Cookie, Opaque}.
