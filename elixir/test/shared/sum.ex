# SPDX-License-Identifier: Apache-2.0
defmodule Sum do
  @moduledoc "Adds the totals that scripts/run-tests reads to ExUnit's output."
  use GenServer

  @impl true
  def init(options) do
    {:ok, cli} = ExUnit.CLIFormatter.init(Keyword.put(options, :colors, enabled: false))
    {:ok, {cli, %{passed: 0, failed: 0, skipped: 0}}}
  end

  @impl true
  def handle_cast(event, {cli, counts}) do
    {:noreply, next} = ExUnit.CLIFormatter.handle_cast(event, cli)
    {:noreply, {next, counted(event, counts)}}
  end

  defp counted({:test_finished, %{state: nil}}, counts), do: Map.update!(counts, :passed, &(&1 + 1))
  defp counted({:test_finished, %{state: {:failed, _}} = test}, counts), do: failed(test, counts)
  defp counted({:test_finished, %{state: {:invalid, _}} = test}, counts), do: failed(test, counts)
  defp counted({:test_finished, _}, counts), do: Map.update!(counts, :skipped, &(&1 + 1))

  defp counted({:suite_finished, _}, counts) do
    IO.puts("#{counts.passed} passed, #{counts.failed} failed, #{counts.skipped} skipped")
    counts
  end

  defp counted(_, counts), do: counts

  defp failed(test, counts) do
    IO.puts("FAIL #{inspect(test.module)}: #{test.name}")
    Map.update!(counts, :failed, &(&1 + 1))
  end
end
