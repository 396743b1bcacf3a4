%% SPDX-License-Identifier: Apache-2.0
%% @doc {@link beamway_compat_epmd} without `address_please/3', which modules for `-epmd_module' did not have before OTP 21.
-module(beamway_compat_epmd_old).

-export([start_link/0, register_node/2, register_node/3, listen_port_please/2, port_please/2, port_please/3, names/1]).

%% @doc See {@link beamway_compat_epmd:start_link/0}.
-spec start_link() -> ignore.
start_link() -> beamway_compat_epmd:start_link().

%% @doc See {@link beamway_compat_epmd:register_node/2}.
-spec register_node(atom() | string(), inet:port_number()) -> {ok, pos_integer()}.
register_node(Name, PortNumber) -> beamway_compat_epmd:register_node(Name, PortNumber).

%% @doc See {@link beamway_compat_epmd:register_node/3}.
-spec register_node(atom() | string(), inet:port_number(), atom()) -> {ok, pos_integer()}.
register_node(Name, PortNumber, Family) -> beamway_compat_epmd:register_node(Name, PortNumber, Family).

%% @doc See {@link beamway_compat_epmd:listen_port_please/2}.
-spec listen_port_please(atom() | string(), string()) -> {ok, inet:port_number()}.
listen_port_please(Name, Host) -> beamway_compat_epmd:listen_port_please(Name, Host).

%% @doc See {@link beamway_compat_epmd:port_please/2}.
-spec port_please(string(), term()) -> {port, inet:port_number(), pos_integer()} | noport.
port_please(Name, Host) -> beamway_compat_epmd:port_please(Name, Host).

%% @doc See {@link beamway_compat_epmd:port_please/3}.
-spec port_please(string(), term(), timeout()) -> {port, inet:port_number(), pos_integer()} | noport.
port_please(Name, Host, Timeout) -> beamway_compat_epmd:port_please(Name, Host, Timeout).

%% @doc See {@link beamway_compat_epmd:names/1}.
-spec names(term()) -> {ok, [{string(), inet:port_number()}]} | {error, address}.
names(Host) -> beamway_compat_epmd:names(Host).
