%% SPDX-License-Identifier: Apache-2.0
%% @doc Static files: a handler, as in the route `{"/*path", yucan_file, #{root => "www"}}', and functions for handlers that choose the file themselves.
%%
%% This module supports ranges, conditional requests, HEAD, index files, listings, and compressed forms, which are either separate files or compressed
%% here. Nothing outside the docroot is ever served, neither through the path (yucan_path) nor, unless the options allow it, through a symbolic link.
%% Small files and their compressed forms are cached (yucan_file_cache).
-module(yucan_file).
-behaviour(yucan_handler).

-export([init/1, handle/2, respond/3, serve/3, may_change/4]).
-export_type([options/0]).

-include_lib("kernel/include/file.hrl").

-type options() :: #{
    root => file:name_all(),
    %% The prefix of the request path that is not part of the file name.
    mount => binary(),
    index => [binary()],
    %% Lists directories. Names that cannot be requested are left out: those with a leading dot or a control character, and links that the policy
    %% rejects.
    listing => boolean(),
    %% HTML that is appended to a listing.
    listing_end => binary(),
    %% Serves `FILE.br', `FILE.zst' and `FILE.gz' to clients that accept them, and compresses text of up to 1 MB.
    gzip => boolean(),
    %% `inside' by default.
    follow_symlinks => yucan_symlink:policy(),
    dot_files => boolean(),
    mime => #{binary() => binary()},
    headers => yucan_handler:headers(),
    expires => Seconds :: non_neg_integer()
}.

-define(LEAST_GZIP, 1024).
-define(MOST_GZIP, 1048576).
-define(LOOK_BYTES, 512).
%% Files of up to the first size are cached when they are first requested. Files of up to the second size are cached if they are requested twice
%% within a second. All larger files are sent with sendfile.
-define(MOST_KEPT, 65536).
-define(MOST_KEPT_OFTEN, 1048576).
-define(INDEX, [<<"index.html">>]).
%% Codings and their file extensions. A client that accepts several of them gets the first one in this list.
-define(BESIDE, [{<<"br">>, <<".br">>}, {<<"zstd">>, <<".zst">>}, {<<"gzip">>, <<".gz">>}]).

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

%% Throws this text, which the server passes on to the process that starts it.
-spec cannot(io:format(), [term()]) -> no_return().
cannot(Format, Arguments) -> throw({cannot, ["yucan_file: " | io_lib:format(Format, Arguments)]}).

kinds() ->
    Truth = "true or false",
    [{mount, fun is_binary/1, "a binary such as <<\"/files\">>"}, {index, fun is_list/1, "a list of binaries"}, {listing, fun is_boolean/1, Truth},
     {listing_end, fun is_binary/1, "a binary"},
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

%% @doc Serves the file that the request's path specifies, below a docroot.
-spec respond(yucan_req:req(), Docroot :: binary(), options()) -> yucan_handler:response() | not_found | {error, forbidden | bad_path}.
respond(Req, Root, Options) ->
    case yucan_path:decode(below(yucan_req:path(Req), maps:get(mount, Options, <<>>))) of
        {ok, Path} ->
            case yucan_path:is_hidden(Path) andalso not maps:get(dot_files, Options, false) of
                true -> not_found;
                false -> look(Req, Path, Root, Options)
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

%% A fresh cache entry contains only bytes that have passed the checks within the last second.
look(Req, Path, Root, Options) ->
    case remembered(Req, {Root, below, Options, first_name(Path, Options)}) of
        none -> search(Req, yucan_path:join(Root, Path), Path, Root, Options);
        Response -> Response
    end.

%% For a directory, only the first index file is looked up in the cache. If it exists, no other is tried.
first_name(Path, Options) ->
    case {binary:last(Path), maps:get(index, Options, ?INDEX)} of
        {$/, [Name | _]} -> <<Path/binary, Name/binary>>;
        _ -> Path
    end.

search(Req, File, Path, Root, Options) ->
    case yucan_symlink:info(Path, Root, policy(Options)) of
        {ok, #file_info{type = Type} = Info} when Type =:= regular; Type =:= directory -> found(Type, Req, File, Info, Path, Root, Options);
        {ok, _} -> {error, forbidden};
        {error, Reason} when Reason =:= eacces; Reason =:= forbidden -> {error, forbidden};
        {error, _} -> not_found
    end.

policy(Options) -> maps:get(follow_symlinks, Options, inside).

found(regular, Req, File, Info, Path, Root, Options) ->
    case binary:last(Path) of
        $/ -> not_found;
        _ -> serve(Req, File, Info, {Root, below, Options, Path})
    end;
found(directory, Req, Folder, _, Path, Root, Options) ->
    case binary:last(Path) of
        $/ -> folder(maps:get(index, Options, ?INDEX), Req, Folder, Path, Root, Options);
        _ -> to_folder(Req)
    end.

to_folder(Req) ->
    yucan_error:page_with(301, [{<<"location">>, [yucan_req:path(Req), $/, [[$?, yucan_req:query(Req)] || yucan_req:has_query(Req)]]}]).

folder([Name | Rest], Req, Folder, Path, Root, Options) ->
    Below = <<Path/binary, Name/binary>>,
    case yucan_symlink:info(Below, Root, policy(Options)) of
        {ok, #file_info{type = regular} = Info} ->
            serve(Req, <<Folder/binary, Name/binary>>, Info, {Root, below, Options, Below});
        {error, forbidden} -> {error, forbidden};
        _ -> folder(Rest, Req, Folder, Path, Root, Options)
    end;
folder([], Req, Folder, Path, Root, Options) ->
    case {maps:get(listing, Options, false), yucan_req:method(Req)} of
        {true, Method} when Method =:= <<"GET">>; Method =:= <<"HEAD">> -> yucan_listing:response(Req, Folder, Path, Root, Options);
        {true, _} -> not_allowed(Req);
        {false, _} -> {error, forbidden}
    end.

%% @doc Serves a file that has already been chosen.
-spec serve(yucan_req:req(), File :: binary(), options()) -> yucan_handler:response().
serve(Req, File, Options) ->
    Key = {<<>>, chosen, Options, File},
    case remembered(Req, Key) of
        none ->
            case file:read_file_info(File, [raw, {time, universal}]) of
                {ok, #file_info{type = regular} = Info} -> serve(Req, File, Info, Key);
                _ -> yucan_error:page(404)
            end;
        Response -> Response
    end.

%% @doc Returns whether the request's conditions permit it to change the file at this decoded path. The conditions apply to the file itself, not to
%% its compressed forms.
-spec may_change(yucan_req:req(), Path :: binary(), Root :: binary(), options()) -> boolean().
may_change(Req, Path, Root, Options) ->
    Current = case yucan_symlink:info(Path, Root, policy(Options)) of
        {ok, #file_info{mtime = Time} = Info} -> {etag(Info, <<>>), Time};
        {error, enoent} -> none;
        %% The file exists, but no client can have a tag for it.
        {error, _} -> {none, {{1970, 1, 1}, {0, 0, 0}}}
    end,
    yucan_conditional:may_change(Req, Current).

%% ---- the file and its compressed forms

%% `identity' is the file itself, `made' is compressed by this module, and a coding stands for a
%% separate compressed file.
-type form() :: identity | made | binary().

-record(form, {
    etag :: none | binary(),
    time :: calendar:datetime(),
    size :: non_neg_integer(),
    %% The headers of a response with content, and those of a 304.
    headers :: yucan_handler:headers(),
    unchanged :: yucan_handler:headers(),
    has_parts :: boolean(),
    data = none :: none | binary()
}).

-define(PARTS, [{<<"accept-ranges">>, <<"bytes">>}]).

%% What the last check of a file found, and its cached forms: the file itself, separate compressed
%% files, and those compressed here.
-record(seen, {
    info :: file:file_info(),
    %% True if the file is old enough that any further change would be noticed.
    settled :: boolean(),
    type :: binary(),
    %% True if the previous check was less than a second before this one.
    often = false :: boolean(),
    %% True if the file is text, which also has compressed forms.
    varies :: boolean(),
    beside = [] :: [{Coding :: binary(), file:file_info()}],
    forms = #{} :: #{form() => #form{}}
}).

is_asked(Req) -> lists:member(yucan_req:method(Req), [<<"GET">>, <<"HEAD">>]).

not_allowed(Req) -> yucan_error:not_allowed([<<"GET">>, <<"HEAD">>, <<"OPTIONS">>], Req).

remembered(Req, Key) ->
    case is_asked(Req) andalso yucan_file_cache:find(yucan_req:server(Req), Key) of
        {fresh, #seen{forms = Forms} = Seen} ->
            Name = choose(Req, Seen),
            case Forms of
                #{Name := Form} -> answer(Form, Req, none, Key, Seen);
                _ -> none
            end;
        _ -> none
    end.

%% The file has just been checked. Its cache entry becomes valid again if the file has not changed.
serve(_, _, #file_info{access = Access}, _) when Access =:= none; Access =:= write -> yucan_error:page(403);
serve(Req, File, Found, Key) ->
    case is_asked(Req) of
        true ->
            Info = Found#file_info{atime = undefined},
            Seen = case yucan_file_cache:find(yucan_req:server(Req), Key) of
                {Age, #seen{info = Info, varies = Varies, beside = Beside} = Known} ->
                    case beside(File, Info, Varies) of
                        Beside -> keep(Req, Key, Known), Known#seen{often = Age =:= fresh};
                        _ -> see(File, Info, Key)
                    end;
                _ -> see(File, Info, Key)
            end,
            Name = choose(Req, Seen),
            answer(maps:get(Name, Seen#seen.forms, none), Req, {Name, File}, Key, Seen);
        false -> not_allowed(Req)
    end.

see(File, Info, {_, _, Options, Name}) ->
    Type = case yucan_mime:of_file(Name, maps:get(mime, Options, #{})) of
        <<"application/octet-stream">> when Info#file_info.size > 0 -> without_suffix(filename:extension(Name), File);
        Known -> Known
    end,
    Varies = maps:get(gzip, Options, true) andalso yucan_mime:is_text(Type),
    Beside = beside(File, Info, Varies),
    #seen{info = Info, settled = is_settled([Info | [I || {_, I} <- Beside]]), type = Type, varies = Varies, beside = Beside}.

%% Files without an extension, such as README, LICENSE and Makefile, are served as text if their first bytes are text.
without_suffix(Suffix, File) when byte_size(Suffix) =< 1 ->
    case file:open(File, [read, raw, binary]) of
        {ok, Handle} ->
            Start = file:read(Handle, ?LOOK_BYTES),
            _ = file:close(Handle),
            case Start of
                {ok, Data} -> yucan_mime:of_content(Data);
                _ -> <<"application/octet-stream">>
            end;
        {error, _} -> <<"application/octet-stream">>
    end;
without_suffix(_, _) -> <<"application/octet-stream">>.

%% Chooses the form that is sent. The codings with the fewest bytes come first.
choose(_, #seen{varies = false}) -> identity;
choose(Req, #seen{beside = Beside, info = #file_info{size = Size}}) ->
    Accepted = yucan_conditional:codings(Req),
    case [Coding || Coding <- Accepted, lists:keymember(Coding, 1, Beside)] of
        [Coding | _] -> Coding;
        [] ->
            case Size >= ?LEAST_GZIP andalso Size =< ?MOST_GZIP andalso lists:member(<<"gzip">>, Accepted) of
                true -> made;
                false -> identity
            end
    end.

%% Returns the separate compressed files, except those that are older than the file itself. Symbolic links to such files are not followed.
beside(_, _, false) -> [];
beside(File, #file_info{mtime = Time}, true) ->
    [{Coding, Info#file_info{atime = undefined}}
     || {Coding, Ending} <- ?BESIDE,
        {ok, #file_info{type = regular, mtime = Compressed, access = Access} = Info} <- [file:read_link_info(<<File/binary, Ending/binary>>, [raw, {time, universal}])],
        Compressed >= Time, Access =:= read orelse Access =:= read_write].

%% Modification times have a resolution of one second, so a second change within the same second may go unnoticed.
is_settled(Infos) ->
    Now = seconds(calendar:universal_time()),
    lists:all(fun(#file_info{mtime = Modified, ctime = Changed}) -> Now - seconds(Modified) >= 2 andalso Now - seconds(Changed) >= 2 end, Infos).

seconds(Time) -> calendar:datetime_to_gregorian_seconds(Time).

keep(Req, Key, #seen{forms = Forms} = Seen) ->
    yucan_file_cache:keep(yucan_req:server(Req), Key, Seen, lists:sum([byte_size(Data) || #form{data = Data} <- maps:values(Forms)])).

%% A file may change again in the second of its modification, and a cache would then keep the older content forever.
etag(#file_info{size = Size, mtime = Time}, Suffix) ->
    Seconds = seconds(Time),
    case seconds(calendar:universal_time()) - Seconds < 2 of
        true -> none;
        false -> <<$", (integer_to_binary(Size, 36))/binary, $-, (integer_to_binary(Seconds, 36))/binary, Suffix/binary, $">>
    end.

weak(none) -> none;
weak(Etag) -> <<"W/", Etag/binary>>.

validators(none, _) -> [];
validators(Etag, Time) -> [{<<"etag">>, Etag}, {<<"last-modified">>, yucan_header:date(Time)}].

%% A form that is compressed here may be different the next time, so it has a weak tag and does not support ranges.
make(identity, #seen{info = Info} = Seen, Key) -> form(etag(Info, <<>>), Info, [], ?PARTS, Seen, Key);
make(made, #seen{info = Info} = Seen, Key) -> form(weak(etag(Info, <<"-z">>)), Info, [{<<"content-encoding">>, <<"gzip">>}], [], Seen, Key);
make(Coding, #seen{beside = Beside} = Seen, Key) ->
    {_, Info} = lists:keyfind(Coding, 1, Beside),
    form(etag(Info, <<$-, (binary_part(Coding, 0, 2))/binary>>), Info, [{<<"content-encoding">>, Coding}], ?PARTS, Seen, Key).

form(Etag, #file_info{mtime = Time, size = Size}, Encoding, Parts, #seen{type = Type, varies = Varies}, {_, _, Options, _}) ->
    Headers = Encoding ++ [{<<"content-type">>, Type} | general(Varies, Options)],
    Validators = validators(Etag, Time),
    #form{etag = Etag, time = Time, size = Size, unchanged = Validators ++ Headers, headers = Validators ++ Parts ++ Headers, has_parts = Parts =/= []}.

general(Varies, Options) ->
    [{<<"vary">>, <<"accept-encoding">>} || Varies]
        ++ [{<<"cache-control">>, [<<"max-age=">>, integer_to_binary(Seconds)]} || {expires, Seconds} <- maps:to_list(maps:with([expires], Options))]
        ++ maps:get(headers, Options, []).

answer(none, Req, {Name, _} = From, Key, Seen) -> answer(make(Name, Seen, Key), Req, From, Key, Seen);
answer(#form{etag = Etag, time = Time, unchanged = Unchanged} = Form, Req, From, Key, Seen) ->
    case yucan_conditional:decide(Req, Etag, Time) of
        not_modified -> {304, Unchanged, <<>>};
        failed -> yucan_error:page(412);
        proceed -> whole_or_parts(content(Form, Req, From, Key, Seen), Form, Req)
    end.

whole_or_parts({error, _}, _, _) -> yucan_error:page(404);
whole_or_parts(Source, #form{has_parts = false, headers = Headers}, _) -> {200, Headers, Source};
whole_or_parts(Source, #form{etag = Etag, time = Time, size = Size, headers = Headers}, Req) ->
    parts(yucan_conditional:ranges(Req, Etag, Time, Size), Source, Size, Headers).

%% Returns the bytes, or the name of the file that contains them.
content(#form{data = Data}, _, _, _, _) when is_binary(Data) -> Data;
content(Form, Req, {made, File}, Key, Seen) ->
    case file:read_file(File) of
        {ok, Data} when byte_size(Data) =:= Form#form.size -> kept(zlib:gzip(Data), made, Form, Req, Key, Seen);
        {ok, Data} -> zlib:gzip(Data);
        Error -> Error
    end;
content(Form, Req, {identity, File}, Key, Seen) -> from_file(File, identity, Form, Req, Key, Seen);
content(Form, Req, {Coding, File}, Key, Seen) ->
    {_, Ending} = lists:keyfind(Coding, 1, ?BESIDE),
    from_file(<<File/binary, Ending/binary>>, Coding, Form, Req, Key, Seen).

from_file(File, Name, #form{size = Size} = Form, Req, Key, #seen{settled = true, often = Often} = Seen)
  when Size =< ?MOST_KEPT; Often, Size =< ?MOST_KEPT_OFTEN ->
    case yucan_req:method(Req) =:= <<"GET">> andalso prim_file:read_file(File) of
        {ok, Data} when byte_size(Data) =:= Size -> kept(Data, Name, Form, Req, Key, Seen);
        _ -> {file, File, Size}
    end;
from_file(File, _, #form{size = Size}, Req, Key, #seen{settled = Settled, often = Often} = Seen) ->
    _ = [keep(Req, Key, Seen) || Settled, not Often, Size =< ?MOST_KEPT_OFTEN],
    {file, File, Size}.

kept(Data, _, _, _, _, #seen{settled = false}) -> Data;
kept(Data, Name, Form, Req, Key, #seen{forms = Forms} = Seen) ->
    keep(Req, Key, Seen#seen{forms = Forms#{Name => Form#form{data = Data}}}),
    Data.

parts(all, Source, _, Headers) -> {200, Headers, Source};
parts(unsatisfiable, _, Size, _) -> yucan_error:page_with(416, [{<<"content-range">>, [<<"bytes */">>, integer_to_binary(Size)]}]);
parts([{First, Length}], Source, Size, Headers) ->
    {206, [{<<"content-range">>, content_range(First, Length, Size)} | Headers], cut(Source, First, Length)};
parts(Ranges, Source, Size, Headers) -> several(Ranges, Source, Size, Headers).

cut({file, File, _}, First, Length) -> {file, File, First, Length};
cut(Data, First, Length) -> binary_part(Data, First, Length).

content_range(First, Length, Size) ->
    [<<"bytes ">>, integer_to_binary(First), $-, integer_to_binary(First + Length - 1), $/, integer_to_binary(Size)].

%% Answers several ranges (RFC 9110, 14.6).
several(Ranges, Source, Size, Headers) ->
    {_, Type} = lists:keyfind(<<"content-type">>, 1, Headers),
    Boundary = binary:encode_hex(crypto:strong_rand_bytes(12)),
    Parts = [{[<<"\r\n--">>, Boundary, <<"\r\ncontent-type: ">>, Type, <<"\r\ncontent-range: ">>, content_range(First, Length, Size), <<"\r\n\r\n">>], First, Length}
             || {First, Length} <- Ranges],
    End = [<<"\r\n--">>, Boundary, <<"--\r\n">>],
    Total = iolist_size(End) + lists:sum([iolist_size(Head) + Length || {Head, _, Length} <- Parts]),
    Own = lists:keystore(<<"content-type">>, 1, Headers, {<<"content-type">>, [<<"multipart/byteranges; boundary=">>, Boundary]}),
    {206, [{<<"content-length">>, Total} | Own], {stream, fun(Write) -> parts_of(Source, Write, Parts, End) end}}.

%% Stops early if the client disconnects or the file is truncated. The client notices that bytes are missing, because it knows the length.
parts_of({file, File, _}, Write, Parts, End) ->
    {ok, Handle} = file:open(File, [read, raw, binary]),
    try
        Copy = fun(First, Length) -> yucan_transport:copy(fun(Data, _) -> Write(Data) end, Handle, First, Length) end,
        lists:all(fun({Head, First, Length}) -> Write(Head) =:= ok andalso Copy(First, Length) =:= 0 end, Parts) andalso Write(End)
    after
        file:close(Handle)
    end;
parts_of(Data, Write, Parts, End) ->
    Write([[[Head, binary_part(Data, First, Length)] || {Head, First, Length} <- Parts], End]).
