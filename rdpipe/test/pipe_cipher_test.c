/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what the doctor reports about encryption, including for processors and libraries that this
 * host does not have. */
#include "check.h"

#include "run/cipher.h"

#define OLD 0x300000d0UL   /* 3.0.13 */
#define FIRST 0x30100000UL /* 3.1.0 */
#define NEWER 0x30500010UL

static void what_a_processor_has(void)
{
    static const struct {
        const char *flags;
        rd_aes_t aes;
    } processors[] = {
        {"", RD_AES_NONE},
        {"flags\t\t: fpu sse2 pclmulqdq\n", RD_AES_NONE},
        {"flags\t\t: fpu vaes avx512f aesthetic\n", RD_AES_NONE},
        {"flags\t\t: fpu aes avx2\n", RD_AES_NO_VAES},
        {"flags\t\t: fpu avx2 aes", RD_AES_NO_VAES},
        {"flags\t\t: fpu aes avx2 vaes vpclmulqdq\n", RD_AES_NO_VAES}, /* Zen 3 */
        {"flags\t\t: fpu aes avx512f\n", RD_AES_NO_VAES},
        {"flags\t\t: fpu aes avx512f avx512bw vaes\n", RD_AES_VAES},
        {"Features\t: fp asimd aes pmull\n", RD_AES_ONE_BLOCK},
        {"Features\t: fp asimd\n", RD_AES_NONE},
    };

    for (size_t i = 0; i < sizeof processors / sizeof *processors; i++)
        CHECK_EQ(rd_aes_of(processors[i].flags), processors[i].aes);
}

static void what_it_means_for_a_stream(void)
{
    static const struct {
        rd_aes_t aes;
        unsigned long libcrypto;
        const char *text;
        bool is_old;
    } hosts[] = {
        {RD_AES_NONE, NEWER, "ChaCha20, which is faster", false},
        {RD_AES_NONE, OLD, "ChaCha20", false},
        {RD_AES_ONE_BLOCK, OLD, "by the AES instructions", false},
        {RD_AES_NO_VAES, OLD, "no VAES with AVX-512", false},
        {RD_AES_NO_VAES, NEWER, "two thirds", false},
        {RD_AES_VAES, OLD, "without this processor's VAES", true},
        {RD_AES_VAES, FIRST - 1, "OpenSSL uses from 3.1 on", true},
        {RD_AES_VAES, FIRST, "by VAES: ", false},
        {RD_AES_VAES, NEWER, "four fifths", false},
    };

    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        bool is_old = !hosts[i].is_old;

        CHECK(strstr(rd_cipher_text(hosts[i].aes, hosts[i].libcrypto, &is_old), hosts[i].text));
        CHECK_EQ(is_old, hosts[i].is_old);
    }
}

static void what_the_kernel_has(void)
{
    CHECK(strstr(rd_ktls_text("espintcp mptcp tls", false), "the kernel has it"));
    CHECK(strstr(rd_ktls_text("tls", true), "the kernel has it"));
    CHECK(strstr(rd_ktls_text("mptcp", true), "not loaded"));
    CHECK(strstr(rd_ktls_text("mptcp tlsx", false), "not in this kernel"));
    CHECK(strstr(rd_ktls_text("", false), "not in this kernel"));
}

static const check_case_t cases[] = {
    {"what_a_processor_has", what_a_processor_has},
    {"what_it_means_for_a_stream", what_it_means_for_a_stream},
    {"what_the_kernel_has", what_the_kernel_has},
};

CHECK_MAIN(cases)
