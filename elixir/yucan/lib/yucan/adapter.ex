# SPDX-License-Identifier: Apache-2.0
defmodule Yucan.Adapter do
  @moduledoc "Implements `Plug.Conn.Adapter` for a yucan request. Only the process in which the plug was called may use it."

  defstruct [:req, :owner, :tells, :upgrade]

  @doc "See `c:Plug.Conn.Adapter.send_resp/4`."
  def send_resp(payload, status, headers, body), do: sent(payload, &:yucan_answer.send({status, headers, body || ""}, &1))

  @doc "See `c:Plug.Conn.Adapter.send_file/6`."
  def send_file(payload, status, headers, path, offset, length) do
    %File.Stat{type: :regular, size: size} = File.stat!(path)
    length = if length == :all, do: size - offset, else: length

    if offset < 0 or length < 0 or offset + length > size,
      do: raise(ArgumentError, "offset #{offset} and length #{length} are beyond #{path}, which has #{size} bytes")

    sent(payload, &:yucan_answer.send({status, headers, {:file, path, offset, length}}, &1))
  end

  @doc "See `c:Plug.Conn.Adapter.send_chunked/3`."
  def send_chunked(payload, status, headers), do: sent(payload, &:yucan_answer.open(status, headers, &1))

  defp sent(payload, function) do
    :ok = payload |> own() |> function.()
    if payload.tells, do: send(self(), {:plug_conn, :sent})
    {:ok, nil, payload}
  end

  # Only this process knows the state of the answer and the body.
  defp own(%{owner: owner, req: req}) when owner == self(), do: req
  defp own(%{owner: owner}), do: raise("the conn belongs to #{inspect(owner)}, and #{inspect(self())} uses it; send or read in the process that calls the plug")

  @doc "See `c:Plug.Conn.Adapter.chunk/2`."
  def chunk(payload, body), do: :yucan_answer.write(body, own(payload))

  @doc "See `c:Plug.Conn.Adapter.read_req_body/2`. The timeout for a part of the body is also limited by yucan's minimum rate in bytes per second."
  def read_req_body(payload, options) do
    parts = %{max: Keyword.get(options, :read_length, 1_000_000), timeout: Keyword.get(options, :read_timeout, 15_000)}

    case :yucan_req.gather(Keyword.get(options, :length, 8_000_000), "", parts, own(payload)) do
      {:error, reason} -> {:error, reason}
      {more_or_ok, data} -> {more_or_ok, data, payload}
    end
  end

  @doc "See `c:Plug.Conn.Adapter.inform/3`."
  def inform(payload, status, headers), do: :yucan_answer.inform(status, headers, own(payload))

  @doc "See `c:Plug.Conn.Adapter.upgrade/3`: `:websocket` with `{module, state, options}`, where the module has the behaviour `WebSock`."
  def upgrade(payload, :websocket, {module, state, options}) when is_atom(module), do: {:ok, %{payload | upgrade: {module, state, options}}}
  def upgrade(_, _, _), do: {:error, :not_supported}

  @doc "Not supported, because clients no longer accept pushes."
  def push(_, _, _), do: {:error, :not_supported}

  @doc "See `c:Plug.Conn.Adapter.get_peer_data/1`. Returns the other end of the connection, whatever the headers say."
  def get_peer_data(payload) do
    certificate =
      with tls when tls != :none <- tls(payload), {:ok, der} <- :ssl.peercert(tls) do
        der
      else
        _ -> nil
      end

    payload.req |> :yucan_req.peer_socket() |> end_of() |> Map.put(:ssl_cert, certificate)
  end

  @doc "See `c:Plug.Conn.Adapter.get_sock_data/1`."
  def get_sock_data(payload), do: payload.req |> :yucan_req.local() |> end_of()

  @doc "See `c:Plug.Conn.Adapter.get_ssl_data/1`."
  def get_ssl_data(payload) do
    with tls when tls != :none <- tls(payload), {:ok, information} <- :ssl.connection_information(tls) do
      information
    else
      _ -> nil
    end
  end

  @doc "See `c:Plug.Conn.Adapter.get_http_protocol/1`."
  def get_http_protocol(payload) do
    case :yucan_req.version(payload.req) do
      {2, 0} -> :"HTTP/2"
      {1, 1} -> :"HTTP/1.1"
      {1, 0} -> :"HTTP/1.0"
    end
  end

  @doc false
  # Returns the client according to trusted proxies. Plugs expect an address, which a unix socket does not have.
  def remote_ip(req) do
    case :yucan_req.peer(req) do
      {:local, _} -> {127, 0, 0, 1}
      {ip, _} -> ip
    end
  end

  defp tls(payload), do: payload.req |> :yucan_req.socket() |> :yucan_transport.tls()

  defp end_of({:local, path}), do: %{address: {:local, path}, port: 0}
  defp end_of({ip, port}), do: %{address: ip, port: port}
end
