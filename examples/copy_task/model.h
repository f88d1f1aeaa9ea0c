/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model that learns to repeat what it has read: COPY_LENGTH random symbols, a mark, and then the symbols
 * again, which it has to foresee. Two layers of causal attention between embeddings and an output projection,
 *
 *     x = symbols[s_t] + positions[t];   twice: x += attention(x Wqkv, sinks) Wout;   logits = x Wlogits,
 *
 * fitted by gradient descent with momentum, on new random symbols at every step.
 *
 * Every function answers as the library's do. A model is used by one thread at a time.
 */
#ifndef COPY_TASK_MODEL_H
#define COPY_TASK_MODEL_H

#include <ejkernel/ejkernel.h>

enum { COPY_LENGTH = 8, COPY_SYMBOLS = 8 };

typedef struct copy_model copy_model;

/*
 * A model of random weights, always the same. It computes in `context`, which has to outlive it; attention by
 * the implementations of `platform`: "auto", "simd" or "reference".
 */
EJK_NODISCARD ejk_status copy_open(ejk_context *context, const char *platform, copy_model **out);

/* NULL is allowed. */
void copy_close(copy_model *model);

/*
 * One step: writes how well the weights do on a new batch, then moves them against the gradient. `loss` is the
 * mean in nats per symbol that has to be repeated, `right` the share of those given more than half of all odds.
 */
EJK_NODISCARD ejk_status copy_step(copy_model *model, double *loss, double *right);

#endif
