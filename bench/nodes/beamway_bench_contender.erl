%% SPDX-License-Identifier: Apache-2.0
%% @doc The contenders that are compared. Each consists of a name, the flags and environment that make a node use its carrier, and the kind of link
%% that must then carry the calls. The functions are pure, except that the best options for stock TCP are read from a stored result, and that and_rdma/1
%% and missing/1 look at the machine.
%%
%% All contenders also get the flags from {@link common_args/1}, so they differ only in the carrier.
-module(beamway_bench_contender).

-export([all/2, small/1, way/1, names/0, programs/0, and_rdma/1, missing/1, common_args/1, clean_env/0]).

-export_type([name/0, t/0]).

-type name() :: tcp | tcp_tuned | tcp_spin | tcp_mptcp | unix | beamway | beamway_tcp | beamway_far | beamway_far_10 | beamway_inet | beamway_rdma
              | tls | ktls | beamway_tls | beamway_poll | beamway_poll_off | teleport | direct | direct_tcp | direct_stock | gen_rpc
              %% The same nodes as those of another contender, but without the feature that is measured; see beamway_bench_recorder.
              | beamway_unrecorded | beamway_tcp_unrecorded | teleport_untraced
              %% The contenders of beamway_bench_session.
              | beamway_no_resume | beamway_tcp_no_resume | beamway_tls_no_resume | beamway_other | beamway_tcp_other | beamway_tls_other
              | openmpi | eventfd | rdma_link | ib_write | ib_send
    | beamway_bench_http_servers:name().
-type t() :: #{name := name(),
               %% a human-readable description
               title := string(),
               args := [string()],
               env := [{string(), string()}],
               %% the kind that beamway:links/0 must report; `stock' is one of OTP's own carriers
               link := stock | shm | rdma | tcp | inet | tls,
               %% what the kernel must do for the sockets of a stock carrier
               kernel => mptcp | ktls,
               %% a command that executes the rest of its arguments
               wrapper => [string()]}.

%% @doc Returns the contenders; `Root' is the directory of the checkout.
-spec all(Root :: file:filename(), PollUs :: pos_integer()) -> #{name() => t()}.
all(Root, PollUs) ->
    maps:from_list([{Name, Contender} || #{name := Name} = Contender <- list(Root, PollUs)]).

list(Root, PollUs) ->
    Carrier = ["-proto_dist", "beamway", "-pa", filename:join([Root, "apps", "beamway", "ebin"])],
    %% Nearly all benchmarks send repetitive data, which compression would reduce to almost nothing on a long path.
    Beamway = #{name => beamway, title => "Beamway", args => Carrier, env => [{"BEAMWAY_COMPRESS", "never"}], link => shm},
    Stock = #{name => tcp, title => "stock TCP", args => [], env => [], link => stock},
    [Stock,
     Stock#{name := tcp_tuned, title := "stock TCP, tuned", args := beamway_bench_tuned:args()},
     Stock#{name := tcp_spin, title := "stock TCP, spinning", args := spin_args()},
     Stock#{name := tcp_mptcp, title := "stock TCP over MPTCP", kernel => mptcp, wrapper => ["mptcpize", "run"]},
     Stock#{name := unix, title := "stock over a unix socket", args := ["-proto_dist", "beamway_bench_unix", "-epmd_module", "beamway_bench_unix"]},
     Beamway,
     variant(Beamway, beamway_tcp, "Beamway on TCP", [{"BEAMWAY_LINKS", "tcp"}], tcp),
     Beamway#{name := beamway_far, title := "Beamway on TCP, compression as installed", env := [{"BEAMWAY_LINKS", "tcp"}], link := tcp},
     Beamway#{name := beamway_far_10, title := "Beamway on TCP, compression with twice the processor time", env := [{"BEAMWAY_LINKS", "tcp"}, {"BEAMWAY_COMPRESS_PERCENT", "10"}],
              link := tcp},
     variant(Beamway, beamway_inet, "Beamway on OTP's port", [{"BEAMWAY_LINKS", "inet"}], inet),
     Stock#{name := tls, title := "stock TLS", args := ["-proto_dist", "inet_tls" | beamway_bench_tls:args(Root)]},
     Stock#{name := ktls, title := "stock TLS in the kernel", args := ["-proto_dist", "inet_tls" | beamway_bench_tls:kernel_args(Root)], kernel => ktls},
     variant(Beamway#{args := ["-proto_dist", "beamway_tls" | lists:nthtail(2, Carrier)] ++ beamway_bench_tls:args(Root)},
             beamway_tls, "Beamway on TLS", [{"BEAMWAY_LINKS", "tcp"}], tls),
     variant(Beamway, beamway_rdma, "Beamway, rdma", [{"BEAMWAY_LINKS", "rdma,tcp"}], rdma),
     variant(Beamway, beamway_poll, "Beamway, polling",
             [{"BEAMWAY_POLL_US", integer_to_list(PollUs)}], shm),
     variant(Beamway, beamway_poll_off, "Beamway, not polling", [{"BEAMWAY_POLL_US", "0"}], shm),
     Beamway#{name := teleport, title := "teleport over Beamway", args := Carrier ++ ["-pa", filename:join([Root, "apps", "teleport", "ebin"])]},
     direct(Beamway, direct, "teleport's calls over Beamway", Root),
     direct(variant(Beamway, beamway_tcp, "", [{"BEAMWAY_LINKS", "tcp"}], tcp), direct_tcp, "teleport's calls over Beamway on TCP", Root),
     direct(Stock, direct_stock, "teleport beside stock TCP", Root),
     and_ebin(direct(Beamway, gen_rpc, "gen_rpc's calls", Root), gen_rpc, Root)].

direct(#{args := Args} = Contender, Name, Title, Root) ->
    Ebins = [filename:join([Root, "apps", App, "ebin"]) || App <- ["beamway", "teleport"]],
    Contender#{name := Name, title := Title, args := Args ++ ["-pa" | Ebins]}.

and_ebin(#{args := Args} = Contender, App, Root) -> Contender#{args := Args ++ ["-pa", filename:join([Root, "apps", App, "ebin"])]}.

%% @doc Returns the contender with as few threads as possible, because many nodes on the same machine would otherwise have hundreds of schedulers.
-spec small(t()) -> t().
small(#{args := Args} = Contender) ->
    Contender#{args := ["+S", "1:1", "+SDcpu", "1:1", "+SDio", "1", "+A", "1", "+sbwt", "none", "+sbwtdcpu", "none", "+sbwtdio", "none" | Args]}.

%% @doc Returns how the programs inside the nodes send messages; see beamway_bench_messages.
-spec way(name()) -> beamway_bench_messages:way().
way(Name) when Name =:= teleport; Name =:= direct; Name =:= direct_tcp; Name =:= direct_stock; Name =:= gen_rpc -> teleport;
way(_) -> stock.

variant(#{env := Common} = Contender, Name, Title, Env, Link) ->
    Contender#{name := Name, title := Title, env := Env ++ Common, link := Link}.

%% Returns the flags that make schedulers poll without Beamway: they busy-wait for as long as OTP allows before they sleep.
spin_args() -> lists:append([[Flag, "very_long"] || Flag <- ["+sbwt", "+sbwtdcpu", "+sbwtdio"]]).

%% @doc Returns the names that a user may specify.
-spec names() -> [name()].
names() ->
    [tcp, tcp_tuned, tcp_spin, tcp_mptcp, unix, tls, ktls, beamway, beamway_tcp, beamway_far, beamway_far_10, beamway_inet, beamway_tls, beamway_rdma, beamway_poll, beamway_poll_off,
     teleport, direct, direct_tcp, direct_stock, gen_rpc].

%% @doc Returns the contenders that are programs rather than nodes.
-spec programs() -> [name()].
programs() ->
    [openmpi, eventfd, rdma_link, ib_write, ib_send, rdpipe, rdpipe_unchecked, rdpipe_tls, rdpipe_commands, rdpipe_one, iperf3, iperf3_8, ssh, mbuffer, nc, socat, cat,
     rdcp_tls, rdcp, rsync, scp, tar_ssh].

%% @doc Adds rdma to these contenders if this host has an RDMA device.
-spec and_rdma([name()]) -> [name()].
and_rdma(Names) ->
    Names ++ [beamway_rdma || beamway_rdma_devices:usable(beamway_rdma_devices:all()) =/= []].

%% @doc Returns why this contender cannot be measured here, as text; the list is empty if it can be.
-spec missing(name()) -> [string()].
missing(tcp_mptcp) -> ["the kernel has no MPTCP" || not is_in_file("^1", "/proc/sys/net/mptcp/enabled")] ++ ["mptcpize is not installed" || os:find_executable("mptcpize") =:= false];
missing(ktls) ->
    Release = erlang:system_info(otp_release),
    ["OTP " ++ Release ++ " has no kTLS, which came with OTP 26" || list_to_integer(Release) < 26]
        ++ ["the kernel has no TLS, or its module is not loaded (modprobe tls)" || not is_in_file("\\btls\\b", "/proc/sys/net/ipv4/tcp_available_ulp")];
missing(_) -> [].

is_in_file(Pattern, File) ->
    case file:read_file(File) of
        {ok, Text} -> re:run(Text, Pattern, [{capture, none}]) =:= match;
        {error, _} -> false
    end.

%% @doc Returns the flags that every node gets, whatever its carrier. The connection setup time is long, because connecting takes longer on a busy or
%% emulated machine.
-spec common_args(Root :: file:filename()) -> [string()].
common_args(Root) ->
    ["-pa", filename:join([Root, "bench", "ebin"]),
     "-kernel", "logger_level", "error",
     "-kernel", "net_setuptime", "60"].

%% @doc Unsets variables from the caller's shell that could make the contenders differ without anyone noticing.
-spec clean_env() -> [{string(), false}].
clean_env() ->
    Erlang = ["ERL_FLAGS", "ERL_AFLAGS", "ERL_ZFLAGS", "ERL_LIBS", "ERL_EPMD_ADDRESS",
              "ERL_EPMD_RELAXED_COMMAND_CHECK"],
    Ours = [Name || Name <- [hd(string:split(Var, "=")) || Var <- os:getenv()],
                    lists:prefix("BEAMWAY_", Name)],
    [{Name, false} || Name <- Erlang ++ Ours].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

contenders_differ_test() ->
    All = all("/root", 50),
    ?assertEqual(lists:sort(names()), lists:sort(maps:keys(All))),
    %% The best options for stock TCP may turn out to be none at all.
    Ways = [{Args, Env, maps:get(wrapper, Contender, [])} || #{args := Args, env := Env} = Contender <- maps:values(maps:remove(tcp_tuned, All))],
    ?assertEqual(length(Ways), length(lists:usort(Ways))).

stock_has_nothing_of_ours_test_() ->
    All = all("/root", 50),
    [?_assertMatch(#{args := [], env := [], link := stock}, maps:get(tcp, All)),
     ?_assertNot(lists:member("-proto_dist", maps:get(args, maps:get(tcp_tuned, All))))].

%% Whatever is installed on this machine, missing/1 agrees with what this test itself finds there.
what_is_missing_is_said_test_() ->
    [?_assertEqual([], missing(tcp)),
     ?_assertEqual(os:find_executable("mptcpize") =/= false andalso file:read_file("/proc/sys/net/mptcp/enabled") =:= {ok, <<"1\n">>}, missing(tcp_mptcp) =:= []),
     ?_assert(missing(ktls) =/= [] orelse list_to_integer(erlang:system_info(otp_release)) >= 26)].

poll_us_is_passed_on_test() ->
    ?assertMatch(#{env := [{"BEAMWAY_POLL_US", "77"}, {"BEAMWAY_COMPRESS", "never"}]}, maps:get(beamway_poll, all("/r", 77))).

own_variables_are_cleared_test() ->
    true = os:putenv("BEAMWAY_BENCH_TEST", "x"),
    ?assert(lists:member({"BEAMWAY_BENCH_TEST", false}, clean_env())),
    true = os:unsetenv("BEAMWAY_BENCH_TEST").
-endif.
