%% SPDX-License-Identifier: Apache-2.0
%% @doc A request and its response, whichever protocol carries them. This module returns the handler's response as data, and counts and logs it. The
%% process that has read the request (yucan_conn, yucan_h2_exchange) writes the response in its protocol.
-module(yucan_exchange).

-export([began/1, received/2, answer/2, ready/3, failed/5, account/5]).
-export_type([answer/0]).

%% Functions that each request calls (see yucan_reply).
-compile({inline, [only/1, respond/2]}).

-include("yucan_internal.hrl").

%% A response that still has to be written or, if nothing remains to be written, the outcome.
-type answer() :: {Status :: integer(), yucan_handler:headers(), Body :: term()} | {done, yucan_progress:outcome()}.

%% @doc Returns the time at which a request arrived, in us, or 0 if neither an access log nor a function for events needs it.
-spec began(#site{}) -> integer().
began(#site{log = none, on_event = none}) -> 0;
began(_) -> os:system_time(microsecond).

%% @doc Applies the headers of trusted proxies to a request, and adds the request ID.
-spec received(#req{}, #site{}) -> #req{}.
received(Req, #site{trusted = [], request_id = none}) -> Req;
received(Req, Site) -> yucan_forwarded:received(Req, Site).

%% @doc Calls the handler, and returns its response. Exceptions in the handler are not caught here; see failed/5.
-spec answer(#req{}, #site{}) -> answer().
answer(#req{id = Id} = Req, Site) ->
    case only(respond(Req, Site)) of
        %% Most responses are already complete, and this clause saves two calls for them.
        {Status, _, _} = Answer when is_integer(Status), Id =:= none -> Answer;
        Response -> ready(Response, Req, Site)
    end.

%% Once a response has been sent, a second one would be mistaken for the response to the next
%% request. `close' is not a response.
only(Response) when Response =:= sent; Response =:= close -> Response;
only(Response) ->
    yucan_progress:has_begun() andalso error({bad_response, already_sent}),
    Response.

respond(Req, #site{limits = #limits{address_requests = infinity}} = Site) -> yucan_router:respond(Req, Site);
respond(Req, #site{limits = #limits{address_requests = PerSecond}, quota = Quota} = Site) ->
    Key = yucan_quota:key(yucan_req:peer(Req), Site#site.trusted),
    case Key =:= none orelse yucan_quota:ask(Quota, Key, PerSecond, erlang:monotonic_time(nanosecond)) of
        {wait, Seconds} -> yucan_error:page_with(429, [{<<"retry-after">>, integer_to_binary(Seconds)}]);
        _ -> yucan_router:respond(Req, Site)
    end.

%% @doc Converts what a handler returns to what a protocol can write. The writer checks the status, headers and body.
-spec ready(yucan_handler:response() | yucan_stream:answer(), #req{}, #site{}) -> answer().
ready(Response, Req, Site) -> written(with_id(Response, Req, Site), Req, Site).

with_id(Response, #req{id = none}, _) -> Response;
with_id({Status, Headers, Body}, #req{id = Id}, #site{request_id = Name}) when is_list(Headers) -> {Status, [{Name, Id} | lists:keydelete(Name, 1, Headers)], Body};
with_id({websocket, Module, Argument, Options}, #req{id = Id}, #site{request_id = Name}) when is_map(Options) ->
    {websocket, Module, Argument, Options#{headers => [{Name, Id} | maps:get(headers, Options, [])]}};
with_id(Response, _, _) -> Response.

written({Status, _, _} = Answer, _, _) when is_integer(Status) -> Answer;
written({websocket, Module, Argument, Options}, Req, #site{limits = Limits} = Site) when is_atom(Module), is_map(Options) ->
    Answer = yucan_ws:upgrade(Req, Module, Argument, Options, Limits),
    _ = [yucan_metrics:add(Site#site.metrics, websockets) || element(1, Answer) =:= 101],
    Answer;
written(close, _, _) -> {done, {close, 0, 0}};
written(sent, Req, _) -> {done, yucan_stream:outcome(Req)};
written(Other, _, _) -> error({bad_response, Other}).

%% @doc Reports that the handler has failed, or that its response cannot be written, and returns the response for the client.
-spec failed(error | exit | throw, Reason :: term(), Stack :: list(), #req{}, #site{}) -> answer().
failed(Class, Reason, Stack, Req, Site) ->
    yucan_events:crash(Class, Reason, Stack, Req),
    case yucan_stream:cut() of
        none -> with_id(yucan_error:page(500), Req, Site);
        Outcome -> {done, Outcome}
    end.

%% @doc Counts and logs a response.
-spec account(yucan_progress:outcome(), #req{}, Began :: integer(), Start :: none | integer(), #site{}) -> ok.
account({upgrade, _}, Req, Began, _, Site) -> account({keep, 101, 0}, Req, Began, none, Site);
account({_, Status, Bytes}, Req, Began, Start, #site{metrics = Metrics, log = Log} = Site) ->
    yucan_metrics:answered(Metrics, Status, Bytes),
    %% A stream lasts for as long as its handler wants, so its duration is not recorded.
    _ = [yucan_metrics:took(Metrics, Start) || Start =/= none, not yucan_progress:has_streamed(Start)],
    _ = [yucan_log:answered(Log, Req, Status, Bytes, Began) || Log =/= none],
    _ = [yucan_events:answered(Site, Req, Status, {Bytes, os:system_time(microsecond) - Began}) || Site#site.on_event =/= none],
    ok.
