%% SPDX-License-Identifier: Apache-2.0
%% @doc The keys of the option `encrypt'.
%%
%% The TLS key, and the fingerprint by which two nodes refer to it, are derived from a secret with HKDF (RFC 5869, SHA-256). The secret is a line of
%% `encrypt_key_file', or is derived from the cookie with scrypt, so that each guess at a cookie costs 0.3 s and 32 MB. The cookie itself is never
%% used as a key.
%%
%% The file is read for each connection, so keys can be changed while the node runs. The secret of a cookie is derived once and cached.
-module(beamway_encrypt).

-export([mode/0, check/0, keys/1, of_file/1, place/3, name/2]).
-export_type([key/0]).

-include_lib("kernel/include/file.hrl").
-include_lib("kernel/include/logger.hrl").

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-define(TABLE, beamway_links).
-define(LOCK, {?MODULE, lock, deriving}).
-define(LOOK_MS, 10).
-define(SALT, "beamway encrypt 1").
-define(FILE_BYTES, 65536).
-define(SECRET_BYTES, 32).
%% The chance that 32 random bytes contain fewer different values than this is 1 in 10^8.
-define(DIFFERENT_BYTES, 20).
-define(KEYGEN, "make one with: beamway keygen FILE").

-type key() :: #{source := cookie | file, label := <<_:64>>, key := <<_:256>>}.
%% `label' is the first 8 hexadecimal digits of the fingerprint.

%% @doc Returns the value of the option `encrypt', which may be missing on a node that was upgraded while running.
-spec mode() -> boolean() | prefer.
mode() -> maps:get(encrypt, beamway_links:config(), false).

%% @doc Returns whether this node can encrypt as its options require. Called before the node listens.
-spec check() -> ok | {error, Problem :: binary()}.
check() ->
    case {mode(), beamway_links:drives_tcp()} of
        {false, _} -> ok;
        {_, {false, Reason}} -> {error, <<"the driver is needed for it: ", Reason/binary>>};
        {_, true} -> check(beamway_links:config(), beamway_driver:has(tls), code:ensure_loaded(crypto))
    end.

check(_Config, false, _Crypto) ->
    {error, <<"the driver has no TLS; install libssl-dev and run: make clean build">>};
check(_Config, true, {error, _}) ->
    {error, <<"the application crypto is missing (Debian: erlang-crypto)">>};
check(#{encrypt_key_file := File}, true, {module, crypto}) ->
    warn_if_open(File, file:read_file_info(File, [raw])),
    case {File, erlang:get_cookie()} of
        {"", nocookie} -> ok; % a tool that receives its cookie later
        {_, Cookie} -> case keys(Cookie) of {ok, _} -> ok; Problem -> Problem end
    end.

%% This is only a warning, because the mode of files in containers often cannot be changed.
warn_if_open(File, {ok, #file_info{mode = Mode}}) when Mode band 8#004 =/= 0 ->
    ?LOG_WARNING("beamway: every user of this host can read the keys in ~ts and so join the cluster; chmod o-r it if you can", [File]);
warn_if_open(_File, _) ->
    ok.

%% @doc Returns the keys of this node, starting with the one that it uses when it calls a peer. `Cookie' is the cookie for the peer.
-spec keys(Cookie :: atom()) -> {ok, [key(), ...]} | {error, Problem :: binary()}.
keys(Cookie) ->
    case maps:get(encrypt_key_file, beamway_links:config()) of
        "" -> of_cookie(Cookie);
        File -> of_file(File)
    end.

%% @doc Encodes the starting point of a TLS link for the driver: the socket, the keys, and the bytes already read from the connection.
-spec place(Fd :: non_neg_integer(), [{Label :: <<_:64>>, Key :: <<_:256>>}, ...], Read :: binary()) -> binary().
place(Fd, Keys, Read) ->
    iolist_to_binary([<<Fd:32, (length(Keys))>>, [[Label, Key] || {Label, Key} <- Keys], Read]).

%% @doc Returns text that identifies a key.
-spec name([key()], Label :: binary()) -> binary().
name(Keys, Label) ->
    case [Source || #{source := Source, label := L} <- Keys, L =:= Label] of
        [file | _] -> <<"key file ", Label/binary>>;
        _ -> <<"cookie ", Label/binary>>
    end.

of_cookie(nocookie) ->
    {error, <<"this node has no cookie to make a key from">>};
of_cookie(Cookie) ->
    case is_default(atom_to_list(Cookie)) of
        true ->
            {error, <<"the cookie looks like one that OTP has made by itself (20 capital letters). OTP makes it from 36 bits of state, so whoever records a connection can find it. "
                      "Make a better one with: beamway keygen --cookie; or a key file with: beamway keygen FILE">>};
        false ->
            derived(Cookie, ets:lookup(?TABLE, {?MODULE, Cookie}))
    end.

is_default(Cookie) -> length(Cookie) =:= 20 andalso lists:all(fun(C) -> C >= $A andalso C =< $Z end, Cookie).

derived(_Cookie, [{_, Key}]) ->
    {ok, [Key]};
derived(Cookie, []) ->
    case {ets:insert_new(?TABLE, {?LOCK, self()}), ets:lookup(?TABLE, ?LOCK)} of
        {true, _} -> try derive(Cookie, ets:lookup(?TABLE, {?MODULE, Cookie})) after ets:delete(?TABLE, ?LOCK) end;
        {false, [{_, Pid}]} -> await(is_process_alive(Pid), {?LOCK, Pid}), of_cookie(Cookie);
        {false, []} -> of_cookie(Cookie)
    end.

%% Derives keys one at a time, because many peers may be called at once with a new cookie. A process that waits too long is killed by its own timer.
await(true, _Lock) -> receive after ?LOOK_MS -> true end;
await(false, Lock) -> ets:delete_object(?TABLE, Lock).

derive(_Cookie, [{_, Key}]) ->
    {ok, [Key]};
derive(Cookie, []) ->
    case beamway_port:derive(<<?SALT>>, atom_to_binary(Cookie)) of
        {ok, Secret} ->
            Key = key(cookie, Secret),
            true = ets:insert(?TABLE, {{?MODULE, Cookie}, Key}),
            {ok, [Key]};
        {error, Reason} ->
            {error, <<"no key can be derived from the cookie: ", Reason/binary>>}
    end.

%% @doc Returns the keys in a file.
-spec of_file(file:filename()) -> {ok, [key(), ...]} | {error, Problem :: binary()}.
of_file(File) ->
    case beamway_host:read(File, ?FILE_BYTES) of
        {ok, Text} ->
            case secrets(Text) of
                {ok, Secrets} -> {ok, [key(file, Secret) || Secret <- Secrets]};
                {error, What} -> problem("encrypt_key_file ~ts ~ts; " ++ ?KEYGEN, [File, What])
            end;
        {error, Reason} ->
            problem("encrypt_key_file ~ts: ~ts; " ++ ?KEYGEN, [File, file:format_error(Reason)])
    end.

%% A file may contain anything, such as the raw 32 bytes. Messages never quote any part of a line.
secrets(Text) ->
    Lines = [Line || Spaced <- binary:split(Text, <<"\n">>, [global]), Line <- [binary:replace(Spaced, [<<" ">>, <<"\t">>, <<"\r">>], <<>>, [global])],
                     Line =/= <<>>, binary:first(Line) =/= $#],
    case [secret(Line) || Line <- Lines] of
        [] -> {error, "holds no key"};
        [_, _, _ | _] -> {error, io_lib:format("holds ~b keys, expected one or two", [length(Lines)])};
        Secrets ->
            case lists:member(error, Secrets) of
                true -> {error, "holds a line that is not 32 random bytes or more in base64"};
                false -> {ok, Secrets}
            end
    end.

secret(Line) ->
    try base64:decode(Line) of
        Secret when byte_size(Secret) >= ?SECRET_BYTES ->
            case length(lists:usort(binary_to_list(Secret))) >= ?DIFFERENT_BYTES of true -> Secret; false -> error end;
        _ -> error
    catch
        error:_ -> error
    end.

problem(Format, Args) -> {error, unicode:characters_to_binary(io_lib:format(Format, Args))}.

key(Source, Secret) ->
    <<Fingerprint:32, _/binary>> = hkdf(Secret, <<"fingerprint">>),
    #{source => Source, key => hkdf(Secret, <<"tls 1.3 psk">>),
      label => iolist_to_binary(io_lib:format("~8.16.0b", [Fingerprint]))}.

%% HKDF needs only one block of output, because the hash is as long as the key.
hkdf(Secret, Info) -> hkdf(<<?SALT>>, Secret, Info).

hkdf(Salt, Secret, Info) -> crypto:mac(hmac, sha256, crypto:mac(hmac, sha256, Salt, Secret), <<Info/binary, 1>>).

-ifdef(TEST).

%% RFC 5869, test case 1: the first of its two blocks.
hkdf_test() ->
    ?assertEqual(<<16#3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf:256>>,
                 hkdf(<<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12>>, binary:copy(<<11>>, 22), <<16#f0f1f2f3f4f5f6f7f8f9:80>>)).

default_cookie_test() ->
    ?assert(is_default("ABCDEFGHIJKLMNOPQRST")),
    [?assertNot(is_default(Cookie)) || Cookie <- ["ABCDEFGHIJKLMNOPQRS", "ABCDEFGHIJKLMNOPQRSTU", "ABCDEFGHIJKLMNOPQRS1", "abcdefghijklmnopqrst", ""]],
    ?assertMatch({error, _}, of_cookie(nocookie)),
    {error, Text} = of_cookie('ABCDEFGHIJKLMNOPQRST'),
    ?assertNotEqual(nomatch, string:find(Text, "beamway keygen")).

file_test() ->
    [One, Two, Three] = [crypto:strong_rand_bytes(32) || _ <- [1, 2, 3]],
    Lines = fun(Secrets) -> iolist_to_binary([["# a comment\n\n ", base64:encode(Secret), " \r\n"] || Secret <- Secrets]) end,
    ?assertEqual({ok, [One]}, secrets(Lines([One]))),
    ?assertEqual({ok, [Two, One]}, secrets(Lines([Two, One]))),
    [?assertMatch({error, _}, secrets(Bad))
     || Bad <- [<<>>, <<"# nothing\n">>, One, Lines([One, Two, Three]), Lines([One, binary:part(Two, 0, 31)]), Lines([binary:copy(<<1, 2, 3>>, 20)]),
                <<(base64:encode(One))/binary, "=">>] ++ [crypto:strong_rand_bytes(N) || N <- lists:seq(1, 200)]].

keys_differ_by_purpose_and_secret_test() ->
    #{key := Key, label := Label} = One = key(file, <<"a secret">>),
    ?assertEqual(One#{source := cookie}, key(cookie, <<"a secret">>)),
    ?assertNotEqual(Key, maps:get(key, key(file, <<"another">>))),
    ?assertEqual(nomatch, binary:match(Key, binary:decode_hex(Label))),
    ?assertEqual(<<"key file ", Label/binary>>, name([One], Label)),
    ?assertEqual(<<7:32, 1, Label/binary, Key/binary, "read">>, place(7, [{Label, Key}], <<"read">>)).

-endif.
