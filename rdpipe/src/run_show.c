/* SPDX-License-Identifier: Apache-2.0 */
#include "run_state.h"

#include <unistd.h>

/* ---- the line on a terminal ---- */

/* Of a copy only the content is shown, which goes over the last hop. */
static void show_copy(rd_run_t *run, int64_t s)
{
    rd_peer_t *last = &run->of[rd_run_count(run) - 1];
    char rate[32], total[32];

    rd_amount(total, (double)last->bytes, "B");
    rd_amount(rate, (double)(last->bytes - last->shown) * 1000 / RD_SHOW_MS, "B/s");
    last->shown = last->bytes;
    (void)fprintf(stderr, "\rrdcp: %d:%02d  %s  %s  %.60s to %.60s\033[K", (int)(s / 60),
                  (int)(s % 60), total, rate, rd_run_name(run, 0), rd_run_name(run, 1));
}

void rd_run_show(rd_run_t *run)
{
    char text[512], rate[32], total[32], left[48];
    size_t slowest = 0, len = 0;
    int64_t now = rd_now_ms(), s = (now - run->started_ms) / 1000;

    if (!run->are_started || !isatty(2) || rd_left_ms(run->show_ms) > 0)
        return;
    run->show_ms = now + RD_SHOW_MS;
    if (run->settings->is_copy) {
        show_copy(run, s);
        return;
    }
    for (size_t i = 1; i < rd_run_count(run); i++)
        if (slowest == 0 ||
            run->of[i].bytes - run->of[i].shown < run->of[slowest].bytes - run->of[slowest].shown)
            slowest = i;
    rd_amount(total, (double)run->of[1].bytes, "B");
    rd_left(left, run->of[1].bytes, run->size, now - run->started_ms);
    len = (size_t)snprintf(text, sizeof text, "%d:%02d %s %s ", (int)(s / 60), (int)(s % 60), total,
                           left);
    for (size_t i = 1; i < rd_run_count(run) && len < sizeof text - 100; i++) {
        rd_amount(rate, (double)(run->of[i].bytes - run->of[i].shown) * 1000 / RD_SHOW_MS, "B/s");
        len += (size_t)snprintf(text + len, sizeof text - len, " %s>%.30s %s%s",
                                i == 1 ? rd_run_name(run, 0) : "", rd_run_name(run, i), rate,
                                i == slowest && rd_run_count(run) > 2 ? "*" : "");
        run->of[i].shown = run->of[i].bytes;
    }
    (void)fprintf(stderr, "\r%s\033[K", text);
}

/* ---- for others to see ---- */

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

/* Agents tell of their bytes twice a second, so this is passed often enough. */
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

    (void)fprintf(stderr, "{\"command\": \"%s\", \"status\": %d, \"seconds\": %.3f, \"hops\": [",
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

/* What a command says on standard error has no host with it. One that SIGPIPE has ended was only
 * wanted no more. */
static void report_commands(const rd_run_t *run)
{
    for (size_t i = 0; i < rd_run_count(run); i++) {
        const rd_node_t *node = &run->chain->of[i];
        int status = run->of[i].status;

        if (node->work == RD_WORK_COMMAND && status != 0 && status != RD_EXIT_QUIT)
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

    if (isatty(2))
        (void)fprintf(stderr, "\r\033[K");
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
    if (cli->json)
        report_json(run, status);
}
