%% SPDX-License-Identifier: Apache-2.0
%% @doc Measures the values for the demo's line about network outages: two nodes on two hosts call each other while, for a moment, all connections
%% between the hosts are reset and new ones rejected, over stock distribution and over Beamway.
-module(beamway_demo_cut).

-export([run/2, text/1]).
-export_type([outcome/0]).
%% Called on the calling node.
-export([watch/2]).

-type outcome() :: [{Name :: atom(), {nodedown, Ms :: non_neg_integer()} | {pause, Ms :: non_neg_integer()}}] | {error, Why :: string()}.

-define(REFUSED_MS, 43).
-define(CALM_MS, 300).
-define(WATCH_MS, 3000).

%% @doc Measures both carriers. `Hosts' are two network namespaces.
-spec run(beamway_bench_nodes:epmd(), [beamway_bench_hosts:host()]) -> outcome().
run(Epmd, Hosts) ->
    case os:find_executable("iptables") of
        false -> {error, "iptables is not installed"};
        _ -> [{Name, cut(Epmd, Name, Hosts)} || Name <- [tcp, beamway_tcp]]
    end.

cut(Epmd, Name, [{Space, _} | _] = Hosts) ->
    Contender = maps:get(Name, beamway_bench_contender:all(beamway_bench_checkout:root(), 50)),
    #{members := [Caller, _]} = Cluster = beamway_bench_nodes:start(Epmd, Contender, #{count => 2, hosts => Hosts}),
    ok = beamway_bench_nodes:connect(Cluster, forward),
    [_, Called] = beamway_bench_nodes:names(Cluster),
    Demo = self(),
    Watcher = spawn_link(fun() -> Demo ! {self(), beamway_bench_nodes:call(Caller, ?MODULE, watch, [Called, ?WATCH_MS])} end),
    receive after ?CALM_MS -> ok end,
    _ = beamway_cut:during({Space, "INPUT"}, ["-j REJECT --reject-with tcp-reset"], ?REFUSED_MS),
    receive {Watcher, Outcome} -> _ = beamway_bench_nodes:stop(Cluster), Outcome end.

%% @private Makes calls without pause, and returns the duration of the longest call or, if the node goes down, of the call during which this happened.
-spec watch(node(), pos_integer()) -> {nodedown | pause, Ms :: non_neg_integer()}.
watch(Node, Ms) ->
    true = monitor_node(Node, true),
    watch(Node, erlang:monotonic_time(millisecond) + Ms, 0).

watch(Node, End, Longest) ->
    Began = erlang:monotonic_time(millisecond),
    Answer = try erpc:call(Node, erlang, node, [], 10000) catch error:{erpc, Reason} -> Reason end,
    Now = erlang:monotonic_time(millisecond),
    Next = max(Longest, Now - Began),
    receive
        {nodedown, Node} -> {nodedown, Now - Began}
    after 0 ->
        case Answer of
            Node when Now < End -> watch(Node, End, Next);
            Node -> {pause, Next};
            _ -> watch(Node, End, Next)
        end
    end.

%% @doc Returns the line that the demo prints.
-spec text(outcome()) -> unicode:chardata().
text({error, Why}) -> io_lib:format("All connections between two hosts cut: not shown: ~ts.~n", [Why]);
text(Outcomes) ->
    [Stock, Ours] = [said(proplists:get_value(Name, Outcomes)) || Name <- [tcp, beamway_tcp]],
    io_lib:format("All connections between two hosts cut for ~b ms: ~ts over stock distribution, a caller sees ~ts over Beamway.~n", [?REFUSED_MS, Stock, Ours]).

said({nodedown, _Ms}) -> "a nodedown";
said({pause, Ms}) -> io_lib:format("a pause of ~b ms", [Ms]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

text_test_() ->
    Shown = unicode:characters_to_list(text([{tcp, {nodedown, 1}}, {beamway_tcp, {pause, 95}}])),
    [?_assertNotEqual(nomatch, string:find(Shown, Part)) || Part <- ["a nodedown over stock", "a caller sees a pause of 95 ms over Beamway"]]
        ++ [?_assertNotEqual(nomatch, string:find(text({error, "no right"}), "not shown: no right"))].
-endif.
