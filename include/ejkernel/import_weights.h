/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file import_weights.h
 * Quantised weights as other packages store them, made codes, scales and zeros of quantized_matmul.h.
 *
 * Bits are put elsewhere, and nothing is quantised again. A result has a row for each output and groups along the
 * depth, so it is used with `transpose`, and with mode, bits and group_size of the row of its layout:
 *
 *     layout    what is packed                                        mode, bits, group   zeros    scales
 *     q4_0      [R,P] uint8: blocks of GGUF, as gguf.h gives them     affine 4, 32        none     float16
 *     q4_1                                                            affine 4, 32        yes      float16
 *     q5_0                                                            affine 5, 32        none     float16
 *     q5_1                                                            affine 5, 32        yes      float16
 *     q8_0                                                            affine 8, 32        none     float16
 *     q4_k                                                            affine 4, 32        yes      float32
 *     q5_k                                                            affine 5, 32        yes      float32
 *     q6_k                                                            affine 6, 16        none     float32
 *     mxfp4                                                           mxfp4               none     float8_e8m0fnu
 *     gptq      [K·bits/32,N] int32, with scales [G,N] and zeros      affine, bits, K/G   yes      those given
 *     gptq_v2   the same, zeros as they are                           affine, bits, K/G   yes      those given
 *     awq       [K,N/8] int32, with scales [G,N] and zeros            affine 4, K/G       yes      those given
 *     bnb_nf4   [P] or [P,1] uint8, with a scale for each block       nf4, group_size     none     float32
 *
 * Scales may be float32 as well wherever they are float16. Zeros of the GGUF layouts, whose formula is scale·code −
 * least, are least/scale in float32: values agree with the formula to 2 units in the last place of the larger term.
 * Where that scale is 0, codes are 0, the scale is 1 and the zero is least. One entry of the table of nf4 is a unit in
 * the last place larger here than in bitsandbytes. All other values are the formula's bits.
 *
 * gptq: zeros are stored less 1, modulo 2^bits; bits are 2, 3, 4 or 8. Where g_idx says that inputs are not in the
 * order of their groups, `permutation` has to be there: column c of the result belongs to input permutation[c], so
 * that x[:, permutation] goes to the product. Columns of a group keep their order.
 *
 * bnb_nf4: `columns` says what K is, a multiple of group_size. Scales that are quantised themselves are given as uint8
 * with nested_scales (one for 256 of them), nested_table and nested_offset.
 *
 * Published files of mxfp4 and nvfp4 other than GGUF's need no import: their bytes are codes and scales as they are.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_IMPORT_WEIGHTS_H
#define EJKERNEL_IMPORT_WEIGHTS_H

#include <ejkernel/quantized_matmul.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EJK_IMPORT_WEIGHTS_ARGS(F, R)                                                              \
    F(TENSOR, packed, EJK_REQUIRED, "", "[P] or [A,P] or [E,A,P] words",                           \
      "packed codes; of GGUF with their scales, matrix by matrix if there is a first axis")        \
    F(TENSOR, packed_scales, EJK_OPTIONAL, "in the blocks", "[L] or [G,L] zeros",                  \
      "scales of gptq, awq and bnb_nf4")                                                           \
    F(TENSOR, packed_zeros, EJK_OPTIONAL, "in the blocks", "[G,Z] words", "zeros of gptq and awq") \
    F(TENSOR, g_idx, EJK_OPTIONAL, "in order", "[K] int in [0,G)", "group of each input, gptq")    \
    F(TENSOR, nested_scales, EJK_OPTIONAL, "none", "[M] float32", "scales of uint8 scales")        \
    F(TENSOR, nested_table, EJK_OPTIONAL, "none", "[256] float32", "values of uint8 scales")       \
    F(TENSOR, nested_offset, EJK_OPTIONAL, "0", "[] or [1] float32", "added to uint8 scales")      \
    F(NAME, layout, EJK_REQUIRED, "", "",                                                          \
      "q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k, mxfp4, gptq, gptq_v2, awq, bnb_nf4")        \
    F(OPT_INT, bits, EJK_OPTIONAL, "4", "bits", "of a code of gptq: 2, 3, 4 or 8")                 \
    F(OPT_INT, group_size, EJK_OPTIONAL, "64 of bnb_nf4, else K/G", "values",                      \
      "that share a scale outside of blocks")                                                      \
    F(OPT_INT, columns, EJK_OPTIONAL, "as packed", "values", "of a row, bnb_nf4")                  \
    EJK_QUANTIZED_MATMUL_OPTIONS(F, R)                                                             \
    F(TENSOR, w, EJK_REQUIRED_OUTPUT, "", "[R,W] or [E,R,W] codes",                                \
      "codes: W words of uint32, or bytes, a row for each output")                                 \
    F(TENSOR, scales, EJK_REQUIRED_OUTPUT, "", "[R,S] or [E,R,S] scales",                          \
      "a scale for each group")                                                                    \
    F(TENSOR, zeros, EJK_OUTPUT, "none", "[R,S] or [E,R,S] zeros",                                 \
      "zeros, where the layout has them: float32 of GGUF, else any type")                          \
    F(TENSOR, permutation, EJK_OUTPUT, "in order", "[K] int32", "input of each column, gptq")

EJK_RECORD_STRUCT(ejk_import_weights_args, EJK_IMPORT_WEIGHTS_ARGS);
extern EJK_API const ejk_record ejk_import_weights_args_record;
extern EJK_API const ejk_kernel ejk_import_weights_kernel;

/**
 * On the CPU. Nothing is written if the call fails. Statuses: those of ejk_plan_create() and ejk_plan_execute(); a
 * g_idx out of range, groups of unequal size, or an order that needs a permutation and has none is INVALID_ARGUMENT.
 */
EJK_API EJK_NODISCARD ejk_status ejk_import_weights(ejk_context *context,
                                                    const ejk_import_weights_args *args);

#ifdef __cplusplus
}
#endif
#endif
