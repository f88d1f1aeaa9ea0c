/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file ejkernel.h
 * All of libejkernel. docs/api.md lists the headers with a line each; start with flash_attention.h to call an
 * operation, and with kernel.h to write a kernel of your own. The mark at the end of a header's first comment
 * says in which version it came; what came to it later has a mark of its own.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_EJKERNEL_H
#define EJKERNEL_EJKERNEL_H

#include <ejkernel/attention.h>
#include <ejkernel/attention_merge.h>
#include <ejkernel/batch.h>
#include <ejkernel/benchmark.h>
#include <ejkernel/blocksparse_attention.h>
#include <ejkernel/causal_conv1d.h>
#include <ejkernel/chooser.h>
#include <ejkernel/config.h>
#include <ejkernel/context.h>
#include <ejkernel/cuda.h>
#include <ejkernel/device.h>
#include <ejkernel/executor.h>
#include <ejkernel/flash_attention.h>
#include <ejkernel/flash_mla.h>
#include <ejkernel/fused_cross_entropy.h>
#include <ejkernel/fused_kl_divergence.h>
#include <ejkernel/gated_delta_rule.h>
#include <ejkernel/gated_rms_norm.h>
#include <ejkernel/gguf.h>
#include <ejkernel/gla_attention.h>
#include <ejkernel/gpu_measure.h>
#include <ejkernel/grouped_matmul.h>
#include <ejkernel/hooks.h>
#include <ejkernel/identity.h>
#include <ejkernel/import_weights.h>
#include <ejkernel/kda_attention.h>
#include <ejkernel/kernel.h>
#include <ejkernel/labels.h>
#include <ejkernel/lightning_attention.h>
#include <ejkernel/lowered.h>
#include <ejkernel/mask_drawing.h>
#include <ejkernel/mask_info.h>
#include <ejkernel/matmul.h>
#include <ejkernel/mean_pooling.h>
#include <ejkernel/moe.h>
#include <ejkernel/native_sparse_attention.h>
#include <ejkernel/numeric.h>
#include <ejkernel/paged_attention.h>
#include <ejkernel/paged_cache.h>
#include <ejkernel/params.h>
#include <ejkernel/plan.h>
#include <ejkernel/problem.h>
#include <ejkernel/profiler.h>
#include <ejkernel/quantized_matmul.h>
#include <ejkernel/ragged_gated_delta_rule.h>
#include <ejkernel/record.h>
#include <ejkernel/recording.h>
#include <ejkernel/recurrent.h>
#include <ejkernel/recurrent_attention.h>
#include <ejkernel/registry.h>
#include <ejkernel/rwkv4.h>
#include <ejkernel/rwkv6.h>
#include <ejkernel/rwkv7.h>
#include <ejkernel/rwkv7_mul.h>
#include <ejkernel/scaled_dot_product_attention.h>
#include <ejkernel/scaled_matmul.h>
#include <ejkernel/selector.h>
#include <ejkernel/sequence.h>
#include <ejkernel/splash_mask.h>
#include <ejkernel/state_space_v1.h>
#include <ejkernel/state_space_v2.h>
#include <ejkernel/states.h>
#include <ejkernel/status.h>
#include <ejkernel/tensor.h>
#include <ejkernel/tuning.h>

#endif
