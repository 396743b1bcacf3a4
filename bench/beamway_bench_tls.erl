%% SPDX-License-Identifier: Apache-2.0
%% @doc Creates the certificate for nodes that are measured over TLS. All nodes share one certificate, which is created once in the directory of the
%% beam files, from which `make clean' removes it. It does not protect anything, but its key has the type that clusters typically use.
-module(beamway_bench_tls).

-include_lib("public_key/include/public_key.hrl").

-export([args/1, prepare/2]).

%% @doc Returns the flags for a node. This function is pure.
-spec args(Root :: file:filename()) -> [string()].
args(Root) -> ["-ssl_dist_optfile", file(Root, "dist_tls.conf")].

file(Root, Name) -> filename:join([Root, "bench", "ebin", Name]).

%% @doc Creates the files if the contender needs them and they do not exist yet.
-spec prepare(beamway_bench_contender:t(), Root :: file:filename()) -> ok.
prepare(#{args := Args}, Root) ->
    Options = lists:last(args(Root)),
    case lists:member(Options, Args) andalso not filelib:is_regular(Options) of
        true -> make(Root, Options);
        false -> ok
    end.

%% Two runs may start at the same time, so each file is written atomically, and the file that refers to the others is written last.
make(Root, Options) ->
    {ok, _} = application:ensure_all_started(public_key),
    Common = [{key, {namedCurve, ?secp256r1}}, {digest, sha256}],
    Chain = public_key:pkix_test_data(#{root => Common, intermediates => [], peer => [{extensions, [names()]} | Common]}),
    {Kind, Key} = proplists:get_value(key, Chain),
    [Pem, CaPem] = [file(Root, Name) || Name <- ["dist_tls.pem", "dist_tls_ca.pem"]],
    ok = write(Pem, public_key:pem_encode([{'Certificate', proplists:get_value(cert, Chain), not_encrypted}, {Kind, Key, not_encrypted}])),
    ok = write(CaPem, public_key:pem_encode([{'Certificate', Ca, not_encrypted} || Ca <- lists:usort(proplists:get_value(cacerts, Chain))])),
    Both = [{certfile, Pem}, {keyfile, Pem}, {cacertfile, CaPem}],
    write(Options, io_lib:format("~p.~n", [[{server, Both}, {client, Both}]])).

%% Returns the addresses of the loopback interface and of the hosts in beamway_bench_net.
names() ->
    Addresses = [<<127, 0, 0, 1>> | [<<10, 97, 194, Last>> || Last <- [1, 2]] ++ [<<10, 98, 7, Last>> || Last <- [1, 2, 3, 4]]],
    #'Extension'{extnID = ?'id-ce-subjectAltName', critical = false, extnValue = [{iPAddress, Address} || Address <- Addresses]}.

write(File, Text) ->
    New = File ++ "." ++ os:getpid(),
    ok = file:write_file(New, Text),
    ok = file:change_mode(New, 8#600),
    file:rename(New, File).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

made_once_and_only_for_tls_test() ->
    "/" ++ _ = Root = string:trim(os:cmd("mktemp -d")),
    ok = filelib:ensure_dir(file(Root, "x")),
    Contenders = beamway_bench_contender:all(Root, 50),
    ok = prepare(maps:get(tcp, Contenders), Root),
    ?assertNot(filelib:is_file(file(Root, "dist_tls.conf"))),
    [begin
         ok = prepare(maps:get(Name, Contenders), Root),
         {ok, [[{server, Options}, {client, Options}]]} = file:consult(file(Root, "dist_tls.conf")),
         {ok, Pem} = file:read_file(proplists:get_value(certfile, Options)),
         put(Name, Pem),
         ?assertMatch([{'Certificate', _, _}, {'ECPrivateKey', _, _}], public_key:pem_decode(Pem))
     end || Name <- [tls, beamway_tls]],
    ?assertEqual(get(tls), get(beamway_tls)),
    ok = file:del_dir_r(Root).
-endif.
