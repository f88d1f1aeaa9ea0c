/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flash attention in bf16 on AMX tiles, and by VDPBF16PS, on random cases, against the formula in double precision: error at
 * most twice that of a naive evaluation (weights rounded to bf16) plus 4 eps; NaN and infinities where
 * they belong and nowhere else; nothing read beyond an input or written beside an output; the same bits for
 * one, two and three workers, and for a part of the queries alone. Packed sequences and patterns likewise.
 */
#include "support/amx_check.h"

enum { CASES = 300, OTHERS = 120 };

/* The later queries alone have the bits that they have among all. */
static bool check_later(world *w, const unsigned char *out) {
    const ejki_flash_problem *p = &w->p;
    const int64_t skip = p->queries / 3 + 1;
    const struct flash_part some = {0, p->batch, skip, p->queries, 0, p->kv_heads};
    const ejki_flash_problem later = flash_part_problem(p, &some);
    const size_t size = p->normalize ? 2 : 4;
    clear(w);
    if (!run(w, &later, 1)) return false;
    for (int64_t n = 0; n < p->batch * p->query_heads * p->queries; n++) {
        const int64_t i = n % p->queries, h = n / p->queries % p->query_heads;
        const int64_t b = n / p->queries / p->query_heads;
        const size_t at =
            (size_t)(b * p->out.stride_b + i * p->out.stride_t + h * p->out.stride_h) * size;
        if (i < skip || memcmp(out + at, w->out.data + at, (size_t)p->value_dim * size) == 0)
            continue;
        print_message("other bits of query %lld in a part [%s]\n", (long long)i, w->text);
        return false;
    }
    return true;
}

static bool check_case(enum amx_kind kind, uint64_t seed) {
    world w;
    create(&w, kind, seed);
    if (!w.p.normalize && subject->isa != EJK_ISA_AMX) {
        destroy(&w);
        return true;
    }
    clear(&w);
    bool right = run(&w, &w.p, 1) && compare(&w);
    if (right && !guarded_intact(&w.out)) {
        print_message("written beside out [%s]\n", w.text);
        right = false;
    }
    unsigned char *out = keep(&w.out);
    for (int workers = 2; right && workers < 4; workers++) {
        clear(&w);
        right = run(&w, &w.p, workers) && memcmp(out, w.out.data, w.out.size) == 0;
        if (!right) print_message("other bits with %d workers [%s]\n", workers, w.text);
    }
    if (right && kind == AMX_DENSE && w.p.dropout == 0 && w.p.queries > 1)
        right = check_later(&w, out);
    free(out);
    destroy(&w);
    return right;
}

/* NaN among the biases, of either sign: what processors make of infinity minus infinity has it set. True if there is no
 * bias. */
static bool check_nan_biases(uint64_t seed) {
    struct random r = {seed};
    world w;
    create(&w, AMX_DENSE, seed);
    bool right = true;
    if (w.p.has_bias && (w.p.normalize || subject->isa == EJK_ISA_AMX)) {
        for (size_t i = 0; i < w.bias.size / 2; i++)
            if (random_chance(&r, 0.003))
                put(w.bias.data, (int64_t)i, random_chance(&r, 0.5) ? NAN : -NAN);
        clear(&w);
        right = run(&w, &w.p, 1) && compare(&w) && guarded_intact(&w.out);
    }
    destroy(&w);
    return right;
}

/* Cases that were wrong once, later than the usual ones. */
static const uint64_t found[] = {550, 619, 626, 1346, 1707, 100187, 100286, 200116, 200974, 202669};

static void check_cases(enum amx_kind kind, int64_t usual) {
    const char *one = getenv("EJK_TEST_SEED"), *many = getenv("EJK_TEST_CASES");
    const uint64_t first = one ? strtoull(one, NULL, 10) : 1;
    const int64_t cases = many ? strtoll(many, NULL, 10) : one ? 1 : usual;
    int64_t wrong = 0;
    for (int64_t i = 0; i < cases; i++) wrong += !check_case(kind, first + (uint64_t)i);
    for (size_t i = 0; !one && !many && i < sizeof found / sizeof *found; i++)
        wrong += !check_case(kind, found[i]);
    assert_int_equal(wrong, 0);
}

static void test_dense(void **state) {
    (void)state;
    check_cases(AMX_DENSE, CASES);
}

static void test_tokens_of_sequences(void **state) {
    (void)state;
    check_cases(AMX_TOKENS, OTHERS);
}

static void test_padded_sequences(void **state) {
    (void)state;
    check_cases(AMX_PADDED, OTHERS);
}

static void test_blocks_of_a_pattern(void **state) {
    (void)state;
    check_cases(AMX_SPARSE, OTHERS);
}

static void test_nan_biases(void **state) {
    int64_t wrong = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= CASES; seed++) wrong += !check_nan_biases(seed);
    assert_int_equal(wrong, 0);
}

/* Of AMX, or of the tier that is the argument: avx512_bf16. */
int main(int argc, char **argv) {
#if defined(__x86_64__)
    extern const ejk_implementation ejki_flash_attention_bf16_amx_matrix,
        ejki_flash_attention_bf16_avx512_bf16_tile;
    const bool dots = argc > 1 && strcmp(argv[1], "avx512_bf16") == 0;
    subject =
        dots ? &ejki_flash_attention_bf16_avx512_bf16_tile : &ejki_flash_attention_bf16_amx_matrix;
    if (!ejk_cpu()->tiers[subject->isa]) return 77;
    for (int i = 1; i < 4; i++) pool[i] = test_threads_create(i);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense), cmocka_unit_test(test_tokens_of_sequences),
        cmocka_unit_test(test_padded_sequences), cmocka_unit_test(test_blocks_of_a_pattern),
        cmocka_unit_test(test_nan_biases)};
    const int failed = cmocka_run_group_tests_name(subject->name, tests, NULL, NULL);
    for (int i = 1; i < 4; i++) ejk_threads_destroy(pool[i]);
    return failed;
#else
    (void)argc, (void)argv;
    return 77;
#endif
}
