%% SPDX-License-Identifier: Apache-2.0
%% @doc The body of the request that this process is serving. It is read on demand, with limits on size and time.
%%
%% yucan_conn opens the body before the handler runs and closes it after the response, and handlers read it through yucan_req. The read position is in
%% the process dictionary, so handlers need not pass it through their own code.
-module(yucan_body).

-export([open/3, close/1, all/1, read/1, gather/3, trailers/0, outlook/0]).

-include("yucan_internal.hrl").

-define(KEY, '$yucan_body').
-define(PART_BYTES, 131072).
%% If a handler reads an entire body of up to this size, a single call reads it into a binary of the announced length. Larger bodies are read in
%% parts, because a client could announce a large body, never send it, and so waste memory.
-define(WHOLE_BYTES, 1048576).
%% After a body of this size the process collects garbage explicitly, because the connection may be idle from then on and never do so by itself.
-define(LARGE_BYTES, 65536).
%% How long a client may stay silent in the middle of a body that no handler reads.
-define(SILENCE_MS, 5000).

-record(body, {
    socket :: yucan_transport:socket(),
    limits :: #limits{},
    %% What remains to be read: a number of bytes, chunks (with the parser's state), everything until the transport reports the end, or nothing.
    left :: {length, non_neg_integer()} | {chunks, yucan_chunk:state()} | stream | done | {failed, yucan_req:body_error()},
    buffer :: binary(),
    %% True while the client waits for 100 Continue.
    expect :: boolean(),
    started :: undefined | integer(),
    deadline = infinity :: infinity | integer(),
    received = 0 :: non_neg_integer(),
    trailers = [] :: [{binary(), binary()}]
}).

%% @doc Opens the body. `Buffer' contains the bytes that arrived after the head; the rest must be read with recv.
-spec open(#req{}, Buffer :: binary(), #limits{}) -> ok.
open(#req{body = Framing, expect = Expect, version = Version, conn = #conn{socket = Socket}}, Buffer, Limits) ->
    Left = case Framing of
        chunked when Version =:= 20 -> stream;
        chunked -> {chunks, yucan_chunk:new()};
        Length -> Length
    end,
    Wait = Expect andalso Version =/= 20 andalso Buffer =:= <<>> andalso Framing =/= {length, 0},
    _ = put(?KEY, #body{socket = Socket, limits = Limits, left = Left, buffer = Buffer, expect = Wait}),
    ok.

%% @doc Drains what the handler did not read, up to a limit. Returns the bytes after the body, or how long to linger.
-spec close(AlreadyEnding :: boolean()) -> {keep, Rest :: binary()} | {linger, Ms :: non_neg_integer()}.
close(Ending) ->
    #body{socket = Socket, limits = #limits{drain_bytes = Max, linger_ms = Ms}, buffer = Buffer, received = Received} = Body = get(?KEY),
    Result = case Body of
        #body{left = Left, buffer = Rest} when Left =:= done; Left =:= {length, 0} -> {keep, Rest};
        _ when Ending -> {linger, Ms};
        %% The handler never read the body, so the client may or may not send it (RFC 9110, 10.1.1), and it is unknown where the next request starts.
        #body{expect = true} -> {linger, Ms};
        %% The minimum rate is measured from here on, so that a client cannot send the rest slowly
        %% just because the handler read the beginning fast. If the response was an event stream, a
        %% part of the body may have arrived as messages.
        _ -> drain(Body#body{buffer = yucan_transport:pause(Socket, Buffer), started = undefined, received = 0,
                             deadline = erlang:monotonic_time(millisecond) + Ms}, Max)
    end,
    _ = erase(?KEY),
    _ = [erlang:garbage_collect() || Received >= ?LARGE_BYTES],
    Result.

drain(#body{left = Left, buffer = Rest}, _) when Left =:= done; Left =:= {length, 0} -> {keep, Rest};
drain(#body{left = {length, Length}, buffer = Buffer, deadline = Deadline}, Max) when Length - byte_size(Buffer) > Max -> {linger, until(Deadline)};
drain(#body{deadline = Deadline} = Body, Max) ->
    case next(Body, ?PART_BYTES, min(?SILENCE_MS, until(Deadline))) of
        {_, Data, Body1} when byte_size(Data) =< Max -> drain(Body1, Max - byte_size(Data));
        %% The client has already used up the time allowed for the rest.
        {error, timeout} -> {linger, 0};
        _ -> {linger, until(Deadline)}
    end.

until(Deadline) -> max(0, Deadline - erlang:monotonic_time(millisecond)).

%% @doc Returns whether another request can follow on this connection. Called when the head of the response is written.
-spec outlook() -> keep | close.
outlook() ->
    case get(?KEY) of
        #body{left = {failed, _}} -> close;
        #body{expect = true} -> close;
        #body{left = {length, Left}, buffer = Buffer, limits = #limits{drain_bytes = Max}} when Left - byte_size(Buffer) > Max -> close;
        _ -> keep
    end.

%% @doc Reads the entire body.
-spec all(MaxBytes :: default | non_neg_integer()) -> {ok, binary()} | {error, yucan_req:body_error()}.
all(default) ->
    #body{limits = Limits} = get(?KEY),
    all(Limits#limits.body_bytes);
all(Max) ->
    case get(?KEY) of
        #body{left = {length, Length}} when Length > Max -> fail(too_large);
        #body{left = {length, Length}, buffer = Buffer} = Body when Length > byte_size(Buffer), Length =< ?WHOLE_BYTES ->
            at_once(Length, Max, permit(Body));
        _ -> bounded(Max)
    end.

at_once(Length, Max, #body{socket = Socket, buffer = Buffer, limits = #limits{read_ms = Timeout}} = Body) ->
    Started = erlang:monotonic_time(millisecond),
    case yucan_transport:recv_whole(Socket, Buffer, Length, Timeout) of
        {ok, Data} ->
            _ = put(?KEY, Body#body{left = done, buffer = <<>>, received = Length}),
            {ok, Data};
        {partial, Data} ->
            ok = yucan_transport:setopts(Socket, [{buffer, ?PART_BYTES}]),
            _ = put(?KEY, Body#body{buffer = Data, received = byte_size(Data), started = Started}),
            bounded(Max);
        unsupported ->
            _ = put(?KEY, Body),
            bounded(Max);
        {error, timeout} -> fail(timeout);
        {error, _} -> fail(closed)
    end.

bounded(Max) ->
    case gather(Max + 1, <<>>, #{}) of
        {_, Data} when byte_size(Data) > Max -> fail(too_large);
        Result -> Result
    end.

%% @doc See yucan_req:gather/4. Uses one growing binary, because a list of small parts would take many times as much memory as their content.
-spec gather(Enough :: pos_integer() | infinity, Before :: binary(), #{max => pos_integer(), timeout => pos_integer()}) ->
    {more | ok, binary()} | {error, yucan_req:body_error()}.
gather(Enough, Before, _) when byte_size(Before) >= Enough -> {more, Before};
gather(Enough, Before, Options) ->
    Read = case Options of
        #{max := Max} when Enough =/= infinity -> read(Options#{max := min(Max, Enough - byte_size(Before))});
        _ -> read(Options)
    end,
    case Read of
        {more, Data} -> gather(Enough, <<Before/binary, Data/binary>>, Options);
        {ok, Data} when Before =:= <<>> -> {ok, Data};
        {ok, Data} -> {ok, <<Before/binary, Data/binary>>};
        Error -> Error
    end.

fail(Reason) ->
    Body = get(?KEY),
    _ = put(?KEY, Body#body{left = {failed, Reason}}),
    {error, Reason}.

%% @doc Reads the next part; see yucan_req:read/2.
-spec read(#{max => pos_integer(), timeout => pos_integer()}) -> {more | ok, binary()} | {error, yucan_req:body_error()}.
read(Options) ->
    #body{limits = Limits} = Body = get(?KEY),
    Timeout = maps:get(timeout, Options, Limits#limits.read_ms),
    case next(permit(Body), maps:get(max, Options, ?PART_BYTES), Timeout) of
        {Kind, Data, Body1} -> _ = put(?KEY, Body1), {Kind, Data};
        {error, Reason} -> fail(Reason)
    end.

%% Once the response has begun, 100 Continue would become a part of it.
permit(#body{expect = true, socket = Socket} = Body) ->
    case yucan_progress:has_begun() of
        true -> Body;
        false ->
            _ = yucan_transport:send(Socket, <<"HTTP/1.1 100 Continue\r\n\r\n">>),
            Body#body{expect = false}
    end;
permit(Body) -> Body.

next(#body{left = done} = Body, _, _) -> {ok, <<>>, Body};
next(#body{left = {failed, Reason}}, _, _) -> {error, Reason};
next(#body{left = {length, Left}, buffer = Buffer} = Body, Max, _) when byte_size(Buffer) >= Left, Left =< Max ->
    <<Data:Left/binary, Rest/binary>> = Buffer,
    {ok, Data, Body#body{left = done, buffer = Rest}};
next(#body{left = {length, Left}, buffer = Buffer} = Body, Max, _) when Buffer =/= <<>> ->
    Size = lists:min([Max, Left, byte_size(Buffer)]),
    <<Data:Size/binary, Rest/binary>> = Buffer,
    {more, Data, Body#body{left = {length, Left - Size}, buffer = Rest}};
next(#body{left = stream, buffer = Buffer} = Body, Max, _) when Buffer =/= <<>> ->
    Size = min(Max, byte_size(Buffer)),
    <<Data:Size/binary, Rest/binary>> = Buffer,
    {more, Data, Body#body{buffer = Rest}};
next(#body{left = {chunks, State}, buffer = Buffer, limits = Limits} = Body, Max, Timeout) ->
    case yucan_chunk:parse(State, Buffer, Max, Limits) of
        {data, Data, State1, Rest} -> {more, Data, Body#body{left = {chunks, State1}, buffer = Rest}};
        {done, Trailers, Rest} -> {ok, <<>>, Body#body{left = done, trailers = Trailers, buffer = Rest}};
        {more, State1, Rest} -> receive_more(Body#body{left = {chunks, State1}, buffer = Rest}, Max, Timeout);
        {error, Reason} -> {error, Reason}
    end;
next(Body, Max, Timeout) -> receive_more(Body, Max, Timeout).

receive_more(#body{started = undefined, socket = Socket} = Body, Max, Timeout) ->
    ok = yucan_transport:setopts(Socket, [{buffer, ?PART_BYTES}]),
    receive_more(Body#body{started = erlang:monotonic_time(millisecond)}, Max, Timeout);
receive_more(#body{left = Left, socket = Socket, buffer = Buffer} = Body, Max, Timeout) ->
    case yucan_transport:read(Socket, Timeout) of
        {ok, Data} when Buffer =:= <<>> -> received(Body#body{buffer = Data}, byte_size(Data), Max, Timeout);
        {ok, Data} -> received(Body#body{buffer = <<Buffer/binary, Data/binary>>}, byte_size(Data), Max, Timeout);
        {eof, Trailers} when Left =:= stream -> {ok, <<>>, Body#body{left = done, trailers = Trailers}};
        {error, timeout} -> {error, timeout};
        _ -> {error, closed}
    end.

received(#body{received = Before, started = Started, deadline = Deadline, limits = Limits} = Body, Size, Max, Timeout) ->
    Now = erlang:monotonic_time(millisecond),
    Elapsed = Now - Started,
    Received = Before + Size,
    TooSlow = Elapsed > Limits#limits.read_ms andalso Received * 1000 < Limits#limits.min_body_rate * Elapsed,
    case TooSlow orelse Now > Deadline of
        true -> {error, timeout};
        false -> next(Body#body{received = Received}, Max, Timeout)
    end.

%% @doc Returns the trailers of a chunked body that has been read.
-spec trailers() -> [{binary(), binary()}].
trailers() ->
    case get(?KEY) of
        #body{trailers = Trailers} -> Trailers;
        undefined -> []
    end.
