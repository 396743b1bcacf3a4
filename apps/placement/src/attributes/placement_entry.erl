%% SPDX-License-Identifier: Apache-2.0
%% @doc Reads the entries of the attribute table from a configuration file and checks them.
%%
%% A file contains a list of entries `{Name, Entry}', followed by a full stop. An entry is a plain value or one of:
%% <ul><li>`{static, Value}', `{static, Value, Options}': a value that does not change;</li>
%% <li>`{dynamic, {M, F}}', `{dynamic, {M, F, Arguments}}', `{dynamic, {M, F, Arguments}, Options}': the function is
%% evaluated when the attribute is requested;</li>
%% <li>`{automatic, {M, F, Arguments}}' (or `{M, F}', and `Options'): the function is evaluated once, after the file has
%% been read;</li>
%% <li>`{sampled, {M, F, Arguments}, Options}': the function returns a number and is evaluated at regular intervals; the
%% value is the average.</li></ul>
%% `Options' is a map or a list of pairs ({@link options()}).
-module(placement_entry).

-export([read/1, parse/1, definition/2, is_kept/1]).

-export_type([name/0, definition/0, options/0, type/0]).

-type name() :: atom().
-type type() :: number | integer | atom | text | boolean | any.
%% `type': the value's type; if the function returns a value of a different type, it counts as failed.
-type options() :: #{unit => placement_unit:unit(),
                     type => type(),
                     ttl => non_neg_integer(),         %% ms for which another node may cache the value
                     min_interval => non_neg_integer(), %% minimum ms between two evaluations, however many requests there are
                     limit => pos_integer(),           %% ms that one evaluation may take
                     tolerance => number(),            %% values that differ by no more than this count as the same
                     every => pos_integer(),           %% sampled: ms between two evaluations
                     over => pos_integer()}.           %% sampled: ms over which the value is averaged
-type definition() :: #{kind := static | dynamic | automatic | sampled, value => term(), call => placement_eval:call(),
                        unit := placement_unit:unit(), type := type(), ttl := non_neg_integer(), min_interval := non_neg_integer(),
                        limit := pos_integer(), tolerance := number(), every => pos_integer(), over => pos_integer()}.

-define(STATIC_TTL_MS, 60000).
-define(DYNAMIC_TTL_MS, 1000).
%% The VM limits timers to several centuries.
-define(EVERY_MAX_MS, (1 bsl 40)).

%% @doc Returns the entries of a file in their order, or an empty list for `none'. The error text
%% contains the file, the position and what was expected.
-spec read(none | file:name_all()) -> {ok, [{name(), definition()}]} | {error, Text :: unicode:chardata()}.
read(none) -> {ok, []};
read(File) ->
    case is_binary(File) orelse (is_list(File) andalso io_lib:printable_unicode_list(File)) of
        true -> read_file(File);
        false -> {error, io_lib:format("~0tP is not the name of a file", [File, 10])}
    end.

read_file(File) ->
    case file:read_file(File) of
        {ok, Bytes} -> in_file(File, read_text(Bytes));
        {error, Reason} -> {error, io_lib:format("cannot read the attribute file ~ts: ~ts", [File, file:format_error(Reason)])}
    end.

in_file(_, {ok, Entries}) -> {ok, Entries};
in_file(File, {error, {Line, Column}, Text}) -> {error, io_lib:format("~ts:~b:~b: ~ts", [File, Line, Column, Text])};
in_file(File, {error, Text}) -> {error, io_lib:format("~ts: ~ts", [File, Text])}.

read_text(Bytes) ->
    case unicode:characters_to_list(Bytes) of
        Text when is_list(Text) -> scanned(erl_scan:string(Text, {1, 1}));
        {_, Good, _} -> {error, place_after(Good), "this byte is not UTF-8"}
    end.

place_after(Text) ->
    Lines = string:split(Text, "\n", all),
    {length(Lines), string:length(lists:last(Lines)) + 1}.

scanned({ok, [], _}) -> {error, "it is empty; expected a list of attributes and a full stop"};
scanned({ok, Tokens, End}) ->
    {Term, Rest} = lists:splitwith(fun(Token) -> element(1, Token) =/= dot end, Tokens),
    case Rest of
        [] -> {error, End, "the full stop after the list is missing"};
        [Dot] -> parsed(erl_parse:parse_term(Term ++ [Dot]), Tokens);
        [_, Token | _] -> {error, erl_scan:location(Token), "text after the list's full stop: a file holds one list"}
    end;
scanned({error, {Place, Module, What}, _}) -> {error, Place, Module:format_error(What)}.

parsed({ok, Term}, Tokens) ->
    case entries(Term) of
        {error, Number, Text} -> {error, place_of(Number, Tokens), Text};
        Other -> Other
    end;
parsed({error, {Place, Module, What}}, _) -> {error, Place, Module:format_error(What)}.

place_of(Number, [_ | Tokens]) -> place_of(Number, Tokens, 0).

place_of(1, [Token | _], 0) -> erl_scan:location(Token);
place_of(Number, [Token | Tokens], Depth) ->
    case element(1, Token) of
        ',' when Depth =:= 0 -> place_of(Number - 1, Tokens, 0);
        Open when Open =:= '['; Open =:= '{'; Open =:= '<<' -> place_of(Number, Tokens, Depth + 1);
        Close when Close =:= ']'; Close =:= '}'; Close =:= '>>' -> place_of(Number, Tokens, Depth - 1);
        _ -> place_of(Number, Tokens, Depth)
    end.

%% @doc Checks a list of entries. The error text contains the number of the first invalid entry.
-spec parse(term()) -> {ok, [{name(), definition()}]} | {error, Text :: unicode:chardata()}.
parse(List) ->
    case entries(List) of
        {error, Number, Text} -> {error, io_lib:format("entry ~b: ~ts", [Number, Text])};
        Other -> Other
    end.

entries(List) ->
    case is_list(List) andalso length_of(List) of
        false -> {error, "expected a list of attributes such as [{num_cpus, 4}]"};
        improper -> {error, "expected a proper list"};
        _ -> entries(List, 1, [])
    end.

length_of(List) ->
    try length(List) catch error:badarg -> improper end.

entries([], _, Done) -> {ok, lists:reverse(Done)};
entries([{Name, Entry} | Rest], Number, Done) when is_atom(Name) ->
    case {lists:keymember(Name, 1, Done), definition(Name, Entry)} of
        {true, _} -> {error, Number, io_lib:format("the attribute ~tp is here a second time; give it once", [Name])};
        {_, {ok, Definition}} -> entries(Rest, Number + 1, [{Name, Definition} | Done]);
        {_, {error, Text}} -> {error, Number, Text}
    end;
entries([Other | _], Number, _) ->
    {error, Number, io_lib:format("~0tP is not {Name, Value} with an atom as name", [Other, 12])}.

%% @doc Checks one entry.
-spec definition(name(), term()) -> {ok, definition()} | {error, Text :: unicode:chardata()}.
definition(Name, {static, Value}) -> with_options(Name, #{kind => static, value => Value}, []);
definition(Name, {static, Value, Options}) -> with_options(Name, #{kind => static, value => Value}, Options);
definition(Name, {Kind, Call}) when Kind =:= dynamic; Kind =:= automatic; Kind =:= sampled -> definition(Name, {Kind, Call, []});
definition(Name, {Kind, Call, Options}) when Kind =:= dynamic; Kind =:= automatic; Kind =:= sampled ->
    case call(Call) of
        {ok, Checked} -> with_options(Name, #{kind => Kind, call => Checked}, Options);
        error -> {error, io_lib:format("attribute ~tp: ~0tP is not a function; expected {~tp, {Module, Function}} or {~tp, {Module, Function, [Argument]}}",
                                       [Name, Call, 12, Kind, Kind])}
    end;
definition(Name, {Kind, {M, F, A}}) when is_atom(Kind), is_atom(M), is_atom(F), is_list(A) -> unknown_kind(Name, Kind);
definition(Name, {Kind, {M, F, A}, _}) when is_atom(Kind), is_atom(M), is_atom(F), is_list(A) -> unknown_kind(Name, Kind);
definition(Name, {Kind, {M, F}}) when is_atom(Kind), is_atom(M), is_atom(F) -> unknown_kind(Name, Kind);
definition(Name, {Kind, {M, F}, _}) when is_atom(Kind), is_atom(M), is_atom(F) -> unknown_kind(Name, Kind);
definition(Name, Value) -> with_options(Name, #{kind => static, value => Value}, []).

unknown_kind(Name, Kind) ->
    {error, io_lib:format("attribute ~tp: ~tp is not a kind of entry; the kinds are static, dynamic, automatic and sampled "
                          "(write {static, Value} for a value that looks like this)", [Name, Kind])}.

call({M, F}) when is_atom(M), is_atom(F) -> {ok, {M, F, []}};
call({M, F, A}) when is_atom(M), is_atom(F), is_list(A) ->
    case length_of(A) of
        improper -> error;
        _ -> {ok, {M, F, A}}
    end;
call(_) -> error.

with_options(Name, #{kind := Kind} = Definition, Given) ->
    Options = if is_map(Given) -> maps:to_list(Given); true -> Given end,
    Size = #{value => erlang:external_size(maps:get(value, Definition, []))},
    case {Size, is_list(Options) andalso lists:all(fun is_option/1, Options)} of
        {#{value := Bytes}, _} when Bytes > 65536 ->
            {error, io_lib:format("attribute ~tp: its value has ~b bytes; at most 65536 are allowed", [Name, Bytes])};
        {_, true} -> sensible(Name, maps:merge(maps:merge(defaults(Kind), Definition), maps:from_list(Options)));
        {_, false} -> {error, io_lib:format("attribute ~tp: options ~0tP are not valid; expected unit, type, ttl, min_interval, limit, tolerance, "
                                            "every, over; units are ~0tp", [Name, Given, 20, placement_unit:names()])}
    end.

sensible(Name, #{kind := sampled, every := Every, over := Over}) when Over < Every ->
    {error, io_lib:format("attribute ~tp: over (~b ms) is shorter than every (~b ms)", [Name, Over, Every])};
sensible(Name, #{kind := sampled, every := Every, over := Over}) when Over > 10000 * Every ->
    {error, io_lib:format("attribute ~tp: over (~b ms) holds more than 10000 samples, one every ~b ms", [Name, Over, Every])};
sensible(_, Definition) -> {ok, Definition}.

defaults(Kind) ->
    Common = #{unit => none, type => any, ttl => ttl(Kind), min_interval => 0, limit => placement_config:limit_ms(), tolerance => 0},
    case Kind of
        sampled -> Common#{type := number, every => 1000, over => 60000};
        _ -> Common
    end.

ttl(dynamic) -> ?DYNAMIC_TTL_MS;
ttl(sampled) -> ?DYNAMIC_TTL_MS;
ttl(_) -> ?STATIC_TTL_MS.

is_option({unit, Unit}) -> placement_unit:is_unit(Unit);
is_option({type, Type}) -> lists:member(Type, [number, integer, atom, text, boolean, any]);
is_option({Name, Ms}) when Name =:= ttl; Name =:= min_interval -> is_integer(Ms) andalso Ms >= 0;
is_option({limit, Ms}) -> is_integer(Ms) andalso Ms >= 1 andalso Ms =< 60000;
is_option({Name, Ms}) when Name =:= every; Name =:= over -> is_integer(Ms) andalso Ms >= 10 andalso Ms =< ?EVERY_MAX_MS;
is_option({tolerance, Number}) -> is_number(Number) andalso Number >= 0;
is_option(_) -> false.

%% @doc Returns whether the table stores the value itself rather than a function.
-spec is_kept(definition()) -> boolean().
is_kept(#{kind := Kind}) -> Kind =:= static.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

text(Text) -> read_text(unicode:characters_to_binary(Text)).

kinds_test() ->
    {ok, Entries} = text("[{num_cpus, 4}, {cpu_speed, 2994.655}, {os, \"Linux\"}, {kernel_version, {3,11,0,12}},\n"
                         " {a, {dynamic, {erlang, system_info, [process_count]}}}, {b, {dynamic, {os, timestamp}}},\n"
                         " {c, {automatic, {os, type, []}}}, {d, {static, {dynamic, {a, b}}}}, {e, {static, 4, [{unit, gib}]}},\n"
                         " {f, {sampled, {erlang, system_info, [process_count]}, #{every => 100, over => 1000}}}]. % the end\n"),
    ?assertEqual([num_cpus, cpu_speed, os, kernel_version, a, b, c, d, e, f], [Name || {Name, _} <- Entries]),
    ?assertMatch(#{a := #{kind := dynamic, call := {erlang, system_info, [process_count]}}, b := #{call := {os, timestamp, []}},
                   c := #{kind := automatic}, d := #{kind := static, value := {dynamic, {a, b}}}, e := #{unit := gib},
                   f := #{every := 100, over := 1000}, kernel_version := #{value := {3, 11, 0, 12}}}, maps:from_list(Entries)).

syntax_test_() ->
    [?_assertMatch({error, Place, _}, text(Text))
     || {Place, Text} <- [{{1, 6}, "[{a, }]."}, {{2, 5}, "[{a, 1},\n {b 2}]."}, {{1, 9}, "[{a, 1}]"}, {{2, 1}, "[{a, 1}].\n[{b, 2}]."},
                          {{3, 1}, "[\n{a,1}\n"}]]
        %% The position is that of the quote or a later one, depending on the OTP release: newer releases, and late
        %% patches of OTP 27, report a later one.
        ++ [begin
                {error, {1, Column}, _} = text(Text),
                ?_assert(Column =:= 6 orelse Column =:= 7)
            end || Text <- ["[{a, \"open}].", "[{a, 'x]."]].

place_test_() ->
    [fun() ->
             {error, Got, Said} = text(Text),
             ?assertEqual(Place, Got),
             ?assertEqual(nomatch, string:find(Said, "\n"))
     end || {Place, Text} <- [{{2, 2}, "[{a, [1, {x, <<1, 2>>}]},\n {b, {dynmic, {m, f}}}]."}, {{3, 4}, "[{a, 1},\n{b, 2},\n   {a, 2}]."}, {{1, 2}, "[foo]."},
                              {{1, 10}, "[{a, 1}, {b, 1, [{unit, furlong}]}]."}, {{2, 1}, "[{a, 1},\n{b, {static, 1, [{unit, furlong}]}}]."}]].

not_utf8_test() -> ?assertMatch({error, {2, 2}, _}, read_text(<<"[\n ", 255, "]">>)).

wrong_test_() ->
    [?_assertMatch({_, error}, {Text, element(1, text(Text))})
     || Text <- ["", "{a, 1}.", "foo.", "[foo].", "[{\"a\", 1}].", "[{a, 1, 2}].", "[{a, 1} | b].", "[{a, {dynamic, foo}}].", "[{a, {dynamic, {m, f, x}}}].",
                 "[{a, {periodic, {m, f, []}}}].", "[{a, {dynamic, {m, f, []}, [{unit, furlong}]}}].", "[{a, {dynamic, {m, f, []}, [limit]}}].",
                 "[{a, {dynmic, {m, f}}}].", "[{a, {dynmic, {m, f}, []}}].", "[{a, 1}, {a, 2}].", "[{a, {sampled, {m, f, []}, #{every => 1000, over => 100}}}].", "[{a, {sampled, {m, f, []}, #{every => 10, over => 1000000}}}]."]].

large_test() -> ?assertMatch({error, _}, definition(a, binary:copy(<<0>>, 70000))).
-endif.
