/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_RDMA_SERVICE_H
#define BW_RDMA_SERVICE_H

#include "connection.h"

/* The service thread makes all calls that may block, for all links of the process. It owns the
 * event channel of the connection manager, the listeners, the devices, and the remains of closed
 * links. Only that thread may call the functions below, except where noted. */

/* Starts the thread if it is not running. Any thread may call this. */
bw_status_t bw_rdma_service_start(bw_error_t *error_p);

/* Reports that the user has created or closed this connection. Called from the user's thread. */
void bw_rdma_service_request(bw_rdma_connection_t *connection, bool leaves);

bool bw_rdma_service_watch(int fd, bw_rdma_source_t *source);
void bw_rdma_service_forget(int fd);

/* Returns all connections, linked by `next`. */
bw_rdma_connection_t *bw_rdma_service_connections(void);

struct rdma_event_channel *bw_rdma_service_channel(void);

/* ---- connect.c: from an order to a link ---- */

/* An event of the connection manager; `data` is a copy of its private data. */
typedef struct {
    enum rdma_cm_event_type type;
    int status;
    struct rdma_cm_id *id, *listen_id;
    uint8_t data[256];
    size_t len;
} bw_rdma_cm_event_t;

void bw_rdma_connection_begin(bw_rdma_connection_t *connection);
void bw_rdma_connection_event(const bw_rdma_cm_event_t *event);
void bw_rdma_connection_deadline(bw_rdma_connection_t *connection);

/* Fails a connection that did not become a link: frees its device objects and notifies the user. */
__attribute__((format(printf, 3, 4))) void bw_rdma_connection_fail(bw_rdma_connection_t *connection,
                                                                   bw_status_t status,
                                                                   const char *format, ...);

/* Takes the lock and calls bw_rdma_fail. */
void bw_rdma_link_fail(bw_rdma_connection_t *connection, const char *reason);

/* Frees all except the memory, from which the user's thread may still be reading. */
void bw_rdma_connection_release(bw_rdma_connection_t *connection);

/* ---- listener.c ---- */

/* Lets the connection wait for its peer at its address, where several connections can share a port.
 * Returns false if the connection has failed. */
bool bw_rdma_listener_join(bw_rdma_connection_t *connection);

/* Has no effect on a connection that is not waiting. */
void bw_rdma_listener_leave(bw_rdma_connection_t *connection);

bw_rdma_listener_t *bw_rdma_listener_of(const struct rdma_cm_id *id);

/* Returns the listener's connection that is waiting for a peer with this token, or NULL. */
bw_rdma_connection_t *bw_rdma_listener_find(const bw_rdma_listener_t *listener,
                                            const uint8_t *token);

/* ---- device.c ---- */

/* Returns the id's device and watches it from now on, or returns NULL if it cannot be watched. */
bw_rdma_device_t *bw_rdma_device_get(struct rdma_cm_id *id);
void bw_rdma_device_put(bw_rdma_device_t *device); /* ignores NULL */

/* Called when the connection manager reports that the device of this id is being removed. */
void bw_rdma_device_is_removed(struct rdma_cm_id *id);

/* Both first release everything that we still use on the device: the kernel waits for that. */
void bw_rdma_listener_device_removed(const bw_rdma_device_t *device);
void bw_rdma_connection_device_removed(bw_rdma_connection_t *connection);

#endif
