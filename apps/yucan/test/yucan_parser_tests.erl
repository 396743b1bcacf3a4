%% SPDX-License-Identifier: Apache-2.0
%% @doc Properties of yucan's parsers for heads, chunks, WebSocket frames, paths and ranges. `make fuzz-yucan' tests them for minutes.
-module(yucan_parser_tests).

-include_lib("proper/include/proper.hrl").
-include_lib("eunit/include/eunit.hrl").
-include("../../yucan/src/yucan_internal.hrl").

-export([properties/0]).

properties_test_() -> yucan_fuzz:tests(500, properties()).

%% @doc Also used by yucan_fuzz.
-spec properties() -> [{string(), fun(() -> proper:outer_test())}].
properties() ->
    [{"cut heads", fun prop_cut/0}, {"damaged heads", fun prop_damaged/0}, {"heads and what follows", fun prop_split/0},
     {"heads behind another", fun prop_repeated/0}, {"chunks", fun prop_chunks/0},
     {"damaged chunks", fun prop_damaged_chunks/0}, {"frames", fun prop_frames/0}, {"texts", fun prop_texts/0}, {"any bytes", fun prop_noise/0}, {"paths", fun prop_paths/0},
     {"one form of a path", fun prop_canonical/0}, {"forms in pieces", fun prop_forms/0}, {"damaged forms", fun prop_damaged_forms/0}].

limits() -> limits(#{}).
limits(Own) -> yucan_config:freeze(maps:merge(#{header_block_bytes => 4000, header_line_bytes => 2000, request_line_bytes => 2000, headers => 20, chunk_line_bytes => 60}, Own)).

parse(Bytes) -> yucan_head:parse(Bytes, limits(), #req{}).

%% ---- generators

token() -> non_empty(list(oneof([range($a, $z), range($A, $Z), range($0, $9), oneof("!#$%&'*+-.^_`|~")]))).
text() -> list(oneof([range($!, $~), range(128, 255), $\s, $\t])).
target() -> ?LET(Text, list(oneof([range($a, $z), oneof("%/.~-_=&?@:;,+!$'()*")])), [$/ | Text]).
%% Excludes names of headers that would change the framing of the message.
header() ->
    ?LET({Name, Blank, Value}, {token(), oneof(["", " ", "\t "]), text()}, {["x-", Name], Blank, Value}).
head() ->
    ?LET({Method, Target, Headers}, {oneof(["GET", "POST", "HEAD", "DELETE", "X"]), target(), resize(8, list(header()))},
         {Method, Target, [{"Host", " ", "a.org"} | Headers]}).

bytes(Head) -> bytes(Head, "1.1").
bytes({Method, Target, Headers}, Version) ->
    iolist_to_binary([Method, " ", Target, " HTTP/", Version, "\r\n", [[Name, ":", Blank, Value, "\r\n"] || {Name, Blank, Value} <- Headers], "\r\n"]).

%% ---- heads

%% The parser returns what was generated, and does not consume the bytes that follow.
prop_split() ->
    ?FORALL({Head, Rest}, {head(), binary()}, begin
        Bytes = bytes(Head),
        case parse(<<Bytes/binary, Rest/binary>>) of
            {ok, Req, Rest} -> same(Head, Req);
            {error, 400, bad_path} -> form(Head) =:= error;
            {error, Status, _} -> lists:member(Status, [414, 431]) andalso byte_size(Bytes) > 1000
        end
    end).

%% A head has the same meaning whatever preceded it on its connection: the same lines or different
%% ones, with a different version or different limits.
prop_repeated() ->
    ?FORALL({{_, _, Lines} = First, {Method, Target, Others}, Repeats, Framing, {Version, Next}, Room, Limits},
            {head(), head(), frequency([{3, true}, {1, false}]), oneof([[], [framing()]]), {version(), version()}, range(-5, 40), oneof([#{}, #{headers => 2}, #{header_line_bytes => 8}])}, begin
        Framed = fun(Head) -> setelement(3, Head, element(3, Head) ++ Framing) end,
        Before = bytes(Framed(First), Version),
        Bound = #{header_block_bytes => byte_size(Before) + Room},
        Bytes = bytes(Framed({Method, Target, case Repeats of true -> Lines; false -> Others end}), Next),
        case yucan_head:parse(Before, limits(Bound), #req{}) of
            {ok, #req{lines = Kept, authority = Authority}, <<>>} ->
                Parse = fun(Template) -> [said(yucan_head:parse(Bytes, limits(L), Template)) || L <- [Bound, maps:merge(Bound, Limits)]] end,
                Parse(#req{lines = Kept, authority = Authority}) =:= Parse(#req{});
            {error, _, _} -> true
        end
    end).

framing() -> oneof([{"Connection", " ", "close"}, {"Connection", " ", "keep-alive"}, {"Content-Length", " ", "5"}, {"Expect", "", "100-continue"}]).
version() -> oneof(["1.0", "1.1"]).

said({ok, Req, Rest}) -> {ok, Req#req{lines = none, authority = none}, Rest};
said(Refusal) -> Refusal.

%% Returns the canonical form of the path that was sent.
form({_, Target, _}) -> yucan_path:canonical(hd(binary:split(iolist_to_binary(Target), <<"?">>))).

same({Method, Target, Headers} = Head, Req) ->
    Trim = fun(Text) -> yucan_header:trim(iolist_to_binary(Text)) end,
    yucan_req:method(Req) =:= iolist_to_binary(Method) andalso yucan_req:target(Req) =:= iolist_to_binary(Target)
        andalso {ok, yucan_req:path(Req)} =:= form(Head) andalso yucan_req:headers(Req) =:= [{yucan_header:lower(iolist_to_binary(Name)), Trim(Value)} || {Name, _, Value} <- Headers].

%% A head that is truncated at any point is incomplete, never an error or a request.
prop_cut() ->
    ?FORALL({Head, Part}, {head(), float(0.0, 0.999)}, begin
        Bytes = bytes(Head),
        case parse(Bytes) of
            {ok, _, <<>>} -> parse(binary:part(Bytes, 0, trunc(byte_size(Bytes) * Part))) =:= more;
            {error, _, _} -> true
        end
    end).

%% If any byte is changed, the result is still one of the known kinds, and a request contains no control characters.
prop_damaged() ->
    ?FORALL({Head, Part, Byte}, {head(), float(0.0, 0.999), byte()}, begin
        Bytes = bytes(Head),
        At = trunc(byte_size(Bytes) * Part),
        <<Before:At/binary, _, After/binary>> = Bytes,
        is_sound(parse(<<Before/binary, Byte, After/binary>>))
    end).

is_sound(more) -> true;
is_sound({error, Status, Reason}) -> lists:member(Status, [400, 414, 417, 431, 501, 505]) andalso is_atom(Reason);
is_sound({ok, Req, Rest}) ->
    is_binary(Rest) andalso lists:all(fun is_clean/1, [yucan_req:method(Req), yucan_req:target(Req), yucan_req:host(Req)
                                                       | lists:append([[N, V] || {N, V} <- yucan_req:headers(Req)])]).

is_clean(Bytes) -> lists:all(fun(C) -> C >= $\s andalso C =/= 127 orelse C =:= $\t end, binary_to_list(Bytes)).

prop_noise() ->
    ?FORALL(Bytes, binary(), begin
        is_sound(parse(Bytes)) andalso is_sound(parse(<<"GET / HTTP/1.1\r\nHost: a\r\n", Bytes/binary, "\r\n\r\n">>))
            andalso is_binary(yucan_header:lower(Bytes)) andalso is_tuple(yucan_req:pairs(Bytes)) =:= false
    end).

%% ---- chunks

chunk_list() -> resize(12, list(non_empty(binary()))).

%% The decoded data does not depend on where the bytes are split, and the bytes that follow are not consumed.
prop_chunks() ->
    ?FORALL({Chunks, Size}, {chunk_list(), range(1, 40)}, begin
        Bytes = iolist_to_binary([[yucan_chunk:encode(C) || C <- Chunks], yucan_chunk:last(), "NEXT"]),
        fed(yucan_chunk:new(), <<>>, Bytes, Size, []) =:= {iolist_to_binary(Chunks), <<"NEXT">>}
    end).

prop_damaged_chunks() ->
    ?FORALL({Chunks, Part, Byte, Size}, {chunk_list(), float(0.0, 0.999), byte(), range(1, 40)}, begin
        Bytes = iolist_to_binary([[yucan_chunk:encode(C) || C <- Chunks], yucan_chunk:last()]),
        At = trunc(byte_size(Bytes) * Part),
        <<Before:At/binary, _, After/binary>> = Bytes,
        Damaged = <<Before/binary, Byte, After/binary>>,
        %% The result does not depend on where the bytes are split.
        fed(yucan_chunk:new(), <<>>, Damaged, Size, []) =:= fed(yucan_chunk:new(), <<>>, Damaged, byte_size(Damaged), [])
    end).

fed(State, Buffer, Input, Size, Done) ->
    case yucan_chunk:parse(State, Buffer, infinity, limits()) of
        {data, Data, State1, Rest} -> fed(State1, Rest, Input, Size, [Done | Data]);
        {done, _, Rest} -> {iolist_to_binary(Done), <<Rest/binary, Input/binary>>};
        {error, Reason} -> Reason;
        {more, _, _} when Input =:= <<>> -> incomplete;
        {more, State1, Rest} ->
            Length = min(Size, byte_size(Input)),
            <<Next:Length/binary, Later/binary>> = Input,
            fed(State1, <<Rest/binary, Next/binary>>, Later, Size, Done)
    end.

%% ---- frames

prop_frames() ->
    ?FORALL({Kind, Payload, Key, Rest}, {oneof([text, binary]), ?LET(Size, range(0, 300), binary(Size)), binary(4), binary()}, begin
        <<Head, _/binary>> = iolist_to_binary(yucan_ws_frame:encode(Kind, Payload)),
        Length = case byte_size(Payload) of
            Size when Size < 126 -> <<1:1, Size:7>>;
            Size -> <<1:1, 126:7, Size:16>>
        end,
        Bytes = <<Head, Length/binary, Key/binary, (masked(Payload, Key))/binary, Rest/binary>>,
        yucan_ws_frame:parse(Bytes, 100000, false) =:= {ok, true, false, Kind, Payload, Rest} andalso frame_is_sound(yucan_ws_frame:parse(Rest, 1000, true))
    end).

%% RFC 6455, 5.3.
masked(Payload, Key) -> << <<(binary:at(Payload, I) bxor binary:at(Key, I rem 4))>> || I <- lists:seq(0, byte_size(Payload) - 1) >>.

%% RFC 6455, 5.5: control frames are not messages, and the text of a close frame is valid UTF-8 even if it was truncated.
control_frames_test_() ->
    [?_assertMatch({ok, true, false, ping, _, <<>>}, yucan_ws_frame:parse(<<16#89, 16#fd, 0:32, 0:(125 * 8)>>, 100, false)),
     ?_assertEqual({ok, 1000, binary:copy(<<"\303\251">>, 61)}, yucan_ws_frame:parse_close(yucan_ws_frame:close_payload(1000, binary:copy(<<"\303\251">>, 70))))].

prop_texts() ->
    ?FORALL(Parts, list(oneof([?LET(Size, range(0, 20), binary:copy(<<"a">>, Size)), <<"\303\274">>, <<"\342\202\254">>, <<0, 127>>, binary(1), binary()])), begin
        Bytes = iolist_to_binary(Parts),
        yucan_ws_frame:is_text(Bytes) =:= (unicode:characters_to_binary(Bytes) =:= Bytes)
    end).

frame_is_sound(more) -> true;
frame_is_sound({error, Code}) -> Code =:= 1002 orelse Code =:= 1009;
frame_is_sound({ok, _, _, _, Payload, _}) -> byte_size(Payload) =< 1000.

%% ---- paths

part() -> oneof(["..", ".", "", "%2e%2e", "%2E.", "..%2f", "%00", "a", "a%20b", "%c0%ae", "%", "%4", "\\", "..\\", text()]).

%% Whatever path is requested, the file is below the root.
prop_paths() ->
    ?FORALL(Parts, list(part()), begin
        Raw = iolist_to_binary([[$/, Part] || Part <- Parts]),
        case yucan_path:decode(Raw) of
            {ok, Path} ->
                <<"/root/of/files/", Rest/binary>> = yucan_path:join(<<"/root/of/files">>, Path),
                not lists:member(<<"..">>, binary:split(Rest, <<"/">>, [global])) andalso binary:match(Rest, <<0>>) =:= nomatch;
            {error, bad_path} -> true
        end
    end).

%% Canonicalization is idempotent. The canonical form refers to the same file, and has no dot segments or empty segments.
prop_canonical() ->
    ?FORALL(Parts, list(part()), begin
        Raw = iolist_to_binary([[$/, Part] || Part <- Parts]),
        case yucan_path:canonical(Raw) of
            {ok, <<"/", Rest/binary>> = Path} ->
                [_ | Before] = lists:reverse(binary:split(Rest, <<"/">>, [global])),
                yucan_path:canonical(Path) =:= {ok, Path} andalso yucan_path:decode(Path) =:= yucan_path:decode(Raw)
                    andalso [] =:= [S || S <- Before, lists:member(S, [<<>>, <<".">>, <<"..">>])];
            error -> yucan_path:decode(Raw) =:= {error, bad_path}
        end
    end).

canonical_test_() ->
    [?_assertEqual(Expected, yucan_path:canonical(Path))
     || {Path, Expected} <- [{<<"/">>, {ok, <<"/">>}}, {<<"/a/b/">>, {ok, <<"/a/b/">>}}, {<<"//">>, {ok, <<"/">>}}, {<<"//a///b//">>, {ok, <<"/a/b/">>}},
                             {<<"/a/./b">>, {ok, <<"/a/b">>}}, {<<"/a/..">>, {ok, <<"/">>}}, {<<"/a/.">>, {ok, <<"/a/">>}}, {<<"/a//../b">>, {ok, <<"/b">>}},
                             {<<"/.a/..b/...">>, {ok, <<"/.a/..b/...">>}}, {<<"/%41%2d%7e%2B%c3">>, {ok, <<"/A-~%2B%C3">>}}, {<<"/a%2fb">>, {ok, <<"/a%2Fb">>}},
                             {<<"/%252e%252e/a">>, {ok, <<"/%252e%252e/a">>}}, {<<"/..">>, error}, {<<"/a/../..">>, error}, {<<"/%2e%2E">>, error},
                             {<<"/a/..%2fb">>, error}, {<<"/%2e%5cb">>, error}, {<<"/%">>, error}, {<<"/%4">>, error}, {<<"/%4g">>, error}, {<<"/%00">>, error},
                             {<<"a">>, error}, {<<>>, error}]].

%% ---- forms with files

-define(FORM, <<"multipart/form-data; boundary=\"a b\"">>).

%% The parser returns what was generated, however the bytes are split. The content contains many beginnings of delimiters.
prop_forms() ->
    ?FORALL({Parts, Before, Size}, {resize(6, list(form_part())), oneof(["", "before\r\n"]), range(1, 40)},
            {done, Parts} =:= understood(in_pieces(iolist_to_binary([Before, form_bytes(Parts), "after"]), Size), form_state(#{}), [])).

form_part() ->
    {non_empty(list(oneof([range($a, $z), oneof("\";\\=, ")]))), oneof([none, list(oneof([range($a, $z), $", $.]))]),
     ?SUCHTHAT(Content, ?LET(Pieces, list(oneof([<<"\r">>, <<"\r\n">>, <<"\r\n--">>, <<"\r\n--a ">>, <<"--a b">>, binary()])), iolist_to_binary(Pieces)),
               binary:match(<<"\r\n", Content/binary>>, <<"\r\n--a b">>) =:= nomatch)}.

form_bytes(Parts) ->
    Quoted = fun(Text) -> [case C of $" -> "%22"; $\\ -> "\\\\"; _ -> C end || C <- Text] end,
    [[["--a b", oneof_blank(Content), "\r\nContent-Disposition: form-data; name=\"", Quoted(Name), $", [["; filename=\"", Quoted(File), $"] || File =/= none], "\r\n\r\n", Content, "\r\n"]
      || {Name, File, Content} <- Parts], "--a b--"].

oneof_blank(Content) -> lists:duplicate(byte_size(Content) rem 2, $\s).

form_state(Options) -> {ok, State} = yucan_multipart:new(?FORM, Options), State.

in_pieces(<<>>, _) -> [];
in_pieces(Bytes, Size) ->
    {Piece, Rest} = split_binary(Bytes, min(Size, byte_size(Bytes))),
    [Piece | in_pieces(Rest, Size)].

understood([], State, Parts) -> {element(4, State), lists:reverse(Parts)};
understood([Piece | Pieces], State, Parts) ->
    {Next, Events} = yucan_multipart:feed(Piece, State),
    Seen = lists:foldl(fun({part, #{name := Name} = Part}, Sum) -> [{binary_to_list(Name), case Part of #{filename := File} -> binary_to_list(File); _ -> none end, <<>>} | Sum];
                          ({data, Data}, [{Name, File, Before} | Sum]) -> [{Name, File, <<Before/binary, Data/binary>>} | Sum];
                          (part_end, Sum) -> Sum
                       end, Parts, Events),
    case Next of
        {error, Reason} -> {Reason, lists:reverse(Seen)};
        _ -> understood(Pieces, Next, Seen)
    end.

%% No input causes a crash, and the parser never buffers more than the limit for a head plus one piece.
prop_damaged_forms() ->
    Good = iolist_to_binary(form_bytes([{"a", none, <<"x\r\n--a">>}, {"b", "f.txt", <<"content">>}])),
    ?FORALL({At, Byte, Long, Size}, {range(0, byte_size(Good) - 1), byte(), oneof([0, 0, 300]), range(1, 60)}, begin
        <<Before:At/binary, _, After/binary>> = Good,
        Bytes = <<Before/binary, (binary:copy(<<Byte>>, Long + 1))/binary, After/binary>>,
        bounded(in_pieces(Bytes, Size), form_state(#{header_bytes => 100, part_bytes => 50}))
    end).

bounded([], _) -> true;
bounded([Piece | Pieces], State) ->
    case yucan_multipart:feed(Piece, State) of
        {{error, Reason}, Events} -> lists:member(Reason, [malformed, head_too_large, too_large]) andalso is_list(Events);
        {Next, _} -> byte_size(element(5, Next)) =< 100 andalso bounded(Pieces, Next)
    end.

form_limits_test_() ->
    Read = fun(Parts, Options) -> element(1, understood([iolist_to_binary(form_bytes(Parts))], form_state(Options), [])) end,
    Head = fun(Lines) -> element(1, understood([iolist_to_binary(["--a b\r\n", Lines, "\r\n\r\n\r\n--a b--"])], form_state(#{header_bytes => 200, headers => 3}), [])) end,
    Part = {"n", none, <<"12345">>},
    Named = "Content-Disposition: form-data; name=n",
    [?_assertEqual({Parts, Options, Expected}, {Parts, Options, Read(Parts, Options)})
     || {Parts, Options, Expected} <- [{[Part, Part], #{parts => 2}, done}, {[Part, Part], #{parts => 1}, too_many_parts}, {[Part], #{part_bytes => 5}, done},
                                       {[Part], #{part_bytes => 4}, too_large}, {[Part], #{bytes => 20}, too_large}, {[], #{}, done}]]
        ++ [?_assertEqual({Lines, Expected}, {Lines, Head(Lines)})
            || {Expected, All} <- [{done, [Named, [Named, "\r\nX: a\r\nY: b"], [Named, "; filename*=UTF-8''a%20b"], "CONTENT-DISPOSITION:Form-Data;NAME=n"]},
                                   {malformed, ["", "X: a", "Content-Disposition: form-data", "Content-Disposition: attachment; name=n", [Named, "; name=m"], [Named, "; filename=a; filename=b"],
                                                [Named, "\r\n", Named], [Named, "\r\n folded"], [Named, "\r\nX : a"], [Named, "\nX: a"], [Named, "\r\nX: a\0"], [Named, "; filename*=latin1''a"], [Named, " x"]]},
                                   {head_too_large, [[Named, "\r\nX: a\r\nY: b\r\nZ: c"], [Named, "\r\nX: ", lists:duplicate(200, $a)]]}], Lines <- All]
        ++ [?_assertEqual({Type, error}, {Type, yucan_multipart:new(Type, #{})})
            || Type <- [<<>>, <<"text/plain">>, <<"multipart/form-data">>, <<"multipart/form-data; boundary=">>, <<"multipart/form-data; boundary=a; boundary=b">>, <<"multipart/mixed; boundary=a">>,
                        <<"multipart/form-data; boundary=", (binary:copy(<<"a">>, 71))/binary>>, <<"multipart/form-data; boundary=\"a">>]].

%% Bytes that follow a delimiter do not become part of another delimiter.
form_delimiter_test_() ->
    [?_assertEqual({Bytes, malformed}, {Bytes, element(1, understood([Bytes], form_state(#{}), []))})
     || Bytes <- [<<"--a bc\r\n">>, <<"--a b\n">>, <<"--a b-x">>, <<"--a b\rx">>, binary:copy(<<"no delimiter">>, 800)]].

file_names_test_() ->
    [?_assertEqual({Sent, Expected}, {Sent, yucan_multipart:file_name(Sent)})
     || {Sent, Expected} <- [{<<"a.txt">>, {ok, <<"a.txt">>}}, {<<"../../etc/passwd">>, {ok, <<"passwd">>}}, {<<"C:\\dir\\a b.txt">>, {ok, <<"a b.txt">>}}, {<<"gr\303\274n">>, {ok, <<"gr\303\274n">>}},
                             {binary:copy(<<"a">>, 200), {ok, binary:copy(<<"a">>, 200)}}]
            ++ [{Bad, error} || Bad <- [<<>>, <<"a/">>, <<".">>, <<"..">>, <<".ssh">>, <<"a\0b">>, <<"a\nb">>, <<255>>, <<"a\302\205">>, binary:copy(<<"a">>, 201)]]].

%% ---- examples

limits_test_() ->
    Long = fun(N) -> lists:duplicate(N, $a) end,
    Get = fun(Target, Lines) -> iolist_to_binary(["GET ", Target, " HTTP/1.1\r\nHost: a\r\n", Lines, "\r\n"]) end,
    %% The lengths are one below the limit, exactly the limit, and one above it.
    [?_assertMatch({ok, _, _}, parse(Get(["/", Long(2000 - 14)], []))), ?_assertMatch({error, 414, _}, parse(Get(["/", Long(2000 - 13)], []))),
     ?_assertMatch({ok, _, _}, parse(Get("/", ["x: ", Long(1997), "\r\n"]))), ?_assertMatch({error, 431, _}, parse(Get("/", ["x: ", Long(1998), "\r\n"]))),
     ?_assertMatch({ok, _, _}, parse(Get("/", [["x: y\r\n"] || _ <- lists:seq(1, 19)]))),
     ?_assertMatch({error, 431, too_many_headers}, parse(Get("/", [["x: y\r\n"] || _ <- lists:seq(1, 20)]))),
     ?_assertMatch({error, 431, _}, parse(Get("/", [["x: ", Long(900), "\r\n"] || _ <- lists:seq(1, 5)])))].

forms_test_() ->
    Parse = fun(Line, Lines) -> parse(iolist_to_binary([Line, "\r\n", [[L, "\r\n"] || L <- Lines], "\r\n"])) end,
    Error = fun(Status, Line, Lines) -> {iolist_to_binary([Line | Lines]), ?_assertMatch({error, Status, _}, Parse(Line, Lines))} end,
    Host = ["Host: a"],
    [Error(400, L, Host) || L <- ["GET  / HTTP/1.1", "GET /  HTTP/1.1", "GET\t/ HTTP/1.1", " GET / HTTP/1.1", "GET / HTTP/1.1 ", "GET / http/1.1", "GET / HTTP/1", "GET /",
                                  "GET / HTTP/1.10", "GET / HTTP/01.1", "GET / HTTP/1,1", "GET /#x HTTP/1.1", "GET x HTTP/1.1", "GET * HTTP/1.1", "G@T / HTTP/1.1", "/ HTTP/1.1",
                                  "HTTP/1.1 200 OK", "GET http:// HTTP/1.1", "GET ftp://a/ HTTP/1.1", "GET http://a:b/ HTTP/1.1", "GET http://u@a/ HTTP/1.1", ""]]
        ++ [Error(505, L, Host) || L <- ["GET / HTTP/0.9", "GET / HTTP/2.0", "GET / HTTP/9.9"]]
        ++ [Error(400, "GET / HTTP/1.1", Lines) || Lines <- [["Host: a b"], ["Host: a/b"], ["Host: a:b"], ["Host: a:99999"], ["Host: [::1"], ["Host: [x]"], ["Host: a@b"],
                                                             ["Host: a", "host: a"], ["Host: a", ": b"], ["Host: a", "x"], ["Host: a", "\tx: y"], ["Host: a", "x\t: y"]]].

hosts_test_() ->
    [?_assertEqual(Expected, yucan_head:authority(Text))
     || {Text, Expected} <- [{<<"A.org">>, {ok, <<"a.org">>, undefined}}, {<<"a:80">>, {ok, <<"a">>, 80}}, {<<"a:">>, {ok, <<"a">>, undefined}}, {<<"A.org.">>, {ok, <<"a.org">>, undefined}},
                             {<<"a.:80">>, {ok, <<"a">>, 80}}, {<<"[::1]:8">>, {ok, <<"[::1]">>, 8}},
                             {<<>>, {ok, <<>>, undefined}}, {<<":80">>, error}, {<<"a:65536">>, error},
                             %% This is the longest name that DNS permits (RFC 1035, 2.3.4).
                             {binary:copy(<<"a">>, 255), {ok, binary:copy(<<"a">>, 255), undefined}}, {<<(binary:copy(<<"a">>, 255))/binary, ".:1">>, {ok, binary:copy(<<"a">>, 255), 1}},
                             {binary:copy(<<"A">>, 256), error}, {<<(binary:copy(<<"a">>, 256))/binary, ":1">>, error}]].

%% The authority in a target replaces the Host header, but only for that request.
absolute_test() ->
    Lines = ["x: 1\r\n", "Host: b.org\r\n", "y: 2\r\n"],
    Parse = fun(Target, Version, Said, Template) ->
        {ok, #req{lines = Kept} = Req, <<>>} = yucan_head:parse(iolist_to_binary(["GET ", Target, " HTTP/", Version, "\r\n", Said, "\r\n"]), limits(), Template),
        {{yucan_req:host(Req), yucan_req:path(Req), yucan_req:headers(Req)}, #req{lines = Kept}}
    end,
    Headers = fun(Host) -> [{<<"x">>, <<"1">>}, {<<"host">>, Host}, {<<"y">>, <<"2">>}] end,
    {First, Template} = Parse("http://A.org:81/p", "1.1", Lines, #req{}),
    ?assertEqual({<<"a.org">>, <<"/p">>, Headers(<<"A.org:81">>)}, First),
    %% The next requests have the same header lines.
    ?assertEqual({<<"b.org">>, <<"/p">>, Headers(<<"b.org">>)}, element(1, Parse("/p", "1.1", Lines, Template))),
    ?assertEqual({<<"c.org">>, <<"/">>, Headers(<<"c.org">>)}, element(1, Parse("http://c.org?q", "1.1", Lines, Template))),
    ?assertEqual({<<"a.org">>, <<"/">>, [{<<"host">>, <<"a.org">>}]}, element(1, Parse("http://a.org", "1.0", [], #req{}))).

dates_test() ->
    Date = {{1994, 11, 6}, {8, 49, 37}},
    [?assertEqual({ok, Date}, yucan_header:parse_date(T)) || T <- [<<"Sun, 06 Nov 1994 08:49:37 GMT">>, <<"Sunday, 06-Nov-94 08:49:37 GMT">>, <<"Sun Nov  6 08:49:37 1994">>]],
    ?assertEqual(<<"Sun, 06 Nov 1994 08:49:37 GMT">>, yucan_header:date(Date)),
    [?assertEqual(error, yucan_header:parse_date(T)) || T <- [<<>>, <<"x">>, <<"Sun, 31 Feb 1994 08:49:37 GMT">>, <<"Sun, 06 Nov 1994 28:49:37 GMT">>]].
