%% SPDX-License-Identifier: Apache-2.0
%% @doc Renders a directory as a page: its path, and its entries with sizes and times, in the order that the client requests (`?sort=name', `time' or
%% `size', `&desc'). Directories come first. The page is streamed, because a directory may be large.
-module(yucan_listing).

-export([response/5]).

-include_lib("kernel/include/file.hrl").

%% The number of entries in each part of the page.
-define(PIECE, 200).

%% @doc Returns the page for the directory at the decoded `Path'. It lists only what the options
%% allow to be served.
-spec response(yucan_req:req(), Folder :: binary(), Path :: binary(), Root :: binary(), yucan_file:options()) -> yucan_handler:response().
response(Req, Folder, Path, Root, Options) ->
    Policy = maps:get(follow_symlinks, Options, inside),
    case file:list_dir_all(Folder) of
        {ok, Names} ->
            Look = fun(Name) -> look(Name, Folder, Path, Root, Policy) end,
            {Shown, Nameless} = lists:partition(fun has_path/1, [Name || Any <- Names, Name <- [bytes(Any)], maps:get(dot_files, Options, false) orelse binary:first(Name) =/= $.]),
            End = [nameless(length(Nameless)), maps:get(listing_end, Options, <<>>)],
            Order = order(yucan_req:query_pairs(Req)),
            %% The browser must not guess a different type, and nothing on the page can run.
            {200, [{<<"content-type">>, <<"text/html; charset=utf-8">>}, {<<"content-security-policy">>, <<"default-src 'none'; style-src 'unsafe-inline'">>}
                   | maps:get(headers, Options, [])],
             {stream, fun(Write) -> page(Write, Path, Options#{listing_end => End}, Order, sorted(Order, Look, Shown)) end}};
        {error, _} -> yucan_error:page(403)
    end.

%% Returns whether a request can contain this name. A name that contains a line break, for example, cannot be requested.
has_path(Name) -> yucan_path:decode(<<"/", (yucan_path:escape(Name))/binary>>) =:= {ok, <<"/", Name/binary>>}.

%% Names that no request can contain are not listed but counted, so that the user knows that something is missing.
nameless(0) -> <<>>;
nameless(1) -> <<"<p>1 more has a backslash or a control character in its name and cannot be served.</p>">>;
nameless(Count) -> [<<"<p>">>, integer_to_binary(Count), <<" more have a backslash or a control character in their names and cannot be served.</p>">>].

order(Pairs) ->
    {case lists:keyfind(<<"sort">>, 1, Pairs) of {_, <<"time">>} -> time; {_, <<"size">>} -> size; _ -> name end,
     case lists:keymember(<<"desc">>, 1, Pairs) of true -> desc; false -> asc end}.

sorted({By, Direction}, Look, Names) ->
    Entries = lists:sort([Entry || Name <- Names, {_, _, _, _} = Entry <- [entry(Look, Name)]]),
    {Folders, Files} = lists:partition(fun({Kind, _, _, _}) -> Kind =:= 1 end, Entries),
    directed(Direction, by(By, Folders)) ++ directed(Direction, by(By, Files)).

by(name, Entries) -> Entries;
by(time, Entries) -> lists:keysort(3, Entries);
by(size, Entries) -> lists:keysort(4, Entries).

directed(asc, Entries) -> Entries;
directed(desc, Entries) -> lists:reverse(Entries).

look(Name, Folder, Path, Root, Policy) ->
    case file:read_link_info(<<Folder/binary, "/", Name/binary>>, [raw, {time, universal}]) of
        {ok, #file_info{type = symlink}} -> yucan_symlink:info(<<Path/binary, Name/binary>>, Root, Policy);
        Result -> Result
    end.

bytes(Name) when is_binary(Name) -> Name;
bytes(Name) -> unicode:characters_to_binary(Name).

entry(Look, Name) ->
    case Look(Name) of
        %% Entries that this server may not read are omitted, because it could not serve them.
        {ok, #file_info{type = directory, mtime = Time, access = Access}} when Access =:= read; Access =:= read_write -> {1, <<Name/binary, "/">>, Time, none};
        {ok, #file_info{type = regular, mtime = Time, size = Size, access = Access}} when Access =:= read; Access =:= read_write -> {2, Name, Time, Size};
        _ -> gone
    end.

-define(STYLE, <<"body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:1.5em auto;padding:0 1em;color:#222;background:#fff}h1{font-size:1.2em;font-weight:600;"
                 "overflow-wrap:anywhere}a{color:#0b57d0;text-decoration:none}a:hover{text-decoration:underline}table{border-collapse:collapse;width:100%}"
                 "th{text-align:left;font-weight:600;border-bottom:1px solid #ccc}td,th{padding:.25em .6em .25em 0}tr:hover td{background:#f3f6fb}"
                 "td:first-child{overflow-wrap:anywhere}td:nth-child(2),th:nth-child(2){white-space:nowrap}td:last-child,th:last-child{text-align:right;white-space:nowrap}"
                 "td+td{color:#666}@media(prefers-color-scheme:dark){body{color:#ddd;background:#1b1c1e}a{color:#8ab4f8}th{border-color:#555}tr:hover td{background:#26282b}"
                 "td+td{color:#aaa}}@media(max-width:34em){td:nth-child(2),th:nth-child(2){display:none}}">>).

page(Write, Path, Options, Order, Entries) ->
    Title = yucan_error:escape(Path),
    _ = Write([<<"<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>">>, Title,
               <<"</title><style>">>, ?STYLE, <<"</style></head><body><h1>">>, way(Path, maps:get(mount, Options, <<>>)), <<"</h1><table>\n<tr>">>,
               [column(Name, Text, Order) || {Name, Text} <- [{name, <<"Name">>}, {time, <<"Changed">>}, {size, <<"Size">>}]], <<"</tr>\n">>,
               [<<"<tr><td><a href=\"../\">../</a></td><td></td><td></td></tr>\n">> || Path =/= <<"/">>]]),
    rows(Write, Entries, maps:get(listing_end, Options, <<>>)).

%% Returns the path as links, one for each parent directory.
way(Path, Mount) ->
    Parts = binary:split(Path, <<"/">>, [global, trim_all]),
    {Links, _} = lists:mapfoldl(fun(Part, Above) ->
        Here = [Above, yucan_path:escape(Part), $/],
        {[<<"<a href=\"">>, Here, <<"\">">>, yucan_error:escape(Part), <<"</a>/">>], Here}
    end, [Mount, $/], Parts),
    [<<"<a href=\"">>, Mount, <<"/\">/</a>">> | Links].

%% Clicking on the column by which the page is sorted reverses the order.
column(Name, Text, {Name, asc}) -> column(Name, Text, <<"&amp;desc">>, <<" \342\226\262">>);
column(Name, Text, {Name, desc}) -> column(Name, Text, <<>>, <<" \342\226\274">>);
column(Name, Text, {_, _}) -> column(Name, Text, <<>>, <<>>).

column(Name, Text, Direction, Arrow) ->
    [<<"<th><a href=\"?sort=">>, atom_to_binary(Name), Direction, <<"\">">>, Text, <<"</a>">>, Arrow, <<"</th>">>].

rows(Write, [], End) -> Write([<<"</table>">>, End, <<"</body></html>\n">>]);
rows(Write, Entries, End) ->
    {Now, Later} = lists:split(min(?PIECE, length(Entries)), Entries),
    case Write([row(Entry) || Entry <- Now]) of
        ok -> rows(Write, Later, End);
        {error, _} -> ok
    end.

%% The `./' is needed because a name with a colon would look like a URL with a scheme.
row({_, Name, Time, Size}) ->
    {{Y, M, D}, {H, Min, _}} = calendar:universal_time_to_local_time(Time),
    [<<"<tr><td><a href=\"./">>, yucan_path:escape(Name), <<"\">">>, yucan_error:escape(Name), <<"</a></td><td>">>,
     io_lib:format("~4..0b-~2..0b-~2..0b ~2..0b:~2..0b", [Y, M, D, H, Min]), <<"</td><td>">>, human(Size), <<"</td></tr>\n">>].

human(none) -> <<>>;
human(Size) when Size < 1000 -> [integer_to_binary(Size), " B"];
human(Size) -> human(Size / 1000, ["kB", "MB", "GB", "TB"]).

human(Size, [_ | [_ | _] = Larger]) when Size >= 999.5 -> human(Size / 1000, Larger);
human(Size, [Unit | _]) when Size < 9.95 -> [float_to_binary(float(Size), [{decimals, 1}]), $\s, Unit];
human(Size, [Unit | _]) -> [integer_to_binary(round(Size)), $\s, Unit].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

human_test_() ->
    [?_assertEqual(Text, iolist_to_binary(human(Size)))
     || {Size, Text} <- [{none, <<>>}, {0, <<"0 B">>}, {999, <<"999 B">>}, {1000, <<"1.0 kB">>}, {1049, <<"1.0 kB">>}, {9949, <<"9.9 kB">>}, {9950, <<"10 kB">>},
                         {999499, <<"999 kB">>}, {999500, <<"1.0 MB">>}, {1500000000, <<"1.5 GB">>}, {5 * 1000000000000000, <<"5000 TB">>}]].

sorted_test_() ->
    Entries = #{<<"b">> => {regular, 3, 1}, <<"a">> => {regular, 1, 2}, <<"z">> => {directory, 0, 3}},
    Look = fun(<<"secret">>) -> {ok, #file_info{type = regular, access = none, size = 1, mtime = {{2020, 1, 1}, {0, 0, 0}}}};
              (Name) -> #{Name := {Type, Size, Day}} = Entries, {ok, #file_info{type = Type, access = read, size = Size, mtime = {{2020, 1, Day}, {0, 0, 0}}}} end,
    [?_assertEqual({Order, Expected}, {Order, [Name || {_, Name, _, _} <- sorted(Order, Look, [<<"secret">> | maps:keys(Entries)])]})
     || {Order, Expected} <- [{{name, asc}, [<<"z/">>, <<"a">>, <<"b">>]}, {{name, desc}, [<<"z/">>, <<"b">>, <<"a">>]}, {{time, asc}, [<<"z/">>, <<"b">>, <<"a">>]},
                              {{size, desc}, [<<"z/">>, <<"b">>, <<"a">>]}]].

way_test() ->
    ?assertEqual(<<"<a href=\"/m/\">/</a><a href=\"/m/a%20b/\">a b</a>/<a href=\"/m/a%20b/%3C/\">&lt;</a>/">>, iolist_to_binary(way(<<"/a b/</">>, <<"/m">>))).

-endif.
