/* SPDX-License-Identifier: Apache-2.0 */
#include "hop.h"

#include <assert.h>
#include <endian.h>
#include <sys/resource.h>
#include <unistd.h>

#include <openssl/rand.h>

#include "bundle.h"
#include "bytes.h"
#include "hop_streams.h"
#include "key_proof.h"
#include "stream/rdframe.h"
#include "socket.h"

#define MAGIC "rdpipe\r\n"
#define VERSION 2u
#define RETRY_MS 100    /* pause between two attempts */
#define SETTLE_MS 10000 /* limit for the rest of the setup, after the proof */
/* How much of SETTLE_MS each step of a carrier may take. If a step fails, tcp is used. */
#define STEP_MS 4000
#define RING_MIN_BYTES ((uint64_t)1024 * 1024) /* fits into a CPU cache */
/* Size of the ring for data to the producer, if there are several streams or TLS is used. */
#define RING_UP_BYTES BW_RING_MIN_BYTES
/* A window must hold all bytes that the peer has not acknowledged yet, because otherwise the two
 * sides would wait for each other. */
#define WINDOW_MIN_BYTES ((uint64_t)4 * 1024 * 1024)
/* The window with several streams, or with a round trip of a millisecond or more: 100 ms at 4
 * Gbit/s (50 MB), rounded up to a power of two. */
#define WINDOW_BYTES ((uint64_t)64 * 1024 * 1024)
#define FAR_MS 1 /* from this round-trip time on, `auto` uses several streams */
#define ID_BYTES 16

/* All numbers are little-endian, and all of this is sent over TLS. */
typedef struct {
    char magic[8];
    uint32_t version, carriers, block, flags;
    uint8_t id[ID_BYTES]; /* ID of the hop that this connection joins, or 0 if it is a new hop */
} hello_t;

typedef struct {
    uint32_t version, carriers, block, flags; /* agreed values */
    uint32_t streams, window;                 /* the maximum that the consumer accepts */
    uint32_t address_len;
    uint8_t address[BW_ADDRESS_MAX];
    uint8_t token[BW_TOKEN_BYTES];
    uint32_t rdma_port; /* 0 if there is no rdma */
    uint8_t rdma_token[BW_TOKEN_BYTES];
    uint8_t id[ID_BYTES]; /* the hop's ID, for the connections that will join */
} offer_t;

typedef struct {
    uint32_t carrier; /* 0 if none, in which case `text` gives the reason */
    uint32_t streams, window;
    char text[148];
} choice_t;

static_assert(sizeof(hello_t) == RD_HELLO_BYTES, "the layout is part of the protocol");
static_assert(sizeof(offer_t) == 188, "the layout is part of the protocol");
static_assert(sizeof(choice_t) == 160, "the layout is part of the protocol");

/* Returns the size of one direction's ring, which has room for four blocks and at least `bytes`. */
static uint64_t ring_bytes(uint32_t block, uint64_t bytes)
{
    struct rlimit limit;

    while (bytes < 4 * (uint64_t)block)
        bytes *= 2;
    /* A ring is a file in memory, so a low limit on file sizes means smaller rings. */
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        while (bytes > BW_RING_MIN_BYTES && 2 * bytes + 65536 > limit.rlim_cur)
            bytes /= 2;
    return bytes;
}

/* The longest frame must fit into the smaller ring. */
static uint32_t block_of_here(uint32_t block)
{
    uint64_t ring = ring_bytes(block, RING_MIN_BYTES);

    return block > ring / 4 ? (uint32_t)(ring / 4) : block;
}

static void set_text(char *to, size_t bytes, const char *text)
{
    size_t len = strnlen(text, bytes - 1);

    memcpy(to, text, len);
    to[len] = 0;
}

/* If the link cannot report that the peer has died, the connection stays open to do so. */
static void set_link(rd_hop_t *hop, int socket)
{
    unsigned caps = hop->link->ops->caps;

    hop->carrier = hop->link->ops->kind;
    hop->side = caps & BW_CAP_TELLS_DEATH ? -1 : socket;
    hop->is_behind = caps & BW_CAP_BACKGROUND;
}

/* The connection becomes the link or its first stream. The socket is consumed. */
static bool adopt(rd_proved_t *proved, const offer_t *offer, unsigned streams, uint32_t window,
                  int listener, const rd_key_t *key, rd_hop_t *hop_p, rd_why_t *why)
{
    static const uint8_t no_token[BW_TOKEN_BYTES];
    bool encrypts = hop_p->terms.flags & RD_TERM_TLS, is_producer = listener < 0;
    rd_bundle_terms_t terms = {.out_bytes = is_producer ? window : RING_UP_BYTES,
                               .in_bytes = is_producer ? RING_UP_BYTES : window,
                               .most = streams,
                               .is_auto = hop_p->terms.streams == 0,
                               .rtt_ms = rd_round_trip_ms(proved->fd)};
    hello_t hello = {.magic = MAGIC, .version = htole32(VERSION)};
    char device[BW_DEVICE_BYTES];
    rd_why_t step;
    int socket = proved->fd;

    if (is_producer && terms.rtt_ms >= FAR_MS)
        rd_widen(socket);
    if (encrypts) /* the tag of each TLS record also serves as a checksum */
        hop_p->terms.flags &= (uint8_t)~RD_FLAG_CRC;
    if (streams == 1 && !encrypts) {
        bool done = rd_carrier_connect(RD_CARRIER_TCP, socket, NULL, 0, no_token,
                                       ring_bytes(hop_p->terms.block, RING_MIN_BYTES), -1,
                                       rd_now_ms(), &hop_p->link, device, &step);

        rd_proved_drop(proved);
        if (!done)
            return rd_because_of(why, step.cause, "tcp: %.400s", step.text);
        set_link(hop_p, -1);
        return true;
    }
    if (!rd_bundle_open(&terms, &hop_p->link, why)) {
        rd_proved_drop(proved);
        return false;
    }
    set_link(hop_p, -1);
    hop_p->streams = streams;
    memcpy(hello.id, offer->id, ID_BYTES);
    if (streams > 1)
        hop_p->joiners = rd_joiners_start(hop_p, socket, listener, &hello, streams - 1, key);
    if (rd_joiners_add(hop_p->link, encrypts, proved))
        return true;
    rd_hop_close(hop_p);
    return rd_because(why, "tcp: out of memory");
}

void rd_hop_close(rd_hop_t *hop)
{
    rd_joiners_end(hop->joiners);
    if (hop->link)
        hop->link->ops->close(hop->link, NULL);
    rd_close(&hop->side);
    *hop = (rd_hop_t){.side = -1};
}

/* ---- the consumer ---- */

/* The consumer's listeners, one for each of rd_carriers_tried. */
typedef struct {
    rd_attempt_t of[RD_CARRIERS_TRIED];
} listeners_t;

/* If a listener cannot be opened, the producer will see in the offer that its carrier is not
 * available. */
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

static void put_offer(uint32_t carrier, const bw_report_t *report, offer_t *offer)
{
    if (carrier == RD_CARRIER_SHM) {
        offer->address_len = htole32((uint32_t)report->address_len);
        memcpy(offer->address, report->address, report->address_len);
        memcpy(offer->token, report->token, sizeof offer->token);
    } else {
        offer->rdma_port = htole32((uint32_t)bw_number(report->address, 2));
        memcpy(offer->rdma_token, report->token, sizeof offer->rdma_token);
    }
}

/* Reads a carrier's address and token from the offer. Returns the address's length, or 0 if the
 * consumer does not have the carrier. */
static size_t get_offer(uint32_t carrier, const offer_t *offer, uint8_t address[BW_ADDRESS_MAX],
                        const uint8_t **token_p)
{
    uint32_t len = le32toh(offer->address_len), port = le32toh(offer->rdma_port);

    if (carrier == RD_CARRIER_SHM) {
        *token_p = offer->token;
        memcpy(address, offer->address, sizeof offer->address);
        return len > sizeof offer->address ? 0 : len;
    }
    *token_p = offer->rdma_token;
    return port == 0 || port > 65535 ? 0 : (size_t)(bw_put(address, port, 2) - address);
}

static bool make_offer(const rd_terms_t *terms, const listeners_t *listeners, offer_t *offer_p,
                       rd_why_t *why)
{
    unsigned streams = rd_streams_max();

    if (terms->streams > 0 && terms->streams < streams)
        streams = terms->streams;
    *offer_p = (offer_t){.version = htole32(VERSION),
                         .carriers = htole32(terms->carriers),
                         .block = htole32(terms->block),
                         .flags = htole32(terms->flags),
                         .streams = htole32(streams),
                         .window = htole32((uint32_t)ring_bytes(terms->block, WINDOW_BYTES))};
    for (int i = 0; i < RD_CARRIERS_TRIED; i++)
        if (listeners->of[i].link)
            put_offer(rd_carriers_tried[i], &listeners->of[i].report, offer_p);
    return RAND_bytes(offer_p->id, sizeof offer_p->id) == 1 ||
           rd_because(why, "libcrypto cannot generate random bytes");
}

/* Accepts the link over the carrier that the producer has chosen, unless that is tcp. */
static bool take_choice(int socket, uint32_t carrier, listeners_t *listeners, int stop,
                        rd_hop_t *hop_p, rd_why_t *why)
{
    for (int i = 0; i < RD_CARRIERS_TRIED; i++) {
        if (carrier != rd_carriers_tried[i] || !listeners->of[i].link)
            continue;
        if (!rd_carrier_accept(&listeners->of[i], stop, rd_now_ms() + STEP_MS, &hop_p->link, why))
            return false;
        set_link(hop_p, socket);
        return true;
    }
    return rd_because(why, "the producer chose a carrier that was not offered");
}

static bool choice_is_sound(const choice_t *choice, const offer_t *offer, const rd_hop_t *hop,
                            rd_why_t *why)
{
    uint32_t carrier = le32toh(choice->carrier), streams = le32toh(choice->streams);
    uint32_t window = le32toh(choice->window);

    if (carrier == 0)
        return rd_because(why, "no carrier: %s", choice->text);
    if (!(carrier & hop->terms.carriers) || (carrier & (carrier - 1)))
        return rd_because(why, "the producer chose a carrier that was not offered");
    if (streams == 0 || streams > le32toh(offer->streams))
        return rd_because(why, "the producer chose %u streams, but 1 to %u were offered", streams,
                          le32toh(offer->streams));
    return (window <= le32toh(offer->window) && bw_ring_size_is_valid(window) &&
            window >= 4 * (uint64_t)hop->terms.block) ||
           rd_because(why, "the producer chose a window of %u bytes, which is out of range",
                      window);
}

/* On success the socket is consumed. */
static bool settle(rd_proved_t *proved, int listener, const rd_key_t *key, const offer_t *offer,
                   listeners_t *listeners, int stop, rd_hop_t *hop_p, rd_why_t *why)
{
    int64_t deadline = rd_now_ms() + SETTLE_MS;
    choice_t choice, settled = {0};
    bool taken;

    if (!rd_tls_read_all(proved->tls, &choice, sizeof choice, stop, deadline, why))
        return false;
    choice.text[sizeof choice.text - 1] = 0;
    if (!choice_is_sound(&choice, offer, hop_p, why))
        return false;
    set_text(hop_p->why, sizeof hop_p->why, choice.text);
    /* Send the message before the link takes over the socket. */
    if (choice.carrier == htole32(RD_CARRIER_TCP)) {
        settled.carrier = choice.carrier;
        return rd_tls_write_all(proved->tls, &settled, sizeof settled, stop, deadline, why) &&
               adopt(proved, offer, le32toh(choice.streams), le32toh(choice.window), listener, key,
                     hop_p, why);
    }
    taken = take_choice(proved->fd, le32toh(choice.carrier), listeners, stop, hop_p, why);
    settled.carrier = taken ? choice.carrier : 0;
    if (!taken)
        set_text(settled.text, sizeof settled.text, why->text);
    if (rd_tls_write_all(proved->tls, &settled, sizeof settled, stop, deadline, why) && taken) {
        if (hop_p->side >= 0)
            proved->fd = -1;
        rd_proved_drop(proved);
        return true;
    }
    if (taken) {
        hop_p->link->ops->close(hop_p->link, NULL);
        *hop_p = (rd_hop_t){.side = -1};
    }
    return false;
}

static bool take_hello(const hello_t *hello, const rd_terms_t *terms, rd_hop_t *hop_p,
                       rd_why_t *why)
{
    uint32_t block = le32toh(hello->block);

    hop_p->terms =
        (rd_terms_t){.block = block_of_here(block),
                     .flags = (uint8_t)(le32toh(hello->flags) | (terms->flags & RD_TERM_TLS)),
                     .carriers = terms->carriers & le32toh(hello->carriers),
                     .streams = terms->streams};
    hop_p->terms.carriers = rd_terms_carriers(&hop_p->terms);
    if (memcmp(hello->magic, MAGIC, sizeof hello->magic) != 0 || hello->version != htole32(VERSION))
        return rd_because(
            why, "the producer uses a different version of the pipe's protocol; expected %u",
            VERSION);
    return (block >= RD_BLOCK_MIN && block <= RD_BLOCK_MAX) ||
           rd_because(why, "the producer requests blocks of %u bytes, which is out of range",
                      block);
}

static bool agree(rd_proved_t *proved, const hello_t *hello, int listener, const rd_key_t *key,
                  const rd_terms_t *terms, int stop, rd_hop_t *hop_p, rd_why_t *why)
{
    listeners_t listeners = {0};
    offer_t offer = {.version = htole32(VERSION)};
    bool done = take_hello(hello, terms, hop_p, why);

    if (!done) { /* the producer reads the offer's version before anything else */
        rd_why_t ignored;

        (void)rd_tls_write_all(proved->tls, &offer, sizeof offer, stop, rd_now_ms() + SETTLE_MS,
                               &ignored);
        return false;
    }
    open_listeners(&listeners, hop_p->terms.carriers, proved->fd, stop);
    done =
        make_offer(&hop_p->terms, &listeners, &offer, why) &&
        rd_tls_write_all(proved->tls, &offer, sizeof offer, stop, rd_now_ms() + SETTLE_MS, why) &&
        settle(proved, listener, key, &offer, &listeners, stop, hop_p, why);
    close_listeners(&listeners);
    return done;
}

bool rd_hop_accept(int listener, const rd_key_t *key, const rd_terms_t *terms, int stop,
                   int64_t deadline, unsigned *turned_away_p, rd_hop_t *hop_p, rd_why_t *why)
{
    static const uint8_t no_id[ID_BYTES];
    rd_peers_t *peers = rd_peers_open(listener, key);
    rd_hop_t hop = {.side = -1};
    rd_proved_t proved = {.fd = -1};
    hello_t hello = {0};
    unsigned turned_away;
    bool done;

    if (!peers)
        return rd_because(why, "out of memory");
    do {
        rd_proved_drop(&proved); /* this peer wants to join an earlier hop */
        done =
            rd_peers_await(peers, stop, deadline, &proved, why) &&
            rd_tls_read_all(proved.tls, &hello, sizeof hello, stop, rd_now_ms() + SETTLE_MS, why);
    } while (done && memcmp(hello.id, no_id, ID_BYTES) != 0);
    if (done) {
        rd_tune(proved.fd);
        done = agree(&proved, &hello, listener, key, terms, stop, &hop, why);
    }
    rd_proved_drop(&proved);
    turned_away = rd_peers_close(peers);
    if (turned_away_p)
        *turned_away_p = turned_away;
    if (done)
        *hop_p = hop;
    return done;
}

/* ---- the producer ---- */

static bool introduce(rd_proved_t *proved, const char *peer, rd_hop_t *hop, int stop,
                      int64_t deadline, offer_t *offer_p, rd_why_t *why)
{
    hello_t hello = {.magic = MAGIC,
                     .version = htole32(VERSION),
                     .carriers = htole32(hop->terms.carriers),
                     .block = htole32(hop->terms.block),
                     .flags = htole32(hop->terms.flags)};
    uint32_t block;
    rd_why_t step;

    if (!rd_tls_write_all(proved->tls, &hello, sizeof hello, stop, deadline, &step) ||
        !rd_tls_read_all(proved->tls, offer_p, sizeof *offer_p, stop, deadline, &step))
        return rd_because_of(why, step.cause, "%s: %.400s while agreeing on the terms", peer,
                             step.text);
    block = le32toh(offer_p->block);
    if (offer_p->version != htole32(VERSION) || block == 0)
        return rd_because(why, "%s uses a different version of the pipe's protocol; expected %u",
                          peer, VERSION);
    if (block > hop->terms.block || le32toh(offer_p->streams) == 0 ||
        !bw_ring_size_is_valid(le32toh(offer_p->window)))
        return rd_because(why,
                          "%s offers %u streams, blocks of %u bytes and a window of %u bytes, "
                          "which is not a valid offer",
                          peer, le32toh(offer_p->streams), block, le32toh(offer_p->window));
    hop->terms.block = block;
    hop->terms.flags |= (uint8_t)(le32toh(offer_p->flags) & RD_TERM_TLS);
    return true;
}

static bool join_listener(uint32_t carrier, const offer_t *offer, int socket, int stop,
                          rd_hop_t *hop_p, choice_t *choice_p, rd_why_t *why)
{
    uint8_t address[BW_ADDRESS_MAX];
    char device[BW_DEVICE_BYTES];
    const uint8_t *token;
    size_t len = get_offer(carrier, offer, address, &token);

    if (len == 0)
        return rd_because(why, "not offered");
    if (!rd_carrier_connect(carrier, socket, address, len, token,
                            ring_bytes(hop_p->terms.block, RING_MIN_BYTES), stop,
                            rd_now_ms() + STEP_MS, &hop_p->link, device, why))
        return false;
    if (device[0])
        (void)snprintf(choice_p->text, sizeof choice_p->text, "device %.100s", device);
    else
        set_text(choice_p->text, sizeof choice_p->text, "same host");
    choice_p->carrier = htole32(carrier);
    set_link(hop_p, socket);
    return true;
}

static bool choose(const offer_t *offer, int socket, int stop, rd_hop_t *hop_p, choice_t *choice_p)
{
    uint32_t carriers = le32toh(offer->carriers) & rd_terms_carriers(&hop_p->terms);
    rd_why_t no[RD_CARRIERS_TRIED];

    *choice_p = (choice_t){0};
    for (int i = 0; i < RD_CARRIERS_TRIED; i++) {
        (void)rd_because(&no[i], "not allowed");
        if (carriers & rd_carriers_tried[i] &&
            join_listener(rd_carriers_tried[i], offer, socket, stop, hop_p, choice_p, &no[i]))
            return true;
    }
    (void)snprintf(choice_p->text, sizeof choice_p->text,
                   "no shared memory: %.40s; no rdma: %.40s%s", no[0].text, no[1].text,
                   hop_p->terms.flags & RD_TERM_TLS ? "; encrypted by TLS 1.3" : "");
    if (carriers & RD_CARRIER_TCP)
        choice_p->carrier = htole32(RD_CARRIER_TCP);
    return carriers & RD_CARRIER_TCP;
}

/* Returns how many streams to use. A consumer of an older version offers at most 16. */
static unsigned streams_of(const rd_terms_t *terms, const offer_t *offer, int socket)
{
    uint32_t most = (uint32_t)bw_least(le32toh(offer->streams), rd_streams_max());
    unsigned wanted = terms->streams > 0                   ? terms->streams
                      : rd_round_trip_ms(socket) >= FAR_MS ? most
                                                           : 1;

    return wanted < most ? wanted : most;
}

static uint32_t window_of(const rd_terms_t *terms, const offer_t *offer, unsigned streams,
                          int socket)
{
    bool is_far = streams > 1 || rd_round_trip_ms(socket) > 0;
    uint64_t own = ring_bytes(terms->block, is_far ? WINDOW_BYTES : WINDOW_MIN_BYTES);

    return own < le32toh(offer->window) ? (uint32_t)own : le32toh(offer->window);
}

/* The socket is consumed by the link, or closed. */
static bool join(int socket, const char *peer, const rd_key_t *key, const rd_terms_t *terms,
                 int stop, int64_t deadline, rd_hop_t *hop_p, bool *is_cut_p, rd_why_t *why)
{
    rd_hop_t hop = {.side = -1, .terms = *terms};
    rd_proved_t proved = {.fd = socket};
    offer_t offer;
    choice_t choice, settled;
    unsigned streams;
    rd_why_t step;
    bool done, chosen;

    rd_tune(socket);
    hop.terms.block = block_of_here(terms->block);
    if (!rd_set_congestion(socket, terms->congestion, why) ||
        !rd_prove(&proved, peer, key, stop, deadline, is_cut_p, why) ||
        !introduce(&proved, peer, &hop, stop, deadline, &offer, why)) {
        rd_proved_drop(&proved);
        return false;
    }
    chosen = choose(&offer, socket, stop, &hop, &choice);
    streams = streams_of(&hop.terms, &offer, socket);
    choice.streams = htole32(streams);
    choice.window = htole32(window_of(&hop.terms, &offer, streams, socket));
    if (chosen && !hop.link && streams > 1)
        (void)snprintf(choice.text + strlen(choice.text), sizeof choice.text - strlen(choice.text),
                       "; %s%u streams", terms->streams == 0 ? "up to " : "", streams);
    set_text(hop.why, sizeof hop.why, choice.text);
    done = rd_tls_write_all(proved.tls, &choice, sizeof choice, stop, deadline, &step) && chosen &&
           rd_tls_read_all(proved.tls, &settled, sizeof settled, stop, deadline, &step);
    settled.text[sizeof settled.text - 1] = 0;
    if (!chosen)
        done = rd_because(why, "%s: no carrier: %s", peer, hop.why);
    else if (!done)
        (void)rd_because_of(why, step.cause, "%s: %.400s while agreeing on a carrier", peer,
                            step.text);
    else if (settled.carrier != choice.carrier)
        done = rd_because(why, "%s: %s", peer, settled.text);
    else if (!hop.link)
        done = adopt(&proved, &offer, streams, le32toh(choice.window), -1, key, &hop, why);
    if (done) {
        if (hop.side >= 0)
            proved.fd = -1;
        rd_proved_drop(&proved);
        *hop_p = hop;
        return true;
    }
    if (hop.link)
        hop.link->ops->close(hop.link, NULL);
    rd_proved_drop(&proved);
    return false;
}

bool rd_hop_reach(const rd_there_t *there, const rd_key_t *key, const rd_terms_t *terms, int stop,
                  rd_hop_t *hop_p, rd_why_t *why)
{
    for (bool is_cut = false;;) {
        int64_t now = rd_now_ms(), from = now < there->awaited_until ? there->awaited_until : now;
        int64_t deadline = from + there->attempt_ms;
        rd_why_t step;
        int socket;

        if (!rd_connect(there->host, there->port, stop, there->awaited_until,
                        there->connect_ms > 0 ? from + there->connect_ms : deadline, &socket,
                        &step)) {
            if (!is_cut) /* otherwise this is only a consequence of the error in *why */
                (void)rd_because_of(why, step.cause, "%s%s%s", there->is_hop ? there->peer : "",
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
