%% SPDX-License-Identifier: Apache-2.0
%% @doc What out/1 of a module written for Yaws returns, collected into one outcome. Pure.
%%
%% A return is a list, as deep as one likes, of the tuples below; later ones win where only one can be. `break' drops what follows.
%% Anything else is an error of the module, which becomes a 500.
-module(yucan_yaws_out).

-export([collect/1, merge/2, add/2]).
-export_type([outcome/0, next/0]).

-include("../include/yaws_api.hrl").

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-type next() :: none
              | {page, string()}
              | {get_more, Cont :: term(), State :: term()}
              | {websocket, module(), [term()]}
              | {stream, Mime :: iodata(), First :: iodata(), #{pid => pid(), timeout => timeout(), size => non_neg_integer()}}
              | {ssi, file:filename_all(), Delimiter :: iodata(), [{iodata(), iodata()}]}
              | {redirect_local, string()}
              | {response, yucan_handler:response()}.
-type outcome() :: #{status => 100..999, headers := [{binary(), iodata()}], all => boolean(), body := iodata(), type => iodata(), next := next(),
                     arg => #arg{}}.
%% Headers are in the order in which they were given, lower case. `all': they replace those that are set before.

%% @doc The outcome of a return.
-spec collect(term()) -> outcome().
collect(Result) -> element(2, item(Result, #{headers => [], body => [], next => none})).

%% @doc Two outcomes, one after the other.
-spec merge(outcome(), outcome()) -> outcome().
merge(#{headers := H1, body := B1} = First, #{headers := H2, body := B2} = Second) ->
    (maps:merge(First, Second))#{headers := case Second of #{all := true} -> H2; #{} -> H1 ++ H2 end, body := [B1, B2]}.

item([], Out) -> {next, Out};
item([Item | Rest], Out) ->
    case item(Item, Out) of
        {next, Out2} -> item(Rest, Out2);
        {break, Out2} -> {break, Out2}
    end;
item(ok, Out) -> {next, Out};
item(break, Out) -> {break, Out};
item(#arg{} = Arg, Out) -> {next, Out#{arg => Arg}};
item({html, Html}, Out) -> body(<<"text/html">>, Html, Out);
item({ehtml, Term}, Out) -> body(<<"text/html">>, yaws_api:ehtml_expand(Term), Out);
item({content, Mime, Data}, Out) -> body(Mime, Data, Out);
item({status, Status}, Out) when is_integer(Status), Status >= 100, Status =< 999 -> {next, Out#{status => Status}};
item({allheaders, Headers}, Out) ->
    {next, Cleared} = {next, Out#{headers := [], all => true}},
    {next, lists:foldl(fun allheader/2, Cleared, Headers)};
item({header, Header}, Out) -> {next, header(Header, Out)};
item({redirect, Url}, Out) -> redirect(Url, 302, Out);
item({redirect, Url, Status}, Out) -> redirect(Url, Status, Out);
item({redirect_local, Path}, Out) -> item({redirect_local, Path, 302}, Out);
item({redirect_local, {Kind, Path}, Status}, Out) when Kind =:= any_path; Kind =:= abs_path; Kind =:= rel_path ->
    item({redirect_local, Path, Status}, Out);
item({redirect_local, Path, Status}, Out) -> {break, Out#{status => Status, next := {redirect_local, lists:flatten(Path)}}};
item({page, {Options, Path}}, Out) when is_list(Options) ->
    {next, Out2} = item(Options, Out),
    {break, Out2#{next := {page, lists:flatten(Path)}}};
item({page, Path}, Out) -> {break, Out#{next := {page, lists:flatten(Path)}}};
item({get_more, Cont, State}, Out) -> {break, Out#{next := {get_more, Cont, State}}};
item({websocket, Module, Options}, Out) -> {break, Out#{next := {websocket, Module, Options}}};
item({streamcontent, Mime, First}, Out) -> stream(Mime, First, #{}, Out);
item({streamcontent_with_timeout, Mime, First, Timeout}, Out) -> stream(Mime, First, #{timeout => Timeout}, Out);
item({streamcontent_with_size, Size, Mime, First}, Out) -> stream(Mime, First, #{size => Size}, Out);
item({streamcontent_from_pid, Mime, Pid}, Out) -> stream(Mime, <<>>, #{pid => Pid}, Out);
item({ssi, File, Delimiter, Bindings}, Out) -> {next, add({ssi, File, Delimiter, Bindings}, Out)};
item({yucan_response, Response}, Out) -> {break, Out#{next := {response, Response}}};
item(Other, _) -> error({return_of_out_not_known, Other}).

body(Mime, Data, #{body := Before} = Out) -> {next, Out#{body := [Before, Data], type => Mime}}.

%% @doc Adds a part of the body that is read from a file when the answer is made.
-spec add({ssi, file:filename_all(), iodata(), list()}, outcome()) -> outcome().
add(Part, #{body := Before} = Out) -> Out#{body := [Before, {part, Part}]}.

stream(Mime, First, Options, Out) -> {break, Out#{next := {stream, Mime, First, Options}}}.

redirect(Url, Status, #{headers := Headers} = Out) ->
    {break, Out#{status => Status, headers := Headers ++ [{<<"location">>, lists:flatten(Url)}]}}.

allheader({header, Header}, Out) -> header(Header, Out);
allheader(Header, Out) -> header(Header, Out).

%% `{Name, Value}', `{Name, erase}', `{multi, Name, Values}' or "Name: Value".
header({Name, erase}, #{headers := Headers} = Out) ->
    Wanted = name(Name),
    Out#{headers := [Header || {Other, _} = Header <- Headers, Other =/= Wanted]};
header({Name, {multi, Values}}, Out) -> lists:foldl(fun(Value, O) -> header({Name, Value}, O) end, Out, Values);
header({Name, Value}, #{headers := Headers} = Out) ->
    Lower = name(Name),
    Others = case is_repeatable(Lower) of
                 true -> Headers;
                 false -> [Header || {Other, _} = Header <- Headers, Other =/= Lower]
             end,
    Out#{headers := Others ++ [{Lower, value(Value)}]};
header(Text, Out) ->
    case binary:split(iolist_to_binary(Text), <<":">>) of
        [Name, <<" ", Value/binary>>] -> header({Name, Value}, Out);
        [Name, Value] -> header({Name, Value}, Out);
        [_] -> error({header_without_a_colon, Text})
    end.

is_repeatable(<<"set-cookie">>) -> true;
is_repeatable(<<"link">>) -> true;
is_repeatable(<<"vary">>) -> true;
is_repeatable(<<"www-authenticate">>) -> true;
is_repeatable(_) -> false.

name(Name) when is_atom(Name) -> name(lists:flatten(string:replace(atom_to_list(Name), "_", "-", all)));
name(Name) -> yucan_header:lower(iolist_to_binary(Name)).

value(Value) when is_integer(Value) -> integer_to_binary(Value);
value(Value) when is_atom(Value) -> atom_to_binary(Value);
value(Value) -> Value.

-ifdef(TEST).

flat(#{body := Body} = Out) -> maps:remove(next, Out#{body := iolist_to_binary(Body)}).

collect_test_() ->
    [?_assertEqual(Expected, flat(collect(Result)))
     || {Result, Expected} <-
            [{ok, #{headers => [], body => <<>>}},
             {{html, "<p>"}, #{headers => [], body => <<"<p>">>, type => <<"text/html">>}},
             {[[{status, 404}], [[{header, {"X-A", "1"}}, {content, "text/plain", ["a", <<"b">>]}]]],
              #{status => 404, headers => [{<<"x-a">>, "1"}], body => <<"ab">>, type => "text/plain"}},
             {[{header, {content_type, "a/b"}}, {header, "content-type: c/d"}], #{headers => [{<<"content-type">>, <<"c/d">>}], body => <<>>}},
             {[{header, {set_cookie, "a=1"}}, {header, {set_cookie, "b=2"}}],
              #{headers => [{<<"set-cookie">>, "a=1"}, {<<"set-cookie">>, "b=2"}], body => <<>>}},
             {[{header, {"X", "1"}}, {header, {"x", erase}}], #{headers => [], body => <<>>}},
             {[{header, {"X", "1"}}, {allheaders, [{header, {"Y", "2"}}]}], #{headers => [{<<"y">>, "2"}], body => <<>>, all => true}},
             {[{html, "a"}, break, {html, "b"}], #{headers => [], body => <<"a">>, type => <<"text/html">>}},
             {{redirect, "http://x/"}, #{status => 302, headers => [{<<"location">>, "http://x/"}], body => <<>>}},
             {{redirect, "http://x/", 301}, #{status => 301, headers => [{<<"location">>, "http://x/"}], body => <<>>}}]].

next_test_() ->
    [?_assertMatch(#{next := {page, "/x"}}, collect({page, "/x"})),
     ?_assertMatch(#{next := {page, "/x"}, status := 404}, collect({page, {[{status, 404}], "/x"}})),
     ?_assertMatch(#{next := {redirect_local, "/x"}, status := 302}, collect({redirect_local, {any_path, "/x"}})),
     ?_assertMatch(#{next := {get_more, c, s}}, collect([{get_more, c, s}])),
     ?_assertMatch(#{next := {stream, "a/b", "x", #{size := 5}}}, collect({streamcontent_with_size, 5, "a/b", "x"})),
     ?_assertError({return_of_out_not_known, nonsense}, collect([{html, ""}, nonsense])),
     ?_assertError({return_of_out_not_known, _}, collect({status, 42}))].

-endif.
