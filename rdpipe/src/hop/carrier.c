/* SPDX-License-Identifier: Apache-2.0 */
#include "carrier.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "carriers.h"
#include "rdma/rdma.h"
#include "socket.h"
#include "tcp/tcp.h"

#define DEVICES "/sys/class/infiniband"
#define CARRIER "lib/rdpipe/beamway_rdma.so"

/* Looks in /sys for a device, because that is cheaper than loading the carrier to find out. */
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

/* The carrier of PREFIX/bin/rdpipe is in PREFIX/lib. */
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

bool rd_carrier_has_rdma(void)
{
    char path[PATH_MAX];

    return carrier_path(path) && access(path, R_OK) == 0;
}

static const bw_carrier_t *load(rd_why_t *why)
{
    static const bw_carrier_t *loaded;
    char path[PATH_MAX], text[BW_TEXT_BYTES];

    if (loaded)
        return loaded;
    if (!has_device())
        return rd_because(why, "no RDMA device"), NULL;
    if (!carrier_path(path))
        return rd_because(why, "cannot find the directory of these commands: %s", strerror(errno)),
               NULL;
    loaded = bw_carrier_load(path, text);
    if (!loaded)
        (void)rd_because(why, "%s", text);
    return loaded;
}

typedef int (*name_fn)(int, struct sockaddr *, socklen_t *);

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

/* ---- differences between the carriers ---- */

#define PLACE_MAX 256

/* A place is the address to listen at or to connect to, in the carrier's own format. The functions
 * return its length, or 0 if it is not known. */
typedef struct {
    uint32_t carrier;
    const char *name;
    size_t (*listen_at)(int socket, uint8_t place[PLACE_MAX]);
    size_t (*connect_to)(int socket, const uint8_t *address, size_t len, uint8_t place[PLACE_MAX]);
    bool may_be_nowhere; /* a place of length 0 is valid */
} words_t;

static size_t nowhere(int socket, uint8_t place[PLACE_MAX])
{
    (void)socket, (void)place;
    return 0;
}

static size_t as_told(int socket, const uint8_t *address, size_t len, uint8_t place[PLACE_MAX])
{
    (void)socket;
    if (len > PLACE_MAX)
        return 0;
    memcpy(place, address, len);
    return len;
}

/* Writes our address on this connection, without a particular port. */
static size_t rdma_here(int socket, uint8_t place[PLACE_MAX])
{
    bw_rdma_address_t at;

    if (!address_of(socket, getsockname, &at))
        return 0;
    bw_put(bw_rdma_put_address(place, &at), 0, 4);
    return BW_RDMA_LISTEN_BYTES;
}

static size_t rdma_there(int socket, const uint8_t *port, size_t len, uint8_t place[PLACE_MAX])
{
    bw_rdma_address_t to;

    if (len != BW_RDMA_PORT_BYTES || !address_of(socket, getpeername, &to))
        return 0;
    to.port = (uint16_t)bw_number(port, BW_RDMA_PORT_BYTES);
    bw_rdma_put_address(bw_rdma_put_address(place, &(bw_rdma_address_t){0}), &to);
    return BW_RDMA_CONNECT_BYTES;
}

static size_t itself(int socket, const uint8_t *address, size_t len, uint8_t place[PLACE_MAX])
{
    (void)address, (void)len;
    bw_put(place, (uint64_t)socket, BW_TCP_PLACE_BYTES);
    return BW_TCP_PLACE_BYTES;
}

static const words_t words[] = {
    {RD_CARRIER_SHM, "shm", nowhere, as_told, true},
    {RD_CARRIER_RDMA, "rdma", rdma_here, rdma_there, false},
    {RD_CARRIER_TCP, "tcp", NULL, itself, false},
};

const uint32_t rd_carriers_tried[RD_CARRIERS_TRIED] = {RD_CARRIER_SHM, RD_CARRIER_RDMA};

static const words_t *words_of(uint32_t carrier)
{
    const words_t *of = words;

    while (of->carrier != carrier)
        of++;
    return of;
}

static const bw_carrier_t *table_of(const words_t *of, rd_why_t *why)
{
    const bw_carrier_t *built_in = bw_carrier_named(of->name);

    return built_in ? built_in : load(why);
}

/* ---- common parts of the carriers ---- */

/* Waits until the link reaches the state. With an immediate carrier (BW_CAP_IMMEDIATE) there is
 * nothing to wait for: the link has already reached the state, or never will. */
static bool reach(rd_attempt_t *attempt, bw_state_t state, int stop, int64_t deadline,
                  rd_why_t *why)
{
    const bw_carrier_t *table = attempt->link->ops;
    bw_report_t *report = &attempt->report;

    for (;;) {
        table->step(attempt->link, report);
        if (report->state == state)
            return true;
        if (report->state == BW_FAILED)
            return rd_because(why, "%.*s", (int)sizeof report->text, report->text);
        if (table->caps & BW_CAP_IMMEDIATE)
            return rd_because(why, "%s: %.*s", table->kind, (int)sizeof report->text, report->text);
        switch (rd_wait(table->fd(attempt->link), POLLIN, stop, deadline)) {
        case RD_READY:
            break;
        case RD_STOPPED:
            return rd_because_of(why, RD_CAUSE_STOPPED, "stopped");
        case RD_TIMEOUT:
            return rd_because(why, "timed out");
        }
    }
}

bool rd_carrier_listen(uint32_t carrier, int socket, int stop, int64_t deadline,
                       rd_attempt_t *attempt_p, rd_why_t *why)
{
    const words_t *of = words_of(carrier);
    const bw_carrier_t *table = table_of(of, why);
    uint8_t place[PLACE_MAX];
    bw_order_t order = {.at = place, .ring_bytes = BW_RING_MAX_BYTES};
    bw_error_t error = {0};

    *attempt_p = (rd_attempt_t){0};
    if (!table)
        return false;
    order.at_len = of->listen_at(socket, place);
    if (order.at_len == 0 && !of->may_be_nowhere)
        return rd_because(why, "no address to listen on: %s", strerror(errno));
    if (table->listen(&order, &attempt_p->link, &error) != BW_OK)
        return rd_because_link(why, "", &error);
    if (reach(attempt_p, BW_LISTENING, stop, deadline, why))
        return true;
    rd_carrier_end(attempt_p);
    return false;
}

bool rd_carrier_connect(uint32_t carrier, int socket, const uint8_t *address, size_t address_len,
                        const uint8_t token[BW_TOKEN_BYTES], uint64_t ring_bytes, int stop,
                        int64_t deadline, bw_link_t **link_p, char device[BW_DEVICE_BYTES],
                        rd_why_t *why)
{
    const words_t *of = words_of(carrier);
    const bw_carrier_t *table = table_of(of, why);
    uint8_t place[PLACE_MAX];
    bw_order_t order = {
        .at = place, .ring_bytes = ring_bytes, .timeout_ms = (uint32_t)rd_left_ms(deadline)};
    rd_attempt_t attempt = {0};
    bw_error_t error = {0};

    if (!table)
        return false;
    order.at_len = of->connect_to(socket, address, address_len, place);
    if (order.at_len == 0)
        return rd_because(why, "no address to connect to: %s", strerror(errno));
    memcpy(order.token, token, sizeof order.token);
    if (table->connect(&order, &attempt.link, &error) != BW_OK)
        return error.sys_errno == ECONNREFUSED ? rd_because(why, "another host")
                                               : rd_because_link(why, "", &error);
    if (!rd_carrier_accept(&attempt, stop, deadline, link_p, why)) {
        rd_carrier_end(&attempt);
        return false;
    }
    memcpy(device, attempt.report.device, BW_DEVICE_BYTES);
    return true;
}

bool rd_carrier_accept(rd_attempt_t *attempt, int stop, int64_t deadline, bw_link_t **link_p,
                       rd_why_t *why)
{
    if (!reach(attempt, BW_LINKED, stop, deadline, why))
        return false;
    *link_p = attempt->link;
    attempt->link = NULL;
    return true;
}

void rd_carrier_end(rd_attempt_t *attempt)
{
    if (attempt->link)
        attempt->link->ops->close(attempt->link, NULL);
    attempt->link = NULL;
}
