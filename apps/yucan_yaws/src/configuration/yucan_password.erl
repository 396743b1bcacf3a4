%% SPDX-License-Identifier: Apache-2.0
%% @doc Checks passwords from `user = NAME:PASSWORD' lines, which are either plain text or `{pbkdf2}SALT$HASH'. Comparisons take constant time.
-module(yucan_password).

-export([is_valid_hash/1, expected/0, check/2, hash/2]).

%% The number of rounds, which determines the cost of each guess. A check takes about 10 ms.
-define(ROUNDS, 10000).

%% @doc Returns whether a stored password is plain text or a hash of a known kind.
-spec is_valid_hash(string()) -> boolean().
is_valid_hash("{" ++ _ = Stored) -> parts(Stored) =/= error;
is_valid_hash(_) -> true.

%% @doc Returns the error message for a hash of an unknown kind.
-spec expected() -> string().
expected() -> "{pbkdf2}SALT$HASH, both in base64, of 10000 rounds of SHA-256".

%% @doc Returns whether a password matches the stored one.
-spec check(Password :: binary(), Stored :: string()) -> boolean().
check(Password, Stored) ->
    case parts(Stored) of
        {Salt, Hash} -> crypto:hash_equals(derive(Password, Salt), Hash);
        %% Plain passwords are compared by their hashes, so that the time does not reveal the
        %% secret's length.
        error -> crypto:hash_equals(crypto:hash(sha256, Password), crypto:hash(sha256, unicode:characters_to_binary(Stored)))
    end.

%% @doc Hashes a password, and returns the hash in the form that a configuration contains.
-spec hash(Password :: binary(), Salt :: binary()) -> string().
hash(Password, Salt) ->
    lists:flatten(["{pbkdf2}", base64:encode_to_string(Salt), "$", base64:encode_to_string(derive(Password, Salt))]).

derive(Password, Salt) -> crypto:pbkdf2_hmac(sha256, Password, Salt, ?ROUNDS, 32).

parts("{pbkdf2}" ++ Rest) ->
    case string:split(Rest, "$") of
        [Salt, Hash] ->
            try {base64:decode(Salt), base64:decode(Hash)} of
                {_, Bytes} = Parts when byte_size(Bytes) =:= 32 -> Parts;
                _ -> error
            catch
                error:_ -> error
            end;
        [_] -> error
    end;
parts(_) -> error.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

check_test_() ->
    Stored = hash(<<"secret">>, <<"salt">>),
    [?_assert(check(<<"secret">>, Stored)), ?_assertNot(check(<<"Secret">>, Stored)), ?_assertNot(check(<<>>, Stored)),
     ?_assert(check(<<"p:w">>, "p:w")), ?_assertNot(check(<<"p:">>, "p:w")),
     ?_assert(is_valid_hash(Stored)), ?_assert(is_valid_hash("plain")), ?_assertNot(is_valid_hash("{md5}x$y")),
     ?_assertNot(is_valid_hash("{pbkdf2}x")), ?_assertNot(is_valid_hash("{pbkdf2}#$#"))].

-endif.
