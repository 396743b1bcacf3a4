/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "hop.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "meet.h"
#include "rdframe.h"
#include "shm/shm.h"
#include "socket.h"
#include "tcp/tcp.h"

#define MAGIC "rdpipe\r\n"
#define VERSION 1u
#define VISITORS_MAX 256
#define VISITOR_MS 5000 /* time to prove oneself */
#define GRACE_MS 1000   /* of it, also if others wait for the place */
#define ACCEPTS_MAX 16  /* at a time, so that those who are in are heard in between */
#define RETRY_MS 100    /* between two attempts to join */
#define SETTLE_MS 10000 /* time for the rest, once proved */
#define RDMA_MS 4000    /* of it, for each step of rdma; without it there is tcp */
#define RING_MIN_BYTES ((uint64_t)4 * 1024 * 1024)

#define LABEL_PRODUCER "rdpipe 1 producer"
#define LABEL_CONSUMER "rdpipe 1 consumer"
#define LABEL_TLS "rdpipe 1 TLS"

enum { VERDICT_REFUSED, VERDICT_WELCOME, VERDICT_VERSION };

/* All numbers little-endian. */
typedef struct {
    char magic[8];
    uint32_t version, block; /* the largest that the consumer can take */
    uint8_t nonce[RD_NONCE_BYTES];
} challenge_t;

typedef struct {
    char magic[8];
    uint32_t version, carriers, block, flags;
    uint8_t nonce[RD_NONCE_BYTES];
    uint8_t mac[RD_MAC_BYTES];
} answer_t;

typedef struct {
    uint32_t verdict, carriers, address_len, flags; /* RD_TERM_TLS, if the consumer wants it */
    uint8_t address[BW_SHM_ADDRESS_MAX];
    uint8_t token[BW_SHM_TOKEN_BYTES];
    uint32_t rdma_port; /* 0: no rdma there */
    uint8_t rdma_token[BW_RDMA_TOKEN_BYTES];
    uint8_t mac[RD_MAC_BYTES];
} verdict_t;

typedef struct {
    uint32_t carrier; /* 0: none, and the text says why */
    char text[156];
} choice_t;

static_assert(sizeof(challenge_t) == 48, "the layout is part of the protocol");
static_assert(sizeof(answer_t) == 88, "the layout is part of the protocol");
static_assert(sizeof(verdict_t) == 192, "the layout is part of the protocol");
static_assert(sizeof(choice_t) == 160, "the layout is part of the protocol");

/* What both have said, for the proof. */
typedef struct {
    challenge_t challenge;
    uint8_t answer[offsetof(answer_t, mac)];
    uint8_t verdict[offsetof(verdict_t, mac)];
} said_t;

static_assert(sizeof(said_t) == 48 + 56 + 160, "no padding in what is proved");

uint64_t rd_ring_bytes(uint32_t block)
{
    uint64_t bytes = RING_MIN_BYTES;
    struct rlimit limit;

    while (bytes < 4 * (uint64_t)block)
        bytes *= 2;
    /* Rings are memory with a size as a file has it: a lower limit means smaller rings. */
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        while (bytes > BW_RING_MIN_BYTES && 2 * bytes + 65536 > limit.rlim_cur)
            bytes /= 2;
    return bytes;
}

/* The longest frame must fit into the smaller ring. */
static uint32_t block_of_here(uint32_t block)
{
    uint64_t ring = rd_ring_bytes(block);

    return block > ring / 4 ? (uint32_t)(ring / 4) : block;
}

static void set_text(char *to, size_t bytes, const char *text)
{
    size_t len = strnlen(text, bytes - 1);

    memcpy(to, text, len);
    to[len] = 0;
}

/* What the two sides have shown each other, and what ends the wait. */
typedef struct {
    const rd_key_t *key;
    const said_t *said;
    bool is_consumer;
    int stop;
} proof_t;

/* Both take a key that no other connection has. */
static bool encrypt(int socket, const proof_t *proof, rd_hop_t *hop_p, int *plain_p, rd_why_t *why)
{
    uint8_t psk[RD_MAC_BYTES];
    bool done = rd_mac(proof->key, LABEL_TLS, proof->said, sizeof *proof->said, psk);

    if (!done)
        (void)rd_because(why, "libcrypto has no HMAC");
    done = done && rd_tls_start(socket, psk, proof->is_consumer, proof->stop,
                                rd_now_ms() + SETTLE_MS, &hop_p->tls, plain_p, why);
    rd_wipe(psk, sizeof psk);
    return done;
}

/* Makes the connection the link. It is taken only on success. */
static bool adopt(int socket, const proof_t *proof, rd_hop_t *hop_p, rd_why_t *why)
{
    bw_error_t error = {0};
    uint64_t ring = rd_ring_bytes(hop_p->terms.block);
    int plain = -1;
    bool encrypts = hop_p->terms.flags & RD_TERM_TLS, done;

    if (encrypts && !encrypt(socket, proof, hop_p, &plain, why))
        return false;
    done = bw_tcp_adopt(encrypts ? plain : socket, ring, &hop_p->link, &error) == BW_OK;
    if (encrypts)
        close(plain);
    if (!done) {
        if (encrypts)
            rd_tls_end(hop_p->tls);
        hop_p->tls = NULL;
        return rd_because_link(why, "tcp: ", &error);
    }
    close(socket);
    hop_p->carrier = "tcp";
    hop_p->side = -1;
    return true;
}

/* What may be chosen. */
static uint32_t carriers_of(const rd_terms_t *terms)
{
    return terms->flags & RD_TERM_TLS ? terms->carriers & ~(uint32_t)RD_CARRIER_RDMA
                                      : terms->carriers;
}

/* The link itself tells of the other side's end. Returns true. */
static bool is_over_rdma(rd_hop_t *hop)
{
    hop->carrier = "rdma";
    hop->side = -1;
    hop->is_behind = true;
    return true;
}

void rd_hop_close(rd_hop_t *hop)
{
    if (hop->link)
        hop->link->ops->close(hop->link, NULL);
    if (hop->tls)
        rd_tls_end(hop->tls);
    if (hop->side >= 0)
        close(hop->side);
    *hop = (rd_hop_t){.side = -1};
}

/* ---- the consumer ---- */

typedef struct {
    int fd;
    int64_t came_ms;
    size_t got;
    challenge_t challenge;
    answer_t answer;
} visitor_t;

typedef enum { VISITOR_WAITS, VISITOR_LEFT, VISITOR_PROVED } visit_t;

static bool greet(int fd, visitor_t *visitor_p)
{
    rd_why_t why;

    *visitor_p = (visitor_t){.fd = fd, .came_ms = rd_now_ms()};
    memcpy(visitor_p->challenge.magic, MAGIC, sizeof visitor_p->challenge.magic);
    visitor_p->challenge.version = htole32(VERSION);
    visitor_p->challenge.block = htole32(block_of_here(RD_BLOCK_MAX));
    return rd_nonce(visitor_p->challenge.nonce, &why) &&
           send(fd, &visitor_p->challenge, sizeof visitor_p->challenge,
                MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof visitor_p->challenge;
}

static bool answer_is_proved(const visitor_t *visitor, const rd_key_t *key, said_t *said_p)
{
    uint8_t mac[RD_MAC_BYTES];

    said_p->challenge = visitor->challenge;
    memcpy(said_p->answer, &visitor->answer, sizeof said_p->answer);
    return memcmp(visitor->answer.magic, MAGIC, sizeof visitor->answer.magic) == 0 &&
           rd_mac(key, LABEL_PRODUCER, said_p, offsetof(said_t, verdict), mac) &&
           rd_mac_is(mac, visitor->answer.mac);
}

/* Tells one of our own kind why he is turned away; a stranger gets nothing out of it. */
static void refuse(int fd, uint32_t verdict)
{
    verdict_t no = {.verdict = htole32(verdict)};

    (void)send(fd, &no, sizeof no, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static visit_t visit(visitor_t *visitor, const rd_key_t *key, said_t *said_p)
{
    ssize_t n = recv(visitor->fd, (uint8_t *)&visitor->answer + visitor->got,
                     sizeof visitor->answer - visitor->got, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return rd_left_ms(visitor->came_ms + VISITOR_MS) == 0 ? VISITOR_LEFT : VISITOR_WAITS;
    if (n <= 0)
        return VISITOR_LEFT;
    visitor->got += (size_t)n;
    if (memcmp(&visitor->answer, MAGIC, visitor->got < 8 ? visitor->got : 8) != 0)
        return VISITOR_LEFT;
    if (visitor->got < sizeof visitor->answer)
        return VISITOR_WAITS;
    if (answer_is_proved(visitor, key, said_p) && visitor->answer.version == htole32(VERSION))
        return VISITOR_PROVED;
    refuse(visitor->fd,
           visitor->answer.version == htole32(VERSION) ? VERDICT_REFUSED : VERDICT_VERSION);
    return VISITOR_LEFT;
}

/* In the order in which they came. */
typedef struct {
    visitor_t of[VISITORS_MAX];
    size_t count;
    size_t most;
    unsigned turned_away;
} visitors_t;

static void take_out(visitors_t *visitors, size_t i)
{
    visitors->count--;
    memmove(&visitors->of[i], &visitors->of[i + 1], (visitors->count - i) * sizeof *visitors->of);
}

static void leave(visitors_t *visitors, size_t i)
{
    close(visitors->of[i].fd);
    take_out(visitors, i);
    visitors->turned_away++;
}

/* Half of the descriptors, as the link needs some, too. */
static size_t most_visitors(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur > 2 * VISITORS_MAX + 16)
        return VISITORS_MAX;
    return limit.rlim_cur > 24 ? (size_t)limit.rlim_cur / 2 - 8 : 4;
}

/* Whoever has been in longest gives way, but not before he had the time to prove himself. */
static bool has_room(const visitors_t *visitors)
{
    return visitors->count < visitors->most || rd_left_ms(visitors->of[0].came_ms + GRACE_MS) == 0;
}

static void let_in(visitors_t *visitors, int door)
{
    for (int i = 0; i < ACCEPTS_MAX && has_room(visitors); i++) {
        int fd;

        if (visitors->count == visitors->most)
            leave(visitors, 0);
        fd = accept4(door, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        if (greet(fd, &visitors->of[visitors->count]))
            visitors->count++;
        else
            close(fd);
    }
}

/* The oldest is the next who must leave, or may have to. */
static int next_deadline(const visitors_t *visitors, int64_t deadline)
{
    int64_t next = deadline;

    if (visitors->count > 0)
        next = visitors->of[0].came_ms + (has_room(visitors) ? VISITOR_MS : GRACE_MS);
    return rd_left_ms(next < deadline ? next : deadline);
}

/* Waits for one who has the key. His socket, or -1. */
static int await_proof(int door, const rd_key_t *key, int stop, int64_t deadline,
                       visitors_t *visitors, visitor_t *visitor_p, said_t *said_p, rd_why_t *why)
{
    while (rd_left_ms(deadline) > 0) {
        struct pollfd polled[VISITORS_MAX + 2] = {
            {.fd = stop, .events = POLLIN},
            {.fd = has_room(visitors) ? door : -1, .events = POLLIN}};

        for (size_t i = 0; i < visitors->count; i++)
            polled[2 + i] = (struct pollfd){.fd = visitors->of[i].fd, .events = POLLIN};
        (void)poll(polled, 2 + visitors->count, next_deadline(visitors, deadline));
        if (polled[0].revents)
            return (void)rd_because_of(why, RD_CAUSE_STOPPED, "stopped"), -1;
        for (size_t i = visitors->count; i-- > 0;) {
            visit_t is = visit(&visitors->of[i], key, said_p);

            if (is == VISITOR_PROVED) {
                *visitor_p = visitors->of[i];
                take_out(visitors, i);
                return visitor_p->fd;
            }
            if (is == VISITOR_LEFT)
                leave(visitors, i);
        }
        if (polled[1].revents)
            let_in(visitors, door);
    }
    (void)rd_because_of(why, RD_CAUSE_LOST, "nobody with the key has connected in time%s",
                        visitors->turned_away > 0 ? " (others have, and were turned away)" : "");
    return -1;
}

/* What the consumer holds open for the producer. */
typedef struct {
    bw_shm_listener_t shm; /* fd -1: none */
    rd_meet_t rdma;        /* without a meeting: none */
} doors_t;

/* Without one of them the producer sees that the carrier is not to be had. */
static void open_doors(doors_t *doors, uint32_t carriers, int socket, int stop)
{
    bw_error_t error = {0};
    rd_why_t ignored;

    if (carriers & RD_CARRIER_SHM)
        (void)bw_shm_listen(NULL, &doors->shm, &error);
    if (carriers & RD_CARRIER_RDMA)
        (void)rd_meet_listen(&doors->rdma, socket, stop, rd_now_ms() + RDMA_MS, &ignored);
}

static void close_doors(doors_t *doors)
{
    bw_shm_listener_close(&doors->shm);
    rd_meet_end(&doors->rdma);
}

static bool make_verdict(const rd_key_t *key, const rd_terms_t *terms, const doors_t *doors,
                         said_t *said, verdict_t *verdict_p)
{
    const bw_shm_listener_t *shm = &doors->shm;
    const rd_meet_t *rdma = &doors->rdma;

    *verdict_p = (verdict_t){.verdict = htole32(VERDICT_WELCOME),
                             .carriers = htole32(terms->carriers),
                             .flags = htole32(terms->flags & RD_TERM_TLS)};
    if (shm->fd >= 0) {
        verdict_p->address_len = htole32((uint32_t)shm->address_len);
        memcpy(verdict_p->address, shm->address, shm->address_len);
        memcpy(verdict_p->token, shm->token, sizeof verdict_p->token);
    }
    if (rdma->meeting) {
        verdict_p->rdma_port = htole32(rdma->report.port);
        memcpy(verdict_p->rdma_token, rdma->report.token, sizeof verdict_p->rdma_token);
    }
    memcpy(said->verdict, verdict_p, sizeof said->verdict);
    return rd_mac(key, LABEL_CONSUMER, said, sizeof *said, verdict_p->mac);
}

/* Takes what the producer has chosen; `text` becomes the reason for the carrier. */
static bool take_choice(int socket, uint32_t carrier, doors_t *doors, const proof_t *proof,
                        rd_hop_t *hop_p, rd_why_t *why)
{
    bw_shm_listener_t *shm = &doors->shm;
    bw_error_t error = {0};

    if (carrier == RD_CARRIER_TCP)
        return adopt(socket, proof, hop_p, why);
    if (carrier == RD_CARRIER_RDMA && doors->rdma.meeting)
        return rd_meet_link(&doors->rdma, proof->stop, rd_now_ms() + RDMA_MS, &hop_p->link, why) &&
               is_over_rdma(hop_p);
    if (carrier != RD_CARRIER_SHM || shm->fd < 0)
        return rd_because(why, "the producer chose a carrier that was not offered");
    if (bw_shm_accept(shm, BW_RING_MAX_BYTES, &hop_p->link, &error) != BW_OK)
        return rd_because_link(why, "shm: ", &error);
    hop_p->carrier = "shm";
    hop_p->side = socket;
    return true;
}

static bool settle(int socket, doors_t *doors, const proof_t *proof, rd_hop_t *hop_p, rd_why_t *why)
{
    int64_t deadline = rd_now_ms() + SETTLE_MS;
    int stop = proof->stop;
    choice_t choice, settled = {0};
    bool taken;
    uint32_t carrier;

    if (!rd_read_all(socket, &choice, sizeof choice, stop, deadline, why))
        return false;
    carrier = le32toh(choice.carrier);
    choice.text[sizeof choice.text - 1] = 0;
    if (carrier == 0)
        return rd_because(why, "no carrier: %s", choice.text);
    set_text(hop_p->why, sizeof hop_p->why, choice.text);
    /* The word goes before the link may take the socket over. */
    if (!(carrier & hop_p->terms.carriers) || (carrier & (carrier - 1)))
        return rd_because(why, "the producer chose a carrier that was not offered");
    if (carrier == RD_CARRIER_TCP) {
        settled.carrier = choice.carrier;
        return rd_write_all(socket, &settled, sizeof settled, stop, deadline, why) &&
               take_choice(socket, carrier, doors, proof, hop_p, why);
    }
    taken = take_choice(socket, carrier, doors, proof, hop_p, why);
    settled.carrier = taken ? choice.carrier : 0;
    if (!taken)
        set_text(settled.text, sizeof settled.text, why->text);
    if (rd_write_all(socket, &settled, sizeof settled, stop, deadline, why)) {
        if (hop_p->is_behind)
            close(socket);
        return taken;
    }
    if (taken) {
        hop_p->link->ops->close(hop_p->link, NULL);
        *hop_p = (rd_hop_t){.side = -1};
    }
    return false;
}

bool rd_hop_accept(int door, const rd_key_t *key, const rd_terms_t *terms, int stop,
                   int64_t deadline, unsigned *strangers_p, rd_hop_t *hop_p, rd_why_t *why)
{
    visitors_t visitors = {.most = most_visitors()};
    visitor_t visitor = {0};
    doors_t doors = {.shm = {.fd = -1}};
    said_t said;
    verdict_t verdict;
    rd_hop_t hop = {.side = -1};
    proof_t proof = {.key = key, .said = &said, .is_consumer = true, .stop = stop};
    int socket = await_proof(door, key, stop, deadline, &visitors, &visitor, &said, why);
    bool done = socket >= 0;

    if (done) {
        rd_tune(socket);
        hop.terms = (rd_terms_t){
            .block = le32toh(visitor.answer.block),
            .flags = (uint8_t)(le32toh(visitor.answer.flags) | (terms->flags & RD_TERM_TLS)),
            .carriers = terms->carriers & le32toh(visitor.answer.carriers)};
        hop.terms.carriers = carriers_of(&hop.terms);
        if (hop.terms.block < RD_BLOCK_MIN || hop.terms.block > RD_BLOCK_MAX)
            done = rd_because(why, "the producer wants blocks of %u bytes", hop.terms.block);
        if (done)
            open_doors(&doors, hop.terms.carriers, socket, stop);
        done = done && make_verdict(key, &hop.terms, &doors, &said, &verdict) &&
               rd_write_all(socket, &verdict, sizeof verdict, stop, rd_now_ms() + SETTLE_MS, why) &&
               settle(socket, &doors, &proof, &hop, why);
        if (!done)
            close(socket);
    }
    close_doors(&doors);
    if (strangers_p)
        *strangers_p = visitors.turned_away;
    while (visitors.count > 0)
        leave(&visitors, 0);
    if (done)
        *hop_p = hop;
    return done;
}

/* ---- the producer ---- */

static bool make_answer(const rd_key_t *key, const rd_terms_t *terms, said_t *said,
                        answer_t *answer_p, rd_why_t *why)
{
    *answer_p = (answer_t){.version = htole32(VERSION),
                           .carriers = htole32(terms->carriers),
                           .block = htole32(terms->block),
                           .flags = htole32(terms->flags)};
    memcpy(answer_p->magic, MAGIC, sizeof answer_p->magic);
    if (!rd_nonce(answer_p->nonce, why))
        return false;
    memcpy(said->answer, answer_p, sizeof said->answer);
    if (!rd_mac(key, LABEL_PRODUCER, said, offsetof(said_t, verdict), answer_p->mac))
        return rd_because(why, "libcrypto has no HMAC");
    return true;
}

static bool verdict_is_good(const char *peer, const rd_key_t *key, const verdict_t *verdict,
                            said_t *said, rd_why_t *why)
{
    uint8_t mac[RD_MAC_BYTES];

    if (le32toh(verdict->verdict) == VERDICT_VERSION)
        return rd_because(why, "%s has another version of the pipe's protocol than %u", peer,
                          VERSION);
    if (le32toh(verdict->verdict) != VERDICT_WELCOME)
        return rd_because(why, "%s refuses us: its key is another one", peer);
    memcpy(said->verdict, verdict, sizeof said->verdict);
    if (!rd_mac(key, LABEL_CONSUMER, said, sizeof *said, mac) || !rd_mac_is(mac, verdict->mac))
        return rd_because(why, "%s does not have the key; is it another program?", peer);
    return true;
}

/* Both prove themselves. *is_cut_p: the other side closed before it said what it thinks of us. */
static bool introduce(int socket, const char *peer, const rd_key_t *key, rd_terms_t *terms,
                      int stop, int64_t deadline, said_t *said_p, verdict_t *verdict_p,
                      bool *is_cut_p, rd_why_t *why)
{
    answer_t answer;
    rd_why_t step;

    *is_cut_p = true;
    if (!rd_read_all(socket, &said_p->challenge, sizeof said_p->challenge, stop, deadline, &step))
        return rd_because_of(why, step.cause, "%s: %s before a word of the pipe's protocol", peer,
                             step.text);
    if (memcmp(said_p->challenge.magic, MAGIC, sizeof said_p->challenge.magic) != 0)
        return *is_cut_p = false,
               rd_because(why, "%s: something else than a pipe listens there", peer);
    if (le32toh(said_p->challenge.block) < terms->block)
        terms->block = le32toh(said_p->challenge.block);
    if (!make_answer(key, terms, said_p, &answer, why))
        return false;
    if (!rd_write_all(socket, &answer, sizeof answer, stop, deadline, &step) ||
        !rd_read_all(socket, verdict_p, sizeof *verdict_p, stop, deadline, &step))
        return rd_because_of(why, step.cause,
                             "%s: %s while both sides prove that they have the key", peer,
                             step.text);
    *is_cut_p = false;
    return verdict_is_good(peer, key, verdict_p, said_p, why);
}

static bool join_shm(const verdict_t *verdict, rd_hop_t *hop_p, rd_why_t *why)
{
    bw_error_t error = {0};
    uint32_t len = le32toh(verdict->address_len);

    if (len == 0 || len > sizeof verdict->address)
        return rd_because(why, "no shared memory there");
    if (bw_shm_connect(verdict->address, len, verdict->token, rd_ring_bytes(hop_p->terms.block),
                       &hop_p->link, &error) == BW_OK)
        return true;
    if (error.sys_errno == ECONNREFUSED)
        return rd_because(why, "another host");
    return rd_because_link(why, "", &error);
}

static bool join_rdma(const verdict_t *verdict, int socket, int stop, rd_hop_t *hop_p,
                      choice_t *choice_p, rd_why_t *why)
{
    uint32_t port = le32toh(verdict->rdma_port);
    int64_t deadline = rd_now_ms() + RDMA_MS;
    rd_meet_t meet;
    bool done;

    if (port == 0 || port > 65535)
        return rd_because(why, "none there");
    done = rd_meet_connect(&meet, socket, (uint16_t)port, verdict->rdma_token,
                           rd_ring_bytes(hop_p->terms.block), stop, deadline, why) &&
           rd_meet_link(&meet, stop, deadline, &hop_p->link, why);
    if (done)
        (void)snprintf(choice_p->text, sizeof choice_p->text, "device %.100s", meet.report.device);
    return done && is_over_rdma(hop_p);
}

/* The best carrier of those that both allow. */
static bool choose(const verdict_t *verdict, int socket, int stop, rd_hop_t *hop_p,
                   choice_t *choice_p)
{
    uint32_t carriers = le32toh(verdict->carriers) & carriers_of(&hop_p->terms);
    rd_why_t no_shm = {.text = "not allowed"}, no_rdma = {.text = "not allowed"};

    *choice_p = (choice_t){0};
    if (carriers & RD_CARRIER_SHM && join_shm(verdict, hop_p, &no_shm)) {
        choice_p->carrier = htole32(RD_CARRIER_SHM);
        set_text(choice_p->text, sizeof choice_p->text, "same host");
        hop_p->carrier = "shm";
        hop_p->side = socket;
        return true;
    }
    if (carriers & RD_CARRIER_RDMA && join_rdma(verdict, socket, stop, hop_p, choice_p, &no_rdma)) {
        choice_p->carrier = htole32(RD_CARRIER_RDMA);
        return true;
    }
    (void)snprintf(choice_p->text, sizeof choice_p->text,
                   "no shared memory: %.50s; no rdma: %.50s%s", no_shm.text, no_rdma.text,
                   hop_p->terms.flags & RD_TERM_TLS ? "; encrypted by TLS 1.3" : "");
    if (carriers & RD_CARRIER_TCP)
        choice_p->carrier = htole32(RD_CARRIER_TCP);
    return carriers & RD_CARRIER_TCP;
}

/* The socket is closed, or belongs to the link, when this has failed. */
static bool join(int socket, const char *peer, const rd_key_t *key, const rd_terms_t *terms,
                 int stop, int64_t deadline, rd_hop_t *hop_p, bool *is_cut_p, rd_why_t *why)
{
    rd_hop_t hop = {.side = -1, .terms = *terms};
    said_t said;
    proof_t proof = {.key = key, .said = &said, .stop = stop};
    verdict_t verdict;
    choice_t choice, settled;
    rd_why_t step;
    bool done, chosen;

    rd_tune(socket);
    hop.terms.block = block_of_here(terms->block);
    if (!introduce(socket, peer, key, &hop.terms, stop, deadline, &said, &verdict, is_cut_p, why)) {
        close(socket);
        return false;
    }
    hop.terms.flags |= (uint8_t)(le32toh(verdict.flags) & RD_TERM_TLS);
    chosen = choose(&verdict, socket, stop, &hop, &choice);
    set_text(hop.why, sizeof hop.why, choice.text);
    done = rd_write_all(socket, &choice, sizeof choice, stop, deadline, &step) && chosen &&
           rd_read_all(socket, &settled, sizeof settled, stop, deadline, &step);
    settled.text[sizeof settled.text - 1] = 0;
    if (!chosen)
        done = rd_because(why, "%s: no carrier: %s", peer, hop.why);
    else if (!done)
        (void)rd_because_of(why, step.cause, "%s: %s while agreeing on a carrier", peer, step.text);
    else if (settled.carrier != choice.carrier)
        done = rd_because(why, "%s: %s", peer, settled.text);
    else if (!hop.link)
        done = adopt(socket, &proof, &hop, why);
    if (done) {
        if (hop.is_behind)
            close(socket);
        *hop_p = hop;
        return true;
    }
    if (hop.link)
        hop.link->ops->close(hop.link, NULL);
    close(socket);
    return false;
}

bool rd_hop_join(int socket, const char *peer, const rd_key_t *key, const rd_terms_t *terms,
                 int stop, int64_t deadline, rd_hop_t *hop_p, rd_why_t *why)
{
    bool ignored;

    return join(socket, peer, key, terms, stop, deadline, hop_p, &ignored, why);
}

bool rd_hop_reach(const rd_there_t *there, const rd_key_t *key, const rd_terms_t *terms, int stop,
                  rd_hop_t *hop_p, rd_why_t *why)
{
    for (bool is_cut = false;;) {
        int64_t now = rd_now_ms(), deadline = now + there->attempt_ms;
        rd_why_t step;
        int socket;

        if (deadline < there->patient_until)
            deadline = there->patient_until;
        if (!rd_connect(there->host, there->port, stop, there->awaited_until,
                        there->connect_ms > 0 ? now + there->connect_ms : deadline, &socket,
                        &step)) {
            if (!is_cut) /* else it is a consequence of what *why tells */
                (void)rd_because(why, "%s%s%s", there->is_hop ? there->peer : "",
                                 there->is_hop ? ": " : "", step.text);
            return false;
        }
        if (join(socket, there->peer, key, terms, stop, deadline, hop_p, &is_cut, why))
            return true;
        if (!is_cut || rd_left_ms(there->patient_until) == 0 ||
            rd_wait(-1, 0, stop, rd_now_ms() + RETRY_MS) == RD_STOPPED)
            return false;
    }
}
