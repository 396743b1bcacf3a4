%% SPDX-License-Identifier: Apache-2.0
%% @doc Finds out what the epmd on a peer's host currently reports about the peer, where a peer listens according to the node's epmd module, and
%% whether its port accepts connections.
%%
%% When many peers exit at the same time, each of their links asks the same questions about the same host. This server asks each question once for all
%% processes that are waiting for the answer. A process never gets an answer that was already on its way when it asked, because that answer may date
%% from before its peer exited. If the server is not running, each process asks by itself.
-module(beamway_epmd).
-behaviour(gen_server).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-export([getaddr/2]).
-endif.

-export([start_link/0, peer_of/4, of_node/3, resolved/2, port_of_node/3]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, ask/1]).
-export_type([said/0, port_state/0]).

-define(LOOK_MS, 500).
-define(QUESTION_MS, 2000).
%% A question may have to wait for the one before it.
-define(CALL_MS, 5000).
-define(PORT_MS, 300).

-type said() :: {listed, {inet:ip_address(), inet:port_number()}} | {not_listed, inet:ip_address(), OthersAre :: boolean()}
              | {refuses, inet:ip_address()} | unknown.
%% `refuses' means that nothing listens on epmd's port, and `unknown' that epmd does not answer or is not used.

-type port_state() :: refuses | open | silent | unknown.
%% `refuses' means that nothing listens on the port, `silent' that there was no answer, and `unknown' that this node does not know the port, or may not
%% try it because of a fault.

%% @doc Returns where a node listens according to the epmd module, and the node's version of the distribution protocol.
-spec peer_of(module(), beamway_stream:family(), string(), string()) -> {inet:ip_address(), inet:port_number(), integer()} | error.
peer_of(Epmd, Family, Name, Host) ->
    case call_epmd(Epmd, address_please, [Name, Host, Family:family()]) of
        {ok, Ip, TcpPort, Version} ->
            {Ip, TcpPort, Version};
        {ok, Ip} ->
            case Epmd:port_please(Name, Ip) of
                {port, TcpPort, Version} -> {Ip, TcpPort, Version};
                _ -> error
            end;
        _ ->
            error
    end.

%% A custom epmd module need not implement every function.
call_epmd(Module, Function, Args) ->
    case erlang:function_exported(Module, Function, length(Args)) of
        true -> apply(Module, Function, Args);
        false -> apply(erl_epmd, Function, Args)
    end.

%% @doc Queries epmd. `Known' is the address at which the peer is known to listen. This takes as long as the system needs to connect to a host.
-spec of_node(node(), beamway_stream:family(), Known :: undefined | {inet:ip_address() | string(), inet:port_number()}) -> said().
of_node(Node, Family, Known) ->
    case beamway_fault_path:is_cut(Node) of
        true -> unknown;
        false -> asked(Node, Family, Known)
    end.

asked(Node, Family, Known) ->
    {node, Name, Host} = dist_util:split_node(Node),
    case {net_kernel:epmd_module(), init:get_argument(erl_epmd_port)} of
        {erl_epmd, error} -> ask_epmd(Family, Name, Host, Known);
        {erl_epmd, _} -> unknown; % nodes that agree on a port do not register
        {Module, _} -> ask(Module, Family, Name, Host)
    end.

ask_epmd(Family, Name, Host, Known) ->
    case address(Family, Host, Known) of
        {ok, Ip} ->
            case shared({names, Family, Ip}) of
                {ok, Names} -> listed(Name, Ip, Names);
                {error, refused} -> {refuses, Ip};
                {error, _} -> unknown
            end;
        error ->
            unknown
    end.

listed(Name, Ip, Names) ->
    case lists:keyfind(Name, 1, Names) of
        {Name, Port} -> {listed, {Ip, Port}};
        false -> {not_listed, Ip, Names =/= []}
    end.

address(Family, Host, undefined) -> resolved(Family, Host);
address(Family, _Host, {Known, _Port}) -> resolved(Family, Known).

%% @doc Returns the address of a host given by name or address.
-spec resolved(beamway_stream:family(), inet:ip_address() | string()) -> {ok, inet:ip_address()} | error.
resolved(_Family, Ip) when is_tuple(Ip) -> {ok, Ip};
resolved(Family, Host) ->
    case shared({address, Family, Host}) of
        {ok, Ip} -> {ok, Ip};
        {error, _} -> error
    end.

%% @doc Tries the port on which the node listened when the link was set up; 0 means that this port is unknown.
-spec port_of_node(node(), beamway_stream:family(), inet:port_number()) -> port_state().
port_of_node(_Node, _Family, 0) -> unknown;
port_of_node(Node, Family, Port) ->
    {node, _Name, Host} = dist_util:split_node(Node),
    case beamway_fault_path:is_cut(Node) orelse resolved(Family, Host) of
        {ok, Ip} -> tried(Family, Family:connect(Ip, Port, [{active, false}], ?PORT_MS));
        _ -> unknown
    end.

tried(Family, {ok, Socket}) -> Family:close(Socket), open;
tried(_Family, {error, econnrefused}) -> refuses;
tried(_Family, {error, _}) -> silent.

%% ---- questions that several processes ask ----

shared(Question) ->
    try gen_server:call(?MODULE, Question, ?CALL_MS)
    catch
        exit:{timeout, _} -> {error, timeout};
        exit:_ -> answer(Question)
    end.

answer({address, Family, Host}) ->
    Family:getaddr(Host, ?LOOK_MS);
answer({names, Family, Ip}) ->
    case erl_epmd:names(Ip) of
        {ok, Names} -> {ok, Names};
        {error, _} -> {error, why_silent(Family:connect(Ip, epmd_port(), [{active, false}], ?LOOK_MS))}
    end.

why_silent({error, econnrefused}) -> refused;
why_silent(_Other) -> silent.

%% @doc Called by {@link beamway_sup}.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @private The state maps each question that is being asked to the processes that get the current answer and those that get the next one.
-spec init([]) -> {ok, #{term() => {pid(), [gen_server:from()], [gen_server:from()]}}}.
init([]) -> {ok, #{}}.

%% @private
-spec handle_call(term(), gen_server:from(), map()) -> {noreply, map()}.
handle_call(Question, From, Asked) ->
    case Asked of
        #{Question := {Asker, Now, Next}} -> {noreply, Asked#{Question := {Asker, Now, [From | Next]}}};
        #{} -> {noreply, Asked#{Question => {asker(Question), [From], []}}}
    end.

%% @private
-spec handle_cast(term(), map()) -> {noreply, map()}.
handle_cast(_Request, Asked) -> {noreply, Asked}.

%% @private
-spec handle_info(term(), map()) -> {noreply, map()}.
handle_info({'DOWN', _Monitor, process, Asker, Reason}, Asked) ->
    [{Question, {_, Now, Next}}] = [Asking || {_, {By, _, _}} = Asking <- maps:to_list(Asked), By =:= Asker],
    Answer = case Reason of {answer, Answered} -> Answered; _ -> {error, timeout} end,
    _ = [gen_server:reply(From, Answer) || From <- Now],
    {noreply, case Next of
                  [] -> maps:remove(Question, Asked);
                  _ -> Asked#{Question := {asker(Question), Next, []}}
              end};
handle_info({stop, Asker}, Asked) ->
    true = exit(Asker, kill), % it may have exited already
    {noreply, Asked};
handle_info(_Info, Asked) ->
    {noreply, Asked}.

asker(Question) ->
    {Asker, _Monitor} = spawn_monitor(?MODULE, ask, [Question]),
    _ = erlang:send_after(?QUESTION_MS, self(), {stop, Asker}),
    Asker.

%% @private The answer is passed as the exit reason.
-spec ask(term()) -> no_return().
ask(Question) -> exit({answer, answer(Question)}).

epmd_port() ->
    case init:get_argument(epmd_port) of
        {ok, [[Port | _] | _]} -> list_to_integer(Port);
        _ -> 4369
    end.

%% An epmd module other than OTP's may not know the node, but that does not prove that the node has exited.
ask(Module, Family, Name, Host) ->
    case peer_of(Module, Family, Name, Host) of
        {Ip, Port, _Version} -> {listed, {Ip, Port}};
        error -> unknown
    end.

-ifdef(TEST).
%% The test answers this question itself.
-spec getaddr(pid(), timeout()) -> {ok, pos_integer()}.
getaddr(Counter, _Ms) ->
    Counter ! {asked, self()},
    receive {answer, Number} -> {ok, Number} end.

%% The first process gets its own answer. The others ask while that answer is on its way, so they share the next one.
the_waiting_share_an_answer_test() ->
    {ok, Server} = start_link(),
    Self = self(),
    Ask = fun() -> spawn_link(fun() -> Self ! {answered, resolved(?MODULE, Self)} end) end,
    Answered = fun(Number) -> receive {asked, Asker} -> Asker ! {answer, Number} end end,
    _ = Ask(),
    receive {asked, First} -> ok end,
    [Ask() || _ <- lists:seq(1, 20)],
    Waiting = fun Wait() -> case sys:get_state(Server) of #{{address, ?MODULE, Self} := {_, _, Next}} when length(Next) =:= 20 -> ok; _ -> Wait() end end,
    ok = Waiting(),
    First ! {answer, 1},
    Answered(2),
    Got = [receive {answered, Answer} -> Answer end || _ <- lists:seq(0, 20)],
    ?assertEqual([{ok, 1} | lists:duplicate(20, {ok, 2})], Got),
    ?assertEqual(#{}, sys:get_state(Server)),
    gen_server:stop(Server).

without_the_server_each_asks_test() ->
    ?assertEqual({ok, {127, 0, 0, 1}}, resolved(inet_tcp, "127.0.0.1")).
-endif.
