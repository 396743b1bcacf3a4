%% SPDX-License-Identifier: Apache-2.0
%% @doc Computes rates from two samples of a node's collector, and stores recent ones as series for charts. All functions are pure.
-module(beamway_console_rates).

-export([between/2, remember/5, series/1, link_fields/0, node_fields/0, http_fields/0, percentile/2]).
-export_type([rates/0, history/0]).

-type rates() :: #{cpu := float(), links := #{node() => link()}, http := [server()]}.
%% `cpu' is the number of CPUs in use, so 2.0 means two.
-type link() :: #{link := atom(), reason := binary(), address => binary(), since => integer(), fault => map(), rates := #{atom() => float()}, gauges := #{atom() => number()}}.
-type server() :: #{name := atom(), rates := #{atom() => float()}, totals := #{atom() => integer()}, latency := [{non_neg_integer(), pos_integer()}]}.
%% `latency' counts how many of the timed answers since the previous sample fall into each slot of yucan's table.
-opaque history() :: {Count :: non_neg_integer(), [tuple()]}.

-define(KEEP, 300).
%% The maximum number of points of all links together. A history grows to twice its size before it is truncated. A point takes 120 bytes.
-define(LINK_POINTS, 500000).

-define(LINK_COUNTERS, [bytes_in, bytes_out, frames_in, frames_out, doorbells_in, doorbells_out, wakeups, stalls]).
-define(LINK_GAUGES, [ring_bytes, ring_fill_in, ring_fill_out, queue_bytes, busy, peer_cpu_percent, peer_run_queue, peer_mem_available, peer_load_age_ms,
                      uncompressed_out, compressed_out, compress_us]).
-define(HTTP_COUNTERS, [requests, connections, refused, refused_connections, crashes, bytes_out, status_1xx, status_2xx, status_3xx, status_4xx, status_5xx, websockets]).

%% @doc Returns the rates since the previous sample. All of them are 0.0 if there is none.
-spec between(none | beamway_console_collector:sample(), beamway_console_collector:sample()) -> rates().
between(Before, #{links := Links} = Now) ->
    Seconds = seconds(Before, Now),
    Old = links_by_node(Before),
    #{cpu => rate(cpu_ms, Before, Now, Seconds) / 1000,
      links => maps:from_list([{Node, link(maps:get(Node, Old, none), Link, Seconds)} || #{node := Node} = Link <- Links]),
      http => [server(Server, old_server(element(1, Server), Before), Seconds) || Server <- maps:get(http, Now, [])]}.

seconds(none, _) -> none;
seconds(#{at := Before}, #{at := Now}) when Now > Before -> (Now - Before) / 1000;
seconds(_, _) -> none.

rate(Key, Old, New, Seconds) when is_map(Old), is_number(Seconds) ->
    case {Old, New} of
        {#{Key := Before}, #{Key := After}} when After >= Before -> (After - Before) / Seconds;
        _ -> 0.0
    end;
rate(_, _, _, _) -> 0.0.

links_by_node(#{links := Links}) -> maps:from_list([{Node, Link} || #{node := Node} = Link <- Links]);
links_by_node(none) -> #{}.

link(Old, New, Seconds) ->
    Same = case {Old, New} of
               {#{since := Since}, #{since := Since}} -> Old;
               {#{}, #{since := _}} -> none;
               _ -> Old
           end,
    Base = maps:merge(#{reason => <<>>}, maps:with([link, reason, address, since, fault], New)),
    Base#{rates => maps:from_list([{Key, rate(Key, Same, New, Seconds)} || Key <- ?LINK_COUNTERS, is_map_key(Key, New)]),
          gauges => maps:with(?LINK_GAUGES ++ ?LINK_COUNTERS, New)}.

old_server(Name, #{http := Servers}) ->
    case lists:keyfind(Name, 1, Servers) of
        {_, Figures, Latency} -> {Figures, Latency};
        false -> none
    end;
old_server(_, _) -> none.

server({Name, Figures, Latency}, Old, Seconds) ->
    {Before, LatencyBefore} = case Old of none -> {none, []}; {_, _} -> Old end,
    #{name => Name, totals => Figures, rates => maps:from_list([{Key, rate(Key, Before, Figures, Seconds)} || Key <- ?HTTP_COUNTERS]),
      latency => [{Place, Count - Less} || {Place, Count} <- Latency, Less <- [proplists:get_value(Place, LatencyBefore, 0)], Count > Less]}.

%% @doc Returns the upper bound in microseconds for this fraction of the timed answers, or `none' if there are none. `Latency' may combine several servers.
-spec percentile(float(), [{non_neg_integer(), pos_integer()}]) -> none | pos_integer().
percentile(_, []) -> none;
percentile(Share, Latency) ->
    Wanted = Share * lists:sum([Count || {_, Count} <- Latency]),
    reached(Wanted, lists:sort(Latency)).

reached(Wanted, [{Place, Count} | Rest]) when Rest =:= []; Count >= Wanted -> yucan_metrics:bound_us(Place);
reached(Wanted, [{_, Count} | Rest]) -> reached(Wanted - Count, Rest).

%%% Recent history

%% @doc Returns the columns of a link's series after the time in ms: rates per second, then current values.
-spec link_fields() -> [atom()].
link_fields() -> ?LINK_COUNTERS ++ [ring_fill_in, ring_fill_out, queue_bytes].

%% @doc Returns the columns of a node's series: thousandths of a CPU, bytes, counts.
-spec node_fields() -> [atom()].
node_fields() -> [cpu_milli, memory, processes, run_queue].

%% @doc Returns the columns of a web server's series.
-spec http_fields() -> [atom()].
http_fields() -> [requests, open, p50_us, p99_us, bytes_out, status_2xx, status_3xx, status_4xx, status_5xx].

%% @doc Adds the rates to the history of everything on a node, where `Nodes' is the number of nodes. The histories of things that no longer exist
%% are removed when their last point is too old.
-spec remember(AtMs :: integer(), rates(), beamway_console_collector:sample(), Nodes :: pos_integer(), #{term() => history()}) -> #{term() => history()}.
remember(At, #{cpu := Cpu, links := Links, http := Servers}, Sample, Nodes, Histories) ->
    #{memory := Memory, processes := Processes, run_queue := Queue} = Sample,
    New = [{node, [round(1000 * Cpu), Memory, Processes, Queue]}
           | [{{link, Peer}, [round(maps:get(F, Rates, 0)) || F <- ?LINK_COUNTERS] ++ [maps:get(F, Gauges, 0) || F <- [ring_fill_in, ring_fill_out, queue_bytes]]}
              || {Peer, #{rates := Rates, gauges := Gauges}} <- maps:to_list(Links)]]
        ++ [{{http, Name}, http_point(Server)} || #{name := Name} = Server <- Servers],
    Young = maps:filter(fun(_, {_, [Last | _]}) -> At - element(1, Last) < ?KEEP * 1000 end, Histories),
    lists:foldl(fun({Key, Point}, All) -> All#{Key => add(list_to_tuple([At | Point]), maps:get(Key, All, {0, []}), keep(Key, Nodes))} end, Young, New).

keep({link, _}, Nodes) -> max(2, min(?KEEP, ?LINK_POINTS div (Nodes * Nodes)));
keep(_, _) -> ?KEEP.

http_point(#{rates := Rates, totals := Totals, latency := Latency}) ->
    Micros = fun(Share) -> case percentile(Share, Latency) of none -> 0; Us -> Us end end,
    [round(maps:get(requests, Rates)), maps:get(open_connections, Totals, 0), Micros(0.5), Micros(0.99)]
        ++ [round(maps:get(F, Rates)) || F <- [bytes_out, status_2xx, status_3xx, status_4xx, status_5xx]].

%% A history is truncated to half its length only occasionally, so that adding a point is cheap.
add(Point, {Count, Points}, Keep) when Count >= 2 * Keep -> {Keep, [Point | lists:sublist(Points, Keep - 1)]};
add(Point, {Count, Points}, _) -> {Count + 1, [Point | Points]}.

%% @doc Returns the points of a history, oldest first. Each is a list whose first element is the time in ms.
-spec series(history()) -> [[integer()]].
series({_, Points}) -> [tuple_to_list(Point) || Point <- lists:reverse(lists:sublist(Points, ?KEEP))].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

sample(At, Bytes, Since) ->
    #{at => At, cpu_ms => At div 2, memory => 1, processes => 2, run_queue => 0, busy_us => 0, samples => 1, apps => [], peers => [b],
      links => [#{node => b, link => shm, reason => <<"same host">>, since => Since, fault => #{cut => both, left_ms => 9}, bytes_in => Bytes, ring_fill_in => 7}],
      http => [{web, #{requests => Bytes, open_connections => 3}, [{5, Bytes}]}]}.

between_test() ->
    #{cpu := Cpu, links := #{b := #{rates := #{bytes_in := Rate}, gauges := #{ring_fill_in := 7}, fault := #{cut := both}}}, http := [#{rates := #{requests := Requests}, latency := Latency}]}
        = between(sample(1000, 10, 1), sample(3000, 110, 1)),
    ?assertEqual({0.5, 50.0, 50.0, [{5, 100}]}, {Cpu, Rate, Requests, Latency}).

%% A link that was set up again counts from zero, and the first sample gives no rates.
anew_test_() ->
    [?_assertMatch(#{links := #{b := #{rates := #{bytes_in := 0.0}}}}, between(Old, sample(3000, 110, 2))) || Old <- [none, sample(1000, 10, 1), sample(3000, 10, 2)]]
        ++ [?_assertMatch(#{links := #{b := #{rates := #{bytes_in := 0.0}}}}, between(sample(1000, 500, 1), sample(3000, 110, 1)))].

history_test() ->
    Add = fun(Nodes) ->
                  fun(N, Histories) ->
                          Sample = sample(1000 * N, N, 1),
                          remember(1000 * N, between(none, Sample), Sample, Nodes, Histories)
                  end
          end,
    #{{link, b} := Link} = All = lists:foldl(Add(2), #{}, lists:seq(1, 1000)),
    Series = series(Link),
    ?assertEqual(?KEEP, length(Series)),
    ?assertEqual([1000000 | [0 || _ <- ?LINK_COUNTERS]] ++ [7, 0, 0], lists:last(Series)),
    ?assertEqual([node, {http, web}, {link, b}], lists:sort(maps:keys(All))),
    ?assertEqual(length(link_fields()) + 1, length(hd(Series))),
    ?assertEqual(length(http_fields()) + 1, length(hd(series(maps:get({http, web}, All))))),
    ?assertEqual(length(node_fields()) + 1, length(hd(series(maps:get(node, All))))),
    #{{link, b} := Crowded, node := Node} = lists:foldl(Add(100), #{}, lists:seq(1, 1000)),
    ?assert(length(series(Crowded)) =< 100),
    ?assertEqual(?KEEP, length(series(Node))).

percentile_test_() ->
    [?_assertEqual(none, percentile(0.5, [])), ?_assertEqual(6, percentile(0.5, [{5, 10}])), ?_assertEqual(6, percentile(0.9, [{7, 1}, {5, 9}])),
     ?_assertEqual(8, percentile(0.99, [{7, 1}, {5, 9}]))].
-endif.
