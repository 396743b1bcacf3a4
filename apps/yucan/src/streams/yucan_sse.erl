%% SPDX-License-Identifier: Apache-2.0
%% @doc Server-sent events (HTML standard, 9.2): a streamed response whose process waits for
%% messages and sends them to the client as events.
%%
%% ```
%% handle(Req, _) ->
%%     yucan_sse:response(Req, [], fun(start, S) -> pg:join(news, self()), {ok, S};
%%                                    ({info, {news, Text}}, S) -> {send, #{data => Text}, S} end, none).
%% '''
%% A comment every 15 s keeps proxies from closing the connection. Sending comments and data also reveals whether the client has disconnected.
-module(yucan_sse).

-export([response/4, encode/1]).
-export_type([event/0]).

-type event() :: #{data => iodata(), event => iodata(), id => iodata(), retry => non_neg_integer(), comment => iodata()}.
%% The fields of an event; `retry' is in milliseconds, and a `comment' is ignored by browsers.
-type step() :: {send, event() | [event()], State :: term()} | {ok, State :: term()} | stop.
%% The results mean: send events and continue, continue without sending, or end the response.

-define(ALIVE_MS, 15000).

%% @doc Returns the response for a handler. The function is called with `start', and then with `{info, Message}' for
%% each message that the process receives. Its second argument is the state that it last returned, or `State' in the
%% first call. The headers are added to those that a stream of events needs.
-spec response(yucan_req:req(), yucan_handler:headers(), fun((start | {info, term()}, State :: term()) -> step()), State :: term()) ->
    yucan_handler:response().
response(Req, Headers, Function, State) ->
    Own = [{<<"content-type">>, <<"text/event-stream">>}, {<<"cache-control">>, <<"no-cache">>}, {<<"x-accel-buffering">>, <<"no">>}],
    Socket = yucan_req:socket(Req),
    {200, Own ++ Headers, {stream, fun(Write) -> start(Write, Socket, Function, State) end}}.

start(Write, Socket, Function, State) ->
    case Write(encode(#{comment => <<"ok">>})) of
        ok ->
            %% Data from the client arrives as messages, so that the process is also notified when the client disconnects.
            _ = yucan_transport:arm(Socket, 1),
            step(Function(start, State), {Write, Socket, Function}, alive_until(), []);
        {error, _} -> ok
    end.

alive_until() -> erlang:monotonic_time(millisecond) + ?ALIVE_MS.

%% `Kept' contains messages with data from the client, which belong to the next request. `Until' is
%% the time at which the next comment is due; messages that cause no event do not postpone it.
step({send, Events, State}, {Write, _, _} = Stream, _, Kept) ->
    case Write(encode(Events)) of
        ok -> wait(State, Stream, alive_until(), Kept);
        {error, _} -> ok
    end;
step({ok, State}, Stream, Until, Kept) -> wait(State, Stream, Until, Kept);
step(stop, _, _, Kept) -> give_back(Kept).

wait(State, Stream, Until, Kept) -> wait(Until - erlang:monotonic_time(millisecond), State, Stream, Until, Kept).

wait(Left, State, Stream, Until, Kept) when Left =< 0 ->
    %% This process is idle most of the time, so the memory used by the last large event would otherwise stay allocated.
    true = erlang:garbage_collect(),
    step({send, #{comment => <<>>}, State}, Stream, Until, Kept);
wait(Left, State, {_, Socket, Function} = Stream, Until, Kept) ->
    receive
        {yucan, drain} = Message -> give_back([Message | Kept]);
        Message ->
            case yucan_transport:event(Message, Socket) of
                other -> step(Function({info, Message}, State), Stream, Until, Kept);
                closed -> give_back([Message | Kept]);
                _ -> wait(State, Stream, Until, [Message | Kept])
            end
    after Left ->
        wait(0, State, Stream, Until, Kept)
    end.

%% Puts the kept messages back into the mailbox, before any messages that have arrived since.
give_back([]) -> ok;
give_back(Kept) -> lists:foreach(fun(Message) -> self() ! Message end, lists:reverse(Kept, waiting())).

waiting() -> receive Message -> [Message | waiting()] after 0 -> [] end.

%% @doc Formats events as text. A line end in a name or ID would start a new field, so it is removed.
-spec encode(event() | [event()]) -> iodata().
encode(Events) when is_list(Events) -> [encode(Event) || Event <- Events];
encode(Event) -> [[field(Name, Value) || {Name, Value} <- lists:sort(maps:to_list(Event))], $\n].

field(data, Value) -> [[<<"data: ">>, Line, $\n] || Line <- lines(iolist_to_binary(Value))];
field(comment, Value) -> [<<": ">>, one_line(Value), $\n];
field(retry, Ms) -> [<<"retry: ">>, integer_to_binary(Ms), $\n];
field(Name, Value) when Name =:= event; Name =:= id -> [atom_to_binary(Name), <<": ">>, one_line(Value), $\n].

%% Most texts have only one line, and checking for that is much faster than splitting.
lines(Text) ->
    case binary:match(Text, [<<"\r">>, <<"\n">>]) of
        nomatch -> [Text];
        _ -> re:split(Text, <<"\r\n|\r|\n">>)
    end.

one_line(Value) -> re:replace(Value, <<"[\r\n\\x00]">>, <<>>, [global]).
