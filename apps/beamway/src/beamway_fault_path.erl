%% SPDX-License-Identifier: Apache-2.0
%% @doc Looks up which paths from this node have a fault, and how long a new connection has to wait because of it.
%%
%% The table belongs to {@link beamway_fault}, and does not exist on a node that does not allow faults. Its rows are {Node, Fault, EndsMs}.
-module(beamway_fault_path).

-export([all/0, of_node/1, pass/2, pass_by_name/2, is_cut/1]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-define(TABLE, beamway_fault).
-define(LOOK_MS, 20).

%% @doc Returns the faults set on this node.
-spec all() -> [{node(), beamway_fault:known()}].
all() ->
    try [{Node, known(Fault, EndsMs)} || {Node, Fault, EndsMs} <- lists:sort(ets:tab2list(?TABLE))]
    catch error:badarg -> []
    end.

%% @doc Returns the fault set for a node.
-spec of_node(node()) -> {ok, beamway_fault:known()} | none.
of_node(Node) ->
    try ets:lookup(?TABLE, Node) of
        [{Node, Fault, EndsMs}] -> {ok, known(Fault, EndsMs)};
        [] -> none
    catch
        error:badarg -> none
    end.

known(Fault, EndsMs) -> (maps:without([for_ms, disconnect], Fault))#{left_ms => max(0, EndsMs - now_ms())}.

%% @doc Waits as long as the fault would delay setting up a connection to or from that node: for at most `Ms' while the path is cut, and for twice
%% the delay if the path is slow.
-spec pass(node(), Ms :: timeout()) -> ok | {error, timeout}.
pass(Node, Ms) ->
    case of_node(Node) of
        none -> ok;
        {ok, #{cut := _}} when Ms =:= infinity -> receive after ?LOOK_MS -> pass(Node, Ms) end;
        {ok, #{cut := _}} when Ms =< 0 -> {error, timeout};
        {ok, #{cut := _}} -> receive after min(Ms, ?LOOK_MS) -> pass(Node, Ms - ?LOOK_MS) end;
        {ok, Fault} -> receive after 2 * maps:get(delay_ms, Fault, 0) -> ok end
    end.

%% @doc Like {@link pass/2}, but takes the name that a caller claims to have, which need not exist as an atom.
-spec pass_by_name(binary(), Ms :: timeout()) -> ok | {error, timeout}.
pass_by_name(Name, Ms) ->
    case [Node || {Node, _} <- all(), atom_to_binary(Node) =:= Name] of
        [Node] -> pass(Node, Ms);
        [] -> ok
    end.

%% @doc Returns whether a fault blocks data to or from that node.
-spec is_cut(node()) -> boolean().
is_cut(Node) ->
    case of_node(Node) of
        {ok, #{cut := _}} -> true;
        _ -> false
    end.

now_ms() -> erlang:monotonic_time(millisecond).

-ifdef(TEST).

without_the_option_test_() ->
    [?_assertEqual([], all()), ?_assertEqual(none, of_node(a@b)), ?_assertNot(is_cut(a@b)),
     ?_assertEqual(ok, pass(a@b, infinity)), ?_assertEqual(ok, pass_by_name(<<"a@b">>, infinity))].

-endif.
