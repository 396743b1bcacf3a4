%% SPDX-License-Identifier: Apache-2.0
%% @doc Describes the machine on which a benchmark ran, and the versions that it used. They are stored with every result, because a number without its
%% machine means nothing. Host names and user names are omitted, because results are meant to be published.
-module(beamway_bench_machine).

-export([machine/0, versions/0, commit/0, noise/1, await_quiet/1, stolen/2, stolen_ms/0]).
-export_type([waiting/0]).

-type waiting() :: fun((LoadAverage :: float()) -> ok).
%% A function that tells the user that a measurement is waiting for other work to end.

-define(QUIET_LOAD, 0.5).
-define(LOOK_MS, 10000).
%% How long a measurement waits for the load average to drop after the previous measurement.
-define(QUIET_MS, 300000).

%% @doc Returns the processor, memory and kernel.
-spec machine() -> #{atom() => term()}.
machine() ->
    #{processor => beamway_bench_os:cpu_model(),
      processors => beamway_bench_os:processors(),
      memory_mb => beamway_bench_os:memory_bytes() div (1024 * 1024),
      kernel => text(string:trim(read("/proc/sys/kernel/osrelease"))),
      architecture => text(erlang:system_info(system_architecture)),
      system => os_release(),
      load_average => beamway_bench_os:load_average()}.

%% @doc Returns the versions of Beamway, OTP and the runtime system.
-spec versions() -> #{atom() => term()}.
versions() ->
    #{beamway => beamway_version(), otp => otp_version(), erts => text(erlang:system_info(version)),
      emulator => text(atom_to_list(erlang:system_info(emu_flavor)))}.

beamway_version() ->
    _ = application:load(beamway),
    case application:get_key(beamway, vsn) of
        {ok, Version} -> text(Version);
        undefined -> <<"unknown">>
    end.

%% system_info returns only the major release: 25, not 25.2.3.
otp_version() ->
    Release = erlang:system_info(otp_release),
    case file:read_file(filename:join([code:root_dir(), "releases", Release, "OTP_VERSION"])) of
        {ok, Text} -> text(string:trim(Text));
        {error, _} -> text(Release)
    end.

%% @doc Returns the checkout's commit, with `-dirty' if a tracked file that could affect a measurement has been modified. Stored results, and the
%% pages generated from them, cannot affect a measurement. If the checkout was copied without its history, BEAMWAY_BENCH_COMMIT must contain the
%% commit.
-spec commit() -> binary().
commit() ->
    case os:getenv("BEAMWAY_BENCH_COMMIT") of
        false -> commit_of_checkout();
        Commit -> text(Commit)
    end.

commit_of_checkout() ->
    case {git(["rev-parse", "--short=12", "HEAD"]), git(["diff", "--name-only", "HEAD", "--", ".", ":!bench/results", ":!bench/stale", ":!*.md", ":!docs"])} of
        {{0, [Line | _]}, {0, []}} -> text(string:trim(Line));
        {{0, [Line | _]}, _} -> text([string:trim(Line), "-dirty"]);
        _ -> <<"unknown">>
    end.

git(Words) ->
    case os:find_executable("git") of
        false -> none;
        Git -> beamway_bench_tools:run(Git, ["-C", beamway_bench_checkout:root() | Words], 10000)
    end.

os_release() ->
    case re:run(read("/etc/os-release"), "^PRETTY_NAME=\"?([^\"\n]*)", [multiline, {capture, all_but_first, binary}]) of
        {match, [Name]} -> Name;
        nomatch -> <<"unknown">>
    end.

%% @doc Returns the reasons, as text, why this machine is currently not suitable for measuring; the list is empty if the machine is quiet.
-spec noise(LoadAverage :: float()) -> [unicode:chardata()].
noise(Load) when Load > ?QUIET_LOAD ->
    [io_lib:format("the load average was ~.2f before the run began: other work disturbs the figures", [float(Load)])];
noise(_) -> [].

%% @doc Waits for at most five minutes until the load average is as low as on a quiet machine. Just
%% after a measurement, the load average still includes that measurement.
-spec await_quiet(waiting()) -> ok | {loud, LoadAverage :: float()}.
await_quiet(Waiting) -> await_quiet(?QUIET_MS, Waiting).

await_quiet(Ms, Waiting) ->
    case beamway_bench_os:load_average() of
        Load when Load =< ?QUIET_LOAD -> ok;
        Load when Ms =< 0 -> {loud, Load};
        Load ->
            ok = Waiting(Load),
            receive after min(?LOOK_MS, Ms) -> await_quiet(Ms - ?LOOK_MS, Waiting) end
    end.

%% @doc Returns the CPU time since boot that the hypervisor gave to other guests while this guest had work to do.
-spec stolen_ms() -> non_neg_integer().
stolen_ms() ->
    case re:run(read("/proc/stat"), "^cpu +(?:\\d+ ){7}(\\d+)", [{capture, all_but_first, list}]) of
        {match, [Ticks]} -> list_to_integer(Ticks) * 10;
        nomatch -> 0
    end.

%% @doc Returns, as text, how much time has been stolen since `StartS' (in seconds since 1970), if it was more than 1 % of one processor's time.
%% `BeforeMs' is the value that stolen_ms/0 returned at that time.
-spec stolen(StartS :: integer(), BeforeMs :: non_neg_integer()) -> [unicode:chardata()].
stolen(StartS, BeforeMs) ->
    {Ms, Stolen} = {1000 * max(1, erlang:system_time(second) - StartS), stolen_ms() - BeforeMs},
    [io_lib:format("the hypervisor gave ~b ms of processor time to others within ~b ms", [Stolen, Ms]) || Stolen * 100 > Ms].

read(File) ->
    case file:read_file(File) of
        {ok, Text} -> Text;
        {error, _} -> <<>>
    end.

text(Chars) -> unicode:characters_to_binary(Chars).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

everything_is_known_test() ->
    #{processors := Count, kernel := <<_, _/binary>>} = machine(),
    ?assert(Count >= 1),
    ?assertMatch(#{otp := <<_, _/binary>>}, versions()),
    ?assertMatch(<<_, _/binary>>, commit()),
    ?assertMatch(<<"{", _/binary>>, iolist_to_binary(jiffy:encode(#{m => machine(), v => versions()}))).

stolen_test_() ->
    Now = erlang:system_time(second),
    [?_assertEqual([], stolen(Now - 1000, stolen_ms())), ?_assertMatch([_], stolen(Now, stolen_ms() - 1000))].

await_quiet_test_() ->
    Loud = beamway_bench_os:load_average() > ?QUIET_LOAD,
    [?_assertEqual(Loud, await_quiet(0, fun(_) -> ok end) =/= ok)].

noise_test_() ->
    [?_assertEqual([], noise(0.1)), ?_assertMatch([_], noise(3.0))].
-endif.
