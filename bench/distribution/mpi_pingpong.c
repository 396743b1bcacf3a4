/* SPDX-License-Identifier: Apache-2.0
 *
 * Two MPI processes of which one sends a message and the other sends it back. `bench pingpong`
 * compares this round trip with Erlang's. MPI busy-waits, so each process needs its own processor.
 *
 * usage: mpirun -np 2 mpi_pingpong MILLISECONDS BYTES...
 * Prints a line for each size: bytes, round trips, p50 and p99 in nanoseconds.
 */
#include <inttypes.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { PING = 1, LAST = 2, WARM_UP = 50, MAX_SAMPLES = 1 << 20 };

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The tag of the last ping tells the other process to stop. */
static void answer(char *buffer, int bytes)
{
    MPI_Status status;
    do {
        MPI_Recv(buffer, bytes, MPI_BYTE, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        MPI_Send(buffer, bytes, MPI_BYTE, 0, status.MPI_TAG, MPI_COMM_WORLD);
    } while (status.MPI_TAG != LAST);
}

static double round_trip(char *buffer, int bytes, int tag)
{
    double start = MPI_Wtime();
    MPI_Send(buffer, bytes, MPI_BYTE, 1, tag, MPI_COMM_WORLD);
    MPI_Recv(buffer, bytes, MPI_BYTE, 1, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return MPI_Wtime() - start;
}

static void ask(char *buffer, int bytes, double seconds, uint64_t *samples)
{
    for (int i = 0; i < WARM_UP; i++)
        round_trip(buffer, bytes, PING);
    size_t count = 0;
    double end = MPI_Wtime() + seconds;
    do
        samples[count++] = (uint64_t)(round_trip(buffer, bytes, PING) * 1e9);
    while (count < MAX_SAMPLES && MPI_Wtime() < end);
    round_trip(buffer, bytes, LAST);
    qsort(samples, count, sizeof *samples, compare);
    printf("%d %zu %" PRIu64 " %" PRIu64 "\n", bytes, count, samples[(count - 1) / 2],
           samples[(count - 1) * 99 / 100]);
    fflush(stdout);
}

static int number(const char *text, long max, long *value)
{
    char *end;
    *value = strtol(text, &end, 10);
    if (*end == '\0' && *value > 0 && *value <= max)
        return 0;
    fprintf(stderr, "mpi_pingpong: '%s' is not a number from 1 to %ld\n", text, max);
    return -1;
}

static int run(int rank, int argc, char **argv)
{
    long milliseconds, bytes;
    if (number(argv[1], 600000, &milliseconds))
        return 2;
    uint64_t *samples = malloc(MAX_SAMPLES * sizeof *samples);
    if (!samples)
        return 1;
    for (int i = 2; i < argc; i++) {
        char *buffer;
        if (number(argv[i], INT32_MAX, &bytes) || !(buffer = calloc(1, (size_t)bytes))) {
            free(samples);
            return 2;
        }
        if (rank == 0)
            ask(buffer, (int)bytes, (double)milliseconds / 1000, samples);
        else
            answer(buffer, (int)bytes);
        free(buffer);
    }
    free(samples);
    return 0;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int status = 2;
    if (size == 2 && argc >= 3)
        status = run(rank, argc, argv);
    else
        fprintf(stderr, "usage: mpirun -np 2 mpi_pingpong MILLISECONDS BYTES...\n");
    if (status)
        MPI_Abort(MPI_COMM_WORLD, status);
    MPI_Finalize();
    return 0;
}
