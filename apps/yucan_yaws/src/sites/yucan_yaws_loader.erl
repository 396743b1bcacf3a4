%% SPDX-License-Identifier: Apache-2.0
%% @doc Loads modules that belong to a single server: those in its own `ebin_dir'. So two sites may have modules with the same name.
%%
%% Only one module of each name can be loaded in a VM. Therefore each beam file in such a directory is loaded as
%% `NAME@SERVER', and the names in its calls to the other modules are changed as well: `page:main()', `fun page:main/0',
%% and module names in spawn, apply and the start functions of OTP. If the name of a module comes from data, such as a
%% path, {@link own/1} returns the loaded module. All this requires debug information (erlc +debug_info). A module
%% without debug information is loaded under its own name, and an error is logged.
-module(yucan_yaws_loader).

-export([load/2, remember/1, own/1]).

%% @doc Loads the modules in the directories for a server. The returned function maps a module to the name under which it is loaded.
-spec load(Server :: string(), [file:filename()]) -> fun((module()) -> module()).
load(_, []) -> fun(Module) -> Module end;
load(Server, Folders) ->
    Files = lists:append([filelib:wildcard(filename:join(Folder, "*.beam")) || Folder <- Folders]),
    Names = maps:from_list([{list_to_atom(Base), list_to_atom(Base ++ "@" ++ Server)}
                            || File <- Files, Base <- [filename:basename(File, ".beam")]]),
    Loaded = maps:from_list([{Module, Name} || File <- Files, {ok, Module, Name} <- [load_one(File, Names)]]),
    fun(Module) -> maps:get(Module, Loaded, Module) end.

load_one(File, Names) ->
    case beam_lib:chunks(File, [abstract_code]) of
        {ok, {Module, [{abstract_code, {_, Forms}}]}} ->
            #{Module := Name} = Names,
            {ok, Name, Code} = compile:forms(renamed(Forms, Names), [binary, debug_info, nowarn_unused_function]),
            install(Name, File, Code),
            {ok, Module, Name};
        Other ->
            yucan_events:error("~ts has no debug information, so it is not the server's own (~0tp): compile it with +debug_info",
                               [File, Other]),
            none
    end.

%% The same code is not loaded again, because that would kill processes that still run the version before the current one.
install(Name, File, Code) ->
    case code:is_loaded(Name) =/= false andalso beam_lib:md5(Code) =:= {ok, {Name, Name:module_info(md5)}} of
        true -> ok;
        false ->
            _ = code:soft_purge(Name),
            {module, Name} = code:load_binary(Name, File, Code),
            ok
    end.

%% @doc Stores the server's function in the process that handles requests to that server.
-spec remember(fun((module()) -> module())) -> ok.
remember(Own) ->
    _ = put(?MODULE, Own),
    ok.

%% @doc Returns the name under which a module is loaded for the server whose requests this process handles.
-spec own(module()) -> module().
own(Module) ->
    case get(?MODULE) of
        undefined -> Module;
        Own -> Own(Module)
    end.

%% Changes the names of some modules in these forms, wherever an atom stands for a module.
renamed(Forms, Names) -> [form(Form, Names) || Form <- Forms].

form({attribute, Line, module, Module}, Names) -> {attribute, Line, module, name(Module, Names)};
form({attribute, _, _, _} = Form, _) -> Form;
form(Form, Names) -> term(Form, Names).

name(Module, Names) -> maps:get(Module, Names, Module).

term({call, Line, {remote, Remote, {atom, A, Module}, {atom, F, Function}}, Arguments}, Names) ->
    {call, Line, {remote, Remote, {atom, A, name(Module, Names)}, {atom, F, Function}},
     arguments(Function, [term(Argument, Names) || Argument <- Arguments], Names)};
term({call, Line, {atom, F, Function}, Arguments}, Names) ->
    {call, Line, {atom, F, Function}, arguments(Function, [term(Argument, Names) || Argument <- Arguments], Names)};
term({remote, Line, {atom, A, Module}, Function}, Names) ->
    {remote, Line, {atom, A, name(Module, Names)}, term(Function, Names)};
term({'fun', Line, {function, {atom, A, Module}, Function, Arity}}, Names) ->
    {'fun', Line, {function, {atom, A, name(Module, Names)}, Function, Arity}};
term(Tuple, Names) when is_tuple(Tuple) -> list_to_tuple(term(tuple_to_list(Tuple), Names));
term([Head | Rest], Names) -> [term(Head, Names) | term(Rest, Names)];
term(Other, _) -> Other.

arguments(Function, Arguments, Names) ->
    case lists:keyfind(Function, 1, takes_module()) of
        {_, Places} -> [at(N, Places, Argument, Names) || {N, Argument} <- lists:enumerate(Arguments)];
        false -> Arguments
    end.

at(N, Places, {atom, Line, Module} = Argument, Names) ->
    case lists:member(N, Places) of
        true -> {atom, Line, name(Module, Names)};
        false -> Argument
    end;
at(_, _, Argument, _) -> Argument.

takes_module() ->
    [{apply, [1]}, {spawn, [1, 2]}, {spawn_link, [1, 2]}, {spawn_monitor, [1, 2]}, {spawn_opt, [1, 2]}, {start, [1, 2]}, {start_link, [1, 2]},
     {start_monitor, [1, 2]}, {enter_loop, [1]}, {apply_after, [2]}, {apply_interval, [2]}, {function_exported, [1]}, {ensure_loaded, [1]},
     {tc, [1]}, {hibernate, [1]}].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

renamed_test() ->
    Text = "-module(a). -export([f/1]). f(X) -> a:f(X), b:g(), c:h(), fun a:f/1, spawn(a, f, [b]), {a, b}, gen_server:start_link(b, a, []).",
    {ok, Tokens, _} = erl_scan:string(Text),
    Forms = [element(2, erl_parse:parse_form(Form)) || Form <- split(Tokens)],
    Renamed = renamed(Forms, #{a => 'a@x', b => 'b@x'}),
    ?assertEqual("-module(a@x).\n-export([f/1]).\nf(X) ->\n a@x:f(X),b@x:g(),c:h(),fun a@x:f/1,spawn(a@x,f,[b]),{a,b},gen_server:start_link(b@x,a@x,[]).",
                 string:trim(lists:flatten([squeezed(erl_pp:form(Form)) || Form <- Renamed]))).

squeezed(Text) -> re:replace(Text, "(?<=,)\\s+|(?<=\n) +(?= )", "", [global, {return, list}]).

split([]) -> [];
split(Tokens) ->
    {Form, [Dot | Rest]} = lists:splitwith(fun(Token) -> element(1, Token) =/= dot end, Tokens),
    [Form ++ [Dot] | split(Rest)].

-endif.
