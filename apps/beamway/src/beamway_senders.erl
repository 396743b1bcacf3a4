%% SPDX-License-Identifier: Apache-2.0
%% @doc Which processes fill a link: two looks at the counters of its port, and who these processes are.
-module(beamway_senders).

-export([within/2, described/1]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

%% @doc See {@link beamway:senders/2}; a port that has ended gives `badarg'.
-spec within(port(), Ms :: non_neg_integer()) -> [beamway:sender()].
within(Port, 0) ->
    sorted([sender(Pid, 0, Waiting) || {Pid, _, _, Waiting} <- beamway_port:senders(Port), Waiting > 0]);
within(Port, Ms) ->
    Before = beamway_port:senders(Port),
    Start = erlang:monotonic_time(microsecond),
    receive after Ms -> ok end,
    After = beamway_port:senders(Port),
    Us = max(1, erlang:monotonic_time(microsecond) - Start),
    sorted([sender(Pid, Sent * 1000000 div Us, Waiting) || {Pid, Sent, Waiting} <- grown(Before, After), Sent + Waiting > 0]).

%% A process that had no counter before has sent at least what its counter grew by since it took it over.
grown(Before, After) ->
    [{Pid, Most - case lists:keyfind(Pid, 1, Before) of
                      {_, Then, SameCounter, _} when SameCounter =:= OfOther -> Then;
                      _ -> OfOther
                  end, Waiting}
     || {Pid, Most, OfOther, Waiting} <- After].

sorted(Senders) ->
    lists:sort(fun(#{waiting := A, bytes_per_s := X}, #{waiting := B, bytes_per_s := Y}) -> {A, X} >= {B, Y} end, Senders).

sender(Pid, PerSecond, Waiting) ->
    maps:merge(#{pid => Pid, class => beamway_classes:of_process(Pid), bytes_per_s => PerSecond, waiting => Waiting}, who(Pid)).

who(Pid) ->
    case process_info(Pid, [registered_name, dictionary, initial_call]) of
        undefined -> #{};
        [{_, Name}, {_, Dictionary}, {_, Call}] ->
            maps:merge(maps:from_list([{name, Name} || is_atom(Name)]), #{initial_call => initial_call(proplists:get_value('$initial_call', Dictionary), Call)})
    end.

%% A process may put anything there.
initial_call({Module, Function, Arity} = Call, _) when is_atom(Module), is_atom(Function), is_integer(Arity) -> Call;
initial_call(_, Call) -> Call.

%% @doc A process for people: its pid, its name if it has one, the function that it began with.
-spec described(pid()) -> binary().
described(Pid) ->
    iolist_to_binary([pid_to_list(Pid) | case who(Pid) of
                                             #{initial_call := {Module, Function, Arity}} = Who ->
                                                 [[[", ", atom_to_binary(Name)] || #{name := Name} <- [Who]], io_lib:format(", ~ts:~ts/~b", [Module, Function, Arity])];
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
    _ = put('$initial_call', odd),
    ?assertMatch(<<"<", _/binary>>, described(self())),
    _ = erase('$initial_call').
-endif.
