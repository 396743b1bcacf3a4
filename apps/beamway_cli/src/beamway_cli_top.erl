%% SPDX-License-Identifier: Apache-2.0
%% @doc `beamway top': shows repeatedly how much the links of a node or a cluster carry per second.
%%
%% Called by {@link beamway_cli}. Each screen needs one remote call for any number of links, and the counters are subtracted here. With `--cluster'
%% the node queries the others, so this command needs only one connection. A link that came up between two samples counts from zero. With
%% `--senders' it shows which processes fill the links, based on the last ten seconds as recorded by the nodes.
-module(beamway_cli_top).

-export([run/2]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-define(CALL_MS, 5000).
-define(ROWS, 24).
%% The table shows this many senders per link.
-define(SENDERS, 3).
%% The lines of heading, column names and prompt.
-define(OTHER_LINES, 4).

-type sample() :: #{at_us := integer(), links := #{{node(), node()} => map()}, failed := [node()]}.
-type row() :: #{atom() => term()}.

%% @doc Queries, and prints with `Say', until the count is reached, the user quits, or the node is gone.
-spec run(map(), fun((unicode:chardata()) -> ok)) -> ok | {usage | error, unicode:chardata()}.
run(#{interval := Text} = Options, Say) when is_list(Text) ->
    case seconds(Text) of
        {ok, Interval} -> run(Options#{interval := Interval}, Say);
        error -> {usage, ["--interval ", Text, ": expected seconds from 0.1 to 60"]}
    end;
run(#{count := Count}, _) when Count < 1 -> {usage, "--count: expected a number from 1"};
run(#{senders := true, sort := _}, _) -> {usage, "--senders and --sort: expected one of them"};
run(Options, Say) ->
    Sort = maps:get(sort, Options, "both"),
    case sort_key(Sort) of
        {ok, Key} ->
            beamway_result:then(beamway_cli_ask:open(Options), fun(Node) -> shown(Options#{sort => Key, node => Node, say => Say}) end);
        error -> {usage, ["--sort ", Sort, ": expected one of ", lists:join(", ", [atom_to_list(K) || {_, K, _} <- columns()])]}
    end.

seconds(Text) ->
    case string:to_float(Text) of
        {error, _} ->
            case string:to_integer(Text) of
                {Whole, ""} when Whole >= 1, Whole =< 60 -> {ok, Whole};
                _ -> error
            end;
        {Seconds, ""} when Seconds >= 0.1, Seconds =< 60 -> {ok, Seconds};
        _ -> error
    end.

sort_key(Text) ->
    case [Key || {_, Key, _} <- columns(), atom_to_list(Key) =:= Text] of
        [Key] -> {ok, Key};
        [] -> error
    end.

%% The letter that selects a column, the column's key, and whether the smallest or the largest value comes first.
columns() ->
    [{$n, node, smallest}, {$l, link, smallest}, {$i, in, largest}, {$o, out, largest}, {$b, both, largest}, {$f, frames, largest},
     {$d, doorbells, largest}, {$s, stalls, largest}, {$r, fill, largest}, {$u, queue, largest}].

shown(Options) ->
    Terminal = os:getenv("BEAMWAY_TOP_TERMINAL") =:= "yes" andalso not is_map_key(json, Options),
    Keys = case Terminal of
               true -> open_port({fd, 0, 0}, [in, binary]);
               false -> none
           end,
    Count = maps:get(count, Options, case Terminal of true -> infinity; false -> 1 end),
    Shown = Options#{terminal => Terminal, keys => Keys},
    try
        case Options of
            #{senders := true} -> loop_senders(Shown, Count);
            #{} -> loop(Shown, Count, sample(Options))
        end
    catch throw:{top, Text} -> {error, Text}
    end.

%% The nodes' own data covers the last ten seconds, so the first screen does not have to wait.
loop_senders(#{interval := Interval} = Options, Count) ->
    ok = picture_of_senders(Options, asked(senders, Options)),
    case less(Count) of
        0 -> ok;
        Left ->
            case pause(Options, round(Interval * 1000)) of
                quit -> ok;
                Changed -> loop_senders(Changed, Left)
            end
    end.

loop(_, 0, _) -> ok;
loop(#{interval := Interval} = Options, Count, Before) ->
    case pause(Options, round(Interval * 1000)) of
        quit -> ok;
        Changed ->
            Now = sample(Changed),
            ok = picture(Changed, Before, Now),
            loop(Changed, less(Count), Now)
    end.

less(infinity) -> infinity;
less(Count) -> Count - 1.

%% Waits until the interval is over. Letters that arrive in the meantime change the sort order.
pause(#{keys := Keys} = Options, Ms) ->
    End = erlang:monotonic_time(millisecond) + Ms,
    receive
        {Keys, {data, Letters}} ->
            case lists:foldl(fun pressed/2, Options, binary_to_list(Letters)) of
                quit -> quit;
                Changed -> pause(Changed, max(0, End - erlang:monotonic_time(millisecond)))
            end
    after Ms -> Options
    end.

pressed(_, quit) -> quit;
pressed(Letter, _) when Letter =:= $q; Letter =:= 3; Letter =:= 4 -> quit;
pressed(Letter, Options) ->
    case lists:keyfind(Letter, 1, columns()) of
        {_, Key, _} -> Options#{sort := Key};
        false -> Options
    end.

-spec sample(map()) -> sample().
sample(Options) ->
    AtUs = erlang:monotonic_time(microsecond),
    Asked = asked(info, Options),
    #{at_us => AtUs, failed => failed(Asked),
      links => maps:from_list([{{From, To}, Info} || {From, {ok, Infos}} <- Asked, #{node := To} = Info <- Infos, To =/= node()])}.

failed(Asked) -> [Node || {Node, Answer} <- Asked, element(1, Answer) =/= ok].

asked(Function, #{node := Node} = Options) ->
    Nodes = [Node | [N || is_map_key(cluster, Options), N <- call(Node, erlang, nodes, [connected]), N =/= node()]],
    Answers = case Nodes of
                  [Node] -> [{ok, call(Node, beamway, Function, [])}];
                  _ -> call(Node, erpc, multicall, [Nodes, beamway, Function, [], ?CALL_MS])
              end,
    lists:zip(Nodes, Answers).

call(Node, Module, Function, Arguments) ->
    try erpc:call(Node, Module, Function, Arguments, 2 * ?CALL_MS)
    catch
        error:{exception, undef, _} ->
            throw({top, beamway_cli_ask:no_function(Node, Module, Function, length(Arguments))});
        error:{erpc, noconnection} -> throw({top, io_lib:format("node ~ts has ended", [Node])});
        error:{erpc, Reason} -> throw({top, io_lib:format("node ~ts did not answer: ~tp", [Node, Reason])});
        _:Reason -> throw({top, io_lib:format("node ~ts answered with an error: ~0tP", [Node, Reason, 15])})
    end.

%% ---- rates ----

-spec rows(sample(), sample()) -> [row()].
rows(#{at_us := Before, links := Old}, #{at_us := Now, links := New}) ->
    Seconds = max(1, Now - Before) / 1000000,
    [row(Key, Info, same_link(Info, maps:get(Key, Old, #{})), Seconds) || {Key, Info} <- lists:sort(maps:to_list(New))].

%% A link that was set up again between two samples has new counters.
same_link(#{since := Since, link := Link}, #{since := Since, link := Link} = Old) -> Old;
same_link(_, _) -> #{}.

row({From, To}, Info, Old, Seconds) ->
    Rate = fun(Keys) -> lists:sum([max(0, number(Key, Info) - number(Key, Old)) || Key <- Keys]) / Seconds end,
    #{from => From, node => To, link => maps:get(link, Info), why => maps:get(reason, Info, <<>>),
      in => Rate([bytes_in]), out => Rate([bytes_out]), both => Rate([bytes_in, bytes_out]), frames => Rate([frames_in, frames_out]),
      doorbells => Rate([doorbells_in, doorbells_out]), stalls => Rate([stalls]), fill => fill(Info), queue => number(queue_bytes, Info)}.

number(Key, Info) ->
    case Info of
        #{Key := Value} when is_integer(Value) -> Value;
        #{} -> 0
    end.

fill(#{ring_bytes := Size, ring_fill_in := In, ring_fill_out := Out}) when Size > 0 -> max(In, Out) / Size;
fill(_) -> 0.0.

sorted(Rows, Key) ->
    {_, _, First} = lists:keyfind(Key, 2, columns()),
    Order = fun(Row) -> {case First of largest -> -maps:get(Key, Row); smallest -> maps:get(Key, Row) end, maps:get(from, Row), maps:get(node, Row)} end,
    [Row || {_, Row} <- lists:sort([{Order(Row), Row} || Row <- Rows])].

%% ---- screens ----

picture(#{say := Say, sort := Key} = Options, Before, #{failed := Failed} = Now) ->
    Rows = sorted(rows(Before, Now), Key),
    case Options of
        #{json := true} -> Say([jiffy:encode(to_json(Options, Rows, Failed)), $\n]);
        #{terminal := true} -> Say(["\e[H\e[J", to_text(Options, lists:sublist(Rows, room()), length(Rows), Failed), "\nsort by a letter: n l i o b f d s r u; q ends"]);
        #{} -> Say(to_text(Options, Rows, length(Rows), Failed))
    end.

picture_of_senders(#{say := Say} = Options, Asked) ->
    Links = fullest([{From, To, Senders} || {From, {ok, Of}} <- Asked, {To, Senders} <- maps:to_list(Of), To =/= node()]),
    case Options of
        #{json := true} -> Say([jiffy:encode(senders_to_json(Options, Links, failed(Asked))), $\n]);
        #{terminal := true} -> Say(["\e[H\e[J", senders_to_text(Options, Links, failed(Asked), room()), "\nq ends"]);
        #{} -> Say(senders_to_text(Options, Links, failed(Asked), infinity))
    end.

fullest(Links) ->
    Sum = fun(Key, Senders) -> -lists:sum([maps:get(Key, Sender) || Sender <- Senders]) end,
    [Link || {_, Link} <- lists:sort([{{Sum(waiting, Senders), Sum(sent, Senders)}, Link} || {_, _, Senders} = Link <- Links])].

senders_to_json(#{node := Node}, Links, Failed) ->
    {[{node, Node}, {not_answering, Failed}, {links, [#{from => From, node => To, senders => [maps:map(fun sender_json/2, Sender) || Sender <- Senders]} || {From, To, Senders} <- Links]}]}.

sender_json(pid, Pid) -> iolist_to_binary(pid_text(Pid));
sender_json(initial_call, Call) -> unicode:characters_to_binary(call_text(Call));
sender_json(_, Value) -> Value.

call_text({Module, Function, Arity}) -> io_lib:format("~ts:~ts/~b", [Module, Function, Arity]).

-spec senders_to_text(map(), [{From :: node(), To :: node(), [beamway:sender()]}], [node()], Room :: pos_integer() | infinity) -> unicode:chardata().
senders_to_text(#{node := Node} = Options, Links, Failed, Room) ->
    Rows = [[atom_to_list(From) || is_map_key(cluster, Options)] ++ [atom_to_list(To) | sender_cells(Sender)] || {From, To, Senders} <- Links, Sender <- lists:sublist(Senders, ?SENDERS)],
    Shown = case Room of infinity -> Rows; _ -> lists:sublist(Rows, Room) end,
    [io_lib:format("~ts: ~ts~ts~n", [Node, case Rows of [] -> "no process has sent much in the last 10 s"; _ -> "who sent most in the last 10 s" end, no_answer(Failed)]),
     [beamway_cli_output:table([["FROM" || is_map_key(cluster, Options)] ++ ["NODE", "PID", "CLASS", "SENT/S", "WAITING", "PROCESS"] | Shown]) || Rows =/= []]].

%% Returns the pid as it is written on its own node.
pid_text(Pid) -> ["<0" | lists:dropwhile(fun(C) -> C =/= $. end, pid_to_list(Pid))].

sender_cells(#{pid := Pid, class := Class, bytes_per_s := PerSecond, waiting := Waiting} = Sender) ->
    [pid_text(Pid), atom_to_list(Class), amount(PerSecond), amount(Waiting), process_text(Sender)].

process_text(#{name := Name}) -> atom_to_binary(Name);
process_text(#{label := Label}) -> Label;
process_text(#{initial_call := Call}) -> call_text(Call);
process_text(#{}) -> "has ended".

room() ->
    case io:rows(standard_error) of
        {ok, Rows} -> max(1, Rows - ?OTHER_LINES);
        {error, _} -> ?ROWS - ?OTHER_LINES
    end.

to_json(#{node := Node}, Rows, Failed) ->
    {[{node, Node}, {not_answering, Failed}, {links, [maps:map(fun rounded/2, Row) || Row <- Rows]}]}.

rounded(_, Value) when is_float(Value) -> round(Value * 1000) / 1000;
rounded(_, Value) -> Value.

-spec to_text(map(), [row()], non_neg_integer(), [node()]) -> unicode:chardata().
to_text(#{node := Node} = Options, Rows, Count, Failed) ->
    [io_lib:format("~ts: ~b ~s, sorted by ~s~ts~ts~n", [Node, Count, case Count of 1 -> "link"; _ -> "links" end, maps:get(sort, Options), [io_lib:format(", ~b of them shown", [length(Rows)]) || length(Rows) < Count],
                                                          no_answer(Failed)]),
     beamway_cli_output:table([heading(Options) | [cells(Options, Row) || Row <- Rows]])].

no_answer([]) -> "";
no_answer(Failed) -> [", no answer from ", lists:join(", ", [atom_to_list(N) || N <- Failed])].

heading(Options) -> ["FROM" || is_map_key(cluster, Options)] ++ ["NODE", "LINK", "IN/S", "OUT/S", "FRAMES/S", "BELLS/S", "STALLS/S", "FILL", "QUEUE", "WHY"].

cells(Options, #{from := From, node := Node, link := Link, why := Why, fill := Fill} = Row) ->
    [atom_to_list(From) || is_map_key(cluster, Options)]
        ++ [atom_to_list(Node), atom_to_list(Link)] ++ [amount(maps:get(Key, Row)) || Key <- [in, out, frames, doorbells, stalls]]
        ++ [io_lib:format("~b %", [round(Fill * 100)]), amount(maps:get(queue, Row)), Why].

%% Formats a value as three digits and a letter.
amount(Value) -> amount(Value, ["", "k", "M", "G", "T"]).

amount(Value, [Unit | Larger]) when Value < 999.5; Larger =:= [] ->
    case Unit of
        "" -> integer_to_list(round(Value));
        _ when Value < 9.995 -> io_lib:format("~.2f~s", [float(Value), Unit]);
        _ when Value < 99.95 -> io_lib:format("~.1f~s", [float(Value), Unit]);
        _ -> io_lib:format("~b~s", [round(Value), Unit])
    end;
amount(Value, [_ | Larger]) -> amount(Value / 1000, Larger).

-ifdef(TEST).

amount_test_() ->
    [?_assertEqual(Text, lists:flatten(amount(Value)))
     || {Value, Text} <- [{0, "0"}, {0.4, "0"}, {999, "999"}, {999.6, "1.00k"}, {1000, "1.00k"}, {12345, "12.3k"}, {999949, "1.00M"}, {123456789, "123M"}, {5.0e15, "5000T"}]].

looks() ->
    Link = #{node => 'b@h', link => shm, reason => <<"same host">>, since => 1, bytes_in => 1000, bytes_out => 0, frames_in => 1, frames_out => 0, stalls => 0,
             ring_bytes => 100, ring_fill_in => 0, ring_fill_out => 50},
    {#{at_us => 0, failed => [], links => #{{'a@h', 'b@h'} => Link}},
     #{at_us => 2000000, failed => [], links => #{{'a@h', 'b@h'} => Link#{bytes_in := 5000}, {'a@h', 'c@h'} => Link#{node := 'c@h', link := tcp, bytes_in := 2000}}}}.

rates_test() ->
    {Before, Now} = looks(),
    [B, C] = rows(Before, Now),
    ?assertMatch(#{node := 'b@h', in := 2000.0, fill := 0.5, out := 0.0}, B),
    ?assertMatch(#{node := 'c@h', in := 1000.0}, C),
    ?assertMatch([#{node := 'b@h'}, #{node := 'c@h'}], sorted([C, B], both)),
    ?assertMatch([#{node := 'b@h'}, #{node := 'c@h'}], sorted([C, B], link)).

%% The counters of the new link are smaller than those of the old one.
renewed_link_test() ->
    {#{links := Links} = Before, _} = looks(),
    Now = Before#{at_us := 1000000, links := maps:map(fun(_, Link) -> Link#{since := 2, bytes_in := 10} end, Links)},
    ?assertMatch([#{in := 10.0}], rows(Before, Now)).

text_test() ->
    {Before, Now} = looks(),
    Text = unicode:characters_to_list(to_text(#{node => 'a@h', sort => both}, sorted(rows(Before, Now), both), 2, ['d@h'])),
    ?assertEqual(["a@h: 2 links, sorted by both, no answer from d@h",
                  "NODE  LINK  IN/S   OUT/S  FRAMES/S  BELLS/S  STALLS/S  FILL  QUEUE  WHY",
                  "b@h   shm   2.00k  0      0         0        0         50 %  0      same host",
                  "c@h   tcp   1.00k  0      1         0        0         50 %  0      same host"], string:lexemes(Text, "\n")).

seconds_test_() ->
    [?_assertEqual({ok, 2}, seconds("2")), ?_assertEqual({ok, 0.5}, seconds("0.5")) | [?_assertEqual(error, seconds(Text)) || Text <- ["0", "0.05", "61", "x", "", "1s", "-1"]]].

letters_test_() ->
    [?_assertEqual(quit, lists:foldl(fun pressed/2, #{sort => both}, "nq")), ?_assertEqual(#{sort => stalls}, lists:foldl(fun pressed/2, #{sort => both}, "xs"))].
-endif.
