%% SPDX-License-Identifier: Apache-2.0
%% @doc Trace context: it is propagated with calls, casts and plain messages across several nodes, but only if a process
%% has set it; tokens set by others are left unchanged.
-module(teleport_trace_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2, end_per_testcase/2]).
-export([calls_and_casts/1, plain_messages/1, broadcasts/1, over_a_pool/1, through_several_nodes/1, an_answer_brings_it_back/1, a_message_without_ends_it/1, tokens_of_others/1, a_node_that_lies/1,
         a_stock_node/1, switched_off/1, open_telemetry/1, without_open_telemetry/1]).
%% Called on the nodes.
-export([start_teller/0, example/0, init/1, handle_call/3, handle_cast/2, handle_info/2]).
-behaviour(gen_server).
-import(teleport_nodes, [on_first/2, second_node/1, wait_ms/0]).

suite() -> [{timetrap, {minutes, 2}}].

all() -> [{group, shm}, {group, tcp}, {group, stock}].

groups() ->
    Cases = [calls_and_casts, plain_messages, broadcasts, through_several_nodes, an_answer_brings_it_back, a_message_without_ends_it, tokens_of_others, a_node_that_lies, switched_off],
    [{shm, [], Cases}, {stock, [], [calls_and_casts, plain_messages, broadcasts, over_a_pool, switched_off]}, {tcp, [], Cases ++ [a_stock_node, open_telemetry, without_open_telemetry]}].

init_per_group(Kind, Config) -> teleport_nodes:start_pair(teleport_nodes:init_group(Kind, Config)).

end_per_group(_Kind, Config) -> teleport_nodes:stop_pair(Config).

end_per_testcase(_Case, Config) ->
    beamway_peer:stop_all(beamway_peer:started() -- [teleport_nodes:first(Config), teleport_nodes:second(Config)]).

%% ---- a server that reports what came with each message ----

start_teller() -> gen_server:start(?MODULE, [], []).

init([]) -> {ok, none}.

handle_call({pass_on, To, Request}, _From, State) -> {reply, teleport:call(To, Request), State};
handle_call(_Request, _From, State) -> {reply, teleport_trace:current(), State}.

handle_cast({tell, Pid}, State) -> told(Pid, State).

handle_info({tell, Pid}, State) -> told(Pid, State);
handle_info({tell_token, Pid}, State) -> Pid ! {told, seq_trace:get_token()}, {noreply, State}.

told(Pid, State) -> Pid ! {told, teleport_trace:current()}, {noreply, State}.

teller(Node) ->
    {ok, Pid} = erpc:call(Node, ?MODULE, start_teller, []),
    Pid.

told() ->
    receive {told, What} -> What
    after wait_ms() -> error(nothing_told)
    end.

example() -> <<"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01">>.

%% ---- cases ----

calls_and_casts(Config) ->
    on_first(Config, fun(Node) ->
        Teller = teller(Node),
        none = teleport:call(Teller, what),
        Context = {ok, example()},
        [begin
             ok = teleport_trace:set(example()),
             Context = Ask()
         end || Ask <- [fun() -> teleport:call(Teller, what) end, fun() -> teleport:gs_call(Teller, what) end,
                        fun() -> {reply, Told} = teleport:wait_response(teleport:send_request(Teller, what), wait_ms()), Told end,
                        fun() -> ok = teleport:cast(Teller, {tell, self()}), told() end,
                        fun() -> {ok, _} = teleport:cast(Teller, {tell, self()}, #{confirm => true}), told() end,
                        fun() -> ok = teleport:send(Teller, {tell, self()}, #{on_full => error}), told() end]],
        ok = teleport_trace:set(none),
        none = teleport:call(Teller, what)
    end).

plain_messages(Config) ->
    on_first(Config, fun(Node) ->
        Teller = teller(Node),
        ok = teleport_trace:set(example()),
        Teller ! {tell, self()},
        {ok, _} = told(),
        {ok, _} = gen_server:call(Teller, what),
        ok = teleport_trace:set(none),
        Teller ! {tell, self()},
        none = told()
    end).

%% Broadcasts to members on this node, on a node that gets the message directly, and on one that gets it from a relay.
broadcasts(Config) ->
    {Third, ThirdNode} = teleport_nodes:start(teleport_nodes:kind(Config)),
    [ok = teleport_nodes:connect(Peer, ThirdNode) || Peer <- [teleport_nodes:first(Config), teleport_nodes:second(Config)]],
    [_ = beamway_peer:call(Peer, pg, start, [pg]) || Peer <- [teleport_nodes:first(Config), teleport_nodes:second(Config), Third]],
    on_first(Config, fun(Node) ->
        Nodes = [node(), Node, ThirdNode],
        [ok = erpc:call(On, pg, join, [?MODULE, teller(On)]) || On <- Nodes],
        Knows = fun() -> length(pg:get_members(?MODULE)) =:= 3 andalso lists:all(fun teleport_server:is_at/1, [Node, ThirdNode])
                             andalso erpc:call(Node, teleport_server, is_at, [ThirdNode]) andalso erpc:call(ThirdNode, teleport_server, is_at, [Node]) end,
        true = beamway_peer:wait_until(Knows, wait_ms()),
        Sites = fun(Of) when Of =:= node() -> here; (_) -> there end,
        Tells = fun(Options) ->
            #{sent := [_, _, _]} = teleport:broadcast(pg, ?MODULE, {tell, self()}, Options),
            [told() || _ <- Nodes]
        end,
        [begin
             ok = case Context of none -> teleport_trace:set(none); {ok, Traceparent} -> teleport_trace:set(Traceparent) end,
             ?assertEqual([Context, Context, Context], Tells(Options)),
             ok = teleport_trace:set(none)
         end || Options <- [#{}, #{confirm => true, timeout => wait_ms()}, #{sites => Sites}], Context <- [{ok, example()}, none]]
    end).

%% Each message arrives with its own context, and the processes that forward messages do not keep any.
over_a_pool(Config) ->
    on_first(Config, fun(Node) ->
        Teller = teller(Node),
        true = beamway_peer:wait_until(fun() -> none = teleport:call(Teller, what), teleport_pool:count() =:= 1 end, wait_ms()),
        Others = [example(), <<"00-11111111111111111111111111111111-b7ad6b7169203331-01">>],
        [begin
             ok = case Context of none -> teleport_trace:set(none); {ok, Traceparent} -> teleport_trace:set(Traceparent) end,
             Context = teleport:call(Teller, what),
             ok = teleport_trace:set(none),
             none = teleport:call(Teller, what)
         end || _ <- lists:seq(1, 50), Context <- [none | [{ok, Other} || Other <- Others]]],
        Self = self(),
        Pids = [spawn_link(fun() ->
                    _ = case Context of none -> ok; {ok, Traceparent} -> teleport_trace:set(Traceparent) end,
                    [begin
                         ok = teleport:cast(Teller, {tell, self()}),
                         Context = told(),
                         ok = case Context of none -> teleport_trace:set(none); {ok, Again} -> teleport_trace:set(Again) end
                     end || _ <- lists:seq(1, 200)],
                    Self ! {done, self()}
                end) || Context <- [none, none | [{ok, Other} || Other <- Others]]],
        [receive {done, Pid} -> ok after wait_ms() -> error(not_done) end || Pid <- Pids],
        ok
    end).

%% The first node calls a server on the second, which calls a server on the first, which calls another server on the second.
through_several_nodes(Config) ->
    on_first(Config, fun(Node) ->
        [One, Two, Three] = [teller(At) || At <- [Node, node(), Node]],
        ok = teleport_trace:set(example()),
        ?assertEqual({ok, example()}, teleport:call(One, {pass_on, Two, {pass_on, Three, what}}))
    end).

%% What the caller does after it has received the reply belongs to the same trace.
an_answer_brings_it_back(Config) ->
    on_first(Config, fun(Node) ->
        Teller = teller(Node),
        ok = teleport_trace:set(example()),
        {ok, _} = teleport:call(Teller, what),
        ?assertEqual({ok, example()}, teleport_trace:current())
    end).

a_message_without_ends_it(Config) ->
    on_first(Config, fun(Node) ->
        Teller = teller(Node),
        ok = teleport_trace:set(example()),
        {ok, _} = teleport:call(Teller, what),
        Self = self(),
        _ = spawn(fun() -> ok = teleport_trace:set(none), Self ! other end),
        receive other -> ok end,
        ?assertEqual(none, teleport_trace:current()),
        none = teleport:call(Teller, what)
    end).

%% The user's own tracer keeps its label and flags, on both nodes.
tokens_of_others(Config) ->
    on_first(Config, fun(Node) ->
        Teller = teller(Node),
        ok = teleport:configure(all, #{trace => true}),
        _ = seq_trace:set_token(label, 4711),
        _ = seq_trace:set_token(send, true),
        {error, other_token} = teleport_trace:set(example()),
        none = teleport:call(Teller, what),
        ok = teleport:send(Teller, {tell_token, self()}),
        {Flags, 4711, _, _, _} = told(),
        ?assertMatch({Flags, 4711, _, _, _}, seq_trace:get_token()),
        ?assertEqual({send, true}, seq_trace:get_token(send)),
        ok = teleport:configure(all, #{trace => false}),
        _ = seq_trace:set_token([])
    end).

%% An invalid value in the token is ignored and does no harm.
a_node_that_lies(Config) ->
    on_first(Config, fun(Node) ->
        Teller = teller(Node),
        [begin
             _ = seq_trace:set_token(label, {teleport_trace, Lie}),
             none = teleport:call(Teller, what)
         end || Lie <- [binary:copy(<<"a">>, 1000000), <<"00-00000000000000000000000000000000-b7ad6b7169203331-01">>, 7, <<>>, binary:copy(<<255>>, 55), [{a, #{}}]]],
        ok = teleport_trace:set(example()),
        {ok, _} = teleport:call(Teller, what),
        %% An invalid context is rejected before the call is sent.
        {'EXIT', {{bad_traceparent, <<"x">>, _}, _}} = catch teleport_trace:set(<<"x">>),
        ok = teleport_trace:set(none)
    end).

%% A stock node receives the message and propagates the token like any other node.
a_stock_node(Config) ->
    {Stock, StockNode} = teleport_nodes:start(stock),
    ok = teleport_nodes:connect(Stock, beamway_peer:call(teleport_nodes:first(Config), erlang, node, [])),
    on_first(Config, fun(_) ->
        Teller = teller(StockNode),
        ok = teleport_trace:set(example()),
        Teller ! {tell, self()},
        {ok, _} = told()
    end).

%% Unless a process asks for it, no message has a token, and no part of teleport creates one.
switched_off(Config) ->
    on_first(Config, fun(Node) ->
        Teller = teller(Node),
        {ok, _} = teleport:cast(Teller, {tell, self()}, #{confirm => true}),
        none = told(),
        ok = teleport:send(Teller, {tell_token, self()}),
        [] = told(),
        [] = seq_trace:get_token()
    end).

%% Uses the library's API, which does not need an SDK for this: the context of a process is that of a remote span.
open_telemetry(Config) ->
    case code:ensure_loaded(otel_propagator_trace_context) of
        {error, _} -> {skip, "opentelemetry_api is not in the code path"};
        {module, _} -> with_open_telemetry(Config)
    end.

with_open_telemetry(Config) ->
    on_first(Config, fun(Node) ->
        Teller = teller(Node),
        Get = fun(Name, Carrier) -> proplists:get_value(Name, Carrier) end,
        Attach = fun(Traceparent) ->
            Carrier = [{<<"traceparent">>, Traceparent}, {<<"tracestate">>, <<"a=b">>}],
            otel(otel_ctx, attach, [otel(otel_propagator_trace_context, extract, [otel(otel_ctx, new, []), Carrier, fun proplists:get_keys/1, Get, []])])
        end,
        _ = Attach(example()),
        none = teleport:call(Teller, what),
        ok = teleport:configure(all, #{trace => true}),
        {ok, Told} = teleport:call(Teller, what),
        ?assertEqual(example(), Told),
        ok = teleport:cast(Teller, {tell, self()}),
        {ok, _} = told(),
        ok = teleport:send(Teller, {tell, self()}),
        {ok, _} = told(),
        {reply, {ok, _}} = teleport:wait_response(teleport:send_request(Teller, what), wait_ms()),
        [begin _ = erpc:call(On, pg, start, [pg]), ok = erpc:call(On, pg, join, [{?MODULE, open_telemetry}, teller(On)]) end || On <- [node(), Node]],
        true = beamway_peer:wait_until(fun() -> length(pg:get_members({?MODULE, open_telemetry})) =:= 2 end, wait_ms()),
        _ = seq_trace:set_token([]),
        #{sent := [_, _]} = teleport:broadcast(pg, {?MODULE, open_telemetry}, {tell, self()}, #{}),
        [] = seq_trace:get_token(),
        [{ok, _}, {ok, _}] = [told(), told()],
        %% A context that was set only for the duration of a call is removed again, however the call returns.
        _ = seq_trace:set_token([]),
        try teleport:call({nobody_at_all, Node}, what)
        catch exit:{noproc, _} -> [] = seq_trace:get_token()
        end,
        %% A plain message does not go through teleport, and a context that is not sampled is not propagated.
        Teller ! {tell, self()},
        none = told(),
        _ = Attach(<<(binary:part(example(), 0, 53))/binary, "00">>),
        none = teleport:call(Teller, what),
        %% The receiver's spans have the sender's span as their parent.
        _ = otel(otel_ctx, clear, []),
        ok = teleport_trace:set(example()),
        Inject = fun() -> otel(otel_propagator_trace_context, inject, [otel(otel_ctx, get_current, []), [], fun(Name, Value, Carrier) -> [{Name, Value} | Carrier] end, []]) end,
        ?assertEqual([{<<"traceparent">>, example()}], teleport_trace:continue(Inject)),
        ?assertEqual([], Inject()),
        ok = teleport_trace:set(none),
        ?assertEqual([], teleport_trace:continue(Inject)),
        ok = teleport:configure(all, #{trace => false})
    end).

%% The library may be missing, so xref must not look for its functions.
otel(Module, Function, Arguments) -> apply(Module, Function, Arguments).

%% The option only causes a warning, but contexts that a process sets still travel.
without_open_telemetry(Config) ->
    case code:which(otel_propagator_trace_context) of
        non_existing -> ok;
        _ -> throw({skip, "opentelemetry_api is in the code path"})
    end,
    Log = filename:join(proplists:get_value(priv_dir, Config), "without_open_telemetry.log"),
    {Peer, _} = teleport_nodes:start(tcp, #{teleport => #{trace => true}, log => Log}),
    ok = teleport_nodes:connect(Peer, second_node(Config)),
    Node = second_node(Config),
    ok = beamway_peer:run(Peer, fun() ->
        Teller = teller(Node),
        none = teleport:call(Teller, what),
        ok = teleport_trace:set(example()),
        {ok, _} = teleport:call(Teller, what),
        7 = teleport_trace:continue(fun() -> 7 end),
        ok
    end),
    true = beamway_peer:wait_until(fun() -> {ok, Text} = file:read_file(Log), binary:match(Text, <<"the option trace has no effect">>) =/= nomatch end, wait_ms()).
