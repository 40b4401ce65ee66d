//! A real nginx in front of the upstream.

use tidegate_testkit::{Nginx, Upstream, http};

#[test]
fn nginx_serves_its_own_pages_and_the_upstreams() {
    let upstream = Upstream::start();
    let behind = upstream.addr();
    let mut nginx = Nginx::start(|listen| {
        format!(
            "server {{
                listen {listen};
                location = /own {{ return 418 'short and stout'; }}
                location / {{ proxy_pass http://{behind}; }}
            }}"
        )
    });
    let own = http::get(nginx.addr(), "/own");
    assert_eq!((own.status, own.text()), (418, "short and stout".to_owned()));
    assert_eq!(upstream.requests(), 0);
    assert_eq!(http::get(nginx.addr(), "/passed?on").json()["path"], "/passed?on");
    assert_eq!(upstream.requests(), 1);
    assert!(nginx.process().terminate(std::time::Duration::from_secs(10)).success());
}

#[test]
#[should_panic(expected = "unknown directive \"nonsense\"")]
fn a_mistake_in_the_configuration_is_shown() {
    let _ = Nginx::start(|_| "nonsense;".to_owned());
}
