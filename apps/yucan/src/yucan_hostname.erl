%% SPDX-License-Identifier: Apache-2.0
%% @doc Patterns of host names, as used for virtual hosts and their certificates. Pure.
-module(yucan_hostname).

-export([is_match/2]).

%% @doc Returns whether the name matches a pattern with `*' (anything) and `?' (a single character except a dot).
-spec is_match(Pattern :: binary(), Name :: binary()) -> boolean().
is_match(Pattern, Name) -> is_match(Pattern, Name, none).

%% Only the last star has to be tried again one byte further on. Backtracking to earlier stars would not find any other match, but would take
%% exponential time.
is_match(<<"*">>, _, _) -> true;
is_match(<<"*", Pattern/binary>>, Name, _) -> is_match(Pattern, Name, {Pattern, Name});
is_match(<<"?", Pattern/binary>>, <<C, Rest/binary>>, Star) when C =/= $. -> is_match(Pattern, Rest, Star);
is_match(<<C, Pattern/binary>>, <<C, Rest/binary>>, Star) -> is_match(Pattern, Rest, Star);
is_match(<<>>, <<>>, _) -> true;
is_match(_, _, {Pattern, <<_, Rest/binary>>}) -> is_match(Pattern, Rest, {Pattern, Rest});
is_match(_, _, _) -> false.
