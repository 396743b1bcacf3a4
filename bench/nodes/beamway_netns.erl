%% SPDX-License-Identifier: Apache-2.0
%% @doc Creates test hosts, a firewall and containers from kernel namespaces.
%%
%% {@link pair/1} creates two network namespaces joined by a veth pair. {@link apart/1} leaves it to its caller, such as {@link beamway_path}, to join
%% them. {@link firewalled/2} creates three namespaces; the middle one forwards only packets of tracked connections, and forgets connections that have
%% been silent for a while. {@link host/1} and {@link container/2} return the `wrapper' with which {@link beamway_peer:start/2} starts a node in one
%% of them. All of this needs root. The caller that created a network must remove it with {@link delete/1}, which also kills everything that is still
%% running in it.
-module(beamway_netns).

-export([pair/1, apart/1, firewalled/2, behind_nat/2, move/3, build/2, delete/1, host/1, container/2, in/2]).
-export_type([net/0, box/0]).

-type net() :: #{spaces := [string(), ...],     %% the names for `ip netns'
                 addresses := [string(), ...]}. %% of the two ends; a firewall is the third space
-type box() :: #{mounts => [{Outside :: file:filename(), Inside :: file:filename(), Options :: string()}],
                 user => string(),              %% uid that the node runs as
                 user_inside => string()}.      %% its uid in a separate user namespace

-define(END_MS, 10000).
-define(A, "10.97.194.1").
-define(B, "10.97.194.2").

%% @doc Returns two hosts that are joined by a veth pair.
-spec pair(Prefix :: string()) -> {ok, net()} | {error, string()}.
pair(Prefix) ->
    [A, B] = Spaces = names(Prefix, ["a", "b"]),
    build(#{spaces => Spaces, addresses => [?A, ?B]}, space(A) ++ space(B) ++ cable({A, ?A}, {B, ?B}), []).

%% @doc Returns two hosts that are not joined yet, and the addresses that they will get.
-spec apart(Prefix :: string()) -> {ok, net()} | {error, string()}.
apart(Prefix) ->
    [A, B] = Spaces = names(Prefix, ["a", "b"]),
    build(#{spaces => Spaces, addresses => [?A, ?B]}, space(A) ++ space(B), []).

%% @doc Returns two hosts with a firewall between them that forgets a TCP connection after `ForgetS' seconds of silence. From then on it silently
%% drops the connection's packets, as it does for a connection whose setup it has not seen.
-spec firewalled(Prefix :: string(), ForgetS :: pos_integer()) -> {ok, net()} | {error, string()}.
firewalled(Prefix, ForgetS) ->
    [A, B, Wall] = Spaces = names(Prefix, ["a", "b", "w"]),
    Ways = [["-n ", A, " route add default via 10.97.195.1"], ["-n ", B, " route add default via 10.97.196.1"]],
    build(#{spaces => Spaces, addresses => ["10.97.195.2", "10.97.196.2"]},
          lists:append([space(Space) || Space <- Spaces]) ++ cable({A, "10.97.195.2"}, {Wall, "10.97.195.1"})
          ++ cable({B, "10.97.196.2"}, {Wall, "10.97.196.1"}) ++ Ways,
          wall(Wall, integer_to_list(ForgetS))).

%% @doc Like {@link firewalled/2}, but with NAT: the second host sees the first one under an address of the middle namespace, and cannot open a
%% connection to it.
-spec behind_nat(Prefix :: string(), ForgetS :: pos_integer()) -> {ok, net()} | {error, string()}.
behind_nat(Prefix, ForgetS) ->
    case firewalled(Prefix, ForgetS) of
        {ok, #{spaces := [_, B, Wall]} = Net} ->
            build(Net, [], [[Wall, " iptables --table nat --append POSTROUTING --out-interface ", B, " --jump MASQUERADE"],
                            [Wall, " iptables --insert FORWARD --in-interface ", B, " --match conntrack --ctstate NEW --jump DROP"]]);
        {error, Why} ->
            {error, Why}
    end.

%% @doc Changes the address of a host behind a firewall within its network; `Last' is the last part of the new address, from 2 to 6.
-spec move(net(), Host :: 1..2, Last :: 2..6) -> ok.
move(#{spaces := [_, _, Wall] = Spaces, addresses := Addresses}, Host, Last) ->
    Network = lists:droplast(lists:nth(Host, Addresses)),
    "" = in(lists:nth(Host, Spaces),
            lists:flatten(["ip address flush dev ", Wall, " && ip address add ", Network, integer_to_list(Last), "/29 dev ", Wall,
                           " && ip route add default via ", Network, "1"])),
    ok.

wall(Space, ForgetS) ->
    Rule = fun(Words) -> [Space, " iptables --append FORWARD ", Words] end,
    [Rule("--match conntrack --ctstate ESTABLISHED --jump ACCEPT"),
     Rule("--protocol tcp --syn --match conntrack --ctstate NEW --jump ACCEPT"),
     Rule("--jump DROP")]
        ++ [[Space, " sh -c 'echo ", Value, " >/proc/sys/net/", File, "'"]
            || {File, Value} <- [{"netfilter/nf_conntrack_tcp_timeout_established", ForgetS},
                                 {"netfilter/nf_conntrack_tcp_loose", "0"}, {"ipv4/ip_forward", "1"}]].

names(Prefix, Ends) ->
    [Prefix ++ os:getpid() ++ End || End <- Ends].

space(Space) ->
    [["netns add ", Space], ["-n ", Space, " link set lo up"]].

%% Each end of the cable is named after the namespace at its other end.
cable({A, AddressA}, {B, AddressB}) ->
    [["-n ", A, " link add ", B, " type veth peer name ", A, " netns ", B]]
        ++ lists:append([[["-n ", Space, " address add ", Address, "/29 dev ", Other],
                          ["-n ", Space, " link set ", Other, " up"]]
                         || {Space, Address, Other} <- [{A, AddressA, B}, {B, AddressB, A}]]).

build(Net, Steps, Inside) ->
    build(Net, [["ip ", Step] || Step <- Steps] ++ [["ip netns exec ", Step] || Step <- Inside]).

%% @doc Runs the commands that create a network, and deletes the network if one of them fails.
-spec build(Net, Commands :: [io_lib:chars()]) -> {ok, Net} | {error, string()} when Net :: #{spaces := [string()], _ => _}.
build(Net, []) ->
    {ok, Net};
build(Net, [Command | Commands]) ->
    case os:cmd(lists:flatten([Command, " 2>&1 && echo done"])) of
        "done\n" ->
            build(Net, Commands);
        Text ->
            ok = delete(Net),
            {error, lists:flatten(["'", Command, "' is refused here: ", string:trim(Text)])}
    end.

%% @doc Kills everything that runs in the namespaces, and removes the namespaces.
-spec delete(#{spaces := [string()], _ => _}) -> ok.
delete(#{spaces := Spaces}) ->
    _ = [signal(Space, "TERM") || Space <- Spaces],
    EndMs = erlang:monotonic_time(millisecond) + ?END_MS,
    _ = [await_empty(Space, EndMs) || Space <- Spaces],
    _ = [os:cmd("ip netns delete " ++ Space) || Space <- Spaces],
    ok.

await_empty(Space, EndMs) ->
    case {pids(Space), erlang:monotonic_time(millisecond) > EndMs} of
        {"", _} -> ok;
        {_, true} -> signal(Space, "KILL");
        {_, false} -> receive after 20 -> await_empty(Space, EndMs) end
    end.

pids(Space) ->
    string:trim(os:cmd("ip netns pids " ++ Space ++ " 2>/dev/null")).

%% The first process of a pid namespace receives only signals for which it has a handler, so the last signal sent is KILL.
signal(Space, Name) ->
    os:cmd("ip netns pids " ++ Space ++ " 2>/dev/null | xargs -r kill -" ++ Name).

%% @doc Runs a shell command in a namespace.
-spec in(Space :: string(), Command :: string()) -> string().
in(Space, Command) ->
    os:cmd("ip netns exec " ++ Space ++ " sh -c '" ++ Command ++ "' 2>&1").

%% @doc Returns a wrapper that starts a node in this network namespace.
-spec host(Space :: string()) -> [string()].
host(Space) ->
    [find("ip"), "netns", "exec", Space].

%% @doc Returns a wrapper for a node in a container. The container has its own network, pid and mount namespaces, its own `/proc', an empty `/tmp' and
%% `/run', and the given directories from outside. The checkout has the same path as outside.
-spec container(Space :: string(), box()) -> [string()].
container(Space, Box) ->
    host(Space) ++ [find("unshare"), "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
                    find("sh"), "-c", lists:flatten([script(maps:get(mounts, Box, [])), user(Box), " \"$@\""]), "sh"].

script(Mounts) ->
    All = [{Checkout, Checkout, "ro"} || Checkout <- [checkout()]] ++ Mounts,
    Numbered = lists:zip(lists:seq(1, length(All)), All),
    ["set -e; umask 022; mount -t tmpfs none /mnt; ",
     [io_lib:format("mkdir /mnt/~b; mount --bind '~ts' /mnt/~b; ", [N, Outside, N]) || {N, {Outside, _, _}} <- Numbered],
     "mount -t tmpfs -o mode=1777 none /tmp; mount -t tmpfs none /run; ",
     [io_lib:format("mkdir -p '~ts'; mount --bind /mnt/~b '~ts'; mount -o remount,bind,~ts '~ts'; ",
                    [Inside, N, Inside, Options, Inside]) || {N, {_, Inside, Options}} <- Numbered],
     [io_lib:format("umount /mnt/~b; ", [N]) || {N, _} <- Numbered],
     "umount /mnt; mkdir -m 1777 /tmp/home; export HOME=/tmp/home; "].

user(#{user := User} = Box) ->
    Inside = case Box of
                 #{user_inside := Number} -> [find("unshare"), " --user --map-user=", Number];
                 #{} -> ""
             end,
    ["exec ", find("setpriv"), " --pdeathsig KILL --reuid=", User, " --regid=", User, " --clear-groups ", Inside];
user(#{}) ->
    "exec".

%% Returns the directory that contains bench/ebin and apps/beamway/ebin.
checkout() ->
    Ebin = filename:dirname(filename:absname(code:which(?MODULE))),
    filename:dirname(filename:dirname(Ebin)).

find(Program) ->
    case os:find_executable(Program) of
        false -> error({not_installed, Program});
        Path -> Path
    end.
