# SPDX-License-Identifier: Apache-2.0
defmodule Yucan.Handler do
  @moduledoc """
  A yucan handler that calls a plug. A route in an Erlang configuration may name it: `{<<"/app/*">>, 'Elixir.Yucan.Handler', {'Elixir.MyApp', []}}`.

  An exception is answered with the status that `Plug.Exception` gives it and a page from yucan, and is logged if the status is 500 or above. Data that was
  sent before the exception cannot be withdrawn. In that case a chunked response is not terminated, so the client can see that it is incomplete.
  """
  @behaviour :yucan_handler
  require Logger

  @sent {:plug_conn, :sent}

  @impl true
  def init({plug, options}) when is_atom(plug), do: {plug, plug.init(options)}
  def init({function, options}), do: {function, options}

  @impl true
  def handle(req, {plug, options}) do
    try do
      req |> conn() |> call(plug, options) |> finish(plug)
    catch
      kind, reason -> failed(kind, reason, __STACKTRACE__)
    after
      forget()
    end
  end

  defp call(conn, plug, options) when is_atom(plug), do: plug.call(conn, options)
  defp call(conn, function, options), do: function.(conn, options)

  defp conn(req) do
    query = :yucan_req.query(req)

    uri = %URI{
      scheme: Atom.to_string(:yucan_req.scheme(req)),
      host: :yucan_req.host(req) || "",
      port: :yucan_req.port(req),
      path: :yucan_req.path(req),
      query: if(query == "", do: nil, else: query)
    }

    payload = %Yucan.Adapter{req: req, owner: self(), tells: true}
    conn = Plug.Conn.Adapter.conn({Yucan.Adapter, payload}, :yucan_req.method(req), uri, Yucan.Adapter.remote_ip(req), :yucan_req.headers(req))
    # If Plug has set an owner, Plug itself tells that process that a response has been sent.
    if Map.get(conn, :owner), do: %{conn | adapter: {Yucan.Adapter, %{payload | tells: false}}}, else: conn
  end

  defp finish(%{__struct__: Plug.Conn, state: :unset}, _), do: raise(Plug.Conn.NotSentError)
  defp finish(%{__struct__: Plug.Conn, state: :set} = conn, plug), do: conn |> Plug.Conn.send_resp() |> finish(plug)

  defp finish(%{__struct__: Plug.Conn, state: :upgraded, adapter: {_, %Yucan.Adapter{upgrade: {web_sock, state, options}}}} = conn, _),
    do: {:websocket, Yucan.WebSock, {web_sock, state}, Yucan.WebSock.options(options, conn.resp_headers)}

  defp finish(%{__struct__: Plug.Conn}, _), do: :sent
  defp finish(other, plug), do: raise("expected #{inspect(plug)} to return %Plug.Conn{}, got: #{inspect(other)}")

  defp failed(:error, %{__struct__: Plug.Conn.WrapperError} = error, _), do: failed(error.kind, error.reason, error.stack)

  defp failed(kind, reason, stack) do
    status = status(kind, reason)
    normal = Exception.normalize(kind, reason, stack)

    if status >= 500,
      do: Logger.error(Exception.format(kind, normal, stack), crash_reason: {if(kind == :throw, do: {:nocatch, reason}, else: normal), stack})

    if :yucan_answer.cut(), do: :sent, else: :yucan_error.page(status)
  end

  # Returns 500 if Plug.Exception does not exist, because a plug can be used without the library Plug.
  defp status(:error, reason) do
    if Code.ensure_loaded?(Plug.Exception), do: reason |> then(&Exception.normalize(:error, &1)) |> Plug.Exception.status() |> code(), else: 500
  end

  defp status(_, _), do: 500

  defp code(status) when is_integer(status), do: status
  defp code(status), do: Plug.Conn.Status.code(status)

  # Removes Plug's messages about sent answers, because the process continues with the connection's next request.
  defp forget do
    receive do
      @sent -> forget()
    after
      0 -> :ok
    end
  end
end
