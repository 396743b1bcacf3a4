%% SPDX-License-Identifier: Apache-2.0
%% @doc What comes over a lane, and what is to be done about it. Pure: {@link teleport_lane} does the effects, in their order.
%%
%% <ul><li>Frames become messages again. Requests go from caller to acceptor, answers back; anything else breaks the protocol.</li>
%% <li>Credit is what the link may still bring. Half of it used, it is filled up. An acceptor whose answers find no room fills up nothing until
%% half of them are through.</li>
%% <li>The caller hears how many of its messages were delivered: after 256 of them, or 10 ms after the first.</li></ul>
-module(teleport_inbound).

-export([new/3, credit/0, frame/2, part/3, resolved/4, answers/2, ack_due/1, ack_sent/3, unfinished_bytes/1]).
-export_type([inbound/0, effect/0]).

-type role() :: caller | acceptor.
-type effect() :: {request | answer, teleport_frame:kind(), term(), Bytes :: non_neg_integer()}
                | {refers, teleport_frame:kind(), [binary(), ...], Bytes :: non_neg_integer()}
                | {acked, Messages :: non_neg_integer()}
                | {credit, Frames :: non_neg_integer(), Bytes :: non_neg_integer()}
                | weigh_answers
                | {ack, Messages :: pos_integer()}
                | {ack_in, Ms :: pos_integer()}
                | {broken, Reason :: binary()}.
%% `refers': take what it refers to, then call {@link resolved/4}. `acked': so many messages of this node were delivered. `weigh_answers': {@link answers/2} is to be called. `ack': send it, then call
%% {@link ack_sent/3}. `ack_in': call {@link ack_due/1} then. `broken': nothing follows.
-type result() :: {[effect()], inbound()}.

-define(FRAMES, 2000).
-define(BYTES, 4194304).
-define(ACK_EVERY, 256).
-define(ACK_MS, 10).
-define(MAX_ALL, 1 bsl 32).

-record(inbound, {role :: role(),
                  reassembly :: teleport_reassembly:reassembly(),
                  max_answer_bytes :: pos_integer(),
                  %% used since credit was given
                  frames = 0 :: non_neg_integer(),
                  bytes = 0 :: non_neg_integer(),
                  %% `due': more is given if the answers find room; `held': they found none
                  reading = on :: on | due | held,
                  %% messages, and how many of these the caller knows of
                  delivered = 0 :: non_neg_integer(),
                  told = 0 :: non_neg_integer(),
                  ack_timer = false :: boolean()}).
-opaque inbound() :: #inbound{}.

%% @doc Nothing has come. `MaxAnswerBytes': with more in the queue an acceptor reads no further requests.
-spec new(role(), MaxMessageBytes :: pos_integer(), MaxAnswerBytes :: pos_integer()) -> inbound().
new(Role, MaxMessage, MaxAnswers) ->
    #inbound{role = Role, reassembly = teleport_reassembly:new(MaxMessage, ?MAX_ALL), max_answer_bytes = MaxAnswers}.

%% @doc What a new lane begins with.
-spec credit() -> effect().
credit() -> {credit, ?FRAMES, ?BYTES}.

%% @doc A frame has come.
-spec frame(binary(), inbound()) -> result().
frame(Frame, In) -> used(byte_size(Frame), frame(teleport_frame:decode(Frame), byte_size(Frame), In)).

frame({ok, {small, Kind, Term}}, Bytes, In) -> whole(Kind, [Term], Bytes, In);
frame({ok, {batch, Messages}}, _, #inbound{role = acceptor} = In) -> batch(Messages, In);
frame({ok, {batch, _}}, _, In) -> broken(<<"several messages in a frame for a caller">>, In);
frame({ok, {piece, Stream, Data}}, _, In) -> piece(Stream, Data, In);
frame({ok, {announce, Stream, Kind, Sizes}}, _, In) -> announced(is_right_way(Kind, In), Stream, Kind, Sizes, In);
frame({ok, {ack, Count}}, _, #inbound{role = caller} = In) -> {[{acked, Count}], In};
frame({ok, {ack, _}}, _, In) -> broken(<<"an acknowledgement for an acceptor">>, In);
frame({error, Reason}, _, In) -> broken(Reason, In).

%% @doc All of a part has come, from a link that puts parts together.
-spec part(teleport_frame:stream(), binary(), inbound()) -> result().
part(Stream, Whole, In) -> used(byte_size(Whole), piece(Stream, Whole, In)).

broken(Reason, In) -> {[{broken, Reason}], In}.

is_right_way(Kind, #inbound{role = Role}) -> teleport_frame:is_request(Kind) =:= (Role =:= acceptor).

announced(true, Stream, Kind, Sizes, #inbound{reassembly = Reassembly} = In) ->
    case teleport_reassembly:announce(Stream, Kind, Sizes, Reassembly) of
        {ok, Next} -> {[], In#inbound{reassembly = Next}};
        {error, Reason} -> broken(Reason, In)
    end;
announced(false, _, _, _, In) ->
    broken(<<"a message in the wrong direction">>, In).

piece(Stream, Data, #inbound{reassembly = Reassembly} = In) ->
    case teleport_reassembly:piece(Stream, Data, Reassembly) of
        {more, Next} -> {[], In#inbound{reassembly = Next}};
        {whole, Kind, Parts, Next} -> whole(Kind, Parts, iolist_size(Parts), In#inbound{reassembly = Next});
        {error, Reason} -> broken(Reason, In)
    end.

%% @doc All parts of a message that referred to some.
-spec resolved(teleport_frame:kind(), [binary(), ...], Bytes :: non_neg_integer(), inbound()) -> result().
resolved(Kind, Parts, Bytes, In) -> whole(Kind, Parts, Bytes, In).

whole({referring, Kind}, Parts, Bytes, In) -> {[{refers, Kind, Parts, Bytes}], In};
whole(Kind, Parts, Bytes, In) ->
    case message(Kind, Parts, Bytes, In) of
        {request, _, _, _} = Request -> delivered([Request], 1, In);
        Other -> {[Other], In}
    end.

%% The lane ends with one that is none, so nobody misses the others.
batch(Messages, In) ->
    All = [message(Kind, [Term], 1 + byte_size(Term), In) || {Kind, Term} <- Messages],
    case lists:keyfind(broken, 1, All) of
        false -> delivered(All, length(All), In);
        Broken -> {[Broken], In}
    end.

message(Kind, [Term | Binaries], Bytes, #inbound{role = Role} = In) ->
    case is_right_way(Kind, In) of
        true ->
            try {case Role of caller -> answer; acceptor -> request end, Kind, teleport_term:unpack(Term, Binaries), Bytes}
            catch
                error:_ -> {broken, <<"bytes that are no term">>}
            end;
        false ->
            {broken, <<"a message in the wrong direction">>}
    end.

%% The caller hears of all of them at once.
delivered(Requests, Count, #inbound{delivered = Before, told = Told, ack_timer = HasTimer} = In) ->
    case Before + Count of
        Delivered when Delivered - Told >= ?ACK_EVERY -> {Requests ++ [{ack, Delivered}], In#inbound{delivered = Delivered}};
        Delivered when HasTimer -> {Requests, In#inbound{delivered = Delivered}};
        Delivered -> {Requests ++ [{ack_in, ?ACK_MS}], In#inbound{delivered = Delivered, ack_timer = true}}
    end.

%% ---- credit ----

used(Size, {Effects, #inbound{frames = Frames, bytes = Bytes} = In}) when Frames < ?FRAMES div 2, Bytes + Size < ?BYTES div 2 ->
    {Effects, In#inbound{frames = Frames + 1, bytes = Bytes + Size}};
used(Size, {Effects, #inbound{frames = Frames, bytes = Bytes, role = Role, reading = Reading} = In}) ->
    Next = In#inbound{frames = Frames + 1, bytes = Bytes + Size},
    case Role of
        caller -> {Credit, Given} = give(Next), {Effects ++ Credit, Given};
        acceptor when Reading =:= on -> {Effects ++ [weigh_answers], Next#inbound{reading = due}};
        acceptor -> {Effects, Next}
    end.

give(#inbound{frames = Frames, bytes = Bytes} = In) ->
    {[{credit, Frames, Bytes}], In#inbound{frames = 0, bytes = 0, reading = on}}.

%% @doc So many bytes of answers wait.
-spec answers(Bytes :: non_neg_integer(), inbound()) -> result().
answers(_, #inbound{reading = on} = In) -> {[], In};
answers(Waiting, #inbound{reading = due, max_answer_bytes = Max} = In) when Waiting =< Max -> give(In);
answers(Waiting, #inbound{reading = held, max_answer_bytes = Max} = In) when Waiting < Max div 2 -> give(In);
answers(_, In) -> {[], In#inbound{reading = held}}.

%% ---- acknowledgements ----

%% @doc The time of `ack_in' is over.
-spec ack_due(inbound()) -> result().
ack_due(#inbound{delivered = Same, told = Same} = In) -> {[], In#inbound{ack_timer = false}};
ack_due(#inbound{delivered = Delivered} = In) -> {[{ack, Delivered}], In#inbound{ack_timer = false}}.

%% @doc Whether the link has taken it. If not, a later one says more.
-spec ack_sent(ok | busy | closed, Messages :: pos_integer(), inbound()) -> result().
ack_sent(ok, Count, In) -> {[], In#inbound{told = Count}};
ack_sent(_, _, #inbound{ack_timer = true} = In) -> {[], In};
ack_sent(_, _, In) -> {[{ack_in, ?ACK_MS}], In#inbound{ack_timer = true}}.

%% @doc What the large messages that are not whole have announced.
-spec unfinished_bytes(inbound()) -> non_neg_integer().
unfinished_bytes(#inbound{reassembly = Reassembly}) -> teleport_reassembly:bytes(Reassembly).
