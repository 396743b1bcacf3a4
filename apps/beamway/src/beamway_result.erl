%% SPDX-License-Identifier: Apache-2.0
%% @doc Chains steps that may fail. The module has no state of its own.
-module(beamway_result).

-export([then/2]).

%% @doc Continues with the values that a step has returned. If the step has failed, its error is the result.
-spec then(ok | {ok, Value} | {ok, Value, Other} | {error, Reason}, fun(() -> Result) | fun((Value) -> Result) | fun((Value, Other) -> Result)) ->
          Result | {error, Reason}.
then(ok, Continue) -> Continue();
then({ok, Value}, Continue) -> Continue(Value);
then({ok, Value, Other}, Continue) -> Continue(Value, Other);
then({error, Reason}, _Continue) -> {error, Reason}.
