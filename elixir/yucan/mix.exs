# SPDX-License-Identifier: Apache-2.0
defmodule Yucan.MixProject do
  use Mix.Project

  def project do
    # The Erlang application yucan comes by ERL_LIBS. From 1.15 on mix hides what is not among the dependencies, so what that names, too.
    [
      app: :yucan_plug,
      version: "0.2.0",
      elixir: "~> 1.14",
      deps: [],
      elixirc_paths: paths(Mix.env()),
      prune_code_paths: false,
      # The application that uses this brings Plug.
      xref: [exclude: [Plug.Conn, Plug.Conn.Adapter, Plug.Conn.NotSentError, Plug.Conn.Status, Plug.Exception]],
      description: "yucan as a web server for Plug",
      package: [name: "beamway_yucan_plug", licenses: ["Apache-2.0"], links: %{}]
    ]
  end

  # With the real Plug on the code path its tests need no stand-in.
  defp paths(:test),
    do: ["lib", "test/support", Path.expand("../test/shared", __DIR__)] ++ if(Code.ensure_loaded?(Plug.Conn), do: [], else: ["test/plug_shaped"])

  defp paths(_), do: ["lib"]

  def application do
    [extra_applications: [:logger, :yucan]]
  end
end
