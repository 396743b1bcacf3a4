%% SPDX-License-Identifier: Apache-2.0
%% @doc The load of beamway_upgrade_SUITE on every node of its cluster: a server that answers, and for each
%% other node two callers that never stop, one through gen_server:call/3, one through erpc:call/5.
%%
%% A caller numbers its calls. The server rejects a number that is not higher than the caller's last one, so a call that arrives twice or late is
%% detected. A call that fails is recorded with its time, and the suite decides whether it was allowed to fail.
-module(beamway_upgrade_load).
-behaviour(gen_server).

-export([serve/0, call_all/1, calls/0, failures/0]).
%% Called from the other nodes.
-export([ask/2, own/2]).
-export([init/1, handle_call/3, handle_cast/2]).

-export_type([failure/0]).

-type failure() :: #{from := node(), to := node(), way := gen_server | erpc, began := integer(), ended := integer(),
                     reason := term()}.
%% `began', `ended': system time in milliseconds.

-define(TABLE, ?MODULE).
-define(CALL_MS, 10000).
-define(PAUSE_MS, 2).
-define(PAUSE_AFTER_FAILURE_MS, 50).

%% @doc Starts the server; it runs until this node stops.
-spec serve() -> ok.
serve() ->
    start(fun() ->
                  ?TABLE = ets:new(?TABLE, [named_table, public, ordered_set]),
                  {ok, _} = gen_server:start_link({local, ?MODULE}, ?MODULE, [], [])
          end).

%% @doc Starts the callers to these nodes; they run until this node stops.
-spec call_all([node()]) -> ok.
call_all(Others) ->
    start(fun() ->
                  [begin
                       ets:insert(?TABLE, {{calls, To, Way}, 0}),
                       spawn_link(fun() -> call_on(Way, To, 1) end)
                   end || To <- Others, Way <- [gen_server, erpc]]
          end).

%% Runs the fun in a process that owns everything it starts.
start(Fun) ->
    Parent = self(),
    {Pid, Monitor} = spawn_monitor(?MODULE, own, [Parent, Fun]),
    receive
        {Pid, started} -> _ = demonitor(Monitor, [flush]), ok;
        {'DOWN', Monitor, process, Pid, Reason} -> error(Reason)
    end.

%% @private Waits forever, because what the fun started must last as long as the node.
-spec own(pid(), fun(() -> term())) -> no_return().
own(Parent, Fun) ->
    _ = Fun(),
    Parent ! {self(), started},
    receive after infinity -> exit(unreachable) end.

%% @doc Returns the number of calls that have succeeded, by node and kind of call.
-spec calls() -> [{{node(), gen_server | erpc}, non_neg_integer()}].
calls() ->
    [{{To, Way}, Count} || [To, Way, Count] <- ets:match(?TABLE, {{calls, '$1', '$2'}, '$3'})].

%% @doc Returns the failed calls of this node.
-spec failures() -> [failure()].
failures() ->
    [Failure || [Failure] <- ets:match(?TABLE, {{failure, '_'}, '$1'})].

call_on(Way, To, Number) ->
    Began = os:system_time(millisecond),
    Payload = payload(Number),
    case call(Way, To, {Number, self(), Payload}) of
        {ok, {answer, To, Number, Payload}} ->
            ets:update_counter(?TABLE, {calls, To, Way}, 1),
            pause(?PAUSE_MS);
        Other ->
            ets:insert(?TABLE, {{failure, erlang:unique_integer()},
                                #{from => node(), to => To, way => Way, began => Began,
                                  ended => os:system_time(millisecond), reason => shortened(Other)}}),
            pause(?PAUSE_AFTER_FAILURE_MS)
    end,
    call_on(Way, To, Number + 1).

pause(Ms) ->
    receive after Ms -> ok end.

%% Most payloads are small, and a few are larger than a fragment of the distribution.
payload(Number) when Number rem 50 =:= 0 -> binary:copy(<<Number:32>>, 50000);
payload(Number) -> binary:copy(<<Number:32>>, 1 + Number rem 100).

shortened(Term) ->
    lists:flatten(io_lib:format("~0tP", [Term, 12])).

call(gen_server, To, Request) ->
    try {ok, gen_server:call({?MODULE, To}, Request, ?CALL_MS)} catch exit:Reason -> {error, Reason} end;
call(erpc, To, {Number, Caller, Payload}) ->
    try {ok, erpc:call(To, ?MODULE, ask, [{Number, Caller}, Payload], ?CALL_MS)} catch _:Reason -> {error, Reason} end.

%% @private Called through erpc; calls the same server in a different way.
-spec ask({pos_integer(), pid()}, binary()) -> term().
ask({Number, Caller}, Payload) ->
    gen_server:call(?MODULE, {Number, Caller, Payload}, ?CALL_MS).

%% ---- server ----

%% @private
-spec init([]) -> {ok, #{pid() => pos_integer()}}.
init([]) ->
    {ok, #{}}.

%% @private
-spec handle_call({pos_integer(), pid(), binary()}, gen_server:from(), Last) -> {reply, term(), Last}
              when Last :: #{pid() => pos_integer()}.
handle_call({Number, Caller, Payload}, _From, Last) ->
    case Last of
        #{Caller := Known} when Known >= Number -> {reply, {not_above, Known}, Last};
        _ -> {reply, {answer, node(), Number, Payload}, Last#{Caller => Number}}
    end.

%% @private
-spec handle_cast(term(), Last) -> {noreply, Last}.
handle_cast(_Request, Last) ->
    {noreply, Last}.
