%% SPDX-License-Identifier: Apache-2.0
%% The elements on these pages. Their names and fields are Nitrogen's.
-record(template, {file}).
-record(h1, {id, text}).
-record(p, {id, body = []}).
-record(panel, {id, body = [], actions}).
-record(button, {id, text, postback}).
-record(effect, {effect}).
