/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests what is particular to the tls carrier: which peers get a link, what is visible on the
 * network, and what happens to a connection that an attacker on the path cuts or changes. This
 * program is that attacker: each end is connected to it by a socket, and it forwards the bytes.
 */
#include <fcntl.h>

#include "../carriers.h"
#include "../kernel.h"
#include "libssl_end.h"

#include "../../link/socket_link.h"
#include "../../link/tls/keys.h"

#define RING BW_RING_MIN_BYTES
#define SPLICE_BYTES 65536
#define SEND_S 1

static struct {
    int outside[2];      /* the outer ends: sockets of client and server */
    int between[2];      /* the other ends of those sockets, or -1 if closed */
    bw_link_t *links[2]; /* client, server */
    bw_report_t reports[2];
    uint8_t seen[1 << 20]; /* bytes that have passed from client to server */
    size_t seen_len;
    size_t passes; /* how many more bytes may pass that way before the wire is cut */
    size_t flips;  /* position of a byte to change in that direction, or SIZE_MAX if none */
    int descriptors;
} here;

static void start(void)
{
    here.descriptors = open_descriptors();
    here.seen_len = 0;
    here.passes = here.flips = SIZE_MAX;
    for (int i = 0; i < 2; i++) {
        int pair[2];

        here.links[i] = NULL;
        here.reports[i] = (bw_report_t){0};
        CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        /* an end that does not read must not block this program forever */
        CHECK_EQ(setsockopt(pair[1], SOL_SOCKET, SO_SNDTIMEO, &(struct timeval){.tv_sec = SEND_S},
                            sizeof(struct timeval)),
                 0);
        here.outside[i] = pair[0];
        here.between[i] = pair[1];
    }
}

static void close_wire(int i)
{
    if (here.between[i] >= 0)
        close(here.between[i]);
    here.between[i] = -1;
}

static void stop(void)
{
    for (int i = 0; i < 2; i++) {
        close_wire(i);
        close(here.outside[i]);
        close_link(here.links[i]);
    }
    CHECK_EQ(open_descriptors(), here.descriptors);
    CHECK_EQ(carrier_mappings(NULL), 0);
}

/* Creates an end with these keys, and with bytes that were read before it was created. */
static bw_status_t make_end_of(int i, const bw_tls_key_t *keys, size_t count, const void *read,
                               size_t len)
{
    uint8_t at[BW_TLS_PLACE_BYTES(BW_TLS_KEYS_MAX) + 4096] = {0};
    bw_order_t order = {.at = at, .ring_bytes = RING};
    bw_error_t error = {0};

    *bw_put(at, (uint64_t)here.outside[i], BW_TLS_SOCKET_BYTES) = (uint8_t)count;
    memcpy(at + BW_TLS_SOCKET_BYTES + 1, keys, count * sizeof *keys);
    order.at_len = BW_TLS_PLACE_BYTES(count) + len;
    memcpy(at + order.at_len - len, read, len);
    return i == 0 ? bw_tls_carrier.connect(&order, &here.links[i], &error)
                  : bw_tls_carrier.listen(&order, &here.links[i], &error);
}

/* Like make_end_of, with a single key that has no label. */
static bw_status_t make_end(int i, const char *key, const void *read, size_t len)
{
    bw_tls_key_t only = {.label = {0}};

    memcpy(only.key, key, strlen(key));
    return make_end_of(i, &only, 1, read, len);
}

static void send_on(int to, const uint8_t *bytes, size_t len)
{
    if (send(to, bytes, len, MSG_NOSIGNAL) < 0)
        CHECK(errno != EAGAIN);
}

/* Passes on the bytes that have arrived. Returns true if there were any. */
static bool carry_from(int i)
{
    static uint8_t bytes[SPLICE_BYTES];
    ssize_t n =
        here.between[i] < 0
            ? 0
            : recv(here.between[i], bytes,
                   i == 0 ? bw_least(sizeof bytes, here.passes) : sizeof bytes, MSG_DONTWAIT);

    if (n <= 0)
        return false;
    for (ssize_t k = 0; i == 0 && k < n; k++) {
        bytes[k] ^= here.seen_len == here.flips;
        if (here.seen_len < sizeof here.seen)
            here.seen[here.seen_len++] = bytes[k];
    }
    if (here.between[!i] >= 0)
        send_on(here.between[!i], bytes, (size_t)n);
    if (i == 0)
        here.passes -= here.passes == SIZE_MAX ? 0 : (size_t)n;
    if (here.passes == 0)
        for (int k = 0; k < 2; k++)
            close_wire(k);
    return true;
}

static void step_both(void)
{
    for (int i = 0; i < 2; i++)
        if (here.links[i] && here.reports[i].state != BW_FAILED)
            here.links[i]->ops->step(here.links[i], &here.reports[i]);
}

static bool is_settled(int i)
{
    return !here.links[i] || here.reports[i].state >= BW_LINKED;
}

/* Runs until both ends know the result, or no more bytes arrive. */
static void shake_hands(void)
{
    int idle = 0;

    do {
        step_both();
        idle = carry_from(0) + carry_from(1) > 0 ? 0 : idle + 1;
    } while (!check_failed && !(is_settled(0) && is_settled(1)) && idle < 10);
}

static void start_linked(void)
{
    CHECK_IN(start());
    CHECK_EQ(make_end(0, "key", "", 0), BW_OK);
    CHECK_EQ(make_end(1, "key", "", 0), BW_OK);
    shake_hands();
    CHECK_EQ(here.reports[0].state, BW_LINKED);
    CHECK_EQ(here.reports[1].state, BW_LINKED);
}

static void say(const char *text)
{
    bw_span_t span;

    CHECK_EQ(here.links[0]->ops->reserve(here.links[0], strlen(text), &span), BW_OK);
    memcpy(span.base, text, strlen(text));
    here.links[0]->ops->commit(here.links[0], strlen(text));
}

/* Reads at the server once everything in flight has arrived. */
static bw_status_t hear(bw_span_t *span_p)
{
    *span_p = (bw_span_t){0};
    do
        here.links[1]->ops->clear_event(here.links[1]);
    while (!check_failed && (carry_from(0) || carry_from(1)));
    return here.links[1]->ops->peek(here.links[1], span_p);
}

static bool has_seen(const char *text)
{
    return memmem(here.seen, here.seen_len, text, strlen(text)) != NULL;
}

/* ---- access control ---- */

static void nothing_readable_passes(void)
{
    bw_span_t span;

    CHECK_IN(start_linked());
    CHECK_IN(say("a word for two"));
    CHECK_EQ(hear(&span), BW_OK);
    CHECK_EQ(span.len, 14);
    CHECK_EQ(memcmp(span.base, "a word for two", 14), 0);
    CHECK(here.seen_len > 100);
    CHECK(!has_seen("a word"));
    CHECK(strncmp(here.reports[0].device, "TLS_", 4) == 0);
    CHECK_EQ(strcmp(here.reports[0].device, here.reports[1].device), 0);
    CHECK_IN(stop());
}

static void another_key_is_refused(void)
{
    CHECK_IN(start());
    CHECK_EQ(make_end(0, "key", "", 0), BW_OK);
    CHECK_EQ(make_end(1, "kez", "", 0), BW_OK);
    shake_hands();
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(here.reports[i].state, BW_FAILED);
        CHECK(strncmp(here.reports[i].text, "tls: ", 5) == 0);
    }
    CHECK_IN(stop());
}

static const bw_tls_key_t old_key = {"00000001", "the key of before"},
                          new_key = {"00000002", "the key of now"},
                          other_key = {"00000001", "of another cluster"};

/* While a key is being replaced, a caller with either key is accepted, and both sides know which
 * key was used. */
static void a_server_has_several_keys(void)
{
    const bw_tls_key_t both[] = {old_key, new_key};

    for (int i = 0; i < 2; i++) {
        CHECK_IN(start());
        CHECK_EQ(make_end_of(0, &both[i], 1, "", 0), BW_OK);
        CHECK_EQ(make_end_of(1, both, 2, "", 0), BW_OK);
        shake_hands();
        for (int k = 0; k < 2; k++) {
            CHECK_EQ(here.reports[k].state, BW_LINKED);
            CHECK(strstr(here.reports[k].device, i == 0 ? " 00000001" : " 00000002"));
        }
        CHECK_IN(stop());
    }
}

/* The server's reason states which key was named, and whether it has no key of that name or a
 * different one. */
static void an_unknown_key_is_named(void)
{
    static const char *const words[] = {"-00000001", "binder"};

    for (int i = 0; i < 2; i++) {
        CHECK_IN(start());
        CHECK_EQ(make_end_of(0, &old_key, 1, "", 0), BW_OK);
        CHECK_EQ(make_end_of(1, i == 0 ? &new_key : &other_key, 1, "", 0), BW_OK);
        shake_hands();
        CHECK_EQ(here.reports[0].state, BW_FAILED);
        CHECK_EQ(here.reports[1].state, BW_FAILED);
        CHECK(strstr(here.reports[1].text, words[i]));
        CHECK(strstr(here.reports[0].text, "refuses this node's key"));
        CHECK_IN(stop());
    }
}

/* A named key is not accepted in place of an unnamed one, nor vice versa. */
static void a_label_is_part_of_the_key(void)
{
    bw_tls_key_t bare = old_key;

    memset(bare.label, 0, sizeof bare.label);
    for (int i = 0; i < 2; i++) {
        CHECK_IN(start());
        CHECK_EQ(make_end_of(0, i == 0 ? &bare : &old_key, 1, "", 0), BW_OK);
        CHECK_EQ(make_end_of(1, i == 0 ? &old_key : &bare, 1, "", 0), BW_OK);
        shake_hands();
        CHECK_EQ(here.reports[0].state, BW_FAILED);
        CHECK_EQ(here.reports[1].state, BW_FAILED);
        CHECK_IN(stop());
    }
}

/* A link that leaves its connection neither sends a message nor shuts the connection down, because
 * the connection continues under its other descriptors. */
static void a_link_may_leave_its_connection(void)
{
    char byte = 'x';

    CHECK_IN(start_linked());
    for (int i = 0; i < 2; i++) {
        here.links[i]->ops->leave(here.links[i]);
        here.links[i]->ops->close(here.links[i], NULL);
        here.links[i] = NULL;
    }
    for (int i = 0; i < 2; i++)
        CHECK_EQ(recv(here.between[i], &byte, 1, MSG_DONTWAIT), -1);
    CHECK_EQ(send(here.outside[0], &byte, 1, MSG_NOSIGNAL), 1);
    CHECK_EQ(recv(here.between[0], &byte, 1, 0), 1);
    CHECK_IN(stop());
}

/* Every version must derive the same key; this one was computed with Python's hashlib.scrypt. */
static void a_password_gives_the_same_key_everywhere(void)
{
    static const uint8_t known[BW_DERIVED_BYTES] = {0xd1, 0xa6, 0xc3, 0x18, 0x36, 0x15, 0xda, 0xdf,
                                                    0x24, 0x4b, 0x29, 0x76, 0xf9, 0x2e, 0xe1, 0xbf,
                                                    0xe7, 0xa4, 0x5c, 0xcf, 0x3b, 0xc7, 0xad, 0x9d,
                                                    0xe6, 0xc6, 0xfa, 0x6c, 0x67, 0x96, 0xca, 0xa3};
    uint8_t key[BW_DERIVED_BYTES];
    bw_error_t error = {0};

    CHECK_EQ(bw_tls_derive((const uint8_t *)"salt", 4, (const uint8_t *)"password", 8, key, &error),
             BW_OK);
    CHECK_EQ(memcmp(key, known, sizeof key), 0);
}

static void two_of_one_role_are_refused(void)
{
    uint8_t at[BW_TLS_PLACE_BYTES(1)] = {[BW_TLS_SOCKET_BYTES] = 1};
    bw_order_t order = {.at = at, .at_len = sizeof at, .ring_bytes = RING};
    bw_error_t error = {0};

    CHECK_IN(start());
    CHECK_EQ(make_end(0, "", "", 0), BW_OK);
    (void)bw_put(at, (uint64_t)here.outside[1], BW_TLS_SOCKET_BYTES);
    CHECK_EQ(bw_tls_carrier.connect(&order, &here.links[1], &error), BW_OK);
    shake_hands();
    CHECK_EQ(here.reports[0].state, BW_FAILED);
    CHECK_EQ(here.reports[1].state, BW_FAILED);
    CHECK_IN(stop());
}

static void garbage_is_refused(void)
{
    static const char garbage[] = "GET / HTTP/1.1\r\nHost: here\r\n\r\n";

    for (int i = 0; i < 2; i++) {
        CHECK_IN(start());
        CHECK_EQ(make_end(i, "key", "", 0), BW_OK);
        CHECK_EQ(send(here.between[i], garbage, sizeof garbage - 1, MSG_NOSIGNAL),
                 sizeof garbage - 1);
        shake_hands();
        CHECK_EQ(here.reports[i].state, BW_FAILED);
        CHECK_IN(stop());
    }
}

/* Writes the first message of TLS 1.2 without extensions: random and session ID are zeros, followed
 * by `rest`. */
static size_t put_old_hello(uint8_t *at, uint64_t kind, const char *rest, size_t len)
{
    uint8_t *end = bw_put(at, 0x160301, 3);

    end = bw_put(end, 39 + len, 2);
    end = bw_put(end, kind, 1);
    end = bw_put(end, 35 + len, 3);
    end = bw_put(end, 0x0303, 2);
    memset(end, 0, 33);
    memcpy(end + 33, rest, len);
    return (size_t)(end + 33 + len - at);
}

/* An attacker on the path may request an older version from the server, or reply to a client with
 * one. */
static void an_older_version_is_refused(void)
{
    static const char *const rest[] = {"\xC0\x2F", "\0\4\xC0\x2F\xC0\x30\1"};
    static const size_t rest_len[] = {3, 8};
    uint8_t hello[64];

    for (int i = 0; i < 2; i++) {
        size_t len = put_old_hello(hello, 2 - (uint64_t)i, rest[i], rest_len[i]);

        CHECK_IN(start());
        CHECK_EQ(make_end(i, "key", "", 0), BW_OK);
        CHECK_EQ(send(here.between[i], hello, len, MSG_NOSIGNAL), len);
        shake_hands();
        CHECK_EQ(here.reports[i].state, BW_FAILED);
        CHECK(strncmp(here.reports[i].text, "tls: ", 5) == 0);
        CHECK_IN(stop());
    }
}

/* Whichever byte of the handshake is the last to arrive, both ends notice the cut. Neither has a
 * link that the other lacks, unless the last flight was cut. */
static void a_cut_handshake_fails(void)
{
    size_t whole;

    CHECK_IN(start_linked());
    whole = here.seen_len;
    CHECK_IN(stop());
    for (size_t passes = 1; passes < whole; passes++) {
        CHECK_IN(start());
        here.passes = passes;
        CHECK_EQ(make_end(0, "key", "", 0), BW_OK);
        CHECK_EQ(make_end(1, "key", "", 0), BW_OK);
        shake_hands();
        CHECK_EQ(here.reports[1].state, BW_FAILED);
        CHECK(here.reports[0].state == BW_FAILED || here.reports[0].state == BW_LINKED);
        CHECK_IN(stop());
    }
}

/* After half a record followed by silence there is neither a link nor a failure. The callers have a
 * deadline. */
static void half_a_hello_is_waited_for(void)
{
    static const uint8_t half[] = {22, 3, 1, 2, 0, 1, 0, 1, 252};

    CHECK_IN(start());
    CHECK_EQ(make_end(1, "key", half, sizeof half), BW_OK);
    shake_hands();
    CHECK_EQ(here.reports[1].state, BW_LISTENING);
    CHECK_IN(stop());
}

static void bad_orders_are_refused(void)
{
    uint8_t at[BW_TLS_PLACE_BYTES(1)] = {[BW_TLS_SOCKET_BYTES] = 1};
    bw_order_t order = {.at = at, .at_len = sizeof at - 1, .ring_bytes = RING};
    bw_error_t error = {0};
    bw_link_t *link = NULL;

    CHECK_IN(start());
    (void)bw_put(at, (uint64_t)here.outside[0], BW_TLS_SOCKET_BYTES);
    CHECK_EQ(bw_tls_carrier.connect(&order, &link, &error), BW_INVALID); /* half a key */
    order.at_len = sizeof at;
    for (int count = 0; count < 256; count += count == 0 ? 2 : 1) {
        at[BW_TLS_SOCKET_BYTES] = (uint8_t)count; /* no keys, or more than are present */
        CHECK_EQ(bw_tls_carrier.connect(&order, &link, &error), BW_INVALID);
    }
    at[BW_TLS_SOCKET_BYTES] = 1;
    order.ring_bytes = RING + 1;
    CHECK_EQ(bw_tls_carrier.connect(&order, &link, &error), BW_INVALID);
    order.ring_bytes = RING;
    (void)bw_put(at, 99999, BW_TLS_SOCKET_BYTES);
    CHECK_EQ(bw_tls_carrier.connect(&order, &link, &error), BW_INVALID);
    CHECK(link == NULL);
    CHECK_IN(stop());
}

/* ---- bytes read before the handshake, and the listener's readiness ---- */

static void what_was_read_before_counts(void)
{
    uint8_t read[4096];
    ssize_t n;

    CHECK_IN(start());
    CHECK_EQ(make_end(0, "key", "BB", 2), BW_OK);
    CHECK_EQ(send(here.between[0], "BBB", 3, MSG_NOSIGNAL), 3);
    step_both();
    n = recv(here.between[0], read, sizeof read, MSG_DONTWAIT);
    CHECK(n > 100);
    CHECK_EQ(make_end(1, "key", read, (size_t)n), BW_OK);
    shake_hands();
    CHECK_EQ(here.reports[0].state, BW_LINKED);
    CHECK_EQ(here.reports[1].state, BW_LINKED);
    CHECK_IN(stop());
}

/* ---- a link ---- */

static void a_changed_byte_ends_the_link(void)
{
    bw_span_t span;

    CHECK_IN(start_linked());
    CHECK_IN(say("before"));
    CHECK_EQ(hear(&span), BW_OK);
    here.links[1]->ops->release(here.links[1], span.len);
    here.flips = here.seen_len + 10;
    CHECK_IN(say("changed on its way"));
    CHECK_EQ(hear(&span), BW_SYSTEM);
    CHECK_EQ(strcmp(here.links[1]->ops->reason(here.links[1]), "beamway_tls_corrupt"), 0);
    CHECK(!here.links[1]->ops->is_finished(here.links[1]));
    CHECK_IN(stop());
}

/* If libssl can no longer encrypt, the socket does not report any event. */
static void a_link_that_cannot_encrypt_ends(void)
{
    bw_link_t *server;
    bw_span_t span;

    CHECK_IN(start_linked());
    server = here.links[1];
    CHECK_IN(say("last word"));
    CHECK_EQ(hear(&span), BW_OK);
    bw_socket_link_cut(server, "beamway_tls_failed");
    CHECK(server->ops->is_cut(server));
    server->ops->release(server, span.len);
    CHECK_EQ(server->ops->peek(server, &span), BW_AGAIN);
    CHECK_EQ(server->ops->arm_read(server), BW_CORRUPT);
    CHECK_EQ(strcmp(server->ops->reason(server), "beamway_tls_failed"), 0);
    CHECK(!server->ops->is_finished(server));
    CHECK_IN(stop());
}

/* An attacker who cuts the connection cannot make it look like a clean shutdown. */
static void a_cut_is_no_end(void)
{
    bw_span_t span;

    CHECK_IN(start_linked());
    CHECK_IN(say("last word"));
    CHECK_EQ(hear(&span), BW_OK);
    here.links[1]->ops->release(here.links[1], span.len);
    close_wire(1);
    CHECK_EQ(hear(&span), BW_SYSTEM);
    CHECK(!here.links[1]->ops->is_finished(here.links[1]));
    CHECK_EQ(strcmp(here.links[1]->ops->reason(here.links[1]), "connection_closed"), 0);
    CHECK_IN(stop());
}

/* No byte of a record is delivered before the record is complete. */
static void half_a_record_is_no_word(void)
{
    bw_span_t span;

    CHECK_IN(start_linked());
    here.passes = 10;
    CHECK_IN(say("half of it"));
    CHECK_EQ(hear(&span), BW_AGAIN);
    CHECK_EQ(hear(&span), BW_SYSTEM); /* the end of the stream is after it */
    CHECK(!here.links[1]->ops->is_finished(here.links[1]));
    CHECK_EQ(strcmp(here.links[1]->ops->reason(here.links[1]), "connection_closed"), 0);
    CHECK_IN(stop());
}

static void an_end_is_told(void)
{
    bw_span_t span;

    CHECK_IN(start_linked());
    CHECK_IN(say("last word"));
    here.links[0]->ops->close(here.links[0], NULL);
    here.links[0] = NULL;
    CHECK_EQ(hear(&span), BW_OK);
    CHECK_EQ(span.len, 9);
    here.links[1]->ops->release(here.links[1], span.len);
    CHECK_EQ(hear(&span), BW_AGAIN);
    CHECK(here.links[1]->ops->is_finished(here.links[1]));
    CHECK_IN(stop());
}

/* A key is replaced long before it has protected as much data as is allowed. */
static void keys_are_replaced(void)
{
    bw_span_t span;

    CHECK_IN(start_linked());
    bw_tls_limit_key(here.links[0], 3);
    for (int round = 0; round < 100; round++) {
        size_t before = here.seen_len;

        CHECK_IN(say("x"));
        CHECK_EQ(hear(&span), BW_OK);
        CHECK_EQ(span.len, 1);
        here.links[1]->ops->release(here.links[1], 1);
        /* a record of one byte; every third time preceded by the key update message */
        CHECK_EQ(here.seen_len - before, round > 0 && round % 3 == 0 ? 23 + 27 : 23);
    }
    CHECK_IN(stop());
}

/* Even a new key for every record does not count as a flood of messages. */
static void each_record_may_have_a_key(void)
{
    bw_span_t span;

    CHECK_IN(start_linked());
    bw_tls_limit_key(here.links[0], 1);
    for (int round = 0; round < 100; round++) {
        CHECK_IN(say("x"));
        CHECK_EQ(hear(&span), BW_OK);
        here.links[1]->ops->release(here.links[1], span.len);
    }
    CHECK_IN(stop());
}

/* A client that uses libssl without our carrier. */
static libssl_end_t raw;

static void raw_sends(void)
{
    while (carry_from(0))
        ;
}

static void start_raw(void)
{
    bw_tls_key_t key = {.key = "key"};
    bw_tls_terms_t terms = bw_tls_terms_of(false, &key, 1);

    CHECK_IN(start());
    CHECK_EQ(make_end(1, "key", "", 0), BW_OK);
    CHECK_EQ(fcntl(here.outside[0], F_SETFL, O_NONBLOCK), 0);
    CHECK(libssl_open(&raw, here.outside[0], false, &terms.psks[0], terms.suites, 0));
    for (int i = 0; i < 10 && !(SSL_is_init_finished(raw.ssl) && is_settled(1)); i++) {
        (void)SSL_do_handshake(raw.ssl);
        CHECK_IN(raw_sends());
        step_both();
        while (carry_from(1))
            ;
    }
    CHECK(SSL_is_init_finished(raw.ssl));
    CHECK_EQ(here.reports[1].state, BW_LINKED);
}

static void stop_raw(void)
{
    libssl_close(&raw);
    CHECK_IN(stop());
}

/* Each key update makes the receiver derive a key, but carries no data. */
static void a_peer_that_only_changes_keys_is_cut(void)
{
    bw_link_t *server;
    bw_span_t span;

    CHECK_IN(start_raw());
    server = here.links[1];
    for (int i = 0; i < 1000; i++) {
        CHECK(SSL_key_update(raw.ssl, SSL_KEY_UPDATE_NOT_REQUESTED));
        CHECK_EQ(SSL_do_handshake(raw.ssl), 1);
        if (i % 50 == 49)
            CHECK_IN(raw_sends());
    }
    server->ops->clear_event(server);
    CHECK_EQ(server->ops->peek(server, &span), BW_SYSTEM);
    CHECK_EQ(strcmp(server->ops->reason(server), "beamway_tls_flooded"), 0);
    CHECK_IN(stop_raw());
}

/* Records of one byte cost as much as those of 16 KB. No event follows for the unread ones, so the
 * link itself reports that there is more. */
static void one_call_reads_a_bounded_number_of_records(void)
{
    size_t read = 0, calls = 0, done;
    bw_link_t *server;
    bw_span_t span;

    CHECK_IN(start_raw());
    server = here.links[1];
    for (int i = 0; i < 1000; i++) {
        CHECK_EQ(SSL_write_ex(raw.ssl, "x", 1, &done), 1);
        if (i % 50 == 49)
            CHECK_IN(raw_sends());
    }
    server->ops->clear_event(server);
    do {
        while (server->ops->peek(server, &span) == BW_OK) {
            CHECK(span.len <= 200);
            read += span.len;
            server->ops->release(server, span.len);
            calls++;
        }
    } while (server->ops->arm_read(server) == BW_AGAIN);
    CHECK_EQ(read, 1000);
    CHECK(calls >= 5);
    CHECK_IN(stop_raw());
}

/* A vector of pieces of all sizes is sent in as few records as possible. */
static void small_pieces_share_a_record(void)
{
    static uint8_t bytes[100000];
    struct iovec iov[] = {{bytes, 4},     {bytes, 50},    {bytes, 20000}, {bytes, 0},
                          {bytes, 40000}, {bytes, 39942}, {bytes, 4}};
    size_t taken = 0, before, records = (100000 + 16383) / 16384;
    bw_span_t span;

    CHECK_IN(start_linked());
    before = here.seen_len;
    CHECK_EQ(here.links[0]->ops->write(here.links[0], iov, 7, &taken), BW_OK);
    CHECK_EQ(taken, 100000);
    for (size_t read = 0; read < taken;) {
        here.links[0]->ops->clear_event(here.links[0]);
        CHECK_EQ(hear(&span), BW_OK);
        here.links[1]->ops->release(here.links[1], span.len);
        read += span.len;
    }
    CHECK(here.seen_len - before <= 100000 + (records + 2) * 22);
    CHECK_IN(stop());
}

/* A push may fail after an earlier one has reached the peer. If a session considered those bytes
 * unsent, it would later reject the peer, which has read them. */
static void what_may_have_arrived_was_taken(void)
{
    static uint8_t bytes[200000];
    struct iovec iov = {bytes, sizeof bytes};
    size_t taken = 0;

    CHECK_IN(start_linked());
    close_wire(0);
    CHECK_EQ(here.links[0]->ops->write(here.links[0], &iov, 1, &taken), BW_OK);
    CHECK(here.links[0]->ops->is_cut(here.links[0]));
    CHECK(taken > 0);
    CHECK_EQ(here.links[0]->ops->write(here.links[0], &iov, 1, &taken), BW_OK);
    CHECK_EQ(taken, 0);
    CHECK_IN(stop());
}

/* ---- a user who polls the socket itself ---- */

/* Carries one piece at a time, because pieces that the server does not read block those after
 * them. */
static void carry_and_read(size_t *read_p)
{
    bw_link_t *other = here.links[1];
    bw_span_t span;

    (void)carry_from(0);
    other->ops->clear_event(other);
    while (other->ops->peek(other, &span) == BW_OK) {
        *read_p += span.len;
        other->ops->release(other, span.len);
    }
}

static bool waits_for_room(const bw_link_t *link)
{
    return link->ops->wants(link) & POLLOUT;
}

/* Only the carrier knows about bytes that are already encrypted. */
static void what_is_encrypted_goes_when_there_is_room(void)
{
    static uint8_t bytes[100000];
    struct iovec iov = {bytes, sizeof bytes};
    size_t sent = 0, read = 0, taken;
    bw_link_t *one;

    CHECK_IN(start_linked());
    one = here.links[0];
    one->ops->defer(one);
    for (int i = 0; i < 1000 && !waits_for_room(one); i++, sent += taken)
        CHECK(one->ops->write(one, &iov, 1, &taken) != BW_SYSTEM);
    CHECK(waits_for_room(one));
    for (int i = 0; i < 10000 && read < sent; i++) {
        carry_and_read(&read);
        if (waits_for_room(one))
            one->ops->is_ready(one, POLLOUT);
    }
    CHECK_EQ(read, sent);
    CHECK(!waits_for_room(one));
    CHECK_IN(stop());
}

static int takes_some_and_fails(void)
{
    return kernel.calls == 1 ? 20000 : -ECONNRESET;
}

/* A link that outlives its connection resends the bytes that were not accepted, so bytes that the
 * peer may have read count as accepted. */
static void what_went_before_the_connection_failed_counts(void)
{
    static uint8_t bytes[200000];
    struct iovec iov = {bytes, sizeof bytes};
    size_t read = 0, taken = 0;

    CHECK_IN(start_linked());
    kernel.thread = pthread_self();
    kernel.calls = 0;
    kernel.answer = takes_some_and_fails;
    CHECK_EQ(here.links[0]->ops->write(here.links[0], &iov, 1, &taken), BW_OK);
    kernel.answer = NULL;
    CHECK(here.links[0]->ops->is_cut(here.links[0]));
    for (int i = 0; i < 100; i++)
        carry_and_read(&read);
    CHECK(read > 0);
    CHECK(taken >= read);
    CHECK_IN(stop());
}

/* The user must not wait for bytes that have already left the socket, whether or not they are
 * decrypted. */
static void who_waits_has_read_all(void)
{
    static uint8_t bytes[100000]; /* more than the ring */
    struct iovec iov = {bytes, sizeof bytes};
    size_t read = 0, taken;
    bw_link_t *other;
    bw_span_t span;

    CHECK_IN(start_linked());
    other = here.links[1];
    CHECK_EQ(here.links[0]->ops->write(here.links[0], &iov, 1, &taken), BW_OK);
    CHECK_EQ(taken, sizeof bytes);
    while (!check_failed && carry_from(0))
        ;
    other->ops->is_ready(other, POLLIN);
    do {
        CHECK_EQ(other->ops->peek(other, &span), BW_OK);
        other->ops->release(other, span.len);
        read += span.len;
    } while (other->ops->arm_read(other) == BW_AGAIN);
    CHECK_EQ(read, sizeof bytes);
    CHECK_EQ(recv(other->ops->fd(other), bytes, 1, MSG_DONTWAIT | MSG_PEEK), -1);
    CHECK_IN(stop());
}

static const check_case_t cases[] = {
    {"nothing_readable_passes", nothing_readable_passes},
    {"another_key_is_refused", another_key_is_refused},
    {"a_server_has_several_keys", a_server_has_several_keys},
    {"an_unknown_key_is_named", an_unknown_key_is_named},
    {"a_label_is_part_of_the_key", a_label_is_part_of_the_key},
    {"a_link_may_leave_its_connection", a_link_may_leave_its_connection},
    {"a_password_gives_the_same_key_everywhere", a_password_gives_the_same_key_everywhere},
    {"two_of_one_role_are_refused", two_of_one_role_are_refused},
    {"garbage_is_refused", garbage_is_refused},
    {"an_older_version_is_refused", an_older_version_is_refused},
    {"a_cut_handshake_fails", a_cut_handshake_fails},
    {"half_a_hello_is_waited_for", half_a_hello_is_waited_for},
    {"bad_orders_are_refused", bad_orders_are_refused},
    {"what_was_read_before_counts", what_was_read_before_counts},
    {"a_changed_byte_ends_the_link", a_changed_byte_ends_the_link},
    {"a_link_that_cannot_encrypt_ends", a_link_that_cannot_encrypt_ends},
    {"a_cut_is_no_end", a_cut_is_no_end},
    {"half_a_record_is_no_word", half_a_record_is_no_word},
    {"an_end_is_told", an_end_is_told},
    {"keys_are_replaced", keys_are_replaced},
    {"each_record_may_have_a_key", each_record_may_have_a_key},
    {"a_peer_that_only_changes_keys_is_cut", a_peer_that_only_changes_keys_is_cut},
    {"one_call_reads_a_bounded_number_of_records", one_call_reads_a_bounded_number_of_records},
    {"small_pieces_share_a_record", small_pieces_share_a_record},
    {"what_may_have_arrived_was_taken", what_may_have_arrived_was_taken},
    {"what_is_encrypted_goes_when_there_is_room", what_is_encrypted_goes_when_there_is_room},
    {"what_went_before_the_connection_failed_counts",
     what_went_before_the_connection_failed_counts},
    {"who_waits_has_read_all", who_waits_has_read_all},
};

CHECK_MAIN(cases)
