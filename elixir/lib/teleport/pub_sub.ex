# SPDX-License-Identifier: Apache-2.0
defmodule Teleport.PubSub do
  @moduledoc """
  An adapter for `Phoenix.PubSub` that sends with `Teleport`. A broadcast is encoded once and sent once to each node, and a node that hangs does not block senders.

      {Phoenix.PubSub, name: MyApp.PubSub, adapter: Teleport.PubSub}

  It uses the same names, groups and messages as `Phoenix.PubSub.PG2`, the default adapter. Nodes with either adapter interoperate, so you can switch a
  running cluster to this adapter, or back, node by node. It has these options in addition to those of `Phoenix.PubSub`:

    * `:pool_size` - how many processes deliver messages from other nodes, 1 by default. It must be the same on all nodes
    * `:broadcast_pool_size` - how many of them get broadcasts, `:pool_size` by default. Use it to change `:pool_size` in a running cluster, as the
      documentation of `Phoenix.PubSub` describes
    * `:sites` - which nodes are near each other (`:teleport`'s option `sites`), so that a broadcast is sent to each site only once
    * `:class` - had an effect in version 0.2.0; now `:beamway.class/1` sets the class of a process

  Like the default adapter, `broadcast/4` and `direct_broadcast/5` return `:ok` even if a node could not be reached. Otherwise `Phoenix.PubSub` would not
  deliver the message to local subscribers, and `Phoenix.Tracker` would crash. Such a message is counted (`failed/1`) and logged, at most once a minute for
  each node and reason. If the connection to a node is full because the node hangs, a sender waits up to 2 s, and the next senders do not wait.
  """
  use Supervisor

  @scope Phoenix.PubSub
  @wait_ms 2000
  @log_ms 60_000
  # The atomics contain the number of failed messages, followed by this many slots. A slot contains the time from which failures with a certain node and
  # reason are logged again. A hash of the node and the reason selects the slot, so memory use is bounded.
  @slots 1000

  defmodule Worker do
    @moduledoc false
    # Delivers messages from other nodes to local subscribers.
    use GenServer

    @join_ms 100

    def start_link({pubsub, group, module}), do: GenServer.start_link(__MODULE__, {pubsub, group, module}, name: group)

    @impl true
    def init({pubsub, group, module}) do
      join(group)
      {:ok, {pubsub, group, module}}
    end

    @impl true
    def handle_info({:forward_to_local, topic, message, dispatcher}, {pubsub, _, module} = state) do
      module.local_broadcast(pubsub, topic, message, dispatcher)
      {:noreply, state}
    end

    def handle_info({:DOWN, _, :process, _, _}, state) do
      Process.send_after(self(), :join, @join_ms)
      {:noreply, state}
    end

    def handle_info(:join, {_, group, _} = state) do
      join(group)
      {:noreply, state}
    end

    def handle_info(_, state), do: {:noreply, state}

    # The scope belongs to the application phoenix_pubsub. After a restart it has no members, so this process joins again.
    defp join(group) do
      scope = Teleport.PubSub.scope()
      Process.monitor(scope)
      if Process.whereis(scope), do: :ok = :pg.join(scope, group, self())
    end
  end

  @doc false
  def child_spec(options), do: %{id: Keyword.fetch!(options, :adapter_name), start: {__MODULE__, :start_link, [options]}, type: :supervisor}

  @doc false
  def start_link(options) do
    case Enum.find_value(checks(options), fn {is_right, text} -> if !is_right, do: text end) do
      nil -> Supervisor.start_link(__MODULE__, options)
      text -> {:error, "Teleport.PubSub: " <> text}
    end
  end

  defp checks(options) do
    pool_size = Keyword.get(options, :pool_size, 1)
    broadcast_pool_size = Keyword.get(options, :broadcast_pool_size, pool_size)
    class = Keyword.get(options, :class, :normal)
    sites = Keyword.get(options, :sites, :none)

    [
      {is_integer(pool_size) and pool_size > 0, "the option pool_size is #{inspect(pool_size)}; give a number from 1 on"},
      {is_integer(broadcast_pool_size) and broadcast_pool_size in 1..pool_size//1,
       "the option broadcast_pool_size is #{inspect(broadcast_pool_size)}; give a number from 1 to pool_size, which is #{inspect(pool_size)}"},
      {class in [:control, :normal, :bulk], "the option class is #{inspect(class)}; give :control, :normal or :bulk"},
      {:teleport_sites.is_site_of(sites), "the option sites is #{inspect(sites)}; give a map of nodes to sites, a function of a node, or {module, function}"},
      {Process.whereis(:teleport_sup) != nil, "the application teleport is not running; start it before the PubSub system"},
      {Process.whereis(@scope) != nil, "the pg scope #{inspect(@scope)} is not running; start the application phoenix_pubsub before"}
    ]
  end

  @impl true
  def init(options) do
    adapter_name = Keyword.fetch!(options, :adapter_name)
    pool_size = Keyword.get(options, :pool_size, 1)
    groups = groups(adapter_name, pool_size)

    # The count survives a restart of this supervisor.
    counts = Map.get_lazy(:persistent_term.get({__MODULE__, adapter_name}, %{}), :counts, fn -> :atomics.new(1 + @slots, []) end)

    config = %{
      name: adapter_name,
      broadcast: Map.new([local: false, timeout: @wait_ms] ++ Keyword.take(options, [:sites])),
      counts: counts
    }

    :persistent_term.put({__MODULE__, adapter_name}, config)
    # The library's tests for adapters look up this key.
    :persistent_term.put(adapter_name, groups |> Enum.take(Keyword.get(options, :broadcast_pool_size, pool_size)) |> List.to_tuple())
    # Only tests use a different module.
    module = Keyword.get(options, :pubsub, Phoenix.PubSub)
    children = for group <- groups, do: Supervisor.child_spec({Worker, {Keyword.fetch!(options, :name), group, module}}, id: group)
    Supervisor.init(children, strategy: :one_for_one)
  end

  # These are the default adapter's groups, because nodes with that adapter send to these names.
  defp groups(adapter_name, pool_size), do: [adapter_name | for(n <- 2..pool_size//1, do: :"#{adapter_name}_#{n}")]

  @doc "Returns the name of this node."
  @spec node_name(atom()) :: node()
  def node_name(_adapter_name), do: node()

  @doc "Broadcasts to all other nodes of the PubSub system."
  @spec broadcast(atom(), String.t(), term(), module()) :: :ok
  def broadcast(adapter_name, topic, message, dispatcher) do
    config = config(adapter_name)

    case running(fn -> :teleport.broadcast(@scope, group(adapter_name), {:forward_to_local, topic, message, dispatcher}, config.broadcast) end) do
      %{failed: failed} -> Enum.each(failed, fn {to, reason} -> failed(config, to, reason) end)
      {:error, reason} -> failed(config, :"all other nodes", reason)
    end
  end

  @doc "Broadcasts to a single node, which may be this one."
  @spec direct_broadcast(atom(), node() | binary(), String.t(), term(), module()) :: :ok
  def direct_broadcast(adapter_name, node_name, topic, message, dispatcher) do
    config = config(adapter_name)
    group = group(adapter_name)
    forward = {:forward_to_local, topic, message, dispatcher}

    case known(node_name) do
      nil ->
        failed(config, node_name, {:nodedown, node_name})

      {:connected, to} when to == node() ->
        send(group, forward)
        :ok

      {:connected, to} ->
        # Sends a broadcast restricted to that node, so that the message does not overtake broadcasts that this process has already sent.
        case running(fn -> :teleport.broadcast(@scope, group, forward, Map.put(config.broadcast, :nodes, [to])) end) do
          %{failed: [], sent: [], plain: []} -> send_by_name({group, to}, forward)
          %{failed: failed} -> Enum.each(failed, fn {to, reason} -> failed(config, to, reason) end)
          {:error, reason} -> failed(config, to, reason)
        end

      # The node may never connect, so there is nothing to wait for.
      {:not_connected, to} ->
        send_by_name({group, to}, forward)
    end
  end

  @doc """
  Returns how many messages of this PubSub system could not be sent since it was started. A message that fails for several nodes counts once for each.
  """
  @spec failed(atom()) :: non_neg_integer()
  def failed(pubsub), do: :atomics.get(config(Module.concat(pubsub, Adapter)).counts, 1)

  @doc false
  def scope, do: @scope

  defp config(adapter_name), do: :persistent_term.get({__MODULE__, adapter_name})

  # Returns the group that the default adapter chooses for this process.
  defp group(adapter_name) do
    groups = :persistent_term.get(adapter_name)
    elem(groups, :erlang.phash2(self(), tuple_size(groups)))
  end

  # Sends to the registered name, because this node may not know yet that the process there is in the group.
  defp send_by_name(to, message) do
    send(to, message)
    :ok
  end

  # Does not create an atom for a name that is not a node's.
  defp known(node_name) do
    connected = [node() | Node.list(:connected)]

    cond do
      to = Enum.find(connected, &(&1 == node_name or Atom.to_string(&1) == node_name)) -> {:connected, to}
      is_atom(node_name) -> {:not_connected, node_name}
      true -> nil
    end
  end

  # The application may have been stopped, or be restarting.
  defp running(fun) do
    fun.()
  rescue
    error -> if Process.whereis(:teleport_sup), do: reraise(error, __STACKTRACE__), else: {:error, :not_started}
  end

  defp failed(%{counts: counts, name: name}, to, reason) do
    failed = :atomics.add_get(counts, 1, 1)
    what = if is_tuple(reason), do: elem(reason, 0), else: reason
    slot = 2 + :erlang.phash2({to, what}, @slots)
    now = System.convert_time_unit(System.monotonic_time() - :erlang.system_info(:start_time), :native, :millisecond)
    next = :atomics.get(counts, slot)

    if now >= next and :atomics.compare_exchange(counts, slot, next, now + @log_ms) == :ok do
      :logger.warning(
        '~ts: a message to ~ts was not sent: ~0tp. Its subscribers there may miss it. Messages that failed so far: ~b. ' ++
          'This node and reason are not logged again for a minute',
        [inspect(name), to_string(to), reason, failed]
      )
    end

    :ok
  end
end
