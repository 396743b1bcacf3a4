# SPDX-License-Identifier: Apache-2.0
defmodule Teleport.Listeners do
  @moduledoc """
  Groups with many members, by `:teleport_listeners`: nodes tell each other which groups they have members of, and not who these are.

      :ok = Teleport.Listeners.join({:room, 7})
      %{sent: _} = Teleport.Listeners.broadcast({:room, 7}, :hello)

  A group is any term. A process listens until it leaves or ends.
  """

  @doc "A process of this node listens to a group, by default the calling one. It does so once, however often it joins."
  @spec join(term(), pid()) :: :ok
  def join(group, pid \\ self()), do: :teleport_listeners.join(group, pid)

  @doc "It does not listen any more."
  @spec leave(term(), pid()) :: :ok
  def leave(group, pid \\ self()), do: :teleport_listeners.leave(group, pid)

  @doc "Sends a message to all members on all nodes. Options and result are those of `Teleport.broadcast/3`, without `:scope`."
  @spec broadcast(term(), term(), Teleport.options()) ::
          %{sent: [node()], plain: [node()], skipped: [node()], failed: [{node(), Teleport.reason()}]}
  def broadcast(group, message, options \\ []), do: :teleport_listeners.broadcast(group, message, Map.new(options))

  @doc "The members on this node."
  @spec members(term()) :: [pid()]
  def members(group), do: :teleport_listeners.members(group)

  @doc "The other nodes that have members, as far as this node has heard."
  @spec nodes(term()) :: [node()]
  def nodes(group), do: :teleport_listeners.nodes(group)
end
