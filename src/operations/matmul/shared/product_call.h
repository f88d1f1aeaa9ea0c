/* SPDX-License-Identifier: Apache-2.0 */
/* From tensors of a call to the views of a product, for the modules of the family. */
#ifndef EJKI_MATMUL_PRODUCT_CALL_H
#define EJKI_MATMUL_PRODUCT_CALL_H

#include "operations/matmul/shared/product.cuh"

#include <ejkernel/kernel.h>
#include <ejkernel/tensor.h>

/* Matrices: the last two axes are rows and columns, one before them groups. */
mm_view ejki_mm_matrix(const ejk_tensor *t);
/* The same transposed. */
mm_view ejki_mm_transposed(const ejk_tensor *t);
/* Vectors: the last axis is the columns, the first of two or three groups. */
mm_view ejki_mm_vector(const ejk_tensor *t);
mm_list ejki_mm_list(const ejk_tensor *t);

/* A product of one group without anything besides: out = a · b. */
mm_product ejki_mm_product(mm_size rows, mm_size depth, mm_size columns);

/* True if it takes a gate and a value. */
bool ejki_mm_gated(const char *name);
/* Reads an activation's name; its columns of b count as `columns_b`, those of out as p->columns. */
ejk_status ejki_mm_activation(const char *name, bool interleaved, const ejk_opt_float *limit,
                              mm_size columns_b, mm_product *p);

/* out's type is the one asked for, or without one that of lhs. */
ejk_status ejki_mm_check_out(ejk_dtype preferred, const ejk_tensor *lhs, const ejk_tensor *out);

/* FLOPs and bytes of all products. */
void ejki_mm_cost(const void *problem, const void *args, ejk_cost *cost);

#endif
