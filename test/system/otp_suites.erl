%% SPDX-License-Identifier: Apache-2.0
%% @doc Runs suites of OTP's own source package over a carrier and compares the outcomes of several carriers.
%%
%% The script `otp_suites' beside this module calls `compile/1' once, `run/1' in a node of its own per carrier, and
%% `report/1' at the end. Arguments are lists of strings, as `erl -run' hands them over. The oracle is stock TCP: a
%% case that passes there must pass on Beamway; what fails on stock TCP too is OTP's or the machine's affair and is shown.
%%
%% To add a suite, add a line to `suites/0'. All of OTP's code is read from the unpacked source package; none is kept here.
-module(otp_suites).

-export([folders/1, free_port/0, compile/1, run/1, report/1]).
%% Called on the peer that verify_carrier/1 starts.
-export([carrier_of/1]).

-type outcome() :: ok | {failed, string()} | {skipped, string()} | died.
-type case_id() :: {Suite :: atom(), Group :: atom(), Case :: atom()}.
-type results() :: #{case_id() => {outcome(), Ms :: non_neg_integer()}}.

%% The suites: where the source package keeps them and which modules of the same folder they call.
suites() ->
    [
        {distribution_SUITE, #{folder => "erts/emulator/test", helpers => ["erts_test_utils.erl"]}}
    ].

%% A hook that OTP's suites name in suite/0; its folder is not part of an installation.
shared_folder() -> "lib/common_test/test_server".
shared_helpers() -> ["ts_install_cth.erl"].

%% @doc Prints the folders of the source package that the suites need, for the script to fetch.
-spec folders(Args :: [string()]) -> no_return().
folders([Names]) ->
    Folders = [maps:get(folder, Suite) || {_, Suite} <- selected(Names)],
    [io:format("~ts~n", [Folder]) || Folder <- lists:usort([shared_folder() | Folders])],
    halt(0).

%% @doc Prints a TCP port that was free a moment ago, for a private epmd.
-spec free_port() -> no_return().
free_port() ->
    {ok, Socket} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Socket),
    ok = gen_tcp:close(Socket),
    io:format("~b~n", [Port]),
    halt(0).

%% @doc Compiles the suites, their helpers and the Erlang programs in their data folders, in place.
-spec compile(Args :: [string()]) -> no_return().
compile([Tree, Names]) ->
    lists:foreach(
        fun(File) -> compile_file(filename:join([Tree, shared_folder(), File])) end, shared_helpers()),
    lists:foreach(fun({Suite, Spec}) -> compile_suite(Tree, Suite, Spec) end, selected(Names)),
    halt(0).

compile_suite(Tree, Suite, #{folder := Folder, helpers := Helpers}) ->
    Dir = filename:join(Tree, Folder),
    Name = atom_to_list(Suite),
    Data = filelib:wildcard(filename:join([Dir, Name ++ "_data", "*.erl"])),
    Sources = [filename:join(Dir, File) || File <- [Name ++ ".erl" | Helpers]],
    lists:foreach(fun compile_file/1, Sources ++ Data).

compile_file(Source) ->
    Dir = filename:dirname(Source),
    case compile:file(Source, [{outdir, Dir}, {i, Dir}, debug_info, return]) of
        {ok, _Module, _Warnings} -> ok;
        {error, Errors, _} -> stop("~ts does not compile: ~tp", [Source, Errors])
    end.

%% @doc Runs the suites in this node, whose carrier the command line has chosen. Ends the node.
-spec run(Args :: [string()]) -> no_return().
run([Tree, Names, Cases, Carrier, ResultFile, LogDir]) ->
    verify_carrier(Carrier),
    Suites = selected(Names),
    Dirs = [filename:join(Tree, maps:get(folder, Spec)) || {_, Spec} <- Suites],
    Paths = [filename:join(Tree, shared_folder()) | Dirs],
    ok = code:add_pathsa(Paths),
    ok = filelib:ensure_dir(filename:join(LogDir, "x")),
    Options = [
        {dir, Dirs},
        {suite, [Suite || {Suite, _} <- Suites]},
        {auto_compile, false},
        {logdir, LogDir},
        {event_handler, {otp_suites_events, [ResultFile]}}
        | case_option(Cases)
    ],
    case ct:run_test(Options) of
        {error, Reason} -> stop("common_test could not run ~ts: ~tp", [Names, Reason]);
        _Counts -> halt(0)
    end.

case_option("all") -> [];
case_option(Cases) -> [{testcase, [list_to_atom(Case) || Case <- string:lexemes(Cases, ",")]}].

%% A green run over the wrong carrier would prove nothing: start a node in the way in which the suites start theirs,
%% and look at what joins it to this one.
verify_carrier(Carrier) ->
    Args = ["-setcookie", atom_to_list(erlang:get_cookie()), "-pa", filename:dirname(code:which(?MODULE))],
    {ok, Peer, Node} = peer:start(#{name => peer:random_name(), connection => standard_io, args => Args}),
    pong = peer:call(Peer, net_adm, ping, [node()]),
    Found = [carrier_of(Node), peer:call(Peer, ?MODULE, carrier_of, [node()])],
    ok = peer:stop(Peer),
    Found =:= [Carrier, Carrier] orelse
        stop("this run is for ~ts, but the two ends of a connection say ~0tp", [Carrier, Found]).

%% @doc Names the carrier of this node's connection to `Node', in the words of the script's `--carriers'.
-spec carrier_of(node()) -> string().
carrier_of(Node) ->
    case init:get_argument(proto_dist) of
        {ok, [["beamway"]]} ->
            Links = [Link || #{node := Peer, link := Link} <- beamway:links(), Peer =:= Node],
            lists:flatten(["beamway_" ++ atom_to_list(Link) || Link <- Links]);
        _ ->
            "tcp"
    end.

%% @doc Prints the outcomes side by side, and halts with 1 if Beamway fails where stock TCP passes.
-spec report(Args :: [string()]) -> no_return().
report([StoreFile | CarriersAndFiles]) ->
    Runs = [{Carrier, read_results(File)} || {Carrier, File} <- pairs(CarriersAndFiles)],
    Ids = lists:usort(fun in_order/2, lists:append([maps:keys(Results) || {_, Results} <- Runs])),
    Ids =/= [] orelse stop("no case was run; is the case's name right?", []),
    print_table(Runs, Ids),
    Worse = regressions(Runs, Ids),
    print_reasons(Runs, Ids),
    StoreFile =:= "none" orelse store(StoreFile, Runs, Ids),
    lists:foreach(fun({Carrier, Results}) -> print_summary(Carrier, Results) end, Runs),
    print_verdict(Worse, Runs),
    halt(case Worse of [] -> 0; _ -> 1 end).

%% By suite and case; the group only tells apart cases of the same name.
in_order({SuiteA, GroupA, CaseA}, {SuiteB, GroupB, CaseB}) ->
    {SuiteA, CaseA, GroupA} =< {SuiteB, CaseB, GroupB}.

pairs([]) -> [];
pairs([Carrier, File | Rest]) -> [{Carrier, File} | pairs(Rest)].

%% The last line about a case counts; one that only `started' took the node with it, or the time limit came.
-spec read_results(file:filename()) -> results().
read_results(File) ->
    case file:consult(File) of
        {ok, Lines} -> lists:foldl(fun add_result/2, #{}, Lines);
        {error, Reason} -> stop("~ts cannot be read: ~ts", [File, file:format_error(Reason)])
    end.

add_result({Suite, Group, Case, started, _Ms}, Results) ->
    Results#{{Suite, Group, Case} => {died, 0}};
add_result({Suite, Group, Case, Outcome, Ms}, Results) ->
    Results#{{Suite, Group, Case} => {Outcome, Ms}}.

regressions(Runs, Ids) ->
    Oracle = proplists:get_value("tcp", Runs, #{}),
    [
        {Carrier, Id}
     || {Carrier, Results} <- Runs,
        Carrier =/= "tcp",
        Id <- Ids,
        word(maps:get(Id, Oracle, missing)) =:= "ok",
        word(maps:get(Id, Results, missing)) =/= "ok"
    ].

print_table(Runs, Ids) ->
    Names = [atom_to_list(Case) || {_, _, Case} <- Ids],
    Width = lists:max([length(Name) || Name <- ["case" | Names]]),
    print_row(Width, "case", [Carrier || {Carrier, _} <- Runs]),
    lists:foreach(
        fun({_, _, Case} = Id) ->
            print_row(Width, atom_to_list(Case), [cell(maps:get(Id, Results, missing)) || {_, Results} <- Runs])
        end,
        Ids).

print_row(Width, Name, Cells) ->
    Padded = [string:pad(Cell, 17) || Cell <- Cells],
    io:format("~ts~n", [string:trim([string:pad(Name, Width + 2) | Padded], trailing)]).

cell({ok, Ms}) -> io_lib:format("ok ~7.1f s", [Ms / 1000]);
cell(Result) -> word(Result).

-spec word({outcome(), integer()} | missing) -> string().
word({ok, _}) -> "ok";
word({{failed, _}, _}) -> "FAILED";
word({{skipped, _}, _}) -> "skipped";
word({died, _}) -> "DIED";
word(missing) -> "not run".

print_reasons(Runs, Ids) ->
    Lines = [
        io_lib:format("~ts, ~ts: ~ts ~ts~n", [Case, Carrier, word(Result), Reason])
     || {_, _, Case} = Id <- Ids,
        {Carrier, Results} <- Runs,
        {{_, Reason}, _} = Result <- [maps:get(Id, Results, missing)]
    ],
    io:format("~n~ts", [Lines]).

print_summary(Carrier, Results) ->
    {Passed, Failed, Skipped} = counts(Results),
    io:format("~ts: ~b passed, ~b failed, ~b skipped~n", [Carrier, Passed, Failed, Skipped]).

counts(Results) ->
    Words = [word(Result) || Result <- maps:values(Results)],
    Count = fun(Wanted) -> length([Word || Word <- Words, lists:member(Word, Wanted)]) end,
    {Count(["ok"]), Count(["FAILED", "DIED"]), Count(["skipped"])}.

print_verdict(Worse, Runs) ->
    [
        io:format("~ts: ~ts passes on stock TCP and does not pass here~n", [Carrier, Case])
     || {Carrier, {_, _, Case}} <- Worse
    ],
    case {Worse, Runs} of
        {[], [_, _ | _]} -> io:format("Every case that passes on stock TCP passes on Beamway.~n");
        _ -> ok
    end.

store(File, Runs, Ids) ->
    Object = #{
        bench => <<"otp-suites">>,
        otp => list_to_binary(erlang:system_info(otp_release)),
        erts => list_to_binary(erlang:system_info(version)),
        machine => list_to_binary(erlang:system_info(system_architecture)),
        commit => list_to_binary(os:getenv("OTP_SUITES_COMMIT", "unknown")),
        cases => [case_object(Id, Runs) || Id <- Ids]
    },
    ok = file:write_file(File, [jiffy:encode(Object, [pretty]), "\n"]),
    io:format("stored in ~ts~n", [File]).

case_object({Suite, Group, Case} = Id, Runs) ->
    Outcomes = [{list_to_binary(Carrier), outcome_object(maps:get(Id, Results, missing))} || {Carrier, Results} <- Runs],
    #{suite => Suite, group => Group, 'case' => Case, outcomes => maps:from_list(Outcomes)}.

outcome_object(missing) -> #{result => <<"not run">>};
outcome_object({_, Ms} = Result) -> #{result => list_to_binary(string:lowercase(word(Result))), ms => Ms}.

selected("all") ->
    suites();
selected(Names) ->
    lists:map(
        fun(Name) ->
            case [Entry || {Suite, _} = Entry <- suites(), atom_to_list(Suite) =:= Name] of
                [Entry] -> Entry;
                [] -> stop("no suite ~ts; expected one of ~0tp", [Name, [Suite || {Suite, _} <- suites()]])
            end
        end,
        string:lexemes(Names, ",")).

-spec stop(string(), [term()]) -> no_return().
stop(Format, Args) ->
    io:format(standard_error, "otp_suites: " ++ Format ++ "~n", Args),
    halt(2).
