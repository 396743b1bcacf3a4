/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "rdma.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "socket.h"

#define DEVICES "/sys/class/infiniband"
#define CARRIER "lib/rdpipe/beamway_rdma.so"

/* Cheaper than to load the carrier and to be told so by it. */
static bool has_device(void)
{
    DIR *devices = opendir(DEVICES);
    const struct dirent *entry;
    bool found = false;

    while (devices && !found && (entry = readdir(devices)))
        found = entry->d_name[0] != '.';
    if (devices)
        (void)closedir(devices);
    return found;
}

/* PREFIX/bin/rdpipe has it in PREFIX/lib. */
static bool carrier_path(char path[PATH_MAX])
{
    ssize_t len = readlink("/proc/self/exe", path, PATH_MAX - 1);

    if (len <= 0)
        return false;
    for (int folders = 2; folders > 0 && len > 0; len--)
        if (path[len - 1] == '/')
            folders--;
    path[len++] = '/';
    if ((size_t)len + sizeof CARRIER > PATH_MAX)
        return false;
    memcpy(path + len, CARRIER, sizeof CARRIER);
    return true;
}

static const bw_rdma_api_t *load(rd_why_t *why)
{
    static const bw_rdma_api_t *loaded;
    char path[PATH_MAX];
    bw_error_t error = {0};
    bw_rdma_api_fn api;
    void *library;

    if (loaded)
        return loaded;
    if (!has_device())
        return rd_because(why, "no RDMA device"), NULL;
    if (!carrier_path(path))
        return rd_because(why, "where these commands are is not known: %s", strerror(errno)), NULL;
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library)
        return rd_because(why, "%s", dlerror()), NULL;
    *(void **)&api = dlsym(library, BW_RDMA_SYMBOL);
    loaded = api ? api(BW_RDMA_API_VERSION, &error) : NULL;
    (void)dlclose(library);
    if (!loaded)
        (void)rd_because(why, "%s", error.step ? error.step : "no carrier in its file");
    return loaded;
}

typedef int (*name_fn)(int, struct sockaddr *, socklen_t *);

/* One end's address, as the connection manager wants it. */
static bool address_of(int socket, name_fn name, bw_rdma_address_t *address_p)
{
    union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
    } is = {.any.sa_family = AF_UNSPEC};
    socklen_t len = sizeof is;

    *address_p = (bw_rdma_address_t){0};
    if (name(socket, &is.any, &len) < 0)
        return false;
    if (is.any.sa_family == AF_INET) {
        address_p->family = 4;
        memcpy(address_p->ip, &is.four.sin_addr, 4);
    } else if (is.any.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&is.six.sin6_addr)) {
        address_p->family = 4;
        memcpy(address_p->ip, is.six.sin6_addr.s6_addr + 12, 4);
    } else if (is.any.sa_family == AF_INET6) {
        address_p->family = 6;
        memcpy(address_p->ip, &is.six.sin6_addr, 16);
        address_p->scope = is.six.sin6_scope_id;
    }
    return address_p->family != 0;
}

/* Waits until the connection is in this state. */
static bool reach(rd_rdma_t *rdma, bw_rdma_state_t state, int stop, int64_t deadline, rd_why_t *why)
{
    for (;;) {
        rdma->api->look(rdma->connection, &rdma->report);
        if (rdma->report.state == state)
            return true;
        if (rdma->report.state == BW_RDMA_FAILED)
            return rd_because(why, "%.*s", (int)sizeof rdma->report.text, rdma->report.text);
        switch (rd_wait(rdma->api->fd(rdma->connection), POLLIN, stop, deadline)) {
        case RD_READY:
            break;
        case RD_STOPPED:
            return rd_because_of(why, RD_CAUSE_STOPPED, "stopped");
        case RD_TIMEOUT:
            return rd_because(why, "not in time");
        }
    }
}

/* A connection has begun, or not. It is kept if it reaches this state. */
static bool begin(rd_rdma_t *rdma, bw_status_t status, const bw_error_t *error,
                  bw_rdma_state_t state, int stop, int64_t deadline, rd_why_t *why)
{
    if (status != BW_OK) {
        rdma->connection = NULL;
        return rd_because_link(why, "", error);
    }
    if (reach(rdma, state, stop, deadline, why))
        return true;
    rd_rdma_close(rdma);
    return false;
}

bool rd_rdma_listen(rd_rdma_t *rdma_p, int socket, int stop, int64_t deadline, rd_why_t *why)
{
    bw_rdma_address_t at;
    bw_error_t error = {0};
    bw_status_t status;

    *rdma_p = (rd_rdma_t){.api = load(why)};
    if (!rdma_p->api)
        return false;
    if (!address_of(socket, getsockname, &at))
        return rd_because(why, "no address to listen at: %s", strerror(errno));
    status = rdma_p->api->listen(&at, 0, 0, BW_RING_MAX_BYTES, &rdma_p->connection, &error);
    return begin(rdma_p, status, &error, BW_RDMA_LISTENING, stop, deadline, why);
}

bool rd_rdma_connect(rd_rdma_t *rdma_p, int socket, uint16_t port,
                     const uint8_t token[BW_RDMA_TOKEN_BYTES], uint64_t ring_bytes, int stop,
                     int64_t deadline, rd_why_t *why)
{
    bw_rdma_address_t to;
    bw_error_t error = {0};
    bw_status_t status;

    *rdma_p = (rd_rdma_t){.api = load(why)};
    if (!rdma_p->api)
        return false;
    if (!address_of(socket, getpeername, &to))
        return rd_because(why, "no address to connect to: %s", strerror(errno));
    to.port = port;
    status = rdma_p->api->connect(NULL, &to, token, ring_bytes, (uint32_t)rd_left_ms(deadline),
                                  &rdma_p->connection, &error);
    return begin(rdma_p, status, &error, BW_RDMA_LINKED, stop, deadline, why);
}

bool rd_rdma_take(rd_rdma_t *rdma, int stop, int64_t deadline, bw_link_t **link_p, rd_why_t *why)
{
    if (!reach(rdma, BW_RDMA_LINKED, stop, deadline, why))
        return false;
    *link_p = rdma->api->take(rdma->connection);
    rdma->connection = NULL;
    return true;
}

void rd_rdma_close(rd_rdma_t *rdma)
{
    if (rdma->connection)
        rdma->api->close(rdma->connection, NULL);
    rdma->connection = NULL;
}
