# SPDX-License-Identifier: Apache-2.0
defmodule Teleport.PubSub do
  @moduledoc """
  An adapter for `Phoenix.PubSub` that sends by `Teleport`: a broadcast is encoded once and sent once to each node, and large ones hold up neither
  heartbeats nor small ones.

      {Phoenix.PubSub, name: MyApp.PubSub, adapter: Teleport.PubSub}

  All nodes of a PubSub system need this adapter. It has one process, which gives what comes to the subscribers of its node, in the order of each
  sender. Options beside those of `Phoenix.PubSub`:

    * `:class` - the class of the lanes, `:normal` unless told otherwise
    * `:sites` - which nodes are near to each other (`:teleport`'s option `sites`): a broadcast then crosses once to each site, and is waited for

  `broadcast/4` returns `{:error, {:failed, [{node, reason}]}}` where some nodes could not be sent to, and `{:error, :busy}` where too many broadcasts are under way.
  It has the callbacks of the behaviour `Phoenix.PubSub.Adapter`. The library itself is needed only by who uses it.
  """
  use Supervisor

  defmodule Local do
    @moduledoc false
    # Gives what comes from other nodes to the subscribers of this one.
    use GenServer

    def start_link({pubsub, adapter_name, module}),
      do: GenServer.start_link(__MODULE__, {pubsub, adapter_name, module}, name: Teleport.PubSub.local(adapter_name))

    @impl true
    def init({pubsub, adapter_name, module}) do
      :ok = :pg.join(adapter_name, adapter_name, self())
      {:ok, {pubsub, module}}
    end

    @impl true
    # The sender's node has its own already.
    def handle_info({:broadcast, node, _, _, _}, state) when node == node(), do: {:noreply, state}

    def handle_info({kind, _, topic, message, dispatcher}, {pubsub, module} = state) when kind in [:broadcast, :direct] do
      module.local_broadcast(pubsub, topic, message, dispatcher)
      {:noreply, state}
    end

    def handle_info(_, state), do: {:noreply, state}
  end

  @doc false
  def child_spec(options), do: %{id: Keyword.fetch!(options, :adapter_name), start: {__MODULE__, :start_link, [options]}, type: :supervisor}

  @doc false
  def start_link(options), do: Supervisor.start_link(__MODULE__, options)

  @impl true
  def init(options) do
    adapter_name = Keyword.fetch!(options, :adapter_name)
    # Another module only in tests; the name by parts, since the library may not be there when this is compiled.
    module = Keyword.get(options, :pubsub, Module.concat(Phoenix, PubSub))
    :persistent_term.put({__MODULE__, adapter_name}, options |> Keyword.take([:class, :sites]) |> Map.new())

    children = [
      %{id: :pg, start: {:pg, :start_link, [adapter_name]}},
      {Local, {Keyword.fetch!(options, :name), adapter_name, module}}
    ]

    # Without its scope the process is in no group.
    Supervisor.init(children, strategy: :rest_for_one)
  end

  @doc "The name of this node."
  @spec node_name(atom()) :: node()
  def node_name(_adapter_name), do: node()

  @doc "Broadcasts to all other nodes of the PubSub system."
  @spec broadcast(atom(), String.t(), term(), module()) :: :ok | {:error, term()}
  def broadcast(adapter_name, topic, message, dispatcher) do
    options = :persistent_term.get({__MODULE__, adapter_name})
    confirm = Map.has_key?(options, :sites)

    case :teleport.broadcast(adapter_name, adapter_name, {:broadcast, node(), topic, message, dispatcher}, Map.put(options, :confirm, confirm)) do
      %{failed: []} -> :ok
      %{failed: failed} -> {:error, {:failed, failed}}
      {:error, reason} -> {:error, reason}
    end
  end

  @doc "Broadcasts to one node, which may be this one."
  @spec direct_broadcast(atom(), node() | binary(), String.t(), term(), module()) :: :ok | {:error, term()}
  def direct_broadcast(adapter_name, node_name, topic, message, dispatcher) do
    case known(node_name) do
      nil ->
        {:error, {:nodedown, node_name}}

      to ->
        options = Map.take(:persistent_term.get({__MODULE__, adapter_name}), [:class])
        :teleport.send({local(adapter_name), to}, {:direct, node(), topic, message, dispatcher}, options)
    end
  end

  # No atom is made of what is no node.
  defp known(node_name) when is_atom(node_name), do: node_name
  defp known(node_name) when is_binary(node_name), do: Enum.find([node() | Node.list(:connected)], &(Atom.to_string(&1) == node_name))

  @doc false
  def local(adapter_name), do: Module.concat(adapter_name, Local)
end
