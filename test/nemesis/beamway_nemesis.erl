%% SPDX-License-Identifier: Apache-2.0
%% @doc Runs a schedule of faults on real nodes that constantly exchange messages, and returns the findings: see {@link
%% beamway_nemesis_schedule} and {@link beamway_nemesis_oracle}.
%%
%% The nodes are those of {@link beamway_peer}, which are controlled through standard input and output. In addition to the oracle's findings, this
%% module reports a node that exited by itself, a crash dump, log lines that no fault explains, descriptors, mappings, ports or memory leaked by
%% connections, a pair on the wrong kind of link, and a process whose last message did not arrive although all faults were over.
-module(beamway_nemesis).

-export([run/2, run/3]).

-export_type([carrier/0, result/0]).

-type carrier() :: shm | tcp | stock | encrypted | tls_shm | tls | stock_tls.
%% The last three carriers need {@link beamway_certificates:prepare/1}.
-type result() :: #{findings := [beamway_nemesis_oracle:finding()],
                    faults := [beamway_nemesis_oracle:executed()],
                    messages := #{term() => pos_integer()},     %% by the largest size of their class
                    calls := #{atom() => non_neg_integer()},
                    spoken := non_neg_integer(),                %% processes whose last words were awaited
                    paused := non_neg_integer(),                %% cuts that a link has survived
                    nodedowns := non_neg_integer(),
                    links := #{atom() => pos_integer()},        %% at the end, by kind, seen from either side
                    seconds := float()}.

%% The resources have settled after this many equal readings, 100 ms apart.
-define(SETTLED_READINGS, 10).
-define(CALL_MS, 30000).
-define(SETTLE_MS, 60000).
-define(FAULT_MS, 120000).
-define(RUN_MS, 600000).
%% How long after a fault that ends a connection its consequences are checked.
-define(NOTICE_US, 5500000).
%% Each pair of nodes pauses between its bursts for about this long, multiplied by the number of
%% pairs.
-define(PACE_MS, 3).

-record(run, {carrier :: carrier(),
              dir :: file:filename(),
              schedule :: beamway_nemesis_schedule:schedule(),
              tag :: string(),
              ebin :: file:filename(),
              another_ebin = none :: none | file:filename(),      %% with the other version of the carrier
              nodes = #{} :: #{beamway_nemesis_schedule:index() => map()},
              baseline = #{} :: #{beamway_nemesis_schedule:index() => map()},
              lasting = #{} :: #{pid() => {beamway_nemesis_schedule:fault(), integer()}},
              faults = [] :: [beamway_nemesis_oracle:executed()],
              links = #{} :: #{atom() => pos_integer()},
              collected = [] :: [beamway_nemesis_hub:collected()],
              findings = [] :: [beamway_nemesis_oracle:finding()]}).

%% @doc Runs one schedule. When it returns, everything that it started has been stopped.
-spec run(beamway_nemesis_schedule:schedule(), carrier()) -> result().
run(Schedule, Carrier) ->
    run(Schedule, Carrier, beamway_peer:ebin()).

%% @doc Like {@link run/2}, but with a different build of the carrier from the one in the checkout.
-spec run(beamway_nemesis_schedule:schedule(), carrier(), Ebin :: file:filename()) -> result().
run(Schedule, Carrier, Ebin) ->
    ok = beamway_nemesis_schedule:validate(Schedule),
    Tag = beamway_peer:unique_name("nemesis"),
    Dir = beamway_peer:new_folder(Tag),
    Began = erlang:monotonic_time(millisecond),
    Owner = beamway_peer:async(fun() -> in_dir(#run{carrier = Carrier, dir = Dir, schedule = Schedule, tag = Tag, ebin = Ebin}) end),
    Result = result_of(Owner),
    ok = file:del_dir_r(Dir),
    Result#{seconds => (erlang:monotonic_time(millisecond) - Began) / 1000}.

%% If a schedule cannot be run for whatever reason, that is also a finding.
result_of(Owner) ->
    try
        beamway_peer:await(Owner, ?RUN_MS)
    catch
        error:Reason ->
            true = exit(element(1, Owner), kill),
            ok = beamway_peer:stop_started(),
            #{findings => [{not_carried_out, #{reason => Reason}}], faults => [], messages => #{}, calls => #{answered => 0},
              spoken => 0, paused => 0, nodedowns => 0, links => #{}}
    end.

in_dir(Run0) ->
    try
        Run1 = start_nodes(with_other_version(Run0)),
        Run2 = lists:foldl(fun fault_if_possible/2, start_talk(with_baseline(Run1)), maps:get(faults, Run1#run.schedule)),
        Run3 = finish(wait_notice(wait_lasting(Run2))),
        Run4 = logs(leftovers(links(collect_all(Run3)))),
        result(Run4)
    after
        beamway_peer:stop_started()
    end.

%% ---- nodes ----

with_other_version(#run{schedule = #{nodes := Nodes, faults := Faults}, dir = Dir, carrier = Carrier} = Run) ->
    All = Nodes ++ [Options || {restart, _, Options} <- Faults],
    case Carrier =/= stock andalso Carrier =/= stock_tls andalso [another || #{wire := another} <- All] of
        [_ | _] -> Run#run{another_ebin = beamway_nemesis_faults:another_wire(Dir)};
        _ -> Run
    end.

start_nodes(#run{schedule = #{nodes := Options}} = Run) ->
    Numbered = lists:zip(lists:seq(1, length(Options)), Options),
    Started = [{N, beamway_peer:async(fun() -> start_node(N, 1, O, Run) end)} || {N, O} <- Numbered],
    lists:foldl(fun({N, Call}, Acc) -> started(N, beamway_peer:await(Call), Acc) end, Run, Started).

started(N, Node, #run{nodes = Nodes} = Run) ->
    #{peer := Peer} = Node,
    Run#run{nodes = Nodes#{N => Node#{monitor => monitor(process, Peer)}}}.

start_node(N, Life, Options, #run{tag = Tag, dir = Dir} = Run) ->
    _ = beamway_peer:wait_until(fun() -> is_free(name(N, Tag)) end, ?CALL_MS),
    Log = filename:join(Dir, lists:concat(["log-", N, "-", Life])),
    case beamway_peer:start(carrier(Options, Run), peer_options(N, Log, Options, Run)) of
        {ok, Peer, Node} ->
            %% Starts the port program that resolves host names, which keeps running. In OTP 25, a node that must start it while it is out of
            %% descriptors crashes, even over stock TCP.
            {ok, _} = beamway_peer:call(Peer, inet, getaddr, [host(Node), inet], ?CALL_MS),
            #{peer => Peer, os_pid => beamway_peer:os_pid(Peer), node => Node, life => Life, options => Options,
              log => Log, clock => 0};
        {error, Reason} ->
            error({cannot_start, #{node => N, life => Life, tag => Tag, reason => Reason, log => beamway_peer:log_text(Log)}})
    end.

%% epmd may not have noticed yet that a node with this name is gone.
is_free(Name) ->
    case erl_epmd:names({127, 0, 0, 1}) of
        {ok, Names} -> not lists:keymember(Name, 1, Names);
        {error, _} -> true
    end.

carrier(Options, #run{carrier = Carrier}) ->
    case {maps:get(carrier, Options, Carrier), lists:member(Carrier, [tls_shm, tls, stock_tls])} of
        {_, _} when Carrier =:= stock -> inet_tcp;
        {_, _} when Carrier =:= stock_tls -> inet_tls;
        {_, _} when Carrier =:= encrypted -> beamway_encrypted;
        {stock, false} -> inet_tcp;
        {stock, true} -> inet_tls;
        {tcp, false} -> beamway_tcp;
        {shm, false} -> beamway_shm;
        {tls_shm, true} -> beamway_tls_shm;
        {_, true} -> beamway_tls
    end.

%% Only faults may end connections, so global must not close any because of its view of which connections should exist.
peer_options(N, Log, Options, #run{tag = Tag, dir = Dir, schedule = #{faults := Faults}} = Run) ->
    ClockFile = clock_file(N, Dir),
    Clock = case [jumps || {clock_jump, M, _} <- Faults, M =:= N] of
                [] -> [];
                _ -> beamway_nemesis_faults:new_clock(ClockFile, 0), beamway_nemesis_faults:environment(ClockFile)
            end,
    #{name => name(N, Tag), log => Log, ebin => ebin(Options, Run),
      args => ["-kernel", "net_ticktime", integer_to_list(beamway_nemesis_schedule:tick_time_s()),
               "-kernel", "prevent_overlapping_partitions", "false"],
      env => [{"ERL_CRASH_DUMP", filename:join(Dir, lists:concat(["crash-", N]))},
              {"ERL_CRASH_DUMP_SECONDS", "10"} | Clock ++ option_variables(Options)]}.

ebin(#{wire := another}, #run{another_ebin = Another}) when Another =/= none -> Another;
ebin(_, #run{ebin = Ebin}) -> Ebin.

name(N, Tag) -> lists:concat([Tag, "-", N]).

clock_file(N, Dir) -> filename:join(Dir, lists:concat(["clock-", N])).

option_variables(Options) ->
    [{"BEAMWAY_" ++ string:uppercase(atom_to_list(Name)), lists:flatten(io_lib:format("~p", [Value]))}
     || {Name, Value} <- maps:to_list(maps:with([ring_bytes, poll_us], Options))].

alive(#run{nodes = Nodes}) ->
    [{N, Node} || {N, #{peer := _} = Node} <- lists:sort(maps:to_list(Nodes))].

call(#{peer := Peer}, Module, Function, Arguments) ->
    beamway_peer:call(Peer, Module, Function, Arguments, ?CALL_MS).

hub(Node, Function, Arguments) ->
    call(Node, beamway_nemesis_hub, Function, Arguments).

%% ---- before ----

%% Records which resources each node uses when it has no connections. The nodes connect to each other and disconnect first, because the VM opens
%% a few things with the first connection and keeps them.
with_baseline(Run) ->
    Alive = alive(Run),
    _ = [true = call(A, net_kernel, connect_node, [Node]) || {M, A} <- Alive, {N, #{node := Node}} <- Alive, M < N],
    ok = disconnect_all(Alive),
    Run#run{baseline = maps:from_list([{N, settled(Node)} || {N, Node} <- Alive])}.

disconnect_all(Alive) ->
    Disconnected = fun({_, Node}) ->
                           Connected = call(Node, erlang, nodes, [connected]),
                           _ = [call(Node, erlang, disconnect_node, [Other]) || Other <- Connected],
                           Connected =:= []
                   end,
    _ = beamway_peer:wait_until(fun() -> lists:all(fun(Is) -> Is end, [Disconnected(One) || One <- Alive]) end, 20000),
    ok.

%% Waits until the node's resources have not changed for a while, and returns them.
settled(Node) -> settled(Node, resources(Node), 0, 50).

settled(_, Resources, Same, Tries) when Same =:= ?SETTLED_READINGS; Tries =:= 0 -> Resources;
settled(Node, Before, Same, Tries) ->
    receive after 100 -> ok end,
    case resources(Node) of
        Before -> settled(Node, Before, Same + 1, Tries - 1);
        Now -> settled(Node, Now, 0, Tries - 1)
    end.

%% The memory that libfaketime shares does not count, because whether a node has it depends on its process ID.
resources(#{os_pid := OsPid} = Node) ->
    Targets = [Target || {_, Target} <- beamway_peer:fds(OsPid), not lists:prefix("/dev/shm/faketime_", Target)],
    Count = fun(Prefix) -> length([T || T <- Targets, lists:prefix(Prefix, T)]) end,
    (hub(Node, resources, []))#{descriptors => length(Targets), sockets => Count("socket:"),
                                doorbells => Count("anon_inode:[eventfd]"), maps => length(beamway_peer:maps(OsPid))}.

start_talk(Run) ->
    Alive = alive(Run),
    lists:foreach(fun({N, Node}) -> ok = hub(Node, start, [hub_settings(N, Node, Run)]) end, Alive),
    lists:foreach(fun({_, Node}) -> ok = hub(Node, go, []) end, Alive),
    _ = beamway_peer:wait_until(fun() -> is_connected(Run) end, 30000),
    Run.

host(Node) ->
    [_, Host] = string:split(atom_to_list(Node), "@"),
    Host.

hub_settings(N, #{life := Life, node := Node}, #run{schedule = #{nodes := All}, tag = Tag}) ->
    Host = host(Node),
    Count = length(All),
    #{me => N, life => Life, pace_ms => ?PACE_MS * Count * (Count - 1),
      peers => [{M, list_to_atom(name(M, Tag) ++ "@" ++ Host)} || M <- lists:seq(1, Count), M =/= N]}.

is_connected(Run) ->
    Alive = alive(Run),
    lists:all(fun({_, Node}) -> length(call(Node, erlang, nodes, [])) =:= length(Alive) - 1 end, Alive).

%% ---- faults ----

%% No more faults are applied to a node that has exited on its own, but it may be started again.
fault_if_possible(Fault, Run0) ->
    Run = check_alive(Run0),
    Alive = [N || {N, _} <- alive(Run)],
    case element(1, Fault) =/= restart andalso beamway_nemesis_schedule:names(Fault) -- Alive of
        [_ | _] -> timed(Fault, fun() -> false end, Run);
        _ -> fault(Fault, Run)
    end.

fault({wait, Ms}, Run) ->
    receive after Ms -> ok end,
    Run;
fault({kill, N} = Fault, Run0) ->
    Run1 = wait_for([N], collect_unless_held(N, Run0)),
    #{peer := Peer} = maps:get(N, Run1#run.nodes),
    timed(Fault, fun() -> ok = beamway_peer:kill9(Peer), true end, gone(N, Run1));
fault({restart, N, Options} = Fault, Run) ->
    case maps:get(N, Run#run.nodes) of
        #{peer := _} ->
            Left = leave(N, Fault, wait_for([N], Run)),
            start_again(N, Options, Left);
        #{} ->
            start_again(N, Options, Run)
    end;
fault({clock_jump, N, Seconds} = Fault, Run0) ->
    #run{nodes = Nodes, dir = Dir} = Run1 = wait_for([N], Run0),
    #{clock := Old} = Node = maps:get(N, Nodes),
    Run2 = Run1#run{nodes = Nodes#{N := Node#{clock := Old + Seconds}}},
    timed(Fault, fun() -> beamway_nemesis_faults:jump(Node, clock_file(N, Dir), Old + Seconds) end, Run2);
fault(Fault, Run0) ->
    #run{lasting = Lasting, nodes = Nodes} = Run = wait_for(beamway_nemesis_schedule:names(Fault), Run0),
    {Pid, _} = beamway_peer:async(fun() -> beamway_nemesis_faults:run(Fault, Nodes) end),
    Run#run{lasting = Lasting#{Pid => {Fault, beamway_nemesis_hub:now_us()}}}.

timed(Fault, Do, Run) ->
    From = beamway_nemesis_hub:now_us(),
    Effect = Do(),
    executed(Fault, From, Effect, Run).

executed(Fault, From, Effect, #run{faults = Faults} = Run) ->
    Run#run{faults = [#{fault => Fault, from_us => From, to_us => beamway_nemesis_hub:now_us(), effect => Effect} | Faults]}.

leave(N, Fault, Run0) ->
    Run1 = collect(N, so_far, Run0),
    #{peer := Peer} = maps:get(N, Run1#run.nodes),
    timed(Fault, fun() -> ok = beamway_peer:halt_node(Peer), true end, gone(N, Run1)).

%% From now on the node is expected to exit.
gone(N, #run{nodes = Nodes} = Run) ->
    #{monitor := Monitor} = Node = maps:get(N, Nodes),
    true = demonitor(Monitor, [flush]),
    Run#run{nodes = Nodes#{N := maps:with([life, node, clock], Node)}}.

start_again(N, Options, #run{nodes = Nodes} = Run) ->
    #{life := Life} = maps:get(N, Nodes),
    Node = start_node(N, Life + 1, Options, Run),
    ok = hub(Node, start, [hub_settings(N, Node, Run)]),
    ok = hub(Node, go, []),
    started(N, Node, Run).

%% If a node is killed while a fault blocks it, its records are lost. The fault ends with the node, unless it also affects other nodes.
collect_unless_held(N, #run{lasting = Lasting} = Run) ->
    case [{Pid, Fault, From} || {Pid, {Fault, From}} <- maps:to_list(Lasting), beamway_nemesis_schedule:names(Fault) =:= [N]] of
        [] -> collect(N, so_far, wait_for([N], Run));
        Alone -> lists:foldl(fun release/2, Run, Alone)
    end.

release({Pid, Fault, From}, #run{lasting = Lasting} = Run) ->
    true = exit(Pid, kill),
    receive {'DOWN', _, process, Pid, _} -> ok after ?CALL_MS -> error({still_runs, Fault}) end,
    executed(Fault, From, true, Run#run{lasting = maps:remove(Pid, Lasting)}).

wait_lasting(#run{nodes = Nodes} = Run) -> wait_for(maps:keys(Nodes), Run).

%% Faults on the same node are applied one after the other.
wait_for(Numbers, #run{lasting = Lasting} = Run) ->
    maps:fold(fun(Pid, {Fault, From}, Acc) ->
                      case [N || N <- beamway_nemesis_schedule:names(Fault), lists:member(N, Numbers)] of
                          [] -> Acc;
                          _ -> lasted(Pid, Fault, From, Acc)
                      end
              end, Run, Lasting).

lasted(Pid, Fault, From, #run{lasting = Lasting} = Run) ->
    Effect = receive
                 {'DOWN', _, process, Pid, {result, Is}} -> Is;
                 {'DOWN', _, process, Pid, Reason} -> error({fault_failed, Fault, Reason})
             after ?FAULT_MS ->
                     error({fault_does_not_end, Fault})
             end,
    executed(Fault, From, Effect, Run#run{lasting = maps:remove(Pid, Lasting)}).

%% A node that has exited on its own is a finding, and the run continues without it.
check_alive(Run) ->
    lists:foldl(fun({N, #{monitor := Monitor}}, Acc) ->
                        receive
                            {'DOWN', Monitor, process, _, Reason} -> died(N, Reason, Acc)
                        after 0 -> Acc
                        end
                end, Run, alive(Run)).

died(N, Reason, #run{nodes = Nodes} = Run) ->
    #{log := Log} = Node = maps:get(N, Nodes),
    found(node_ended, #{node => N, reason => Reason, log => last_lines(Log)},
          Run#run{nodes = Nodes#{N := maps:with([life, node, clock], Node)}}).

found(Kind, Details, #run{findings = Findings} = Run) ->
    Run#run{findings = [{Kind, Details} | Findings]}.

last_lines(Log) ->
    Lines = string:lexemes(beamway_peer:log_text(Log), "\n"),
    lists:nthtail(max(0, length(Lines) - 10), Lines).

%% ---- after ----

wait_notice(#run{faults = Faults, schedule = #{nodes := Nodes}} = Run) ->
    Numbers = lists:seq(1, length(Nodes)),
    Ends = [To || #{fault := Fault, to_us := To} <- Faults, A <- Numbers, B <- Numbers, A < B,
                  beamway_nemesis_schedule:ends(Fault, {A, B})],
    Until = lists:max([0 | Ends]) + ?NOTICE_US,
    receive after max(500, (Until - beamway_nemesis_hub:now_us()) div 1000) -> ok end,
    check_alive(Run).

%% Every message must reach its receiver, up to the last one of each sender.
finish(Run0) ->
    lists:foreach(fun({_, Node}) -> ok = hub(Node, finish, []) end, alive(Run0)),
    wait_finished(Run0, erlang:monotonic_time(millisecond) + ?SETTLE_MS).

wait_finished(Run0, Deadline) ->
    Run = check_alive(Run0),
    Numbers = [N || {N, _} <- alive(Run)],
    Left = [{N, To, Kind} || {N, Node} <- alive(Run), {To, Kind} <- hub(Node, unfinished, []), lists:member(To, Numbers)],
    case Left =/= [] andalso erlang:monotonic_time(millisecond) < Deadline of
        true ->
            receive after 100 -> ok end,
            wait_finished(Run, Deadline);
        false ->
            lists:foldl(fun(Who, Acc) -> found(not_heard_to_the_end, #{who => Who, of_node => element(1, Who)}, Acc) end, Run, Left)
    end.

collect_all(Run) ->
    lists:foldl(fun({N, _}, Acc) -> collect(N, in_the_end, Acc) end, Run, alive(Run)).

collect(N, When, #run{nodes = Nodes, collected = Collected} = Run) ->
    Run#run{collected = [hub(maps:get(N, Nodes), collect, [When]) | Collected]}.

%% Two nodes that are both capable of shared memory must use it, unless something prevented it while they connected. A node without free
%% descriptors cannot even hand over a stream to the driver.
links(#run{schedule = #{faults := Faults}} = Run) ->
    Has = fun(Kinds) -> lists:any(fun(Fault) -> lists:member(element(1, Fault), Kinds) end, Faults) end,
    Instead = [stream_kind(Run) || Has([no_descriptors, stop, slow_reader, fill_ring])] ++ [inet || Has([no_descriptors])],
    All = [{#{on => N, about => M}, expected_link(A, B, Run), actual_link(A, B, Run)}
           || {N, A} <- alive(Run), {M, B} <- alive(Run), N =/= M],
    Wrong = [Who#{expected => Expected, is => Is} || {Who, Expected, Is} <- All, Expected =/= Is, not lists:member(Is, Instead)],
    Counted = Run#run{links = lists:foldl(fun({_, _, Is}, Sum) -> add(#{Is => 1}, Sum) end, #{}, All)},
    lists:foldl(fun(Details, Acc) -> found(wrong_link, Details, Acc) end, Counted, Wrong).

expected_link(#{options := A}, #{options := B}, Run) ->
    Kinds = [beamway_peer:link_kind(carrier(Options, Run)) || Options <- [A, B]],
    case {Kinds, maps:get(wire, A, same) =:= maps:get(wire, B, same)} of
        {[stock, _], _} -> stock;
        {[shm, shm], true} -> shm;
        _ -> stream_kind(Run)
    end.

stream_kind(#run{carrier = Carrier}) when Carrier =:= encrypted; Carrier =:= tls; Carrier =:= tls_shm -> tls;
stream_kind(_) -> tcp.

actual_link(#{options := Options} = A, #{node := Node}, Run) ->
    case beamway_peer:link_kind(carrier(Options, Run)) of
        stock -> stock;
        _ -> case [Link || #{node := Other, link := Link} <- call(A, beamway, links, []), Other =:= Node] of
                 [Link | _] -> Link;
                 [] -> none
             end
    end.

leftovers(Run) ->
    Alive = alive(Run),
    lists:foreach(fun({_, Node}) -> ok = hub(Node, stop, []) end, Alive),
    ok = disconnect_all(Alive),
    lists:foldl(fun leftovers/2, check_alive(Run), Alive).

leftovers({N, #{os_pid := OsPid} = Node}, #run{baseline = Baseline} = Run) ->
    Before = maps:get(N, Baseline),
    case wait_back(Node, Before, 100) of
        [] -> Run;
        More -> found(left_behind, #{node => N, before_and_now => More, descriptors => beamway_peer:fds(OsPid)}, Run)
    end.

%% Sockets may still be closing, so this waits. The numbers of ports and descriptors mean the same on a stock node as on ours.
wait_back(Node, Before, Tries) ->
    case [{What, maps:get(What, Before), Now} || {What, Now} <- maps:to_list(resources(Node)), Now > maps:get(What, Before)] of
        [_ | _] when Tries > 0 ->
            receive after 100 -> ok end,
            wait_back(Node, Before, Tries - 1);
        More -> More
    end.

logs(#run{dir = Dir} = Run) ->
    Dumps = [found_dump || _ <- filelib:wildcard(filename:join(Dir, "crash-*"))],
    Lines = [{filename:basename(File), Line}
             || File <- lists:sort(filelib:wildcard(filename:join(Dir, "log-*"))),
                Line <- beamway_nemesis_log:unexpected(beamway_peer:log_text(File), Run#run.schedule)],
    With = lists:foldl(fun({File, Line}, Acc) -> found(logged, #{file => File, line => Line}, Acc) end, Run, Lines),
    lists:foldl(fun(_, Acc) -> found(crash_dump, #{}, Acc) end, With, Dumps).

result(#run{collected = Collected, faults = Faults, findings = Findings, links = Links} = Run) ->
    Record = #{faults => lists:reverse(Faults),
               observed => [Observed || #{observed := Observed} <- Collected],
               flows => lists:append([Flows || #{flows := Flows} <- Collected]),
               words => lists:append([Words || #{words := Words} <- Collected])},
    Calls = lists:foldl(fun(#{calls := One}, Sum) -> add(One, Sum) end, #{}, Collected),
    #{findings => lists:reverse(Findings) ++ beamway_nemesis_oracle:judge(Record) ++ bad_calls(Calls) ++ not_outlived(Run)
          ++ [{crashed, #{what => What}} || #{crashed := All} <- Collected, What <- All],
      faults => lists:reverse(Faults),
      messages => lists:foldl(fun(#{counts := Counts}, Sum) -> add(Counts, Sum) end, #{}, Collected),
      calls => Calls,
      links => Links,
      spoken => lists:sum([Count || #{spoken := Count} <- Collected]),
      paused => length([paused || #{effect := paused} <- Faults]),
      nodedowns => length([down || #{observed := #{events := Events}} <- Collected, {down, _, _, _} <- Events])}.

%% Until a node is restarted or a link ends, all links are of a kind that survives a cut.
not_outlived(#run{carrier = Stock}) when Stock =:= stock; Stock =:= stock_tls ->
    [];
not_outlived(#run{faults = Faults}) ->
    Calm = lists:takewhile(fun(#{fault := Fault}) -> beamway_nemesis_schedule:is_calm(Fault) end, lists:reverse(Faults)),
    [{cut_not_outlived, #{fault => Fault}} || #{fault := {cut_tcp, _, _} = Fault, effect := true} <- Calm].

bad_calls(Calls) ->
    [{Kind, #{calls => Count}} || {Kind, Count} <- maps:to_list(maps:with([too_late, wrong], Calls)), Count > 0].

add(Counts, Sum) ->
    maps:fold(fun(Key, Count, Acc) -> maps:update_with(Key, fun(Old) -> Old + Count end, Count, Acc) end, Sum, Counts).
