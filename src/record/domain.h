/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of tensors against what their units say. A plan resolves rules once; a call is checked against
 * them without a look at a text.
 */
#ifndef EJKI_RECORD_DOMAIN_H
#define EJKI_RECORD_DOMAIN_H

#include "base/base.h"

#include <ejkernel/record.h>

/* A domain under a call's symbols. Bounds that exclude themselves are moved for whole numbers. */
typedef struct ejki_domain_rule {
    ejk_domain_kind kind;
    bool low_excluded, high_excluded; /* of floating-point numbers */
    int64_t low, high, step;
} ejki_domain_rule;

/*
 * `record` is that of the call's arguments, whose defaults stand for symbols that are not bound; `dtype`: the
 * tensor's; `member`: its place in a list, else -1. Kind NONE where the unit says nothing. INVALID_ARGUMENT: a bound
 * has no value.
 */
ejk_status ejki_domain_resolve(const ejk_record *record, const ejk_field *field, int32_t member,
                               ejk_dtype dtype, const ejk_axes *axes, ejki_domain_rule *out);

/*
 * INVALID_ARGUMENT with the element, its value and what is expected. The tensor lies on the CPU. Neither
 * allocates nor looks at texts, unless a value is refused.
 */
ejk_status ejki_domain_verify(const ejki_domain_rule *rule, const char *name,
                              const ejk_tensor *tensor);

/*
 * Writes values that the rule allows, the same for the same seed, whatever the strides:
 *
 *     in [low,high)   from 0 up where that is inside (negative ones mark what is not there): none twice as
 *                     long as there are enough of them, and then evenly often; floats uniform
 *     ascending       an even cut of the whole, moved by up to a quarter of a part
 *     sum <= high     the parts of such a cut
 *
 * Cuts depend on the seed alone, so that those of queries and keys go together; ranges on `index` as well,
 * the number of the tensor in its call. INVALID_ARGUMENT: no value of the type is allowed.
 */
ejk_status ejki_domain_generate(const ejki_domain_rule *rule, const char *name,
                                const ejk_tensor *tensor, uint64_t seed, int32_t index);

/*
 * Resolves and generates for a tensor of a field, wherever it is seen on the CPU. *filled: the unit says what its
 * values are; otherwise nothing is written.
 */
ejk_status ejki_domain_fill(const ejk_record *record, const ejk_field *field, int32_t member,
                            const ejk_tensor *tensor, const ejk_axes *axes, uint64_t seed,
                            int32_t index, bool *filled);

#endif
