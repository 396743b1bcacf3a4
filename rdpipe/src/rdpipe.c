/* SPDX-License-Identifier: Apache-2.0 */
/* rdpipe: runs a pipeline of commands on several hosts. */
#include <getopt.h>

#include "run/agent.h"
#include "run/doctor.h"
#include "run/prompt.h"
#include "run/run.h"

static const char help[] =
    "usage: rdpipe [OPTION]... HOST:COMMAND...\n"
    "       rdpipe doctor [OPTION]... [HOST]...\n"
    "Runs shell commands on hosts and pipes standard input through them to standard output.\n"
    "  HOST:COMMAND      HOST is [USER@]NAME as ssh takes it; empty: this host, without ssh\n"
    "  HOST:             relays the stream; at the ends also HOST:'<FILE', '>FILE' or '>>FILE'\n"
    "  A [B C D]         each of B, C and D gets the whole output of A (also: --tee A B C D)\n"
    "Each host needs rdpipe on its PATH, with the same protocol (rdpipe doctor). Example:\n"
    "  echo hello | rdpipe host1:'tr [:lower:] [:upper:]' host2:'rev'\n"
    "doctor shows what is compiled in, what this system offers, and which hosts can be reached.\n"
    "Options:\n"
    "  -n, --plan            shows what would be done, and exits\n"
    "  --tee                 all segments but the first get the same stream, as if in brackets\n"
    "  --buffer SIZE         buffer before the last segment, or each in brackets, 1M to 1024G "
    "(none)\n"
    "  --start PERCENT       reads from the buffer at this fill level, until it is empty (0)\n"
    "  --drop-slow SECONDS   drops a segment in brackets that reads nothing for this time\n"
    "  -v, --verbose         reports the carriers, the reasons and the "
    "throughput\n" RD_SETTINGS_HELP
    "Exit status: that of the last command that failed, as with a shell's pipefail; 0 if none did; "
    "2 usage error;\n125 a host, a connection or a stream failed; 128+N ended by signal N.\n";

enum { OPTION_TEE = RD_OPTION_OWN, OPTION_AGENT };

static const struct option options[] = {RD_STREAM_OPTIONS,
                                        RD_SETTINGS_OPTIONS,
                                        {"plan", 0, NULL, 'n'},
                                        {"tee", 0, NULL, OPTION_TEE},
                                        {"buffer", 1, NULL, RD_OPTION_BUFFER},
                                        {"start", 1, NULL, RD_OPTION_START},
                                        {"drop-slow", 1, NULL, RD_OPTION_DROP},
                                        {"agent", 0, NULL, OPTION_AGENT},
                                        {NULL, 0, NULL, 0}};

typedef struct {
    rd_settings_t settings;
    bool tee, only_plan, is_agent;
} called_t;

static bool take_option(called_t *called, int option, const char *value)
{
    switch (option) {
    case 'n':
        called->only_plan = true;
        return true;
    case OPTION_TEE:
        called->tee = true;
        return true;
    case OPTION_AGENT:
        called->is_agent = true;
        return true;
    default:
        return rd_settings_option(&called->settings, option, value);
    }
}

static int run(const called_t *called, char *const *args, size_t count)
{
    static rd_pipeline_t pipeline;
    static rd_chain_t chain;
    rd_why_t why;
    int status = 0;

    if (!rd_pipeline_parse(args, count, called->tee, &pipeline, &why))
        rd_usage(&called->settings.cli, "%s", why.text);
    if (called->settings.cli.drop_s > 0 && !pipeline.of[pipeline.count - 1].is_receiver)
        rd_usage(&called->settings.cli, "--drop-slow is for segments in brackets, or with --tee");
    rd_chain_of(&pipeline, &chain);
    if (called->only_plan)
        status = rd_plan(&chain, &called->settings);
    else
        status = rd_run(&chain, &called->settings);
    rd_pipeline_free(&pipeline);
    return status < 0 ? rd_end_by(-status) : status;
}

static void take_options(called_t *called, int argc, char **argv)
{
    int option;

    while ((option = getopt_long(argc, argv, "+vqhn" RD_SETTINGS_LETTERS, options, NULL)) >= 0) {
        if (option == 'h') {
            (void)fputs(help, stdout);
            exit(rd_cli_printed(&called->settings.cli));
        }
        if (!take_option(called, option, optarg))
            rd_cli_option(&called->settings.cli, option, optarg);
    }
}

int main(int argc, char **argv)
{
    static called_t called;
    bool is_doctor;

    rd_cli_init(&called.settings.cli, "rdpipe");
    if (rd_prompt_is_asked(argc))
        return rd_prompt(argv[1]);
    take_options(&called, argc, argv);
    is_doctor = optind < argc && strcmp(argv[optind], "doctor") == 0;
    if (is_doctor) { /* options may also follow the subcommand */
        optind++;
        take_options(&called, argc, argv);
    }
    rd_cli_check(&called.settings.cli);
    if (called.is_agent)
        return rd_agent(0, 1);
    if (is_doctor)
        return rd_doctor(&called.settings, argv + optind, (size_t)(argc - optind));
    return run(&called, argv + optind, (size_t)(argc - optind));
}
