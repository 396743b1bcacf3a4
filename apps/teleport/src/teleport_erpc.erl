%% SPDX-License-Identifier: Apache-2.0
%% @doc The interface of erpc, as version 0.2.0 had it over lanes. Each function now calls erpc's function of that
%% name. The next version will no longer have this module.
-module(teleport_erpc).

-export(['$handle_undefined_function'/2]).

%% @private
-spec '$handle_undefined_function'(atom(), [term()]) -> term().
'$handle_undefined_function'(Function, Args) -> teleport_old:call(?MODULE, Function, Args).
