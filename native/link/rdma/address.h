/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_RDMA_ADDRESS_H
#define BW_RDMA_ADDRESS_H

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include <rdma/rdma_cma.h>

#include "rdma.h"

/* Converts addresses to socket addresses and to readable text. */

static inline void bw_rdma_sockaddr(const bw_rdma_address_t *address, uint16_t port,
                                    struct sockaddr_storage *at_p)
{
    memset(at_p, 0, sizeof *at_p);
    if (address->family == 4) {
        struct sockaddr_in *in = (struct sockaddr_in *)at_p;

        in->sin_family = AF_INET;
        in->sin_port = htons(port);
        memcpy(&in->sin_addr, address->ip, 4);
    } else {
        struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)at_p;

        in6->sin6_family = AF_INET6;
        in6->sin6_port = htons(port);
        in6->sin6_scope_id = address->scope;
        memcpy(&in6->sin6_addr, address->ip, 16);
    }
}

#define BW_RDMA_ADDRESS_TEXT INET6_ADDRSTRLEN

static inline void bw_rdma_address_text(const bw_rdma_address_t *address,
                                        char text[BW_RDMA_ADDRESS_TEXT])
{
    if (!inet_ntop(address->family == 4 ? AF_INET : AF_INET6, address->ip, text,
                   BW_RDMA_ADDRESS_TEXT))
        text[0] = 0;
}

/* Reports which device an id is bound to. A listener need not be bound to a particular device. */
static inline void bw_rdma_describe(const struct rdma_cm_id *id, bw_report_t *report)
{
    snprintf(report->device, sizeof report->device, "%s",
             id->verbs ? ibv_get_device_name(id->verbs->device) : "");
}

#endif
