%% SPDX-License-Identifier: Apache-2.0
%% @doc Builds the frames that are sent to browsers for each topic, as JSON. All functions are pure.
%%
%% The frame of the cluster is short, because it is sent once per interval. Nodes are objects, and each pair of linked nodes occurs once, with the
%% indexes of both in the list of nodes and the bytes per second in each direction. If there are very many pairs, only the busiest are listed, but
%% all are counted. Everything else has a separate frame, which is sent only to browsers that show it.
-module(beamway_console_frames).

-export([frame/3]).

-type nodes() :: #{node() => beamway_console_hub:known()}.

%% The number of links between 45 fully meshed nodes. With 500 nodes there would be 125,000, in a frame of 10 MB.
-define(LINKS_MOST, 1000).

%% @doc Returns the frame of a topic, or `none' for topics that other processes serve.
-spec frame(beamway_console_hub:topic(), nodes(), beamway_console_config:config()) -> binary() | none.
frame(cluster, Nodes, Config) -> json(cluster(Nodes, Config));
frame(http, Nodes, _) -> json(http(Nodes));
frame({link, A, B}, Nodes, _) -> json(link(A, B, Nodes));
frame({node, Node}, Nodes, _) -> json(node_detail(Node, Nodes));
frame(_, _, _) -> none.

json(Term) -> beamway_console_web:encode(Term).

cluster(Nodes, #{allow := Allow, interval_ms := Interval}) ->
    Hosts = hosts(Nodes),
    Links = links(Nodes),
    #{t => erlang:system_time(millisecond), console => node(), allow => Allow, interval_ms => Interval,
      nodes => [node_json(Node, Known, Hosts) || {Node, Known} <- lists:sort(maps:to_list(Nodes))],
      links => busiest(Links), all => all(Links)}.

busiest(Links) when length(Links) =< ?LINKS_MOST -> Links;
busiest(Links) -> [Link || {_, Link} <- lists:sublist(lists:keysort(1, [{-(Ab + Ba), Link} || #{ab := Ab, ba := Ba} = Link <- Links]), ?LINKS_MOST)].

all(Links) ->
    Sum = fun(Key) -> lists:sum([maps:get(Key, Link) || Link <- Links]) end,
    Kinds = lists:foldl(fun(#{kind := Kind}, Acc) -> maps:update_with(Kind, fun(N) -> N + 1 end, 1, Acc) end, #{}, Links),
    #{kinds => Kinds, bytes => Sum(ab) + Sum(ba), frames => Sum(frames), stalls => Sum(stalls)}.

%% Returns the name of each node's host, for display. If a machine has several network namespaces, the host part of the node's name is appended.
hosts(Nodes) ->
    Spaces = maps:fold(fun(_, #{facts := #{host := Host, space := Space}}, Acc) -> maps:update_with(Host, fun(S) -> lists:usort([Space | S]) end, [Space], Acc);
                          (_, _, Acc) -> Acc
                       end, #{}, Nodes),
    maps:map(fun(Node, #{facts := Facts}) -> host(Node, Facts, Spaces) end, Nodes).

host(Node, #{host := Host}, Spaces) ->
    case Spaces of
        #{Host := [_, _ | _]} -> <<Host/binary, " (", (host_part(Node))/binary, ")">>;
        #{} -> Host
    end;
host(Node, _, _) -> host_part(Node).

host_part(Node) -> lists:last(binary:split(atom_to_binary(Node), <<"@">>)).

node_json(Node, #{state := Is, since := Since, why := Why, facts := Facts, sample := Sample, rates := Rates}, Hosts) ->
    Base = #{name => Node, host => maps:get(Node, Hosts), state => Is, since => Since, why => Why},
    maps:merge(maps:merge(Base, maps:with([otp, schedulers, carrier, started, beamway, os_pid], Facts)), figures(Sample, Rates)).

figures(#{memory := Memory, processes := Processes, run_queue := Queue, apps := Apps, busy_us := Busy, samples := Samples} = Sample, #{cpu := Cpu}) ->
    maps:merge(#{cpu => rounded(Cpu), memory => Memory, processes => Processes, run_queue => Queue, apps => Apps,
                 collector_us => case Samples of 0 -> 0; _ -> Busy div Samples end}, maps:with([leases], Sample));
figures(_, _) -> #{}.

rounded(Float) -> round(Float * 1000) / 1000.

%% Returns every pair of nodes that are linked according to at least one of the two, if both are known here. The nodes of other consoles and
%% commands are hidden, so they are left out.
links(Nodes) ->
    Places = maps:from_list(lists:zip(lists:sort(maps:keys(Nodes)), lists:seq(0, map_size(Nodes) - 1))),
    Pairs = lists:usort([{min(A, B), max(A, B)} || {A, #{rates := #{links := Links}}} <- maps:to_list(Nodes), B <- maps:keys(Links), is_map_key(B, Nodes)]),
    [pair(A, B, Places, side(A, B, Nodes), side(B, A, Nodes)) || {A, B} <- Pairs].

side(From, To, Nodes) ->
    case Nodes of
        #{From := #{rates := #{links := #{To := Link}}}} -> Link;
        #{} -> none
    end.

%% The values of each direction come from the sender, or from the receiver if the sender reports nothing.
pair(A, B, Places, SideA, SideB) ->
    [Kind | _] = [Kind || #{link := Kind} <- [SideA, SideB]],
    #{a => maps:get(A, Places), b => maps:get(B, Places), kind => Kind,
      ab => flow(bytes_out, SideA, bytes_in, SideB), ba => flow(bytes_out, SideB, bytes_in, SideA),
      frames => flow(frames_out, SideA, frames_in, SideB) + flow(frames_out, SideB, frames_in, SideA),
      stalls => stalls(SideA) + stalls(SideB), busy => is_busy(SideA) orelse is_busy(SideB)}.

flow(Out, #{rates := Rates}, _, _) when is_map_key(Out, Rates) -> round(maps:get(Out, Rates));
flow(_, _, In, #{rates := Rates}) when is_map_key(In, Rates) -> round(maps:get(In, Rates));
flow(_, _, _, _) -> 0.

stalls(#{rates := Rates}) -> round(maps:get(stalls, Rates, 0));
stalls(none) -> 0.

is_busy(#{gauges := #{busy := Busy}}) -> Busy > 0;
is_busy(_) -> false.

link(A, B, Nodes) -> #{a => A, b => B, t => erlang:system_time(millisecond), sides => [side_json(A, B, Nodes), side_json(B, A, Nodes)]}.

side_json(From, To, Nodes) ->
    case side(From, To, Nodes) of
        none -> #{from => From, to => To, up => false};
        #{rates := Rates, gauges := Gauges} = Link ->
            (maps:with([link, reason, address, since, fault], Link))#{from => From, to => To, up => true, now => Gauges, rates => maps:map(fun(_, Rate) -> rounded(Rate) end, Rates)}
    end.

node_detail(Node, Nodes) ->
    case Nodes of
        #{Node := Known} -> (node_json(Node, Known, hosts(Nodes)))#{t => erlang:system_time(millisecond)};
        #{} -> #{name => Node, state => unknown, t => erlang:system_time(millisecond)}
    end.

http(Nodes) ->
    #{t => erlang:system_time(millisecond),
      servers => [server_json(Node, Server) || {Node, #{rates := #{http := Servers}}} <- lists:sort(maps:to_list(Nodes)), Server <- Servers]}.

server_json(Node, #{name := Name, rates := Rates, totals := Totals, latency := Latency}) ->
    #{node => Node, name => Name, rates => maps:map(fun(_, Rate) -> rounded(Rate) end, Rates), totals => Totals,
      timed => lists:sum([Count || {_, Count} <- Latency]),
      latency_us => maps:from_list([{Key, case beamway_console_rates:percentile(Share, Latency) of none -> null; Us -> Us end}
                                    || {Key, Share} <- [{p50, 0.5}, {p90, 0.9}, {p99, 0.99}, {max, 1.0}]])}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

known(Links) ->
    Sample = #{memory => 5, processes => 6, run_queue => 0, apps => [yucan], busy_us => 100, samples => 10},
    #{state => up, since => 1, why => <<>>, facts => #{host => <<"h">>, space => <<"1">>, otp => <<"25">>}, sample => Sample, histories => #{},
      rates => #{cpu => 0.12345, links => Links,
                 http => [#{name => web, rates => #{requests => 2.0}, totals => #{requests => 9}, latency => [{5, 10}]}]}}.

link_of(Rates) -> #{link => shm, reason => <<"same host">>, rates => Rates, gauges => #{busy => 0}}.

decoded(Topic, Nodes) ->
    jiffy:decode(frame(Topic, Nodes, #{allow => false, interval_ms => 1000}), [return_maps]).

cluster_test() ->
    Nodes = #{b@h => known(#{a@h => link_of(#{bytes_in => 10.0, bytes_out => 3.0})}), a@h => known(#{b@h => link_of(#{bytes_out => 11.0}), stranger@h => link_of(#{})}),
              c@h => (known(#{}))#{state := down, rates := none}},
    #{<<"nodes">> := [A, _, C], <<"links">> := [Link]} = decoded(cluster, Nodes),
    ?assertMatch(#{<<"name">> := <<"a@h">>, <<"host">> := <<"h">>, <<"cpu">> := 0.123, <<"collector_us">> := 10, <<"apps">> := [<<"yucan">>]}, A),
    ?assertMatch(#{<<"state">> := <<"down">>}, C),
    ?assertMatch(#{<<"a">> := 0, <<"b">> := 1, <<"ab">> := 11, <<"ba">> := 3, <<"kind">> := <<"shm">>, <<"busy">> := false}, Link).

%% All pairs are counted, and the busiest are listed.
many_links_test() ->
    Names = [list_to_atom("n" ++ integer_to_list(N) ++ "@h") || N <- lists:seq(1, 50)],
    Bytes = fun('n50@h', 'n49@h') -> 9.0; (_, _) -> 1.0 end,
    Nodes = maps:from_list([{A, known(maps:from_list([{B, link_of(#{bytes_out => Bytes(A, B), stalls => 1.0})} || B <- Names -- [A]]))} || A <- Names]),
    #{<<"links">> := [Busiest | _] = Links, <<"all">> := All} = decoded(cluster, Nodes),
    ?assertEqual(1000, length(Links)),
    ?assertEqual(10, maps:get(<<"ab">>, Busiest) + maps:get(<<"ba">>, Busiest)),
    ?assertEqual(#{<<"kinds">> => #{<<"shm">> => 1225}, <<"bytes">> => 2458, <<"frames">> => 0, <<"stalls">> => 2450}, All).

details_test() ->
    Nodes = #{b@h => known(#{a@h => (link_of(#{bytes_in => 10.0}))#{fault => #{cut => in, left_ms => 5}}}), a@h => known(#{})},
    ?assertMatch(#{<<"sides">> := [#{<<"up">> := false}, #{<<"up">> := true, <<"reason">> := <<"same host">>, <<"fault">> := #{<<"cut">> := <<"in">>, <<"left_ms">> := 5},
                                     <<"rates">> := #{<<"bytes_in">> := 10.0}}]},
                 decoded({link, a@h, b@h}, Nodes)),
    ?assertMatch(#{<<"servers">> := [#{<<"latency_us">> := #{<<"p99">> := 6}}, _]}, decoded(http, Nodes)),
    ?assertMatch(#{<<"state">> := <<"unknown">>}, decoded({node, x@h}, Nodes)),
    ?assertEqual(none, frame(jobs, Nodes, #{})).

names_test() ->
    Known = (known(#{}))#{rates := #{cpu => 0.0, links => #{}, http => [#{name => 'größe', rates => #{}, totals => #{}, latency => []}]}},
    #{<<"servers">> := [#{<<"name">> := <<"größe"/utf8>>, <<"node">> := <<"a@хост"/utf8>>}]} = decoded(http, #{'a@хост' => Known}).

%% Two network namespaces of the same machine are two hosts.
spaces_test() ->
    Nodes = #{'a@10.0.0.1' => known(#{}), 'b@10.0.0.2' => (known(#{}))#{facts := #{host => <<"h">>, space => <<"2">>}}, 'c@new' => (known(#{}))#{facts := #{}}},
    ?assertEqual([<<"h (10.0.0.1)">>, <<"h (10.0.0.2)">>, <<"new">>], maps:values(hosts(Nodes))).
-endif.
