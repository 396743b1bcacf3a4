# SPDX-License-Identifier: Apache-2.0
defmodule Teleport.Listeners do
  @moduledoc """
  Groups with many members, implemented by `:teleport_listeners`: a node tells the others for which groups it has members, but not which processes they are.

      :ok = Teleport.Listeners.join({:room, 7})
      %{sent: _} = Teleport.Listeners.broadcast({:room, 7}, :hello)

  A group is any term. A process is a member until it leaves or exits.
  """

  @doc "Adds a process on this node, by default the caller, to a group. The process gets each message once, even if it joins several times."
  @spec join(term(), pid()) :: :ok
  def join(group, pid \\ self()), do: :teleport_listeners.join(group, pid)

  @doc "Ends the membership of a process on this node, by default the caller, in a group."
  @spec leave(term(), pid()) :: :ok
  def leave(group, pid \\ self()), do: :teleport_listeners.leave(group, pid)

  @doc "Sends a message to all members on all nodes. Options and result are those of `Teleport.broadcast/3`, without `:scope`."
  @spec broadcast(term(), term(), Teleport.options()) ::
          %{sent: [node()], plain: [node()], skipped: [node()], failed: [{node(), Teleport.reason()}]}
  def broadcast(group, message, options \\ []), do: :teleport_listeners.broadcast(group, message, Map.new(options))

  @doc "Returns the members on this node."
  @spec members(term()) :: [pid()]
  def members(group), do: :teleport_listeners.members(group)

  @doc "Returns the other nodes that have members, as far as this node knows."
  @spec nodes(term()) :: [node()]
  def nodes(group), do: :teleport_listeners.nodes(group)
end
