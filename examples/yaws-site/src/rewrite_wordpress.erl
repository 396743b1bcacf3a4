%% SPDX-License-Identifier: Apache-2.0
%% Implements permalinks for WordPress: paths that do not name a file belong to the blog, which must see the address as the client sent it. /wsvn
%% belongs to WebSVN.
-module(rewrite_wordpress).

-include_lib("yucan_yaws/include/yaws_api.hrl").

-export([arg_rewrite/1]).

arg_rewrite(Arg) ->
        Req = Arg#arg.req,
        {abs_path, Path} = Req#http_request.path,
        try yaws_api:url_decode_q_split(Path) of
                {DecPath, _Query} ->
                        case DecPath == "/" orelse not filelib:is_file(Arg#arg.docroot ++ DecPath) of
                                true ->
                                        case string:str(Path, "/wsvn") == 1 of
                                                true ->
                                                        %% OTP no longer has regexp:sub/3.
                                                        NewPath = re:replace(Path, "^/wsvn(\\.php)?", "/wsvn.php", [{return, list}]),
                                                        Arg#arg{req = Req#http_request{path = {abs_path, NewPath}}};
                                                false ->
                                                        Arg#arg{opaque = [{"REQUEST_URI", Path}],
                                                                req = Req#http_request{path = {abs_path, "/blog" ++ Path}}}
                                        end;
                                false ->
                                        Arg
                        end
        catch
                exit:_ ->
                        Arg
        end.
