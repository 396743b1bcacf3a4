%% SPDX-License-Identifier: Apache-2.0
%% @doc Content types for file name extensions. All functions are pure.
-module(yucan_mime).

-export([of_file/1, of_file/2, of_content/1, is_text/1]).

%% @doc Returns the type for a file name, or `application/octet-stream' if it is unknown.
-spec of_file(file:name_all()) -> binary().
of_file(File) -> of_file(File, #{}).

%% @doc Like {@link of_file/1}, but also uses the user's own types, keyed by extension without the dot.
-spec of_file(file:name_all(), #{binary() => binary()}) -> binary().
of_file(File, Own) ->
    case yucan_header:lower(unicode:characters_to_binary(filename:extension(File))) of
        <<".", Ending/binary>> ->
            case Own of
                #{Ending := Type} -> Type;
                _ -> type(Ending)
            end;
        _ -> <<"application/octet-stream">>
    end.

type(Ending) ->
    maps:get(Ending, #{
        <<"html">> => <<"text/html; charset=utf-8">>, <<"htm">> => <<"text/html; charset=utf-8">>,
        <<"css">> => <<"text/css; charset=utf-8">>, <<"js">> => <<"text/javascript; charset=utf-8">>,
        <<"mjs">> => <<"text/javascript; charset=utf-8">>, <<"json">> => <<"application/json">>, <<"map">> => <<"application/json">>,
        <<"xml">> => <<"application/xml">>, <<"xhtml">> => <<"application/xhtml+xml">>, <<"rss">> => <<"application/rss+xml">>,
        <<"atom">> => <<"application/atom+xml">>, <<"txt">> => <<"text/plain; charset=utf-8">>, <<"log">> => <<"text/plain; charset=utf-8">>,
        <<"md">> => <<"text/markdown; charset=utf-8">>, <<"csv">> => <<"text/csv; charset=utf-8">>, <<"ics">> => <<"text/calendar">>,
        <<"erl">> => <<"text/plain; charset=utf-8">>, <<"hrl">> => <<"text/plain; charset=utf-8">>, <<"c">> => <<"text/plain; charset=utf-8">>,
        <<"h">> => <<"text/plain; charset=utf-8">>, <<"py">> => <<"text/plain; charset=utf-8">>, <<"sh">> => <<"text/plain; charset=utf-8">>,
        <<"png">> => <<"image/png">>, <<"jpg">> => <<"image/jpeg">>, <<"jpeg">> => <<"image/jpeg">>, <<"gif">> => <<"image/gif">>,
        <<"svg">> => <<"image/svg+xml">>, <<"ico">> => <<"image/x-icon">>, <<"webp">> => <<"image/webp">>, <<"avif">> => <<"image/avif">>,
        <<"bmp">> => <<"image/bmp">>, <<"tif">> => <<"image/tiff">>, <<"tiff">> => <<"image/tiff">>,
        <<"woff">> => <<"font/woff">>, <<"woff2">> => <<"font/woff2">>, <<"ttf">> => <<"font/ttf">>, <<"otf">> => <<"font/otf">>,
        <<"mp3">> => <<"audio/mpeg">>, <<"ogg">> => <<"audio/ogg">>, <<"oga">> => <<"audio/ogg">>, <<"wav">> => <<"audio/wav">>,
        <<"flac">> => <<"audio/flac">>, <<"m4a">> => <<"audio/mp4">>, <<"opus">> => <<"audio/ogg">>,
        <<"mp4">> => <<"video/mp4">>, <<"webm">> => <<"video/webm">>, <<"ogv">> => <<"video/ogg">>, <<"mov">> => <<"video/quicktime">>,
        <<"avi">> => <<"video/x-msvideo">>, <<"mkv">> => <<"video/x-matroska">>,
        <<"pdf">> => <<"application/pdf">>, <<"ps">> => <<"application/postscript">>, <<"wasm">> => <<"application/wasm">>,
        <<"zip">> => <<"application/zip">>, <<"gz">> => <<"application/gzip">>, <<"tgz">> => <<"application/gzip">>,
        <<"bz2">> => <<"application/x-bzip2">>, <<"xz">> => <<"application/x-xz">>, <<"zst">> => <<"application/zstd">>,
        <<"tar">> => <<"application/x-tar">>, <<"7z">> => <<"application/x-7z-compressed">>, <<"deb">> => <<"application/vnd.debian.binary-package">>,
        <<"iso">> => <<"application/x-iso9660-image">>, <<"doc">> => <<"application/msword">>, <<"xls">> => <<"application/vnd.ms-excel">>,
        <<"ppt">> => <<"application/vnd.ms-powerpoint">>,
        <<"docx">> => <<"application/vnd.openxmlformats-officedocument.wordprocessingml.document">>,
        <<"xlsx">> => <<"application/vnd.openxmlformats-officedocument.spreadsheetml.sheet">>,
        <<"pptx">> => <<"application/vnd.openxmlformats-officedocument.presentationml.presentation">>,
        <<"odt">> => <<"application/vnd.oasis.opendocument.text">>, <<"ods">> => <<"application/vnd.oasis.opendocument.spreadsheet">>,
        <<"epub">> => <<"application/epub+zip">>, <<"webmanifest">> => <<"application/manifest+json">>,
        <<"yaml">> => <<"application/yaml">>, <<"yml">> => <<"application/yaml">>, <<"toml">> => <<"application/toml">>,
        <<"ts">> => <<"text/plain; charset=utf-8">>, <<"tsx">> => <<"text/plain; charset=utf-8">>, <<"jsx">> => <<"text/javascript; charset=utf-8">>,
        <<"rs">> => <<"text/plain; charset=utf-8">>, <<"go">> => <<"text/plain; charset=utf-8">>, <<"ex">> => <<"text/plain; charset=utf-8">>,
        <<"exs">> => <<"text/plain; charset=utf-8">>, <<"conf">> => <<"text/plain; charset=utf-8">>, <<"diff">> => <<"text/plain; charset=utf-8">>,
        <<"patch">> => <<"text/plain; charset=utf-8">>, <<"cpp">> => <<"text/plain; charset=utf-8">>, <<"java">> => <<"text/plain; charset=utf-8">>,
        <<"heic">> => <<"image/heic">>, <<"heif">> => <<"image/heif">>, <<"jxl">> => <<"image/jxl">>, <<"m3u8">> => <<"application/vnd.apple.mpegurl">>,
        <<"aac">> => <<"audio/aac">>, <<"glb">> => <<"model/gltf-binary">>, <<"br">> => <<"application/x-brotli">>
    }, <<"application/octet-stream">>).

%% @doc Returns the type of a file whose name does not reveal it: text if its first bytes are UTF-8.
-spec of_content(binary()) -> binary().
of_content(Start) ->
    case has_control(Start) of
        true -> <<"application/octet-stream">>;
        false ->
            %% The last character may be truncated.
            case unicode:characters_to_binary(Start) of
                {error, _, _} -> <<"application/octet-stream">>;
                _ -> <<"text/plain; charset=utf-8">>
            end
    end.

has_control(<<C, Rest/bits>>) when C >= $\s, C =/= 127; C >= 8, C =< 13; C =:= 27 -> has_control(Rest);
has_control(Rest) -> Rest =/= <<>>.

%% @doc Returns whether compressing content of this type is worthwhile.
-spec is_text(binary()) -> boolean().
is_text(<<"text/event-stream", _/binary>>) -> false;
is_text(<<"text/", _/binary>>) -> true;
is_text(<<"application/json", _/binary>>) -> true;
is_text(<<"application/manifest+json", _/binary>>) -> true;
is_text(<<"application/javascript", _/binary>>) -> true;
is_text(<<"application/wasm", _/binary>>) -> true;
is_text(<<"application/yaml", _/binary>>) -> true;
is_text(<<"application/toml", _/binary>>) -> true;
is_text(<<"image/svg+xml", _/binary>>) -> true;
is_text(<<"application/", Rest/binary>>) -> binary:match(Rest, <<"xml">>) =/= nomatch;
is_text(_) -> false.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

of_content_test_() ->
    [?_assertEqual({Data, Expected}, {Data, of_content(Data)})
     || {Expected, All} <- [{<<"text/plain; charset=utf-8">>, [<<"all: build\n\tcc\n">>, <<"gr\303\274n">>, <<"cut \303">>]},
                            {<<"application/octet-stream">>, [<<127, "ELF">>, <<"a", 0>>, <<255, 254, "a">>, <<"\303(">>]}], Data <- All].

-endif.
