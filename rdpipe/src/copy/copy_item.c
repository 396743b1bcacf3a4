/* SPDX-License-Identifier: Apache-2.0 */
#include "copy_item.h"

#include <assert.h>
#include <endian.h>

typedef struct {
    uint8_t kind, has;
    uint16_t path_len;
    uint32_t mode;
    uint64_t size, offset;
    int64_t mtime_s;
    uint32_t mtime_ns;
    uint16_t target_len, reserved;
    uint8_t digest[RD_DIGEST_BYTES];
} header_t;

static_assert(sizeof(header_t) == RD_ITEM_BYTES, "the layout is part of the protocol");

bool rd_path_is_safe(const char *path, size_t len)
{
    const char *end = path + len, *name = path;

    if (len >= RD_PATH_BYTES || memchr(path, 0, len))
        return false;
    if (len == 0)
        return true;
    for (;;) {
        const char *slash = memchr(name, '/', (size_t)(end - name));
        size_t bytes = (size_t)((slash ? slash : end) - name);

        /* Rejects an empty name, "." and "..": each is a prefix of "..", so one test is enough. */
        if (bytes <= 2 && memcmp(name, "..", bytes) == 0)
            return false;
        if (!slash)
            return true;
        name = slash + 1;
    }
}

size_t rd_item_put(uint8_t *at, const rd_item_t *item)
{
    size_t path_len = strlen(item->path), target_len = strlen(item->target);
    header_t header = {.kind = (uint8_t)item->kind,
                       .has = (uint8_t)item->has,
                       .path_len = htole16((uint16_t)path_len),
                       .mode = htole32(item->mode),
                       .size = htole64(item->size),
                       .offset = htole64(item->offset),
                       .mtime_s = (int64_t)htole64((uint64_t)item->mtime_s),
                       .mtime_ns = htole32(item->mtime_ns),
                       .target_len = htole16((uint16_t)target_len)};

    memcpy(header.digest, item->digest, sizeof header.digest);
    memcpy(at, &header, sizeof header);
    memcpy(at + sizeof header, item->path, path_len);
    memcpy(at + sizeof header + path_len, item->target, target_len);
    return sizeof header + path_len + target_len;
}

static bool is_valid(const header_t *header, size_t path_len, size_t target_len)
{
    bool is_link = header->kind == RD_ITEM_LINK || header->kind == RD_ITEM_HARD;
    bool is_attribute = header->kind == RD_ITEM_ATTRIBUTE;
    bool is_below = is_link || header->kind == RD_ITEM_SKIP || header->kind == RD_ITEM_DELETE;
    bool is_of_changes = header->kind == RD_ITEM_BLOCKS || header->kind == RD_ITEM_COPY;

    return header->kind >= RD_ITEM_START && (header->kind <= RD_ITEM_LAST || is_of_changes) &&
           header->has <= RD_HAS_NOTED && header->reserved == 0 && path_len < RD_PATH_BYTES &&
           target_len < RD_PATH_BYTES && (is_link || is_attribute) == (target_len > 0) &&
           (!is_attribute || (path_len == 0 && le64toh(header->size) <= RD_VALUE_MAX)) &&
           le32toh(header->mtime_ns) < 1000000000u && le64toh(header->size) <= INT64_MAX &&
           le64toh(header->offset) <= INT64_MAX && (!is_below || path_len > 0) &&
           (!is_of_changes || path_len == 0) &&
           (header->kind != RD_ITEM_BLOCKS || le64toh(header->size) <= RD_VALUE_MAX) &&
           (!(is_of_changes || header->kind == RD_ITEM_DATA) || header->size != 0);
}

rd_item_state_t rd_item_parse(const uint8_t *at, size_t avail, rd_item_t *item_p, size_t *bytes_p)
{
    header_t header;
    size_t path_len, target_len;

    if (avail < sizeof header)
        return RD_ITEM_SHORT;
    memcpy(&header, at, sizeof header);
    path_len = le16toh(header.path_len);
    target_len = le16toh(header.target_len);
    if (!is_valid(&header, path_len, target_len))
        return RD_ITEM_CORRUPT;
    if (avail < sizeof header + path_len + target_len)
        return RD_ITEM_SHORT;
    at += sizeof header;
    if (!rd_path_is_safe((const char *)at, path_len) || memchr(at + path_len, 0, target_len) ||
        (header.kind == RD_ITEM_HARD && !rd_path_is_safe((const char *)at + path_len, target_len)))
        return RD_ITEM_CORRUPT;
    item_p->kind = (rd_item_kind_t)header.kind;
    item_p->has = (rd_has_t)header.has;
    item_p->mode = le32toh(header.mode);
    item_p->size = le64toh(header.size);
    item_p->offset = le64toh(header.offset);
    item_p->mtime_s = (int64_t)le64toh((uint64_t)header.mtime_s);
    item_p->mtime_ns = le32toh(header.mtime_ns);
    memcpy(item_p->digest, header.digest, sizeof item_p->digest);
    memcpy(item_p->path, at, path_len);
    item_p->path[path_len] = 0;
    memcpy(item_p->target, at + path_len, target_len);
    item_p->target[target_len] = 0;
    *bytes_p = sizeof header + path_len + target_len;
    return RD_ITEM_WHOLE;
}
