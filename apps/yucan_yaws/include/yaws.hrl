%% SPDX-License-Identifier: Apache-2.0
%% The configuration as modules written for Yaws see it, through yaws_api:getconf/0 and start_mod. The records have only the fields that this server
%% supports.
-ifndef(YAWS_HRL).
-define(YAWS_HRL, true).

-record(gconf, {yaws_dir,
                logdir,
                ebin_dir = [],
                runmods = [],
                phpexe = "php-cgi",       %% php_exe_path
                yaws = "yucan",
                id = "default"}).

-record(sconf, {port,
                rhost, rmethod,
                docroot,
                listen,
                servername,
                serveralias = [],
                opaque = [],              %% [{Key, Value}], strings
                appmods = [],             %% [{Path, Module}]
                phpexe = "php-cgi"}).

-endif.
