%% SPDX-License-Identifier: Apache-2.0
%% @doc Paths: decoded once, never above the root. Everything that turns what a client sent into the name of a file goes through here.
-module(yucan_path).

-export([decode/1, unescape/1, unescape_form/1, escape/1, resolve/2, join/2]).

%% @doc The path decoded once, its dot segments resolved. Refused: NUL and other control bytes, a backslash, an encoded slash
%% (it would make one segment into two), a broken escape, more `..' than there are folders.
-spec decode(binary()) -> {ok, binary()} | {error, bad_path}.
decode(<<"/", Rest/binary>> = Path) ->
    case is_plain(Path) of
        true -> {ok, Path};
        false -> segments(binary:split(Rest, <<"/">>, [global]), [])
    end;
decode(_) ->
    {error, bad_path}.

%% Nothing to decode and no segment that begins with a dot.
is_plain(<<"/.", _/binary>>) -> false;
is_plain(<<C, Rest/binary>>) when C > $\s, C =/= $%, C =/= $\\, C < 127 -> is_plain(Rest);
is_plain(Rest) -> Rest =:= <<>>.

segments([Encoded | Rest], Done) ->
    case unescape_strict(Encoded) of
        error -> {error, bad_path};
        <<".">> -> segments(dot_end(Rest), Done);
        <<"..">> when Done =:= [] -> {error, bad_path};
        <<"..">> -> segments(dot_end(Rest), tl(Done));
        Segment ->
            case is_safe(Segment) of
                true -> segments(Rest, [Segment | Done]);
                false -> {error, bad_path}
            end
    end;
segments([], Done) ->
    {ok, iolist_to_binary([[$/, Segment] || Segment <- lists:reverse(Done)])}.

%% A path that ends in a dot segment is that of a folder.
dot_end([]) -> [<<>>];
dot_end(Rest) -> Rest.

is_safe(<<C, Rest/binary>>) when C >= $\s, C =/= $/, C =/= $\\, C =/= 127 -> is_safe(Rest);
is_safe(Rest) -> Rest =:= <<>>.

unescape_strict(Text) ->
    case binary:match(Text, <<"%">>) of
        nomatch -> Text;
        _ -> unescape_strict(Text, <<>>)
    end.

unescape_strict(<<$%, A, B, Rest/binary>>, Done) ->
    case {hex(A), hex(B)} of
        {High, Low} when is_integer(High), is_integer(Low) -> unescape_strict(Rest, <<Done/binary, (High * 16 + Low)>>);
        _ -> error
    end;
unescape_strict(<<$%, _/binary>>, _) -> error;
unescape_strict(<<C, Rest/binary>>, Done) -> unescape_strict(Rest, <<Done/binary, C>>);
unescape_strict(<<>>, Done) -> Done.

hex(C) when C >= $0, C =< $9 -> C - $0;
hex(C) when C >= $a, C =< $f -> C - $a + 10;
hex(C) when C >= $A, C =< $F -> C - $A + 10;
hex(_) -> none.

%% @doc Escapes decoded; a broken one stays as it is.
-spec unescape(binary()) -> binary().
unescape(Text) ->
    case binary:match(Text, <<"%">>) of
        nomatch -> Text;
        _ -> unescape(Text, <<>>)
    end.

unescape(<<$%, A, B, Rest/binary>>, Done) ->
    case {hex(A), hex(B)} of
        {High, Low} when is_integer(High), is_integer(Low) -> unescape(Rest, <<Done/binary, (High * 16 + Low)>>);
        _ -> unescape(<<A, B, Rest/binary>>, <<Done/binary, $%>>)
    end;
unescape(<<C, Rest/binary>>, Done) -> unescape(Rest, <<Done/binary, C>>);
unescape(<<>>, Done) -> Done.

%% @doc The same for forms, where a plus is a blank.
-spec unescape_form(binary()) -> binary().
unescape_form(Text) -> unescape(binary:replace(Text, <<"+">>, <<" ">>, [global])).

%% @doc A path or segment for a URL: all but unreserved bytes and the slash escaped.
-spec escape(binary()) -> binary().
escape(Path) ->
    << <<(escape_byte(C))/binary>> || <<C>> <= Path >>.

escape_byte(C) when C >= $a, C =< $z; C >= $A, C =< $Z; C >= $0, C =< $9; C =:= $-; C =:= $_; C =:= $.; C =:= $~; C =:= $/ -> <<C>>;
escape_byte(C) -> <<$%, (digit(C bsr 4)), (digit(C band 15))>>.

digit(D) when D < 10 -> $0 + D;
digit(D) -> $A + D - 10.

%% @doc The file of a raw path below a docroot. Symbolic links are another matter: {@link yucan_links}.
-spec resolve(Docroot :: binary(), RawPath :: binary()) -> {ok, file:filename_all()} | {error, bad_path}.
resolve(Docroot, Raw) ->
    case decode(Raw) of
        {ok, Path} -> {ok, join(Docroot, Path)};
        Error -> Error
    end.

%% @doc A decoded path below a docroot.
-spec join(Docroot :: binary(), Path :: binary()) -> binary().
join(Docroot, Path) -> <<(without_slash(Docroot))/binary, Path/binary>>.

without_slash(<<"/">>) -> <<>>;
without_slash(Docroot) ->
    case binary:last(Docroot) of
        $/ -> without_slash(binary_part(Docroot, 0, byte_size(Docroot) - 1));
        _ -> Docroot
    end.
