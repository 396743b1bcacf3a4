%% SPDX-License-Identifier: Apache-2.0
%% @doc Tests PHP and git's servers under yucan, and nginx and haproxy in front of yucan, as part of `make test-rest'. Each of them has its own suite
%% in `test/system/yucan'. WordPress, the wikis, Trac and Chromium take longer and have separate make targets.
-module(yucan_apps_SUITE).

-export([all/0, suite/0]).
-export([php/1, git/1, fronts/1]).

suite() -> [{timetrap, {minutes, 8}}].

all() -> [php, git, fronts].

php(_) -> test_support_system:run("php").

git(_) -> test_support_system:run("git").

fronts(_) -> test_support_system:run("fronts").
