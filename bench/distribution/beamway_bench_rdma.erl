%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench rdma': how close does the bare link come to the performance of perftest on the same device?
%%
%% Both ends are processes on this machine, so the device loops the data back. The program native/bench/rdma_bench.c measures the link and sleeps
%% until the device has an event. It is compared with `ib_write_bw' and `ib_send_bw', which never sleep, and with `ib_send_lat -e', which does.
%% `ib_write_lat' cannot sleep, so it is listed only for information. The latency is half of a round trip.
%%
%% For each contender there is also a row with the device's counters of retransmissions and receiver-not-ready (RNR) errors.
-module(beamway_bench_rdma).
-behaviour(beamway_bench).

-export([options/0, prepare/2, groups/1, metrics/1]).

-define(LATENCY, <<"half a round trip, 64 B">>).
-define(PROGRAM_MS, 120000).
-define(TRIES, 5).
-define(PIPES, [rdpipe, rdpipe_unchecked]).

%% @private
-spec options() -> [getopt:option_spec()].
options() ->
    [{device, undefined, "device", string, "the RDMA device (the first that can be used)"},
     {gid, undefined, "gid", integer, "index of the GID that perftest shall use (its own choice)"},
     {address, undefined, "address", string, "the device's IP address: measures rdpipe, too"}].

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()} | {error, unicode:chardata()}.
prepare(Given, Speed) ->
    Usable = [Device || #{device := Device} <- beamway_rdma_devices:usable(beamway_rdma_devices:all())],
    case {device(proplists:get_value(device, Given), Usable), programs()} of
        {{error, Why}, _} -> {error, Why};
        {_, {error, Why}} -> {error, Why};
        {{ok, Device}, {ok, Programs}} ->
            {ok, maps:merge(counts(Speed), #{device => Device, gid => proplists:get_value(gid, Given), programs => Programs,
                                                address => proplists:get_value(address, Given)})}
    end.

counts(quick) -> #{messages => #{64 bsl 10 => 128, 1 bsl 20 => 16}, pings => 200};
counts(full) -> #{messages => #{64 bsl 10 => 512, 1 bsl 20 => 48}, pings => 1000}.

device(_, []) -> {error, "this host has no RDMA device that can be used; see: beamway doctor. "
                         "In a virtual machine with a soft-RoCE device: make bench-rdma"};
device(undefined, [First | _]) -> {ok, First};
device(Name, Usable) ->
    case lists:member(Name, Usable) of
        true -> {ok, Name};
        false -> {error, io_lib:format("--device ~ts: expected one of ~ts", [Name, lists:join(", ", Usable)])}
    end.

programs() ->
    Own = filename:join([beamway_bench_checkout:root(), "native", "build", "bench", "rdma_bench"]),
    Theirs = [{Name, os:find_executable(Name)} || Name <- ["ib_write_bw", "ib_send_bw", "ib_send_lat", "ib_write_lat"]],
    case {filelib:is_regular(Own), [Name || {Name, false} <- Theirs]} of
        {true, []} -> {ok, maps:from_list([{"rdma_bench", Own} | Theirs])};
        {false, _} -> {error, [Own, " is missing. Run: make build-bench, with libibverbs-dev and librdmacm-dev installed"]};
        {true, Missing} -> {error, ["missing: ", lists:join(", ", Missing), " (Debian package perftest)"]}
    end.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(#{device := Device} = Settings) ->
    [#{nodes => 0, contenders => [Name], directions => [none],
       measure => fun(none) -> counted(Device, fun() -> measure(Name, Settings) end) end}
     || Name <- [rdma_link, ib_write, ib_send | [Pipe || has_pipe(Settings), Pipe <- ?PIPES]]].

has_pipe(#{address := Address}) -> Address =/= undefined.

measure(Name, #{messages := Messages} = Settings) ->
    Rates = [{key(Bytes), rate(Name, Bytes, Count, Settings)} || {Bytes, Count} <- maps:to_list(Messages)],
    maps:from_list([{?LATENCY, latency(Name, Settings)} || not lists:member(Name, ?PIPES)] ++ Rates).

key(Bytes) -> unicode:characters_to_binary(["bytes a second, ", beamway_bench_text:size_words(Bytes)]).

rate(rdma_link, Bytes, Count, Settings) -> link("bw", Bytes, Bytes * Count, Settings);
rate(ib_write, Bytes, Count, Settings) -> column(4, perftest("ib_write_bw", bw_words(Bytes, Count), Settings));
rate(ib_send, Bytes, Count, Settings) -> column(4, perftest("ib_send_bw", bw_words(Bytes, Count), Settings));
rate(rdpipe, Bytes, Count, Settings) -> pipe([], Bytes, Count, Settings);
rate(rdpipe_unchecked, Bytes, Count, Settings) -> pipe(["--no-checksum"], Bytes, Count, Settings).

bw_words(Bytes, Count) -> ["-s", integer_to_list(Bytes), "-n", integer_to_list(Count)].

latency(rdma_link, #{pings := Pings} = Settings) -> link("lat", 64, Pings, Settings);
latency(ib_send, Settings) -> column(5, perftest("ib_send_lat", ["-e" | lat_words(Settings)], Settings));
latency(ib_write, Settings) -> column(5, perftest("ib_write_lat", lat_words(Settings), Settings)).

lat_words(#{pings := Pings}) -> ["-s", "64", "-n", integer_to_list(Pings)].

%% ---- the two kinds of programs

link(What, Bytes, Amount, #{programs := #{"rdma_bench" := Program}}) ->
    Words = [What, integer_to_list(Bytes), integer_to_list(Amount)],
    {Status, Lines} = beamway_bench_tools:run(Program, Words, ?PROGRAM_MS),
    case {Status, link_figure(lists:append(Lines))} of
        {0, {ok, Figure}} -> Figure;
        _ -> error({program_failed, Program, Words, Status, Lines})
    end.

link_figure(Text) ->
    case re:run(Text, "^(?:bw|lat) [0-9]+ bytes: (?:median )?([0-9.]+) ", [{capture, all_but_first, list}, multiline]) of
        {match, [Figure]} -> {ok, list_to_float(Figure)};
        nomatch -> none
    end.

%% Sends from a sparse file to /dev/null, so the result also includes what rdpipe does in addition to sending.
pipe(Options, Block, Count, #{address := Address}) ->
    Folder = filename:join([beamway_bench_checkout:root(), "rdpipe", "build", "bin"]),
    Total = Block * Count,
    Words = ["-c", pipe_script(), "-", Folder, integer_to_list(free_port()), integer_to_list(Total), integer_to_list(Block), Address | Options],
    {Status, Lines} = beamway_bench_tools:run(os:find_executable("bash"), Words, ?PROGRAM_MS),
    case {Status, pipe_seconds(lists:append(Lines))} of
        {0, {ok, Seconds}} -> Total / Seconds / (1 bsl 20);
        _ -> error({program_failed, "rdsend", Words, Status, Lines})
    end.

pipe_script() ->
    "RDPIPE_KEY=$(head -c 24 /dev/urandom | base64) && export RDPIPE_KEY && file=$(mktemp) && trap 'rm -f \"$file\"' EXIT &&"
    " truncate -s \"$3\" \"$file\" || exit; \"$1/rdrecv\" --carrier rdma --wait 60 \"$2\" >/dev/null &"
    " \"$1/rdsend\" --carrier rdma --json --wait 60 --block \"$4\" \"${@:6}\" \"$5\" \"$2\" <\"$file\" && wait $!".

pipe_seconds(Text) ->
    case re:run(Text, "\"seconds\": ([0-9.]+), \"carrier\": \"rdma\"", [{capture, all_but_first, list}]) of
        {match, [Seconds]} -> {ok, list_to_float(Seconds)};
        nomatch -> none
    end.

%% Returns the last row of perftest's table. perftest first calibrates the CPU clock. If the machine is too busy for that, perftest exits without
%% results, so we retry.
perftest(Name, Words, Settings) -> perftest(Name, Words, Settings, ?TRIES).

perftest(Name, Words, _, 0) -> error({no_figures, Name, Words, ?TRIES});
perftest(Name, Words, #{programs := Programs, device := Device} = Settings, Tries) ->
    Program = maps:get(Name, Programs),
    CmPort = free_port(),
    All = ["-d", Device, "-F", "-p", integer_to_list(CmPort) | gid_words(Settings) ++ Words],
    Server = beamway_bench_tools:open(Program, All),
    ok = listens(CmPort, Server, erlang:monotonic_time(millisecond) + ?PROGRAM_MS),
    Outcome = beamway_bench_tools:run(Program, All ++ ["127.0.0.1"], ?PROGRAM_MS),
    ok = beamway_bench_tools:close(Server, "KILL"),
    case Outcome of
        {0, Lines} ->
            case rows(Lines) of
                [] -> perftest(Name, Words, Settings, Tries - 1);
                Rows -> lists:last(Rows)
            end;
        {Status, Lines} -> error({program_failed, Program, All, Status, Lines})
    end.

gid_words(#{gid := undefined}) -> [];
gid_words(#{gid := Gid}) -> ["-x", integer_to_list(Gid)].

free_port() ->
    {ok, Socket} = gen_tcp:listen(0, []),
    {ok, Port} = inet:port(Socket),
    ok = gen_tcp:close(Socket),
    Port.

%% Looks up the port in the kernel's table, because the server would mistake a test connection for that of its client.
listens(CmPort, Server, Deadline) ->
    {ok, Table4} = file:read_file("/proc/net/tcp"),
    {ok, Table6} = file:read_file("/proc/net/tcp6"),
    Local = [":", string:right(integer_to_list(CmPort, 16), 4, $0), " ", lists:duplicate(8, $0)],
    IsThere = fun(Table) -> re:run(Table, [Local, "[0-9A-F]*:0000 0A"]) =/= nomatch end,
    case IsThere(Table4) orelse IsThere(Table6) of
        true -> ok;
        false ->
            case {erlang:monotonic_time(millisecond) < Deadline, beamway_bench_tools:line(Server, 50)} of
                {true, {ended, Status}} -> error({server_ended, Status});
                {true, _} -> listens(CmPort, Server, Deadline);
                {false, _} -> error({does_not_listen, CmPort})
            end
    end.

rows(Lines) ->
    [Words || Line <- Lines, Words <- [numbers(string:lexemes(Line, " \t\n"))], length(Words) >= 5].

numbers(Words) ->
    Numbers = [number(Word) || Word <- Words],
    case lists:member(none, Numbers) of
        true -> [];
        false -> Numbers
    end.

number(Word) ->
    case {string:to_float(Word), string:to_integer(Word)} of
        {{Float, ""}, _} when is_float(Float) -> Float;
        {_, {Integer, ""}} when is_integer(Integer) -> Integer;
        _ -> none
    end.

column(N, Row) -> lists:nth(N, Row).

%% ---- the device's counters

counted(Device, Measure) ->
    Before = counters(Device),
    Figures = Measure(),
    After = counters(Device),
    Grown = fun(Names) -> lists:sum([N - maps:get(Name, Before, 0) || {Name, N} <- maps:to_list(After), matches(Name, Names)]) end,
    Figures#{<<"sent again">> => Grown(["completer_retry_err", "packet_seq_err", "local_ack_timeout_err"]),
             <<"not ready (RNR)">> => Grown(["rnr"])}.

matches(Counter, Parts) -> lists:any(fun(Part) -> string:find(Counter, Part) =/= nomatch end, Parts).

counters(Device) ->
    Files = filelib:wildcard(filename:join(["/sys/class/infiniband", Device, "ports", "*", "hw_counters", "*"])),
    lists:foldl(fun count/2, #{}, Files).

count(File, Counters) ->
    case file:read_file(File) of
        {ok, Text} ->
            case string:to_integer(Text) of
                {N, _} when is_integer(N) -> maps:update_with(filename:basename(File), fun(M) -> M + N end, N, Counters);
                _ -> Counters
            end;
        {error, _} -> Counters
    end.

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(Settings) ->
    link_metrics() ++
        [#{name => Name, unit => <<"MB/s">>, better => higher, key => key(Bytes), contender => Pipe, baselines => [ib_send]}
         || has_pipe(Settings), {Name, Pipe, Bytes} <- [{<<"pipe_rdma_64k">>, rdpipe, 64 bsl 10}, {<<"pipe_rdma_1m">>, rdpipe, 1 bsl 20},
                                                        {<<"pipe_rdma_unchecked_64k">>, rdpipe_unchecked, 64 bsl 10},
                                                        {<<"pipe_rdma_unchecked_1m">>, rdpipe_unchecked, 1 bsl 20}]].

link_metrics() ->
    [#{name => Name, unit => Unit, better => Better, key => Key, contender => rdma_link, baselines => [ib_write, ib_send]}
     || {Name, Unit, Better, Key} <- [{<<"rdma_bw_64k">>, <<"MB/s">>, higher, key(64 bsl 10)},
                                      {<<"rdma_bw_1m">>, <<"MB/s">>, higher, key(1 bsl 20)},
                                      {<<"rdma_lat">>, <<"us">>, lower, ?LATENCY},
                                      {<<"rdma_sent_again">>, <<"requests">>, lower, <<"sent again">>},
                                      {<<"rdma_rnr">>, <<"packets">>, lower, <<"not ready (RNR)">>}]].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

device_test_() ->
    [?_assertMatch({error, _}, device(undefined, [])), ?_assertMatch({error, _}, device("rxe1", ["rxe0"])),
     ?_assertEqual({ok, "rxe0"}, device(undefined, ["rxe0", "mlx5_0"])), ?_assertEqual({ok, "mlx5_0"}, device("mlx5_0", ["rxe0", "mlx5_0"]))].

figures_of_the_link_test_() ->
    [?_assertEqual({ok, 23.4}, link_figure("bw 65536 bytes: 23.4 MB/s; posts 9 events 3 stalls 0\n")),
     ?_assertEqual({ok, 310.25}, link_figure("x\nlat 64 bytes: median 310.25 us, mean 320.10 us; posts 9 events 3 stalls 0\n")),
     ?_assertEqual(none, link_figure("FAIL bw: rdma_bench.c:70\n"))].

seconds_of_the_pipe_test_() ->
    [?_assertEqual({ok, 0.25}, pipe_seconds("{\"bytes\": 9, \"seconds\": 0.250000, \"carrier\": \"rdma\", \"reason\": \"\"}\n")),
     ?_assertEqual(none, pipe_seconds("{\"bytes\": 9, \"seconds\": 0.250000, \"carrier\": \"tcp\", \"reason\": \"\"}\n"))].

rows_of_perftest_test() ->
    Lines = [" #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n",
             " 65536      200              21.53              20.91  \t\t   0.000334\n", "-----\n", "  Conflicting CPU frequency values\n"],
    ?assertEqual([20.91], [column(4, Row) || Row <- rows(Lines)]),
    ?assertEqual([], rows(["1 2 3\n", "a b c d e\n"])).

a_port_that_listens_is_seen_test_() ->
    [fun() ->
             {ok, Socket} = gen_tcp:listen(0, [Family]),
             {ok, Port} = inet:port(Socket),
             ?assertEqual(ok, listens(Port, none, 0)),
             ok = gen_tcp:close(Socket)
     end || Family <- [inet, inet6]].
-endif.
