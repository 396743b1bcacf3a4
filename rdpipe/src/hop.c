/* SPDX-License-Identifier: Apache-2.0 */
#include "hop.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bytes.h"
#include "rdframe.h"
#include "socket.h"

#define MAGIC "rdpipe\r\n"
#define VERSION 1u
#define CANDIDATES_MAX 256
#define PROOF_MS 5000   /* time to prove oneself */
#define GRACE_MS 1000   /* of it, also if others wait for the place */
#define ACCEPTS_MAX 16  /* at a time, so that those who are in are heard in between */
#define RETRY_MS 100    /* between two attempts to join */
#define SETTLE_MS 10000 /* time for the rest, once proved */
#define STEP_MS 4000    /* of it, for each step of a carrier; without it there is tcp */
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
    uint8_t address[BW_ADDRESS_MAX];
    uint8_t token[BW_TOKEN_BYTES];
    uint32_t rdma_port; /* 0: no rdma there */
    uint8_t rdma_token[BW_TOKEN_BYTES];
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

/* The ring of one direction for blocks of this size: room for four, at least 4 MB. */
static uint64_t ring_bytes(uint32_t block)
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
    uint64_t ring = ring_bytes(block);

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

/* The hop has its link: what tells of the other side's end, if the link does not? */
static void set_link(rd_hop_t *hop, int socket)
{
    unsigned caps = hop->link->ops->caps;

    hop->carrier = hop->link->ops->kind;
    hop->side = caps & BW_CAP_TELLS_DEATH ? -1 : socket;
    hop->is_behind = caps & BW_CAP_BACKGROUND;
}

/* Makes the connection the link. It is taken only on success. */
static bool adopt(int socket, const proof_t *proof, rd_hop_t *hop_p, rd_why_t *why)
{
    static const uint8_t no_token[BW_TOKEN_BYTES];
    char device[BW_DEVICE_BYTES];
    rd_why_t step;
    int plain = -1;
    bool encrypts = hop_p->terms.flags & RD_TERM_TLS, done;

    if (encrypts && !encrypt(socket, proof, hop_p, &plain, why))
        return false;
    done = rd_carrier_connect(RD_CARRIER_TCP, encrypts ? plain : socket, NULL, 0, no_token,
                              ring_bytes(hop_p->terms.block), proof->stop, rd_now_ms(),
                              &hop_p->link, device, &step);
    if (encrypts)
        close(plain);
    if (!done) {
        if (encrypts)
            rd_tls_end(hop_p->tls);
        hop_p->tls = NULL;
        return rd_because_of(why, step.cause, "tcp: %.400s", step.text);
    }
    close(socket);
    set_link(hop_p, -1);
    return true;
}

/* What may be chosen. */
static uint32_t carriers_of(const rd_terms_t *terms)
{
    return terms->flags & RD_TERM_TLS ? terms->carriers & ~(uint32_t)RD_CARRIER_RDMA
                                      : terms->carriers;
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
} candidate_t;

typedef enum { PROOF_PENDING, PROOF_FAILED, PROOF_GIVEN } proof_state_t;

static bool send_challenge(int fd, candidate_t *candidate_p)
{
    rd_why_t why;

    *candidate_p = (candidate_t){.fd = fd, .came_ms = rd_now_ms()};
    memcpy(candidate_p->challenge.magic, MAGIC, sizeof candidate_p->challenge.magic);
    candidate_p->challenge.version = htole32(VERSION);
    candidate_p->challenge.block = htole32(block_of_here(RD_BLOCK_MAX));
    return rd_nonce(candidate_p->challenge.nonce, &why) &&
           send(fd, &candidate_p->challenge, sizeof candidate_p->challenge,
                MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof candidate_p->challenge;
}

static bool answer_is_proved(const candidate_t *candidate, const rd_key_t *key, said_t *said_p)
{
    uint8_t mac[RD_MAC_BYTES];

    said_p->challenge = candidate->challenge;
    memcpy(said_p->answer, &candidate->answer, sizeof said_p->answer);
    return memcmp(candidate->answer.magic, MAGIC, sizeof candidate->answer.magic) == 0 &&
           rd_mac(key, LABEL_PRODUCER, said_p, offsetof(said_t, verdict), mac) &&
           rd_mac_is(mac, candidate->answer.mac);
}

/* Tells one of our own kind why he is turned away; others get no answer. */
static void refuse(int fd, uint32_t verdict)
{
    verdict_t no = {.verdict = htole32(verdict)};

    (void)send(fd, &no, sizeof no, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static proof_state_t read_answer(candidate_t *candidate, const rd_key_t *key, said_t *said_p)
{
    ssize_t n = recv(candidate->fd, (uint8_t *)&candidate->answer + candidate->got,
                     sizeof candidate->answer - candidate->got, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return rd_left_ms(candidate->came_ms + PROOF_MS) == 0 ? PROOF_FAILED : PROOF_PENDING;
    if (n <= 0)
        return PROOF_FAILED;
    candidate->got += (size_t)n;
    if (memcmp(&candidate->answer, MAGIC, candidate->got < 8 ? candidate->got : 8) != 0)
        return PROOF_FAILED;
    if (candidate->got < sizeof candidate->answer)
        return PROOF_PENDING;
    if (answer_is_proved(candidate, key, said_p) && candidate->answer.version == htole32(VERSION))
        return PROOF_GIVEN;
    refuse(candidate->fd,
           candidate->answer.version == htole32(VERSION) ? VERDICT_REFUSED : VERDICT_VERSION);
    return PROOF_FAILED;
}

/* In the order in which they came. */
typedef struct {
    candidate_t of[CANDIDATES_MAX];
    size_t count;
    size_t most;
    unsigned turned_away;
} candidates_t;

static void remove_at(candidates_t *candidates, size_t i)
{
    candidates->count--;
    memmove(&candidates->of[i], &candidates->of[i + 1],
            (candidates->count - i) * sizeof *candidates->of);
}

static void turn_away(candidates_t *candidates, size_t i)
{
    close(candidates->of[i].fd);
    remove_at(candidates, i);
    candidates->turned_away++;
}

/* Half of the descriptors, as the link needs some, too. */
static size_t max_candidates(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur > 2 * CANDIDATES_MAX + 16)
        return CANDIDATES_MAX;
    return limit.rlim_cur > 24 ? (size_t)limit.rlim_cur / 2 - 8 : 4;
}

/* Whoever has been in longest gives way, but not before he had the time to prove himself. */
static bool has_room(const candidates_t *candidates)
{
    return candidates->count < candidates->most ||
           rd_left_ms(candidates->of[0].came_ms + GRACE_MS) == 0;
}

static void accept_candidates(candidates_t *candidates, int listener)
{
    for (int i = 0; i < ACCEPTS_MAX && has_room(candidates); i++) {
        int fd;

        if (candidates->count == candidates->most)
            turn_away(candidates, 0);
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        if (send_challenge(fd, &candidates->of[candidates->count]))
            candidates->count++;
        else
            close(fd);
    }
}

/* The oldest is the next who must leave, or may have to. */
static int next_deadline(const candidates_t *candidates, int64_t deadline)
{
    int64_t next = deadline;

    if (candidates->count > 0)
        next = candidates->of[0].came_ms + (has_room(candidates) ? PROOF_MS : GRACE_MS);
    return rd_left_ms(next < deadline ? next : deadline);
}

/* Waits for one who has the key. His socket, or -1. */
static int await_proof(int listener, const rd_key_t *key, int stop, int64_t deadline,
                       candidates_t *candidates, candidate_t *candidate_p, said_t *said_p,
                       rd_why_t *why)
{
    while (rd_left_ms(deadline) > 0) {
        struct pollfd polled[CANDIDATES_MAX + 2] = {
            {.fd = stop, .events = POLLIN},
            {.fd = has_room(candidates) ? listener : -1, .events = POLLIN}};

        for (size_t i = 0; i < candidates->count; i++)
            polled[2 + i] = (struct pollfd){.fd = candidates->of[i].fd, .events = POLLIN};
        (void)poll(polled, 2 + candidates->count, next_deadline(candidates, deadline));
        if (polled[0].revents)
            return (void)rd_because_of(why, RD_CAUSE_STOPPED, "stopped"), -1;
        for (size_t i = candidates->count; i-- > 0;) {
            proof_state_t is = read_answer(&candidates->of[i], key, said_p);

            if (is == PROOF_GIVEN) {
                *candidate_p = candidates->of[i];
                remove_at(candidates, i);
                return candidate_p->fd;
            }
            if (is == PROOF_FAILED)
                turn_away(candidates, i);
        }
        if (polled[1].revents)
            accept_candidates(candidates, listener);
    }
    (void)rd_because_of(why, RD_CAUSE_LOST, "nobody with the key has connected in time%s",
                        candidates->turned_away > 0 ? " (others have, and were turned away)" : "");
    return -1;
}

/* What the consumer holds open for the producer; an attempt for each of rd_carriers_tried. */
typedef struct {
    rd_attempt_t of[RD_CARRIERS_TRIED];
} listeners_t;

/* Without one of them the producer sees that the carrier is not to be had. */
static void open_listeners(listeners_t *listeners, uint32_t carriers, int socket, int stop)
{
    rd_why_t ignored;

    for (int i = 0; i < RD_CARRIERS_TRIED; i++)
        if (carriers & rd_carriers_tried[i])
            (void)rd_carrier_listen(rd_carriers_tried[i], socket, stop, rd_now_ms() + STEP_MS,
                                    &listeners->of[i], &ignored);
}

static void close_listeners(listeners_t *listeners)
{
    for (int i = 0; i < RD_CARRIERS_TRIED; i++)
        rd_carrier_end(&listeners->of[i]);
}

/* Where a listener of the carrier stands in a verdict. */
static void put_offer(uint32_t carrier, const bw_report_t *report, verdict_t *verdict)
{
    if (carrier == RD_CARRIER_SHM) {
        verdict->address_len = htole32((uint32_t)report->address_len);
        memcpy(verdict->address, report->address, report->address_len);
        memcpy(verdict->token, report->token, sizeof verdict->token);
    } else {
        verdict->rdma_port = htole32((uint32_t)bw_number(report->address, 2));
        memcpy(verdict->rdma_token, report->token, sizeof verdict->rdma_token);
    }
}

/* The bytes of the address; 0: the carrier is not to be had there. */
static size_t get_offer(uint32_t carrier, const verdict_t *verdict, uint8_t address[BW_ADDRESS_MAX],
                        const uint8_t **token_p)
{
    uint32_t len = le32toh(verdict->address_len), port = le32toh(verdict->rdma_port);

    if (carrier == RD_CARRIER_SHM) {
        *token_p = verdict->token;
        memcpy(address, verdict->address, sizeof verdict->address);
        return len > sizeof verdict->address ? 0 : len;
    }
    *token_p = verdict->rdma_token;
    return port == 0 || port > 65535 ? 0 : (size_t)(bw_put(address, port, 2) - address);
}

static bool make_verdict(const rd_key_t *key, const rd_terms_t *terms, const listeners_t *listeners,
                         said_t *said, verdict_t *verdict_p)
{
    *verdict_p = (verdict_t){.verdict = htole32(VERDICT_WELCOME),
                             .carriers = htole32(terms->carriers),
                             .flags = htole32(terms->flags & RD_TERM_TLS)};
    for (int i = 0; i < RD_CARRIERS_TRIED; i++)
        if (listeners->of[i].link)
            put_offer(rd_carriers_tried[i], &listeners->of[i].report, verdict_p);
    memcpy(said->verdict, verdict_p, sizeof said->verdict);
    return rd_mac(key, LABEL_CONSUMER, said, sizeof *said, verdict_p->mac);
}

/* Takes what the producer has chosen; `text` becomes the reason for the carrier. */
static bool take_choice(int socket, uint32_t carrier, listeners_t *listeners, const proof_t *proof,
                        rd_hop_t *hop_p, rd_why_t *why)
{
    if (carrier == RD_CARRIER_TCP)
        return adopt(socket, proof, hop_p, why);
    for (int i = 0; i < RD_CARRIERS_TRIED; i++) {
        if (carrier != rd_carriers_tried[i] || !listeners->of[i].link)
            continue;
        if (!rd_carrier_accept(&listeners->of[i], proof->stop, rd_now_ms() + STEP_MS, &hop_p->link,
                               why))
            return false;
        set_link(hop_p, socket);
        return true;
    }
    return rd_because(why, "the producer chose a carrier that was not offered");
}

static bool settle(int socket, listeners_t *listeners, const proof_t *proof, rd_hop_t *hop_p,
                   rd_why_t *why)
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
               take_choice(socket, carrier, listeners, proof, hop_p, why);
    }
    taken = take_choice(socket, carrier, listeners, proof, hop_p, why);
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

bool rd_hop_accept(int listener, const rd_key_t *key, const rd_terms_t *terms, int stop,
                   int64_t deadline, unsigned *turned_away_p, rd_hop_t *hop_p, rd_why_t *why)
{
    candidates_t candidates = {.most = max_candidates()};
    candidate_t candidate = {0};
    listeners_t listeners = {0};
    said_t said;
    verdict_t verdict;
    rd_hop_t hop = {.side = -1};
    proof_t proof = {.key = key, .said = &said, .is_consumer = true, .stop = stop};
    int socket = await_proof(listener, key, stop, deadline, &candidates, &candidate, &said, why);
    bool done = socket >= 0;

    if (done) {
        rd_tune(socket);
        hop.terms = (rd_terms_t){
            .block = le32toh(candidate.answer.block),
            .flags = (uint8_t)(le32toh(candidate.answer.flags) | (terms->flags & RD_TERM_TLS)),
            .carriers = terms->carriers & le32toh(candidate.answer.carriers)};
        hop.terms.carriers = carriers_of(&hop.terms);
        if (hop.terms.block < RD_BLOCK_MIN || hop.terms.block > RD_BLOCK_MAX)
            done = rd_because(why, "the producer wants blocks of %u bytes", hop.terms.block);
        if (done)
            open_listeners(&listeners, hop.terms.carriers, socket, stop);
        done = done && make_verdict(key, &hop.terms, &listeners, &said, &verdict) &&
               rd_write_all(socket, &verdict, sizeof verdict, stop, rd_now_ms() + SETTLE_MS, why) &&
               settle(socket, &listeners, &proof, &hop, why);
        if (!done)
            close(socket);
    }
    close_listeners(&listeners);
    if (turned_away_p)
        *turned_away_p = candidates.turned_away;
    while (candidates.count > 0)
        turn_away(&candidates, 0);
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

static bool join_listener(uint32_t carrier, const verdict_t *verdict, int socket, int stop,
                          rd_hop_t *hop_p, choice_t *choice_p, rd_why_t *why)
{
    uint8_t address[BW_ADDRESS_MAX];
    char device[BW_DEVICE_BYTES];
    const uint8_t *token;
    size_t len = get_offer(carrier, verdict, address, &token);

    if (len == 0)
        return rd_because(why, "none there");
    if (!rd_carrier_connect(carrier, socket, address, len, token, ring_bytes(hop_p->terms.block),
                            stop, rd_now_ms() + STEP_MS, &hop_p->link, device, why))
        return false;
    if (device[0])
        (void)snprintf(choice_p->text, sizeof choice_p->text, "device %.100s", device);
    else
        set_text(choice_p->text, sizeof choice_p->text, "same host");
    choice_p->carrier = htole32(carrier);
    set_link(hop_p, socket);
    return true;
}

/* The best carrier of those that both allow. */
static bool choose(const verdict_t *verdict, int socket, int stop, rd_hop_t *hop_p,
                   choice_t *choice_p)
{
    uint32_t carriers = le32toh(verdict->carriers) & carriers_of(&hop_p->terms);
    rd_why_t no[RD_CARRIERS_TRIED];

    *choice_p = (choice_t){0};
    for (int i = 0; i < RD_CARRIERS_TRIED; i++) {
        (void)rd_because(&no[i], "not allowed");
        if (carriers & rd_carriers_tried[i] &&
            join_listener(rd_carriers_tried[i], verdict, socket, stop, hop_p, choice_p, &no[i]))
            return true;
    }
    (void)snprintf(choice_p->text, sizeof choice_p->text,
                   "no shared memory: %.50s; no rdma: %.50s%s", no[0].text, no[1].text,
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
