%% SPDX-License-Identifier: Apache-2.0
%% @doc The `bench' command. Each benchmark module answers one question. This module parses the arguments, runs the measurement, prints the result and
%% stores it.
%%
%% `main/1' returns the exit status: 0 on success, 1 if the measurement failed, 2 for a usage error. The result goes to standard output (a table, or
%% one JSON object with `--json'), and everything else to standard error.
-module(beamway_bench).

-export([main/1, module/1, quick_settings/2, measure/3, explain/1]).

-export_type([speed/0]).

-type speed() :: full | quick.

-callback options() -> [getopt:option_spec()].
%% Options that only this benchmark has.
-callback prepare(Given :: proplists:proplist(), speed()) -> {ok, Settings :: map()} | {error, unicode:chardata()}.
%% Validates the options and returns the settings for the run.
-callback groups(Settings :: map()) -> [beamway_bench_run:group()].
-callback metrics(Settings :: map()) -> [beamway_bench_report:metric()].
-callback finish(beamway_bench_report:result(), Settings :: map()) -> ok | {error, unicode:chardata()}.
%% Called with the final result, for example to draw a chart.
-optional_callbacks([options/0, finish/2]).

-define(DONE, 0).
-define(FAILED, 1).
-define(USAGE, 2).

questions() -> of_all() ++ alone().

%% Returns the questions that `all' runs.
of_all() ->
    [{"rpc", beamway_bench_rpc, "100 processes a node in a loop of remote calls"},
     {"pingpong", beamway_bench_pingpong, "round trips of one pair of processes"},
     {"stream", beamway_bench_stream, "one sender, one receiver"},
     {"cost", beamway_bench_cost, "system calls, context switches, copies for each message"},
     {"ring", beamway_bench_ring, "binaries of 10 MB round a ring of six nodes"},
     {"heartbeat", beamway_bench_heartbeat, "a small call beside large messages"},
     {"calls", beamway_bench_calls, "100 callers of one server"},
     {"casts", beamway_bench_casts, "one-way messages by teleport:cast and by plain '!', both over Beamway's carrier"},
     {"references", beamway_bench_references, "large binaries that nodes of one host share, beside copies"}].

%% Returns the other questions, which need root, a device or other programs, or take a long time.
alone() ->
    [{"beside", beamway_bench_beside, "small calls beside large messages by plain '!', on loopback and over a path of 1 Gbit/s (root)"},
     {"hosts", beamway_bench_between_hosts, "calls and messages between hosts: network namespaces, and paths with a rate and a delay (root)"},
     {"far", beamway_bench_far, "replication between sites with compression and without it, over paths of 20 ms (root)"},
     {"apps", beamway_bench_apps, "mnesia, PubSub and presences on the same host and between hosts, and what they notice when all connections are cut (root)"},
     {"paced", beamway_bench_paced, "calls at a pace, from one to 4,000 a second, to one peer and to many"},
     {"peers", beamway_bench_peers, "one node with 100 to 3,000 links: memory, ticks, a broadcast, a third of the peers gone at once"},
     {"recorder", beamway_bench_recorder, "processor time of calls and of nodes at rest, with the flight recorder and without it, and of calls with a trace context"},
     {"session", beamway_bench_session, "calls and streams, with links that outlive their connections and without, and beside another checkout"},
     {"mesh", beamway_bench_mesh, "150 nodes that are all connected with each other, a third of them killed"},
     {"broadcast", beamway_bench_broadcast, "bytes over a slow link, one process to a group on 16 nodes (root)"},
     {"tune-tcp", beamway_bench_tune, "which options make stock TCP distribution best"},
     {"placement", beamway_bench_placement, "choosing nodes, trees of networks, ants with and without placement (root for some parts)"},
     {"pipe", beamway_bench_pipe, "rdpipe's carriers beside iperf3, ssh, cat, mbuffer, nc and socat (root)"},
     {"copy", beamway_bench_copy, "rdcp beside rsync, scp and tar over ssh: files that are new, unchanged or changed, near and far (root)"},
     {"rdma", beamway_bench_rdma, "the bare rdma link beside perftest (needs a device)"},
     {"http", beamway_bench_http, "requests a second of yucan and other servers (root)"},
     {"http-memory", beamway_bench_http_memory, "memory of yucan and other servers, and yucan under twice its load (root)"},
     {"http-2009", beamway_bench_http_2009, "one request on each connection at growing rates, as in 2009 (root)"},
     {"http-private", beamway_bench_http_private, "processor time of the private functions of OTP that yucan calls, beside the documented ones"},
     {"rabbitmq", beamway_bench_rabbitmq, "messages through a cluster of RabbitMQ (root)"}].

%% @doc Runs one benchmark. `all' runs those that need no privileges and take only minutes. `report' runs ten of them in a quarter of an hour and puts
%% the answers on one page.
-spec main(Words :: [string()]) -> 0..2.
main(["all" | Words]) ->
    ended([{Name, main([Name | Words])} || {Name, _, _} <- of_all()]);
main(["report" | Words]) ->
    beamway_bench_page:main(Words);
main([Name | Words]) ->
    case lists:keyfind(Name, 1, questions()) of
        {Name, Module, _} -> parsed(Name, Module, Words);
        false -> beamway_bench_text:note("there is no benchmark '~ts'; there are: ~ts", [Name, names()]), ?USAGE
    end;
main([]) ->
    beamway_bench_text:note("which benchmark? There are: ~ts", [names()]),
    ?USAGE.

%% @doc Returns the module that answers this question.
-spec module(Name :: string()) -> module().
module(Name) -> element(2, lists:keyfind(Name, 1, questions())).

%% By now, the error message of a failed benchmark has scrolled out of sight, so the failed benchmarks are listed again.
ended(Statuses) ->
    Failed = [Name || {Name, Status} <- Statuses, Status =/= ?DONE],
    _ = [beamway_bench_text:note("bench all: failed: ~ts", [lists:join(", ", Failed)]) || Failed =/= []],
    lists:max([Status || {_, Status} <- Statuses]).

names() ->
    lists:join(", ", [Name || {Name, _, _} <- questions()] ++ ["all", "report"]).

common_options() ->
    [{quick, undefined, "quick", undefined, "the same metrics in under 45 s (copy: one minute; placement: four; http: three), with fewer repeats and sizes"},
     {json, undefined, "json", undefined, "print one JSON object instead of tables"},
     {repeats, undefined, "repeats", integer, "interleaved repeats (9; quick: 3; fewer for apps, http, mesh, placement and rabbitmq)"},
     {keep_nodes, undefined, "keep-nodes", undefined, "the same nodes for all repeats, where starting them takes long (quick: always)"},
     {only, undefined, "only", string, "measure only these contenders, such as tcp,beamway"},
     {poll_us, undefined, "poll-us", {integer, 200}, "microseconds that beamway_poll may spin"},
     {save, undefined, "save", string,
      "store the JSON object in this file; a run without other options is stored in bench/results"},
     {force, undefined, "force", undefined, "store it even if other work ran on the machine, and say so wherever it is shown"},
     {help, $h, "help", undefined, "this help"}].

own_options(Module) ->
    _ = code:ensure_loaded(Module),
    case erlang:function_exported(Module, options, 0) of
        true -> Module:options();
        false -> []
    end.

parsed(Name, Module, Words) ->
    Specs = common_options() ++ own_options(Module),
    case beamway_cli_help:parse(Specs, Words) of
        {ok, #{help := true}, []} -> help(Name, Specs), ?DONE;
        {ok, Given, []} -> prepared(Name, Module, Words, maps:to_list(Given));
        {ok, _, [Extra | _]} -> usage("bench ~ts: unexpected word '~ts'; see: beamway bench ~ts --help", [Name, Extra, Name]);
        {error, Why} -> usage("bench ~ts: ~ts; see: beamway bench ~ts --help", [Name, Why, Name])
    end.

help(Name, Specs) ->
    {_, _, What} = lists:keyfind(Name, 1, questions()),
    io:format("~ts~nMeasures: ~ts.~n~ts~n",
              [getopt:usage_cmd_line("beamway bench " ++ Name, Specs), What, getopt:usage_options(Specs)]),
    io:format("contenders: ~ts~nexit status: 0 measured, 1 the measurement failed, 2 usage error~n",
              [lists:join(", ", [atom_to_list(N) || N <- beamway_bench_contender:names()])]).

usage(Format, Args) ->
    beamway_bench_text:note(Format, Args),
    ?USAGE.

prepared(Name, Module, Words, Given) ->
    Speed = case proplists:get_bool(quick, Given) of true -> quick; false -> full end,
    case settings(Module, Given, Speed, default_file(Name, Words)) of
        {ok, Settings} -> measured(Name, Module, Words, Settings);
        {error, Why} -> usage("bench ~ts: ~ts", [Name, Why])
    end.

%% @doc Returns the settings for a benchmark's quick run, whose result is not stored.
-spec quick_settings(module(), Words :: [string()]) -> {ok, Settings :: map()} | {error, unicode:chardata()}.
quick_settings(Module, Words) ->
    {ok, {Given, []}} = getopt:parse(common_options() ++ own_options(Module), Words),
    settings(Module, Given, quick, none).

settings(Module, Given, Speed, File) ->
    case {general(Given, Speed, File), Module:prepare(Given, Speed)} of
        {{ok, General}, {ok, Settings}} -> {ok, maps:merge(General, Settings)};
        {{error, Why}, _} -> {error, Why};
        {_, {error, Why}} -> {error, Why}
    end.

%% A result is stored under the name of the benchmark (or of its part) only if the run had default options. A quick run never replaces a full one.
default_file(Name, Words) ->
    Stored = fun(Ending) -> beamway_bench_store:file(Name ++ Ending) end,
    case lists:usort(Words) -- ["--force", "--json"] of
        [] -> Stored("");
        ["--quick"] -> Stored("-quick");
        ["--part", Part] -> Stored("-" ++ Part);
        _ -> none
    end.

general(Given, Speed, File) ->
    Repeats = proplists:get_value(repeats, Given, case Speed of quick -> 3; full -> 9 end),
    PollUs = proplists:get_value(poll_us, Given),
    case only(proplists:get_value(only, Given, all)) of
        {error, Why} -> {error, Why};
        _ when Repeats < 1; Repeats > 1000 ->
            {error, io_lib:format("--repeats ~b: expected a number from 1 to 1000", [Repeats])};
        _ when PollUs < 1; PollUs > 1000000 ->
            {error, io_lib:format("--poll-us ~b: expected a number from 1 to 1000000", [PollUs])};
        {ok, Only} ->
            {ok, #{speed => Speed, repeats => Repeats, fresh => Speed =:= full andalso not proplists:get_bool(keep_nodes, Given), budget_ms => budget_ms(Speed), only => Only,
                   json => proplists:get_bool(json, Given), save => proplists:get_value(save, Given, {unasked, File}), force => proplists:get_bool(force, Given),
                   contenders => beamway_bench_contender:all(beamway_bench_checkout:root(), PollUs),
                   poll_us => PollUs}}
    end.

%% A quick run must finish within 45 s even on a slow or busy machine, so it makes only as many repeats as fit.
budget_ms(quick) -> 36000;
budget_ms(full) -> infinity.

only(all) -> {ok, all};
only(Text) ->
    Known = [{atom_to_list(Name), Name} || Name <- beamway_bench_contender:programs() ++ beamway_bench_contender:names() ++ beamway_bench_http_servers:names()],
    Words = string:lexemes(Text, ","),
    case [Word || Word <- Words, not lists:keymember(Word, 1, Known)] of
        [] when Words =/= [] -> {ok, [Name || Word <- Words, {W, Name} <- Known, W =:= Word]};
        Unknown -> {error, io_lib:format("--only ~ts: there is no contender '~ts'; there are: ~ts",
                                         [Text, lists:join(",", Unknown), lists:join(",", [W || {W, _} <- Known])])}
    end.

measured(Name, Module, Words, Settings) ->
    Progress = fun(Format, Args) -> io:format(standard_error, "bench ~ts: " ++ Format ++ "~n", [Name | Args]) end,
    case can_be_stored(Settings, Progress) of
        ok -> measured_now(Name, Module, Words, Settings#{progress => Progress});
        {loud, Load} ->
            beamway_bench_text:note("bench ~ts: the load average is ~.2f, so the result would not be stored. Wait for other work to end, or give --force, or no --save", [Name, Load]),
            ?FAILED
    end.

measured_now(Name, Module, Words, Settings) ->
    case taken(Name, Module, Words, Settings) of
        {ok, Result} -> finished(Name, Module, Result, Settings);
        {error, Why} -> beamway_bench_text:note("bench ~ts: ~ts", [Name, Why]), ?FAILED
    end.

taken(Name, Module, Words, Settings) ->
    #{machine := Machine} = Context = beamway_bench_store:context(Name, command(Name, Words)),
    {Groups, LeftOut} = measurable(chosen(Module:groups(Settings), Settings)),
    Warnings = maps:get(warnings, Settings, []) ++ [["no row for ", Text] || Text <- LeftOut],
    _ = [beamway_bench_text:note("bench ~ts: warning: ~ts", [Name, Text]) || Text <- beamway_bench_machine:noise(maps:get(load_average, Machine)) ++ Warnings],
    case beamway_bench_run:in_a_process(fun() -> beamway_bench_run:run(Groups, Settings) end) of
        {ok, Samples} ->
            #{noisy := Noisy} = Ended = beamway_bench_store:ended(Context),
            {ok, beamway_bench_report:result(list_to_binary(Name), Module:metrics(Settings), Samples,
                                             maps:merge(Ended#{warnings => Warnings ++ Noisy, left_out => LeftOut}, maps:get(facts, Settings, #{})))};
        {error, Reason} ->
            {error, explain(Reason)}
    end.

%% @doc Runs the quick form of one benchmark in at most about `budget_ms' milliseconds, and neither prints nor stores the result.
-spec measure(Name :: string(), Words :: [string()], #{repeats := pos_integer(), budget_ms := pos_integer(), progress := fun((io:format(), [term()]) -> ok)}) ->
          {ok, beamway_bench_report:result()} | {error, unicode:chardata()}.
measure(Name, Words, Own) ->
    Module = module(Name),
    case quick_settings(Module, Words) of
        {ok, Settings} -> taken(Name, Module, Words, maps:merge(Settings, Own));
        {error, Why} -> {error, Why}
    end.

%% Only a run with an explicit --save waits for a quiet machine, because published results must come from a quiet machine.
can_be_stored(#{force := true}, _) -> ok;
can_be_stored(#{save := {unasked, _}}, _) -> ok;
can_be_stored(_, Progress) ->
    beamway_bench_machine:await_quiet(fun(Load) -> Progress("waiting for a quiet machine: the load average is ~.2f", [Load]) end).

chosen(Groups, #{only := all}) -> Groups;
chosen(Groups, #{only := Only}) ->
    [Group#{contenders := [Name || Name <- Names, lists:member(Name, Only)]}
     || #{contenders := Names} = Group <- Groups].

%% Leaves out the contenders that this machine cannot run, and says why.
measurable(Groups) ->
    Missing = [{Name, Why} || Name <- lists:usort(lists:append([Names || #{contenders := Names} <- Groups])), [Why | _] <- [beamway_bench_contender:missing(Name)]],
    {[Group#{contenders := [Name || Name <- Names, not lists:keymember(Name, 1, Missing)]} || #{contenders := Names} = Group <- Groups],
     [iolist_to_binary([atom_to_list(Name), ": ", Why]) || {Name, Why} <- Missing]}.

%% Host names are removed from the stored command, because results are meant to be published.
command(Name, Words) ->
    unicode:characters_to_binary(lists:join(" ", ["bin/beamway bench", Name | without_hosts(Words)])).

without_hosts(["--hosts", Hosts | Words]) -> ["--hosts", counted(Hosts) | Words];
without_hosts(["--hosts=" ++ Hosts | Words]) -> ["--hosts=" ++ counted(Hosts) | Words];
without_hosts([Word | Words]) -> [Word | without_hosts(Words)];
without_hosts([]) -> [].

counted(Hosts) -> io_lib:format("<~b hosts>", [length(string:lexemes(Hosts, ","))]).

finished(Name, Module, Result, #{json := Json, save := File} = Settings) ->
    case Json of
        true -> io:format("~ts~n", [jiffy:encode(beamway_bench_report:to_json(Result), [pretty, force_utf8])]);
        false -> io:format("~ts", [beamway_bench_report:to_text(Result)])
    end,
    case {save(File, Result, Settings), finish(Module, Result, Settings)} of
        {ok, ok} -> ?DONE;
        {{error, Why}, _} -> beamway_bench_text:note("bench ~ts: ~ts", [Name, Why]), ?FAILED;
        {_, {error, Why}} -> beamway_bench_text:note("bench ~ts: ~ts", [Name, Why]), ?FAILED
    end.

finish(Module, Result, Settings) ->
    case erlang:function_exported(Module, finish, 2) of
        true -> Module:finish(Result, Settings);
        false -> ok
    end.

%% A read-only checkout is an error only if the user asked for the result to be saved.
save({unasked, none}, _, _) -> ok;
save({unasked, File}, Result, Settings) ->
    case save(File, Result, Settings) of
        ok -> ok;
        {error, Why} -> beamway_bench_text:note("~ts", [Why]), ok
    end;
save(File, Result, #{force := Force}) ->
    case beamway_bench_report:save(File, Result, Force) of
        ok -> beamway_bench_text:note("stored ~ts", [File]), ok;
        {error, Why} -> {error, Why}
    end.

%% @doc Explains a failure and what to do about it.
-spec explain(Reason :: term()) -> unicode:chardata().
explain({error, Reason, _Stack}) when element(1, Reason) =:= not_built ->
    ["Beamway is not built, ", lists:join(" and ", element(2, Reason)), " missing. Run: make build"];
explain({error, {wrong_link, Name, Wanted, Kind, Why}, _}) ->
    io_lib:format("the nodes of '~ts' must use ~ts and use ~ts: ~ts. Run: bin/beamway doctor", [Name, Wanted, Kind, Why]);
explain({error, {links_missing, Name, Expected, Found}, _}) ->
    io_lib:format("the nodes of '~ts' have ~b links and should have ~b. Run: bin/beamway doctor", [Name, Found, Expected]);
explain({error, {connections_missing, Node, Found, Expected}, _}) ->
    io_lib:format("the link to ~ts has ~b connections and should have ~b. Run: bin/beamway doctor", [Node, Found, Expected]);
explain({error, {wrong_compression, Name}, _}) ->
    io_lib:format("the nodes of '~ts' compressed what they must not, or did not compress. Was libzstd-dev installed when Beamway was built?", [Name]);
explain({error, {kernel_does_not, Name, What}, _}) ->
    io_lib:format("the connections of '~ts' do not use ~ts: the kernel has fallen back to plain sockets", [Name, What]);
explain({error, {node_did_not_start, Name, Reason}, _}) ->
    io_lib:format("a node of '~ts' did not start (~tp); what it printed stands above", [Name, Reason]);
explain({error, {node_did_not_end, Name, Ms}, _}) ->
    io_lib:format("a node of '~ts' did not end within ~b ms and was killed", [Name, Ms]);
explain({error, {nodes_did_not_connect, One, Two, Reason}, _}) ->
    io_lib:format("~ts did not connect to ~ts: ~tp", [One, Two, Reason]);
explain({error, {node_ended, Node, Reason}, _}) ->
    io_lib:format("~ts ended in the middle of the measurement: ~tp", [Node, Reason]);
explain({error, {too_slow, Which, {wanted, Rate}, {got, Got}}, _}) ->
    io_lib:format("~0tp: of ~b messages a second only ~.1f came through; run it on a machine that is not busy", [Which, Rate, Got]);
explain({error, {epmd_did_not_start, Why}, _}) -> Why;
explain({error, {no_network, Why}, _}) -> ["the network was not made: ", Why];
explain({_Class, Reason, Stack}) -> io_lib:format("the measurement failed: ~tp~n~tp", [Reason, Stack]);
explain(Reason) -> io_lib:format("the measurement failed: ~tp", [Reason]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

only_test_() ->
    [?_assertEqual({ok, [tcp, beamway]}, only("tcp,beamway")), ?_assertEqual({ok, all}, only(all)), ?_assertEqual({ok, [yucan, cowboy]}, only("yucan,cowboy")),
     ?_assertMatch({error, _}, only("tcp,quic")), ?_assertMatch({error, _}, only(""))].

bad_words_test_() ->
    [?_assertEqual(?USAGE, main(Words))
     || Words <- [[], ["nothing"], ["rpc", "extra"], ["rpc", "--unknown"], ["rpc", "--repeats", "0"],
                  ["rpc", "--repeats", "x"], ["rpc", "--only", "quic"], ["rpc", "--size", "1g"]]].

the_worst_status_counts_test_() ->
    [?_assertEqual(Want, ended(Statuses))
     || {Want, Statuses} <- [{?DONE, [{"a", ?DONE}, {"b", ?DONE}]}, {?FAILED, [{"a", ?DONE}, {"b", ?FAILED}, {"c", ?DONE}]}, {?USAGE, [{"a", ?USAGE}, {"b", ?FAILED}]}]].

default_file_test_() ->
    [?_assertEqual(Want, case default_file("rpc", Words) of none -> none; File -> filename:basename(File) end)
     || {Want, Words} <- [{"rpc.json", []}, {"rpc.json", ["--json"]}, {"rpc-quick.json", ["--json", "--quick"]},
                          {none, ["--only", "tcp"]}, {none, ["--quick", "--repeats", "1"]}]].

a_contender_that_cannot_run_is_left_out_test() ->
    {Groups, LeftOut} = measurable([#{contenders => [tcp, ktls, tcp_mptcp]}, #{contenders => [beamway]}]),
    Here = [Name || Name <- [ktls, tcp_mptcp], beamway_bench_contender:missing(Name) =:= []],
    ?assertEqual([#{contenders => [tcp | Here]}, #{contenders => [beamway]}], Groups),
    ?assertEqual(2 - length(Here), length(LeftOut)).

hosts_are_not_published_test_() ->
    [?_assertEqual(<<"bin/beamway bench rpc --hosts <2 hosts> --quick">>, command("rpc", ["--hosts", "a,b", "--quick"])),
     ?_assertEqual(<<"bin/beamway bench rpc --hosts=<3 hosts>">>, command("rpc", ["--hosts=a,b,c"]))].

explain_names_the_remedy_test_() ->
    [?_assertNotEqual(nomatch, string:find(explain({error, Reason, []}), Remedy))
     || {Reason, Remedy} <- [{{not_built, ["a", "b"]}, "make build"}, {{wrong_link, beamway, shm, tcp, "x"}, "doctor"}]].
-endif.
