%% SPDX-License-Identifier: Apache-2.0
%% Tests blocks as binaries, with both ends of a channel on the same node. native/test/block/block_test.c tests what a hostile peer may send.
-module(beamway_block_tests).

-include_lib("eunit/include/eunit.hrl").

-define(LARGE, 100000).

bytes(Size) -> binary:copy(<<"0123456789">>, Size div 10).

%% All memory of a process is freed once it has exited and its large blocks have been reaped.
alone(Fun) ->
    Before = held(),
    {Pid, Monitor} = spawn_monitor(Fun),
    receive {'DOWN', Monitor, process, Pid, Reason} -> ?assertEqual(normal, Reason) end,
    ?assertEqual(Before, held_again(Before, 500)).

held() -> maps:with([blocks, bytes], beamway_block:info()).

held_again(Before, Tries) ->
    case held() of
        Before -> Before;
        Other when Tries =:= 0 -> Other;
        _ -> ok = beamway_block:reap(), timer:sleep(10), held_again(Before, Tries - 1)
    end.

ends() ->
    {ok, Listener, Address, Token} = beamway_block:listen(""),
    Id = crypto:strong_rand_bytes(16),
    {ok, To} = beamway_block:connect(Address, Token, Id),
    {ok, Id, From} = beamway_block:accept(Listener),
    none = beamway_block:accept(Listener),
    {To, From}.

it_is_loaded_test() ->
    ?assert(beamway_block:is_loaded()).

made_of_iodata_test() ->
    alone(fun() ->
                  Bytes = bytes(?LARGE),
                  Block = beamway_block:from_iodata([Bytes, $x, [<<"yz">>, Bytes]]),
                  ?assertEqual(<<Bytes/binary, "xyz", Bytes/binary>>, Block),
                  ?assert(beamway_block:is_block(Block)),
                  ?assertMatch(#{bytes := Held} when Held >= 2 * ?LARGE + 3, beamway_block:info()),
                  <<_, Part/binary>> = Block,
                  ?assertNot(beamway_block:is_block(Part)),
                  ?assertNot(beamway_block:is_block(Bytes)),
                  ?assertNot(beamway_block:is_block(beamway_block:from_iodata(<<"few">>))),
                  %% A block behaves like any other binary.
                  ?assertEqual(Block, binary_to_term(term_to_binary(Block))),
                  Self = self(),
                  _ = spawn_link(fun() -> Self ! {same, Block} end),
                  receive {same, Same} -> ?assert(beamway_block:is_block(Same)) end
          end).

a_part_keeps_the_whole_test() ->
    alone(fun() ->
                  #{blocks := Before} = beamway_block:info(),
                  Part = binary:part(beamway_block:from_iodata(bytes(?LARGE)), 10, 200),
                  true = erlang:garbage_collect(),
                  ?assertEqual(Before + 1, maps:get(blocks, beamway_block:info())),
                  ?assertEqual(bytes(200), Part)
          end).

%% A large block is unmapped by the process that has registered as the reaper, not by the scheduler that collects the block.
large_ones_are_reaped_test() ->
    Before = held(),
    ok = beamway_block:reaper(),
    ok = large_one_dies(),
    receive beamway_blocks_to_reap -> ok after 5000 -> error(not_told) end,
    ?assertNotEqual(Before, held()),
    ok = beamway_block:reap(),
    ?assertEqual(Before, held()).

large_one_dies() ->
    {Pid, Monitor} = spawn_monitor(fun() -> true = beamway_block:is_block(beamway_block:from_iodata(bytes(4000000))) end),
    receive {'DOWN', Monitor, process, Pid, normal} -> ok end.

%% If a reaper exits with an unread message, another one takes over.
a_reaper_that_ends_leaves_nothing_test() ->
    Before = held(),
    {Pid, Monitor} = spawn_monitor(fun() -> ok = beamway_block:reaper(), ok = large_one_dies(), receive never -> ok end end),
    ok = told(Pid, 500),
    exit(Pid, kill),
    receive {'DOWN', Monitor, process, Pid, killed} -> ok end,
    ?assertNotEqual(Before, held()),
    ok = beamway_block:reaper(),
    ?assertEqual(Before, held()),
    ok = large_one_dies(),
    receive beamway_blocks_to_reap -> ok after 5000 -> error(not_told) end,
    ok = beamway_block:reap(),
    ?assertEqual(Before, held()).

told(Pid, Tries) when Tries > 0 ->
    case process_info(Pid, messages) of
        {messages, [beamway_blocks_to_reap]} -> ok;
        {messages, _} -> timer:sleep(10), told(Pid, Tries - 1)
    end.

files_test() ->
    Folder = beamway_peer:new_folder("beamway_block"),
    Dir = filename:join(Folder, "with blank"),
    File = filename:join(Dir, "ä file"),
    ok = file:make_dir(Dir),
    try
        alone(fun() ->
                      ok = file:write_file(File, bytes(?LARGE)),
                      [begin
                           {ok, Block} = beamway_block:read_file(Name),
                           ?assertEqual(bytes(?LARGE), Block),
                           ?assert(beamway_block:is_block(Block))
                       end || Name <- [File, unicode:characters_to_binary(File), [Dir, "/", ["ä", " file"]]]],
                      ok = file:write_file(File, <<"few">>),
                      ?assertEqual({ok, <<"few">>}, beamway_block:read_file(File)),
                      ok = file:delete(File),
                      ?assertEqual({error, enoent}, beamway_block:read_file(File)),
                      ?assertEqual({error, eisdir}, beamway_block:read_file("/")),
                      %% Files in /proc have no size.
                      ?assertMatch({ok, <<_, _/binary>>}, beamway_block:read_file("/proc/self/status")),
                      ?assertEqual({error, badarg}, beamway_block:read_file({no, name}))
              end)
    after
        file:del_dir_r(Folder)
    end.

passed_and_passed_on_test() ->
    alone(fun() ->
                  {To, From} = ends(),
                  {Next, Last} = ends(),
                  Block = beamway_block:from_iodata(bytes(?LARGE)),
                  {ok, Number} = beamway_block:pass(To, Block),
                  {ok, Taken} = beamway_block:take(From, Number, ?LARGE),
                  {ok, Again} = beamway_block:pass(Next, Taken),
                  {ok, There} = beamway_block:take(Last, Again, ?LARGE),
                  ?assertEqual(Block, There),
                  ?assertEqual(no_block, beamway_block:pass(To, binary:part(Block, 1, ?LARGE - 1))),
                  ?assertEqual(no_block, beamway_block:pass(To, bytes(?LARGE))),
                  ?assertMatch({error, <<_, _/binary>>}, beamway_block:take(From, Number, ?LARGE)),
                  {ok, Other} = beamway_block:pass(To, Block),
                  ?assertMatch({error, _}, beamway_block:take(From, Other, ?LARGE + 1)),
                  ok = beamway_block:close(From),
                  ?assertNot(beamway_block:is_open(To)),
                  ?assertEqual(closed, beamway_block:pass(To, Block))
          end).

beyond_the_limit_test() ->
    #{max_bytes := Max} = beamway_block:info(),
    try
        alone(fun() ->
                      {To, From} = ends(),
                      Block = beamway_block:from_iodata(bytes(?LARGE)),
                      {ok, Number} = beamway_block:pass(To, Block),
                      ok = beamway_block:limit(0),
                      %% The node already holds this memory, so it needs no additional room to receive the block.
                      {ok, Taken} = beamway_block:take(From, Number, ?LARGE),
                      ?assert(beamway_block:is_block(Taken)),
                      Ordinary = beamway_block:from_iodata(bytes(?LARGE)),
                      ?assertEqual(bytes(?LARGE), Ordinary),
                      ?assertNot(beamway_block:is_block(Ordinary))
              end)
    after
        ok = beamway_block:limit(Max)
    end.

%% The library stays loaded, and the binaries stay valid.
loaded_again_test() ->
    alone(fun() ->
                  Block = beamway_block:from_iodata(bytes(?LARGE)),
                  [begin
                       _ = code:purge(beamway_block),
                       {module, beamway_block} = code:load_file(beamway_block)
                   end || _ <- [1, 2, 3]],
                  ?assert(beamway_block:is_block(Block)),
                  ?assertEqual(bytes(?LARGE), Block)
          end).

bad_arguments_test_() ->
    [?_assertError(_, Fun())
     || Fun <- [fun() -> beamway_block:from_iodata([<<>>, 256]) end, fun() -> beamway_block:accept(make_ref()) end,
                fun() -> beamway_block:pass(make_ref(), bytes(?LARGE)) end, fun() -> beamway_block:limit(-1) end,
                fun() -> beamway_block:connect(<<"x">>, <<"short">>, <<0:128>>) end]]
        ++ [?_assertMatch({error, _}, beamway_block:connect(<<0, "nobody">>, <<0:128>>, <<0:128>>)),
            ?_assertMatch({error, _}, beamway_block:connect(<<>>, <<0:128>>, <<0:128>>)),
            ?_assertMatch({error, _}, beamway_block:listen("/nowhere/at/all"))].
