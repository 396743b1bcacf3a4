%% SPDX-License-Identifier: Apache-2.0
%% @doc Collections of requests whose replies are taken in the order in which they come, as gen_server and erpc have them since OTP 25.
%%
%% A collection maps the reference of a request to the request and its label. One selective receive waits for all of them.
-module(teleport_requests).

-export([new/0, size/1, add/3, to_list/1, wait/3, finish/3, check/3, give_up/2]).
-export_type([collection/0, label/0, limit/0]).

-type label() :: term().
-opaque collection() :: #{reference() => {teleport_request:id(), label()}}.
-type limit() :: teleport_deadline:limit().
-type response() :: {reply, term()} | {error, {Reason :: term(), teleport:dest()}}.

%% @doc An empty collection.
-spec new() -> collection().
new() -> #{}.

%% @doc How many requests it holds.
-spec size(collection()) -> non_neg_integer().
size(Collection) when is_map(Collection) -> map_size(Collection).

%% @doc Adds a request, which must not be in it.
-spec add(teleport_request:id(), label(), collection()) -> collection().
add(Id, Label, Collection) when is_map(Collection) ->
    Ref = teleport_request:ref(Id),
    case Collection of
        #{Ref := _} -> error(badarg);
        #{} -> Collection#{Ref => {Id, Label}}
    end.

%% @doc The requests and their labels.
-spec to_list(collection()) -> [{teleport_request:id(), label()}].
to_list(Collection) when is_map(Collection) -> maps:values(Collection).

%% @doc The next response. `Delete': the collection comes back without its request. After `timeout' all may be waited for again.
-spec wait(collection(), limit(), Delete :: boolean()) -> {response(), label(), collection()} | no_request | timeout.
wait(Collection, _, Delete) when map_size(Collection) =:= 0, is_boolean(Delete) ->
    no_request;
wait(Collection, Limit, Delete) when is_map(Collection), is_boolean(Delete) ->
    receive
        {Ref, _} = Message when is_map_key(Ref, Collection) -> taken(Ref, Message, Collection, Delete);
        {[alias | Ref], _} = Message when is_map_key(Ref, Collection) -> taken(Ref, Message, Collection, Delete);
        {Ref, _, _} = Message when is_map_key(Ref, Collection) -> taken(Ref, Message, Collection, Delete);
        {'DOWN', Ref, process, _, _} = Message when is_map_key(Ref, Collection) -> taken(Ref, Message, Collection, Delete)
    after teleport_deadline:of_limit(Limit) -> timeout
    end.

%% @doc The same, but after `timeout' all its requests are given up.
-spec finish(collection(), limit(), Delete :: boolean()) -> {response(), label(), collection()} | no_request | timeout.
finish(Collection, Limit, Delete) ->
    case wait(Collection, Limit, Delete) of
        timeout ->
            lists:foreach(fun({Id, _}) -> _ = teleport_request:finish(Id, 0) end, maps:values(Collection)),
            timeout;
        Other -> Other
    end.

%% @doc Whether a message that was received is a response to one of them.
-spec check(Message :: term(), collection(), Delete :: boolean()) -> {response(), label(), collection()} | no_request | no_reply.
check(_, Collection, Delete) when map_size(Collection) =:= 0, is_boolean(Delete) -> no_request;
check(Message, Collection, Delete) when is_map(Collection), is_boolean(Delete) ->
    case ref(Message) of
        Ref when is_map_key(Ref, Collection) -> taken(Ref, Message, Collection, Delete);
        _ -> no_reply
    end.

%% @doc Gives up a request, and takes it out: its reply never comes.
-spec give_up(teleport_request:id(), collection()) -> collection().
give_up(Id, Collection) ->
    _ = teleport_request:finish(Id, 0),
    maps:remove(teleport_request:ref(Id), Collection).

ref({[alias | Ref], _}) -> Ref;
ref({Ref, _}) -> Ref;
ref({Ref, _, _}) -> Ref;
ref({'DOWN', Ref, process, _, _}) -> Ref;
ref(_) -> none.

taken(Ref, Message, Collection, Delete) ->
    #{Ref := {Id, Label}} = Collection,
    Left = case Delete of
               true -> maps:remove(Ref, Collection);
               false -> Collection
           end,
    case teleport_request:check(Message, Id) of
        no_reply -> no_reply;
        Response -> {Response, Label, Left}
    end.
