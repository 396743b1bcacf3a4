%% SPDX-License-Identifier: Apache-2.0
%% @doc Callers of placement_drain_counter for placement_drain_SUITE, all on the same node. Each caller calls its own children
%% by name, one after another, and knows the correct reply to each call.
-module(placement_drain_caller).

-export([start/3, mark/1, report/1]).
-export([collector/1, caller/5]).

-record(caller, {id, names :: tuple(), collector :: pid(), pause :: pos_integer(), counts = #{}, unsure = #{}, calls = 0, failed = [], wrong = [], seen = #{}, took = #{}}).

%% @doc Starts `Count' callers, each for two parts of the names, and returns a handle for {@link report/1}.
start(Count, Names, PauseMs) ->
    Parts = list_to_tuple(parts(Names, Count)),
    Collector = spawn(?MODULE, collector, [[]]),
    Callers = [spawn(?MODULE, caller, [Collector, Id, element(Id, Parts), element(1 + Id rem Count, Parts), PauseMs]) || Id <- lists:seq(1, Count)],
    {Collector, Callers}.

parts(List, Count) ->
    Numbered = lists:zip([N rem Count || N <- lists:seq(1, length(List))], List),
    [[Item || {Of, Item} <- Numbered, Of =:= Part] || Part <- lists:seq(0, Count - 1)].

%% @doc Switches the measurement of call times on or off.
mark(Counted) -> persistent_term:put(?MODULE, Counted).

%% @doc Stops the callers. Reports the number of calls, the failed calls, the wrong counts, the names under which two
%% processes answered alternately, and a histogram of the durations of the calls in milliseconds.
report({Collector, Callers}) ->
    _ = [Caller ! stop || Caller <- Callers],
    Monitor = monitor(process, Collector),
    Collector ! {report, self(), length(Callers)},
    receive
        {Collector, Reports} ->
            demonitor(Monitor, [flush]),
            #{calls => lists:sum([Calls || #caller{calls = Calls} <- Reports]), failed => lists:append([Failed || #caller{failed = Failed} <- Reports]),
              wrong => lists:append([Wrong || #caller{wrong = Wrong} <- Reports]), twice => twice([Seen || #caller{seen = Seen} <- Reports]),
              took => lists:foldl(fun(#caller{took = Took}, All) -> add(Took, All) end, #{}, Reports)};
        {'DOWN', Monitor, process, _, Reason} -> exit(Reason)
    end.

add(Counts, All) -> maps:fold(fun(Ms, Count, Sum) -> maps:update_with(Ms, fun(Before) -> Before + Count end, Count, Sum) end, All, Counts).

%% If two processes answered under the same name, all replies from one must have come before those from the other.
twice(Seen) ->
    ByName = lists:foldl(fun(One, All) -> maps:fold(fun(Name, Pids, Sum) -> maps:update_with(Name, fun(Before) -> merged(Pids, Before) end, Pids, Sum) end, All, One) end, #{}, Seen),
    [{Name, Sorted} || {Name, Pids} <- maps:to_list(ByName), Sorted <- [lists:sort([{From, To, Pid} || {Pid, {From, To}} <- maps:to_list(Pids)])], overlap(Sorted)].

merged(A, B) -> maps:fold(fun(Pid, {From, To}, Sum) -> maps:update_with(Pid, fun({From2, To2}) -> {min(From, From2), max(To, To2)} end, {From, To}, Sum) end, B, A).

overlap([{_, To, _}, {From, _, _} = Next | Rest]) -> To > From orelse overlap([Next | Rest]);
overlap(_) -> false.

collector(Reports) ->
    receive
        {done, Report} -> collector([Report | Reports]);
        {report, To, Count} when length(Reports) =:= Count -> To ! {self(), Reports}
    end.

caller(Collector, Id, Mine, Next, Pause) -> calling(#caller{id = {node(), Id}, names = list_to_tuple(Mine ++ Next), collector = Collector, pause = Pause}).

calling(#caller{collector = Collector, names = Names, pause = Pause} = State) ->
    receive stop -> Collector ! {done, State}
    after rand:uniform(2 * Pause) -> calling(called(element(rand:uniform(tuple_size(Names)), Names), State))
    end.

called(Name, #caller{id = Id, counts = Counts, unsure = Unsure, calls = Calls, failed = Failed, wrong = Wrong, seen = Seen} = State) ->
    Counted = persistent_term:get(?MODULE, false),
    Begin = erlang:monotonic_time(microsecond),
    Before = maps:get(Name, Counts, 0),
    try placement_drain_counter:bump({via, placement, Name}, Id) of
        {Count, Pid, At} ->
            Ms = (erlang:monotonic_time(microsecond) - Begin) div 1000,
            %% The previous call failed, but the child may have counted it as well.
            IsRight = Count =:= Before + 1 orelse is_map_key(Name, Unsure) andalso Count =:= Before + 2,
            Pids = maps:get(Name, Seen, #{}),
            timed(Counted, Ms, State#caller{counts = Counts#{Name => Count}, unsure = maps:remove(Name, Unsure), calls = Calls + 1,
                                             wrong = [{Name, Before, Count, Pid} || not IsRight] ++ Wrong,
                                             seen = Seen#{Name => merged(#{Pid => {At, At}}, Pids)}})
    catch
        Class:Reason -> State#caller{unsure = Unsure#{Name => true}, calls = Calls + 1, failed = [{Name, Class, Reason} | Failed]}
    end.

timed(false, _, State) -> State;
timed(true, Ms, #caller{took = Took} = State) -> State#caller{took = maps:update_with(Ms, fun(Count) -> Count + 1 end, 1, Took)}.
