%% SPDX-License-Identifier: Apache-2.0
%% @doc Determines how old a result is: how many commits since its own have changed what it measures. Moving a file does not count as a change.
%%
%% All information comes from git. Without the full history (in a tarball or a shallow clone), the age cannot be determined; see {@link known/0}.
-module(beamway_bench_history).

-export([known/0, has/1, touching/2]).

-define(GIT_MS, 60000).
%% A renamed module is not identical to the old one, because it contains its own name.
-define(MOVED_PERCENT, 90).

-type change() :: {touched, File :: string()} | {moved, From :: string(), To :: string()} | {removed, File :: string()}.

%% @doc Returns whether the history is available and, if not, why.
-spec known() -> true | {false, unicode:chardata()}.
known() ->
    case git(beamway_bench_checkout:root(), ["rev-parse", "--is-shallow-repository"]) of
        {0, ["false" ++ _]} -> true;
        {0, _} -> {false, "this clone is shallow: git fetch --unshallow brings the history"};
        _ -> {false, "this checkout came without its git history"}
    end.

%% @doc Returns whether this branch contains the commit.
-spec has(Commit :: binary()) -> boolean().
has(Commit) ->
    element(1, git(beamway_bench_checkout:root(), ["merge-base", "--is-ancestor", binary_to_list(Commit), "HEAD"])) =:= 0.

%% @doc Returns how many commits after the given one have changed something under these paths.
-spec touching(Commit :: binary(), Paths :: [string()]) -> non_neg_integer().
touching(Commit, Paths) -> touching(beamway_bench_checkout:root(), Commit, Paths).

touching(_, _, []) -> 0;
touching(Root, Commit, Paths) ->
    {0, Files} = git(Root, ["ls-files", "--" | Paths]),
    {0, Log} = git(Root, ["log", "--no-merges", "-M50%", "--name-status", "--format=tformat:commit", binary_to_list(Commit) ++ "..HEAD"]),
    count(commits(Log), sets:from_list(lines(Files), [{version, 2}]), Paths).

git(Root, Words) ->
    case os:find_executable("git") of
        false -> {1, []};
        Git -> beamway_bench_tools:run(Git, ["-C", Root, "-c", "core.quotePath=false" | Words], ?GIT_MS)
    end.

lines(Chunks) -> string:lexemes(lists:append(Chunks), "\n").

%% Returns the changes of each commit, newest first.
-spec commits([string()]) -> [[change()]].
commits(Chunks) -> commits(lines(Chunks), []).

commits([], Commits) -> lists:reverse([lists:reverse(Changes) || Changes <- Commits]);
commits(["commit" | Lines], Commits) -> commits(Lines, [[] | Commits]);
commits([Line | Lines], [Changes | Commits]) -> commits(Lines, [lists:reverse(changes(string:split(Line, "\t", all))) ++ Changes | Commits]).

changes(["R" ++ Percent, From, To]) ->
    Moved = {moved, From, To},
    case list_to_integer(Percent) >= ?MOVED_PERCENT of
        true -> [Moved];
        false -> [{touched, To}, Moved]
    end;
changes(["C" ++ _, _, To]) -> [{touched, To}];
changes(["D", File]) -> [{removed, File}];
changes([_, File]) -> [{touched, File}].

%% Walks back from the newest commit. `Files' are the files that these paths contain today, under the names that they had at the commit being visited.
count([], _, _) -> 0;
count([Changes | Commits], Files, Paths) ->
    Touched = lists:any(fun({touched, File}) -> sets:is_element(File, Files);
                           ({removed, File}) -> lists:any(fun(Path) -> is_under(File, Path) end, Paths);
                           ({moved, _, _}) -> false
                        end, Changes),
    Before = lists:foldl(fun({moved, From, To}, Acc) ->
                                 case sets:is_element(To, Acc) of
                                     true -> sets:add_element(From, sets:del_element(To, Acc));
                                     false -> Acc
                                 end;
                            (_, Acc) -> Acc
                         end, Files, Changes),
    case Touched of true -> 1; false -> 0 end + count(Commits, Before, Paths).

is_under(File, Path) -> File =:= Path orelse lists:prefix(Path ++ "/", File).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

commits_test() ->
    Log = "commit\n\nM\ta/x.c\nR100\told/y.c\ta/y.c\ncommit\n\nR060\tq.c\ta/q.c\nD\ta/gone.c\ncommit\n",
    ?assertEqual([[{touched, "a/x.c"}, {moved, "old/y.c", "a/y.c"}], [{touched, "a/q.c"}, {moved, "q.c", "a/q.c"}, {removed, "a/gone.c"}], []], commits([Log])).

count_test_() ->
    Files = sets:from_list(["new/x.c"], [{version, 2}]),
    Count = fun(Commits) -> count(Commits, Files, ["new"]) end,
    [?_assertEqual(0, Count([[{touched, "other.c"}]])),
     ?_assertEqual(2, Count([[{touched, "new/x.c"}], [], [{touched, "new/x.c"}]])),
     %% Several changes in one commit count once.
     ?_assertEqual(1, Count([[{touched, "new/x.c"}, {removed, "new/y.c"}]])),
     %% A move does not count as a change, and earlier changes are found under the file's old name.
     ?_assertEqual(0, Count([[{moved, "old/x.c", "new/x.c"}]])),
     ?_assertEqual(1, Count([[{moved, "old/x.c", "new/x.c"}], [{touched, "old/x.c"}]])),
     %% A different file that once had this name does not count.
     ?_assertEqual(0, Count([[{moved, "old/x.c", "new/x.c"}], [{touched, "new/x.c"}]]))].

%% git itself decides what is a move: the module was changed, moved without a change, and moved again with a changed comment.
a_moved_benchmark_is_not_older_test_() ->
    {timeout, 60, [fun() -> beamway_bench_tools:with_folder(fun moved_benchmark/1) end || os:find_executable("git") =/= false]}.

moved_benchmark(Folder) ->
    Git = fun(Words) -> {0, Lines} = git(Folder, ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgSign=false" | Words]), Lines end,
    Text = [io_lib:format("line(~b) -> ~b.~n", [N, N]) || N <- lists:seq(1, 50)],
    Commit = fun(Name, Content) ->
                     File = filename:join(Folder, Name),
                     ok = filelib:ensure_dir(File),
                     ok = file:write_file(File, Content),
                     _ = Git(["add", "-A"]),
                     _ = Git(["commit", "--quiet", "-m", "x"]),
                     [Line] = Git(["rev-parse", "HEAD"]),
                     list_to_binary(string:trim(Line))
             end,
    _ = Git(["init", "--quiet"]),
    First = Commit("bench/a.erl", Text),
    Changed = Commit("bench/a.erl", [Text, "more() -> 1.\n"]),
    ok = file:delete(filename:join(Folder, "bench/a.erl")),
    Moved = Commit("bench/rooms/a.erl", [Text, "more() -> 1.\n"]),
    ok = file:delete(filename:join(Folder, "bench/rooms/a.erl")),
    _ = Commit("bench/room/a.erl", ["%% of a room\n", Text, "more() -> 1.\n"]),
    Ages = fun() -> [touching(Folder, Since, ["bench/room/a.erl"]) || Since <- [First, Changed, Moved]] end,
    ?assertEqual([1, 0, 0], Ages()),
    _ = Commit("bench/room/a.erl", Text),
    ?assertEqual([2, 1, 1], Ages()).

%% Uses the history of this checkout, if it has one.
this_checkout_test_() ->
    case known() of
        true ->
            {timeout, 60, [?_assert(has(<<"HEAD">>)), ?_assertNot(has(<<"0000000000ab">>)),
                           ?_assertEqual(0, touching(<<"HEAD">>, ["bench"])), ?_assertEqual(0, touching(<<"HEAD">>, ["no/such/path"]))]};
        {false, _} -> []
    end.
-endif.
