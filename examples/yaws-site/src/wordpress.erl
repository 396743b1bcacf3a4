%% SPDX-License-Identifier: Apache-2.0
%% Runs WordPress as an appmod: its index.php with php-cgi, and with the variables that the rewriting module has put into `opaque'.
-module(wordpress).

-include_lib("yucan_yaws/include/yaws_api.hrl").
-include_lib("yucan_yaws/include/yaws.hrl").

-define(SCRIPT, "/docs/www/index.php").

-export([out/1]).

out(Arg) ->
        Pathinfo = Arg#arg.pathinfo,
        Env = Arg#arg.opaque,
        {ok, GC, _Groups} = yaws_api:getconf(),
        yaws_cgi:call_cgi(Arg, GC#gconf.phpexe, ?SCRIPT, Pathinfo, Env).
