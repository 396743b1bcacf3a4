# SPDX-License-Identifier: Apache-2.0
defmodule Yucan.MixProject do
  use Mix.Project

  def project do
    # The Erlang application yucan is found through ERL_LIBS. Since 1.15, mix hides everything that is not a dependency, including yucan.
    [
      app: :yucan_plug,
      version: "0.3.0",
      elixir: "~> 1.14",
      deps: [],
      elixirc_paths: paths(Mix.env()),
      prune_code_paths: false,
      # Plug is provided by the application that uses this library.
      xref: [exclude: [Plug.Conn, Plug.Conn.Adapter, Plug.Conn.NotSentError, Plug.Conn.Status, Plug.Exception]],
      description: "yucan as a web server for Plug",
      package: [name: "beamway_yucan_plug", licenses: ["Apache-2.0"], links: %{}]
    ]
  end

  # If the real Plug is on the code path, the tests use it instead of the substitute.
  defp paths(:test),
    do: ["lib", "test/support", Path.expand("../test/shared", __DIR__)] ++ if(Code.ensure_loaded?(Plug.Conn), do: [], else: ["test/plug_shaped"])

  defp paths(_), do: ["lib"]

  def application do
    [extra_applications: [:logger, :yucan]]
  end
end
