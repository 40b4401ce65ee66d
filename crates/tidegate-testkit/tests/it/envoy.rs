//! A real Envoy that routes to the upstream.

use std::net::SocketAddr;

use tidegate_testkit::{Envoy, Upstream, http};

/// One listener called `web`, everything routed to one cluster called `upstream`.
fn routing_to(upstream: SocketAddr) -> String {
    let port = upstream.port();
    format!(
        r#"
static_resources:
  listeners:
  - name: web
    address: {{ socket_address: {{ address: 127.0.0.1, port_value: 0 }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: web
          route_config:
            virtual_hosts:
            - {{ name: all, domains: ["*"], routes: [{{ match: {{ prefix: "/" }}, route: {{ cluster: upstream }} }}] }}
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
  - name: upstream
    load_assignment:
      cluster_name: upstream
      endpoints:
      - lb_endpoints:
        - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }} }}
"#
    )
}

#[test]
fn envoy_routes_to_the_upstream_and_counts_it() {
    let upstream = Upstream::start();
    let envoy = Envoy::start(&routing_to(upstream.addr()));
    let response = http::get(envoy.listener("web"), "/through?envoy");
    assert_eq!(response.status, 200);
    assert_eq!(response.header("Server"), Some("envoy"));
    assert_eq!(response.json()["path"], "/through?envoy");
    assert_eq!(upstream.requests(), 1);
    envoy.wait_for_stat("cluster.upstream.upstream_rq_total", |count| count == 1);
    assert_eq!(envoy.stat("no.such.stat"), None);
}

#[test]
fn two_envoys_run_side_by_side() {
    let upstream = Upstream::start();
    let envoys = [(); 2].map(|()| Envoy::start(&routing_to(upstream.addr())));
    assert_ne!(envoys[0].admin(), envoys[1].admin());
    for envoy in &envoys {
        assert_eq!(http::get(envoy.listener("web"), "/").status, 200);
    }
}

#[test]
#[should_panic(expected = "'nonsense') has unknown fields")]
fn a_mistake_in_the_configuration_is_shown() {
    let _ = Envoy::start("nonsense: true");
}
