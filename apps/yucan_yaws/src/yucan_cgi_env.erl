%% SPDX-License-Identifier: Apache-2.0
%% @doc What a script is told of its request: the variables of RFC 3875 and those that everybody expects besides. Pure.
%%
%% `Proxy' never becomes HTTP_PROXY ("httpoxy"); neither does a name with a underscore become a variable, since X_A and X-A would be the
%% same one and a proxy in front may have checked only the latter. Values hold no NUL.
-module(yucan_cgi_env).

-export([variables/2]).
-export_type([facts/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-type facts() :: #{method := binary(),
                   uri := iodata(),
                   query := iodata(),
                   version := {1, 0 | 1},
                   scheme := http | https,
                   headers := [{Name :: binary(), Value :: iodata()}],
                   server_name := iodata(),
                   server_port := inet:port_number(),
                   server_addr := inet:ip_address() | undefined,
                   remote_addr := inet:ip_address() | undefined,
                   remote_port := inet:port_number(),
                   script_name := iodata(),
                   script_filename := iodata(),
                   path_info := iodata(),
                   document_root := iodata(),
                   content_length := non_neg_integer() | none,
                   user => iodata()}.
%% `uri' is as the client sent it, before any rewriting. `content_length' counts the body that the script will get; `none' without a body.

%% @doc The variables; those of the second list win over the others.
-spec variables(facts(), [{iodata(), iodata()}]) -> [{binary(), binary()}].
variables(Facts, Extra) ->
    Standard = standard(Facts) ++ path(Facts) ++ body(Facts) ++ user(Facts) ++ https(Facts) ++ headers(Facts),
    Wanted = [{text(Name), text(Value)} || {Name, Value} <- Extra],
    Names = [Name || {Name, _} <- Wanted],
    [Pair || {Name, _} = Pair <- Standard, not lists:member(Name, Names)] ++ lists:ukeysort(1, lists:reverse(Wanted)).

standard(#{version := {Major, Minor}} = Facts) ->
    [{<<"GATEWAY_INTERFACE">>, <<"CGI/1.1">>},
     {<<"SERVER_SOFTWARE">>, <<"yucan">>},
     {<<"SERVER_PROTOCOL">>, <<"HTTP/", (Major + $0), ".", (Minor + $0)>>},
     {<<"SERVER_NAME">>, text(maps:get(server_name, Facts))},
     {<<"SERVER_PORT">>, integer_to_binary(maps:get(server_port, Facts))},
     {<<"SERVER_ADDR">>, address(maps:get(server_addr, Facts))},
     {<<"REQUEST_METHOD">>, maps:get(method, Facts)},
     {<<"REQUEST_URI">>, text(maps:get(uri, Facts))},
     {<<"REQUEST_SCHEME">>, atom_to_binary(maps:get(scheme, Facts))},
     {<<"QUERY_STRING">>, text(maps:get(query, Facts))},
     {<<"DOCUMENT_ROOT">>, text(maps:get(document_root, Facts))},
     {<<"SCRIPT_NAME">>, text(maps:get(script_name, Facts))},
     {<<"SCRIPT_FILENAME">>, text(maps:get(script_filename, Facts))},
     {<<"REMOTE_ADDR">>, address(maps:get(remote_addr, Facts))},
     {<<"REMOTE_PORT">>, integer_to_binary(maps:get(remote_port, Facts))},
     %% php-cgi refuses to work without it, unless cgi.force_redirect is off.
     {<<"REDIRECT_STATUS">>, <<"200">>}].

%% PATH_INFO is there even if it is empty, for scripts that expect it; PATH_TRANSLATED only says something with it.
path(#{path_info := Info, document_root := Root}) ->
    case {text(Info), text(Root)} of
        {<<>>, _} -> [{<<"PATH_INFO">>, <<>>}];
        {Path, <<>>} -> [{<<"PATH_INFO">>, Path}];
        {Path, Folder} -> [{<<"PATH_INFO">>, Path}, {<<"PATH_TRANSLATED">>, <<Folder/binary, Path/binary>>}]
    end.

body(#{content_length := none}) -> [];
body(#{content_length := Length, headers := Headers}) ->
    [{<<"CONTENT_LENGTH">>, integer_to_binary(Length)}
     | [{<<"CONTENT_TYPE">>, text(Type)} || {<<"content-type">>, Type} <- lists:sublist([H || {<<"content-type">>, _} = H <- Headers], 1)]].

user(#{user := User}) -> [{<<"REMOTE_USER">>, text(User)}, {<<"AUTH_TYPE">>, <<"Basic">>}];
user(_) -> [].

https(#{scheme := https}) -> [{<<"HTTPS">>, <<"on">>}];
https(_) -> [].

%% Several of one name are one variable.
headers(#{headers := Headers} = Facts) ->
    Kept = [{variable(Name), text(Value)} || {Name, Value} <- Headers, is_passed(Name, Facts)],
    maps:to_list(lists:foldl(fun({Name, Value}, Map) ->
                                     maps:update_with(Name, fun(Before) -> join(Name, Before, Value) end, Value, Map)
                             end, #{}, Kept)).

join(<<"HTTP_COOKIE">>, Before, Value) -> <<Before/binary, "; ", Value/binary>>;
join(_, Before, Value) -> <<Before/binary, ", ", Value/binary>>.

is_passed(Name, _) when Name =:= <<"proxy">>; Name =:= <<"content-length">>; Name =:= <<"content-type">>;
                        Name =:= <<"transfer-encoding">>; Name =:= <<"connection">>; Name =:= <<"keep-alive">>;
                        Name =:= <<"te">>; Name =:= <<"upgrade">>; Name =:= <<"expect">> ->
    false;
%% The server has checked the password: the script need not know it.
is_passed(<<"authorization">>, #{user := _}) -> false;
is_passed(Name, _) -> binary:match(Name, [<<"_">>, <<"=">>, <<0>>]) =:= nomatch.

variable(Name) -> <<"HTTP_", (<< <<(upper(C))>> || <<C>> <= Name >>)/binary>>.

upper($-) -> $_;
upper(C) when C >= $a, C =< $z -> C - 32;
upper(C) -> C.

address(undefined) -> <<>>;
address(Address) -> list_to_binary(inet:ntoa(Address)).

%% A NUL would end the value, and what stands behind it be lost without a word.
text(Text) -> binary:replace(iolist_to_binary(Text), <<0>>, <<>>, [global]).

-ifdef(TEST).

facts() ->
    #{method => <<"POST">>, uri => "/a%20b/x?q=1", query => "q=1", version => {1, 1}, scheme => http,
      headers => [{<<"host">>, "h"}, {<<"content-type">>, "text/plain"}, {<<"x-a">>, "1"}, {<<"x-a">>, "2"}, {<<"cookie">>, "a=1"},
                  {<<"cookie">>, "b=2"}, {<<"proxy">>, "http://evil"}, {<<"x_b">>, "3"}, {<<"authorization">>, "Basic eDp5"}],
      server_name => "h", server_port => 80, server_addr => {127, 0, 0, 1}, remote_addr => {0, 0, 0, 0, 0, 0, 0, 1}, remote_port => 5,
      script_name => "/a b", script_filename => "/www/a b", path_info => "/x", document_root => "/www", content_length => 3}.

get(Name, Variables) -> proplists:get_all_values(Name, Variables).

variables_test_() ->
    Variables = variables(facts(), []),
    [?_assertEqual({Name, Expected}, {Name, get(Name, Variables)})
     || {Name, Expected} <-
            [{<<"GATEWAY_INTERFACE">>, [<<"CGI/1.1">>]}, {<<"REQUEST_URI">>, [<<"/a%20b/x?q=1">>]}, {<<"SCRIPT_NAME">>, [<<"/a b">>]},
             {<<"PATH_INFO">>, [<<"/x">>]}, {<<"PATH_TRANSLATED">>, [<<"/www/x">>]}, {<<"CONTENT_LENGTH">>, [<<"3">>]},
             {<<"CONTENT_TYPE">>, [<<"text/plain">>]}, {<<"REMOTE_ADDR">>, [<<"::1">>]}, {<<"SERVER_PROTOCOL">>, [<<"HTTP/1.1">>]},
             {<<"HTTP_X_A">>, [<<"1, 2">>]}, {<<"HTTP_COOKIE">>, [<<"a=1; b=2">>]}, {<<"HTTP_PROXY">>, []}, {<<"HTTP_X_B">>, []},
             {<<"HTTP_AUTHORIZATION">>, [<<"Basic eDp5">>]}, {<<"HTTP_CONTENT_TYPE">>, []}, {<<"HTTPS">>, []}]].

extra_wins_test() ->
    Variables = variables(facts(), [{"SCRIPT_NAME", ""}, {"TRAC_ENV", "/trac"}, {"A", "1\0002"}]),
    ?assertEqual([[<<>>], [<<"/trac">>], [<<"12">>]], [get(Name, Variables) || Name <- [<<"SCRIPT_NAME">>, <<"TRAC_ENV">>, <<"A">>]]).

no_body_test() ->
    Variables = variables((facts())#{content_length := none, method := <<"GET">>}, []),
    ?assertEqual([[], []], [get(Name, Variables) || Name <- [<<"CONTENT_LENGTH">>, <<"CONTENT_TYPE">>]]).

user_test() ->
    Variables = variables((facts())#{user => "joe", scheme => https}, []),
    ?assertEqual([[<<"joe">>], [], [<<"on">>]], [get(Name, Variables) || Name <- [<<"REMOTE_USER">>, <<"HTTP_AUTHORIZATION">>, <<"HTTPS">>]]).

-endif.
