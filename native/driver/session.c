/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"

/* Reuses the chunk once there are no more references to its sent part. */
static void reuse_chunk(bw_session_t *session)
{
    if (session->chunk && session->staged == session->end &&
        driver_binary_get_refc(session->chunk) == 1)
        session->staged = session->end = 0;
}

static void free_chunk(bw_session_t *session)
{
    if (session->chunk)
        driver_free_binary(session->chunk);
    session->chunk = NULL;
    session->staged = session->end = 0;
}

static size_t room(const bw_session_t *session)
{
    return session->chunk ? (size_t)session->chunk->orig_size - session->end : 0;
}

uint8_t *bw_session_gap(bw_session_t *session, size_t size)
{
    size_t next = BW_SESSION_FIRST_CHUNK_BYTES;

    if (session->chunk && room(session) < size) {
        if (session->staged < session->end)
            return NULL;
        reuse_chunk(session);
        if (room(session) < size) {
            next = 2 * (size_t)session->chunk->orig_size;
            free_chunk(session);
        }
    }
    while (next < size)
        next *= 2;
    if (next > BW_SESSION_CHUNK_BYTES)
        next = BW_SESSION_CHUNK_BYTES;
    if (!session->chunk)
        session->chunk = driver_alloc_binary((ErlDrvSizeT)next);
    return session->chunk ? (uint8_t *)session->chunk->orig_bytes + session->end : NULL;
}

static bool extend_last(bw_session_t *session, size_t bytes)
{
    bw_pending_t *last = session->kept.first ? session->kept.last : NULL;
    const char *at = session->chunk->orig_bytes + session->staged;

    if (!last || last->binv[0] != session->chunk ||
        (char *)last->iov[0].iov_base + last->iov[0].iov_len != at)
        return false;
    last->iov[0].iov_len += bytes;
    last->size += bytes;
    session->kept.bytes += bytes;
    return true;
}

bool bw_session_sent(bw_session_t *session, size_t bytes)
{
    bw_pending_t *part;

    if (bytes == 0)
        return true;
    if (!extend_last(session, bytes)) {
        part = bw_pending_part(session->chunk, session->staged, bytes);
        if (!part)
            return false;
        part->is_rest = true;
        bw_pending_append(&session->kept, part);
    }
    session->staged += bytes;
    bw_outgoing_send(&session->out, bytes);
    return true;
}

bw_pending_t *bw_session_rest(bw_session_t *session)
{
    bw_pending_t *rest =
        bw_pending_part(session->chunk, session->staged, session->end - session->staged);

    if (rest)
        session->staged = session->end;
    return rest;
}

/* Frees the bytes before `arrived`. The peer has them, and nothing else refers to them. */
static void forget(bw_session_t *session)
{
    session->from += bw_pending_drop(&session->kept, session->out.arrived - session->from);
    reuse_chunk(session);
}

bool bw_session_acknowledged(bw_session_t *session, uint64_t position)
{
    if (!bw_outgoing_acknowledged(&session->out, position))
        return false;
    forget(session);
    return true;
}

bool bw_session_resume(bw_session_t *session, bw_pending_list_t *list, uint64_t position)
{
    if (!bw_outgoing_resume(&session->out, position))
        return false;
    forget(session);
    bw_pending_rewind(list, &session->kept, position - session->from);
    return true;
}

void bw_session_rests(bw_session_t *session)
{
    reuse_chunk(session);
    if (session->end == 0)
        free_chunk(session);
}

void bw_session_free(bw_session_t *session)
{
    (void)bw_pending_drop(&session->kept, session->kept.bytes);
    free_chunk(session);
}
