%% SPDX-License-Identifier: Apache-2.0
%% @doc `beamway doctor': shows which links this host can use, whether a node runs teleport, and what prevents either.
%%
%% Called by {@link beamway_cli}. {@link beamway_cli_doctor_facts} collects facts, {@link beamway_cli_doctor_judge} judges them, and this module
%% shows the result.
-module(beamway_cli_doctor).

-export([examine/0, examine/1, is_well/1, to_json/1, to_text/1]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-export_type([report/0]).

-type report() :: #{checks := [beamway_cli_doctor_judge:check()], wanted := [beamway_kind:kind() | inet]}.

%% @doc Examines which links this machine can use, and whether teleport is installed.
-spec examine() -> report().
examine() -> examined(beamway_cli_doctor_facts:gather(), beamway_cli_doctor_facts:teleport()).

%% @doc Collects and judges all facts, including those about teleport on a node if one is named. Takes well under a second.
-spec examine(beamway_cli_ask:options()) -> {ok, report()} | {error, Text :: unicode:chardata()}.
examine(#{node := _} = Options) ->
    %% The host is examined before this VM becomes a node, because doing so over TLS changes the option `links'.
    Facts = beamway_cli_doctor_facts:gather(),
    beamway_result:then(beamway_cli_ask:open(Options), fun(Node) -> {ok, examined(Facts, beamway_cli_doctor_facts:teleport(Node))} end);
examine(_) ->
    {ok, examine()}.

examined(#{options := Options} = Facts, Teleport) ->
    #{checks => beamway_cli_doctor_judge:checks(Facts#{teleport => Teleport}), wanted => maps:get(links, beamway_cli_doctor_judge:in_use(Options))}.

%% @doc Returns whether nothing prevents the use of shared memory, and teleport, if it was queried, answers.
-spec is_well(report()) -> boolean().
is_well(#{checks := Checks}) -> problems(Checks) =:= [].

problems(Checks) -> [Check || #{status := problem} = Check <- Checks].

of_links(Checks) -> [Check || #{name := Name} = Check <- Checks, Name =/= teleport].

links(Report) ->
    [begin {Usable, Why} = usable(Kind, Report), {Kind, Usable, Why} end || Kind <- beamway_kind:all() ++ [inet]].

usable(shm, #{checks := Checks}) ->
    case problems(of_links(Checks)) of
        [] -> {true, "tried: a pair of rings was made and mapped"};
        [#{found := Found} | _] -> {false, Found}
    end;
usable(tcp, #{checks := Checks, wanted := Wanted}) ->
    case [Found || #{name := driver, status := problem, found := Found} <- Checks] ++ ["turned off" || not lists:member(tcp, Wanted)] of
        [] -> {true, "to any Erlang node"};
        [Found | _] -> {false, Found}
    end;
usable(inet, _Report) ->
    {true, "always: OTP's own port"};
usable(rdma, #{checks := Checks, wanted := Wanted}) ->
    case [Check || #{name := rdma} = Check <- Checks] of
        [#{status := ok, found := Found}] ->
            {lists:member(rdma, Wanted) andalso string:find(Found, "ACTIVE") =/= nomatch, Found};
        [#{found := Found}] -> {false, Found}
    end.

%% @doc Returns the report as a term for jiffy.
-spec to_json(report()) -> term().
to_json(#{checks := Checks} = Report) ->
    {[{ok, is_well(Report)},
      {links, [{[{link, Link}, {usable, Usable}, {why, text(Why)}]} || {Link, Usable, Why} <- links(Report)]},
      {checks, [{[{name, Name}, {status, Status}, {found, text(Found)}]
                 ++ [{remedy, text(Remedy)} || #{remedy := Remedy} <- [Check]]}
                || #{name := Name, status := Status, found := Found} = Check <- Checks]}]}.

text(Chars) -> unicode:characters_to_binary(Chars).

%% @doc Returns the report as text.
-spec to_text(report()) -> unicode:chardata().
to_text(#{checks := Checks} = Report) ->
    [beamway_cli_output:table([["LINK", "USABLE", "WHY"]
                        | [[atom_to_list(Link), yes_or_no(Usable), text(Why)] || {Link, Usable, Why} <- links(Report)]]),
     "\n",
     [check_text(Check) || Check <- Checks]].

yes_or_no(true) -> "yes";
yes_or_no(false) -> "no".

check_text(#{name := Name, status := Status, found := Found} = Check) ->
    [io_lib:format("~-8s ~-14s ~ts~n", [Status, Name, Found]),
     [io_lib:format("~24cremedy: ~ts~n", [$\s, Remedy]) || #{remedy := Remedy} <- [Check]]].

-ifdef(TEST).

report_test_() ->
    Check = fun(Name, Status, Found) -> #{name => Name, status => Status, found => Found} end,
    Rdma = Check(rdma, ok, "no devices"),
    Report = #{checks => [Check(otp, ok, "OTP 25"), (Check(descriptors, warning, "5 open files"))#{remedy => "raise it"}, Rdma], wanted => [shm, tcp]},
    Bad = Report#{checks := [Check(file_size, problem, "files may have 0 KiB"), Rdma]},
    Silent = Report#{checks := [Check(teleport, problem, "did not answer"), Rdma]},
    [?_assert(is_well(Report)),
     ?_assertNot(is_well(Bad)),
     ?_assertNot(is_well(Silent)),
     ?_assertMatch({match, _}, re:run(text(to_text(Silent)), "(?m)^shm +yes .*\n(.*\n)*problem +teleport ")),
     ?_assertMatch({match, _}, re:run(text(to_text(Report)), "(?m)^shm +yes.*\n(.*\n)*warning +descriptors.*\n +remedy: ")),
     ?_assertMatch({match, _}, re:run(text(to_text(Bad)), "(?m)^shm +no +files may have.*\nrdma .*\ntcp +yes .*\ninet +yes ")),
     ?_assertMatch({match, _}, re:run(text(to_text(Report#{checks := [Check(driver, problem, "cannot load it"), Rdma]})),
                                      "(?m)^tcp +no +cannot load it\ninet +yes ")),
     ?_assertMatch({match, _}, re:run(text(to_text(Report#{wanted := [shm]})), "(?m)^tcp +no +turned off\ninet +yes ")),
     [?_assertMatch({match, _}, re:run(text(to_text(Report#{checks := [Check(rdma, ok, "rxe0 port 1 ACTIVE")], wanted := Wanted})),
                                       "(?m)^rdma +" ++ Usable ++ " +rxe0 "))
      || {Wanted, Usable} <- [{[shm, tcp], "no"}, {[rdma, shm, tcp], "yes"}]],
     ?_assertMatch(#{<<"ok">> := false}, jiffy:decode(jiffy:encode(to_json(Bad)), [return_maps]))].

-endif.
