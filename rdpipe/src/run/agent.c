/* SPDX-License-Identifier: Apache-2.0 */
#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <wordexp.h>

#include "hop/bundle.h"
#include "child.h"
#include "cli/cli.h"
#include "control.h"
#include "pipeline.h"
#include "stream/transfer.h"
#include "hop/socket.h"

#define HOP_MS 30000 /* time limit for both sides to open a hop */
/* How much of HOP_MS connecting may take. If the peer has not answered by then, its packets or ours
 * are being dropped. */
#define CONNECT_MS 10000
#define REPORT_MS 500
#define OUTPUT_BYTES 16384
#define END_MS 3000 /* how long to wait for a killed command to exit */

typedef struct agent agent_t;

/* One hop of the segment. Its thread opens the hop and then, when told to, transfers the stream. */
typedef struct {
    agent_t *agent;
    bool is_wanted, is_in;
    int listener; /* incoming hop: the listener, or -1 if closed */
    char *host;   /* outgoing hop: the host to connect to */
    char *peer;   /* the neighbour's name in messages, or NULL if not known */
    uint16_t port;
    rd_key_t key;
    rd_hop_t hop;
    rd_transfer_t transfer;
    rd_stream_t stream;
    pthread_t thread;
    bool has_thread, is_told, is_over;
    _Atomic int phase; /* CONNECTING, HOP_OPEN, HOP_FAILED, PUMPED */
    rd_why_t why;
} side_t;

enum { CONNECTING, HOP_OPEN, HOP_FAILED, PUMPED };

struct agent {
    int out;          /* descriptor for messages to rdpipe */
    rd_lines_t lines; /* messages from rdpipe */
    int signals, news, stop;
    rd_guard_t guard;
    rd_work_t work;
    char *text, *bind, *congestion;
    bool is_tee; /* this segment is a receiver, and its command's output is sent to rdpipe */
    uint16_t port_first, port_last;
    rd_terms_t terms;
    side_t in, over;
    rd_child_t child;
    rd_end_t to_child, from_child; /* the local ends that the transfers use */
    int output;                    /* the output of a receiver's command */
    size_t under_way; /* bytes of `output` sent to rdpipe that it has not written yet */
    bool is_configured, has_next, is_ready, is_started, is_failing, is_ending, is_dropped;
    int64_t report_at;
};

/* ---- messages to rdpipe ---- */

static void send_line(agent_t *agent, rd_line_t *line)
{
    if (!rd_line_send(line, agent->out))
        agent->is_ending = true;
}

static void say(agent_t *agent, const char *what)
{
    rd_line_t line;

    rd_line_begin(&line, what);
    send_line(agent, &line);
}

static void hello(agent_t *agent)
{
    const char *ssh = getenv("SSH_CONNECTION");
    rd_line_t line;

    rd_line_begin(&line, "\n" RD_CONTROL_HELLO); /* the shell may have printed part of a line */
    rd_line_add(&line, "control", RD_CONTROL_VERSION);
    rd_line_add(&line, "version", RD_VERSION);
    rd_line_add(&line, "ssh", ssh ? ssh : "");
    send_line(agent, &line);
}

static void fail(agent_t *agent, rd_cause_t cause, const char *text)
{
    rd_line_t line;

    if (!agent->is_failing) {
        rd_line_begin(&line, "fault");
        rd_line_number(&line, "cause", cause);
        rd_line_add(&line, "why", text);
        send_line(agent, &line);
    }
    agent->is_failing = true;
    atomic_store(&agent->in.transfer.stop, true);
    atomic_store(&agent->over.transfer.stop, true);
    rd_transfer_wake(&agent->in.transfer);
    rd_transfer_wake(&agent->over.transfer);
    (void)eventfd_write(agent->stop, 1);
    rd_child_end(&agent->child);
}

/* ---- the threads ---- */

static const char *peer_of(const side_t *side)
{
    return side->peer ? side->peer : side->is_in ? "the previous host" : "the next host";
}

static void *hop_thread(void *argument)
{
    side_t *side = argument;
    agent_t *agent = side->agent;
    int64_t deadline = rd_now_ms() + HOP_MS;
    rd_there_t there = {.host = side->host,
                        .port = side->port,
                        .peer = peer_of(side),
                        .attempt_ms = HOP_MS,
                        .connect_ms = CONNECT_MS,
                        .is_hop = true,
                        .patient_until = deadline};
    bool done;

    if (side->is_in)
        done = rd_hop_accept(side->listener, &side->key, &agent->terms, agent->stop, deadline, NULL,
                             &side->hop, &side->why);
    else
        done = rd_hop_reach(&there, &side->key, &agent->terms, agent->stop, &side->hop, &side->why);
    rd_key_wipe(&side->key);
    rd_close(&side->listener);
    if (done)
        rd_stream_open(&side->stream, &side->hop, peer_of(side));
    atomic_store(&side->phase, done ? HOP_OPEN : HOP_FAILED);
    (void)eventfd_write(agent->news, 1);
    return NULL;
}

static void release_command(void *argument)
{
    agent_t *agent = argument;

    if (agent->child.pid > 0)
        rd_guard_release(&agent->guard, agent->child.pid);
}

static void tell_of_drop(void *argument)
{
    agent_t *agent = argument;

    (void)eventfd_write(agent->news, 1);
}

static void *transfer_thread(void *argument)
{
    side_t *side = argument;
    agent_t *agent = side->agent;
    bool forwards = agent->over.is_wanted && (agent->work == RD_WORK_RELAY || agent->is_tee);

    if (!side->is_in)
        rd_feed(&side->transfer, &side->stream, &agent->from_child);
    else
        rd_drain(&side->transfer, &side->stream, &agent->to_child,
                 forwards ? &agent->over.stream : NULL);
    atomic_store(&side->phase, PUMPED);
    (void)eventfd_write(agent->news, 1);
    return NULL;
}

static bool start_thread(side_t *side, void *(*run)(void *))
{
    if (side->has_thread)
        (void)pthread_join(side->thread, NULL);
    side->has_thread = pthread_create(&side->thread, NULL, run, side) == 0;
    return side->has_thread;
}

/* ---- the segment's work ---- */

/* Expands a shell word to a file name, which the caller frees. On failure, *why is set. */
static char *file_of(const char *word, rd_why_t *why)
{
    wordexp_t words;
    char *file = NULL;
    bool done = wordexp(word, &words, WRDE_NOCMD) == 0;

    if (!done || words.we_wordc != 1)
        (void)rd_because(why, "'%s' does not expand to the name of one file", word);
    else if (!(file = strdup(words.we_wordv[0])))
        (void)rd_because(why, "out of memory");
    if (done)
        wordfree(&words);
    return file;
}

/* Starts a cat process that opens the FIFO, because open blocks until another process opens the
 * other end. A waiting cat can be killed, but the agent could not interrupt its own wait. */
static bool open_fifo(agent_t *agent, bool reads, rd_why_t *why)
{
    char *command;
    bool done;

    if (asprintf(&command, "exec cat %c%s", reads ? '<' : '>', agent->text) < 0)
        return rd_because(why, "out of memory");
    done = rd_child_start(&agent->child, command, &agent->guard, reads ? NULL : &agent->to_child,
                          reads ? &agent->from_child : NULL, why);
    free(command);
    return done;
}

/* Returns whether the file is this process's own standard input or output (/dev/stdin or
 * /dev/stdout). In cat these names would refer to cat's own descriptors, and on a remote host ours
 * are connected to rdpipe. */
static bool is_standard(const struct stat *is)
{
    struct stat own;

    for (int fd = 0; fd < 2 && (S_ISFIFO(is->st_mode) || S_ISSOCK(is->st_mode)); fd++)
        if (fstat(fd, &own) == 0 && own.st_ino == is->st_ino && own.st_dev == is->st_dev)
            return true;
    return false;
}

static bool open_file(agent_t *agent, rd_end_t *end_p, int flags, rd_why_t *why)
{
    char *file = file_of(agent->text, why);
    bool reads = flags == O_RDONLY, is_ours;
    struct stat is = {0};
    int fd = -1;

    if (!file)
        return false;
    (void)stat(file, &is); /* the file may not exist yet */
    is_ours = is_standard(&is);
    if (is_ours)
        (void)rd_because(why, "%s is not a file: leave out the redirection", file);
    else if (!S_ISFIFO(is.st_mode) && (fd = open(file, flags | O_CLOEXEC | O_NOCTTY, 0666)) < 0)
        (void)rd_because(why, "%s: %s", file, strerror(errno));
    free(file);
    if (!is_ours && S_ISFIFO(is.st_mode))
        return open_fifo(agent, reads, why);
    if (fd < 0)
        return false;
    *end_p = rd_end_of(fd, !reads);
    end_p->name = agent->text;
    agent->in.transfer.empties = agent->work == RD_WORK_TO_FILE && S_ISREG(is.st_mode);
    for (int standard = 0; standard <= 1 && agent->lines.fd > 1; standard++)
        rd_let_go_of(standard); /* needed only to open /dev/stdin or /dev/stdout */
    return true;
}

static bool start_command(agent_t *agent, rd_why_t *why)
{
    rd_end_t output = {.fd = -1};
    rd_end_t *out = agent->is_tee ? &output : agent->over.is_wanted ? &agent->from_child : NULL;

    if (!rd_child_start(&agent->child, agent->text, &agent->guard,
                        agent->in.is_wanted ? &agent->to_child : NULL, out, why))
        return false;
    agent->output = output.fd;
    return true;
}

static bool open_ends(agent_t *agent, rd_why_t *why)
{
    switch (agent->work) {
    case RD_WORK_COMMAND:
        return start_command(agent, why);
    case RD_WORK_RELAY:
        return true;
    case RD_WORK_FROM_FILE:
        return open_file(agent, &agent->from_child, O_RDONLY, why);
    case RD_WORK_TO_FILE:
        return open_file(agent, &agent->to_child, O_WRONLY | O_CREAT, why);
    case RD_WORK_APPEND:
        return open_file(agent, &agent->to_child, O_WRONLY | O_CREAT | O_APPEND, why);
    case RD_WORK_STDIN:
        agent->from_child = rd_end_of(dup(0), false);
        return agent->from_child.fd >= 0;
    case RD_WORK_STDOUT:
        agent->to_child = rd_end_of(dup(1), true);
        return agent->to_child.fd >= 0;
    }
    return false;
}

static void start(agent_t *agent)
{
    rd_why_t why = {.text = "cannot start"};
    bool forwards = agent->work == RD_WORK_RELAY || agent->is_tee;

    agent->is_started = true;
    agent->in.transfer.at_end = release_command;
    agent->in.transfer.at_drop = tell_of_drop;
    agent->in.transfer.of = agent;
    if (!open_ends(agent, &why))
        fail(agent, why.cause, why.text); /* the threads then inform the neighbours and exit */
    if ((agent->in.is_wanted && !start_thread(&agent->in, transfer_thread)) ||
        (agent->over.is_wanted && !forwards && !start_thread(&agent->over, transfer_thread)))
        fail(agent, RD_CAUSE_HERE, "cannot start a thread");
    if (agent->over.is_wanted && forwards)
        agent->over.is_told = agent->over.is_over = true;
    agent->report_at = rd_now_ms() + REPORT_MS;
}

/* ---- messages from rdpipe ---- */

/* Returns the number with this name. If the line has no valid one, returns 0 and clears *done_p,
 * which is NULL if the number may be missing. */
static uint64_t number_of(const char *line, const char *name, uint64_t max, bool *done_p)
{
    uint64_t number = 0;

    if (!rd_line_value_number(line, name, max, &number) && done_p)
        *done_p = false;
    return number;
}

static bool key_of(const char *line, rd_key_t *key_p)
{
    char *hex = rd_line_value(line, "key", NULL);
    bool done = hex && rd_key_of_hex(hex, key_p);

    if (hex)
        rd_wipe(hex, strlen(hex));
    free(hex);
    return done;
}

static bool take_segment(agent_t *agent, const char *line)
{
    char *work = rd_line_value(line, "work", NULL);
    bool done = work && rd_work_of(work, &agent->work) && !agent->is_configured;

    free(work);
    agent->text = rd_line_value(line, "text", NULL);
    agent->in.peer = rd_line_value(line, "before", NULL);
    agent->bind = rd_line_value(line, "bind", NULL);
    agent->congestion = rd_line_value(line, "congestion", NULL);
    agent->is_tee = number_of(line, "tee", 1, NULL);
    agent->in.is_wanted = number_of(line, "in", 1, NULL);
    agent->over.is_wanted = number_of(line, "out", 1, NULL);
    agent->terms = (rd_terms_t){
        .carriers = (uint32_t)number_of(line, "carriers", RD_CARRIERS_ALL, &done),
        .block = (uint32_t)number_of(line, "block", RD_BLOCK_MAX, &done),
        .flags = (uint8_t)number_of(line, "flags", 255, &done),
        .zstd = (int)number_of(line, "zstd", 19, &done),
        .streams = (unsigned)number_of(line, "streams", RD_STREAMS_MAX, &done),
        .congestion = agent->congestion && *agent->congestion ? agent->congestion : NULL};
    agent->over.transfer.rate = number_of(line, "rate", RD_RATE_MAX, &done);
    agent->in.transfer.drop_ms = (int)number_of(line, "drop", 86400, NULL) * 1000;
    agent->in.transfer.buffer = number_of(line, "buffer", RD_BUFFER_MAX, NULL);
    agent->in.transfer.start = (unsigned)number_of(line, "start", 100, NULL);
    agent->port_first = (uint16_t)number_of(line, "first", 65535, &done);
    agent->port_last = (uint16_t)number_of(line, "last", 65535, &done);
    agent->is_configured = true;
    return done && agent->text && agent->terms.block >= RD_BLOCK_MIN &&
           (!agent->in.is_wanted || key_of(line, &agent->in.key));
}

static void open_listener(agent_t *agent)
{
    const char *bind = agent->bind && *agent->bind ? agent->bind : NULL;
    uint16_t port = 0;
    rd_line_t line;
    rd_why_t why;

    if (!rd_listen(bind, agent->port_first, agent->port_last, &agent->in.listener, &port, &why)) {
        fail(agent, why.cause, why.text);
        return;
    }
    rd_line_begin(&line, "port");
    rd_line_number(&line, "number", port);
    send_line(agent, &line);
    if (!start_thread(&agent->in, hop_thread))
        fail(agent, RD_CAUSE_HERE, "cannot start a thread");
}

static bool take_next(agent_t *agent, const char *line)
{
    uint64_t port = 0;

    if (agent->has_next || !agent->over.is_wanted ||
        !rd_line_value_number(line, "port", 65535, &port) || !key_of(line, &agent->over.key))
        return false;
    agent->over.host = rd_line_value(line, "host", NULL);
    agent->over.peer = rd_line_value(line, "name", NULL);
    agent->over.port = (uint16_t)port;
    agent->has_next = true;
    return agent->over.host && start_thread(&agent->over, hop_thread);
}

/* Closes our end of the output, so that the command gets SIGPIPE if it writes more. */
static void close_output(agent_t *agent)
{
    rd_close(&agent->output);
}

static void obey(agent_t *agent, const char *line)
{
    uint64_t number;
    bool done = true;

    if (rd_line_is(line, "segment")) {
        done = take_segment(agent, line);
        if (done && agent->in.is_wanted)
            open_listener(agent);
    } else if (rd_line_is(line, "next")) {
        done = take_next(agent, line);
    } else if (rd_line_is(line, "start") && agent->is_ready && !agent->is_started) {
        start(agent);
    } else if (rd_line_is(line, "signal") && rd_line_value_number(line, "number", 64, &number)) {
        rd_child_signal(&agent->child, (int)number);
    } else if (rd_line_is(line, "taken") &&
               rd_line_value_number(line, "bytes", agent->under_way, &number)) {
        agent->under_way -= (size_t)number;
    } else if (rd_line_is(line, "quit")) {
        close_output(agent);
    } else {
        done = false;
    }
    if (!done)
        fail(agent, RD_CAUSE_HERE, "rdpipe and its agent do not understand each other");
}

/* ---- events ---- */

static void report_bytes(agent_t *agent)
{
    rd_line_t line;

    if (!agent->is_started || rd_left_ms(agent->report_at) > 0)
        return;
    agent->report_at = rd_now_ms() + REPORT_MS;
    rd_line_begin(&line, "bytes");
    rd_line_number(&line, "in", atomic_load(&agent->in.transfer.bytes));
    rd_line_number(&line, "out", atomic_load(&agent->over.transfer.bytes));
    rd_line_number(&line, "size", atomic_load(&agent->over.transfer.size));
    send_line(agent, &line);
}

static void report_hop(agent_t *agent, const side_t *side)
{
    rd_line_t line;

    rd_line_begin(&line, "hop");
    rd_line_add(&line, "side", side->is_in ? "in" : "out");
    rd_line_add(&line, "carrier", side->hop.carrier);
    rd_line_add(&line, "why", side->hop.why);
    send_line(agent, &line);
}

static void report_over(agent_t *agent, const side_t *side)
{
    static const char *const names[] = {[RD_TRANSFER_DONE] = "done",
                                        [RD_TRANSFER_QUIT] = "quit",
                                        [RD_TRANSFER_FAULT] = "fault",
                                        [RD_TRANSFER_RUNS] = "runs"};
    rd_line_t line;

    rd_line_begin(&line, "over");
    rd_line_add(&line, "side", side->is_in ? "in" : "out");
    rd_line_add(&line, "outcome", names[side->transfer.outcome]);
    rd_line_number(&line, "bytes", atomic_load(&side->transfer.bytes));
    rd_line_add(&line, "why",
                side->transfer.outcome == RD_TRANSFER_FAULT ? side->transfer.why.text : "");
    send_line(agent, &line);
}

static void look_at(agent_t *agent, side_t *side)
{
    int phase = atomic_load(&side->phase);

    if (!side->is_wanted || side->is_over)
        return;
    if (phase == HOP_OPEN && !side->is_told) {
        side->is_told = true;
        report_hop(agent, side);
    } else if (phase == HOP_FAILED) {
        side->is_told = side->is_over = true;
        fail(agent, side->why.cause, side->why.text);
    } else if (phase == PUMPED) {
        side->is_over = true;
        report_over(agent, side);
        if (side->transfer.outcome == RD_TRANSFER_FAULT)
            fail(agent, side->transfer.why.cause, side->transfer.why.text);
    }
}

static bool has_met(const side_t *side)
{
    return !side->is_wanted || (side->is_told && !side->is_over);
}

/* Kills the command of a receiver that was dropped, so that the command does not mistake what it
 * has received for the complete stream. */
static void look_at_drop(agent_t *agent)
{
    if (agent->is_dropped || !atomic_load(&agent->in.transfer.is_dropped))
        return;
    agent->is_dropped = true;
    say(agent, "dropped");
    rd_child_end(&agent->child);
}

static void look_around(agent_t *agent)
{
    look_at_drop(agent);
    look_at(agent, &agent->in);
    look_at(agent, &agent->over);
    if (agent->is_configured && !agent->is_ready && !agent->is_failing && has_met(&agent->in) &&
        has_met(&agent->over)) {
        agent->is_ready = true;
        say(agent, "ready");
    }
}

static void reap(agent_t *agent)
{
    rd_line_t line;
    rd_why_t why;

    if (!rd_child_reap(&agent->child, &agent->guard)) {
        if (agent->child.wants_terminal && !agent->is_failing) {
            (void)rd_because(&why,
                             "'%.200s' needs the terminal, which commands in a pipeline do not "
                             "have; for sudo, run 'sudo -v' first",
                             agent->text);
            fail(agent, RD_CAUSE_HERE, why.text);
        }
        return;
    }
    /* A killed shell leaves its child processes behind, and they could run forever. */
    if (agent->child.is_killed)
        rd_child_end(&agent->child);
    rd_line_begin(&line, "status");
    rd_line_number(&line, "value", (uint64_t)agent->child.status);
    send_line(agent, &line);
}

/* Returns the output to poll, or -1 while rdpipe does not accept any more of it. */
static int wanted_output(const agent_t *agent)
{
    return agent->under_way + OUTPUT_BYTES <= RD_OUTPUT_WINDOW ? agent->output : -1;
}

static void pass_output(agent_t *agent)
{
    char data[OUTPUT_BYTES];
    ssize_t n = read(agent->output, data, sizeof data);
    rd_line_t line;

    if (n > 0) {
        rd_line_begin(&line, "output");
        rd_line_add_bytes(&line, "data", data, (size_t)n);
        send_line(agent, &line);
        agent->under_way += (size_t)n;
    } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
        close_output(agent);
    }
}

static bool all_is_over(const agent_t *agent)
{
    bool child = agent->child.pid == 0 || agent->child.is_over;

    if (agent->is_failing && !agent->is_started)
        return true;
    return agent->is_started && child && (agent->output < 0 || agent->is_failing) &&
           (!agent->in.is_wanted || agent->in.is_over) &&
           (!agent->over.is_wanted || agent->over.is_over);
}

static int next_ms(agent_t *agent)
{
    int ms = rd_child_tick(&agent->child, &agent->guard);

    if (agent->is_started && (ms < 0 || ms > rd_left_ms(agent->report_at)))
        ms = rd_left_ms(agent->report_at) + 1;
    return ms;
}

static void turn(agent_t *agent)
{
    struct pollfd polled[] = {{.fd = agent->lines.fd, .events = POLLIN},
                              {.fd = agent->signals, .events = POLLIN},
                              {.fd = agent->news, .events = POLLIN},
                              {.fd = agent->guard.of[0].fd, .events = POLLIN},
                              {.fd = agent->guard.of[1].fd, .events = POLLIN},
                              {.fd = wanted_output(agent), .events = POLLIN}};
    struct signalfd_siginfo ignored;
    eventfd_t count;
    const char *line;

    (void)poll(polled, 6, next_ms(agent));
    if (polled[0].revents) {
        rd_lines_fill(&agent->lines);
        while ((line = rd_lines_next(&agent->lines)))
            obey(agent, line);
        if (agent->lines.has_ended)
            agent->is_ending = true;
    }
    if (polled[1].revents)
        while (read(agent->signals, &ignored, sizeof ignored) == (ssize_t)sizeof ignored)
            ;
    if (polled[2].revents)
        (void)eventfd_read(agent->news, &count);
    if ((polled[3].revents || polled[4].revents) && !agent->is_failing)
        fail(agent, RD_CAUSE_HERE, "a guard of the command was killed");
    if (polled[5].revents && agent->output >= 0)
        pass_output(agent);
    reap(agent);
    look_around(agent);
    report_bytes(agent);
}

/* ---- the process ---- */

static bool set_up(agent_t *agent, int control_in, int control_out, rd_why_t *why)
{
    sigset_t set;

    *agent = (agent_t){.out = control_out, .output = -1};
    agent->in = (side_t){.agent = agent, .is_in = true, .listener = -1, .hop = {.side = -1}};
    agent->over = (side_t){.agent = agent, .listener = -1, .hop = {.side = -1}};
    agent->to_child.fd = agent->from_child.fd = -1;
    rd_lines_init(&agent->lines, control_in);
    rd_ignore_signals();
    /* rdpipe forwards the signals that a terminal sends to every process in the foreground. */
    (void)signal(SIGINT, SIG_IGN);
    (void)signal(SIGQUIT, SIG_IGN);
    /* sshd sends SIGHUP when the connection is lost, in which case the channel also closes. */
    (void)signal(SIGHUP, SIG_IGN);
    if (!rd_guard_start(&agent->guard, why))
        return false;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGCHLD);
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
    agent->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    agent->news = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    agent->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return agent->signals >= 0 && agent->news >= 0 && agent->stop >= 0 &&
           rd_transfer_init(&agent->in.transfer, why) &&
           rd_transfer_init(&agent->over.transfer, why);
}

static void join(side_t *side)
{
    if (side->has_thread)
        (void)pthread_join(side->thread, NULL);
    side->has_thread = false;
    if (side->hop.link)
        rd_stream_close(&side->stream);
}

/* Call this when the channel has closed, so nothing can be reported any more. */
static void end_command(agent_t *agent)
{
    int64_t deadline = rd_now_ms() + END_MS;

    fail(agent, RD_CAUSE_STOPPED, "rdpipe has exited");
    while (agent->child.pid > 0 && !agent->child.is_over && rd_left_ms(deadline) > 0) {
        struct pollfd polled = {.fd = agent->signals, .events = POLLIN};
        struct signalfd_siginfo ignored;

        (void)poll(&polled, 1, rd_child_tick(&agent->child, &agent->guard));
        if (polled.revents)
            (void)!read(agent->signals, &ignored, sizeof ignored);
        (void)rd_child_reap(&agent->child, &agent->guard);
    }
}

int rd_agent(int control_in, int control_out)
{
    static agent_t agent;
    rd_why_t why = {.text = "out of file descriptors"};
    bool is_cut;

    if (!set_up(&agent, control_in, control_out, &why)) {
        (void)fprintf(stderr, "rdpipe: %s\n", why.text);
        return RD_EXIT_OWN;
    }
    hello(&agent);
    while (!agent.is_ending && !all_is_over(&agent))
        turn(&agent);
    is_cut = agent.is_ending;
    if (is_cut)
        end_command(&agent);
    /* A thread that still has something to send on its stream finishes within seconds. The guard
     * kills the remaining processes of a command that did not exit normally. */
    if (!is_cut && !agent.is_failing && agent.child.pid > 0)
        rd_guard_forget(&agent.guard, agent.child.pid);
    rd_guard_end(&agent.guard);
    join(&agent.in);
    join(&agent.over);
    if (!is_cut)
        say(&agent, "bye");
    return agent.is_failing ? RD_EXIT_OWN : 0;
}
