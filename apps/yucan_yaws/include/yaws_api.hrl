%% SPDX-License-Identifier: Apache-2.0
%% The records that modules written for Yaws use. The fields and their order are defined by Yaws, but the comments are ours.
-ifndef(YAWS_API_HRL).
-define(YAWS_API_HRL, true).

%% The argument of out/1.
-record(arg, {clisock,            %% represents the client's connection, for yaws_api:stream_process_deliver/2
              client_ip_port,     %% {Address, Port}
              headers,            %% #headers{}
              req,                %% #http_request{}, after arg_rewrite/1
              orig_req,           %% #http_request{}, as the client sent it
              clidata,            %% the body: binary(), or {partial, binary()} if more will come
              server_path,        %% the path of the request, decoded
              querydata,          %% the query, a string; "" if there is none
              appmoddata,         %% the path after an appmod, without a leading slash
              docroot,            %% the (first) docroot
              docroot_mount,      %% where docroot is mounted: "/"
              fullpath,           %% the file
              cont,               %% the Cont of {get_more, Cont, State}
              state,              %% its State, or a #rewrite_response{} from arg_rewrite/1
              pid,                %% the process of the connection
              opaque,             %% the <opaque> of the server, or what arg_rewrite/1 has set
              appmod_prepath,     %% the path before an appmod
              prepath,            %% the path without its last part
              pathinfo,           %% the path after a script or an appmod, or undefined
              appmod_name}).      %% the appmod, or undefined

-record(http_request, {method,    %% an atom such as 'GET', or a string
                       path,      %% {abs_path, "/path?query"}
                       version}). %% {1, 1}

-record(headers, {connection, accept, host, if_modified_since, if_match, if_none_match, if_range, if_unmodified_since,
                  range, referer, user_agent, accept_ranges,
                  cookie = [],    %% a list of strings
                  keep_alive, location, content_length, content_type, content_encoding,
                  authorization,  %% {User, Password, Text} or undefined
                  transfer_encoding, x_forwarded_for,
                  other = []}).   %% [{http_header, 0, Name, undefined, Value}]

-record(url, {scheme,             %% "http" or "https"
              host,               %% a string
              port,               %% a number or undefined
              path = [],          %% a string
              querypart = []}).   %% a string

-record(cookie, {key, value, quoted = false}).

-record(setcookie, {key, value, quoted = false, domain, max_age, expires, path, secure = false, http_only = false, extensions = []}).

-record(redir_self, {host, scheme, scheme_str, port, port_str}).

%% If arg_rewrite/1 puts this record into the state of #arg{}, it is the response.
-record(rewrite_response, {status, headers = [], content = <<>>}).

-endif.
