%% SPDX-License-Identifier: Apache-2.0
%% @doc Generates, checks and shrinks schedules of faults. A schedule is plain data, so it can also be written by hand.
%%
%% A schedule says which nodes there are (by number, with the options of each) and which faults affect them, in order. {@link beamway_nemesis}
%% runs it, and {@link beamway_nemesis_oracle} judges what the nodes have observed. Lasting faults continue while the next ones start, but
%% faults on the same node wait for each other.
%%
%% The functions are pure. Each schedule from {@link generate/2} or {@link smaller/1} is valid. Every fault either ends connections ({@link
%% ends/2} says which) or must not end any.
-module(beamway_nemesis_schedule).

-export([generate/1, generate/2, validate/1, smaller/1, ends/2, names/1, tick_time_s/0]).
-export([kinds/0, is_calm/1, read/1, print/1]).

-export_type([schedule/0, fault/0, options/0, pair/0, index/0]).

-type index() :: 1..6.
-type schedule() :: #{nodes := [options()], faults := [fault()]}.
-type options() :: #{carrier => tcp | stock,          %% the run's carrier by default
                     ring_bytes => pos_integer(),
                     poll_us => non_neg_integer(),
                     wire => another}.                %% uses a different version of the extension
-type fault() :: {wait, Ms :: pos_integer()}
               | {kill, index()}                     %% like kill -9; the node stays down until it is restarted
               | {restart, index(), options()}       %% a running node first exits normally
               | {stop, index(), Ms :: pos_integer()}
               | {cut_tcp, index(), index()}        %% only the TCP socket between two nodes
               | {silence, index(), index(), Ms :: pos_integer()}  %% nothing arrives at the first node over its connection to the second
               | {fill_ring, From :: index(), To :: index()}
               | {no_descriptors, index(), Ms :: pos_integer()}
               | {slow_reader, index(), Ms :: pos_integer()}
               | {clock_jump, index(), Seconds :: integer()}.
-type pair() :: {index(), index()}.

%% net_ticktime of the nodes, in seconds. OTP closes the connection to a silent peer after 3/4 to 5/4 of this time.
-define(TICK_TIME_S, 8).
-define(HARMLESS_STOP_MS, 4000).
-define(LONG_STOP_MS, 12000).
-define(SILENCE_MS, 1500).
-define(RINGS, [65536, 262144, 4194304]).

%% @doc Returns the net_ticktime of all nodes, which is the same in every schedule.
-spec tick_time_s() -> pos_integer().
tick_time_s() -> ?TICK_TIME_S.

%% @doc Returns every kind of fault.
-spec kinds() -> [atom()].
kinds() ->
    [wait, kill, restart, stop, cut_tcp, silence, fill_ring, no_descriptors, slow_reader, clock_jump].

%% ---- from a seed ----

%% @doc Returns the schedule for a seed. The same seed always yields the same schedule.
-spec generate(Seed :: integer()) -> schedule().
generate(Seed) ->
    generate(Seed, #{}).

%% @doc Like {@link generate/1}, but with limits on the number of nodes and faults.
-spec generate(Seed :: integer(), #{max_nodes => 2..6, max_faults => pos_integer()}) -> schedule().
generate(Seed, Limits) ->
    Start = rand:seed_s(exsss, Seed),
    {Count, R1} = between(2, maps:get(max_nodes, Limits, 6), Start),
    {Nodes, R2} = repeat(Count, fun node_options/1, R1),
    {Length, R3} = between(3, maps:get(max_faults, Limits, 9), R2),
    {Mood, R4} = pick([harmless, any, any], R3),
    Numbers = lists:seq(1, Count),
    {Faults, R5} = faults(Length, #{mood => Mood, all => Numbers, alive => Numbers, taken => 0}, R4),
    #{nodes => Nodes, faults => with_cut(Faults, Numbers, R5)}.

%% Every schedule has a cut that a Beamway link must survive, so the cut comes before anything that ends links or starts other nodes.
with_cut(Faults, Numbers, R0) ->
    {Place, R1} = between(0, length(lists:takewhile(fun is_calm/1, Faults)), R0),
    {Cut, _} = make(cut_tcp, Numbers, [], R1),
    {Before, After} = lists:split(Place, Faults),
    Before ++ [Cut | After].

node_options(R0) ->
    {Ring, R1} = pick(?RINGS, R0),
    {Poll, R2} = pick([200, 0], R1),
    {#{ring_bytes => Ring, poll_us => Poll}, R2}.

%% Now and then a node gets a different version or a different carrier, so that its connections use TCP.
new_options(R0) ->
    {Options, R1} = node_options(R0),
    {Kind, R2} = pick([same, same, same, wire, tcp, stock], R1),
    case Kind of
        same -> {Options, R2};
        wire -> {Options#{wire => another}, R2};
        Carrier -> {Options#{carrier => Carrier}, R2}
    end.

%% At most one node is down at the end, so that at least two are left to exchange messages.
faults(0, #{alive := Alive, all := All}, R0) ->
    case All -- Alive of
        [] -> {[], R0};
        Dead ->
            {Options, R1} = new_options(R0),
            {[{restart, N, Options} || N <- tl(Dead) ++ [hd(Dead) || length(All) < 4]], R1}
    end;
faults(Left, State, R0) ->
    {Fault, R1} = fault(State, R0),
    {Pause, R2} = pick([0, 0, 100, 500, 1500], R1),
    {Rest, R3} = faults(Left - 1, after_fault(Fault, State), R2),
    {[Fault | [{wait, Pause} || Pause > 0]] ++ Rest, R3}.

fault(#{mood := Mood, all := All, alive := Alive} = State, R0) ->
    Dead = All -- Alive,
    Harmless = [stop, silence, fill_ring, no_descriptors, slow_reader, clock_jump],
    Kinds = case Mood of
                harmless -> Harmless;
                any -> Harmless ++ [cut_tcp, cut_tcp, kill, kill, restart, restart, restart, long_stop]
            end,
    Possible = [Kind || Kind <- Kinds, is_possible(Kind, length(Alive), length(Dead), State)],
    {Kind, R1} = pick(Possible, R0),
    make(Kind, Alive, Dead, R1).

is_possible(kill, Alive, _, _) -> Alive > 1;
is_possible(Kind, Alive, _, _) when Kind =:= cut_tcp; Kind =:= silence; Kind =:= fill_ring -> Alive > 1;
is_possible(long_stop, _, _, #{taken := Taken}) -> Taken =:= 0;
is_possible(_, _, _, _) -> true.

make(kill, Alive, _, R0) ->
    {N, R1} = pick(Alive, R0),
    {{kill, N}, R1};
make(restart, Alive, Dead, R0) ->
    {N, R1} = pick(case Dead of [] -> Alive; _ -> Dead end, R0),
    {Options, R2} = new_options(R1),
    {{restart, N, Options}, R2};
make(Kind, Alive, _, R0) when Kind =:= cut_tcp; Kind =:= fill_ring ->
    {A, R1} = pick(Alive, R0),
    {B, R2} = pick(Alive -- [A], R1),
    {{Kind, A, B}, R2};
make(silence, Alive, Dead, R0) ->
    {{_, A, B}, R1} = make(cut_tcp, Alive, Dead, R0),
    {Ms, R2} = between(50, ?SILENCE_MS, R1),
    {{silence, A, B, Ms}, R2};
make(clock_jump, Alive, _, R0) ->
    {N, R1} = pick(Alive, R0),
    {Seconds, R2} = pick([-86400, -3600, -30, -1, 1, 30, 3600, 86400], R1),
    {{clock_jump, N, Seconds}, R2};
make(long_stop, Alive, _, R0) ->
    {N, R1} = pick(Alive, R0),
    {{stop, N, ?LONG_STOP_MS}, R1};
make(Kind, Alive, _, R0) ->
    {N, R1} = pick(Alive, R0),
    {Ms, R2} = between(50, 3000, R1),
    {{Kind, N, Ms}, R2}.

after_fault({kill, N}, #{alive := Alive} = State) -> State#{alive := Alive -- [N]};
after_fault({restart, N, _}, #{alive := Alive} = State) -> State#{alive := lists:usort([N | Alive])};
after_fault({stop, _, ?LONG_STOP_MS}, State) -> State#{taken := 1};
after_fault(_, State) -> State.

between(Low, High, R0) ->
    {N, R1} = rand:uniform_s(High - Low + 1, R0),
    {Low + N - 1, R1}.

pick(List, R0) ->
    {N, R1} = rand:uniform_s(length(List), R0),
    {lists:nth(N, List), R1}.

repeat(0, _, R) -> {[], R};
repeat(N, Make, R0) ->
    {One, R1} = Make(R0),
    {Rest, R2} = repeat(N - 1, Make, R1),
    {[One | Rest], R2}.

%% ---- validity ----

%% @doc Returns whether a schedule can be run. The error names what is wrong with it.
-spec validate(term()) -> ok | {error, Reason :: term()}.
validate(#{nodes := Nodes, faults := Faults}) when is_list(Nodes), is_list(Faults) ->
    Count = length(Nodes),
    case Count >= 2 andalso Count =< 6 of
        false -> {error, {nodes, Count, "expected 2 to 6"}};
        true -> first_error([options_error(O) || O <- Nodes], Faults, lists:seq(1, Count))
    end;
validate(Other) ->
    {error, {not_a_schedule, Other}}.

first_error([], Faults, Numbers) -> faults_error(Faults, Numbers, Numbers);
first_error([ok | Rest], Faults, Numbers) -> first_error(Rest, Faults, Numbers);
first_error([Error | _], _, _) -> Error.

options_error(Options) when is_map(Options) ->
    case [Pair || Pair <- maps:to_list(Options), not is_option(Pair)] of
        [] -> ok;
        [Bad | _] -> {error, {option, Bad}}
    end;
options_error(Other) ->
    {error, {options, Other}}.

is_option({carrier, Carrier}) -> lists:member(Carrier, [tcp, stock]);
is_option({ring_bytes, Bytes}) -> is_integer(Bytes) andalso Bytes >= 65536 andalso Bytes band (Bytes - 1) =:= 0;
is_option({poll_us, Us}) -> is_integer(Us) andalso Us >= 0 andalso Us =< 1000;
is_option({wire, another}) -> true;
is_option(_) -> false.

faults_error([], _, _) -> ok;
faults_error([Fault | Rest], All, Alive) ->
    case is_fault(Fault, All, Alive) of
        true ->
            #{alive := Next} = after_fault(Fault, #{alive => Alive, taken => 0}),
            faults_error(Rest, All, Next);
        false -> {error, {fault, Fault}};
        Error -> Error
    end.

is_fault({wait, Ms}, _, _) -> is_integer(Ms) andalso Ms > 0;
is_fault({restart, N, Options}, All, _) ->
    case options_error(Options) of
        ok -> lists:member(N, All);
        Error -> Error
    end;
is_fault({kill, N}, _, Alive) -> lists:member(N, Alive);
%% For a duration in between, it would be unclear whether the connection must end.
is_fault({stop, N, Ms}, _, Alive) when is_integer(Ms), Ms > 0 ->
    lists:member(N, Alive) andalso (Ms =< ?HARMLESS_STOP_MS orelse Ms >= ?LONG_STOP_MS);
is_fault({Kind, N, Ms}, _, Alive) when Kind =:= no_descriptors; Kind =:= slow_reader ->
    is_integer(Ms) andalso Ms > 0 andalso lists:member(N, Alive);
is_fault({clock_jump, N, Seconds}, _, Alive) -> is_integer(Seconds) andalso lists:member(N, Alive);
is_fault({Kind, A, B}, _, Alive) when Kind =:= cut_tcp; Kind =:= fill_ring ->
    A =/= B andalso lists:member(A, Alive) andalso lists:member(B, Alive);
%% A longer silence could end a connection because ticks are missing.
is_fault({silence, A, B, Ms}, All, Alive) -> is_integer(Ms) andalso Ms > 0 andalso Ms =< ?SILENCE_MS andalso is_fault({cut_tcp, A, B}, All, Alive);
is_fault(_, _, _) -> false.

%% @doc Returns the numbers of the nodes that a fault concerns.
-spec names(fault()) -> [index()].
names({wait, _}) -> [];
names({Kind, A, B}) when Kind =:= cut_tcp; Kind =:= fill_ring -> [A, B];
names({silence, A, B, _}) -> [A, B];
names(Fault) -> [element(2, Fault)].

%% @doc Returns whether a fault ends the connection between two nodes, and must do so.
-spec ends(fault(), pair()) -> boolean().
ends({Kind, N}, {A, B}) when Kind =:= kill -> N =:= A orelse N =:= B;
ends({restart, N, _}, {A, B}) -> N =:= A orelse N =:= B;
ends({stop, N, Ms}, {A, B}) when Ms >= ?LONG_STOP_MS -> N =:= A orelse N =:= B;
ends({cut_tcp, A, B}, {C, D}) -> {A, B} =:= {C, D} orelse {A, B} =:= {D, C};
ends(_, _) -> false.

%% @doc Returns whether every Beamway link that existed before a fault still exists afterwards.
-spec is_calm(fault()) -> boolean().
is_calm({stop, _, Ms}) -> Ms < ?LONG_STOP_MS;
is_calm(Fault) -> not lists:member(element(1, Fault), [kill, restart]).

%% ---- smaller ----

%% @doc Returns valid schedules that are slightly smaller, the smallest first: without a fault, without a node, without options, with shorter
%% waits.
-spec smaller(schedule()) -> [schedule()].
smaller(#{nodes := Nodes, faults := Faults} = Schedule) ->
    Candidates = halves(Schedule) ++ [Schedule#{faults := without(I, Faults)} || I <- lists:seq(1, length(Faults))]
        ++ fewer_nodes(Schedule)
        ++ [Schedule#{nodes := [#{} || _ <- Nodes]} || lists:any(fun(O) -> O =/= #{} end, Nodes)]
        ++ [Schedule#{faults := replace(I, {restart, N, #{}}, Faults)}
            || {I, {restart, N, Options}} <- numbered(Faults), Options =/= #{}]
        ++ [Schedule#{faults := replace(I, {wait, Ms div 2}, Faults)} || {I, {wait, Ms}} <- numbered(Faults), Ms > 100],
    [Candidate || Candidate <- Candidates, validate(Candidate) =:= ok].

halves(#{faults := Faults} = Schedule) when length(Faults) > 3 ->
    {Front, Back} = lists:split(length(Faults) div 2, Faults),
    [Schedule#{faults := Front}, Schedule#{faults := Back}];
halves(_) ->
    [].

fewer_nodes(#{nodes := Nodes, faults := Faults} = Schedule) ->
    Last = length(Nodes),
    case lists:any(fun(Fault) -> lists:member(Last, names(Fault)) end, Faults) of
        true -> [];
        false -> [Schedule#{nodes := lists:droplast(Nodes)}]
    end.

numbered(List) -> lists:zip(lists:seq(1, length(List)), List).

without(I, List) -> [Item || {J, Item} <- numbered(List), J =/= I].

replace(I, New, List) -> [case J of I -> New; _ -> Item end || {J, Item} <- numbered(List)].

%% ---- files ----

%% @doc Reads a schedule from a file that contains one term and a full stop.
-spec read(file:name_all()) -> {ok, schedule()} | {error, term()}.
read(File) ->
    case file:consult(File) of
        {ok, [Schedule]} ->
            case validate(Schedule) of
                ok -> {ok, Schedule};
                {error, Reason} -> {error, Reason}
            end;
        {ok, Terms} -> {error, {terms, length(Terms), "expected one"}};
        {error, Reason} -> {error, Reason}
    end.

%% @doc Formats a schedule as it is stored in a file.
-spec print(schedule()) -> unicode:chardata().
print(Schedule) ->
    io_lib:format("~p.~n", [Schedule]).
