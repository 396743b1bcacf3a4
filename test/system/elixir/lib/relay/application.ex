# SPDX-License-Identifier: Apache-2.0
defmodule Relay.Application do
  @moduledoc "One counter and one supervisor of tasks, under the same names on every node."
  use Application

  @impl true
  def start(_type, _args) do
    children = [Relay.Counter, {Task.Supervisor, name: Relay.Tasks}, {Task, &end_with_starter/0}]
    {:ok, pid} = Supervisor.start_link(children, strategy: :one_for_one, name: Relay.Supervisor)
    IO.puts("relay is up")
    {:ok, pid}
  end

  # A test that is killed leaves no node behind: its end closes our standard input.
  defp end_with_starter do
    case IO.read(:stdio, :line) do
      line when is_binary(line) -> end_with_starter()
      _ -> System.halt(1)
    end
  end
end
