# SPDX-License-Identifier: Apache-2.0
defmodule Relay.MixProject do
  use Mix.Project

  def project do
    # Since 1.15, mix hides everything that does not belong to Elixir, OTP or a dependency, including libraries in ERL_LIBS.
    [app: :relay, version: "0.1.0", elixir: "~> 1.14", deps: [], prune_code_paths: false, releases: releases()]
  end

  def application do
    [extra_applications: [:logger], mod: {Relay.Application, []}]
  end

  # Two releases of the same application, without and with Beamway. For the second one, only this line, prune_code_paths
  # and rel/vm.args.eex are needed. `mix release` finds Beamway through ERL_LIBS.
  defp releases do
    [plain: [rel_templates_path: "no_templates"], beamway: [applications: [beamway: :load]]]
  end
end
