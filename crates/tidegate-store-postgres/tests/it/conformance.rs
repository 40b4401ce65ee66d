//! What fails this is not a store.

use tidegate_store::conformance;
use tidegate_testkit::{PgBouncer, Postgres};

use crate::subject::Timed;

#[tokio::test]
async fn a_database_is_a_store() {
    let url = Postgres::shared().new_database();
    conformance::check(&Timed::new(&url), 0..300).await;
}

#[tokio::test]
async fn a_database_behind_pgbouncer_in_transaction_mode_is_a_store() {
    let postgres = Postgres::shared();
    let bouncer = PgBouncer::start(postgres, 2);
    let url = postgres.new_database_at(bouncer.addr());
    conformance::check(&Timed::new(&url), 0..300).await;
}
