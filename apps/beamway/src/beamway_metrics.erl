%% SPDX-License-Identifier: Apache-2.0
%% @doc The metrics of a link: {@link beamway:info/1} and the Prometheus text both have the counters in {@link beamway_counters}.
-module(beamway_metrics).

-export([of_link/1, peer_load/1, families/1, family/5, prometheus/1]).
-export_type([family/0]).

-type label() :: {Name :: atom(), atom() | non_neg_integer()}.
-type family() :: {Name :: binary(), counter | gauge, Help :: string(), [{Labels :: [label()], Value :: number()}]}.

%% @doc Returns the current metrics of a link. Fields that do not exist for a kind of link are missing.
-spec of_link(beamway_links:link()) -> #{atom() => number()}.
of_link(#{link := Kind, stream := Stream, controller := Controller}) ->
    try
        case beamway_kind:is_ring(Kind) orelse beamway_stream:stats(Stream, Controller) of
            true -> maps:without(beamway_counters:names(tcp), beamway_port:stats(Controller));
            {ok, Stats} -> Stats;
            {error, _} -> #{}
        end
    catch
        error:badarg -> #{}
    end.

%% @doc Returns the load that the peer has reported, under the names of {@link beamway:loads/0}.
-spec peer_load(beamway_links:link()) -> beamway:load() | none.
peer_load(Link) ->
    case of_link(Link) of
        #{peer_cpu_percent := Cpu, peer_run_queue := RunQueue, peer_load_age_ms := AgeMs} = Figures ->
            maps:merge(#{cpu_percent => Cpu, run_queue => RunQueue, age_ms => AgeMs},
                       maps:from_list([{As, Value} || {Name, As} <- [{peer_loadavg1, loadavg1}, {peer_mem_available, mem_available}], {ok, Value} <- [maps:find(Name, Figures)]]));
        #{} -> none
    end.

%% @doc Returns the metrics of these links, each with its samples (labels and value). For Prometheus, whose base unit of time is the second, metrics
%% whose names end in `_us' are converted to seconds.
-spec families([beamway_links:link()]) -> [family()].
families(Links) ->
    Figures = [{Link, of_link(Link)} || Link <- Links],
    [case string:split(atom_to_list(Name), "_us", trailing) of
         [Time, ""] -> family("beamway_link_", Time ++ "_seconds", Type, Help, [{Labels, Us / 1000000} || {Labels, Us} <- Samples]);
         _ -> family("beamway_link_", Name, Type, Help, Samples)
     end || {Name, Type, Help} <- beamway_counters:metrics(), [_ | _] = Samples <- [samples(Name, Figures)]]
        ++ pauses([{[{peer, Node}, {link, Kind}, {cause, Cause}], Pause} || #{node := Node, link := Kind, pauses := Causes} <- Links, {Cause, Pause} <- lists:sort(maps:to_list(Causes))])
        ++ [family("beamway_", resumes_refused, counter, "Attempts to continue a link that proved no right to it", [{[], Refused}])
            || {ok, Refused} <- [beamway_links:resumes_refused()]]
        ++ [family("beamway_", handshakes_refused, counter, "Connections that proved no key or were crowded out before (option encrypt)", [{[], Refused}])
            || {ok, Refused} <- [beamway_half_open:count()]]
        ++ [family("beamway_", fault, gauge, "1 while a fault lies on the way to that node (beamway:fault/2)", [{[{peer, Node}], 1} || {Node, _} <- Faults])
            || [_ | _] = Faults <- [beamway_fault_path:all()]]
        ++ [family("beamway_", certificate_expiry_seconds, gauge, "When the certificate that the last connection used ends, in seconds since 1970",
                   [{[{side, Side}], Seconds} || {Side, Seconds} <- Ends])
            || [_ | _] = Ends <- [lists:sort(beamway_links:certificates())]].

pauses([]) -> [];
pauses(Pauses) ->
    [family("beamway_link_", resumes, counter, "Connections over which the link has continued, by why it had lost the last one", [{Labels, Count} || {Labels, {Count, _}} <- Pauses]),
     family("beamway_link_", "pause_seconds", counter, "Time for which the link had no connection before these", [{Labels, Ms / 1000} || {Labels, {_, Ms}} <- Pauses])].

%% @doc Returns a metric under its Prometheus name.
-spec family(Prefix :: string(), Name :: atom() | string(), counter | gauge, Help :: string(), [{[label()], number()}]) -> family().
family(Prefix, Name, Type, Help, Samples) when is_atom(Name) -> family(Prefix, atom_to_list(Name), Type, Help, Samples);
family(Prefix, Name, Type, Help, Samples) -> {iolist_to_binary([Prefix, Name, suffix(Type)]), Type, Help, Samples}.

samples(Name, Figures) ->
    [{[{peer, Node}, {link, Kind}], Value}
     || {#{node := Node, link := Kind}, #{Name := Value}} <- Figures].

%% @doc Returns the metrics as text in the Prometheus exposition format 0.0.4.
-spec prometheus([family()]) -> iolist().
prometheus(Families) ->
    [["# HELP ", Metric, $\s, Help, "\n# TYPE ", Metric, $\s, atom_to_list(Type), $\n
      | [[Metric, labels(Labels), $\s, number(Value), $\n] || {Labels, Value} <- Samples]]
     || {Metric, Type, Help, Samples} <- Families].

number(Value) when is_integer(Value) -> integer_to_binary(Value);
number(Seconds) -> float_to_binary(Seconds, [{decimals, 6}]).

suffix(counter) -> "_total";
suffix(gauge) -> "".

labels([]) -> "";
labels(Labels) -> ["{", lists:join($,, [[atom_to_list(Name), "=\"", value(Value), $"] || {Name, Value} <- Labels]), "}"].

value(Value) when is_integer(Value) -> integer_to_list(Value);
value(Value) -> escape(atom_to_list(Value)).

escape(Text) ->
    unicode:characters_to_binary(
      lists:flatmap(fun($") -> "\\\""; ($\\) -> "\\\\"; ($\n) -> "\\n"; (C) -> [C] end, Text)).
