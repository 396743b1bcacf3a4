%% SPDX-License-Identifier: Apache-2.0
%% @doc A module for `-epmd_module', so that nodes find each other without epmd.
%%
%% It has two forms, selected with `-compat_epmd' on the command line. With `directory FOLDER' a node chooses its own port and writes it to a file
%% named after itself in the directory, where the others read it. With `ports' the port is part of the node's name (`any_4711'), so
%% `listen_port_please' tells a node where to listen, and `address_please' returns the address and the port in one answer.
-module(beamway_compat_epmd).

-export([start_link/0, register_node/2, register_node/3, listen_port_please/2, port_please/2,
         port_please/3, address_please/3, names/1]).

-define(PROTOCOL_VERSION, 6).

%% @doc No process is needed, because the directory or the name is the registry.
-spec start_link() -> ignore.
start_link() ->
    ignore.

%% @doc OTP 23 and later also pass the family; older releases call the two-argument form.
-spec register_node(atom() | string(), inet:port_number()) -> {ok, pos_integer()}.
register_node(Name, PortNumber) ->
    register_node(Name, PortNumber, inet_tcp).

%% @doc Uses raw files because net_kernel starts before the file server. The family is stored so that
%% the suite can check what the carrier calls itself.
-spec register_node(atom() | string(), inet:port_number(), atom()) -> {ok, pos_integer()}.
register_node(Name, PortNumber, Family) ->
    ok = write_down(form(), lists:concat([Name]), PortNumber, Family),
    {ok, rand:uniform(1 bsl 31)}.

write_down({directory, Folder}, Name, PortNumber, Family) ->
    Text = io_lib:format("~b ~s", [PortNumber, Family]),
    file:write_file(filename:join(Folder, Name), Text, [raw]);
write_down(ports, Name, PortNumber, _Family) ->
    PortNumber = port_in(Name),
    ok.

%% @doc Returns the port on which a node should listen; 0 leaves the choice to the carrier.
-spec listen_port_please(atom() | string(), string()) -> {ok, inet:port_number()}.
listen_port_please(Name, _Host) ->
    case form() of
        {directory, _} -> {ok, 0};
        ports -> {ok, port_in(Name)}
    end.

%% @doc Returns the port on which another node listens.
-spec port_please(string(), term()) -> {port, inet:port_number(), pos_integer()} | noport.
port_please(Name, _Host) ->
    {directory, Folder} = form(),
    case file:open(filename:join(Folder, Name), [raw, read]) of
        {ok, File} ->
            {ok, Text} = file:read(File, 100),
            ok = file:close(File),
            [PortText, _Family] = string:lexemes(Text, " "),
            {port, list_to_integer(PortText), ?PROTOCOL_VERSION};
        {error, enoent} ->
            noport
    end.

%% @doc Ignores the timeout because a file can be read immediately.
-spec port_please(string(), term(), timeout()) -> {port, inet:port_number(), pos_integer()} | noport.
port_please(Name, Host, _Timeout) ->
    port_please(Name, Host).

%% @doc The host part of the names is never looked up, so it need not exist.
-spec address_please(string(), string(), inet | inet6) ->
          {ok, inet:ip_address()} | {ok, inet:ip_address(), inet:port_number(), pos_integer()}.
address_please(Name, _Host, Family) ->
    Address = case Family of inet -> {127, 0, 0, 1}; inet6 -> {0, 0, 0, 0, 0, 0, 0, 1} end,
    case form() of
        {directory, _} -> {ok, Address};
        ports -> {ok, Address, port_in(Name), ?PROTOCOL_VERSION}
    end.

%% @doc Returns the names that are registered on a host.
-spec names(term()) -> {ok, [{string(), inet:port_number()}]} | {error, address}.
names(_Host) ->
    case form() of
        {directory, Folder} ->
            {ok, Names} = file:list_dir(Folder),
            {ok, [{Name, PortNumber}
                  || Name <- Names, {port, PortNumber, _} <- [port_please(Name, host)]]};
        ports ->
            {error, address}
    end.

form() ->
    case init:get_argument(compat_epmd) of
        {ok, [["directory", Folder]]} -> {directory, Folder};
        {ok, [["ports"]]} -> ports
    end.

%% Kernel passes an atom for the node's own name and a string for the name of another node.
port_in(Name) ->
    list_to_integer(lists:last(string:lexemes(lists:concat([Name]), "_"))).
