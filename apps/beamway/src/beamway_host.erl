%% SPDX-License-Identifier: Apache-2.0
%% @doc Identifies the kernel on which this node runs, because two nodes on the same kernel may share memory. Also reads the start of any file, raw,
%% for modules that run before the file server.
-module(beamway_host).

-export([digest/0, boot_id/0, read/2]).

%% @doc Returns the value sent to a peer before it is authenticated. Two nodes on the same kernel have the same digest.
-spec digest() -> <<_:128>>.
digest() ->
    case boot_id() of
        {ok, BootId} -> erlang:md5(["beamway host ", BootId]);
        %% Without a boot ID the digest must differ from that of every other node.
        {error, _} -> erlang:md5(term_to_binary({make_ref(), os:system_time(), os:getpid()}))
    end.

%% @doc Returns the kernel's boot ID.
-spec boot_id() -> {ok, binary()} | {error, file:posix() | badarg | terminated | system_limit | eof}.
boot_id() ->
    case read("/proc/sys/kernel/random/boot_id", 128) of
        {ok, <<>>} -> {error, eof};
        Read -> Read
    end.

%% @doc Returns the first bytes of a file. It is read raw, because the distribution starts before the file server.
-spec read(file:name_all(), Bytes :: pos_integer()) -> {ok, binary()} | {error, file:posix() | badarg | terminated | system_limit}.
read(Name, Bytes) ->
    beamway_result:then(file:open(Name, [read, raw, binary]),
                        fun(File) ->
                                Read = file:read(File, Bytes),
                                _ = file:close(File),
                                case Read of eof -> {ok, <<>>}; _ -> Read end
                        end).
