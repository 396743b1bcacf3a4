%% SPDX-License-Identifier: Apache-2.0
%% @doc The options with which stock TCP distribution performs best. `bench tune-tcp' measures the candidates, and the contender `tcp_tuned' has the
%% options of the candidate with the best stored score.
%%
%% A candidate's score is the geometric mean of its ratios to stock, which is also a candidate.
-module(beamway_bench_tuned).

-export([candidates/0, args/0, scores/1]).

-type choice() :: {buffer | sockets | send | zdbbl, default | pos_integer() | delayed}.

%% @doc Returns the name and the flags of each candidate.
-spec candidates() -> [{Name :: atom(), Args :: [string()]}].
candidates() -> [{name(Choices), args(Choices)} || Choices <- choices()].

choices() ->
    [[{buffer, Buffer}, {send, Send}, {sockets, Sockets}, {zdbbl, Zdbbl}]
     || Buffer <- [default, 64, 256, 1024], Send <- [default, delayed], Sockets <- [default, 1024], Zdbbl <- [default, 32768]].

%% The values in the name are in KB.
-spec name([choice()]) -> atom().
name(Choices) ->
    case [lists:concat([What, "_", Value]) || {What, Value} <- Choices, Value =/= default] of
        [] -> tcp;
        Words -> list_to_atom("tcp_" ++ lists:append(lists:join("_", Words)))
    end.

args(Choices) ->
    Socket = lists:append([option(Choice) || Choice <- Choices]),
    lists:append([socket_args(lists:flatten(io_lib:format("~0p", [Socket]))) || Socket =/= []]
                 ++ [["+zdbbl", integer_to_list(Size)] || {zdbbl, Size} <- Choices, is_integer(Size)]).

socket_args(Options) -> ["-kernel", "inet_dist_listen_options", Options, "inet_dist_connect_options", Options].

option({buffer, KB}) when is_integer(KB) -> [{buffer, KB * 1024}];
option({sockets, KB}) when is_integer(KB) -> [{sndbuf, KB * 1024}, {recbuf, KB * 1024}];
option({send, delayed}) -> [{delay_send, true}, {nodelay, true}];
option(_) -> [].

%% @doc Returns the settings that a careful operator without Beamway would use: the best options that `bench tune-tcp' has found or, if it has not been
%% run, OTP's own remedy for many small messages.
-spec args() -> [string()].
args() ->
    case beamway_bench_store:read(beamway_bench_store:file("tune-tcp")) of
        {ok, Stored} -> best(Stored);
        {error, _} -> remedy()
    end.

best(Stored) ->
    [{_, Best} | _] = scores(Stored),
    %% The name comes from a stored result, which may be older than the list of candidates.
    case [Args || {Name, Args} <- candidates(), atom_to_binary(Name) =:= Best] of
        [Args] -> Args;
        [] -> remedy()
    end.

remedy() -> socket_args("[{delay_send,true},{nodelay,true},{buffer,1000000}]").

%% @doc Returns each candidate's score relative to stock, with the best first.
-spec scores(beamway_bench_store:stored()) -> [{float(), Name :: binary()}].
scores(#{<<"metrics">> := Entries}) ->
    Logs = lists:foldl(fun(#{<<"contender">> := Name, <<"ratio">> := Ratio, <<"better">> := Better}, Acc) ->
                               Log = case Better of <<"higher">> -> math:log(Ratio); <<"lower">> -> -math:log(Ratio) end,
                               maps:update_with(Name, fun(Known) -> [Log | Known] end, [Log], Acc)
                       end, #{<<"tcp">> => [0.0]}, Entries),
    lists:reverse(lists:sort([{math:exp(lists:sum(All) / length(All)), Name} || {Name, All} <- maps:to_list(Logs)])).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

names_are_unique_test() ->
    Names = [Name || {Name, _} <- candidates()],
    ?assertEqual(length(Names), length(lists:usort(Names))),
    ?assertEqual({tcp, []}, lists:keyfind(tcp, 1, candidates())).

entry(Name, Ratio, Better) -> #{<<"contender">> => Name, <<"ratio">> => Ratio, <<"better">> => Better}.

best_test_() ->
    Of = fun(Name) -> best(#{<<"metrics">> => [entry(Name, 2.0, <<"higher">>)]}) end,
    [?_assertEqual(["-kernel", "inet_dist_listen_options", "[{buffer,65536},{delay_send,true},{nodelay,true}]",
                    "inet_dist_connect_options", "[{buffer,65536},{delay_send,true},{nodelay,true}]", "+zdbbl", "32768"], Of(<<"tcp_buffer_64_send_delayed_zdbbl_32768">>)),
     ?_assertEqual(remedy(), Of(<<"tcp_nothing">>))].

scores_test_() ->
    Wins = [entry(<<"a">>, 2.0, <<"higher">>), entry(<<"a">>, 0.5, <<"lower">>), entry(<<"b">>, 4.0, <<"higher">>), entry(<<"b">>, 4.0, <<"lower">>)],
    [?_assertMatch([{_, <<"a">>}, _, _], scores(#{<<"metrics">> => Wins})),
     %% If nothing that was tried is better than stock, stock is the best candidate.
     ?_assertMatch([{1.0, <<"tcp">>}, {_, <<"a">>}], scores(#{<<"metrics">> => [entry(<<"a">>, 0.9, <<"higher">>)]}))].
-endif.
