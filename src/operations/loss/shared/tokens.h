/* SPDX-License-Identifier: Apache-2.0 */
/* Checks and views of tensors of tokens. `rows` has their axes, and one behind them: logits, or hidden states. */
#ifndef EJKI_LOSS_TOKENS_H
#define EJKI_LOSS_TOKENS_H

#include <ejkernel/status.h>
#include <ejkernel/tensor.h>

#include "operations/loss/shared/tokens.cuh"

/* Results are float32, or float64 of float64 rows. */
ejk_dtype ejki_loss_result_type(ejk_dtype rows);

/* `t`, if it is there, has the axes of tokens, and `last` behind them; -1: nothing. */
ejk_status ejki_loss_check_tokens(const ejk_tensor *rows, const ejk_tensor *t, const char *name,
                                  int64_t last);
ejk_status ejki_loss_check_type(const ejk_tensor *t, const char *name, ejk_dtype wanted);
/* As many elements of `width` and of `vocab` as there are tokens can be counted. */
ejk_status ejki_loss_check_count(mm_size batch, mm_size tokens, mm_size vocab, mm_size width);

loss_view ejki_loss_view(const ejk_tensor *rows, const ejk_tensor *t);

/* The axes of tokens of `rows` become those of `view`. */
void ejki_loss_take_tokens(const ejk_tensor *rows, ejk_tensor *view);

#endif
