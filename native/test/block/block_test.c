/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests blocks and how one process passes them to another: what a receiver must reject, what is
 * freed when a process is killed, and that no descriptor or mapping is left at the end.
 */
#include "../../block/channel.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "../peers.h"

#define SIZE 100000u
#define MOST (UINT64_C(1) << 30)

/* The message that the simulated peers send, in wire format. */
typedef struct {
    uint8_t token[BW_TOKEN_BYTES], id[BW_TOKEN_BYTES];
    uint32_t version, reserved;
} channel_hello_t;

typedef struct {
    uint64_t number, size;
} word_t;

/* A listener and both ends of a channel in this process. Each end has its own set of blocks. */
typedef struct {
    bw_blocks_t *there, *here;
    bw_shm_listener_t listener;
    bw_channel_t *to, *from;
} ends_t;

static const uint8_t id[BW_TOKEN_BYTES] = {1, 2, 3};
static bw_error_t error;

static bw_block_t *block_of(bw_blocks_t *blocks, size_t size, int with)
{
    uint8_t *bytes = malloc(size);
    bw_block_t *block = NULL;

    memset(bytes, with, size);
    if (bw_block_begin(blocks, size, &block, &error) == BW_OK &&
        (bw_block_write(block, 0, bytes, size, &error) != BW_OK ||
         bw_block_finish(block, &error) != BW_OK)) {
        bw_block_drop(block);
        bw_block_free(block);
        block = NULL;
    }
    free(bytes);
    return block;
}

static bool is_all(const bw_block_t *block, int with)
{
    for (size_t i = 0; i < bw_block_size(block); i++)
        if (bw_block_data(block)[i] != with)
            return false;
    return true;
}

static void give_back(bw_block_t *block)
{
    if (bw_block_drop(block))
        bw_block_free(block);
}

static int held; /* number of descriptors open before the case */

static void begin(ends_t *ends)
{
    memset(ends, 0, sizeof *ends);
    held = open_descriptors();
    ends->there = bw_blocks_new(MOST);
    ends->here = bw_blocks_new(MOST);
    CHECK_EQ(bw_shm_listen(NULL, &ends->listener, &error), BW_OK);
    CHECK_EQ(bw_channel_connect(ends->there, ends->listener.address, ends->listener.address_len,
                                ends->listener.token, id, &ends->to, &error),
             BW_OK);
    CHECK_EQ(bw_channel_accept(ends->here, &ends->listener, &ends->from, &error), BW_OK);
}

static void end(ends_t *ends)
{
    if (ends->to)
        bw_channel_delete(ends->to);
    if (ends->from)
        bw_channel_delete(ends->from);
    bw_shm_listener_close(&ends->listener);
    CHECK_EQ(bw_blocks_info(ends->there).blocks, 0);
    CHECK_EQ(bw_blocks_info(ends->there).bytes, 0);
    CHECK_EQ(bw_blocks_info(ends->here).blocks, 0);
    CHECK_EQ(bw_blocks_info(ends->here).bytes, 0);
    bw_blocks_delete(ends->there);
    bw_blocks_delete(ends->here);
    CHECK_EQ(open_descriptors(), held);
}

static void test_made_and_found(void)
{
    bw_blocks_t *blocks = bw_blocks_new(MOST);
    bw_block_t *block = block_of(blocks, SIZE, 7);
    const uint8_t *data;

    CHECK(block);
    data = bw_block_data(block);
    CHECK(is_all(block, 7));
    CHECK(bw_block_find(blocks, data, SIZE) == block);
    CHECK(!bw_block_find(blocks, data + 1, SIZE - 1));
    CHECK(!bw_block_find(blocks, data, SIZE - 1));
    CHECK(!bw_block_find(blocks, &held, sizeof held));
    CHECK(!bw_block_drop(block));
    CHECK_EQ(bw_blocks_info(blocks).bytes, SIZE);
    CHECK(bw_block_drop(block));
    CHECK(!bw_block_find(blocks, data, SIZE));
    bw_block_free(block);
    CHECK_EQ(bw_blocks_info(blocks).blocks, 0);
    bw_blocks_delete(blocks);
}

static void test_limits(void)
{
    bw_blocks_t *blocks = bw_blocks_new(2 * SIZE);
    bw_block_t *one = block_of(blocks, SIZE, 1), *other = block_of(blocks, SIZE, 2), *more = NULL;

    CHECK(one && other);
    CHECK_EQ(bw_block_begin(blocks, 1, &more, &error), BW_LIMIT);
    CHECK_EQ(bw_block_begin(blocks, UINT64_MAX / 4, &more, &error), BW_LIMIT);
    CHECK_EQ(bw_block_begin(blocks, 0, &more, &error), BW_INVALID);
    CHECK_EQ(bw_blocks_info(blocks).refused, 2);
    give_back(one);
    CHECK_EQ(bw_block_begin(blocks, 1, &more, &error), BW_OK);
    CHECK_EQ(bw_block_write(more, 1, "x", 1, &error), BW_INVALID);
    CHECK_EQ(bw_block_write(more, SIZE_MAX, "xx", 2, &error), BW_INVALID);
    give_back(more);
    give_back(other);
    CHECK_EQ(bw_blocks_info(blocks).bytes, 0);
    bw_blocks_delete(blocks);
}

static void few_descriptors(void)
{
    bw_block_t *blocks[17] = {0};
    bw_blocks_t *all;

    CHECK_IN(limit(RLIMIT_NOFILE, 64));
    all = bw_blocks_new(MOST);
    for (int i = 0; i < 16; i++)
        CHECK(blocks[i] = block_of(all, 1, 1));
    CHECK(!block_of(all, 1, 1));
    for (int i = 0; i < 16; i++)
        give_back(blocks[i]);
    bw_blocks_delete(all);
}

static void test_a_quarter_of_the_descriptors(void)
{
    in_child(few_descriptors);
}

/* Writing beyond the file size limit raises SIGXFSZ, and the limit applies to memfds as well. */
static void small_files(void)
{
    bw_blocks_t *blocks = bw_blocks_new(MOST);
    bw_block_t *block = NULL;
    int before = open_descriptors();

    CHECK_IN(limit(RLIMIT_FSIZE, SIZE - 1));
    CHECK_EQ(bw_block_begin(blocks, SIZE, &block, &error), BW_LIMIT);
    CHECK(says(&error, "ulimit -f"));
    CHECK_EQ(bw_blocks_info(blocks).blocks, 0);
    CHECK_EQ(bw_blocks_info(blocks).bytes, 0);
    CHECK(block = block_of(blocks, SIZE - 1, 1));
    give_back(block);
    bw_blocks_delete(blocks);
    CHECK_EQ(open_descriptors(), before);
}

static void test_no_larger_than_files(void)
{
    in_child(small_files);
}

static void test_a_file(void)
{
    bw_blocks_t *blocks = bw_blocks_new(MOST);
    FILE *file = tmpfile();
    bw_block_t *block;

    CHECK(file);
    for (unsigned i = 0; i < SIZE; i++)
        fputc(5, file);
    fflush(file);
    rewind(file);
    CHECK_EQ(bw_block_begin(blocks, SIZE, &block, &error), BW_OK);
    CHECK_EQ(lseek(fileno(file), 0, SEEK_SET), 0);
    CHECK_EQ(bw_block_fill(block, fileno(file), &error), BW_OK);
    CHECK_EQ(bw_block_finish(block, &error), BW_OK);
    CHECK(is_all(block, 5));
    give_back(block);
    /* The file is one byte too short, as if it had been truncated in the meantime. */
    CHECK_EQ(bw_block_begin(blocks, SIZE + 1, &block, &error), BW_OK);
    CHECK_EQ(lseek(fileno(file), 0, SEEK_SET), 0);
    CHECK_EQ(bw_block_fill(block, fileno(file), &error), BW_SYSTEM);
    give_back(block);
    fclose(file);
    bw_blocks_delete(blocks);
}

/* All nodes on a host may connect before the first of them is accepted. */
static void test_many_connect_at_once(void)
{
    bw_blocks_t *there = bw_blocks_new(MOST), *here = bw_blocks_new(MOST);
    bw_channel_t *to[100], *from;
    bw_shm_listener_t listener;
    int before = open_descriptors();

    CHECK_EQ(bw_shm_listen(NULL, &listener, &error), BW_OK);
    for (int i = 0; i < 100; i++)
        CHECK_EQ(bw_channel_connect(there, listener.address, listener.address_len, listener.token,
                                    id, &to[i], &error),
                 BW_OK);
    for (int i = 0; i < 100; i++) {
        CHECK_EQ(bw_channel_accept(here, &listener, &from, &error), BW_OK);
        bw_channel_delete(from);
        bw_channel_delete(to[i]);
    }
    bw_shm_listener_close(&listener);
    bw_blocks_delete(there);
    bw_blocks_delete(here);
    CHECK_EQ(open_descriptors(), before);
}

static void test_passed_in_any_order(void)
{
    bw_block_t *blocks[3], *got;
    uint64_t numbers[3];
    ends_t ends;

    CHECK_IN(begin(&ends));
    for (int i = 0; i < 3; i++) {
        blocks[i] = block_of(ends.there, SIZE + (size_t)i, i);
        CHECK_EQ(bw_channel_pass(ends.to, blocks[i], &numbers[i], &error), BW_OK);
        give_back(blocks[i]);
    }
    CHECK_EQ(bw_blocks_info(ends.there).blocks, 0);
    for (int i = 2; i >= 0; i--) {
        CHECK_EQ(bw_channel_take(ends.from, numbers[i], SIZE + (uint64_t)i, false, &got, &error),
                 BW_OK);
        CHECK(is_all(got, i));
        /* Each number can be taken only once. */
        CHECK_EQ(
            bw_channel_take(ends.from, numbers[i], SIZE + (uint64_t)i, false, &blocks[i], &error),
            BW_REFUSED);
        give_back(got);
    }
    CHECK(bw_channel_look(ends.to) && bw_channel_look(ends.from));
    CHECK_IN(end(&ends));
}

/* A process maps a block only once, however often it receives the block, even if it has created the
 * block itself. */
static void test_one_mapping(void)
{
    bw_block_t *block, *first, *second;
    uint64_t one, two;
    ends_t ends;

    CHECK_IN(begin(&ends));
    block = block_of(ends.there, SIZE, 1);
    CHECK_EQ(bw_channel_pass(ends.to, block, &one, &error), BW_OK);
    CHECK_EQ(bw_channel_pass(ends.to, block, &two, &error), BW_OK);
    CHECK_EQ(bw_channel_take(ends.from, one, SIZE, false, &first, &error), BW_OK);
    CHECK_EQ(bw_channel_take(ends.from, two, SIZE, false, &second, &error), BW_OK);
    CHECK(first == second);
    CHECK_EQ(bw_blocks_info(ends.here).blocks, 1);
    CHECK(!bw_block_drop(first));
    give_back(second);
    give_back(block);
    CHECK_IN(end(&ends));
}

static void test_no_more_than_so_many_on_their_way(void)
{
    uint64_t number, last = 0;
    bw_block_t *block, *got;
    ends_t ends;

    CHECK_IN(begin(&ends));
    block = block_of(ends.there, SIZE, 1);
    for (int i = 0; i < BW_BLOCK_PASSED_MAX; i++)
        CHECK_EQ(bw_channel_pass(ends.to, block, &last, &error), BW_OK);
    CHECK_EQ(bw_channel_pass(ends.to, block, &number, &error), BW_AGAIN);
    /* Taking the last block first leaves all the others queued. */
    CHECK_EQ(bw_channel_take(ends.from, last, SIZE, false, &got, &error), BW_OK);
    give_back(got);
    CHECK_EQ(bw_channel_pass(ends.to, block, &number, &error), BW_OK);
    CHECK_EQ(bw_channel_pass(ends.to, block, &number, &error), BW_AGAIN);
    give_back(block);
    CHECK_IN(end(&ends));
}

static void test_no_room_at_the_receiver(void)
{
    bw_block_t *block, *got;
    uint64_t number;
    ends_t ends;

    CHECK_IN(begin(&ends));
    bw_blocks_limit(ends.here, SIZE - 1);
    block = block_of(ends.there, SIZE, 9);
    CHECK_EQ(bw_channel_pass(ends.to, block, &number, &error), BW_OK);
    CHECK_EQ(bw_channel_take(ends.from, number, SIZE, false, &got, &error), BW_LIMIT);
    CHECK_EQ(bw_channel_take(ends.from, number, SIZE, true, &got, &error), BW_OK);
    CHECK(is_all(got, 9));
    give_back(got);
    give_back(block);
    CHECK_IN(end(&ends));
}

/* Lowers the limit so that no more descriptors can be opened. Call it again with the returned limit
 * to undo this. */
static rlim_t limit_descriptors(rlim_t most)
{
    struct rlimit files;
    rlim_t before;
    int next = dup(0);

    close(next);
    (void)getrlimit(RLIMIT_NOFILE, &files);
    before = files.rlim_cur;
    files.rlim_cur = most > 0 ? most : (rlim_t)next;
    (void)setrlimit(RLIMIT_NOFILE, &files);
    return before;
}

/* A shortage of descriptors at the receiver must not be blamed on the peer. */
static void test_no_descriptor_for_a_moment(void)
{
    bw_block_t *block, *got;
    uint64_t first, second;
    bw_status_t status[2];
    ends_t ends;
    rlim_t usual;
    bool open;

    CHECK_IN(begin(&ends));
    block = block_of(ends.there, SIZE, 9);
    CHECK_EQ(bw_channel_pass(ends.to, block, &first, &error), BW_OK);
    CHECK(bw_channel_look(ends.from));
    CHECK_EQ(bw_channel_pass(ends.to, block, &second, &error), BW_OK);
    usual = limit_descriptors(0);
    for (int beyond = 0; beyond < 2; beyond++)
        status[beyond] = bw_channel_take(ends.from, second, SIZE, beyond, &got, &error);
    open = bw_channel_look(ends.from);
    (void)limit_descriptors(usual);
    CHECK_EQ(status[0], BW_LIMIT);
    CHECK_EQ(status[1], BW_LIMIT);
    CHECK(says(&error, "ulimit -n"));
    CHECK(open);
    CHECK_EQ(bw_channel_take(ends.from, second, SIZE, false, &got, &error), BW_OK);
    give_back(got);
    CHECK_EQ(bw_channel_take(ends.from, first, SIZE, false, &got, &error), BW_OK);
    CHECK(is_all(got, 9));
    give_back(got);
    give_back(block);
    CHECK_IN(end(&ends));
}

/* The limit also counts the descriptors of blocks that were passed but not yet taken; the other
 * blocks stay in the socket. */
static void test_descriptors_that_wait_are_counted(void)
{
    enum { BLOCKS = 40, LIMIT = 16 };
    bw_block_t *block, *got;
    uint64_t numbers[BLOCKS];
    rlim_t usual;
    ends_t ends;
    int before;

    usual = limit_descriptors(4 * LIMIT);
    begin(&ends);
    (void)limit_descriptors(usual);
    CHECK(!check_failed);
    block = block_of(ends.there, SIZE, 9);
    before = open_descriptors();
    for (int i = 0; i < BLOCKS; i++)
        CHECK_EQ(bw_channel_pass(ends.to, block, &numbers[i], &error), BW_OK);
    CHECK(bw_channel_look(ends.from));
    CHECK_EQ(open_descriptors() - before, LIMIT);
    CHECK_EQ(bw_channel_take(ends.from, numbers[30], SIZE, false, &got, &error), BW_LIMIT);
    CHECK_EQ(bw_channel_take(ends.from, numbers[30], SIZE, true, &got, &error), BW_OK);
    give_back(got);
    CHECK_EQ(open_descriptors() - before, 30);
    for (int i = 0; i < BLOCKS; i++) {
        if (i == 30)
            continue;
        CHECK_EQ(bw_channel_take(ends.from, numbers[i], SIZE, false, &got, &error), BW_OK);
        give_back(got);
    }
    CHECK_EQ(open_descriptors(), before);
    CHECK_EQ(bw_blocks_info(ends.here).waiting, 0);
    give_back(block);
    CHECK_IN(end(&ends));
}

/* ---- the end of either process ---- */

static void test_the_sender_ends(void)
{
    bw_block_t *block, *got;
    uint64_t number;
    ends_t ends;

    CHECK_IN(begin(&ends));
    block = block_of(ends.there, SIZE, 3);
    CHECK_EQ(bw_channel_pass(ends.to, block, &number, &error), BW_OK);
    CHECK_EQ(bw_channel_pass(ends.to, block, &number, &error), BW_OK);
    give_back(block);
    bw_channel_delete(ends.to);
    ends.to = NULL;
    /* Blocks that were passed before the sender exited can still be taken afterwards. */
    CHECK_EQ(bw_channel_take(ends.from, number, SIZE, false, &got, &error), BW_OK);
    CHECK(is_all(got, 3));
    CHECK(!bw_channel_look(ends.from));
    give_back(got);
    CHECK_IN(end(&ends));
}

static void test_the_receiver_ends(void)
{
    bw_block_t *block;
    uint64_t number;
    ends_t ends;

    CHECK_IN(begin(&ends));
    block = block_of(ends.there, SIZE, 3);
    CHECK_EQ(bw_channel_pass(ends.to, block, &number, &error), BW_OK);
    bw_channel_close(ends.from);
    CHECK_EQ(bw_channel_pass(ends.to, block, &number, &error), BW_REFUSED);
    CHECK(!bw_channel_look(ends.to));
    give_back(block);
    CHECK_IN(end(&ends));
}

/* Creates a block, passes it, and is then killed. */
static void killed_sender(const bw_shm_listener_t *listener, int tell)
{
    bw_blocks_t *blocks = bw_blocks_new(MOST);
    bw_channel_t *channel;
    uint64_t number = 0;

    if (bw_channel_connect(blocks, listener->address, listener->address_len, listener->token, id,
                           &channel, &error) == BW_OK)
        (void)bw_channel_pass(channel, block_of(blocks, SIZE, 8), &number, &error);
    if (write(tell, &number, sizeof number) != sizeof number)
        _exit(1);
    for (;;)
        pause();
}

static void test_a_killed_sender(void)
{
    bw_blocks_t *here = bw_blocks_new(MOST);
    bw_shm_listener_t listener;
    bw_channel_t *channel;
    uint64_t number = 0;
    bw_block_t *got;
    int told[2], status, before = open_descriptors();
    pid_t pid;

    CHECK_EQ(bw_shm_listen(NULL, &listener, &error), BW_OK);
    CHECK_EQ(pipe(told), 0);
    fflush(stdout);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        killed_sender(&listener, told[1]);
    CHECK_EQ(read(told[0], &number, sizeof number), sizeof number);
    CHECK_EQ(kill(pid, SIGKILL), 0);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(number, 1);
    CHECK_EQ(bw_channel_accept(here, &listener, &channel, &error), BW_OK);
    CHECK_EQ(bw_channel_take(channel, number, SIZE, false, &got, &error), BW_OK);
    CHECK(!bw_channel_look(channel));
    bw_channel_delete(channel);
    /* The bytes stay valid as long as any process references them. */
    CHECK(is_all(got, 8));
    give_back(got);
    bw_blocks_delete(here);
    bw_shm_listener_close(&listener);
    close(told[0]);
    close(told[1]);
    CHECK_EQ(open_descriptors(), before);
}

/* ---- rogue peers ---- */

static int sealed(uint64_t size, uint64_t written, int seals)
{
    int fd = memfd_create("rogue", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    char *bytes = calloc(1, written + 1);

    if (pwrite(fd, bytes, written, 0) != (ssize_t)written || ftruncate(fd, (off_t)size) < 0 ||
        fcntl(fd, F_ADD_SEALS, seals) < 0) {
        close(fd);
        fd = -1;
    }
    free(bytes);
    return fd;
}

#define ALL_SEALS (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW)

static int good(void)
{
    return sealed(SIZE, SIZE, ALL_SEALS);
}
static int not_sealed(void)
{
    return sealed(SIZE, SIZE, 0);
}
static int may_shrink(void)
{
    return sealed(SIZE, SIZE, F_SEAL_WRITE | F_SEAL_GROW);
}
static int may_grow(void)
{
    return sealed(SIZE, SIZE, F_SEAL_WRITE | F_SEAL_SHRINK);
}
static int may_write(void)
{
    return sealed(SIZE, SIZE, F_SEAL_SHRINK | F_SEAL_GROW);
}
static int may_write_later(void)
{
    return sealed(SIZE, SIZE, F_SEAL_SHRINK | F_SEAL_GROW | 0x10 /* F_SEAL_FUTURE_WRITE */);
}
static int shorter(void)
{
    return sealed(SIZE - 1, SIZE - 1, ALL_SEALS);
}
static int longer(void)
{
    return sealed(SIZE + 1, SIZE + 1, ALL_SEALS);
}
static int without_pages(void)
{
    return sealed(SIZE, 0, ALL_SEALS);
}

/* The file has the right number of pages, but they are past its end. */
static int with_pages_elsewhere(void)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    return fd >= 0 && ftruncate(fd, SIZE) == 0 &&
                   fallocate(fd, FALLOC_FL_KEEP_SIZE, 2 * SIZE, 2 * SIZE) == 0 &&
                   fcntl(fd, F_ADD_SEALS, ALL_SEALS) == 0
               ? fd
               : -1;
}

/* All pages are allocated except one in the middle. */
static int with_a_hole(void)
{
    static const char bytes[SIZE / 4] = "bytes";
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    return fd >= 0 && ftruncate(fd, SIZE) == 0 && pwrite(fd, bytes, sizeof bytes, 0) > 0 &&
                   pwrite(fd, bytes, sizeof bytes, SIZE - sizeof bytes) > 0 &&
                   fallocate(fd, FALLOC_FL_KEEP_SIZE, 2 * SIZE, 2 * SIZE) == 0 &&
                   fcntl(fd, F_ADD_SEALS, ALL_SEALS) == 0
               ? fd
               : -1;
}

static int plain_file(void)
{
    char name[] = "/tmp/beamway-block-test-XXXXXX";
    int fd = mkstemp(name);

    unlink(name);
    return fd >= 0 && ftruncate(fd, SIZE) == 0 ? fd : -1;
}

static int directory(void)
{
    return open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}
static int path_only(void)
{
    return open("/dev/zero", O_PATH | O_CLOEXEC);
}
static int zeros(void)
{
    return open("/dev/zero", O_RDONLY | O_CLOEXEC);
}

typedef struct {
    const char *name;
    int (*with)(void); /* NULL if there is no descriptor */
    int count;         /* number of descriptors */
    uint64_t size;     /* as announced in the message */
    size_t len;        /* number of bytes of the message that are sent */
    bw_status_t status;
} rogue_t;

static const rogue_t rogues[] = {
    {"a good one", good, 1, SIZE, sizeof(word_t), BW_OK},
    {"not sealed", not_sealed, 1, SIZE, sizeof(word_t), BW_REFUSED},
    {"may shrink", may_shrink, 1, SIZE, sizeof(word_t), BW_REFUSED},
    {"may grow", may_grow, 1, SIZE, sizeof(word_t), BW_REFUSED},
    {"may be written", may_write, 1, SIZE, sizeof(word_t), BW_REFUSED},
    {"is still mapped to be written", may_write_later, 1, SIZE, sizeof(word_t), BW_REFUSED},
    {"shorter", shorter, 1, SIZE, sizeof(word_t), BW_REFUSED},
    {"longer", longer, 1, SIZE, sizeof(word_t), BW_REFUSED},
    {"without pages", without_pages, 1, SIZE, sizeof(word_t), BW_REFUSED},
    {"with pages behind its end", with_pages_elsewhere, 1, SIZE, sizeof(word_t), BW_REFUSED},
    {"with a hole", with_a_hole, 1, SIZE, sizeof(word_t), BW_REFUSED},
    {"a file", plain_file, 1, SIZE, sizeof(word_t), BW_REFUSED},
    {"a directory", directory, 1, SIZE, sizeof(word_t), BW_REFUSED},
    {"a path", path_only, 1, SIZE, sizeof(word_t), BW_REFUSED},
    {"a device", zeros, 1, SIZE, sizeof(word_t), BW_REFUSED},
    {"another size than the message says", good, 1, SIZE + 1, sizeof(word_t), BW_CORRUPT},
    {"no descriptor", NULL, 0, SIZE, sizeof(word_t), BW_CORRUPT},
    {"two descriptors", good, 2, SIZE, sizeof(word_t), BW_CORRUPT},
    {"five descriptors", good, 5, SIZE, sizeof(word_t), BW_CORRUPT},
    {"an empty word", good, 1, SIZE, 0, BW_CORRUPT},
    {"an empty word with two descriptors", good, 2, SIZE, 0, BW_CORRUPT},
    {"a short word", good, 1, SIZE, sizeof(word_t) - 1, BW_CORRUPT},
    {"a long word", good, 1, SIZE, sizeof(word_t) + 1, BW_CORRUPT},
    {"no block, of no size", NULL, 0, 0, sizeof(word_t), BW_CORRUPT},
};

static void send_rogue(int to, const rogue_t *rogue)
{
    struct {
        word_t word;
        char more;
    } said = {{7, rogue->size}, 0};
    int fd = rogue->with ? rogue->with() : -1, fds[5] = {fd, fd, fd, fd, fd};

    CHECK(!rogue->with || fd >= 0);
    CHECK(send_with(to, &said, rogue->len, fds, (size_t)rogue->count));
    if (fd >= 0)
        close(fd);
}

/* The receiver's end of a channel whose sender is a plain socket. */
typedef struct {
    bw_blocks_t *here;
    bw_shm_listener_t listener;
    bw_channel_t *channel;
    int to, before;
} receiver_t;

static void open_receiver(receiver_t *receiver)
{
    channel_hello_t hello = {.id = {9}, .version = 1};

    receiver->here = bw_blocks_new(MOST);
    receiver->before = open_descriptors();
    CHECK_EQ(bw_shm_listen(NULL, &receiver->listener, &error), BW_OK);
    memcpy(hello.token, receiver->listener.token, sizeof hello.token);
    receiver->to = connect_to(&receiver->listener);
    CHECK_EQ(send(receiver->to, &hello, sizeof hello, 0), sizeof hello);
    CHECK_EQ(bw_channel_accept(receiver->here, &receiver->listener, &receiver->channel, &error),
             BW_OK);
}

static void close_receiver(receiver_t *receiver)
{
    bw_channel_delete(receiver->channel);
    bw_shm_listener_close(&receiver->listener);
    bw_blocks_delete(receiver->here);
    close(receiver->to);
    CHECK_EQ(open_descriptors(), receiver->before);
}

static void take_from_rogue(const rogue_t *rogue)
{
    bw_block_t *got;
    receiver_t receiver;

    CHECK_IN(open_receiver(&receiver));
    CHECK_IN(send_rogue(receiver.to, rogue));
    CHECK_EQ(bw_channel_take(receiver.channel, 7, SIZE, false, &got, &error), rogue->status);
    if (rogue->status == BW_OK)
        give_back(got);
    CHECK_EQ(bw_blocks_info(receiver.here).blocks, 0);
    CHECK_IN(close_receiver(&receiver));
}

static void test_rogue_blocks(void)
{
    for (size_t i = 0; i < sizeof rogues / sizeof *rogues; i++) {
        printf("    %s\n", rogues[i].name);
        CHECK_IN(take_from_rogue(&rogues[i]));
    }
}

static void test_too_many_blocks_of_a_rogue(void)
{
    bw_block_t *got;
    receiver_t receiver;

    CHECK_IN(open_receiver(&receiver));
    /* Sends the same number again. */
    CHECK_IN(send_rogue(receiver.to, &rogues[0]));
    CHECK_IN(send_rogue(receiver.to, &rogues[0]));
    CHECK_EQ(bw_channel_take(receiver.channel, 7, SIZE, false, &got, &error), BW_CORRUPT);
    CHECK(!bw_channel_look(receiver.channel));
    CHECK_IN(close_receiver(&receiver));
}

static void test_strangers(void)
{
    bw_blocks_t *here = bw_blocks_new(MOST);
    channel_hello_t hello = {.id = {9}, .version = 1};
    bw_shm_listener_t listener;
    bw_channel_t *channel;
    int silent, wrong, other, before = open_descriptors();

    CHECK_EQ(bw_shm_listen(NULL, &listener, &error), BW_OK);
    silent = connect_to(&listener);
    wrong = connect_to(&listener);
    CHECK_EQ(send(wrong, &hello, sizeof hello, 0), sizeof hello);
    other = connect_to(&listener);
    memcpy(hello.token, listener.token, sizeof hello.token);
    hello.version = 2;
    CHECK_EQ(send(other, &hello, sizeof hello, 0), sizeof hello);
    CHECK_EQ(bw_channel_accept(here, &listener, &channel, &error), BW_AGAIN);
    close(silent);
    close(wrong);
    close(other);
    bw_shm_listener_close(&listener);
    bw_blocks_delete(here);
    CHECK_EQ(open_descriptors(), before);
}

/* Unauthenticated clients stay in the listener's backlog even after they have disconnected. A peer
 * queued behind them must still be accepted. */
static void test_many_strangers(void)
{
    bw_blocks_t *there = bw_blocks_new(MOST), *here = bw_blocks_new(MOST);
    bw_shm_listener_t listener;
    bw_channel_t *to, *from;
    int before = open_descriptors();

    CHECK_EQ(bw_shm_listen(NULL, &listener, &error), BW_OK);
    for (int i = 0; i < 100; i++)
        CHECK(send_as_peer(&listener, "stranger", 8, NULL, 0));
    CHECK_EQ(bw_channel_connect(there, listener.address, listener.address_len, listener.token, id,
                                &to, &error),
             BW_OK);
    CHECK_EQ(bw_channel_accept(here, &listener, &from, &error), BW_OK);
    bw_channel_delete(from);
    bw_channel_delete(to);
    bw_shm_listener_close(&listener);
    bw_blocks_delete(there);
    bw_blocks_delete(here);
    CHECK_EQ(open_descriptors(), before);
}

/* All silent peers together share one time limit. */
static void test_silent_peers_hold_nobody_for_long(void)
{
    enum { SILENT = 30 };
    bw_blocks_t *here = bw_blocks_new(MOST);
    int silent[SILENT], before = open_descriptors();
    bw_shm_listener_t listener;
    bw_channel_t *channel;
    int64_t began_ms;

    CHECK_EQ(bw_shm_listen(NULL, &listener, &error), BW_OK);
    for (int i = 0; i < SILENT; i++)
        silent[i] = connect_to(&listener);
    began_ms = now_ms();
    CHECK_EQ(bw_channel_accept(here, &listener, &channel, &error), BW_AGAIN);
    CHECK(now_ms() - began_ms < SILENT / 2 * BW_CHANNEL_SILENT_MS);
    for (int i = 0; i < SILENT; i++)
        close(silent[i]);
    bw_shm_listener_close(&listener);
    bw_blocks_delete(here);
    CHECK_EQ(open_descriptors(), before);
}

typedef struct {
    int fd;
    channel_hello_t hello;
} late_t;

static void *speak_late(void *arg)
{
    const late_t *late = arg;

    (void)poll(NULL, 0, 5);
    (void)send(late->fd, &late->hello, sizeof late->hello, MSG_NOSIGNAL);
    return NULL;
}

/* A peer may be preempted between connecting and sending its token. If that delays it beyond the
 * limit, the peer is rejected, and the test connects again. */
static void test_a_peer_that_speaks_late(void)
{
    bw_blocks_t *here = bw_blocks_new(MOST);
    late_t late = {.hello = {.id = {9}, .version = 1}};
    bw_status_t status = BW_AGAIN;
    bw_shm_listener_t listener;
    bw_channel_t *channel;
    pthread_t thread;

    CHECK_EQ(bw_shm_listen(NULL, &listener, &error), BW_OK);
    memcpy(late.hello.token, listener.token, sizeof late.hello.token);
    for (int tries = 0; tries < 10 && status == BW_AGAIN; tries++) {
        late.fd = connect_to(&listener);
        CHECK_EQ(pthread_create(&thread, NULL, speak_late, &late), 0);
        status = bw_channel_accept(here, &listener, &channel, &error);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        close(late.fd);
    }
    CHECK_EQ(status, BW_OK);
    bw_channel_delete(channel);
    bw_shm_listener_close(&listener);
    bw_blocks_delete(here);
}

/* A receiver claims to have taken more blocks than were passed. */
static void test_a_receiver_that_lies(void)
{
    bw_blocks_t *there = bw_blocks_new(MOST);
    bw_block_t *block = block_of(there, SIZE, 1);
    word_t word = {.number = 2};
    bw_shm_listener_t listener;
    bw_channel_t *channel;
    uint64_t number;
    int at;

    CHECK_EQ(bw_shm_listen(NULL, &listener, &error), BW_OK);
    CHECK_EQ(bw_channel_connect(there, listener.address, listener.address_len, listener.token, id,
                                &channel, &error),
             BW_OK);
    CHECK((at = accept4(listener.fd, NULL, NULL, SOCK_CLOEXEC)) >= 0);
    CHECK_EQ(bw_channel_pass(channel, block, &number, &error), BW_OK);
    CHECK_EQ(send(at, &word, sizeof word, 0), sizeof word);
    CHECK_EQ(bw_channel_pass(channel, block, &number, &error), BW_REFUSED);
    close(at);
    bw_channel_delete(channel);
    give_back(block);
    bw_shm_listener_close(&listener);
    bw_blocks_delete(there);
}

static const check_case_t cases[] = {
    {"made_and_found", test_made_and_found},
    {"limits", test_limits},
    {"a_quarter_of_the_descriptors", test_a_quarter_of_the_descriptors},
    {"no_larger_than_files", test_no_larger_than_files},
    {"a_file", test_a_file},
    {"many_connect_at_once", test_many_connect_at_once},
    {"passed_in_any_order", test_passed_in_any_order},
    {"one_mapping", test_one_mapping},
    {"no_more_than_so_many_on_their_way", test_no_more_than_so_many_on_their_way},
    {"no_room_at_the_receiver", test_no_room_at_the_receiver},
    {"no_descriptor_for_a_moment", test_no_descriptor_for_a_moment},
    {"descriptors_that_wait_are_counted", test_descriptors_that_wait_are_counted},
    {"the_sender_ends", test_the_sender_ends},
    {"the_receiver_ends", test_the_receiver_ends},
    {"a_killed_sender", test_a_killed_sender},
    {"rogue_blocks", test_rogue_blocks},
    {"too_many_blocks_of_a_rogue", test_too_many_blocks_of_a_rogue},
    {"strangers", test_strangers},
    {"many_strangers", test_many_strangers},
    {"silent_peers_hold_nobody_for_long", test_silent_peers_hold_nobody_for_long},
    {"a_peer_that_speaks_late", test_a_peer_that_speaks_late},
    {"a_receiver_that_lies", test_a_receiver_that_lies},
};

CHECK_MAIN(cases)
