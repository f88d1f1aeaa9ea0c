/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of flash attention that lie in files of their own. */
#ifndef EJKI_MODULES_FLASH_ATTENTION_STEPS_H
#define EJKI_MODULES_FLASH_ATTENTION_STEPS_H

#include <ejkernel/flash_attention.h>

#include "operations/attention/flash/problem.h"

/* Beyond this float32 scores overflow; a soft cap as large is felt by none of them. */
#define EJKI_FLASH_FAR 1e30

/* What the record cannot say: combinations, values, what this version does not have. */
ejk_status ejki_flash_check(const ejk_flash_attention_args *args, const ejk_axes *axes);

/* Writes the problem of checked arguments: sizes, strides, scalars resolved to what they mean. */
void ejki_flash_problem_of(const ejk_flash_attention_args *args, const ejk_axes *axes,
                           ejki_flash_problem *out);

/* Puts the pointers of flash_attention's arguments into its problem. */
void ejki_flash_bind(const void *args, void *problem);

/* flash_attention_inputs.c: the hook `inputs` of every operation that has these tensors. */
extern const ejk_input_option ejki_flash_input_options[1];
ejk_status ejki_flash_inputs(const ejk_flash_attention_args *args, const ejk_axes *axes,
                             const ejk_inputs *how);

/* The hook `validate`: cumulative lengths of a problem that begins with ejki_flash_problem. */
ejk_status ejki_flash_validate(const void *problem);

void ejki_flash_cost(const void *problem, const void *args, ejk_cost *cost);

/* Keys that all queries of one head of one sequence see together, by index. */
double ejki_flash_visible_pairs(const ejki_flash_problem *p);

/* flash_attention_count.c. True if there is all the data that scores are counted from. */
bool ejki_flash_in_view(const ejki_flash_problem *p, const void *args);
/* All scores that are visible by the data; -1 if there is no memory to count with. */
double ejki_flash_count(const ejki_flash_problem *p);
/* Tokens of packed sequences. */
void ejki_flash_tokens(const ejki_flash_problem *p, double *queries, double *keys);

/* flash_attention_config.c: see ejk_kernel. */
void ejki_flash_heuristic_cfg(const ejk_invocation *invocation, void *config);
ejk_status ejki_flash_candidate_cfgs(const ejk_invocation *invocation, void *configs,
                                     int32_t capacity, int32_t *count);
ejk_status ejki_flash_vjp_candidate_cfgs(const ejk_invocation *invocation, void *configs,
                                         int32_t capacity, int32_t *count);

#endif
