/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What launchers of all operations share: constants that kernels are compiled for, compiled kernels in the slots of
 * what is prepared, checks of addresses, and launches. Knows no operation.
 */
#ifndef EJKI_CUDA_LAUNCH_H
#define EJKI_CUDA_LAUNCH_H

#include <ejkernel/registry.h>

#include "base/base.h"
#include "device/cuda.h"
#include "kernels/tokens.cuh"

/* Shared memory that a block may have on every GPU from sm_80 up. */
enum { EJKI_CUDA_SHARED_BYTES = 99 * 1024 };

/* ---- Constants -------------------------------------------------------------------------------------- */

typedef struct ejki_cuda_constants {
    ejki_cuda_constant list[32];
    int32_t count;
} ejki_cuda_constants;

void ejki_cuda_add(ejki_cuda_constants *constants, const char *name, int64_t value);

/* ---- Addresses -------------------------------------------------------------------------------------- */

/* INVALID_LAYOUT if an address is not a multiple of its element's size, which a GPU needs. NULL is one. */
ejk_status ejki_cuda_check_address(const void *data, int64_t size, const char *name);
/* The same of a tensor that may be absent: its type is 0 then, or its address NULL. */
ejk_status ejki_cuda_check_tensor(const void *data, int dtype, const char *name);

typedef struct ejki_cuda_address {
    const void *data;
    int64_t size;
    const char *name;
} ejki_cuda_address;
ejk_status ejki_cuda_check_addresses(const ejki_cuda_address *list, size_t count);

/* ---- Compiling -------------------------------------------------------------------------------------- */

/* Compiles `entry` of a text, or finds it compiled, into a slot of what is prepared. */
ejk_status ejki_cuda_ready(ejk_launch *launch, int32_t slot, const char *text, const char *entry,
                           const ejki_cuda_constants *constants);

/* The same for several, which are compiled in parallel. */
enum { EJKI_CUDA_MOST_KERNELS = 8 };
typedef struct ejki_cuda_kernels {
    struct {
        int32_t slot;
        const char *text, *entry;
        ejki_cuda_constants constants;
    } list[EJKI_CUDA_MOST_KERNELS];
    int32_t count;
} ejki_cuda_kernels;
void ejki_cuda_want(ejki_cuda_kernels *kernels, int32_t slot, const char *text, const char *entry,
                    const ejki_cuda_constants *constants);
ejk_status ejki_cuda_ready_all(ejk_launch *launch, const ejki_cuda_kernels *kernels);

/* ---- Launching -------------------------------------------------------------------------------------- */

/* Launches with one argument; an empty grid is no launch. */
typedef struct ejki_cuda_work {
    int32_t slot, threads;
    int64_t blocks, splits; /* of the grid; splits 0 = 1 */
    int64_t shared_bytes;
    bool overlaps; /* as ejki_cuda_launch has it */
} ejki_cuda_work;
ejk_status ejki_cuda_begin(const ejk_run *run, const ejki_cuda_work *work, void *argument);

/* ---- Kernels over rows: rows.cuh -------------------------------------------------------------------- */

/*
 * Such a kernel has two variants: WIDE reads 16 bytes at a time where every row begins at a multiple of them, NARROW
 * single elements. Both are compiled if the strides allow it, as addresses are known only when the call runs.
 */
enum { EJKI_CUDA_NARROW, EJKI_CUDA_WIDE, EJKI_CUDA_ROW_SLOTS };

typedef struct ejki_cuda_rows {
    int64_t width;  /* elements of a row */
    int64_t vector; /* elements of 16 bytes; 1 = there is no wide variant */
} ejki_cuda_rows;

/* `strides` are all that separate rows, `width` among them. */
ejki_cuda_rows ejki_cuda_rows_of(int64_t width, ejk_dtype dtype, const int64_t *strides,
                                 size_t count);

/* Runs of tokens, of which x is read and y written or the other way. */
ejki_cuda_rows ejki_cuda_rows_of_tokens(const ejki_runs *runs, ejk_dtype dtype,
                                        const ejki_tokens *x, const ejki_tokens *y);
/*
 * Parts of a sum over `count`, each of `least` at least, so that these blocks together fill the largest GPU several
 * times over. From sizes alone, so that bits are the same on every GPU.
 */
int64_t ejki_cuda_splits(int64_t blocks, int64_t count, int64_t least);

/* Compiles the variants into slots 0 and 1; VECTOR and LANES are added to the constants. */
ejk_status ejki_cuda_ready_rows(ejk_launch *launch, const char *text, const char *entry,
                                ejki_cuda_constants constants, const ejki_cuda_rows *rows);
/* Only a narrow one, into a slot of the caller's. */
ejk_status ejki_cuda_ready_narrow(ejk_launch *launch, int32_t slot, const char *text,
                                  const char *entry, ejki_cuda_constants constants,
                                  const ejki_cuda_rows *rows);

/* True if the wide variant can run: all addresses are multiples of a run of elements, whose sizes are given. */
bool ejki_cuda_is_wide(const ejki_cuda_rows *rows, const ejki_cuda_address *runs, size_t run_count);
/* Tiles that a row is long: runs of all threads of a row. */
int64_t ejki_cuda_rows_tiles(const ejki_cuda_rows *rows, bool wide);
/*
 * Launch the wide variant if it can run: as many threads for each of `count` rows as it has lanes, or a block for
 * each part of each of their tiles.
 */
ejk_status ejki_cuda_begin_rows(const ejk_run *run, const ejki_cuda_rows *rows, int64_t count,
                                const ejki_cuda_address *runs, size_t run_count, void *argument);
ejk_status ejki_cuda_begin_tiles(const ejk_run *run, const ejki_cuda_rows *rows, int64_t count,
                                 int64_t splits, const ejki_cuda_address *runs, size_t run_count,
                                 void *argument);
/* A block of the same size for each of `blocks`. */
ejk_status ejki_cuda_begin_row_blocks(const ejk_run *run, int32_t slot, int64_t blocks,
                                      void *argument);

#endif
