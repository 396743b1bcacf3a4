%% SPDX-License-Identifier: Apache-2.0
%% Until release 0.1 the file was here. Include yucan_yaws/include/yaws.hrl instead.
-include("../../yucan_yaws/include/yaws.hrl").
