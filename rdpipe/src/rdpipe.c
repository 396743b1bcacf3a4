/* SPDX-License-Identifier: Apache-2.0 */
/* rdpipe: runs a pipeline of commands on several hosts. */
#include <getopt.h>

#include "run/agent.h"
#include "run/doctor.h"
#include "run/prompt.h"
#include "run/run.h"

typedef struct {
    rd_settings_t settings; /* must be first */
    bool tee, only_plan, is_agent;
} called_t;

static const rd_option_t options[] = {
    {"plan", 'n', NULL, "shows what would be done, and exits", .set = RD_SET_FLAG,
     .at = offsetof(called_t, only_plan)},
    {"tee", 0, NULL, "all segments but the first get the same stream, as if in brackets",
     .set = RD_SET_FLAG, .at = offsetof(called_t, tee)},
    {RD_OPTION_BUFFER("buffer before the last segment, or each in brackets, 1M to 1024G (none)")},
    {RD_OPTION_START("reads from the buffer at this fill level, until it is empty (0)")},
    {"drop-slow", 0, "SECONDS", "drops a segment in brackets that reads nothing for this time",
     RD_OPTION_SECONDS(drop_s)},
    {RD_OPTION_VERBOSE("reports the carriers, the reasons and the throughput")},
    {"agent", 0, NULL, NULL, .set = RD_SET_FLAG, .at = offsetof(called_t, is_agent)},
    {.name = NULL}};

static const rd_command_t rdpipe = {
    .usage =
        "usage: rdpipe [OPTION]... HOST:COMMAND...\n"
        "       rdpipe doctor [OPTION]... [HOST]...\n"
        "Runs shell commands on hosts and pipes standard input through them to standard output.\n"
        "  HOST:COMMAND      HOST is [USER@]NAME as ssh takes it; empty: this host, without ssh\n"
        "  HOST:             relays the stream; at the ends also HOST:'<FILE', '>FILE' or "
        "'>>FILE'\n"
        "  A [B C D]         each of B, C and D gets the whole output of A (also: --tee A B C D)\n"
        "Each host needs rdpipe on its PATH, with the same protocol (rdpipe doctor). Example:\n"
        "  echo hello | rdpipe host1:'tr [:lower:] [:upper:]' host2:'rev'\n"
        "doctor shows what is compiled in, what this system offers, and which hosts can be "
        "reached.\n"
        "Options:\n",
    .end = "Exit status: that of the last command that failed, as with a shell's pipefail; 0 if "
           "none did; 2 usage error;\n125 a host, a connection or a stream failed; 128+N ended by "
           "signal N.\n",
    .column = 24,
    .is_ordered = true,
    .tables = {options, rd_common_options, rd_settings_options}};

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

int main(int argc, char **argv)
{
    static called_t called;
    bool is_doctor;

    rd_cli_init(&called.settings.cli, "rdpipe");
    if (rd_prompt_is_asked(argc))
        return rd_prompt(argv[1]);
    rd_cli_options(&called.settings.cli, argc, argv, &rdpipe);
    is_doctor = optind < argc && strcmp(argv[optind], "doctor") == 0;
    if (is_doctor) { /* options may also follow the subcommand */
        optind++;
        rd_cli_options(&called.settings.cli, argc, argv, &rdpipe);
    }
    rd_cli_check(&called.settings.cli);
    if (called.is_agent)
        return rd_agent(0, 1);
    if (is_doctor)
        return rd_doctor(&called.settings, argv + optind, (size_t)(argc - optind));
    return run(&called, argv + optind, (size_t)(argc - optind));
}
