/* SPDX-License-Identifier: Apache-2.0
 *
 * A C node made with OTP's own library. The tests use it to check that Beamway's nodes interoperate
 * with C nodes.
 *
 * usage: compat_cnode NAME COOKIE accept           waits for one node to connect
 *        compat_cnode NAME COOKIE connect NODE     connects to NODE and registers with
 *                                                  compat_listener there
 *
 * It publishes itself in epmd, prints "ready" and its full name, and serves one connection: {Pid,
 * Term}, sent to any registered name, is answered with {c_node, Term}. It exits when the connection
 * is closed, or at the end of its standard input.
 */
#include <ei.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TIMEOUT_MS = 20000 };

static void fail(const char *what)
{
    printf("failed: %s, erl_errno %d\n", what, erl_errno);
    exit(1);
}

/* The test that started this program may exit first, and then this program must exit as well. */
static void *exit_with_stdin(void *unused)
{
    char byte;
    (void)unused;
    while (read(STDIN_FILENO, &byte, 1) > 0) {
    }
    _exit(0);
}

/* Answers {Pid, Term}; ignores anything else. */
static void answer(int fd, const ei_x_buff *request)
{
    erlang_pid sender;
    ei_x_buff reply;
    int index = 0;
    int version;
    int arity;
    int start;

    if (ei_decode_version(request->buff, &index, &version) != 0 ||
        ei_decode_tuple_header(request->buff, &index, &arity) != 0 || arity != 2 ||
        ei_decode_pid(request->buff, &index, &sender) != 0)
        return;
    start = index;
    if (ei_skip_term(request->buff, &index) != 0)
        fail("skip_term");
    ei_x_new_with_version(&reply);
    ei_x_encode_tuple_header(&reply, 2);
    ei_x_encode_atom(&reply, "c_node");
    ei_x_append_buf(&reply, request->buff + start, index - start);
    if (ei_send(fd, &sender, reply.buff, reply.index) != 0)
        fail("send");
    ei_x_free(&reply);
}

static void serve(int fd)
{
    ei_x_buff request;
    erlang_msg message;

    ei_x_new(&request);
    for (;;) {
        request.index = 0;
        int got = ei_xreceive_msg(fd, &message, &request);
        if (got == ERL_ERROR)
            break;
        if (got == ERL_MSG && (message.msgtype == ERL_SEND || message.msgtype == ERL_REG_SEND))
            answer(fd, &request);
    }
    ei_x_free(&request);
    printf("disconnected\n");
}

/* Sends the listener our pid, and asks the node for its own name with a remote procedure call. */
static void introduce(ei_cnode *node, int fd, const char *peer)
{
    ei_x_buff hello;
    ei_x_buff result;
    char name[MAXATOMLEN + 1];
    int index = 0;

    ei_x_new_with_version(&hello);
    ei_x_encode_tuple_header(&hello, 2);
    ei_x_encode_atom(&hello, "hello_from");
    ei_x_encode_pid(&hello, ei_self(node));
    if (ei_reg_send(node, fd, "compat_listener", hello.buff, hello.index) != 0)
        fail("reg_send");
    ei_x_free(&hello);

    ei_x_new(&hello);
    ei_x_encode_empty_list(&hello);
    ei_x_new(&result);
    if (ei_rpc(node, fd, "erlang", "node", hello.buff, hello.index, &result) != 0)
        fail("rpc");
    if (ei_decode_atom(result.buff, &index, name) != 0 || strcmp(name, peer) != 0)
        fail("the node says that it is another");
    ei_x_free(&hello);
    ei_x_free(&result);
    printf("called\n");
}

static int accept_one(ei_cnode *node, int listener)
{
    ErlConnect caller;
    int fd = ei_accept_tmo(node, listener, &caller, TIMEOUT_MS);

    if (fd < 0)
        fail("accept");
    printf("accepted %s\n", caller.nodename);
    return fd;
}

int main(int argc, char **argv)
{
    ei_cnode node;
    pthread_t watcher;
    int port = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 4 || (strcmp(argv[3], "accept") != 0 && argc < 5)) {
        fprintf(stderr, "usage: %s NAME COOKIE accept | connect NODE\n", argv[0]);
        return 2;
    }
    if (pthread_create(&watcher, NULL, exit_with_stdin, NULL) != 0)
        fail("pthread_create");
    if (ei_init() != 0 || ei_connect_init(&node, argv[1], argv[2], 1) < 0)
        fail("connect_init");
    int listener = ei_listen(&node, &port, 5);
    if (listener < 0)
        fail("listen");
    if (ei_publish(&node, port) < 0)
        fail("publish");
    printf("ready %s\n", ei_thisnodename(&node));

    int fd;
    if (strcmp(argv[3], "accept") == 0) {
        fd = accept_one(&node, listener);
    } else {
        fd = ei_connect_tmo(&node, argv[4], TIMEOUT_MS);
        if (fd < 0)
            fail("connect");
        introduce(&node, fd, argv[4]);
    }
    serve(fd);
    return 0;
}
