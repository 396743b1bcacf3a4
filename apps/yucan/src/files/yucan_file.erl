%% SPDX-License-Identifier: Apache-2.0
%% @doc Static files: a handler of its own, and functions for handlers that find out themselves which file is meant.
%%
%% Ranges, conditions, HEAD, index files, listings, gzip from a file beside it or made on the way. Nothing outside
%% of the docroot is given away: not by the path (yucan_path), and not by a symbolic link unless the options say so.
-module(yucan_file).
-behaviour(yucan_handler).

-export([init/1, handle/2, respond/3, serve/3]).
-export_type([options/0]).

-include_lib("kernel/include/file.hrl").

-type options() :: #{
    root => file:name_all(),
    %% The part of the path that is not below the root.
    mount => binary(),
    index => [binary()],
    %% Without what a request for it would not give: names with a dot, links that the policy refuses.
    listing => boolean(),
    %% Give `FILE.gz' to those who take it, and compress text of up to 1 MB for them.
    gzip => boolean(),
    %% `inside' if not given.
    follow_symlinks => yucan_symlink:policy(),
    dot_files => boolean(),
    mime => #{binary() => binary()},
    headers => yucan_handler:headers(),
    expires => Seconds :: non_neg_integer()
}.

-define(LEAST_GZIP, 1024).
-define(MOST_GZIP, 1048576).

%% @private
-spec init(options()) -> options().
init(#{root := Root} = Options) ->
    [cannot("unknown option ~0tp; known are root, ~ts", [Key, lists:join(", ", [atom_to_list(K) || {K, _, _} <- kinds()])])
     || Key <- maps:keys(Options), Key =/= root, not lists:keymember(Key, 1, kinds())],
    [cannot("~ts is ~0tp; ~ts is expected", [Key, maps:get(Key, Options), Expected])
     || {Key, IsGood, Expected} <- kinds(), is_map_key(Key, Options), not IsGood(maps:get(Key, Options))],
    Bytes = unicode:characters_to_binary(filename:absname(Root)),
    filelib:is_dir(Bytes) orelse cannot("root is ~ts; no such folder", [Bytes]),
    Options#{root := Bytes};
init(Options) -> cannot("the options are ~0tp; a map with root is expected", [Options]).

%% The server passes the text on to whoever has started it.
-spec cannot(io:format(), [term()]) -> no_return().
cannot(Format, Arguments) -> throw({cannot, ["yucan_file: " | io_lib:format(Format, Arguments)]}).

kinds() ->
    Truth = "true or false",
    [{mount, fun is_binary/1, "a binary such as <<\"/files\">>"}, {index, fun is_list/1, "a list of binaries"}, {listing, fun is_boolean/1, Truth},
     {gzip, fun is_boolean/1, Truth}, {follow_symlinks, fun(Policy) -> lists:member(Policy, [inside, always, never]) end, "inside, always or never"},
     {dot_files, fun is_boolean/1, Truth}, {mime, fun is_map/1, "a map"}, {headers, fun is_list/1, "a list of names and values"},
     {expires, fun(Seconds) -> is_integer(Seconds) andalso Seconds >= 0 end, "a number of seconds"}].

%% @private
-spec handle(yucan_req:req(), options()) -> yucan_handler:response().
handle(Req, #{root := Root} = Options) ->
    case respond(Req, Root, Options) of
        not_found -> yucan_error:page(404);
        {error, bad_path} -> yucan_error:page(400);
        {error, forbidden} -> yucan_error:page(403);
        Response -> Response
    end.

%% @doc The file that the request's path names below a docroot.
-spec respond(yucan_req:req(), Docroot :: binary(), options()) -> yucan_handler:response() | not_found | {error, forbidden | bad_path}.
respond(Req, Root, Options) ->
    case yucan_path:decode(below(yucan_req:path(Req), maps:get(mount, Options, <<>>))) of
        {ok, Path} ->
            case is_hidden(Path) andalso not maps:get(dot_files, Options, false) of
                true -> not_found;
                false -> look(Req, yucan_path:join(Root, Path), Path, Root, Options)
            end;
        {error, Reason} -> {error, Reason}
    end.

below(Path, <<>>) -> Path;
below(Path, Mount) ->
    Size = byte_size(Mount),
    case Path of
        <<Mount:Size/binary, "/", _/binary>> -> binary_part(Path, Size, byte_size(Path) - Size);
        Mount -> <<"/">>;
        _ -> Path
    end.

%% RFC 8615 has made one exception.
is_hidden(Path) ->
    case binary:match(Path, <<"/.">>) of
        nomatch -> false;
        {0, 2} -> case Path of
            <<"/.well-known/", Rest/binary>> -> binary:match(<<"/", Rest/binary>>, <<"/.">>) =/= nomatch;
            _ -> true
        end;
        _ -> true
    end.

look(Req, File, Path, Root, Options) ->
    case yucan_symlink:info(Path, Root, policy(Options)) of
        {ok, #file_info{type = Type} = Info} when Type =:= regular; Type =:= directory -> found(Type, Req, File, Info, Path, Root, Options);
        {ok, _} -> {error, forbidden};
        {error, Reason} when Reason =:= eacces; Reason =:= forbidden -> {error, forbidden};
        {error, _} -> not_found
    end.

policy(Options) -> maps:get(follow_symlinks, Options, inside).

found(regular, Req, File, Info, Path, _, Options) ->
    case binary:last(Path) of
        $/ -> not_found;
        _ -> serve(Req, File, Info, Options)
    end;
found(directory, Req, Folder, _, Path, Root, Options) ->
    case binary:last(Path) of
        $/ -> folder(maps:get(index, Options, [<<"index.html">>]), Req, Folder, Path, Root, Options);
        _ -> to_folder(Req)
    end.

to_folder(Req) ->
    {301, Headers, Body} = yucan_error:page(301),
    {301, [{<<"location">>, [yucan_req:path(Req), $/, [[$?, yucan_req:query(Req)] || yucan_req:has_query(Req)]]} | Headers], Body}.

folder([Name | Rest], Req, Folder, Path, Root, Options) ->
    case yucan_symlink:info(<<Path/binary, Name/binary>>, Root, policy(Options)) of
        {ok, #file_info{type = regular} = Info} -> serve(Req, <<Folder/binary, Name/binary>>, Info, Options);
        {error, forbidden} -> {error, forbidden};
        _ -> folder(Rest, Req, Folder, Path, Root, Options)
    end;
folder([], Req, Folder, Path, Root, Options) ->
    case {maps:get(listing, Options, false), yucan_req:method(Req)} of
        {true, Method} when Method =:= <<"GET">>; Method =:= <<"HEAD">> -> yucan_listing:response(Folder, Path, Root, policy(Options));
        {true, _} -> not_allowed(Req);
        {false, _} -> {error, forbidden}
    end.

%% @doc A file that is chosen already.
-spec serve(yucan_req:req(), File :: binary(), options()) -> yucan_handler:response().
serve(Req, File, Options) ->
    case file:read_file_info(File, [raw, {time, universal}]) of
        {ok, #file_info{type = regular} = Info} -> serve(Req, File, Info, Options);
        _ -> yucan_error:page(404)
    end.

serve(Req, File, Info, Options) ->
    case yucan_req:method(Req) of
        Method when Method =:= <<"GET">>; Method =:= <<"HEAD">> -> choose(Req, File, Info, Options);
        _ -> not_allowed(Req)
    end.

not_allowed(Req) -> yucan_error:not_allowed([<<"GET">>, <<"HEAD">>, <<"OPTIONS">>], Req).

%% Which representation: as it is, compressed beforehand, or compressed now. Parts are given of the first two only.
choose(Req, File, #file_info{size = Size} = Info, Options) ->
    Type = yucan_mime:of_file(File, maps:get(mime, Options, #{})),
    Varies = maps:get(gzip, Options, true) andalso yucan_mime:is_text(Type),
    Headers = [{<<"content-type">>, Type} | general(Varies, Options)],
    case Varies andalso yucan_conditional:accepts_gzip(Req) andalso beside(File, Info) of
        {ok, Zipped, ZippedInfo} -> represent(Req, Zipped, ZippedInfo, etag(ZippedInfo, <<"-gz">>), [{<<"content-encoding">>, <<"gzip">>} | Headers]);
        none when Size >= ?LEAST_GZIP, Size =< ?MOST_GZIP -> compress(Req, File, Info, Headers);
        _ -> represent(Req, File, Info, etag(Info, <<>>), Headers)
    end.

general(Varies, Options) ->
    [{<<"vary">>, <<"accept-encoding">>} || Varies]
        ++ [{<<"cache-control">>, [<<"max-age=">>, integer_to_binary(Seconds)]} || {expires, Seconds} <- maps:to_list(maps:with([expires], Options))]
        ++ maps:get(headers, Options, []).

beside(File, #file_info{mtime = Time}) ->
    Zipped = <<File/binary, ".gz">>,
    case file:read_link_info(Zipped, [raw, {time, universal}]) of
        {ok, #file_info{type = regular, mtime = ZippedTime} = Info} when ZippedTime >= Time -> {ok, Zipped, Info};
        _ -> none
    end.

%% None while the file may change again within the second of its time: a cache would keep the older content for ever.
etag(#file_info{size = Size, mtime = Time}, Suffix) ->
    Seconds = calendar:datetime_to_gregorian_seconds(Time),
    case calendar:datetime_to_gregorian_seconds(calendar:universal_time()) - Seconds < 2 of
        true -> none;
        false -> <<$", (integer_to_binary(Size, 36))/binary, $-, (integer_to_binary(Seconds, 36))/binary, Suffix/binary, $">>
    end.

validators(none, _) -> [];
validators(Etag, #file_info{mtime = Time}) -> [{<<"etag">>, Etag}, {<<"last-modified">>, yucan_header:date(Time)}].

represent(Req, File, #file_info{size = Size, mtime = Time} = Info, Etag, Headers) ->
    case yucan_conditional:decide(Req, Etag, Time) of
        not_modified -> {304, validators(Etag, Info) ++ Headers, <<>>};
        failed -> yucan_error:page(412);
        proceed ->
            All = validators(Etag, Info) ++ [{<<"accept-ranges">>, <<"bytes">>} | Headers],
            case yucan_conditional:ranges(Req, Etag, Time, Size) of
                all -> {200, All, {file, File, Size}};
                unsatisfiable ->
                    {416, Error, Body} = yucan_error:page(416),
                    {416, [{<<"content-range">>, [<<"bytes */">>, integer_to_binary(Size)]} | Error], Body};
                [{First, Length}] -> {206, [{<<"content-range">>, content_range(First, Length, Size)} | All], {file, File, First, Length}};
                Ranges -> several(Ranges, File, Size, All)
            end
    end.

content_range(First, Length, Size) ->
    [<<"bytes ">>, integer_to_binary(First), $-, integer_to_binary(First + Length - 1), $/, integer_to_binary(Size)].

%% RFC 9110, 14.6.
several(Ranges, File, Size, Headers) ->
    {_, Type} = lists:keyfind(<<"content-type">>, 1, Headers),
    Boundary = binary:encode_hex(crypto:strong_rand_bytes(12)),
    Parts = [{[<<"\r\n--">>, Boundary, <<"\r\ncontent-type: ">>, Type, <<"\r\ncontent-range: ">>, content_range(First, Length, Size), <<"\r\n\r\n">>], First, Length}
             || {First, Length} <- Ranges],
    End = [<<"\r\n--">>, Boundary, <<"--\r\n">>],
    Total = iolist_size(End) + lists:sum([iolist_size(Head) + Length || {Head, _, Length} <- Parts]),
    Own = lists:keystore(<<"content-type">>, 1, Headers, {<<"content-type">>, [<<"multipart/byteranges; boundary=">>, Boundary]}),
    {206, [{<<"content-length">>, Total} | Own], {stream, fun(Write) -> parts(Write, File, Parts, End) end}}.

parts(Write, File, Parts, End) ->
    {ok, Handle} = file:open(File, [read, raw, binary]),
    try
        lists:foreach(fun({Head, First, Length}) -> ok = Write(Head), part(Write, Handle, First, Length) end, Parts),
        Write(End)
    after
        file:close(Handle)
    end.

part(_, _, _, 0) -> ok;
part(Write, Handle, At, Left) ->
    {ok, Data} = file:pread(Handle, At, min(Left, 65536)),
    ok = Write(Data),
    part(Write, Handle, At + byte_size(Data), Left - byte_size(Data)).

%% What is compressed on the way may come out different next time: a weak tag.
compress(Req, File, #file_info{mtime = Time} = Info, Headers) ->
    Etag = weak(etag(Info, <<"-z">>)),
    case yucan_conditional:decide(Req, Etag, Time) of
        not_modified -> {304, validators(Etag, Info) ++ Headers, <<>>};
        failed -> yucan_error:page(412);
        proceed ->
            case file:read_file(File) of
                {ok, Data} -> {200, validators(Etag, Info) ++ [{<<"content-encoding">>, <<"gzip">>} | Headers], zlib:gzip(Data)};
                {error, _} -> yucan_error:page(404)
            end
    end.

weak(none) -> none;
weak(Etag) -> <<"W/", Etag/binary>>.
