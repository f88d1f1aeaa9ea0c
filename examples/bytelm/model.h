/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A byte-level language model: it reads bytes and says, after each, how likely every byte is to follow.
 * The weights and what they compute are described in examples/data/bytelm/README.md.
 * Every function answers as the library's do. A model is used by one thread at a time.
 */
#ifndef BYTELM_MODEL_H
#define BYTELM_MODEL_H

#include <ejkernel/ejkernel.h>

enum { BYTELM_VOCABULARY = 256, BYTELM_CONTEXT = 1024 };

typedef struct bytelm bytelm;

/*
 * Loads a model from `folder`. It computes in `context`, which has to outlive it: attention on queries, keys
 * and values of `dtype` (f32, bf16 or f16) on GPU `device`, or with -1 on the CPU; all else in f32 on the CPU.
 */
EJK_NODISCARD ejk_status bytelm_open(ejk_context *context, const char *folder, ejk_dtype dtype,
                                     int device, bytelm **out);

/* NULL is allowed. */
void bytelm_close(bytelm *model);

/*
 * Reads `count` bytes that follow those read before: many at once (prefill) or one (decoding).
 * `logits` [count, BYTELM_VOCABULARY] gets, for each, the unnormalised log-probabilities of the next byte.
 * The model reads BYTELM_CONTEXT bytes at most; more are refused.
 */
EJK_NODISCARD ejk_status bytelm_read(bytelm *model, const uint8_t *bytes, int count, float *logits);

/* Forgets all that was read. */
void bytelm_forget(bytelm *model);

/* The likeliest byte of one row of logits. */
uint8_t bytelm_likeliest(const float *logits);

#endif
