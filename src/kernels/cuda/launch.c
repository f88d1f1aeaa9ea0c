/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/launch.h"

void ejki_cuda_add(ejki_cuda_constants *constants, const char *name, int64_t value) {
    constants->list[constants->count++] = (ejki_cuda_constant){name, value};
}

/* ---- Addresses -------------------------------------------------------------------------------------- */

static bool is_multiple(const void *data, int64_t size) {
    return (uintptr_t)data % (uintptr_t)size == 0;
}

ejk_status ejki_cuda_check_address(const void *data, int64_t size, const char *name) {
    if (is_multiple(data, size)) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_LAYOUT,
                     "%s lies at %p, expected a multiple of its element's %lld bytes on a GPU",
                     name, data, (long long)size);
}

ejk_status ejki_cuda_check_tensor(const void *data, int dtype, const char *name) {
    return dtype ? ejki_cuda_check_address(data, (int64_t)ejk_dtype_size((ejk_dtype)dtype), name)
                 : EJK_OK;
}

ejk_status ejki_cuda_check_addresses(const ejki_cuda_address *list, size_t count) {
    for (size_t i = 0; i < count; i++)
        EJKI_TRY(ejki_cuda_check_address(list[i].data, list[i].size, list[i].name));
    return EJK_OK;
}

/* ---- Compiling -------------------------------------------------------------------------------------- */

ejk_status ejki_cuda_ready(ejk_launch *launch, int32_t slot, const char *text, const char *entry,
                           const ejki_cuda_constants *constants) {
    ejki_cuda_function_t *function;
    EJKI_TRY(ejki_cuda_function(launch->device, ejki_cuda_text(text), entry, constants->list,
                                constants->count, &function));
    launch->prepared[slot] = function;
    return EJK_OK;
}

void ejki_cuda_want(ejki_cuda_kernels *kernels, int32_t slot, const char *text, const char *entry,
                    const ejki_cuda_constants *constants) {
    const int32_t own = kernels->count++;
    kernels->list[own].slot = slot;
    kernels->list[own].text = text;
    kernels->list[own].entry = entry;
    kernels->list[own].constants = *constants;
}

ejk_status ejki_cuda_ready_all(ejk_launch *launch, const ejki_cuda_kernels *kernels) {
    ejki_cuda_wish wishes[EJKI_CUDA_MOST_KERNELS] = {{0}};
    for (int32_t i = 0; i < kernels->count; i++)
        wishes[i] =
            (ejki_cuda_wish){ejki_cuda_text(kernels->list[i].text), kernels->list[i].entry,
                             kernels->list[i].constants.list, kernels->list[i].constants.count};
    ejki_cuda_make_ahead(launch->device, wishes, kernels->count);
    for (int32_t i = 0; i < kernels->count; i++)
        EJKI_TRY(ejki_cuda_ready(launch, kernels->list[i].slot, kernels->list[i].text,
                                 kernels->list[i].entry, &kernels->list[i].constants));
    return EJK_OK;
}

/* ---- Launching -------------------------------------------------------------------------------------- */

ejk_status ejki_cuda_begin(const ejk_run *run, const ejki_cuda_work *work, void *argument) {
    const ejki_cuda_launch how = {
        .grid = {(uint32_t)work->blocks, (uint32_t)ejki_max(work->splits, 1), 1},
        .block = {(uint32_t)work->threads, 1, 1},
        .shared_bytes = (uint32_t)work->shared_bytes,
        .stream = run->stream,
        .overlaps = work->overlaps,
    };
    void *arguments[] = {argument};
    return work->blocks > 0 ? ejki_cuda_run(run->prepared[work->slot], &how, arguments) : EJK_OK;
}

/* ---- Kernels over rows ------------------------------------------------------------------------------ */

enum { ROW_THREADS = 256, MOST_LANES = 32, RUN_BYTES = 16 }; /* as rows.cuh has them */
enum { ENOUGH_BLOCKS = 2048, MOST_SPLITS = 64 };

ejki_cuda_rows ejki_cuda_rows_of(int64_t width, ejk_dtype dtype, const int64_t *strides,
                                 size_t count) {
    ejki_cuda_rows rows = {.width = width, .vector = RUN_BYTES / (int64_t)ejk_dtype_size(dtype)};
    for (size_t i = 0; i < count; i++)
        if (strides[i] % rows.vector) rows.vector = 1;
    return rows;
}

ejki_cuda_rows ejki_cuda_rows_of_tokens(const ejki_runs *runs, ejk_dtype dtype,
                                        const ejki_tokens *x, const ejki_tokens *y) {
    const int64_t strides[] = {runs->width, x->batch,    x->step,    x->outer[0],
                               x->outer[1], x->outer[2], y->batch,   y->step,
                               y->outer[0], y->outer[1], y->outer[2]};
    return ejki_cuda_rows_of(runs->width, dtype, strides, sizeof strides / sizeof *strides);
}

int64_t ejki_cuda_splits(int64_t blocks, int64_t count, int64_t least) {
    const int64_t most = ejki_min(ejki_max(count / least, 1), MOST_SPLITS);
    return ejki_max(ejki_min(ENOUGH_BLOCKS / ejki_max(blocks, 1), most), 1);
}

/* Threads of a row: as many as it has runs, up to a power of two. */
static int64_t lanes_of(const ejki_cuda_rows *rows, int64_t vector) {
    int64_t count = 1;
    while (count < MOST_LANES && count * vector < rows->width) count *= 2;
    return count;
}

static ejk_status ready_variant(ejk_launch *launch, int32_t slot, const char *text,
                                const char *entry, ejki_cuda_constants constants,
                                const ejki_cuda_rows *rows, int64_t vector) {
    ejki_cuda_add(&constants, "VECTOR", vector);
    ejki_cuda_add(&constants, "LANES", lanes_of(rows, vector));
    return ejki_cuda_ready(launch, slot, text, entry, &constants);
}

ejk_status ejki_cuda_ready_narrow(ejk_launch *launch, int32_t slot, const char *text,
                                  const char *entry, ejki_cuda_constants constants,
                                  const ejki_cuda_rows *rows) {
    return ready_variant(launch, slot, text, entry, constants, rows, 1);
}

ejk_status ejki_cuda_ready_rows(ejk_launch *launch, const char *text, const char *entry,
                                ejki_cuda_constants constants, const ejki_cuda_rows *rows) {
    EJKI_TRY(ready_variant(launch, EJKI_CUDA_NARROW, text, entry, constants, rows, 1));
    if (rows->vector == 1) return EJK_OK;
    return ready_variant(launch, EJKI_CUDA_WIDE, text, entry, constants, rows, rows->vector);
}

ejk_status ejki_cuda_begin_row_blocks(const ejk_run *run, int32_t slot, int64_t blocks,
                                      void *argument) {
    const ejki_cuda_work work = {
        .slot = slot, .threads = ROW_THREADS, .blocks = ejki_min(blocks, INT32_MAX)};
    return ejki_cuda_begin(run, &work, argument);
}

bool ejki_cuda_is_wide(const ejki_cuda_rows *rows, const ejki_cuda_address *runs,
                       size_t run_count) {
    bool wide = rows->vector > 1;
    for (size_t i = 0; i < run_count; i++)
        wide = wide && is_multiple(runs[i].data, runs[i].size * rows->vector);
    return wide;
}

int64_t ejki_cuda_rows_tiles(const ejki_cuda_rows *rows, bool wide) {
    const int64_t vector = wide ? rows->vector : 1;
    return ejki_cdiv(rows->width, lanes_of(rows, vector) * vector);
}

ejk_status ejki_cuda_begin_rows(const ejk_run *run, const ejki_cuda_rows *rows, int64_t count,
                                const ejki_cuda_address *runs, size_t run_count, void *argument) {
    const bool wide = ejki_cuda_is_wide(rows, runs, run_count);
    const int64_t lanes = lanes_of(rows, wide ? rows->vector : 1);
    return ejki_cuda_begin_row_blocks(run, wide ? EJKI_CUDA_WIDE : EJKI_CUDA_NARROW,
                                      ejki_cdiv(count, ROW_THREADS / lanes), argument);
}

ejk_status ejki_cuda_begin_tiles(const ejk_run *run, const ejki_cuda_rows *rows, int64_t count,
                                 int64_t splits, const ejki_cuda_address *runs, size_t run_count,
                                 void *argument) {
    const bool wide = ejki_cuda_is_wide(rows, runs, run_count);
    const ejki_cuda_work work = {.slot = wide ? EJKI_CUDA_WIDE : EJKI_CUDA_NARROW,
                                 .threads = ROW_THREADS,
                                 .blocks = count * ejki_cuda_rows_tiles(rows, wide),
                                 .splits = splits};
    return ejki_cuda_begin(run, &work, argument);
}
