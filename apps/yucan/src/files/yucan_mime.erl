%% SPDX-License-Identifier: Apache-2.0
%% @doc Content types by the ending of a file's name. Pure.
-module(yucan_mime).

-export([of_file/1, of_file/2, is_text/1]).

%% @doc The type; `application/octet-stream' for what is not known.
-spec of_file(file:name_all()) -> binary().
of_file(File) -> of_file(File, #{}).

%% @doc The same with types of the user's own, by ending without dot.
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
        <<"epub">> => <<"application/epub+zip">>, <<"webmanifest">> => <<"application/manifest+json">>
    }, <<"application/octet-stream">>).

%% @doc Is it worth compressing?
-spec is_text(binary()) -> boolean().
is_text(<<"text/event-stream", _/binary>>) -> false;
is_text(<<"text/", _/binary>>) -> true;
is_text(<<"application/json", _/binary>>) -> true;
is_text(<<"application/manifest+json", _/binary>>) -> true;
is_text(<<"application/javascript", _/binary>>) -> true;
is_text(<<"application/wasm", _/binary>>) -> true;
is_text(<<"image/svg+xml", _/binary>>) -> true;
is_text(<<"application/", Rest/binary>>) -> binary:match(Rest, <<"xml">>) =/= nomatch;
is_text(_) -> false.
