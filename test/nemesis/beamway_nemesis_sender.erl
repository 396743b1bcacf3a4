%% SPDX-License-Identifier: Apache-2.0
%% @doc The processes that send messages and make calls while faults affect the nodes. There is one for each other node and kind of traffic.
%%
%% {@link beamway_nemesis_hub} starts the senders and is linked to them. Every message is numbered as {@link beamway_nemesis_oracle} explains,
%% and its data is derived from its number, so the receiver can check it. A sender has at most a window of messages in flight, of which the
%% receiver acknowledges some. If no acknowledgement arrives for a second, the sender continues regardless, because messages may be lost with
%% their connection.
%%
%% After `finish' a sender repeats a final message until one is acknowledged, and then reports to the hub, so a missing end of a sequence cannot
%% go unnoticed.
-module(beamway_nemesis_sender).

-export([start_link/2, data/2, prepare_data/0]).
-export([init/2, speak/2]).

-type settings() :: #{kind := small | mixed | flood | call | words, hub := pid(), node := node(),
                      to := atom(), life := pos_integer(), pace_ms := pos_integer(),
                      counters := counters:counters_ref()}.
%% `to' is the registered name of the receiver. The `counters' of a caller are: answered, node gone, late, wrong.

-define(WINDOW, 64).
-define(NO_WORD_MS, 1000).
-define(CALL_MS, 60000).
-define(LARGEST, 3000000).
-define(SPREAD, 65521).

%% @doc Starts a sender, which begins to send immediately.
-spec start_link(Kind :: atom(), map()) -> pid().
start_link(Kind, Settings) ->
    spawn_link(?MODULE, init, [Kind, Settings#{hub => self()}]).

%% ---- data ----

%% @doc Creates the bytes from which {@link data/2} takes its data. Called once per node.
-spec prepare_data() -> ok.
prepare_data() ->
    {Bytes, _} = rand:bytes_s(?LARGEST + ?SPREAD, rand:seed_s(exsss, 4711)),
    persistent_term:put(?MODULE, Bytes).

%% @doc Returns the data of a message. Consecutive messages have different data.
-spec data(N :: pos_integer(), Size :: non_neg_integer()) -> binary().
data(N, Size) ->
    binary:part(persistent_term:get(?MODULE), (N * 7919) rem ?SPREAD, Size).

random_size(small) -> rand:uniform(200);
random_size(_) ->
    case rand:uniform(2000) of
        1 -> ?LARGEST;
        R when R =< 20 -> 100000;
        R when R =< 250 -> 4096;
        _ -> rand:uniform(200)
    end.

%% ---- the loop ----

%% @private
-spec init(Kind :: atom(), settings()) -> no_return().
init(Kind, #{node := Node} = Settings) ->
    ok = net_kernel:monitor_nodes(true, [nodedown_reason]),
    Epoch = case lists:member(Node, nodes()) of true -> 1; false -> 0 end,
    loop(Kind, Settings#{epoch => Epoch, first => 1, n => 0, open => 0, left => infinity, task => start(Kind)}).

start(flood) -> idle;
start(_) -> talk.

loop(Kind, State) ->
    case hear(0, State) of
        #{task := idle} = Heard -> loop(Kind, hear(infinity, Heard));
        #{task := talk} = Heard -> loop(Kind, talk(Kind, Heard));
        #{task := flood} = Heard -> loop(Kind, flood(Heard));
        #{task := finish} = Heard -> loop(Kind, finish(Kind, Heard))
    end.

%% Handles the messages that have arrived. If Ms is not 0, it waits that long for the first one.
hear(Ms, #{node := Node, n := N} = State) ->
    receive
        {nodeup, Node, _} ->
            #{epoch := Epoch} = State,
            hear(0, State#{epoch := Epoch + 1, first := N + 1, open := 0});
        {nodedown, Node, _} -> hear(0, State#{open := 0});
        {ack, Acked} -> hear(0, State#{open := max(0, N - Acked)});
        {flood, Count, Size} -> hear(0, State#{task := flood, left := {Count, Size}});
        {last_heard, _} -> finished(State);
        finish -> hear(0, State#{task := finish});
        _ -> hear(0, State)
    after Ms ->
        State
    end.

finished(#{hub := Hub} = State) ->
    Hub ! {finished, self()},
    State#{task := idle}.

talk(call, State) -> pause(call(State));
talk(words, State) -> pause(say_words(State));
talk(_, #{open := Open} = State) when Open >= ?WINDOW ->
    %% Nothing has arrived, so messages in flight may be lost.
    case hear(?NO_WORD_MS, State) of
        #{open := Open} = Same -> Same#{open := 0};
        Heard -> Heard
    end;
talk(Kind, #{n := N} = State) ->
    Sent = say(more, random_size(Kind), State),
    case N rem ?WINDOW of
        0 -> pause(Sent);
        _ -> Sent
    end.

pause(#{pace_ms := Ms} = State) ->
    hear(rand:uniform(2 * Ms), State).

flood(#{left := {0, _}} = State) ->
    State#{task := idle, left := infinity};
flood(#{left := {Count, Size}} = State) ->
    say(more, Size, State#{left := {Count - 1, Size}}).

finish(Kind, State) when Kind =:= call; Kind =:= words -> finished(State);
finish(_, State) -> hear(?NO_WORD_MS, say(last, 10, State)).

say(Which, Size, #{to := To, node := Node, n := N, open := Open} = State) ->
    _ = erlang:send({To, Node}, message(Which, N + 1, Size, State)),
    State#{n := N + 1, open := Open + 1}.

message(Which, N, Size, #{life := Life, epoch := Epoch, first := First}) ->
    {said, self(), {Life, Epoch, First, N}, Which, data(N, Size)}.

%% ---- calls ----

call(#{to := To, node := Node, n := Before, counters := Counters} = State) ->
    N = Before + 1,
    ok = counters:add(Counters, call(To, Node, message(more, N, random_size(mixed), State)), 1),
    State#{n := N}.

call(To, Node, {said, _, {_, _, _, N}, _, _} = Message) ->
    try gen_server:call({To, Node}, Message, ?CALL_MS) of
        {heard, N} -> 1;
        _ -> 4
    catch
        exit:{timeout, _} -> 3;
        exit:_ -> 2
    end.

%% ---- last words ----

%% Starts one process after another, each of which sends some words and exits.
say_words(#{to := To, node := Node, n := N} = State) ->
    {_, Monitor} = spawn_monitor(?MODULE, speak, [{To, Node}, rand:uniform(30) - 1]),
    receive
        {'DOWN', Monitor, process, _, _} -> State#{n := N + 1}
    end.

%% @private Sends its words once the watcher is linked to it. If the watcher does not answer, it exits without sending any.
-spec speak({atom(), node()}, non_neg_integer()) -> no_return().
speak(Watcher, Count) ->
    _ = erlang:send(Watcher, {hello, self()}),
    receive
        {go, Pid} ->
            _ = [Pid ! {word, self(), N, data(N, random_size(mixed))} || N <- lists:seq(1, Count)],
            exit({last, Count})
    after ?NO_WORD_MS * 5 ->
        exit({last, 0})
    end.
