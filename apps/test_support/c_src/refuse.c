/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refuse NAME COMMAND...: executes the command in a process for which one system call fails, as on
 * a kernel that lacks this call (ENOSYS) or in a container that forbids it (EPERM). This does not
 * need any privileges, because a process may always restrict itself (PR_SET_NO_NEW_PRIVS).
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/filter.h>
#include <linux/seccomp.h>

static const struct {
    const char *name;
    unsigned int number;
    unsigned int error;
} calls[] = {
    {"memfd_create", SYS_memfd_create, ENOSYS},
    {"eventfd2", SYS_eventfd2, EPERM},
};

static int refuse(unsigned int number, unsigned int error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 2 && i < sizeof calls / sizeof calls[0]; i++) {
        if (strcmp(argv[1], calls[i].name) != 0)
            continue;
        if (refuse(calls[i].number, calls[i].error) < 0) {
            perror("refuse: seccomp");
            return 1;
        }
        execvp(argv[2], argv + 2);
        perror(argv[2]);
        return 1;
    }
    fprintf(stderr, "usage: refuse memfd_create|eventfd2 COMMAND...\n");
    return 2;
}
