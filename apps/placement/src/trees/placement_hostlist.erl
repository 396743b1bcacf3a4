%% SPDX-License-Identifier: Apache-2.0
%% @doc Reads and writes Slurm's host lists, such as `atcn[019-036,073],login1'. All functions are pure.
-module(placement_hostlist).

-export([expand/1, compress/1, breaks/1, format_error/1]).

-export_type([error/0]).

-type error() :: {hostlist, Text :: string(), Why :: string()}.

%% No cluster has more hosts than this. The limit prevents a typo in a range from exhausting the memory.
-define(MOST, 100000).

%% @doc Returns the hosts in a host list, in its order.
-spec expand(string() | binary()) -> {ok, [string()]} | {error, error()}.
expand(Text) when is_binary(Text) -> expand(unicode:characters_to_list(Text));
expand(Text) ->
    try {ok, lists:append([hosts(Word) || Word <- words(string:trim(Text))])}
    catch throw:Why -> {error, {hostlist, Text, Why}}
    end.

%% Commas between brackets do not separate entries.
words(Text) -> words(Text, 0, [], []).

words([], 0, Word, Words) -> [lists:reverse(W) || W <- lists:reverse([Word | Words]), W =/= []];
words([], _, _, _) -> throw("a bracket is not closed");
words([$[ | Rest], 0, Word, Words) -> words(Rest, 1, [$[ | Word], Words);
words([$[ | _], 1, _, _) -> throw("a bracket inside brackets");
words([$] | Rest], 1, Word, Words) -> words(Rest, 0, [$] | Word], Words);
words([$] | _], 0, _, _) -> throw("a closing bracket without an opening one");
words([$, | Rest], 0, Word, Words) -> words(Rest, 0, [], [Word | Words]);
words([Char | _], 0, _, _) when Char =:= $\s; Char =:= $\n; Char =:= $\t -> throw("a space between the hosts; expected commas");
words([Char | Rest], Depth, Word, Words) -> words(Rest, Depth, [Char | Word], Words).

hosts(Word) ->
    case string:split(Word, "[") of
        [Name] -> [Name];
        [Prefix, Rest] ->
            [Inside, Suffix] = string:split(Rest, "]"),
            Ends = hosts(Suffix),
            limited([Prefix ++ Number ++ End || Number <- numbers(Inside), End <- case Ends of [] -> [""]; _ -> Ends end])
    end.

limited(Hosts) when length(Hosts) > ?MOST -> throw("more than 100000 hosts");
limited(Hosts) -> Hosts.

numbers(Inside) -> limited(lists:append([range(string:split(Part, "-")) || Part <- string:split(Inside, ",", all)])).

range([One]) -> _ = number(One), [One];
range([First, Last]) ->
    case {number(First), number(Last)} of
        {Low, High} when Low =< High, High - Low < ?MOST ->
            [lists:flatten(string:pad(integer_to_list(N), length(First), leading, $0)) || N <- lists:seq(Low, High)];
        {Low, High} when Low > High -> throw(First ++ "-" ++ Last ++ " runs backwards");
        _ -> throw("more than 100000 hosts")
    end.

number(Text) ->
    case Text =/= "" andalso lists:all(fun(C) -> C >= $0 andalso C =< $9 end, Text) of
        true -> list_to_integer(Text);
        false -> throw("'" ++ Text ++ "' is not a number")
    end.

%% @doc Returns the host list for these hosts, with ranges for consecutive numbers.
-spec compress([string()]) -> string().
compress(Hosts) ->
    Runs = runs([split(Host) || Host <- Hosts]),
    lists:flatten(lists:join(",", [run_text(Run) || Run <- Runs])).

split(Host) ->
    {Reversed, Digits} = {lists:reverse(Host), fun(C) -> C >= $0 andalso C =< $9 end},
    {lists:reverse(lists:dropwhile(Digits, Reversed)), lists:reverse(lists:takewhile(Digits, Reversed))}.

runs([]) -> [];
runs([First | Rest]) -> runs(Rest, First, First, []).

runs([{Prefix, Number} | Rest], First, {Prefix, Last}, Runs) when Number =/= "", length(Number) =:= length(Last) ->
    case list_to_integer(Number) - list_to_integer(Last) of
        1 -> runs(Rest, First, {Prefix, Number}, Runs);
        _ -> runs(Rest, {Prefix, Number}, {Prefix, Number}, [{First, {Prefix, Last}} | Runs])
    end;
runs([Next | Rest], First, Last, Runs) -> runs(Rest, Next, Next, [{First, Last} | Runs]);
runs([], First, Last, Runs) -> lists:reverse([{First, Last} | Runs]).

run_text({{Prefix, Number}, {Prefix, Number}}) -> Prefix ++ Number;
run_text({{Prefix, First}, {Prefix, Last}}) -> [Prefix, "[", First, "-", Last, "]"].

%% @doc Returns the positions of the hosts whose next host does not have the next number.
-spec breaks([string()]) -> [pos_integer()].
breaks(Hosts) ->
    Lengths = [case {First, Last} of {{_, ""}, _} -> 1; {{_, A}, {_, B}} -> list_to_integer(B) - list_to_integer(A) + 1 end
               || {First, Last} <- runs([split(Host) || Host <- Hosts])],
    {Ends, _} = lists:mapfoldl(fun(Length, Sum) -> {Sum + Length, Sum + Length} end, 0, Lengths),
    lists:droplast([0 | Ends]) -- [0].

%% @doc Formats an error as text for users.
-spec format_error(error()) -> unicode:chardata().
format_error({hostlist, Text, Why}) ->
    io_lib:format("the list of hosts '~ts': ~ts; expected something like node[01-16,20],login1", [Text, Why]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

expand_test_() ->
    [?_assertEqual({ok, Want}, expand(Text))
     || {Want, Text} <- [{["a"], "a"}, {["a", "b"], "a,b"}, {["n08", "n09", "n10"], "n[08-10]"}, {["n1", "n3", "m"], "n[1,3],m"},
                         {["r1n1", "r1n2", "r2n1", "r2n2"], "r[1-2]n[1-2]"}, {["n1-ib"], "n[1]-ib"}, {["x9", "x10"], <<"x[9-10]">>}, {[], ""}]].

%% The allocation in the report's Figure 16 contains 256 nodes.
athos_test() ->
    {ok, Hosts} = expand("atcn[019-036,073-126,145-216,451-468,487-522,541-594,750-753]"),
    ?assertEqual(256, length(Hosts)),
    ?assertEqual([18, 72, 144, 162, 198, 252], breaks(Hosts)),
    ?assertEqual("atcn[019-036],atcn[073-126],atcn[145-216],atcn[451-468],atcn[487-522],atcn[541-594],atcn[750-753]", compress(Hosts)).

bad_input_test_() ->
    [?_assertMatch({error, {hostlist, Text, [_ | _]}}, expand(Text))
     || Text <- ["n[1", "n1]", "n[[1]]", "n[2-1]", "n[x]", "n[]", "n[1-]", "a b", "n[1-999999999]", "n[0-999]m[0-999]"]].

compress_test_() ->
    [?_assertEqual(Want, compress(Hosts)) || {Want, Hosts} <- [{"", []}, {"a", ["a"]}, {"n9,n10", ["n9", "n10"]}, {"n[09-10],a", ["n09", "n10", "a"]}]].
-endif.
