/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the message that a peer sends to the listener: any bytes, with any number and kind of
 * descriptors, and then any content of the memory that came with it.
 *
 * Input: a byte of choices (bit 0: the right token is inserted; bit 1: the rest of a valid header
 * is inserted), a byte with the number of descriptors, 3 bytes with their kinds, 1 byte for the
 * seals, 2 bytes for the memory's size; the rest is the message and, repeated, the memory's
 * content. This checks that only a peer with the token is accepted, that no descriptor is left
 * open, and that the resulting link, if there is one, can be used and closed whatever its memory
 * contains.
 */
#include <fcntl.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "../test/peers.h"
#include "input.h"

#define HEAD 8
#define FDS_MAX 8

/* Offsets in the hello defined in native/link/shm/connect.c. */
enum { TOKEN = 0, VERSION = 16, RING_BYTES = 24, HELLO_BYTES = 32 };

static const int seal_bits[] = {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_WRITE,
                                F_SEAL_FUTURE_WRITE};

static int make_memory(const uint8_t *input, size_t size)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING), seals = 0;
    uint16_t shift = (uint16_t)(input[6] | input[7] << 8);
    uint64_t bytes = PAGE + 2 * RING + (shift >= 32768 ? shift - 65536 : shift);

    if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0)
        abort();
    if (pwrite(fd, input, size, 0) < 0 || pwrite(fd, input, size, PAGE) < 0)
        abort();
    for (size_t i = 0; i < sizeof seal_bits / sizeof *seal_bits; i++)
        seals |= input[5] >> i & 1 ? 0 : seal_bits[i]; /* 0x18: all three required seals */
    if (fcntl(fd, F_ADD_SEALS, seals) < 0)
        abort();
    return fd;
}

/* Returns an ordinary file of the right size, which any process that has it open can shorten at any
 * time. */
static int plain_file(void)
{
    static FILE *file;

    if (!file && (!(file = tmpfile()) || ftruncate(fileno(file), PAGE + 2 * RING) < 0))
        abort();
    return fcntl(fileno(file), F_DUPFD_CLOEXEC, 0);
}

static int make_descriptor(uint8_t kind, const uint8_t *input, size_t size)
{
    switch (kind % 6) {
    case 0:
        return make_memory(input, size);
    case 1:
        return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    case 2:
        return eventfd(kind, EFD_CLOEXEC);
    case 3:
        return plain_file();
    case 4:
        return open("/", O_PATH | O_CLOEXEC);
    default:
        return socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    }
}

/* Makes the same calls as the driver on a link whose memory was filled by the peer. */
static void look_at(bw_link_t *link)
{
    bw_link_stats_t stats;
    bw_span_t span = {0};

    link->ops->stats(link, &stats);
    if (stats.fill_in > stats.ring_bytes || stats.fill_out > stats.ring_bytes)
        abort();
    if (link->ops->peek(link, &span) == BW_OK) {
        if (span.len == 0 || span.len > stats.ring_bytes)
            abort();
        link->ops->release(link, span.len);
    }
    if (link->ops->reserve(link, 100, &span) == BW_OK) {
        if (span.len == 0 || span.len > stats.ring_bytes)
            abort();
        memset(span.base, 1, span.len);
        link->ops->commit(link, span.len);
    }
    link->ops->clear_event(link);
    (void)link->ops->arm_write(link, 1);
    (void)link->ops->arm_read(link);
    link->ops->trim(link);
    link->ops->wake_self(link);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
    uint8_t message[4096] = {0};
    int fds[FDS_MAX], open_before, peer;
    bw_shm_listener_t listener = {.fd = -1};
    bw_link_t *link = NULL;
    bw_error_t error = {0};
    size_t count, len = size - HEAD;
    bool has_token;

    if (size < HEAD || len > sizeof message)
        return 0;
    close(plain_file()); /* stays open after the first call */
    open_before = open_descriptors();
    if (bw_shm_listen(NULL, &listener, &error) != BW_OK)
        abort();
    memcpy(message, input + HEAD, len);
    if (input[0] & 1 && len >= BW_TOKEN_BYTES)
        memcpy(message + TOKEN, listener.token, BW_TOKEN_BYTES);
    if (input[0] & 2 && len >= HELLO_BYTES) {
        uint32_t version = 1;
        uint64_t ring_bytes = RING;

        memcpy(message + VERSION, &version, sizeof version);
        memcpy(message + RING_BYTES, &ring_bytes, sizeof ring_bytes);
    }
    has_token = len == HELLO_BYTES && memcmp(message, listener.token, BW_TOKEN_BYTES) == 0;
    count = input[1] % (FDS_MAX + 1);
    for (size_t i = 0; i < count; i++)
        fds[i] = make_descriptor(i < 3 ? input[2 + i] : 1, input, size);
    peer = connect_to(&listener);
    if (peer < 0)
        abort();
    (void)send_with(peer, message, len, fds, count); /* not all of them can be sent */
    close(peer);
    if (bw_shm_accept(&listener, 4 * RING, &link, &error) == BW_OK) {
        if (!has_token || count != 3 || input[2] % 6 != 0 || (input[5] & 7) != 0 ||
            input[3] % 6 != 1 || input[4] % 6 != 1)
            abort();
        look_at(link);
        link->ops->close(link, NULL);
    }
    for (size_t i = 0; i < count; i++)
        close(fds[i]);
    bw_shm_listener_close(&listener);
    if (open_descriptors() != open_before)
        abort();
    return 0;
}
