/* SPDX-License-Identifier: Apache-2.0 */
/* Masks and MaskInfo as JSON: requests answered, every reason of an error, what is written read back. */
#include "support/child.h"
#include "support/splash_masks.h"

#include <sys/resource.h>
#include <unistd.h>

struct text {
    char bytes[1 << 16];
    size_t used;
    size_t limit; /* what is refused beyond; 0 = nothing */
};

static bool take(void *user, const char *bytes, size_t count) {
    struct text *text = user;
    if (text->limit > 0 && text->used + count > text->limit) return false;
    assert_true(text->used + count < sizeof text->bytes);
    memcpy(text->bytes + text->used, bytes, count);
    text->used += count;
    text->bytes[text->used] = '\0';
    return true;
}

static const char *answer(const char *request, bool result) {
    static struct text text;
    bool is_result = !result;
    text = (struct text){.used = 0};
    EXPECT_OK(ejk_splash_answer(request, strlen(request), NULL, take, &text, &is_result));
    if (is_result != result) fail_msg("%s answered %s", request, text.bytes);
    return text.bytes;
}

static void the_documented_requests_are_answered(void **state) {
    (void)state;
    assert_string_equal(
        answer("{\"kind\": \"process_mask\", \"mask\": {\"type\": \"multi_head\", \"masks\": "
               "[{\"type\": "
               "\"dense\", \"of\": {\"type\": \"local\", \"shape\": [16, 16], \"window_size\": [3, "
               "0], "
               "\"offset\": 0}}]}, \"block_shape\": [4, 4]}",
               true),
        "{\"data_next\": {\"dtype\": \"int8\", \"shape\": [1, 4, 2], \"data\": [[[0, 0], [0, 1], "
        "[1, "
        "2], [2, 3]]]}, \"mask_next\": {\"dtype\": \"int8\", \"shape\": [1, 4, 2], \"data\": [[[0, "
        "0], "
        "[1, 0], [1, 0], [1, 0]]]}, \"block_mask\": {\"dtype\": \"int8\", \"shape\": [1, 4, 2], "
        "\"data\": [[[1, 0], [1, 1], [1, 1], [1, 1]]]}, \"partial_mask_blocks\": {\"dtype\": "
        "\"bool\", "
        "\"shape\": [2, 4, 4], \"data\": [[[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, "
        "1]], "
        "[[0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]]]}, \"q_sequence\": null, "
        "\"is_dynamic_mask\": false, \"mask_function\": null}");
    const char *local =
        answer("{\"kind\": \"process_mask_dkv\", \"mask\": {\"type\": \"multi_head\", \"masks\": "
               "[{\"type\": \"local\", \"shape\": [16, 16], \"window_size\": [2, 2]}]}, "
               "\"block_shape\": [4, 4], \"encoding\": \"base64\"}",
               true);
    assert_non_null(strstr(local,
                           "\"mask_function\": {\"type\": \"local\", \"window_size\": [2, 2], "
                           "\"offset\": 0}}"));
    assert_non_null(strstr(local, "{\"data_next\": {\"dtype\": \"int8\", \"shape\": [1, 3, 4], "
                                  "\"data\": \"AAABAAABAgIBAgMD\"}"));
    assert_non_null(strstr(answer("{\"kind\": \"process_dynamic_mask\", \"mask\": {\"type\": "
                                  "\"dense\", \"of\": {\"type\": "
                                  "\"multi_head\", \"masks\": [{\"type\": \"causal\", \"shape\": "
                                  "[8, 8], \"offset\": 0}]}}, "
                                  "\"block_shape\": [2, 4]}",
                                  true),
                           "\"mask_next\": {\"dtype\": \"int8\", \"shape\": [1, 4, 2], \"data\": "
                           "[[[0, 0], [2, 0], [0, 5], "
                           "[0, 7]]]}"));
}

#define CAUSAL "{\"type\": \"causal\", \"shape\": [4, 4]}"

static void other_kinds_are_answered(void **state) {
    (void)state;
    assert_string_equal(
        answer("{\"kind\": \"mask_dense\", \"mask\": " CAUSAL ", \"slice\": [[1, 3], [null, 3]]}",
               true),
        "{\"dense\": {\"dtype\": \"bool\", \"shape\": [2, 3], \"data\": [[1, 1, 0], "
        "[1, 1, 1]]}}");
    assert_string_equal(
        answer("{\"kind\": \"mask_dense\", \"mask\": {\"type\": \"dense\", \"array\": [[1, true], "
               "[false, "
               "0]]}, \"block_shape\": [2, 1]}",
               true),
        "{\"dense\": {\"dtype\": \"bool\", \"shape\": [1, 2, 2, 1], \"data\": [[[[1], [0]], [[1], "
        "[0]]]]}}");
    assert_string_equal(
        answer("{\"kind\": \"mask_equal\", \"mask\": " CAUSAL ", \"other\": " CAUSAL "}", true),
        "{\"equal\": true}");
    assert_string_equal(answer("{\"kind\": \"mask_equal\", \"mask\": " CAUSAL
                               ", \"other\": {\"type\": \"dense\", \"of\": " CAUSAL "}}",
                               true),
                        "{\"equal\": false}");
    assert_string_equal(answer("{\"kind\": \"mask_check\", \"mask\": " CAUSAL "}", true),
                        "{\"valid\": true}");
}

#define HEADS(list)      "{\"type\": \"multi_head\", \"masks\": [" list "]}"
#define CALL(mask, rest) "{\"mask\": " mask ", \"block_shape\": [2, 2]" rest "}"

static const struct fault {
    const char *reason, *request;
} faults[] = {
    {"invalid_request", ""},
    {"invalid_request", "[1]"},
    {"invalid_request", "{\"kind\": \"process\"}"},
    {"invalid_request", CALL(HEADS(CAUSAL), ", \"blocks\": 1")},
    {"invalid_request", CALL(HEADS(CAUSAL), ", \"options\": {\"shrink\": true}")},
    {"invalid_request", CALL(HEADS("{\"type\": \"causal\", \"shape\": [4, 4.0]}"), "")},
    {"invalid_request", CALL(HEADS("{\"type\": \"dense\", \"array\": [[1, 0], [1]]}"), "")},
    {"invalid_request", CALL(HEADS("{\"type\": \"dense\", \"array\": [[1, 2]]}"), "")},
    {"invalid_request", CALL(HEADS("{\"type\": \"dense\"}"), "")},
    {"invalid_request",
     CALL(HEADS("{\"type\": \"dense\", \"array\": {\"dtype\": \"bool\", \"shape\": "
                "[9223372036854775807, 2], \"data\": \"AA==\"}}"),
          "")},
    {"invalid_request",
     "{\"kind\": \"process_dynamic_mask\", \"mask\": " CAUSAL ", \"block_shape\": [2, 2]}"},
    /* Form goes before what any mask says. */
    {"invalid_request",
     CALL(HEADS("{\"type\": \"chunked_causal\", \"shape\": [4, 4], \"chunk_size\": "
                "0}, {\"type\": \"no\"}"),
          "")},
    {"array_not_2d", CALL(HEADS("{\"type\": \"dense\", \"array\": [1, 0]}"), "")},
    {"array_not_bool",
     CALL(HEADS("{\"type\": \"dense\", \"array\": {\"dtype\": \"int8\", \"shape\": "
                "[1, 1], \"data\": [[1]]}}"),
          "")},
    {"chunk_size",
     CALL(HEADS("{\"type\": \"chunked_causal\", \"shape\": [4, 4], \"chunk_size\": 0}"), "")},
    {"shard_count",
     CALL(HEADS("{\"type\": \"causal\", \"shape\": [8, 4], \"shard_count\": 3037000500}"), "")},
    {"shape_mismatch", CALL(HEADS("{\"type\": \"logical_or\", \"left\": " CAUSAL
                                  ", \"right\": {\"type\": \"full\", \"shape\": [4, 8]}}"),
                            "")},
    {"shape_mismatch", CALL(HEADS(CAUSAL ", {\"type\": \"full\", \"shape\": [4, 8]}"), "")},
    {"no_masks", CALL(HEADS(""), "")},
    {"nested_multi_head", CALL(HEADS(HEADS(CAUSAL)), "")},
    {"invalid_argument", CALL(HEADS("{\"type\": \"full\", \"shape\": [0, 4]}"), "")},
    {"invalid_argument",
     CALL(HEADS("{\"type\": \"causal\", \"shape\": [4, 4], \"q_sequence\": [0, 1]}"), "")},
    {"invalid_argument", CALL(HEADS(CAUSAL), ", \"options\": {\"head_shards\": 0}")},
    {"invalid_argument",
     "{\"kind\": \"mask_dense\", \"mask\": " CAUSAL ", \"slice\": [[0, 5], [0, 1]]}"},
    {"invalid_argument", "{\"kind\": \"mask_check\", \"mask\": " HEADS(CAUSAL) "}"},
    {"mask_not_3d", CALL(CAUSAL, "")},
    {"mask_not_bool",
     "{\"kind\": \"process_dynamic_mask\", \"block_shape\": [1, 1], \"mask\": {\"type\": "
     "\"dense\", \"array\": {\"dtype\": \"int8\", \"shape\": [1, 1, 1], \"data\": "
     "[[[1]]]}}}"},
    {"q_block_size", "{\"mask\": " HEADS(CAUSAL) ", \"block_shape\": [3, 3]}"},
    {"kv_block_size", "{\"mask\": " HEADS(CAUSAL) ", \"block_shape\": [2, 3]}"},
    {"q_seq_shards", CALL(HEADS(CAUSAL), ", \"options\": {\"q_seq_shards\": 3}")},
    {"q_block_size_per_shard", CALL(HEADS(CAUSAL), ", \"options\": {\"q_seq_shards\": 4}")},
    {"head_shards", CALL(HEADS(CAUSAL), ", \"options\": {\"head_shards\": 2}")},
    {"empty_row", "{\"kind\": \"mask_check\", \"mask\": {\"type\": \"causal\", \"shape\": [4, 4], "
                  "\"offset\": -1}}"},
};

static void every_fault_has_its_reason(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        char head[128];
        const char *text = answer(faults[i].request, false);
        snprintf(head, sizeof head, "{\"error\": {\"reason\": \"%s\", \"message\": \"",
                 faults[i].reason);
        if (strncmp(text, head, strlen(head)) != 0 || text[strlen(head)] == '"')
            fail_msg("%s answered %s, expected %s", faults[i].request, text, faults[i].reason);
    }
}

#define AND(left, right) "{\"type\": \"logical_and\", \"left\": " left ", \"right\": " right "}"
#define STEEP            "{\"type\": \"causal\", \"shape\": [1048576, 16]}"
#define MORE             AND(AND(STEEP, STEEP), AND(STEEP, STEEP))

/* Within the limit of bytes, but not of what is evaluated. */
static void assert_refused_by_work(void) {
    static const char *const requests[] = {
        "{\"kind\": \"mask_check\", \"mask\": " MORE "}",
        "{\"kind\": \"mask_dense\", \"mask\": " MORE ", \"slice\": [[0, 65536], [0, 16]]}",
        "{\"kind\": \"mask_check\", \"mask\": {\"type\": \"dense\", \"of\": " AND(
            "{\"type\": \"causal\", \"shape\": [65536, 16]}",
            "{\"type\": \"causal\", \"shape\": [65536, 16]}") "}}"};
    const ejk_splash_answer_options options = {.max_bytes = 1 << 20};
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        struct text text = {.used = 0};
        bool is_result = true;
        EXPECT_OK(
            ejk_splash_answer(requests[i], strlen(requests[i]), &options, take, &text, &is_result));
        if (is_result || !strstr(text.bytes, "elements that are evaluated"))
            fail_msg("%s answered %.200s", requests[i], text.bytes);
    }
}

static void too_large_is_refused(void **state) {
    (void)state;
    struct text text = {.used = 0};
    bool is_result = true;
    ejk_splash_answer_options options = {.max_bytes = 1 << 20};
    const char *request = "{\"mask\": " HEADS(
        "{\"type\": \"full\", \"shape\": [1048576, 1048576]}") ", \"block_shape\": [1, 1]}";
    EXPECT_OK(ejk_splash_answer(request, strlen(request), &options, take, &text, &is_result));
    assert_false(is_result);
    assert_non_null(strstr(text.bytes, "limit"));
    assert_refused_by_work();
    text = (struct text){.limit = 20};
    EXPECT_FAIL(IO, "refused",
                ejk_splash_answer(request, strlen(request), &options, take, &text, &is_result));
}

#define HUGE(offset)                                                                               \
    "{\"type\": \"causal\", \"shape\": [4194304, 4194304], \"offset\": " #offset "}"
#define LARGE "{\"type\": \"dense\", \"of\": {\"type\": \"causal\", \"shape\": [40000, 40000]}}"

/* Two windows of one column each that share none, so that no element ends the search early. */
#define TALL(offset)                                                                               \
    "{\"type\": \"local\", \"shape\": [4294967296, 16], \"window_size\": [0, 0], "                 \
    "\"offset\": " #offset "}"
#define TALL_AND(block)                                                                            \
    "{\"mask\": " HEADS("{\"type\": \"logical_and\", \"left\": " TALL(0) ", \"right\": " TALL(     \
        5) "}") ", \"block_shape\": " block "}"

/* Short texts that ask for much: what is refused is refused before anything of the size is made or computed. */
static const struct fault hostile[] = {
    {"at most 2^31",
     "{\"mask\": " HEADS(
         "{\"type\": \"causal\", \"shape\": [4294967296, 16]}") ", "
                                                                "\"block_shape\": [4, 16]}"},
    {"the limit",
     "{\"mask\": " HEADS(
         "{\"type\": \"full\", \"shape\": [4294967296, 16]}") ", "
                                                              "\"block_shape\": [4, 4]}"},
    {"the limit",
     "{\"mask\": " HEADS(HUGE(0) ", " HUGE(1)) ", \"block_shape\": [4194304, 4194304]}"},
    {"the limit", "{\"mask\": " HEADS("{\"type\": \"logical_and\", \"left\": " HUGE(
                      0) ", \"right\": " HUGE(1) "}") ", \"block_shape\": [4194304, 4194304]}"},
    {"the limit",
     "{\"mask\": " HEADS("{\"type\": \"dense\", \"of\": " HUGE(0) "}") ", "
                                                                       "\"block_shape\": [4, 4]}"},
    {"evaluating 1 of them, 4294967296 x 16 elements", TALL_AND("[4294967296, 16]")},
    {"1073741824 x 1 blocks take", TALL_AND("[4, 16]")},
    {"block_shape[0] is 0", "{\"mask\": " HEADS(LARGE) ", \"block_shape\": [0, 4]}"},
    {"[0, 4]", "{\"kind\": \"mask_dense\", \"mask\": " LARGE ", \"block_shape\": [0, 4]}"},
    {"q_block_size = 3",
     "{\"kind\": \"mask_dense\", \"mask\": " LARGE ", \"block_shape\": [3, 4]}"},
    {"slice[0]",
     "{\"kind\": \"mask_dense\", \"mask\": " LARGE ", \"slice\": [[0, 50000], [0, 1]]}"},
    {"block_shape[0] is 0",
     "{\"kind\": \"process_dynamic_mask\", \"mask\": {\"type\": \"dense\", \"of\": " HEADS(
         "{\"type\": \"full\", \"shape\": [40000, 40000]}") "}, \"block_shape\": [0, 4]}"},
    {"mask has 2 axes",
     "{\"kind\": \"process_dynamic_mask\", \"mask\": " LARGE ", \"block_shape\": [4, 4]}"},
    {"expected 2",
     "{\"mask\": " HEADS("{\"type\": \"dense\", \"of\": " HEADS(
         "{\"type\": \"full\", \"shape\": [40000, 40000]}") "}") ", \"block_shape\": [4, 4]}"},
    {"row 16 of",
     "{\"kind\": \"mask_check\", \"mask\": {\"type\": \"local\", \"shape\": [4611686018427387904, "
     "16], \"window_size\": [0, 0]}}"},
    {"\"valid\": true", "{\"kind\": \"mask_check\", \"mask\": {\"type\": \"causal\", \"shape\": "
                        "[4611686018427387904, 16]}}"},
};

/* With half a GiB more than there is now; holds_in_child() ends what takes too long. */
static bool is_answered_cheaply(const void *fault_) {
    const struct fault *fault = fault_;
    struct text text = {.used = 0};
    ejk_splash_answer_options options = {.max_bytes = INT64_C(1) << 33};
    bool is_result;
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld", &pages) != 1) return false;
    fclose(file);
    rlim_t bytes = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (1u << 29);
    if (setrlimit(RLIMIT_AS, &(struct rlimit){bytes, bytes}) != 0) return false;
    return ejk_splash_answer(fault->request, strlen(fault->request), &options, take, &text,
                             &is_result) == EJK_OK &&
           strstr(text.bytes, fault->reason) != NULL;
}

static void short_texts_cost_little(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++)
        if (!holds_in_child(is_answered_cheaply, &hostile[i]))
            fail_msg("%s, expected '%s'", hostile[i].request, hostile[i].reason);
}

static void masks_read_back_as_they_were(void **state) {
    (void)state;
    static const char *const masks[] = {"full",          "causal -3", "local x 2 1",
                                        "local -1 x -5", "chunk 3",   "~local 1 1 0"};
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        struct text text = {.used = 0};
        ejk_splash_mask *mask = splash_mask(masks[i], 6, 5), *again = NULL, *pair = NULL,
                        *no = NULL;
        EXPECT_OK(ejk_logical_and_create(mask, mask, &pair));
        EXPECT_OK(ejk_splash_mask_to_json(pair, take, &text));
        EXPECT_OK(ejk_splash_mask_from_json(text.bytes, text.used, &again));
        assert_true(ejk_splash_mask_equal(pair, again));
        assert_true(ejk_splash_mask_hash(pair) == ejk_splash_mask_hash(again));
        EXPECT_OK(ejk_logical_not_create(mask, &no));
        EXPECT_FAIL(INVALID_ARGUMENT, "logical_not", ejk_splash_mask_to_json(no, take, &text));
        ejk_splash_mask_release(mask);
        ejk_splash_mask_release(again);
        ejk_splash_mask_release(pair);
        ejk_splash_mask_release(no);
    }
    ejk_splash_mask *untouched = (ejk_splash_mask *)8;
    EXPECT_FAIL(MALFORMED, "not JSON", ejk_splash_mask_from_json("{", 1, &untouched));
    assert_ptr_equal(untouched, (ejk_splash_mask *)8);
    assert_int_equal(ejk_splash_last_reason(), EJK_SPLASH_REASON_INVALID_REQUEST);
}

/* What a caller's own MaskInfo is written as, against the answer to the request for it. */
static void results_are_written_as_answers_are(void **state) {
    (void)state;
    static struct text text;
    const char *const requests[2] = {
        "{\"mask\": {\"type\": \"multi_head\", \"masks\": [{\"type\": \"local\", \"shape\": [8, "
        "12], "
        "\"window_size\": [2, 1]}]}, \"block_shape\": [4, 4], \"encoding\": \"list\"}",
        "{\"mask\": {\"type\": \"multi_head\", \"masks\": [{\"type\": \"local\", \"shape\": [8, "
        "12], "
        "\"window_size\": [2, 1]}]}, \"block_shape\": [4, 4], \"encoding\": \"base64\"}"};
    const int64_t shape[2] = {8, 12};
    ejk_splash_mask *mask, *heads;
    ejk_splash_mask_info info;
    EXPECT_OK(ejk_local_mask_create(shape, ejk_window_of(2, 1), 0, NULL, &mask));
    EXPECT_OK(ejk_multi_head_mask_create((const ejk_splash_mask *const *)&mask, 1, &heads));
    ejk_process_mask_args args = {.mask = heads, .block_shape = {4, 4}};
    EXPECT_OK(ejk_process_mask(&args, &info));
    for (int base64 = 0; base64 < 2; base64++) {
        text = (struct text){.used = 0};
        EXPECT_OK(ejk_splash_mask_info_to_json(&info, base64 == 1, take, &text));
        assert_string_equal(text.bytes, answer(requests[base64], true));
    }
    text = (struct text){.limit = 30};
    EXPECT_FAIL(IO, "", ejk_splash_mask_info_to_json(&info, false, take, &text));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_splash_mask_info_to_json(NULL, false, take, &text));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_splash_mask_info_to_json(&info, false, NULL, NULL));
    ejk_splash_mask_info_close(&info);
    ejk_splash_mask_release(heads);
    ejk_splash_mask_release(mask);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_documented_requests_are_answered),
        cmocka_unit_test(other_kinds_are_answered),
        cmocka_unit_test(every_fault_has_its_reason),
        cmocka_unit_test(results_are_written_as_answers_are),
        cmocka_unit_test(too_large_is_refused),
        cmocka_unit_test(short_texts_cost_little),
        cmocka_unit_test(masks_read_back_as_they_were),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
