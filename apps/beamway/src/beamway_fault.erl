%% SPDX-License-Identifier: Apache-2.0
%% @doc Faults on demand, for tests of clusters ({@link beamway:fault/2}). This server stores them, makes the driver apply them, and clears them.
%%
%% It only runs on a node that was started with the option `allow_faults'. A fault is set for a node rather than a connection, and affects
%% everything on the path from this node to that one:
%% <dl>
%% <dt>The link</dt><dd>The driver holds back the bytes in each affected direction (native/driver/fault.h).</dd>
%% <dt>The socket</dt><dd>If a fault cuts the incoming direction, the system drops every packet for the connection's socket. So the peer's system gets
%% no acknowledgement and finds the path silent, as in a real outage. With a ring, the same happens to the connection that reports the peer's
%% exit.</dd>
%% <dt>New connections</dt><dd>A process that connects to that node or accepts its connection waits while the fault cuts the path
%% ({@link beamway_fault_path:pass/2}), and the epmd on the node's host is not asked.</dd>
%% </dl>
%% The faults are in a table that every process can read ({@link beamway_fault_path}). If this server crashes, its successor starts without faults.
-module(beamway_fault).
-behaviour(gen_server).

-include_lib("kernel/include/logger.hrl").

-export([start_link/0, set/2, checked/1, link_is_up/1, text/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).
-export_type([fault/0, known/0, refusal/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-define(CALL_MS, 5000).
-define(FOR_MS, 60000).
-define(FOR_MAX_MS, 3600000).
-define(DELAY_MAX_MS, 10000).
-define(RATE_MIN, 1000).
-define(RATE_MAX, 1000000000000).

-type fault() :: #{delay_ms => 0..?DELAY_MAX_MS, jitter_ms => 0..?DELAY_MAX_MS, rate_bytes => ?RATE_MIN..?RATE_MAX, cut => in | out | both,
                   disconnect => boolean(), for_ms => 1..?FOR_MAX_MS}.
-type known() :: #{delay_ms | jitter_ms | rate_bytes => pos_integer(), cut => in | out | both, left_ms := non_neg_integer()}.
-type refusal() :: {not_allowed | not_connected | not_driven | system, Text :: binary()}.
%% `not_allowed' means that the node was started without `allow_faults', and `not_driven' that our driver does not carry the link. The text explains
%% the error.

-record(state, {timers = #{} :: #{node() => reference()},
                kept = [] :: [{node(), socket:socket()}]}).
%% `kept' holds additional descriptors of connections whose outgoing direction is cut, so that their peers do not notice when this node closes them.

%% @doc Called by {@link beamway_sup}.
-spec start_link() -> {ok, pid()} | ignore | {error, term()}.
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @doc Like {@link beamway:fault/2}.
-spec set(node(), fault() | none) -> ok | {error, refusal()}.
set(Node, Fault) when is_atom(Node) ->
    Checked = checked(Fault),
    case whereis(?MODULE) of
        undefined -> {error, not_allowed()};
        _ -> gen_server:call(?MODULE, {set, Node, Checked}, ?CALL_MS)
    end;
set(Node, _Fault) ->
    error({badarg, {fault, Node, "expected the name of a node, an atom"}}).

not_allowed() ->
    case ets:whereis(beamway_links) of
        undefined -> {not_allowed, <<"this node does not run the carrier: start it with -proto_dist beamway and BEAMWAY_ALLOW_FAULTS=true">>};
        _ -> {not_allowed, <<"this node was started without the option allow_faults: start it with BEAMWAY_ALLOW_FAULTS=true, or -beamway allow_faults true">>}
    end.

%% @doc Returns a fault with its defaults filled in and without settings that have no effect. The error for an invalid fault names what is wrong.
-spec checked(fault() | none) -> fault() | none.
checked(none) ->
    none;
checked(Fault) when is_map(Fault), map_size(Fault) > 1; is_map(Fault), map_size(Fault) =:= 1, not is_map_key(for_ms, Fault) ->
    maps:foreach(fun check/2, Fault),
    case maps:filter(fun(_, Value) -> Value =/= 0 andalso Value =/= false end, maps:merge(#{for_ms => ?FOR_MS}, Fault)) of
        WithoutEffect when map_size(WithoutEffect) =:= 1 -> none;
        Effective -> Effective
    end;
checked(Other) ->
    error({badarg, {fault, Other, "expected none, or a map with at least one of delay_ms, jitter_ms, rate_bytes, cut and disconnect"}}).

check(delay_ms, Ms) when is_integer(Ms), Ms >= 0, Ms =< ?DELAY_MAX_MS -> ok;
check(jitter_ms, Ms) when is_integer(Ms), Ms >= 0, Ms =< ?DELAY_MAX_MS -> ok;
check(rate_bytes, Rate) when is_integer(Rate), Rate >= ?RATE_MIN, Rate =< ?RATE_MAX -> ok;
check(cut, Way) when Way =:= in; Way =:= out; Way =:= both -> ok;
check(disconnect, Is) when is_boolean(Is) -> ok;
check(for_ms, Ms) when is_integer(Ms), Ms >= 1, Ms =< ?FOR_MAX_MS -> ok;
check(Key, Value) -> error({badarg, {fault, {Key, Value}, expected(Key)}}).

expected(Ms) when Ms =:= delay_ms; Ms =:= jitter_ms -> "expected milliseconds from 0 to 10000";
expected(rate_bytes) -> "expected bytes a second from 1000 to 1000000000000; to let nothing pass, use cut";
expected(cut) -> "expected in, out or both";
expected(disconnect) -> "expected true or false";
expected(for_ms) -> "expected milliseconds from 1 to 3600000";
expected(_) -> "expected the keys delay_ms, jitter_ms, rate_bytes, cut, disconnect and for_ms".

%% @doc Applies the node's fault to a link that has come up, or that continues over a new connection. A process that sees the node afterwards must
%% also see the fault, so this call waits until the fault has been applied.
-spec link_is_up(beamway_links:link()) -> ok.
link_is_up(Link) ->
    case ets:whereis(?MODULE) of
        undefined -> ok; % this node does not allow faults
        _ -> try gen_server:call(?MODULE, {link_is_up, Link}, ?CALL_MS) catch exit:_ -> ok end
    end.

%% @doc Returns a text that describes a fault.
-spec text(fault() | known()) -> binary().
text(Fault) ->
    Words = [word(Key, map_get(Key, Fault)) || Key <- [disconnect, cut, delay_ms, jitter_ms, rate_bytes], is_map_key(Key, Fault)],
    iolist_to_binary(lists:join(", ", Words)).

word(disconnect, true) -> "the connection is reset";
word(cut, both) -> "cut both ways";
word(cut, in) -> "cut on the way in";
word(cut, out) -> "cut on the way out";
word(delay_ms, Ms) -> ["a delay of ", integer_to_list(Ms), " ms each way"];
word(jitter_ms, Ms) -> ["up to ", integer_to_list(Ms), " ms of jitter"];
word(rate_bytes, Rate) -> [integer_to_list(Rate), " bytes a second each way"].

%% @private
-spec init([]) -> {ok, #state{}} | ignore.
init([]) ->
    case beamway_links:config() of
        #{allow_faults := true} ->
            ?MODULE = ets:new(?MODULE, [named_table, protected, {read_concurrency, true}]),
            lists:foreach(fun clear/1, beamway_links:all()),
            {ok, #state{}};
        _ ->
            ignore
    end.

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call({set, Node, none}, _From, State) ->
    {reply, ok, ended(Node, State)};
handle_call({set, Node, Fault}, _From, State) ->
    Links = links(Node),
    case {[Link || Link <- Links, beamway_links:driven(Link) =/= none], Links, beamway_fault_path:of_node(Node)} of
        {[], [_ | _], _} -> {reply, {error, not_driven(Node)}, State};
        {[], [], none} -> {reply, {error, not_connected(Node)}, State};
        {Driven, _, _} -> set(Node, Fault, Driven, State)
    end;
handle_call({link_is_up, #{node := Node} = Link}, _From, State) ->
    Lying = [maps:remove(disconnect, Fault) || {_, Fault, _} <- ets:lookup(?MODULE, Node), beamway_links:driven(Link) =/= none],
    {reply, ok, lists:foldl(fun(Fault, Acc) -> _ = applied([Link], Fault), keep([Link], Fault, Acc) end, State, Lying)};
handle_call(_Request, _From, State) ->
    {reply, {error, badarg}, State}.

not_driven(Node) ->
    {not_driven, text("OTP's own port or ssl's processes carry the link to ~ts, and faults need Beamway's driver: beamway:links() says why", [Node])}.

not_connected(Node) ->
    {not_connected, text("this node has no link to ~ts: connect it first (net_kernel:connect_node/1)", [Node])}.

text(Format, Args) -> unicode:characters_to_binary(io_lib:format(Format, Args)).

%% The previous fault is cleared. A reset takes effect immediately and is not stored.
set(Node, Fault, Driven, #state{timers = Timers} = State) ->
    Lasting = maps:without([disconnect, for_ms], Fault),
    note(Driven, {fault, text(Fault)}), % before the fault can close a connection
    ok = store(map_size(Lasting), Node, Fault), % before the link can dial because of the reset
    case applied(Driven, Fault) of
        ok ->
            ?LOG_WARNING("beamway: fault on the way to ~ts: ~ts~ts", [Node, text(Fault), lasts(Lasting, Fault)]),
            cancel(Node, Timers),
            {reply, ok, lasting(map_size(Lasting), Node, Fault, keep(Driven, Fault, closed(Node, State)))};
        {error, Reason} ->
            note(Driven, fault_ended),
            {reply, {error, {system, Reason}}, ended(Node, State)}
    end.

lasts(Lasting, _Fault) when map_size(Lasting) =:= 0 -> "";
lasts(_Lasting, #{for_ms := Ms}) -> [", for ", beamway_verdict:seconds(Ms)].

lasting(0, Node, _Fault, #state{timers = Timers} = State) ->
    true = ets:delete(?MODULE, Node),
    State#state{timers = maps:remove(Node, Timers)};
lasting(_, Node, #{for_ms := Ms}, #state{timers = Timers} = State) ->
    State#state{timers = Timers#{Node => erlang:start_timer(Ms, self(), {ends, Node})}}.

store(0, _Node, _Fault) ->
    ok;
store(_, Node, #{for_ms := Ms} = Fault) ->
    true = ets:insert(?MODULE, {Node, Fault, erlang:monotonic_time(millisecond) + Ms}),
    ok.

cancel(Node, Timers) ->
    _ = [erlang:cancel_timer(Timer) || {ok, Timer} <- [maps:find(Node, Timers)]],
    ok.

ended(Node, #state{timers = Timers} = State) ->
    cancel(Node, Timers),
    case ets:take(?MODULE, Node) of
        [] -> State;
        [_] ->
            Links = links(Node),
            lists:foreach(fun clear/1, Links),
            note(Links, fault_ended),
            ?LOG_NOTICE("beamway: the fault on the way to ~ts has ended", [Node]),
            closed(Node, State#state{timers = maps:remove(Node, Timers)})
    end.

keep(Links, #{cut := Cut}, #state{kept = Kept} = State) when Cut =:= out; Cut =:= both ->
    State#state{kept = [{Node, Socket} || #{node := Node, stream := Stream} <- Links, {ok, Fd} <- [beamway_stream:fd(Stream)],
                                          {ok, Socket} <- [socket:open(Fd, #{dup => true})]] ++ Kept};
keep(_Links, _Fault, State) ->
    State.

closed(Node, #state{kept = Kept} = State) ->
    {Closed, Left} = lists:partition(fun({Of, _}) -> Of =:= Node end, Kept),
    _ = [socket:close(Socket) || {_, Socket} <- Closed],
    State#state{kept = Left}.

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast(_Request, State) ->
    {noreply, State}.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info({timeout, Timer, {ends, Node}}, #state{timers = Timers} = State) ->
    case Timers of
        #{Node := Timer} -> {noreply, ended(Node, State)};
        #{} -> {noreply, State}
    end;
handle_info(_Info, State) ->
    {noreply, State}.

links(Node) -> [Link || #{node := Of} = Link <- beamway_links:all(), Of =:= Node].

note(Links, Event) -> lists:foreach(fun(#{connection := Connection}) -> beamway_recorder:note(Connection, Event) end, Links).

%% ---- commands to the driver ----

clear(Link) -> applied([Link], #{}).

applied([], _Fault) ->
    ok;
applied([Link | Links], Fault) ->
    beamway_result:then(applied_to(Link, beamway_links:driven(Link), Fault), fun() -> applied(Links, Fault) end).

%% A link may be closed, or change its connection, at any time. If it no longer has a port or a socket, the fault need not be applied.
applied_to(_Link, none, _Fault) ->
    ok;
applied_to(#{link := Kind, stream := Stream}, {ok, Port}, Fault) ->
    Cut = maps:get(cut, Fault, none),
    CutsIn = Cut =:= in orelse Cut =:= both,
    try
        ok = beamway_port:fault(Port, Fault#{holds_in => CutsIn andalso (beamway_kind:is_ring(Kind) orelse has_several(Port)), holds_out => Cut =:= out orelse Cut =:= both}),
        %% After a reset the descriptor may be closed at any time.
        on_socket(Port, beamway_stream:fd(Stream), [case CutsIn of true -> drop; false -> pass end] ++ [reset || #{disconnect := true} <- [Fault]])
    catch
        error:badarg -> ok
    end.

%% If the link has several connections, this process knows only one of their sockets, so the driver holds back the data that arrives over any of
%% them. A port that is not active yet has only one connection.
has_several(Port) ->
    try beamway_port:paths(Port) of
        {Connections, _RttUs} -> Connections > 0
    catch
        error:badarg -> false
    end.

on_socket(_Port, error, _What) ->
    ok;
on_socket(_Port, {ok, _Fd}, []) ->
    ok;
on_socket(Port, {ok, Fd}, [What | More]) ->
    beamway_result:then(beamway_port:socket_fault(Port, Fd, What), fun() -> on_socket(Port, {ok, Fd}, More) end).

-ifdef(TEST).

checked_test_() ->
    [?_assertEqual(Checked, checked(Given))
     || {Given, Checked} <- [{none, none}, {#{cut => both}, #{cut => both, for_ms => 60000}}, {#{disconnect => true, for_ms => 1}, #{disconnect => true, for_ms => 1}},
                             {#{delay_ms => 0, disconnect => false, for_ms => 5}, none}, {#{delay_ms => 0, jitter_ms => 5, disconnect => false}, #{jitter_ms => 5, for_ms => 60000}}]]
        ++ [?_assertError({badarg, {fault, {Key, Value}, "expected " ++ _}}, checked((#{cut => both})#{Key => Value}))
            || {Key, Value} <- [{delay_ms, -1}, {delay_ms, 10001}, {delay_ms, 1.0}, {delay_ms, "5"}, {jitter_ms, infinity}, {rate_bytes, 0}, {rate_bytes, 999}, {rate_bytes, 1 bsl 64},
                                {cut, true}, {cut, "both"}, {disconnect, 1}, {for_ms, 0}, {for_ms, 3600001}, {for_ms, infinity}, {delay, 5}, {"cut", both}, {<<"cut">>, both}]]
        ++ [?_assertError({badarg, {fault, Other, "expected none, or a map" ++ _}}, checked(Other)) || Other <- [#{}, #{for_ms => 5}, [], cut, [{cut, both}]]].

text_test_() ->
    [?_assertEqual(Text, text(Fault))
     || {Text, Fault} <- [{<<"cut both ways">>, #{cut => both, left_ms => 3}},
                          {<<"the connection is reset, a delay of 20 ms each way, up to 3 ms of jitter, 9999 bytes a second each way">>,
                           #{rate_bytes => 9999, jitter_ms => 3, delay_ms => 20, disconnect => true}}]].

without_the_option_test_() ->
    [?_assertMatch({error, {not_allowed, _}}, set(a@b, #{cut => both})), ?_assertError({badarg, {fault, "a@b", _}}, set("a@b", none))].

-endif.
