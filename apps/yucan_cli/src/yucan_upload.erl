%% SPDX-License-Identifier: Apache-2.0
%% @doc Accepts uploads for `yucan FOLDER --upload' from anyone who has the token: a single file with PUT, or several files in a browser's form.
-module(yucan_upload).

-export([has_token/2, file/2, form/2, html/1]).

-include_lib("kernel/include/file.hrl").

-type state() :: #{upload := none | binary(), hidden := boolean(), files := yucan_file:options(), file => binary(), _ => _}.
%% The state of {@link yucan_folder}. If it contains `file', only that file is served.

-define(MOST_UPLOADED, 16#100000000).

%% @doc Returns whether the request has the token that uploads require.
-spec has_token(yucan_req:req(), state()) -> boolean().
has_token(Req, State) ->
    case yucan_req:header(<<"authorization">>, Req, <<>>) of
        <<"Bearer ", Given/binary>> -> is_token(Given, State);
        _ -> false
    end.

is_token(_, #{upload := none}) -> false;
is_token(Given, #{upload := Token}) -> crypto:hash_equals(crypto:hash(sha256, Token), crypto:hash(sha256, Given)).

%% @doc Stores a file in a directory that is served. Until the file is complete, it has a temporary name.
-spec file(yucan_req:req(), state()) -> yucan_handler:response().
file(Req, #{upload := none}) -> no_upload(Req);
file(Req, State) ->
    case {has_token(Req, State), yucan_req:header(<<"content-range">>, Req), yucan_path:decode(yucan_req:path(Req))} of
        {false, _, _} -> yucan_error:page(401);
        %% A partial PUT would replace the entire file (RFC 9110, 14.5).
        {true, Range, _} when Range =/= undefined -> yucan_error:page(400, <<"A part of a file is not taken">>);
        {true, _, {ok, Path}} ->
            case binary:last(Path) =/= $/ andalso folder(filename:dirname(Path), Path, State) of
                {ok, Folder} -> store(Req, Folder, Path, State);
                _ -> yucan_error:page(403)
            end;
        _ -> yucan_error:page(403)
    end.

no_upload(Req) -> yucan_error:not_allowed([<<"GET">>, <<"HEAD">>, <<"OPTIONS">>], Req).

folder(Above, Path, #{files := #{root := Root} = Files, hidden := Hidden} = State) ->
    Allowed = not is_map_key(file, State) andalso (Hidden orelse binary:match(Path, <<"/.">>) =:= nomatch),
    case Allowed andalso yucan_symlink:info(Above, Root, maps:get(follow_symlinks, Files, inside)) of
        {ok, #file_info{type = directory}} -> {ok, yucan_path:join(Root, Above)};
        _ -> refused
    end.

store(Req, Folder, Path, #{files := #{root := Root} = Files}) ->
    case begin_file(Folder, filename:basename(Path)) of
        {Device, _, _} = File ->
            MayChange = fun() -> yucan_file:may_change(Req, Path, Root, Files) end,
            Finish = case yucan_req:header(<<"if-none-match">>, Req) of <<"*">> -> fun yucan_unfinished:finish_new/2; _ -> fun yucan_unfinished:finish/2 end,
            Answer = stored(try received(Req, Device, MayChange) after file:close(Device) end, File, Finish),
            ok = seen(Req),
            Answer;
        refused -> yucan_error:page(403)
    end.

%% Clears the cache, so that a client that uploads a file and then requests it does not get the previous file.
seen(Req) -> yucan_file_cache:forget(yucan_req:server(Req)).

%% Another upload of the same file may end before this one.
received(Req, Device, MayChange) ->
    case MayChange() andalso copy(Req, Device, 0) of
        {error, Reason} -> {error, Reason};
        ok -> case MayChange() of true -> ok; false -> {error, precondition} end;
        false -> {error, precondition}
    end.

begin_file(Folder, Name) ->
    Target = filename:join(Folder, Name),
    Part = filename:join(Folder, <<".", Name/binary, ".", (binary:encode_hex(crypto:strong_rand_bytes(4)))/binary, ".part">>),
    case not filelib:is_dir(Target) andalso yucan_unfinished:create(Part) of
        {ok, Device} -> {Device, Part, Target};
        _ -> refused
    end.

%% Another upload may have completed since the conditions were last checked.
stored(ok, {_, Part, Target}, Finish) ->
    Status = case file:read_link_info(Target, [raw]) of {ok, _} -> 204; _ -> 201 end,
    case Finish(Part, Target) of
        ok -> {Status, [], <<>>};
        {error, eexist} -> yucan_error:page(412);
        {error, _} -> yucan_error:page(403)
    end;
stored({error, Reason}, {_, Part, _}, _) ->
    ok = yucan_unfinished:delete(Part),
    case Reason of
        {file, _} -> yucan_error:page(507);
        precondition -> yucan_error:page(412);
        _ -> yucan_req:body_error(Reason)
    end.

copy(Req, Device, Size) ->
    case yucan_req:read(Req) of
        {error, Reason} -> {error, Reason};
        {_, Data} when Size + byte_size(Data) > ?MOST_UPLOADED -> {error, too_large};
        {More, Data} ->
            case {file:write(Device, Data), More} of
                {ok, more} -> copy(Req, Device, Size + byte_size(Data));
                {ok, ok} -> ok;
                {{error, Reason}, _} -> {error, {file, Reason}}
            end
    end.

%% @doc Handles a browser's form: first the token, unless the request itself has it, and then the
%% files.
-spec form(yucan_req:req(), state()) -> yucan_handler:response().
form(Req, #{upload := none}) -> no_upload(Req);
form(Req, State) ->
    Path = case yucan_path:decode(yucan_req:path(Req)) of {ok, Decoded} -> Decoded; {error, bad_path} -> <<"/.">> end,
    case binary:last(Path) =:= $/ andalso folder(Path, Path, State) of
        {ok, Folder} ->
            Form = #{folder => Folder, known => has_token(Req, State), state => State, now => none, stored => 0},
            Read = yucan_multipart:fold(fun take/2, Form, Req, #{part_bytes => ?MOST_UPLOADED, bytes => ?MOST_UPLOADED}),
            ok = seen(Req),
            formed(Read, Req);
        _ -> yucan_error:page(403)
    end.

take({part, #{name := <<"token">>}}, Form) -> {ok, Form#{now := {token, <<>>}}};
take({data, Data}, #{now := {token, Before}} = Form) when byte_size(Before) + byte_size(Data) =< 1024 -> {ok, Form#{now := {token, <<Before/binary, Data/binary>>}}};
take(part_end, #{now := {token, Given}, known := Known, state := State} = Form) -> {ok, Form#{now := none, known := Known orelse is_token(Given, State)}};
%% Ignores a file field that the user left empty, and fields that are not files.
take({part, #{filename := <<>>}}, Form) -> {ok, Form#{now := other}};
take({part, #{filename := _}}, #{known := false} = Form) -> {stop, Form#{now := 401}};
take({part, #{filename := Sent}}, #{folder := Folder} = Form) ->
    case yucan_multipart:file_name(Sent) of
        {ok, Name} -> begun(begin_file(Folder, Name), Form);
        error -> {stop, Form#{now := 403}}
    end;
take({part, _}, Form) -> {ok, Form#{now := other}};
take({data, Data}, #{now := {Device, _, _} = File} = Form) ->
    case file:write(Device, Data) of
        ok -> {ok, Form};
        {error, _} -> {stop, Form#{now := {507, File}}}
    end;
take(part_end, #{now := {Device, _, _} = File, stored := Stored} = Form) ->
    _ = file:close(Device),
    case stored(ok, File, fun yucan_unfinished:finish/2) of
        {Status, _, _} when Status < 300 -> {ok, Form#{now := none, stored := Stored + 1}};
        {Status, _, _} -> {stop, Form#{now := Status}}
    end;
take({data, _}, #{now := other} = Form) -> {ok, Form};
take({data, _}, Form) -> {stop, Form#{now := 401}};
take(part_end, Form) -> {ok, Form#{now := none}}.

begun(refused, Form) -> {stop, Form#{now := 403}};
begun(File, Form) -> {ok, Form#{now := File}}.

formed({ok, #{stored := Stored, known := Known}}, Req) ->
    case {Known, Stored, binary:match(yucan_req:header(<<"accept">>, Req, <<>>), <<"text/html">>)} of
        {false, _, _} -> yucan_error:page(401);
        {true, 0, _} -> yucan_error:page(400, <<"No file in this form">>);
        {true, _, nomatch} -> {201, [], <<>>};
        _ -> {303, [{<<"location">>, yucan_req:path(Req)}], <<>>}
    end;
formed({stop, #{now := Now}}, _) ->
    yucan_error:page(case Now of {Status, File} -> discard(File), Status; Status -> Status end);
formed({error, Reason, #{now := Now}}, _) ->
    discard(Now),
    yucan_multipart:refusal(Reason).

discard({Device, Part, _}) -> _ = file:close(Device), yucan_unfinished:delete(Part);
discard(_) -> ok.

%% @doc Returns the upload form that follows a listing. The token protects against forged requests from other sites, which do not know it.
-spec html(yucan_folder:wishes()) -> binary().
html(#{upload := _}) ->
    <<"<form method=\"post\" enctype=\"multipart/form-data\"><p><input type=\"password\" name=\"token\" placeholder=\"token\" required> "
      "<input type=\"file\" name=\"file\" multiple required> <button>Upload</button></p></form>">>;
html(_) -> <<>>.
