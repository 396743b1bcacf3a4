%% SPDX-License-Identifier: Apache-2.0
%% @doc Replaces simple_bridge, which is not packaged. It makes a bridge from a request through the same callbacks that simple_bridge calls,
%% in the same order and with the same conversions. It also has a handler in which each path exercises one feature.
-module(yucan_test_bridge).

-export([make/2, run/1, ws_init/1, ws_message/3, ws_info/3, ws_terminate/3]).

-define(CALLBACKS, yucan_simple_bridge).

%% @doc Does what simple_bridge:make/2 does: it reads everything that a handler may ask for, once.
-spec make(yucan, term()) -> map().
make(yucan, Request) ->
    R = ?CALLBACKS:init(Request),
    map = ?CALLBACKS:native_header_type(),
    Bridge = #{request => R, headers => maps:map(fun(_, V) -> to_binary(V) end, ?CALLBACKS:headers(R)), query_params => pairs(?CALLBACKS:query_params(R)),
               cookies => pairs(?CALLBACKS:cookies(R))},
    case maps:get(<<"content-type">>, maps:get(headers, Bridge), <<>>) of
        <<"multipart/form-data", _/binary>> -> Bridge#{post_params => []};
        _ -> Bridge#{post_params => pairs(?CALLBACKS:post_params(R))}
    end.

pairs(Pairs) -> [{to_binary(Name), to_binary(Value)} || {Name, Value} <- Pairs].

to_binary(Value) when is_atom(Value) -> atom_to_binary(Value);
to_binary(Value) -> unicode:characters_to_binary(Value).

%% @doc Answers a request, as the handler.
-spec run(map()) -> yucan_handler:response().
run(#{request := R} = Bridge) -> answer(?CALLBACKS:path(R), R, Bridge).

answer("/query_params", R, #{query_params := Pairs}) -> shown(Pairs, R);
answer("/post_params", R, #{post_params := Pairs}) -> shown(Pairs, R);
answer("/cookie", R, #{cookies := [{Name, Value}], query_params := [{<<"type">>, Type}]}) ->
    Cookie = case Type of
        <<"list">> -> {cookie, binary_to_list(Name), binary_to_list(Value), undefined, "/", 3600, false, false, lax};
        <<"binary">> -> {cookie, Name, Value, <<"a.org">>, <<"/x">>, 3600, true, true, strict}
    end,
    ?CALLBACKS:build_response(R, {response, 200, [], [Cookie], {data, "set"}});
answer("/status", R, _) -> ?CALLBACKS:build_response(R, {response, 404, [{header, content_type, "text/plain"}, {header, <<"X-Own">>, "1"}], [], {data, ["no", <<"ne">>]}});
answer("/file/" ++ Path, R, _) -> ?CALLBACKS:build_response(R, {response, 200, [{header, "X-Own", "1"}], [], {file, Path}});
answer("/counted", R, #{headers := #{<<"content-length">> := Length}}) -> shown(counted(binary_to_integer(Length), R, 0, 0), R);
answer("/" ++ Name, R, _) -> shown(?CALLBACKS:(list_to_existing_atom(Name))(R), R).

shown(Term, R) -> ?CALLBACKS:build_response(R, {response, 200, [], [], {data, io_lib:format("~0p", [Term])}}).

%% Returns how many bytes arrived, and the peak memory that binaries used in this VM during that time.
counted(0, _, Count, Most) -> {Count, Most};
counted(Left, R, Count, Most) ->
    case ?CALLBACKS:recv_from_socket(min(Left, 100000), 30000, R) of
        <<>> -> {Count, Most};
        Data -> counted(Left - byte_size(Data), R, Count + byte_size(Data), max(Most, erlang:memory(binary)))
    end.

%% @doc Starts a WebSocket, whose state counts messages.
-spec ws_init(map()) -> {ok, pos_integer()}.
ws_init(_) ->
    self() ! hello,
    {ok, 1}.

%% @doc Echoes a message with its number.
-spec ws_message({text | binary, binary()}, map(), integer()) -> term().
ws_message({text, <<"end">>}, _, _) -> {close, 4000};
ws_message({text, Text}, _, Count) -> {reply, {text, [integer_to_binary(Count), " ", Text]}, Count + 1}.

%% @doc Handles Erlang messages.
-spec ws_info(term(), map(), integer()) -> term().
ws_info(hello, _, Count) -> {reply, [{text, <<"hello">>}], Count}.

%% @doc Does nothing.
-spec ws_terminate(term(), map(), integer()) -> ok.
ws_terminate(_, _, _) -> ok.
