# SPDX-License-Identifier: Apache-2.0
defmodule Teleport.PubSubTest do
  # Tests what Phoenix.PubSub requires of an adapter, with a substitute for that library that has the same adapter contract (Topics).
  use ExUnit.Case

  @name TestPubSub

  setup_all do
    {peer, node} = OtherNode.start()
    on_exit(fn -> :peer.stop(peer) end)
    for on <- [node(), node], do: {:ok, _} = :erpc.call(on, Topics, :start, [@name])
    adapter = Topics.adapter(@name)
    for on <- [node(), node], do: OtherNode.eventually(fn -> length(:erpc.call(on, :pg, :get_members, [Topics.scope(), adapter])) == 2 end)
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
    # This would arrive after this node's own copy, if there were one.
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

    # The library raises on any other result, in processes whose exit would also end those of their clients.
    failed = Teleport.PubSub.failed(@name)
    assert :ok == Teleport.PubSub.direct_broadcast(adapter, "nobody@nowhere", topic, :x, Topics)
    assert failed + 1 == Teleport.PubSub.failed(@name)
    assert :ok == Teleport.PubSub.direct_broadcast(adapter, :nobody@nowhere, topic, :x, Topics)
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
    OtherNode.eventually(fn -> length(:pg.get_members(Topics.scope(), adapter)) == 3 end)
    :ok = :erpc.call(third, Topics, :subscribe_for, [@name, topic, self()])
    assert :ok == Topics.broadcast(@name, topic, :three)
    for on <- [node(), node, third], do: assert_receive({^on, :three}, 20_000)
    :peer.stop(peer)
    OtherNode.eventually(fn -> length(:pg.get_members(Topics.scope(), adapter)) == 2 end)
    assert :ok == Topics.broadcast(@name, topic, :two)
    for on <- [node(), node], do: assert_receive({^on, :two}, 20_000)
  end

  test "its process is restarted, and joins again", %{topic: topic, adapter: adapter, node: node} do
    old = :erpc.call(node, Process, :whereis, [adapter])
    Process.exit(old, :kill)

    OtherNode.eventually(fn ->
      members = :pg.get_members(Topics.scope(), adapter)
      length(members) == 2 and old not in members
    end)

    assert :ok == Topics.broadcast(@name, topic, :again)
    assert_receive {^node, :again}, 20_000
  end

  test "joins again when the scope of pg was restarted", %{topic: topic, adapter: adapter, node: node} do
    scope = :erpc.call(node, Process, :whereis, [Topics.scope()])
    Process.exit(scope, :kill)
    OtherNode.eventually(fn -> :erpc.call(node, Process, :whereis, [Topics.scope()]) == nil end)
    {:ok, _} = :erpc.call(node, :pg, :start, [Topics.scope()])
    OtherNode.eventually(fn -> length(:pg.get_members(Topics.scope(), adapter)) == 2 end)
    assert :ok == Topics.broadcast(@name, topic, :again)
    assert_receive {^node, :again}, 20_000
  end

  test "a node that hangs takes nothing from the others, and is logged and counted", %{topic: topic, adapter: adapter, node: node} do
    {peer, third} = OtherNode.start()
    {:ok, _} = :erpc.call(third, Topics, :start, [@name])
    OtherNode.eventually(fn -> length(:pg.get_members(Topics.scope(), adapter)) == 3 end)
    LogTo.add(:hangs, self())
    on_exit(fn -> :logger.remove_handler(:hangs) end)
    failed = Teleport.PubSub.failed(@name)
    own = node()
    os_pid = List.to_string(:erpc.call(third, :os, :getpid, []))
    {_, 0} = System.cmd("kill", ["-STOP", os_pid])
    # The queue to the node becomes full.
    data = :binary.copy("x", 200_000)

    OtherNode.eventually(fn ->
      :ok = Topics.broadcast(@name, topic, data)
      assert_receive {^own, ^data}, 20_000
      assert_receive {^node, ^data}, 20_000
      Teleport.PubSub.failed(@name) > failed
    end)

    failed = Teleport.PubSub.failed(@name)

    {us, _} =
      :timer.tc(fn ->
        for n <- 1..20 do
          assert :ok == Topics.broadcast(@name, topic, {n, data})
          assert_receive {^own, {^n, ^data}}, 20_000
        end
      end)

    for n <- 1..20, do: assert_receive({^node, {^n, ^data}}, 20_000)
    # The sender waited for the timeout only once, not with each message.
    assert us < 10_000_000
    assert failed < Teleport.PubSub.failed(@name)
    assert_receive {:logged, text}
    assert text =~ Atom.to_string(third)
    assert text =~ "overload"
    refute_received {:logged, _}
    {_, 0} = System.cmd("kill", ["-CONT", os_pid])
    :ok = :erpc.call(third, Topics, :subscribe_for, [@name, topic, self()])

    # The node receives messages that are sent once there is room again.
    OtherNode.eventually(fn ->
      :ok = Topics.broadcast(@name, topic, :back)
      assert_receive {^node, :back}, 20_000
      assert_receive {^own, :back}, 20_000

      receive do
        {^third, :back} -> true
      after
        0 -> false
      end
    end)

    :peer.stop(peer)
    OtherNode.eventually(fn -> length(:pg.get_members(Topics.scope(), adapter)) == 2 end)
  end

  test "a node whose teleport is stopped: nothing fails, it hears the others, and its own subscribers hear it", %{topic: topic, node: node} do
    :ok = :erpc.call(node, :application, :stop, [:teleport])
    failed = :erpc.call(node, Teleport.PubSub, :failed, [@name])
    assert :ok == :erpc.call(node, Topics, :broadcast, [@name, topic, :stopped])
    assert_receive {^node, :stopped}, 20_000
    assert :ok == :erpc.call(node, Topics, :direct_broadcast, [node(), @name, topic, :stopped])
    assert failed + 2 == :erpc.call(node, Teleport.PubSub, :failed, [@name])
    assert :ok == Topics.broadcast(@name, topic, :to_all)
    own = node()
    for on <- [own, node], do: assert_receive({^on, :to_all}, 20_000)
    {:ok, _} = :erpc.call(node, :application, :ensure_all_started, [:teleport])
    assert :ok == :erpc.call(node, Topics, :broadcast, [@name, topic, :started])
    for on <- [own, node], do: assert_receive({^on, :started}, 20_000)
    refute_received _
  end

  test "a cluster that changes from the default adapter to this one and back", %{topic: topic, adapter: adapter, node: node} do
    # One node runs without teleport, and the other runs with it.
    plain =
      for teleport <- [false, true] do
        {peer, other} = OtherNode.start(teleport: teleport)
        {:ok, _} = :erpc.call(other, Topics, :start, [@name, [adapter: PlainAdapter]])
        {peer, other}
      end

    nodes = [node(), node | Enum.map(plain, &elem(&1, 1))]
    for on <- nodes, do: OtherNode.eventually(fn -> length(:erpc.call(on, :pg, :get_members, [Topics.scope(), adapter])) == 4 end)
    for {_, on} <- plain, do: :ok = :erpc.call(on, Topics, :subscribe_for, [@name, topic, self()])

    for from <- nodes do
      assert :ok == :erpc.call(from, Topics, :broadcast, [@name, topic, {:from, from}])
      for on <- nodes, do: assert_receive({^on, {:from, ^from}}, 20_000)

      for to <- nodes do
        assert :ok == :erpc.call(from, Topics, :direct_broadcast, [to, @name, topic, {:direct, from}])
        assert_receive {^to, {:direct, ^from}}, 20_000
      end
    end

    refute_received _
    for {peer, _} <- plain, do: :peer.stop(peer)
    OtherNode.eventually(fn -> length(:pg.get_members(Topics.scope(), adapter)) == 2 end)
  end

  test "a pool: a process and a group for each number, and each sender uses one of those for broadcasts", %{node: node} do
    name = PoolPubSub
    adapter = Topics.adapter(name)
    second = :"#{adapter}_2"
    for on <- [node(), node], do: {:ok, _} = :erpc.call(on, Topics, :start, [name, [pool_size: 2]])
    for group <- [adapter, second], do: OtherNode.eventually(fn -> length(:pg.get_members(Topics.scope(), group)) == 2 end)
    topic = "pool"
    :ok = :erpc.call(node, Topics, :subscribe_for, [name, topic, self()])
    for group <- [adapter, second], do: :ok = :erpc.call(node, :sys, :suspend, [group])
    senders = for n <- 1..20, do: Task.async(fn -> {self(), Topics.broadcast(name, topic, n), Topics.direct_broadcast(node, name, topic, n)} end)
    by_group = Enum.group_by(Task.await_many(senders, 30_000), fn {pid, :ok, :ok} -> elem({adapter, second}, :erlang.phash2(pid, 2)) end)
    # The library's default adapter picks the group of a sender in the same way, and a cluster has only one kind of pool.
    for group <- [adapter, second] do
      waiting = 2 * length(Map.fetch!(by_group, group))
      worker = :erpc.call(node, Process, :whereis, [group])
      OtherNode.eventually(fn -> :erpc.call(node, Process, :info, [worker, :message_queue_len]) == {:message_queue_len, waiting} end)
      :ok = :erpc.call(node, :sys, :resume, [group])
    end

    got = for _ <- 1..40, do: assert_receive({^node, _}, 20_000)
    assert Enum.sort(got) == for(n <- 1..20, _ <- 1..2, do: {node, n})
  end

  test "a pool that only listens on its last processes yet", %{node: node} do
    name = GrowingPubSub
    adapter = Topics.adapter(name)
    for on <- [node(), node], do: {:ok, _} = :erpc.call(on, Topics, :start, [name, [pool_size: 2, broadcast_pool_size: 1]])
    for group <- [adapter, :"#{adapter}_2"], do: OtherNode.eventually(fn -> length(:pg.get_members(Topics.scope(), group)) == 2 end)
    topic = "growing"
    :ok = :erpc.call(node, Topics, :subscribe_for, [name, topic, self()])
    :ok = :erpc.call(node, :sys, :suspend, [:"#{adapter}_2"])
    senders = for n <- 1..20, do: Task.async(fn -> Topics.broadcast(name, topic, n) end)
    assert Enum.all?(Task.await_many(senders, 30_000), &(&1 == :ok))
    for n <- 1..20, do: assert_receive({^node, ^n}, 20_000)
    :ok = :erpc.call(node, :sys, :resume, [:"#{adapter}_2"])
  end

  test "wrong options are errors that name them" do
    for {options, words} <- [
          {[pool_size: 0], ~w(pool_size 0)},
          {[pool_size: 1, broadcast_pool_size: 2], ~w(broadcast_pool_size 2)},
          {[broadcast_pool_size: :many], ~w(broadcast_pool_size :many)},
          {[class: :fast], ~w(class :fast)},
          {[sites: 7], ~w(sites 7)}
        ] do
      assert {:error, text} = Teleport.PubSub.start_link([name: WrongPubSub, adapter_name: WrongPubSub.Adapter] ++ options)
      for word <- words, do: assert(text =~ word)
    end
  end
end
