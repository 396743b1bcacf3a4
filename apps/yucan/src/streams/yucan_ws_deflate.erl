%% SPDX-License-Identifier: Apache-2.0
%% @doc permessage-deflate (RFC 7692) as {@link yucan_ws} uses it: which offer of a client is accepted, and compression within the window that the
%% client has asked for. Without context over messages on both sides. Pure.
-module(yucan_ws_deflate).

-export([negotiate/1, deflate/2]).
-export_type([window/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

%% Bits of the LZ77 window.
-type window() :: 9..15.

%% What zlib puts at the end of each flush, and permessage-deflate leaves away.
-define(TAIL_BYTES, 4).

%% @doc The first offer of a Sec-WebSocket-Extensions header that can be met: its answer, and the largest window that the client can take.
%% An offer with a parameter that is not known, twice there or out of range is declined (7.1). So is a window of 8 bits, which zlib does not
%% make.
-spec negotiate(Header :: binary()) -> {Answer :: iodata(), window()} | none.
negotiate(Header) ->
    first([[yucan_header:trim(Part) || Part <- binary:split(Offer, <<";">>, [global])]
           || Offer <- binary:split(yucan_header:lower(Header), <<",">>, [global])]).

first([[<<"permessage-deflate">> | Parameters] | Others]) ->
    case accepted([parameter(Parameter) || Parameter <- Parameters], #{}) of
        {ok, Known} -> answer(Known);
        error -> first(Others)
    end;
first([_ | Others]) -> first(Others);
first([]) -> none.

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

%% Without zeros before them (7.1.2).
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

%% What the client compresses is taken with any window, so its own is no matter.
answer(Known) ->
    Plain = <<"permessage-deflate; server_no_context_takeover; client_no_context_takeover">>,
    case Known of
        #{<<"server_max_window_bits">> := Bits} -> {[Plain, <<"; server_max_window_bits=">>, integer_to_binary(Bits)], Bits};
        _ -> {Plain, 15}
    end.

%% @doc A message, compressed.
-spec deflate(iodata(), window()) -> binary().
deflate(Data, Window) ->
    Z = zlib:open(),
    try
        ok = zlib:deflateInit(Z, default, deflated, -Window, 8, default),
        Bytes = iolist_to_binary(zlib:deflate(Z, Data, sync)),
        binary:part(Bytes, 0, byte_size(Bytes) - ?TAIL_BYTES)
    after
        zlib:close(Z)
    end.

-ifdef(TEST).

negotiate_test_() ->
    Base = "permessage-deflate; server_no_context_takeover; client_no_context_takeover",
    Say = fun(none) -> none; ({Answer, Bits}) -> {unicode:characters_to_list(Answer), Bits} end,
    [{Header, ?_assertEqual(Expected, Say(negotiate(list_to_binary(Header))))}
     || {Header, Expected} <-
            [{"", none}, {"x-webkit-deflate-frame", none}, {"permessage-deflated", none},
             {"permessage-deflate", {Base, 15}},
             {"Permessage-Deflate; client_max_window_bits", {Base, 15}},
             {"permessage-deflate; client_max_window_bits=8", {Base, 15}},
             {"permessage-deflate; server_max_window_bits=10", {Base ++ "; server_max_window_bits=10", 10}},
             {"permessage-deflate;server_max_window_bits=\"9\"", {Base ++ "; server_max_window_bits=9", 9}},
             {"permessage-deflate; server_max_window_bits=8", none},
             {"permessage-deflate; server_max_window_bits=8, permessage-deflate", {Base, 15}},
             {"x, permessage-deflate; server_max_window_bits=12, permessage-deflate", {Base ++ "; server_max_window_bits=12", 12}}]
            ++ [{"permessage-deflate; " ++ Bad, none}
                || Bad <- ["server_max_window_bits", "server_max_window_bits=16", "server_max_window_bits=09", "client_max_window_bits=7", "unknown",
                           "server_no_context_takeover=1", "server_no_context_takeover; server_no_context_takeover",
                           "server_max_window_bits=10; server_max_window_bits=10"]]].

%% The window is kept: what lies further back than it is not referred to.
window_test() ->
    Block = rand:bytes(600),
    Far = [Block, rand:bytes(2000), Block],
    ?assert(byte_size(deflate(Far, 15)) < byte_size(deflate(Far, 9)) - 400).

-endif.
