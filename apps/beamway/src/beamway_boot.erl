%% SPDX-License-Identifier: Apache-2.0
%% @doc Creates boot scripts for nodes in embedded mode whose release does not name the application `beamway'.
%%
%% In embedded mode a node loads only the modules named in its boot script, so with OTP's own script the carrier is missing when the distribution
%% starts: `Protocol 'beamway': not supported'. This module copies a boot script and adds the carrier's modules to the copy:
%%
%% ```
%% erl -noinput -pa apps/beamway/ebin -s beamway_boot main -extra /etc/my_node
%% erl -mode embedded -boot /etc/my_node -proto_dist beamway -sname my_node
%% '''
%% A second argument names the boot script to copy; the default is `start', which is also the default of `erl'. The copy only works with the same
%% OTP release, and with Beamway in the same directory unless `-pa' names a different one.
-module(beamway_boot).

-export([main/0, make/2]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

%% @doc The command-line entry point. Takes both names, without `.boot', from the arguments after `-extra', and halts the VM.
-spec main() -> no_return().
main() ->
    case init:get_plain_arguments() of
        [Target] -> done(make("start", Target));
        [Target, Base] -> done(make(Base, Target));
        Words -> done({error, io_lib:format("beamway_boot: ~b words after -extra; expected -extra TARGET [BASE], both without .boot", [length(Words)])})
    end.

-spec done(ok | {error, Text :: iodata()}) -> no_return().
done(ok) ->
    halt(0);
done({error, Text}) ->
    io:put_chars(standard_error, [Text, $\n]),
    halt(1).

%% @doc Copies the boot script `Base.boot' to `Target.boot', adding the modules of the carrier. As with `erl -boot', a script that is not found is
%% looked up among OTP's own scripts, such as `start_sasl'.
-spec make(Base :: file:filename(), Target :: file:filename()) -> ok | {error, Text :: iodata()}.
make(Base, Target) ->
    case read(found(Base ++ ".boot")) of
        {ok, Script} ->
            case file:write_file(Target ++ ".boot", term_to_binary(with_carrier(Script, ebin(), modules()))) of
                ok -> ok;
                {error, Reason} -> problem(Target, file:format_error(Reason))
            end;
        {error, Text} ->
            problem(Base, Text)
    end.

found(File) ->
    case filelib:is_file(File) of
        true -> File;
        false -> filename:join([code:root_dir(), "bin", File])
    end.

problem(Name, Text) ->
    {error, io_lib:format("beamway_boot: ~ts.boot: ~ts", [Name, Text])}.

read(File) ->
    case file:read_file(File) of
        {ok, Bytes} ->
            try binary_to_term(Bytes) of
                {script, _Id, Steps} = Script when is_list(Steps) -> has_place(Script);
                _ -> {error, "this is not a boot script"}
            catch
                error:badarg -> {error, "this is not a boot script"}
            end;
        {error, Reason} ->
            {error, file:format_error(Reason)}
    end.

has_place({script, _, Steps} = Script) ->
    case lists:member({progress, modules_loaded}, Steps) of
        true -> {ok, Script};
        false -> {error, "a boot script without {progress, modules_loaded}; expected one of systools:make_script/2"}
    end.

ebin() ->
    filename:dirname(filename:absname(code:which(?MODULE))).

modules() ->
    _ = application:load(beamway),
    {ok, Modules} = application:get_key(beamway, modules),
    Modules.

%% Inserts the carrier after the modules of the script's own applications. Every code path that the script sets later also includes the carrier's
%% directory, which is needed for the driver and the options.
with_carrier({script, Id, Steps}, Ebin, Modules) ->
    {Loading, Rest} = lists:splitwith(fun(Step) -> Step =/= {progress, modules_loaded} end, Steps),
    Starting = [case Step of {path, Path} -> {path, Path ++ [Ebin]}; _ -> Step end || Step <- Rest],
    {script, Id, Loading ++ [{path, [Ebin]}, {primLoad, Modules} | Starting]}.

-ifdef(TEST).

carrier_is_loaded_before_the_start_test() ->
    Script = {script, {"x", "1"}, [{path, ["a"]}, {primLoad, [lists]}, {progress, modules_loaded}, {path, ["a"]}, {apply, {m, f, []}}]},
    ?assertEqual({script, {"x", "1"}, [{path, ["a"]}, {primLoad, [lists]}, {path, ["/b"]}, {primLoad, [beamway_dist]},
                                       {progress, modules_loaded}, {path, ["a", "/b"]}, {apply, {m, f, []}}]},
                 with_carrier(Script, "/b", [beamway_dist])).

what_is_no_boot_script_test() ->
    "/" ++ _ = Dir = string:trim(os:cmd("mktemp -d")),
    Base = filename:join(Dir, "base"),
    Says = fun(Bytes, Target) ->
                   _ = file:delete(Base ++ ".boot"),
                   _ = Bytes =:= none orelse file:write_file(Base ++ ".boot", Bytes),
                   {error, Text} = make(Base, Target),
                   lists:flatten(Text)
           end,
    Script = term_to_binary({script, {"x", "1"}, [{progress, modules_loaded}]}),
    [?assertMatch({_, {match, _}}, {Text, re:run(Text, Part)})
     || {Text, Part} <- [{Says(none, "x"), "base.boot: no such file"},
                         {Says("garbage", "x"), "base.boot: this is not a boot script"},
                         {Says(term_to_binary(x), "x"), "base.boot: this is not a boot script"},
                         {Says(term_to_binary({script, {"x", "1"}, []}), "x"), "without .progress, modules_loaded"},
                         {Says(Script, "/nowhere/at/all"), "/nowhere/at/all.boot: no such file"}]],
    ok = file:del_dir_r(Dir).

-endif.
