%% SPDX-License-Identifier: Apache-2.0
%% @doc Nodes of another OTP release than the runner's, in addition to the runner's own. Used by {@link beamway_peer}.
%%
%% `BEAMWAY_OTHER_ERL' in the environment is a program with its arguments, separated by spaces, that runs the other OTP's `erl'.
%% `BEAMWAY_OTHER_EBIN' is the Beamway that was built for it. Then every second of the nodes that live at the same time belongs to the other OTP,
%% so every suite tests the mixture. `BEAMWAY_OTHER_FIRST=1' begins with the other one. The runner's OTP must be the older one, because it
%% compiles the tests, which run on both.
%%
%% An OTP that is more than two releases newer does not load what the runner has compiled. In that case `BEAMWAY_OTHER_ROOT' is a checkout in
%% which it has built everything, and no fun of a suite can be sent to its nodes.
-module(beamway_other_otp).

-export([is_there/0, choose/2, erl/0, ebin/0, tests/0]).

-export_type([otp/0]).

-type otp() :: own | other.

%% @doc Whether another OTP is named.
-spec is_there() -> boolean().
is_there() ->
    os:getenv("BEAMWAY_OTHER_ERL", "") =/= "".

%% @doc The OTP of a new node when this many others are alive. It may be impossible to run the other OTP with a wrapper, and another beamway is
%% built for our own OTP.
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

%% @doc The command that starts a node of the other OTP.
-spec erl() -> [string(), ...].
erl() ->
    [_ | _] = string:lexemes(os:getenv("BEAMWAY_OTHER_ERL", ""), " ").

%% @doc The beamway that was built for it.
-spec ebin() -> file:filename().
ebin() ->
    [_ | _] = os:getenv("BEAMWAY_OTHER_EBIN", "").

%% @doc The directories of the tests that it has compiled itself, or none if it can load ours.
-spec tests() -> [file:filename()].
tests() ->
    case os:getenv("BEAMWAY_OTHER_ROOT", "") of
        "" -> [];
        Root -> [Dir || Pattern <- ["apps/*/ebin", "apps/*/test/ebin", "bench/ebin"], Dir <- filelib:wildcard(filename:join(Root, Pattern)),
                        not filelib:is_file(filename:join(Dir, "beamway_dist.beam"))]
    end.
