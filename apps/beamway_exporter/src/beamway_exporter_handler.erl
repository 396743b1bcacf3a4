%% SPDX-License-Identifier: Apache-2.0
%% @private Answers `GET /metrics' if prometheus.erl does not run.
-module(beamway_exporter_handler).
-behaviour(yucan_handler).

-export([handle/2]).

%% @private
-spec handle(yucan_req:req(), any | [binary()]) -> yucan_handler:response().
handle(Req, Names) ->
    case yucan_req:has_own_name(Req, Names) andalso yucan_req:method(Req) of
        false -> yucan_error:page(403, ["These metrics are for localhost only, not for ", yucan_req:host(Req), "; add this name to the parameter hosts of beamway_exporter if a proxy passes it on"]);
        Method when Method =:= <<"GET">>; Method =:= <<"HEAD">> ->
            {200, [{<<"content-type">>, <<"text/plain; version=0.0.4; charset=utf-8">>}, {<<"cache-control">>, <<"no-store">>}], beamway_exporter:text()};
        _ -> {405, [{<<"allow">>, <<"GET, HEAD">>}], <<>>}
    end.
