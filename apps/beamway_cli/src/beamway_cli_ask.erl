%% SPDX-License-Identifier: Apache-2.0
%% @doc Connects a command to a running node and queries it.
%%
%% The command's VM becomes a hidden node that does not listen. It connects over stock TCP (over TLS if `BEAMWAY_TLS_OPTFILE' is set, encrypted if
%% `BEAMWAY_ENCRYPT' is), with IPv4 or IPv6, so the answer does not depend on the carrier in question. Each error names one of the usual causes: epmd
%% is not running, the node does not exist or does not run Beamway, or the cookie is different.
-module(beamway_cli_ask).

-export([on_node/2, open/1, name_and_host/1, call/4, no_function/4, is_long/1, start/2, why_no_node/1, cookie/1]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-export_type([options/0]).

-include_lib("kernel/include/file.hrl").

-type options() :: #{node => string(), cookie_file => file:filename(), atom() => term()}.

-define(CALL_MS, 5000).
%% This is kernel's net_setuptime. Over TLS the carrier gives up half a second earlier, but a node that is running rejects the connection immediately.
-define(SETUP_MS, 7000).
-define(SILENT_MS, 6000).

%% @doc Connects to the node like {@link open/1}, and calls Ask with its name. A text that Ask throws becomes an error.
-spec on_node(options(), fun((node()) -> Result)) -> Result | {error, Text :: unicode:chardata()}.
on_node(Options, Ask) ->
    beamway_result:then(open(Options), fun(Node) -> try Ask(Node) catch throw:Text -> {error, Text} end end).

%% @doc Connects to the node. The VM must exit afterwards, because the node that it has become is not stopped.
-spec open(options()) -> {ok, node()} | {error, Text :: unicode:chardata()}.
open(Options) ->
    try
        {Name, Host} = target(Options),
        ok = become_node(Host),
        Node = full_name(Name, Host),
        ok = use_cookie(Node, Options),
        ok = connect(Node),
        {ok, Node}
    catch
        throw:Text -> {error, Text}
    end.

-spec failed(string(), [term()]) -> no_return().
failed(Format, Arguments) -> throw(io_lib:format(Format, Arguments)).

%% Which node

%% Returns the name and the host as given. `here' means the host part shared by all -sname nodes on this host.
target(#{node := Words}) -> name_and_host(Words);
target(_) -> only_node(names("localhost")).

only_node([]) ->
    failed("no node is registered with epmd on this host; start one (beamway node --name NAME), or name one", []);
only_node([{Name, _}]) ->
    {Name, here};
only_node(Names) ->
    failed("several nodes run on this host (~ts); name one of them", [name_list(Names)]).

%% @doc Returns the two parts of a node's name as a user has given it. Throws a text if it cannot be the name of a node, because OTP complains about such
%% a name in a report of its own.
-spec name_and_host(string()) -> {Name :: string(), Host :: string() | here}.
name_and_host(Words) ->
    case re:run(Words, "^([^@\\s[:cntrl:]]+)(?:@([^@\\s[:cntrl:]]+))?$", [unicode, ucp, dollar_endonly, {capture, all_but_first, list}]) of
        {match, [Name, [_ | _] = Host]} -> {Name, Host};
        {match, [Name | _]} -> {Name, here};
        nomatch -> failed("'~ts' is not a node name; expected name or name@host", [Words])
    end.

full_name(Name, here) -> full_name(Name, host(node()));
full_name(Name, Host) ->
    Text = Name ++ "@" ++ Host,
    length(Text) < 256 orelse failed("'~ts' is not a node name; expected at most 255 characters", [Text]),
    list_to_atom(Text).

names(Host) ->
    case beamway_cli_doctor_facts:epmd_names(Host, ?CALL_MS) of
        {ok, Names} -> Names;
        {error, Reason} -> failed("epmd on ~ts does not answer (~ts), so no node is known there; "
                                  "a node that listens starts it: erl -sname NAME", [Host, reason(Reason)])
    end.

%% erl_epmd returns `address' whatever the reason why it could not connect.
reason(address) -> "no connection";
reason(Reason) -> io_lib:format("~tp", [Reason]).

name_list(Names) -> lists:join(", ", [Name || {Name, _} <- Names]).

%% Becoming a node

%% If the name has a host, only its domain matters, because nobody connects to a node that does not listen.
become_node(Host) ->
    {Domain, Suffix} = domain(Host),
    try start("beamway_cli_" ++ os:getpid() ++ Suffix, Domain) of
        {ok, _} -> ok;
        {error, Reason} -> failed("cannot become a node: ~ts", [why_no_node(Reason)])
    catch
        error:Reason -> failed("cannot become a node: ~ts", [why_no_node(Reason)])
    end.

%% @doc Turns this VM into a hidden node that does not listen.
-spec start(Name :: string(), shortnames | longnames) -> {ok, pid()} | {error, term()}.
start(Name, Domain) ->
    %% Over TLS the launcher starts the VM with our carrier, but a command makes only a few calls and does not need its links. An encrypted
    %% connection does need the driver.
    _ = [os:putenv("BEAMWAY_LINKS", "inet") || os:getenv("BEAMWAY_TLS_OPTFILE", "") =/= ""],
    _ = [os:putenv("BEAMWAY_LINKS", "tcp") || beamway_config:wants_encryption()],
    beamway_cli_output:quietly(fun() -> net_kernel:start(list_to_atom(Name), #{name_domain => Domain, dist_listen => false, hidden => true}) end).

%% @doc Turns net_kernel's reason into readable text. The complaint about the cookie, which comes from auth, is buried in the supervisor reports.
-spec why_no_node(term()) -> unicode:chardata().
why_no_node({{shutdown, {failed_to_start_child, auth, {Reason, _Stack}}}, _}) ->
    case {init:get_argument(home), Reason} of
        {error, _} -> "HOME is not set, and Erlang looks for the cookie there (~/.erlang.cookie)";
        {_, {error, Text}} -> Text;
        {_, [_ | _] = Text} -> Text;
        {_, _} -> io_lib:format("~0tP", [Reason, 12])
    end;
why_no_node({{shutdown, {failed_to_start_child, net_kernel, {'EXIT', nodistribution}}}, _}) ->
    "the distribution does not start; the lines above say why";
why_no_node(Reason) ->
    io_lib:format("~0tP", [Reason, 12]).

%% Without a host part, OTP adds one itself, as for any node.
domain(here) -> {shortnames, ""};
domain(Host) ->
    case is_long(Host) of
        true -> {longnames, "@127.0.0.1"};
        false -> {shortnames, "@localhost"}
    end.

%% @doc Returns whether a node with this host part has a long name. An IPv6 address does not contain a dot.
-spec is_long(Host :: string()) -> boolean().
is_long(Host) -> lists:member($., Host) orelse lists:member($:, Host).

host(Node) -> lists:last(string:split(atom_to_list(Node), "@")).

use_cookie(Node, #{cookie_file := File}) ->
    case cookie(File) of
        {ok, Cookie} -> true = erlang:set_cookie(Node, Cookie), ok;
        {error, Text} -> throw(Text)
    end;
use_cookie(_, _) ->
    ok.

%% @doc Reads the cookie from a file, for all commands with `--cookie-file'. Warns if every user on the host can read the file, but does not reject
%% it, because containers get their secrets in files whose mode they cannot change.
-spec cookie(file:filename()) -> {ok, atom()} | {error, Text :: unicode:chardata()}.
cookie(File) ->
    case file:read_file(File) of
        {ok, Bytes} ->
            ok = warn_if_open(File, file:read_file_info(File)),
            try binary_to_atom(string:trim(Bytes)) of
                '' -> {error, ["the cookie file '", File, "' is empty"]};
                Cookie -> {ok, Cookie}
            catch
                error:_ -> {error, ["the cookie file '", File, "' holds no cookie; expected at most 255 characters in UTF-8"]}
            end;
        {error, Reason} -> {error, ["cannot read the cookie file '", File, "': ", file:format_error(Reason)]}
    end.

warn_if_open(File, {ok, #file_info{mode = Mode}}) when Mode band 8#004 =/= 0 ->
    io:format(standard_error, "beamway: warning: every user of this host can read the cookie file '~ts' and then control the cluster; "
                              "chmod o-r it if you can~n", [File]);
warn_if_open(_, _) -> ok.

%% Connecting, and finding out why it failed

connect(Node) ->
    Begun = erlang:monotonic_time(millisecond),
    case net_kernel:connect_node(Node) of
        true -> ok;
        _ -> failed("~ts", [why_not(Node, erlang:monotonic_time(millisecond) - Begun)])
    end.

why_not(Node, TookMs) ->
    [Short, Host] = string:split(atom_to_list(Node), "@"),
    Names = names(Host),
    case lists:keyfind(Short, 1, Names) of
        false -> not_there(Node, Host, Names);
        {_, Port} -> refused(Node, Host, Port, TookMs >= ?SILENT_MS)
    end.

not_there(Node, Host, []) ->
    io_lib:format("node ~ts is not running: epmd on ~ts knows no node", [Node, Host]);
not_there(Node, Host, Names) ->
    io_lib:format("node ~ts is not running: epmd on ~ts knows ~ts", [Node, Host, name_list(Names)]).

refused(Node, Host, Port, WasSilent) ->
    case reach(beamway_cli_doctor_facts:addresses(Host), Port) of
        {ok, Socket} when WasSilent ->
            ok = gen_tcp:close(Socket),
            io_lib:format("node ~ts did not answer within ~b s, although its port is open: it is stopped or overloaded, "
                          "or BEAMWAY_TLS_OPTFILE is set and the node does not speak TLS", [Node, ?SETUP_MS div 1000]);
        {ok, Socket} ->
            ok = gen_tcp:close(Socket),
            io_lib:format("node ~ts refused the connection. Most often its cookie is another one: compare its "
                          "cookie with ~~/.erlang.cookie, or give --cookie-file. It may also use the other "
                          "kind of names (erl -name: name@host.domain, erl -sname: name@host), speak TLS only "
                          "(name its options file in BEAMWAY_TLS_OPTFILE), or be encrypted (set its BEAMWAY_ENCRYPT, BEAMWAY_ENCRYPT_KEY_FILE)", [Node]);
        {error, Reason} ->
            io_lib:format("node ~ts is registered with epmd at port ~b, which cannot be reached: ~ts",
                          [Node, Port, inet:format_error(Reason)])
    end.

%% Uses the first address, as the carrier does.
reach([Ip | _], Port) -> gen_tcp:connect(Ip, Port, [{active, false}, case tuple_size(Ip) of 4 -> inet; 8 -> inet6 end], ?CALL_MS);
reach([], _) -> {error, nxdomain}.

%% Asking

%% @doc Calls a function of Beamway on a node that {@link open/1} has connected to. Throws a text if it fails.
-spec call(node(), module(), atom(), [term()]) -> term().
call(Node, Module, Function, Arguments) ->
    try erpc:call(Node, Module, Function, Arguments, ?CALL_MS)
    catch
        error:{exception, undef, _} ->
            throw(no_function(Node, Module, Function, length(Arguments)));
        _:Reason -> no_answer(Node, Reason)
    end.

%% @doc Returns a text that explains what is missing on the node.
-spec no_function(node(), module(), atom(), arity()) -> unicode:chardata().
no_function(Node, Module, Function, Arity) ->
    io_lib:format("node ~ts has no Beamway: its code path holds no module ~ts with ~ts/~b (see README: erl -pa apps/beamway/ebin -proto_dist beamway)",
                  [Node, Module, Function, Arity]).

-spec no_answer(node(), term()) -> no_return().
no_answer(Node, {erpc, Reason}) -> failed("node ~ts did not answer: ~tp", [Node, Reason]);
no_answer(Node, Reason) -> failed("node ~ts answered with an error: ~0tP", [Node, Reason, 15]).

-ifdef(TEST).

name_and_host_test_() ->
    [?_assertEqual({"a", here}, name_and_host("a")),
     ?_assertEqual({"a", "b.c"}, name_and_host("a@b.c")),
     ?_assertThrow(_, name_and_host("@h")),
     ?_assertThrow(_, name_and_host("a@")),
     ?_assertEqual({"a.1", "fd00::2%eth0"}, name_and_host("a.1@fd00::2%eth0")),
     ?_assertThrow(_, name_and_host("")),
     ?_assertThrow(_, name_and_host("a b")),
     ?_assertThrow(_, name_and_host("a@b c")),
     ?_assertThrow(_, name_and_host("a@b@c")),
     ?_assertThrow(_, name_and_host("a\n")),
     ?_assertThrow(_, full_name("a", lists:duplicate(254, $b)))].

domain_test_() ->
    [?_assertMatch({shortnames, _}, domain(here)),
     ?_assertMatch({shortnames, _}, domain("h")),
     ?_assertMatch({longnames, _}, domain("h.example")),
     ?_assertMatch({longnames, _}, domain("fd00::2"))].

only_node_test_() ->
    [?_assertThrow(_, only_node([])),
     ?_assertThrow(_, only_node([{"a", 1}, {"b", 2}])),
     ?_assertEqual({"a", here}, only_node([{"a", 1}]))].

-endif.
