# SPDX-License-Identifier: Apache-2.0
defmodule Teleport do
  @moduledoc """
  Sends messages and makes calls between nodes with the Erlang application `:teleport`. The functions are those of `GenServer`, but you choose what happens when a connection is full.

  A destination is a pid, a name, `{name, node}`, `{:global, name}` or `{:via, module, name}`. The options are those of `:teleport`, as a keyword list or
  a map: `:on_full` (`:block`, `:error`, `:drop`), `:timeout` in milliseconds, `:key`, and for `send/3` and `cast/3` also `:confirm`. Teleport's guide
  explains what is guaranteed.
  """

  @type dest :: pid() | atom() | {atom(), node()} | {:global, term()} | {:via, module(), term()}
  @type options :: keyword() | map()
  @type reason :: :teleport.reason()

  @doc """
  Sends a message. `:ok` means that it was handed over, as with `send/2`. With `confirm: true` the result is `{:ok, ref}`, and a message `{:teleport, ref, :confirmed | {:unconfirmed, reason}}` follows later.
  """
  @spec send(dest(), term(), options()) :: :ok | {:ok, reference()} | {:error, reason()}
  def send(dest, message, options \\ []), do: :teleport.send(dest, message, Map.new(options))

  @doc """
  Calls a server and waits at most `timeout` milliseconds. Exits like `GenServer.call/3`, with `{reason, {:teleport, :call, arguments}}`.
  """
  @spec call(dest(), term(), timeout(), options()) :: term()
  def call(dest, request, timeout \\ 5000, options \\ []), do: :teleport.call(dest, request, timeout, Map.new(options))

  @doc """
  Sends a request without a reply. Unlike `GenServer.cast/2`, it reports when the request could not be sent.
  """
  @spec cast(dest(), term(), options()) :: :ok | {:ok, reference()} | {:error, reason()}
  def cast(dest, request, options \\ []), do: :teleport.cast(dest, request, Map.new(options))

  @doc """
  Sends a message to the members of a `:pg` group. It is encoded once, and sent once to each node.

  Options: `:scope` (default `:pg`), `:confirm` (default `false`), `:timeout`, `:sites`, `:local` and `:nodes`. The result lists the nodes to which the
  message was sent (`sent`), those to which it was sent without teleport (`plain`), those that no longer have members (`skipped`), and
  `{node, reason}` for failures.
  """
  @spec broadcast(term(), term(), options()) ::
          %{sent: [node()], plain: [node()], skipped: [node()], failed: [{node(), reason()}]} | {:error, {:no_scope, term()}}
  def broadcast(group, message, options \\ []) do
    {scope, more} = options |> Map.new() |> Map.pop(:scope, :pg)
    :teleport.broadcast(scope, group, message, more)
  end

  @doc """
  Applies a function on another node, like `:erpc.call/5`, and waits at most 5 s by default. Returns its value, or raises the same exceptions.
  """
  @spec rpc(node(), module(), atom(), [term()], timeout()) :: term()
  def rpc(node, module, function, args, limit \\ 5000), do: :erpc.call(node, module, function, args, limit)
end
