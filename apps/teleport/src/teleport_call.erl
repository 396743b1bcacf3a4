%% SPDX-License-Identifier: Apache-2.0
%% @doc Implements calls and requests; {@link teleport} has the functions for users.
%%
%% A call to a pid uses no monitor that crosses the network ({@link teleport_direct}); a call to `{Name, Node}' uses
%% gen's own. A request is one of gen's, so gen_server's functions, including those for collections, accept its
%% response as well.
-module(teleport_call).

-export([call/5, request/3, response/3, multi/4]).

%% @doc Calls a server. `Label' names the behaviour whose call it is.
-spec call(Label :: term(), teleport:dest(), Request :: term(), timeout(), teleport:options()) -> term().
call(Label, Dest, Request, Timeout, Options) ->
    try teleport_trace:lent(fun() -> called(teleport_message:find(Dest), Label, Request, Timeout, Options) end) of
        {ok, Reply} -> Reply
    catch exit:Reason -> exit({Reason, {teleport, call, [Dest, Request, Timeout]}})
    end.

called({remote, Node, To}, Label, Request, Timeout, Options) ->
    case teleport_pool:lookup(Node) of
        none -> over_distribution(Node, To, Label, Request, Timeout, Options);
        Pool ->
            Deadline = teleport_deadline:in(Timeout),
            case teleport_pool:request(Pool, To, teleport_message:key(Options), Label, Request, wait_of(Timeout, Options)) of
                {ok, Ref} -> pooled(Ref, Pool, teleport_message:key(Options), Node, Deadline);
                {error, Reason} -> exit(Reason);
                gone -> over_distribution(Node, To, Label, Request, teleport_deadline:left(Deadline), Options)
            end
    end;
called({local, To}, Label, Request, Timeout, _) -> gen:call(To, Label, Request, Timeout);
called(noproc, _, _, _, _) -> exit(noproc).

wait_of(_, #{on_full := OnFull}) when OnFull =/= block -> 0;
wait_of(Timeout, _) -> Timeout.

over_distribution(Node, To, Label, Request, Timeout, Options) ->
    Suspend = [nosuspend || wait_of(infinity, Options) =:= 0],
    teleport_direct:call(teleport_message:address(Node, To), Label, Request, Timeout, Suspend).

pooled(Ref, Pool, Key, Node, Deadline) ->
    case response(receive_response, Ref, [Ref, teleport_deadline:left(Deadline)]) of
        {reply, Reply} -> {ok, Reply};
        timeout ->
            ok = teleport_pool:cancel(Pool, Key, Ref),
            exit(timeout);
        %% The process that serves the pool's connection has exited, not the server.
        {error, {_, Ended}} when is_pid(Ended), node(Ended) =:= node() -> exit({nodedown, Node});
        {error, {noconnection, _}} -> exit({nodedown, Node});
        {error, {Reason, _}} -> exit(Reason)
    end.

%% @doc Starts a call. The identifier is a gen_server request identifier.
-spec request(teleport:dest(), Request :: term(), teleport:options()) -> teleport:request_id().
request(Dest, Request, Options) ->
    Found = teleport_message:find(Dest),
    case teleport_trace:lent(fun() -> begun(Found, Request, Options) end) of
        {error, Reason} ->
            %% The caller gets this failure as a message, like any other result of the call.
            Ref = make_ref(),
            self() ! {'DOWN', Ref, process, Dest, Reason},
            Ref;
        Id -> Id
    end.

begun({remote, Node, To}, Request, Options) ->
    Pool = teleport_pool:lookup(Node),
    case Pool =/= none andalso teleport_pool:request(Pool, To, teleport_message:key(Options), '$gen_call', Request, wait_of(infinity, Options)) of
        {ok, Ref} -> Ref;
        {error, Reason} -> {error, Reason};
        _ -> gen:send_request(teleport_message:address(Node, To), '$gen_call', Request)
    end;
begun({local, To}, Request, _) -> gen:send_request(To, '$gen_call', Request);
begun(noproc, _, _) -> {error, noproc}.

%% @doc Calls gen_server's function of this name for a request. Every request identifier is a monitor with an alias,
%% whichever module created it, but gen_server's type for it is opaque.
-spec response(wait_response | receive_response | check_response, teleport:request_id(), Args :: [term()]) -> teleport:response() | timeout | no_reply.
response(Function, Id, Args) when is_reference(Id) -> apply(gen_server, Function, Args);
response(_, Id, _) -> error({bad_request_id, Id, "expected what teleport:send_request/2 returns"}).

%% @doc See {@link teleport:multi_call/4}.
-spec multi([node()], Name :: atom(), Request :: term(), timeout()) -> {[{node(), Reply :: term()}], Bad :: [node()]}.
multi(Nodes, Name, Request, Timeout) ->
    Deadline = teleport_deadline:in(Timeout),
    Begun = [{Node, request({Name, Node}, Request, #{})} || Node <- Nodes],
    Responses = [{Node, response(receive_response, Ref, [Ref, teleport_deadline:left(Deadline)])} || {Node, Ref} <- Begun],
    Bad = [Node || {Node, Response} <- Responses, Response =:= timeout orelse element(1, Response) =:= error],
    {[{Node, Reply} || {Node, {reply, Reply}} <- Responses], Bad}.
