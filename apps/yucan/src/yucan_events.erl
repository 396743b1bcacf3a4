%% SPDX-License-Identifier: Apache-2.0
%% @doc Writes to the node's log: handler crashes as errors, and rejected requests at debug level.
%%
%% Everything that yucan logs passes through this module. Its events have no logger domain, because OTP's default handler drops every domain except
%% its own.
-module(yucan_events).

-export([crash/4, attempt/4, refused/3, answered/4, turned_away/3, warning/2, error/2, without_flags/0]).
-export_type([handler/0]).

%% The value set in priv/vm.args. The VM's default is 5 MB.
-define(CARRIER_BYTES, 262144).

-include("yucan_internal.hrl").
-include_lib("kernel/include/logger.hrl").

-type handler() :: {module(), atom()} | fun((Name :: [atom(), ...], Measurements :: map(), Metadata :: map()) -> term()).
%% The function that the option `on_event' specifies. It is called in the connection process with a name, measurements and metadata, like a handler of
%% the library telemetry.

emit(#site{on_event = none}, _, _, _) -> ok;
emit(#site{on_event = Handler, name = Server, counters = Counters}, Name, Measurements, Metadata) ->
    Call = fun() -> call(Handler, [yucan | Name], Measurements#{system_time => erlang:system_time()}, Metadata#{server => Server}) end,
    attempt(Call, on_event, Counters, ?EVENTS_FAIL).

%% @doc Calls a user's function, whose failure does not affect the request. The first failure logs a
%% warning, and further failures are silent until a call succeeds again. `Failing' is 1 in the
%% meantime.
-spec attempt(fun(() -> term()), Option :: on_event | access_log, Failing :: atomics:atomics_ref(), Place :: pos_integer()) -> ok.
attempt(Call, Option, Failing, Place) ->
    try Call() of
        _ -> _ = [atomics:put(Failing, Place, 0) || atomics:get(Failing, Place) =/= 0], ok
    catch
        Class:Reason:Stack ->
            _ = [warning("the function of the option ~ts fails: ~0tP", [Option, {Class, Reason, Stack}, 30]) || atomics:exchange(Failing, Place, 1) =:= 0],
            ok
    end.

call({Module, Function}, Name, Measurements, Metadata) -> Module:Function(Name, Measurements, Metadata);
call(Fun, Name, Measurements, Metadata) -> Fun(Name, Measurements, Metadata).

facts(#req{method = Method, target = Target, host = Host, version = Version, id = Id} = Req) ->
    Facts = #{method => Method, target => Target, host => Host, version => Version, peer => yucan_req:peer(Req)},
    case Id of none -> Facts; _ -> Facts#{id => Id} end.

%% Returns `none' if the server has just been stopped.
site(Server) -> persistent_term:get({yucan, Server}, none).

%% @doc Reports `[yucan, request, stop]': a request was answered. The user's function gets the duration in native units.
-spec answered(#site{}, #req{}, Status :: 0..999, {Bytes :: non_neg_integer(), TookUs :: integer()}) -> ok.
answered(Site, Req, Status, {Bytes, Us}) ->
    emit(Site, [request, stop], #{duration => erlang:convert_time_unit(Us, microsecond, native), bytes => Bytes}, (facts(Req))#{status => Status}).

%% @doc Reports that a connection was closed before its first request: `[yucan, connection, refused]'.
-spec turned_away(#site{}, Limit :: connections | address_connections, yucan_req:address()) -> ok.
turned_away(Site, Limit, Peer) -> emit(Site, [connection, refused], #{}, #{limit => Limit, peer => Peer}).

%% @doc Counts, logs and reports that a handler crashed or returned something that is not a response: `[yucan, request, exception]'.
-spec crash(Class :: atom(), Reason :: term(), Stack :: list(), #req{}) -> ok.
crash(Class, Reason, Stack, #req{method = Method, target = Target, id = Id, conn = #conn{server = Server}} = Req) ->
    ?LOG_ERROR("yucan ~ts: the handler failed for ~ts ~ts~ts: ~0tP~n~0tP",
               [Server, Method, Target, [[" (", Id, ")"] || Id =/= none], {Class, Reason}, 30, Stack, 40]),
    case site(Server) of
        none -> ok;
        #site{metrics = Metrics} = Site ->
            yucan_metrics:add(Metrics, crashes),
            emit(Site, [request, exception], #{}, (facts(Req))#{kind => Class, reason => Reason, stacktrace => Stack})
    end.

%% @doc Reports that an invalid request was answered with this status: `[yucan, request, refused]'.
-spec refused(Status :: integer(), Reason :: atom(), #conn{}) -> ok.
refused(Status, Reason, #conn{server = Server} = Conn) ->
    ?LOG_DEBUG("yucan ~ts: refused ~b, ~ts", [Server, Status, Reason]),
    case site(Server) of
        #site{on_event = Handler} = Site when Handler =/= none ->
            emit(Site, [request, refused], #{}, #{status => Status, reason => Reason, peer => yucan_req:conn_peer(Conn)});
        _ -> ok
    end.

%% @doc Logs something that an operator should know.
-spec warning(io:format(), [term()]) -> ok.
warning(Format, Arguments) -> ?LOG_WARNING("yucan: " ++ Format, Arguments).

%% @doc Logs something that an operator must fix.
-spec error(io:format(), [term()]) -> ok.
error(Format, Arguments) -> ?LOG_ERROR("yucan: " ++ Format, Arguments).

%% @doc Warns, once per VM, that the VM is running without the flags that make it return memory to the system.
-spec without_flags() -> ok.
without_flags() ->
    case carrier_bytes() > ?CARRIER_BYTES andalso persistent_term:get(?MODULE, not_warned) of
        not_warned ->
            persistent_term:put(?MODULE, warned),
            warning("this VM may keep almost twice its idle memory after many connections: start it with -args_file ~ts",
                    [filename:join(case code:priv_dir(yucan) of {error, _} -> "yucan/priv"; Folder -> Folder end, "vm.args")]);
        _ -> ok
    end.

%% Returns 0 if the VM was built without these allocators.
carrier_bytes() ->
    case erlang:system_info({allocator, eheap_alloc}) of
        [{instance, _, Properties} | _] -> proplists:get_value(lmbcs, proplists:get_value(options, Properties, []), 0);
        _ -> 0
    end.
