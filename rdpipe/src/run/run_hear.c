/* SPDX-License-Identifier: Apache-2.0 */
#include "run_state.h"

static void take_hello(rd_run_t *run, size_t i, const char *line)
{
    rd_why_t why;

    run->of[i].has_hello = true;
    run->of[i].ssh = rd_line_value(line, "ssh", NULL);
    if (!rd_channel_agrees(line, &why))
        rd_run_fault(run, i, why.cause, why.text);
}

static void copy_value(const char *line, const char *name, char *to, size_t bytes)
{
    char *value = rd_line_value(line, name, NULL);

    (void)snprintf(to, bytes, "%.150s", value ? value : "");
    free(value);
}

static void take_hop(rd_run_t *run, size_t i, const char *line)
{
    char side[8];

    copy_value(line, "side", side, sizeof side);
    if (strcmp(side, "in") != 0)
        return;
    copy_value(line, "carrier", run->of[i].carrier, sizeof run->of[i].carrier);
    copy_value(line, "why", run->of[i].why, sizeof run->of[i].why);
    if (run->settings->cli.verbose)
        rd_say(&run->settings->cli, "%s to %s: %s (%s)", rd_run_name(run, i - 1),
               rd_run_name(run, i), run->of[i].carrier, run->of[i].why);
}

/* If the reader of our own standard output has closed it, we exit as if killed by SIGPIPE. */
static void take_over(rd_run_t *run, size_t i, const char *line)
{
    char side[8], outcome[16];

    copy_value(line, "side", side, sizeof side);
    copy_value(line, "outcome", outcome, sizeof outcome);
    if (strcmp(side, "in") == 0)
        (void)rd_line_value_number(line, "bytes", UINT64_MAX, &run->of[i].bytes);
    if (run->chain->of[i].work == RD_WORK_STDOUT && strcmp(outcome, "quit") == 0)
        run->of[i].status = RD_EXIT_QUIT;
}

static void take_output(rd_run_t *run, size_t i, const char *line)
{
    rd_peer_t *peer = &run->of[i];
    size_t len = 0;
    char *data = rd_line_value(line, "data", &len);

    if (!data || !run->chain->of[i].is_receiver || len > RD_OUTPUT_WINDOW - peer->under_way) {
        free(data);
        rd_run_fault(run, i, RD_CAUSE_HERE, "the agent there sent output that was not requested");
    } else if (rd_output_put(&run->output, i, data, len)) {
        peer->under_way += len;
        rd_run_write(run);
    } else {
        peer->is_unread = true;
    }
}

static void quit_output(rd_run_t *run)
{
    for (size_t i = 0; i < rd_run_count(run); i++) {
        run->of[i].is_unread |= run->of[i].under_way > 0;
        run->of[i].under_way = 0;
    }
    rd_run_tell_quit(run);
}

void rd_run_write(rd_run_t *run)
{
    size_t from = 0, len = 0;
    rd_why_t why;

    for (;;) {
        switch (rd_output_step(&run->output, &from, &len, &why)) {
        case RD_OUTPUT_IDLE:
            return;
        case RD_OUTPUT_TAKEN:
            run->of[from].under_way -= len;
            rd_run_tell_taken(run, from, len);
            break;
        case RD_OUTPUT_QUIT:
            quit_output(run);
            return;
        case RD_OUTPUT_FAULT:
            rd_run_fault_here(run, why.text);
            return;
        }
    }
}

static void take_line(rd_run_t *run, size_t i, const char *line)
{
    rd_peer_t *peer = &run->of[i];
    uint64_t number = 0;

    if (!peer->has_hello) { /* skip anything that a login shell prints first */
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
        take_output(run, i, line);
    } else if (rd_line_is(line, "over")) {
        take_over(run, i, line);
    } else if (rd_line_is(line, "status") && rd_line_value_number(line, "value", 255, &number)) {
        peer->status = (int)number;
        peer->has_status = true;
    } else if (rd_line_is(line, "fault")) {
        char *why = rd_line_value(line, "why", NULL);

        (void)rd_line_value_number(line, "cause", RD_CAUSE_STOPPED, &number);
        rd_run_fault(run, i, (rd_cause_t)number, why ? why : "failed");
        free(why);
    } else if (rd_line_is(line, "dropped")) {
        peer->is_dropped = true;
        rd_say(&run->settings->cli,
               "%s: dropped, because it read nothing for %llu s: it has only a part of the stream",
               rd_run_name(run, i), (unsigned long long)run->settings->cli.drop_s);
    } else if (rd_line_is(line, "bye")) {
        peer->has_said_bye = true;
    }
}

void rd_run_take_loss(rd_run_t *run, size_t i)
{
    rd_peer_t *peer = &run->of[i];
    const char *path = run->settings->ssh.remote_path;
    rd_why_t why;

    peer->is_lost = true;
    if (peer->has_said_bye || run->got_signal)
        return;
    if (peer->has_hello)
        (void)rd_because_of(
            &why, RD_CAUSE_LOST,
            "the agent there was lost: it was killed, or the ssh connection failed");
    else if (peer->channel.is_reaped && peer->channel.status == 127)
        (void)rd_because(&why,
                         "no 'rdpipe' %s%s there: install Beamway's commands, or say where they "
                         "are with --remote-path DIR",
                         path ? "in " : "on the PATH", path ? path : "");
    else if (peer->channel.is_reaped && peer->channel.status == RD_EXIT_USAGE)
        (void)rd_because(&why, "the 'rdpipe' there is another program, or is older than version %s",
                         RD_VERSION);
    else
        (void)rd_because(&why, "ssh has failed (status %d)", peer->channel.status);
    rd_run_fault(run, i, why.cause, why.text);
}

void rd_run_listen(rd_run_t *run, size_t i)
{
    rd_lines_t *lines = &run->of[i].channel.from;
    char *line;

    rd_lines_fill(lines);
    while ((line = rd_lines_next(lines)))
        take_line(run, i, line);
}
