/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that the cases of the conformance harness make, for the tests of the Python package. */
#include "conformance/all_cases.h"

#include <stdlib.h>
#include <string.h>

/* The element type of the first tensor of the call of a seed. */
EJK_API ejk_dtype calls_dtype(uint64_t seed);
/* The call of a seed; NULL: there is none. */
EJK_API struct call *calls_open(const char *op, uint64_t seed, int64_t budget);
EJK_API void *calls_args(const struct call *call);
/* Whether there are NaN and infinities in what is read. */
EJK_API bool calls_is_hostile(const struct call *call);
EJK_API void calls_close(struct call *call);

ejk_dtype calls_dtype(uint64_t seed) {
    return call_dtype(seed);
}

struct call *calls_open(const char *op, uint64_t seed, int64_t budget) {
    struct call *call = malloc(sizeof *call);
    for (size_t i = 0; call && i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(cases[i]->op, op) != 0) continue;
        if (call_open(call, cases[i], kernels[i], seed, budget, NULL)) return call;
        call_close(call);
        break;
    }
    free(call);
    return NULL;
}

void *calls_args(const struct call *call) {
    return call->args;
}

bool calls_is_hostile(const struct call *call) {
    return call->hostile;
}

void calls_close(struct call *call) {
    call_close(call);
    free(call);
}
