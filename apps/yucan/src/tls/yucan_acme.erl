%% SPDX-License-Identifier: Apache-2.0
%% @doc Obtains a certificate for a yucan listener from a certificate authority that supports ACME, such as Let's Encrypt. The certificate is ordered,
%% stored in a file, and renewed before it expires.
%%
%% {@link tls/1} returns the options for the listener. Its certificate is self-signed until the process started by {@link start_link/1} has obtained
%% the real certificate, which new connections then use without a reload. The challenge `http' needs the middleware {@link challenge/2} on an http
%% listener; `tls_alpn' needs nothing else.
-module(yucan_acme).
-behaviour(gen_server).

-export([start_link/1, child_spec/1, tls/1, challenge/2, status/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2, order/1]).
-export_type([options/0]).

-include_lib("kernel/include/file.hrl").
-include_lib("public_key/include/public_key.hrl").

-define(LETS_ENCRYPT, <<"https://acme-v02.api.letsencrypt.org/directory">>).
%% `LOOK_MS' is the interval between checks of the certificate's expiry, and also the longest pause
%% after a failed order. `RETRY_MS' is the shortest such pause.
-define(LOOK_MS, 43200000).
-define(RETRY_MS, 60000).
%% The longest pause between a failed order and the next one if the program has been restarted.
%% Authorities limit the number of failures per hour; Let's Encrypt allows five.
-define(RESTART_MS, 720000).
-define(ORDER_MS, 600000).

-type options() :: #{
    %% The names of the certificate, in lower case and without wildcards.
    names := [binary()],
    %% The directory for the account's key, the certificate and its key.
    folder := file:name_all(),
    %% Contact addresses for the authority, such as `mailto:admin@example.org'; none by default.
    contact => [binary()],
    %% The address of the authority's directory, which must be https; Let's Encrypt by default.
    directory => binary(),
    %% `tls_alpn' by default, which uses port 443 of the listener; `http' uses port 80.
    challenge => http | tls_alpn,
    %% The CA certificates, as PEM, that are used to verify the ACME server. By default these are the system's.
    cacertfile => file:name_all()
}.

-record(state, {
    options :: map(),
    worker = none :: none | {pid(), reference(), Timer :: reference()},
    failures = 0 :: non_neg_integer(),
    last = none :: none | ok | {error, binary()}
}).

%% @doc Orders a certificate if there is none, or if `names' or `directory' has changed, and renews it when less than a third of its lifetime remains.
%% Raises `{bad_options, Text}'.
-spec start_link(options()) -> {ok, pid()} | {error, term()}.
start_link(Options) -> gen_server:start_link(?MODULE, checked(Options), []).

%% @doc Returns a child specification for a supervisor. The child may be started before or after the server.
-spec child_spec(options()) -> supervisor:child_spec().
child_spec(Options) -> #{id => {?MODULE, maps:get(names, Options, [])}, start => {?MODULE, start_link, [Options]}}.

%% @doc Returns the `tls' option for the listener. Creates the directory, and a self-signed certificate if there is none.
-spec tls(options()) -> [ssl:tls_server_option()].
tls(Options) ->
    #{certificate := File} = Checked = checked(Options),
    ok = ensure_certificate(Checked),
    [{certfile, File}, {keyfile, File}].

%% @doc Returns when the certificate expires (in seconds since 1970), whether the authority has issued it, and the result of the last order.
-spec status(pid()) -> #{until := integer(), is_ordered := boolean(), last := none | ok | {error, binary()}}.
status(Pid) -> gen_server:call(Pid, status, 10000).

%% @doc Middleware that answers the authority's http-01 challenges.
-spec challenge(yucan_req:req(), fun((yucan_req:req()) -> yucan_handler:response())) -> yucan_handler:response().
challenge(Req, Next) ->
    case yucan_req:path(Req) of
        <<"/.well-known/acme-challenge/", Token/binary>> ->
            case yucan_acme_challenge:token(Token) of
                none -> Next(Req);
                Authorization -> {200, [{<<"content-type">>, <<"application/octet-stream">>}], Authorization}
            end;
        _ -> Next(Req)
    end.

checked(Options) ->
    Known = [names, folder, contact, directory, challenge, cacertfile],
    [bad("unknown option ~0tp; known are ~ts", [Key, lists:join(", ", [atom_to_list(K) || K <- Known])]) || Key <- maps:keys(Options) -- Known],
    Names = [name(Name) || Name <- list(names, Options)],
    Names =/= [] orelse bad("names is empty; the names of the hosts are expected", []),
    Folder = case Options of #{folder := F} -> F; _ -> bad("folder is missing; it holds the account's key and the certificate", []) end,
    Challenge = case maps:get(challenge, Options, tls_alpn) of
        http -> <<"http-01">>;
        tls_alpn -> <<"tls-alpn-01">>;
        Other -> bad("challenge is ~0tp; http or tls_alpn is expected", [Other])
    end,
    #{names => Names, folder => Folder, challenge => Challenge, contact => list(contact, Options), directory => maps:get(directory, Options, ?LETS_ENCRYPT),
      tls => trust(Options), account => filename:join(Folder, "account.pem"), certificate => filename:join(Folder, <<(hd(Names))/binary, ".pem">>),
      origin => filename:join(Folder, <<(hd(Names))/binary, ".directory">>),
      failed => filename:join(Folder, <<(hd(Names))/binary, ".failed">>)}.

-spec bad(io:format(), [term()]) -> no_return().
bad(Format, Arguments) -> error({bad_options, unicode:characters_to_binary(io_lib:format(Format, Arguments))}).

list(Key, Options) ->
    case maps:get(Key, Options, []) of
        List when is_list(List) -> List;
        Other -> bad("~ts is ~0tp; a list of binaries is expected", [Key, Other])
    end.

%% The name becomes part of a file name.
name(Name) when is_binary(Name) ->
    case re:run(Name, "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", [{capture, none}, dollar_endonly]) of
        match -> Name;
        nomatch -> bad("names has ~0tp; a name in lower case such as <<\"example.org\">> is expected", [Name])
    end;
name(Other) -> bad("names has ~0tp; a binary is expected", [Other]).

trust(#{cacertfile := File}) ->
    case yucan_tls:look_at(cacertfile, File) of
        ok -> [{cacertfile, File} | verified()];
        {error, Why} -> bad("cacertfile is ~ts: ~ts", [File, Why])
    end;
trust(_) -> verified().

verified() -> [{verify, verify_peer}, {depth, 10}, {customize_hostname_check, [{match_fun, public_key:pkix_verify_hostname_match_fun(https)}]}].

ensure_certificate(#{certificate := File, names := Names, folder := Folder}) ->
    case filelib:is_regular(File) of
        true -> ok;
        false ->
            ok = filelib:ensure_path(Folder),
            Key = yucan_certificate:new_key(),
            yucan_certificate:write(File, [yucan_certificate:entry(Key), {'Certificate', self_signed(hd(Names), Key, []), not_encrypted}])
    end.

account(#{account := File}) ->
    case file:read_file(File) of
        {ok, Pem} -> [Entry | _] = public_key:pem_decode(Pem), public_key:pem_entry_decode(Entry);
        {error, enoent} ->
            Key = yucan_certificate:new_key(),
            ok = yucan_certificate:write(File, [yucan_certificate:entry(Key)]),
            Key
    end.

%% The key and the certificate are in the same file, so that they change together.
certificates(#{certificate := File}) ->
    {ok, Pem} = file:read_file(File),
    [Der || {'Certificate', Der, not_encrypted} <- public_key:pem_decode(Pem)].

validity(Options) ->
    #'OTPCertificate'{tbsCertificate = #'OTPTBSCertificate'{validity = #'Validity'{notBefore = From, notAfter = To}}} = Certificate =
        public_key:pkix_decode_cert(hd(certificates(Options)), otp),
    {seconds(From), seconds(To), not public_key:pkix_is_self_signed(Certificate)}.

seconds(Time) -> calendar:datetime_to_gregorian_seconds(pubkey_time(Time)) - 62167219200.

pubkey_time({utcTime, [Y1, Y2 | Rest]}) ->
    Year = list_to_integer([Y1, Y2]),
    pubkey_time({generalTime, integer_to_list(Year + case Year >= 50 of true -> 1900; false -> 2000 end) ++ Rest});
pubkey_time({generalTime, Text}) ->
    {ok, [Year, Month, Day, Hour, Minute, Second], _} = io_lib:fread("~4d~2d~2d~2d~2d~2d", Text),
    {{Year, Month, Day}, {Hour, Minute, Second}}.

%% The last order may have been made with different options. Older versions of this module did not store which authority issued a certificate, so a
%% missing file is accepted.
is_wanted(#{names := Names, directory := Directory, origin := Origin} = Options) ->
    yucan_certificate:is_for(Names, hd(certificates(Options))) andalso lists:member(file:read_file(Origin), [{ok, Directory}, {error, enoent}]).

%% The self-signed certificate is valid for a week and is used until the authority has issued the real one.
self_signed(Name, Key, Extensions) ->
    yucan_certificate:self_signed(Name, 7, [yucan_certificate:names([{dNSName, binary_to_list(Name)}]) | Extensions], Key).

offer(<<"http-01">>, Name, Token, Authorization) -> yucan_acme_challenge:put_token(Token, Name, Authorization);
%% The certificate contains the hash of the authorization in a critical extension (RFC 8737, 3).
offer(<<"tls-alpn-01">>, Name, _, Authorization) ->
    Key = yucan_certificate:new_key(),
    Hash = #'Extension'{extnID = {1, 3, 6, 1, 5, 5, 7, 1, 31}, critical = true, extnValue = <<4, 32, (crypto:hash(sha256, Authorization))/binary>>},
    Der = self_signed(Name, Key, [Hash]),
    {Type, KeyDer, _} = yucan_certificate:entry(Key),
    yucan_acme_challenge:put_certificate(Name, [{cert, Der}, {key, {Type, KeyDer}}]).

withdraw(<<"http-01">>, _, Token) -> yucan_acme_challenge:erase_token(Token);
withdraw(<<"tls-alpn-01">>, Name, _) -> yucan_acme_challenge:erase_certificate(Name).

%% @private
-spec init(map()) -> {ok, #state{}}.
init(#{names := Names} = Options) ->
    process_flag(trap_exit, true),
    ok = ensure_certificate(Options),
    ok = yucan_acme_challenge:erase_all(Names),
    {Failures, Wait} = failures(Options),
    State = #state{options = Options, failures = Failures},
    case Wait of
        0 ->
            self() ! look,
            {ok, State};
        _ ->
            yucan_events:warning("the last order for ~ts failed; the next one begins in ~b s", [lists:join(", ", Names), Wait div 1000]),
            {ok, look_later(Wait, State)}
    end.

%% Returns how many orders have failed, and the pause before the next one in ms. Failures are recorded in a file,
%% because a program that is restarted repeatedly must not place an order each time, unless its options have changed.
failures(#{failed := File} = Options) ->
    Hash = hash(Options),
    case {file:read_file(File), file:read_file_info(File, [raw, {time, posix}])} of
        {{ok, <<Failures, Hash/binary>>}, {ok, #file_info{mtime = At}}} ->
            {Failures, max(0, min(?RESTART_MS, pause(Failures - 1)) - max(0, os:system_time(second) - At) * 1000)};
        _ -> {0, 0}
    end.

hash(#{tls := Tls} = Options) ->
    integer_to_binary(erlang:phash2({maps:with([names, directory, challenge, contact], Options), proplists:get_value(cacertfile, Tls)}, 1 bsl 32)).

pause(Failures) -> min(?LOOK_MS, ?RETRY_MS bsl min(Failures, 10)).

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call(status, _, #state{options = Options, last = Last} = State) ->
    {_, Until, Ordered} = validity(Options),
    {reply, #{until => Until, is_ordered => Ordered, last => Last}, State};
handle_call(_, _, State) -> {reply, {error, unknown}, State}.

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast(_, State) -> {noreply, State}.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info(look, #state{options = Options, worker = none} = State) ->
    {From, Until, Ordered} = validity(Options),
    Due = Until - (Until - From) div 3 - os:system_time(second),
    case Ordered andalso Due > 0 andalso is_wanted(Options) of
        true -> {noreply, look_later(min(?LOOK_MS, Due * 1000), State)};
        false -> {noreply, start_order(State)}
    end;
handle_info({'DOWN', Monitor, process, _, Reason}, #state{worker = {_, Monitor, Timer}} = State) ->
    _ = erlang:cancel_timer(Timer),
    {noreply, ended(Reason, State#state{worker = none})};
handle_info(too_long, #state{worker = {Pid, _, _}} = State) ->
    exit(Pid, kill),
    {noreply, State};
handle_info(_, State) -> {noreply, State}.

look_later(Ms, State) ->
    _ = erlang:send_after(Ms, self(), look),
    State.

start_order(#state{options = Options} = State) ->
    {Pid, Monitor} = spawn_opt(?MODULE, order, [Options], [link, monitor]),
    State#state{worker = {Pid, Monitor, erlang:send_after(?ORDER_MS, self(), too_long)}}.

%% @private The body of the process that places an order.
-spec order(map()) -> no_return().
order(Options) -> exit(ordered(Options)).

ordered(#{challenge := Kind, certificate := File, tls := Tls, directory := Directory, origin := Origin} = Options) ->
    Key = yucan_certificate:new_key(),
    Order = (maps:with([directory, names, contact, challenge], Options))#{
        account => account(Options), key => Key, tls => trusted(Tls),
        offer => fun(Name, Token, Authorization) -> offer(Kind, Name, Token, Authorization) end,
        withdraw => fun(Name, Token) -> withdraw(Kind, Name, Token) end},
    try yucan_acme_client:order(Order) of
        Chain ->
            ok = yucan_certificate:write(File, [yucan_certificate:entry(Key) | Chain]),
            ok = file:write_file(Origin, Directory),
            %% Without this, ssl would use the cached old file for a few minutes.
            ssl:clear_pem_cache(),
            {shutdown, ordered}
    catch
        throw:{acme, Text} -> {shutdown, {failed, Text}}
    end.

trusted(Tls) ->
    case lists:keymember(cacertfile, 1, Tls) of
        true -> Tls;
        false -> [{cacerts, public_key:cacerts_get()} | Tls]
    end.

ended({shutdown, ordered}, #state{options = #{failed := File}} = State) ->
    _ = file:delete(File),
    self() ! look,
    State#state{failures = 0, last = ok};
ended(Reason, #state{failures = Failures, options = #{names := Names, failed := File} = Options} = State) ->
    Text = case Reason of
        {shutdown, {failed, Said}} -> Said;
        killed -> <<"the order took too long">>;
        _ -> unicode:characters_to_binary(io_lib:format("~0tP", [Reason, 20]))
    end,
    Pause = pause(Failures),
    ok = yucan_acme_challenge:erase_all(Names),
    _ = file:write_file(File, <<(min(Failures + 1, 255)), (hash(Options))/binary>>),
    yucan_events:warning("no certificate for ~ts: ~ts; it tries again in ~b s", [lists:join(", ", Names), Text, Pause div 1000]),
    look_later(Pause, State#state{failures = Failures + 1, last = {error, Text}}).

%% @private
-spec terminate(term(), #state{}) -> ok.
terminate(_, #state{worker = {Pid, Monitor, _}, options = #{names := Names}}) ->
    exit(Pid, kill),
    receive {'DOWN', Monitor, process, _, _} -> yucan_acme_challenge:erase_all(Names) end;
terminate(_, _) -> ok.
