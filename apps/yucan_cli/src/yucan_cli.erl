%% SPDX-License-Identifier: Apache-2.0
%% @doc The `yucan' command, which bin/yucan starts. It serves a directory or the sites in a configuration file until it is told to stop.
%%
%% The exit status is 0 for a normal exit, 1 if the server cannot start, and 2 for a usage error. The command writes what it serves, and at which
%% addresses, to standard output, and everything else to standard error.
-module(yucan_cli).

-export([main/0]).

-define(DRAIN_MS, 30000).
%% The file in a daemon's directory that contains the reason why the daemon could not start.
%% bin/yucan removes it before it starts a new daemon.
-define(REFUSED, "refused").

-type words() :: #{watch => [string()], what => string(), _ => _}.
%% These options are used together with those of yucan_folder.

%% @doc The entry point. The command-line arguments follow `-extra'.
-spec main() -> ok | no_return().
main() ->
    %% This must happen before any other module is loaded, because the directory that is served may contain modules.
    _ = code:del_path("."),
    enter(os:getenv("YUCAN_FOLDER")),
    case init:get_plain_arguments() of
        [Word] when Word =:= "--reload"; Word =:= "--stop"; Word =:= "--status" -> ask(Word);
        ["--await"] -> await(erlang:monotonic_time(millisecond) + 20000);
        Words ->
            case lists:all(fun is_list/1, Words) andalso parse(Words, #{}) of
                false -> refuse(2, ["an argument is not valid UTF-8; see: yucan --help"]);
                {ok, Parsed} -> serve(Parsed);
                help -> io:put_chars(usage()), halt(0);
                version -> io:put_chars([version(), $\n]), halt(0);
                {error, Text} -> refuse(2, [[Text, "; see: yucan --help"]])
            end
    end.

enter(false) -> ok;
enter(Folder) ->
    case file:set_cwd(Folder) of
        ok -> ok;
        {error, Reason} -> refuse(1, [io_lib:format("cannot enter ~ts: ~ts", [Folder, file:format_error(Reason)])])
    end.

-spec usage() -> string().
usage() ->
    "usage: yucan [OPTION]... [FOLDER | FILE | CONFIGURATION]\n"
    "       yucan --daemon NAME [OPTION]... WHAT              the same, in background\n"
    "       yucan --attach NAME | --reload NAME | --status NAME | --stop NAME\n"
    "  -p, --port N        port (8080; 0: any that is free)\n"
    "  --ip ADDRESS        address, or localhost (127.0.0.1: this host only)\n"
    "  --host NAME         also answer to this name (again for others)\n"
    "  --https             TLS with a certificate of your own, made at the first use\n"
    "  --auth FILE         ask for a password; FILE has lines NAME:PASSWORD, mode 600\n"
    "  --upload            take files by PUT with a token (or YUCAN_UPLOAD_TOKEN)\n"
    "  --cors              pages of other sites may read what is served\n"
    "  --spa               index.html for paths that are no file and have no suffix\n"
    "  --header 'N: V'     a header in all answers (again for others)\n"
    "  --cache SECONDS     browsers keep files so long\n"
    "  --hidden            also names that begin with a dot\n"
    "  --follow-symlinks   also links that lead out of the folder\n"
    "  --no-listing        no pages for folders without index.html\n"
    "  --log FILE          access log in combined format\n"
    "  --quiet             no lines for requests on a terminal\n"
    "  --watch FOLDER      compile and load what changes there (again for others)\n"
    "  --help, --version   Without a word: this folder. A CONFIGURATION ends in .conf\n"
    "                      or has a line <server NAME>. It takes --quiet and --watch.\n"
    "exit status: 0 ended as asked, 1 cannot serve, 2 usage error\n".

version() ->
    _ = application:load(yucan),
    {ok, Version} = application:get_key(yucan, vsn),
    ["yucan ", Version].

-spec parse([string()], words()) -> {ok, words()} | help | version | {error, unicode:chardata()}.
parse(["--help" | _], _) -> help;
parse(["-h" | _], _) -> help;
parse(["--version" | _], _) -> version;
parse([Port, Text | Rest], Words) when Port =:= "--port"; Port =:= "-p" ->
    case string:to_integer(Text) of
        {Number, []} when Number >= 0, Number =< 65535 -> parse(Rest, Words#{port => Number});
        _ -> {error, [Port, " ", Text, ": 0 to 65535 is expected"]}
    end;
parse(["--ip", "localhost" | Rest], Words) -> parse(Rest, Words#{ip => {127, 0, 0, 1}});
parse(["--ip", Text | Rest], Words) ->
    case inet:parse_address(string:trim(Text, both, "[]")) of
        {ok, Ip} -> parse(Rest, Words#{ip => Ip});
        {error, _} -> {error, ["--ip ", Text, ": an address is expected"]}
    end;
parse(["--host", Text | Rest], Words) ->
    case yucan_head:authority(unicode:characters_to_binary(Text)) of
        {ok, Name, undefined} when Name =/= <<>> -> parse(Rest, Words#{hosts => [Name | maps:get(hosts, Words, [])]});
        _ -> {error, ["--host ", Text, ": the name of a host, without a port, is expected"]}
    end;
parse(["--header", Text | Rest], Words) ->
    case binary:split(unicode:characters_to_binary(Text), <<":">>) of
        [Name, Value] ->
            case yucan_header:is_token(Name) andalso re:run(Value, "^[\\t\\x20-\\x7e]*$", [{capture, none}, dollar_endonly]) =:= match of
                true -> parse(Rest, Words#{headers => maps:get(headers, Words, []) ++ [{yucan_header:lower(Name), yucan_header:trim(Value)}]});
                false -> {error, io_lib:format("--header ~0tp: a name and printable characters are expected", [Text])}
            end;
        _ -> {error, ["--header ", Text, ": NAME: VALUE is expected"]}
    end;
parse(["--cache", Text | Rest], Words) ->
    case string:to_integer(Text) of
        {Seconds, []} when Seconds >= 0 -> parse(Rest, Words#{cache => Seconds});
        _ -> {error, ["--cache ", Text, ": a number of seconds is expected"]}
    end;
parse(["--no-listing" | Rest], Words) -> parse(Rest, Words#{listing => false});
parse(["--hidden" | Rest], Words) -> parse(Rest, Words#{hidden => true});
parse(["--follow-symlinks" | Rest], Words) -> parse(Rest, Words#{links => true});
parse(["--cors" | Rest], Words) -> parse(Rest, Words#{cors => true});
parse(["--spa" | Rest], Words) -> parse(Rest, Words#{spa => true});
parse(["--https" | Rest], Words) -> parse(Rest, Words#{https => true});
parse(["--quiet" | Rest], Words) -> parse(Rest, Words#{quiet => true});
parse(["--upload" | Rest], Words) ->
    %% An empty token is ignored, because anybody could send it.
    Token = case os:getenv("YUCAN_UPLOAD_TOKEN", "") of
        "" -> base64:encode(crypto:strong_rand_bytes(15));
        Given -> unicode:characters_to_binary(Given)
    end,
    parse(Rest, Words#{upload => Token});
parse(["--auth", File | Rest], Words) -> parse(Rest, Words#{auth => File});
parse(["--log", File | Rest], Words) -> parse(Rest, Words#{log => File});
parse(["--watch", Folder | Rest], Words) -> parse(Rest, Words#{watch => [Folder | maps:get(watch, Words, [])]});
parse(["-" ++ _ = Word | _], _) -> {error, ["unknown option, or one without its value: ", Word]};
parse([What | Rest], Words) when not is_map_key(what, Words) -> parse(Rest, Words#{what => What});
parse([Extra | _], _) -> {error, ["one folder or file is expected, not also ", Extra]};
parse([], Words) -> {ok, maps:merge(#{what => "."}, Words)}.

%% ---- serving

serve(Words) ->
    %% If the server cannot start, a single line gives the reason.
    _ = logger:set_module_level(supervisor, none),
    log_to_standard_error(),
    Missing = [Folder || Folder <- maps:get(watch, Words, []), not filelib:is_dir(Folder)],
    Missing =:= [] orelse refuse(1, [io_lib:format("--watch ~ts: no such folder", [Folder]) || Folder <- Missing]),
    case options(Words) of
        {ok, Options} ->
            case yucan:start(Options) of
                {ok, _} -> served(Words);
                {error, Reason} -> fail(Reason)
            end;
        {error, Lines} -> refuse(1, Lines)
    end.

log_to_standard_error() ->
    {ok, Handler} = logger:get_handler_config(default),
    Kept = maps:with([level, filters, filter_default, formatter], Handler),
    ok = logger:remove_handler(default),
    ok = logger:add_handler(default, logger_std_h, Kept#{config => #{type => standard_error}}).

-spec fail(term()) -> no_return().
fail({bad_options, Text}) -> fail(Text);
fail(Text) when is_binary(Text) -> refuse(1, [Text]);
fail(Reason) -> refuse(1, [io_lib:format("~0tp", [Reason])]).

%% The standard error of a daemon is a log file, so the command that started it reads the reason from a file (await/1).
-spec refuse(1 | 2, [unicode:chardata()]) -> no_return().
refuse(Status, Lines) ->
    _ = [complain("~ts", [Line]) || Line <- Lines],
    case os:getenv("YUCAN_CONTROL") of
        false -> ok;
        Folder ->
            Text = unicode:characters_to_binary([integer_to_list(Status), $\n | lists:join($\n, [unicode:characters_to_list(Line) || Line <- Lines])]),
            New = filename:join(Folder, ?REFUSED ".new"),
            _ = file:write_file(New, Text) =:= ok andalso file:rename(New, filename:join(Folder, ?REFUSED)),
            ok
    end,
    halt(Status).

options(#{what := What} = Words) ->
    case {filelib:is_dir(What), filelib:is_regular(What) andalso is_configuration(What)} of
        {false, false} ->
            case filelib:is_regular(What) of
                true -> yucan_folder:options(Words#{lines => lines(Words)});
                false -> {error, [io_lib:format("~ts: ~ts", [What, why_not(What)])]}
            end;
        {false, true} -> yucan_yaws_config:load(What);
        {true, _} -> yucan_folder:options(Words#{lines => lines(Words)})
    end.

why_not(What) ->
    case file:read_file_info(What) of
        {ok, _} -> "a folder or a regular file is expected, not a device, FIFO or socket";
        {error, enoent} -> "no such folder or file";
        {error, Reason} -> file:format_error(Reason)
    end.

-define(LOOK_BYTES, 262144).

is_configuration(File) ->
    filename:extension(File) =:= ".conf" orelse
        case file:open(File, [read, raw, binary]) of
            {ok, Device} ->
                Start = file:read(Device, ?LOOK_BYTES),
                _ = file:close(Device),
                case Start of
                    {ok, Text} -> re:run(Text, "^[ \\t]*<server[ \\t]", [{capture, none}, multiline]) =:= match;
                    _ -> false
                end;
            {error, _} -> false
        end.

%% If standard error is a terminal, a line is printed for each request.
lines(#{quiet := true}) -> false;
lines(_) -> element(1, io:columns(standard_error)) =:= ok.

served(#{what := What} = Words) ->
    watch(Words),
    Urls = urls(yucan:info(name())),
    _ = [io:format("yucan: serving ~ts at ~ts~n", [What, Url]) || Url <- Urls],
    _ = [io:format("yucan: upload by: curl -T FILE -H 'Authorization: Bearer ~ts' ~ts~n", [Token, Url]) || #{upload := Token} <- [Words], Url <- lists:sublist(Urls, 1)],
    control(os:getenv("YUCAN_CONTROL"), Words),
    ok.

name() ->
    [Name | _] = [Id || {Id, _, _, _} <- supervisor:which_children(yucan_sup)],
    Name.

%% Returns the addresses that a browser can open. If the server listens on all addresses of the host, each of them is listed.
urls(#{listen := Addresses, schemes := Schemes}) ->
    [url(Scheme, Address) || {Scheme, Any} <- lists:zip(Schemes, Addresses), Address <- addresses(Any)].

addresses({{0, 0, 0, 0}, Port}) -> [{Ip, Port} || Ip <- [{127, 0, 0, 1} | own(4)]];
addresses({{0, 0, 0, 0, 0, 0, 0, 0}, Port}) -> [{Ip, Port} || Ip <- [{0, 0, 0, 0, 0, 0, 0, 1} | own(8)]];
addresses(Address) -> [Address].

own(Size) ->
    {ok, Interfaces} = inet:getifaddrs(),
    lists:usort([Ip || {_, Facts} <- Interfaces, Flags <- [proplists:get_value(flags, Facts, [])], lists:member(up, Flags), not lists:member(loopback, Flags),
                       {addr, Ip} <- Facts, tuple_size(Ip) =:= Size, element(1, Ip) =/= 16#fe80]).

url(_, {local, Path}) -> Path;
url(Scheme, {Ip, Port}) when tuple_size(Ip) =:= 8 -> io_lib:format("~ts://[~ts]:~b/", [Scheme, inet:ntoa(Ip), Port]);
url(Scheme, {Ip, Port}) -> io_lib:format("~ts://~ts:~b/", [Scheme, inet:ntoa(Ip), Port]).

watch(#{watch := Folders}) ->
    {ok, Pid} = yucan_watch:start_link(Folders),
    unlink(Pid),
    ok;
watch(_) -> ok.

control(false, _) -> ok;
control(Folder, Words) ->
    case yucan_control:start_link(Folder, fun(Word) -> command(Word, Words) end) of
        {ok, Pid} -> unlink(Pid), ok;
        {error, Reason} -> fail(Reason)
    end.

command(<<"reload">>, Words) ->
    case options(Words) of
        {ok, Options} ->
            case yucan:reload(name(), maps:remove(name, Options)) of
                ok -> <<"ok reloaded">>;
                {error, Text} -> [<<"error ">>, one_line(Text)]
            end;
        {error, Lines} -> [<<"error ">>, one_line(lists:join("; ", Lines))]
    end;
command(<<"status">>, #{what := What}) ->
    #{metrics := #{open_connections := Open, requests := Requests}} = Info = yucan:info(name()),
    one_line(io_lib:format("ok serving ~ts at ~ts, ~b connections, ~b requests so far", [What, lists:join(" ", urls(Info)), Open, Requests]));
command(<<"stop">>, _) ->
    _ = spawn(fun() ->
        _ = yucan:drain(name(), ?DRAIN_MS),
        init:stop()
    end),
    <<"ok stopping">>;
command(Other, _) -> [<<"error unknown command ">>, Other].

one_line(Text) -> string:replace(unicode:characters_to_binary(Text), "\n", " ", all).

%% ---- commands to a daemon

-spec ask(string()) -> no_return().
ask("--" ++ Word) ->
    case yucan_control:ask(os:getenv("YUCAN_CONTROL"), Word) of
        {ok, <<"ok ", Text/binary>>} -> io:format("yucan: ~ts~n", [Text]), halt(0);
        {ok, <<"error ", Text/binary>>} -> complain("~ts", [Text]), halt(1);
        {error, Reason} when Reason =:= enoent; Reason =:= econnrefused -> complain("no daemon of this name runs", []), halt(1);
        Other -> complain("~0tp", [Other]), halt(1)
    end.

%% Waits until a new daemon accepts requests, or until the deadline.
-spec await(integer()) -> no_return().
await(Deadline) ->
    case yucan_control:ask(os:getenv("YUCAN_CONTROL"), "status") of
        {ok, <<"ok ", Text/binary>>} -> io:format("yucan: ~ts~n", [Text]), halt(0);
        _ ->
            Folder = os:getenv("YUCAN_CONTROL"),
            case {file:read_file(filename:join(Folder, ?REFUSED)), erlang:monotonic_time(millisecond) > Deadline} of
                {{ok, <<Status, $\n, Text/binary>>}, _} ->
                    _ = [complain("~ts", [Line]) || Line <- binary:split(Text, <<"\n">>, [global])],
                    halt(Status - $0);
                {_, true} ->
                    complain("it does not serve after 20 s; its words are in ~ts/erlang.log.*", [Folder]),
                    halt(1);
                _ -> receive after 100 -> await(Deadline) end
            end
    end.

complain(Format, Arguments) -> io:format(standard_error, "yucan: " ++ Format ++ "~n", Arguments).
