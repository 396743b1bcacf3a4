%% SPDX-License-Identifier: Apache-2.0
%% The list of kinds must be the only one: any other module that names a ring needs a reason, which is listed here.
-module(beamway_kind_tests).

-include_lib("eunit/include/eunit.hrl").

%% Each module with the reason why it names a ring.
named_by() ->
    #{beamway_kind => "the list",
      beamway_shm => "how two nodes meet for shm",
      beamway_socket_dir => "where two nodes meet for shm",
      beamway_rdma => "how two nodes meet for rdma",
      beamway_config => "the option that turns rdma on",
      beamway_cli_doctor => "what this host needs for each kind",
      beamway_cli_doctor_facts => "what this host needs for each kind",
      beamway_cli_doctor_judge => "what this host needs for each kind"}.

the_list_is_the_only_one_test() ->
    ?assertEqual(lists:sort(maps:keys(named_by())), lists:sort([Module || {Module, Forms} <- modules(), names_a_ring(Forms)])).

%% Returns the modules as they are shipped, without unit tests.
modules() ->
    [begin
         {ok, {Module, [{abstract_code, {raw_abstract_v1, Forms}}]}} = beam_lib:chunks(Beam, [abstract_code]),
         {Module, Forms}
     end || App <- ["beamway", "teleport", "gen_rpc", "placement", "beamway_cli", "beamway_console", "beamway_exporter"],
            Ebin <- code:get_path(), lists:suffix("apps/" ++ App ++ "/ebin", Ebin),
            Beam <- filelib:wildcard(filename:join(Ebin, "*.beam"))].

%% Returns whether a ring is named in the module's code or types.
names_a_ring(Forms) -> lists:any(fun(Ring) -> has({atom, Ring}, Forms) end, beamway_kind:rings()).

has({atom, Ring}, {atom, _Where, Ring}) -> true;
has(Wanted, Tuple) when is_tuple(Tuple) -> has(Wanted, tuple_to_list(Tuple));
has(Wanted, [First | Rest]) -> has(Wanted, First) orelse has(Wanted, Rest);
has(_Wanted, _Term) -> false.

words_test_() ->
    [?_assertEqual("shm, rdma and tcp", beamway_kind:words()),
     ?_assertEqual([{ok, Kind} || Kind <- beamway_kind:all()], [beamway_kind:from_word(atom_to_list(Kind)) || Kind <- beamway_kind:all()])]
        ++ [?_assertEqual(error, beamway_kind:from_word(Word)) || Word <- ["", "SHM", "tls", "rmda"]].
