/* SPDX-License-Identifier: Apache-2.0 */
/* The chain of nodes that a pipeline forms, and how it is printed. */
#include "run.h"

void rd_chain_of(const rd_pipeline_t *pipeline, rd_chain_t *chain_p)
{
    const rd_segment_t *last = &pipeline->of[pipeline->count - 1];
    rd_chain_t chain = {.count = 0};

    if (pipeline->of[0].work != RD_WORK_FROM_FILE)
        chain.of[chain.count++] = (rd_node_t){"", "", RD_WORK_STDIN, false};
    for (size_t i = 0; i < pipeline->count; i++) {
        const rd_segment_t *segment = &pipeline->of[i];

        chain.of[chain.count++] =
            (rd_node_t){segment->host, segment->text, segment->work, segment->is_receiver};
    }
    if (!last->is_receiver && last->work != RD_WORK_TO_FILE && last->work != RD_WORK_APPEND)
        chain.of[chain.count++] = (rd_node_t){"", "", RD_WORK_STDOUT, false};
    *chain_p = chain;
}

static void show_work(const rd_node_t *node)
{
    static const char *const works[] = {
        [RD_WORK_COMMAND] = "sh -c \"",
        [RD_WORK_RELAY] = "relays the stream, without a process",
        [RD_WORK_FROM_FILE] = "reads the file ",
        [RD_WORK_TO_FILE] = "writes the file ",
        [RD_WORK_APPEND] = "appends to the file ",
        [RD_WORK_STDIN] = "standard input",
        [RD_WORK_STDOUT] = "standard output",
    };

    (void)printf("%s%s%s%s", works[node->work], node->work == RD_WORK_RELAY ? "" : node->text,
                 node->work == RD_WORK_COMMAND ? "\"" : "",
                 node->is_receiver ? " (one of the receivers)" : "");
}

static void show_carriers(uint32_t carriers)
{
    (void)printf("      | %s\n", carriers == RD_CARRIERS_ALL  ? "shm on one host, else rdma or tcp"
                                 : carriers == RD_CARRIER_SHM ? "shm"
                                 : carriers == RD_CARRIER_TCP ? "tcp"
                                 : carriers & RD_CARRIER_TCP  ? "shm on one host, else tcp"
                                                              : "rdma");
}

int rd_plan(const rd_chain_t *chain, const rd_settings_t *settings)
{
    for (size_t i = 0; i < chain->count; i++) {
        const rd_node_t *node = &chain->of[i];

        if (i > 0)
            show_carriers(rd_terms_carriers(&settings->cli.terms));
        (void)printf("%3zu  %s: ", i + 1, *node->host ? node->host : "this host");
        show_work(node);
        (void)printf("\n");
        if (*node->host) {
            (void)printf("      ");
            rd_channel_show(stdout, node->host, &settings->ssh);
            (void)printf("\n");
        }
    }
    return rd_cli_printed(&settings->cli);
}
