//! Any bytes as the body of every HTTP endpoint: parsed, or a problem that serialises.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_server::json;

fuzz_target!(|body: &[u8]| {
    let problems = [
        json::parse::<json::Check<'_>>(body).err(),
        json::parse::<json::Batch<'_>>(body).err(),
        json::parse::<json::Lease<'_>>(body).err(),
        json::parse::<json::Refund<'_>>(body).err(),
        json::parse_rls(body).err(),
    ];
    for problem in problems.into_iter().flatten() {
        assert!(!problem.to_json().is_empty());
    }
});
