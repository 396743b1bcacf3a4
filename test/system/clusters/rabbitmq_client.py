#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Publishes or consumes messages with pika, for `make test-rabbitmq`, and records which ones were confirmed or delivered.

usage: rabbitmq_client.py publish QUEUE NAME FILE PORT...
       rabbitmq_client.py consume QUEUE FILE PORT...
Both run until standard input is closed, and switch to the next port when a connection fails.
publish: publishes messages with the ids NAME-1, NAME-2, … one after the other, and writes a line `NAME-N` to FILE when a message is confirmed.
A message that was not confirmed is published again, which may cause duplicates but never a loss.
consume: for each delivery, writes a line `NAME-N` or `corrupt NAME-N` to FILE, and then acknowledges it.
A body consists of the id, a space, and bytes derived from the id: 100 of them, or 200,000 in every 50th message and if NAME starts with "large".
Exit code: 0; 2 for a usage error.
"""
import hashlib
import itertools
import os
import sys
import threading
import time

import pika
from pika.exceptions import AMQPError, ChannelError

LARGE_EVERY = 50
SMALL_BYTES = 100
LARGE_BYTES = 200000
RETRY_S = 0.2
# The test does not measure speed, and the machine is shared with other tests.
PAUSE_S = 0.002

ended = threading.Event()


def body_of(identity):
    number = int(identity.rsplit("-", 1)[1])
    is_large = number % LARGE_EVERY == 0 or identity.startswith("large")
    wanted = LARGE_BYTES if is_large else SMALL_BYTES
    seed = hashlib.sha256(identity.encode()).digest()
    return identity.encode() + b" " + (seed * (wanted // len(seed) + 1))[:wanted]


def connect(port):
    return pika.BlockingConnection(
        pika.ConnectionParameters(host="127.0.0.1", port=port, heartbeat=10, blocked_connection_timeout=60)
    )


def each_port(ports, use):
    """Calls use(channel) on one port after another, until standard input is closed."""
    for port in itertools.cycle(ports):
        if ended.is_set():
            return
        try:
            connection = connect(port)
        except (AMQPError, OSError):
            time.sleep(RETRY_S)
            continue
        try:
            use(connection.channel())
        except (AMQPError, ChannelError, OSError) as reason:
            print("%s: %r" % (port, reason), file=sys.stderr, flush=True)
            time.sleep(RETRY_S)
        finally:
            if connection.is_open:
                connection.close()


def publish(queue, name, out, ports):
    numbers = itertools.count(1)
    state = {"next": next(numbers)}

    def use(channel):
        channel.confirm_delivery()
        while not ended.is_set():
            identity = "%s-%d" % (name, state["next"])
            # Returns when the broker has confirmed the message, and raises if it has rejected it or could not route it.
            channel.basic_publish(
                "", queue, body_of(identity), pika.BasicProperties(delivery_mode=2), mandatory=True
            )
            out.write(identity + "\n")
            out.flush()
            state["next"] = next(numbers)
            time.sleep(PAUSE_S)

    each_port(ports, use)


def consume(queue, out, ports):
    def use(channel):
        channel.basic_qos(prefetch_count=100)
        for method, _, body in channel.consume(queue, inactivity_timeout=0.2):
            if method is not None:
                identity = body.split(b" ", 1)[0].decode()
                intact = body == body_of(identity)
                out.write(("" if intact else "corrupt ") + identity + "\n")
                out.flush()
                channel.basic_ack(method.delivery_tag)
            if ended.is_set():
                channel.cancel()
                return

    each_port(ports, use)


def watch_input():
    while os.read(0, 4096):
        pass
    ended.set()


def main(words):
    if len(words) >= 5 and words[0] == "publish":
        run = lambda out: publish(words[1], words[2], out, [int(p) for p in words[4:]])
        file = words[3]
    elif len(words) >= 4 and words[0] == "consume":
        run = lambda out: consume(words[1], out, [int(p) for p in words[3:]])
        file = words[2]
    else:
        print(__doc__, file=sys.stderr)
        return 2
    threading.Thread(target=watch_input, daemon=True).start()
    with open(file, "w", encoding="ascii") as out:
        run(out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
