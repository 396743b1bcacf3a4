%% SPDX-License-Identifier: Apache-2.0
%% @doc `beamway keygen': creates a key file for the option `encrypt_key_file', or a cookie that cannot be guessed.
%%
%% It never overwrites a file, and only the owner can read the new one. The format is that of {@link //beamway/beamway_encrypt}, with one key per
%% line, so cat can join two files into one with two keys.
-module(beamway_cli_keygen).

-export([run/1]).

-define(BYTES, 32).

%% @doc Carries out what the options request. Text is for standard output.
-spec run(map()) -> {ok, Text :: unicode:chardata()} | {usage | error, Text :: unicode:chardata()}.
run(#{cookie := true, file := File}) -> write(File, cookie());
run(#{cookie := true}) -> {ok, [cookie(), $\n]};
run(#{file := File}) -> write(File, ["# beamway keygen, ", calendar:system_time_to_rfc3339(os:system_time(second)), $\n, base64:encode(random()), $\n]);
run(_) -> {usage, "where to? Expected the name of a new file, or --cookie"}.

%% The cookie is hexadecimal, because hexadecimal digits are not special in any shell or option parser.
cookie() -> string:lowercase(binary:encode_hex(random())).

random() -> crypto:strong_rand_bytes(?BYTES).

write(File, Content) ->
    case beamway_cli_output:write_private(File, Content) of
        ok -> {ok, [File, ": made; only its owner can read it. Copy it to the other nodes over ssh.\n"]};
        {error, eexist} -> {error, [File, ": exists already, and may be in use; name a new file"]};
        {error, Reason} -> {error, [File, ": ", file:format_error(Reason)]}
    end.
