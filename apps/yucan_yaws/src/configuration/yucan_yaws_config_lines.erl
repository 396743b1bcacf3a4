%% SPDX-License-Identifier: Apache-2.0
%% @doc Parses the lines of a configuration file: settings, and the start and end tags of blocks. {@link yucan_yaws_config} interprets them.
-module(yucan_yaws_config_lines).

-export([lines/1]).
-export_type([line/0]).

-type line() :: {Line :: pos_integer(), content()}.
-type content() :: {set, Key :: string(), '=' | '==', Value :: string()}
                 | {open, Name :: string(), Argument :: string()}
                 | {close, Name :: string()}
                 | {junk, Text :: string()}.
%% `{set, "/p", '==', "/q"}' is a redirect that does not append. Everything else is set with `='.

%% @doc Returns the lines of a text, without empty lines and comments. It accepts any bytes; text that is not UTF-8 is interpreted as Latin-1.
-spec lines(binary()) -> [line()].
lines(Text) ->
    Characters = case unicode:characters_to_list(Text) of
                     List when is_list(List) -> List;
                     _ -> binary_to_list(Text)
                 end,
    Rows = [{Line, string:trim(Row, trailing, "\r")} || {Line, Row} <- lists:enumerate(string:split(without_mark(Characters), "\n", all))],
    [{Line, content(Stripped)} || {Line, Raw} <- join(Rows), Stripped <- [string:trim(strip_comment(Raw))], Stripped =/= ""].

%% Removes the byte order mark that editors on Windows write.
without_mark([16#FEFF | Characters]) -> Characters;
without_mark(Characters) -> Characters.

%% Joined lines are reported under the line number of the first one.
join([{Line, Text} = Row, {_, Next} | Rest] = Rows) ->
    case lists:suffix("\\", Text) of
        true -> join([{Line, lists:droplast(Text) ++ " " ++ Next} | Rest]);
        false -> [Row | join(tl(Rows))]
    end;
join(Lines) -> Lines.

%% A `#' begins a comment only at the start of a word, because a URL may contain one.
strip_comment(Text) -> strip_comment(Text, $\s, plain).

strip_comment([], _, _) -> [];
strip_comment([$# | _], Before, plain) when Before =:= $\s; Before =:= $\t -> [];
strip_comment([$" | Rest], _, plain) -> [$" | strip_comment(Rest, $", quoted)];
strip_comment([$" | Rest], _, quoted) -> [$" | strip_comment(Rest, $", plain)];
strip_comment([C | Rest], _, Mode) -> [C | strip_comment(Rest, C, Mode)].

content("</" ++ Rest = Text) ->
    case lists:reverse(Rest) of
        ">" ++ Name -> {close, string:trim(lists:reverse(Name))};
        _ -> {junk, Text}
    end;
content("<" ++ Rest = Text) ->
    case lists:reverse(Rest) of
        ">" ++ Inner -> open(string:trim(lists:reverse(Inner)), Text);
        _ -> {junk, Text}
    end;
content(Text) ->
    case string:split(Text, "=") of
        [Key, "=" ++ Value] -> set(Key, '==', Value, Text);
        [Key, Value] -> set(Key, '=', Value, Text);
        [_] -> {junk, Text}
    end.

open(Inner, Text) ->
    case string:split([case C of $\t -> $\s; _ -> C end || C <- Inner], " ") of
        [""] -> {junk, Text};
        [Name] -> {open, Name, ""};
        [Name, Argument] -> {open, Name, string:trim(Argument)}
    end.

set(Key, Sign, Value, Text) ->
    case string:trim(Key) of
        "" -> {junk, Text};
        Name -> {set, unquoted(Name), Sign, unquoted(string:trim(Value))}
    end.

unquoted([$" | Rest] = Value) ->
    case lists:reverse(Rest) of
        [$" | Inner] -> without_quotes(lists:reverse(Inner), Value);
        _ -> Value
    end;
unquoted(Value) -> Value.

without_quotes(Inner, Value) ->
    case lists:member($", Inner) of
        true -> Value;
        false -> Inner
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

lines_test() ->
    Text = <<"# a comment\n"
             "port = 80  # another\n"
             "\n"
             "<server www.example.com>\r\n"
             "\tdocroot=/a \\\n"
             "\t  /b\n"
             "  title = \"a # b = c\"\n"
             "  /p == http://x/#y\n"
             "  <extra_cgi_vars dir='/a b'>\n"
             "what\n"
             "</server >\n">>,
    ?assertEqual([{2, {set, "port", '=', "80"}},
                  {4, {open, "server", "www.example.com"}},
                  {5, {set, "docroot", '=', "/a    /b"}},
                  {7, {set, "title", '=', "a # b = c"}},
                  {8, {set, "/p", '==', "http://x/#y"}},
                  {9, {open, "extra_cgi_vars", "dir='/a b'"}},
                  {10, {junk, "what"}},
                  {11, {close, "server"}}],
                 flat(lines(Text))).

%% Removes tabs, which are invisible.
flat(Rows) ->
    [case Content of
         {set, Key, Sign, Value} -> {Line, {set, Key, Sign, [C || C <- Value, C =/= $\t]}};
         _ -> {Line, Content}
     end || {Line, Content} <- Rows].

empty_values_test() ->
    ?assertEqual([{1, {set, "listen", '=', ""}}, {2, {junk, "= 5"}}, {3, {junk, "<>"}}, {4, {junk, "</server"}}],
                 lines(<<"listen =\n= 5\n<>\n</server">>)).

byte_order_mark_test() -> ?assertEqual([{1, {open, "server", "h"}}], lines(<<16#FEFF/utf8, "<server h>\n"/utf8>>)).

latin1_test() -> ?assertEqual([{1, {set, "a", '=', [16#e9]}}], lines(<<"a = ", 16#e9>>)).

-endif.
