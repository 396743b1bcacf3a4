%% SPDX-License-Identifier: Apache-2.0
%% @doc Compiles pages that contain Erlang code (`.yaws'). The text between `<erl>' and `</erl>' is the code of a module with a function `out/1',
%% whose result replaces the text. The code can use the records of yaws_api.hrl, but not its macros.
%%
%% A page is compiled when it is first requested, and again when its file has changed. If it has an error, no part of it is served. Its modules have
%% generated names. Four sets of these names are used in turn, so a request that is still running after four changes is killed.
-module(yucan_yaws_page).

-export([items/2, version/1]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-include_lib("kernel/include/file.hrl").

-define(GENERATIONS, 4).

%% @doc Returns the content of the page as a result of `out/1'. The code in the page runs when {@link yucan_yaws_out:collect/1} reaches it.
-spec items(File :: binary(), Arg :: term()) -> {ok, [term()]} | {error, unicode:chardata()}.
items(File, Arg) ->
    case parts(File) of
        {ok, Parts} -> {ok, [case Part of {html, _} -> Part; {erl, Module} -> {yucan_out, Module, Arg} end || Part <- Parts]};
        Error -> Error
    end.

%% @doc Returns how many times the page has been compiled.
-spec version(File :: binary()) -> non_neg_integer().
version(File) ->
    {_, Version, _} = known(File),
    Version.

known(File) -> persistent_term:get({?MODULE, File}, {none, 0, none}).

parts(File) ->
    Stamp = stamp(File),
    case known(File) of
        {Stamp, _, Result} -> Result;
        %% If another process has compiled the page in the meantime, there is nothing left to do.
        _ -> global:trans({{?MODULE, File}, self()}, fun() -> compiled(known(File), Stamp, File) end, [node()])
    end.

stamp(File) ->
    case file:read_file_info(File, [raw, {time, posix}]) of
        {ok, #file_info{mtime = Time, size = Size, inode = Inode}} -> {Time, Size, Inode};
        Error -> Error
    end.

compiled({Stamp, _, Result}, Stamp, _) -> Result;
compiled({_, Version, _}, Stamp, File) ->
    Result = case file:read_file(File) of
        {ok, Text} -> compile(split(Text, 1), File, Version rem ?GENERATIONS);
        {error, Reason} -> {error, [File, ": ", file:format_error(Reason)]}
    end,
    persistent_term:put({?MODULE, File}, {Stamp, Version + 1, Result}),
    Result.

%% Splits the page into alternating HTML and code, each with its line number.
split(Text, Line) ->
    case binary:split(Text, <<"<erl>">>) of
        [Html] -> [{html, Html}];
        [Html, Rest] ->
            Here = Line + lines(Html),
            case binary:split(Rest, <<"</erl>">>) of
                [Code, After] -> [{html, Html}, {erl, Here, Code} | split(After, Here + lines(Code))];
                [_] -> [{open, Here}]
            end
    end.

lines(Text) -> length(binary:matches(Text, <<"\n">>)).

compile(Parts, File, Generation) ->
    Base = iolist_to_binary([<<"yaws_page_">>, binary:encode_hex(binary_part(crypto:hash(sha256, File), 0, 8)), $_, integer_to_binary(Generation), $_]),
    try
        {ok, [case Part of
                  {erl, Line, Code} -> {erl, module(<<Base/binary, (integer_to_binary(Line))/binary, $_, (integer_to_binary(N))/binary>>, Code, Line, File)};
                  {open, Line} -> throw({page, [File, $:, integer_to_binary(Line), ": <erl> without </erl>"]});
                  Html -> Html
              end || {N, Part} <- lists:zip(lists:seq(1, length(Parts)), Parts)]}
    catch throw:{page, Text} -> {error, Text}
    end.

module(Name, Code, Line, File) ->
    Module = binary_to_atom(Name),
    Anno = erl_anno:new(Line),
    Forms = [{attribute, Anno, file, {unicode:characters_to_list(File), Line}}, {attribute, Anno, module, Module}, {attribute, Anno, export, [{out, 1}]}]
        ++ records() ++ forms(unicode:characters_to_list(Code), Line, File),
    case compile:forms(Forms, [binary, return_errors, nowarn_unused_record]) of
        {ok, Module, Beam} ->
            _ = code:purge(Module),
            {module, Module} = code:load_binary(Module, unicode:characters_to_list(File), Beam),
            _ = [yucan_events:warning("~ts:~b: it calls yaws_api:~ts/~b, which this server does not have", [File, Line, Function, Arity])
                 || {Function, Arity} <- yucan_yaws_check:missing(Beam)],
            Module;
        {error, [{_, [Error | _]} | _], _} -> bad(Error, File)
    end.

forms(Text, Line, File) ->
    Scanned = case erl_scan:tokens([], Text, Line) of
        %% The code may end directly after the last form, without a newline.
        {more, Begun} -> erl_scan:tokens(Begun, eof, Line);
        Done -> Done
    end,
    case Scanned of
        {done, {ok, Tokens, Next}, Rest} ->
            case erl_parse:parse_form(Tokens) of
                {ok, Form} -> [Form | case Rest of eof -> []; _ -> forms(Rest, Next, File) end];
                {error, Error} -> bad(Error, File)
            end;
        {done, {error, Error, _}, _} -> bad(Error, File);
        {done, {eof, _}, _} -> []
    end.

-spec bad({erl_anno:location() | none, module(), term()}, binary()) -> no_return().
bad({Location, Module, What}, File) ->
    Line = case Location of {L, _} -> L; none -> 1; L -> L end,
    throw({page, [File, $:, integer_to_binary(Line), ": ", Module:format_error(What)]}).

%% Returns the records of yaws_api.hrl and yaws.hrl. An installed application has no `include' directory, so `priv' links to them.
records() ->
    case persistent_term:get({?MODULE, records}, none) of
        none ->
            Folder = filename:join(code:priv_dir(yucan_yaws), "include"),
            Records = lists:usort([Form || Name <- ["yaws_api.hrl", "yaws.hrl"], {ok, Forms} <- [epp:parse_file(filename:join(Folder, Name), [{includes, [Folder]}])],
                                           {attribute, _, record, _} = Form <- Forms]),
            Once = maps:values(maps:from_list([{Record, Form} || {attribute, _, record, {Record, _}} = Form <- Records])),
            persistent_term:put({?MODULE, records}, Once),
            Once;
        Records -> Records
    end.

-ifdef(TEST).

split_test_() ->
    [?_assertEqual(Parts, split(Text, 1))
     || {Text, Parts} <- [{<<"a">>, [{html, <<"a">>}]}, {<<"a\n<erl>b\nc</erl>\nd<erl>e</erl>">>, [{html, <<"a\n">>}, {erl, 2, <<"b\nc">>}, {html, <<"\nd">>}, {erl, 4, <<"e">>}, {html, <<>>}]},
                          {<<"\n<erl>x">>, [{open, 2}]}]].

errors_test_() ->
    Compile = fun(Code) -> case compile([{erl, 3, Code}], <<"p">>, 0) of {error, Text} -> unicode:characters_to_binary(Text); {ok, [{erl, Module}]} -> Module:out(none) end end,
    %% The first compilation also loads the compiler.
    [{timeout, 60, ?_assertEqual({Code, Said}, {Code, Compile(Code)})}
     || {Code, Said} <- [{<<"out(_) -> f(). f() -> {html, \"x\"}.">>, {html, "x"}}, {<<"\nout(A) -> A.\n%% end">>, none},
                         {<<"out(_) -> ">>, <<"p:3: syntax error before: ">>}, {<<"\nout(_) -> X.">>, <<"p:4: variable 'X' is unbound">>},
                         {<<"out(_) -> ok ok.">>, <<"p:3: syntax error before: ok">>}, {<<"f() -> ok.">>, <<"p:3: function out/1 undefined">>}]].

-endif.
