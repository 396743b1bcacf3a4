%% SPDX-License-Identifier: Apache-2.0
%% @doc Creates the certificate for nodes that are measured over TLS. All nodes share one certificate, which is created once in the directory of the
%% beam files, from which `make clean' removes it. It does not protect anything, but its key has the type that clusters typically use.
-module(beamway_bench_tls).

-include_lib("public_key/include/public_key.hrl").

-export([args/1, kernel_args/1, prepare/2]).

%% @doc Returns the flags for a node. This function is pure.
-spec args(Root :: file:filename()) -> [string()].
args(Root) -> ["-ssl_dist_optfile", file(Root, "dist_tls.conf")].

%% @doc Like args/1, but the kernel encrypts. OTP then needs TLS 1.3 with this cipher.
-spec kernel_args(Root :: file:filename()) -> [string()].
kernel_args(Root) -> ["-ssl_dist_optfile", file(Root, "dist_ktls.conf")].

file(Root, Name) -> filename:join([Root, "bench", "ebin", Name]).

%% @doc Creates the files if the contender needs them and they do not exist yet.
-spec prepare(beamway_bench_contender:t(), Root :: file:filename()) -> ok.
prepare(#{args := Args}, Root) ->
    case [File || File <- [lists:last(args(Root)), lists:last(kernel_args(Root))], lists:member(File, Args), not filelib:is_regular(File)] of
        [_] -> make(Root);
        [] -> ok
    end.

%% Two runs may start at the same time, so each file is written atomically, and the files that refer to the others are written last.
make(Root) ->
    {ok, _} = application:ensure_all_started(public_key),
    Common = [{key, {namedCurve, ?secp256r1}}, {digest, sha256}],
    Chain = public_key:pkix_test_data(#{root => Common, intermediates => [], peer => [{extensions, [names()]} | Common]}),
    {Kind, Key} = proplists:get_value(key, Chain),
    [Pem, CaPem] = [file(Root, Name) || Name <- ["dist_tls.pem", "dist_tls_ca.pem"]],
    ok = write(Pem, public_key:pem_encode([{'Certificate', proplists:get_value(cert, Chain), not_encrypted}, {Kind, Key, not_encrypted}])),
    ok = write(CaPem, public_key:pem_encode([{'Certificate', Ca, not_encrypted} || Ca <- lists:usort(proplists:get_value(cacerts, Chain))])),
    Both = [{certfile, Pem}, {keyfile, Pem}, {cacertfile, CaPem}],
    Kernel = Both ++ [{ktls, true}, {versions, ['tlsv1.3']}, {ciphers, ["TLS_AES_256_GCM_SHA384"]}],
    lists:foreach(fun({[_, File], Options}) -> ok = write(File, io_lib:format("~p.~n", [[{server, Options}, {client, Options}]])) end,
                  [{kernel_args(Root), Kernel}, {args(Root), Both}]).

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
    {ok, [[{server, Kernel}, {client, Kernel}]]} = file:consult(file(Root, "dist_ktls.conf")),
    ?assert(proplists:get_value(ktls, Kernel)),
    ok = file:del_dir_r(Root).
-endif.
