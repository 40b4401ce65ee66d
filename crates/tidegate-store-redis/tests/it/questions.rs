//! What nodes are asked, and what becomes of their answers.

use tidegate_core::Micros;
use tidegate_fleet::{Answered, FleetHistory, FleetStore as _, LONGEST_ANSWER, StoredQuestion};
use tidegate_store::Store as _;
use tidegate_testkit::Redis;

use crate::subject::{patient, store};

#[tokio::test]
async fn the_longest_answers_of_three_nodes_arrive_whole_and_a_longer_one_is_called_so() {
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    assert!(store.put_question(&StoredQuestion { id: 7, text: b"who?".to_vec() }).await.unwrap());
    let answer = vec![b'x'; LONGEST_ANSWER];
    for from in ["a", "b", "c"] {
        assert_eq!(store.answer_question(7, from.as_bytes(), &answer).await.unwrap(), Answered::Kept);
    }
    let longer = [&answer[..], b"x"].concat();
    assert_eq!(store.answer_question(7, b"d", &longer).await.unwrap(), Answered::TooLong);
    assert_eq!(store.answer_question(8, b"a", b"I").await.unwrap(), Answered::NotOpen);
    let mut senders = store.answered(7).await.unwrap();
    senders.sort();
    assert_eq!(senders, [b"a", b"b", b"c"]);
    let mut answers = store.answers(7).await.unwrap();
    answers.sort_by(|(one, _), (other, _)| one.cmp(other));
    let told = answers.iter().map(|(from, told)| (&from[..], told.as_ref().unwrap().len()));
    assert_eq!(told.collect::<Vec<_>>(), [b"a", b"b", b"c"].map(|from| (&from[..], LONGEST_ANSWER)));
    store.forget_question(7).await.unwrap();
    assert!(store.answers(7).await.unwrap().is_empty());
}

/// What all sixty slots of this row hold.
async fn sum_of(store: &tidegate_store_redis::RedisStore, minutes: impl Iterator<Item = u64>) -> u32 {
    let mut sum = 0;
    for minute in minutes {
        let rows = store.counted(FleetHistory::Seconds, minute).await.unwrap();
        sum += rows.iter().filter(|(name, _)| name == b"row").flat_map(|(_, counts)| counts).sum::<u32>();
    }
    sum
}

#[tokio::test]
async fn counts_of_a_refused_heartbeat_go_with_the_next() {
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    let beat = || async { store.heartbeat(1, Micros::from_secs(5)).answer().await };
    let minute = |time: &str| time.parse::<u64>().unwrap() / 60;
    let began = minute(&redis.cmd(&["TIME"]).array()[0].text());
    beat().await.unwrap();
    redis.cmd(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    store.with_heartbeat().count(vec![(b"row".to_vec(), vec![7])]);
    assert!(beat().await.unwrap_err().is_certainly_not_applied());
    store.with_heartbeat().count(vec![(b"row".to_vec(), vec![4])]);
    redis.cmd(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    beat().await.unwrap();
    beat().await.unwrap();
    let until = minute(&redis.cmd(&["TIME"]).array()[0].text());
    assert_eq!(sum_of(&store, began..=until).await, 11, "each once");
}
