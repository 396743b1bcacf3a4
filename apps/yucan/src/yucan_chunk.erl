%% SPDX-License-Identifier: Apache-2.0
%% @doc A strict parser for chunked transfer coding (RFC 9112, 7.1). All functions are pure. yucan_body passes it the bytes.
-module(yucan_chunk).

-export([new/0, parse/4, encode/1, last/0]).
-export_type([state/0, result/0]).

-include("yucan_internal.hrl").

%% What the parser expects next: a size line, a number of bytes of data, the line end after the data, or trailers.
-opaque state() :: size | {data, pos_integer()} | crlf | trailers.
-type result() ::
    {data, binary(), state(), Rest :: binary()} | {done, Trailers :: [{binary(), binary()}], Rest :: binary()}
    | {more, state(), Rest :: binary()} | {error, bad_chunk | trailers_too_long}.

-spec new() -> state().
%% @doc Returns the initial state.
new() -> size.

%% @doc Parses the next element, but at most `Most' bytes of data. `more' means that the bytes in Rest are not sufficient.
-spec parse(state(), binary(), Most :: pos_integer() | infinity, #limits{}) -> result().
parse({data, _} = State, <<>>, _, _) -> {more, State, <<>>};
%% `infinity' needs no special case, because in Erlang's term order an atom is greater than any number.
parse({data, Left}, Bin, Most, _) ->
    Size = lists:min([Left, byte_size(Bin), Most]),
    <<Data:Size/binary, Rest/binary>> = Bin,
    {data, Data, case Left of Size -> crlf; _ -> {data, Left - Size} end, Rest};
parse(crlf, <<"\r\n", Rest/binary>>, Most, Limits) -> parse(size, Rest, Most, Limits);
parse(crlf, Bin, _, _) when Bin =:= <<>>; Bin =:= <<"\r">> -> {more, crlf, Bin};
parse(crlf, _, _, _) -> {error, bad_chunk};
parse(size, Bin, Most, #limits{chunk_line_bytes = Max} = Limits) ->
    case size(Bin, 0, 0, Max) of
        {ok, 0, Rest} -> parse(trailers, Rest, Most, Limits);
        {ok, Size, Rest} -> parse({data, Size}, Rest, Most, Limits);
        more -> {more, size, Bin};
        error -> {error, bad_chunk}
    end;
parse(trailers, Bin, _, #limits{trailer_bytes = Max} = Limits) ->
    case yucan_head:trailers(Bin, Limits#limits{header_block_bytes = Max}) of
        {ok, Trailers, Rest} -> {done, Trailers, Rest};
        more -> {more, trailers, Bin};
        {error, 431, _} -> {error, trailers_too_long};
        {error, _, _} -> {error, bad_chunk}
    end.

%% Accepts only hexadecimal digits. The limit applies to the value of a size, because some programs pad sizes with zeros to a fixed width.
-define(HAS_ROOM(Size, At, Max), Size < 16#100000000000000, At < Max).
size(<<C, Rest/bits>>, At, Size, Max) when C >= $0, C =< $9, ?HAS_ROOM(Size, At, Max) -> size(Rest, At + 1, Size * 16 + C - $0, Max);
size(<<C, Rest/bits>>, At, Size, Max) when C >= $a, C =< $f, ?HAS_ROOM(Size, At, Max) -> size(Rest, At + 1, Size * 16 + C - $a + 10, Max);
size(<<C, Rest/bits>>, At, Size, Max) when C >= $A, C =< $F, ?HAS_ROOM(Size, At, Max) -> size(Rest, At + 1, Size * 16 + C - $A + 10, Max);
size(<<"\r\n", Rest/binary>>, At, Size, _) when At > 0 -> {ok, Size, Rest};
size(<<$;, Rest/bits>>, At, Size, Max) when At > 0 -> extension_name(Rest, At + 1, 0, Size, Max);
size(End, At, _, Max) -> incomplete(End, At, Max).

incomplete(<<>>, At, Max) when At =< Max -> more;
incomplete(<<"\r">>, At, Max) when At > 0, At =< Max -> more;
incomplete(_, _, _) -> error.

%% `Length' is the length of the name or value so far. Neither may be empty.
extension_name(<<C, Rest/bits>>, At, Length, Size, Max) when ?IS_TCHAR(C), At < Max ->
    extension_name(Rest, At + 1, Length + 1, Size, Max);
extension_name(<<$=, $", Rest/bits>>, At, Length, Size, Max) when Length > 0 -> quoted(Rest, At + 2, Size, Max);
extension_name(<<$=, Rest/bits>>, At, Length, Size, Max) when Length > 0, Rest =/= <<>> -> extension_value(Rest, At + 1, 0, Size, Max);
extension_name(<<$=>>, At, Length, _, Max) when Length > 0, At < Max -> more;
extension_name(<<>>, At, _, _, Max) when At =< Max -> more;
extension_name(End, At, Length, Size, Max) when Length > 0 -> extension_end(End, At, Size, Max);
extension_name(_, _, _, _, _) -> error.

extension_value(<<C, Rest/bits>>, At, Length, Size, Max) when ?IS_TCHAR(C), At < Max ->
    extension_value(Rest, At + 1, Length + 1, Size, Max);
extension_value(<<>>, At, _, _, Max) when At =< Max -> more;
extension_value(End, At, Length, Size, Max) when Length > 0 -> extension_end(End, At, Size, Max);
extension_value(_, _, _, _, _) -> error.

quoted(<<$", Rest/bits>>, At, Size, Max) -> extension_end(Rest, At + 1, Size, Max);
quoted(<<$\\, C, Rest/bits>>, At, Size, Max) when C >= $\s, C =/= 127, At < Max -> quoted(Rest, At + 2, Size, Max);
quoted(<<C, Rest/bits>>, At, Size, Max) when C >= $\s, C =/= 127, C =/= $\\, At < Max -> quoted(Rest, At + 1, Size, Max);
quoted(End, At, _, Max) when At =< Max, End =:= <<>> orelse End =:= <<"\\">> -> more;
quoted(_, _, _, _) -> error.

extension_end(<<$;, Rest/bits>>, At, Size, Max) when At < Max -> extension_name(Rest, At + 1, 0, Size, Max);
extension_end(<<"\r\n", Rest/binary>>, _, Size, _) -> {ok, Size, Rest};
extension_end(End, At, _, Max) -> incomplete(End, At, Max).

%% @doc Encodes a chunk. Empty data yields no chunk, because an empty chunk would end the body.
-spec encode(iodata()) -> iodata().
encode(Data) ->
    case iolist_size(Data) of
        0 -> [];
        Size -> [integer_to_binary(Size, 16), <<"\r\n">>, Data, <<"\r\n">>]
    end.

%% @doc Returns the end of a chunked body.
-spec last() -> binary().
last() -> <<"0\r\n\r\n">>.
