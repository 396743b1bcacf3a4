%% SPDX-License-Identifier: Apache-2.0
%% @doc Checks the `<auth>' blocks of a server, which control access to everything below a path. Both the path after arg_rewrite and the original path
%% are checked.
%%
%% A client whose address is listed in `allow' may continue, and a client whose address is listed in `deny' gets a 403 regardless of the user. After
%% that, if the block has users or an authmod, the client needs a name and a password (Basic), or whatever the module requires.
-module(yucan_yaws_auth).

-export([check/3, basic/1]).
-export_type([verdict/0]).

-include("../../include/yaws_api.hrl").

-type verdict() :: ok | {ok, User :: binary()} | forbidden | {unauthorized, Realm :: string()} | {appmod, module()}.

%% @doc Checks all blocks that contain one of the paths. The first block that rejects the request decides.
-spec check(Paths :: [binary()], [yucan_yaws_config:auth()], #arg{}) -> verdict().
check(Paths, Blocks, Arg) ->
    Holding = [Block || #{dir := Dirs} = Block <- Blocks,
                        lists:any(fun(Dir) -> holds(unicode:characters_to_binary(Dir), Paths) end, Dirs)],
    blocks(Holding, Arg, ok).

holds(Dir, Paths) -> lists:any(fun(Path) -> yucan_yaws_match:is_under(Path, Dir) end, Paths).

blocks([], _, Verdict) -> Verdict;
blocks([Block | Rest], #arg{client_ip_port = {Address, _}} = Arg, Verdict) ->
    case may_enter(Address, Block) of
        false -> forbidden;
        true ->
            case person(Block, Arg) of
                ok -> blocks(Rest, Arg, Verdict);
                {ok, User} -> blocks(Rest, Arg, {ok, User});
                Refused -> Refused
            end
    end.

may_enter(Address, #{allow := Allow, deny := Deny}) -> is_in(Address, Allow) orelse not is_in(Address, Deny).

is_in(Address, List) -> lists:member(all, List) orelse yucan_cidr:contains([Block || Block <- List, Block =/= all], Address).

person(#{users := [], authmod := undefined}, _) -> ok;
person(#{authmod := undefined, users := Users, realm := Realm}, #arg{headers = #headers{authorization = Given}}) ->
    user(Given, Users, Realm);
person(#{authmod := Module, realm := Realm} = Block, Arg) ->
    case Module:auth(Arg, Block) of
        true -> ok;
        {true, User} -> {ok, iolist_to_binary(User)};
        false -> {unauthorized, Realm};
        {false, Other} -> {unauthorized, Other};
        {appmod, Appmod} -> {appmod, Appmod}
    end.

user({Name, Password, _}, [{_, Any} | _] = Users, Realm) when is_list(Name) ->
    %% The check takes as long for an unknown name as for a known one, so that timing does not reveal which names exist.
    Stored = proplists:get_value(Name, Users, Any),
    case yucan_password:check(list_to_binary(Password), Stored) andalso lists:keymember(Name, 1, Users) of
        true -> {ok, list_to_binary(Name)};
        false -> {unauthorized, Realm}
    end;
user(_, _, Realm) -> {unauthorized, Realm}.

%% @doc Returns the name and the password in an Authorization header.
-spec basic(binary()) -> {ok, binary(), binary()} | error.
basic(<<Scheme:5/binary, " ", Encoded/binary>>) ->
    case yucan_header:lower(Scheme) of
        <<"basic">> -> decoded(Encoded);
        _ -> error
    end;
basic(_) -> error.

decoded(Encoded) ->
    try binary:split(base64:decode(Encoded), <<":">>) of
        [Name, Password] -> {ok, Name, Password};
        [_] -> error
    catch
        error:_ -> error
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

block(More) -> maps:merge(#{dir => ["/secret"], realm => "r", users => [], authmod => undefined, allow => [], deny => []}, More).

arg(Address, Authorization) -> #arg{client_ip_port = {Address, 1}, headers = #headers{authorization = Authorization}}.

check_test_() ->
    Users = block(#{users => [{"joe", "pw"}, {"ann", yucan_password:hash(<<"x:y">>, <<"s">>)}]}),
    {ok, Loopback} = yucan_cidr:block("127.0.0.0/8"),
    Near = block(#{allow => [Loopback], deny => [all]}),
    [?_assertEqual(Expected, check([Path], [Block], Arg))
     || {Path, Block, Arg, Expected} <-
            [{<<"/open">>, Users, arg({1, 2, 3, 4}, undefined), ok},
             {<<"/secret">>, Users, arg({1, 2, 3, 4}, undefined), {unauthorized, "r"}},
             {<<"/secret/a">>, Users, arg({1, 2, 3, 4}, {"joe", "pw", ""}), {ok, <<"joe">>}},
             {<<"/secret/a">>, Users, arg({1, 2, 3, 4}, {"ann", "x:y", ""}), {ok, <<"ann">>}},
             {<<"/secret/a">>, Users, arg({1, 2, 3, 4}, {"ann", "pw", ""}), {unauthorized, "r"}},
             {<<"/secret/a">>, Users, arg({1, 2, 3, 4}, {undefined, undefined, "Bearer x"}), {unauthorized, "r"}},
             {<<"/secret">>, Near, arg({127, 1, 2, 3}, undefined), ok},
             {<<"/secret">>, Near, arg({0, 0, 0, 0, 0, 16#ffff, 16#7f00, 1}, undefined), ok},
             {<<"/secret">>, Near, arg({128, 1, 2, 3}, undefined), forbidden}]].

basic_test_() ->
    [?_assertEqual({ok, <<"joe">>, <<"p:w">>}, basic(<<"Basic am9lOnA6dw==">>)), ?_assertEqual({ok, <<"joe">>, <<"pw">>}, basic(<<"basic am9lOnB3">>)),
     ?_assertEqual(error, basic(<<"Basic !">>)), ?_assertEqual(error, basic(<<"Basic am9l">>)), ?_assertEqual(error, basic(<<>>)),
     ?_assertEqual(error, basic(<<"Bearer x">>))].

-endif.
