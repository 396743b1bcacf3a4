# SPDX-License-Identifier: Apache-2.0
defmodule Relay do
  @moduledoc """
  The functions that beamway_elixir_SUITE calls on a node, through the release's own `rpc` command. Each function makes
  the checks that it describes, and returns `:ok` or raises.
  """

  @wait 30_000

  @doc "Connects to the nodes, and checks that both Beamway and the VM report this kind for every link."
  def connect(nodes, kind) do
    for node <- nodes do
      true = Node.connect(node)
      {_, port} = List.keyfind(:erlang.system_info(:dist_ctrl), node, 0)
      {:name, driver} = :erlang.port_info(port, :name)
      true = to_string(driver) == if(kind == :stock, do: "tcp_inet", else: "beamway_drv")
      true = kind == :stock or reported(node) == [kind]
    end

    :ok
  end

  # apply/3 is used, because one of the two releases is compiled without Beamway.
  defp reported(node), do: for(%{node: ^node, link: link} <- apply(:beamway, :links, []), do: link)

  @doc "Makes calls and casts to a GenServer on other nodes, small and large, sequentially and concurrently."
  def gen_servers(nodes) do
    for node <- nodes do
      counter = {Relay.Counter, node}
      start = GenServer.call(counter, :sum, @wait)
      for number <- 1..500, do: true = GenServer.call(counter, {:add, 1}, @wait) == start + number
      large = :binary.copy(<<"0123456789abcdef">>, 200_000)
      {^node, ^large} = GenServer.call(counter, {:echo, large}, @wait)
      for number <- 1..1000, do: GenServer.cast(counter, {:tell, number})
      true = GenServer.call(counter, :told, @wait) == Enum.to_list(1..1000)
    end

    {replies, []} = GenServer.multi_call(nodes, Relay.Counter, {:echo, :all}, @wait)
    true = Enum.sort(replies) == Enum.sort(for node <- nodes, do: {node, {node, :all}})
    many(nodes)
  end

  # Calls from 50 concurrent processes are neither lost nor counted twice.
  defp many(nodes) do
    before = Map.new(nodes, &{&1, GenServer.call({Relay.Counter, &1}, :sum, @wait)})
    call = fn _ -> for node <- nodes, _ <- 1..20, do: GenServer.call({Relay.Counter, node}, {:add, 1}, @wait) end
    1..50 |> Task.async_stream(call, max_concurrency: 50, timeout: @wait) |> Stream.run()
    for node <- nodes, do: true = GenServer.call({Relay.Counter, node}, :sum, @wait) == before[node] + 1000
    :ok
  end

  @doc "A call fails as on a single node if the server crashes, does not exist, or does not answer in time."
  def failing_calls([node | _]) do
    counter = {Relay.Counter, node}

    {{%ArgumentError{message: "on purpose"}, _}, _} =
      exit_of(fn -> GenServer.call(counter, {:fail, "on purpose"}, @wait) end)

    until(fn -> is_pid(:erpc.call(node, Process, :whereis, [Relay.Counter], @wait)) end)
    {:timeout, _} = exit_of(fn -> GenServer.call(counter, :never, 100) end)
    {:noproc, _} = exit_of(fn -> GenServer.call({Relay.Nobody, node}, :sum, @wait) end)
    {{:nodedown, :nobody@nowhere}, _} = exit_of(fn -> GenServer.call({Relay.Counter, :nobody@nowhere}, :sum, @wait) end)
    until(fn -> match?({_, :here}, GenServer.call(counter, {:echo, :here}, @wait)) end)
  end

  @doc "Runs tasks under the supervisors of other nodes. Checks their results, and how tasks without a result exit."
  def tasks(nodes) do
    for {node, number} <- Enum.zip(Stream.cycle(nodes), 1..200) do
      {node, number, Task.Supervisor.async_nolink({Relay.Tasks, node}, Relay, :square, [number])}
    end
    |> Enum.each(fn {node, number, task} -> true = Task.await(task, @wait) == {node, number * number} end)

    [node | _] = nodes
    supervisor = {Relay.Tasks, node}
    raising = Task.Supervisor.async_nolink(supervisor, Relay, :raise_it, ["on purpose"])
    {:exit, {%RuntimeError{message: "on purpose"}, _}} = Task.yield(raising, @wait)
    slow = Task.Supervisor.async_nolink(supervisor, Process, :sleep, [:infinity])
    nil = Task.yield(slow, 50)
    nil = Task.shutdown(slow, :brutal_kill)
    until(fn -> Task.Supervisor.children(supervisor) == [] end)
  end

  def square(number), do: {node(), number * number}

  def raise_it(text), do: raise(text)

  @doc "The node is killed while it runs our tasks. Each task exits with the reason for a lost node."
  def killed(node) do
    supervisor = {Relay.Tasks, node}
    :ok = :net_kernel.monitor_nodes(true)
    sleeping = for _ <- 1..4, do: Task.Supervisor.async_nolink(supervisor, Process, :sleep, [:infinity])
    linked = Task.async(fn -> lose_linked(supervisor) end)
    caller = Task.async(fn -> exit_of(fn -> GenServer.call({Relay.Counter, node}, :never, @wait) end) end)
    until(fn -> length(Task.Supervisor.children(supervisor)) == 5 end)
    os_pid = :erpc.call(node, System, :pid, [], @wait)
    {_, 0} = System.cmd("kill", ["-9", os_pid])
    [first | others] = sleeping
    {{:nodedown, ^node}, {Task, :await, _}} = exit_of(fn -> Task.await(first, @wait) end)
    for task <- others, do: {{:nodedown, ^node}, {Task, :yield, _}} = exit_of(fn -> Task.yield(task, @wait) end)
    :noconnection = Task.await(linked, @wait)
    {{:nodedown, ^node}, {GenServer, :call, _}} = Task.await(caller, @wait)
    receive do: ({:nodedown, ^node} -> :ok), after: (@wait -> raise("no nodedown"))
  end

  # A linked task terminates its caller too, and this caller observes the exit reason.
  defp lose_linked(supervisor) do
    Process.flag(:trap_exit, true)
    %Task{pid: pid} = Task.Supervisor.async(supervisor, Process, :sleep, [:infinity])
    receive do: ({:EXIT, ^pid, reason} -> reason), after: (@wait -> :nothing)
  end

  defp exit_of(call) do
    try do
      {:no_exit, call.()}
    catch
      :exit, reason -> reason
    end
  end

  defp until(condition, tries \\ 3000) do
    cond do
      condition.() -> :ok
      tries == 0 -> raise("not within 30 seconds")
      true -> Process.sleep(10) && until(condition, tries - 1)
    end
  end
end
