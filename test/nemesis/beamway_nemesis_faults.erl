%% SPDX-License-Identifier: Apache-2.0
%% @doc Applies a fault to running nodes, from outside if possible, and reports whether it had an effect, because a fault that did not happen
%% proves nothing.
%%
%% Called by {@link beamway_nemesis}, in a separate process if the fault lasts. If such a process is terminated, {@link undo/2} must be called
%% afterwards unless the node has died.
-module(beamway_nemesis_faults).

-export([run/2, undo/2, exhaust/1, environment/1, new_clock/2, jump/3, another_wire/1]).

-export_type([target/0]).

-type target() :: #{peer := pid(), os_pid := pos_integer(), node := node(), atom() => term()}.
-type targets() :: #{beamway_nemesis_schedule:index() => target()}.

%% Links must survive a stop of less than 4 s, and filling takes up part of that time.
-define(FILL_MS, 3000).
-define(FULL_MS, 500).
-define(FILL_COUNT, 200).
-define(FILL_BYTES, 100000).
%% A slow reader runs for 4 ms out of 44.
-define(SLEEP_MS, 40).
-define(WAKE_MS, 4).
-define(CALL_MS, 30000).

%% @doc Applies a lasting fault, and undoes it when its time is up.
-spec run(beamway_nemesis_schedule:fault(), targets()) -> Effect :: boolean().
run({stop, N, Ms}, Targets) ->
    ok = beamway_peer:sigstop(peer(N, Targets)),
    receive after Ms -> ok end,
    undo({stop, N, Ms}, Targets),
    true;
run({slow_reader, N, Ms}, Targets) ->
    Deadline = erlang:monotonic_time(millisecond) + Ms,
    Naps = naps(peer(N, Targets), Deadline, 0),
    undo({slow_reader, N, Ms}, Targets),
    Naps > 0;
run({fill_ring, A, B}, Targets) ->
    ok = beamway_peer:sigstop(peer(B, Targets)),
    Flood = call(A, flood, [B, ?FILL_COUNT, ?FILL_BYTES], Targets),
    IsFull = is_full(A, Flood, Targets, erlang:monotonic_time(millisecond) + ?FILL_MS),
    receive after ?FULL_MS -> ok end,
    undo({fill_ring, A, B}, Targets),
    IsFull;
run({no_descriptors, N, Ms}, Targets) ->
    IsExhausted = exhaust(peer(N, Targets)),
    receive after Ms -> ok end,
    undo({no_descriptors, N, Ms}, Targets),
    IsExhausted;
run({cut_tcp, A, B}, Targets) ->
    #{node := NodeB} = maps:get(B, Targets),
    call(A, cut, [NodeB], Targets);
run({silence, A, B, Ms}, Targets) ->
    #{node := NodeB} = maps:get(B, Targets),
    IsSilent = call(A, silence, [NodeB, drop], Targets),
    receive after Ms -> ok end,
    undo({silence, A, B, Ms}, Targets),
    IsSilent.

%% @doc Ends a lasting fault, even if it was applied only in part.
-spec undo(beamway_nemesis_schedule:fault(), targets()) -> ok.
undo({fill_ring, _, B}, Targets) -> signal("CONT", maps:get(B, Targets));
undo({Kind, N, _}, Targets) when Kind =:= stop; Kind =:= slow_reader -> signal("CONT", maps:get(N, Targets));
undo({silence, A, B, _}, Targets) ->
    #{node := NodeB} = maps:get(B, Targets),
    _ = call(A, silence, [NodeB, pass], Targets),
    ok;
undo({no_descriptors, N, _}, Targets) ->
    #{os_pid := OsPid} = maps:get(N, Targets),
    {_, Hard} = descriptor_limit(OsPid),
    set_descriptor_limit(OsPid, Hard);
undo(_, _) -> ok.

peer(N, Targets) ->
    #{peer := Peer} = maps:get(N, Targets),
    Peer.

call(N, Function, Arguments, Targets) ->
    beamway_peer:call(peer(N, Targets), beamway_nemesis_hub, Function, Arguments, ?CALL_MS).

%% There is no need to check whether the ID still belongs to the process, because it is our child and only we can reap it.
signal(Name, #{os_pid := OsPid}) ->
    _ = os:cmd("kill -" ++ Name ++ " " ++ integer_to_list(OsPid)),
    ok.

naps(Peer, Deadline, Naps) ->
    case erlang:monotonic_time(millisecond) >= Deadline of
        true -> Naps;
        false ->
            ok = beamway_peer:sigstop(Peer),
            receive after ?SLEEP_MS -> ok end,
            ok = beamway_peer:sigcont(Peer),
            receive after ?WAKE_MS -> ok end,
            naps(Peer, Deadline, Naps + 1)
    end.

is_full(A, Flood, Targets, Deadline) ->
    case call(A, is_suspended, [Flood], Targets) of
        true -> true;
        false ->
            receive after 20 -> ok end,
            erlang:monotonic_time(millisecond) < Deadline andalso is_full(A, Flood, Targets, Deadline)
    end.

%% ---- descriptors ----

%% @doc Leaves a node without free descriptors, so that it cannot open anything, although open descriptors stay usable.
-spec exhaust(Peer :: pid()) -> Effect :: boolean().
exhaust(Peer) ->
    exhaust(beamway_peer:os_pid(Peer), Peer, 5).

%% No descriptor number below the limit is free.
exhaust(_, _, 0) -> false;
exhaust(OsPid, Peer, Tries) ->
    set_descriptor_limit(OsPid, lowest_free(0, [Fd || {Fd, _} <- beamway_peer:fds(OsPid)])),
    %% An open file is closed as soon as the process that opened it exits.
    case beamway_peer:call(Peer, file, open, ["/dev/null", [read, raw, binary]], ?CALL_MS) of
        {error, emfile} -> true;
        {ok, _} -> exhaust(OsPid, Peer, Tries - 1)
    end.

lowest_free(N, [N | Rest]) -> lowest_free(N + 1, Rest);
lowest_free(N, _) -> N.

set_descriptor_limit(OsPid, Soft) ->
    "" = os:cmd(lists:concat(["prlimit --pid ", OsPid, " --nofile=", Soft, ":"])),
    ok.

descriptor_limit(OsPid) ->
    {ok, Text} = file:read_file(lists:concat(["/proc/", OsPid, "/limits"])),
    {match, [Soft, Hard]} = re:run(Text, "Max open files +([0-9]+) +([0-9]+)", [{capture, all_but_first, list}]),
    {list_to_integer(Soft), list_to_integer(Hard)}.

%% ---- the clock ----

%% @doc Returns the environment that lets a file change a node's clock. The monotonic clock is not
%% affected, just as when somebody sets a machine's time.
-spec environment(ClockFile :: file:filename()) -> [{string(), string()}].
environment(ClockFile) ->
    ok = delete_shared_of_dead(),
    [{"LD_PRELOAD", string:trim(os:getenv("LD_PRELOAD", "") ++ " " ++ library())},
     {"FAKETIME_TIMESTAMP_FILE", ClockFile}, {"FAKETIME_CACHE_DURATION", "1"},
     {"FAKETIME_DONT_FAKE_MONOTONIC", "1"}, {"FAKETIME_DONT_RESET", "1"}].

%% libfaketime names two shared objects after the process ID and leaves them behind when the process is killed. A new process with the same ID
%% would then exit, or do without them.
delete_shared_of_dead() ->
    Objects = [{File, lists:last(string:split(File, "_", all))} || File <- filelib:wildcard("/dev/shm/*faketime_s*_*")],
    lists:foreach(fun(File) -> file:delete(File) end,
                  [File || {File, OsPid} <- Objects, not filelib:is_dir("/proc/" ++ OsPid)]).

library() ->
    case filelib:wildcard("/usr/lib/*/faketime/libfaketimeMT.so.1") of
        [File | _] -> File;
        [] -> error({missing, "libfaketimeMT.so.1", "install the package libfaketime"})
    end.

%% @doc Sets the offset from the real time, in seconds.
-spec new_clock(ClockFile :: file:filename(), Seconds :: integer()) -> ok.
new_clock(ClockFile, Seconds) ->
    ok = file:write_file(ClockFile ++ ".new", io_lib:format("~s~b~n", [[$+ || Seconds >= 0], Seconds])),
    ok = file:rename(ClockFile ++ ".new", ClockFile).

%% @doc Sets the offset for a running node, and waits until the node's operating system time has jumped.
-spec jump(target(), ClockFile :: file:filename(), Seconds :: integer()) -> Effect :: boolean().
jump(#{peer := Peer}, ClockFile, Seconds) ->
    ok = new_clock(ClockFile, Seconds),
    has_jumped(Peer, Seconds, erlang:monotonic_time(millisecond) + 10000).

has_jumped(Peer, Seconds, Deadline) ->
    Difference = beamway_peer:call(Peer, os, system_time, [second], ?CALL_MS) - os:system_time(second),
    case abs(Difference - Seconds) =< 2 of
        true -> true;
        false ->
            receive after 100 -> ok end,
            erlang:monotonic_time(millisecond) < Deadline andalso has_jumped(Peer, Seconds, Deadline)
    end.

%% ---- a different version ----

%% @doc Builds a second copy of the carrier in `Dir' that uses a different version of the handshake's extension. It is compiled from the same source
%% with a changed version number. Returns its ebin directory.
-spec another_wire(Dir :: file:filename()) -> Ebin :: file:filename().
another_wire(Dir) ->
    Ebin = beamway_peer:ebin(),
    App = filename:dirname(Ebin),
    Copy = filename:join([Dir, "another", "beamway"]),
    ok = filelib:ensure_dir(filename:join([Copy, "ebin", "x"])),
    ok = file:make_symlink(filename:absname(filename:join(App, "priv")), filename:join(Copy, "priv")),
    lists:foreach(fun(File) ->
                          {ok, _} = file:copy(File, filename:join([Copy, "ebin", filename:basename(File)]))
                  end, filelib:wildcard(filename:join(Ebin, "beamway*"))),
    ok = compile_wire(filename:join([App, "src", "beamway_wire.erl"]), filename:join(Copy, "ebin")),
    filename:join(Copy, "ebin").

compile_wire(Source, Ebin) ->
    {ok, Text} = file:read_file(Source),
    Line = <<"-define(EXTENSION_VERSION, 1).">>,
    [Before, After] = binary:split(Text, Line),
    Patched = filename:join(Ebin, "beamway_wire.erl"),
    ok = file:write_file(Patched, [Before, "-define(EXTENSION_VERSION, 200).", After]),
    {ok, beamway_wire} = compile:file(Patched, [{outdir, Ebin}, debug_info]),
    file:delete(Patched).
