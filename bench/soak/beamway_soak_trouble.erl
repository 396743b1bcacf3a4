%% SPDX-License-Identifier: Apache-2.0
%% @doc Disturbs a soak's nodes: from time to time, it cuts a connection from one side, or stops a
%% node for a moment, so that its peers' rings fill, and then lets it continue. The seed determines
%% the disturbances. The load reconnects on its own, from whichever side is first.
-module(beamway_soak_trouble).

-export([start/2, stop/1]).

-define(STOPPED_MS, 1500).
-define(CALL_MS, 60000).

%% @doc Starts the disturbances, which stop when the calling process exits.
-spec start(beamway_bench_nodes:cluster(), Settings :: #{seed := integer(), events := float(), _ => _}) -> pid().
start(#{members := Members}, #{seed := Seed, events := MeanS}) ->
    spawn_link(fun() ->
                       _ = rand:seed(exsss, Seed),
                       wait(Members, MeanS, #{cuts => 0, stops => 0})
               end).

%% @doc Stops the disturbances, and returns how often each kind happened. No node is left stopped.
-spec stop(pid()) -> #{cuts := non_neg_integer(), stops := non_neg_integer()}.
stop(Pid) ->
    Pid ! {stop, self()},
    receive {Pid, Counts} -> Counts after ?CALL_MS + ?STOPPED_MS -> error(trouble_does_not_stop) end.

wait(Members, MeanS, Counts) ->
    receive
        {stop, From} -> From ! {self(), Counts}, ok
    after round(1000 * MeanS * (0.5 + rand:uniform())) ->
            Kind = lists:nth(rand:uniform(2), [cuts, stops]),
            ok = make(Kind, Members),
            wait(Members, MeanS, maps:update_with(Kind, fun(Count) -> Count + 1 end, Counts))
    end.

make(cuts, Members) ->
    [One, Other | _] = beamway_bench_run:shuffled(Members),
    _ = beamway_bench_nodes:call(One, erlang, disconnect_node, [maps:get(name, Other)], ?CALL_MS),
    ok;
make(stops, Members) ->
    [#{os_pid := OsPid} | _] = beamway_bench_run:shuffled(Members),
    signal("STOP", OsPid),
    receive after rand:uniform(?STOPPED_MS) -> ok end,
    signal("CONT", OsPid).

signal(Name, OsPid) ->
    "" = os:cmd("kill -" ++ Name ++ " " ++ integer_to_list(OsPid)),
    ok.
