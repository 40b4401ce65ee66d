//! Several processes' worth of limiters and middleware on one real Redis.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use tidegate::middleware::identity::Attributes;
use tidegate::{Ask, Limiter, RateLimitLayer, RedisConfig, on_redis, on_redis_with};
use tidegate_testkit::Redis;
use tower::{Layer, ServiceExt, service_fn};

/// Two limiters with these rules on `redis`, patient with a busy machine.
fn two(redis: &Redis, rules: &str) -> [Arc<Limiter>; 2] {
    let config = RedisConfig::default().timeout(Duration::from_secs(30));
    [(); 2].map(|()| Arc::new(on_redis_with(rules, &redis.url(), &config).unwrap()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_limiters_on_one_redis_admit_exactly_the_limit_between_them() {
    let redis = Redis::start();
    let rules =
        "{ domain: api, rules: [{ name: r, key: [user], limits: [100/h], on_store_failure: closed }] }";
    let nodes = two(&redis, rules);
    let asked: Vec<_> = (0..400)
        .map(|number: usize| {
            let node = nodes[number % 2].clone();
            tokio::spawn(
                async move { Ask::new("api").with("user", "alice").check(&node).await.unwrap().allowed },
            )
        })
        .collect();
    let mut admitted = 0;
    for answer in asked {
        admitted += usize::from(answer.await.unwrap());
    }
    assert_eq!(admitted, 100);
    assert!(!Ask::new("api").with("user", "alice").check(&nodes[0]).await.unwrap().allowed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn middleware_on_one_node_holds_a_place_that_another_sees() {
    let redis = Redis::start();
    let rules = "{ domain: api, rules: [{ name: at-once, on_store_failure: closed, \
        limits: [{ algorithm: concurrency, limit: 1, ttl: 60s }] }] }";
    let nodes = two(&redis, rules);
    let ask = |node: &Arc<Limiter>| {
        let answers = service_fn(|_: Request<Empty<Bytes>>| async {
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        });
        let layer = RateLimitLayer::builder(node.clone(), "api")
            .extract([""; 0], |_| Attributes::new())
            .build()
            .unwrap();
        layer.layer(answers).oneshot(Request::new(Empty::new()))
    };
    let eventually = |node: Arc<Limiter>, status| async move {
        let asking = async {
            loop {
                let response = ask(&node).await.unwrap();
                if response.status() == status {
                    return response;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), asking).await.expect("another answer")
    };
    let held = eventually(nodes[0].clone(), StatusCode::OK).await;
    assert_ne!(ask(&nodes[1]).await.unwrap().status(), StatusCode::OK);
    drop(held);
    eventually(nodes[1].clone(), StatusCode::OK).await;
}

#[tokio::test]
async fn middleware_gives_back_what_failed_where_another_node_sees_it() {
    let redis = Redis::start();
    let nodes = two(&redis, "{ domain: api, rules: [{ name: r, key: [user], limits: [100/h] }] }");
    let fails = service_fn(|_: Request<Empty<Bytes>>| async {
        Ok::<_, Infallible>(Response::builder().status(503).body(Empty::<Bytes>::new()).unwrap())
    });
    let layer = RateLimitLayer::builder(nodes[0].clone(), "api").extract(["user"], |_| {
        let mut ann = Attributes::new();
        ann.push("user", &b"ann"[..]);
        ann
    });
    let layer = layer.build().unwrap().cost(|_| 40);
    let kept = layer.clone().layer(fails).oneshot(Request::new(Empty::new())).await.unwrap();
    assert_eq!(kept.status(), StatusCode::SERVICE_UNAVAILABLE);
    let left = async || {
        Ask::new("api").with("user", "ann").cost(0).check(&nodes[1]).await.unwrap().remaining().unwrap()
    };
    assert_eq!(left().await, 60);
    let refunds = layer.refund_when(|response| response.status.is_server_error());
    refunds.layer(fails).oneshot(Request::new(Empty::new())).await.unwrap();
    let given_back = async {
        while left().await != 60 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), given_back).await.expect("it was given back");
}

#[tokio::test]
async fn what_is_wrong_with_rules_or_url_is_said() {
    let wrong = |rules: &str, url: &str| on_redis(rules, url).unwrap_err().to_string();
    let rules = "{ domain: api, rules: [{ name: r, limits: [1/s] }] }";
    assert!(wrong("{ domain: api }", "redis://localhost").contains("rules"));
    assert!(!wrong(rules, "http://localhost").is_empty());
    assert!(on_redis(rules, "redis://127.0.0.1:1").is_ok());
}
