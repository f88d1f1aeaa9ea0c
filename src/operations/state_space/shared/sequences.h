/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the sequences and slots of a stateful call, and lists of them for measuring. */
#ifndef EJKI_STATE_SPACE_SEQUENCES_H
#define EJKI_STATE_SPACE_SEQUENCES_H

#include <ejkernel/kernel.h>

#include "operations/state_space/shared/sequences.cuh"

/* How a call says where its states are; those it lacks are absent tensors. */
typedef struct ejki_states {
    const ejk_tensor *ends, *indices, *pool, *initial, *final;
    const char *pool_name;
} ejki_states;

/* Without pointers. */
ejk_status ejki_sequences_of(const ejki_states *states, int64_t batch, int64_t tokens,
                             sequences *out);
void ejki_sequences_bind(const ejki_states *states, sequences *s);
/* INVALID_ARGUMENT: two sequences have the same slot. */
ejk_status ejki_sequences_check(const sequences *s);
/* Sequences of equal length, a slot each. */
ejk_status ejki_sequences_fill(const ejk_tensor *ends, const ejk_tensor *indices, int64_t tokens);
/* Decays that fade, in place of numbers around 0: states would grow without bounds. */
void ejki_fill_decays(const ejk_tensor *decays);
/* Steps of any rank, for the same reason above 0. */
void ejki_fill_steps(const ejk_tensor *steps);

#endif
