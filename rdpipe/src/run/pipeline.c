/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline.h"

static const char *const work_names[] = {"command", "relay", "from",  "to",
                                         "append",  "stdin", "stdout"};

const char *rd_work_name(rd_work_t work)
{
    return work_names[work];
}

bool rd_work_of(const char *name, rd_work_t *work_p)
{
    for (size_t i = 0; i < sizeof work_names / sizeof *work_names; i++)
        if (strcmp(name, work_names[i]) == 0) {
            *work_p = (rd_work_t)i;
            return true;
        }
    return false;
}

/* Returns the end of the host in HOST:COMMAND, which is the colon, or NULL if there is none. Sets
 * *open_p to the opening bracket of an IPv6 address, or NULL. */
static const char *host_end(const char *text, const char **open_p)
{
    const char *at = strrchr(text, '@'), *name = text, *colon = strchr(text, ':');
    size_t len;

    *open_p = NULL;
    if (at && colon && at < colon)
        name = at + 1;
    else if (colon && memchr(text, '@', (size_t)(colon - text)))
        name = (const char *)memchr(text, '@', (size_t)(colon - text)) + 1;
    if (*name != '[')
        return colon;
    len = strspn(name + 1, "0123456789abcdefABCDEF:.");
    if (name[1 + len] == '%')
        len += 1 + strcspn(name + 2 + len, "]:/ ");
    if (name[1 + len] != ']' || name[2 + len] != ':' || !memchr(name + 1, ':', len))
        return NULL;
    *open_p = name;
    return name + 2 + len;
}

static bool is_ipv6_host(const char *text)
{
    const char *open = NULL;

    return host_end(text, &open) && open;
}

/* Returns the host without brackets, as ssh expects it. */
static char *host_of(const char *text, const char *end, const char *open)
{
    size_t len = (size_t)(end - text);
    char *host = malloc(len + 1), *to = host;

    if (!host)
        return NULL;
    for (const char *from = text; from < end; from++)
        if (!open || (from != open && from != end - 1))
            *to++ = *from;
    *to = 0;
    return host;
}

static bool host_is_sane(const char *host)
{
    if (*host == '-' || *host == '@')
        return false;
    for (const char *at = host; *at; at++)
        if ((unsigned char)*at <= ' ' || *at == 127 || strchr("/\\'\"`$;&|<>()[]{}*?!#", *at))
            return false;
    return *host == 0 || host[strlen(host) - 1] != '@';
}

/* Splits the text at the colon that host_end has found. If there is none, the host is "". On
 * failure, *why is set. */
static bool split(const char *text, const char *colon, const char *open, char **host_p,
                  char **rest_p, rd_why_t *why)
{
    *host_p = colon ? host_of(text, colon, open) : strdup("");
    *rest_p = strdup(colon ? colon + 1 : text);
    if (!*host_p || !*rest_p)
        (void)rd_because(why, "out of memory");
    else if (host_is_sane(*host_p))
        return true;
    else
        (void)rd_because(why, "'%.100s': '%.60s' is not a valid host for ssh", text, *host_p);
    free(*host_p);
    free(*rest_p);
    return false;
}

bool rd_host_path(const char *text, char **host_p, char **path_p, rd_why_t *why)
{
    const char *open = NULL, *colon = host_end(text, &open), *slash = strchr(text, '/');
    bool is_here = !colon || (slash && slash < colon && !open);

    if (is_here && !*text)
        return rd_because(why, "expected a path, got nothing");
    return split(text, is_here ? NULL : colon, open, host_p, path_p, why);
}

/* Returns whether the text is a single shell word without a command substitution. */
static bool is_one_word(const char *text)
{
    char quote = 0;

    if (!*text)
        return false;
    for (; *text; text++) {
        if (*text == '`' || (*text == '$' && text[1] == '('))
            return false;
        if (quote) {
            if (*text == '\\' && quote == '"' && text[1])
                text++;
            else if (*text == quote)
                quote = 0;
        } else if (*text == '\'' || *text == '"') {
            quote = *text;
        } else if (*text == '\\' && text[1]) {
            text++;
        } else if (strchr(" \t\n|&;<>()#*?[", *text)) {
            return false;
        }
    }
    return !quote;
}

/* Recognizes segments that are only a redirection. Changes the text in place. */
static void find_work(rd_segment_t *segment)
{
    char *text = segment->text, *word = text + strspn(text, " \t");
    size_t len = strlen(word);
    rd_work_t work = *word == '<' ? RD_WORK_FROM_FILE : RD_WORK_TO_FILE;

    while (len > 0 && strchr(" \t", word[len - 1]))
        len--;
    segment->work = len == 0 ? RD_WORK_RELAY : RD_WORK_COMMAND;
    if (*word != '<' && *word != '>')
        return;
    word[len] = 0;
    if (work == RD_WORK_TO_FILE && word[1] == '>') {
        work = RD_WORK_APPEND;
        word++;
    }
    word += 1 + strspn(word + 1, " \t");
    if (!is_one_word(word))
        return;
    segment->work = work;
    memmove(text, word, strlen(word) + 1);
}

static bool add_segment(rd_pipeline_t *pipeline, const char *arg, size_t len, bool is_receiver,
                        rd_why_t *why)
{
    rd_segment_t *segment = &pipeline->of[pipeline->count];
    char *text = strndup(arg, len);
    const char *open = NULL, *colon = text ? host_end(text, &open) : NULL;
    bool done = false;

    if (pipeline->count == RD_SEGMENTS_MAX)
        (void)rd_because(why, "more than %u segments", RD_SEGMENTS_MAX);
    else if (!text)
        (void)rd_because(why, "out of memory");
    else if (colon)
        done = split(text, colon, open, &segment->host, &segment->text, why);
    else if (*text == '-' && text[1])
        (void)rd_because(why,
                         "'%.100s': options come before the first segment; a command with spaces "
                         "needs quotes: HOST:'COMMAND'",
                         text);
    else
        (void)rd_because(why, "'%.100s': expected HOST:COMMAND", text);
    if (done) {
        segment->is_receiver = is_receiver;
        find_work(segment);
        pipeline->count++;
    }
    free(text);
    return done;
}

static bool places_are_right(const rd_pipeline_t *pipeline, rd_why_t *why)
{
    size_t last = pipeline->count - 1;

    for (size_t i = 0; i < pipeline->count; i++) {
        const rd_segment_t *segment = &pipeline->of[i];
        bool writes = segment->work == RD_WORK_TO_FILE || segment->work == RD_WORK_APPEND;

        if (segment->work == RD_WORK_FROM_FILE && (i > 0 || segment->is_receiver))
            return rd_because(why, "'<%.100s': only the first segment can be a file that is read%s",
                              segment->text, i > 0 ? "" : ", and not in brackets");
        if (writes && i < last && !segment->is_receiver)
            return rd_because(why,
                              "'>%.100s': only the last segment can be a file; use 'tee %.100s'",
                              segment->text, segment->text);
    }
    return true;
}

static bool parse_all(char *const *args, size_t count, bool tee, rd_pipeline_t *pipeline,
                      rd_why_t *why)
{
    enum { NO, ALONE, ATTACHED } group = NO;
    bool has_group = false;

    for (size_t i = 0; i < count; i++) {
        const char *arg = args[i];
        size_t len = strlen(arg);
        bool closes = false;

        if (has_group && group == NO)
            return rd_because(why, "'%.100s': nothing can come after ']'", arg);
        if (group == NO && strcmp(arg, "[") == 0) {
            group = ALONE;
            has_group = true;
            continue;
        }
        if (group == ALONE && strcmp(arg, "]") == 0) {
            group = NO;
            continue;
        }
        if (group == NO && *arg == '[' && !is_ipv6_host(arg)) {
            group = ATTACHED;
            has_group = true;
            arg++;
            len--;
        }
        if (group == ATTACHED && i + 1 == count && len > 0 && arg[len - 1] == ']') {
            closes = true;
            len--;
        }
        if (!add_segment(pipeline, arg, len, group != NO || (tee && pipeline->count > 0), why))
            return false;
        if (closes)
            group = NO;
    }
    if (group != NO)
        return rd_because(why, "'[' without ']'");
    if (pipeline->count == 0)
        return rd_because(why, "expected at least one HOST:COMMAND");
    if (has_group && tee)
        return rd_because(why, "--tee and brackets mean the same; use one of them");
    if (tee && pipeline->count < 2)
        return rd_because(why, "--tee: expected receivers after the first segment");
    return places_are_right(pipeline, why);
}

bool rd_pipeline_parse(char *const *args, size_t count, bool tee, rd_pipeline_t *pipeline_p,
                       rd_why_t *why)
{
    *pipeline_p = (rd_pipeline_t){.count = 0};
    if (parse_all(args, count, tee, pipeline_p, why))
        return true;
    rd_pipeline_free(pipeline_p);
    return false;
}

void rd_pipeline_free(rd_pipeline_t *pipeline)
{
    for (size_t i = 0; i < pipeline->count; i++) {
        free(pipeline->of[i].host);
        free(pipeline->of[i].text);
    }
    pipeline->count = 0;
}
