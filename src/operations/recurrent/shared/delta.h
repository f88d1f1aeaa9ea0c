/* SPDX-License-Identifier: Apache-2.0 */
/* What the members with a delta rule have in common: tensors and options, which go by the same names in each. */
#ifndef EJKI_RECURRENT_DELTA_H
#define EJKI_RECURRENT_DELTA_H

#include "operations/recurrent/shared/recurrent.h"

/* Tensors of `a`, each told by WITH: given, or wanted as a gradient. */
#define REC_DELTA_TENSORS(WITH, a)                                                                 \
    WITH(a, REC_QUERY, query), WITH(a, REC_KEY, key), WITH(a, REC_VALUE, value),                   \
        WITH(a, REC_BETA, beta), WITH(a, REC_G, decay), WITH(a, REC_A_LOG, A_log),                 \
        WITH(a, REC_DT_BIAS, dt_bias)

#define REC_DELTA_OPTIONS(a)                                                                       \
    .update = REC_DELTA, .normalise = (a)->use_qk_l2norm != EJK_FALSE,                             \
    .beta_logits = (a)->use_beta_sigmoid

/* What members keep for gradients. */
#define REC_KEPT(a) .tensor[REC_STATES] = &(a)->chunk_states, .tensor[REC_ERRORS] = &(a)->errors

/* Calls of members; what else they have follows. */
#define REC_DELTA_FORWARD(a, ...)                                                                  \
    (rec_call) {                                                                                   \
        REC_FORWARD(a), REC_DELTA_TENSORS(REC_GIVEN, a), REC_DELTA_OPTIONS(a), __VA_ARGS__         \
    }
#define REC_DELTA_BACKWARD(a, ...)                                                                 \
    (rec_call) {                                                                                   \
        REC_BACKWARD(a), REC_DELTA_TENSORS(REC_GIVEN, a), REC_DELTA_TENSORS(REC_WANTED, a),        \
            REC_DELTA_OPTIONS(a), __VA_ARGS__                                                      \
    }

#endif
