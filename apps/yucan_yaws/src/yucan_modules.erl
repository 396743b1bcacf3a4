%% SPDX-License-Identifier: Apache-2.0
%% @doc Deprecated name of yucan_yaws_loader, kept for one release.
-module(yucan_modules).

-export([own/1]).
-deprecated({'_', '_', "use yucan_yaws_loader"}).

%% @doc See {@link yucan_yaws_loader:own/1}.
-spec own(module()) -> module().
own(Module) -> yucan_yaws_loader:own(Module).
