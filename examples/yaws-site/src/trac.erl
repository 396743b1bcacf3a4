%% SPDX-License-Identifier: Apache-2.0
%% Runs Trac as an appmod. Uses the unmodified trac.cgi that is part of Trac's package.
-module(trac).

-include_lib("yucan_yaws/include/yaws_api.hrl").

-define(APPMOD, "/trac").
-define(TRAC_ENV, "/trac/iriverter").
-define(SCRIPT, "/usr/share/trac/cgi-bin/trac.cgi").

-export([out/1]).

out(Arg) ->
        Pathinfo = Arg#arg.pathinfo,
        Env = [{"SCRIPT_NAME", ?APPMOD}, {"TRAC_ENV", ?TRAC_ENV}],
        yaws_cgi:call_cgi(Arg, undefined, ?SCRIPT, Pathinfo, Env).
