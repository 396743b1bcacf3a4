/* SPDX-License-Identifier: Apache-2.0 */
#include "run_state.h"

#include <errno.h>
#include <sys/inotify.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define SOCKET_BYTES 96

/* ---- starting ---- */

/* Returns the node whose ssh connection node i uses, which is node i itself or an earlier node on
 * the same host. */
static size_t master_of(const rd_run_t *run, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (strcmp(run->chain->of[j].host, run->chain->of[i].host) == 0)
            return j;
    return i;
}

static bool is_shared(const rd_run_t *run, size_t i)
{
    for (size_t j = 0; j < rd_run_count(run); j++)
        if (j != i && strcmp(run->chain->of[j].host, run->chain->of[i].host) == 0)
            return *run->chain->of[i].host != 0;
    return false;
}

static bool make_directory(rd_run_t *run, rd_why_t *why)
{
    const char *base = getenv("TMPDIR");
    uint64_t name; /* random, because the directory of this name is removed at the end */

    if (!base || *base != '/' || strlen(base) > 32)
        base = "/tmp";
    if (getrandom(&name, sizeof name, 0) != (ssize_t)sizeof name)
        return rd_because(why, "getrandom: %s", strerror(errno));
    (void)snprintf(run->directory, sizeof run->directory, "%s/rdpipe-%016llx", base,
                   (unsigned long long)name);
    if (!rd_guard_directory(&run->guard, run->directory))
        return rd_because(why, "a guard of this pipeline was killed");
    if (mkdir(run->directory, 0700) == 0) {
        run->sockets = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
        (void)inotify_add_watch(run->sockets, run->directory, IN_CREATE);
        return true;
    }
    (void)rd_because(why, "cannot create a directory in %s: %s", base, strerror(errno));
    run->directory[0] = 0;
    (void)rd_guard_directory(&run->guard, "");
    return false;
}

/* Writes the path of the socket on which node i's master ssh listens once it is logged in. */
static void socket_of(const rd_run_t *run, size_t i, char path[SOCKET_BYTES])
{
    (void)snprintf(path, SOCKET_BYTES, "%s/%zu", run->directory, master_of(run, i));
}

/* Returns which standard streams the node's agent needs. An agent for a file gets both, because the
 * file may be /dev/stdin or /dev/stdout. */
static unsigned needs_of(const rd_run_t *run, size_t i)
{
    switch (run->chain->of[i].work) {
    case RD_WORK_STDIN:
        return 1U << 0;
    case RD_WORK_STDOUT:
        return 1U << 1;
    case RD_WORK_FROM_FILE:
    case RD_WORK_TO_FILE:
    case RD_WORK_APPEND:
        return 1U << 0 | 1U << 1;
    default:
        return 0;
    }
}

static void start_channel(rd_run_t *run, size_t i)
{
    rd_share_t share = !is_shared(run, i)       ? RD_SHARE_NO
                       : master_of(run, i) == i ? RD_SHARE_MASTER
                                                : RD_SHARE_USE;
    char socket[SOCKET_BYTES];
    rd_why_t why = {.text = ""};

    if (share == RD_SHARE_MASTER && !run->directory[0] && !make_directory(run, &why)) {
        rd_run_fault(run, i, why.cause, why.text);
        return;
    }
    socket_of(run, i, socket);
    run->of[i].is_started = true;
    if (!rd_channel_start(&run->of[i].channel, run->chain->of[i].host, needs_of(run, i),
                          &run->settings->ssh, share, socket, &why))
        rd_run_fault(run, i, why.cause, why.text);
}

/* With the user's own ControlPath the socket is not in our directory, so wait for the master's
 * hello instead. */
static bool may_start(const rd_run_t *run, size_t i)
{
    char socket[SOCKET_BYTES];

    socket_of(run, i, socket);
    return !is_shared(run, i) || master_of(run, i) == i || run->of[master_of(run, i)].has_hello ||
           access(socket, F_OK) == 0;
}

void rd_run_connect(rd_run_t *run)
{
    char ignored[1024];

    while (read(run->sockets, ignored, sizeof ignored) > 0)
        ;
    for (size_t i = 0; i < rd_run_count(run) && !run->is_faulty; i++)
        if (!run->of[i].is_started && may_start(run, i))
            start_channel(run, i);
}

/* ---- sending the instructions ---- */

static void send_line(rd_run_t *run, size_t i, rd_line_t *line)
{
    if (run->of[i].channel.to < 0 || !rd_line_send(line, run->of[i].channel.to))
        rd_run_fault(run, i, RD_CAUSE_LOST, "the agent stopped answering");
}

/* Returns the address from --address, whose HOST may omit the user. */
static const char *forced_address(const rd_run_t *run, const char *host)
{
    const char *at = strrchr(host, '@');
    size_t len = strlen(host);

    for (size_t i = 0; i < run->settings->address_count; i++)
        if (strncmp(run->settings->addresses[i], host, len) == 0 &&
            run->settings->addresses[i][len] == '=')
            return run->settings->addresses[i] + len + 1;
    return at ? forced_address(run, at + 1) : NULL;
}

static rd_place_t place_of(const rd_run_t *run, size_t i)
{
    const char *host = run->chain->of[i].host;

    return (rd_place_t){.is_here = !*host,
                        .host = host,
                        .ssh = run->of[i].ssh ? run->of[i].ssh : "",
                        .forced = forced_address(run, host)};
}

static void add_key(rd_line_t *line, const rd_key_t *key)
{
    char hex[2 * RD_KEY_BYTES + 1];

    rd_key_to_hex(key, hex);
    rd_line_add(line, "key", hex);
    rd_wipe(hex, sizeof hex);
}

/* Returns whether node i has the buffer of --buffer: each receiver, the last segment, and our
 * standard output after it have one. */
static bool has_buffer(const rd_run_t *run, size_t i)
{
    const rd_node_t *of = run->chain->of;
    size_t last = rd_run_count(run) - 1;

    return of[i].is_receiver || i == last || (i + 1 == last && of[last].work == RD_WORK_STDOUT);
}

static void tell_segment(rd_run_t *run, size_t i)
{
    const rd_node_t *node = &run->chain->of[i];
    const rd_settings_t *settings = run->settings;
    const rd_peer_t *peer = &run->of[i];
    rd_line_t line;

    rd_line_begin(&line, "segment");
    rd_line_add(&line, "work", rd_work_name(node->work));
    rd_line_add(&line, "text", node->text);
    rd_line_number(&line, "in", i > 0);
    rd_line_number(&line, "out", i + 1 < rd_run_count(run));
    rd_line_number(&line, "tee", node->is_receiver);
    rd_line_number(&line, "block", settings->cli.terms.block);
    rd_line_number(&line, "zstd", (uint64_t)settings->cli.terms.zstd);
    rd_line_number(&line, "streams", settings->cli.terms.streams);
    rd_line_add(&line, "congestion",
                settings->cli.terms.congestion ? settings->cli.terms.congestion : "");
    rd_line_number(&line, "flags", settings->cli.terms.flags);
    rd_line_number(&line, "carriers", settings->cli.terms.carriers);
    rd_line_number(&line, "rate", settings->cli.rate);
    if (node->is_receiver)
        rd_line_number(&line, "drop", settings->cli.drop_s);
    if (has_buffer(run, i)) {
        rd_line_number(&line, "buffer", settings->cli.buffer);
        rd_line_number(&line, "start", settings->cli.start);
    }
    rd_line_number(&line, "first", settings->port_first);
    rd_line_number(&line, "last", settings->port_last);
    if (peer != run->of) {
        rd_line_add(&line, "bind", peer->address);
        rd_line_add(&line, "before", rd_run_name(run, i - 1));
        add_key(&line, &peer->key);
    }
    send_line(run, i, &line);
}

void rd_run_tell_segments(rd_run_t *run)
{
    rd_why_t why = {.text = ""};

    run->are_told = true;
    for (size_t i = 1; i < rd_run_count(run); i++) {
        rd_place_t producer = place_of(run, i - 1), consumer = place_of(run, i);

        if (!rd_route(&producer, &consumer, run->of[i].address, &why) ||
            !rd_key_random(&run->of[i].key, &why)) {
            rd_run_fault(run, i, why.cause, why.text);
            return;
        }
    }
    for (size_t i = 0; i < rd_run_count(run); i++)
        tell_segment(run, i);
}

void rd_run_tell_next(rd_run_t *run)
{
    run->have_ports = true;
    for (size_t i = 0; i + 1 < rd_run_count(run); i++) {
        rd_line_t line;

        rd_line_begin(&line, "next");
        rd_line_add(&line, "host", run->of[i + 1].address);
        rd_line_number(&line, "port", run->of[i + 1].port);
        rd_line_add(&line, "name", rd_run_name(run, i + 1));
        add_key(&line, &run->of[i + 1].key);
        send_line(run, i, &line);
        rd_key_wipe(&run->of[i + 1].key);
    }
}

void rd_run_tell_start(rd_run_t *run)
{
    run->are_started = true;
    run->started_ms = rd_now_ms();
    rd_speed_begin(&run->speed, run->started_ms);
    run->show_ms = run->started_ms + rd_progress_ms(&run->settings->cli);
    run->give_up_ms = 0;
    for (size_t i = 0; i < rd_run_count(run); i++) {
        rd_line_t line;

        rd_line_begin(&line, "start");
        send_line(run, i, &line);
    }
}

/* Sends an agent a message, with a number unless `name` is NULL. An agent that has exited needs no
 * more messages; its channel reports the exit. */
static void tell(const rd_peer_t *peer, const char *what, const char *name, uint64_t number)
{
    rd_line_t line;

    if (peer->channel.to < 0 || peer->has_said_bye || peer->is_lost)
        return;
    rd_line_begin(&line, what);
    if (name)
        rd_line_number(&line, name, number);
    (void)rd_line_send(&line, peer->channel.to);
}

void rd_run_tell_taken(rd_run_t *run, size_t i, size_t bytes)
{
    tell(&run->of[i], "taken", "bytes", bytes);
}

void rd_run_tell_quit(rd_run_t *run)
{
    for (size_t i = 0; i < rd_run_count(run); i++)
        if (run->chain->of[i].is_receiver)
            tell(&run->of[i], "quit", NULL, 0);
}

void rd_run_tell_signal(rd_run_t *run, int sig)
{
    for (size_t i = 0; i < rd_run_count(run); i++)
        tell(&run->of[i], "signal", "number", (uint64_t)sig);
}
