# SPDX-License-Identifier: Apache-2.0
defmodule Relay.Counter do
  @moduledoc "A GenServer that adds numbers, remembers the order of its requests, and can be made to crash."
  use GenServer

  def start_link(_), do: GenServer.start_link(__MODULE__, [], name: __MODULE__)

  @impl true
  def init(_), do: {:ok, %{sum: 0, told: []}}

  @impl true
  def handle_call({:add, number}, _from, state) do
    state = %{state | sum: state.sum + number}
    {:reply, state.sum, state}
  end

  def handle_call(:sum, _from, state), do: {:reply, state.sum, state}
  def handle_call({:echo, term}, _from, state), do: {:reply, {node(), term}, state}
  def handle_call(:told, _from, state), do: {:reply, Enum.reverse(state.told), %{state | told: []}}
  def handle_call({:fail, text}, _from, _state), do: raise(ArgumentError, text)
  def handle_call(:never, _from, state), do: {:noreply, state}

  @impl true
  def handle_cast({:tell, term}, state), do: {:noreply, %{state | told: [term | state.told]}}
end
