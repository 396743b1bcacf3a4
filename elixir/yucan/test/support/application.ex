# SPDX-License-Identifier: Apache-2.0
defmodule Gone do
  defexception message: "there is no such thing", plug_status: 404
end

defmodule Application.Plug do
  @moduledoc "A plug whose behaviour is selected by the path."
  import Plug.Conn

  def init(options), do: Keyword.put(options, :ready, true)

  def call(%{path_info: path} = conn, options), do: answer(path, conn, options)

  defp answer(["hello"], conn, options), do: conn |> put_resp_header("x-ready", inspect(options)) |> send_resp(200, "hello")
  defp answer(["set"], conn, _), do: resp(conn, 201, ["se", ?t])

  defp answer(["told"], conn, _) do
    conn = send_resp(conn, 200, "told")
    receive do: ({:plug_conn, :sent} -> conn)
  end

  defp answer(["seen" | _], conn, _) do
    seen = Map.take(conn, [:method, :host, :port, :scheme, :path_info, :request_path, :query_string, :remote_ip])
    tls = if data = get_ssl_data(conn), do: Keyword.get(data, :protocol)
    own = %{headers: get_req_header(conn, "x-twice"), peer: get_peer_data(conn), local: get_sock_data(conn), tls: tls, protocol: get_http_protocol(conn)}
    send_resp(conn, 200, seen |> Map.merge(own) |> :erlang.term_to_binary() |> Base.encode64())
  end

  defp answer(["file", offset, length], conn, options) do
    length = if length == "all", do: :all, else: String.to_integer(length)
    send_file(conn, 200, options[:file], String.to_integer(offset), length)
  end

  defp answer(["chunks", count], conn, _) do
    Enum.reduce(1..String.to_integer(count), send_chunked(conn, 200), fn number, conn ->
      {:ok, conn} = chunk(conn, "#{number},")
      conn
    end)
  end

  defp answer(["counted"], conn, _) do
    conn = conn |> put_resp_header("content-length", "6") |> send_chunked(200)
    {:ok, conn} = chunk(conn, "abc")
    {:ok, conn} = chunk(conn, "def")
    conn
  end

  # Runs until the client has disconnected, and then informs the test.
  defp answer(["endless"], conn, options) do
    conn = send_chunked(conn, 200)
    send(options[:test], :streams)
    send(options[:test], {:gone, endless(conn)})
    conn
  end

  defp answer(["body"], conn, _) do
    {parts, conn} = parts(conn, [])
    send_resp(conn, 200, Enum.map_join(parts, ",", &"#{byte_size(&1)}") <> " " <> (:crypto.hash(:sha256, parts) |> Base.encode16()))
  end

  defp answer(["hints"], conn, _) do
    conn |> inform(103, link: "</style.css>; rel=preload", "x-second": "2") |> send_resp(200, "page")
  end

  defp answer(["raise"], _, _), do: raise("a plug fails")
  defp answer(["throw"], _, _), do: throw(:ball)
  defp answer(["exit"], _, _), do: exit(:reason)
  defp answer(["gone"], _, _), do: raise(Gone)
  defp answer(["wrapped"], conn, _), do: raise(%Plug.Conn.WrapperError{conn: conn, kind: :error, reason: %Gone{}, stack: []})
  defp answer(["nothing"], conn, _), do: conn
  defp answer(["no_conn"], _, _), do: :no_conn

  defp answer(["raise_after"], conn, _) do
    send_resp(conn, 200, "sent before")
    raise "a plug fails after its answer"
  end

  defp answer(["raise_within"], conn, _) do
    {:ok, _} = conn |> send_chunked(200) |> chunk("begun")
    raise "a plug fails within its answer"
  end

  defp answer(["twice"], conn, _) do
    send_resp(conn, 200, "first")
    send_resp(conn, 200, "second")
  end

  defp answer(["elsewhere"], conn, _) do
    {_, monitor} = spawn_monitor(fn -> send_resp(conn, 200, "from elsewhere") end)
    receive do: ({:DOWN, ^monitor, _, _, {%{message: message}, _}} -> send_resp(conn, 200, message))
  end

  defp answer(["slow"], conn, options) do
    send(options[:test], {:slow, self()})
    receive do: (:go -> send_resp(conn, 200, "slow"))
  end

  defp answer(["ws"], conn, options) do
    conn |> put_resp_header("x-socket", "yes") |> upgrade_adapter(:websocket, {Application.Socket, options[:test], timeout: 60_000, compress: false})
  end

  defp answer(["other_upgrade"], conn, _), do: upgrade_adapter(conn, :tcp, [])

  defp endless(conn) do
    case chunk(conn, :binary.copy("x", 65_536)) do
      {:ok, conn} -> endless(conn)
      {:error, reason} -> reason
    end
  end

  defp parts(conn, read) do
    case read_body(conn, length: 100_000, read_length: 30_000) do
      {:more, part, conn} -> parts(conn, [read, part] |> List.flatten())
      {:ok, part, conn} -> {[read, part] |> List.flatten(), conn}
    end
  end
end

defmodule Application.Socket do
  @moduledoc "Implements the behaviour WebSock. It follows the test's instructions and reports events to the test."

  def init(test), do: {:push, {:text, "welcome"}, test}

  def handle_in({"twice", opcode: :text}, test), do: {:push, [{:text, "one"}, {:binary, <<2>>}], test}
  def handle_in({"reply", opcode: :text}, test), do: {:reply, :ok, {:text, "replied"}, test}
  def handle_in({"tell", opcode: :text}, test), do: send(self(), :told) && {:ok, test}
  def handle_in({"stop", opcode: :text}, test), do: {:stop, :normal, test}
  def handle_in({"restart", opcode: :text}, test), do: {:stop, {:shutdown, :restart}, test}
  def handle_in({"detail", opcode: :text}, test), do: {:stop, :why, {4001, "detail"}, {:text, "last"}, test}
  def handle_in({"crash", opcode: :text}, _), do: raise("a socket fails")
  def handle_in({data, opcode: opcode}, test), do: {:push, {opcode, data}, test}

  def handle_control({data, opcode: :ping}, test), do: {:push, {:text, "pinged by #{data}"}, test}
  def handle_control({data, opcode: :pong}, test), do: {:push, {:text, "ponged by #{data}"}, test}

  def handle_info(:told, test), do: {:push, {:text, "told"}, test}

  def terminate(reason, test), do: send(test, {:terminated, reason})
end
