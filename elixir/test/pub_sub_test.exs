# SPDX-License-Identifier: Apache-2.0
defmodule Teleport.PubSubTest do
  # What Phoenix.PubSub asks of an adapter, by a stand-in for that library with its own adapter contract (Topics).
  use ExUnit.Case

  @name TestPubSub

  setup_all do
    {peer, node} = OtherNode.start()
    on_exit(fn -> :peer.stop(peer) end)
    for on <- [node(), node], do: {:ok, _} = :erpc.call(on, Topics, :start, [@name])
    adapter = Topics.adapter(@name)
    for on <- [node(), node], do: OtherNode.eventually(fn -> length(:erpc.call(on, :pg, :get_members, [adapter, adapter])) == 2 end)
    %{node: node, adapter: adapter}
  end

  setup %{node: node} do
    topic = "topic:#{System.unique_integer([:positive])}"
    for on <- [node(), node], do: :ok = :erpc.call(on, Topics, :subscribe_for, [@name, topic, self()])
    %{topic: topic}
  end

  test "a broadcast comes once to the subscribers of each node", %{node: node, topic: topic} do
    assert :ok == Topics.broadcast(@name, topic, :hello)
    for on <- [node(), node], do: assert_receive({^on, :hello}, 20_000)
    assert :ok == Topics.broadcast(@name, topic, :last)
    for on <- [node(), node], do: assert_receive({^on, :last}, 20_000)
    refute_received _
  end

  test "the adapter leaves out its own node", %{node: node, topic: topic, adapter: adapter} do
    assert :ok == Teleport.PubSub.broadcast(adapter, topic, :others, Topics)
    assert_receive {^node, :others}, 20_000
    # Behind the copy of this node, if there were one.
    assert :ok == Teleport.PubSub.direct_broadcast(adapter, node(), topic, :own, Topics)
    own = node()
    assert_receive {^own, :own}, 20_000
    refute_received _
  end

  test "one node alone, by name or text", %{node: node, topic: topic, adapter: adapter} do
    for to <- [node, Atom.to_string(node)] do
      assert :ok == Teleport.PubSub.direct_broadcast(adapter, to, topic, {:for, to}, Topics)
      assert_receive {^node, {:for, ^to}}, 20_000
    end

    assert {:error, {:nodedown, "nobody@nowhere"}} == Teleport.PubSub.direct_broadcast(adapter, "nobody@nowhere", topic, :x, Topics)
    assert {:error, {:nodedown, :nobody@nowhere}} == Teleport.PubSub.direct_broadcast(adapter, :nobody@nowhere, topic, :x, Topics)
    refute_received _
  end

  test "the order of a sender, small and large", %{node: node, topic: topic} do
    messages = for n <- 1..200, do: {n, String.duplicate("x", rem(n, 5) * 40_000)}
    for message <- messages, do: assert(:ok == Topics.broadcast(@name, topic, message))

    for on <- [node(), node] do
      got =
        for _ <- messages do
          assert_receive {^on, message}, 20_000
          message
        end

      assert messages == got
    end
  end

  test "another topic is not disturbed", %{node: node, topic: topic} do
    assert :ok == Topics.broadcast(@name, topic <> "x", :other)
    assert :ok == Topics.broadcast(@name, topic, :mine)
    assert_receive {^node, :mine}, 20_000
    own = node()
    assert_receive {^own, :mine}, 20_000
    refute_received _
  end

  test "the name of a node", %{adapter: adapter} do
    assert node() == Teleport.PubSub.node_name(adapter)
  end

  test "a node that ends is no longer sent to, and one that comes is", %{topic: topic, adapter: adapter, node: node} do
    {peer, third} = OtherNode.start()
    {:ok, _} = :erpc.call(third, Topics, :start, [@name])
    OtherNode.eventually(fn -> length(:pg.get_members(adapter, adapter)) == 3 end)
    :ok = :erpc.call(third, Topics, :subscribe_for, [@name, topic, self()])
    assert :ok == Topics.broadcast(@name, topic, :three)
    for on <- [node(), node, third], do: assert_receive({^on, :three}, 20_000)
    :peer.stop(peer)
    OtherNode.eventually(fn -> length(:pg.get_members(adapter, adapter)) == 2 end)
    assert :ok == Topics.broadcast(@name, topic, :two)
    for on <- [node(), node], do: assert_receive({^on, :two}, 20_000)
  end

  test "its process is restarted, and joins again", %{topic: topic, adapter: adapter, node: node} do
    local = Teleport.PubSub.local(adapter)
    old = :erpc.call(node, Process, :whereis, [local])
    Process.exit(old, :kill)

    OtherNode.eventually(fn ->
      members = :pg.get_members(adapter, adapter)
      length(members) == 2 and old not in members
    end)

    assert :ok == Topics.broadcast(@name, topic, :again)
    assert_receive {^node, :again}, 20_000
  end
end
