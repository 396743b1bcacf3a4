%% SPDX-License-Identifier: Apache-2.0
%% @doc Tests who may connect over TLS distribution. There is one group for each way in which the data is carried afterwards, and one for OTP's
%% own carrier, configured to verify as ours does by default.
%%
%% One node has a valid certificate. Each case starts a second node with a certificate that must not be accepted, and each node calls the other. The
%% connection must be rejected before the valid node has begun the distribution handshake, and both logs must give the reason.
-module(beamway_tls_entry_SUITE).

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_group/2, end_per_group/2]).
-export([other_authority/1, expired/1, not_yet_valid/1, revoked/1, self_signed/1, no_certificate/1, other_host/1, good_is_let_in/1, function_of_otp/1,
         host_of_allowed_nodes/1, without_options_stock_verifies_nobody/1]).

-define(REFUSED, [other_authority, expired, not_yet_valid, revoked, self_signed, no_certificate, other_host, good_is_let_in, function_of_otp,
                  host_of_allowed_nodes]).

suite() -> [{timetrap, {minutes, 2}}].

all() -> [{group, Group} || {Group, _, _} <- groups()].

%% shm is the ring that two nodes on the same host agree on, driver is the driver's link, and ssl is ssl's own processes.
groups() ->
    [{Path, [], ?REFUSED} || Path <- [shm, driver, ssl]] ++ [{stock, [], ?REFUSED ++ [without_options_stock_verifies_nobody]}].

init_per_suite(Config) ->
    ok = beamway_certificates:prepare(proplists:get_value(priv_dir, Config)),
    Config.

end_per_suite(_Config) -> ok.

init_per_group(Path, Config) ->
    With = [{path, Path} | Config],
    [{good, start(With, "good", optfile(With, "good", good))} | With].

end_per_group(_Path, _Config) -> beamway_peer:stop_started().

carrier(stock) -> {inet_tls, "inet_tls", []};
carrier(shm) -> {beamway_tls_shm, "beamway_tls", []};
carrier(driver) -> {beamway_tls, "beamway_tls", [{"BEAMWAY_LINKS", "tcp"}]};
carrier(ssl) -> {beamway_tls, "beamway_tls", [{"BEAMWAY_LINKS", "inet"}]}.

path(Config) -> proplists:get_value(path, Config).

start(Config, Name, File) ->
    {Carrier, Protocol, Environment} = carrier(path(Config)),
    Log = filename:join(proplists:get_value(priv_dir, Config), lists:concat([path(Config), "-", Name, ".log"])),
    {ok, Peer, Node} = beamway_peer:start(Carrier, #{env => Environment, log => Log, flags => ["-proto_dist", Protocol, "-ssl_dist_optfile", File]}),
    {Peer, Node, Log}.

%% Our carrier verifies by default; the file sets it explicitly so that it also works for OTP's.
optfile(Config, Name, Kind) ->
    beamway_certificates:optfile(
      lists:concat([path(Config), "-", Name]), Kind,
      fun(#{certificate := Certificate, key := Key, authorities := Authorities}) ->
              Own = case Name of "no_certificate" -> []; _ -> [{certfile, Certificate}, {keyfile, Key}] end,
              Common = [{cacertfile, Authorities}, {verify, verify_peer}, {crl_check, peer},
                        {crl_cache, {ssl_crl_hash_dir, {internal, [{dir, beamway_certificates:lists_of_revoked()}]}}}],
              [{server, [{certfile, Certificate}, {keyfile, Key}, {fail_if_no_peer_cert, true} | Common]}, {client, Own ++ Common}]
      end).

%% ---- cases ----

other_authority(Config) -> refused(Config, other_authority, [calls, is_called], "Unknown CA").

expired(Config) -> refused(Config, expired, [calls, is_called], "Certificate Expired").

%% ssl sends the same alert for certificates that are not yet valid as for those that have expired.
not_yet_valid(Config) -> refused(Config, not_yet_valid, [calls, is_called], "Certificate Expired").

revoked(Config) -> refused(Config, revoked, [calls, is_called], "Certificate Revoked").

self_signed(Config) -> refused(Config, self_signed, [calls, is_called], "Bad Certificate").

%% A server always has a certificate.
no_certificate(Config) -> refused(Config, no_certificate, [calls], "ertificate").

%% A caller's certificate has no host name to check. OTP 27.3.4 does not send the same alert for it as older releases.
other_host(Config) -> refused(Config, other_host, [is_called], "Handshake Failure|Bad Certificate").

good_is_let_in(Config) ->
    {Good, _, _} = proplists:get_value(good, Config),
    {Other, OtherNode, _} = start(Config, "another", optfile(Config, "another", good)),
    true = beamway_peer:call(Good, net_kernel, connect_node, [OtherNode]),
    OtherNode = beamway_peer:call(Good, erpc, call, [OtherNode, erlang, node, []]),
    beamway_peer:stop(Other).

%% OTP's own verify_fun: its state is the caller's address, which the carrier fills in.
function_of_otp(Config) ->
    File = optfile(Config, "function", good),
    {ok, [[{server, Server}, Client]]} = file:consult(File),
    ok = file:write_file(File, io_lib:format("~p.~n", [[{server, [{verify_fun, {fun inet_tls_dist:verify_client/3, []}} | Server]}, Client]])),
    {Good, _, _} = proplists:get_value(good, Config),
    {Other, OtherNode, _} = start(Config, "function", File),
    true = beamway_peer:call(Good, net_kernel, connect_node, [OtherNode]),
    beamway_peer:stop(Other).

%% If only some nodes are allowed, a certificate for another host is not enough, whatever name the caller claims.
host_of_allowed_nodes(Config) ->
    {Good, GoodNode, _} = proplists:get_value(good, Config),
    {Called, CalledNode, Log} = start(Config, "allows", optfile(Config, "allows", good)),
    {Other, OtherNode, _} = start(Config, "elsewhere", optfile(Config, "elsewhere", other_host)),
    ok = beamway_peer:call(Called, net_kernel, allow, [[GoodNode, OtherNode]]),
    false = beamway_peer:call(Other, net_kernel, connect_node, [CalledNode]),
    [ok = says(Log, allows, ["rejected: its certificate is for no host"], 1) || path(Config) =/= stock],
    true = beamway_peer:call(Good, net_kernel, connect_node, [CalledNode]),
    beamway_peer:stop_all([Called, Other]).

%% OTP 25 does not verify peers unless it is told to, so it accepts a self-signed certificate without a name. Our carrier rejects it with the same
%% file.
without_options_stock_verifies_nobody(_Config) ->
    [begin
         [{One, _}, {_, OtherNode}] =
             [begin
                  File = beamway_certificates:optfile(Protocol ++ "-" ++ atom_to_list(Kind), Kind),
                  {ok, Peer, Node} = beamway_peer:start(Carrier, #{flags => ["-proto_dist", Protocol, "-ssl_dist_optfile", File]}),
                  {Peer, Node}
              end || Kind <- [good, self_signed]],
         {Protocol, Connected} = {Protocol, beamway_peer:call(One, net_kernel, connect_node, [OtherNode])}
     end || {Carrier, Protocol, Connected} <- [{inet_tls, "inet_tls", verifies_nobody()}, {beamway_tls, "beamway_tls", false}]],
    ok.

verifies_nobody() -> list_to_integer(erlang:system_info(otp_release)) < 26.

%% ---- helpers ----

%% The host's name may resolve to a different loopback address, 127.0.1.1 on Debian.
-define(NO_TLS, "beamway: no TLS connection with 127\\.0\\.[01]\\.1:").

refused(Config, Kind, Ways, Reason) ->
    {Good, GoodNode, GoodLog} = proplists:get_value(good, Config),
    ok = beamway_peer:call(Good, logger, notice, ["~p begins", [Kind]]),
    Certificate = case Kind of no_certificate -> good; _ -> Kind end,
    {Bad, BadNode, BadLog} = start(Config, atom_to_list(Kind), optfile(Config, atom_to_list(Kind), Certificate)),
    ok = count_handshakes(Good),
    [begin
         {Caller, Called} = case Way of calls -> {Bad, GoodNode}; is_called -> {Good, BadNode} end,
         {Way, false} = {Way, beamway_peer:call(Caller, net_kernel, connect_node, [Called])},
         %% A caller that is rejected may not learn why.
         ok = says(GoodLog, Kind, [?NO_TLS || path(Config) =/= stock] ++ [Reason], Times),
         ok = case {path(Config), Way} of
                  {stock, calls} -> ok;
                  {stock, is_called} -> says(BadLog, Kind, [Reason], 1);
                  {_, calls} -> says(BadLog, Kind, [?NO_TLS], 1);
                  {_, is_called} -> says(BadLog, Kind, [?NO_TLS, Reason], 1)
              end
     end || {Way, Times} <- lists:zip(Ways, lists:seq(1, length(Ways)))],
    {handshakes, 0} = {handshakes, handshakes(Good)},
    [] = beamway_peer:call(Good, erlang, nodes, [connected]),
    beamway_peer:stop(Bad).

%% Parts are regular expressions. Our carrier logs its own line; with OTP's there are only ssl's lines. The valid node logs a rejection
%% slightly later than the caller.
says(Log, Kind, Parts, Times) ->
    _ = beamway_peer:wait_until(
          fun() ->
                  Text = lists:last(string:split(beamway_peer:log_text(Log), atom_to_list(Kind) ++ " begins")),
                  Lines = [Line || Line <- string:lexemes(Text, "\n"), lists:all(fun(Part) -> re:run(Line, Part, [{capture, none}]) =:= match end, Parts)],
                  length(Lines) >= Times
          end, 10000),
    ok.

-define(HANDSHAKES, [{dist_util, handshake_other_started, 1}, {dist_util, handshake_we_started, 1}]).

count_handshakes(Peer) ->
    {module, dist_util} = beamway_peer:call(Peer, code, ensure_loaded, [dist_util]),
    [1 = beamway_peer:call(Peer, erlang, trace_pattern, [Function, Set, [call_count]]) || Function <- ?HANDSHAKES, Set <- [true, restart]],
    ok.

handshakes(Peer) ->
    lists:sum([Count || Function <- ?HANDSHAKES, {call_count, Count} <- [beamway_peer:call(Peer, erlang, trace_info, [Function, call_count])]]).
