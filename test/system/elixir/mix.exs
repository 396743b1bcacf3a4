# SPDX-License-Identifier: Apache-2.0
defmodule Relay.MixProject do
  use Mix.Project

  def project do
    # From 1.15 on mix hides what is neither Elixir's, OTP's nor a dependency, so also what ERL_LIBS names.
    [app: :relay, version: "0.1.0", elixir: "~> 1.14", deps: [], prune_code_paths: false, releases: releases()]
  end

  def application do
    [extra_applications: [:logger], mod: {Relay.Application, []}]
  end

  # The same application twice: as it was before anyone had heard of Beamway, and with Beamway in it. All that the
  # second one has more is this line, prune_code_paths and rel/vm.args.eex; `mix release` finds the application by ERL_LIBS.
  defp releases do
    [plain: [rel_templates_path: "no_templates"], beamway: [applications: [beamway: :load]]]
  end
end
