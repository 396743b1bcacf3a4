%% SPDX-License-Identifier: Apache-2.0
%% @doc Answers a request with a script, which runs as a program (CGI) or in a FastCGI application such as php-fpm. The
%% script gets the variables that RFC 3875 defines, and other variables that scripts expect in practice.
%%
%% The header `Proxy' never becomes HTTP_PROXY ("httpoxy"). A header whose name contains an
%% underscore does not become a variable either, because X_A and X-A would be the same variable, and
%% a proxy in front of this server may have checked only X-A. Values never contain NUL.
-module(yucan_cgi).

-export([respond/2]).
-export_type([spec/0]).

-type spec() :: #{run := {program, file:filename_all()} | {interpreter, file:filename()} | {fcgi, yucan_fcgi_pool:address()},
                  script := file:filename_all(),
                  script_name := iodata(),
                  path_info := iodata(),
                  docroot := file:filename_all() | undefined,
                  variables => [{iodata(), iodata()}],
                  user => iodata(),
                  timeout_ms => pos_integer(),
                  max => pos_integer(),
                  keep => boolean(),
                  body_bytes => non_neg_integer(),
                  body => binary() | {partial, binary()}}.
%% `program' runs the script itself, and `interpreter' runs that program with the script as its argument. `variables'
%% override the standard ones. `max' is the maximum number of scripts that may run concurrently, `keep' says whether
%% connections to FastCGI applications are kept open, `body_bytes' is the size limit of the body, and `body' is the part
%% of the body that has already been read.

-define(TIMEOUT_MS, 60000).
-define(MAX, 64).
-define(BODY_BYTES, 134217728).

%% @doc Runs the script for the request, and returns its response.
-spec respond(yucan_req:req(), spec()) -> yucan_handler:response().
respond(Req, #{run := Run} = Spec) ->
    case is_safe(Run) of
        true ->
            case take(Req, maps:get(body_bytes, Spec, ?BODY_BYTES), Spec) of
                {ok, Body} -> try run(Req, Spec, Body) after yucan_spool:delete(Body) end;
                {error, {spool, Reason}} -> failed({spool, Reason}, Spec);
                {error, Reason} -> yucan_req:body_error(Reason)
            end;
        false ->
            failed({not_a_program, element(2, Run)}, Spec)
    end.

take(Req, Max, #{body := Before}) -> yucan_spool:take(Req, Max, Before);
take(Req, Max, _) -> yucan_spool:take(Req, Max).

%% The name is passed to the shell as a single argument. If it looks like a command line, the configuration is wrong.
is_safe({fcgi, _}) -> true;
is_safe({_, Program}) -> re:run(bytes(Program), "[;|&$`<>()*?!#~\\\\'\"\\n\\r\\0]", [{capture, none}]) =:= nomatch.

run(Req, #{script := Name} = Given, Body) ->
    Script = bytes(Name),
    Spec = Given#{script := Script},
    Variables = variables(facts(Req, Spec, Body), maps:get(variables, Spec, [])),
    case open(Spec, Variables, Body) of
        {ok, Source} ->
            yucan_gateway:respond(Req, Source, #{silence_ms => maps:get(timeout_ms, Spec, ?TIMEOUT_MS), name => Script});
        {error, Reason} -> failed(Reason, Spec)
    end.

failed(busy, _) -> yucan_error:page(503);
failed(Reason, #{script := Script} = Spec) ->
    yucan_events:warning("~ts: ~ts", [Script, why(Reason, Spec)]),
    yucan_error:page(case Reason of {spool, _} -> 500; _ -> 502 end).

why({connect, Reason}, #{run := {fcgi, Address}}) ->
    io_lib:format("cannot connect to the FastCGI application at ~ts: ~ts", [shown(Address), inet:format_error(Reason)]);
why(Reason, _) -> yucan_gateway:reason(Reason).

shown({local, Path}) -> ["unix:", Path];
shown({Host, Port}) when is_tuple(Host) -> inet:ntoa(Host) ++ ":" ++ integer_to_list(Port);
shown({Host, Port}) -> Host ++ ":" ++ integer_to_list(Port).

open(#{run := {fcgi, Address}, script := Script} = Spec, Variables, Body) ->
    Log = fun(Text) -> yucan_events:warning("~ts says: ~ts", [Script, printable(Text)]) end,
    with_module(yucan_fcgi_client, yucan_fcgi_client:open(Address, maps:get(keep, Spec, true), Variables, Body, Log));
open(#{run := Run, script := Script} = Spec, Variables, Body) ->
    {Program, Arguments} = case Run of
                               {program, _} -> {Script, []};
                               {interpreter, File} -> {find(File), [Script]}
                           end,
    case yucan_spool:on_disk(Body) of
        {ok, OnDisk} ->
            Script1 = #{program => Program, arguments => Arguments, folder => filename:dirname(Script), variables => Variables,
                        body => OnDisk, max => maps:get(max, Spec, ?MAX)},
            opened(yucan_cgi_run:open(Script1), OnDisk);
        {error, Reason} -> {error, Reason}
    end.

opened({error, Reason}, Body) ->
    ok = yucan_spool:delete(Body),
    {error, Reason};
opened(Opened, _) -> with_module(yucan_cgi_run, Opened).

with_module(Module, {ok, Source}) -> {ok, {Module, Source}};
with_module(_, {error, Reason}) -> {error, Reason}.

%% Returns the bytes of a file name. A string consists of characters, or of bytes if it comes from the Yaws interface.
bytes(Name) when is_binary(Name) -> Name;
bytes(Name) ->
    try unicode:characters_to_list(list_to_binary(Name)) of
        Text when is_list(Text) -> list_to_binary(Name);
        _ -> unicode:characters_to_binary(Name)
    catch
        error:badarg -> unicode:characters_to_binary(Name)
    end.

find(Name) ->
    case os:find_executable(Name) of
        false -> Name;
        Path -> Path
    end.

%% Removes control characters and indents all lines after the first, so that a script's output cannot forge log lines.
printable(Text) -> string:replace(string:trim([C || C <- binary_to_list(Text), C >= $\s orelse C =:= $\n]), "\n", "\n    ", all).

facts(Req, Spec, Body) ->
    {Remote, RemotePort} = yucan_req:peer(Req),
    {Local, _} = yucan_req:local(Req),
    Facts = #{method => yucan_req:method(Req), uri => yucan_req:target(Req), query => yucan_req:query(Req),
              version => yucan_req:version(Req), scheme => yucan_req:scheme(Req), headers => yucan_req:headers(Req),
              server_name => yucan_req:host(Req), server_port => yucan_req:port(Req), server_addr => ip(Local),
              remote_addr => ip(Remote), remote_port => port_of(RemotePort), script_name => maps:get(script_name, Spec),
              script_filename => maps:get(script, Spec), path_info => maps:get(path_info, Spec),
              document_root => case maps:get(docroot, Spec) of undefined -> ""; Root -> bytes(Root) end,
              content_length => yucan_spool:size(Body)},
    maps:merge(Facts, maps:with([user], Spec)).

%% A client on a Unix socket has no address.
ip(Address) when tuple_size(Address) =:= 4; tuple_size(Address) =:= 8 -> Address;
ip(_) -> undefined.

port_of(Port) when is_integer(Port) -> Port;
port_of(_) -> 0.

%% ---- the variables, pure

%% `uri' is the target before any rewriting, and `content_length' the size of the body that the script gets, or `none'.
variables(Facts, Extra) ->
    Standard = standard(Facts) ++ path(Facts) ++ body(Facts) ++ user(Facts) ++ https(Facts) ++ headers(Facts),
    Wanted = [{text(Name), text(Value)} || {Name, Value} <- Extra],
    Names = [Name || {Name, _} <- Wanted],
    case Names of
        [] -> Standard;
        _ -> [Pair || {Name, _} = Pair <- Standard, not lists:member(Name, Names)] ++ lists:ukeysort(1, lists:reverse(Wanted))
    end.

standard(#{version := {Major, Minor}, server_port := ServerPort, server_addr := Server, method := Method, uri := Uri, scheme := Scheme, query := Query, document_root := Root,
           script_name := Name, script_filename := File, remote_addr := Remote, remote_port := RemotePort} = Facts) ->
    [{<<"GATEWAY_INTERFACE">>, <<"CGI/1.1">>},
     {<<"SERVER_SOFTWARE">>, <<"yucan">>},
     {<<"SERVER_PROTOCOL">>, <<"HTTP/", (Major + $0), ".", (Minor + $0)>>},
     {<<"SERVER_NAME">>, server_name(Facts)},
     {<<"SERVER_PORT">>, integer_to_binary(ServerPort)},
     {<<"SERVER_ADDR">>, address(Server)},
     {<<"REQUEST_METHOD">>, Method},
     {<<"REQUEST_URI">>, text(Uri)},
     {<<"REQUEST_SCHEME">>, atom_to_binary(Scheme)},
     {<<"QUERY_STRING">>, text(Query)},
     {<<"DOCUMENT_ROOT">>, text(Root)},
     {<<"SCRIPT_NAME">>, text(Name)},
     {<<"SCRIPT_FILENAME">>, text(File)},
     {<<"REMOTE_ADDR">>, address(Remote)},
     {<<"REMOTE_PORT">>, integer_to_binary(RemotePort)},
     %% Without this variable php-cgi refuses to run, unless cgi.force_redirect is off.
     {<<"REDIRECT_STATUS">>, <<"200">>}].

%% If the request does not contain a host, this is the address to which the client connected (RFC 3875, 4.1.14).
server_name(#{server_name := <<>>, server_addr := undefined}) -> <<"localhost">>;
server_name(#{server_name := <<>>, server_addr := Address}) when tuple_size(Address) =:= 8 -> <<"[", (address(Address))/binary, "]">>;
server_name(#{server_name := <<>>, server_addr := Address}) -> address(Address);
server_name(#{server_name := Name}) -> text(Name).

%% PATH_INFO is set even if it is empty, because scripts expect it. PATH_TRANSLATED has a meaning only if PATH_INFO is not empty.
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

%% Several headers with the same name become a single variable.
headers(#{headers := Headers} = Facts) ->
    Kept = [{variable(Name), text(Value)} || {Name, Value} <- Headers, is_passed(Name, Facts)],
    maps:to_list(lists:foldl(fun joined/2, #{}, Kept)).

joined({Name, Value}, Map) -> maps:update_with(Name, fun(Before) -> join(Name, Before, Value) end, Value, Map).

join(<<"HTTP_COOKIE">>, Before, Value) -> <<Before/binary, "; ", Value/binary>>;
join(_, Before, Value) -> <<Before/binary, ", ", Value/binary>>.

is_passed(Name, _) when Name =:= <<"proxy">>; Name =:= <<"content-length">>; Name =:= <<"content-type">>;
                        Name =:= <<"transfer-encoding">>; Name =:= <<"connection">>; Name =:= <<"keep-alive">>;
                        Name =:= <<"te">>; Name =:= <<"upgrade">>; Name =:= <<"expect">> ->
    false;
%% The server has already checked the password, so the script does not need it.
is_passed(<<"authorization">>, #{user := _}) -> false;
is_passed(Name, _) -> is_unmistakable(Name).

is_unmistakable(<<C, Rest/bits>>) when C =/= $_, C =/= $=, C =/= 0 -> is_unmistakable(Rest);
is_unmistakable(Rest) -> Rest =:= <<>>.

variable(Name) -> <<"HTTP_", (<< <<(upper(C))>> || <<C>> <= Name >>)/binary>>.

upper($-) -> $_;
upper(C) when C >= $a, C =< $z -> C - 32;
upper(C) -> C.

address(undefined) -> <<>>;
address({A, B, C, D}) -> <<(integer_to_binary(A))/binary, ".", (integer_to_binary(B))/binary, ".", (integer_to_binary(C))/binary, ".", (integer_to_binary(D))/binary>>;
address(Address) -> list_to_binary(inet:ntoa(Address)).

%% A NUL would terminate the value, and the rest of the value would be lost silently.
text(Text) when is_binary(Text) ->
    case has_nul(Text) of
        false -> Text;
        true -> binary:replace(Text, <<0>>, <<>>, [global])
    end;
text(Text) -> text(iolist_to_binary(Text)).

has_nul(<<C, Rest/bits>>) when C > 0 -> has_nul(Rest);
has_nul(Rest) -> Rest =/= <<>>.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

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

server_name_test_() ->
    [?_assertEqual([Name], get(<<"SERVER_NAME">>, variables((facts())#{server_name := <<>>, server_addr := Address}, [])))
     || {Address, Name} <- [{{127, 0, 0, 1}, <<"127.0.0.1">>}, {{0, 0, 0, 0, 0, 0, 0, 1}, <<"[::1]">>}, {undefined, <<"localhost">>}]].

user_test() ->
    Variables = variables((facts())#{user => "joe", scheme => https}, []),
    ?assertEqual([[<<"joe">>], [], [<<"on">>]], [get(Name, Variables) || Name <- [<<"REMOTE_USER">>, <<"HTTP_AUTHORIZATION">>, <<"HTTPS">>]]).

-endif.
