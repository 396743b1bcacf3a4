/* SPDX-License-Identifier: Apache-2.0 */
#include "cipher.h"

#include <string.h>

/* The first version whose AES-GCM uses VAES. */
#define VAES_LIBCRYPTO 0x30100000UL

static bool has_word(const char *text, const char *word)
{
    size_t len = strlen(word);

    for (const char *at = text; (at = strstr(at, word)); at += len)
        if ((at == text || strchr(" \t", at[-1])) && (at[len] == 0 || strchr(" \t\n", at[len])))
            return true;
    return false;
}

rd_aes_t rd_aes_of(const char *flags)
{
    if (!has_word(flags, "aes"))
        return RD_AES_NONE;
    if (strncmp(flags, "flags", 5) != 0)
        return RD_AES_ONE_BLOCK;
    return has_word(flags, "vaes") && has_word(flags, "avx512f") ? RD_AES_VAES : RD_AES_NO_VAES;
}

const char *rd_cipher_text(rd_aes_t aes, unsigned long libcrypto, bool *is_old_p)
{
    *is_old_p = aes == RD_AES_VAES && libcrypto < VAES_LIBCRYPTO;
    switch (aes) {
    case RD_AES_NONE:
        return "by ChaCha20, which is faster than AES here, because this processor has no AES "
               "instructions";
    case RD_AES_ONE_BLOCK:
        return "by the AES instructions";
    case RD_AES_NO_VAES:
        return "by the AES instructions; this processor has no VAES with AVX-512, so at full speed "
               "an encrypted stream carries about two thirds of a plain one";
    case RD_AES_VAES:
        break;
    }
    return *is_old_p
               ? "without this processor's VAES, which OpenSSL uses from 3.1 on: at full speed an "
                 "encrypted stream carries about two thirds of a plain one; with VAES, four fifths"
               : "by VAES: at full speed an encrypted stream carries about four fifths of a plain "
                 "one";
}

const char *rd_ktls_text(const char *ulps, bool has_module)
{
    if (has_word(ulps, "tls"))
        return "the kernel has it; rdpipe does not use it and encrypts by itself";
    if (has_module)
        return "a module of the kernel that is not loaded; rdpipe does not use it and encrypts by "
               "itself";
    return "not in this kernel; rdpipe does not need it and encrypts by itself";
}
