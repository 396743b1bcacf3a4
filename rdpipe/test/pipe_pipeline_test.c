/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the command lines of pipelines, and the messages of the control channel. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"

#include "run/control.h"
#include "run/pipeline.h"

#define ARGS_MAX 8

typedef struct {
    const char *args[ARGS_MAX];
    const char *segments; /* lines of HOST|WORK|TEXT, with a * before each receiver */
    const char *why;      /* part of the error message if it is rejected */
    bool tee;
} line_t;

static const line_t lines[] = {
    /* the original examples */
    {{"host1:tr [:lower:] [:upper:]", "host2:rev"},
     "host1|command|tr [:lower:] [:upper:]\nhost2|command|rev\n",
     NULL,
     false},
    {{"backup@fileserver:zfs send -I tank/media@last_backup tank/media@head",
      "backup_server:zfs recv tank-backup/media"},
     "backup@fileserver|command|zfs send -I tank/media@last_backup tank/media@head\n"
     "backup_server|command|zfs recv tank-backup/media\n",
     NULL,
     false},
    {{"playback_host:ffplay -f rawvideo -pix_fmt yuv420p -s 720x480 -"},
     "playback_host|command|ffplay -f rawvideo -pix_fmt yuv420p -s 720x480 -\n",
     NULL,
     false},
    {{"host1:</scratch/zeroes", "host2:>/dev/null"},
     "host1|from|/scratch/zeroes\nhost2|to|/dev/null\n",
     NULL,
     false},
    /* redirections */
    {{"a:< x ", "b: >>\"y z\""}, "a|from|x\nb|append|\"y z\"\n", NULL, false},
    {{"a:<x cat", "b:>y cat"}, "a|command|<x cat\nb|command|>y cat\n", NULL, false},
    {{"a:<$(ls)", "b:> `x`"}, "a|command|<$(ls)\nb|command|> `x`\n", NULL, false},
    {{"a:<<x"}, "a|command|<<x\n", NULL, false},
    {{"a:<~/x'y z'"}, "a|from|~/x'y z'\n", NULL, false},
    {{"a:cat", "b:<x"}, NULL, "only the first", false},
    {{"[a:<x]"}, NULL, "not in brackets", false},
    {{"a:>x", "b:cat"}, NULL, "only the last", false},
    /* hosts */
    {{"[fe80::1%eth0]:cat", "me@[::1]:rev"},
     "fe80::1%eth0|command|cat\nme@::1|command|rev\n",
     NULL,
     false},
    {{":cat", "a:"}, "|command|cat\na|relay|\n", NULL, false},
    {{"a:b:c@d"}, "a|command|b:c@d\n", NULL, false},
    {{"cat"}, NULL, "HOST:COMMAND", false},
    {{"a:sort", "-n"}, NULL, "'-n': options come before the first segment", false},
    {{"a:cat", "-"}, NULL, "HOST:COMMAND", false},
    {{"-oProxyCommand=x:cat"}, NULL, "not a valid host", false},
    {{"a b:cat"}, NULL, "not a valid host", false},
    {{"me@:cat"}, NULL, "not a valid host", false},
    {{"@a:cat"}, NULL, "not a valid host", false},
    {{"/tmp/x:cat"}, NULL, "not a valid host", false},
    {{NULL}, NULL, "at least one", false},
    /* several receivers */
    {{"a:x", "[b:y", "c:z]"}, "a|command|x\n*b|command|y\n*c|command|z\n", NULL, false},
    {{"a:x", "[b:y", "c:tr [:a:]]"},
     "a|command|x\n*b|command|y\n*c|command|tr [:a:]\n",
     NULL,
     false},
    {{"a:x", "[", "b:y", "c:tr [:a:]", "]"},
     "a|command|x\n*b|command|y\n*c|command|tr [:a:]\n",
     NULL,
     false},
    {{"a:x", "b:y", "c:z"}, "a|command|x\n*b|command|y\n*c|command|z\n", NULL, true},
    {{"a:x", "[b:y", "c:z"}, NULL, "without ']'", false},
    {{"[", "b:y", "]", "c:z"}, NULL, "after ']'", false},
    {{"a:x", "[b:y", "c:z]"}, NULL, "use one", true},
    {{"a:x"}, NULL, "receivers", true},
};

static void lines_are_parsed(void)
{
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        rd_pipeline_t pipeline;
        rd_why_t why = {.text = ""};
        char *args[ARGS_MAX], got[1024] = "";
        size_t count = 0;
        bool done;

        for (; count < ARGS_MAX && lines[i].args[count]; count++)
            args[count] = (char *)(uintptr_t)lines[i].args[count];
        done = rd_pipeline_parse(args, count, lines[i].tee, &pipeline, &why);
        if (!lines[i].segments) {
            if (done || !strstr(why.text, lines[i].why))
                printf("    line %zu: %s\n", i, why.text);
            CHECK(!done && strstr(why.text, lines[i].why) != NULL);
            continue;
        }
        CHECK(done);
        for (size_t j = 0; j < pipeline.count; j++) {
            const rd_segment_t *segment = &pipeline.of[j];
            size_t len = strlen(got);

            snprintf(got + len, sizeof got - len, "%s%s|%s|%s\n", segment->is_receiver ? "*" : "",
                     segment->host, rd_work_name(segment->work), segment->text);
        }
        rd_pipeline_free(&pipeline);
        if (strcmp(got, lines[i].segments) != 0)
            printf("    line %zu: %s\n", i, got);
        CHECK(strcmp(got, lines[i].segments) == 0);
    }
}

static void too_many_segments_are_refused(void)
{
    static char arg[] = "a:cat";
    char *args[RD_SEGMENTS_MAX + 1];
    rd_pipeline_t pipeline;
    rd_why_t why = {.text = ""};

    for (size_t i = 0; i <= RD_SEGMENTS_MAX; i++)
        args[i] = arg;
    CHECK(rd_pipeline_parse(args, RD_SEGMENTS_MAX, false, &pipeline, &why));
    rd_pipeline_free(&pipeline);
    CHECK(!rd_pipeline_parse(args, RD_SEGMENTS_MAX + 1, false, &pipeline, &why));
}

static void every_byte_survives_a_line(void)
{
    char bytes[256], *value, *line;
    rd_line_t out;
    rd_lines_t in;
    size_t len;
    uint64_t number;
    int ends[2];

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)i;
    CHECK(pipe(ends) == 0);
    rd_line_begin(&out, "word");
    rd_line_add_bytes(&out, "bytes", bytes, sizeof bytes);
    rd_line_number(&out, "number", UINT64_MAX);
    rd_line_add(&out, "empty", "");
    CHECK(rd_line_send(&out, ends[1]));
    rd_line_begin(&out, "second");
    CHECK(rd_line_send(&out, ends[1]));
    close(ends[1]);
    rd_lines_init(&in, ends[0]);
    while (!in.has_ended)
        rd_lines_fill(&in);
    line = rd_lines_next(&in);
    CHECK(line && rd_line_is(line, "word") && !rd_line_is(line, "wor"));
    value = rd_line_value(line, "bytes", &len);
    CHECK(value && len == sizeof bytes && memcmp(value, bytes, len) == 0);
    free(value);
    CHECK(rd_line_value_number(line, "number", UINT64_MAX, &number) && number == UINT64_MAX);
    value = rd_line_value(line, "empty", NULL);
    CHECK(value && !*value);
    free(value);
    CHECK(rd_line_value(line, "none", NULL) == NULL);
    line = rd_lines_next(&in);
    CHECK(line && rd_line_is(line, "second"));
    CHECK(rd_lines_next(&in) == NULL);
    rd_lines_free(&in);
    close(ends[0]);
}

/* How far the simulated clock is ahead of the real one. Waiting takes no time, but only advances
 * this clock. */
static _Atomic int64_t ahead_ms;

int clock_gettime(clockid_t clock, struct timespec *time_p)
{
    int status = (int)syscall(SYS_clock_gettime, clock, time_p);
    int64_t ns = time_p->tv_nsec + ahead_ms % 1000 * 1000000;

    time_p->tv_sec += ahead_ms / 1000 + ns / 1000000000;
    time_p->tv_nsec = ns % 1000000000;
    return status;
}

typedef struct {
    int fd;
    int64_t ms; /* time to read each page */
    size_t bytes;
} reader_t;

static void *read_slowly(void *argument)
{
    reader_t *reader = argument;
    char page[4096];
    ssize_t n;

    do {
        ahead_ms += reader->ms;
        n = read(reader->fd, page, sizeof page);
        reader->bytes += n > 0 ? (size_t)n : 0;
    } while (n > 0);
    return NULL;
}

/* Sends a line of about this size to a reader that needs `ms` for each page. */
static bool is_sent(size_t bytes, int64_t ms, size_t *read_p)
{
    char *text = malloc(bytes + 1);
    reader_t reader;
    pthread_t thread;
    rd_line_t line;
    int ends[2];
    bool done;

    if (!text || pipe(ends) < 0 || fcntl(ends[1], F_SETPIPE_SZ, 4096) != 4096)
        abort();
    memset(text, 'x', bytes);
    text[bytes] = 0;
    rd_line_begin(&line, "line");
    rd_line_add(&line, "text", text);
    free(text);
    reader = (reader_t){.fd = ends[0], .ms = ms};
    if (pthread_create(&thread, NULL, read_slowly, &reader) != 0)
        abort();
    done = rd_line_send(&line, ends[1]);
    close(ends[1]);
    (void)pthread_join(thread, NULL);
    close(ends[0]);
    *read_p = reader.bytes;
    return done;
}

/* A peer that always reads a little just in time must not block the sender forever. */
static void a_line_has_one_deadline(void)
{
    size_t bytes;

    CHECK(!is_sent(400000, 9000, &bytes));
    CHECK(bytes < 40000);
    /* A peer that is merely slow still receives all of a long line, in 23 of the 26 s. */
    CHECK(is_sent(1 << 20, 90, &bytes));
    CHECK(bytes > 1 << 20);
}

static const check_case_t cases[] = {
    {"lines are parsed", lines_are_parsed},
    {"too many segments are refused", too_many_segments_are_refused},
    {"every byte survives a line", every_byte_survives_a_line},
    {"a line has one deadline", a_line_has_one_deadline},
};

CHECK_MAIN(cases)
