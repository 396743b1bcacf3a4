%% SPDX-License-Identifier: Apache-2.0
%% @doc Handles bodies that other processes write in parts, for streamcontent and similar results of out/1.
%%
%% The process of the connection receives the parts as messages. The blocking functions of yaws_api return when the client has accepted the part, or
%% return `{error, closed}'.
-module(yucan_yaws_stream).

-export([response/5, deliver/2, deliver_blocking/2, finish/1]).

-define(TIMEOUT_MS, 30000).
-define(LOOK_MS, 1000).
-define(CALL_MS, 60000).

%% @doc Returns the response, which runs until the stream ends or has been silent for too long, or until the client disconnects. For HEAD, no parts
%% are accepted: the writer gets an error, or is notified that this process has exited.
-spec response(yucan_req:req(), Status :: 100..999, yucan_handler:headers(), First :: iodata(),
               #{pid => pid(), timeout => timeout(), size => non_neg_integer()}) -> yucan_handler:response().
response(Req, Status, Headers, First, Options) ->
    Sized = case Options of
                #{size := Size} -> [{<<"content-length">>, integer_to_binary(Size)} | Headers];
                #{} -> Headers
            end,
    case yucan_req:method(Req) of
        <<"HEAD">> ->
            ok = discard(Options),
            {Status, [{<<"connection">>, <<"close">>} | Sized], {stream, fun(_) -> ok end}};
        _ -> {Status, Sized, {stream, fun(Write) -> run(Req, First, Options, Write) end}}
    end.

run(Req, First, Options, Write) ->
    Monitor = case Options of
        #{pid := Pid} -> Pid ! {ok, self()}, erlang:monitor(process, Pid);
        #{} -> none
    end,
    Timeout = maps:get(timeout, Options, ?TIMEOUT_MS),
    Result = case iolist_size(First) of
                 0 -> loop(Req, Monitor, Timeout, Timeout, Write);
                 _ -> written(Write(First), Req, Monitor, Timeout, Write)
             end,
    _ = [erlang:demonitor(Monitor, [flush]) || is_reference(Monitor)],
    ended(Result, Options).

written(ok, Req, Monitor, Timeout, Write) -> loop(Req, Monitor, Timeout, Timeout, Write);
written({error, Reason}, _, _, _, _) -> {error, Reason}.

loop(Req, Monitor, Timeout, Left, Write) ->
    receive
        {yucan_stream, data, Data} ->
            written(Write(Data), Req, Monitor, Timeout, Write);
        {yucan_stream, data, Data, {Pid, Ref}} ->
            Result = Write(Data),
            Pid ! {Ref, Result},
            written(Result, Req, Monitor, Timeout, Write);
        {yucan_stream, finish} ->
            ok;
        {'DOWN', Monitor, process, _, Reason} ->
            {error, {writer, Reason}}
    after slice(Left) ->
        silent(Req, Monitor, Timeout, Left, Write)
    end.

slice(infinity) -> ?LOOK_MS;
slice(Left) -> min(Left, ?LOOK_MS).

silent(Req, Monitor, Timeout, Left, Write) ->
    case yucan_transport:is_closed(yucan_req:socket(Req)) of
        true -> {error, closed};
        false when Left =:= infinity -> loop(Req, Monitor, Timeout, infinity, Write);
        false when Left > ?LOOK_MS -> loop(Req, Monitor, Timeout, Left - ?LOOK_MS, Write);
        false -> {error, timeout}
    end.

%% Ends the stream. A normal exit of the writer is not an error.
ended(ok, _) -> ok;
ended({error, {writer, normal}}, _) -> ok;
ended({error, Reason}, Options) ->
    ok = discard(Options),
    exit({shutdown, Reason}).

%% The message has the same name as in Yaws.
discard(#{pid := Pid}) ->
    Pid ! {discard, self()},
    ok;
discard(_) -> ok.

%% @doc Sends a part of the stream without waiting. Use this function only for a few small parts.
-spec deliver(pid(), iodata()) -> ok.
deliver(Pid, Data) ->
    Pid ! {yucan_stream, data, Data},
    ok.

%% @doc Sends a part of the stream, and returns when the client has accepted it.
-spec deliver_blocking(pid(), iodata()) -> ok | {error, closed | timeout}.
deliver_blocking(Pid, Data) ->
    Ref = erlang:monitor(process, Pid),
    Pid ! {yucan_stream, data, Data, {self(), Ref}},
    receive
        {Ref, Result} ->
            true = erlang:demonitor(Ref, [flush]),
            Result;
        {'DOWN', Ref, process, _, _} ->
            {error, closed}
    after ?CALL_MS ->
        true = erlang:demonitor(Ref, [flush]),
        {error, timeout}
    end.

%% @doc Reports that the last part has been sent.
-spec finish(pid()) -> ok.
finish(Pid) ->
    Pid ! {yucan_stream, finish},
    ok.
