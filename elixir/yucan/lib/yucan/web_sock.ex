# SPDX-License-Identifier: Apache-2.0
defmodule Yucan.WebSock do
  @moduledoc """
  Runs a module with the behaviour `WebSock` on a yucan WebSocket:

      Plug.Conn.upgrade_adapter(conn, :websocket, {MySocket, state, timeout: 60_000})

  The options are `:timeout` in ms, `:max_frame_size` in bytes (of a message), `:compress`, and `:origins`, which is `:same` (default), `:any`, or a list.
  A page from another origin gets 403 unless `:origins` permits it. `Phoenix.Socket` checks origins itself, so use `origins: :any` with it.
  """
  @behaviour :yucan_ws

  @names %{timeout: :idle_ms, max_frame_size: :max_message, compress: :compress, origins: :origins}

  @doc false
  def options(options, headers) do
    known = for {key, value} <- options || [], name = @names[key], value != :infinity, into: %{}, do: {name, value}
    Map.put(known, :headers, for({name, _} = header <- headers, name not in ["content-length", "cache-control"], do: header))
  end

  @impl true
  def init(_req, {module, state}), do: result(module.init(state), module)

  @impl true
  def message({opcode, data}, {module, state, _}), do: result(module.handle_in({data, opcode: opcode}, state), module)

  @impl true
  def control({opcode, data}, {module, state, _} = whole) do
    if function_exported?(module, :handle_control, 2),
      do: result(module.handle_control({data, opcode: opcode}, state), module),
      else: {:ok, whole}
  end

  @impl true
  def info(message, {module, state, _}), do: result(module.handle_info(message, state), module)

  @impl true
  # If init has stopped the socket, there is no state.
  def terminate(_, :undefined), do: :ok

  def terminate(reason, {module, state, stopped}) do
    if function_exported?(module, :terminate, 2), do: module.terminate(reason(reason, stopped), state)
  end

  defp reason({:crashed, reason}, _), do: {:error, reason}
  defp reason(_, {:stopped, :normal}), do: :normal
  defp reason(_, {:stopped, reason}), do: {:error, reason}
  defp reason({:closed, _, _}, nil), do: :remote
  defp reason(:lost, nil), do: {:error, :closed}
  defp reason(:idle, nil), do: :timeout
  defp reason(:drained, nil), do: :shutdown

  defp result({:ok, state}, module), do: {:ok, {module, state, nil}}
  defp result({:push, messages, state}, module), do: {:reply, messages, {module, state, nil}}
  defp result({:reply, _, messages, state}, module), do: result({:push, messages, state}, module)
  defp result({:stop, reason, state}, module), do: result({:stop, reason, code(reason), [], state}, module)
  defp result({:stop, reason, detail, state}, module), do: result({:stop, reason, detail, [], state}, module)

  defp result({:stop, reason, detail, messages, state}, module) do
    {code, text} = if is_tuple(detail), do: detail, else: {detail, ""}
    {:close, code, text || "", List.wrap(messages), {module, state, {:stopped, reason}}}
  end

  # These codes are from RFC 6455, section 7.4.1, except 1012, which is from IANA's registry of close codes.
  defp code(:normal), do: 1000
  defp code({:shutdown, :restart}), do: 1012
  defp code(_), do: 1011
end
