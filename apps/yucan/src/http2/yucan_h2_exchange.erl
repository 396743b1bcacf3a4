%% SPDX-License-Identifier: Apache-2.0
%% @doc The process of an HTTP/2 request, in which the handler runs. It lives as long as its handler runs, but no longer than the connection.
-module(yucan_h2_exchange).

-export([start/3, run/3]).

-include("yucan_internal.hrl").

%% The initial heap size, in words. Allocating and releasing a larger heap would cost more than a collection.
-define(WORDS, 377).

%% @doc Starts the process, linked to the caller. `Served' is the number of earlier requests on the connection.
-spec start(#req{}, Served :: non_neg_integer(), yucan_h2_stream:stream()) -> pid().
start(Req, Served, Stream) -> spawn_opt(?MODULE, run, [Req, Served, Stream], [link, {min_heap_size, ?WORDS}]).

%% @private
-spec run(#req{}, non_neg_integer(), yucan_h2_stream:stream()) -> term().
run(#req{conn = Conn, body = Body} = Sent, Served, Stream) ->
    Site = persistent_term:get({yucan, Conn#conn.server}),
    Began = yucan_exchange:began(Site),
    Req = yucan_exchange:received(Sent, Site),
    Start = yucan_metrics:start(Served),
    _ = [yucan_body:open(Req, <<>>, Site#site.limits) || Body =/= none],
    Outcome = answer(Req, Site),
    %% If the client disconnects now, this process would be killed, but it still has to count and log the request.
    _ = [process_flag(trap_exit, true) || element(1, Outcome) =/= upgrade],
    yucan_exchange:account(Outcome, Req, Began, Start, Site),
    case Outcome of
        {upgrade, Function} -> taken_over(Function, Req, Stream);
        {close, _, _} -> exit({shutdown, no_answer});
        _ -> ok
    end.

answer(Req, Site) ->
    try
        yucan_h2_reply:send(yucan_exchange:answer(Req, Site), Req, Site)
    catch
        Class:Reason:Stack -> yucan_h2_reply:send(yucan_exchange:failed(Class, Reason, Stack, Req, Site), Req, Site)
    end.

%% When the function that has taken over the stream returns, the stream ends (see yucan_conn:left/2).
taken_over(Function, #req{conn = #conn{socket = Socket}} = Req, Stream) ->
    try
        _ = Function(Socket, <<>>)
    catch
        Class:Reason:Stack -> yucan_events:crash(Class, Reason, Stack, Req)
    end,
    yucan_h2_stream:fin(Stream).
