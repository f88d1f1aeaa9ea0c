/* SPDX-License-Identifier: Apache-2.0 */
/* ejk_mask_visualize(): the documented text picture, with the segments of rows and columns. */
#include "draw/draw.h"

#include <ejkernel/sequence.h>
#include <stdlib.h>
#include <string.h>

enum { PADDING = -1, MIXED = -2, LABEL = 6 };

struct view {
    ejk_tensor mask;    /* [Q,K] */
    int64_t block[2];   /* as given */
    int64_t count[2];   /* blocks to an axis, after they were merged */
    int64_t length[2];  /* elements to a block, after they were merged */
    int32_t *labels[2]; /* of the blocks of either axis; NULL without segments */
    bool ascii;
};

/* ---- Arguments ------------------------------------------------------------------------------------- */

static ejk_status at_least_one(const char *name, ejk_opt_int given, int64_t normal, int64_t *out) {
    if (given.set && given.value < 1)
        return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT, "%s is %lld, expected at least 1", name,
                      (long long)given.value);
    *out = given.set ? given.value : normal;
    return EJK_OK;
}

static ejk_status check_index(const char *name, int64_t index, int64_t count) {
    if (index >= 0 && index < count) return EJK_OK;
    return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT, "%s is %lld, expected 0 to %lld", name,
                  (long long)index, (long long)(count - 1));
}

static ejk_status check_mask(const ejk_tensor *mask) {
    EJKI_TRY(ejk_tensor_check(mask, "mask"));
    if (mask->dtype != EJK_DTYPE_BOOL)
        return REFUSE(INVALID_DTYPE, ARRAY_NOT_BOOL, "mask has the dtype %s, expected bool",
                      ejk_dtype_name(mask->dtype));
    if (mask->rank != 4 || ejk_tensor_count(mask) == 0)
        return REFUSE(INVALID_SHAPE, INVALID_ARGUMENT,
                      "mask has %d axes and %lld elements, expected [B,H,Q,K], none empty",
                      (int)mask->rank, (long long)ejk_tensor_count(mask));
    if (mask->device_type != EJK_DEVICE_CPU)
        return REFUSE(UNAVAILABLE, INVALID_ARGUMENT, "mask is on device %d, expected the CPU",
                      (int)mask->device_type);
    return EJK_OK;
}

static ejk_status check_ids(const ejk_tensor *ids, const char *name, int64_t batch,
                            int64_t length) {
    EJKI_TRY(ejk_tensor_check(ids, name));
    if (ids->dtype != EJK_DTYPE_I32)
        return REFUSE(INVALID_DTYPE, INVALID_ARGUMENT, "%s has the dtype %s, expected int32", name,
                      ejk_dtype_name(ids->dtype));
    if (ids->rank != 2 || ids->shape[0] != batch || ids->shape[1] != length)
        return REFUSE(INVALID_SHAPE, SHAPE_MISMATCH, "%s has to have the shape [%lld, %lld]", name,
                      (long long)batch, (long long)length);
    if (ids->device_type != EJK_DEVICE_CPU)
        return REFUSE(UNAVAILABLE, INVALID_ARGUMENT, "%s is on device %d, expected the CPU", name,
                      (int)ids->device_type);
    return EJK_OK;
}

static ejk_status lay_out(const ejk_mask_visualize_args *args, struct view *view) {
    const ejk_tensor *mask = &args->mask;
    int64_t most[2];
    EJKI_TRY(at_least_one("block_size[0]", args->block_size[0], 32, &view->block[0]));
    EJKI_TRY(at_least_one("block_size[1]", args->block_size[1], view->block[0], &view->block[1]));
    EJKI_TRY(at_least_one("max_rows", args->max_rows, 32, &most[0]));
    EJKI_TRY(at_least_one("max_cols", args->max_cols, 64, &most[1]));
    EJKI_TRY(check_mask(mask));
    EJKI_TRY(check_index("batch", args->batch, mask->shape[0]));
    EJKI_TRY(check_index("head", args->head, mask->shape[1]));
    view->ascii = args->ascii;
    view->mask = ejk_tensor_2d(mask->data, EJK_DTYPE_BOOL, mask->shape[2], mask->shape[3]);
    view->mask.data =
        (uint8_t *)mask->data + args->batch * mask->strides[0] + args->head * mask->strides[1];
    for (int a = 0; a < 2; a++) {
        int64_t blocks = ejki_cdiv(mask->shape[2 + a], view->block[a]), step = 1;
        view->mask.strides[a] = mask->strides[2 + a];
        if (args->fit_in_screen != EJK_FALSE) step = ejki_cdiv(blocks, most[a]);
        view->count[a] = ejki_cdiv(blocks, step);
        if (!ejki_mul(view->block[a], step, &view->length[a])) view->length[a] = INT64_MAX;
    }
    return EJK_OK;
}

/* ---- Labels ---------------------------------------------------------------------------------------- */

/* What the ids of a block have in common; where a block goes beyond the last id, there is padding. */
static int32_t label_of(const int32_t *ids, int64_t step, int64_t begin, int64_t stop,
                        bool beyond) {
    int32_t label = ids[begin * step] < 0 ? PADDING : ids[begin * step];
    for (int64_t i = begin + 1; i < stop; i++) {
        int32_t id = ids[i * step] < 0 ? PADDING : ids[i * step];
        if (id != label) return MIXED;
    }
    return beyond && label != PADDING ? MIXED : label;
}

static ejk_status label_blocks(struct view *view, int axis, const int32_t *ids, int64_t step) {
    int64_t total = view->mask.shape[axis], padded = total, size = view->length[axis];
    int32_t *labels = malloc((size_t)view->count[axis] * sizeof *labels);
    if (labels == NULL)
        return REFUSE(OUT_OF_MEMORY, INVALID_ARGUMENT, "memory for labels could not be had");
    padded += total % view->block[axis] != 0;
    for (int64_t i = 0; i < view->count[axis]; i++) {
        int64_t begin = i * size, stop = size < total - begin ? begin + size : total;
        labels[i] = label_of(ids, step, begin, stop, stop == total && padded > total);
    }
    view->labels[axis] = labels;
    return EJK_OK;
}

/* Ids from the mask itself: equal rows and equal columns. */
static ejk_status group_ids(struct view *view) {
    int64_t q = view->mask.shape[0], kv = view->mask.shape[1];
    int32_t *ids = malloc((size_t)(q + kv) * sizeof *ids);
    if (ids == NULL)
        return REFUSE(OUT_OF_MEMORY, INVALID_ARGUMENT, "memory for segment ids could not be had");
    ejk_tensor q_ids = ejk_tensor_1d(ids, EJK_DTYPE_I32, q);
    ejk_tensor kv_ids = ejk_tensor_1d(ids + q, EJK_DTYPE_I32, kv);
    ejk_status status = ejk_mask_to_segment_ids(NULL, &view->mask, false, 0, &q_ids, &kv_ids);
    if (status == EJK_OK) status = label_blocks(view, 0, ids, 1);
    if (status == EJK_OK) status = label_blocks(view, 1, ids + q, 1);
    free(ids);
    return status;
}

static ejk_status find_labels(const ejk_mask_visualize_args *args, struct view *view) {
    static const char *const names[] = {"q_segment_ids", "kv_segment_ids"};
    const ejk_tensor *given[2] = {&args->q_segment_ids, &args->kv_segment_ids};
    bool present[2] = {ejk_tensor_present(given[0]), ejk_tensor_present(given[1])};
    if (present[0] != present[1])
        return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT,
                      "%s is given without %s, expected both or none", names[present[1]],
                      names[present[0]]);
    for (int a = 0; a < 2 && present[0]; a++)
        EJKI_TRY(check_ids(given[a], names[a], args->mask.shape[0], view->mask.shape[a]));
    if (args->show_segments == EJK_FALSE) return EJK_OK;
    if (!present[0]) return group_ids(view);
    for (int a = 0; a < 2; a++) {
        const int32_t *ids = (const int32_t *)given[a]->data + args->batch * given[a]->strides[0];
        EJKI_TRY(label_blocks(view, a, ids, given[a]->strides[1]));
    }
    return EJK_OK;
}

/* ---- Text ------------------------------------------------------------------------------------------ */

/* What is padding counts as false, so that a block at the edge is never full. */
static int block_state(const struct view *view, int64_t row, int64_t column) {
    int64_t begin[2] = {row * view->length[0], column * view->length[1]}, stop[2];
    bool any = false, all = true;
    for (int a = 0; a < 2; a++) {
        int64_t rest = view->mask.shape[a] - begin[a];
        if (view->length[a] > rest) all = false;
        stop[a] = begin[a] + ejki_min(rest, view->length[a]);
    }
    for (int64_t i = begin[0]; i < stop[0]; i++)
        for (int64_t j = begin[1]; j < stop[1]; j++) {
            bool element =
                ((const uint8_t *)
                     view->mask.data)[i * view->mask.strides[0] + j * view->mask.strides[1]] != 0;
            any |= element;
            all &= element;
            if (any && !all) return PARTIAL;
        }
    return all ? FULL : EMPTY;
}

static void print_border(FILE *out, const struct view *view) {
    fprintf(out, "%*s", view->labels[0] != NULL ? LABEL + 2 : 2, "");
    for (int64_t j = 0; j < view->count[1]; j++) fputs("==", out);
    fputs("  \n", out);
}

static void print_column_labels(FILE *out, const struct view *view) {
    fprintf(out, "%*s", LABEL + 3, "");
    for (int64_t j = 0; j < view->count[1]; j++) {
        int32_t label = view->labels[1][j];
        if (label >= 0)
            fprintf(out, "%02d", (int)(label % 100));
        else
            fputs(label == MIXED ? "??" : "  ", out);
    }
    fputc('\n', out);
}

static void print_row(FILE *out, const struct view *view, int64_t row) {
    static const char *const cells[2][3] = {{"  ", "░░", "██"}, {"  ", "..", "##"}};
    if (view->labels[0] != NULL) {
        int32_t label = view->labels[0][row];
        if (label >= 0)
            fprintf(out, "%*d ", LABEL, (int)label);
        else
            fprintf(out, "%*s ", LABEL, label == MIXED ? "MIX" : "PAD");
    }
    fputs("||", out);
    for (int64_t j = 0; j < view->count[1]; j++)
        fputs(cells[view->ascii][block_state(view, row, j)], out);
    fputs("||\n", out);
}

static void print_view(FILE *out, const ejk_mask_visualize_args *args, const struct view *view) {
    fprintf(out, "Attention mask: batch %lld, head %lld, blocks of %lld x %lld, mask %lld x %lld\n",
            (long long)args->batch, (long long)args->head, (long long)view->block[0],
            (long long)view->block[1], (long long)view->mask.shape[0],
            (long long)view->mask.shape[1]);
    if (view->labels[0] != NULL) print_column_labels(out, view);
    print_border(out, view);
    for (int64_t i = 0; i < view->count[0]; i++) print_row(out, view, i);
    print_border(out, view);
    fputs(view->ascii ? "## full, .. partial, blank empty\n" : "██ full, ░░ partial, blank empty\n",
          out);
    if (view->labels[0] != NULL)
        fputs("segments: rows q, columns kv; PAD or blank padding, MIX or ?? several\n", out);
}

ejk_status ejk_mask_visualize(const ejk_mask_visualize_args *args, char **text, size_t *length) {
    if (args == NULL || text == NULL || length == NULL)
        return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT,
                      "ejk_mask_visualize: args, text or length is NULL");
    struct view view = {.labels = {NULL, NULL}};
    EJKI_TRY(lay_out(args, &view));
    ejk_status status = find_labels(args, &view);
    char *bytes = NULL;
    size_t size = 0;
    if (status == EJK_OK) {
        FILE *out = open_memstream(&bytes, &size);
        bool written = out != NULL;
        if (written) {
            print_view(out, args, &view);
            written = !ferror(out);
            written &= fclose(out) == 0;
        }
        if (!written)
            status = REFUSE(OUT_OF_MEMORY, INVALID_ARGUMENT, "memory for a text could not be had");
    }
    free(view.labels[0]);
    free(view.labels[1]);
    if (status != EJK_OK) {
        free(bytes);
        return status;
    }
    *text = bytes;
    *length = size;
    return EJK_OK;
}

ejk_status ejk_mask_info_visualize(const ejk_mask_info *info, const ejk_mask_visualize_args *args,
                                   char **text, size_t *length) {
    ejk_mask_visualize_args own = {.batch = 0};
    if (args) own = *args;
    if (ejk_tensor_present(&own.mask) || ejk_tensor_present(&own.q_segment_ids) ||
        ejk_tensor_present(&own.kv_segment_ids))
        return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT,
                      "args has a mask or segment ids, expected none beside those of the MaskInfo");
    EJKI_TRY(ejk_mask_info_get_or_compute_attention_mask(info, EJK_DTYPE_BOOL, &own.mask));
    ejk_mask_info_fields fields;
    EJKI_TRY(ejk_mask_info_tree_flatten(info, &fields));
    own.q_segment_ids = fields.q_segment_ids;
    own.kv_segment_ids =
        ejk_tensor_present(&fields.kv_segment_ids) ? fields.kv_segment_ids : fields.q_segment_ids;
    return ejk_mask_visualize(&own, text, length);
}
