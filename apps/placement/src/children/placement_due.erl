%% SPDX-License-Identifier: Apache-2.0
%% @doc A set of names, each with a due time, so that a tick handles only the names that are due. The module is pure.
-module(placement_due).

-export([new/0, at/3, pop/2]).

-export_type([due/0]).

%% The number makes each key of the tree unique, because `==' treats the names 1 and 1.0 as equal.
-record(due, {last = 0 :: non_neg_integer(), keys = #{} :: #{term() => {Ms :: integer(), non_neg_integer()}},
              tree = gb_trees:empty() :: gb_trees:tree({Ms :: integer(), non_neg_integer()}, term())}).

-opaque due() :: #due{}.

%% @doc Returns an empty set of names.
-spec new() -> due().
new() -> #due{}.

%% @doc Sets the time at which a name is due, unless the name is already due earlier.
-spec at(Name :: term(), Ms :: integer(), due()) -> due().
at(Name, Ms, #due{last = Last, keys = Keys, tree = Tree} = Due) ->
    case Keys of
        #{Name := {Sooner, _}} when Sooner =< Ms -> Due;
        #{Name := Key} -> at(Name, Ms, Due#due{keys = maps:remove(Name, Keys), tree = gb_trees:delete(Key, Tree)});
        #{} -> Due#due{last = Last + 1, keys = Keys#{Name => {Ms, Last}}, tree = gb_trees:insert({Ms, Last}, Name, Tree)}
    end.

%% @doc Removes and returns the names that are due, earliest first.
-spec pop(NowMs :: integer(), due()) -> {[Name :: term()], due()}.
pop(Now, Due) -> pop(Now, Due, []).

pop(Now, #due{keys = Keys, tree = Tree} = Due, Names) ->
    case gb_trees:is_empty(Tree) orelse gb_trees:smallest(Tree) of
        {{Ms, _} = Key, Name} when Ms =< Now -> pop(Now, Due#due{keys = maps:remove(Name, Keys), tree = gb_trees:delete(Key, Tree)}, [Name | Names]);
        _ -> {lists:reverse(Names), Due}
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

due_test() ->
    Due = lists:foldl(fun({Name, Ms}, Before) -> at(Name, Ms, Before) end, new(), [{a, 30}, {b, 10}, {c, 20}, {a, 5}, {b, 40}, {1, 20}, {1.0, 20}, {d, 21}]),
    {Names, Left} = pop(20, Due),
    ?assertEqual([a, b, c, 1, 1.0], Names),
    ?assertEqual({[], Left}, pop(20, Left)),
    %% A name that was removed may be added again.
    ?assertMatch({[a, d], _}, pop(50, at(a, 1, Left))).
-endif.
