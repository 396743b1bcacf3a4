/* SPDX-License-Identifier: Apache-2.0 */
/* The options that rdpipe and rdcp have in common, and how both exit. */
#include <signal.h>

#include "run.h"

static void add_ssh(rd_settings_t *settings, const char *option, const char *value)
{
    rd_ssh_t *ssh = &settings->ssh;

    if (ssh->count + 2 > RD_SSH_OPTIONS_MAX)
        rd_usage(&settings->cli, "more than %d options for ssh", RD_SSH_OPTIONS_MAX / 2);
    ssh->options[ssh->count++] = option;
    ssh->options[ssh->count++] = value;
}

static void set_ports(rd_settings_t *settings, const char *text)
{
    char first[8] = "";
    size_t len = strcspn(text, "-");
    uint64_t from = 0, to = 0;

    if (len < sizeof first)
        memcpy(first, text, len);
    if (!rd_number(first, 1, 65535, &from) ||
        !rd_number(text[len] ? text + len + 1 : first, from, 65535, &to))
        rd_usage(&settings->cli, "--port %s: expected PORT or FIRST-LAST", text);
    settings->port_first = (uint16_t)from;
    settings->port_last = (uint16_t)to;
}

static void add_address(rd_settings_t *settings, const char *text)
{
    if (!strchr(text, '=') || settings->address_count == RD_ADDRESSES_MAX)
        rd_usage(&settings->cli, "--address %s: expected HOST=ADDRESS, at most %d times", text,
                 RD_ADDRESSES_MAX);
    settings->addresses[settings->address_count++] = text;
}

bool rd_settings_option(rd_settings_t *settings, int option, const char *value)
{
    switch (option) {
    case 'o':
        add_ssh(settings, "-o", value);
        return true;
    case 'F':
        add_ssh(settings, "-F", value);
        return true;
    case 'i':
        add_ssh(settings, "-i", value);
        return true;
    case 'J':
        add_ssh(settings, "-J", value);
        return true;
    case RD_OPTION_PORT:
        set_ports(settings, value);
        return true;
    case RD_OPTION_ADDRESS:
        add_address(settings, value);
        return true;
    case RD_OPTION_REMOTE_PATH:
        settings->ssh.remote_path = value;
        return true;
    default:
        return false;
    }
}

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

/* With status 127 the shell has already reported that the command does not exist. */
int rd_copy_status(const rd_cli_t *cli, int status)
{
    if (status == 126 || status == 127) {
        rd_say(cli, "no 'rdcp' on a host's PATH: install Beamway's commands, or say where they are "
                    "with --remote-path DIR");
        return RD_EXIT_OWN;
    }
    return status == 0 || status == RD_EXIT_OWN ? status : RD_EXIT_FAULT;
}
