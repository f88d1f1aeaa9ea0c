/* SPDX-License-Identifier: Apache-2.0 */
/* A record with every kind of field, one nested. */
#ifndef TESTS_SAMPLE_RECORD_H
#define TESTS_SAMPLE_RECORD_H

#include <ejkernel/record.h>

#define TILE(F, R)                                                                                 \
    F(OPT_INT, rows, EJK_OPTIONAL, "unset", "rows", "rows a tile computes at once")                \
    F(BOOL, pinned, EJK_OPTIONAL, "false", "", "keep the tile in cache")
EJK_RECORD_STRUCT(tile, TILE);
#define EJK_RECORD_SELF tile
EJK_RECORD_DEFINE(tile_record, tile, TILE);
#undef EJK_RECORD_SELF

#define SAMPLE(F, R)                                                                               \
    F(TENSOR, query, EJK_REQUIRED, "", "[B,T,Hq,D] float", "what asks")                            \
    F(TENSOR, out, EJK_OUTPUT, "not written", "[B,T,Hq,D] query", "what is answered")              \
    F(BOOL, causal, EJK_OPTIONAL, "false", "", "see only what came before")                        \
    F(INT, seed, EJK_OPTIONAL, "0", "", "of random numbers")                                       \
    F(FLOAT, dropout, EJK_OPTIONAL, "0", "", "share that is dropped")                              \
    F(OPT_BOOL, exact, EJK_OPTIONAL, "as built", "", "the same bits every time")                   \
    F(OPT_INT, splits, EJK_OPTIONAL, "chosen", "parts", "of the keys")                             \
    F(OPT_FLOAT, softmax_scale, EJK_OPTIONAL, "1/√D", "", "of the scores")                         \
    F(WINDOW, window, EJK_OPTIONAL, "unlimited", "keys", "to each side")                           \
    F(NAME, platform, EJK_OPTIONAL, "any", "", "where to run")                                     \
    F(INTS, chunk_sizes, EJK_OPTIONAL, "one", "keys", "one a level")                               \
    F(TENSORS, parts, EJK_OPTIONAL, "none", "[n#,D] float", "what is added")                       \
    F(DTYPE, accumulate, EJK_OPTIONAL, "float32", "", "type of sums")                              \
    R(tile, shape, tile_record, "of one tile")
EJK_RECORD_STRUCT(sample, SAMPLE);
#define EJK_RECORD_SELF sample
EJK_RECORD_DEFINE(sample_record, sample, SAMPLE);
#undef EJK_RECORD_SELF

/* Everything set. */
static inline sample full_sample(void) {
    const int64_t shape[] = {2, 128, 8, 64};
    const ejk_tensor part = ejk_tensor_contiguous(NULL, EJK_DTYPE_F16, 2, shape);
    return (sample){.query = ejk_tensor_contiguous(NULL, EJK_DTYPE_BF16, 4, shape),
                    .out = ejk_tensor_contiguous(NULL, EJK_DTYPE_F32, 0, NULL),
                    .causal = true,
                    .seed = INT64_MIN,
                    .dropout = 0.5,
                    .exact = EJK_FALSE,
                    .splits = ejk_int(0),
                    .softmax_scale = ejk_float(-0.0),
                    .window = {.right = ejk_int(3)},
                    .platform = "café \"1\"",
                    .chunk_sizes = {{-1, 512, 0}, 3},
                    .parts = {{part, part}, 2},
                    .accumulate = EJK_DTYPE_F64,
                    .shape = {.rows = ejk_int(INT64_MAX)}};
}

#endif
