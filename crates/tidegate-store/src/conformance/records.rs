//! Records: the first writer wins, and a caller that knows the value may replace it.

use tidegate_core::Micros;

use super::Subject;
use crate::contract::Store;
use crate::error::StoreError;
use crate::record::Record;

const MINUTE: Micros = Micros::from_secs(60);

/// All kinds of names: plain text, arbitrary bytes, empty, long.
const NAMES: [&[u8]; 6] = [b"plain", b"", b"a}b{c", b"\0\xff\r\n", &[b'x'; 500], &[b'y'; 64]];

/// # Panics
/// When the store violates the contract of records.
pub(super) async fn check(subject: &dyn Subject) {
    let store = subject.store();
    if !subject.keeps_records() {
        return check_none(store).await;
    }
    for name in NAMES {
        // Remove what an earlier run left.
        let left = put(store, name, b"left").await.unwrap_or(b"left".to_vec());
        assert!(replace(store, name, &left, None).await);
        assert_eq!(put(store, name, b"one").await, None, "the first writes");
        assert_eq!(put(store, name, b"two").await.as_deref(), Some(&b"one"[..]), "the second reads");
        assert!(!replace(store, name, b"two", Some(b"three")).await, "it is not what the other thought");
        assert!(replace(store, name, b"one", Some(b"\0three\r\n")).await);
        assert!(!replace(store, name, b"one", Some(b"four")).await, "it was replaced once");
        assert_eq!(put(store, name, b"five").await.as_deref(), Some(&b"\0three\r\n"[..]));
        assert!(replace(store, name, b"\0three\r\n", Some(b"")).await, "an empty record is one");
        assert_eq!(put(store, name, b"six").await.as_deref(), Some(&b""[..]));
        assert!(replace(store, name, b"", None).await);
        assert!(!replace(store, name, b"", None).await, "what is gone cannot be replaced");
    }
}

/// A store without records must return an error: named requests are then decided as new ones, without waiting.
async fn check_none(store: &dyn Store) {
    let record = Record { name: b"plain", value: b"one" };
    let put = store.put_record(record, MINUTE).answer().await.map(drop);
    let replaced = store.replace_record(record, None, MINUTE).answer().await.map(drop);
    let is_said =
        |answer: Result<(), StoreError>| answer.is_err_and(|error| error.is_certainly_not_applied());
    assert!(
        is_said(put) && is_said(replaced),
        "Subject::keeps_records is false, and the store took a record"
    );
}

async fn put(store: &dyn Store, name: &[u8], value: &[u8]) -> Option<Vec<u8>> {
    let put = store.put_record(Record { name, value }, MINUTE).answer().await;
    put.expect("the store takes a record: one that keeps none says so with Subject::keeps_records, one that wraps another forwards put_record")
}

async fn replace(store: &dyn Store, name: &[u8], value: &[u8], to: Option<&[u8]>) -> bool {
    store.replace_record(Record { name, value }, to, MINUTE).answer().await.expect("the store answers")
}
