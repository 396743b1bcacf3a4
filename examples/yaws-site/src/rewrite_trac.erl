%% SPDX-License-Identifier: Apache-2.0
%% Makes Trac available at /wiki instead of /trac/wiki: paths that do not name a file in the docroot belong to Trac.
-module(rewrite_trac).

-include_lib("yucan_yaws/include/yaws_api.hrl").

-export([arg_rewrite/1]).

arg_rewrite(Arg) ->
        Req = Arg#arg.req,
        {abs_path, Path} = Req#http_request.path,
        try yaws_api:url_decode_q_split(Path) of
                {DecPath, _Query} ->
                        case DecPath == "/" orelse not filelib:is_file(Arg#arg.docroot ++ DecPath) of
                                true ->
                                        Arg#arg{req = Req#http_request{path = {abs_path, "/trac" ++ Path}}};
                                false ->
                                        Arg
                        end
        catch
                exit:_ ->
                        Arg
        end.
