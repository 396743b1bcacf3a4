%% SPDX-License-Identifier: Apache-2.0
%% @doc Contains requests modelled on llhttp's tests (`test/request' there), one for each of its cases and in our own words. As in yucan_probe_cases,
%% each entry has an id, the source of the rule, the bytes and the verdict. llhttp accepts requests without Host, but here each request has a Host
%% header unless its absence is what the case tests. llhttp's cases for lenient parsing and for pausing test its own switches and have no counterpart
%% here.
-module(yucan_corpus).

-export([requests/0]).

-define(BAD, {refused, [400]}).
-define(OK, {answers, [200]}).
-define(NEXT, "GET /next HTTP/1.1\r\nHost: localhost\r\n\r\n").

%% @doc Returns all requests.
-spec requests() -> [yucan_probe_cases:probe()].
requests() -> connections() ++ lengths() ++ finish() ++ invalid() ++ methods() ++ samples() ++ encodings() ++ targets() ++ pipelines().

asked(Lines) -> ["GET / HTTP/1.1\r\nHost: localhost\r\n", [[Line, "\r\n"] || Line <- Lines], "\r\n"].

sent(Lines, Body) -> ["PUT /url HTTP/1.1\r\nHost: localhost\r\n", [[Line, "\r\n"] || Line <- Lines], "\r\n", Body].

old() -> "GET / HTTP/1.0\r\n\r\n".

connections() ->
    [{"connection: keep-alive", "RFC 9112, 9.3", asked(["Connection: keep-alive"]), ?OK},
     {"connection: keep-alive twice", "RFC 9112, 9.3", [sent(["Connection: keep-alive"], ""), sent(["Connection: keep-alive"], "")], {answers, [200, 200]}},
     {"connection: off in 1.0", "RFC 9112, 9.3", ["PUT /url HTTP/1.0\r\n\r\n", "PUT /url HTTP/1.1\r\nHost: a\r\n\r\n"], ?OK},
     {"connection: a line end between requests", "RFC 9112, 2.2", [sent(["Content-Length: 1"], "a"), "\r\n", ?NEXT], {answers, [200, 200]}},
     {"connection: CR is no dash", "RFC 9112, 2.2", asked(["Connection:keep\ralive"]), ?BAD},
     {"connection: close", "RFC 9112, 9.6", [asked(["Connection: close"]), ?NEXT], ?OK},
     {"connection: close and a tab", "RFC 9110, 5.5", [asked(["Connection: close\t"]), ?NEXT], ?OK},
     {"connection: close, then a line end", "RFC 9112, 9.6", [sent(["Content-Length: 1", "Connection: close"], "a"), "\r\n", ?NEXT], {echo, <<"a">>}},
     {"connection: several tokens", "RFC 9110, 7.6.1", [asked(["Connection: close, token, upgrade, token, keep-alive"]), ?NEXT], ?OK},
     {"connection: tokens, folded", "RFC 9112, 5.2", asked(["Connection: close, token,\r\n upgrade, keep-alive"]), ?BAD},
     {"connection: tokens, folded with blanks", "RFC 9112, 5.2", asked(["Connection: keep-alive, \r\n upgrade"]), ?BAD},
     {"connection: tokens, folded twice", "RFC 9112, 5.2", asked(["Connection: keep-alive, \r\n  \r\n upgrade"]), ?BAD},
     {"connection: blank before the colon", "RFC 9112, 5.1", asked(["Connection : upgrade"]), ?BAD},
     {"connection: upgrade to what is not known", "RFC 9110, 7.8", [asked(["Connection: upgrade", "Upgrade: ws"]), ?NEXT], {answers, [200, 200]}},
     {"connection: upgrade with a body", "RFC 9110, 7.8", [sent(["Connection: upgrade", "Content-Length: 4", "Upgrade: ws"], "abcd"), ?NEXT], {answers, [200, 200]}},
     {"connection: an upgrade by POST", "RFC 9110, 7.8", ["POST /demo HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade\r\nUpgrade: HTTP/2.0\r\nContent-Length: 15\r\n\r\nsweet post body", ?NEXT],
      {answers, [200, 200]}}].

lengths() ->
    [{"content-length: zeros", "RFC 9110, 8.6", sent(["Content-Length: 003"], "abc"), {echo, <<"abc">>}},
     {"content-length: headers behind it", "RFC 9110, 8.6", sent(["Content-Length: 003", "Ohai: world"], "abc"), {echo, <<"abc">>}},
     {"content-length: too large a number", "RFC 9110, 8.6", sent(["Content-Length: 1000000000000000000000"], "abc"), ?BAD},
     {"content-length: twice", "RFC 9112, 6.3", sent(["Content-Length: 1", "Content-Length: 2"], "ab"), ?BAD},
     {"content-length: with Transfer-Encoding identity", "RFC 9112, 6.1", sent(["Content-Length: 1", "Transfer-Encoding: identity"], "a"), {refused, [400, 501]}},
     {"content-length: blank before the colon", "RFC 9112, 5.1", sent(["Content-Length : 4"], "abcd"), ?BAD},
     {"content-length: of a GET", "RFC 9110, 9.3.1", ["GET /get_funky_content_length_body_hello HTTP/1.0\r\nconTENT-Length: 5\r\n\r\nHELLO"], {echo, <<"HELLO">>}},
     {"content-length: blanks around", "RFC 9110, 5.5", sent(["Content-Length:  42 "], lists:duplicate(42, $a)), {echo, list_to_binary(lists:duplicate(42, $a))}},
     {"content-length: tabs around", "RFC 9110, 5.5", sent(["Content-Length:\t42\t"], lists:duplicate(42, $a)), {echo, list_to_binary(lists:duplicate(42, $a))}},
     {"content-length: a blank inside", "RFC 9110, 8.6", sent(["Content-Length: 4 2"], lists:duplicate(42, $a)), ?BAD},
     {"content-length: blanks inside and around", "RFC 9110, 8.6", sent(["Content-Length: 13 37 "], ""), ?BAD},
     {"content-length: empty", "RFC 9110, 8.6", sent(["Content-Length:"], ""), ?BAD},
     {"content-length: a CR for the dash", "RFC 9112, 2.2", sent(["Content\rLength: 003"], "abc"), ?BAD},
     {"content-length: no body behind the zero", "RFC 9112, 6.3", [sent(["Content-Length: 0"], ""), ?NEXT], {answers, [200, 200]}},
     {"content-length: no empty line before the body", "RFC 9112, 2.1", ["PUT /url HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nabc"], {refused_or_silent, [400]}}].

finish() ->
    [{"finish: after a GET", "RFC 9112, 2.1", asked([]), ?OK},
     {"finish: in a body", "RFC 9112, 8", sent(["Content-Length: 100"], "abc"), silent},
     {"finish: in a header", "RFC 9112, 8", "PUT / HTTP/1.1\r\nHost: a\r\nContent-Le", silent}].

invalid() ->
    Line = fun(Text) -> [Text, "\r\nHost: localhost\r\n\r\n"] end,
    [{"invalid: ICE and GET", "RFC 9112, 2.3", Line("GET /music/sweet/music ICE/1.0"), ?BAD},
     {"invalid: nearly ICE", "RFC 9112, 2.3", Line("GET /music/sweet/music IHTTP/1.0"), ?BAD},
     {"invalid: RTSP and PUT", "RFC 9112, 2.3", Line("PUT /music/sweet/music RTSP/1.0"), ?BAD},
     {"invalid: headers separated by CR", "RFC 9112, 2.2", "GET / HTTP/1.1\r\nHost: localhost\rFoo: 1\rBar: 2\r\n\r\n", ?BAD},
     {"invalid: headers separated by LF", "RFC 9112, 2.2", "GET / HTTP/1.1\nHost: localhost\nFoo: 1\n\n", ?BAD},
     {"invalid: headers separated by something", "RFC 9112, 2.2", "GET / HTTP/1.1\rxHost: localhost\r\nFoo: 1\r\n\r\n", ?BAD},
     {"invalid: an empty header, then CR", "RFC 9112, 2.2", "POST / HTTP/1.1\r\nHost: localhost\r\nx:\rTransfer-Encoding: chunked\r\n\r\n1\r\nA\r\n0\r\n\r\n", ?BAD},
     {"invalid: an empty header, then LF", "RFC 9112, 2.2", "POST / HTTP/1.1\r\nHost: localhost\r\nx:\nTransfer-Encoding: chunked\r\n\r\n1\r\nA\r\n0\r\n\r\n", ?BAD},
     {"invalid: a name with a parenthesis", "RFC 9110, 5.1", asked(["Fo(o: 1"]), ?BAD},
     {"invalid: a name with a NUL", "RFC 9110, 5.5", asked(["Fo\0o: 1"]), ?BAD},
     {"invalid: a name with a quotation mark", "RFC 9110, 5.1", asked(["\"Foo\": 1"]), ?BAD},
     {"invalid: a method of lower case", "RFC 9112, 3.1", Line("mkc@l / HTTP/1.1"), ?BAD},
     {"invalid: a name that is folded", "RFC 9112, 5.2", asked(["name\r\n : value"]), ?BAD},
     {"invalid: a torn Connection", "RFC 9110, 5.1", asked(["Connection\e\e: close"]), ?BAD},
     {"invalid: a torn name", "RFC 9110, 5.1", asked(["X-Some-Header\e\e: value"]), ?BAD},
     {"invalid: no CR between headers", "RFC 9112, 2.2", asked(["Content-Length: 3\nTransfer-Encoding: chunked"]), ?BAD},
     {"invalid: a version of nobody's", "RFC 9110, 15.6.6", Line("GET / HTTP/5.6"), {refused, [505]}},
     {"invalid: a blank line with a blank", "RFC 9112, 2.2", "GET / HTTP/1.1\r\n Host: localhost\r\n\r\n", ?BAD},
     {"invalid: LF only", "RFC 9112, 2.2", "POST / HTTP/1.1\nHost: localhost\nTransfer-Encoding: chunked\n\n1\nA\n0\n\n", ?BAD},
     {"invalid: blanks before headers", "RFC 9112, 2.2", "POST / HTTP/1.1\r\n  Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", ?BAD},
     {"invalid: a control byte in a value", "RFC 9110, 5.5", asked(["X: a\001b"]), ?BAD}].

methods() ->
    Asked = fun(Method, Target) -> [Method, " ", Target, " HTTP/1.1\r\nHost: localhost\r\n\r\n"] end,
    [{"method: " ++ Method, "RFC 9110, 9.1", Asked(Method, Target), ?OK}
     || {Method, Target} <- [{"REPORT", "/test"}, {"M-SEARCH", "/ssdp"}, {"PATCH", "/file.txt"}, {"PURGE", "/file.txt"}, {"SEARCH", "/"}, {"LINK", "/images/my_dog.jpg"},
                             {"UNLINK", "/images/my_dog.jpg"}, {"SOURCE", "/music/sweet/music"}, {"QUERY", "/contacts"}, {"ANNOUNCE", "/music"}]]
        ++ [{"method: CONNECT", "RFC 9110, 9.3.6", Asked("CONNECT", "0-home0.netscape.com:443"), {refused, [400, 405, 501]}},
            {"method: CONNECT, capitals", "RFC 9110, 9.3.6", Asked("CONNECT", "HOME0.NETSCAPE.COM:443"), {refused, [400, 405, 501]}},
            {"method: CONNECT with a body", "RFC 9110, 9.3.6", [Asked("CONNECT", "foo.bar.com:443"), "blarfcicle"], {refused, [400, 405, 501]}},
            {"method: SOURCE with ICE", "RFC 9112, 2.3", "SOURCE /music/sweet/music ICE/1.0\r\nHost: example.com\r\n\r\n", ?BAD},
            {"method: OPTIONS with RTSP", "RFC 9112, 2.3", "OPTIONS /music/sweet/music RTSP/1.0\r\nHost: example.com\r\n\r\n", ?BAD},
            {"method: ANNOUNCE with RTSP", "RFC 9112, 2.3", "ANNOUNCE /music/sweet/music RTSP/1.0\r\nHost: example.com\r\n\r\n", ?BAD},
            {"method: PRI of HTTP/2", "RFC 9113, 3.4", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {refused, [400, 505]}}].

samples() ->
    All = [C || C <- lists:seq(128, 255)],
    [{"sample: a request", "RFC 9112, 2.1", "OPTIONS /url HTTP/1.1\r\nHost: a\r\nHeader1: Value1\r\nHeader2:\t Value2\r\n\r\n", ?OK},
     {"sample: a method with H", "RFC 9112, 3.1", "HEAD /url HTTP/1.1\r\nHost: a\r\n\r\n", ?OK},
     {"sample: as curl asks", "RFC 9112, 2.1", "GET /test HTTP/1.1\r\nUser-Agent: curl/7.18.0 (i486-pc-linux-gnu) libcurl/7.18.0\r\nHost: 0.0.0.0:5000\r\nAccept: */*\r\n\r\n", ?OK},
     {"sample: as Firefox asks", "RFC 9112, 2.1",
      "GET /favicon.ico HTTP/1.1\r\nHost: 0.0.0.0:5000\r\nUser-Agent: Mozilla/5.0 (X11; U; Linux i686; rv:1.9) Gecko Firefox/3.0\r\nAccept: text/html,application/xml;q=0.9,*/*;q=0.8\r\n"
      "Accept-Language: en-us,en;q=0.5\r\nAccept-Encoding: gzip,deflate\r\nAccept-Charset: ISO-8859-1,utf-8;q=0.7,*;q=0.7\r\nKeep-Alive: 300\r\nConnection: keep-alive\r\n\r\n", ?OK},
     {"sample: a name of letters only", "RFC 9110, 5.1", asked(["aaaaaaaaaaaaa:++++++++++"]), ?OK},
     {"sample: no header, no body", "RFC 9112, 3.2", "GET /get_no_headers_no_body/world HTTP/1.1\r\n\r\n", ?BAD},
     {"sample: one header, no body", "RFC 9112, 2.1", "GET /get_one_header_no_body HTTP/1.1\r\nHost: a\r\n\r\n", ?OK},
     {"sample: as ApacheBench asks", "RFC 9112, 9.3", "GET /test HTTP/1.0\r\nHost: 0.0.0.0:5000\r\nUser-Agent: ApacheBench/2.3\r\nAccept: */*\r\n\r\n", ?OK},
     {"sample: a line end first", "RFC 9112, 2.2", ["\r\n", asked([])], ?OK},
     {"sample: no version", "RFC 9112, 2.3", "GET /\r\n\r\n", ?BAD},
     {"sample: a value folded by CRLF", "RFC 9112, 5.2", asked(["Line1:   abc\r\n\tdef\r\n ghi"]), ?BAD},
     {"sample: a value folded by LF", "RFC 9112, 5.2", "GET / HTTP/1.1\r\nHost: a\r\nLine1:   abc\n\tdef\n ghi\r\n\r\n", ?BAD},
     {"sample: no LF after CR", "RFC 9112, 2.2", "GET / HTTP/1.1\rLine: 1\r\n\r\n", ?BAD},
     {"sample: bytes above 127 in a value", "RFC 9110, 5.5", asked([["Test: D\303\274sseldorf"]]), ?OK},
     {"sample: all of them", "RFC 9110, 5.5", asked([["X-All: ", All]]), ?OK},
     {"sample: a certificate, folded", "RFC 9112, 5.2", asked(["X-SSL-Nonsense: -----BEGIN CERTIFICATE-----\r\n\tMIIFbTCC\r\n\t-----END CERTIFICATE-----"]), ?BAD},
     {"sample: without a Host in 1.0", "RFC 9112, 3.2", old(), ?OK}].

encodings() ->
    Chunked = fun(Body) -> sent(["Transfer-Encoding: chunked"], Body) end,
    Coded = fun(Codings, Body) -> sent(["Transfer-Encoding: " ++ C || C <- Codings], Body) end,
    Hello = "5\r\nhello\r\n0\r\n\r\n",
    [{"transfer-encoding: chunked, then nothing", "RFC 9112, 7.1", Chunked(""), silent},
     {"transfer-encoding: small digits", "RFC 9112, 7.1", Chunked("a\r\n0123456789\r\n0\r\n\r\n"), {echo, <<"0123456789">>}},
     {"transfer-encoding: large digits", "RFC 9112, 7.1", Chunked("A\r\n0123456789\r\n0\r\n\r\n"), {echo, <<"0123456789">>}},
     {"transfer-encoding: one chunk", "RFC 9112, 7.1", Chunked("1e\r\nall your base are belong to us\r\n0\r\n\r\n"), {echo, <<"all your base are belong to us">>}},
     {"transfer-encoding: a last chunk of three zeros", "RFC 9112, 7.1", Chunked("5\r\nhello\r\n6\r\n world\r\n000\r\n\r\n"), {echo, <<"hello world">>}},
     {"transfer-encoding: trailers", "RFC 9112, 7.1.2", Chunked("5\r\nhello\r\n0\r\nVary: *\r\nX-Own: text/plain\r\n\r\n"), {echo, <<"hello">>}},
     {"transfer-encoding: extensions", "RFC 9112, 7.1.1", Chunked("5;ilovew3;somuchlove=aretheseparametersfor;another=withvalue\r\nhello\r\n0\r\n\r\n"), {echo, <<"hello">>}},
     {"transfer-encoding: no semicolon before extensions", "RFC 9112, 7.1.1", Chunked("2 erfrferferf\r\naa\r\n0 rrrr\r\n\r\n"), ?BAD},
     {"transfer-encoding: nothing after the semicolon", "RFC 9112, 7.1.1", Chunked("2;\r\naa\r\n0\r\n\r\n"), ?BAD},
     {"transfer-encoding: quoted values", "RFC 9112, 7.1.1", Chunked("5;ilovew3=\"I \\\"love\\\" it\";x\r\nhello\r\n0\r\n\r\n"), {echo, <<"hello">>}},
     {"transfer-encoding: a quotation that does not end", "RFC 9112, 7.1.1", Chunked("5;ilovew3=\"abc\";x=\"def; ghi\r\nhello\r\n0\r\n\r\n"), ?BAD},
     {"transfer-encoding: pigeons", "RFC 9112, 6.1", Coded(["pigeons"], ""), {refused, [400, 501]}},
     {"transfer-encoding: with a Content-Length", "RFC 9112, 6.3", sent(["Transfer-Encoding: chunked", "Content-Length: 1"], Hello), ?BAD},
     {"transfer-encoding: empty, with a Content-Length", "RFC 9112, 6.1", sent(["Content-Length: 3", "Transfer-Encoding:"], "abc"), ?BAD},
     {"transfer-encoding: chunked before another", "RFC 9112, 6.1", Coded(["chunked, deflate"], Hello), {refused, [400, 501]}},
     {"transfer-encoding: chunked before another line", "RFC 9112, 6.1", Coded(["chunked", "deflate"], Hello), {refused, [400, 501]}},
     {"transfer-encoding: chunked last", "RFC 9112, 6.1", Coded(["deflate, chunked"], Hello), {refused, [400, 501]}},
     {"transfer-encoding: chunked last, two lines", "RFC 9112, 6.1", Coded(["deflate", "chunked"], Hello), {refused, [400, 501]}},
     {"transfer-encoding: chunkedchunked", "RFC 9112, 6.1", Coded(["chunkedchunked"], Hello), {refused, [400, 501]}},
     {"transfer-encoding: no last chunk", "RFC 9112, 8", Chunked("3\r\nfoo\r\n\r\n"), ?BAD},
     {"transfer-encoding: control bytes in an extension", "RFC 9112, 7.1.1", Chunked("5;a=\001b\r\nhello\r\n0\r\n\r\n"), ?BAD},
     {"transfer-encoding: a fold after chunked", "RFC 9112, 5.2", sent(["Transfer-Encoding: chunked\r\n abc"], Hello), ?BAD},
     {"transfer-encoding: a size ended by LF", "RFC 9112, 7.1", Chunked("a\n0123456789\r\n0\r\n\r\n"), ?BAD},
     {"transfer-encoding: data ended by LF", "RFC 9112, 7.1", Chunked("a\r\n0123456789\n0\r\n\r\n"), ?BAD},
     {"transfer-encoding: a blank after the size", "RFC 9112, 7.1", Chunked("a \r\n0123456789\r\n0\r\n\r\n"), ?BAD}].

targets() ->
    Target = fun(Text) -> ["GET ", Text, " HTTP/1.1\r\nHost: hypnotoad.org\r\n\r\n"] end,
    [{"uri: quotation marks", "RFC 3986, 2", Target("/with_\"lovely\"_quotes?foo=\\\"bar\\\""), ?OK},
     {"uri: a question mark in the query", "RFC 3986, 3.4", Target("/test.cgi?foo=bar?baz"), ?OK},
     {"uri: a host ended by a query", "RFC 9112, 3.2.2", Target("http://hypnotoad.org?hail=all"), ?OK},
     {"uri: host and port ended by a query", "RFC 9112, 3.2.2", Target("http://hypnotoad.org:1234?hail=all"), ?OK},
     {"uri: a bar in the query", "RFC 3986, 3.4", Target("/test.cgi?query=| eggs") , ?BAD},
     {"uri: a host and port alone", "RFC 9112, 3.2.2", Target("http://hypnotoad.org:1234"), ?OK},
     {"uri: bytes above 127 in the path", "RFC 3986, 2", Target("/\316\264\302\266/\316\264t/\317\200?\316\264=1"), ?BAD},
     {"uri: a fragment", "RFC 9112, 3.2", Target("/forums/1/topics/2375?page=1#posts-17408"), ?BAD},
     {"uri: an underscore in the host", "RFC 3986, 3.2.2", Target("http://home_0.netscape.com/"), ?OK},
     {"uri: user and password", "RFC 9110, 4.2.4", Target("http://a%12:b!&*$@hypnotoad.org:1234/toto"), ?BAD},
     {"uri: a blank", "RFC 9112, 3", Target("/foo bar/"), ?BAD}].

pipelines() ->
    [{"pipelining: three", "RFC 9112, 9.3.2", [sent(["Content-Length: 3"], "abc"), sent(["Content-Length: 3"], "def"), ?NEXT], {answers, [200, 200, 200]}},
     {"pipelining: chunked between", "RFC 9112, 9.3.2", [asked([]), sent(["Transfer-Encoding: chunked"], "1\r\na\r\n0\r\n\r\n"), ?NEXT], {answers, [200, 200, 200]}},
     {"pipelining: nothing behind what is refused", "RFC 9112, 2.2", [asked([]), "GET / HTTP/1.1\r\nHost : a\r\n\r\n", ?NEXT], {answers, [200, 400]}}].
