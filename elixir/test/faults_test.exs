# SPDX-License-Identifier: Apache-2.0
# Runs the examples of docs/guide/faults.md.
defmodule FaultsTest do
  use ExUnit.Case
  alias Beamway.Faults

  setup do
    {a, node_a} = Faults.start("a")
    {b, node_b} = Faults.start("b")
    true = :peer.call(a, Node, :connect, [node_b])
    %{a: a, b: b, node_a: node_a, node_b: node_b}
  end

  test "a partition is a nodedown on both sides, until it ends", %{a: a, b: b, node_b: node_b} do
    Faults.partition(a, b)
    OtherNode.eventually(fn -> {[], []} == {:peer.call(a, Node, :list, []), :peer.call(b, Node, :list, [])} end)
    Faults.heal(a)
    OtherNode.eventually(fn -> :peer.call(a, Node, :connect, [node_b]) end)
  end

  test "a call over a slow link takes as long as the path", %{a: a, b: b, node_b: node_b} do
    Faults.slow(a, b, 200)
    {us, ^node_b} = :timer.tc(:peer, :call, [a, :erpc, :call, [node_b, :erlang, :node, []]])
    assert us >= 400_000
  end

  test "a connection that dies is not a node that died", %{a: a, b: b, node_b: node_b} do
    Faults.disconnect(a, b)
    assert node_b == :peer.call(a, :erpc, :call, [node_b, :erlang, :node, []])
    OtherNode.eventually(fn -> match?({:ok, %{resumes: 1}}, :peer.call(a, :beamway, :info, [node_b])) end)
  end

  test "what cannot be done says why", %{a: a} do
    assert_raise ErlangError, ~r/not_connected/, fn -> Faults.partition(a, :nobody@nowhere) end
  end
end
