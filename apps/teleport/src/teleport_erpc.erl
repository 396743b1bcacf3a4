%% SPDX-License-Identifier: Apache-2.0
%% @doc erpc's interface, over lanes: functions applied on other nodes, with the results and exceptions of {@link //kernel/erpc}.
%%
%% Where erpc takes a limit in milliseconds, these functions also take a map of options: `timeout', `class', `key', `unordered', `on_full' and `way', as
%% {@link teleport:options()}. Functions of one `key' and class are started in the order in which they were asked for; without a key there is no order.
%% `cast' and `multicast' tell what could not be sent, where erpc answers `ok'. With `way => distribution' erpc itself does it, and only `timeout' has a meaning beside that.
-module(teleport_erpc).

-export([call/2, call/3, call/4, call/5, cast/2, cast/3, cast/4, cast/5]).
-export([multicall/2, multicall/3, multicall/4, multicall/5, multicast/2, multicast/3, multicast/4, multicast/5]).
-export([send_request/2, send_request/3, send_request/4, send_request/5, send_request/6, send_request/7]).
-export([receive_response/1, receive_response/2, receive_response/3, wait_response/1, wait_response/2, wait_response/3]).
-export([check_response/2, check_response/3, reqids_new/0, reqids_size/1, reqids_add/3, reqids_to_list/1]).
-export_type([limit/0, options/0]).

-type options() :: #{timeout => timeout(), class => teleport_config:class(), key => term(), unordered => boolean(), on_full => block | error | drop,
                     way => lane | distribution}.
-type limit() :: teleport_requests:limit() | options() | call_options().
-type call_options() :: #{always_spawn => boolean(), timeout => timeout(), class => teleport_config:class(), key => term(), unordered => boolean(),
                          on_full => block | error | drop, way => lane | distribution}.
%% `always_spawn' is of OTP 28: a function of this node is not applied by the caller itself. On other nodes a process of its own applies it in any case.
-type not_sent() :: {error, [{node(), teleport:reason()}, ...]}.

%% ---- one node ----

%% @doc As erpc:call/2.
-spec call(node(), fun(() -> Value)) -> Value.
call(Node, Fun) -> call(Node, Fun, infinity).

%% @doc As erpc:call/3, or with options.
-spec call(node(), fun(() -> Value), limit()) -> Value.
call(Node, Fun, Limit) -> call(Node, erlang, apply, of_fun(Fun), Limit).

%% @doc As erpc:call/4.
-spec call(node(), module(), atom(), [term()]) -> term().
call(Node, Module, Function, Args) -> call(Node, Module, Function, Args, infinity).

%% @doc As erpc:call/5, or with options. The limit holds for all of it, the opening of a lane as well.
-spec call(node(), module(), atom(), [term()], limit()) -> term().
call(Node, Module, Function, Args, Limit) ->
    {AlwaysSpawn, Options} = call_options(Limit),
    Timeout = maps:get(timeout, Options, infinity),
    case Node =:= node() of
        true when AlwaysSpawn -> erpc:receive_response(erpc:send_request(Node, Module, Function, Args), Timeout);
        true -> erpc:call(Node, Module, Function, Args, Timeout);
        false ->
            Deadline = teleport_deadline:in(Timeout),
            result(teleport_request:finish(asked(Node, Module, Function, Args, Options#{timeout => Timeout}), teleport_deadline:left(Deadline)))
    end.

%% @doc As erpc:cast/2.
-spec cast(node(), fun(() -> term())) -> ok | {error, teleport:reason()}.
cast(Node, Fun) -> cast(Node, Fun, #{}).

%% @doc The same with options.
-spec cast(node(), fun(() -> term()), options()) -> ok | {error, teleport:reason()}.
cast(Node, Fun, Options) -> cast(Node, erlang, apply, of_fun(Fun), Options).

%% @doc As erpc:cast/4.
-spec cast(node(), module(), atom(), [term()]) -> ok | {error, teleport:reason()}.
cast(Node, Module, Function, Args) -> cast(Node, Module, Function, Args, #{}).

%% @doc The same with options.
-spec cast(node(), module(), atom(), [term()], options()) -> ok | {error, teleport:reason()}.
cast(Node, Module, Function, Args, Given) ->
    Options = options(Given),
    is_applied(Node, Module, Function, Args) orelse error({erpc, badarg}),
    case Node =:= node() orelse maps:get(way, Options, lane) =:= distribution of
        true -> erpc:cast(Node, Module, Function, Args);
        false -> teleport_request:apply_cast(Node, Module, Function, Args, maps:merge(#{key => self()}, Options))
    end.

%% @doc As erpc:send_request/2.
-spec send_request(node(), fun(() -> term())) -> teleport_request:id().
send_request(Node, Fun) -> send_request(Node, Fun, #{}).

%% @doc The same with options.
-spec send_request(node(), fun(() -> term()), options()) -> teleport_request:id().
send_request(Node, Fun, Options) -> send_request(Node, erlang, apply, of_fun(Fun), Options).

%% @doc As erpc:send_request/4, of either kind.
-spec send_request(node(), module(), atom(), [term()]) -> teleport_request:id();
                  (node(), fun(() -> term()), teleport_requests:label(), teleport_requests:collection()) -> teleport_requests:collection().
send_request(Node, Fun, Label, Collection) when is_function(Fun) ->
    reqids_add(send_request(Node, Fun), Label, Collection);
send_request(Node, Module, Function, Args) ->
    send_request(Node, Module, Function, Args, #{}).

%% @doc The same with options.
-spec send_request(node(), module(), atom(), [term()], options()) -> teleport_request:id();
                  (node(), fun(() -> term()), teleport_requests:label(), teleport_requests:collection(), options()) -> teleport_requests:collection().
send_request(Node, Fun, Label, Collection, Options) when is_function(Fun) ->
    reqids_add(send_request(Node, Fun, Options), Label, Collection);
send_request(Node, Module, Function, Args, Options) -> asked(Node, Module, Function, Args, options(Options)).

%% @doc As erpc:send_request/6.
-spec send_request(node(), module(), atom(), [term()], teleport_requests:label(), teleport_requests:collection()) -> teleport_requests:collection().
send_request(Node, Module, Function, Args, Label, Collection) -> send_request(Node, Module, Function, Args, Label, Collection, #{}).

%% @doc The same with options.
-spec send_request(node(), module(), atom(), [term()], teleport_requests:label(), teleport_requests:collection(), options()) ->
          teleport_requests:collection().
send_request(Node, Module, Function, Args, Label, Collection, Options) ->
    reqids_add(send_request(Node, Module, Function, Args, Options), Label, Collection).

asked(Node, Module, Function, Args, Options) ->
    is_applied(Node, Module, Function, Args) orelse error({erpc, badarg}),
    Ordered = case Options of
                  #{key := _} -> Options;
                  #{} -> Options#{unordered => true}
              end,
    teleport_request:begin_call({apply, Module, Function}, {'', Node}, Args, Ordered).

is_applied(Node, Module, Function, Args) -> is_atom(Node) andalso is_atom(Module) andalso is_atom(Function) andalso is_list(Args).

of_fun(Fun) when is_function(Fun, 0) -> [Fun, []];
of_fun(_) -> error({erpc, badarg}).

call_options(#{always_spawn := Always} = Given) when is_boolean(Always) -> {Always, options(maps:remove(always_spawn, Given))};
call_options(Given) -> {false, options(Given)}.

options(Given) when is_map(Given) ->
    case teleport_request:checked(Given) of
        #{confirm := Value} -> error({bad_option, confirm, Value});
        Options -> Options
    end;
options(infinity) -> #{timeout => infinity};
options(Timeout) when is_integer(Timeout), Timeout >= 0 -> #{timeout => Timeout};
options({abs, Ms} = Limit) when is_integer(Ms) -> #{timeout => teleport_deadline:of_limit(Limit)};
options(_) -> error({erpc, badarg}).

%% ---- responses ----

%% @doc As erpc:receive_response/1.
-spec receive_response(teleport_request:id()) -> term().
receive_response(Id) -> receive_response(Id, infinity).

%% @doc As erpc:receive_response/2.
-spec receive_response(teleport_request:id(), teleport_requests:limit()) -> term().
receive_response(Id, Limit) -> result(teleport_request:finish(Id, Limit)).

%% @doc As erpc:receive_response/3.
-spec receive_response(teleport_requests:collection(), teleport_requests:limit(), Delete :: boolean()) ->
          {Value :: term(), teleport_requests:label(), teleport_requests:collection()} | no_request.
receive_response(Collection, Limit, Delete) ->
    case teleport_requests:finish(Collection, Limit, Delete) of
        timeout -> error({erpc, timeout});
        Taken -> of_collection(Taken, fun(Value) -> Value end)
    end.

%% @doc As erpc:wait_response/1.
-spec wait_response(teleport_request:id()) -> {response, term()} | no_response.
wait_response(Id) -> wait_response(Id, 0).

%% @doc As erpc:wait_response/2.
-spec wait_response(teleport_request:id(), teleport_requests:limit()) -> {response, term()} | no_response.
wait_response(Id, Limit) ->
    case teleport_request:wait(Id, Limit) of
        timeout -> no_response;
        Answer -> {response, result(Answer)}
    end.

%% @doc As erpc:wait_response/3.
-spec wait_response(teleport_requests:collection(), teleport_requests:limit(), Delete :: boolean()) ->
          {{response, term()}, teleport_requests:label(), teleport_requests:collection()} | no_request | no_response.
wait_response(Collection, Limit, Delete) ->
    case teleport_requests:wait(Collection, Limit, Delete) of
        timeout -> no_response;
        Taken -> of_collection(Taken, fun(Value) -> {response, Value} end)
    end.

%% @doc As erpc:check_response/2.
-spec check_response(Message :: term(), teleport_request:id()) -> {response, term()} | no_response.
check_response(Message, Id) ->
    case teleport_request:check(Message, Id) of
        no_reply -> no_response;
        Answer -> {response, result(Answer)}
    end.

%% @doc As erpc:check_response/3.
-spec check_response(Message :: term(), teleport_requests:collection(), Delete :: boolean()) ->
          {{response, term()}, teleport_requests:label(), teleport_requests:collection()} | no_request | no_response.
check_response(Message, Collection, Delete) ->
    case teleport_requests:check(Message, Collection, Delete) of
        no_reply -> no_response;
        Taken -> of_collection(Taken, fun(Value) -> {response, Value} end)
    end.

of_collection(no_request, _) -> no_request;
of_collection({Answer, Label, Collection}, Shape) ->
    try result(Answer) of
        Value -> {Shape(Value), Label, Collection}
    catch
        Class:Reason:Stack -> erlang:raise(Class, {Reason, Label, Collection}, Stack)
    end.

%% @doc As erpc:reqids_new/0.
-spec reqids_new() -> teleport_requests:collection().
reqids_new() -> teleport_requests:new().

%% @doc As erpc:reqids_size/1.
-spec reqids_size(teleport_requests:collection()) -> non_neg_integer().
reqids_size(Collection) -> teleport_requests:size(Collection).

%% @doc As erpc:reqids_add/3.
-spec reqids_add(teleport_request:id(), teleport_requests:label(), teleport_requests:collection()) -> teleport_requests:collection().
reqids_add(Id, Label, Collection) -> teleport_requests:add(Id, Label, Collection).

%% @doc As erpc:reqids_to_list/1.
-spec reqids_to_list(teleport_requests:collection()) -> [{teleport_request:id(), teleport_requests:label()}].
reqids_to_list(Collection) -> teleport_requests:to_list(Collection).

%% ---- several nodes ----

%% @doc As erpc:multicall/2.
-spec multicall([node()], fun(() -> term())) -> [term()].
multicall(Nodes, Fun) -> multicall(Nodes, Fun, infinity).

%% @doc As erpc:multicall/3, or with options.
-spec multicall([node()], fun(() -> term()), limit()) -> [term()].
multicall(Nodes, Fun, Limit) -> multicall(Nodes, erlang, apply, of_fun(Fun), Limit).

%% @doc As erpc:multicall/4.
-spec multicall([node()], module(), atom(), [term()]) -> [term()].
multicall(Nodes, Module, Function, Args) -> multicall(Nodes, Module, Function, Args, infinity).

%% @doc As erpc:multicall/5, or with options: for each node `{ok, Value}' or `{Class, Reason}', within one limit for all.
-spec multicall([node()], module(), atom(), [term()], limit()) -> [term()].
multicall(Nodes, Module, Function, Args, Limit) ->
    {_, Options} = call_options(Limit),
    are_applied(Nodes, Module, Function, Args) orelse error({erpc, badarg}),
    Deadline = teleport_deadline:in(maps:get(timeout, Options, infinity)),
    Call = fun(Node) -> guarded(Node, Module, Function, Args, Options#{timeout => teleport_deadline:left(Deadline)}) end,
    [case Ended of
         {ok, Result} -> Result;
         {down, Reason} -> {exit, {signal, Reason}}
     end || {_, Ended} <- teleport_each:run(Nodes, Call)].

guarded(Node, Module, Function, Args, Options) ->
    try {ok, call(Node, Module, Function, Args, Options)}
    catch Class:Reason -> {Class, Reason}
    end.

%% @doc As erpc:multicast/2; the error names the nodes to which it could not be sent.
-spec multicast([node()], fun(() -> term())) -> ok | not_sent().
multicast(Nodes, Fun) -> multicast(Nodes, Fun, #{}).

%% @doc The same with options.
-spec multicast([node()], fun(() -> term()), options()) -> ok | not_sent().
multicast(Nodes, Fun, Options) -> multicast(Nodes, erlang, apply, of_fun(Fun), Options).

%% @doc As erpc:multicast/4.
-spec multicast([node()], module(), atom(), [term()]) -> ok | not_sent().
multicast(Nodes, Module, Function, Args) -> multicast(Nodes, Module, Function, Args, #{}).

%% @doc The same with options. All nodes at once: one that is stuck holds up no other.
-spec multicast([node()], module(), atom(), [term()], options()) -> ok | not_sent().
multicast(Nodes, Module, Function, Args, Given) ->
    Options = maps:merge(#{key => self()}, options(Given)),
    are_applied(Nodes, Module, Function, Args) orelse error({erpc, badarg}),
    lists:foreach(fun teleport_config:of_node/1, Nodes),
    case teleport_each:send(Nodes, fun(Node) -> cast(Node, Module, Function, Args, Options) end) of
        [] -> ok;
        Failed -> {error, Failed}
    end.

are_applied(Nodes, Module, Function, Args) -> is_list(Nodes) andalso lists:all(fun is_atom/1, Nodes) andalso is_applied(node(), Module, Function, Args).

result({reply, {return, Value}}) -> Value;
result({reply, {throw, Thrown}}) -> throw(Thrown);
result({reply, {exit, Reason}}) -> exit({exception, Reason});
result({reply, {error, Reason, Stack}}) -> error({exception, Reason, Stack});
result({reply, {erpc, Reason}}) -> error({erpc, Reason});
result(timeout) -> error({erpc, timeout});
result({error, {{No, _}, _}}) when No =:= nodedown; No =:= lane_lost; No =:= no_teleport; No =:= no_lane -> error({erpc, noconnection});
result({error, {{too_big, _}, _}}) -> error({erpc, system_limit});
result({error, {timeout, _}}) -> error({erpc, timeout});
result({error, {overload, _}}) -> error({erpc, system_limit});
result({error, {{signal, Reason}, _}}) -> exit({signal, Reason}).
