//! Any bytes as what nodes keep in Redis about alerts: baselines of rules, silences, alerts that were reported, what another node
//! says of itself. All is read or ignored, used as by a server, and what is kept of it can be written again.
//!
//! The inputs are true ones with a few bytes changed.

use tidegate_telemetry::alerts::{
    ActiveAlerts, Alert, Counts, Detector, MOST_SILENCES, Minute, OthersHeard, RuleName, Sender, Signals,
    Silence, Silences, Thresholds,
};

const NOW_S: u64 = 1_800_000_000;

/// Reads `bytes` as each of them.
pub(crate) fn read_as_each(bytes: &[u8]) {
    let rule = RuleName::new("api", "per-user");
    let mut detector = Detector::new(Thresholds::default());
    detector.restore(&rule, bytes, NOW_S / 60);
    for minute in NOW_S / 60..NOW_S / 60 + 3 {
        let mut traffic = Minute { number: minute, ..Minute::default() };
        traffic.rules.insert(rule.clone(), Counts { total: 10.0, refused: 3.0, shadow: 0.0 });
        detector.judge(&traffic);
        let found = detector.look(minute * 60, &[Signals::default()], OthersHeard::Yes);
        assert!(found.findings.len() < 100);
        for (rule, kept) in detector.to_keep(minute) {
            Detector::new(Thresholds::default()).restore(&rule, &kept, minute);
        }
    }

    if let Ok(theirs) = serde_json::from_slice::<Vec<Silence>>(bytes) {
        let mut silences = Silences::default();
        let joined = silences.joined(Some(theirs), NOW_S);
        assert!(joined.len() <= MOST_SILENCES && joined.iter().all(|silence| silence.until_s > NOW_S));
        drop(silences.agreed(joined));
    }

    // What another node says of itself, seen twice, and then no more.
    let mut book = ActiveAlerts::new("http://127.0.0.1");
    if let Ok(theirs) = serde_json::from_slice::<Signals>(bytes) {
        let nodes = [Signals::default(), theirs];
        for (now_s, heard) in [(NOW_S, 2), (NOW_S + 20, 2), (NOW_S + 10_000, 1)] {
            let found = detector.look(now_s, &nodes[..heard], OthersHeard::Yes);
            book.step(now_s, found, &[], Sender::ThisNode);
        }
    }
    if let Ok(told) = serde_json::from_slice::<Vec<Alert>>(bytes) {
        book.hand_over(&told);
        book.take_over(NOW_S, told);
        for now_s in [NOW_S, NOW_S + 10, NOW_S + 10_000] {
            let found = detector.look(now_s, &[Signals::default()], OthersHeard::Yes);
            book.step(now_s, found, &[], Sender::ThisNode);
        }
    }
    assert!(serde_json::to_vec(&book.told(200)).is_ok());
}

#[test]
fn any_record_about_alerts_is_read_or_ignored() {
    let true_ones = [
        r#"[{"id":1,"kind":"store_down","subject":"redis:1","until_s":1800000100,"reason":"x","author":"y"}]"#,
        r#"[{"fingerprint":"f","kind":"store_down","subject":"redis:1","severity":"critical","summary":"s","next":"n",
            "link":"l","since_s":1799999999,"ended_s":null,"silenced":false}]"#,
        r#"{"node":"b","started_us":1,"release":"0.1.0","fallbacks":1,"overloads":2,"stores_down":["redis:1"],
            "breakers_open":[],"store_p99_us":9000.0,"store_bytes":1,"store_most_bytes":2,"store_evicted":3,
            "store_keys":4,"evicted_spent":5,"reload_failed":true,"publish_failed":false,"rules":"d","version":3,
            "certificates":[["http",1800000001]],"callers":[],"told":[]}"#,
    ];
    let strange = ["", "0", "-1", "18446744073709551615", "1e308", "\"\"", "null", "[]", "{", "\u{1b}"];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |most: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % most as u64).unwrap_or(0)
    };
    for text in true_ones {
        read_as_each(text.as_bytes());
        for _ in 0..2_000 {
            let mut bytes = text.as_bytes().to_vec();
            for _ in 0..=below(3) {
                let (from, with) = (below(bytes.len() + 1), strange[below(strange.len())]);
                let to = (from + below(12)).min(bytes.len());
                bytes.splice(from..to, with.bytes());
            }
            read_as_each(&bytes);
        }
    }
    for length in 0..400 {
        let bytes: Vec<u8> = (0..length).map(|_| below(256).to_le_bytes()[0]).collect();
        read_as_each(&bytes);
    }
}
