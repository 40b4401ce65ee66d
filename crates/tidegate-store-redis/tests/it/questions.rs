//! What nodes are asked, and what becomes of their answers.

use tidegate_store_redis::{Answered, FleetQuestion, LONGEST_ANSWER};
use tidegate_testkit::Redis;

use crate::subject::{patient, store};

#[tokio::test]
async fn the_longest_answers_of_three_nodes_arrive_whole_and_a_longer_one_is_called_so() {
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    assert!(store.put_question(&FleetQuestion { id: 7, text: b"who?".to_vec() }).await.unwrap());
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
