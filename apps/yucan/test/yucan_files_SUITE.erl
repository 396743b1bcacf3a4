%% SPDX-License-Identifier: Apache-2.0
%% @doc Static files: conditional requests, ranges, gzip, listings, and paths that try to leave the docroot.
-module(yucan_files_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([plain/1, head/1, methods/1, conditional/1, ranges/1, several_ranges/1, if_range/1, index/1, redirect_to_folder/1, listing/1, gzip_beside/1,
         gzip_made/1, compress_middleware/1, traversal/1, encoded_slash/1, symlinks/1, listed_links/1, fresh/1, beside_by_coding/1, kept/1, kept_forms/1, replaced/1, turned_into_links/1, bad_options/1, dot_files/1, write_only/1, large/1, shrinking/1, parts_cut/1, names/1]).

-include_lib("common_test/include/ct.hrl").
-include_lib("kernel/include/file.hrl").

suite() -> [{timetrap, {minutes, 1}}].

all() ->
    [plain, head, methods, conditional, ranges, several_ranges, if_range, index, redirect_to_folder, listing, gzip_beside, gzip_made, compress_middleware,
     traversal, encoded_slash, symlinks, listed_links, fresh, beside_by_coding, kept, kept_forms, replaced, turned_into_links, bad_options, dot_files, write_only, large, shrinking, parts_cut, names].

init_per_suite(Config) ->
    Base = list_to_binary(?config(priv_dir, Config)),
    Root = <<Base/binary, "root">>,
    Write = fun(Name, Data) ->
        File = <<Root/binary, "/", Name/binary>>,
        ok = filelib:ensure_dir(File),
        ok = file:write_file(File, Data),
        %% The file was last modified before the current second, so it has a strong tag.
        ok = file:write_file_info(File, #file_info{mtime = {{2020, 1, 2}, {3, 4, 5}}}, [{time, universal}])
    end,
    Write(<<"digits.txt">>, <<"0123456789">>),
    Write(<<"empty.bin">>, <<>>),
    Write(<<"page/index.html">>, <<"<p>index</p>">>),
    Write(<<"list/b.txt">>, <<"b">>),
    Write(<<"list/a <&\"'>.txt">>, <<"a">>),
    Write(<<"list/sub/x">>, <<"x">>),
    Write(<<"list/.hidden">>, <<"secret">>),
    [Write(<<"list/", Name/binary>>, <<"no request can name it">>) || Name <- [<<"line\nend">>, <<"back\\slash">>]],
    Write(<<".secret">>, <<"secret">>),
    Write(<<".well-known/acme">>, <<"token">>),
    Write(<<"zipped.css">>, <<"body {}">>),
    Write(<<"zipped.css.gz">>, zlib:gzip(<<"body {}">>)),
    Write(<<"long.txt">>, binary:copy(<<"words ">>, 1000)),
    Write(<<"large.bin">>, binary:copy(<<"0123456789abcdef">>, 500000)),
    ok = file:write_file(<<Base/binary, "outside.txt">>, <<"secret">>),
    ok = file:make_symlink(<<"../outside.txt">>, <<Root/binary, "/leaves">>),
    ok = file:make_symlink(<<"..">>, <<Root/binary, "/up">>),
    ok = file:make_symlink(<<"/etc">>, <<Root/binary, "/etc">>),
    ok = file:make_symlink(<<"digits.txt">>, <<Root/binary, "/stays">>),
    Options = #{root => Root},
    Routes = [{"/listed/*path", yucan_file, Options#{mount => <<"/listed">>, listing => true}},
              {"/links/*path", yucan_file, Options#{mount => <<"/links">>, follow_symlinks => never, listing => true}},
              {"/any/*path", yucan_file, Options#{mount => <<"/any">>, follow_symlinks => always, listing => true}},
              {"/write_only/*path", yucan_file, #{root => "/proc/sys/vm", mount => <<"/write_only">>}},
              {"/handler/*path", yucan_test_handler, none},
              {"/*path", yucan_file, Options}],
    Port = yucan_test_server:start(yucan_files, #{routes => Routes}),
    Gzipped = yucan_test_server:start(yucan_gzipped, #{middleware => [fun yucan_gzip:compress/2]}),
    [{port, Port}, {gzipped, Gzipped}, {root, Root} | Config].

end_per_suite(_) -> yucan_test_server:stop_all().

get(Config, Path) -> get(Config, Path, []).
get(Config, Path, Headers) -> yucan_client:get(?config(port, Config), Path, Headers).

header(Name, Response) -> yucan_client:header(Name, Response).

plain(Config) ->
    {200, _, <<"0123456789">>} = Response = get(Config, "/digits.txt"),
    <<"text/plain; charset=utf-8">> = header(<<"content-type">>, Response),
    <<"Thu, 02 Jan 2020 03:04:05 GMT">> = header(<<"last-modified">>, Response),
    <<"bytes">> = header(<<"accept-ranges">>, Response),
    <<"\"", _/binary>> = header(<<"etag">>, Response),
    {200, _, <<>>} = get(Config, "/empty.bin"),
    {200, _, <<"0123456789">>} = get(Config, "/%64igits%2etxt?query"),
    {404, _, _} = get(Config, "/nothing"),
    {404, _, _} = get(Config, "/digits.txt/").

%% RFC 9110, 9.3.2.
head(Config) ->
    [{200, Headers, <<>>}] = yucan_client:exchange(?config(port, Config), "HEAD /large.bin HTTP/1.1\r\nHost: a\r\n\r\n", <<"HEAD">>),
    <<"8000000">> = proplists:get_value(<<"content-length">>, Headers).

%% RFC 9110, 15.5.6.
methods(Config) ->
    Ask = fun(Method) -> yucan_client:exchange(?config(port, Config), [Method, " /digits.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"]) end,
    [begin
         [{405, Headers, _}] = Ask(Method),
         <<"GET, HEAD, OPTIONS">> = proplists:get_value(<<"allow">>, Headers)
     end || Method <- ["POST", "PUT", "DELETE", "PATCH", "get"]],
    [{204, Headers, _}] = Ask("OPTIONS"),
    <<"GET, HEAD, OPTIONS">> = proplists:get_value(<<"allow">>, Headers).

%% RFC 9110, 13.1 and 13.2.2: tests the order of precedence.
conditional(Config) ->
    Etag = header(<<"etag">>, get(Config, "/digits.txt")),
    Ask = fun(Headers) -> element(1, get(Config, "/digits.txt", Headers)) end,
    Same = "Thu, 02 Jan 2020 03:04:05 GMT",
    Earlier = "Thu, 02 Jan 2020 03:04:04 GMT",
    304 = Ask([{"If-None-Match", Etag}]),
    304 = Ask([{"If-None-Match", ["\"x\", W/", Etag]}]),
    304 = Ask([{"If-None-Match", "*"}]),
    200 = Ask([{"If-None-Match", "\"x\""}]),
    200 = Ask([{"If-None-Match", "\"x\""}, {"If-Modified-Since", Same}]),
    304 = Ask([{"If-Modified-Since", Same}]),
    304 = Ask([{"If-Modified-Since", "Thursday, 02-Jan-20 03:04:05 GMT"}]),
    304 = Ask([{"If-Modified-Since", "Thu Jan  2 03:04:05 2020"}]),
    200 = Ask([{"If-Modified-Since", Earlier}]),
    200 = Ask([{"If-Modified-Since", "nonsense"}]),
    200 = Ask([{"If-Match", Etag}]),
    412 = Ask([{"If-Match", "\"x\""}]),
    412 = Ask([{"If-Match", ["W/", Etag]}]),
    412 = Ask([{"If-Unmodified-Since", Earlier}]),
    200 = Ask([{"If-Unmodified-Since", Same}]),
    {304, Headers, <<>>} = get(Config, "/digits.txt", [{"If-None-Match", Etag}]),
    Etag = proplists:get_value(<<"etag">>, Headers).

%% RFC 9110, 14.
ranges(Config) ->
    Ask = fun(Range) -> get(Config, "/digits.txt", [{"Range", ["bytes=", Range]}]) end,
    [begin
         {206, _, Part} = Response = Ask(Range),
         ContentRange = header(<<"content-range">>, Response)
     end || {Range, Part, ContentRange} <- [{"0-0", <<"0">>, <<"bytes 0-0/10">>}, {"2-4", <<"234">>, <<"bytes 2-4/10">>}, {"7-", <<"789">>, <<"bytes 7-9/10">>},
                                            {"-3", <<"789">>, <<"bytes 7-9/10">>}, {"-99", <<"0123456789">>, <<"bytes 0-9/10">>}, {"9-99", <<"9">>, <<"bytes 9-9/10">>},
                                            {"50-60,1-2", <<"12">>, <<"bytes 1-2/10">>},
                                            %% RFC 9110, 5.6.1.2: empty elements of a list are ignored.
                                            {"0-1,", <<"01">>, <<"bytes 0-1/10">>}, {", ,2-2,,", <<"2">>, <<"bytes 2-2/10">>}]],
    [begin
         {416, _, _} = Response = Ask(Range),
         <<"bytes */10">> = header(<<"content-range">>, Response)
     end || Range <- ["10-", "99-100", "-0"]],
    [{200, _, <<"0123456789">>} = Ask(Range) || Range <- ["", ",", " , ", "a-b", "4-2", "1", "--1", "1-2-3", "99999999999999999999-", lists:join(",", lists:duplicate(17, "1-1"))]],
    {200, _, <<"0123456789">>} = get(Config, "/digits.txt", [{"Range", "lines=1-2"}]),
    {416, _, _} = get(Config, "/empty.bin", [{"Range", "bytes=0-"}]).

several_ranges(Config) ->
    {206, _, Body} = Response = get(Config, "/digits.txt", [{"Range", "bytes=1-2, -1"}]),
    <<"multipart/byteranges; boundary=", Boundary/binary>> = header(<<"content-type">>, Response),
    Expected = iolist_to_binary([["\r\n--", Boundary, "\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-range: bytes ", Range, "/10\r\n\r\n", Part]
                                 || {Range, Part} <- [{"1-2", "12"}, {"9-9", "9"}]] ++ ["\r\n--", Boundary, "--\r\n"]),
    Expected = Body,
    %% Only clients that want to create load on the server request overlapping ranges.
    {200, _, <<"0123456789">>} = get(Config, "/digits.txt", [{"Range", "bytes=0-5,3-9"}]).

%% RFC 9110, 13.1.5.
if_range(Config) ->
    Etag = header(<<"etag">>, get(Config, "/digits.txt")),
    Ask = fun(Validator) -> element(1, get(Config, "/digits.txt", [{"Range", "bytes=1-2"}, {"If-Range", Validator}])) end,
    [206, 200, 200, 206, 200] = [Ask(V) || V <- [Etag, "\"x\"", ["W/", Etag], "Thu, 02 Jan 2020 03:04:05 GMT", "Thu, 02 Jan 2020 03:04:06 GMT"]].

index(Config) ->
    {200, _, <<"<p>index</p>">>} = get(Config, "/page/"),
    {403, _, _} = get(Config, "/list/").

%% The rest of the path is preserved, and two leading slashes must not be mistaken for the start of a host name.
redirect_to_folder(Config) ->
    [begin
         {301, _, _} = Response = get(Config, Path),
         Location = header(<<"location">>, Response)
     end || {Path, Location} <- [{"/page", <<"/page/">>}, {"/page?a=b", <<"/page/?a=b">>}, {"//page", <<"/page/">>}]].

listing(Config) ->
    {200, _, Page} = get(Config, "/listed/list/"),
    nomatch = binary:match(Page, [<<"hidden">>, <<"./line">>, <<"./back">>]),
    nomatch = binary:match(Page, <<"a <&">>),
    {_, _} = binary:match(Page, <<"a &lt;&amp;&quot;&#39;&gt;.txt">>),
    [Sub, A, B] = [element(1, binary:match(Page, Name)) || Name <- [<<"./sub/">>, <<"./a%20%3C%26%22%27%3E.txt">>, <<"./b.txt">>]],
    true = Sub < A andalso A < B,
    {200, _, <<"a">>} = get(Config, "/listed/list/a%20%3C%26%22%27%3E.txt"),
    %% The page counts the names that no request can contain: the one with a line end and the one with a backslash. Hidden files are not counted.
    {_, _} = binary:match(Page, <<"<p>2 more have a backslash or a control character in their names and cannot be served.</p>">>),
    {200, _, Elsewhere} = get(Config, "/listed/list/sub/"),
    nomatch = binary:match(Elsewhere, <<"cannot be served">>).

%% RFC 9110, 12.5.3.
gzip_beside(Config) ->
    Zipped = zlib:gzip(<<"body {}">>),
    [begin
         {200, _, Zipped} = Response = get(Config, "/zipped.css", [{"Accept-Encoding", Accept}]),
         <<"gzip">> = header(<<"content-encoding">>, Response),
         <<"accept-encoding">> = header(<<"vary">>, Response),
         <<"text/css; charset=utf-8">> = header(<<"content-type">>, Response)
     end || Accept <- ["gzip", "br, gzip", "GZIP;q=0.5", "*"]],
    [{200, _, <<"body {}">>} = get(Config, "/zipped.css", Headers)
     || Headers <- [[], [{"Accept-Encoding", "gzip;q=0"}], [{"Accept-Encoding", "gzip;q=0.000, *"}], [{"Accept-Encoding", "identity"}]]].

%% A form that the server compresses itself has a weak tag.
gzip_made(Config) ->
    {200, _, Body} = Response = get(Config, "/long.txt", [{"Accept-Encoding", "gzip"}]),
    true = zlib:gunzip(Body) =:= binary:copy(<<"words ">>, 1000),
    <<"W/", _/binary>> = Etag = header(<<"etag">>, Response),
    {304, _, _} = get(Config, "/long.txt", [{"Accept-Encoding", "gzip"}, {"If-None-Match", Etag}]).

compress_middleware(Config) ->
    Ask = fun(Path) -> yucan_client:get(?config(gzipped, Config), Path, [{"Accept-Encoding", "gzip"}]) end,
    {200, _, Body} = Response = Ask("/text"),
    true = zlib:gunzip(Body) =:= binary:copy(<<"some text ">>, 500),
    <<"accept-encoding">> = header(<<"vary">>, Response),
    {200, _, <<"OK">>} = Ask("/"),
    {200, _, Plain} = yucan_client:get(?config(gzipped, Config), "/text"),
    5000 = byte_size(Plain).

%% These paths are requested in all encodings. None may escape the docroot, and none may cause a crash.
traversal(Config) ->
    Up = ["..", "%2e%2e", ".%2e", "%2e.", "%2E%2E", "%252e%252e", "..%2f", "..%5c", "..\\", "%c0%ae%c0%ae", "..%00", "..;", "%uff0e%uff0e", ".%00.", "....//"],
    Paths = [[Before, U, "/", After] || U <- Up, Before <- ["/", "/page/", "/page/x/../../", "/listed/", "//"], After <- ["outside.txt", "../outside.txt", "../../../../../../etc/passwd"]],
    [begin
         Responses = yucan_client:exchange(?config(port, Config), ["GET ", Path, " HTTP/1.1\r\nHost: a\r\n\r\n"]),
         [{Status, _, Body}] = Responses,
         {true, Path} = {lists:member(Status, [400, 403, 404]), Path},
         nomatch = binary:match(Body, [<<"secret">>, <<"root:">>])
     end || Path <- Paths],
    %% Dot segments that stay inside the docroot are permitted (RFC 3986, 5.2.4).
    {200, _, <<"0123456789">>} = get(Config, "/page/../digits.txt"),
    {200, _, <<"0123456789">>} = get(Config, "/page/%2e%2e/./digits.txt").

%% RFC 3986, 2.2: an encoded slash is not equivalent to a slash. If a server treated it as one, a client could bypass a rule for a directory.
encoded_slash(Config) ->
    [{400, _, _} = get(Config, Path) || Path <- ["/page%2findex.html", "/page%2Findex.html", "/list%2fb.txt", "/%2fdigits.txt"]].

symlinks(Config) ->
    {200, _, <<"0123456789">>} = get(Config, "/stays"),
    [{403, _, _} = get(Config, Path) || Path <- ["/leaves", "/up/outside.txt", "/etc/passwd", "/up/root/../outside.txt", "/links/stays"]],
    {200, _, <<"secret">>} = get(Config, "/any/leaves").

%% A listing contains exactly those links that can be requested.
listed_links(Config) ->
    Links = fun(Path) ->
        {200, _, Page} = get(Config, Path),
        [Name || Name <- ["leaves", "up", "etc", "stays"], binary:match(Page, list_to_binary(["./", Name])) =/= nomatch]
    end,
    [["stays"], [], ["leaves", "up", "etc", "stays"]] = [Links(Path) || Path <- ["/listed/", "/links/", "/any/"]].

%% A file has no validator for as long as it may change again within the second of its modification
%% time. A cache therefore requests it again and gets the current content. A tag never reveals an
%% inode number.
fresh(Config) ->
    File = <<(?config(root, Config))/binary, "/fresh.txt">>,
    ok = file:write_file(File, <<"one">>),
    {200, First, <<"one">>} = get(Config, "/fresh.txt"),
    [undefined, undefined] = [proplists:get_value(Name, First) || Name <- [<<"etag">>, <<"last-modified">>]],
    Conditions = [[{"If-None-Match", "\"x\""}], [{"If-Modified-Since", "Fri, 01 Jan 2100 00:00:00 GMT"}], [{"Range", "bytes=0-0"}, {"If-Range", "\"x\""}]],
    [{200, _, <<"one">>} = get(Config, "/fresh.txt", Headers) || Headers <- Conditions],
    true = beamway_peer:wait_until(fun() -> header(<<"etag">>, get(Config, "/fresh.txt")) =/= undefined end, 20000),
    <<"\"3-", _/binary>> = Etag = header(<<"etag">>, get(Config, "/fresh.txt")),
    {304, _, _} = get(Config, "/fresh.txt", [{"If-None-Match", Etag}]).

%% The server sends the first of the file's forms that the client accepts and that is not older than
%% the file. It does not follow a symbolic link to such a form.
beside_by_coding(Config) ->
    Root = ?config(root, Config),
    Time = fun(Name, Date) -> ok = file:write_file_info(<<Root/binary, "/", Name/binary>>, #file_info{mtime = {Date, {3, 4, 5}}}, [{time, universal}]) end,
    [begin ok = file:write_file(<<Root/binary, "/", Name/binary>>, Data), Time(Name, {2020, 1, 2}) end
     || {Name, Data} <- [{<<"app.js">>, <<"plain">>}, {<<"app.js.br">>, <<"in br">>}, {<<"app.js.zst">>, <<"in zst">>}, {<<"app.js.gz">>, <<"in gz">>},
                         {<<"old.js">>, <<"newer">>}, {<<"old.js.br">>, <<"older">>}, {<<"linked.js">>, <<"plain">>}]],
    Time(<<"old.js.br">>, {2019, 1, 1}),
    ok = file:make_symlink(<<"app.js.br">>, <<Root/binary, "/linked.js.br">>),
    Ask = fun(Path, Accept) -> Response = get(Config, Path, [{"Accept-Encoding", Accept}]), {element(3, Response), header(<<"content-encoding">>, Response), header(<<"etag">>, Response)} end,
    [begin {Body, Coding, Etag} = Ask("/app.js", Accept), {Body, Coding} = {Expected, Says}, {304, _, _} = get(Config, "/app.js", [{"Accept-Encoding", Accept}, {"If-None-Match", Etag}]) end
     || _ <- [looked_at, kept], {Accept, Expected, Says} <- [{"gzip, zstd, br", <<"in br">>, <<"br">>}, {"gzip, zstd;q=0.5, br;q=0", <<"in zst">>, <<"zstd">>},
                                                             {"gzip", <<"in gz">>, <<"gzip">>}, {"identity", <<"plain">>, undefined}]],
    [{<<"newer">>, undefined, _}, {<<"plain">>, undefined, _}] = [Ask(Path, "br") || Path <- ["/old.js", "/linked.js"]],
    4 = length(lists:usort([element(3, Ask("/app.js", Accept)) || Accept <- ["br", "zstd", "gzip", "identity"]])).

%% A file that has not changed recently is checked at most once a second, however often it is requested. The same applies to a directory's index file
%% and, from its second request on, to a larger file.
kept(Config) ->
    Root = ?config(root, Config),
    [begin
         ok = settled(<<Root/binary, File/binary>>),
         {200, _, _} = get(Config, Path),
         Began = erlang:monotonic_time(second),
         Looks = calls({yucan_symlink, info, 3}, fun() -> [get(Config, Path, Headers) || _ <- lists:seq(1, 20), Headers <- [[], [{"Range", "bytes=1-2"}]]] end),
         {Path, true} = {Path, Looks =< 2 * (1 + erlang:monotonic_time(second) - Began)}
     end || {Path, File} <- [{"/kept.bin", <<"/kept.bin">>}, {"/often.bin", <<"/often.bin">>}, {"/page/", <<"/page/index.html">>}], ok =:= filelib:ensure_dir(File), prepared(Root, File)],
    {206, _, <<"12">>} = get(Config, "/kept.bin", [{"Range", "bytes=1-2"}]),
    {206, _, <<"\r\n--", _/binary>>} = get(Config, "/kept.bin", [{"Range", "bytes=1-2,4-5"}]),
    [{200, _, <<>>}] = yucan_client:exchange(?config(port, Config), "HEAD /kept.bin HTTP/1.1\r\nHost: a\r\n\r\n", <<"HEAD">>),
    [{405, _, _}] = yucan_client:exchange(?config(port, Config), "DELETE /kept.bin HTTP/1.1\r\nHost: a\r\n\r\n"),
    #{entries := Entries} = yucan_file_cache:info(yucan_files),
    true = Entries >= 2.

prepared(Root, <<"/kept.bin">> = File) -> ok =:= file:write_file(<<Root/binary, File/binary>>, <<"0123456789">>);
prepared(Root, <<"/often.bin">> = File) -> ok =:= file:write_file(<<Root/binary, File/binary>>, binary:copy(<<"0123456789">>, 100000));
prepared(_, _) -> true.

%% Waits until a further change would be visible in the file's times, according to the server's
%% clock. (In os:system_time/1, a new second begins a few milliseconds earlier.)
settled(File) ->
    true = beamway_peer:wait_until(fun() ->
        {ok, #file_info{ctime = Changed, mtime = Modified}} = file:read_file_info(File, [{time, universal}]),
        [Now, Last] = [calendar:datetime_to_gregorian_seconds(Time) || Time <- [calendar:universal_time(), max(Changed, Modified)]],
        Now - Last >= 2
    end, 20000),
    ok.

calls(Function, Work) ->
    1 = erlang:trace_pattern(Function, true, [call_count]),
    try
        _ = Work(),
        {call_count, Count} = erlang:trace_info(Function, call_count),
        Count
    after
        erlang:trace_pattern(Function, false, [call_count])
    end.

%% Text is compressed once rather than for each request, even if the file is checked again in the meantime.
kept_forms(Config) ->
    ok = settled(<<(?config(root, Config))/binary, "/long.txt">>),
    Ask = fun() -> {200, _, Body} = get(Config, "/long.txt", [{"Accept-Encoding", "gzip"}]), Body end,
    true = binary:copy(<<"words ">>, 1000) =:= zlib:gunzip(Ask()),
    0 = calls({zlib, gzip, 1}, fun() ->
        [Ask() || _ <- lists:seq(1, 10)],
        true = beamway_peer:wait_until(fun() -> calls({yucan_symlink, info, 3}, Ask) > 0 end, 20000)
    end).

%% A change is noticed within a second, whether the file is replaced by another file, changed in place, changed in place with its old modification
%% time, or removed.
replaced(Config) ->
    File = fun(Name) -> <<(?config(root, Config))/binary, "/replaced-", Name/binary>> end,
    Put = fun(Name, Data) -> ok = file:write_file(File(Name), Data), ok = file:write_file_info(File(Name), #file_info{mtime = {{2020, 1, 2}, {3, 4, 5}}}, [{time, universal}]) end,
    Ways = [{<<"moved">>, fun(Name) -> Put(<<"new">>, <<"other">>), ok = file:rename(File(<<"new">>), File(Name)) end, {200, <<"other">>}},
            {<<"touched">>, fun(Name) -> Put(Name, <<"other">>) end, {200, <<"other">>}},
            {<<"written">>, fun(Name) -> ok = file:write_file(File(Name), <<"other">>) end, {200, <<"other">>}},
            {<<"deleted">>, fun(Name) -> ok = file:delete(File(Name)) end, {404, <<>>}}],
    Ask = fun(Name) -> {Status, _, Body} = get(Config, ["/replaced-", Name]), {Status, case Status of 200 -> Body; _ -> <<>> end} end,
    [Put(Name, <<"first">>) || {Name, _, _} <- Ways],
    ok = settled(File(<<"deleted">>)),
    [{200, <<"first">>} = Ask(Name) || _ <- [looked_at, kept], {Name, _, _} <- Ways],
    [Change(Name) || {Name, Change, _} <- Ways],
    Changed = erlang:monotonic_time(millisecond),
    true = beamway_peer:wait_until(fun() -> [Ask(Name) || {Name, _, _} <- Ways] =:= [Expected || {_, _, Expected} <- Ways] end, 20000),
    true = erlang:monotonic_time(millisecond) - Changed < 3000.

%% A cached file, or a directory in its path, is replaced by a link to a different place.
turned_into_links(Config) ->
    Root = ?config(root, Config),
    Inside = <<Root/binary, "/turned/to">>,
    ok = filelib:ensure_dir(<<Inside/binary, "/x">>),
    [ok = file:write_file(<<Root/binary, Name/binary>>, <<"inside">>) || Name <- [<<"/turned/file.txt">>, <<"/turned/to/outside.txt">>]],
    ok = settled(<<Inside/binary, "/outside.txt">>),
    Ask = fun(Path) -> element(1, get(Config, Path)) end,
    [200, 200, 200, 200] = [Ask(Path) || _ <- [looked_at, kept], Path <- ["/turned/file.txt", "/turned/to/outside.txt"]],
    ok = file:delete(<<Root/binary, "/turned/file.txt">>),
    ok = file:make_symlink(<<"../../outside.txt">>, <<Root/binary, "/turned/file.txt">>),
    ok = file:rename(Inside, <<Inside/binary, "-before">>),
    ok = file:make_symlink(<<"../..">>, Inside),
    true = beamway_peer:wait_until(fun() -> [Ask(Path) || Path <- ["/turned/file.txt", "/turned/to/outside.txt"]] =:= [403, 403] end, 20000).

%% When the server starts, it reports an invalid option in plain language.
bad_options(Config) ->
    Root = ?config(root, Config),
    [begin
         {error, Text} = yucan:start(#{name => yucan_files_bad, listen => [#{port => 0}], handler => {yucan_file, Options}}),
         {Text, true} = {Text, is_binary(Text) andalso binary:match(Text, Expected) =/= nomatch}
     end || {Options, Expected} <- [{#{root => Root, follow_symlinks => true}, <<"yucan_file: follow_symlinks is true; inside, always or never is expected">>},
                                    {#{root => Root, symlinks => never}, <<"yucan_file: unknown option symlinks; known are ">>},
                                    {#{root => <<"/no/such">>}, <<"yucan_file: root is /no/such; no such folder">>}]].

dot_files(Config) ->
    [{404, _, _} = get(Config, Path) || Path <- ["/.secret", "/%2esecret", "/list/.hidden", "/./.secret"]],
    {200, _, <<"token">>} = get(Config, "/.well-known/acme").

%% Not even root may read this file, and requesting it does not cause a crash.
write_only(Config) ->
    Crashes = fun() -> #{metrics := #{crashes := Count}} = yucan:info(yucan_files), Count end,
    Before = Crashes(),
    {403, _, _} = get(Config, "/write_only/compact_memory"),
    [{403, _, <<>>}] = yucan_client:exchange(?config(port, Config), "HEAD /write_only/compact_memory HTTP/1.1\r\nHost: a\r\n\r\n", <<"HEAD">>),
    Before = Crashes().

large(Config) ->
    {200, _, Body} = get(Config, "/large.bin"),
    true = Body =:= binary:copy(<<"0123456789abcdef">>, 500000),
    {206, _, Part} = get(Config, "/large.bin", [{"Range", "bytes=100003-7000004"}]),
    true = Part =:= binary:part(Body, 100003, 6900002).

%% A file is truncated while it is being sent, and the client can tell that bytes are missing.
shrinking(Config) ->
    File = <<(?config(root, Config))/binary, "/shrinking.bin">>,
    ok = file:write_file(File, binary:copy(<<"x">>, 30000000)),
    Socket = yucan_client:connect(?config(port, Config)),
    ok = gen_tcp:send(Socket, "GET /shrinking.bin HTTP/1.1\r\nHost: a\r\n\r\n"),
    {ok, <<"HTTP/1.1 200">>} = gen_tcp:recv(Socket, 12, 20000),
    ok = file:write_file(File, <<"short">>),
    true = byte_size(yucan_client:until_closed(Socket)) < 30000000.

%% The handler does not crash if the client disconnects, or the file is truncated, in the middle of a response with several ranges.
parts_cut(Config) ->
    ok = logger:add_handler(?MODULE, yucan_test_logger, #{level => error, config => #{pid => self()}}),
    File = <<(?config(root, Config))/binary, "/parts.bin">>,
    Port = ?config(port, Config),
    [begin
         ok = file:write_file(File, binary:copy(<<"x">>, 30000000)),
         {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}, {recbuf, 65536}]),
         ok = gen_tcp:send(Socket, "GET /parts.bin HTTP/1.1\r\nHost: a\r\nRange: bytes=0-14999999,15000001-29999999\r\n\r\n"),
         {ok, <<"HTTP/1.1 206">>} = gen_tcp:recv(Socket, 12, 20000),
         ok = End(Socket)
     end || End <- [fun(Socket) -> ok = inet:setopts(Socket, [{linger, {true, 0}}]), gen_tcp:close(Socket) end,
                    fun(Socket) -> ok = file:write_file(File, <<"short">>), true = byte_size(yucan_client:until_closed(Socket)) < 30000000, gen_tcp:close(Socket) end]],
    true = beamway_peer:wait_until(fun() -> #{metrics := #{open_connections := Open}} = yucan:info(yucan_files), Open =:= 0 end, 20000),
    ok = logger:remove_handler(?MODULE),
    receive {logged, Event} -> error({logged, Event}) after 0 -> ok end.

names(Config) ->
    Name = <<"na me%#?+é"/utf8>>,
    ok = file:write_file(<<(?config(root, Config))/binary, "/", Name/binary>>, <<"named">>),
    {200, _, <<"named">>} = get(Config, ["/", yucan_path:escape(Name)]).
