%% SPDX-License-Identifier: Apache-2.0
%% @doc Determines which processes fill a link, from two readings of its port's counters, and describes these processes.
-module(beamway_senders).

-export([within/2, since/3, described/1]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-define(MOST, 12).
-define(LABEL_CHARACTERS, 60).

%% @doc See {@link beamway:senders/2}. A port that has been closed raises `badarg', here and below.
-spec within(port(), Ms :: non_neg_integer()) -> [beamway:sender()].
within(Port, Ms) ->
    Before = beamway_port:traffic(Port),
    Start = erlang:monotonic_time(millisecond),
    receive after Ms -> ok end,
    since(Port, Before, erlang:monotonic_time(millisecond) - Start).

%% @doc Like {@link within/2}, but covers the time since an earlier reading of the port's counters, which was this long ago.
-spec since(port(), Traffic :: binary(), Ms :: non_neg_integer()) -> [beamway:sender()].
since(Port, Traffic, Ms) ->
    Now = beamway_port:senders(beamway_port:traffic(Port)),
    Grown = [{{Waiting, Sent}, Pid} || {Pid, Sent, Waiting} <- grown(beamway_port:senders(Traffic), Now), Sent + Waiting > 0],
    [sender(Pid, Sent, Ms, Waiting) || {{Waiting, Sent}, Pid} <- lists:sublist(lists:reverse(lists:sort(Grown)), ?MOST)].

%% A process for which there is no earlier counter value has sent at least the counter's increase since the process took it over.
grown(Before, After) ->
    [{Pid, Most - case lists:keyfind(Pid, 1, Before) of
                      {_, Then, SameCounter, _} when SameCounter =:= OfOther -> Then;
                      _ -> OfOther
                  end, Waiting}
     || {Pid, Most, OfOther, Waiting} <- After].

sender(Pid, Sent, Ms, Waiting) ->
    maps:merge(#{pid => Pid, class => beamway_classes:of_process(Pid), sent => Sent, bytes_per_s => Sent * 1000 div max(1, Ms), waiting => Waiting}, who(Pid)).

%% A label is any term stored with proc_lib:set_label/1 of OTP 27.
who(Pid) ->
    case process_info(Pid, [registered_name, dictionary, initial_call]) of
        undefined -> #{};
        [{_, Name}, {_, Dictionary}, {_, Call}] ->
            maps:from_list([{name, Name} || is_atom(Name)] ++ [{label, label(Label)} || {'$process_label', Label} <- Dictionary]
                           ++ [{initial_call, initial_call(proplists:get_value('$initial_call', Dictionary), Call)}])
    end.

label(Label) ->
    Text = case io_lib:printable_unicode_list(Label) orelse is_binary(Label) andalso unicode:characters_to_list(Label) of
               true -> Label;
               Characters when is_list(Characters) -> Characters;
               _ -> io_lib:format("~0tP", [Label, 12])
           end,
    unicode:characters_to_binary([case C < 32 orelse C >= 127 andalso C < 160 of true -> $?; false -> C end || C <- string:slice(lists:flatten(Text), 0, ?LABEL_CHARACTERS)]).

%% A process may store any term under this key of its dictionary.
initial_call({Module, Function, Arity} = Call, _) when is_atom(Module), is_atom(Function), is_integer(Arity) -> Call;
initial_call(_, Call) -> Call.

%% @doc Describes a process: its pid, its name and label if it has them, and the function with which it started.
-spec described(pid()) -> binary().
described(Pid) ->
    unicode:characters_to_binary([pid_to_list(Pid) | case who(Pid) of
                                             #{initial_call := {Module, Function, Arity}} = Who ->
                                                 [[[", ", atom_to_binary(Name)] || #{name := Name} <- [Who]], [[", ", Label] || #{label := Label} <- [Who]],
                                                  io_lib:format(", ~ts:~ts/~b", [Module, Function, Arity])];
                                             #{} -> ", which has ended"
                                         end]).

-ifdef(TEST).

grown_test() ->
    [A, B, C] = [list_to_pid(Text) || Text <- ["<0.901.0>", "<0.902.0>", "<0.903.0>"]],
    ?assertEqual([{A, 50, 1}, {B, 7, 0}, {C, 3, 0}],
                 grown([{A, 100, 20, 0}, {C, 40, 0, 0}], [{A, 150, 20, 1}, {B, 107, 100, 0}, {C, 53, 50, 0}])).

described_test() ->
    Pid = spawn(fun() -> ok end),
    Monitor = monitor(process, Pid),
    receive {'DOWN', Monitor, process, Pid, _} -> ok end,
    ?assertEqual(iolist_to_binary([pid_to_list(Pid), ", which has ended"]), described(Pid)),
    ?assertMatch({_, _}, binary:match(described(whereis(init)), <<", init, ">>)),
    _ = put('$initial_call', {'Elixir.Ωmega', init, 1}),
    ?assertMatch({_, _}, binary:match(described(self()), <<", Elixir.Ωmega:init/1"/utf8>>)),
    _ = put('$initial_call', odd),
    ?assertMatch(<<"<", _/binary>>, described(self())),
    _ = erase('$initial_call').

label_test_() ->
    [?_assertEqual(Text, label(Label))
     || {Label, Text} <- [{"a worker", <<"a worker">>}, {<<"für b"/utf8>>, <<"für b"/utf8>>}, {worker, <<"worker">>}, {{worker, 7}, <<"{worker,7}">>}, {<<255>>, <<"<<\"ÿ\">>"/utf8>>},
                          {<<"a\nb\e", 16#9B/utf8>>, <<"a?b??">>}, {lists:duplicate(100, $x), binary:copy(<<"x">>, 60)}, {[1 | 2], <<"[1|2]">>}]].
-endif.
