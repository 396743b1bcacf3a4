%% SPDX-License-Identifier: Apache-2.0
%% @doc Parses multipart forms for modules written for Yaws, which read them part by part as `get_more' delivers the body. All functions are
%% pure. Used by {@link yaws_api}. The parser is {@link yucan_multipart}, which rejects everything that two parsers could interpret differently.
-module(yucan_yaws_form).

-export([parse/2, parse/3]).
-export_type([item/0, result/0, option/0, cont/0]).

-include("../../include/yaws_api.hrl").

-type item() :: {head, {Name :: string(), [{string() | content_type, string()}]}} | {part_body | body, string() | binary()}.
%% Content is delivered as `part_body' while it is incomplete; the last piece is delivered as `body'.
-opaque cont() :: {yucan_multipart:state(), list | binary}.
-type option() :: list | binary.
%% The content type.
-type result() :: {cont, {cont, cont()}, [item()]} | {result, [item()]} | {error, no_content_type | no_multipart_form_data | malformed_multipart_post}.

%% There is no size limit, because the module itself decides how much it stores.
-define(LIMITS, #{parts => infinity, part_bytes => infinity, bytes => infinity}).

%% @doc Returns the parts in the body of the arg, or in the part of the body that has arrived.
-spec parse(#arg{}, [option()]) -> result().
parse(#arg{headers = #headers{content_type = undefined}}, _) -> {error, no_content_type};
parse(#arg{headers = #headers{content_type = Type}, cont = Cont, clidata = Data}, Options) ->
    Bytes = case Data of {partial, Part} -> Part; _ -> Data end,
    case Cont of
        {cont, _} -> parse(Bytes, Cont, Options);
        undefined -> begun(list_to_binary(Type), Bytes, Options)
    end.

%% @doc Returns the parts in the given bytes. The second argument is the boundary, or the result of the previous call.
-spec parse(binary(), string() | {cont, cont()}, [option()]) -> result().
parse(Bytes, {cont, {State, Kind}}, _) -> fed(yucan_multipart:feed(Bytes, State), Kind);
parse(Bytes, Boundary, Options) -> begun(<<"multipart/form-data; boundary=\"", (list_to_binary(Boundary))/binary, $">>, Bytes, Options).

begun(Type, Bytes, Options) ->
    case yucan_multipart:new(Type, ?LIMITS) of
        {ok, State} ->
            Kind = case lists:member(binary, Options) andalso not lists:member(list, Options) of true -> binary; false -> list end,
            fed(yucan_multipart:feed(Bytes, State), Kind);
        error -> {error, no_multipart_form_data}
    end.

fed({{error, _}, _}, _) -> {error, malformed_multipart_post};
fed({State, Events}, Kind) ->
    Items = items(Events, <<>>, Kind),
    case yucan_multipart:is_done(State) of
        true -> {result, Items};
        false -> {cont, {cont, {State, Kind}}, Items}
    end.

items([{part, Part} | Events], _, Kind) -> [{head, head(Part)} | items(Events, <<>>, Kind)];
items([{data, Data} | Events], Before, Kind) -> items(Events, <<Before/binary, Data/binary>>, Kind);
items([part_end | Events], Data, Kind) -> [{body, content(Data, Kind)} | items(Events, <<>>, Kind)];
items([], <<>>, _) -> [];
items([], Data, Kind) -> [{part_body, content(Data, Kind)}].

content(Data, list) -> binary_to_list(Data);
content(Data, binary) -> Data.

head(#{name := Name, headers := Headers} = Part) ->
    Text = binary_to_list(Name),
    {Text, [{"name", Text} | [{"filename", binary_to_list(File)} || #{filename := File} <- [Part]]]
           ++ [{case Key of <<"content-type">> -> content_type; _ -> binary_to_list(Key) end, binary_to_list(Value)}
               || {Key, Value} <- Headers, Key =/= <<"content-disposition">>]}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

arg(Body) -> #arg{headers = #headers{content_type = "multipart/form-data; boundary=!!!"}, clidata = Body}.

form() ->
    <<"--!!!\r\nContent-Disposition: form-data; name=\"f\"; filename=\"a b.txt\"\r\nContent-Type: text/plain\r\nX-Own: 1\r\n\r\ntext\n\r\n"
      "--!!!\r\nContent-Disposition: form-data; name=\"e\"\r\n\r\n\r\n--!!!--\r\n">>.

heads() ->
    [{head, {"f", [{"name", "f"}, {"filename", "a b.txt"}, {content_type, "text/plain"}, {"x-own", "1"}]}}, {head, {"e", [{"name", "e"}]}}].

whole_test() ->
    [First, Second] = heads(),
    ?assertEqual({result, [First, {body, "text\n"}, Second, {body, ""}]}, parse(arg(form()), [list])),
    ?assertEqual({result, [First, {body, <<"text\n">>}, Second, {body, <<>>}]}, parse(arg(form()), [binary])),
    ?assertEqual(parse(arg(form()), [list]), parse(form(), "!!!", [])).

%% The parsed form does not depend on where the body is split.
parts_test_() ->
    [?_assertEqual({At, heads(), "text\n"}, {At, [Item || {head, _} = Item <- Items], lists:append([Text || {Kind, Text} <- Items, Kind =/= head])})
     || At <- lists:seq(1, byte_size(form()) - 3), <<Part:At/binary, Rest/binary>> <- [form()],
        Items <- [begin
                      case parse(arg({partial, Part}), [list]) of
                          {cont, Cont, First} ->
                              {result, Last} = parse((arg(Rest))#arg{cont = Cont}, [list]),
                              First ++ Last;
                          {result, All} -> All
                      end
                  end]].

refused_test_() ->
    Typed = fun(Type) -> #arg{headers = #headers{content_type = Type}, clidata = <<>>} end,
    [?_assertEqual({error, no_content_type}, parse(Typed(undefined), [list])), ?_assertEqual({error, no_multipart_form_data}, parse(Typed("text/plain"), [list]))]
        ++ [?_assertEqual({error, malformed_multipart_post}, parse(arg(Bad), [list]))
            || Bad <- [<<"--!!!Oops">>, <<"--!!!\r\nInvalid\r\n\r\nx\r\n--!!!--\r\n">>]].

-endif.
