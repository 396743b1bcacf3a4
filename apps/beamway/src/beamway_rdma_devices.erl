%% SPDX-License-Identifier: Apache-2.0
%% @doc Finds the RDMA devices of the host, and the IP addresses through which they can be reached.
%%
%% The information is read from sysfs each time, because devices come and go. The verbs library is not called, so a node loads it only when there is
%% a device to use with it. librdmacm finds a device through the IP address of its network interface, so a port whose interface has no address
%% (InfiniBand without IPoIB) is detected but cannot be used. This runs while the node boots, before there is a file server.
-module(beamway_rdma_devices).

-export([all/0, named/1, usable/1, routes/2]).
-export_type([port_info/0, address/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-type address() :: {Ip :: inet:ip_address(), PrefixBits :: 0..128}.
-type port_info() :: #{device := string(),
                       port := pos_integer(),
                       state := string(),                    %% "ACTIVE", "DOWN", …
                       link_layer := string(),               %% "Ethernet" (RoCE), "InfiniBand"
                       gid := string(),                      %% the first that has an interface, or ""
                       interfaces := [string()],
                       addresses := [address()]}.

-define(SYSFS, "/sys/class/infiniband").
-define(READ_BYTES, 256).
%% This many consecutive empty entries mark the end of a table.
-define(GAP, 16).

%% @doc Returns all ports of all devices.
-spec all() -> [port_info()].
all() ->
    named([]).

%% @doc Returns all ports of these devices; [] means all devices.
-spec named(Devices :: [string()]) -> [port_info()].
named(Devices) ->
    all(?SYSFS, fun interface_addresses/0, Devices).

-spec all(Sysfs :: file:filename(), fun(() -> [{Interface :: string(), address()}]), Only :: [string()]) -> [port_info()].
all(Sysfs, Addresses, Only) ->
    case [Device || Device <- names(Sysfs), Only =:= [] orelse lists:member(Device, Only)] of
        [] ->
            [];
        Devices ->
            Known = Addresses(),
            [port_info(Sysfs, Device, Port, Known)
             || Device <- Devices, Port <- ports(filename:join([Sysfs, Device, "ports"]))]
    end.

%% @doc Returns the ports that can carry a link now.
-spec usable([port_info()]) -> [port_info()].
usable(Ports) ->
    [Port || #{state := "ACTIVE", addresses := [_ | _]} = Port <- Ports].

ports(Folder) ->
    lists:sort([list_to_integer(Name) || Name <- names(Folder)]).

port_info(Sysfs, Device, Number, Known) ->
    Folder = filename:join([Sysfs, Device, "ports", integer_to_list(Number)]),
    Gids = gids(Folder),
    Interfaces = lists:usort([Interface || {_, Interface} <- Gids]
                             ++ names(filename:join([Sysfs, Device, "device", "net"]))),
    #{device => Device,
      port => Number,
      state => last_word(read(filename:join(Folder, "state"))),
      link_layer => read(filename:join(Folder, "link_layer")),
      gid => case Gids of [{Gid, _} | _] -> Gid; [] -> "" end,
      interfaces => Interfaces,
      addresses => [Address || {Interface, Address} <- Known, lists:member(Interface, Interfaces)]}.

%% The kernel uses the first free entry of a table that has up to 1,024 entries, and removed entries leave gaps. Reading the whole table for each
%% connection took milliseconds, or seconds on an emulated CPU.
gids(Folder) ->
    gids(Folder, 0, ?GAP).

gids(_Folder, _Entry, 0) ->
    [];
gids(Folder, Entry, Gap) ->
    Name = integer_to_list(Entry),
    %% Reading an empty entry fails.
    case read(filename:join([Folder, "gid_attrs", "ndevs", Name])) of
        "" -> gids(Folder, Entry + 1, Gap - 1);
        Interface -> [{read(filename:join([Folder, "gids", Name])), Interface} | gids(Folder, Entry + 1, ?GAP)]
    end.

%% Returns the last word of a text such as "4: ACTIVE".
last_word(Text) ->
    case string:lexemes(Text, ": ") of
        [] -> "";
        Words -> lists:last(Words)
    end.

names(Folder) ->
    case prim_file:list_dir(Folder) of
        {ok, Names} -> lists:sort(Names);
        {error, _} -> []
    end.

read(Path) ->
    case beamway_host:read(Path, ?READ_BYTES) of
        {ok, Text} -> string:trim(binary_to_list(Text));
        {error, _} -> ""
    end.

interface_addresses() ->
    case inet:getifaddrs() of
        {ok, Interfaces} -> [{Name, Address} || {Name, Options} <- Interfaces, Address <- addresses(Options)];
        {error, _} -> []
    end.

%% Each address is followed by its mask. A link-local address is meaningless without its interface.
addresses([{addr, Ip}, {netmask, Mask} | More]) ->
    [{Ip, prefix_bits(Mask)} || is_address(Ip)] ++ addresses(More);
addresses([_ | More]) ->
    addresses(More);
addresses([]) ->
    [].

%% Returns whether this address can be offered to a peer as one that the peer can connect to.
-spec is_address(inet:ip_address()) -> boolean().
is_address({127, _, _, _}) -> false;
is_address({0, 0, 0, 0}) -> false;
is_address({A, _, _, _}) -> A < 224;
is_address({0, 0, 0, 0, 0, 0, 0, Last}) when Last < 2 -> false;
is_address({A, _, _, _, _, _, _, _}) -> A band 16#ffc0 =/= 16#fe80 andalso A < 16#ff00.

prefix_bits(Mask) ->
    length([1 || <<1:1>> <= bits(Mask)]).

bits({A, B, C, D}) -> <<A, B, C, D>>;
bits(Ip) -> << <<Part:16>> || Part <- tuple_to_list(Ip) >>.

%% @doc Returns the order in which to try the peer's addresses: first those in a network of one of our devices, then those behind a router, if we have
%% an address of that family. If the result is empty, none of our devices can reach the peer.
-spec routes(Ours :: [port_info()], Theirs :: [inet:ip_address()]) -> [inet:ip_address()].
routes(Ours, Theirs) ->
    Own = lists:append([Addresses || #{addresses := Addresses} <- Ours]),
    Families = lists:usort([tuple_size(Ip) || {Ip, _} <- Own]),
    Known = [Ip || Ip <- Theirs, is_address(Ip), lists:member(tuple_size(Ip), Families)],
    {Near, Far} = lists:partition(fun(Ip) -> lists:any(fun(Address) -> is_near(Ip, Address) end, Own) end, Known),
    Near ++ Far.

is_near(Ip, {Own, Bits}) when tuple_size(Ip) =:= tuple_size(Own) ->
    <<Ours:Bits/bits, _/bits>> = bits(Own),
    <<Theirs:Bits/bits, _/bits>> = bits(Ip),
    Ours =:= Theirs;
is_near(_Ip, _Address) ->
    false.

-ifdef(TEST).

with_sysfs(Files, Test) ->
    "/" ++ _ = Root = string:trim(os:cmd("mktemp -d")),
    [begin
         Path = filename:join(Root, File),
         ok = filelib:ensure_dir(Path),
         ok = file:write_file(Path, Text)
     end || {File, Text} <- Files],
    try Test(Root) after file:del_dir_r(Root) end.

roce() ->
    [{"rxe0/ports/1/state", "4: ACTIVE\n"}, {"rxe0/ports/1/link_layer", "Ethernet\n"},
     {"rxe0/ports/1/gids/0", "fe80:0000:0000:0000:5054:00ff:fe12:3456\n"},
     {"rxe0/ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:0a00:0001\n"},
     {"rxe0/ports/1/gid_attrs/ndevs/0", "eth1\n"}, {"rxe0/ports/1/gid_attrs/ndevs/1", "eth1\n"},
     {"rxe0/ports/1/gid_attrs/ndevs/2", ""}].

infiniband() ->
    [{"mlx5_0/ports/1/state", "4: ACTIVE\n"}, {"mlx5_0/ports/1/link_layer", "InfiniBand\n"},
     {"mlx5_0/ports/2/state", "1: DOWN\n"}, {"mlx5_0/ports/2/link_layer", "InfiniBand\n"},
     {"mlx5_0/device/net/ib0/type", "32\n"}].

addresses_here() ->
    [{"eth1", {{10, 0, 0, 1}, 24}}, {"eth2", {{10, 9, 0, 1}, 24}}, {"ib0", {{192, 168, 7, 1}, 16}}].

reads_ports_test() ->
    with_sysfs(roce() ++ infiniband(), fun(Root) ->
        Ports = all(Root, fun addresses_here/0, []),
        ?assertMatch([#{device := "mlx5_0", port := 1, state := "ACTIVE", link_layer := "InfiniBand", gid := "",
                        interfaces := ["ib0"], addresses := [{{192, 168, 7, 1}, 16}]},
                      #{device := "mlx5_0", port := 2, state := "DOWN"},
                      #{device := "rxe0", port := 1, state := "ACTIVE", link_layer := "Ethernet",
                        gid := "fe80:0000:0000:0000:5054:00ff:fe12:3456", interfaces := ["eth1"],
                        addresses := [{{10, 0, 0, 1}, 24}]}], Ports),
        ?assertMatch([#{device := "mlx5_0", port := 1}, #{device := "rxe0"}], usable(Ports)),
        ?assertMatch([#{device := "rxe0"}], all(Root, fun addresses_here/0, ["rxe0", "gone0"])),
        ?assertMatch([], usable(all(Root, fun() -> [] end, [])))
    end).

no_devices_test() ->
    ?assertEqual([], all("/nowhere/at/all", fun() -> error(asked_for_nothing) end, [])).

of_this_host_test() ->
    ?assert(is_list(all())),
    ?assert(lists:all(fun({Name, {Ip, Bits}}) -> is_list(Name) andalso is_address(Ip) andalso Bits > 0 end,
                      interface_addresses())).

routes_test_() ->
    Ours = [#{addresses => [{{10, 0, 0, 1}, 24}]}, #{addresses => [{{16#fd00, 0, 0, 0, 0, 0, 0, 1}, 64}]}],
    Near6 = {16#fd00, 0, 0, 0, 9, 9, 9, 9},
    [?_assertEqual([{10, 0, 0, 9}, {10, 1, 0, 9}], routes(Ours, [{10, 1, 0, 9}, {10, 0, 0, 9}])),
     ?_assertEqual([Near6, {10, 1, 0, 9}], routes(Ours, [{10, 1, 0, 9}, Near6])),
     ?_assertEqual([], routes([hd(Ours)], [Near6])),
     ?_assertEqual([], routes([], [{10, 0, 0, 9}])),
     ?_assertEqual([], routes(Ours, [{127, 0, 0, 1}, {0, 0, 0, 0}, {224, 0, 0, 1}, {255, 255, 255, 255},
                                     {0, 0, 0, 0, 0, 0, 0, 1}, {16#fe80, 0, 0, 0, 0, 0, 0, 1}, {16#ff02, 0, 0, 0, 0, 0, 0, 1}]))].

prefix_test_() ->
    [?_assertEqual(24, prefix_bits({255, 255, 255, 0})),
     ?_assertEqual(64, prefix_bits({65535, 65535, 65535, 65535, 0, 0, 0, 0}))].

-endif.
