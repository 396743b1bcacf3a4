%% SPDX-License-Identifier: Apache-2.0
%% @doc What suites of every application ask for: files of the checkout, free ports.
-module(test_support).

-export([checkout/0, file/1, free_port/0]).

%% @doc The folder of the checkout.
-spec checkout() -> file:filename().
checkout() ->
    lists:foldl(fun(_, File) -> filename:dirname(File) end, filename:absname(code:which(?MODULE)), [ebin, test_support, apps, checkout]).

%% @doc A file of the checkout, by its path in it.
-spec file(file:filename()) -> file:filename().
file(Path) -> filename:join(checkout(), Path).

%% @doc A port at which nobody listens at the moment.
-spec free_port() -> inet:port_number().
free_port() ->
    {ok, Socket} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Socket),
    ok = gen_tcp:close(Socket),
    Port.
