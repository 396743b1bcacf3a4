%% SPDX-License-Identifier: Apache-2.0
%% @doc The attribute library of the RELEASE report D3.5, with the API of its section 3.
%%
%% Call `attr:start()' on each node, which starts the application `placement' unless it is already running. Then, on any
%% of these nodes:
%% ```
%% attr:request_attrs(Nodes, [cpu_speed, mem_free]).
%% attr:choose_nodes(Nodes, [{vm_num_processors, ge, 8}, {loadavg5, lt, 0.5}]).
%% '''
%% The units are those of the report, MHz and kB, and load averages are not divided by the number of processors. Each
%% call sends new requests to the nodes, whereas {@link placement} caches the values. {@link placement} also has more
%% predicates and can explain its choices. A node that is listed twice is asked and returned only once, at its first
%% position. A node that does not answer within five seconds is left out, and it does not delay the others.
-module(attr).

-export([start/0, start/1, start/2, stop/0, insert_attr/2, update_attr/2, delete_attr/1, request_attrs/2, choose_nodes/2]).

-export_type([predicate/0]).

-type predicate() :: {placement_entry:name(), eq | ne | lt | le | gt | ge, Constant :: term()} | {placement_entry:name(), true | false | yes | no}.

-define(DEADLINE_MS, 5000).

%% @doc Starts the server with the built-in attributes.
-spec start() -> ok | {error, Text :: unicode:chardata()}.
start() -> begin_with(true, none).

%% @doc Starts the server with the built-in attributes and those of a configuration file, which override built-in ones
%% of the same name. With `nobuiltins' the node has no attributes until some are inserted.
-spec start(nobuiltins | file:name_all()) -> ok | {error, Text :: unicode:chardata()}.
start(nobuiltins) -> begin_with(false, none);
start(File) -> begin_with(true, File).

%% @doc Starts the server with only the attributes of a configuration file.
-spec start(nobuiltins, file:name_all()) -> ok | {error, Text :: unicode:chardata()}.
start(nobuiltins, File) -> begin_with(false, File).

%% If the file cannot be read, nothing changes. If the node already serves attributes, the file's
%% attributes replace those that were configured before.
begin_with(Builtins, File) ->
    case placement_entry:read(File) of
        {ok, Entries} ->
            case application:ensure_all_started(placement) of
                {ok, _} -> placement_attr:configure(placement_builtin:definitions(Builtins), Entries);
                {error, Reason} -> {error, io_lib:format("the application placement does not start: ~0tp", [Reason])}
            end;
        {error, _} = Error -> Error
    end.

%% @doc Stops the attribute server and the application.
-spec stop() -> ok.
stop() ->
    _ = application:stop(placement),
    ok.

%% @doc Adds an attribute of this node, replacing any of the same name. Any process may call this.
-spec insert_attr(placement_entry:name(), Value :: term()) -> ok | {error, Text :: unicode:chardata()}.
insert_attr(Name, Value) -> placement_attr:insert(Name, Value).

%% @doc Changes an attribute of this node.
-spec update_attr(placement_entry:name(), Value :: term()) -> ok | {error, Text :: unicode:chardata()}.
update_attr(Name, Value) -> placement_attr:update(Name, Value).

%% @doc Removes an attribute of this node.
-spec delete_attr(placement_entry:name()) -> ok.
delete_attr(Name) -> placement_attr:delete(Name).

%% @doc Returns the attributes of the nodes that answer, with `undefined' for each unknown value.
-spec request_attrs([node()], [placement_entry:name()]) -> [{node(), [{placement_entry:name(), Value :: term()}]}].
request_attrs(Nodes, Names) ->
    Distinct = placement_query:distinct(Nodes),
    Views = ask(Distinct, Names),
    [{Node, [{Name, value(maps:get(Name, Attributes))} || Name <- Names]}
     || Node <- Distinct, #{status := ok, attributes := Attributes} <- [maps:get(Node, Views)]].

%% Starts the application if start/0 was not called, because a caller may only want to query other nodes.
ask(Nodes, Names) ->
    {ok, _} = case placement_cache:is_running() of
                  true -> {ok, []};
                  false -> application:ensure_all_started(placement)
              end,
    placement_cache:fetch(Nodes, Names, #{live => true, deadline => ?DEADLINE_MS}).

value({ok, Value, _, _, _}) -> Value;
value({unknown, _}) -> undefined.

%% @doc Returns the nodes for which all predicates are true, in the order of the list. An `undefined' value does not
%% satisfy any predicate.
-spec choose_nodes([node()], [predicate()] | predicate()) -> [node()].
choose_nodes(Nodes, Predicate) when is_tuple(Predicate) -> choose_nodes(Nodes, [Predicate]);
choose_nodes(Nodes, Predicates) ->
    Compiled = compiled(Predicates),
    Names = placement_pred:attributes(Compiled),
    Distinct = placement_query:distinct(Nodes),
    Views = ask(Distinct, Names),
    [Node || Node <- Distinct, #{status := ok} = View <- [maps:get(Node, Views)],
             placement_pred:evaluate(Compiled, #{node => Node, view => View}) =:= true].

compiled(Predicates) ->
    case [P || P <- Predicates, not is_predicate(P)] of
        [] ->
            case placement_pred:compile(Predicates) of
                {ok, Compiled} -> Compiled;
                {error, Text} -> error({bad_predicate, unicode:characters_to_list(Text)})
            end;
        [Other | _] ->
            error({bad_predicate, lists:flatten(io_lib:format("~0tP; expected {Name, eq|ne|lt|le|gt|ge, Value} or {Name, true|false|yes|no}", [Other, 12]))})
    end.

is_predicate({Name, Operator, _}) -> is_atom(Name) andalso lists:member(Operator, [eq, ne, lt, le, gt, ge]);
is_predicate({Name, Word}) -> is_atom(Name) andalso lists:member(Word, [true, false, yes, no]);
is_predicate(_) -> false.
