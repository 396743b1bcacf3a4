%% SPDX-License-Identifier: Apache-2.0
%% @doc Reads forms with files, `multipart/form-data' (RFC 7578), part by part from the body of a request, so a form can be larger than memory.
%% `new/2' and `feed/2' are a pure parser, which the other functions use to read the request.
%%
%% The parser rejects everything that two parsers could interpret differently: two names in one Content-Disposition, a header that continues on the
%% next line, and a delimiter that is followed by other text.
-module(yucan_multipart).

-export([fold/4, form/2, refusal/1, file_name/1, new/2, feed/2, is_done/1]).
-export_type([options/0, event/0, part/0, reason/0, state/0]).

-type options() :: #{parts => limit(), headers => limit(), header_bytes => limit(), part_bytes => limit(), bytes => limit()}.
%% The maximum number of parts (100), headers per part (16), bytes per part's head (8192), bytes per part's content (16 MB) and bytes of the form (64
%% MB).
-type limit() :: pos_integer() | infinity.
-type part() :: #{name := binary(), filename => binary(), type => binary(), headers := [{Name :: binary(), Value :: binary()}]}.
%% `filename' is what the client sent; {@link file_name/1} checks whether it can be used as a file name. Header names are in lower case.
-type event() :: {part, part()} | {data, binary()} | part_end.
-type reason() :: not_a_form | malformed | cut | too_many_parts | head_too_large | too_large | yucan_req:body_error().
%% `not_a_form' means that the request has a different content type, `malformed' that the form is not valid, and `cut' that the body ends before the
%% form does. The next three mean that the form exceeds a limit of `options()'. With any other reason, the body could not be read.

-record(multipart, {
    %% The delimiter, including the preceding line end.
    delimiter :: binary(),
    limits :: options(),
    where = preamble :: preamble | delimiter | head | content | done,
    buffer = <<"\r\n">> :: binary(),
    parts = 0 :: non_neg_integer(),
    %% Content bytes read so far, in this part and in all parts.
    size = 0 :: non_neg_integer(),
    total = 0 :: non_neg_integer()
}).
-opaque state() :: #multipart{}.

-define(DEFAULTS, #{parts => 100, headers => 16, header_bytes => 8192, part_bytes => 16#1000000, bytes => 16#4000000}).
%% RFC 2046, 5.1.1.
-define(BOUNDARY_BYTES, 70).

%% ---- requests

%% @doc Reads the form. For each part, the function is called with `{part, Part}', with `{data, Bytes}' for each piece
%% of its content as it arrives, and with `part_end'. It returns `{ok, Acc}', or `{stop, Acc}' to stop reading. An error
%% is returned together with the last `Acc', so that the caller can close an open file.
-spec fold(fun((event(), Acc) -> {ok | stop, Acc}), Acc, yucan_req:req(), options()) -> {ok | stop, Acc} | {error, reason(), Acc}.
fold(Fun, Acc, Req, Options) ->
    case new(yucan_req:header(<<"content-type">>, Req, <<>>), Options) of
        {ok, State} -> read(Fun, Acc, Req, State);
        error -> {error, not_a_form, Acc}
    end.

read(Fun, Acc, Req, State) ->
    case yucan_req:read(Req) of
        {error, Reason} -> {error, Reason, Acc};
        {More, Data} ->
            {Next, Events} = feed(Data, State),
            case {each(Fun, Acc, Events), Next} of
                {{stop, Acc1}, _} -> {stop, Acc1};
                {{ok, Acc1}, {error, Reason}} -> {error, Reason, Acc1};
                {{ok, Acc1}, #multipart{where = done}} -> {ok, Acc1};
                {{ok, Acc1}, _} when More =:= ok -> {error, cut, Acc1};
                {{ok, Acc1}, State1} -> read(Fun, Acc1, Req, State1)
            end
    end.

each(Fun, Acc, [Event | Events]) ->
    case Fun(Event, Acc) of
        {ok, Acc1} -> each(Fun, Acc1, Events);
        {stop, Acc1} -> {stop, Acc1}
    end;
each(_, Acc, []) -> {ok, Acc}.

%% @doc Reads a small form completely, and returns its parts in order, with their content.
-spec form(yucan_req:req(), options()) -> {ok, [{part(), binary()}]} | {error, reason()}.
form(Req, Options) ->
    case fold(fun gathered/2, [], Req, Options) of
        {ok, Parts} -> {ok, lists:reverse(Parts)};
        {error, Reason, _} -> {error, Reason}
    end.

gathered({part, Part}, Parts) -> {ok, [{Part, <<>>} | Parts]};
gathered({data, Data}, [{Part, Before} | Parts]) -> {ok, [{Part, <<Before/binary, Data/binary>>} | Parts]};
gathered(part_end, Parts) -> {ok, Parts}.

%% @doc Returns the response to a form that could not be read.
-spec refusal(reason()) -> yucan_handler:response().
refusal(not_a_form) -> yucan_error:page(415);
refusal(Reason) when Reason =:= malformed; Reason =:= cut -> yucan_error:page(400);
refusal(Reason) when Reason =:= too_many_parts; Reason =:= head_too_large -> yucan_error:page(413);
refusal(Reason) -> yucan_req:body_error(Reason).

%% @doc Returns a name under which a file may be stored in a directory. It is the last path component that the client sent, because some browsers send
%% a path, and it has 1 to 200 bytes of UTF-8 without control characters. A name that begins with a dot is rejected.
-spec file_name(binary()) -> {ok, binary()} | error.
file_name(Sent) ->
    Name = lists:last(binary:split(Sent, [<<"/">>, <<"\\">>], [global])),
    Good = Name =/= <<>> andalso byte_size(Name) =< 200 andalso binary:first(Name) =/= $. andalso is_list(unicode:characters_to_list(Name))
        andalso re:run(Name, "[\\x{0}-\\x{1f}\\x{7f}-\\x{9f}]", [unicode, {capture, none}]) =:= nomatch,
    case Good of true -> {ok, Name}; false -> error end.

%% ---- the parser

%% @doc Creates a parser for a body with this `Content-Type' header.
-spec new(ContentType :: binary(), options()) -> {ok, state()} | error.
new(ContentType, Options) ->
    case value(ContentType) of
        {<<"multipart/form-data">>, Parameters} ->
            case [Boundary || {<<"boundary">>, Boundary} <- Parameters] of
                [Boundary] when Boundary =/= <<>>, byte_size(Boundary) =< ?BOUNDARY_BYTES ->
                    {ok, #multipart{delimiter = <<"\r\n--", Boundary/binary>>, limits = maps:merge(?DEFAULTS, Options)}};
                _ -> error
            end;
        _ -> error
    end.

value(Text) ->
    [Value | Rest] = binary:split(Text, <<";">>),
    case yucan_header:elements(iolist_to_binary(Rest)) of
        {ok, [Parameters]} -> {yucan_header:lower(yucan_header:trim(Value)), Parameters};
        _ -> error
    end.

%% @doc Parses the next bytes of the body, and returns the events that they complete. Between two calls the parser buffers no more than a delimiter or
%% `header_bytes'. It must not be called again after an error. Data after the last delimiter is ignored.
-spec feed(binary(), state()) -> {state() | {error, reason()}, [event()]}.
feed(Data, #multipart{buffer = Buffer, total = Total, limits = #{bytes := Most}} = State) ->
    case Total + byte_size(Data) of
        Sum when Sum > Most -> {{error, too_large}, []};
        Sum -> parse(State#multipart{buffer = <<Buffer/binary, Data/binary>>, total = Sum}, [])
    end.

%% @doc Returns whether the last delimiter has arrived.
-spec is_done(state()) -> boolean().
is_done(#multipart{where = Where}) -> Where =:= done.

parse(#multipart{where = done} = State, Events) -> {State#multipart{buffer = <<>>}, lists:reverse(Events)};
parse(#multipart{where = preamble, buffer = Buffer, delimiter = Delimiter, limits = #{header_bytes := Most}} = State, Events) ->
    case binary:match(Buffer, Delimiter) of
        {At, Length} -> parse(State#multipart{where = delimiter, buffer = after_bytes(At + Length, Buffer)}, Events);
        nomatch when byte_size(Buffer) > Most -> failed(malformed, Events);
        nomatch -> {State, lists:reverse(Events)}
    end;
parse(#multipart{where = delimiter, buffer = <<"--", _/binary>>} = State, Events) -> parse(State#multipart{where = done}, Events);
parse(#multipart{where = delimiter, buffer = <<"\r\n", _/binary>>, parts = Parts, limits = #{parts := Most}} = State, Events) ->
    %% The line end is not consumed here, because the head of the part may be empty.
    case Parts < Most of
        true -> parse(State#multipart{where = head, parts = Parts + 1}, Events);
        false -> failed(too_many_parts, Events)
    end;
%% RFC 2046 permits whitespace here.
parse(#multipart{where = delimiter, buffer = <<C, Rest/binary>>} = State, Events) when C =:= $\s; C =:= $\t -> parse(State#multipart{buffer = Rest}, Events);
parse(#multipart{where = delimiter, buffer = Buffer} = State, Events) when Buffer =:= <<>>; Buffer =:= <<"-">>; Buffer =:= <<"\r">> -> {State, lists:reverse(Events)};
parse(#multipart{where = delimiter}, Events) -> failed(malformed, Events);
parse(#multipart{where = head, buffer = Buffer, limits = #{header_bytes := Most}} = State, Events) ->
    case binary:match(Buffer, <<"\r\n\r\n">>) of
        {At, 4} when At =< Most ->
            case part(binary:split(binary_part(Buffer, 0, At), <<"\r\n">>, [global, trim_all]), State) of
                {ok, Part} -> parse(State#multipart{where = content, buffer = after_bytes(At + 4, Buffer), size = 0}, [{part, Part} | Events]);
                {error, Reason} -> failed(Reason, Events)
            end;
        nomatch when byte_size(Buffer) =< Most -> {State, lists:reverse(Events)};
        _ -> failed(head_too_large, Events)
    end;
parse(#multipart{where = content, buffer = Buffer, delimiter = Delimiter} = State, Events) ->
    case binary:match(Buffer, Delimiter) of
        {At, Length} ->
            case content(binary_part(Buffer, 0, At), State, Events) of
                {error, _} = Error -> {Error, lists:reverse(Events)};
                {State1, Events1} -> parse(State1#multipart{where = delimiter, buffer = after_bytes(At + Length, Buffer)}, [part_end | Events1])
            end;
        nomatch ->
            %% The last bytes may be the beginning of a delimiter, so they stay in the buffer.
            Safe = max(0, byte_size(Buffer) - byte_size(Delimiter) + 1),
            case content(binary_part(Buffer, 0, Safe), State, Events) of
                {error, _} = Error -> {Error, lists:reverse(Events)};
                {State1, Events1} -> {State1#multipart{buffer = after_bytes(Safe, Buffer)}, lists:reverse(Events1)}
            end
    end.

failed(Reason, Events) -> {{error, Reason}, lists:reverse(Events)}.

after_bytes(At, Bytes) -> binary_part(Bytes, At, byte_size(Bytes) - At).

content(<<>>, State, Events) -> {State, Events};
content(Data, #multipart{size = Size, limits = #{part_bytes := Most}} = State, Events) ->
    case Size + byte_size(Data) of
        Sum when Sum > Most -> {error, too_large};
        Sum -> {State#multipart{size = Sum}, [{data, Data} | Events]}
    end.

%% ---- the head of a part

part(Lines, #multipart{limits = #{headers := Most}}) when length(Lines) > Most -> {error, head_too_large};
part(Lines, _) ->
    Headers = [header(Line) || Line <- Lines],
    Named = fun(Wanted) -> [Value || {Name, Value} <- Headers, Name =:= Wanted] end,
    case not lists:member(error, Headers) andalso {Named(<<"content-disposition">>), Named(<<"content-type">>)} of
        {[Disposition], Types} when length(Types) =< 1 -> disposition(value(Disposition), #{headers => Headers}, Types);
        _ -> {error, malformed}
    end.

header(Line) ->
    case binary:split(Line, <<":">>) of
        [Name, Value] ->
            case yucan_header:is_token(Name) andalso re:run(Value, "[\\x00-\\x08\\x0a-\\x1f\\x7f]", [{capture, none}]) =:= nomatch of
                true -> {yucan_header:lower(Name), yucan_header:trim(Value)};
                false -> error
            end;
        _ -> error
    end.

disposition({<<"form-data">>, Parameters}, Part, Types) ->
    case {[V || {<<"name">>, V} <- Parameters], [V || {<<"filename">>, V} <- Parameters], [V || {<<"filename*">>, V} <- Parameters]} of
        {[Name], [], []} -> {ok, typed(Types, Part#{name => unescaped(Name)})};
        {[Name], [File], _} -> {ok, typed(Types, Part#{name => unescaped(Name), filename => unescaped(File)})};
        %% Some libraries send the file name only in its extended form (RFC 8187).
        {[Name], [], [<<Charset:5/binary, "''", File/binary>>]} ->
            case yucan_header:lower(Charset) of
                <<"utf-8">> -> {ok, typed(Types, Part#{name => unescaped(Name), filename => yucan_path:unescape(File)})};
                _ -> {error, malformed}
            end;
        _ -> {error, malformed}
    end;
disposition(_, _, _) -> {error, malformed}.

typed([Type], Part) -> Part#{type => Type};
typed([], Part) -> Part.

%% Browsers escape only these three characters in names.
unescaped(Text) ->
    lists:foldl(fun({Escaped, Byte}, Sum) -> binary:replace(Sum, Escaped, Byte, [global]) end, Text, [{<<"%22">>, <<"\"">>}, {<<"%0D">>, <<"\r">>}, {<<"%0A">>, <<"\n">>}]).
