/* SPDX-License-Identifier: Apache-2.0 */
#include "inside.h"

#include <fcntl.h>
#include <poll.h>

#define DESCRIPTORS 64

bool vm_deselects_later;

static struct {
    struct {
        int fd;
        ErlDrvPort port; /* NULL if free */
        bool is_read, is_write;
    } selected[DESCRIPTORS];
    int left[DESCRIPTORS], left_count; /* descriptors for which stop_select is due */
    int pollers;
} all;

bool vm_is_selected_by(ErlDrvPort port)
{
    bool found = false;

    vm_lock();
    for (int i = 0; i < DESCRIPTORS; i++)
        found = found || all.selected[i].port == port;
    vm_unlock();
    return found;
}

/* If no thread polls, stop_select is called immediately. */
int driver_select(ErlDrvPort port, ErlDrvEvent event, int mode, int on)
{
    int fd = (int)(intptr_t)event, slot = -1;
    bool is_told = false, has_callback = (mode & ERL_DRV_USE_NO_CALLBACK) == ERL_DRV_USE;

    vm_lock();
    for (int i = 0; i < DESCRIPTORS; i++)
        if (all.selected[i].port && all.selected[i].fd == fd)
            slot = i;
    if (slot >= 0 && all.selected[slot].port != port)
        broken("a descriptor is polled by two ports");
    if (on && fcntl(fd, F_GETFD) < 0)
        broken("a closed descriptor is to be polled");
    for (int i = 0; slot < 0 && on && i < DESCRIPTORS; i++)
        if (!all.selected[i].port) {
            slot = i;
            all.selected[i].is_read = all.selected[i].is_write = false;
        }
    if (slot >= 0 && on) {
        all.selected[slot].fd = fd;
        all.selected[slot].port = port;
        all.selected[slot].is_read = all.selected[slot].is_read || mode & ERL_DRV_READ;
        all.selected[slot].is_write = all.selected[slot].is_write || mode & ERL_DRV_WRITE;
    } else if (slot >= 0) {
        all.selected[slot].is_read = all.selected[slot].is_read && !(mode & ERL_DRV_READ);
        all.selected[slot].is_write = all.selected[slot].is_write && !(mode & ERL_DRV_WRITE);
        if (mode & ERL_DRV_USE)
            all.selected[slot].port = NULL;
    }
    if (!on && has_callback && (all.pollers > 0 || vm_deselects_later))
        all.left[all.left_count++] = fd;
    else
        is_told = !on && has_callback;
    vm_unlock();
    if (is_told)
        vm_entry->stop_select(event, NULL);
    return slot < 0 && on ? -1 : 0;
}

void vm_tell_of_the_left(void)
{
    int fd = -1;

    do {
        vm_lock();
        fd = all.left_count > 0 && all.pollers == 0 ? all.left[--all.left_count] : -1;
        vm_unlock();
        if (fd >= 0)
            vm_entry->stop_select((ErlDrvEvent)(intptr_t)fd, NULL);
    } while (fd >= 0);
}

/* Returns whether the port still polls the descriptor. Other functions have run since poll
 * returned, so this may have changed. */
static bool is_polled_by(int fd, ErlDrvPort port, bool for_room)
{
    bool found = false;

    vm_lock();
    for (int i = 0; i < DESCRIPTORS; i++)
        found = found || (all.selected[i].port == port && all.selected[i].fd == fd &&
                          (for_room ? all.selected[i].is_write : all.selected[i].is_read));
    vm_unlock();
    return found;
}

/* Called with the port's lock held. */
static bool tell(ErlDrvPort port, const struct pollfd *poller)
{
    ErlDrvEvent event = (ErlDrvEvent)(intptr_t)poller->fd;
    const short ends = POLLHUP | POLLERR;
    bool found = false;

    if (poller->revents & (POLLIN | ends) && is_polled_by(poller->fd, port, false)) {
        found = true;
        vm_entry->ready_input(port->data, event);
    }
    if (port->is_open && poller->revents & (POLLOUT | ends) &&
        is_polled_by(poller->fd, port, true)) {
        found = true;
        vm_entry->ready_output(port->data, event);
    }
    return found;
}

bool vm_run_descriptors(int ms)
{
    struct pollfd pollers[DESCRIPTORS];
    ErlDrvPort ports[DESCRIPTORS];
    nfds_t count = 0;
    bool found = false;

    vm_lock();
    for (int i = 0; i < DESCRIPTORS; i++)
        if (all.selected[i].port && (all.selected[i].is_read || all.selected[i].is_write)) {
            ports[count] = all.selected[i].port;
            pollers[count++] =
                (struct pollfd){.fd = all.selected[i].fd,
                                .events = (short)((all.selected[i].is_read ? POLLIN : 0) |
                                                  (all.selected[i].is_write ? POLLOUT : 0))};
        }
    all.pollers++;
    vm_unlock();
    (void)poll(pollers, count, ms);
    vm_lock();
    all.pollers--;
    vm_unlock();
    for (nfds_t i = 0; i < count; i++) {
        if (pollers[i].revents & POLLNVAL)
            broken("a descriptor was closed while it was polled");
        if (pollers[i].revents == 0 || !vm_enter(ports[i]))
            continue;
        found = tell(ports[i], &pollers[i]) || found;
        vm_leave(ports[i]);
    }
    return found;
}

void vm_count_descriptors(int *selected_p, int *left_p)
{
    *selected_p = 0;
    for (int i = 0; i < DESCRIPTORS; i++)
        *selected_p += all.selected[i].port != NULL;
    *left_p = all.left_count;
}
