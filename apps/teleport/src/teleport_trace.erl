%% SPDX-License-Identifier: Apache-2.0
%% @doc Trace context: the W3C `traceparent' of a process travels with its messages to other processes and nodes, in
%% the label of `seq_trace''s token. The VM propagates the token: the receiver has it while it handles the message, and
%% the messages that it sends in the meantime carry it as well. Receiving a message without a token clears it.
%%
%% A token set by other code is left unchanged, and then no context is propagated. Only contexts with the flag `sampled'
%% are propagated, so untraced messages cost nothing.
-module(teleport_trace).

-include_lib("kernel/include/logger.hrl").

-export([set/1, current/0, continue/1]).
-export([use/1, lent/1]).
-export_type([traceparent/0]).

-type traceparent() :: <<_:440>>.
%% Version, trace, span and flags, such as `00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'.

-define(OTEL, otel_propagator_trace_context).
-define(HEADER, <<"traceparent">>).

%% @doc Makes messages of the calling process carry this context until it receives its next message. With `none', or a
%% context that is not sampled, they carry none.
-spec set(traceparent() | none) -> ok | {error, other_token}.
set(Given) ->
    Given =:= none orelse is_valid(Given) orelse error({bad_traceparent, Given, "expected 55 bytes, version-trace-span-flags in lower-case hexadecimal digits, as of W3C"}),
    replaced(case Given =/= none andalso is_sampled(Given) of true -> {ok, Given}; false -> none end).

replaced(Context) ->
    case {is_ours(seq_trace:get_token(label)), Context} of
        {false, _} -> {error, other_token};
        {true, none} -> _ = seq_trace:set_token([]), ok;
        {true, {ok, Given}} -> _ = seq_trace:set_token(label, {?MODULE, Given}), ok
    end.

is_ours({label, {?MODULE, _}}) -> true;
is_ours(_) -> seq_trace:get_token() =:= [].

%% @doc Returns the context of the message that the calling process received last, or the one that it has set since.
-spec current() -> {ok, traceparent()} | none.
current() ->
    case seq_trace:get_token(label) of
        {label, {?MODULE, Given}} -> case is_valid(Given) of true -> {ok, Given}; false -> none end;
        _ -> none
    end.

%% @doc Runs a function whose OpenTelemetry spans become children of the span that came with the message. Without a
%% context, or without OpenTelemetry, it just runs the function.
-spec continue(fun(() -> Result)) -> Result.
continue(Fun) ->
    case current() of
        {ok, Given} -> continued(Given, Fun, code:ensure_loaded(?OTEL));
        none -> Fun()
    end.

continued(Given, Fun, {module, _}) ->
    Get = fun(Name, Carrier) -> proplists:get_value(Name, Carrier, undefined) end,
    Former = otel(otel_ctx, attach, [otel(?OTEL, extract, [otel(otel_ctx, get_current, []), [{?HEADER, Given}], fun proplists:get_keys/1, Get, []])]),
    try Fun() after otel(otel_ctx, detach, [Former]) end;
continued(_, Fun, _) -> Fun().

%% The library may be missing, so xref must not look for its functions.
otel(Module, Function, Arguments) -> apply(Module, Function, Arguments).

is_valid(<<Version:2/binary, $-, Trace:32/binary, $-, Span:16/binary, $-, Flags:2/binary>>) ->
    Digits = <<Version/binary, Trace/binary, Span/binary, Flags/binary>>,
    Version =/= <<"ff">> andalso is_not_zero(Trace) andalso is_not_zero(Span)
        andalso << <<C>> || <<C>> <= Digits, (C >= $0 andalso C =< $9) orelse (C >= $a andalso C =< $f) >> =:= Digits;
is_valid(_) -> false.

is_not_zero(Digits) -> Digits =/= binary:copy(<<$0>>, byte_size(Digits)).

is_sampled(<<_:53/binary, Flags/binary>>) -> binary_to_integer(Flags, 16) band 1 =:= 1.

%% @private Applies the option `trace'. OpenTelemetry's functions are looked up only once, because looking for a missing
%% module takes a long time.
-spec use(boolean()) -> ok.
use(Wanted) ->
    case Wanted andalso code:ensure_loaded(?OTEL) of
        false -> _ = persistent_term:erase(?MODULE), ok;
        {module, _} -> persistent_term:put(?MODULE, true);
        _ -> ?LOG_WARNING("teleport: the option trace has no effect: the application opentelemetry_api is not in the code path")
    end.

%% @private Runs a function whose messages carry the context of the caller's current span.
-spec lent(fun(() -> Result)) -> Result.
lent(Send) ->
    case persistent_term:get(?MODULE, false) andalso lend(otel(otel_ctx, get_current, [])) of
        {Former} -> try Send() after seq_trace:set_token(Former) end;
        _ -> Send()
    end.

lend(undefined) -> none;
lend(Context) ->
    case otel(?OTEL, inject, [Context, none, fun(?HEADER, Given, _) -> Given; (_, _, Found) -> Found end, []]) of
        none -> none;
        Given ->
            Former = seq_trace:get_token(),
            case is_valid(Given) andalso is_sampled(Given) andalso replaced({ok, Given}) of
                ok -> {Former};
                _ -> none
            end
    end.
