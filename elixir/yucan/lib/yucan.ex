# SPDX-License-Identifier: Apache-2.0
defmodule Yucan do
  @moduledoc """
  The web server yucan for `Plug` applications, as a child of a supervisor:

      children = [{Yucan, plug: MyApp, port: 4000}]

  Options:

    * `:plug` - required: a module, `{module, options}`, or a function that takes a conn and options
    * `:scheme` - `:http` (default) or `:https`, which needs `:certfile` and `:keyfile`, or `:tls`
    * `:port` - 4000, or 4040 for `:https`; 0 takes any free port (see `port/1`)
    * `:ip` - an address as a tuple, `:loopback`, `:any` (default), or `{:local, path}` for a unix socket
    * `:tls` - further options of `:ssl`
    * `:name` - an atom, by default the plug's module followed by `Yucan.HTTP` or `Yucan.HTTPS`
    * `:drain_ms` - how long requests may take after the supervisor has begun to stop (15,000)
    * `:startup_log` - the level of the line that reports where the server runs (`:info`); `false` turns it off
    * `:limits`, `:access_log`, `:http2`, `:server_header`, `:trusted_proxies`, `:forwarded`, `:request_id`, `:on_event`, `:middleware` - as in
      yucan's guide

  Plug is not a dependency of this project, because your application already depends on it.
  """
  require Logger

  @own [:plug, :scheme, :port, :ip, :certfile, :keyfile, :cacertfile, :tls, :name, :drain_ms, :startup_log]
  @passed [:limits, :access_log, :http2, :server_header, :trusted_proxies, :forwarded, :request_id, :on_event, :middleware]

  @doc "Returns a child specification for a supervisor."
  @spec child_spec(keyword()) :: Supervisor.child_spec()
  def child_spec(options), do: %{id: {__MODULE__, name(options)}, start: {__MODULE__, :start_link, [options]}, type: :supervisor}

  @doc "Starts a server that is linked to the caller. `{:bad_options, text}` says what is wrong with the options."
  @spec start_link(keyword()) :: {:ok, pid()} | {:error, term()}
  def start_link(options) do
    with {:ok, server} <- checked(options) do
      drain = {Yucan.Drain, {server.name, Keyword.get(options, :drain_ms, 15_000)}}
      # Children are stopped in reverse order, so the server drains before it stops.
      case Supervisor.start_link([:yucan.child_spec(server), drain], strategy: :rest_for_one) do
        {:ok, pid} ->
          announce(Keyword.get(options, :startup_log, :info), options, server.name)
          {:ok, pid}

        {:error, {:shutdown, {:failed_to_start_child, _, reason}}} ->
          {:error, reason}

        other ->
          other
      end
    end
  end

  @doc "Returns the port of a server, which the system chooses if the option is `port: 0`. The name is the option `:name`."
  @spec port(atom()) :: :inet.port_number()
  def port(name), do: :yucan.port(name)

  defp checked(options) do
    case Enum.reject(Keyword.keys(options), &(&1 in (@own ++ @passed))) do
      [] -> server(options)
      [unknown | _] -> bad("unknown option #{inspect(unknown)}; known are #{Enum.map_join(@own ++ @passed, ", ", &inspect/1)}")
    end
  end

  defp server(options) do
    with {:ok, plug} <- plug(options[:plug]),
         {:ok, ip} <- ip(options[:ip]),
         {:ok, listen} <- secure(options[:scheme], options, %{ip: ip}) do
      own = %{name: name(options), listen: [listen], handler: {Yucan.Handler, plug}}
      known(options |> Keyword.take(@passed) |> Map.new() |> Map.merge(own))
    end
  end

  defp known(server) do
    case :yucan_config.check(server) do
      {:ok, _} -> {:ok, server}
      {:error, text} -> bad(text)
    end
  end

  defp plug({module, options}) when is_atom(module), do: plug(module, options)
  defp plug(module) when is_atom(module) and module != nil, do: plug(module, [])
  defp plug(function) when is_function(function, 2), do: {:ok, {function, []}}
  defp plug(other), do: bad("plug is #{inspect(other)}; a module, {module, options} or a function of two arguments is expected")

  defp plug(module, options) do
    if Code.ensure_loaded?(module) and function_exported?(module, :call, 2),
      do: {:ok, {module, options}},
      else: bad("plug is #{inspect(module)}, which is not a module with call/2; give a plug")
  end

  defp ip(none) when none in [nil, :any], do: {:ok, {0, 0, 0, 0, 0, 0, 0, 0}}
  defp ip(:loopback), do: {:ok, {127, 0, 0, 1}}
  defp ip(other), do: {:ok, other}

  defp secure(scheme, options, listen) when scheme in [nil, :http] do
    case Keyword.take(options, [:certfile, :keyfile, :cacertfile, :tls]) do
      [] -> {:ok, Map.put(listen, :port, port(options, 4000))}
      [{key, _} | _] -> bad("#{inspect(key)} needs TLS, but scheme is :http; set scheme: :https")
    end
  end

  defp secure(:https, options, listen) do
    tls = Keyword.take(options, [:certfile, :keyfile, :cacertfile]) ++ Enum.to_list(options[:tls] || [])

    if tls == [],
      do: bad("scheme is :https without a certificate; give certfile and keyfile, or tls"),
      else: {:ok, Map.merge(listen, %{port: port(options, 4040), tls: tls})}
  end

  defp secure(other, _, _), do: bad("scheme is #{inspect(other)}; :http or :https is expected")

  # A unix socket has no port.
  defp port(options, default) do
    case options[:ip] do
      {:local, _} -> 0
      _ -> Keyword.get(options, :port, default)
    end
  end

  defp bad(text), do: {:error, {:bad_options, text}}

  defp name(options) do
    Keyword.get_lazy(options, :name, fn ->
      Module.concat([plug_name(options[:plug]), Yucan, if(options[:scheme] == :https, do: HTTPS, else: HTTP)])
    end)
  end

  defp plug_name({module, _}) when is_atom(module), do: module
  defp plug_name(module) when is_atom(module) and module != nil, do: module
  defp plug_name(_), do: Function

  defp announce(false, _, _), do: :ok

  defp announce(level, options, name) do
    where = Enum.map_join(:yucan.info(name).listen, ", ", &address/1)
    Logger.log(level, "Running #{inspect(plug_name(options[:plug]))} with yucan at #{where} (#{options[:scheme] || :http})")
  end

  defp address({:local, path}), do: path
  defp address({ip, port}) when tuple_size(ip) == 8, do: "[#{:inet.ntoa(ip)}]:#{port}"
  defp address({ip, port}), do: "#{:inet.ntoa(ip)}:#{port}"
end

defmodule Yucan.Drain do
  @moduledoc false
  # This process is stopped first, so that requests get their answers before the server stops.
  use GenServer

  def start_link(server), do: GenServer.start_link(__MODULE__, server)

  def child_spec({_, ms} = server), do: %{id: __MODULE__, start: {__MODULE__, :start_link, [server]}, shutdown: ms + 10_000}

  @impl true
  def init(server) do
    Process.flag(:trap_exit, true)
    {:ok, server}
  end

  @impl true
  def terminate(_, {_, 0}), do: :ok

  def terminate(_, {name, ms}) do
    :yucan.drain(name, ms)
  catch
    # The server has already been stopped.
    :exit, _ -> :ok
  end
end
