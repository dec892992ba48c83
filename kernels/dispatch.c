// SPDX-License-Identifier: Apache-2.0
// Choosing among the entries of the table: the best tier the CPU has, within a limit, unless a name is asked
// for. An override that cannot be met is an error, never a quiet fallback.
#include <stdio.h>
#include <string.h>

#include "kernels/api.h"

typedef struct {
    const char *name;
    uint64_t mask;
    int here; // of the architecture this library was built for
} tier;

#if defined(__x86_64__)
#define ARCH_x86 1
#define ARCH_arm 0
#elif defined(__aarch64__)
#define ARCH_x86 0
#define ARCH_arm 1
#else
#define ARCH_x86 0
#define ARCH_arm 0
#endif

#define RL_TIER(name, arch, flags, mask) {#name, mask, ARCH_##arch},
static const tier tiers[] = {
    {"ref", 0, 1},
#include "kernels/tiers.h"
};
#undef RL_TIER
#define N_TIERS (sizeof tiers / sizeof *tiers)

// Position in the table of tiers, best last; -1 for a name that is no tier.
static int tier_rank(const char *isa) {
    for (size_t i = 0; i < N_TIERS; i++)
        if (strcmp(tiers[i].name, isa) == 0) return (int)i;
    return -1;
}

static const rl_kernel *by_name(const char *name, size_t len) {
    size_t n;
    const rl_kernel *k = rl_kernels(&n);
    for (size_t i = 0; i < n; i++)
        if (strlen(k[i].name) == len && memcmp(k[i].name, name, len) == 0) return &k[i];
    return NULL;
}

bool rl_kernel_asked(const rl_dispatch *d, const rl_kernel *k) {
    size_t len = strlen(k->name);
    for (const char *p = d->overrides; *p;) {
        size_t n = strcspn(p, ",");
        if (n == len && memcmp(p, k->name, n) == 0) return true;
        p += n;
        if (*p == ',') p++;
    }
    return false;
}

static rl_status check_runs(const rl_dispatch *d, const rl_kernel *k, rl_err *err) {
    if ((k->cpu & d->features) == k->cpu) return RL_OK;
    if ((k->cpu & rl_cpu_features()) == k->cpu)
        return rl_fail(err, RL_ERR_KERNEL, "kernel %s needs the %s tier, but kernels are limited to %s", k->name,
                       k->isa, d->isa);
    return rl_fail(err, RL_ERR_KERNEL, "kernel %s needs the %s tier, which this CPU does not have (best here: %s)",
                   k->name, k->isa, d->isa);
}

static rl_status take_overrides(rl_dispatch *d, const char *overrides, rl_err *err) {
    size_t at = 0;
    for (const char *p = overrides; p && *p;) {
        p += strspn(p, ", \t");
        size_t len = strcspn(p, ", \t");
        if (!len) break;
        const rl_kernel *k = by_name(p, len);
        if (!k) return rl_fail(err, RL_ERR_KERNEL, "no kernel named '%.*s'", len > 80 ? 80 : (int)len, p);
        RL_TRY(check_runs(d, k, err));
        if (at + len + 2 > sizeof d->overrides)
            return rl_fail(err, RL_ERR_KERNEL, "the list of kernel overrides is longer than %zu bytes",
                           sizeof d->overrides);
        if (at) d->overrides[at++] = ',';
        memcpy(d->overrides + at, p, len);
        at += len;
        p += len;
    }
    return RL_OK;
}

rl_status rl_dispatch_init(rl_dispatch *d, const char *isa_limit, const char *overrides, rl_err *err) {
    memset(d, 0, sizeof *d);
    uint64_t cpu = rl_cpu_features(), allowed = UINT64_MAX;
    int limit = (int)N_TIERS - 1;
    if (isa_limit && *isa_limit) {
        limit = tier_rank(isa_limit);
        if (limit < 0 || !tiers[limit].here) {
            char known[128] = "";
            for (size_t i = 0; i < N_TIERS; i++)
                if (tiers[i].here) {
                    size_t at = strlen(known);
                    snprintf(known + at, sizeof known - at, "%s%s", at ? ", " : "", tiers[i].name);
                }
            return rl_fail(err, RL_ERR_KERNEL, "no ISA tier named '%.40s' here; there are %s", isa_limit, known);
        }
        if ((tiers[limit].mask & cpu) != tiers[limit].mask)
            return rl_fail(err, RL_ERR_KERNEL, "this CPU does not have the ISA tier '%s'", tiers[limit].name);
        allowed = 0;
        for (int i = 0; i <= limit; i++)
            if (tiers[i].here) allowed |= tiers[i].mask;
    }
    d->features = cpu & allowed;
    for (int i = 0; i <= limit; i++)
        if (tiers[i].here && (tiers[i].mask & d->features) == tiers[i].mask) d->isa = tiers[i].name;
    RL_TRY(take_overrides(d, overrides, err));
    d->strips = rl_cpu_wants_strips();
    d->act_q8 = rl_kernel_find(d, RL_FAM_ACT, RL_TYPE_NONE, RL_ACT_Q8, NULL);
    d->act_q16 = rl_kernel_find(d, RL_FAM_ACT, RL_TYPE_NONE, RL_ACT_Q16, NULL);
    return RL_OK;
}

const rl_kernel *rl_kernel_find(const rl_dispatch *d, rl_family family, rl_type type, unsigned act,
                                const char *layout) {
    size_t n;
    const rl_kernel *k = rl_kernels(&n), *best = NULL;
    int best_rank = -1;
    for (size_t i = 0; i < n; i++) {
        if (k[i].family != family || k[i].type != type || (k[i].act & act) != act) continue;
        if (layout && strcmp(k[i].layout, layout) != 0) continue;
        if ((k[i].cpu & d->features) != k[i].cpu) continue;
        if (rl_kernel_asked(d, &k[i])) return &k[i];
        int rank = tier_rank(k[i].isa);
        if (rank >= best_rank) best = &k[i], best_rank = rank;
    }
    return best;
}

const rl_kernel *rl_kernel_find_rows(const rl_dispatch *d, rl_type type, unsigned act, size_t n_tok) {
    const rl_kernel *one = rl_kernel_find(d, RL_FAM_ROWS, type, act, "");
    const rl_kernel *pairs = n_tok < 2 ? NULL : rl_kernel_find(d, RL_FAM_ROWS, type, act, "pairs");
    if (!pairs) return one;
    int asked = one && rl_kernel_asked(d, one) && !rl_kernel_asked(d, pairs);
    return asked ? one : pairs;
}

rl_status rl_kernel_named(const rl_dispatch *d, const char *name, const rl_kernel **out, rl_err *err) {
    const rl_kernel *k = by_name(name, strlen(name));
    if (!k) return rl_fail(err, RL_ERR_KERNEL, "no kernel named '%.80s'", name);
    RL_TRY(check_runs(d, k, err));
    *out = k;
    return RL_OK;
}
