%% SPDX-License-Identifier: Apache-2.0
%% @doc `beamway report': writes what a node knows about its links, and what this host supports, to a file that can be attached to a bug report.
-module(beamway_cli_report).

-export([write/1]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

%% @doc Queries the node, writes the file and returns its name. Like beamway_cli_ask:open/1, it may only be called in a VM that exits afterwards.
-spec write(map()) -> {ok, file:filename()} | {error, Text :: unicode:chardata()}.
write(Options) ->
    %% The host must be examined before this VM becomes a node.
    Doctor = beamway_cli_doctor:to_json(beamway_cli_doctor:examine()),
    case beamway_cli_links:ask(maps:with([node, cookie_file], Options)) of
        {ok, #{node := Node} = Links} ->
            try
                Ask = fun(Module, Function, Arguments) -> beamway_cli_ask:call(Node, Module, Function, Arguments) end,
                Report = #{node => Node, at => list_to_binary(calendar:system_time_to_rfc3339(erlang:system_time(second))),
                           beamway => iolist_to_binary(Ask(beamway, version, [])), otp => iolist_to_binary(Ask(erlang, system_info, [otp_release])),
                           options => maps:map(fun(_, Value) -> unicode:characters_to_binary(io_lib:format("~0tp", [Value])) end, Ask(beamway_links, config, [])),
                           links => beamway_cli_links:to_json(Links), ends => Ask(beamway, why, []), host => Doctor},
                written(file_of(Options), hidden(Options, names(Report), jiffy:encode(Report, [pretty])))
            catch throw:Text -> {error, Text}
            end;
        {error, _} = Error -> Error
    end.

file_of(#{out := File}) -> File;
file_of(_) ->
    {{Year, Month, Day}, {Hour, Minute, Second}} = calendar:local_time(),
    lists:flatten(io_lib:format("beamway-report-~b~2..0b~2..0b-~2..0b~2..0b~2..0b.json", [Year, Month, Day, Hour, Minute, Second])).

%% Only the owner may read the file, because it reveals much about a cluster.
written(File, Bytes) ->
    case beamway_cli_output:write_private(File, [Bytes, $\n]) of
        ok -> {ok, File};
        {error, Reason} -> {error, io_lib:format("cannot write ~ts: ~ts; give another name with --out", [File, file:format_error(Reason)])}
    end.

%% ---- without names

%% Returns all nodes whose names are in the report.
names(#{node := Node, ends := Ends, links := {Links}}) ->
    {links, Up} = lists:keyfind(links, 1, Links),
    lists:usort([atom_to_binary(Name) || Name <- [Node] ++ [Of || #{node := Of} <- Ends] ++ [Of || {Fields} <- Up, {node, Of} <- Fields]]).

hidden(#{hide_names := true}, Nodes, Text) -> without_names(Nodes, iolist_to_binary(Text));
hidden(_, _, Text) -> Text.

%% Replaces each name with the same placeholder wherever it occurs: first whole node names, then hosts, then addresses.
without_names(Nodes, Text) ->
    {ok, Own} = inet:gethostname(),
    Hosts = lists:usort([list_to_binary(Own) | [lists:last(binary:split(Node, <<"@">>)) || Node <- Nodes]]),
    Numbered = fun(Names, Prefix) -> [{Name, iolist_to_binary([Prefix, integer_to_list(N)])} || {N, Name} <- lists:enumerate(Names)] end,
    Named = lists:foldl(fun({Name, Instead}, Acc) -> re:replace(Acc, [<<"\\b\\Q">>, Name, <<"\\E\\b">>], Instead, [global, {return, binary}]) end, Text,
                        longest_first(Numbered(Nodes, "node@")) ++ longest_first(Numbered(Hosts, "host"))),
    Found = case re:run(Named, "\\b\\d{1,3}(?:\\.\\d{1,3}){3}\\b|\\b[0-9a-f]{1,4}(?::[0-9a-f]{0,4}){2,7}\\b", [global, {capture, first, binary}]) of
                {match, Matches} -> lists:usort(lists:append(Matches));
                nomatch -> []
            end,
    %% The longest come first, because one address may be a prefix of another. Times of day look like IPv6 addresses except for their first part.
    ByLength = lists:sort(fun(A, B) -> byte_size(A) >= byte_size(B) end, [Address || Address <- Found, inet:parse_strict_address(binary_to_list(Address)) =/= {error, einval}]),
    lists:foldl(fun({Address, Instead}, Acc) -> binary:replace(Acc, Address, Instead, [global]) end, Named, Numbered(ByLength, "address")).

%% One name may be part of another, as `a@h' is of `my-a@h'.
longest_first(Numbered) -> lists:sort(fun({A, _}, {B, _}) -> byte_size(A) >= byte_size(B) end, Numbered).

-ifdef(TEST).

part_of_another_name_test() ->
    Hidden = without_names([<<"a52@vm1">>, <<"my-a52@vm1">>], <<"\"my-a52@vm1\" and \"a52@vm1\"">>),
    ?assertEqual(<<"\"node@2\" and \"node@1\"">>, Hidden).

names_test() ->
    Text = <<"{\"node\": \"shop@web1\", \"peer\": \"shop2@web1\", \"address\": \"10.0.0.12:4000\", \"x\": \"10.0.0.1:4 [fd00::12:1]:9\", \"at\": \"2026-01-02T10:20:30+00:00\", \"host\": \"web1\"}">>,
    Hidden = without_names([<<"shop2@web1">>, <<"shop@web1">>], Text),
    [?assertEqual(nomatch, binary:match(Hidden, Name)) || Name <- [<<"shop">>, <<"web1">>, <<"10.0">>, <<"fd00">>]],
    [?assertNotEqual(nomatch, binary:match(Hidden, Kept)) || Kept <- [<<"node@1">>, <<"node@2">>, <<"address2:4000">>, <<"10:20:30">>, <<"\"host\": \"host">>]].
-endif.
