/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file paged_cache.h
 * Writing to caches of keys and values that lie in pages (paged_attention.h), and copying pages.
 *
 * update_kv_cache stores a new row of each token: at row slot_mapping[t] of all rows of the cache, −1 meaning nowhere,
 * or at position kv_len − q_len + r of its sequence, through the table. Values become value / scale, rounded to
 * nearest even and saturated (int8 −128 … 127, float8 ±448 and ±57344). With k_row_scale and v_row_scale the scale of
 * each row of each head is chosen and stored: the largest magnitude over that of the type, 1 where all are 0. Nothing
 * else of the caches is touched. Where a slot is named twice, each element of it is that of one of the rows.
 *
 * kv_cache_copy copies pages, as beams and shared prefixes need it. A page that is written may not be read or written
 * a second time.
 *
 * On a CPU wrong slots, entries and lengths fail the call before anything is written; on a GPU they are left out.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_PAGED_CACHE_H
#define EJKERNEL_PAGED_CACHE_H

#include <ejkernel/paged_attention.h>

#ifdef __cplusplus
extern "C" {
#endif

/** update_kv_cache: slot_mapping, or lengths, starts and a table. */
#define EJK_UPDATE_KV_CACHE_ARGS(F, R)                                                             \
    F(TENSOR, key, EJK_REQUIRED, "", "[T,Hkv,D] float", "new keys")                                \
    F(TENSOR, value, EJK_REQUIRED, "", "[T,Hkv,Dv] key", "new values")                             \
    F(TENSOR, key_cache, EJK_REQUIRED_INOUT, "", "[pages,page,Hkv,D] element", "keys")             \
    F(TENSOR, value_cache, EJK_REQUIRED_INOUT, "", "[pages,page,Hkv,Dv] key_cache", "values")      \
    F(TENSOR, slot_mapping, EJK_OPTIONAL, "the table", "[T] int", "rows of the cache; -1 = skip")  \
    F(TENSOR, kv_lens, EJK_OPTIONAL, "slot_mapping", "[N] int",                                    \
      "keys of each sequence, new ones among them")                                                \
    F(TENSOR, block_tables, EJK_OPTIONAL, "slot_mapping", "[N,max_pages] int",                     \
      "pages of each sequence")                                                                    \
    F(TENSOR, query_start_loc, EJK_OPTIONAL, "slot_mapping", "[N+1] int",                          \
      "0 and the ends of the sequences' rows, not decreasing")                                     \
    F(TENSOR, k_scale, EJK_OPTIONAL, "1", "[1] or [Hkv] float32", "what keys are divided by")      \
    F(TENSOR, v_scale, EJK_OPTIONAL, "1", "[1] or [Hkv] float32", "what values are divided by")    \
    F(TENSOR, k_row_scale, EJK_INOUT, "none", "[pages,page,Hkv] float32",                          \
      "scales of rows, chosen by the call")                                                        \
    F(TENSOR, v_row_scale, EJK_INOUT, "none", "[pages,page,Hkv] float32",                          \
      "the same of the values")                                                                    \
    EJK_PAGED_ATTENTION_CHOICE(F, R)

EJK_RECORD_STRUCT(ejk_update_kv_cache_args, EJK_UPDATE_KV_CACHE_ARGS);
extern EJK_API const ejk_record ejk_update_kv_cache_args_record;
extern EJK_API const ejk_kernel ejk_update_kv_cache_kernel;

/** kv_cache_copy: page block_mapping[i, 0] to page block_mapping[i, 1], scales of rows too. */
#define EJK_KV_CACHE_COPY_ARGS(F, R)                                                               \
    F(TENSOR, key_cache, EJK_REQUIRED_INOUT, "", "[pages,page,Hkv,D] element", "keys")             \
    F(TENSOR, value_cache, EJK_REQUIRED_INOUT, "", "[pages,page,Hkv,Dv] key_cache", "values")      \
    F(TENSOR, block_mapping, EJK_REQUIRED, "", "[copies,2] int", "pages from and to")              \
    F(TENSOR, k_row_scale, EJK_INOUT, "none", "[pages,page,Hkv] float32", "scales of rows")        \
    F(TENSOR, v_row_scale, EJK_INOUT, "none", "[pages,page,Hkv] float32",                          \
      "the same of the values")                                                                    \
    EJK_PAGED_ATTENTION_CHOICE(F, R)

EJK_RECORD_STRUCT(ejk_kv_cache_copy_args, EJK_KV_CACHE_COPY_ARGS);
extern EJK_API const ejk_record ejk_kv_cache_copy_args_record;
extern EJK_API const ejk_kernel ejk_kv_cache_copy_kernel;

/** Nothing is written if a call fails. Statuses: those of ejk_plan_create() and ejk_plan_execute(). */
EJK_API EJK_NODISCARD ejk_status ejk_update_kv_cache(ejk_context *context,
                                                     const ejk_update_kv_cache_args *args);
EJK_API EJK_NODISCARD ejk_status ejk_kv_cache_copy(ejk_context *context,
                                                   const ejk_kv_cache_copy_args *args);

#ifdef __cplusplus
}
#endif
#endif
