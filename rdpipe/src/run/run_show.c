/* SPDX-License-Identifier: Apache-2.0 */
#include "run_state.h"

#include <unistd.h>

/* ---- progress ---- */

static void write_hops(const rd_run_t *run, FILE *to);

/* Appends the current rate of each hop. If there are several, the slowest one from hop `slowest` on
 * is marked with a star. */
static void add_hops(rd_run_t *run, char *text, size_t bytes, int64_t ms, size_t slowest)
{
    size_t len = strlen(text);
    char rate[32];

    for (size_t i = slowest + 1; i < rd_run_count(run); i++)
        if (run->of[i].bytes - run->of[i].shown < run->of[slowest].bytes - run->of[slowest].shown)
            slowest = i;
    for (size_t i = 1; i < rd_run_count(run) && len < bytes - 100; i++) {
        rd_amount(rate, (double)(run->of[i].bytes - run->of[i].shown) * 1000 / (double)ms, "B/s");
        len += (size_t)snprintf(text + len, bytes - len, " %s>%.30s %s%s",
                                i == 1 ? rd_run_name(run, 0) : "", rd_run_name(run, i), rate,
                                i == slowest && rd_run_count(run) > 2 ? "*" : "");
        run->of[i].shown = run->of[i].bytes;
    }
}

static void add_copy(const rd_run_t *run, char *text, size_t bytes)
{
    size_t len = strlen(text), targets = 0;

    for (size_t i = 0; i < rd_run_count(run); i++)
        targets += run->chain->of[i].is_receiver;
    len += (size_t)snprintf(text + len, bytes - len, "  %.60s to %.60s", rd_run_name(run, 0),
                            rd_run_name(run, 1));
    if (targets > 1)
        (void)snprintf(text + len, bytes - len, " and %zu more", targets - 1);
}

static char *json_of(const rd_run_t *run)
{
    char *text = NULL, members[256];
    size_t bytes;
    FILE *to = open_memstream(&text, &bytes);

    if (!to)
        return NULL;
    rd_speed_json(members, &run->speed);
    (void)fprintf(to, "{\"command\": \"%s\", \"event\": \"progress\", %s, \"hops\": [",
                  run->settings->cli.name, members);
    write_hops(run, to);
    (void)fprintf(to, "]}");
    return fclose(to) == 0 ? text : NULL;
}

/* Returns the hop whose bytes are shown as those of the stream. For a copy that is the last hop,
 * which carries the content. After a command that reads no input the stream begins one hop later;
 * if that command does read some input after all, the number shown does not decrease. */
static size_t shown_hop(const rd_run_t *run)
{
    size_t last = rd_run_count(run) - 1, hop = 1;
    uint64_t least = run->speed.bytes > 0 ? run->speed.bytes : 1;

    if (run->settings->is_copy)
        return last;
    while (hop < last && run->of[hop].bytes < least)
        hop++;
    return run->of[hop].bytes > 0 ? hop : 1;
}

void rd_run_show(rd_run_t *run)
{
    const rd_cli_t *cli = &run->settings->cli;
    int64_t now = rd_now_ms(), since = now - run->speed.at_ms;
    char text[768] = "", *json;
    size_t hop = shown_hop(run);

    if (!run->are_started || !rd_progress_is_wanted(cli) || rd_left_ms(run->show_ms) > 0 ||
        since <= 0)
        return;
    run->show_ms = now + rd_progress_ms(cli);
    rd_speed_step(&run->speed, run->of[hop].bytes,
                  hop == 1 && !run->settings->is_copy ? run->size : 0, now);
    rd_speed_text(text, &run->speed);
    if (run->settings->is_copy)
        add_copy(run, text, sizeof text);
    else
        add_hops(run, text, sizeof text, since, hop);
    json = cli->json && cli->progress ? json_of(run) : NULL;
    if (json || !(cli->json && cli->progress))
        (void)rd_progress_write(cli, text, json);
    free(json);
}

/* ---- for other programs ---- */

static void write_hops(const rd_run_t *run, FILE *to)
{
    for (size_t i = 1; i < rd_run_count(run); i++) {
        (void)fprintf(to, "%s{\"from\": ", i > 1 ? ", " : "");
        rd_json_text(to, run->chain->of[i - 1].host);
        (void)fprintf(to, ", \"to\": ");
        rd_json_text(to, run->chain->of[i].host);
        (void)fprintf(to, ", \"carrier\": ");
        rd_json_text(to, run->of[i].carrier);
        (void)fprintf(to, ", \"bytes\": %llu}", (unsigned long long)run->of[i].bytes);
    }
}

/* Agents report their bytes twice a second, so this is called often enough. */
void rd_run_publish(const rd_run_t *run, rd_status_t *status)
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

/* ---- the end ---- */

static double seconds_of(const rd_run_t *run)
{
    return run->started_ms ? (double)(run->ended_ms - run->started_ms) / 1000 : 0;
}

static void report_json(const rd_run_t *run, int status)
{
    double seconds = seconds_of(run);

    (void)fprintf(
        stderr,
        "{\"command\": \"%s\", \"event\": \"end\", \"status\": %d, \"seconds\": %.3f, \"hops\": [",
        run->settings->cli.name, status, seconds);
    write_hops(run, stderr);
    (void)fprintf(stderr, "], \"segments\": [");
    for (size_t i = 0; i < rd_run_count(run); i++) {
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

/* Names the hosts of commands that failed, because their own messages do not. A command that was
 * killed by SIGPIPE is left out, since it did not fail. */
static void report_commands(const rd_run_t *run)
{
    for (size_t i = 0; i < rd_run_count(run); i++) {
        const rd_node_t *node = &run->chain->of[i];
        int status = run->of[i].status;

        if (status != 0 && status != RD_EXIT_QUIT)
            rd_say(&run->settings->cli, "%s: '%.*s' ended with status %d", rd_run_name(run, i),
                   (int)strcspn(node->text, "\n") > 60 ? 60 : (int)strcspn(node->text, "\n"),
                   node->text, status);
    }
}

void rd_run_report(const rd_run_t *run, int status)
{
    const rd_cli_t *cli = &run->settings->cli;
    double seconds = seconds_of(run);
    uint64_t bytes = rd_run_count(run) > 1 ? run->of[1].bytes : 0;

    rd_progress_clear(cli);
    if (run->is_faulty && !run->got_signal)
        rd_say(cli, "%s", run->fault.text);
    else if (!run->got_signal && !run->settings->is_copy)
        report_commands(run);
    for (size_t i = 1; i < rd_run_count(run); i++)
        if (run->of[i].bytes > bytes)
            bytes = run->of[i].bytes;
    if (cli->verbose && seconds >= 0) {
        char rate[32];

        rd_amount(rate, seconds > 0 ? (double)bytes / seconds : (double)bytes * 1000, "B/s");
        (void)fprintf(stderr, "Bandwidth %s\n", rate);
    }
    if (cli->progress && !cli->json && seconds > 0) {
        char amount[32], rate[32];

        rd_amount(amount, (double)bytes, "B");
        rd_amount(rate, (double)bytes / seconds, "B/s");
        rd_say(cli, "%s in %.3f s, %s", amount, seconds, rate);
    }
    if (cli->json)
        report_json(run, status);
}
