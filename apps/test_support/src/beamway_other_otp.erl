%% SPDX-License-Identifier: Apache-2.0
%% @doc Runs some of the nodes on a different OTP release from the runner's. Used by {@link beamway_peer}.
%%
%% `BEAMWAY_OTHER_ERL' in the environment is a program with its arguments, separated by spaces, that runs the other OTP's `erl'.
%% `BEAMWAY_OTHER_EBIN' is the Beamway that was built for it. If they are set, every second one of the nodes that run at the same time uses the
%% other OTP, so every suite tests the mixture. With `BEAMWAY_OTHER_FIRST=1' the first node uses the other OTP. The runner's OTP must be the
%% older one, because it compiles the tests, which run on both.
%%
%% An OTP that is more than two releases newer does not load what the runner has compiled. In that case `BEAMWAY_OTHER_ROOT' is a checkout in
%% which everything was built with that OTP, and a suite cannot send funs to its nodes.
-module(beamway_other_otp).

-export([is_there/0, choose/2, erl/0, ebin/0, tests/0]).

-export_type([otp/0]).

-type otp() :: own | other.

%% @doc Returns whether the environment specifies another OTP.
-spec is_there() -> boolean().
is_there() ->
    os:getenv("BEAMWAY_OTHER_ERL", "") =/= "".

%% @doc Returns the OTP for a new node if this many others are running. A node with a wrapper gets the runner's OTP because the other OTP may not run
%% under the wrapper, and so does a node with a different build of beamway, because that was built with the runner's OTP.
-spec choose(beamway_peer:options(), fun(() -> non_neg_integer())) -> otp().
choose(#{otp := Otp}, _Living) -> Otp;
choose(#{wrapper := _}, _Living) -> own;
choose(#{ebin := _}, _Living) -> own;
choose(_, Living) ->
    case is_there() of
        true -> element(Living() rem 2 + 1, turns(os:getenv("BEAMWAY_OTHER_FIRST", "")));
        false -> own
    end.

turns("1") -> {other, own};
turns(_) -> {own, other}.

%% @doc Returns the command that starts a node on the other OTP.
-spec erl() -> [string(), ...].
erl() ->
    [_ | _] = string:lexemes(os:getenv("BEAMWAY_OTHER_ERL", ""), " ").

%% @doc Returns the beamway that was built for the other OTP.
-spec ebin() -> file:filename().
ebin() ->
    [_ | _] = os:getenv("BEAMWAY_OTHER_EBIN", "").

%% @doc Returns the directories with the tests compiled by the other OTP; empty if it can load ours.
-spec tests() -> [file:filename()].
tests() ->
    case os:getenv("BEAMWAY_OTHER_ROOT", "") of
        "" -> [];
        Root -> [Dir || Pattern <- ["apps/*/ebin", "apps/*/test/ebin", "bench/ebin"], Dir <- filelib:wildcard(filename:join(Root, Pattern)),
                        not filelib:is_file(filename:join(Dir, "beamway_dist.beam"))]
    end.
