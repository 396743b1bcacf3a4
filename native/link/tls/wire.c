/* SPDX-License-Identifier: Apache-2.0 */
#include "wire.h"

#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

#include "../bytes.h"
#include "tls.h"

bw_status_t bw_tls_wire_make(bw_tls_wire_t *wire, int socket, uint64_t out_bytes,
                             bw_error_t *error_p)
{
    bw_status_t status = bw_buffer_make(&wire->out, "beamway-tls", out_bytes, error_p);

    wire->socket = socket;
    wire->may_read = true;
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
    if (len > 0)
        memcpy(bw_buffer_place(&wire->in, wire->in.head), bytes, len);
    wire->in.head += len;
    skip_ready(wire);
}

void bw_tls_wire_push(bw_tls_wire_t *wire)
{
    bw_buffer_t *out = &wire->out;

    while (bw_buffer_fill(out) > 0 && !wire->is_blocked && wire->write_error == 0) {
        ssize_t n = send(wire->socket, bw_buffer_place(out, out->tail), bw_buffer_fill(out),
                         MSG_NOSIGNAL | MSG_DONTWAIT);

        wire->writes++;
        if (n >= 0)
            out->tail += (uint64_t)n;
        else if (errno == EAGAIN)
            wire->is_blocked = true;
        else if (errno != EINTR)
            wire->write_error = errno;
    }
}

/* Takes what the socket has. */
static void pull(bw_tls_wire_t *wire)
{
    bw_buffer_t *in = &wire->in;
    uint64_t room = bw_buffer_room(in);
    ssize_t n;

    if (!wire->may_read || wire->has_ended)
        return;
    do
        n = recv(wire->socket, bw_buffer_place(in, in->head), room, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    wire->reads++;
    wire->may_read = n > 0 && ((uint64_t)n == room || wire->is_ending);
    if (n > 0) {
        in->head += (uint64_t)n;
        skip_ready(wire);
    } else if (n == 0 || errno != EAGAIN) {
        wire->has_ended = true;
        wire->read_error = n < 0 ? errno : 0;
    }
}

/* ---- what libssl calls ---- */

static int bio_read(BIO *bio, char *to, int most)
{
    bw_tls_wire_t *wire = BIO_get_data(bio);
    bw_buffer_t *in = &wire->in;
    size_t n;

    BIO_clear_retry_flags(bio);
    if (bw_buffer_fill(in) == 0)
        pull(wire);
    n = bw_least(bw_buffer_fill(in), (uint64_t)most);
    if (n == 0 && !wire->has_ended)
        BIO_set_retry_read(bio);
    if (n == 0)
        return wire->has_ended ? 0 : -1;
    memcpy(to, bw_buffer_place(in, in->tail), n);
    in->tail += n;
    return (int)n;
}

/* Room is looked for before libssl is asked to write; only an alert may find none. */
static int bio_write(BIO *bio, const char *from, int len)
{
    bw_tls_wire_t *wire = BIO_get_data(bio);
    bw_buffer_t *out = &wire->out;

    BIO_clear_retry_flags(bio);
    if (bw_buffer_room(out) < (uint64_t)len) {
        BIO_set_retry_write(bio);
        return -1;
    }
    memcpy(bw_buffer_place(out, out->head), from, (size_t)len);
    out->head += (uint64_t)len;
    return len;
}

static long bio_control(BIO *bio, int command, long number, void *pointer)
{
    const bw_tls_wire_t *wire = BIO_get_data(bio);

    (void)number, (void)pointer;
    switch (command) {
    case BIO_CTRL_FLUSH:
        return 1;
    case BIO_CTRL_EOF:
        return wire->has_ended && bw_buffer_fill(&wire->in) == 0;
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
