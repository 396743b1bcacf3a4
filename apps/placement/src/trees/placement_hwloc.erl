%% SPDX-License-Identifier: Apache-2.0
%% @doc Reads the internal structure of a machine from hwloc's XML (`lstopo-no-graphics --of xml', in Debian's hwloc-nox;
%% formats 1 and 2) as a tree of processing units. All functions are pure.
%%
%% Objects that contain processing units (machine, package, die, group, cache, core) become groups. Processing units become
%% hosts called `pu0', `pu1' and so on, with the numbers that the operating system uses. In format 2, NUMA nodes are not
%% part of the tree; where they matter, hwloc adds a group object. Devices are left out.
-module(placement_hwloc).

-export([from_xml/1, path/2, format_error/1]).

-export_type([error/0]).

-type error() :: not_hwloc | {unbalanced, Offset :: non_neg_integer()} | no_units.

-define(GROUPS, ["Machine", "System", "Package", "Socket", "Die", "Group", "NUMANode", "Cache", "L1Cache", "L2Cache", "L3Cache",
                 "L4Cache", "L5Cache", "Core"]).

%% @doc Returns the tree described by an XML file.
-spec from_xml(unicode:chardata()) -> {ok, placement_slurm:hosts()} | {error, error()}.
from_xml(Text) ->
    Binary = unicode:characters_to_binary(Text),
    case is_binary(Binary) andalso re:run(Binary, "<topology[\\s>]") of
        {match, _} -> objects(Binary);
        _ -> {error, not_hwloc}
    end.

objects(Binary) ->
    case re:run(Binary, "<(/?)object\\b([^>]*?)(/?)>", [global, {capture, all, index}]) of
        {match, Tags} -> built([tag(Tag, Binary) || Tag <- Tags]);
        nomatch -> {error, no_units}
    end.

tag([{Offset, _}, {_, Closing}, Attributes, {_, Alone}], Binary) ->
    Text = binary:part(Binary, Attributes),
    {Offset, if Closing > 0 -> close; Alone > 0 -> alone; true -> open end, {attribute(Text, "type"), attribute(Text, "os_index")}}.

attribute(Text, Name) ->
    case re:run(Text, ["\\b", Name, "=\"([^\"]*)\""], [{capture, all_but_first, list}]) of
        {match, [Value]} -> Value;
        nomatch -> ""
    end.

built(Tags) ->
    case nested(Tags, [{"top", "", []}]) of
        {error, _} = Error -> Error;
        [] -> {error, no_units};
        [Root] -> {ok, Root};
        Roots -> {ok, {group, "machine", Roots}}
    end.

%% Maintains a stack of open objects, each with the content that has been read so far.
nested([], [{"top", _, Below}]) -> lists:reverse(Below);
nested([], _) -> {error, {unbalanced, 0}};
nested([{_, open, {Type, Index}} | Tags], Stack) -> nested(Tags, [{Type, Index, []} | Stack]);
nested([{_, alone, {Type, Index}} | Tags], [{Above, Number, Below} | Stack]) ->
    nested(Tags, [{Above, Number, vertices({Type, Index, []}) ++ Below} | Stack]);
nested([{_, close, _} | Tags], [Object, {Above, Number, Below} | Stack]) ->
    nested(Tags, [{Above, Number, vertices(Object) ++ Below} | Stack]);
nested([{Offset, close, _} | _], _) -> {error, {unbalanced, Offset}}.

vertices({"PU", Index, _}) -> [{host, "pu" ++ Index}];
vertices({_, _, []}) -> [];
vertices({Type, Index, Below}) ->
    case lists:member(Type, ?GROUPS) of
        true -> [{group, string:lowercase(Type) ++ Index, lists:reverse(Below)}];
        false -> Below
    end.

%% @doc Returns the objects of the machine that contain all of these processing units, outermost first, or an empty list if
%% only the whole machine contains them. If several objects contain the same units, only the outermost is returned. Caches
%% have no number, so each is named after its first unit.
-spec path(placement_slurm:hosts(), Units :: [non_neg_integer(), ...]) -> [string()].
path(Machine, Units) -> path(Machine, units(Machine), ["pu" ++ integer_to_list(Unit) || Unit <- Units]).

path({host, _}, _, _) -> [];
path({group, _, Children}, All, Wanted) ->
    case [{Child, Own} || Child <- Children, Own <- [units(Child)], Wanted -- Own =:= []] of
        [] -> [];
        [{Child, All}] -> path(Child, All, Wanted);
        [{Child, Own}] -> [numbered(element(2, Child), Own) | path(Child, Own, Wanted)]
    end.

units({host, Name}) -> [Name];
units({group, _, Children}) -> lists:append([units(Child) || Child <- Children]).

numbered(Name, [First | _]) ->
    case lists:member(lists:last(Name), "0123456789") of
        true -> Name;
        false -> Name ++ "-" ++ First
    end.

%% @doc Formats an error as text for users.
-spec format_error(error()) -> unicode:chardata().
format_error(not_hwloc) -> "this is not hwloc's XML; make it with: lstopo-no-graphics --of xml";
format_error({unbalanced, Offset}) -> io_lib:format("the XML is cut off or broken (an object at byte ~b does not match)", [Offset]);
format_error(no_units) -> "the XML holds no processing unit".

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

two_packages_test() ->
    Text = "<?xml version=\"1.0\"?><topology version=\"2.0\"><object type=\"Machine\" os_index=\"0\"><info name=\"a\" value=\"b\"/>"
           "<object type=\"Package\" os_index=\"0\"><object type=\"NUMANode\" os_index=\"0\"/><object type=\"Core\" os_index=\"0\"><object type=\"PU\" os_index=\"0\"/>"
           "<object type=\"PU\" os_index=\"2\"/></object></object><object type=\"Package\" os_index=\"1\"><object type=\"Core\" os_index=\"0\">"
           "<object type=\"PU\" os_index=\"1\"/></object></object><object type=\"Bridge\" os_index=\"0\"><object type=\"PCIDev\"/></object></object></topology>",
    ?assertEqual({ok, {group, "machine0", [{group, "package0", [{group, "core0", [{host, "pu0"}, {host, "pu2"}]}]},
                                           {group, "package1", [{group, "core0", [{host, "pu1"}]}]}]}},
                 from_xml(Text)).

path_test_() ->
    Core = fun(N, Units) -> {group, "l2cache", [{group, "core" ++ N, [{host, Unit} || Unit <- Units]}]} end,
    Machine = {group, "machine0", [{group, "package0", [{group, "l3cache", [Core("0", ["pu0", "pu4"]), Core("1", ["pu1", "pu5"])]},
                                                        {group, "l3cache", [Core("2", ["pu2", "pu6"])]}]},
                                   {group, "package1", [{group, "core3", [{host, "pu3"}]}]}]},
    [?_assertEqual({Units, Want}, {Units, path(Machine, Units)})
     || {Units, Want} <- [{[0, 1, 2, 3], []}, {[0, 3], []}, {[0, 2], ["package0"]}, {[0, 5], ["package0", "l3cache-pu0"]}, {[1, 5], ["package0", "l3cache-pu0", "l2cache-pu1"]},
                          {[6, 2], ["package0", "l3cache-pu2"]}, {[2], ["package0", "l3cache-pu2", "pu2"]}, {[3], ["package1"]}, {[9], []}]]
        ++ [?_assertEqual(["core1"], path({group, "machine0", [{group, "package0", [{group, "core0", [{host, "pu0"}]}, {group, "core1", [{host, "pu1"}]}]}]}, [1])),
            ?_assertEqual([], path({host, "pu0"}, [0]))].

bad_input_test_() ->
    [{unicode:characters_to_list(format_error(Want)), ?_assertEqual({error, Want}, from_xml(Text))}
     || {Want, Text} <- [{not_hwloc, "<html/>"}, {not_hwloc, <<255, 254>>}, {no_units, "<topology></topology>"},
                         {no_units, "<topology><object type=\"Machine\"/></topology>"},
                         {{unbalanced, 0}, "<topology><object type=\"Machine\">"}, {{unbalanced, 10}, "<topology></object></topology>"}]].
-endif.
