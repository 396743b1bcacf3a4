%% SPDX-License-Identifier: Apache-2.0
%% @doc Measures the values for the demo's lines about two hosts: calls between two network namespaces on this machine, over TCP and over TLS, with
%% stock distribution and with Beamway. `bench hosts' makes the full measurement.
-module(beamway_demo_hosts).

-export([run/0, text/1]).

-type outcome() :: {ok, #{atom() => [Calls :: float()]}, Cut :: beamway_demo_cut:outcome()} | {error, Why :: string()}.

-define(CALLERS, 100).
-define(BYTES, 16).
-define(ROUNDS, 7).
-define(WINDOWS, #{warm_ms => 100, window_ms => 250}).
-define(PAIRS, [{"TCP", tcp, beamway_tcp}, {"TLS", tls, beamway_tls}]).

%% @doc Measures for about 15 s. Returns an error if the user does not have permission to create namespaces.
-spec run() -> outcome().
run() ->
    case beamway_bench_net:check() of
        ok -> on(beamway_bench_net:open(veth));
        {error, Why} -> {error, Why}
    end.

on({ok, Net}) ->
    try measure(beamway_bench_net:hosts(Net))
    after beamway_bench_net:close(Net)
    end;
on({error, Why}) -> {error, Why}.

measure(Hosts) ->
    Contenders = beamway_bench_contender:all(beamway_bench_checkout:root(), 50),
    Epmd = beamway_bench_nodes:start_epmd(Hosts),
    Rates = maps:from_list(lists:append([pair(Epmd, [maps:get(Name, Contenders) || Name <- [Stock, Own]], Hosts) || {_, Stock, Own} <- ?PAIRS])),
    Cut = beamway_demo_cut:run(Epmd, Hosts),
    ok = beamway_bench_nodes:stop_epmd(Epmd),
    {ok, Rates, Cut}.

%% Both clusters run all the time, and take turns in each round.
pair(Epmd, Contenders, Hosts) ->
    Clusters = [beamway_bench_nodes:start(Epmd, Contender, #{count => length(Hosts), hosts => Hosts}) || Contender <- Contenders],
    ok = lists:foreach(fun(Cluster) -> ok = beamway_bench_nodes:connect(Cluster, forward) end, Clusters),
    Turns = [{Name, rate(Cluster)} || _ <- lists:seq(1, ?ROUNDS), #{contender := #{name := Name}} = Cluster <- beamway_bench_run:shuffled(Clusters)],
    _ = [beamway_bench_nodes:stop(Cluster) || Cluster <- Clusters],
    [{Name, proplists:get_all_values(Name, Turns)} || #{name := Name} <- Contenders].

rate(Cluster) ->
    Load = #{kind => rpc, callers => ?CALLERS, targets => beamway_bench_nodes:names(Cluster), bytes => ?BYTES},
    {Rate, _} = beamway_bench_rpc:run_load(Cluster, Load, ?WINDOWS),
    Rate.

%% @doc Returns the lines that the demo prints.
-spec text(outcome()) -> unicode:chardata().
text({ok, Rates, Cut}) ->
    [[begin
          #{Stock := Theirs, Own := Ours} = Rates,
          [OursMedian, TheirsMedian] = [beamway_bench_text:number(beamway_bench_stats:median(Calls)) || Calls <- [Ours, Theirs]],
          io_lib:format("Two hosts (network namespaces), ~ts: ~ts calls/s by Beamway, ~ts by stock distribution: ~ts.~n",
                        [What, OursMedian, TheirsMedian, beamway_bench_report:paired(higher, Ours, Theirs)])
      end || {What, Stock, Own} <- ?PAIRS], beamway_demo_cut:text(Cut)];
text({error, Why}) -> io_lib:format("Two hosts: not measured: ~ts.~n", [Why]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

text_test_() ->
    Rates = maps:map(fun(_, Rate) -> lists:duplicate(?ROUNDS, Rate) end, #{tcp => 1000.0, beamway_tcp => 2000.0, tls => 300.0, beamway_tls => 300.0}),
    Shown = unicode:characters_to_list(text({ok, Rates, [{tcp, {nodedown, 1}}, {beamway_tcp, {pause, 2}}]})),
    [?_assertNotEqual(nomatch, string:find(Shown, Part)) || Part <- ["TCP: 2,000 calls/s by Beamway, 1,000 by stock distribution: 2.00.\n", "TLS: 300 ", ": even.\n"]]
        ++ [?_assertEqual("Two hosts: not measured: no right.\n", lists:flatten(text({error, "no right"})))].
-endif.
