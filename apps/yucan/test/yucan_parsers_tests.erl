%% SPDX-License-Identifier: Apache-2.0
%% Tests the parsers for data from other programs with random bytes and with damaged valid data: FastCGI records, heads of script output,
%% configuration files, and values of directives. Each parser must return a result or an error and must not crash, and encoded data must decode to the
%% original. `make fuzz-yucan' runs the tests for minutes.
-module(yucan_parsers_tests).

-include_lib("proper/include/proper.hrl").
-include_lib("eunit/include/eunit.hrl").

-export([properties/0]).

properties_test_() -> yucan_fuzz:tests(500, properties()).

%% @doc Also used by yucan_fuzz.
-spec properties() -> [{string(), fun(() -> proper:outer_test())}].
properties() ->
    [{"FastCGI pairs", fun prop_pairs/0}, {"FastCGI records in pieces", fun prop_records/0},
     {"FastCGI of any bytes", fun prop_any_records/0}, {"heads in pieces", fun prop_heads/0}, {"heads of any bytes", fun prop_any_heads/0},
     {"lines of any bytes", fun prop_lines/0}, {"configurations", fun prop_configurations/0}, {"values", fun prop_values/0},
     {"names of hosts", fun prop_names/0}, {"slashes", fun prop_slashes/0}].

%% ---- FastCGI

prop_pairs() ->
    ?FORALL(Pairs, list({text(), text()}), pairs(yucan_fcgi:encode_pairs(Pairs)) =:= Pairs).

text() -> oneof([binary(), ?LET({Byte, Size}, {byte(), range(100, 400)}, binary:copy(<<Byte>>, Size))]).

pairs(<<>>) -> [];
pairs(Bytes) ->
    {NameSize, Rest} = text_size(Bytes),
    {ValueSize, Texts} = text_size(Rest),
    <<Name:NameSize/binary, Value:ValueSize/binary, More/binary>> = Texts,
    [{Name, Value} | pairs(More)].

text_size(<<0:1, Size:7, Rest/binary>>) -> {Size, Rest};
text_size(<<1:1, Size:31, Rest/binary>>) -> {Size, Rest}.

%% An application's output arrives split into arbitrary pieces.
prop_records() ->
    ?FORALL({Records, Cut}, {list(record()), pos_integer()},
            decoded(pieces(iolist_to_binary([encoded(Record) || Record <- Records]), Cut), <<>>) =:= {Records, <<>>}).

record() ->
    oneof([{stdout, binary()}, {stderr, binary()}, {end_request, non_neg_integer(), oneof([complete, cant_mpx_conn, overloaded, unknown_role])}]).

encoded({stdout, Data}) -> padded(6, Data);
encoded({stderr, Data}) -> padded(7, Data);
encoded({end_request, Status, Protocol}) ->
    {Number, _} = {maps:get(Protocol, #{complete => 0, cant_mpx_conn => 1, overloaded => 2, unknown_role => 3}), Protocol},
    padded(3, <<Status:32, Number, 0:24>>).

padded(Type, Data) ->
    Padding = byte_size(Data) rem 5,
    <<1, Type, 1:16, (byte_size(Data)):16, Padding, 0, Data/binary, 0:(Padding * 8)>>.

pieces(<<>>, _) -> [];
pieces(Bytes, Size) when byte_size(Bytes) =< Size -> [Bytes];
pieces(Bytes, Size) ->
    <<Piece:Size/binary, Rest/binary>> = Bytes,
    [Piece | pieces(Rest, Size)].

decoded(Pieces, Buffer) ->
    case yucan_fcgi:decode(Buffer) of
        {ok, Record, Rest} ->
            {Records, Left} = decoded(Pieces, Rest),
            {[Record | Records], Left};
        more when Pieces =:= [] -> {[], Buffer};
        more -> decoded(tl(Pieces), <<Buffer/binary, (hd(Pieces))/binary>>)
    end.

prop_any_records() ->
    ?FORALL(Bytes, damaged(?LET(Records, list(record()), iolist_to_binary([encoded(Record) || Record <- Records]))),
            ends(fun yucan_fcgi:decode/1, Bytes)).

ends(Decode, Bytes) ->
    case Decode(Bytes) of
        {ok, _, Rest} -> byte_size(Rest) < byte_size(Bytes) andalso ends(Decode, Rest);
        more -> true;
        {error, _} -> true
    end.

%% ---- heads of script output

prop_heads() ->
    ?FORALL({Names, End, Body, Cut}, {list(name()), oneof([<<"\n">>, <<"\r\n">>]), binary(), pos_integer()},
            begin
                Lines = [<<"Content-Type: a/b">> | [<<Name/binary, ": ", Name/binary>> || Name <- Names]],
                Text = iolist_to_binary([[[Line, End] || Line <- Lines], End, Body]),
                fed(pieces(Text, Cut), yucan_cgi_head:new())
                    =:= {#{status => 200, length => unknown,
                           headers => [{<<"content-type">>, <<"a/b">>} | [{string:lowercase(Name), Name} || Name <- Names]]}, Body}
            end).

%% Generates the name of a header that has no meaning for the server.
name() -> ?LET(Letters, non_empty(list(oneof([range($a, $z), range($A, $Z), $-]))), iolist_to_binary(["x-", Letters])).

fed([Piece | Rest], State) ->
    case yucan_cgi_head:feed(Piece, State) of
        {more, Next} -> fed(Rest, Next);
        {head, Head, Body} -> {Head, iolist_to_binary([Body | Rest])}
    end.

prop_any_heads() ->
    ?FORALL(Bytes, damaged(<<"Status: 200 OK\r\nContent-Type: text/html\nContent-Length: 12\nLocation: /x\n\nbody">>),
            case yucan_cgi_head:feed(Bytes, yucan_cgi_head:new()) of
                {more, _} -> true;
                {head, #{status := Status, headers := Headers}, Body} ->
                    Status >= 200 andalso Status < 600 andalso is_binary(Body) andalso lists:all(fun is_clean/1, Headers);
                {error, _} -> true
            end).

%% Returns whether a header contains nothing that could split it in two.
is_clean({Name, Value}) -> binary:match(<<Name/binary, Value/binary>>, [<<"\r">>, <<"\n">>, <<0>>]) =:= nomatch.

%% ---- configurations

prop_lines() ->
    ?FORALL(Text, damaged(configuration()), lists:all(fun({Line, _}) -> is_integer(Line) andalso Line > 0 end, yucan_yaws_config_lines:lines(Text))).

%% Inserts a character above 255 at each position. The result must be a configuration, or problems in lines that exist.
any_letter_anywhere_test_() ->
    {timeout, 60 * beamway_runner:slowness(),
     fun() -> [?assert(is_read(<<Before/binary, "\x{100}"/utf8, After/binary>>))
               || At <- lists:seq(0, byte_size(configuration())), <<Before:At/binary, After/binary>> <- [configuration()]] end}.

prop_configurations() -> ?FORALL(Text, oneof([damaged(configuration()), shuffled(configuration())]), is_read(Text)).

%% Returns whether the text is parsed as a configuration or yields problems with valid line numbers.
is_read(Text) ->
    case yucan_yaws_config:parse(Text, "/nowhere") of
        {ok, #{servers := [_ | _]}} -> true;
        {error, [_ | _] = Problems} ->
            Lines = length(binary:split(Text, <<"\n">>, [global])),
            lists:all(fun({Line, What}) -> Line >= 0 andalso Line =< Lines andalso is_list(What) end, Problems)
                andalso iolist_size(unicode:characters_to_binary(yucan_yaws_config:format("f", Problems))) > 0
    end.

configuration() ->
    <<"pick_first_virthost_on_nomatch = true\nphp_exe_path = /usr/bin/php-cgi\n<server localhost>\nport = 80\nlisten = 127.0.0.1\n"
      "<redirect>\n/ = http://www.example.com\n/x == 301 /y\n/z = 404\n</redirect>\n</server>\n<server www.example.com>\nport = 80\n"
      "docroot = /a /b\nserveralias = *.x\nappmods = </, n exclude_paths a b> </trac, trac>\nphp_handler = <fcgi, unix:/s>\n"
      "revproxy = /p http://h:1/x\n<opaque>\na = b\n</opaque>\n<auth>\ndir = /s\nuser = a:b\nallow = 10.0.0.0/8\n</auth>\n"
      "<extra_cgi_vars dir='/c d'>\nA = 1\n</extra_cgi_vars>\nexpires = a/b|access+5\n</server>\n">>.

shuffled(Text) ->
    Lines = binary:split(Text, <<"\n">>, [global]),
    ?LET(Picked, list(oneof(Lines)), iolist_to_binary(lists:join("\n", Picked))).

%% Generates a valid text with some bytes changed, removed or inserted, or random bytes.
damaged(Generator) ->
    oneof([binary(), ?LET({Text, Changes}, {Generator, list({non_neg_integer(), oneof([byte(), none, binary()])})},
                          lists:foldl(fun change/2, Text, Changes))]).

change({_, _}, <<>>) -> <<>>;
change({Where, What}, Text) ->
    At = (Where * 37) rem byte_size(Text),
    <<Before:At/binary, Old, After/binary>> = Text,
    case What of
        none -> <<Before/binary, After/binary>>;
        Byte when is_integer(Byte) -> <<Before/binary, Byte, After/binary>>;
        More -> <<Before/binary, Old, More/binary, After/binary>>
    end.

prop_values() ->
    Kinds = [text, boolean, module, path, paths, words, address, host_port, mounts, php_handler, revproxy, expires,
             {integer, 0, 100}, {one_of, [a, b]}, {none_or, nolimit, {integer, 0, 9}}],
    ?FORALL({Kind, Bytes}, {oneof(Kinds), damaged(oneof([<<"</a, b exclude_paths c>">>, <<"<fcgi, 1.2.3.4:5>">>, <<"/p http://h:8/x">>, <<"[::1]:80">>]))},
            case yucan_yaws_config_value:read(Kind, binary_to_list(Bytes), "/") of
                {ok, _} -> true;
                {error, Expected} -> is_list(Expected)
            end).

%% ---- paths and names

%% A name without a wildcard matches itself, and `*' matches everything.
prop_names() ->
    ?FORALL({Host, Pattern}, {host(), host()},
            yucan_hostname:is_match(Host, Host) andalso yucan_hostname:is_match(<<"*">>, Host)
                andalso yucan_hostname:is_match(<<"*", Pattern/binary>>, <<Host/binary, Pattern/binary>>)
                andalso (Host =:= Pattern) =:= yucan_hostname:is_match(Pattern, Host)).

%% Matching a pattern with several stars takes at most quadratic time. (Matching 4,000 bytes used to take 38 s.)
pattern_time_test() ->
    Name = <<"q", (binary:copy(<<".a.b">>, 2000))/binary>>,
    Reductions = fun(Pattern) ->
        {reductions, Before} = process_info(self(), reductions),
        false = yucan_hostname:is_match(Pattern, Name),
        {reductions, After} = process_info(self(), reductions),
        After - Before
    end,
    ?assert(Reductions(<<"*.a*.b*.example.org">>) < 10000000).

patterns_test_() ->
    [?_assertEqual({Pattern, Name, Is}, {Pattern, Name, yucan_hostname:is_match(Pattern, Name)})
     || {Pattern, Name, Is} <- [{<<"*.a.*.org">>, <<"x.a.a.y.org">>, true}, {<<"*.a?.org">>, <<"x.a.a1.org">>, true}, {<<"*a?c">>, <<"a.cabc">>, true}, {<<"a*b*c">>, <<"abbcbc">>, true},
                                {<<"a*b*c">>, <<"abbcb">>, false}, {<<"?.org">>, <<"..org">>, false}, {<<"*">>, <<>>, true}, {<<"**">>, <<"a">>, true}, {<<"a*">>, <<"a">>, true}, {<<>>, <<"a">>, false},
                                {<<"*.b">>, <<"b">>, false}]].

host() -> ?LET(Letters, list(oneof([range($a, $c), $.])), list_to_binary(Letters)).

%% A path below a directory is recognized as such, however many slashes separate its parts.
prop_slashes() ->
    ?FORALL(Counts, non_empty(list(range(1, 4))),
            begin
                Slashed = iolist_to_binary([[binary:copy(<<"/">>, Count), "a"] || Count <- Counts]),
                {ok, Path} = yucan_path:decode(Slashed),
                yucan_yaws_match:is_under(Path, <<"/a">>)
            end).
