%% SPDX-License-Identifier: Apache-2.0
%% @private What answers `GET /metrics' where prometheus.erl does not run.
-module(beamway_exporter_handler).
-behaviour(yucan_handler).

-export([handle/2]).

%% @private
-spec handle(yucan_req:req(), none) -> yucan_handler:response().
handle(Req, none) ->
    case yucan_req:method(Req) of
        Method when Method =:= <<"GET">>; Method =:= <<"HEAD">> ->
            {200, [{<<"content-type">>, <<"text/plain; version=0.0.4; charset=utf-8">>}, {<<"cache-control">>, <<"no-store">>}], beamway_exporter:text()};
        _ -> {405, [{<<"allow">>, <<"GET, HEAD">>}], <<>>}
    end.
