%% SPDX-License-Identifier: Apache-2.0
%% Where it was until 0.1: include yucan_yaws/include/yaws_api.hrl instead.
-include("../../yucan_yaws/include/yaws_api.hrl").
