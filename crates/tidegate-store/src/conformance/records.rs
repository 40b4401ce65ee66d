//! Records: the first who writes one wins, and who knows one may replace it.

use tidegate_core::Micros;

use super::Subject;
use crate::contract::Store;
use crate::record::Record;

const MINUTE: Micros = Micros::from_secs(60);

/// Every name a store may be given: plain text, any bytes, the empty name, a long one.
const NAMES: [&[u8]; 6] = [b"plain", b"", b"a}b{c", b"\0\xff\r\n", &[b'x'; 500], &[b'y'; 64]];

/// # Panics
/// When the store's records are none.
pub(super) async fn check(subject: &dyn Subject) {
    let store = subject.store();
    for name in NAMES {
        // Whatever an earlier run left.
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

async fn put(store: &dyn Store, name: &[u8], value: &[u8]) -> Option<Vec<u8>> {
    store.put_record(Record { name, value }, MINUTE).answer().await.expect("the store answers")
}

async fn replace(store: &dyn Store, name: &[u8], value: &[u8], to: Option<&[u8]>) -> bool {
    store.replace_record(Record { name, value }, to, MINUTE).answer().await.expect("the store answers")
}
