/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures what a TLS record costs:
 * `make -C native record-bench && native/build/bench/record_bench`.
 * Both ends of a connection are in one thread, and no socket is involved: libssl reads what libssl
 * writes, over a memory BIO, and our reader reads what our writer writes. The program alternates
 * five rounds of each and prints the best one, in nanoseconds for a record written and read.
 */
#include <time.h>

#include "../test/tls/libssl_end.h"

#define ROUNDS 5
#define ROUND_BYTES ((size_t)64 << 20)
#define RECORDS_MAX 50000

static const uint8_t content[BW_RECORD_BYTES];
static uint8_t got[BW_RECORD_BYTES];
static const uint8_t secret[BW_RECORD_SECRET_BYTES];

static void must(bool holds)
{
    if (!holds)
        abort();
}

static double now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void open_libssl(libssl_end_t ends[2], unsigned suite, const char *name)
{
    bw_tls_psk_t psk = {.identity = "bench", .suite = suite};
    BIO *wires[2] = {BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem())};

    for (int i = 0; i < 2; i++) {
        must(libssl_open(&ends[i], -1, i == 1, &psk, name, 0));
        must(BIO_up_ref(wires[i]) && BIO_up_ref(wires[!i]));
        SSL_set_bio(ends[i].ssl, wires[!i], wires[i]);
    }
    for (int i = 0; i < 6; i++)
        (void)SSL_do_handshake(ends[i & 1].ssl);
    must(SSL_is_init_finished(ends[0].ssl) && SSL_is_init_finished(ends[1].ssl));
    BIO_free(wires[0]);
    BIO_free(wires[1]);
}

static double by_libssl(libssl_end_t ends[2], size_t len, size_t records)
{
    double begin = now_ns();
    size_t n;

    for (size_t i = 0; i < records; i++)
        must(SSL_write_ex(ends[0].ssl, content, len, &n) == 1 &&
             SSL_read_ex(ends[1].ssl, got, len, &n) == 1 && n == len);
    return (now_ns() - begin) / (double)records;
}

static double by_ours(bw_record_writer_t *writer, bw_record_reader_t *reader, size_t len,
                      size_t records)
{
    struct iovec from = {(void *)(uintptr_t)content, len}, to = {got, len};
    double begin = now_ns();
    size_t n;

    for (size_t i = 0; i < records; i++)
        must(bw_record_place(writer) && bw_record_seal(writer, BW_RECORD_DATA, &from, 1) &&
             bw_record_take(reader, &to, 1, &n) == BW_RECORD_READ && n == len);
    return (now_ns() - begin) / (double)records;
}

static void measure(unsigned suite, const char *name)
{
    static const size_t lens[] = {100, 4096, BW_RECORD_BYTES};
    bw_buffer_t wire;
    bw_record_writer_t writer = {.out = &wire, .limit = BW_RECORD_KEY_LIMIT};
    bw_record_reader_t reader = {.in = &wire};
    libssl_end_t ends[2];
    bw_error_t error;

    open_libssl(ends, suite, name);
    must(bw_buffer_make(&wire, "bench", 1 << 16, &error) == BW_OK &&
         bw_record_key_open(&writer.key, suite, true, secret) &&
         bw_record_key_open(&reader.key, suite, false, secret));
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        size_t records = bw_least(ROUND_BYTES / lens[i], RECORDS_MAX);
        double libssl = 1e12, ours = 1e12;

        for (int round = 0; round < ROUNDS; round++) {
            double theirs = by_libssl(ends, lens[i], records);
            double mine = by_ours(&writer, &reader, lens[i], records);

            libssl = theirs < libssl ? theirs : libssl;
            ours = mine < ours ? mine : ours;
        }
        printf("%-30s %6zu B  libssl %6.0f ns  ours %6.0f ns  %.2f\n", name, lens[i], libssl, ours,
               ours / libssl);
    }
    bw_record_key_close(&writer.key);
    bw_record_key_close(&reader.key);
    bw_buffer_free(&wire);
    libssl_close(&ends[0]);
    libssl_close(&ends[1]);
}

int main(void)
{
    printf("%s\n", OpenSSL_version(OPENSSL_VERSION));
    measure(BW_SUITE_AES_128_GCM_SHA256, "TLS_AES_128_GCM_SHA256");
    measure(BW_SUITE_AES_256_GCM_SHA384, "TLS_AES_256_GCM_SHA384");
    measure(BW_SUITE_CHACHA20_POLY1305_SHA256, "TLS_CHACHA20_POLY1305_SHA256");
    return 0;
}
