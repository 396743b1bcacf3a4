/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

bool rd_transfer_init(rd_transfer_t *transfer, rd_why_t *why)
{
    *transfer = (rd_transfer_t){.outcome = RD_TRANSFER_RUNS};
    transfer->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return transfer->wake >= 0 || rd_because(why, "eventfd: %s", strerror(errno));
}

void rd_transfer_free(rd_transfer_t *transfer)
{
    rd_close(&transfer->wake);
}

void rd_transfer_wake(rd_transfer_t *transfer)
{
    (void)eventfd_write(transfer->wake, 1);
}
