//! What fails this is not a store.

use tidegate_store::conformance;
use tidegate_testkit::Memcached;

use crate::subject::Timed;

#[tokio::test]
async fn a_server_is_a_store() {
    let server = Memcached::start();
    conformance::check(&Timed::new(&Memcached::url_of(&[&server])), 0..500).await;
}

#[tokio::test]
async fn three_servers_are_one_store() {
    let servers = [(); 3].map(|()| Memcached::start());
    conformance::check(&Timed::new(&Memcached::url_of(&servers.each_ref())), 0..500).await;
}
