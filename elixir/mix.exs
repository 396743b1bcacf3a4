# SPDX-License-Identifier: Apache-2.0
defmodule Teleport.MixProject do
  use Mix.Project

  def project do
    # The Erlang applications are found through ERL_LIBS. Since 1.15, mix hides everything that is not a dependency, including these.
    [
      app: :teleport_elixir,
      version: "0.3.0",
      elixir: "~> 1.14",
      deps: [],
      elixirc_paths: if(Mix.env() == :test, do: ["lib", "test/support", "test/shared"], else: ["lib"]),
      prune_code_paths: false,
      # Beamway.Faults is used in tests, if it is available.
      xref: [exclude: [ExUnit.Callbacks]],
      description: "Teleport for Elixir, and an adapter for Phoenix.PubSub",
      package: [name: "beamway_teleport_elixir", licenses: ["Apache-2.0"], links: %{}]
    ]
  end

  def application do
    [extra_applications: [:teleport]]
  end
end
