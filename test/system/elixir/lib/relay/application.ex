# SPDX-License-Identifier: Apache-2.0
defmodule Relay.Application do
  @moduledoc "Starts a counter and a task supervisor, with the same names on every node."
  use Application

  @impl true
  def start(_type, _args) do
    children = [Relay.Counter, {Task.Supervisor, name: Relay.Tasks}, {Task, &end_with_starter/0}]
    {:ok, pid} = Supervisor.start_link(children, strategy: :one_for_one, name: Relay.Supervisor)
    IO.puts("relay is up")
    {:ok, pid}
  end

  # When the test is killed, standard input is closed, so no node is left behind.
  defp end_with_starter do
    case IO.read(:stdio, :line) do
      line when is_binary(line) -> end_with_starter()
      _ -> System.halt(1)
    end
  end
end
