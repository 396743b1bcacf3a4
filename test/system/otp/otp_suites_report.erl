%% SPDX-License-Identifier: Apache-2.0
%% @doc Prints the outcomes of OTP's suites side by side, compares them with the stored ones, or stores them.
%%
%% The script `otp_suites' calls `failed/1' after the suites of each carrier, in order to repeat the failed cases, and `report/1' at the
%% end. Arguments are lists of strings, as `erl -run' passes them. `beamway_otp_verdict', which has its own tests, decides which outcomes
%% are wrong. `docs/dev/otp-suites.md' must contain the name of each case that does not pass, so the report looks for the names there.
-module(otp_suites_report).

-export([failed/1, report/1, stop/2]).

-type id() :: {Suite :: atom(), Group :: atom(), Case :: atom()}.
-type result() :: #{
    word := atom(), ms := non_neg_integer(), why := [string()], shm := non_neg_integer(),
    tcp_links := #{binary() => pos_integer()}, counts := otp_suites_links:counts()
}.
-type results() :: #{id() => result()}.

%% @doc Prints the suite, the group and the name of at most `Most' failed cases.
-spec failed(Args :: [string()]) -> no_return().
failed([File, Most]) ->
    Failed = [Id || {Id, #{word := Word}} <- sorted(results(consult(File), [])), Word =:= failed orelse Word =:= died],
    [io:format("~ts ~ts ~ts~n", [Suite, Group, Case]) || {Suite, Group, Case} <- lists:sublist(Failed, list_to_integer(Most))],
    halt(0).

%% @doc Prints the outcomes, and halts with status 1 if an outcome with Beamway is wrong.
-spec report(Args :: [string()]) -> no_return().
report([Mode, BeganFile, StoredFile, Document, Suites, Cases | Files]) ->
    Runs = runs(Files),
    {Links, StoredCases} = case {Mode, Runs} of {"store" ++ _, [{"tcp", _} | _]} -> {#{}, []}; _ -> stored(StoredFile) end,
    Stored = [Entry || {{Suite, _, _}, _} = Entry <- StoredCases, is_selected(Suite, Suites)],
    Expected = [Id || Cases =:= "all", {Id, _} <- Stored],
    Ids = lists:usort(Expected ++ lists:append([maps:keys(Results) || {_, Results} <- Runs])),
    Ids =/= [] orelse stop("no case was run; is the case's name right?", []),
    print_table(Runs, Ids),
    print_reasons(Runs, Ids),
    print_summary(Runs),
    Problems = case Mode of
        "compare" ->
            comparison(Runs, Ids, maps:from_list(Stored))
                ++ [Problem || Cases =:= "all", Problem <- without_links(Runs, Links, Suites)];
        "store" ++ Force ->
            Keep = fun(Object) -> keep(BeganFile, filename:dirname(StoredFile), Object, Force =:= "--force") end,
            store(Keep, Document, Runs, Ids, maps:from_list(Stored))
    end,
    [io:format("WRONG ~ts~n", [Problem]) || Problem <- Problems],
    print_verdict(Problems, Stored, Mode),
    halt(case Problems of [] -> 0; _ -> 1 end).

print_verdict([], [], "compare") -> io:format("Nothing is stored to compare with.~n");
print_verdict([], _, _) -> io:format("Beamway passes all that stock TCP passes, but for the differences that docs/dev/otp-suites.md names.~n");
print_verdict(Problems, _, _) -> io:format("~b problems~n", [length(Problems)]).

%% ---- reading ----

runs([]) -> [];
runs([Carrier, File, Repeats | Rest]) -> [{Carrier, results(consult(File), consult(Repeats))} | runs(Rest)].

consult(File) ->
    case file:consult(File) of
        {ok, Lines} -> Lines;
        {error, Reason} -> stop("~ts cannot be read: ~ts", [File, file:format_error(Reason)])
    end.

%% A suite may list a case twice, so a case has a list of outcomes, latest first. If the only outcome is `started', the case killed its node
%% or reached the time limit. If an outcome is not a pass, the case is run once more on its own, to distinguish flaky cases from failures.
-spec results(Lines :: [tuple()], Repeats :: [tuple()]) -> results().
results(Lines, Repeats) ->
    Again = lists:foldl(fun collect/2, #{}, Repeats),
    maps:map(fun(Id, Outcomes) -> result(Outcomes, maps:get(Id, Again, [])) end, lists:foldl(fun collect/2, #{}, Lines)).

collect({Suite, Group, Case, Outcome, Ms, Counts}, All) ->
    Id = {Suite, Group, Case},
    New = {Outcome, Ms, Counts},
    case maps:get(Id, All, []) of
        [{started, _, _} | Older] -> All#{Id => [New | Older]};
        Older -> All#{Id => [New | Older]}
    end.

result(Outcomes, Again) ->
    Counts = lists:foldl(fun otp_suites_links:add/2, otp_suites_links:none(), [Counts || {_, _, Counts} <- Outcomes ++ Again]),
    #{
        word => repeated(worst(Outcomes), Again),
        ms => lists:sum([Ms || {_, Ms, _} <- Outcomes]),
        why => [Why || {{_, Why}, _, _} <- Outcomes ++ Again],
        shm => otp_suites_links:own(<<"link shm here">>, Counts),
        tcp_links => tcp_links(maps:to_list(Counts)),
        counts => Counts
    }.

tcp_links(Counts) ->
    lists:foldl(fun({Reason, Count}, Links) -> maps:update_with(Reason, fun(N) -> N + Count end, Count, Links) end, #{},
                [{Reason, Count} || {Line, Count} <- Counts, [_, Reason] <- [binary:split(Line, <<"link tcp: ">>)]]).

worst(Outcomes) ->
    Words = [word(Outcome) || {Outcome, _, _} <- Outcomes],
    hd([Word || Word <- [died, failed, skipped, passed], lists:member(Word, Words)]).

word(started) -> died;
word(ok) -> passed;
word({Word, _Why}) -> Word.

repeated(Word, [_ | _] = Again) when Word =:= failed; Word =:= died ->
    case worst(Again) of
        passed -> flaky;
        _ -> Word
    end;
repeated(Word, _Again) ->
    Word.

%% Returns the stored number of shared-memory link ends for each suite, and the stored cases.
-spec stored(file:filename()) -> {#{atom() => non_neg_integer()}, [{id(), beamway_otp_verdict:stored()}]}.
stored(File) ->
    case file:read_file(File) of
        {ok, Json} ->
            #{<<"suites">> := Suites} = jiffy:decode(Json, [return_maps]),
            {maps:from_list([{binary_to_atom(Suite), Ends} || #{<<"suite">> := Suite, <<"shm_link_ends">> := Ends} <- Suites]),
             lists:append([stored_cases(Suite) || Suite <- Suites])};
        {error, enoent} ->
            {#{}, []}
    end.

%% Each case is listed with its outcome over Beamway. The other lists contain only the cases whose outcome over stock TCP differs, and those that set
%% up links.
stored_cases(#{<<"suite">> := Suite, <<"cases">> := Cases, <<"over_tcp">> := Others, <<"shm_links_of_suite_node">> := Shm, <<"tcp_links_of_case">> := Links}) ->
    [{id(Suite, binary:split(Text, <<":">>)),
      #{tcp => binary_to_atom(maps:get(Text, Others, Word)), beamway => binary_to_atom(Word), shm => maps:get(Text, Shm, 0), tcp_links => maps:get(Text, Links, #{})}}
     || {Word, Texts} <- maps:to_list(Cases), Text <- Texts].

id(Suite, [Case]) -> id(Suite, [<<"none">>, Case]);
id(Suite, [Group, Case]) -> {binary_to_atom(Suite), binary_to_atom(Group), binary_to_atom(Case)}.

is_selected(_Suite, "all") -> true;
is_selected(Suite, Names) -> lists:member(atom_to_list(Suite), string:lexemes(Names, ",")).

%% ---- comparing ----

comparison(Runs, Ids, Stored) ->
    Tcp = proplists:get_value("tcp", Runs, unknown),
    [
        text(Id, [Carrier, ": ", beamway_otp_verdict:describe(Problem), also_on_tcp(Problem, Id, Tcp)])
     || {Carrier, Results} <- Runs, Carrier =/= "tcp", Id <- Ids,
        Problem <- beamway_otp_verdict:problems(find(Id, Results), oracle(Id, Tcp), maps:get(Id, Stored, none), Carrier =:= "beamway")
                       ++ [Fallback || Carrier =:= "beamway_rdma", Fallback <- beamway_otp_verdict:fallbacks(find(Id, Results), none)]
    ].

%% Links cannot be attributed to cases that run in parallel, so they are compared for the whole suite.
without_links(Runs, Stored, Suites) ->
    [io_lib:format("~ts beamway: made ~b ends of links over shared memory when it was stored, and none now", [Suite, Ends])
     || {"beamway", Results} <- Runs, {Suite, Ends} <- lists:sort(maps:to_list(Stored)), Ends > 0, is_selected(Suite, Suites),
        maps:get(shm_link_ends, suite_links(Suite, Results)) =:= 0]
        ++ [io_lib:format("~ts beamway_rdma: made no link over rdma", [Suite])
            || {"beamway_rdma", Results} <- Runs, Suite <- lists:usort([Suite || {Suite, _, _} <- maps:keys(Results)]),
               maps:get(rdma_link_ends, suite_links(Suite, Results)) =:= 0].

oracle(_Id, unknown) -> unknown;
oracle(Id, Tcp) -> maps:get(word, find(Id, Tcp)).

also_on_tcp({fell_back, _}, _Id, _Tcp) -> "";
also_on_tcp(no_shared_memory, _Id, _Tcp) -> "";
also_on_tcp(_Problem, Id, Tcp) -> io_lib:format(" (on stock TCP: ~ts)", [oracle(Id, Tcp)]).

find(Id, Results) ->
    maps:get(Id, Results, #{word => not_run, ms => 0, why => [], shm => 0, tcp_links => #{}, counts => #{}}).

text({Suite, none, Case}, What) -> io_lib:format("~ts:~ts ~ts", [Suite, Case, What]);
text({Suite, Group, Case}, What) -> io_lib:format("~ts:~ts:~ts ~ts", [Suite, Group, Case, What]).

%% ---- storing ----

%% The names of the cases are stored, grouped by outcome. If both carriers were run, the outcomes that differ over stock TCP and the links that each
%% case set up are stored as well.
store(Keep, Document, [{_, Results}], Ids, Stored) ->
    Differ = beamway_otp_verdict:differences(maps:from_list([{Id, Case#{beamway := maps:get(word, find(Id, Results))}} || {Id, Case} <- maps:to_list(Stored)])),
    Keep(#{totals => (counts(Results))#{differ => length(Differ)},
           suites => [outcomes(Suite, Ids, Results) || Suite <- lists:usort([Suite || {Suite, _, _} <- Ids])]})
        ++ too_many(length(Differ)) ++ unnamed(Document, Differ)
        ++ [text(Id, "was not run") || Id <- Ids, maps:get(word, find(Id, Results)) =:= not_run];
store(Keep, Document, [{"tcp", Tcp}, {"beamway", Beamway}], Ids, _) ->
    All = maps:from_list([{Id, both(find(Id, Tcp), find(Id, Beamway))} || Id <- Ids]),
    Differ = beamway_otp_verdict:differences(All),
    Object = #{
        totals => #{tcp => counts(Tcp), beamway => counts(Beamway), differ => length(Differ)},
        suites => [suite_object(Suite, [Id || {Of, _, _} = Id <- Ids, Of =:= Suite], Tcp, Beamway) || Suite <- lists:usort([Suite || {Suite, _, _} <- Ids])]
    },
    Keep(Object) ++ too_many(length(Differ)) ++ unnamed(Document, Differ ++ beamway_otp_verdict:common_failures(All))
        ++ [text(Id, beamway_otp_verdict:describe(Problem))
            || Id <- Ids, Problem <- beamway_otp_verdict:fallbacks(find(Id, Beamway), none)].

%% Stores the result, whose context was recorded before the first suite. Returns the reasons why it
%% cannot be stored, if any.
keep(BeganFile, Folder, Object, Force) ->
    {ok, #{bench := Name} = Context} = beamway_bench_store:begun_in(BeganFile),
    File = filename:join(Folder, <<Name/binary, ".json">>),
    case beamway_bench_store:publish(File, maps:merge(Context#{repeats => 1}, Object), Force) of
        ok -> io:format("stored in ~ts~n", [File]), [];
        {error, Why} -> [Why]
    end.

outcomes(Suite, Ids, Results) ->
    #{tls_link_ends := Tls, tcp_link_ends := Tcp} = suite_links(Suite, Results),
    #{suite => Suite, tls_link_ends => Tls, tcp_link_ends => Tcp, cases => by_outcome([Id || {Of, _, _} = Id <- Ids, Of =:= Suite], Results)}.

by_outcome(Ids, Results) ->
    lists:foldl(fun(Id, Words) -> maps:update_with(maps:get(word, find(Id, Results)), fun(Cases) -> Cases ++ [stored_name(Id)] end, [stored_name(Id)], Words) end, #{}, Ids).

stored_name({_, Group, Case}) -> iolist_to_binary([[atom_to_list(Group), ":"] || Group =/= none] ++ [atom_to_list(Case)]).

both(#{word := Tcp}, #{word := Beamway, shm := Shm, tcp_links := Links}) ->
    #{tcp => Tcp, beamway => Beamway, shm => Shm, tcp_links => Links}.

too_many(Count) ->
    Most = beamway_otp_verdict:most_differences(),
    [io_lib:format("~b cases differ from stock TCP; at most ~b may", [Count, Most]) || Count > Most].

unnamed(Document, Ids) ->
    {ok, Text} = file:read_file(Document),
    [text(Id, "does not pass, and docs/dev/otp-suites.md does not say why")
     || {_, _, Case} = Id <- Ids, binary:match(Text, atom_to_binary(Case)) =:= nomatch].

suite_object(Suite, Ids, Tcp, Beamway) ->
    Own = fun(Key, None) -> maps:from_list([{stored_name(Id), Value} || Id <- Ids, #{Key := Value} <- [find(Id, Beamway)], Value =/= None]) end,
    (maps:without([rdma_link_ends, tls_link_ends], suite_links(Suite, Beamway)))
        #{suite => Suite, cases => by_outcome(Ids, Beamway), shm_links_of_suite_node => Own(shm, 0), tcp_links_of_case => Own(tcp_links, #{}),
          over_tcp => maps:from_list([{stored_name(Id), maps:get(word, find(Id, Tcp))} || Id <- Ids, maps:get(word, find(Id, Tcp)) =/= maps:get(word, find(Id, Beamway))])}.

suite_links(Suite, Results) ->
    Own = [Counts || {{Of, _, _}, #{counts := Counts}} <- maps:to_list(Results), Of =:= Suite],
    Counts = lists:foldl(fun otp_suites_links:add/2, otp_suites_links:none(), Own),
    #{
        beamway_nodes => otp_suites_links:total(<<"node beamway">>, Counts),
        nodes_of_own_carrier => otp_suites_links:total(<<"node own">>, Counts),
        shm_link_ends => otp_suites_links:total(<<"link shm">>, Counts) + otp_suites_links:total(<<"link shm here">>, Counts),
        rdma_link_ends => otp_suites_links:total(<<"link rdma">>, Counts),
        tls_link_ends => otp_suites_links:total(<<"link tls">>, Counts),
        tcp_link_ends => lists:sum(maps:values(tcp_links(maps:to_list(Counts))))
    }.

counts(Results) ->
    Words = [Word || #{word := Word} <- maps:values(Results)],
    maps:from_list([{Wanted, length([Word || Word <- Words, Word =:= Wanted])}
                    || Wanted <- [passed, flaky, failed, died, skipped]]).

%% ---- printing ----

print_table(Runs, Ids) ->
    Names = [name(Id) || Id <- Ids],
    Width = lists:max([length(Name) || Name <- Names]),
    print_row(Width, "suite and case", [Carrier || {Carrier, _} <- Runs]),
    [print_row(Width, name(Id), [cell(find(Id, Results)) || {_, Results} <- Runs]) || Id <- Ids].

name({Suite, none, Case}) -> lists:flatten(io_lib:format("~ts:~ts", [Suite, Case]));
name({Suite, Group, Case}) -> lists:flatten(io_lib:format("~ts:~ts:~ts", [Suite, Group, Case])).

print_row(Width, Name, Cells) ->
    Padded = [string:pad(Cell, 17) || Cell <- Cells],
    io:format("~ts~n", [string:trim([string:pad(Name, Width + 2) | Padded], trailing)]).

cell(#{word := passed, ms := Ms}) -> io_lib:format("passed ~6.1f s", [Ms / 1000]);
cell(#{word := not_run}) -> "NOT RUN";
cell(#{word := skipped}) -> "skipped";
cell(#{word := Word}) -> string:uppercase(atom_to_list(Word)).

print_reasons(Runs, Ids) ->
    io:format("~n"),
    [io:format("~ts, ~ts: ~ts~n", [name(Id), Carrier, Reason])
     || Id <- Ids, {Carrier, Results} <- Runs, #{why := Why} <- [find(Id, Results)], Reason <- Why].

print_summary(Runs) ->
    io:format("~n"),
    [io:format("~-12ts ~b passed, ~b flaky, ~b failed, ~b died, ~b skipped~n",
               [Carrier | [maps:get(Word, counts(Results)) || Word <- [passed, flaky, failed, died, skipped]]])
     || {Carrier, Results} <- Runs],
    [print_links(Carrier, Suite, suite_links(Suite, Results))
     || {Carrier, Results} <- Runs, Carrier =/= "tcp", Suite <- lists:usort([Suite || {Suite, _, _} <- maps:keys(Results)])],
    io:format("~n").

print_links(Carrier, Suite, Links) ->
    #{beamway_nodes := Nodes, nodes_of_own_carrier := Own, shm_link_ends := Shm, rdma_link_ends := Rdma, tls_link_ends := Tls, tcp_link_ends := Tcp} = Links,
    io:format("~ts ~ts: ~b nodes on Beamway, ~b on a carrier that the suite chose; ends of links: ~b shm, ~b rdma, ~b tls, ~b tcp~n",
              [Carrier, Suite, Nodes, Own, Shm, Rdma, Tls, Tcp]).

sorted(Results) -> lists:sort(maps:to_list(Results)).

%% @doc Prints the reason and halts this node with status 2.
-spec stop(string(), [term()]) -> no_return().
stop(Format, Args) ->
    io:format(standard_error, "otp_suites: " ++ Format ++ "~n", Args),
    halt(2).
