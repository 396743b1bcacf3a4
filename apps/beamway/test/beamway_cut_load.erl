%% SPDX-License-Identifier: Apache-2.0
%% @doc The load of beamway_cut_SUITE between two nodes: small and large numbered messages, calls, monitors, links and exits.
%%
%% Each sender numbers everything that it sends, and the receiver checks each number. It is an error if a message is lost, duplicated or late, if a
%% call fails, or if a monitor reports that the node is gone.
-module(beamway_cut_load).

-export([receive_all/0, send_all/1, stop/0, results/0, waited/2, numbers/1, last_number/2]).
-export([own/2, echo/0, end_with/1]).
-export_type([results/0]).

-type results() :: #{checked := non_neg_integer(), errors := [term()]}.
%% `checked' counts the messages, calls and exits that were checked here.

-define(TABLE, ?MODULE).
-define(SMALL_SENDERS, 4).
-define(SMALL_RUN, 50).
%% Every tenth large message is ten times as large.
-define(LARGE_BYTES, 1000000).
-define(CALL_MS, 60000).

%% @doc Starts the receiver on this node; it runs until the node stops.
-spec receive_all() -> ok.
receive_all() ->
    start(fun() ->
                  ?TABLE = ets:new(?TABLE, [named_table, public]),
                  ets:insert(?TABLE, [{checked, 0}, {runs, true}]),
                  true = register(beamway_cut_receiver, spawn_link(fun() -> collect(#{}) end)),
                  true = register(beamway_cut_echo, spawn_link(?MODULE, echo, []))
          end).

%% @doc Starts the senders to the other node.
-spec send_all(node()) -> ok.
send_all(Node) ->
    start(fun() ->
                  [spawn_link(fun() -> cast(Node, {small, N}, 1) end) || N <- lists:seq(1, ?SMALL_SENDERS)],
                  spawn_link(fun() -> cast_large(Node, 1) end),
                  spawn_link(fun() -> call(Node, 1) end),
                  spawn_link(fun() -> exits(Node, 1) end),
                  spawn_link(fun() -> watch(Node) end)
          end).

%% Runs the fun in a process that owns everything it starts.
start(Fun) ->
    {Pid, Monitor} = spawn_monitor(?MODULE, own, [self(), Fun]),
    receive
        {Pid, started} -> demonitor(Monitor, [flush]), ok;
        {'DOWN', Monitor, process, Pid, Reason} -> error(Reason)
    end.

%% @private
-spec own(pid(), fun(() -> term())) -> no_return().
own(Parent, Fun) ->
    _ = Fun(),
    Parent ! {self(), started},
    receive after infinity -> exit(unreachable) end.

%% @doc Stops the senders.
-spec stop() -> ok.
stop() ->
    true = ets:insert(?TABLE, {runs, false}),
    ok.

%% @doc Returns what this node has checked so far.
-spec results() -> results().
results() ->
    #{checked => ets:lookup_element(?TABLE, checked, 2),
      errors => [Error || {{error, _}, Error} <- ets:tab2list(?TABLE)]}.

%% @doc Returns the longest time for which a call waited after the moment `BackUs', and clears the recorded calls. Returns false until a call that
%% began after `UntilUs' has finished. All times are microseconds of system time, so that they can be compared with the times of another process on
%% the same machine.
-spec waited(BackUs :: integer(), UntilUs :: integer()) -> Us :: non_neg_integer() | false.
waited(BackUs, UntilUs) ->
    Calls = ets:select(?TABLE, [{{{call, '$1'}, '$2'}, [], [{{'$1', '$2'}}]}]),
    case lists:any(fun({BeganUs, _}) -> BeganUs > UntilUs end, Calls) of
        true ->
            [true = ets:delete(?TABLE, {call, BeganUs}) || {BeganUs, _} <- Calls],
            lists:max([0 | [EndedUs - max(BeganUs, BackUs) || {BeganUs, EndedUs} <- Calls]]);
        false ->
            false
    end.

%% @doc Remembers the last number that was received; the process fails if it receives any number but the next one.
-spec numbers(non_neg_integer()) -> no_return().
numbers(Last) ->
    receive
        {number, Number} when Number =:= Last + 1 -> numbers(Number);
        {last, From} -> From ! {last, Last}, numbers(Last)
    end.

%% @doc Returns the last number that this process of the peer has received.
-spec last_number(pid(), Numbers :: pid()) -> non_neg_integer() | timeout.
last_number(Peer, Numbers) ->
    beamway_peer:run(Peer, fun() -> Numbers ! {last, self()}, receive {last, Number} -> Number after 5000 -> timeout end end).

runs() -> ets:lookup_element(?TABLE, runs, 2).

checked(N) -> ets:update_counter(?TABLE, checked, N).

failed(Error) -> ets:insert(?TABLE, {{error, make_ref()}, Error}).

%% ---- messages ----

%% A sender waits for the receiver's acknowledgement from time to time, so that the number of messages in flight is bounded.
cast(Node, Key, From) ->
    To = From + ?SMALL_RUN,
    lists:foreach(fun(Number) -> {beamway_cut_receiver, Node} ! {Key, Number, Number * 7} end, lists:seq(From, To - 1)),
    next(Node, fun() -> cast(Node, Key, To) end, Key, To, To rem 500 < ?SMALL_RUN).

cast_large(Node, Number) ->
    {beamway_cut_receiver, Node} ! {large, Number, large(Number)},
    next(Node, fun() -> cast_large(Node, Number + 1) end, large, Number + 1, true).

next(Node, Continue, Key, To, Waits) ->
    _ = Waits andalso begin
                          {beamway_cut_receiver, Node} ! {reached, self(), Key},
                          receive {reached, Key, To} -> ok; {reached, Key, Other} -> failed({reached, Key, Other, To}) end
                      end,
    receive after 5 -> ok end,
    case runs() of
        true -> Continue();
        false -> ok
    end.

collect(Next) ->
    receive
        {reached, From, Key} ->
            From ! {reached, Key, maps:get(Key, Next, 1)},
            collect(Next);
        {Key, Number, Value} ->
            Wanted = maps:get(Key, Next, 1),
            _ = Number =:= Wanted andalso is_right(Key, Number, Value) orelse failed({got, Key, Number, wanted, Wanted}),
            checked(1),
            collect(Next#{Key => Number + 1})
    end.

is_right(large, Number, Value) -> Value =:= large(Number);
is_right(_Key, Number, Value) -> Value =:= Number * 7.

large(Number) -> binary:copy(<<Number:32>>, case Number rem 10 of 0 -> 10; _ -> 1 end * ?LARGE_BYTES div 4).

%% ---- calls, exits, monitors ----

%% @private
-spec echo() -> no_return().
echo() ->
    receive {From, Reference, Term} -> From ! {Reference, Term} end,
    echo().

call(Node, Number) ->
    Reference = make_ref(),
    BeganUs = os:system_time(microsecond),
    {beamway_cut_echo, Node} ! {self(), Reference, Number},
    receive
        {Reference, Number} -> checked(1);
        {Reference, Other} -> failed({call, Number, Other})
    after ?CALL_MS ->
        failed({call, Number, timeout})
    end,
    true = ets:insert(?TABLE, {{call, BeganUs}, os:system_time(microsecond)}),
    runs() andalso call(Node, Number + 1).

%% @private
-spec end_with(pos_integer()) -> no_return().
end_with(Number) ->
    receive go -> exit({number, Number}) end.

%% A process on the other node exits with a reason, which its link and its monitor must each report once.
exits(Node, Number) ->
    process_flag(trap_exit, true),
    {Pid, Monitor} = spawn_opt(Node, ?MODULE, end_with, [Number], [link, monitor]),
    Pid ! go,
    receive {'DOWN', Monitor, process, Pid, {number, Number}} -> ok; {'DOWN', Monitor, _, _, Other} -> failed({down, Number, Other}) end,
    receive {'EXIT', Pid, {number, Number}} -> ok; {'EXIT', Pid, Other2} -> failed({exit, Number, Other2}) end,
    receive {'EXIT', Pid, _} -> failed({twice, Number}); {'DOWN', Monitor, _, _, _} -> failed({twice, Number}) after 0 -> ok end,
    checked(1),
    receive after 5 -> ok end,
    runs() andalso exits(Node, Number + 1).

%% The other node and its processes stay alive throughout.
watch(Node) ->
    Monitor = monitor(process, {beamway_cut_echo, Node}),
    ok = net_kernel:monitor_nodes(true, [nodedown_reason]),
    receive
        {'DOWN', Monitor, process, _, Reason} -> failed({down, beamway_cut_echo, Reason});
        {nodedown, Node, Why} -> failed({nodedown, Why})
    end.
