/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends frames of random sizes with known contents in both directions at once, with real sleeping
 * and waking, over the rdma carrier with the smallest rings: between two processes, and with one
 * that dies.
 *
 * usage: rdma_stress_test [FRAMES] [CASE]...
 */
#include "rdma_ends.h"
#include "../stress.h"

static void stressed_here(int wire)
{
    bw_link_t *link = NULL;
    end_t mine;

    CHECK_IN(link_here(wire, 4, RING, &link));
    mine = end_of(link, 0, frames_each_way);
    run_end(&mine);
    report(&mine);
    CHECK(mine.failure == NULL);
    CHECK(mine.sleeps > 100); /* otherwise wake-ups were not tested */
    CHECK(ends_with(link, "", WAIT_MS));
    link->ops->close(link, NULL);
}

static void stressed_there(int wire)
{
    bw_link_t *link = NULL;
    end_t mine;

    CHECK_IN(link_there(wire, RING, &link));
    mine = end_of(link, 1, frames_each_way);
    run_end(&mine);
    report(&mine);
    CHECK(mine.failure == NULL);
    link->ops->close(link, NULL);
}

static void two_processes(void)
{
    run_pair(stressed_here, stressed_there);
}

/* This process is killed in the middle of the transfer. The other side has received complete frames
 * and perhaps a part of one, and is notified of the death. */
static void mortal_there(int wire)
{
    bw_link_t *link = NULL;
    pid_t self = getpid();
    end_t mine;

    CHECK_IN(link_there(wire, RING, &link));
    CHECK(tell(wire, &self, sizeof self));
    mine = end_of(link, 1, UINT64_MAX);
    run_end(&mine);
    CHECK(mine.failure == NULL); /* it is killed before it can fail */
}

static uint64_t frames_to_live;

static void survivor_here(int wire)
{
    bw_link_t *link = NULL;
    pid_t peer;
    end_t mine;

    CHECK_IN(link_here(wire, 4, RING, &link));
    CHECK(hear(wire, &peer, sizeof peer));
    mine = end_of(link, 0, frames_to_live);
    CHECK(run_end(&mine));
    CHECK_EQ(kill(peer, SIGKILL), 0);
    mine.frames = UINT64_MAX;
    CHECK(!run_end(&mine));
    /* "arming": in the middle of a frame */
    CHECK(strcmp(mine.failure, "peek") == 0 || strcmp(mine.failure, "arming") == 0);
    CHECK(ends_with(link, "connection_closed", WAIT_MS));
    link->ops->close(link, NULL);
}

static void the_other_dies(void)
{
    for (frames_to_live = 0; frames_to_live < 200; frames_to_live += 40)
        CHECK_IN(run_pair(survivor_here, mortal_there));
}

static const check_case_t cases[] = {
    {"two_processes", two_processes},
    {"the_other_dies", the_other_dies},
};

int main(int argc, char **argv)
{
    /* on a software device each frame costs far more than in a ring */
    frames_each_way /= 10;
    take_frames(&argc, &argv);
    side_seconds = 600;
    return check_run(cases, sizeof cases / sizeof *cases, argc, argv);
}
