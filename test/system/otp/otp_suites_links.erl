%% SPDX-License-Identifier: Apache-2.0
%% @doc Counts the links that nodes set up while OTP's suites run, so that a fallback to stock TCP cannot go unnoticed.
%%
%% A node logs the kind of each link (beamway_links, level info, or debug for a hidden peer). Every node of the suites has {@link seen/2} as
%% a logger filter, which is installed before the node's first connection. The filter writes such an event as a line to the file
%% `OTP_SUITES_TRACE' and hides it from all handlers, so that the suites find only the log events that they expect. Each end of a link
%% writes a line: `link tcp' with the reason, `link shm', or `link shm here' on the node that runs the suites. The last line of another node
%% may be missing, because some nodes are halted as soon as they are connected. `otp_suites_erl' adds `node beamway', `node own' or `node
%% tcp' each time a node starts.
-module(otp_suites_links).

-export([seen/2, position/0, since/1, shared/1, add/2, own/2, total/2, none/0]).
-export_type([counts/0]).

-define(VARIABLE, "OTP_SUITES_TRACE").

%% The lines that were seen, with their counts: <<"node beamway">> => 3, <<"link shm">> => 4. Lines that may belong to other cases that ran
%% in parallel are counted as <<"shared link shm">>.
-type counts() :: #{binary() => pos_integer()}.

%% @doc Filters a log event. It runs in the process that logs, so it must neither wait nor fail.
-spec seen(logger:log_event(), term()) -> logger:filter_return().
seen(#{level := Level, msg := {Format, Args}, meta := #{mfa := {beamway_links, _, _}}}, _)
  when Level =:= info; Level =:= debug ->
    case {string:find(Format, "is up over"), Args} of
        {nomatch, _} -> ok;
        {_, [_Node, Kind, Reason]} -> write(line(Kind, Reason))
    end,
    stop;
seen(_Event, _) ->
    ignore.

line(shm, _Reason) ->
    case lists:prefix("otp_suites_", atom_to_list(node())) of
        true -> "link shm here\n";
        false -> "link shm\n"
    end;
line(Kind, _Reason) when Kind =:= rdma; Kind =:= tls -> ["link ", atom_to_list(Kind), $\n];
line(Kind, Reason) when Kind =:= tcp; Kind =:= inet -> ["link ", atom_to_list(Kind), ": ", Reason, $\n].

%% Each line is a single write in append mode, so that lines from several nodes are not interleaved.
write(Line) ->
    {ok, File} = file:open(os:getenv(?VARIABLE), [append, raw]),
    ok = file:write(File, Line),
    ok = file:close(File).

%% @doc Returns the current size of the trace, for {@link since/1}.
-spec position() -> non_neg_integer().
position() ->
    filelib:file_size(os:getenv(?VARIABLE)).

%% @doc Returns the lines that were written after this position.
-spec since(Position :: non_neg_integer()) -> counts().
since(Position) ->
    {ok, <<_:Position/binary, New/binary>>} = file:read_file(os:getenv(?VARIABLE)),
    Lines = binary:split(New, <<"\n">>, [global, trim_all]),
    lists:foldl(fun(Line, Counts) -> maps:update_with(Line, fun(N) -> N + 1 end, 1, Counts) end, none(), Lines).

%% @doc Marks counts as shared by several cases.
-spec shared(counts()) -> counts().
shared(Counts) ->
    maps:from_list([{<<"shared ", Line/binary>>, Count} || {Line, Count} <- maps:to_list(Counts)]).

%% @doc Returns how often a line was seen, not including lines that are shared by several cases.
-spec own(Line :: binary(), counts()) -> non_neg_integer().
own(Line, Counts) -> maps:get(Line, Counts, 0).

%% @doc Returns how often a line was seen, including shared ones.
-spec total(Line :: binary(), counts()) -> non_neg_integer().
total(Line, Counts) -> own(Line, Counts) + own(<<"shared ", Line/binary>>, Counts).

%% @doc Returns the sum of two counts.
-spec add(counts(), counts()) -> counts().
add(Some, More) ->
    maps:merge_with(fun(_Line, A, B) -> A + B end, Some, More).

%% @doc Returns the empty counts.
-spec none() -> counts().
none() -> #{}.
