//! What nodes tell each other through it.

use tidegate_core::Micros;
use tidegate_fleet::{
    Answered, FleetHistory, FleetStore, Over, Published, PublishedRevision, Publishing, StoredQuestion,
};
use tidegate_store::Store;
use tidegate_testkit::Moto;

use crate::subject::{patient, ready, store};

const TTL: Micros = Micros::from_secs(60);

#[tokio::test]
async fn nodes_count_each_other_and_read_notes() {
    let server = Moto::start();
    let url = server.url("limits");
    ready(&url, &patient()).await;
    let nodes = [(); 2].map(|()| store(&url, &patient()));
    nodes[0].with_heartbeat().announce(b"here".to_vec());
    assert_eq!(nodes[0].heartbeat(1, TTL).answer().await.unwrap(), 1);
    assert_eq!(nodes[1].heartbeat(2, TTL).answer().await.unwrap(), 2);
    let notes = nodes[1].notes().await.unwrap();
    assert_eq!(notes.len(), 1, "the second says nothing: {notes:?}");
    assert_eq!((notes[0].member, &notes[0].note[..], notes[0].lost), (1, &b"here"[..], false));
    nodes[0].leave(1).answer().await.unwrap();
    assert_eq!(nodes[1].heartbeat(2, TTL).answer().await.unwrap(), 1);
    assert!(nodes[1].notes().await.unwrap().is_empty());
}

#[tokio::test]
async fn rules_larger_than_an_item_are_published_to_all() {
    let server = Moto::start();
    let url = server.url("limits");
    ready(&url, &patient()).await;
    let nodes = [(); 2].map(|()| store(&url, &patient()));
    let set: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    let revision = |revision| PublishedRevision {
        lineage: "db".to_owned(),
        revision,
        serial: revision,
        ..PublishedRevision::default()
    };
    let first = Published { set, changes: b"none".to_vec(), format: 2 };
    assert_eq!(nodes[0].publish(&revision(1), &first, Over::Older).await.unwrap(), Publishing::Stored);
    assert_eq!(nodes[1].published().await.unwrap(), Some(first.clone()));
    assert!(nodes[0].publish_changes(&revision(2), b"none", (b"one", 3)).await.unwrap());
    assert!(
        !nodes[1].publish_changes(&revision(3), b"none", (b"other", 3)).await.unwrap(),
        "they are not those"
    );
    nodes[0].keep_published().await.unwrap();
    assert_eq!(nodes[1].published_changes().await.unwrap(), (b"one".to_vec(), 3));
    nodes[1].heartbeat(2, TTL).answer().await.unwrap();
    let heard = nodes[1].with_heartbeat().published().borrow().clone();
    assert_eq!((heard.lineage.as_str(), heard.revision), ("db", 2));
    let other =
        PublishedRevision { lineage: "other".to_owned(), revision: 9, ..PublishedRevision::default() };
    assert_eq!(nodes[1].publish(&other, &first, Over::Older).await.unwrap(), Publishing::OtherDatabase);
    assert_eq!(nodes[1].publish(&other, &first, Over::This(&heard)).await.unwrap(), Publishing::Stored);
}

#[tokio::test]
async fn a_question_is_answered_in_full_and_forgotten() {
    let server = Moto::start();
    let url = server.url("limits");
    ready(&url, &patient()).await;
    let nodes = [(); 2].map(|()| store(&url, &patient()));
    let question = StoredQuestion { id: 7, text: b"who?".to_vec() };
    assert!(nodes[0].put_question(&question).await.unwrap());
    nodes[1].heartbeat(2, TTL).answer().await.unwrap();
    assert_eq!(*nodes[1].with_heartbeat().questions().borrow(), [question]);
    let answer = vec![7; 1_500_000];
    assert_eq!(nodes[1].answer_question(7, b"two", &answer).await.unwrap(), Answered::Kept);
    assert_eq!(nodes[1].answer_question(8, b"two", &answer).await.unwrap(), Answered::NotOpen);
    assert_eq!(nodes[0].answered(7).await.unwrap(), [b"two"]);
    let answers = nodes[0].answers(7).await.unwrap();
    assert_eq!((answers.len(), answers[0].1.as_ref().unwrap()), (1, &answer));
    nodes[0].forget_question(7).await.unwrap();
    assert!(nodes[0].answered(7).await.unwrap().is_empty());
    nodes[1].heartbeat(2, TTL).answer().await.unwrap();
    assert!(nodes[1].with_heartbeat().questions().borrow().is_empty());
}

#[tokio::test]
async fn counts_of_all_nodes_are_summed() {
    let server = Moto::start();
    let url = server.url("limits");
    ready(&url, &patient()).await;
    let nodes = [(); 2].map(|()| store(&url, &patient()));
    for (node, member) in nodes.iter().zip(1..) {
        node.with_heartbeat().count(vec![(b"rule".to_vec(), vec![2, 3])]);
        node.heartbeat(member, TTL).answer().await.unwrap();
    }
    #[expect(clippy::disallowed_methods, reason = "the emulator's clock is this machine's")]
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    // The server's clock runs up to two seconds behind, and the hour may end in between.
    let hour = since.as_secs() / 3_600;
    let mut sum = 0_u32;
    for number in [hour - 1, hour] {
        for (_, counts) in nodes[0].counted(FleetHistory::Minutes, number).await.unwrap() {
            sum += counts.iter().sum::<u32>();
        }
    }
    assert_eq!(sum, 10);
}
