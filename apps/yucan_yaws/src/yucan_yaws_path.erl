%% SPDX-License-Identifier: Apache-2.0
%% @doc Paths of requests against those of a configuration: what is under what, and which appmod takes it. Pure.
-module(yucan_yaws_path).

-export([is_under/2, appmod/2, rest/2]).
-export_type([appmod/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-type appmod() :: #{module := module(), prefix := binary(), rest := binary()}.
%% `prefix' is the path up to and with the appmod, `rest' what follows, with a slash, or nothing.

%% @doc Whether a decoded path is that of a folder or below it.
-spec is_under(Path :: binary(), Folder :: binary()) -> boolean().
is_under(_, <<"/">>) -> true;
is_under(Path, Folder) ->
    Size = byte_size(Folder),
    case Path of
        <<Folder:Size/binary>> -> true;
        <<Folder:Size/binary, "/", _/binary>> -> true;
        <<Folder:Size/binary, _/binary>> -> binary:last(Folder) =:= $/;
        _ -> false
    end.

%% @doc What follows a folder that the path is under.
-spec rest(Path :: binary(), Folder :: binary()) -> binary().
rest(Path, <<"/">>) -> Path;
rest(Path, Folder) -> binary:part(Path, byte_size(Folder), byte_size(Path) - byte_size(Folder)).

%% @doc The appmod with the longest path that this path is under, unless one of its exclude_paths holds it.
-spec appmod(Path :: binary(), [yucan_yaws_config_value:mount()]) -> {ok, appmod()} | none.
appmod(Path, Mounts) ->
    Found = [{byte_size(Prefix), Mount, Prefix} || #{exclude := Exclude} = Mount <- Mounts,
                                                   {ok, Prefix} <- [prefix(Path, Mount)],
                                                   not lists:any(fun(E) -> is_under(Path, to_binary(E)) end, Exclude)],
    case lists:reverse(lists:keysort(1, Found)) of
        [{_, #{module := Module}, Prefix} | _] -> {ok, #{module => Module, prefix => Prefix, rest => rest(Path, Prefix)}};
        [] -> none
    end.

prefix(Path, #{path := "/" ++ _ = From}) ->
    Folder = case string:trim(From, trailing, "/") of
                 "" -> <<"/">>;
                 Trimmed -> to_binary(Trimmed)
             end,
    case is_under(Path, Folder) of
        true -> {ok, Folder};
        false -> none
    end;
%% Without a slash: that part, wherever it is.
prefix(Path, #{path := Part}) ->
    Name = to_binary(Part),
    case lists:splitwith(fun(Segment) -> Segment =/= Name end, binary:split(Path, <<"/">>, [global])) of
        {_, []} -> none;
        {Before, _} -> {ok, iolist_to_binary(lists:join("/", Before ++ [Name]))}
    end.

to_binary(Text) -> unicode:characters_to_binary(Text).

-ifdef(TEST).

is_under_test_() ->
    [?_assertEqual(Expected, is_under(Path, Folder))
     || {Path, Folder, Expected} <- [{<<"/a">>, <<"/">>, true}, {<<"/a">>, <<"/a">>, true}, {<<"/a/">>, <<"/a">>, true},
                                     {<<"/ab">>, <<"/a">>, false}, {<<"/a/b">>, <<"/a/">>, true}, {<<"/">>, <<"/a">>, false}]].

appmod_test_() ->
    {ok, Mounts} = yucan_yaws_config_value:read(mounts, "</, root exclude_paths static img/x> </trac, trac> </trac/raw/, raw> any", "/"),
    [?_assertEqual(Expected, appmod(Path, Mounts))
     || {Path, Expected} <-
            [{<<"/">>, {ok, #{module => root, prefix => <<"/">>, rest => <<"/">>}}},
             {<<"/x/y">>, {ok, #{module => root, prefix => <<"/">>, rest => <<"/x/y">>}}},
             {<<"/static/a.js">>, none},
             {<<"/statics">>, {ok, #{module => root, prefix => <<"/">>, rest => <<"/statics">>}}},
             {<<"/img/x">>, none},
             {<<"/trac">>, {ok, #{module => trac, prefix => <<"/trac">>, rest => <<>>}}},
             {<<"/trac/wiki/A">>, {ok, #{module => trac, prefix => <<"/trac">>, rest => <<"/wiki/A">>}}},
             {<<"/trac/raw/b">>, {ok, #{module => raw, prefix => <<"/trac/raw">>, rest => <<"/b">>}}},
             {<<"/a/any/c">>, {ok, #{module => any, prefix => <<"/a/any">>, rest => <<"/c">>}}}]].

-endif.
