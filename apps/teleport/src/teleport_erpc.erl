%% SPDX-License-Identifier: Apache-2.0
%% @doc The erpc interface that version 0.2.0 implemented over lanes. Each function now calls the erpc function of the
%% same name. This module will be removed in the next version.
-module(teleport_erpc).

-export(['$handle_undefined_function'/2]).

%% @private
-spec '$handle_undefined_function'(atom(), [term()]) -> term().
'$handle_undefined_function'(Function, Args) -> teleport_old:call(?MODULE, Function, Args).
