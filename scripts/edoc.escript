#!/usr/bin/env escript
%% -*- erlang -*-
%%! -noinput +A 1
%% SPDX-License-Identifier: Apache-2.0
%%
%% Generates the edoc pages of all public functions and types: DIR/index.html, and a directory for each application.
%% usage: edoc.escript DIR
%% Exit code: 0 done, 1 a comment is not valid edoc.
-mode(compile).

main([Out]) ->
    {ok, Terms} = file:consult("apps.config"),
    Made = [made(App, Out) || App <- proplists:get_value(applications, Terms)],
    ok = file:write_file(filename:join(Out, "index.html"), index(Made)),
    io:format("edoc: ~b applications: ~ts/index.html~n", [length(Made), Out]);
main(_) ->
    io:put_chars(standard_error, "usage: edoc.escript DIR\n"),
    halt(2).

made(App, Out) ->
    Name = list_to_atom(filename:basename(App)),
    Dir = filename:join(Out, filename:basename(App)),
    {ok, [{application, Name, Properties}]} = file:consult(filename:join([App, "src", filename:basename(App) ++ ".app.src"])),
    Includes = [filename:join(App, "include"), filename:join(App, "src"), "apps"],
    try edoc:application(Name, App, [{dir, Dir}, {preprocess, true}, {includes, Includes}, {sort_functions, false},
                                     {title, "Beamway: " ++ atom_to_list(Name)}]) of
        ok -> {Name, proplists:get_value(description, Properties)}
    catch
        exit:Reason -> io:format(standard_error, "edoc: ~s: ~p~n", [Name, Reason]), halt(1)
    end.

index(Made) ->
    ["<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>Beamway</title>\n<h1>Beamway: the functions</h1>\n<ul>\n",
     [io_lib:format("<li><a href=\"~s/index.html\">~s</a>: ~ts</li>\n", [Name, Name, Description]) || {Name, Description} <- Made],
     "</ul>\n</html>\n"].
