%% SPDX-License-Identifier: Apache-2.0
%% @doc Reads the tree of a network from a file: Slurm's `topology.conf' and `topology.yaml', declared paths, the
%% report's network term, hwloc's XML, or a list of hosts as in `SLURM_JOB_NODELIST'.
%%
%% Files contain the names of hosts, but trees contain nodes. The options determine which nodes run on which hosts: `nodes'
%% lists the existing nodes, each of which is attached to the host in its name. Without this option there is one node per
%% host, which is called `Name@Host' with the option `name', and otherwise has the name of the host. A host without a node
%% is left out, and the distances of a node without a host are unknown; both cases cause warnings.
-module(placement_import).

-export([file/2, text/3, kinds/0, format_error/1, format_warning/1]).

-export_type([kind/0, options/0, warning/0, error/0]).

-type kind() :: conf | yaml | paths | term | hwloc | hostlist.
-type options() :: #{nodes => [node()], name => string(), kind => kind()}.
-type warning() :: {hosts_without_node, [string()]} | {nodes_without_host, [node()]} | {slurm, placement_slurm:warning()}.
-type error() :: {file, file:filename_all(), term()} | {unknown_kind, file:filename_all()} | {syntax, Line :: term(), iodata()}
               | {path_line, pos_integer(), string()} | not_unicode
               | {slurm, placement_slurm:error()} | {tree, placement_tree:error()} | {hwloc, placement_hwloc:error()}.

-define(SHOWN, 8).

%% @doc Returns the kinds of files, and how each kind is recognised.
-spec kinds() -> [{kind(), string()}].
kinds() ->
    [{conf, ".conf"}, {yaml, ".yaml"}, {yaml, ".yml"}, {paths, ".paths"}, {term, ".term"}, {hwloc, ".xml"}, {hostlist, ".hosts"}].

%% @doc Returns the tree described by a file. Unless the kind of the file is specified, it is determined by the extension.
-spec file(file:filename_all(), options()) -> {ok, placement_tree:tree(), [warning()]} | {error, error()}.
file(File, Options) ->
    Ending = unicode:characters_to_list(filename:extension(File)),
    Kinds = [Kind || {Kind, E} <- kinds(), E =:= Ending],
    case {maps:get(kind, Options, hd(Kinds ++ [unknown])), file:read_file(File)} of
        {unknown, _} -> {error, {unknown_kind, File}};
        {_, {error, Reason}} -> {error, {file, File, Reason}};
        {Kind, {ok, Bytes}} -> text(Kind, Bytes, Options)
    end.

%% @doc Like {@link file/2}, for the content of a file of the given kind.
-spec text(kind(), unicode:chardata(), options()) -> {ok, placement_tree:tree(), [warning()]} | {error, error()}.
text(Kind, Text, Options) ->
    case unicode:characters_to_list(Text) of
        Characters when is_list(Characters) -> parsed(Kind, Characters, Options);
        _ -> {error, not_unicode}
    end.

parsed(conf, Text, Options) -> of_hosts(slurm, placement_slurm:from_conf(Text), Options);
parsed(yaml, Text, Options) -> of_hosts(slurm, placement_slurm:from_yaml(Text), Options);
parsed(hwloc, Text, Options) -> of_hosts(hwloc, placement_hwloc:from_xml(Text), Options);
%% Ranges may overlap, so a host may occur more than once.
parsed(hostlist, Text, Options) ->
    case placement_hostlist:expand(Text) of
        {ok, Hosts} -> of_hosts(slurm, {ok, {group, "allocation", [{host, Host} || Host <- lists:uniq(Hosts)]}}, Options);
        {error, Error} -> {error, {slurm, Error}}
    end;
parsed(term, Text, _) -> of_tree(term(Text, fun placement_tree:from_network/1));
parsed(paths, Text, _) -> of_tree(paths(string:split(Text, "\n", all), 1, [])).

of_hosts(Part, {error, Error}, _) -> {error, {Part, Error}};
of_hosts(Part, {ok, Hosts}, Options) -> of_hosts(Part, {ok, Hosts, []}, Options);
of_hosts(Part, {ok, Hosts, Said}, Options) ->
    {[Vertex | _], Used, Without} = attach(Hosts, by_host(Options), Options),
    Unused = maps:get(nodes, Options, []) -- Used,
    Warnings = [{Part, Warning} || Warning <- Said] ++ [{hosts_without_node, Without} || Without =/= []] ++ [{nodes_without_host, Unused} || Unused =/= []],
    case placement_tree:from_vertex(Vertex) of
        {ok, Tree} -> {ok, Tree, Warnings};
        {error, Error} -> {error, {tree, Error}}
    end.

of_tree({ok, Tree}) -> {ok, Tree, []};
of_tree({error, Error}) when element(1, Error) =:= syntax; element(1, Error) =:= path_line -> {error, Error};
of_tree({error, Error}) -> {error, {tree, Error}}.

%% Maps each host to its nodes, under its full name and under the part before the first dot.
by_host(#{nodes := Nodes}) ->
    Named = [{Host, Node} || Node <- lists:usort(Nodes), Host <- host_names(atom_to_list(Node))],
    maps:groups_from_list(fun({Host, _}) -> Host end, fun({_, Node}) -> Node end, Named);
by_host(#{}) -> one_each.

host_names(Name) ->
    Host = lists:last(string:split(Name, "@")),
    lists:usort([Host, hd(string:split(Host, "."))]).

%% Returns the vertices for a part, the nodes that were attached to a host, and the hosts without a node.
attach({host, Host}, one_each, Options) ->
    {[{leaf, list_to_atom(case Options of #{name := Name} -> Name ++ "@" ++ Host; #{} -> Host end)}], [], []};
attach({host, Host}, ByHost, _) ->
    case ByHost of
        #{Host := [Node]} -> {[{leaf, Node}], [Node], []};
        #{Host := Nodes} -> {[{group, Host, #{}, [{leaf, Node} || Node <- Nodes]}], Nodes, []};
        #{} -> {[], [], [Host]}
    end;
attach({group, Name, Children}, ByHost, Options) ->
    Parts = [attach(Child, ByHost, Options) || Child <- Children],
    {[{group, Name, #{}, lists:append([Vertices || {Vertices, _, _} <- Parts])}],
     lists:append([Used || {_, Used, _} <- Parts]), lists:append([Without || {_, _, Without} <- Parts])}.

term(Text, Fun) ->
    case erl_scan:string(Text, {1, 1}) of
        {ok, Tokens, _} ->
            case erl_parse:parse_term(Tokens) of
                {ok, Term} -> Fun(Term);
                {error, {Where, Module, What}} -> {error, {syntax, Where, Module:format_error(What)}}
            end;
        {error, {Where, Module, What}, _} -> {error, {syntax, Where, Module:format_error(What)}}
    end.

%% Each line contains a node and its path; comments begin with `#'.
paths([], _, Paths) -> placement_tree:from_paths(lists:reverse(Paths));
paths([Line | Lines], Number, Paths) ->
    case string:lexemes(hd(string:split(Line, "#")), " \t\r") of
        [] -> paths(Lines, Number + 1, Paths);
        [Node, [$/ | _] = Path] -> paths(Lines, Number + 1, [{list_to_atom(Node), Path} | Paths]);
        _ -> {error, {path_line, Number, Line}}
    end.

%% @doc Formats an error as text for users, including what to do about it.
-spec format_error(error()) -> unicode:chardata().
format_error({file, File, Reason}) -> io_lib:format("cannot read ~ts: ~ts", [File, file:format_error(Reason)]);
format_error({unknown_kind, File}) ->
    io_lib:format("~ts: what kind of file is this? Its name should end in ~ts, or say so with --kind",
                  [File, lists:join(", ", [Ending || {_, Ending} <- kinds()])]);
format_error({syntax, {Line, Column}, What}) -> io_lib:format("line ~b, column ~b: ~ts", [Line, Column, What]);
format_error({syntax, Where, What}) -> io_lib:format("line ~tp: ~ts", [Where, What]);
format_error({path_line, Number, Line}) -> io_lib:format("line ~b: '~ts'; expected a node and its path, such as: a@web1 /site/rack1/web1", [Number, Line]);
format_error(not_unicode) -> "this is not UTF-8 text";
format_error({slurm, Error}) -> placement_slurm:format_error(Error);
format_error({hwloc, Error}) -> placement_hwloc:format_error(Error);
format_error({tree, Error}) -> placement_tree:format_error(Error).

%% @doc Formats a warning as text for users.
-spec format_warning(warning()) -> unicode:chardata().
format_warning({slurm, Warning}) -> placement_slurm:format_warning(Warning);
format_warning({hosts_without_node, Hosts}) ->
    io_lib:format("~b hosts of the file have no node and are left out: ~ts", [length(Hosts), some(Hosts)]);
format_warning({nodes_without_host, Nodes}) ->
    io_lib:format("~b nodes are not in the file, their distances are unknown: ~ts", [length(Nodes), some([atom_to_list(N) || N <- Nodes])]).

some(Names) when length(Names) > ?SHOWN -> [lists:join(", ", lists:sublist(Names, ?SHOWN)), " ..."];
some(Names) -> lists:join(", ", Names).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

conf() -> "SwitchName=s0 Nodes=n[0-1]\nSwitchName=s1 Nodes=n2\nSwitchName=s2 Switches=s0,s1\n".

names_test() ->
    {ok, Tree, []} = text(conf, conf(), #{}),
    ?assertEqual([n0, n1, n2], placement_tree:nodes(Tree)),
    {ok, Named, []} = text(conf, conf(), #{name => "vm1"}),
    ?assertEqual({ok, 0.5}, placement_tree:distance(Named, vm1@n0, vm1@n1)),
    ?assertEqual({ok, 1.0}, placement_tree:distance(Named, vm1@n0, vm1@n2)).

nodes_test() ->
    Nodes = [a@n0, b@n0, 'c@n1.example', d@elsewhere],
    {ok, Tree, Warnings} = text(conf, conf(), #{nodes => Nodes}),
    ?assertEqual({ok, 0.5}, placement_tree:distance(Tree, a@n0, b@n0)),
    ?assertEqual({ok, 1.0}, placement_tree:distance(Tree, a@n0, 'c@n1.example')),
    ?assertEqual([{hosts_without_node, ["n2"]}, {nodes_without_host, [d@elsewhere]}], Warnings),
    [?assertNotEqual("", unicode:characters_to_list(format_warning(W))) || W <- Warnings].

kinds_test_() ->
    [fun() -> {ok, Tree, []} = text(Kind, Text, #{}), ?assertEqual([a@h, b@h], placement_tree:nodes(Tree)) end
     || {Kind, Text} <- [{paths, "# all\na@h /x/1\nb@h /x/2\n"}, {term, "{network, n, [{node, a@h}, {node, b@h}]}."}, {hostlist, "a@h,b@h"},
                         {yaml, "- topology: t\n  tree:\n    switches:\n    - switch: s\n      nodes: a@h,b@h\n"}]].

overlapping_hosts_test() ->
    {ok, Tree, []} = text(hostlist, "n[1-2],n[2-3],n1", #{}),
    ?assertEqual([n1, n2, n3], placement_tree:nodes(Tree)).

bad_input_test_() ->
    [{unicode:characters_to_list(format_error(Want)), ?_assertEqual({error, Want}, Got)} || {Want, Got} <-
        [{{file, "/nowhere/topology.conf", enoent}, file("/nowhere/topology.conf", #{})},
         {{unknown_kind, "/nowhere/x.png"}, file("/nowhere/x.png", #{})},
         {{path_line, 2, "b@h"}, text(paths, "a@h /x\nb@h", #{})}, {not_unicode, text(conf, <<255, 255>>, #{})},
         {{tree, {duplicate_node, a}}, text(paths, "a /x\na /y\n", #{})},
         {{tree, {bad_network, x}}, text(term, "x.", #{})},
         {{hwloc, not_hwloc}, text(hwloc, "", #{})}, {{slurm, no_switch}, text(conf, "", #{})}]]
        ++ [?_assertEqual({syntax, {1, 9}}, fun({error, {syntax, Where, What}}) -> _ = format_error({syntax, Where, What}), {syntax, Where} end(text(term, "{network,", #{}))),
            %% The position is that of the quote or one column after it, depending on the OTP release.
            ?_assertMatch({error, {syntax, {1, Column}, _}} when Column =:= 1; Column =:= 2, text(term, "'a", #{}))].
-endif.
