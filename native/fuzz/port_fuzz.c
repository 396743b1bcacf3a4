/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes everything that the owner of a port can do, at any time, on two ports that are connected
 * or not: control commands of any kind with any bytes, messages, and closing. No command names a
 * descriptor or file of this process.
 *
 * Input: a byte for how the ports begin (carrier, then nothing, joined or active), then repeatedly
 * a byte of choices. Its lowest bit is the port; the next two: 0: a command, with the next bytes as
 * its number, its length and its bytes; 1: a message, whose length is in the next two bytes; 2: the
 * VM runs one round; 3: the upper bits choose to close the port, to skip a second, or to call
 * stop_select late. This checks what test/vm checks, and that nothing is left when both ports are
 * closed.
 */
#pragma GCC diagnostic ignored "-Wunused-function"
#include "../test/driver/ports.h"
#include "input.h"

static void give_command(reader_t *reader, ErlDrvPort port)
{
    unsigned command = next_byte(reader) % 48;
    size_t len = next_byte(reader) % 64;
    uint8_t bytes[64] = {0};

    for (size_t i = 0; i < len; i++)
        bytes[i] = next_byte(reader);
    if (!names_something(command, bytes, len))
        (void)vm_control(port, command, bytes, len);
}

static void send_message(reader_t *reader, ErlDrvPort port)
{
    static uint8_t bytes[1 << 16];
    size_t len = number(reader, 2);

    if (!vm_is_busy(port))
        vm_send(port, bytes, len);
}

static void choose(reader_t *reader, ErlDrvPort port, uint8_t choice)
{
    switch (choice >> 1 & 3) {
    case 0:
        give_command(reader, port);
        break;
    case 1:
        send_message(reader, port);
        break;
    case 2:
        for (int i = 0; i <= choice >> 5; i++)
            (void)vm_run(0);
        break;
    default:
        if ((choice >> 3) % 4 == 0)
            vm_close(port);
        else if ((choice >> 3) % 4 == 1)
            vm_skip(1000);
        else
            vm_deselects_later = choice >> 7;
    }
    while (vm_heard(port))
        ;
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
    reader_t reader = {input, size};
    ErlDrvPort ports[2] = {vm_open(), vm_open()};
    uint8_t begin = next_byte(&reader);

    vm_deselects_later = false;
    run_over(bw_carrier_named(begin & 1 ? "tcp" : "shm"));
    if (begin & 6)
        must(join_ports(ports[0], ports[1]));
    for (int i = 0; i < 2 && begin & 4; i++)
        must(port_activates(ports[i], 0));
    while (reader.left > 0) {
        uint8_t choice = next_byte(&reader);

        choose(&reader, ports[choice & 1], choice);
    }
    for (int i = 0; i < 2; i++)
        vm_close(ports[i]);
    for (int rounds = 0; rounds < 100000 && !(vm_reason(ports[0]) && vm_reason(ports[1])); rounds++)
        if (!vm_run(0))
            vm_skip(1000);
    for (int i = 0; i < 2; i++)
        vm_forget(ports[i]);
    must(vm_is_clean());
    return 0;
}
