# SPDX-License-Identifier: Apache-2.0
defmodule YucanTest do
  use ExUnit.Case
  import ExUnit.CaptureLog

  @patience 20_000

  # A plug to which the tests pass what they need in its options.
  defp options(own) do
    plug = {Application.Plug, [test: self()] ++ Keyword.get(own, :plug, [])}
    name = :"yucan_#{System.unique_integer([:positive])}"
    Keyword.merge([port: 0, ip: :loopback, name: name, startup_log: false], Keyword.put(own, :plug, plug))
  end

  defp start(own \\ []) do
    options = options(own)
    start_supervised!({Yucan, options})
    Yucan.port(options[:name])
  end

  # Starts a server that the test stops itself. Returns a function that stops it.
  defp start_to_stop do
    options = options([])
    {:ok, supervisor} = Supervisor.start_link([{Yucan, options}], strategy: :one_for_one)
    {Yucan.port(options[:name]), fn -> Task.async(fn -> Supervisor.stop(supervisor) end) end}
  end

  defp get(path), do: start() |> :yucan_client.get(path)

  defp folder do
    folder = Path.join(System.tmp_dir!(), "yucan_#{System.unique_integer([:positive])}_#{System.pid()}")
    File.mkdir_p!(folder)
    on_exit(fn -> File.rm_rf!(folder) end)
    folder
  end

  defp header(name, {_, headers, _}), do: :proplists.get_value(name, headers, nil)

  test "answers, with the options that the plug's init has made" do
    assert {200, _, "hello"} = response = get("/hello")
    assert header("x-ready", response) =~ "ready: true"
    assert header("cache-control", response) == "max-age=0, private, must-revalidate"
    assert header("server", response) == "yucan"
    assert {201, _, "set"} = get("/set")
  end

  test "takes a function, and a module without options" do
    start_supervised!({Yucan, plug: fn conn, [] -> Plug.Conn.send_resp(conn, 200, "function") end, port: 0, ip: :loopback, startup_log: false})
    assert {200, _, "function"} = :yucan_client.get(Yucan.port(Function.Yucan.HTTP), "/")

    assert capture_log(fn -> start_supervised!({Yucan, plug: Application.Plug, port: 0, ip: :loopback}) end) =~
             "Running Application.Plug with yucan at 127.0.0.1:"

    assert {200, _, "hello"} = :yucan_client.get(Yucan.port(Application.Plug.Yucan.HTTP), "/hello")
  end

  # A proxy sends requests of several users over one connection.
  test "shows a request nothing that the one before has kept in its process" do
    plug = fn conn, [] ->
      before = inspect({Logger.metadata(), Process.get(:locale)})
      Logger.metadata(user: "alice")
      Process.put(:locale, "de")
      Plug.Conn.send_resp(conn, 200, before)
    end

    start_supervised!({Yucan, plug: plug, port: 0, ip: :loopback, name: :yucan_kept, startup_log: false})
    request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert [{200, _, "{[], nil}"}, {200, _, "{[], nil}"}] = :yucan_client.exchange(Yucan.port(:yucan_kept), [request, request])
  end

  test "keeps the options of a plug out of the log" do
    plug = {Application.Plug, password: "hidden"}
    log = capture_log(fn -> start_supervised!({Yucan, plug: plug, port: 0, ip: :loopback}) end)
    assert log =~ "Running Application.Plug with yucan at 127.0.0.1:"
    refute log =~ "hidden"
  end

  test "refuses options that are none" do
    for {options, text} <- [
          {[], "plug is nil"},
          {[plug: NoSuchPlug], "plug is NoSuchPlug, which is not a module with call/2"},
          {[plug: Application.Plug, sheme: :http], "unknown option :sheme"},
          {[plug: Application.Plug, scheme: :ftp], "scheme is :ftp; :http or :https is expected"},
          {[plug: Application.Plug, scheme: :https], "scheme is :https without a certificate"},
          {[plug: Application.Plug, certfile: "x"], ":certfile needs TLS, but scheme is :http"},
          {[plug: Application.Plug, port: 70_000], "port is 70000; 0 to 65535 is expected"}
        ] do
      assert {:error, {:bad_options, said}} = Yucan.start_link(options)
      assert said =~ text
    end

    port = start()
    Process.flag(:trap_exit, true)
    assert {:error, said} = Yucan.start_link(plug: Application.Plug, ip: :loopback, port: port)
    assert said =~ "cannot listen on 127.0.0.1 port #{port}: address already in use"
  end

  defp seen(response), do: response |> elem(2) |> Base.decode64!() |> :erlang.binary_to_term()

  test "tells the plug what was asked for" do
    port = start()
    request = "GET /seen/a%20b/../c//d?q=1&r HTTP/1.1\r\nHost: Example.org:81\r\nX-Twice: 1\r\nx-twice: 2\r\n\r\n"
    assert [response] = :yucan_client.exchange(port, request)
    # Routes, files and plugs see the same path, without dots and empty segments.
    expected = %{method: "GET", host: "example.org", port: 81, scheme: :http, request_path: "/seen/c/d", path_info: ["seen", "c", "d"], query_string: "q=1&r"}
    assert expected == Map.take(seen(response), Map.keys(expected))
    assert %{headers: ["1", "2"], remote_ip: {127, 0, 0, 1}, tls: nil, protocol: :"HTTP/1.1"} = seen(response)
    assert %{peer: %{address: {127, 0, 0, 1}, port: client, ssl_cert: nil}, local: %{address: {127, 0, 0, 1}, port: ^port}} = seen(response)
    assert is_integer(client)
  end

  test "tells the plug what a trusted proxy says, and each request's id and end" do
    test = self()
    event = fn name, _, metadata -> send(test, {name, metadata}) end
    port = start(trusted_proxies: ["127.0.0.1"], forwarded: ["x-forwarded-for", "x-forwarded-proto"], request_id: true, on_event: event)
    response = :yucan_client.get(port, "/seen", [{"X-Forwarded-For", "1.2.3.4"}, {"X-Forwarded-Proto", "https"}, {"X-Request-Id", "one"}])
    assert %{remote_ip: {1, 2, 3, 4}, scheme: :https, port: 443} = seen(response)
    assert header("x-request-id", response) == "one"
    assert_receive {[:yucan, :request, :stop], %{status: 200, id: "one"}}, @patience
  end

  test "listens on unix sockets" do
    path = Path.join(folder(), "socket")
    start(ip: {:local, path})
    {:ok, socket} = :gen_tcp.connect({:local, path}, 0, [:binary, active: false])
    :ok = :gen_tcp.send(socket, "GET /seen HTTP/1.1\r\nHost: h\r\n\r\n")
    assert {200, _, _} = response = :yucan_client.one(socket)
    assert %{remote_ip: {127, 0, 0, 1}, peer: %{address: {:local, _}, port: 0}} = seen(response)
  end

  test "sends the body's head alone for HEAD" do
    port = start()

    for {path, length} <- [{"/hello", "5"}, {"/set", "3"}, {"/chunks/3", nil}, {"/counted", "6"}] do
      # The client must keep its own side open, because a client that has closed its side counts as disconnected.
      socket = :yucan_client.connect(port)
      :ok = :gen_tcp.send(socket, "HEAD #{path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
      assert [{_, _, ""} = response] = socket |> :yucan_client.until_closed() |> :yucan_client.parse("HEAD")
      assert header("content-length", response) == length
    end

    # A chunk is discarded without an error, even if the connection is closed after the answer.
    close = "HEAD /chunks/3 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"

    for request <- ["HEAD /chunks/3 HTTP/1.1\r\nHost: h\r\n\r\n" <> close, close, "HEAD /chunks/3 HTTP/1.0\r\n\r\n"] do
      socket = :yucan_client.connect(port)

      assert capture_log(fn ->
               :ok = :gen_tcp.send(socket, request)
               assert "HTTP/1.1 200 OK\r\n" <> _ = :yucan_client.until_closed(socket)
             end) == ""
    end
  end

  test "sends files and their parts" do
    file = Path.join(folder(), "file")
    content = :crypto.strong_rand_bytes(300_000)
    File.write!(file, content)
    port = start(plug: [file: file])
    assert {200, _, ^content} = :yucan_client.get(port, "/file/0/all")
    part = binary_part(content, 1000, 299_000)
    assert {200, _, ^part} = :yucan_client.get(port, "/file/1000/all")
    part = binary_part(content, 7, 5)
    assert {200, _, ^part} = :yucan_client.get(port, "/file/7/5")
    assert {500, _, _} = :yucan_client.get(port, "/file/299999/2")
    assert {200, _, ^content} = :yucan_h2_client.request(port, "/file/0/all", [])
  end

  test "sends chunks, over HTTP/1.0, 1.1 and 2" do
    port = start()
    assert {200, _, "1,2,3,"} = response = :yucan_client.get(port, "/chunks/3")
    assert header("transfer-encoding", response) == "chunked"
    assert {200, _, "abcdef"} = response = :yucan_client.get(port, "/counted")
    assert {header("transfer-encoding", response), header("content-length", response)} == {nil, "6"}
    assert {200, _, "1,2,3,"} = :yucan_h2_client.request(port, "/chunks/3", [])
    assert {200, _, "abcdef"} = :yucan_h2_client.request(port, "/counted", [])

    socket = :yucan_client.connect(port)
    :ok = :gen_tcp.send(socket, "GET /chunks/2 HTTP/1.0\r\n\r\n")
    assert [head, "1,2,"] = socket |> :yucan_client.until_closed() |> String.split("\r\n\r\n")
    assert head =~ "connection: close"
  end

  test "serves many requests on one connection" do
    port = start()
    request = fn path -> "GET #{path} HTTP/1.1\r\nHost: h\r\n\r\n" end
    paths = ["/told", "/chunks/2", "/hello", "/gone", "/told"]
    answers = :yucan_client.exchange(port, Enum.map(paths, request))
    assert [{200, "told"}, {200, "1,2,"}, {200, "hello"}, {404, _}, {200, "told"}] = for({status, _, body} <- answers, do: {status, body})
  end

  test "reads bodies in parts" do
    port = start()
    body = :crypto.strong_rand_bytes(1_000_000)
    hash = :crypto.hash(:sha256, body) |> Base.encode16()
    assert [{200, _, said}] = :yucan_client.exchange(port, ["POST /body HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n", body])
    assert [sizes, ^hash] = String.split(said, " ")
    assert Enum.all?(String.split(sizes, ","), &(String.to_integer(&1) <= 100_000))

    chunks = for <<part::binary-size(50_000) <- body>>, do: ["C350\r\n", part, "\r\n"]
    request = ["POST /body HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n", chunks, "0\r\n\r\n"]
    assert [{200, _, said}] = :yucan_client.exchange(port, request)
    assert [_, ^hash] = String.split(said, " ")

    # A body that ends early is not accepted.
    assert [{500, _, _}] = :yucan_client.exchange(port, ["POST /body HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n", "short"])
  end

  test "informs before it answers" do
    port = start()
    request = "GET /hints HTTP/1.1\r\nHost: h\r\n\r\n"
    assert [{103, headers, ""}, {200, _, "page"}, {103, _, _}, {200, _, "page"}] = :yucan_client.exchange(port, [request, request])
    assert headers == [{"link", "</style.css>; rel=preload"}, {"x-second", "2"}]

    # HTTP/1.0 has no interim responses.
    socket = :yucan_client.connect(port)
    :ok = :gen_tcp.send(socket, "GET /hints HTTP/1.0\r\n\r\n")
    assert "HTTP/1.1 200 OK\r\n" <> _ = :yucan_client.until_closed(socket)

    h2 = :yucan_h2_client.connect(port)
    :ok = :yucan_h2_client.send(h2, :yucan_h2_client.headers(1, 1, :yucan_h2_client.get("/hints", []), ""))
    assert {1, 4, 1, [{":status", "103"}, {"link", "</style.css>; rel=preload"}, {"x-second", "2"}]} = :yucan_h2_client.until(h2, 1)
    assert {200, _, "page"} = :yucan_h2_client.response(h2, 1)
  end

  test "answers and logs when a plug fails" do
    port = start()

    for {path, said} <- [
          {"/raise", "** (RuntimeError) a plug fails"},
          {"/throw", "** (throw) :ball"},
          {"/exit", "** (exit) :reason"},
          {"/nothing", "a response was neither set nor sent"},
          {"/no_conn", "expected Application.Plug to return %Plug.Conn{}, got: :no_conn"},
          {"/other_upgrade", "upgrade to tcp not supported by Yucan.Adapter"}
        ] do
      assert capture_log(fn ->
               assert {500, _, page} = :yucan_client.get(port, path)
               assert page =~ "500 Internal Server Error"
               assert {500, _, _} = :yucan_h2_client.request(port, path, [])
             end) =~ said
    end

    # These are answers, not failures.
    for path <- ["/gone", "/wrapped"] do
      assert capture_log(fn -> assert {404, _, _} = :yucan_client.get(port, path) end) == ""
    end
  end

  test "leaves an answer as it was when the plug fails behind it" do
    port = start()
    request = fn path -> "GET #{path} HTTP/1.1\r\nHost: h\r\n\r\n" end

    assert capture_log(fn ->
             assert [{200, _, "sent before"}, {200, _, "hello"}] = :yucan_client.exchange(port, [request.("/raise_after"), request.("/hello")])
             assert {200, _, "sent before"} = :yucan_h2_client.request(port, "/raise_after", [])
             assert [{200, _, "first"}] = :yucan_client.exchange(port, request.("/twice"))
           end) =~ "a plug fails after its answer"

    # The truncated answer must not look complete, and nothing may follow it.
    assert capture_log(fn ->
             assert {:malformed, bytes} = :yucan_client.exchange(port, [request.("/raise_within"), request.("/hello")])
             assert String.ends_with?(bytes, "5\r\nbegun\r\n")
             assert {:reset, _} = :yucan_h2_client.request(port, "/raise_within", [])
           end) =~ "a plug fails within its answer"
  end

  test "belongs to one process" do
    assert {200, _, "the conn belongs to " <> _} = get("/elsewhere")
  end

  test "tells the plug that the client has gone" do
    port = start()
    socket = :yucan_client.connect(port)
    :ok = :gen_tcp.send(socket, "GET /endless HTTP/1.1\r\nHost: h\r\n\r\n")
    assert_receive :streams, @patience
    :ok = :inet.setopts(socket, linger: {true, 0})
    :ok = :gen_tcp.close(socket)
    assert_receive {:gone, :closed}, @patience
    assert {200, _, "hello"} = :yucan_client.get(port, "/hello")
  end

  test "serves https, with HTTP/2 by ALPN" do
    tls = Map.to_list(:yucan_test_server.certificate(~c"localhost", String.to_charlist(folder())))
    port = start([scheme: :https] ++ tls)
    {:ok, socket} = :yucan_test_server.tls_connect(port, alpn_advertised_protocols: ["h2"])
    assert {:ok, "h2"} = :ssl.negotiated_protocol(socket)
    :ok = :ssl.close(socket)

    {:ok, socket} = :yucan_test_server.tls_connect(port, [])
    :ok = :ssl.send(socket, "GET /seen HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert [{200, _, _} = response] = socket |> all("") |> :yucan_client.parse("GET")
    assert %{scheme: :https, tls: :"tlsv1.3", port: ^port, peer: %{ssl_cert: nil}} = seen(response)
  end

  defp all(socket, read) do
    case :ssl.recv(socket, 0, @patience) do
      {:ok, data} -> all(socket, read <> data)
      {:error, :closed} -> read
    end
  end

  test "answers what has begun when its supervisor stops it" do
    {port, stop} = start_to_stop()
    test = self()
    spawn_link(fn -> send(test, {:answer, :yucan_client.get(port, "/slow")}) end)
    assert_receive {:slow, plug}, @patience
    stopped = stop.()
    eventually(fn -> :gen_tcp.connect({127, 0, 0, 1}, port, []) == {:error, :econnrefused} end)
    send(plug, :go)
    assert_receive {:answer, {200, _, "slow"}}, @patience
    assert :ok = Task.await(stopped, @patience)
  end

  test "starts again without a word of the drain when the server has crashed" do
    options = options([])
    supervisor = start_supervised!({Yucan, options})
    {_, server, _, _} = List.keyfind(Supervisor.which_children(supervisor), options[:name], 0)

    log =
      capture_log(fn ->
        Process.exit(server, :kill)
        eventually(fn -> match?({_, pid, _, _} when is_pid(pid) and pid != server, List.keyfind(Supervisor.which_children(supervisor), options[:name], 0)) end)
      end)

    assert {200, _, "hello"} = options[:name] |> Yucan.port() |> :yucan_client.get("/hello")
    refute log =~ ":drain"
  end

  defp eventually(fun, left \\ 1000) do
    cond do
      fun.() -> :ok
      left == 0 -> flunk("not within 20 s")
      true -> Process.sleep(20) && eventually(fun, left - 1)
    end
  end

  # ---- WebSock

  @opcodes %{text: 1, binary: 2, close: 8, ping: 9, pong: 10}

  defp web_socket(port, headers \\ "") do
    socket = :yucan_client.connect(port)
    head = "GET /ws HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    :ok = :gen_tcp.send(socket, [head, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", headers, "\r\n"])
    socket
  end

  defp opened(port) do
    socket = web_socket(port)
    {:ok, head} = :gen_tcp.recv(socket, byte_size("HTTP/1.1 101 Switching Protocols"), @patience)
    assert head == "HTTP/1.1 101 Switching Protocols"
    assert head_lines(socket, "") =~ "x-socket: yes\r\n"
    assert {1, "welcome"} == frame(socket)
    socket
  end

  defp head_lines(socket, read) do
    if String.ends_with?(read, "\r\n\r\n") do
      read
    else
      {:ok, byte} = :gen_tcp.recv(socket, 1, @patience)
      head_lines(socket, read <> byte)
    end
  end

  defp frame(socket) do
    {:ok, <<1::1, 0::3, opcode::4, 0::1, length::7>>} = :gen_tcp.recv(socket, 2, @patience)
    if length == 0, do: {opcode, ""}, else: {opcode, socket |> :gen_tcp.recv(length, @patience) |> elem(1)}
  end

  # The mask consists of zeros.
  defp say(socket, opcode, data), do: :ok = :gen_tcp.send(socket, <<1::1, 0::3, @opcodes[opcode]::4, 1::1, byte_size(data)::7, 0::32, data::binary>>)

  test "upgrades to a WebSock" do
    port = start()
    socket = opened(port)
    say(socket, :text, "echo")
    assert {1, "echo"} = frame(socket)
    say(socket, :binary, <<1, 2>>)
    assert {2, <<1, 2>>} = frame(socket)
    say(socket, :text, "twice")
    assert [{1, "one"}, {2, <<2>>}] = [frame(socket), frame(socket)]
    say(socket, :text, "reply")
    assert {1, "replied"} = frame(socket)
    say(socket, :text, "tell")
    assert {1, "told"} = frame(socket)
    say(socket, :ping, "p")
    assert [{10, "p"}, {1, "pinged by p"}] = [frame(socket), frame(socket)]
    say(socket, :pong, "q")
    assert {1, "ponged by q"} = frame(socket)
    say(socket, :close, <<1000::16>>)
    assert {8, <<1000::16>>} = frame(socket)
    assert_receive {:terminated, :remote}, @patience
  end

  test "ends a WebSock as it wants to be ended" do
    {port, stop} = start_to_stop()

    for {text, frames, reason} <- [
          {"stop", [{8, <<1000::16>>}], :normal},
          {"restart", [{8, <<1012::16>>}], {:error, {:shutdown, :restart}}},
          {"detail", [{1, "last"}, {8, <<4001::16, "detail">>}], {:error, :why}},
          {"crash", [{8, <<1011::16>>}], {:error, %RuntimeError{message: "a socket fails"}}}
        ] do
      socket = opened(port)
      say(socket, :text, text)
      assert frames == for(_ <- frames, do: frame(socket))
      :ok = :gen_tcp.close(socket)
      assert_receive {:terminated, ^reason}, @patience
    end

    socket = opened(port)
    :ok = :gen_tcp.close(socket)
    assert_receive {:terminated, {:error, :closed}}, @patience

    socket = opened(port)
    stopped = stop.()
    assert {8, <<1001::16, "going away">>} = frame(socket)
    :ok = :gen_tcp.close(socket)
    assert_receive {:terminated, :shutdown}, @patience
    assert :ok = Task.await(stopped, @patience)
  end

  test "refuses a WebSock to pages of other origins, and to requests that ask for none" do
    port = start()
    assert {403, _, _} = port |> web_socket("Origin: http://elsewhere\r\n") |> :yucan_client.one()
    assert {426, _, _} = :yucan_client.get(port, "/ws")
  end
end
