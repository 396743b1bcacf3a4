%% SPDX-License-Identifier: Apache-2.0
%% @doc Measures the values for the demo's line about rdpipe: runs the first example with the demo's own sshd, and measures the rate between two
%% commands, compared with ssh. `bench pipe' makes the full measurement.
-module(beamway_demo_pipe).

-export([run/0, text/1]).

-type outcome() :: #{said => string(), rdpipe => float(), ssh => float()}.

-define(S, 15).

%% @doc Measures for less than 10 s. Returns an empty map if rdpipe has not been built or the machine is too busy.
-spec run() -> outcome().
run() ->
    Program = filename:join([beamway_bench_checkout:root(), "bench", "demo", "pipe_demo"]),
    %% When the program receives TERM, it also stops its sshd.
    case beamway_bench_tools:run(os:find_executable("timeout"), ["--kill-after=5", integer_to_list(?S), Program], (?S + 10) * 1000) of
        {0, Lines} -> maps:from_list([figure(Word) || Line <- lists:sublist(lists:reverse(Lines), 1), Word <- string:lexemes(Line, " \n")]);
        {_, _} -> #{}
    end.

figure(Word) ->
    case string:split(Word, "=") of
        ["said", Text] -> {said, Text};
        ["rdpipe", Rate] -> {rdpipe, float(list_to_integer(Rate))};
        ["ssh", Rate] -> {ssh, float(list_to_integer(Rate))}
    end.

%% @doc Returns the line that the demo prints.
-spec text(outcome()) -> unicode:chardata().
text(#{said := Said, rdpipe := Rate} = Outcome) ->
    Beside = case Outcome of
        #{ssh := Ssh} -> io_lib:format("; ssh ~.2f", [Ssh / 1.0e9]);
        #{} -> " (no sshd here to stand beside)"
    end,
    io_lib:format("Pipe: echo hello | rdpipe host1:'tr [:lower:] [:upper:]' host2:rev says ~ts; commands of two hosts are joined at ~.2f GB/s over TCP~ts.~n",
                  [Said, Rate / 1.0e9, Beside]);
text(#{}) -> "Pipe: no figure; rdpipe is not built here (libssl-dev), or this machine is too busy.\n".

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

text_test_() ->
    Shown = fun(Outcome) -> unicode:characters_to_list(text(Outcome)) end,
    [?_assertNotEqual(nomatch, string:find(Shown(#{said => "OLLEH", rdpipe => 1.5e9, ssh => 3.0e8}), "says OLLEH; commands of two hosts are joined at 1.50 GB/s over TCP; ssh 0.30.")),
     ?_assertNotEqual(nomatch, string:find(Shown(#{said => "OLLEH", rdpipe => 1.5e9}), "no sshd")),
     ?_assertNotEqual(nomatch, string:find(Shown(#{}), "not built")),
     ?_assertEqual([{said, "OLLEH"}, {ssh, 7.0}], [figure("said=OLLEH"), figure("ssh=7")])].
-endif.
