# SPDX-License-Identifier: Apache-2.0
defmodule Beamway.Faults do
  @moduledoc """
  Breaks the network between nodes in tests of ExUnit, without root: `:beamway_ct` from Elixir. Nodes end, and faults that were set on other nodes end, with the test.

      test "a partition" do
        {a, _} = Beamway.Faults.start("a")
        {b, node_b} = Beamway.Faults.start("b")
        true = :peer.call(a, Node, :connect, [node_b])
        Beamway.Faults.partition(a, b)
        # what does the program do now?
        Beamway.Faults.heal(a)
      end

  A node is named by the process that `start/2` returns, or by its name if the test's node is connected to it.
  """

  @type named :: pid() | node()

  @doc """
  Starts a node on Beamway's carrier that allows faults and has the code path of this node, Elixir's too. Options are arguments of `erl`, and `{:env, name, value}`, as
  charlists. From `setup_all` it lasts for all tests of the module.
  """
  @spec start(String.t(), [charlist() | {:env, charlist(), charlist()}]) :: {pid(), node()}
  def start(name, options \\ []) do
    {peer, node} = :beamway_ct.start(String.to_charlist(name), options)
    Process.unlink(peer)
    ExUnit.Callbacks.on_exit({__MODULE__, peer}, fn -> stop(peer) end)
    {:ok, _} = :peer.call(peer, :application, :ensure_all_started, [:elixir])
    {peer, node}
  end

  # It may have ended before.
  defp stop(peer) do
    :beamway_ct.stop(peer)
  catch
    :exit, _ -> :ok
  end

  @doc "No packet passes between the nodes, or between each of the one side and each of the other, until `heal/1` of the first ones or the end of the test."
  @spec partition(named() | [named()], named() | [named()]) :: :ok
  def partition(ones, others) do
    ones |> List.wrap() |> Enum.each(&heal_later/1)
    :beamway_ct.partition(ones, others)
  end

  @doc "Each byte between the two nodes takes so many milliseconds longer, in each direction."
  @spec slow(named(), named(), 0..10000) :: :ok
  def slow(one, other, delay_ms) do
    heal_later(one)
    :beamway_ct.slow(one, other, delay_ms)
  end

  @doc "The connection between the two nodes dies by a reset."
  @spec disconnect(named(), named()) :: :ok
  defdelegate disconnect(one, other), to: :beamway_ct

  @doc "Any fault of `:beamway.fault/2`, set on the first node."
  @spec fault(named(), named(), map() | :none) :: :ok
  def fault(one, other, fault) do
    heal_later(one)
    :beamway_ct.fault(one, other, fault)
  end

  @doc "Ends all faults that were set on a node."
  @spec heal(named()) :: :ok
  defdelegate heal(one), to: :beamway_ct

  # Nodes of start/2 end with the test.
  defp heal_later(peer) when is_pid(peer), do: :ok
  defp heal_later(node), do: ExUnit.Callbacks.on_exit({__MODULE__, node}, fn -> heal(node) end)
end
