/* SPDX-License-Identifier: Apache-2.0 */
/* A driver of the same name that answers every command with version 999. To a node it looks like a
 * library that was built from a different release than the Erlang code. */
#include <string.h>

#include <erl_driver.h>

static ErlDrvData old_start(ErlDrvPort port, char *command)
{
    (void)command;
    set_port_control_flags(port, PORT_CONTROL_FLAG_BINARY);
    return (ErlDrvData)port;
}

static ErlDrvSSizeT old_control(ErlDrvData data, unsigned int command, char *in, ErlDrvSizeT in_len,
                                char **out_p, ErlDrvSizeT out_len)
{
    static const char answer[] = {0, 0, 0, 3, (char)231};
    ErlDrvBinary *reply = driver_alloc_binary(sizeof answer);

    (void)data, (void)command, (void)in, (void)in_len, (void)out_len;
    memcpy(reply->orig_bytes, answer, sizeof answer);
    *out_p = (char *)reply;
    return sizeof answer;
}

static ErlDrvEntry entry = {
    .start = old_start,
    .driver_name = "beamway_drv",
    .control = old_control,
    .extended_marker = ERL_DRV_EXTENDED_MARKER,
    .major_version = ERL_DRV_EXTENDED_MAJOR_VERSION,
    .minor_version = ERL_DRV_EXTENDED_MINOR_VERSION,
    .driver_flags = ERL_DRV_FLAG_SOFT_BUSY | ERL_DRV_FLAG_USE_PORT_LOCKING,
};

DRIVER_INIT(beamway_drv)
{
    return &entry;
}
