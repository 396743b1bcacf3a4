%% SPDX-License-Identifier: Apache-2.0
%% @doc Converts a configuration to the options of {@link yucan:start_link/1}, and stores the settings that modules can query later.
-module(yucan_yaws_options).

-export([options/1, prepare/1, remember/1, records/0, for_scripts/0]).

-include("../../include/yaws.hrl").

%% Servers bind to loopback unless configured otherwise.
-define(LOOPBACK, {127, 0, 0, 1}).

%% @doc Returns the options. This function does not start or load anything.
-spec options(yucan_yaws_config:conf()) -> map().
options(#{globals := Globals, servers := Servers}) ->
    #{pick_first_virthost_on_nomatch := First, keepalive_timeout := Idle, max_connections := Max} = Globals,
    Table = yucan_yaws_match:table(Servers, First),
    #{listen => listeners(Servers),
      hosts => [host(Globals, Server) || Server <- Servers],
      default_host => none,
      select_host => fun(Name, Req) ->
                             {Address, Port} = yucan_req:local(Req),
                             yucan_yaws_match:server(Name, Address, Port, Table)
                     end,
      limits => maps:from_list([{idle_ms, Idle}, {backlog, lists:max([maps:get(listen_backlog, Server) || Server <- Servers])}
                                | [{connections, Max} || Max =/= nolimit]]),
      access_log => access_log(Globals, Servers)}.

listeners(Servers) ->
    All = [{{Address, Port}, Ssl} || #{port := Port, listen := Listen, ssl := Ssl} <- Servers,
                                     Address <- case Listen of [] -> [?LOOPBACK]; _ -> Listen end],
    [listener(Address, Port, proplists:get_value({Address, Port}, All)) || {Address, Port} <- lists:uniq([Key || {Key, _} <- All])].

listener(Address, Port, undefined) -> #{ip => Address, port => Port};
listener(Address, Port, Ssl) -> #{ip => Address, port => Port, tls => tls(Ssl)}.

%% If certificates are requested they are also required, unless the configuration says otherwise.
tls(#{protocol_version := Versions, verify := Verify, fail_if_no_peer_cert := Fail} = Ssl) ->
    Fails = case Verify of verify_peer when Fail =:= undefined -> true; verify_peer -> Fail; _ -> undefined end,
    maps:filter(fun(_, Value) -> Value =/= undefined end, (maps:remove(protocol_version, Ssl))#{keyfile := key_file(Ssl), versions => Versions, fail_if_no_peer_cert := Fails}).

%% A single file may contain both the certificate and the key.
key_file(#{keyfile := undefined, certfile := File}) -> File;
key_file(#{keyfile := File}) -> File.

host(Globals, #{name := Name, ssl := Ssl} = Server) ->
    Host = #{names => [yucan_yaws_match:without_port(Name)], handler => {yucan_yaws, #{globals => Globals, server => Server#{digest => yucan_yaws_files:digest(Server)}}}},
    case Ssl of
        undefined -> Host;
        _ -> Host#{tls => tls(Ssl)}
    end.

%% All servers share one log file, unless none of them has an access log.
access_log(#{logdir := undefined}, _) -> none;
access_log(#{logdir := Folder}, Servers) ->
    case lists:any(fun(#{access_log := Wanted}) -> Wanted end, Servers) of
        true -> filename:join(Folder, "access.log");
        false -> none
    end.

%% @doc Adds the module directories to the code path, and starts the modules that no earlier load has started.
-spec prepare(yucan_yaws_config:conf()) -> ok.
prepare(#{globals := #{ebin_dir := Folders, runmod := Modules} = Globals, servers := Servers}) ->
    ok = lists:foreach(fun(Folder) -> code:add_patha(Folder) end, Folders),
    ok = lists:foreach(fun(Module) -> once({start, Module}, fun() -> Module:start() end) end, Modules),
    lists:foreach(fun(Server) -> start_server(Server, Globals) end, Servers).

start_server(#{start_mod := undefined}, _) -> ok;
start_server(#{start_mod := Module, name := Name, port := Port} = Server, Globals) ->
    once({start, Module, Name, Port}, fun() -> Module:start(sconf(Server, Globals)) end).

%% Runs the function in a separate process, which reports its failure and affects nothing else.
once(Key, Start) ->
    Started = persistent_term:get(?MODULE, []),
    case lists:member(Key, Started) of
        true -> ok;
        false ->
            persistent_term:put(?MODULE, [Key | Started]),
            _ = spawn(fun() -> started(Key, Start) end),
            ok
    end.

started(Key, Start) ->
    try
        Start()
    catch
        Class:Reason:Stack ->
            yucan_events:error("~ts:start failed: ~0tp", [element(2, Key), {Class, Reason, Stack}])
    end.

%% @doc Stores the configuration in the process that handles requests, for {@link records/0}.
-spec remember(#{globals := map(), server := yucan_yaws_config:server(), user => binary(), _ => _}) -> ok.
remember(Site) ->
    _ = put(?MODULE, Site),
    ok.

%% @doc Returns the configuration as records, for yaws_api:getconf/0. Outside of a request the records contain only defaults.
-spec records() -> {ok, #gconf{}, [[#sconf{}]]}.
records() ->
    case get(?MODULE) of
        #{globals := #{logdir := Logs, ebin_dir := Folders, runmod := Modules, php_exe_path := Php, id := Id} = Globals, server := Server} ->
            {ok, #gconf{logdir = Logs, ebin_dir = Folders, runmods = Modules, phpexe = Php, id = Id}, [[sconf(Server, Globals)]]};
        undefined ->
            {ok, #gconf{}, []}
    end.

sconf(#{port := Port, rhost := Rhost, docroot := Docroots, listen := Listen, name := Name, serveralias := Aliases, opaque := Opaque,
        appmods := Appmods} = Server, #{php_exe_path := Php}) ->
    #sconf{port = Port, rhost = Rhost, rmethod = maps:get(rscheme, Server), docroot = case Docroots of [D | _] -> D; [] -> undefined end,
           listen = Listen, servername = Name, serveralias = Aliases, opaque = Opaque, phpexe = Php,
           appmods = [{Path, Module} || #{path := Path, module := Module} <- Appmods]}.

%% @doc Returns the settings for all scripts that this process runs: their limits, and the authenticated user, if any.
-spec for_scripts() -> #{timeout_ms => pos_integer(), max => pos_integer(), keep => boolean(), body_bytes => pos_integer(), user => binary()}.
for_scripts() ->
    case get(?MODULE) of
        #{globals := #{cgi_timeout := Seconds, cgi_max := Max}, server := #{max_body_size := Bytes, fcgi_keep_conn := Keep}} = Site ->
            maps:merge(#{timeout_ms => Seconds * 1000, max => Max, keep => Keep, body_bytes => Bytes}, maps:with([user], Site));
        undefined -> #{}
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% If the name of a server is an IPv6 address, the host name is the full address.
host_names_test_() ->
    [?_assertMatch(#{names := [Host]}, host(#{}, #{name => Name, ssl => undefined}))
     || {Name, Host} <- [{"a.com", <<"a.com">>}, {"a.com:80", <<"a.com">>}, {"[::1]", <<"[::1]">>}, {"[::1]:8080", <<"[::1]">>}]].

-endif.
