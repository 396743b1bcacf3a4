%% SPDX-License-Identifier: Apache-2.0
%% @doc permessage-deflate (RFC 7692) for {@link yucan_ws}: which of the client's offers is accepted, and how messages are compressed and
%% decompressed.
%%
%% Without context, each message is compressed separately, and an idle connection costs nothing. With context, messages refer to earlier messages.
%% This makes small messages that resemble each other much smaller, but it costs the memory of both windows for as long as the connection is open. A
%% context belongs to a single process.
-module(yucan_ws_deflate).

-export([wanted/1, negotiate/2, open/1, deflate/2, inflate/3]).
-export_type([options/0, wanted/0, agreed/0, context/0]).

-type window() :: 9..15.
%% The base-2 logarithm of the LZ77 window size.
-type options() :: #{context => boolean(), window => window(), client_window => window()}.
%% Whether messages may refer to earlier ones (by default they may), and the window sizes for
%% messages from the server and from the client (15 by default).
-opaque wanted() :: #{context := boolean(), window := window(), client_window := window()}.
%% The window size for each direction, and whether messages may refer to earlier messages.
-opaque agreed() :: {Out :: {window(), boolean()}, In :: {window(), boolean()}}.
-opaque context() :: {Out :: window() | zlib:zstream(), In :: window() | zlib:zstream()}.

%% The bytes with which zlib ends each flush, and which permessage-deflate omits.
-define(TAIL, <<0, 0, 255, 255>>).

%% @doc Returns the options with their defaults, or `none' for no compression.
-spec wanted(boolean() | options()) -> none | wanted().
wanted(false) -> none;
wanted(true) -> wanted(#{context => false});
wanted(Options) when is_map(Options) ->
    #{context := Context, window := Window, client_window := ClientWindow} = All = maps:merge(#{context => true, window => 15, client_window => 15}, Options),
    case map_size(All) =:= 3 andalso is_boolean(Context) andalso is_window(Window) andalso is_window(ClientWindow) of
        true -> All;
        false -> wrong(Options)
    end;
wanted(Other) -> wrong(Other).

is_window(Bits) -> is_integer(Bits) andalso Bits >= 9 andalso Bits =< 15.

-spec wrong(term()) -> no_return().
wrong(Value) -> error({bad_compress, Value, "true, false or #{context => boolean(), window => 9..15, client_window => 9..15} is expected"}).

%% @doc Finds the first acceptable offer in a Sec-WebSocket-Extensions header, and returns the response to it and the agreed parameters. An offer with
%% an unknown, repeated or invalid parameter is declined (7.1), as is an offer with a window of 8 bits, which zlib does not support.
-spec negotiate(Header :: binary(), wanted()) -> {Answer :: iodata(), agreed()} | none.
negotiate(Header, Wanted) ->
    first([[yucan_header:trim(Part) || Part <- binary:split(Offer, <<";">>, [global])]
           || Offer <- binary:split(yucan_header:lower(Header), <<",">>, [global])], Wanted).

first([[<<"permessage-deflate">> | Parameters] | Others], Wanted) ->
    case accepted([parameter(Parameter) || Parameter <- Parameters], #{}) of
        {ok, Known} -> answer(Known, Wanted);
        error -> first(Others, Wanted)
    end;
first([_ | Others], Wanted) -> first(Others, Wanted);
first([], _) -> none.

parameter(Text) ->
    case [yucan_header:trim(Part) || Part <- binary:split(Text, <<"=">>)] of
        [Name] -> {Name, none};
        [Name, Value] -> {Name, bits(unquoted(Value))}
    end.

unquoted(Value) when byte_size(Value) > 2 ->
    case {binary:first(Value), binary:last(Value)} of
        {$", $"} -> binary_part(Value, 1, byte_size(Value) - 2);
        _ -> Value
    end;
unquoted(Value) -> Value.

%% Leading zeros are not allowed (7.1.2).
bits(<<Digit>>) when Digit >= $8, Digit =< $9 -> Digit - $0;
bits(<<$1, Digit>>) when Digit >= $0, Digit =< $5 -> 10 + Digit - $0;
bits(_) -> error.

accepted([{Name, _} | _], Known) when is_map_key(Name, Known) -> error;
accepted([{Name, none} | Rest], Known) when Name =:= <<"server_no_context_takeover">>; Name =:= <<"client_no_context_takeover">> ->
    accepted(Rest, Known#{Name => true});
accepted([{<<"client_max_window_bits">> = Name, Bits} | Rest], Known) when Bits =/= error -> accepted(Rest, Known#{Name => Bits});
accepted([{<<"server_max_window_bits">> = Name, Bits} | Rest], Known) when is_integer(Bits), Bits > 8 -> accepted(Rest, Known#{Name => Bits});
accepted([], Known) -> {ok, Known};
accepted(_, _) -> error.

%% If a client's offer does not mention its own window, the server cannot request a smaller one (7.1.2.2).
answer(Known, #{context := Context, window := Window, client_window := ClientWindow}) ->
    ServerContext = Context andalso not is_map_key(<<"server_no_context_takeover">>, Known),
    ClientContext = Context andalso not is_map_key(<<"client_no_context_takeover">>, Known),
    ServerBits = min(Window, maps:get(<<"server_max_window_bits">>, Known, 15)),
    {ClientBits, Said} = case Known of
        #{<<"client_max_window_bits">> := none} when ClientWindow < 15 -> {ClientWindow, true};
        #{<<"client_max_window_bits">> := Bits} when is_integer(Bits), ClientWindow < Bits -> {ClientWindow, true};
        #{<<"client_max_window_bits">> := Bits} when is_integer(Bits) -> {max(9, Bits), false};
        _ -> {15, false}
    end,
    {[<<"permessage-deflate">>,
      [<<"; server_no_context_takeover">> || not ServerContext], [<<"; client_no_context_takeover">> || not ClientContext],
      [[<<"; server_max_window_bits=">>, integer_to_binary(ServerBits)] || ServerBits < 15 orelse is_map_key(<<"server_max_window_bits">>, Known)],
      [[<<"; client_max_window_bits=">>, integer_to_binary(ClientBits)] || Said]],
     {{ServerBits, ServerContext}, {ClientBits, ClientContext}}}.

%% @doc Creates a context owned by the calling process.
-spec open(agreed()) -> context().
open({{OutBits, OutContext}, {InBits, InContext}}) ->
    {case OutContext of true -> deflater(OutBits); false -> OutBits end, case InContext of true -> inflater(InBits); false -> InBits end}.

deflater(Bits) ->
    Z = zlib:open(),
    ok = zlib:deflateInit(Z, default, deflated, -Bits, 8, default),
    Z.

%% A client may end a zlib stream with one message and start a new stream (7.2.3.4).
inflater(Bits) ->
    Z = zlib:open(),
    ok = zlib:inflateInit(Z, -Bits, reset),
    Z.

once(Z, Function) -> try Function(Z) after zlib:close(Z) end.

%% @doc Compresses a message.
-spec deflate(iodata(), context()) -> binary().
deflate(Data, {Bits, _}) when is_integer(Bits) -> once(deflater(Bits), fun(Z) -> flushed(Z, Data) end);
deflate(Data, {Z, _}) -> flushed(Z, Data).

%% If nothing was written since the last flush, zlib has nothing to flush, so an empty message is sent as an empty block (7.2.3.6).
flushed(Z, Data) ->
    case iolist_to_binary(zlib:deflate(Z, Data, sync)) of
        <<>> -> <<0>>;
        Bytes -> binary:part(Bytes, 0, byte_size(Bytes) - byte_size(?TAIL))
    end.

%% @doc Decompresses a message of up to `Max' bytes, or returns a close code. This is done in steps, because a small message may expand to gigabytes.
-spec inflate(binary(), Max :: pos_integer(), context()) -> {ok, binary()} | {error, 1007 | 1009}.
inflate(Data, Max, {_, Bits}) when is_integer(Bits) -> once(inflater(Bits), fun(Z) -> inflated(Data, Max, Z) end);
inflate(Data, Max, {_, Z}) -> inflated(Data, Max, Z).

inflated(Data, Max, Z) ->
    try
        inflated(zlib:safeInflate(Z, [Data, ?TAIL]), Z, Max, [])
    catch
        error:_ -> {error, 1007}
    end.

inflated({Kind, Output}, Z, Max, Done) ->
    All = [Done | Output],
    case {iolist_size(All) > Max, Kind} of
        {true, _} -> {error, 1009};
        {false, finished} -> {ok, iolist_to_binary(All)};
        {false, continue} -> inflated(zlib:safeInflate(Z, []), Z, Max, All)
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

negotiate_test_() ->
    None = wanted(true),
    All = wanted(#{}),
    Base = "permessage-deflate; server_no_context_takeover; client_no_context_takeover",
    Say = fun(none) -> none; ({Answer, Agreed}) -> {unicode:characters_to_list(Answer), Agreed} end,
    [{Header, ?_assertEqual(Expected, Say(negotiate(list_to_binary(Header), Wanted)))}
     || {Wanted, Header, Expected} <-
            [{None, "", none}, {None, "x-webkit-deflate-frame", none}, {None, "permessage-deflated", none},
             {None, "permessage-deflate", {Base, {{15, false}, {15, false}}}},
             {None, "Permessage-Deflate; client_max_window_bits", {Base, {{15, false}, {15, false}}}},
             {None, "permessage-deflate; client_max_window_bits=8", {Base, {{15, false}, {9, false}}}},
             {None, "permessage-deflate; server_max_window_bits=10", {Base ++ "; server_max_window_bits=10", {{10, false}, {15, false}}}},
             {None, "permessage-deflate;server_max_window_bits=\"9\"", {Base ++ "; server_max_window_bits=9", {{9, false}, {15, false}}}},
             {None, "permessage-deflate; server_max_window_bits=8", none},
             {None, "permessage-deflate; server_max_window_bits=8, permessage-deflate", {Base, {{15, false}, {15, false}}}},
             {None, "x, permessage-deflate; server_max_window_bits=12, permessage-deflate", {Base ++ "; server_max_window_bits=12", {{12, false}, {15, false}}}},
             {All, "permessage-deflate; client_max_window_bits", {"permessage-deflate", {{15, true}, {15, true}}}},
             {All, "permessage-deflate; server_no_context_takeover", {"permessage-deflate; server_no_context_takeover", {{15, false}, {15, true}}}},
             {All, "permessage-deflate; client_no_context_takeover", {"permessage-deflate; client_no_context_takeover", {{15, true}, {15, false}}}},
             {wanted(#{window => 11}), "permessage-deflate", {"permessage-deflate; server_max_window_bits=11", {{11, true}, {15, true}}}},
             {wanted(#{window => 11}), "permessage-deflate; server_max_window_bits=10", {"permessage-deflate; server_max_window_bits=10", {{10, true}, {15, true}}}},
             {wanted(#{client_window => 12}), "permessage-deflate", {"permessage-deflate", {{15, true}, {15, true}}}},
             {wanted(#{client_window => 12}), "permessage-deflate; client_max_window_bits", {"permessage-deflate; client_max_window_bits=12", {{15, true}, {12, true}}}},
             {wanted(#{client_window => 12}), "permessage-deflate; client_max_window_bits=10", {"permessage-deflate", {{15, true}, {10, true}}}}]
            ++ [{All, "permessage-deflate; " ++ Bad, none}
                || Bad <- ["server_max_window_bits", "server_max_window_bits=16", "server_max_window_bits=09", "client_max_window_bits=7", "unknown",
                           "server_no_context_takeover=1", "server_no_context_takeover; server_no_context_takeover",
                           "server_max_window_bits=10; server_max_window_bits=10"]]].

wanted_test_() ->
    [?_assertEqual(none, wanted(false))]
        ++ [?_assertError({bad_compress, Bad, _}, wanted(Bad)) || Bad <- [yes, #{window => 8}, #{window => 16}, #{context => yes}, #{other => 1}]].

alone(Bits) -> {Bits, 15}.

%% The window size limits how far back a message may refer.
window_test() ->
    Block = rand:bytes(600),
    Far = [Block, rand:bytes(2000), Block],
    ?assert(byte_size(deflate(Far, alone(15))) < byte_size(deflate(Far, alone(9))) - 400).

%% With context, a repeated message is small in both directions, even after an empty message or a message that ends its zlib stream (7.2.3).
context_test() ->
    Text = rand:bytes(500),
    {_, Agreed} = negotiate(<<"permessage-deflate">>, wanted(#{})),
    Context = open(Agreed),
    [First, Empty, Second] = [deflate(M, Context) || M <- [Text, <<>>, Text]],
    ?assert(byte_size(Second) < 20 andalso byte_size(First) > 500),
    ?assertEqual([{ok, Text}, {ok, <<>>}, {ok, Text}], [inflate(M, 500, Context) || M <- [First, Empty, Second]]),
    ?assertEqual({ok, <<"Hello">>}, inflate(<<16#f3, 16#48, 16#cd, 16#c9, 16#c9, 7, 0, 0>>, 500, Context)),
    ?assertEqual({ok, <<"Hello">>}, inflate(<<16#f2, 16#48, 16#cd, 16#c9, 16#c9, 7, 0>>, 500, Context)),
    ?assertEqual({error, 1009}, inflate(deflate(rand:bytes(501), alone(15)), 500, Context)),
    ?assertEqual({error, 1007}, inflate(<<255, 255, 255>>, 500, open(Agreed))).

-endif.
