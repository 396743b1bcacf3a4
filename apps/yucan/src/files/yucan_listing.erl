%% SPDX-License-Identifier: Apache-2.0
%% @doc A folder as a page: sorted, folders first, names escaped, nothing whose name begins with a dot. Streamed, for a folder may be large.
-module(yucan_listing).

-export([response/4]).

-include_lib("kernel/include/file.hrl").

%% Entries in one piece of the page.
-define(PIECE, 200).

%% @doc The page of a folder; `Path' is what the client asked for, decoded, below the root. A link is there if the policy lets its target out.
-spec response(Folder :: binary(), Path :: binary(), Root :: binary(), yucan_symlink:policy()) -> yucan_handler:response().
response(Folder, Path, Root, Policy) ->
    case file:list_dir_all(Folder) of
        {ok, Names} ->
            Look = fun(Name) -> look(Name, Folder, Path, Root, Policy) end,
            {200, [{<<"content-type">>, <<"text/html; charset=utf-8">>}], {stream, fun(Write) -> page(Write, Path, sorted(Look, Names)) end}};
        {error, _} -> yucan_error:page(403)
    end.

sorted(Look, Names) ->
    Entries = [entry(Look, bytes(Name)) || Name <- Names, not is_hidden(Name)],
    lists:sort([Entry || {_, _, _, _} = Entry <- Entries]).

look(Name, Folder, Path, Root, Policy) ->
    case file:read_link_info(<<Folder/binary, "/", Name/binary>>, [raw, {time, universal}]) of
        {ok, #file_info{type = symlink}} -> yucan_symlink:info(<<Path/binary, Name/binary>>, Root, Policy);
        Result -> Result
    end.

bytes(Name) when is_binary(Name) -> Name;
bytes(Name) -> unicode:characters_to_binary(Name).

is_hidden([$. | _]) -> true;
is_hidden(<<".", _/binary>>) -> true;
is_hidden(_) -> false.

entry(Look, Name) ->
    case Look(Name) of
        {ok, #file_info{type = directory, mtime = Time}} -> {1, <<Name/binary, "/">>, Time, none};
        {ok, #file_info{type = regular, mtime = Time, size = Size}} -> {2, Name, Time, Size};
        _ -> gone
    end.

page(Write, Path, Entries) ->
    Title = yucan_error:escape(Path),
    _ = Write([<<"<!DOCTYPE html>\n<html><head><meta charset=\"utf-8\"><title>">>, Title, <<"</title></head><body><h1>">>, Title, <<"</h1><table>\n">>,
               [<<"<tr><td><a href=\"../\">../</a></td><td></td><td></td></tr>\n">> || Path =/= <<"/">>]]),
    rows(Write, Entries),
    Write(<<"</table></body></html>\n">>).

rows(_, []) -> ok;
rows(Write, Entries) ->
    {Now, Later} = lists:split(min(?PIECE, length(Entries)), Entries),
    case Write([row(Entry) || Entry <- Now]) of
        ok -> rows(Write, Later);
        {error, _} -> ok
    end.

%% A colon in a relative reference would look like a scheme.
row({_, Name, Time, Size}) ->
    [<<"<tr><td><a href=\"./">>, yucan_path:escape(Name), <<"\">">>, yucan_error:escape(Name), <<"</a></td><td>">>, yucan_header:date(Time),
     <<"</td><td>">>, case Size of none -> "-"; _ -> integer_to_binary(Size) end, <<"</td></tr>\n">>].
