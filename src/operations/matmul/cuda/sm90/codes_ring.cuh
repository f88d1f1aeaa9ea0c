/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The depth of few rows in steps that are dealt in turn to parts, of which a block of a cluster has OWN_PARTS; one
 * thread copies its steps, codes and rows of a, through a ring of STAGES. Constants: those of codes_step.cuh;
 * SPLIT_DEPTH; STAGES; OWN_PARTS.
 */
#ifndef EJKI_MATMUL_CUDA_SM90_CODES_RING_CUH
#define EJKI_MATMUL_CUDA_SM90_CODES_RING_CUH

#include "operations/matmul/cuda/sm90/codes_step.cuh"

enum {
    ROW_BOXES = DEPTH / 64,
    STAGE_BYTES = BOXES * CODE_BOX + ROW_BOXES * BOX,
    PARTS = SPLIT_DEPTH * OWN_PARTS,
};

typedef pipeline_state<STAGES> stage_place;

/* Step n of a block's, of all. */
DEVICE int step_of(int rank, int n) {
    return n / OWN_PARTS * PARTS + rank * OWN_PARTS + n % OWN_PARTS;
}

/* One thread. Of steps behind the last all is 0. */
DEVICE void load_steps(const codes_arguments &a, u32 stages, u64 (&full)[STAGES], u64 (&empty)[STAGES],
                       const place &at, int rank, int count) {
    const int line = (int)(at.s.first + at.row);
    stage_place to = {0, 1};
#pragma unroll 1
    for (int n = 0; n < count; n++, to.next()) {
        const int step = step_of(rank, n);
        const u32 barrier = shared_address(&full[to.stage]), stage = stages + to.stage * STAGE_BYTES;
        mbarrier_wait(shared_address(&empty[to.stage]), to.parity);
        mbarrier_expect(barrier, STAGE_BYTES);
#pragma unroll
        for (int box = 0; box < BOXES; box++)
            tma_load(stage + box * CODE_BOX, &a.codes, barrier, step * CODE_BYTES,
                     (int)box_column(a.p, at.column, box), (int)at.s.held, 0);
#pragma unroll
        for (int box = 0; box < ROW_BOXES; box++)
            tma_load(stage + BOXES * CODE_BOX + box * BOX, &a.a, barrier, step * DEPTH + box * 64, line, 0, 0);
    }
}

#endif
