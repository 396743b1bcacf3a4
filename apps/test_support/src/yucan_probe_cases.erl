%% SPDX-License-Identifier: Apache-2.0
%% @doc Contains the tables of yucan_probe_SUITE. Each entry has an id, the source of the rule, the bytes and the verdict.
%%
%% The ids are those of MDA2AV/Http11Probe (87 for smuggling, 26 for malformed requests) and numbers for dropseed/h1spec (33, strict). If these
%% allow more than one response, we expect the strictest, because the danger is that two servers interpret the same bytes differently.
-module(yucan_probe_cases).

-export([smuggling/0, malformed/0, h1spec/0]).
-export_type([probe/0]).

-type verdict() :: {refused, [400..505]} | {refused_or_silent, [400..505]} | silent | {answers, [integer()]} | {echo, binary()} | {length, [integer()]}.
-type probe() :: {Id :: string(), Rfc :: string(), iodata(), verdict()}.

-define(FOLLOW, "GET /follow HTTP/1.1\r\nHost: localhost\r\n\r\n").
-define(SMUGGLED, "GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n").
-define(BAD, {refused, [400]}).

request(Method, Lines, Body) -> [Method, " / HTTP/1.1\r\nHost: localhost\r\n", [[Line, "\r\n"] || Line <- Lines], "\r\n", Body].

post(Lines, Body) -> request("POST", Lines, Body).

chunked(Body) -> post(["Transfer-Encoding: chunked"], Body).

both(Te, Body) -> post(["Content-Length: 5", Te], Body).

%% Returns a request with ambiguous framing, with a second request inside its body and a third one after it.
hiding(Lines) -> [post(Lines, ["0\r\n\r\n", ?SMUGGLED]), ?FOLLOW].

length_of(Text) -> integer_to_list(iolist_size(Text)).

%% @doc Returns requests that try to smuggle another request inside them.
-spec smuggling() -> [probe()].
smuggling() -> lengths() ++ encodings() ++ chunks() ++ trailers() ++ others() ++ sequences().

lengths() ->
    Length = fun(Value) -> post(["Content-Length:" ++ Value], "hello") end,
    [{"SMUG-CL-TE-BOTH", "RFC 9112, 6.3", both("Transfer-Encoding: chunked", "d\r\nhello-bananas\r\n0\r\n\r\n"), ?BAD},
     {"SMUG-DUPLICATE-CL", "RFC 9110, 8.6", post(["Content-Length: 5", "Content-Length: 10"], "helloworld"), ?BAD},
     {"SMUG-CL-LEADING-ZEROS", "RFC 9110, 8.6", Length(" 005"), {echo, <<"hello">>}},
     {"SMUG-CL-NEGATIVE", "RFC 9110, 8.6", Length(" -1"), ?BAD},
     {"SMUG-CL-TRAILING-SPACE", "RFC 9110, 5.5", Length(" 5 "), {echo, <<"hello">>}},
     {"SMUG-CL-EXTRA-LEADING-SP", "RFC 9110, 5.5", Length("  5"), {echo, <<"hello">>}},
     {"SMUG-CL-COMMA-DIFFERENT", "RFC 9110, 8.6", Length(" 5, 10"), ?BAD},
     {"SMUG-CL-COMMA-SAME", "RFC 9110, 8.6", Length(" 5, 5"), ?BAD},
     {"SMUG-CL-COMMA-TRIPLE", "RFC 9110, 8.6", Length(" 5, 5, 5"), ?BAD},
     {"SMUG-CL-OCTAL", "RFC 9110, 8.6", Length(" 0o5"), ?BAD},
     {"SMUG-CL-HEX-PREFIX", "RFC 9110, 8.6", Length(" 0x5"), ?BAD},
     {"SMUG-CL-INTERNAL-SPACE", "RFC 9110, 8.6", Length(" 1 0"), ?BAD},
     {"SMUG-CL-UNDERSCORE", "RFC 9110, 8.6", Length(" 1_0"), ?BAD},
     {"SMUG-CL-NEGATIVE-ZERO", "RFC 9110, 8.6", Length(" -0"), ?BAD},
     {"SMUG-CL-DOUBLE-ZERO", "RFC 9110, 8.6", post(["Content-Length: 00"], ""), {answers, [200]}},
     {"SMUG-CL-LEADING-ZEROS-OCTAL", "RFC 9110, 8.6", post(["Content-Length: 0200"], lists:duplicate(200, $a)),
      {echo, list_to_binary(lists:duplicate(200, $a))}},
     {"SMUG-EXPECT-100-CL", "RFC 9110, 10.1.1", post(["Content-Length: 5", "Expect: 100-continue"], "hello"), {echo, <<"hello">>}},
     {"SMUG-HEAD-CL-BODY", "RFC 9110, 9.3.2", request("HEAD", ["Content-Length: 5"], "hello"), {answers, [200]}},
     {"SMUG-OPTIONS-CL-BODY", "RFC 9110, 9.3.7", request("OPTIONS", ["Content-Length: 5"], "hello"), {echo, <<"hello">>}}].

encodings() ->
    Coded = fun(Value) -> post(["Transfer-Encoding:" ++ Value, "Content-Length: 5"], "hello") end,
    [{"SMUG-TE-XCHUNKED", "RFC 9112, 6.1", Coded(" xchunked"), ?BAD},
     {"SMUG-TE-TRAILING-SPACE", "RFC 9112, 6.3", Coded(" chunked "), ?BAD},
     {"SMUG-TE-SP-BEFORE-COLON", "RFC 9112, 5.1", post(["Transfer-Encoding : chunked", "Content-Length: 5"], "hello"), ?BAD},
     {"SMUG-TE-DOUBLE-CHUNKED", "RFC 9112, 6.1", Coded(" chunked, chunked"), ?BAD},
     {"SMUG-TE-CASE-MISMATCH", "RFC 9112, 6.3", Coded(" Chunked"), ?BAD},
     {"SMUG-TE-NOT-FINAL-CHUNKED", "RFC 9112, 6.3", post(["Transfer-Encoding: chunked, gzip"], "0\r\n\r\n"), ?BAD},
     {"SMUG-TE-HTTP10", "RFC 9112, 6.1", "POST / HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nhello", ?BAD},
     {"SMUG-TE-EMPTY-VALUE", "RFC 9112, 6.1", Coded(" "), ?BAD},
     {"SMUG-TE-LEADING-COMMA", "RFC 9112, 6.1", Coded(" , chunked"), ?BAD},
     {"SMUG-TE-DUPLICATE-HEADERS", "RFC 9112, 6.1", post(["Transfer-Encoding: chunked", "Transfer-Encoding: identity", "Content-Length: 5"], "hello"), ?BAD},
     {"SMUG-TE-VTAB", "RFC 9110, 5.5", Coded(" \vchunked"), ?BAD},
     {"SMUG-TE-FORMFEED", "RFC 9110, 5.5", Coded(" \fchunked"), ?BAD},
     {"SMUG-TE-NULL", "RFC 9110, 5.5", Coded([" chunked", 0]), ?BAD},
     {"SMUG-TE-IDENTITY", "RFC 9112, 7", Coded(" identity"), ?BAD},
     {"SMUG-TRANSFER_ENCODING", "RFC 9110, 5.1", post(["Transfer_Encoding: chunked", "Content-Length: 5"], "hello"), {echo, <<"hello">>}},
     {"SMUG-CHUNKED-WITH-PARAMS", "RFC 9112, 7", Coded(" chunked;ext=val"), ?BAD},
     {"SMUG-TE-OBS-FOLD", "RFC 9112, 5.2", post(["Transfer-Encoding:\r\n chunked", "Content-Length: 5"], "hello"), ?BAD},
     {"SMUG-TE-TRAILING-COMMA", "RFC 9112, 6.1", Coded(" chunked,"), ?BAD},
     {"SMUG-TE-TAB-BEFORE-VALUE", "RFC 9112, 6.3", Coded("\tchunked"), ?BAD}].

chunks() ->
    Rule = "RFC 9112, 7.1",
    Bad = fun(Id, Body) -> {"SMUG-CHUNK-" ++ Id, Rule, chunked(Body), ?BAD} end,
    [Bad("BARE-SEMICOLON", "5;\r\nhello\r\n0\r\n\r\n"),
     Bad("EXT-INVALID-TOKEN", "5;bad[=x\r\nhello\r\n0\r\n\r\n"),
     Bad("UNDERSCORE", "1_0\r\nhello world!!!!!\r\n0\r\n\r\n"),
     Bad("HEX-PREFIX", "0x5\r\nhello\r\n0\r\n\r\n"),
     Bad("SIZE-PLUS", "+5\r\nhello\r\n0\r\n\r\n"),
     Bad("SIZE-TRAILING-OWS", "5 \r\nhello\r\n0\r\n\r\n"),
     Bad("LEADING-SP", " 5\r\nhello\r\n0\r\n\r\n"),
     Bad("MISSING-TRAILING-CRLF", "5\r\nhello0\r\n\r\n"),
     Bad("EXT-LF", "5;\nhello\r\n0\r\n\r\n"),
     Bad("SPILL", "5\r\nhello!!\r\n0\r\n\r\n"),
     Bad("LF-TERM", "5\r\nhello\n0\r\n\r\n"),
     Bad("EXT-CTRL", ["5;", 0, "ext\r\nhello\r\n0\r\n\r\n"]),
     Bad("EXT-CR", "5;a\rX\r\nhello\r\n0\r\n\r\n"),
     Bad("LF-TRAILER", "5\r\nhello\r\n0\r\n\n"),
     Bad("NEGATIVE", "-1\r\nhello\r\n0\r\n\r\n"),
     Bad("BARE-CR-TERM", "5\rhello\r\n0\r\n\r\n")].

trailers() ->
    Rule = "RFC 9110, 6.5.1",
    With = fun(Line) -> chunked(["5\r\nhello\r\n0\r\n", Line, "\r\n\r\n"]) end,
    [{"SMUG-TRAILER-CL", Rule, With("Content-Length: 50"), ?BAD},
     {"SMUG-TRAILER-TE", Rule, With("Transfer-Encoding: chunked"), ?BAD},
     {"SMUG-TRAILER-HOST", Rule, With("Host: evil.example.com"), ?BAD},
     %% Trailers are kept separate from the headers, so these have no effect.
     {"SMUG-TRAILER-AUTH", Rule, With("Authorization: Bearer evil"), {echo, <<"hello">>}},
     {"SMUG-TRAILER-CONTENT-TYPE", Rule, With("Content-Type: text/evil"), {echo, <<"hello">>}}].

others() ->
    [{"SMUG-CLTE-PIPELINE", "RFC 9112, 6.3", [post(["Content-Length: 4", "Transfer-Encoding: chunked"], "0\r\n\r\n"), ?FOLLOW], ?BAD},
     {"SMUG-TECL-PIPELINE", "RFC 9112, 6.3", [post(["Transfer-Encoding: chunked", "Content-Length: 30"], "0\r\n\r\n"), ?FOLLOW], ?BAD},
     {"SMUG-BARE-CR-HEADER-VALUE", "RFC 9112, 2.2", post(["Content-Length: 5", "X-Test: val\rue"], "hello"), ?BAD},
     %% The target's authority takes precedence (RFC 9112, 3.2.2).
     {"SMUG-ABSOLUTE-URI-HOST-MISMATCH", "RFC 9112, 3.2.2", "GET http://other.example.com/host HTTP/1.1\r\nHost: localhost\r\n\r\n",
      {echo, <<"other.example.com">>}},
     {"SMUG-MULTIPLE-HOST-COMMA", "RFC 9112, 3.2", "GET / HTTP/1.1\r\nHost: localhost, other.example.com\r\n\r\n", ?BAD}].

sequences() ->
    Twice = ["Content-Length: 5", "Transfer-Encoding: chunked"],
    Prefix = "GET / HTTP/1.1\r\nHost: localhost\r\n",
    [{"SMUG-CLTE-CONN-CLOSE", "RFC 9112, 6.1", [post(Twice, "0\r\n\r\n"), ?FOLLOW], ?BAD},
     {"SMUG-TECL-CONN-CLOSE", "RFC 9112, 6.1", [post(lists:reverse(Twice), "0\r\n\r\n"), ?FOLLOW], ?BAD},
     {"SMUG-CLTE-DESYNC", "RFC 9112, 6.1", [post(["Content-Length: 6", "Transfer-Encoding: chunked"], "0\r\n\r\nX"), ?FOLLOW], ?BAD},
     {"SMUG-TECL-DESYNC", "RFC 9112, 6.1", [post(["Transfer-Encoding: chunked", "Content-Length: 30"], "0\r\n\r\nX"), ?FOLLOW], ?BAD},
     {"SMUG-CLTE-SMUGGLED-GET", "RFC 9112, 6.3", hiding(["Content-Length: 50", "Transfer-Encoding: chunked"]), ?BAD},
     {"SMUG-CLTE-SMUGGLED-HEAD", "RFC 9112, 6.3", [post(["Content-Length: 51", "Transfer-Encoding: chunked"],
                                                       ["0\r\n\r\n", "HEAD /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"]), ?FOLLOW], ?BAD},
     {"SMUG-CLTE-SMUGGLED-GET-CL-PLUS", "RFC 9110, 8.6", hiding(["Content-Length: +50", "Transfer-Encoding: chunked"]), ?BAD},
     {"SMUG-CLTE-SMUGGLED-GET-CL-NON-NUMERIC", "RFC 9110, 8.6", hiding(["Content-Length: 5a", "Transfer-Encoding: chunked"]), ?BAD},
     {"SMUG-CLTE-SMUGGLED-GET-TE-OBS-FOLD", "RFC 9112, 5.2", hiding(["Content-Length: 50", "Transfer-Encoding:\r\n chunked"]), ?BAD},
     {"SMUG-CLTE-SMUGGLED-GET-TE-TRAILING-SPACE", "RFC 9112, 6.3", hiding(["Content-Length: 50", "Transfer-Encoding: chunked "]), ?BAD},
     {"SMUG-CLTE-SMUGGLED-GET-TE-LEADING-COMMA", "RFC 9112, 6.3", hiding(["Content-Length: 50", "Transfer-Encoding: , chunked"]), ?BAD},
     {"SMUG-CLTE-SMUGGLED-GET-TE-CASE-MISMATCH", "RFC 9112, 6.3", hiding(["Content-Length: 50", "Transfer-Encoding: ChUnKeD"]), ?BAD},
     {"SMUG-TE-DUPLICATE-HEADERS-SMUGGLED-GET", "RFC 9112, 6.3", hiding(["Content-Length: 50", "Transfer-Encoding: chunked", "Transfer-Encoding: identity"]), ?BAD},
     {"SMUG-TECL-SMUGGLED-GET", "RFC 9112, 6.3", hiding(["Transfer-Encoding: chunked", "Content-Length: 5"]), ?BAD},
     {"SMUG-DUPLICATE-CL-SMUGGLED-GET", "RFC 9110, 8.6", hiding(["Content-Length: 5", "Content-Length: 50"]), ?BAD},
     {"SMUG-GET-CL-PREFIX-DESYNC", "RFC 9110, 9.3.1", [request("GET", ["Content-Length: " ++ length_of(Prefix)], Prefix), "\r\n", ?FOLLOW], {answers, [200, 200]}},
     {"SMUG-CL0-BODY-POISON", "RFC 9112, 6.3", [post(["Content-Length: 0"], "X "), ?FOLLOW], {answers, [200, 400]}},
     {"SMUG-GET-CL-BODY-DESYNC", "RFC 9110, 9.3.1", [request("GET", ["Content-Length: 5"], "hello"), ?FOLLOW], {answers, [200, 200]}},
     {"SMUG-OPTIONS-CL-BODY-DESYNC", "RFC 9110, 9.3.7", [request("OPTIONS", ["Content-Length: 5"], "hello"), ?FOLLOW], {answers, [200, 200]}},
     {"SMUG-EXPECT-100-CL-DESYNC", "RFC 9110, 10.1.1", [post(["Content-Length: 5", "Expect: 100-continue"], "hello"), ?FOLLOW], {answers, [200, 200]}},
     {"SMUG-OPTIONS-TE-OBS-FOLD", "RFC 9112, 5.2", [request("OPTIONS", ["Transfer-Encoding:\r\n chunked"], "0\r\n\r\n"), ?FOLLOW], ?BAD},
     {"SMUG-CHUNK-INVALID-SIZE-DESYNC", "RFC 9112, 7.1", [chunked("+0\r\n\r\nX"), ?FOLLOW], ?BAD},
     {"SMUG-PIPELINE-SAFE", "RFC 9112, 9.3.2", [?FOLLOW, ?FOLLOW], {answers, [200, 200]}}].

%% @doc Returns requests that no client would send on purpose.
-spec malformed() -> [probe()].
malformed() ->
    With = fun(Line) -> request("GET", [Line], "") end,
    Target = fun(Text) -> ["GET ", Text, " HTTP/1.1\r\nHost: localhost\r\n\r\n"] end,
    Long = fun(Bytes) -> lists:duplicate(Bytes, $a) end,
    [{"MAL-BINARY-GARBAGE", "RFC 9112, 3", [16#de, 16#ad, 16#be, 16#ef, 0, 255, 13, 10, 13, 10], {refused_or_silent, [400]}},
     {"MAL-LONG-URL", "RFC 9110, 15.5.15", Target(["/", Long(100000)]), {refused, [414]}},
     {"MAL-LONG-HEADER-VALUE", "RFC 6585, 5", With(["X-Big: ", Long(100000)]), {refused, [431]}},
     {"MAL-MANY-HEADERS", "RFC 6585, 5", request("GET", [["X-H-", integer_to_list(N), ": value"] || N <- lists:seq(1, 10000)], ""), {refused, [431]}},
     {"MAL-NUL-IN-URL", "RFC 3986, 2", Target(["/", 0, "test"]), ?BAD},
     {"MAL-CONTROL-CHARS-HEADER", "RFC 9110, 5.5", With(["X-Test: abc", 7, 8, 11, "def"]), ?BAD},
     {"MAL-INCOMPLETE-REQUEST", "RFC 9112, 8", "GET / HTTP/1.1\r\nHost: localhost\r\nX-Test: value", silent},
     {"MAL-EMPTY-REQUEST", "RFC 9112, 8", "", silent},
     {"MAL-LONG-HEADER-NAME", "RFC 6585, 5", With([Long(100000), ": val"]), {refused, [431]}},
     {"MAL-LONG-METHOD", "RFC 9112, 3", [lists:duplicate(100000, $A), " / HTTP/1.1\r\nHost: localhost\r\n\r\n"], {refused, [400, 501]}},
     {"MAL-NON-ASCII-HEADER-NAME", "RFC 9110, 5.1", With(["X-T", 16#c3, 16#a9, "st: value"]), ?BAD},
     {"MAL-NON-ASCII-URL", "RFC 3986, 2", Target(["/caf", 16#c3, 16#a9]), ?BAD},
     {"MAL-CL-OVERFLOW", "RFC 9110, 8.6", post(["Content-Length: 99999999999999999999"], ""), ?BAD},
     {"MAL-WHITESPACE-ONLY-LINE", "RFC 9112, 3", "   \r\n\r\n", ?BAD},
     {"MAL-NUL-IN-HEADER-VALUE", "RFC 9110, 5.5", With(["X-Test: val", 0, "ue"]), ?BAD},
     {"MAL-CHUNK-SIZE-OVERFLOW", "RFC 9112, 7.1", chunked("FFFFFFFFFFFFFFFF0\r\nhello\r\n0\r\n\r\n"), ?BAD},
     {"MAL-H2-PREFACE", "RFC 9113, 3.4", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {refused, [505]}},
     {"MAL-CL-EMPTY", "RFC 9110, 8.6", post(["Content-Length: "], ""), ?BAD},
     {"MAL-CL-TAB-BEFORE-VALUE", "RFC 9110, 5.5", post(["Content-Length:\t5"], "hello"), {echo, <<"hello">>}},
     %% These are not HTTP errors. yucan_files_SUITE tests that files are safe from them.
     {"MAL-URL-BACKSLASH", "RFC 3986, 2", Target("/path\\file"), ?BAD},
     {"MAL-URL-OVERLONG-UTF8", "RFC 3629, 3", Target(["/", 16#c0, 16#af]), ?BAD},
     {"MAL-URL-PERCENT-NULL", "RFC 3986, 2.1", Target("/path%00.html"), ?BAD},
     {"MAL-URL-PERCENT-CRLF", "RFC 3986, 2.1", Target("/path%0d%0aX-Injected:%20true"), {answers, [200]}},
     {"MAL-CHUNK-EXT-64K", "RFC 9112, 7.1.1", chunked(["5;ext=", Long(65536), "\r\nhello\r\n0\r\n\r\n"]), ?BAD},
     {"MAL-RANGE-OVERLAPPING", "RFC 9110, 14.2", With(["Range: bytes=", lists:join(",", lists:duplicate(1000, "0-"))]), {answers, [200]}},
     {"MAL-POST-CL-HUGE-NO-BODY", "RFC 9112, 6.3", post(["Content-Length: 999999999"], ""), {refused, [413]}}].

%% @doc Returns the cases for conformance, as h1spec --strict checks it.
-spec h1spec() -> [probe()].
h1spec() -> request_line() ++ headers() ++ bodies() ++ connections() ++ hardening() ++ semantics().

request_line() ->
    Rule = "RFC 9112, 3",
    [{"h1spec 1: simple GET", Rule, ?FOLLOW, {answers, [200]}},
     {"h1spec 2: POST with a body", Rule, post(["Content-Length: 5"], "hello"), {echo, <<"hello">>}},
     {"h1spec 3: OPTIONS *", "RFC 9112, 3.2.4", "OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", {answers, [204]}},
     {"h1spec 4: absolute form", "RFC 9112, 3.2.2", "GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n", {answers, [200]}},
     {"h1spec 5: CONNECT is understood", "RFC 9112, 3.2.3", "CONNECT example.com:443 HTTP/1.1\r\nHost: localhost\r\n\r\n", {refused, [501]}},
     {"h1spec 6: HTTP/2.0", "RFC 9110, 15.6.6", "GET / HTTP/2.0\r\nHost: localhost\r\n\r\n", {refused, [505]}},
     {"h1spec 7: no version", Rule, "GET /\r\nHost: localhost\r\n\r\n", ?BAD}].

headers() ->
    Plain = fun(Lines) -> ["GET / HTTP/1.1\r\n", [[Line, "\r\n"] || Line <- Lines], "\r\n"] end,
    [{"h1spec 8: no Host", "RFC 9112, 3.2", Plain([]), ?BAD},
     {"h1spec 9: two Hosts", "RFC 9112, 3.2", Plain(["Host: localhost", "Host: example.com"]), ?BAD},
     {"h1spec 10: bad Host", "RFC 9112, 3.2", Plain(["Host: bad host"]), ?BAD},
     {"h1spec 11: blank in a name", "RFC 9110, 5.1", Plain(["Host: localhost", "Bad Header: value"]), ?BAD},
     {"h1spec 12: folded line", "RFC 9112, 5.2", Plain(["Host: localhost", "  continued"]), ?BAD},
     {"h1spec 13: blank before the colon", "RFC 9112, 5.1", Plain(["Host : localhost"]), ?BAD},
     {"h1spec 14: NUL", "RFC 9110, 5.5", Plain([["Host: local", 0, "host"]]), ?BAD}].

bodies() ->
    Good = "5\r\nhello\r\n0\r\n\r\n",
    [{"h1spec 15: chunked", "RFC 9112, 7.1", chunked(Good), {echo, <<"hello">>}},
     {"h1spec 16: chunked in HTTP/1.0", "RFC 9112, 6.1", ["POST / HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", Good], ?BAD},
     {"h1spec 17: chunked and a length", "RFC 9112, 6.3", post(["Transfer-Encoding: chunked", "Content-Length: 5"], Good), ?BAD},
     {"h1spec 18: then the connection ends", "RFC 9112, 6.1", [post(["Transfer-Encoding: chunked", "Content-Length: 5"], Good), ?FOLLOW], ?BAD},
     {"h1spec 19: unknown coding", "RFC 9112, 6.1", post(["Transfer-Encoding: nonsense"], "hello"), {refused, [400, 501]}},
     {"h1spec 20: chunked is not last", "RFC 9112, 6.3", [post(["Transfer-Encoding: chunked, gzip"], Good), ?FOLLOW], ?BAD},
     {"h1spec 21: bad length", "RFC 9112, 6.3", post(["Content-Length: xyz"], "hello"), ?BAD},
     {"h1spec 22: two lengths", "RFC 9112, 6.3", post(["Content-Length: 5", "Content-Length: 7"], "hello!!"), ?BAD},
     {"h1spec 23: bad chunk size", "RFC 9112, 7.1", [chunked("Z\r\nhello\r\n0\r\n\r\n"), ?FOLLOW], ?BAD},
     {"h1spec 24: chunk without its end", "RFC 9112, 7.1", [chunked("5\r\nhello0\r\n\r\n"), ?FOLLOW], ?BAD},
     %% Nothing follows the request: the server answers 100, and then the client is gone.
     {"h1spec 25: Expect", "RFC 9110, 10.1.1", post(["Content-Length: 5", "Expect: 100-continue"], ""), {answers, [100]}}].

connections() ->
    [{"h1spec 26: kept alive", "RFC 9112, 9.3", [?FOLLOW, ?FOLLOW], {answers, [200, 200]}},
     {"h1spec 27: close", "RFC 9112, 9.6", [request("GET", ["Connection: close"], ""), ?FOLLOW], {answers, [200]}},
     {"h1spec 28: HTTP/1.0 closes", "RFC 9112, 9.3", ["GET / HTTP/1.0\r\nHost: localhost\r\n\r\n", ?FOLLOW], {answers, [200]}}].

hardening() ->
    Long = lists:duplicate(9000, $a),
    [{"h1spec 29: long request line", "RFC 9112, 3", ["GET /", Long, " HTTP/1.1\r\nHost: localhost\r\n\r\n"], {refused, [414]}},
     {"h1spec 30: many headers", "RFC 6585, 5", request("GET", [["X-H-", integer_to_list(N), ": value"] || N <- lists:seq(1, 101)], ""), {refused, [431]}},
     {"h1spec 31: long header", "RFC 6585, 5", request("GET", ["X-Big: " ++ Long], ""), {refused, [431]}}].

semantics() ->
    [{"h1spec 32: HEAD has no body", "RFC 9110, 9.3.2", request("HEAD", [], ""), {length, [200]}},
     {"h1spec 33: an error can be told apart from what follows", "RFC 9110, 6.4.1", "GET / HTTP/1.1\r\n\r\n", {length, [400]}}].
