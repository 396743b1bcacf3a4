/* SPDX-License-Identifier: Apache-2.0 */
#include "attributes.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <pwd.h>
#include <sys/xattr.h>
#include <unistd.h>

#define OWNER "owner" /* no extended attribute has a name without a dot */
#define COUNT_MAX 4096u
#define BYTES_MAX ((size_t)1024 * 1024) /* limit for the attributes of one file */
#define ACCESS_ACL "system.posix_acl_access"
#define DEFAULT_ACL "system.posix_acl_default"

static bool is_class(const char *name, const char *class)
{
    return strncmp(name, class, strlen(class)) == 0;
}

static bool is_acl(const char *name)
{
    return strcmp(name, ACCESS_ACL) == 0 || strcmp(name, DEFAULT_ACL) == 0;
}

/* SELinux labels are left out, because they belong to a host's policy and not to a file. */
static bool is_kept(const rd_copy_t *copy, const char *name)
{
    return (copy->acls && is_acl(name)) ||
           (copy->xattrs && (is_class(name, "user.") || is_class(name, "trusted.") ||
                             strcmp(name, "security.capability") == 0));
}

/* ---- reading ---- */

static bool put_owner(const struct stat *is, rd_items_out_t *out)
{
    static struct {
        uid_t uid;
        gid_t gid;
        char text[600];
    } last; /* cached, because a tree has few owners and each look-up reads a file */

    if (!*last.text || last.uid != is->st_uid || last.gid != is->st_gid) {
        const struct passwd *user = getpwuid(is->st_uid);
        const struct group *group;
        char name[256] = "";

        if (user)
            (void)snprintf(name, sizeof name, "%s", user->pw_name);
        group = getgrgid(is->st_gid);
        (void)snprintf(last.text, sizeof last.text, "%u:%u:%s:%.255s", is->st_uid, is->st_gid, name,
                       group ? group->gr_name : "");
        last.uid = is->st_uid;
        last.gid = is->st_gid;
    }
    return rd_items_attribute(out, OWNER, last.text, strlen(last.text));
}

/* Reads the names of a file's attributes, each of which ends with a NUL. Returns their total
 * length, or -1 with errno set on failure. The caller frees *names_p. */
static ssize_t names_of(int fd, char **names_p)
{
    for (;;) {
        ssize_t room = flistxattr(fd, NULL, 0), len;

        *names_p = NULL;
        if (room <= 0)
            return room;
        *names_p = malloc((size_t)room);
        len = *names_p ? flistxattr(fd, *names_p, (size_t)room) : -1;
        if (len >= 0 || errno != ERANGE)
            return len;
        free(*names_p); /* another attribute was added in the meantime */
    }
}

bool rd_attributes_put(rd_complaints_t *complaints, const char *path, int fd, const struct stat *is,
                       rd_items_out_t *out)
{
    static char value[RD_VALUE_MAX];
    const rd_copy_t *copy = complaints->copy;
    bool goes_on = !copy->owner || put_owner(is, out);
    char *names = NULL;
    ssize_t len = 0;

    if (fd >= 0 && (copy->xattrs || copy->acls))
        len = names_of(fd, &names);
    if (len < 0 && errno != ENOTSUP)
        rd_complain(complaints, path, "cannot list its extended attributes: %s", strerror(errno));
    for (char *name = names; name && name < names + len && goes_on; name += strlen(name) + 1) {
        ssize_t bytes = is_kept(copy, name) ? fgetxattr(fd, name, value, sizeof value) : -1;

        if (bytes >= 0)
            goes_on = rd_items_attribute(out, name, value, (size_t)bytes);
        else if (is_kept(copy, name))
            rd_complain(complaints, path, "cannot read its attribute %s: %s", name,
                        strerror(errno));
    }
    free(names);
    return goes_on;
}

/* ---- receiving ---- */

void rd_attributes_clear(rd_attributes_t *attributes)
{
    for (size_t i = 0; i < attributes->count; i++) {
        free(attributes->of[i].name);
        free(attributes->of[i].value);
    }
    attributes->count = attributes->bytes = 0;
}

void rd_attributes_free(rd_attributes_t *attributes)
{
    rd_attributes_clear(attributes);
    free(attributes->of);
    *attributes = (rd_attributes_t){0};
}

bool rd_attributes_take(rd_attributes_t *attributes, const rd_item_t *item, rd_items_in_t *in,
                        rd_why_t *why)
{
    rd_attribute_t fresh = {.len = (size_t)item->size}, *of;
    const uint8_t *at = NULL;
    size_t len, done = 0;

    attributes->bytes += fresh.len + strlen(item->target);
    if (attributes->count >= COUNT_MAX || attributes->bytes > BYTES_MAX)
        return rd_because(why, "the other side sent more attributes than a file can have");
    fresh.name = strdup(item->target);
    fresh.value = malloc(fresh.len + 1);
    of = rd_with_room(attributes->of, attributes->count, sizeof *of);
    if (of)
        attributes->of = of;
    if (!fresh.name || !fresh.value || !of) {
        free(fresh.name);
        free(fresh.value);
        return rd_because(why, "out of memory");
    }
    attributes->of[attributes->count++] = fresh;
    while ((len = rd_items_data(in, &at, why)) > 0) {
        memcpy(fresh.value + done, at, len);
        done += len;
    }
    fresh.value[done] = 0;
    return done == fresh.len;
}

/* ---- setting ---- */

static const rd_attribute_t *find(const rd_attributes_t *attributes, const char *name)
{
    for (size_t i = 0; i < attributes->count; i++)
        if (strcmp(attributes->of[i].name, name) == 0)
            return &attributes->of[i];
    return NULL;
}

/* Serializes user look-ups, which are not thread-safe. */
static pthread_mutex_t looking = PTHREAD_MUTEX_INITIALIZER;

/* The caller holds `looking`. */
static bool look_up(const rd_attributes_t *attributes, uid_t *uid_p, gid_t *gid_p)
{
    static struct {
        char *text;
        uid_t uid;
        gid_t gid;
    } last;
    const rd_attribute_t *owner = find(attributes, OWNER);
    char user[256] = "", group[256] = "", *text = owner ? (char *)owner->value : NULL;
    const struct passwd *known;
    const struct group *known_group;
    unsigned uid, gid;
    int at = 0;

    if (!text || strlen(text) != owner->len)
        return false;
    if (!last.text || strcmp(last.text, text) != 0) {
        if (sscanf(text, "%u:%u:%n", &uid, &gid, &at) != 2 || at == 0)
            return false;
        (void)sscanf(text + at, "%255[^:]", user);
        text = strchr(text + at, ':');
        (void)(text ? sscanf(text, ":%255[^:]", group) : 0);
        known = *user ? getpwnam(user) : NULL;
        last.uid = known ? known->pw_uid : uid;
        known_group = *group ? getgrnam(group) : NULL;
        last.gid = known_group ? known_group->gr_gid : gid;
        free(last.text);
        last.text = strdup((char *)owner->value);
    }
    *uid_p = last.uid;
    *gid_p = last.gid;
    return true;
}

/* Returns false if no owner was sent, or if it is invalid. */
static bool owner_of(const rd_attributes_t *attributes, uid_t *uid_p, gid_t *gid_p)
{
    bool found;

    (void)pthread_mutex_lock(&looking);
    found = look_up(attributes, uid_p, gid_p);
    (void)pthread_mutex_unlock(&looking);
    return found;
}

bool rd_attributes_own(const rd_attributes_t *attributes, int fd)
{
    uid_t uid;
    gid_t gid;
    struct stat is;

    if (!owner_of(attributes, &uid, &gid)) {
        errno = EINVAL;
        return false;
    }
    if (fstat(fd, &is) == 0 && is.st_uid == uid && is.st_gid == gid)
        return true;
    if (fchown(fd, uid, gid) == 0)
        return true;
    /* An unprivileged user cannot change the owner, but can change the group to one that the user
     * belongs to. */
    return errno == EPERM && fchown(fd, (uid_t)-1, gid) == 0 && is.st_uid == uid;
}

bool rd_attributes_own_link(const rd_attributes_t *attributes, int parent, const char *name)
{
    uid_t uid;
    gid_t gid;

    if (!owner_of(attributes, &uid, &gid)) {
        errno = EINVAL;
        return false;
    }
    return fchownat(parent, name, uid, gid, AT_SYMLINK_NOFOLLOW) == 0;
}

static void say(rd_complaints_t *complaints, const char *path, const char *name)
{
    if (errno == EPERM)
        rd_warn(complaints, path, "its attribute %s is not kept: only root may set it", name);
    else if (errno == ENOTSUP)
        rd_warn(complaints, path,
                "its attribute %s is not kept: the file system does not support it", name);
    else
        rd_complain(complaints, path, "cannot keep its attribute %s: %s", name, strerror(errno));
}

static bool has_already(int fd, const rd_attribute_t *attribute)
{
    uint8_t value[RD_VALUE_MAX];

    return fgetxattr(fd, attribute->name, value, sizeof value) == (ssize_t)attribute->len &&
           memcmp(value, attribute->value, attribute->len) == 0;
}

void rd_attributes_set(const rd_attributes_t *attributes, rd_complaints_t *complaints,
                       const char *path, int fd, bool are_acls)
{
    const rd_copy_t *copy = complaints->copy;
    char *names = NULL;
    ssize_t len;

    if (!(are_acls ? copy->acls : copy->xattrs))
        return;
    len = names_of(fd, &names);
    for (const char *name = names; name && name < names + len; name += strlen(name) + 1)
        if (is_acl(name) == are_acls && is_kept(copy, name) && !find(attributes, name) &&
            fremovexattr(fd, name) < 0)
            say(complaints, path, name);
    free(names);
    for (size_t i = 0; i < attributes->count; i++) {
        const rd_attribute_t *one = &attributes->of[i];

        if (is_acl(one->name) == are_acls && is_kept(copy, one->name) && !has_already(fd, one) &&
            fsetxattr(fd, one->name, one->value, one->len, 0) < 0)
            say(complaints, path, one->name);
    }
}

bool rd_attributes_are(const rd_attributes_t *attributes, const rd_copy_t *copy, int fd,
                       const struct stat *is)
{
    char *names = NULL;
    ssize_t len = copy->xattrs || copy->acls ? names_of(fd, &names) : 0;
    bool are = true;
    uid_t uid;
    gid_t gid;

    if (copy->owner)
        are = owner_of(attributes, &uid, &gid) && is->st_uid == uid && is->st_gid == gid;
    for (const char *name = names; name && name < names + len && are; name += strlen(name) + 1)
        are = !is_kept(copy, name) || find(attributes, name);
    for (size_t i = 0; i < attributes->count && are; i++)
        are = !is_kept(copy, attributes->of[i].name) || has_already(fd, &attributes->of[i]);
    free(names);
    return are;
}
