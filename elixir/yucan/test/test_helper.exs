# SPDX-License-Identifier: Apache-2.0
{:ok, _} = Application.ensure_all_started(:yucan)
ExUnit.start(formatters: [Sum], timeout: 60_000, capture_log: true)
