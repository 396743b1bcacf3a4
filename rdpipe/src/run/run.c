/* SPDX-License-Identifier: Apache-2.0 */
#include "run_state.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define HELLO_MS 120000 /* the user may have to type a password */
#define READY_MS 45000
/* How long the other agents may take to exit on their own after a fault. */
#define WIND_UP_MS 6000
#define TELL_MS 500    /* before the start: how long agents may take to report their own reason */
#define SIGNAL_MS 2000 /* after a signal, how long the pipeline may take to exit by itself */
/* How long commands may clean up after a signal. Another signal kills them. */
#define COMMAND_MS 10000
#define CLOSE_MS 9000 /* how long agents may clean up before ssh is killed */

static void soon(rd_run_t *run, int64_t ms)
{
    int64_t at = rd_now_ms() + ms;

    if (run->give_up_ms == 0 || at < run->give_up_ms)
        run->give_up_ms = at;
}

/* ---- faults ---- */

/* Returns whether this fault explains the one recorded so far. A fault is often reported before the
 * one that has caused it. If two segments lost a peer before the start, the segment earlier in the
 * chain lost its peer because the later segment had given up. */
static bool explains(const rd_run_t *run, size_t i, rd_cause_t cause)
{
    if (cause != run->fault.cause)
        return cause < run->fault.cause;
    return cause == RD_CAUSE_LOST && !run->are_started && i > run->faulty_at;
}

static void take_fault(rd_run_t *run, size_t i, const char *where, rd_cause_t cause,
                       const char *text)
{
    if (run->settings->cli.verbose)
        rd_say(&run->settings->cli, "%s: %s", where, text);
    if (!run->is_faulty || explains(run, i, cause)) {
        (void)rd_because_of(&run->fault, cause, "%s: %s", where, text);
        run->faulty_at = i;
    }
    if (!run->is_faulty)
        soon(run, run->are_started ? WIND_UP_MS : cause == RD_CAUSE_LOST ? TELL_MS : 0);
    run->is_faulty = true;
}

void rd_run_fault(rd_run_t *run, size_t i, rd_cause_t cause, const char *text)
{
    take_fault(run, i, rd_run_name(run, i), cause, text);
}

void rd_run_fault_here(rd_run_t *run, const char *text)
{
    take_fault(run, 0, "this host", RD_CAUSE_HERE, text);
    soon(run, 0);
}

/* ---- running ---- */

static bool is_over(const rd_run_t *run, size_t i)
{
    return run->of[i].has_said_bye || run->of[i].is_lost || run->of[i].channel.pid == 0;
}

static void step(rd_run_t *run)
{
    bool have_hello = true, have_port = true, are_ready = true;

    if (run->is_faulty || run->got_signal)
        return;
    rd_run_connect(run);
    for (size_t i = 0; i < rd_run_count(run); i++) {
        have_hello &= run->of[i].has_hello;
        if (i > 0) /* the first segment has no incoming hop, so it does not listen */
            have_port &= run->of[i].has_port;
        are_ready &= run->of[i].is_ready;
    }
    if (!run->are_told && have_hello) {
        run->give_up_ms = rd_now_ms() + READY_MS;
        rd_run_tell_segments(run);
    } else if (run->are_told && !run->have_ports && have_port) {
        rd_run_tell_next(run);
    } else if (run->have_ports && !run->are_started && are_ready) {
        rd_run_tell_start(run);
    }
}

static void take_signal(rd_run_t *run)
{
    struct signalfd_siginfo info;

    while (read(run->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD)
            continue;
        run->commands_until_ms = run->got_signal ? 0 : rd_now_ms() + COMMAND_MS;
        if (run->got_signal)
            soon(run, 0);
        run->got_signal = (int)info.ssi_signo;
        rd_run_tell_signal(run, run->got_signal);
        soon(run, run->are_started ? SIGNAL_MS : 0);
    }
}

static int next_ms(const rd_run_t *run)
{
    int ms = run->give_up_ms ? rd_left_ms(run->give_up_ms) + 1 : -1;

    if (run->are_started && rd_progress_is_wanted(&run->settings->cli) &&
        (ms < 0 || ms > RD_DRAW_MS))
        ms = RD_DRAW_MS;
    return ms;
}

static void turn(rd_run_t *run)
{
    struct pollfd polled[RD_NODES_MAX + 3 + RD_GUARDS] = {{.fd = run->signals, .events = POLLIN}};
    size_t last = rd_run_count(run) + 1;

    for (size_t i = 0; i < rd_run_count(run); i++) {
        const rd_peer_t *peer = &run->of[i];

        polled[i + 1] = (struct pollfd){.fd = peer->is_lost || peer->channel.pid == 0 ||
                                                      peer->channel.from.has_ended
                                                  ? -1
                                                  : peer->channel.from.fd,
                                        .events = POLLIN};
    }
    for (size_t i = 0; i < RD_GUARDS; i++)
        polled[last + i] =
            (struct pollfd){.fd = run->is_faulty ? -1 : run->guard.of[i].fd, .events = POLLIN};
    polled[last + RD_GUARDS] = (struct pollfd){.fd = rd_output_fd(&run->output), .events = POLLOUT};
    polled[last + RD_GUARDS + 1] = (struct pollfd){.fd = run->sockets, .events = POLLIN};
    (void)poll(polled, last + RD_GUARDS + 2, next_ms(run));
    take_signal(run);
    if (polled[last + RD_GUARDS].revents)
        rd_run_write(run);
    for (size_t i = 0; i < RD_GUARDS; i++)
        if (polled[last + i].revents)
            rd_run_fault(run, 0, RD_CAUSE_HERE, "a guard of this pipeline was killed");
    for (size_t i = 0; i < rd_run_count(run); i++) {
        if (polled[i + 1].revents)
            rd_run_listen(run, i);
        /* Wait until the channel closes, because until then the agent may still send a status that
         * gives the reason. */
        if (run->of[i].channel.from.has_ended && !run->of[i].is_lost &&
            run->of[i].channel.pid > 0 && rd_channel_reap(&run->of[i].channel))
            rd_run_take_loss(run, i);
    }
}

static bool a_command_runs(const rd_run_t *run)
{
    for (size_t i = 0; i < rd_run_count(run); i++)
        if (run->chain->of[i].work == RD_WORK_COMMAND && !run->of[i].has_status && !is_over(run, i))
            return true;
    return false;
}

static bool goes_on(rd_run_t *run)
{
    bool are_over = rd_output_is_empty(&run->output);

    for (size_t i = 0; i < rd_run_count(run); i++)
        are_over &= is_over(run, i);
    if (are_over)
        return false;
    if (run->give_up_ms == 0 || rd_left_ms(run->give_up_ms) > 0)
        return true;
    if (run->are_started && !run->is_faulty && run->commands_until_ms > 0 && a_command_runs(run)) {
        run->give_up_ms = run->commands_until_ms;
        run->commands_until_ms = 0;
        return true;
    }
    for (size_t i = 0; i < rd_run_count(run) && !run->is_faulty && !run->got_signal; i++)
        if (!run->of[i].has_hello || !run->of[i].is_ready)
            rd_run_fault(run, i, RD_CAUSE_HERE,
                         run->of[i].has_hello ? "not ready in time" : "no answer over ssh");
    return false;
}

/* Reads messages that have arrived, or arrive within `ms`. Returns false if there are none. */
static bool listen_for(rd_run_t *run, size_t i, int ms)
{
    rd_lines_t *lines = &run->of[i].channel.from;
    struct pollfd polled = {.fd = lines->has_ended ? -1 : lines->fd, .events = POLLIN};

    if (run->of[i].channel.pid <= 0 || poll(&polled, 1, ms) <= 0)
        return false;
    rd_run_listen(run, i);
    return true;
}

/* Closes the channels, so that the agents clean up, and then kills ssh. Meanwhile the agents'
 * messages are still read, so that no agent blocks and the last messages of agents that have just
 * exited are not lost. */
static void close_all(rd_run_t *run)
{
    int64_t deadline = rd_now_ms() + CLOSE_MS;
    bool left = true, is_ended = false;

    for (size_t i = 0; i < rd_run_count(run); i++) {
        rd_channel_close(&run->of[i].channel);
        /* Nothing runs there yet, and ssh may still be waiting for a password. */
        if (!run->of[i].has_hello && !rd_channel_reap(&run->of[i].channel))
            (void)kill(run->of[i].channel.pid, SIGTERM);
    }
    while (left) {
        left = false;
        for (size_t i = 0; i < rd_run_count(run); i++)
            left |= !rd_channel_reap(&run->of[i].channel);
        if (left && rd_left_ms(deadline) == 0) {
            if (is_ended)
                break;
            is_ended = true;
            deadline = rd_now_ms() + 1000;
            for (size_t i = 0; i < rd_run_count(run); i++)
                if (!rd_channel_reap(&run->of[i].channel))
                    (void)kill(run->of[i].channel.pid, SIGTERM);
        }
        for (size_t i = 0; i < rd_run_count(run); i++)
            if (!listen_for(run, i, left ? 5 : 0) && left)
                (void)poll(NULL, 0, 2);
    }
}

/* ---- the end ---- */

static int status_of(const rd_run_t *run)
{
    int status = 0;

    if (run->is_faulty)
        return RD_EXIT_OWN;
    for (size_t i = 0; i < rd_run_count(run); i++)
        if (run->of[i].status != 0)
            status = run->of[i].status;
        else if (run->of[i].is_dropped) /* as if SIGTERM had ended its command */
            status = 128 + SIGTERM;
        else if (run->of[i].is_unread)
            status = RD_EXIT_QUIT;
    return status;
}

/* Signals that are ignored when we start must stay ignored, as nohup requires. They are left out
 * here because a signalfd would report them. */
static void set_signals(sigset_t *set_p)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    struct sigaction is;

    (void)sigemptyset(set_p);
    (void)sigaddset(set_p, SIGCHLD);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (sigaction(ends[i], NULL, &is) == 0 && is.sa_handler != SIG_IGN)
            (void)sigaddset(set_p, ends[i]);
}

static bool set_up(rd_run_t *run, rd_why_t *why)
{
    sigset_t set;

    if (!rd_guard_start(&run->guard, why))
        return false;
    set_signals(&set);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    run->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    run->give_up_ms = rd_now_ms() + HELLO_MS;
    return run->signals >= 0 || rd_because(why, "signalfd: %s", strerror(errno));
}

/* A standard stream is used only by its agent. If this process also kept it open, a command before
 * us in the shell's pipeline would not notice that its reader has quit, and a command after us
 * would not see the end of its input. */
static void let_go_of_streams(const rd_run_t *run)
{
    size_t last = run->chain->count - 1;

    if (run->of[0].is_started && run->chain->of[0].work == RD_WORK_STDIN)
        rd_let_go_of(0);
    if (run->of[last].is_started && run->chain->of[last].work == RD_WORK_STDOUT)
        rd_let_go_of(1);
}

static void open_output(rd_run_t *run)
{
    bool is_wanted = run->chain->of[run->chain->count - 1].is_receiver;

    rd_output_open(&run->output, is_wanted ? dup(1) : -1);
    if (is_wanted && run->output.end.fd < 0)
        rd_run_fault_here(run, "no file descriptor is left for the output");
}

int rd_run(const rd_chain_t *chain, const rd_settings_t *settings)
{
    static rd_run_t run;
    rd_status_t told;
    rd_why_t why = {.text = ""};
    int status;

    run = (rd_run_t){.chain = chain, .settings = settings, .sockets = -1};
    rd_ignore_signals();
    if (!set_up(&run, &why)) {
        rd_say(&settings->cli, "%s", why.text);
        return RD_EXIT_OWN;
    }
    for (size_t i = 0; i < chain->count; i++)
        run.of[i].channel.to = -1;
    open_output(&run);
    rd_run_connect(&run);
    let_go_of_streams(&run);
    rd_status_begin(&told);
    while (goes_on(&run)) {
        turn(&run);
        step(&run);
        rd_run_show(&run);
        rd_run_publish(&run, &told);
    }
    rd_status_end(&told);
    run.ended_ms = rd_now_ms();
    if (!rd_output_close(&run.output, &why))
        rd_run_fault_here(&run, why.text);
    close_all(&run);
    rd_guard_end(&run.guard);
    rd_close(&run.sockets);
    status = status_of(&run);
    if (run.got_signal)
        status = 128 + run.got_signal;
    else if (settings->is_copy)
        status = rd_copy_status(&settings->cli, status);
    rd_run_report(&run, status);
    for (size_t i = 0; i < chain->count; i++) {
        if (run.of[i].channel.pid > 0) {
            close(run.of[i].channel.from.fd);
            rd_lines_free(&run.of[i].channel.from);
        }
        free(run.of[i].ssh);
    }
    return run.got_signal ? -run.got_signal : status;
}
