%% SPDX-License-Identifier: Apache-2.0
%% @doc The body of a request, which is read completely before a gateway starts, into memory if it
%% is small and otherwise into a file. A script must know the body's length, reads it at its own
%% pace, and should not be kept waiting by a slow client.
%%
%% The process that takes a body deletes it, or yucan_unfinished does so if that process is killed.
%% The files are in a directory in TMPDIR that belongs to this VM and that only its user can enter.
%% Setting each file's mode would not be enough, because other users could open the file before its
%% mode is set.
-module(yucan_spool).

-export([take/2, take/3, size/1, delete/1, send/2, on_disk/1, leave/0]).
-export_type([body/0]).

-define(MEMORY_BYTES, 65536).
-define(READ_BYTES, 65536).

-type body() :: none | {memory, binary()} | {file, file:filename(), Size :: pos_integer()}.
-type reason() :: yucan_req:body_error() | {spool, file:posix() | badarg | terminated | system_limit}.

%% @doc Reads the body of a request, which may have at most `Max' bytes.
-spec take(yucan_req:req(), Max :: non_neg_integer()) -> {ok, body()} | {error, reason()}.
take(Req, Max) ->
    case yucan_req:has_body(Req) of
        false -> {ok, none};
        true -> in_memory(Req, <<>>, Max)
    end.

%% @doc Like {@link take/2}, for a body of which a part has already been read.
-spec take(yucan_req:req(), Max :: non_neg_integer(), Before :: binary() | {partial, binary()}) -> {ok, body()} | {error, reason()}.
take(_, Max, Whole) when is_binary(Whole), byte_size(Whole) > Max -> {error, too_large};
take(Req, _, Whole) when is_binary(Whole) ->
    case yucan_req:has_body(Req) of
        true -> {ok, {memory, Whole}};
        false -> {ok, none}
    end;
take(Req, Max, {partial, Data}) -> in_memory(Req, Data, Max).

in_memory(_, Before, Max) when byte_size(Before) > Max -> {error, too_large};
in_memory(Req, Before, Max) ->
    case yucan_req:gather(min(Max, ?MEMORY_BYTES) + 1, Before, Req) of
        {more, Data} when byte_size(Data) > Max -> {error, too_large};
        {more, Data} -> in_file(Req, Data, Max);
        {ok, Data} when byte_size(Data) > Max -> {error, too_large};
        {ok, Data} -> {ok, {memory, Data}};
        {error, Reason} -> {error, Reason}
    end.

in_file(Req, Before, Max) -> in_file(fun(File) -> copy(Req, File, Before, byte_size(Before), Max) end).

in_file(Write) ->
    case create() of
        {ok, Name, File} ->
            Result = Write(File),
            _ = file:close(File),
            taken(Result, Name);
        {error, Reason} -> {error, {spool, Reason}}
    end.

taken({ok, Size}, Name) -> {ok, {file, Name, Size}};
taken({error, Reason}, Name) ->
    ok = yucan_unfinished:delete(Name),
    {error, Reason}.

copy(_, _, _, Size, Max) when Size > Max -> {error, too_large};
copy(Req, File, Data, Size, Max) ->
    case write(File, Data, Size) of
        {ok, _} -> read_more(yucan_req:read(Req), Req, File, Size, Max);
        Error -> Error
    end.

read_more({more, Data}, Req, File, Size, Max) -> copy(Req, File, Data, Size + byte_size(Data), Max);
read_more({ok, Data}, _, File, Size, Max) when Size + byte_size(Data) =< Max -> write(File, Data, Size + byte_size(Data));
read_more({ok, _}, _, _, _, _) -> {error, too_large};
read_more({error, Reason}, _, _, _, _) -> {error, Reason}.

write(File, Data, Size) ->
    case file:write(File, Data) of
        ok -> {ok, Size};
        {error, Reason} -> {error, {spool, Reason}}
    end.

random() -> binary_to_list(binary:encode_hex(crypto:strong_rand_bytes(16))).

create() -> create(persistent_term:get(?MODULE, none)).

create(none) ->
    Folder = filename:join(os:getenv("TMPDIR", "/tmp"), "yucan-" ++ random()),
    case file:make_dir(Folder) of
        ok ->
            ok = file:change_mode(Folder, 8#700),
            ok = persistent_term:put(?MODULE, Folder),
            open(Folder);
        {error, Reason} -> {error, Reason}
    end;
create(Folder) ->
    case open(Folder) of
        %% The directory has been removed in the meantime.
        {error, enoent} -> create(none);
        Result -> Result
    end.

open(Folder) ->
    Name = filename:join(Folder, random()),
    case yucan_unfinished:create(Name) of
        {ok, File} -> {ok, Name, File};
        {error, Reason} -> {error, Reason}
    end.

%% @doc Removes the directory when the application stops.
-spec leave() -> ok.
leave() ->
    case persistent_term:get(?MODULE, none) of
        none -> ok;
        Folder ->
            _ = persistent_term:erase(?MODULE),
            _ = file:del_dir_r(Folder),
            ok
    end.

%% @doc Returns the size in bytes, or `none' if there is no body.
-spec size(body()) -> non_neg_integer() | none.
size(none) -> none;
size({memory, Data}) -> byte_size(Data);
size({file, _, Size}) -> Size.

%% @doc Returns the body as a file, for callers that need a file name.
-spec on_disk(body()) -> {ok, none | {file, file:filename(), pos_integer()}} | {error, {spool, term()}}.
on_disk({memory, <<>>}) -> {ok, none};
on_disk({memory, Data}) -> in_file(fun(File) -> write(File, Data, byte_size(Data)) end);
on_disk(Body) -> {ok, Body}.

%% @doc Releases the memory or deletes the file. It may be called more than once.
-spec delete(body()) -> ok.
delete({file, Name, _}) -> yucan_unfinished:delete(Name);
delete(_) -> ok.

%% @doc Passes the body to a function, part by part, until it returns something other than `ok'.
-spec send(fun((binary()) -> ok | {error, Reason}), body()) -> ok | {error, Reason | file:posix() | badarg | terminated}.
send(_, none) -> ok;
send(Send, {memory, Data}) -> Send(Data);
send(Send, {file, Name, _}) ->
    case file:open(Name, [read, raw, binary]) of
        {ok, File} ->
            Result = send_file(Send, File),
            _ = file:close(File),
            Result;
        {error, Reason} -> {error, Reason}
    end.

send_file(Send, File) ->
    case file:read(File, ?READ_BYTES) of
        {ok, Data} ->
            case Send(Data) of
                ok -> send_file(Send, File);
                {error, Reason} -> {error, Reason}
            end;
        eof -> ok;
        {error, Reason} -> {error, Reason}
    end.
