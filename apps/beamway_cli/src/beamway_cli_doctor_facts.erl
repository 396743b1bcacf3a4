%% SPDX-License-Identifier: Apache-2.0
%% @doc Collects what `beamway doctor' knows about this host and VM. No other part of the command examines the machine.
%%
%% The limits are those of this VM, inherited from the shell. The driver is actually loaded, and creates a pair of rings.
-module(beamway_cli_doctor_facts).

-export([gather/0, teleport/0, teleport/1, epmd_names/0, epmd_names/2, addresses/1]).
-export_type([facts/0, teleport/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-type limit() :: non_neg_integer() | unlimited | unknown.
-type facts() :: #{otp := string(),
                   system := {Type :: {atom(), atom()}, Version :: tuple() | string(), WordBytes :: pos_integer()},
                   options := {ok, beamway_config:config()} | {error, [term()]},
                   driver := ok | {error, binary()},
                   rings := ok | {error, no_driver | binary()},
                   socket_dir := ok | {error, no_driver | binary()},
                   descriptors := limit(), file_size := limit(), address_space := limit(), address_space_used := limit(),
                   lockable := limit(), memory_free := limit(),
                   compression := ok | {error, no_driver | binary()},
                   encryption := encryption(), cipher := cipher(),
                   certificates := none | {error, binary()} | [{server | client, Seconds :: integer()}],
                   rdma_ports := [beamway_rdma_devices:port_info()], rdma_library := ok | false | {error, binary()},
                   host := {Name :: string(), {ok, inet:ip_address()} | {error, inet:posix()}},
                   epmd := {ok, [{Name :: string(), inet:port_number()}]} | {error, term()},
                   teleport => teleport()}.
-type encryption() :: off | {true | prefer, cookie | {ok, Keys :: [binary()]} | {error, no_driver | binary()}}.
%% The option as set in this shell, and the names of the keys in the file. The cookie is ignored, because a node may use a different one.
-type cipher() :: {Library :: {binary(), Number :: integer()} | unknown, Instructions :: vaes | aes | none}.
%% OTP's libcrypto, which is usually the one that the driver uses as well, and the CPU's instructions for AES.
-type teleport() :: {host, IsInstalled :: boolean()} | {node(), not_running | {ok, Pools :: non_neg_integer()} | {error, term()}}.
%% For a host: whether teleport is installed. For a node: whether it runs, and to how many nodes it has separate connections.

-define(EPMD_MS, 2000).
-define(CALL_MS, 5000).

%% @doc Collects all facts. Takes well under a second.
-spec gather() -> facts().
gather() ->
    _ = application:load(beamway),
    Options = beamway_config:read(),
    #{ring_bytes := Ring, socket_dir := Dir, rdma_devices := Devices} = beamway_cli_doctor_judge:in_use(Options),
    Driver = beamway_port:load(),
    Limits = parse_limits(read("/proc/self/limits")),
    Status = read("/proc/self/status"),
    Limit = fun(Key) -> maps:get(Key, Limits, unknown) end,
    Ports = beamway_rdma_devices:named(Devices),
    {ok, Host} = inet:gethostname(),
    #{otp => erlang:system_info(otp_release),
      system => {os:type(), os:version(), erlang:system_info(wordsize)},
      options => Options,
      driver => Driver,
      rings => with(Driver, fun() -> beamway_port:probe(shm, Ring) end),
      socket_dir => with(Driver, fun() -> beamway_socket_dir:check(Dir) end),
      compression => with(Driver, fun() -> beamway_port:with_port(fun beamway_port:load_codec/1) end),
      encryption => encryption(Options, Driver),
      cipher => {libcrypto(), aes_instructions(read("/proc/cpuinfo"))},
      certificates => certificates(os:getenv("BEAMWAY_TLS_OPTFILE", "")),
      descriptors => Limit(nofile), file_size => Limit(fsize), address_space => Limit(as),
      address_space_used => status_bytes("VmSize", Status),
      lockable => lockable(Limit(memlock), Status),
      memory_free => status_bytes("MemAvailable", read("/proc/meminfo")),
      rdma_ports => Ports,
      rdma_library => Ports =/= [] andalso rdma_library(Driver),
      host => {Host, case addresses(Host) of [Ip | _] -> {ok, Ip}; [] -> inet:getaddr(Host, inet) end},
      epmd => epmd_names()}.

%% @doc Returns whether teleport is installed on this host.
-spec teleport() -> teleport().
teleport() -> {host, code:which(teleport) =/= non_existing}.

%% @doc Returns whether a connected node runs teleport. Older versions do not have pools.
-spec teleport(node()) -> teleport().
teleport(Node) ->
    {Node, try erpc:call(Node, erlang, whereis, [teleport_sup], ?CALL_MS) of
               undefined -> not_running;
               _ -> {ok, pools(Node)}
           catch
               error:{erpc, Reason} -> {error, Reason}
           end}.

pools(Node) ->
    try length(erpc:call(Node, teleport_pool, info, [], ?CALL_MS))
    catch _:_ -> 0
    end.

encryption({ok, #{encrypt := false}}, _Driver) -> off;
encryption({error, _}, _Driver) -> off;
encryption({ok, #{encrypt := Mode, encrypt_key_file := File}}, Driver) ->
    Library = with(Driver, fun() -> beamway_port:with_port(fun(Port) -> beamway_port:use(Port, tls) end) end),
    {Mode, case {Library, File} of
               {{error, Reason}, _} -> {error, Reason};
               {ok, ""} -> cookie;
               {ok, _} -> key_names(beamway_encrypt:of_file(File))
           end}.

libcrypto() ->
    try crypto:info_lib() of
        [{_Name, Number, Text} | _] -> {Text, Number};
        [] -> unknown
    catch
        error:_ -> unknown
    end.

%% Reads the flags of the first CPU (called features on ARM). libcrypto uses VAES only together with AVX-512.
aes_instructions(Text) ->
    Flags = case re:run(Text, "^(?:flags|Features)\\s*: (.*)$", [multiline, {capture, all_but_first, list}]) of
                {match, [Line]} -> string:lexemes(Line, " ");
                nomatch -> []
            end,
    case {["vaes", "avx512f"] -- Flags, lists:member("aes", Flags)} of
        {[], _} -> vaes;
        {_, true} -> aes;
        {_, false} -> none
    end.

%% The launcher has passed the file name to OTP.
certificates("") ->
    none;
certificates(_File) ->
    beamway_result:then(beamway_tls_options:check(), fun beamway_tls_options:expiries/0).

key_names({ok, Keys}) -> {ok, [beamway_encrypt:name(Keys, Label) || #{label := Label} <- Keys]};
key_names({error, Text}) -> {error, Text}.

with(ok, Try) -> Try();
with({error, _}, _) -> {error, no_driver}.

rdma_library(ok) -> beamway_port:with_port(fun(Port) -> beamway_port:use(Port, rdma) end);
rdma_library({error, _}) -> {error, <<"the driver is not loaded">>}.

%% @doc Returns the nodes registered with the local epmd, or `address' if nothing listens on its port.
-spec epmd_names() -> {ok, [{Name :: string(), inet:port_number()}]} | {error, address | timeout | term()}.
epmd_names() -> epmd_names("localhost", ?EPMD_MS).

%% @doc Like {@link epmd_names/0}, but for the epmd on any host, with a time limit.
-spec epmd_names(Host :: string(), Ms :: pos_integer()) -> {ok, [{Name :: string(), inet:port_number()}]} | {error, address | timeout | term()}.
%% erl_epmd has no time limit of its own, neither for connecting nor for a peer that accepts but sends nothing, and it only resolves host names over
%% IPv4.
epmd_names(Host, Ms) ->
    Caller = self(),
    Reference = make_ref(),
    {Pid, Monitor} = spawn_monitor(fun() -> Caller ! {Reference, names(addresses(Host), {error, nxdomain})} end),
    receive
        {Reference, Result} ->
            _ = erlang:demonitor(Monitor, [flush]),
            Result;
        {'DOWN', Monitor, process, Pid, Reason} ->
            {error, Reason}
    after Ms ->
        exit(Pid, kill),
        _ = erlang:demonitor(Monitor, [flush]),
        {error, timeout}
    end.

names([], Result) -> Result;
names([Ip | More], _) ->
    case erl_epmd:names(Ip) of
        {ok, Names} -> {ok, Names};
        {error, Reason} -> names(More, {error, Reason})
    end.

%% @doc Returns the addresses of a host, in the order in which the command tries them.
-spec addresses(Host :: string()) -> [inet:ip_address()].
addresses(Host) ->
    [Ip || Family <- [inet, inet6], {ok, Ip} <- [inet:getaddr(Host, Family)], not is_mapped(Ip)].

%% inet returns an IPv4-mapped IPv6 address for a host that has no other address.
is_mapped({0, 0, 0, 0, 0, 16#ffff, _, _}) -> true;
is_mapped(_) -> false.

read(File) ->
    case file:read_file(File) of
        {ok, Text} -> Text;
        {error, _} -> <<>>
    end.

%%% Parsing the kernel's files

%% Soft limits, under the names used in ulimit's manual.
parse_limits(Text) ->
    Wanted = [{nofile, "Max open files"}, {fsize, "Max file size"}, {as, "Max address space"},
              {memlock, "Max locked memory"}],
    maps:from_list([{Key, Value} || {Key, Title} <- Wanted, Value <- [soft_limit(Title, Text)], Value =/= unknown]).

soft_limit(Title, Text) ->
    case re:run(Text, "^" ++ Title ++ " +(\\d+|unlimited)", [multiline, {capture, [1], list}]) of
        {match, ["unlimited"]} -> unlimited;
        {match, [Digits]} -> list_to_integer(Digits);
        nomatch -> unknown
    end.

status_bytes(Key, Text) ->
    case re:run(Text, "^" ++ Key ++ ":\\s+(\\d+) kB", [multiline, {capture, [1], list}]) of
        {match, [Digits]} -> list_to_integer(Digits) * 1024;
        nomatch -> unknown
    end.

%% A process with the capability CAP_IPC_LOCK is not limited.
lockable(Limit, Status) ->
    case re:run(Status, "^CapEff:\\s+([0-9a-f]+)", [multiline, {capture, [1], list}]) of
        {match, [Hex]} when Limit =/= unknown ->
            case list_to_integer(Hex, 16) band (1 bsl 14) of
                0 -> Limit;
                _ -> unlimited
            end;
        _ ->
            Limit
    end.

-ifdef(TEST).

limits_text() ->
    <<"Limit                     Soft Limit           Hard Limit           Units     \n"
      "Max file size             unlimited            unlimited            bytes     \n"
      "Max open files            256                  524288               files     \n"
      "Max locked memory         8388608              8388608              bytes     \n"
      "Max address space         1073741824           unlimited            bytes     \n">>.

parse_limits_test_() ->
    [?_assertEqual(#{fsize => unlimited, nofile => 256, memlock => 8388608, as => 1073741824},
                   parse_limits(limits_text())),
     ?_assertEqual(#{}, parse_limits(<<>>)),
     ?_assertEqual(#{}, parse_limits(<<"Max open files   many">>))].

status_bytes_test_() ->
    [?_assertEqual(2048, status_bytes("VmSize", <<"VmPeak:\t    9 kB\nVmSize:\t    2 kB\n">>)),
     ?_assertEqual(unknown, status_bytes("VmSize", <<>>))].

lockable_test_() ->
    [?_assertEqual(unlimited, lockable(65536, <<"Name:\tx\nCapEff:\t000001ffffffffff\n">>)),
     ?_assertEqual(65536, lockable(65536, <<"CapEff:\t0000000000000000\n">>)),
     ?_assertEqual(65536, lockable(65536, <<>>))].

aes_instructions_test_() ->
    [?_assertEqual(Instructions, aes_instructions(Text))
     || {Instructions, Text} <- [{vaes, "processor\t: 0\nflags\t\t: fpu aes avx512f vaes\nflags\t\t: fpu\n"}, {aes, "flags\t\t: fpu aes vaes\n"}, {aes, "flags\t\t: fpu aes\n"},
                                 {aes, "Features\t: fp asimd aes\n"}, {none, "flags\t\t: fpu aesthetic\n"}, {none, ""}]].
-endif.
