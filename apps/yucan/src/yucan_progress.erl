%% SPDX-License-Identifier: Apache-2.0
%% @doc Records how much of the response to the current request has been written. This is kept in the process dictionary, because a handler may write
%% from anywhere in its code.
-module(yucan_progress).

-export([begin_stream/1, written/0, wrote/1, end_stream/0, keep/1, kept/0, take/0, has_begun/0, has_streamed/0, has_streamed/1]).
-export_type([outcome/0, stream/0]).

%% The stream's head if it has not been sent yet, and the number of bytes of the body that have been
%% written.
-define(WRITTEN, '$yucan_written').
%% The result of a response that was sent in steps.
-define(ANSWERED, '$yucan_answered').
%% The time at which the last stream began.
-define(STREAMED, '$yucan_streamed').

%% Whether the connection stays open, and what is logged.
-type outcome() ::
    {keep | close, Status :: 0..999, Bytes :: non_neg_integer()}
    | {upgrade, fun((yucan_transport:socket(), binary()) -> term())}.

%% A stream that is written in steps.
-type stream() :: {open, Mode :: term(), keep | close, Status :: 200..999}.

%% @doc Records that a stream begins. Its head is sent with the first part of the body; `<<>>' means that the head has already been sent.
-spec begin_stream(Head :: term()) -> ok.
begin_stream(Head) ->
    _ = put(?STREAMED, erlang:monotonic_time(microsecond)),
    _ = put(?WRITTEN, {Head, 0}),
    ok.

%% @doc Returns the head if it is still to be sent, and the number of bytes of the body that have been written.
-spec written() -> undefined | {Head :: term(), Bytes :: non_neg_integer()}.
written() -> get(?WRITTEN).

%% @doc Records that the head and this number of bytes of the body have been written.
-spec wrote(Bytes :: pos_integer()) -> ok.
wrote(Bytes) -> _ = put(?WRITTEN, {<<>>, Bytes}), ok.

%% @doc Records that the stream has ended. Returns the same as written/0.
-spec end_stream() -> undefined | {Head :: term(), Bytes :: non_neg_integer()}.
end_stream() -> erase(?WRITTEN).

%% @doc Stores the result of a response that was sent in steps, until the handler returns `sent'.
-spec keep(outcome() | stream()) -> ok.
keep(Result) -> _ = put(?ANSWERED, Result), ok.

%% @doc Returns the result that keep/1 stored.
-spec kept() -> undefined | outcome() | stream().
kept() -> get(?ANSWERED).

%% @doc Returns the result that keep/1 stored, and deletes it.
-spec take() -> undefined | outcome() | stream().
take() -> erase(?ANSWERED).

%% @doc Returns whether any part of the response to this request has been sent.
-spec has_begun() -> boolean().
has_begun() ->
    case get(?WRITTEN) of
        {<<>>, _} -> true;
        _ -> get(?ANSWERED) =/= undefined
    end.

%% @doc Returns whether this process has ever sent a stream, whose source may send messages at any time.
-spec has_streamed() -> boolean().
has_streamed() -> get(?STREAMED) =/= undefined.

%% @doc Returns whether this process has sent a stream in response to the request that arrived at
%% `Since' (in us).
-spec has_streamed(Since :: integer()) -> boolean().
has_streamed(Since) -> has_streamed() andalso get(?STREAMED) >= Since.
