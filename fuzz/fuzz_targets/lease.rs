//! Any text as a lease: none that this process has not signed is one, and none makes it panic. Nor does any as a `spent`; what is
//! one is written as it was read.

#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use tidegate_limiter::{Limiter, LimiterConfig, NoObserver};
use tidegate_rules::RuleSet;
use tidegate_store::{MemoryConfig, MemoryStore};

static LIMITER: LazyLock<Limiter> = LazyLock::new(|| {
    let store = Arc::new(MemoryStore::new(MemoryConfig::new().max_cells(1).max_log_bytes(1)));
    Limiter::new(LimiterConfig::new(RuleSet::default(), store, Arc::new(NoObserver)))
});

fuzz_target!(|text: &str| {
    assert!(LIMITER.read_lease(text).is_err());
    if let Ok(spent) = LIMITER.read_spent(text.as_bytes()) {
        assert_eq!(spent.to_string(), text);
    }
});
