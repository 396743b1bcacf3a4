%% SPDX-License-Identifier: Apache-2.0
%% @doc Finds the lines in a node's log that no fault of the schedule explains.
%%
%% The functions are pure. A line is checked if its level is warning or worse. Permitted lines are listed with the faults that cause them, and
%% any other line is a finding of {@link beamway_nemesis}.
-module(beamway_nemesis_log).

-export([unexpected/2]).

%% @doc Returns the unexplained lines.
-spec unexpected(Text :: string(), beamway_nemesis_schedule:schedule()) -> [string()].
unexpected(Text, #{faults := Faults}) ->
    Kinds = [element(1, Fault) || Fault <- Faults],
    Allowed = [Pattern || {Pattern, By} <- allowed(), By =:= always orelse By -- Kinds =/= By],
    [Line || Line <- string:lexemes(Text, "\n"), is_serious(Line),
             not lists:any(fun(Pattern) -> string:find(Line, Pattern) =/= nomatch end, Allowed)].

is_serious(Line) ->
    re:run(Line, "^[0-9T:.+Z-]+ (warning|error|critical|alert|emergency):", [{capture, none}]) =:= match.

%% Each entry is a log text with `always' or a list of faults, at least one of which must be in the
%% schedule. Every run ends connections, because all nodes are disconnected at its end.
allowed() ->
    [%% The answer to a call that was abandoned when the connection ended arrives over the next connection.
     {"The global_name_server locker process received an unexpected message", always},
     %% Another node's global reported a node that was gone, or that we could not call for lack of descriptors.
     {"'global' at ", [kill, restart, no_descriptors]},
     %% OTP's own TLS distribution logs this if it has no options except certificates.
     {"Server authenticity is not verified", always},
     {"beamway: no TLS connection with", [kill, restart, stop, no_descriptors]},
     %% Without descriptors, the code server cannot search directories for a module that is not
     %% loaded yet, and no connection can be set up.
     {"emfile", [no_descriptors]},
     {"Too many open files", [no_descriptors]},
     {"descriptor limit, ulimit -n?", [no_descriptors]},
     %% A node is stopped while a link is being agreed on.
     {"the link server does not answer", [stop, slow_reader, fill_ring]},
     {"no agreement on a link with the peer, connection closed", [stop, slow_reader, fill_ring]},
     %% A node exits while a link is being agreed on.
     {"connecting to the peer's unix socket", [kill, restart]},
     {"not responding **, ** Removing (timedout) connection", [stop]}].
