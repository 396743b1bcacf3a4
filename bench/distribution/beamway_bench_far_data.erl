%% SPDX-License-Identifier: Apache-2.0
%% @doc Generates the data that `bench far' replicates: a shop's orders as mnesia records, events of that shop as JSON, and presences in a chat.
%%
%% How well data can be compressed depends on the data, so these data resemble what programs typically send: field names and structure repeat, names
%% and text come from a vocabulary with frequent and rare words, numbers and times are close to each other, and identifiers and tokens are random. The
%% kind and number of an item determine its content, so each contender and each run gets the same items. No item contains another item's identifiers.
-module(beamway_bench_far_data).

-export([items/2]).

-export_type([kind/0]).

-type kind() :: mnesia | json | presence.
%% `mnesia': records of the table `order', about 2 KB in the external format. `json': documents of about 1 KB. `presence': the deltas that
%% Phoenix.Tracker broadcasts, with 1 to 15 presences each, about 2.5 KB in the external format.

-define(SEED, 53).
%% The time of the first item, in milliseconds since 1970.
-define(BEGIN_MS, 1772000000000).
-define(EVERY_MS, 37).

%% @doc Returns the first `Count' items of a kind.
-spec items(kind(), Count :: pos_integer()) -> tuple().
items(Kind, Count) -> list_to_tuple([item(Kind, N) || N <- lists:seq(1, Count)]).

item(Kind, N) ->
    _ = rand:seed(exsss, {?SEED, erlang:phash2(Kind), N}),
    case Kind of
        mnesia -> order(N);
        json -> event(N);
        presence -> delta(N)
    end.

%% ---- orders ----

order(N) ->
    Lines = [line() || _ <- lists:seq(1, between(4, 18))],
    {First, Last} = {pick(first_names()), pick(last_names())},
    Billing = address(First, Last),
    {order, {2026, 100000 + N},
     #{id => between(1, 200000), name => joined([First, Last], " "), email => email(First, Last), phone => phone(), tier => pick({basic, plus, gold, staff}),
       since => {between(2012, 2025), between(1, 12), between(1, 28)}},
     Billing,
     case between(1, 10) of Few when Few =< 7 -> same; _ -> address(pick(first_names()), Last) end,
     Lines,
     #{net => lists:sum([Quantity * Price || {line, _, _, _, Quantity, Price, _} <- Lines]), shipping => pick({0, 490, 990}), currency => eur},
     {payment, pick({card, paypal, invoice, transfer}), token(24), authorized, time_ms(N)},
     [{Status, time_ms(N) + Step * between(200, 90000), pick({shop, payments, warehouse})} || {Step, Status} <- [{0, created}, {1, paid}, {2, picked}]],
     text(between(4, 20)),
     time_ms(N)}.

line() ->
    {line, sku(), title(), [{colour, pick(colours())}, {size, pick({<<"S">>, <<"M">>, <<"L">>, <<"XL">>, <<"one size">>})}], between(1, 4), price(),
     {pick({berlin, lyon, porto}), between(1, 4000)}}.

address(First, Last) ->
    {Zip, City, Country} = pick(cities()),
    {address, joined([First, Last], " "), joined([pick(streets()), integer_to_binary(between(1, 180))], " "), Zip, City, Country}.

%% ---- events ----

event(N) ->
    {First, Last} = {pick(first_names()), pick(last_names())},
    {Zip, City, Country} = pick(cities()),
    Items = [{[{sku, sku()}, {title, title()}, {quantity, between(1, 4)}, {price, price()}, {tax, pick({19, 7, 20})}]} || _ <- lists:seq(1, between(1, 4))],
    iolist_to_binary(
      jiffy:encode(
        {[{id, uuid()}, {type, pick({<<"order.created">>, <<"order.paid">>, <<"order.shipped">>, <<"order.returned">>})}, {version, 3},
          {created_at, iso8601(time_ms(N))}, {source, joined([<<"/shops/">>, string:lowercase(City), <<"-">>, integer_to_binary(between(1, 9))], "")},
          {customer, {[{id, between(1, 200000)}, {name, joined([First, Last], " ")}, {email, email(First, Last)},
                       {address, {[{street, joined([pick(streets()), integer_to_binary(between(1, 180))], " ")}, {zip, Zip}, {city, City}, {country, Country}]}},
                       {newsletter, between(1, 3) =:= 1}]}},
          {currency, <<"EUR">>}, {items, Items}, {total, between(500, 40000)},
          {payment, {[{method, pick({card, paypal, invoice, transfer})}, {reference, token(24)}, {status, <<"authorized">>}]}},
          {client, {[{ip, joined([integer_to_binary(between(1, 254)) || _ <- lists:seq(1, 4)], ".")}, {agent, pick(agents())}]}},
          {trace, joined([<<"00">>, hex(16), hex(8), <<"01">>], "-")}]})).

%% ---- presences ----

%% Returns the state of a Phoenix.Tracker in `delta' mode. A replica's clock counts its joins and leaves.
delta(N) ->
    Replica = {'shop@site', ?BEGIN_MS * 1000},
    Count = between(1, 15),
    Clock = 100000 + 15 * N,
    Values = maps:from_list([{{Replica, Clock + Step}, presence(N)} || Step <- lists:seq(1, Count)]),
    Left = [{Replica, Clock - between(1, 20000)} || _ <- lists:seq(1, between(0, 3))],
    #{'__struct__' => 'Elixir.Phoenix.Tracker.State', replica => Replica, context => #{}, clouds => #{Replica => set(Left ++ maps:keys(Values))},
      values => Values, pids => nil, mode => delta, range => {#{Replica => Clock}, #{Replica => Clock + Count}}, delta => infinity, replicas => #{}}.

set(Elements) -> #{'__struct__' => 'Elixir.MapSet', map => maps:from_list([{Element, []} || Element <- Elements]), version => 2}.

presence(N) ->
    {First, Last} = {pick(first_names()), pick(last_names())},
    Meta = #{phx_ref => phx_ref(N), online_at => integer_to_binary(time_ms(N) div 1000), name => joined([First, Last], " "), device => pick({<<"web">>, <<"ios">>, <<"android">>}),
             status => pick({<<"online">>, <<"away">>, <<"busy">>}), typing => between(1, 9) =:= 1},
    {list_to_pid(lists:flatten(io_lib:format("<0.~b.~b>", [between(500, 32000), between(0, 7)]))), joined([<<"room">>, integer_to_binary(between(1, 3000))], ":"),
     integer_to_binary(between(1, 200000)),
     case between(1, 4) of 1 -> Meta#{phx_ref_prev => phx_ref(N - between(1, 10000))}; _ -> Meta end}.

%% Returns a time in nanoseconds and a random number, in the form that Phoenix uses.
phx_ref(N) -> base64:encode(<<(time_ms(N) * 1000000 + between(1, 999999)):64, (between(1, 1 bsl 32) - 1):32>>).

%% ---- fields ----

time_ms(N) -> ?BEGIN_MS + N * ?EVERY_MS + between(0, ?EVERY_MS).

iso8601(Ms) -> list_to_binary(calendar:system_time_to_rfc3339(Ms, [{unit, millisecond}, {offset, "Z"}])).

between(Low, High) -> Low + rand:uniform(High - Low + 1) - 1.

%% Picks a random element; the first elements are picked more often than the last.
pick(Tuple) -> element(1 + trunc(tuple_size(Tuple) * rand:uniform() * rand:uniform()), Tuple).

joined(Parts, Between) -> iolist_to_binary(lists:join(Between, Parts)).

sku() -> iolist_to_binary(io_lib:format("~ts-~5..0b-~2..0b", [pick({<<"TX">>, <<"HM">>, <<"BK">>, <<"EL">>}), between(1, 60000), between(1, 40)])).

price() -> between(1, 250) * 100 - pick({1, 5, 50, 100}).

phone() -> iolist_to_binary(io_lib:format("+~b ~b ~b", [pick({49, 33, 351, 44}), between(20, 999), between(100000, 9999999)])).

email(First, Last) ->
    joined([string:lowercase(First), <<".">>, string:lowercase(Last), integer_to_binary(between(1, 99)), <<"@">>, pick({<<"example.org">>, <<"mail.example.com">>, <<"post.example.net">>})], "").

title() -> joined([pick(colours()), text(between(2, 6))], " ").

text(Words) -> joined([pick(words()) || _ <- lists:seq(1, Words)], " ").

uuid() -> joined([hex(Bytes) || Bytes <- [4, 2, 2, 2, 6]], "-").

hex(Bytes) -> << <<(case Four of _ when Four < 10 -> $0 + Four; _ -> $a + Four - 10 end)>> || <<Four:4>> <= rand:bytes(Bytes) >>.

token(Length) -> binary:part(base64:encode(rand:bytes(Length)), 0, Length).

first_names() -> vocabulary(first_names, "Anna Paul Maria Jonas Sofia Luca Emma Noah Mia Elias Lea Hugo Clara Ben Nora Leon Ida Max Lina Felix Ada Theo Ines Rui Chloe Louis Zoe Oscar Mila Anton Eva Karl").

last_names() ->
    vocabulary(last_names, "Schmidt Martin Silva Weber Bernard Santos Fischer Dubois Ferreira Wagner Petit Pereira Becker Durand Costa Hoffmann Leroy Oliveira Koch Moreau Rodrigues Richter "
               "Simon Martins Wolf Laurent Sousa Neumann Michel Fernandes Braun Garcia Lopes Hartmann Roux Marques Vogel Fournier Gomes Keller").

streets() ->
    vocabulary(streets, "Lindenallee Hauptweg Gartenring Bahnhofplatz Schulgasse Bergweg Waldring Marktgasse Uferweg Parkallee Kirchgasse Seeweg Mittelweg Birkenring Rosenallee Feldgasse").

colours() -> vocabulary(colours, "black white blue grey green red navy beige brown yellow pink orange").

words() ->
    vocabulary(words, "cotton shirt with long sleeves and pocket for the winter jacket light wool socks pack of three linen trousers kitchen knife steel handle oak board lamp desk warm bulb "
               "paper notebook lined pages hard cover garden hose metre brass fitting please leave at door call before delivery gift wrap note fragile second floor courtyard ring twice "
               "cable charger adapter travel case leather belt buckle rain cover bicycle tube repair kit coffee beans roasted dark tea green loose leaf honey jar organic olive oil bottle "
               "puzzle pieces wooden train children book illustrated atlas maps guide hiking boots waterproof size runs small returned unopened exchange requested").

cities() ->
    {{<<"10115">>, <<"Berlin">>, <<"DE">>}, {<<"69002">>, <<"Lyon">>, <<"FR">>}, {<<"4050">>, <<"Porto">>, <<"PT">>}, {<<"20095">>, <<"Hamburg">>, <<"DE">>}, {<<"75011">>, <<"Paris">>, <<"FR">>},
     {<<"1100">>, <<"Lisboa">>, <<"PT">>}, {<<"50667">>, <<"Koeln">>, <<"DE">>}, {<<"33000">>, <<"Bordeaux">>, <<"FR">>}, {<<"3000">>, <<"Coimbra">>, <<"PT">>}, {<<"01067">>, <<"Dresden">>, <<"DE">>}}.

agents() ->
    {<<"Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36">>,
     <<"Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.5 Mobile/15E148 Safari/604.1">>,
     <<"Mozilla/5.0 (X11; Linux x86_64; rv:127.0) Gecko/20100101 Firefox/127.0">>, <<"shop-app/4.12.1 (Android 14)">>}.

%% Each process splits a text only once.
vocabulary(Name, Text) ->
    case get({?MODULE, Name}) of
        undefined ->
            Words = list_to_tuple([list_to_binary(Word) || Word <- string:lexemes(Text, " ")]),
            undefined = put({?MODULE, Name}, Words),
            Words;
        Words -> Words
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

bytes(Item) when is_binary(Item) -> Item;
bytes(Item) -> term_to_binary(Item).

the_same_items_each_time_test_() ->
    [?_assertEqual(items(Kind, 50), items(Kind, 50)) || Kind <- [mnesia, json, presence]].

no_item_twice_test_() ->
    [?_assertEqual(500, length(lists:usort(tuple_to_list(items(Kind, 500))))) || Kind <- [mnesia, json, presence]].

%% The items have the sizes that the documents state.
sizes_test_() ->
    [?_assertMatch(Size when Size > Wanted * 3 div 4 andalso Size < Wanted * 5 div 4, mean_bytes(Kind)) || {Kind, Wanted} <- [{mnesia, 2000}, {json, 1000}, {presence, 2500}]].

mean_bytes(Kind) -> lists:sum([byte_size(bytes(Item)) || Item <- tuple_to_list(items(Kind, 300))]) div 300.

%% The data are neither repetitive nor random: deflate finds structure in them, but much of each item is new.
varied_test_() ->
    [?_assertMatch(Share when Share > 0.1 andalso Share < 0.5, deflated(Kind)) || Kind <- [mnesia, json, presence]].

deflated(Kind) ->
    Bytes = iolist_to_binary([bytes(Item) || Item <- tuple_to_list(items(Kind, 300))]),
    byte_size(zlib:compress(Bytes)) / byte_size(Bytes).

json_test() ->
    [#{<<"id">> := _, <<"customer">> := #{<<"email">> := _}, <<"items">> := [_ | _]} = jiffy:decode(Event, [return_maps]) || Event <- tuple_to_list(items(json, 100))].

deltas_test() ->
    [begin
         ?assert(maps:size(Values) >= 1),
         [?assert(is_pid(Pid)) || {Pid, _, _, #{phx_ref := _}} <- maps:values(Values)],
         ?assertEqual([], maps:keys(Values) -- lists:append([maps:keys(Dots) || #{map := Dots} <- maps:values(Clouds)]))
     end || #{values := Values, clouds := Clouds} <- tuple_to_list(items(presence, 50))].
-endif.
