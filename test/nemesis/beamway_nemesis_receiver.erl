%% SPDX-License-Identifier: Apache-2.0
%% @doc The processes that receive messages while faults affect the nodes, and keep the logs that are judged afterwards.
%%
%% {@link beamway_nemesis_hub} starts and registers one for each other node and kind of traffic. It records messages, nodeups and nodedowns in
%% the order in which they arrive, because net_kernel promises that a nodeup comes before the first message of a connection and a nodedown after
%% its last one. A watcher, of kind `words', links to and monitors each process that says hello to it, and records what it has received from
%% each.
-module(beamway_nemesis_receiver).
-behaviour(gen_server).

-export([start_link/3, collect/1, is_waiting/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([heard/0]).

-type heard() :: #{log := beamway_nemesis_oracle:log(), counts := #{pos_integer() => pos_integer()},
                   words := [spoken()]}.
%% `counts' has the number of messages per size class; the key is the largest size in the class.
-type spoken() :: #{heard := [pos_integer()], exit := term(), down := term(), cut_off := boolean(),
                    from_us := integer(), to_us := integer()}.

-define(ACK_EACH, 8).
-define(CLASSES, [1000, 10000, 1000000, infinity]).

-record(state, {node :: node(),
                log = [] :: beamway_nemesis_oracle:log(),
                counts = #{} :: #{term() => pos_integer()},
                speakers = #{} :: #{pid() => tuple()},      %% see hello/2
                spoken = [] :: [spoken()]}).

%% @doc Starts a receiver for the processes on `Node'.
-spec start_link(Name :: atom(), Kind :: atom(), node()) -> {ok, pid()}.
start_link(Name, Kind, Node) ->
    {ok, _} = gen_server:start_link({local, Name}, ?MODULE, {Kind, Node},
                                    [{spawn_opt, [{message_queue_data, off_heap}]}]).

%% @doc Returns what the receiver has recorded so far.
-spec collect(pid()) -> heard().
collect(Pid) ->
    gen_server:call(Pid, collect, 30000).

%% @doc Returns whether the receiver is still waiting for the exit of a process that has sent it words.
-spec is_waiting(pid()) -> boolean().
is_waiting(Pid) ->
    gen_server:call(Pid, is_waiting, 30000).

%% @private
-spec init({atom(), node()}) -> {ok, #state{}}.
init({Kind, Node}) ->
    _ = process_flag(trap_exit, Kind =:= words),
    ok = net_kernel:monitor_nodes(true, [nodedown_reason]),
    {ok, #state{node = Node}}.

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call({said, _, {_, _, _, N}, _, _} = Said, _From, State) ->
    {reply, {heard, N}, hear(Said, State)};
handle_call(is_waiting, _From, #state{speakers = Speakers} = State) ->
    {reply, Speakers =/= #{}, State};
handle_call(collect, _From, #state{log = Log, counts = Counts, spoken = Spoken, speakers = Speakers} = State) ->
    Waiting = [spoken(Speaker) || Speaker <- maps:values(Speakers)],
    {reply, #{log => Log, counts => Counts, words => Waiting ++ Spoken}, State}.

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast(_, State) ->
    {noreply, State}.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}} | {stop, term(), #state{}}.
handle_info({said, From, {_, _, _, N}, Which, _} = Said, State) ->
    _ = [From ! {ack, N} || N rem ?ACK_EACH =:= 0],
    _ = [From ! {last_heard, N} || Which =:= last],
    {noreply, hear(Said, State)};
handle_info({nodeup, Node, _}, #state{node = Node, log = Log} = State) ->
    {noreply, State#state{log = beamway_nemesis_oracle:note(up, Log)}};
handle_info({nodedown, Node, Info}, #state{node = Node, log = Log, speakers = Speakers} = State) ->
    %% Anything that one of these processes sends after this arrives over a different connection. (This includes its exit, because this nodedown may
    %% already have been in our queue when we created the link.)
    CutOff = maps:map(fun(_, Speaker) -> setelement(1, Speaker, cut_off) end, Speakers),
    {noreply, State#state{log = beamway_nemesis_oracle:note({down, Info}, Log), speakers = CutOff}};
handle_info({hello, Pid}, State) ->
    {noreply, hello(Pid, State)};
handle_info({word, Pid, N, Data}, #state{speakers = Speakers} = State) ->
    case Speakers of
        #{Pid := {open, Words, Exit, Down, From}} ->
            New = {open, [checked(N, Data) | Words], Exit, Down, From},
            {noreply, counted(Data, State#state{speakers = Speakers#{Pid := New}})};
        #{} ->
            {noreply, State}
    end;
handle_info({'EXIT', Pid, Reason}, #state{speakers = Speakers} = State) when is_map_key(Pid, Speakers) ->
    {noreply, ended(Pid, setelement(3, maps:get(Pid, Speakers), Reason), State)};
handle_info({'DOWN', _, process, Pid, Reason}, #state{speakers = Speakers} = State) when is_map_key(Pid, Speakers) ->
    {noreply, ended(Pid, setelement(4, maps:get(Pid, Speakers), Reason), State)};
handle_info({'EXIT', Pid, Reason}, State) when node(Pid) =:= node() ->
    {stop, Reason, State};
handle_info(_, State) ->
    {noreply, State}.

hear({said, _, {Life, Epoch, First, N}, _, Data}, #state{log = Log} = State) ->
    Noted = beamway_nemesis_oracle:note({message, Life, Epoch, First, N}, Log),
    counted(Data, case checked(N, Data) of
                      N -> State#state{log = Noted};
                      _ -> State#state{log = beamway_nemesis_oracle:note({bad_data, Life, N}, Noted)}
                  end).

checked(N, Data) ->
    case beamway_nemesis_sender:data(N, byte_size(Data)) of
        Data -> N;
        _ -> {bad_data, N}
    end.

counted(Data, #state{counts = Counts} = State) ->
    Class = hd([Limit || Limit <- ?CLASSES, byte_size(Data) =< Limit]),
    State#state{counts = maps:update_with(Class, fun(Count) -> Count + 1 end, 1, Counts)}.

%% A speaker's entry is {open or cut_off, words, reason by link, reason by monitor, since}.
hello(Pid, #state{speakers = Speakers} = State) ->
    true = link(Pid),
    _ = monitor(process, Pid),
    Pid ! {go, self()},
    State#state{speakers = Speakers#{Pid => {open, [], waiting, waiting, beamway_nemesis_hub:now_us()}}}.

ended(Pid, {_, _, Exit, Down, _} = Speaker, #state{speakers = Speakers, spoken = Spoken} = State) ->
    case lists:member(waiting, [Exit, Down]) of
        true -> State#state{speakers = Speakers#{Pid := Speaker}};
        false -> State#state{speakers = maps:remove(Pid, Speakers), spoken = [spoken(Speaker) | Spoken]}
    end.

spoken({Ear, Words, Exit, Down, From}) ->
    #{heard => lists:reverse(Words), exit => Exit, down => Down, cut_off => Ear =:= cut_off,
      from_us => From, to_us => beamway_nemesis_hub:now_us()}.
