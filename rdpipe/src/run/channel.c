/* SPDX-License-Identifier: Apache-2.0 */
#include "channel.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"
#include "cli/cli.h"
#include "stream/endpoint.h"
#include "prompt.h"

#define WORDS_MAX (RD_SSH_OPTIONS_MAX + 40)
#define TEXTS_BYTES 8192

/* A command's arguments, and memory for the text of those that are composed here. */
typedef struct {
    const char *word[WORDS_MAX + 1];
    size_t count;
    char texts[TEXTS_BYTES];
    size_t used;
    bool is_full;
} words_t;

static void add(words_t *words, const char *word)
{
    if (words->count == WORDS_MAX) {
        words->is_full = true;
        return;
    }
    words->word[words->count++] = word;
    words->word[words->count] = NULL;
}

__attribute__((format(printf, 2, 3))) static void add_text(words_t *words, const char *form, ...)
{
    size_t room = sizeof words->texts - words->used;
    va_list args;
    int len;

    va_start(args, form);
    len = vsnprintf(words->texts + words->used, room, form, args);
    va_end(args);
    if (len < 0 || (size_t)len >= room) {
        words->is_full = true;
        return;
    }
    add(words, words->texts + words->used);
    words->used += (size_t)len + 1;
}

/* RDPIPE_SSH may contain options after the program's name. */
static void add_program(words_t *words)
{
    const char *program = getenv("RDPIPE_SSH");

    if (!program || !*program)
        program = "ssh";
    while (*program) {
        size_t len = strcspn(program, " ");

        if (len > 0)
            add_text(words, "%.*s", (int)len, program);
        program += len + (program[len] == ' ');
    }
}

void rd_quote(FILE *to, const char *text)
{
    (void)fputc('\'', to);
    for (; *text; text++)
        if (*text == '\'')
            (void)fputs("'\\''", to);
        else
            (void)fputc(*text, to);
    (void)fputc('\'', to);
}

/* Adds the command that the remote shell runs. `path` is its directory, or NULL. */
static void add_remote(words_t *words, const char *path)
{
    char *quoted = NULL;
    size_t bytes;
    FILE *to = path ? open_memstream(&quoted, &bytes) : NULL;

    if (to)
        rd_quote(to, path);
    words->is_full |= path && (!to || fclose(to) != 0);
    add_text(words, "%s%srdpipe --agent", path && quoted ? quoted : "", path ? "/" : "");
    free(quoted);
}

static void make_words(words_t *words, const char *host, const rd_ssh_t *ssh, rd_share_t share,
                       const char *socket)
{
    *words = (words_t){.count = 0};
    add_program(words);
    add(words, "-T");
    for (size_t i = 0; i < ssh->count; i++)
        add(words, ssh->options[i]);
    add(words, "-oServerAliveInterval=5");
    add(words, "-oServerAliveCountMax=6");
    add(words, "-oClearAllForwardings=yes");
    /* With a RemoteCommand in ~/.ssh/config, ssh would otherwise refuse our command. */
    add(words, "-oRemoteCommand=none");
    if (share != RD_SHARE_NO) {
        add(words, share == RD_SHARE_MASTER ? "-oControlMaster=yes" : "-oControlMaster=no");
        add_text(words, "-oControlPath=%s", socket);
        add(words, "-oControlPersist=no");
    }
    add(words, "--");
    add(words, host);
    add_remote(words, ssh->remote_path);
}

void rd_channel_show(FILE *to, const char *host, const rd_ssh_t *ssh)
{
    words_t words;

    make_words(&words, host, ssh, RD_SHARE_NO, "");
    for (size_t i = 0; i < words.count; i++) {
        bool is_plain = strcspn(words.word[i], " '\"\\$`*?[]&|;<>()") == strlen(words.word[i]);

        (void)fprintf(to, is_plain ? "%s%s" : "%s\"%s\"", i > 0 ? " " : "", words.word[i]);
    }
}

static _Noreturn void run_ssh(const words_t *words, const char *host)
{
    rd_prompt_by_us(host);
    /* rdpipe forwards Ctrl-C to the agents, so ssh must survive it. */
    (void)signal(SIGINT, SIG_IGN);
    (void)signal(SIGQUIT, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    (void)signal(SIGPIPE, SIG_DFL);
    (void)signal(SIGXFSZ, SIG_DFL);
    (void)execvp(words->word[0], (char *const *)(uintptr_t)words->word);
    (void)fprintf(stderr, "rdpipe: %s: %s\n", words->word[0], strerror(errno));
    _exit(126);
}

/* The agent keeps only its channel, standard error, and the standard streams that it needs. If it
 * kept the others open, commands in the user's shell pipeline would wait for them to be closed. */
static _Noreturn void run_agent(int in, int out, unsigned needs)
{
    int low_in = fcntl(in, F_DUPFD_CLOEXEC, 5), low_out = fcntl(out, F_DUPFD_CLOEXEC, 5);

    for (int fd = 0; fd <= 1; fd++)
        if (!(needs & 1U << fd))
            rd_let_go_of(fd);
    if (low_in < 0 || low_out < 0 || dup3(low_in, 3, O_CLOEXEC) < 0 ||
        dup3(low_out, 4, O_CLOEXEC) < 0)
        _exit(RD_EXIT_OWN);
    closefrom(5); /* for kernels without close_range */
    /* rdpipe forwards the signals that a terminal sends to every process. */
    (void)signal(SIGHUP, SIG_IGN);
    (void)signal(SIGTERM, SIG_IGN);
    _exit(rd_agent(3, 4));
}

bool rd_channel_start(rd_channel_t *channel_p, const char *host, unsigned needs,
                      const rd_ssh_t *ssh, rd_share_t share, const char *socket, rd_why_t *why)
{
    int down[2], up[2];
    words_t words;
    sigset_t none;
    pid_t pid;

    make_words(&words, host, ssh, share, socket);
    if (words.is_full)
        return rd_because(why, "too many options for ssh");
    if (pipe2(down, O_CLOEXEC) < 0 || pipe2(up, O_CLOEXEC) < 0)
        return rd_because(why, "pipe: %s", strerror(errno));
    pid = fork();
    if (pid == 0) {
        (void)sigemptyset(&none);
        (void)sigprocmask(SIG_SETMASK, &none, NULL);
        if (!*host)
            run_agent(down[0], up[1], needs);
        (void)dup2(down[0], 0);
        (void)dup2(up[1], 1);
        run_ssh(&words, host);
    }
    close(down[0]);
    close(up[1]);
    if (pid < 0) {
        close(down[1]);
        close(up[0]);
        return rd_because(why, "fork: %s", strerror(errno));
    }
    *channel_p = (rd_channel_t){.pid = pid, .to = down[1], .host = host};
    rd_lines_init(&channel_p->from, up[0]);
    return true;
}

void rd_channel_close(rd_channel_t *channel)
{
    rd_close(&channel->to);
}

bool rd_channel_agrees(const char *hello, rd_why_t *why)
{
    char *control = rd_line_value(hello, "control", NULL);
    char *version = rd_line_value(hello, "version", NULL);
    bool done = (control && strcmp(control, RD_CONTROL_VERSION) == 0) ||
                rd_because(why,
                           "rdpipe there is version %s (protocol %s), here it is %s (protocol "
                           "%s): install versions with the same protocol",
                           version ? version : "?", control ? control : "?", RD_VERSION,
                           RD_CONTROL_VERSION);

    free(control);
    free(version);
    return done;
}

bool rd_channel_reap(rd_channel_t *channel)
{
    int status;

    if (channel->pid > 0 && !channel->is_reaped &&
        waitpid(channel->pid, &status, WNOHANG) == channel->pid) {
        channel->is_reaped = true;
        channel->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    return channel->pid == 0 || channel->is_reaped;
}
