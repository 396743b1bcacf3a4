%% SPDX-License-Identifier: Apache-2.0
%% @doc Judges the facts that {@link beamway_cli_doctor_facts} has collected. All functions are pure.
%%
%% A `problem' prevents shared memory, or means that teleport does not answer. A `warning' will become a problem as the number of links grows.
-module(beamway_cli_doctor_judge).

-export([checks/1, in_use/1]).
-export_type([check/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-type check() :: #{name := atom(), status := ok | warning | problem, found := unicode:chardata(),
                   remedy => unicode:chardata()}.

-define(MINIMUM_OTP, 25).
%% A link needs its socket, two doorbells and, during its setup, a few more descriptors.
-define(DESCRIPTORS_OF_A_LINK, 4).
-define(SOON_S, 1209600).
%% OpenSSL 3.1.0 in the format of crypto:info_lib/0.
-define(VAES_LIBCRYPTO, 16#30100000).

%% @doc Turns each fact into a check.
-spec checks(beamway_cli_doctor_facts:facts()) -> [check(), ...].
checks(#{options := Options, system := {Type, Version, WordBytes}, host := {Host, Address}, rdma_ports := Ports} = Facts) ->
    #{ring_bytes := Ring, socket_dir := Dir, compress := Compress, links := Wanted} = in_use(Options),
    [otp(maps:get(otp, Facts), ?MINIMUM_OTP),
     system(Type, Version, WordBytes),
     options(Options),
     driver(maps:get(driver, Facts)),
     rings(maps:get(rings, Facts), Ring),
     socket_dir(Dir, maps:get(socket_dir, Facts)),
     descriptors(maps:get(descriptors, Facts)),
     file_size(maps:get(file_size, Facts), Ring),
     address_space(maps:get(address_space, Facts), maps:get(address_space_used, Facts), Ring),
     compression(Compress, maps:get(compression, Facts)),
     encryption(maps:get(encryption, Facts)),
     cipher(maps:get(cipher, Facts)),
     certificates(maps:get(certificates, Facts), os:system_time(second)),
     rdma(Ports, Wanted, maps:get(rdma_library, Facts)),
     locked_memory(maps:get(lockable, Facts), [Port || Port <- Ports, lists:member(rdma, Wanted)], Ring),
     memory(maps:get(memory_free, Facts), Ring),
     host_name(Host, Address),
     epmd(maps:get(epmd, Facts))]
        ++ [teleport(Of, Teleport) || #{teleport := {Of, Teleport}} <- [Facts]].

%% @doc Returns the options that matter here. A node with invalid options stays on `inet', so the other checks use the defaults.
-spec in_use({ok, beamway_config:config()} | {error, term()}) ->
          #{ring_bytes := pos_integer(), socket_dir := string(), compress := never | far | always, rdma_devices := [string()],
            links := [beamway_kind:kind() | inet], atom() => term()}.
in_use({ok, Options}) -> Options;
in_use({error, _}) -> #{ring_bytes => 4194304, socket_dir => "", compress => never, rdma_devices => [], links => [inet]}.

otp(Release, Minimum) ->
    case list_to_integer(Release) >= Minimum of
        true -> well(otp, "OTP ~ts", [Release]);
        false ->
            problem(otp, "OTP ~ts", [Release], "use OTP ~b or later", [Minimum])
    end.

system({unix, linux}, Version, 8) ->
    well(system, "Linux ~ts, 64 bit", [version(Version)]);
system({unix, linux}, Version, _) ->
    problem(system, "Linux ~ts, 32 bit", [version(Version)], "use a 64-bit system: rings are mapped twice", []);
system({_, Name}, Version, _) ->
    problem(system, "~ts ~ts", [Name, version(Version)],
            "shared memory needs Linux; Beamway over TCP works here", []).

version({Major, Minor, Patch}) -> io_lib:format("~b.~b.~b", [Major, Minor, Patch]);
version(Text) -> Text.

options({ok, #{links := Links} = Options}) ->
    Found = "links ~0tp, ring_bytes ~b, ring_limit_bytes ~b",
    Values = [Links, maps:get(ring_bytes, Options), maps:get(ring_limit_bytes, Options)],
    case lists:member(shm, Links) of
        true -> well(options, Found, Values);
        false ->
            problem(options, "links ~0tp: shared memory is turned off", [Links],
                    "unset BEAMWAY_LINKS, or add shm to it", [])
    end;
options({error, Problems}) ->
    problem(options, "~ts", [lists:join("; ", [beamway_config:describe(P) || P <- Problems])],
            "correct or unset the options that are named", []).

driver(ok) -> well(driver, "loaded, of the modules' version", []);
driver({error, Reason}) -> problem(driver, "~ts", [Reason], "~ts", [remedy(Reason)]).

rings(ok, Ring) ->
    well(rings, "two of ~ts made, passed over a unix socket and mapped", [in_bytes(Ring)]);
rings({error, no_driver}, _) ->
    problem(rings, "not tried, since the driver is not loaded", [], "see driver", []);
rings({error, Reason}, _) ->
    problem(rings, "~ts", [Reason], "~ts", [remedy(Reason)]).

socket_dir("", _) ->
    well(socket_dir, "not set: nodes of one network namespace meet", []);
socket_dir(Dir, ok) ->
    well(socket_dir, "~ts: a socket was made in it", [Dir]);
socket_dir(_, {error, no_driver}) ->
    problem(socket_dir, "not tried, since the driver is not loaded", [], "see driver", []);
socket_dir(Dir, {error, Reason}) ->
    problem(socket_dir, "~ts: ~ts", [Dir, Reason], "~ts", [directory_remedy(Reason)]).

directory_remedy(Reason) ->
    Known = [{"no such file", "mount the directory that the nodes share there, or make it"},
             {"not a directory", "name a directory"},
             {"permission|read-only|not permitted", "let this user write to it: chown, or another user for the node"},
             {"all may write", "chown it to this user, or chmod o-w, or chmod +t"}],
    hd([Remedy || {Pattern, Remedy} <- Known, re:run(Reason, Pattern, [caseless]) =/= nomatch] ++ [remedy(Reason)]).

remedy(Reason) ->
    Text = string:lowercase(Reason),
    Known = [{"emfile|too many open", "raise the number of open files: ulimit -n 4096"},
             {"efbig|file too large", "raise the limit on file sizes: ulimit -f unlimited"},
             {"enomem|cannot allocate", "raise the limit on memory (ulimit -v unlimited), or set a smaller BEAMWAY_RING_BYTES"},
             {"enosys|not implemented", "a sandbox hides memfd_create or eventfd; allow them in its seccomp profile"},
             {"eperm|eacces|not permitted|denied", "a sandbox forbids memfd_create, eventfd or unix sockets; allow them in its profile"},
             {"version ", "the driver file is of another version than the modules; run: make clean build"},
             {"open_error|enoent|load", "the driver cannot be loaded; run: make clean build"}],
    hd([Remedy || {Pattern, Remedy} <- Known, re:run(Text, Pattern) =/= nomatch]
       ++ ["links fall back to TCP until this is cured; docs/messages.md explains the reasons"]).

descriptors(Limit) when is_integer(Limit), Limit < 1024 ->
    warning(descriptors, "~b open files allowed: about ~b links", [Limit, Limit div ?DESCRIPTORS_OF_A_LINK],
            "raise it: ulimit -n 4096", []);
descriptors(Limit) ->
    well(descriptors, "~ts open files allowed", [amount(Limit)]).

%% A memfd counts as a file for this limit. It contains both rings and a page.
file_size(Limit, Ring) when is_integer(Limit), Limit < 2 * Ring + 4096 ->
    problem(file_size, "files may have ~ts; the rings of a link need ~ts", [in_bytes(Limit), in_bytes(2 * Ring + 4096)],
            "raise it: ulimit -f unlimited; or set a smaller BEAMWAY_RING_BYTES", []);
file_size(unlimited, _) ->
    well(file_size, "no limit", []);
file_size(Limit, _) ->
    well(file_size, "files may have ~ts", [in_bytes(Limit)]).

%% Each of the two rings is mapped twice, back to back.
address_space(Limit, Used, Ring) when is_integer(Limit), is_integer(Used), Limit - Used < 4 * Ring + 4096 ->
    problem(address_space, "~ts of address space are left; a link needs ~ts",
            [in_bytes(max(0, Limit - Used)), in_bytes(4 * Ring + 4096)],
            "raise it: ulimit -v unlimited; or set a smaller BEAMWAY_RING_BYTES", []);
address_space(Limit, Used, Ring) when is_integer(Limit), is_integer(Used) ->
    warning(address_space, "limited to ~ts: room for about ~b links", [in_bytes(Limit), (Limit - Used) div (4 * Ring)],
            "raise it: ulimit -v unlimited", []);
address_space(unlimited, _, _) ->
    well(address_space, "no limit", []);
address_space(_, _, _) ->
    well(address_space, "unknown", []).

compression(never, _) ->
    well(compression, "turned off", []);
compression(_, {error, no_driver}) ->
    well(compression, "not tried, since the driver is not loaded", []);
compression(When, {error, Reason}) ->
    warning(compression, "~ts: ~ts", [When, Reason], "install libzstd1; to build: libzstd-dev, make clean build", []);
compression(When, ok) ->
    well(compression, "~ts, with libzstd", [When]).

encryption(off) ->
    well(encryption, "off in this shell: BEAMWAY_ENCRYPT=true or -beamway encrypt true turns it on", []);
encryption({_, {error, no_driver}}) ->
    problem(encryption, "not tried, since the driver is not loaded", [], "see driver", []);
encryption({_, {error, Reason}}) ->
    problem(encryption, "~ts", [Reason], "a node with these options does not start; docs/guide/tls.md explains them", []);
encryption({prefer, Keys}) ->
    warning(encryption, "prefer, with ~ts: links to nodes that cannot encrypt are in clear", [keys_text(Keys)],
            "set it to true when all nodes have it", []);
encryption({true, Keys}) ->
    well(encryption, "on, with ~ts", [keys_text(Keys)]).

cipher({unknown, _}) ->
    well(cipher, "unknown: this OTP has no crypto", []);
cipher({{Library, Number}, vaes}) when Number < ?VAES_LIBCRYPTO ->
    well(cipher, "~ts uses the AES instructions; version 3.1 and later would use this processor's VAES, which is faster for large messages", [Library]);
cipher({{Library, _}, vaes}) ->
    well(cipher, "~ts uses the AES instructions and VAES", [Library]);
cipher({{Library, _}, aes}) ->
    well(cipher, "~ts uses the AES instructions; this processor has no VAES", [Library]);
cipher({{Library, _}, none}) ->
    well(cipher, "~ts: this processor has no AES instructions, so links are encrypted with ChaCha20", [Library]).

certificates(none, _) ->
    well(certificates, "BEAMWAY_TLS_OPTFILE is not set", []);
certificates({error, Problem}, _) ->
    problem(certificates, "~ts", [Problem], "correct the options file; docs/guide/tls.md explains it", []);
certificates([], _) ->
    well(certificates, "the options file names no certfile, so nothing is known of its certificates", []);
certificates(Ends, Now) ->
    Found = lists:join(", ", [io_lib:format("~ts until ~ts", [Side, calendar:system_time_to_rfc3339(Seconds, [{offset, "Z"}])]) || {Side, Seconds} <- Ends]),
    case lists:min([Seconds || {_, Seconds} <- Ends]) - Now of
        Left when Left =< 0 ->
            problem(certificates, "~ts", [Found], "put a new certificate in place of the old one, and call beamway:reload_certificates() on the node", []);
        Left when Left < ?SOON_S ->
            warning(certificates, "~ts", [Found], "replace it in time, and call beamway:reload_certificates() on the node", []);
        _ ->
            well(certificates, "~ts", [Found])
    end.

keys_text(cookie) -> "a key from the cookie";
keys_text({ok, Names}) -> lists:join(" and ", Names).

%% The limit must suffice for two links, each with two rings and its small buffers.
locked_memory(Limit, [_ | _], Ring) when is_integer(Limit), Limit < 2 * (2 * Ring + 65536) ->
    warning(locked_memory, "~ts may be locked: room for about ~b links over rdma", [in_bytes(Limit), Limit div (2 * Ring + 65536)],
            "raise it: ulimit -l unlimited, or LimitMEMLOCK=infinity in the systemd unit", []);
locked_memory(Limit, _, _) ->
    well(locked_memory, "~ts may be locked (matters for rdma only)", [in_bytes(Limit)]).

%% Missing RDMA support is only a problem if there is a device.
rdma([], _, _) ->
    well(rdma, "no devices", []);
rdma(_, [inet], _) ->
    well(rdma, "turned off", []);
rdma(Ports, Wanted, Library) ->
    case lists:member(rdma, Wanted) of
        true -> wanted_rdma(Ports, Library);
        false -> well(rdma, "~ts; off by default: BEAMWAY_RDMA=true or -beamway rdma true turns it on", [ports_text(Ports)])
    end.

wanted_rdma(_, {error, Reason}) ->
    warning(rdma, "~ts", [Reason], "install libibverbs1 and librdmacm1; to build: libibverbs-dev, librdmacm-dev, make clean build", []);
wanted_rdma(Ports, ok) ->
    case beamway_rdma_devices:usable(Ports) of
        [_ | _] -> well(rdma, "~ts", [ports_text(Ports)]);
        [] -> warning(rdma, "~ts", [ports_text(Ports)], "bring a port up (ip link set dev INTERFACE up) and give its interface an IP address", [])
    end.

ports_text(Ports) -> lists:join("; ", [port_text(Port) || Port <- Ports]).

port_text(#{device := Device, port := Port, state := State, link_layer := Layer, interfaces := Interfaces, addresses := Addresses}) ->
    io_lib:format("~ts port ~b ~ts (~ts), ~ts: ~ts",
                  [Device, Port, State, Layer, words(Interfaces, "no interface"),
                   words([inet:ntoa(Ip) || {Ip, _} <- Addresses], "no address")]).

words([], None) -> None;
words(Words, _None) -> lists:join(" ", Words).

memory(Free, Ring) when is_integer(Free), Free < 8 * Ring ->
    warning(memory, "~ts free: the rings of about ~b busy links", [in_bytes(Free), Free div (2 * Ring)],
            "free some memory, or set a smaller BEAMWAY_RING_BYTES", []);
memory(Free, _) ->
    well(memory, "~ts free", [in_bytes(Free)]).

host_name(Host, {ok, Address}) ->
    well(host_name, "~ts is ~ts", [Host, inet:ntoa(Address)]);
host_name(Host, {error, Reason}) ->
    warning(host_name, "~ts does not resolve (~ts), so nodes with -sname do not find each other",
            [Host, inet:format_error(Reason)], "add a line '127.0.1.1 ~ts' to /etc/hosts", [Host]).

epmd({ok, Names}) ->
    well(epmd, "runs and knows ~b nodes", [length(Names)]);
epmd({error, address}) ->
    well(epmd, "does not run yet; the first node starts it", []);
epmd({error, Reason}) ->
    warning(epmd, "does not answer: ~0tp", [Reason],
            "see what listens at port 4369 (ERL_EPMD_PORT), restart it: epmd -kill; epmd -daemon", []).

teleport(host, false) ->
    well(teleport, "the application teleport is not installed", []);
teleport(host, true) ->
    well(teleport, "the application teleport is installed; for that of a node: beamway doctor NODE", []);
teleport(Node, not_running) ->
    well(teleport, "~ts does not run the application teleport", [Node]);
teleport(Node, {error, Reason}) ->
    problem(teleport, "~ts did not answer: ~0tp", [Node, Reason], "see whether the node is overloaded; ask again", []);
teleport(Node, {ok, 0}) ->
    well(teleport, "~ts runs teleport, over the distribution", [Node]);
teleport(Node, {ok, Pools}) ->
    well(teleport, "~ts runs teleport, with connections of its own to ~b nodes", [Node, Pools]).

amount(unlimited) -> "unlimited";
amount(unknown) -> "an unknown number of";
amount(Number) -> integer_to_list(Number).

in_bytes(unlimited) -> "unlimited";
in_bytes(unknown) -> "an unknown amount";
in_bytes(Bytes) when Bytes >= 10 bsl 30 -> io_lib:format("~b GiB", [Bytes bsr 30]);
in_bytes(Bytes) when Bytes >= 10 bsl 20 -> io_lib:format("~b MiB", [Bytes bsr 20]);
in_bytes(Bytes) -> io_lib:format("~b KiB", [Bytes bsr 10]).

well(Name, Format, Arguments) ->
    #{name => Name, status => ok, found => io_lib:format(Format, Arguments)}.

warning(Name, Format, Arguments, Remedy, RemedyArguments) ->
    (well(Name, Format, Arguments))#{status := warning, remedy => io_lib:format(Remedy, RemedyArguments)}.

problem(Name, Format, Arguments, Remedy, RemedyArguments) ->
    (warning(Name, Format, Arguments, Remedy, RemedyArguments))#{status := problem}.

-ifdef(TEST).

status(#{status := Status}) -> Status.

found(#{found := Found}) -> lists:flatten(Found).

chars(Text) -> unicode:characters_to_binary(Text).

otp_test_() ->
    [?_assertEqual(problem, status(otp("24", 25))),
     ?_assertEqual(ok, status(otp("25", 25))),
     ?_assertEqual(ok, status(otp("27", 25)))].

system_test_() ->
    [?_assertEqual(ok, status(system({unix, linux}, {6, 1, 0}, 8))),
     ?_assertEqual(problem, status(system({unix, linux}, {6, 1, 0}, 4))),
     ?_assertEqual("Linux 6.1-rc1, 64 bit", found(system({unix, linux}, "6.1-rc1", 8))),
     ?_assertEqual(problem, status(system({unix, darwin}, {23, 0, 0}, 8)))].

file_size_test_() ->
    Ring = 4194304,
    [?_assertEqual(ok, status(file_size(unlimited, Ring))),
     ?_assertEqual(ok, status(file_size(2 * Ring + 4096, Ring))),
     ?_assertEqual(problem, status(file_size(2 * Ring + 4095, Ring))),
     ?_assertEqual(ok, status(file_size(unknown, Ring)))].

address_space_test_() ->
    Ring = 4194304,
    [?_assertEqual(ok, status(address_space(unlimited, 1, Ring))),
     ?_assertEqual(problem, status(address_space(100 bsl 20, 99 bsl 20, Ring))),
     ?_assertEqual(problem, status(address_space(1 bsl 20, 2 bsl 20, Ring))),
     ?_assertEqual(warning, status(address_space(8 bsl 30, 2 bsl 30, Ring))),
     ?_assertEqual(ok, status(address_space(8 bsl 30, unknown, Ring))),
     ?_assertEqual(ok, status(address_space(unknown, 2 bsl 30, Ring)))].

descriptors_test_() ->
    [?_assertEqual(warning, status(descriptors(1023))),
     ?_assertEqual(ok, status(descriptors(1024))),
     ?_assertEqual(ok, status(descriptors(unlimited))),
     ?_assertEqual("an unknown number of open files allowed", found(descriptors(unknown)))].

memory_test_() ->
    Ring = 4194304,
    [?_assertEqual(warning, status(memory(8 * Ring - 1, Ring))),
     ?_assertEqual("31 MiB free: the rings of about 3 busy links", found(memory(8 * Ring - 1, Ring))),
     ?_assertEqual(ok, status(memory(8 * Ring, Ring))),
     ?_assertEqual("an unknown amount free", found(memory(unknown, Ring)))].

host_name_test_() ->
    Lost = host_name("web1", {error, nxdomain}),
    [?_assertEqual("web1 is 127.0.1.1", found(host_name("web1", {ok, {127, 0, 1, 1}}))),
     ?_assertEqual(warning, status(Lost)),
     ?_assertMatch({match, _}, re:run(found(Lost), "^web1 does not resolve \\(non-existing domain\\)")),
     ?_assertMatch({match, _}, re:run(chars(maps:get(remedy, Lost)), "127.0.1.1 web1"))].

epmd_test_() ->
    [?_assertEqual("runs and knows 2 nodes", found(epmd({ok, [{"a", 1}, {"b", 2}]}))),
     ?_assertEqual(ok, status(epmd({error, address}))),
     ?_assertEqual(warning, status(epmd({error, timeout})))].

options_test_() ->
    {ok, Defaults} = beamway_config:read(fun(_) -> undefined end),
    Bad = beamway_config:read(fun(ring_bytes) -> "-1"; (_) -> undefined end),
    [?_assertEqual(ok, status(options({ok, Defaults}))),
     ?_assertEqual(problem, status(options({ok, Defaults#{links := [tcp]}}))),
     ?_assertMatch({match, _}, re:run(found(options(Bad)), "ring_bytes = \"-1\" is not valid"))].

driver_and_rings_test_() ->
    [?_assertEqual(problem, status(driver({error, <<"no such file">>}))),
     ?_assertEqual(problem, status(rings({error, no_driver}, 65536))),
     ?_assertEqual("two of 64 KiB made, passed over a unix socket and mapped", found(rings(ok, 65536)))].

socket_dir_test_() ->
    Try = fun(Reason) -> socket_dir("/run/bw", {error, Reason}) end,
    [?_assertEqual(ok, status(socket_dir("", ok))),
     ?_assertEqual("/run/bw: a socket was made in it", found(socket_dir("/run/bw", ok))),
     ?_assertEqual(problem, status(socket_dir("/run/bw", {error, no_driver})))]
        ++ [?_assertMatch({match, _}, re:run(chars(maps:get(remedy, Try(Reason))), Remedy))
            || {Reason, Remedy} <- [{<<"socket_dir: No such file or directory">>, "^mount"},
                                    {<<"socket_dir: Not a directory">>, "^name"},
                                    {<<"making a socket in socket_dir: Permission denied">>, "^let this user"},
                                    {<<"socket_dir belongs to another user and all may write to it">>, "^chown"},
                                    {<<"unix socket: Too many open files">>, "^raise"}]].

encryption_test_() ->
    [?_assertEqual({Status, Found}, {status(encryption(Fact)), found(encryption(Fact))})
     || {Status, Found, Fact} <- [{ok, "on, with a key from the cookie", {true, cookie}},
                                  {ok, "on, with key file 00000001 and key file 00000002", {true, {ok, [<<"key file 00000001">>, <<"key file 00000002">>]}}},
                                  {warning, "prefer, with a key from the cookie: links to nodes that cannot encrypt are in clear", {prefer, cookie}},
                                  {problem, "no such file", {true, {error, <<"no such file">>}}}]].

cipher_test_() ->
    [?_assertMatch({ok, {match, _}}, {status(cipher({Library, Aes})), re:run(found(cipher({Library, Aes})), Words)})
     || {Words, Library, Aes} <- [{"^OpenSSL 3.0.19 .* 3.1 and later would", {<<"OpenSSL 3.0.19">>, 16#30000130}, vaes},
                                  {"^OpenSSL 3.1.0 .* and VAES$", {<<"OpenSSL 3.1.0">>, 16#30100000}, vaes},
                                  {"has no VAES$", {<<"OpenSSL 3.0.19">>, 16#30000130}, aes}, {"ChaCha20$", {<<"OpenSSL 3.5.0">>, 16#30500000}, none},
                                  {"^unknown", unknown, vaes}]].

certificates_test_() ->
    Now = 1800000000,
    [?_assertEqual({Status, Found}, {status(certificates(Fact, Now)), found(certificates(Fact, Now))})
     || {Status, Found, Fact} <- [{ok, "server until 2027-01-29T08:00:00Z, client until 2027-01-29T08:00:00Z", [{server, Now + ?SOON_S}, {client, Now + ?SOON_S}]},
                                  {warning, "client until 2027-01-29T07:59:59Z", [{client, Now + ?SOON_S - 1}]},
                                  {problem, "server until 2027-01-15T08:00:00Z", [{server, Now}]},
                                  {problem, "no file", {error, <<"no file">>}}]]
        ++ [?_assertEqual(ok, status(certificates(Fact, Now))) || Fact <- [none, []]].

remedy_test_() ->
    [?_assertEqual(Remedy, lists:sublist(remedy(Reason), length(Remedy)))
     || {Reason, Remedy} <- [{<<"memfd_create: Function not implemented">>, "a sandbox hides"},
                             {<<"Too many open files">>, "raise the number"},
                             {<<"File too large">>, "raise the limit on file"},
                             {<<"strange">>, "links fall back"}]].

rdma_port(State, Addresses) ->
    #{device => "rxe0", port => 1, state => State, link_layer => "Ethernet", interfaces => ["eth1"], addresses => Addresses}.

rdma_test_() ->
    Good = rdma_port("ACTIVE", [{{10, 0, 0, 1}, 24}]),
    [?_assertEqual(ok, status(rdma([], [rdma], false))),
     ?_assertEqual("rxe0 port 1 ACTIVE (Ethernet), eth1: 10.0.0.1; off by default: BEAMWAY_RDMA=true or -beamway rdma true turns it on",
                   found(rdma([Good], [shm, tcp], ok))),
     ?_assertEqual("turned off", found(rdma([Good], [inet], ok))),
     ?_assertEqual("rxe0 port 1 ACTIVE (Ethernet), eth1: 10.0.0.1", found(rdma([Good], [rdma, tcp], ok))),
     ?_assertEqual(warning, status(rdma([Good], [rdma, tcp], {error, <<"no such file">>}))),
     ?_assertEqual(warning, status(rdma([rdma_port("DOWN", [{{10, 0, 0, 1}, 24}]), rdma_port("ACTIVE", [])], [rdma], ok)))].

locked_memory_test_() ->
    Ring = 4194304,
    One = 2 * Ring + 65536,
    [?_assertEqual("8192 KiB may be locked: room for about 0 links over rdma", found(locked_memory(2 * Ring, [device], Ring))),
     ?_assertEqual("12 MiB may be locked: room for about 1 links over rdma", found(locked_memory(3 * Ring, [device], Ring))),
     ?_assertEqual(warning, status(locked_memory(2 * One - 1, [device], Ring))),
     ?_assertEqual(ok, status(locked_memory(2 * One, [device], Ring))),
     ?_assertEqual(ok, status(locked_memory(65536, [], Ring))),
     ?_assertEqual(ok, status(locked_memory(unlimited, [device], Ring)))].

teleport_test_() ->
    [?_assertEqual(ok, status(teleport(host, false))),
     ?_assertEqual(ok, status(teleport('a@h', not_running))),
     ?_assertEqual("a@h runs teleport, over the distribution", found(teleport('a@h', {ok, 0}))),
     ?_assertEqual("a@h runs teleport, with connections of its own to 2 nodes", found(teleport('a@h', {ok, 2}))),
     ?_assertEqual(problem, status(teleport('a@h', {error, timeout})))].

%% Returns the facts of a host without problems; each test changes one fact.
facts() ->
    {ok, Defaults} = beamway_config:read(fun(rdma) -> true; (_) -> undefined end),
    #{otp => "25", system => {{unix, linux}, {6, 1, 0}, 8}, options => {ok, Defaults}, driver => ok, rings => ok, socket_dir => ok,
      descriptors => 4096, file_size => unlimited, address_space => unlimited, address_space_used => 1, lockable => unlimited,
      memory_free => 1 bsl 34, compression => ok, encryption => off, cipher => {unknown, none}, certificates => none, rdma_ports => [], rdma_library => false, host => {"web1", {ok, {127, 0, 1, 1}}}, epmd => {ok, []}}.

checks_test_() ->
    Ill = fun(Facts) -> [Name || #{name := Name, status := Status} <- checks(maps:merge(facts(), Facts)), Status =/= ok] end,
    [?_assertEqual(Wrong, Ill(Facts))
     || {Wrong, Facts} <- [{[], #{}}, {[otp], #{otp => "24"}}, {[driver, rings], #{driver => {error, <<"version 2">>}, rings => {error, no_driver}}},
                           {[compression], #{compression => {error, <<"no library">>}}},
                           {[descriptors], #{descriptors => 100}}, {[file_size], #{file_size => 4096}}, {[address_space], #{address_space => 4096}},
                           {[memory], #{memory_free => 4096}}, {[host_name], #{host => {"web1", {error, nxdomain}}}},
                           {[epmd], #{epmd => {error, timeout}}},
                           {[rdma, locked_memory], #{rdma_ports => [rdma_port("DOWN", [])], rdma_library => ok, lockable => 65536}}]].

-endif.
