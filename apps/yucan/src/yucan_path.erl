%% SPDX-License-Identifier: Apache-2.0
%% @doc Paths: converts each path to a single canonical form, decodes it once, and keeps it below the root. yucan_head canonicalizes a path before
%% anything else uses it, so routes, files, passwords and servers behind this one cannot interpret it differently. This module performs every
%% conversion of a client's bytes to a file name.
-module(yucan_path).

-export([canonical/1, decode/1, unescape/1, unescape_form/1, escape/1, is_hidden/1, join/2]).

%% @doc Returns the canonical form of a path, still percent-encoded (RFC 3986, 6.2.2). Dot segments are resolved, repeated slashes are collapsed into
%% one, as in file systems, and escapes are in upper case and used only where they are needed. Rejects a path with more `..' segments than
%% directories, an encoded slash or backslash next to dots, an invalid escape, or NUL.
-spec canonical(binary()) -> {ok, binary()} | error.
canonical(<<"/", Rest/binary>> = Path) ->
    case is_plain(Path) of
        true -> {ok, Path};
        false -> resolved(binary:split(Rest, <<"/">>, [global]), [])
    end;
canonical(_) -> error.

%% Returns whether the path needs no conversion: it is printable ASCII without escapes or backslashes, and no segment is empty or begins with a dot.
is_plain(<<"/.", _/binary>>) -> false;
is_plain(<<"//", _/binary>>) -> false;
is_plain(<<C, Rest/binary>>) when C > $\s, C =/= $%, C =/= $\\, C < 127 -> is_plain(Rest);
is_plain(Rest) -> Rest =:= <<>>.

resolved([Segment | Rest], Done) ->
    case normal(Segment, <<>>) of
        error -> error;
        <<>> when Rest =/= [] -> resolved(Rest, Done);
        <<".">> -> resolved(dot_end(Rest), Done);
        <<"..">> when Done =:= [] -> error;
        <<"..">> -> resolved(dot_end(Rest), tl(Done));
        Normal ->
            case hides_dots(Normal) of
                true -> error;
                false -> resolved(Rest, [Normal | Done])
            end
    end;
resolved([], Done) -> {ok, iolist_to_binary([[$/, Segment] || Segment <- lists:reverse(Done)])}.

%% A path that ends in a dot segment refers to a directory.
dot_end([]) -> [<<>>];
dot_end(Rest) -> Rest.

normal(<<$%, A, B, Rest/binary>>, Done) ->
    case {hex(A), hex(B)} of
        {High, Low} when is_integer(High), is_integer(Low), High + Low > 0 ->
            normal(Rest, <<Done/binary, (escape_unless_plain(High * 16 + Low))/binary>>);
        _ -> error
    end;
normal(<<$%, _/binary>>, _) -> error;
normal(<<C, Rest/binary>>, Done) -> normal(Rest, <<Done/binary, C>>);
normal(<<>>, Done) -> Done.

escape_unless_plain($/) -> <<"%2F">>;
escape_unless_plain(C) -> escape_byte(C).

%% A program that treats an encoded slash or a backslash as a separator would see dot segments in this segment.
hides_dots(Segment) ->
    has_hidden_slash(Segment) andalso
        lists:any(fun(Part) -> Part =:= <<".">> orelse Part =:= <<"..">> end, binary:split(Segment, [<<"%2F">>, <<"%5C">>, <<"\\">>], [global])).

has_hidden_slash(<<"%2F", _/binary>>) -> true;
has_hidden_slash(<<"%5C", _/binary>>) -> true;
has_hidden_slash(<<$\\, _/binary>>) -> true;
has_hidden_slash(<<_, Rest/binary>>) -> has_hidden_slash(Rest);
has_hidden_slash(<<>>) -> false.

%% @doc Decodes a canonical path. Rejects paths without a canonical form, control characters, backslashes, and encoded slashes, which would split a
%% segment in two.
-spec decode(binary()) -> {ok, binary()} | {error, bad_path}.
decode(<<"/", Rest/binary>> = Path) ->
    case is_plain(Path) of
        true -> {ok, Path};
        false -> decoded(resolved(binary:split(Rest, <<"/">>, [global]), []))
    end;
decode(_) -> {error, bad_path}.

decoded({ok, Canonical}) ->
    Decoded = unescape(Canonical),
    case binary:match(Canonical, <<"%2F">>) =:= nomatch andalso is_safe(Decoded) of
        true -> {ok, Decoded};
        false -> {error, bad_path}
    end;
decoded(error) -> {error, bad_path}.

is_safe(<<C, Rest/binary>>) when C >= $\s, C =/= $\\, C =/= 127 -> is_safe(Rest);
is_safe(Rest) -> Rest =:= <<>>.

hex(C) when C >= $0, C =< $9 -> C - $0;
hex(C) when C >= $a, C =< $f -> C - $a + 10;
hex(C) when C >= $A, C =< $F -> C - $A + 10;
hex(_) -> none.

%% @doc Decodes escapes. Invalid escapes are left unchanged.
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

%% @doc Like {@link unescape/1}, but for form data, in which a plus means a space.
-spec unescape_form(binary()) -> binary().
unescape_form(Text) -> unescape(binary:replace(Text, <<"+">>, <<" ">>, [global])).

%% @doc Percent-encodes a path or segment for a URL: every byte except unreserved characters and the slash.
-spec escape(binary()) -> binary().
escape(Path) -> << <<(escape_byte(C))/binary>> || <<C>> <= Path >>.

escape_byte(C) when C >= $a, C =< $z; C >= $A, C =< $Z; C >= $0, C =< $9; C =:= $-; C =:= $_; C =:= $.; C =:= $~; C =:= $/ -> <<C>>;
escape_byte(C) -> <<$%, (digit(C bsr 4)), (digit(C band 15))>>.

digit(D) when D < 10 -> $0 + D;
digit(D) -> $A + D - 10.

%% @doc Returns whether any name in the path begins with a dot. RFC 8615 defines the only exception, `/.well-known/'.
-spec is_hidden(Path :: binary()) -> boolean().
is_hidden(<<"/.well-known/", Rest/binary>>) -> has_dot_name(<<"/", Rest/binary>>);
is_hidden(Path) -> has_dot_name(Path).

%% Uses a loop, because `binary:match' builds tables in each call.
has_dot_name(<<"/.", _/binary>>) -> true;
has_dot_name(<<_, Rest/binary>>) -> has_dot_name(Rest);
has_dot_name(<<>>) -> false.

%% @doc Converts a decoded path to a file name below a docroot. {@link yucan_symlink} checks symbolic links.
-spec join(Docroot :: binary(), Path :: binary()) -> binary().
join(Docroot, Path) -> <<(without_slash(Docroot))/binary, Path/binary>>.

without_slash(<<"/">>) -> <<>>;
without_slash(Docroot) ->
    case binary:last(Docroot) of
        $/ -> without_slash(binary_part(Docroot, 0, byte_size(Docroot) - 1));
        _ -> Docroot
    end.
