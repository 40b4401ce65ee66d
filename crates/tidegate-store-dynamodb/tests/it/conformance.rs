//! What fails this is not a store.

use tidegate_store::conformance;
use tidegate_testkit::Moto;

use crate::subject::Timed;

#[tokio::test]
async fn an_emulated_table_is_a_store() {
    let server = Moto::start();
    conformance::check(&Timed::new(&server.url("limits")).await, 0..50).await;
}
