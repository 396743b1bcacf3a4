%% SPDX-License-Identifier: Apache-2.0
%% This file moved after release 0.1. Include yucan_yaws/include/yaws.hrl instead.
-include_lib("yucan_yaws/include/yaws.hrl").
