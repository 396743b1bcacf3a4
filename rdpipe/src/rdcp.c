/* SPDX-License-Identifier: Apache-2.0 */
/* rdcp: copies files and trees between hosts with a pipeline of four parts, which rdcp itself
 * provides (copy.h). */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <unistd.h>

#include "copy/copy_files_from.h"
#include "copy/copy.h"
#include "run/prompt.h"
#include "run/run.h"

#define TEXT_OF(number) #number
#define AS_TEXT(number) TEXT_OF(number)
/* Version of the parts' protocol, which consists of their items and their options. */
#define PROTOCOL AS_TEXT(RD_ITEM_VERSION)
/* Handling a small file takes less time than this on a local disk, but more on a network file
 * system. */
#define BESIDE_US 200u
#define EXCLUSIONS_MAX 256u
#define DELETES_MAX 10000u
#define NAMES_FD 3 /* the descriptor on which a part reads the names (rd_files_from_put) */
/* In a message to an agent, each byte of a command can take up to three bytes. */
#define COMMAND_MAX (RD_LINE_MAX / 4)

typedef struct {
    rd_settings_t settings; /* must be first */
    rd_copy_t copy;
    const char *part; /* the name of its option, or NULL to run the complete copy */
    bool only_plan;
    const char *excluded[EXCLUSIONS_MAX];
    bool included[EXCLUSIONS_MAX];
    size_t exclusions;
    const char *also[RD_TARGETS_MAX - 1];
    size_t also_count;
    const char *files_from;
    bool from0;
    bool takes_names; /* a part that reads names from NAMES_FD */
    rd_names_t names;
    const char *protocol; /* protocol version of the rdcp that called this part */
} called_t;

/* This cast is valid because called_t begins with rd_settings_t, which begins with rd_cli_t. */
static called_t *called_of(rd_cli_t *cli)
{
    return (called_t *)cli;
}

static void add_pattern(rd_cli_t *cli, const rd_option_t *option, const char *value)
{
    called_t *called = called_of(cli);

    if (!*value || strlen(value) >= RD_PATH_BYTES)
        rd_usage(cli, "--%s '%.60s': expected a pattern of 1 to %u bytes", option->name, value,
                 RD_PATH_BYTES - 1);
    if (called->exclusions == EXCLUSIONS_MAX)
        rd_usage(cli, "more than %u --exclude and --include", EXCLUSIONS_MAX);
    called->included[called->exclusions] = strcmp(option->name, "include") == 0;
    called->excluded[called->exclusions++] = value;
}

static void keep_all(rd_cli_t *cli, const rd_option_t *option, const char *value)
{
    rd_copy_t *copy = &called_of(cli)->copy;

    (void)option, (void)value;
    copy->recursive = copy->preserve = true;
    copy->owner = copy->hard_links = copy->xattrs = copy->acls = true;
}

static void add_target(rd_cli_t *cli, const rd_option_t *option, const char *value)
{
    called_t *called = called_of(cli);

    (void)option;
    if (called->also_count == RD_TARGETS_MAX - 1)
        rd_usage(cli, "more than %u targets", RD_TARGETS_MAX);
    called->also[called->also_count++] = value;
}

static void take_max_delete(rd_cli_t *cli, const rd_option_t *option, const char *value)
{
    if (!rd_number(value, 0, UINT32_MAX, &called_of(cli)->copy.deletes_max))
        rd_usage(cli, "--%s '%.60s': expected a number, 0 to %u", option->name, value, UINT32_MAX);
}

static void take_delta(rd_cli_t *cli, const rd_option_t *option, const char *value)
{
    if (!rd_delta_parse(value, &called_of(cli)->copy.delta))
        rd_usage(cli, "--%s '%.60s': expected auto, always or never", option->name, value);
}

static void take_part(rd_cli_t *cli, const rd_option_t *option, const char *value)
{
    (void)value;
    called_of(cli)->part = option->name;
}

static void take_number_of_target(rd_cli_t *cli, const rd_option_t *option, const char *value)
{
    rd_copy_t *copy = &called_of(cli)->copy;

    (void)option;
    if (sscanf(value, "%u/%u", &copy->target, &copy->targets) != 2 || copy->target >= copy->targets)
        rd_usage(cli, "this option is for internal use only");
}

#define DELTA_WISH "delta="

/* A wish names a feature that a part uses if it can. An older version mistakes each wish for the
 * protocol version, but because only the last --of counts, it ends up with the right version and
 * copies without the features. */
static void take_protocol(rd_cli_t *cli, const rd_option_t *option, const char *value)
{
    called_t *called = called_of(cli);

    (void)option;
    if (*value != '+')
        called->protocol = value;
    else if (strncmp(value + 1, DELTA_WISH, strlen(DELTA_WISH)) == 0)
        (void)rd_delta_parse(value + 1 + strlen(DELTA_WISH), &called->copy.delta);
}

#define FLAG(field) .set = RD_SET_FLAG, .at = offsetof(called_t, field)
#define PASSED(field) FLAG(copy.field), .is_passed = true

static const rd_option_t options[] = {
    {"recursive", 'r', NULL, "copies directories with their contents", PASSED(recursive)},
    {"preserve", 'p', NULL, "keeps times and modes; files of the same size and time are not read",
     PASSED(preserve)},
    {"archive", 'a', NULL, "the same as -rp with the next four options", .take = keep_all},
    {"owner", 0, NULL, "keeps owners and set-id bits (needs root)", PASSED(owner)},
    {"hard-links", 0, NULL, "keeps hard links", PASSED(hard_links)},
    {"xattrs", 0, NULL, "keeps extended attributes", PASSED(xattrs)},
    {"acls", 0, NULL, "keeps access control lists", PASSED(acls)},
    {"exclude", 0, "PATTERN",
     "omits files with this name, or with this end of their path if it has a slash",
     .take = add_pattern},
    {"include", 0, "PATTERN", "keeps such files even if a later --exclude would omit them",
     .take = add_pattern},
    {"files-from", 0, "FILE",
     "copies what FILE names: paths below SOURCE, one a line (-: standard input)",
     .set = RD_SET_TEXT, .at = offsetof(called_t, files_from)},
    {"from0", '0', NULL, "the names in FILE end with a NUL", FLAG(from0)},
    {"also", 0, "TARGET", "copies to this target as well; each byte leaves the source once",
     .take = add_target},
    {"one-file-system", 'x', NULL, "omits other file systems that are mounted in SOURCE",
     PASSED(one_system)},
    {"delete", 0, NULL, "with -r: deletes what is only at the target, if the copy had no errors",
     PASSED(deletes)},
    {"max-delete", 0, "N", "deletes nothing if it would be more than N files (10000)",
     .take = take_max_delete},
    {"atomic", 0, NULL, "with -r: replaces a tree at the target at once, when the copy is complete",
     PASSED(atomic)},
    {"compare", 0, NULL, "with -p: compares contents even if size and time are the same",
     PASSED(compare)},
    {"delta", 0, "WHEN",
     "sends only the differences of a changed file: auto (between hosts, the default), always or "
     "never",
     .take = take_delta},
    {"no-target-directory", 'T', NULL, "TARGET is the copy itself, even if it is a directory",
     PASSED(no_directory)},
    {"fail-special", 0, NULL, "treats devices, FIFOs and sockets in a tree as errors",
     PASSED(fail_special)},
    {"dry-run", 'n', NULL, "lists what would be new, changed and deleted, and changes nothing",
     PASSED(dry_run)},
    {"plan", 0, NULL, "shows which commands would run where, and exits", FLAG(only_plan)},
    {RD_OPTION_VERBOSE("reports numbers of files, the carriers, the reasons and the throughput")},
    /* options of the parts, with which rdcp calls itself */
    {"list", 0, NULL, NULL, .take = take_part},
    {"have", 0, NULL, NULL, .take = take_part},
    {"pack", 0, NULL, NULL, .take = take_part},
    {"unpack", 0, NULL, NULL, .take = take_part},
    {"show", 0, NULL, NULL, .take = take_part},
    {"names", 0, NULL, NULL, FLAG(takes_names)},
    {"target", 0, "", NULL, .take = take_number_of_target},
    {"host", 0, "", NULL, .set = RD_SET_TEXT, .at = offsetof(called_t, copy.host)},
    {"of", 0, "", NULL, .take = take_protocol},
    {.name = NULL}};

static const rd_command_t rdcp = {
    .usage =
        "usage: rdcp [OPTION]... SOURCE... TARGET\n"
        "Copies files, or with -r trees, between hosts. SOURCE and TARGET are PATH or "
        "[USER@]HOST:PATH.\n"
        "If the target is a directory, copies go into it. Several sources, all on the same host, "
        "need such a target.\n"
        "After an interruption the same command continues the copy.\n"
        "Each host needs rdcp and rdpipe on its PATH, with the same protocol (rdpipe doctor). "
        "Example:\n"
        "  rdcp -r host1:photos host2:/srv\n"
        "Options:\n",
    .end = "Exit status: 0 everything was copied, except what a warning names; 1 something was "
           "not; 2 usage error; 125 a host, a connection or a\nstream failed; 128+N ended by "
           "signal N.\n",
    .column = 24,
    .tables = {options, rd_common_options, rd_settings_options}};

static bool is_part(const called_t *called, const char *name)
{
    return strcmp(called->part, name) == 0;
}

/* After the options, the arguments of a part at the source are the sources, and those of a part at
 * the target are the target and the name of each source. */
static int run_part(called_t *called, char *const *paths, size_t count)
{
    bool is_source = is_part(called, "list") || is_part(called, "pack");

    called->copy.path = count > 0 ? paths[0] : "";
    called->copy.paths = is_source ? (const char *const *)paths : NULL;
    called->copy.names = is_source ? NULL : (const char *const *)paths + 1;
    called->copy.sources = is_source ? count : count - 1;
    called->copy.excluded = called->excluded;
    called->copy.included = called->included;
    called->copy.exclusions = called->exclusions;
    called->copy.verbose = called->settings.cli.verbose;
    called->copy.json = called->settings.cli.json;
    called->copy.beside_us = BESIDE_US;
    if (!called->protocol || strcmp(called->protocol, PROTOCOL) != 0) {
        rd_complaints_t complaints = {.copy = &called->copy};

        rd_complain(&complaints, "",
                    "rdcp there has protocol " PROTOCOL " (version %s), here it is %s: install "
                    "versions with the same protocol",
                    RD_VERSION, called->protocol ? called->protocol : "another one");
        return RD_COPY_FAILED;
    }
    if (count < (is_source ? 1 : 2))
        rd_usage(&called->settings.cli, "this option is for internal use only");
    if (called->takes_names) {
        rd_why_t why;

        if (!rd_files_from_take(&called->names, NAMES_FD, &why)) {
            rd_say(&called->settings.cli, "%s", why.text);
            return RD_COPY_FAILED;
        }
        called->copy.wanted = &called->names;
    }
    (void)signal(SIGXFSZ, SIG_IGN); /* write then fails with an error for that file */
    if (is_part(called, "list"))
        return rd_copy_list(&called->copy, 1);
    if (is_part(called, "have"))
        return rd_copy_have(&called->copy, 0, 1);
    if (is_part(called, "pack"))
        return rd_copy_pack(&called->copy, 0, 1);
    if (is_part(called, "show"))
        return rd_copy_show(&called->copy, 0, 1);
    return rd_copy_unpack(&called->copy, 0);
}

/* ---- the pipeline ---- */

typedef struct {
    const char *given;
    char *host, *path;
    char name[256]; /* for a source, the last component of its path, "" if it has none */
} end_t;

typedef struct {
    end_t *of;
    size_t count;
} sources_t;

static void name_of(const char *path, char name[256])
{
    size_t len = strlen(path), start;

    while (len > 0 && path[len - 1] == '/')
        len--;
    for (start = len; start > 0 && path[start - 1] != '/';)
        start--;
    (void)snprintf(name, 256, "%.*s", (int)(len - start), path + start);
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        name[0] = 0;
}

/* Removes a leading ~/ from a path on another host, where commands start in the home directory
 * anyway. */
static const char *without_tilde(const end_t *end)
{
    return !*end->host || end->path[0] != '~'         ? end->path
           : end->path[1] == '/' || end->path[1] == 0 ? end->path + 1 + strspn(end->path + 1, "/")
                                                      : end->path;
}

static void put_program(FILE *to, const called_t *called, const end_t *end)
{
    char self[4096];
    ssize_t len = *end->host ? 0 : readlink("/proc/self/exe", self, sizeof self - 1);

    if (len > 0) {
        self[len] = 0;
        rd_quote(to, self);
    } else if (*end->host && called->settings.ssh.remote_path) {
        rd_quote(to, called->settings.ssh.remote_path);
        (void)fputs("/rdcp", to);
    } else {
        (void)fputs("rdcp", to);
    }
}

static void put_options(FILE *to, const called_t *called)
{
    for (const rd_option_t *option = options; option->name; option++)
        if (option->is_passed && *((const char *)called + option->at)) {
            if (option->letter)
                (void)fprintf(to, " -%c", option->letter);
            else
                (void)fprintf(to, " --%s", option->name);
        }
    if (called->settings.cli.json)
        (void)fputs(" --json", to);
    if (called->copy.deletes)
        (void)fprintf(to, " --max-delete %llu", (unsigned long long)called->copy.deletes_max);
}

typedef struct {
    end_t of[RD_TARGETS_MAX];
    size_t count;
} targets_t;

/* `which` is the number of a target, or -1 for the source. The caller frees the result. */
static char *command_of(const called_t *called, const char *part, const sources_t *sources,
                        const targets_t *targets, int which)
{
    bool is_target = which >= 0;
    const end_t *end = is_target ? &targets->of[which] : sources->of;
    char *text = NULL;
    size_t bytes;
    FILE *to = open_memstream(&text, &bytes);

    if (!to)
        return NULL;
    (void)fputs("exec ", to);
    put_program(to, called, end);
    (void)fprintf(to, " --%s", part);
    if (called->copy.delta != RD_DELTA_AUTO && !is_target)
        (void)fprintf(to, " --of +" DELTA_WISH "%s", rd_delta_name(called->copy.delta));
    (void)fputs(" --of " PROTOCOL, to);
    put_options(to, called);
    if (is_target && targets->count > 1)
        (void)fprintf(to, " --target %d/%zu", which, targets->count);
    if (called->files_from && !is_target)
        (void)fputs(" --names", to);
    (void)fputs(" --host ", to);
    rd_quote(to, end->host);
    /* The target must know the patterns because it deletes nothing that is excluded. */
    for (size_t i = 0; (!is_target || called->copy.deletes) && i < called->exclusions; i++) {
        (void)fputs(called->included[i] ? " --include " : " --exclude ", to);
        rd_quote(to, called->excluded[i]);
    }
    (void)fputs(" --", to);
    if (is_target) {
        (void)fputc(' ', to);
        rd_quote(to, without_tilde(end));
    }
    for (size_t i = 0; i < sources->count; i++) {
        (void)fputc(' ', to);
        rd_quote(to, is_target ? sources->of[i].name : without_tilde(&sources->of[i]));
    }
    if (called->files_from && !is_target)
        rd_files_from_put(to, &called->names);
    return fclose(to) == 0 ? text : NULL;
}

/* Returns false if memory is exhausted. */
static bool add_part(rd_chain_t *chain, const called_t *called, const char *part,
                     const sources_t *sources, const targets_t *targets, int which)
{
    char *command = command_of(called, part, sources, targets, which);
    const end_t *end = which >= 0 ? &targets->of[which] : sources->of;
    bool is_last = strcmp(part, "unpack") == 0;

    if (command && strlen(command) >= COMMAND_MAX)
        rd_usage(&called->settings.cli,
                 "the names of the sources, or of --files-from, have more than %zu bytes: copy "
                 "them with several commands, or their directory with -r",
                 COMMAND_MAX);
    chain->of[chain->count++] =
        (rd_node_t){end->host, command, RD_WORK_COMMAND, is_last && targets->count > 1};
    return command != NULL;
}

static bool make_chain(rd_chain_t *chain, const called_t *called, const sources_t *sources,
                       const targets_t *targets)
{
    const char *last = called->copy.dry_run ? "show" : "unpack";
    bool done = add_part(chain, called, "list", sources, targets, -1);

    for (size_t i = 0; i < targets->count; i++)
        done &= add_part(chain, called, "have", sources, targets, (int)i);
    done &= add_part(chain, called, "pack", sources, targets, -1);
    for (size_t i = 0; i < targets->count; i++)
        done &= add_part(chain, called, last, sources, targets, (int)i);
    return done;
}

static int copy_all(const called_t *called, const sources_t *sources, const targets_t *targets)
{
    static rd_chain_t chain;
    bool done = make_chain(&chain, called, sources, targets);
    size_t parts = chain.count;
    int status = 0;

    if (called->copy.dry_run) /* the list of changes is the output that the user wants */
        chain.of[chain.count++] = (rd_node_t){"", "", RD_WORK_STDOUT, false};
    if (!done)
        rd_say(&called->settings.cli, "out of memory");
    else if (called->only_plan)
        status = rd_plan(&chain, &called->settings);
    else
        status = rd_run(&chain, &called->settings);
    for (size_t i = 0; i < parts; i++)
        free((char *)(uintptr_t)chain.of[i].text);
    return !done ? RD_EXIT_OWN : status < 0 ? rd_end_by(-status) : status;
}

static end_t end_of(const called_t *called, const char *text)
{
    rd_why_t why;
    end_t end = {.given = text};

    if (!rd_host_path(text, &end.host, &end.path, &why))
        rd_usage(&called->settings.cli, "%s", why.text);
    return end;
}

static void free_end(end_t *end)
{
    free(end->host);
    free(end->path);
}

static int compare_names(const void *one, const void *other)
{
    return strcmp((*(const end_t *const *)one)->name, (*(const end_t *const *)other)->name);
}

/* Exits if two sources have the same name, because the later one would replace the other. Returns
 * false if memory is exhausted. */
static bool check_names(const called_t *called, const sources_t *sources)
{
    const end_t **sorted = calloc(sources->count, sizeof(const end_t *));

    if (!sorted)
        return false;
    for (size_t i = 0; i < sources->count; i++)
        sorted[i] = &sources->of[i];
    qsort(sorted, sources->count, sizeof *sorted, compare_names);
    for (size_t i = 1; i < sources->count; i++)
        if (*sorted[i]->name && compare_names(&sorted[i - 1], &sorted[i]) == 0)
            rd_usage(&called->settings.cli, "%s and %s would both become '%s' in the target",
                     sorted[i - 1]->given, sorted[i]->given, sorted[i]->name);
    free(sorted);
    return true;
}

/* Finds the sources, and exits unless they are all on the same host, because a single part reads
 * them. Returns false if out of memory. */
static bool find_sources(const called_t *called, char *const *args, size_t count,
                         sources_t *sources_p)
{
    if (count > 1 && called->copy.no_directory)
        rd_usage(&called->settings.cli, "-T takes one source, got %zu", count);
    *sources_p = (sources_t){.of = calloc(count, sizeof *sources_p->of), .count = count};
    if (!sources_p->of)
        return false;
    for (size_t i = 0; i < count; i++) {
        sources_p->of[i] = end_of(called, args[i]);
        if (strcmp(sources_p->of[i].host, sources_p->of[0].host) != 0)
            rd_usage(&called->settings.cli,
                     "%s is on another host than %s: copy from each host with a separate command",
                     args[i], args[0]);
        name_of(without_tilde(&sources_p->of[i]), sources_p->of[i].name);
    }
    return check_names(called, sources_p);
}

static void check_options(const called_t *called, size_t args)
{
    const rd_cli_t *cli = &called->settings.cli;

    if (called->copy.deletes && !called->copy.recursive)
        rd_usage(cli, "--delete needs -r, which lists whole directories");
    if (called->copy.atomic && !called->copy.recursive && !called->files_from)
        rd_usage(cli, "--atomic needs -r: a file alone is always replaced as a whole");
    if (called->copy.deletes && called->files_from)
        rd_usage(cli, "--delete and --files-from cannot be used together: the names do not say "
                      "what else the source has");
    if (called->also_count > 0 && called->copy.dry_run)
        rd_usage(cli, "--dry-run takes only one target: run it once for each");
    if (called->from0 && !called->files_from)
        rd_usage(cli, "--from0 needs --files-from, because it says how those names end");
    if (called->files_from && args > 2)
        rd_usage(cli, "--files-from names paths below one SOURCE, got %zu", args - 1);
}

static bool read_names(called_t *called)
{
    rd_why_t why;

    if (!called->files_from ||
        rd_files_from_read(&called->names, called->files_from, called->from0, &why))
        return true;
    rd_say(&called->settings.cli, "%s", why.text);
    return false;
}

int main(int argc, char **argv)
{
    static called_t called = {.settings = {.is_copy = true},
                              .copy = {.host = "", .name = "", .deletes_max = DELETES_MAX}};
    sources_t sources;
    targets_t targets = {.count = 0};
    int status;

    rd_cli_init(&called.settings.cli, "rdcp");
    if (rd_prompt_is_asked(argc))
        return rd_prompt(argv[1]);
    rd_cli_options(&called.settings.cli, argc, argv, &rdcp);
    rd_cli_check(&called.settings.cli);
    if (called.part)
        return run_part(&called, argv + optind, (size_t)(argc - optind));
    check_options(&called, (size_t)(argc - optind));
    if (argc - optind < 2)
        rd_usage(&called.settings.cli, "expected SOURCE and TARGET, got %d arguments",
                 argc - optind);
    if (!read_names(&called))
        return RD_EXIT_USAGE;
    if (!find_sources(&called, argv + optind, (size_t)(argc - optind - 1), &sources)) {
        rd_say(&called.settings.cli, "out of memory");
        return RD_EXIT_OWN;
    }
    targets.of[targets.count++] = end_of(&called, argv[argc - 1]);
    for (size_t i = 0; i < called.also_count; i++)
        targets.of[targets.count++] = end_of(&called, called.also[i]);
    if (called.copy.dry_run && !called.settings.cli.progress)
        called.settings.cli.quiet = true;
    status = copy_all(&called, &sources, &targets);
    for (size_t i = 0; i < sources.count; i++)
        free_end(&sources.of[i]);
    free(sources.of);
    rd_names_free(&called.names);
    for (size_t i = 0; i < targets.count; i++)
        free_end(&targets.of[i]);
    return status;
}
