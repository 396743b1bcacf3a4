%% SPDX-License-Identifier: Apache-2.0
%% @doc Implements `yucan FOLDER': converts the command-line arguments to server options, and handles requests for a directory or a file. It adds
%% these features to {@link yucan_file}: headers, passwords, a page for the paths of a single-page application, and uploads with a token.
-module(yucan_folder).
-behaviour(yucan_handler).

-export([options/1, handle/2, line/1]).
-export_type([wishes/0]).

-include_lib("kernel/include/file.hrl").
-include_lib("public_key/include/public_key.hrl").

-type wishes() :: #{what := string(), port => inet:port_number(), ip => inet:ip_address(), listing => boolean(), log => string(), lines => boolean(),
                    hidden => boolean(), links => boolean(), cache => non_neg_integer(), headers => [{binary(), binary()}], hosts => [binary()], cors => boolean(), spa => boolean(),
                    auth => string(), https => boolean(), upload => binary(), _ => _}.
-type state() :: #{files := yucan_file:options(), file => binary(), cors := boolean(), spa := boolean(), users := none | [{binary(), binary()}],
                   upload := none | binary(), hidden := boolean(), hosts := any | [binary()]}.

-define(CERTIFICATE_DAYS, 365).

%% @doc Returns the options of the server, or lines that say what is wrong.
-spec options(wishes()) -> {ok, yucan_config:options()} | {error, [unicode:chardata()]}.
options(#{what := What} = Wishes) ->
    try
        {Root, File} = case filelib:is_dir(What) of
            true -> {What, #{}};
            false -> {filename:dirname(filename:absname(What)), #{file => unicode:characters_to_binary(filename:basename(What))}}
        end,
        Files = maps:merge(#{root => Root, listing => maps:get(listing, Wishes, true), dot_files => maps:get(hidden, Wishes, false), listing_end => yucan_upload:html(Wishes),
                             headers => [{<<"x-content-type-options">>, <<"nosniff">>} | maps:get(headers, Wishes, [])]},
                           maps:from_list([{follow_symlinks, always} || maps:get(links, Wishes, false)] ++ [{expires, Seconds} || #{cache := Seconds} <- [Wishes]])),
        State = File#{files => yucan_file:init(Files), cors => maps:get(cors, Wishes, false), spa => maps:get(spa, Wishes, false), users => users(Wishes),
                      upload => maps:get(upload, Wishes, none), hidden => maps:get(hidden, Wishes, false),
                      hosts => yucan_req:own_names(maps:get(ip, Wishes, {127, 0, 0, 1}), maps:get(hosts, Wishes, []))},
        Listen = maps:merge(#{port => 8080}, maps:with([port, ip], Wishes)),
        {ok, #{listen => [case maps:get(https, Wishes, false) of true -> Listen#{tls => certificate()}; false -> Listen end],
               handler => {?MODULE, State}, access_log => log(Wishes)}}
    catch throw:{cannot, Text} -> {error, [Text]}
    end.

log(#{log := File}) -> File;
log(#{lines := true}) -> {function, fun ?MODULE:line/1};
log(_) -> none.

%% @doc Prints a line for a request on the terminal. All text from the client is printable, because other requests were rejected.
-spec line(yucan_log:entry()) -> ok.
line(#{time := Began, peer := Peer, method := Method, target := Target, status := Status, bytes := Bytes, us := Us}) ->
    {_, {H, M, S}} = calendar:system_time_to_local_time(Began div 1000000, second),
    io:format(standard_error, "~2..0b:~2..0b:~2..0b ~ts ~b ~ts ~ts ~b bytes ~.1f ms~n",
              [H, M, S, case Peer of {local, _} -> "-"; {Ip, _} -> inet:ntoa(Ip) end, Status, Method, Target, Bytes, Us / 1000]).

%% ---- secrets and certificates

%% Reads NAME:PASSWORD lines from a file, which other users must not be able to read.
users(#{auth := File}) ->
    case {file:read_file_info(File, [raw]), file:read_file(File)} of
        {{ok, #file_info{mode = Mode}}, {ok, Text}} ->
            Mode band 8#077 =:= 0 orelse cannot("--auth ~ts: others can read this file; chmod 600 it", [File]),
            case [{Name, digest(Password)} || Line <- binary:split(Text, <<"\n">>, [global]), [Name, Password] <- [binary:split(string:trim(Line), <<":">>)], Name =/= <<>>, Password =/= <<>>] of
                [] -> cannot("--auth ~ts: no line NAME:PASSWORD", [File]);
                Users -> Users
            end;
        {_, {error, Reason}} -> cannot("--auth ~ts: ~ts", [File, file:format_error(Reason)])
    end;
users(_) -> none.

digest(Text) -> crypto:hash(sha256, Text).

-spec cannot(io:format(), [term()]) -> no_return().
cannot(Format, Arguments) -> throw({cannot, io_lib:format(Format, Arguments)}).

%% All servers of this user share a certificate, so that a browser asks the user about it only once.
%% It is replaced before it expires.
certificate() ->
    os:getenv("HOME") =:= false andalso os:getenv("XDG_DATA_HOME") =:= false
        andalso cannot("--https: no folder to keep the certificate in; set HOME or XDG_DATA_HOME", []),
    Folder = filename:join(filename:basedir(user_data, "yucan"), "https"),
    File = filename:join(Folder, "localhost.pem"),
    case filelib:last_modified(File) of
        {{_, _, _}, {_, _, _}} = Time ->
            {Days, _} = calendar:time_difference(Time, calendar:local_time()),
            Days < ?CERTIFICATE_DAYS - 30 andalso not may_sign(File) orelse make_certificate(Folder, File);
        0 -> make_certificate(Folder, File)
    end,
    #{certfile => File, keyfile => File}.

%% Certificates of older releases could sign other certificates, so a user who has imported one
%% trusts the key in this file for all sites.
may_sign(File) ->
    {ok, Pem} = file:read_file(File),
    [] =/= [yes || {'Certificate', Der, _} <- public_key:pem_decode(Pem), yucan_certificate:may_sign(Der)].

make_certificate(Folder, File) ->
    {ok, Host} = inet:gethostname(),
    Names = [{dNSName, Name} || Name <- lists:usort(["localhost", Host])] ++ [{iPAddress, <<127, 0, 0, 1>>}, {iPAddress, <<1:128>>}],
    Key = yucan_certificate:new_key(),
    Certificate = yucan_certificate:self_signed(unicode:characters_to_binary(["yucan on ", Host]), ?CERTIFICATE_DAYS, [
        yucan_certificate:names(Names), #'Extension'{extnID = ?'id-ce-keyUsage', critical = true, extnValue = [digitalSignature]},
        #'Extension'{extnID = ?'id-ce-basicConstraints', critical = true, extnValue = #'BasicConstraints'{cA = false}}], Key),
    ok =:= filelib:ensure_dir(File) andalso ok =:= file:change_mode(Folder, 8#700)
        andalso ok =:= yucan_certificate:write(File, [{'Certificate', Certificate, not_encrypted}, yucan_certificate:entry(Key)])
        orelse cannot("--https: cannot write ~ts", [File]).

%% ---- requests

%% @private
-spec handle(yucan_req:req(), state()) -> yucan_handler:response().
handle(Req, #{hosts := Hosts} = State) ->
    case yucan_req:has_own_name(Req, Hosts) of
        true -> answer(Req, State);
        false -> yucan_error:page(403, ["yucan answers here to localhost only, not to ", yucan_req:host(Req), "; start it with --host ", yucan_req:host(Req), " if this is its name"])
    end.

answer(Req, #{cors := Cors, files := #{headers := Wanted}} = State) ->
    Response = case {Cors, yucan_req:method(Req), is_known(Req, State)} of
        %% A preflight request contains no password.
        {true, <<"OPTIONS">>, _} -> {204, [{<<"access-control-allow-methods">>, <<"GET, HEAD, OPTIONS">>}, {<<"access-control-allow-headers">>, <<"*, Authorization">>}], <<>>};
        {_, _, false} ->
            yucan_error:page_with(401, [{<<"www-authenticate">>, <<"Basic realm=\"yucan\", charset=\"UTF-8\"">>}]);
        {_, <<"PUT">>, true} -> yucan_upload:file(Req, State);
        {_, <<"POST">>, true} -> yucan_upload:form(Req, State);
        _ -> page(Req, State)
    end,
    Any = [{<<"access-control-allow-origin">>, <<"*">>} || Cors, not lists:keymember(<<"access-control-allow-origin">>, 1, Wanted)],
    with_headers(Any ++ Wanted, Response).

%% Adds the headers to a response, unless it already has them, as responses for files and listings do.
with_headers(Wanted, {Status, Headers, Body}) -> {Status, Headers ++ [Header || {Name, _} = Header <- Wanted, not lists:keymember(Name, 1, Headers)], Body};
with_headers(_, Other) -> Other.

%% Passwords are compared by their digests, so that the time does not reveal how much of a password was correct. Uploads have a token instead.
is_known(_, #{users := none}) -> true;
is_known(Req, #{users := Users} = State) ->
    case lists:member(yucan_req:method(Req), [<<"PUT">>, <<"POST">>]) andalso yucan_upload:has_token(Req, State) of
        true -> true;
        false ->
            case yucan_yaws_auth:basic(yucan_req:header(<<"authorization">>, Req, <<>>)) of
                {ok, Name, Password} -> lists:member(true, [crypto:hash_equals(Digest, digest(Password)) || {Known, Digest} <- Users, Known =:= Name]);
                error -> false
            end
    end.

%% A single file is served both at `/' and under its own name.
page(Req, #{file := Name, files := #{root := Root} = Files}) ->
    case yucan_path:decode(yucan_req:path(Req)) of
        {ok, Path} when Path =:= <<"/">>; Path =:= <<"/", Name/binary>> -> yucan_file:serve(Req, <<Root/binary, "/", Name/binary>>, Files);
        _ -> yucan_error:page(404)
    end;
page(Req, #{files := Files, spa := true}) ->
    case yucan_file:handle(Req, Files) of
        {Status, _, _} = Missing when Status =:= 404; Status =:= 403 ->
            %% A path without an extension belongs to the single-page application, and is not a missing file.
            case filename:extension(yucan_req:path(Req)) =:= <<>> andalso yucan_file:handle(yucan_req:with_path(<<"/index.html">>, none, Req), Files) of
                {200, _, _} = Application -> Application;
                {304, _, _} = Same -> Same;
                _ -> Missing
            end;
        Response -> Response
    end;
page(Req, #{files := Files}) -> yucan_file:handle(Req, Files).
