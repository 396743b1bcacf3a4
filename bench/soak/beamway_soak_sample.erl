%% SPDX-License-Identifier: Apache-2.0
%% @doc Defines the metrics that a soak observes, with their units and limits, and takes samples of a node. The measuring process reads the kernel's
%% metrics from /proc. It gets those of the VM and the links from the node itself, over the node's standard input and output.
-module(beamway_soak_sample).

-export([figures/0, rest_limits/0, take/2, rates/2, at_rest/2]).
%% Called on the nodes.
-export([in_node/1, collect_garbage/0, who/0]).

-export_type([figure/0, key/0, raw/0, sample/0]).

-type key() :: atom().
-type figure() :: #{key := key(), title := string(), unit := string(), divisor := pos_integer(),
                    limit := beamway_soak_verdict:limit() | none}.
%% A raw number divided by `divisor' has the metric's unit. A metric without a limit is shown but not judged, because it depends on how much load the
%% machine permits.
-type raw() :: #{key() => number()}.
%% Counters are totals, counted since their link was set up.
-type sample() :: #{key() => number()}.

%% For metrics that rise and fall in any case, less than five minutes is too short, because allocators grow in steps.
-define(MEMORY_S, 300).
-define(MB, 1048576).
-define(CALL_MS, 60000).

%% @doc Returns everything that is plotted, in the order of the plots.
-spec figures() -> [figure(), ...].
figures() ->
    Memory = #{unit => "MB", divisor => ?MB},
    Number = #{unit => "", divisor => 1},
    [Memory#{key => rss, title => "resident memory (RSS)", limit => {10 * ?MB, 0.05, ?MEMORY_S}},
     Memory#{key => pss, title => "its share of shared pages (PSS)", limit => {10 * ?MB, 0.05, ?MEMORY_S}},
     Memory#{key => binary, title => "VM: binaries", limit => {8 * ?MB, 0.2, ?MEMORY_S}},
     Memory#{key => process_memory, title => "VM: processes", limit => {4 * ?MB, 0.2, ?MEMORY_S}},
     Memory#{key => ets, title => "VM: ets tables", limit => {?MB div 4, 0.1, ?MEMORY_S}},
     Number#{key => processes, title => "processes", limit => {4, 0.05, ?MEMORY_S}},
     Number#{key => descriptors, title => "open descriptors", limit => {1.5, 0, 0}},
     Number#{key => ports, title => "ports", limit => {1.5, 0, 0}},
     Number#{key => mappings, title => "mappings in /proc/PID/maps", limit => {15, 0.03, ?MEMORY_S}},
     Number#{key => atoms, title => "atoms", limit => {20, 0, ?MEMORY_S}},
     #{key => ring_fill, title => "bytes in the rings", unit => "KB", divisor => 1024, limit => {262144, 0.5, ?MEMORY_S}},
     #{key => frames, title => "frames a second, in and out", unit => "1/s", divisor => 1, limit => none},
     #{key => stalls, title => "stalls a second (ring full)", unit => "1/s", divisor => 1, limit => none},
     #{key => doorbells, title => "doorbells for 100 frames", unit => "", divisor => 1, limit => none}].

%% @doc Returns how much each metric may have risen after the load has stopped and all links are down.
-spec rest_limits() -> #{key() => non_neg_integer()}.
rest_limits() ->
    #{processes => 0, descriptors => 0, ports => 0, rings => 0, tables => 0, atoms => 20}.

%% @doc Returns a sample of a node. It covers the links to the given nodes that are currently up.
-spec take(Member :: map(), Others :: [node()]) -> raw().
take(#{os_pid := OsPid} = Member, Others) ->
    InNode = beamway_bench_nodes:call(Member, ?MODULE, in_node, [Others], ?CALL_MS),
    maps:merge(InNode, of_kernel(OsPid)).

%% @doc Like {@link take/2}, but after a garbage collection in all processes, and with `who', a list of all existing resources, which helps to find a
%% leak.
-spec at_rest(Member :: map(), Others :: [node()]) -> #{key() | who => number() | [binary()]}.
at_rest(#{os_pid := OsPid} = Member, Others) ->
    ok = beamway_bench_nodes:call(Member, ?MODULE, collect_garbage, [], ?CALL_MS),
    Who = beamway_bench_nodes:call(Member, ?MODULE, who, [], ?CALL_MS),
    (take(Member, Others))#{who => lists:sort(Who ++ [list_to_binary(D) || D <- beamway_bench_os:descriptors(OsPid)])}.

of_kernel(OsPid) ->
    Rollup = read(OsPid, "smaps_rollup"),
    Maps = binary:split(read(OsPid, "maps"), <<"\n">>, [global, trim]),
    #{rss => kilobytes(<<"Rss:">>, Rollup) * 1024,
      pss => kilobytes(<<"Pss:">>, Rollup) * 1024,
      mappings => length(Maps),
      rings => length(beamway_bench_os:mappings(OsPid)),
      descriptors => length(beamway_bench_os:descriptors(OsPid))}.

%% Files in /proc report a size of 0 and are read page by page.
read(OsPid, Name) ->
    {ok, File} = file:open(filename:join(["/proc", integer_to_list(OsPid), Name]), [read, raw, binary]),
    try iolist_to_binary(read_rest(File)) after ok = file:close(File) end.

read_rest(File) ->
    case file:read(File, 65536) of
        {ok, Data} -> [Data | read_rest(File)];
        eof -> []
    end.

kilobytes(Name, Text) ->
    [_, Rest] = binary:split(Text, Name),
    {Number, _} = string:to_integer(string:trim(Rest, leading)),
    Number.

%% @private
-spec in_node(Others :: [node()]) -> raw().
in_node(Others) ->
    Memory = maps:from_list(erlang:memory()),
    Links = [Info || Other <- Others, {ok, Info} <- [beamway:info(Other)]],
    Sum = fun(Keys) -> lists:sum([maps:get(Key, Info, 0) || Info <- Links, Key <- Keys]) end,
    #{binary => maps:get(binary, Memory), process_memory => maps:get(processes, Memory), ets => maps:get(ets, Memory),
      processes => erlang:system_info(process_count), ports => erlang:system_info(port_count),
      atoms => erlang:system_info(atom_count), tables => length(ets:all()),
      links => length(Links),
      ring_fill => Sum([ring_fill_in, ring_fill_out, queue_bytes]), frames_total => Sum([frames_in, frames_out]),
      stalls_total => Sum([stalls]), doorbells_total => Sum([doorbells_in, doorbells_out])}.

%% @private
-spec collect_garbage() -> ok.
collect_garbage() ->
    _ = [erlang:garbage_collect(Pid) || Pid <- processes()],
    ok.

%% @private Returns a description of every process, port and table.
-spec who() -> [binary()].
who() ->
    Texts = [io_lib:format("process ~0tp: ~0tp",
                           [proplists:get_value('$initial_call', Dictionary, Initial), [MFA || {_, _, _, _} = F <- Stack, MFA <- [mfa(F)]]])
             || Pid <- processes(),
                [{initial_call, Initial}, {dictionary, Dictionary}, {current_stacktrace, Stack}]
                    <- [process_info(Pid, [initial_call, dictionary, current_stacktrace])]]
        ++ [io_lib:format("port ~0tp", [erlang:port_info(Port, name)]) || Port <- erlang:ports()]
        ++ [io_lib:format("table ~0tp", [ets:info(Table, name)]) || Table <- ets:all()],
    [unicode:characters_to_binary(Text) || Text <- Texts].

mfa({Module, Function, Arity, _}) when is_integer(Arity) -> {Module, Function, Arity};
mfa({Module, Function, Args, _}) -> {Module, Function, length(Args)}.

%% @doc Returns a sample computed from two raw samples, in which counters become rates. The counters of a new link start at 0.
-spec rates({TimeS :: float(), raw()}, {TimeS :: float(), raw()}) -> sample().
rates({BeforeS, Before}, {NowS, Now}) ->
    Seconds = max(0.001, NowS - BeforeS),
    Frames = risen(frames_total, Before, Now),
    Rates = #{frames => Frames / Seconds, stalls => risen(stalls_total, Before, Now) / Seconds,
              doorbells => 100 * risen(doorbells_total, Before, Now) / max(1, Frames)},
    maps:merge(maps:without([frames_total, stalls_total, doorbells_total], Now), Rates).

risen(Key, Before, Now) ->
    case {maps:get(Key, Before), maps:get(Key, Now)} of
        {Old, New} when New >= Old -> New - Old;
        {_, New} -> New
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

of_kernel_test() ->
    #{rss := Rss, pss := Pss, mappings := Mappings, descriptors := Descriptors} = of_kernel(list_to_integer(os:getpid())),
    ?assert(Rss >= Pss andalso Pss > ?MB),
    ?assert(Mappings > 10 andalso Descriptors > 3).

every_figure_is_sampled_test() ->
    Raw = maps:merge(in_node([]), of_kernel(list_to_integer(os:getpid()))),
    Sample = rates({0.0, Raw}, {1.0, Raw}),
    ?assertEqual([], [Key || #{key := Key} <- figures(), not is_map_key(Key, Sample)]),
    ?assertEqual([], [Key || Key <- maps:keys(rest_limits()), not is_map_key(Key, Sample)]).

rates_test_() ->
    Raw = fun(Frames, Stalls, Bells) -> #{frames_total => Frames, stalls_total => Stalls, doorbells_total => Bells} end,
    [?_assertEqual(#{frames => 50.0, stalls => 1.0, doorbells => 10.0}, rates({1.0, Raw(0, 0, 0)}, {3.0, Raw(100, 2, 10)})),
     %% a new link
     ?_assertEqual(#{frames => 10.0, stalls => 0.0, doorbells => 10.0}, rates({1.0, Raw(900, 5, 90)}, {2.0, Raw(10, 0, 1)})),
     ?_assertEqual(#{frames => 0.0, stalls => 0.0, doorbells => 0.0}, rates({1.0, Raw(0, 0, 0)}, {1.0, Raw(0, 0, 0)}))].
-endif.
