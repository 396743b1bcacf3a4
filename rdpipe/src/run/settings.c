/* SPDX-License-Identifier: Apache-2.0 */
/* The options that rdpipe and rdcp have in common, and how both exit. */
#include <signal.h>

#include "run.h"

/* The cast in this function is valid because rd_settings_t begins with rd_cli_t. */
static void add_ssh(rd_cli_t *cli, const rd_option_t *option, const char *value)
{
    rd_ssh_t *ssh = &((rd_settings_t *)cli)->ssh;

    if (ssh->count + 2 > RD_SSH_OPTIONS_MAX)
        rd_usage(cli, "more than %d options for ssh", RD_SSH_OPTIONS_MAX / 2);
    ssh->options[ssh->count++] = option->name;
    ssh->options[ssh->count++] = value;
}

static void set_ports(rd_cli_t *cli, const rd_option_t *option, const char *text)
{
    rd_settings_t *settings = (rd_settings_t *)cli;
    char first[8] = "";
    size_t len = strcspn(text, "-");
    uint64_t from = 0, to = 0;

    if (len < sizeof first)
        memcpy(first, text, len);
    if (!rd_number(first, 1, 65535, &from) ||
        !rd_number(text[len] ? text + len + 1 : first, from, 65535, &to))
        rd_usage(cli, "--%s %s: expected PORT or FIRST-LAST", option->name, text);
    settings->port_first = (uint16_t)from;
    settings->port_last = (uint16_t)to;
}

static void add_address(rd_cli_t *cli, const rd_option_t *option, const char *text)
{
    rd_settings_t *settings = (rd_settings_t *)cli;

    if (!strchr(text, '=') || settings->address_count == RD_ADDRESSES_MAX)
        rd_usage(cli, "--%s %s: expected HOST=ADDRESS, at most %d times", option->name, text,
                 RD_ADDRESSES_MAX);
    settings->addresses[settings->address_count++] = text;
}

const rd_option_t rd_settings_options[] = {
    {RD_OPTION_RATE("limits each hop, in bytes per second, 1K to 1024G (no limit)")},
    {RD_OPTION_CARRIER("shm, rdma, tcp, or auto (the best that each hop has)")},
    {RD_OPTION_BLOCK},
    {RD_OPTION_NO_CHECKSUM},
    {RD_OPTION_ENCRYPT("TLS 1.3 on hops between hosts")},
    {RD_OPTION_ZSTD},
    {RD_OPTION_STREAMS("TCP connections of a hop over tcp, 1 to 64 (auto)")},
    {RD_OPTION_CONGESTION},
    {"port", 0, "FIRST[-LAST]",
     "ports that hops listen on (any; closed when all streams are connected)", .take = set_ports},
    {"address", 0, "HOST=ADDR", "hops to HOST use this address of it (HOST empty: this host)",
     .take = add_address},
    {"remote-path", 0, "DIR", "directory of the commands on the hosts", .set = RD_SET_TEXT,
     .at = offsetof(rd_settings_t, ssh.remote_path)},
    {"-o", 'o', "OPTION", "is passed to ssh; RDPIPE_SSH names another ssh", .take = add_ssh},
    {"-F", 'F', "FILE", "is passed to ssh: its configuration", .take = add_ssh},
    {"-i", 'i', "FILE", "is passed to ssh: a private key", .take = add_ssh},
    {"-J", 'J', "HOST", "is passed to ssh: a host on the way", .take = add_ssh},
    {.name = NULL}};

int rd_end_by(int sig)
{
    sigset_t set;

    (void)signal(sig, SIG_DFL);
    (void)sigemptyset(&set);
    (void)sigaddset(&set, sig);
    (void)raise(sig);
    (void)sigprocmask(SIG_UNBLOCK, &set, NULL);
    return 128 + sig;
}

/* A shell exits with 126 or 127 if it cannot run a command, in this case rdcp. */
int rd_copy_status(const rd_cli_t *cli, int status)
{
    if (status == 126 || status == 127) {
        rd_say(cli, "no 'rdcp' on a host's PATH: install Beamway's commands, or say where they are "
                    "with --remote-path DIR");
        return RD_EXIT_OWN;
    }
    return status == 0 || status == RD_EXIT_OWN ? status : RD_EXIT_FAULT;
}
