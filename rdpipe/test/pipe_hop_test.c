/* SPDX-License-Identifier: Apache-2.0 */
/* Tests how two processes connect: who is accepted, who is rejected, and what they agree on. */
#include "pipe_ends.h"

#include "hop/bundle.h"
#include "hop/key_proof.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <endian.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define GOOD "a key that both sides have"
#define BAD "a key that only we have..."

static const char *name_of(uint32_t one)
{
    return one == RD_CARRIER_SHM ? "shm" : "tcp";
}

/* Starts a producer in a child. Its status is 0 if it was accepted over the current case's carrier,
 * else 1. */
static pid_t start_producer(uint16_t port, const char *text, uint32_t block)
{
    pid_t child = fork();
    rd_key_t key;
    rd_terms_t terms = terms_of(carrier, block);
    rd_hop_t hop = {.side = -1};
    rd_why_t why;
    bool done;

    if (child != 0)
        return child;
    (void)close_range(3, ~0U, 0); /* a listener that it inherited would outlive ours */
    key = key_of(text);
    done =
        join_listener(port, &key, &terms, &hop, &why) && strcmp(hop.carrier, name_of(carrier)) == 0;
    if (!done && strstr(why.text, "its key is different"))
        _exit(7);
    rd_hop_close(&hop);
    _exit(done ? 0 : 1);
}

static bool accept_one(int listener, const char *text, unsigned *turned_away_p, rd_hop_t *hop_p,
                       rd_why_t *why, int ms)
{
    rd_key_t key = key_of(text);
    rd_terms_t terms = terms_of(RD_CARRIERS_ALL, RD_BLOCK_BYTES);

    terms.flags = RD_FLAG_CRC; /* without RD_TERM_TLS, because one side's wish is enough */
    return rd_hop_accept(listener, &key, &terms, -1, rd_now_ms() + ms, turned_away_p, hop_p, why);
}

static void both_have_the_key(void)
{
    uint16_t port;
    int listener = open_listener(&port);
    pid_t child = start_producer(port, GOOD, 65536);
    rd_hop_t hop = {.side = -1};
    rd_why_t why = {.text = ""};
    unsigned turned_away = 9;

    CHECK(accept_one(listener, GOOD, &turned_away, &hop, &why, LONG_MS));
    CHECK_EQ(turned_away, 0);
    CHECK(strcmp(hop.carrier, name_of(carrier)) == 0);
    CHECK_EQ(hop.terms.block, 65536);
    CHECK_EQ(hop.terms.flags, encrypted ? encrypted : RD_FLAG_CRC);
    CHECK_EQ(status_of(child), 0);
    rd_hop_close(&hop);
    close(listener);
}

/* A sender with a wrong key must not wait forever. */
static void a_wrong_key_is_told_and_the_listener_stays_open(void)
{
    uint16_t port;
    int listener = open_listener(&port);
    pid_t wrong = start_producer(port, BAD, 65536), right = -1;
    rd_hop_t hop = {.side = -1};
    rd_why_t why = {.text = ""};
    unsigned turned_away = 0;
    bool done = accept_one(listener, GOOD, &turned_away, &hop, &why, 500);

    /* On a slow machine the producer may connect only now. */
    if (!done)
        right = start_producer(port, GOOD, 65536);
    CHECK(!done && accept_one(listener, GOOD, NULL, &hop, &why, LONG_MS));
    CHECK_EQ(status_of(right), 0);
    rd_hop_close(&hop);
    close(listener);
    CHECK(status_of(wrong) != 0);
}

/* Some clients are silent, some send HTTP, some disconnect, and there are more of them than can be
 * pending at a time. */
static void others_do_not_block_the_listener(void)
{
    uint16_t port;
    int listener = open_listener(&port), fds[48];
    pid_t child;
    rd_hop_t hop = {.side = -1};
    rd_why_t why = {.text = ""};

    for (size_t i = 0; i < 48; i++) {
        fds[i] = connect_to(port);
        CHECK(fds[i] >= 0);
        if (i % 3 == 1)
            CHECK(send(fds[i], "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL) == 18);
        if (i % 3 == 2)
            close(fds[i]);
    }
    child = start_producer(port, GOOD, 65536);
    CHECK(accept_one(listener, GOOD, NULL, &hop, &why, LONG_MS));
    CHECK_EQ(status_of(child), 0);
    for (size_t i = 0; i < 48; i++)
        if (i % 3 != 2)
            close(fds[i]);
    rd_hop_close(&hop);
    close(listener);
}

/* Keeps this many connections to a port open, and reopens each as soon as it is closed. Runs until
 * it is killed. */
static _Noreturn void keep_connecting(uint16_t port, size_t count)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct pollfd *of = calloc(count, sizeof *of);

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* otherwise a failed case would leave it running */
    for (size_t i = 0; of && i < count; i++)
        of[i] = (struct pollfd){.fd = -1, .events = POLLIN};
    while (of) {
        for (size_t i = 0; i < count; i++) {
            char said[64];

            if (of[i].fd >= 0 && of[i].revents && recv(of[i].fd, said, sizeof said, 0) <= 0) {
                close(of[i].fd);
                of[i].fd = -1;
            }
            if (of[i].fd < 0) {
                of[i].fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
                (void)connect(of[i].fd, (struct sockaddr *)&to, sizeof to);
            }
        }
        (void)poll(of, count, 100);
    }
    _exit(1);
}

static void strangers_that_come_again_do_not_keep_the_producer_out(void)
{
    static const size_t counts[] = {34, 40, 64, 100, 1000};
    struct rlimit limit;

    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        uint16_t port;
        int listener = open_listener(&port);
        rd_hop_t hop = {.side = -1};
        rd_why_t why = {.text = ""};
        unsigned turned_away = 0;
        pid_t others = fork(), child;
        bool done;

        if (others == 0) {
            limit.rlim_cur = limit.rlim_max;
            (void)setrlimit(RLIMIT_NOFILE, &limit);
            keep_connecting(port, counts[i]);
        }
        /* The other clients connect before the producer does. */
        CHECK(rd_wait(listener, POLLIN, -1, rd_now_ms() + LONG_MS) == RD_READY);
        (void)poll(NULL, 0, 200);
        child = start_producer(port, GOOD, 65536);
        done = accept_one(listener, GOOD, &turned_away, &hop, &why, LONG_MS / 2);
        if (!done)
            (void)printf("with %zu turned_away: %s\n", counts[i], why.text);
        CHECK_EQ(status_of(child), 0);
        CHECK(done);
        CHECK(kill(others, SIGKILL) == 0 && status_of(others) == 128 + SIGKILL);
        rd_hop_close(&hop);
        close(listener);
    }
}

/* Records the bytes that pass between the two sides, as a man in the middle could. */
static size_t record_client(uint16_t port, int inner, uint8_t *said, size_t most)
{
    int outer = connect_to(port);
    size_t len = 0;
    struct pollfd polled[2] = {{.fd = inner, .events = POLLIN}, {.fd = outer, .events = POLLIN}};
    uint8_t data[4096];

    while (outer >= 0 && len < most && poll(polled, 2, LONG_MS) > 0) {
        ssize_t n = polled[0].revents ? recv(inner, data, sizeof data, 0)
                                      : recv(outer, data, sizeof data, 0);

        if (n <= 0 || len + (size_t)n > most)
            break;
        if (send(polled[0].revents ? outer : inner, data, (size_t)n, MSG_NOSIGNAL) != n)
            break;
        if (!polled[0].revents)
            continue;
        memcpy(said + len, data, (size_t)n);
        len += (size_t)n;
    }
    close(outer);
    return len;
}

/* Replaying a recorded handshake to another listener fails, because each handshake uses new random
 * numbers. */
static void a_replay_is_turned_away(void)
{
    static uint8_t said[65536];
    uint16_t port, middle_port;
    int listener = open_listener(&port), middle = open_listener(&middle_port), inner, again;
    unsigned turned_away = 0;
    size_t len;
    pid_t consumer, producer;
    rd_hop_t hop = {.side = -1};
    rd_why_t why = {.text = ""};
    char byte;

    consumer = fork();
    if (consumer == 0) {
        bool done = accept_one(listener, GOOD, NULL, &hop, &why, LONG_MS);

        rd_hop_close(&hop);
        _exit(done ? 0 : 1);
    }
    producer = start_producer(middle_port, GOOD, 65536);
    CHECK(rd_wait(middle, POLLIN, -1, rd_now_ms() + LONG_MS) == RD_READY);
    inner = accept(middle, NULL, NULL);
    CHECK(inner >= 0);
    len = record_client(port, inner, said, sizeof said);
    close(inner);
    close(middle);
    CHECK(len > 300); /* a complete handshake */
    CHECK_EQ(status_of(producer), 0);
    CHECK_EQ(status_of(consumer), 0);
    again = connect_to(port);
    CHECK(send(again, said, len, MSG_NOSIGNAL) == (ssize_t)len);
    CHECK(!accept_one(listener, GOOD, &turned_away, &hop, &why, 1000));
    CHECK_EQ(turned_away, 1);
    while (recv(again, &byte, 1, 0) > 0)
        ;
    close(again);
    close(listener);
}

/* A listener must also prove that it has the key. */
static void an_impostor_gets_nothing(void)
{
    static const char *const greetings[] = {"rdpipe\r\n\1", "HTTP/1.1 400 Bad Request\r\n\r\n",
                                            "\26\3\3\0\4\2\0\0\0"};

    for (size_t i = 0; i < sizeof greetings / sizeof *greetings; i++) {
        uint16_t port;
        int listener = open_listener(&port), fd;
        rd_key_t key = key_of(GOOD);
        rd_terms_t terms = terms_of(carrier, 65536);
        rd_hop_t hop = {.side = -1};
        rd_why_t why = {.text = ""};
        pid_t child = fork();

        if (child == 0) {
            fd = rd_wait(listener, POLLIN, -1, rd_now_ms() + LONG_MS) == RD_READY
                     ? accept(listener, NULL, NULL)
                     : -1;
            _exit(send(fd, greetings[i], 9, MSG_NOSIGNAL) == 9 &&
                          rd_wait(-1, 0, -1, rd_now_ms() + LONG_MS) == RD_TIMEOUT
                      ? 0
                      : 1);
        }
        CHECK(!join_listener(port, &key, &terms, &hop, &why));
        CHECK(strstr(why.text, "does not have the key") != NULL);
        CHECK(kill(child, SIGKILL) == 0 && status_of(child) == 128 + SIGKILL);
        close(listener);
    }
}

static pid_t start_streams(uint16_t port, unsigned streams, const int told[2], int listener)
{
    pid_t child = fork();
    rd_key_t key;
    rd_terms_t terms = terms_of(RD_CARRIER_TCP, 65536);
    rd_hop_t hop = {.side = -1};
    rd_why_t why;
    char byte;

    if (child != 0)
        return child;
    close(listener);
    close(told[1]);
    terms.streams = streams;
    key = key_of(GOOD);
    if (!join_listener(port, &key, &terms, &hop, &why) || hop.streams != streams)
        _exit(1);
    (void)!read(told[0], &byte, 1);
    rd_hop_close(&hop);
    _exit(0);
}

/* All streams join with the key. The listener stays open until then, and is then closed. */
static void several_streams_join(void)
{
    static const unsigned counts[] = {2, 16, 64};

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        uint16_t port;
        int listener = open_listener(&port), told[2], fd = -1;
        int64_t deadline = rd_now_ms() + LONG_MS;
        rd_hop_t hop = {.side = -1};
        rd_why_t why = {.text = ""};
        bool is_open = true;
        pid_t child;

        CHECK(pipe(told) == 0);
        child = start_streams(port, counts[i], told, listener);
        CHECK(accept_one(listener, GOOD, NULL, &hop, &why, LONG_MS));
        close(listener);
        CHECK_EQ(hop.streams, counts[i]);
        while (rd_bundle_live(hop.link) < counts[i] && rd_left_ms(deadline) > 0)
            (void)poll(NULL, 0, 1);
        CHECK_EQ(rd_bundle_live(hop.link), counts[i]);
        while (is_open && rd_left_ms(deadline) > 0) {
            is_open = rd_connect("127.0.0.1", port, -1, 0, rd_now_ms() + 1000, &fd, &why);
            if (is_open)
                close(fd);
        }
        CHECK(!is_open);
        close(told[1]);
        rd_hop_close(&hop);
        CHECK_EQ(status_of(child), 0);
        close(told[0]);
    }
}

static void the_consumer_bounds_the_streams(void)
{
    uint16_t port;
    int listener = open_listener(&port);
    rd_key_t key = key_of(GOOD);
    rd_terms_t terms = terms_of(RD_CARRIERS_ALL, RD_BLOCK_BYTES), wanted = terms;
    rd_hop_t hop = {.side = -1};
    rd_why_t why = {.text = ""};
    pid_t child = fork();

    if (child == 0) {
        wanted.carriers = RD_CARRIER_TCP;
        wanted.streams = 64;
        _exit(join_listener(port, &key, &wanted, &hop, &why) && hop.streams == 3 ? 0 : 1);
    }
    terms.streams = 3;
    CHECK(rd_hop_accept(listener, &key, &terms, -1, rd_now_ms() + LONG_MS, NULL, &hop, &why));
    CHECK_EQ(hop.streams, 3);
    CHECK_EQ(status_of(child), 0);
    rd_hop_close(&hop);
    close(listener);
}

/* The sizes of the protocol's messages, for peers that violate the protocol. */
#define HELLO_BYTES 40
#define OFFER_BYTES 188
#define CHOICE_BYTES 160

static void put_word(uint8_t *message, size_t word, uint32_t value)
{
    value = htole32(value);
    memcpy(message + 4 * word, &value, 4);
}

static uint32_t word_of(const uint8_t *message, size_t word)
{
    uint32_t value;

    memcpy(&value, message + 4 * word, 4);
    return le32toh(value);
}

/* Runs a producer that chooses this many streams. Its status is 0 if the consumer then closes the
 * connection. */
static _Noreturn void choose_streams(uint16_t port, uint32_t streams)
{
    uint8_t hello[HELLO_BYTES] = "rdpipe\r\n", offer[OFFER_BYTES], choice[CHOICE_BYTES] = {0};
    const uint32_t words[] = {2, RD_CARRIER_TCP, RD_BLOCK_BYTES, 0};
    rd_proved_t proved = {.fd = connect_to(port)};
    int64_t deadline = rd_now_ms() + LONG_MS;
    rd_key_t key = key_of(GOOD);
    rd_why_t why;
    bool is_cut;

    for (size_t i = 0; i < 4; i++)
        put_word(hello, 2 + i, words[i]);
    if (!rd_prove(&proved, "the listener", &key, -1, deadline, &is_cut, &why) ||
        !rd_tls_write_all(proved.tls, hello, sizeof hello, -1, deadline, &why) ||
        !rd_tls_read_all(proved.tls, offer, sizeof offer, -1, deadline, &why))
        _exit(1);
    put_word(choice, 0, RD_CARRIER_TCP);
    put_word(choice, 1, streams);
    put_word(choice, 2, word_of(offer, 5)); /* the window */
    _exit(rd_tls_write_all(proved.tls, choice, sizeof choice, -1, deadline, &why) &&
                  !rd_tls_read_all(proved.tls, choice, sizeof choice, -1, deadline, &why) &&
                  why.cause == RD_CAUSE_LOST
              ? 0
              : 1);
}

static void no_other_number_of_streams_is_accepted(void)
{
    static const struct {
        unsigned bound;
        uint32_t chosen;
        const char *why;
    } bad[] = {{0, 0, "chose 0 streams, but 1 to 64 were offered"},
               {0, 65, "chose 65 streams, but 1 to 64 were offered"},
               {0, UINT32_MAX, "chose 4294967295 streams, but 1 to 64 were offered"},
               {3, 4, "chose 4 streams, but 1 to 3 were offered"}};

    if (carrier != RD_CARRIER_TCP || encrypted)
        return;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint16_t port;
        int listener = open_listener(&port);
        rd_key_t key = key_of(GOOD);
        rd_terms_t terms = terms_of(RD_CARRIERS_ALL, RD_BLOCK_BYTES);
        rd_hop_t hop = {.side = -1};
        rd_why_t why = {.text = ""};
        pid_t child = fork();

        if (child == 0)
            choose_streams(port, bad[i].chosen);
        terms.streams = bad[i].bound;
        CHECK(!rd_hop_accept(listener, &key, &terms, -1, rd_now_ms() + LONG_MS, NULL, &hop, &why));
        CHECK(strstr(why.text, bad[i].why) != NULL);
        CHECK_EQ(status_of(child), 0);
        close(listener);
    }
}

/* Runs a consumer that offers this many streams. Its status is the number that the producer
 * chooses, or 255 if the producer closes the connection. */
static _Noreturn void offer_streams(int listener, uint32_t streams)
{
    uint8_t hello[HELLO_BYTES], offer[OFFER_BYTES] = {0}, choice[CHOICE_BYTES];
    const uint32_t words[] = {2, RD_CARRIER_TCP, RD_BLOCK_BYTES, 0, streams, 1 << 22};
    int64_t deadline = rd_now_ms() + LONG_MS;
    rd_key_t key = key_of(GOOD);
    rd_peers_t *peers = rd_peers_open(listener, &key);
    rd_proved_t proved = {.fd = -1};
    rd_why_t why;

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        put_word(offer, i, words[i]);
    if (!peers || !rd_peers_await(peers, -1, deadline, &proved, &why) ||
        !rd_tls_read_all(proved.tls, hello, sizeof hello, -1, deadline, &why) ||
        !rd_tls_write_all(proved.tls, offer, sizeof offer, -1, deadline, &why) ||
        !rd_tls_read_all(proved.tls, choice, sizeof choice, -1, deadline, &why))
        _exit(255);
    _exit((int)word_of(choice, 1));
}

/* A consumer of an older version offers 16. */
static void the_producer_chooses_from_what_is_offered(void)
{
    static const struct {
        uint32_t offered;
        int chosen;
    } offers[] = {{16, 16}, {64, 64}, {65, 64}, {UINT32_MAX, 64}, {0, 255}};

    if (carrier != RD_CARRIER_TCP || encrypted)
        return;
    for (size_t i = 0; i < sizeof offers / sizeof *offers; i++) {
        uint16_t port;
        int listener = open_listener(&port);
        rd_key_t key = key_of(GOOD);
        rd_terms_t terms = terms_of(RD_CARRIER_TCP, RD_BLOCK_BYTES);
        rd_hop_t hop = {.side = -1};
        rd_why_t why = {.text = ""};
        pid_t child = fork();

        if (child == 0)
            offer_streams(listener, offers[i].offered);
        close(listener);
        terms.streams = 64;
        CHECK(!join_listener(port, &key, &terms, &hop, &why));
        CHECK((strstr(why.text, "the listener offers 0 streams") != NULL) ==
              (offers[i].offered == 0));
        CHECK_EQ(status_of(child), offers[i].chosen);
    }
}

static void a_congestion_control_is_one_of_the_kernel(void)
{
    uint16_t port;
    int listener = open_listener(&port);
    rd_key_t key = key_of(GOOD);
    rd_terms_t terms = terms_of(RD_CARRIER_TCP, 65536);
    rd_hop_t hop = {.side = -1};
    rd_why_t why = {.text = ""};

    terms.congestion = "no_such_one";
    CHECK(!join_listener(port, &key, &terms, &hop, &why));
    CHECK(strstr(why.text, "no_such_one is not available; the kernel of this host has: ") != NULL);
    CHECK(strstr(why.text, "cubic") != NULL || strstr(why.text, "reno") != NULL);
    close(listener);
}

/* If a consumer is killed during the setup, the missing listener must not count as the reason. */
static void the_first_reason_is_told(void)
{
    rd_key_t key = key_of(GOOD);
    rd_terms_t terms = terms_of(carrier, 65536);
    rd_hop_t hop = {.side = -1};
    rd_why_t why = {.text = ""};
    uint16_t port;
    int listener = open_listener(&port);
    pid_t child = fork();

    if (child == 0) {
        _exit(rd_wait(listener, POLLIN, -1, rd_now_ms() + LONG_MS) == RD_READY &&
                      accept(listener, NULL, NULL) >= 0
                  ? 0
                  : 1);
    }
    close(listener);
    CHECK(!join_listener(port, &key, &terms, &hop, &why));
    CHECK(strstr(why.text, "before the pipe's protocol began") != NULL);
    CHECK_EQ(status_of(child), 0);
    /* The peer that listened there may report why it is gone. */
    CHECK(!join_listener(port, &key, &terms, &hop, &why));
    CHECK(strstr(why.text, "cannot connect to") != NULL);
    CHECK_EQ(why.cause, RD_CAUSE_LOST);
}

/* A producer that connects just as the wait for a listener expires still has time for one
 * attempt. */
static void the_last_attempt_has_its_time(void)
{
    rd_key_t key = key_of(GOOD);
    rd_terms_t terms = terms_of(carrier, 65536);
    rd_there_t there = {.host = "127.0.0.1", .peer = "the listener", .attempt_ms = 5000};
    rd_hop_t hop = {.side = -1};
    rd_why_t why = {.text = ""};
    int listener;
    pid_t child;

    if (carrier != RD_CARRIER_TCP || encrypted)
        return;
    listener = open_listener(&there.port);
    there.awaited_until = there.patient_until = rd_now_ms() + 5000;
    child = fork();
    if (child == 0) {
        close(listener);
        _exit(rd_hop_reach(&there, &key, &terms, -1, &hop, &why) ? 0 : 1);
    }
    (void)poll(NULL, 0, 5200);
    CHECK(accept_one(listener, GOOD, NULL, &hop, &why, LONG_MS));
    CHECK_EQ(status_of(child), 0);
    rd_hop_close(&hop);
    close(listener);
}

/* Names of hosts and their addresses, as the system would sort them: unreachable ones last. */
static const struct {
    const char *name, *addresses[2];
} hosts[] = {
    {"refused.example", {"127.0.0.1", "fe80::1"}},
    {"silent.example", {"127.0.0.2", "127.0.0.1"}},
};

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                struct addrinfo **list_p)
{
    int (*look_up)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    int status;

    *(void **)&look_up = dlsym(RTLD_NEXT, "getaddrinfo");
    for (size_t i = 0; host && i < sizeof hosts / sizeof *hosts; i++) {
        if (strcmp(host, hosts[i].name) != 0)
            continue;
        status = look_up(hosts[i].addresses[0], service, hints, list_p);
        return status != 0 ? status
                           : look_up(hosts[i].addresses[1], service, hints, &(*list_p)->ai_next);
    }
    return look_up(host, service, hints, list_p);
}

static void who_is_refused_at_one_address_waits(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd;
    int64_t until = rd_now_ms() + LONG_MS;
    rd_why_t why;
    pid_t child;

    CHECK(bind(listener, (struct sockaddr *)&at, len) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&at, &len) == 0);
    child = fork();
    if (child == 0)
        _exit(!rd_connect("refused.example", ntohs(at.sin_port), -1, until, until, &fd, &why));
    (void)poll(NULL, 0, 300); /* meanwhile the connection is refused */
    CHECK_EQ(listen(listener, 1), 0);
    CHECK_EQ(status_of(child), 0);
    close(listener);
}

/* A listener whose queue is full does not answer, like one behind a firewall. */
static void a_silent_address_does_not_take_all_the_time(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    int64_t deadline = rd_now_ms() + LONG_MS;
    int silent, queued, listener, fd = -1;
    uint16_t port;
    rd_why_t why;

    if (carrier != RD_CARRIER_TCP)
        return;
    listener = open_listener(&port);
    silent = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    queued = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    at.sin_port = htons(port);
    CHECK_EQ(inet_pton(AF_INET, "127.0.0.2", &at.sin_addr), 1);
    CHECK(bind(silent, (struct sockaddr *)&at, sizeof at) == 0 && listen(silent, 0) == 0);
    CHECK_EQ(connect(queued, (struct sockaddr *)&at, sizeof at), 0);
    CHECK(rd_connect("silent.example", port, -1, 0, deadline, &fd, &why));
    CHECK(rd_left_ms(deadline) > 0);
    close(fd);
    /* rdsend, which waits, lacks the options that help a pipeline, so its message must not name
     * them. */
    CHECK(!rd_connect("127.0.0.2", port, -1, 0, rd_now_ms() + 100, &fd, &why));
    CHECK(strstr(why.text, "timed out (a firewall") != NULL);
    CHECK(!rd_connect("127.0.0.2", port, -1, 1, rd_now_ms() + 100, &fd, &why));
    CHECK(strstr(why.text, "timed out") != NULL && strstr(why.text, "--port") == NULL);
    CHECK_EQ(why.cause, RD_CAUSE_HERE);
    close(queued);
    close(silent);
    close(listener);
}

static void nobody_comes(void)
{
    uint16_t port;
    int listener = open_listener(&port);
    rd_hop_t hop = {.side = -1};
    rd_why_t why = {.text = ""};

    CHECK(!accept_one(listener, GOOD, NULL, &hop, &why, 10));
    CHECK(strstr(why.text, "nobody with the key") != NULL);
    close(listener);
}

static void a_key_is_long_enough_and_private(void)
{
    char path[] = "/tmp/pipe-key-XXXXXX";
    int fd = mkstemp(path);
    rd_key_t key, same;
    rd_why_t why = {.text = ""};
    char hex[2 * RD_KEY_BYTES + 1];

    CHECK(!rd_key_of_text("fifteen bytes..\n", 16, "test", &key, &why));
    CHECK(strstr(why.text, "15 bytes") != NULL);
    CHECK(write(fd, "sixteen bytes...\n", 17) == 17);
    CHECK(fchmod(fd, 0644) == 0 && !rd_key_of_file(path, &key, &why));
    CHECK(strstr(why.text, "chmod 600") != NULL);
    CHECK(fchmod(fd, 0600) == 0 && rd_key_of_file(path, &key, &why));
    CHECK(rd_key_of_text("sixteen bytes...", 16, "test", &same, &why));
    CHECK(memcmp(&key, &same, sizeof key) == 0);
    rd_key_to_hex(&key, hex);
    CHECK(rd_key_of_hex(hex, &same) && memcmp(&key, &same, sizeof key) == 0);
    hex[5] = 'x';
    CHECK(!rd_key_of_hex(hex, &same) && !rd_key_of_hex("12", &same));
    CHECK(setenv("RDPIPE_KEY", "sixteen bytes...", 1) == 0);
    CHECK(rd_key_of_environment(&same, &why) && memcmp(&key, &same, sizeof key) == 0);
    CHECK(getenv("RDPIPE_KEY") == NULL && !rd_key_of_environment(&same, &why));
    close(fd);
    unlink(path);
}

static const check_case_t cases[] = {
    {"both have the key", both_have_the_key},
    {"a wrong key is told and the listener stays open",
     a_wrong_key_is_told_and_the_listener_stays_open},
    {"turned_away do not hold the listener", others_do_not_block_the_listener},
    {"turned_away that come again do not keep the producer out",
     strangers_that_come_again_do_not_keep_the_producer_out},
    {"a replay is turned away", a_replay_is_turned_away},
    {"an impostor gets nothing", an_impostor_gets_nothing},
    {"several streams join", several_streams_join},
    {"the consumer bounds the streams", the_consumer_bounds_the_streams},
    {"no other number of streams is accepted", no_other_number_of_streams_is_accepted},
    {"the producer chooses from what is offered", the_producer_chooses_from_what_is_offered},
    {"a congestion control is one of the kernel", a_congestion_control_is_one_of_the_kernel},
    {"the first reason is told", the_first_reason_is_told},
    {"the last attempt has its time", the_last_attempt_has_its_time},
    {"who is refused at one address waits", who_is_refused_at_one_address_waits},
    {"a silent address does not take all the time", a_silent_address_does_not_take_all_the_time},
    {"nobody comes", nobody_comes},
    {"a key is long enough and private", a_key_is_long_enough_and_private},
};

int main(int argc, char **argv)
{
    return run_over_carriers(cases, sizeof cases / sizeof *cases, argc, argv);
}
