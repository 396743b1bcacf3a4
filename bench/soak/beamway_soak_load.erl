%% SPDX-License-Identifier: Apache-2.0
%% @doc The mixed load of a soak test. It runs on each of the soak's nodes and checks its own results.
%%
%% For every other node there are callers, which must get back what they sent; streams of messages from 64 B to 1 MB, evenly distributed over the
%% orders of magnitude, whose receiver checks order and content; processes that are linked and monitored across nodes and exit with a reason that must
%% arrive; and crowds of processes that start, create a table each, make a call and exit. A lost connection does not count as an error, because all
%% activities restart after it. Every other deviation does: {@link counts/0} includes the number of errors, and {@link errors/0} the first few.
-module(beamway_soak_load).

-export([start/2, stop/0, counts/0, errors/0, leak/0]).
%% Called on other nodes.
-export([echo/1, sink/1, end_with/1]).

-export_type([counts/0]).

-type counts() :: #{calls | messages | bytes | exits | processes | errors := non_neg_integer()}.

-define(KEY, ?MODULE).
-define(NAMES, [calls, messages, bytes, exits, processes, errors]).
-define(LARGEST, 1048576).
-define(SMALLEST, 64).
-define(WINDOW, 16).
-define(CROWD, 10).
%% Longer than any stall, even on a busy machine.
-define(LOST_MS, 120000).
-define(STOP_MS, 30000).
-define(ERRORS_KEPT, 10).

%% @doc Starts the load from this node to the others. Each process sleeps for `PaceMs' between its rounds.
-spec start(Others :: [node()], PaceMs :: non_neg_integer()) -> ok.
start(Others, PaceMs) ->
    Caller = self(),
    {Pid, Monitor} = spawn_monitor(fun() -> init(Caller, Others, PaceMs) end),
    receive
        {Pid, started} -> demonitor(Monitor, [flush]), ok;
        {'DOWN', Monitor, process, Pid, Reason} -> error(Reason)
    end.

%% @doc Stops the load. Afterwards none of its processes remain on this node, and none of its sinks on other nodes can reconnect.
-spec stop() -> ok.
stop() ->
    Monitor = monitor(process, ?MODULE),
    ?MODULE ! stop,
    receive
        {'DOWN', Monitor, process, _, _} -> ok
    after ?STOP_MS ->
            error(load_does_not_stop)
    end.

%% @doc Adds a process to the load that opens files and never closes them, in order to test whether the leak is detected.
-spec leak() -> ok.
leak() ->
    ?MODULE ! {add, fun() -> leak([]) end},
    ok.

leak(Files) ->
    {ok, File} = file:open("/dev/null", [read, raw]),
    rest(300),
    leak([File | Files]).

%% @doc Returns how much work has been done so far; all counts are 0 before the first start.
-spec counts() -> counts().
counts() ->
    case persistent_term:get(?KEY, none) of
        none -> maps:from_list([{Name, 0} || Name <- ?NAMES]);
        {Ref, _, _} -> maps:from_list([{Name, counters:get(Ref, place(Name))} || Name <- ?NAMES])
    end.

%% @doc Returns the first errors.
-spec errors() -> [term()].
errors() ->
    case persistent_term:get(?KEY, none) of
        none -> [];
        {_, Table, _} -> [Error || {_, Error} <- lists:sort(ets:tab2list(Table))]
    end.

place(calls) -> 1;
place(messages) -> 2;
place(bytes) -> 3;
place(exits) -> 4;
place(processes) -> 5;
place(errors) -> 6.

count(Name) -> count(Name, 1).

count(Name, More) ->
    {Ref, _, _} = persistent_term:get(?KEY),
    counters:add(Ref, place(Name), More).

wrong(Error) ->
    {Ref, Table, _} = persistent_term:get(?KEY),
    counters:add(Ref, place(errors), 1),
    case counters:get(Ref, place(errors)) =< ?ERRORS_KEPT of
        true -> ets:insert(Table, {erlang:unique_integer([monotonic]), Error}), ok;
        false -> ok
    end.

init(Caller, Others, PaceMs) ->
    register(?MODULE, self()),
    keep_state(persistent_term:get(?KEY, none)),
    Workers = [spawn_monitor(fun() -> work(Kind, Other, PaceMs) end)
               || Other <- Others, Kind <- [call, call, stream, stream, links, crowd]],
    Caller ! {self(), started},
    watch(Workers).

%% The counters, the errors and the bytes to send are created only once and then kept.
keep_state(none) ->
    Owner = self(),
    Keeper = spawn(fun() ->
                           Table = ets:new(?MODULE, [public]),
                           persistent_term:put(?KEY, {counters:new(length(?NAMES), []), Table, rand:bytes(2 * ?LARGEST)}),
                           Owner ! {self(), ready},
                           %% This receive needs no timeout, because the table must exist until the
                           %% node exits.
                           receive never -> ok end
                   end),
    receive {Keeper, ready} -> ok after ?STOP_MS -> error(no_memory) end;
keep_state(_) ->
    ok.

watch(Workers) ->
    receive
        stop ->
            [exit(Pid, kill) || {Pid, _} <- Workers],
            %% This receive needs no timeout, because the workers have been killed.
            [receive {'DOWN', Monitor, process, _, _} -> ok end || {_, Monitor} <- Workers],
            ok;
        {add, Work} ->
            watch([spawn_monitor(Work) | Workers]);
        {'DOWN', Monitor, process, Pid, Reason} ->
            wrong({crashed, Reason}),
            watch(lists:delete({Pid, Monitor}, Workers))
    end.

work(call, Other, PaceMs) -> call(Other, PaceMs);
work(stream, Other, PaceMs) -> process_flag(trap_exit, true), stream(Other, PaceMs);
work(links, Other, PaceMs) -> process_flag(trap_exit, true), links(Other, PaceMs);
work(crowd, Other, PaceMs) -> process_flag(trap_exit, true), crowd(Other, PaceMs).

rest(PaceMs) ->
    receive after PaceMs -> ok end.

%% Pauses before trying to reconnect, because an immediate attempt would be useless.
rest_after_loss() ->
    receive after 20 -> ok end.

%% On average, messages of 64 B to 128 B are as frequent as messages of 512 KB to 1 MB.
bytes() ->
    {_, _, Source} = persistent_term:get(?KEY),
    Size = round(?SMALLEST * math:exp(rand:uniform() * math:log(?LARGEST / ?SMALLEST))),
    binary:part(Source, rand:uniform(?LARGEST), Size).

%% ---- calls ----

call(Other, PaceMs) ->
    Bytes = bytes(),
    try erpc:call(Other, ?MODULE, echo, [Bytes], ?LOST_MS) of
        Bytes -> count(calls), count(bytes, 2 * byte_size(Bytes)), rest(PaceMs);
        _ -> wrong({wrong_answer, Other})
    catch
        error:{erpc, noconnection} -> rest_after_loss();
        Class:Reason -> wrong({call_failed, Other, Class, Reason})
    end,
    call(Other, PaceMs).

%% @private
-spec echo(Term) -> Term.
echo(Term) -> Term.

%% ---- streams ----

stream(Other, PaceMs) ->
    stream(Other, PaceMs, spawn_link(Other, ?MODULE, sink, [self()]), 1, 0).

stream(Other, PaceMs, Sink, Next, Confirmed) when Next - Confirmed > ?WINDOW ->
    receive
        {Sink, Number} -> stream(Other, PaceMs, Sink, Next, Number);
        {'EXIT', Sink, Reason} -> forget(Sink), sink_ended(Other, PaceMs, Reason)
    after ?LOST_MS ->
            wrong({lost, Other, Next, Confirmed}),
            exit(lost)
    end;
stream(Other, PaceMs, Sink, Next, Confirmed) ->
    Bytes = bytes(),
    Sink ! {self(), Next, erlang:crc32(Bytes), Bytes},
    count(messages),
    count(bytes, byte_size(Bytes)),
    rest(PaceMs),
    stream(Other, PaceMs, Sink, Next + 1, Confirmed).

%% Discards confirmations that the sink sent before it exited.
forget(Sink) ->
    receive {Sink, _} -> forget(Sink) after 0 -> ok end.

sink_ended(Other, PaceMs, noconnection) ->
    rest_after_loss(),
    stream(Other, PaceMs);
sink_ended(Other, PaceMs, Reason) ->
    wrong({stream_ended, Other, Reason}),
    stream(Other, PaceMs).

%% @private Confirms every message, in order. When a connection is lost, the sink is terminated before it can receive a message over the next
%% connection. Messages that are still in its mailbox must not make it reconnect, because the connection was cut on purpose.
-spec sink(pid()) -> no_return().
sink(Stream) -> sink(Stream, 1).

%% This receive needs no timeout, because the sink exits when the stream ends or the connection is lost.
sink(Stream, Expected) ->
    receive
        {Stream, Expected, Crc, Bytes} ->
            case erlang:crc32(Bytes) of
                Crc -> ok;
                _ -> exit({damaged, Expected})
            end,
            _ = erlang:send(Stream, {self(), Expected}, [noconnect]),
            sink(Stream, Expected + 1);
        {Stream, Number, _, _} ->
            exit({disorder, Expected, Number})
    end.

%% ---- links and monitors ----

links(Other, PaceMs) ->
    Reason = {because, rand:uniform(1000000)},
    Linked = spawn_link(Other, ?MODULE, end_with, [Reason]),
    {Monitored, Monitor} = spawn_monitor(Other, ?MODULE, end_with, [Reason]),
    Ends = [receive {'EXIT', Linked, Why} -> Why after ?LOST_MS -> silence end,
            receive {'DOWN', Monitor, process, Monitored, Why} -> Why after ?LOST_MS -> silence end],
    case [Why || Why <- Ends, Why =/= Reason] of
        [] -> count(exits, 2), rest(PaceMs);
        Odd ->
            [wrong({wrong_end, Other, Reason, Why}) || Why <- Odd, Why =/= noconnection],
            rest_after_loss()
    end,
    links(Other, PaceMs).

%% @private
-spec end_with(term()) -> no_return().
end_with(Reason) -> exit(Reason).

%% ---- processes that come and go ----

crowd(Other, PaceMs) ->
    Crowd = [spawn_link(fun() -> member(Other) end) || _ <- lists:seq(1, ?CROWD)],
    %% This receive needs no timeout, because each process exits when its call times out, if not earlier.
    Ends = [receive {'EXIT', Member, Reason} -> Reason end || Member <- Crowd],
    [wrong({member_ended, Other, Reason}) || Reason <- Ends, Reason =/= normal],
    count(processes, ?CROWD),
    rest(?CROWD * PaceMs),
    crowd(Other, PaceMs).

member(Other) ->
    Table = ets:new(member, []),
    true = ets:insert(Table, {key, self()}),
    try erpc:call(Other, ?MODULE, echo, [self()], ?LOST_MS) of
        Self when Self =:= self() -> ok;
        Odd -> wrong({wrong_answer, Other, Odd})
    catch
        error:{erpc, noconnection} -> ok
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

sizes_cover_all_magnitudes_test() ->
    keep_state(persistent_term:get(?KEY, none)),
    Sizes = [byte_size(bytes()) || _ <- lists:seq(1, 2000)],
    ?assert(lists:min(Sizes) >= ?SMALLEST),
    ?assert(lists:max(Sizes) =< ?LARGEST),
    Small = length([Size || Size <- Sizes, Size < 8192]),
    ?assert(Small > 800 andalso Small < 1200).

%% The checks detect a message out of order, a damaged message and a wrong exit reason.
the_sink_sees_what_is_wrong_test_() ->
    [?_assertEqual(Want, end_of_sink(Messages))
     || {Want, Messages} <- [{{disorder, 2, 3}, [{1, <<"a">>}, {3, <<"c">>}]},
                             {{disorder, 2, 1}, [{1, <<"a">>}, {1, <<"a">>}]},
                             {{damaged, 1}, [{1, damaged}]}]].

end_of_sink(Messages) ->
    {Sink, Monitor} = spawn_opt(?MODULE, sink, [self()], [monitor]),
    [Sink ! message(Number, Bytes) || {Number, Bytes} <- Messages],
    receive {'DOWN', Monitor, process, Sink, Reason} -> forget(Sink), Reason after 5000 -> timeout end.

message(Number, damaged) -> {self(), Number, 1, <<"x">>};
message(Number, Bytes) -> {self(), Number, erlang:crc32(Bytes), Bytes}.

errors_are_counted_and_the_first_kept_test() ->
    keep_state(persistent_term:get(?KEY, none)),
    #{errors := Before} = counts(),
    [wrong({made_up, N}) || N <- lists:seq(1, 20)],
    ?assertMatch(#{errors := Now} when Now =:= Before + 20, counts()),
    ?assert(length(errors()) =< ?ERRORS_KEPT).
-endif.
