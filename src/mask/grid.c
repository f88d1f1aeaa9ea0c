/* SPDX-License-Identifier: Apache-2.0 */
/* The three grids: what comes next, leaving out what nobody needs, and their element types. */
#include "mask/process.h"

#include <stdlib.h>
#include <string.h>

/* ---- What comes next ------------------------------------------------------------------------------- */

enum { PLANE, ROW, COLUMN };

/* A group of planes and block rows, and the order in which its cells are walked: forward or back. */
struct walk {
    const ejki_mask_call *call;
    const ejki_masks *masks;
    const int64_t *mask_of_plane;
    int64_t first[3], count[3];
    int axis[3]; /* outermost first */
    bool want_partial;
    int32_t *out;
};

/* Whether the cell is one that is looked for, and then what is stored for it. */
static inline bool target(const struct walk *walk, const int64_t at[3], int32_t *value) {
    const ejki_mask_call *call = walk->call;
    int64_t cell =
        walk->mask_of_plane[at[PLANE]] * call->cells + at[ROW] * call->columns + at[COLUMN];
    uint8_t state = walk->masks->states[cell];
    if (walk->want_partial) {
        if (state == PARTIAL) *value = walk->masks->ids[cell];
        return state == PARTIAL;
    }
    if (state != EMPTY) *value = (int32_t)(call->dkv ? at[ROW] - walk->first[ROW] : at[COLUMN]);
    return state != EMPTY;
}

/* The first target of the group; 0 if it has none. */
static int32_t first_target(const struct walk *walk) {
    int64_t at[3];
    const int *axis = walk->axis;
    int32_t value = 0;
    for (int64_t a = 0; a < walk->count[axis[0]]; a++)
        for (int64_t b = 0; b < walk->count[axis[1]]; b++)
            for (int64_t c = 0; c < walk->count[axis[2]]; c++) {
                at[axis[0]] = walk->first[axis[0]] + a;
                at[axis[1]] = walk->first[axis[1]] + b;
                at[axis[2]] = walk->first[axis[2]] + c;
                if (target(walk, at, &value)) return value;
            }
    return 0;
}

/* Back from the last cell; the first target follows the last one. */
static void fill_group(const struct walk *walk) {
    const ejki_mask_call *call = walk->call;
    int64_t at[3];
    const int *axis = walk->axis;
    int32_t value = first_target(walk);
    for (int64_t a = walk->count[axis[0]]; a-- > 0;)
        for (int64_t b = walk->count[axis[1]]; b-- > 0;)
            for (int64_t c = walk->count[axis[2]]; c-- > 0;) {
                at[axis[0]] = walk->first[axis[0]] + a;
                at[axis[1]] = walk->first[axis[1]] + b;
                at[axis[2]] = walk->first[axis[2]] + c;
                (void)target(walk, at, &value);
                walk->out[at[PLANE] * call->cells + at[ROW] * call->columns + at[COLUMN]] = value;
            }
}

void ejki_grid_fill(const ejki_mask_call *call, const ejki_masks *masks,
                    const int64_t *mask_of_plane, int64_t planes, int64_t group_planes,
                    bool want_partial, int32_t *out) {
    struct walk walk = {call,
                        masks,
                        mask_of_plane,
                        {0},
                        {group_planes, call->shard_rows, call->columns},
                        {PLANE, ROW, COLUMN},
                        want_partial,
                        out};
    if (call->dkv) {
        walk.axis[0] = COLUMN;
        walk.axis[1] = PLANE;
        walk.axis[2] = ROW;
    }
    for (walk.first[PLANE] = 0; walk.first[PLANE] < planes; walk.first[PLANE] += group_planes)
        for (walk.first[ROW] = 0; walk.first[ROW] < call->rows; walk.first[ROW] += call->shard_rows)
            fill_group(&walk);
}

/* ---- Shrinking ------------------------------------------------------------------------------------- */

/*
 * Both kinds shrink lines of cells: fwd the rows of a shard, dkv its columns. Cell n of line k lies at
 * base + k * line_step + n * step.
 */
struct lines {
    int64_t count, length, line_step, step;
};

static int64_t longest(const uint8_t *states, const struct lines *lines) {
    int64_t most = 0;
    for (int64_t k = 0; k < lines->count; k++) {
        int64_t used = 0;
        for (int64_t n = 0; n < lines->length; n++)
            used += states[k * lines->line_step + n * lines->step] != EMPTY;
        most = ejki_max(most, used);
    }
    return most;
}

/* One shard: its lines packed to `length`, then stretched to to->length by repeating the edge. */
static void pack(const ejki_grid *from, int64_t from_base, const struct lines *lines, ejki_grid *to,
                 int64_t to_base, const struct lines *room, int64_t length, bool at_the_end) {
    for (int64_t k = 0; k < lines->count; k++) {
        int64_t used = 0, line = from_base + k * lines->line_step,
                place = to_base + k * room->line_step;
        for (int64_t n = 0; n < lines->length; n++)
            used += from->states[line + n * lines->step] != EMPTY;
        int64_t next = place + (at_the_end ? length - used : 0) * room->step;
        for (int64_t n = 0; n < lines->length; n++) {
            int64_t cell = line + n * lines->step;
            if (from->states[cell] == EMPTY) continue;
            to->states[next] = from->states[cell];
            for (int a = 0; a < 2; a++)
                if (to->next[a] != NULL) to->next[a][next] = from->next[a][cell];
            next += room->step;
        }
        for (int64_t n = length; length > 0 && n < room->length; n++)
            for (int a = 0; a < 2; a++)
                if (to->next[a] != NULL)
                    to->next[a][place + n * room->step] =
                        to->next[a][place + (length - 1) * room->step];
    }
}

/* Fresh arrays of zeros for what `from` has, of the size of `to`. */
static ejk_status open_grid(const ejki_mask_call *call, const ejki_grid *from, ejki_grid *to) {
    int64_t cells = to->rows * to->columns;
    EJKI_TRY(ejki_mask_alloc(call, cells, 1, &to->states));
    memset(to->states, 0, (size_t)cells);
    for (int a = 0; a < 2; a++) {
        if (from->next[a] == NULL) continue;
        EJKI_TRY(ejki_mask_alloc(call, cells, sizeof(int32_t), &to->next[a]));
        memset(to->next[a], 0, (size_t)cells * sizeof(int32_t));
    }
    return EJK_OK;
}

ejk_status ejki_grid_shrink(const ejki_mask_call *call, ejki_grid *grid) {
    struct lines lines = {call->shard_rows, call->columns, call->columns, 1};
    if (call->dkv) lines = (struct lines){call->columns, call->shard_rows, 1, call->columns};
    int64_t shard_cells = call->shard_rows * call->columns, most = 1;
    for (int64_t t = 0; t < call->q_shards; t++)
        most = ejki_max(most, longest(grid->states + t * shard_cells, &lines));
    ejki_grid small = {.planes = 1, .copies = grid->copies, .rows = call->rows, .columns = most};
    if (call->dkv) {
        small.rows = call->q_shards * most;
        small.columns = call->columns;
    }
    ejk_status status = open_grid(call, grid, &small);
    struct lines room = {lines.count, most, call->dkv ? 1 : most, call->dkv ? call->columns : 1};
    int64_t small_cells = small.rows / call->q_shards * small.columns;
    for (int64_t t = 0; t < call->q_shards && status == EJK_OK; t++)
        pack(grid, t * shard_cells, &lines, &small, t * small_cells, &room,
             longest(grid->states + t * shard_cells, &lines), call->dkv);
    ejki_grid *loser = status == EJK_OK ? grid : &small;
    ejki_grid_free(loser);
    if (status == EJK_OK) *grid = small;
    return status;
}

void ejki_grid_free(ejki_grid *grid) {
    free(grid->states);
    free(grid->next[0]);
    free(grid->next[1]);
    memset(grid, 0, sizeof *grid);
}

/* ---- Element types --------------------------------------------------------------------------------- */

static ejk_dtype width_of(int64_t largest) {
    return largest <= INT8_MAX    ? EJK_DTYPE_I8
           : largest <= INT16_MAX ? EJK_DTYPE_I16
                                  : EJK_DTYPE_I32;
}

static int64_t largest_of(const int32_t *values, int64_t count) {
    int32_t largest = 0;
    for (int64_t i = 0; i < count; i++) largest = values[i] > largest ? values[i] : largest;
    return largest;
}

/* Values as elements of a type; exactly one of `values` and `bytes` is given. */
static void store(void *out, ejk_dtype dtype, const int32_t *values, const uint8_t *bytes,
                  int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        int32_t value = values != NULL ? values[i] : bytes[i];
        if (dtype == EJK_DTYPE_I8)
            ((int8_t *)out)[i] = (int8_t)value;
        else if (dtype == EJK_DTYPE_I16)
            ((int16_t *)out)[i] = (int16_t)value;
        else
            ((int32_t *)out)[i] = value;
    }
}

static ejk_status publish(const ejki_mask_call *call, const ejki_grid *grid, ejk_dtype dtype,
                          const int32_t *values, const uint8_t *bytes, int place,
                          ejk_splash_mask_info *info, ejk_tensor *tensor) {
    int64_t cells = grid->planes * grid->rows * grid->columns, count;
    void *array = NULL;
    if (!ejki_mul(cells, grid->copies, &count))
        return REFUSE(OVERFLOW, INVALID_ARGUMENT, "the cells of %lld planes cannot be counted",
                      (long long)(grid->copies));
    int64_t size = (int64_t)ejk_dtype_size(dtype);
    EJKI_TRY(ejki_mask_alloc(call, count, size, &array));
    ejki_info_keep(info, place, array);
    for (int64_t i = 0; i < grid->copies; i++)
        if (i == 0)
            store(array, dtype, values, bytes, cells);
        else
            memcpy((uint8_t *)array + i * cells * size, array, (size_t)(cells * size));
    *tensor = ejk_tensor_3d(array, dtype, grid->planes * grid->copies, grid->rows, grid->columns);
    return EJK_OK;
}

ejk_status ejki_grid_publish(const ejki_mask_call *call, const ejki_grid *grid,
                             const int64_t bounds[2], ejk_splash_mask_info *info) {
    ejk_tensor *tensors[2] = {&info->data_next, &info->mask_next};
    int64_t cells = grid->planes * grid->rows * grid->columns;
    EJKI_TRY(publish(call, grid, call->narrow ? EJK_DTYPE_I8 : EJK_DTYPE_I32, NULL, grid->states,
                     BLOCK_MASK, info, &info->block_mask));
    for (int a = 0; a < 2; a++) {
        if (grid->next[a] == NULL) continue;
        ejk_dtype dtype = EJK_DTYPE_I32;
        if (call->narrow)
            dtype = width_of(bounds != NULL ? bounds[a] : largest_of(grid->next[a], cells));
        EJKI_TRY(publish(call, grid, dtype, grid->next[a], NULL, a == 0 ? DATA_NEXT : MASK_NEXT,
                         info, tensors[a]));
    }
    return EJK_OK;
}
