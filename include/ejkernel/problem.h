/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file problem.h
 * Problem texts: a call's kernel, shapes, types and values as one line, for recordings, tuning and bug reports.
 *
 *     flash_attention:B=1,Hq=8,Hkv=2,T=1024,S=1024,D=64,Dv=64,dtype=bfloat16,causal=true
 *     flash_attention:Hq=8,T=512,D=64,with=bias+lse,sliding_window=127,0,cfg.fwd_params.q_blocksize=128
 *
 * The grammar:
 *
 *     line    = kernel ":" [ item { "," item } ] [ comment ]
 *     item    = symbol "=" length                       B=2: a symbol of the tensors' units
 *             | field [ "=" value ]                     causal, softmax_scale=0.125, platform="simd"
 *             | tensor [ "=" view ]                     bias, out=float32, bias=[1,Hq,1,S]
 *             | list "=" number                         parts=2: as many tensors
 *             | wish "=" value                          a name of the kernel's `input_options`
 *             | "dtype" "=" name                        type of all tensors that may be any float
 *             | "with" "=" tensor { "+" tensor }        optional tensors that are given
 *             | "layout" "=" name                       an order of axes that the record has: bhtd
 *     view    = [ dtype ] [ "[" size { "," size } "]" ] [ "@[" stride { "," stride } "]" ]
 *     comment = "#" anything, at the start of the line or after a blank
 *
 * Fields are the names of the kernel's record, nested ones by dots; "-" reads as "_". Each item may be
 * there once, in any order. Blanks around items are skipped. Values are those of ejk_record_set_text(); a
 * truth value alone means true. What ends a value is a comma before a letter or "_", so that a window is
 * written as it is, `127,0`, `127,` (right unlimited) or `,0`. A value that has such a comma, a blank, "#"
 * or a quote in it is put between double quotes, with the escapes of JSON; any value may be.
 *
 * Tensors of a list go by number, `parts.0`, `parts.1=[3,4]`, none may be left out before another; of a required list
 * the first is there.
 *
 * Required tensors are always there, in the shape of their unit. Of an operation that has results but none that is
 * required, where none is given, so is the gradient d_x of each input x that is there. A size is a number or a
 * symbol, with an optional constant ("N+1"); strides count elements. Of a view, what is left out is: dtype, that of the
 * unit, where any float is `dtype` (default float32) and an int is int32; sizes, the unit's first shape
 * whose symbols are bound, the first of `a|b`; strides, those of `layout`. Symbols left out follow from the
 * sizes of views, or have the lengths that the record says (ejk_record.symbols), as B=1 and S=T. A symbol
 * that the kernel lacks is an error that names those it has, and so is one that no given tensor has.
 *
 * Thread-safety: every function may be called from any thread at once; one problem belongs to one thread
 * while ejk_problem_allocate() or ejk_problem_destroy() runs.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_PROBLEM_H
#define EJKERNEL_PROBLEM_H

#include <ejkernel/context.h>
#include <ejkernel/kernel.h>
#include <ejkernel/record.h>
#include <ejkernel/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The longest line, in bytes, without its end. */
#define EJK_PROBLEM_MAX_TEXT 4096

/** A call that was read: its kernel and arguments; private. */
typedef struct ejk_problem ejk_problem;

/**
 * Reads one line. `context` says which kernels exist. Tensors have no memory yet; `*out` is released with
 * ejk_problem_destroy(). A sentence names the byte at which what is wrong begins, from 1. Statuses:
 * INVALID_ARGUMENT (NULL; a symbol that is not bound, or that no tensor has), UNKNOWN_NAME (kernel, field,
 * symbol, tensor, type), UNAVAILABLE (a kernel of a later version), MALFORMED, INVALID_SHAPE, INVALID_DTYPE,
 * INVALID_LAYOUT (tensors that contradict each other or their units), OVERFLOW, OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_problem_parse(const ejk_context *context, const char *text,
                                                   ejk_problem **out);

/** Releases it and the memory of its tensors. NULL is allowed. */
EJK_API void ejk_problem_destroy(ejk_problem *problem);

/** Its kernel, its arguments (the struct that kernel->args describes), the lengths of its symbols. */
EJK_API const ejk_kernel *ejk_problem_kernel(const ejk_problem *problem);
EJK_API const void *ejk_problem_args(const ejk_problem *problem);
EJK_API const ejk_axes *ejk_problem_axes(const ejk_problem *problem);

/** What the line wishes of the contents of its inputs, with seed 0. */
EJK_API const ejk_inputs *ejk_problem_inputs(const ejk_problem *problem);

/**
 * Gives every tensor memory, aligned to 64 bytes, and fills it: inputs as ejk_fill_inputs() does, outputs with
 * zeros. Called again, it fills again.
 * Statuses: INVALID_ARGUMENT (NULL), OVERFLOW, OUT_OF_MEMORY (also for more than the machine has), those of
 * ejk_fill_inputs().
 */
EJK_API EJK_NODISCARD ejk_status ejk_problem_allocate(ejk_problem *problem, uint64_t seed);

/**
 * Fills the inputs of a call that have data, on the CPU or a GPU; results and tensors without data are left alone.
 * Floats are uniform in [-1, 1), rounded to their type, and masks true nine times in ten: numbers depend on the
 * seed, the tensor and the element's index only, not on strides, and of the elements that a stride of 0 makes one,
 * the first has its number. Integers are what the kernel's `inputs` makes them, valid whatever the shape; without
 * such a hook what their units allow, or 0.
 * Statuses: INVALID_ARGUMENT (NULL, a wish that cannot be had), UNKNOWN_NAME (a wish that the kernel does not know),
 * those of ejk_plan_create() for arguments that contradict each other, OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_fill_inputs(const ejk_kernel *kernel, const void *args,
                                                 const ejk_inputs *how);

/**
 * The canonical line of a call: symbols (in the order of ejk_record.symbols, then others in the order of the
 * record), dtype, layout, with, tensors that do not follow from these, and fields that are set, in the order
 * of the record. Data pointers, devices, and strides of axes of length 1 or 0 are left out; parsing it gives
 * arguments that are equal but for these. `*out` is freed with ejk_free().
 * Statuses: INVALID_ARGUMENT (NULL; a required tensor is missing, a value that has no text), INVALID_SHAPE,
 * INVALID_DTYPE, INVALID_LAYOUT (tensors), OVERFLOW (longer than #EJK_PROBLEM_MAX_TEXT), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_problem_to_text(const ejk_kernel *kernel, const void *args,
                                                     char **out);

/**
 * Receives one line of a list; `line` counts from 1. The problem is destroyed afterwards. Any status but OK ends
 * the reading, which returns it.
 */
typedef ejk_status (*ejk_problem_fn)(void *user, int64_t line, ejk_problem *problem);

/**
 * Reads a list: a problem a line, blank lines and comments between them, lines ended by "\n" or "\r\n".
 * `each` is called for every problem in order, but only if all lines can be parsed. `name` names the text in
 * messages, "name:12: …". Statuses: those of ejk_problem_parse(), MALFORMED (also for a zero byte), those of `each`.
 */
EJK_API EJK_NODISCARD ejk_status ejk_problem_read_text(const ejk_context *context, const char *name,
                                                       const char *text, size_t size,
                                                       ejk_problem_fn each, void *user);

/** The same from a file of at most 16 MiB. Statuses: also IO. */
EJK_API EJK_NODISCARD ejk_status ejk_problem_read_file(const ejk_context *context, const char *path,
                                                       ejk_problem_fn each, void *user);

#ifdef __cplusplus
}
#endif
#endif
