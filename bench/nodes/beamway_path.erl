%% SPDX-License-Identifier: Apache-2.0
%% @doc Creates two hosts, implemented as network namespaces and joined by a network path that has a rate, a delay, a loss rate and a bounded queue in
%% each direction. A program (`native/test/path') emulates the path, because the kernels of test machines do not have netem. This needs root.
%%
%% The program exits when the process that opened the path exits. That process must remove the namespaces with {@link close/1}.
-module(beamway_path).

-export([open/2, close/1, net/1, counters/1, round_trip_us/1]).

-export_type([path/0, settings/0, counters/0]).

-type settings() :: #{rate_bits => pos_integer(),        %% per second
                      delay_us => non_neg_integer(),     %% one way
                      loss => number(),                  %% probability, for each packet
                      queue_bytes => pos_integer(),      %% for each direction; packets that arrive when it is full are dropped
                      seed => non_neg_integer(),
                      mtu => pos_integer(),
                      offload => 0 | 1,                  %% 1: segments of a TCP stream travel together, which takes much less processor time
                      congestion => atom()}.             %% TCP's congestion control; if omitted, this machine's default
%% Settings that are omitted have the program's defaults: 1 Gbit/s, no delay, no loss, 256 KiB, MTU 1500, no offload.
-opaque path() :: #{net := beamway_netns:net(), port := port(), settings := settings()}.
-type counters() :: #{binary() => number() | boolean() | #{binary() => non_neg_integer()}}.
%% The keys `there' and `back' contain packets, bytes, lost, dropped and more; the program also reports its seconds and cpu_seconds.

-define(READY_MS, 10000).
-define(ANSWER_MS, 5000).

%% @doc Creates the hosts and the path. The names of all network devices and namespaces begin with the prefix.
-spec open(Prefix :: string(), settings()) -> {ok, path()} | {error, string()}.
open(Prefix, Settings) ->
    Program = filename:join([beamway_bench_checkout:root(), "native", "build", "path_emulator"]),
    case {filelib:is_regular(Program), filelib:last_modified("/dev/net/tun")} of
        {false, _} -> {error, Program ++ " is not there. Run: make build-bench"};
        {true, 0} -> {error, "no /dev/net/tun here: the kernel has no TUN devices, or the container hides them"};
        {true, _} -> opened(Program, Settings, beamway_netns:apart(Prefix))
    end.

opened(_, _, {error, Why}) -> {error, Why};
opened(Program, Settings, {ok, #{spaces := Spaces} = Net}) ->
    Port = beamway_bench_tools:open(Program, Spaces ++ words(Settings)),
    Path = #{net => Net, port => Port, settings => Settings},
    case beamway_bench_tools:line(Port, ?READY_MS) of
        {line, "ready"} -> addressed(Path);
        Else -> ok = close(Path), {error, said(Else)}
    end.

words(Settings) ->
    lists:append([[Word, text(map_get(Key, Settings))]
                  || {Key, Word} <- [{rate_bits, "--rate"}, {delay_us, "--delay"}, {loss, "--loss"}, {queue_bytes, "--queue"},
                                     {seed, "--seed"}, {mtu, "--mtu"}, {offload, "--offload"}],
                     is_map_key(Key, Settings)]).

text(Number) when is_float(Number) -> float_to_list(Number, [{decimals, 9}, compact]);
text(Number) -> integer_to_list(Number).

said({line, Line}) -> Line;
said(Else) -> lists:flatten(io_lib:format("the path emulator did not start: ~0p", [Else])).

addressed(#{net := #{spaces := Spaces, addresses := Addresses}, settings := Settings} = Path) ->
    case [Said || {Space, Address} <- lists:zip(Spaces, Addresses), Command <- commands(Address, Settings),
                  Said <- [os:cmd("ip -n " ++ Space ++ " " ++ Command ++ " 2>&1")], Said =/= ""] of
        [] -> {ok, Path};
        [Why | _] -> ok = close(Path), {error, Why}
    end.

%% The congestion control is set on the route rather than in the namespace, which may only select an
%% algorithm that has been enabled for it.
commands(Address, Settings) ->
    Network = hd(string:split(Address, ".", trailing)) ++ ".0/30",
    ["address add " ++ Address ++ "/30 dev path0" | ["route replace " ++ Network ++ " dev path0 congctl " ++ atom_to_list(Name) || #{congestion := Name} <- [Settings]]].

%% @doc Stops the path, kills everything that is running on its hosts, and removes the hosts.
-spec close(path()) -> ok.
close(#{net := Net, port := Port}) ->
    ok = beamway_bench_tools:close(Port, "TERM"),
    beamway_netns:delete(Net).

%% @doc Returns the path's hosts.
-spec net(path()) -> beamway_netns:net().
net(#{net := Net}) -> Net.

%% @doc Returns the part of the round-trip time that is due to the delays.
-spec round_trip_us(settings()) -> non_neg_integer().
round_trip_us(Settings) -> 2 * maps:get(delay_us, Settings, 0).

%% @doc Returns the current counters. Only the process that opened the path may call this.
-spec counters(path()) -> counters().
counters(#{port := Port}) ->
    {ok, OsPid} = beamway_bench_tools:os_pid(Port),
    "" = os:cmd("kill -USR1 " ++ integer_to_list(OsPid)),
    case beamway_bench_tools:line(Port, ?ANSWER_MS) of
        {line, Line} -> jiffy:decode(Line, [return_maps]);
        Else -> error({path_emulator_does_not_answer, Else})
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

words_test_() ->
    [?_assertEqual([], words(#{})),
     ?_assertEqual(["--rate", "1000000", "--loss", "0.0001", "--offload", "1"], words(#{rate_bits => 1000000, loss => 0.0001, offload => 1})),
     ?_assertEqual(["--loss", "0.000001"], words(#{loss => 1.0e-6}))].

commands_test_() ->
    [?_assertEqual(["address add 10.0.0.2/30 dev path0"], commands("10.0.0.2", #{})),
     ?_assertEqual(["address add 10.0.0.2/30 dev path0", "route replace 10.0.0.0/30 dev path0 congctl cubic"], commands("10.0.0.2", #{congestion => cubic}))].

round_trip_test() ->
    ?assertEqual({1000, 0}, {round_trip_us(#{delay_us => 500}), round_trip_us(#{})}).
-endif.
