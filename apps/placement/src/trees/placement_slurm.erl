%% SPDX-License-Identifier: Apache-2.0
%% @doc Converts Slurm's descriptions of a network, `topology.conf' and `topology.yaml', to a tree of hosts, and converts a
%% tree to `topology.conf'. All functions are pure.
%%
%% Follows the documentation of Slurm 25.05: topology.conf(5) (`SwitchName= Switches= Nodes= LinkSpeed=',
%% `BlockName= Nodes=', `BlockSizes='; parameter names in upper or lower case, spaces around `=', quotes around values,
%% comments after `#', lines continued after `\') and topology.yaml(5). Input that Slurm accepts with a warning is also
%% accepted with a warning here. A host below two switches, or a switch below two others, as in a network with two
%% spines, is attached to the first. A name that occurs twice in a list counts once. If a YAML file has several
%% topologies, the one with `cluster_default: true' is used, and otherwise the first.
-module(placement_slurm).

-export([from_conf/1, from_yaml/1, to_conf/1, format_error/1, format_warning/1]).

-export_type([hosts/0, error/0, warning/0]).

-type hosts() :: {host, string()} | {group, Name :: string(), [hosts()]}.
-type error() :: {line, pos_integer(), Why :: term()} | {unknown_switch, Child :: string(), Parent :: string()}
               | {cycle, [string()]} | {twice, string()} | no_switch
               | {yaml, pos_integer(), string()} | {not_a_topology, string()} | placement_hostlist:error().

-type warning() :: {two_parents, Name :: string(), Kept :: string(), Other :: string()} | {named_twice, Name :: string(), Switch :: string()}.

-type switch() :: {Name :: string(), Switches :: [string()], Hosts :: [string()]}.

%% @doc Returns the tree described by a `topology.conf'. If several switches have no switch above them, a root is added.
-spec from_conf(unicode:chardata()) -> {ok, hosts(), [warning()]} | {error, error()}.
from_conf(Text) ->
    guarded(fun() ->
                    Lines = [without_comment(Line) || Line <- string:split(unicode:characters_to_list(Text), "\n", all)],
                    tree(lists:append([switch(Number, Line) || {Number, Line} <- lines(lists:enumerate(Lines))]))
            end).

guarded(Make) ->
    try Make() of
        {Tree, Warnings} -> {ok, Tree, Warnings}
    catch throw:Error -> {error, Error}
    end.

without_comment(Line) -> string:trim(hd(string:split(Line, "#")), trailing).

%% A continued line gets the line number of its first part. The next part is appended with its leading spaces.
lines([]) -> [];
lines([{Number, Line} | Lines]) ->
    case {lists:suffix("\\", Line), Lines} of
        {true, [{_, Next} | Rest]} -> lines([{Number, lists:droplast(Line) ++ Next} | Rest]);
        _ -> [{Number, Words} || Words <- [string:trim(Line)], Words =/= ""] ++ lines(Lines)
    end.

switch(Number, Line) ->
    Fields = maps:from_list(fields(Number, Line)),
    case Fields of
        #{"switchname" := Name} ->
            ok = known(Number, Fields, ["switchname", "switches", "nodes", "linkspeed"]),
            [{Name, expanded(maps:get("switches", Fields, "")), expanded(maps:get("nodes", Fields, ""))}];
        #{"blockname" := Name} ->
            ok = known(Number, Fields, ["blockname", "nodes", "aggregatedblocks"]),
            [{Name, [], expanded(maps:get("nodes", Fields, ""))}];
        #{"blocksizes" := _} -> [];
        #{} -> throw({line, Number, "expected SwitchName=, BlockName= or BlockSizes="})
    end.

fields(_, "") -> [];
fields(Number, Line) ->
    case re:run(Line, "^([\\w.]+)\\s*=\\s*(?:\"([^\"]+)\"|([^\\s\"=]+))(?:\\s+|$)(.*)$", [unicode, {capture, all_but_first, list}]) of
        {match, [Key, Quoted, Plain, Rest]} -> [{string:lowercase(Key), Quoted ++ Plain} | fields(Number, Rest)];
        nomatch -> throw({line, Number, "'" ++ hd(string:lexemes(Line, " \t\r")) ++ "' is not a parameter; expected Name=Value"})
    end.

known(Number, Fields, Names) ->
    case maps:keys(maps:without(Names, Fields)) of
        [] -> ok;
        [Other | _] -> throw({line, Number, "the parameter '" ++ Other ++ "' is not known here"})
    end.

expanded(Text) ->
    case placement_hostlist:expand(Text) of
        {ok, Hosts} -> Hosts;
        {error, Error} -> throw(Error)
    end.

%% @doc Returns the tree described by a `topology.yaml'.
-spec from_yaml(unicode:chardata()) -> {ok, hosts(), [warning()]} | {error, error()}.
from_yaml(Text) ->
    guarded(fun() ->
                    case placement_yaml:decode(Text) of
                        {ok, [_ | _] = Topologies} -> topology(chosen(Topologies));
                        {ok, _} -> throw({not_a_topology, "expected a list of entries such as `- topology: name'"});
                        {error, Error} -> throw(Error)
                    end
            end).

chosen(Topologies) -> hd([T || #{"cluster_default" := "true"} = T <- Topologies] ++ Topologies).

topology(#{"tree" := #{"switches" := Switches}}) when is_list(Switches) ->
    tree([yaml_switch("switch", Switch) || Switch <- Switches]);
topology(#{"block" := #{"blocks" := Blocks}}) when is_list(Blocks) -> tree([yaml_switch("block", Block) || Block <- Blocks]);
topology(#{"flat" := _}) -> throw({not_a_topology, "a flat topology has no tree"});
topology(_) -> throw({not_a_topology, "expected `tree:' with `switches:', or `block:' with `blocks:'"}).

yaml_switch(Kind, #{} = Switch) ->
    case Switch of
        #{Kind := Name} -> {Name, expanded(maps:get("children", Switch, "")), expanded(maps:get("nodes", Switch, ""))};
        #{} -> throw({not_a_topology, "an entry has no `" ++ Kind ++ ":'"})
    end;
yaml_switch(Kind, _) -> throw({not_a_topology, "expected `- " ++ Kind ++ ": name'"}).

%% Attaches every switch and host to a single parent, so that all of them are below a root.
-spec tree([switch()]) -> {hosts(), [warning()]}.
tree([]) -> throw(no_switch);
tree(Switches) ->
    Described = [Name || {Name, _, _} <- Switches],
    _ = [throw({twice, Name}) || Name <- Described -- lists:usort(Described)],
    _ = [throw({unknown_switch, Child, Name}) || {Name, Below, _} <- Switches, Child <- Below, not lists:member(Child, Described)],
    {Parents, FirstWarnings} = parents([{Child, Name} || {Name, Below, _} <- Switches, Child <- Below]),
    {Places, Warnings} = parents([{Host, Name} || {Name, _, Hosts} <- Switches, Host <- Hosts]),
    Known = maps:from_list([{Name, {[Child || Child <- lists:uniq(Below), maps:get(Child, Parents) =:= Name],
                                    [Host || Host <- lists:uniq(Hosts), maps:get(Host, Places) =:= Name]}} || {Name, Below, Hosts} <- Switches]),
    case [Name || Name <- Described, not is_map_key(Name, Parents)] of
        [] -> throw({cycle, cycle(hd(maps:keys(Known)), Parents, [])});
        Roots ->
            Vertices = [vertex(Root, Known) || Root <- Roots],
            case maps:keys(Known) -- lists:append([names(Vertex) || Vertex <- Vertices]) of
                %% Everything below a second spine is already attached to the first spine, so the second one is left out.
                [] -> {rooted(hd([[V || V <- Vertices, has_hosts(V)] || lists:any(fun has_hosts/1, Vertices)] ++ [Vertices])), FirstWarnings ++ Warnings};
                [Lost | _] -> throw({cycle, cycle(Lost, Parents, [])})
            end
    end.

has_hosts({host, _}) -> true;
has_hosts({group, _, Children}) -> lists:any(fun has_hosts/1, Children).

%% Returns the first switch above each host or switch, and warnings about any others.
parents(Pairs) ->
    {Parents, Warnings} = lists:foldl(fun({Child, Name}, {Acc, Said}) ->
                                              case Acc of
                                                  #{Child := Name} -> {Acc, [{named_twice, Child, Name} | Said]};
                                                  #{Child := Kept} -> {Acc, [{two_parents, Child, Kept, Name} | Said]};
                                                  #{} -> {Acc#{Child => Name}, Said}
                                              end
                                      end, {#{}, []}, Pairs),
    {Parents, lists:reverse(Warnings)}.

cycle(Name, Parents, Seen) ->
    case lists:member(Name, Seen) of
        true -> [Name | lists:reverse(lists:takewhile(fun(Other) -> Other =/= Name end, Seen))] ++ [Name];
        false -> cycle(maps:get(Name, Parents), Parents, [Name | Seen])
    end.

vertex(Name, Known) ->
    {Below, Hosts} = maps:get(Name, Known),
    {group, Name, [vertex(Child, Known) || Child <- Below] ++ [{host, Host} || Host <- Hosts]}.

rooted([Root]) -> Root;
rooted(Roots) -> {group, "root", Roots}.

names({group, Name, Children}) -> [Name | lists:append([names(Child) || Child <- Children])];
names({host, _}) -> [].

%% @doc Returns the text of a `topology.conf'. If a group has both hosts and switches, a separate switch is added for
%% the hosts, because in Slurm a switch has only hosts or only switches.
-spec to_conf(hosts()) -> unicode:chardata().
to_conf({host, _} = Host) -> to_conf({group, "root", [Host]});
to_conf({group, Name, Children}) ->
    {Hosts, Groups} = lists:partition(fun(Child) -> element(1, Child) =:= host end, Children),
    case {[H || {host, H} <- Hosts], Groups} of
        {Names, []} -> ["SwitchName=", Name, " Nodes=", placement_hostlist:compress(Names), "\n"];
        {[], _} -> above(Name, Groups);
        {_, _} -> above(Name, Groups ++ [{group, Name ++ "-hosts", Hosts}])
    end.

above(Name, Groups) ->
    [["SwitchName=", Name, " Switches=", lists:join(",", [Group || {group, Group, _} <- Groups]), "\n"] | [to_conf(Group) || Group <- Groups]].

%% @doc Formats an error as text for users, including what to do about it.
-spec format_error(error()) -> unicode:chardata().
format_error({line, Number, Why}) -> io_lib:format("line ~b: ~ts", [Number, Why]);
format_error({unknown_switch, Child, Parent}) ->
    io_lib:format("the switch ~ts is said to hold a switch ~ts, which the file does not describe; add a line for it or take it out", [Parent, Child]);
format_error({cycle, Names}) ->
    io_lib:format("these switches hold each other in a circle: ~ts; a network of switches is a tree", [lists:join(" > ", Names)]);
format_error({twice, Name}) -> io_lib:format("~ts is described twice", [Name]);
format_error(no_switch) -> "the file has neither a switch nor a block";
format_error({not_a_topology, Why}) -> Why;
format_error({yaml, _, _} = Error) -> placement_yaml:format_error(Error);
format_error({hostlist, _, _} = Error) -> placement_hostlist:format_error(Error).

%% @doc Formats a warning as text for users.
-spec format_warning(warning()) -> unicode:chardata().
format_warning({two_parents, Name, Kept, Other}) -> io_lib:format("~ts is below ~ts and below ~ts; the tree has it below ~ts", [Name, Kept, Other, Kept]);
format_warning({named_twice, Name, Switch}) -> io_lib:format("~ts is named twice below ~ts", [Name, Switch]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

two_levels() -> {group, "s2", [{group, "s0", [{host, "n0"}, {host, "n1"}]}, {group, "s1", [{host, "n2"}]}]}.

conf_test_() ->
    [?_assertEqual({ok, two_levels(), []}, from_conf(Text))
     || Text <- ["# tree\nSwitchName=s0 Nodes=n[0-1] LinkSpeed=100\nswitchname=s1 nodes=n2\nSwitchName=s2 Switches=s[0-1]\n",
                 "SwitchName=s2 \\\n Switches=s0,s1\nSwitchName=s0 Nodes=n0,n1\r\nSwitchName=s1 Nodes=n2",
                 "SwitchName=s2 Switches=s0,\\ # goes on\ns1\nSwitchName=s0 Nodes=n\\\r\n[0-\\\n1]\nSwitchName=s1 Nodes=n2",
                 "SwitchName = \"s0\" Nodes=\"n[0-1]\"\nSwitchName= s1\tNodes =n2\nSwitchName=s2 Switches=\"s0,s1\" LinkSpeed = \"1 G\"\n"]].

blocks_test() ->
    ?assertEqual({ok, {group, "root", [{group, "b1", [{host, "a1"}, {host, "a2"}]}, {group, "b2", [{host, "a3"}]}]}, []},
                 from_conf("BlockName=b1 Nodes=a[1-2]\nBlockName=b2 Nodes=a3\nBlockSizes=2,4\n")).

yaml_test() ->
    Text = "---\n- topology: flat\n  cluster_default: false\n  flat: true\n- topology: net\n  cluster_default: true\n  tree:\n    switches:\n"
           "      - switch: s2\n        children: s[0-1]\n      - switch: s0\n        nodes: n[0-1]\n      - switch: s1\n        nodes: n2\n",
    ?assertEqual({ok, two_levels(), []}, from_yaml(Text)),
    ?assertEqual({ok, {group, "b", [{host, "n1"}]}, []}, from_yaml("- topology: x\n  block:\n    block_sizes:\n      - 1\n    blocks:\n      - block: b\n        nodes: n1\n")).

conf_comes_back_test() ->
    ?assertEqual({ok, two_levels(), []}, from_conf(to_conf(two_levels()))),
    ?assertMatch({ok, {group, "r", [{group, "s", _}, {group, "r-hosts", [{host, "c"}]}]}, []},
                 from_conf(to_conf({group, "r", [{host, "c"}, {group, "s", [{host, "a"}, {host, "b"}]}]}))).

taken_with_a_warning_test_() ->
    Leaves = "SwitchName=s0 Nodes=n[0-1]\nSwitchName=s1 Nodes=n2\n",
    [{unicode:characters_to_list(lists:join("; ", [format_warning(W) || W <- Warnings])), ?_assertEqual({ok, two_levels(), Warnings}, from_conf(Text))} || {Warnings, Text} <-
        [{[{two_parents, "n1", "s0", "s1"}], "SwitchName=s0 Nodes=n[0-1]\nSwitchName=s1 Nodes=n[1-2]\nSwitchName=s2 Switches=s[0-1]\n"},
         {[{named_twice, "n1", "s0"}], "SwitchName=s0 Nodes=n[0-1],n1\nSwitchName=s1 Nodes=n2\nSwitchName=s2 Switches=s[0-1]\n"},
         {[{two_parents, "s0", "s2", "s3"}, {two_parents, "s1", "s2", "s3"}], Leaves ++ "SwitchName=s2 Switches=s[0-1]\nSwitchName=s3 Switches=s[0-1]\n"}]].

bad_input_test_() ->
    [{unicode:characters_to_list(format_error(Want)), ?_assertEqual({error, Want}, Got)} || {Want, Got} <-
        [{no_switch, from_conf("")}, {{line, 2, "expected SwitchName=, BlockName= or BlockSizes="}, from_conf("\nNodes=n1")},
         {{line, 1, "'Nodes' is not a parameter; expected Name=Value"}, from_conf("SwitchName=s Nodes")},
         {{line, 1, "'Nodes=' is not a parameter; expected Name=Value"}, from_conf("SwitchName=s Nodes= LinkSpeed=1")},
         {{line, 1, "'Nodes=\"n' is not a parameter; expected Name=Value"}, from_conf("SwitchName=s Nodes=\"n")},
         {{line, 4, "the parameter 'colour' is not known here"}, from_conf("SwitchName=s0 \\\n  Nodes=n0\n\nSwitchName=s1 Colour=red")},
         {{line, 1, "the parameter 'colour' is not known here"}, from_conf("SwitchName=s Colour=red")},
         {{unknown_switch, "s9", "s0"}, from_conf("SwitchName=s0 Switches=s9")},
         {{cycle, ["s0", "s1", "s0"]}, from_conf("SwitchName=s0 Switches=s1\nSwitchName=s1 Switches=s0")},
         {{cycle, ["s1", "s2", "s1"]}, from_conf("SwitchName=s0 Nodes=n\nSwitchName=s1 Switches=s2\nSwitchName=s2 Switches=s1")},
         {{twice, "s0"}, from_conf("SwitchName=s0 Nodes=n1\nSwitchName=s0 Nodes=n2")},
         {{hostlist, "n[1", "a bracket is not closed"}, from_conf("SwitchName=s0 Nodes=n[1")},
         {{yaml, 1, "a bracket is not closed"}, from_yaml("a: [b")},
         {{not_a_topology, "expected a list of entries such as `- topology: name'"}, from_yaml("a: b")},
         {{not_a_topology, "a flat topology has no tree"}, from_yaml("- topology: x\n  flat: true")},
         {{not_a_topology, "an entry has no `switch:'"}, from_yaml("- topology: x\n  tree:\n    switches:\n      - nodes: n1")}]].
-endif.
