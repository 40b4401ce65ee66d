//! Streams of quotas on real sockets; tonic's own client is the judge. What is lent is tested beside the code.

use std::time::Duration;

use tidegate_core::Micros;
use tidegate_runtime::Settings;
use tidegate_runtime::connection::HttpLimits;
use tidegate_server::rlqs::rate_limit_quota_service_client::RateLimitQuotaServiceClient;
use tidegate_server::rlqs::{
    Action, BlanketRule, BucketId, BucketQuotaUsage, LENT_FOR, MAX_BUCKETS, RateLimitQuotaResponse,
    RateLimitQuotaUsageReports, Strategy,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::world::World;

const RULES: &str = "{ domain: api, rules: [{ name: per-user, key: [user], limits: [100/second] }] }";
const PATIENCE: Duration = Duration::from_secs(60);

struct Stream {
    reports: mpsc::Sender<RateLimitQuotaUsageReports>,
    answers: Streaming<RateLimitQuotaResponse>,
}

impl Stream {
    async fn open(world: &World) -> Result<Self, Status> {
        let (reports, sent) = mpsc::channel(4);
        let mut client = RateLimitQuotaServiceClient::new(world.channel());
        let answers = client.stream_rate_limit_quotas(ReceiverStream::new(sent)).await?;
        Ok(Stream { reports, answers: answers.into_inner() })
    }

    async fn report(&self, elapsed_s: i64, buckets: usize) {
        self.reports.send(report(elapsed_s, buckets)).await.unwrap();
    }

    async fn next(&mut self) -> Result<Option<RateLimitQuotaResponse>, Status> {
        tokio::time::timeout(PATIENCE, self.answers.message()).await.expect("it answers or ends")
    }

    /// The tokens of each bucket, of this many; none where all is denied.
    async fn tokens(&mut self, buckets: usize) -> Vec<u32> {
        let mut tokens = Vec::new();
        while tokens.len() < buckets {
            let answer = self.next().await.unwrap().expect("more answers");
            tokens.extend(answer.bucket_action.iter().map(|action| {
                let Some(Action::QuotaAssignmentAction(assignment)) = action.bucket_action else {
                    panic!("{action:?}")
                };
                match assignment.rate_limit_strategy.unwrap().strategy.unwrap() {
                    Strategy::TokenBucket(bucket) => bucket.tokens_per_fill.unwrap(),
                    Strategy::BlanketRule(rule) if rule == i32::from(BlanketRule::DenyAll) => 0,
                    other => panic!("{other:?}"),
                }
            }));
        }
        tokens
    }
}

fn report(elapsed_s: i64, buckets: usize) -> RateLimitQuotaUsageReports {
    let usage = |number: usize| BucketQuotaUsage {
        bucket_id: Some(BucketId { bucket: [("user".to_owned(), number.to_string().into_bytes())].into() }),
        time_elapsed: Some(prost_types::Duration { seconds: elapsed_s, nanos: 0 }),
        num_requests_allowed: 1,
        num_requests_denied: 0,
    };
    RateLimitQuotaUsageReports {
        domain: "api".to_owned(),
        bucket_quota_usages: (0..buckets).map(usage).collect(),
    }
}

fn settled() -> World {
    let world = World::new(RULES);
    world.advance(LENT_FOR);
    world
}

#[tokio::test]
async fn ten_thousand_buckets_of_two_envoys_have_their_shares() {
    let world = settled();
    let (mut one, mut other) = (Stream::open(&world).await.unwrap(), Stream::open(&world).await.unwrap());
    one.report(0, 10_000).await;
    assert_eq!(one.tokens(10_000).await, vec![100; 10_000]);
    // All is lent to the first, which gives half back with its next reports.
    other.report(0, 10_000).await;
    assert_eq!(other.tokens(10_000).await, vec![0; 10_000]);
    let mut shares = Vec::new();
    for _ in 0..4 {
        world.advance(Micros::from_secs(5));
        one.report(5, 10_000).await;
        let first = one.tokens(10_000).await;
        other.report(5, 10_000).await;
        shares = first.into_iter().zip(other.tokens(10_000).await).collect();
        assert!(shares.iter().all(|(first, second)| first + second <= 100), "{:?}", &shares[..10]);
    }
    assert!(shares.iter().all(|(first, second)| *first >= 40 && *second >= 40), "{:?}", &shares[..10]);
    let counts = world.quotas.counts();
    assert_eq!((counts.streams, counts.buckets, counts.budgets), (2, 20_000, 10_000));
    assert!(counts.lent_milli <= 100 * 1_000 * 10_000, "{counts:?}");
}

#[tokio::test]
async fn buckets_beyond_the_bound_get_no_assignment_and_are_counted() {
    let world = settled();
    let mut stream = Stream::open(&world).await.unwrap();
    stream.report(0, MAX_BUCKETS + 5).await;
    assert_eq!(stream.tokens(MAX_BUCKETS).await.len(), MAX_BUCKETS);
    stream.report(5, 1).await;
    assert_eq!(stream.tokens(1).await.len(), 1);
    let counts = world.quotas.counts();
    assert_eq!((counts.buckets, counts.refused_buckets), (MAX_BUCKETS as u64, 5));
    drop(stream);
    let gone = || world.quotas.counts().buckets == 0 && world.quotas.counts().streams == 0;
    for _ in 0..600 {
        if gone() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(gone(), "{:?}", world.quotas.counts());
}

#[tokio::test]
async fn a_report_that_is_too_large_ends_its_stream() {
    let world = settled();
    let mut stream = Stream::open(&world).await.unwrap();
    stream.report(0, 250_000).await;
    assert_eq!(stream.next().await.unwrap_err().code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn a_stream_without_reports_is_ended_and_its_bucket_stays_lent() {
    let limits = HttpLimits { idle_timeout: Duration::from_millis(400), ..HttpLimits::default() };
    let world = World::with_limits(RULES, limits, Settings::default());
    world.advance(LENT_FOR);
    let mut stream = Stream::open(&world).await.unwrap();
    stream.report(0, 1).await;
    assert_eq!(stream.tokens(1).await, [100]);
    assert_eq!(stream.next().await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(world.quotas.counts().lent_milli, 100_000);
}

#[tokio::test]
async fn a_stop_ends_streams_so_that_envoy_tries_another_node() {
    let world = settled();
    let mut stream = Stream::open(&world).await.unwrap();
    stream.report(0, 1).await;
    assert_eq!(stream.tokens(1).await, [100]);
    let World { plane, .. } = world;
    let draining = tokio::task::spawn_blocking(move || plane.drain());
    assert_eq!(stream.next().await.unwrap_err().code(), Code::Unavailable);
    let _drained = draining.await.unwrap();
}

#[tokio::test]
async fn a_client_that_is_done_ends_its_stream_well() {
    let world = settled();
    let Stream { reports, mut answers } = Stream::open(&world).await.unwrap();
    drop(reports);
    assert_eq!(answers.message().await.unwrap(), None);
}
