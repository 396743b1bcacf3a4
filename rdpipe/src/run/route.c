/* SPDX-License-Identifier: Apache-2.0 */
#include "route.h"

/* Returns field `n` of SSH_CONNECTION, without the prefix of an IPv4 address mapped to IPv6. */
static bool word_of(const char *ssh, unsigned n, char address_p[RD_ADDRESS_BYTES])
{
    size_t len;

    while (n-- > 0) {
        ssh += strcspn(ssh, " ");
        ssh += strspn(ssh, " ");
    }
    if (strncmp(ssh, "::ffff:", 7) == 0 && strchr(ssh, '.'))
        ssh += 7;
    len = strcspn(ssh, " ");
    if (len == 0 || len >= RD_ADDRESS_BYTES)
        return false;
    memcpy(address_p, ssh, len);
    address_p[len] = 0;
    return true;
}

static bool is_loopback(const char *address)
{
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0;
}

bool rd_route(const rd_place_t *producer, const rd_place_t *consumer,
              char address_p[RD_ADDRESS_BYTES], rd_why_t *why)
{
    char of_producer[RD_ADDRESS_BYTES];

    if (consumer->forced) {
        if (strlen(consumer->forced) >= RD_ADDRESS_BYTES)
            return rd_because(why, "--address %.80s is too long", consumer->forced);
        memcpy(address_p, consumer->forced, strlen(consumer->forced) + 1);
        return true;
    }
    if (consumer->is_here && producer->is_here) {
        memcpy(address_p, "127.0.0.1", sizeof "127.0.0.1");
        return true;
    }
    if (consumer->is_here && word_of(producer->ssh, 0, address_p))
        return true;
    if (!consumer->is_here && word_of(consumer->ssh, 2, address_p)) {
        /* A host that was reached over loopback is the local one, and others see it at a different
         * address. */
        if (is_loopback(address_p) && !producer->is_here &&
            word_of(producer->ssh, 2, of_producer) && !is_loopback(of_producer))
            return word_of(producer->ssh, 0, address_p);
        return true;
    }
    return rd_because(why,
                      "cannot determine at which address '%s' can be reached from '%s' (no "
                      "SSH_CONNECTION there): use --address %s=ADDRESS",
                      *consumer->host ? consumer->host : "this host",
                      *producer->host ? producer->host : "this host", consumer->host);
}
