%% SPDX-License-Identifier: Apache-2.0
%% @doc `beamway topology measure': the command's VM becomes a hidden node that accepts no connections, finds or starts the nodes, measures, and
%% stores the results so far every few seconds.
-module(beamway_cli_topology_measure).

-export([run/1]).

-define(SAVE_MS, 3000).

%% @doc Measures as specified by the options.
-spec run(map()) -> ok.
run(#{out := Out} = Options) ->
    Settings = settings(Options),
    Before = before(Options),
    ok = become_node(Options),
    {Nodes, End} = nodes_of(Options),
    try
        Progress = progress(Out, Nodes, maps:get(messages, Settings)),
        case placement_probe:measure(Nodes, Settings#{done => Before, progress => Progress}) of
            {ok, Measured} -> finish(Measured, Options);
            {error, Error} -> throw({failed, measure_error(Error)})
        end
    after End()
    end.

settings(#{mode := Mode, pairs := Pairs, batches := Batches, messages := Messages}) ->
    Modes = case Mode of
                "both" -> [quiet, loaded];
                "quiet" -> [quiet];
                "loaded" -> [loaded];
                _ -> throw({usage, ["--mode ", Mode, ": expected quiet, loaded or both"]})
            end,
    Batches > 0 andalso Batches =< 10000 orelse throw({usage, "--batches: expected a number from 1 to 10000"}),
    Messages > 0 andalso Messages =< 100000 orelse throw({usage, "--messages: expected a number from 1 to 100000"}),
    #{modes => Modes, batches => Batches, messages => Messages, pairs => share(Pairs)}.

share(Text) ->
    case re:run(Text, "^([0-9]{1,3}(?:\\.[0-9]{1,6})?)%?$", [{capture, all_but_first, list}]) of
        {match, [Digits]} ->
            {Percent, _} = string:to_float(case lists:member($., Digits) of true -> Digits; false -> Digits ++ ".0" end),
            Percent > 0 andalso Percent =< 100 orelse bad_share(Text),
            Percent / 100;
        nomatch -> bad_share(Text)
    end.

-spec bad_share(string()) -> no_return().
bad_share(Text) -> throw({usage, ["--pairs ", Text, ": expected a share above 0% and at most 100%, such as 10%"]}).

before(#{resume := true, out := Out}) ->
    case filelib:is_regular(Out) of
        true -> maps:get(pairs, beamway_cli_topology_show:measured_file(Out));
        false -> #{}
    end;
before(#{}) -> #{}.

measure_error(no_pairs) -> "at least two nodes are needed";
measure_error({bad_option, Key, Value}) -> io_lib:format("~s cannot be ~tp", [Key, Value]);
measure_error({unreachable, Nodes}) ->
    ["cannot reach ", lists:join(", ", [io_lib:format("~ts (~0tP)", [Node, Reason, 6]) || {Node, Reason} <- lists:sublist(Nodes, 4)]),
     [io_lib:format(" and ~b more", [length(Nodes) - 4]) || length(Nodes) > 4], "; are they up, and is the cookie right?"].

%% ---- the nodes ----

become_node(Options) ->
    Long = lists:any(fun(Name) -> beamway_cli_ask:is_long(lists:last(string:split(Name, "@"))) end, given(Options)),
    {Domain, Host} = case Long of true -> {longnames, "@127.0.0.1"}; false -> {shortnames, ""} end,
    _ = [started_epmd() || is_map_key(start, Options) orelse is_map_key(per_core, Options)],
    case beamway_cli_ask:start("beamway_topology_" ++ os:getpid() ++ Host, Domain) of
        {ok, _} -> cookie(Options);
        {error, Reason} -> throw({failed, ["cannot become a node: ", beamway_cli_ask:why_no_node(Reason)]})
    end.

%% A node that does not listen does not start epmd.
started_epmd() -> os:cmd("epmd -daemon").

given(#{nodes := Names}) -> string:lexemes(Names, ", \n");
given(#{'of' := Name}) -> [Name];
given(#{}) -> [].

cookie(#{cookie_file := File}) ->
    case beamway_cli_ask:cookie(File) of
        {ok, Cookie} -> true = erlang:set_cookie(Cookie), ok;
        {error, Text} -> throw({failed, Text})
    end;
cookie(#{}) -> ok.

%% Returns the nodes, and a fun that releases them at the end.
nodes_of(Options) ->
    case [Key || Key <- [nodes, 'of', start, per_core], is_map_key(Key, Options)] of
        [nodes] -> {beamway_cli_topology_nodes:named(maps:get(nodes, Options)), fun() -> ok end};
        ['of'] -> {beamway_cli_topology_nodes:connected_with(maps:get('of', Options)), fun() -> ok end};
        [start] -> beamway_cli_topology_nodes:start(maps:get(start, Options));
        [per_core] -> beamway_cli_topology_nodes:start_per_core();
        _ -> throw({usage, "say which nodes, by one of --nodes, --of, --start and --per-core"})
    end.

%% ---- progress and result ----

progress(Out, Nodes, Messages) ->
    Shown = counters:new(1, []),
    Terminal = io:columns(standard_error),
    fun(#{pairs := Pairs, done := Done, total := Total} = State) ->
            Now = erlang:monotonic_time(millisecond),
            ok = bar(State, Terminal),
            case Done =:= Total orelse Now - counters:get(Shown, 1) > ?SAVE_MS orelse counters:get(Shown, 1) =:= 0 of
                true ->
                    counters:put(Shown, 1, Now),
                    store(Out, #{nodes => Nodes, pairs => Pairs, failed => [], messages => Messages, seconds => 0.0});
                false -> ok
            end
    end.

store(Out, Measured) ->
    beamway_cli_topology_show:write(Out, [jiffy:encode(placement_measured:to_json(Measured)), "\n"]).

bar(#{mode := Mode, done := Done, total := Total} = State, {ok, Columns}) ->
    Wide = max(10, min(40, Columns - 40)),
    Full = Wide * Done div max(1, Total),
    io:format(standard_error, "\r~-6s [~ts~ts] ~b of ~b pairs~ts \e[K~ts",
              [Mode, lists:duplicate(Full, $#), lists:duplicate(Wide - Full, $.), Done, Total, left(State), ["\n" || Done =:= Total]]);
bar(#{mode := Mode, done := Done, total := Total} = State, _) when Done =:= 0; Done =:= Total ->
    io:format(standard_error, "beamway: ~s: ~b of ~b pairs~ts~n", [Mode, Done, Total, left(State)]);
bar(_, _) -> ok.

left(#{left_s := unknown}) -> "";
left(#{done := Total, total := Total}) -> "";
left(#{left_s := Seconds}) when Seconds < 90 -> io_lib:format(", about ~b s left", [ceil(Seconds)]);
left(#{left_s := Seconds}) -> io_lib:format(", about ~b min left", [ceil(Seconds / 60)]).

finish(#{failed := Failed, seconds := Seconds, pairs := Pairs} = Measured, #{out := Out} = Options) ->
    ok = store(Out, Measured),
    _ = [beamway_cli_output:complain("not measured (~s): ~ts to ~ts: ~0tP", [Mode, A, B, Reason, 8]) || {Mode, A, B, Reason} <- lists:sublist(Failed, 5)],
    beamway_cli_output:complain("~b pairs in ~.1f s, stored in ~ts; look at it: beamway topology show ~ts", [map_size(Pairs), Seconds, Out, Out]),
    _ = [beamway_cli_output:say("~ts~n", [jiffy:encode(placement_measured:to_json(Measured), [pretty, force_utf8])]) || #{json := true} <- [Options]],
    _ = [beamway_cli_topology_show:draw_beside(File, Measured) || #{per_core := true, beside := File} <- [Options]],
    case Failed of
        [] -> ok;
        _ -> throw({failed, io_lib:format("~b pairs were not measured; try again with --resume", [length(Failed)])})
    end.
