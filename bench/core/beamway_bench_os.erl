%% SPDX-License-Identifier: Apache-2.0
%% @doc Reports what the kernel knows about a process (whether it is alive, what it has opened and mapped, and how often its threads slept), about the
%% machine and about its network interfaces. The measuring process reads all of it from /proc, so the measured process does no extra work.
-module(beamway_bench_os).

-export([identity/1, is_alive/1, await_end/2, kill/1, switches/1, cpu_us/1, sum_cpu_us/1, thread_us/1, sum_thread_us/1, pss_bytes/1, descriptors/1, mappings/1,
         interface_bytes/0, load_average/0, available_bytes/0, processors/0, cpu_model/0, memory_bytes/0]).

-export_type([identity/0, switches/0]).

-opaque identity() :: {OsPid :: pos_integer(), StartTime :: binary()}.
%% A process ID and its start time, because the kernel reuses IDs and we must not kill an unrelated process.
-type switches() :: #{voluntary := non_neg_integer(), forced := non_neg_integer()}.
%% A voluntary switch means that a thread went to sleep and had to be woken, and a forced one that
%% its time slice was used up.

%% @doc Returns the identity of the process that currently has this ID, or `gone' if it has exited.
-spec identity(OsPid :: pos_integer()) -> identity() | gone.
identity(OsPid) ->
    case start_time(OsPid) of
        {ok, Time} -> {OsPid, Time};
        gone -> gone
    end.

start_time(OsPid) ->
    case read(OsPid, "stat") of
        {ok, Text} -> parse_start_time(Text);
        {error, _} -> gone
    end.

%% The second field is a name that may contain any characters, so the fields are counted from the last parenthesis: the state is the first of them and
%% the start time the twentieth. A zombie counts as exited.
parse_start_time(Text) ->
    [_, Rest] = string:split(Text, ") ", trailing),
    case binary:split(Rest, <<" ">>, [global]) of
        [<<"Z">> | _] -> gone;
        Fields -> {ok, lists:nth(20, Fields)}
    end.

%% Returns whether exactly this process is still running.
-spec is_alive(identity()) -> boolean().
is_alive({OsPid, Time}) ->
    start_time(OsPid) =:= {ok, Time}.

%% @doc Waits until the process has exited.
-spec await_end(identity(), TimeoutMs :: non_neg_integer()) -> ok | timeout.
await_end(Identity, TimeoutMs) ->
    await_end_until(Identity, erlang:monotonic_time(millisecond) + TimeoutMs).

await_end_until(Identity, Deadline) ->
    case {is_alive(Identity), erlang:monotonic_time(millisecond) > Deadline} of
        {false, _} -> ok;
        {true, true} -> timeout;
        {true, false} -> receive after 5 -> await_end_until(Identity, Deadline) end
    end.

%% @doc Kills the process with kill -9, if the ID still belongs to it.
-spec kill(identity()) -> ok.
kill({OsPid, _} = Identity) ->
    case is_alive(Identity) of
        true -> _ = os:cmd("kill -9 " ++ integer_to_list(OsPid)), ok;
        false -> ok
    end.

%% @doc Returns the context switches of all threads of a process since the threads started.
-spec switches(OsPid :: pos_integer()) -> switches().
switches(OsPid) ->
    Threads = case file:list_dir(path(OsPid, "task")) of
                  {ok, Names} -> Names;
                  {error, _} -> []
              end,
    lists:foldl(fun(Thread, Sum) -> add_switches(read(OsPid, filename:join(["task", Thread, "status"])), Sum) end,
                #{voluntary => 0, forced => 0}, Threads).

%% A thread may exit after it was listed and before its file is read.
add_switches({error, _}, Sum) -> Sum;
add_switches({ok, Text}, #{voluntary := Voluntary, forced := Forced}) ->
    #{voluntary => Voluntary + field(Text, <<"\nvoluntary_ctxt_switches:">>),
      forced => Forced + field(Text, <<"\nnonvoluntary_ctxt_switches:">>)}.

field(Text, Name) ->
    [_, Rest] = binary:split(Text, Name),
    {Number, _} = string:to_integer(string:trim(Rest, leading)),
    Number.

%% @doc Returns the CPU time that a process and its threads have used so far, in microseconds; the kernel counts it in ticks of 10 ms.
-spec cpu_us(OsPid :: pos_integer()) -> #{user := non_neg_integer(), kernel := non_neg_integer()}.
cpu_us(OsPid) ->
    {ok, Text} = read(OsPid, "stat"),
    %% The name is in parentheses and may contain any characters; the fields after it are numbered from 3.
    [_, Fields] = re:split(Text, "^.*\\) ", [{parts, 2}, dotall]),
    Ticks = fun(Field) -> binary_to_integer(lists:nth(Field - 2, binary:split(Fields, <<" ">>, [global]))) end,
    #{user => Ticks(14) * 10000, kernel => Ticks(15) * 10000}.

%% @doc Returns the total CPU time of several processes, in user space and in the kernel.
-spec sum_cpu_us([OsPid :: pos_integer()]) -> non_neg_integer().
sum_cpu_us(OsPids) -> lists:sum([User + Kernel || OsPid <- OsPids, #{user := User, kernel := Kernel} <- [cpu_us(OsPid)]]).

%% @doc Returns the CPU time that a process's threads have used so far, in microseconds, without the coarse ticks of {@link cpu_us/1}. Threads that
%% have exited do not count.
-spec thread_us(OsPid :: pos_integer()) -> float().
thread_us(OsPid) ->
    {ok, Threads} = file:list_dir(path(OsPid, "task")),
    lists:sum([binary_to_integer(hd(binary:split(Text, <<" ">>))) || Thread <- Threads, {ok, Text} <- [read(OsPid, filename:join(["task", Thread, "schedstat"]))]]) / 1000.

%% @doc Returns the total CPU time of several processes' threads, in microseconds.
-spec sum_thread_us([OsPid :: pos_integer()]) -> number().
sum_thread_us(OsPids) -> lists:sum([thread_us(OsPid) || OsPid <- OsPids]).

%% @doc Returns a process's memory, including its share of shared pages (PSS) but not the kernel's
%% socket buffers.
-spec pss_bytes(OsPid :: pos_integer()) -> non_neg_integer().
pss_bytes(OsPid) ->
    {ok, Text} = read(OsPid, "smaps_rollup"),
    field(Text, <<"\nPss:">>) * 1024.

%% @doc Returns the open descriptors of a process, each as the link target that the kernel reports.
-spec descriptors(OsPid :: pos_integer()) -> [Target :: string()].
descriptors(OsPid) ->
    Folder = path(OsPid, "fd"),
    {ok, Names} = file:list_dir(Folder),
    lists:sort([Target || Name <- Names,
                          {ok, Target} <- [file:read_link_all(filename:join(Folder, Name))]]).

%% @doc Returns the memfd mappings of a process. Some of them are rings; all others stay for the node's lifetime.
-spec mappings(OsPid :: pos_integer()) -> [Line :: binary()].
mappings(OsPid) ->
    {ok, Text} = read(OsPid, "maps"),
    [Line || Line <- binary:split(Text, <<"\n">>, [global]), binary:match(Line, <<"/memfd:">>) =/= nomatch].

%% @doc Returns the bytes that the interfaces of this network namespace, except loopback, have received and sent so far.
-spec interface_bytes() -> non_neg_integer().
interface_bytes() ->
    {ok, Text} = file:read_file("/proc/net/dev"),
    lists:sum([interface_bytes(string:lexemes(Line, " :")) || Line <- string:lexemes(Text, "\n"), string:find(Line, ":") =/= nomatch]).

interface_bytes([<<"lo">> | _]) -> 0;
interface_bytes([_, Received, _, _, _, _, _, _, _, Sent | _]) -> binary_to_integer(Received) + binary_to_integer(Sent).

%% @doc Returns the load average of the last minute.
-spec load_average() -> float().
load_average() ->
    {ok, Text} = file:read_file("/proc/loadavg"),
    {Load, _} = string:to_float(Text),
    Load.

%% @doc Returns the memory that is available without swapping.
-spec available_bytes() -> non_neg_integer().
available_bytes() ->
    meminfo(<<"MemAvailable:">>).

%% @doc Returns the total memory of the machine.
-spec memory_bytes() -> non_neg_integer().
memory_bytes() ->
    meminfo(<<"MemTotal:">>).

meminfo(Name) ->
    {ok, Text} = file:read_file("/proc/meminfo"),
    field(Text, Name) * 1024.

%% @doc Returns the number of processors that this VM may use; a node starts the same number of schedulers.
-spec processors() -> pos_integer().
processors() ->
    case erlang:system_info(logical_processors_available) of
        unknown -> erlang:system_info(schedulers_online);
        Count -> Count
    end.

%% @doc Returns the processor's name from /proc/cpuinfo, which x86 and some other architectures provide.
-spec cpu_model() -> binary().
cpu_model() ->
    {ok, Text} = file:read_file("/proc/cpuinfo"),
    parse_cpu_model(Text).

parse_cpu_model(Text) ->
    case re:run(Text, "^model name\\s*: (.*)$", [multiline, {capture, all_but_first, binary}]) of
        {match, [Name]} -> Name;
        nomatch -> <<"unknown">>
    end.

path(OsPid, Name) ->
    filename:join(["/proc", integer_to_list(OsPid), Name]).

read(OsPid, Name) ->
    file:read_file(path(OsPid, Name)).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

own_pid() -> list_to_integer(os:getpid()).

parse_start_time_test_() ->
    Fields = fun(State) -> iolist_to_binary([State, [[" ", integer_to_list(N)] || N <- lists:seq(4, 30)]]) end,
    [?_assertEqual({ok, <<"22">>}, parse_start_time(<<"7 (beam.smp) ", (Fields("S"))/binary>>)),
     ?_assertEqual({ok, <<"22">>}, parse_start_time(<<"7 (a ) S (b) ", (Fields("R"))/binary>>)),
     ?_assertEqual(gone, parse_start_time(<<"7 (beam.smp) ", (Fields("Z"))/binary>>))].

identity_of_a_real_process_test() ->
    Port = open_port({spawn_executable, "/bin/cat"}, [binary]),
    {os_pid, OsPid} = erlang:port_info(Port, os_pid),
    Identity = identity(OsPid),
    ?assert(is_alive(Identity)),
    ?assertEqual(timeout, await_end(Identity, 20)),
    ok = kill(Identity),
    ?assertEqual(ok, await_end(Identity, 5000)),
    ?assertNot(is_alive(Identity)),
    ok = kill(Identity).

another_process_with_the_same_id_is_spared_test() ->
    {OsPid, _} = identity(own_pid()),
    Impostor = {OsPid, <<"1">>},
    ?assertNot(is_alive(Impostor)),
    ok = kill(Impostor).

switches_grow_test() ->
    #{voluntary := Before} = switches(own_pid()),
    [receive after 1 -> ok end || _ <- lists:seq(1, 50)],
    #{voluntary := Later} = switches(own_pid()),
    ?assert(Later > Before).

threads_use_time_test() ->
    Before = thread_us(own_pid()),
    _ = lists:sort([rand:uniform() || _ <- lists:seq(1, 100000)]),
    ?assert(thread_us(own_pid()) > Before + 1000).

%% A line of /proc/net/dev has the received bytes in its first field and the sent bytes in its ninth.
interface_bytes_test_() ->
    [?_assertEqual(0, interface_bytes([<<"lo">>, <<"5">>])),
     ?_assertEqual(16, interface_bytes([<<"path0">>, <<"7">>, <<"1">>, <<"0">>, <<"0">>, <<"0">>, <<"0">>, <<"0">>, <<"0">>, <<"9">>, <<"2">>])),
     ?_assert(interface_bytes() >= 0)].

descriptors_show_an_open_file_test() ->
    Before = descriptors(own_pid()),
    {ok, File} = file:open("/proc/self/status", [raw, read]),
    Opened = descriptors(own_pid()) -- Before,
    ok = file:close(File),
    ?assertMatch([_], [D || D <- Opened, string:find(D, "/status") =/= nomatch]).

machine_test_() ->
    [?_assert(available_bytes() < memory_bytes()), ?_assert(load_average() >= 0.0),
     ?_assertEqual(<<"A B">>, parse_cpu_model(<<"processor: 0\nmodel name\t: A B\nflags: x\n">>)),
     ?_assertEqual(<<"unknown">>, parse_cpu_model(<<"processor: 0\n">>))].
-endif.
