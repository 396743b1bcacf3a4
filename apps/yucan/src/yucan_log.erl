%% SPDX-License-Identifier: Apache-2.0
%% @doc The access log, in NCSA combined format or with one JSON object per line. Connection processes send entries to a single process, which formats
%% and writes them.
%%
%% The queue is bounded. Entries that do not fit are dropped and counted, because a full disk must not stop the server. If the file is renamed or
%% removed, a new file is opened within a second.
-module(yucan_log).
-behaviour(gen_server).

-export([start_link/4, open/3, answered/5, refused/3, flush/1, move/2, format/1, json/1, path/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).
-export_type([log/0, entry/0, target/0]).

-include("yucan_internal.hrl").
-include_lib("kernel/include/file.hrl").

-opaque log() :: {log, atom(), atomics:atomics_ref(), Most :: pos_integer(), yucan_metrics:metrics()}
    | {function, fun((entry()) -> term()), Failing :: atomics:atomics_ref()}.
-type entry() :: #{time := integer(), peer := yucan_req:address(), method := binary(), target := binary(), version := 10 | 11 | 20,
    status := integer(), bytes := non_neg_integer(), host := binary(), referer := binary(), agent := binary(), us := integer(), id => binary()}.

%% A log file, and the format of its lines.
-type target() :: file:name_all() | {json, file:name_all()}.

-record(state, {
    file :: target(),
    device :: undefined | file:io_device(),
    inode :: undefined | {integer(), integer()},
    queued :: atomics:atomics_ref()
}).

-define(LOOK_MS, 1000).

%% @doc Starts the process that writes a log file.
-spec start_link(Name :: atom(), target(), atomics:atomics_ref(), yucan_metrics:metrics()) -> {ok, pid()} | {error, term()}.
start_link(Name, File, Queued, Metrics) -> gen_server:start_link({local, Name}, ?MODULE, {File, Queued, Metrics}, []).

%% @doc Returns the handle through which connections write to the log.
-spec open({file, Process :: atom(), atomics:atomics_ref()} | {function, fun((entry()) -> term())} | none, #limits{}, yucan_metrics:metrics()) ->
    none | log().
open(none, _, _) -> none;
open({function, Function}, _, _) -> {function, Function, atomics:new(1, [])};
open({file, Process, Queued}, #limits{log_queue = Most}, Metrics) -> {log, Process, Queued, Most, Metrics}.

%% @doc Logs a request that has been answered.
-spec answered(none | log(), #req{}, Status :: integer(), Bytes :: non_neg_integer(), Began :: integer()) -> ok.
answered(none, _, _, _, _) -> ok;
answered(_, _, 0, _, _) -> ok;
answered(Log, #req{method = Method, target = Target, version = Version, host = Host, id = Id} = Req, Status, Bytes, Began) ->
    Entry = #{time => Began, peer => yucan_req:peer(Req), method => Method, target => Target, version => Version,
                   status => Status, bytes => Bytes, host => Host, us => os:system_time(microsecond) - Began,
                   referer => yucan_req:header(<<"referer">>, Req, <<>>), agent => yucan_req:header(<<"user-agent">>, Req, <<>>)},
    deliver(Log, case Id of none -> Entry; _ -> Entry#{id => Id} end).

%% @doc Logs the response to an invalid request.
-spec refused(none | log(), #conn{}, Status :: integer()) -> ok.
refused(none, _, _) -> ok;
refused(Log, Conn, Status) ->
    deliver(Log, #{time => os:system_time(microsecond), peer => yucan_req:conn_peer(Conn), method => <<"-">>, target => <<"-">>, version => 11, status => Status,
                   bytes => 0, host => <<>>, us => 0, referer => <<>>, agent => <<>>}).

deliver({function, Function, Failing}, Entry) -> yucan_events:attempt(fun() -> Function(Entry) end, access_log, Failing, 1);
deliver({log, Process, Queued, Most, Metrics}, Entry) ->
    case atomics:add_get(Queued, 1, 1) of
        N when N > Most ->
            atomics:sub(Queued, 1, 1),
            yucan_metrics:add(Metrics, log_dropped);
        _ ->
            gen_server:cast(Process, {entry, Entry})
    end.

%% @doc Waits until every earlier entry has been written to the file.
-spec flush(Process :: atom()) -> ok.
flush(Process) -> gen_server:call(Process, flush, 10000).

%% @doc Switches to a different file. If that file cannot be opened, the log continues in the current one.
-spec move(Process :: atom(), target()) -> ok | {error, file:posix() | badarg | system_limit}.
move(Process, File) -> gen_server:call(Process, {move, File}, 10000).

%% @private
-spec init({target(), atomics:atomics_ref(), yucan_metrics:metrics()}) -> {ok, #state{}} | {stop, term()}.
init({File, Queued, _Metrics}) ->
    process_flag(message_queue_data, off_heap),
    %% With this flag, the supervisor's shutdown signal is handled after the entries that are already queued.
    process_flag(trap_exit, true),
    case reopen(#state{file = File, queued = Queued}) of
        {ok, State} ->
            look_later(),
            atomics:put(Queued, 1, 0),
            {ok, State};
        {error, Reason} ->
            {stop, {shutdown, {access_log, Reason}}}
    end.

look_later() -> erlang:send_after(?LOOK_MS, self(), look).

reopen(#state{file = File, device = Device} = State) ->
    case file:open(path(File), [append, raw, binary, {delayed_write, 65536, 500}]) of
        {ok, New} ->
            _ = [file:close(Device) || Device =/= undefined],
            {ok, State#state{device = New, inode = inode(File)}};
        {error, Reason} -> {error, Reason}
    end.

%% @doc Returns the file name of a target.
-spec path(target()) -> file:name_all().
path({json, File}) -> File;
path(File) -> File.

inode(File) ->
    case file:read_file_info(path(File), [raw]) of
        {ok, #file_info{inode = Inode, major_device = Device}} -> {Device, Inode};
        {error, _} -> undefined
    end.

%% @private
-spec handle_call(flush | {move, target()}, gen_server:from(), #state{}) -> {reply, ok | {error, term()}, #state{}}.
handle_call({move, File}, _, #state{file = File} = State) -> {reply, ok, State};
handle_call({move, File}, _, #state{device = Old} = State) ->
    case reopen(State#state{file = File, device = undefined}) of
        {ok, State1} ->
            _ = [file:close(Old) || Old =/= undefined],
            {reply, ok, State1};
        {error, Reason} -> {reply, {error, Reason}, State}
    end;
handle_call(flush, _, #state{device = Device} = State) ->
    _ = file:sync(Device),
    {reply, ok, State}.

%% @private
-spec handle_cast({entry, entry()}, #state{}) -> {noreply, #state{}}.
handle_cast({entry, Entry}, #state{file = File, device = Device, queued = Queued} = State) ->
    atomics:sub(Queued, 1, 1),
    _ = file:write(Device, case File of {json, _} -> json(Entry); _ -> format(Entry) end),
    {noreply, State}.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info(look, #state{file = File, inode = Inode} = State) ->
    look_later(),
    case inode(File) of
        Inode when Inode =/= undefined -> {noreply, State};
        _ ->
            case reopen(State) of
                {ok, State1} -> {noreply, State1};
                {error, Reason} ->
                    _ = [yucan_events:warning("the access log ~ts cannot be opened: ~ts", [path(File), file:format_error(Reason)]) || Inode =/= undefined],
                    {noreply, State#state{inode = undefined}}
            end
    end;
handle_info(_, State) -> {noreply, State}.

%% @private Closes the file, so that the last lines have been written once this process has exited.
-spec terminate(term(), #state{}) -> ok.
terminate(_, #state{device = Device}) ->
    _ = file:close(Device),
    ok.

%% @doc Returns a line of the log. The request ID, if there is one, follows the fields of the combined format.
-spec format(entry()) -> iodata().
format(#{time := Us, peer := Peer, method := Method, target := Target, version := Version, status := Status, bytes := Bytes,
         referer := Referer, agent := Agent} = Entry) ->
    [yucan_cidr:format(Peer), " - - [", time(Us div 1000000), "] \"", quoted(Method), $\s, quoted(Target), " HTTP/", $0 + Version div 10, $., $0 + Version rem 10, "\" ",
     integer_to_binary(Status), $\s, case Bytes of 0 -> "-"; _ -> integer_to_binary(Bytes) end, " \"", dash(Referer), "\" \"", dash(Agent), $", [[" \"", Id, $"] || #{id := Id} <- [Entry]], $\n].

dash(<<>>) -> "-";
dash(Text) -> quoted(Text).

%% Escapes bytes from the client that would end the quoted string or the line.
quoted(Text) ->
    case binary:match(Text, [<<"\"">>, <<"\\">>]) =/= nomatch orelse not is_printable(Text) of
        false -> Text;
        true -> << <<(quoted_byte(C))/binary>> || <<C>> <= Text >>
    end.

is_printable(<<C, Rest/binary>>) when C >= $\s, C < 127 -> is_printable(Rest);
is_printable(Rest) -> Rest =:= <<>>.

quoted_byte(C) when C =:= $"; C =:= $\\ -> <<$\\, C>>;
quoted_byte(C) when C >= $\s, C < 127 -> <<C>>;
quoted_byte(C) -> iolist_to_binary(io_lib:format("\\x~2.16.0b", [C])).

time(Second) ->
    <<_:5/binary, Day:2/binary, " ", Month:3/binary, " ", Year:4/binary, " ", Time:8/binary, _/binary>> =
        yucan_header:date(calendar:system_time_to_universal_time(Second, second)),
    [Day, $/, Month, $/, Year, $:, Time, " +0000"].

%% @doc Formats an entry as JSON, with the time in UTC, sizes in bytes, and the duration in microseconds.
-spec json(entry()) -> iodata().
json(#{time := Us, peer := Peer, method := Method, target := Target, version := Version, status := Status, bytes := Bytes, host := Host,
       referer := Referer, agent := Agent, us := Took} = Entry) ->
    [${, lists:join($,, [[$", Name, "\":", Value] || {Name, Value} <- [
        {"time", [$", calendar:system_time_to_rfc3339(Us, [{unit, microsecond}, {offset, "Z"}]), $"]}, {"client", [$", yucan_cidr:format(Peer), $"]},
        {"host", text(Host)}, {"method", text(Method)}, {"target", text(Target)}, {"version", [$", $0 + Version div 10, $., $0 + Version rem 10, $"]},
        {"status", integer_to_binary(Status)}, {"bytes", integer_to_binary(Bytes)}, {"us", integer_to_binary(Took)}, {"referer", text(Referer)},
        {"agent", text(Agent)}] ++ [{"id", text(Id)} || #{id := Id} <- [Entry]]]), "}\n"].

%% Bytes from the client that are not valid UTF-8 are interpreted as Latin-1.
text(Bytes) ->
    Encoding = case unicode:characters_to_binary(Bytes) of Bytes -> utf8; _ -> latin1 end,
    [$", << <<(character(C))/binary>> || C <- unicode:characters_to_list(Bytes, Encoding) >>, $"].

character(C) when C =:= $"; C =:= $\\ -> <<$\\, C>>;
character(C) when C < $\s; C =:= 127 -> iolist_to_binary(io_lib:format("\\u~4.16.0b", [C]));
character(C) -> <<C/utf8>>.
