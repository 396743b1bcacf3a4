%% SPDX-License-Identifier: Apache-2.0
%% Tests which contexts are valid, and which tokens are teleport's own.
-module(teleport_trace_tests).

-include_lib("eunit/include/eunit.hrl").

example() -> <<"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01">>.

changed(At, Byte) ->
    <<Before:At/binary, _, After/binary>> = example(),
    <<Before/binary, Byte, After/binary>>.

bad() ->
    [changed(At, Byte) || At <- lists:seq(0, 54), Byte <- [$g, $F, $/, 0, 255, $:]]
        ++ [<<>>, "00-0", binary:part(example(), 0, 54), <<(example())/binary, $0>>, [example()], {example()},
            <<"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01">>, <<"00-00000000000000000000000000000000-b7ad6b7169203331-01">>,
            <<"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01">>, binary:copy(<<"a">>, 100)].

after_all(Test) -> {setup, fun() -> ok end, fun(_) -> seq_trace:set_token([]) end, Test}.

valid_test_() ->
    after_all([?_assertEqual({ok, {ok, Good}}, {teleport_trace:set(Good), teleport_trace:current()}) || Good <- [example(), changed(1, $1), changed(54, $3)]]).

%% Invalid contexts are rejected both when a process sets them and when a misbehaving peer sends them.
bad_test_() ->
    after_all([[?_assertError({bad_traceparent, Bad, _}, teleport_trace:set(Bad)) || Bad <- bad()],
               [?_assertEqual(none, begin _ = seq_trace:set_token(label, {teleport_trace, Bad}), teleport_trace:current() end) || Bad <- bad()]]).

not_sampled_test() ->
    ok = teleport_trace:set(example()),
    ?assertEqual(ok, teleport_trace:set(changed(54, $2))),
    ?assertEqual([], seq_trace:get_token()),
    ?assertEqual(ok, teleport_trace:set(none)).

%% A token with any other label was not set by teleport.
tokens_of_others_test_() ->
    [?_test(begin
                _ = seq_trace:set_token(label, Label),
                Token = seq_trace:get_token(),
                ?assertEqual({none, {error, other_token}, {error, other_token}, Token},
                             {teleport_trace:current(), teleport_trace:set(example()), teleport_trace:set(none), seq_trace:get_token()}),
                seq_trace:set_token([])
            end) || Label <- [17, example(), {example()}, {}, [teleport_trace]]].
