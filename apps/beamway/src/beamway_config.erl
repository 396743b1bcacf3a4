%% SPDX-License-Identifier: Apache-2.0
%% @doc The options of the carrier: their sources, valid values and defaults.
%%
%% An option is read from the environment variable `BEAMWAY_' followed by its name in capitals, or, if that is not set, from the application
%% environment of `beamway' (`-beamway ring_bytes 1048576', sys.config). If it is not set there either, it has its default. Options are validated
%% once, here, and the rest of the code trusts the map.
-module(beamway_config).

-export([read/0, read/1, of_kernel/2, wants_encryption/0, without_effect/0, describe/1, table/0]).
-export_type([config/0, problem/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-type config() :: #{links := [beamway_kind:kind() | inet],
                    ring_bytes := pos_integer(),
                    ring_limit_bytes := non_neg_integer(),
                    poll_us := non_neg_integer(),
                    socket_dir := string(),
                    rdma := boolean(),
                    rdma_limit_bytes := non_neg_integer(),
                    rdma_devices := [string()],
                    rdma_ports := {inet:port_number(), inet:port_number()},
                    rdma_plaintext := boolean(),
                    resume_ms := non_neg_integer(),
                    resume_refused_ms := non_neg_integer(),
                    resume_bytes := pos_integer(),
                    connections := auto | 1..8,
                    compress := never | far | always,
                    compress_percent := 1..100,
                    compress_encrypted := boolean(),
                    record_s := 0..600,
                    allow_faults := boolean(),
                    encrypt := boolean() | prefer,
                    encrypt_key_file := string(),
                    renew_connections := boolean(),
                    classes := [beamway_classes:named()]}.

-type problem() :: {Option :: atom(), Value :: term(), Expected :: string()}.

-define(RING_MIN_BYTES, 65536).
-define(RING_MAX_BYTES, 1073741824).
%% The address of a unix socket is limited to 108 bytes, of which our names use 25.
-define(DIR_MAX_BYTES, 80).

%% Returns each option with its default, its valid values, its effect, and how its text is parsed.
options() ->
    [{links, lists:sort(beamway_kind:all() -- [rdma]), "a list of " ++ beamway_kind:words() ++ " or inet (BEAMWAY_LINKS=shm,tcp)",
      "Kinds of link that this node may use. Two nodes use the best kind that both have, in the order " ++ string:join([atom_to_list(Kind) || Kind <- beamway_kind:all()], ", ") ++ ", inet. inet is always allowed, and inet alone turns all others off.", fun links/1},
     {rdma, false, "true or false", "Adds rdma to links, unless links is inet alone. It is off by default because RDMA has never run on a real adapter.", fun boolean/1},
     {ring_bytes, 4194304, "a power of two from 65536 to 1073741824",
      "Size of a ring. There is one for each peer and direction. Two nodes use the smaller of their values.", fun ring_bytes/1},
     {ring_limit_bytes, 1073741824, "a number of bytes, 0 or more",
      "Memory of all the node's rings together. Beyond it rings become smaller, and then links use TCP.", fun natural/1},
     {poll_us, 200, "microseconds from 0 to 1000",
      "How long a lone caller's node polls for the answer before it sleeps. With 0 it never polls.", fun(Value) -> within(Value, 0, 1000) end},
     {socket_dir, "", "an absolute path of at most 80 bytes",
      "A directory for the sockets through which nodes find each other. It is for containers that share the directory.", fun socket_dir/1},
     {rdma_limit_bytes, 268435456, "a number of bytes, 0 or more",
      "Memory of all rings that are registered with RDMA adapters. Beyond it rings become smaller, and then links use TCP.", fun natural/1},
     {rdma_devices, [], "names of devices (BEAMWAY_RDMA_DEVICES=mlx5_0,mlx5_1)", "RDMA adapters to use. Without it the node uses all.", fun devices/1},
     {rdma_ports, {0, 0}, "a range of ports, {Low, High} (BEAMWAY_RDMA_PORTS=20000-20099)", "Ports of RDMA's connection manager. {0, 0} allows any port.", fun ports/1},
     {rdma_plaintext, false, "true or false", "Allows RDMA even between nodes that speak TLS, although RDMA is not encrypted.", fun boolean/1},
     {resume_ms, 15000, "milliseconds from 0 to 86400000",
      "How long a link waits for another connection when it has lost its own. Two nodes use the smaller of their values. With 0 a lost connection ends the link, as with stock OTP.",
      fun(Value) -> within(Value, 0, 86400000) end},
     {resume_refused_ms, 2000, "milliseconds from 0 to 86400000",
      "The same if the peer's port and its epmd refuse connections, which means that the peer is probably dead.", fun(Value) -> within(Value, 0, 86400000) end},
     {resume_bytes, 67108864, "a number of bytes from 1048576",
      "How much sent data a link keeps at most until the peer has acknowledged it. This limits the rate on long paths: 64 MB are enough for 10 Gbit/s at 50 ms.",
      fun(Value) -> within(Value, 1048576, infinity) end},
     {connections, auto, "auto or a number from 1 to 8",
      "How many connections a link over tcp uses, so that it fills a long path. Two nodes use the smaller of their numbers."
      " auto follows the other node; if both are set to auto, they use one connection if a round trip takes less than 5 ms, and otherwise 8. Needs resume_ms above 0.", fun connections/1},
     {compress, far, "never, far or always",
      "Which links over tcp are compressed with zstd: none, those whose shortest round trip takes at least 5 ms, or all of them. If one of the two nodes says never, the link is not compressed."
      " Needs resume_ms above 0.", fun(Value) -> one_of(Value, [never, far, always]) end},
     {compress_percent, 5, "a percentage from 1 to 100",
      "How much processor time a link may spend on compression, in percent of one scheduler. Beyond that, messages go uncompressed.",
      fun(Value) -> within(Value, 1, 100) end},
     {compress_encrypted, false, "true or false",
      "Allows compress on encrypted links as well. It is off by default because the length of compressed data reveals something about the data: somebody who can send text over a link and watch the"
      " traffic could find out what others send.", fun boolean/1},
     {record_s, 600, "seconds from 0 to 600",
      "How many seconds the record of each link goes back in steps of a second. In steps of ten seconds it goes back six times as far. With 0 only events are recorded.",
      fun(Value) -> within(Value, 0, 600) end},
     {allow_faults, false, "true or false",
      "Allows beamway:fault/2, with which a test slows down and cuts links of this node. Use it only in tests, because any process in the cluster may call the function.", fun boolean/1},
     {encrypt, false, "true, false or prefer",
      "Encrypts every connection of -proto_dist beamway, including the handshake, with a key from encrypt_key_file or from the cookie."
      " With true the node refuses connections in clear. With prefer it uses them if the peer cannot encrypt, and logs each.",
      fun(Value) -> one_of(Value, [true, false, prefer]) end},
     {encrypt_key_file, "", "an absolute path",
      "A file with one or two keys from beamway keygen. The node calls with the first key and accepts both. It reads the file again for each connection. Without a file the key comes from the cookie.",
      fun path/1},
     {renew_connections, false, "true or false",
      "With certificates: when the files have changed, moves every link over TLS to a new connection, for which both nodes show and check their current certificates."
      " Links stay up. Without it only later connections use the new files.", fun boolean/1},
     {classes, [],
      "a list of {Name, Class} and {{Module, Function, Arity}, Class}"
      " (BEAMWAY_CLASSES=aten_emitter=control,my_backup:init/1=bulk)",
      "Classes of sending processes (control, normal or bulk), by registered name or by initial call as i() shows it."
      " A process gets its class within about five seconds.", fun classes/1}].

%% @doc Returns the rows of the table for the reference of all options (`scripts/options').
-spec table() -> [{Option :: atom(), Default :: term(), Expected :: string(), TakesEffect :: string(), Effect :: string()}].
table() ->
    [{Name, Default, Expected, "restart", Effect} || {Name, Default, Expected, Effect, _} <- options()].

%% @doc Returns the options of this node. If some are invalid, the others are still read, and every problem is returned.
-spec read() -> {ok, config()} | {error, [problem(), ...]}.
read() ->
    read(fun value/1).

%% @doc Like {@link read/0}, but with values from a different source; `undefined' means the default.
-spec read(fun((Option :: atom()) -> term())) -> {ok, config()} | {error, [problem(), ...]}.
read(Value) ->
    Read = [{Name, check(Value(Name), Default, Parse), Expected}
            || {Name, Default, Expected, _, Parse} <- options()],
    case [{Name, Bad, Expected} || {Name, {error, Bad}, Expected} <- Read] of
        [] -> {ok, with_rdma(maps:from_list([{Name, Good} || {Name, {ok, Good}, _} <- Read]))};
        Problems -> {error, Problems}
    end.

%% @doc Returns the value of a kernel parameter, or the default if that value is not a positive integer.
-spec of_kernel(Name :: atom(), Default) -> Default when Default :: pos_integer().
of_kernel(Name, Default) ->
    case application:get_env(kernel, Name) of
        {ok, Value} when is_integer(Value), Value > 0 -> Value;
        _ -> Default
    end.

%% @doc Returns whether the user asked for encryption, even with an invalid value, because such a node must not run unencrypted.
-spec wants_encryption() -> boolean().
wants_encryption() -> not lists:member(value(encrypt), [undefined, false, "false"]).

with_rdma(#{rdma := true, links := Links} = Config) when Links =/= [inet] -> Config#{links := lists:usort([rdma | Links])};
with_rdma(Config) -> Config.

%% @doc Returns a log line for each option that is set but has no effect: unknown parameters of the application, and options of older versions.
-spec without_effect() -> [string()].
without_effect() ->
    Known = [Name || {Name, _, _, _, _} <- options()],
    [lists:flatten(io_lib:format("~ts no longer has an effect, because ~ts: remove it (environment variable ~ts or application environment of beamway)",
                                 [Name, Why, variable(Name)]))
     || {Name, Why} <- retired(), value(Name) =/= undefined]
        ++ [lists:flatten(io_lib:format("the parameter ~ts is not known and has no effect: expected one of ~ts", [Name, lists:join(", ", [atom_to_list(K) || K <- Known])]))
            || {Name, _} <- application:get_all_env(beamway), Name =/= included_applications, not lists:member(Name, Known),
               not lists:keymember(Name, 1, retired())].

retired() ->
    [{whole_messages, "the receiving node now joins the fragments of a large message as they arrive"}].

%% @doc Returns a log line with the value, the valid values, and where to change it.
-spec describe(problem()) -> string().
describe({Option, Value, Expected}) ->
    lists:flatten(io_lib:format("~ts = ~0tp is not valid: expected ~ts (environment variable ~ts "
                                "or application environment of beamway)",
                                [Option, Value, Expected, variable(Option)])).

value(Option) ->
    case os:getenv(variable(Option)) of
        false -> application:get_env(beamway, Option, undefined);
        Text -> Text
    end.

variable(Option) ->
    "BEAMWAY_" ++ string:uppercase(atom_to_list(Option)).

check(undefined, Default, _Parse) ->
    {ok, Default};
check(Value, _Default, Parse) ->
    try Parse(Value) of
        {ok, Good} -> {ok, Good};
        error -> {error, Value}
    catch
        error:_ -> {error, Value} % not a number, a list that is not text, or a text that `re' rejects
    end.

links(Text) when is_list(Text), Text =/= [], is_integer(hd(Text)) ->
    links([link_name(string:trim(Word)) || Word <- string:lexemes(Text, ",")]);
links([_ | _] = Links) ->
    case lists:usort(Links) -- [inet | beamway_kind:all()] of
        [] -> {ok, lists:usort(Links)};
        _ -> error
    end;
links(_) ->
    error.

link_name("inet") ->
    inet;
link_name(Word) ->
    case beamway_kind:from_word(Word) of
        {ok, Kind} -> Kind;
        error -> Word
    end.

natural(Text) when is_list(Text) ->
    natural(list_to_integer(string:trim(Text)));
natural(Number) when is_integer(Number), Number >= 0 ->
    {ok, Number};
natural(_) ->
    error.

ring_bytes(Value) ->
    case within(Value, ?RING_MIN_BYTES, ?RING_MAX_BYTES) of
        {ok, N} when N band (N - 1) =:= 0 -> {ok, N};
        _ -> error
    end.

within(Value, Low, High) ->
    case natural(Value) of
        {ok, N} when N >= Low, N =< High -> {ok, N};
        _ -> error
    end.

connections("auto") -> {ok, auto};
connections(auto) -> {ok, auto};
connections(Value) -> within(Value, 1, 8).

boolean(Value) -> one_of(Value, [true, false]).

one_of(Value, Atoms) ->
    case [Atom || Atom <- Atoms, Value =:= Atom orelse Value =:= atom_to_list(Atom)] of
        [Atom] -> {ok, Atom};
        [] -> error
    end.

path("") -> {ok, ""};
path([$/ | _] = Path) when is_list(Path) ->
    case unicode:characters_to_binary(Path) of
        Bytes when is_binary(Bytes) -> {ok, Path};
        _ -> error
    end;
path(_) -> error.

socket_dir("") ->
    {ok, ""};
socket_dir([$/ | _] = Dir) ->
    Bytes = beamway_socket_dir:bytes(Dir),
    %% The driver would truncate the path at a NUL byte and use a different directory.
    case byte_size(Bytes) =< ?DIR_MAX_BYTES andalso binary:match(Bytes, <<0>>) of
        nomatch -> {ok, Dir};
        _ -> error
    end;
socket_dir(_) ->
    error.

devices(Text) when is_list(Text), Text =/= [], is_integer(hd(Text)) ->
    devices([string:trim(Word) || Word <- string:lexemes(Text, ",")]);
devices(Names) when is_list(Names) ->
    case lists:all(fun is_device/1, Names) of
        true -> {ok, Names};
        false -> error
    end;
devices(_) ->
    error.

is_device(Name) ->
    is_list(Name) andalso re:run(Name, "^[A-Za-z0-9][-A-Za-z0-9_.]{0,63}$", [{capture, none}]) =:= match.

ports(Text) when is_list(Text) ->
    case re:run(Text, "^\\s*(\\d{1,5})-(\\d{1,5})\\s*$", [{capture, all_but_first, list}]) of
        {match, [Low, High]} -> ports({list_to_integer(Low), list_to_integer(High)});
        nomatch -> error
    end;
ports({0, 0}) ->
    {ok, {0, 0}};
ports({Low, High}) when is_integer(Low), is_integer(High), Low > 0, Low =< High, High < 65536 ->
    {ok, {Low, High}};
ports(_) ->
    error.

classes(Text) when is_list(Text), Text =/= [], is_integer(hd(Text)) ->
    classes([class(string:trim(Word)) || Word <- string:lexemes(Text, ",")]);
classes(Named) when is_list(Named) ->
    case lists:all(fun is_class/1, Named) of
        true -> {ok, Named};
        false -> error
    end;
classes(_) ->
    error.

class(Word) ->
    [Who, Class] = string:split(Word, "=", trailing),
    {case re:run(Who, "^(.+):(.+)/(\\d{1,3})$", [unicode, {capture, all_but_first, list}]) of
         {match, [Module, Function, Arity]} -> {list_to_atom(Module), list_to_atom(Function), list_to_integer(Arity)};
         nomatch -> list_to_atom(Who)
     end, list_to_atom(Class)}.

is_class({Who, Class}) -> lists:member(Class, [control, normal, bulk]) andalso is_name(Who);
is_class(_) -> false.

is_name({Module, Function, Arity}) ->
    is_atom(Module) andalso is_atom(Function) andalso is_integer(Arity) andalso Arity >= 0 andalso Arity < 256;
is_name(Name) -> is_atom(Name) andalso Name =/= '' andalso Name =/= undefined.

-ifdef(TEST).

with(Option, Value) ->
    read(fun(Name) when Name =:= Option -> Value; (_) -> undefined end).

defaults_are_valid_test() ->
    {ok, Defaults} = read(fun(_) -> undefined end),
    [?assertMatch({ok, Value}, Parse(Value))
     || {Name, _, _, _, Parse} <- options(), Value <- [maps:get(Name, Defaults)]].

ring_bytes_edges_test_() ->
    [?_assertMatch({error, [{ring_bytes, Bad, _}]}, with(ring_bytes, Bad))
     || Bad <- ["0", "-1", "1000000000000", "65535", "65537", "2147483648", "4MB", "", 0, -1, 4.0]]
        ++ [?_assertMatch({ok, #{ring_bytes := 65536}}, with(ring_bytes, Good))
            || Good <- ["65536", " 65536 ", 65536]].

links_test_() ->
    [?_assertMatch({ok, #{links := [tcp]}}, with(links, "tcp")),
     ?_assertMatch({ok, #{links := [shm, tcp]}}, with(links, "tcp, shm")),
     ?_assertMatch({ok, #{links := [shm]}}, with(links, [shm])),
     ?_assertMatch({ok, #{links := [inet]}}, with(links, "inet")),
     ?_assertMatch({ok, #{links := [inet, tcp]}}, with(links, "tcp,inet")),
     ?_assertMatch({ok, #{links := [rdma, tcp]}}, with(links, "rdma,tcp")),
     ?_assertMatch({error, [{links, "rmda", _}]}, with(links, "rmda")),
     ?_assertMatch({error, [{links, "", _}]}, with(links, "")),
     ?_assertMatch({error, [{links, none, _}]}, with(links, none))].

rdma_is_off_test_() ->
    Links = fun(Links, Rdma) ->
                    {ok, #{links := Result}} = read(fun(links) -> Links; (rdma) -> Rdma; (_) -> undefined end),
                    Result
            end,
    [?_assertEqual(Expected, Links(Given, Rdma))
     || {Expected, Given, Rdma} <- [{[shm, tcp], undefined, undefined}, {[shm, tcp], undefined, "false"},
                                    {[rdma, shm, tcp], undefined, "true"}, {[rdma, shm, tcp], undefined, true},
                                    {[rdma, tcp], "tcp", "true"}, {[rdma, tcp], "rdma,tcp", undefined},
                                    {[rdma, tcp], "rdma,tcp", "true"}, {[inet], "inet", "true"}]]
        ++ [?_assertMatch({error, [{rdma, "yes", _}]}, with(rdma, "yes"))].

rdma_test_() ->
    [?_assertMatch({ok, #{rdma_devices := ["mlx5_0", "rxe0"]}}, with(rdma_devices, "mlx5_0, rxe0")),
     ?_assertMatch({ok, #{rdma_devices := ["rxe0"]}}, with(rdma_devices, ["rxe0"])),
     ?_assertMatch({ok, #{rdma_devices := []}}, with(rdma_devices, "")),
     ?_assertMatch({ok, #{rdma_ports := {20000, 20099}}}, with(rdma_ports, " 20000-20099 ")),
     ?_assertMatch({ok, #{rdma_ports := {7, 7}}}, with(rdma_ports, {7, 7}))]
        ++ [?_assertMatch({error, [{rdma_devices, Bad, _}]}, with(rdma_devices, Bad)) || Bad <- ["../x", [rxe0], rxe0, "a b"]]
        ++ [?_assertMatch({error, [{rdma_ports, Bad, _}]}, with(rdma_ports, Bad))
            || Bad <- ["20000", "2-1", "0-5", "1-65536", {1, 0}, 5, "", "x-y"]].

socket_dir_test_() ->
    [?_assertMatch({ok, #{socket_dir := Good}}, with(socket_dir, Good))
     || Good <- ["", "/run/beamway", "/" ++ lists:duplicate(79, $x), "/" ++ lists:duplicate(26, 16#20ac)]]
        ++ [?_assertMatch({error, [{socket_dir, Bad, _}]}, with(socket_dir, Bad))
            || Bad <- ["/tmp/a\0b", "run/beamway", "/" ++ lists:duplicate(80, $x), "/" ++ lists:duplicate(27, 16#20ac),
                       "/" ++ [16#d800], <<"/run">>, none]].

encrypt_test_() ->
    [?_assertMatch({ok, #{encrypt := Good}}, with(encrypt, Given))
     || {Good, Given} <- [{true, "true"}, {true, true}, {false, "false"}, {prefer, "prefer"}, {prefer, prefer}]]
        ++ [?_assertMatch({error, [{encrypt, Bad, _}]}, with(encrypt, Bad)) || Bad <- ["yes", "", 1, "TRUE"]]
        ++ [?_assertMatch({ok, #{encrypt_key_file := Good}}, with(encrypt_key_file, Good)) || Good <- ["", "/etc/keys"]]
        ++ [?_assertMatch({error, [{encrypt_key_file, Bad, _}]}, with(encrypt_key_file, Bad)) || Bad <- ["keys", <<"/k">>, ["/k"], "/" ++ [16#d800]]].

compress_test_() ->
    [?_assertMatch({ok, #{compress := Good}}, with(compress, Given)) || {Good, Given} <- [{never, "never"}, {far, "far"}, {always, always}, {far, undefined}]]
        ++ [?_assertMatch({error, [{compress, Bad, _}]}, with(compress, Bad)) || Bad <- ["", "true", true, "near"]]
        ++ [?_assertMatch({ok, #{compress_percent := Good}}, with(compress_percent, Given)) || {Good, Given} <- [{1, "1"}, {100, 100}, {5, undefined}]]
        ++ [?_assertMatch({error, [{compress_percent, Bad, _}]}, with(compress_percent, Bad)) || Bad <- ["0", "101", "5%", 2.5]]
        ++ [?_assertMatch({error, [{compress_encrypted, Bad, _}]}, with(compress_encrypted, Bad)) || Bad <- ["yes", 1]].

classes_test_() ->
    [?_assertMatch({ok, #{classes := Good}}, with(classes, Given))
     || {Good, Given} <- [{[], []}, {[], ""}, {[{aten, control}], "aten=control"}, {[{'a=b', bulk}], "a=b=bulk"},
                          {[{{ra_server_proc, init, 1}, bulk}, {'Elixir.My.Server', normal}],
                           "ra_server_proc:init/1=bulk, Elixir.My.Server=normal"},
                          {[{{'Elixir.My.Tracker', init, 1}, control}], [{{'Elixir.My.Tracker', init, 1}, control}]}]]
        ++ [?_assertMatch({error, [{classes, Bad, _}]}, with(classes, Bad))
            || Bad <- ["aten", "aten=fast", "=control", "aten=", [{aten, fast}], [{"aten", control}],
                       [{{aten, init}, control}], [{{aten, init, -1}, control}], [{{aten, init, 256}, control}], [aten], [{aten, control} | bulk], #{aten => control}, aten]].

%% Even text that the parser rejects must not crash the node at startup.
no_text_test_() ->
    [?_assertMatch({error, [{Name, Bad, _}]}, with(Name, Bad))
     || {Name, Bad} <- [{ring_bytes, [shm]}, {poll_us, "2\x{665}"}, {links, [shm | tcp]}, {rdma_devices, "mlx5_0\x{3001}mlx5_1"},
                        {rdma_devices, [[mlx5]]}, {rdma_ports, "20000\x{2013}20099"}, {rdma_ports, [20000, high]}, {socket_dir, "/" ++ [run]}]].

every_problem_is_told_test() ->
    {error, Problems} = read(fun(_) -> "no sense" end),
    ?assertEqual(length(options()), length(Problems)),
    [?assert(string:find(describe(P), "no sense") =/= nomatch) || P <- Problems].

-endif.
