# SPDX-License-Identifier: Apache-2.0
defmodule Beamway.Faults do
  @moduledoc """
  Breaks the network between nodes in ExUnit tests, without root. It is `:beamway_ct` for Elixir. When a test ends, the nodes that it has started are stopped, and the faults that it has set on other nodes are cleared.

      test "a partition" do
        {a, _} = Beamway.Faults.start("a")
        {b, node_b} = Beamway.Faults.start("b")
        true = :peer.call(a, Node, :connect, [node_b])
        Beamway.Faults.partition(a, b)
        # what does the program do now?
        Beamway.Faults.heal(a)
      end

  Identify a node by the process that `start/2` returns, or by its name if the test's node is connected to it.
  """

  @type named :: pid() | node()

  @doc """
  Starts a node that uses Beamway's carrier, allows faults, and has this node's code path, including Elixir's. Options are arguments of `erl`, and
  `{:env, name, value}`, as charlists. A node that you start in `setup_all` runs for all tests of the module.
  """
  @spec start(String.t(), [charlist() | {:env, charlist(), charlist()}]) :: {pid(), node()}
  def start(name, options \\ []) do
    {peer, node} = :beamway_ct.start(String.to_charlist(name), options)
    Process.unlink(peer)
    ExUnit.Callbacks.on_exit({__MODULE__, peer}, fn -> stop(peer) end)
    {:ok, _} = :peer.call(peer, :application, :ensure_all_started, [:elixir])
    {peer, node}
  end

  # The node may already have been stopped.
  defp stop(peer) do
    :beamway_ct.stop(peer)
  catch
    :exit, _ -> :ok
  end

  @doc """
  Stops all packets between two nodes, or between each node in one list and each node in the other. This lasts until `heal/1` is called for the nodes
  named first, or until the test ends.
  """
  @spec partition(named() | [named()], named() | [named()]) :: :ok
  def partition(ones, others) do
    ones |> List.wrap() |> Enum.each(&heal_later/1)
    :beamway_ct.partition(ones, others)
  end

  @doc "Delays each byte between the two nodes by this many milliseconds, in each direction."
  @spec slow(named(), named(), 0..10000) :: :ok
  def slow(one, other, delay_ms) do
    heal_later(one)
    :beamway_ct.slow(one, other, delay_ms)
  end

  @doc "Resets the connection between the two nodes."
  @spec disconnect(named(), named()) :: :ok
  defdelegate disconnect(one, other), to: :beamway_ct

  @doc "Sets any fault supported by `:beamway.fault/2` on the first node."
  @spec fault(named(), named(), map() | :none) :: :ok
  def fault(one, other, fault) do
    heal_later(one)
    :beamway_ct.fault(one, other, fault)
  end

  @doc "Clears all faults that were set on a node."
  @spec heal(named()) :: :ok
  defdelegate heal(one), to: :beamway_ct

  # Nodes from start/2 are stopped when the test ends, so their faults need not be removed.
  defp heal_later(peer) when is_pid(peer), do: :ok
  defp heal_later(node), do: ExUnit.Callbacks.on_exit({__MODULE__, node}, fn -> heal(node) end)
end
