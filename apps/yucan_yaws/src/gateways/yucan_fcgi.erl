%% SPDX-License-Identifier: Apache-2.0
%% @doc Encodes and decodes FastCGI 1.0 records. All functions are pure. Decoding arbitrary bytes returns a record, `more' if bytes are
%% missing, or an error.
%%
%% A connection carries only one request at a time, whose ID is always 1, because php-fpm supports nothing else.
-module(yucan_fcgi).

-export([begin_request/1, params/1, stdin/1, decode/1, encode_pairs/1]).
-export_type([record_in/0]).

-define(VERSION, 1).
-define(ID, 1).
-define(BEGIN_REQUEST, 1).
-define(END_REQUEST, 3).
-define(PARAMS, 4).
-define(STDIN, 5).
-define(STDOUT, 6).
-define(STDERR, 7).
-define(RESPONDER, 1).
-define(KEEP_CONN, 1).
%% The maximum content size of a record: a multiple of 8, as the specification recommends.
-define(MAX_CONTENT, 65528).

-type record_in() :: {stdout | stderr, binary()}
                   | {end_request, AppStatus :: non_neg_integer(), complete | cant_mpx_conn | overloaded | unknown_role | other}
                   | {other, Type :: byte(), binary()}.
%% `{stdout, <<>>}' marks the end of that stream.

%% @doc Encodes the record that begins a request. `Keep' says whether the application keeps the connection open.
-spec begin_request(Keep :: boolean()) -> iodata().
begin_request(true) -> record(?BEGIN_REQUEST, <<?RESPONDER:16, ?KEEP_CONN, 0:40>>);
begin_request(false) -> record(?BEGIN_REQUEST, <<?RESPONDER:16, 0:48>>).

%% @doc Encodes all parameters and the end of their stream.
-spec params([{iodata(), iodata()}]) -> iodata().
params(Pairs) -> [stream(?PARAMS, encode_pairs(Pairs)), record(?PARAMS, <<>>)].

%% @doc Encodes a part of the request's body. An empty part marks the end.
-spec stdin(binary()) -> iodata().
stdin(<<>>) -> record(?STDIN, <<>>);
stdin(Data) -> stream(?STDIN, Data).

stream(_, <<>>) -> [];
stream(Type, <<Part:?MAX_CONTENT/binary, Rest/binary>>) -> [record(Type, Part) | stream(Type, Rest)];
stream(Type, Rest) -> [record(Type, Rest)].

record(Type, Content) ->
    Size = byte_size(Content),
    Padding = -Size band 7,
    [<<?VERSION, Type, ?ID:16, Size:16, Padding, 0>>, Content, <<0:(Padding * 8)>>].

%% @doc Decodes the first record in the bytes.
-spec decode(binary()) -> {ok, record_in(), Rest :: binary()} | more | {error, {version | request_id | end_request, term()}}.
decode(<<?VERSION, Type, Id:16, Size:16, Padding, _, Content:Size/binary, _:Padding/binary, Rest/binary>>) ->
    case content(Type, Id, Content) of
        {error, Reason} -> {error, Reason};
        Record -> {ok, Record, Rest}
    end;
decode(<<Version, _/binary>>) when Version =/= ?VERSION -> {error, {version, Version}};
decode(Bytes) when is_binary(Bytes) -> more.

content(Type, Id, _) when Id =/= ?ID, Type >= ?END_REQUEST, Type =< ?STDERR -> {error, {request_id, Id}};
content(?STDOUT, _, Content) -> {stdout, Content};
content(?STDERR, _, Content) -> {stderr, Content};
content(?END_REQUEST, _, <<Status:32, Protocol, _:24>>) -> {end_request, Status, protocol_status(Protocol)};
content(?END_REQUEST, _, Content) -> {error, {end_request, byte_size(Content)}};
content(Type, _, Content) -> {other, Type, Content}.

protocol_status(0) -> complete;
protocol_status(1) -> cant_mpx_conn;
protocol_status(2) -> overloaded;
protocol_status(3) -> unknown_role;
protocol_status(_) -> other.

%% @doc Encodes names and values, each pair preceded by its lengths.
-spec encode_pairs([{iodata(), iodata()}]) -> binary().
encode_pairs(Pairs) -> iolist_to_binary([[size_of(Name), size_of(Value), Name, Value] || {Name, Value} <- Pairs]).

size_of(Text) when byte_size(Text) < 128 -> byte_size(Text);
size_of(Text) ->
    case iolist_size(Text) of
        Size when Size < 128 -> Size;
        Size when Size < 1 bsl 31 -> <<1:1, Size:31>>
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

begin_request_test() ->
    [?assertEqual(<<1, 1, 0, 1, 0, 8, 0, 0, 0, 1, Flag, 0, 0, 0, 0, 0>>, iolist_to_binary(begin_request(Keep))) || {Keep, Flag} <- [{true, 1}, {false, 0}]].

params_test() ->
    ?assertEqual(<<1, 4, 0, 1, 0, 4, 4, 0, 1, 1, "AB", 0:32, 1, 4, 0, 1, 0, 0, 0, 0>>, iolist_to_binary(params([{"A", "B"}]))).

long_values_test_() ->
    [?_assertEqual(<<1, Length/binary, "N", Value/binary>>, encode_pairs([{"N", Value}]))
     || {Size, Length} <- [{0, <<0>>}, {1, <<1>>}, {127, <<127>>}, {128, <<128, 0, 0, 128>>}, {65535, <<128, 0, 255, 255>>}, {65536, <<128, 1, 0, 0>>}],
        Value <- [binary:copy(<<"x">>, Size)]].

%% A stream that is too long for one record is split into several records.
stdin_test_() ->
    [?_assertEqual(Size, sizes(iolist_to_binary(stdin(binary:copy(<<"y">>, Size)))))
     || Size <- [0, 1, 7, 8, ?MAX_CONTENT - 1, ?MAX_CONTENT, ?MAX_CONTENT + 1, 3 * ?MAX_CONTENT]].

sizes(<<>>) -> 0;
sizes(Bytes) ->
    {ok, {other, ?STDIN, Content}, Rest} = decode(Bytes),
    byte_size(Content) + sizes(Rest).

decode_test_() ->
    [?_assertEqual({ok, {stdout, <<"hi">>}, <<1>>}, decode(<<1, 6, 0, 1, 0, 2, 1, 0, "hi", 0, 1>>)),
     ?_assertEqual({ok, {stderr, <<>>}, <<>>}, decode(<<1, 7, 0, 1, 0, 0, 0, 0>>)),
     ?_assertEqual({ok, {end_request, 256, complete}, <<>>}, decode(<<1, 3, 0, 1, 0, 8, 0, 0, 1:24, 0, 0, 0:24>>)),
     ?_assertEqual({ok, {end_request, 0, overloaded}, <<>>}, decode(<<1, 3, 0, 1, 0, 8, 0, 0, 0:32, 2, 0:24>>)),
     ?_assertEqual(more, decode(<<>>)),
     ?_assertEqual(more, decode(<<1, 6, 0, 1, 0, 2, 1, 0, "hi">>)),
     ?_assertEqual({error, {version, $H}}, decode(<<"HTTP/1.1 400">>)),
     ?_assertEqual({error, {request_id, 2}}, decode(<<1, 6, 0, 2, 0, 0, 0, 0>>)),
     ?_assertEqual({error, {end_request, 1}}, decode(<<1, 3, 0, 1, 0, 1, 0, 0, 0>>))].

-endif.
