/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "route.h"
#include "status.h"

#define HELLO_MS 120000 /* somebody may have to type a password */
#define READY_MS 45000
#define WIND_UP_MS 6000 /* after a fault the others may end by themselves so long */
#define SIGNAL_MS 2000  /* as long may commands take that were sent a signal */
#define CLOSE_MS 9000   /* agents clean up so long, then ssh is ended */
#define SHOW_MS 500

typedef struct {
    rd_channel_t channel;
    char *ssh; /* its SSH_CONNECTION */
    bool is_started, has_hello, has_port, is_ready, has_said_bye, is_lost;
    uint16_t port;
    rd_key_t key; /* of the hop that comes in */
    char address[RD_ADDRESS_BYTES];
    char carrier[16], why[160]; /* of the hop that comes in */
    uint64_t bytes, shown;      /* that came in */
    int status;                 /* of its command; 0 if it has none */
} peer_t;

typedef struct {
    const rd_chain_t *chain;
    const rd_settings_t *settings;
    peer_t of[RD_NODES_MAX];
    rd_guard_t guard;
    char directory[64]; /* of the masters' sockets, "" if there is none */
    int signals, got_signal;
    bool are_told, have_ports, are_started, is_faulty;
    rd_why_t fault;
    unsigned fault_rank; /* how likely it is only a consequence */
    uint64_t size;       /* of what comes first, 0: unknown */
    int64_t began_ms, started_ms, ended_ms, give_up_ms, show_ms;
} run_t;

static size_t count_of(const run_t *run)
{
    return run->chain->count;
}

static const char *name_of(const run_t *run, size_t i)
{
    const char *host = run->chain->of[i].host;

    return *host ? host : "this host";
}

static void soon(run_t *run, int64_t ms)
{
    int64_t at = rd_now_ms() + ms;

    if (run->give_up_ms == 0 || at < run->give_up_ms)
        run->give_up_ms = at;
}

/* ---- faults ---- */

/* What is said because of another fault comes often first. */
static unsigned rank_of(const char *text)
{
    return strstr(text, "stopped") || strstr(text, "rdpipe is gone") ? 2
           : strstr(text, "was lost") || strstr(text, "closed the connection") ||
                   strstr(text, "stopped to answer")
               ? 1
               : 0;
}

static void fault(run_t *run, size_t i, const char *text)
{
    unsigned rank = rank_of(text);

    if (run->settings->cli.verbose)
        rd_say(&run->settings->cli, "%s: %s", name_of(run, i), text);
    if (!run->is_faulty || rank < run->fault_rank) {
        (void)rd_because(&run->fault, "%s: %s", name_of(run, i), text);
        run->fault_rank = rank;
    }
    if (!run->is_faulty)
        soon(run, run->are_started ? WIND_UP_MS : 0);
    run->is_faulty = true;
}

/* ---- starting ---- */

static bool is_first_of_host(const run_t *run, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (strcmp(run->chain->of[j].host, run->chain->of[i].host) == 0)
            return false;
    return true;
}

/* The node whose connection node i uses: its own, or an earlier one's. */
static size_t master_of(const run_t *run, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (strcmp(run->chain->of[j].host, run->chain->of[i].host) == 0)
            return j;
    return i;
}

static bool is_shared(const run_t *run, size_t i)
{
    for (size_t j = 0; j < count_of(run); j++)
        if (j != i && strcmp(run->chain->of[j].host, run->chain->of[i].host) == 0)
            return *run->chain->of[i].host != 0;
    return false;
}

static bool make_directory(run_t *run, rd_why_t *why)
{
    const char *base = getenv("TMPDIR");
    uint64_t name; /* that nobody else has: what has it is removed in the end */

    if (!base || *base != '/' || strlen(base) > 32)
        base = "/tmp";
    if (getrandom(&name, sizeof name, 0) != (ssize_t)sizeof name)
        return rd_because(why, "getrandom: %s", strerror(errno));
    (void)snprintf(run->directory, sizeof run->directory, "%s/rdpipe-%016llx", base,
                   (unsigned long long)name);
    if (!rd_guard_directory(&run->guard, run->directory))
        return rd_because(why, "the guard of this pipeline was killed");
    if (mkdir(run->directory, 0700) == 0)
        return true;
    (void)rd_because(why, "a directory in %s: %s", base, strerror(errno));
    run->directory[0] = 0;
    (void)rd_guard_directory(&run->guard, "");
    return false;
}

static void start_channel(run_t *run, size_t i)
{
    size_t master = master_of(run, i);
    rd_share_t share = !is_shared(run, i) ? RD_SHARE_NO
                       : master == i      ? RD_SHARE_MASTER
                                          : RD_SHARE_USE;
    char socket[96];
    rd_why_t why = {""};

    if (share == RD_SHARE_MASTER && !run->directory[0] && !make_directory(run, &why)) {
        fault(run, i, why.text);
        return;
    }
    (void)snprintf(socket, sizeof socket, "%s/%zu", run->directory, master);
    run->of[i].is_started = true;
    if (!rd_channel_start(&run->of[i].channel, run->chain->of[i].host, &run->settings->ssh, share,
                          socket, &why))
        fault(run, i, why.text);
}

/* Masters at once, the others as soon as theirs is there. */
static void start_channels(run_t *run)
{
    for (size_t i = 0; i < count_of(run) && !run->is_faulty; i++)
        if (!run->of[i].is_started && (!is_shared(run, i) || is_first_of_host(run, i) ||
                                       run->of[master_of(run, i)].has_hello))
            start_channel(run, i);
}

/* ---- telling them ---- */

static void send_line(run_t *run, size_t i, rd_line_t *line)
{
    if (run->of[i].channel.to < 0 || !rd_line_send(line, run->of[i].channel.to))
        fault(run, i, "the agent stopped to answer");
}

static const char *forced_address(const run_t *run, const char *host)
{
    size_t len = strlen(host);

    for (size_t i = 0; i < run->settings->address_count; i++)
        if (strncmp(run->settings->addresses[i], host, len) == 0 &&
            run->settings->addresses[i][len] == '=')
            return run->settings->addresses[i] + len + 1;
    return NULL;
}

static rd_place_t place_of(const run_t *run, size_t i)
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

static void tell_segment(run_t *run, size_t i)
{
    const rd_node_t *node = &run->chain->of[i];
    const rd_settings_t *settings = run->settings;
    const peer_t *peer = &run->of[i];
    rd_line_t line;

    rd_line_begin(&line, "segment");
    rd_line_add(&line, "work", rd_work_name(node->work));
    rd_line_add(&line, "text", node->text);
    rd_line_number(&line, "in", i > 0);
    rd_line_number(&line, "out", i + 1 < count_of(run));
    rd_line_number(&line, "tee", node->is_receiver);
    rd_line_number(&line, "block", settings->cli.terms.block);
    rd_line_number(&line, "zstd", (uint64_t)settings->cli.terms.zstd);
    rd_line_number(&line, "flags", settings->cli.terms.flags);
    rd_line_number(&line, "carriers", settings->cli.terms.carriers);
    rd_line_number(&line, "first", settings->port_first);
    rd_line_number(&line, "last", settings->port_last);
    if (peer != run->of) {
        rd_line_add(&line, "bind", peer->address);
        add_key(&line, &peer->key);
    }
    send_line(run, i, &line);
}

static void tell_segments(run_t *run)
{
    rd_why_t why = {""};

    run->are_told = true;
    for (size_t i = 1; i < count_of(run); i++) {
        rd_place_t producer = place_of(run, i - 1), consumer = place_of(run, i);

        if (!rd_route(&producer, &consumer, run->of[i].address, &why) ||
            !rd_key_random(&run->of[i].key, &why)) {
            fault(run, i, why.text);
            return;
        }
    }
    for (size_t i = 0; i < count_of(run); i++)
        tell_segment(run, i);
}

static void tell_next(run_t *run)
{
    run->have_ports = true;
    for (size_t i = 0; i + 1 < count_of(run); i++) {
        rd_line_t line;

        rd_line_begin(&line, "next");
        rd_line_add(&line, "host", run->of[i + 1].address);
        rd_line_number(&line, "port", run->of[i + 1].port);
        add_key(&line, &run->of[i + 1].key);
        send_line(run, i, &line);
        rd_key_wipe(&run->of[i + 1].key);
    }
}

static void tell_start(run_t *run)
{
    run->are_started = true;
    run->started_ms = rd_now_ms();
    run->give_up_ms = 0;
    for (size_t i = 0; i < count_of(run); i++) {
        rd_line_t line;

        rd_line_begin(&line, "start");
        send_line(run, i, &line);
    }
}

static void tell_signal(run_t *run, int sig)
{
    for (size_t i = 0; i < count_of(run); i++) {
        rd_line_t line;

        if (run->of[i].channel.to < 0 || run->of[i].has_said_bye)
            continue;
        rd_line_begin(&line, "signal");
        rd_line_number(&line, "number", (uint64_t)sig);
        (void)rd_line_send(&line, run->of[i].channel.to);
    }
}

/* ---- hearing them ---- */

static void take_hello(run_t *run, size_t i, const char *line)
{
    char *control = rd_line_value(line, "control", NULL);
    char *version = rd_line_value(line, "version", NULL);
    rd_why_t why;

    run->of[i].has_hello = true;
    run->of[i].ssh = rd_line_value(line, "ssh", NULL);
    if (!control || strcmp(control, RD_CONTROL_VERSION) != 0) {
        (void)rd_because(&why,
                         "rdpipe there is version %s (protocol %s), here it is %s (protocol %s): "
                         "install the same version on both",
                         version ? version : "?", control ? control : "?", RD_VERSION,
                         RD_CONTROL_VERSION);
        fault(run, i, why.text);
    }
    free(control);
    free(version);
}

static void copy_value(const char *line, const char *name, char *to, size_t bytes)
{
    char *value = rd_line_value(line, name, NULL);

    (void)snprintf(to, bytes, "%.150s", value ? value : "");
    free(value);
}

static void take_hop(run_t *run, size_t i, const char *line)
{
    char side[8];

    copy_value(line, "side", side, sizeof side);
    if (strcmp(side, "in") != 0)
        return;
    copy_value(line, "carrier", run->of[i].carrier, sizeof run->of[i].carrier);
    copy_value(line, "why", run->of[i].why, sizeof run->of[i].why);
    if (run->settings->cli.verbose)
        rd_say(&run->settings->cli, "%s to %s: %s (%s)", name_of(run, i - 1), name_of(run, i),
               run->of[i].carrier, run->of[i].why);
}

/* A reader of our own output that wants no more ends us as SIGPIPE would. */
static void take_over(run_t *run, size_t i, const char *line)
{
    char side[8], outcome[16];

    copy_value(line, "side", side, sizeof side);
    copy_value(line, "outcome", outcome, sizeof outcome);
    if (strcmp(side, "in") == 0)
        (void)rd_line_value_number(line, "bytes", UINT64_MAX, &run->of[i].bytes);
    if (run->chain->of[i].work == RD_WORK_STDOUT && strcmp(outcome, "quit") == 0)
        run->of[i].status = RD_EXIT_QUIT;
}

static void take_output(const char *line)
{
    size_t len = 0, done = 0;
    char *data = rd_line_value(line, "data", &len);

    while (data && done < len) {
        ssize_t n = write(1, data + done, len - done);

        if (n < 0 && errno != EINTR)
            break;
        done += n > 0 ? (size_t)n : 0;
    }
    free(data);
}

static void take_line(run_t *run, size_t i, const char *line)
{
    peer_t *peer = &run->of[i];
    uint64_t number = 0;

    if (!peer->has_hello) { /* what a login shell prints comes first */
        if (rd_line_is(line, RD_CONTROL_HELLO))
            take_hello(run, i, line);
    } else if (rd_line_is(line, "port") && rd_line_value_number(line, "number", 65535, &number)) {
        peer->port = (uint16_t)number;
        peer->has_port = true;
    } else if (rd_line_is(line, "hop")) {
        take_hop(run, i, line);
    } else if (rd_line_is(line, "ready")) {
        peer->is_ready = true;
    } else if (rd_line_is(line, "bytes")) {
        (void)rd_line_value_number(line, "in", UINT64_MAX, &peer->bytes);
        if (i == 0)
            (void)rd_line_value_number(line, "size", UINT64_MAX, &run->size);
    } else if (rd_line_is(line, "output")) {
        take_output(line);
    } else if (rd_line_is(line, "over")) {
        take_over(run, i, line);
    } else if (rd_line_is(line, "status") && rd_line_value_number(line, "value", 255, &number)) {
        peer->status = (int)number;
    } else if (rd_line_is(line, "fault")) {
        char *why = rd_line_value(line, "why", NULL);

        fault(run, i, why ? why : "failed");
        free(why);
    } else if (rd_line_is(line, "bye")) {
        peer->has_said_bye = true;
    }
}

/* An agent that has gone without a word. */
static void take_loss(run_t *run, size_t i)
{
    peer_t *peer = &run->of[i];
    const char *path = run->settings->ssh.remote_path;
    rd_why_t why;

    peer->is_lost = true;
    if (peer->has_said_bye || run->got_signal)
        return;
    if (peer->has_hello)
        (void)rd_because(&why, "the agent there was lost: it was killed, or ssh's connection is "
                               "gone");
    else if (peer->channel.is_reaped && peer->channel.status == 127)
        (void)rd_because(&why,
                         "no 'rdpipe' %s%s there: install Beamway's commands, or say where they "
                         "are by --remote-path DIR",
                         path ? "in " : "on the PATH", path ? path : "");
    else if (peer->channel.is_reaped && peer->channel.status == RD_EXIT_USAGE)
        (void)rd_because(&why, "the 'rdpipe' there is another program, or an older version than %s",
                         RD_VERSION);
    else
        (void)rd_because(&why, "ssh has failed (status %d)", peer->channel.status);
    fault(run, i, why.text);
}

static void listen_to(run_t *run, size_t i)
{
    rd_lines_t *lines = &run->of[i].channel.from;
    char *line;

    rd_lines_fill(lines);
    while ((line = rd_lines_next(lines)))
        take_line(run, i, line);
}

/* ---- the line on a terminal ---- */

static void show_progress(run_t *run)
{
    char text[512], rate[32], total[32], left[48];
    size_t slowest = 0, len = 0;
    int64_t now = rd_now_ms(), s = (now - run->started_ms) / 1000;

    if (!run->are_started || !isatty(2) || rd_left_ms(run->show_ms) > 0)
        return;
    run->show_ms = now + SHOW_MS;
    for (size_t i = 1; i < count_of(run); i++)
        if (slowest == 0 ||
            run->of[i].bytes - run->of[i].shown < run->of[slowest].bytes - run->of[slowest].shown)
            slowest = i;
    rd_amount(total, (double)run->of[1].bytes, "B");
    rd_left(left, run->of[1].bytes, run->size, now - run->started_ms);
    len = (size_t)snprintf(text, sizeof text, "%d:%02d %s %s ", (int)(s / 60), (int)(s % 60), total,
                           left);
    for (size_t i = 1; i < count_of(run) && len < sizeof text - 100; i++) {
        rd_amount(rate, (double)(run->of[i].bytes - run->of[i].shown) * 1000 / SHOW_MS, "B/s");
        len += (size_t)snprintf(text + len, sizeof text - len, " %s>%.30s %s%s",
                                i == 1 ? name_of(run, 0) : "", name_of(run, i), rate,
                                i == slowest && count_of(run) > 2 ? "*" : "");
        run->of[i].shown = run->of[i].bytes;
    }
    (void)fprintf(stderr, "\r%s\033[K", text);
}

/* ---- for others to see ---- */

static void write_hops(const run_t *run, FILE *to)
{
    for (size_t i = 1; i < count_of(run); i++) {
        (void)fprintf(to, "%s{\"from\": ", i > 1 ? ", " : "");
        rd_json_text(to, run->chain->of[i - 1].host);
        (void)fprintf(to, ", \"to\": ");
        rd_json_text(to, run->chain->of[i].host);
        (void)fprintf(to, ", \"carrier\": \"%s\", \"bytes\": %llu}", run->of[i].carrier,
                      (unsigned long long)run->of[i].bytes);
    }
}

/* Agents tell of their bytes twice a second, so this is passed often enough. */
static void tell_status(const run_t *run, rd_status_t *status)
{
    FILE *to = run->are_started ? rd_status_open(status) : NULL;

    if (!to)
        return;
    (void)fprintf(to, "{\"started_at\": %lld, \"hops\": [",
                  (long long)(time(NULL) - (rd_now_ms() - run->started_ms) / 1000));
    write_hops(run, to);
    (void)fprintf(to, "]}\n");
    rd_status_close(status, to);
}

/* ---- running ---- */

static bool all_have(const run_t *run, bool (*has)(const run_t *, size_t))
{
    for (size_t i = 0; i < count_of(run); i++)
        if (!has(run, i))
            return false;
    return true;
}

static bool has_hello(const run_t *run, size_t i)
{
    return run->of[i].has_hello;
}

static bool has_port(const run_t *run, size_t i)
{
    return i == 0 || run->of[i].has_port;
}

static bool is_ready(const run_t *run, size_t i)
{
    return run->of[i].is_ready;
}

static bool is_over(const run_t *run, size_t i)
{
    return run->of[i].has_said_bye || run->of[i].is_lost || run->of[i].channel.pid == 0;
}

static void step(run_t *run)
{
    if (run->is_faulty || run->got_signal)
        return;
    start_channels(run);
    if (!run->are_told && all_have(run, has_hello)) {
        run->give_up_ms = rd_now_ms() + READY_MS;
        tell_segments(run);
    } else if (run->are_told && !run->have_ports && all_have(run, has_port)) {
        tell_next(run);
    } else if (run->have_ports && !run->are_started && all_have(run, is_ready)) {
        tell_start(run);
    }
}

static void take_signal(run_t *run)
{
    struct signalfd_siginfo info;

    while (read(run->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD)
            continue;
        if (run->got_signal)
            soon(run, 0);
        run->got_signal = (int)info.ssi_signo;
        tell_signal(run, run->got_signal);
        soon(run, run->are_started ? SIGNAL_MS : 0);
    }
}

static int next_ms(const run_t *run)
{
    int ms = run->give_up_ms ? rd_left_ms(run->give_up_ms) + 1 : -1;

    if (run->are_started && isatty(2) && (ms < 0 || ms > SHOW_MS))
        ms = SHOW_MS;
    return ms;
}

static void turn(run_t *run)
{
    struct pollfd polled[RD_NODES_MAX + 2] = {{.fd = run->signals, .events = POLLIN}};
    size_t last = count_of(run) + 1;

    for (size_t i = 0; i < count_of(run); i++) {
        const peer_t *peer = &run->of[i];

        polled[i + 1] = (struct pollfd){.fd = peer->is_lost || peer->channel.pid == 0 ||
                                                      peer->channel.from.has_ended
                                                  ? -1
                                                  : peer->channel.from.fd,
                                        .events = POLLIN};
    }
    polled[last] = (struct pollfd){.fd = run->is_faulty ? -1 : run->guard.fd, .events = POLLIN};
    (void)poll(polled, last + 1, next_ms(run));
    take_signal(run);
    if (polled[last].revents)
        fault(run, 0, "the guard of this pipeline was killed");
    for (size_t i = 0; i < count_of(run); i++) {
        if (polled[i + 1].revents)
            listen_to(run, i);
        /* The status says why, so its end is waited for. */
        if (run->of[i].channel.from.has_ended && !run->of[i].is_lost &&
            run->of[i].channel.pid > 0 && rd_channel_reap(&run->of[i].channel))
            take_loss(run, i);
    }
}

static bool goes_on(run_t *run)
{
    if (all_have(run, is_over))
        return false;
    if (run->give_up_ms == 0 || rd_left_ms(run->give_up_ms) > 0)
        return true;
    for (size_t i = 0; i < count_of(run) && !run->is_faulty && !run->got_signal; i++)
        if (!run->of[i].has_hello || !run->of[i].is_ready)
            fault(run, i, run->of[i].has_hello ? "not ready in time" : "no answer over ssh");
    return false;
}

/* Agents see the end of their channel and clean up; then ssh ends. What comes is still read, so
 * that nobody waits for us. */
static void close_all(run_t *run)
{
    int64_t deadline = rd_now_ms() + CLOSE_MS;
    bool left = true, is_ended = false;

    for (size_t i = 0; i < count_of(run); i++)
        rd_channel_close(&run->of[i].channel);
    while (left) {
        left = false;
        for (size_t i = 0; i < count_of(run); i++)
            left |= !rd_channel_reap(&run->of[i].channel);
        if (left && rd_left_ms(deadline) == 0) {
            if (is_ended)
                break;
            is_ended = true;
            deadline = rd_now_ms() + 1000;
            for (size_t i = 0; i < count_of(run); i++)
                if (!rd_channel_reap(&run->of[i].channel))
                    (void)kill(run->of[i].channel.pid, SIGTERM);
        }
        for (size_t i = 0; left && i < count_of(run); i++) {
            rd_lines_t *lines = &run->of[i].channel.from;
            struct pollfd polled = {.fd = lines->has_ended ? -1 : lines->fd, .events = POLLIN};

            if (run->of[i].channel.pid > 0 && poll(&polled, 1, 5) > 0)
                listen_to(run, i);
            else
                (void)poll(NULL, 0, 2);
        }
    }
}

/* ---- the end ---- */

static int status_of(const run_t *run)
{
    int status = 0;

    if (run->is_faulty)
        return RD_EXIT_OWN;
    for (size_t i = 0; i < count_of(run); i++)
        if (run->of[i].status != 0)
            status = run->of[i].status;
    return status;
}

static double seconds_of(const run_t *run)
{
    return run->started_ms ? (double)(run->ended_ms - run->started_ms) / 1000 : 0;
}

static void report_json(const run_t *run, int status)
{
    double seconds = seconds_of(run);

    (void)fprintf(stderr, "{\"command\": \"%s\", \"status\": %d, \"seconds\": %.3f, \"hops\": [",
                  run->settings->cli.name, status, seconds);
    write_hops(run, stderr);
    (void)fprintf(stderr, "], \"segments\": [");
    for (size_t i = 0; i < count_of(run); i++) {
        (void)fprintf(stderr, "%s{\"host\": ", i > 0 ? ", " : "");
        rd_json_text(stderr, run->chain->of[i].host);
        (void)fprintf(stderr, ", \"work\": \"%s\", \"status\": %d}",
                      rd_work_name(run->chain->of[i].work), run->of[i].status);
    }
    (void)fprintf(stderr, "], \"fault\": ");
    if (run->is_faulty)
        rd_json_text(stderr, run->fault.text);
    else
        (void)fprintf(stderr, "null");
    (void)fprintf(stderr, "}\n");
}

static void report(const run_t *run, int status)
{
    const rd_cli_t *cli = &run->settings->cli;
    double seconds = seconds_of(run);
    uint64_t bytes = count_of(run) > 1 ? run->of[1].bytes : 0;

    if (isatty(2))
        (void)fprintf(stderr, "\r\033[K");
    if (run->is_faulty && !run->got_signal)
        rd_say(cli, "%s", run->fault.text);
    for (size_t i = 1; i < count_of(run); i++)
        if (run->of[i].bytes > bytes)
            bytes = run->of[i].bytes;
    if (cli->verbose && seconds >= 0) {
        char rate[32];

        rd_amount(rate, seconds > 0 ? (double)bytes / seconds : (double)bytes * 1000, "B/s");
        (void)fprintf(stderr, "Bandwidth %s\n", rate);
    }
    if (cli->json)
        report_json(run, status);
}

static bool set_up(run_t *run, rd_why_t *why)
{
    sigset_t set;

    if (!rd_guard_start(&run->guard, why))
        return false;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGCHLD);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGHUP);
    (void)sigaddset(&set, SIGQUIT);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    run->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    run->began_ms = rd_now_ms();
    run->give_up_ms = run->began_ms + HELLO_MS;
    return run->signals >= 0 || rd_because(why, "signalfd: %s", strerror(errno));
}

/* Standard input belongs to its agent: as long as we held it, too, its writer would not see a
 * reader that quits. */
static void let_go_of_input(const run_t *run)
{
    int nothing;

    if (!run->of[0].is_started || run->chain->of[0].work != RD_WORK_STDIN)
        return;
    nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing >= 0)
        (void)dup3(nothing, 0, 0);
    if (nothing > 0)
        close(nothing);
}

int rd_run(const rd_chain_t *chain, const rd_settings_t *settings)
{
    static run_t run;
    rd_status_t told;
    rd_why_t why = {""};
    int status;

    run = (run_t){.chain = chain, .settings = settings};
    rd_ignore_signals();
    if (!set_up(&run, &why)) {
        rd_say(&settings->cli, "%s", why.text);
        return RD_EXIT_OWN;
    }
    for (size_t i = 0; i < chain->count; i++)
        run.of[i].channel.to = -1;
    start_channels(&run);
    let_go_of_input(&run);
    rd_status_begin(&told);
    while (goes_on(&run)) {
        turn(&run);
        step(&run);
        show_progress(&run);
        tell_status(&run, &told);
    }
    rd_status_end(&told);
    run.ended_ms = rd_now_ms();
    close_all(&run);
    rd_guard_end(&run.guard);
    status = status_of(&run);
    report(&run, status);
    for (size_t i = 0; i < chain->count; i++) {
        if (run.of[i].channel.pid > 0) {
            close(run.of[i].channel.from.fd);
            rd_lines_free(&run.of[i].channel.from);
        }
        free(run.of[i].ssh);
    }
    return run.got_signal ? -run.got_signal : status;
}
