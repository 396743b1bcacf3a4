%% SPDX-License-Identifier: Apache-2.0
%% @doc Samples the messages between processes: in short windows of time, traces the messages that some processes send,
%% and counts the bytes per pair of processes. Called by {@link placement:observe/2}. Tracing is on only during a call.
%%
%% On each node one process traces for a fifth of the time: it switches tracing on for one window and off for the next
%% four. It ends a window early when it has received a certain number of messages. The size of a message is that of its
%% external format, and the sums are extrapolated to the whole time. When the caller's node goes down, or at the end of
%% the sampling time, the tracer exits, which also ends tracing.
-module(placement_observe).

-export([observe/2, busiest/2]).
-export([local/2, local_busiest/1]).

-export_type([seen/0]).

-type seen() :: #{unseen := [{pid(), Reason :: term()}], messages := non_neg_integer()}.
%% `unseen': the processes that could not be traced because their node does not answer, they have exited, or another
%% tracer is tracing them. `messages': the number of messages that were counted.

-define(WINDOW_MS, 20).
-define(PAUSE_MS, 80).
-define(MOST, 5000).
-define(GRACE_MS, 5000).

%% @doc Returns the bytes that these processes sent to each other in `Ms' milliseconds, as a graph for
%% {@link placement:map/3} and {@link placement:advise/2}.
-spec observe([pid()], Ms :: pos_integer()) -> {ok, [{pid(), pid(), Bytes :: pos_integer()}], seen()} | {error, {bad_pids | bad_ms, term()}}.
observe(Pids, Ms) when is_integer(Ms), Ms >= 1, Ms =< 3600000, is_list(Pids), length(Pids) >= 0 ->
    case [Other || Other <- Pids, not is_pid(Other)] of
        [] ->
            ByNode = maps:groups_from_list(fun erlang:node/1, lists:usort(Pids)),
            Asked = [{Own, erpc:send_request(Node, ?MODULE, local, [Own, Ms])} || {Node, Own} <- maps:to_list(ByNode)],
            End = erlang:monotonic_time(millisecond) + Ms + ?GRACE_MS,
            Answers = [answer(Own, Request, max(0, End - erlang:monotonic_time(millisecond))) || {Own, Request} <- Asked],
            {ok, graph(Pids, Answers),
             #{unseen => lists:append([Unseen || {_, _, Unseen, _} <- Answers]), messages => lists:sum([Count || {_, _, _, Count} <- Answers])}};
        [Wrong | _] -> {error, {bad_pids, Wrong}}
    end;
observe(Pids, Ms) when is_list(Pids) -> {error, {bad_ms, Ms}};
observe(Pids, _) -> {error, {bad_pids, Pids}}.

%% @doc Returns up to `Count' processes of each node: those with the most reductions so far, except for the processes of
%% OTP and of this application. Nodes that do not answer are left out.
-spec busiest([node()], Count :: pos_integer()) -> [pid()].
busiest(Nodes, Count) -> lists:append([Pids || {ok, Pids} <- erpc:multicall(Nodes, ?MODULE, local_busiest, [Count], ?GRACE_MS)]).

%% @private
-spec local_busiest(pos_integer()) -> [pid()].
local_busiest(Count) ->
    Busy = lists:reverse(lists:sort([{Reductions, Pid} || Pid <- processes(), {reductions, Reductions} <- [process_info(Pid, reductions)]])),
    first(Count, [Pid || {_, Pid} <- Busy]).

%% Stops as soon as there are enough processes, because it takes time to determine the application of a process.
first(0, _) -> [];
first(_, []) -> [];
first(Count, [Pid | Rest]) ->
    case application:get_application(Pid) of
        {ok, Application} when Application =:= kernel; Application =:= stdlib; Application =:= placement; Application =:= beamway -> first(Count, Rest);
        _ when Pid =:= self() -> first(Count, Rest);
        _ -> [Pid | first(Count - 1, Rest)]
    end.

answer(Own, Request, Ms) ->
    try erpc:receive_response(Request, Ms)
    catch
        error:{erpc, Reason} -> {#{}, [], [{Pid, Reason} || Pid <- Own], 0};
        Class:Reason -> {#{}, [], [{Pid, {Class, Reason}} || Pid <- Own], 0}
    end.

%% Messages to a registered name count for the process with that name on its node. Only messages between observed processes
%% count.
graph(Pids, Answers) ->
    Names = maps:from_list(lists:append([Named || {_, Named, _, _} <- Answers])),
    Wanted = maps:from_keys(Pids, true),
    Sums = lists:foldl(fun({{From, To}, Bytes}, Acc) ->
                               Pid = maps:get(To, Names, To),
                               case is_map_key(Pid, Wanted) andalso Pid =/= From of
                                   true -> maps:update_with({From, Pid}, fun(Sum) -> Sum + Bytes end, Bytes, Acc);
                                   false -> Acc
                               end
                       end, #{}, lists:append([maps:to_list(Sent) || {Sent, _, _, _} <- Answers])),
    [{From, To, Bytes} || {{From, To}, Bytes} <- lists:sort(maps:to_list(Sums))].

-dialyzer({nowarn_function, local/2}).
%% @private Runs in a process started by `erpc'. The tracer and this process monitor each other.
-spec local([pid()], Ms :: pos_integer()) -> {#{{pid(), term()} => pos_integer()}, [{{atom(), node()}, pid()}], [{pid(), term()}], non_neg_integer()}.
local(Pids, Ms) ->
    Named = [{{Name, node()}, Pid} || Pid <- Pids, {registered_name, Name} <- [process_info(Pid, registered_name)], is_atom(Name)],
    Caller = self(),
    {Tracer, Monitor} = spawn_opt(fun() -> tracer(Pids, Ms, Caller) end, [monitor, {priority, high}]),
    receive
        {'DOWN', Monitor, process, Tracer, {traced, Sent, Unseen, Count}} -> {Sent, Named, Unseen, Count};
        {'DOWN', Monitor, process, Tracer, Reason} -> {#{}, Named, [{Pid, Reason} || Pid <- Pids], 0}
    after Ms + ?GRACE_MS ->
        exit(Tracer, kill),
        {#{}, Named, [{Pid, timeout} || Pid <- Pids], 0}
    end.

%% Dialyzer would warn that the process's fun never returns, because its result is the exit reason.
-dialyzer({nowarn_function, tracer/3}).
tracer(Pids, Ms, Caller) ->
    Monitor = monitor(process, Caller),
    Start = erlang:monotonic_time(microsecond),
    {Sent, Unseen, Count, Traced} = windows(Pids, Monitor, Start + Ms * 1000, {#{}, #{}, 0, 0}),
    Whole = erlang:monotonic_time(microsecond) - Start,
    exit({traced, maps:map(fun(_, Bytes) -> max(1, round(Bytes * Whole / max(1, Traced))) end, Sent), maps:to_list(Unseen), Count}).

windows(Pids, Monitor, End, {Sent, Unseen, Count, Traced} = Seen) ->
    case erlang:monotonic_time(microsecond) >= End of
        true -> Seen;
        false ->
            Failed = [{Pid, Reason} || Pid <- Pids, Reason <- [switched_on(Pid)], Reason =/= ok],
            Begun = erlang:monotonic_time(microsecond),
            {NewSent, Number} = window(Begun + ?WINDOW_MS * 1000, Monitor, Sent, 0),
            Us = erlang:monotonic_time(microsecond) - Begun,
            ok = switched_off(Pids),
            ok = drained(),
            receive {'DOWN', Monitor, process, _, _} -> exit(normal) after ?PAUSE_MS -> ok end,
            windows(Pids, Monitor, End, {NewSent, maps:merge(Unseen, maps:from_list(Failed)), Count + Number, Traced + Us})
    end.

switched_on(Pid) ->
    try erlang:trace(Pid, true, [send]) of
        1 -> ok;
        0 -> noproc
    catch
        error:badarg ->
            case is_process_alive(Pid) of
                true -> traced_by_another;
                false -> noproc
            end
    end.

switched_off(Pids) -> lists:foreach(fun(Pid) -> try erlang:trace(Pid, false, [send]) catch error:badarg -> 0 end end, Pids).

window(_, _, Sent, Number) when Number >= ?MOST -> {Sent, Number};
window(End, Monitor, Sent, Number) ->
    receive
        {trace, From, send, Message, To} ->
            Bytes = erlang:external_size(Message),
            window(End, Monitor, maps:update_with({From, full_name(To)}, fun(Sum) -> Sum + Bytes end, Bytes, Sent), Number + 1);
        {trace, _, send_to_non_existing_process, _, _} -> window(End, Monitor, Sent, Number);
        {'DOWN', Monitor, process, _, _} -> exit(normal)
    after max(0, (End - erlang:monotonic_time(microsecond) + 999) div 1000) -> {Sent, Number}
    end.

full_name(Name) when is_atom(Name) -> {Name, node()};
full_name(To) -> To.

%% Collects the messages that were sent before tracing was switched off.
drained() ->
    receive Trace when element(1, Trace) =:= trace -> drained()
    after 0 -> ok
    end.
