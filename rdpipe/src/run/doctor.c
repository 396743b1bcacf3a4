/* SPDX-License-Identifier: Apache-2.0 */
#include "doctor.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "hop/bundle.h"
#include "hop/carrier.h"
#include "cipher.h"
#include "stream/compress.h"
#include "stream/crc.h"
#include "copy/digest.h"
#include "hop/socket.h"

#define HOST_MS 20000
#define END_MS 5000
/* A path with 1 Gbit/s and 100 ms needs 12.5 MB. */
#define BUFFER_LEAST ((uint64_t)16 * 1024 * 1024)
#define FILES_LEAST 64u
#define FLAGS_BYTES 8192 /* the line of a processor's features has about 2,000 bytes */
#define PIPE_LEAST ((uint64_t)1024 * 1024)

/* NOTE means that pipelines run, but more slowly or without some feature; FAILED means that they
 * cannot run. */
typedef enum { FINE, NOTE, FAILED } state_t;

typedef struct {
    const rd_settings_t *settings;
    size_t count, failed;
} doctor_t;

__attribute__((format(printf, 4, 5))) static void tell(doctor_t *doctor, state_t state,
                                                       const char *name, const char *form, ...)
{
    static const char *const shown[] = {"ok  ", "note", "FAIL"};
    static const char *const states[] = {"ok", "note", "failed"};
    char text[1024];
    va_list args;

    va_start(args, form);
    (void)vsnprintf(text, sizeof text, form, args);
    va_end(args);
    doctor->failed += state == FAILED;
    if (!doctor->settings->cli.json) {
        (void)printf("%s  %-12s ", shown[state], name);
        rd_plain_text(stdout, text);
        (void)putchar('\n');
        return;
    }
    (void)printf("%s{\"name\": ", doctor->count++ > 0 ? ", " : "");
    rd_json_text(stdout, name);
    (void)printf(", \"state\": \"%s\", \"text\": ", states[state]);
    rd_json_text(stdout, text);
    (void)putchar('}');
}

static void tell_libraries(doctor_t *doctor)
{
    const char *zstd = rd_zstd_version();

    tell(doctor, FINE, "rdpipe", "version %s, protocol %s", RD_VERSION, RD_CONTROL_VERSION);
    tell(doctor, FINE, "libssl", "%s: --encrypt", OpenSSL_version(OPENSSL_VERSION));
    if (zstd)
        tell(doctor, FINE, "libzstd", "%s: --zstd", zstd);
    else
        tell(doctor, NOTE, "libzstd",
             "not compiled in: no --zstd (install libzstd-dev and build again)");
    if (rd_digest_has_xxh3())
        tell(doctor, FINE, "digests", "rdcp uses XXH3, or SHA-256 with an older version");
    else
        tell(doctor, NOTE, "digests",
             "rdcp uses SHA-256, which is slow: libxxhash is not compiled in (install "
             "libxxhash-dev and build again)");
    tell(doctor, strcmp(rd_crc_name(), "a table") == 0 ? NOTE : FINE, "crc32c", "by %s",
         rd_crc_name());
}

static void tell_rdma(doctor_t *doctor)
{
    DIR *devices = opendir("/sys/class/infiniband");
    const struct dirent *entry;
    char names[256] = "";
    bool is_installed = rd_carrier_has_rdma();

    while (devices && (entry = readdir(devices)))
        if (entry->d_name[0] != '.' && strlen(names) + strlen(entry->d_name) + 2 < sizeof names)
            (void)sprintf(names + strlen(names), "%s%s", *names ? " " : "", entry->d_name);
    if (devices)
        (void)closedir(devices);
    if (is_installed && *names)
        tell(doctor, FINE, "rdma", "devices: %s", names);
    else if (*names)
        tell(doctor, NOTE, "rdma",
             "beamway_rdma.so is not installed, although there is a device: %s (install "
             "librdmacm-dev and build again)",
             names);
    else
        tell(doctor, FINE, "rdma", "%s, no device here: TCP between hosts",
             is_installed ? "installed" : "not installed");
}

static void tell_shm(doctor_t *doctor)
{
    int fd = memfd_create("rdpipe-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd >= 0)
        tell(doctor, FINE, "shm", "shared memory between processes on this host");
    else
        tell(doctor, NOTE, "shm", "memfd_create: %s: TCP within this host", strerror(errno));
    rd_close(&fd);
}

static void tell_kernel(doctor_t *doctor)
{
    char line[512];
    struct utsname system;

    if (uname(&system) == 0)
        tell(doctor, FINE, "kernel", "%s %s %s", system.sysname, system.release, system.machine);
    tell(doctor, FINE, "congestion", "%s",
         rd_kernel_line("/proc/sys/net/ipv4/tcp_available_congestion_control", line, sizeof line));
}

static void read_flags(char flags[FLAGS_BYTES])
{
    FILE *file = fopen("/proc/cpuinfo", "re");

    flags[0] = 0;
    while (file && fgets(flags, FLAGS_BYTES, file))
        if (strncmp(flags, "flags", 5) == 0 || strncmp(flags, "Features", 8) == 0)
            break;
        else
            flags[0] = 0;
    if (file)
        (void)fclose(file);
}

static bool has_module_tls(void)
{
    static const char *const suffixes[] = {"", ".xz", ".zst", ".gz"};
    struct utsname system;
    char path[256];

    for (size_t i = 0; uname(&system) == 0 && i < sizeof suffixes / sizeof *suffixes; i++) {
        (void)snprintf(path, sizeof path, "/lib/modules/%s/kernel/net/tls/tls.ko%s", system.release,
                       suffixes[i]);
        if (access(path, F_OK) == 0)
            return true;
    }
    return false;
}

static void tell_encryption(doctor_t *doctor)
{
    char flags[FLAGS_BYTES], ulps[512];
    bool is_old;
    const char *text;

    read_flags(flags);
    text = rd_cipher_text(rd_aes_of(flags), OpenSSL_version_num(), &is_old);
    tell(doctor, is_old ? NOTE : FINE, "encryption", "%s", text);
    tell(doctor, FINE, "kTLS", "%s",
         rd_ktls_text(rd_kernel_line("/proc/sys/net/ipv4/tcp_available_ulp", ulps, sizeof ulps),
                      has_module_tls()));
}

static void tell_buffer(doctor_t *doctor, const char *name)
{
    char path[64], line[512];
    unsigned long long most = 0;

    (void)snprintf(path, sizeof path, "/proc/sys/net/ipv4/%s", name);
    if (sscanf(rd_kernel_line(path, line, sizeof line), "%*u %*u %llu", &most) != 1)
        tell(doctor, NOTE, name, "cannot be read");
    else if (most < BUFFER_LEAST)
        tell(doctor, NOTE, name,
             "at most %llu bytes: this limits one stream over a long path, but not several "
             "(--streams)",
             most);
    else
        tell(doctor, FINE, name, "at most %llu bytes", most);
}

static void tell_limits(doctor_t *doctor)
{
    struct rlimit limit;
    char line[512];
    uint64_t bytes = 0;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        tell(doctor, NOTE, "open files", "the limit cannot be read: %s", strerror(errno));
    else if (limit.rlim_cur < FILES_LEAST)
        tell(doctor, FAILED, "open files", "at most %llu: ulimit -n 1024",
             (unsigned long long)limit.rlim_cur);
    else if (rd_streams_max() < RD_STREAMS_MAX)
        tell(doctor, NOTE, "open files",
             "at most %llu, so a hop has at most %u streams (--streams): ulimit -n 1024",
             (unsigned long long)limit.rlim_cur, rd_streams_max());
    else
        tell(doctor, FINE, "open files", "at most %llu", (unsigned long long)limit.rlim_cur);
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        tell(doctor, NOTE, "file size", "at most %llu bytes (ulimit -f)",
             (unsigned long long)limit.rlim_cur);
    if (rd_number(rd_kernel_line("/proc/sys/fs/pipe-max-size", line, sizeof line), 0, UINT64_MAX,
                  &bytes))
        tell(doctor, bytes < PIPE_LEAST ? NOTE : FINE, "pipes", "at most %llu bytes each",
             (unsigned long long)bytes);
}

static void tell_ports(doctor_t *doctor)
{
    const rd_settings_t *settings = doctor->settings;
    uint16_t port = 0;
    int fd = -1;
    rd_why_t why;

    if (!rd_listen(NULL, settings->port_first, settings->port_last, &fd, &port, &why))
        tell(doctor, FAILED, "ports", "%s", why.text);
    else if (settings->port_first > 0)
        tell(doctor, FINE, "ports", "%u to %u: %u is free", settings->port_first,
             settings->port_last, port);
    else
        tell(doctor, FINE, "ports", "any free one (--port FIRST-LAST for a firewall)");
    rd_close(&fd);
}

/* Returns the agent's hello, or NULL if none arrived. The caller frees it. */
static char *hello_of(rd_channel_t *channel)
{
    int64_t deadline = rd_now_ms() + HOST_MS;

    while (!channel->from.has_ended && rd_left_ms(deadline) > 0) {
        struct pollfd polled = {.fd = channel->from.fd, .events = POLLIN};
        const char *line;

        if (poll(&polled, 1, rd_left_ms(deadline)) <= 0)
            continue;
        rd_lines_fill(&channel->from);
        while ((line = rd_lines_next(&channel->from)))
            if (rd_line_is(line, RD_CONTROL_HELLO))
                return strdup(line);
    }
    return NULL;
}

static void end_channel(rd_channel_t *channel)
{
    int64_t deadline = rd_now_ms() + END_MS;

    rd_channel_close(channel);
    while (!rd_channel_reap(channel) && rd_left_ms(deadline) > 0)
        (void)poll(NULL, 0, 10);
    if (!rd_channel_reap(channel)) {
        (void)kill(channel->pid, SIGTERM);
        while (!rd_channel_reap(channel) && rd_left_ms(deadline + END_MS) > 0)
            (void)poll(NULL, 0, 10);
    }
    close(channel->from.fd);
    rd_lines_free(&channel->from);
}

static void tell_hello(doctor_t *doctor, const char *host, const char *hello, int64_t ms)
{
    char *version = rd_line_value(hello, "version", NULL);
    char *ssh = rd_line_value(hello, "ssh", NULL);
    char address[128] = "";
    rd_why_t why;

    (void)(ssh ? sscanf(ssh, "%*s %*s %127s", address) : 0);
    if (rd_channel_agrees(hello, &why))
        tell(doctor, FINE, host, "rdpipe %s answers after %lld ms; hops connect to %s",
             version ? version : "?", (long long)ms,
             *address ? address : "an address that ssh does not report");
    else
        tell(doctor, FAILED, host, "%s", why.text);
    free(version);
    free(ssh);
}

/* Returns the host as a segment that begins with "WORD:" would specify it, or NULL if it is not a
 * host that ssh can reach. The caller frees it. */
static char *host_of(const char *word)
{
    char segment[512], *host, *nothing;
    rd_why_t ignored;
    bool is_host;

    if (snprintf(segment, sizeof segment, "%s:", word) >= (int)sizeof segment ||
        !rd_host_path(segment, &host, &nothing, &ignored))
        return NULL;
    is_host = *host && !*nothing;
    free(nothing);
    if (is_host)
        return host;
    free(host);
    return NULL;
}

static void tell_host(doctor_t *doctor, const char *word)
{
    rd_channel_t channel = {.pid = 0};
    int64_t began = rd_now_ms();
    rd_why_t why = {.text = "is not a valid host for ssh"};
    char *host = host_of(word), *hello;

    if (!host ||
        !rd_channel_start(&channel, host, 0, &doctor->settings->ssh, RD_SHARE_NO, "", &why)) {
        tell(doctor, FAILED, word, "%s", why.text);
        free(host);
        return;
    }
    hello = hello_of(&channel);
    end_channel(&channel);
    if (hello)
        tell_hello(doctor, word, hello, rd_now_ms() - began);
    else if (channel.status == 127)
        tell(doctor, FAILED, word,
             "no 'rdpipe' there: install Beamway's commands, or say where they are with "
             "--remote-path DIR");
    else
        tell(doctor, FAILED, word, "ssh has failed (status %d), or took longer than %d s",
             channel.status, HOST_MS / 1000);
    free(hello);
    free(host);
}

int rd_doctor(const rd_settings_t *settings, char *const *hosts, size_t count)
{
    doctor_t doctor = {.settings = settings};
    int printed;

    rd_ignore_signals();
    if (settings->cli.json)
        (void)printf("{\"command\": \"rdpipe\", \"event\": \"doctor\", \"version\": \"%s\", "
                     "\"checks\": [",
                     RD_VERSION);
    tell_libraries(&doctor);
    tell_rdma(&doctor);
    tell_shm(&doctor);
    tell_kernel(&doctor);
    tell_encryption(&doctor);
    tell_buffer(&doctor, "tcp_wmem");
    tell_buffer(&doctor, "tcp_rmem");
    tell_limits(&doctor);
    tell_ports(&doctor);
    for (size_t i = 0; i < count; i++)
        tell_host(&doctor, hosts[i]);
    if (settings->cli.json)
        (void)printf("], \"failed\": %zu}\n", doctor.failed);
    printed = rd_cli_printed(&settings->cli);
    return printed != 0 ? printed : doctor.failed > 0 ? RD_EXIT_FAULT : 0;
}
