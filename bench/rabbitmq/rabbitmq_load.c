/* SPDX-License-Identifier: Apache-2.0
 *
 * One publisher and one consumer of a RabbitMQ queue, for `bench rabbitmq`. It is written in C with
 * librabbitmq, because the client and the brokers share the processors: a 100-byte message that is
 * published, confirmed, consumed and acknowledged took 9 us of CPU time in this client, 16 in
 * Erlang's amqp_client and 56 in Python's pika (10 KB: 29, 37, 75).
 *
 * usage: rabbitmq_load PUBLISH_AT CONSUME_AT QUEUE BYTES WINDOW RATE WARM_MS MEASURE_MS
 * The first two are ADDRESS:PORT. If RATE is 0, it publishes as fast as the broker permits, with at
 * most WINDOW published messages that have not been both confirmed and consumed. Otherwise it
 * publishes RATE messages per second at equal intervals. It prints `begin` when it begins to
 * measure, `published` when it has published the last message, and finally `end CONSUMED SECONDS
 * P50 P99 MAX`. CONSUMED is the number of messages; P50, P99 and MAX are latencies in microseconds,
 * from the time when a message should have been published until it was consumed. A stream only
 * delivers what is published after the consumer has subscribed, so the publisher waits for that.
 * Messages are persistent and are confirmed; the consumer acknowledges every 50th message, which
 * also acknowledges those before it. Exit status: 0, or 1 after an error message on standard error.
 */
#define _POSIX_C_SOURCE 200809L
#include <amqp.h>
#include <amqp_tcp_socket.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

enum {
    CHANNEL = 1,
    MAX_SAMPLES = 1 << 20,
    CONFIRM_SLOTS = 1 << 16,
    ACK_EVERY = 50,
    WAIT_US = 2000,
    MIN_SAMPLES = 20
};

/* How much more time than MEASURE_MS a slow machine may take to collect MIN_SAMPLES. */
static const uint64_t MORE_NS = 20000000000u;

typedef struct {
    const char *publish_at, *consume_at, *queue;
    int window, warm_ms, measure_ms;
    size_t bytes;
    long rate;
} options_t;

static options_t options;
static atomic_ullong consumed;
static atomic_ullong measure_from = UINT64_MAX, measure_until = UINT64_MAX;
static atomic_bool measured, stop;
static pthread_barrier_t subscribed;
static uint64_t measured_ns;
static uint64_t *samples;
static atomic_size_t sample_count;

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "rabbitmq_load: %s: %s\n", what, why);
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void check_reply(amqp_rpc_reply_t reply, const char *what)
{
    if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION)
        fail(what, amqp_error_string2(reply.library_error));
    if (reply.reply_type != AMQP_RESPONSE_NORMAL)
        fail(what, "refused by the broker");
}

static amqp_connection_state_t open_channel(const char *at)
{
    amqp_connection_state_t connection = amqp_new_connection();
    amqp_socket_t *socket = amqp_tcp_socket_new(connection);
    char address[64];
    int port;

    if (sscanf(at, "%63[^:]:%d", address, &port) != 2)
        fail("not an ADDRESS:PORT", at);
    if (!socket || amqp_socket_open(socket, address, port) != AMQP_STATUS_OK)
        fail("connect", strerror(errno));
    check_reply(amqp_login(connection, "/", 0, AMQP_DEFAULT_FRAME_SIZE, 0, AMQP_SASL_METHOD_PLAIN,
                           "guest", "guest"),
                "login");
    amqp_channel_open(connection, CHANNEL);
    check_reply(amqp_get_rpc_reply(connection), "channel");
    return connection;
}

/* ---- the consumer ---- */

static void take(const amqp_envelope_t *envelope)
{
    uint64_t published, now = now_ns();

    if (envelope->message.body.len != options.bytes)
        fail("consume", "a message of another size");
    memcpy(&published, envelope->message.body.bytes, sizeof published);
    if (now >= measure_from && !measured && sample_count < MAX_SAMPLES)
        samples[sample_count++] = now - published;
    consumed++;
}

static void *consume(void *unused)
{
    amqp_connection_state_t connection = open_channel(options.consume_at);
    uint64_t unacknowledged = 0, last = 0;

    (void)unused;
    amqp_basic_qos(connection, CHANNEL, 0, 4 * ACK_EVERY, 0);
    check_reply(amqp_get_rpc_reply(connection), "qos");
    amqp_basic_consume(connection, CHANNEL, amqp_cstring_bytes(options.queue), amqp_empty_bytes, 0,
                       0, 0, amqp_empty_table);
    check_reply(amqp_get_rpc_reply(connection), "consume");
    pthread_barrier_wait(&subscribed);
    while (!stop) {
        struct timeval wait = {.tv_usec = WAIT_US};
        amqp_envelope_t envelope;
        amqp_rpc_reply_t reply;

        amqp_maybe_release_buffers(connection);
        reply = amqp_consume_message(connection, &envelope, &wait, 0);
        if (reply.reply_type == AMQP_RESPONSE_NORMAL) {
            take(&envelope);
            last = envelope.delivery_tag;
            unacknowledged++;
            amqp_destroy_envelope(&envelope);
        } else if (reply.library_error != AMQP_STATUS_TIMEOUT) {
            check_reply(reply, "consume");
        }
        if (unacknowledged >= ACK_EVERY ||
            (unacknowledged > 0 && reply.reply_type != AMQP_RESPONSE_NORMAL)) {
            if (amqp_basic_ack(connection, CHANNEL, last, 1) != AMQP_STATUS_OK)
                fail("ack", "connection lost");
            unacknowledged = 0;
        }
    }
    amqp_connection_close(connection, AMQP_REPLY_SUCCESS);
    amqp_destroy_connection(connection);
    return NULL;
}

/* ---- the publisher ---- */

static uint64_t published, confirmed, lowest = 1;
static bool is_confirmed[CONFIRM_SLOTS];

static void confirm(uint64_t tag)
{
    confirmed += !is_confirmed[tag % CONFIRM_SLOTS];
    is_confirmed[tag % CONFIRM_SLOTS] = true;
    while (lowest <= published && is_confirmed[lowest % CONFIRM_SLOTS])
        is_confirmed[lowest++ % CONFIRM_SLOTS] = false;
}

/* Reads one frame, if one arrives in time. */
static void read_confirm(amqp_connection_state_t connection, uint64_t wait_us)
{
    struct timeval wait = {.tv_sec = (time_t)(wait_us / 1000000),
                           .tv_usec = (suseconds_t)(wait_us % 1000000)};
    amqp_frame_t frame;
    int status;

    amqp_maybe_release_buffers(connection);
    status = amqp_simple_wait_frame_noblock(connection, &frame, &wait);
    if (status == AMQP_STATUS_TIMEOUT)
        return;
    if (status != AMQP_STATUS_OK)
        fail("confirm", amqp_error_string2(status));
    if (frame.frame_type != AMQP_FRAME_METHOD)
        return;
    if (frame.payload.method.id == AMQP_BASIC_ACK_METHOD) {
        const amqp_basic_ack_t *ack = frame.payload.method.decoded;
        if (ack->multiple)
            for (uint64_t tag = lowest; tag < ack->delivery_tag;)
                confirm(tag), tag = lowest > tag ? lowest : tag + 1;
        if (ack->delivery_tag >= lowest)
            confirm(ack->delivery_tag);
    } else if (frame.payload.method.id != AMQP_BASIC_NACK_METHOD) {
        fail("publish", "the broker closed the channel");
    } else {
        fail("publish", "the broker refused a message");
    }
}

/* Ends the measurement and returns true once the time has passed and there are enough samples. If
 * there are not enough, it ends MORE_NS later. */
static bool is_measured(void)
{
    uint64_t now = now_ns();

    if (now < measure_until || (sample_count < MIN_SAMPLES && now < measure_until + MORE_NS))
        return false;
    measured_ns = now - measure_from;
    measured = true;
    return true;
}

static uint64_t on_the_way(void)
{
    uint64_t done = consumed < confirmed ? consumed : confirmed;
    return published - done;
}

static void publish_one(amqp_connection_state_t connection, char *body, uint64_t due)
{
    amqp_basic_properties_t properties = {._flags = AMQP_BASIC_DELIVERY_MODE_FLAG,
                                          .delivery_mode = 2};
    amqp_bytes_t bytes = {.len = options.bytes, .bytes = body};

    memcpy(body, &due, sizeof due);
    published++;
    if (amqp_basic_publish(connection, CHANNEL, amqp_empty_bytes, amqp_cstring_bytes(options.queue),
                           0, 0, &properties, bytes) != AMQP_STATUS_OK)
        fail("publish", "connection lost");
}

static void publish_fast(amqp_connection_state_t connection, char *body)
{
    while (!is_measured()) {
        while (on_the_way() < (uint64_t)options.window)
            publish_one(connection, body, now_ns());
        read_confirm(connection, published > confirmed ? WAIT_US : 0);
        while (amqp_frames_enqueued(connection) || amqp_data_in_buffer(connection))
            read_confirm(connection, 0);
    }
}

static void publish_paced(amqp_connection_state_t connection, char *body, uint64_t start)
{
    uint64_t distance = 1000000000u / (uint64_t)options.rate, now;

    for (uint64_t due = start; !is_measured(); due += distance) {
        while ((now = now_ns()) < due)
            read_confirm(connection, (due - now) / 1000);
        if (on_the_way() >= CONFIRM_SLOTS)
            fail("publish", "the broker does not keep up with this rate");
        publish_one(connection, body, due);
    }
}

/* Waits for the outstanding messages, because the next run must begin with an empty queue. */
static void finish(amqp_connection_state_t connection)
{
    uint64_t deadline = now_ns() + 30000000000u;

    while (on_the_way() > 0) {
        if (now_ns() > deadline)
            fail("publish", "messages were neither confirmed nor consumed in 30 s");
        read_confirm(connection, WAIT_US);
    }
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void report(void)
{
    if (sample_count == 0)
        fail("consume", "no message came");
    qsort(samples, sample_count, sizeof *samples, by_size);
    printf("end %zu %.3f %.1f %.1f %.1f\n", sample_count, (double)measured_ns / 1e9,
           (double)samples[(sample_count - 1) / 2] / 1e3,
           (double)samples[(sample_count - 1) * 99 / 100] / 1e3,
           (double)samples[sample_count - 1] / 1e3);
}

/* A separate thread prints `begin` on time even while the publisher is blocked, because the caller
 * takes other measurements between `begin` and `published`. */
static void *announce(void *unused)
{
    struct timespec from = {.tv_sec = (time_t)(measure_from / 1000000000u),
                            .tv_nsec = (long)(measure_from % 1000000000u)};

    (void)unused;
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &from, NULL);
    puts("begin");
    fflush(stdout);
    return NULL;
}

static long number(const char *text, long min, long max)
{
    char *end;
    long value = strtol(text, &end, 10);

    if (*end || end == text || value < min || value > max)
        fail("wrong number", text);
    return value;
}

int main(int argc, char **argv)
{
    amqp_connection_state_t connection;
    pthread_t consumer, announcer;
    uint64_t start;
    char *body;

    if (argc != 9)
        fail("usage", "PUBLISH_AT CONSUME_AT QUEUE BYTES WINDOW RATE WARM_MS MEASURE_MS");
    options = (options_t){.publish_at = argv[1],
                          .consume_at = argv[2],
                          .queue = argv[3],
                          .bytes = (size_t)number(argv[4], 8, 1 << 27),
                          .window = (int)number(argv[5], 1, CONFIRM_SLOTS - 1),
                          .rate = number(argv[6], 0, 1000000),
                          .warm_ms = (int)number(argv[7], 0, 60000),
                          .measure_ms = (int)number(argv[8], 1, 60000)};
    samples = malloc(MAX_SAMPLES * sizeof *samples);
    body = calloc(1, options.bytes);
    if (!samples || !body)
        fail("memory", strerror(errno));
    connection = open_channel(options.publish_at);
    amqp_confirm_select(connection, CHANNEL);
    check_reply(amqp_get_rpc_reply(connection), "confirms");
    if (pthread_barrier_init(&subscribed, NULL, 2) != 0 ||
        pthread_create(&consumer, NULL, consume, NULL) != 0)
        fail("thread", "cannot be made");
    pthread_barrier_wait(&subscribed);
    start = now_ns();
    measure_from = start + (uint64_t)options.warm_ms * 1000000u;
    measure_until = measure_from + (uint64_t)options.measure_ms * 1000000u;
    if (pthread_create(&announcer, NULL, announce, NULL) != 0)
        fail("thread", "cannot be made");
    if (options.rate == 0)
        publish_fast(connection, body);
    else
        publish_paced(connection, body, start);
    puts("published");
    fflush(stdout);
    finish(connection);
    stop = true;
    pthread_join(announcer, NULL);
    pthread_join(consumer, NULL);
    report();
    amqp_connection_close(connection, AMQP_REPLY_SUCCESS);
    amqp_destroy_connection(connection);
    free(samples);
    free(body);
    return 0;
}
