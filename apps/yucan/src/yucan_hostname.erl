%% SPDX-License-Identifier: Apache-2.0
%% @doc Patterns for host names, as used by virtual hosts and their certificates. All functions are pure.
-module(yucan_hostname).

-export([is_match/2]).

%% @doc Returns whether the name matches a pattern that may contain `*' (any text) and `?' (a single character except a dot).
-spec is_match(Pattern :: binary(), Name :: binary()) -> boolean().
is_match(Pattern, Name) -> is_match(Pattern, Name, none).

%% Only the last star has to be retried one byte further on. Backtracking to earlier stars would not find any additional match, but would take
%% exponential time.
is_match(<<"*">>, _, _) -> true;
is_match(<<"*", Pattern/binary>>, Name, _) -> is_match(Pattern, Name, {Pattern, Name});
is_match(<<"?", Pattern/binary>>, <<C, Rest/binary>>, Star) when C =/= $. -> is_match(Pattern, Rest, Star);
is_match(<<C, Pattern/binary>>, <<C, Rest/binary>>, Star) -> is_match(Pattern, Rest, Star);
is_match(<<>>, <<>>, _) -> true;
is_match(_, _, {Pattern, <<_, Rest/binary>>}) -> is_match(Pattern, Rest, {Pattern, Rest});
is_match(_, _, _) -> false.
