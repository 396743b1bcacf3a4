%% SPDX-License-Identifier: Apache-2.0
%% @doc The attributes that every node has: those in Tables 1 and 2 of the report, in the report's units, and some others.
%%
%% Each attribute is computed by a function in this module or in OTP, and is evaluated like any other attribute. If the
%% system does not supply the data (for example, because it has no `/proc' or no cgroups), the function fails and the
%% attribute is unknown.
-module(placement_builtin).

-export([definitions/1, definitions/0, taint/1]).
-export([os_type/0, os_version/0, otp_release/0, hostname/0, processors/0, mem_info/1, cpu_speed/0, load_average/1, load_per_core/1,
         kernel_entities/0, load/0, run_queue/0, scheduler_utilization/0, vm_memory/0, reductions_per_s/0, applications/0, crypto_version/0,
         gpu/0, cgroup_cpus/0, cgroup_memory/0, declared_path/0, environment/1, leases/0, link_bytes/0]).

%% Other nodes notice a change in the taints within five seconds. The node itself checks its taints before it grants a
%% lease.
-define(TAINTS, #{ttl => 5000}).
-define(CGROUPS, "/sys/fs/cgroup").
-define(OWN_CGROUPS, "/proc/self/cgroup").
-define(VALUES, placement_values). %% {{kept, Key}, Term}, in addition to the rows of placement_attr

%% @doc Returns all built-in attributes, or an empty list if they are not wanted.
-spec definitions(AreWanted :: boolean()) -> [{placement_entry:name(), term()}].
definitions(true) -> definitions();
definitions(false) -> [].

%% @doc Returns all built-in attributes in the form of entries of a configuration file.
-spec definitions() -> [{placement_entry:name(), term()}].
definitions() ->
    report_static() ++ report_dynamic() ++ more_static() ++ more_dynamic().

%% Table 1 of the report.
report_static() ->
    [{os_type, automatic(os_type, [], #{})},
     {os_version, automatic(os_version, [], #{})},
     {otp_release, automatic(otp_release, [], #{})},
     {vm_num_processors, automatic(processors, [], #{type => integer})},
     {mem_total, automatic(mem_info, ["MemTotal"], #{unit => kib, type => integer})}].

%% Table 2 of the report. As in the report's example session, memory is in kB, the clock rate is in MHz, and load averages
%% are those in /proc.
report_dynamic() ->
    [{cpu_speed, dynamic(cpu_speed, [], #{unit => mhz, type => number, tolerance => 1})},
     {mem_free, dynamic(mem_info, ["MemFree"], #{unit => kib, type => integer, tolerance => 1024})},
     {loadavg1, dynamic(load_average, [1], #{type => number, tolerance => 0.05})},
     {loadavg5, dynamic(load_average, [5], #{type => number, tolerance => 0.05, ttl => 5000})},
     {loadavg15, dynamic(load_average, [15], #{type => number, tolerance => 0.05, ttl => 15000})},
     {kernel_entities, dynamic(kernel_entities, [], #{})},
     {num_erlang_processes, {dynamic, {erlang, system_info, [process_count]}, #{type => integer}}}].

more_static() ->
    [{hostname, automatic(hostname, [], #{type => text})},
     {schedulers_online, {automatic, {erlang, system_info, [schedulers_online]}, #{type => integer}}},
     {logical_processors_available, automatic(processors, [], #{type => integer})},
     {path, automatic(declared_path, [], #{})},
     {taints, {static, [], ?TAINTS}},
     {region, {automatic, {placement_place, region, []}, #{type => text}}},
     {zone, {automatic, {placement_place, zone, []}, #{type => text}}},
     {slurm_topology_addr, automatic(environment, ["SLURM_TOPOLOGY_ADDR"], #{type => text})},
     {cgroup_cpus, automatic(cgroup_cpus, [], #{type => number})},
     {cgroup_memory, automatic(cgroup_memory, [], #{unit => byte, type => integer})},
     {gpu, automatic(gpu, [], #{type => boolean})}].

more_dynamic() ->
    [{mem_available, dynamic(mem_info, ["MemAvailable"], #{unit => kib, type => integer, tolerance => 1024})},
     {load_per_core1, dynamic(load_per_core, [1], #{unit => ratio, type => number, tolerance => 0.05})},
     {load_per_core5, dynamic(load_per_core, [5], #{unit => ratio, type => number, tolerance => 0.05, ttl => 5000})},
     {load_per_core15, dynamic(load_per_core, [15], #{unit => ratio, type => number, tolerance => 0.05, ttl => 15000})},
     {load, dynamic(load, [], #{unit => ratio, type => number, tolerance => 0.05})},
     {run_queue, dynamic(run_queue, [], #{type => integer})},
     {scheduler_utilization, dynamic(scheduler_utilization, [], #{unit => ratio, type => number, tolerance => 0.05, min_interval => 100})},
     {reductions_per_s, dynamic(reductions_per_s, [], #{type => number, min_interval => 100})},
     {vm_memory, dynamic(vm_memory, [], #{unit => byte, type => integer, tolerance => 1 bsl 20})},
     {leases, dynamic(leases, [], #{type => integer})},
     {link_bytes, dynamic(link_bytes, [], #{ttl => 5000})},
     {applications, dynamic(applications, [], #{ttl => 5000})},
     {crypto_version, dynamic(crypto_version, [], #{type => text, ttl => 60000})}].

automatic(Function, Arguments, Options) -> {automatic, {?MODULE, Function, Arguments}, Options}.
dynamic(Function, Arguments, Options) -> {dynamic, {?MODULE, Function, Arguments}, Options}.

%% @doc Sets this node's taints.
-spec taint([Taint :: term()]) -> ok.
taint(Taints) -> ok = placement_attr:insert(taints, {static, Taints, ?TAINTS}).

%% @doc Returns the operating system's family and name.
-spec os_type() -> {unix | win32, atom()}.
os_type() -> os:type().

%% @doc Returns the operating system's version.
-spec os_version() -> string() | {non_neg_integer(), non_neg_integer(), non_neg_integer()}.
os_version() -> os:version().

%% @doc Returns the OTP release as a string.
-spec otp_release() -> string().
otp_release() -> erlang:system_info(otp_release).

%% @doc Returns the number of processors that this VM may use. Fails if the VM cannot determine it.
-spec processors() -> pos_integer().
processors() ->
    case erlang:system_info(logical_processors_available) of
        unknown -> error(unknown_here);
        Number -> Number
    end.

%% @doc Returns the host name without the domain.
-spec hostname() -> string().
hostname() ->
    {ok, Name} = inet:gethostname(),
    Name.

%% @doc Returns the value in a line of `/proc/meminfo', in kB.
-spec mem_info(Line :: string()) -> non_neg_integer().
mem_info(Line) -> binary_to_integer(matched("/proc/meminfo", ["(?m)^", Line, ":\\s*([0-9]+) kB"])).

%% @doc Returns the current clock rate of the first processor in MHz. It may be low while the processor is idle.
-spec cpu_speed() -> float().
cpu_speed() -> binary_to_float(matched("/proc/cpuinfo", "(?m)^cpu MHz\\s*:\\s*([0-9]+\\.[0-9]+)")).

%% @doc Returns the system's load average over 1, 5 or 15 minutes, not divided by the number of processors.
-spec load_average(1 | 5 | 15) -> float().
load_average(1) -> binary_to_float(matched("/proc/loadavg", "^(\\S+)"));
load_average(5) -> binary_to_float(matched("/proc/loadavg", "^\\S+ (\\S+)"));
load_average(15) -> binary_to_float(matched("/proc/loadavg", "^\\S+ \\S+ (\\S+)")).

%% @doc Returns the load average per processor.
-spec load_per_core(1 | 5 | 15) -> float().
load_per_core(Minutes) -> load_average(Minutes) / processors().

%% @doc Returns the number of runnable threads and the total number of threads in the system.
-spec kernel_entities() -> {Runnable :: non_neg_integer(), All :: non_neg_integer()}.
kernel_entities() ->
    [Runnable, All] = binary:split(matched("/proc/loadavg", "([0-9]+/[0-9]+)"), <<"/">>),
    {binary_to_integer(Runnable), binary_to_integer(All)}.

%% @doc Returns the load of this VM per scheduler: the length of the run queues plus the number of leases, which stand for
%% work that is about to start. Choices use this attribute by default.
-spec load() -> float().
load() -> (run_queue() + leases()) / erlang:system_info(schedulers_online).

%% @doc Returns the number of processes and ports that are ready to run.
-spec run_queue() -> non_neg_integer().
run_queue() -> erlang:statistics(total_run_queue_lengths).

%% @doc Returns the fraction of time for which the schedulers were busy, since the last evaluation or since the server
%% started.
-spec scheduler_utilization() -> float().
scheduler_utilization() ->
    Now = lists:sort(erlang:statistics(scheduler_wall_time)),
    Before = exchange(scheduler_wall_time, [{Id, 0, 0} || {Id, _, _} <- Now], Now),
    {Active, Total} = lists:foldl(fun add_difference/2, {0, 0}, lists:zip(Before, Now)),
    Active / max(1, Total).

add_difference({{Id, Active0, Total0}, {Id, Active1, Total1}}, {Active, Total}) -> {Active + Active1 - Active0, Total + Total1 - Total0}.

%% @doc Returns the reductions per second since the last evaluation.
-spec reductions_per_s() -> float().
reductions_per_s() ->
    {Reductions, _} = erlang:statistics(reductions),
    Now = erlang:monotonic_time(microsecond),
    {Before, Then} = exchange(reductions, {Reductions, Now - 1}, {Reductions, Now}),
    (Reductions - Before) * 1.0e6 / max(1, Now - Then).

exchange(Key, First, New) ->
    Before = case ets:lookup(?VALUES, {kept, Key}) of
                 [{_, Term}] -> Term;
                 [] -> First
             end,
    true = ets:insert(?VALUES, {{kept, Key}, New}),
    Before.

%% @doc Returns the memory that the VM has allocated, in bytes.
-spec vm_memory() -> non_neg_integer().
vm_memory() -> erlang:memory(total).

%% @doc Returns the running applications.
-spec applications() -> [atom()].
applications() -> lists:sort([Name || {Name, _, _} <- application:which_applications()]).

%% @doc Returns the version of OpenSSL that crypto uses. Fails if crypto is not usable.
-spec crypto_version() -> binary().
crypto_version() ->
    [{_, _, Text} | _] = apply(crypto, info_lib, []),
    Text.

%% @doc Returns whether the host has a GPU for computing: an NVIDIA device or a DRM render node.
-spec gpu() -> boolean().
gpu() -> filelib:wildcard("/dev/nvidia[0-9]*") ++ filelib:wildcard("/dev/dri/renderD*") ++ filelib:wildcard("/dev/kfd") =/= [].

%% @doc Returns the CPU limit of the control groups, as a number of processors. Fails if there is no limit.
-spec cgroup_cpus() -> float().
cgroup_cpus() -> cgroup_cpus(?CGROUPS, ?OWN_CGROUPS).

cgroup_cpus(Root, Own) -> least([Cpus || Group <- cgroups("cpu", Root, Own), Cpus <- cpus(Group)]).

cpus(Group) ->
    case {numbers(Group, "cpu.max"), numbers(Group, "cpu.cfs_quota_us"), numbers(Group, "cpu.cfs_period_us")} of
        {[Quota, Period], _, _} -> [Quota / Period];
        {_, [Quota], [Period]} when Quota > 0 -> [Quota / Period];
        _ -> []
    end.

%% @doc Returns the memory limit of the control groups in bytes. Fails if there is no limit.
-spec cgroup_memory() -> pos_integer().
cgroup_memory() -> cgroup_memory(?CGROUPS, ?OWN_CGROUPS).

%% Version 1 of control groups represents "no limit" with a very large multiple of the page size.
cgroup_memory(Root, Own) ->
    least([Bytes || Group <- cgroups("memory", Root, Own), File <- ["memory.max", "memory.limit_in_bytes"], [Bytes] <- [numbers(Group, File)], Bytes < 1 bsl 60]).

least([]) -> error(no_limit);
least(Limits) -> lists:min(Limits).

%% Returns the directories of this process's group and of all groups above it, because each group
%% may set a lower limit. In a container, the path may be the one on the host although the container
%% sees its own group as the root; then only the root directory exists.
cgroups(Controller, Root, Own) ->
    Lines = [string:split(Line, ":", all) || Line <- string:lexemes(text(Own), "\n")],
    case [Path || [_, Controllers, Path] <- Lines, lists:member(Controller, string:lexemes(Controllers, ","))] of
        [Path | _] -> upwards(filename:join(Root, Controller), Path);
        [] -> upwards(Root, lists:append([Path || ["0", "", Path] <- Lines]))
    end.

upwards(Top, Path) ->
    Names = [Name || Name <- string:lexemes(Path, "/"), Name =/= ".."],
    [filename:join([Top | lists:sublist(Names, Depth)]) || Depth <- lists:seq(0, length(Names))].

%% Returns the numbers in a file, or none if it does not exist or contains `max'.
numbers(Group, File) ->
    try [list_to_integer(Word) || Word <- string:lexemes(text(filename:join(Group, File)), " \n")]
    catch error:_ -> []
    end.

text(File) ->
    {ok, Text} = file:read_file(File),
    unicode:characters_to_list(Text).

%% @doc Returns the node's declared place from the application's environment (`path'): a list that begins at the root.
-spec declared_path() -> [term()].
declared_path() ->
    {ok, [_ | _] = Path} = application:get_env(placement, path),
    Path.

%% @doc Returns an environment variable. Fails if it is not set.
-spec environment(string()) -> string().
environment(Name) ->
    Value = os:getenv(Name),
    true = is_list(Value),
    Value.

%% @doc Returns how many leases granted by this node are still valid.
-spec leases() -> non_neg_integer().
leases() -> placement_lease:count().

%% @doc Returns the bytes exchanged with each peer. Fails with any carrier other than Beamway's,
%% because the others do not count bytes.
-spec link_bytes() -> [{node(), non_neg_integer()}].
link_bytes() ->
    {ok, [["beamway" ++ _ | _] | _]} = init:get_argument(proto_dist),
    Links = apply(beamway, links, []),
    [{Node, maps:get(bytes_in, Info, 0) + maps:get(bytes_out, Info, 0)} || #{node := Node} <- Links, {ok, Info} <- [apply(beamway, info, [Node])]].

matched(File, Pattern) ->
    {ok, Io} = file:open(File, [read, raw, binary]),
    %% Files in /proc report a size of 0.
    try
        {ok, Text} = file:read(Io, 65536),
        {match, [Found]} = re:run(Text, Pattern, [{capture, all_but_first, binary}]),
        Found
    after
        ok = file:close(Io)
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

all_parse_test() ->
    {ok, Entries} = placement_entry:parse(definitions()),
    ?assertEqual([], [os_type, os_version, otp_release, vm_num_processors, mem_total, cpu_speed, mem_free, loadavg1, loadavg5, loadavg15,
                      kernel_entities, num_erlang_processes] -- [Name || {Name, _} <- Entries]),
    ?assertEqual([], [Call || {_, #{call := Call}} <- Entries, not placement_eval:is_exported(Call)]).

proc_test_() ->
    [?_assert(mem_info("MemTotal") > mem_info("MemFree")), ?_assert(load_average(1) >= 0.0), ?_assert(load_average(5) >= 0.0),
     ?_assert(load_average(15) >= 0.0), ?_assertMatch({R, A} when R >= 1 andalso A >= R, kernel_entities())].

%% The cases are the control groups as seen by a systemd unit, by a Slurm step (with both versions of control groups)
%% and by a container.
cgroups_test_() ->
    Max = "9223372036854771712\n",
    [{Own, fun() ->
               Root = string:trim(os:cmd("mktemp -d")),
               try
                   [begin
                        Path = filename:join(Root, File),
                        ok = filelib:ensure_dir(Path),
                        ok = file:write_file(Path, Text)
                    end || {File, Text} <- [{"self", Own} | Files]],
                   Limit = fun(Function) -> try Function(Root, filename:join(Root, "self")) catch error:no_limit -> none end end,
                   ?assertEqual({Cpus, Memory}, {Limit(fun cgroup_cpus/2), Limit(fun cgroup_memory/2)})
               after
                   ok = file:del_dir_r(Root)
               end
           end}
     || {Cpus, Memory, Own, Files} <-
            [{2.0, 1000, "0::/system.slice/x.service\n", [{"system.slice/cpu.max", "400000 100000\n"}, {"system.slice/x.service/cpu.max", "200000 100000\n"},
                                                          {"system.slice/memory.max", "max\n"}, {"system.slice/x.service/memory.max", "1000\n"}]},
             {0.5, 700, "0::/job_1/step_0\n", [{"job_1/cpu.max", "50000 100000\n"}, {"job_1/step_0/cpu.max", "max 100000\n"},
                                               {"job_1/memory.max", "700\n"}, {"job_1/step_0/memory.max", "800\n"}]},
             {1.5, 900, "4:memory:/slurm/job_1\n2:cpu,cpuacct:/slurm/job_1\n0::/\n",
              [{"cpu/slurm/cpu.cfs_quota_us", "-1\n"}, {"cpu/slurm/cpu.cfs_period_us", "100000\n"},
               {"cpu/slurm/job_1/cpu.cfs_quota_us", "150000\n"}, {"cpu/slurm/job_1/cpu.cfs_period_us", "100000\n"},
               {"memory/memory.limit_in_bytes", Max}, {"memory/slurm/memory.limit_in_bytes", "900\n"}, {"memory/slurm/job_1/memory.limit_in_bytes", Max}]},
             {3.0, 500, "0::/docker/0123\n", [{"cpu.max", "300000 100000\n"}, {"memory.max", "500\n"}]},
             {none, none, "0::/../user.slice\n", [{"user.slice/cpu.max", "max 100000\n"}, {"user.slice/memory.max", "max\n"}]}]].
-endif.
