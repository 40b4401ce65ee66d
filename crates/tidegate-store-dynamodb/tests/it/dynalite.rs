//! Another emulator, `dynalite`, which knows no transactions: requests on one key are decided, all others are refused and change nothing.

use tidegate_core::{Micros, Timestamp};
use tidegate_fleet::ValueStore as _;
use tidegate_store::conformance::{self, Subject};
use tidegate_store::{Store, StoreError};
use tidegate_testkit::Dynalite;

use crate::subject::{Timed, left, limit, patient, ready, spend};

/// A store whose requests are each on one key.
struct OneKey(Timed);

impl Subject for OneKey {
    fn store(&self) -> &dyn Store {
        self.0.store()
    }

    fn set_time(&self, now: Timestamp) {
        self.0.set_time(now);
    }

    fn decides_several_keys(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn emulator_without_transactions_is_a_store_for_requests_on_one_key() {
    let server = Dynalite::start();
    conformance::check(&OneKey(Timed::new(&server.url("limits")).await), 0..50).await;
}

#[tokio::test]
async fn request_over_two_keys_without_transactions_changes_nothing_and_says_why() {
    let server = Dynalite::start();
    let one = ready(&server.url("limits"), &patient()).await;
    let error = spend(&one, &limit(10), &["a", "b"]).await.unwrap_err();
    let StoreError::NotApplied { source, .. } = &error else { panic!("{error:?}") };
    assert!(source.to_string().starts_with("UnknownOperationException"), "{source}");
    assert_eq!(left(&one, &limit(10), "a").await, 10);
    assert!(spend(&one, &limit(10), &["a"]).await.unwrap()[0].is_admitted(), "alone it is decided");
}

/// An answer has room for about a megabyte: DynamoDB names the keys that it left out.
#[tokio::test]
async fn items_that_one_answer_has_no_room_for_are_read_again() {
    let server = Dynalite::start();
    let one = ready(&server.url("limits"), &patient()).await;
    let names: Vec<Vec<u8>> = (0..8_u8).map(|number| vec![number]).collect();
    for name in &names {
        one.put(name, Some(&vec![name[0]; 300_000]), Micros::from_secs(60)).await.unwrap();
    }
    let (_, values) = one.values(&names).await.unwrap();
    for (name, value) in names.iter().zip(values) {
        assert_eq!(value, Some(vec![name[0]; 300_000]));
    }
}
