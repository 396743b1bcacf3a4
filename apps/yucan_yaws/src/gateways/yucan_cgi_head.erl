%% SPDX-License-Identifier: Apache-2.0
%% @doc Parses the head of a response from a script, php-fpm or a proxied server (RFC 3875, section 6) as it arrives.
%%
%% The head must contain a content type, a location or a status. Any other head is rejected, and the client gets a 502. All functions are pure.
-module(yucan_cgi_head).

-export([new/0, feed/2]).
-export_type([state/0, head/0, reason/0]).

-define(MAX_BYTES, 65536).
-define(MAX_LINES, 256).

-opaque state() :: binary().
-type head() :: #{status := 200..599, headers := [{Name :: binary(), Value :: binary()}], length := non_neg_integer() | unknown}.
%% Names are in lower case. Headers that concern the connection are removed, and so is content-length, whose value is in `length'.
-type reason() :: too_long | too_many_lines | {line, binary()} | {status, binary()} | {content_length, binary()} | no_type.

%% @doc Returns the state before the first byte.
-spec new() -> state().
new() -> <<>>.

%% @doc Parses the next bytes. The beginning of the body is returned together with the head.
-spec feed(binary(), state()) -> {more, state()} | {head, head(), Body :: binary()} | {error, reason()}.
feed(Data, Before) ->
    Bytes = <<Before/binary, Data/binary>>,
    case head_end(Bytes) of
        {At, Length} when At =< ?MAX_BYTES ->
            <<Head:At/binary, _:Length/binary, Body/binary>> = Bytes,
            case parse(Head) of
                {ok, Parsed} -> {head, Parsed, Body};
                {error, Reason} -> {error, Reason}
            end;
        nomatch when byte_size(Bytes) =< ?MAX_BYTES -> {more, Bytes};
        _ -> {error, too_long}
    end.

%% Finds the empty line after the head, with any kind of line end. The head may consist of only that line.
head_end(<<"\r\n", _/binary>>) -> {0, 2};
head_end(<<"\n", _/binary>>) -> {0, 1};
head_end(Bytes) -> empty_line(Bytes, 0, none).

empty_line(<<"\n", Rest/bits>>, At, Before) ->
    Length = case Rest of
        <<"\n", _/bits>> -> 2;
        <<"\r\n", _/bits>> -> 3;
        _ -> 0
    end,
    case Before of
        _ when Length =:= 0 -> empty_line(Rest, At + 1, $\n);
        $\r -> {At - 1, Length + 1};
        _ -> {At, Length}
    end;
empty_line(<<C, Rest/bits>>, At, _) -> empty_line(Rest, At + 1, C);
empty_line(<<>>, _, _) -> nomatch.

parse(Head) ->
    Lines = [without_cr(Line) || Line <- binary:split(Head, <<"\n">>, [global])],
    case length(Lines) > ?MAX_LINES of
        true -> {error, too_many_lines};
        false -> fields(Lines, none, [])
    end.

%% Some scripts begin their output with a status line, as a server would.
fields([<<"HTTP/", Rest/binary>> | Lines], none, []) ->
    case binary:split(Rest, <<" ">>) of
        [_, Status] -> with_status(Status, Lines, []);
        [_] -> {error, {line, <<"HTTP/", Rest/binary>>}}
    end;
fields([], Status, Done) -> head(Status, lists:reverse(Done));
fields([Line | Lines], Status, Done) ->
    case field(Line) of
        %% After a status line, `status' is an ordinary header, which another server may send for its own purposes.
        {<<"status">>, Value} when Status =:= none -> with_status(Value, Lines, Done);
        {Name, Value} -> fields(Lines, Status, [{Name, Value} | Done]);
        false -> {error, {line, shown(Line)}}
    end.

with_status(<<A, B, C, Rest/binary>> = Text, Lines, Done)
  when A >= $2, A =< $5, B >= $0, B =< $9, C >= $0, C =< $9 ->
    case Rest of
        <<>> -> fields(Lines, list_to_integer([A, B, C]), Done);
        <<" ", _/binary>> -> fields(Lines, list_to_integer([A, B, C]), Done);
        _ -> {error, {status, shown(Text)}}
    end;
with_status(Text, _, _) -> {error, {status, shown(Text)}}.

field(Line) ->
    case binary:split(Line, <<":">>) of
        [Name, Value] ->
            case {is_clean(Value), yucan_header:listed(Name)} of
                {true, {_, Lower}} -> {Lower, yucan_header:trim(Value)};
                {true, unlisted} -> yucan_header:is_token(Name) andalso {yucan_header:lower(Name), yucan_header:trim(Value)};
                {false, _} -> false
            end;
        _ -> false
    end.

%% Works on bytes, because text that is not UTF-8 is allowed here.
without_cr(Line) ->
    case Line =/= <<>> andalso binary:last(Line) of
        $\r -> binary:part(Line, 0, byte_size(Line) - 1);
        _ -> Line
    end.

is_clean(<<C, Rest/bits>>) when C >= $\s, C =/= 127; C =:= $\t -> is_clean(Rest);
is_clean(Rest) -> Rest =:= <<>>.

head(none, Fields) ->
    case {lists:keymember(<<"location">>, 1, Fields), lists:keymember(<<"content-type">>, 1, Fields)} of
        {true, _} -> head(302, Fields);
        {false, true} -> head(200, Fields);
        {false, false} -> {error, no_type}
    end;
head(Status, Fields) ->
    Headers = [Field || {Name, _} = Field <- yucan_header:without_hops(Fields),
                        not lists:member(Name, [<<"date">>, <<"server">>, <<"content-length">>])],
    case lists:usort([Value || {<<"content-length">>, Value} <- Fields]) of
        [] -> {ok, #{status => Status, headers => Headers, length => unknown}};
        [Text] -> with_length(Text, Status, Headers);
        [Text | _] -> {error, {content_length, shown(Text)}}
    end.

with_length(Text, Status, Headers) ->
    case byte_size(Text) =< 17 andalso re:run(Text, "^[0-9]+$", [{capture, none}]) of
        match -> {ok, #{status => Status, headers => Headers, length => binary_to_integer(Text)}};
        _ -> {error, {content_length, shown(Text)}}
    end.

shown(<<Start:60/binary, _, _/binary>>) -> <<Start/binary, "...">>;
shown(Text) -> Text.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

feed_all(Parts) -> lists:foldl(fun(Part, {more, State}) -> feed(Part, State);
                   (Part, {head, Head, Body}) -> {head, Head, <<Body/binary, Part/binary>>}
                end, {more, new()}, Parts).

feed_test_() ->
    [?_assertEqual({head, #{status => Status, headers => Headers, length => Length}, Body}, feed_all(Parts))
     || {Parts, Status, Headers, Length, Body} <-
            [{[<<"Content-Type: text/plain\n\nhi">>], 200, [{<<"content-type">>, <<"text/plain">>}], unknown, <<"hi">>},
             {[<<"Content-Type:a/b\r\n">>, <<"\r">>, <<"\n">>, <<"x">>], 200, [{<<"content-type">>, <<"a/b">>}], unknown, <<"x">>},
             {[<<"Location: /x\n\n">>], 302, [{<<"location">>, <<"/x">>}], unknown, <<>>},
             {[<<"Status: 404 Not Found\nContent-Length: 5\n\n">>], 404, [], 5, <<>>},
             {[<<"Location: /x\nStatus: 301\n\n">>], 301, [{<<"location">>, <<"/x">>}], unknown, <<>>},
             {[<<"HTTP/1.1 201 Created\nConnection: close\nSet-Cookie: a\nSet-Cookie: b\n\n">>], 201,
              [{<<"set-cookie">>, <<"a">>}, {<<"set-cookie">>, <<"b">>}], unknown, <<>>},
             {[<<"HTTP/1.1 304 Not Modified\r\nStatus: 200 OK\r\n\r\n">>], 304, [{<<"status">>, <<"200 OK">>}], unknown, <<>>},
             {[<<"HTTP/1.1 200 OK\r\nStatus: ready\r\n\r\n">>], 200, [{<<"status">>, <<"ready">>}], unknown, <<>>}]].

rubbish_test_() ->
    [?_assertMatch({error, _}, feed(Text, new()))
     || Text <- [<<"\n">>, <<"\r\nx">>, <<"hello\n\n">>, <<"X-A: 1\n\n">>, <<"Status: 42\n\n">>, <<"Status: 100 Continue\n\n">>,
                 <<"Status: 200OK\n\n">>, <<"Content-Type: a\nContent-Length: -1\n\n">>, <<"Content-Length: 1\nContent-Length: 2\nLocation: /\n\n">>,
                 <<"Content Type: a\n\n">>, <<"Location: /a", 0, "\n\n">>, <<": a\n\n">>, <<"Content-Type: a\n folded\n\n">>,
                 <<"HTTP/1.1\n\n">>, binary:copy(<<"a">>, ?MAX_BYTES + 1),
                 iolist_to_binary([binary:copy(<<"A: b\n">>, ?MAX_LINES + 1), "\n"])]].

unfinished_test() -> ?assertMatch({more, _}, feed(<<"Content-Type: a\n">>, new())).

-endif.
