/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file quantized_matmul.h
 * Quantised matrices: making them, their values, and products with them.
 *
 * A matrix [R,C] is kept as codes of `bits` bits, rows of little-endian streams: code c of a row has the bits c·bits
 * on, in words of 32 bits (or in bytes). Each group_size values of a row have a scale, and affine ones may have a zero.
 *
 *     mode     bits       group      value
 *     affine   1–8 (4)    any (64)   (code − zero) · scale; without zeros the zero is 2^(bits−1)
 *     int8     8          a row      code · scale, codes in two's complement
 *     nf4      4          any (64)   table[code] · scale: 16 quantiles of the normal distribution
 *     mxfp4    4          32         E2M1(code) · scale, scales float8_e8m0fnu (OCP), or int8 exponents of 2 (`signed`)
 *     mxfp8    8          32         E4M3(code) · scale, likewise
 *     nvfp4    4          16         E2M1(code) · scale, scales float8_e4m3fn, times tensor_scale if there is one
 *     nvfp8    8          16         E4M3(code) · scale, likewise
 *
 * Values are computed in float32, each operation rounded once, and are the same bits everywhere. Scales of other types
 * than those named, as float32 or bfloat16 ones of affine codes, are taken as they are.
 *
 * Quantising: affine scale (max − min) / (2^bits − 1), or 1 where that is 0, and zero −min / scale, rounded to their
 * types first (whole numbers from 0 to 2^bits − 1 where zeros are integers), code = round(value / scale + zero),
 * kept inside; without zeros scale is absmax / 2^(bits−1). int8: scale absmax / 127. nf4: scale absmax, nearest entry.
 * mx: the scale is the least power of two by which no value is beyond the codes (`scale_rule = "floor"`: OCP's, 2 to
 * floor(log2 absmax) less the largest exponent of the codes, where large values saturate). nv: scale absmax / (largest
 * value · tensor_scale) as E4M3. Floating-point codes round to nearest, ties to even. NaN becomes a NaN where the code
 * has one, else the code of 0 (affine: 0).
 *
 * @since 0.1
 */
#ifndef EJKERNEL_QUANTIZED_MATMUL_H
#define EJKERNEL_QUANTIZED_MATMUL_H

#include <ejkernel/matmul.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Configuration: nothing to choose but the platform. */
#define EJK_QUANTIZED_MATMUL_CONFIG(F, R) EJK_BASE_OPERATION_CONFIG(F, R)

EJK_RECORD_STRUCT(ejk_quantized_matmul_config, EJK_QUANTIZED_MATMUL_CONFIG);
extern EJK_API const ejk_record ejk_quantized_matmul_config_record;

#define EJK_QUANTIZED_MATMUL_OPTIONS(F, R)                                                         \
    F(NAME, platform, EJK_OPTIONAL, "auto", "",                                                    \
      "implementation technology: auto, simd, reference, cuda; before that of cfg")                \
    R(ejk_quantized_matmul_config, cfg, ejk_quantized_matmul_config_record,                        \
      "explicit configuration, always honoured")

/** The format of codes. */
#define EJK_QUANTIZATION(F)                                                                        \
    F(NAME, mode, EJK_OPTIONAL, "affine", "", "affine, int8, nf4, mxfp4, mxfp8, nvfp4, nvfp8")     \
    F(OPT_INT, bits, EJK_OPTIONAL, "those of the mode", "bits", "of a code: 1 to 8, affine")       \
    F(OPT_INT, group_size, EJK_OPTIONAL, "that of the mode", "values", "that share a scale")       \
    F(NAME, scale_format, EJK_OPTIONAL, "ocp", "",                                                 \
      "of mx scales: ocp, or signed: int8 exponents of two")

#define EJK_QUANTIZE_ARGS(F, R)                                                                    \
    F(TENSOR, values, EJK_REQUIRED, "", "[R,C] or [E,R,C] float", "matrices, groups along C")      \
    F(TENSOR, tensor_scale, EJK_OPTIONAL, "1", "[] or [1] float32", "factor of all, nv modes")     \
    EJK_QUANTIZATION(F)                                                                            \
    F(NAME, scale_rule, EJK_OPTIONAL, "ceil", "", "of mx scales: ceil, or floor: OCP's")           \
    EJK_QUANTIZED_MATMUL_OPTIONS(F, R)                                                             \
    F(TENSOR, w, EJK_REQUIRED_OUTPUT, "", "[R,W] or [E,R,W] codes",                                \
      "codes: W words of uint32, or bytes, for C codes")                                           \
    F(TENSOR, scales, EJK_REQUIRED_OUTPUT, "", "[R,S] or [E,R,S] scales",                          \
      "a scale for each group")                                                                    \
    F(TENSOR, zeros, EJK_OUTPUT, "none", "[R,S] or [E,R,S] zeros", "zeros of affine groups")

EJK_RECORD_STRUCT(ejk_quantize_args, EJK_QUANTIZE_ARGS);
extern EJK_API const ejk_record ejk_quantize_args_record;

#define EJK_DEQUANTIZE_ARGS(F, R)                                                                  \
    F(TENSOR, w, EJK_REQUIRED, "", "[R,W] or [E,R,W] codes", "codes")                              \
    F(TENSOR, scales, EJK_REQUIRED, "", "[R,S] or [E,R,S] scales", "a scale for each group")       \
    F(TENSOR, zeros, EJK_OPTIONAL, "2^(bits-1)", "[R,S] or [E,R,S] zeros", "of affine groups")     \
    F(TENSOR, tensor_scale, EJK_OPTIONAL, "1", "[] or [1] float32", "factor of all, nv modes")     \
    EJK_QUANTIZATION(F)                                                                            \
    EJK_QUANTIZED_MATMUL_OPTIONS(F, R)                                                             \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[R,C] or [E,R,C] float", "values, rounded once")

EJK_RECORD_STRUCT(ejk_dequantize_args, EJK_DEQUANTIZE_ARGS);
extern EJK_API const ejk_record ejk_dequantize_args_record;

/**
 * Matrices in the order in which products on CPUs read them: an opaque tensor of bytes, as many rows as w, that calls
 * with `transpose` take as w in place of w, scales, zeros and tensor_scale, with the same bits of results. mode, bits
 * and group_size stay arguments of those calls: a tensor that was made of others, of another shape or by another
 * version of the layout is refused. NaN and other values keep their meaning.
 */
#define EJK_PREPACK_ARGS(F, R)                                                                     \
    F(TENSOR, w, EJK_REQUIRED, "", "[R,W] or [E,R,W] codes", "codes")                              \
    F(TENSOR, scales, EJK_REQUIRED, "", "[R,S] or [E,R,S] scales", "a scale for each group")       \
    F(TENSOR, zeros, EJK_OPTIONAL, "2^(bits-1)", "[R,S] or [E,R,S] zeros", "of affine groups")     \
    F(TENSOR, tensor_scale, EJK_OPTIONAL, "1", "[] or [1] float32", "factor of all, nv modes")     \
    F(OPT_INT, columns, EJK_OPTIONAL, "as many as there is room for", "codes", "of a row: K")      \
    EJK_QUANTIZATION(F)                                                                            \
    EJK_QUANTIZED_MATMUL_OPTIONS(F, R)                                                             \
    F(TENSOR, packed, EJK_REQUIRED_OUTPUT, "", "[R,P] or [E,R,P] uint8",                           \
      "the matrices; P of ejk_prepack_width()")

EJK_RECORD_STRUCT(ejk_prepack_args, EJK_PREPACK_ARGS);
extern EJK_API const ejk_record ejk_prepack_args_record;

/** Bytes of a row of `packed` for the other arguments; fails as the call would. */
EJK_API EJK_NODISCARD ejk_status ejk_prepack_width(const ejk_prepack_args *args, int64_t *out);

/**
 * out = x · W, W being the values of w. With `transpose` w has a row for each column of out and groups run along the
 * depth (as GPTQ and AWQ have it), else a row for each step of the depth.
 *
 * Without transpose on a CPU, and on GPUs before sm_90, bits are those of matmul with dequantised weights in float32.
 * With it, and few rows on sm_90, products of a group are added up before they are scaled: with h = 2^(bits−1), over
 * the groups, the sum of
 *
 *     scale · (Σ x · (code − h) + (h − zero) · Σ x)
 *
 * in float32, groups being cut into blocks of up to 128 values. Rows of bf16 are multiplied as such where the processor
 * does that fast; codes are exact there but for those of nf4, which are rounded to bf16. With many rows on sm_90 values
 * of w are rounded to the type of x. Neither happens where out has more bits than x.
 *
 * `activation_bits` of 8, with transpose only, rounds rows of x to whole numbers, block by block: x counts as
 * round(x · 127/m) · m/127, m being the largest magnitude of its block. Then products of whole numbers are exact. Rows
 * with elements that are not finite, above 2^60, or below 2^-100 but not 0 are not rounded.
 */
#define EJK_QUANTIZED_MATMUL_ARGS(F, R)                                                            \
    F(TENSOR, x, EJK_REQUIRED, "", "[M,K] float", "rows")                                          \
    F(TENSOR, w, EJK_REQUIRED, "", "[R,W] codes",                                                  \
      "codes: K rows, with transpose N; or what prepack made, without scales")                     \
    F(TENSOR, scales, EJK_OPTIONAL, "those of prepack", "[R,S] scales", "a scale for each group")  \
    F(TENSOR, zeros, EJK_OPTIONAL, "2^(bits-1)", "[R,S] zeros", "of affine groups")                \
    F(TENSOR, tensor_scale, EJK_OPTIONAL, "1", "[] or [1] float32", "factor of all, nv modes")     \
    F(TENSOR, bias, EJK_OPTIONAL, "none", "[N] float", "added to every row before activation")     \
    F(TENSOR, residual, EJK_OPTIONAL, "none", "[M,N] float", "added last")                         \
    F(BOOL, transpose, EJK_OPTIONAL, "false", "", "w is that of [N,K]")                            \
    EJK_QUANTIZATION(F)                                                                            \
    F(OPT_INT, activation_bits, EJK_OPTIONAL, "as x has them", "bits", "8: rows of x are rounded") \
    F(NAME, activation, EJK_OPTIONAL, "none", "", "none, relu, silu, gelu, gelu_tanh")             \
    F(DTYPE, preferred_element_type, EJK_OPTIONAL, "that of x", "", "element type of out")         \
    EJK_QUANTIZED_MATMUL_OPTIONS(F, R)                                                             \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[M,N] float", "products")

EJK_RECORD_STRUCT(ejk_quantized_matmul_args, EJK_QUANTIZED_MATMUL_ARGS);
extern EJK_API const ejk_record ejk_quantized_matmul_args_record;

/**
 * Gradients of a call without activation. With dW = xᵀ · d_out in the layout of w, and sums over a group's values:
 *
 *     d_scales = Σ dW · (code − zero)        (table[code] with nf4)
 *     d_zeros  = Σ dW · −scale
 *
 * d_scales and d_zeros are computed where they are given, in float32 (float64 by the reference), and may be of
 * any floating type. Scales and zeros have to be numbers of float32, bfloat16 or float16: with modes mx and nv scales
 * are codes, and zeros may be whole numbers, of which there are no gradients. What prepack made has none, either. The
 * matrix dW is never in memory, but for a part of it.
 */
#define EJK_QUANTIZED_MATMUL_VJP_ARGS(F, R)                                                        \
    F(TENSOR, x, EJK_REQUIRED, "", "[M,K] float",                                                  \
      "rows: only shape and type count, but for d_scales and d_zeros")                             \
    F(TENSOR, w, EJK_REQUIRED, "", "[R,W] codes",                                                  \
      "codes: K rows, with transpose N; or what prepack made, without scales")                     \
    F(TENSOR, scales, EJK_OPTIONAL, "those of prepack", "[R,S] scales", "a scale for each group")  \
    F(TENSOR, zeros, EJK_OPTIONAL, "2^(bits-1)", "[R,S] zeros", "of affine groups")                \
    F(TENSOR, tensor_scale, EJK_OPTIONAL, "1", "[] or [1] float32", "factor of all, nv modes")     \
    F(BOOL, transpose, EJK_OPTIONAL, "false", "", "w is that of [N,K]")                            \
    EJK_QUANTIZATION(F)                                                                            \
    EJK_QUANTIZED_MATMUL_OPTIONS(F, R)                                                             \
    F(TENSOR, d_out, EJK_REQUIRED, "", "[M,N] x", "cotangent of out")                              \
    F(TENSOR, d_x, EJK_REQUIRED_OUTPUT, "", "[M,K] x", "gradient of x")                            \
    F(TENSOR, d_scales, EJK_OUTPUT, "not wanted", "[R,S] float", "gradient of scales")             \
    F(TENSOR, d_zeros, EJK_OUTPUT, "not wanted", "[R,S] float", "gradient of zeros")

EJK_RECORD_STRUCT(ejk_quantized_matmul_vjp_args, EJK_QUANTIZED_MATMUL_VJP_ARGS);
extern EJK_API const ejk_record ejk_quantized_matmul_vjp_args_record;

/** Descriptions of the operations. */
extern EJK_API const ejk_kernel ejk_quantize_kernel;
extern EJK_API const ejk_kernel ejk_dequantize_kernel;
extern EJK_API const ejk_kernel ejk_prepack_kernel;
extern EJK_API const ejk_kernel ejk_quantized_matmul_kernel;
extern EJK_API const ejk_kernel ejk_quantized_matmul_vjp_kernel;

/** Nothing is written if the call fails. Statuses: those of ejk_plan_create() and ejk_plan_execute(). */
EJK_API EJK_NODISCARD ejk_status ejk_quantize(ejk_context *context, const ejk_quantize_args *args);
EJK_API EJK_NODISCARD ejk_status ejk_dequantize(ejk_context *context,
                                                const ejk_dequantize_args *args);
EJK_API EJK_NODISCARD ejk_status ejk_prepack(ejk_context *context, const ejk_prepack_args *args);
EJK_API EJK_NODISCARD ejk_status ejk_quantized_matmul(ejk_context *context,
                                                      const ejk_quantized_matmul_args *args);
EJK_API EJK_NODISCARD ejk_status
ejk_quantized_matmul_vjp(ejk_context *context, const ejk_quantized_matmul_vjp_args *args);

#ifdef __cplusplus
}
#endif
#endif
