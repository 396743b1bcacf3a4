%% SPDX-License-Identifier: Apache-2.0
%% @doc Answers a request by a script: as a program of its own (CGI), or through a FastCGI application such as php-fpm.
-module(yucan_cgi).

-export([respond/2]).
-export_type([spec/0]).

-type spec() :: #{run := {program, file:filename_all()} | {interpreter, file:filename()} | {fcgi, yucan_fcgi_pool:address()},
                  script := file:filename_all(),
                  script_name := iodata(),
                  path_info := iodata(),
                  docroot := file:filename() | undefined,
                  variables => [{iodata(), iodata()}],
                  user => iodata(),
                  timeout_ms => pos_integer(),
                  max => pos_integer(),
                  body_bytes => non_neg_integer(),
                  body => binary() | {partial, binary()}}.
%% `program': the script itself is run; `interpreter': that program, and the script is its argument. `variables' win over the standard ones.
%% `max': how many scripts may run at once. `body_bytes': the largest body that is taken.
%% `body': what was read of it before.

-define(TIMEOUT_MS, 60000).
-define(MAX, 64).
-define(BODY_BYTES, 134217728).

%% @doc Runs the script with the request and answers with what it says.
-spec respond(yucan_req:req(), spec()) -> yucan_handler:response().
respond(Req, #{run := Run} = Spec) ->
    case is_safe(Run) of
        true ->
            case take(Req, maps:get(body_bytes, Spec, ?BODY_BYTES), Spec) of
                {ok, Body} -> try run(Req, Spec, Body) after yucan_spool:delete(Body) end;
                {error, {spool, Reason}} -> failed({spool, Reason}, Spec);
                {error, Reason} -> yucan_req:body_error(Reason)
            end;
        false ->
            failed({not_a_program, element(2, Run)}, Spec)
    end.

take(Req, Max, #{body := Before}) -> yucan_spool:take(Req, Max, Before);
take(Req, Max, _) -> yucan_spool:take(Req, Max).

%% A name goes to the shell as one word; what looks like a command is a mistake of whoever wrote it.
is_safe({fcgi, _}) -> true;
is_safe({_, Program}) -> re:run(Program, "[;|&$`<>()*?!#~\\\\'\"\\n\\r\\0]", [{capture, none}]) =:= nomatch.

run(Req, #{script := Name} = Given, Body) ->
    Script = bytes(Name),
    Spec = Given#{script := Script},
    Variables = yucan_cgi_env:variables(facts(Req, Spec, Body), maps:get(variables, Spec, [])),
    case open(Spec, Variables, Body) of
        {ok, Source} ->
            yucan_gateway:respond(Req, Source, #{silence_ms => maps:get(timeout_ms, Spec, ?TIMEOUT_MS), name => Script});
        {error, Reason} -> failed(Reason, Spec)
    end.

failed(busy, _) -> yucan_error:page(503);
failed(Reason, #{script := Script} = Spec) ->
    yucan_events:warning("~ts: ~ts", [Script, why(Reason, Spec)]),
    yucan_error:page(case Reason of {spool, _} -> 500; _ -> 502 end).

why({connect, Reason}, #{run := {fcgi, Address}}) ->
    io_lib:format("cannot connect to the FastCGI application at ~ts: ~ts", [shown(Address), inet:format_error(Reason)]);
why({start, Reason}, _) -> io_lib:format("cannot start: ~0tp", [Reason]);
why({spool, Reason}, _) -> io_lib:format("cannot store the request's body (TMPDIR?): ~ts", [file:format_error(Reason)]);
why(Reason, _) -> io_lib:format("~0tp", [Reason]).

shown({local, Path}) -> "unix:" ++ Path;
shown({Host, Port}) when is_tuple(Host) -> inet:ntoa(Host) ++ ":" ++ integer_to_list(Port);
shown({Host, Port}) -> Host ++ ":" ++ integer_to_list(Port).

open(#{run := {fcgi, Address}, script := Script}, Variables, Body) ->
    Log = fun(Text) -> yucan_events:warning("~ts says: ~ts", [Script, printable(Text)]) end,
    with_module(yucan_fcgi_client, yucan_fcgi_client:open(Address, Variables, Body, Log));
open(#{run := Run, script := Script} = Spec, Variables, Body) ->
    {Program, Arguments} = case Run of
                               {program, File} -> {File, []};
                               {interpreter, File} -> {find(File), [Script]}
                           end,
    case yucan_spool:on_disk(Body) of
        {ok, OnDisk} ->
            Script1 = #{program => Program, arguments => Arguments, folder => filename:dirname(Script), variables => Variables,
                        body => OnDisk, max => maps:get(max, Spec, ?MAX)},
            opened(yucan_cgi_run:open(Script1), OnDisk);
        {error, Reason} -> {error, Reason}
    end.

opened({error, Reason}, Body) ->
    ok = yucan_spool:delete(Body),
    {error, Reason};
opened(Opened, _) -> with_module(yucan_cgi_run, Opened).

with_module(Module, {ok, Source}) -> {ok, {Module, Source}};
with_module(_, {error, Reason}) -> {error, Reason}.

%% A name as the file system has it. Strings are characters, or bytes as Yaws gives them.
bytes(Name) when is_binary(Name) -> Name;
bytes(Name) ->
    try unicode:characters_to_list(list_to_binary(Name)) of
        Text when is_list(Text) -> list_to_binary(Name);
        _ -> unicode:characters_to_binary(Name)
    catch
        error:badarg -> unicode:characters_to_binary(Name)
    end.

find(Name) ->
    case os:find_executable(Name) of
        false -> Name;
        Path -> Path
    end.

printable(Text) -> string:trim([C || C <- binary_to_list(Text), C >= $\s orelse C =:= $\n]).

facts(Req, Spec, Body) ->
    {Remote, RemotePort} = yucan_req:peer(Req),
    {Local, _} = yucan_req:local(Req),
    Facts = #{method => yucan_req:method(Req), uri => yucan_req:target(Req), query => yucan_req:query(Req),
              version => yucan_req:version(Req), scheme => yucan_req:scheme(Req), headers => yucan_req:headers(Req),
              server_name => yucan_req:host(Req), server_port => yucan_req:port(Req), server_addr => ip(Local),
              remote_addr => ip(Remote), remote_port => port_of(RemotePort), script_name => maps:get(script_name, Spec),
              script_filename => maps:get(script, Spec), path_info => maps:get(path_info, Spec),
              document_root => case maps:get(docroot, Spec) of undefined -> ""; Root -> bytes(Root) end,
              content_length => yucan_spool:size(Body)},
    case Spec of
        #{user := User} -> Facts#{user => User};
        _ -> Facts
    end.

%% A client on a unix socket has no address.
ip(Address) when tuple_size(Address) =:= 4; tuple_size(Address) =:= 8 -> Address;
ip(_) -> undefined.

port_of(Port) when is_integer(Port) -> Port;
port_of(_) -> 0.
