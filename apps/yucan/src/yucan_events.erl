%% SPDX-License-Identifier: Apache-2.0
%% @doc What the server tells the log of the node: crashes of handlers as errors, refused requests at debug level.
%%
%% All that yucan logs goes through here. No event has a logger domain: OTP's default handler drops every domain but its own.
-module(yucan_events).

-export([crash/4, refused/3, warning/2, error/2]).

-include("yucan_internal.hrl").
-include_lib("kernel/include/logger.hrl").

%% @doc A handler crashed, or answered with something that is no response.
-spec crash(Class :: atom(), Reason :: term(), Stack :: list(), #req{}) -> ok.
crash(Class, Reason, Stack, #req{method = Method, target = Target, conn = #conn{server = Server}}) ->
    ?LOG_ERROR("yucan ~ts: the handler failed for ~ts ~ts: ~0tP~n~0tP",
               [Server, Method, Target, {Class, Reason}, 30, Stack, 40]).

%% @doc Something that is no valid request was answered with this status.
-spec refused(Status :: integer(), Reason :: atom(), #conn{}) -> ok.
refused(Status, Reason, #conn{server = Server}) ->
    ?LOG_DEBUG("yucan ~ts: refused ~b, ~ts", [Server, Status, Reason]).

%% @doc Something that an operator should know.
-spec warning(io:format(), [term()]) -> ok.
warning(Format, Arguments) ->
    ?LOG_WARNING("yucan: " ++ Format, Arguments).

%% @doc Something that an operator must mend.
-spec error(io:format(), [term()]) -> ok.
error(Format, Arguments) ->
    ?LOG_ERROR("yucan: " ++ Format, Arguments).
