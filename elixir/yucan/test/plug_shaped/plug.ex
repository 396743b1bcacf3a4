# SPDX-License-Identifier: Apache-2.0
# The parts of Plug that the tests use, implemented as documented, because hex may not be reachable. This file is not compiled if Plug itself is on
# the code path.
defmodule Plug.Conn do
  defmodule NotSentError do
    defexception message: "a response was neither set nor sent from the connection"
  end

  defmodule AlreadySentError do
    defexception message: "the response was already sent"
  end

  defmodule WrapperError do
    defexception [:conn, :kind, :reason, :stack]
    def message(%{kind: kind, reason: reason, stack: stack}), do: Exception.format_banner(kind, reason, stack)
  end

  defstruct adapter: nil,
            method: "GET",
            host: "",
            port: 0,
            scheme: :http,
            remote_ip: nil,
            path_info: [],
            request_path: "",
            query_string: "",
            req_headers: [],
            resp_headers: [{"cache-control", "max-age=0, private, must-revalidate"}],
            resp_body: nil,
            status: nil,
            state: :unset

  @unsent [:unset, :set]

  def get_req_header(conn, name), do: for({^name, value} <- conn.req_headers, do: value)
  def put_resp_header(conn, name, value), do: %{conn | resp_headers: List.keystore(conn.resp_headers, name, 0, {name, value})}

  def resp(%{state: state} = conn, status, body) when state in @unsent, do: %{conn | status: status, resp_body: body, state: :set}
  def resp(_, _, _), do: raise(AlreadySentError)

  def send_resp(conn, status, body), do: conn |> resp(status, body) |> send_resp()

  def send_resp(%{state: :set, adapter: {adapter, payload}} = conn) do
    {:ok, body, payload} = adapter.send_resp(payload, conn.status, conn.resp_headers, conn.resp_body)
    %{conn | adapter: {adapter, payload}, resp_body: body, state: :sent}
  end

  def send_file(conn, status, file, offset \\ 0, length \\ :all)

  def send_file(%{state: state, adapter: {adapter, payload}} = conn, status, file, offset, length) when state in @unsent do
    {:ok, body, payload} = adapter.send_file(payload, status, conn.resp_headers, file, offset, length)
    %{conn | adapter: {adapter, payload}, status: status, resp_body: body, state: :file}
  end

  def send_chunked(%{state: state, adapter: {adapter, payload}} = conn, status) when state in @unsent do
    {:ok, body, payload} = adapter.send_chunked(payload, status, conn.resp_headers)
    %{conn | adapter: {adapter, payload}, status: status, resp_body: body, state: :chunked}
  end

  def chunk(%{state: :chunked, adapter: {adapter, payload}} = conn, chunk) do
    if IO.iodata_length(chunk) == 0 do
      {:ok, conn}
    else
      case adapter.chunk(payload, chunk) do
        :ok -> {:ok, conn}
        {:error, _} = error -> error
      end
    end
  end

  def read_body(%{adapter: {adapter, payload}} = conn, options \\ []) do
    case adapter.read_req_body(payload, options) do
      {:error, reason} -> {:error, reason}
      {more_or_ok, data, payload} -> {more_or_ok, data, %{conn | adapter: {adapter, payload}}}
    end
  end

  def inform(%{adapter: {adapter, payload}} = conn, status, headers) do
    _ = adapter.inform(payload, status, headers)
    conn
  end

  def upgrade_adapter(%{state: state, adapter: {adapter, payload}} = conn, protocol, args) when state in @unsent do
    case adapter.upgrade(payload, protocol, args) do
      {:ok, payload} -> %{conn | adapter: {adapter, payload}, state: :upgraded}
      {:error, :not_supported} -> raise ArgumentError, "upgrade to #{protocol} not supported by #{inspect(adapter)}"
    end
  end

  def get_peer_data(%{adapter: {adapter, payload}}), do: adapter.get_peer_data(payload)
  def get_sock_data(%{adapter: {adapter, payload}}), do: adapter.get_sock_data(payload)
  def get_ssl_data(%{adapter: {adapter, payload}}), do: adapter.get_ssl_data(payload)
  def get_http_protocol(%{adapter: {adapter, payload}}), do: adapter.get_http_protocol(payload)
end

defmodule Plug.Conn.Status do
  def code(:not_found), do: 404
  def code(status), do: status
end

defprotocol Plug.Exception do
  @fallback_to_any true
  def status(exception)
end

defimpl Plug.Exception, for: Any do
  def status(%{plug_status: status}), do: Plug.Conn.Status.code(status)
  def status(_), do: 500
end

defmodule Plug.Conn.Adapter do
  def conn(adapter, method, uri, remote_ip, req_headers) do
    %Plug.Conn{
      adapter: adapter,
      host: uri.host,
      method: method,
      path_info: String.split(uri.path, "/", trim: true),
      port: uri.port,
      query_string: uri.query || "",
      remote_ip: remote_ip,
      req_headers: req_headers,
      request_path: uri.path,
      scheme: String.to_atom(uri.scheme)
    }
  end
end
