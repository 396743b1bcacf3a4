%% SPDX-License-Identifier: Apache-2.0
%% @doc Where and with what a benchmark ran: stored with every result, since a figure without its
%% machine says nothing. Names of hosts and users are left out: results are meant to be published.
-module(beamway_bench_machine).

-export([machine/0, versions/0, commit/0, noise/1]).

%% @doc Processor, memory and kernel.
-spec machine() -> #{atom() => term()}.
machine() ->
    #{processor => beamway_bench_os:cpu_model(),
      processors => beamway_bench_os:processors(),
      memory_mb => beamway_bench_os:memory_bytes() div (1024 * 1024),
      kernel => text(string:trim(read("/proc/sys/kernel/osrelease"))),
      architecture => text(erlang:system_info(system_architecture)),
      system => os_release(),
      load_average => beamway_bench_os:load_average()}.

%% @doc Of Beamway, OTP and the runtime system.
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

%% system_info knows the release only: 25, not 25.2.3.
otp_version() ->
    Release = erlang:system_info(otp_release),
    case file:read_file(filename:join([code:root_dir(), "releases", Release, "OTP_VERSION"])) of
        {ok, Text} -> text(string:trim(Text));
        {error, _} -> text(Release)
    end.

%% @doc The commit that the checkout stands at, with `-dirty' if a tracked file differs from it that could change a figure:
%% results that were stored before, and the pages made of them, cannot. Where the checkout came without its history,
%% who brought it says it in BEAMWAY_BENCH_COMMIT.
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
        Git -> beamway_bench_tools:run(Git, ["-C", beamway_bench_nodes:root() | Words], 10000)
    end.

os_release() ->
    case re:run(read("/etc/os-release"), "^PRETTY_NAME=\"?([^\"\n]*)", [multiline, {capture, all_but_first, binary}]) of
        {match, [Name]} -> Name;
        nomatch -> <<"unknown">>
    end.

%% @doc What makes this machine a bad one to measure on, for people; nothing if all is quiet.
-spec noise(LoadAverage :: float()) -> [unicode:chardata()].
noise(Load) when Load > 0.5 ->
    [io_lib:format("the load average was ~.2f before the run began: other work disturbs the figures", [Load])];
noise(_) -> [].

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

noise_test_() ->
    [?_assertEqual([], noise(0.1)), ?_assertMatch([_], noise(3.0))].
-endif.
