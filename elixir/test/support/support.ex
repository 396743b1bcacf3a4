# SPDX-License-Identifier: Apache-2.0
defmodule OtherNode do
  @moduledoc "Starts another real node with teleport."

  def start(options \\ []) do
    name = :peer.random_name()
    args = Enum.flat_map(:code.get_path(), &[~c"-pa", &1]) ++ Keyword.get(options, :args, [])
    {:ok, peer, node} = :peer.start(%{name: name, connection: :standard_io, args: args})
    {:ok, _} = :peer.call(peer, :application, :ensure_all_started, [:elixir])
    if Keyword.get(options, :teleport, true), do: {:ok, _} = :peer.call(peer, :application, :ensure_all_started, [:teleport])
    true = Node.connect(node)
    {peer, node}
  end

  def eventually(fun, left \\ 1000) do
    cond do
      value = fun.() -> value
      left == 0 -> raise "not within 20 s"
      true -> Process.sleep(20) && eventually(fun, left - 1)
    end
  end
end

defmodule Store do
  @moduledoc "A server that records all messages in the order of arrival."
  use GenServer

  def start(name), do: GenServer.start(__MODULE__, [], name: name)

  @impl true
  def init(kept), do: {:ok, kept}

  @impl true
  def handle_call(:kept, _, kept), do: {:reply, Enum.reverse(kept), kept}
  def handle_call({:echo, term}, _, kept), do: {:reply, term, kept}
  def handle_call({:join, scope, group}, _, kept), do: {:reply, :pg.join(scope, group, self()), kept}

  @impl true
  def handle_cast(term, kept), do: {:noreply, [{:cast, term} | kept]}

  @impl true
  def handle_info(term, kept), do: {:noreply, [term | kept]}
end

defmodule Topics do
  @moduledoc """
  Does what Phoenix.PubSub does in addition to its adapter: keeps a node's subscribers in a registry, to which local_broadcast/4 sends, and runs the
  pg scope that the library's application would run.
  """

  def start(name, options \\ []) do
    adapter = Keyword.get(options, :adapter, Teleport.PubSub)
    _ = :pg.start(scope())

    Supervisor.start_link(
      [
        {Registry, keys: :duplicate, name: name, meta: [adapter: adapter]},
        {adapter, Keyword.merge([name: name, adapter_name: adapter(name), pubsub: __MODULE__], options)}
      ],
      strategy: :one_for_one
    )
    |> tap(fn started -> with {:ok, pid} <- started, do: Process.unlink(pid) end)
  end

  def scope, do: Phoenix.PubSub

  def adapter(name), do: Module.concat(name, Adapter)

  def local_broadcast(name, topic, message, dispatcher) do
    Registry.dispatch(name, topic, &dispatcher.dispatch(&1, :none, message))
    :ok
  end

  # As in the library, if the adapter returns an error, the message is not delivered to the subscribers on this node.
  def broadcast(name, topic, message) do
    {:ok, adapter} = Registry.meta(name, :adapter)
    with :ok <- adapter.broadcast(adapter(name), topic, message, __MODULE__), do: local_broadcast(name, topic, message, __MODULE__)
  end

  def direct_broadcast(node, name, topic, message) do
    {:ok, adapter} = Registry.meta(name, :adapter)
    adapter.direct_broadcast(adapter(name), node, topic, message, __MODULE__)
  end

  def dispatch(entries, :none, message), do: Enum.each(entries, fn {pid, _} -> send(pid, message) end)

  # A subscriber on this node that forwards its messages to another process.
  def subscribe_for(name, topic, to) do
    test = self()

    subscriber =
      spawn(fn ->
        {:ok, _} = Registry.register(name, topic, nil)
        send(test, {:subscribed, self()})
        forward(to)
      end)

    receive do
      {:subscribed, ^subscriber} -> :ok
    end
  end

  defp forward(to) do
    receive do
      message -> send(to, {node(), message})
    end

    forward(to)
  end
end

defmodule PlainAdapter do
  @moduledoc """
  Replaces Phoenix.PubSub's default adapter: it uses the same names, group and message, and sends with `send/2`. It does not need teleport.
  """
  use GenServer

  def start_link(options) do
    GenServer.start_link(__MODULE__, options, name: Keyword.fetch!(options, :adapter_name))
  end

  def broadcast(adapter_name, topic, message, dispatcher) do
    for pid <- :pg.get_members(Topics.scope(), adapter_name), node(pid) != node() do
      send(pid, {:forward_to_local, topic, message, dispatcher})
    end

    :ok
  end

  def direct_broadcast(adapter_name, node, topic, message, dispatcher) do
    send({adapter_name, node}, {:forward_to_local, topic, message, dispatcher})
    :ok
  end

  @impl true
  def init(options) do
    :ok = :pg.join(Topics.scope(), Keyword.fetch!(options, :adapter_name), self())
    {:ok, Keyword.fetch!(options, :name)}
  end

  @impl true
  def handle_info({:forward_to_local, topic, message, dispatcher}, name) do
    Topics.local_broadcast(name, topic, message, dispatcher)
    {:noreply, name}
  end
end

defmodule LogTo do
  @moduledoc "A logger handler that sends each message to a process."

  def add(id, pid), do: :ok = :logger.add_handler(id, __MODULE__, %{level: :warning, config: %{to: pid}})

  def log(%{msg: {format, arguments}}, %{config: %{to: pid}}) when is_list(format) do
    send(pid, {:logged, IO.chardata_to_string(:io_lib.format(format, arguments))})
  end

  def log(_, _), do: :ok
end
