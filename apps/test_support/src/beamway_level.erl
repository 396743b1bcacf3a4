%% SPDX-License-Identifier: Apache-2.0
%% @doc Selects a suite's cases for the level of a run: `quick', `rest' (everything that is not
%% quick) or `all'.
%%
%% The environment variable BEAMWAY_TEST_LEVEL names the level (`scripts/run-tests' sets it), and `test/runners' lists the groups and cases that
%% are not quick.
-module(beamway_level).

-export([current/0, words/1, groups/3, all/4]).

-include_lib("eunit/include/eunit.hrl").

-type level() :: quick | rest | all.
%% The entries for a suite in `test/runners': "rest", "-case", "+case", "-(group)", "+(group)".
-type words() :: [string()].

%% @doc Returns the level of this run. The default is all.
-spec current() -> level().
current() ->
    case os:getenv("BEAMWAY_TEST_LEVEL", "all") of
        "quick" -> quick;
        "rest" -> rest;
        "all" -> all
    end.

%% @doc Returns the entries for a suite in `test/runners'.
-spec words(module()) -> words().
words(Suite) ->
    {ok, Text} = file:read_file(test_support:file("test/runners")),
    Lines = [string:lexemes(hd(string:split(Line, "#")), " ") || Line <- string:split(unicode:characters_to_list(Text), "\n", all)],
    lists:append([Words || [Name | Words] <- Lines, Name =:= atom_to_list(Suite)]).

%% @doc Returns the definitions of groups, restricted to the level.
-spec groups(level(), words(), [tuple()]) -> [tuple()].
groups(Level, Words, Groups) -> [group(Level, Words, [], Group) || Group <- Groups].

group(Level, Words, Path, {Name, Properties, Members}) ->
    {Name, Properties, members(Level, Words, [Name | Path], Members)};
group(Level, Words, Path, {Name, Members}) ->
    {Name, [], members(Level, Words, [Name | Path], Members)}.

members(Level, Words, Path, Members) ->
    lists:flatmap(fun(Member) -> member(Level, Words, Path, Member) end, Members).

member(_, _, _, {group, _} = Reference) -> [Reference];
member(Level, Words, Path, Group) when is_tuple(Group), is_list(element(tuple_size(Group), Group)) ->
    case group(Level, Words, Path, Group) of
        {_, _, []} -> [];
        Some -> [Some]
    end;
member(Level, Words, Path, Case) ->
    [Case || is_taken(Level, Words, Path, name(Case))].

name({testcase, Name, _}) -> Name;
name(Name) -> Name.

%% @doc Returns the cases and groups of a suite that belong to the level. A group without any is left out.
-spec all(level(), words(), [term()], Groups :: [tuple()]) -> [term()].
all(Level, Words, All, Groups) ->
    lists:filter(fun(Reference) when is_tuple(Reference), element(1, Reference) =:= group ->
                         not lists:member(element(2, Reference), [Name || {Name, _, []} <- groups(Level, Words, Groups)]);
                    (Case) -> is_taken(Level, Words, [], name(Case))
                 end, All).

is_taken(all, _, _, _) -> true;
is_taken(quick, Words, Path, Case) -> is_quick(Words, Path, Case);
is_taken(rest, Words, Path, Case) -> not is_quick(Words, Path, Case).

is_quick(Words, Path, Case) ->
    Names = [atom_to_list(Case) | ["(" ++ atom_to_list(Group) ++ ")" || Group <- Path]],
    Is = fun(Sign) -> lists:any(fun(Name) -> lists:member([Sign | Name], Words) end, Names) end,
    not lists:member("rest", Words) andalso not Is($-) andalso (Is($+) orelse not lists:any(fun([Sign | _]) -> Sign =:= $+ end, Words)).

%% Cases and groups are selected by name. One of these groups is nested in another.
-define(GROUPS, [{shm, [], [a, {inner, [parallel], [b]}]}, {tcp, [a, b]}]).

quick_and_rest_test_() ->
    [?_assertEqual({Quick, Rest}, {taken(quick, Words), taken(rest, Words)})
     || {Words, Quick, Rest} <- [{[], [c, {shm, [a, {inner, [b]}]}, {tcp, [a, b]}], []},
                                 {["alone", "-(tcp)"], [c, {shm, [a, {inner, [b]}]}], [{tcp, [a, b]}]},
                                 {["-b"], [c, {shm, [a]}, {tcp, [a]}], [{shm, [{inner, [b]}]}, {tcp, [b]}]},
                                 {["+(shm)", "-a"], [{shm, [{inner, [b]}]}], [c, {shm, [a]}, {tcp, [a, b]}]},
                                 {["rest"], [], [c, {shm, [a, {inner, [b]}]}, {tcp, [a, b]}]}]].

everything_test() ->
    ?assertEqual([c, {shm, [a, {inner, [b]}]}, {tcp, [a, b]}], taken(all, ["rest", "-a"])).

taken(Level, Words) ->
    Kept = groups(Level, Words, ?GROUPS),
    lists:map(fun({group, Name}) -> bare(lists:keyfind(Name, 1, Kept)); (Case) -> Case end,
              all(Level, Words, [c, {group, shm}, {group, tcp}], ?GROUPS)).

bare({Name, _, Members}) -> {Name, [bare(Member) || Member <- Members]};
bare(Case) -> Case.

%% The table must not name a case that does not exist, because otherwise a case that has been renamed would silently become part of every
%% level.
table_names_what_is_there_test() ->
    {ok, Text} = file:read_file(test_support:file("test/runners")),
    {match, Suites} = re:run(Text, "^([a-z_]+_SUITE)", [global, multiline, {capture, all_but_first, list}]),
    _ = [{module, _} = code:ensure_loaded(list_to_atom(Suite)) || [Suite] <- Suites],
    ?assertEqual([], [{Suite, Name} || [Suite] <- Suites, [Sign | Name] <- words(list_to_atom(Suite)), Sign =:= $- orelse Sign =:= $+,
                                       not is_in(list_to_atom(Suite), Name)]).

is_in(Suite, [$( | Group]) -> lists:keymember(list_to_atom(lists:droplast(Group)), 1, Suite:groups());
is_in(Suite, Case) -> erlang:function_exported(Suite, list_to_atom(Case), 1).
