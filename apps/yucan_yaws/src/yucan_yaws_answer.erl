%% SPDX-License-Identifier: Apache-2.0
%% @doc From an outcome of out/1 to a response, and the small changes of an #arg{} on its way.
-module(yucan_yaws_answer).

-export([answer/3, own_origin/2, moved/2, in_appmod/4, in_script/2, expiring/3]).

-include("../include/yaws_api.hrl").

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

%% @doc The response.
-spec answer(yucan_yaws_out:outcome(), yucan_req:req(), #arg{}) -> yucan_handler:response().
answer(#{next := {response, Response}} = Outcome, _, _) ->
    merged(Outcome, Response);
answer(#{next := {websocket, Module, Options}}, _, _) ->
    yucan_yaws_ws:response(Module, Options);
answer(#{next := {stream, Mime, First, Options}, headers := Headers} = Outcome, Req, _) ->
    yucan_yaws_stream:response(Req, maps:get(status, Outcome, 200), typed(Mime, Headers), First, Options);
answer(#{next := none, headers := Headers, body := Body} = Outcome, _, Arg) ->
    Data = parts(Body, Arg),
    Typed = case Outcome of
                #{type := Mime} -> typed(Mime, Headers);
                #{} -> Headers
            end,
    {maps:get(status, Outcome, 200), Typed, Data}.

%% A header that was set by hand wins.
typed(Mime, Headers) ->
    case lists:keymember(<<"content-type">>, 1, Headers) of
        true -> Headers;
        false -> [{<<"content-type">>, Mime} | Headers]
    end.

%% What a script answered, with what the module said before.
merged(#{headers := Headers} = Outcome, {Status, Others, Body}) ->
    {maps:get(status, Outcome, Status), Headers ++ Others, Body};
merged(_, Response) -> Response.

parts({part, {ssi, File, Delimiter, Bindings}}, #arg{docroot = Docroot}) ->
    {ok, Text} = file:read_file(filename:join(Docroot, string:trim(unicode:characters_to_list(File), leading, "/"))),
    filled(Text, iolist_to_binary(Delimiter), Bindings);
parts([Part | Rest], Arg) -> [parts(Part, Arg) | parts(Rest, Arg)];
parts(Data, _) -> Data.

%% Names between two delimiters become their values; a name that is not known stays as it is.
filled(Text, <<>>, _) -> Text;
filled(Text, Delimiter, Bindings) ->
    Known = [{iolist_to_binary(Name), Value} || {Name, Value} <- Bindings],
    fill(binary:split(Text, Delimiter, [global]), Delimiter, Known).

fill([Text, Name | Rest], Delimiter, Known) when Rest =/= [] ->
    case lists:keyfind(Name, 1, Known) of
        {_, Value} -> [Text, Value | fill(Rest, Delimiter, Known)];
        false -> [Text, Delimiter | fill([Name | Rest], Delimiter, Known)]
    end;
fill(Rest, Delimiter, _) -> lists:join(Delimiter, Rest).

%% @doc Scheme, host and port as the client knows this server; `rhost' and `rscheme' (or `rmethod') tell what stands in front of it.
-spec own_origin(yucan_req:req(), yucan_yaws_config:server()) -> iodata().
own_origin(Req, #{rhost := Rhost, rscheme := Rscheme, rmethod := Rmethod, name := Name}) ->
    Scheme = hd([S || S <- [Rscheme, Rmethod], S =/= undefined] ++ [yucan_req:scheme(Req)]),
    Host = case {Rhost, yucan_req:header(<<"host">>, Req)} of
               {undefined, undefined} -> Name;
               {undefined, Given} -> Given;
               _ -> Rhost
           end,
    [atom_to_binary(Scheme), "://", Host].

%% @doc The arg for another path.
-spec moved(yucan_req:req(), #arg{}) -> #arg{}.
moved(Req, Arg) ->
    Path = case yucan_req:decoded_path(Req) of
               {ok, Decoded} -> binary_to_list(Decoded);
               {error, bad_path} -> ""
           end,
    Arg#arg{server_path = Path, querydata = binary_to_list(yucan_req:query(Req)), pathinfo = undefined, appmoddata = undefined,
            appmod_prepath = undefined, appmod_name = undefined, prepath = undefined}.

%% @doc The arg for an appmod.
-spec in_appmod(module(), Prefix :: binary(), Rest :: binary(), #arg{}) -> #arg{}.
in_appmod(Module, Prefix, Rest, Arg) ->
    Info = binary_to_list(Rest),
    Arg#arg{appmod_name = Module, appmod_prepath = binary_to_list(Prefix), prepath = binary_to_list(Prefix),
            appmoddata = string:trim(Info, leading, "/"), pathinfo = case Info of "" -> undefined; _ -> Info end}.

%% @doc The arg for a script.
-spec in_script(map(), #arg{}) -> #arg{}.
in_script(#{script := File, script_name := Name, path_info := Info, docroot := Docroot}, Arg) ->
    Arg#arg{fullpath = binary_to_list(File), docroot = Docroot, prepath = binary_to_list(filename:dirname(Name)) ++ "/",
            pathinfo = case Info of <<>> -> undefined; _ -> binary_to_list(Info) end}.

%% @doc The options of a static file, with how long it stays fresh if the configuration says so for its type.
-spec expiring(Path :: binary(), [{Type :: string(), Seconds :: non_neg_integer()}], map()) -> map().
expiring(_, [], Options) -> Options;
expiring(Path, Expires, Options) ->
    Type = hd(string:split(unicode:characters_to_list(yucan_mime:of_file(Path)), ";")),
    case [Seconds || {Wanted, Seconds} <- Expires, Wanted =:= Type orelse Wanted =:= "*"
                                                          orelse Wanted =:= hd(string:split(Type, "/")) ++ "/*"] of
        [Seconds | _] -> Options#{expires => Seconds};
        [] -> Options
    end.

-ifdef(TEST).

filled_test_() ->
    [?_assertEqual(Expected, iolist_to_binary(filled(Text, <<"%%">>, [{"a", "1"}, {"b", <<"2">>}])))
     || {Text, Expected} <- [{<<"x%%a%%y%%b%%">>, <<"x1y2">>}, {<<"%%c%%a%%">>, <<"%%c1">>}, {<<"x%%a">>, <<"x%%a">>}, {<<>>, <<>>}]].

-endif.
