%% SPDX-License-Identifier: Apache-2.0
%% @doc Deprecated name of yucan_yaws_config, kept for one release.
-module(yucan_conf).

-export([load/1, read/1]).
-deprecated({'_', '_', "use yucan_yaws_config"}).

%% @doc See {@link yucan_yaws_config:load/1}.
-spec load(file:filename()) -> {ok, map()} | {error, [Line :: unicode:chardata(), ...]}.
load(File) -> yucan_yaws_config:load(File).

%% @doc See {@link yucan_yaws_config:read/1}.
-spec read(file:filename()) -> {ok, yucan_yaws_config:conf()} | {error, [yucan_yaws_config:problem(), ...]}.
read(File) -> yucan_yaws_config:read(File).
