%% SPDX-License-Identifier: Apache-2.0
%% @doc Runs Trac as CGI under yucan at `/', with two modules of examples/yaws-site, SCRIPT_NAME `/' and the script that Trac's own command generates.
%% The test reads and writes wiki and ticket pages. Run by `test/system/run trac'. Debian 12 does not have a package of Trac, so Trac is
%% installed from the Python Package Index into a virtual environment, in an overlay that is removed afterwards.
-module(yucan_trac_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([wiki_and_tickets/1]).

%% Trac 1.6 needs pkg_resources, which later versions of setuptools have dropped.
-define(PACKAGES, "'Trac==1.6' 'setuptools<70' 'jinja2'").

suite() -> [{timetrap, {minutes, 10}}].

all() -> [wiki_and_tickets].

init_per_suite(Config) ->
    {ok, _} = application:ensure_all_started(yucan),
    Config.

end_per_suite(_) ->
    ok = yucan_yaws_site:stop(),
    application:stop(yucan).

wiki_and_tickets(Config) ->
    %% The path must not contain spaces, because it becomes the interpreter in the script's first line, which the kernel parses.
    Venv = "/opt/trac-venv",
    ok = run("python3 -m venv " ++ Venv),
    ok = run(Venv ++ "/bin/pip install --no-input --disable-pip-version-check " ++ ?PACKAGES),
    ok = run(Venv ++ "/bin/trac-admin /opt/trac initenv Beamway sqlite:db/trac.db"),
    ok = run(Venv ++ "/bin/trac-admin /opt/trac permission add anonymous TRAC_ADMIN"),
    ok = run(Venv ++ "/bin/trac-admin /opt/trac deploy /opt/trac-deploy"),
    Script = "/opt/trac-deploy/cgi-bin/trac.cgi",
    ok = file:change_mode(Script, 8#755),
    Port = serve(Config, Script),
    Get = fun(Target) -> yucan_yaws_client:get(Port, "localhost", Target) end,
    {200, _, Wiki} = Get("/wiki"),
    contains(Wiki, [<<"Welcome to Trac">>, <<"href=\"/newticket\"">>]),
    {200, _, Page} = Get("/wiki/WikiFormatting"),
    contains(Page, [<<"Wiki Formatting">>]),
    {200, _, Absent} = Get("/wiki/NoSuchPage"),
    contains(Absent, [<<"does not exist">>]),
    {200, Types, _} = Get("/chrome/common/css/trac.css"),
    <<"text/css", _/binary>> = proplists:get_value(<<"content-type">>, Types),
    Ticket = post(Port, "/newticket", [{"field_summary", "It works under yucan"}, {"field_description", "indeed"}, {"submit", "Create"}]),
    {ok, <<"/ticket/1">>} = {ok, Ticket},
    {200, _, Shown} = Get("/ticket/1"),
    contains(Shown, [<<"It works under yucan">>, <<"indeed">>]),
    Edited = post(Port, "/wiki/NewPage", [{"action", "edit"}, {"version", "0"}, {"text", "A page with caf\303\251"}, {"save", "Submit changes"}]),
    <<"/wiki/NewPage">> = hd(binary:split(Edited, [<<"?">>, <<"#">>])),
    {200, _, New} = Get("/wiki/NewPage"),
    contains(New, [<<"A page with caf", 195, 169>>]),
    {200, _, Query} = Get("/query?status=!closed&summary=~works"),
    contains(Query, [<<"It works under yucan">>]),
    ok.

contains(Text, Words) ->
    [{Word, true} = {Word, binary:match(Text, Word) =/= nomatch} || Word <- Words],
    ok.

%% Posts a form with the token from the cookie, and returns the path of the page that it has
%% created.
post(Port, Target, Fields) ->
    {200, Headers, _} = yucan_yaws_client:get(Port, "localhost", "/newticket"),
    Cookies = [hd(binary:split(Value, <<";">>)) || {<<"set-cookie">>, Value} <- Headers],
    [Token] = [T || <<"trac_form_token=", T/binary>> <- Cookies],
    Body = uri_string:compose_query([{"__FORM_TOKEN", binary_to_list(Token)} | Fields], [{encoding, latin1}]),
    {Status, Answer, Page} =
        yucan_yaws_client:request(#{port => Port, host => "localhost", target => Target, method => "POST", body => Body,
                                    headers => [{"content-type", "application/x-www-form-urlencoded"}, {"cookie", lists:join("; ", Cookies)}]}),
    {true, _} = {Status =:= 302 orelse Status =:= 303, Page},
    Location = proplists:get_value(<<"location">>, Answer),
    {match, [Path]} = re:run(Location, "^(?:https?://[^/]*)?(/.*)$", [{capture, all_but_first, binary}]),
    Path.

serve(Config, Script) ->
    Example = test_support:file("examples/yaws-site/src"),
    {ok, Appmod} = file:read_file(filename:join(Example, "trac.erl")),
    {ok, Rewrite} = file:read_file(filename:join(Example, "rewrite_trac.erl")),
    Ebin = yucan_yaws_site:compile(Config, "trac", [{"trac.erl", replaced(Appmod, Script)}, {"rewrite_trac.erl", Rewrite}]),
    yucan_yaws_site:start_text(Config, ["ebin_dir = ", Ebin, "\n",
                                        yucan_yaws_site:server("localhost", "docroot = www\nappmods = </trac, trac>\narg_rewrite_mod = rewrite_trac\n")],
                               [{"www/robots.txt", ""}]).

%% Changes the module in the way that the example's README describes for the rewriting module:
%% SCRIPT_NAME becomes the root.
replaced(Appmod, Script) ->
    lists:foldl(fun({Old, New}, Text) -> string:replace(Text, Old, New) end, Appmod,
                [{"{\"SCRIPT_NAME\", ?APPMOD}", "{\"SCRIPT_NAME\", \"\"}"}, {"/trac/iriverter", "/opt/trac"},
                 {"/usr/share/trac/cgi-bin/trac.cgi", Script}]).

run(Command) ->
    Port = open_port({spawn_executable, "/bin/sh"}, [{args, ["-c", "exec 2>&1; " ++ Command]}, exit_status, binary]),
    case test_support:until_ended(Port, 300000) of
        {0, _} -> ok;
        {Status, Said} -> {error, Command, Status, iolist_to_binary(Said)}
    end.
