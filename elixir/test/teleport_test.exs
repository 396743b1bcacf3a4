# SPDX-License-Identifier: Apache-2.0
defmodule TeleportTest do
  use ExUnit.Case

  setup_all do
    {peer, node} = OtherNode.start()
    on_exit(fn -> :peer.stop(peer) end)
    %{node: node}
  end

  setup %{node: node} do
    name = :"store_#{System.unique_integer([:positive])}"
    {:ok, pid} = :erpc.call(node, Store, :start, [name])
    %{dest: {name, node}, pid: pid}
  end

  test "sends, casts and calls, in their order", %{dest: dest, pid: pid} do
    for to <- [dest, pid], options <- [[], [class: :bulk], %{key: 1}] do
      assert :ok == Teleport.send(to, 1, options)
      assert :ok == Teleport.cast(to, 2, options)
      assert [1, {:cast, 2}] == to |> Teleport.call(:kept, 5000, options) |> Enum.take(-2)
    end

    assert "reply" == Teleport.call(pid, {:echo, "reply"})
    assert "via" == GenServer.call({:via, :teleport, dest}, {:echo, "via"})
  end

  test "confirms", %{dest: dest} do
    assert {:ok, ref} = Teleport.send(dest, 1, confirm: true)
    assert_receive {:teleport, ^ref, :confirmed}, 20_000
  end

  test "exits as a call does", %{node: node} do
    assert {:noproc, {:teleport, :call, _}} = catch_exit(Teleport.call({:no_such_name, node}, 1))
    assert {{:nodedown, :nobody@nowhere}, _} = catch_exit(Teleport.call({:x, :nobody@nowhere}, 1))
    assert :ok == Teleport.cast({:x, :nobody@nowhere}, 1)
  end

  test "refuses options that are none", %{dest: dest} do
    assert_raise ErlangError, ~r/bad_option, :speed, :fast/, fn -> Teleport.send(dest, 1, speed: :fast) end
  end

  test "applies functions", %{node: node} do
    assert node == Teleport.rpc(node, :erlang, :node, [])
    assert 3 == Teleport.rpc(node, Kernel, :+, [1, 2], 5000)
    assert :thrown == catch_throw(Teleport.rpc(node, :erlang, :throw, [:thrown]))
  end

  test "broadcasts to a group with many members", %{node: node} do
    assert :ok == Teleport.Listeners.join(:room)
    assert [self()] == Teleport.Listeners.members(:room)
    listener = :erpc.call(node, :erlang, :spawn, [Process, :sleep, [:infinity]])
    assert :ok == :erpc.call(node, :teleport_listeners, :join, [:room, listener])
    OtherNode.eventually(fn -> Teleport.Listeners.nodes(:room) == [node] end)
    assert %{sent: sent, plain: [], skipped: [], failed: []} = Teleport.Listeners.broadcast(:room, :all, confirm: true)
    assert Enum.sort([node(), node]) == Enum.sort(sent)
    assert_receive :all
    assert :ok == Teleport.Listeners.leave(:room)
    assert %{sent: [^node]} = Teleport.Listeners.broadcast(:room, :again, confirm: true)
    refute_received :again
    assert_raise ErlangError, ~r/bad_member/, fn -> Teleport.Listeners.join(:room, listener) end
  end

  test "broadcasts to a group", %{node: node, pid: pid} do
    for on <- [node(), node], do: {:ok, _} = :erpc.call(on, :pg, :start, [:elixir_scope])
    :ok = GenServer.call(pid, {:join, :elixir_scope, :group})
    OtherNode.eventually(fn -> :pg.get_members(:elixir_scope, :group) == [pid] end)
    assert %{sent: [^node], plain: [], skipped: [], failed: []} = Teleport.broadcast(:group, :all, scope: :elixir_scope)
    assert %{sent: [^node]} = Teleport.broadcast(:group, :again, scope: :elixir_scope, confirm: true)
    assert [:all, :again] == GenServer.call(pid, :kept)
    assert {:error, {:no_scope, :nowhere}} == Teleport.broadcast(:group, :all, scope: :nowhere)
  end
end
