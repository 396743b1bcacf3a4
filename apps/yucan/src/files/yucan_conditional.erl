%% SPDX-License-Identifier: Apache-2.0
%% @doc Conditional requests and ranges (RFC 9110, 13 and 14): decides, from the request's headers and the properties of the representation, how to
%% respond. All functions are pure.
-module(yucan_conditional).

-export([decide/3, may_change/2, ranges/4, codings/1]).
-export_type([etag/0]).

%% A tag includes its quotes, and W/ if it is weak. `none' means that the content may change without a new modification time, so no earlier response
%% can be reused.
-type etag() :: none | binary().

%% Two dozen small ranges cost more than the whole file, and overlapping ranges are a known attack.
-define(MOST_RANGES, 16).

%% @doc Evaluates the preconditions in the order of RFC 9110, 13.2.2.
-spec decide(yucan_req:req(), etag(), Modified :: calendar:datetime()) -> proceed | not_modified | failed.
decide(Req, Etag, Modified) ->
    case {yucan_req:header(<<"if-match">>, Req), yucan_req:header(<<"if-unmodified-since">>, Req)} of
        {undefined, undefined} -> fresh(Req, Etag, Modified);
        {undefined, Since} ->
            case yucan_header:parse_date(Since) of
                {ok, Date} when Modified > Date -> failed;
                _ -> fresh(Req, Etag, Modified)
            end;
        {Tags, _} ->
            case matches(Tags, Etag, version) of
                true -> fresh(Req, Etag, Modified);
                false -> failed
            end
    end.

fresh(Req, Etag, Modified) ->
    case {yucan_req:header(<<"if-none-match">>, Req), yucan_req:header(<<"if-modified-since">>, Req)} of
        {undefined, undefined} -> proceed;
        {undefined, Since} ->
            case yucan_header:parse_date(Since) of
                {ok, Date} when Modified =< Date, Etag =/= none -> not_modified;
                _ -> proceed
            end;
        %% If-Modified-Since is ignored if If-None-Match is present.
        {Tags, _} ->
            case matches(Tags, Etag, weak) of
                true -> not_modified;
                false -> proceed
            end
    end.

matches(<<"*">>, _, _) -> true;
matches(_, none, _) -> false;
matches(Tags, Etag, How) -> lists:any(fun(Tag) -> same(yucan_header:trim(Tag), Etag, How) end, binary:split(Tags, <<",">>, [global])).

%% Here the tag of a compressed form counts as the file's own tag, because clients that accept gzip
%% never see the file's own tag.
same(Tag, Etag, version) -> same(uncompressed(Tag), uncompressed(Etag), strong);
same(<<"W/", _/binary>>, _, strong) -> false;
same(_, <<"W/", _/binary>>, strong) -> false;
same(Tag, Etag, _) -> opaque(Tag) =:= opaque(Etag).

uncompressed(<<"W/", Tag/binary>> = Weak) ->
    case string:split(Tag, <<"-z\"">>, trailing) of
        [Version, <<>>] -> <<Version/binary, $">>;
        _ -> Weak
    end;
uncompressed(Tag) -> Tag.

opaque(<<"W/", Tag/binary>>) -> Tag;
opaque(Tag) -> Tag.

%% @doc Returns whether a method that changes the representation, such as PUT, may do so. `none' means that there is no file.
-spec may_change(yucan_req:req(), none | {etag(), Modified :: calendar:datetime()}) -> boolean().
may_change(Req, none) -> yucan_req:header(<<"if-match">>, Req) =:= undefined;
%% If-Modified-Since applies only to GET and HEAD (RFC 9110, 13.1.3).
may_change(Req, {Etag, Modified}) -> decide(yucan_req:delete_header(<<"if-modified-since">>, Req), Etag, Modified) =:= proceed.

%% @doc Returns the requested ranges, or `all' if none is valid or If-Range names a different version of the file.
-spec ranges(yucan_req:req(), etag(), Modified :: calendar:datetime(), Size :: non_neg_integer()) ->
    all | unsatisfiable | [{First :: non_neg_integer(), Length :: pos_integer()}].
ranges(Req, Etag, Modified, Size) ->
    case yucan_req:method(Req) =:= <<"GET">> andalso yucan_req:header(<<"range">>, Req) of
        <<"bytes=", Set/binary>> ->
            case is_same_version(yucan_req:header(<<"if-range">>, Req), Etag, Modified) of
                true -> elements(binary:split(Set, <<",">>, [global]), Size);
                false -> all
            end;
        _ -> all
    end.

is_same_version(undefined, _, _) -> true;
is_same_version(_, none, _) -> false;
is_same_version(<<"\"", _/binary>> = Tag, Etag, _) -> same(Tag, Etag, strong);
is_same_version(<<"W/", _/binary>>, _, _) -> false;
is_same_version(Date, _, Modified) -> yucan_header:parse_date(Date) =:= {ok, Modified}.

%% Empty list elements are ignored (RFC 9110, 5.6.1.2), but a list that has only empty elements is invalid.
elements(Specs, _) when length(Specs) > ?MOST_RANGES -> all;
elements(Specs, Size) ->
    case [Spec || Padded <- Specs, Spec <- [yucan_header:trim(Padded)], Spec =/= <<>>] of
        [] -> all;
        Wanted -> set(Wanted, Size, [])
    end.

set([Spec | Rest], Size, Ranges) ->
    case range(binary:split(Spec, <<"-">>), Size) of
        error -> all;
        outside -> set(Rest, Size, Ranges);
        Range -> set(Rest, Size, [Range | Ranges])
    end;
set([], _, []) -> unsatisfiable;
set([], _, Ranges) ->
    case overlap(lists:sort(Ranges)) of
        true -> all;
        false -> lists:reverse(Ranges)
    end.

overlap([{First, Length} | [{Next, _} | _] = Rest]) -> First + Length > Next orelse overlap(Rest);
overlap(_) -> false.

range([<<>>, Suffix], Size) ->
    case digits(Suffix) of
        error -> error;
        0 -> outside;
        _ when Size =:= 0 -> outside;
        N -> {max(0, Size - N), min(N, Size)}
    end;
range([First, <<>>], Size) ->
    case digits(First) of
        error -> error;
        From when From >= Size -> outside;
        From -> {From, Size - From}
    end;
range([First, Last], Size) ->
    case {digits(First), digits(Last)} of
        {From, To} when From =:= error; To =:= error; From > To -> error;
        {From, _} when From >= Size -> outside;
        {From, To} -> {From, min(To, Size - 1) - From + 1}
    end;
range(_, _) -> error.

digits(Text) when byte_size(Text) > 0, byte_size(Text) =< 18 ->
    case lists:all(fun(C) -> C >= $0 andalso C =< $9 end, binary_to_list(Text)) of
        true -> binary_to_integer(Text);
        false -> error
    end;
digits(_) -> error.

%% @doc Returns the codings that the client accepts (RFC 9110, 12.5.3) and the server supports, best compression first.
-spec codings(yucan_req:req()) -> [binary()].
codings(Req) ->
    case yucan_req:header(<<"accept-encoding">>, Req) of
        undefined -> [];
        Text ->
            Said = [coding(Part) || Part <- yucan_header:tokens(Text)],
            All = lists:member({<<"*">>, true}, Said),
            [Coding || Coding <- [<<"br">>, <<"zstd">>, <<"gzip">>], case lists:keyfind(Coding, 1, Said) of {_, Wanted} -> Wanted; false -> All end]
    end.

coding(Part) ->
    case [yucan_header:trim(P) || P <- binary:split(Part, <<";">>, [global])] of
        [Name] -> {Name, true};
        [Name | Parameters] -> {Name, not lists:any(fun is_zero/1, Parameters)}
    end.

is_zero(Parameter) -> re:run(Parameter, "^q=0(\\.0*)?$", [{capture, none}]) =:= match.
