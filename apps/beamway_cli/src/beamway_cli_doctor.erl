%% SPDX-License-Identifier: Apache-2.0
%% @doc `beamway doctor': which links this host can use, and what is in the way.
%%
%% Called by {@link beamway_cli}; {@link beamway_cli_node} asks for epmd. First facts are gathered (files under `/proc', a pair of rings that the
%% driver really makes, epmd), then each is judged by a pure function, so that the judgements are tested
%% without the machine that they need. Limits are those of this VM: the shell's that started it.
%% A `problem' keeps shared memory from being used; a `warning' may once more links are wanted.
-module(beamway_cli_doctor).

-export([examine/0, is_well/1, to_json/1, to_text/1, epmd_names/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-export_type([report/0, check/0]).

-type check() :: #{name := atom(), status := ok | warning | problem, found := unicode:chardata(),
                   remedy => unicode:chardata()}.
-type report() :: #{checks := [check()]}.

%% One link holds its socket, two doorbells and, while it is set up, a few more.
-define(DESCRIPTORS_OF_A_LINK, 4).
-define(EPMD_MS, 2000).

%% @doc Gathers and judges everything. Takes well under a second.
-spec examine() -> report().
examine() ->
    _ = application:load(beamway),
    Options = beamway_config:read(),
    Ring = ring_bytes(Options),
    Limits = limits(),
    Driver = beamway_port:load(),
    Rdma = beamway_rdma_devices:all(),
    #{checks => [otp(erlang:system_info(otp_release), minimum_otp()),
                 system(os:type(), os:version(), erlang:system_info(wordsize)),
                 options(Options),
                 driver(Driver),
                 rings(probe(Driver, Ring), Ring),
                 socket_dir(directory(Options), try_directory(Driver, directory(Options))),
                 descriptors(maps:get(nofile, Limits, unknown)),
                 file_size(maps:get(fsize, Limits, unknown), Ring),
                 address_space(maps:get(as, Limits, unknown), address_space_used(), Ring),
                 rdma(Rdma, is_wanted(rdma, Options), Rdma =/= [] andalso rdma_library(Driver)),
                 locked_memory(lockable(maps:get(memlock, Limits, unknown), read("/proc/self/status")), Rdma, Ring),
                 memory(free_memory(), Ring),
                 host_name(host(), resolve(host())),
                 epmd(epmd_names())]}.

%% @doc Whether nothing keeps shared memory from being used.
-spec is_well(report()) -> boolean().
is_well(#{checks := Checks}) ->
    not lists:any(fun(#{status := Status}) -> Status =:= problem end, Checks).

%%% Facts

minimum_otp() -> 25.

%% The driver itself makes a memfd, two eventfds and an abstract socket, and passes them round.
probe(ok, Ring) -> beamway_port:probe(Ring);
probe({error, _}, _) -> {error, no_driver}.

%% An option that is not valid leaves the node on TCP; what else there is to say is said for the default.
ring_bytes({ok, #{ring_bytes := Bytes}}) -> Bytes;
ring_bytes({error, _}) -> 4194304.

directory({ok, #{socket_dir := Dir}}) -> Dir;
directory({error, _}) -> "".

try_directory(ok, Dir) -> beamway_socket_dir:check(Dir);
try_directory({error, _}, _) -> {error, no_driver}.

limits() -> parse_limits(read("/proc/self/limits")).

address_space_used() -> status_bytes("VmSize", read("/proc/self/status")).

free_memory() -> status_bytes("MemAvailable", read("/proc/meminfo")).

rdma_library(ok) -> beamway_port:with_port(fun beamway_port:rdma_load/1);
rdma_library({error, _}) -> {error, <<"the driver is not loaded">>}.

is_wanted(Link, {ok, #{links := Links}}) -> lists:member(Link, Links);
is_wanted(_, {error, _}) -> false.

host() ->
    {ok, Host} = inet:gethostname(),
    Host.

resolve(Host) -> inet:getaddr(Host, inet).

%% @doc The nodes that this host's epmd knows; `address' if nothing listens at its port.
-spec epmd_names() -> {ok, [{Name :: string(), inet:port_number()}]} | {error, address | timeout | term()}.
%% erl_epmd has no time limit of its own for a peer that accepts and says nothing.
epmd_names() ->
    Caller = self(),
    Reference = make_ref(),
    {Pid, Monitor} = spawn_monitor(fun() -> Caller ! {Reference, erl_epmd:names("localhost")} end),
    receive
        {Reference, Result} ->
            _ = erlang:demonitor(Monitor, [flush]),
            Result;
        {'DOWN', Monitor, process, Pid, Reason} ->
            {error, Reason}
    after ?EPMD_MS ->
        exit(Pid, kill),
        _ = erlang:demonitor(Monitor, [flush]),
        {error, timeout}
    end.

read(File) ->
    case file:read_file(File) of
        {ok, Text} -> Text;
        {error, _} -> <<>>
    end.

%%% Reading what the kernel says

%% Soft limits, by the names that ulimit's manual uses.
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

%% A line `Key:   123 kB' in bytes.
status_bytes(Key, Text) ->
    case re:run(Text, "^" ++ Key ++ ":\\s+(\\d+) kB", [multiline, {capture, [1], list}]) of
        {match, [Digits]} -> list_to_integer(Digits) * 1024;
        nomatch -> unknown
    end.

%% Whoever has the capability CAP_IPC_LOCK has no limit.
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

%%% Judgements

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
                    "unset BEAMWAY_LINKS, or set it to shm,tcp", [])
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

%% The usual causes, by what they leave in the reason.
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

%% A memfd is a file for this limit: both rings and one page.
file_size(Limit, Ring) when is_integer(Limit), Limit < 2 * Ring + 4096 ->
    problem(file_size, "files may have ~ts; the rings of a link need ~ts", [in_bytes(Limit), in_bytes(2 * Ring + 4096)],
            "raise it: ulimit -f unlimited; or set a smaller BEAMWAY_RING_BYTES", []);
file_size(unlimited, _) ->
    well(file_size, "no limit", []);
file_size(Limit, _) ->
    well(file_size, "files may have ~ts", [in_bytes(Limit)]).

%% Both rings are mapped twice in a row.
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

%% Both rings of a link and its small buffers.
locked_memory(Limit, [_ | _], Ring) when is_integer(Limit), Limit < 4 * Ring ->
    warning(locked_memory, "~ts may be locked; a link over rdma needs ~ts", [in_bytes(Limit), in_bytes(2 * Ring + 65536)],
            "raise it: ulimit -l unlimited, or LimitMEMLOCK=infinity in the systemd unit", []);
locked_memory(Limit, _, _) ->
    well(locked_memory, "~ts may be locked (matters for rdma only)", [in_bytes(Limit)]).

%% No rdma is nothing to worry about, unless there is a device.
rdma([], _, _) ->
    well(rdma, "no devices", []);
rdma(_, false, _) ->
    well(rdma, "turned off", []);
rdma(_, true, {error, Reason}) ->
    warning(rdma, "~ts", [Reason], "install libibverbs1 and librdmacm1; to build: libibverbs-dev, librdmacm-dev, make clean build", []);
rdma(Ports, true, ok) ->
    Found = lists:join("; ", [port_text(Port) || Port <- Ports]),
    case beamway_rdma_devices:usable(Ports) of
        [_ | _] -> well(rdma, "~ts", [Found]);
        [] -> warning(rdma, "~ts", [Found], "bring a port up (ip link set dev INTERFACE up) and give its interface an IP address", [])
    end.

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

%%% Showing

links(Report) ->
    {Usable, Why} = rdma_why(Report),
    [{shm, is_well(Report), shm_why(Report)},
     {rdma, Usable, Why},
     {tcp, true, "always"}].

rdma_why(#{checks := Checks}) ->
    case [Check || #{name := rdma} = Check <- Checks] of
        [#{status := ok, found := Found}] -> {string:find(Found, "ACTIVE") =/= nomatch, Found};
        [#{found := Found}] -> {false, Found}
    end.

shm_why(#{checks := Checks}) ->
    case [Found || #{status := problem, found := Found} <- Checks] of
        [] -> "tried: a pair of rings was made and mapped";
        [Found | _] -> Found
    end.

%% @doc The report as a term for jiffy.
-spec to_json(report()) -> term().
to_json(#{checks := Checks} = Report) ->
    {[{ok, is_well(Report)},
      {links, [{[{link, Link}, {usable, Usable}, {why, text(Why)}]} || {Link, Usable, Why} <- links(Report)]},
      {checks, [{[{name, Name}, {status, Status}, {found, text(Found)}]
                 ++ [{remedy, text(Remedy)} || #{remedy := Remedy} <- [Check]]}
                || #{name := Name, status := Status, found := Found} = Check <- Checks]}]}.

text(Chars) -> unicode:characters_to_binary(Chars).

%% @doc The report for a reader.
-spec to_text(report()) -> unicode:chardata().
to_text(#{checks := Checks} = Report) ->
    [beamway_cli:table([["LINK", "USABLE", "WHY"]
                        | [[atom_to_list(Link), yes_or_no(Usable), text(Why)] || {Link, Usable, Why} <- links(Report)]]),
     "\n",
     [check_text(Check) || Check <- Checks]].

yes_or_no(true) -> "yes";
yes_or_no(false) -> "no".

check_text(#{name := Name, status := Status, found := Found} = Check) ->
    [io_lib:format("~-8s ~-14s ~ts~n", [Status, Name, Found]),
     [io_lib:format("~24cremedy: ~ts~n", [$\s, Remedy]) || #{remedy := Remedy} <- [Check]]].

-ifdef(TEST).

status(#{status := Status}) -> Status.

found(#{found := Found}) -> lists:flatten(Found).

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
     ?_assertMatch({match, _}, re:run(text(maps:get(remedy, Lost)), "127.0.1.1 web1"))].

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
        ++ [?_assertMatch({match, _}, re:run(text(maps:get(remedy, Try(Reason))), Remedy))
            || {Reason, Remedy} <- [{<<"socket_dir: No such file or directory">>, "^mount"},
                                    {<<"socket_dir: Not a directory">>, "^name"},
                                    {<<"making a socket in socket_dir: Permission denied">>, "^let this user"},
                                    {<<"socket_dir belongs to another user and all may write to it">>, "^chown"},
                                    {<<"unix socket: Too many open files">>, "^raise"}]].

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
    [?_assertEqual(ok, status(rdma([], true, false))),
     ?_assertEqual("turned off", found(rdma([Good], false, ok))),
     ?_assertEqual("rxe0 port 1 ACTIVE (Ethernet), eth1: 10.0.0.1", found(rdma([Good], true, ok))),
     ?_assertEqual(warning, status(rdma([Good], true, {error, <<"no such file">>}))),
     ?_assertEqual(warning, status(rdma([rdma_port("DOWN", [{{10, 0, 0, 1}, 24}]), rdma_port("ACTIVE", [])], true, ok)))].

locked_memory_test_() ->
    Ring = 4194304,
    [?_assertEqual(warning, status(locked_memory(65536, [device], Ring))),
     ?_assertEqual(ok, status(locked_memory(65536, [], Ring))),
     ?_assertEqual(ok, status(locked_memory(unlimited, [device], Ring))),
     ?_assertEqual(unlimited, lockable(65536, <<"Name:\tx\nCapEff:\t000001ffffffffff\n">>)),
     ?_assertEqual(65536, lockable(65536, <<"CapEff:\t0000000000000000\n">>)),
     ?_assertEqual(65536, lockable(65536, <<>>))].

report_test_() ->
    Rdma = rdma([], true, false),
    Report = #{checks => [well(otp, "OTP 25", []), descriptors(5), Rdma]},
    Bad = Report#{checks := [file_size(5, 5), Rdma]},
    [?_assert(is_well(Report)),
     ?_assertNot(is_well(Bad)),
     ?_assertMatch({match, _}, re:run(text(to_text(Report)), "(?m)^shm +yes.*\n(.*\n)*warning +descriptors.*\n +remedy: ")),
     ?_assertMatch({match, _}, re:run(text(to_text(Bad)), "(?m)^shm +no +files may have")),
     ?_assertMatch(#{<<"ok">> := false}, jiffy:decode(jiffy:encode(to_json(Bad)), [return_maps]))].

-endif.
