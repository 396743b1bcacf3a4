/* SPDX-License-Identifier: Apache-2.0 */
#include "wire.h"

#include <pthread.h>

#include "tls.h"

bw_status_t bw_tls_wire_make(bw_tls_wire_t *wire, bw_socket_t *sock, uint64_t out_bytes,
                             bw_error_t *error_p)
{
    bw_status_t status = bw_buffer_make(&wire->out, "beamway-tls", out_bytes, error_p);

    wire->socket = sock;
    wire->messages_left = BW_TLS_HANDSHAKE_MESSAGES;
    return status == BW_OK ? bw_buffer_make(&wire->in, "beamway-tls", BW_TLS_WIRE_BYTES, error_p)
                           : status;
}

void bw_tls_wire_free(bw_tls_wire_t *wire)
{
    bw_buffer_free(&wire->out);
    bw_buffer_free(&wire->in);
}

static void skip_ready(bw_tls_wire_t *wire)
{
    bw_buffer_t *in = &wire->in;

    while (wire->is_expecting && bw_buffer_fill(in) > 0) {
        wire->is_expecting = *bw_buffer_place(in, in->tail) == BW_TLS_READY;
        in->tail += wire->is_expecting;
    }
}

void bw_tls_wire_put_back(bw_tls_wire_t *wire, const uint8_t *bytes, size_t len)
{
    (void)bw_buffer_put(&wire->in, bytes, len);
    skip_ready(wire);
}

/* Takes what the socket has. */
static void pull(bw_tls_wire_t *wire)
{
    bw_span_t gap = bw_buffer_gap(&wire->in);
    struct iovec iov = {.iov_base = gap.base, .iov_len = gap.len};

    if (wire->socket->in != BW_SOCKET_MAYBE)
        return;
    wire->in.head += bw_socket_receive(wire->socket, &iov, 1);
    skip_ready(wire);
}

/* ---- what libssl calls ---- */

static int bio_read(BIO *bio, char *to, int most)
{
    bw_tls_wire_t *wire = BIO_get_data(bio);
    size_t n;

    BIO_clear_retry_flags(bio);
    if (wire->messages_left < 0)
        return -1;
    if (bw_buffer_fill(&wire->in) == 0)
        pull(wire);
    n = bw_buffer_get(&wire->in, to, (size_t)most);
    if (n > 0)
        return (int)n;
    if (wire->socket->in == BW_SOCKET_ENDED)
        return 0;
    BIO_set_retry_read(bio);
    return -1;
}

/* Room is looked for before libssl is asked to write; only an alert may find none. */
static int bio_write(BIO *bio, const char *from, int len)
{
    bw_tls_wire_t *wire = BIO_get_data(bio);

    BIO_clear_retry_flags(bio);
    if (bw_buffer_put(&wire->out, from, (size_t)len))
        return len;
    BIO_set_retry_write(bio);
    return -1;
}

static long bio_control(BIO *bio, int command, long number, void *pointer)
{
    const bw_tls_wire_t *wire = BIO_get_data(bio);

    (void)number, (void)pointer;
    switch (command) {
    case BIO_CTRL_FLUSH:
        return 1;
    case BIO_CTRL_EOF:
        return bw_tls_wire_has_ended(wire);
    default:
        return 0;
    }
}

static BIO_METHOD *method;

static void make_method(void)
{
    method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "beamway");
    if (method && BIO_meth_set_read(method, bio_read) && BIO_meth_set_write(method, bio_write) &&
        BIO_meth_set_ctrl(method, bio_control))
        return;
    BIO_meth_free(method);
    method = NULL;
}

BIO *bw_tls_wire_bio(bw_tls_wire_t *wire)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    BIO *bio;

    (void)pthread_once(&once, make_method);
    bio = method ? BIO_new(method) : NULL;
    if (!bio)
        return NULL;
    BIO_set_data(bio, wire);
    BIO_set_init(bio, 1);
    return bio;
}
