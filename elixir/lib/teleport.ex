# SPDX-License-Identifier: Apache-2.0
defmodule Teleport do
  @moduledoc """
  Messages and calls between nodes by the Erlang application `:teleport`: `GenServer`'s functions, with a choice of what happens when a connection is full.

  A destination is a pid, a name, `{name, node}`, `{:global, name}` or `{:via, module, name}`. Options are those of `:teleport`, as a keyword list or a
  map: `:on_full` (`:block`, `:error`, `:drop`), `:timeout` in milliseconds, `:key`, and for `send/3` and `cast/3` also `:confirm`. The guide of teleport
  says what is guaranteed.
  """

  @type dest :: pid() | atom() | {atom(), node()} | {:global, term()} | {:via, module(), term()}
  @type options :: keyword() | map()
  @type reason :: :teleport.reason()

  @doc """
  Sends a message. `:ok` means that it was handed over, as by `send/2`. With `confirm: true` the result is `{:ok, ref}`, and `{:teleport, ref, :confirmed | {:unconfirmed, reason}}` comes later.
  """
  @spec send(dest(), term(), options()) :: :ok | {:ok, reference()} | {:error, reason()}
  def send(dest, message, options \\ []), do: :teleport.send(dest, message, Map.new(options))

  @doc """
  Calls a server, for at most `timeout` milliseconds. Exits as `GenServer.call/3` does, with `{reason, {:teleport, :call, arguments}}`.
  """
  @spec call(dest(), term(), timeout(), options()) :: term()
  def call(dest, request, timeout \\ 5000, options \\ []), do: :teleport.call(dest, request, timeout, Map.new(options))

  @doc """
  Sends a request that has no reply. Unlike `GenServer.cast/2` it tells what could not be sent.
  """
  @spec cast(dest(), term(), options()) :: :ok | {:ok, reference()} | {:error, reason()}
  def cast(dest, request, options \\ []), do: :teleport.cast(dest, request, Map.new(options))

  @doc """
  Sends a message to the members of a group of `:pg`: encoded once, and sent once to each node.

  Options: `:scope` (default `:pg`), `:confirm` (default `false`), `:timeout`, `:sites`, `:local` and `:nodes`. The result names the nodes to which it was
  sent (`sent`), those that were sent to without teleport (`plain`), those without members any more (`skipped`), and `{node, reason}` of those that failed.
  """
  @spec broadcast(term(), term(), options()) ::
          %{sent: [node()], plain: [node()], skipped: [node()], failed: [{node(), reason()}]} | {:error, {:no_scope, term()}}
  def broadcast(group, message, options \\ []) do
    {scope, more} = options |> Map.new() |> Map.pop(:scope, :pg)
    :teleport.broadcast(scope, group, message, more)
  end

  @doc """
  Applies a function on another node, as `:erpc.call/5`, for at most 5 s: its value, or the same exceptions.
  """
  @spec rpc(node(), module(), atom(), [term()], timeout()) :: term()
  def rpc(node, module, function, args, limit \\ 5000), do: :erpc.call(node, module, function, args, limit)
end
