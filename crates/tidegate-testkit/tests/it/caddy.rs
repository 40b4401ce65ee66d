//! A real Caddy in front of the upstream.

use tidegate_testkit::{Caddy, Upstream, http};

const GLOBAL: &str = "{\n\tadmin off\n\tauto_https off\n}\n";

#[test]
fn caddy_serves_its_own_pages_and_the_upstreams() {
    let upstream = Upstream::start();
    let behind = upstream.addr();
    let mut caddy = Caddy::start(|listen| {
        format!(
            "{GLOBAL}http://{listen} {{\n\trespond /own \"short and stout\" 418\n\treverse_proxy {behind}\n}}\n"
        )
    });
    let own = http::get(caddy.addr(), "/own");
    assert_eq!((own.status, own.text()), (418, "short and stout".to_owned()));
    assert_eq!(http::get(caddy.addr(), "/passed?on").json()["path"], "/passed?on");
    assert!(caddy.process().terminate(std::time::Duration::from_secs(10)).success());
}

#[test]
#[should_panic(expected = "nonsense")]
fn a_mistake_in_the_configuration_is_shown() {
    let _ = Caddy::start(|listen| format!("{GLOBAL}http://{listen} {{\n\tnonsense\n}}\n"));
}
