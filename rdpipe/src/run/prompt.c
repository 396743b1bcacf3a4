/* SPDX-License-Identifier: Apache-2.0 */
#include "prompt.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/sysmacros.h>
#include <termios.h>
#include <unistd.h>

#include "hop/key.h"

#define HOST "RDPIPE_PROMPT_HOST" /* tells the askpass process for which host it asks */
#define REQUIRE "SSH_ASKPASS_REQUIRE"
#define ANSWER_BYTES 1024
#define AGAIN_MS 50

void rd_prompt_by_us(const char *host)
{
    char self[PATH_MAX];
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    int terminal = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);

    if (terminal < 0)
        return;
    close(terminal);
    if (len <= 0 || getenv(REQUIRE))
        return;
    self[len] = 0;
    (void)setenv("SSH_ASKPASS", self, 1);
    (void)setenv(REQUIRE, "force", 1);
    (void)setenv(HOST, host, 1);
}

bool rd_prompt_is_asked(int argc)
{
    return argc == 2 && getenv(HOST) && getenv("SSH_ASKPASS");
}

static volatile sig_atomic_t is_ended;

static void end(int sig)
{
    (void)sig;
    is_ended = 1;
}

/* We have inherited from ssh that the terminal's signals are ignored, but we must catch them in
 * order to turn the echo back on. */
static void catch_signals(void)
{
    static const int signals[] = {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGPIPE};
    struct sigaction action = {.sa_handler = end};

    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        (void)sigaction(signals[i], &action, NULL);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    is_ended = getppid() == 1;
}

/* Opens the terminal by its own name, under which only its user can open it. A lock on /dev/tty
 * would not do, because that is the same file for all users. */
static int open_for_lock(int terminal)
{
    char path[64];
    unsigned device = 0;

    if (ioctl(terminal, TIOCGDEV, &device) < 0)
        return -1;
    if (major(device) >= 136 && major(device) <= 143)
        (void)snprintf(path, sizeof path, "/dev/pts/%u",
                       minor(device) + (major(device) - 136) * 256);
    else
        (void)snprintf(path, sizeof path, "/dev/char/%u:%u", major(device), minor(device));
    return open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
}

/* Waits until no other process is asking. A terminal without a name of its own is not locked. */
static bool lock(int fd)
{
    while (fd >= 0 && !is_ended && flock(fd, LOCK_EX | LOCK_NB) < 0 &&
           (errno == EWOULDBLOCK || errno == EINTR))
        (void)poll(NULL, 0, AGAIN_MS);
    return !is_ended;
}

/* Prints the host and ssh's text, including its newlines but no other control characters. */
static void show(int terminal, const char *text)
{
    const char *host = getenv(HOST);
    char shown[4096];
    int len = snprintf(shown, sizeof shown, "\r\033[K%s: %s", host ? host : "", text);
    size_t bytes = len < 0 ? 0 : (size_t)len < sizeof shown ? (size_t)len : sizeof shown - 1;

    for (size_t i = 4; i < bytes; i++)
        if (((unsigned char)shown[i] < ' ' && shown[i] != '\n') || shown[i] == 127)
            shown[i] = '?';
    (void)!write(terminal, shown, bytes);
}

/* Only answers that are not secret are echoed: the answers to ssh's own questions, which are
 * recognized by their beginning. A server can choose any text, but ssh puts the user and host in
 * front of it. */
static bool is_confirmation(const char *text)
{
    static const char *const begins[] = {"The authenticity of host ", "Please type 'yes'",
                                         "Accept updated hostkeys? "};

    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (strncmp(text, begins[i], strlen(begins[i])) == 0)
            return true;
    return false;
}

static ssize_t read_line(int terminal, char answer[ANSWER_BYTES])
{
    ssize_t n = is_ended ? -1 : read(terminal, answer, ANSWER_BYTES);

    if (n <= 0 || is_ended)
        return -1;
    return answer[n - 1] == '\n' ? n - 1 : n;
}

static ssize_t ask(int terminal, const char *text, char answer[ANSWER_BYTES])
{
    struct termios was, quiet;
    bool hides = !is_confirmation(text) && tcgetattr(terminal, &was) == 0;
    ssize_t len;

    if (!hides && !is_confirmation(text))
        return -1;
    if (hides) {
        quiet = was;
        quiet.c_lflag &= ~(tcflag_t)(ECHO | ECHOE | ECHOK | ECHONL);
        quiet.c_lflag |= ICANON | ISIG;
        (void)tcsetattr(terminal, TCSAFLUSH, &quiet);
    }
    show(terminal, text);
    len = read_line(terminal, answer);
    if (hides) {
        (void)tcsetattr(terminal, TCSAFLUSH, &was);
        (void)!write(terminal, "\n", 1);
    }
    return len;
}

/* Shows a text for which ssh expects no answer, for example that a key must be touched. ssh kills
 * this process afterwards. */
static int tell(int terminal, const char *text)
{
    show(terminal, text);
    (void)!write(terminal, "\n", 1);
    while (!is_ended)
        (void)poll(NULL, 0, AGAIN_MS);
    return 0;
}

int rd_prompt(const char *text)
{
    const char *kind = getenv("SSH_ASKPASS_PROMPT");
    char answer[ANSWER_BYTES];
    int terminal, locked;
    ssize_t len = -1;

    catch_signals();
    terminal = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (terminal < 0)
        return 1;
    if (kind && strcmp(kind, "none") == 0)
        return tell(terminal, text);
    locked = open_for_lock(terminal);
    if (lock(locked))
        len = ask(terminal, text, answer);
    if (len >= 0 && (write(1, answer, (size_t)len) != len || write(1, "\n", 1) != 1))
        len = -1;
    rd_wipe(answer, sizeof answer);
    return len < 0;
}
