%% SPDX-License-Identifier: Apache-2.0
%% @doc Functions that run scripts, which modules written for Yaws call. They have the same names as in Yaws, and out/1 returns their results.
-module(yaws_cgi).

-export([call_cgi/2, call_cgi/3, call_cgi/4, call_cgi/5]).

-include("../../include/yaws_api.hrl").

-type result() :: {yucan_response, yucan_handler:response()}.
%% A term that can be a part of the result of out/1.

%% @doc Runs an executable script.
-spec call_cgi(#arg{}, Script :: file:filename()) -> result().
call_cgi(Arg, Script) -> call_cgi(Arg, undefined, Script, Arg#arg.pathinfo, []).

%% @doc Runs a script with a program such as php-cgi.
-spec call_cgi(#arg{}, Program :: file:filename() | undefined, Script :: file:filename()) -> result().
call_cgi(Arg, Program, Script) -> call_cgi(Arg, Program, Script, Arg#arg.pathinfo, []).

%% @doc Like {@link call_cgi/3}, with a different PATH_INFO.
-spec call_cgi(#arg{}, Program :: file:filename() | undefined, Script :: file:filename(), PathInfo :: string() | undefined) -> result().
call_cgi(Arg, Program, Script, PathInfo) -> call_cgi(Arg, Program, Script, PathInfo, []).

%% @doc Like {@link call_cgi/4}, with additional variables, which override the standard ones.
-spec call_cgi(#arg{}, Program :: file:filename() | undefined, Script :: file:filename(), PathInfo :: string() | undefined,
               [{Name :: string(), Value :: string()}] | undefined) -> result().
call_cgi(#arg{docroot = Docroot, appmod_prepath = Before} = Arg, Program, Script, PathInfo, Variables) ->
    Req = yucan_yaws_out:request(),
    Spec = #{run => case Program of
                        undefined -> {program, Script};
                        _ -> {interpreter, Program}
                    end,
             script => Script, script_name => script_name(Before, Arg), path_info => defined(PathInfo), docroot => Docroot,
             variables => pairs(Variables), body => Arg#arg.clidata},
    {yucan_response, yucan_cgi:respond(Req, maps:merge(yucan_yaws_options:for_scripts(), Spec))}.

%% Returns SCRIPT_NAME. For an appmod, this is the path at which it is mounted.
script_name(undefined, #arg{server_path = Path, pathinfo = undefined}) -> Path;
script_name(undefined, #arg{server_path = Path, pathinfo = Info}) -> lists:sublist(Path, max(0, length(Path) - length(Info)));
script_name("/", _) -> "";
script_name(Before, _) -> Before.

%% A module that rewrites requests may have stored something other than variables in `opaque'.
pairs(Pairs) when is_list(Pairs) -> [{Name, Value} || {Name, Value} <- Pairs, is_list(Name), is_list(Value)];
pairs(_) -> [].

defined(undefined) -> "";
defined(Text) -> Text.
