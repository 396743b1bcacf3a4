%% SPDX-License-Identifier: Apache-2.0
%% @doc `beamway drain': asks a running node to move its processes to other nodes, and shows the progress.
%%
%% Called by {@link beamway_cli}. The application `placement' must run on the node but need not be installed here.
-module(beamway_cli_drain).

-export([run/2, is_empty/1, to_json/1, to_text/1]).

-export_type([options/0, answer/0]).

-type options() :: #{node := string(), cookie_file => file:filename(), timeout => integer(), at_once => integer()}.
-type answer() :: {Result :: map(), Text :: unicode:chardata()}.

-define(CALL_MS, 5000).
%% This is longer than the node itself needs after its timeout.
-define(SLACK_MS, 30000).

%% @doc Drains the node. `Show' is called with each line of progress. `usage' means that the arguments were invalid, and `error' that the node could
%% not be drained.
-spec run(options(), fun((unicode:chardata()) -> term())) -> {ok, answer()} | {usage | error, Text :: unicode:chardata()}.
run(#{timeout := Seconds}, _) when Seconds < 1; Seconds > 86400 -> {usage, io_lib:format("--timeout ~b: expected seconds from 1 to 86400", [Seconds])};
run(#{at_once := Count}, _) when Count < 1; Count > 10000 -> {usage, io_lib:format("--at-once ~b: expected a number from 1 to 10000", [Count])};
run(Options, Show) -> beamway_cli_ask:on_node(Options, fun(Node) -> drained(Node, Options, Show) end).

drained(Node, #{timeout := Seconds, at_once := AtOnce}, Show) ->
    Arguments = [#{timeout => Seconds * 1000, at_once => AtOnce, tell => self()}],
    Request = erpc:send_request(Node, placement_drain, run, Arguments),
    End = erlang:monotonic_time(millisecond) + Seconds * 1000 + ?SLACK_MS,
    waiting(Node, Request, End, Show, none).

waiting(Node, Request, End, Show, Shown) ->
    receive
        {placement_drain, Node, Shown} -> waiting(Node, Request, End, Show, Shown);
        {placement_drain, Node, #{total := Total, moved := Moved, left := Left} = Progress} ->
            Show(io_lib:format("~ts: ~b of ~b moved, ~b not", [Node, Moved, Total, Left])),
            waiting(Node, Request, End, Show, Progress);
        Message ->
            try erpc:check_response(Message, Request) of
                {response, Response} -> answered(Node, Response);
                no_response -> waiting(Node, Request, End, Show, Shown)
            catch
                error:{exception, undef, _} ->
                    {error, io_lib:format("node ~ts has no placement that can drain: its code path holds no module placement_drain (erl -pa apps/placement/ebin)", [Node])};
                error:{exception, {noproc, _}, _} -> not_running(Node);
                error:{exception, badarg, _} -> not_running(Node);
                error:{erpc, noconnection} -> {error, [io_lib:format("node ~ts went down while it was drained", [Node]), so_far(Shown)]};
                _:Reason -> {error, io_lib:format("node ~ts answered with an error: ~0tP", [Node, Reason, 15])}
            end
    after max(0, End - erlang:monotonic_time(millisecond)) -> {error, [io_lib:format("node ~ts did not answer in time", [Node]), so_far(Shown)]}
    end.

not_running(Node) -> {error, io_lib:format("placement does not run on node ~ts; there, call application:ensure_all_started(placement)", [Node])}.

so_far(none) -> [];
so_far(#{total := Total, moved := Moved}) -> io_lib:format("; ~b of ~b processes had moved", [Moved, Total]).

answered(_, {ok, Result}) when is_map(Result) ->
    #{node := Node} = Result,
    try erpc:call(Node, placement_drain, to_text, [Result], ?CALL_MS) of
        Text -> {ok, {texts(Node, Result), Text}}
    catch
        _:_ -> {ok, {Result, io_lib:format("~0tp~n", [Result])}}
    end;
answered(Node, {error, already_draining}) -> {error, io_lib:format("node ~ts is being drained already", [Node])};
answered(Node, {error, Reason}) -> {error, io_lib:format("node ~ts refused: ~0tP", [Node, Reason, 15])}.

%% Returns names and reasons as text, in the form in which the node itself reports them.
texts(Node, Result) ->
    Words = fun(Module, Function, Term) -> unicode:characters_to_binary(erpc:call(Node, Module, Function, [Term], ?CALL_MS)) end,
    maps:map(fun(Key, Left) when Key =:= stayed; Key =:= lost; Key =:= restarted ->
                     [#{process => Words(placement_drain, process_text, Process), pid => list_to_binary(pid_to_list(Pid)), reason => Words(placement_move, reason_text, Reason)}
                      || #{process := Process, pid := Pid, reason := Reason} <- Left];
                (_, Value) -> Value
             end, Result).

%% @doc Returns whether every process was moved, that is, none stayed or was lost.
-spec is_empty(answer()) -> boolean().
is_empty({#{stayed := Stayed, lost := Lost}, _}) -> Stayed =:= [] andalso Lost =:= [].

%% @doc Returns the answer as a term for jiffy.
-spec to_json(answer()) -> term().
to_json({Result, _}) -> Result.

%% @doc Returns the answer as text.
-spec to_text(answer()) -> unicode:chardata().
to_text({_, Text}) -> Text.
