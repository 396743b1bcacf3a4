/* SPDX-License-Identifier: Apache-2.0
 *
 * The NIFs of beamway_block.erl, which represent blocks as binaries. A block's binary is a resource
 * that has one reference to the block.
 *
 * Slow operations (copying, unmapping, closing a channel) run on dirty schedulers. When the last
 * binary of a large block is garbage-collected, the block is put on a list, and the process that
 * called reaper_nif receives a message and then frees the blocks on the list.
 */
#include <erl_nif.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "channel.h"

/* Larger blocks are not freed on a scheduler: freeing takes about 0.2 ms per megabyte. */
#define AT_ONCE_BYTES (1u << 20)
#define DEFAULT_MAX_BYTES (UINT64_C(1) << 30)

typedef struct dead {
    bw_block_t *block;
    struct dead *next;
} dead_t;

/* Passed from the old version of this library to the new one during an upgrade. */
typedef struct {
    bw_blocks_t *blocks;
    ErlNifMutex *lock; /* protects everything below */
    dead_t *dead;
    ErlNifPid reaper;
    bool has_reaper;
} state_t;

/* Begins the definition of a function for Erlang. Its arguments are in `argv`, so a comment at each
 * function names them. */
#define NIF(name)                                                                                  \
    static ERL_NIF_TERM name(ErlNifEnv *env, __attribute__((unused)) int argc,                     \
                             __attribute__((unused)) const ERL_NIF_TERM argv[])

static ErlNifResourceType *block_type, *channel_type, *listener_type;

static ERL_NIF_TERM atom(ErlNifEnv *env, const char *name)
{
    return enif_make_atom(env, name);
}

static ERL_NIF_TERM pair(ErlNifEnv *env, const char *tag, ERL_NIF_TERM term)
{
    return enif_make_tuple2(env, atom(env, tag), term);
}

static ERL_NIF_TERM make_bytes(ErlNifEnv *env, const void *at, size_t len)
{
    ERL_NIF_TERM term;

    memcpy(enif_make_new_binary(env, len, &term), at, len);
    return term;
}

static ERL_NIF_TERM error_text(ErlNifEnv *env, const char *text)
{
    return pair(env, "error", make_bytes(env, text, strlen(text)));
}

static ERL_NIF_TERM failed(ErlNifEnv *env, const bw_error_t *error)
{
    char text[256];

    bw_error_text(error, text, sizeof text);
    return error_text(env, text);
}

static state_t *state_of(ErlNifEnv *env)
{
    return enif_priv_data(env);
}

/* ---- binaries ---- */

static void give_back(bw_block_t *block)
{
    if (bw_block_drop(block))
        bw_block_free(block);
}

static dead_t *take_dead(state_t *state)
{
    dead_t *dead;

    enif_mutex_lock(state->lock);
    dead = state->dead;
    state->dead = NULL;
    enif_mutex_unlock(state->lock);
    return dead;
}

static void reap(state_t *state)
{
    for (dead_t *dead = take_dead(state), *next; dead; dead = next) {
        next = dead->next;
        bw_block_free(dead->block);
        free(dead);
    }
}

/* Returns whether the reaper frees the block. */
static bool leave_to_reaper(ErlNifEnv *env, state_t *state, bw_block_t *block)
{
    dead_t *dead = malloc(sizeof *dead);
    ErlNifPid reaper;
    bool has_reaper;

    if (!dead)
        return false;
    dead->block = block;
    enif_mutex_lock(state->lock);
    has_reaper = state->has_reaper;
    reaper = state->reaper;
    if (has_reaper) {
        dead->next = state->dead;
        state->dead = dead;
    }
    enif_mutex_unlock(state->lock);
    if (!has_reaper)
        free(dead);
    else if (!enif_send(env, &reaper, NULL, atom(env, "beamway_blocks_to_reap")))
        reap(state); /* the reaper process has ended */
    return has_reaper;
}

typedef struct {
    state_t *state;
    bw_block_t *block;
} binary_t;

static void block_gone(ErlNifEnv *env, void *object)
{
    binary_t *binary = object;

    if (!bw_block_drop(binary->block))
        return;
    if (bw_block_size(binary->block) <= AT_ONCE_BYTES ||
        !leave_to_reaper(env, binary->state, binary->block))
        bw_block_free(binary->block);
}

/* Creates a binary that takes over the caller's reference. */
static ERL_NIF_TERM binary_of(ErlNifEnv *env, bw_block_t *block)
{
    binary_t *binary = enif_alloc_resource(block_type, sizeof *binary);
    ERL_NIF_TERM term;

    binary->state = state_of(env);
    binary->block = block;
    term = enif_make_resource_binary(env, binary, bw_block_data(block), bw_block_size(block));
    enif_release_resource(binary);
    return term;
}

static ERL_NIF_TERM finished(ErlNifEnv *env, bw_block_t *block, bw_status_t status,
                             bw_error_t *error)
{
    if (status == BW_OK)
        status = bw_block_finish(block, error);
    if (status == BW_OK)
        return pair(env, "ok", binary_of(env, block));
    give_back(block);
    return failed(env, error);
}

static ERL_NIF_TERM not_begun(ErlNifEnv *env, bw_status_t status, const bw_error_t *error)
{
    return status == BW_LIMIT ? atom(env, "limit") : failed(env, error);
}

/* from_iovec_nif(Binaries, Bytes) */
NIF(from_iovec)
{
    ERL_NIF_TERM head, list = argv[0];
    bw_error_t error = {0};
    bw_block_t *block;
    bw_status_t status;
    ErlNifBinary part;
    ErlNifUInt64 size;
    size_t offset = 0;

    if (!enif_get_uint64(env, argv[1], &size) || !enif_is_list(env, list))
        return enif_make_badarg(env);
    status = bw_block_begin(state_of(env)->blocks, size, &block, &error);
    if (status != BW_OK)
        return not_begun(env, status, &error);
    while (status == BW_OK && enif_get_list_cell(env, list, &head, &list)) {
        if (!enif_inspect_binary(env, head, &part))
            status = bw_fail(&error, BW_INVALID, "a part is not a binary", EINVAL);
        else
            status = bw_block_write(block, offset, part.data, part.size, &error);
        offset += part.size;
    }
    if (status == BW_OK && offset != size)
        status = bw_fail(&error, BW_INVALID, "the parts have another size", EINVAL);
    return finished(env, block, status, &error);
}

static ERL_NIF_TERM fill(ErlNifEnv *env, int file, uint64_t min)
{
    bw_error_t error = {0};
    bw_block_t *block;
    bw_status_t status;
    struct stat st;

    if (fstat(file, &st) < 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size < min)
        return atom(env, "no_block");
    status = bw_block_begin(state_of(env)->blocks, (size_t)st.st_size, &block, &error);
    if (status != BW_OK)
        return not_begun(env, status, &error);
    return finished(env, block, bw_block_fill(block, file, &error), &error);
}

/* read_file_nif(Name, MinBytes). On `limit` and `no_block`, the caller reads the file itself. */
NIF(read_file)
{
    char path[PATH_MAX];
    ErlNifBinary name;
    ERL_NIF_TERM result;
    ErlNifUInt64 min;
    int file;

    if (!enif_get_uint64(env, argv[1], &min) || !enif_inspect_binary(env, argv[0], &name) ||
        name.size >= sizeof path || memchr(name.data, 0, name.size))
        return enif_make_badarg(env);
    memcpy(path, name.data, name.size);
    path[name.size] = 0;
    /* Without O_NONBLOCK, opening a FIFO would block until it has a writer. */
    file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return atom(env, "no_block");
    result = fill(env, file, min);
    close(file);
    return result;
}

/* ---- channels ---- */

static void channel_gone(ErlNifEnv *env, void *object)
{
    (void)env;
    bw_channel_delete(*(bw_channel_t **)object);
}

static void listener_gone(ErlNifEnv *env, void *object)
{
    (void)env;
    bw_shm_listener_close(object);
}

/* Creates a resource with a copy of this content. */
static ERL_NIF_TERM make_resource(ErlNifEnv *env, ErlNifResourceType *type, const void *content,
                                  size_t bytes)
{
    void *object = enif_alloc_resource(type, bytes);
    ERL_NIF_TERM term = enif_make_resource(env, memcpy(object, content, bytes));

    enif_release_resource(object);
    return term;
}

static bool get_channel(ErlNifEnv *env, ERL_NIF_TERM term, bw_channel_t **channel_p)
{
    void *object;

    if (!enif_get_resource(env, term, channel_type, &object))
        return false;
    *channel_p = *(bw_channel_t **)object;
    return true;
}

/* listen_nif(Dir | none) */
NIF(listen_)
{
    bw_shm_listener_t listener;
    char dir[BW_ADDRESS_MAX + 1], *where = NULL;
    bw_error_t error = {0};
    ErlNifBinary name;

    if (enif_inspect_binary(env, argv[0], &name)) {
        if (name.size > BW_ADDRESS_MAX)
            return error_text(env, "socket_dir is too long for a unix socket");
        memcpy(dir, name.data, name.size);
        dir[name.size] = 0;
        where = dir;
    } else if (!enif_is_atom(env, argv[0])) {
        return enif_make_badarg(env);
    }
    if (bw_shm_listen(where, &listener, &error) != BW_OK)
        return failed(env, &error);
    return enif_make_tuple4(env, atom(env, "ok"),
                            make_resource(env, listener_type, &listener, sizeof listener),
                            make_bytes(env, listener.address, listener.address_len),
                            make_bytes(env, listener.token, BW_TOKEN_BYTES));
}

/* accept(Listener) */
NIF(accept_)
{
    uint8_t id[BW_TOKEN_BYTES];
    bw_channel_t *channel;
    bw_error_t error = {0};
    bw_status_t status;
    void *listener;

    if (!enif_get_resource(env, argv[0], listener_type, &listener))
        return enif_make_badarg(env);
    status = bw_channel_accept(state_of(env)->blocks, listener, &channel, &error);
    if (status == BW_AGAIN)
        return atom(env, "none");
    if (status != BW_OK)
        return failed(env, &error);
    bw_channel_id(channel, id);
    return enif_make_tuple3(env, atom(env, "ok"), make_bytes(env, id, sizeof id),
                            make_resource(env, channel_type, &channel, sizeof channel));
}

/* connect(Address, Token, Id) */
NIF(connect_)
{
    ErlNifBinary address, token, id;
    bw_channel_t *channel;
    bw_error_t error = {0};

    if (!enif_inspect_binary(env, argv[0], &address) ||
        !enif_inspect_binary(env, argv[1], &token) || token.size != BW_TOKEN_BYTES ||
        !enif_inspect_binary(env, argv[2], &id) || id.size != BW_TOKEN_BYTES)
        return enif_make_badarg(env);
    if (bw_channel_connect(state_of(env)->blocks, address.data, address.size, token.data, id.data,
                           &channel, &error) != BW_OK)
        return failed(env, &error);
    return pair(env, "ok", make_resource(env, channel_type, &channel, sizeof channel));
}

/* pass(Channel, Binary) */
NIF(pass)
{
    bw_channel_t *channel;
    bw_error_t error = {0};
    ErlNifBinary binary;
    bw_status_t status;
    bw_block_t *block;
    uint64_t number;

    if (!get_channel(env, argv[0], &channel) || !enif_inspect_binary(env, argv[1], &binary))
        return enif_make_badarg(env);
    block = bw_block_find(state_of(env)->blocks, binary.data, binary.size);
    if (!block)
        return atom(env, "no_block");
    status = bw_channel_pass(channel, block, &number, &error);
    give_back(block); /* the binary has a reference as well */
    switch (status) {
    case BW_OK:
        return pair(env, "ok", enif_make_uint64(env, number));
    case BW_AGAIN:
    case BW_LIMIT:
        return atom(env, "busy");
    default:
        return atom(env, "closed");
    }
}

/* With `beyond`, the binary is a copy, made on a dirty scheduler. */
static ERL_NIF_TERM take(ErlNifEnv *env, const ERL_NIF_TERM argv[], bool beyond)
{
    ErlNifUInt64 number, size;
    bw_channel_t *channel;
    bw_error_t error = {0};
    bw_status_t status;
    ERL_NIF_TERM term;
    bw_block_t *block;

    if (!get_channel(env, argv[0], &channel) || !enif_get_uint64(env, argv[1], &number) ||
        !enif_get_uint64(env, argv[2], &size))
        return enif_make_badarg(env);
    status = bw_channel_take(channel, number, size, beyond, &block, &error);
    if (status == BW_LIMIT)
        return atom(env, "limit");
    if (status != BW_OK)
        return failed(env, &error);
    if (!beyond)
        return pair(env, "ok", binary_of(env, block));
    term = make_bytes(env, bw_block_data(block), bw_block_size(block));
    give_back(block);
    return pair(env, "ok", term);
}

/* take_nif(Channel, Number, Bytes), on the scheduler that take_one has chosen */
NIF(take_now)
{
    return take(env, argv, false);
}

/* Larger blocks use a dirty scheduler: checking for holes takes about 10 us per megabyte. */
#define TAKE_BYTES ((ErlNifUInt64)64 * 1024 * 1024)

/* take_nif(Channel, Number, Bytes) */
NIF(take_one)
{
    ErlNifUInt64 size;

    if (enif_get_uint64(env, argv[2], &size) && size > TAKE_BYTES)
        return enif_schedule_nif(env, "take_nif", ERL_NIF_DIRTY_JOB_CPU_BOUND, take_now, argc,
                                 argv);
    return take_now(env, argc, argv);
}

/* copy_nif(Channel, Number, Bytes) */
NIF(take_copy)
{
    return take(env, argv, true);
}

/* is_open(Channel) */
NIF(is_open)
{
    bw_channel_t *channel;

    if (!get_channel(env, argv[0], &channel))
        return enif_make_badarg(env);
    return atom(env, bw_channel_look(channel) ? "true" : "false");
}

/* close(Channel) */
NIF(close_)
{
    bw_channel_t *channel;

    if (!get_channel(env, argv[0], &channel))
        return enif_make_badarg(env);
    bw_channel_close(channel);
    return atom(env, "ok");
}

/* ---- functions for Erlang ---- */

/* is_block_nif(Binary) */
NIF(is_block)
{
    ErlNifBinary binary;
    bw_block_t *block;

    if (!enif_inspect_binary(env, argv[0], &binary))
        return enif_make_badarg(env);
    block = bw_block_find(state_of(env)->blocks, binary.data, binary.size);
    if (block)
        give_back(block);
    return atom(env, block ? "true" : "false");
}

/* info() */
NIF(info)
{
    bw_blocks_info_t all = bw_blocks_info(state_of(env)->blocks);
    const struct {
        const char *name;
        uint64_t value;
    } each[] = {{"blocks", all.blocks},       {"bytes", all.bytes}, {"max_blocks", all.max_blocks},
                {"max_bytes", all.max_bytes}, {"made", all.made},   {"received", all.received},
                {"refused", all.refused}};
    ERL_NIF_TERM map = enif_make_new_map(env);

    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        enif_make_map_put(env, map, atom(env, each[i].name), enif_make_uint64(env, each[i].value),
                          &map);
    return map;
}

/* limit(Bytes) */
NIF(limit)
{
    ErlNifUInt64 bytes;

    if (!enif_get_uint64(env, argv[0], &bytes))
        return enif_make_badarg(env);
    bw_blocks_limit(state_of(env)->blocks, bytes);
    return atom(env, "ok");
}

/* reaper_nif(): registers the caller to be notified when there is something to reap. */
NIF(reaper)
{
    state_t *state = state_of(env);

    enif_mutex_lock(state->lock);
    state->has_reaper = enif_self(env, &state->reaper) != NULL;
    enif_mutex_unlock(state->lock);
    return atom(env, "ok");
}

/* reap() */
NIF(reap_)
{
    reap(state_of(env));
    return atom(env, "ok");
}

static ErlNifFunc functions[] = {
    {"from_iovec_nif", 2, from_iovec, ERL_NIF_DIRTY_JOB_CPU_BOUND},
    {"read_file_nif", 2, read_file, ERL_NIF_DIRTY_JOB_IO_BOUND},
    {"listen_nif", 1, listen_, ERL_NIF_DIRTY_JOB_IO_BOUND},
    {"accept", 1, accept_, ERL_NIF_DIRTY_JOB_IO_BOUND},
    {"connect", 3, connect_, 0},
    {"pass", 2, pass, 0},
    {"take_nif", 3, take_one, 0},
    {"copy_nif", 3, take_copy, ERL_NIF_DIRTY_JOB_CPU_BOUND},
    {"is_open", 1, is_open, 0},
    {"close", 1, close_, ERL_NIF_DIRTY_JOB_IO_BOUND},
    {"is_block_nif", 1, is_block, 0},
    {"info", 0, info, 0},
    {"limit", 1, limit, 0},
    {"reaper_nif", 0, reaper, 0},
    {"reap", 0, reap_, ERL_NIF_DIRTY_JOB_CPU_BOUND},
};

static int open_types(ErlNifEnv *env)
{
    ErlNifResourceFlags flags = ERL_NIF_RT_CREATE | ERL_NIF_RT_TAKEOVER;

    block_type = enif_open_resource_type(env, NULL, "block", block_gone, flags, NULL);
    channel_type = enif_open_resource_type(env, NULL, "channel", channel_gone, flags, NULL);
    listener_type = enif_open_resource_type(env, NULL, "listener", listener_gone, flags, NULL);
    return block_type && channel_type && listener_type ? 0 : -1;
}

static int load(ErlNifEnv *env, void **priv, ERL_NIF_TERM argument)
{
    state_t *state = calloc(1, sizeof *state);

    (void)argument;
    if (!state || open_types(env) != 0)
        return -1;
    state->blocks = bw_blocks_new(DEFAULT_MAX_BYTES);
    state->lock = enif_mutex_create("beamway_block");
    *priv = state;
    return state->blocks && state->lock ? 0 : -1;
}

/* Called when the module is loaded again. Existing binaries stay valid. */
static int upgrade(ErlNifEnv *env, void **priv, void **old, ERL_NIF_TERM argument)
{
    state_t *state = *old;

    (void)argument;
    if (open_types(env) != 0)
        return -1;
    *priv = state;
    return 0;
}

/* The library is never unloaded, because binaries may outlive the module and need the state. */
ERL_NIF_INIT(beamway_block, functions, load, NULL, upgrade, NULL)
