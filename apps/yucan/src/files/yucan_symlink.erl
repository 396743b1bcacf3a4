%% SPDX-License-Identifier: Apache-2.0
%% @doc Looks up files below a docroot, and checks the symbolic links in their paths against the policy.
%%
%% Each file system access switches threads, so this module makes as few accesses as the policy allows, and bypasses the file server.
-module(yucan_symlink).

-export([info/3]).
-export_type([policy/0]).

-include_lib("kernel/include/file.hrl").

-type policy() :: inside | always | never.
%% `inside' follows a link if its target is below the root. `never' follows no links below the root.

%% @doc Returns information about the file at a decoded path, with times in UTC, if the policy permits the path.
-spec info(Path :: binary(), Root :: binary(), policy()) -> {ok, file:file_info()} | {error, forbidden | file:posix() | badarg}.
info(Path, Root, always) -> followed(yucan_path:join(Root, Path));
info(Path, Root, Policy) ->
    %% Most paths contain no links, so checking each part without resolving it is enough.
    case without_links(binary:split(Path, <<"/">>, [global, trim_all]), yucan_path:join(Root, <<>>), none) of
        links when Policy =:= inside -> inside(yucan_path:join(Root, Path), Root);
        links -> {error, forbidden};
        none -> followed(yucan_path:join(Root, Path));
        Info -> Info
    end.

followed(File) -> file:read_file_info(File, [raw, {time, universal}]).

without_links([Part | Rest], Above, _) ->
    Name = <<Above/binary, "/", Part/binary>>,
    case file:read_link_info(Name, [raw, {time, universal}]) of
        {ok, #file_info{type = symlink}} -> links;
        {ok, _} = Info -> without_links(Rest, Name, Info);
        Error -> Error
    end;
without_links([], _, Last) -> Last.

inside(File, Root) ->
    case followed(File) of
        {ok, _} = Info ->
            case is_inside(File, Root) of
                true -> Info;
                false -> {error, forbidden}
            end;
        Error -> Error
    end.

%% Returns whether the file is still in the directory after all symbolic links have been resolved.
is_inside(File, Folder) ->
    case {real(File), real(Folder)} of
        {{ok, Real}, {ok, Root}} -> Real =:= Root orelse Root =:= <<"/">> orelse starts_with(<<Root/binary, "/">>, Real);
        _ -> false
    end.

starts_with(Prefix, Text) -> binary:longest_common_prefix([Prefix, Text]) =:= byte_size(Prefix).

-define(MOST_LINKS, 40).

real(File) ->
    [Root | Parts] = filename:split(filename:absname(File)),
    real(Parts, Root, ?MOST_LINKS).

real(_, _, 0) -> error;
real([], Done, _) -> {ok, Done};
real([<<".">> | Rest], Done, Left) -> real(Rest, Done, Left);
real([<<"..">> | Rest], Done, Left) -> real(Rest, filename:dirname(Done), Left);
real([Part | Rest], Done, Left) ->
    Next = filename:join(Done, Part),
    case file:read_link_all(Next) of
        {ok, Target} ->
            case filename:split(unicode:characters_to_binary(Target)) of
                [<<"/">> | Parts] -> real(Parts ++ Rest, <<"/">>, Left - 1);
                Parts -> real(Parts ++ Rest, Done, Left - 1)
            end;
        {error, einval} -> real(Rest, Next, Left);
        {error, _} -> error
    end.
