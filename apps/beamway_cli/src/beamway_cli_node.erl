%% SPDX-License-Identifier: Apache-2.0
%% @doc `beamway node': turns this VM into a node of a cluster, and in a Slurm job into a node of the job.
%%
%% The launcher has started the VM with the carrier but without a node name, so that the cookie can be read from a file and never appears on a
%% command line. All nodes connect to their peers and start placement where it is installed. The first node measures and publishes the tree, and the
%% others wait for it. With `--run' the first node calls a function, and then sends its exit status to the others.
-module(beamway_cli_node).

-export([run/1, finish/1, strangers/1, ending/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-define(DONE, 0).
-define(FAILED, 1).
-define(USAGE, 2).
-define(POLL_MS, 50).
-define(CALL_MS, 5000).
-define(MEASURE_MS, 600000).
%% A newly started epmd may take this long to answer.
-define(EPMD_MS, 15000).
%% Nodes that have all connected to the first one may take this long to connect to each other again.
-define(MESH_MS, 15000).

-type plan() :: #{name := node(), peers := [node()], step := [node()], index := non_neg_integer(), slurm := boolean()}.
%% `step' contains the peers that share this node's tree and, in a Slurm job, exit together with it. In a job, these are the nodes of the step,
%% without those added by `--connect'.

%% @doc Runs until the node is to stop, and returns its exit status.
-spec run(map()) -> 0..255.
run(Options) ->
    true = register(?MODULE, self()),
    try
        Plan = plan(Options, fun os:getenv/1),
        Modes = modes(Options, Plan),
        Run = function(Options),
        ok = become_node(Plan, Options),
        ok = applications(Options),
        ok = connect(Plan, Options),
        Prepared = prepare(Plan, Modes),
        ok = all_know_each_other(Plan),
        ok = ready(Plan, Prepared, Options),
        ended(Plan, Run)
    catch
        throw:{node, usage, Text} -> complain("~ts; see: beamway node --help", [Text]), ?USAGE;
        throw:{node, failed, Text} -> complain("~ts", [Text]), ?FAILED;
        throw:{node, finished, Status} -> Status
    end.

-spec failed(io:format(), [term()]) -> no_return().
failed(Format, Arguments) -> throw({node, failed, io_lib:format(Format, Arguments)}).

-spec usage(io:format(), [term()]) -> no_return().
usage(Format, Arguments) -> throw({node, usage, io_lib:format(Format, Arguments)}).

complain(Format, Arguments) -> io:format(standard_error, "beamway: node: " ++ Format ++ "~n", Arguments).

%% ---- our name and peers ----

-spec plan(map(), fun((string()) -> string() | false)) -> plan().
plan(Options, Getenv) ->
    case {Options, in_slurm(Options, Getenv)} of
        {#{name := _}, {ok, _}} -> usage("--name: in a Slurm job the names come from Slurm; give --no-slurm, too, to have your own", []);
        {_, {ok, #{name := Name, nodes := Nodes, index := Index}}} ->
            Step = Nodes -- [Name],
            #{name => Name, peers => lists:usort(Step ++ wanted(Options)) -- [Name], step => Step, index => Index, slurm => true};
        {_, {error, Error}} -> failed("~ts", [placement_slurm_job:format_error(Error)]);
        {#{name := Name}, none} ->
            Peers = wanted(Options),
            #{name => name(Name), peers => Peers, step => Peers, index => 0, slurm => false};
        {_, none} -> usage("which name? Expected --name, or a job step of Slurm (srun beamway node)", [])
    end.

in_slurm(#{no_slurm := true}, _) -> none;
in_slurm(_, Getenv) ->
    case Getenv("SLURM_STEP_ID") of
        false -> none;
        _ ->
            case code:ensure_loaded(placement_slurm_job) of
                {module, _} -> placement_slurm_job:from_env(Getenv);
                {error, _} -> failed("a Slurm job needs the application placement, which is not on the code path", [])
            end
    end.

name(Text) ->
    case re:run(Text, "^[A-Za-z0-9_-]+(@[A-Za-z0-9._:-]+)?$") of
        {match, _} -> list_to_atom(Text);
        nomatch -> usage("--name '~ts': expected name or name@host", [Text])
    end.

wanted(#{connect := Text}) ->
    Words = string:lexemes(Text, ","),
    _ = [usage("--connect '~ts': expected name@host with commas", [Text])
         || Words =:= [] orelse lists:any(fun(Word) -> re:run(Word, "^[^@]+@[^@]+$") =:= nomatch end, Words)],
    [list_to_atom(Word) || Word <- Words];
wanted(_) -> [].

modes(#{measure := "auto"}, #{slurm := Slurm}) -> [quiet || Slurm];
modes(#{measure := "none"}, _) -> [];
modes(#{measure := "quiet"}, _) -> [quiet];
modes(#{measure := "loaded"}, _) -> [loaded];
modes(#{measure := "both"}, _) -> [quiet, loaded];
modes(#{measure := Other}, _) -> usage("--measure '~ts': expected auto, quiet, loaded, both or none", [Other]).

function(#{run := Text}) ->
    case [list_to_atom(Word) || Word <- string:split(Text, ":"), Word =/= ""] of
        [Module] -> loaded(Module, main);
        [Module, Function] -> loaded(Module, Function);
        _ -> usage("--run '~ts': expected MODULE or MODULE:FUNCTION", [Text])
    end;
function(_) -> none.

loaded(Module, Function) ->
    case code:ensure_loaded(Module) of
        {module, Module} ->
            erlang:function_exported(Module, Function, 0) orelse failed("--run: module ~ts has no function ~ts/0", [Module, Function]),
            {Module, Function};
        {error, Reason} -> failed("--run: module ~ts cannot be loaded (~tp); its folder goes behind --, as: -- -pa FOLDER", [Module, Reason])
    end.

%% ---- the node ----

become_node(#{name := Name}, Options) ->
    Cookie = cookie(Options),
    Host = host(Name),
    Domain = case beamway_cli_ask:is_long(Host) of true -> longnames; false -> shortnames end,
    _ = [resolved(Host) || Host =/= ""],
    %% The supervisor's report about a failed start is replaced by a single line below.
    _ = logger:add_handler_filter(default, ?MODULE, {fun is_said/2, {stop, sub, [otp, sasl]}}),
    try started(Name, Domain, erlang:monotonic_time(millisecond) + ?EPMD_MS, once_more) of
        ok -> with_cookie(Cookie);
        {error, Reason} -> not_started(Name, Reason)
    after
        logger:remove_handler_filter(default, ?MODULE)
    end.

%% net_kernel reports each attempt to start without an epmd.
is_said(#{msg := {report, #{format := Format, args := Arguments}}} = Event, Extra) ->
    case string:find(io_lib:format(Format, Arguments), "register/listen error") of
        nomatch -> logger_filters:domain(Event, Extra);
        _ -> stop
    end;
is_said(Event, Extra) -> logger_filters:domain(Event, Extra).

%% If epmd is not running, every node that starts now starts one. An epmd listens only after its command has returned, and Linux may refuse the port
%% to two processes that start listening at the same time, so a start that found no epmd is repeated. Even if an epmd answers both before and after
%% the start, it may be a different one each time, which another attempt reveals. If it is the same one throughout, the failure has a different cause.
started(Name, Domain, End, Try) ->
    Before = beamway_cli_doctor_facts:epmd_names(),
    _ = [os:cmd("epmd -daemon") || element(1, Before) =:= error],
    case start(Name, Domain) of
        ok -> ok;
        {error, Reason} ->
            case [Why || {error, Why} <- [Before, beamway_cli_doctor_facts:epmd_names()]] of
                [] when Try =:= last -> {error, Reason};
                [] -> started_again(Name, Domain, Reason, End, last);
                [Why | _] -> started_again(Name, Domain, {no_epmd, Why}, End, Try)
            end
    end.

started_again(Name, Domain, Why, End, Try) ->
    case erlang:monotonic_time(millisecond) < End of
        %% The pause is random, so that two nodes do not collide again.
        true -> receive after ?POLL_MS + rand:uniform(?POLL_MS) -> started(Name, Domain, End, Try) end;
        false -> {error, Why}
    end.

start(Name, Domain) ->
    try net_kernel:start(Name, #{name_domain => Domain}) of
        {ok, _} -> ok;
        {error, _} = Error -> Error
    catch
        error:Reason -> {error, Reason}
    end.

-spec not_started(node(), term()) -> no_return().
not_started(Name, {no_epmd, address}) ->
    failed("cannot become ~ts: epmd does not run and could not be started (port ~ts)", [Name, os:getenv("ERL_EPMD_PORT", "4369")]);
not_started(Name, {no_epmd, Why}) ->
    failed("cannot become ~ts: epmd does not answer: ~0tp (port ~ts)", [Name, Why, os:getenv("ERL_EPMD_PORT", "4369")]);
not_started(Name, Reason) ->
    [Short | _] = string:split(atom_to_list(Name), "@"),
    case beamway_cli_doctor_facts:epmd_names() of
        {ok, Names} ->
            case lists:keymember(Short, 1, Names) of
                true -> failed("cannot become ~ts: a node of this name runs on this host already", [Name]);
                false -> failed("cannot become ~ts: ~ts", [Name, beamway_cli_ask:why_no_node(Reason)])
            end;
        {error, Why} -> not_started(Name, {no_epmd, Why})
    end.

host(Name) ->
    case string:split(atom_to_list(Name), "@") of
        [_, Host] -> Host;
        _ -> ""
    end.

resolved(Host) ->
    case {inet:getaddr(Host, inet), inet:getaddr(Host, inet6)} of
        {{error, Reason}, {error, _}} -> failed("the host name '~ts' does not resolve here (~ts); it must, on all hosts of the cluster", [Host, inet:format_error(Reason)]);
        _ -> ok
    end.

cookie(#{cookie_file := File}) ->
    case beamway_cli_ask:cookie(File) of
        {ok, Cookie} -> Cookie;
        {error, Text} -> failed("~ts", [Text])
    end;
cookie(_) -> none.

with_cookie(none) -> ok;
with_cookie(Cookie) -> true = erlang:set_cookie(Cookie), ok.

applications(Options) ->
    Wanted = [list_to_atom(Word) || Word <- string:lexemes(maps:get(start, Options, ""), ",")],
    Placement = [placement || code:lib_dir(placement) =/= {error, bad_name}],
    lists:foreach(fun(App) ->
                          case application:ensure_all_started(App) of
                              {ok, _} -> ok;
                              {error, {Failed, Reason}} -> failed("application ~ts did not start (~ts: ~0tP)", [App, Failed, Reason, 12])
                          end
                  end, lists:usort(Placement ++ Wanted)).

%% ---- the peers ----

connect(#{peers := Peers}, #{wait := Seconds}) ->
    Seconds >= 0 orelse usage("--wait: expected seconds from 0", []),
    _ = [complain("waiting for ~b peers", [length(Peers)]) || Peers =/= []],
    connect(Peers, Peers, erlang:monotonic_time(millisecond) + Seconds * 1000).

connect(All, Missing, End) ->
    case [Peer || Peer <- Missing, net_kernel:connect_node(Peer) =/= true] of
        [] -> ok;
        Still ->
            erlang:monotonic_time(millisecond) < End orelse not_all(All, Still),
            %% The first node may have connected to all nodes and exited before the others have connected to each other.
            receive {?MODULE, finish, Status} -> throw({node, finished, Status})
            after ?POLL_MS -> connect(All, Still, End)
            end
    end.

-spec not_all([node()], [node()]) -> no_return().
not_all(All, [First | _] = Missing) ->
    failed("~b of ~b peers did not come in time (--wait); the first: ~ts. Does it run, with the same cookie? Its name must resolve, epmd and its port must be reached",
           [length(Missing), length(All), First]).

%% ---- distances ----

prepare(#{slurm := false}, []) -> none;
prepare(Plan, Modes) ->
    code:lib_dir(placement) =/= {error, bad_name} orelse failed("--measure: the application placement is not on the code path", []),
    prepared(Plan, Modes).

prepared(#{index := 0, step := Step}, Modes) ->
    ok = wait_for_placement(Step, 100),
    case placement_job:prepare([node() | Step], Modes) of
        {ok, Prepared} -> Prepared;
        {error, Text} -> failed("~ts", [Text])
    end;
prepared(#{step := Step, slurm := true}, _) ->
    First = first(Step),
    case placement_job:await(?MEASURE_MS, fun() -> not lists:member(First, nodes()) end) of
        ok -> none;
        {error, gone} -> failed("the first node, ~ts, exited before it had measured; its own output says why", [First]);
        {error, timeout} -> failed("the first node, ~ts, sent no distances within ~b minutes", [First, ?MEASURE_MS div 60000])
    end.

%% A peer is connected slightly before its placement is running.
wait_for_placement(Peers, Tries) ->
    Answers = erpc:multicall(Peers, placement, epoch, [], ?CALL_MS),
    case [Peer || {Peer, Answer} <- lists:zip(Peers, Answers), element(1, Answer) =/= ok] of
        [] -> ok;
        [Peer | _] when Tries =:= 0 -> failed("placement does not run on ~ts", [Peer]);
        _ -> receive after 2 * ?POLL_MS -> wait_for_placement(Peers, Tries - 1) end
    end.

first(Step) ->
    [First | _] = [Node || Node <- Step, re:run(atom_to_list(Node), "^job[0-9]+-[0-9]+-0@") =/= nomatch],
    First.

%% ---- being ready, and exiting ----

%% A connection may be lost right after it was set up, because two nodes that connect to each other at the same time try again. So the first node of
%% a job queries all of them before it reports that it is ready.
all_know_each_other(#{index := 0, step := [_ | _] = Step, slurm := true}) -> all_know_each_other([node() | Step], erlang:monotonic_time(millisecond) + ?MESH_MS);
all_know_each_other(_) -> ok.

all_know_each_other(All, End) ->
    Answers = lists:zip(All, erpc:multicall(All, ?MODULE, strangers, [All], ?CALL_MS)),
    %% Also fetches their attributes, because the first answer from a node that has just started takes longest.
    Views = placement_cache:fetch(All, [mem_total], #{live => true, deadline => ?CALL_MS}),
    case [{Node, Answer} || {Node, Answer} <- Answers, Answer =/= {ok, []}] ++ [{Node, Status} || {Node, #{status := Status}} <- maps:to_list(Views), Status =/= ok] of
        [] -> ok;
        [{Node, Answer} | _] ->
            erlang:monotonic_time(millisecond) < End orelse failed("~ts does not answer, or does not reach all other nodes of the step: ~0tP", [Node, Answer, 12]),
            receive after ?POLL_MS -> all_know_each_other(All, End) end
    end.

%% @doc Returns the given nodes that this node cannot connect to.
-spec strangers([node()]) -> [node()].
strangers(All) -> [Node || Node <- All, Node =/= node(), net_kernel:connect_node(Node) =/= true].

%% @doc Silences what `global' reports about nodes that have already exited, because the nodes of a job exit one after another.
-spec ending() -> ok.
ending() ->
    _ = logger:add_handler_filter(default, beamway_cli_node_ending, {fun is_farewell/2, ignore}),
    ok.

is_farewell(#{msg := {Format, _}}, Extra) when is_list(Format) ->
    case string:find(Format, "overlapping partitions") of
        nomatch -> Extra;
        _ -> stop
    end;
is_farewell(_, Extra) -> Extra.

ready(#{index := 0, peers := Peers}, Prepared, Options) ->
    Text = case Prepared of
               none -> io_lib:format("connected with ~b nodes", [length(Peers)]);
               _ -> placement_job:summary(Prepared)
           end,
    case Options of
        #{json := true} ->
            Fit = case Prepared of #{explained := Explained} when is_float(Explained) -> Explained; _ -> null end,
            io:format("~ts~n", [jiffy:encode({[{ready, node()}, {nodes, [node() | Peers]}, {explained, Fit}, {text, unicode:characters_to_binary(Text)}]})]);
        _ -> io:format("~ts is ready: ~ts~n", [node(), Text])
    end;
ready(_, _, _) -> ok.

ended(#{index := 0, step := Step, slurm := Slurm}, {Module, Function}) ->
    Status = called(Module, Function),
    %% All nodes must have done this before the first one exits.
    _ = [{ending(), erpc:multicall(Step, ?MODULE, ending, [], ?CALL_MS)} || Slurm],
    _ = [erpc:multicast(Step, ?MODULE, finish, [Status]) || Slurm],
    %% Casts must be sent before the connections close.
    _ = [wait_for_end(Step, 100) || Slurm],
    Status;
ended(#{step := Step, slurm := true}, {_, _}) ->
    First = first(Step),
    true = monitor_node(First, true),
    receive
        {?MODULE, finish, Status} -> Status;
        {nodedown, First} -> complain("the first node, ~ts, has ended", [First]), ?FAILED
    end;
ended(_, none) -> stay().

%% Runs until a signal arrives, to which OTP responds with a clean shutdown, or the user exits the shell.
stay() -> receive {?MODULE, finish, Status} -> Status end.

called(Module, Function) ->
    try Module:Function() of
        ok -> ?DONE;
        Status when is_integer(Status), Status >= 0, Status =< 255 -> Status;
        Other -> complain("~ts:~ts() returned ~0tP; expected ok or an exit status", [Module, Function, Other, 20]), ?FAILED
    catch
        Class:Reason:Stack -> complain("~ts:~ts() failed: ~0tP~n~tP", [Module, Function, {Class, Reason}, 30, Stack, 30]), ?FAILED
    end.

%% @doc Stops this node with an exit status. The first node of a job calls it on all others.
-spec finish(0..255) -> ok.
finish(Status) ->
    ?MODULE ! {?MODULE, finish, Status},
    ok.

wait_for_end(_, 0) -> ok;
wait_for_end(Peers, Tries) ->
    case [Peer || Peer <- Peers, lists:member(Peer, nodes())] of
        [] -> ok;
        _ -> receive after ?POLL_MS -> wait_for_end(Peers, Tries - 1) end
    end.

-ifdef(TEST).

outside(_) -> false.

plan_test_() ->
    Options = #{measure => "auto", wait => 1},
    Slurm = fun(Variable) ->
                    proplists:get_value(Variable, [{"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NODELIST", "n[1-2]"}, {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                                                   {"SLURMD_NODENAME", "n2"}, {"SLURM_LOCALID", "0"}], false)
            end,
    [?_assertEqual(#{name => 'a@h', peers => ['b@h', 'c@h'], step => ['b@h', 'c@h'], index => 0, slurm => false}, plan(Options#{name => "a@h", connect => "b@h,c@h"}, fun outside/1)),
     ?_assertEqual(#{name => a, peers => [], step => [], index => 0, slurm => false}, plan(Options#{name => "a", no_slurm => true}, Slurm)),
     ?_assertEqual(#{name => 'job7-0-1@n2', peers => ['job7-0-0@n1'], step => ['job7-0-0@n1'], index => 1, slurm => true}, plan(Options, Slurm)),
     ?_assertMatch(#{peers := ['db@h', 'job7-0-0@n1'], step := ['job7-0-0@n1']}, plan(Options#{connect => "db@h,job7-0-0@n1"}, Slurm)),
     ?_assertThrow({node, usage, _}, plan(Options, fun outside/1)), ?_assertThrow({node, usage, _}, plan(Options#{name => "a"}, Slurm)),
     ?_assertThrow({node, usage, _}, plan(Options#{name => "a b"}, fun outside/1)), ?_assertThrow({node, usage, _}, plan(Options#{name => "a", connect => "b"}, fun outside/1)),
     ?_assertThrow({node, usage, _}, plan(Options#{name => "a", connect => ""}, fun outside/1)),
     ?_assertThrow({node, usage, _}, modes(#{measure => "x"}, #{slurm => true})), ?_assertEqual([quiet], modes(Options, #{slurm => true})),
     ?_assertEqual([], modes(Options, #{slurm => false}))].

first_test() -> ?assertEqual('job7-0-0@n1', first(['job7-0-10@n3', 'job7-0-0@n1', 'job7-0-2@n1'])).
-endif.
