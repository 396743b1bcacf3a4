%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench session': what does it cost to let a link outlive its connection? It measures calls by 100 callers, and streams of 64 B, 4 KB and 1 MB
%% messages, over shared memory, TCP and TLS: the rates, and the CPU time of both nodes. Each link is compared with the same link between nodes with
%% `resume_ms' 0, and if `--beside' names another checkout, which must be built, also with the same link in that checkout.
-module(beamway_bench_session).
-behaviour(beamway_bench).

-export([options/0, prepare/2, groups/1, metrics/1]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-define(SIZES, [64, 4096, 1 bsl 20]).

%% @private
-spec options() -> [getopt:option_spec()].
options() ->
    [{beside, undefined, "beside", string, "also compare with the Beamway of this checkout, which must be built"}].

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()} | {error, unicode:chardata()}.
prepare(Given, Speed) ->
    {ok, Times} = beamway_bench_stream:prepare([], Speed),
    All = beamway_bench_contender:all(beamway_bench_checkout:root(), proplists:get_value(poll_us, Given)),
    case proplists:get_value(beside, Given, none) of
        none -> {ok, Times#{others => [no_resume], contenders => with(no_resume, none, All)}};
        Dir ->
            case filelib:is_regular(filename:join(ebin(Dir), "beamway.app")) of
                true -> {ok, Times#{others => [no_resume, other], contenders => with(other, Dir, with(no_resume, none, All))}};
                false -> {error, io_lib:format("--beside ~ts: expected a checkout that is built; ~ts has no beamway.app", [Dir, ebin(Dir)])}
            end
    end.

ebin(Dir) -> filename:join([filename:absname(Dir), "apps", "beamway", "ebin"]).

with(Other, Dir, All) -> lists:foldl(fun(Own, Contenders) -> Contenders#{name(Own, Other) => changed(Other, Dir, name(Own, Other), map_get(Own, All))} end, All, owned()).

changed(no_resume, none, Name, #{env := Env, title := Title} = Own) ->
    Own#{name := Name, title := Title ++ ", resume_ms 0", env := [{"BEAMWAY_RESUME_MS", "0"} | Env]};
changed(other, Dir, Name, #{args := Args, title := Title} = Own) ->
    Here = ebin(beamway_bench_checkout:root()),
    Own#{name := Name, title := Title ++ ", other checkout", args := [case Arg of Here -> ebin(Dir); _ -> Arg end || Arg <- Args]}.

owned() -> [beamway, beamway_tcp, beamway_tls].

-spec name(beamway_bench_contender:name(), no_resume | other) -> beamway_bench_contender:name().
name(beamway, no_resume) -> beamway_no_resume;
name(beamway_tcp, no_resume) -> beamway_tcp_no_resume;
name(beamway_tls, no_resume) -> beamway_tls_no_resume;
name(beamway, other) -> beamway_other;
name(beamway_tcp, other) -> beamway_tcp_other;
name(beamway_tls, other) -> beamway_tls_other.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(#{others := Others} = Settings) ->
    [#{nodes => 2, directions => [forward], contenders => [Name || Own <- owned(), Name <- [Own | [name(Own, Other) || Other <- Others]]],
       measure => fun(Cluster) -> measure(Cluster, Settings) end}].

measure(Cluster, #{warm_ms := WarmMs, window_ms := Ms}) ->
    ok = beamway_bench_window:start(echo, Cluster, WarmMs),
    Calls = beamway_bench_window:of_calls(Cluster, Ms),
    ok = beamway_bench_window:stop(Cluster),
    Streams = [begin
                   _ = beamway_bench_window:of_stream(Cluster, Bytes, WarmMs),
                   {Bytes, beamway_bench_window:of_stream(Cluster, Bytes, Ms)}
               end || Bytes <- ?SIZES],
    maps:from_list([{key(What, Which), Of(Window)}
                    || {What, Window} <- [{calls, Calls} | Streams], {Which, Of} <- [{rate, fun beamway_bench_window:rate/1}, {cpu, fun beamway_bench_window:cost/1}]]).

key(What, Which) -> iolist_to_binary([words(What), case Which of rate -> ""; cpu -> ": processor time of one" end]).

words(calls) -> "calls, 100 callers on each node";
words(Bytes) -> beamway_bench_stream:key(Bytes).

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(#{others := Others}) ->
    [#{name => iolist_to_binary(["session_", Link, "_", short(What), "_", atom_to_list(Which)]), unit => unit(What, Which), better => case Which of rate -> higher; cpu -> lower end,
       key => key(What, Which), contender => Own, baselines => [name(Own, Other) || Other <- Others]}
     || {Own, Link} <- lists:zip(owned(), ["shm", "tcp", "tls"]), What <- [calls | ?SIZES], Which <- [rate, cpu]].

short(calls) -> "calls";
short(Bytes) -> beamway_bench_text:size_text(Bytes).

unit(_, cpu) -> <<"us">>;
unit(calls, rate) -> <<"calls/s">>;
unit(_, rate) -> <<"messages/s">>.

-ifdef(TEST).

prepare_test_() ->
    Own = fun(Words) -> {ok, {Given, []}} = getopt:parse(options(), Words), prepare([{poll_us, 200} | Given], full) end,
    {ok, #{contenders := Contenders} = Settings} = Own(["--beside", beamway_bench_checkout:root()]),
    [?_assertMatch({ok, #{others := [no_resume]}}, Own([])),
     ?_assertMatch({error, _}, Own(["--beside", "/nowhere"])),
     ?_assert(lists:member("/else/apps/beamway/ebin", maps:get(args, changed(other, "/else", beamway_other, maps:get(beamway, Contenders))))),
     ?_assertMatch(#{env := [{"BEAMWAY_RESUME_MS", "0"}, {"BEAMWAY_LINKS", "tcp"} | _]}, maps:get(beamway_tcp_no_resume, Contenders)),
     %% Every contender of the benchmark has nodes to run on.
     ?_assertEqual([], [Name || #{contenders := Names} <- groups(Settings), Name <- Names, not is_map_key(Name, Contenders)]),
     ?_assertEqual(24, length(metrics(Settings)))].

-endif.
