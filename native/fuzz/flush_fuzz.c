/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the whole driver over a socket, as to any Erlang node, while the VM sends and ticks, the
 * keeper runs or does not, the system accepts any amount, the peer reads at any time, and the port
 * closes. What was sent must arrive once and in order. If the peer has been reading for a
 * millisecond, nothing may be queued. What was sent before the port closed must also arrive, if the
 * peer continues to read. Only a connection that fails may lose anything, and the port must then
 * end with a reason.
 *
 * Input: steps, each of which is a byte that selects it, followed by its arguments. A step that
 * determines the result of a system call applies only to the next call.
 */
#include "../test/driver/line.h"
#include "input.h"

#define SENT_MAX ((size_t)2 << 20)

static int next_answer;
static bool has_failed;

static int answer(void)
{
    int now = next_answer;

    next_answer = KERNEL_TAKES_ALL;
    has_failed |= now < 0 && now != -EAGAIN && now != -EINTR;
    return now;
}

static void choose_answer(uint8_t choice)
{
    static const int answers[] = {-EAGAIN, -EINTR, 1, 3, 4095, -EAGAIN, 100, -EPIPE, 20000};

    /* Only one in many fails, because otherwise hardly any input would run for many steps. */
    next_answer = answers[choice % 8 + (choice == 247)];
    if (choice < 240 && next_answer == -EPIPE)
        next_answer = 30000;
}

static void send_one(uint32_t len)
{
    /* The VM holds senders back, but frames already in transit still arrive. */
    if (len == 0)
        line_ticks();
    else if (port_queued(line.port) < 200000 && line.sent_bytes < SENT_MAX)
        line_sends(len);
}

/* If the peer reads, everything has arrived after a millisecond, and senders may continue. */
static void settle(void)
{
    next_answer = KERNEL_TAKES_ALL;
    line_settles(2);
    must(!line.is_wrong);
    if (has_failed)
        return;
    must(line_is_settled());
    must(!vm_is_busy(line.port) && port_queued(line.port) == 0);
}

static void step(reader_t *reader)
{
    uint8_t what = next_byte(reader);

    switch (what % 8) {
    case 0:
        send_one(what / 8);
        break;
    case 1:
        send_one((uint32_t)number(reader, what / 8u % 2 + 1));
        break;
    case 2:
        send_one((uint32_t)number(reader, 3) % 400000);
        break;
    case 3:
        (void)line_is_flushed();
        break;
    case 4:
        (void)line_is_read(number(reader, 2));
        break;
    case 5:
        if (what / 8 % 4 == 0)
            line_ticks();
        else if (what / 8 % 4 == 1)
            vm_skip(1);
        else
            (void)vm_run(0);
        break;
    case 6:
        choose_answer(next_byte(reader));
        break;
    default:
        settle();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
    reader_t reader = {input, size};
    int sockets[2], buffer = 5000;

    run_over(bw_carrier_named("tcp"));
    next_answer = KERNEL_TAKES_ALL;
    has_failed = false;
    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
    for (int i = 0; i < 2; i++)
        (void)setsockopt(sockets[i], SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    must(open_line(sockets, answer));
    while (reader.left > 0 && !vm_reason(line.port))
        step(&reader);
    if (has_failed) {
        for (int round = 0; round < 100 && !vm_reason(line.port); round++)
            (void)vm_run(0);
        must(vm_reason(line.port) && strcmp(vm_reason(line.port), "connection_closed") == 0);
    } else {
        must(!vm_reason(line.port) && line_ends() && line_is_settled());
    }
    must(!line.is_wrong && line_is_clean());
    return 0;
}
